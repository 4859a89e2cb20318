//! Walks a parsed TOML document: reads the settings of a table one by one, each by its declaration
//! ([`settings`](super::settings)), and at the end reports those that are not declared.

use super::diagnostics::Sink;
use super::settings::{
    About, Declared, Fallback, Kind, Many, ManyOr, One, Secret, Setting, Table, Time, host, listener, one_line, route,
    upstream,
};
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value of the document and where it stands.
pub(super) type Node<'d> = Spanned<DeValue<'d>>;

/// A checked value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub value: T,
    pub span: Range<usize>,
}

/// One table of the document.
pub(super) struct Section<'s, 'd> {
    pub sink: &'s Sink<'s>,
    declared: &'static Table,
    /// For messages: `[[listener]]`.
    title: &'static str,
    /// As in a heading: `listener.tls`; empty for the top level.
    path: String,
    table: &'d DeTable<'d>,
    /// The header, for what is missing.
    pub span: Range<usize>,
    /// What has been read.
    #[cfg(test)]
    read: std::cell::RefCell<Vec<&'static str>>,
}

impl<'s, 'd> Section<'s, 'd> {
    pub fn new(sink: &'s Sink<'s>, declared: &'static Table, table: &'d DeTable<'d>, span: Range<usize>) -> Self {
        Self {
            sink,
            declared,
            title: declared.title,
            path: declared.title.trim_matches(['[', ']']).to_owned(),
            table,
            span,
            #[cfg(test)]
            read: std::cell::RefCell::default(),
        }
    }

    /// The value of a setting as a section of its own, or an error that it is no table. `wanted`: what the setting may be; `None`:
    /// the value is an entry of a list of tables.
    fn section_of(
        &self,
        (key, about): (&'static str, &About),
        declared: &'static Table,
        node: &'d Node<'d>,
        wanted: Option<&str>,
    ) -> Option<Self> {
        // Tables that have no heading of their own are named by their setting.
        let has_heading = declared.title.starts_with('[');
        if let DeValue::Table(table) = node.get_ref() {
            let title = if has_heading { declared.title } else { key };
            let path = self.path_of(key);
            return Some(Self { title, path, ..Self::new(self.sink, declared, table, node.span()) });
        }
        let inner = declared.all().find_map(|s| Some(format!("{} = {}", s.key, one_line(s.about.value()?))));
        let inner = inner.unwrap_or_else(|| "SETTING = VALUE".to_owned());
        let help = match (has_heading, about.example) {
            (true, _) => {
                format!("write {} on a line, and its settings on the lines below, as in {inner}", declared.title)
            }
            (false, Some(example)) => format!("write {key} = {}", one_line(example)),
            (false, None) => format!("write {key} = {{ {inner} }}"),
        };
        let name = if has_heading { declared.title.to_owned() } else { format!("\"{key}\"") };
        let is = article(node.get_ref());
        let message = match wanted {
            Some(wanted) => format!("{name} must be {wanted}, but its value here is {is}"),
            None => format!("every entry of \"{key}\" must be a table, but this entry is {is}"),
        };
        self.sink.error(&node.span(), message, Some(help));
        None
    }

    /// The name of a setting with the tables that it is in: `listener.tls`.
    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a setting, unchecked.
    fn take(&self, key: &'static str) -> Option<&'d Node<'d>> {
        debug_assert!(self.declared.all().any(|s| s.key == key), "{key} is not a setting of {}", self.title);
        #[cfg(test)]
        self.read.borrow_mut().push(key);
        self.table.get(key)
    }

    /// Where the setting's name stands, if it is set.
    pub fn key_span(&self, key: &str) -> Option<Range<usize>> {
        self.table.get_key_value(key).map(|(k, _)| k.span())
    }

    /// A setting that may be left out. `None` also when its value is wrong (which is then reported).
    pub fn optional<K: Kind>(&self, setting: &Setting<K>) -> Option<K::Value> {
        self.optional_at(setting).map(|at| at.value)
    }

    /// A setting that may be left out, with its place.
    pub fn optional_at<K: Kind>(&self, setting: &Setting<K>) -> Option<At<K::Value>> {
        let node = self.take(setting.key)?;
        if let (Secret::Values, DeValue::Table(table)) = (setting.about.secret, node.get_ref()) {
            self.sink.keep_secret(table.keys().map(|name| name.get_ref().to_string()));
        }
        let outer = self.sink.example.replace(setting.about.value().map(|value| (setting.key, value)));
        let value = setting.kind.decode(self.sink, setting.key, node);
        self.sink.example.set(outer);
        value.map(|value| At { value, span: node.span() })
    }

    /// A setting with a default; that also when its value is wrong (which is then reported).
    pub fn or<K: Kind>(&self, setting: &Setting<K>) -> K::Value {
        self.optional(setting).unwrap_or_else(|| setting.default())
    }

    /// A setting that must be there.
    pub fn required<K: Kind>(&self, setting: &Setting<K>) -> Option<At<K::Value>> {
        let key = setting.key;
        // A misspelt one is reported as such, once.
        let declared = || self.declared.all().filter(|s| s.key == key);
        let misspelt = || self.table.keys().any(|k| meant(k.get_ref(), declared()).is_some());
        if !self.table.contains_key(key) && !misspelt() {
            let proposal = match setting.about.proposal {
                "" => setting.about.example.unwrap_or("…"),
                proposal => proposal,
            };
            self.missing(format!("{} has no \"{key}\"", self.title), format!("add {key} = {proposal}"));
        }
        self.optional_at(setting)
    }

    /// Reports that something is missing from this section.
    pub fn missing(&self, message: String, help: String) {
        self.sink.error(&self.span, message, Some(help));
    }

    /// The tables of an array of tables; a single table counts as an array of one.
    pub fn tables(&self, setting: &Setting<Many>) -> Vec<Section<'s, 'd>> {
        self.list_of((setting.key, &setting.about), setting.kind.0, "a table or a list of tables")
    }

    fn list_of(&self, setting: (&'static str, &About), declared: &'static Table, wanted: &str) -> Vec<Section<'s, 'd>> {
        let Some(node) = self.take(setting.0) else { return Vec::new() };
        match node.get_ref() {
            DeValue::Array(array) => {
                array.iter().filter_map(|node| self.section_of(setting, declared, node, None)).collect()
            }
            _ => self.section_of(setting, declared, node, Some(wanted)).into_iter().collect(),
        }
    }

    /// Where the word stands that may be in the place of a list of tables; `None` where something else does.
    pub fn word(&self, setting: &Setting<ManyOr>) -> Option<Range<usize>> {
        let node = self.take(setting.key)?;
        let is_word = matches!(node.get_ref(), DeValue::String(s) if s == setting.kind.1);
        is_word.then(|| node.span())
    }

    /// The tables of an array of tables, where it is no word; a single table counts as an array of one.
    pub fn tables_or_word(&self, setting: &Setting<ManyOr>) -> Vec<Section<'s, 'd>> {
        let wanted = format!("a table, a list of tables or \"{}\"", setting.kind.1);
        self.list_of((setting.key, &setting.about), setting.kind.0, &wanted)
    }

    /// A table.
    pub fn table(&self, setting: &Setting<One>) -> Option<Section<'s, 'd>> {
        let node = self.take(setting.key)?;
        // The name of a table is in its heading, and that of another value stands before it.
        let has_heading = self.key_span(setting.key).is_some_and(|key| node.span().contains(&key.start));
        if let (DeValue::Array(_), true) = (node.get_ref(), has_heading) {
            let path = self.path_of(setting.key);
            let help = format!("write [{path}] instead of [[{path}]]");
            self.sink.error(&node.span(), format!("[{path}] is allowed only once"), Some(help));
            return None;
        }
        self.section_of((setting.key, &setting.about), setting.kind.0, node, Some("a table"))
    }

    /// Reports every setting that is not declared.
    pub fn finish(self) {
        #[cfg(test)]
        {
            let read = self.read.borrow();
            let unread: Vec<&str> = self.declared.all().map(|s| s.key).filter(|key| !read.contains(key)).collect();
            assert!(unread.is_empty(), "declared for {} and not read: {unread:?}", self.title);
        }
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if self.declared.all().any(|setting| setting.key == name) {
                continue;
            }
            if self.sink.only_counts(&key.span()) {
                continue;
            }
            if let Some((_, instead)) = self.declared.refused.iter().find(|(refused, _)| *refused == name) {
                let message = format!("\"{name}\" is not supported");
                self.sink.error(&key.span(), message, Some((*instead).to_owned()));
                continue;
            }
            let snippet = self.sink.snippet_of(&key.span(), self.span.start);
            let others = [&host::TABLE, &route::TABLE, &listener::TABLE, &upstream::TABLE];
            let has_it = |table: &&&'static Table| table.all().any(|setting| setting.key == name);
            let others: Vec<&str> = others.iter().filter(has_it).map(|table| table.title).collect();
            let help = match meant(name, self.declared.all()) {
                _ if snippet.is_some() && !others.is_empty() => format!("it is a setting of {}", others.join(" and ")),
                Some(best) => format!("did you mean \"{best}\"?"),
                None => format!("settings here are {}", listed(self.declared.all().map(|setting| setting.key))),
            };
            let message = match (snippet, self.title) {
                (Some((snippet, used)), title) => {
                    let used = self.sink.place(&used);
                    format!("\"{name}\" in [snippet.{snippet}] is not a setting of {title} (used at {used})")
                }
                (None, "") => format!("unknown setting \"{name}\" at the top level"),
                (None, title) => format!("unknown setting \"{name}\" in {title}"),
            };
            self.sink.error(&key.span(), message, Some(help));
        }
    }
}

impl<K: Kind> Setting<K> {
    /// The default.
    pub fn default(&self) -> K::Value {
        let Fallback::Value(text) = self.about.default else { unreachable!("\"{}\" has no default", self.key) };
        decoded(&self.kind, self.key, text).unwrap_or_else(|| unreachable!("\"{}\" has a wrong default", self.key))
    }
}

/// A value that stands in a declaration. The test of declarations reads all of them.
fn decoded<K: Kind>(kind: &K, key: &str, text: &'static str) -> Option<K::Value> {
    let sink = Sink::new(super::diagnostics::Source::new(String::new(), text), PathBuf::new(), None, None);
    kind.decode(&sink, key, &DeValue::parse(text).ok()?)
}

/// The setting that was probably meant: one that another server calls so, or one spelt nearly so.
fn meant(name: &str, known: impl Iterator<Item = &'static Declared> + Clone) -> Option<&'static str> {
    let called_so = |setting: &&Declared| setting.about.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name));
    let alias = known.clone().find(called_so).map(|setting| setting.key);
    alias.or_else(|| nearest(name, known.map(|setting| setting.key)))
}

fn article(value: &DeValue) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or a time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Reports a value that has another type than its setting: what it must be, what it is, and how it is written.
pub(super) fn wrong_type(sink: &Sink, key: &str, node: &Node, wanted: &str, help: String) {
    let message = format!("\"{key}\" must be {wanted}, but its value here is {}", article(node.get_ref()));
    sink.error(&node.span(), message, Some(help));
}

/// `write KEY = VALUE`, with a value of the setting's declaration, if it has one.
fn as_in(sink: &Sink, key: &str, otherwise: &str) -> String {
    let declared = sink
        .example
        .get()
        .filter(|(of, value)| *of == key && !matches!(*value, "\"\"" | "0"))
        .map(|(_, value)| one_line(value));
    format!("write {key} = {}", declared.as_deref().unwrap_or(otherwise))
}

/// A number as a text.
fn quoted(value: &DeValue) -> Option<String> {
    match value {
        DeValue::Integer(i) => Some(format!("\"{}\"", i.as_str())),
        DeValue::Float(f) => Some(format!("\"{}\"", f.as_str())),
        _ => None,
    }
}

/// A string.
pub(super) fn text(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    text_or(sink, key, node, |_| None)
}

/// The same. `instead`: how a value that is no string is written.
pub(super) fn text_or(
    sink: &Sink,
    key: &str,
    node: &Node,
    instead: impl Fn(&DeValue) -> Option<String>,
) -> Option<String> {
    let value = node.get_ref();
    if let DeValue::String(s) = value {
        return Some(s.to_string());
    }
    wrong_type(sink, key, node, "a string", text_help(sink, key, value, instead(value)));
    None
}

fn text_help(sink: &Sink, key: &str, value: &DeValue, instead: Option<String>) -> String {
    match (instead, quoted(value)) {
        (Some(instead), _) => format!("write {key} = {instead}"),
        (None, Some(quoted)) => format!("put it in quotes: {key} = {quoted}"),
        (None, None) => as_in(sink, key, "\"text\""),
    }
}

/// The table of a setting that may also be `false`; `Some(None)`: it is `false`.
pub(super) fn table_or_false<'n, 'd>(
    sink: &Sink,
    key: &str,
    node: &'n Node<'d>,
    example: &str,
) -> Option<Option<&'n DeTable<'d>>> {
    let is = match node.get_ref() {
        DeValue::Boolean(false) => return Some(None),
        DeValue::Table(table) => return Some(Some(table)),
        DeValue::Boolean(true) => "true",
        other => article(other),
    };
    let message = format!("\"{key}\" must be a table or false, but its value here is {is}");
    let help = format!("write {key} = {example}, or {key} = false in a route");
    sink.error(&node.span(), message, Some(help));
    None
}

/// `true` or `false`.
pub(super) fn boolean(sink: &Sink, key: &str, node: &Node) -> Option<bool> {
    let word = match node.get_ref() {
        DeValue::Boolean(b) => return Some(*b),
        DeValue::String(s) => s.to_ascii_lowercase(),
        _ => String::new(),
    };
    let help = match word.as_str() {
        "on" | "yes" | "true" | "1" => format!("write {key} = true"),
        "off" | "no" | "false" | "0" => format!("write {key} = false"),
        _ => format!("write {key} = true or {key} = false"),
    };
    wrong_type(sink, key, node, "true or false", help);
    None
}

/// A whole number within bounds.
pub(super) fn count(range: &RangeInclusive<u64>, sink: &Sink, key: &str, node: &Node) -> Option<u64> {
    let DeValue::Integer(i) = node.get_ref() else {
        let help = match node.get_ref() {
            DeValue::String(s) if s.parse::<u64>().is_ok() => format!("without quotes: {key} = {s}"),
            _ => as_in(sink, key, &range.start().to_string()),
        };
        wrong_type(sink, key, node, "a whole number", help);
        return None;
    };
    match u64::from_str_radix(i.as_str(), i.radix()) {
        Ok(n) if range.contains(&n) => Some(n),
        _ => {
            let message = format!("\"{key}\" is out of range: {} to {}", range.start(), range.end());
            // The range is the remedy.
            sink.error(&node.span(), message, None);
            None
        }
    }
}

/// A duration: `"5s"`, `"500ms"`, `"1m30s"`.
pub(super) fn duration(sink: &Sink, key: &str, node: &Node) -> Option<Duration> {
    match node.get_ref() {
        DeValue::String(s) => match parse_duration(s) {
            Some(d) => Some(d),
            None => {
                let help = match s.trim().parse::<f64>() {
                    Ok(_) => format!("add a unit: {key} = \"{}s\"", s.trim()),
                    Err(_) => "write a whole number and a unit: us, ms, s, m, h or d, as in \"500ms\"".to_owned(),
                };
                sink.error(&node.span(), format!("\"{s}\" is not a duration"), Some(help));
                None
            }
        },
        DeValue::Integer(i) => {
            let help = format!("write {key} = \"{0}s\" for seconds, \"{0}ms\" for milliseconds", i.as_str());
            sink.error(&node.span(), format!("\"{key}\" has no unit"), Some(help));
            None
        }
        _ => {
            wrong_type(sink, key, node, "a duration", as_in(sink, key, "\"5s\""));
            None
        }
    }
}

pub(super) fn parse_duration(s: &str) -> Option<Duration> {
    let mut rest = s.trim();
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let n: u64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let micros: u64 = match &rest[..letters] {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" | "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_micros(n.checked_mul(micros)?))?;
        rest = rest[letters..].trim_start();
    }
    (total <= Time::LONGEST).then_some(total)
}

/// A number of bytes: a plain number, or with `KiB`, `MiB`, `GiB`.
pub(super) fn size(range: &RangeInclusive<u64>, sink: &Sink, key: &str, node: &Node) -> Option<u64> {
    let bytes = match node.get_ref() {
        DeValue::Integer(i) => u64::from_str_radix(i.as_str(), i.radix()).ok(),
        DeValue::String(s) => match parse_size(s) {
            Ok(n) => Some(n),
            Err(suggestion) => {
                let help = match suggestion {
                    Some(better) => format!("did you mean \"{better}\"? (1 KiB is 1024 bytes)"),
                    None => {
                        "write a number of bytes, or a number with a unit: \"16KiB\", \"1MiB\", \"2GiB\"".to_owned()
                    }
                };
                sink.error(&node.span(), format!("\"{s}\" is not a size"), Some(help));
                return None;
            }
        },
        _ => {
            wrong_type(sink, key, node, "a size", as_in(sink, key, "\"16KiB\""));
            return None;
        }
    };
    match bytes {
        Some(n) if range.contains(&n) => Some(n),
        _ => {
            let message = format!("\"{key}\" is out of range: {} to {} bytes", range.start(), range.end());
            sink.error(&node.span(), message, None);
            None
        }
    }
}

/// On failure: what may have been meant.
fn parse_size(s: &str) -> Result<u64, Option<String>> {
    let s = s.trim();
    let digits = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    let (number, unit) = (&s[..digits], s[digits..].trim());
    let n: u64 = number.parse().map_err(|_| None)?;
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => {
            let better = match unit.to_ascii_lowercase().as_str() {
                "k" | "kb" | "kib" | "ki" => "KiB",
                "m" | "mb" | "mib" | "mi" => "MiB",
                "g" | "gb" | "gib" | "gi" => "GiB",
                _ => return Err(None),
            };
            return Err(Some(format!("{number}{better}")));
        }
    };
    n.checked_mul(1 << shift).ok_or(None)
}

/// One of several words, already taken from the document.
pub(super) fn choose<T: Copy>(
    sink: &Sink,
    what: &str,
    s: &str,
    span: &Range<usize>,
    allowed: &'static [(&'static str, T)],
) -> Option<T> {
    if let Some((_, v)) = allowed.iter().find(|(name, _)| name.eq_ignore_ascii_case(s)) {
        return Some(*v);
    }
    let names = || allowed.iter().map(|(name, _)| *name);
    // What looks like a number and is not allowed was meant.
    let near = nearest(s, names()).filter(|_| !s.starts_with(|c: char| c.is_ascii_digit()));
    let help = match near {
        Some(best) => format!("did you mean \"{best}\"? Allowed are {}", listed(names())),
        None => format!("allowed are {}", listed(names())),
    };
    sink.error(span, format!("\"{s}\" is not a value for {what}"), Some(help));
    None
}

/// Strings; a single string counts as a list of one. Never empty.
pub(super) fn strings(sink: &Sink, key: &str, node: &Node) -> Option<Vec<At<String>>> {
    strings_or(sink, key, node, |_| None)
}

/// The same. `instead`: how a value that is no string is written.
pub(super) fn strings_or(
    sink: &Sink,
    key: &str,
    node: &Node,
    instead: impl Fn(&DeValue) -> Option<String>,
) -> Option<Vec<At<String>>> {
    let nodes = match node.get_ref() {
        DeValue::Array(a) if a.is_empty() => {
            let help = format!("add an entry, or remove \"{key}\"");
            sink.error(&node.span(), format!("\"{key}\" is empty"), Some(help));
            return None;
        }
        DeValue::Array(a) => a.iter().collect(),
        DeValue::String(_) => vec![node],
        other => {
            let help = text_help(sink, key, other, instead(other));
            wrong_type(sink, key, node, "a string or a list of strings", help);
            return None;
        }
    };
    let wanted = nodes.len();
    let entry = |node: &Node| {
        let value = node.get_ref();
        if let DeValue::String(s) = value {
            return Some(At { value: s.to_string(), span: node.span() });
        }
        let message =
            format!("every entry of \"{key}\" must be a string, but this entry is {}", article(node.get_ref()));
        let help = match (instead(value), quoted(value)) {
            (Some(instead), _) => format!("write {instead}"),
            (None, Some(quoted)) => format!("put it in quotes: {quoted}"),
            (None, None) => as_in(sink, key, "[\"text\"]"),
        };
        sink.error(&node.span(), message, Some(help));
        None
    };
    let got: Vec<At<String>> = nodes.into_iter().filter_map(entry).collect();
    (got.len() == wanted).then_some(got)
}

/// The path of a file to read; a relative one is from the configuration's folder.
pub(super) fn path(sink: &Sink, key: &str, node: &Node) -> Option<PathBuf> {
    output_path(sink, key, node).inspect(|path| sink.names_file(path))
}

/// The path of a file to write; a relative one is from the configuration's folder.
pub(super) fn output_path(sink: &Sink, key: &str, node: &Node) -> Option<PathBuf> {
    let s = text(sink, key, node)?;
    if s.is_empty() {
        let help = format!("write a path, or remove \"{key}\"");
        sink.error(&node.span(), format!("\"{key}\" is empty"), Some(help));
        return None;
    }
    Some(sink.base.join(s))
}

/// The addresses that may be meant by a port alone.
pub(super) fn of_port(port: impl std::fmt::Display) -> String {
    format!("\":{port}\" for all addresses, \"127.0.0.1:{port}\" for this machine")
}

/// An address to listen on: `127.0.0.1:443`, `[::1]:443`, or `:443` for all addresses of both families.
pub(super) fn listen_addresses(sink: &Sink, s: &str, span: &Range<usize>) -> Option<Vec<SocketAddr>> {
    let found = parse_listen_addresses(sink, s);
    if found.is_some() {
        return found;
    }
    let (host, port) = s.rsplit_once(':').unwrap_or((s, ""));
    let port: Option<u16> = port.parse().ok();
    let help = match port {
        Some(port) if host == "localhost" => format!("write \"127.0.0.1:{port}\" or \"[::1]:{port}\""),
        Some(port) if host.parse::<std::net::Ipv6Addr>().is_ok() => format!("write \"[{host}]:{port}\""),
        _ if s.parse::<u16>().is_ok() => format!("write {}", of_port(s)),
        _ if s.parse::<std::net::IpAddr>().is_ok() => format!("add a port: \"{s}:443\""),
        _ => {
            "write an IP address and a port, as in \"127.0.0.1:8443\" or \"[::1]:8443\", or \":443\" for all addresses"
                .to_owned()
        }
    };
    sink.error(span, format!("\"{s}\" is not an address to listen on"), Some(help));
    None
}

/// The same, for a caller that reports a mistake itself.
pub(super) fn parse_listen_addresses(sink: &Sink, s: &str) -> Option<Vec<SocketAddr>> {
    if let Ok(address) = s.parse() {
        return Some(vec![address]);
    }
    match s.rsplit_once(':')? {
        ("" | "*", port) => {
            let port: u16 = port.parse().ok()?;
            let all = [SocketAddr::from(([0; 4], port)), SocketAddr::from(([0u16; 8], port))];
            Some(all.into_iter().filter(|address| address.is_ipv4() || sink.ipv6()).collect())
        }
        _ => None,
    }
}

/// The name that was probably meant, if one is near enough.
pub(super) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let lower = name.to_ascii_lowercase();
    let far = (lower.chars().count() / 3).clamp(1, 4);
    let edits = |n: &str| match n.to_ascii_lowercase() {
        // "max_body" for "max_body_size".
        n if lower.len() >= 4 && n.starts_with(&lower) => 1,
        n => distance(&lower, &n),
    };
    names.map(|n| (edits(n), n)).filter(|(d, _)| *d <= far).min_by_key(|(d, _)| *d).map(|(_, n)| n)
}

/// `"a", "b" and "c"`.
pub(super) fn listed<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let quoted: Vec<String> = names.map(|n| format!("\"{n}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        Some((last, _)) => last.clone(),
        None => "none".to_owned(),
    }
}

/// Edits (insert, delete, replace, swap of neighbours) from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows = [vec![0; b.len() + 1], (0..=b.len()).collect::<Vec<usize>>(), vec![0; b.len() + 1]];
    for i in 1..=a.len() {
        rows[2][0] = i;
        for j in 1..=b.len() {
            let replace = rows[1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[1][j] + 1).min(rows[2][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[0][j - 2] + 1);
            }
            rows[2][j] = best;
        }
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a configuration: each message with its help.
    fn said(text: &str) -> Vec<(String, Option<String>)> {
        let text = format!("{text}\n");
        let path = std::path::Path::new("sealane.toml");
        let read = super::super::Document::of_file(path, text.as_bytes()).and_then(|document| document.read_offline());
        let errors = read.map_or_else(|errors| errors.errors, |_| Vec::new());
        errors.into_iter().map(|d| (d.message, d.help)).collect()
    }

    fn check(text: &str, message: &str, help: &str) {
        let said = said(text);
        let wanted = (message.to_owned(), Some(help.to_owned()));
        assert!(said.contains(&wanted), "{text}\nwanted: {wanted:?}\nsaid: {said:#?}");
    }

    #[test]
    fn a_value_of_another_type() {
        let tls = |setting: &str| format!("[[listener]]\naddress = \":443\"\n[listener.tls]\n{setting}");
        let host = |setting: &str| format!("[[host]]\nnames = [\"*\"]\n{setting}");
        let is = "but its value here is";
        let host_help = "write [[host]] on a line, and its settings on the lines below, as in names = [\"example.com\", \
                         \"www.example.com\"]";
        for (text, message, help) in [
            (tls("tickets = true"), format!("\"tickets\" must be a whole number, {is} a boolean"), "write tickets = 2"),
            (
                tls("tickets = \"2\""),
                format!("\"tickets\" must be a whole number, {is} a string"),
                "without quotes: tickets = 2",
            ),
            (
                tls("tickets = 1.5"),
                format!("\"tickets\" must be a whole number, {is} a decimal number"),
                "write tickets = 2",
            ),
            (
                "[log]\naccess = true".to_owned(),
                format!("\"access\" must be a string, {is} a boolean"),
                "write access = \"stdout\"",
            ),
            (
                "user = 5".to_owned(),
                format!("\"user\" must be a string, {is} a number"),
                "put it in quotes: user = \"5\"",
            ),
            (
                "reload_on_change = 1979-05-27".to_owned(),
                format!("\"reload_on_change\" must be true or false, {is} a date or a time"),
                "write reload_on_change = true or reload_on_change = false",
            ),
            (
                "reload_on_change = \"on\"".to_owned(),
                format!("\"reload_on_change\" must be true or false, {is} a string"),
                "write reload_on_change = true",
            ),
            (
                "drain_timeout = [\"5s\"]".to_owned(),
                format!("\"drain_timeout\" must be a duration, {is} a list"),
                "write drain_timeout = \"30s\"",
            ),
            (
                "[limits]\nmax_body_size = {}".to_owned(),
                format!("\"max_body_size\" must be a size, {is} a table"),
                "write max_body_size = \"16KiB\"",
            ),
            (
                "[[host]]\nnames = true".to_owned(),
                format!("\"names\" must be a string or a list of strings, {is} a boolean"),
                "write names = [\"example.com\", \"www.example.com\"]",
            ),
            (
                "[[host]]\nnames = [\"a.example\", 5]".to_owned(),
                "every entry of \"names\" must be a string, but this entry is a number".to_owned(),
                "put it in quotes: \"5\"",
            ),
            (
                "limits = true".to_owned(),
                format!("[limits] must be a table, {is} a boolean"),
                "write [limits] on a line, and its settings on the lines below, as in handshake_timeout = \"10s\"",
            ),
            ("host = 5".to_owned(), format!("[[host]] must be a table or a list of tables, {is} a number"), host_help),
            (
                "host = [5]".to_owned(),
                "every entry of \"host\" must be a table, but this entry is a number".to_owned(),
                host_help,
            ),
            (
                tls("certificates = \"cert.pem\""),
                format!("\"certificates\" must be a table, a list of tables or \"auto\", {is} a string"),
                "write certificates = [{ cert = \"cert.pem\", key = \"key.pem\" }]",
            ),
            (
                host("respond = 404"),
                format!("\"respond\" must be a table, {is} a number"),
                "write respond = { status = 404 }",
            ),
            (
                host("cors = true"),
                "\"cors\" must be a table or false, but its value here is true".to_owned(),
                "write cors = { origins = [\"https://app.example.com\"] }, or cors = false in a route",
            ),
        ] {
            check(&text, &message, help);
        }
    }

    #[test]
    fn a_list_in_the_place_of_a_table() {
        let host = |setting: &str| format!("[[host]]\nnames = [\"*\"]\n{setting}");
        check(
            &host("request_headers = [\"X\"]"),
            "\"request_headers\" must be a table, but its value here is a list",
            "write request_headers = { set = { X-Version = \"2\" } }",
        );
        // The same characters as of a heading.
        check(
            &host("request_headers = [[1]]"),
            "\"request_headers\" must be a table, but its value here is a list",
            "write request_headers = { set = { X-Version = \"2\" } }",
        );
        check("[[limits]]", "[limits] is allowed only once", "write [limits] instead of [[limits]]");
        check(
            &host("[[host.request_headers]]"),
            "[host.request_headers] is allowed only once",
            "write [host.request_headers] instead of [[host.request_headers]]",
        );
        check(
            "[[listener]]\naddress = \":443\"\n[[listener.tls]]",
            "[listener.tls] is allowed only once",
            "write [listener.tls] instead of [[listener.tls]]",
        );
    }

    #[test]
    fn a_port_in_the_place_of_an_address() {
        let list = "must be a string or a list of strings, but its value here is a number";
        check(
            "[[listener]]\naddress = 8443",
            &format!("\"address\" {list}"),
            "write address = \":8443\" for all addresses, \"127.0.0.1:8443\" for this machine",
        );
        check(
            "[[listener]]\naddress = [8443]",
            "every entry of \"address\" must be a string, but this entry is a number",
            "write \":8443\" for all addresses, \"127.0.0.1:8443\" for this machine",
        );
        check(
            "[admin]\nlisten = 9901",
            "\"listen\" must be a string, but its value here is a number",
            "write listen = \":9901\" for all addresses, \"127.0.0.1:9901\" for this machine",
        );
    }

    #[test]
    fn only_errors_of_syntax_are_reported_where_there_is_one() {
        let text =
            "[[listener]]\naddress = \":80\"\n[[host]\nnames = [\"*\"]\nhsts = 5\nto = [\"http://127.0.0.1:3000\"]\n";
        let path = std::path::Path::new("sealane.toml");
        let document = super::super::Document::of_file(path, text.as_bytes()).unwrap();
        let errors = document.read_offline().unwrap_err();
        let lines: Vec<usize> = errors.errors.iter().map(|d| d.line).collect();
        assert_eq!((lines, errors.warnings.len()), (vec![3], 0), "{errors}");
        assert_eq!(errors.files, [path], "a reload waits for a change of the file");
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration(" 2 h "), Some(Duration::from_secs(7200)));
        assert_eq!(parse_duration("500us"), Some(Duration::from_micros(500)));
        assert_eq!(parse_duration("0s"), Some(Duration::ZERO));
        for bad in ["", "5", "s", "5x", "-5s", "1.5s", "99999999999999999999s", "400d", "5s6"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("16KiB"), Ok(16 << 10));
        assert_eq!(parse_size("1 MiB"), Ok(1 << 20));
        assert_eq!(parse_size("77"), Ok(77));
        assert_eq!(parse_size("16k"), Err(Some("16KiB".into())));
        assert_eq!(parse_size("16MB"), Err(Some("16MiB".into())));
        for bad in ["", "KiB", "-1", "1x", "99999999999999GiB"] {
            assert_eq!(parse_size(bad), Err(None), "{bad}");
        }
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!(distance("address", "adress"), 1);
        assert_eq!(distance("certificates", "certficiates"), 2);
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn only_near_names_are_offered() {
        let known = ["address", "tls", "proxy_protocol"];
        assert_eq!(nearest("adress", known.into_iter()), Some("address"));
        assert_eq!(nearest("Proxy-Protocol", known.into_iter()), Some("proxy_protocol"));
        assert_eq!(nearest("proxy", known.into_iter()), Some("proxy_protocol"));
        assert_eq!(nearest("colour", known.into_iter()), None);
    }
}
