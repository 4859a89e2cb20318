//! `sealane-lab compare`: a configuration of another server and its translation, side by side.

use clap::{Args as ClapArgs, Subcommand};
use sealane_lab_compare::{Kind, Options, compare};
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const AFTER: &str = "\
Both programs run in network namespaces of their own, with the addresses and ports of the
configuration. Recording back-ends take the place of its servers. The command derives requests from
the configuration: hosts, paths, conditions, methods, headers, limits, certificates, TLS.
The command needs root, or user namespaces for ordinary users.

Examples:
  sealane-lab compare nginx /etc/nginx/nginx.conf
  sealane-lab compare nginx /etc/nginx/nginx.conf --translated /etc/sealane/sealane.toml
  sealane-lab compare haproxy haproxy.cfg --translated sealane.toml --accept accepted.toml
  sealane-lab compare haproxy haproxy.cfg --program /opt/haproxy/sbin/haproxy --json

Exit codes: 0 no differences, or only differences that the import's report or
docs/reference/import.md announces, or that --accept accepts; 1 another difference; 2 wrong usage, a
program is missing or refuses its configuration, or no network namespace can be made.";

#[derive(Debug, ClapArgs)]
#[command(subcommand_required = true)]
pub struct Args {
    #[command(subcommand)]
    kind: Of,
}

#[derive(Debug, Subcommand)]
enum Of {
    /// Compare NGINX with the translation of its configuration
    #[command(after_help = AFTER)]
    Nginx(One),
    /// Compare HAProxy with the translation of its configuration
    #[command(after_help = AFTER)]
    Haproxy(One),
}

#[derive(Debug, ClapArgs)]
struct One {
    /// The original configuration
    file: PathBuf,
    /// The original program [default: the one in PATH]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The gateway [default: the one beside this program, or in PATH]
    #[arg(long, value_name = "PATH")]
    sealane: Option<PathBuf>,
    /// Compare this translation, for example an edited one [default: the output of `sealane import`]
    #[arg(long, value_name = "FILE")]
    translated: Option<PathBuf>,
    /// Accept the differences that this file lists with a reason; print the lines to add for the others
    #[arg(long, value_name = "FILE")]
    accept: Option<PathBuf>,
    /// Add the other differences to the file of --accept, without a reason; they are accepted once you have written one
    #[arg(long, requires = "accept")]
    append: bool,
    /// An upstream of the translation that does what the original did itself (files, a cache): print one line for each line of the
    /// original whose requests this upstream answers; can be repeated, and "*" stands for any text
    #[arg(long, value_name = "NAME", requires = "translated")]
    inner: Vec<String>,
    /// Maximum number of requests
    #[arg(long, value_name = "N", default_value_t = 5000)]
    requests: usize,
    /// Time limit for all requests together, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    time: u64,
    /// Print only the differences that are neither announced nor accepted, and what was not tried
    #[arg(long, conflicts_with = "json")]
    unannounced: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print no progress
    #[arg(short, long)]
    quiet: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Before there is a second thread.
    let privileges = sealane_lab_compare::network::become_able();
    let (kind, one) = match args.kind {
        Of::Nginx(one) => (Kind::Nginx, one),
        Of::Haproxy(one) => (Kind::Haproxy, one),
    };
    privileges?;
    let options = Options {
        kind,
        file: one.file,
        program: one.program,
        sealane: one.sealane,
        translated: one.translated,
        accept: one.accept,
        append: one.append,
        inner: one.inner,
        most: one.requests,
        time: Duration::from_secs(one.time),
    };
    let is_terminal = std::io::stderr().is_terminal();
    let progress = |text: &str| {
        if one.quiet {
            return;
        }
        let mut out = std::io::stderr().lock();
        let _ = if is_terminal { write!(out, "\r\x1b[K{text} ") } else { writeln!(out, "{text}") };
        let _ = out.flush();
    };
    let result = compare(&options, &progress);
    if is_terminal && !one.quiet {
        eprintln!();
    }
    let report = result?;
    out!("{}", if one.json { report.to_json() } else { report.to_text(!one.unannounced) });
    Ok(ExitCode::from(u8::from(report.unannounced() > 0)))
}
