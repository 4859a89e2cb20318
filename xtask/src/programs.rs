//! The programs as they are shipped: linked with the C library of the system, for packages, or with everything inside, for
//! archives and container images.

use crate::metadata::{Workspace, cargo};
use crate::{cross, steps};
use anyhow::{Context, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shipped programs, each with the features that it is built with.
pub const PROGRAMS: &[(&str, &[&str])] =
    &[("sealane", &["--features", "full"]), ("sealane-lab", &[]), ("sealane-kube", &[])];

/// The program that runs only in Pods, so that it has an image, and no archive and no package.
pub const IN_IMAGE_ONLY: &str = "sealane-kube";

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linking {
    /// With the C library of the system that runs it.
    Dynamic,
    /// With its own copy of the C library. It runs on every kernel, and in a container without a file beside it.
    Static,
}

/// A processor architecture for which programs are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Architecture {
    /// x86-64
    Amd64,
    /// 64-bit ARM; cross-built on amd64 with gcc-aarch64-linux-gnu and Debian's Rust
    Arm64,
}

impl Architecture {
    /// The given one, or this machine's.
    pub fn or_native(given: Option<Self>) -> anyhow::Result<Self> {
        given.map_or_else(Self::native, Ok)
    }

    /// This machine's.
    pub fn native() -> anyhow::Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => anyhow::bail!("nothing is packaged for {other}"),
        }
    }

    /// Whether this machine runs its programs without an emulator.
    pub fn is_native(self) -> bool {
        Self::native().is_ok_and(|native| native == self)
    }

    /// The name that Debian and container registries use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's name of the target.
    pub fn triple(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// A program of this architecture, to be run here.
    fn command(self, program: &Path) -> anyhow::Result<Command> {
        match self.is_native() {
            true => Ok(Command::new(program)),
            false => cross::emulated(program),
        }
    }

    /// What cargo needs in addition for building it here.
    fn prepare(self, workspace: &Workspace, cargo: &mut Command) -> anyhow::Result<()> {
        if self.is_native() {
            return Ok(());
        }
        ensure!(self == Self::Arm64, "programs for {} are built only on {0}", self.name());
        cargo.env("RUSTC", cross::rustc(workspace)?);
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
        Ok(())
    }
}

/// Builds all programs and returns the folder where they are.
///
/// The programs contain no path of this machine: the same commit, built with the same compilers, gives the same bytes in every folder. The
/// flags for this differ from those of other builds, so the folder is another one, too. Only the last step, the linking, knows whether a
/// program has its own C library, so both kinds share everything else.
pub fn build(
    workspace: &Workspace,
    profile: &str,
    linking: Linking,
    architecture: Architecture,
) -> anyhow::Result<PathBuf> {
    let triple = architecture.triple();
    // Another compiler in the same folder would build everything anew.
    let target = match architecture.is_native() {
        true => workspace.target().join("shipped"),
        false => workspace.target().join(format!("shipped-{}", architecture.name())),
    };
    let kind = match linking {
        Linking::Dynamic => "dynamic",
        Linking::Static => "static",
    };
    let built = target.join(triple).join(if profile == "dev" { "debug" } else { profile });
    let out = target.join(kind).join(profile);
    fs::create_dir_all(&out)?;
    let home = std::env::var_os("CARGO_HOME").map_or_else(|| home().join(".cargo"), PathBuf::from);
    let paths = [(workspace.root(), "/sealane"), (home.as_path(), "/cargo")];
    let rust = paths.map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display())).join("\u{1f}");
    let c = paths.map(|(path, name)| format!("-ffile-prefix-map={}={name}", path.display())).join(" ");
    for (program, features) in PROGRAMS {
        let mut command = cargo();
        architecture.prepare(workspace, &mut command)?;
        // With a target, the flags are not those of build scripts and procedural macros.
        command.args(["rustc", "--locked", "--profile", profile, "--target", triple, "--target-dir"]).arg(&target);
        command.args(["-p", program, "--bin", program]).args(*features);
        if linking == Linking::Static {
            command.args(["--", "-Ctarget-feature=+crt-static"]);
        }
        command.env("CARGO_ENCODED_RUSTFLAGS", &rust).env("CFLAGS", &c).env("CXXFLAGS", &c);
        ensure!(steps::run(command, workspace)? == 0, "the build of {program} failed");
        let (from, to) = (built.join(program), out.join(program));
        fs::copy(&from, &to).with_context(|| from.display().to_string())?;
    }
    Ok(out)
}

fn home() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()))
}

/// Copies a program to a folder, without debug information. Function names stay: a backtrace of a user names them.
pub fn strip(program: &Path, to: &Path, architecture: Architecture) -> anyhow::Result<()> {
    fs::copy(program, to).with_context(|| program.display().to_string())?;
    checked(Command::new(strip_tool(architecture)).arg("--strip-debug").arg(to))
}

/// Removes the function names of a program, too.
pub fn strip_names(program: &Path, architecture: Architecture) -> anyhow::Result<()> {
    checked(Command::new(strip_tool(architecture)).arg("--strip-all").arg(program))
}

fn strip_tool(architecture: Architecture) -> &'static str {
    match architecture {
        _ if architecture.is_native() => "strip",
        Architecture::Amd64 => "x86_64-linux-gnu-strip",
        Architecture::Arm64 => "aarch64-linux-gnu-strip",
    }
}

/// Has a program write its manual pages, compressed, to a folder.
pub fn manual(program: &Path, folder: &Path, architecture: Architecture) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    checked(architecture.command(program)?.arg("man").arg(folder))?;
    for page in fs::read_dir(folder)? {
        // -n: no name and no time in the file.
        checked(Command::new("gzip").args(["-9", "-n"]).arg(page?.path()))?;
    }
    Ok(())
}

/// Has a program write its completions for each shell to a folder.
pub fn completions(program: &Path, name: &str, folder: &Path, architecture: Architecture) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    for (shell, file) in
        [("bash", format!("{name}.bash")), ("zsh", format!("_{name}")), ("fish", format!("{name}.fish"))]
    {
        let output = architecture.command(program)?.args(["completions", shell]).output()?;
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
