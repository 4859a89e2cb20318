//! `cargo xtask soak`: mixed traffic and random faults for a long time. The example `soak` of `tests/interop` does it, with the helpers of
//! the interop tests; this command builds it and the gateway.

use crate::metadata::Workspace;
use crate::steps;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Options {
    /// Duration of the run, such as 60m or 24h
    #[arg(long = "for", value_name = "TIME", default_value = "60m", value_parser = duration)]
    time: Duration,
    /// Add this run to the runs in this folder
    #[arg(long, value_name = "FOLDER")]
    resume: Option<PathBuf>,
    /// Seed of an earlier run: cause the same faults in the same order
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Store all runs of the folder in docs/measurements
    #[arg(long)]
    store: bool,
}

/// Builds and runs; 1 if something went wrong.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let (status, mut command) = steps::example(workspace, "soak")?;
    if status != 0 {
        return Ok(status);
    }
    let folder = match &options.resume {
        Some(folder) => std::path::absolute(folder)?,
        None => workspace.target().join("soak"),
    };
    command.arg(workspace.root()).arg("--seconds").arg(options.time.as_secs().to_string());
    command.arg("--folder").arg(folder);
    if let Some(seed) = options.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    if options.store {
        command.arg("--store");
    }
    steps::run(command, workspace)
}

/// A number with a unit: `s`, `m` or `h`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let wrong = || format!("{text:?} is not a time: 90s, 60m or 24h");
    let (number, seconds) = found.ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(*seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("60m"), Ok(Duration::from_secs(3600)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        for wrong in ["60", "m", "0s", "-1h", "1d", "99999999999999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
