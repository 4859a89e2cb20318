//! OpenVPN 2.7 for the interop tests, beside the 2.6 of Debian 12.
//!
//! It comes from the mirror that this machine's apt uses, with its own C library, and nothing is installed.

use crate::machine::{self, Suite};
use crate::metadata::Workspace;
use anyhow::{bail, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The variable that names it for the tests.
pub const VARIABLE: &str = "SEALANE_OPENVPN";
/// A suite that has it.
const SUITE: &str = "sid";
const NEEDS: &[(&str, &str)] = &[("apt-get", "apt"), ("dpkg-deb", "dpkg")];

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target().join("openvpn")
}

/// The program, where it has been fetched.
pub fn program(workspace: &Workspace) -> Option<PathBuf> {
    Some(folder(workspace).join("bin/openvpn")).filter(|program| program.is_file())
}

/// Fetches it, unless it is there.
pub fn provide(workspace: &Workspace) -> anyhow::Result<()> {
    match program(workspace) {
        Some(_) => Ok(()),
        None => fetch(workspace),
    }
}

/// Fetches the newest.
pub fn run(workspace: &Workspace) -> anyhow::Result<u8> {
    fetch(workspace)?;
    if let Some(program) = program(workspace) {
        println!(
            "openvpn: `cargo xtask test` uses this program; for tests without xtask, set {VARIABLE}={}",
            program.display()
        );
    }
    Ok(0)
}

fn fetch(workspace: &Workspace) -> anyhow::Result<()> {
    if let Some(missing) = machine::missing(NEEDS) {
        bail!("{missing}");
    }
    let (folder, scripts) = (folder(workspace), folder(workspace).join("bin"));
    if scripts.exists() {
        fs::remove_dir_all(&scripts)?;
    }
    fs::create_dir_all(&folder)?;
    let unpacked = Suite::open(&folder, SUITE)?.unpack_with_all("openvpn")?;
    // It has a name that the tests know only once it has shown that it runs.
    let tried = folder.join("tried");
    machine::wrap(&unpacked, &["usr/sbin/openvpn"], &tried)?;
    let said = Command::new(tried.join("openvpn")).arg("--version").output()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = text.strip_prefix("OpenVPN ").and_then(|rest| rest.split_whitespace().next()).unwrap_or_default();
    ensure!(is_newer(version), "the package of {SUITE} is not OpenVPN 2.7 or newer: {:?}", text.lines().next());
    fs::rename(&tried, &scripts)?;
    println!("openvpn: version {version} is in {}", scripts.display());
    Ok(())
}

/// Whether a version is 2.7 or newer.
fn is_newer(version: &str) -> bool {
    let mut numbers = version.split(['.', '_']).map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next()) >= (2, 7)
}

#[cfg(test)]
mod tests {
    use super::is_newer;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(is_newer("2.7.8") && is_newer("2.7_rc2") && is_newer("2.10") && is_newer("3.0.1"));
        assert!(!is_newer("2.6.14") && !is_newer("") && !is_newer("x.y"));
    }
}
