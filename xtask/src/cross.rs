//! Programs for arm64, built on amd64.
//!
//! This machine's cross compiler compiles C and links, so the programs run with its version of the C library and with newer ones. The
//! Rust compiler and its standard library for arm64 come from a Debian suite, because not every rustup has this library. They are
//! unpacked in target/cross and not installed.

use crate::machine::{self, Suite, find, output};
use crate::metadata::Workspace;
use anyhow::{Context, bail, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A suite whose Rust is new enough.
const SUITE: &str = "forky";
/// Programs, and the Debian packages that contain them.
const NEEDS: &[(&str, &str)] = &[
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
    ("dpkg-deb", "dpkg"),
];
/// Names of the emulator, which is called otherwise in newer Debian suites.
const EMULATORS: [&str; 2] = ["qemu-aarch64-static", "qemu-aarch64"];
/// Where the cross compiler's package has the C library for arm64.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// Files with this beginning are programs for arm64: `binfmt_misc` of the kernel compares it under a mask.
const MAGIC: &str = concat!(
    r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:",
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
);

/// The Rust compiler, which is unpacked when it is missing.
pub fn rustc(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    if !cfg!(target_arch = "x86_64") {
        bail!("programs for arm64 are built on amd64 or arm64");
    }
    if let Some(missing) = machine::missing(NEEDS) {
        bail!("{missing}; it builds programs for arm64");
    }
    let folder = workspace.target().join("cross");
    let script = folder.join("rustc");
    if !script.is_file() {
        fs::create_dir_all(&folder)?;
        let root = unpack(&folder)?;
        fs::write(&script, wrapper(&root)?)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    }
    let version = output(Command::new(&script).arg("--version"))?;
    let minimum = workspace.members().find_map(|package| package.rust_version.clone()).context("no rust-version")?;
    ensure!(new_enough(&version, &minimum), "{} is {}; {minimum} is needed", script.display(), version.trim());
    Ok(script)
}

/// Unpacks the compiler, its libraries and the standard libraries for both architectures.
fn unpack(folder: &Path) -> anyhow::Result<PathBuf> {
    let suite = Suite::open_for(folder, SUITE, &["amd64", "arm64"])?;
    let libraries = suite.search("^libstd-rust-[0-9.]+$")?;
    let driver = libraries.first().with_context(|| format!("Debian {SUITE} has no package libstd-rust-VERSION"))?;
    let root = suite.unpack_with_all(driver)?;
    for package in ["rustc", "libstd-rust-dev:amd64", "libstd-rust-dev:arm64"] {
        output(Command::new("dpkg-deb").arg("-x").arg(suite.fetch(package)?).arg(&root))?;
    }
    Ok(root)
}

/// A script that starts the compiler with the C library of its own suite, which is newer than this machine's.
fn wrapper(root: &Path) -> anyhow::Result<String> {
    let found = |name: &str| -> anyhow::Result<PathBuf> {
        let paths = output(Command::new("find").arg(root).args(["-name", name, "-not", "-type", "d"]))?;
        Ok(PathBuf::from(paths.lines().next().with_context(|| format!("the packages have no {name}"))?))
    };
    let loader = found("ld-linux-x86-64.so.2")?;
    let libraries = found("libc.so.6")?;
    let libraries = libraries.parent().context("a library's folder")?;
    let compiler = root.join("usr/bin/rustc");
    let sysroot = root.join("usr");
    Ok(format!(
        "#!/bin/sh\nexec '{}' --library-path '{}' '{}' --sysroot '{}' \"$@\"\n",
        loader.display(),
        libraries.display(),
        compiler.display(),
        sysroot.display()
    ))
}

/// Whether the answer of `rustc --version` names a version that is not older than another one.
fn new_enough(answer: &str, minimum: &str) -> bool {
    let numbers = |text: &str| -> Vec<u32> { text.split(['.', '-', '+', ' ']).map_while(|n| n.parse().ok()).collect() };
    answer.strip_prefix("rustc ").is_some_and(|version| numbers(version) >= numbers(minimum))
}

/// The emulator for one program.
pub fn emulator() -> anyhow::Result<PathBuf> {
    let found = EMULATORS.iter().find_map(|name| find(name));
    found.context("`qemu-aarch64-static` is missing; it runs programs for arm64 (Debian package qemu-user-static)")
}

/// A program for arm64, to be run here.
pub fn emulated(program: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(emulator()?);
    command.args(["-L", LIBRARIES]).arg(program);
    Ok(command)
}

/// The start of a shell script in a mount namespace of its own: from there on, the kernel runs programs for arm64 under the emulator.
/// The kernel opens the emulator now (`F`), so that it also runs in roots that do not contain it, and forgets it with the namespace.
pub fn emulate_all() -> anyhow::Result<String> {
    let emulator = emulator()?;
    Ok(format!(
        "binfmt=/proc/sys/fs/binfmt_misc && mount -t binfmt_misc none $binfmt && {{ [ -e $binfmt/qemu-aarch64 ] || \
         printf '%s' ':sealane-arm64:M::{MAGIC}:{}:F' >$binfmt/register; }} && ",
        emulator.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_compare_by_their_numbers() {
        for (answer, minimum, enough) in [
            ("rustc 1.97.1 (8f1a9894 2026-07-01) (built from a source tarball)\n", "1.90", true),
            ("rustc 1.90.0\n", "1.90", true),
            ("rustc 1.100.0-nightly\n", "1.90", true),
            ("rustc 1.85.0\n", "1.90", false),
            ("gcc 16", "1.90", false),
        ] {
            assert_eq!(new_enough(answer, minimum), enough, "{answer}");
        }
    }
}
