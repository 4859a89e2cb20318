//! `redirects` of a route: a table of exact paths and their targets, in the configuration or in a file.
//!
//! A table whose file changes is read again by itself ([`RedirectTables::replace`]); nothing else of the configuration is.

use super::Config;
use super::decode::{self, At, Node, Section};
use super::diagnostics::{Diagnostic, Errors, Severity, Sink};
use super::files;
use super::paths;
use super::settings::redirects as s;
use super::surroundings::Answers;
use sealane_proxy::redirects::{RedirectTable, TableEntry, TableError};
use sealane_proxy::snapshot::Action;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::DeValue;

/// The most entries of a table.
const MAX_ENTRIES: usize = 500_000;
/// Mistakes in one file that are told one by one.
const MAX_TOLD: usize = 5;

/// The tables of a configuration, in the order in which actions name them.
#[derive(Clone, Debug, Default)]
pub struct RedirectTables {
    /// Each with its file, if it is from one.
    tables: Vec<(Option<PathBuf>, Arc<RedirectTable>)>,
    /// What lanes get.
    compiled: Arc<[Arc<RedirectTable>]>,
}

impl RedirectTables {
    /// The tables as lanes get them.
    pub fn tables(&self) -> &Arc<[Arc<RedirectTable>]> {
        &self.compiled
    }

    /// Puts a table that was read again in the place of those from the same file.
    pub fn replace(&mut self, file: &Path, table: &Arc<RedirectTable>) {
        for (from, old) in &mut self.tables {
            if from.as_deref() == Some(file) {
                *old = table.clone();
            }
        }
        self.compile();
    }

    pub(super) fn compile(&mut self) {
        self.compiled = self.tables.iter().map(|(_, table)| table.clone()).collect();
    }

    fn push(&mut self, file: Option<PathBuf>, table: Arc<RedirectTable>) -> usize {
        self.tables.push((file, table));
        self.tables.len() - 1
    }

    /// The table with this index.
    pub(super) fn get(&self, index: usize) -> Option<&RedirectTable> {
        self.tables.get(index).map(|(_, table)| table.as_ref())
    }

    fn of_file(&self, file: &Path) -> Option<Arc<RedirectTable>> {
        self.tables.iter().find(|(from, _)| from.as_deref() == Some(file)).map(|(_, table)| table.clone())
    }
}

impl Config {
    /// The files with tables of redirects, and whether the tables ignore case.
    pub fn redirect_tables(&self) -> Vec<(PathBuf, bool)> {
        let of_file =
            |(file, table): &(Option<PathBuf>, Arc<RedirectTable>)| Some((file.clone()?, table.ignores_case()));
        let mut files: Vec<(PathBuf, bool)> = self.redirects.tables.iter().filter_map(of_file).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}

/// Reads the table of a route.
pub(super) fn read(section: Section, tables: &mut RedirectTables) -> Option<Action> {
    let sink = section.sink;
    let file = section.optional_at(&s::file);
    let paths = section.optional_at(&s::paths);
    let status = section.optional_at(&s::status);
    let keep_query = section.or(&s::keep_query);
    let ignore_case = section.or(&s::ignore_case);
    if let (Some(_), Some(paths)) = (&file, &paths) {
        let help = "write a route for each of them".to_owned();
        sink.error(&paths.span, "\"paths\" and \"file\" exclude each other", Some(help));
    }
    if section.key_span("file").is_none() && section.key_span("paths").is_none() {
        let help = "add file = \"redirects.txt\", or paths = { \"/old\" = \"/new\" }".to_owned();
        section.missing("\"redirects\" has neither \"file\" nor \"paths\"".to_owned(), help);
    }
    section.finish();
    let status = match &status {
        Some(status) if !paths::is_redirect(status.value) => {
            paths::bad_redirect(sink, status);
            return None;
        }
        Some(status) => status.value,
        None => s::status.default(),
    };
    let table = match (file, paths) {
        (Some(file), _) => {
            let table = match tables.of_file(&file.value) {
                Some(known) if known.ignores_case() != ignore_case => {
                    let help = "write the same ignore_case for every table with this file, or copy the file".to_owned();
                    let message = format!("{} is used with and without \"ignore_case\"", file.value.display());
                    sink.error(&file.span, message, Some(help));
                    known
                }
                Some(known) => known,
                None => Arc::new(of_file(sink, &file, ignore_case)),
            };
            tables.push(Some(file.value), table)
        }
        (None, paths) => {
            let At { value, span } = paths?;
            let table = folded(value, ignore_case).unwrap_or_else(|why| {
                sink.error(&span, why, Some("remove one of them, or remove \"ignore_case\"".to_owned()));
                RedirectTable::default()
            });
            tables.push(None, Arc::new(table))
        }
    };
    Some(Action::RedirectTable { table, status: status as u16, keep_query })
}

/// A table as `ignore_case` says. On failure: what is wrong with it then.
fn folded(table: RedirectTable, ignore_case: bool) -> Result<RedirectTable, String> {
    if ignore_case { table.ignoring_case() } else { Ok(table) }
}

fn of_file(sink: &Sink, file: &At<PathBuf>, ignore_case: bool) -> RedirectTable {
    let empty = || folded(RedirectTable::default(), ignore_case).unwrap_or_default();
    match files::read(sink, "table of redirects", file) {
        Some(bytes) => table(&file.value, bytes, ignore_case).unwrap_or_else(|mistakes| {
            mistakes.into_iter().for_each(|m| sink.error(&file.span, m.message, m.help));
            empty()
        }),
        // It is not read, or not yet, or the error is told.
        None => empty(),
    }
}

/// `paths`: a table of paths and targets.
pub(super) fn paths(sink: &Sink, key: &str, node: &Node) -> Option<RedirectTable> {
    let DeValue::Table(written) = node.get_ref() else {
        let help = format!("write {key} = {{ \"/old\" = \"/new\" }}");
        decode::wrong_type(sink, key, node, "a table of paths", help);
        return None;
    };
    let mut out = RedirectTable::default();
    for (path, target) in written.iter() {
        let Some(text) = decode::text(sink, path.get_ref(), target) else { continue };
        // One that is not known may be any; the path is checked all the same.
        let text = if sink.is_deferred(&target.span()) { "https://example.com/" } else { &text };
        if let Err((message, help)) = enter(&mut out, path.get_ref(), text, None) {
            sink.error(&path.span(), message, help);
        }
    }
    Some(out)
}

/// Adds an entry, or says what is wrong with it.
fn enter(
    table: &mut RedirectTable,
    path: &str,
    target: &str,
    status: Option<u16>,
) -> Result<(), (String, Option<String>)> {
    let shown = |text: &str| text.chars().take(60).collect::<String>();
    if !target.bytes().all(|b| b.is_ascii_graphic()) || target.is_empty() {
        let help = match target {
            "" => "write a URL, or a path of the same host, as in \"/new\"",
            _ => "encode spaces and characters outside ASCII with %, as in \"/caf%C3%A9\"",
        };
        return Err((format!("\"{}\" is not a valid redirect target", shown(target)), Some(help.to_owned())));
    }
    if !(target.starts_with('/') || target.starts_with("http://") || target.starts_with("https://")) {
        let help = format!("write \"https://{0}\", or \"/{0}\" for a path of the same host", shown(target));
        return Err((format!("\"{}\" has neither a scheme nor a path", shown(target)), Some(help)));
    }
    if target == path {
        return Err((format!("\"{}\" is redirected to itself", shown(path)), None));
    }
    match table.insert(path, TableEntry { target: target.into(), status }) {
        Ok(()) => Ok(()),
        Err(TableError::Duplicate) => Err((format!("a second target for \"{}\"", shown(path)), None)),
        Err(TableError::Path) => {
            let help = "write a path that begins with \"/\" and has no query, no \"//\", no \".\" or \"..\", and no characters encoded with %";
            Err((format!("no request has the path \"{}\"", shown(path)), Some(help.to_owned())))
        }
    }
}

/// A mistake in a file.
struct Mistake {
    /// It names the file and the line.
    message: String,
    help: Option<String>,
}

/// Reads a file: on each line a path, a target, and a status if it is not that of the route. Lines that begin with `#` are
/// comments.
fn table(file: &Path, bytes: &[u8], ignore_case: bool) -> Result<RedirectTable, Vec<Mistake>> {
    let shown = file.display();
    let whole = |message: String| vec![Mistake { message, help: None }];
    let text = std::str::from_utf8(bytes)
        .map_err(|e| whole(format!("{shown}: the table is not UTF-8 text at byte {}", e.valid_up_to())))?;
    let mut out = RedirectTable::default();
    let (mut mistakes, mut wrong) = (Vec::new(), 0);
    for (number, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if out.len() >= MAX_ENTRIES {
            return Err(whole(format!("{shown}: the table has more than {MAX_ENTRIES} entries")));
        }
        if let Err((message, help)) = entry(&mut out, line) {
            wrong += 1;
            if wrong <= MAX_TOLD {
                mistakes.push(Mistake { message: format!("{shown}:{}: {message}", number + 1), help });
            }
        }
    }
    if wrong > MAX_TOLD {
        mistakes.push(Mistake { message: format!("{shown}: {} more lines are wrong", wrong - MAX_TOLD), help: None });
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    folded(out, ignore_case).map_err(|why| whole(format!("{shown}: {why}")))
}

fn entry(table: &mut RedirectTable, line: &str) -> Result<(), (String, Option<String>)> {
    let help = || Some("write a path, its target and optionally a status: /old /new 301".to_owned());
    let mut words = line.split_ascii_whitespace();
    let (Some(path), Some(target), status, None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(("this is not a redirect".to_owned(), help()));
    };
    let status = match status.map(str::parse::<u64>) {
        None => None,
        Some(Ok(status)) if paths::is_redirect(status) => Some(status as u16),
        Some(_) => return Err(("this is not a redirect status".to_owned(), help())),
    };
    enter(table, path, target, status)
}

/// Reads a table again, for a gateway that serves. `answers` has the file's content.
pub fn read_redirects_again(file: &Path, ignore_case: bool, answers: &Answers) -> Result<Arc<RedirectTable>, Errors> {
    let error = |message: String, help: Option<String>| Diagnostic {
        severity: Severity::Error,
        file: String::new(),
        line: 0,
        column: 0,
        message,
        help,
        excerpt: String::new(),
        more: 0,
    };
    let read = match answers.contents.get(file) {
        Some(Ok(content)) => table(file, &content.bytes, ignore_case)
            .map_err(|mistakes| mistakes.into_iter().map(|m| error(m.message, m.help)).collect::<Vec<_>>()),
        Some(Err(e)) => {
            let message = format!("cannot read the table of redirects {}: {}", file.display(), e.why);
            Err(vec![error(message, e.help.clone())])
        }
        None => Err(vec![error(format!("{} was not read", file.display()), None)]),
    };
    read.map(Arc::new).map_err(|errors| Errors { errors, warnings: Vec::new(), files: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RedirectTable, Vec<String>> {
        table(Path::new("t"), text.as_bytes(), false).map_err(|all| all.into_iter().map(|m| m.message).collect())
    }

    #[test]
    fn a_line_is_a_redirect() {
        let table = read("# moved\n\n/old /new\r\n/x\thttps://x.example/?a#b 302\n").unwrap();
        assert_eq!(table.len(), 2);
        assert!(read("").unwrap().is_empty());
    }

    #[test]
    fn case_is_ignored_on_request() {
        let read = |text: &str| table(Path::new("t"), text.as_bytes(), true);
        assert!(read("/Jobs /careers\n").is_ok_and(|table| table.contains("/JOBS")));
        let told = read("/a /b\n/A /c\n").err().and_then(|all| all.into_iter().next()).map(|m| m.message);
        assert!(told.as_ref().is_some_and(|told| told.starts_with("t: a second target for ")), "{told:?}");
    }

    #[test]
    fn mistakes_name_their_line() {
        let told = read("/a /b\n/a /c\n/x\nold /new\n/y new\n/z /z\n/w /b 200\n").unwrap_err();
        assert_eq!(
            told,
            [
                "t:2: a second target for \"/a\"",
                "t:3: this is not a redirect",
                "t:4: no request has the path \"old\"",
                "t:5: \"new\" has neither a scheme nor a path",
                "t:6: \"/z\" is redirected to itself",
                "t: 1 more lines are wrong",
            ]
        );
    }
}
