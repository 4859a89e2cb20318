//! Heads as HTTP/2 and HTTP/3 carry them: a list of fields, some of which are pseudo-header fields (RFC 9113 §8.3,
//! RFC 9114 §4.3). What is read here is as strict as HTTP/1.1's parser: a message that HTTP/1.1 could not carry, or
//! would carry as something else, is refused.
//!
//! The decoder of a list fills a [`Pseudo`] and passes the other fields on in their order. Extended CONNECT for
//! WebSocket (RFC 8441, RFC 9220) becomes what it is in HTTP/1.1: a GET with `Upgrade: websocket`.

use crate::authority::Authority;
use crate::error::ParseError;
use crate::fields::{FieldError, Fields};
use crate::h1::Limits;
use crate::known::{Known, lookalike};
use crate::message::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};
use crate::scan;

/// The longest registered method has 17 letters.
const LONGEST_METHOD: usize = 32;
/// What a field costs beside its bytes (RFC 9113 §6.5.2).
const OVERHEAD: usize = 32;

/// The pseudo-header fields of a message, each at most once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pseudo<'a> {
    /// `:method`
    pub method: Option<&'a [u8]>,
    /// `:scheme`
    pub scheme: Option<&'a [u8]>,
    /// `:authority`
    pub authority: Option<&'a [u8]>,
    /// `:path`
    pub path: Option<&'a [u8]>,
    /// `:protocol` (RFC 8441 §4)
    pub protocol: Option<&'a [u8]>,
    /// `:status`
    pub status: Option<&'a [u8]>,
}

impl<'a> Pseudo<'a> {
    /// Takes a pseudo-header field as it comes. Repeated and unknown ones are refused; that none comes after a regular
    /// field is the decoder's to see.
    pub fn put(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), ParseError> {
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            b":protocol" => &mut self.protocol,
            b":status" => &mut self.status,
            _ => return Err(ParseError::PseudoField),
        };
        if place.replace(value).is_some() {
            return Err(ParseError::PseudoField);
        }
        Ok(())
    }
}

/// What a head says beside itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListInfo {
    /// How long the body is. [`BodyLength::None`] where there is none by definition or the message has ended.
    pub body: BodyLength,
    /// A request: the client waits for `100 Continue`.
    pub expect_continue: bool,
    /// A request: the stream asks to become a tunnel of the protocol in Upgrade. A response: it has become one.
    pub upgrade: bool,
}

/// Reads a request's head (cleared first). `version` is where it came from; `ended`: no body follows.
pub fn read_request<'a>(
    pseudo: &Pseudo<'_>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    version: Version,
    ended: bool,
    limits: &Limits,
    head: &mut RequestHead,
) -> Result<ListInfo, ParseError> {
    head.clear();
    head.version = version;
    let method = pseudo.method.ok_or(ParseError::PseudoField)?;
    if pseudo.status.is_some() {
        return Err(ParseError::PseudoField);
    }
    if method.len() > LONGEST_METHOD {
        return Err(ParseError::MethodTooLong);
    }
    head.set_method(method).map_err(|_| ParseError::Method)?;
    let mut cookies = Cookies::default();
    let mut size = [Some(method), pseudo.authority, pseudo.path].iter().flatten().map(|v| v.len() + OVERHEAD).sum();
    let mut host = None;
    for (name, value) in fields {
        let known = check(name, value, &mut size, limits)?;
        match known {
            Known::Host if host.replace(value).is_some() => return Err(ParseError::HostDuplicate),
            Known::Host => {}
            // RFC 9113 §8.2.2.
            Known::Te if value.eq_ignore_ascii_case(b"trailers") => head.accepts_trailers = true,
            Known::Te => return Err(ParseError::ConnectionField),
            Known::Cookie => cookies.push(value)?,
            _ => push(&mut head.fields, known, name, value, limits)?,
        }
    }
    cookies.finish(&mut head.fields)?;
    let upgrade = target(pseudo, host, limits, head)?;

    let length = content_length(&head.fields)?;
    // The field is written anew from the body's length.
    head.fields.remove(Known::ContentLength);
    let tunnel = upgrade || head.method() == Method::Connect;
    let body = match length {
        // RFC 9110 §9.3.6, §9.3.8: their content means nothing, so it can only mislead.
        Some(n) if n > 0 && (tunnel || head.method() == Method::Trace) => return Err(ParseError::BodyForbidden),
        // Over HTTP/3 the end is not known with the head.
        None if !ended && version != Version::Http3 && head.method() == Method::Trace => {
            return Err(ParseError::BodyForbidden);
        }
        // RFC 9113 §8.1.1.
        Some(n) if n > 0 && ended => return Err(ParseError::LengthMismatch),
        _ if tunnel => BodyLength::None,
        Some(n) => BodyLength::Known(n),
        None if ended => BodyLength::None,
        None => BodyLength::Chunked,
    };
    let expect_continue = match head.fields.get(Known::Expect) {
        None => false,
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") && head.fields.all(Known::Expect).count() == 1 => {
            if body.is_empty() {
                head.fields.remove(Known::Expect);
            }
            !body.is_empty()
        }
        Some(_) => return Err(ParseError::Expect),
    };
    Ok(ListInfo { body, expect_continue, upgrade })
}

/// Reads target and authority (RFC 9113 §8.3.1, §8.5; RFC 8441 §4). Says whether it is an extended CONNECT.
fn target(
    pseudo: &Pseudo<'_>,
    host: Option<&[u8]>,
    limits: &Limits,
    head: &mut RequestHead,
) -> Result<bool, ParseError> {
    let host = host.map(Authority::parse).transpose()?;
    let named = pseudo.authority.map(Authority::parse).transpose()?;
    if head.method() == Method::Connect && pseudo.protocol.is_none() {
        if pseudo.scheme.is_some() || pseudo.path.is_some() {
            return Err(ParseError::PseudoField);
        }
        let named = named.ok_or(ParseError::PseudoField)?;
        if named.port.is_none() {
            return Err(ParseError::Target);
        }
        if host.is_some_and(|host| !host.agrees_with_connect(&named)) {
            return Err(ParseError::HostMismatch);
        }
        head.host.put(&named);
        head.set_target(named.text).map_err(|_| ParseError::Target)?;
        return Ok(false);
    }
    let scheme = match pseudo.scheme {
        Some(s) if s.eq_ignore_ascii_case(b"https") => Scheme::Https,
        Some(s) if s.eq_ignore_ascii_case(b"http") => Scheme::Http,
        Some(_) => return Err(ParseError::Target),
        None => return Err(ParseError::PseudoField),
    };
    let path = pseudo.path.ok_or(ParseError::PseudoField)?;
    if path.len() > limits.target {
        return Err(ParseError::TargetTooLong);
    }
    if path.first() != Some(&b'/') && !(path == b"*" && head.method() == Method::Options) {
        return Err(ParseError::Target);
    }
    head.set_target(path).map_err(|_| ParseError::Target)?;
    match (&named, &host) {
        (Some(named), Some(host)) if !host.agrees(named, Some(scheme.default_port())) => {
            return Err(ParseError::HostMismatch);
        }
        (Some(authority), _) | (None, Some(authority)) => head.host.put(authority),
        (None, None) => return Err(ParseError::HostMissing),
    }
    head.scheme = Some(scheme);
    let Some(protocol) = pseudo.protocol else { return Ok(false) };
    if head.method() != Method::Connect {
        return Err(ParseError::PseudoField);
    }
    // RFC 9220 §3, RFC 8441 §4: one that is not known is not implemented.
    if !protocol.eq_ignore_ascii_case(b"websocket") {
        return Err(ParseError::Protocol);
    }
    head.put_method(b"GET");
    head.fields.push_known(Known::Upgrade, b"websocket").map_err(field_error)?;
    Ok(true)
}

/// Reads the head of a response to a request by `method` (cleared first). `ended`: no body follows.
pub fn read_response<'a>(
    pseudo: &Pseudo<'_>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    version: Version,
    ended: bool,
    limits: &Limits,
    method: Method,
    head: &mut ResponseHead,
) -> Result<ListInfo, ParseError> {
    head.clear();
    head.version = version;
    let requests = [pseudo.method, pseudo.scheme, pseudo.authority, pseudo.path, pseudo.protocol];
    if requests.iter().any(Option::is_some) {
        return Err(ParseError::PseudoField);
    }
    let &[a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9'] = pseudo.status.ok_or(ParseError::PseudoField)? else {
        return Err(ParseError::StatusLine);
    };
    head.status = [a, b, c].iter().fold(0, |n, d| n * 10 + u16::from(d - b'0'));
    // RFC 9113 §8.6.
    if head.status == 101 {
        return Err(ParseError::Upgrade);
    }
    let mut size = OVERHEAD;
    for (name, value) in fields {
        let known = check(name, value, &mut size, limits)?;
        if known == Known::Te {
            return Err(ParseError::ConnectionField);
        }
        push(&mut head.fields, known, name, value, limits)?;
    }
    let length = content_length(&head.fields)?;
    let tunnel = method == Method::Connect && (200..300).contains(&head.status);
    let body = match head.status {
        100..=199 if ended || length.is_some_and(|n| n > 0) => return Err(ParseError::BodyForbidden),
        100..=199 | 204 => {
            head.fields.remove(Known::ContentLength);
            BodyLength::None
        }
        _ if tunnel => {
            head.fields.remove(Known::ContentLength);
            BodyLength::None
        }
        304 => BodyLength::None,
        _ if method == Method::Head => BodyLength::None,
        _ => match length {
            Some(n) if n > 0 && ended => return Err(ParseError::LengthMismatch),
            Some(n) => BodyLength::Known(n),
            None if ended => BodyLength::Known(0),
            None => BodyLength::Chunked,
        },
    };
    Ok(ListInfo { body, expect_continue: false, upgrade: tunnel })
}

/// Reads a trailer section (cleared first): no pseudo-header fields, and of the others those that may be trailers.
pub fn read_trailers<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    limits: &Limits,
    trailers: &mut Fields,
) -> Result<(), ParseError> {
    trailers.clear();
    let limits = &Limits { head: limits.trailers.min(limits.head), ..*limits };
    let too_large = |e| match e {
        ParseError::HeadTooLarge | ParseError::TooManyFields => ParseError::TrailersTooLarge,
        e => e,
    };
    let mut size = 0;
    for (name, value) in fields {
        let known = check(name, value, &mut size, limits).map_err(too_large)?;
        if known != Known::Te {
            push(trailers, known, name, value, limits).map_err(too_large)?;
        }
    }
    trailers.keep_trailers_only();
    Ok(())
}

/// What every field must be: of a lower-case name (RFC 9113 §8.2.1), within the limits, and for everybody
/// (RFC 9113 §8.2.2).
fn check(name: &[u8], value: &[u8], size: &mut usize, limits: &Limits) -> Result<Known, ParseError> {
    *size += name.len() + value.len() + OVERHEAD;
    if *size > limits.head {
        return Err(ParseError::HeadTooLarge);
    }
    if name.first() == Some(&b':') {
        return Err(ParseError::PseudoField);
    }
    if !scan::is_lower_token(name) {
        let is_upper = name.iter().any(u8::is_ascii_uppercase);
        return Err(if is_upper { ParseError::FieldCase } else { ParseError::FieldName });
    }
    let known = Known::lookup_token(name);
    if known == Known::Other && lookalike(name).is_some() {
        return Err(ParseError::FieldLookalike);
    }
    match known {
        Known::Connection
        | Known::KeepAlive
        | Known::ProxyConnection
        | Known::TransferEncoding
        | Known::Upgrade
        | Known::Http2Settings => Err(ParseError::ConnectionField),
        _ => Ok(known),
    }
}

/// Appends a field that has passed [`check`].
fn push(fields: &mut Fields, known: Known, name: &[u8], value: &[u8], limits: &Limits) -> Result<(), ParseError> {
    if fields.len() >= limits.fields {
        return Err(ParseError::TooManyFields);
    }
    fields.push_token(known, name, value).map_err(field_error)
}

fn field_error(e: FieldError) -> ParseError {
    match e {
        FieldError::Name => ParseError::FieldName,
        FieldError::Value => ParseError::FieldValue,
        FieldError::Length => ParseError::HeadTooLarge,
    }
}

fn content_length(fields: &Fields) -> Result<Option<u64>, ParseError> {
    if !fields.contains(Known::ContentLength) {
        return Ok(None);
    }
    let mut values = fields.all(Known::ContentLength);
    let value = values.next().unwrap_or_default();
    if values.next().is_some() {
        return Err(ParseError::ContentLengthDuplicate);
    }
    crate::h1::decimal(value).map(Some).ok_or(ParseError::ContentLength)
}

/// RFC 9113 §8.2.3: a cookie may come in crumbs, and leaves as one field.
#[derive(Default)]
struct Cookies<'a> {
    first: Option<&'a [u8]>,
    joined: Vec<u8>,
}

impl<'a> Cookies<'a> {
    fn push(&mut self, value: &'a [u8]) -> Result<(), ParseError> {
        if !scan::is_field_value(value) {
            return Err(ParseError::FieldValue);
        }
        match self.first {
            None => self.first = Some(value),
            Some(first) => {
                if self.joined.is_empty() {
                    self.joined.extend_from_slice(first);
                }
                self.joined.extend_from_slice(b"; ");
                self.joined.extend_from_slice(value);
            }
        }
        Ok(())
    }

    fn finish(self, fields: &mut Fields) -> Result<(), ParseError> {
        match self.first {
            None => Ok(()),
            Some(first) if self.joined.is_empty() => fields.push_known(Known::Cookie, first).map_err(field_error),
            Some(_) => fields.push_known(Known::Cookie, &self.joined).map_err(field_error),
        }
    }
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;
