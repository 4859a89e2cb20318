//! Certificates whose files change while the gateway serves: taken without a reload, and only if they are good.

use crate::admin_api::{over_tls, with_certificate};
use crate::operating::Operated;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sealane_interop::backend::Backend;
use sealane_interop::client;
use sealane_interop::crowd::Crowd;
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{eventually, ports};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Overwrites a pair in the order in which programs do it: certificate, then key.
fn replace(old: &Identity, new: &Identity) {
    for (to, from) in [(&old.cert, &new.cert), (&old.key, &new.key)] {
        std::fs::copy(from, to).expect("a file can be overwritten");
    }
}

fn leaf(identity: &Identity) -> Vec<u8> {
    identity.load().0[0].to_vec()
}

fn replacements(gateway: &Operated, result: &str) -> f64 {
    let text = gateway.gateway.metrics();
    let name = format!("sealane_certificate_replacements_total{{result=\"{result}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name)).expect("there is such a counter");
    line.parse().expect("a counter is a number")
}

#[test]
fn changed_certificates_are_served_without_a_reload_and_a_bad_pair_is_not() {
    let site = Site::new();
    let backend = Backend::saying("one");
    let served = site.issue("served", &[HOST]);
    let listen = ports::free();
    let file = |admin: &str| {
        let (cert, key) = (served.cert.display(), served.key.display());
        format!(
            "{admin}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             [[host]]\nnames = [\"*\"]\nto = [{:?}]\n",
            backend.url()
        )
    };
    let first = leaf(&served);
    let gateway = Operated::start(&site, 2, file, listen);
    assert_eq!(gateway.served_certificate(), Some(first));
    let crowd = Crowd::start(listen, &Arc::new(client::config(&site.ca)), 2, |text| text == "one");

    let second = site.issue("second", &[HOST]);
    replace(&served, &second);
    assert!(eventually(|| gateway.served_certificate() == Some(leaf(&second))), "{}", gateway.gateway.server.log());
    assert_eq!(gateway.status()["reloads"]["good"], 0, "the configuration was not read again");

    // A key of another certificate: refused, with the reason, and what is served stays.
    let before = replacements(&gateway, "refused");
    std::fs::copy(site.issue("other", &[HOST]).key, &served.key).expect("a file can be overwritten");
    assert!(eventually(|| replacements(&gateway, "refused") > before));
    assert_eq!(gateway.served_certificate(), Some(leaf(&second)));
    let status = gateway.status();
    let why = status["certificates"][0]["refused"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("does not belong to the certificate"), "{why}");
    assert!(gateway.gateway.server.log().contains("does not belong to the certificate"));

    // A file that has gone, and comes back with its partner.
    std::fs::remove_file(&served.key).expect("a file can be removed");
    assert!(eventually(|| replacements(&gateway, "refused") > before + 1.0));
    assert_eq!(gateway.served_certificate(), Some(leaf(&second)));
    let third = site.issue("third", &[HOST]);
    replace(&served, &third);
    assert!(eventually(|| gateway.served_certificate() == Some(leaf(&third))));
    assert_eq!(gateway.status()["certificates"][0]["refused"], "");
    let tally = crowd.stop();
    assert!(tally.requests > 0 && tally.failures.is_empty(), "{:?}", tally.failures);
}

/// Until the changed files are refused for this reason.
fn is_refused(gateway: &Operated, why: &str) -> bool {
    let refused = || gateway.status()["certificates"][0]["refused"].as_str().unwrap_or_default().to_owned();
    eventually(|| refused().contains(why))
}

#[test]
fn a_certificate_that_is_not_valid_does_not_replace_one_that_is() {
    const DAY: u64 = 86_400;
    let site = Site::new();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    let served = site.issue_within("served", &[HOST], now() - DAY, now() + 60 * DAY);
    let first = leaf(&served);
    let listen = ports::free();
    let file = |admin: &str| {
        let (cert, key) = (served.cert.display(), served.key.display());
        format!(
            "{admin}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n"
        )
    };
    let gateway = Operated::start(&site, 1, file, listen);
    replace(&served, &site.issue_within("expired", &[HOST], now() - 9 * DAY, now() - 3 * DAY));
    assert!(is_refused(&gateway, "the certificate expired 3 days ago"), "{}", gateway.gateway.server.log());
    assert_eq!(gateway.served_certificate(), Some(first.clone()));
    assert!(gateway.gateway.server.log().contains("the certificate in use stays"));

    // Issued ahead of its time, or this machine's clock is slow.
    replace(&served, &site.issue_within("early", &[HOST], now() + DAY, now() + 60 * DAY));
    assert!(is_refused(&gateway, "the certificate is not valid before"), "{}", gateway.gateway.server.log());
    assert_eq!(gateway.served_certificate(), Some(first));
    // Once it is valid, it is served, without another change of the files.
    let from = now() + 12;
    let soon = site.issue_within("soon", &[HOST], from, from + 60 * DAY);
    replace(&served, &soon);
    assert!(eventually(|| gateway.served_certificate() == Some(leaf(&soon))), "{}", gateway.gateway.server.log());
    assert!(now() >= from, "it was served before it was valid");
    assert!(eventually(|| gateway.status()["certificates"][0]["refused"] == ""));
    assert_eq!(gateway.status()["reloads"]["good"], 0, "the configuration was not read again");
}

/// Runs the command with `openssl` of a help text. It answers the questions for passphrases with these arguments.
fn follow(said: &str, passphrases: &[&str]) {
    let (_, command) = said.split_once(": openssl ").expect("the help has a command");
    let (command, _) = command.split_once(" && sudo ").expect("the permissions come behind it");
    let (subcommand, arguments) = command.split_once(' ').expect("a subcommand has arguments");
    let mut openssl = std::process::Command::new("openssl");
    openssl.arg(subcommand).args(passphrases).args(arguments.split(' '));
    let done = openssl.output().expect("the test looked for openssl first");
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

const DAY: u64 = 86_400;

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs()
}

/// A reload that nobody has asked for follows the same rule; one that an operator asks for takes the files as they are.
#[test]
fn a_reload_by_changed_files_keeps_a_valid_certificate() {
    let site = Site::new();
    let served = site.issue_within("served", &[HOST], seconds() - DAY, seconds() + 60 * DAY);
    let first = leaf(&served);
    let listen = ports::free();
    let file = |admin: &str| {
        let (cert, key) = (served.cert.display(), served.key.display());
        format!(
            "reload_on_change = true\n{admin}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n"
        )
    };
    let gateway = Operated::start(&site, 1, file, listen);
    replace(&served, &site.issue_within("expired", &[HOST], seconds() - 9 * DAY, seconds() - 3 * DAY));
    let reloads = || gateway.status()["reloads"]["good"].as_u64().unwrap_or(0);
    assert!(eventually(|| reloads() >= 1), "{}", gateway.gateway.server.log());
    assert!(is_refused(&gateway, "the certificate expired 3 days ago"), "{}", gateway.gateway.server.log());
    assert_eq!(gateway.served_certificate(), Some(first));
    crate::operating::order(&gateway.socket, "reload").expect("an operator may");
    let end = || gateway.status()["certificates"][0]["not_after"].as_u64().unwrap_or(u64::MAX);
    assert!(eventually(|| end() < seconds()), "the operator has asked for it");
}

#[test]
fn the_admin_listener_keeps_a_valid_certificate_and_takes_new_cas() {
    let (site, others) = (Site::new(), Site::new());
    let own = site.issue_within("admin-own", &[HOST], seconds() - DAY, seconds() + 60 * DAY);
    let first = leaf(&own);
    let listen = ports::free();
    let operators = site.file("operators.pem", std::fs::read(&site.ca).expect("it is there"));
    let tls = format!(
        "names = [{HOST:?}]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n",
        own.cert.display(),
        own.key.display(),
        operators.display()
    );
    let served = site.issue("served", &[HOST]);
    let file = |admin: &str| {
        let (cert, key) = (served.cert.display(), served.key.display());
        format!(
            "{admin}{tls}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
             [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n"
        )
    };
    let gateway = Operated::start(&site, 1, file, listen);
    let admin = gateway.gateway.admin;
    let alice = with_certificate(&site, &site.issue("alice", &["alice.example.test"]));
    let shown = || {
        let stream = client::handshake(client::tcp(admin), &alice, HOST).ok()?;
        stream.conn.peer_certificates().map(|chain| chain[0].to_vec())
    };
    assert!(eventually(|| shown() == Some(first.clone())));
    // An expired certificate, and operators of another authority, too.
    replace(&own, &site.issue_within("admin-expired", &[HOST], seconds() - 9 * DAY, seconds() - 3 * DAY));
    let both = [std::fs::read(&site.ca), std::fs::read(&others.ca)].map(|pem| pem.expect("it is there")).concat();
    std::fs::write(&operators, both).expect("a file can be overwritten");
    let log = || gateway.gateway.server.log();
    assert!(eventually(|| log().contains("the certificate in use stays")), "{}", log());
    assert_eq!(shown(), Some(first));
    let bob = {
        let (chain, key) = others.issue("bob", &["bob.example.test"]).load();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&site.ca).expect("PEM")).expect("a certificate");
        let builder = ClientConfig::builder_with_provider(client::provider().into());
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("the provider knows it");
        Arc::new(builder.with_root_certificates(roots).with_client_auth_cert(chain, key).expect("they belong together"))
    };
    let reached = || over_tls(admin, &bob, "GET", "/healthz", &[], "").is_ok_and(|reply| reply.status == 200);
    assert!(eventually(reached), "{}", log());
    // Once it is valid, it is used.
    let (from, soon) = (seconds() + 12, "admin-soon");
    let soon = site.issue_within(soon, &[HOST], from, from + 60 * DAY);
    replace(&own, &soon);
    assert!(eventually(|| shown() == Some(leaf(&soon))), "{}", log());
    assert!(seconds() >= from, "it was used before it was valid");
}

/// The key of a certificate under a passphrase, as OpenSSL writes it.
fn encrypted(key: &Path, to: &Path, passphrase: &str, arguments: &[&str]) {
    let mut command = std::process::Command::new("openssl");
    command.args(["pkcs8", "-topk8", "-in"]).arg(key).arg("-out").arg(to);
    command.args(["-passout", &format!("pass:{passphrase}")]).args(arguments);
    let done = command.output().expect("the test looked for openssl first");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn keys_under_a_passphrase_are_served() {
    if sealane_interop::peers::find("openssl").is_none() {
        sealane_interop::skip!("`openssl` is not installed");
    }
    let site = Site::new();
    let identity = site.issue("served", &[HOST]);
    let key = site.path().join("encrypted.key");
    let passphrase = site.file("passphrase", "open sésame\n");
    let (cert, words) = (identity.cert.display(), passphrase.display());
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\n\
         certificates = [{{ cert = \"{cert}\", key = \"{}\", passphrase_file = \"{words}\" }}]\n\
         [[host]]\nnames = [\"*\"]\nrespond = {{ status = 200 }}\n",
        key.display()
    );
    let file = site.file("check.toml", &text);
    let check = || {
        let out = sealane_interop::gateway::run(["check", "-c", &file.display().to_string()]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    for arguments in [
        &["-v2", "aes-256-cbc"][..],
        &["-v2", "aes-128-cbc", "-v2prf", "hmacWithSHA1"],
        &["-v2", "aes-192-cbc", "-v2prf", "hmacWithSHA512", "-iter", "100000"],
    ] {
        encrypted(&identity.key, &key, "open sésame", arguments);
        let (good, said) = check();
        assert!(good, "{arguments:?}: {said}");
    }
    for (passphrase, arguments, wanted) in [
        ("another", &["-v2", "aes-256-cbc"][..], "does not decrypt the private key"),
        ("open sésame", &["-scrypt"], "encrypted with scrypt, which is not supported"),
    ] {
        encrypted(&identity.key, &key, passphrase, arguments);
        let (good, said) = check();
        assert!(!good && said.contains(wanted), "{arguments:?}: {said}");
    }
    // The advice for the last one, which is not supported, makes a key that is.
    follow(&check().1, &["-passin", "pass:open sésame", "-passout", "pass:open sésame"]);
    std::fs::rename(site.path().join("encrypted.key.new"), &key).expect("a file can be renamed");
    let (good, said) = check();
    assert!(good, "{said}");
    std::fs::write(&passphrase, "\n").expect("a file can be written");
    let (good, said) = check();
    assert!(!good && said.contains("there is no passphrase in this file"), "{said}");

    // Such a key signs handshakes, and a changed one is decrypted again.
    std::fs::write(&passphrase, "open sésame\n").expect("a file can be written");
    encrypted(&identity.key, &key, "open sésame", &["-v2", "aes-256-cbc"]);
    let listen = ports::free();
    let text = text.replace("127.0.0.1:0", &listen.to_string());
    let gateway = Operated::start(&site, 1, |admin| format!("{admin}\n{text}"), listen);
    assert_eq!(gateway.served_certificate(), Some(leaf(&identity)));
    let second = site.issue("second", &[HOST]);
    encrypted(&second.key, &key, "open sésame", &["-v2", "aes-128-cbc"]);
    std::fs::copy(&second.cert, &identity.cert).expect("a file can be overwritten");
    let served = || gateway.served_certificate() == Some(leaf(&second));
    assert!(eventually(served), "{}", gateway.gateway.server.log());
}

/// The same key in the form of SEC1 (RFC 5915), behind a block with the name of its curve, as `openssl ecparam -genkey` writes both.
fn in_sec1(identity: &Identity, curve: &str) -> String {
    let openssl = |arguments: &[&str]| {
        let done = std::process::Command::new("openssl").args(arguments).output();
        let done = done.expect("the test looked for openssl first");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("PEM is ASCII")
    };
    let parameters = openssl(&["ecparam", "-name", curve]);
    let key = openssl(&["ec", "-in", &identity.key.display().to_string()]);
    assert!(parameters.starts_with("-----BEGIN EC PARAMETERS-----"), "{parameters:.40}");
    assert!(key.starts_with("-----BEGIN EC PRIVATE KEY-----"), "{key:.40}");
    parameters + &key
}

#[test]
fn keys_in_the_form_of_sec1_are_served_and_replaced() {
    sealane_interop::need!("openssl");
    let site = Site::new();
    let (first, second) = (site.issue("first", &[HOST]), site.issue_p384("second", &[HOST]));
    let (cert, key) = (site.path().join("served.pem"), site.path().join("served.key"));
    let put = |identity: &Identity, key_text: String| {
        std::fs::copy(&identity.cert, &cert).expect("a file can be written");
        std::fs::write(&key, key_text).expect("a file can be written");
    };
    put(&first, in_sec1(&first, "prime256v1"));
    let listen = ports::free();
    let file = |admin: &str| {
        format!(
            "{admin}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{{ cert = {cert:?}, key = {key:?} }}]\n\
             [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n"
        )
    };
    let gateway = Operated::start(&site, 1, file, listen);
    assert_eq!(gateway.served_certificate(), Some(leaf(&first)));
    assert_eq!(gateway.get("/").text(), "hello");
    put(&second, in_sec1(&second, "secp384r1"));
    assert!(eventually(|| gateway.served_certificate() == Some(leaf(&second))), "{}", gateway.gateway.server.log());
    // Cut: refused, and what is served stays.
    let whole = in_sec1(&second, "secp384r1");
    put(&second, whole[..whole.len() - 60].to_owned());
    assert!(is_refused(&gateway, "the file ends before"), "{}", gateway.gateway.server.log());
    assert_eq!(gateway.served_certificate(), Some(leaf(&second)));
}

/// A PKCS#12 bundle of a pair, as OpenSSL writes it.
fn bundle(identity: &Identity, ca: &Path, to: &Path, passphrase: &str, arguments: &[&str]) {
    let mut command = std::process::Command::new("openssl");
    command.args(["pkcs12", "-export", "-in"]).arg(&identity.cert).arg("-inkey").arg(&identity.key);
    command.arg("-certfile").arg(ca).arg("-out").arg(to);
    command.args(["-passout", &format!("pass:{passphrase}")]).args(arguments);
    let done = command.output().expect("the test looked for openssl first");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn bundles_are_served_and_a_changed_one_replaces_them() {
    sealane_interop::need!("openssl");
    let site = Site::new();
    let served = site.path().join("served.p12");
    let passphrase = site.file("passphrase", "open sésame\n");
    let first = site.issue("first", &[HOST]);
    bundle(&first, &site.ca, &served, "open sésame", &[]);
    let listen = ports::free();
    let file = |admin: &str| {
        format!(
            "{admin}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{}\", passphrase_file = \"{}\" }}]\n\
             [[host]]\nnames = [\"*\"]\nrespond = {{ body = \"hello\" }}\n",
            served.display(),
            passphrase.display()
        )
    };
    let gateway = Operated::start(&site, 2, file, listen);
    assert_eq!(gateway.served_certificate(), Some(leaf(&first)));
    assert_eq!(gateway.get("/").text(), "hello");
    let second = site.issue("second", &[HOST]);
    bundle(&second, &site.ca, &served, "open sésame", &["-keypbe", "AES-128-CBC", "-certpbe", "NONE"]);
    assert!(eventually(|| gateway.served_certificate() == Some(leaf(&second))), "{}", gateway.gateway.server.log());
    // Under another passphrase it is refused, and what is served stays.
    let before = replacements(&gateway, "refused");
    bundle(&first, &site.ca, &served, "another", &[]);
    assert!(eventually(|| replacements(&gateway, "refused") > before));
    assert_eq!(gateway.served_certificate(), Some(leaf(&second)));
    let log = gateway.gateway.server.log();
    assert!(log.contains("does not open the PKCS#12 bundle"), "{log}");
}

#[test]
fn bundles_that_cannot_be_used_are_errors_of_check() {
    sealane_interop::need!("openssl");
    let site = Site::new();
    let identity = site.issue("served", &[HOST]);
    let file = site.path().join("served.p12");
    let passphrase = site.file("passphrase", "secret");
    let check = |more: &str| {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\n\
             certificates = [{{ cert = \"{}\"{more} }}]\n[[host]]\nnames = [\"*\"]\nrespond = {{ status = 200 }}\n",
            file.display()
        );
        let text = site.file("check.toml", &text);
        let out = sealane_interop::gateway::run(["check", "-c", &text.display().to_string()]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let words = format!(", passphrase_file = \"{}\"", passphrase.display());
    let key = format!("{words}, key = \"{}\"", identity.key.display());
    let all: &[(&str, &[&str], &str, &str)] = &[
        ("secret", &[], &words, ""),
        ("secret", &["-macalg", "sha1"], &words, ""),
        ("secret", &["-macalg", "sha512", "-iter", "100000"], &words, ""),
        ("secret", &["-nomac"], &words, ""),
        ("", &["-keypbe", "NONE", "-certpbe", "NONE"], "", ""),
        ("secret", &[], "", "has a passphrase"),
        ("another", &[], &words, "does not open the PKCS#12 bundle"),
        ("another", &["-nomac"], &words, "does not open the PKCS#12 bundle"),
        ("secret", &["-keypbe", "PBE-SHA1-3DES"], &words, "protected with 3DES, which is not supported"),
        ("secret", &["-nocerts"], &words, "does not belong to the certificate"),
        ("secret", &[], &key, "remove \"key\""),
    ];
    for (own, arguments, more, wanted) in all {
        bundle(&identity, &site.ca, &file, own, arguments);
        let (good, said) = check(more);
        assert_eq!(good, wanted.is_empty(), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {wanted}: {said}");
    }
    // The advice for a bundle with an encryption that is not supported makes a file that can be served.
    bundle(&identity, &site.ca, &file, "secret", &["-keypbe", "PBE-SHA1-3DES"]);
    follow(&check(&words).1, &["-passin", "pass:secret"]);
    std::fs::rename(site.path().join("served.p12.pem"), &file).expect("a file can be renamed");
    let (good, said) = check("");
    assert!(good, "{said}");
    let done = std::process::Command::new("openssl")
        .args(["pkcs12", "-export", "-nokeys", "-passout", "pass:secret", "-in"])
        .arg(&identity.cert)
        .arg("-out")
        .arg(&file)
        .status();
    assert!(done.expect("the test looked for openssl first").success());
    let (good, said) = check(&words);
    assert!(!good && said.contains("has no private key"), "{said}");
}
