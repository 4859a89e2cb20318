//! A temporary folder with a certificate authority and certificates for the names that tests use.

use crate::base64;
use crate::transparency::{TransparencyLog, vector};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData as _, RevokedCertParams, RsaKeySize,
    SerialNumber, SigningKey, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// The name that most tests use.
pub const HOST: &str = "localhost";

/// A folder of a test's own, gone with it.
pub struct Site {
    folder: TempDir,
    authority: Issuer<'static, KeyPair>,
    /// The authority's certificate, PEM.
    pub ca: PathBuf,
    /// Its key, for programs that sign in its name.
    pub ca_key: PathBuf,
    /// ECDSA P-256, for [`HOST`], `*.example.test` and the loopback addresses.
    pub ecdsa: Identity,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// PEM.
    pub cert: PathBuf,
    /// PEM, PKCS #8.
    pub key: PathBuf,
}

impl Identity {
    /// The chain and the key, to use them in the test itself.
    pub fn load(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_file_iter(&self.cert).expect("the certificate file is there");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("the certificate file is PEM");
        (chain, PrivateKeyDer::from_pem_file(&self.key).expect("the key file is PEM"))
    }
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

impl Site {
    /// A new folder, authority and certificate.
    pub fn new() -> Self {
        Self::with_authority(KeyPair::generate().expect("a key can be made"))
    }

    /// The same with an authority that signs with ML-DSA-65.
    pub fn post_quantum() -> Self {
        Self::with_authority(KeyPair::generate_for(&rcgen::PKCS_ML_DSA_65).expect("a key can be made"))
    }

    fn with_authority(key: KeyPair) -> Self {
        let folder = TempDir::with_prefix("sealane-interop-").expect("a temporary folder can be made");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names are valid names");
        params.distinguished_name.push(rcgen::DnType::CommonName, "Sealane interop tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).expect("a certificate can be made");
        let ca = folder.path().join("ca.pem");
        write(&ca, &cert.pem());
        let ca_key = folder.path().join("ca-key.pem");
        write(&ca_key, &key.serialize_pem());
        let authority = Issuer::new(params, key);
        let names = [HOST, "*.example.test", "127.0.0.1", "::1"];
        let ecdsa =
            issue(&authority, folder.path(), "ecdsa", &names, &KeyPair::generate().expect("a key can be made"), None);
        Self { folder, authority, ca, ca_key, ecdsa }
    }

    /// Where the test may put files.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The file of the access log, where the test's gateway has one.
    pub fn log_file(&self) -> PathBuf {
        self.path().join("access.log")
    }

    /// What is in the access log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// How many of its lines have this text.
    pub fn logged(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    /// Writes a file into the folder.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Another certificate of the same authority, ECDSA P-256.
    pub fn issue(&self, file: &str, names: &[&str]) -> Identity {
        let key = KeyPair::generate().expect("a key can be made");
        issue(&self.authority, self.folder.path(), file, names, &key, None)
    }

    /// Another certificate of the same authority, for a subject with this common name and this organization.
    pub fn issue_of(&self, file: &str, common: &str, organization: &str) -> Identity {
        self.issue_changed(file, &[], |params| {
            params.distinguished_name.push(rcgen::DnType::CommonName, common);
            params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        })
    }

    /// The same of X.509 version 1, as old programs make them: without extensions.
    pub fn issue_version_1(&self, file: &str) -> Identity {
        let identity = self.issue(file, &[]);
        let (chain, _) = identity.load();
        let mut certificate = contents(&chain[0]);
        // RFC 5280 §4.1: what is signed, how, and the signature.
        let (signed, algorithm) = (element(&mut certificate), element(&mut certificate));
        let mut rest = contents(signed);
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let field = element(&mut rest);
            // Neither the version, which is 1 where there is none, nor the extensions, which came with version 3.
            if !matches!(field[0], 0xa0 | 0xa3) {
                fields.extend_from_slice(field);
            }
        }
        let signed = der(0x30, &fields);
        let signature = self.authority.key().sign(&signed).expect("the authority can sign");
        let signature = der(0x03, &[&[0], &signature[..]].concat());
        let certificate = base64(&der(0x30, &[&signed, algorithm, &signature].concat()));
        write(&identity.cert, &format!("-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n"));
        identity
    }

    /// The same with this serial number, by which it can be revoked.
    pub fn issue_numbered(&self, file: &str, names: &[&str], serial: u64) -> Identity {
        let key = KeyPair::generate().expect("a key can be made");
        issue(&self.authority, self.folder.path(), file, names, &key, Some(serial))
    }

    /// A certificate that an intermediate authority has signed, which follows it in the file. The certificate is valid
    /// until the first year of these begins, the intermediate's until the second.
    pub fn issue_until(&self, file: &str, names: &[&str], until: i32, intermediate_until: i32) -> Identity {
        let between = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names are valid names");
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("{file}'s authority"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_after = date_time_ymd(intermediate_until, 1, 1);
        let intermediate = params.signed_by(&between, &self.authority).expect("a certificate can be signed");
        let authority = Issuer::new(params, between);
        let key = KeyPair::generate().expect("a key can be made");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("the names are valid");
        params.distinguished_name.push(rcgen::DnType::CommonName, file);
        params.not_after = date_time_ymd(until, 1, 1);
        let cert = params.signed_by(&key, &authority).expect("a certificate can be signed");
        let path = |suffix: &str| self.folder.path().join(format!("{file}{suffix}.pem"));
        let identity = Identity { cert: path(""), key: path("-key") };
        write(&identity.cert, &(cert.pem() + &intermediate.pem()));
        write(&identity.key, &key.serialize_pem());
        identity
    }

    /// Another certificate of the same authority, ECDSA P-256, that is valid between these times, in seconds since 1970.
    pub fn issue_within(&self, file: &str, names: &[&str], from: u64, until: u64) -> Identity {
        let key = KeyPair::generate().expect("a key can be made");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("the names are valid");
        params.use_authority_key_identifier_extension = true;
        let at = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        (params.not_before, params.not_after) = (at(from), at(until));
        let cert = params.signed_by(&key, &self.authority).expect("a certificate can be signed");
        let path = |suffix: &str| self.folder.path().join(format!("{file}{suffix}.pem"));
        let identity = Identity { cert: path(""), key: path("-key") };
        write(&identity.cert, &cert.pem());
        write(&identity.key, &key.serialize_pem());
        identity
    }

    /// A certificate that names this responder for OCSP, followed by the authority's own. With `must_staple`, clients may refuse it
    /// without a response.
    pub fn issue_with_responder(
        &self,
        file: &str,
        names: &[&str],
        serial: u64,
        responder: &str,
        must_staple: bool,
    ) -> Identity {
        self.issue_changed(file, names, |params| {
            params.serial_number = Some(SerialNumber::from(serial));
            // AuthorityInfoAccessSyntax with one AccessDescription: id-ad-ocsp, URL (RFC 5280 §4.2.2.1).
            let method = der(0x06, &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01]);
            let access = der(0x30, &der(0x30, &[method, der(0x86, responder.as_bytes())].concat()));
            params.custom_extensions.push(CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], access));
            if must_staple {
                // The feature status_request (RFC 7633).
                let features = der(0x30, &der(0x02, &[5]));
                let oid = [1, 3, 6, 1, 5, 5, 7, 1, 24];
                params.custom_extensions.push(CustomExtension::from_oid_content(&oid, features));
            }
        })
    }

    /// The certificate of a responder that the authority has authorized, followed by the authority's own.
    pub fn issue_responder(&self, file: &str) -> Identity {
        self.issue_changed(file, &[], |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::OcspSigning])
    }

    /// A certificate for servers only (extendedKeyUsage), followed by the authority's own.
    pub fn issue_for_servers(&self, file: &str, names: &[&str]) -> Identity {
        self.issue_changed(file, names, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth])
    }

    /// A certificate that is valid for 90 days and has a timestamp of each of these transparency logs, followed by the authority's own.
    pub fn issue_logged(&self, file: &str, names: &[&str], logs: &[&TransparencyLog]) -> Identity {
        // The same certificate without the timestamps is what logs are given (RFC 6962 §3.2).
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
            .expect("the names are valid");
        params.use_authority_key_identifier_extension = true;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        let day = Duration::from_secs(86_400);
        params.not_before = date_time_ymd(1970, 1, 1) + now - day;
        params.not_after = params.not_before + day * 90;
        let bare = params.signed_by(&key, &self.authority).expect("a certificate can be signed");
        let signed = element(&mut contents(bare.der())).to_vec();
        let issuer = self.authority.key().subject_public_key_info();
        let issuer = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &issuer);
        let length = (signed.len() as u32).to_be_bytes();
        let entry = [&[0, 1][..], issuer.as_ref(), &length[1..], &signed].concat();
        let timestamps: Vec<u8> = logs.iter().flat_map(|log| log.timestamp(&entry)).collect();
        let list = der(0x04, &vector(&timestamps));
        let oid = [1, 3, 6, 1, 4, 1, 11129, 2, 4, 2];
        params.custom_extensions.push(CustomExtension::from_oid_content(&oid, list));
        let cert = params.signed_by(&key, &self.authority).expect("a certificate can be signed");
        let path = |suffix: &str| self.folder.path().join(format!("{file}{suffix}.pem"));
        let identity = Identity { cert: path(""), key: path("-key") };
        let authority = std::fs::read_to_string(&self.ca).expect("our own file");
        write(&identity.cert, &(cert.pem() + &authority));
        write(&identity.key, &key.serialize_pem());
        identity
    }

    fn issue_changed(&self, file: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("the names are valid");
        params.distinguished_name.push(rcgen::DnType::CommonName, file);
        params.use_authority_key_identifier_extension = true;
        change(&mut params);
        let key = KeyPair::generate().expect("a key can be made");
        let cert = params.signed_by(&key, &self.authority).expect("a certificate can be signed");
        let path = |suffix: &str| self.folder.path().join(format!("{file}{suffix}.pem"));
        let identity = Identity { cert: path(""), key: path("-key") };
        let authority = std::fs::read_to_string(&self.ca).expect("our own file");
        write(&identity.cert, &(cert.pem() + &authority));
        write(&identity.key, &key.serialize_pem());
        identity
    }

    /// Writes a list of the authority's that revokes these, PEM.
    pub fn revocations(&self, file: &str, serials: &[u64]) -> PathBuf {
        self.revocations_until(file, serials, 2100)
    }

    /// The same that expires when this year begins.
    pub fn revocations_until(&self, file: &str, serials: &[u64], year: i32) -> PathBuf {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.authority).expect("a list can be signed");
        self.file(file, list.pem().expect("it can be written as PEM"))
    }

    /// Another certificate of the same authority, ECDSA P-384.
    pub fn issue_p384(&self, file: &str, names: &[&str]) -> Identity {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key can be made");
        issue(&self.authority, self.folder.path(), file, names, &key, None)
    }

    /// Another certificate of the same authority, Ed25519.
    pub fn issue_ed25519(&self, file: &str, names: &[&str]) -> Identity {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key can be made");
        issue(&self.authority, self.folder.path(), file, names, &key, None)
    }

    /// Another certificate of the same authority, with this parameter set of ML-DSA: 44, 65 or 87.
    pub fn issue_ml_dsa(&self, file: &str, names: &[&str], set: u32) -> Identity {
        let algorithm = match set {
            44 => &rcgen::PKCS_ML_DSA_44,
            65 => &rcgen::PKCS_ML_DSA_65,
            _ => &rcgen::PKCS_ML_DSA_87,
        };
        let key = KeyPair::generate_for(algorithm).expect("a key can be made");
        issue(&self.authority, self.folder.path(), file, names, &key, None)
    }

    /// Another certificate of the same authority, RSA with 2048 bits.
    pub fn issue_rsa(&self, file: &str, names: &[&str]) -> Identity {
        self.issue_rsa_of(file, names, RsaKeySize::_2048)
    }

    /// The same with a key of 4,096 bits, whose signatures take milliseconds.
    pub fn issue_costly(&self, file: &str, names: &[&str]) -> Identity {
        self.issue_rsa_of(file, names, RsaKeySize::_4096)
    }

    fn issue_rsa_of(&self, file: &str, names: &[&str], size: RsaKeySize) -> Identity {
        let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).expect("a key can be made");
        issue(&self.authority, self.folder.path(), file, names, &key, None)
    }
}

fn issue(
    authority: &Issuer<'static, KeyPair>,
    folder: &Path,
    file: &str,
    names: &[&str],
    key: &KeyPair,
    serial: Option<u64>,
) -> Identity {
    let (uris, names): (Vec<String>, Vec<String>) =
        names.iter().map(|name| (*name).to_owned()).partition(|name| name.contains("://"));
    let mut params = CertificateParams::new(names).expect("the names are valid");
    for uri in uris {
        params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().expect("the URI is ASCII")));
    }
    params.distinguished_name.push(rcgen::DnType::CommonName, file);
    params.use_authority_key_identifier_extension = true;
    params.serial_number = serial.map(SerialNumber::from);
    let cert = params.signed_by(key, authority).expect("a certificate can be signed");
    let identity = Identity { cert: folder.join(format!("{file}.pem")), key: folder.join(format!("{file}-key.pem")) };
    write(&identity.cert, &cert.pem());
    write(&identity.key, &key.serialize_pem());
    identity
}

/// The length of the tag and the length of a DER element, and of what is in it.
fn lengths(der: &[u8]) -> (usize, usize) {
    match usize::from(der[1]) {
        short @ ..128 => (2, short),
        long => (2 + (long & 127), der[2..2 + (long & 127)].iter().fold(0, |n, b| n << 8 | usize::from(*b))),
    }
}

/// Takes the first of several DER elements.
fn element<'a>(der: &mut &'a [u8]) -> &'a [u8] {
    let (head, body) = lengths(der);
    let (element, rest) = der.split_at(head + body);
    *der = rest;
    element
}

/// What is in a DER element.
fn contents(der: &[u8]) -> &[u8] {
    &der[lengths(der).0..]
}

/// A DER element: its length takes as few bytes as it can.
fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = u16::try_from(contents.len()).expect("a certificate is short").to_be_bytes();
    let head = match length {
        [0, short @ ..128] => vec![tag, short],
        [0, low] => vec![tag, 0x81, low],
        [high, low] => vec![tag, 0x82, high, low],
    };
    [&head, contents].concat()
}

/// Readable by the owner alone, as a key should be.
fn write(path: &Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
