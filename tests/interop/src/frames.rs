//! HTTP/2 frames one by one, for what no well-behaved client would send (RFC 9113 §4.1).

use crate::WAIT_LIMIT;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// Frame types.
pub mod kind {
    /// A piece of a body (RFC 9113 §6.1).
    pub const DATA: u8 = 0;
    /// A head, or its beginning (§6.2).
    pub const HEADERS: u8 = 1;
    /// Of RFC 7540's priorities, which nobody follows any more (§6.3).
    pub const PRIORITY: u8 = 2;
    /// A stream ends early (§6.4).
    pub const RST_STREAM: u8 = 3;
    /// What the sender allows (§6.5).
    pub const SETTINGS: u8 = 4;
    /// To be sent back (§6.7).
    pub const PING: u8 = 6;
    /// The connection takes no more streams (§6.8).
    pub const GOAWAY: u8 = 7;
    /// Leave to send more (§6.9).
    pub const WINDOW_UPDATE: u8 = 8;
    /// A head goes on (§6.10).
    pub const CONTINUATION: u8 = 9;
    /// RFC 9218 §7.1.
    pub const PRIORITY_UPDATE: u8 = 16;
}

/// Flags of HEADERS and DATA.
pub const END_STREAM: u8 = 1;
/// Flag of HEADERS and CONTINUATION.
pub const END_HEADERS: u8 = 4;
/// RFC 9113 §7.
pub const ENHANCE_YOUR_CALM: u32 = 11;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// One of [`kind`].
    pub kind: u8,
    /// What they mean depends on the kind.
    pub flags: u8,
    /// 0: the connection.
    pub stream: u32,
    /// As it came.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM and GOAWAY.
    pub fn code(&self) -> u32 {
        let at = if self.kind == kind::GOAWAY { 4 } else { 0 };
        self.payload.get(at..at + 4).map_or(u32::MAX, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// A connection over which frames go.
pub struct Frames<S> {
    /// What is below.
    pub stream: S,
}

impl Frames<TcpStream> {
    /// Connects and sends the preface with these settings.
    #[track_caller]
    pub fn plain(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        Self::begin(crate::client::tcp(address), settings)
    }
}

impl<S: Read + Write> Frames<S> {
    /// Sends the preface.
    #[track_caller]
    pub fn begin(stream: S, settings: &[(u16, u32)]) -> Self {
        let mut frames = Self { stream };
        frames.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("the preface is read");
        let mut payload = Vec::new();
        for (id, value) in settings {
            payload.extend(id.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        frames.send(kind::SETTINGS, 0, 0, &payload).expect("SETTINGS are read");
        frames
    }

    /// Sends a frame.
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&frame(kind, flags, stream, payload))
    }

    /// Sends a request's head; `end` says that nothing follows.
    pub fn request(
        &mut self,
        stream: u32,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        end: bool,
    ) -> io::Result<()> {
        let mut list = vec![(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
        list.extend(more);
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        self.send(kind::HEADERS, flags, stream, &block(&list))
    }

    /// The next frame; an error at the connection's end.
    pub fn receive(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        Ok(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads until there is a frame that is looked for. `None` if the connection ends before.
    pub fn find(&mut self, mut wanted: impl FnMut(&Frame) -> bool) -> Option<Frame> {
        let start = Instant::now();
        while start.elapsed() < WAIT_LIMIT {
            let frame = self.receive().ok()?;
            if wanted(&frame) {
                return Some(frame);
            }
        }
        None
    }

    /// Reads to the connection's end; the error code of its GOAWAY, if it had one that says more than farewell.
    pub fn fate(&mut self) -> Option<u32> {
        self.find(|f| f.kind == kind::GOAWAY && f.code() != 0).map(|f| f.code())
    }
}

/// A frame as bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header block of literals without indexing and without Huffman coding (RFC 7541 §6.2.2).
pub fn block(list: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in list {
        bytes.push(0);
        for text in [name, value] {
            integer(&mut bytes, 0, 7, text.len());
            bytes.extend(text.bytes());
        }
    }
    bytes
}

/// RFC 7541 §5.1.
pub fn integer(bytes: &mut Vec<u8>, first: u8, prefix: u32, mut n: usize) {
    let most = (1usize << prefix) - 1;
    if n < most {
        return bytes.push(first | n as u8);
    }
    bytes.push(first | most as u8);
    n -= most;
    while n >= 128 {
        bytes.push((n % 128) as u8 | 128);
        n /= 128;
    }
    bytes.push(n as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_as_in_the_rfc() {
        let of = |n, prefix| {
            let mut bytes = Vec::new();
            integer(&mut bytes, 0, prefix, n);
            bytes
        };
        assert_eq!((of(10, 5), of(1337, 5), of(127, 7)), (vec![10], vec![31, 154, 10], vec![127, 0]));
    }
}
