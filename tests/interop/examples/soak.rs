//! The soak test (`cargo xtask soak`), and the servers that it starts.

use anyhow::Context;
use clap::Parser;
use sealane_interop::soak::report::{self, PAGE, RESULTS};
use sealane_interop::soak::{Plan, run, server};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

#[derive(Parser)]
struct Options {
    /// The root of the repository
    #[arg(required_unless_present = "serve")]
    root: Option<PathBuf>,
    /// How long, in seconds
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// What everything random is made from
    #[arg(long)]
    seed: Option<u64>,
    /// Where the runs are kept
    #[arg(long, default_value = "target/soak")]
    folder: PathBuf,
    /// Store the runs of the folder in the repository
    #[arg(long)]
    store: bool,
    /// Be a server
    #[arg(long, requires = "record")]
    serve: Option<SocketAddr>,
    /// The server's record
    #[arg(long)]
    record: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match (&options.serve, &options.record) {
        (Some(address), Some(record)) => server::serve(*address, record).map(|()| true).map_err(Into::into),
        _ => soak(&options),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn said(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| program.to_owned())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn soak(options: &Options) -> anyhow::Result<bool> {
    let root = options.root.as_deref().context("the root of the repository is missing")?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos());
    let seed = options.seed.unwrap_or((now as u64) % 1_000_000_007);
    println!("seed {seed}: `--seed {seed}` causes the same faults in the same order");
    let (date, commit) = (said("date", &["+%F %H:%M"])?, said("git", &["rev-parse", "--short", "HEAD"])?);
    let (time, server) = (Duration::from_secs(options.seconds), std::env::current_exe()?);
    let mut record = run(Plan { time, seed, server, folder: options.folder.clone() })?;
    (record.date, record.commit) = (date, commit);
    println!("\n{}", report::page(std::slice::from_ref(&record)));
    record.problems.iter().for_each(|problem| println!("problem: {problem}"));
    let good = record.problems.is_empty();
    let file = options.folder.join("runs.json");
    let mut runs = report::read(&file)?;
    runs.push(record);
    report::write(&file, &runs)?;
    if options.store {
        report::write(&root.join(RESULTS), &runs)?;
        std::fs::write(root.join(PAGE), report::page(&runs)).context(PAGE)?;
    }
    Ok(good)
}
