//! Whether a certificate was signed by a CA's key.

use anyhow::{Context as _, Result, bail};
use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::Duration;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Checks the signature. Whether the certificate has expired does not matter: it is judged as of its first second.
pub(super) fn check(certificate: &CertificateDer<'_>, ca: &CertificateDer<'_>) -> Result<()> {
    let (_, parsed) = X509Certificate::from_der(certificate).context("the certificate cannot be read")?;
    let first = u64::try_from(parsed.validity().not_before.timestamp()).unwrap_or(0);
    let at = UnixTime::since_unix_epoch(Duration::from_secs(first));
    let anchor = webpki::anchor_from_trusted_cert(ca).context("ca.crt")?;
    let end = EndEntityCert::try_from(certificate).context("the certificate cannot be read")?;
    let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all;
    let verify =
        |usage| end.verify_for_usage(algorithms, std::slice::from_ref(&anchor), &[], at, usage, None, None).map(drop);
    // The use does not matter, either: servers have certificates, too.
    let verified = match verify(KeyUsage::client_auth()) {
        Err(webpki::Error::RequiredEkuNotFoundContext(_)) => verify(KeyUsage::server_auth()),
        verified => verified,
    };
    match verified {
        Ok(()) => Ok(()),
        Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
            bail!("the certificate names this CA, but is not signed with its key; nothing was revoked")
        }
        Err(e) => bail!("the signature of the certificate cannot be checked ({e}); nothing was revoked"),
    }
}
