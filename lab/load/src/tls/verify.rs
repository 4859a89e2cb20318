//! How much of the server's proof is checked, and so how much the client's side of a handshake costs.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::tickets::note_certificate;

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
}

/// A verifier in one of the four modes; it also notes that a certificate was shown (so: a full handshake).
#[derive(Debug)]
pub(super) struct Verifier {
    pub mode: Verify,
    /// Present in the two modes that check the chain.
    pub chain: Option<Arc<WebPkiServerVerifier>>,
    pub algorithms: WebPkiSupportedAlgorithms,
    /// Certificates that were named as trusted: a server that shows one of them itself is as good as one
    /// whose chain leads there. Self-signed certificates are often marked as authorities, which a path may
    /// not end in (RFC 5280 §4.2.1.9 says what a CA is, not that it may not serve).
    pub pinned: Vec<CertificateDer<'static>>,
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
        note_certificate();
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        if self.pinned.iter().any(|pinned| pinned == end_entity) {
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
