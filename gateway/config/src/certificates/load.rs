//! Certificates, keys, OCSP responses, trust anchors and revocation lists: the content of files, checked as far as can be
//! without a connection: it parses, the key belongs to the leaf, the dates are good, nobody else can read the key.

use super::CertificateFiles;
use super::encrypted_key::{self, Undecipherable};
use super::pkcs12::{self, Unopened};
use super::token::{KeyPlace, TokenKey};
use crate::audit;
use crate::decode::At;
use crate::diagnostics::Sink;
use crate::files;
use crate::revocation::Fetching;
use crate::surroundings::{Kind, Unreadable};
use aws_lc_rs::digest::{Context, SHA256};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sealane_route::NamePattern;
use sealane_tls::policy::{Curve, Identities, Identity, KeyKind, PrivateKey, RevocationLists};
use sealane_tls::{crl, ocsp};
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::asn1_rs::{Enumerated, Sequence};
use x509_parser::prelude::{AlgorithmIdentifier, FromDer, GeneralName, X509Certificate};

/// Certificates that end sooner than this are worth a warning.
const SOON: Duration = Duration::from_secs(14 * 86_400);

/// A certificate with its key, and the names it is good for.
#[derive(Debug)]
pub struct Loaded {
    /// The chain and the key.
    pub identity: Arc<Identity>,
    /// DNS names, lower case.
    pub names: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Made here, because an authority has not issued one yet.
    pub self_signed: bool,
    /// What the certificate says about OCSP.
    pub stated: ocsp::Stated,
    /// The SHA-256 digest of the certificate.
    pub digest: [u8; 32],
}

impl Loaded {
    /// Whether it is for a DNS name (lower case) or an IP address.
    pub fn is_for(&self, name: &str) -> bool {
        match name.parse() {
            Ok(address) => self.addresses.contains(&address),
            Err(_) => self.names.iter().any(|n| n == name),
        }
    }

    /// Why it is not valid at a time, in seconds since 1970; `None`: it is valid.
    pub fn not_valid(&self, now: i64) -> Option<NotValid> {
        let (_, leaf) = X509Certificate::from_der(self.identity.chain.first()?).ok()?;
        not_valid(&leaf, now)
    }

    /// From when until when it is valid, in seconds since 1970.
    pub fn validity(&self) -> RangeInclusive<i64> {
        let leaf = self.identity.chain.first().and_then(|leaf| X509Certificate::from_der(leaf).ok());
        let validity =
            leaf.map(|(_, leaf)| leaf.validity().not_before.timestamp()..=leaf.validity().not_after.timestamp());
        validity.unwrap_or(i64::MIN..=i64::MAX)
    }
}

/// Why a certificate is not valid at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotValid {
    /// Its time has not begun.
    Early {
        /// When it begins, in words.
        shown: String,
    },
    /// Its time is over.
    Expired {
        /// For so many seconds.
        ago: i64,
        /// When it ended, in words.
        shown: String,
    },
}

impl std::fmt::Display for NotValid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Early { shown } => write!(f, "the certificate is not valid before {shown}"),
            Self::Expired { ago, shown } => write!(f, "the certificate expired {} ago ({shown})", days(*ago)),
        }
    }
}

fn not_valid(leaf: &X509Certificate, now: i64) -> Option<NotValid> {
    let (from, to) = (leaf.validity().not_before, leaf.validity().not_after);
    if to.timestamp() < now {
        return Some(NotValid::Expired { ago: now - to.timestamp(), shown: to.to_string() });
    }
    (from.timestamp() > now).then(|| NotValid::Early { shown: from.to_string() })
}

/// Loads each pair of files once, however many listeners use it.
pub(crate) struct Store {
    provider: CryptoProvider,
    loaded: HashMap<CertificateFiles, Option<Arc<Loaded>>>,
    now: i64,
    /// How revocation lists are fetched, and those that are to be.
    pub fetching: Fetching,
    /// What stands for every certificate whose file is not read, or not yet.
    placeholder: Option<Arc<Loaded>>,
}

/// A certificate and its key, in place of files that are not read (`sealane check --offline`) or not yet: what is written
/// about them is checked as if they were there.
fn placeholder() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    static MADE: OnceLock<(CertificateDer<'static>, PrivateKeyDer<'static>)> = OnceLock::new();
    let (cert, key) = MADE.get_or_init(|| {
        let key = rcgen::generate_simple_self_signed(vec!["example.com".to_owned()]).expect("the name is a good one");
        (key.cert.der().clone(), PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into()))
    });
    (cert.clone(), key.clone_key())
}

/// A certificate that this program has made, with a key of rcgen's default kind (ECDSA on P-256).
pub(crate) fn generated(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> Identity {
    Identity {
        chain: vec![certificate],
        key: key.into(),
        ocsp: None,
        kind: KeyKind::Ecdsa,
        curve: Some(Curve::P256),
        source: PathBuf::new(),
    }
}

fn placeholder_identity() -> Arc<Loaded> {
    let (cert, key) = placeholder();
    let identity = generated(cert, key);
    // Without names: else two of them would be for the same one.
    Arc::new(Loaded {
        identity: Arc::new(identity),
        names: Vec::new(),
        addresses: Vec::new(),
        self_signed: false,
        stated: ocsp::Stated::default(),
        digest: [0; 32],
    })
}

/// How long a certificate is valid that is served until an authority has issued one: so short that alarms see it.
const SELF_SIGNED: Duration = Duration::from_secs(7 * 86_400);

/// A certificate for a name that nobody but we have signed.
fn self_signed(name: &str, now: i64) -> Option<Loaded> {
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).ok()?;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = Duration::from_secs(u64::try_from(now).unwrap_or(0));
    params.not_before = epoch + now.saturating_sub(Duration::from_secs(86_400));
    params.not_after = epoch + now + SELF_SIGNED;
    let key = rcgen::KeyPair::generate().ok()?;
    let certificate = params.self_signed(&key).ok()?.der().clone();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let identity = generated(certificate.clone(), key);
    let (names, addresses) = match name.parse() {
        Ok(address) => (Vec::new(), vec![address]),
        Err(_) => (vec![name.to_owned()], Vec::new()),
    };
    Some(Loaded {
        digest: sealane_tls::fingerprint(&certificate),
        identity: Arc::new(identity),
        names,
        addresses,
        self_signed: true,
        stated: ocsp::Stated::default(),
    })
}

impl Store {
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        Self {
            provider: rustls::crypto::aws_lc_rs::default_provider(),
            loaded: HashMap::new(),
            now,
            fetching: Fetching::default(),
            placeholder: None,
        }
    }

    /// Loads a certificate chain, its key (in the same file if `key` is `None`), the key's passphrase and an OCSP response.
    /// Reports what is wrong, the first time.
    pub fn load(
        &mut self,
        sink: &Sink,
        cert: &At<PathBuf>,
        key: Option<&At<KeyPlace>>,
        passphrase: Option<&At<PathBuf>>,
        ocsp: Option<&At<PathBuf>>,
    ) -> Option<Arc<Loaded>> {
        let files = CertificateFiles::new(cert, key, passphrase, ocsp);
        let span = key.map_or(&cert.span, |key| &key.span);
        let key = At { value: files.key.clone(), span: span.clone() };
        // Asked for together, so that one round of questions is enough.
        let contents = [Some(cert), Some(&key), passphrase, ocsp].into_iter().flatten();
        let mut there: Vec<bool> = contents.map(|file| sink.content(&file.value).is_some()).collect();
        there.extend(files.token.as_ref().map(|token| sink.token_key(token).is_some()));
        if there.contains(&false) {
            return Some(self.placeholder.get_or_insert_with(placeholder_identity).clone());
        }
        if let Some(known) = self.loaded.get(&files) {
            return known.clone();
        }
        let loaded = match &files.token {
            Some(token) => self.load_with_token(sink, cert, &At { value: &**token, span: key.span }, passphrase, ocsp),
            None => self.load_new(sink, cert, &key, passphrase, ocsp),
        };
        let loaded = loaded.map(Arc::new);
        self.loaded.insert(files, loaded.clone());
        loaded
    }

    /// Loads the certificate that an authority has issued for a name. Where there is none, or none that can be used, it is
    /// one that is made here.
    pub fn load_automatic(&mut self, sink: &Sink, name: &str, file: &Path, span: &Range<usize>) -> Arc<Loaded> {
        let cert = At { value: file.to_path_buf(), span: span.clone() };
        let files = CertificateFiles::new(&cert, None, None, None);
        if let Some(Some(known)) = self.loaded.get(&files) {
            return known.clone();
        }
        let there = sink.kind(file).is_some_and(|kind| kind != Kind::Missing);
        let mut issued = None;
        if there && sink.content(file).is_some() {
            // What is wrong with it is no mistake of the configuration.
            let aside = sink.aside();
            issued = self.load_new(&aside, &cert, &cert, None, None).filter(|l| l.is_for(name));
            if issued.is_none() {
                let (errors, _) = aside.finish();
                let why = errors.first().map_or_else(|| format!("it is not for {name}"), |e| e.message.clone());
                let message = format!("{}: the certificate cannot be used: {why}", file.display());
                sink.warn(
                    span,
                    message,
                    Some("the gateway serves a self-signed certificate until a new certificate is issued".to_owned()),
                );
            }
        }
        let made = || {
            self_signed(name, self.now).map(|mut made| {
                if let Some(identity) = Arc::get_mut(&mut made.identity) {
                    identity.source = file.to_path_buf();
                }
                made
            })
        };
        let loaded = issued.or_else(made).map_or_else(placeholder_identity, Arc::new);
        self.loaded.insert(files, Some(loaded.clone()));
        loaded
    }

    fn load_new(
        &self,
        sink: &Sink,
        cert: &At<PathBuf>,
        key: &At<PathBuf>,
        passphrase: Option<&At<PathBuf>>,
        ocsp: Option<&At<PathBuf>>,
    ) -> Option<Loaded> {
        // Both are tried before giving up, so that two mistakes are two messages.
        let (chain, private) = match bundle_of(sink, cert, key) {
            Some(file) if cert.value == key.value => self.bundle(sink, file, passphrase).unzip(),
            Some(file) => {
                let help = format!("remove \"key\", and set \"cert\" to {}", file.value.display());
                let message =
                    format!("{} is a PKCS#12 bundle, which contains both certificate and key", file.value.display());
                sink.error(&file.span, message, Some(help));
                return None;
            }
            None => (certificates(sink, "certificate", cert), private_key(sink, key, passphrase)),
        };
        let response = match ocsp {
            Some(file) => Some(ocsp_response(sink, file)?),
            None => None,
        };
        let (chain, private) = (chain?, private?);
        self.finish(sink, cert, key, chain, private.into(), response)
    }

    /// Loads a certificate whose key a token has. That the key belongs to the certificate, the answer about the token says.
    fn load_with_token(
        &self,
        sink: &Sink,
        cert: &At<PathBuf>,
        token: &At<&TokenKey>,
        pin: Option<&At<PathBuf>>,
        ocsp: Option<&At<PathBuf>>,
    ) -> Option<Loaded> {
        let chain = certificates(sink, "certificate", cert)?;
        if let Some(pin) = pin {
            passphrase_in(sink, pin, "PIN")?;
        }
        let response = match ocsp {
            Some(file) => Some(ocsp_response(sink, file)?),
            None => None,
        };
        match sink.token_key(token.value)? {
            Ok(key) => {
                let place = At { value: cert.value.clone(), span: token.span.clone() };
                self.finish(sink, cert, &place, chain, PrivateKey::Remote(key.clone()), response)
            }
            Err(Unreadable { why, help }) => {
                let message = format!("the private key {} cannot be used: {why}", token.value.uri);
                sink.error(&token.span, message, help.clone());
                None
            }
        }
    }

    /// Checks a chain with its key.
    fn finish(
        &self,
        sink: &Sink,
        cert: &At<PathBuf>,
        key: &At<PathBuf>,
        chain: Vec<CertificateDer<'static>>,
        private: PrivateKey,
        response: Option<Vec<u8>>,
    ) -> Option<Loaded> {
        let shown = cert.value.display();
        let leaf = match X509Certificate::from_der(&chain[0]) {
            Ok((_, leaf)) => leaf,
            Err(_) => {
                let help = format!(
                    "copy the file again, or look at it with: openssl x509 -in {} -noout -text",
                    files::shell_word(&shown)
                );
                sink.error(&cert.span, format!("{shown}: the first certificate does not parse"), Some(help));
                return None;
            }
        };
        let algorithm = &leaf.public_key().algorithm;
        let (kind, curve) = match algorithm.algorithm.to_id_string().as_str() {
            "1.2.840.10045.2.1" => (KeyKind::Ecdsa, Some(curve_of(sink, cert, algorithm)?)),
            "1.2.840.113549.1.1.1" => (KeyKind::Rsa, None),
            "1.3.101.112" => (KeyKind::Ed25519, None),
            other => match ml_dsa(other) {
                Some((kind, _)) => (kind, None),
                None => {
                    let help = "use ECDSA (P-256 is fastest), RSA, Ed25519 or ML-DSA".to_owned();
                    let message = format!("{shown}: keys with the algorithm {other} are not supported");
                    sink.error(&cert.span, message, Some(help));
                    return None;
                }
            },
        };
        self.check_dates(sink, cert, &leaf);
        if let Some(private) = private.local() {
            self.check_pair(sink, cert, key, &chain, private)?;
        }
        let (names, addresses) = (dns_names(&leaf), addresses(&leaf));
        // Browsers accept one for an address at https://ADDRESS.
        if names.is_empty() && addresses.is_empty() {
            let message = format!("{shown}: the certificate has no DNS name and no IP address (subjectAltName)");
            let help =
                "renew it with a DNS name: without a name, the gateway uses it only as the default certificate, and \
                        browsers do not accept it"
                    .to_owned();
            sink.warn(&cert.span, message, Some(help));
        }
        let (stated, digest) = (ocsp::Stated::by(&leaf), sealane_tls::fingerprint(&chain[0]));
        let identity = Identity { chain, key: private, ocsp: response, kind, curve, source: cert.value.clone() };
        Some(Loaded { digest, identity: Arc::new(identity), names, addresses, self_signed: false, stated })
    }

    /// Opens a PKCS#12 bundle: the chain, and the key.
    fn bundle(
        &self,
        sink: &Sink,
        file: &At<PathBuf>,
        passphrase: Option<&At<PathBuf>>,
    ) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let bytes = files::read(sink, "PKCS#12 bundle", file)?;
        let words = match passphrase {
            Some(passphrase) => passphrase_in(sink, passphrase, "passphrase")?,
            None => &[],
        };
        files::warn_if_readable(sink, file, "bundle with a private key");
        let shown = file.value.display();
        let convert = || {
            let new = format!("{shown}.pem");
            Some(format!(
                "convert it to PEM, and set \"cert\" to the new file: openssl pkcs12 -legacy -nodes -in {} -out {} && {}",
                files::shell_word(&shown),
                files::shell_word(&new),
                files::readable_by_group(&new)
            ))
        };
        let what = "the key of a PKCS#12 bundle is derived outside the FIPS module";
        if audit::outside_module(sink, &file.span, what, &convert().unwrap_or_default()) {
            return None;
        }
        let (message, help) = match pkcs12::open(bytes, words) {
            Ok(bundle) => return Some((self.chain(bundle.certificates, &bundle.key), bundle.key)),
            Err(Unopened::Undecipherable(Undecipherable::WrongPassphrase)) => match passphrase {
                Some(passphrase) => {
                    let words = passphrase.value.display();
                    (format!("{shown}: the passphrase in {words} does not open the PKCS#12 bundle"), None)
                }
                None => {
                    let help = "set \"passphrase_file\" to a file whose first line is the passphrase".to_owned();
                    (format!("{shown}: the PKCS#12 bundle has a passphrase"), Some(help))
                }
            },
            Err(Unopened::Undecipherable(Undecipherable::Unsupported(what))) => {
                (format!("{shown}: the PKCS#12 bundle is protected with {what}, which is not supported"), convert())
            }
            Err(Unopened::Undecipherable(Undecipherable::Malformed)) => {
                let help = "copy or export the bundle again".to_owned();
                (format!("{shown}: the PKCS#12 bundle is damaged (RFC 7292)"), Some(help))
            }
            Err(Unopened::Keys(0)) => (format!("{shown}: the PKCS#12 bundle has no private key"), None),
            Err(Unopened::Keys(count)) => {
                let help = "export each key with its certificate to a bundle of its own".to_owned();
                (format!("{shown}: the PKCS#12 bundle has {count} private keys"), Some(help))
            }
            Err(Unopened::NoCertificate) => (format!("{shown}: the PKCS#12 bundle has no certificate"), None),
        };
        sink.error(&file.span, message, help);
        None
    }

    /// The certificate of a key, then those that have signed it: bundles have them in any order. Without one of this key, all of
    /// them.
    fn chain(
        &self,
        mut all: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'static>,
    ) -> Vec<CertificateDer<'static>> {
        let fits = |certificate: &CertificateDer<'static>| {
            CertifiedKey::from_der(vec![certificate.clone()], key.clone_key(), &self.provider).is_ok()
        };
        let Some(leaf) = all.iter().position(fits) else { return all };
        let mut chain = vec![all.swap_remove(leaf)];
        let names = |der: &CertificateDer<'static>| {
            let (_, parsed) = X509Certificate::from_der(der).ok()?;
            Some((parsed.subject().as_raw().to_vec(), parsed.issuer().as_raw().to_vec()))
        };
        while let Some((subject, issuer)) = chain.last().and_then(names) {
            let next = all.iter().position(|der| names(der).is_some_and(|(subject, _)| subject == issuer));
            let Some(next) = next.filter(|_| subject != issuer) else { break };
            chain.push(all.swap_remove(next));
        }
        chain
    }

    fn check_pair(
        &self,
        sink: &Sink,
        cert: &At<PathBuf>,
        key: &At<PathBuf>,
        chain: &[CertificateDer<'static>],
        private: &PrivateKeyDer<'static>,
    ) -> Option<()> {
        let pair = |leaf: &CertificateDer<'static>| {
            CertifiedKey::from_der(vec![leaf.clone()], private.clone_key(), &self.provider)
        };
        let (shown_cert, shown_key) = (cert.value.display(), key.value.display());
        let Err(e) = pair(&chain[0]) else { return Some(()) };
        if let rustls::Error::InconsistentKeys(_) = e {
            let message = format!("the key {shown_key} does not belong to the certificate {shown_cert}");
            let help = match chain.iter().skip(1).position(|c| pair(c).is_ok()) {
                Some(i) => format!(
                    "it belongs to certificate {} of the file: put that certificate first, then the certificates that signed it",
                    i + 2
                ),
                None => format!(
                    "compare: openssl x509 -in {} -noout -pubkey; openssl pkey -in {} -pubout",
                    files::shell_word(&shown_cert),
                    files::shell_word(&shown_key)
                ),
            };
            sink.error(&key.span, message, Some(help));
        } else {
            let help =
                "use an ECDSA, RSA (2048 bits or more), Ed25519 or ML-DSA key, and a certificate for it".to_owned();
            sink.error(&key.span, format!("{shown_key}: the private key cannot be used: {e}"), Some(help));
        }
        None
    }

    fn check_dates(&self, sink: &Sink, cert: &At<PathBuf>, leaf: &X509Certificate) {
        let (shown, to) = (cert.value.display(), leaf.validity().not_after);
        if let Some(why) = not_valid(leaf, self.now) {
            let help = match why {
                NotValid::Early { .. } => "is this machine's clock right?",
                NotValid::Expired { .. } => "renew the certificate: clients refuse it",
            };
            sink.warn(&cert.span, format!("{shown}: {why}"), Some(help.to_owned()));
        } else if to.timestamp() - self.now < SOON.as_secs() as i64 {
            let message = format!("{shown}: the certificate expires in {} ({to})", days(to.timestamp() - self.now));
            sink.warn(&cert.span, message, Some("renew the certificate before that time".to_owned()));
        }
    }
}

/// The parameter set of ML-DSA with this object identifier, and its name: of a key and of a signature (RFC 9881 §2).
pub(crate) fn ml_dsa(oid: &str) -> Option<(KeyKind, &'static str)> {
    match oid {
        "2.16.840.1.101.3.4.3.17" => Some((KeyKind::MlDsa44, "ML-DSA-44")),
        "2.16.840.1.101.3.4.3.18" => Some((KeyKind::MlDsa65, "ML-DSA-65")),
        "2.16.840.1.101.3.4.3.19" => Some((KeyKind::MlDsa87, "ML-DSA-87")),
        _ => None,
    }
}

/// A duration in days, hours or minutes.
pub(crate) fn days(seconds: i64) -> String {
    match seconds {
        s if s >= 2 * 86_400 => format!("{} days", s / 86_400),
        s if s >= 2 * 3_600 => format!("{} hours", s / 3_600),
        s => format!("{} minutes", s / 60),
    }
}

/// The curve of an ECDSA certificate's key (RFC 5480 §2.1.1.1).
fn curve_of(sink: &Sink, cert: &At<PathBuf>, algorithm: &AlgorithmIdentifier) -> Option<Curve> {
    let named = algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    let named = named.map_or("without a name".to_owned(), |oid| oid.to_id_string());
    match named.as_str() {
        "1.2.840.10045.3.1.7" => Some(Curve::P256),
        "1.3.132.0.34" => Some(Curve::P384),
        "1.3.132.0.35" => Some(Curve::P521),
        other => {
            let message = format!("{}: ECDSA keys on the curve {other} are not supported", cert.value.display());
            sink.error(&cert.span, message, Some("use a key on P-256, P-384 or P-521".to_owned()));
            None
        }
    }
}

/// The IP addresses of a certificate.
fn addresses(leaf: &X509Certificate) -> Vec<IpAddr> {
    let Ok(Some(names)) = leaf.subject_alternative_name() else { return Vec::new() };
    let address = |name: &GeneralName| match name {
        GeneralName::IPAddress(bytes) => address_of(bytes),
        _ => None,
    };
    names.value.general_names.iter().filter_map(address).collect()
}

/// The address of a subjectAltName: 4 or 16 bytes (RFC 5280 §4.2.1.6).
pub fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The DNS names of a certificate, lower case. The common name counts for nothing (RFC 6125 §6.4.4), as in browsers.
fn dns_names(leaf: &X509Certificate) -> Vec<String> {
    let Ok(Some(names)) = leaf.subject_alternative_name() else { return Vec::new() };
    names
        .value
        .general_names
        .iter()
        .filter_map(|n| match n {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

/// The name of a certificate's issuer.
pub(crate) fn issuer(certificate: &CertificateDer<'_>) -> Option<String> {
    X509Certificate::from_der(certificate).ok().map(|(_, leaf)| leaf.issuer().to_string())
}

/// Puts certificates into the tables that handshakes look names up in. `default` are indices into `all`. For their names, those from
/// `preferred` on are preferred to the others.
pub(crate) fn index(all: &[Arc<Loaded>], default: Vec<u32>, preferred: usize) -> Identities {
    let mut out = Identities { default, ..Identities::default() };
    for (i, loaded) in all.iter().enumerate() {
        out.all.push(Arc::clone(&loaded.identity));
        for name in &loaded.names {
            // What no client accepts is no name of ours.
            let Some(pattern) = NamePattern::of_certificate(name) else { continue };
            match out.names.get_mut(&pattern) {
                // A certificate may repeat a name.
                Some(entry) if entry.contains(&(i as u32)) => {}
                Some(entry) if i >= preferred => entry.insert(0, i as u32),
                Some(entry) => entry.push(i as u32),
                None => drop(out.names.insert(pattern, vec![i as u32])),
            }
        }
    }
    out
}

/// Whether some certificate is good for a host's names. A wildcard needs one for the names one label below its suffix;
/// no certificate is for names of any depth.
pub(crate) fn covers(identities: &Identities, pattern: &NamePattern) -> bool {
    let pattern = match pattern {
        NamePattern::AnyDepth(suffix) => &NamePattern::OneLabel(suffix.clone()),
        other => other,
    };
    identities.names.find(&pattern.sample()).is_some()
}

/// All certificates of a PEM file; at least one.
pub(crate) fn certificates(sink: &Sink, what: &str, file: &At<PathBuf>) -> Option<Vec<CertificateDer<'static>>> {
    let Some(content) = sink.content(&file.value) else { return Some(vec![placeholder().0]) };
    let bytes = files::bytes_of(sink, what, file, content)?;
    let shown = file.value.display();
    match CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Some(found),
        Ok(_) => {
            let help = match () {
                () if looks_like_der(bytes) => {
                    format!(
                        "the file looks like DER; convert it to PEM, and name the new file here: openssl x509 -inform der -in {} \
                         -out {}",
                        files::shell_word(&shown),
                        files::shell_word(format!("{shown}.pem"))
                    )
                }
                () => "a PEM file has a line \"-----BEGIN CERTIFICATE-----\"".to_owned(),
            };
            sink.error(&file.span, format!("{shown}: no certificate in this file"), Some(help));
            None
        }
        Err(e) => {
            sink.error(&file.span, format!("{shown}: {}", pem_error(&e)), Some(PEM_HELP.to_owned()));
            None
        }
    }
}

/// Trust anchors: certificates that also serve as such.
pub(crate) fn trust_anchors(sink: &Sink, file: &At<PathBuf>) -> Option<Vec<CertificateDer<'static>>> {
    let found = certificates(sink, "CA file", file)?;
    if sink.content(&file.value).is_none() {
        return Some(found);
    }
    let mut store = rustls::RootCertStore::empty();
    for (i, c) in found.iter().enumerate() {
        if let Err(e) = store.add(c.clone()) {
            let why = match &e {
                rustls::Error::InvalidCertificate(e) => sealane_tls::certificate_problem(e),
                e => e.to_string(),
            };
            let message = format!("{}: certificate {} cannot be a trusted CA: {why}", file.value.display(), i + 1);
            let help = "remove this certificate from the file, or replace it by the certificate of a CA".to_owned();
            sink.error(&file.span, message, Some(help));
            return None;
        }
    }
    Some(found)
}

/// Revocation lists of a PEM or DER file; at least one.
pub(crate) fn revocation_lists(sink: &Sink, file: &At<PathBuf>) -> Option<RevocationLists> {
    lists_of(sink, file, crl::List::read)
}

/// The same for the tunnel, which also takes lists of X.509 version 1, as OpenVPN does.
pub(crate) fn tunnel_revocation_lists(sink: &Sink, file: &At<PathBuf>) -> Option<RevocationLists> {
    lists_of(sink, file, crl::List::read_any_version)
}

/// Reads one list in DER. The error says what is wrong with it, in words.
type ReadList = fn(&[u8]) -> Result<crl::List, String>;

fn lists_of(sink: &Sink, file: &At<PathBuf>, read: ReadList) -> Option<RevocationLists> {
    let Some(content) = sink.content(&file.value) else {
        return Some(RevocationLists { source: file.value.clone(), ..RevocationLists::default() });
    };
    let bytes = files::bytes_of(sink, "revocation list", file, content)?;
    match parse_lists(&file.value, bytes, read) {
        Ok(lists) => Some(lists),
        Err(why) => {
            refuse_lists(sink, file, &why);
            None
        }
    }
}

/// A file of revocation lists is refused.
pub(crate) fn refuse_lists(sink: &Sink, file: &At<PathBuf>, why: &str) {
    let shown = file.value.display();
    let help = format!(
        "get the list again from its CA, and look at it: openssl crl -in {} -noout -text",
        files::shell_word(&shown)
    );
    sink.error(&file.span, format!("{shown}: {why}"), Some(help));
}

/// Reads revocation lists in PEM or DER; at least one. The error says what is wrong, in words.
pub fn parse_revocation_lists(source: &Path, bytes: &[u8]) -> Result<RevocationLists, String> {
    parse_lists(source, bytes, crl::List::read)
}

fn parse_lists(source: &Path, bytes: &[u8], read: ReadList) -> Result<RevocationLists, String> {
    let lists = match CertificateRevocationListDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>() {
        Ok(found) if found.is_empty() && looks_like_der(bytes) => {
            vec![CertificateRevocationListDer::from(bytes.to_vec())]
        }
        Ok(found) if !found.is_empty() => found,
        Ok(_) => return Err("no revocation list in this file".to_owned()),
        Err(e) => return Err(pem_error(&e)),
    };
    let mut out = RevocationLists { source: source.to_path_buf(), ..RevocationLists::default() };
    let mut digest = Context::new(&SHA256);
    for list in lists {
        let about = read(&list).map_err(|why| crl::Unusable(why).to_string())?;
        digest.update(&about.digest);
        out.next_update = [out.next_update, about.next_update].into_iter().flatten().min();
        out.lists.push(list);
    }
    out.digest.copy_from_slice(digest.finish().as_ref());
    Ok(out)
}

/// The private key of a PEM file: PKCS#8, PKCS#1 or SEC1, also under a passphrase.
pub(crate) fn private_key(
    sink: &Sink,
    file: &At<PathBuf>,
    passphrase: Option<&At<PathBuf>>,
) -> Option<PrivateKeyDer<'static>> {
    // Asked for together, so that one round of questions is enough.
    let has_passphrase = passphrase.is_none_or(|passphrase| sink.content(&passphrase.value).is_some());
    let Some(content) = sink.content(&file.value).filter(|_| has_passphrase) else { return Some(placeholder().1) };
    let bytes = files::bytes_of(sink, "private key", file, content)?;
    let shown = file.value.display();
    let encrypted = bytes.windows(9).any(|w| w == b"ENCRYPTED");
    let key = match (PrivateKeyDer::from_pem_slice(bytes), passphrase) {
        (Ok(key), passphrase) => {
            if let Some(passphrase) = passphrase {
                // A file that is not there or has no passphrase is an error all the same.
                passphrase_in(sink, passphrase, "passphrase")?;
                let help = "remove \"passphrase_file\", or encrypt the key".to_owned();
                sink.warn(&passphrase.span, format!("{shown}: the private key is not encrypted"), Some(help));
            }
            key
        }
        (Err(_), Some(passphrase)) if encrypted => decrypted_key(sink, file, bytes, passphrase)?,
        (Err(e), _) => {
            let (message, help) = match e {
                // Also in the old form, whose body is no key in base64.
                _ if encrypted => (
                    format!("{shown}: the private key is encrypted"),
                    Some(format!(
                        "set \"passphrase_file\"; or remove the passphrase, and set \"key\" to the new file: openssl pkey -in {} \
                         -out {} && {}",
                        files::shell_word(&shown),
                        files::shell_word(format!("{shown}.new")),
                        files::readable_by_group(&format!("{shown}.new"))
                    )),
                ),
                pem::Error::NoItemsFound if looks_like_der(bytes) => (
                    format!("{shown}: no private key in PEM form in this file"),
                    Some(format!(
                        "the file looks like DER; convert it to PEM, and set \"key\" to the new file: openssl pkey -inform der -in {} \
                         -out {} && {}",
                        files::shell_word(&shown),
                        files::shell_word(format!("{shown}.pem")),
                        files::readable_by_group(&format!("{shown}.pem"))
                    )),
                ),
                pem::Error::NoItemsFound => {
                    let has_certificate = pem_kinds(bytes).contains(&SectionKind::Certificate);
                    let help = has_certificate.then(|| {
                        "the file contains a certificate; set \"key\" to the file that has \"-----BEGIN PRIVATE KEY-----\""
                            .to_owned()
                    });
                    (format!("{shown}: no private key in this file"), help)
                }
                e => (format!("{shown}: {}", pem_error(&e)), Some(PEM_HELP.to_owned())),
            };
            sink.error(&file.span, message, help);
            return None;
        }
    };
    files::warn_if_readable(sink, file, "private key");
    Some(key)
}

/// The file of a pair that is a PKCS#12 bundle, if one is.
fn bundle_of<'a>(sink: &Sink, cert: &'a At<PathBuf>, key: &'a At<PathBuf>) -> Option<&'a At<PathBuf>> {
    [cert, key].into_iter().find(|file| match sink.content(&file.value) {
        Some(Ok(content)) => pkcs12::is_bundle(&content.bytes),
        _ => false,
    })
}

/// The first line of a text: a passphrase, or a PIN.
pub fn first_line(text: &[u8]) -> &[u8] {
    let line = text.split(|b| *b == b'\n').next().unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// The first line of a file.
fn passphrase_in<'s>(sink: &Sink<'s>, passphrase: &At<PathBuf>, what: &str) -> Option<&'s [u8]> {
    let words = files::read(sink, what, passphrase)?;
    files::warn_if_readable(sink, passphrase, what);
    let words = first_line(words);
    if words.is_empty() {
        let help = format!("the {what} is the first line of the file");
        let message = format!("{}: there is no {what} in this file", passphrase.value.display());
        sink.error(&passphrase.span, message, Some(help));
        return None;
    }
    Some(words)
}

/// Decrypts a key by the first line of a file.
fn decrypted_key(
    sink: &Sink,
    file: &At<PathBuf>,
    bytes: &[u8],
    passphrase: &At<PathBuf>,
) -> Option<PrivateKeyDer<'static>> {
    let words = passphrase_in(sink, passphrase, "passphrase")?;
    let (shown, shown_words) = (file.value.display(), passphrase.value.display());
    // OpenSSL 3 reads old encryptions only with its legacy provider.
    let rewrite = format!(
        "encrypt the key again, and set \"key\" to the new file: openssl pkcs8 -provider legacy -provider default -topk8 -v2 \
         aes-256-cbc -v2prf hmacWithSHA256 -in {} -out {} && {}",
        files::shell_word(&shown),
        files::shell_word(format!("{shown}.new")),
        files::readable_by_group(&format!("{shown}.new"))
    );
    let (message, help) = match encrypted_key::decrypt(bytes, words) {
        Ok(key) => return Some(key),
        Err(Undecipherable::WrongPassphrase) => {
            (format!("{shown}: the passphrase in {shown_words} does not decrypt the private key"), None)
        }
        Err(Undecipherable::Unsupported(what)) => {
            (format!("{shown}: the private key is encrypted with {what}, which is not supported"), Some(rewrite))
        }
        Err(Undecipherable::Malformed) => {
            let help = format!("copy the file again. If OpenSSL can read the key, {rewrite}");
            (format!("{shown}: the encrypted private key cannot be read"), Some(help))
        }
    };
    sink.error(&file.span, message, help);
    None
}

fn pem_kinds(bytes: &[u8]) -> Vec<SectionKind> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes).filter_map(|s| s.ok().map(|(kind, _)| kind)).collect()
}

fn ocsp_response(sink: &Sink, file: &At<PathBuf>) -> Option<Vec<u8>> {
    let bytes = files::read(sink, "OCSP response", file)?;
    if is_successful(bytes) {
        return Some(bytes.to_vec());
    }
    let message = format!("{}: not a successful OCSP response in DER", file.value.display());
    sink.error(
        &file.span,
        message,
        Some("request a response: openssl ocsp -issuer CA -cert CERT -url URL -respout FILE".to_owned()),
    );
    None
}

/// Whether an OCSP response says that the responder has an answer: a SEQUENCE whose first element is the status, 0 for success
/// (RFC 6960 §4.2.1).
fn is_successful(response: &[u8]) -> bool {
    let Ok((_, sequence)) = Sequence::from_der(response) else { return false };
    Enumerated::from_der(&sequence.content).is_ok_and(|(_, status)| status.0 == 0)
}

/// Certificates, keys and lists are a SEQUENCE.
fn looks_like_der(bytes: &[u8]) -> bool {
    Sequence::from_der(bytes).is_ok()
}

/// What to do about a file that is no PEM.
const PEM_HELP: &str = "copy the file again: a PEM file has whole blocks from \"-----BEGIN\" to \"-----END\"";

fn pem_error(e: &pem::Error) -> String {
    match e {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("the file ends before \"{}\"", String::from_utf8_lossy(end_marker))
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("not PEM at \"{}\"", String::from_utf8_lossy(line).trim_end())
        }
        pem::Error::Base64Decode(_) => "broken PEM: the part between BEGIN and END is not base64".to_owned(),
        e => e.to_string(),
    }
}
