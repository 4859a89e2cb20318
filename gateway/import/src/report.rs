//! What became of each directive.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The file's path, as it was opened.
    pub file: Arc<str>,
    /// Counted from 1.
    pub line: u32,
}

impl Place {
    pub(crate) fn new(file: &str, line: u32) -> Self {
        Self { file: file.into(), line }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// What became of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Sealane does the same.
    Same,
    /// Sealane does something else, which the report describes.
    Different,
    /// Nothing takes its place; the report says what to do instead.
    NotTranslated,
    /// The same, and it decides who may connect or how strong the protection is: a person must decide.
    Undecided,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Same, Self::Different, Self::NotTranslated, Self::Undecided];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Different => "different",
            Self::NotTranslated => "not_translated",
            Self::Undecided => "undecided",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Same => "the same",
            Self::Different => "different",
            Self::NotTranslated => "not translated",
            Self::Undecided => "undecided",
        }
    }
}

/// A directive's number in the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(usize);

#[derive(Clone, Debug)]
struct Record {
    place: Place,
    text: String,
    found: Vec<(Outcome, String)>,
}

/// What the report says of a directive that the import does not know.
pub(crate) const UNKNOWN: &str = "the import does not know this directive: write Sealane settings that have the same effect, or, if you do \
     not need it, only remove its entry from \"undecided\"";

/// The same, of an option.
pub(crate) fn unknown_option(option: &str) -> String {
    format!(
        "the import does not know the option \"{option}\": write Sealane settings that have the same effect, or, if you do not need it, \
         only remove its entry from \"undecided\""
    )
}

/// The same, of a form of a directive.
pub(crate) const UNREAD: &str = "the import does not understand this form of the directive: write Sealane settings that have the same \
     effect, or, if you do not need it, only remove its entry from \"undecided\"";

/// What the report says of a directive with bytes that are not translated.
pub(crate) const NOT_UTF8: &str = "the directive has a byte that is not UTF-8, which the import does not translate: convert the file to UTF-8, or \
     write the setting by hand";

/// Most remarks about one directive, which may be inherited by many locations.
const MAX_REMARKS: usize = 16;
/// Most characters of a directive that are shown.
const MAX_TEXT: usize = 160;

/// What became of each directive, in the order of the files.
#[derive(Clone, Debug, Default)]
pub struct Report {
    records: Vec<Record>,
}

impl Report {
    pub(crate) fn record(&mut self, place: Place, text: String) -> Id {
        let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.chars().count() > MAX_TEXT {
            text = text.chars().take(MAX_TEXT - 1).chain(['…']).collect();
        }
        self.records.push(Record { place, text, found: Vec::new() });
        Id(self.records.len() - 1)
    }

    pub(crate) fn say(&mut self, id: Id, outcome: Outcome, says: impl Into<String>) {
        let Some(record) = self.records.get_mut(id.0) else { return };
        let entry = (outcome, says.into());
        // A remark replaces that all is the same.
        if record.found.contains(&entry) || (outcome == Outcome::Same && !record.found.is_empty()) {
            return;
        }
        record.found.retain(|(o, _)| *o != Outcome::Same);
        if record.found.len() < MAX_REMARKS || outcome == Outcome::Undecided {
            record.found.push(entry);
        }
    }

    pub(crate) fn same(&mut self, id: Id, says: impl Into<String>) {
        self.say(id, Outcome::Same, says);
    }

    pub(crate) fn differs(&mut self, id: Id, says: impl Into<String>) {
        self.say(id, Outcome::Different, says);
    }

    pub(crate) fn missing(&mut self, id: Id, says: impl Into<String>) {
        self.say(id, Outcome::NotTranslated, says);
    }

    pub(crate) fn decide(&mut self, id: Id, says: impl Into<String>) {
        self.say(id, Outcome::Undecided, says);
    }

    /// Whether anything is said of a directive.
    pub(crate) fn is_known(&self, id: Id) -> bool {
        self.records.get(id.0).is_some_and(|r| !r.found.is_empty())
    }

    /// Whether something is said of a directive, and not only that it is the same.
    pub(crate) fn is_remarked(&self, id: Id) -> bool {
        self.records.get(id.0).is_some_and(|r| r.found.iter().any(|(o, _)| *o != Outcome::Same))
    }

    fn entries(&self) -> impl Iterator<Item = (Outcome, &Place, &str, &str)> {
        self.records.iter().flat_map(|r| r.found.iter().map(move |(o, s)| (*o, &r.place, r.text.as_str(), s.as_str())))
    }

    /// How many directives have this as their worst outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.records.iter().filter(|r| r.found.iter().map(|f| f.0).max() == Some(outcome)).count()
    }

    /// How many directives there are.
    pub fn directives(&self) -> usize {
        self.records.len()
    }

    /// For each directive its first word and its worst outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, Outcome)> {
        let worst = |r: &Record| r.found.iter().map(|f| f.0).max();
        self.records.iter().filter_map(move |r| Some((r.text.split(' ').next().unwrap_or(""), worst(r)?)))
    }

    /// What a person has to decide, one line each.
    pub fn undecided(&self) -> Vec<String> {
        let undecided = self.entries().filter(|e| e.0 == Outcome::Undecided);
        undecided.map(|(_, place, text, says)| format!("{place}: {text}: {says}")).collect()
    }

    /// As text: what is not the same, one line each, then the numbers. `all`: what is the same, too.
    pub fn to_text(&self, all: bool) -> String {
        let mut out = String::new();
        for outcome in Outcome::ALL.iter().rev().filter(|o| all || **o != Outcome::Same) {
            // A file that is included several times has the same lines several times.
            let mut said = BTreeSet::new();
            for (_, place, text, says) in self.entries().filter(|e| e.0 == *outcome) {
                if *outcome != Outcome::Same && !said.insert((place, text, says)) {
                    continue;
                }
                let colon = if says.is_empty() { "" } else { ": " };
                // Writing to a string cannot fail.
                let _ = writeln!(out, "{place}: {}: {text}{colon}{says}", outcome.title());
            }
        }
        let counts = Outcome::ALL.map(|o| format!("{} {}", self.count(o), o.title()));
        let _ = writeln!(out, "{} directives: {}", self.directives(), counts.join(", "));
        out
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        let entries: Vec<serde_json::Value> = self
            .entries()
            .map(|(outcome, place, text, says)| {
                serde_json::json!({ "outcome": outcome.name(), "file": &*place.file, "line": place.line, "directive": text,
                    "says": says })
            })
            .collect();
        let counts: serde_json::Map<String, serde_json::Value> =
            Outcome::ALL.iter().map(|o| (o.name().to_owned(), self.count(*o).into())).collect();
        let value = serde_json::json!({ "ok": self.count(Outcome::Undecided) == 0, "directives": self.directives(),
            "counts": counts, "entries": entries });
        format!("{value:#}\n")
    }
}
