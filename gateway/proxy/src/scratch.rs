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
    input: Vec<u8>,
    /// Plaintext of the read under way.
    plain: Vec<u8>,
    /// 0-RTT data of the read under way.
    early: Vec<u8>,
    /// Records to send.
    records: Records,
    /// For hellos that are spread over several records, and for values of fields that are put together.
    text: Vec<u8>,
    /// For field sections of HTTP/3.
    qpack: QpackScratch,
    pool: Pool,
}

/// What a read from a socket needs at once.
pub(crate) struct ReadBuffers<'s> {
    /// Room for what the socket has: [`READ_SIZE`] bytes.
    pub input: &'s mut [u8],
    /// Empty, for plaintext.
    pub plain: &'s mut Vec<u8>,
    /// Empty, for 0-RTT data.
    pub early: &'s mut Vec<u8>,
    /// Empty, for what the session answers.
    pub records: &'s mut Records,
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
            text: Vec::new(),
            qpack: QpackScratch::default(),
            pool: Pool::default(),
        }
    }

    /// Lends the buffers of a read. What an earlier read has left in them is dropped.
    #[inline]
    pub fn read_buffers(&mut self) -> ReadBuffers<'_> {
        let Self { input, plain, early, records, .. } = self;
        plain.clear();
        early.clear();
        records.clear();
        ReadBuffers { input, plain, early, records }
    }

    /// Drops the plaintext of an earlier read.
    #[inline]
    pub fn clear_plaintext(&mut self) {
        self.plain.clear();
        self.early.clear();
    }

    /// Bytes of plaintext that the last read has left.
    #[inline]
    pub fn plaintext_len(&self) -> usize {
        self.plain.len()
    }

    /// Takes the plaintext that the last read has left. Give the buffer back with [`Scratch::return_plaintext`].
    #[inline]
    pub fn take_plaintext(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.plain)
    }

    /// Takes a buffer of [`Scratch::take_plaintext`] back.
    #[inline]
    pub fn return_plaintext(&mut self, buffer: Vec<u8>) {
        self.plain = buffer;
    }

    /// Puts the 0-RTT data of the last read in front of its plaintext. Whether there was any.
    #[inline]
    pub fn join_early_data(&mut self) -> bool {
        if self.early.is_empty() {
            return false;
        }
        self.early.extend_from_slice(&self.plain);
        std::mem::swap(&mut self.early, &mut self.plain);
        self.early.clear();
        true
    }

    /// Lends an empty buffer for records to send.
    #[inline]
    pub fn empty_records(&mut self) -> &mut Records {
        self.records.clear();
        &mut self.records
    }

    /// The records that were put into [`Scratch::empty_records`] last.
    #[inline]
    pub fn records(&self) -> &[u8] {
        self.records.filled()
    }

    /// Lends a buffer for text. What an earlier borrower has left in it is of no use.
    #[inline]
    pub fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Lends what decoding a field section of HTTP/3 takes.
    #[inline]
    pub fn qpack(&mut self) -> &mut QpackScratch {
        &mut self.qpack
    }

    /// Makes sure that `buffer` has storage, from the pool if there is some.
    #[inline]
    pub fn take_buffer(&mut self, buffer: &mut Vec<u8>) {
        self.pool.take_buffer(buffer);
    }

    /// Takes an empty buffer's storage back.
    #[inline]
    pub fn return_buffer(&mut self, buffer: &mut Vec<u8>) {
        self.pool.return_buffer(buffer);
    }
}

#[derive(Default)]
struct Pool(Vec<Vec<u8>>);

impl Pool {
    #[inline]
    fn take_buffer(&mut self, buffer: &mut Vec<u8>) {
        if buffer.capacity() == 0
            && let Some(pooled) = self.0.pop()
        {
            *buffer = pooled;
        }
    }

    #[inline]
    fn return_buffer(&mut self, buffer: &mut Vec<u8>) {
        if buffer.is_empty() && buffer.capacity() > 0 {
            let buffer = std::mem::take(buffer);
            if self.0.len() < POOLED && buffer.capacity() <= POOLED_CAPACITY {
                self.0.push(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_data_comes_before_the_plaintext_of_the_same_read() {
        let mut scratch = Scratch::new();
        scratch.read_buffers().plain.extend_from_slice(b"later");
        assert!(!scratch.join_early_data(), "there is none");
        let ReadBuffers { plain, early, .. } = scratch.read_buffers();
        plain.extend_from_slice(b"later");
        early.extend_from_slice(b"early ");
        assert!(scratch.join_early_data() && !scratch.join_early_data());
        assert_eq!(scratch.plaintext_len(), 11);
        let taken = scratch.take_plaintext();
        assert_eq!((&taken[..], scratch.plaintext_len()), (&b"early later"[..], 0));
        scratch.return_plaintext(taken);
        scratch.clear_plaintext();
        assert_eq!(scratch.plaintext_len(), 0);
    }

    #[test]
    fn a_read_begins_with_empty_buffers() {
        let mut scratch = Scratch::new();
        let ReadBuffers { input, plain, early, .. } = scratch.read_buffers();
        assert_eq!(input.len(), READ_SIZE);
        plain.push(1);
        early.push(2);
        let ReadBuffers { plain, early, records, .. } = scratch.read_buffers();
        assert!(plain.is_empty() && early.is_empty() && records.filled().is_empty());
    }

    #[test]
    fn storage_is_lent_and_comes_back() {
        let mut scratch = Scratch::new();
        let mut buffer = Vec::with_capacity(100);
        let storage = buffer.as_ptr();
        scratch.return_buffer(&mut buffer);
        assert_eq!(buffer.capacity(), 0);
        scratch.take_buffer(&mut buffer);
        assert_eq!(buffer.as_ptr(), storage);
        buffer.push(1);
        scratch.return_buffer(&mut buffer);
        assert_eq!(buffer, [1], "it is not empty");
    }
}
