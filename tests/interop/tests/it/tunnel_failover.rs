//! Two gateways with one folder of certificates, and stock clients that know both.

use crate::tunnel_world::{End, INSIDE, SECOND, SERVER, World, said};
use sealane_interop::process::Server;
use sealane_interop::{eventually, skip};
use std::path::PathBuf;
use std::time::Instant;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// The second gateway's address inside.
const SECOND_INSIDE: &str = "10.89.0.1";
const CONNECTED: &str = "Initialization Sequence Completed";

/// Both gateways: the same folder, another network, files of their own for what they write.
fn serve_both(world: &World, more: &str) -> [Server; 2] {
    world.init(&format!("ping = \"1s\"\nping_restart = \"3s\"\n{more}"));
    world.add_second();
    let second = world
        .read("vpn/tunnel.toml")
        .replace("10.88.0.0/24", "10.89.0.0/24")
        .replace("admin.sock", "second.sock")
        .replace("status.json", "second.json")
        .replace("tunnel.log", "second.log")
        .replace("users = \"../users\"", "users = \"../users-of-second\"");
    world.write("vpn/second.toml", &second);
    [world.serve(), world.serve_second("vpn/second.toml")]
}

/// A profile with both: the first over UDP, the second over TCP.
fn profile(world: &World, name: &str, more: &[&str]) -> PathBuf {
    let (first, second) = (format!("{SERVER}:1194"), format!("{SECOND}:1194/tcp"));
    let mut arguments = vec!["tunnel", "client-config", "--folder", "vpn", name];
    arguments.extend(["--remote", &first, "--remote", &second]);
    arguments.extend(more);
    let said = world.sealane(End::Server, &arguments, b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
    let text = said.text();
    let lines = format!("remote {SERVER} 1194 udp\nremote {SECOND} 1194 tcp-client\n");
    assert!(text.contains(&lines) && text.contains("server-poll-timeout "), "{text}");
    world.write(&format!("{name}.ovpn"), &text)
}

/// The first gateway dies without a word: the client finds the second by itself, and has an address of its network, and what its
/// `[[tunnel.client]]` says there.
#[test]
fn a_client_fails_over_to_the_second_gateway() {
    let world = world!();
    let rules = "[[tunnel.client]]\nname = \"alice\"\npush = [\"setenv-safe colour blue\"]";
    let [first, second] = serve_both(&world, rules);
    let alice = profile(&world, "alice", &["--server-poll-timeout", "4"]);
    let client = world.connected(&alice, &[]);
    assert!(said(&first, "alice is connected from 10.99.0.2:"), "{}", first.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    world.kill();
    let killed = Instant::now();
    let again = eventually(|| client.log().matches(CONNECTED).count() == 2);
    assert!(again, "{}\n{}", client.log(), second.log());
    // For people: no test depends on how fast a machine is.
    println!("connected to the second gateway {:.1} s after the first was killed", killed.elapsed().as_secs_f64());
    assert!(second.log().contains("alice is connected from 10.98.0.2:"), "{}", second.log());
    assert_eq!(world.pings(End::Client, SECOND_INSIDE, 3, "0.05", 56), 3);
    assert_eq!(client.log().matches("setenv-safe colour blue").count(), 2, "{}", client.log());
    // The second goes in an orderly way: it says so, and the client finds the first at once.
    drop(first);
    let first = world.serve();
    second.terminate();
    let stopped = Instant::now();
    let back = eventually(|| client.log().matches(CONNECTED).count() == 3);
    assert!(back, "{}\n{}", client.log(), first.log());
    println!("connected to the first gateway {:.1} s after the second was stopped", stopped.elapsed().as_secs_f64());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}

/// Both gateways know the secret of tokens: the token of the first is good at the second, whose file has another password for the
/// user, so that nothing but the token can be what let the client in.
#[test]
fn a_token_of_the_first_gateway_is_good_at_the_second() {
    let world = world!();
    let hash = |password: &[u8]| world.sealane(End::Server, &["tunnel", "passwd", "al"], password).text();
    world.write("users", &hash(b"right\n"));
    world.write("users-of-second", &hash(b"another\n"));
    world.write("good", "al\nright\n");
    world.write("tokens.key", "0123456789abcdef0123456789abcdef\n");
    let tokens = "users = \"../users\"\ntoken_lifetime = \"1h\"\ntoken_secret = \"../tokens.key\"";
    let [_first, second] = serve_both(&world, tokens);
    let alice = profile(&world, "alice", &["--server-poll-timeout", "4"]);
    let client = world.connected(&alice, &["--auth-user-pass", "good", "--auth-nocache"]);
    world.kill();
    let again = eventually(|| client.log().matches(CONNECTED).count() == 2);
    assert!(again, "{}\n{}", client.log(), second.log());
    assert_eq!(world.pings(End::Client, SECOND_INSIDE, 3, "0.05", 56), 3);
    assert!(!client.log().contains("AUTH_FAILED"), "{}", client.log());
}

/// The list is written once, into the folder that both read: both disconnect the client, without a reload.
#[test]
fn a_revocation_reaches_both_gateways_without_a_reload() {
    let world = world!();
    let [first, second] = serve_both(&world, "");
    profile(&world, "alice", &[]);
    let bob = profile(&world, "bob", &[]);
    let text = world.read("alice.ovpn");
    let (one, other) = (format!("remote {SERVER} 1194 udp\n"), format!("remote {SECOND} 1194 tcp-client\n"));
    let at_first = world.write("first.ovpn", &text.replace(&other, ""));
    let at_second = world.write("second.ovpn", &text.replace(&one, ""));
    let clients = [world.connected(&at_first, &[]), world.connected(&at_second, &[])];
    let revoke = ["tunnel", "ca", "revoke", "alice", "--folder", "vpn", "--no-reload"];
    let revoked = world.sealane(End::Server, &revoke, b"");
    assert_eq!(revoked.code, Some(0), "{}", revoked.all());
    for (gateway, client) in [&first, &second].into_iter().zip(&clients) {
        assert!(said(gateway, "crl.pem has changed: the tunnel now uses the new revocation list"), "{}", gateway.log());
        assert!(
            said(client, "AUTH: Received control message: AUTH_FAILED,the certificate is revoked"),
            "{}\n{}",
            client.log(),
            gateway.log()
        );
        assert!(!gateway.log().contains("sealane: reloaded"), "{}", gateway.log());
    }
    drop(clients);
    // New connections are refused at both, and other clients are not.
    for (gateway, config) in [(&first, &at_first), (&second, &at_second)] {
        let again = world.openvpn(End::Client, config, &[]);
        assert!(
            said(gateway, "the key exchange has failed: the certificate is not accepted: it is revoked"),
            "{}",
            again.log()
        );
    }
    let _bob = world.connected(&bob, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    // A list that is none changes nothing.
    let list = world.read("vpn/crl.pem");
    world.write("vpn/crl.pem", "no list\n");
    assert!(said(&first, "the revocation list in use stays"), "{}", first.log());
    world.write("vpn/crl.pem", &list);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}
