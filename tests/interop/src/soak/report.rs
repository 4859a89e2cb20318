//! Results of soak tests: kept in a folder from run to run, stored in `docs/measurements/soak.json`, shown in `soak.md`.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The stored runs, from the root of the repository.
pub const RESULTS: &str = "docs/measurements/soak.json";
/// The page.
pub const PAGE: &str = "docs/measurements/soak.md";

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When it began.
    pub date: String,
    /// Of the program.
    pub commit: String,
    /// What the faults and the requests were made from.
    pub seed: u64,
    /// How long it ran.
    pub seconds: u64,
    /// Whole answers, by protocol.
    pub answers: BTreeMap<String, u64>,
    /// Faults, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Failures beside a fault that may cause them.
    pub excused: u64,
    /// Requests that found their kept connection closed and were sent again.
    pub again: u64,
    /// Uploads that were acknowledged; all of them are recorded, once.
    pub acknowledged: u64,
    /// How often all counters were compared with their last values.
    pub comparisons: u64,
    /// Medians of the third and of the last quarter: memory in bytes, descriptors.
    pub memory: Option<(u64, u64)>,
    /// The same for descriptors.
    pub descriptors: Option<(u64, u64)>,
    /// What went wrong.
    pub problems: Vec<String>,
}

/// Reads the runs of a folder or of the repository; none if there is no file.
pub fn read(file: &Path) -> anyhow::Result<Vec<Record>> {
    match std::fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// Writes the runs.
pub fn write(file: &Path, runs: &[Record]) -> anyhow::Result<()> {
    let mut json = serde_json::to_string_pretty(runs)?;
    json.push('\n');
    std::fs::write(file, json).with_context(|| file.display().to_string())
}

/// The page about these runs.
pub fn page(runs: &[Record]) -> String {
    let mut out = String::from(
        "# Soak test\n\n<!-- Written by `cargo xtask soak --store` from soak.json. -->\n\n\
         `cargo xtask soak --for 60m` runs traffic of all HTTP versions, WebSockets and a tunnel through gateways that are reloaded,\n\
         upgraded, killed and deprived of servers, certificates, names, descriptors, packets and the disk, and whose clock is set, in an\n\
         order that a seed decides\n\
         ([testing](../testing.md#soak-test)). `--resume FOLDER` adds a run to those in the folder.\n\n\
         | begun | commit | seed | minutes | answers | uploads acknowledged | faults | failures that a fault excuses | memory, descriptors | problems |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    let change = |pair: Option<(u64, u64)>| match pair {
        Some((before, after)) => format!("{:+.1} %", (after as f64 / before.max(1) as f64 - 1.0) * 100.0),
        None => "not judged".to_owned(),
    };
    for run in runs {
        let (answers, faults): (u64, u64) = (run.answers.values().sum(), run.faults.values().sum());
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {answers} | {} | {faults} | {} | {}, {} | {} |",
            run.date,
            run.commit,
            run.seed,
            run.seconds / 60,
            run.acknowledged,
            run.excused,
            change(run.memory),
            change(run.descriptors),
            run.problems.len()
        );
    }
    for (title, of) in
        [("Answers", (|run| &run.answers) as fn(&Record) -> &BTreeMap<String, u64>), ("Faults", |run| &run.faults)]
    {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        runs.iter().flat_map(of).for_each(|(name, count)| *sums.entry(name).or_default() += count);
        let _ = write!(out, "\n## {title}\n\n| kind | in all runs |\n|---|---|\n");
        sums.iter().for_each(|(name, count)| out.push_str(&format!("| {name} | {count} |\n")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_up_to_date() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let runs = read(&root.join(RESULTS)).expect("the file is good");
        let written = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
        assert!(runs.is_empty() && written.is_empty() || written == page(&runs), "{PAGE} is out of date");
    }
}
