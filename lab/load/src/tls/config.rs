//! From options to rustls configurations, one set per thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, SupportedCipherSuite, version};

use sealane_lab_wire::{Trust, TrustError, Verifier, Verify};

use super::tickets::Tickets;

/// The TLS versions that are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersions {
    /// Both; the server chooses.
    Both,
    /// TLS 1.2 alone.
    Tls12,
    /// TLS 1.3 alone.
    Tls13,
}

/// A client certificate: files in PEM.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The chain, leaf first.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The settings of the client's TLS.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// Versions offered.
    pub versions: TlsVersions,
    /// Cipher suites in order of preference; empty for rustls' own list.
    pub suites: Vec<String>,
    /// Key-exchange groups; the first one's share is sent. Empty: X25519, P-256, P-384.
    pub groups: Vec<String>,
    /// ALPN identifiers; `None` for the protocol's own.
    pub alpn: Option<Vec<String>>,
    /// What is verified.
    pub verify: Verify,
    /// A file with the authorities to trust, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate.
    pub identity: Option<ClientIdentity>,
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self {
            versions: TlsVersions::Both,
            suites: Vec::new(),
            groups: Vec::new(),
            alpn: None,
            verify: Verify::Full,
            ca: None,
            identity: None,
        }
    }
}

/// Why the TLS settings cannot be used.
#[derive(Debug)]
pub enum TlsError {
    /// An unknown name; what it names, the name, and those that are known.
    Unknown(&'static str, String, Vec<String>),
    /// A file that cannot be read or holds nothing of use.
    File(PathBuf, String),
    /// The system has no authorities to trust.
    NoRoots(String),
    /// The settings contradict each other.
    Settings(String),
    /// The server's name is neither a DNS name nor an address.
    Name(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(what, name, known) => write!(f, "unknown {what} {name:?}; known: {}", known.join(", ")),
            Self::File(path, why) => write!(f, "{}: {why}", path.display()),
            Self::NoRoots(why) => {
                write!(
                    f,
                    "this system has no trusted authorities ({why}); name a file with --ca or use --verify signature"
                )
            }
            Self::Settings(why) => write!(f, "these TLS settings cannot be combined: {why}"),
            Self::Name(name) => write!(f, "{name:?} is neither a DNS name nor an address"),
        }
    }
}

impl std::error::Error for TlsError {}

impl From<TrustError> for TlsError {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::File(path, why) => Self::File(path, why),
            TrustError::NoRoots(why) => Self::NoRoots(why),
            TrustError::Unusable(why) => Self::Settings(why),
        }
    }
}

/// A thread's TLS client: its configurations and the names it asks for.
#[derive(Debug)]
pub struct Client {
    /// For everything but early data.
    pub ordinary: Arc<ClientConfig>,
    /// The same with early data switched on.
    pub early: Arc<ClientConfig>,
    verifier: Arc<Verifier>,
}

impl Client {
    /// Builds the configurations. Reads files; call it before the run starts.
    pub fn new(options: &TlsOptions, alpn: &[u8]) -> Result<Self, TlsError> {
        let provider = Arc::new(provider(options)?);
        let trust = options.ca.clone().map_or(Trust::System, Trust::CaFile);
        let verifier = Verifier::new(options.verify, &trust, &provider)?.accepting_named(&trust)?;
        let verifier = Arc::new(verifier);
        let versions: &[&rustls::SupportedProtocolVersion] = match options.versions {
            TlsVersions::Both => &[&version::TLS13, &version::TLS12],
            TlsVersions::Tls12 => &[&version::TLS12],
            TlsVersions::Tls13 => &[&version::TLS13],
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|e| TlsError::Settings(e.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone());
        let mut config = match &options.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (certs, key) = identity_files(identity)?;
                builder
                    .with_client_auth_cert(certs, key)
                    .map_err(|e| TlsError::File(identity.cert.clone(), e.to_string()))?
            }
        };
        config.alpn_protocols = match &options.alpn {
            None => vec![alpn.to_vec()],
            Some(list) => list.iter().map(|p| p.clone().into_bytes()).collect(),
        };
        config.resumption = Resumption::store(Arc::new(Tickets)).tls12_resumption(Tls12Resumption::SessionIdOrTickets);
        let mut early = config.clone();
        early.enable_early_data = true;
        Ok(Self { ordinary: Arc::new(config), early: Arc::new(early), verifier })
    }

    /// How many certificates servers have shown: a resumed handshake has none.
    #[inline]
    pub fn certificates_shown(&self) -> u64 {
        self.verifier.shown()
    }

    /// A name as rustls wants it.
    pub fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
        ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name(name.to_owned()))
    }
}

fn provider(options: &TlsOptions) -> Result<CryptoProvider, TlsError> {
    let mut provider = aws_lc_rs::default_provider();
    if !options.suites.is_empty() {
        provider.cipher_suites = options
            .suites
            .iter()
            .map(|name| {
                aws_lc_rs::ALL_CIPHER_SUITES
                    .iter()
                    .copied()
                    .find(|s| suite_key(&suite_name(s)) == suite_key(name))
                    .ok_or_else(|| TlsError::Unknown("cipher suite", name.clone(), suite_names()))
            })
            .collect::<Result<_, _>>()?;
    }
    let groups: Vec<&str> = match options.groups.as_slice() {
        // Named here rather than left to rustls, whose order depends on features that others may switch on.
        [] => vec!["X25519", "secp256r1", "secp384r1"],
        named => named.iter().map(String::as_str).collect(),
    };
    provider.kx_groups = groups
        .iter()
        .map(|name| {
            aws_lc_rs::ALL_KX_GROUPS
                .iter()
                .copied()
                .find(|g| group_key(&group_name(*g)) == group_key(name))
                .ok_or_else(|| TlsError::Unknown("key-exchange group", (*name).to_owned(), group_names()))
        })
        .collect::<Result<_, _>>()?;
    Ok(provider)
}

fn suite_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite())
}

/// The registry writes TLS_AES_…, rustls TLS13_AES_…, people anything between.
fn suite_key(name: &str) -> String {
    let name = name.to_ascii_uppercase().replace('-', "_");
    name.trim_start_matches("TLS13_").trim_start_matches("TLS_").to_owned()
}

fn group_name(group: &dyn SupportedKxGroup) -> String {
    format!("{:?}", group.name())
}

fn group_key(name: &str) -> String {
    match name.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
        "p256" | "prime256v1" => "secp256r1".to_owned(),
        "p384" => "secp384r1".to_owned(),
        other => other.to_owned(),
    }
}

/// The names that `--ciphers` knows.
pub fn suite_names() -> Vec<String> {
    aws_lc_rs::ALL_CIPHER_SUITES.iter().map(suite_name).collect()
}

/// The names that `--groups` knows.
pub fn group_names() -> Vec<String> {
    aws_lc_rs::ALL_KX_GROUPS.iter().map(|g| group_name(*g)).collect()
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certs = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| TlsError::File(path.clone(), e.to_string()))?;
    if certs.is_empty() {
        return Err(TlsError::File(path.clone(), io::Error::other("no certificate in it").to_string()));
    }
    Ok(certs)
}

fn identity_files(
    identity: &ClientIdentity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let key =
        PrivateKeyDer::from_pem_file(&identity.key).map_err(|e| TlsError::File(identity.key.clone(), e.to_string()))?;
    Ok((certificates(&identity.cert)?, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_people_write() {
        let options = TlsOptions {
            suites: vec!["TLS_AES_128_GCM_SHA256".into(), "ecdhe-ecdsa-with-aes-256-gcm-sha384".into()],
            groups: vec!["x25519mlkem768".into(), "P-256".into()],
            verify: Verify::None,
            ..TlsOptions::default()
        };
        let provider = provider(&options).unwrap();
        assert_eq!(provider.cipher_suites.len(), 2);
        assert_eq!(format!("{:?}", provider.kx_groups[0].name()), "X25519MLKEM768");
        assert_eq!(format!("{:?}", provider.kx_groups[1].name()), "secp256r1");
        let bad = TlsOptions { groups: vec!["X448".into()], ..TlsOptions::default() };
        let told = super::provider(&bad).unwrap_err().to_string();
        assert!(told.contains("X448") && told.contains("X25519"), "{told}");
    }
}
