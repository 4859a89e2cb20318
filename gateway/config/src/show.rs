//! `sealane config show`: a configuration with every default filled in and secrets masked.

use super::audit::Policy;
use super::diagnostics::{Sink, Source};
use super::settings::{Declared, Fallback, Secret, Shape, Table, top, uses};
use super::tls::{GROUPS, default_groups};
use super::{Document, Errors, Warning, default_lanes, snippets};
use super::{listener, upstream};
use sealane_tls::policy::Version;
use serde::Deserialize;
use std::fmt::Write;
use toml::de::DeTable;
use toml::{Table as Values, Value};

/// What stands in the place of a secret.
const MASK: &str = "***";
/// How a file is put together: in what takes effect, there is nothing of it.
const WRITTEN: [&str; 3] = [top::include.key, top::snippet.key, uses::r#use.key];

/// A configuration as it takes effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effective {
    pub(super) values: Values,
}

impl Effective {
    /// A document with the defaults filled in. Nothing that the document names is opened. A document with a mistake is
    /// refused, as by `sealane check --offline`.
    pub fn of_document(document: &Document) -> Result<(Self, Vec<Warning>), Errors> {
        let (_, warnings) = document.read_offline()?;
        Ok((Self::of_read(document), warnings))
    }

    /// The same of a document that was read without a mistake.
    pub fn of_read(document: &Document) -> Self {
        // The text has been read as TOML before, the files of `include` with it.
        let (mut table, _) = DeTable::parse_recoverable(&document.text);
        let sink = Sink::new(Source::new(String::new(), &document.text), document.base.clone(), None, None);
        snippets::apply(&sink, table.get_mut());
        let mut values = Values::deserialize(toml::de::Deserializer::from(table)).unwrap_or_default();
        values.remove(top::include.key);
        Self::of(&values)
    }

    pub(super) fn of(written: &Values) -> Self {
        Self { values: filled(&top::TABLE, written) }
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        // A value's printing cannot fail: its keys are strings.
        serde_json::to_string_pretty(&self.values).unwrap_or_default() + "\n"
    }

    /// The same as a value.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::to_value(&self.values).unwrap_or_default()
    }

    /// As TOML. What a setting is that has no constant default stands in a comment.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        print(&mut out, &top::TABLE, &self.values, "");
        out
    }
}

/// A table's settings as written, and the defaults of the others.
fn filled(table: &'static Table, written: &Values) -> Values {
    let mut out = Values::new();
    for setting in table.all() {
        let value = match (written.get(setting.key), setting.about.default) {
            (Some(value), _) => masked(setting, value.clone()),
            (None, _) if relays_datagrams(table, written) && is_of_connections(setting.key) => continue,
            (None, default) => match (computed(table, setting, written), default) {
                (Some(value), _) => value,
                (None, Fallback::Value(text)) if has_effect(setting, written) => {
                    match format!("v = {text}").parse::<Values>() {
                        Ok(mut default) => default.remove("v").unwrap_or(Value::Boolean(false)),
                        Err(_) => continue,
                    }
                }
                (None, _) => continue,
            },
        };
        out.insert(setting.key.to_owned(), within(&setting.kind.shape(), value));
    }
    out
}

/// Whether this is a listener or a group of servers for datagrams.
fn relays_datagrams(table: &Table, written: &Values) -> bool {
    let is_udp = |server: &Value| {
        let url = server.as_str().or_else(|| server.get("url")?.as_str());
        url.is_some_and(|url| url.starts_with("udp://"))
    };
    match table.title {
        "[[listener]]" => written.get("mode").and_then(Value::as_str) == Some("udp"),
        "[[upstream]]" => match written.get("servers") {
            Some(Value::Array(list)) => list.iter().any(is_udp),
            Some(server) => is_udp(server),
            None => false,
        },
        _ => false,
    }
}

/// Whether a setting has no place where datagrams are relayed.
fn is_of_connections(key: &str) -> bool {
    listener::OF_CONNECTIONS.contains(&key) || upstream::OF_REQUESTS.contains(&key)
}

/// Whether the setting that it needs is there, if it needs one.
fn has_effect(setting: &Declared, written: &Values) -> bool {
    setting.about.needs.is_none_or(|(other, wanted)| {
        written.get(other).is_some_and(|value| wanted.is_none_or(|wanted| value.as_str() == Some(wanted)))
    })
}

/// The tables in a value, filled.
fn within(shape: &Shape, value: Value) -> Value {
    match (shape, value) {
        (Shape::Table(table), Value::Table(written)) => Value::Table(filled(table, &written)),
        (Shape::Tables(table) | Shape::TablesOr(table, _), Value::Array(list)) => {
            Value::Array(list.into_iter().map(|value| within(&Shape::Table(table), value)).collect())
        }
        // A single table counts as a list of one.
        (Shape::Tables(table) | Shape::TablesOr(table, _), value @ Value::Table(_)) => {
            Value::Array(vec![within(&Shape::Table(table), value)])
        }
        (Shape::List(item), Value::Array(list)) => {
            Value::Array(list.into_iter().map(|value| within(item, value)).collect())
        }
        (Shape::List(item), value) => within(item, value),
        (Shape::Either(shapes), value @ Value::Table(_)) => {
            match shapes.iter().find(|shape| matches!(shape, Shape::Table(_))) {
                Some(table) => within(table, value),
                None => value,
            }
        }
        (_, value) => value,
    }
}

/// Defaults that follow from other settings or from this machine.
fn computed(table: &Table, setting: &Declared, written: &Values) -> Option<Value> {
    let words = |words: &[&str]| Value::Array(words.iter().map(|word| Value::String((*word).to_owned())).collect());
    let preset = || {
        let named = written.get("preset").and_then(Value::as_str);
        named.and_then(|name| name.to_ascii_lowercase().parse().ok()).unwrap_or(Policy::Intermediate)
    };
    match (table.title, setting.key) {
        ("[[upstream]]", "balance") if written.contains_key("hash_by") => Some(Value::String("hash".to_owned())),
        ("[[upstream]]", "keepalive") if written.contains_key("proxy_protocol") => Some(Value::Integer(0)),
        ("", "lanes") => i64::try_from(default_lanes()).ok().map(Value::Integer),
        (_, "versions") if !preset().allowed().0.contains(&Version::Tls12) => Some(words(&["1.3"])),
        (_, "versions") => Some(words(&["1.3", "1.2"])),
        ("[listener.tls]", "groups") => {
            let (_, allowed, _) = preset().allowed();
            let groups = default_groups(&allowed).into_iter();
            let names = groups.filter_map(|group| GROUPS.iter().find(|(_, known)| *known == group));
            Some(words(&names.map(|(name, _)| *name).collect::<Vec<_>>()))
        }
        (_, "trust_forwarded") => Some(Value::Boolean(written.contains_key("trusted_proxies"))),
        _ => None,
    }
}

/// A value without its secrets.
fn masked(setting: &Declared, value: Value) -> Value {
    match (setting.about.secret, value) {
        (Secret::Values, value) => masked_all(value),
        (Secret::Arguments, Value::Array(list)) => {
            let mut list = list.into_iter();
            let program = list.next();
            Value::Array(program.into_iter().chain(list.map(masked_all)).collect())
        }
        (Secret::Url, Value::String(url)) => masked_where_known(Value::String(masked_url(&url))),
        (Secret::Url, Value::Table(table)) => {
            let each = table.into_iter().map(|(key, value)| (key, masked(setting, value)));
            Value::Table(each.collect())
        }
        (_, value) => masked_where_known(value),
    }
}

/// A URL or a path without its user, its query and its fragment. A query that is only the request's says nothing.
fn masked_url(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (before, query) = url.split_at(end);
    let authority = before.find("//").filter(|at| *at == 0 || before[..*at].ends_with(':')).map_or(0, |at| at + 2);
    let host = &before[authority..];
    let until = host.find('/').unwrap_or(host.len());
    let shown = match host[..until].rfind('@') {
        Some(at) if authority > 0 => format!("{}{MASK}{}", &before[..authority], &host[at..]),
        _ => before.to_owned(),
    };
    match query {
        "" | "?{query}" => shown + query,
        query => format!("{shown}{}{MASK}", &query[..1]),
    }
}

fn masked_all(value: Value) -> Value {
    match value {
        Value::String(_) => Value::String(MASK.to_owned()),
        Value::Array(list) => Value::Array(list.into_iter().map(masked_all).collect()),
        Value::Table(table) => Value::Table(table.into_iter().map(|(key, value)| (key, masked_all(value))).collect()),
        value => value,
    }
}

/// Masks what is a secret wherever it stands: a private key in the place of its file's name, a token that is pushed.
fn masked_where_known(value: Value) -> Value {
    match value {
        Value::String(s) if s.contains("PRIVATE KEY") => Value::String(MASK.to_owned()),
        // Still an option that clients take.
        Value::String(s) if s.split_whitespace().next() == Some("auth-token") => {
            Value::String(format!("auth-token {MASK}"))
        }
        Value::Array(list) => Value::Array(list.into_iter().map(masked_where_known).collect()),
        value => value,
    }
}

/// Prints a table's settings in the order of the reference, then the tables in it.
fn print(out: &mut String, table: &'static Table, values: &Values, path: &str) {
    let own = |setting: &&Declared| match setting.kind.shape() {
        Shape::Table(_) | Shape::Tables(_) => false,
        Shape::TablesOr(..) => values.get(setting.key).is_some_and(Value::is_str),
        _ => true,
    };
    // Writing to a string cannot fail.
    for setting in table.all().filter(|setting| !WRITTEN.contains(&setting.key)).filter(own) {
        let _ = match (values.get(setting.key), setting.about.default) {
            (Some(value), _) => writeln!(out, "{} = {value}", setting.key),
            (None, Fallback::Described(words)) => writeln!(out, "# {}: {words}", setting.key),
            (None, Fallback::Value(_)) => match setting.about.needs {
                Some((other, None)) => writeln!(out, "# {}: needs {other}", setting.key),
                Some((other, Some(value))) => writeln!(out, "# {}: needs {other} = \"{value}\"", setting.key),
                None => Ok(()),
            },
            (None, Fallback::Required) => Ok(()),
        };
    }
    for setting in table.all() {
        let (inner, path) = match setting.kind.shape() {
            Shape::Table(inner) | Shape::Tables(inner) | Shape::TablesOr(inner, _) => match path {
                "" => (inner, setting.key.to_owned()),
                _ => (inner, format!("{path}.{}", setting.key)),
            },
            _ => continue,
        };
        match values.get(setting.key) {
            Some(Value::Table(values)) => {
                let _ = writeln!(out, "\n[{path}]");
                print(out, inner, values, &path);
            }
            Some(Value::Array(list)) => {
                for values in list.iter().filter_map(Value::as_table) {
                    let _ = writeln!(out, "\n[[{path}]]");
                    print(out, inner, values, &path);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_urls_are_masked() {
        for (url, shown) in [
            ("https://{host}{uri}", "https://{host}{uri}"),
            ("https://a.example/b?{query}", "https://a.example/b?{query}"),
            ("https://u:hush@a.example/b", "https://***@a.example/b"),
            ("https://u:h@ush@a.example", "https://***@a.example"),
            ("//u:hush@a.example/b", "//***@a.example/b"),
            ("{scheme}://u:hush@a.example/?t=hush#hush", "{scheme}://***@a.example/?***"),
            ("https://a.example/@b#hush", "https://a.example/@b#***"),
            ("/verify?key=hush", "/verify?***"),
            ("/a//u:b@c/d", "/a//u:b@c/d"),
            ("/verify", "/verify"),
        ] {
            assert_eq!(masked_url(url), shown, "{url}");
        }
        let text = "[[listener]]\naddress = \":80\"\n[[host]]\nnames = [\"*\"]\nredirect = \"https://u:hush@a.example/?t=hush\"\n\
                    [[host.route]]\npath = \"/a\"\nredirect = { to = \"https://a.example/?hush\" }\n\
                    [[host.route]]\npath = \"/b\"\nupstream = \"u\"\n\
                    forward_auth = { upstream = \"a\", path = \"/verify?key=hush\" }\n\
                    [[host.route]]\nredirects = { paths = { \"/c\" = \"/d?hush\" } }\n\
                    [[upstream]]\nname = \"u\"\nservers = \"http://127.0.0.1:1\"\nhealth = { path = \"/h?key=hush\" }\n\
                    [[upstream]]\nname = \"a\"\nservers = \"http://127.0.0.1:2\"\n";
        let document = Document::of_file("f".as_ref(), text.as_bytes()).unwrap();
        let (effective, _) = Effective::of_document(&document).unwrap();
        let changes = effective.changes_since(&Effective::default()).join("\n");
        for shown in [effective.to_toml(), effective.to_json(), changes] {
            assert!(!shown.contains("hush") && shown.contains("/verify?***") && shown.contains("/h?***"), "{shown}");
        }
    }
}
