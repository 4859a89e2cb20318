//! What `cargo metadata` says about the workspace, as far as the checks need it.

use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace and all that it depends on.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    /// Members and dependencies, for every platform.
    pub packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

/// One package.
#[derive(Debug, Deserialize)]
pub struct Package {
    id: String,
    /// Its name.
    pub name: String,
    /// Where its `Cargo.toml` is.
    pub manifest_path: PathBuf,
    /// Its version.
    pub version: String,
    /// The oldest compiler that it is meant for.
    pub rust_version: Option<String>,
    /// As declared, not resolved.
    pub dependencies: Vec<Dependency>,
}

/// A dependency as a manifest declares it.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// The package's name.
    pub name: String,
    /// `None` is a normal one; else `dev` or `build`.
    pub kind: Option<String>,
    /// A folder, where it is a path dependency.
    pub path: Option<PathBuf>,
}

impl Workspace {
    /// Asks cargo.
    pub fn load() -> anyhow::Result<Self> {
        Self::load_in(Path::new("."))
    }

    /// Asks cargo about the workspace in a folder.
    pub fn load_in(folder: &Path) -> anyhow::Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--format-version", "1"]).current_dir(folder);
        let output = command.output().context("cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("cargo metadata: not the JSON that was expected")
    }

    /// The repository's root.
    pub fn root(&self) -> &Path {
        &self.workspace_root
    }

    /// Where cargo builds.
    pub fn target(&self) -> &Path {
        &self.target_directory
    }

    /// Our own packages.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// The version of our own packages, which all have the same.
    pub fn version(&self) -> anyhow::Result<String> {
        self.members().next().map(|package| package.version.clone()).context("the workspace has no package")
    }

    /// A path as seen from the root, with forward slashes, and nothing else where it lies outside.
    pub fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.workspace_root).unwrap_or(path).to_string_lossy().replace('\\', "/")
    }

    /// A package's folder as seen from the root.
    pub fn folder(&self, package: &Package) -> String {
        self.relative(package.manifest_path.parent().unwrap_or(&package.manifest_path))
    }
}

/// The cargo that runs us, without what it set for us alone: those variables would look like a change to build scripts
/// that watch them.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_ours(&mut command);
    command
}

/// Removes what cargo has set for this program from the environment of another one.
pub fn without_ours(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "CARGO" {
            command.env_remove(&name);
        }
    }
}
