//! Buffers that one lane lends to whichever connection it is working on.
//!
//! A connection that is idle owns no buffer. One that stages bytes takes a buffer from the pool, and gives it back when
//! they have been sent or queued, in the same turn. What a connection must keep for longer (half a record, what its sink
//! has no room for) lies in memory of its own, as large as what is kept.

use sealane_http::h3::QpackScratch;
use sealane_tls::Records;

/// Bytes read at a time.
pub(crate) const READ_SIZE: usize = 64 * 1024;
/// Buffers kept for reuse; larger or more ones are freed.
const POOLED: usize = 32;
const POOLED_CAPACITY: usize = 64 * 1024;

pub(crate) struct Scratch {
    /// What was read from a socket.
    pub input: Vec<u8>,
    /// Plaintext of the read under way.
    pub plain: Vec<u8>,
    /// 0-RTT data of the read under way.
    pub early: Vec<u8>,
    /// Records to send.
    pub records: Records,
    /// For hellos that are spread over several records.
    pub joined: Vec<u8>,
    /// For field sections of HTTP/3.
    pub qpack: QpackScratch,
    pub pool: Pool,
}

/// Bytes read at a time where nobody has asked yet for what they may turn out to be: a message's head, and what follows it.
pub(crate) const HEAD_READ: usize = 16 * 1024;

/// Keeps what was not used of some bytes, and no more memory than that takes.
pub(crate) fn keep_rest(buffer: &mut Vec<u8>, used: usize) {
    match buffer.get(used..) {
        Some(rest) if used > 0 && !rest.is_empty() => *buffer = rest.to_vec(),
        Some([]) | None => *buffer = Vec::new(),
        Some(_) => {}
    }
}

impl Scratch {
    pub fn new() -> Self {
        Self {
            input: vec![0; READ_SIZE],
            plain: Vec::with_capacity(READ_SIZE),
            early: Vec::new(),
            records: Records::with_capacity(READ_SIZE + 4096),
            joined: Vec::new(),
            qpack: QpackScratch::default(),
            pool: Pool::default(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// Makes sure that `buffer` has storage, from the pool if there is some.
    #[inline]
    pub fn take_buffer(&mut self, buffer: &mut Vec<u8>) {
        if buffer.capacity() == 0
            && let Some(pooled) = self.0.pop()
        {
            *buffer = pooled;
        }
    }

    /// Takes an empty buffer's storage back.
    #[inline]
    pub fn return_buffer(&mut self, buffer: &mut Vec<u8>) {
        if buffer.is_empty() && buffer.capacity() > 0 {
            let buffer = std::mem::take(buffer);
            if self.0.len() < POOLED && buffer.capacity() <= POOLED_CAPACITY {
                self.0.push(buffer);
            }
        }
    }
}
