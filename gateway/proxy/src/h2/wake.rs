//! Which streams `h2` wants looked at: a waker per stream that puts the stream on a list of the lane's own.
//!
//! There is no runtime: the lane polls a connection whenever it has given it something, so a connection's own waker
//! does nothing. A stream's says that it has data, room, a reset or a response. `Waker` must be `Send`, so the list is a
//! `thread_local!` and the waker holds numbers only; no other thread ever has one.

use sealane_lane::Key;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Wake, Waker};

thread_local! {
    static WOKEN: RefCell<Vec<Arc<StreamWaker>>> = const { RefCell::new(Vec::new()) };
    /// Wakers to be used again.
    static SPARE: RefCell<Vec<Arc<StreamWaker>>> = const { RefCell::new(Vec::new()) };
}

/// Wakers kept for reuse by a lane.
const MOST_SPARE: usize = 4096;

/// Names a stream: its connection, and its place there. A waker that is used again may wake the stream before: looking
/// at a stream that has nothing is harmless.
#[derive(Default)]
pub(crate) struct StreamWaker {
    conn: AtomicU64,
    stream: AtomicU32,
    queued: AtomicBool,
}

impl StreamWaker {
    /// A waker for a stream.
    pub fn new(conn: Key, stream: u32) -> Arc<Self> {
        let waker = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        waker.conn.store(conn.to_u64(), Relaxed);
        waker.stream.store(stream, Relaxed);
        waker
    }

    /// Puts a waker away.
    pub fn retire(waker: Arc<Self>) {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MOST_SPARE {
                spare.push(waker);
            }
        });
    }

    /// In the form that futures take.
    pub fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(self.clone())
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Relaxed) {
            WOKEN.with_borrow_mut(|woken| woken.push(self.clone()));
        }
    }
}

/// Takes a stream off the list.
pub(crate) fn next_woken() -> Option<(Key, u32)> {
    let waker = WOKEN.with_borrow_mut(Vec::pop)?;
    waker.queued.store(false, Relaxed);
    Some((Key::from_u64(waker.conn.load(Relaxed)), waker.stream.load(Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_listed_once() {
        let key = Key::from_u64(7);
        let waker = StreamWaker::new(key, 3);
        let (a, b) = (waker.waker(), waker.waker());
        a.wake_by_ref();
        b.wake();
        assert_eq!(next_woken(), Some((key, 3)));
        assert_eq!(next_woken(), None);
        a.wake();
        assert_eq!(next_woken(), Some((key, 3)));
    }
}
