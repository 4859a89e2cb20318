//! `sealane-lab`: which is faster here, and how sure are we?
//!
//! Exit codes of every command: 0 done, 1 a threshold failed or a difference was found, 2 wrong usage or the command
//! could not run, 3 void.

/// Prints, and does not mind when nobody reads on (`sealane-lab … | head`).
macro_rules! out {
    ($($t:tt)*) => {{
        use std::io::Write;
        let _ = write!(std::io::stdout(), $($t)*);
    }};
}

/// The same with the line's end.
macro_rules! outln {
    ($($t:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($t)*);
    }};
}

mod compare;
mod diff;
mod link;
mod live;
mod load;
mod locks;
mod probe;
mod run;
mod stacks;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

// rustls allocates twice per record; an allocator without locks between threads keeps that cheap.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures and compares TLS servers, proxies and tunnels on this machine.
#[derive(Debug, Parser)]
#[command(name = "sealane-lab", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate load on a server; report rates, latencies, the server's CPU time, and whether these figures can be trusted.
    Load(Box<load::Args>),
    /// Measure the phases of a request, compare variants, and list what a server offers.
    Probe(Box<probe::Args>),
    /// Run a command over an emulated network link with delay, jitter, rate limit and loss.
    Link(Box<link::Args>),
    /// Compare the configuration of another server with its translation, request by request.
    Compare(compare::Args),
    /// Run one or all experiments, and write a report.
    Run(Box<run::Args>),
    /// Render reports of earlier runs again, or combine them.
    Report(run::Render),
    /// Compare two reports of the same experiment: ratios with intervals, and the conditions that changed.
    Diff(diff::Args),
    /// Build TLS libraries, run the same work on each, and count their locks.
    Stacks(Box<stacks::Args>),
    /// Run a program and count its lock calls, contention and waiting time.
    Locks(Box<locks::Args>),
    /// Print shell completions.
    #[command(after_help = "\
Example:
  sealane-lab completions bash > /etc/bash_completion.d/sealane-lab")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages to a folder.
    #[command(after_help = "\
Example:
  sealane-lab man /usr/local/share/man/man1")]
    Man {
        /// The folder; created if it does not exist.
        folder: PathBuf,
    },
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sealane-lab", &mut out);
    match std::io::stdout().write_all(&out) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e).context("cannot print"),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn manual(folder: &Path) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Load(args) => load::run(&args),
        Command::Probe(args) => probe::run(*args),
        Command::Link(args) => link::run(&args),
        Command::Compare(args) => compare::run(args),
        Command::Run(args) => run::run(&args),
        Command::Report(args) => run::render(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Stacks(args) => stacks::run(*args),
        Command::Locks(args) => locks::run(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { folder } => manual(&folder),
    };
    result.unwrap_or_else(|error| {
        eprintln!("sealane-lab: {error:#}");
        ExitCode::from(2)
    })
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    /// clap breaks longer lines at 100 columns, also lines that were broken by hand.
    #[test]
    fn help_texts_are_not_broken_twice() {
        for command in Cli::command().get_subcommands() {
            for line in command.get_after_help().map(ToString::to_string).unwrap_or_default().lines() {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
        }
    }
}
