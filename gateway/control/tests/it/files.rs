//! A folder with certificates and a configuration.

use rcgen::{BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair};
use rcgen::{KeyUsagePurpose, SerialNumber, date_time_ymd};
use sealane_control::config::{Config, Errors, Warning};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("certs")).unwrap();
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// `certs/NAME.pem` and `certs/NAME.key` for these DNS names, good for years.
    pub fn certificate(&self, name: &str, dns: &[&str]) {
        self.certificate_until(name, dns, 2100);
    }

    pub fn certificate_until(&self, name: &str, dns: &[&str], year: i32) {
        let key = KeyPair::generate().unwrap();
        self.write_pair(name, &params(dns, year), &key);
    }

    pub fn write_pair(&self, name: &str, params: &CertificateParams, key: &KeyPair) {
        self.write(&format!("certs/{name}.pem"), params.self_signed(key).unwrap().pem());
        self.write(&format!("certs/{name}.key"), key.serialize_pem());
    }

    /// A CA and an (empty) revocation list of its.
    pub fn ca(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        let mut p = params(&[], 2100);
        p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        p.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        self.write(&format!("certs/{name}.pem"), p.self_signed(&key).unwrap().pem());
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: vec![],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let issuer = Issuer::new(p, key);
        self.write(&format!("certs/{name}.crl"), list.signed_by(&issuer).unwrap().pem().unwrap());
    }

    /// Loads a configuration of this text.
    pub fn load(&self, text: &str) -> Result<(Config, Vec<Warning>), Errors> {
        sealane_control::resolve::load_and_wait(&self.write("sealane.toml", text))
    }

    /// All errors and warnings of this text as printed, the folder's path taken out.
    pub fn report(&self, text: &str) -> String {
        let report = match self.load(text) {
            Ok((_, warnings)) => warnings.iter().map(|w| w.to_string()).collect::<Vec<_>>().join("\n"),
            Err(errors) => errors.to_string(),
        };
        report.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

pub fn params(dns: &[&str], year: i32) -> CertificateParams {
    let mut p = CertificateParams::new(dns.iter().map(|n| n.to_string()).collect::<Vec<_>>()).unwrap();
    p.not_before = date_time_ymd(2000, 1, 1);
    p.not_after = date_time_ymd(year, 1, 1);
    p
}

/// A listener on a port of the kernel's choice with one certificate, for everything.
pub fn one_listener(cert: &str, key: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\ntls.certificates = [{{ cert = {cert:?}, key = {key:?} }}]\n\
         [[host]]\nnames = [\"*\"]\nrespond = {{ status = 200 }}\n"
    )
}
