//! Security advisories about our dependencies, from a copy in the repository: `xtask/advisories.toml` has those of the RustSec
//! database for the crates in `Cargo.lock`, and its date. So dependencies are checked where the database cannot be downloaded, too,
//! and everybody sees how old the copy is.
//!
//! `cargo xtask deny --refresh FOLDER` makes the copy anew from a clone of <https://github.com/rustsec/advisory-db>.

use anyhow::{Context, ensure};
use semver::{Version, VersionReq};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const FILE: &str = "xtask/advisories.toml";
/// A copy that is older than this many days may lack what matters: the step says so.
const OLD: i64 = 30;

/// The copy.
#[derive(Debug, Serialize, Deserialize)]
struct Copy {
    /// When the database was like this, as `YYYY-MM-DD`, and the commit.
    date: String,
    commit: String,
    advisory: Vec<Advisory>,
}

/// One advisory, as far as it says what is affected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Advisory {
    id: String,
    package: String,
    /// `unsound`, `unmaintained`, `notice`; none: a vulnerability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    informational: Option<String>,
    #[serde(default)]
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

impl Advisory {
    /// Reads a file of the database: TOML in a fence, then text. `None`: it was withdrawn.
    fn of_file(text: &str) -> anyhow::Result<Option<Self>> {
        let fenced = text.trim_start().strip_prefix("```toml").and_then(|rest| rest.split_once("\n```"));
        let table: toml::Table = fenced.context("no TOML at the beginning")?.0.parse()?;
        let about = table.get("advisory").and_then(toml::Value::as_table).context("no [advisory]")?;
        if about.contains_key("withdrawn") {
            return Ok(None);
        }
        let word = |key: &str| about.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        let list = |key: &str| -> Vec<String> {
            let versions = table.get("versions").and_then(|v| v.get(key)).and_then(toml::Value::as_array);
            versions.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
        };
        Ok(Some(Self {
            id: word("id").context("no id")?,
            package: word("package").context("no package")?,
            informational: word("informational"),
            patched: list("patched"),
            unaffected: list("unaffected"),
        }))
    }

    fn affects(&self, version: &Version) -> anyhow::Result<bool> {
        for text in self.patched.iter().chain(&self.unaffected) {
            if VersionReq::parse(text).with_context(|| format!("{}: {text}", self.id))?.matches(version) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What a look at the copy has found.
#[derive(Debug, Default, PartialEq)]
pub struct Findings {
    /// Vulnerabilities and unsound code in what we use.
    pub errors: Vec<String>,
    /// Crates that nobody maintains, other notices, and a copy that is old.
    pub warnings: Vec<String>,
}

/// The packages of a lock file: names and versions.
fn locked(root: &Path) -> anyhow::Result<Vec<(String, Version)>> {
    let table: toml::Table = std::fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?.parse()?;
    let packages = table.get("package").and_then(toml::Value::as_array).context("Cargo.lock: no packages")?;
    let word = |p: &toml::Value, key: &str| p.get(key).and_then(toml::Value::as_str).unwrap_or_default().to_owned();
    packages.iter().map(|p| Ok((word(p, "name"), Version::parse(&word(p, "version"))?))).collect()
}

/// Looks at all dependencies.
pub fn check(root: &Path) -> anyhow::Result<Findings> {
    let text = std::fs::read_to_string(root.join(FILE)).context(FILE)?;
    let copy: Copy = toml::from_str(&text).context(FILE)?;
    let today = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400;
    judge(&copy, &locked(root)?, today as i64)
}

fn judge(copy: &Copy, locked: &[(String, Version)], today: i64) -> anyhow::Result<Findings> {
    let mut findings = Findings::default();
    for (name, version) in locked {
        for advisory in copy.advisory.iter().filter(|a| a.package == *name) {
            if !advisory.affects(version)? {
                continue;
            }
            let kind = advisory.informational.as_deref();
            let text = format!("{name} {version}: {} ({})", advisory.id, kind.unwrap_or("vulnerability"));
            match kind {
                None | Some("unsound") => findings.errors.push(text),
                Some(_) => findings.warnings.push(text),
            }
        }
    }
    let age = today - days(&copy.date).with_context(|| format!("{FILE}: date"))?;
    if age > OLD {
        findings.warnings.push(format!(
            "{FILE} is {age} days old (from {}): run `cargo xtask deny --refresh FOLDER` with a clone of the advisory database",
            copy.date
        ));
    }
    Ok(findings)
}

/// The number of a day, `YYYY-MM-DD`, counted from 1970.
fn days(date: &str) -> Option<i64> {
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    // A year that begins in March has its odd day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    Some(365 * year + leaps + (153 * month + 2) / 5 + day - 719_469)
}

/// Makes the copy anew from a clone of the database.
pub fn refresh(root: &Path, database: &Path) -> anyhow::Result<()> {
    let git = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").arg("-C").arg(database).args(arguments).output().context("git")?;
        ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let names: BTreeSet<String> = locked(root)?.into_iter().map(|(name, _)| name).collect();
    let mut advisory = Vec::new();
    for path in git(&["ls-tree", "-r", "--name-only", "HEAD", "crates/"])?.lines() {
        if path.split('/').nth(1).is_some_and(|name| names.contains(name)) && path.ends_with(".md") {
            let text = git(&["show", &format!("HEAD:{path}")])?;
            advisory.extend(Advisory::of_file(&text).with_context(|| path.to_owned())?);
        }
    }
    advisory.sort_by(|a, b| (&a.package, &a.id).cmp(&(&b.package, &b.id)));
    let (date, commit) = (git(&["log", "-1", "--format=%cs"])?, git(&["log", "-1", "--format=%H"])?);
    let copy = Copy { date: date.trim().to_owned(), commit: commit.trim().to_owned(), advisory };
    let text = format!(
        "# Advisories of https://github.com/rustsec/advisory-db (CC0) for the crates in Cargo.lock. `cargo xtask deny --refresh` writes it.\n{}",
        toml::to_string(&copy)?
    );
    std::fs::write(root.join(FILE), text)?;
    println!("{FILE}: {} advisories of {}", copy.advisory.len(), copy.date);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "```toml\n[advisory]\nid = \"RUSTSEC-2026-0001\"\npackage = \"a\"\n[versions]\npatched = [\">= 1.2.3\", \"^0.9.5\"]\n\
                        unaffected = [\"< 0.5.0\"]\n```\n\n# Title\n";

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn what_is_neither_patched_nor_unaffected_is_affected() {
        let advisory = Advisory::of_file(TEXT).unwrap().unwrap();
        for (text, affected) in [("1.2.2", true), ("1.2.3", false), ("0.9.5", false), ("0.9.4", true), ("0.4.9", false)]
        {
            assert_eq!(advisory.affects(&version(text)).unwrap(), affected, "{text}");
        }
        let withdrawn = TEXT.replace("package", "withdrawn = \"2026-01-01\"\npackage");
        assert_eq!(Advisory::of_file(&withdrawn).unwrap(), None);
        assert!(Advisory::of_file("# Title").is_err());
    }

    #[test]
    fn findings_are_of_our_versions_and_an_old_copy_is_told() {
        let advisory = Advisory::of_file(TEXT).unwrap().unwrap();
        let unmaintained = Advisory { informational: Some("unmaintained".into()), patched: vec![], ..advisory.clone() };
        let copy = Copy { date: "2026-01-01".into(), commit: String::new(), advisory: vec![advisory, unmaintained] };
        let locked = [("a".to_owned(), version("1.0.0")), ("b".to_owned(), version("1.0.0"))];
        let day = days("2026-01-31").unwrap();
        let found = judge(&copy, &locked, day).unwrap();
        assert_eq!(found.errors, ["a 1.0.0: RUSTSEC-2026-0001 (vulnerability)"]);
        assert_eq!(found.warnings, ["a 1.0.0: RUSTSEC-2026-0001 (unmaintained)"]);
        assert_eq!(judge(&copy, &locked[1..], day).unwrap(), Findings::default());
        assert_eq!(judge(&copy, &locked[1..], day + 1).unwrap().warnings.len(), 1);
    }

    #[test]
    fn days_are_counted() {
        assert_eq!((days("1970-01-01"), days("2000-03-01"), days("2026-11-23")), (Some(0), Some(11_017), Some(20_780)));
        assert_eq!(days("2026-11"), None);
    }
}
