//! `sealane config example`: a complete configuration with every setting, made from their declarations.

use super::schema::without_links;
use super::settings::{Declared, Fallback, Shape, Table, one_line, top};
use std::fmt::Write;

/// Longest line of the example.
const WIDTH: usize = 110;

/// A complete example with every setting explained.
pub fn example() -> String {
    let mut out = "\
# Sealane's configuration, complete. Put in your certificates and servers, check it with `sealane check -c FILE` (with
# `--offline`: without its certificates and without DNS), serve it with `sealane serve -c FILE`.
#
# To set a setting, remove the \"#\" before it. If the heading of its table also has a \"#\" (\"#[acme]\",
# \"#[[host.route]]\"), remove that \"#\", too: otherwise, the setting belongs to the table above.
# The value of a setting is an example, and only sometimes the default.
# Durations have a unit (\"500ms\", \"5s\", \"2m\", \"12h\"), sizes may have one (\"16KiB\", \"1MiB\"; else bytes).
# Relative paths are from this file's folder. Everything is described in docs/reference/configuration.md.
"
    .to_owned();
    table(&mut out, &top::TABLE, "", false);
    out
}

/// A table's settings, then the tables in it. `commented`: a table around it is not set.
fn table(out: &mut String, of: &'static Table, path: &str, commented: bool) {
    let commented = commented || of.example_is_commented;
    for setting in of.all().filter(|setting| block(setting).is_none()) {
        let Some(value) = shown(setting).map(one_line) else { continue };
        out.push('\n');
        let doc = without_links(&setting.about.doc());
        comment(out, &in_brief(&doc));
        let mark = if setting.about.example_sets_it && !commented { "" } else { "#" };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{mark}{} = {value}", setting.key);
    }
    for setting in of.all() {
        let Some((inner, list)) = block(setting) else { continue };
        let path = if path.is_empty() { setting.key.to_owned() } else { format!("{path}.{}", setting.key) };
        let (open, close) = if list { ("[[", "]]") } else { ("[", "]") };
        let mark = if commented || inner.example_is_commented { "#" } else { "" };
        if level(&path) == 1 {
            let _ = write!(out, "\n# ---- {path} {}\n", "-".repeat(WIDTH.saturating_sub(path.len() + 8)));
        }
        out.push('\n');
        comment(out, &in_brief(&without_links(&setting.about.doc())));
        let _ = writeln!(out, "{mark}{open}{path}{close}");
        table(out, inner, &path, commented);
        if !inner.example.is_empty() {
            let _ = write!(out, "\n{}", inner.example);
        }
    }
}

fn level(path: &str) -> usize {
    path.split('.').count()
}

/// A setting that is a table with a header of its own, and whether it is a list of them. Small tables stand in one line.
fn block(setting: &Declared) -> Option<(&'static Table, bool)> {
    match setting.kind.shape() {
        Shape::Table(table) if table.title.starts_with('[') => Some((table, false)),
        Shape::Tables(table) | Shape::TablesOr(table, _) => Some((table, true)),
        _ => None,
    }
}

/// What the example shows of a setting.
fn shown(setting: &Declared) -> Option<&'static str> {
    match (setting.about.example, setting.about.default) {
        (Some(example), _) | (None, Fallback::Value(example)) => Some(example),
        (None, _) => None,
    }
}

/// The first sentence, and the sentence that says what 0 means: most limits have no effect if they are 0.
fn in_brief(doc: &str) -> String {
    let mut sentences = doc.split_inclusive(". ").map(str::trim_end);
    let mut out = sentences.next().unwrap_or_default().to_owned();
    for sentence in sentences.filter(|sentence| sentence.starts_with("0: ")) {
        out.push(' ');
        out += sentence;
    }
    out
}

/// A comment, in as many lines as it needs.
fn comment(out: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > WIDTH {
            *out += &line;
            out.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line += word;
    }
    *out += &line;
    out.push('\n');
}
