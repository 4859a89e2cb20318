//! The commit of a version: the changelog's section, the version in `Cargo.toml`, the lock files and the compose file, the stored
//! example.

use super::git;
use crate::metadata::{Workspace, cargo};
use crate::programs::quiet;
use crate::steps;
use anyhow::{Context, ensure};
use std::fmt;
use std::fs;
use std::path::Path;

/// Three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

impl Version {
    /// Reads `0.2.0`.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let wrong = || format!("`{text}` is not a version: write three numbers, such as 0.2.0");
        let numbers: Vec<u32> = text.split('.').map(str::parse).collect::<Result<_, _>>().with_context(wrong)?;
        let numbers: [u32; 3] = numbers.try_into().ok().with_context(wrong)?;
        let version = Self(numbers);
        ensure!(version.to_string() == text, wrong());
        Ok(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Edits the files and commits them.
pub fn run(workspace: &Workspace, version: &Version) -> anyhow::Result<()> {
    let root = workspace.root();
    let notes = root.join("docs/upgrading.md");
    let text = fs::read_to_string(&notes).with_context(|| notes.display().to_string())?;
    ensure!(
        has_section(&text, version),
        "{} has no section `## To {version}`: write there what an operator has to do, or that there is nothing to do",
        notes.display()
    );
    let date = quiet(git(root).args(["log", "-1", "--format=%cs"]))?;
    edit(workspace, "CHANGELOG.md", |text| changelog(text, version, &date))?;
    edit(workspace, "Cargo.toml", |text| manifest(text, version))?;
    edit(workspace, COMPOSE, |text| compose(text, version))?;
    let mut changed = ["CHANGELOG.md", "Cargo.toml", COMPOSE].map(str::to_owned).to_vec();
    // Writes the new versions of our own packages to the lock files, and no other change.
    for folder in std::iter::once(".").chain(steps::APART) {
        let folder = Path::new(folder);
        let mut lock = cargo();
        lock.args(["update", "--workspace", "--quiet", "--manifest-path"]).arg(folder.join("Cargo.toml"));
        quiet(lock.current_dir(root))?;
        changed.push(folder.join("Cargo.lock").display().to_string());
    }
    let example = stored_example(version);
    fs::copy(root.join(EXAMPLE), root.join(&example)).context(EXAMPLE)?;
    changed.push(example);
    quiet(git(root).arg("add").args(&changed))?;
    quiet(git(root).args(["commit", "--quiet", "-m", &format!("Release {version}")]))?;
    Ok(())
}

/// The configuration with all settings, which is generated from their declarations.
const EXAMPLE: &str = "docs/reference/sealane.example.toml";

/// The compose file, which names the image with its version.
const COMPOSE: &str = "examples/compose/compose.yaml";

/// Where the example of this version is kept, for a test that later versions load it. Versions that differ in the last number have the
/// same settings.
fn stored_example(version: &Version) -> String {
    let [major, minor, _] = version.0;
    format!("tests/interop/configurations/{major}.{minor}.toml")
}

fn edit(workspace: &Workspace, file: &str, change: impl Fn(&str) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let path = workspace.root().join(file);
    let text = fs::read_to_string(&path).context(file.to_owned())?;
    fs::write(&path, change(&text).context(file.to_owned())?).context(file.to_owned())
}

fn has_section(text: &str, version: &Version) -> bool {
    text.lines().any(|line| line.trim_end() == format!("## To {version}"))
}

/// *Unreleased* becomes the version's section, and an empty one is put above it.
fn changelog(text: &str, version: &Version, date: &str) -> anyhow::Result<String> {
    const UNRELEASED: &str = "## Unreleased\n";
    ensure!(text.matches(UNRELEASED).count() == 1, "exactly one section `## Unreleased` is expected");
    let (before, after) = text.split_once(UNRELEASED).unwrap_or_default();
    let section = after.split("\n## ").next().unwrap_or_default();
    ensure!(section.lines().any(|line| line.starts_with("- ")), "nothing is listed under *Unreleased*");
    Ok(format!("{before}{UNRELEASED}\n## {version} - {date}\n{after}"))
}

/// The `version` of `[workspace.package]`.
fn manifest(text: &str, version: &Version) -> anyhow::Result<String> {
    let start = text.find("[workspace.package]\n").context("there is no [workspace.package]")?;
    let (before, section) = text.split_at(start);
    let line =
        section.lines().find(|line| line.starts_with("version = ")).context("no version in [workspace.package]")?;
    Ok(format!("{before}{}", section.replacen(line, &format!("version = \"{version}\""), 1)))
}

/// Puts the version behind `image: sealane:` in the compose file.
fn compose(text: &str, version: &Version) -> anyhow::Result<String> {
    const IMAGE: &str = "image: sealane:";
    let mut images = 0;
    let lines = text.split_inclusive('\n').map(|line| match line.split_once(IMAGE) {
        Some((before, rest)) if before.trim().is_empty() => {
            images += 1;
            // What follows the version on its line stays: a comment, the end of the line.
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            format!("{before}{IMAGE}{version}{}", &rest[end..])
        }
        _ => line.to_owned(),
    });
    let text = lines.collect();
    ensure!(images > 0, "no line begins with `{IMAGE}`");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version() -> Version {
        Version::parse("0.2.0").unwrap()
    }

    #[test]
    fn versions_are_three_numbers_and_ordered() {
        assert!(Version::parse("0.10.0").unwrap() > version());
        for wrong in ["0.2", "0.2.0.1", "v0.2.0", "0.2.x", "", "0.02.0", "+1.2.3"] {
            assert!(Version::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unreleased_changes_become_the_section_of_the_version() {
        let text = "# Changelog\n\n## Unreleased\n\n- a\n\n## 0.1.0 - 2026-01-01\n\n- b\n";
        let new = changelog(text, &version(), "2026-11-23").unwrap();
        let wanted = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-11-23\n\n- a\n\n## 0.1.0 - 2026-01-01\n\n- b\n";
        assert_eq!(new, wanted);
        // The new section is empty: there is nothing to release.
        assert!(changelog(&new, &version(), "2026-11-23").is_err());
        assert!(changelog("# Changelog\n", &version(), "2026-11-23").is_err());
    }

    #[test]
    fn only_the_version_of_the_workspace_changes() {
        let text = "[a]\nversion = \"9\"\n[workspace.package]\nversion = \"0.1.0\"\nedition = \"2024\"\n[b]\nversion = \"9\"\n";
        assert_eq!(manifest(text, &version()).unwrap(), text.replace("0.1.0", "0.2.0"));
        assert!(manifest("[package]\nversion = \"0.1.0\"\n", &version()).is_err());
    }

    #[test]
    fn images_in_the_compose_file_get_the_version() {
        let text = "a:\n  image: sealane:0.1.0\n  # image: sealane:0.1.0\nb:\n  image: sealane:0.1.0 # c\n";
        let wanted = "a:\n  image: sealane:0.2.0\n  # image: sealane:0.1.0\nb:\n  image: sealane:0.2.0 # c\n";
        assert_eq!(compose(text, &version()).unwrap(), wanted);
        assert!(compose("a:\n  image: other:0.1.0\n", &version()).is_err());
        let stored = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(COMPOSE)).unwrap();
        // The stored file names the workspace's version, which this crate has, too.
        let current = Version::parse(env!("CARGO_PKG_VERSION")).unwrap();
        assert_eq!(compose(&stored, &current).unwrap(), stored);
    }

    #[test]
    fn examples_are_kept_by_their_first_two_numbers() {
        assert_eq!(stored_example(&version()), "tests/interop/configurations/0.2.toml");
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(EXAMPLE).is_file());
    }

    #[test]
    fn the_upgrade_notes_need_a_section_of_their_own() {
        assert!(has_section("# Upgrading\n\n## To 0.2.0\n\nNothing.\n", &version()));
        assert!(!has_section("# Upgrading\n\n## To 0.2.01\n", &version()));
    }
}
