//! What proxies say of a request's way here: who the client is, and how it came.
//!
//! RFC 7239 (`Forwarded`), the older `X-Forwarded-*`, RFC 8470 (`Early-Data`), RFC 9440 (`Client-Cert`), `Via`
//! (RFC 9110 §7.6.3), by which [`comes_round`] finds loops. [`receive`] judges what a request says when it comes, before anything
//! looks at its fields: what nobody trustworthy has said is thrown away, and who the client is follows from the rest. [`prepare`]
//! adds what the upstream is told, `traceparent` included (`traces.rs` reads the one that comes).

use crate::client::identity::{Client, ClientCert};
use crate::exchange::{Claims, Exchange};
use crate::rules::RouteRef;
use crate::snapshot::AddressHeader;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sealane_http::{FieldError, Fields, Known, LiteralValue, Version, is_authority};
use sealane_route::proxies::{self, TrustedProxies};
use sealane_tls::CertificateDer;
use std::io::Write;
use std::net::IpAddr;

/// What is said of a client's certificate: as a byte sequence (RFC 9440 §2.2), and by its fingerprint.
pub(crate) fn client_cert(der: &CertificateDer<'_>) -> Box<ClientCert> {
    let fingerprint = sealane_tls::fingerprint(der).iter().map(|b| format!("{b:02x}")).collect();
    Box::new(ClientCert::new(format!(":{}:", STANDARD.encode(der)).into_bytes(), fingerprint))
}

/// Judges what a request that has come says of its client.
#[inline]
pub(crate) fn receive(x: &mut Exchange, client: &Client, text: &mut Vec<u8>) -> Result<(), FieldError> {
    let listener = &client.listener().listener;
    let peer = client.peer().ip();
    if !listener.trust_forwarded || !listener.trusted_proxies.is_empty() && !listener.trusted_proxies.contains(peer) {
        x.request.fields.remove_claims();
        return Ok(());
    }
    x.claims = Claims::Kept;
    if listener.trusted_proxies.is_empty() {
        // Everybody is believed, so nobody in particular: there is no first proxy to begin at.
        return Ok(());
    }
    let client = match listener.address_header {
        AddressHeader::XForwardedFor => {
            from_x_forwarded_for(&mut x.request.fields, &listener.trusted_proxies, peer, text)?
        }
        AddressHeader::Forwarded => from_forwarded(&mut x.request.fields, &listener.trusted_proxies, peer, text)?,
    };
    if let Some(ip) = client {
        x.claims = Claims::Client(ip);
    }
    let fields = &mut x.request.fields;
    match client {
        Some(ip) if fields.contains(Known::XRealIp) => {
            text.clear();
            // A vector takes all that is written to it.
            let _ = write!(text, "{ip}");
            fields.set(Known::XRealIp, text)
        }
        Some(_) => Ok(()),
        None => {
            fields.remove(Known::XRealIp);
            Ok(())
        }
    }
}

/// The entries of `X-Forwarded-For`, the last first.
fn entries_backwards(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let entries = fields.all(Known::XForwardedFor).rev().flat_map(|value| value.rsplit(|b| *b == b','));
    entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty())
}

/// The elements of `Forwarded`, the last first.
fn elements_backwards(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    fields.all(Known::Forwarded).rev().flat_map(proxies::elements_backwards)
}

/// Finds the client in `X-Forwarded-For`, and leaves in it, and in `Forwarded`, what trusted proxies have written.
fn from_x_forwarded_for(
    fields: &mut Fields,
    trusted: &TrustedProxies,
    peer: IpAddr,
    text: &mut Vec<u8>,
) -> Result<Option<IpAddr>, FieldError> {
    let (client, hops) = trusted.client(peer, entries_backwards(fields));
    text.clear();
    for hop in (0..hops).rev() {
        // Each of them was read as an address.
        let ip = entries_backwards(fields).nth(hop).and_then(proxies::node);
        ip.into_iter().for_each(|ip| join_address(text, ip));
    }
    replace(fields, Known::XForwardedFor, text)?;
    let end = text.len();
    for hop in (0..hops).rev() {
        let ip = entries_backwards(fields).nth(hop).and_then(proxies::node);
        ip.into_iter().for_each(|ip| join_for(text, end, ip));
    }
    replace(fields, Known::Forwarded, &text[end..])?;
    Ok((hops > 0).then_some(client))
}

/// The same the other way round. Of `X-Forwarded-*` nothing is left but what the elements say, too.
fn from_forwarded(
    fields: &mut Fields,
    trusted: &TrustedProxies,
    peer: IpAddr,
    text: &mut Vec<u8>,
) -> Result<Option<IpAddr>, FieldError> {
    // An element without an address ends the chain, as one with a hidden name does.
    let nodes = elements_backwards(fields).map(|element| proxies::parameter(element, "for").unwrap_or_default());
    let (client, hops) = trusted.client(peer, nodes);
    // The last who is known may have written an element that names nobody.
    let written = hops + usize::from(trusted.contains(client));
    text.clear();
    for hop in (0..hops).rev() {
        let element = elements_backwards(fields).nth(hop).unwrap_or_default();
        let ip = proxies::parameter(element, "for").and_then(proxies::node);
        ip.into_iter().for_each(|ip| join_address(text, ip));
    }
    let chain = text.len();
    for hop in (0..hops).rev() {
        if text.len() > chain {
            text.extend_from_slice(b", ");
        }
        text.extend_from_slice(elements_backwards(fields).nth(hop).unwrap_or_default());
    }
    let elements = text.len();
    // The first trusted proxy's word: it has seen what the client asked for.
    let mut said = |name, is_valid: fn(&[u8]) -> bool| {
        let written = (0..written).rev().filter_map(|hop| elements_backwards(fields).nth(hop));
        let value = written.filter_map(|element| proxies::parameter(element, name)).find(|value| is_valid(value));
        text.extend_from_slice(value.unwrap_or_default());
        text.len()
    };
    let proto = said("proto", |v| v.eq_ignore_ascii_case(b"https") || v.eq_ignore_ascii_case(b"http"));
    let host = said("host", is_authority);
    text[elements..proto].make_ascii_lowercase();
    fields.remove_x_forwarded();
    replace(fields, Known::XForwardedFor, &text[..chain])?;
    replace(fields, Known::Forwarded, &text[chain..elements])?;
    replace(fields, Known::XForwardedProto, &text[elements..proto])?;
    replace(fields, Known::XForwardedHost, &text[proto..host])?;
    Ok((hops > 0).then_some(client))
}

/// Puts a value in the place of all that a field says; an empty one removes it.
fn replace(fields: &mut Fields, known: Known, value: &[u8]) -> Result<(), FieldError> {
    fields.remove(known);
    if value.is_empty() { Ok(()) } else { fields.push_known(known, value) }
}

fn join_address(text: &mut Vec<u8>, ip: IpAddr) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
    let _ = write!(text, "{ip}");
}

/// Appends an element of `Forwarded` to those that begin at `start`.
fn join_for(text: &mut Vec<u8>, start: usize, ip: IpAddr) {
    if text.len() > start {
        text.extend_from_slice(b", ");
    }
    // RFC 7239 §6: an IPv6 address is bracketed and quoted.
    let _ = match ip {
        IpAddr::V4(ip) => write!(text, "for={ip}"),
        IpAddr::V6(ip) => write!(text, "for=\"[{ip}]\""),
    };
}

/// Removes from trailers what must not come back behind a head from which it was removed: what only a trusted proxy may
/// say, which none says in trailers, and what the route removes or sets.
pub(crate) fn clean_trailers(trailers: &mut Fields, route: Option<&RouteRef>) {
    trailers.remove_claims();
    if let Some(route) = route {
        route.clean_request_trailers(trailers);
    }
}

/// What the gateway calls itself in `Via`. All gateways have this name.
macro_rules! pseudonym {
    () => {
        "sealane"
    };
}

/// How many gateways a request may have passed, by `Via`. A chain of gateways is no loop, and no chain is as long; a loop without an end
/// would hold a client's and a server's connection for each pass, until the head is too large.
const MAX_PASSES: usize = 10;

/// Whether a request comes back to the gateway again and again.
#[inline]
pub(crate) fn comes_round(fields: &Fields) -> bool {
    fields.contains(Known::Via) && entries_of(fields, pseudonym!()).nth(MAX_PASSES - 1).is_some()
}

/// What the gateway calls itself in `Via` of copies, in addition.
macro_rules! mirror {
    () => {
        concat!(pseudonym!(), "-mirror")
    };
}

/// Whether a gateway has made a request as the copy of another one. No copies are made of copies: where both come back, each pass
/// would double them.
pub(crate) fn is_copy(fields: &Fields) -> bool {
    fields.contains(Known::Via) && entries_of(fields, mirror!()).next().is_some()
}

/// Marks a request as a copy, also where a setting has removed all other entries of `Via`.
pub(crate) fn mark_copy(fields: &mut Fields) -> Result<(), FieldError> {
    fields.push_literal(Known::Via, const { LiteralValue::new(concat!("1.1 ", mirror!())) })
}

/// Where comments begin and end in a value: they nest, and `\` quotes a byte in them (RFC 9110 §5.6.5).
#[derive(Default)]
struct Comments {
    depth: usize,
    is_quoted: bool,
}

impl Comments {
    /// Goes on with the next byte. Whether no comment is open behind it.
    fn pass(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.is_quoted => self.is_quoted = false,
            b'\\' if self.depth > 0 => self.is_quoted = true,
            b'(' => self.depth += 1,
            b')' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.depth == 0
    }
}

/// The entries of a value of `Via`. A comma in a comment separates nothing. A comment without an end is none: what is behind it counts.
fn entries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut whole, mut comments) = (Comments::default(), Comments::default());
    for byte in value {
        whole.pass(*byte);
    }
    let has_end = whole.depth == 0;
    value.split(move |byte| {
        let is_outside = comments.pass(*byte);
        *byte == b',' && (is_outside || !has_end)
    })
}

/// The entries in `Via` with this name: a protocol, the name, and perhaps a comment.
fn entries_of<'f>(fields: &'f Fields, name: &'static str) -> impl Iterator<Item = &'f [u8]> {
    fields.all(Known::Via).flat_map(entries).filter(move |entry| {
        let mut words = entry.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        words.nth(1) == Some(name.as_bytes())
    })
}

/// Changes a request's fields for the upstream.
pub(crate) fn prepare(x: &mut Exchange, client: &Client, early: bool, text: &mut Vec<u8>) -> Result<(), FieldError> {
    let peer = client.peer_text().as_bytes();
    let (https, http) = const { (LiteralValue::new("https"), LiteralValue::new("http")) };
    let proto = if client.is_secure() { https } else { http };
    text.clear();
    text.extend_from_slice(x.request.authority());
    let host = text.len();
    let fields = &mut x.request.fields;
    // The chain so far (empty, unless the peer is trusted), and the one who spoke last.
    for earlier in fields.all(Known::XForwardedFor) {
        text.extend_from_slice(earlier);
        text.extend_from_slice(b", ");
    }
    text.extend_from_slice(peer);
    let chain = text.len();
    for earlier in fields.all(Known::Forwarded) {
        text.extend_from_slice(earlier);
        text.extend_from_slice(b", ");
    }
    // As `join_for` writes it, from the text that the connection keeps.
    let (before, behind) = client.peer_text().around();
    text.extend_from_slice(before);
    text.extend_from_slice(peer);
    if !behind.is_empty() {
        text.extend_from_slice(behind);
    }
    if host > 0 {
        text.extend_from_slice(b";host=\"");
        text.extend_from_within(..host);
        text.push(b'"');
    }
    text.extend_from_slice(b";proto=");
    text.extend_from_slice(proto.as_bytes());
    if x.claims != Claims::Removed {
        fields.remove(Known::XForwardedFor);
        fields.remove(Known::Forwarded);
    }
    fields.push_known(Known::XForwardedFor, &text[host..chain])?;
    if !fields.contains(Known::XForwardedProto) {
        fields.push_literal(Known::XForwardedProto, proto)?;
    }
    if host > 0 && !fields.contains(Known::XForwardedHost) {
        fields.push_known(Known::XForwardedHost, &text[..host])?;
    }
    fields.push_known(Known::Forwarded, &text[chain..])?;
    // RFC 9110 §7.6.3: the version that it came in.
    let via = match x.request.version {
        Version::Http10 => const { LiteralValue::new(concat!("1.0 ", pseudonym!())) },
        Version::Http11 => const { LiteralValue::new(concat!("1.1 ", pseudonym!())) },
        Version::Http2 => const { LiteralValue::new(concat!("2.0 ", pseudonym!())) },
        Version::Http3 => const { LiteralValue::new(concat!("3.0 ", pseudonym!())) },
    };
    fields.push_literal(Known::Via, via)?;
    if let Some(certificate) = client.cert() {
        fields.set(Known::ClientCert, &certificate.field)?;
    }
    if early {
        fields.set(Known::EarlyData, b"1")?;
    }
    if let Some(parent) = x.trace.parent_for_upstream() {
        fields.set(Known::Traceparent, &parent.text())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_comes_round_after_many_passes() {
        let of = |values: &[&str]| {
            let mut fields = Fields::new();
            values.iter().for_each(|value| fields.push(b"via", value.as_bytes()).unwrap());
            comes_round(&fields)
        };
        let most = ["1.1 sealane"; MAX_PASSES - 1];
        assert!(!of(&[]) && !of(&most) && !of(&[&most.join(", ")]));
        for last in ["1.0 sealane", "HTTP/2.0\tsealane (a comment)", "1.1 a, 1.1 sealane , 1.1 b"] {
            assert!(of(&[&most[..], &[last]].concat()), "{last}");
            assert!(of(&[&format!("{}, {last}", most.join(","))]), "{last}");
        }
        for other in [
            "sealane",
            "1.1 sealane.example",
            "1.1 other",
            "1.1 other sealane",
            "",
            ",,",
            ", ,",
            "1.1 other (a, 1.1 sealane, b)",
            "1.1 other (a (b, 1.1 sealane), 1.1 sealane, c)",
            "1.1 other (a \\) b, 1.1 sealane, c \\\\), 1.1 other (\\(, 1.1 sealane ,)",
        ] {
            assert!(!of(&[&most[..], &[other; 20]].concat()), "{other}");
        }
        // What follows a comment counts, and nobody hides it behind one that has no end.
        for last in [
            "1.1 other (a, (b)), 1.1 sealane",
            "1.1 other (\\)), 1.1 sealane (",
            "1.1 other (, 1.1 sealane, 1.1 other",
            "1.1 other ((), 1.1 sealane",
            "1.1 other ), 1.1 sealane",
        ] {
            assert!(of(&[&most[..], &[last]].concat()), "{last}");
        }
    }

    #[test]
    fn a_copy_is_known_by_its_way() {
        let mut without = Fields::new();
        mark_copy(&mut without).unwrap();
        assert!(is_copy(&without), "also where \"Via\" was removed");
        let mut fields = Fields::new();
        fields.push(b"via", b"1.1 sealane").unwrap();
        assert!(!is_copy(&fields));
        mark_copy(&mut fields).unwrap();
        let all: Vec<_> = fields.all(Known::Via).collect();
        assert_eq!(all, [&b"1.1 sealane"[..], b"1.1 sealane-mirror"]);
        assert!(is_copy(&fields) && entries_of(&fields, pseudonym!()).count() == 1, "it is no pass");
    }
}
