//! A lane's buffer for outgoing TLS records.

/// Bytes to send. The storage stays initialised, so that nothing is zeroed again for each record.
#[derive(Debug, Default)]
pub struct Records {
    storage: Vec<u8>,
    len: usize,
}

impl Records {
    /// An empty buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { storage: vec![0; capacity], len: 0 }
    }

    /// What is to be sent.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        &self.storage[..self.len]
    }

    /// Nothing is to be sent.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// At least `room` bytes to write into, behind what is there.
    #[inline]
    pub(crate) fn unfilled(&mut self, room: usize) -> &mut [u8] {
        if self.storage.len() - self.len < room {
            let target = (self.len + room).max(self.storage.len() * 2);
            self.storage.resize(target, 0);
        }
        &mut self.storage[self.len..]
    }

    /// All the room that there is now.
    #[inline]
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.storage[self.len..]
    }

    /// `n` more bytes have been written.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        self.len = (self.len + n).min(self.storage.len());
    }

    /// Appends plain bytes (a hand-made alert).
    pub fn extend(&mut self, bytes: &[u8]) {
        self.unfilled(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.advance(bytes.len());
    }
}
