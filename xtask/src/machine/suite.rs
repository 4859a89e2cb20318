//! Packages of a Debian suite that this machine does not use, with lists and caches of their own, so that its apt stays
//! as it is.

use super::output;
use anyhow::{Context, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A suite of the mirror that this machine's apt uses already.
pub struct Suite {
    root: PathBuf,
}

/// The mirror of Debian that this machine's apt uses.
pub fn mirror() -> anyhow::Result<String> {
    let targets = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        "Origin: Debian",
    ]))?;
    let mirror = targets.lines().find(|uri| !uri.contains("security")).context("apt knows no Debian mirror")?;
    Ok(mirror.to_owned())
}

impl Suite {
    /// Reads what the suite has for this machine's architecture.
    pub fn open(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let native = output(Command::new("dpkg").arg("--print-architecture"))?;
        Self::open_for(folder, name, &[native.trim()])
    }

    /// The same for several architectures. A package of another one than the first is named `PACKAGE:ARCHITECTURE`.
    pub fn open_for(folder: &Path, name: &str, architectures: &[&str]) -> anyhow::Result<Self> {
        let mirror = mirror()?;
        let suite = Self { root: folder.join(format!("apt-{name}")) };
        let root = suite.root.display();
        fs::create_dir_all(suite.root.join("lists/partial"))?;
        fs::create_dir_all(suite.root.join("cache/archives/partial"))?;
        fs::write(suite.root.join("sources.list"), format!("deb [signed-by={KEYRING}] {mirror} {name} main\n"))?;
        // No package is installed, as far as it knows.
        fs::write(suite.root.join("status"), "")?;
        let all: String = architectures.iter().map(|name| format!("\"{name}\"; ")).collect();
        fs::write(
            suite.root.join("apt.conf"),
            format!(
                "APT::Architectures {{ {all}}};\nDir::State::lists \"{root}/lists\";\nDir::State::status \"{root}/status\";\nDir::Cache \
                 \"{root}/cache\";\nDir::Etc::sourcelist \"{root}/sources.list\";\nDir::Etc::sourceparts \
                 \"-\";\nAPT::Sandbox::User \"root\";\n"
            ),
        )?;
        output(suite.command("apt-get").args(["-q", "update"]))?;
        Ok(suite)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.root.join("apt.conf")).current_dir(&self.root);
        command
    }

    /// Packages whose names a regular expression finds.
    pub fn search(&self, names: &str) -> anyhow::Result<Vec<String>> {
        let found = output(self.command("apt-cache").args(["search", "--names-only", names]))?;
        Ok(found.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }

    /// Fetches one package, unless it lies there already.
    pub fn fetch(&self, name: &str) -> anyhow::Result<PathBuf> {
        let file = || -> anyhow::Result<Option<PathBuf>> {
            let (package, architecture) = name.split_once(':').unwrap_or((name, ""));
            let ours = |p: &PathBuf| {
                let file = p.file_name().map(|f| f.to_string_lossy().into_owned()).unwrap_or_default();
                // PACKAGE_VERSION_ARCHITECTURE.deb
                file.starts_with(&format!("{package}_")) && file.ends_with(&format!("{architecture}.deb"))
            };
            Ok(fs::read_dir(&self.root)?.filter_map(Result::ok).map(|e| e.path()).find(ours))
        };
        if let Some(file) = file()? {
            return Ok(file);
        }
        println!("fetching {name}");
        output(self.command("apt-get").args(["-q", "download", name]))?;
        file()?.with_context(|| format!("apt said that it fetched {name}, but there is none"))
    }

    /// Unpacks a package and everything that it needs, down to the C library, into a folder of its own.
    pub fn unpack_with_all(&self, name: &str) -> anyhow::Result<PathBuf> {
        println!("fetching {name} and its libraries");
        let archives = self.root.join("cache/archives");
        let debs = || -> anyhow::Result<Vec<PathBuf>> {
            let files = fs::read_dir(&archives)?.filter_map(Result::ok).map(|e| e.path());
            Ok(files.filter(|f| f.extension().is_some_and(|e| e == "deb")).collect())
        };
        // Those of another day may be other versions.
        for old in debs()? {
            fs::remove_file(old)?;
        }
        let install = ["-qq", "-y", "--no-install-recommends", "--download-only", "install", name];
        output(self.command("apt-get").args(install))?;
        let unpacked = self.root.join("unpacked");
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked)?;
        }
        for deb in debs()? {
            output(Command::new("dpkg-deb").arg("-x").args([&deb, &unpacked]))?;
        }
        Ok(unpacked)
    }
}

/// Writes scripts to a folder that run programs of an unpacked suite (`usr/bin/NAME`) with the libraries that came with them.
pub fn wrap(unpacked: &Path, programs: &[&str], scripts: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(scripts)?;
    let libraries = unpacked.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let loader = fs::read_dir(&libraries)
        .with_context(|| libraries.display().to_string())?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux")));
    for name in programs {
        let program = unpacked.join(name);
        ensure!(program.is_file(), "{} is not in the package", program.display());
        let line = match &loader {
            Some(loader) => format!(
                "exec '{}' --library-path '{}' '{}' \"$@\"",
                loader.display(),
                libraries.display(),
                program.display()
            ),
            None => format!("exec '{}' \"$@\"", program.display()),
        };
        let script = scripts.join(program.file_name().context("a program's name")?);
        fs::write(&script, format!("#!/bin/sh\n{line}\n"))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
