//! Heads and trailers: from field sections and to them (RFC 9114 §4.2, §4.3).

use super::error::H3Error;
use super::frame::put_headers;
use super::qpack::{self, QpackScratch};
use crate::error::ParseError;
use crate::fields::Fields;
use crate::h1::{Limits, encode_decimal};
use crate::known::Known;
use crate::list::{self, ListInfo, Pseudo};
use crate::message::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};

// RFC 9204 Appendix A.
const AUTHORITY: usize = 0;
const PATH: usize = 1;
const METHOD: usize = 15;
const SCHEME_HTTP: usize = 22;
const SCHEME_HTTPS: usize = 23;
const STATUS: usize = 24;
const CONTENT_LENGTH: usize = 4;

/// A field section taken apart.
struct Section<'a> {
    pseudo: Pseudo<'a>,
    scratch: &'a QpackScratch,
    /// Where the ordinary fields begin.
    regular: usize,
}

impl<'a> Section<'a> {
    fn decode(section: &[u8], limits: &Limits, scratch: &'a mut QpackScratch) -> Result<Self, H3Error> {
        scratch.decode(section, limits.head, limits.fields)?;
        let scratch = &*scratch;
        let mut pseudo = Pseudo::default();
        let mut regular = 0;
        for (name, value) in scratch.fields() {
            if name.first() != Some(&b':') {
                break;
            }
            pseudo.put(name, value)?;
            regular += 1;
        }
        // §4.3: one that comes after an ordinary field is among those, and refused there.
        Ok(Self { pseudo, scratch, regular })
    }

    fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.scratch.fields().skip(self.regular)
    }
}

/// Reads a request's field section into `head` (cleared first). `ended`: no body follows.
pub fn read_request(
    section: &[u8],
    ended: bool,
    limits: &Limits,
    head: &mut RequestHead,
    scratch: &mut QpackScratch,
) -> Result<ListInfo, H3Error> {
    let section = Section::decode(section, limits, scratch)?;
    Ok(list::read_request(&section.pseudo, section.fields(), Version::Http3, ended, limits, head)?)
}

/// Reads a response's field section into `head` (cleared first). `request` is the method that it answers; `ended`: no
/// body follows.
pub fn read_response(
    section: &[u8],
    ended: bool,
    limits: &Limits,
    request: Method,
    head: &mut ResponseHead,
    scratch: &mut QpackScratch,
) -> Result<ListInfo, H3Error> {
    let section = Section::decode(section, limits, scratch)?;
    Ok(list::read_response(&section.pseudo, section.fields(), Version::Http3, ended, limits, request, head)?)
}

/// Reads a trailer section into `fields` (cleared first); what may not come there is dropped (RFC 9110 §6.5.1).
pub fn read_trailers(
    section: &[u8],
    limits: &Limits,
    fields: &mut Fields,
    scratch: &mut QpackScratch,
) -> Result<(), H3Error> {
    scratch.decode(section, limits.trailers.min(limits.head), limits.fields).map_err(|e| match e {
        H3Error::Message(_) => ParseError::TrailersTooLarge.into(),
        other => other,
    })?;
    Ok(list::read_trailers(scratch.fields(), limits, fields)?)
}

fn put_end_to_end(out: &mut Vec<u8>, fields: &Fields, keep_length: bool, websocket: bool) {
    for (known, name, value) in fields.end_to_end() {
        match known {
            Known::Host => {}
            Known::Other if websocket && is_handshake_s(name) => {}
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

/// What HTTP/1.1's WebSocket handshake has and extended CONNECT has not (RFC 8441 §5).
fn is_handshake_s(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"sec-websocket-key") || name.eq_ignore_ascii_case(b"sec-websocket-accept")
}

/// Appends a request's HEADERS. With `websocket` the head, a GET as in HTTP/1.1, is sent as extended CONNECT (RFC 9220).
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
        put_end_to_end(out, &head.fields, false, websocket);
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
        let status = if tunnel && head.status == 101 { 200 } else { head.status };
        match qpack::status_index(status) {
            Some(index) => qpack::put_indexed(out, index),
            None => {
                let status = if (100..1000).contains(&status) { status } else { 500 };
                let digit = |n: u16| b'0' + (n % 10) as u8;
                qpack::put_named(out, STATUS, &[digit(status / 100), digit(status / 10), digit(status)]);
            }
        }
        let describes = body == BodyLength::None && head.status >= 200 && head.status != 204 && !tunnel;
        put_end_to_end(out, &head.fields, describes, tunnel);
        if head.status >= 200 && head.status != 204 {
            put_length(out, body);
        }
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
