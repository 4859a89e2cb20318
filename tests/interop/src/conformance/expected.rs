//! `conformance/expected.toml`: which cases of the suites fail against Sealane, and why.

use anyhow::Context;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Reasons by their names, which the entries below use.
    pub reasons: BTreeMap<String, Reason>,
    /// The scripts of tlsfuzzer.
    pub tlsfuzzer: Tlsfuzzer,
    /// Cases of h2spec, by gateway (`tls`, `plain`).
    #[serde(default)]
    pub h2spec: BTreeMap<String, Vec<Differ>>,
    /// Checks of sslyze, by preset of the gateway.
    #[serde(default)]
    pub sslyze: BTreeMap<String, Vec<Differ>>,
}

/// Why cases fail.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Whose choice or bug it is.
    pub kind: Kind,
    /// One or more sentences for the page.
    pub text: String,
}

/// What a reason is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The case needs a feature that Sealane does not offer.
    NotOffered,
    /// A choice of Sealane, with the section of the RFC that allows it.
    Choice,
    /// rustls behaves like that, see docs/reference/upstream-bugs.md.
    Rustls,
    /// The case requires more than the RFCs do, or it is no test.
    Suite,
}

impl Kind {
    /// As the page calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::NotOffered => "not offered",
            Kind::Choice => "choice",
            Kind::Rustls => "rustls",
            Kind::Suite => "the suite",
        }
    }
}

/// The scripts of tlsfuzzer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tlsfuzzer {
    /// The commit of the clone that the list is made for.
    pub revision: String,
    /// Packages of PyPI that the scripts need.
    pub packages: Vec<String>,
    /// Scripts that need arguments or another gateway, or of which cases fail. A script can be listed more than once; one that is not
    /// listed runs as it is, and passes.
    pub scripts: Vec<Script>,
}

/// How a script runs, and what fails.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The name of its file.
    pub name: String,
    /// Which of [`super::tlsfuzzer::GATEWAYS`].
    #[serde(default = "rsa")]
    pub gateway: String,
    /// Runs with ECDHE and AES-GCM instead of the suites in the script (`conformance/adapter.py`).
    #[serde(default)]
    pub ecdhe: bool,
    /// Its arguments. `{rsa-key}` and `{rsa-cert}` stand for files of a client, with an RSA key; `ec` and `ed` for the other kinds.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// The cases that fail.
    #[serde(default)]
    pub differ: Vec<Differ>,
    /// It does not run at all: the name of the reason.
    pub not_run: Option<String>,
}

fn rsa() -> String {
    "rsa".to_owned()
}

/// Cases that fail.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differ {
    /// Their names; one that ends in `*` stands for all that begin so, and one that begins with `*` for all that end so.
    pub cases: Vec<String>,
    /// What their error contains.
    #[serde(default)]
    pub got: String,
    /// The name of the reason.
    pub reason: String,
}

impl Differ {
    /// Whether it lists this case.
    pub fn covers(&self, case: &str) -> bool {
        self.cases.iter().any(|name| match (name.strip_suffix('*'), name.strip_prefix('*')) {
            (Some(beginning), _) => case.starts_with(beginning),
            (None, Some(end)) => case.ends_with(end),
            (None, None) => name == case,
        })
    }
}

impl Tlsfuzzer {
    /// How a script runs: its entries, or one entry for a script that is not listed.
    pub fn entries(&self, script: &str) -> Vec<Script> {
        let listed: Vec<Script> = self.scripts.iter().filter(|entry| entry.name == script).cloned().collect();
        if !listed.is_empty() {
            return listed;
        }
        let (name, gateway) = (script.to_owned(), rsa());
        vec![Script { name, gateway, ecdhe: false, arguments: Vec::new(), differ: Vec::new(), not_run: None }]
    }
}

/// The folder with this file and the adapter.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}

/// Reads the file.
pub fn read() -> anyhow::Result<Expected> {
    let file = folder().join("expected.toml");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    toml::from_str(&text).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each entry has a reason, each reason an entry, and each gateway exists.
    #[test]
    fn reasons_and_gateways_exist() {
        let expected = read().expect("the file is good");
        let mut used: Vec<&str> = Vec::new();
        for script in &expected.tlsfuzzer.scripts {
            let gateway = super::super::tlsfuzzer::GATEWAYS.iter().any(|(name, _)| *name == script.gateway);
            assert!(gateway, "{}: there is no gateway {}", script.name, script.gateway);
            used.extend(script.not_run.as_deref());
            used.extend(script.differ.iter().map(|differ| differ.reason.as_str()));
        }
        for lists in [&expected.h2spec, &expected.sslyze] {
            used.extend(lists.values().flatten().map(|differ| differ.reason.as_str()));
        }
        for name in &used {
            assert!(expected.reasons.contains_key(*name), "there is no reason {name}");
        }
        for name in expected.reasons.keys() {
            assert!(used.contains(&name.as_str()), "nothing has the reason {name}");
        }
    }
}
