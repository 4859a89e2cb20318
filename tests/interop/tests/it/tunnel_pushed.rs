//! Each option that the server can push, at stock clients.

use crate::tunnel_world::{End, Stock, World, said};
use sealane_interop::process::Server;
use sealane_interop::{eventually, skip};
use sealane_ovpn::push::{CLIENTS_REFUSE, CLIENTS_TAKE, NEGOTIATED, WINDOWS_ONLY};
use sealane_ovpn::update::KINDS;
use std::collections::BTreeSet;

macro_rules! world {
    ($stock:ident) => {
        match World::with(Stock::$stock) {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// An option for each word of [`CLIENTS_TAKE`].
const PUSHED: &[&str] = &[
    "auth-token SESS_ID_of-nobody",
    "auth-token-user YWw=",
    "block-ipv6",
    "block-outside-dns",
    "client-nat snat 10.99.1.0 255.255.255.0 10.99.2.0",
    "dhcp-option DNS 10.88.0.1",
    "dhcp-option DOMAIN example.test",
    "dhcp-pre-release",
    "dhcp-release",
    "dhcp-renew",
    "dns server 1 address 10.88.0.1",
    "dns search-domains example.test",
    "echo hello",
    "explicit-exit-notify 1",
    "inactive 3600",
    "ip-win32 dynamic",
    "mute 100",
    "persist-key",
    "persist-tun",
    "ping 5",
    "ping-exit 120",
    "ping-restart 90",
    "ping-timer-rem",
    "rcvbuf 200000",
    "redirect-gateway def1 ipv6",
    "register-dns",
    "route 10.77.0.0 255.255.0.0",
    "route-delay 1",
    "route-gateway 10.88.0.1",
    "route-ipv6 fd00:77::/64",
    "route-ipv6-gateway fd00:88::1",
    "route-method exe",
    "route-metric 50",
    "session-timeout 3600",
    "setenv-safe colour blue",
    "show-net-up",
    "sndbuf 200000",
    "socket-flags TCP_NODELAY",
    "tap-sleep 1",
    "tun-ipv6",
    "tun-mtu 1400",
    "verb 4",
];

/// One that stock clients warn about beside `redirect-gateway`.
const ALONE: &str = "redirect-private def1";

/// Of a client that takes options and changes nothing of its system: it opens no TUN device, and sets no addresses and routes.
const ASIDE: &[&str] = &["--dev", "null", "--ifconfig-noexec", "--route-noexec"];

fn word(option: &str) -> &str {
    option.split(' ').next().unwrap_or_default()
}

fn words<'o>(options: impl IntoIterator<Item = &'o &'o str>) -> BTreeSet<&'o str> {
    options.into_iter().map(|option| word(option)).collect()
}

/// Writes `push` in place of what is there.
fn push(world: &World, toml: &str, options: &[&str]) {
    let list: Vec<String> = options.iter().map(|option| format!("{option:?}")).collect();
    // An empty list is an error.
    let line = if list.is_empty() { String::new() } else { format!("push = [{}]\n", list.join(", ")) };
    world.write("vpn/tunnel.toml", &format!("{toml}{line}"));
}

/// What a client has been sent by this command, option by option.
fn sent(log: &str, command: &str) -> Vec<String> {
    let start = format!("PUSH: Received control message: '{command},");
    let messages = log.lines().filter_map(|line| line.split_once(&start)?.1.strip_suffix('\''));
    messages.flat_map(|message| message.split(',')).map(str::to_owned).collect()
}

/// No line says that the client did not take an option, except those about options of Windows.
#[track_caller]
fn took_all(client: &Server) {
    let log = client.log();
    let (_, log) = log.split_once("PUSH: Received control message").expect("it has got options");
    // Whatever the client says about itself later is not about options of the server.
    let log = log.split("Initialization Sequence Completed").next().unwrap_or(log);
    let of_windows = |line: &str| {
        let of = |word: &&str| line.contains(" in [PUSH-OPTIONS]:") && line.contains(&format!(": {word} ("));
        WINDOWS_ONLY.iter().any(of)
    };
    for line in log.lines() {
        let marks = ["Options error", "Options warning", "WARNING", "[PUSH-OPTIONS]"];
        assert!(!marks.iter().any(|text| line.contains(text)) || of_windows(line), "{line}\n{log}");
    }
}

/// Every word of the table reaches the client, and the client takes it.
fn takes_every_option(world: &World) {
    let all: BTreeSet<&str> = CLIENTS_TAKE.iter().copied().collect();
    let mut tried = words(PUSHED);
    tried.insert(word(ALONE));
    assert_eq!(tried, all, "each word that can be pushed has an option in this file, and no other word has one");
    world.init("network6 = \"fd00:88::/64\"");
    let profile = world.profile("alice");
    let toml = world.read("vpn/tunnel.toml");
    for options in [PUSHED, &[ALONE]] {
        push(world, &toml, options);
        let _server = world.serve();
        let client = world.connected(&profile, ASIDE);
        took_all(&client);
        let arrived = sent(&client.log(), "PUSH_REPLY");
        for option in options {
            // OpenVPN writes no secrets to its log, and leaves out what follows `echo`.
            let got = match word(option) {
                name @ ("auth-token" | "echo") => arrived.iter().any(|other| other.starts_with(name)),
                _ => arrived.iter().any(|other| other == option),
            };
            assert!(got, "{option}: {arrived:?}");
        }
    }
}

/// Every option that the server sends by itself reaches a client that takes it.
fn takes_what_is_negotiated(world: &World) {
    // More than one message holds.
    let routes: Vec<String> = (1..80).map(|n| format!("\"10.77.{n}.0/24\"")).collect();
    let routes = routes.join(", ");
    world.init(&format!(
        "network6 = \"fd00:88::/64\"\nusers = \"../users\"\ntoken_lifetime = \"1h\"\nroutes = [{routes}]"
    ));
    world.write("users", &world.sealane(End::Server, &["tunnel", "passwd", "al"], b"right\n").text());
    world.write("good", "al\nright\n");
    let profile = world.profile("alice");
    let _server = world.serve();
    let mut seen = BTreeSet::new();
    for arguments in [&[][..], &["--compress", "stub"][..]] {
        let client = world.connected(&profile, &[ASIDE, &["--auth-user-pass", "good"], arguments].concat());
        took_all(&client);
        seen.extend(sent(&client.log(), "PUSH_REPLY").iter().map(|option| match word(option) {
            // The log has it so, without the secret.
            name if name.starts_with("auth-tokenSESS_ID") => "auth-token".to_owned(),
            name => name.to_owned(),
        }));
    }
    // Clients before 2.6 know this in place of `protocol-flags`; our own client plays them elsewhere.
    let expected = NEGOTIATED.iter().filter(|name| **name != "key-derivation").copied();
    let others = ["auth-token", "auth-token-user", "ping", "ping-restart", "route", "route-gateway", "tun-mtu"];
    for name in expected.chain(others) {
        assert!(seen.contains(name), "{name}: {seen:?}");
    }
    let unknown = |name: &&String| !NEGOTIATED.contains(&name.as_str()) && !CLIENTS_TAKE.contains(&name.as_str());
    assert_eq!(seen.iter().find(unknown), None, "each word that the server sends is in one of the lists");
}

#[test]
fn stock_clients_take_every_option_that_can_be_pushed() {
    takes_every_option(&world!(Installed));
}

#[test]
fn newer_clients_take_every_option_that_can_be_pushed() {
    takes_every_option(&world!(Newer));
}

#[test]
fn stock_clients_take_what_the_server_sends_by_itself() {
    takes_what_is_negotiated(&world!(Installed));
}

#[test]
fn newer_clients_take_what_the_server_sends_by_itself() {
    takes_what_is_negotiated(&world!(Newer));
}

/// What cannot be pushed is what stock clients refuse: they say so to a stock server, which sends anything.
#[test]
fn stock_clients_refuse_the_options_that_cannot_be_pushed() {
    let world = world!(Installed);
    world.init("");
    let profile = world.profile("alice");
    let values = |name: &str| match name {
        "mssfix" => "mssfix 1300",
        "remap-usr1" => "remap-usr1 SIGTERM",
        "setenv" => "setenv colour blue",
        "persist-local-ip" => "persist-local-ip",
        "persist-remote-ip" => "persist-remote-ip",
        other => panic!("{other}: write a value for it here"),
    };
    let pushed: String = CLIENTS_REFUSE.iter().map(|name| format!("push \"{}\"\n", values(name))).collect();
    let config = format!(
        "dev tun\ntopology subnet\nserver 10.88.0.0 255.255.255.0\nca vpn/ca.crt\ncert vpn/server.crt\nkey vpn/server.key\ndh \
         none\ntls-crypt-v2 vpn/tls-crypt-v2.key\nkeepalive 10 60\n{pushed}"
    );
    let server = world.openvpn(End::Server, &world.write("server.conf", &config), &[]);
    assert!(said(&server, "Initialization Sequence Completed"), "{}", server.log());
    let client = world.connected(&profile, ASIDE);
    for name in CLIENTS_REFUSE {
        let refused = format!("option '{name}' cannot be used in this context ([PUSH-OPTIONS])");
        assert!(client.log().contains(&refused), "{name}: {}", client.log());
    }
    drop((client, server));
    for name in CLIENTS_REFUSE {
        let toml = world.read("vpn/tunnel.toml");
        world.write("vpn/tried.toml", &format!("{toml}push = [\"{}\"]\n", values(name)));
        let said = world.sealane(End::Server, &["check", "-c", "vpn/tried.toml"], b"");
        assert_eq!(said.code, Some(1), "{name}: {}", said.all());
        assert!(said.all().contains(&format!("\"{name}\" cannot be pushed")), "{}", said.all());
    }
}

/// An option for each word of [`KINDS`].
const CHANGED: &[&str] = &[
    "block-ipv6",
    "block-outside-dns",
    "dhcp-option DNS 10.88.0.1",
    "dns server 1 address 10.88.0.1",
    "redirect-gateway def1",
    "redirect-private def1",
    "route 10.77.0.0 255.255.0.0",
    "route-ipv6 fd00:77::/64",
    "route-metric 50",
];

/// A reload adds an option of each kind, and the next one takes it away: a client with PUSH_UPDATE stays connected, and takes both.
#[test]
fn newer_clients_take_every_option_that_a_reload_can_change() {
    let world = world!(Newer);
    let kinds: BTreeSet<&str> = KINDS.iter().copied().collect();
    assert_eq!(words(CHANGED), kinds, "each kind has an option in this file");
    world.init("network6 = \"fd00:88::/64\"");
    let profile = world.profile("alice");
    let toml = world.read("vpn/tunnel.toml");
    let server = world.serve();
    let client = world.connected(&profile, ASIDE);
    for option in CHANGED {
        for (options, change) in [(&[*option][..], (*option).to_owned()), (&[], format!("-{}", word(option)))] {
            push(&world, &toml, options);
            server.hang_up();
            let told = || sent(&client.log(), "PUSH_UPDATE").last() == Some(&change);
            assert!(eventually(told), "{change}: {}\n{}", client.log(), server.log());
        }
    }
    took_all(&client);
    // What was said about changes comes after that.
    let log = client.log();
    let refused = |line: &&str| line.contains("Options error") && !WINDOWS_ONLY.iter().any(|name| line.contains(name));
    assert_eq!(log.lines().find(refused), None, "{log}");
    assert_eq!(server.log().matches("is connected from").count(), 1, "{}\n{log}", server.log());
}
