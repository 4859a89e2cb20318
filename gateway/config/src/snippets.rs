//! Named snippets: settings that several tables have in common.
//!
//! `use` of a table names tables of `[snippet]`. Their settings are put into the table before it is read, so that every setting means
//! and is checked what it would be if it stood there. What the table says itself comes first, then the last of its snippets. A setting
//! is taken as a whole: lists and tables are not joined.

use super::decode::{self, Node, Section};
use super::diagnostics::Sink;
use super::settings::{top, upstream_uses, uses};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// A table of `[snippet]`.
struct Snippet<'d> {
    settings: DeTable<'d>,
    span: Range<usize>,
}

/// Puts the settings of snippets into the tables that use them, and removes `[snippet]` and `use`.
pub(super) fn apply(sink: &Sink, document: &mut DeTable<'_>) {
    let snippets = document.remove(top::snippet.key).map_or_else(BTreeMap::new, |node| read(sink, &node));
    let mut used = BTreeSet::new();
    for key in [top::listener.key, top::host.key, top::upstream.key] {
        each(document, key, &mut |table, span| {
            extend(sink, table, &span, &snippets, &mut used);
            each(table, super::settings::host::route.key, &mut |route, span| {
                extend(sink, route, &span, &snippets, &mut used);
            });
        });
    }
    let is_unused = |name: &String| !used.contains(name) && !sink.may_have(top::snippet.key);
    for (name, snippet) in snippets.iter().filter(|(name, _)| is_unused(name)) {
        sink.warn(&snippet.span, format!("no table uses the snippet \"{name}\""), None);
    }
}

/// The tables of `[snippet]`, by name.
fn read<'d>(sink: &Sink, node: &Node<'d>) -> BTreeMap<String, Snippet<'d>> {
    let mut out = BTreeMap::new();
    let DeValue::Table(table) = node.get_ref() else {
        let help = "write [snippet.NAME] with settings of hosts, routes, listeners or upstreams".to_owned();
        decode::wrong_type(sink, top::snippet.key, node, "a table of snippets", help);
        return out;
    };
    for (name, value) in table.iter() {
        let DeValue::Table(settings) = value.get_ref() else {
            let help = format!("write [snippet.{}] on a line, and its settings on the lines below", name.get_ref());
            decode::wrong_type(sink, &format!("snippet.{}", name.get_ref()), value, "a table", help);
            continue;
        };
        if let Some((key, _)) = settings.get_key_value(uses::r#use.key) {
            let help = "write the names of both snippets where they are used".to_owned();
            sink.error(&key.span(), "a snippet cannot use another snippet", Some(help));
        }
        out.insert(name.get_ref().to_string(), Snippet { settings: settings.clone(), span: name.span() });
    }
    out
}

/// Visits the tables of an array of tables; a single table counts as an array of one.
fn each<'d>(table: &mut DeTable<'d>, key: &str, visit: &mut dyn FnMut(&mut DeTable<'d>, Range<usize>)) {
    let Some(node) = table.get_mut(key) else { return };
    let span = node.span();
    match node.get_mut() {
        DeValue::Array(nodes) => {
            for node in nodes.iter_mut() {
                let span = node.span();
                if let DeValue::Table(table) = node.get_mut() {
                    visit(table, span);
                }
            }
        }
        DeValue::Table(table) => visit(table, span),
        _ => {}
    }
}

/// Puts the settings of the snippets that a table names into it, as far as it does not have them. `span`: where the table is.
fn extend<'d>(
    sink: &Sink,
    table: &mut DeTable<'d>,
    span: &Range<usize>,
    snippets: &BTreeMap<String, Snippet<'d>>,
    used: &mut BTreeSet<String>,
) {
    let Some(node) = table.remove(uses::r#use.key) else { return };
    let names = decode::strings(sink, uses::r#use.key, &node).unwrap_or_default();
    if sink.is_deferred(&node.span()) {
        // What the table lacks, it may have from a snippet.
        sink.defer(span);
        sink.has_unknown(top::snippet.key);
    }
    for name in names.iter().rev() {
        let Some(snippet) = snippets.get(&name.value) else {
            let known = || snippets.keys().map(String::as_str);
            let help = match decode::nearest(&name.value, known()) {
                Some(best) => format!("did you mean \"{best}\"?"),
                None if snippets.is_empty() => format!("add [snippet.{}]", name.value),
                None => format!("snippets are {}", decode::listed(known())),
            };
            sink.error(&name.span, format!("there is no snippet \"{}\"", name.value), Some(help));
            continue;
        };
        used.insert(name.value.clone());
        for (key, value) in snippet.settings.iter().filter(|(key, _)| **key.get_ref() != *uses::r#use.key) {
            if !table.contains_key(&**key.get_ref()) {
                sink.borrows(&key.span(), &name.value, &name.span);
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Notes that `use` of a table is no unknown setting. It has been read before all tables, and is gone.
pub(super) fn note(section: &Section) {
    // Upstreams declare it with an example of their own.
    for r#use in [&uses::r#use, &upstream_uses::r#use] {
        let _ = section.optional(r#use);
    }
}

/// What stands in `[snippet]`: read before all tables.
pub(super) fn declared(sink: &Sink, _: &str, node: &Node) -> Option<()> {
    read(sink, node);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::Document;
    use super::super::diagnostics::Source;
    use super::*;
    use std::path::{Path, PathBuf};

    /// The document without snippets, and what is said of it.
    fn applied(text: &str) -> (toml::Table, Vec<String>) {
        let sink = Sink::new(Source::new("f".into(), text), PathBuf::new(), None, None);
        let (mut table, errors) = DeTable::parse_recoverable(text);
        assert!(errors.is_empty(), "{text}");
        apply(&sink, table.get_mut());
        let values = serde::Deserialize::deserialize(toml::de::Deserializer::from(table)).unwrap();
        let (errors, warnings) = sink.finish();
        (values, errors.into_iter().chain(warnings).map(|d| format!("{}: {}", d.line, d.message)).collect())
    }

    #[test]
    fn the_nearest_setting_wins_as_a_whole() {
        let text = r#"
[snippet.one]
hsts = "1d"
rate_limit = ["a", "b"]
request_headers = { set = { A = "1" } }
[snippet.two]
hsts = "2d"
rate_limit = ["c"]
[[host]]
names = ["*"]
use = ["one", "two"]
request_headers = { set = { B = "1" } }
[[host.route]]
path = "/"
use = "one"
hsts = "3d"
"#;
        let wanted = r#"
[[host]]
names = ["*"]
hsts = "2d"
rate_limit = ["c"]
request_headers = { set = { B = "1" } }
[[host.route]]
path = "/"
hsts = "3d"
rate_limit = ["a", "b"]
request_headers = { set = { A = "1" } }
"#;
        assert_eq!(applied(text), (wanted.parse().unwrap(), Vec::new()));
        assert_eq!(applied(wanted), (wanted.parse().unwrap(), Vec::new()), "without snippets nothing changes");
    }

    #[test]
    fn a_setting_of_another_table_is_named_with_its_snippet() {
        let text = "[snippet.slow]\nfirst_byte_timeout = \"5m\"\nhst = true\n[[listener]]\naddress = \":80\"\n[[host]]\nnames = [\"*\"]\n\
                    to = \"127.0.0.1:1\"\nuse = \"slow\"\n[[upstream]]\nname = \"u\"\nservers = \"127.0.0.1:1\"\nuse = \"slow\"\n";
        let errors = Document::of_file(Path::new("f.toml"), text.as_bytes()).unwrap().read_offline().unwrap_err();
        let report = errors.to_string();
        for wanted in [
            "\"first_byte_timeout\" in [snippet.slow] is not a setting of [[host]] (used at line 9)",
            "help: it is a setting of [[upstream]]",
            "\"hst\" in [snippet.slow] is not a setting of [[host]] (used at line 9)",
            "help: did you mean \"hsts\"?",
            "\"hst\" in [snippet.slow] is not a setting of [[upstream]] (used at line 13)",
        ] {
            assert!(report.contains(wanted), "{wanted}\n{report}");
        }
        assert_eq!(errors.errors.len(), 3, "{report}");
    }

    #[test]
    fn mistakes_are_named_where_they_stand() {
        for (text, told) in [
            ("[[host]]\nuse = \"x\"\n", "2: there is no snippet \"x\""),
            ("[snippet.x]\nhsts = true\n", "1: no table uses the snippet \"x\""),
            ("[snippet]\nx = 1\n", "2: \"snippet.x\" must be a table, but its value here is a number"),
            ("snippet = 1\n", "1: \"snippet\" must be a table of snippets, but its value here is a number"),
            ("[[listener]]\nuse = \"x\"\n[snippet.x]\nuse = \"y\"\n", "4: a snippet cannot use another snippet"),
            ("[[upstream]]\nuse = 5\n", "2: "),
        ] {
            let (_, messages) = applied(text);
            assert!(messages.len() == 1 && messages[0].starts_with(told), "{text} {messages:?}");
        }
    }
}
