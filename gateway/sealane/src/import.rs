//! `sealane import …`: configurations of other programs as one of Sealane.

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use sealane_import::{Failed, Imported, Outcome, Parsed, Reader, haproxy, nginx, openvpn};
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const EXIT_CODES: &str = "\
Exit codes: 0 no directive is undecided, and the result passes `sealane check --offline`;
1 directives are undecided, Sealane refuses the result, the file cannot be read, a file cannot be
written (it exists, without --force), or --report json is without --out;
2 wrong usage.";

/// Where configurations come from.
#[derive(Subcommand)]
pub enum ImportCommand {
    /// Convert a configuration of NGINX, with the files that it includes
    #[command(after_help = format!("\
The report lists the directives to decide (undecided) and to look at (different, or not translated),
and counts the others; with --report explain, all directives that are not the same; with full, all.
The import does not know or understand an undecided directive, or the directive decides who may
connect or how strong the protection is. The file has one entry under \"undecided\" for each of
these directives. `sealane check` and `sealane serve` refuse the file until you have decided each of
them and removed its entry.

Examples:
  sealane import nginx /etc/nginx/nginx.conf --out sealane.toml
  sealane import nginx /etc/nginx/nginx.conf --out sealane.toml --inner-nginx
  sealane import nginx /etc/nginx/nginx.conf --out sealane.toml --report json > report.json

{EXIT_CODES}"))]
    Nginx(NginxOptions),
    /// Convert a configuration of HAProxy
    #[command(after_help = format!("\
The report lists the lines to decide (undecided) and to look at (different, or not translated),
and counts the others; with --report explain, all lines that are not the same; with full, all.
The import does not know or understand an undecided line, or the line decides who may
connect or how strong the protection is. The file has one entry under \"undecided\" for each of
these lines. `sealane check` and `sealane serve` refuse the file until you have decided each of
them and removed its entry.
Variables in double quotes (\"$NAME\") get their values from the environment of this command.

Examples:
  sealane import haproxy /etc/haproxy/haproxy.cfg --out sealane.toml
  sealane import haproxy haproxy.cfg --report full

{EXIT_CODES}"))]
    Haproxy(Options),
    /// Convert an OpenVPN server's configuration, and list what cannot be converted
    #[command(after_help = format!("\
The report lists the options to decide (undecided) and to look at (different, or not translated),
and counts the others; with --report explain, all options that are not the same; with full, all.
The import does not know or understand an undecided option, or the option decides who may
connect or how strong the protection is. The file has one entry under \"undecided\" for each of
these options. `sealane check` and `sealane serve` refuse the file until you have decided each of
them and removed its entry.

Examples:
  sealane import openvpn /etc/openvpn/server.conf --out sealane.toml
  sealane import openvpn /etc/openvpn/server.conf --out sealane.toml --report json > report.json

{EXIT_CODES}"))]
    Openvpn(Options),
}

/// What the import of NGINX can do besides.
#[derive(Args)]
pub struct NginxOptions {
    #[command(flatten)]
    options: Options,
    /// Write inner-nginx.conf beside the output file, for a second NGINX behind Sealane that serves files, FastCGI and caches. It listens
    /// on this address of the loopback, and on the ports behind it
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:8081", requires = "out")]
    inner_nginx: Option<SocketAddr>,
}

/// What all imports have in common.
#[derive(Args)]
pub struct Options {
    /// The main configuration file
    file: PathBuf,
    /// Output file, which must not exist; error pages and inline blocks are written to the same folder [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite the output file, and files of the same names beside it
    #[arg(long, requires = "out")]
    force: bool,
    /// The report: text (what to decide and to look at), explain (all that is not the same) or full (everything), on standard error; json
    /// (everything), on standard output
    #[arg(long, value_enum, default_value_t = ReportKind::Text)]
    report: ReportKind,
    /// Print the original as it was read, as JSON on the standard output, and translate nothing
    #[arg(long, conflicts_with_all = ["out", "report", "json"])]
    parsed: bool,
    /// The same as --report json
    #[arg(long, hide = true)]
    json: bool,
}

/// What the report looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportKind {
    Text,
    Explain,
    Full,
    Json,
}

/// The file system.
struct Files;

/// Files of a configuration have at most this many bytes.
const MAX_FILE: u64 = 64 << 20;

impl Reader for Files {
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        let read = || -> std::io::Result<Vec<u8>> {
            // A pipe or a device could be read without end.
            if !std::fs::metadata(path)?.is_file() {
                return Err(std::io::Error::other("it is not a regular file"));
            }
            let file = std::fs::File::open(path)?;
            let mut out = Vec::new();
            file.take(MAX_FILE).read_to_end(&mut out)?;
            Ok(out)
        };
        read().map_err(|e| e.to_string())
    }

    fn list(&self, folder: &Path) -> Result<Vec<String>, String> {
        let entries = std::fs::read_dir(folder).map_err(|e| e.to_string())?;
        Ok(entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned())).collect())
    }

    fn environment(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

/// Executes the command.
pub fn execute(command: ImportCommand) -> Result<()> {
    match command {
        ImportCommand::Nginx(NginxOptions { options, inner_nginx }) => {
            if let Some(address) = inner_nginx.filter(|address| !address.ip().is_loopback()) {
                bail!("--inner-nginx {address}: write an address of this machine alone, such as 127.0.0.1:8081");
            }
            let import = |reader: &dyn Reader, path: &Path| nginx::import_with(reader, path, inner_nginx);
            server(&options, &import, nginx::parsed)
        }
        ImportCommand::Haproxy(options) => server(&options, &haproxy::import, haproxy::parsed),
        ImportCommand::Openvpn(options) => server(&options, &openvpn::import, openvpn::parsed),
    }
}

/// `sealane tunnel import`, the older name of `sealane import openvpn`.
pub fn execute_openvpn(file: PathBuf, out: Option<PathBuf>) -> Result<()> {
    let options = Options { file, out, force: false, report: ReportKind::Text, parsed: false, json: false };
    server(&options, &openvpn::import, openvpn::parsed)
}

type Import<'i> = &'i dyn Fn(&dyn Reader, &Path) -> Result<Imported, Failed>;
type Read = fn(&dyn Reader, &Path) -> Result<Vec<Parsed>, Failed>;

fn server(options: &Options, import: Import<'_>, read: Read) -> Result<()> {
    let json = options.json || options.report == ReportKind::Json;
    if json && options.out.is_none() {
        bail!("--report json prints the report on standard output: add --out with a file for the configuration");
    }
    // The result may lie elsewhere.
    let path = std::path::absolute(&options.file).with_context(|| options.file.display().to_string())?;
    if options.parsed {
        return print(&Parsed::to_json(&read(&Files, &path)?));
    }
    let Imported { toml, report, files } = import(&Files, &path)?;
    match &options.out {
        Some(out) => {
            write_all(out, toml.as_bytes(), &files, options.force)?;
            for (name, _) in files.iter().filter(|(name, _)| name.starts_with(nginx::INNER)) {
                let path = out.with_file_name(name);
                eprintln!("note: Sealane needs a second NGINX beside it: nginx -c {}", path.display());
            }
        }
        None => {
            print(&toml)?;
            if let Some((name, _)) = files.first() {
                eprintln!(
                    "note: with --out, the import also writes {} files beside the result, such as {name}",
                    files.len()
                );
            }
        }
    }
    match options.report {
        _ if json => print(&report.to_json())?,
        ReportKind::Text | ReportKind::Json => eprint!("{}", report.to_short_text()),
        ReportKind::Explain => eprint!("{}", report.to_text(false)),
        ReportKind::Full => eprint!("{}", report.to_text(true)),
    }
    match report.count(Outcome::Undecided) {
        0 => Ok(()),
        n => bail!("{}", undecided(n)),
    }
}

/// Why the result of an import does not start, if this many directives are undecided.
fn undecided(count: usize) -> String {
    const WHY: &str =
        "the gateway does not start until a person has decided, and removed each entry from \"undecided\"";
    match count {
        1 => format!("1 directive is undecided: {WHY}"),
        n => format!("{n} directives are undecided: {WHY}"),
    }
}

/// Writes the result and the files beside it. Without `force`, writes nothing if the result exists, or if a file beside it exists with
/// another content: a file with the same content is one of an earlier import, and stays as it is.
fn write_all(out: &Path, toml: &[u8], files: &[(String, Vec<u8>)], force: bool) -> Result<()> {
    let mut all = vec![(out.to_owned(), toml)];
    for (name, content) in files {
        let path = out.with_file_name(name);
        match std::fs::symlink_metadata(&path) {
            Ok(_) if force => all.push((path, content.as_slice())),
            Ok(_) if std::fs::read(&path).is_ok_and(|there| there == *content) => {}
            Ok(_) => bail!(
                "{} exists, and its content differs from the file that the import would write: choose another folder with --out, \
                 remove the file, or overwrite it with --force",
                path.display()
            ),
            Err(_) => all.push((path, content.as_slice())),
        }
    }
    if !force && std::fs::symlink_metadata(out).is_ok() {
        bail!("{} exists: choose another file with --out, or overwrite it with --force", out.display());
    }
    // The result comes last: it needs the other files.
    all.iter().rev().try_for_each(|(path, content)| write(path, content, force))
}

/// Writes a file. `force`: a file that is there is replaced.
fn write(path: &Path, content: &[u8], force: bool) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    match force {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let file = options.open(path);
    file.and_then(|mut f| f.write_all(content)).with_context(|| format!("cannot write {}", path.display()))
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot print")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_undecided_stops_the_start() {
        for (count, begin) in [(1, "1 directive is undecided: "), (12, "12 directives are undecided: ")] {
            let said = undecided(count);
            assert!(said.starts_with(begin) && said.ends_with("from \"undecided\""), "{said}");
        }
    }
}
