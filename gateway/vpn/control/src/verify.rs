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
use sealane_ovpn::file::NameRule;
use sealane_tls::crl::{OldList, Unusable};
use sealane_tls::{attribute_name, certificate_problem, revocation_list_problem};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy,
};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Name;

/// What a certificate must have beside a good signature.
#[derive(Clone, Debug, Default)]
pub struct Demands {
    /// `verify-x509-name`.
    pub name: Option<NameRule>,
    /// `remote-cert-tls`: it must say what it is for. Without this one that says nothing of its use is good for any.
    pub explicit_usage: bool,
    /// `remote-cert-eku`: it must be for these uses, too. Object identifiers.
    pub extended_usages: Vec<String>,
    /// `remote-cert-ku`: it must have all bits of one of these, numbered as OpenVPN does.
    pub key_usages: Vec<u8>,
    /// `peer-fingerprint`: its SHA-256 must be one of these; empty: any.
    pub fingerprints: Vec<[u8; 32]>,
    /// `verify-hash`: the issuer's certificate must have one of these fingerprints; empty: any.
    pub issuer_fingerprints: Vec<Fingerprint>,
}

/// A certificate's fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fingerprint {
    /// SHA-1, the default of `verify-hash`.
    Sha1([u8; 20]),
    /// SHA-256.
    Sha256([u8; 32]),
}

impl Fingerprint {
    fn is_of(&self, cert: &[u8]) -> bool {
        use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
        match self {
            Self::Sha1(expected) => digest(&SHA1_FOR_LEGACY_USE_ONLY, cert).as_ref() == expected,
            Self::Sha256(expected) => digest(&SHA256, cert).as_ref() == expected,
        }
    }
}

impl Demands {
    /// What a certificate lacks, in words.
    fn lacks(&self, cert: &[u8]) -> Option<&'static str> {
        if !self.fingerprints.is_empty() && !self.fingerprints.iter().any(|f| Fingerprint::Sha256(*f).is_of(cert)) {
            return Some("its fingerprint is not one of the expected fingerprints");
        }
        let Ok((_, parsed)) = X509Certificate::from_der(cert) else { return Some("it cannot be read") };
        if let Ok(PublicKey::RSA(key)) = parsed.public_key().parsed()
            && key.key_size() < MIN_RSA_BITS
        {
            return Some("its RSA key has fewer than 2048 bits");
        }
        let extended = parsed.extended_key_usage().ok().flatten().map(|e| e.value);
        let usages = parsed.key_usage().ok().flatten().map(|e| e.value.flags);
        if self.explicit_usage && (extended.is_none() || usages.is_none()) {
            return Some("it lacks extendedKeyUsage or keyUsage");
        }
        let has = |oid: &String| {
            extended.is_some_and(|e| match oid.as_str() {
                "1.3.6.1.5.5.7.3.1" => e.server_auth,
                "1.3.6.1.5.5.7.3.2" => e.client_auth,
                "1.3.6.1.5.5.7.3.3" => e.code_signing,
                "1.3.6.1.5.5.7.3.4" => e.email_protection,
                "1.3.6.1.5.5.7.3.8" => e.time_stamping,
                "1.3.6.1.5.5.7.3.9" => e.ocsp_signing,
                "2.5.29.37.0" => e.any,
                other => e.other.iter().any(|o| o.to_id_string() == other),
            })
        };
        if !self.extended_usages.iter().all(has) {
            return Some("it is not for the expected use (remote-cert-eku)");
        }
        // The first bit of the certificate's string is OpenVPN's highest.
        let bits = usages.map_or(0, |flags| (flags as u8).reverse_bits());
        if !self.key_usages.is_empty() && !self.key_usages.iter().any(|wanted| bits & wanted == *wanted) {
            return Some("its key is not for the expected use (remote-cert-ku)");
        }
        None
    }
}

/// Why a certificate is refused that is signed well.
#[derive(Debug)]
struct Lacking(&'static str);

impl std::fmt::Display for Lacking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Lacking {}

/// The shortest RSA key whose signatures rustls' provider checks.
const MIN_RSA_BITS: usize = 2048;

/// Checks the peer's certificate.
#[derive(Debug)]
pub struct Verifier {
    roots: Vec<TrustAnchor<'static>>,
    /// The certificates of `roots`, in the same order; empty without `verify-hash`.
    root_certificates: Vec<CertificateDer<'static>>,
    hints: Vec<DistinguishedName>,
    crls: Vec<CertRevocationList<'static>>,
    /// Lists of X.509 version 1.
    old_lists: Vec<OldList>,
    demands: Demands,
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
        demands: Demands,
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
        // A fingerprint pins the certificate; its issuer does not matter.
        if roots.is_empty() && !optional && demands.fingerprints.is_empty() {
            bail!("there is no certificate in the CA's file");
        }
        let root_certificates = match demands.issuer_fingerprints.is_empty() {
            true => Vec::new(),
            false => ca.iter().map(|cert| cert.clone().into_owned()).collect(),
        };
        let (old, crls): (Vec<&Vec<u8>>, Vec<_>) = crls.iter().partition(|der| OldList::is_one(der));
        let read = |der: &Vec<u8>| OldList::read(der, ca).map_err(Unusable);
        let old_lists = old.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let crls = crls.into_iter().map(|der| {
            let crl = OwnedCertRevocationList::from_der(der).map_err(|e| Unusable(revocation_list_problem(der, &e)))?;
            Ok(CertRevocationList::from(crl))
        });
        let crls = crls.collect::<Result<Vec<_>, Unusable>>()?;
        let algorithms = provider.signature_verification_algorithms;
        Ok(Self { roots, root_certificates, hints, crls, old_lists, demands, optional, algorithms })
    }

    fn check(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), Error> {
        let end = EndEntityCert::try_from(cert).map_err(bad)?;
        if self.roots.is_empty() && !self.demands.fingerprints.is_empty() {
            return self.demanded(cert);
        }
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
        let path = end
            .verify_for_usage(self.algorithms.all, &self.roots, intermediates, now, usage, revocation, None)
            .map_err(bad)?;
        self.is_not_listed(cert, now)?;
        path.intermediate_certificates().try_for_each(|cert| self.is_not_listed(&cert.der(), now))?;
        let expected = &self.demands.issuer_fingerprints;
        if !expected.is_empty() {
            let is_expected = |cert: &[u8]| expected.iter().any(|f| f.is_of(cert));
            let good = match path.intermediate_certificates().next() {
                Some(issuer) => is_expected(&issuer.der()),
                None => self.certificates_of(path.anchor()).any(|cert| is_expected(cert)),
            };
            if !good {
                let why = "its issuer's fingerprint is not one of the expected fingerprints (verify-hash)";
                return Err(Error::InvalidCertificate(lacking(why)));
            }
        }
        self.demanded(cert)
    }

    /// Checks what lists of X.509 version 1 say of a certificate of the chain.
    fn is_not_listed(&self, cert: &[u8], now: UnixTime) -> Result<(), Error> {
        if self.old_lists.is_empty() {
            return Ok(());
        }
        let (_, cert) =
            X509Certificate::from_der(cert).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        self.old_lists.iter().try_for_each(|list| list.check(&cert, now)).map_err(Error::InvalidCertificate)
    }

    /// The CA certificates of a trust anchor. A renewed CA may have several.
    fn certificates_of<'a>(&'a self, anchor: &'a TrustAnchor<'_>) -> impl Iterator<Item = &'a CertificateDer<'static>> {
        let all = self.roots.iter().zip(&self.root_certificates);
        all.filter(move |(root, _)| *root == anchor).map(|(_, cert)| cert)
    }

    /// Checks what the demands require of the certificate itself.
    fn demanded(&self, cert: &CertificateDer<'_>) -> Result<(), Error> {
        if self.demands.name.as_ref().is_some_and(|rule| !has_name(cert, rule)) {
            return Err(Error::InvalidCertificate(lacking("its name is not the expected one (verify-x509-name)")));
        }
        match self.demands.lacks(cert) {
            Some(what) => Err(Error::InvalidCertificate(lacking(what))),
            None => Ok(()),
        }
    }
}

/// Why a key exchange failed, also where rustls says it in words of its own.
pub fn in_words(e: &anyhow::Error) -> String {
    use rustls::PeerIncompatible::{
        SignatureAlgorithmsExtensionRequired, SupportedVersionsExtensionRequired, Tls12NotOffered,
        Tls12NotOfferedOrEnabled,
    };
    match e.downcast_ref::<Error>() {
        // A client before TLS 1.2 names no signature algorithms.
        Some(Error::PeerIncompatible(
            SignatureAlgorithmsExtensionRequired
            | SupportedVersionsExtensionRequired
            | Tls12NotOffered
            | Tls12NotOfferedOrEnabled,
        )) => "the peer supports none of the TLS versions that are allowed here (1.2 and 1.3 are possible)".to_owned(),
        Some(Error::InvalidCertificate(why)) => {
            format!("the certificate is not accepted: {}", certificate_problem(why))
        }
        _ => format!("{e:#}"),
    }
}

fn lacking(what: &'static str) -> CertificateError {
    CertificateError::Other(rustls::OtherError(std::sync::Arc::new(Lacking(what))))
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

/// Whether a certificate has the name that a rule demands.
fn has_name(cert: &[u8], rule: &NameRule) -> bool {
    match rule {
        NameRule::Name(name) => common_name(cert).is_some_and(|cn| cn == *name),
        NameRule::Prefix(prefix) => common_name(cert).is_some_and(|cn| cn.starts_with(prefix.as_str())),
        NameRule::Subject(expected) => {
            X509Certificate::from_der(cert).is_ok_and(|(_, c)| subject(c.subject()).is_some_and(|s| s == *expected))
        }
    }
}

/// Formats a subject as OpenVPN does: `C=KR, O=Example, Inc., CN=vpn, emailAddress=a@example.com`. `None` if a value is in
/// neither UTF-8 nor ASCII.
fn subject(name: &X509Name<'_>) -> Option<String> {
    let mut out = String::new();
    for (n, rdn) in name.iter_rdn().enumerate() {
        for (m, attribute) in rdn.iter().enumerate() {
            out.push_str(match (n, m) {
                (0, 0) => "",
                (_, 0) => ", ",
                _ => " + ",
            });
            let oid = attribute.attr_type().to_id_string();
            out.push_str(attribute_name(&oid).unwrap_or(&oid));
            out.push('=');
            for c in attribute.as_str().ok()?.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    c if c.is_ascii_control() => out.push_str(&format!("\\{:02X}", c as u32)),
                    c => out.push(c),
                }
            }
        }
    }
    Some(out)
}

/// A certificate's common name: what a client is known by. `None` when it has none, or one that is not for printing.
pub fn common_name(cert: &[u8]) -> Option<String> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    let name = cert.subject().iter_common_name().last()?.as_str().ok()?;
    let good = !name.is_empty() && name.len() <= 64 && !name.chars().any(|c| c.is_control() || c == '/');
    good.then(|| name.to_owned())
}

/// A certificate's organizational units.
pub fn organizational_units(cert: &[u8]) -> Vec<String> {
    let Ok((_, cert)) = X509Certificate::from_der(cert) else { return Vec::new() };
    let units = cert.subject().iter_organizational_unit();
    units.filter_map(|unit| unit.as_str().ok()).map(str::to_owned).collect()
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
    use sealane_ovpn::file::usage_oid;
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
        let demands = Demands { name, ..Demands::default() };
        Verifier::new(&provider, std::slice::from_ref(&ca.cert), crls, demands, false).expect("all of it can be used")
    }

    #[test]
    fn what_a_profile_demands_is_looked_for() {
        use ExtendedKeyUsagePurpose::{CodeSigning, ServerAuth};
        let ours = ca();
        let key = KeyPair::generate().expect("a key");
        let made = |extended: Vec<ExtendedKeyUsagePurpose>, usages: Vec<KeyUsagePurpose>| {
            let mut params = named("vpn");
            (params.extended_key_usages, params.key_usages) = (extended, usages);
            params.signed_by(&key, &ours.issuer).expect("signed").der().clone()
        };
        let good = made(vec![ServerAuth, CodeSigning], vec![KeyUsagePurpose::DigitalSignature]);
        let bare = made(vec![], vec![]);
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &good);
        let fingerprint: [u8; 32] = digest.as_ref().try_into().expect("32 bytes");
        let oid = |name| usage_oid(name).expect("a usage");
        let none = Demands::default;
        for (demands, good_one, bare_one) in [
            (none(), true, true),
            (Demands { explicit_usage: true, ..none() }, true, false),
            (Demands { extended_usages: vec![oid("serverAuth"), oid("Code Signing")], ..none() }, true, false),
            (Demands { extended_usages: vec![oid("1.3.6.1.5.5.7.3.2")], ..none() }, false, false),
            (Demands { key_usages: vec![0x20, 0x80], ..none() }, true, false),
            (Demands { key_usages: vec![0xa0], ..none() }, false, false),
            (Demands { fingerprints: vec![[0; 32], fingerprint], ..none() }, true, false),
        ] {
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            let shown = format!("{demands:?}");
            let verifier = Verifier::new(&provider, std::slice::from_ref(&ours.cert), &[], demands, false);
            let verifier = verifier.expect("all of it can be used");
            let name = ServerName::try_from("openvpn").expect("a name");
            let accepts = |cert| verifier.verify_server_cert(cert, &[], &name, &[], now()).is_ok();
            assert_eq!((accepts(&good), accepts(&bare)), (good_one, bare_one), "{shown}");
        }
    }

    #[test]
    fn a_short_rsa_key_is_named() {
        use base64::Engine as _;
        // openssl req -x509 -newkey rsa:1024 -nodes -subj /CN=short
        let text = "\
            MIIB/DCCAWWgAwIBAgIUAhxm004FoGIyE81kq1A8URs5rRswDQYJKoZIhvcNAQELBQAwEDEOMAwGA1UEAwwFc2hvcnQwHhcNMjYxMTIyMTIwNTEy\
            WhcNMzYxMTE5MTIwNTEyWjAQMQ4wDAYDVQQDDAVzaG9ydDCBnzANBgkqhkiG9w0BAQEFAAOBjQAwgYkCgYEAw37dqu3/3/+umgvbV9S/9nUJux6a\
            rR204tM8glkAGOhmonx83vDGN6khytmEO6mDi0hy7cVYYNdP7/LzVaN4G9Qddor+b3/CPhOItnSuC35BGIRHpZCebtCnobFmyoBQbRTPQjzozzBy\
            VF3l59tlb+ImqvrQcfd9moUrdPz7cPMCAwEAAaNTMFEwHQYDVR0OBBYEFFKikrdKKOpZH8qVfoYGP3CyzPx5MB8GA1UdIwQYMBaAFFKikrdKKOpZ\
            H8qVfoYGP3CyzPx5MA8GA1UdEwEB/wQFMAMBAf8wDQYJKoZIhvcNAQELBQADgYEAHQTYo3uL3NGQ8FUjsLOMSnWVX9xsyXplk9ELTKJb7xl8LQUY\
            vkBz7/mt1TqwpTofYsCkt/Dyu6uMyM4uh4yKW7tngkqP3oevEnLQjElCoCH7Lu02zPJAkTKjbzvV2eKmNYNj+udZTvIt4h2TXJz9oFtjsoi0fKmo\
            t/T81uWmebg=\
            ";
        let der = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
        assert!(Demands::default().lacks(&der).is_some_and(|why| why.contains("2048 bits")));
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
