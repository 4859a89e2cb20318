//! A request and its response over HTTP/2 (RFC 9113), by hand: one stream, no dynamic table, windows so wide that
//! they never need an update. Small enough to go out as early data, which a general library would not allow.

use std::time::Instant;

use crate::error::ProbeError;
use crate::h1::{Request, Response, USER_AGENT, check_size};
use crate::tls::{TlsStream, since};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The largest frame that we allow (RFC 9113 §4.2, the default).
const MAX_FRAME: usize = 16_384;
/// The largest header block: CONTINUATION frames could go on for ever.
const MAX_BLOCK: usize = 64 << 10;
/// Frames that carry nothing for us, before we lose patience.
const MAX_IDLE_FRAMES: usize = 10_000;
const MAX_WINDOW: u32 = 0x7fff_ffff;

/// Preface, settings, a wide window and the request, as they go on the wire.
pub fn encode(request: &Request) -> Result<Vec<u8>, ProbeError> {
    let mut out = PREFACE.to_vec();
    let mut settings = Vec::new();
    // HEADER_TABLE_SIZE 0, ENABLE_PUSH 0, INITIAL_WINDOW_SIZE the most there is (RFC 9113 §6.5.2).
    for (id, value) in [(1u16, 0u32), (2, 0), (4, MAX_WINDOW)] {
        settings.extend(id.to_be_bytes());
        settings.extend(value.to_be_bytes());
    }
    frame(&mut out, SETTINGS, 0, 0, &settings);
    frame(&mut out, WINDOW_UPDATE, 0, 0, &(MAX_WINDOW - 65_535).to_be_bytes());

    let mut block = Vec::new();
    literal(&mut block, ":method", &request.method);
    literal(&mut block, ":scheme", "https");
    literal(&mut block, ":authority", &request.authority);
    literal(&mut block, ":path", &request.path);
    let has = |name: &str| request.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    for (name, value) in [("user-agent", USER_AGENT), ("accept", "*/*")] {
        if !has(name) {
            literal(&mut block, name, value);
        }
    }
    for (name, value) in &request.headers {
        let name = name.to_ascii_lowercase();
        // RFC 9113 §8.2.2: fields about the connection do not exist here; Host is `:authority`.
        if !matches!(name.as_str(), "connection" | "host" | "keep-alive" | "transfer-encoding" | "upgrade") {
            literal(&mut block, &name, value);
        }
    }
    if block.len() > MAX_FRAME {
        return Err(ProbeError::Usage(format!("the headers are larger than {MAX_FRAME} bytes")));
    }
    frame(&mut out, HEADERS, END_STREAM | END_HEADERS, 1, &block);
    Ok(out)
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// A literal field without indexing and without Huffman (RFC 7541 §6.2.2).
fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        integer(block, 7, text.len());
        block.extend(text.as_bytes());
    }
}

/// An integer with a prefix of `bits` bits (RFC 7541 §5.1), the bits above it zero.
fn integer(out: &mut Vec<u8>, bits: u8, mut value: usize) {
    let most = (1usize << bits) - 1;
    if value < most {
        out.push(value as u8);
        return;
    }
    out.push(most as u8);
    value -= most;
    while value >= 128 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads the response on stream 1 up to its last byte.
pub fn receive(stream: &mut TlsStream<'_>, start: Instant) -> Result<Response, ProbeError> {
    let mut reader = Reader { stream, buffer: Vec::new(), at: 0 };
    let mut response = Response::default();
    let mut block: Option<(Vec<u8>, bool)> = None;
    let mut idle = 0;
    loop {
        let head = reader.frame_head()?;
        if head.stream == 1 && head.kind == HEADERS && response.first_byte == 0 {
            response.first_byte = since(start);
        }
        let mut payload = reader.payload(head.length)?;
        if block.is_some() && head.kind != CONTINUATION {
            return Err(broken("a header block was interrupted"));
        }
        match (head.kind, head.stream) {
            (SETTINGS, 0) if head.flags & ACK == 0 => {
                let mut ack = Vec::new();
                frame(&mut ack, SETTINGS, ACK, 0, &[]);
                reader.stream.write_all(&ack)?;
            }
            (PING, 0) if head.flags & ACK == 0 && payload.len() == 8 => {
                let mut ack = Vec::new();
                frame(&mut ack, PING, ACK, 0, &payload);
                reader.stream.write_all(&ack)?;
            }
            (GOAWAY, 0) if !processes_stream_1(&payload) => {
                return Err(ProbeError::Http(format!("the server sent GOAWAY ({})", error_code(payload.get(4..8)))));
            }
            (RST_STREAM, 1) => {
                let code = error_code(payload.get(..4));
                return Err(ProbeError::Http(format!("the server reset the stream ({code})")));
            }
            (PUSH_PROMISE, _) => return Err(broken("a push, though pushes are switched off")),
            (HEADERS, 1) => {
                let fragment = unpad(&mut payload, head.flags, head.flags & PRIORITY != 0)?.to_vec();
                block = Some((fragment, head.flags & END_STREAM != 0));
            }
            (CONTINUATION, 1) => match &mut block {
                Some((fragment, _)) if fragment.len() + payload.len() <= MAX_BLOCK => fragment.extend(&payload),
                Some(_) => return Err(broken("a header block without end")),
                None => return Err(broken("a CONTINUATION after nothing")),
            },
            (DATA, 1) => {
                if response.status == 0 {
                    return Err(broken("content before its headers"));
                }
                response.body_bytes += unpad(&mut payload, head.flags, false)?.len() as u64;
                check_size(response.body_bytes)?;
                if head.flags & END_STREAM != 0 {
                    response.last_byte = since(start);
                    return Ok(response);
                }
            }
            _ => {}
        }
        if matches!(head.kind, HEADERS | CONTINUATION)
            && head.flags & END_HEADERS != 0
            && let Some((fragment, end_of_stream)) = block.take()
        {
            // Trailers have no status, and interim responses are followed by the final one.
            if response.status < 200 {
                response.status = status(&fragment).ok_or_else(|| broken("headers that do not begin with a status"))?;
            }
            if end_of_stream {
                response.last_byte = since(start);
                return Ok(response);
            }
        }
        if head.length == 0 || head.kind != DATA {
            idle += 1;
            if idle > MAX_IDLE_FRAMES {
                return Err(broken("frames without end and without content"));
            }
        }
    }
}

fn broken(what: &str) -> ProbeError {
    ProbeError::Http(format!("HTTP/2: {what}"))
}

/// Whether a GOAWAY still lets stream 1 finish (RFC 9113 §6.8).
fn processes_stream_1(payload: &[u8]) -> bool {
    let last = payload.first_chunk().map_or(0, |b| u32::from_be_bytes(*b) & 0x7fff_ffff);
    let code = payload.get(4..8).and_then(|b| b.first_chunk()).map_or(u32::MAX, |b| u32::from_be_bytes(*b));
    last >= 1 && code == 0
}

fn error_code(bytes: Option<&[u8]>) -> String {
    let code = bytes.and_then(|b| b.first_chunk()).map(|b| u32::from_be_bytes(*b));
    match code {
        Some(1) => "PROTOCOL_ERROR".into(),
        Some(2) => "INTERNAL_ERROR".into(),
        Some(7) => "REFUSED_STREAM".into(),
        Some(11) => "ENHANCE_YOUR_CALM".into(),
        Some(13) => "HTTP_1_1_REQUIRED".into(),
        Some(code) => format!("error {code}"),
        None => "no error code".into(),
    }
}

/// Takes padding (and a priority) off a payload (RFC 9113 §6.1, §6.2).
fn unpad(payload: &mut [u8], flags: u8, priority: bool) -> Result<&[u8], ProbeError> {
    let mut rest: &[u8] = payload;
    let mut padding = 0;
    if flags & PADDED != 0 {
        let (&first, after) = rest.split_first().ok_or_else(|| broken("padding without a length"))?;
        (padding, rest) = (usize::from(first), after);
    }
    if priority {
        rest = rest.get(5..).ok_or_else(|| broken("a priority cut short"))?;
    }
    let length = rest.len().checked_sub(padding).ok_or_else(|| broken("more padding than payload"))?;
    Ok(&rest[..length])
}

/// The status of a header block whose first field it must be (RFC 9113 §8.3): by index 8 to 14, or as a literal
/// named by one of them, plain or in Huffman's code, of which only the digits are needed.
fn status(block: &[u8]) -> Option<u16> {
    // Dynamic table size updates may come first (RFC 7541 §4.2); their value is one byte, as our table has size 0.
    let mut block = block;
    while let Some((first, rest)) = block.split_first().filter(|(b, _)| **b & 0xe0 == 0x20) {
        if first & 0x1f == 0x1f {
            return None;
        }
        block = rest;
    }
    let (&first, rest) = block.split_first()?;
    let indexed = |index| [200, 204, 206, 304, 400, 404, 500].get(usize::checked_sub(index, 8)?).copied();
    if first & 0x80 != 0 {
        return indexed(usize::from(first & 0x7f));
    }
    let name = match first {
        0x40..=0x7f => first & 0x3f,
        0x00..=0x1f => first & 0x0f,
        _ => return None,
    };
    let rest = match name {
        8..=14 => rest,
        // A literal name: its length, then ":status"; in Huffman's code it is b8 84 8d 36 a3.
        0 => rest.strip_prefix(b"\x07:status").or_else(|| rest.strip_prefix(b"\x85\xb8\x84\x8d\x36\xa3"))?,
        _ => return None,
    };
    let (&length, rest) = rest.split_first()?;
    let value = rest.get(..usize::from(length & 0x7f))?;
    let digits =
        if length & 0x80 == 0 { three(value.iter().map(|b| b.checked_sub(b'0')))? } else { huffman_digits(value)? };
    Some(digits).filter(|s| (100..1000).contains(s))
}

/// Three digits, neither fewer nor more, as a number.
fn three(digits: impl Iterator<Item = Option<u8>>) -> Option<u16> {
    let digits: Vec<u8> = digits.take(4).collect::<Option<_>>()?;
    let [a, b, c] = digits[..] else { return None };
    (a.max(b).max(c) <= 9).then(|| u16::from(a) * 100 + u16::from(b) * 10 + u16::from(c))
}

/// RFC 7541 appendix B: '0' to '2' are 00000 to 00010, '3' to '9' are 011001 to 011111; the end is filled with ones.
fn huffman_digits(coded: &[u8]) -> Option<u16> {
    if coded.len() > 3 {
        return None;
    }
    let mut bits = coded.iter().flat_map(|b| (0..8).rev().map(move |i| b >> i & 1));
    let mut take = |n: usize| {
        let taken: Vec<u8> = bits.by_ref().take(n).collect();
        (taken.len() == n).then(|| taken.iter().fold(0u8, |v, b| v << 1 | b))
    };
    let digits: Vec<Option<u8>> = (0..3)
        .map(|_| match take(5)? {
            short @ 0..=2 => Some(short),
            long => match long << 1 | take(1)? {
                code @ 0b011001..=0b011111 => Some(code - 0b011001 + 3),
                _ => None,
            },
        })
        .collect();
    let number = three(digits.into_iter())?;
    bits.all(|b| b == 1).then_some(number)
}

struct FrameHead {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

struct Reader<'a, 'w> {
    stream: &'a mut TlsStream<'w>,
    buffer: Vec<u8>,
    at: usize,
}

impl Reader<'_, '_> {
    fn need(&mut self, bytes: usize) -> Result<(), ProbeError> {
        while self.buffer.len() - self.at < bytes {
            self.buffer.drain(..self.at);
            self.at = 0;
            let old = self.buffer.len();
            self.buffer.resize(old + (16 << 10), 0);
            let n = self.stream.read(&mut self.buffer[old..])?;
            self.buffer.truncate(old + n);
            if n == 0 {
                return Err(ProbeError::Closed("before the response was whole".into()));
            }
        }
        Ok(())
    }

    fn frame_head(&mut self) -> Result<FrameHead, ProbeError> {
        self.need(9)?;
        let b = &self.buffer[self.at..self.at + 9];
        let length = usize::from(b[0]) << 16 | usize::from(b[1]) << 8 | usize::from(b[2]);
        let head = FrameHead {
            length,
            kind: b[3],
            flags: b[4],
            stream: u32::from_be_bytes([b[5], b[6], b[7], b[8]]) & 0x7fff_ffff,
        };
        if length > MAX_FRAME {
            return Err(broken("a frame larger than allowed; is it HTTP/2 at all?"));
        }
        self.at += 9;
        Ok(head)
    }

    fn payload(&mut self, length: usize) -> Result<Vec<u8>, ProbeError> {
        self.need(length)?;
        let payload = self.buffer[self.at..self.at + length].to_vec();
        self.at += length;
        Ok(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_in_every_spelling() {
        assert_eq!(status(&[0x88]), Some(200));
        assert_eq!(status(&[0x8e]), Some(500));
        assert_eq!(status(&[0x20, 0x8d]), Some(404));
        // RFC 7541 C.5.1 (plain 302) and C.6.1 (Huffman 302: 64 02), C.6.2 (307: 64 0e ff).
        assert_eq!(status(b"\x48\x03302"), Some(302));
        assert_eq!(status(&[0x48, 0x82, 0x64, 0x02]), Some(302));
        assert_eq!(status(&[0x48, 0x83, 0x64, 0x0e, 0xff]), Some(307));
        assert_eq!(status(b"\x08\x03418"), Some(418));
        assert_eq!(status(b"\x00\x07:status\x03503"), Some(503));
    }

    #[test]
    fn junk_has_no_status() {
        for junk in [
            &[][..],
            &[0x82],
            &[0xff],
            &[0x3f],
            &[0x48],
            &[0x48, 0x03, b'2'],
            b"\x48\x032x0",
            b"\x48\x0499",
            b"\x48\x03099",
            &[0x48, 0x82, 0xff, 0xff],
            &[0x48, 0x80],
        ] {
            assert_eq!(status(junk), None, "{junk:x?}");
        }
        for a in 0..=255 {
            for b in 0..=255 {
                status(&[a, b, a ^ b, b, a]);
            }
        }
    }

    #[test]
    fn integers_and_frames() {
        let mut out = Vec::new();
        // RFC 7541 C.1.2, with the three upper bits zero: 1337 with a prefix of five bits.
        integer(&mut out, 5, 1337);
        assert_eq!(out, [0x1f, 0x9a, 0x0a]);
        let request = Request { method: "GET".into(), authority: "a".into(), path: "/".into(), headers: vec![] };
        let wire = encode(&request).expect("small");
        assert!(wire.starts_with(PREFACE));
        assert_eq!(wire[PREFACE.len()..][..9], [0, 0, 18, SETTINGS, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn padding_is_checked() {
        assert_eq!(unpad(&mut [1, 7, 0], PADDED, false).expect("valid"), [7]);
        assert!(unpad(&mut [3, 7, 0], PADDED, false).is_err());
        assert!(unpad(&mut [], PADDED, false).is_err());
        assert!(unpad(&mut [1, 2], 0, true).is_err());
    }
}
