//! The DNS records of type HTTPS (RFC 9460) by which clients find HTTP/3 and HTTP/2 without having been here before.

use super::{Config, Listener};
use sealane_proxy::snapshot::Action;
use sealane_route::NamePattern;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// How long resolvers may remember a record, in seconds.
const TTL: u32 = 3600;

/// A record for the zone of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HttpsRecord {
    /// `example.com`, or `*.example.com`; `None`: for each name that the listener serves beside the others.
    pub name: Option<String>,
    /// The port in the URLs of clients.
    pub port: u16,
    /// The smaller is tried first.
    pub priority: u16,
    /// Where it is served, if it is not the port in the URLs.
    pub served_at: Option<u16>,
    /// Beside HTTP/1.1, the best first.
    pub alpn: Vec<&'static str>,
    /// HTTP/1.1 is not served.
    pub no_default_alpn: bool,
}

impl HttpsRecord {
    /// For a name that HTTP/3, HTTP/2 and HTTP/1.1 are served for at one port.
    pub fn of_all_versions(name: &str, port: u16) -> Self {
        Self {
            name: Some(name.to_owned()),
            port,
            priority: 1,
            served_at: None,
            alpn: vec!["h3", "h2"],
            no_default_alpn: false,
        }
    }

    /// It offers HTTP/3.
    pub fn has_http3(&self) -> bool {
        self.alpn.contains(&"h3")
    }

    /// It stands for records that have other names: which ones is for the operator to say.
    fn is_pattern(&self) -> bool {
        // In DNS, `*` is a wildcard as the first label only.
        self.name.as_deref().is_none_or(|name| name.starts_with("*.") && self.port != 443)
    }
}

/// As a line of a zone file; a comment, if it is no record but what those for some names look like.
impl fmt::Display for HttpsRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.name.as_deref() {
            None => {
                f.write_str("; for each other name: ")?;
                "NAME"
            }
            Some(name) if self.is_pattern() => {
                write!(f, "; for each name like {name}: ")?;
                "NAME"
            }
            Some(name) => name,
        };
        match self.port {
            443 => write!(f, "{name}. {TTL} IN HTTPS {} .", self.priority)?,
            // RFC 9460 §9.1: the record is at a name that says so.
            port => write!(f, "_{port}._https.{name}. {TTL} IN HTTPS {} {name}.", self.priority)?,
        }
        if !self.alpn.is_empty() {
            write!(f, " alpn=\"{}\"", self.alpn.join(","))?;
        }
        if self.no_default_alpn {
            f.write_str(" no-default-alpn")?;
        }
        match self.served_at.or((self.port != 443).then_some(self.port)) {
            Some(port) => write!(f, " port={port}"),
            None => Ok(()),
        }
    }
}

/// What all listeners with one port serve for a name.
struct Served {
    http3: Option<u16>,
    http2: bool,
    http1: bool,
}

impl Served {
    fn of(listener: &Listener, policy: usize) -> Option<Self> {
        let alpn = &listener.tls.as_ref()?.policies.get(policy)?.alpn;
        let has = |protocol: &[u8]| alpn.iter().any(|own| own == protocol);
        // A record is about the name itself, which serves no HTTP/3 where another host is announced.
        let http3 = listener.http3.as_ref().filter(|http3| http3.announced_host.is_none());
        let http3 = http3.map(|http3| http3.port(listener.address.port()));
        Some(Self { http3, http2: has(b"h2"), http1: has(b"http/1.1") || alpn.is_empty() })
    }

    /// A client does not say by which address of a name it comes.
    fn and(&mut self, other: &Self) {
        self.http3 = self.http3.filter(|_| self.http3 == other.http3);
        self.http2 &= other.http2;
        self.http1 &= other.http1;
    }

    fn records(&self, name: Option<&str>, port: u16) -> Vec<HttpsRecord> {
        let record = |priority, served_at, alpn: Vec<&'static str>, no_default_alpn| HttpsRecord {
            name: name.map(str::to_owned),
            port,
            priority,
            served_at,
            no_default_alpn: no_default_alpn && !alpn.is_empty(),
            alpn,
        };
        let over_tcp = self.http2.then_some("h2");
        let mut out = match self.http3 {
            Some(udp) if udp != port => {
                vec![
                    record(1, Some(udp), vec!["h3"], true),
                    record(2, None, over_tcp.into_iter().collect(), !self.http1),
                ]
            }
            http3 => {
                let alpn = http3.map(|_| "h3").into_iter().chain(over_tcp).collect();
                vec![record(1, None, alpn, !self.http1)]
            }
        };
        // Clients come without a record, too.
        if out.iter().all(|record| record.alpn.is_empty()) {
            out.clear();
        }
        out
    }
}

impl Config {
    /// The records for all names that are served with TLS, by name and port. There are none for addresses, and none for names whose
    /// connections are only relayed.
    pub fn https_records(&self) -> Vec<HttpsRecord> {
        // Behind all names: those that a wildcard for everything stands for.
        let mut found: BTreeMap<(bool, Option<String>, u16), Served> = BTreeMap::new();
        for listener in self.listeners.iter().filter(|listener| listener.public_port != 0) {
            for (pattern, policy, host) in listener.sites.served() {
                let name = match &pattern {
                    NamePattern::Exact(name) if name.starts_with('[') || name.parse::<IpAddr>().is_ok() => continue,
                    NamePattern::Exact(name) => Some(name.to_string()),
                    NamePattern::OneLabel(suffix) | NamePattern::AnyDepth(suffix) => Some(format!("*.{suffix}")),
                    NamePattern::Any => None,
                };
                if matches!(listener.actions.get(host), None | Some(Action::Passthrough { .. })) {
                    continue;
                }
                let Some(served) = Served::of(listener, policy) else { continue };
                let key = (name.is_none(), name, listener.public_port);
                found.entry(key).and_modify(|known| known.and(&served)).or_insert(served);
            }
        }
        found.iter().flat_map(|((_, name, port), served)| served.records(name.as_deref(), *port)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_lines_of_a_zone() {
        let shown = |name, port| HttpsRecord::of_all_versions(name, port).to_string();
        assert_eq!(shown("example.com", 443), "example.com. 3600 IN HTTPS 1 . alpn=\"h3,h2\"");
        let odd = "_8443._https.example.com. 3600 IN HTTPS 1 example.com. alpn=\"h3,h2\" port=8443";
        assert_eq!(shown("example.com", 8443), odd);
        assert_eq!(shown("*.example.com", 443), "*.example.com. 3600 IN HTTPS 1 . alpn=\"h3,h2\"");
        let each =
            "; for each name like *.example.com: _8443._https.NAME. 3600 IN HTTPS 1 NAME. alpn=\"h3,h2\" port=8443";
        assert_eq!(shown("*.example.com", 8443), each);
        let other = HttpsRecord { name: None, ..HttpsRecord::of_all_versions("", 443) };
        assert_eq!(other.to_string(), "; for each other name: NAME. 3600 IN HTTPS 1 . alpn=\"h3,h2\"");
    }

    #[test]
    fn records_say_what_is_served() {
        let lines = |http3, http2, http1, port| {
            let records = Served { http3, http2, http1 }.records(Some("a.example"), port);
            records.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(lines(Some(443), true, true, 443), "a.example. 3600 IN HTTPS 1 . alpn=\"h3,h2\"");
        assert_eq!(lines(None, true, true, 443), "a.example. 3600 IN HTTPS 1 . alpn=\"h2\"");
        assert_eq!(lines(None, true, false, 443), "a.example. 3600 IN HTTPS 1 . alpn=\"h2\" no-default-alpn");
        assert_eq!(lines(Some(443), false, true, 443), "a.example. 3600 IN HTTPS 1 . alpn=\"h3\"");
        assert_eq!(lines(None, false, true, 443), "");
        // Another port over UDP.
        assert_eq!(
            lines(Some(8443), true, true, 443),
            "a.example. 3600 IN HTTPS 1 . alpn=\"h3\" no-default-alpn port=8443\na.example. 3600 IN HTTPS 2 . alpn=\"h2\""
        );
    }

    #[test]
    fn a_record_promises_what_all_addresses_serve() {
        let served = |http3, http2, http1| Served { http3, http2, http1 };
        let mut both = served(Some(443), true, true);
        both.and(&served(Some(443), true, true));
        assert_eq!((both.http3, both.http2, both.http1), (Some(443), true, true));
        for other in [served(None, false, false), served(Some(8443), false, false)] {
            let mut both = served(Some(443), true, true);
            both.and(&other);
            assert_eq!((both.http3, both.http2, both.http1), (None, false, false));
        }
    }
}
