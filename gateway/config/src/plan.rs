//! What control minds for an upstream while lanes serve it: names to resolve again, checks, ejection, weights.

use super::decode::{self, Node, Section};
use super::diagnostics::Sink;
use super::settings::{health as h, upstream as s};
use super::{ResolverKind, service_domain};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What control minds for one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// As configured; a name may stand for several servers.
    pub servers: Vec<ServerPlan>,
    /// Who resolves their names.
    pub resolver: ResolverKind,
    /// How often names are resolved again; `None`: when the answer's TTL ends.
    pub resolve_every: Option<Duration>,
    /// Active checks.
    pub health: Option<HealthCheck>,
    /// Failures in a row after which a server is left alone for a while; 0: never.
    pub eject_after: u32,
    /// For how long, the first time; twice as long each time after.
    pub eject_for: Duration,
    /// A server that comes (back) gets its whole weight only after this time.
    pub slow_start: Duration,
}

/// One server as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPlan {
    /// A name or an address, without brackets; of a server at a Unix socket `unix:` and the path; of a service its name.
    pub host: String,
    /// Its port; 0 at a Unix socket, and of a service.
    pub port: u16,
    /// The path of its Unix socket.
    pub socket: Option<Arc<Path>>,
    /// For logs, metrics and orders: `app:8080`. No other server of the upstream has it.
    pub name: String,
    /// Its share of the requests, beside the others'.
    pub weight: u32,
    /// Used only when no other can be.
    pub backup: bool,
    /// Nothing new is given to it.
    pub drain: bool,
}

impl ServerPlan {
    /// Whether its host must be resolved.
    pub fn has_name(&self) -> bool {
        self.socket.is_none() && self.host.parse::<IpAddr>().is_err()
    }

    /// Host and port as in a URL: `app:8080`, `[::1]:80`; at a Unix socket `localhost`; of a service its domain.
    pub fn authority(&self) -> String {
        if let Some(domain) = service_domain(&self.host) {
            return domain.to_owned();
        }
        match self.host.contains(':') {
            _ if self.socket.is_some() => "localhost".to_owned(),
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// How servers are asked whether they are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// By HTTP: the target; `None`: a connection (and, for https servers, a handshake) is enough.
    pub path: Option<String>,
    /// `Host` of the request; `None`: the server's name.
    pub host: Option<String>,
    /// From one check to the next.
    pub interval: Duration,
    /// How long one may take. The next one is not begun before.
    pub timeout: Duration,
    /// Good checks in a row until a server that was down is up.
    pub rise: u32,
    /// Bad checks in a row until it is down.
    pub fall: u32,
    /// Statuses that are good: from, to.
    pub status: (u16, u16),
    /// The port that is asked, if it is not the server's.
    pub port: Option<u16>,
    /// By a datagram.
    pub datagram: Option<DatagramCheck>,
}

/// A check by a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramCheck {
    /// What is sent.
    pub send: Vec<u8>,
    /// What the reply must contain; empty: anything.
    pub expect: Vec<u8>,
}

/// Most bytes of what a check sends or expects.
const MAX_DATAGRAM: usize = 1024;

/// Most times that the ejection's length is doubled: 10 s become 5 minutes.
pub const EJECT_DOUBLINGS: u32 = 5;

impl Default for Plan {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            resolver: ResolverKind::default(),
            resolve_every: None,
            health: None,
            eject_after: s::eject_after.default() as u32,
            eject_for: s::eject_for.default(),
            slow_start: s::slow_start.default(),
        }
    }
}

/// Reads the settings of an `[[upstream]]` that are control's.
/// `udp`: whether its servers take datagrams, if that is known.
pub(super) fn read(section: &Section, resolver: ResolverKind, udp: Option<bool>) -> Plan {
    Plan {
        servers: Vec::new(),
        resolver,
        resolve_every: section.optional(&s::resolve_interval),
        health: section.table(&s::health).map(|section| health(section, udp)),
        eject_after: section.or(&s::eject_after) as u32,
        eject_for: section.or(&s::eject_for),
        slow_start: section.or(&s::slow_start),
    }
}

/// The path of a health check.
pub(super) fn path(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    target(sink, key, node, "/health")
}

/// The target of a request that the gateway makes. `example`: another one.
pub(super) fn target(sink: &Sink, key: &str, node: &Node, example: &str) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if !s.starts_with('/') || !s.bytes().all(|b| b.is_ascii_graphic()) {
        sink.error(&node.span(), format!("\"{s}\" is not a path"), Some(format!("write {key} = \"{example}\"")));
        return None;
    }
    Some(s)
}

fn health(section: Section, udp: Option<bool>) -> HealthCheck {
    let path = section.optional(&h::path);
    let has_path = section.key_span("path").is_some();
    let host = section.optional_at(&h::host);
    let status = section.optional_at(&h::status);
    for (name, span) in [("host", host.as_ref().map(|h| &h.span)), ("status", status.as_ref().map(|s| &s.span))] {
        if let (Some(span), false) = (span, has_path) {
            let help = "add path = \"/health\": without a path, a health check only connects".to_owned();
            section.sink.error(span, format!("\"{name}\" without \"path\""), Some(help));
        }
    }
    let send = section.optional_at(&h::send);
    let expect = section.optional_at(&h::expect);
    let port = section.optional(&h::port).and_then(|port| u16::try_from(port).ok());
    check_datagrams(&section, udp, port.is_some());
    let datagram = send.map(|send| DatagramCheck {
        send: send.value,
        expect: expect.as_ref().map(|expect| expect.value.clone()).unwrap_or_default(),
    });
    if let (Some(expect), None) = (&expect, &datagram) {
        let help = "add \"send\": the datagram to which servers reply".to_owned();
        section.sink.error(&expect.span, "\"expect\" without \"send\"", Some(help));
    }
    let check = HealthCheck {
        path,
        port,
        datagram,
        host: host.map(|h| h.value),
        interval: section.or(&h::interval),
        timeout: section.or(&h::timeout),
        rise: section.or(&h::rise) as u32,
        fall: section.or(&h::fall) as u32,
        status: status.map_or_else(|| h::status.default(), |s| s.value),
    };
    section.finish();
    check
}

/// Whether the check is one that the servers can answer.
fn check_datagrams(section: &Section, udp: Option<bool>, has_port: bool) {
    let sink = section.sink;
    let (send, path) = (section.key_span("send"), section.key_span("path"));
    match (udp, send, path) {
        (Some(false), Some(span), _) => {
            let help = "remove \"send\": the check connects, and with \"path\" it sends a request".to_owned();
            sink.error(&span, "\"send\" is for servers with udp://", Some(help));
        }
        (Some(true), Some(_), Some(path)) => {
            let help = "keep one of them".to_owned();
            sink.error(&path, "\"path\" and \"send\" exclude each other", Some(help));
        }
        (Some(true), None, _) if !has_port => {
            let help = "add \"send\", or the TCP \"port\" of a service on the same machine".to_owned();
            sink.error(&section.span, "nothing says how to check a server with udp://", Some(help));
        }
        _ => {}
    }
}

/// A text, or `hex:` and bytes.
pub(super) fn bytes(sink: &Sink, key: &str, node: &Node) -> Option<Vec<u8>> {
    let s = decode::text(sink, key, node)?;
    let hex = |digits: &str| -> Option<Vec<u8>> {
        let digit = |d: u8| (d as char).to_digit(16).map(|d| d as u8);
        digits.as_bytes().chunks(2).map(|two| Some(digit(two[0])? << 4 | digit(*two.get(1)?)?)).collect()
    };
    let bytes = match s.strip_prefix("hex:") {
        Some(digits) => hex(digits),
        None => Some(s.clone().into_bytes()),
    };
    match bytes {
        Some(bytes) if (1..=MAX_DATAGRAM).contains(&bytes.len()) => Some(bytes),
        Some(_) => {
            sink.error(&node.span(), format!("\"{key}\" must have 1 to {MAX_DATAGRAM} bytes"), None);
            None
        }
        None => {
            let help = format!("write two digits for each byte: {key} = \"hex:0001f8\"");
            sink.error(&node.span(), format!("\"{s}\" is not hexadecimal"), Some(help));
            None
        }
    }
}

/// `200`, `"200"` or `"200-399"`.
pub(super) fn statuses(sink: &Sink, key: &str, node: &Node) -> Option<(u16, u16)> {
    statuses_as_in(sink, key, node, &format!("write {key} = 200 or {key} = \"200-399\""))
}

/// The same, with another help.
pub(super) fn statuses_as_in(sink: &Sink, key: &str, node: &Node, help: &str) -> Option<(u16, u16)> {
    let text = match node.get_ref() {
        toml::de::DeValue::Integer(i) => i.as_str().to_owned(),
        toml::de::DeValue::String(s) => s.to_string(),
        _ => {
            decode::wrong_type(sink, key, node, "a status or a range of statuses", help.to_owned());
            return None;
        }
    };
    let (from, to) = text.split_once('-').unwrap_or((&text, &text));
    match (from.trim().parse::<u16>(), to.trim().parse::<u16>()) {
        (Ok(from), Ok(to)) if (100..=599).contains(&from) && from <= to && to <= 599 => Some((from, to)),
        _ => {
            let message = format!("\"{text}\" is not a status or a range of statuses");
            sink.error(&node.span(), message, Some(help.to_owned()));
            None
        }
    }
}
