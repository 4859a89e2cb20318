//! Private keys in tokens, by PKCS#11: hardware security modules, smart cards, SoftHSM.
//!
//! ```text
//!  lanes ── RemoteKey::submit ──▶ queue, bounded ──▶ THREADS signing threads ── C_Sign ──▶ module (a shared library) ──▶ token
//!                                 (one per token)      each with a session of its own
//! ```
//!
//! A module's calls may take long, or never return. So each token has its own threads and its own queue: what a slow token
//! delays is its own handshakes. If the queue is full, [`RemoteKey::submit`] says so at once.
//!
//! A token may go away and come back: a signature that fails is tried once more with a new session, after the module was
//! initialised again (`module.rs`). A wrong PIN is not tried twice, because tokens lock after a few wrong PINs.
//!
//! [`RemoteKey::submit`]: sealane_tls::remote::RemoteKey::submit

mod failure;
mod key;
mod module;
mod token;

pub use failure::Failure;

use key::TokenPrivateKey;
use rustls::pki_types::CertificateDer;
use sealane_config::TokenUri;
use sealane_tls::remote::RemoteKey;
use std::sync::Arc;
use token::Token;
use zeroize::Zeroizing;

/// Opens a key, and has it sign something: the key must belong to the certificate. Blocks, for a limited time.
pub fn open(
    uri: &TokenUri,
    pin: Option<Zeroizing<Vec<u8>>>,
    certificate: &CertificateDer<'_>,
) -> Result<Arc<dyn RemoteKey>, Failure> {
    let token = Token::open(uri, pin)?;
    let key = Arc::new(TokenPrivateKey::new(token, uri, certificate)?);
    key.prove()?;
    Ok(key)
}
