//! What a request tells the upstream about its way here: who the client is, and how it came.
//!
//! RFC 7239 (`Forwarded`), the older `X-Forwarded-*`, RFC 8470 (`Early-Data`), RFC 9440 (`Client-Cert`), `Via`
//! (RFC 9110 §7.6.3). What a client says of these is thrown away, unless its listener trusts it.

use crate::conn::{Client, ClientCert};
use crate::exchange::Exchange;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sealane_http::{FieldError, Known, Version};
use sealane_tls::CertificateDer;

/// These are ours to say.
const OURS: [Known; 6] = [
    Known::Forwarded,
    Known::XForwardedFor,
    Known::XForwardedProto,
    Known::XForwardedHost,
    Known::XForwardedPort,
    Known::XRealIp,
];

/// What is said of a client's certificate: as a byte sequence (RFC 9440 §2.2), and by its fingerprint.
pub(crate) fn client_cert(der: &CertificateDer<'_>) -> Box<ClientCert> {
    let fingerprint = sealane_tls::fingerprint(der).iter().map(|b| format!("{b:02x}")).collect();
    Box::new(ClientCert { field: format!(":{}:", STANDARD.encode(der)).into_bytes(), fingerprint })
}

/// Changes a request's fields for the upstream.
pub(crate) fn prepare(x: &mut Exchange, client: &Client, early: bool, text: &mut Vec<u8>) -> Result<(), FieldError> {
    let trusted = client.listener.listener.trust_forwarded;
    let peer = client.peer_text.as_bytes();
    let proto: &[u8] = if client.is_secure() { b"https" } else { b"http" };
    text.clear();
    text.extend_from_slice(x.request.authority());
    let host = text.len();
    let fields = &mut x.request.fields;
    if trusted {
        // The chain so far, and the one who spoke last.
        for earlier in fields.all(Known::XForwardedFor) {
            text.extend_from_slice(earlier);
            text.extend_from_slice(b", ");
        }
    }
    text.extend_from_slice(peer);
    let chain = text.len();
    let has_proto = trusted && fields.contains(Known::XForwardedProto);
    let has_host = trusted && fields.contains(Known::XForwardedHost);
    if trusted {
        for earlier in fields.all(Known::Forwarded) {
            text.extend_from_slice(earlier);
            text.extend_from_slice(b", ");
        }
    }
    text.extend_from_slice(b"for=");
    // RFC 7239 §6: an IPv6 address is bracketed and quoted.
    if client.peer.ip().to_canonical().is_ipv6() {
        text.extend_from_slice(b"\"[");
        text.extend_from_slice(peer);
        text.extend_from_slice(b"]\"");
    } else {
        text.extend_from_slice(peer);
    }
    if host > 0 {
        text.extend_from_slice(b";host=\"");
        text.extend_from_within(..host);
        text.push(b'"');
    }
    text.extend_from_slice(b";proto=");
    text.extend_from_slice(proto);
    for known in OURS {
        let kept = has_proto && known == Known::XForwardedProto || has_host && known == Known::XForwardedHost;
        if !kept && fields.contains(known) && !(trusted && matches!(known, Known::XForwardedPort | Known::XRealIp)) {
            fields.remove(known);
        }
    }
    fields.push_known(Known::XForwardedFor, &text[host..chain])?;
    if !has_proto {
        fields.push_known(Known::XForwardedProto, proto)?;
    }
    if !has_host && host > 0 {
        fields.push_known(Known::XForwardedHost, &text[..host])?;
    }
    fields.push_known(Known::Forwarded, &text[chain..])?;
    // RFC 9110 §7.6.3: the version that it came in.
    let via: &[u8] = match x.request.version {
        Version::Http10 => b"1.0 sealane",
        Version::Http11 => b"1.1 sealane",
        Version::Http2 => b"2.0 sealane",
        Version::Http3 => b"3.0 sealane",
    };
    fields.push_known(Known::Via, via)?;
    if !trusted && fields.contains(Known::ClientCert) {
        fields.remove(Known::ClientCert);
    }
    if !trusted && fields.contains(Known::ClientCertChain) {
        fields.remove(Known::ClientCertChain);
    }
    if let Some(certificate) = &client.cert {
        fields.set(Known::ClientCert, &certificate.field)?;
    }
    if early {
        fields.set(Known::EarlyData, b"1")?;
    }
    Ok(())
}
