//! Certificates and keys that are not as they should be.

use super::files::{Folder, one_listener, params};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_ML_DSA_65, PKCS_RSA_SHA256};
use sealane_tls::policy::{Identities, KeyKind};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn load(folder: &Folder) -> String {
    folder.report(&one_listener("certs/a.pem", "certs/a.key"))
}

fn identities(folder: &Folder, text: &str) -> Arc<Identities> {
    let (config, _) = folder.load(text).unwrap_or_else(|e| panic!("{e}"));
    config.listeners[0].tls.as_ref().unwrap().policies[0].identities.clone()
}

#[test]
fn a_key_of_another_certificate() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    folder.certificate("b", &["b.example"]);
    let report = folder.report(&one_listener("certs/a.pem", "certs/b.key"));
    assert_eq!(
        report,
        r#"sealane.toml:3:51: error: the key certs/b.key does not belong to the certificate certs/a.pem
  |
3 | tls.certificates = [{ cert = "certs/a.pem", key = "certs/b.key" }]
  |                                                   ^^^^^^^^^^^^^
  help: compare: openssl x509 -in certs/a.pem -noout -pubkey; openssl pkey -in certs/b.key -pubout"#
    );
}

#[test]
fn the_passphrase_of_a_key_that_is_not_encrypted() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    std::fs::create_dir(folder.path("folder")).unwrap();
    folder.write("empty", "");
    folder.write("words", "open sesame\n");
    for (file, wanted) in [
        ("none", "error: cannot read the passphrase none: no such file or directory"),
        ("folder", "error: cannot read the passphrase folder: "),
        ("empty", "error: empty: there is no passphrase in this file"),
        ("words", "warning: certs/a.key: the private key is not encrypted"),
    ] {
        let key = format!("\"certs/a.key\", passphrase_file = {file:?}");
        let report = folder.report(&one_listener("certs/a.pem", "KEY").replace("\"KEY\"", &key));
        assert!(report.starts_with("sealane.toml:3:") && report.contains(wanted), "{file}: {report}");
        assert_eq!(report.contains("error: "), file != "words", "{report}");
    }
}

#[test]
fn a_chain_in_the_wrong_order() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    folder.certificate("ca", &["ca.example"]);
    let read = |name: &str| std::fs::read_to_string(folder.path(name)).unwrap();
    let chain = read("certs/ca.pem") + &read("certs/a.pem");
    folder.write("certs/a.pem", chain);
    let report = load(&folder);
    assert!(report.contains("it belongs to certificate 2 of the file: put that certificate first"), "{report}");
}

#[test]
fn dates_are_warned_of() {
    let folder = Folder::new();
    folder.certificate_until("a", &["a.example"], 2020);
    let report = load(&folder);
    assert!(report.contains("warning: certs/a.pem: the certificate expired "), "{report}");
    assert!(report.contains("(Jan  1 00:00:00 2020 +00:00)"), "{report}");
    let mut early = params(&["a.example"], 2100);
    early.not_before = rcgen::date_time_ymd(2099, 1, 1);
    folder.write_pair("a", &early, &KeyPair::generate().unwrap());
    let report = load(&folder);
    assert!(
        report.contains("warning: certs/a.pem: the certificate is not valid before Jan  1 00:00:00 2099"),
        "{report}"
    );
}

#[test]
fn files_that_cannot_be_read() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let report = folder.report(&one_listener("certs/none.pem", "certs"));
    // Both are told.
    assert!(report.contains("cannot read the certificate certs/none.pem: no such file or directory"), "{report}");
    assert!(report.contains("cannot read the private key certs: is a directory"), "{report}");
    let report = folder.report(&one_listener("cerst/a.pem", "certs/a.key"));
    assert!(report.contains(" exists, but the rest of the path does not"), "{report}");
}

#[test]
fn a_key_that_others_may_not_read_or_may() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let key = folder.path("certs/a.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let report = load(&folder);
    let message = "certs/a.key: the permissions of this private key let every user read it (mode 0644)";
    assert!(report.contains(message), "{report}");
    let help = "sudo chgrp GROUP certs/a.key && sudo chmod 640 certs/a.key (GROUP: the group of the gateway's user";
    assert!(report.contains(help), "{report}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o000)).unwrap();
    let report = load(&folder);
    // Root reads everything.
    if rustix::process::geteuid().is_root() {
        assert_eq!(report, "");
    } else {
        assert!(report.contains("cannot read the private key certs/a.key: permission denied"), "{report}");
        assert!(report.contains("help: the file has mode 0000 and owner "), "{report}");
    }
}

#[test]
fn files_that_hold_something_else() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let key = std::fs::read_to_string(folder.path("certs/a.key")).unwrap();
    let pem = std::fs::read_to_string(folder.path("certs/a.pem")).unwrap();
    let der = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
    let der = der.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
    let cases: [(&str, Vec<u8>, &str); 7] = [
        ("certs/a.key", pem.clone().into_bytes(), "the file contains a certificate; set \"key\""),
        ("certs/a.key", b"".to_vec(), "certs/a.key: no private key in this file"),
        (
            "certs/a.key",
            key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY").into_bytes(),
            "the private key is encrypted",
        ),
        ("certs/a.pem", key.clone().into_bytes(), "certs/a.pem: no certificate in this file"),
        ("certs/a.pem", der, "the file looks like DER; convert it to PEM, and name the new file here: openssl x509"),
        ("certs/a.pem", pem.as_bytes()[..pem.len() / 2].to_vec(), "the file ends before"),
        ("certs/a.pem", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec(), "does not parse"),
    ];
    for (name, bytes, wanted) in cases {
        folder.write("certs/a.key", &key);
        folder.write("certs/a.pem", &pem);
        folder.write(name, bytes);
        let report = load(&folder);
        assert!(report.contains("error: ") && report.contains(wanted), "wanted: {wanted}\n{report}");
    }
}

#[test]
fn one_file_for_both() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let read = |name: &str| std::fs::read_to_string(folder.path(name)).unwrap();
    folder.write("certs/both.pem", read("certs/a.key") + &read("certs/a.pem"));
    let text = "[[listener]]\naddress = \"127.0.0.1:0\"\ntls.certificates = { cert = \"certs/both.pem\" }\n\
                [[host]]\nnames = \"a.example\"\nrespond = {}\n";
    assert_eq!(identities(&folder, text).all.len(), 1);
}

#[test]
fn kinds_of_keys_side_by_side() {
    let folder = Folder::new();
    let names = ["a.example"];
    for (name, algorithm) in [
        ("ec", &PKCS_ECDSA_P256_SHA256),
        ("ec2", &PKCS_ECDSA_P256_SHA256),
        ("rsa", &PKCS_RSA_SHA256),
        ("ed", &PKCS_ED25519),
        ("pq", &PKCS_ML_DSA_65),
    ] {
        folder.write_pair(name, &params(&names, 2100), &KeyPair::generate_for(algorithm).unwrap());
    }
    folder.certificate("other", &["other.example"]);
    let entry = |name: &str| format!("{{ cert = \"certs/{name}.pem\", key = \"certs/{name}.key\" }},\n");
    let text = |list: &[&str]| {
        let list: String = list.iter().map(|n| entry(n)).collect();
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\ntls.certificates = [\n{list}]\n\
             [[host]]\nnames = \"a.example\"\nrespond = {{}}\n"
        )
    };
    let found = identities(&folder, &text(&["ec", "other", "rsa", "ed", "pq"]));
    let kinds: Vec<KeyKind> = found.all.iter().map(|i| i.kind).collect();
    assert_eq!(kinds, [KeyKind::Ecdsa, KeyKind::Ecdsa, KeyKind::Rsa, KeyKind::Ed25519, KeyKind::MlDsa65]);
    assert_eq!(found.find("a.example"), [0, 2, 3, 4]);
    // The first, and the others for its names.
    assert_eq!(found.default, [0, 2, 3, 4]);
    let marked = text(&["ec", "other"]).replace("other.key\" }", "other.key\", default = true }");
    assert_eq!(identities(&folder, &marked).default, [1]);
    let report = folder.report(&text(&["ec", "ec2"]));
    assert!(
        report.contains("two certificates contain \"a.example\": the gateway uses the certificate at line 4"),
        "{report}"
    );
}

#[test]
fn certificates_without_a_cipher_for_tls12() {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    let text = one_listener("certs/a.pem", "certs/a.key").replace(
        "tls.certificates",
        "tls.ciphers = [\"TLS_AES_128_GCM_SHA256\", \"ECDHE-RSA-AES128-GCM-SHA256\"]\ntls.certificates",
    );
    let report = folder.report(&text);
    assert!(report.contains("warning: certs/a.pem: no cipher of \"ciphers\" fits this certificate"), "{report}");
    assert!(report.contains("help: add \"ECDHE-ECDSA-AES128-GCM-SHA256\""), "{report}");
    // TLS 1.2 has no cipher at all for ML-DSA. A second certificate can serve its clients.
    folder.write_pair("pq", &params(&["a.example"], 2100), &KeyPair::generate_for(&PKCS_ML_DSA_65).unwrap());
    let text = one_listener("certs/pq.pem", "certs/pq.key");
    let report = folder.report(&text);
    let wanted = "certs/pq.pem: TLS 1.2 is enabled, but cannot use a certificate with an ML-DSA key";
    assert!(report.contains(wanted), "{report}");
    assert_eq!(folder.report(&text.replace("tls.certificates", "tls.preset = \"modern\"\ntls.certificates")), "");
    let both = "certificates = [{ cert = \"certs/a.pem\", key = \"certs/a.key\" }, ";
    assert_eq!(folder.report(&text.replace("certificates = [", both)), "");
    // One for another name does not.
    folder.certificate("other", &["other.example"]);
    let report = folder.report(&text.replace("certificates = [", &both.replace("a.", "other.")));
    assert!(report.contains(wanted), "{report}");
}

#[test]
fn ten_thousand_certificates() {
    let folder = Folder::new();
    // Making keys is not what is tested: one for all.
    let key = KeyPair::generate().unwrap();
    folder.write("certs/all.key", key.serialize_pem());
    let mut text = String::from("[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificates = [\n");
    for i in 0..10_000 {
        let name = format!("host{i}.example");
        let certificate = params(&[&name], 2100).self_signed(&key).unwrap();
        std::fs::write(folder.path(&format!("certs/{i}.pem")), certificate.pem()).unwrap();
        text += &format!("{{ cert = \"certs/{i}.pem\", key = \"certs/all.key\" }},\n");
    }
    text += "]\n[[host]]\nnames = [\"*\"]\nrespond = {}\n";
    let started = std::time::Instant::now();
    let found = identities(&folder, &text);
    println!("loaded in {:?}", started.elapsed());
    assert_eq!((found.all.len(), found.names.len()), (10_000, 10_000));
    assert_eq!(found.find("host9999.example"), [9999]);
    // And as many mistakes.
    let errors = folder.load(&text.replace("certs/all.key", "certs/none.key")).unwrap_err();
    assert_eq!(errors.errors.len(), 51, "50, and how many more there are");
    assert_eq!(errors.errors[49].line, 54);
}
