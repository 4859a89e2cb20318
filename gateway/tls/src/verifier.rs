//! How a server's certificate is judged, for TLS towards upstreams.

use crate::policy::{ClientPolicy, ExpiredLists};
use crate::server::BuildError;
use crate::transparency::LogList;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Judges the certificates of one upstream. Signatures over the handshake are checked in any case.
#[derive(Debug)]
pub(crate) struct UpstreamVerifier {
    provider: Arc<CryptoProvider>,
    /// `None` with `dangerous_skip_verification`: any certificate will do.
    chain: Option<Chain>,
}

#[derive(Debug)]
struct Chain {
    verifier: Arc<WebPkiServerVerifier>,
    /// Revocation lists are to be fetched, and none is there yet: no certificate is accepted.
    lists_missing: bool,
    /// `transparency = "require"`: the certificate must be in public logs, too.
    logs: Option<Arc<LogList>>,
    /// One of them may have issued the server's certificate itself.
    roots: Vec<CertificateDer<'static>>,
}

impl UpstreamVerifier {
    pub fn new(policy: &ClientPolicy, provider: Arc<CryptoProvider>) -> Result<Self, BuildError> {
        let chain = if policy.dangerous_skip_verification { None } else { Some(Chain::new(policy, &provider)?) };
        Ok(Self { provider, chain })
    }
}

impl Chain {
    fn new(policy: &ClientPolicy, provider: &Arc<CryptoProvider>) -> Result<Self, BuildError> {
        let mut roots = RootCertStore::empty();
        for root in &policy.roots {
            roots.add(root.clone())?;
        }
        let mut verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        verifier = verifier.with_crls(policy.revocation.lists());
        if policy.revocation.expired == ExpiredLists::Refuse {
            verifier = verifier.enforce_revocation_expiration();
        }
        Ok(Self {
            verifier: verifier.build().map_err(|e| BuildError(e.to_string()))?,
            lists_missing: policy.revocation.is_missing(),
            logs: policy.logs.clone(),
            roots: policy.roots.clone(),
        })
    }
}

impl ServerCertVerifier for UpstreamVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        let verified = chain.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        if chain.lists_missing {
            return Err(CertificateError::UnknownRevocationStatus.into());
        }
        if let Some(logs) = &chain.logs {
            let issuers = intermediates.iter().chain(&chain.roots);
            if let Err(refused) = logs.check(end_entity, issuers, ocsp_response, now.as_secs()) {
                return Err(CertificateError::Other(OtherError(Arc::new(refused))).into());
            }
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
