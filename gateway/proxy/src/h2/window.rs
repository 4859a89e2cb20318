//! What is left of a client's connection window (RFC 9113 §6.9), counted beside `h2`, which does not tell.
//!
//! `h2` deals the window out to streams in the order in which they asked. So that it is dealt by urgency, streams ask for
//! no more than there is, and those that find nothing wait in our order (`h2_responses`). A count that is too high costs
//! that order, no more: `h2` has the last word.

use super::frames::{DATA, Event, Frames, HEADERS, RST_STREAM};
use h2::Reason;
use std::convert::Infallible;

/// RFC 9113 §6.9.2.
const INITIAL: i64 = 65_535;
/// RFC 9113 §6.9.1.
const LARGEST: i64 = 0x7fff_ffff;

/// A connection's window for what we send.
pub(crate) struct Window {
    /// By what is on the wire.
    left: i64,
    /// Given to `h2`, and not seen on the wire yet.
    given: i64,
    frames: Frames,
}

impl Window {
    pub fn new() -> Self {
        Self { left: INITIAL, given: 0, frames: Frames::new() }
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
    /// was of a stream that was reset. `refused`: streams beyond the limit are the client's fault, too. `last_id`: the last
    /// stream that `h2` has handed out.
    pub fn wrote(&mut self, bytes: &[u8], all: bool, refused: bool, last_id: u32) -> Wrote {
        let Self { left, given, frames } = self;
        let mut wrote = Wrote { faults: 0, refused: 0, unknown_heads: 0 };
        let Ok(()) = frames.read(bytes, |event| {
            match event {
                Event::Begins(header) if header.kind == DATA => {
                    *left -= i64::from(header.length);
                    *given = (*given - i64::from(header.length)).max(0);
                }
                Event::Ends(header, payload) if header.kind == RST_STREAM => {
                    wrote.faults += u32::from(is_clients_fault(payload, refused));
                    wrote.refused += u32::from(code_of(payload) == Some(Reason::REFUSED_STREAM));
                }
                Event::Begins(header) if header.kind == HEADERS && header.stream > last_id => wrote.unknown_heads += 1,
                _ => {}
            }
            Ok::<(), Infallible>(())
        });
        if all {
            self.given = 0;
        }
        wrote
    }
}

/// What `h2` has written by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrote {
    /// Streams that were reset for the client's faults.
    pub faults: u32,
    /// Streams that were refused: they may begin again elsewhere.
    pub refused: u32,
    /// Heads of responses on streams that were not handed out.
    pub unknown_heads: u32,
}

fn code_of(payload: &[u8]) -> Option<Reason> {
    <[u8; 4]>::try_from(payload).ok().map(u32::from_be_bytes).map(Reason::from)
}

/// Whether a stream is reset with this code for what its client has sent. CANCEL, INTERNAL_ERROR and NO_ERROR are the
/// gateway's own.
fn is_clients_fault(code: &[u8], refused: bool) -> bool {
    match code_of(code) {
        Some(Reason::REFUSED_STREAM) => refused,
        Some(Reason::NO_ERROR | Reason::INTERNAL_ERROR | Reason::CANCEL) | None => false,
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, len: usize) -> Vec<u8> {
        super::super::frames::tests::frame(kind, 0, &vec![0; len])
    }

    #[test]
    fn what_is_on_the_wire_counts_in_any_pieces() {
        let mut window = Window::new();
        let bytes = [frame(4, 12), frame(DATA, 1000), frame(1, 50), frame(DATA, 0), frame(DATA, 35)].concat();
        window.give(1035);
        assert_eq!(window.left(), 64_500);
        for (i, piece) in bytes.chunks(7).enumerate() {
            assert_eq!(window.wrote(piece, i == bytes.len() / 7, true, 1).faults, 0);
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
        window.wrote(&frame(DATA, 30_000), false, true, 1);
        assert_eq!(window.left(), 0);
        window.wrote(&[], true, true, 1);
        assert_eq!(window.left(), 35_535);
    }

    #[test]
    fn resets_for_the_clients_faults_are_told_apart() {
        let reset = |code: u32| super::super::frames::tests::frame(RST_STREAM, 0, &code.to_be_bytes());
        let mut window = Window::new();
        // NO_ERROR, INTERNAL_ERROR, CANCEL.
        for code in [0, 2, 8] {
            assert_eq!(window.wrote(&reset(code), false, true, 1).faults, 0, "{code}");
        }
        // PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR.
        for code in [1, 3, 5, 6] {
            assert_eq!(window.wrote(&reset(code), false, false, 1).faults, 1, "{code}");
        }
        assert_eq!(
            (window.wrote(&reset(7), false, false, 1).faults, window.wrote(&reset(7), false, true, 1).faults),
            (0, 1)
        );
    }
}
