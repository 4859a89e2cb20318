//! Reads frames off a stream of bytes (RFC 9113 §4.1), beside `h2`, which does not tell what passes.

/// Payloads up to this length are kept until the frame is complete.
const KEPT: usize = 64;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const PRIORITY_UPDATE: u8 = 16;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const HAS_PRIORITY: u8 = 32;
/// A DATA frame with a shorter payload costs `h2` more memory than it carries.
const SMALL: u32 = 256;

/// A frame's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of payload.
    pub length: u32,
    pub kind: u8,
    pub flags: u8,
    /// 0 is the connection.
    pub stream: u32,
}

impl Header {
    /// Whether it is a small DATA frame. Padding may make one look large, so that padded ones are always
    /// counted.
    pub fn is_small_data(self) -> bool {
        self.kind == DATA && (self.length < SMALL || self.flags & PADDED != 0)
    }
}

/// What has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A frame begins.
    Begins(Header),
    /// A piece of the payload of HEADERS or CONTINUATION.
    Block(&'a [u8]),
    /// A frame is complete. Its payload is empty if it is longer than 64 bytes.
    Ends(Header, &'a [u8]),
}

/// The place in the stream of bytes.
pub(crate) struct Frames {
    bytes: [u8; 9],
    /// How much of the header has come.
    have: u8,
    header: Header,
    /// Bytes of payload to come.
    left: u32,
    payload: [u8; KEPT],
}

impl Frames {
    pub fn new() -> Self {
        Self { bytes: [0; 9], have: 0, header: Header::default(), left: 0, payload: [0; KEPT] }
    }

    /// Reads bytes, in any pieces.
    pub fn read<E>(&mut self, mut bytes: &[u8], mut handle: impl FnMut(Event<'_>) -> Result<(), E>) -> Result<(), E> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let length = self.header.length as usize;
                let n = bytes.len().min(self.left as usize);
                let (piece, rest) = bytes.split_at(n);
                let is_whole = n == length;
                if length <= KEPT && !is_whole {
                    let at = length - self.left as usize;
                    self.payload[at..at + n].copy_from_slice(piece);
                }
                self.left -= n as u32;
                bytes = rest;
                if matches!(self.header.kind, HEADERS | CONTINUATION) {
                    handle(Event::Block(piece))?;
                }
                if self.left == 0 {
                    let payload = match is_whole {
                        _ if length > KEPT => &[],
                        true => piece,
                        false => &self.payload[..length],
                    };
                    handle(Event::Ends(self.header, payload))?;
                }
                continue;
            }
            let [a, b, c, kind, flags, stream @ ..] = match bytes.split_first_chunk() {
                Some((header, rest)) if self.have == 0 => {
                    bytes = rest;
                    *header
                }
                _ => {
                    let have = usize::from(self.have);
                    let n = bytes.len().min(9 - have);
                    self.bytes[have..have + n].copy_from_slice(&bytes[..n]);
                    self.have += n as u8;
                    bytes = &bytes[n..];
                    if self.have < 9 {
                        break;
                    }
                    self.have = 0;
                    self.bytes
                }
            };
            // The reserved bit is ignored.
            let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
            self.header = Header { length: u32::from_be_bytes([0, a, b, c]), kind, flags, stream };
            self.left = self.header.length;
            handle(Event::Begins(self.header))?;
            if self.left == 0 {
                handle(Event::Ends(self.header, &[]))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame of stream 1.
    pub fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn frames_in_any_pieces() {
        let bytes = [frame(WINDOW_UPDATE, 0, &[0, 0, 0, 9]), frame(DATA, 1, &[7; 300]), frame(SETTINGS, ACK, &[])];
        let bytes = bytes.concat();
        for size in [1, 7, 9, 10, 1000] {
            let mut frames = Frames::new();
            let mut seen = Vec::new();
            for piece in bytes.chunks(size) {
                let read: Result<(), ()> = frames.read(piece, |event| {
                    if let Event::Ends(header, payload) = event {
                        seen.push((header.kind, header.flags, header.length, payload.to_vec()));
                    }
                    Ok(())
                });
                assert_eq!(read, Ok(()));
            }
            let expected =
                [(WINDOW_UPDATE, 0, 4, vec![0, 0, 0, 9]), (DATA, 1, 300, vec![]), (SETTINGS, ACK, 0, vec![])];
            assert_eq!(seen, expected, "pieces of {size}");
        }
    }

    #[test]
    fn small_data_frames() {
        let header = |kind, flags, length| Header { length, kind, flags, stream: 1 };
        assert!(header(DATA, 0, 255).is_small_data() && header(DATA, PADDED, 400).is_small_data());
        assert!(!header(DATA, 0, 256).is_small_data() && !header(HEADERS, 0, 1).is_small_data());
    }
}
