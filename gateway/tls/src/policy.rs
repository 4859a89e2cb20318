//! What control says about TLS: plain, immutable data that every lane turns into its own rustls configurations.
//!
//! Control fills these (from a checked configuration file), publishes them in a snapshot, and never touches them
//! again. A lane builds from them, lazily and for itself, so that no key, configuration or reference count is shared
//! between lanes.

use crate::remote::RemoteKey;
use crate::transparency::LogList;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use sealane_route::proxies::TrustedProxies;
use sealane_route::{NameMap, NamePattern, SiteMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroize;

/// A TLS protocol version that may be negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// TLS 1.2 (RFC 5246).
    Tls12,
    /// TLS 1.3 (RFC 8446).
    Tls13,
}

impl Version {
    /// Its name in logs and headers: `TLSv1.3`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls12 => "TLSv1.2",
            Self::Tls13 => "TLSv1.3",
        }
    }
}

/// A key-exchange group, in the names of the IANA registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Hybrid post-quantum ML-KEM-768 with X25519.
    X25519MlKem768,
    /// Hybrid post-quantum ML-KEM-768 with P-256.
    Secp256r1MlKem768,
    /// ML-KEM-768 alone (FIPS 203).
    MlKem768,
    /// ML-KEM-1024 alone (FIPS 203).
    MlKem1024,
    /// Curve25519 (RFC 7748).
    X25519,
    /// NIST P-256.
    Secp256r1,
    /// NIST P-384.
    Secp384r1,
}

impl Group {
    /// Whether the key exchange withstands a quantum computer. All such groups need TLS 1.3.
    pub fn is_post_quantum(self) -> bool {
        matches!(self, Self::X25519MlKem768 | Self::Secp256r1MlKem768 | Self::MlKem768 | Self::MlKem1024)
    }
}

/// A cipher suite, in the names of the IANA registry without the `TLS_` prefix.
#[allow(missing_docs, non_camel_case_types, reason = "these are the registry's names, and say all there is")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    TLS13_AES_128_GCM_SHA256,
    TLS13_AES_256_GCM_SHA384,
    TLS13_CHACHA20_POLY1305_SHA256,
    ECDHE_ECDSA_AES_128_GCM_SHA256,
    ECDHE_ECDSA_AES_256_GCM_SHA384,
    ECDHE_ECDSA_CHACHA20_POLY1305_SHA256,
    ECDHE_RSA_AES_128_GCM_SHA256,
    ECDHE_RSA_AES_256_GCM_SHA384,
    ECDHE_RSA_CHACHA20_POLY1305_SHA256,
}

/// One certificate chain with its key, already checked to belong together.
#[derive(Debug)]
pub struct Identity {
    /// Leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's private key.
    pub key: PrivateKey,
    /// An OCSP response to staple (DER), if there is one.
    pub ocsp: Option<Vec<u8>>,
    /// What the leaf's public key is, to choose between several identities of one name.
    pub kind: KeyKind,
    /// The curve of an ECDSA key; `None` for every other kind of key.
    pub curve: Option<Curve>,
    /// Where it came from, for messages.
    pub source: PathBuf,
}

/// A private key: here, or held elsewhere.
#[derive(Debug)]
pub enum PrivateKey {
    /// The key itself.
    Local(PrivateKeyDer<'static>),
    /// A token has it.
    Remote(Arc<dyn RemoteKey>),
}

impl From<PrivateKeyDer<'static>> for PrivateKey {
    fn from(key: PrivateKeyDer<'static>) -> Self {
        Self::Local(key)
    }
}

impl PrivateKey {
    /// The same key.
    pub fn clone_key(&self) -> Self {
        match self {
            Self::Local(key) => Self::Local(key.clone_key()),
            Self::Remote(key) => Self::Remote(key.clone()),
        }
    }

    /// The key, where it is not held elsewhere.
    pub fn local(&self) -> Option<&PrivateKeyDer<'static>> {
        match self {
            Self::Local(key) => Some(key),
            Self::Remote(_) => None,
        }
    }

    /// Whether it is held elsewhere.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }
}

/// The kind of a certificate's public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// ECDSA on P-256, P-384 or P-521.
    Ecdsa,
    /// RSA, any size.
    Rsa,
    /// Ed25519.
    Ed25519,
    /// ML-DSA-44 (FIPS 204), for TLS 1.3 only.
    MlDsa44,
    /// ML-DSA-65 (FIPS 204), for TLS 1.3 only.
    MlDsa65,
    /// ML-DSA-87 (FIPS 204), for TLS 1.3 only.
    MlDsa87,
}

impl KeyKind {
    /// Whether signatures cost little CPU time.
    pub fn is_cheap(self) -> bool {
        matches!(self, Self::Ecdsa | Self::Ed25519)
    }

    /// Whether it is ML-DSA: signatures that withstand a quantum computer, for which TLS 1.2 has no cipher suites.
    pub fn is_ml_dsa(self) -> bool {
        matches!(self, Self::MlDsa44 | Self::MlDsa65 | Self::MlDsa87)
    }
}

/// The curve of an ECDSA key. In TLS 1.3 each signature scheme of ECDSA has one curve (RFC 8446 §4.2.3), in TLS 1.2 only a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256.
    P256,
    /// NIST P-384.
    P384,
    /// NIST P-521.
    P521,
}

/// Every certificate of a listener, found by server name.
#[derive(Debug, Default)]
pub struct Identities {
    /// All of them, each once.
    pub all: Vec<Arc<Identity>>,
    /// The certificates' DNS names, to indices into `all` (ECDSA and RSA side by side).
    pub names: NameMap<Vec<u32>>,
    /// Used for no or unknown SNI. Empty: such a client gets `unrecognized_name`.
    pub default: Vec<u32>,
    /// A certificate may be ordered for a name that is in none of them.
    pub on_demand: bool,
}

/// Whether clients must show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// Asked for; a client without one is served.
    Optional,
    /// A client without one is refused.
    Require,
}

/// A name that the certificate of a client may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// A DNS name (subjectAltName).
    Dns(NamePattern),
    /// This URI (subjectAltName), compared byte by byte.
    Uri(String),
    /// A URI that begins with this text, which ends with a slash, and goes on with path segments.
    UriBelow(String),
    /// This mailbox (subjectAltName), compared byte by byte.
    Email(String),
    /// This common name, where the subject has no other.
    CommonName(String),
    /// The subject as a whole, as [`distinguished_name`](crate::distinguished_name) writes it.
    Subject(String),
    /// The same of the authority that has issued it.
    Issuer(String),
    /// Every certificate, whatever its names are.
    Any,
}

impl std::fmt::Display for ClientName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dns(pattern) => write!(f, "dns:{pattern}"),
            Self::Uri(uri) => write!(f, "uri:{uri}"),
            Self::UriBelow(start) => write!(f, "uri:{start}*"),
            Self::Email(address) => write!(f, "email:{address}"),
            Self::CommonName(name) => write!(f, "cn:{name}"),
            Self::Subject(name) => write!(f, "subject:{name}"),
            Self::Issuer(name) => write!(f, "issuer:{name}"),
            Self::Any => f.write_str("any"),
        }
    }
}

/// What becomes of certificates whose revocation list has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpiredLists {
    /// The list is used until there is a newer one.
    #[default]
    Accept,
    /// They are refused until there is a newer list.
    Refuse,
}

/// The revocation lists of one file, or of one URL.
#[derive(Debug, Default)]
pub struct RevocationLists {
    /// The file; of a URL, the one that what was fetched is kept in.
    pub source: PathBuf,
    /// The lists; empty where none has been fetched yet.
    pub lists: Vec<CertificateRevocationListDer<'static>>,
    /// A digest of who is revoked: the same after a new list that revokes nobody else.
    pub digest: [u8; 32],
    /// When the first of the lists expires, in seconds since 1970.
    pub next_update: Option<u64>,
}

/// How it is checked whether certificates are revoked.
#[derive(Clone, Debug, Default)]
pub struct Revocation {
    /// Empty means that it is not checked.
    pub sources: Vec<Arc<RevocationLists>>,
    /// What becomes of certificates whose list has expired.
    pub expired: ExpiredLists,
    /// What the policy's id is made of besides the lists.
    pub rules: [u8; 16],
}

impl Revocation {
    /// All lists.
    pub(crate) fn lists(&self) -> impl Iterator<Item = CertificateRevocationListDer<'static>> {
        self.sources.iter().flat_map(|source| source.lists.iter().cloned())
    }

    /// Whether there must be lists and is none, so that every certificate is refused.
    pub(crate) fn is_missing(&self) -> bool {
        !self.sources.is_empty() && self.sources.iter().all(|source| source.lists.is_empty())
    }

    /// When what was verified by these lists is to be verified again, in seconds since 1970.
    pub(crate) fn end(&self) -> Option<u64> {
        match self.expired {
            ExpiredLists::Accept => None,
            ExpiredLists::Refuse => self.sources.iter().filter_map(|source| source.next_update).min(),
        }
    }
}

/// How client certificates are checked.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    /// Optional or required.
    pub mode: ClientAuthMode,
    /// A certificate is accepted if it satisfies the rule of one of them; never empty.
    pub authorities: Vec<ClientAuthority>,
    /// How long a client may resume sessions after its certificate was verified.
    pub reauthenticate_after: Duration,
}

/// The certificates of clients that some authorities have signed, and which of them are accepted.
#[derive(Clone, Debug)]
pub struct ClientAuthority {
    /// Trust anchors.
    pub roots: Vec<CertificateDer<'static>>,
    /// Whether certificates are revoked.
    pub revocation: Revocation,
    /// The names of which a certificate must have one; empty means that every certificate of the authorities is accepted.
    pub names: Vec<ClientName>,
    /// The most intermediate certificates that a client may send; [`MAX_DEPTH`]: any number.
    pub depth: u8,
}

/// The most intermediate certificates that webpki accepts in a chain.
pub const MAX_DEPTH: u8 = 6;

/// TLS settings that apply to all the names of a listener, or to those listed for a policy.
#[derive(Clone, Debug)]
pub struct ServerPolicy {
    /// Unique among all policies of a snapshot and stable over reloads while what matters for resumption is the same:
    /// ticket keys are derived from it, so a ticket of one policy is worthless under another.
    pub id: [u8; 16],
    /// For messages and metrics.
    pub name: String,
    /// In order of preference, newest first; never empty.
    pub versions: Vec<Version>,
    /// In order of preference; never empty.
    pub groups: Vec<Group>,
    /// In order of preference; never empty.
    pub suites: Vec<Suite>,
    /// Protocols for ALPN in order of preference, e.g. `http/1.1`.
    pub alpn: Vec<Vec<u8>>,
    /// Certificates by name.
    pub identities: Arc<Identities>,
    /// TLS 1.3 tickets sent after a full handshake (0 switches resumption off).
    pub tickets: u8,
    /// Resumption by stateless tickets (TLS 1.2 and 1.3) and stateful sessions.
    pub resumption: bool,
    /// Most bytes of 0-RTT data accepted, as configured; 0 is off. [`ServerPolicy::early_data`] says what holds.
    pub max_early_data: u32,
    /// Client certificates, if asked for.
    pub client_auth: Option<ClientAuth>,
    /// `dangerous_key_log`: where secrets are written.
    pub dangerous_key_log: Option<KeyLogRules>,
}

/// To which file secrets are written (in NSS format), and whose.
#[derive(Clone, Debug)]
pub struct KeyLogRules {
    /// Lines are appended to it.
    pub file: PathBuf,
    /// The addresses of the clients; none: all clients.
    pub clients: TrustedProxies,
}

impl KeyLogRules {
    /// Whether the secrets of connections with a client are written.
    pub fn includes(&self, client: IpAddr) -> bool {
        self.clients.is_empty() || self.clients.contains(client)
    }
}

impl ServerPolicy {
    /// Most bytes of 0-RTT data accepted; 0 is off. When on, sessions are stateful and single-use.
    ///
    /// It is off where a client certificate is asked for: early data comes before the client has shown that it holds
    /// the certificate's key.
    pub fn early_data(&self) -> u32 {
        if self.resumption && self.client_auth.is_none() { self.max_early_data } else { 0 }
    }
}

/// The TLS policies of one listener: the default, and others by server name (other client-certificate rules, say).
#[derive(Clone, Debug)]
pub struct ListenerTls {
    /// All policies; index 0 is the default.
    pub policies: Vec<Arc<ServerPolicy>>,
    /// Which policy a server name has, and which requests may follow under it.
    pub sites: Arc<SiteMap>,
}

/// How we connect to a TLS upstream.
#[derive(Clone, Debug)]
pub struct ClientPolicy {
    /// Unique among the client policies of a snapshot.
    pub id: [u8; 16],
    /// In order of preference, newest first; never empty.
    pub versions: Vec<Version>,
    /// In order of preference; never empty.
    pub groups: Vec<Group>,
    /// In order of preference; never empty.
    pub suites: Vec<Suite>,
    /// Protocols for ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// The name sent as SNI and checked against the certificate (a DNS name or an IP address).
    pub server_name: String,
    /// Trust anchors (DER). Ignored when verification is off.
    pub roots: Vec<CertificateDer<'static>>,
    /// Whether certificates are revoked. Ignored when verification is off.
    pub revocation: Revocation,
    /// The logs of which some must have the certificate. Ignored when verification is off.
    pub logs: Option<Arc<LogList>>,
    /// `dangerous_skip_verification`: accept any certificate.
    pub dangerous_skip_verification: bool,
    /// Our own certificate, where the upstream asks for one.
    pub identity: Option<Arc<Identity>>,
    /// Whether sessions are resumed.
    pub resumption: bool,
}

/// The rotating secret from which every lane derives its ticket keys. Control makes a new epoch by time and publishes
/// it; tickets of the previous epoch are still read.
#[derive(Clone)]
pub struct TicketKeys {
    /// Counts rotations; newest first in `masters`.
    pub epoch: u64,
    /// Newest first; the first seals, all open. Each 32 random bytes.
    pub masters: Vec<[u8; 32]>,
    /// How long a ticket is good for, in seconds.
    pub lifetime: u32,
    /// For QUIC's stateless resets. It outlives rotations: a peer may be told after days that its connection is gone.
    pub reset: [u8; 32],
}

impl Drop for TicketKeys {
    fn drop(&mut self) {
        self.masters.zeroize();
        self.reset.zeroize();
    }
}

impl std::fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the keys.
        f.debug_struct("TicketKeys").field("epoch", &self.epoch).field("masters", &self.masters.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_early_data_where_a_client_certificate_is_asked_for() {
        let policy = |resumption, mode: Option<ClientAuthMode>| ServerPolicy {
            id: [1; 16],
            name: "a test".to_owned(),
            versions: vec![Version::Tls13],
            groups: vec![Group::X25519],
            suites: vec![Suite::TLS13_AES_128_GCM_SHA256],
            alpn: Vec::new(),
            identities: Arc::default(),
            tickets: 2,
            resumption,
            max_early_data: 1000,
            client_auth: mode.map(|mode| ClientAuth {
                mode,
                authorities: Vec::new(),
                reauthenticate_after: Duration::from_secs(3600),
            }),
            dangerous_key_log: None,
        };
        assert_eq!(policy(true, None).early_data(), 1000);
        assert_eq!(policy(true, Some(ClientAuthMode::Optional)).early_data(), 0);
        assert_eq!(policy(true, Some(ClientAuthMode::Require)).early_data(), 0);
        assert_eq!(policy(false, None).early_data(), 0, "early data comes with resumption");
    }
}
