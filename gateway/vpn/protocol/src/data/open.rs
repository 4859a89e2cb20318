//! Opening: authenticate, then look into the replay window.

use super::aead::Ready as Aead;
use super::cipher::{Cipher, DirectionKey};
use super::epoch::{AHEAD, EpochSecret, MAX_ID};
use super::layout::{Format, Header};
use super::replay::{Replay, ReplayWindow};
use super::{NONCE, TAG};
use std::collections::VecDeque;

/// Why a packet was dropped. Each has a counter of its own in the planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Shorter than its header and tag.
    Short,
    /// Not authentic: forged, damaged, or sealed with another key.
    Forged,
    /// Seen before.
    Replayed,
    /// Behind the replay window.
    Old,
    /// An epoch that is over, or too far ahead.
    Epoch,
    /// So much was forged under this key that it is not to be trusted any more.
    Exhausted,
    /// The output is shorter than the plaintext.
    NoRoom,
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Short => "shorter than a packet",
            Self::Forged => "not authentic",
            Self::Replayed => "seen before",
            Self::Old => "older than the replay window",
            Self::Epoch => "of an epoch that is not open",
            Self::Exhausted => "under a key with too many forgeries",
            Self::NoRoom => "longer than the buffer",
        })
    }
}

impl std::error::Error for OpenError {}

/// A key that opens, ready.
struct Ready {
    epoch: u16,
    key: Aead,
    mask: [u8; NONCE],
    forged: u64,
}

impl Ready {
    fn of_epoch(secret: &EpochSecret, cipher: Cipher) -> Self {
        let (key, mask) = secret.derive(cipher);
        Self { epoch: secret.epoch(), key, mask, forged: 0 }
    }
}

/// What the epoch format has besides the present key.
struct Epochs {
    /// The epoch before, for packets that come late.
    retiring: Option<(Ready, ReplayWindow)>,
    /// The next epochs' keys, made ahead so that a forged packet costs no derivation.
    future: VecDeque<Ready>,
    /// The secret of the last of them.
    last: EpochSecret,
}

/// One direction's key for receiving, with its replay window.
pub struct Opener {
    cipher: Cipher,
    format: Format,
    current: Ready,
    window: ReplayWindow,
    epochs: Option<Box<Epochs>>,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("newest", &self.window.newest()).finish_non_exhaustive()
    }
}

/// Which key a packet is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Current,
    Retiring,
    Future(usize),
}

/// Where a packet's parts lie.
struct Parts {
    header: Header,
    epoch: u16,
    id: u64,
    nonce: [u8; 8],
    nonce_len: usize,
    text: std::ops::Range<usize>,
    tag: std::ops::Range<usize>,
}

impl Opener {
    /// A key that has seen nothing yet.
    pub fn new(cipher: Cipher, format: Format, key: &DirectionKey) -> Self {
        match format {
            Format::Stock => {
                let mut mask = [0; NONCE];
                mask[4..].copy_from_slice(&key.tail);
                let ready = cipher.ready(&key.key).expect("32 bytes are enough for every cipher");
                let current = Ready { epoch: 0, key: ready, mask, forged: 0 };
                Self { cipher, format, current, window: ReplayWindow::new(), epochs: None }
            }
            Format::Epoch => {
                let first = EpochSecret::first(key);
                let current = Ready::of_epoch(&first, cipher);
                let mut epochs = Epochs { retiring: None, future: VecDeque::new(), last: first };
                epochs.fill(cipher);
                Self { cipher, format, current, window: ReplayWindow::new(), epochs: Some(Box::new(epochs)) }
            }
        }
    }

    /// The newest epoch that the peer has used; 0 in the stock format. A [`super::Sealer`] follows it.
    pub const fn epoch(&self) -> u16 {
        self.current.epoch
    }

    /// The replay window of the present key.
    pub const fn window(&self) -> &ReplayWindow {
        &self.window
    }

    /// Goes on with another process's epoch and window.
    pub fn resume(&mut self, epoch: u16, window: ReplayWindow) {
        while self.current.epoch < epoch && self.epochs.as_ref().is_some_and(|e| !e.future.is_empty()) {
            self.advance(0);
        }
        self.window = window;
    }

    /// Bytes that the plaintext of a packet of `length` bytes has.
    pub fn plaintext_len(&self, packet: &[u8]) -> Option<usize> {
        let header = Header::parse(packet)?;
        packet.len().checked_sub(self.format.overhead(header))
    }

    /// Opens a packet into the front of `out` and returns the plaintext's length.
    pub fn open_into(&mut self, packet: &[u8], out: &mut [u8]) -> Result<usize, OpenError> {
        let (parts, which) = self.locate(packet)?;
        let length = parts.text.len();
        let out = out.get_mut(..length).ok_or(OpenError::NoRoom)?;
        let ready = self.ready(which);
        let (aad, text, tag) = (&packet[parts.aad()], &packet[parts.text.clone()], parts.tag(packet));
        let opened = ready.key.open(parts.nonce_with(&ready.mask), aad, text, &tag, out).is_ok();
        self.judge(opened, which, parts.id)?;
        Ok(length)
    }

    /// Opens a packet where it lies and returns where its plaintext is.
    pub fn open_in_place(&mut self, packet: &mut [u8]) -> Result<std::ops::Range<usize>, OpenError> {
        let (parts, which) = self.locate(packet)?;
        let ready = self.ready(which);
        let nonce = parts.nonce_with(&ready.mask);
        let tag = parts.tag(packet);
        let (front, text) = packet[..parts.text.end].split_at_mut(parts.text.start);
        let opened = ready.key.open_in_place(nonce, &front[parts.aad()], text, &tag).is_ok();
        self.judge(opened, which, parts.id)?;
        Ok(parts.text)
    }

    /// Finds the parts and the key, and sorts out what need not be decrypted at all.
    fn locate(&self, packet: &[u8]) -> Result<(Parts, Which), OpenError> {
        let parts = Parts::of(packet, self.format).ok_or(OpenError::Short)?;
        let which = self.which(parts.epoch).ok_or(OpenError::Epoch)?;
        if self.ready(which).forged >= Cipher::FORGERY_LIMIT {
            return Err(OpenError::Exhausted);
        }
        let window = match which {
            Which::Current => Some(&self.window),
            Which::Retiring => self.epochs.as_ref().and_then(|e| e.retiring.as_ref()).map(|(_, w)| w),
            Which::Future(_) => None,
        };
        match window.map_or(Replay::New, |w| w.check(parts.id)) {
            Replay::New if parts.id != 0 => Ok((parts, which)),
            Replay::Seen => Err(OpenError::Replayed),
            _ => Err(OpenError::Old),
        }
    }

    fn which(&self, epoch: u16) -> Option<Which> {
        let Some(epochs) = &self.epochs else { return Some(Which::Current) };
        if epoch == self.current.epoch {
            return Some(Which::Current);
        }
        if epochs.retiring.as_ref().is_some_and(|(r, _)| r.epoch == epoch) {
            return Some(Which::Retiring);
        }
        // In epoch order, so a search over four.
        epochs.future.iter().position(|r| r.epoch == epoch).map(Which::Future)
    }

    fn ready(&self, which: Which) -> &Ready {
        // `which` looked these up an instant ago; the current key stands in for what cannot be missing.
        match (which, &self.epochs) {
            (Which::Retiring, Some(e)) => e.retiring.as_ref().map_or(&self.current, |(r, _)| r),
            (Which::Future(at), Some(e)) => e.future.get(at).unwrap_or(&self.current),
            _ => &self.current,
        }
    }

    /// After the tag was checked: counts a forgery, or takes the id.
    fn judge(&mut self, authentic: bool, which: Which, id: u64) -> Result<(), OpenError> {
        if !authentic {
            let ready = match (which, &mut self.epochs) {
                (Which::Retiring, Some(e)) => e.retiring.as_mut().map(|(r, _)| r),
                (Which::Future(at), Some(e)) => e.future.get_mut(at),
                _ => Some(&mut self.current),
            };
            ready.into_iter().for_each(|r| r.forged += 1);
            return Err(OpenError::Forged);
        }
        if let Which::Future(at) = which {
            self.advance(at);
        }
        let window = match (which, &mut self.epochs) {
            (Which::Retiring, Some(e)) => e.retiring.as_mut().map(|(_, w)| w),
            _ => Some(&mut self.window),
        };
        match window.map(|w| w.accept(id)) {
            Some(Replay::New) => Ok(()),
            Some(Replay::Seen) => Err(OpenError::Replayed),
            Some(Replay::Old) | None => Err(OpenError::Old),
        }
    }

    /// The peer uses a future epoch: it becomes the present one, and the present one retires.
    fn advance(&mut self, at: usize) {
        let Some(epochs) = &mut self.epochs else { return };
        let Some(next) = epochs.future.drain(..=at.min(epochs.future.len().saturating_sub(1))).next_back() else {
            return;
        };
        let old = std::mem::replace(&mut self.current, next);
        epochs.retiring = Some((old, std::mem::take(&mut self.window)));
        epochs.fill(self.cipher);
    }
}

impl Epochs {
    fn fill(&mut self, cipher: Cipher) {
        while self.future.len() < usize::from(AHEAD) {
            let Some(next) = self.last.next() else { return };
            self.future.push_back(Ready::of_epoch(&next, cipher));
            self.last = next;
        }
    }
}

impl Parts {
    fn of(packet: &[u8], format: Format) -> Option<Self> {
        let header = Header::parse(packet)?;
        // A plaintext of nothing is not sent by anybody.
        if packet.len() <= format.overhead(header) {
            return None;
        }
        let at = header.len();
        let (mut nonce, nonce_len) = ([0; 8], format.id_len());
        nonce[..nonce_len].copy_from_slice(&packet[at..at + nonce_len]);
        let (head, end) = (format.head(header), packet.len() - format.tail());
        let (epoch, id, tag) = match format {
            Format::Stock => {
                let [a, b, c, d, ..] = nonce;
                (0, u64::from(u32::from_be_bytes([a, b, c, d])), at + 4..at + 4 + TAG)
            }
            Format::Epoch => {
                let whole = u64::from_be_bytes(nonce);
                ((whole >> 48) as u16, whole & MAX_ID, end..end + TAG)
            }
        };
        Some(Self { header, epoch, id, nonce, nonce_len, text: head..end, tag })
    }

    fn aad(&self) -> std::ops::Range<usize> {
        self.header.unauthenticated()..self.header.len() + self.nonce_len
    }

    fn tag(&self, packet: &[u8]) -> [u8; TAG] {
        let mut tag = [0; TAG];
        tag.copy_from_slice(&packet[self.tag.clone()]);
        tag
    }

    fn nonce_with(&self, mask: &[u8; NONCE]) -> [u8; NONCE] {
        let mut nonce = *mask;
        nonce.iter_mut().zip(&self.nonce[..self.nonce_len]).for_each(|(n, b)| *n ^= b);
        nonce
    }
}
