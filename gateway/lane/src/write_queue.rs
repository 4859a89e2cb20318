//! Bytes that a socket has not taken yet.

use std::collections::VecDeque;
use std::io::IoSlice;

/// The largest chunk.
const CHUNK: usize = 8 * 1024;
/// The smallest chunk: short writes share one.
const SMALLEST: usize = 512;

/// There is no room for the bytes. Nothing of them was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A bounded queue of bytes that wait to be sent on a stream.
///
/// The bytes lie in chunks of at most 8 KiB (a longer record that is written in place has a chunk of its own), and a chunk is freed when its last byte has been sent. So a connection with
/// a slow reader holds what is still to be sent and at most one chunk more, whatever passed through the queue before.
/// An empty queue owns no memory.
///
/// The queue does no I/O: [`WriteQueue::slices`] says what to send, and [`WriteQueue::consume`] how much was sent.
#[derive(Debug)]
pub struct WriteQueue {
    /// The first chunk: most often there is no other. A chunk never grows beyond the capacity it was made with.
    first: Vec<u8>,
    /// The others; none of them is empty, and there are none while the first one is.
    others: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that have been sent.
    sent: usize,
    len: usize,
    limit: usize,
}

impl WriteQueue {
    /// An empty queue for at most `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { first: Vec::new(), others: VecDeque::new(), sent: 0, len: 0, limit }
    }

    /// Bytes that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more bytes there is room for.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit - self.len
    }

    /// Bytes of memory that the chunks take.
    pub fn held(&self) -> usize {
        self.first.capacity() + self.others.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Queues all of the bytes, or none of them.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Full> {
        // Most often the socket has taken all.
        if bytes.is_empty() { Ok(()) } else { self.push_some(bytes) }
    }

    fn push_some(&mut self, mut bytes: &[u8]) -> Result<(), Full> {
        if bytes.len() > self.room() {
            return Err(Full);
        }
        self.len += bytes.len();
        let last = self.others.back_mut().unwrap_or(&mut self.first);
        let n = bytes.len().min(last.capacity() - last.len());
        last.extend_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        while !bytes.is_empty() {
            let (chunk, rest) = bytes.split_at(bytes.len().min(CHUNK));
            let mut next = Vec::with_capacity(chunk.len().max(SMALLEST));
            next.extend_from_slice(chunk);
            if self.first.is_empty() {
                self.first = next;
            } else {
                self.others.push_back(next);
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Queues a record of `len` bytes, which `write` fills in where it will lie. Nothing is queued when `write` fails.
    pub fn push_with<E>(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Result<(), Full>, E> {
        if len > self.room() {
            return Ok(Err(Full));
        }
        let last = self.others.back_mut().unwrap_or(&mut self.first);
        if last.capacity() - last.len() >= len {
            let at = last.len();
            last.resize(at + len, 0);
            if let Err(error) = write(&mut last[at..]) {
                last.truncate(at);
                return Err(error);
            }
        } else {
            let mut next = Vec::with_capacity(len.max(CHUNK));
            next.resize(len, 0);
            write(&mut next)?;
            if self.first.is_empty() {
                self.first = next;
            } else if len > 0 {
                self.others.push_back(next);
            }
        }
        self.len += len;
        Ok(Ok(()))
    }

    /// The bytes to send next, as far as they lie in one piece.
    pub fn first(&self) -> &[u8] {
        self.first.get(self.sent..).unwrap_or_default()
    }

    /// Fills `slices` with the bytes to send next, in order; returns how many slices were filled.
    pub fn slices<'q>(&'q self, slices: &mut [IoSlice<'q>]) -> usize {
        let mut filled = 0;
        let chunks = std::iter::once(self.first()).filter(|first| !first.is_empty());
        for (slice, chunk) in slices.iter_mut().zip(chunks.chain(self.others.iter().map(Vec::as_slice))) {
            *slice = IoSlice::new(chunk);
            filled += 1;
        }
        filled
    }

    /// The first `n` bytes were sent: they are forgotten, and the chunks that they filled are freed.
    pub fn consume(&mut self, n: usize) {
        let n = n.min(self.len);
        self.len -= n;
        self.sent += n;
        while !self.first.is_empty() && self.sent >= self.first.len() {
            self.sent -= self.first.len();
            self.first = self.others.pop_front().unwrap_or_default();
        }
        if self.others.is_empty() {
            self.others = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(queue: &WriteQueue, most: usize) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 3];
        let n = queue.slices(&mut slices);
        slices[..n].iter().flat_map(|s| s.iter().copied()).take(most).collect()
    }

    #[test]
    fn what_goes_in_comes_out_in_any_pieces() {
        let mut random = 7u32;
        let mut next = |most: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % most
        };
        let mut queue = WriteQueue::new(100_000);
        let (mut pushed, mut popped) = (0u32, 0u32);
        for _ in 0..20_000 {
            let piece: Vec<u8> = (0..next(20_000)).map(|i| (pushed + i) as u8).collect();
            if queue.push(&piece).is_ok() {
                pushed += piece.len() as u32;
            } else {
                assert!(queue.len() + piece.len() > 100_000);
            }
            let sent = first(&queue, next(20_000) as usize);
            assert!(sent.iter().enumerate().all(|(i, b)| *b == (popped + i as u32) as u8));
            queue.consume(sent.len());
            popped += sent.len() as u32;
            assert_eq!(queue.len() as u32, pushed - popped);
            assert_eq!(queue.is_empty(), queue.held() == 0);
            // What was sent is freed: one chunk may be sent in part, and small chunks have some room left.
            assert!(queue.held() <= queue.len() + CHUNK + SMALLEST * (queue.others.len() + 1));
        }
    }

    #[test]
    fn it_is_bounded() {
        let mut queue = WriteQueue::new(10);
        assert_eq!(queue.push(&[0; 11]), Err(Full));
        assert_eq!((queue.len(), queue.room()), (0, 10));
        queue.push(&[0; 10]).unwrap();
        assert_eq!(queue.push(&[0]), Err(Full));
        queue.consume(4);
        queue.push(&[0; 4]).unwrap();
    }

    #[test]
    fn records_are_written_in_place_or_not_at_all() {
        let mut queue = WriteQueue::new(20_000);
        let fill = |byte: u8| {
            move |b: &mut [u8]| {
                b.fill(byte);
                Ok::<(), ()>(())
            }
        };
        assert_eq!(queue.push_with(3, fill(1)), Ok(Ok(())));
        assert_eq!(queue.push_with(3, |_| Err("no")), Err("no"));
        assert_eq!(queue.push_with(9000, |_| Err("no")), Err("no"));
        assert_eq!(queue.push_with(9000, fill(2)), Ok(Ok(())));
        queue.push(&[3]).unwrap();
        assert_eq!(queue.push_with(2, fill(4)), Ok(Ok(())));
        let text = [&[1; 3][..], &[2; 9000], &[3], &[4; 2]].concat();
        assert_eq!(queue.len(), text.len());
        assert_eq!(first(&queue, usize::MAX), text);
        assert_eq!(queue.push_with(20_000, fill(5)), Ok(Err(Full)));
        queue.consume(text.len());
        assert_eq!((queue.len(), queue.held()), (0, 0));
    }

    #[test]
    fn short_writes_share_a_chunk() {
        let mut queue = WriteQueue::new(1 << 20);
        (0..1000).for_each(|_| queue.push(&[0; 10]).unwrap());
        assert!(queue.others.len() <= 1000 * 10 / SMALLEST);
        queue.consume(queue.len());
        assert_eq!((queue.len(), queue.held()), (0, 0));
    }
}
