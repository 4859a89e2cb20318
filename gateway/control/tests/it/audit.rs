//! Audits by policies: for each rule a configuration that passes, and one that breaks it.

use super::files::Folder;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, RsaKeySize, date_time_ymd};
use sealane_control::config::Policy;
use sealane_control::resolve;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A certificate with an RSA key of 1024 bits.
const SMALL: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIB+zCCAWSgAwIBAgIUSOidq+Wf7Nec0l9sOV6QaC07EZYwDQYJKoZIhvcNAQEL\n\
BQAwEDEOMAwGA1UEAwwFc21hbGwwIBcNMjYxMTIzMDYxNzQwWhgPMjEyNjEwMzAw\n\
NjE3NDBaMBAxDjAMBgNVBAMMBXNtYWxsMIGfMA0GCSqGSIb3DQEBAQUAA4GNADCB\n\
iQKBgQCrOfP8TiROuolYFL2QtoNW6CfCXsJzZkXPUDZ012bxhQhm4cv+GpMpN9Xi\n\
GhQcs6RPPmVhEXVzV8EYcC1fqxLdSp+3GHrnrm928YKmW6WnWJl+tbjOle2em/HM\n\
U5r+nCRfgSVz8Yy3BrhijReAdbwH/93mhJF3tQYbz8xoVUhftQIDAQABo1AwTjAd\n\
BgNVHQ4EFgQU76tZz4LWznB+LuSsJ979wZRgE8AwHwYDVR0jBBgwFoAU76tZz4LW\n\
znB+LuSsJ979wZRgE8AwDAYDVR0TBAUwAwEB/zANBgkqhkiG9w0BAQsFAAOBgQCd\n\
9HSh3D7sqy2XtzRQiQFwl3FcyLcgeGyQP+jWEpgMWzztWQyEiaVMKs3sq9T2irZV\n\
7YMNaohOAfQwtuv9IZhuR9bZd1Z2tsakWMGS/48zmEutKW0N2fliKS0Zoj09v9d7\n\
QZEaj481LMXii3dj2ziAtGIZTvATF3Wiixzqup8b9Q==\n\
-----END CERTIFICATE-----\n";
/// A certificate that is signed by ECDSA with SHA-1.
const SHA1: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBHzCBxgIUTNhEEn3svdXX7p3MU6dyQ+Mdh3QwCQYHKoZIzj0EATANMQswCQYD\n\
VQQDDAJjYTAgFw0yNjExMjMwNjE3NDRaGA8yMTI2MTAzMDA2MTc0NFowFzEVMBMG\n\
A1UEAwwMaW50ZXJtZWRpYXRlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE/kJI\n\
llyucQpjTOxEVNEBCEHweqsPRHegXOcyLbnz+pdOQRJjQ2w7b2/L883VtDolXRfU\n\
8B5JBM5JHa1JvPt5ADAJBgcqhkjOPQQBA0kAMEYCIQCZcBQEw3tE1cRZFOyOLfMl\n\
42WBKuNglcopdqzlJcFJrQIhAMJJQlUo7i/O4pyuTsHv0feombjaPbmCO8/PzUz+\n\
RQrJ\n\
-----END CERTIFICATE-----\n";

const NIST: &str = "groups = [\"X25519MLKEM768\", \"secp256r1\", \"secp384r1\"]\n\
                    ciphers = [\"TLS_AES_256_GCM_SHA384\", \"ECDHE-ECDSA-AES256-GCM-SHA384\"]\n";

/// A folder with certificates of several kinds for `a.example`.
fn folder() -> Folder {
    let folder = Folder::new();
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let day = Duration::from_secs(86_400);
    let write = |name: &str, days: u32, key: &KeyPair, more: &str| {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(1970, 1, 1) + today - day;
        params.not_after = params.not_before + day * days;
        folder.write(&format!("certs/{name}.pem"), params.self_signed(key).unwrap().pem() + more);
        folder.write(&format!("certs/{name}.key"), key.serialize_pem());
    };
    let ecdsa = KeyPair::generate().unwrap();
    write("ecdsa", 80, &ecdsa, "");
    write("year", 365, &ecdsa, "");
    write("long", 800, &ecdsa, "");
    write("small", 80, &ecdsa, SMALL);
    write("sha1", 80, &ecdsa, SHA1);
    let rsa = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    write("rsa", 80, &rsa, "");
    write("rsa-long", 800, &rsa, "");
    write("rsa-small", 80, &rsa, SMALL);
    write("rsa-sha1", 80, &rsa, SHA1);
    write("p521", 80, &KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap(), "");
    write("ed25519", 80, &KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap(), "");
    write("ml-dsa-44", 80, &KeyPair::generate_for(&rcgen::PKCS_ML_DSA_44).unwrap(), "");
    let ml_dsa = KeyPair::generate_for(&rcgen::PKCS_ML_DSA_87).unwrap();
    write("ml-dsa-87", 80, &ml_dsa, "");
    write("ml-dsa-87-expired", 0, &ml_dsa, "");
    write("ml-dsa-87-sha1", 80, &ml_dsa, SHA1);
    // An authority with another kind of key has signed it.
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "an authority");
    let authority = Issuer::new(params, ecdsa);
    let signed = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().signed_by(&ml_dsa, &authority).unwrap();
    folder.write("certs/ml-dsa-87-signed.pem", signed.pem());
    folder.write("certs/ml-dsa-87-signed.key", ml_dsa.serialize_pem());
    folder.certificate_until("expired", &["a.example"], 2010);
    folder.ca("ca");
    folder.write("users", format!("alice:{}\n", sealane_passwords::hash_password("right").unwrap()));
    folder
}

/// A gateway with this certificate, these lines in its `[listener.tls]`, and these after its host.
fn text(certificate: &str, tls: &str, more: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:8443\"\n[listener.tls]\n\
         certificates = [{{ cert = \"certs/{certificate}.pem\", key = \"certs/{certificate}.key\" }}]\n{tls}\
         [[host]]\nnames = [\"a.example\"]\nlisteners = [\"127.0.0.1:8443\"]\nrespond = {{}}\n{more}"
    )
}

/// What breaks a policy, as printed without the policy's name.
fn broken(folder: &Folder, policy: Policy, text: &str) -> Vec<String> {
    let path = folder.write("sealane.toml", text);
    match resolve::audit_and_wait(&path, policy) {
        Ok(_) => Vec::new(),
        Err(errors) => {
            let name = format!("{policy}: ");
            let cut = |d: &sealane_control::config::Diagnostic| {
                let rule = d.message.strip_prefix(&name).unwrap_or_else(|| panic!("{errors}\n--- in\n{text}"));
                // Every rule names its line and a remedy; what the program cannot do is about none.
                assert!(
                    rule.contains("this program") || rule.contains("this build") || d.line > 0 && d.help.is_some(),
                    "{d}"
                );
                rule.to_owned()
            };
            errors.errors.iter().map(cut).collect()
        }
    }
}

/// A configuration that breaks nothing but what the program cannot do, and changes of it, each of which breaks one rule more.
fn check(policy: Policy, good: &str, limits: &[&str], bad: &[(&str, &str)]) {
    let folder = folder();
    let left = broken(&folder, policy, good);
    assert_eq!(left.len(), limits.len(), "{policy}: {left:#?}");
    for limit in limits {
        assert!(left.iter().any(|rule| rule.contains(limit)), "{policy}: {limit}: {left:#?}");
    }
    for (text, wanted) in bad {
        let found = broken(&folder, policy, text);
        // What the program cannot do is also said of other certificates.
        let limited = |rule: &str| limits.iter().any(|limit| rule.contains(limit));
        let more: Vec<&String> = found.iter().filter(|rule| !left.contains(rule) && !limited(rule)).collect();
        assert!(!more.is_empty(), "{policy}: nothing breaks it in\n{text}");
        assert!(more.iter().all(|rule| rule.contains(wanted)), "{policy}: {wanted}: {more:#?}\n--- in\n{text}");
    }
}

/// Changes that break every policy about the whole path.
fn whole_path(certificate: &str, tls: &str) -> Vec<(String, &'static str)> {
    let upstream = |server: &str, more: &str| format!("[[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n{more}");
    let host = |names: &str, more: &str| format!("[[host]]\nnames = [\"{names}\"]\nlisteners = [{more}\n");
    let secure = "\"127.0.0.1:8443\"]";
    let uses = host("b.example", &format!("{secure}\nupstream = \"u\""));
    let expired = if certificate == "ml-dsa-87" { "ml-dsa-87-expired" } else { "expired" };
    vec![
        (text(certificate, &format!("{tls}dangerous_key_log = \"keys.log\"\n"), ""), "secrets of connections"),
        (
            text(
                certificate,
                tls,
                &(upstream(
                    "https://127.0.0.1:1",
                    &format!("[upstream.tls]\n{tls}dangerous_skip_verification = true\n"),
                ) + &uses),
            ),
            "is not checked",
        ),
        (text(certificate, tls, &(upstream("http://192.0.2.1:1", "") + &uses)), "leave the private network"),
        (text(certificate, tls, &(upstream("app.example.com:80", "") + &uses)), "leave the private network"),
        (
            text(certificate, tls, &host("b.example", &format!("{secure}\nto = [\"http://192.0.2.1:1\"]"))),
            "leave the private network",
        ),
        (
            text(
                certificate,
                tls,
                &format!(
                    "[[listener]]\naddress = \"192.0.2.9:8080\"\n{}",
                    host("b.example", "\"192.0.2.9:8080\"]\nrespond = {}")
                ),
            ),
            "serves b.example without encryption",
        ),
        (text(certificate, tls, "[admin]\nlisten = \"192.0.2.9:9180\"\n"), "the admin listener"),
        (text(expired, tls, ""), "it is not valid now"),
    ]
}

fn check_whole_path(policy: Policy, certificate: &str, tls: &str, limits: &[&str]) {
    let bad = whole_path(certificate, tls);
    let bad: Vec<(&str, &str)> = bad.iter().map(|(text, wanted)| (text.as_str(), *wanted)).collect();
    // What is allowed: a redirect without TLS, and servers of the private network.
    let good = "[[listener]]\naddress = \"192.0.2.9:8080\"\n\
                [[host]]\nnames = [\"*\"]\nlisteners = [\"192.0.2.9:8080\"]\nredirect = \"https://{host}{uri}\"\n\
                [[host]]\nnames = [\"b.example\"]\nlisteners = [\"127.0.0.1:8443\"]\n\
                to = [\"http://10.0.0.1:1\", \"http://app.internal:1\"]\n\
                [[host]]\nnames = [\"c.example\"]\nlisteners = [\"127.0.0.1:8443\"]\npassthrough = \"relayed\"\n\
                [[upstream]]\nname = \"relayed\"\nservers = [\"tcp://192.0.2.1:443\"]\n\
                [admin]\nlisten = \"127.0.0.1:9180\"\n";
    check(policy, &text(certificate, tls, good), limits, &bad);
}

#[test]
fn modern() {
    let modern = "preset = \"modern\"\n";
    check(
        Policy::Modern,
        &text("ecdsa", modern, ""),
        &[],
        &[
            (&text("ecdsa", "", ""), "\"versions\" has 1.2"),
            (&text("rsa", modern, ""), "its key is RSA"),
            (&text("p521", modern, ""), "ECDSA with 521 bits"),
            (&text("ed25519", modern, ""), "Ed25519"),
            (&text("ml-dsa-44", modern, ""), "ML-DSA-44"),
            (&text("ecdsa", &format!("{modern}groups = [\"MLKEM768\"]\n"), ""), "\"groups\" has MLKEM768"),
            (&text("year", modern, ""), "valid for 365 days, but at most 90 are allowed"),
            (&text("small", modern, ""), "its key is RSA"),
            (&text("sha1", modern, ""), "SHA-1"),
        ],
    );
}

#[test]
fn intermediate() {
    check(
        Policy::Intermediate,
        &text("year", "", ""),
        &[],
        &[
            (&text("small", "", ""), "its RSA key has 1024 bits"),
            (&text("p521", "", ""), "ECDSA with 521 bits"),
            (&text("ed25519", "", ""), "Ed25519"),
            (&text("long", "", ""), "at most 366 are allowed"),
            (&text("sha1", "", ""), "SHA-1"),
        ],
    );
    // A stricter configuration breaks nothing.
    check(Policy::Intermediate, &text("rsa", "preset = \"modern\"\n", ""), &[], &[]);
}

#[test]
fn old() {
    let limit = ["no TLS 1.0"];
    check(
        Policy::Old,
        &text("rsa", "", ""),
        &limit,
        &[
            (&text("ecdsa", "", ""), "no certificate has an RSA key"),
            (&text("rsa", "preset = \"modern\"\n", ""), "TLS 1.2 is not enabled"),
            (&text("rsa", "versions = [\"1.2\"]\n", ""), "TLS 1.3 is not enabled"),
            (&text("rsa-long", "", ""), "at most 366 are allowed"),
            (&text("rsa-small", "", ""), "its RSA key has 1024 bits"),
            (&text("rsa-sha1", "", ""), "SHA-1"),
        ],
    );
}

#[test]
fn the_advice_for_a_plain_listener_names_it() {
    let more = "[[listener]]\naddress = \"192.0.2.9:8080\"\n\
                [[host]]\nnames = [\"b.example\"]\nlisteners = [\"192.0.2.9:8080\"]\nrespond = {}\n";
    let folder = folder();
    let path = folder.write("sealane.toml", text("ecdsa", "", more));
    let Err(errors) = resolve::audit_and_wait(&path, Policy::PciDss4) else { panic!("it is refused") };
    let errors = errors.to_string();
    let advice = "names = [\"*\"], listeners = [\"192.0.2.9:8080\"] and redirect = \"https://{host}{uri}\"";
    assert!(errors.contains(advice), "{errors}");
}

#[test]
fn pci_dss_4() {
    check_whole_path(Policy::PciDss4, "ecdsa", "", &[]);
    check(
        Policy::PciDss4,
        &text("ed25519", "", ""),
        &[],
        &[(&text("small", "", ""), "its RSA key has 1024 bits"), (&text("sha1", "", ""), "SHA-1")],
    );
}

#[test]
fn hipaa() {
    check_whole_path(Policy::Hipaa, "ecdsa", NIST, &[]);
    let https = "[[host]]\nnames = [\"b.example\"]\nlisteners = [\"127.0.0.1:8443\"]\nto = [\"https://b.example\"]\n";
    check(
        Policy::Hipaa,
        &text("ecdsa", NIST, ""),
        &[],
        &[
            (&text("ecdsa", &NIST.replace("\"secp256r1\"", "\"x25519\""), ""), "\"groups\" has x25519"),
            (
                &text("ecdsa", &NIST.replace(", \"secp256r1\", \"secp384r1\"", ""), ""),
                "\"groups\" has neither of secp256r1 and secp384r1",
            ),
            (&text("ecdsa", NIST.split_inclusive('\n').next().unwrap(), ""), "CHACHA20"),
            (
                &text(
                    "ecdsa",
                    &format!("{}versions = [\"1.2\"]\n", NIST.replace("\"TLS_AES_256_GCM_SHA384\", ", "")),
                    "",
                ),
                "TLS 1.3 is not enabled",
            ),
            (&text("ecdsa", &format!("{NIST}early_data = \"16KiB\"\n"), ""), "early data is accepted"),
            (&text("ed25519", NIST, ""), "Ed25519"),
            (&text("small", NIST, ""), "its RSA key has 1024 bits"),
            (&text("sha1", NIST, ""), "SHA-1"),
            // What is negotiated with servers, too.
            (&text("ecdsa", NIST, https), "which the policy does not allow"),
        ],
    );
}

#[test]
fn fips_140_3() {
    let limit = ["not a validated module"];
    check_whole_path(Policy::Fips1403, "ecdsa", NIST, &limit);
    check(
        Policy::Fips1403,
        &text("ed25519", NIST, ""),
        &limit,
        &[
            (&text("ecdsa", &NIST.replace("\"secp256r1\"", "\"x25519\""), ""), "\"groups\" has x25519"),
            (&text("ecdsa", NIST.split_inclusive('\n').next().unwrap(), ""), "CHACHA20"),
            (&text("small", NIST, ""), "its RSA key has 1024 bits"),
            (&text("sha1", NIST, ""), "SHA-1"),
            (&text("ecdsa", NIST, TO_A_SERVER), "which the policy does not allow"),
            // What no build has inside the module.
            (&text("ecdsa", NIST, "").replace("[listener.tls]", "http3 = true\n[listener.tls]"), "QUIC's packets"),
            (&text("ecdsa", NIST, "basic_auth = { users = \"users\" }\n"), "Argon2 and bcrypt"),
        ],
    );
}

/// A server that is talked to with the defaults.
const TO_A_SERVER: &str =
    "[[host]]\nnames = [\"b.example\"]\nlisteners = [\"127.0.0.1:8443\"]\nto = [\"https://b.example\"]\n";

#[test]
fn cnsa_2() {
    let best = "versions = [\"1.3\"]\ngroups = [\"MLKEM1024\"]\nciphers = [\"TLS_AES_256_GCM_SHA384\"]\n";
    let tls12 = "groups = [\"MLKEM1024\"]\n\
                 ciphers = [\"TLS_AES_256_GCM_SHA384\", \"ECDHE-ECDSA-AES256-GCM-SHA384\"]\n";
    check_whole_path(Policy::Cnsa2, "ml-dsa-87", best, &[]);
    check(
        Policy::Cnsa2,
        &text("ml-dsa-87", best, ""),
        &[],
        &[
            (&text("ml-dsa-87", tls12, ""), "\"versions\" has 1.2"),
            (&text("ml-dsa-87", &best.replace("MLKEM1024", "X25519MLKEM768"), ""), "\"groups\" has X25519MLKEM768"),
            (&text("ml-dsa-87", &best.replace("MLKEM1024", "MLKEM768"), ""), "\"groups\" has MLKEM768"),
            (&text("ml-dsa-87", &best.replace("256_GCM_SHA384", "128_GCM_SHA256"), ""), "TLS_AES_128_GCM_SHA256"),
            (&text("ml-dsa-87", &format!("{best}early_data = \"16KiB\"\n"), ""), "early data is accepted"),
            (&text("ml-dsa-44", best, ""), "its key is ML-DSA-44"),
            (&text("ecdsa", best, ""), "ECDSA with 256 bits"),
            (&text("rsa", best, ""), "its key is RSA"),
            (&text("ml-dsa-87-signed", best, ""), "it is signed with another algorithm"),
            // Its key, too.
            (&text("ml-dsa-87-sha1", best, ""), "certificate 2: "),
            (&text("ml-dsa-87", best, TO_A_SERVER), "which the policy does not allow"),
        ],
    );
}

/// A policy that can be fulfilled is fulfilled by its own preset, and the preset keeps to the policy without an audit.
#[test]
fn a_policy_is_also_a_preset() {
    for policy in [Policy::Modern, Policy::Intermediate, Policy::PciDss4, Policy::Hipaa] {
        check(policy, &text("ecdsa", &format!("preset = \"{policy}\"\n"), ""), &[], &[]);
    }
    check(Policy::Cnsa2, &text("ml-dsa-87", "preset = \"cnsa-2\"\n", ""), &[], &[]);
    let folder = folder();
    let report = |tls: &str| folder.report(&text("ecdsa", tls, ""));
    let hipaa = "preset = \"hipaa\"\n";
    assert_eq!(report(hipaa), "");
    for (more, wanted) in [
        ("groups = [\"x25519\"]\n", "hipaa: \"groups\" has x25519"),
        ("versions = [\"1.2\"]\n", "hipaa: TLS 1.3 is not enabled"),
        ("early_data = \"16KiB\"\n", "hipaa: early data is accepted"),
        (
            "ciphers = [\"TLS_CHACHA20_POLY1305_SHA256\", \"ECDHE-ECDSA-AES256-GCM-SHA384\"]\n",
            "hipaa: \"ciphers\" has TLS_CHACHA20",
        ),
    ] {
        let said = report(&format!("{hipaa}{more}"));
        assert!(said.contains("error") && said.contains(wanted), "{more}: {said}");
    }
    let cnsa = report("preset = \"cnsa-2\"\ngroups = [\"MLKEM1024\", \"x25519\"]\n");
    assert!(cnsa.contains("cnsa-2: \"groups\" has x25519"), "{cnsa}");
    // Nothing that the policy does not allow is advised, and what is wrong is where the report points.
    for (more, wanted, help) in [
        ("versions = [\"1.3\", \"1.2\"]\n", "cnsa-2: \"versions\" has 1.2", "write versions = [\"1.3\"]"),
        ("versions = [\"1.2\"]\n", "cnsa-2: \"versions\" has 1.2", "write versions = [\"1.3\"]"),
        (
            "ciphers = [\"ECDHE-ECDSA-AES256-GCM-SHA384\"]\n",
            "\"ciphers\" has no cipher for it",
            "add \"TLS_AES_256_GCM_SHA384\"",
        ),
    ] {
        let said = report(&format!("preset = \"cnsa-2\"\n{more}"));
        assert!(said.contains(wanted) && said.contains(help), "{more}: {said}");
        assert_eq!(said.matches("error:").count(), 1, "{more}: {said}");
        assert!(said.contains(&format!("| {}", more.trim_end())), "{more}: {said}");
    }
    for alias in ["policy", "tls_policy"] {
        let said = report(&format!("{alias} = \"cnsa-2\"\n"));
        assert!(said.contains(&format!("\"{alias}\"")) && said.contains("preset"), "{said}");
    }
    // Mozilla's presets may be overridden.
    assert_eq!(report("preset = \"modern\"\nversions = [\"1.3\", \"1.2\"]\n"), "");
    for (name, why, instead) in
        [("old", "this program has no TLS 1.0", "intermediate"), ("fips-140-3", "is not a validated module", "hipaa")]
    {
        let said = report(&format!("preset = \"{name}\"\n"));
        assert!(said.contains(&format!("\"preset\" cannot be \"{name}\": ")) && said.contains(why), "{said}");
        assert!(said.contains(&format!("write preset = \"{instead}\"")), "{said}");
    }
    assert!(report("preset = \"medium\"\n").contains("intermediate"));
}

#[test]
fn the_report_names_what_withstands_a_quantum_computer() {
    let folder = folder();
    let upstream = "[[upstream]]\nname = \"u\"\nservers = [\"https://b.example\"]\n[upstream.tls]\nca = \"certs/ca.pem\"\n\
                    groups = [\"x25519\"]\n\
                    [[host]]\nnames = [\"b.example\"]\nlisteners = [\"127.0.0.1:8443\"]\nupstream = \"u\"\n\
                    [[listener]]\naddress = \"127.0.0.1:8080\"\n";
    let lines = |tls: &str| -> Vec<String> {
        let (config, _) = folder.load(&text("ecdsa", tls, upstream)).unwrap();
        config
            .post_quantum()
            .iter()
            .map(|one| one.to_string().replace(&folder.path("").display().to_string(), ""))
            .collect()
    };
    assert_eq!(
        lines(""),
        [
            "listener 127.0.0.1:8443: ready for peers that support it: ML-KEM for peers with TLS 1.3 that support it, and \
             other groups for all other peers",
            "listener 127.0.0.1:8080: not ready: it has no TLS",
            "upstream u: not ready: \"groups\" has no group with ML-KEM, such as \"X25519MLKEM768\"",
            "certificate certs/ecdsa.pem: not ready: its key is ECDSA and not ML-DSA",
        ]
    );
    let strict = lines("preset = \"modern\"\ngroups = [\"X25519MLKEM768\"]\n");
    assert_eq!(strict[0], "listener 127.0.0.1:8443: ready: every key exchange has ML-KEM");
    for (certificate, wanted) in [
        ("ml-dsa-44", "ready: its key and its signatures are ML-DSA"),
        ("ml-dsa-87-signed", "not ready: its key is ML-DSA, but a signature in its chain is not"),
    ] {
        let (config, _) = folder.load(&text(certificate, "preset = \"modern\"\n", "")).unwrap();
        let found = config.post_quantum().into_iter().find(|one| one.kind == "certificate").unwrap().to_string();
        assert!(found.ends_with(&format!("{certificate}.pem: {wanted}")), "{found}");
    }
    // A group whose connections are relayed; one that gets requests, too; and one that is asked by `forward_auth`, too.
    let upstream = |name: &str| format!("[[upstream]]\nname = \"{name}\"\nservers = [\"127.0.0.1:9\"]\n");
    let passthrough = |name: &str| {
        format!("[[host]]\nnames = [\"{name}.example\"]\nlisteners = [\"127.0.0.1:8443\"]\npassthrough = \"{name}\"\n")
    };
    let users = "[[host]]\nnames = [\"b.example\"]\nlisteners = [\"127.0.0.1:8443\"]\nupstream = \"both\"\n\
                 [[host]]\nnames = [\"c.example\"]\nlisteners = [\"127.0.0.1:8443\"]\nto = [\"http://127.0.0.1:8\"]\n\
                 forward_auth = { upstream = \"asked\", path = \"/\" }\n";
    let names = ["relayed", "both", "asked"];
    let text = text("ecdsa", "", &(names.map(upstream).concat() + &names.map(passthrough).concat() + users));
    let (config, _) = folder.load(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let lines: Vec<String> = config.post_quantum().iter().map(ToString::to_string).collect();
    let line = |name: &str| lines.iter().find(|line| line.starts_with(&format!("upstream {name}: "))).unwrap();
    assert_eq!(line("relayed"), "upstream relayed: relayed: clients and servers agree on the key exchange");
    for name in ["both", "asked"] {
        assert_eq!(*line(name), format!("upstream {name}: not ready: the gateway talks to it without TLS"));
    }
}
