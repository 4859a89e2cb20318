//! What is left of a client's connection window (RFC 9113 §6.9), counted beside `h2`, which does not tell.
//!
//! `h2` deals the window out to streams in the order in which they asked. So that it is dealt by urgency, streams ask for
//! no more than there is, and those that find nothing wait in our order (`front_sink`). A count that is too high costs
//! that order, no more: `h2` has the last word.

/// Frames of this type count.
const DATA: u8 = 0;
/// RFC 9113 §6.9.2.
const INITIAL: i64 = 65_535;
/// RFC 9113 §6.9.1.
const LARGEST: i64 = 0x7fff_ffff;

/// A connection's window for what we send.
pub(super) struct Window {
    /// By what is on the wire.
    left: i64,
    /// Given to `h2`, and not seen on the wire yet.
    given: i64,
    /// A header that is not whole yet.
    header: [u8; 9],
    have: usize,
    /// Bytes of payload to come.
    payload: usize,
}

impl Window {
    pub fn new() -> Self {
        Self { left: INITIAL, given: 0, header: [0; 9], have: 0, payload: 0 }
    }

    /// How many bytes of bodies may be given to `h2`.
    pub fn left(&self) -> usize {
        usize::try_from(self.left - self.given).unwrap_or(0)
    }

    /// The client has opened it further.
    pub fn open(&mut self, bytes: u64) {
        // More would be an error, which is `h2`'s to find.
        self.left = self.left.saturating_add_unsigned(bytes).min(LARGEST);
    }

    /// So much of a body was given to `h2`.
    pub fn give(&mut self, bytes: usize) {
        self.given += bytes as i64;
    }

    /// What `h2` has written. `all`: it would have written more if it had had more. What is given and does not come then
    /// was of a stream that was reset.
    pub fn wrote(&mut self, mut bytes: &[u8], all: bool) {
        while !bytes.is_empty() {
            if self.payload > 0 {
                let n = bytes.len().min(self.payload);
                self.payload -= n;
                bytes = &bytes[n..];
                continue;
            }
            let n = bytes.len().min(9 - self.have);
            self.header[self.have..self.have + n].copy_from_slice(&bytes[..n]);
            self.have += n;
            bytes = &bytes[n..];
            if self.have == 9 {
                self.have = 0;
                let [a, b, c, kind, ..] = self.header;
                self.payload = u32::from_be_bytes([0, a, b, c]) as usize;
                if kind == DATA {
                    self.left -= self.payload as i64;
                    self.given = (self.given - self.payload as i64).max(0);
                }
            }
        }
        if all {
            self.given = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, len: usize) -> Vec<u8> {
        let mut bytes = (len as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, 0, 0, 0, 0, 1]);
        bytes.resize(9 + len, 0);
        bytes
    }

    #[test]
    fn what_is_on_the_wire_counts_in_any_pieces() {
        let mut window = Window::new();
        let bytes = [frame(4, 12), frame(DATA, 1000), frame(1, 50), frame(DATA, 0), frame(DATA, 35)].concat();
        window.give(1035);
        assert_eq!(window.left(), 64_500);
        for (i, piece) in bytes.chunks(7).enumerate() {
            window.wrote(piece, i == bytes.len() / 7);
        }
        assert_eq!(window.left(), 64_500);
        window.open(1035);
        assert_eq!(window.left(), 65_535);
        window.open(u64::MAX);
        assert_eq!(window.left(), 0x7fff_ffff);
    }

    #[test]
    fn what_was_given_and_never_comes_is_had_back() {
        let mut window = Window::new();
        window.give(65_535);
        assert_eq!(window.left(), 0);
        window.wrote(&frame(DATA, 30_000), false);
        assert_eq!(window.left(), 0);
        window.wrote(&[], true);
        assert_eq!(window.left(), 35_535);
    }
}
