//! OpenTelemetry collectors: where `[traces]` and `[otlp]` send what they export.

use super::certificates::load;
use super::decode::{self, At, Node};
use super::diagnostics::Sink;
use super::files;
use http::{HeaderName, HeaderValue, Uri};
use rustls::pki_types::{CertificateDer, ServerName};
use std::borrow::Cow;
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// A collector, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorEndpoint {
    /// Over TLS.
    pub tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path; empty where none is written.
    pub path: String,
}

impl CollectorEndpoint {
    /// The value of `Host` or `:authority`.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectorProtocol {
    /// Protobuf over HTTP/1.1.
    Http,
    /// gRPC over HTTP/2.
    Grpc,
}

/// A header field for the collector, whose value is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct CollectorHeader {
    /// In lower case.
    pub name: String,
    /// Zeroed when dropped.
    pub value: Zeroizing<String>,
}

impl std::fmt::Debug for CollectorHeader {
    /// Without the value.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CollectorHeader").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Traces. The path of the collector's URL is theirs.
    Traces,
    /// Metrics. The path of the collector's URL is before their own.
    Metrics,
    /// Logs.
    Logs,
}

/// A collector, and what it is told with each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// Where it is.
    pub endpoint: CollectorEndpoint,
    /// How it is spoken to.
    pub protocol: CollectorProtocol,
    /// What the gateway is called.
    pub service: String,
    /// Sent with each request to the collector.
    pub header: Option<CollectorHeader>,
    /// Over TLS: the certificates that the collector is verified with.
    pub roots: Vec<CertificateDer<'static>>,
}

impl Collector {
    /// The path of requests to the collector (OTLP 1.x, "OTLP/HTTP Request").
    pub fn path(&self, signal: Signal) -> Cow<'_, str> {
        let (service, own) = match signal {
            Signal::Traces => ("trace.v1.TraceService", "/v1/traces"),
            Signal::Metrics => ("metrics.v1.MetricsService", "/v1/metrics"),
            Signal::Logs => ("logs.v1.LogsService", "/v1/logs"),
        };
        let written = self.endpoint.path.as_str();
        match (self.protocol, signal) {
            (CollectorProtocol::Grpc, _) => format!("/opentelemetry.proto.collector.{service}/Export").into(),
            (CollectorProtocol::Http, _) if written.is_empty() => own.into(),
            (CollectorProtocol::Http, Signal::Traces) => written.into(),
            (CollectorProtocol::Http, _) => format!("{}{own}", written.trim_end_matches('/')).into(),
        }
    }
}

/// A collector's settings, as they were read.
pub(super) struct Written<'s> {
    pub sink: &'s Sink<'s>,
    /// `[traces]` or `[otlp]`.
    pub title: &'static str,
    /// What is exported, in a sentence.
    pub what: &'static str,
    pub endpoint: Option<At<CollectorEndpoint>>,
    pub protocol: CollectorProtocol,
    pub service: Option<At<String>>,
    pub default_service: String,
    pub header_file: Option<At<PathBuf>>,
    pub ca: Option<At<PathBuf>>,
    /// `ca` and `header_file` are there, whether or not they could be read.
    pub has: (bool, bool),
    /// Of the table.
    pub span: Range<usize>,
}

impl Written<'_> {
    /// Checks them together.
    pub fn checked(self) -> Option<Collector> {
        let Self { sink, title, what, protocol, header_file, ca, has: (has_ca, has_header), .. } = self;
        let mut good = header_file.is_some() == has_header;
        let At { value: endpoint, span: written } = self.endpoint?;
        if protocol == CollectorProtocol::Grpc && !endpoint.path.is_empty() {
            let help =
                format!("write endpoint = \"http{}://{}\"", if endpoint.tls { "s" } else { "" }, endpoint.authority());
            sink.error(&written, "the URL of a collector has no path with protocol = \"grpc\"", Some(help));
            good = false;
        }
        if !endpoint.tls && !is_local(&endpoint.host) {
            let header = if header_file.is_some() { " and the header field of \"header_file\"" } else { "" };
            let message = format!(
                "the connection to the collector is not encrypted: an attacker on the network path can read {what}{header}"
            );
            sink.warn(&written, message, Some("write endpoint = \"https://…\"".to_owned()));
        }
        if let (Some(ca), false) = (&ca, endpoint.tls) {
            let help = "write endpoint = \"https://HOST:PORT\"".to_owned();
            sink.warn(&ca.span, "\"ca\" has no effect without TLS", Some(help));
        }
        if let Some(service) =
            self.service.as_ref().filter(|service| service.value.is_empty() || service.value.len() > 128)
        {
            let help = "write for example service = \"sealane\"".to_owned();
            sink.error(&service.span, "\"service\" must be 1 to 128 bytes", Some(help));
            good = false;
        }
        let roots = match (endpoint.tls, &ca) {
            (false, _) => Some(Vec::new()),
            (true, Some(file)) => load::trust_anchors(sink, file),
            // It is written, and wrong.
            (true, None) if has_ca => None,
            (true, None) => sink.system_roots(&self.span, "the collector", &format!("\"ca\" in {title}")),
        };
        let header = match header_file {
            None => None,
            Some(file) => Some(header(sink, &file)?),
        };
        let service = self.service.map_or(self.default_service, |service| service.value);
        let roots = roots?;
        good.then_some(Collector { endpoint, protocol, service, header: header.flatten(), roots })
    }
}

pub(super) fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The header field in a file; `Some(None)` where the file is not read, or not yet.
fn header(sink: &Sink, file: &At<PathBuf>) -> Option<Option<CollectorHeader>> {
    sink.names_file(&file.value);
    files::warn_if_readable(sink, file, "file with the header field for the collector");
    if sink.content(&file.value).is_none() {
        return Some(None);
    }
    let bytes = files::read(sink, "header field for the collector", file)?;
    let found = parse_header(bytes);
    if found.is_none() {
        let help = "the file must have one line, as in \"authorization: Bearer TOKEN\"".to_owned();
        sink.error(&file.span, format!("{}: this is not a header field", file.value.display()), Some(help));
    }
    found.map(Some)
}

fn parse_header(bytes: &[u8]) -> Option<CollectorHeader> {
    let line = std::str::from_utf8(bytes).ok()?.trim_end_matches(['\r', '\n']);
    let (name, value) = line.split_once(':')?;
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let value = value.trim();
    // What frames the message or names the collector is the client's.
    let is_own = ["host", "content-length", "content-type", "transfer-encoding", "connection", "te"];
    if value.is_empty() || HeaderValue::from_str(value).is_err() || is_own.contains(&name.as_str()) {
        return None;
    }
    Some(CollectorHeader { name: name.as_str().to_owned(), value: Zeroizing::new(value.to_owned()) })
}

/// `http://HOST:PORT/PATH` or `https://HOST:PORT/PATH`.
pub(super) fn endpoint(sink: &Sink, key: &str, node: &Node) -> Option<CollectorEndpoint> {
    let text = decode::text(sink, key, node)?;
    let parsed = parse_endpoint(&text);
    if parsed.is_none() {
        let help = format!("write {key} = \"http://127.0.0.1:4318\"");
        // It may have a password in it, which belongs into a file.
        let message = match text.contains('@') {
            true => "the URL of a collector has no user and no password: write \"header_file\"".to_owned(),
            false => format!("\"{text}\" is not the URL of a collector"),
        };
        sink.error(&node.span(), message, Some(help));
    }
    parsed
}

pub(super) fn parse_endpoint(text: &str) -> Option<CollectorEndpoint> {
    let uri: Uri = text.parse().ok()?;
    let tls = match uri.scheme_str()? {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let authority = uri.authority()?;
    if authority.as_str().contains('@') || text.contains('#') || uri.query().is_some() {
        return None;
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    // What TLS can verify is what can be resolved.
    ServerName::try_from(host).ok()?;
    let rest = authority.as_str().strip_prefix(authority.host())?;
    let port = match rest.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok()?,
        None if rest.is_empty() && tls => 443,
        None if rest.is_empty() => 80,
        _ => return None,
    };
    let path = if uri.path() == "/" { String::new() } else { uri.path().to_owned() };
    (port > 0).then(|| CollectorEndpoint { tls, host: host.to_owned(), port, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_collectors() {
        let at = |tls, host: &str, port, path: &str| {
            Some(CollectorEndpoint { tls, host: host.to_owned(), port, path: path.to_owned() })
        };
        assert_eq!(parse_endpoint("http://127.0.0.1:4318"), at(false, "127.0.0.1", 4318, ""));
        assert_eq!(parse_endpoint("http://localhost:4318/"), at(false, "localhost", 4318, ""));
        assert_eq!(parse_endpoint("https://c.example/otlp/v1/traces"), at(true, "c.example", 443, "/otlp/v1/traces"));
        let v6 = parse_endpoint("http://[::1]:4317");
        assert_eq!(v6, at(false, "::1", 4317, ""));
        assert_eq!(v6.unwrap().authority(), "[::1]:4317");
        for bad in [
            "",
            "127.0.0.1:4318",
            "grpc://a:1",
            "http://",
            "http://a:0",
            "http://a:",
            "http://a:70000",
            "http://user:word@a:1",
            "http://a:1/?q",
            "http://a b:1",
            "unix:///a",
        ] {
            assert_eq!(parse_endpoint(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_header_field_is_one_line() {
        let header = parse_header(b"Authorization: Bearer a b\r\n").unwrap();
        assert_eq!((header.name.as_str(), header.value.as_str()), ("authorization", "Bearer a b"));
        assert!(!format!("{header:?}").contains("Bearer"));
        for bad in [&b""[..], b"a", b"a:", b": b", b"a b: c", b"a: b\nc: d", b"a: \xff", b"Host: a", b"a: b\x01"] {
            assert!(parse_header(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn each_signal_has_its_path() {
        let path = |url: &str, protocol, signal| {
            let collector = Collector {
                endpoint: parse_endpoint(url).unwrap(),
                protocol,
                service: String::new(),
                header: None,
                roots: Vec::new(),
            };
            collector.path(signal).into_owned()
        };
        let http = |url: &str, signal| path(url, CollectorProtocol::Http, signal);
        assert_eq!(http("http://a:1", Signal::Traces), "/v1/traces");
        assert_eq!(http("http://a:1/own", Signal::Traces), "/own");
        assert_eq!(http("http://a:1", Signal::Metrics), "/v1/metrics");
        assert_eq!(http("http://a:1/otlp/", Signal::Logs), "/otlp/v1/logs");
        let grpc = path("http://a:1", CollectorProtocol::Grpc, Signal::Logs);
        assert_eq!(grpc, "/opentelemetry.proto.collector.logs.v1.LogsService/Export");
    }
}
