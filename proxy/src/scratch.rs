//! Buffers that one lane lends to whichever connection it is working on.
//!
//! A connection that is idle owns no buffer. What it must keep (half a record, an unsent rest) is taken from the pool
//! and given back when it is empty.

use sealane_tls::Records;

/// Bytes read at a time.
pub(crate) const READ_SIZE: usize = 64 * 1024;
/// Buffers kept for reuse; larger or more ones are freed.
const POOLED: usize = 256;
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
    pub pool: Pool,
}

impl Scratch {
    pub fn new() -> Self {
        Self {
            input: vec![0; READ_SIZE],
            plain: Vec::with_capacity(READ_SIZE),
            early: Vec::new(),
            records: Records::with_capacity(READ_SIZE + 4096),
            joined: Vec::new(),
            pool: Pool::default(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Pool(Vec<Vec<u8>>);

impl Pool {
    /// Makes sure that `buffer` has storage, from the pool if there is some.
    #[inline]
    pub fn equip(&mut self, buffer: &mut Vec<u8>) {
        if buffer.capacity() == 0
            && let Some(pooled) = self.0.pop()
        {
            *buffer = pooled;
        }
    }

    /// Takes an empty buffer's storage back.
    #[inline]
    pub fn reclaim(&mut self, buffer: &mut Vec<u8>) {
        if buffer.is_empty() && buffer.capacity() > 0 {
            let buffer = std::mem::take(buffer);
            if self.0.len() < POOLED && buffer.capacity() <= POOLED_CAPACITY {
                self.0.push(buffer);
            }
        }
    }
}
