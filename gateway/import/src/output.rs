//! What is written: the tables of a `sealane.toml`, with the origin beside each setting.

mod hosts;
mod order;
mod routes;
mod snippets;

pub(crate) use hosts::Host;
pub(crate) use order::{Entry, Methods, entries_of, in_order, joined};
pub(crate) use routes::{Action, BasicAuth, ErrorPage, ForwardAuth, Mirror, Path, Rewrites, Route, Split};

use crate::addresses::Access;
use crate::report::{Place, Report};
use hosts::Written;
use snippets::{Often, Snippets, often};
use std::fmt::Write as _;

/// Quotes a string for TOML.
pub(crate) fn quoted(text: &str) -> String {
    // Not the beginning of a reference.
    escaped(&text.replace("${", "$${"))
}

fn escaped(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out + "\""
}

/// A list of strings in TOML.
pub(crate) fn list<S: AsRef<str>>(items: &[S]) -> String {
    let quoted: Vec<String> = items.iter().map(|i| quoted(i.as_ref())).collect();
    format!("[{}]", quoted.join(", "))
}

/// Whether text is a content type that responses of Sealane can be compressed for: event streams and gRPC never are.
pub(crate) fn is_media_type(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'+' | b'_'))
    };
    let is_type = lower.split_once('/').is_some_and(|(kind, subtype)| is_part(kind) && is_part(subtype));
    is_type && !lower.starts_with("text/event-stream") && !lower.starts_with("application/grpc")
}

/// A string for TOML, without escapes where that is possible.
pub(crate) fn literal(text: &str) -> String {
    template(&text.replace("${", "$${"))
}

/// The same for a setting that has variables in braces: a template of the access log.
pub(crate) fn template(text: &str) -> String {
    let plain = !text.contains('\'') && !text.chars().any(char::is_control);
    if plain { format!("'{text}'") } else { escaped(text) }
}

/// A key of TOML: bare where that is possible.
pub(crate) fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if bare { name.to_owned() } else { quoted(name) }
}

/// The variables of a template of the access log, but for `http_NAME`. The test of the corpus has each of them checked.
pub(crate) const LOG_VARIABLES: &[&str] = &[
    "args",
    "body_bytes_sent",
    "connection",
    "connection_requests",
    "host",
    "is_args",
    "msec",
    "pid",
    "query_string",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request",
    "request_id",
    "request_method",
    "request_time",
    "request_uri",
    "scheme",
    "server_port",
    "server_protocol",
    "ssl_protocol",
    "status",
    "time_iso8601",
    "time_local",
    "upstream_addr",
    "uri",
];

/// Settings of a table, in order: key, value in TOML, origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings(Vec<(String, String, Option<Place>)>);

impl Settings {
    /// Sets a key; a value that is there is replaced.
    pub fn set(&mut self, key: &str, value: impl Into<String>, origin: &Place) {
        let entry = (key.to_owned(), value.into(), Some(origin.clone()));
        match self.0.iter_mut().find(|(k, ..)| k == key) {
            Some(there) => *there = entry,
            None => self.0.push(entry),
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, ..)| k == key).map(|(_, v, _)| v.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values, without their origins: what makes two tables the same.
    pub fn same(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<_> = self.0.iter().map(|(k, v, _)| (k.as_str(), v.as_str())).collect();
        all.sort_unstable();
        all
    }

    fn write(&self, out: &mut String) {
        for (key, value, origin) in &self.0 {
            line(out, &format!("{key} = {value}"), origin.as_ref());
        }
    }
}

/// One line, with its origin as a comment.
pub(crate) fn line(out: &mut String, text: &str, origin: Option<&Place>) {
    out.push_str(text);
    if let Some(place) = origin {
        out.push_str("  # ");
        out.extend(place.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    out.push('\n');
}

fn comment(out: &mut String, place: &Place, what: &str) {
    line(out, &format!("\n# {what}"), None);
    out.pop();
    out.push_str(": ");
    out.extend(place.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }));
    out.push('\n');
}

/// Changes to headers, each with its origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    pub remove: Vec<(String, Place)>,
    pub set: Vec<(String, String, Place)>,
    pub add: Vec<(String, String, Place)>,
}

impl Edits {
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    /// The line that changes a header.
    pub fn changed_by(&self, name: &str) -> Option<&Place> {
        let others = self.set.iter().chain(&self.add).map(|(n, _, place)| (n, place));
        let mut all = self.remove.iter().map(|(n, place)| (n, place)).chain(others);
        all.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, place)| place)
    }

    pub fn remove(&mut self, name: &str, place: &Place) {
        self.set.retain(|(n, ..)| !n.eq_ignore_ascii_case(name));
        self.add.retain(|(n, ..)| !n.eq_ignore_ascii_case(name));
        if !self.remove.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
            self.remove.push((name.to_owned(), place.clone()));
        }
    }

    pub fn set(&mut self, name: &str, value: &str, place: &Place) {
        self.remove.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.set.retain(|(n, ..)| !n.eq_ignore_ascii_case(name));
        self.set.push((name.to_owned(), value.to_owned(), place.clone()));
    }

    /// Takes out the removal of a header. The line that removes it.
    pub fn take_removal(&mut self, name: &str) -> Option<Place> {
        let at = self.remove.iter().position(|(n, _)| n.eq_ignore_ascii_case(name))?;
        Some(self.remove.remove(at).1)
    }

    /// Leaves a header as it is.
    pub fn forget(&mut self, name: &str) {
        self.remove.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.set.retain(|(n, ..)| !n.eq_ignore_ascii_case(name));
        self.add.retain(|(n, ..)| !n.eq_ignore_ascii_case(name));
    }

    /// Makes further changes after these.
    pub fn then(&mut self, later: Self) {
        later.remove.iter().for_each(|(name, place)| self.remove(name, place));
        later.set.iter().for_each(|(name, value, place)| self.set(name, value, place));
        later.add.iter().for_each(|(name, value, place)| {
            self.add(name, value, place);
        });
    }

    /// Whether there was room: a name can be added once.
    pub fn add(&mut self, name: &str, value: &str, place: &Place) -> bool {
        if self.add.iter().any(|(n, ..)| n.eq_ignore_ascii_case(name)) {
            return false;
        }
        self.add.push((name.to_owned(), value.to_owned(), place.clone()));
        true
    }

    /// Takes out of several what all of them do with a header: the host of which they are routes says it once, and a route's own changes
    /// come behind the host's.
    pub fn take_common(all: &mut [&mut Self]) -> Self {
        let Some(first) = all.first() else { return Self::default() };
        let mut out = (**first).clone();
        out.retain(|name| all.iter().all(|edits| edits.does_with(name) == first.does_with(name)));
        all.iter_mut().for_each(|edits| edits.retain(|name| out.changed_by(name).is_none()));
        out
    }

    /// What is done with a header: whether it is removed, and the values that are set and added.
    fn does_with(&self, name: &str) -> (bool, Vec<&str>, Vec<&str>) {
        fn values<'e>(list: &'e [(String, String, Place)], name: &str) -> Vec<&'e str> {
            list.iter().filter(|(n, ..)| n.eq_ignore_ascii_case(name)).map(|(_, value, _)| value.as_str()).collect()
        }
        let is_removed = self.remove.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        (is_removed, values(&self.set, name), values(&self.add, name))
    }

    /// Keeps what is done with some headers.
    fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.remove.retain(|(name, _)| keep(name));
        self.set.retain(|(name, ..)| keep(name));
        self.add.retain(|(name, ..)| keep(name));
    }

    /// Gives a header that is added another value.
    pub fn replace_added(&mut self, name: &str, value: &str) {
        for (_, there, _) in self.add.iter_mut().filter(|(n, ..)| n.eq_ignore_ascii_case(name)) {
            value.clone_into(there);
        }
    }

    fn same(&self) -> String {
        let remove: Vec<_> = self.remove.iter().map(|r| &r.0).collect();
        let pairs =
            |list: &[(String, String, Place)]| format!("{:?}", list.iter().map(|e| (&e.0, &e.1)).collect::<Vec<_>>());
        format!("{remove:?} {} {}", pairs(&self.set), pairs(&self.add))
    }

    fn write(&self, out: &mut String, table: &str) {
        if let Some((_, place)) = self.remove.first() {
            let names: Vec<_> = self.remove.iter().map(|r| &r.0).collect();
            line(out, &format!("{table}.remove = {}", list(&names)), Some(place));
        }
        for (what, entries) in [("set", &self.set), ("add", &self.add)] {
            for (name, value, place) in entries {
                line(out, &format!("{table}.{what}.{} = {}", key(name), quoted(value)), Some(place));
            }
        }
    }
}

/// A `[[listener]]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listener {
    pub addresses: Vec<String>,
    pub settings: Settings,
    pub tls: Option<ListenerTls>,
    pub quic: Settings,
    /// Which clients are let in.
    pub access: Access,
    pub origin: Option<Place>,
}

/// `[listener.tls]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListenerTls {
    pub settings: Settings,
    /// Certificate and key.
    pub certificates: Vec<(String, Option<String>, Place)>,
    pub client_auth: Vec<Settings>,
}

impl Listener {
    fn write(&self, out: &mut String) {
        out.push_str("\n[[listener]]\n");
        line(out, &format!("address = {}", list(&self.addresses)), self.origin.as_ref());
        self.settings.write(out);
        self.access.write(out);
        if !self.quic.is_empty() {
            out.push_str("\n[listener.quic]\n");
            self.quic.write(out);
        }
        let Some(tls) = &self.tls else { return };
        out.push_str("\n[listener.tls]\n");
        tls.settings.write(out);
        for (cert, key, place) in &tls.certificates {
            out.push_str("\n[[listener.tls.certificates]]\n");
            line(out, &format!("cert = {}", quoted(cert)), Some(place));
            if let Some(key) = key {
                line(out, &format!("key = {}", quoted(key)), Some(place));
            }
        }
        for auth in &tls.client_auth {
            out.push_str("\n[[listener.tls.client_auth]]\n");
            auth.write(out);
        }
    }
}

/// An `[[upstream]]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Upstream {
    pub name: String,
    /// Each in TOML: a string or an inline table.
    pub servers: Vec<(String, Place)>,
    pub settings: Settings,
    pub tls: Settings,
    pub health: Option<Settings>,
    pub origin: Option<Place>,
}

impl Upstream {
    /// Whether two groups differ in nothing but their names.
    pub fn is_like(&self, other: &Self) -> bool {
        let servers = |u: &Self| u.servers.iter().map(|s| s.0.clone()).collect::<Vec<_>>();
        servers(self) == servers(other)
            && self.settings.same() == other.settings.same()
            && self.tls.same() == other.tls.same()
            && self.health.as_ref().map(Settings::same) == other.health.as_ref().map(Settings::same)
    }

    fn write(&self, out: &mut String, often: &Often, snippets: &Snippets) {
        out.push_str("\n[[upstream]]\n");
        line(out, &format!("name = {}", quoted(&self.name)), self.origin.as_ref());
        out.push_str("servers = [\n");
        for (server, place) in &self.servers {
            line(out, &format!("    {server},"), Some(place));
        }
        out.push_str("]\n");
        self.write_settings(out, often, snippets);
        if let Some(health) = &self.health {
            out.push_str("\n[upstream.health]\n");
            health.write(out);
        }
        if !self.tls.is_empty() {
            out.push_str("\n[upstream.tls]\n");
            self.tls.write(out);
        }
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output {
    /// The first line's comment.
    pub title: String,
    pub top: Settings,
    pub admin: Settings,
    pub log: Settings,
    pub limits: Settings,
    pub request_id: Settings,
    pub listeners: Vec<Listener>,
    pub hosts: Vec<Host>,
    pub rate_limits: Vec<Settings>,
    pub concurrency_limits: Vec<Settings>,
    pub upstreams: Vec<Upstream>,
    pub tunnel: Settings,
    pub tunnel_clients: Vec<Settings>,
    /// Files beside the result, by their names.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Output {
    pub fn to_toml(&self, report: &Report) -> String {
        let mut out = String::new();
        line(&mut out, &format!("# {}", self.title.replace(char::is_control, " ")), None);
        out.push_str("# What differs from the original: the import's report, and docs/reference/import.md.\n");
        self.top.write(&mut out);
        let undecided = report.undecided();
        if !undecided.is_empty() {
            out.push_str(
                "# Decide what replaces each entry, then remove the entry. The gateway does not start until all entries are removed.\n",
            );
            out.push_str("undecided = [\n");
            for entry in undecided {
                line(&mut out, &format!("    {},", quoted(&entry)), None);
            }
            out.push_str("]\n");
        }
        let tables =
            [("admin", &self.admin), ("log", &self.log), ("limits", &self.limits), ("request_id", &self.request_id)];
        for (name, settings) in tables {
            if !settings.is_empty() {
                let _ = writeln!(out, "\n[{name}]");
                settings.write(&mut out);
            }
        }
        self.listeners.iter().for_each(|l| l.write(&mut out));
        let (hosts, often): (Vec<Written>, Often) =
            (self.hosts.iter().map(Host::written).collect(), often(&self.upstreams));
        let parts = self.upstreams.iter().filter_map(|u| u.part(&often)).chain(hosts.iter().flat_map(Written::parts));
        let snippets = Snippets::of(parts);
        snippets.write(&mut out);
        hosts.iter().for_each(|h| h.write(&mut out, &snippets));
        for (table, limits) in [("rate_limit", &self.rate_limits), ("concurrency_limit", &self.concurrency_limits)] {
            for limit in limits {
                let _ = writeln!(out, "\n[[{table}]]");
                limit.write(&mut out);
            }
        }
        self.upstreams.iter().for_each(|u| u.write(&mut out, &often, &snippets));
        if !self.tunnel.is_empty() {
            out.push_str("\n[tunnel]\n");
            self.tunnel.write(&mut out);
        }
        for client in &self.tunnel_clients {
            out.push_str("\n[[tunnel.client]]\n");
            client.write(&mut out);
        }
        out
    }

    /// Takes a file in; returns its name. One that differs from another of its name gets a number.
    pub fn file(&mut self, wanted: &str, ending: &str, content: &[u8]) -> String {
        let mut name = format!("{wanted}.{ending}");
        for n in 2.. {
            match self.files.iter().find(|(there, _)| *there == name) {
                Some((_, there)) if there == content => break,
                Some(_) => name = format!("{wanted}-{n}.{ending}"),
                None => {
                    self.files.push((name.clone(), content.to_vec()));
                    break;
                }
            }
        }
        name
    }

    /// Takes an upstream in; returns the name by which hosts refer to it. One that differs from another of its name gets a number.
    pub fn upstream(&mut self, mut new: Upstream) -> String {
        let wanted = new.name.clone();
        for n in 1.. {
            if n > 1 {
                new.name = format!("{wanted}-{n}");
            }
            match self.upstreams.iter().find(|u| u.name == new.name) {
                Some(there) if there.is_like(&new) => break,
                Some(_) => {}
                None => {
                    self.upstreams.push(new.clone());
                    break;
                }
            }
        }
        new.name
    }
}
