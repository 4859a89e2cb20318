//! HAProxy's sections, with what they inherit from `defaults`.

use super::conditions;
use super::lexer::lines;
use crate::Failed;
use crate::reader::Reader;
use crate::report::{Id, NOT_UTF8, Place, Report};
use std::path::Path;

/// A line of a section.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub id: Id,
    /// Its section.
    pub section: Id,
    pub place: Place,
    pub words: Vec<String>,
}

impl Line {
    pub fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// The words from a position on.
    pub fn from(&self, at: usize) -> &[String] {
        self.words.get(at..).unwrap_or_default()
    }

    /// Whether it begins with these words.
    pub fn is(&self, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(i, w)| self.word(i) == *w)
    }

    /// The word behind another one.
    pub fn after(&self, option: &str) -> Option<&str> {
        let at = self.words.iter().position(|w| w == option)?;
        self.words.get(at + 1).map(String::as_str)
    }
}

/// A section.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub id: Id,
    pub place: Place,
    pub kind: String,
    pub name: String,
    /// Index of its `defaults`.
    pub defaults: Option<usize>,
    pub lines: Vec<Line>,
}

/// Words that begin a section.
const SECTIONS: &[&str] = &[
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "userlist",
    "peers",
    "resolvers",
    "cache",
    "mailers",
    "program",
    "http-errors",
    "ring",
    "fcgi-app",
    "log-forward",
    "log-profile",
    "crt-store",
    "traces",
    "acme",
    "dynamic-update",
];

/// Largest file.
const MAX_FILE: usize = 8 << 20;
/// Most lines.
const MAX_LINES: usize = 50_000;

/// Reads a file into sections.
pub(super) fn parse(reader: &dyn Reader, path: &Path, report: &mut Report) -> Result<Vec<Section>, Failed> {
    let file = path.to_string_lossy().into_owned();
    let at = |line| Place::new(&file, line);
    let bytes = reader.read(path).map_err(|e| Failed::new(&at(1), e))?;
    if bytes.len() > MAX_FILE {
        return Err(Failed::new(&at(1), "the configuration is too large"));
    }
    let text = String::from_utf8_lossy(&bytes);
    let all = lines(text.strip_prefix('\u{feff}').unwrap_or(&text), reader).map_err(|(l, e)| Failed::new(&at(l), e))?;
    if all.len() > MAX_LINES {
        return Err(Failed::new(&at(1), "the configuration has too many lines"));
    }
    let mut out: Vec<Section> = Vec::new();
    let mut last_defaults = None;
    let mut open: Vec<Branch> = Vec::new();
    let lossy = matches!(text, std::borrow::Cow::Owned(_));
    for l in all {
        let place = at(l.line);
        let id = report.record(place.clone(), l.words.join(" "));
        if l.words[0].starts_with('.') {
            preprocess(&l.words, reader, id, report, &mut open).map_err(|e| Failed::new(&place, e))?;
            continue;
        }
        if !open.iter().all(|b| b.holds) {
            report.same(id, "left out: the condition around it does not hold");
            continue;
        }
        for name in &l.unset {
            report.decide(id, format!("the environment variable {name} is not set here: run the import on the machine where this variable is set"));
        }
        for byte in &l.bytes {
            report.decide(id, format!("the byte {byte} is not an ASCII character, and the import does not translate it: write the setting by hand"));
        }
        if lossy && l.words.iter().any(|w| w.contains(char::REPLACEMENT_CHARACTER)) {
            report.decide(id, NOT_UTF8);
        }
        let kind = l.words[0].as_str();
        if SECTIONS.contains(&kind) {
            let from = l.words.iter().position(|w| w == "from").and_then(|i| l.words.get(i + 1));
            let name = l.words.get(1).filter(|w| *w != "from").cloned().unwrap_or_default();
            let defaults = match from {
                Some(from) => {
                    let found = out.iter().rposition(|s| s.kind == "defaults" && s.name == *from);
                    if found.is_none() {
                        report.decide(id, format!("there is no \"defaults {from}\" before it"));
                    }
                    found
                }
                // `defaults` inherit from others only where they say so.
                None if kind == "defaults" => None,
                None => last_defaults,
            };
            if kind == "defaults" {
                last_defaults = Some(out.len());
            }
            out.push(Section { id, place, kind: kind.to_owned(), name, defaults, lines: Vec::new() });
            continue;
        }
        match out.last_mut() {
            Some(section) => section.lines.push(Line { id, section: section.id, place, words: l.words }),
            None => return Err(Failed::new(&place, format!("\"{}\" stands before any section", kind.escape_debug()))),
        }
    }
    match open.is_empty() {
        true => Ok(out),
        false => Err(Failed::new(&at(1), "an \".if\" has no \".endif\"")),
    }
}

/// An `.if` that is open.
struct Branch {
    /// The lines here count.
    holds: bool,
    /// One of its branches has counted.
    done: bool,
}

/// Deepest nesting of `.if`.
const MAX_NESTED: usize = 64;

/// `.if` and the like.
fn preprocess(
    words: &[String],
    reader: &dyn Reader,
    id: Id,
    report: &mut Report,
    open: &mut Vec<Branch>,
) -> Result<(), &'static str> {
    const NOT_OPEN: &str = "there is no \".if\" before it";
    let outer = open.len().checked_sub(1).is_none_or(|n| open[..n].iter().all(|b| b.holds));
    let asked = |report: &mut Report| {
        let found = conditions::holds(&words[1..].join(" "), reader);
        match found {
            Some(_) => report.same(id, "decided here"),
            None => report.decide(
                id,
                "this condition depends on HAProxy's version or build. The import assumes that it is true: remove the settings that do not apply",
            ),
        }
        found.unwrap_or(true)
    };
    match words[0].as_str() {
        ".if" => {
            if open.len() >= MAX_NESTED {
                return Err("conditions are nested too deeply");
            }
            let counts = open.iter().all(|b| b.holds);
            if !counts {
                report.same(id, "left out: the condition around it does not hold");
            }
            let holds = counts && asked(report);
            open.push(Branch { holds, done: holds });
        }
        ".elif" => {
            let last = open.last_mut().ok_or(NOT_OPEN)?;
            if last.done || !outer {
                report.same(id, "left out: another branch applies");
            }
            last.holds = !last.done && outer && asked(report);
            last.done |= last.holds;
        }
        ".else" => {
            let last = open.last_mut().ok_or(NOT_OPEN)?;
            report.same(id, "decided here");
            last.holds = !last.done && outer;
            last.done = true;
        }
        ".endif" => {
            open.pop().ok_or(NOT_OPEN)?;
            report.same(id, "decided here");
        }
        ".notice" | ".warning" | ".diag" => report.same(id, "HAProxy only prints a message"),
        ".alert" if !open.iter().all(|b| b.holds) => report.same(id, "left out: the condition around it does not hold"),
        _ => report.decide(id, "HAProxy refuses to start because of this line, or the import does not know the line"),
    }
    Ok(())
}

/// A section with what it inherits.
pub(super) struct Proxy<'s> {
    pub section: &'s Section,
    /// The lines of its `defaults`, those of their `defaults` first.
    inherited: Vec<&'s Line>,
}

impl<'s> Proxy<'s> {
    pub fn new(section: &'s Section, all: &'s [Section]) -> Self {
        let mut chain = Vec::new();
        let mut next = section.defaults;
        while let Some(index) = next {
            chain.push(&all[index]);
            // A `defaults` inherits from one before it, so this ends.
            next = all[index].defaults.filter(|n| *n < index);
        }
        let inherited = chain.iter().rev().flat_map(|s| &s.lines).collect();
        Self { section, inherited }
    }

    /// The section's own lines.
    pub fn own(&self) -> impl Iterator<Item = &'s Line> + use<'s> {
        self.section.lines.iter()
    }

    /// All lines, inherited ones first.
    pub fn all(&self) -> impl Iterator<Item = &'s Line> + '_ {
        self.inherited.iter().copied().chain(self.own())
    }

    /// The last line that begins with these words.
    pub fn last(&self, words: &[&str]) -> Option<&'s Line> {
        self.own().filter(|l| l.is(words)).last().or_else(|| self.inherited.iter().rev().copied().find(|l| l.is(words)))
    }

    /// An option that is on: `no option` and `option … ` count in their order.
    pub fn option(&self, name: &str) -> Option<&'s Line> {
        let found = self.all().filter(|l| l.is(&["option", name]) || l.is(&["no", "option", name])).last();
        found.filter(|l| l.word(0) != "no")
    }

    /// The line that switches it off.
    pub fn disabled(&self) -> Option<&'s Line> {
        self.all().filter(|l| matches!(l.word(0), "disabled" | "enabled")).last().filter(|l| l.word(0) == "disabled")
    }

    /// `tcp` or `http`.
    pub fn is_tcp(&self) -> bool {
        self.last(&["mode"]).is_none_or(|l| l.word(1) != "http")
    }
}
