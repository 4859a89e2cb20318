//! Skips early data that is not accepted (RFC 8446 §4.2.10).
//!
//! rustls skips records that do not decrypt, too. But its unbuffered API forgets that it has skipped a record that no
//! other record follows: on the next call it decrypts and counts the record again, and soon ends the connection with
//! bad_record_mac. It also skips no more than 16 KiB where early data is switched off, though clients may still hold
//! tickets that allow more. So the session keeps such records from rustls: they are tried under the client's handshake
//! key here, and dropped until one decrypts.
//!
//! ```text
//! Hello ──early data accepted, or TLS 1.2──▶ (nothing is skipped)
//!   ├────HelloRetryRequest─────▶ UntilHello ──a record that is no application data──▶ (done)
//!   └────rejected──────────────▶ UntilKey ────a record that decrypts────────────────▶ (done)
//! ```

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::crypto::cipher::{
    self, AeadKey, Iv, MessageDecrypter, MessageEncrypter, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::{ConnectionTrafficSecrets, HandshakeKind};
use std::cell::{Cell, RefCell};

/// Bytes of records skipped on one connection: the most early data that a ticket of ours may ever have allowed, and
/// what records add to it.
const MAX_SKIPPED: usize = (1 << 20) + (64 << 10);

const RECORD_HEADER: usize = 5;
/// RFC 8446 §5.2.
const MAX_CIPHERTEXT: usize = (1 << 14) + 256;
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// The first record under a key.
struct FirstRecord {
    key: LessSafeKey,
    nonce: [u8; aead::NONCE_LEN],
}

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    /// How many decrypters were made while watching, and the last one's first record.
    static MADE: RefCell<(usize, Option<FirstRecord>)> = const { RefCell::new((0, None)) };
}

/// A TLS 1.3 suite's record protection. The keys that clients' records are opened with are noted while a session handles
/// a hello with early data.
pub(crate) struct WatchedAead {
    pub inner: &'static dyn Tls13AeadAlgorithm,
    pub algorithm: &'static aead::Algorithm,
}

impl Tls13AeadAlgorithm for WatchedAead {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        self.inner.encrypter(key, iv)
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        if WATCHING.get() {
            let nonce = cipher::Nonce::new(&iv, 0).0;
            let key = UnboundKey::new(self.algorithm, key.as_ref()).ok().map(LessSafeKey::new);
            MADE.with_borrow_mut(|(made, first)| {
                *made += 1;
                *first = key.map(|key| FirstRecord { key, nonce });
            });
        }
        self.inner.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.inner.key_len()
    }

    fn extract_keys(&self, key: AeadKey, iv: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.inner.extract_keys(key, iv)
    }

    fn fips(&self) -> bool {
        self.inner.fips()
    }
}

/// A server's session whose client has offered early data.
pub(crate) struct EarlySkip {
    state: State,
    left: usize,
    copy: Vec<u8>,
}

enum State {
    Hello,
    UntilHello,
    UntilKey(FirstRecord),
}

/// What to do with the bytes at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is no whole record yet.
    Wait,
    /// So many bytes are for rustls, and nothing behind them yet.
    Pass(usize),
    /// So many bytes are skipped.
    Drop(usize),
    /// Nothing is skipped from here on.
    Done,
}

/// The type and the whole length of the record at the start of `bytes`, if all of it is there. A record that is longer
/// than allowed has no length.
fn record(bytes: &[u8]) -> Option<(u8, Option<usize>)> {
    let header = bytes.get(..RECORD_HEADER)?;
    let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if len > MAX_CIPHERTEXT {
        return Some((header[0], None));
    }
    let whole = RECORD_HEADER + len;
    (bytes.len() >= whole).then_some((header[0], Some(whole)))
}

impl EarlySkip {
    pub fn new() -> Self {
        Self { state: State::Hello, left: MAX_SKIPPED, copy: Vec::new() }
    }

    /// Looks at what follows the bytes that rustls has.
    pub fn next(&mut self, bytes: &[u8]) -> Step {
        if matches!(self.state, State::Hello) {
            // All that the hello is spread over, since rustls wants what it has not finished with again.
            let mut at = 0;
            while let Some((HANDSHAKE, Some(len))) = record(&bytes[at..]) {
                at += len;
            }
            return if at == 0 { Step::Wait } else { Step::Pass(at) };
        }
        match record(bytes) {
            None => Step::Wait,
            Some((CHANGE_CIPHER_SPEC, Some(len))) => Step::Pass(len),
            Some((APPLICATION_DATA, Some(len))) if len <= self.left && !self.is_the_first(&bytes[..len]) => {
                self.left -= len;
                Step::Drop(len)
            }
            Some(_) => Step::Done,
        }
    }

    /// Whether the record is the first one under the client's handshake key.
    fn is_the_first(&mut self, record: &[u8]) -> bool {
        let State::UntilKey(first) = &self.state else { return false };
        let payload = &record[RECORD_HEADER..];
        self.copy.clear();
        self.copy.extend_from_slice(payload);
        let header = cipher::make_tls13_aad(payload.len());
        let nonce = Nonce::assume_unique_for_key(first.nonce);
        first.key.open_in_place(nonce, Aad::from(header), &mut self.copy).is_ok()
    }

    /// Lets rustls handle what was passed; with what it returns it says which handshake this is. False if nothing more is
    /// skipped.
    pub fn watch<T>(&mut self, handle: impl FnOnce() -> (T, Option<HandshakeKind>)) -> (T, bool) {
        if !matches!(self.state, State::Hello) {
            return (handle().0, true);
        }
        WATCHING.set(true);
        MADE.with_borrow_mut(|made| *made = (0, None));
        let (handled, kind) = handle();
        WATCHING.set(false);
        let (made, first) = MADE.take();
        let state = match (kind, first) {
            (None, _) => return (handled, true),
            (Some(HandshakeKind::FullWithHelloRetryRequest), _) => Some(State::UntilHello),
            (Some(HandshakeKind::Full), Some(first)) => Some(State::UntilKey(first)),
            // Of a session that is resumed, the early data's key is the first, and the only one if it is accepted.
            (Some(HandshakeKind::Resumed), Some(first)) if made > 1 => Some(State::UntilKey(first)),
            // Accepted, or TLS 1.2, whose clients fail (RFC 8446 §D.3).
            _ => None,
        };
        let skips = state.is_some();
        self.state = state.unwrap_or(State::UntilHello);
        (handled, skips)
    }
}
