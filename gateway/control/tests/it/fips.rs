//! Builds with AWS-LC's FIPS module (`cargo test -p sealane-control --features fips fips`): what they serve is inside the module, and what
//! could not be is refused.

use super::files::Folder;
use rustls::pki_types::PrivateKeyDer;
use sealane_control::config::{Config, challenge_policy};
use sealane_control::fips;
use sealane_tls::policy::{Group, KeyKind, Suite, TicketKeys};
use sealane_tls::{ClientContext, ServerContext};
use std::sync::Arc;

fn folder() -> Folder {
    let folder = Folder::new();
    folder.certificate("a", &["a.example"]);
    folder.ca("ca");
    folder
}

fn text(of_listener: &str, tls: &str, more: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:8443\"\n{of_listener}[listener.tls]\n\
         certificates = {{ cert = \"certs/a.pem\", key = \"certs/a.key\" }}\n{tls}\
         [[host]]\nnames = [\"*\"]\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"https://b.example\"]\n[upstream.tls]\nca = \"certs/ca.pem\"\n{more}"
    )
}

fn loaded(folder: &Folder, text: &str) -> Config {
    folder.load(text).unwrap_or_else(|errors| panic!("{errors}\n--- in\n{text}")).0
}

#[test]
fn the_module_is_in_force() {
    assert_eq!(fips::check(), Ok(()));
    assert!(fips::module().is_some_and(|module| module.starts_with("AWS-LC-FIPS ")), "{:?}", fips::module());
}

/// With every preset, what is not approved is left out, and rustls says of the configurations that they are inside the module.
#[test]
fn what_is_served_is_inside_the_module() {
    let folder = folder();
    let keys = TicketKeys { epoch: 1, masters: vec![[7; 32]], lifetime: 60, reset: [0; 32] };
    for preset in ["", "modern", "intermediate", "pci-dss-4", "hipaa", "fips-140-3"] {
        let tls = if preset.is_empty() { String::new() } else { format!("preset = \"{preset}\"\n") };
        let config = loaded(&folder, &text("", &tls, ""));
        let listener = config.listeners[0].tls.as_ref().expect("it has TLS");
        for policy in &listener.policies {
            assert!(
                !policy.groups.is_empty() && !policy.groups.contains(&Group::X25519),
                "{preset}: {:?}",
                policy.groups
            );
            let is_chacha = |suite: &Suite| format!("{suite:?}").contains("CHACHA");
            assert!(!policy.suites.is_empty() && !policy.suites.iter().any(is_chacha), "{preset}: {:?}", policy.suites);
            assert_eq!(policy.identities.all[0].kind, KeyKind::Ecdsa);
            ServerContext::new(policy, &keys).unwrap_or_else(|why| panic!("{preset}: {why}"));
        }
        let upstream = config.upstreams[0].tls.as_ref().expect("it is asked over TLS");
        ClientContext::new(upstream).unwrap_or_else(|why| panic!("{preset}: {why}"));
    }
}

/// What no setting of the operator has chosen: the defaults for `https://` servers, and what an authority is shown by TLS-ALPN-01.
#[test]
fn what_nobody_has_set_is_inside_the_module() {
    let to = "[[listener]]\naddress = \"127.0.0.1:8080\"\n[[host]]\nnames = [\"*\"]\nto = [\"https://b.example\"]\n";
    let config = loaded(&folder(), to);
    ClientContext::new(config.upstreams[0].tls.as_ref().expect("it is asked over TLS")).expect("a configuration");
    let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let policy = Arc::new(challenge_policy("a.example", made.cert.der().clone(), key));
    let keys = TicketKeys { epoch: 1, masters: vec![[7; 32]], lifetime: 60, reset: [0; 32] };
    ServerContext::new(&policy, &keys).expect("a configuration");
}

#[test]
fn what_is_outside_the_module_is_refused() {
    let folder = folder();
    folder.write("users", format!("alice:{}\n", sealane_passwords::hash_password("right").expect("a hash")));
    for (text, wanted) in [
        (text("", "groups = [\"x25519\"]\n", ""), "fips-140-3: \"groups\" has x25519"),
        (
            text("", "ciphers = [\"TLS_CHACHA20_POLY1305_SHA256\"]\nversions = [\"1.3\"]\n", ""),
            "\"ciphers\" has TLS_CHACHA20",
        ),
        (text("", "", "groups = [\"x25519\"]\n"), "fips-140-3: \"groups\" has x25519"),
        (text("http3 = true\n", "", ""), "QUIC's packets"),
        (
            text("", "", "") + "[[host]]\nnames = [\"c.example\"]\nrespond = {}\nbasic_auth = { users = \"users\" }\n",
            "Argon2",
        ),
        (text("", "", "") + "[store]\nurl = \"redis://127.0.0.1:6379\"\n", "values in the store"),
        (text("", "", "") + "[tunnel]\nlisten = \"127.0.0.1:1194\"\n", "the tunnel has cryptography outside"),
        (text("", "", "").replace("servers =", "http = \"3\"\nservers ="), "QUIC's packets"),
    ] {
        let said = folder.report(&text);
        assert!(said.contains("error") && said.contains(wanted), "{wanted}: {said}\n--- in\n{text}");
    }
}
