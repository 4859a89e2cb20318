//! `cargo xtask package`: packages for dpkg and rpm, in target/package.
//!
//! The packages' contents are described once for both formats in `packaging/*.yaml`. nfpm, a Go program, builds them.

mod check;

use crate::metadata::Workspace;
use crate::programs::{self, Architecture, Linking, checked};
use crate::setup;
use anyhow::{Context, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of nfpm that builds the packages.
const NFPM: &str = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0";
/// The descriptions in `packaging/`, each with the program that it contains.
const PACKAGES: &[(&str, Option<&str>)] =
    &[("sealane", Some("sealane")), ("sealane-openvpn", None), ("sealane-lab", Some("sealane-lab"))];
/// dpkg's and rpm's.
const FORMATS: &[&str] = &["deb", "rpm"];

/// Debian 12 and 13.
const SUITES: &[&str] = &["bookworm", "trixie"];
/// For programs that run under emulation, which is slow: the suite with the oldest C library.
const EMULATED_SUITES: &[&str] = &["bookworm"];

/// What is asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Build with this profile; releases use `dist`
    #[arg(long, value_name = "NAME", default_value = "dist")]
    profile: String,
    /// Build nothing; package `sealane` and `sealane-lab` from this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "profile")]
    programs: Option<PathBuf>,
    /// The packages' version [default: the workspace's]
    #[arg(long, value_name = "VERSION")]
    package_version: Option<String>,
    /// Build for this architecture [default: this machine's]
    #[arg(long, value_enum, value_name = "NAME")]
    architecture: Option<Architecture>,
    /// Afterwards test the packages in new Debian 12 and 13 roots: installation, first start, upgrade, removal, in a namespace and in
    /// a virtual machine with systemd (needs root, debootstrap and qemu); and the RPM packages in an empty root (needs rpm). For another
    /// architecture: in a namespace with Debian 12, under qemu-user
    #[arg(long)]
    check: bool,
}

/// Builds the packages and prints their paths.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let architecture = Architecture::or_native(options.architecture)?;
    // What would fail after the build fails now.
    if options.check {
        check::needs(architecture)?;
    }
    nfpm(workspace)?;
    let programs = match &options.programs {
        Some(folder) => fs::canonicalize(folder).with_context(|| folder.display().to_string())?,
        None => programs::build(workspace, &options.profile, Linking::Dynamic, architecture)?,
    };
    let version = options.package_version.as_deref();
    build(workspace, &programs, version, options.check, architecture)?;
    programs::checksums(&workspace.target().join("package"))?;
    Ok(0)
}

/// Writes the packages to target/package and returns their paths. With `check`, they are tried in fresh roots.
pub fn build(
    workspace: &Workspace,
    programs: &Path,
    version: Option<&str>,
    check: bool,
    architecture: Architecture,
) -> anyhow::Result<Vec<PathBuf>> {
    let out = workspace.target().join("package");
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    let stage = out.join("stage");
    for (_, program) in PACKAGES {
        if let Some(program) = program {
            stage_program(programs, &stage, program, architecture)?;
        }
    }
    let version = match version {
        Some(version) => version.to_owned(),
        None => workspace.version()?,
    };
    let nfpm = nfpm(workspace)?;
    let library = PACKAGES.iter().filter_map(|(_, program)| *program).map(|program| stage.join("bin").join(program));
    let library = newest_glibc(library)?;
    let variables = Variables { glibc: &library, time: &programs::commit_time(workspace)?, architecture };
    for (package, _) in PACKAGES {
        for format in FORMATS {
            variables.build(workspace, &nfpm, package, format, &version, &out)?;
        }
    }
    // In folders of their own: the machine with systemd gets only those for dpkg.
    let (newer, newer_rpms) = (out.join("newer"), out.join("newer-rpm"));
    if check {
        for (format, folder) in [("deb", &newer), ("rpm", &newer_rpms)] {
            fs::create_dir_all(folder)?;
            for (package, _) in PACKAGES {
                variables.build(workspace, &nfpm, package, format, &format!("{version}+1"), folder)?;
            }
        }
    }
    fs::remove_dir_all(&stage)?;
    if check {
        check::rpm(workspace, &out, &newer_rpms)?;
        fs::remove_dir_all(&newer_rpms)?;
        for suite in if architecture.is_native() { SUITES } else { EMULATED_SUITES } {
            check::life_cycle(workspace, &out, suite, architecture)?;
            if architecture.is_native() {
                check::boot(workspace, &out, suite)?;
            }
        }
        fs::remove_dir_all(&newer)?;
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&out)? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

/// What the descriptions of all packages take from the environment.
struct Variables<'a> {
    glibc: &'a str,
    time: &'a str,
    architecture: Architecture,
}

impl Variables<'_> {
    fn build(
        &self,
        workspace: &Workspace,
        nfpm: &Path,
        package: &str,
        format: &str,
        version: &str,
        out: &Path,
    ) -> anyhow::Result<()> {
        let mut command = Command::new(nfpm);
        command.args(["package", "--packager", format, "--config", &format!("packaging/{package}.yaml"), "--target"]);
        command.arg(out).current_dir(workspace.root());
        command.envs([("VERSION", version), ("GLIBC", self.glibc), ("ARCH", self.architecture.name())]);
        // Files in packages carry the time of the commit: the same commit gives the same package.
        command.env("SOURCE_DATE_EPOCH", self.time);
        let output = command.output().with_context(|| nfpm.display().to_string())?;
        ensure!(
            output.status.success(),
            "nfpm could not build the {format} package {package}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

/// Copies a program, and has it write its manual pages and shell completions.
fn stage_program(folder: &Path, stage: &Path, program: &str, architecture: Architecture) -> anyhow::Result<()> {
    let bin = stage.join("bin");
    fs::create_dir_all(&bin)?;
    let copy = bin.join(program);
    programs::strip(&folder.join(program), &copy, architecture)?;
    programs::manual(&copy, &stage.join("man").join(program), architecture)?;
    programs::completions(&copy, program, &stage.join("completions"), architecture)
}

/// nfpm in target/tools, built there from its Go module when it is missing.
pub fn nfpm(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.target().join("tools");
    let program = folder.join("nfpm");
    if !program.is_file() {
        let Some(go) = setup::find("go") else {
            bail!("`go` is missing; it builds nfpm, which builds the packages (Go 1.23 or newer)");
        };
        checked(Command::new(go).args(["install", NFPM]).env("GOBIN", &folder).current_dir(std::env::temp_dir()))?;
    }
    Ok(program)
}

/// The newest version of the C library whose symbols the programs use, as `2.34`.
fn newest_glibc(programs: impl Iterator<Item = PathBuf>) -> anyhow::Result<String> {
    let mut newest = (2, 17);
    for program in programs {
        let bytes = fs::read(&program).with_context(|| program.display().to_string())?;
        newest = newest.max(glibc_in(&bytes).unwrap_or(newest));
    }
    Ok(format!("{}.{}", newest.0, newest.1))
}

/// The names of symbol versions are text in the file, each ended by a NUL: `GLIBC_2.34`.
fn glibc_in(bytes: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"GLIBC_";
    let names = bytes.windows(PREFIX.len()).enumerate().filter(|(_, window)| *window == PREFIX);
    let versions = names.filter_map(|(at, _)| {
        let rest = &bytes[at + PREFIX.len()..];
        let name = rest.split(|byte| *byte == 0).next()?;
        let mut numbers = std::str::from_utf8(name).ok()?.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_version_of_the_c_library_is_found() {
        assert_eq!(glibc_in(b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_PRIVATE\0GLIBC_2.2.5\0"), Some((2, 34)));
        assert_eq!(glibc_in(b"nothing"), None);
    }

    #[test]
    fn every_file_that_a_package_names_is_in_the_repository_or_staged() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (package, _) in PACKAGES {
            let text = fs::read_to_string(root.join(format!("packaging/{package}.yaml"))).unwrap();
            let named = text.lines().filter_map(|line| {
                let (_, rest) = line
                    .split_once("src: ")
                    .or_else(|| line.split_once("install: "))
                    .or_else(|| line.split_once("remove: "))?;
                rest.split([',', '}']).next()
            });
            let mut count = 0;
            for file in named {
                count += 1;
                let staged = file.starts_with("target/package/stage/");
                assert!(staged || root.join(file).exists(), "{package} names {file}");
            }
            assert!(count >= 3, "{package}: {count} files");
        }
    }
}
