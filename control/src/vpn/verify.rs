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

/// How a handshake is signed is the same question to both of rustls' traits.
macro_rules! handshake_signatures {
    () => {
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
    };
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

    handshake_signatures!();
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

    handshake_signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
        Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
    };
    use std::time::Duration;

    struct Ca {
        cert: CertificateDer<'static>,
        issuer: Issuer<'static, KeyPair>,
    }

    fn ca() -> Ca {
        let key = KeyPair::generate().expect("a key");
        let mut params = named("CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).expect("signed").der().clone();
        Ca { cert, issuer: Issuer::new(params, key) }
    }

    fn named(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2100, 1, 1));
        params
    }

    fn leaf(ca: &Ca, name: &str, serial: u64, usage: ExtendedKeyUsagePurpose) -> CertificateDer<'static> {
        let mut params = named(name);
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        params.signed_by(&key, &ca.issuer).expect("signed").der().clone()
    }

    fn crl(ca: &Ca, revoked: u64, until: i32) -> Vec<u8> {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(revoked),
                revocation_time: date_time_ymd(2021, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&ca.issuer).expect("signed").der().to_vec()
    }

    fn verifier(ca: &Ca, crls: &[Vec<u8>], name: Option<NameRule>) -> Verifier {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        Verifier::new(&provider, std::slice::from_ref(&ca.cert), crls, name, false).expect("all of it can be used")
    }

    fn now() -> UnixTime {
        // 2030.
        UnixTime::since_unix_epoch(Duration::from_secs(1_893_456_000))
    }

    #[test]
    fn who_is_let_in() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let (ours, other) = (ca(), ca());
        let good = leaf(&ours, "alice", 7, ClientAuth);
        let accepts = |v: &Verifier, cert: &CertificateDer<'_>| v.verify_client_cert(cert, &[], now());
        assert!(accepts(&verifier(&ours, &[], None), &good).is_ok());
        assert!(accepts(&verifier(&other, &[], None), &good).is_err(), "another CA's");
        let server = leaf(&ours, "vpn", 8, ServerAuth);
        assert!(accepts(&verifier(&ours, &[], None), &server).is_err(), "a server's");
        let name = ServerName::try_from("openvpn").expect("a name");
        let as_server = |cert| verifier(&ours, &[], None).verify_server_cert(cert, &[], &name, &[], now());
        assert!(as_server(&server).is_ok());
        assert!(as_server(&good).is_err(), "a client that plays the server");
        for (rule, good_name) in [
            (NameRule::Name("alice".into()), true),
            (NameRule::Name("alic".into()), false),
            (NameRule::Prefix("ali".into()), true),
            (NameRule::Prefix("bob".into()), false),
            (NameRule::Subject("CN=alice".into()), true),
            (NameRule::Subject("CN=bob".into()), false),
        ] {
            assert_eq!(accepts(&verifier(&ours, &[], Some(rule.clone())), &good).is_ok(), good_name, "{rule:?}");
        }
    }

    #[test]
    fn who_is_revoked_is_refused() {
        let ours = ca();
        let cert = leaf(&ours, "alice", 7, ExtendedKeyUsagePurpose::ClientAuth);
        let verdict = |crl| verifier(&ours, &[crl], None).verify_client_cert(&cert, &[], now());
        assert!(verdict(crl(&ours, 9, 2100)).is_ok());
        assert!(matches!(verdict(crl(&ours, 7, 2100)), Err(Error::InvalidCertificate(CertificateError::Revoked))));
        assert!(verdict(crl(&ours, 9, 2025)).is_err(), "a list that has run out says nothing");
    }
}
