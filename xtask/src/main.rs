//! One command for everything a contributor does: `cargo xtask --help`.
//!
//! `cargo xtask test` is the whole test suite and what CI runs. Each step can be run alone, and a failing run says how.

mod again;
mod book;
mod count;
mod layers;
mod licences;
mod metadata;
mod ovpn_vm;
mod setup;
mod spdx;
mod steps;

use clap::{Parser, Subcommand};
use metadata::Workspace;
use std::process::ExitCode;
use steps::Step;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Everything a contributor does, in one command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The whole test suite: formatting, layers, licences, clippy, docs, counts, tests
    Test {
        /// Install what the tests need without asking (as CI does)
        #[arg(long)]
        yes: bool,
        /// Only these steps
        #[arg(long, value_enum, num_args = 1.., value_name = "STEP")]
        only: Vec<Step>,
        /// All but these steps
        #[arg(long, value_enum, num_args = 1.., value_name = "STEP")]
        skip: Vec<Step>,
    },
    /// Format the code
    Fmt {
        /// Change nothing; fail where formatting would
        #[arg(long)]
        check: bool,
    },
    /// Clippy over everything, warnings denied
    Lint,
    /// Write the files that are generated from the declarations of the configuration's settings (docs/reference)
    Generate,
    /// Check that each crate imports only from the layers above its own, and that `unsafe` stays where it may be
    Layers,
    /// Check the licences of all dependencies
    Licences,
    /// Count what an operation costs the gateway: instructions, system calls, allocations, copies (docs/counting.md)
    Count(count::Options),
    /// Test the tunnel's kernel data plane in a virtual machine (Debian's qemu and a kernel with `ovpn`)
    OvpnVm {
        /// Kernel packages to use instead of fetching the newest from the mirror
        #[arg(long, value_name = "FILE.deb", num_args = 1..)]
        kernel: Vec<std::path::PathBuf>,
    },
    /// Look at the lab's report in Chromium: fits, dark and light, screenshots in target/screenshots
    Browser {
        /// Install Chromium without asking
        #[arg(long)]
        yes: bool,
    },
    /// Build the documentation as a searchable site (mdBook) in target/book
    Docs {
        /// Open it in a browser
        #[arg(long)]
        open: bool,
    },
    /// Install the programs that tests talk to (curl, NGINX, HAProxy…)
    Setup {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Test { yes, only, skip } => test(yes, &only, &skip),
        Command::Fmt { check } => Workspace::load().and_then(|w| steps::format(&w, check)),
        Command::Lint => alone(Step::Lint),
        Command::Generate => Workspace::load().and_then(|w| steps::generate(&w)),
        Command::Layers => alone(Step::Layers),
        Command::Licences => alone(Step::Licences),
        Command::Count(options) => Workspace::load().and_then(|w| count::run(&w, &options)),
        Command::OvpnVm { kernel } => ovpn_vm::run(&kernel),
        Command::Browser { yes } => setup::browser(yes).and_then(|()| steps::browser(&Workspace::load()?)),
        Command::Docs { open } => Workspace::load().and_then(|w| book::build(&w, open)),
        Command::Setup { yes } => setup::run(yes).map(|()| 0),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn alone(step: Step) -> anyhow::Result<u8> {
    step.run(&Workspace::load()?, &[step])
}

fn test(yes: bool, only: &[Step], skip: &[Step]) -> anyhow::Result<u8> {
    let chosen = steps::choose(only, skip);
    if chosen.contains(&Step::Test)
        && let Err(error) = setup::run(yes)
    {
        // Not fatal: the tests that lack a program say so one by one.
        eprintln!("setup: {error:#}");
    }
    steps::run_all(&Workspace::load()?, &chosen)
}
