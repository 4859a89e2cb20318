//! A `ClientHello` that fits into a SYN: which key share it carries.
//!
//! A SYN takes 1420 bytes over IPv4, 1400 over IPv6. rustls' default hello carries a hybrid post-quantum share (1216
//! bytes) *and* the X25519 share that is its second half, and is some 1450 bytes long. What fits, and gives up no safety:
//!
//! - Without a ticket, the hybrid share alone, with trimmed lists: TLS 1.3 only, no curves but X25519 (offered without a
//!   share), and the signature schemes that are in use. A server that cannot do the hybrid asks for X25519 by a
//!   HelloRetryRequest; that is remembered, and the next hello begins with it. That leaves room for a name of 37 bytes
//!   over IPv4 (22 with ALPN `http/1.1`) and 17 over IPv6; longer ones are connected to in sequence.
//! - With a ticket, no ML-KEM: ticket and early data take the room. The ticket's secret goes into the new keys
//!   (psk_dhe_ke, RFC 8446 §2.2), so what is recorded today stays safe from tomorrow's computers if the first handshake
//!   was hybrid. (A server that does not take the ticket makes that one handshake with X25519 alone.)
//!
//! A client's configurations, the ordinary one and those for SYNs, need the same verifier: rustls resumes a session only
//! under the verifier that saw the certificate.

use rustls::SupportedProtocolVersion;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::aws_lc_rs::kx_group::X25519MLKEM768;
use rustls::crypto::{ActiveKeyExchange, CryptoProvider, SharedSecret, SupportedKxGroup};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, NamedGroup, ProtocolVersion, SignatureScheme};
use std::cell::Cell;
use std::sync::Arc;

/// What a hello that travels in a SYN offers.
#[derive(Debug)]
pub struct Offer {
    /// Suites and groups.
    pub provider: CryptoProvider,
    /// TLS versions.
    pub versions: Vec<&'static SupportedProtocolVersion>,
    /// Lists are shorter than the ordinary ones: a server that needs what is left out refuses with an alert, and is to
    /// be connected to as ever.
    pub trimmed: bool,
}

/// What to offer, out of what is offered ordinarily. Nothing is trimmed where there is no hybrid share to make room for.
pub fn offer(ordinary: &CryptoProvider, versions: &[&'static SupportedProtocolVersion]) -> Offer {
    let hybrid = ordinary.kx_groups.first().is_some_and(|g| g.name() == NamedGroup::X25519MLKEM768);
    if !hybrid || !versions.contains(&&TLS13) {
        return Offer { provider: ordinary.clone(), versions: versions.to_vec(), trimmed: false };
    }
    let mut provider = ordinary.clone();
    provider.cipher_suites.retain(|s| s.tls13().is_some());
    provider.kx_groups.retain(|g| g.name() == NamedGroup::X25519);
    provider.kx_groups.insert(0, &HybridAlone);
    Offer { provider, versions: vec![&TLS13], trimmed: true }
}

/// The verifier for both configurations. It asks for fewer signature schemes while a hello for a SYN is made.
pub fn verifier(inner: Arc<dyn ServerCertVerifier>) -> Arc<dyn ServerCertVerifier> {
    Arc::new(FewerSchemes { inner })
}

/// Makes a session whose hello is to travel in a SYN: `make` calls rustls' constructor. It offers fewer signature schemes only if the
/// hello is `trimmed`, because only then a refusal leads to the whole hello.
pub fn make<T>(trimmed: bool, make: impl FnOnce() -> T) -> T {
    MAKING.set(trimmed);
    let made = make();
    MAKING.set(false);
    made
}

/// Suites and groups for hellos with a ticket.
pub fn with_ticket(ordinary: &CryptoProvider) -> CryptoProvider {
    let mut provider = ordinary.clone();
    if provider.kx_groups.iter().any(|g| g.name() == NamedGroup::X25519) {
        // The groups for TLS 1.3 alone are those with ML-KEM, whose shares leave no room for a ticket.
        provider.kx_groups.retain(|g| g.usable_for_version(ProtocolVersion::TLSv1_2));
    }
    provider
}

/// The session store for hellos with a ticket: what is kept is kept in `inner`, save which group the server took. It was
/// not asked for the hybrid.
pub fn sessions(inner: Arc<dyn ClientSessionStore>) -> Arc<dyn ClientSessionStore> {
    Arc::new(WithoutHints { inner })
}

/// Whether there is a ticket for a server.
pub fn has_ticket(sessions: &dyn ClientSessionStore, server: &ServerName<'static>) -> bool {
    // Stores hand out the newest first, so that what is put back is in its place.
    let ticket = sessions.take_tls13_ticket(server);
    let has = ticket.is_some();
    if let Some(ticket) = ticket {
        sessions.insert_tls13_ticket(server.clone(), ticket);
    }
    has
}

/// X25519MLKEM768 whose second half is not sent once more by itself.
#[derive(Debug)]
struct HybridAlone;

impl SupportedKxGroup for HybridAlone {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(WithoutComponent(X25519MLKEM768.start()?)))
    }

    fn name(&self) -> NamedGroup {
        X25519MLKEM768.name()
    }

    fn fips(&self) -> bool {
        X25519MLKEM768.fips()
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        X25519MLKEM768.usable_for_version(version)
    }
}

/// Hides `hybrid_component`, by which rustls finds the second half.
struct WithoutComponent(Box<dyn ActiveKeyExchange>);

impl ActiveKeyExchange for WithoutComponent {
    fn complete(self: Box<Self>, peer_pub_key: &[u8]) -> Result<SharedSecret, Error> {
        self.0.complete(peer_pub_key)
    }

    fn pub_key(&self) -> &[u8] {
        self.0.pub_key()
    }

    fn group(&self) -> NamedGroup {
        self.0.group()
    }
}

thread_local! {
    static MAKING: Cell<bool> = const { Cell::new(false) };
}

/// What nearly every certificate of today is signed with.
const SCHEMES: &[SignatureScheme] = &[
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
];

#[derive(Debug)]
struct FewerSchemes {
    inner: Arc<dyn ServerCertVerifier>,
}

impl ServerCertVerifier for FewerSchemes {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.inner.supported_verify_schemes();
        if MAKING.get() && schemes.iter().any(|s| SCHEMES.contains(s)) {
            schemes.retain(|s| SCHEMES.contains(s));
        }
        schemes
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.inner.root_hint_subjects()
    }
}

#[derive(Debug)]
struct WithoutHints {
    inner: Arc<dyn ClientSessionStore>,
}

impl ClientSessionStore for WithoutHints {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.inner.set_tls12_session(server_name, value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.inner.tls12_session(server_name)
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.inner.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.inner.insert_tls13_ticket(server_name, value);
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.inner.take_tls13_ticket(server_name)
    }
}
