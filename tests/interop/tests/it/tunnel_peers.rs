//! Peers at the edge: old ones, silent ones, and those whose configuration asks for what there is not.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::process::Server;
use sealane_interop::{binary, eventually, peers, process, skip};

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Why a client does not come in is said in words that its administrator knows.
#[test]
fn what_is_too_old_is_named() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let server = world.serve();
    let openssl = peers::find("openssl").expect("openssl is installed wherever openvpn is");
    let run = |arguments: &str| {
        let mut command = world.command(End::Client, &openssl);
        let done = process::run(command.args(arguments.split(' ')), b"");
        assert!(done.status.success(), "{arguments}: {}", String::from_utf8_lossy(&done.stderr));
    };
    run("req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout old.key -subj /CN=old -out old.csr");
    world.write("usage", "extendedKeyUsage=clientAuth\n");
    let sign = "x509 -req -in old.csr -CA vpn/ca.crt -CAkey vpn/ca.key -CAcreateserial -days 10";
    run(&format!("{sign} -out first.crt"));
    run(&format!("{sign} -sha1 -extfile usage -out sha1.crt"));
    run("req -new -newkey rsa:1024 -nodes -keyout small.key -subj /CN=small -out small.csr");
    run(&format!("{} -extfile usage -out small.crt", sign.replace("old.csr", "small.csr")));
    let seclevel = ["--tls-cipher", "DEFAULT:@SECLEVEL=0"];
    for (arguments, why) in [
        (
            &["--tls-version-min", "1.0", "--tls-version-max", "1.1"][..],
            "none of the TLS versions that are allowed here",
        ),
        (&["--cert", "first.crt", "--key", "old.key"], "is not accepted: its X.509 version is 1"),
        (
            &["--cert", "sha1.crt", "--key", "old.key", "--tls-cert-profile", "insecure"],
            "is not accepted: it is signed with an algorithm",
        ),
        (
            &["--cert", "small.crt", "--key", "small.key", "--tls-cert-profile", "insecure"],
            "is not accepted: its RSA key has fewer than 2048 bits",
        ),
    ] {
        let client = world.openvpn(End::Client, &profile, &[arguments, &seclevel].concat());
        assert!(said(&server, why), "{arguments:?}: {}\n{}", client.log(), server.log());
    }
}

/// Our client, playing one before 2.4: packets without peer ids (DATA_V1), data keys by the TLS 1.0 PRF, and a key renewed
/// underway. At Debian's server and at ours, over both transports.
#[test]
fn a_client_without_peer_ids_is_served() {
    let world = world!();
    world.init("log = \"events.json\"");
    world.profile("alice");
    let profile = world.read("alice.ovpn");
    let config = "dev tun\ntopology subnet\nserver 10.88.0.0 255.255.255.0\nca vpn/ca.crt\ncert vpn/server.crt\nkey \
                  vpn/server.key\ndh none\ntls-crypt-v2 vpn/tls-crypt-v2.key\nkeepalive 10 60\n";
    let config = world.write("server.conf", config);
    for (proto, stock) in [("udp", true), ("tcp", true), ("udp", false), ("tcp", false)] {
        let server = if stock {
            let proto = if proto == "udp" { "udp" } else { "tcp-server" };
            let server = world.openvpn(End::Server, &config, &["--proto", proto, "--data-ciphers", "AES-256-GCM"]);
            assert!(said(&server, "Initialization Sequence Completed"), "{}", server.log());
            server
        } else {
            world.serve()
        };
        let text = profile.replace("proto udp", &format!("proto {proto}"));
        let renewals = if proto == "udp" { "2" } else { "0" };
        let text = format!("{text}compat-mode 2.3.0\nreneg-sec {renewals}\n");
        let mut command = world.command(End::Client, binary::sealane());
        command.args(["tunnel", "connect", "--dns", "off"]).arg(world.write("old.ovpn", &text));
        let client = Server::start(command, &world.path(""));
        assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 1300), 3, "{proto} {stock}");
        assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.05", 56), 3, "{proto} {stock}");
        if stock {
            // It has said what it gives, and no peer id is among it.
            let log = server.log();
            assert!(log.contains("PUSH_REPLY") && !log.contains("peer-id"), "{log}");
        } else {
            assert!(said(&server, "without peer ids"), "{}", server.log());
        }
        if proto == "udp" {
            let renewed = || match stock {
                true => server.log().matches("Control Channel: TLSv1").count() >= 2,
                false => world.read("vpn/events.json").contains("\"renew\""),
            };
            assert_eq!(world.pings(End::Client, INSIDE, 150, "0.01", 56), 150, "{stock}: while a key is renewed");
            assert!(eventually(renewed), "{}\n{}", client.log(), server.log());
            assert_eq!(world.pings(End::Client, INSIDE, 20, "0.01", 56), 20, "{stock}: with the new key");
        }
        client.terminate();
        let left = || {
            ["SIGTERM", "remote-exit", "Connection reset", "is disconnected: "]
                .iter()
                .any(|word| server.log().contains(word))
        };
        assert!(eventually(left), "{}", server.log());
    }
}

/// Packets that are not ours are refused where they are asked for, not dropped one by one.
#[test]
fn what_is_not_supported_is_refused_by_name() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let _server = world.serve();
    for (arguments, reason) in [
        (&["--fragment", "1300"][..], "`fragment` is not supported"),
        (&["--dev", "tap", "--dev-type", "tap"], "layer 2 (`dev tap`) is not supported"),
    ] {
        let client = world.openvpn(End::Client, &profile, arguments);
        assert!(said(&client, reason), "{}", client.log());
        assert!(client.log().contains("AUTH_FAILED"), "{}", client.log());
    }
}

/// Clients with compression in their configuration are told to leave it out, as by `compress migrate`, and packets pass in
/// both directions, also those that compress well and those of a renewed key.
#[test]
fn clients_with_compression_are_served_without_it() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let _server = world.serve();
    for arguments in [
        &["--comp-lzo", "no"][..],
        &["--comp-lzo", "yes", "--allow-compression", "yes"],
        &["--compress"],
        &["--compress", "stub"],
        &["--compress", "stub-v2"],
        &["--compress", "lz4", "--allow-compression", "yes"],
        &["--compress", "lz4-v2", "--proto", "tcp-client"],
    ] {
        let client = world.connected(&profile, &[&["--reneg-sec", "2"], arguments].concat());
        assert!(client.log().contains(",compress stub-v2,"), "{arguments:?}: {}", client.log());
        assert_eq!(world.pings(End::Client, INSIDE, 50, "0.05", 1200), 50, "{arguments:?}");
        assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.05", 56), 3, "{arguments:?}");
        assert!(said(&client, "TLS: soft reset"), "{arguments:?}: {}", client.log());
        let log = client.log();
        assert!(!log.contains("present in local config but missing in remote"), "{arguments:?}: {log}");
    }
    // A client without compression is told nothing.
    let client = world.connected(&profile, &[]);
    assert!(!client.log().contains("compress"), "{}", client.log());
}

/// A client that is dead is missed, and a dead server is; the log for programs says what became of whom.
#[test]
fn who_falls_silent_is_missed() {
    let world = world!();
    world.init("ping = \"1s\"\nping_restart = \"2s\"\nlog = \"events.json\"");
    let profile = world.profile("alice");
    let server = world.serve();
    // Killed, so that it says nothing.
    drop(world.connected(&profile, &[]));
    assert!(said(&server, "is disconnected: no packet has arrived from the client for too long"), "{}", server.log());
    let client = world.connected(&profile, &[]);
    world.kill();
    assert!(said(&client, "Inactivity timeout (--ping-restart)"), "{}", client.log());
    let events = world.read("vpn/events.json");
    let events: Vec<serde_json::Value> =
        events.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect();
    let has = |event: &str, field: &str, value: &str| events.iter().any(|e| e["event"] == event && e[field] == value);
    assert!(has("connect", "cipher", "AES-256-GCM"), "{events:?}");
    assert!(has("disconnect", "reason", "no packet has arrived from the client for too long"), "{events:?}");
    assert!(events.iter().all(|e| e["client"] == "alice"), "{events:?}");
}
