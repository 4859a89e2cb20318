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
    /// Put a server under load and say what it did, what it cost, and whether to believe it.
    Load(Box<load::Args>),
    /// Time the phases of single requests, compare ways of making them, and say what a server offers.
    Probe(Box<probe::Args>),
    /// Run a command over an emulated link: delay, jitter, rate, loss, and paths that dislike data in SYNs.
    Link(Box<link::Args>),
    /// Run an experiment, or all of them, and write a report: proxies, TLS versions, and more.
    Run(Box<run::Args>),
    /// Render the reports of earlier runs again, or put several together.
    Report(run::Render),
    /// Build TLS stacks, run the same work on each, and count their locks.
    Stacks(Box<stacks::Args>),
    /// Run a program and count its locks: which are hot, contended, waited for.
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
