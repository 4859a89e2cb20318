//! `cargo xtask package`: packages for dpkg and rpm, and an archive with a static program, in target/package.
//!
//! The packages' contents are described once for both formats in `packaging/*.yaml`. nfpm, a Go program, builds them.

use crate::metadata::{Workspace, cargo};
use crate::{setup, steps};
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

/// What is asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Build with this profile: `dist` is what is shipped
    #[arg(long, value_name = "NAME", default_value = "dist")]
    profile: String,
    /// Build nothing; take `sealane` and `sealane-lab` from this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "profile")]
    programs: Option<PathBuf>,
    /// The packages' version [default: the workspace's]
    #[arg(long, value_name = "VERSION")]
    package_version: Option<String>,
    /// Afterwards try the packages in fresh Debian 12 and 13 roots: installation, first start, upgrade, removal (needs root and
    /// debootstrap)
    #[arg(long)]
    check: bool,
}

/// Builds the packages and prints their paths.
pub fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<u8> {
    let programs = match &options.programs {
        Some(folder) => fs::canonicalize(folder).with_context(|| folder.display().to_string())?,
        None => build(workspace, &options.profile)?,
    };
    let out = workspace.target().join("package");
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| out.display().to_string())?;
    }
    let stage = out.join("stage");
    for (_, program) in PACKAGES {
        if let Some(program) = program {
            stage_program(&programs, &stage, program)?;
        }
    }
    let version = match &options.package_version {
        Some(version) => version.clone(),
        None => workspace.version()?,
    };
    let nfpm = nfpm(workspace)?;
    let library = PACKAGES.iter().filter_map(|(_, program)| *program).map(|program| stage.join("bin").join(program));
    let library = newest_glibc(library)?;
    let variables = Variables { glibc: &library, time: &commit_time(workspace)? };
    for (package, _) in PACKAGES {
        for format in FORMATS {
            variables.build(workspace, &nfpm, package, format, &version, &out)?;
        }
    }
    let newer = out.join("newer");
    if options.check {
        fs::create_dir_all(&newer)?;
        for (package, _) in PACKAGES {
            variables.build(workspace, &nfpm, package, "deb", &format!("{version}+1"), &newer)?;
        }
    }
    fs::remove_dir_all(&stage)?;
    if options.check {
        for suite in SUITES {
            life_cycle(workspace, &out, suite)?;
        }
        fs::remove_dir_all(&newer)?;
    }
    checksums(&out)?;
    Ok(0)
}

/// What the descriptions of all packages take from the environment.
struct Variables<'a> {
    glibc: &'a str,
    time: &'a str,
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
        command.envs([("VERSION", version), ("GLIBC", self.glibc), ("ARCH", architecture()?)]);
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

/// Runs `packaging/tests/life-cycle.sh` in a fresh root of a Debian suite. The root is made once and kept in target/roots.
fn life_cycle(workspace: &Workspace, packages: &Path, suite: &str) -> anyhow::Result<()> {
    for program in ["debootstrap", "unshare", "ip"] {
        ensure!(setup::find(program).is_some(), "`{program}` is missing; --check needs it");
    }
    let kept = workspace.target().join("roots").join(suite);
    if !kept.join("etc/debian_version").exists() || !kept.join("usr/bin/curl").exists() {
        println!("{suite}: making a root");
        fs::create_dir_all(&kept)?;
        let mirror = crate::ovpn_vm::mirror()?;
        let wanted = "--include=ca-certificates,systemd,init-system-helpers,curl,util-linux";
        let mut command = Command::new("debootstrap");
        quiet(command.args(["--variant=minbase", wanted, suite]).arg(&kept).arg(mirror))?;
    }
    let root = packages.join(format!("root-{suite}"));
    checked(Command::new("cp").arg("-a").arg(&kept).arg(&root))?;
    fs::create_dir(root.join("packages"))?;
    checked(Command::new("cp").arg("-a").arg(packages.join("newer")).arg(root.join("packages/newer")))?;
    for entry in fs::read_dir(packages)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            fs::copy(&file, root.join("packages").join(file.file_name().unwrap_or_default()))?;
        }
    }
    fs::copy(workspace.root().join("packaging/tests/life-cycle.sh"), root.join("packages/life-cycle.sh"))?;
    println!("{suite}:");
    let inside = "ip link set lo up && mount -t proc proc \"$0/proc\" && exec chroot \"$0\" sh /packages/life-cycle.sh";
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside]).arg(&root);
    checked(&mut command).with_context(|| format!("the packages fail in {suite}; see {}", root.display()))?;
    fs::remove_dir_all(&root)?;
    Ok(())
}

/// Runs a command that has much to say, and shows it only when it fails.
fn quiet(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stdout));
    Ok(())
}

fn build(workspace: &Workspace, profile: &str) -> anyhow::Result<PathBuf> {
    for arguments in [&["-p", "sealane", "--features", "full"][..], &["-p", "sealane-lab"]] {
        let mut command = cargo();
        command.args(["build", "--locked", "--profile", profile]).args(arguments);
        ensure!(steps::run(command, workspace)? == 0, "cargo build {} failed", arguments.join(" "));
    }
    Ok(workspace.target().join(if profile == "dev" { "debug" } else { profile }))
}

/// Copies a program, and has it write its manual pages and shell completions.
fn stage_program(programs: &Path, stage: &Path, program: &str) -> anyhow::Result<()> {
    let [bin, man, completions] = [stage.join("bin"), stage.join("man").join(program), stage.join("completions")];
    for folder in [&bin, &man, &completions] {
        fs::create_dir_all(folder)?;
    }
    let from = programs.join(program);
    let copy = bin.join(program);
    fs::copy(&from, &copy).with_context(|| from.display().to_string())?;
    // Function names stay: a backtrace of a user names them.
    checked(Command::new("strip").arg("--strip-debug").arg(&copy))?;
    checked(Command::new(&copy).arg("man").arg(&man))?;
    for page in fs::read_dir(&man)? {
        // -n: no name and no time in the file.
        checked(Command::new("gzip").args(["-9", "-n"]).arg(page?.path()))?;
    }
    for (shell, file) in
        [("bash", format!("{program}.bash")), ("zsh", format!("_{program}")), ("fish", format!("{program}.fish"))]
    {
        let output = Command::new(&copy).args(["completions", shell]).output()?;
        ensure!(output.status.success(), "{program} completions {shell} failed");
        fs::write(completions.join(file), output.stdout)?;
    }
    Ok(())
}

fn checked(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// nfpm in target/tools, built there from its Go module when it is missing.
fn nfpm(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let folder = workspace.target().join("tools");
    let program = folder.join("nfpm");
    if !program.is_file() {
        let Some(go) = setup::find("go") else {
            bail!("`go` is missing; it builds nfpm, which builds the packages (Debian package golang-go)");
        };
        checked(Command::new(go).args(["install", NFPM]).env("GOBIN", &folder).current_dir(std::env::temp_dir()))?;
    }
    Ok(program)
}

/// Debian's name of this machine's architecture; nfpm translates it for rpm.
fn architecture() -> anyhow::Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no packages for {other}"),
    }
}

fn commit_time(workspace: &Workspace) -> anyhow::Result<String> {
    let output = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(workspace.root()).output()?;
    let time = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(output.status.success() && !time.is_empty(), "git does not say when the newest commit was made");
    Ok(time)
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

/// `SHA256SUMS`, as `sha256sum --check` reads it.
fn checksums(folder: &Path) -> anyhow::Result<()> {
    let mut files: Vec<String> = Vec::new();
    for entry in fs::read_dir(folder)? {
        files.push(entry?.file_name().to_string_lossy().into_owned());
    }
    files.sort();
    let output = Command::new("sha256sum").args(&files).current_dir(folder).output().context("sha256sum")?;
    ensure!(output.status.success(), "sha256sum: {}", output.status);
    fs::write(folder.join("SHA256SUMS"), &output.stdout)?;
    for file in files {
        println!("{}", folder.join(file).display());
    }
    println!("{}", folder.join("SHA256SUMS").display());
    Ok(())
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
