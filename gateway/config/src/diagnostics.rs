//! Errors and warnings of a configuration file, with the place they are about.
//!
//! Everything that reads the file reports into one [`Sink`] and goes on, so that a person sees all the mistakes at
//! once. A [`Diagnostic`] is complete in itself (file, line, column, excerpt), so that it outlives the text.

use super::audit::Policy;
use super::certificates::token::TokenKey;
use super::include::Part;
use super::surroundings::{Answers, Content, Kind, Question, Unreadable};
use super::tunnel::TunnelParts;
use rustls::pki_types::CertificateDer;
use sealane_proxy::recording::Secrets;
use sealane_sys::privileges::User;
use sealane_tls::remote::RemoteKey;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Longest part of a line that is shown; longer lines are cut around the place.
const EXCERPT_WIDTH: usize = 120;

/// Errors that are told of one configuration, and warnings: those that were found first. A person mends these before the others matter,
/// and a configuration that is one mistake throughout costs neither time nor memory.
pub(super) const MOST_TOLD: usize = 50;

/// Further mistakes that are counted.
const MOST_COUNTED: usize = 100_000;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration is taken.
    Warning,
}

/// One thing that is wrong or remarkable, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The file as named by the user; empty for what came from the command line.
    pub file: String,
    /// From 1; 0 when it is about no line.
    pub line: usize,
    /// In characters from 1; 0 when it is about no line.
    pub column: usize,
    /// What is wrong, in one line.
    pub message: String,
    /// What to write instead, or how to repair it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The line with the place underlined; empty when it is about no line.
    #[serde(skip)]
    pub excerpt: String,
    /// How many others it stands for, which are not told; 0: it stands for itself.
    #[serde(skip)]
    pub more: usize,
}

impl Diagnostic {
    /// How many mistakes, or warnings, a list is about.
    pub fn count(all: &[Self]) -> usize {
        all.iter().map(|d| d.more.max(1)).sum()
    }
}

/// Where something stands in a configuration, once its text is gone.
#[derive(Clone, Debug, Default)]
pub struct Place {
    file: String,
    line: usize,
    column: usize,
    excerpt: String,
}

impl Place {
    /// What is to be said of it.
    pub fn diagnostic(&self, severity: Severity, message: String, help: Option<String>) -> Diagnostic {
        let Self { file, line, column, excerpt } = self.clone();
        Diagnostic { severity, file, line, column, message, help, excerpt, more: 0 }
    }

    /// The error with the file and the line in front; a command's arguments have none.
    pub fn locate(&self, error: anyhow::Error) -> anyhow::Error {
        match self.file.is_empty() {
            true => error,
            false => error.context(format!("{}:{}:{}", self.file, self.line, self.column)),
        }
    }
}

/// A [`Diagnostic`] that does not stop the configuration from being used.
pub type Warning = Diagnostic;

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            write!(f, "{}:", self.file)?;
            if self.line > 0 {
                write!(f, "{}:{}:", self.line, self.column)?;
            }
            f.write_str(" ")?;
        }
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}: {}", self.message)?;
        if !self.excerpt.is_empty() {
            write!(f, "\n{}", self.excerpt)?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

/// Why a configuration was refused: every error, and the warnings found on the way. Displays as all of them.
#[derive(Debug)]
pub struct Errors {
    /// At least one, in the order of the file.
    pub errors: Vec<Diagnostic>,
    /// In the order of the file.
    pub warnings: Vec<Warning>,
    /// The files that the configuration names, as far as it could be read: one of them may be what is missing.
    pub files: Vec<PathBuf>,
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.warnings.iter().chain(&self.errors).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{d}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// The text that is read, and where it came from.
pub(super) struct Source<'t> {
    /// As shown; empty for text made from command-line arguments, whose lines mean nothing to the user.
    pub name: String,
    /// The whole text.
    pub text: &'t str,
    /// Offsets of the lines' first bytes, so that ten thousand warnings do not each read the file from its start.
    line_starts: Vec<usize>,
    /// The files of `include`, in the order of their texts.
    parts: &'t [Part],
}

impl<'t> Source<'t> {
    pub fn new(name: String, text: &'t str) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Self { name, text, line_starts, parts: &[] }
    }

    /// The same, with parts that came from other files.
    pub fn with_parts(self, parts: &'t [Part]) -> Self {
        Self { parts, ..self }
    }

    /// The file that an offset is in, as shown.
    pub fn file(&self, offset: usize) -> &str {
        self.part(offset).map_or(&self.name, |part| &part.name)
    }

    /// Line and column in the file, from 1.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.line(offset);
        let start = self.line_starts[line];
        let column = self.text.get(start..offset).map_or(0, |s| s.chars().count());
        let before = self.part(offset).map_or(0, |part| self.line(part.start));
        (line - before + 1, column + 1)
    }

    fn part(&self, offset: usize) -> Option<&'t Part> {
        self.parts[..self.parts.partition_point(|part| part.start <= offset)].last()
    }

    /// The line of the whole text, from 0.
    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&s| s <= offset).max(1) - 1
    }

    fn excerpt(&self, span: &Range<usize>) -> String {
        let (line, column) = self.position(span.start);
        let rest = &self.text[self.line_starts[self.line(span.start)]..];
        let text = rest.lines().next().unwrap_or("");
        let marked = self.text.get(span.clone()).unwrap_or("").lines().next().unwrap_or("").chars().count().max(1);
        let skip = (column - 1).saturating_sub(EXCERPT_WIDTH / 2);
        let mut shown: String =
            text.chars().skip(skip).take(EXCERPT_WIDTH).map(|c| if c.is_control() { ' ' } else { c }).collect();
        shown.truncate(shown.trim_end().len());
        let before = column - 1 - skip;
        let carets = "^".repeat(marked.min(EXCERPT_WIDTH - before));
        let number = line.to_string();
        let margin = " ".repeat(number.len());
        format!("{margin} |\n{number} | {shown}\n{margin} | {}{carets}", " ".repeat(before))
    }
}

/// The name in a heading: `a.b` of ` [a . b] # c`.
fn heading(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix('[')?;
    let name = rest.strip_prefix('[').unwrap_or(rest).split_once(']')?.0;
    Some(name.chars().filter(|c| !c.is_whitespace()).collect())
}

/// What the parser of TOML says, in other words where these say too little, and how to repair the mistake. `is_empty`: there is nothing at
/// the place of the mistake.
fn syntax(message: &str, is_empty: bool) -> (String, Option<String>) {
    let message = message.replace('\n', ", ");
    let (what, expected) = message.split_once(", ").unwrap_or((&message, ""));
    let (says, help) = match (what, expected) {
        ("unexpected leading zero", _) => (
            "a number must not begin with 0",
            "remove the 0; or, if the value is a text, put it in quotes, as in socket_mode = \"0660\"",
        ),
        ("string values must be quoted", _) if is_empty => {
            ("the value is missing", "write it behind the =, as in lanes = 2")
        }
        ("string values must be quoted", _) => (
            "a text must be in quotes",
            "put it in quotes, as in level = \"debug\"; only numbers, true and false have none",
        ),
        ("invalid basic string", "expected `\"`") => ("the closing \" of the text is missing", "add it"),
        ("invalid literal string", "expected `'`") => ("the closing ' of the text is missing", "add it"),
        ("missing escaped value", _) => (
            "in double quotes, \"\\\" begins an escape sequence, and this is not one",
            "write the text in single quotes, in which \"\\\" has no special meaning, as in path_regex = '^/users/\\d+$'",
        ),
        _ => return (message, None),
    };
    (says.to_owned(), Some(help.to_owned()))
}

/// Collects what is found while a configuration is read.
pub(super) struct Sink<'t> {
    pub source: Source<'t>,
    /// The folder that relative paths are from.
    pub base: PathBuf,
    /// What is known of the machine. `None`: nothing, and nothing is asked (`sealane check --offline`).
    answers: Option<&'t Answers>,
    /// What the machine has to be asked before the configuration is complete.
    questions: RefCell<BTreeSet<Question>>,
    /// What reads the files of `[tunnel]`.
    pub tunnel: Option<TunnelParts>,
    /// The policy that the configuration is audited by.
    pub policy: Option<Policy>,
    /// The setting that is being read, and a value of it, for the help of a value of another type.
    pub example: Cell<Option<(&'static str, &'static str)>>,
    found: RefCell<Found>,
    /// Files that the configuration names to be read: there may be two for each of 10,000 certificates.
    files: RefCell<HashSet<PathBuf>>,
    /// Values that no message may have.
    masked: RefCell<Vec<Zeroizing<String>>>,
    /// Headers whose values the configuration sets, adds or compares.
    secret_names: RefCell<BTreeSet<String>>,
    /// Settings that tables have from snippets.
    borrowed: RefCell<Vec<Borrowed>>,
    /// Values that are not known: where they begin and end.
    deferred: RefCell<BTreeMap<usize, usize>>,
    /// Kinds of tables, of some of which the name or the address is not known.
    unknown: RefCell<BTreeSet<&'static str>>,
    /// Variables of the environment are replaced, also where the machine is not asked.
    pub replaces_variables: bool,
}

/// What has been found of one severity.
#[derive(Default)]
struct Told {
    /// Where it stands, and what there is to tell.
    told: Vec<(usize, Diagnostic)>,
    /// The places of further ones.
    more: HashSet<usize>,
}

impl Told {
    fn is_full(&self) -> bool {
        self.told.len() >= MOST_TOLD
    }

    fn count(&mut self, offset: usize) {
        if self.more.len() < MOST_COUNTED {
            self.more.insert(offset);
        }
    }

    /// Tells one more. What is found again for another listener is the same mistake.
    fn tell(&mut self, offset: usize, told: Diagnostic) {
        if self.told.iter().any(|(other, d)| *other == offset && d.message == told.message) {
            return;
        }
        match self.is_full() {
            true => self.count(offset),
            false => self.told.push((offset, told)),
        }
    }

    /// In the order of the file; the last one stands for those that are not told.
    fn finish(mut self, file: &str, severity: Severity) -> Vec<Diagnostic> {
        self.told.sort_by_key(|(offset, _)| *offset);
        let mut all: Vec<Diagnostic> = self.told.into_iter().map(|(_, d)| d).collect();
        let more = self.more.len();
        if more > 0 {
            let what = match severity {
                Severity::Error => "errors",
                Severity::Warning => "warnings",
            };
            let are = if more == 1 { "is" } else { "are" };
            let least = if more < MOST_COUNTED { "" } else { "at least " };
            let message = format!("only the first {MOST_TOLD} {what} are shown; there {are} {least}{more} more");
            let (file, excerpt) = (file.to_owned(), String::new());
            all.push(Diagnostic { severity, file, line: 0, column: 0, message, help: None, excerpt, more });
        }
        all
    }
}

/// What has been found.
#[derive(Default)]
struct Found {
    errors: Told,
    warnings: Told,
}

impl Found {
    fn of(&mut self, severity: Severity) -> &mut Told {
        match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        }
    }
}

/// A setting that a table has from a snippet.
struct Borrowed {
    /// Where its name stands, in the snippet.
    key: Range<usize>,
    snippet: String,
    /// Where the snippet is used.
    used: Range<usize>,
}

impl<'t> Sink<'t> {
    pub fn new(source: Source<'t>, base: PathBuf, answers: Option<&'t Answers>, tunnel: Option<TunnelParts>) -> Self {
        Self {
            source,
            base,
            answers,
            questions: RefCell::default(),
            tunnel,
            policy: None,
            example: Cell::new(None),
            found: RefCell::default(),
            files: RefCell::default(),
            masked: RefCell::default(),
            secret_names: RefCell::default(),
            borrowed: RefCell::default(),
            deferred: RefCell::default(),
            unknown: RefCell::default(),
            replaces_variables: answers.is_some(),
        }
    }

    /// Collects what is found in something else than the text, with the same knowledge of the machine.
    pub fn aside(&self) -> Sink<'t> {
        Sink::new(Source::new(String::new(), ""), self.base.clone(), self.answers, None)
    }

    /// Whether the machine is not asked: what only it knows is taken to be as it should.
    pub fn offline(&self) -> bool {
        self.answers.is_none()
    }

    /// The questions without an answer. While there is one, what else has been found means nothing.
    pub fn questions(&self) -> BTreeSet<Question> {
        self.questions.borrow().clone()
    }

    /// The answer to a question; `None` while there is none, or offline.
    fn ask<T>(&self, question: impl FnOnce() -> Question, find: impl FnOnce(&'t Answers) -> Option<T>) -> Option<T> {
        let found = find(self.answers?);
        if found.is_none() {
            self.questions.borrow_mut().insert(question());
        }
        found
    }

    /// The content of a file.
    pub fn content(&self, path: &Path) -> Option<&'t Result<Content, Unreadable>> {
        self.ask(|| Question::Content(path.into()), |answers| answers.contents.get(path))
    }

    /// A private key in a token.
    pub fn token_key(&self, key: &TokenKey) -> Option<&'t Result<Arc<dyn RemoteKey>, Unreadable>> {
        self.ask(|| Question::TokenKey(Box::new(key.clone())), |answers| answers.token_keys.get(key))
    }

    /// What is at a path.
    pub fn kind(&self, path: &Path) -> Option<Kind> {
        self.ask(|| Question::Kind(path.into()), |answers| answers.kinds.get(path).copied())
    }

    /// The user of this name, if there is one.
    pub fn user(&self, name: &str) -> Option<&'t Option<User>> {
        self.ask(|| Question::User(name.into()), |answers| answers.users.get(name))
    }

    /// The number of the group of this name, if there is one.
    pub fn group(&self, name: &str) -> Option<Option<u32>> {
        self.ask(|| Question::Group(name.into()), |answers| answers.groups.get(name).copied())
    }

    /// The certificates that the system trusts.
    pub fn trusted_roots(&self) -> Option<&'t [CertificateDer<'static>]> {
        self.ask(|| Question::TrustedRoots, |answers| answers.trusted_roots.as_deref())
    }

    /// The same to check the certificate of `server`. It is an error if there are none: `setting` is the one that names others. Empty
    /// offline, and as long as the question is not answered.
    pub fn system_roots(
        &self,
        span: &Range<usize>,
        server: &str,
        setting: &str,
    ) -> Option<Vec<CertificateDer<'static>>> {
        let roots = self.trusted_roots().map(<[_]>::to_vec);
        if roots.as_ref().is_some_and(Vec::is_empty) && !self.offline() {
            let help = format!("install the package ca-certificates, or set {setting}");
            let message = format!("this system has no trusted CAs, so the gateway cannot check {server}");
            self.error(span, message, Some(help));
            return None;
        }
        Some(roots.unwrap_or_default())
    }

    /// Whether the system has IPv6; it is taken to have it offline.
    pub fn ipv6(&self) -> bool {
        self.ask(|| Question::Ipv6, |answers| answers.ipv6).unwrap_or(true)
    }

    /// Notes a file that is read for the configuration.
    pub fn names_file(&self, path: &Path) {
        self.files.borrow_mut().insert(path.to_path_buf());
    }

    /// The files noted so far, in no order.
    pub fn files(&self) -> Vec<PathBuf> {
        self.files.borrow().iter().cloned().collect()
    }

    /// A value that came from elsewhere and may be a secret: messages have `***` in its place, if it is at least so long.
    pub fn mask(&self, value: &str, shortest: usize) {
        if value.len() >= shortest {
            self.masked.borrow_mut().push(Zeroizing::new(value.to_owned()));
        }
    }

    /// Notes the names of headers whose values are secret.
    pub fn keep_secret(&self, names: impl Iterator<Item = String>) {
        self.secret_names.borrow_mut().extend(names);
    }

    /// What no recording may show: values of those headers, and values from elsewhere.
    pub fn secrets(&self) -> Secrets {
        Secrets::new(self.secret_names.borrow().iter().cloned(), self.masked.borrow().iter().cloned())
    }

    /// Notes that a value is not known (it is a reference that is not replaced, or has one): nothing is reported of it from now on, nor
    /// of a list or an inline table that it is in.
    pub fn defer(&self, span: &Range<usize>) {
        self.deferred.borrow_mut().insert(span.start, span.end);
    }

    /// Whether a value is not known, or has a part that is not.
    pub fn is_deferred(&self, span: &Range<usize>) -> bool {
        let deferred = self.deferred.borrow();
        // They do not overlap: the last one that begins here or before, and those that begin in the span.
        let around = deferred.range(..=span.start).next_back().is_some_and(|(_, end)| *end >= span.end);
        around || deferred.range(span.clone()).any(|(_, end)| *end <= span.end)
    }

    /// Notes that the names of some tables of this kind are not known: a reference to one may be right.
    pub fn has_unknown(&self, kind: &'static str) {
        self.unknown.borrow_mut().insert(kind);
    }

    /// Whether there may be a table of this kind with any name.
    pub fn may_have(&self, kind: &str) -> bool {
        self.unknown.borrow().contains(kind)
    }

    /// Notes that a table has a setting from a snippet.
    pub fn borrows(&self, key: &Range<usize>, snippet: &str, used: &Range<usize>) {
        let borrowed = Borrowed { key: key.clone(), snippet: snippet.to_owned(), used: used.clone() };
        self.borrowed.borrow_mut().push(borrowed);
    }

    /// The snippet that a setting is from, and where the table that begins at `table` uses it.
    pub fn snippet_of(&self, key: &Range<usize>, table: usize) -> Option<(String, Range<usize>)> {
        let borrowed = self.borrowed.borrow();
        let uses = borrowed.iter().filter(|b| b.key == *key);
        // The first use behind the table's beginning is its own.
        let own = uses.min_by_key(|b| (b.used.start < table, b.used.start));
        own.map(|b| (b.snippet.clone(), b.used.clone()))
    }

    /// Reports where a text is no TOML, the first of each line: what follows in it is the parser's guess.
    pub fn syntax_errors(&self, errors: &[toml::de::Error]) {
        let mut lines = HashSet::new();
        for e in errors {
            let span = e.span().unwrap_or(0..0);
            if lines.insert(self.source.line(span.start)) && !self.only_counts(&span) {
                match e.message() {
                    "duplicate key" => {
                        if let Some((message, help)) = self.duplicate(&span, errors) {
                            self.error(&span, message, Some(help));
                        }
                    }
                    message => {
                        let is_empty = self.source.text.get(span.clone()).is_none_or(|text| text.trim().is_empty());
                        let (message, help) = syntax(message, is_empty);
                        self.error(&span, message, help);
                    }
                }
            }
        }
    }

    /// What is said of a name that is there twice. `None`: so is its table, and that is told.
    fn duplicate(&self, span: &Range<usize>, errors: &[toml::de::Error]) -> Option<(String, String)> {
        let text = self.source.text;
        let start = |at: usize| text[..at].rfind('\n').map_or(0, |end| end + 1);
        let line = |at: usize| text[at..].lines().next().unwrap_or_default();
        let here = start(span.start);
        // The lines before, the last one first.
        let before = || {
            let next = move |at: &usize| (*at > 0).then(|| start(*at - 1));
            std::iter::successors(next(&here), next).map(move |at| (at, line(at)))
        };
        let first = |at: usize, what: &str| {
            let at = at + line(at).len() - line(at).trim_start().len();
            format!("{what} is here a second time; the first is at {}", self.place(&(at..at)))
        };
        if let Some(name) = heading(line(here)) {
            let help = format!("move the settings below it to the first [{name}], and remove this heading");
            let found = before().filter(|(_, line)| heading(line).as_ref() == Some(&name)).last();
            let message = found.map(|(at, _)| first(at, &format!("[{name}]")));
            return Some((message.unwrap_or_else(|| format!("[{name}] is here a second time")), help));
        }
        let of_table = before().find(|(_, line)| heading(line).is_some()).map_or(0, |(at, _)| at);
        let table = of_table..of_table + line(of_table).len();
        let is_told = |e: &toml::de::Error| {
            e.message() == "duplicate key" && e.span().is_some_and(|span| table.contains(&span.start))
        };
        if errors.iter().any(is_told) {
            return None;
        }
        let name = &text[span.clone()];
        let key = |line: &str| line.split('=').next().is_some_and(|key| key.trim() == name);
        let found = before().take_while(|(at, _)| *at >= of_table).filter(|(_, line)| key(line)).last();
        let message = found.map(|(at, _)| first(at, &format!("\"{name}\"")));
        let message = message.unwrap_or_else(|| format!("\"{name}\" is here a second time"));
        Some((message, "remove one of the two".to_owned()))
    }

    pub fn error(&self, span: &Range<usize>, message: impl Into<String>, help: Option<String>) {
        self.found(Severity::Error, span, message.into(), help);
    }

    pub fn warn(&self, span: &Range<usize>, message: impl Into<String>, help: Option<String>) {
        self.found(Severity::Warning, span, message.into(), help);
    }

    /// Reports what is about no line.
    pub fn error_of_file(&self, message: String) {
        let Place { file, .. } = self.place_of(&(0..0));
        let (severity, excerpt) = (Severity::Error, String::new());
        let diagnostic = Diagnostic { severity, file, line: 0, column: 0, message, help: None, excerpt, more: 0 };
        self.found.borrow_mut().errors.tell(0, diagnostic);
    }

    /// Where a span is, for what is said of it after the text has been read.
    pub fn place_of(&self, span: &Range<usize>) -> Place {
        let (mut line, mut column, mut excerpt) = (0, 0, String::new());
        if !self.source.name.is_empty() {
            (line, column) = self.source.position(span.start);
            excerpt = self.source.excerpt(span);
        }
        Place { file: self.source.file(span.start).to_owned(), line, column, excerpt }
    }

    /// Where a span is, for a message that refers to it.
    pub fn place(&self, span: &Range<usize>) -> String {
        if self.source.name.is_empty() {
            return "the command line".to_owned();
        }
        let line = self.source.position(span.start).0;
        match self.source.parts {
            [] => format!("line {line}"),
            _ => format!("{}:{line}", self.source.file(span.start)),
        }
    }

    /// Whether an error at this place would only be counted, which this does: what there would be to say need not be found out.
    pub fn only_counts(&self, span: &Range<usize>) -> bool {
        let mut found = self.found.borrow_mut();
        let is_full = found.errors.is_full();
        if is_full {
            found.errors.count(span.start);
        }
        is_full
    }

    fn found(&self, severity: Severity, span: &Range<usize>, message: String, help: Option<String>) {
        if self.is_deferred(span) {
            return;
        }
        let masked =
            |text: String| self.masked.borrow().iter().fold(text, |text, value| text.replace(value.as_str(), "***"));
        let mut found = self.found.borrow_mut();
        let of = found.of(severity);
        if of.is_full() && !of.told.iter().any(|(offset, _)| *offset == span.start) {
            return of.count(span.start);
        }
        let (message, help) = (masked(message), help.map(masked));
        let Place { file, line, column, excerpt } = self.place_of(span);
        let diagnostic = Diagnostic { severity, file, line, column, message, help, excerpt, more: 0 };
        of.tell(span.start, diagnostic);
    }

    /// Errors and warnings, each in the order of the file.
    pub fn finish(self) -> (Vec<Diagnostic>, Vec<Warning>) {
        let Found { errors, warnings } = self.found.into_inner();
        let file = self.source.name;
        (errors.finish(&file, Severity::Error), warnings.finish(&file, Severity::Warning))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let source = Source::new("f".into(), "a = 1\nä = \"öx\"\n");
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(6), (2, 1));
        let x = source.text.find('x').unwrap();
        assert_eq!(source.position(x), (2, 7));
        assert_eq!(source.position(source.text.len()), (3, 1));
    }

    #[test]
    fn the_place_is_underlined() {
        let text = "one = 1\n\ttwo = \"x\"\n";
        let source = Source::new("f".into(), text);
        let at = text.find("two").unwrap();
        assert_eq!(source.excerpt(&(at..at + 3)), "  |\n2 |  two = \"x\"\n  |  ^^^");
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let text = format!("{}here{}", "a".repeat(5000), "b".repeat(5000));
        let source = Source::new("f".into(), &text);
        let excerpt = source.excerpt(&(5000..5004));
        let lines: Vec<&str> = excerpt.lines().collect();
        assert!(lines[1].len() < 130, "{}", lines[1].len());
        assert_eq!(lines[1].find("here"), lines[2].find("^^^^"));
    }

    #[test]
    fn of_many_mistakes_some_are_told_and_the_others_counted() {
        let text = "x\n".repeat(200);
        let sink = Sink::new(Source::new("f".into(), &text), PathBuf::new(), None, None);
        for line in (0..200).rev() {
            // For another listener, it is the same mistake.
            for _ in 0..2 {
                sink.error(&(line * 2..line * 2 + 1), "wrong", None);
            }
            sink.warn(&(0..1), "odd", None);
        }
        assert!(sink.only_counts(&(0..1)));
        let (errors, warnings) = sink.finish();
        assert_eq!((errors.len(), warnings.len()), (MOST_TOLD + 1, 1));
        assert_eq!((errors[0].line, errors[MOST_TOLD - 1].line), (151, 200));
        assert_eq!(errors[MOST_TOLD].to_string(), "f: error: only the first 50 errors are shown; there are 150 more");
        assert_eq!(Diagnostic::count(&errors), 200);
    }

    #[test]
    fn a_place_at_the_very_end_has_an_excerpt() {
        let source = Source::new("f".into(), "a = ");
        assert_eq!(source.excerpt(&(4..4)), "  |\n1 | a =\n  |     ^");
    }
}
