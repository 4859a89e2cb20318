//! The life of certificates: issued, listed, renewed, revoked; by our commands, by easy-rsa, and at a gateway that runs.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::peers::Said;
use sealane_interop::{eventually, need, process, skip};
use std::path::Path;
use std::process::Command;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

fn list(world: &World, folder: &str) -> serde_json::Value {
    let said = world.sealane(End::Server, &["tunnel", "ca", "list", "--folder", folder, "--json"], b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
    serde_json::from_str(&said.text()).expect("JSON")
}

fn states(list: &serde_json::Value) -> Vec<String> {
    let certificates = list["certificates"].as_array().expect("a list").iter();
    certificates
        .map(|c| format!("{} {}", c["name"].as_str().unwrap_or(""), c["state"].as_str().unwrap_or("")))
        .collect()
}

/// One command revokes: the client is out at once and learns why, does not come back, and everybody else stays.
#[test]
fn a_revoked_client_is_out_at_once() {
    let world = world!();
    world.init("");
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    let mut client = world.connected(&alice, &[]);
    let said_to = world.sealane(
        End::Server,
        &["tunnel", "ca", "revoke", "alice", "--reason", "keyCompromise", "--folder", "vpn"],
        b"",
    );
    assert_eq!(said_to.code, Some(0), "{}", said_to.all());
    assert!(said_to.all().contains("reloaded"), "{}", said_to.all());
    assert!(said(&server, "alice"), "{}", server.log());
    assert!(said(&server, "is disconnected: the client's certificate is no longer accepted"), "{}", server.log());
    assert!(
        said(&client, "AUTH: Received control message: AUTH_FAILED,the certificate is revoked"),
        "{}",
        client.log()
    );
    // It ends, and does not try again.
    client.wait();
    let again = world.openvpn(End::Client, &alice, &[]);
    assert!(
        said(&server, "the key exchange has failed: the certificate is not accepted: it is revoked"),
        "{}",
        again.log()
    );
    drop(again);
    let _bob = world.connected(&bob, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert_eq!(states(&list(&world, "vpn")), ["server valid", "alice revoked", "bob valid"]);
    // A revoked client may be given another certificate.
    let said_to = world.sealane(End::Server, &["tunnel", "client-config", "--folder", "vpn", "alice"], b"");
    let new = world.write("new.ovpn", &said_to.text());
    drop(_bob);
    let _alice = world.connected(&new, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}

/// The CA's key may be elsewhere, as on a stick that is seldom there.
#[test]
fn the_key_of_the_authority_may_be_elsewhere() {
    let world = world!();
    world.init("");
    std::fs::create_dir(world.path("stick")).expect("a folder can be made");
    std::fs::rename(world.path("vpn/ca.key"), world.path("stick/ca.key")).expect("it can be moved");
    let run = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        world.sealane(End::Server, &arguments, b"")
    };
    let without = run("tunnel client-config --folder vpn alice");
    assert_eq!(without.code, Some(1), "{}", without.all());
    assert!(without.all().contains("ca.key"), "{}", without.all());
    let made = run("tunnel client-config --folder vpn --ca-key stick/ca.key alice");
    assert_eq!(made.code, Some(0), "{}", made.all());
    let alice = world.write("alice.ovpn", &made.text());
    let server = world.serve();
    let client = world.connected(&alice, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    let revoked = run("tunnel ca revoke alice --folder vpn --ca-key stick/ca.key");
    assert_eq!(revoked.code, Some(0), "{}", revoked.all());
    assert!(said(&client, "AUTH_FAILED,the certificate is revoked"), "{}\n{}", client.log(), server.log());
    assert_eq!(states(&list(&world, "vpn")), ["server valid", "alice revoked"]);
    assert!(!world.path("vpn/ca.key").exists(), "nothing has written the key into the folder");
}

/// A revocation reaches a client that another process has taken over, too.
#[test]
fn a_client_that_was_taken_over_can_be_revoked() {
    let world = world!();
    world.init("");
    let alice = world.profile("alice");
    let server = world.serve();
    let client = world.connected(&alice, &[]);
    world.upgrade();
    assert!(said(&server, "1 clients taken over"), "{}", server.log());
    assert!(eventually(|| world.serving().len() == 1), "{}", server.log());
    let said_to = world.sealane(End::Server, &["tunnel", "ca", "revoke", "alice", "--folder", "vpn"], b"");
    assert_eq!(said_to.code, Some(0), "{}", said_to.all());
    assert!(said(&client, "AUTH_FAILED,the certificate is revoked"), "{}\n{}", client.log(), server.log());
}

/// A name is given once. Renewed, the client connects with the new certificate, and the old one is still good; the server's own
/// certificate is renewed under its clients. When certificates expire is shown.
#[test]
fn certificates_are_renewed_and_their_ends_are_shown() {
    let curl = need!("curl");
    let world = world!();
    world.init("[admin]\nlisten = \"127.0.0.1:9101\"\nsocket = \"admin.sock\"");
    let alice = world.profile("alice");
    let again = world.sealane(End::Server, &["tunnel", "client-config", "--folder", "vpn", "alice"], b"");
    assert_eq!(again.code, Some(1), "{}", again.all());
    assert!(again.all().contains("alice has a certificate already"), "{}", again.all());
    let server = world.serve();
    let _client = world.connected(&alice, &[]);
    let renewed =
        world.sealane(End::Server, &["tunnel", "ca", "renew", "alice", "--folder", "vpn", "--days", "30"], b"");
    assert_eq!(renewed.code, Some(0), "{}", renewed.all());
    let renewed = world.write("renewed.ovpn", &renewed.text());
    drop(_client);
    let _client = world.connected(&renewed, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    let before = world.read("vpn/server.crt");
    let said_to = world.sealane(End::Server, &["tunnel", "ca", "renew", "server", "--folder", "vpn"], b"");
    assert_eq!(said_to.code, Some(0), "{}", said_to.all());
    assert!(said_to.all().contains("reloaded"), "{}", said_to.all());
    assert_ne!(world.read("vpn/server.crt"), before);
    let all = list(&world, "vpn");
    assert_eq!(states(&all), ["server valid", "alice valid", "alice valid", "server valid"]);
    let end = |i: usize| all["certificates"][i]["not_after"].as_i64().expect("a time");
    assert!(end(2) < end(1), "{all}");
    let mut metrics = String::new();
    let shown = eventually(|| {
        let mut command = world.command(End::Server, &curl);
        let said: Said = process::run(command.args(["-s", "http://127.0.0.1:9101/metrics"]), b"").into();
        metrics = said.text();
        let has = |name: &str, labels: &str, end: i64| {
            metrics.lines().any(|l| l.starts_with(name) && l.contains(labels) && l.ends_with(&format!(" {end}")))
        };
        has("sealane_tunnel_client_certificate_expiry_timestamp_seconds", "client=\"alice\"", end(2))
            && has("sealane_tunnel_expiry_timestamp_seconds", "what=\"server\"", end(3))
            && has(
                "sealane_tunnel_expiry_timestamp_seconds",
                "what=\"crl\"",
                all["ca"]["not_after"].as_i64().unwrap_or(0),
            )
    });
    assert!(shown, "{all}\n{metrics}\n{}", server.log());
    let people = world.sealane(End::Server, &["tunnel", "ca", "list", "--folder", "vpn"], b"").text();
    // 30 days if it is the second in which it was issued.
    let soon = |l: &str| l.contains("in 29 days") || l.contains("in 30 days");
    assert!(people.lines().any(|l| l.starts_with("alice") && l.contains("valid") && soon(l)), "{people}");
}

/// The CA's key is encrypted: OpenSSL reads it with the passphrase, and our commands ask for it.
#[test]
fn an_encrypted_key_of_a_ca_is_openssls() {
    let openssl = need!("openssl");
    let world = world!();
    world.write("words", "correct horse\n");
    let init =
        ["tunnel", "init", "10.99.0.1:1194", "--folder", "vpn", "--encrypt-ca-key", "--passphrase-file", "words"];
    let said_to = world.sealane(End::Server, &init, b"");
    assert_eq!(said_to.code, Some(0), "{}", said_to.all());
    let read = |word: &str| {
        let mut command = Command::new(&openssl);
        command.args(["pkey", "-noout", "-passin", &format!("pass:{word}"), "-in"]).arg(world.path("vpn/ca.key"));
        process::run(&mut command, b"").status.success()
    };
    assert!(read("correct horse") && !read("wrong"));
    let issue = |name: &str, words: &str, input: &[u8]| {
        let mut arguments = vec!["tunnel", "client-config", "--folder", "vpn", name];
        if !words.is_empty() {
            arguments.extend(["--passphrase-file", words]);
        }
        world.sealane(End::Server, &arguments, input)
    };
    let issued = issue("alice", "words", b"");
    assert_eq!(issued.code, Some(0), "{}", issued.all());
    world.write("others", "wrong\n");
    let refused = issue("bob", "others", b"");
    assert_eq!(refused.code, Some(1), "{}", refused.all());
    assert!(refused.all().contains("the passphrase is wrong"), "{}", refused.all());
    // Encrypted by OpenSSL, with other parameters.
    let mut command = Command::new(&openssl);
    command.args(["pkey", "-passin", "pass:correct horse", "-aes128", "-passout", "pass:other", "-in"]);
    command.arg(world.path("vpn/ca.key")).arg("-out").arg(world.path("vpn/new.key"));
    assert!(process::run(&mut command, b"").status.success());
    std::fs::rename(world.path("vpn/new.key"), world.path("vpn/ca.key")).expect("moved");
    world.write("words", "other\n");
    let issued = issue("carol", "words", b"");
    assert_eq!(issued.code, Some(0), "{}", issued.all());
    assert_eq!(states(&list(&world, "vpn")), ["server valid", "alice valid", "carol valid"]);
}

/// Runs easy-rsa's script in the test's folder.
fn easy_rsa(world: &World, script: &Path, arguments: &[&str]) -> Said {
    let mut command = world.command(End::Server, script);
    command.args(arguments).env("EASYRSA_BATCH", "1").env_remove("EASYRSA_PKI");
    process::run(&mut command, b"").into()
}

/// A folder of easy-rsa: both programs read and change the same index, and a stock server accepts and refuses what ours has
/// issued and revoked.
#[test]
fn a_folder_of_easy_rsa_is_shared_with_easy_rsa() {
    let openssl = need!("openssl");
    let script = Path::new("/usr/share/easy-rsa/easyrsa");
    if !script.exists() {
        skip!("easy-rsa is not installed (cargo xtask setup)");
    }
    let world = world!();
    let run = |arguments: &[&str]| {
        let said = easy_rsa(&world, script, arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.all());
    };
    run(&["init-pki"]);
    run(&["build-ca", "nopass"]);
    run(&["build-server-full", "gate", "nopass"]);
    run(&["build-client-full", "old", "nopass"]);
    run(&["build-client-full", "gone", "nopass"]);
    run(&["revoke", "gone"]);
    run(&["gen-crl"]);
    assert_eq!(states(&list(&world, ".")), ["gate valid", "old valid", "gone revoked"]);
    // The name is taken; ours issues another, with the address of the server, for a server without tls-crypt.
    let config = |name: &str| {
        let arguments = ["tunnel", "client-config", "--folder", ".", "--remote", "10.99.0.1:1194", name];
        world.sealane(End::Server, &arguments, b"")
    };
    assert!(config("old").all().contains("old has a certificate already"));
    assert!(config("gate").all().contains("the server's name"));
    let new = config("new");
    assert_eq!(new.code, Some(0), "{}", new.all());
    let profile = world.write("new.ovpn", &new.text());
    let server = "dev tun\ntopology subnet\nserver 10.88.0.0 255.255.255.0\nca pki/ca.crt\ncert pki/issued/gate.crt\nkey \
                  pki/private/gate.key\ncrl-verify pki/crl.pem\ndh none\nkeepalive 10 60\nport 1194\n";
    let server = world.write("server.conf", server);
    let stock = world.openvpn(End::Server, &server, &[]);
    assert!(said(&stock, "Initialization Sequence Completed"), "{}", stock.log());
    drop(world.connected(&profile, &[]));
    // OpenVPN notices a changed list by its time, in seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    // Revoked by ours: the stock server refuses, and easy-rsa knows. Revoked by easy-rsa: ours knows.
    let revoke = ["tunnel", "ca", "revoke", "new", "--folder", ".", "--no-reload"];
    let said_to = world.sealane(End::Server, &revoke, b"");
    assert_eq!(said_to.code, Some(0), "{}", said_to.all());
    let mut command = Command::new(&openssl);
    command.args(["crl", "-noout", "-verify", "-CAfile"]).arg(world.path("pki/ca.crt"));
    let verified: Said = process::run(command.arg("-in").arg(world.path("pki/crl.pem")), b"").into();
    assert!(verified.all().contains("verify OK"), "{}", verified.all());
    let refused = world.openvpn(End::Client, &profile, &[]);
    assert!(said(&stock, "certificate revoked"), "{}\n{}", stock.log(), refused.log());
    drop(refused);
    run(&["revoke", "old"]);
    run(&["gen-crl"]);
    // The name is free again for easy-rsa, too.
    run(&["build-client-full", "new", "nopass"]);
    let expected = ["gate valid", "old revoked", "gone revoked", "new revoked", "new valid"];
    assert_eq!(states(&list(&world, ".")), expected);
    let mut command = Command::new(&openssl);
    let text: Said =
        process::run(command.args(["crl", "-noout", "-text", "-in"]).arg(world.path("pki/crl.pem")), b"").into();
    assert_eq!(text.text().matches("Serial Number:").count(), 3, "{}", text.all());
}

/// Without a gateway that runs, a revocation says when it takes effect; with one that cannot read its configuration, it fails.
#[test]
fn a_revocation_that_nobody_has_read_says_so() {
    let world = world!();
    world.init("");
    world.profile("alice");
    let revoke = || world.sealane(End::Server, &["tunnel", "ca", "revoke", "alice", "--folder", "vpn"], b"");
    let early = revoke();
    assert_eq!(early.code, Some(0), "{}", early.all());
    assert!(early.all().contains("no gateway listens at"), "{}", early.all());
    let _server = world.serve();
    // The tunnel is ready before the admin socket is.
    assert!(eventually(|| world.path("vpn/admin.sock").exists()));
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &format!("{toml}nonsense = 1\n"));
    let failed = revoke();
    assert_eq!(failed.code, Some(1), "{}", failed.all());
    assert!(failed.all().contains("is written, but the gateway has not read it"), "{}", failed.all());
    world.write("vpn/tunnel.toml", &toml.replace("crl = \"crl.pem\"\n", ""));
    let useless = revoke();
    assert!(useless.all().contains("has no \"crl\" in [tunnel]"), "{}", useless.all());
}
