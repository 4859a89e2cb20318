//! Streams as sinks: of responses towards clients, of requests towards upstreams.

use super::message;
use bytes::Bytes;
use h2::SendStream;
use sealane_http::Fields;
use std::task::{Context, Poll, Waker};

/// How many of `asked` bytes `h2` takes on a stream now. Where it takes none, `waker` says when that changes.
#[inline]
pub(crate) fn reserve(send: &mut SendStream<Bytes>, waker: &Waker, asked: usize) -> usize {
    send.reserve_capacity(asked);
    let capacity = match send.capacity() {
        0 => match send.poll_capacity(&mut Context::from_waker(waker)) {
            Poll::Ready(Some(Ok(capacity))) => capacity,
            _ => 0,
        },
        capacity => capacity,
    };
    capacity.min(asked)
}

/// Ends a stream's body, with its trailers if there are any.
pub(crate) fn end(send: &mut SendStream<Bytes>, trailers: &Fields) {
    // It fails where the stream has been reset, and then its waker says so.
    let _ = match trailers.is_empty() {
        true => send.send_data(Bytes::new(), true),
        false => send.send_trailers(message::write_trailers(trailers)),
    };
}
