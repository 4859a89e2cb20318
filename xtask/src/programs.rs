//! The programs as they are shipped: linked with the C library of the system, for packages, or with everything inside, for
//! archives and container images.

use crate::metadata::{Workspace, cargo};
use crate::steps;
use anyhow::{Context, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shipped programs, each with the features that it is built with.
pub const PROGRAMS: &[(&str, &[&str])] = &[("sealane", &["--features", "full"]), ("sealane-lab", &[])];

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linking {
    /// With the C library of the system that runs it.
    Dynamic,
    /// With its own copy of the C library. It runs on every kernel, and in a container without a file beside it.
    Static,
}

/// Builds all programs and returns the folder where they are.
///
/// The programs contain no path of this machine: the same commit, built with the same compilers, gives the same bytes in every folder. The
/// flags for this differ from those of other builds, so the folder is another one, too.
pub fn build(workspace: &Workspace, profile: &str, linking: Linking) -> anyhow::Result<PathBuf> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let (target, linked) = match linking {
        Linking::Dynamic => (workspace.target().join("shipped"), ""),
        Linking::Static => (workspace.target().join("shipped-static"), "\u{1f}-Ctarget-feature=+crt-static"),
    };
    let home = std::env::var_os("CARGO_HOME").map_or_else(|| home().join(".cargo"), PathBuf::from);
    let paths = [(workspace.root(), "/sealane"), (home.as_path(), "/cargo")];
    let rust = paths.map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display())).join("\u{1f}");
    let c = paths.map(|(path, name)| format!("-ffile-prefix-map={}={name}", path.display())).join(" ");
    for (program, features) in PROGRAMS {
        let mut command = cargo();
        // With a target, the flags are not those of build scripts and procedural macros, which cannot be linked statically.
        command.args(["build", "--locked", "--profile", profile, "--target", &triple, "--target-dir"]).arg(&target);
        command.args(["-p", program]).args(*features);
        command.env("CARGO_ENCODED_RUSTFLAGS", format!("{rust}{linked}")).env("CFLAGS", &c).env("CXXFLAGS", &c);
        ensure!(steps::run(command, workspace)? == 0, "cargo build -p {program} failed");
    }
    Ok(target.join(triple).join(if profile == "dev" { "debug" } else { profile }))
}

fn home() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()))
}

/// Copies a program to a folder, without debug information. Function names stay: a backtrace of a user names them.
pub fn strip(program: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(program, to).with_context(|| program.display().to_string())?;
    checked(Command::new("strip").arg("--strip-debug").arg(to))
}

/// Has a program write its manual pages, compressed, to a folder.
pub fn manual(program: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    checked(Command::new(program).arg("man").arg(folder))?;
    for page in fs::read_dir(folder)? {
        // -n: no name and no time in the file.
        checked(Command::new("gzip").args(["-9", "-n"]).arg(page?.path()))?;
    }
    Ok(())
}

/// Has a program write its completions for each shell to a folder.
pub fn completions(program: &Path, name: &str, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    for (shell, file) in
        [("bash", format!("{name}.bash")), ("zsh", format!("_{name}")), ("fish", format!("{name}.fish"))]
    {
        let output = Command::new(program).args(["completions", shell]).output()?;
        ensure!(output.status.success(), "{name} completions {shell} failed");
        fs::write(folder.join(file), output.stdout)?;
    }
    Ok(())
}

/// Runs a command and fails when it fails.
pub fn checked(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Runs a command that has much to say, and shows it only when it fails. Returns its output.
pub fn quiet(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// When the newest commit was made, in seconds since 1970. What is built carries this time: the same commit gives the same files.
pub fn commit_time(workspace: &Workspace) -> anyhow::Result<String> {
    let mut command = Command::new("git");
    let time = quiet(command.args(["log", "-1", "--format=%ct"]).current_dir(workspace.root()))?;
    ensure!(!time.is_empty(), "git does not say when the newest commit was made");
    Ok(time)
}

/// This machine's architecture as Debian and container registries name it.
pub fn architecture() -> anyhow::Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => anyhow::bail!("nothing is packaged for {other}"),
    }
}

/// Writes `SHA256SUMS` for all files of a folder, as `sha256sum --check` reads it, and prints their paths.
pub fn checksums(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut files: Vec<String> = Vec::new();
    for entry in fs::read_dir(folder)? {
        files.push(entry?.file_name().to_string_lossy().into_owned());
    }
    files.sort();
    let sums = quiet(Command::new("sha256sum").args(&files).current_dir(folder))?;
    let path = folder.join("SHA256SUMS");
    fs::write(&path, sums + "\n")?;
    for file in files {
        println!("{}", folder.join(file).display());
    }
    println!("{}", path.display());
    Ok(path)
}
