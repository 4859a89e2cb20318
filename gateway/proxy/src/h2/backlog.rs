//! Bounds how many small DATA frames `h2` holds, whichever side has sent them.
//!
//! `h2` keeps each DATA frame that nobody has taken in an entry of its own, some 256 bytes for a message of one byte. It has
//! a budget for such frames (`data_frame_budget`), beyond which it ends the connection; but a stream of tiny messages (gRPC)
//! is legal, and what arrives for a stream that was reset is taken from that budget for ever. So the adapter bounds the
//! memory itself: it moves what waits into one buffer per stream, whose bytes the window bounds, and gives `h2` its input in
//! bites while small frames may be many. Flow control does not notice: capacity is released when data moves on.
//!
//! ```text
//! few small frames:   input ─► h2 ─► streams take what they have room for
//! many:               a bite of the input ─► h2 ─► streams take what they have room for ─► the rest into `Waiting`,
//!                     and again until the input is read
//! ```

use super::frames::Header;
use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::HeaderMap;
use std::task::{self, Poll, Waker, ready};

/// For `data_frame_budget`: none of `h2`'s.
pub(crate) const NO_BUDGET: usize = usize::MAX;
/// Small frames that may wait in `h2`.
const MOST: usize = 512;
/// Bytes given to `h2` at once where there may be more: 410 frames at most.
pub(crate) const BITE: usize = 4096;
/// Pieces below this length are joined, for the sink's sake.
const JOINED: usize = 1024;
/// Longest piece that is made of small ones.
const LONGEST: usize = 16 * 1024;

/// Counts the small frames that may wait in `h2`.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    frames: usize,
}

impl Backlog {
    /// A frame has come.
    pub fn note(&mut self, header: Header) {
        self.frames += usize::from(header.is_small_data());
    }

    /// Whether there may be too many.
    pub fn is_full(&self) -> bool {
        self.frames > MOST
    }

    /// None waits any more.
    pub fn clear(&mut self) {
        self.frames = 0;
    }
}

/// A body that comes on a stream of `h2`.
pub(crate) struct Incoming {
    body: RecvStream,
    /// Data that has been taken from `h2`, but not passed on.
    rest: Bytes,
}

/// What comes next of a body.
pub(crate) enum Next {
    /// So many bytes are at hand.
    Data(usize),
    /// Its end, with its trailers.
    End(Option<HeaderMap>),
}

impl Incoming {
    pub fn new(body: RecvStream) -> Self {
        Self { body, rest: Bytes::new() }
    }

    /// Whether it has ended without trailers, and all of it has been passed on.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    /// What comes next: bytes to [`Self::take`], or the end.
    #[inline]
    pub fn poll(&mut self, task: &mut task::Context<'_>) -> Poll<Result<Next, h2::Error>> {
        while self.rest.is_empty() {
            self.rest = match ready!(self.poll_joined(task)) {
                Some(data) => data?,
                None => return self.body.poll_trailers(task).map_ok(Next::End),
            };
        }
        Poll::Ready(Ok(Next::Data(self.rest.len())))
    }

    /// Takes at most so many of the bytes that are at hand. The peer may send as many more.
    #[inline]
    pub fn take(&mut self, most: usize) -> Bytes {
        let piece = self.rest.split_to(most.min(self.rest.len()));
        // It fails only where more is released than has come.
        let _ = self.body.flow_control().release_capacity(piece.len());
        piece
    }

    /// What `h2` itself has found wrong with a body whose stream is reset. What waits of it is thrown away, and the window bounds that.
    pub fn fault(&mut self) -> Option<h2::Error> {
        let mut task = task::Context::from_waker(Waker::noop());
        loop {
            match self.poll(&mut task) {
                Poll::Ready(Ok(Next::Data(waiting))) => drop(self.take(waiting)),
                Poll::Ready(Err(error)) => return Some(error).filter(h2::Error::is_library),
                Poll::Ready(Ok(Next::End(_))) | Poll::Pending => return None,
            }
        }
    }

    /// Bytes that wait here or in `h2`.
    pub fn held(&mut self) -> usize {
        // What is taken is released when it is passed on.
        self.body.flow_control().used_capacity().max(self.rest.len())
    }

    /// Takes the next data from `h2`; many small pieces as one. What follows is reported by the next call.
    fn poll_joined(&mut self, task: &mut task::Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let first = match self.body.poll_data(task) {
            Poll::Ready(Some(Ok(first))) if first.len() < JOINED => first,
            other => return other,
        };
        let Poll::Ready(Some(Ok(second))) = self.body.poll_data(task) else { return Poll::Ready(Some(Ok(first))) };
        let mut all = BytesMut::with_capacity((first.len() + second.len()).max(JOINED));
        all.extend_from_slice(&first);
        all.extend_from_slice(&second);
        while all.len() < LONGEST
            && let Poll::Ready(Some(Ok(next))) = self.body.poll_data(task)
        {
            all.extend_from_slice(&next);
        }
        Poll::Ready(Some(Ok(all.freeze())))
    }

    /// Takes all data that waits in `h2` from there. The window bounds it. Whether it is all of the body.
    pub fn drain(&mut self, waker: &Waker) -> bool {
        let Self { body, rest } = self;
        let mut task = task::Context::from_waker(waker);
        let first = match body.poll_data(&mut task) {
            Poll::Ready(Some(Ok(first))) => first,
            other => return matches!(other, Poll::Ready(None)),
        };
        // It is ours alone but for the first time, and then grows in place.
        let mut all = match std::mem::take(rest).try_into_mut() {
            Ok(all) => all,
            Err(shared) => BytesMut::from(&shared[..]),
        };
        all.extend_from_slice(&first);
        let ended = loop {
            match body.poll_data(&mut task) {
                Poll::Ready(Some(Ok(next))) => all.extend_from_slice(&next),
                other => break matches!(other, Poll::Ready(None)),
            }
        };
        *rest = all.freeze();
        ended
    }

    /// Takes all that is left of a body that has come whole, with its trailers. `None` where more is to come.
    pub fn take_whole(&mut self, waker: &Waker) -> Option<(Bytes, Option<HeaderMap>)> {
        if !self.drain(waker) {
            return None;
        }
        match self.body.poll_trailers(&mut task::Context::from_waker(waker)) {
            Poll::Ready(Ok(trailers)) => Some((std::mem::take(&mut self.rest), trailers)),
            Poll::Ready(Err(_)) | Poll::Pending => None,
        }
    }
}
