//! Files that the run makes: a CA, and certificates, password files and revocation lists in the place of those that the
//! configuration names and that are not here.

use crate::words::is_dns_name;
use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PKCS_RSA_SHA256, RsaKeySize, SanType, SerialNumber,
};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The user in password files that the run makes.
pub const USER: &str = "compare";
/// The hash of its password: bcrypt, which all three programs read.
pub const HASH: &str = "$2y$04$Q0mparec0mparec0mpare.y71WKB811rBdXFULB5x9tZoNKmlQ.oy";
/// What a client sends with its name and password.
pub const CREDENTIALS: &str = "Basic Y29tcGFyZTpjb21wYXJl";

/// The name of clients in their certificates.
const CLIENT: &str = "client.compare.invalid";

/// A certificate with its key.
pub struct Identity {
    /// The certificate's chain.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key.
    pub key: PrivateKeyDer<'static>,
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// A certificate authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> anyhow::Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Certificate and key as PEM.
    fn issue(&self, names: &[String], addresses: &[IpAddr], key: &KeyPair) -> anyhow::Result<(String, Vec<u8>)> {
        let first = names.iter().find(|n| is_name(n)).cloned();
        self.issue_for(&first.unwrap_or_else(|| "compare.invalid".to_owned()), names, addresses, key)
    }

    /// The same, with a common name that may be any.
    fn issue_for(
        &self,
        name: &str,
        names: &[String],
        addresses: &[IpAddr],
        key: &KeyPair,
    ) -> anyhow::Result<(String, Vec<u8>)> {
        let valid = |n: &&String| is_name(n);
        let mut params = CertificateParams::new(names.iter().filter(valid).cloned().collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, name.chars().take(64).collect::<String>());
        params.subject_alt_names.extend(addresses.iter().map(|a| SanType::IpAddress(*a)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(key, &self.issuer)?;
        Ok((certificate.pem(), certificate.der().to_vec()))
    }

    /// A client with this subject.
    fn client(&self, subject: &[(DnType, String)]) -> anyhow::Result<Identity> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(vec![CLIENT.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        subject.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), value.as_str()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let der = params.signed_by(&key, &self.issuer)?.der().to_vec();
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        Ok(Identity { chain: vec![der.into()], key })
    }

    fn identity(&self, names: &[String], addresses: &[IpAddr]) -> anyhow::Result<Identity> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let (_, der) = self.issue(names, addresses, &key)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        Ok(Identity { chain: vec![der.into()], key })
    }
}

/// The parts of a subject, as they are in a certificate. `None`: not in the form of RFC 4514, or with parts for which none is made.
fn subject(text: &str) -> Option<Vec<(DnType, String)>> {
    if text.contains(['\\', '+', '"', '#', ';']) {
        return None;
    }
    let mut out: Vec<(DnType, String)> = Vec::new();
    for part in text.split(',').rev() {
        let (kind, value) = part.split_once('=')?;
        let kind = match kind {
            "CN" => DnType::CommonName,
            "O" => DnType::OrganizationName,
            "OU" => DnType::OrganizationalUnitName,
            "C" => DnType::CountryName,
            "L" => DnType::LocalityName,
            "ST" => DnType::StateOrProvinceName,
            _ => return None,
        };
        if value.is_empty() || out.iter().any(|(k, _)| *k == kind) {
            return None;
        }
        out.push((kind, value.to_owned()));
    }
    Some(out)
}

/// The same common name, in another organization.
fn namesake(parts: &[(DnType, String)]) -> Vec<(DnType, String)> {
    let other = (DnType::OrganizationName, "another subject".to_owned());
    std::iter::once(other).chain(parts.iter().filter(|(kind, _)| *kind == DnType::CommonName).cloned()).collect()
}

/// Whether a certificate may have a name.
fn is_name(name: &str) -> bool {
    is_dns_name(name.strip_prefix("*.").unwrap_or(name))
}

/// The files of a run.
pub struct Files {
    folder: PathBuf,
    authority: Authority,
    /// All certificates have this key, or the next one.
    rsa: KeyPair,
    ecdsa: KeyPair,
    /// For each path that is not here: what takes its place.
    made: BTreeMap<PathBuf, PathBuf>,
    /// For each path that is here: the changed copy.
    copies: BTreeMap<PathBuf, PathBuf>,
    /// The client's certificate of the run's CA.
    pub known: Identity,
    /// A certificate of the run's CA, of another subject with the same common name.
    pub namesake: Identity,
    /// The client's certificate of another CA.
    pub stranger: Identity,
}

impl Files {
    /// In a folder.
    pub fn new(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let authority = Authority::new("sealane-lab compare")?;
        std::fs::write(folder.join("ca.pem"), &authority.pem)?;
        let client = [CLIENT.to_owned()];
        Ok(Self {
            folder: folder.to_owned(),
            known: authority.identity(&client, &[])?,
            namesake: authority.client(&namesake(&[(DnType::CommonName, CLIENT.to_owned())]))?,
            stranger: Authority::new("a stranger")?.identity(&client, &[])?,
            rsa: KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?,
            ecdsa: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?,
            authority,
            made: BTreeMap::new(),
            copies: BTreeMap::new(),
        })
    }

    /// The client's certificate gets the common name that the configuration expects.
    pub fn name_client(&mut self, name: &str) -> anyhow::Result<()> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let (_, der) = self.authority.issue_for(name, &[CLIENT.to_owned()], &[], &key)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        self.known = Identity { chain: vec![der.into()], key };
        Ok(())
    }

    /// The client's certificate gets a subject, and its namesake the common name. Whether the subject is understood.
    pub fn subject_client(&mut self, text: &str) -> anyhow::Result<bool> {
        let Some(parts) = subject(text) else { return Ok(false) };
        (self.known, self.namesake) = (self.authority.client(&parts)?, self.authority.client(&namesake(&parts))?);
        Ok(true)
    }

    /// The run's CA: in the place of every CA of the configuration, so that clients and back-ends can be verified.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// An empty list of revocations of the run's CA.
    pub fn crl(&mut self) -> anyhow::Result<PathBuf> {
        let path = self.folder.join("crl.pem");
        if !path.exists() {
            let now = rcgen::date_time_ymd(2024, 1, 1);
            let params = CertificateRevocationListParams {
                this_update: now,
                next_update: rcgen::date_time_ymd(2124, 1, 1),
                crl_number: SerialNumber::from(1u64),
                issuing_distribution_point: None,
                revoked_certs: Vec::new(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            std::fs::write(&path, params.signed_by(&self.authority.issuer)?.pem()?)?;
        }
        Ok(path)
    }

    /// A certificate and its key: the files that are named if they can be read, else new ones for these names. Without a path
    /// of a key, both are in one file.
    pub fn certificate(&mut self, cert: &Path, key: Option<&Path>, names: &BTreeSet<String>) -> anyhow::Result<()> {
        let readable = |p: &Path| std::fs::File::open(p).is_ok() && p.is_file();
        if self.made.contains_key(cert) || (readable(cert) && key.is_none_or(readable)) {
            return Ok(());
        }
        let pair = match cert.to_string_lossy().to_ascii_lowercase().contains("ecdsa") {
            true => &self.ecdsa,
            false => &self.rsa,
        };
        let names: Vec<String> = names.iter().cloned().collect();
        let (pem, _) = self.authority.issue(&names, &[], pair)?;
        let number = self.made.len();
        let at = self.folder.join(format!("{number}.pem"));
        match key {
            None => std::fs::write(&at, pem + &pair.serialize_pem())?,
            Some(key) => {
                std::fs::write(&at, pem)?;
                let at = self.folder.join(format!("{number}-key.pem"));
                std::fs::write(&at, pair.serialize_pem())?;
                self.made.insert(key.to_owned(), at);
            }
        }
        self.made.insert(cert.to_owned(), at);
        Ok(())
    }

    /// A password file with [`USER`], whose password is known here, in the place of the one that is named.
    pub fn passwords(&mut self, path: &Path) -> anyhow::Result<()> {
        if !self.made.contains_key(path) {
            let at = self.folder.join(format!("{}.htpasswd", self.made.len()));
            std::fs::write(&at, format!("{}:{HASH}\n", USER))?;
            self.made.insert(path.to_owned(), at);
        }
        Ok(())
    }

    /// An empty file in the place of a path.
    pub fn empty(&mut self, path: &Path) -> anyhow::Result<PathBuf> {
        let at = self.folder.join("empty");
        std::fs::write(&at, "")?;
        self.made.insert(path.to_owned(), at.clone());
        Ok(at)
    }

    /// A file with a text in the place of a path.
    pub fn text(&mut self, path: &Path) -> anyhow::Result<PathBuf> {
        let next = self.folder.join(format!("text-{}", self.made.len()));
        let at = self.made.entry(path.to_owned()).or_insert(next).clone();
        std::fs::write(&at, "made for this run\n").with_context(|| at.display().to_string())?;
        Ok(at)
    }

    /// A changed copy of a file.
    pub fn copy(&mut self, of: &Path, ending: &str, text: &str) -> anyhow::Result<PathBuf> {
        let next = self.folder.join(format!("copy-{}.{ending}", self.copies.len()));
        let at = self.copies.entry(of.to_owned()).or_insert(next).clone();
        std::fs::write(&at, text).with_context(|| at.display().to_string())?;
        Ok(at)
    }

    /// What takes the place of a path; the path itself if it is here.
    pub fn instead(&self, path: &Path) -> PathBuf {
        self.made.get(path).cloned().unwrap_or_else(|| path.to_owned())
    }

    /// The paths in whose place the run has made files.
    pub fn made(&self) -> Vec<String> {
        self.made.keys().map(|path| path.display().to_string()).collect()
    }

    /// How back-ends speak TLS: with a certificate of the run's CA for all names and addresses of the configuration.
    pub fn backends(&self, names: &[String], addresses: &[IpAddr], http2: bool) -> anyhow::Result<Arc<ServerConfig>> {
        let Identity { chain, key } = self.authority.identity(names, addresses)?;
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let mut config =
            builder.with_safe_default_protocol_versions()?.with_no_client_auth().with_single_cert(chain, key)?;
        if http2 {
            config.alpn_protocols.push(b"h2".to_vec());
        }
        config.alpn_protocols.push(b"http/1.1".to_vec());
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namesake_has_the_common_name_and_nothing_else() {
        let parts = subject("CN=edi.example,O=Partner,C=DE").unwrap();
        assert_eq!(parts[0], (DnType::CountryName, "DE".to_owned()), "the first part comes last in the text");
        let other = namesake(&parts);
        assert_eq!(other.len(), 2);
        assert!(other.contains(&(DnType::CommonName, "edi.example".to_owned())) && other[0] != parts[1], "{other:?}");
        for text in ["~CN=a", "default", "", "CN=a+O=b", "CN=a\\,b", "serialNumber=1,CN=a", "CN=a,CN=b"] {
            assert_eq!(subject(text), None, "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::new(folder.path()).unwrap();
        assert!(files.subject_client("CN=edi.example,O=Partner,C=DE").unwrap());
        assert!(!files.subject_client("other").unwrap());
        assert_ne!(files.known.chain, files.namesake.chain);
    }
}
