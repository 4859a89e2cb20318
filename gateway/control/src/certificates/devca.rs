//! A development CA and its certificate for localhost, kept under the user's state directory.
//!
//! The CA can sign names of this machine only (name constraints, RFC 5280 §4.2.1.10), so that trusting it is harmless
//! even if its key leaks.

use super::validity::now;
use anyhow::{Context, Result, anyhow};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256,
};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

const DAY: i64 = 86_400;

/// Long, because each user must be told to trust it.
const CA_DAYS: i64 = 3650;

/// Short of the 825 days that some clients allow.
const LEAF_DAYS: i64 = 397;

/// A certificate that ends sooner is made anew.
const RENEW_DAYS: i64 = 30;

/// The files of the development CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevCa {
    /// The CA's certificate: to be trusted.
    pub ca: PathBuf,
    /// The certificate for localhost, 127.0.0.1 and ::1.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The CA was made just now: nobody trusts it yet.
    pub new: bool,
}

/// `$XDG_STATE_HOME/sealane/dev`, by default `~/.local/state/sealane/dev`.
pub fn state_folder() -> Result<PathBuf> {
    // A relative path in XDG_STATE_HOME is invalid and to be ignored (XDG Base Directory Specification).
    let given = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let base = match given {
        Some(path) => path,
        None => {
            let home = std::env::home_dir().filter(|h| h.is_absolute());
            home.context("there is no home folder for the development CA; set XDG_STATE_HOME")?.join(".local/state")
        }
    };
    Ok(base.join("sealane/dev"))
}

impl DevCa {
    /// Makes what is not there, broken or near its end.
    pub fn ensure(folder: &Path) -> Result<Self> {
        let what = || format!("cannot store the development CA in {}", folder.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(what)?;
        // Two demos started at once make one CA.
        let lock = File::create(folder.join("lock")).with_context(what)?;
        lock.lock().with_context(what)?;
        let ca_key = folder.join("ca.key");
        let mut out = Self {
            ca: folder.join("ca.pem"),
            cert: folder.join("localhost.pem"),
            key: folder.join("localhost.key"),
            new: false,
        };
        let issuer = match (days_left(&out.ca) > RENEW_DAYS).then(|| issuer(&out.ca, &ca_key)) {
            Some(Ok(issuer)) => issuer,
            _ => {
                out.new = true;
                new_ca(&out.ca, &ca_key).with_context(what)?
            }
        };
        let whole = KeyPair::from_pem(&fs::read_to_string(&out.key).unwrap_or_default()).is_ok();
        if out.new || !whole || days_left(&out.cert) <= RENEW_DAYS {
            new_leaf(&issuer, &out).with_context(what)?;
        }
        Ok(out)
    }

    /// How to make clients trust the CA.
    pub fn trust_help(&self) -> String {
        let ca = self.ca.display();
        format!(
            "\
The certificate is signed by your own development CA, which is valid only for localhost:
  {ca}
To trust it
  curl             curl --cacert {ca} …
  Debian, Ubuntu   sudo cp {ca} /usr/local/share/ca-certificates/sealane-dev.crt && sudo update-ca-certificates
  Fedora, RHEL     sudo cp {ca} /etc/pki/ca-trust/source/anchors/sealane-dev.crt && sudo update-ca-trust
  Chrome           certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n sealane-dev -i {ca}   (package libnss3-tools or nss-tools)
  Firefox          Settings > Privacy & Security > View Certificates > Authorities > Import
To remove it, delete {} and undo these steps.",
            self.ca.parent().unwrap_or(Path::new(".")).display()
        )
    }
}

/// Days that a certificate is still good for; below 0 when it is not there or broken.
fn days_left(path: &Path) -> i64 {
    let Ok(bytes) = fs::read(path) else { return -1 };
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(&bytes) else { return -1 };
    match X509Certificate::from_der(&pem.contents) {
        Ok((_, c)) => (c.validity().not_after.timestamp() - now()) / DAY,
        Err(_) => -1,
    }
}

fn issuer(ca: &Path, key: &Path) -> Result<Issuer<'static, KeyPair>> {
    let key = KeyPair::from_pem(&fs::read_to_string(key)?)?;
    let pem = fs::read_to_string(ca)?;
    let (_, parsed) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|e| anyhow!("{e}"))?;
    let (_, certificate) = X509Certificate::from_der(&parsed.contents).map_err(|e| anyhow!("{e}"))?;
    // A key of another CA (one of the two files was replaced) would sign certificates that nobody accepts.
    if !certificate.public_key().subject_public_key.data.ends_with(key.public_key_raw()) {
        return Err(anyhow!("the CA's key does not belong to its certificate"));
    }
    Ok(Issuer::from_ca_cert_pem(&pem, key)?)
}

fn params(days: i64, name: &str) -> Result<CertificateParams> {
    let mut p = CertificateParams::default();
    // An hour back, for clients whose clocks are behind.
    p.not_before = OffsetDateTime::from_unix_timestamp(now() - 3600)?;
    p.not_after = OffsetDateTime::from_unix_timestamp(now() + days * DAY)?;
    p.distinguished_name = rcgen::DistinguishedName::new();
    p.distinguished_name.push(DnType::CommonName, name);
    p.distinguished_name.push(DnType::OrganizationName, "Sealane development");
    Ok(p)
}

fn new_ca(ca: &Path, key_file: &Path) -> Result<Issuer<'static, KeyPair>> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut p = params(CA_DAYS, &format!("Sealane development CA {}", now()))?;
    p.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    p.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    p.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![
            GeneralSubtree::DnsName("localhost".to_owned()),
            GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([127, 0, 0, 0], 8)),
            GeneralSubtree::IpAddress(CidrSubnet::from_v6_prefix(Ipv6Addr::LOCALHOST.octets(), 128)),
        ],
        excluded_subtrees: Vec::new(),
    });
    let certificate = p.self_signed(&key)?;
    write_file(key_file, &key.serialize_pem(), 0o600)?;
    write_file(ca, &certificate.pem(), 0o644)?;
    Ok(Issuer::new(p, key))
}

fn new_leaf(issuer: &Issuer<'static, KeyPair>, files: &DevCa) -> Result<()> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut p = params(LEAF_DAYS, "localhost")?;
    p.subject_alt_names = vec![
        // Not `*.localhost`: OpenSSL, browsers and rustls take no wildcard for a top-level name.
        rcgen::SanType::DnsName("localhost".try_into()?),
        rcgen::SanType::IpAddress(Ipv4Addr::LOCALHOST.into()),
        rcgen::SanType::IpAddress(Ipv6Addr::LOCALHOST.into()),
    ];
    p.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    p.use_authority_key_identifier_extension = true;
    let certificate = p.signed_by(&key, issuer)?;
    write_file(&files.key, &key.serialize_pem(), 0o600)?;
    write_file(&files.cert, &certificate.pem(), 0o644)
}

/// Replaces a file as a whole: a reader gets the old file or the new one.
fn write_file(path: &Path, text: &str, mode: u32) -> Result<()> {
    let fresh = path.with_extension("new");
    // One left behind by a crash may have other permissions.
    let _ = fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(fs::rename(&fresh, path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a/b");
        let first = DevCa::ensure(&folder).unwrap();
        assert!(first.new);
        let texts = |d: &DevCa| [&d.ca, &d.cert, &d.key].map(|p| fs::read_to_string(p).unwrap());
        let before = texts(&first);
        let second = DevCa::ensure(&folder).unwrap();
        assert!(!second.new);
        assert_eq!(before, texts(&second));
        for key in ["ca.key", "localhost.key"] {
            assert_eq!(fs::metadata(folder.join(key)).unwrap().permissions().mode() & 0o777, 0o600, "{key}");
        }
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_lost_leaf_is_signed_by_the_same_ca() {
        let folder = tempfile::tempdir().unwrap();
        let first = DevCa::ensure(folder.path()).unwrap();
        let (ca, leaf) = (fs::read(&first.ca).unwrap(), fs::read(&first.cert).unwrap());
        fs::remove_file(&first.key).unwrap();
        let second = DevCa::ensure(folder.path()).unwrap();
        assert!(!second.new);
        assert_eq!(ca, fs::read(&second.ca).unwrap());
        assert_ne!(leaf, fs::read(&second.cert).unwrap());
        assert_eq!(verified(&second), Ok(()));
    }

    #[test]
    fn a_mixed_up_ca_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        DevCa::ensure(folder.path()).unwrap();
        let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        fs::write(folder.path().join("ca.key"), other.serialize_pem()).unwrap();
        let again = DevCa::ensure(folder.path()).unwrap();
        assert!(again.new);
        assert_eq!(verified(&again), Ok(()));
    }

    #[test]
    fn certificates_near_their_end_are_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let files = DevCa::ensure(folder.path()).unwrap();
        let key = KeyPair::from_pem(&fs::read_to_string(&files.key).unwrap()).unwrap();
        let short = params(RENEW_DAYS - 1, "localhost").unwrap().self_signed(&key).unwrap();
        fs::write(&files.cert, short.pem()).unwrap();
        assert!((0..RENEW_DAYS).contains(&days_left(&files.cert)));
        DevCa::ensure(folder.path()).unwrap();
        assert!(days_left(&files.cert) > RENEW_DAYS);
        assert_eq!(verified(&files), Ok(()));
    }

    /// What a client of rustls says of the leaf, for each name.
    fn verified(files: &DevCa) -> Result<(), String> {
        use rustls::client::danger::ServerCertVerifier;
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider.into()).build().unwrap();
        let leaf = CertificateDer::from_pem_file(&files.cert).unwrap();
        for name in ["localhost", "127.0.0.1", "::1"] {
            let server = ServerName::try_from(name).unwrap();
            verifier
                .verify_server_cert(&leaf, &[], &server, &[], UnixTime::now())
                .map_err(|e| format!("{name}: {e}"))?;
        }
        let foreign = ServerName::try_from("example.com").unwrap();
        match verifier.verify_server_cert(&leaf, &[], &foreign, &[], UnixTime::now()) {
            Ok(_) => Err("good for example.com".to_owned()),
            Err(_) => Ok(()),
        }
    }
}
