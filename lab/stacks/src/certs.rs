//! The certificates of the tests: an authority and a leaf for `localhost` per kind of key, and a list that revokes the
//! leaf. Made once and kept, so that every run uses the same.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, RevocationReason,
    RevokedCertParams, RsaKeySize, SerialNumber, date_time_ymd,
};

/// The kinds of key, by the workers' names.
pub const KEYS: [&str; 3] = ["p256", "rsa2048", "rsa4096"];

/// Where they lie: another folder for each change of what they are.
const FOLDER: &str = "certs-2";

/// The folder of the certificates below `root`, made where it is not there yet. Of several who come at once one makes it,
/// and nobody sees half of it: a key beside another one's certificate would be no pair.
pub fn folder(root: &Path) -> Result<PathBuf, String> {
    let folder = root.join(FOLDER);
    let there = || KEYS.iter().all(|key| folder.join(format!("{key}.crl")).is_file());
    if there() {
        return Ok(folder);
    }
    let fails = |e: std::io::Error| format!("{}: {e}", folder.display());
    fs::create_dir_all(root).map_err(fails)?;
    let lock = File::create(root.join("certs.lock")).map_err(fails)?;
    lock.lock().map_err(fails)?;
    if there() {
        return Ok(folder);
    }
    let fresh = root.join("certs.new");
    // What is left of an earlier attempt.
    for old in [&fresh, &folder] {
        match fs::remove_dir_all(old) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fails(e)),
            _ => {}
        }
    }
    fs::create_dir(&fresh).map_err(fails)?;
    for key in KEYS {
        make(&fresh, key).map_err(|e| format!("{key} certificate: {e}"))?;
    }
    fs::rename(&fresh, &folder).map_err(fails)?;
    Ok(folder)
}

fn key(kind: &str) -> Result<KeyPair, rcgen::Error> {
    match kind {
        "rsa2048" => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        "rsa4096" => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
        _ => KeyPair::generate(),
    }
}

fn make(folder: &Path, kind: &str) -> Result<(), Box<dyn std::error::Error>> {
    let named = |name: &str| {
        let mut distinguished = DistinguishedName::new();
        distinguished.push(DnType::CommonName, name);
        distinguished
    };
    let authority_key = key(kind)?;
    let mut authority = CertificateParams::new(Vec::<String>::new())?;
    authority.distinguished_name = named(&format!("Sealane stacks {kind}"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority_cert = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);

    let leaf_key = key(kind)?;
    let serial = SerialNumber::from(0x5ea1u64);
    let mut leaf = CertificateParams::new(vec!["localhost".to_owned()])?;
    leaf.distinguished_name = named("localhost");
    leaf.serial_number = Some(serial.clone());
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    if kind.starts_with("rsa") {
        // For the suites without forward secrecy, which some libraries still have.
        leaf.key_usages.push(KeyUsagePurpose::KeyEncipherment);
    }
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let leaf_cert = leaf.signed_by(&leaf_key, &issuer)?;

    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(4000, 1, 1),
        crl_number: SerialNumber::from(1u64),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: serial,
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    }
    .signed_by(&issuer)?;

    let write = |name: String, text: String| fs::write(folder.join(name), text);
    write(format!("{kind}-ca.pem"), authority_cert.pem())?;
    write(format!("{kind}.crt"), leaf_cert.pem())?;
    write(format!("{kind}.key"), leaf_key.serialize_pem())?;
    write(format!("{kind}.crl"), list.pem()?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_made_once() {
        let root = tempfile::tempdir().expect("a folder");
        // By several at once, as tests are.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| folder(root.path()).expect("made"));
            }
        });
        let made = folder(root.path()).expect("found");
        let first = std::fs::read(made.join("rsa2048.key")).expect("there");
        assert_eq!(folder(root.path()).expect("found"), made);
        assert_eq!(std::fs::read(made.join("rsa2048.key")).expect("there"), first);
        for key in KEYS {
            for file in [format!("{key}-ca.pem"), format!("{key}.crt"), format!("{key}.crl")] {
                let text = std::fs::read_to_string(made.join(&file)).expect("there");
                assert!(text.starts_with("-----BEGIN"), "{file}");
            }
        }
        let left = std::fs::read_dir(root.path()).expect("there").count();
        assert_eq!(left, 2, "the folder and the lock, and nothing half made");
    }
}
