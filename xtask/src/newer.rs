//! Programs for the tests that only a newer suite of Debian has: OpenVPN 2.7, beside the 2.6 of Debian 12 and 13, and Valkey.
//!
//! They come from the mirror that this machine's apt uses, with their own C library, and nothing is installed.

use crate::machine::{self, Suite};
use crate::metadata::Workspace;
use anyhow::{Context, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A suite that has them.
const SUITE: &str = "sid";
const NEEDS: &[(&str, &str)] = &[("apt-get", "apt"), ("dpkg-deb", "dpkg")];

/// A program of a newer suite.
#[derive(Debug)]
pub struct Newer {
    /// The folder in `target`.
    folder: &'static str,
    package: &'static str,
    /// Its place in the package.
    program: &'static str,
    /// The variable that names it for the tests.
    pub variable: &'static str,
    /// What `--version` says before the version.
    says: &'static str,
    /// The oldest version that the tests want.
    oldest: (u32, u32),
}

/// A client and server of the tunnel.
pub const OPENVPN: Newer = Newer {
    folder: "openvpn",
    package: "openvpn",
    program: "usr/sbin/openvpn",
    variable: "SEALANE_OPENVPN",
    says: "OpenVPN ",
    oldest: (2, 7),
};
/// A store.
pub const VALKEY: Newer = Newer {
    folder: "valkey",
    package: "valkey-server",
    program: "usr/bin/valkey-server",
    variable: "SEALANE_VALKEY",
    says: "Valkey server v=",
    oldest: (8, 0),
};
/// All of them.
pub const ALL: [Newer; 2] = [OPENVPN, VALKEY];

impl Newer {
    fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.target().join(self.folder)
    }

    fn name(&self) -> &'static str {
        Path::new(self.program).file_name().and_then(|name| name.to_str()).unwrap_or(self.program)
    }

    /// The program, where it has been fetched.
    pub fn program(&self, workspace: &Workspace) -> Option<PathBuf> {
        Some(self.folder(workspace).join("bin").join(self.name())).filter(|program| program.is_file())
    }

    /// Fetches it, unless it is there.
    pub fn provide(&self, workspace: &Workspace) -> anyhow::Result<()> {
        match self.program(workspace) {
            Some(_) => Ok(()),
            None => self.fetch(workspace).with_context(|| self.folder),
        }
    }

    /// Fetches the newest.
    pub fn run(&self, workspace: &Workspace) -> anyhow::Result<u8> {
        self.fetch(workspace)?;
        if let Some(program) = self.program(workspace) {
            let (folder, variable) = (self.folder, self.variable);
            println!(
                "{folder}: `cargo xtask test` uses this program; for tests without xtask, set {variable}={}",
                program.display()
            );
        }
        Ok(0)
    }

    fn fetch(&self, workspace: &Workspace) -> anyhow::Result<()> {
        if let Some(missing) = machine::missing(NEEDS) {
            bail!("{missing}");
        }
        let folder = self.folder(workspace);
        let scripts = folder.join("bin");
        if scripts.exists() {
            fs::remove_dir_all(&scripts)?;
        }
        fs::create_dir_all(&folder)?;
        let unpacked = Suite::open(&folder, SUITE)?.unpack_with_all(self.package)?;
        // It has a name that the tests know only once it has shown that it runs.
        let tried = folder.join("tried");
        machine::wrap(&unpacked, &[self.program], &tried)?;
        let said = Command::new(tried.join(self.name())).arg("--version").output()?;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let version = self.version(&text);
        let (first, second) = self.oldest;
        ensure!(
            is_since(version, self.oldest),
            "the package {} of {SUITE} has no version {first}.{second} or newer: {:?}",
            self.package,
            text.lines().next()
        );
        fs::rename(&tried, &scripts)?;
        println!("{}: version {version} is in {}", self.folder, scripts.display());
        Ok(())
    }

    /// The version in what `--version` says; nothing if another program says it.
    fn version<'t>(&self, said: &'t str) -> &'t str {
        said.strip_prefix(self.says).and_then(|rest| rest.split_whitespace().next()).unwrap_or_default()
    }
}

/// Whether a version is this one or newer.
fn is_since(version: &str, oldest: (u32, u32)) -> bool {
    let mut numbers = version.split(['.', '_']).map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next()) >= oldest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let newer = |version: &str| is_since(version, OPENVPN.oldest);
        assert!(newer("2.7.8") && newer("2.7_rc2") && newer("2.10") && newer("3.0.1"));
        assert!(!newer("2.6.14") && !newer("") && !newer("x.y"));
    }

    #[test]
    fn programs_say_their_versions() {
        assert_eq!(OPENVPN.version("OpenVPN 2.7.1 x86_64-pc-linux-gnu [SSL (OpenSSL)]\nlibrary versions"), "2.7.1");
        assert_eq!(VALKEY.version("Valkey server v=9.1.2 sha=00000000:0 malloc=jemalloc-5.3.1 bits=64"), "9.1.2");
        assert_eq!(VALKEY.version("Redis server v=7.0.15 sha=00000000:0"), "");
        assert_eq!((OPENVPN.name(), VALKEY.name()), ("openvpn", "valkey-server"));
    }
}
