//! `[snippet.NAME]`: settings that several tables have in common are written once, with their origins.

use super::{Route, Settings, Upstream};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Fewest lines that a snippet saves.
const WORTH: usize = 10;
/// From how many upstreams on a setting is one of many.
const OFTEN: usize = 3;
/// Stands for the table in the headings of tables within it.
const TABLE: &str = "\u{1}";

/// Settings that are written together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Part {
    /// What their snippet is called, before its number.
    kind: &'static str,
    /// Their lines.
    text: String,
}

impl Part {
    fn of(kind: &'static str, write: impl FnOnce(&mut String)) -> Option<Self> {
        let mut text = String::new();
        write(&mut text);
        (!text.is_empty()).then_some(Self { kind, text })
    }

    fn write(&self, out: &mut String, table: &str) {
        out.push_str(&self.text.replace(TABLE, table));
    }
}

impl Route {
    /// What other tables may have, too.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let requests = Part::of("request-headers", |out| self.request.write(out, "request_headers"));
        let responses = Part::of("response-headers", |out| self.response.write(out, "response_headers"));
        let pages = Part::of("pages", |out| self.pages.iter().for_each(|page| page.write(out, TABLE)));
        [requests, responses, pages].into_iter().flatten()
    }
}

/// How many upstreams have a setting with this value and origin.
pub(super) type Often = HashMap<String, usize>;

/// Counts the settings of upstreams.
pub(super) fn often(upstreams: &[Upstream]) -> Often {
    let mut out = Often::new();
    for line in upstreams.iter().flat_map(|u| u.settings.lines()) {
        *out.entry(line).or_default() += 1;
    }
    out
}

impl Settings {
    /// Each with its origin, as it is written.
    fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(key, value, origin)| {
            let mut out = String::new();
            super::line(&mut out, &format!("{key} = {value}"), origin.as_ref());
            out
        })
    }
}

impl Upstream {
    /// The settings that many upstreams have.
    pub(super) fn part(&self, often: &Often) -> Option<Part> {
        let is_often = |line: &String| often.get(line).is_some_and(|n| *n >= OFTEN);
        Part::of("upstreams", |out| self.settings.lines().filter(is_often).for_each(|line| out.push_str(&line)))
    }

    /// Writes its settings, or the name of the snippet that has the most common ones, and the others.
    pub(super) fn write_settings(&self, out: &mut String, often: &Often, snippets: &Snippets) {
        let part = self.part(often);
        let name = part.as_ref().and_then(|part| Some((part, snippets.name(part)?)));
        if let Some((_, name)) = &name {
            let _ = writeln!(out, "use = [\"{name}\"]");
        }
        let is_there =
            |line: &String| name.as_ref().is_some_and(|(part, _)| part.text.split_inclusive('\n').any(|l| l == line));
        self.settings.lines().filter(|line| !is_there(line)).for_each(|line| out.push_str(&line));
    }
}

/// The snippets of a configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Snippets {
    /// With their names, in the order in which they are used first.
    all: Vec<(Part, String)>,
}

impl Snippets {
    /// Finds the parts that are worth it. `parts`: those of all tables.
    pub fn of(parts: impl Iterator<Item = Part>) -> Self {
        let mut order: Vec<Part> = Vec::new();
        let mut uses: HashMap<Part, usize> = HashMap::new();
        for part in parts {
            match uses.get_mut(&part) {
                Some(n) => *n += 1,
                None => {
                    order.push(part.clone());
                    uses.insert(part, 1);
                }
            }
        }
        // Each table needs a line for the name, and the snippet a heading.
        let is_worth = |part: &Part| {
            let (n, lines) = (uses.get(part).copied().unwrap_or_default(), part.text.lines().count());
            n.saturating_sub(1) * lines >= WORTH + n + 2
        };
        let mut numbers: HashMap<&'static str, usize> = HashMap::new();
        let mut all = Vec::new();
        for part in order.into_iter().filter(is_worth) {
            let number = numbers.entry(part.kind).or_default();
            *number += 1;
            let name = format!("{}-{number}", part.kind);
            all.push((part, name));
        }
        Self { all }
    }

    fn name(&self, part: &Part) -> Option<&str> {
        self.all.iter().find(|(there, _)| there == part).map(|(_, name)| name.as_str())
    }

    /// Writes the parts of a table: the names of snippets, and the others. What has tables within it comes last.
    pub fn write_parts(
        &self,
        out: &mut String,
        table: &str,
        parts: impl Iterator<Item = Part>,
        between: impl FnOnce(&mut String),
    ) {
        let (named, own): (Vec<Part>, Vec<Part>) = parts.partition(|part| self.name(part).is_some());
        let names: Vec<&str> = named.iter().filter_map(|part| self.name(part)).collect();
        if !names.is_empty() {
            let _ = writeln!(out, "use = {}", super::list(&names));
        }
        let (tables, settings): (Vec<Part>, Vec<Part>) = own.into_iter().partition(|part| part.text.starts_with('\n'));
        settings.iter().for_each(|part| part.write(out, table));
        between(out);
        tables.iter().for_each(|part| part.write(out, table));
    }

    /// Writes all of them.
    pub fn write(&self, out: &mut String) {
        if !self.all.is_empty() {
            out.push_str("\n# Settings that several tables below have in common: their \"use\" names these tables.\n");
        }
        for (at, (part, name)) in self.all.iter().enumerate() {
            if at > 0 && !part.text.starts_with('\n') {
                out.push('\n');
            }
            if !part.text.starts_with('\n') {
                let _ = writeln!(out, "[snippet.{name}]");
            }
            part.write(out, &format!("snippet.{name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Action, Path};
    use crate::report::Place;

    fn route(values: &[&str]) -> Route {
        let mut out = Route::new(Path::Below("/".into()), Action::status(200), &Place::new("x", 1));
        for (line, value) in (1..).zip(values) {
            out.request.set(&format!("X-{value}"), value, &Place::new("x", line));
        }
        out
    }

    #[test]
    fn what_many_tables_have_is_written_once() {
        let (often, once, short) = (route(&["a", "b", "c", "d"]), route(&["e", "f", "g", "h", "i"]), route(&["j"]));
        let all = [&often, &once, &short, &often, &short, &often, &often, &short, &often, &often];
        let snippets = Snippets::of(all.iter().flat_map(|route| route.parts()));
        let mut text = String::new();
        snippets.write(&mut text);
        assert!(text.contains("\n[snippet.request-headers-1]\nrequest_headers.set.X-a = \"a\"  # x:1\n"), "{text}");
        assert!(!text.contains("X-e") && !text.contains("X-j") && !text.contains("-2]"), "{text}");
        let written = |route: &Route| {
            let mut out = String::new();
            snippets.write_parts(&mut out, "host", route.parts(), |out| out.push_str("between\n"));
            out
        };
        assert_eq!(written(&often), "use = [\"request-headers-1\"]\nbetween\n");
        assert_eq!(written(&short), "request_headers.set.X-j = \"j\"  # x:1\nbetween\n");
    }
}
