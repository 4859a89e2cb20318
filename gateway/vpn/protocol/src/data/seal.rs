//! Sealing: packet ids are issued here and nowhere else.

use super::aead::Ready as Aead;
use super::cipher::{Cipher, DirectionKey};
use super::epoch::{EpochSecret, MAX_ID};
use super::layout::{Format, Header};
use super::{NONCE, TAG};

/// Why a packet was not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealError {
    /// The key has no packet id left, or has sealed as much as it may. A new key is needed.
    Exhausted,
    /// The output has not room for the packet.
    NoRoom,
}

impl std::fmt::Display for SealError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exhausted => "the key is used up",
            Self::NoRoom => "no room for the packet",
        })
    }
}

impl std::error::Error for SealError {}

/// One direction's key for sending. Invariant: `next` is above every id that was issued under the present key.
pub struct Sealer {
    cipher: Cipher,
    format: Format,
    header: Header,
    key: Aead,
    /// XORed with the packet id to make a nonce.
    mask: [u8; NONCE],
    next: u64,
    /// Blocks and messages under the present key.
    used: u64,
    /// The present epoch's secret, which the next one's comes from. `None` in the stock format.
    secret: Option<EpochSecret>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("header", &self.header).field("next", &self.next).finish_non_exhaustive()
    }
}

impl Sealer {
    /// A key whose first packet id is 1.
    pub fn new(cipher: Cipher, format: Format, header: Header, key: &DirectionKey) -> Self {
        let (ready, mask, secret) = match format {
            Format::Stock => {
                let mut mask = [0; NONCE];
                mask[4..].copy_from_slice(&key.tail);
                (cipher.ready(&key.key).expect("32 bytes are enough for every cipher"), mask, None)
            }
            Format::Epoch => {
                let secret = EpochSecret::first(key);
                let (ready, mask) = secret.derive(cipher);
                (ready, mask, Some(secret))
            }
        };
        Self { cipher, format, header, key: ready, mask, next: 1, used: 0, secret }
    }

    /// Bytes before the plaintext's place in a packet.
    pub const fn head(&self) -> usize {
        self.format.head(self.header)
    }

    /// Bytes after it.
    pub const fn tail(&self) -> usize {
        self.format.tail()
    }

    /// The id that the next packet gets (within the epoch).
    pub const fn next_id(&self) -> u64 {
        self.next
    }

    /// The present epoch; 0 in the stock format.
    pub fn epoch(&self) -> u16 {
        self.secret.as_ref().map_or(0, EpochSecret::epoch)
    }

    /// Goes on with another process's key: never back, since an id must not be issued twice.
    pub fn resume(&mut self, epoch: u16, next: u64, used: u64) {
        self.follow(epoch);
        if self.epoch() == epoch {
            self.next = self.next.max(next);
            self.used = self.used.max(used);
        }
    }

    /// Blocks and messages sealed under the present key.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Whether it is time for a new key: seven tenths of the ids or of the cipher's limit are used. The epoch format
    /// helps itself until its epochs end.
    pub fn wants_renewal(&self) -> bool {
        match self.format {
            Format::Epoch => self.epoch() >= u16::MAX / 10 * 7,
            Format::Stock => {
                self.next > u64::from(u32::MAX) / 10 * 7
                    || self.cipher.usage_limit().is_some_and(|limit| self.used > limit / 10 * 7)
            }
        }
    }

    /// Moves to an epoch that the peer has begun, if it is ahead (2.7: the sender follows the receiver).
    pub fn follow(&mut self, epoch: u16) {
        let Some(mut secret) = self.secret.take() else { return };
        let before = secret.epoch();
        while secret.epoch() < epoch {
            match secret.next() {
                Some(next) => secret = next,
                None => break,
            }
        }
        if secret.epoch() != before {
            (self.key, self.mask) = secret.derive(self.cipher);
            (self.next, self.used) = (1, 0);
        }
        self.secret = Some(secret);
    }

    /// Seals a packet whose plaintext lies at [`Sealer::head`] of `packet` and ends [`Sealer::tail`] before its end.
    pub fn seal_in_place(&mut self, packet: &mut [u8]) -> Result<(), SealError> {
        let (head, tail) = (self.head(), self.tail());
        let Some(length) = packet.len().checked_sub(head + tail) else { return Err(SealError::NoRoom) };
        let nonce = self.begin(packet, length)?;
        let (front, rest) = packet.split_at_mut(head);
        let (text, back) = rest.split_at_mut(length);
        let (aad, tag_room) = self.split_front(front);
        let room = if self.format == Format::Stock { tag_room } else { back };
        self.key.seal_in_place(nonce, aad, text, room).map_err(|_| SealError::NoRoom)
    }

    /// Seals `plaintext` into the front of `out` and returns the packet's length.
    pub fn seal_into(&mut self, plaintext: &[u8], out: &mut [u8]) -> Result<usize, SealError> {
        let (head, tail, length) = (self.head(), self.tail(), plaintext.len());
        let total = head + length + tail;
        let packet = out.get_mut(..total).ok_or(SealError::NoRoom)?;
        let nonce = self.begin(packet, length)?;
        let (front, rest) = packet.split_at_mut(head);
        let (text, back) = rest.split_at_mut(length);
        let (aad, tag_room) = self.split_front(front);
        let room = if self.format == Format::Stock { tag_room } else { back };
        self.key.seal(nonce, aad, plaintext, text, room).map(|()| total).map_err(|_| SealError::NoRoom)
    }

    /// What is authenticated of the bytes before the ciphertext, and the tag's place in the stock format.
    fn split_front<'p>(&self, front: &'p mut [u8]) -> (&'p [u8], &'p mut [u8]) {
        let (clear, tag) = front.split_at_mut(self.header.len() + self.format.id_len());
        (&clear[self.header.unauthenticated()..], tag)
    }

    /// Takes a packet id, writes it and the header, and makes the nonce.
    fn begin(&mut self, packet: &mut [u8], length: usize) -> Result<[u8; NONCE], SealError> {
        // A block is 16 bytes; the header, which is authenticated, is counted as OpenVPN counts it, with the text.
        let cost = 1 + (length + self.header.len() + self.format.id_len()).div_ceil(16) as u64;
        let over = |used: u64| self.cipher.usage_limit().is_some_and(|limit| used.saturating_add(cost) > limit);
        let last = if self.format == Format::Stock { u64::from(u32::MAX) } else { MAX_ID };
        if self.next > last || over(self.used) {
            let epoch = self.epoch();
            if epoch == 0 || epoch == u16::MAX {
                return Err(SealError::Exhausted);
            }
            self.follow(epoch + 1);
        }
        let id = self.next;
        self.next += 1;
        self.used += cost;
        let header = self.header.len();
        packet[..header].copy_from_slice(&self.header.bytes()[..header]);
        let mut nonce = self.mask;
        let mut write = |bytes: &[u8]| {
            packet[header..header + bytes.len()].copy_from_slice(bytes);
            nonce.iter_mut().zip(bytes).for_each(|(n, b)| *n ^= b);
        };
        match self.format {
            Format::Stock => write(&(id as u32).to_be_bytes()),
            Format::Epoch => write(&(u64::from(self.epoch()) << 48 | id).to_be_bytes()),
        }
        Ok(nonce)
    }
}

const _: () = assert!(TAG == 16);
