//! Whether the server is who it says, what it showed to prove it, and, if the proof fails, which check and why.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::cert::Certificate;
use crate::error::ProbeError;

/// Whom to trust.
#[derive(Clone, Debug, Default)]
pub enum Trust {
    /// The system's certificate authorities.
    #[default]
    System,
    /// Only those in this PEM file.
    CaFile(std::path::PathBuf),
    /// Anyone: neither chain nor name is checked. (That the server holds its certificate's key still is.)
    DangerousAnyone,
}

/// What the server showed.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The chain in DER, the server's own certificate first.
    pub chain: Vec<Vec<u8>>,
    /// The stapled OCSP response; empty when there was none.
    pub ocsp: Vec<u8>,
}

/// A verifier that remembers what it was shown last, whether it liked it or not.
#[derive(Debug)]
pub struct Witness {
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
    shown: Mutex<Option<Shown>>,
    refusal: Mutex<Option<Error>>,
    calls: AtomicU64,
}

/// Certificates kept of one chain: more is a server playing games.
const MAX_CHAIN: usize = 16;

impl Witness {
    /// Loads the authorities, once for all connections.
    pub fn new(trust: &Trust, provider: Arc<CryptoProvider>) -> Result<Arc<Self>, ProbeError> {
        let inner = match trust {
            Trust::DangerousAnyone => None,
            Trust::System => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(ProbeError::Certificate {
                        problem: "this machine has no certificate authorities to trust".into(),
                        remedy: "install them (Debian: apt install ca-certificates), or name a file with --cacert"
                            .into(),
                    });
                }
                Some(roots)
            }
            Trust::CaFile(path) => {
                let bad = |e: String| ProbeError::Usage(format!("--cacert {}: {e}", path.display()));
                let mut roots = RootCertStore::empty();
                for cert in CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))? {
                    roots.add(cert.map_err(|e| bad(e.to_string()))?).map_err(|e| bad(e.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(bad("there is no certificate in it (PEM is expected)".into()));
                }
                Some(roots)
            }
        };
        let inner = inner
            .map(|roots| WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build())
            .transpose()
            .map_err(|e| ProbeError::Tls(e.to_string()))?;
        Ok(Arc::new(Self {
            inner,
            provider,
            shown: Mutex::new(None),
            refusal: Mutex::new(None),
            calls: AtomicU64::new(0),
        }))
    }

    /// What was shown last.
    pub fn shown(&self) -> Option<Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether chain and name are checked at all.
    pub fn checks(&self) -> bool {
        self.inner.is_some()
    }

    /// Why the chain shown last was refused, once. QUIC's own error only says that it was.
    pub fn take_refusal(&self) -> Option<Error> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// How often a chain was shown. A resumed handshake shows none.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Turns rustls' error into one that says which check failed and how to go on.
    pub fn explain(&self, error: Error) -> ProbeError {
        let Error::InvalidCertificate(reason) = error else {
            return ProbeError::Tls(explain_tls(&error));
        };
        let leaf = self.shown().and_then(|s| Certificate::read(s.chain.first()?, unix_now()));
        let (subject, issuer) = leaf.as_ref().map_or(("?", "?"), |c| (c.subject.as_str(), c.issuer.as_str()));
        let dates = leaf.as_ref().map_or(String::new(), |c| format!(" (valid {} to {})", c.not_before, c.not_after));
        let (problem, remedy) = match reason {
            CertificateError::UnknownIssuer => (
                format!("the issuer is not trusted: '{subject}' was issued by '{issuer}'"),
                "to trust that issuer: --cacert FILE with its certificate in PEM (or the server leaves out its \
                 intermediate certificate)",
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                let names = leaf.as_ref().map(|c| c.subject_alternative_names.join(", ")).unwrap_or_default();
                let names = if names.is_empty() { "no name at all".into() } else { names };
                (
                    format!("the name does not match: the certificate is for {names}"),
                    "probe one of those names, and reach this server under it with --connect-to or --resolve",
                )
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                (format!("'{subject}' has expired{dates}"), "renew it; or check this machine's clock")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                (format!("'{subject}' is not valid yet{dates}"), "check the clocks of both machines")
            }
            // webpki has no variant of its own for this in rustls' error.
            CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => (
                format!("'{subject}' is a certificate authority's (CA:TRUE), not a server's"),
                "sign a certificate for the server with it, or make one with \
                 openssl req -x509 -addext basicConstraints=critical,CA:FALSE …",
            ),
            CertificateError::BadSignature => (
                format!("'{subject}' was not signed by the '{issuer}' that is trusted"),
                "another authority of the same name signed it, perhaps an older one: --cacert FILE with that one",
            ),
            CertificateError::Revoked => (format!("'{subject}' has been revoked"), "replace it"),
            other => (format!("'{subject}' issued by '{issuer}': {other}"), "replace it by a certificate for servers"),
        };
        ProbeError::Certificate {
            problem,
            remedy: format!("{remedy}\nto measure without checking who answers: --insecure"),
        }
    }
}

fn explain_tls(error: &Error) -> String {
    use rustls::AlertDescription as Alert;
    match error {
        Error::AlertReceived(Alert::ProtocolVersion) => {
            "the server refused the TLS version (alert protocol_version)".into()
        }
        Error::AlertReceived(Alert::HandshakeFailure) => {
            "the server refused the handshake (alert handshake_failure): no cipher suite or group in common, or none \
             for this host name"
                .into()
        }
        Error::AlertReceived(Alert::NoApplicationProtocol) => {
            "the server speaks none of the HTTP versions offered (alert no_application_protocol)".into()
        }
        Error::AlertReceived(Alert::UnrecognisedName) => {
            "the server does not know this host name (alert unrecognized_name)".into()
        }
        Error::AlertReceived(Alert::CertificateRequired) => {
            "the server wants a client certificate, which a probe does not have".into()
        }
        Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
            "the answer is not TLS; is this an http:// port?".into()
        }
        other => other.to_string(),
    }
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let chain = std::iter::once(end_entity).chain(intermediates).take(MAX_CHAIN).map(|c| c.to_vec()).collect();
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Shown { chain, ocsp: ocsp_response.to_vec() });
        let verdict = match &self.inner {
            Some(inner) => inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            None => Ok(ServerCertVerified::assertion()),
        };
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = verdict.as_ref().err().cloned();
        verdict
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Seconds since 1970.
pub fn unix_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}
