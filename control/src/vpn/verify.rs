//! Whose certificate is good: signed by the CA, for the right use, not revoked, and of the expected name.
//!
//! OpenVPN does not look at host names, and its certificates mostly have none; so rustls' own verifiers, which insist
//! on one, are of no use here, and the chain is checked by webpki directly.

use anyhow::{Context, Result, bail};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// `verify-x509-name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// The common name is this.
    Name(String),
    /// The common name begins with this.
    Prefix(String),
    /// The whole subject is this, as OpenVPN prints it: `C=KR, O=Example, CN=vpn`.
    Subject(String),
}

/// Checks the peer's certificate.
#[derive(Debug)]
pub struct Verifier {
    roots: Vec<TrustAnchor<'static>>,
    hints: Vec<DistinguishedName>,
    crls: Vec<CertRevocationList<'static>>,
    name: Option<NameRule>,
    /// A client may come without a certificate.
    optional: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// From a CA's certificates and revocation lists, DER.
    pub fn new(
        provider: &CryptoProvider,
        ca: &[CertificateDer<'_>],
        crls: &[Vec<u8>],
        name: Option<NameRule>,
        optional: bool,
    ) -> Result<Self> {
        let (mut roots, mut hints) = (Vec::new(), Vec::new());
        for cert in ca {
            let anchor = webpki::anchor_from_trusted_cert(cert)
                .context("a CA certificate cannot be used (is it of X.509 version 3?)")?
                .to_owned();
            hints.push(DistinguishedName::in_sequence(&anchor.subject));
            roots.push(anchor);
        }
        if roots.is_empty() && !optional {
            bail!("there is no certificate in the CA's file");
        }
        let crls = crls.iter().map(|der| {
            let crl = OwnedCertRevocationList::from_der(der).context(
                "a revocation list cannot be used (it must be of version 2, with a number: `crl_extensions` in \
                 openssl.cnf)",
            )?;
            Ok(CertRevocationList::from(crl))
        });
        let crls = crls.collect::<Result<_>>()?;
        Ok(Self { roots, hints, crls, name, optional, algorithms: provider.signature_verification_algorithms })
    }

    fn check(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), Error> {
        let end = EndEntityCert::try_from(cert).map_err(bad)?;
        let crls: Vec<&CertRevocationList<'_>> = self.crls.iter().collect();
        let revocation = (!crls.is_empty())
            .then(|| {
                RevocationOptionsBuilder::new(&crls).map(|b| {
                    // A list may be of one CA of several; but one that has run out says nothing about today.
                    b.with_depth(RevocationCheckDepth::Chain)
                        .with_status_policy(UnknownStatusPolicy::Allow)
                        .with_expiration_policy(ExpirationPolicy::Enforce)
                        .build()
                })
            })
            .transpose()
            .map_err(|_| Error::General("no revocation lists".to_owned()))?;
        end.verify_for_usage(self.algorithms.all, &self.roots, intermediates, now, usage, revocation, None)
            .map_err(bad)?;
        match &self.name {
            Some(rule) if !rule.admits(cert) => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
            _ => Ok(()),
        }
    }
}

fn bad(e: webpki::Error) -> Error {
    use webpki::Error as E;
    Error::InvalidCertificate(match e {
        E::CertExpired { .. } => CertificateError::Expired,
        E::CertNotValidYet { .. } => CertificateError::NotValidYet,
        E::CertRevoked => CertificateError::Revoked,
        E::CrlExpired { .. } => CertificateError::ExpiredRevocationList,
        E::UnknownIssuer => CertificateError::UnknownIssuer,
        E::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        other => CertificateError::Other(rustls::OtherError(std::sync::Arc::new(other))),
    })
}

impl NameRule {
    fn admits(&self, cert: &[u8]) -> bool {
        match self {
            Self::Name(name) => common_name(cert).is_some_and(|cn| cn == *name),
            Self::Prefix(prefix) => common_name(cert).is_some_and(|cn| cn.starts_with(prefix.as_str())),
            Self::Subject(subject) => {
                X509Certificate::from_der(cert).is_ok_and(|(_, c)| c.subject().to_string() == *subject)
            }
        }
    }
}

/// A certificate's common name: what a client is known by. `None` when it has none, or one that is not for printing.
pub fn common_name(cert: &[u8]) -> Option<String> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    let name = cert.subject().iter_common_name().last()?.as_str().ok()?;
    let good = !name.is_empty() && name.len() <= 64 && !name.chars().any(|c| c.is_control() || c == '/');
    good.then(|| name.to_owned())
}

impl ClientCertVerifier for Verifier {
    fn offer_client_auth(&self) -> bool {
        !self.roots.is_empty()
    }

    fn client_auth_mandatory(&self) -> bool {
        !self.optional
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates, now, KeyUsage::server_auth())?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
