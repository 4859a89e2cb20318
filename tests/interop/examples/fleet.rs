//! The simulation of a fleet (`cargo xtask fleet`).

use anyhow::Context;
use clap::Parser;
use sealane_interop::fleet::measure::measure;
use sealane_interop::fleet::report::{self, Run};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

#[derive(Parser)]
struct Options {
    /// The root of the repository
    root: PathBuf,
    /// How many gateways, in one fleet after the other
    #[arg(long, value_delimiter = ',', default_value = "10,30,100", value_parser = clap::value_parser!(u16).range(2..=1000))]
    gateways: Vec<u16>,
    /// Where the raw data are written
    #[arg(long, default_value = "target/fleet")]
    folder: PathBuf,
    /// Store the run in the repository
    #[arg(long)]
    store: bool,
}

fn main() -> ExitCode {
    match fleets(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fleet: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn said(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| program.to_owned())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The name of the processor, and how many of them this process may use.
fn processors() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let number = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{number} of {}", name.map_or("an unknown kind", |(_, name)| name.trim()))
}

/// Whether nothing went wrong.
fn fleets(options: &Options) -> anyhow::Result<bool> {
    std::fs::create_dir_all(&options.folder).with_context(|| options.folder.display().to_string())?;
    let mut run = Run {
        date: said("date", &["+%F %H:%M"])?,
        commit: said("git", &["rev-parse", "--short", "HEAD"])?,
        processors: processors(),
        store: said("redis-server", &["--version"]).unwrap_or_default(),
        fleets: Vec::new(),
    };
    let mut good = true;
    for gateways in &options.gateways {
        let record = measure(usize::from(*gateways)).with_context(|| format!("{gateways} gateways"))?;
        record.problems.iter().for_each(|problem| println!("problem: {problem}"));
        good &= record.problems.is_empty();
        run.fleets.push(record);
        // A later fleet that fails leaves what was measured before.
        let file = options.folder.join("run.json");
        std::fs::write(&file, report::json(&run)?).with_context(|| file.display().to_string())?;
    }
    println!("raw data: {}", options.folder.join("run.json").display());
    if options.store {
        report::store(&options.root, &run)?;
    }
    Ok(good)
}
