//! Values of request headers with parts of the request, as in `{client_address}`.
//!
//! Control reads them with the configuration. A lane writes them before it changes the request for the upstream, so `{uri}` is what the
//! client has asked for, even if the path is rewritten. Routes without such values pay nothing.

use crate::client::identity::Client;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::exchange::Claims;
use crate::exchange::streams::ClientStream;
use sealane_http::RequestHead;
use sealane_http::h1::encode_decimal;
use sealane_tls::CertificateDescription;
use std::io::Write;

/// A value: text, and parts of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Part(Part),
}

/// There is no such part of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPart(pub String);

macro_rules! parts {
    ($($variant:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Part { $($variant,)* }

        impl Part {
            const NAMES: &[(&str, Self)] = &[$(($name, Self::$variant),)*];
        }
    };
}

parts! {
    Authority "authority",
    ClientAddress "client_address",
    ClientCertificate "client_certificate",
    ClientCertificateFingerprint "client_certificate_fingerprint",
    ClientCertificateIssuer "client_certificate_issuer",
    ClientCertificateName "client_certificate_name",
    ClientCertificateResult "client_certificate_result",
    ClientCertificateSerial "client_certificate_serial",
    ClientCertificateSubject "client_certificate_subject",
    Host "host",
    Method "method",
    Path "path",
    Port "port",
    Query "query",
    Scheme "scheme",
    TlsVersion "tls_version",
    Uri "uri",
}

impl Template {
    /// Reads a value. `None`: it has no part of the request in it. A brace that does not begin the name of a part is text.
    pub fn parse(text: &str) -> Result<Option<Self>, UnknownPart> {
        let mut pieces = Vec::new();
        let (mut plain, mut rest) = (String::new(), text);
        while let Some((before, behind)) = rest.split_once('{') {
            plain.push_str(before);
            let end = behind.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(behind.len());
            let name = &behind[..end];
            match behind[end..].strip_prefix('}').filter(|_| !name.is_empty()) {
                Some(after) => {
                    let known = Part::NAMES.iter().find(|(known, _)| *known == name);
                    let (_, part) = known.ok_or_else(|| UnknownPart(name.to_owned()))?;
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(Piece::Part(*part));
                    rest = after;
                }
                None => {
                    plain.push('{');
                    rest = behind;
                }
            }
        }
        plain.push_str(rest);
        if pieces.is_empty() {
            return Ok(None);
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Some(Self(pieces)))
    }

    /// How many parts of the request it has.
    pub fn parts_in(&self) -> usize {
        self.0.iter().filter(|piece| matches!(piece, Piece::Part(_))).count()
    }

    /// The names of all parts, without braces.
    pub fn parts() -> impl Iterator<Item = &'static str> + Clone {
        Part::NAMES.iter().map(|(name, _)| *name)
    }

    /// The value for a request. It is empty if the request has none of the parts.
    pub(crate) fn value(&self, request: &RequestHead, from: &Origin) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Part(part) => part.write(request, from, &mut out),
            }
        }
        match out.trim_ascii().len() {
            len if len == out.len() => out,
            _ => out.trim_ascii().to_vec(),
        }
    }
}

/// Where a request comes from.
pub(crate) struct Origin<'o> {
    pub connections: &'o Connections,
    pub stream: ClientStream,
    pub client: &'o Client,
    pub claims: &'o Claims,
}

impl Part {
    fn write(self, request: &RequestHead, from: &Origin, out: &mut Vec<u8>) {
        let Origin { connections, stream, client, claims } = from;
        let certificate = client.cert();
        let described = |of: fn(&CertificateDescription) -> &Option<String>, out: &mut Vec<u8>| {
            let text = certificate.and_then(|c| of(c.description()).as_deref());
            out.extend_from_slice(text.unwrap_or_default().as_bytes());
        };
        match self {
            Self::Authority => out.extend_from_slice(request.authority()),
            Self::ClientAddress => match claims {
                // A vector takes all that is written to it.
                Claims::Client(ip) => drop(write!(out, "{}", ip.to_canonical())),
                Claims::Removed | Claims::Kept => out.extend_from_slice(client.peer_text().as_bytes()),
            },
            Self::ClientCertificate => {
                if let Some(certificate) = certificate {
                    write_pem(certificate.base64(), out);
                }
            }
            Self::ClientCertificateFingerprint => {
                out.extend_from_slice(certificate.map_or("", |c| c.fingerprint.as_str()).as_bytes());
            }
            Self::ClientCertificateIssuer => described(|d| &d.issuer, out),
            Self::ClientCertificateSerial => described(|d| &d.serial, out),
            Self::ClientCertificateSubject => described(|d| &d.subject, out),
            Self::ClientCertificateName => {
                let name = certificate.and_then(|c| c.names().common_name()).unwrap_or_default();
                out.extend_from_slice(name.as_bytes());
            }
            // As NGINX says it.
            Self::ClientCertificateResult => {
                out.extend_from_slice(if certificate.is_some() { b"SUCCESS" } else { b"NONE" })
            }
            Self::Host => out.extend_from_slice(request.host_name().as_bytes()),
            Self::Method => out.extend_from_slice(request.method_name()),
            Self::Path => out.extend_from_slice(request.path()),
            Self::Port => encode_decimal(out, u64::from(client.listener().listener.address.port())),
            Self::Query => out.extend_from_slice(&request.target()[request.path().len()..]),
            Self::Scheme => out.extend_from_slice(if client.is_secure() { b"https" } else { b"http" }),
            Self::TlsVersion => {
                let version = connections.get(stream.conn()).and_then(Conn::tls_version);
                out.extend_from_slice(version.map_or("", sealane_tls::policy::Version::name).as_bytes());
            }
            Self::Uri => out.extend_from_slice(request.target()),
        }
    }
}

/// Appends a certificate in PEM (RFC 7468), encoded as a component of a URL, so that it is one line.
fn write_pem(base64: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"-----BEGIN%20CERTIFICATE-----%0A");
    for line in base64.chunks(64) {
        for byte in line {
            match byte {
                b'+' => out.extend_from_slice(b"%2B"),
                b'/' => out.extend_from_slice(b"%2F"),
                b'=' => out.extend_from_slice(b"%3D"),
                byte => out.push(*byte),
            }
        }
        out.extend_from_slice(b"%0A");
    }
    out.extend_from_slice(b"-----END%20CERTIFICATE-----%0A");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_parts() {
        let read = |text: &str| Template::parse(text).unwrap().map(|t| t.0);
        let text = |t: &str| Piece::Text(t.to_owned());
        assert_eq!(
            read("for={client_address};proto={scheme}").unwrap(),
            [text("for="), Piece::Part(Part::ClientAddress), text(";proto="), Piece::Part(Part::Scheme)]
        );
        assert_eq!(read("{{uri}}").unwrap(), [text("{"), Piece::Part(Part::Uri), text("}")]);
        // What is no name is text, as in JSON.
        for plain in
            ["", "text", "{\"group\":\"a\",\"max_age\":1}", "{}", "{ uri }", "{1}", "{uri", "{URI}", "{a b}", "a{"]
        {
            assert_eq!(read(plain), None, "{plain}");
        }
        assert_eq!(Template::parse("x{remote_addr}"), Err(UnknownPart("remote_addr".to_owned())));
        assert!(Template::parts().all(|part| Template::parse(&format!("{{{part}}}")).is_ok_and(|t| t.is_some())));
    }

    #[test]
    fn a_certificate_is_one_line() {
        let mut out = Vec::new();
        write_pem(&[b'+'; 65], &mut out);
        let plus = "%2B".repeat(64);
        let wanted = format!("-----BEGIN%20CERTIFICATE-----%0A{plus}%0A%2B%0A-----END%20CERTIFICATE-----%0A");
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }
}
