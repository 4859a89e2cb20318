//! One command for everything a contributor does: `cargo xtask --help`.
//!
//! `cargo xtask test` is the whole test suite and what CI runs. Each step can be run alone, and a failing run says how.

mod advisories;
mod again;
mod background;
mod book;
mod components;
mod conformance;
mod count;
mod cpu;
mod cross;
mod deny;
mod features;
mod fleet;
mod fuzz;
mod image;
mod kubernetes;
mod layers;
mod machine;
mod measurements;
mod metadata;
mod mutants;
mod newer;
mod ovpn_vm;
mod package;
mod plant;
mod programs;
mod prometheus;
mod release;
mod report;
mod sanitize;
mod setup;
mod soak;
mod steps;
mod test_programs;
mod walk;

use clap::{Parser, Subcommand};
use metadata::Workspace;
use report::Report;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use steps::{Plan, Step};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Everything a contributor does, in one command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the whole test suite: formatting, layers, tables of figures, dependencies, clippy, docs, counts, tests
    Test {
        /// Install what the tests need without asking (as CI does)
        #[arg(long)]
        yes: bool,
        /// Only the steps that are quick after a build: formatting, layers, tables of figures, dependencies, clippy, unit tests, the simulator
        #[arg(long, conflicts_with_all = ["only", "skip", "dist"])]
        fast: bool,
        /// Only the interop tests, with the program that is shipped (profile `dist`)
        #[arg(long, conflicts_with_all = ["only", "skip"])]
        dist: bool,
        /// Fail if a skipped test or step is not in xtask/expected-skips.txt (always on in CI, where `CI` is `true`)
        #[arg(long, conflicts_with_all = ["fast", "dist"])]
        strict: bool,
        /// Only these steps
        #[arg(long, value_enum, num_args = 1.., value_name = "STEP")]
        only: Vec<Step>,
        /// All steps except these
        #[arg(long, value_enum, num_args = 1.., value_name = "STEP")]
        skip: Vec<Step>,
    },
    /// Format the code
    Fmt {
        /// Change nothing; fail if a file is not formatted
        #[arg(long)]
        check: bool,
    },
    /// Run clippy on all code; warnings are errors
    Lint,
    /// Write the files that are generated from the code: the references of settings and of the import (docs/reference)
    Generate,
    /// Check that each crate imports only from the layers above its own, and that only some crates use `unsafe`
    Layers,
    /// Check that tables of measurements agree with the committed raw data that they come from (docs/testing.md)
    CheckMeasurements,
    /// Check the licences, sources and advisories of all dependencies, and that no dependency is banned (deny.toml)
    Deny {
        /// Only update the copy of the advisories, from a clone of the RustSec database
        #[arg(long, value_name = "FOLDER")]
        refresh: Option<std::path::PathBuf>,
    },
    /// Count what an operation costs the gateway: instructions, system calls, allocations, copies (docs/counting.md)
    Count(count::Options),
    /// Fuzz the decoders with libFuzzer, continuing the last run (docs/testing.md)
    Fuzz(fuzz::Options),
    /// Run the suites of other projects against the gateway: h2spec, sslyze, testssl.sh, tlsfuzzer (docs/measurements/conformance.md)
    Conformance(conformance::Options),
    /// Run the conformance suite of the Gateway API against the controller for Kubernetes, with a real API server (needs Go and root)
    Kubernetes(kubernetes::Options),
    /// Plant known kinds of bugs in a copy of the tree, one by one, and require that the tests find each (docs/testing.md)
    Plant(plant::Options),
    /// Change the code of the sans-IO crates in a sample of places, and count the changes that the tests notice (docs/testing.md)
    Mutants(mutants::Options),
    /// Run mixed traffic and random faults for a long time, and check that nothing is lost (docs/testing.md)
    Soak(soak::Options),
    /// Measure a fleet of 10, 30 and 100 gateways with one store on this machine (docs/measurements/fleet/README.md)
    Fleet(fleet::Options),
    /// Watch the unit tests and the gateway with the address sanitizer and with valgrind (docs/testing.md)
    Sanitize(sanitize::Options),
    /// Fetch OpenVPN 2.7 from a newer suite of Debian for the interop tests, with its own libraries (target/openvpn)
    Openvpn,
    /// Fetch Valkey from a newer suite of Debian for the tests of the store, with its own libraries (target/valkey)
    Valkey,
    /// Test the tunnel's kernel data plane in a virtual machine (Debian's qemu and a kernel with `ovpn`)
    OvpnVm(ovpn_vm::Options),
    /// Evaluate the packaged rules, alerts and dashboards with a newer Prometheus (3.x), with classic and with native histograms
    Prometheus,
    /// Cause the ten faults of docs/how-to/troubleshooting.md, and take the pictures of the status page and of `sealane top`
    Pictures,
    /// Check the lab's report in Chromium (layout, dark and light), with screenshots in target/screenshots
    Browser {
        /// Install Chromium without asking
        #[arg(long)]
        yes: bool,
    },
    /// Build the documentation as a searchable site (mdBook) in target/book
    Docs {
        /// Open the site in a browser
        #[arg(long)]
        open: bool,
    },
    /// Build packages for dpkg and rpm in target/package
    Package(package::Options),
    /// Build container images in target/image
    Image(image::Options),
    /// Prepare a version, and build the files that are published, in the folder dist
    Release(release::Options),
    /// Install the programs that tests talk to (curl, NGINX, HAProxy…)
    Setup {
        /// Install them without asking
        #[arg(long)]
        yes: bool,
        /// Instead install what `package --check`, `image --check` and `release` need (buildah, podman, debootstrap, qemu…)
        #[arg(long)]
        packaging: bool,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Test { fast: true, .. } => Workspace::load()
            .and_then(|w| steps::run_all(&w, &Plan { steps: steps::FAST.to_vec(), fast: true, strict: false }, None)),
        Command::Test { yes, dist: true, .. } => {
            if let Some(preparing) = prepare(yes) {
                steps::wait_for_setup(preparing);
            }
            Workspace::load().and_then(|w| steps::dist(&w))
        }
        Command::Test { yes, only, skip, strict, .. } => test(yes, strict, &only, &skip),
        Command::Fmt { check } => Workspace::load().and_then(|w| steps::format(&w, check)),
        Command::Lint => alone(Step::Lint),
        Command::Generate => Workspace::load().and_then(|w| steps::generate(&w)),
        Command::Layers => alone(Step::Layers),
        Command::CheckMeasurements => alone(Step::Figures),
        Command::Deny { refresh: Some(from) } => {
            Workspace::load().and_then(|w| advisories::refresh(w.root(), &from)).map(|()| 0)
        }
        Command::Deny { refresh: None } => alone(Step::Deny),
        Command::Count(options) => Workspace::load().and_then(|w| count::run(&w, &options)),
        Command::Fuzz(options) => Workspace::load().and_then(|w| fuzz::run(&w, &options)),
        Command::Conformance(options) => Workspace::load().and_then(|w| conformance::run(&w, &options)),
        Command::Kubernetes(options) => Workspace::load().and_then(|w| kubernetes::run(&w, &options)),
        Command::Plant(options) => Workspace::load().and_then(|w| plant::run(&w, &options)),
        Command::Mutants(options) => Workspace::load().and_then(|w| mutants::run(&w, &options)),
        Command::Soak(options) => Workspace::load().and_then(|w| soak::run(&w, &options)),
        Command::Fleet(options) => Workspace::load().and_then(|w| fleet::run(&w, &options)),
        Command::Sanitize(options) => Workspace::load().and_then(|w| sanitize::run(&w, &options)),
        Command::Openvpn => Workspace::load().and_then(|w| newer::OPENVPN.run(&w)),
        Command::Valkey => Workspace::load().and_then(|w| newer::VALKEY.run(&w)),
        Command::OvpnVm(options) => ovpn_vm::run(&options),
        Command::Prometheus => prometheus::run(),
        Command::Pictures => Workspace::load().and_then(|w| steps::pictures(&w)),
        Command::Browser { yes } => setup::browser(yes).and_then(|()| steps::browser(&Workspace::load()?)),
        Command::Docs { open } => Workspace::load().and_then(|w| book::build(&w, open)),
        Command::Package(options) => Workspace::load().and_then(|w| package::run(&w, &options)),
        Command::Image(options) => Workspace::load().and_then(|w| image::run(&w, &options)),
        Command::Release(options) => Workspace::load().and_then(|w| release::run(&w, &options)),
        Command::Setup { yes, packaging: true } => setup::packaging(yes).map(|()| 0),
        Command::Setup { yes, packaging: false } => setup::run(yes).map(|()| 0),
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
    let plan = Plan { steps: vec![step], fast: false, strict: false };
    step.run(&Workspace::load()?, &plan, &mut Report::default())
}

fn test(yes: bool, strict: bool, only: &[Step], skip: &[Step]) -> anyhow::Result<u8> {
    let chosen = steps::choose(only, skip);
    let preparing = if chosen.contains(&Step::Test) { prepare(yes) } else { None };
    let strict = strict || setup::in_ci();
    steps::run_all(&Workspace::load()?, &Plan { steps: chosen, fast: false, strict }, preparing)
}

/// Installs what the tests need: beside the first steps where nobody is asked, else before it returns. Not fatal where it fails: the
/// tests that lack a program say so one by one.
fn prepare(yes: bool) -> Option<JoinHandle<()>> {
    let tell = |what: &str, done: anyhow::Result<()>| {
        if let Err(error) = done {
            eprintln!("{what}: {error:#}");
        }
    };
    tell("setup", setup::components());
    if !(yes || setup::in_ci()) {
        tell("setup", setup::programs(false));
        return None;
    }
    Some(thread::spawn(move || {
        tell("setup", setup::programs(true));
        // They are no packages of this system, so nobody is asked, and they are fetched only where everything is.
        for newer in &newer::ALL {
            tell("setup", Workspace::load().and_then(|w| newer.provide(&w)));
        }
    }))
}
