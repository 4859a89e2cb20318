//! Heads and trailers: from field sections and to them (RFC 9114 §4.2, §4.3).

use super::error::H3Error;
use super::frame::put_headers;
use super::qpack::{self, Bounds, QpackScratch};
use crate::error::ParseError;
use crate::fields::{FieldError, Fields};
use crate::h1::{Limits, connection::decimal, encode_decimal};
use crate::known::{Known, lookalike};
use crate::message::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};

// RFC 9204 Appendix A.
const AUTHORITY: usize = 0;
const PATH: usize = 1;
const METHOD: usize = 15;
const SCHEME_HTTP: usize = 22;
const SCHEME_HTTPS: usize = 23;
const STATUS: usize = 24;
const CONTENT_LENGTH: usize = 4;

/// What a request's head says about what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// What `content-length` promises; the stream's end tells otherwise.
    pub content_length: Option<u64>,
    /// The client waits for `100 Continue`.
    pub expect_continue: bool,
    /// Extended CONNECT (RFC 9220): the stream is to become a WebSocket. [`RequestHead::method`] is CONNECT then, and
    /// there is a target beside the authority.
    pub websocket: bool,
}

/// What a response's head says about what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseInfo {
    /// Another head follows.
    pub interim: bool,
    /// The stream is a tunnel from here on: 2xx to CONNECT.
    pub tunnel: bool,
    /// How long the body is; [`BodyLength::Chunked`] without `content-length`.
    pub body: BodyLength,
}

/// What pseudo-header fields have come.
#[derive(Default)]
struct Pseudo {
    method: bool,
    scheme: bool,
    path: bool,
    authority: bool,
    protocol: bool,
    status: bool,
    /// An ordinary field has come: no pseudo-header field may follow (§4.3).
    over: bool,
}

impl Pseudo {
    /// Notes one; it may come once, and before all ordinary fields.
    fn once(seen: &mut bool, over: bool) -> Result<(), H3Error> {
        if over || std::mem::replace(seen, true) { Err(ParseError::PseudoField.into()) } else { Ok(()) }
    }
}

fn bounds(limits: &Limits) -> Bounds {
    // Pseudo-header fields come on top of the fields that are counted for HTTP/1.1.
    Bounds { size: limits.head, fields: limits.fields + 5 }
}

/// Takes an ordinary field in, as strictly as HTTP/1.1's parser.
#[inline]
fn take_field(fields: &mut Fields, name: &[u8], value: &[u8]) -> Result<Known, H3Error> {
    // §4.2: names are in lower case.
    if name.iter().any(u8::is_ascii_uppercase) {
        return Err(ParseError::FieldCase.into());
    }
    let known = Known::lookup(name);
    match known {
        Known::Connection
        | Known::TransferEncoding
        | Known::Upgrade
        | Known::KeepAlive
        | Known::ProxyConnection
        | Known::Http2Settings => return Err(ParseError::ConnectionField.into()),
        Known::Other if lookalike(name).is_some() => return Err(ParseError::FieldLookalike.into()),
        // §4.2: TE may say `trailers` and nothing else; it is for this hop.
        Known::Te if value != b"trailers" => return Err(ParseError::ConnectionField.into()),
        Known::Te => return Ok(known),
        _ => {}
    }
    fields.push(name, value).map_err(|e| match e {
        FieldError::Name => ParseError::FieldName,
        FieldError::Value => ParseError::FieldValue,
        FieldError::Length => ParseError::HeadTooLarge,
    })?;
    Ok(known)
}

fn content_length(fields: &mut Fields) -> Result<Option<u64>, H3Error> {
    if !fields.contains(Known::ContentLength) {
        return Ok(None);
    }
    let mut values = fields.all(Known::ContentLength);
    let value = values.next().unwrap_or_default();
    if values.next().is_some() {
        return Err(ParseError::ContentLengthDuplicate.into());
    }
    Ok(Some(decimal(value).ok_or(ParseError::ContentLength)?))
}

/// Reads a request's field section into `head` (cleared first).
pub fn read_request(
    section: &[u8],
    limits: &Limits,
    head: &mut RequestHead,
    scratch: &mut QpackScratch,
) -> Result<RequestInfo, H3Error> {
    head.clear();
    head.version = Version::Http3;
    let mut pseudo = Pseudo::default();
    let QpackScratch { name, value, joined } = scratch;
    joined.clear();
    let mut crumbs = 0;
    qpack::decode(section, bounds(limits), (name, value), |name, value| {
        if name.first() == Some(&b':') {
            return request_pseudo(head, &mut pseudo, limits, name, value);
        }
        pseudo.over = true;
        if name == b"cookie" {
            // §4.2.1: crumbs are one field to those behind us. Each is checked on its own first.
            if crumbs > 0 {
                joined.extend_from_slice(b"; ");
            }
            crumbs += 1;
            joined.extend_from_slice(value);
            return Ok(());
        }
        head.accepts_trailers |= take_field(&mut head.fields, name, value)? == Known::Te;
        Ok::<(), H3Error>(())
    })?;
    if crumbs > 0 {
        head.fields.push_known(Known::Cookie, joined).map_err(|_| ParseError::FieldValue)?;
    }
    finish_request(head, &pseudo)
}

#[cold]
fn malformed() -> H3Error {
    ParseError::PseudoField.into()
}

fn request_pseudo(
    head: &mut RequestHead,
    pseudo: &mut Pseudo,
    limits: &Limits,
    name: &[u8],
    value: &[u8],
) -> Result<(), H3Error> {
    let over = pseudo.over;
    match name {
        b":method" => {
            Pseudo::once(&mut pseudo.method, over)?;
            if value.len() > 32 {
                return Err(ParseError::MethodTooLong.into());
            }
            head.set_method(value).map_err(|_| ParseError::Method.into())
        }
        b":scheme" => {
            Pseudo::once(&mut pseudo.scheme, over)?;
            head.scheme = match value {
                v if v.eq_ignore_ascii_case(b"https") => Some(Scheme::Https),
                v if v.eq_ignore_ascii_case(b"http") => Some(Scheme::Http),
                // §4.3.1 allows others, for gateways to protocols that this one does not speak.
                _ => return Err(ParseError::Target.into()),
            };
            Ok(())
        }
        b":path" => {
            Pseudo::once(&mut pseudo.path, over)?;
            if value.len() > limits.target {
                return Err(ParseError::TargetTooLong.into());
            }
            head.set_target(value).map_err(|_| ParseError::Target.into())
        }
        b":authority" => {
            Pseudo::once(&mut pseudo.authority, over)?;
            head.set_authority(value).map_err(Into::into)
        }
        // RFC 9220 §3, RFC 8441 §4.
        b":protocol" => {
            Pseudo::once(&mut pseudo.protocol, over)?;
            if value == b"websocket" { Ok(()) } else { Err(ParseError::Upgrade.into()) }
        }
        _ => Err(malformed()),
    }
}

fn finish_request(head: &mut RequestHead, pseudo: &Pseudo) -> Result<RequestInfo, H3Error> {
    if !pseudo.method {
        return Err(malformed());
    }
    host(head, pseudo.authority)?;
    let connect = head.method() == Method::Connect;
    if connect && !pseudo.protocol {
        // §4.4: `:authority` alone, with a port.
        if pseudo.scheme || pseudo.path || !pseudo.authority || head.port().is_none() {
            return Err(malformed());
        }
        let target = head.authority().to_vec();
        head.set_target(&target).map_err(|_| ParseError::Target)?;
    } else {
        // RFC 8441 §4: `:protocol` belongs to CONNECT.
        if !pseudo.scheme || !pseudo.path || (pseudo.protocol && (!connect || !pseudo.authority)) {
            return Err(malformed());
        }
        let form = head.target();
        if form.first() != Some(&b'/') && !(form == b"*" && head.method() == Method::Options) {
            return Err(ParseError::Target.into());
        }
    }
    let content_length = content_length(&mut head.fields)?;
    // RFC 9110 §9.3.6, §9.3.8: their content means nothing, so it can only mislead.
    if matches!(head.method(), Method::Connect | Method::Trace) && content_length.is_some_and(|n| n > 0) {
        return Err(ParseError::BodyForbidden.into());
    }
    let mut expects = head.fields.all(Known::Expect);
    let expect_continue = match (expects.next(), expects.next()) {
        (None, _) => false,
        (Some(one), None) if one.eq_ignore_ascii_case(b"100-continue") => true,
        _ => return Err(ParseError::Expect.into()),
    };
    Ok(RequestInfo { content_length, expect_continue, websocket: pseudo.protocol })
}

/// §4.3.1: `:authority` or Host, and if both the same.
fn host(head: &mut RequestHead, authority: bool) -> Result<(), H3Error> {
    let mut hosts = head.fields.all(Known::Host);
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(ParseError::HostDuplicate.into());
    }
    let host = host.map(<[u8]>::to_vec);
    drop(hosts);
    match host {
        None if authority => return Ok(()),
        None => return Err(ParseError::HostMissing.into()),
        Some(host) if authority => {
            if !host.eq_ignore_ascii_case(head.authority()) {
                return Err(ParseError::HostMismatch.into());
            }
        }
        Some(host) => head.set_authority(&host)?,
    }
    head.fields.remove(Known::Host);
    Ok(())
}

/// Reads a response's field section into `head` (cleared first). `request` is the method that it answers.
pub fn read_response(
    section: &[u8],
    limits: &Limits,
    request: Method,
    head: &mut ResponseHead,
    scratch: &mut QpackScratch,
) -> Result<ResponseInfo, H3Error> {
    head.clear();
    head.version = Version::Http3;
    let mut pseudo = Pseudo::default();
    let QpackScratch { name, value, .. } = scratch;
    qpack::decode(section, bounds(limits), (name, value), |name, value| {
        if name.first() == Some(&b':') {
            if name != b":status" {
                return Err(malformed());
            }
            Pseudo::once(&mut pseudo.status, pseudo.over)?;
            let [a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9'] = *value else {
                return Err(ParseError::StatusLine.into());
            };
            head.status = [a, b, c].iter().fold(0, |n, d| n * 10 + u16::from(d - b'0'));
            return Ok(());
        }
        pseudo.over = true;
        take_field(&mut head.fields, name, value).map(|_| ())
    })?;
    // §4.5: switching protocols is HTTP/1.1's.
    if !pseudo.status || head.status == 101 {
        return Err(malformed());
    }
    let length = content_length(&mut head.fields)?;
    let interim = head.status < 200;
    let tunnel = request == Method::Connect && (200..300).contains(&head.status);
    let body = match head.status {
        _ if interim || tunnel => {
            head.fields.remove(Known::ContentLength);
            BodyLength::None
        }
        204 => {
            head.fields.remove(Known::ContentLength);
            BodyLength::None
        }
        304 => BodyLength::None,
        _ if request == Method::Head => BodyLength::None,
        _ => length.map_or(BodyLength::Chunked, BodyLength::Known),
    };
    Ok(ResponseInfo { interim, tunnel, body })
}

/// Reads a trailer section into `fields` (cleared first); what may not come there is dropped (RFC 9110 §6.5.1).
pub fn read_trailers(
    section: &[u8],
    limits: &Limits,
    fields: &mut Fields,
    scratch: &mut QpackScratch,
) -> Result<(), H3Error> {
    fields.clear();
    let bounds = Bounds { size: limits.trailers.max(256), fields: limits.fields };
    let QpackScratch { name, value, .. } = scratch;
    let read = qpack::decode(section, bounds, (name, value), |name, value| {
        // §4.3: no pseudo-header field is in trailers.
        if name.first() == Some(&b':') { Err(malformed()) } else { take_field(fields, name, value).map(|_| ()) }
    });
    match read {
        Err(H3Error::Message(ParseError::HeadTooLarge | ParseError::TooManyFields)) => {
            return Err(ParseError::TrailersTooLarge.into());
        }
        other => other?,
    }
    fields.keep_trailers_only();
    Ok(())
}

fn put_end_to_end(out: &mut Vec<u8>, fields: &Fields, keep_length: bool) {
    for (known, name, value) in fields.end_to_end() {
        match known {
            Known::Host => {}
            Known::ContentLength if !keep_length => {}
            _ => qpack::put_field(out, known, name, value),
        }
    }
}

fn put_length(out: &mut Vec<u8>, body: BodyLength) {
    if let BodyLength::Known(n) = body {
        let mut digits = Vec::with_capacity(20);
        encode_decimal(&mut digits, n);
        qpack::put_named(out, CONTENT_LENGTH, &digits);
    }
}

/// Appends a request's HEADERS. With `websocket` the head, whatever its method, is sent as extended CONNECT (RFC 9220).
pub fn encode_request(out: &mut Vec<u8>, head: &RequestHead, body: BodyLength, scheme: Scheme, websocket: bool) {
    put_headers(out, |out| {
        qpack::put_prefix(out);
        let connect = head.method() == Method::Connect;
        match head.method() {
            _ if websocket => qpack::put_indexed(out, METHOD),
            Method::Connect => qpack::put_indexed(out, METHOD),
            Method::Delete => qpack::put_indexed(out, METHOD + 1),
            Method::Get => qpack::put_indexed(out, METHOD + 2),
            Method::Head => qpack::put_indexed(out, METHOD + 3),
            Method::Options => qpack::put_indexed(out, METHOD + 4),
            Method::Post => qpack::put_indexed(out, METHOD + 5),
            Method::Put => qpack::put_indexed(out, METHOD + 6),
            _ => qpack::put_named(out, METHOD, head.method_name()),
        }
        if websocket {
            qpack::put_field(out, Known::Other, b":protocol", b"websocket");
        }
        if websocket || !connect {
            qpack::put_indexed(out, if scheme == Scheme::Http { SCHEME_HTTP } else { SCHEME_HTTPS });
            match head.target() {
                b"/" => qpack::put_indexed(out, PATH),
                target => qpack::put_named(out, PATH, target),
            }
        }
        qpack::put_named(out, AUTHORITY, head.authority());
        put_end_to_end(out, &head.fields, false);
        put_length(out, body);
        if head.accepts_trailers {
            qpack::put_field(out, Known::Te, b"te", b"trailers");
        }
    });
}

/// Appends a response's HEADERS. With [`BodyLength::None`] a `content-length` among the fields is passed on (it tells
/// what a GET would get), save in 1xx, 204 and where `tunnel` says that a tunnel begins.
pub fn encode_response(out: &mut Vec<u8>, head: &ResponseHead, body: BodyLength, tunnel: bool) {
    put_headers(out, |out| {
        qpack::put_prefix(out);
        match qpack::status_index(head.status) {
            Some(index) => qpack::put_indexed(out, index),
            None => {
                let status = if (100..600).contains(&head.status) { head.status } else { 500 };
                let digit = |n: u16| b'0' + (n % 10) as u8;
                qpack::put_named(out, STATUS, &[digit(status / 100), digit(status / 10), digit(status)]);
            }
        }
        let describes = body == BodyLength::None && head.status >= 200 && head.status != 204 && !tunnel;
        put_end_to_end(out, &head.fields, describes);
        put_length(out, body);
    });
}

/// Appends a HEADERS frame with trailers; nothing if there are none.
pub fn encode_trailers(out: &mut Vec<u8>, fields: &Fields) {
    let mut kept = fields.end_to_end().filter(|(known, ..)| known.may_be_trailer()).peekable();
    if kept.peek().is_none() {
        return;
    }
    put_headers(out, |out| {
        qpack::put_prefix(out);
        for (known, name, value) in kept {
            qpack::put_field(out, known, name, value);
        }
    });
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
