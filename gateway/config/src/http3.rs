//! `http3` and `[listener.quic]`.

use super::audit;
use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::settings::{listener, quic as s};
use super::tls::ListenerPolicies;
use sealane_proxy::snapshot::QuicSettings;
use sealane_route::NamePattern;
use sealane_tls::policy::Version;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Browsers remember what `Alt-Svc` says for so long, in seconds.
const REMEMBERED: u32 = 86_400;

/// HTTP/3 as a listener is to serve it, before its port is known.
#[derive(Clone, Debug)]
pub struct Http3 {
    /// Limits. `alt_svc` is put in once the port is known, if it is to be.
    pub settings: QuicSettings,
    /// Responses over TCP announce HTTP/3.
    pub announce: bool,
    /// The port that is announced; `None` is the one that is bound.
    pub announced_port: Option<u16>,
    /// The host that is announced; `None` is the one that clients ask for.
    pub announced_host: Option<String>,
}

impl Http3 {
    /// The port by which clients come, where this one is bound.
    pub fn port(&self, bound: u16) -> u16 {
        self.announced_port.unwrap_or(bound)
    }

    /// With the port as bound.
    pub fn at(&self, port: u16) -> QuicSettings {
        let (host, port) = (self.announced_host.as_deref().unwrap_or_default(), self.port(port));
        let mut settings = self.settings.clone();
        settings.alt_svc = self.announce.then(|| format!("h3=\"{host}:{port}\"; ma={REMEMBERED}"));
        settings
    }
}

/// Reads what a `[[listener]]` says of HTTP/3. `socket`: one of its addresses is this Unix socket.
pub(super) fn read(
    section: &Section,
    tls: Option<&ListenerPolicies>,
    proxy_protocol: bool,
    socket: Option<&At<String>>,
) -> Option<Http3> {
    let wanted = section.optional_at(&listener::http3);
    let is_wanted = wanted.as_ref().is_some_and(|w| w.value);
    let quic = section.table(&listener::quic).map(|quic| settings(quic, is_wanted));
    let wanted = wanted.filter(|w| w.value)?;
    audit::outside_module(section.sink, &wanted.span, audit::QUIC, "remove \"http3\"");
    if let Some(text) = socket {
        let help = "write the Unix socket in a [[listener]] of its own: HTTP/3 needs UDP".to_owned();
        section.sink.error(&text.span, "\"http3\" is for IP addresses", Some(help));
        return None;
    }
    let wrong = match tls {
        // What is wrong with it is told already.
        None if section.key_span("tls").is_some() => return None,
        None => Some((
            "\"http3\" needs [listener.tls]",
            "add [listener.tls] with certificates, or remove \"http3\": HTTP/3 is always encrypted",
        )),
        Some(t) if t.policies.iter().any(|p| !p.versions.contains(&Version::Tls13)) => {
            Some(("\"http3\" needs TLS 1.3", "add \"1.3\" to \"versions\""))
        }
        Some(t) if t.certificates.has_remote_key() => Some((
            "\"http3\" and a key in a token exclude each other",
            "use certificates whose keys are in files, or serve HTTP/3 by a [[listener]] of its own: over QUIC, a slow token would \
             delay other clients",
        )),
        Some(_) if proxy_protocol => Some((
            "\"http3\" and \"proxy_protocol\" exclude each other",
            "remove one of them: QUIC has no PROXY protocol",
        )),
        Some(_) => None,
    };
    if let Some((message, help)) = wrong {
        section.sink.error(&wanted.span, message, Some(help.to_owned()));
        return None;
    }
    Some(quic.unwrap_or_else(defaults))
}

fn defaults() -> Http3 {
    let settings = QuicSettings {
        // What RFC 9114 §6.1 wants at least. quinn-proto fills a table of as many places for each connection; with the
        // client's own streams they are as many as its table of 128 takes.
        max_streams: s::max_streams.default() as u32,
        stream_window: s::stream_window.default(),
        connection_window: s::connection_window.default(),
        send_window: s::send_window.default(),
        migration: s::migration.default(),
        offload: s::offload.default(),
        retry_above: s::retry_above.default() as usize,
        alt_svc: None,
    };
    Http3 { settings, announce: s::alt_svc.default(), announced_port: None, announced_host: None }
}

fn settings(section: Section, is_wanted: bool) -> Http3 {
    let settings = QuicSettings {
        max_streams: section.or(&s::max_streams) as u32,
        stream_window: section.or(&s::stream_window),
        connection_window: section.or(&s::connection_window),
        send_window: section.or(&s::send_window),
        migration: section.or(&s::migration),
        offload: section.or(&s::offload),
        retry_above: section.or(&s::retry_above) as usize,
        alt_svc: None,
    };
    let announce = section.or(&s::alt_svc);
    let (port, host) = (section.optional_at(&s::alt_svc_port), section.optional_at(&s::alt_svc_host));
    let spans = [
        (s::alt_svc_port.key, port.as_ref().map(|at| &at.span)),
        (s::alt_svc_host.key, host.as_ref().map(|at| &at.span)),
    ];
    for (key, span) in spans {
        if let (Some(span), false) = (span, announce) {
            let help = format!("remove \"{key}\", or remove \"alt_svc = false\"");
            section.sink.error(span, format!("\"{key}\" has no effect if \"alt_svc\" is false"), Some(help));
        } else if let (Some(span), false) = (span, is_wanted) {
            let help = format!("add http3 = true to the [[listener]], or remove \"{key}\"");
            section.sink.warn(span, format!("\"{key}\" has no effect without \"http3\""), Some(help));
        }
    }
    section.finish();
    let announced_port = port.and_then(|port| u16::try_from(port.value).ok());
    Http3 { settings, announce, announced_port, announced_host: host.map(|host| host.value) }
}

/// `alt_svc_host`: one host, without a port (RFC 7838 §3: an authority in quotes).
pub(super) fn host(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let text = decode::text(sink, key, node)?;
    let help = match text.parse() {
        _ if text.parse::<Ipv6Addr>().is_ok() => format!("write the address in brackets: {key} = \"[{text}]\""),
        Ok(NamePattern::Exact(host)) if !is_half_an_address(&host) => return Some(host.into()),
        Ok(NamePattern::Exact(_)) => {
            format!("write all four numbers of the address, as in {key} = \"192.0.2.1\": no name ends in a number")
        }
        _ => "write a name or an address without a port, as in \"quic.example.com\"; the port is \"alt_svc_port\""
            .to_owned(),
    };
    sink.error(&node.span(), format!("\"{text}\" is not a host"), Some(help));
    None
}

/// Whether clients take this for an IPv4 address, which it is not: its last part is a number (the URL Standard, "ends in a number").
fn is_half_an_address(host: &str) -> bool {
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_number = !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    is_number && host.parse::<Ipv4Addr>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_ends_in_a_number_only_if_it_is_an_address() {
        for host in ["a.example", "192.0.2.1", "1a.example", "1.2.3.4a", "[::1]", "x0x.0xyz"] {
            assert!(!is_half_an_address(host), "{host}");
        }
        for host in ["1.2.3", "7", "a.1", "1.2.3.4.5", "1.2.3.256", "a.0x1f", "1.2.3."] {
            assert!(is_half_an_address(host), "{host}");
        }
    }

    #[test]
    fn announcements() {
        assert_eq!(defaults().at(8443).alt_svc.unwrap(), "h3=\":8443\"; ma=86400");
        assert_eq!(Http3 { announce: false, ..defaults() }.at(1).alt_svc, None);
        let elsewhere = Http3 { announced_port: Some(443), ..defaults() };
        assert_eq!(elsewhere.at(8443).alt_svc.unwrap(), "h3=\":443\"; ma=86400");
        let elsewhere = Http3 { announced_host: Some("[2001:db8::1]".to_owned()), ..elsewhere };
        assert_eq!(elsewhere.at(8443).alt_svc.unwrap(), "h3=\"[2001:db8::1]:443\"; ma=86400");
    }
}
