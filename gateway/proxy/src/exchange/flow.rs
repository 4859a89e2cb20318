//! One direction of an exchange: the body of a request or of a response, from its source to its sink.
//!
//! Its fields are the executor's; the adapters of sources and sinks report with methods what they decode, and whether there is room.

use crate::exchange::encoding::Encoding;
use crate::scratch::READ_SIZE;
use sealane_exchange::deadlines::{Party, Progress};
use sealane_http::h1::{BodyDecoder, BodyPiece, Limits};
use sealane_http::{BodyLength, Fields, ParseError};
use sealane_lane::Millis;

/// See [`Reading::On`].
const FIRST_READ: usize = 8 * 1024;

/// Whether the source of a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// It is, as far as the sink has room. `next`: bytes to read at once for a sink that does not tell its room before. They are twice as
    /// many with each read, and few again once the sink had no room for all.
    On { next: usize },
    /// The source has more than the sink had room for.
    Blocked,
}

impl Reading {
    const BEGINS: Self = Self::On { next: FIRST_READ };
}

pub(crate) struct Flow {
    /// An HTTP/1.1 source's; other versions frame bodies themselves.
    pub(super) decoder: BodyDecoder,
    /// How an HTTP/1.1 sink is told where the body ends.
    pub(super) framing: BodyLength,
    /// Those that came with the end, if any did.
    pub(super) trailers: Fields,
    reading: Reading,
    /// Whose bytes these are.
    source: Party,
    pub(super) progress: Progress,
    /// As they come from the source.
    pub(super) bytes: u64,
    /// The stage that codes the body on its way to the sink, where there is one.
    pub(super) encoding: Option<Box<Encoding>>,
}

impl Flow {
    pub(super) fn new(source: Party) -> Self {
        Self {
            source,
            progress: Progress::default(),
            decoder: BodyDecoder::new(BodyLength::None, &Limits::default()),
            framing: BodyLength::None,
            trailers: Fields::new(),
            reading: Reading::BEGINS,
            bytes: 0,
            encoding: None,
        }
    }

    /// A message over HTTP/1.1 begins whose body is of this length.
    #[inline]
    pub fn begin_decoding(&mut self, body: BodyLength, limits: &Limits) {
        self.decoder.reset(body);
        if body == BodyLength::Chunked {
            self.decoder.limit_trailers(limits);
        }
    }

    /// The next piece of such a message, with at most so many bytes of the body.
    #[inline]
    pub fn decode<'i>(&mut self, input: &'i [u8], room: usize) -> Result<BodyPiece<'i>, ParseError> {
        self.decoder.decode_at_most(input, room)
    }

    /// Whether such a message is whole.
    #[inline]
    pub fn is_decoded(&self) -> bool {
        self.decoder.is_done()
    }

    /// Whether such a message may end where its connection does.
    pub fn may_end_here(&mut self) -> bool {
        self.decoder.eof().is_ok()
    }

    /// The trailers of such a message have been decoded.
    pub fn take_decoded_trailers(&mut self) {
        std::mem::swap(&mut self.trailers, self.decoder.trailers_mut());
    }

    /// An HTTP/1.1 sink tells so where the body ends.
    #[inline]
    pub fn frame(&mut self, framing: BodyLength) {
        self.framing = framing;
    }

    /// How an HTTP/1.1 sink is told where the body ends.
    #[inline]
    pub fn framing(&self) -> BodyLength {
        self.framing
    }

    /// Those that came with the end, if any did.
    #[inline]
    pub fn trailers(&self) -> &Fields {
        &self.trailers
    }

    /// For an adapter that decodes them itself.
    pub fn trailers_mut(&mut self) -> &mut Fields {
        &mut self.trailers
    }

    /// Bytes of the body that have passed to the sink, or were thrown away.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.encoding.as_ref().map_or(self.bytes, |encoding| encoding.passed())
    }

    /// Counts what moves, on either side of the stage that codes it.
    pub fn moved(&self) -> u64 {
        self.bytes + self.encoding.as_ref().map_or(0, |encoding| encoding.passed())
    }

    /// The stage that codes the body on its way to the sink, where there is one.
    pub fn encoding(&self) -> Option<&Encoding> {
        self.encoding.as_deref()
    }

    /// The source is read from now on, for this sink, or to be thrown away. What an earlier sink had no room for says nothing
    /// about this one.
    pub fn begin(&mut self, now: Millis) {
        self.reading = Reading::BEGINS;
        self.progress.begin(now);
    }

    /// The sink has no room: the source is resumed when it has.
    pub fn block(&mut self, now: Millis) {
        if !self.is_blocked() {
            self.reading = Reading::Blocked;
            self.progress.turn(now, self.source);
        }
    }

    /// Whether the source waits for room.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.reading == Reading::Blocked
    }

    /// The sink has room again. Whether the source waits for that.
    pub fn unblock(&mut self, now: Millis) -> bool {
        let blocked = self.is_blocked();
        if blocked {
            self.reading = Reading::BEGINS;
            self.progress.turn(now, self.source.other());
        }
        blocked
    }

    /// Bytes to read at once for a sink that does not tell its room before. 0: none before the sink has room again.
    pub fn next_read(&mut self) -> usize {
        let Reading::On { next } = &mut self.reading else { return 0 };
        let size = *next;
        *next = (size * 2).min(READ_SIZE);
        size
    }

    pub(super) fn reset(&mut self) {
        self.progress = Progress::default();
        self.framing = BodyLength::None;
        self.trailers.clear();
        self.trailers.shrink_to(4096);
        self.reading = Reading::BEGINS;
        self.bytes = 0;
        self.encoding = None;
    }
}

#[cfg(test)]
impl Flow {
    /// So many bytes have passed.
    pub fn passed(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// The wait that goes on has begun then.
    pub fn begin_wait(&mut self, now: Millis) {
        self.progress.begin(now);
    }

    /// When the wait that goes on has begun.
    pub fn since(&self) -> Millis {
        self.progress.since()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_message_is_decoded_with_its_trailers() {
        use sealane_http::h1::What;
        let mut flow = Flow::new(Party::Client);
        flow.begin_decoding(BodyLength::Chunked, &Limits::default());
        let mut rest = &b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"[..];
        let mut data = Vec::new();
        for _ in 0..10 {
            let piece = flow.decode(rest, 2).unwrap();
            rest = &rest[piece.consumed..];
            match piece.what {
                What::Data(piece) => data.extend_from_slice(piece),
                What::Trailers => flow.take_decoded_trailers(),
                What::NeedMore | What::End => {}
            }
        }
        assert_eq!((&data[..], rest.len(), flow.is_decoded()), (&b"abc"[..], 0, true));
        assert_eq!(flow.trailers().get_named(b"x-sum"), Some(&b"1"[..]));
        assert!(flow.may_end_here());
        flow.begin_decoding(BodyLength::Known(1), &Limits::default());
        assert!(!flow.may_end_here());
    }

    #[test]
    fn a_source_that_waits_for_room_goes_on_once() {
        let mut flow = Flow::new(Party::Client);
        assert!(!flow.unblock(0));
        assert_eq!((flow.next_read(), flow.next_read()), (FIRST_READ, 2 * FIRST_READ));
        flow.block(10);
        assert!(flow.is_blocked());
        assert_eq!(flow.next_read(), 0, "it is not read");
        assert!(flow.unblock(20) && !flow.unblock(20));
        assert_eq!(flow.next_read(), FIRST_READ, "it had no room for all");
        flow.block(30);
        flow.begin(40);
        assert!(!flow.is_blocked(), "another sink");
    }
}
