//! How much of the server's proof is checked, and so how much the client's side of a handshake costs; and what the server showed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// What is verified of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Chain, name and the handshake's signature, as a browser does.
    Full,
    /// Chain and signature, whatever the name.
    Chain,
    /// Only that the server holds its certificate's key, as `curl -k` and other load generators do.
    Signature,
    /// Nothing at all: the signature, which costs an ECDSA client about as much as it costs the server,
    /// is not looked at. Says nothing about who answered.
    None,
}

impl Verify {
    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Chain => "chain",
            Self::Signature => "signature",
            Self::None => "none",
        }
    }

    fn checks_the_chain(self) -> bool {
        matches!(self, Self::Full | Self::Chain)
    }
}

/// The certificates that chains must lead to.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// The system's certificate authorities.
    #[default]
    System,
    /// Those in this PEM file alone.
    CaFile(PathBuf),
    /// This certificate, shown by the server itself. Its chain, name and dates are not checked.
    Pinned(CertificateDer<'static>),
}

/// Why there is no verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustError {
    /// A file that cannot be read, or has no certificate that can be used.
    File(PathBuf, String),
    /// The system has no certificate authorities.
    NoRoots(String),
    /// rustls does not accept them.
    Unusable(String),
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, why) => write!(f, "{}: {why}", path.display()),
            Self::NoRoots(why) => write!(f, "this machine has no certificate authorities to trust ({why})"),
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for TrustError {}

/// What a server showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The chain in DER, the server's own certificate first.
    pub chain: Vec<Vec<u8>>,
    /// The stapled OCSP response; empty when there was none.
    pub ocsp: Vec<u8>,
}

/// Certificates kept of one chain: a server may send any number.
const MAX_CHAIN: usize = 16;

/// The lab's certificate verifier. It counts the certificates that it is shown (a resumed handshake shows none), and with
/// [`Self::recording`] keeps the last chain and the reason for which it was refused.
#[derive(Debug)]
pub struct Verifier {
    mode: Verify,
    /// Present in the two modes that check the chain, unless one certificate is pinned.
    chain: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
    /// Certificates that are as good as a chain if the server shows one of them itself.
    accepted: Vec<CertificateDer<'static>>,
    shown: AtomicU64,
    record: Option<Mutex<Record>>,
}

#[derive(Debug, Default)]
struct Record {
    shown: Option<Shown>,
    refusal: Option<Error>,
}

impl Verifier {
    /// Loads the authorities, where `mode` needs them.
    pub fn new(mode: Verify, trust: &Trust, provider: &Arc<CryptoProvider>) -> Result<Self, TrustError> {
        let (mut chain, mut accepted) = (None, Vec::new());
        match trust {
            Trust::Pinned(certificate) => accepted.push(certificate.clone()),
            _ if !mode.checks_the_chain() => {}
            _ => {
                let roots = Arc::new(roots(trust)?);
                let builder = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
                chain = Some(builder.build().map_err(|e| TrustError::Unusable(e.to_string()))?);
            }
        }
        let algorithms = provider.signature_verification_algorithms;
        Ok(Self { mode, chain, algorithms, accepted, shown: AtomicU64::new(0), record: None })
    }

    /// Accepts the certificates of a [`Trust::CaFile`] also if the server shows one of them itself. Self-signed
    /// certificates are often marked as authorities, which a path may not end in (RFC 5280 §4.2.1.9 says what a CA is, not
    /// that it may not serve).
    pub fn accepting_named(mut self, trust: &Trust) -> Result<Self, TrustError> {
        if let (Trust::CaFile(path), true) = (trust, self.mode.checks_the_chain()) {
            self.accepted.extend(certificates(path)?);
        }
        Ok(self)
    }

    /// Keeps what the server showed last, and why it was refused.
    pub fn recording(mut self) -> Self {
        self.record = Some(Mutex::default());
        self
    }

    /// How many certificates it was shown so far.
    #[inline]
    pub fn shown(&self) -> u64 {
        self.shown.load(Ordering::Relaxed)
    }

    /// The chain shown last, if chains are recorded.
    pub fn last(&self) -> Option<Shown> {
        self.record.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).shown.clone()
    }

    /// Why the chain shown last was refused, once. QUIC's own error only says that it was.
    pub fn take_refusal(&self) -> Option<Error> {
        self.record.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).refusal.take()
    }

    /// Whether the chain is checked at all.
    pub fn checks_the_chain(&self) -> bool {
        self.mode.checks_the_chain()
    }

    fn judge(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let accepted = self.accepted.iter().any(|accepted| accepted == end_entity);
        let Some(chain) = &self.chain else {
            // Nothing is to be checked, or one certificate is pinned.
            return match accepted || self.accepted.is_empty() {
                true => Ok(ServerCertVerified::assertion()),
                false => Err(Error::General("another certificate than the pinned one".to_owned())),
            };
        };
        if accepted {
            if self.mode == Verify::Full {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.mode == Verify::Chain => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.shown.fetch_add(1, Ordering::Relaxed);
        let verdict = self.judge(end_entity, intermediates, server_name, ocsp_response, now);
        if let Some(record) = &self.record {
            let chain = std::iter::once(end_entity).chain(intermediates).take(MAX_CHAIN).map(|c| c.to_vec()).collect();
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            record.shown = Some(Shown { chain, ocsp: ocsp_response.to_vec() });
            record.refusal = verdict.as_ref().err().cloned();
        }
        verdict
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.mode {
            Verify::None => Ok(HandshakeSignatureValid::assertion()),
            _ => verify_tls12_signature(message, cert, dss, &self.algorithms),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.mode {
            Verify::None => Ok(HandshakeSignatureValid::assertion()),
            _ => verify_tls13_signature(message, cert, dss, &self.algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn roots(trust: &Trust) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    let Trust::CaFile(path) = trust else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = found.errors.first().map_or_else(|| "none installed".to_owned(), ToString::to_string);
            return Err(TrustError::NoRoots(why));
        }
        return Ok(roots);
    };
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| TrustError::File(path.clone(), e.to_string()))?;
    }
    Ok(roots)
}

/// The certificates of a PEM file: at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let bad = |why: String| TrustError::File(path.to_owned(), why);
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| bad(e.to_string()))?;
    match certificates.is_empty() {
        true => Err(bad("there is no certificate in it (PEM is expected)".to_owned())),
        false => Ok(certificates),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::aws_lc_rs::default_provider;

    fn pinned(name: &str) -> (CertificateDer<'static>, tempfile::NamedTempFile) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), made.cert.pem()).unwrap();
        (made.cert.der().clone(), file)
    }

    fn judge(verifier: &Verifier, certificate: &CertificateDer<'_>, name: &str) -> bool {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier.verify_server_cert(certificate, &[], &name, b"stapled", UnixTime::now()).is_ok()
    }

    #[test]
    fn each_mode_checks_what_it_says() {
        let provider = Arc::new(default_provider());
        let ((own, file), (other, _)) = (pinned("a.test"), pinned("a.test"));
        let trust = Trust::CaFile(file.path().to_owned());
        let make = |mode| Verifier::new(mode, &trust, &provider).unwrap().accepting_named(&trust).unwrap();
        for (mode, right, wrong_name, stranger) in [
            (Verify::Full, true, false, false),
            (Verify::Chain, true, true, false),
            (Verify::Signature, true, true, true),
            (Verify::None, true, true, true),
        ] {
            let verifier = make(mode);
            let seen = [
                judge(&verifier, &own, "a.test"),
                judge(&verifier, &own, "b.test"),
                judge(&verifier, &other, "a.test"),
            ];
            assert_eq!(seen, [right, wrong_name, stranger], "{mode:?}");
            assert_eq!((verifier.shown(), verifier.last()), (3, None));
        }
        let pin = Verifier::new(Verify::Signature, &Trust::Pinned(own.clone()), &provider).unwrap();
        assert!(judge(&pin, &own, "b.test") && !judge(&pin, &other, "a.test"));
    }

    #[test]
    fn what_was_shown_is_recorded_whether_it_was_accepted_or_not() {
        let provider = Arc::new(default_provider());
        let ((_, file), (stranger, _)) = (pinned("a.test"), pinned("a.test"));
        let verifier =
            Verifier::new(Verify::Full, &Trust::CaFile(file.path().to_owned()), &provider).unwrap().recording();
        assert!(!judge(&verifier, &stranger, "a.test"));
        assert_eq!(verifier.last(), Some(Shown { chain: vec![stranger.to_vec()], ocsp: b"stapled".to_vec() }));
        assert!(verifier.take_refusal().is_some() && verifier.take_refusal().is_none());
    }

    #[test]
    fn files_without_certificates_are_refused() {
        let provider = Arc::new(default_provider());
        let empty = tempfile::NamedTempFile::new().unwrap();
        for path in [empty.path(), Path::new("/nowhere/ca.pem")] {
            let trust = Trust::CaFile(path.to_owned());
            assert!(matches!(Verifier::new(Verify::Full, &trust, &provider), Err(TrustError::File(..))));
            assert!(Verifier::new(Verify::Signature, &trust, &provider).is_ok(), "the file is not needed");
        }
    }
}
