//! The tunnel and Debian's OpenVPN: its clients at our server, unchanged.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::peers::{Said, find};
use sealane_interop::process::{self, Server};
use sealane_interop::{binary, eventually, need, skip};

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn a_stock_client_connects_in_every_way_that_it_knows() {
    connects_in_every_way(&world!());
}

pub fn connects_in_every_way(world: &World) {
    world.init("network6 = \"fd00:88::/64\"\nroutes = [\"10.77.0.0/16\"]\ndns = [\"10.88.0.1\"]\nepoch = true");
    let profile = world.profile("alice");
    let server = world.serve();
    for (arguments, cipher) in [
        (&[][..], "AES-256-GCM"),
        (&["--proto", "tcp-client"][..], "AES-256-GCM"),
        (&["--tls-version-max", "1.2"], "AES-256-GCM"),
        (&["--data-ciphers", "AES-128-GCM"], "AES-128-GCM"),
        (&["--data-ciphers", "CHACHA20-POLY1305"], "CHACHA20-POLY1305"),
    ] {
        let client = world.connected(&profile, arguments);
        let log = client.log();
        assert!(log.contains(&format!("Data Channel: cipher '{cipher}'")), "{arguments:?}\n{log}");
        assert!(log.contains("route 10.77.0.0 255.255.0.0") && log.contains("dhcp-option DNS 10.88.0.1"), "{log}");
        for word in
            ["topology subnet", "ping 10", "ping-restart 60", "peer-id ", "tun-mtu 1500", "ifconfig-ipv6 fd00:88::"]
        {
            assert!(log.contains(&format!(",{word}")), "{word}: {log}");
        }
        // Exit on the control channel, data keys by the exporter, renewals wrapped with a key of this session's.
        assert!(log.contains(",protocol-flags cc-exit tls-ekm dyn-tls-crypt"), "{log}");
        assert_eq!(world.pings(End::Client, INSIDE, 5, "0.05", 56), 5, "{arguments:?}");
        // In pieces, both ways.
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 5000), 3, "{arguments:?}");
        assert_eq!(world.pings(End::Client, "fd00:88::1", 3, "0.05", 56), 3, "{arguments:?}");
        assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.05", 56), 3, "{arguments:?}");
    }
    let log = server.log();
    assert!(log.contains("TLSv1_2") && log.contains("TLSv1_3"), "{log}");
    // The status says who is there.
    let mut text = String::new();
    let shown = eventually(|| {
        text = world.sealane(End::Server, &["tunnel", "status", "-c", "vpn/tunnel.toml"], b"").text();
        text.contains("alice") && text.contains("10.88.0.2 fd00:88::1000")
    });
    assert!(shown, "{text}");
}

#[test]
fn wraps_of_every_kind() {
    connects_with_every_wrap(&world!());
}

pub fn connects_with_every_wrap(world: &World) {
    world.init("tls_crypt = \"../static.key\"");
    let profile = world.profile("alice");
    let key = process::run(std::process::Command::new(world.stock()).args(["--genkey", "secret"]), b"");
    world.write("static.key", &String::from_utf8(key.stdout).expect("text"));
    let plain = world.read("alice.ovpn");
    let (before, _) = plain.split_once("<tls-crypt-v2>").expect("it has one");
    let bare = world.write("bare.ovpn", before);
    {
        let _server = world.serve();
        let v2 = world.connected(&profile, &[]);
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
        drop(v2);
        let crypt = world.connected(&bare, &["--tls-crypt", "static.key"]);
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
        drop(crypt);
        // Who has no key gets no answer.
        let stranger = world.openvpn(End::Client, &bare, &["--hand-window", "3"]);
        assert!(said(&stranger, "TLS key negotiation failed to occur within 3 seconds"));
    }
    let toml = world.read("vpn/tunnel.toml");
    let keep = |toml: &str| -> String {
        toml.lines().filter(|l| !l.starts_with("tls_crypt")).map(|l| format!("{l}\n")).collect()
    };
    let auth = "tls_auth = \"../static.key\"\nkey_direction = 0\ntls_auth_digest = \"SHA256\"\n";
    world.write("vpn/tunnel.toml", &(keep(&toml) + auth));
    {
        let _server = world.serve();
        let client = world.connected(&bare, &["--tls-auth", "static.key", "1", "--auth", "SHA256"]);
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
        drop(client);
    }
    world.write("vpn/tunnel.toml", &keep(&toml));
    let _server = world.serve();
    let _client = world.connected(&bare, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}

/// The client renews its key every two seconds, then the server does: not one packet is lost.
#[test]
fn renewing_keys_loses_nothing() {
    renews_without_a_loss(&world!());
}

pub fn renews_without_a_loss(world: &World) {
    world.init("");
    let profile = world.profile("alice");
    let server = world.serve();
    let client = world.connected(&profile, &["--reneg-sec", "2"]);
    assert_eq!(world.pings(End::Client, INSIDE, 700, "0.01", 200), 700);
    let renewals = client.log().matches("TLS: soft reset").count();
    assert!(renewals >= 2, "{}", client.log());
    drop((client, server));
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &format!("{toml}renegotiate = \"2s\"\ntransition = \"1s\"\n"));
    let _server = world.serve();
    let client = world.connected(&profile, &["--reneg-sec", "0"]);
    assert_eq!(world.pings(End::Client, INSIDE, 700, "0.01", 200), 700);
    let keys = client.log().matches("Control Channel: TLSv1").count();
    assert!(keys >= 3, "{}", client.log());
}

#[test]
fn who_may_come_in() {
    let world = world!();
    world.init("users = \"../users\"\ntoken_lifetime = \"1h\"\n[[tunnel.client]]\nname = \"alice\"\naddress = \"10.88.0.77\"\npush = [\"setenv-safe colour blue\"]\n[[tunnel.client]]\nname = \"bob\"\ndisabled = true");
    let hash = world.sealane(End::Server, &["tunnel", "passwd", "al"], b"right\n").text();
    world.write("users", &hash);
    world.write("good", "al\nright\n");
    world.write("bad", "al\nwrong\n");
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    let refused = world.openvpn(End::Client, &alice, &["--auth-user-pass", "bad"]);
    assert!(said(&refused, "AUTH_FAILED,wrong user name or password"), "{}", refused.log());
    drop(refused);
    let disabled = world.openvpn(End::Client, &bob, &["--auth-user-pass", "good"]);
    assert!(said(&disabled, "AUTH_FAILED,disabled"), "{}", disabled.log());
    drop(disabled);
    // Renewals with a token in place of the password.
    let client = world.connected(&alice, &["--auth-user-pass", "good", "--reneg-sec", "2", "--auth-nocache"]);
    assert!(client.log().contains("ifconfig 10.88.0.77 255.255.255.0"), "{}", client.log());
    assert!(client.log().contains("setenv-safe colour blue"), "{}", client.log());
    assert_eq!(world.pings(End::Client, INSIDE, 50, "0.1", 56), 50);
    assert!(client.log().contains("TLS: soft reset"), "{}", client.log());
    assert!(!server.log().contains("the certificate or user name differs"), "{}", server.log());
}

/// The code of an authenticator app, so many steps of 30 seconds from now.
fn code(world: &World, secret: &str, ahead: i64) -> String {
    const PROGRAM: &str = "
import base64, hashlib, hmac, struct, sys, time
key = base64.b32decode(sys.argv[1])
tag = hmac.new(key, struct.pack('>Q', int(time.time()) // 30 + int(sys.argv[2])), hashlib.sha1).digest()
print('%06d' % ((struct.unpack_from('>I', tag, tag[19] & 15)[0] & 0x7fffffff) % 1000000))
";
    let python = find("python3").expect("the test has asked for it");
    let mut command = world.command(End::Client, &python);
    command.args(["-c", PROGRAM, secret, &ahead.to_string()]);
    let said: Said = process::run(&mut command, b"").into();
    said.text().trim().to_owned()
}

/// A code is good once, for a stock client (behind the password) and for ours (`static-challenge`).
#[test]
fn a_user_with_codes_comes_in_with_password_and_code() {
    let world = world!();
    need!("python3");
    world.init("users = \"../users\"\ntoken_lifetime = \"1h\"");
    let made = world.sealane(End::Server, &["tunnel", "passwd", "--totp", "--issuer", "vpn test", "al"], b"right\n");
    let (_, secret) =
        made.text().trim().rsplit_once(":totp=").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("it has one");
    assert!(
        made.err.contains(&format!("otpauth://totp/vpn%20test:al?secret={secret}&issuer=vpn%20test")),
        "{}",
        made.err
    );
    // The code on the terminal is that URL, as a camera sees it.
    let mut command = world.command(End::Client, &find("python3").expect("the test has asked for it"));
    let scanned: Said = process::run(command.args(["-c", include_str!("read_qr.py")]), made.err.as_bytes()).into();
    let url = made.err.lines().find_map(|line| line.strip_prefix('(')?.strip_suffix(')')).expect("it is printed");
    assert_eq!(scanned.text().trim(), url, "{}\n{}", scanned.all(), made.err);
    world.write("users", &made.text());
    let alice = world.profile("alice");
    let server = world.serve();
    let refused = |password: &str| {
        world.write("typed", &format!("al\n{password}\n"));
        let client = world.openvpn(End::Client, &alice, &["--auth-user-pass", "typed"]);
        assert!(said(&client, "AUTH_FAILED,wrong user name or password"), "{password}: {}", client.log());
    };
    refused("right");
    refused("right000000");
    let first = code(&world, &secret, 0);
    world.write("typed", &format!("al\nright{first}\n"));
    // Its keys are renewed with a token.
    let client = world.connected(&alice, &["--auth-user-pass", "typed", "--reneg-sec", "2", "--auth-nocache"]);
    assert_eq!(world.pings(End::Client, INSIDE, 50, "0.1", 56), 50);
    assert!(client.log().contains("TLS: soft reset"), "{}", client.log());
    drop(client);
    refused(&format!("right{first}"));
    // The next one is accepted already. Our client asks for it.
    let next = code(&world, &secret, 1);
    let profile = world.read("alice.ovpn");
    world.write("asking.ovpn", &format!("{profile}auth-user-pass\nstatic-challenge \"Code?\" 1\n"));
    world.write("answers", &format!("al\nright\n{next}\n"));
    // Without a terminal, and in the process that is ended with the test.
    let mut command = world.command(End::Client, &find("setsid").expect("util-linux has it"));
    let connect = format!("exec {} tunnel connect --dns off asking.ovpn < answers", binary::sealane().display());
    let ours = Server::start(
        {
            command.args(["sh", "-c", &connect]);
            command
        },
        &world.path(""),
    );
    assert!(said(&ours, "connected to"), "{}\n{}", ours.log(), server.log());
}

#[test]
fn a_cipher_that_we_have_not_is_refused_with_a_reason() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let _server = world.serve();
    let client = world.openvpn(End::Client, &profile, &["--data-ciphers", "AES-256-CBC"]);
    assert!(said(&client, "AUTH_FAILED,Data channel cipher negotiation failed (no shared cipher)"), "{}", client.log());
}

#[test]
fn a_client_that_leaves_is_gone_at_once() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let server = world.serve();
    // The profile says explicit-exit-notify.
    let client = world.connected(&profile, &[]);
    client.terminate();
    assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
    drop(client);
    // Over TCP a stock client leaves that option out, and the connection ends.
    let client = world.connected(&profile, &["--proto", "tcp-client"]);
    client.terminate();
    assert!(eventually(|| server.log().matches(" is disconnected: ").count() >= 2), "{}", server.log());
}

/// Debian's server, our client.
#[test]
fn our_client_connects_to_a_stock_server() {
    ours_connects_to_a_stock_server(&world!());
}

pub fn ours_connects_to_a_stock_server(world: &World) {
    world.init("");
    world.profile("alice");
    let profile = world.read("alice.ovpn");
    let config = "dev tun\ntopology subnet\nserver 10.88.0.0 255.255.255.0\nserver-ipv6 fd00:88::/64\nca vpn/ca.crt\ncert \
                  vpn/server.crt\nkey vpn/server.key\ndh none\ntls-crypt-v2 vpn/tls-crypt-v2.key\nkeepalive 10 60\npush \
                  \"route 10.66.0.0 255.255.0.0\"\n";
    let config = world.write("server.conf", config);
    for (proto, server_proto, more) in [
        ("udp", "udp", "reneg-sec 2\n"),
        ("tcp", "tcp-server", ""),
        // Data keys by the TLS 1.0 PRF, as with clients before 2.6.
        ("udp", "udp", "reneg-sec 2\ncompat-mode 2.5.0\n"),
    ] {
        let server = world.openvpn(
            End::Server,
            &config,
            &["--proto", server_proto, "--data-ciphers", "AES-256-GCM:CHACHA20-POLY1305"],
        );
        assert!(said(&server, "Initialization Sequence Completed"), "{}", server.log());
        let ours =
            world.write("ours.ovpn", &format!("{}{more}", profile.replace("proto udp", &format!("proto {proto}"))));
        let mut command = world.command(End::Client, sealane_interop::binary::sealane());
        command.args(["tunnel", "connect", "--dns", "off"]).arg(ours);
        let client = sealane_interop::process::Server::start(command, &world.path(""));
        assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
        assert_eq!(world.pings(End::Client, INSIDE, 5, "0.05", 56), 5, "{proto}");
        assert_eq!(world.pings(End::Client, "fd00:88::1", 3, "0.05", 56), 3, "{proto}");
        if proto == "udp" {
            assert_eq!(world.pings(End::Client, INSIDE, 500, "0.01", 56), 500, "while keys are renewed");
            assert!(server.log().matches("Control Channel: TLSv1").count() >= 3, "{}", server.log());
        }
        client.terminate();
        // On the control channel where the server listens for it there, else (and while a key is renewed) by OCC's message; over TCP the
        // end says it.
        let words: &[&str] = match (proto, more.contains("compat")) {
            ("udp", false) => &["exit message received", "remote-exit"],
            ("udp", true) => &["SIGTERM", "remote-exit"],
            _ => &["exit message received", "Connection reset"],
        };
        let left = || words.iter().any(|word| server.log().contains(word));
        assert!(eventually(left), "{}", server.log());
    }
}

/// The client's address changes under it, and changes nothing else.
#[test]
fn a_client_that_moves_is_followed() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let server = world.serve();
    let client = world.connected(&profile, &["--reneg-sec", "4"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    world.forget_first_address();
    assert_eq!(world.pings(End::Client, INSIDE, 50, "0.1", 56), 50);
    assert!(said(&server, "has moved from 10.99.0.2"), "{}", server.log());
    // The control channel has moved along: a key is renewed from there.
    assert!(said(&client, "TLS: soft reset"), "{}", client.log());
    assert_eq!(world.pings(End::Client, INSIDE, 30, "0.1", 56), 30);
    assert!(client.log().matches("Control Channel: TLSv1").count() >= 2, "{}", client.log());
}

/// A reload changes what may change, and no packet notices.
#[test]
fn a_reload_loses_nothing() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let server = world.serve();
    let client = world.connected(&profile, &[]);
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &format!("{toml}push = [\"setenv-safe reloaded yes\"]\n"));
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| world.pings(End::Client, INSIDE, 300, "0.01", 56));
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(500));
            server.hang_up();
        }
        assert_eq!(pings.join().expect("ping ends"), 300);
    });
    assert!(said(&server, "sealane: reloaded"), "{}", server.log());
    drop(client);
    let again = world.connected(&profile, &[]);
    assert!(again.log().contains("setenv-safe reloaded yes"), "{}", again.log());
}

/// Ours at both ends, with the epoch format, which OpenVPN 2.6 has not.
#[test]
fn ours_at_both_ends_use_the_epoch_format() {
    let world = world!();
    world.init("renegotiate = \"2s\"");
    let profile = world.profile("alice");
    let server = world.serve();
    let mut command = world.command(End::Client, sealane_interop::binary::sealane());
    command.args(["tunnel", "connect", "--dns", "off"]).arg(profile);
    let client = sealane_interop::process::Server::start(command, &world.path(""));
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
    assert!(said(&server, "epoch format"), "{}", server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 500, "0.01", 1300), 500);
    client.terminate();
    assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
}
