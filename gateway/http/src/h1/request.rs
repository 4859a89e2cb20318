//! Request heads (RFC 9112 §3).

use super::Limits;
use super::connection::{Framing, Options, Pinned};
use super::section::parse_section;
use crate::authority::Authority;
use crate::error::ParseError;
use crate::known::Known;
use crate::message::{BodyLength, Method, RequestHead, Scheme, Version};
use crate::scan;

/// Empty lines that are skipped before a request (RFC 9112 §2.2).
const MOST_EMPTY_LINES: usize = 4;
/// The longest registered method has 17 letters.
const LONGEST_METHOD: usize = 32;

/// What a request's head says about the connection and the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// How many bytes the head took, empty lines before it included.
    pub consumed: usize,
    /// How the body is delimited; never [`BodyLength::UntilClose`].
    pub body: BodyLength,
    /// Whether the client will send another request on this connection (RFC 9112 §9.3).
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1). The field stays among
    /// the fields: remove it when answering `100 Continue` here.
    pub expect_continue: bool,
    /// Whether the client asks to switch protocols (RFC 9110 §7.8). Not set, since a server may ignore such a
    /// request, with HTTP/1.0, beside a body, and for `h2c`, `TLS` and `HTTP`, which would tunnel past this gateway.
    pub upgrade: bool,
}

/// Reads the head of a request from the start of `input` into `head` (cleared first).
///
/// `Ok(None)` says that it is not complete yet: call again, with the same bytes and more. What is already illegal, or
/// beyond the limits, is refused without waiting for the rest. Only an LF completes a head, so a caller that got no LF
/// since the last call, and holds no more than `limits.head` bytes, may spare the call; the number of calls is then
/// bounded by the limit on fields, however slowly the bytes come.
///
/// After `Ok(Some(_))` the hop-by-hop fields are marked, and Host has moved to [`RequestHead::authority`].
pub fn parse_request(input: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<Option<RequestInfo>, ParseError> {
    head.clear();
    let seen = &input[..input.len().min(limits.head)];
    let Some(skipped) = empty_lines(seen)? else {
        return incomplete(input, limits);
    };
    let Some(line) = request_line(&seen[skipped..], limits)? else {
        return incomplete(input, limits);
    };
    let fields_at = skipped + line.length;
    let Some(fields_len) = parse_section(&seen[fields_at..], limits.fields, false, &mut head.fields)? else {
        return incomplete(input, limits);
    };
    finish(head, &line, fields_at + fields_len).map(Some)
}

fn incomplete<T>(input: &[u8], limits: &Limits) -> Result<Option<T>, ParseError> {
    if input.len() >= limits.head { Err(ParseError::HeadTooLarge) } else { Ok(None) }
}

/// Skips CRLFs; `None` when nothing or half of one is there.
fn empty_lines(input: &[u8]) -> Result<Option<usize>, ParseError> {
    let mut at = 0;
    loop {
        match input[at..] {
            [] | [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] if at < 2 * MOST_EMPTY_LINES => at += 2,
            [b'\r', b'\n', ..] => return Err(ParseError::RequestLine),
            [b'\r', ..] => return Err(ParseError::BareCr),
            [b'\n', ..] => return Err(ParseError::BareLf),
            _ => return Ok(Some(at)),
        }
    }
}

struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
    version: Version,
    /// With its CRLF.
    length: usize,
}

#[inline]
fn request_line<'a>(input: &'a [u8], limits: &Limits) -> Result<Option<RequestLine<'a>>, ParseError> {
    let method_len = scan::token_run(input);
    if method_len > LONGEST_METHOD {
        return Err(ParseError::MethodTooLong);
    }
    match input.get(method_len) {
        Some(b' ') if method_len > 0 => {}
        None => return Ok(None),
        Some(b'\r' | b'\n') => return Err(ParseError::RequestLine),
        Some(_) => return Err(ParseError::Method),
    }
    let rest = &input[method_len + 1..];
    let target_len = scan::target_run(rest);
    if target_len > limits.target {
        return Err(ParseError::TargetTooLong);
    }
    match rest.get(target_len) {
        Some(b' ') if target_len > 0 => {}
        None => return Ok(None),
        // HTTP/0.9 has no version.
        Some(b'\r' | b'\n') => return Err(ParseError::RequestLine),
        Some(_) => return Err(ParseError::Target),
    }
    let after = &rest[target_len + 1..];
    let Some(version) = version_and_end(after)? else { return Ok(None) };
    Ok(Some(RequestLine {
        method: &input[..method_len],
        target: &rest[..target_len],
        version,
        length: method_len + 1 + target_len + 1 + 10,
    }))
}

/// Reads `HTTP/1.x CRLF`.
#[inline]
fn version_and_end(input: &[u8]) -> Result<Option<Version>, ParseError> {
    match input {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1', b'\r', b'\n', ..] => Ok(Some(Version::Http11)),
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0', b'\r', b'\n', ..] => Ok(Some(Version::Http10)),
        _ => odd_version(input),
    }
}

#[cold]
fn odd_version(input: &[u8]) -> Result<Option<Version>, ParseError> {
    for (i, &b) in input.iter().enumerate() {
        let fits = match i {
            0..=4 => b == b"HTTP/"[i],
            5 | 7 => b.is_ascii_digit(),
            6 => b == b'.',
            8 if b == b'\n' => return Err(ParseError::BareLf),
            8 => b == b'\r',
            // CR was there, so something other than LF is: the caller has matched the good ones already, but for
            // versions that exist and are not ours.
            _ if b != b'\n' => return Err(ParseError::BareCr),
            _ => return Err(ParseError::Version),
        };
        if !fits {
            return Err(ParseError::VersionSyntax);
        }
    }
    // What is there so far is a prefix; a foreign version can be refused before its line is complete.
    match input.get(5..8) {
        Some(b"1.0" | b"1.1") | None => Ok(None),
        Some(_) => Err(ParseError::Version),
    }
}

fn finish(head: &mut RequestHead, line: &RequestLine<'_>, consumed: usize) -> Result<RequestInfo, ParseError> {
    head.version = line.version;
    head.put_method(line.method);
    host_and_target(head, line)?;

    let options = Options::read(&mut head.fields, Pinned::Refuse)?;
    let framing = Framing::read(&head.fields, line.version)?;
    let body = match framing {
        Framing::Nothing => BodyLength::None,
        Framing::Length(n) => BodyLength::Known(n),
        Framing::Chunked => BodyLength::Chunked,
    };
    // RFC 9110 §9.3.6, §9.3.8: their content means nothing, so it can only mislead.
    if !body.is_empty() && matches!(head.method(), Method::Connect | Method::Trace) {
        return Err(ParseError::BodyForbidden);
    }

    let expect_continue = head.fields.contains(Known::Expect) && expects_continue(head, body)?;
    let upgrade = options.upgrade && line.version == Version::Http11 && body.is_empty() && asks_for_upgrade(head);
    // RFC 9110 §10.1.4: TE counts when Connection names it.
    head.accepts_trailers = options.te
        && head.fields.all(Known::Te).flat_map(scan::list).any(|member| member.eq_ignore_ascii_case(b"trailers"));
    Ok(RequestInfo { consumed, body, keep_alive: options.persistent(line.version), expect_continue, upgrade })
}

/// Moves Host into the head, and reads the target in the form it came in (RFC 9112 §3.2).
#[inline]
fn host_and_target(head: &mut RequestHead, line: &RequestLine<'_>) -> Result<(), ParseError> {
    let mut hosts = head.fields.all(Known::Host);
    let host = hosts.next();
    let more_hosts = hosts.next().is_some();
    drop(hosts);
    if more_hosts {
        return Err(ParseError::HostDuplicate);
    }
    if host.is_none() && line.version >= Version::Http11 {
        return Err(ParseError::HostMissing);
    }
    let host = host.map(Authority::parse).transpose()?;

    let RequestLine { method, target, .. } = *line;
    let method = Method::lookup(method);
    if method == Method::Connect {
        // The port is not optional (RFC 9110 §9.3.6).
        let authority =
            Authority::parse(target).map_err(|e| if e == ParseError::Host { ParseError::Target } else { e })?;
        if authority.port.is_none() {
            return Err(ParseError::Target);
        }
        if host.is_some_and(|host| !host.agrees_with_connect(&authority)) {
            return Err(ParseError::HostMismatch);
        }
        head.host.put(&authority);
        head.target.extend_from_slice(target);
    } else if target.first() == Some(&b'/') || (target == b"*" && method == Method::Options) {
        if let Some(host) = &host {
            head.host.put(host);
        }
        head.target.extend_from_slice(target);
    } else {
        let (scheme, rest) = absolute(target).ok_or(ParseError::Target)?;
        let end = rest.iter().position(|&b| b == b'/' || b == b'?').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = Authority::parse(authority)?;
        if host.is_some_and(|host| !host.agrees(&authority, Some(scheme.default_port()))) {
            return Err(ParseError::HostMismatch);
        }
        head.scheme = Some(scheme);
        head.host.put(&authority);
        match path.first() {
            Some(b'/') => {}
            // RFC 9112 §3.2.4.
            None if method == Method::Options => head.target.push(b'*'),
            _ => head.target.push(b'/'),
        }
        head.target.extend_from_slice(path);
    }
    head.fields.remove(Known::Host);
    Ok(())
}

/// Splits the scheme from an absolute target; only ours have a gateway's meaning.
fn absolute(target: &[u8]) -> Option<(Scheme, &[u8])> {
    let colon = memchr::memchr(b':', target)?;
    let scheme = match &target[..colon] {
        s if s.eq_ignore_ascii_case(b"http") => Scheme::Http,
        s if s.eq_ignore_ascii_case(b"https") => Scheme::Https,
        _ => return None,
    };
    Some((scheme, target[colon + 1..].strip_prefix(b"//")?))
}

/// RFC 9110 §10.1.1: anything but one `100-continue` fails. HTTP/1.0 has no expectations and a message without content
/// must not have one: ignored, and removed, lest it takes effect behind us.
fn expects_continue(head: &mut RequestHead, body: BodyLength) -> Result<bool, ParseError> {
    if head.version >= Version::Http11 {
        let mut values = head.fields.all(Known::Expect);
        let one = values.next().is_some_and(|v| v.eq_ignore_ascii_case(b"100-continue"));
        if !one || values.next().is_some() {
            return Err(ParseError::Expect);
        }
        if !body.is_empty() {
            return Ok(true);
        }
    }
    head.fields.remove(Known::Expect);
    Ok(false)
}

/// Whether Upgrade names something, and nothing that would speak HTTP past this gateway.
fn asks_for_upgrade(head: &RequestHead) -> bool {
    let mut protocols = head.fields.all(Known::Upgrade).flat_map(scan::list).peekable();
    protocols.peek().is_some()
        && protocols.all(|protocol| {
            let name = protocol.split(|&b| b == b'/').next().unwrap_or_default();
            let tunnels_http =
                [&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|known| name.eq_ignore_ascii_case(known));
            scan::is_token(name) && !tunnels_http
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &str) -> Result<Option<(RequestInfo, RequestHead)>, ParseError> {
        let mut head = RequestHead::new();
        let info = parse_request(input.as_bytes(), &Limits::default(), &mut head)?;
        Ok(info.map(|info| (info, head)))
    }

    fn parsed(input: &str) -> (RequestInfo, RequestHead) {
        parse(input).unwrap().unwrap()
    }

    #[test]
    fn a_plain_request() {
        let text = "\r\nGET /a?b HTTP/1.1\r\nHost: Example.com:81\r\nAccept: */*\r\n\r\n";
        let (info, head) = parsed(&format!("{text}rest"));
        assert_eq!(
            info,
            RequestInfo {
                consumed: text.len(),
                body: BodyLength::None,
                keep_alive: true,
                expect_continue: false,
                upgrade: false
            }
        );
        assert_eq!((head.method(), head.target(), head.version), (Method::Get, &b"/a?b"[..], Version::Http11));
        assert_eq!(
            (head.authority(), head.host_name(), head.port()),
            (&b"Example.com:81"[..], "example.com", Some(81))
        );
        assert_eq!((head.fields.len(), head.fields.get(Known::Host)), (1, None));
    }

    #[test]
    fn targets() {
        for (line, target, host) in [
            ("GET http://a HTTP/1.1\r\nHost: a:80", "/", "a"),
            ("GET HTTPS://A:443/x HTTP/1.1\r\nHost: a", "/x", "a"),
            ("GET http://a?q HTTP/1.1\r\nHost: a", "/?q", "a"),
            ("OPTIONS http://a HTTP/1.1\r\nHost: a", "*", "a"),
            ("OPTIONS http://a/ HTTP/1.1\r\nHost: a", "/", "a"),
            ("OPTIONS * HTTP/1.1\r\nHost: a", "*", "a"),
            ("CONNECT a:1 HTTP/1.1\r\nHost: A:1", "a:1", "a"),
            ("CONNECT a:80 HTTP/1.1\r\nHost: A", "a:80", "a"),
            ("CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]", "[::1]:443", "[::1]"),
            ("GET / HTTP/1.0", "/", ""),
            ("GET http://a/ HTTP/1.0", "/", "a"),
        ] {
            let (_, head) = parsed(&format!("{line}\r\n\r\n"));
            assert_eq!((head.target(), head.host_name()), (target.as_bytes(), host), "{line}");
        }
    }

    #[test]
    fn what_the_connection_is_asked_for() {
        let with = |version: &str, fields: &str| parsed(&format!("POST / {version}\r\nHost: a\r\n{fields}\r\n"));
        assert!(!with("HTTP/1.1", "Connection: close, keep-alive\r\n").0.keep_alive);
        assert!(!with("HTTP/1.0", "").0.keep_alive);
        assert!(with("HTTP/1.0", "Connection: Keep-Alive\r\n").0.keep_alive);

        let expect = "Expect: 100-Continue\r\n";
        assert!(with("HTTP/1.1", &format!("{expect}Content-Length: 1\r\n")).0.expect_continue);
        for (info, head) in [with("HTTP/1.1", expect), with("HTTP/1.0", &format!("{expect}Content-Length: 1\r\n"))] {
            assert!(!info.expect_continue && !head.fields.contains(Known::Expect));
        }

        let upgrade = |version, more: &str| with(version, &format!("Connection: Upgrade\r\n{more}\r\n")).0.upgrade;
        assert!(upgrade("HTTP/1.1", "Upgrade: websocket"));
        assert!(!upgrade("HTTP/1.0", "Upgrade: websocket"));
        assert!(!upgrade("HTTP/1.1", "X: y"));
        assert!(!upgrade("HTTP/1.1", "Upgrade: h2c"));
        assert!(!upgrade("HTTP/1.1", "Upgrade: websocket, TLS/1.2"));
        assert!(!upgrade("HTTP/1.1", "Upgrade: websocket\r\nContent-Length: 5"));
        assert!(!with("HTTP/1.1", "Upgrade: websocket\r\n").0.upgrade);

        assert!(with("HTTP/1.1", "Connection: TE\r\nTE: deflate, trailers\r\n").1.accepts_trailers);
        assert!(!with("HTTP/1.1", "TE: trailers\r\n").1.accepts_trailers);
    }

    #[test]
    fn limits() {
        let limits = Limits { head: 64, target: 8, fields: 2, trailers: 16 };
        let parse =
            |input: &str| parse_request(input.as_bytes(), &limits, &mut RequestHead::new()).map(|i| i.is_some());
        assert_eq!(parse("GET /12345678"), Err(ParseError::TargetTooLong));
        assert_eq!(parse("GET /1234567"), Ok(false));
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\nB: c\r\n\r\n"), Ok(true));
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\nB: c\r\nD: e\r\n"), Err(ParseError::TooManyFields));
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {:33}\r\n\r\n", "1");
        assert_eq!(long.len(), 65);
        assert_eq!(parse(&long), Err(ParseError::HeadTooLarge));
        assert_eq!(parse(&long[..63]), Ok(false));
        assert_eq!(parse(&long.replacen("X: 1 ", "X: 1", 1)), Ok(true));
        assert_eq!(parse(&"A".repeat(33)), Err(ParseError::MethodTooLong));
    }
}
