//! The heads of requests and responses, in the form that every HTTP version shares.
//!
//! A head is made to be reused: `clear`, then filled by a parser or by setters that refuse what could not be written
//! out. The host of a request is held apart from the fields, like HTTP/2's `:authority`, so that there is exactly one.

use crate::authority::Authority;
use crate::error::ParseError;
use crate::fields::Fields;
use crate::scan;
use std::fmt::Write;

/// A request's method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// RFC 9110 §9.3.1.
    #[default]
    Get,
    /// RFC 9110 §9.3.2: its response has no body, whatever its fields say.
    Head,
    /// RFC 9110 §9.3.3.
    Post,
    /// RFC 9110 §9.3.4.
    Put,
    /// RFC 9110 §9.3.5.
    Delete,
    /// RFC 9110 §9.3.6: makes a tunnel; HTTP/2 and HTTP/3 extend it (RFC 8441, RFC 9220).
    Connect,
    /// RFC 9110 §9.3.7; its target may be `*`.
    Options,
    /// RFC 9110 §9.3.8.
    Trace,
    /// RFC 5789.
    Patch,
    /// Any other; its name is in the head.
    Other,
}

impl Method {
    /// Recognises a name, which is case-sensitive (RFC 9110 §9.1).
    #[inline]
    pub fn lookup(name: &[u8]) -> Method {
        match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"CONNECT" => Method::Connect,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }

    /// The name; empty for [`Method::Other`].
    #[inline]
    pub const fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Connect => "CONNECT",
            Method::Options => "OPTIONS",
            Method::Trace => "TRACE",
            Method::Patch => "PATCH",
            Method::Other => "",
        }
    }

    /// RFC 9110 §9.2.1: asks for no change of state. Of an unknown method nothing is promised.
    #[inline]
    pub const fn is_safe(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Options | Method::Trace)
    }

    /// RFC 9110 §9.2.2: may be sent again when it is unknown whether it arrived.
    #[inline]
    pub const fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Method::Put | Method::Delete)
    }
}

/// The version a message came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0 (RFC 1945): neither chunks nor interim responses, and a connection ends with its message unless asked
    /// to stay.
    Http10,
    /// HTTP/1.1 (RFC 9112).
    #[default]
    Http11,
    /// HTTP/2 (RFC 9113).
    Http2,
    /// HTTP/3 (RFC 9114).
    Http3,
}

impl Version {
    /// As logs write it.
    pub const fn name(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
            Version::Http3 => "HTTP/3",
        }
    }
}

/// The scheme of an absolute target, or of HTTP/2's `:scheme`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// RFC 9110 §4.2.1.
    Http,
    /// RFC 9110 §4.2.2.
    Https,
}

impl Scheme {
    /// The port when none is given.
    pub const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }

    /// `http` or `https`.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// How a body is delimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BodyLength {
    /// There is no body and nothing says so: a request without framing, or a response that has none by definition
    /// (to HEAD, 1xx, 204, 304, and 2xx to CONNECT).
    #[default]
    None,
    /// So many bytes, 0 included.
    Known(u64),
    /// In pieces; the length is not known in advance. So are HTTP/2 and HTTP/3 bodies without `content-length`.
    Chunked,
    /// Until the connection closes: responses only.
    UntilClose,
}

impl BodyLength {
    /// Whether no byte of body follows the head.
    #[inline]
    pub const fn is_empty(self) -> bool {
        matches!(self, BodyLength::None | BodyLength::Known(0))
    }
}

/// Why a part of a head was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPart;

impl std::fmt::Display for InvalidPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a byte that may not stand in this part of a message head")
    }
}

impl std::error::Error for InvalidPart {}

/// Whom a request is for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    authority: Vec<u8>,
    name: String,
    port: Option<u16>,
}

impl Host {
    fn clear(&mut self) {
        self.authority.clear();
        self.name.clear();
        self.port = None;
    }

    #[inline]
    pub fn put(&mut self, authority: &Authority<'_>) {
        self.clear();
        self.authority.extend_from_slice(authority.text);
        match authority.ipv6() {
            // One address has many spellings, and names are compared. A string takes all that is written to it.
            Some(address) => {
                let _ = write!(self.name, "[{address}]");
            }
            None => {
                let host = authority.host.strip_suffix(b".").unwrap_or(authority.host);
                // An authority is ASCII, so this is never an error.
                self.name.push_str(std::str::from_utf8(host).unwrap_or_default());
                self.name.make_ascii_lowercase();
            }
        }
        self.port = authority.port;
    }
}

/// A target up to its query.
fn without_query(target: &[u8]) -> &[u8] {
    memchr::memchr(b'?', target).map_or(target, |at| &target[..at])
}

/// The head of a request.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    method: Method,
    /// The method's name when it is not one that we know.
    other_method: Vec<u8>,
    pub(crate) target: Vec<u8>,
    /// The target as the client sent it, where a rewrite has replaced it; empty: `target` is the client's.
    client_target: Vec<u8>,
    pub(crate) host: Host,
    /// The scheme, where the message names one (an absolute target, `:scheme`).
    pub scheme: Option<Scheme>,
    /// The version it came in.
    pub version: Version,
    /// Whether the sender takes trailer fields of the response (`TE: trailers`), which is for each hop to say again.
    pub accepts_trailers: bool,
    /// The fields, without Host.
    pub fields: Fields,
}

impl RequestHead {
    /// An empty `GET`, without a target yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes it as new, keeping the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.method = Method::Get;
        self.other_method.clear();
        self.target.clear();
        self.client_target.clear();
        self.clear_authority();
        self.scheme = None;
        self.version = Version::Http11;
        self.accepts_trailers = false;
        self.fields.clear();
    }

    /// Gives memory beyond about `bytes` per part back, for pools of heads after a large one. Call it when cleared.
    #[inline]
    pub fn shrink_to(&mut self, bytes: usize) {
        self.other_method.shrink_to(bytes);
        self.target.shrink_to(bytes);
        self.client_target.shrink_to(bytes);
        self.host.authority.shrink_to(bytes);
        self.host.name.shrink_to(bytes);
        self.fields.shrink_to(bytes);
    }

    /// How many bytes of memory are held.
    pub fn capacity(&self) -> usize {
        self.other_method.capacity()
            + self.target.capacity()
            + self.client_target.capacity()
            + self.host.authority.capacity()
            + self.host.name.capacity()
            + self.fields.capacity()
    }

    /// The method.
    #[inline]
    pub fn method(&self) -> Method {
        self.method
    }

    /// The method's name, whichever it is.
    #[inline]
    pub fn method_name(&self) -> &[u8] {
        match self.method {
            Method::Other => &self.other_method,
            known => known.name().as_bytes(),
        }
    }

    /// Sets the method by its name, which must be a token.
    pub fn set_method(&mut self, name: &[u8]) -> Result<(), InvalidPart> {
        if !scan::is_token(name) {
            return Err(InvalidPart);
        }
        self.put_method(name);
        Ok(())
    }

    /// The target as it is to be forwarded: path and query; `*`; for CONNECT host and port.
    #[inline]
    pub fn target(&self) -> &[u8] {
        &self.target
    }

    /// The target up to the query.
    pub fn path(&self) -> &[u8] {
        without_query(&self.target)
    }

    /// The target as the client sent it, whatever it was rewritten to since.
    #[inline]
    pub fn client_target(&self) -> &[u8] {
        if self.client_target.is_empty() { &self.target } else { &self.client_target }
    }

    /// The client's target up to the query.
    pub fn client_path(&self) -> &[u8] {
        without_query(self.client_target())
    }

    /// Sets the target: not empty, visible ASCII without `#`.
    pub fn set_target(&mut self, target: &[u8]) -> Result<(), InvalidPart> {
        if target.is_empty() || scan::target_run(target) != target.len() {
            return Err(InvalidPart);
        }
        self.client_target.clear();
        self.target.clear();
        self.target.extend_from_slice(target);
        Ok(())
    }

    /// Replaces the target that is to be forwarded, and keeps the client's own. What a target may be is as in
    /// [`set_target`](Self::set_target); both stay as they were on an error.
    pub fn rewrite_target(&mut self, target: &[u8]) -> Result<(), InvalidPart> {
        if target.is_empty() || scan::target_run(target) != target.len() {
            return Err(InvalidPart);
        }
        if self.client_target.is_empty() {
            std::mem::swap(&mut self.client_target, &mut self.target);
        }
        self.target.clear();
        self.target.extend_from_slice(target);
        Ok(())
    }

    /// Host and port as the sender spelled them; empty when there are none (HTTP/1.0).
    #[inline]
    pub fn authority(&self) -> &[u8] {
        &self.host.authority
    }

    /// The host in lower case, without port and without a trailing dot; an IPv6 address with its brackets,
    /// in its canonical form (RFC 5952).
    #[inline]
    pub fn host_name(&self) -> &str {
        &self.host.name
    }

    /// The port, where one is named.
    #[inline]
    pub fn port(&self) -> Option<u16> {
        self.host.port
    }

    /// Sets host and port from `host[:port]`; both stay as they were on an error.
    pub fn set_authority(&mut self, authority: &[u8]) -> Result<(), ParseError> {
        self.host.put(&Authority::parse(authority)?);
        Ok(())
    }

    /// Removes host and port.
    #[inline]
    pub fn clear_authority(&mut self) {
        self.host.clear();
    }

    #[inline]
    pub(crate) fn put_method(&mut self, name: &[u8]) {
        self.method = Method::lookup(name);
        self.other_method.clear();
        if self.method == Method::Other {
            self.other_method.extend_from_slice(name);
        }
    }
}

/// The head of a response.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// 100 to 599.
    pub status: u16,
    reason: Vec<u8>,
    /// The version it came in.
    pub version: Version,
    /// The fields.
    pub fields: Fields,
}

impl Default for ResponseHead {
    fn default() -> Self {
        Self { status: 200, reason: Vec::new(), version: Version::Http11, fields: Fields::new() }
    }
}

impl ResponseHead {
    /// An empty 200.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes it as new, keeping the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.status = 200;
        self.reason.clear();
        self.version = Version::Http11;
        self.fields.clear();
    }

    /// Gives memory beyond about `bytes` per part back, for pools of heads after a large one. Call it when cleared.
    #[inline]
    pub fn shrink_to(&mut self, bytes: usize) {
        self.reason.shrink_to(bytes);
        self.fields.shrink_to(bytes);
    }

    /// How many bytes of memory are held.
    pub fn capacity(&self) -> usize {
        self.reason.capacity() + self.fields.capacity()
    }

    /// The reason phrase as it came; empty when there was none (and in HTTP/2 and HTTP/3).
    pub fn reason(&self) -> &[u8] {
        &self.reason
    }

    #[inline]
    pub(crate) fn put_reason(&mut self, reason: &[u8]) {
        self.reason.clear();
        self.reason.extend_from_slice(reason);
    }
}

/// The usual reason phrase of a status (RFC 9110 §15); empty for one without a name.
pub const fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewrite_leaves_the_clients_target() {
        let mut head = RequestHead::new();
        head.set_target(b"/a?b").unwrap();
        assert_eq!((head.client_target(), head.client_path()), (&b"/a?b"[..], &b"/a"[..]));
        head.rewrite_target(b"/x?b").unwrap();
        head.rewrite_target(b"/y?b").unwrap();
        assert_eq!(head.rewrite_target(b"/ z"), Err(InvalidPart));
        assert_eq!((head.target(), head.path()), (&b"/y?b"[..], &b"/y"[..]));
        assert_eq!((head.client_target(), head.client_path()), (&b"/a?b"[..], &b"/a"[..]));
        head.set_target(b"/c").unwrap();
        assert_eq!(head.client_target(), b"/c");
        head.rewrite_target(b"/d").unwrap();
        head.clear();
        assert_eq!((head.target(), head.client_target()), (&b""[..], &b""[..]));
    }

    #[test]
    fn setters_refuse_what_could_not_be_written() {
        let mut head = RequestHead::new();
        for bad in [&b""[..], b"/a b", b"/a#b", b"/\r\nX: y", b"/\xc3\xa9"] {
            assert_eq!(head.set_target(bad), Err(InvalidPart));
        }
        assert_eq!(head.set_method(b"GE T"), Err(InvalidPart));
        assert_eq!(head.set_authority(b"a/b"), Err(ParseError::Host));
        for spelling in [&b"[::1]:81"[..], b"[0:0:0:0:0:0:0:1]:81", b"[0::0001]:81", b"[::0.0.0.1]:81"] {
            head.set_authority(spelling).unwrap();
            assert_eq!((head.authority(), head.host_name(), head.port()), (spelling, "[::1]", Some(81)));
        }
        head.set_authority(b"[2001:DB8::A]").unwrap();
        assert_eq!(head.host_name(), "[2001:db8::a]");
        head.clear_authority();
        head.set_method(b"PURGE").unwrap();
        head.set_target(b"/a?b").unwrap();
        head.set_authority(b"EXAMPLE.com.:81").unwrap();
        assert_eq!((head.method(), head.method_name()), (Method::Other, &b"PURGE"[..]));
        assert_eq!((head.path(), head.host_name(), head.port()), (&b"/a"[..], "example.com", Some(81)));
        head.clear();
        assert_eq!((head.method_name(), head.host_name(), head.port()), (&b"GET"[..], "", None));
    }
}
