//! `sealane-lab diff`: two reports of the same experiment side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args as ClapArgs;
use sealane_lab_report::diff::{Diff, Finding};

use crate::run::read_report;

/// Options of `sealane-lab diff`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A ratio has a block-bootstrap interval over the rounds if both runs have at least six rounds.

EXIT CODES: 0 no difference is shown, 1 a difference is shown, 2 wrong usage or nothing in common,
3 no figure has an interval.

EXAMPLES:
  Did the new build change anything by more than 2 %?
      sealane-lab diff monday/report.json tuesday/report.json --tolerance 0.02")]
pub struct Args {
    /// report.json of the first run (A)
    #[arg(value_name = "A")]
    a: PathBuf,
    /// report.json of the second run (B)
    #[arg(value_name = "B")]
    b: PathBuf,
    /// A difference is shown if the whole interval of a ratio is further from 1 than this
    #[arg(long, default_value_t = 0.01, value_name = "FRACTION")]
    tolerance: f64,
    /// Print the comparison as one JSON document
    #[arg(long)]
    json: bool,
}

/// Compares.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !(0.0..1.0).contains(&args.tolerance) {
        bail!("--tolerance {}: write a fraction from 0 to less than 1, such as 0.01 for 1 %", args.tolerance);
    }
    let (a, b) = (read_report(&args.a)?, read_report(&args.b)?);
    let files = format!("{} and {}", args.a.display(), args.b.display());
    let diff = Diff::of(&a, &b, args.tolerance).map_err(|why| anyhow!("{files}: {why}"))?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&diff)?);
    } else {
        out!("{}", diff.text());
    }
    Ok(ExitCode::from(match (diff.count(Finding::Differs), diff.count(Finding::NoDifferenceShown)) {
        (0, 0) => 3,
        (0, _) => 0,
        _ => 1,
    }))
}
