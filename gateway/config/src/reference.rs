//! The reference of all settings, `docs/reference/configuration.md`, made from their declarations, and the list of all files
//! that are.

use super::settings::{Declared, Fallback, Shape, Table, Time, one_line, range_of_time, top};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// More words than these are named in the description instead of the column of types.
const FEW: usize = 6;

/// Every file that is generated from the declarations, with its path from the repository's root. `pages`: the paths of the
/// pages that links may lead to, from the folder `docs`.
pub fn generated(pages: &[PathBuf]) -> Result<[(&'static str, String); 3], String> {
    Ok([
        ("docs/reference/configuration.md", reference(pages)?),
        ("docs/reference/sealane.schema.json", super::schema()),
        ("docs/reference/sealane.example.toml", super::example()),
    ])
}

/// The reference in Markdown. Links lead to the pages in the folder `docs`, by their names; a link to a page that does not
/// exist is an error.
fn reference(pages: &[PathBuf]) -> Result<String, String> {
    let mut out = include_str!("reference.md").to_owned();
    out += "\n## Top level\n\n";
    table(&mut out, &top::TABLE, "", 2);
    link(&out, pages)
}

/// A table's introduction and settings, then the tables in it. `path` is the table's own, as in a heading.
fn table(out: &mut String, of: &'static Table, path: &str, level: usize) {
    let intro = lines(of.doc);
    if !intro.is_empty() {
        *out += &(intro + "\n\n");
    }
    *out += "| setting | type | default | |\n|---|---|---|---|\n";
    for setting in of.all() {
        *out += &row(setting);
    }
    if !of.notes.is_empty() {
        *out += &format!("\n{}\n", of.notes);
    }
    for setting in of.all() {
        let (inner, list) = match setting.kind.shape() {
            Shape::Table(inner) => (inner, false),
            Shape::Tables(inner) | Shape::TablesOr(inner, _) => (inner, true),
            Shape::List(items) => match *items {
                Shape::Either(kinds) if setting.key == "servers" => match kinds.into_iter().find_map(only_table) {
                    Some(inner) => (inner, true),
                    None => continue,
                },
                _ => continue,
            },
            Shape::Either(kinds) => match kinds.into_iter().find_map(only_table) {
                Some(inner) => (inner, false),
                None => continue,
            },
            _ => continue,
        };
        let inner_path = if path.is_empty() { setting.key.to_owned() } else { format!("{path}.{}", setting.key) };
        // What a host and its routes have in common is described once.
        let is_common = path == "host.route" && super::settings::host::TABLE.all().any(|s| s.key == setting.key);
        if is_common || (path == "host" && setting.key == "response_headers") {
            continue;
        }
        let heading = match (path, setting.key) {
            ("host", "request_headers") => "`request_headers` and `response_headers`".to_owned(),
            ("host", key) if !matches!(key, "route" | "error_page") => format!("`{key}`"),
            ("host.route", key) => format!("`{key}` of a route"),
            ("upstream", "servers") => "`servers` as tables".to_owned(),
            _ if list => format!("`[[{inner_path}]]`"),
            _ => format!("`[{inner_path}]`"),
        };
        // Writing to a string cannot fail.
        let _ = write!(out, "\n{} {heading}\n\n", "#".repeat(level));
        table(out, inner, &inner_path, 3);
    }
}

fn only_table(shape: Shape) -> Option<&'static Table> {
    match shape {
        Shape::Table(table) => Some(table),
        _ => None,
    }
}

/// Lines of a documentation comment, without the space that each begins with.
fn lines(doc: &[&str]) -> String {
    let lines: Vec<&str> = doc.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.join("\n")
}

fn row(setting: &Declared) -> String {
    let shape = setting.kind.shape();
    let default = match setting.about.default {
        Fallback::Required => "must be set".to_owned(),
        Fallback::Value("{}") => "its defaults".to_owned(),
        Fallback::Value(value) => format!("`{}`", one_line(value)),
        Fallback::Described(words) => words.to_owned(),
    };
    let mut doc = setting.about.doc();
    if let Some(words) = many_words(&shape) {
        doc += &format!(" Possible values: {}.", quoted(&words));
    }
    format!("| `{}` | {} | {default} | {doc} |\n", setting.key, kind(&shape))
}

fn many_words(shape: &Shape) -> Option<Vec<&'static str>> {
    match shape {
        Shape::List(item) => many_words(item),
        Shape::Choice(words) if words.len() > FEW => Some(words.clone()),
        _ => None,
    }
}

fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
    quoted.join(", ")
}

/// A type in words.
fn kind(shape: &Shape) -> String {
    match shape {
        Shape::Flag => "boolean".to_owned(),
        Shape::Count(range) => format!("number, {}", numbers(range, |n| n.to_string())),
        Shape::Size(range) => format!("size, {}", numbers(range, bytes)),
        Shape::Time(range) if range.start() == Time::ANY.0.start() && *range.end() == Time::LONGEST => {
            "duration".to_owned()
        }
        Shape::Time(range) if *range == Time::TIMEOUT.0 => "duration, not zero".to_owned(),
        Shape::Time(range) => format!("duration, {}", range_of_time(range)),
        Shape::Text(_) => "string".to_owned(),
        Shape::Path => "path".to_owned(),
        Shape::Choice(words) if words.len() > FEW => "word".to_owned(),
        Shape::Choice(words) => quoted(words),
        Shape::List(item) => match &**item {
            Shape::Choice(words) if words.len() > FEW => "list of words".to_owned(),
            Shape::Choice(words) => format!("list of {}", quoted(words)),
            Shape::Either(kinds) if kinds.iter().any(|kind| matches!(kind, Shape::Table(_))) => {
                "list of strings or tables".to_owned()
            }
            Shape::Either(_) => "list of numbers and strings".to_owned(),
            _ => "list of strings".to_owned(),
        },
        Shape::Either(kinds) => kinds.iter().map(kind).collect::<Vec<_>>().join("; "),
        Shape::Map(_) | Shape::Table(_) | Shape::Settings => "table".to_owned(),
        Shape::Tables(_) => "list of tables".to_owned(),
        Shape::TablesOr(_, word) => format!("list of tables, or `\"{word}\"`"),
    }
}

fn numbers(range: &RangeInclusive<u64>, show: impl Fn(u64) -> String) -> String {
    match *range.end() >= i64::MAX as u64 {
        true => format!("at least {}", show(*range.start())),
        false => format!("{} to {}", show(*range.start()), show(*range.end())),
    }
}

/// A number of bytes in its largest whole unit.
fn bytes(n: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| n > 0 && n.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", n / unit),
        None => n.to_string(),
    }
}

/// Puts the paths of pages in the place of their names: `page:routing#rules` may become `../explanation/routing.md#rules`.
fn link(text: &str, pages: &[PathBuf]) -> Result<String, String> {
    const MARK: &str = "](page:";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(MARK) {
        let (before, target) = (&rest[..at], &rest[at + MARK.len()..]);
        let end = target.find(')').ok_or("a link without an end")?;
        let (page, anchor) = target[..end].split_once('#').map_or((&target[..end], None), |(p, a)| (p, Some(a)));
        let relative = find(pages, &format!("{page}.md")).ok_or_else(|| format!("docs has no page {page}.md"))?;
        let relative = match relative.strip_prefix("reference") {
            Ok(beside) => beside.display().to_string(),
            Err(_) => format!("../{}", relative.display()),
        };
        let anchor = anchor.map_or_else(String::new, |anchor| format!("#{anchor}"));
        // Writing to a string cannot fail.
        let _ = write!(out, "{before}]({relative}{anchor})");
        rest = &target[end + 1..];
    }
    Ok(out + rest)
}

/// The page of this name that is the least deep.
fn find<'p>(pages: &'p [PathBuf], name: &str) -> Option<&'p Path> {
    let named = pages.iter().filter(|page| page.file_name().is_some_and(|n| n == name));
    named.min_by_key(|page| (page.components().count(), *page)).map(PathBuf::as_path)
}
