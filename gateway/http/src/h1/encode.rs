//! Heads and chunks as bytes. Everything is written anew, in one form: Host first and once, the end-to-end fields,
//! our framing, our Connection.

use crate::fields::Fields;
use crate::known::Known;
use crate::message::{BodyLength, RequestHead, ResponseHead, Version, reason_phrase};

/// What is said about the connection after this message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionOption {
    /// It stays open.
    #[default]
    KeepAlive,
    /// It is closed.
    Close,
    /// It switches to what the head's Upgrade fields name. In a 2xx response to CONNECT use `KeepAlive`.
    Upgrade,
}

/// These are written by the encoder alone, if at all.
const OURS: u64 = Known::ContentLength.bit() | Known::TransferEncoding.bit();

/// Appends a request's head.
///
/// The target is written as it is in the head, Host from [`RequestHead::authority`] (empty if that is). `body` rules
/// the framing fields, whatever the head's fields say; a request cannot end with the connection, so
/// [`BodyLength::UntilClose`] is written as chunked.
pub fn encode_request(out: &mut Vec<u8>, head: &RequestHead, body: BodyLength, connection: ConnectionOption) {
    let (method, target, authority) = (head.method_name(), head.target(), head.authority());
    out.reserve(method.len() + target.len() + authority.len() + 32);
    out.extend_from_slice(method);
    out.push(b' ');
    out.extend_from_slice(target);
    out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    out.extend_from_slice(authority);
    out.extend_from_slice(b"\r\n");
    head.fields.write_end_to_end(out, OURS | Known::Host.bit());
    match body {
        BodyLength::None => {}
        BodyLength::Known(n) => content_length(out, n),
        BodyLength::Chunked | BodyLength::UntilClose => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    // RFC 9110 §10.1.4: TE is for this hop, and says so.
    let te = head.accepts_trailers;
    if te {
        out.extend_from_slice(b"TE: trailers\r\n");
    }
    match (connection, te) {
        (ConnectionOption::KeepAlive, false) => {}
        (ConnectionOption::KeepAlive, true) => out.extend_from_slice(b"Connection: TE\r\n"),
        (ConnectionOption::Close, false) => out.extend_from_slice(b"Connection: close\r\n"),
        (ConnectionOption::Close, true) => out.extend_from_slice(b"Connection: close, TE\r\n"),
        (ConnectionOption::Upgrade, te) => {
            head.fields.write_all(out, Known::Upgrade);
            out.extend_from_slice(if te { b"Connection: upgrade, TE\r\n" } else { b"Connection: upgrade\r\n" });
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a response's head for a client of version `to`, and says how the body must be framed: what has no length is
/// sent in chunks to HTTP/1.1 clients, and until the connection closes to HTTP/1.0 ones.
///
/// Where the result is [`BodyLength::UntilClose`], `Connection: close` is written whatever `connection` says, and the
/// caller closes. With [`BodyLength::None`] a Content-Length among the fields is passed on (it tells what a GET would
/// get), save where it may not be: 1xx and 204. Give `Known(0)` for an empty body that is not empty by definition.
pub fn encode_response(
    out: &mut Vec<u8>,
    head: &ResponseHead,
    to: Version,
    body: BodyLength,
    connection: ConnectionOption,
) -> BodyLength {
    let body = match body {
        BodyLength::Chunked | BodyLength::UntilClose if to < Version::Http11 => BodyLength::UntilClose,
        BodyLength::UntilClose => BodyLength::Chunked,
        other => other,
    };
    status_line(out, head);
    let interim = head.status < 200;
    let describes = body == BodyLength::None && !interim && head.status != 204;
    head.fields.write_end_to_end(out, if describes { OURS & !Known::ContentLength.bit() } else { OURS });
    match body {
        BodyLength::None | BodyLength::UntilClose => {}
        BodyLength::Known(n) => content_length(out, n),
        BodyLength::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
    match connection {
        ConnectionOption::Upgrade => {
            head.fields.write_all(out, Known::Upgrade);
            out.extend_from_slice(b"Connection: upgrade\r\n");
        }
        _ if body == BodyLength::UntilClose => out.extend_from_slice(b"Connection: close\r\n"),
        ConnectionOption::Close => out.extend_from_slice(b"Connection: close\r\n"),
        // An HTTP/1.0 client counts on the connection only when told (RFC 9112 §C.2.2).
        ConnectionOption::KeepAlive if to < Version::Http11 && !interim => {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        ConnectionOption::KeepAlive => {}
    }
    out.extend_from_slice(b"\r\n");
    body
}

/// RFC 9112 §4: the version is always ours.
#[inline]
fn status_line(out: &mut Vec<u8>, head: &ResponseHead) {
    if head.status == 200 && (head.reason().is_empty() || head.reason() == b"OK") {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    // Three digits, whatever was put there.
    let status = if (100..1000).contains(&head.status) { head.status } else { 500 };
    let digit = |n: u16| b'0' + (n % 10) as u8;
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&[digit(status / 100), digit(status / 10), digit(status), b' ']);
    let reason = head.reason();
    out.extend_from_slice(if reason.is_empty() { reason_phrase(status).as_bytes() } else { reason });
    out.extend_from_slice(b"\r\n");
}

fn content_length(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(b"Content-Length: ");
    encode_decimal(out, n);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number in decimal.
pub fn encode_decimal(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends what goes before `len` bytes of chunk data, which `CRLF` must follow. Nothing for 0, which would end the
/// body.
pub fn encode_chunk_header(out: &mut Vec<u8>, len: usize) {
    if len == 0 {
        return;
    }
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4);
    for i in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(len >> (4 * i)) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a chunk; nothing when there is no data.
pub fn encode_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    out.reserve(data.len() + 20);
    encode_chunk_header(out, data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends a piece of a body under this framing.
#[inline]
pub fn encode_body(out: &mut Vec<u8>, framing: BodyLength, data: &[u8]) {
    if framing == BodyLength::Chunked {
        encode_chunk(out, data);
    } else {
        out.extend_from_slice(data);
    }
}

/// Appends the end of a body under this framing, with trailers if there are any.
#[inline]
pub fn encode_body_end(out: &mut Vec<u8>, framing: BodyLength, trailers: &Fields) {
    if framing == BodyLength::Chunked {
        encode_last_chunk(out, (!trailers.is_empty()).then_some(trailers));
    }
}

/// Appends the end of a chunked body, with trailer fields if there are any.
pub fn encode_last_chunk(out: &mut Vec<u8>, trailers: Option<&Fields>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        trailers.write_end_to_end(out, OURS | Known::Host.bit());
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::{Limits, parse_request, parse_response};
    use crate::message::Method;

    fn request(text: &str, body: BodyLength, connection: ConnectionOption) -> String {
        let mut head = RequestHead::new();
        parse_request(text.as_bytes(), &Limits::default(), &mut head).unwrap().unwrap();
        let mut out = Vec::new();
        encode_request(&mut out, &head, body, connection);
        String::from_utf8(out).unwrap()
    }

    fn response(text: &str, to: Version, body: BodyLength, connection: ConnectionOption) -> (String, BodyLength) {
        let mut head = ResponseHead::new();
        parse_response(text.as_bytes(), &Limits::default(), Method::Head, &mut head).unwrap().unwrap();
        let mut out = Vec::new();
        let body = encode_response(&mut out, &head, to, body, connection);
        (String::from_utf8(out).unwrap(), body)
    }

    #[test]
    fn requests() {
        let text = "POST http://a/x HTTP/1.0\r\nB:  c \r\nConnection: X-D\r\nX-D: e\r\nhost: a\r\nKeep-Alive: 5\r\n\
                    Upgrade: websocket\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(
            request(text, BodyLength::Known(1_234_567_890), ConnectionOption::KeepAlive),
            "POST /x HTTP/1.1\r\nHost: a\r\nB: c\r\nContent-Length: 1234567890\r\n\r\n"
        );
        assert_eq!(
            request(text, BodyLength::None, ConnectionOption::Upgrade),
            "POST /x HTTP/1.1\r\nHost: a\r\nB: c\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
        );
        let odd = "GET / HTTP/1.1\r\nHost: a\r\nA: b \r\nC: d\t\r\nE:\tf\r\nG:h\r\nI:\r\n\r\n";
        assert_eq!(
            request(odd, BodyLength::None, ConnectionOption::KeepAlive),
            "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\nC: d\r\nE: f\r\nG: h\r\nI: \r\n\r\n"
        );
        let te = "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n";
        assert_eq!(
            request(te, BodyLength::Chunked, ConnectionOption::Close),
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n"
        );
    }

    #[test]
    fn responses() {
        use BodyLength::{Chunked, Known, UntilClose};
        let text = "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\nContent-Length: 7\r\n\r\n";
        let to = |version, body, connection| response(text, version, body, connection);
        let (h10, h11) = (Version::Http10, Version::Http11);
        let start = "HTTP/1.1 200 OK\r\nA: b\r\n";
        for (got, end, body) in [
            (to(h11, Known(0), ConnectionOption::KeepAlive), "Content-Length: 0\r\n\r\n", Known(0)),
            (to(h11, BodyLength::None, ConnectionOption::KeepAlive), "Content-Length: 7\r\n\r\n", BodyLength::None),
            (to(h11, UntilClose, ConnectionOption::KeepAlive), "Transfer-Encoding: chunked\r\n\r\n", Chunked),
            (to(h10, Chunked, ConnectionOption::KeepAlive), "Connection: close\r\n\r\n", UntilClose),
            (
                to(h10, Known(3), ConnectionOption::KeepAlive),
                "Content-Length: 3\r\nConnection: keep-alive\r\n\r\n",
                Known(3),
            ),
        ] {
            assert_eq!(got, (format!("{start}{end}"), body));
        }
        let odd = response("HTTP/1.1 404 Nope\r\n\r\n", h11, Known(0), ConnectionOption::Close).0;
        assert_eq!(odd, "HTTP/1.1 404 Nope\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let interim = response("HTTP/1.1 103 x\r\n\r\n", h10, BodyLength::None, ConnectionOption::KeepAlive).0;
        assert_eq!(interim, "HTTP/1.1 103 x\r\n\r\n");
        let bare = response("HTTP/1.1 304\r\n\r\n", h11, BodyLength::None, ConnectionOption::KeepAlive).0;
        assert_eq!(bare, "HTTP/1.1 304 Not Modified\r\n\r\n");
    }

    #[test]
    fn chunks() {
        let mut out = Vec::new();
        encode_chunk(&mut out, b"");
        encode_chunk(&mut out, &[b'x'; 0x1f]);
        encode_chunk_header(&mut out, 0x10000);
        assert_eq!(out, [&b"1f\r\n"[..], &[b'x'; 0x1f], b"\r\n10000\r\n"].concat());
        out.clear();
        let mut trailers = Fields::new();
        trailers.push(b"A", b"b").unwrap();
        trailers.push(b"Content-Length", b"1").unwrap();
        encode_last_chunk(&mut out, Some(&trailers));
        encode_last_chunk(&mut out, None);
        assert_eq!(out, b"0\r\nA: b\r\n\r\n0\r\n\r\n");
    }
}
