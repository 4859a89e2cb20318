//! `[[upstream]]`, and the servers named by a host's `to`.

use super::decode::{self, At, Section};
use super::diagnostics::Sink;
use super::identity::{Store, plain};
use super::tls::{self, SystemRoots};
use rustls::pki_types::ServerName;
use sealane_proxy::snapshot::{Server, Upstream, UpstreamHttp};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Versions of HTTP.
const HTTP: &[(&str, UpstreamHttp)] =
    &[("1.1", UpstreamHttp::One), ("2", UpstreamHttp::Two), ("auto", UpstreamHttp::Auto)];
/// Idle connections per server and lane.
const DEFAULT_KEEPALIVE: usize = 128;

/// One server as written.
struct ServerUrl {
    /// `None`: an address without a scheme.
    https: Option<bool>,
    /// Without brackets.
    host: String,
    port: u16,
}

impl ServerUrl {
    /// For logs: `127.0.0.1:3000`.
    fn name(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Parses `http://host[:port]`, `https://host[:port]` or `host:port`. On failure: what is wrong, and what to write.
fn parse_server(s: &str) -> Result<ServerUrl, (String, Option<String>)> {
    let (https, rest) = match s.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Some(false), rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Some(true), rest),
        Some((scheme, rest)) => {
            let help = format!("write \"http://{rest}\" or \"https://{rest}\"");
            return Err((format!("servers of kind \"{scheme}\" are not supported"), Some(help)));
        }
        None => (None, s),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if let Some(end) = authority.find(['/', '?', '#']) {
        let scheme = &s[..s.len() - rest.len()];
        let help = format!("write \"{scheme}{}\"", &authority[..end]);
        return Err(("a server has no path: requests keep their own".to_owned(), Some(help)));
    }
    if authority.contains('@') {
        return Err(("a server has no user name or password".to_owned(), None));
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => match v6.split_once(']') {
            Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => (host, port.strip_prefix(':').or(Some(port))),
            _ => return Err((format!("\"{authority}\" is not an IPv6 address in brackets"), None)),
        },
        None => match authority.split_once(':') {
            Some((_, more)) if more.contains(':') => {
                let help = "put an IPv6 address into brackets: \"http://[::1]:3000\"".to_owned();
                return Err((format!("\"{authority}\" is not a host and a port"), Some(help)));
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match (port.filter(|p| !p.is_empty()), https) {
        (Some(p), _) => match p.parse::<u16>() {
            Ok(port) if port > 0 => port,
            _ => return Err((format!("\"{p}\" is not a port: 1 to 65535"), None)),
        },
        (None, Some(true)) => 443,
        (None, Some(false)) => 80,
        (None, None) => {
            let help = format!("write \"http://{authority}\", or add a port: \"{authority}:8080\"");
            return Err(("a server without a port".to_owned(), Some(help)));
        }
    };
    let good = host.parse::<IpAddr>().is_ok()
        || (!host.is_empty()
            && host.trim_end_matches('.').split('.').all(|label| {
                !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            }));
    if !good {
        let help = "write \"http://127.0.0.1:3000\", \"https://name\" or \"name:port\"".to_owned();
        return Err((format!("\"{host}\" is not a host name or an IP address"), Some(help)));
    }
    Ok(ServerUrl { https, host: host.to_ascii_lowercase(), port })
}

/// The addresses of a server, those that cannot be reached from here left out.
fn resolve(server: &ServerUrl) -> std::io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, server.port)]);
    }
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in (server.host.as_str(), server.port).to_socket_addrs()? {
        if !found.contains(&address) {
            found.push(address);
        }
    }
    // "localhost" is both ::1 and 127.0.0.1, and most servers listen on one of them only, mostly the latter.
    if found.iter().all(|a| a.ip().is_loopback())
        && let Some(v4) = found.iter().copied().find(SocketAddr::is_ipv4)
    {
        return Ok(vec![v4]);
    }
    let reachable: Vec<SocketAddr> = found.iter().copied().filter(has_route).collect();
    match (reachable.is_empty(), found.is_empty()) {
        (false, _) => Ok(reachable),
        (true, false) => Ok(found),
        (true, true) => Err(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address")),
    }
}

/// Whether there is a route (a machine without IPv6 cannot use the IPv6 addresses that a name has). Connecting a
/// datagram socket sends nothing.
fn has_route(address: &SocketAddr) -> bool {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    UdpSocket::bind((any, 0)).and_then(|s| s.connect(address)).is_ok()
}

/// The checked servers of a group.
struct Servers {
    https: bool,
    servers: Vec<Server>,
    /// The host of each as written, for the name in the certificate.
    hosts: Vec<At<String>>,
}

/// `tls_section`: an upstream with a TLS section whose servers have no scheme is https.
fn servers(sink: &Sink, list: &[At<String>], tls_section: bool) -> Option<Servers> {
    let mut out = Servers { https: false, servers: Vec::new(), hosts: Vec::new() };
    let mut kind: Option<(bool, &At<String>)> = None;
    let mut good = true;
    for entry in list {
        let server = match parse_server(&entry.value) {
            Ok(server) => server,
            Err((message, help)) => {
                sink.error(&entry.span, message, help);
                good = false;
                continue;
            }
        };
        let https = server.https.unwrap_or(tls_section);
        match kind {
            None => kind = Some((https, entry)),
            Some((first, at)) if first != https => {
                let message = format!("\"{}\" and \"{}\" differ in http and https", at.value, entry.value);
                let help = "all servers of one upstream are reached the same way; make two upstreams".to_owned();
                sink.error(&entry.span, message, Some(help));
                good = false;
            }
            Some(_) => {}
        }
        match resolve(&server) {
            Ok(addresses) => {
                let several = addresses.len() > 1;
                out.servers.extend(addresses.into_iter().map(|address| Server {
                    name: match several {
                        true => format!("{} ({})", server.name(), address.ip()),
                        false => server.name(),
                    },
                    address,
                }));
            }
            Err(e) => {
                sink.error(&entry.span, format!("\"{}\" does not resolve: {}", server.host, plain(&e)), None);
                good = false;
            }
        }
        out.hosts.push(At { value: server.host, span: entry.span.clone() });
    }
    out.https = kind.is_some_and(|(https, _)| https);
    good.then_some(out)
}

/// What the reading of upstreams needs besides the section.
pub(super) struct Context<'c> {
    pub store: &'c mut Store,
    pub system: &'c mut SystemRoots,
    pub base: &'c Path,
}

/// Reads one `[[upstream]]`; its name is returned even when the rest is wrong, so that no host's reference to it is
/// called unknown.
pub(super) fn read(section: Section, context: &mut Context) -> (Option<At<String>>, Option<Upstream>) {
    let sink = section.sink;
    let name = section.required("name", "\"backend\"", decode::text);
    let list = section.required("servers", "[\"http://127.0.0.1:3000\"]", decode::strings);
    let tls_span = section.key_span("tls");
    let tls_section = section.table("tls", "[upstream.tls]");
    let group = list.as_ref().and_then(|l| servers(sink, &l.value, tls_section.is_some()));
    let keepalive = section.optional_at("keepalive", decode::count(0..=65_536));
    let http = section.optional_at("http", decode::choice(HTTP));
    let proxy_protocol = section.optional_at("proxy_protocol", decode::choice(&[("v1", 1u8), ("v2", 2u8)]));
    let d = defaults();
    let mut upstream = Upstream {
        name: name.as_ref().map(|n| n.value.clone()).unwrap_or_default(),
        keepalive: keepalive.as_ref().map_or(d.keepalive, |k| k.value as usize),
        keepalive_timeout: section.or("keepalive_timeout", d.keepalive_timeout, decode::timeout),
        connect_timeout: section.or("connect_timeout", d.connect_timeout, decode::timeout),
        first_byte_timeout: section.or("first_byte_timeout", d.first_byte_timeout, decode::timeout),
        idle_timeout: section.or("idle_timeout", d.idle_timeout, decode::timeout),
        http: http.as_ref().map(|h| h.value).unwrap_or_default(),
        proxy_protocol: proxy_protocol.as_ref().map(|p| p.value),
        host_header: section.optional("host_header", host_header),
        ..d
    };
    if proxy_protocol.is_some() {
        if let Some(k) = keepalive.filter(|k| k.value > 0) {
            let help =
                "set keepalive = 0: with \"proxy_protocol\" each client needs a connection of its own".to_owned();
            sink.error(&k.span, "\"keepalive\" and \"proxy_protocol\" exclude each other", Some(help));
        }
        upstream.keepalive = 0;
        if let Some(h) = http.filter(|h| h.value != UpstreamHttp::One) {
            let help = "remove one of them: HTTP/2 connections carry the requests of many clients".to_owned();
            sink.error(&h.span, "\"http\" and \"proxy_protocol\" exclude each other", Some(help));
        }
    }
    let span = list.as_ref().map_or_else(|| section.span.clone(), |l| l.span.clone());
    section.finish();
    let Some(group) = group else {
        // The TLS section is read all the same, for its mistakes.
        if let Some(section) = tls_section {
            tls::upstream(sink, Some(section), &span, context.store, context.system, context.base);
        }
        return (name, None);
    };
    if let (Some(span), false) = (tls_span, group.https) {
        let help = "write https:// in \"servers\", or remove [upstream.tls]".to_owned();
        sink.error(&span, "TLS settings for servers that are http://", Some(help));
    }
    let upstream = finish(sink, upstream, group, tls_section, &span, context);
    (name, upstream)
}

/// An upstream with all settings at their defaults, for a host's `to`.
pub(super) fn anonymous(
    sink: &Sink,
    name: &str,
    list: &At<Vec<At<String>>>,
    context: &mut Context,
) -> Option<Upstream> {
    let group = servers(sink, &list.value, false)?;
    let upstream = Upstream { name: name.to_owned(), ..defaults() };
    finish(sink, upstream, group, None, &list.span, context)
}

fn defaults() -> Upstream {
    Upstream {
        name: String::new(),
        servers: Vec::new(),
        http: UpstreamHttp::One,
        tls: None,
        keepalive: DEFAULT_KEEPALIVE,
        keepalive_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(5),
        first_byte_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(60),
        proxy_protocol: None,
        host_header: None,
    }
}

fn finish(
    sink: &Sink,
    mut upstream: Upstream,
    group: Servers,
    tls_section: Option<Section>,
    span: &std::ops::Range<usize>,
    context: &mut Context,
) -> Option<Upstream> {
    upstream.servers = group.servers;
    if !group.https && tls_section.is_none() {
        return Some(upstream);
    }
    let settings = tls::upstream(sink, tls_section, span, context.store, context.system, context.base)?;
    let server_name = match &settings.server_name {
        Some(name) => name.clone(),
        None => {
            let first = group.hosts.first()?;
            if let Some(other) = group.hosts.iter().find(|h| h.value != first.value) {
                let message = format!("servers with different names: \"{}\" and \"{}\"", first.value, other.value);
                let help = "set server_name in [upstream.tls] to the name that all their certificates have".to_owned();
                sink.error(&other.span, message, Some(help));
                return None;
            }
            first.clone()
        }
    };
    let bare = server_name.value.trim_end_matches('.');
    if ServerName::try_from(bare).is_err() {
        sink.error(&server_name.span, format!("\"{bare}\" is no name that a certificate could have"), None);
        return None;
    }
    let policy = settings.policy(&upstream.name, bare.to_owned(), upstream.http);
    upstream.tls = Some(Arc::new(policy));
    Some(upstream)
}

/// A value for `Host` (RFC 9112 §3.2: a host and perhaps a port).
fn host_header(sink: &Sink, key: &str, node: &decode::Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if s.is_empty() || !s.bytes().all(good) {
        sink.error(&node.span(), format!("\"{s}\" is no value for Host"), Some("write \"example.com\"".to_owned()));
        return None;
    }
    Some(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(s: &str) -> Option<(Option<bool>, String)> {
        parse_server(s).ok().map(|u| (u.https, u.name()))
    }

    #[test]
    fn servers_are_urls_or_addresses() {
        assert_eq!(parsed("http://127.0.0.1:3000"), Some((Some(false), "127.0.0.1:3000".into())));
        assert_eq!(parsed("http://127.0.0.1:3000/"), Some((Some(false), "127.0.0.1:3000".into())));
        assert_eq!(parsed("https://Example.COM"), Some((Some(true), "example.com:443".into())));
        assert_eq!(parsed("http://[::1]"), Some((Some(false), "[::1]:80".into())));
        assert_eq!(parsed("[::1]:9"), Some((None, "[::1]:9".into())));
        assert_eq!(parsed("app:8080"), Some((None, "app:8080".into())));
        for bad in [
            "",
            "app",
            "http://",
            "http://a/b",
            "ftp://a",
            "http://u@a",
            "a:0",
            "a:70000",
            "::1:80",
            "http://a b",
            "[x]:1",
        ] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn messages_say_what_to_write() {
        let help = |s| parse_server(s).err().and_then(|(_, help)| help).unwrap();
        assert_eq!(help("http://a:1/path?q"), "write \"http://a:1\"");
        assert_eq!(help("app"), "write \"http://app\", or add a port: \"app:8080\"");
        assert_eq!(help("tcp://a:1"), "write \"http://a:1\" or \"https://a:1\"");
    }

    #[test]
    fn localhost_is_one_server() {
        let server = parse_server("http://localhost:1").unwrap_or_else(|(e, _)| panic!("{e}"));
        let found = resolve(&server).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].ip().is_loopback());
    }
}
