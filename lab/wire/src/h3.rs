//! HTTP/3 from the client's side (RFC 9114), sans-IO: the bytes of a request stream out, the status and
//! the soundness of a response in, and what a server's own streams have to say.

use crate::fields::{self, Coding, Sections};

// RFC 9114 §7.2.
const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
const SETTINGS: u64 = 0x04;
const PUSH_PROMISE: u64 = 0x05;
const GOAWAY: u64 = 0x07;
/// §6.2.1: the type of the control stream.
const CONTROL: u64 = 0x00;
/// The longest field section that is read.
const MAX_SECTION: u64 = 64 * 1024;

/// `H3_NO_ERROR` (RFC 9114 §8.1).
pub const NO_ERROR: u32 = 0x100;

/// What opens our control stream: its type and empty SETTINGS, so that QPACK's table holds nothing
/// (RFC 9204 §5).
pub const CONTROL_OPENING: [u8; 3] = [CONTROL as u8, SETTINGS as u8, 0];

/// The peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

/// Appends a variable-length integer (RFC 9000 §16).
fn put_varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// The bytes of a request stream.
pub fn encode(sections: &Sections, body: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(sections.plain.len() + body.len() + 16);
    put_varint(&mut out, HEADERS);
    put_varint(&mut out, sections.plain.len() as u64);
    out.extend_from_slice(&sections.plain);
    if !body.is_empty() {
        put_varint(&mut out, DATA);
        put_varint(&mut out, body.len() as u64);
        out.extend_from_slice(body);
    }
    out.into_boxed_slice()
}

/// An integer that comes byte by byte.
#[derive(Clone, Copy, Debug, Default)]
struct Varint {
    value: u64,
    /// Bytes still to come; 0 before the first.
    left: u8,
    begun: bool,
}

impl Varint {
    fn feed(&mut self, byte: u8) -> Option<u64> {
        if self.begun {
            self.value = self.value << 8 | u64::from(byte);
            self.left -= 1;
        } else {
            self.begun = true;
            self.value = u64::from(byte & 0x3f);
            self.left = (1 << (byte >> 6)) - 1;
        }
        (self.left == 0).then(|| std::mem::take(self).value)
    }
}

#[derive(Clone, Copy, Debug)]
enum At {
    Kind(Varint),
    Length(u64, Varint),
    /// A payload of which so many bytes are still to come.
    Payload(u64, u64),
}

/// Takes frames apart.
#[derive(Debug)]
struct Frames {
    at: At,
    /// The payload so far, of those kinds that are kept.
    kept: Vec<u8>,
}

impl Frames {
    fn new() -> Self {
        Self { at: At::Kind(Varint::default()), kept: Vec::new() }
    }

    /// Whether nothing has been begun.
    fn between(&self) -> bool {
        matches!(self.at, At::Kind(v) if !v.begun)
    }

    /// Calls `frame` for the start of every frame, with its kind and length (whether to keep it), and at the
    /// end of those kept with their payload.
    fn feed(
        &mut self,
        mut bytes: &[u8],
        mut begin: impl FnMut(u64, u64) -> Result<bool, Broken>,
        mut end: impl FnMut(u64, &[u8]) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        while let Some(first) = bytes.first() {
            match &mut self.at {
                At::Kind(v) => {
                    bytes = &bytes[1..];
                    if let Some(kind) = v.feed(*first) {
                        self.at = At::Length(kind, Varint::default());
                    }
                    continue;
                }
                At::Length(kind, v) => {
                    bytes = &bytes[1..];
                    let kind = *kind;
                    let Some(len) = v.feed(*first) else { continue };
                    self.kept.clear();
                    // The capacity says whether it is kept: nothing of others is.
                    if begin(kind, len)? {
                        self.kept.reserve(len as usize);
                        self.at = At::Payload(kind, len);
                    } else {
                        self.at = At::Payload(u64::MAX, len);
                    }
                }
                At::Payload(kind, left) => {
                    let n = (*left).min(bytes.len() as u64) as usize;
                    if *kind != u64::MAX {
                        self.kept.extend_from_slice(&bytes[..n]);
                    }
                    *left -= n as u64;
                    bytes = &bytes[n..];
                }
            }
            if let At::Payload(kind, 0) = self.at {
                self.at = At::Kind(Varint::default());
                if kind != u64::MAX {
                    end(kind, &self.kept)?;
                }
            }
        }
        Ok(())
    }
}

/// A response as its stream brings it.
#[derive(Debug)]
pub struct Response {
    frames: Frames,
    status: u16,
    content: u64,
}

impl Default for Response {
    fn default() -> Self {
        Self { frames: Frames::new(), status: 0, content: 0 }
    }
}

impl Response {
    /// The status; 0 before it has come.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Bytes of content, of a frame under way all of them.
    pub fn content(&self) -> u64 {
        self.content
    }

    /// Takes in bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        // DATA may only follow a final status (RFC 9114 §4.1); both are decided in stream order.
        let status = std::cell::Cell::new(self.status);
        let content = &mut self.content;
        let result = self.frames.feed(
            bytes,
            |kind, len| match kind {
                HEADERS if len > MAX_SECTION => Err(Broken("a field section beyond 64 KiB")),
                HEADERS => Ok(true),
                DATA if status.get() == 0 => Err(Broken("DATA before HEADERS")),
                DATA => {
                    *content = content.saturating_add(len);
                    Ok(false)
                }
                SETTINGS | GOAWAY | PUSH_PROMISE => Err(Broken("a frame that does not belong on a request stream")),
                _ => Ok(false),
            },
            |_, section| {
                let found = fields::status(Coding::Qpack, section).map_err(|e| Broken(e.0))?;
                match (status.get(), found) {
                    (0, 0) => Err(Broken("a response without :status")),
                    // Interim responses, the final one follows; trailers have no status.
                    (0, 100..200) => Ok(()),
                    (0, found) => {
                        status.set(found);
                        Ok(())
                    }
                    (_, 0) => Ok(()),
                    (_, _) => Err(Broken("two final statuses")),
                }
            },
        );
        self.status = status.get();
        result
    }

    /// The stream ended: whether the response is complete.
    pub fn complete(&self) -> bool {
        self.status != 0 && self.frames.between()
    }
}

/// A stream of the server's own.
#[derive(Debug)]
pub struct ServerStream {
    kind: Result<u64, Varint>,
    frames: Frames,
}

impl Default for ServerStream {
    fn default() -> Self {
        Self { kind: Err(Varint::default()), frames: Frames::new() }
    }
}

impl ServerStream {
    /// Takes in bytes; whether the server says that it will take no more requests.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<bool, Broken> {
        let mut leaving = false;
        while let (Err(v), Some(first)) = (&mut self.kind, bytes.first()) {
            bytes = &bytes[1..];
            if let Some(kind) = v.feed(*first) {
                self.kind = Ok(kind);
            }
        }
        // QPACK's streams say nothing when no table is used; unknown ones are none of our business (§6.2.3).
        if matches!(self.kind, Ok(CONTROL)) {
            self.frames.feed(
                bytes,
                |kind, _| {
                    leaving |= kind == GOAWAY;
                    if matches!(kind, DATA | HEADERS) {
                        Err(Broken("DATA or HEADERS on the control stream"))
                    } else {
                        Ok(false)
                    }
                },
                |_, _| Ok(()),
            )?;
        }
        Ok(leaving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, kind);
        put_varint(&mut out, payload.len() as u64);
        out.extend_from_slice(payload);
        out
    }

    /// Whole and byte by byte.
    fn read(bytes: &[u8]) -> Result<(u16, bool), Broken> {
        let mut whole = Response::default();
        whole.feed(bytes)?;
        let mut single = Response::default();
        for b in bytes {
            single.feed(std::slice::from_ref(b))?;
        }
        assert_eq!((whole.status(), whole.complete()), (single.status(), single.complete()));
        Ok((whole.status(), whole.complete()))
    }

    #[test]
    fn responses() {
        let ok =
            [frame(HEADERS, &[0, 0, 0xd9]), frame(DATA, &[b'x'; 300]), frame(0x21, b"grease"), frame(HEADERS, &[0, 0])]
                .concat();
        assert_eq!(read(&ok), Ok((200, true)));
        let mut counted = Response::default();
        counted.feed(&ok).unwrap();
        assert_eq!(counted.content(), 300);
        assert_eq!(read(&ok[..ok.len() - 1]), Ok((200, false)));
        let interim = [frame(HEADERS, &[0, 0, 0xd8]), frame(HEADERS, &[0, 0, 0xdb])].concat();
        assert_eq!(read(&interim), Ok((404, true)));
        assert_eq!(read(&[frame(HEADERS, &[0, 0, 0xd9]), frame(DATA, b"")].concat()), Ok((200, true)));
        assert_eq!(read(b""), Ok((0, false)));
        assert!(read(&frame(DATA, b"x")).is_err());
        assert!(read(&frame(SETTINGS, b"")).is_err());
        assert!(read(&frame(HEADERS, &[0, 0])).is_err());
    }

    #[test]
    fn control_streams() {
        let mut s = ServerStream::default();
        let bytes = [vec![0], frame(SETTINGS, &[1, 0]), frame(GOAWAY, &[0])].concat();
        let said: Vec<bool> = bytes.iter().map(|b| s.feed(std::slice::from_ref(b)).unwrap()).collect();
        assert_eq!(said.iter().filter(|l| **l).count(), 1);
        assert!(!ServerStream::default().feed(&[2, 1, 2, 3]).unwrap());
        assert!(ServerStream::default().feed(&[0, 0, 1, 1]).is_err());
    }

    #[test]
    fn integers() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut v = Varint::default();
            let got: Vec<u64> = out.iter().filter_map(|b| v.feed(*b)).collect();
            assert_eq!(got, [value]);
        }
    }
}
