//! `sealane-lab`: which is faster here, and how sure are we?
//!
//! Exit codes of every command: 0 done, 1 a threshold failed, 2 wrong usage, 3 void.

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

mod link;
mod live;
mod load;
mod locks;
mod probe;
mod run;
mod stacks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

// rustls allocates twice per record; an allocator without locks between threads keeps that cheap.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures TLS servers, proxies and tunnels on this machine, side by side.
#[derive(Debug, Parser)]
#[command(name = "sealane-lab", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate load on a server; report rates, latencies and the server's CPU time, and whether to trust them.
    Load(Box<load::Args>),
    /// Measure the phases of a request, compare variants, and list what a server offers.
    Probe(Box<probe::Args>),
    /// Run a command over an emulated network link with delay, jitter, rate limit and loss.
    Link(Box<link::Args>),
    /// Run an experiment, or all of them, and write a report.
    Run(Box<run::Args>),
    /// Render reports of earlier runs again, or combine them.
    Report(run::Render),
    /// Build TLS libraries, run the same work on each, and count their locks.
    Stacks(Box<stacks::Args>),
    /// Run a program and count its lock calls, contention and waiting time.
    Locks(Box<locks::Args>),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Load(args) => load::run(&args),
        Command::Probe(args) => probe::run(*args),
        Command::Link(args) => link::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Report(args) => run::render(&args),
        Command::Stacks(args) => stacks::run(*args),
        Command::Locks(args) => locks::run(&args),
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
