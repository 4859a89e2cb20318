//! Licences, bans, sources and advisories of all dependencies, by cargo-deny and the rules of `deny.toml`; advisories also from the
//! copy in the repository (`advisories.rs`). And that the tests are built with the features of what is shipped (`features.rs`).

use crate::metadata::{Workspace, cargo};
use crate::report::Report;
use crate::{advisories, features, setup, steps};
use std::process::Stdio;

/// The version that CI installs, where none is there.
const VERSION: &str = "0.20.2";

/// Looks at the copy of the advisories, and runs cargo-deny. Where that is missing it is built in CI, and else skipped.
pub fn check(workspace: &Workspace, report: &mut Report) -> anyhow::Result<u8> {
    let found = advisories::check(workspace.root())?;
    found.warnings.iter().for_each(|warning| println!("warning: {warning}"));
    found.errors.iter().for_each(|error| eprintln!("advisories: {error}"));
    let differences = features::check(workspace)?;
    differences.iter().for_each(|difference| eprintln!("features: {difference}"));
    let failed = !found.errors.is_empty() || !differences.is_empty();
    Ok(cargo_deny(workspace, report)?.max(u8::from(failed)))
}

fn cargo_deny(workspace: &Workspace, report: &mut Report) -> anyhow::Result<u8> {
    if !installed() {
        if !setup::in_ci() {
            report.skip("deny", format!("`cargo deny` is missing: cargo install --locked cargo-deny@{VERSION}"));
            return Ok(0);
        }
        let mut install = cargo();
        install.args(["install", "--locked", &format!("cargo-deny@{VERSION}")]);
        // It runs for seconds: to optimise it would take longer than it saves.
        install.envs([("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"), ("CARGO_PROFILE_RELEASE_LTO", "off")]);
        install.envs([("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"), ("CARGO_PROFILE_RELEASE_DEBUG", "0")]);
        if steps::run(install, workspace)? != 0 {
            report.skip("deny", format!("cargo-deny {VERSION} cannot be installed here"));
            return Ok(0);
        }
    }
    let mut rules = cargo();
    rules.args(["deny", "check", "licenses", "bans", "sources"]);
    let status = steps::run(rules, workspace)?;
    // The advisories are a git repository of their own, which not every machine reaches.
    let mut fetch = cargo();
    fetch.args(["deny", "fetch", "db"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if steps::run(fetch, workspace)? != 0 {
        report.skip("deny", "the advisory database cannot be downloaded here");
        return Ok(status);
    }
    let mut advisories = cargo();
    advisories.args(["deny", "check", "--disable-fetch", "advisories"]);
    Ok(status.max(steps::run(advisories, workspace)?))
}

fn installed() -> bool {
    let mut version = cargo();
    version.args(["deny", "--version"]).stdin(Stdio::null());
    version.output().is_ok_and(|output| output.status.success())
}
