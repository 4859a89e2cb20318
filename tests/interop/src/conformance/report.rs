//! Results of the suites: stored in `docs/measurements/conformance.json`, shown in `docs/measurements/conformance.md`.

use super::expected::{Expected, Kind};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The stored results, from the root of the repository.
pub const RESULTS: &str = "docs/measurements/conformance.json";
/// The page.
pub const PAGE: &str = "docs/measurements/conformance.md";

/// What came of one script, or of a suite against one gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The name of the script, with what it was run with; or of the gateway.
    pub name: String,
    /// Cases that pass.
    pub passed: usize,
    /// Cases that fail and are listed, by reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differ: Vec<Differing>,
    /// The reason for which it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_run: Option<String>,
    /// What is not as expected, which fails the command. Never stored.
    #[serde(skip)]
    pub unexpected: Vec<String>,
}

/// Cases that fail for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Differing {
    /// The reason's name.
    pub reason: String,
    /// How many.
    pub cases: usize,
}

/// A suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// Its version or commit.
    pub version: String,
    /// When it ran last.
    pub date: String,
    /// How long it took, in seconds.
    pub seconds: u64,
    /// Its scripts, or the gateways it ran against.
    pub runs: Vec<Run>,
}

impl Suite {
    /// Cases that pass.
    pub fn passed(&self) -> usize {
        self.runs.iter().map(|run| run.passed).sum()
    }

    /// Cases that fail and are listed.
    pub fn differing(&self) -> usize {
        self.runs.iter().flat_map(|run| &run.differ).map(|differ| differ.cases).sum()
    }

    /// What is not as expected.
    pub fn unexpected(&self) -> impl Iterator<Item = (&str, &str)> {
        self.runs.iter().flat_map(|run| run.unexpected.iter().map(|why| (run.name.as_str(), why.as_str())))
    }
}

/// Reads the stored results; none where no run is recorded.
pub fn stored(root: &Path) -> anyhow::Result<Vec<Suite>> {
    let file = root.join(RESULTS);
    match std::fs::read(&file) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// Stores suites beside those that did not run this time, and writes the page.
pub fn store(root: &Path, suites: Vec<Suite>, expected: &Expected) -> anyhow::Result<()> {
    let mut all = stored(root)?;
    for suite in suites {
        match all.iter_mut().find(|old| old.name == suite.name) {
            Some(old) => *old = suite,
            None => all.push(suite),
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let mut json = serde_json::to_string_pretty(&all)?;
    json.push('\n');
    for (file, text) in [(RESULTS, json), (PAGE, page(&all, expected))] {
        std::fs::write(root.join(file), text).with_context(|| file.to_owned())?;
    }
    Ok(())
}

/// The page about all suites.
pub fn page(suites: &[Suite], expected: &Expected) -> String {
    let mut out = String::from(
        "# Conformance suites\n\n\
         <!-- Written by `cargo xtask conformance` from conformance.json and tests/interop/conformance/expected.toml. -->\n\n\
         `cargo xtask conformance` starts gateways and runs the suites of other projects against them. `--tlsfuzzer FOLDER` names a\n\
         clone of tlsfuzzer, and `--testssl FOLDER` a clone of testssl.sh; without one of these options, the command leaves out the\n\
         suite of this option. `tests/interop/conformance/expected.toml` lists the cases that fail, with a reason for each. The\n\
         command fails if another case fails, if a case fails with another error, and if a listed case passes.\n\n\
         | suite | version | date | cases that pass | cases that fail, with a reason | duration |\n|---|---|---|---|---|---|\n",
    );
    for suite in suites {
        // Of a commit, the beginning.
        let version = if suite.version.len() == 40 { &suite.version[..12] } else { &suite.version };
        let (name, date) = (&suite.name, &suite.date);
        let minutes = suite.seconds.div_ceil(60);
        let _ = writeln!(
            out,
            "| {name} | {version} | {date} | {} | {} | {minutes} min |",
            suite.passed(),
            suite.differing()
        );
    }
    reasons(&mut out, suites, expected);
    if let Some(suite) = suites.iter().find(|suite| suite.name == "tlsfuzzer") {
        scripts(&mut out, suite);
    }
    out
}

fn reasons(out: &mut String, suites: &[Suite], expected: &Expected) {
    // By kind, then in the order of the names.
    let mut counts: BTreeMap<(Kind, &str), BTreeMap<&str, usize>> = BTreeMap::new();
    let mut count = |reason: &str, suite, cases: usize| {
        if let Some((name, reason)) = expected.reasons.get_key_value(reason) {
            *counts.entry((reason.kind, name.as_str())).or_default().entry(suite).or_default() += cases;
        }
    };
    for suite in suites {
        for run in &suite.runs {
            run.not_run.iter().for_each(|reason| count(reason, suite.name.as_str(), 0));
            run.differ.iter().for_each(|differ| count(&differ.reason, suite.name.as_str(), differ.cases));
        }
    }
    out.push_str(
        "\n## Reasons\n\n\
         Kinds of reasons: *not offered*, the case needs a feature that Sealane does not offer; *choice*, Sealane does otherwise, and\n\
         the RFC allows it; *rustls*, the TLS library does otherwise ([bugs in libraries](../reference/upstream-bugs.md)); *the suite*,\n\
         the case requires more than the RFCs, or tests nothing.\n\n| name | kind | reason | cases |\n|---|---|---|---|\n",
    );
    for ((kind, name), by_suite) in counts {
        let text = &expected.reasons[name].text;
        let cases: Vec<String> = by_suite
            .iter()
            .map(
                |(suite, cases)| {
                    if *cases == 0 { format!("{suite}: does not run") } else { format!("{suite}: {cases}") }
                },
            )
            .collect();
        let _ =
            writeln!(out, "| `{name}` | {} | {} | {} |", kind.name(), text.trim().replace('\n', " "), cases.join(", "));
    }
}

fn scripts(out: &mut String, suite: &Suite) {
    out.push_str(
        "\n## The scripts of tlsfuzzer\n\n\
         *With ECDHE*: the script speaks RSA or DHE key exchange or CBC, and runs with ECDHE and AES-GCM instead\n\
         (`tests/interop/conformance/adapter.py`).\n\n| script | pass | fail, by reason |\n|---|---|---|\n",
    );
    for run in &suite.runs {
        let mut reasons: Vec<String> =
            run.differ.iter().map(|differ| format!("{} `{}`", differ.cases, differ.reason)).collect();
        reasons.extend(run.not_run.iter().map(|reason| format!("does not run: `{reason}`")));
        let _ = writeln!(out, "| {} | {} | {} |", run.name, run.passed, reasons.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::super::expected;
    use super::*;

    /// So that the page is not edited by hand, and not forgotten when a reason changes.
    #[test]
    fn the_page_is_up_to_date() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let suites = stored(root).expect("the file is good");
        let written = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
        let expected = expected::read().expect("the list is good");
        let same = suites.is_empty() && written.is_empty() || written == page(&suites, &expected);
        assert!(same, "{PAGE} is out of date: cargo xtask conformance --page");
    }
}
