//! The configuration of the gateway as the translation builds it, and its text.

use crate::objects::ObjectRef;
use crate::toml::{Table, Value};
use std::collections::BTreeMap;
use std::ops::Range;

/// The folder of files that the configuration names, beside the configuration.
pub const FILES: &str = "files";

/// The most bytes that all files may have together: they are in memory.
pub const MAX_FILES: usize = 32 << 20;

/// A configuration, without what the operator writes in front of it.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// By address, and by transport.
    pub listeners: BTreeMap<String, Listener>,
    /// Hosts, each for one listener.
    pub hosts: Vec<Host>,
    /// By name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// `[[rate_limit]]`, by name.
    pub rate_limits: BTreeMap<String, Section>,
    /// `[[concurrency_limit]]`, by name.
    pub concurrency_limits: BTreeMap<String, Section>,
    /// The content of files, by name in the folder [`FILES`].
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Settings, and the object that they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Settings.
    pub settings: Table,
    /// The object.
    pub origin: ObjectRef,
}

/// A listener.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its address.
    pub address: String,
    /// Its settings, without TLS.
    pub settings: Table,
    /// `Some`: it terminates TLS with these certificates.
    pub certificates: Option<Vec<Section>>,
    /// `[[listener.tls.client_auth]]`.
    pub client_auth: Vec<Section>,
    /// The object.
    pub origin: ObjectRef,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Names, as the gateway writes them.
    pub names: Vec<String>,
    /// The address of its listener.
    pub listener: String,
    /// Settings of the host itself.
    pub settings: Table,
    /// Routes in order of precedence among equal ones.
    pub routes: Vec<Section>,
    /// The object.
    pub origin: ObjectRef,
}

/// A group of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Settings without `name` and `tls`.
    pub settings: Table,
    /// `[upstream.tls]`.
    pub tls: Option<Table>,
    /// The object that has asked for this group first.
    pub origin: ObjectRef,
}

/// Which lines of a text come from which object.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<(Range<usize>, ObjectRef)>);

impl Origins {
    /// The object that a line comes from; lines count from 1.
    pub fn of_line(&self, line: usize) -> Option<&ObjectRef> {
        self.0.iter().find(|(lines, _)| lines.contains(&line)).map(|(_, origin)| origin)
    }
}

/// A configuration as text, with its files.
#[derive(Clone, Debug, Default)]
pub struct Rendered {
    /// TOML.
    pub toml: String,
    /// The content of files, by name in the folder [`FILES`].
    pub files: BTreeMap<String, Vec<u8>>,
    /// Which lines come from which object.
    pub origins: Origins,
}

impl Rendered {
    /// How many bytes of the text come from each object.
    pub fn sizes(&self) -> BTreeMap<&ObjectRef, usize> {
        let lines: Vec<usize> = self.toml.split_inclusive('\n').map(str::len).collect();
        let mut out: BTreeMap<&ObjectRef, usize> = BTreeMap::new();
        for (range, origin) in &self.origins.0 {
            // Lines count from 1.
            let own = lines.get(range.start.saturating_sub(1)..range.end.saturating_sub(1)).unwrap_or_default();
            *out.entry(origin).or_default() += own.iter().sum::<usize>();
        }
        out
    }
}

struct Writer {
    text: String,
    lines: usize,
    origins: Origins,
}

impl Writer {
    fn push(&mut self, origin: &ObjectRef, write: impl FnOnce(&mut String)) {
        let first = self.lines + 1;
        let before = self.text.len();
        write(&mut self.text);
        self.lines += self.text[before..].matches('\n').count();
        self.origins.0.push((first..self.lines + 1, origin.clone()));
    }

    fn section(&mut self, header: &str, section: &Section) {
        self.push(&section.origin, |out| {
            out.push_str(&format!("{header}\n"));
            section.settings.write_lines(out);
        });
    }
}

impl Config {
    /// Adds a file and returns its path from the folder of the configuration. Its name contains a hash of its content, so that a changed
    /// content is a changed configuration, and a configuration that is in use keeps its files. On failure: there are too many.
    pub fn file(&mut self, kind: &str, content: Vec<u8>) -> Result<String, String> {
        let name = format!("{kind}-{}.pem", crate::hash(&content));
        let path = format!("{FILES}/{name}");
        if self.files.contains_key(&name) {
            return Ok(path);
        }
        let others: usize = self.files.values().map(Vec::len).sum();
        if others + content.len() > MAX_FILES {
            return Err(format!("the certificates of all objects together have more than {} MiB", MAX_FILES >> 20));
        }
        self.files.insert(name, content);
        Ok(path)
    }

    /// The text. `base`: what the operator has written, which comes first.
    pub fn render(&self, base: &str) -> Rendered {
        let mut text = base.to_owned();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let lines = text.matches('\n').count();
        let mut out = Writer { text, lines, origins: Origins::default() };
        for (header, limits) in
            [("\n[[rate_limit]]", &self.rate_limits), ("\n[[concurrency_limit]]", &self.concurrency_limits)]
        {
            for limit in limits.values() {
                out.section(header, limit);
            }
        }
        for listener in self.listeners.values() {
            out.push(&listener.origin, |text| {
                text.push_str("\n[[listener]]\n");
                Table::default().with("address", listener.address.as_str()).write_lines(text);
                listener.settings.write_lines(text);
                if listener.certificates.is_some() {
                    text.push_str("[listener.tls]\n");
                }
            });
            for certificate in listener.certificates.iter().flatten() {
                out.section("[[listener.tls.certificates]]", certificate);
            }
            for rule in &listener.client_auth {
                out.section("[[listener.tls.client_auth]]", rule);
            }
        }
        for host in &self.hosts {
            out.push(&host.origin, |text| {
                text.push_str("\n[[host]]\n");
                let names: Vec<&str> = host.names.iter().map(String::as_str).collect();
                let settings = Table::default().with("names", names).with("listeners", vec![host.listener.as_str()]);
                settings.write_lines(text);
                host.settings.write_lines(text);
            });
            for route in &host.routes {
                out.section("\n[[host.route]]", route);
            }
        }
        for (name, upstream) in &self.upstreams {
            out.push(&upstream.origin, |text| {
                text.push_str("\n[[upstream]]\n");
                Table::default().with("name", name.as_str()).write_lines(text);
                upstream.settings.write_lines(text);
                if let Some(tls) = &upstream.tls {
                    text.push_str("[upstream.tls]\n");
                    tls.write_lines(text);
                }
            });
        }
        Rendered { toml: out.text, files: self.files.clone(), origins: out.origins }
    }
}

/// A server of an upstream.
pub fn server(scheme: &str, address: &str, weight: Option<u64>) -> Value {
    let url = format!("{scheme}://{address}");
    match weight {
        None => url.into(),
        Some(weight) => Table::default().with("url", url).with("weight", weight).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Kind, Name};

    #[test]
    fn files_have_a_limit() {
        let mut config = Config::default();
        let first = config.file("cert", b"a".to_vec()).unwrap();
        assert!(config.file("cert", vec![0; MAX_FILES]).is_err());
        assert!(config.file("cert", vec![0; MAX_FILES - 1]).is_ok());
        assert_eq!(config.file("cert", b"a".to_vec()), Ok(first));
        assert!(config.file("cert", b"b".to_vec()).is_err());
        assert_eq!(config.files.len(), 2);
    }

    #[test]
    fn lines_lead_to_objects() {
        let origin = |name: &str| ObjectRef { kind: Kind::HttpRoute, name: Name::new("n", name) };
        let route = |name: &str| Section { settings: Table::default().with("path", "/"), origin: origin(name) };
        let host = Host {
            names: vec!["a".to_owned()],
            listener: ":1".to_owned(),
            settings: Table::default(),
            routes: vec![route("first"), route("second")],
            origin: origin("host"),
        };
        let config = Config { hosts: vec![host], ..Config::default() };
        let rendered = config.render("x = 1");
        let found: Vec<Option<&str>> = (1..=rendered.toml.lines().count())
            .map(|line| rendered.origins.of_line(line).map(|o| o.name.name.as_str()))
            .collect();
        let (host, first, second) = (Some("host"), Some("first"), Some("second"));
        assert_eq!(found, [None, host, host, host, host, first, first, first, second, second, second]);
        let sizes: Vec<(&str, usize)> =
            rendered.sizes().into_iter().map(|(object, size)| (object.name.name.as_str(), size)).collect();
        assert_eq!(sizes.iter().map(|(_, size)| size).sum::<usize>(), rendered.toml.len() - "x = 1\n".len());
        assert_eq!(sizes[0], ("first", "\n[[host.route]]\npath = \"/\"\n".len()));
    }
}
