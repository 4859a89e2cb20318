//! Response heads (RFC 9112 §4) and what they say about the body (§6.3).

use super::connection::{Framing, Options, Pinned, decimal};
use super::section::parse_section;
use super::{Limits, Tolerance};
use crate::error::ParseError;
use crate::fields::Fields;
use crate::known::Known;
use crate::message::{BodyLength, Method, ResponseHead, Version};
use crate::scan;

/// What a response's head says about the connection and the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseInfo {
    /// How many bytes the head took.
    pub consumed: usize,
    /// How the body is delimited. [`BodyLength::None`] also for an interim response, which another one follows.
    pub body: BodyLength,
    /// Whether another request may be sent on this connection when this response is through.
    pub keep_alive: bool,
    /// Whether the connection is no longer HTTP/1.1 after this head: 101, or 2xx to CONNECT.
    pub upgrade: bool,
}

/// Reads the head of a response from the start of `input` into `head` (cleared first). `request` is the method that
/// it answers.
///
/// `Ok(None)` and errors as in [`parse_request`](super::parse_request). A Content-Length that only describes what a
/// GET would have got (in responses to HEAD, and 304) stays among the fields; one that means nothing is removed.
pub fn parse_response(
    input: &[u8],
    limits: &Limits,
    request: Method,
    head: &mut ResponseHead,
) -> Result<Option<ResponseInfo>, ParseError> {
    parse_response_tolerating(Tolerance::default(), input, limits, request, head)
}

/// The same for a server of which something is tolerated.
pub fn parse_response_tolerating(
    tolerance: Tolerance,
    input: &[u8],
    limits: &Limits,
    request: Method,
    head: &mut ResponseHead,
) -> Result<Option<ResponseInfo>, ParseError> {
    const NOTHING: Tolerance = Tolerance { equal_content_lengths: false, bare_lf: false, any_status: false };
    if tolerance == NOTHING {
        return parse(NOTHING, input, limits, request, head);
    }
    parse_tolerating(tolerance, input, limits, request, head)
}

/// Apart, so that what is not tolerated is not looked for in each line of all others' responses.
#[cold]
#[inline(never)]
fn parse_tolerating(
    tolerance: Tolerance,
    input: &[u8],
    limits: &Limits,
    request: Method,
    head: &mut ResponseHead,
) -> Result<Option<ResponseInfo>, ParseError> {
    parse(tolerance, input, limits, request, head)
}

#[inline(always)]
fn parse(
    tolerance: Tolerance,
    input: &[u8],
    limits: &Limits,
    request: Method,
    head: &mut ResponseHead,
) -> Result<Option<ResponseInfo>, ParseError> {
    head.clear();
    let seen = &input[..input.len().min(limits.head)];
    let incomplete = || if input.len() >= limits.head { Err(ParseError::HeadTooLarge) } else { Ok(None) };
    let Some(line) = status_line(seen, tolerance)? else { return incomplete() };
    let fields = &seen[line.length..];
    let Some(fields_len) = parse_section(fields, limits.fields, tolerance.bare_lf, &mut head.fields)? else {
        return incomplete();
    };
    if tolerance.equal_content_lengths && head.fields.contains(Known::ContentLength) {
        one_length(&mut head.fields);
    }
    head.status = line.status;
    head.version = line.version;
    head.put_reason(line.reason);
    finish(head, request, line.length + fields_len).map(Some)
}

struct StatusLine<'a> {
    version: Version,
    status: u16,
    reason: &'a [u8],
    /// With its CRLF.
    length: usize,
}

/// Reads `HTTP/1.x SP 3DIGIT [SP reason] CRLF`. The SP before an empty reason is required by RFC 9112 §4, but
/// missing in the wild, and nothing hangs on it.
#[inline(always)]
fn status_line(input: &[u8], tolerance: Tolerance) -> Result<Option<StatusLine<'_>>, ParseError> {
    const PATTERN: &[u8; 12] = b"HTTP/#.# ###";
    let usual = matches!(
        input.first_chunk(),
        Some([b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0'..=b'9', b' ', b'0'..=b'9', b'0'..=b'9', b'0'..=b'9'])
    );
    // What is not whole yet is judged as far as it goes.
    if !usual {
        for (&b, &p) in input.iter().zip(PATTERN) {
            if if p == b'#' { !b.is_ascii_digit() } else { b != p } {
                return Err(ParseError::StatusLine);
            }
        }
    }
    let version = match input.get(5..8) {
        None => return Ok(None),
        Some(b"1.1") => Version::Http11,
        Some(b"1.0") => Version::Http10,
        Some(_) => return Err(ParseError::Version),
    };
    let Some(&[a, b, c]) = input.get(9..12) else { return Ok(None) };
    let status = [a, b, c].iter().fold(0, |n, d| n * 10 + u16::from(d - b'0'));
    if !(100..=if tolerance.any_status { 999 } else { 599 }).contains(&status) {
        return Err(ParseError::Status);
    }
    let start = match input.get(12) {
        None => return Ok(None),
        Some(b' ') => 13,
        Some(b'\r' | b'\n') => 12,
        Some(_) => return Err(ParseError::StatusLine),
    };
    let mut end = start;
    loop {
        end += scan::text_run(&input[end..]);
        match input.get(end) {
            Some(b'\r') => break,
            Some(b'\t') => end += 1,
            None => return Ok(None),
            Some(b'\n') if tolerance.bare_lf => {
                return Ok(Some(StatusLine { version, status, reason: &input[start..end], length: end + 1 }));
            }
            Some(b'\n') => return Err(ParseError::BareLf),
            Some(_) => return Err(ParseError::StatusLine),
        }
    }
    match input.get(end + 1) {
        Some(b'\n') => Ok(Some(StatusLine { version, status, reason: &input[start..end], length: end + 2 })),
        None => Ok(None),
        Some(_) => Err(ParseError::BareCr),
    }
}

/// Puts one Content-Length in the place of several that say the same.
#[cold]
fn one_length(fields: &mut Fields) {
    let same = {
        let mut all = fields.all(Known::ContentLength).flat_map(|value| value.split(|b| *b == b',').map(scan::trim));
        let length = all.next().and_then(decimal);
        length.filter(|length| all.all(|other| decimal(other) == Some(*length)))
    };
    if let Some(length) = same {
        // Digits may stand in any field.
        let _ = fields.set(Known::ContentLength, length.to_string().as_bytes());
    }
}

fn finish(head: &mut ResponseHead, request: Method, consumed: usize) -> Result<ResponseInfo, ParseError> {
    let options = Options::read(&mut head.fields, Pinned::Ignore)?;
    let framing = Framing::read(&head.fields, head.version)?;
    let mut keep_alive = options.persistent(head.version);
    let tunnel = request == Method::Connect && (200..300).contains(&head.status);

    let body = match head.status {
        // RFC 9112 §6.3 item 1. A response follows on the same connection, so content here would be taken for it.
        100..=199 => {
            if !matches!(framing, Framing::Nothing | Framing::Length(0)) {
                return Err(ParseError::BodyForbidden);
            }
            // RFC 9110 §15.2.2.
            if head.status == 101 && !(options.upgrade && head.fields.contains(Known::Upgrade)) {
                return Err(ParseError::Upgrade);
            }
            head.fields.remove(Known::ContentLength);
            BodyLength::None
        }
        // RFC 9110 §8.6, RFC 9112 §6.1: neither field may be here. If one announces content, content may well come,
        // and would be taken for the next response: that connection is not used again.
        204 => {
            keep_alive &= matches!(framing, Framing::Nothing | Framing::Length(0));
            head.fields.remove(Known::ContentLength);
            BodyLength::None
        }
        // RFC 9112 §6.3 item 2: both fields are ignored.
        _ if tunnel => {
            head.fields.remove(Known::ContentLength);
            BodyLength::None
        }
        304 => BodyLength::None,
        _ if request == Method::Head => BodyLength::None,
        _ => match framing {
            Framing::Chunked => BodyLength::Chunked,
            Framing::Length(n) => BodyLength::Known(n),
            Framing::Nothing => BodyLength::UntilClose,
        },
    };
    let upgrade = head.status == 101 || tunnel;
    keep_alive &= !upgrade && body != BodyLength::UntilClose;
    Ok(ResponseInfo { consumed, body, keep_alive, upgrade })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &str, request: Method) -> Result<Option<(ResponseInfo, ResponseHead)>, ParseError> {
        let mut head = ResponseHead::new();
        let info = parse_response(input.as_bytes(), &Limits::default(), request, &mut head)?;
        Ok(info.map(|info| (info, head)))
    }

    fn info(request: Method, status: u16, fields: &str) -> Result<ResponseInfo, ParseError> {
        let text = format!("HTTP/1.1 {status} x\r\n{fields}\r\n");
        let (info, head) = parse(&text, request)?.unwrap();
        assert_eq!((info.consumed, head.status, head.reason()), (text.len(), status, &b"x"[..]));
        Ok(info)
    }

    #[test]
    fn body_lengths() {
        use BodyLength::*;
        let length = "Content-Length: 5\r\n";
        let chunked = "Transfer-Encoding: CHUNKED\r\n";
        for (request, status, fields, body, keep_alive, upgrade) in [
            (Method::Get, 200, length, Known(5), true, false),
            (Method::Get, 200, "Content-Length: 0\r\n", Known(0), true, false),
            (Method::Get, 200, chunked, Chunked, true, false),
            (Method::Get, 200, "", UntilClose, false, false),
            (Method::Get, 200, "Content-Length: 5\r\nConnection: close\r\n", Known(5), false, false),
            (Method::Head, 200, length, None, true, false),
            (Method::Head, 200, chunked, None, true, false),
            (Method::Head, 200, "", None, true, false),
            (Method::Get, 304, length, None, true, false),
            (Method::Get, 204, "", None, true, false),
            (Method::Get, 204, length, None, false, false),
            (Method::Get, 204, chunked, None, false, false),
            (Method::Get, 100, "", None, true, false),
            (Method::Get, 103, "Link: x\r\n", None, true, false),
            (Method::Get, 101, "Connection: upgrade\r\nUpgrade: websocket\r\n", None, false, true),
            (Method::Connect, 200, length, None, false, true),
            (Method::Connect, 407, length, Known(5), true, false),
        ] {
            let got = info(request, status, fields).unwrap();
            let want = (body, keep_alive, upgrade);
            assert_eq!((got.body, got.keep_alive, got.upgrade), want, "{request:?} {status} {fields}");
        }
        assert_eq!(info(Method::Get, 101, ""), Err(ParseError::Upgrade));
        assert_eq!(info(Method::Get, 100, length), Err(ParseError::BodyForbidden));
        assert_eq!(info(Method::Get, 200, &format!("{length}{chunked}")), Err(ParseError::LengthAndCoding));
        assert_eq!(info(Method::Get, 200, &format!("{length}{length}")), Err(ParseError::ContentLengthDuplicate));
    }

    #[test]
    fn status_lines() {
        for good in ["HTTP/1.0 200 OK", "HTTP/1.1 599 ", "HTTP/1.1 100", "HTTP/1.1 200 \u{e9}\t x"] {
            assert!(parse(&format!("{good}\r\n\r\n"), Method::Get).unwrap().is_some(), "{good}");
        }
        for (bad, error) in [
            ("HTTP/1.1 099 OK\r\n", ParseError::Status),
            ("HTTP/1.1 600 OK\r\n", ParseError::Status),
            ("HTTP/1.1 20 OK\r\n", ParseError::StatusLine),
            ("HTTP/1.1 2000 OK\r\n", ParseError::StatusLine),
            ("HTTP/1.1  200 OK\r\n", ParseError::StatusLine),
            ("HTTP/1.1\t200 OK\r\n", ParseError::StatusLine),
            ("http/1.1 200 OK\r\n", ParseError::StatusLine),
            ("HTTP/2.0 200 OK\r\n", ParseError::Version),
            ("HTTP/1.1 200 O\0K\r\n", ParseError::StatusLine),
            ("HTTP/1.1 200 OK\n", ParseError::BareLf),
            ("HTTP/1.1 200\n", ParseError::BareLf),
            ("HTTP/1.1 200 OK\rX", ParseError::BareCr),
            ("\r\nHTTP/1.1 200 OK\r\n", ParseError::StatusLine),
            ("ICY 200 OK\r\n", ParseError::StatusLine),
        ] {
            assert_eq!(parse(bad, Method::Get).err(), Some(error), "{bad:?}");
        }
    }

    #[test]
    fn what_is_tolerated_is_written_as_it_should_be() {
        let tolerant = Tolerance { equal_content_lengths: true, bare_lf: true, any_status: true };
        let parse = |tolerance, text: &str| {
            let mut head = ResponseHead::new();
            let limits = Limits::default();
            let info = parse_response_tolerating(tolerance, text.as_bytes(), &limits, Method::Get, &mut head)?;
            Ok::<_, ParseError>((info.unwrap(), head))
        };
        for (text, error, body) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 05\r\n\r\n",
                ParseError::ContentLengthDuplicate,
                BodyLength::Known(5),
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", ParseError::ContentLength, BodyLength::Known(5)),
            ("HTTP/1.1 200 OK\nContent-Length: 5\r\n\n", ParseError::BareLf, BodyLength::Known(5)),
            ("HTTP/1.1 200\n\n", ParseError::BareLf, BodyLength::UntilClose),
            ("HTTP/1.1 999 Denied\r\n\r\n", ParseError::Status, BodyLength::UntilClose),
        ] {
            assert_eq!(parse(Tolerance::default(), text).err(), Some(error), "{text:?}");
            let (info, head) = parse(tolerant, text).unwrap();
            assert_eq!((info.body, info.consumed), (body, text.len()), "{text:?}");
            assert!(head.fields.all(Known::ContentLength).count() <= 1);
        }
        for (text, error) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", ParseError::ContentLengthDuplicate),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5,6\r\n\r\n", ParseError::ContentLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", ParseError::LengthAndCoding),
            ("HTTP/1.1 099 OK\r\n\r\n", ParseError::Status),
            ("HTTP/1.1 200 OK\rX", ParseError::BareCr),
        ] {
            assert_eq!(parse(tolerant, text).err(), Some(error), "{text:?}");
        }
    }
}
