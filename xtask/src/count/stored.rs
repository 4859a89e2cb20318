//! The figures that are kept in `docs/measurements/counts.json`, and what new ones are held to.

use super::tools::{Tools, said};
use super::{Case, Cost, Costs};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// More or fewer instructions than this, as a part of those stored, need a reason, and an entry in the changelog.
const CHANGE: f64 = 0.02;
/// The same for downloads over QUIC, which repeat within 3 %: how many packets a datagram train has, and how many
/// acknowledgements come back, goes by the clock.
const CHANGE_OF_QUIC_BULK: f64 = 0.05;
/// More than this, as a part of the first, are never stored.
const IN_ALL: f64 = 1.04;
/// As many allocations more per operation are chance: tables that grow some times among a thousand operations.
const CHANCE_OF_MEMORY: f64 = 0.05;
/// What may be more of the other figures than those stored, and than the first: as a part, and beside that. How many events one wait brings, and in how many pieces a
/// body comes, depends on the scheduler: system calls of one program differed by 8 %, and by 1.8 of 7 per QUIC handshake.
const SYSTEM_CALLS: (f64, f64) = (0.1, 0.15);
const SYSTEM_CALLS_OF_QUIC: (f64, f64) = (0.1, 1.5);
const ALLOCATIONS: (f64, f64) = (0.05, CHANCE_OF_MEMORY);
const COPIES: (f64, f64) = (0.04, 0.1);

/// The file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    first: Figures,
    now: Figures,
    changes: Vec<Change>,
}

/// Figures and where they come from.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    #[serde(flatten)]
    made: Made,
    cases: Costs,
}

/// What was counted, when, and with what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    date: String,
    commit: String,
    with: Tools,
}

/// Why figures changed.
#[derive(Debug, Serialize, Deserialize)]
struct Change {
    date: String,
    commit: String,
    why: String,
    /// Instructions before and after, of cases that changed by more than [`allowed`]: `CHANGELOG.md` says so ([`Stored::unlisted`]).
    cases: BTreeMap<Case, (f64, f64)>,
}

/// The change of a case's instructions that needs no reason.
fn allowed(case: Case) -> f64 {
    if case == Case::H3Bulk { CHANGE_OF_QUIC_BULK } else { CHANGE }
}

/// What may be more of its system calls, as a part and beside that.
fn allowed_calls(case: Case) -> (f64, f64) {
    match case {
        Case::QuicHandshake | Case::H3Bulk => SYSTEM_CALLS_OF_QUIC,
        _ => SYSTEM_CALLS,
    }
}

/// The other figures that are higher than chance explains: their names, the figures, and those before.
fn risen(case: Case, new: &Cost, old: &Cost) -> impl Iterator<Item = (&'static str, f64, f64)> {
    let figures = [
        ("system calls", new.system_calls, old.system_calls, allowed_calls(case)),
        ("allocations", new.allocations, old.allocations, ALLOCATIONS),
        ("copies", new.copies, old.copies, COPIES),
    ];
    let risen = figures.into_iter().filter(|(_, new, old, (part, more))| *new > old * (1.0 + part) + more);
    risen.map(|(what, new, old, _)| (what, new, old))
}

/// What the design promises, whatever was stored: for a request on a kept HTTP/1.1 connection nothing of ours takes memory.
/// rustls does for each record, once to open and once to seal it.
pub fn check_regardless(costs: &Costs) -> Vec<String> {
    let ours = costs.get(&Case::Keepalive).map(|cost| cost.allocations - cost.of_rustls);
    let found = ours.filter(|ours| *ours > CHANCE_OF_MEMORY);
    found.map(|ours| format!("keepalive: Sealane's own code makes {ours:.2} allocations per request (allowed: none; those of rustls do not count)")).into_iter().collect()
}

impl Made {
    /// On this machine, today.
    pub fn here(root: &Path, commit: Option<&str>) -> anyhow::Result<Self> {
        let head = || said(Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(root));
        Ok(Self {
            date: said(Command::new("date").arg("+%F"))?,
            commit: commit.map_or_else(head, |commit| Ok(commit.to_owned()))?,
            with: Tools::here(root)?,
        })
    }
}

impl Stored {
    /// `None` where there is no file.
    pub fn load(path: &Path) -> anyhow::Result<Option<Self>> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        serde_json::from_slice(&text).map(Some).with_context(|| path.display().to_string())
    }

    /// Writes the file.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// The first figures.
    pub fn begin(made: Made, costs: &Costs) -> Self {
        let first = Figures { made, cases: costs.clone() };
        Self { now: first.clone(), first, changes: Vec::new() }
    }

    /// Takes new figures, and the reason. Small changes that together are more than [`allowed`] are one that is listed.
    ///
    /// Errors: a case is beyond what all changes together may cost.
    pub fn change(&mut self, made: Made, why: &str, costs: &Costs) -> anyhow::Result<()> {
        if let Some(why) = costs.iter().flat_map(|(case, cost)| self.beyond(*case, cost)).next() {
            bail!("{why}; nothing was stored");
        }
        let mut changed = BTreeMap::new();
        for (case, cost) in costs {
            self.now.cases.insert(*case, *cost);
            self.first.cases.entry(*case).or_insert(*cost);
            let before = self.listed(*case).unwrap_or(cost.instructions);
            if (cost.instructions / before - 1.0).abs() > allowed(*case) {
                changed.insert(*case, (before, cost.instructions));
            }
        }
        let (date, commit) = (made.date.clone(), made.commit.clone());
        self.changes.push(Change { date, commit, why: why.to_owned(), cases: changed });
        self.now.made = made;
        Ok(())
    }

    /// The instructions of a case when a change of it was last listed; else the first.
    fn listed(&self, case: Case) -> Option<f64> {
        let change = self.changes.iter().rev().find_map(|change| Some(change.cases.get(&case)?.1));
        change.or_else(|| Some(self.first.cases.get(&case)?.instructions))
    }

    /// One line for each change of instructions that needs an entry in the changelog and has none: one that names the case and the new
    /// number.
    pub fn unlisted(&self, changelog: &str) -> Vec<String> {
        let entries = entries(changelog);
        let mut found = Vec::new();
        for (case, (before, after)) in self.changes.iter().flat_map(|change| &change.cases) {
            let (case, before, after) = (format!("`{}`", case.name()), grouped(*before), grouped(*after));
            if !entries.iter().any(|entry| entry.contains(&case) && entry.contains(&after)) {
                found.push(format!(
                    "{case} changed from {before} to {after} instructions: add an entry with {case} and {after} to \
                     CHANGELOG.md"
                ));
            }
        }
        found
    }

    /// One line for each figure that is not as it should be.
    pub fn check(&self, costs: &Costs) -> Vec<String> {
        let mut found = Vec::new();
        for (&case, cost) in costs {
            let name = case.name();
            let Some(now) = self.now.cases.get(&case) else {
                found.push(format!("{name}: there is no stored figure; `cargo xtask count --store WHY` stores it"));
                continue;
            };
            let change = cost.instructions / now.instructions - 1.0;
            if change.abs() > allowed(case) {
                found.push(format!(
                    "{name}: {} instructions; the stored figure is {} ({:+.1} %). Give the reason: `cargo xtask \
                     count --store WHY`",
                    cost.instructions,
                    now.instructions,
                    100.0 * change
                ));
            }
            found.extend(self.beyond(case, cost));
            for (what, new, old) in risen(case, cost, now) {
                found.push(format!("{name}: {new} {what}; the stored figure is {old}"));
            }
        }
        found.extend(check_regardless(costs));
        found
    }

    /// How a case is beyond what all changes together may cost.
    fn beyond(&self, case: Case, cost: &Cost) -> Vec<String> {
        let Some(first) = self.first.cases.get(&case) else { return Vec::new() };
        let name = case.name();
        let part = cost.instructions / first.instructions;
        // What is chance in one run is chance in this sum, too.
        let most = IN_ALL + allowed(case) - CHANGE;
        let instructions = (part > most).then(|| {
            format!(
                "{name}: {part:.3} times the instructions of the first stored figure; at most {most:.2} times are allowed \
                 for all changes together"
            )
        });
        let others = risen(case, cost, first);
        let others = others.map(|(what, new, old)| format!("{name}: {new} {what}; the first stored figure was {old}"));
        instructions.into_iter().chain(others).collect()
    }

    /// What the figures were counted with.
    pub fn tools(&self) -> &Tools {
        &self.now.made.with
    }
}

/// The entries of a changelog, each in one line.
fn entries(changelog: &str) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for line in changelog.lines().map(str::trim) {
        match (line.strip_prefix("- "), entries.last_mut()) {
            (Some(entry), _) => entries.push(entry.to_owned()),
            // A heading or an empty line ends the entry.
            _ if line.is_empty() || line.starts_with('#') => entries.push(String::new()),
            (None, Some(entry)) => *entry = format!("{entry} {line}"),
            (None, None) => {}
        }
    }
    entries
}

/// A number as people read it: `1,061,819`.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What was counted beside what is stored.
pub fn table(stored: Option<&Stored>, costs: &Costs) -> String {
    let mut text = String::new();
    let heads = ["instructions", "of stored", "of first", "system calls", "allocations", "copies"];
    let _ = write!(text, "{:<16}", "per operation");
    for head in heads {
        let _ = write!(text, "{head:>14}");
    }
    text.push('\n');
    for (case, cost) in costs {
        let part = |figures: Option<&Figures>| {
            let known = figures.and_then(|figures| figures.cases.get(case));
            known.map_or_else(|| "-".to_owned(), |known| format!("{:.3}", cost.instructions / known.instructions))
        };
        let (now, first) = (part(stored.map(|s| &s.now)), part(stored.map(|s| &s.first)));
        let Cost { instructions, system_calls, allocations, of_rustls: _, copies } = cost;
        let _ = write!(text, "{:<16}{instructions:>14.0}{now:>14}{first:>14}", case.name());
        let _ = writeln!(text, "{system_calls:>14.2}{allocations:>14.2}{copies:>14.2}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(instructions: f64, allocations: f64) -> Costs {
        BTreeMap::from([(
            Case::Keepalive,
            Cost { instructions, system_calls: 6.0, allocations, of_rustls: 2.0, copies: 4.0 },
        )])
    }

    fn made() -> Made {
        let with = r#"{ "compiler": "rustc", "processor": "one", "notes": [] }"#;
        Made { date: "2026-01-01".into(), commit: "abc".into(), with: serde_json::from_str(with).unwrap() }
    }

    #[test]
    fn a_change_needs_a_reason_and_all_changes_have_a_bound() {
        let mut stored = Stored::begin(made(), &costs(1000.0, 2.0));
        assert!(stored.check(&costs(1019.0, 2.0)).is_empty());
        assert_eq!(stored.check(&costs(1021.0, 2.0)).len(), 1);
        assert_eq!(stored.check(&costs(979.0, 2.0)).len(), 1);
        stored.change(made(), "a check more", &costs(1030.0, 2.0)).unwrap();
        assert!(stored.check(&costs(1030.0, 2.0)).is_empty());
        // A small change after the others, and more than all may be.
        assert_eq!(stored.check(&costs(1045.0, 2.0)).len(), 1);
        assert!(stored.change(made(), "more", &costs(1045.0, 2.0)).is_err());
        assert_eq!(stored.check(&costs(1030.0, 2.0)).len(), 0);
    }

    #[test]
    fn a_change_of_more_than_two_percent_needs_an_entry_in_the_changelog() {
        let mut stored = Stored::begin(made(), &costs(1_000_000.0, 2.0));
        stored.change(made(), "little", &costs(1_019_000.0, 2.0)).unwrap();
        assert!(stored.unlisted("").is_empty());
        stored.change(made(), "little more, much in all", &costs(1_030_000.0, 2.0)).unwrap();
        assert_eq!(stored.unlisted("- `h2` needs 1,030,000 instructions.").len(), 1);
        assert_eq!(stored.unlisted("- `keepalive` needs 1,019,000 instructions.").len(), 1);
        assert_eq!(stored.unlisted("- `keepalive` needs fewer.\n- There are 1,030,000 of them.").len(), 1);
        let entry = "#### Changed\n- A request (`keepalive`) needs\n  1,030,000 instructions.\n- Another thing.";
        assert!(stored.unlisted(entry).is_empty());
    }

    #[test]
    fn the_changelog_of_this_repository_lists_every_change() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let stored = Stored::load(&root.join("docs/measurements/counts.json")).unwrap().expect("stored figures");
        let changelog = std::fs::read_to_string(root.join("CHANGELOG.md")).unwrap();
        assert_eq!(stored.unlisted(&changelog), Vec::<String>::new());
    }

    #[test]
    fn numbers_are_written_in_groups() {
        for (number, text) in [(7.0, "7"), (123.0, "123"), (1234.0, "1,234"), (1_061_819.4, "1,061,819")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_kept_request_that_allocates_is_found_whatever_is_stored() {
        let stored = Stored::begin(made(), &costs(1000.0, 3.0));
        assert_eq!(stored.check(&costs(1000.0, 3.0)).len(), 1);
        assert!(stored.check(&costs(1000.0, 2.0)).is_empty());
        // Without any stored figures, too.
        assert_eq!(check_regardless(&costs(1000.0, 3.0)).len(), 1);
        assert!(check_regardless(&costs(1000.0, 2.0)).is_empty());
    }

    #[test]
    fn the_other_figures_have_a_bound_in_all() {
        let cost = |system_calls, allocations, copies| {
            let cost = Cost { instructions: 1000.0, system_calls, allocations, of_rustls: 100.0, copies };
            Costs::from([(Case::H2, cost)])
        };
        let first = cost(100.0, 100.0, 100.0);
        for [one, two] in [
            [cost(109.0, 100.0, 100.0), cost(118.0, 100.0, 100.0)],
            [cost(100.0, 104.0, 100.0), cost(100.0, 108.0, 100.0)],
            [cost(100.0, 100.0, 103.0), cost(100.0, 100.0, 106.0)],
        ] {
            let mut stored = Stored::begin(made(), &first);
            assert!(stored.check(&one).is_empty());
            stored.change(made(), "a small change", &one).unwrap();
            assert_eq!(stored.check(&two).len(), 1, "small beside the figures stored, but not beside the first");
            assert!(stored.change(made(), "another one", &two).is_err());
        }
    }
}
