//! Private keys that are held elsewhere: a token signs (PKCS#11), which may take long.
//!
//! ```text
//! lane: the hello, with signing refused ──▶ resumed, or another key: the lane goes on
//!         │ a signature is needed
//!         ▼
//!       Away (a new session, the hello) ──▶ RemoteKey::submit, bounded ──▶ a signing thread: Away::run ──▶ Back ──▶ lane
//! ```
//!
//! rustls signs inside the call that takes the hello, so the whole call moves to a signing thread. A lane never calls
//! [`RemoteKey::sign`]: on a thread that runs no [`Away`], a signature is refused, and [`watch`] reports for which key.

use crate::policy::KeyKind;
use crate::records::Records;
use crate::server::NO_ALGORITHM;
use crate::session::{Session, TlsError};
use crate::sessions::{self, IdKeys};
pub use rustls::SignatureScheme;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, OtherError, SignatureAlgorithm};
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::sync::Arc;

/// What a signing thread does.
pub type Work = Box<dyn FnOnce() + Send>;

/// A private key that is held elsewhere.
pub trait RemoteKey: Debug + Send + Sync {
    /// The public key: a SubjectPublicKeyInfo in DER.
    fn public_key(&self) -> &[u8];

    /// What the key can sign with, in the order of preference.
    fn schemes(&self) -> &[SignatureScheme];

    /// Signs. May take long: only signing threads call it. The error is for the log.
    fn sign(&self, scheme: SignatureScheme, message: &[u8]) -> Result<Vec<u8>, String>;

    /// Has a signing thread do some work. False if too much waits already. Never waits.
    fn submit(&self, work: Work) -> bool;
}

thread_local! {
    /// This thread runs an [`Away`].
    static SIGNS: Cell<bool> = const { Cell::new(false) };
    /// The key of the certificate that was chosen last, where it is held elsewhere.
    static CHOSEN: RefCell<Option<Arc<dyn RemoteKey>>> = const { RefCell::new(None) };
    /// A signature was refused because this thread does not sign.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// A remote key failed, or was refused to a thread that does not sign.
#[derive(Debug)]
pub(crate) struct NotSigned;

impl std::fmt::Display for NotSigned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the token that holds the private key has not signed")
    }
}

impl std::error::Error for NotSigned {}

/// What became of a hello, as far as keys held elsewhere matter.
#[derive(Debug, Default)]
pub struct Watched {
    /// The key of the certificate that was chosen, where it is held elsewhere.
    pub chosen: Option<Arc<dyn RemoteKey>>,
    /// The hello needs a signature of this key. The session failed for want of it.
    pub refused: bool,
}

/// Lets a session take a hello, and reports what it needs.
pub fn watch<T>(take: impl FnOnce() -> T) -> (T, Watched) {
    CHOSEN.take();
    REFUSED.set(false);
    let taken = take();
    (taken, Watched { chosen: CHOSEN.take(), refused: REFUSED.take() })
}

/// Notes which key was chosen.
pub(crate) fn note_chosen(key: &Arc<dyn RemoteKey>) {
    CHOSEN.set(Some(key.clone()));
}

/// A remote key as rustls sees it.
#[derive(Debug)]
pub(crate) struct RemoteSigningKey {
    pub key: Arc<dyn RemoteKey>,
    pub kind: KeyKind,
}

impl SigningKey for RemoteSigningKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = *self.key.schemes().iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RemoteSigner { key: self.key.clone(), scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(self.key.public_key()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self.kind {
            KeyKind::Rsa => SignatureAlgorithm::RSA,
            KeyKind::Ecdsa => SignatureAlgorithm::ECDSA,
            KeyKind::Ed25519 => SignatureAlgorithm::ED25519,
            KeyKind::MlDsa44 | KeyKind::MlDsa65 | KeyKind::MlDsa87 => NO_ALGORITHM,
        }
    }
}

#[derive(Debug)]
struct RemoteSigner {
    key: Arc<dyn RemoteKey>,
    scheme: SignatureScheme,
}

impl Signer for RemoteSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let failed = || Error::Other(OtherError(Arc::new(NotSigned)));
        if !SIGNS.get() {
            REFUSED.set(true);
            return Err(failed());
        }
        // The key has written to the log why.
        self.key.sign(self.scheme, message).map_err(|_| failed())
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// A session on its way to a signing thread, with the hello that it is to take.
#[derive(Debug)]
pub struct Away {
    session: Box<Session>,
    input: Vec<u8>,
    ids: IdKeys,
}

/// A session that comes back from a signing thread.
#[derive(Debug)]
pub struct Back {
    /// The session.
    pub session: Box<Session>,
    /// The part of the hello that the session is not done with.
    pub rest: Vec<u8>,
    /// What is to be sent.
    pub records: Records,
    /// Whether the session goes on.
    pub result: Result<(), TlsError>,
}

impl Away {
    /// Called by the lane of the session.
    pub fn new(session: Box<Session>, input: Vec<u8>) -> Self {
        Self { session, input, ids: sessions::id_keys() }
    }

    /// Lets the session take the hello. May wait for the token: called by a signing thread.
    pub fn run(self) -> Back {
        let Self { mut session, mut input, ids } = self;
        // The hello of a session that has no keys yet: nothing that follows it can be read before the answer was sent.
        let (mut plain, mut early, mut records) = (Vec::new(), Vec::new(), Records::default());
        SIGNS.set(true);
        // What was chosen is not kept: a thread must not keep a key in use.
        let (read, _) =
            sessions::with_id_keys(ids, || watch(|| session.read(&mut input, &mut plain, &mut early, &mut records)));
        SIGNS.set(false);
        let result = read.map(|read| drop(input.drain(..read.consumed.min(input.len()))));
        Back { session, rest: input, records, result }
    }
}
