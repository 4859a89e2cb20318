//! Opens private keys in tokens: the integration `sealane-pkcs11`, where this program is built with it.

use crate::config::{Answers, TokenKey, Unreadable};
use sealane_tls::remote::RemoteKey;
use std::sync::Arc;
use tokio::time::Instant;

/// Opens a key, and has it sign something: the signature must fit the certificate. `answers` has the files of certificate and PIN.
pub(super) async fn open(
    key: &TokenKey,
    answers: &Answers,
    deadline: Instant,
) -> Result<Arc<dyn RemoteKey>, Unreadable> {
    #[cfg(feature = "pkcs11")]
    return built_in::open(key, answers, deadline).await;
    #[cfg(not(feature = "pkcs11"))]
    {
        let _ = (key, answers, deadline);
        let help = "build it with `cargo build --features full`, or set \"key\" to a file".to_owned();
        Err(Unreadable { why: "this program was built without PKCS#11".to_owned(), help: Some(help) })
    }
}

#[cfg(feature = "pkcs11")]
mod built_in {
    use super::{Answers, Arc, Instant, RemoteKey, TokenKey, Unreadable};
    use crate::config::first_line;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use std::time::Duration;
    use zeroize::Zeroizing;

    /// How long a token may take.
    const TOKEN_LIMIT: Duration = Duration::from_secs(15);

    pub(super) async fn open(
        key: &TokenKey,
        answers: &Answers,
        deadline: Instant,
    ) -> Result<Arc<dyn RemoteKey>, Unreadable> {
        // What is wrong with a file has an error of its own.
        let missing = |what: &str| Unreadable { why: format!("the {what} cannot be read"), help: None };
        let content = |file| answers.contents.get(file).and_then(|content| content.as_ref().ok());
        let certificate = content(&key.certificate).ok_or_else(|| missing("certificate"))?;
        let certificate = CertificateDer::from_pem_slice(&certificate.bytes).map_err(|_| missing("certificate"))?;
        let pin = match &key.pin {
            Some(file) => {
                let content = content(file).ok_or_else(|| missing("PIN"))?;
                Some(Zeroizing::new(first_line(&content.bytes).to_vec()))
            }
            None => None,
        };
        let shown_pin = key.pin.as_ref().map(|file| file.display().to_string());
        let uri = key.uri.clone();
        let open = move || sealane_pkcs11::open(&uri, pin, &certificate);
        let limit = deadline.min(Instant::now() + TOKEN_LIMIT);
        match sealane_blocking::call(&key.uri.module, limit, open).await {
            Ok(Ok(key)) => Ok(key),
            Ok(Err(failure)) => {
                let help = failure.help(&key.uri.module, shown_pin.as_deref());
                Err(Unreadable { why: failure.to_string(), help })
            }
            Err(failure) => {
                let help = "is the token connected, and does its service run?".to_owned();
                Err(Unreadable { why: format!("the token {failure}"), help: Some(help) })
            }
        }
    }
}
