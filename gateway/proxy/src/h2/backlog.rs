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
use std::task::{self, Poll, Waker};

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

/// Takes the next data of a stream; many small pieces as one. What follows is reported by the next call.
pub(crate) fn poll_joined(
    body: &mut RecvStream,
    task: &mut task::Context<'_>,
) -> Poll<Option<Result<Bytes, h2::Error>>> {
    let first = match body.poll_data(task) {
        Poll::Ready(Some(Ok(first))) if first.len() < JOINED => first,
        other => return other,
    };
    let Poll::Ready(Some(Ok(second))) = body.poll_data(task) else { return Poll::Ready(Some(Ok(first))) };
    let mut all = BytesMut::with_capacity((first.len() + second.len()).max(JOINED));
    all.extend_from_slice(&first);
    all.extend_from_slice(&second);
    while all.len() < LONGEST
        && let Poll::Ready(Some(Ok(next))) = body.poll_data(task)
    {
        all.extend_from_slice(&next);
    }
    Poll::Ready(Some(Ok(all.freeze())))
}

/// Moves all data of a stream that waits in `h2` to the end of `rest`. The window bounds it. Whether it is all of the body.
pub(crate) fn drain(body: &mut RecvStream, rest: &mut Bytes, waker: &Waker) -> bool {
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
