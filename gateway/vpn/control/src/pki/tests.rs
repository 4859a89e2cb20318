use super::*;
use crate::profile::Profile;
use sealane_ovpn::wrap::v2::{Metadata, ServerKey};

fn none() -> Result<Zeroizing<String>> {
    bail!("no passphrase is known")
}

fn made(passphrase: Option<&str>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vpn");
    let what = Init { endpoint: "vpn.example.com:443", network: "10.8.0.0/24", passphrase, ..Init::default() };
    init(&path, &what).expect("made");
    assert!(init(&path, &what).is_err(), "nothing is overwritten");
    (folder, path)
}

fn states(ca: &Ca) -> Vec<(String, &'static str)> {
    ca.list().expect("an index").into_iter().map(|issued| (issued.name, issued.state)).collect()
}

/// The serial numbers of the revocation list.
fn revoked(ca: &Ca) -> Vec<String> {
    use rustls::pki_types::CertificateRevocationListDer;
    use x509_parser::prelude::CertificateRevocationList;
    let pem = std::fs::read(ca.crl_file()).expect("a list");
    let der = CertificateRevocationListDer::from_pem_slice(&pem).expect("PEM");
    let (_, list) = CertificateRevocationList::from_der(&der).expect("a list");
    assert_eq!(list.next_update().map(|at| at.timestamp()), Some(ca.not_after().expect("an end")));
    list.iter_revoked_certificates().map(|r| hex(&r.serial().to_bytes_be())).collect()
}

#[test]
fn a_client_of_a_new_folder_has_a_complete_profile() {
    let (_folder, path) = made(None);
    let ca = Ca::open(&path, None).expect("a CA");
    let text = ca.client_profile("alice", false, LEAF_DAYS, &Remotes::default(), &mut none).expect("made");
    let profile = Profile::parse(&text, Path::new("")).expect("complete");
    assert_eq!((profile.remotes[0].host.as_str(), profile.remotes[0].port), ("vpn.example.com", 443));
    assert!(profile.wrap_v2.is_some() && profile.ignored.is_empty());
    let server = ServerKey::from_text(&std::fs::read_to_string(path.join("tls-crypt-v2.key")).expect("there"));
    let wrapped = profile.wrap_v2.expect("there").wrapped;
    let packet = [b"x", &wrapped[..]].concat();
    assert!(matches!(server.expect("a key").unwrap(&packet), Ok((_, _, Metadata::Made(_)))));
    let to = |address: &str| [address.to_owned()];
    let there = to("[2001:db8::1]:1194");
    let there = Remotes { addresses: &there, ..Remotes::default() };
    let elsewhere = ca.client_profile("bob", false, LEAF_DAYS, &there, &mut none).expect("made");
    assert!(elsewhere.contains("\nremote 2001:db8::1 1194\n"), "{elsewhere}");
    for name in ["a b", "", "a/b", "server"] {
        assert!(ca.client_profile(name, false, LEAF_DAYS, &Remotes::default(), &mut none).is_err(), "{name:?}");
    }
    let nowhere = to("nowhere");
    let nowhere = Remotes { addresses: &nowhere, ..Remotes::default() };
    assert!(ca.client_profile("carol", false, LEAF_DAYS, &nowhere, &mut none).is_err());
    assert_eq!(states(&ca).len(), 3, "nothing is issued for a profile that cannot be made");
}

#[test]
fn a_name_is_given_once_unless_it_is_renewed_or_revoked() {
    let (_folder, path) = made(None);
    let ca = Ca::open(&path, None).expect("a CA");
    let issue = |name, renew| ca.client_profile(name, renew, 10, &Remotes::default(), &mut none);
    assert!(issue("alice", true).is_err(), "there is nothing to renew");
    issue("alice", false).expect("the first");
    let again = issue("alice", false).expect_err("there is one").to_string();
    assert!(again.contains("ca renew alice"), "{again}");
    issue("alice", true).expect("renewed");
    let valid =
        |n| ["server"].into_iter().chain(std::iter::repeat_n("alice", n)).map(|name| (name.to_owned(), "valid"));
    assert_eq!(states(&ca), valid(2).collect::<Vec<_>>());
    assert_eq!(revoked(&ca), Vec::<String>::new());
    let serials = ca.revoke(Which::Name("alice"), Some("keyCompromise"), &mut none).expect("revoked");
    assert_eq!((serials.len(), revoked(&ca)), (2, serials.clone()));
    assert_eq!(states(&ca)[1..], [("alice".to_owned(), "revoked"), ("alice".to_owned(), "revoked")]);
    assert_eq!(ca.list().expect("an index")[1].reason.as_deref(), Some("keyCompromise"));
    // Once more does no harm, and one that is not listed any more is listed again.
    std::fs::remove_file(ca.crl_file()).expect("it was there");
    assert_eq!(ca.revoke(Which::Name("alice"), None, &mut none).expect("still"), serials);
    assert_eq!(revoked(&ca), serials);
    ca.client_profile("alice", false, 10, &Remotes::default(), &mut none).expect("a new one");
    assert_eq!(revoked(&ca), serials, "the old ones stay revoked");
    assert!(ca.revoke(Which::Name("bob"), None, &mut none).is_err(), "never issued");
    assert!(ca.revoke(Which::Name("alice"), Some("boredom"), &mut none).is_err(), "no reason of X.509");
    ca.renew_server(20, &mut none).expect("renewed");
    assert_eq!(states(&ca).iter().filter(|(name, _)| name == "server").count(), 2);
}

/// What was issued before there was an index can be revoked by its profile, or its certificate.
#[test]
fn a_certificate_of_before_the_index_is_revoked_by_its_file() {
    let (_folder, path) = made(None);
    let ca = Ca::open(&path, None).expect("a CA");
    let profile = path.join("alice.ovpn");
    std::fs::write(&profile, ca.client_profile("alice", false, 10, &Remotes::default(), &mut none).expect("made"))
        .expect("written");
    std::fs::remove_file(path.join("index.txt")).expect("it was there");
    assert_eq!(states(&ca), [("server".to_owned(), "valid")]);
    let serials = ca.revoke(Which::File(&profile), None, &mut none).expect("revoked");
    assert_eq!(revoked(&ca), serials);
    assert_eq!(states(&ca), [("server".to_owned(), "valid"), ("alice".to_owned(), "revoked")]);
    let (_other, other) = made(None);
    let other = Ca::open(&other, None).expect("a CA");
    let foreign =
        other.revoke(Which::File(&profile), None, &mut none).expect_err("only the name is the same").to_string();
    assert!(foreign.contains("issued by another CA"), "{foreign}");
    assert!(ca.revoke(Which::File(&path.join("endpoint")), None, &mut none).is_err(), "no certificate");
}

/// Everybody can make a certificate with the CA's name, its key's identifier and the serial number of another client.
#[test]
fn a_certificate_that_the_ca_has_not_signed_revokes_nobody() {
    let (_folder, path) = made(None);
    let ca = Ca::open(&path, None).expect("a CA");
    ca.client_profile("alice", false, 10, &Remotes::default(), &mut none).expect("made");
    let serial = ca.read_index().expect("an index").entries[1].serial.clone();
    let foreign = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let foreign = Issuer::from_ca_cert_der(&ca.certificate, foreign).expect("an issuer");
    let client = ExtendedKeyUsagePurpose::ClientAuth;
    let forged = leaf(&foreign, "mallory", client.clone(), &serial, now() + DAY).expect("signed");
    let file = path.join("forged.crt");
    std::fs::write(&file, forged.certificate).expect("written");
    let refused = format!("{:#}", ca.revoke(Which::File(&file), None, &mut none).expect_err("forged"));
    assert!(refused.contains("is not signed with its key; nothing was revoked"), "{refused}");
    assert_eq!(states(&ca)[1], ("alice".to_owned(), "valid"));
    assert_eq!(revoked(&ca), Vec::<String>::new());
    // One that has expired is the CA's all the same.
    let own = ca.issuer(&mut none).expect("the key");
    let old = leaf(&own, "bob", client, &[0x41; 16], now() - 60).expect("signed");
    std::fs::write(&file, old.certificate).expect("written");
    assert_eq!(ca.revoke(Which::File(&file), None, &mut none).expect("revoked"), ["41".repeat(16)]);
}

/// Wherever `renew server` is stopped, the pair fits after the next command.
#[test]
fn a_renewal_that_was_interrupted_leaves_no_mismatched_pair() {
    let (_folder, path) = made(None);
    let ca = Ca::open(&path, None).expect("a CA");
    let read = |name: &str| std::fs::read_to_string(path.join(name)).expect("there");
    let old = (read("server.crt"), read("server.key"));
    ca.renew_server(20, &mut none).expect("renewed");
    let new = (read("server.crt"), read("server.key"));
    assert!(old.0 != new.0 && old.1 != new.1, "both are new");
    assert!(!path.join("server.crt.new").exists() && !path.join("server.key.new").exists());
    let write = |name: &str, text: &str| std::fs::write(path.join(name), text).expect("written");
    // Stopped: both are written; the key is renamed; the certificate was written in part.
    for (key, key_new, certificate_new, expected) in [
        (&old.1, Some(&new.1), new.0.as_str(), &old),
        (&new.1, None, new.0.as_str(), &new),
        (&old.1, Some(&new.1), &new.0[..100], &old),
    ] {
        write("server.crt", &old.0);
        write("server.key", key);
        write("server.crt.new", certificate_new);
        key_new.into_iter().for_each(|key| write("server.key.new", key));
        ca.write_list(&mut none).expect("the next command");
        assert_eq!((read("server.crt"), read("server.key")), *expected);
        assert!(!path.join("server.crt.new").exists() && !path.join("server.key.new").exists());
    }
}

#[test]
fn the_key_of_the_ca_may_be_encrypted_and_elsewhere() {
    let (_folder, path) = made(Some("first"));
    let ca = Ca::open(&path, None).expect("a CA");
    let know = |word: &'static str| move || Ok(Zeroizing::new(word.to_owned()));
    let text = std::fs::read_to_string(path.join("ca.key")).expect("there");
    assert!(text.starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----\n"), "{text}");
    let wrong = ca.client_profile("alice", false, 10, &Remotes::default(), &mut know("wrong")).expect_err("wrong");
    assert!(format!("{wrong:#}").contains("the passphrase is wrong"), "{wrong:#}");
    ca.client_profile("alice", false, 10, &Remotes::default(), &mut know("first")).expect("made");
    ca.set_passphrase(Some("second"), &mut know("first")).expect("changed");
    assert!(ca.write_list(&mut know("first")).is_err());
    ca.write_list(&mut know("second")).expect("written");
    let elsewhere = path.join("vault.key");
    std::fs::rename(path.join("ca.key"), &elsewhere).expect("moved");
    let missing = format!("{:#}", ca.write_list(&mut none).expect_err("not there"));
    assert!(missing.contains("--ca-key"), "{missing}");
    let ca = Ca::open(&path, Some(&elsewhere)).expect("a CA");
    ca.set_passphrase(None, &mut know("second")).expect("decrypted");
    ca.write_list(&mut none).expect("written");
    assert_eq!(std::fs::metadata(&elsewhere).expect("there").permissions().mode() & 0o777, 0o600);
    let (_other, other) = made(None);
    let foreign = Ca::open(&path, Some(&other.join("ca.key"))).expect("a CA");
    assert!(foreign.write_list(&mut none).is_err(), "another CA's key");
}

/// Commands that run at the same time lose none of each other's certificates.
#[test]
fn commands_at_the_same_time_follow_one_another() {
    let (_folder, path) = made(None);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let ca = Ca::open(path, None).expect("a CA");
                ca.client_profile(&format!("c{n}"), false, 10, &Remotes::default(), &mut none).expect("issued");
            });
        }
    });
    let ca = Ca::open(&path, None).expect("a CA");
    assert_eq!(states(&ca).len(), 9);
    let twice = std::thread::scope(|scope| {
        let one = || {
            let ca = Ca::open(&path, None).expect("a CA");
            ca.client_profile("same", false, 10, &Remotes::default(), &mut none).is_ok()
        };
        let threads = [scope.spawn(one), scope.spawn(one)];
        threads.map(|thread| thread.join().expect("it has not panicked")).iter().filter(|ok| **ok).count()
    });
    assert_eq!(twice, 1, "a name is given once");
}
