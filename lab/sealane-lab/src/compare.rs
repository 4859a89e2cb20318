//! `sealane-lab compare`: a configuration of another server and its translation, side by side.

use clap::{Args as ClapArgs, Subcommand};
use sealane_lab_compare::{Kind, Options, compare};
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const AFTER: &str = "\
Both programs run in network namespaces of their own, with the addresses and ports of the
configuration. Recording back-ends stand at the addresses of its servers. The requests come from
the configuration: hosts, paths, conditions, methods, headers, limits, certificates, TLS.
It needs root, or user namespaces for ordinary users.

Examples:
  sealane-lab compare nginx /etc/nginx/nginx.conf
  sealane-lab compare nginx /etc/nginx/nginx.conf --translated /etc/sealane/sealane.toml
  sealane-lab compare haproxy haproxy.cfg --program /opt/haproxy/sbin/haproxy --json

Exit codes: 0 no difference, or only such as the import's report or docs/reference/import.md
announce; 1 a difference that nothing announces; 2 wrong usage, or a program is missing or refuses
its configuration.";

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
    /// The original program [default: the one on the path]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The gateway [default: the one beside this program, or on the path]
    #[arg(long, value_name = "PATH")]
    sealane: Option<PathBuf>,
    /// A translation, such as one that was edited [default: what `sealane import` makes]
    #[arg(long, value_name = "FILE")]
    translated: Option<PathBuf>,
    /// Most requests
    #[arg(long, value_name = "N", default_value_t = 5000)]
    requests: usize,
    /// Seconds that the requests may take together
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    time: u64,
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
    out!("{}", if one.json { report.to_json() } else { report.to_text() });
    Ok(ExitCode::from(u8::from(report.unannounced() > 0)))
}
