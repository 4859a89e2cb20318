//! The shipped programs and the tests are built from the same dependencies with the same features: what is tested is what is
//! shipped.
//!
//! The tests are built with the whole workspace, and so with the features that any of its crates wants. What that adds to a
//! dependency of a shipped program is listed in [`KNOWN`], with its reason.

use crate::metadata::{Workspace, cargo};
use crate::programs::PROGRAMS;
use anyhow::{Context, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// Features that only the tests' build has: package, features, why they change nothing that is tested.
const KNOWN: &[(&str, &[&str], &str)] = &[
    ("either", &["use_std"], "more functions, for what prost-derive runs in the compiler"),
    (
        "futures",
        &["async-await", "default", "executor", "futures-executor"],
        "more functions, which kube's client in sealane-kube does not use",
    ),
    ("futures-channel", &["futures-sink", "sink"], "more functions"),
    ("futures-io", &["default"], "it is `std`"),
    (
        "futures-util",
        &["channel", "futures-channel", "futures-io", "futures-sink", "io", "memchr", "sink"],
        "more functions",
    ),
    ("quinn", &["futures-io"], "more functions"),
];
/// Features that only the shipped program has.
const SHIPPED: &[(&str, &str, &str)] = &[("sealane", "full", "it only switches on that of sealane-control")];

/// Packages with their versions, and the features of each.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Compares all shipped programs with the build of the tests.
pub fn check(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let tested = tree(workspace, &["--workspace", "--edges", "normal,dev,build"])?;
    let mut shipped = Features::new();
    for (program, features) in PROGRAMS {
        let arguments: Vec<&str> =
            ["-p", *program, "--edges", "normal,no-proc-macro"].iter().chain(*features).copied().collect();
        for (package, features) in tree(workspace, &arguments)? {
            shipped.entry(package).or_default().extend(features);
        }
    }
    Ok(compare(&shipped, &tested))
}

fn tree(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<Features> {
    let mut command = cargo();
    command.args([
        "tree",
        "--locked",
        "--prefix",
        "none",
        "--format",
        "{p}|{f}",
        "--target",
        "x86_64-unknown-linux-gnu",
    ]);
    let output = command.args(arguments).current_dir(workspace.root()).output().context("cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines like `name v1.0.0 (path)|feature,feature (*)`.
fn parse(text: &str) -> Features {
    let mut all = Features::new();
    for line in text.lines() {
        let Some((package, features)) = line.split_once('|') else { continue };
        let package: Vec<&str> = package.split(' ').take(2).collect();
        let features = features.split(' ').next().unwrap_or_default();
        let features = features.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned);
        all.entry(package.join(" ")).or_default().extend(features);
    }
    all
}

fn compare(shipped: &Features, tested: &Features) -> Vec<String> {
    let mut findings = Vec::new();
    for (package, features) in shipped {
        let Some(others) = tested.get(package) else {
            findings.push(format!("{package} is shipped, and no test is built with it"));
            continue;
        };
        let name = package.split(' ').next().unwrap_or_default();
        for feature in features.difference(others) {
            if !SHIPPED.iter().any(|(package, known, _)| (*package, *known) == (name, feature.as_str())) {
                findings.push(format!("{package}: the shipped programs have the feature {feature}, the tests do not"));
            }
        }
        for feature in others.difference(features) {
            if !KNOWN.iter().any(|(package, known, _)| *package == name && known.contains(&feature.as_str())) {
                findings.push(format!("{package}: the tests have the feature {feature}, the shipped programs do not"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_found() {
        let shipped = parse("a v1.0.0|x,y\nb v2.0.0 (proc-macro)|\nc v1.0.0 (/c)|x (*)\nquinn v1.0.0|std\n");
        assert!(compare(&shipped, &shipped).is_empty());
        let tested = parse("a v1.0.0|x\nb v2.1.0|\nc v1.0.0 (/c)|x,z\nquinn v1.0.0|std,futures-io\n");
        let found = compare(&shipped, &tested).join("\n");
        for part in [
            "a v1.0.0: the shipped programs have the feature y",
            "b v2.0.0 is shipped",
            "c v1.0.0: the tests have the feature z",
        ] {
            assert!(found.contains(part), "{part} is missing: {found}");
        }
        assert_eq!(found.lines().count(), 3, "{found}");
    }
}
