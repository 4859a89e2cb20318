//! The server's certificate and its key, which are two files that must fit together.
//!
//! ```text
//! write server.key.new and server.crt.new ─▶ rename the key ─▶ rename the certificate
//! ```
//!
//! Both are on the disk before either takes its place. A command that is stopped between the two renames leaves a key that fits
//! `server.crt.new`: the next command that changes the folder completes the change.

use super::{Pair, Staged};
use anyhow::{Context as _, Result};
use rcgen::{KeyPair, PublicKeyData as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sealane_log as log;
use std::path::Path;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";

/// Replaces both files of a folder.
pub(super) fn replace(folder: &Path, pair: &Pair) -> Result<()> {
    let key = Staged::write(&folder.join(KEY), &pair.key, 0o600)?;
    let certificate = Staged::write(&folder.join(CERTIFICATE), &pair.certificate, 0o644)?;
    key.commit()?;
    certificate.commit()
}

/// Completes what a stopped command has begun, or removes what it has left.
pub(super) fn recover(folder: &Path) -> Result<()> {
    let (key, certificate) = (Staged::of(&folder.join(KEY)), Staged::of(&folder.join(CERTIFICATE)));
    if !certificate.temporary.exists() {
        return Ok(());
    }
    if !fits(&certificate.temporary, &key.place) {
        // Nothing was renamed yet, or the file is not whole: the old pair is in place.
        let _ = std::fs::remove_file(&certificate.temporary);
        let _ = std::fs::remove_file(&key.temporary);
        return Ok(());
    }
    let shown = certificate.place.display().to_string();
    certificate.commit().context("cannot complete the renewal of the server's certificate that was interrupted")?;
    log::info!("{shown}: the renewal that was interrupted is complete; reload the gateway");
    Ok(())
}

/// Whether a certificate is of a key. Files that cannot be read fit nothing.
fn fits(certificate: &Path, key: &Path) -> bool {
    let read = || {
        let der = CertificateDer::from_pem_slice(&std::fs::read(certificate).ok()?).ok()?;
        let key = PrivateKeyDer::from_pem_slice(&zeroize::Zeroizing::new(std::fs::read(key).ok()?)).ok()?;
        let key = KeyPair::try_from(&key).ok()?;
        let (_, parsed) = X509Certificate::from_der(&der).ok()?;
        Some(parsed.public_key().raw == key.subject_public_key_info().as_slice())
    };
    read() == Some(true)
}
