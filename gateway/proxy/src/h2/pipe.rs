//! The transport that the `h2` crate reads from and writes to: two buffers in memory, filled and emptied by the lane.
//!
//! Bounded: writing is Pending while more than `room` bytes lie in `output`, and `h2` then reads no more either, so
//! what a peer can make us hold is `room`, the rest of one read, and `h2`'s own bounded buffers.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Default)]
struct Ends {
    input: Vec<u8>,
    /// So many bytes of `input` have been read.
    read: usize,
    /// The peer will send no more.
    ended: bool,
    /// How much of `input` may be read before the adapter looks at the streams; `None` is all.
    bite: Option<usize>,
    /// More would have been read, had it been allowed.
    bitten: bool,
    output: Vec<u8>,
    room: usize,
    /// `h2` has more to write than there was room for when it was last polled.
    refused: bool,
}

/// One handle is `h2`'s, the other the adapter's.
#[derive(Clone, Default)]
pub(crate) struct Pipe(Rc<RefCell<Ends>>);

impl Pipe {
    /// Hands bytes over to be read. `bytes` is a buffer to use again afterwards: [`Pipe::take_back`].
    pub fn give(&self, bytes: &mut Vec<u8>) {
        let mut ends = self.0.borrow_mut();
        if ends.read == ends.input.len() {
            std::mem::swap(&mut ends.input, bytes);
            ends.read = 0;
        } else {
            ends.input.extend_from_slice(bytes);
        }
    }

    /// Takes the buffer of [`Pipe::give`] back; what has not been read of it is kept in a buffer of its own.
    pub fn take_back(&self, bytes: &mut Vec<u8>) {
        let mut ends = self.0.borrow_mut();
        if bytes.capacity() < ends.input.capacity() {
            let rest = ends.input[ends.read..].to_vec();
            ends.read = 0;
            *bytes = std::mem::replace(&mut ends.input, rest);
        }
        bytes.clear();
    }

    /// Nothing waits to be read.
    pub fn is_drained(&self) -> bool {
        let ends = self.0.borrow();
        ends.read == ends.input.len()
    }

    /// From now on so many bytes may be read at most; `None` is no limit.
    pub fn allow(&self, bite: Option<usize>) {
        let mut ends = self.0.borrow_mut();
        ends.bite = bite;
        ends.bitten = false;
    }

    /// Whether the limit of [`Pipe::allow`] held something back.
    pub fn is_bitten(&self) -> bool {
        self.0.borrow().bitten
    }

    /// Bytes that wait to be read.
    pub fn waiting(&self) -> usize {
        let ends = self.0.borrow();
        ends.input.len() - ends.read
    }

    /// The peer has closed.
    pub fn end(&self) {
        self.0.borrow_mut().ended = true;
    }

    /// Writes go to the end of `stage` until it holds `room` bytes; [`Pipe::detach`] gives it back.
    pub fn attach(&self, stage: &mut Vec<u8>, room: usize) {
        let mut ends = self.0.borrow_mut();
        ends.output = std::mem::take(stage);
        ends.room = room;
        ends.refused = false;
    }

    /// Whether `h2` holds bytes that had no room at the last [`Pipe::attach`]: it must be polled again when there is room.
    pub fn is_refused(&self) -> bool {
        self.0.borrow().refused
    }

    /// Ends what [`Pipe::attach`] began.
    pub fn detach(&self, stage: &mut Vec<u8>) {
        let mut ends = self.0.borrow_mut();
        *stage = std::mem::take(&mut ends.output);
        ends.room = 0;
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut ends = self.0.borrow_mut();
        let ends = &mut *ends;
        let rest = &ends.input[ends.read..];
        if rest.is_empty() {
            // The lane polls again when there is something.
            return if ends.ended { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let mut n = rest.len().min(buf.remaining());
        if let Some(bite) = &mut ends.bite {
            n = n.min(*bite);
            *bite -= n;
            if n == 0 {
                // The adapter polls again when it has looked at the streams.
                ends.bitten = true;
                return Poll::Pending;
            }
        }
        buf.put_slice(&rest[..n]);
        ends.read += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut ends = self.0.borrow_mut();
        if ends.output.len() >= ends.room {
            ends.refused = true;
            return Poll::Pending;
        }
        ends.output.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut ends = self.0.borrow_mut();
        if ends.output.len() >= ends.room {
            ends.refused = true;
            return Poll::Pending;
        }
        for buf in bufs {
            ends.output.extend_from_slice(buf);
        }
        Poll::Ready(Ok(bufs.iter().map(|b| b.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn a_write_without_room_is_noted_until_the_next_poll() {
        let (pipe, mut stage) = (Pipe::default(), Vec::new());
        let mut task = Context::from_waker(Waker::noop());
        pipe.attach(&mut stage, 3);
        // A write that begins within the room goes beyond it.
        assert!(Pin::new(&mut pipe.clone()).poll_write(&mut task, b"1234").is_ready() && !pipe.is_refused());
        assert!(Pin::new(&mut pipe.clone()).poll_write(&mut task, b"5").is_pending() && pipe.is_refused());
        pipe.detach(&mut stage);
        assert!(stage == b"1234" && pipe.is_refused());
        stage.clear();
        pipe.attach(&mut stage, 3);
        assert!(!pipe.is_refused());
        let all = [io::IoSlice::new(b"12"), io::IoSlice::new(b"3")];
        assert!(Pin::new(&mut pipe.clone()).poll_write_vectored(&mut task, &all).is_ready() && !pipe.is_refused());
        assert!(Pin::new(&mut pipe.clone()).poll_write_vectored(&mut task, &all).is_pending() && pipe.is_refused());
    }
}
