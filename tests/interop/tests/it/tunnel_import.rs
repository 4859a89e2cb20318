//! What an OpenVPN configuration asks for is kept, or refused: nothing is passed over in silence.

use crate::tunnel_world::{End, World, said};
use sealane_control::vpn::profile;
use sealane_import::{Memory, Outcome, openvpn};
use sealane_interop::process::Server;
use sealane_interop::{binary, eventually, need, peers, process, skip};
use std::path::Path;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

const SERVER: &str = "port 1194\nproto udp\ndev tun\nserver 10.88.0.0 255.255.255.0\nca vpn/ca.crt\ncert vpn/server.crt\nkey \
                      vpn/server.key\ndh none\nkeepalive 10 60\ntls-crypt-v2 vpn/tls-crypt-v2.key\n";

/// Options that decide who may connect, or how: exit code 1, and a configuration that does not start.
#[test]
fn what_restricts_and_is_not_understood_is_an_error() {
    let world = world!();
    world.init("");
    for (number, option) in [
        "plugin /usr/lib/openvpn/openvpn-plugin-auth-pam.so login",
        "tls-verify /etc/openvpn/verify.sh",
        "auth-user-pass-verify /etc/openvpn/check.sh via-file",
        "client-connect /etc/openvpn/connect.sh",
        "tls-cipher TLS-ECDHE-ECDSA-WITH-AES-256-GCM-SHA384",
        "tls-groups secp521r1",
        "tls-cert-profile suiteb",
        "remote-cert-ku 80",
        "remote-cert-tls server",
        "verify-hash 00:11",
        "peer-fingerprint 00:11",
        "auth-gen-token-secret token.key",
        "crl-verify crls dir",
        "capath cas",
        "chroot /var/empty",
        "setenv opt tls-verify /x",
        "an-option-of-the-future 1",
    ]
    .into_iter()
    .enumerate()
    {
        world.write("server.conf", &format!("{SERVER}{option}\n"));
        let out = format!("vpn/imported-{number}.toml");
        let said = world.sealane(End::Server, &["tunnel", "import", "server.conf", "--out", &out], b"");
        assert_eq!(said.code, Some(1), "{option}: {}", said.all());
        let word = option.trim_start_matches("setenv opt ").split(' ').next().expect("a word");
        assert!(said.all().contains(&format!("server.conf:11: undecided: {word}")), "{option}: {}", said.all());
        for command in [["check", "-c", &out], ["serve", "-c", &out]] {
            let said = world.sealane(End::Server, &command, b"");
            assert_eq!(said.code, Some(1), "{option}: {}", said.all());
            let entry = said.all().lines().any(|l| l.contains("not decided yet: ") && l.contains("server.conf:11: "));
            assert!(entry, "{option}: {}", said.all());
        }
    }
    // The same without such an option passes.
    world.write("server.conf", &format!("{SERVER}remote-cert-tls client\nverb 3\nuser nobody\n"));
    let said = world.sealane(End::Server, &["tunnel", "import", "server.conf", "--out", "vpn/good.toml"], b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
    let said = world.sealane(End::Server, &["check", "-c", "vpn/good.toml"], b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
}

/// Every option that OpenVPN's own help names has a result.
#[test]
fn no_option_is_passed_over_in_silence() {
    let openvpn = need!("openvpn");
    let help: peers::Said = process::run(std::process::Command::new(openvpn).arg("--help"), b"").into();
    let mut options: Vec<String> = help
        .all()
        .lines()
        .filter_map(|line| line.strip_prefix("--"))
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect())
        .collect();
    options.sort_unstable();
    options.dedup();
    assert!(options.len() > 200, "{options:?}");
    let file = Path::new("/nonexistent/server.conf");
    for option in &options {
        let text = format!("{SERVER}{option} 1 2\n");
        let Ok(got) = openvpn::import(&Memory::of("/nonexistent/server.conf", text.as_bytes()), file) else { continue };
        let said = got.report.to_text(true);
        assert!(said.contains("server.conf:11: "), "{option} is passed over: {said}");
        assert_eq!(
            Outcome::ALL.map(|o| got.report.count(o)).iter().sum::<usize>(),
            got.report.directives(),
            "{option}"
        );
    }
    // So has each option in a client's profile: done, not needed, left out, or refused for a reason.
    let missing: Vec<&String> = options.iter().filter(|option| profile::outcome(option).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // All are known by name, so that the reason is of use.
    let is_known = |option: &&String| openvpn::DIRECTIVES.iter().any(|(name, _)| name == option);
    let missing: Vec<&String> = options.iter().filter(|option| !is_known(option)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Files of a `client-config-dir` that are no client's, addresses that are several, options that are there twice.
#[test]
fn leftovers_and_defaults_are_told_apart() {
    let world = world!();
    world.init("");
    std::fs::create_dir(world.path("ccd")).expect("a folder can be made");
    world.write("ccd/alice", "ifconfig-push 10.88.0.50 255.255.255.0\niroute 10.1.0.0 255.255.0.0\n");
    world.write("ccd/alice~", "ifconfig-push 10.88.0.51 255.255.255.0\n");
    world.write("ccd/.bob.swp", "\u{1}\u{2}");
    world.write("ccd/DEFAULT", "disable\npush \"setenv-safe group guests\"\npush \"comp-lzo no\"\n");
    let more = "client-config-dir ccd\nroute 10.1.0.0 255.255.0.0\ntopology subnet\nlocal 127.0.0.1\nlocal \
                10.99.0.1\nmax-clients 5\nmax-clients 6\n";
    world.write("server.conf", &format!("{SERVER}{more}"));
    let said = world.sealane(End::Server, &["tunnel", "import", "server.conf", "--out", "vpn/imported.toml"], b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
    let toml = world.read("vpn/imported.toml");
    for line in [
        "listen = [\"udp://127.0.0.1:1194\", \"udp://10.99.0.1:1194\"]",
        "known_clients_only = true",
        "push_unlisted = [\"setenv-safe group guests\"]",
        "max_clients = 6",
        "name = \"alice\"",
    ] {
        assert!(toml.lines().any(|l| l.split("  # ").next() == Some(line)), "{line}: {toml}");
    }
    assert_eq!(toml.matches("[[tunnel.client]]").count(), 1, "{toml}");
    let word = "ccd/DEFAULT:3: not translated: push comp-lzo no";
    assert!(said.all().contains(word), "{word}: {}", said.all());
    assert!(!said.all().contains("route 10.1.0.0"), "it is alice's: {}", said.all());
    // A network behind nobody: its packets would leave by the default route.
    world.write("routes.conf", &format!("{SERVER}{more}route 10.2.0.0 255.255.0.0\n"));
    let routes = ["tunnel", "import", "routes.conf", "--out", "vpn/routes.toml"];
    let refused = world.sealane(End::Server, &routes, b"");
    assert_eq!(refused.code, Some(1), "{}", refused.all());
    let word = "routes.conf:18: undecided: route 10.2.0.0 255.255.0.0";
    assert!(refused.all().contains(word), "{}", refused.all());
    // What needs nothing is in the whole report.
    let full = ["import", "openvpn", "server.conf", "--report", "json", "--out", "vpn/again.toml"];
    let said = world.sealane(End::Server, &full, b"");
    let report: serde_json::Value = serde_json::from_str(&said.text()).expect("JSON");
    let of = |line: &str| {
        let entries = report["entries"].as_array().expect("a list").iter();
        let text = |e: &serde_json::Value| format!("{}:{}", e["file"].as_str().expect("a text"), e["line"]);
        let found: Vec<String> = entries
            .filter(|e| text(e).ends_with(line))
            .map(|e| e["says"].as_str().expect("a text").to_owned())
            .collect();
        found.concat()
    };
    assert!(of("ccd/alice~:1").contains("backup copy") && of("ccd/.bob.swp:1").contains("backup copy"), "{report}");
    assert!(of("server.conf:16").contains("line 17 overrides this line"), "{report}");
    // A default for those without a file, and for no others.
    world.write("vpn/tunnel.toml", &without(&toml, "known_clients_only = true"));
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let _server = world.serve_udp();
    assert!(world.connected(&bob, &[]).log().contains("setenv-safe group guests"));
    assert!(!world.connected(&alice, &[]).log().contains("setenv-safe group guests"));
    // A mask that is none is no single address.
    world.write("ccd/alice", "iroute 10.1.0.0 255.0.255.0\niroute-ipv6 10.1.0.0/16/2\n");
    let said = world.sealane(End::Server, &["tunnel", "import", "server.conf", "--out", "vpn/masks.toml"], b"");
    assert_eq!(said.code, Some(1), "{}", said.all());
    assert_eq!(said.all().matches("undecided: iroute").count(), 2, "{}", said.all());
}

/// A configuration without a line.
fn without(toml: &str, line: &str) -> String {
    toml.lines().filter(|l| !l.starts_with(line)).map(|l| format!("{l}\n")).collect()
}

/// Our client refuses what its profile forbids, as a stock client does.
#[test]
fn a_profile_that_restricts_is_obeyed() {
    let world = world!();
    world.init("tls_versions = [\"1.2\"]");
    world.profile("alice");
    let profile = world.read("alice.ovpn");
    let server = world.serve();
    let pem = peers::find("openssl").expect("openssl is installed wherever openvpn is");
    let mut command = world.command(End::Server, &pem);
    command.args(["x509", "-in", "vpn/server.crt", "-noout", "-fingerprint", "-sha256"]);
    let fingerprint: peers::Said = process::run(&mut command, b"").into();
    let fingerprint = fingerprint.text().trim().rsplit('=').next().expect("it is printed").to_owned();
    let other = fingerprint.chars().rev().collect::<String>();
    let start = |more: &str| {
        let mut command = world.command(End::Client, binary::sealane());
        let file = world.write("tried.ovpn", &format!("{profile}{more}\n"));
        command.args(["tunnel", "connect", "--dns", "off"]).arg(file);
        Server::start(command, &world.path(""))
    };
    for (more, why) in [
        ("verify-hash 00:11:22", "this is not a SHA-1 or SHA-256 fingerprint"),
        ("tls-verify /bin/true", "scripts are not run"),
        ("block-ipv6", "does not block what passes outside the tunnel"),
        ("block-outside-dns", "does not block what passes outside the tunnel"),
        ("redirect-gateway def3", "`redirect-gateway def3` is not valid"),
        ("dhcp-option DOMAIN $(id)", "is not valid"),
        ("ns-cert-type server", "remote-cert-tls"),
        ("tls-cipher TLS-RSA-WITH-AES-128-CBC-SHA", "none of the suites in"),
        ("tls-cipher DEFAULT:!ECDHE", "only names"),
        ("tls-groups secp521r1", "none of the groups in"),
        ("remote-cert-tls client", "only the value `server` is supported"),
        ("pull-filter drop route", "accept|ignore|reject"),
        ("an-option-of-the-future", "is unknown"),
        (&format!("peer-fingerprint {other}"), "is not accepted"),
        ("remote-cert-eku \"Code Signing\"", "is not accepted"),
        ("remote-cert-ku 04", "is not accepted"),
        ("verify-x509-name somebody name", "is not accepted"),
    ] {
        let mut client = start(more);
        assert_eq!(client.wait().code(), Some(1), "{more}: {}", client.log());
        let log = client.log();
        assert!(log.contains(why) && !log.contains("connected to"), "{more}: {log}");
    }
    // Not for ever wrong: it may be another server next time.
    let client = start("tls-version-min 1.3");
    assert!(said(&client, "; trying again in"), "{}", client.log());
    assert!(!client.log().contains("connected to"), "{}", client.log());
    drop(client);
    for more in [
        format!("peer-fingerprint {fingerprint}"),
        "remote-cert-eku \"TLS Web Server Authentication\"\nremote-cert-ku 80 20".to_owned(),
        "tls-cipher DEFAULT:!EXP:!LOW:!PSK:!SRP:!kRSA".to_owned(),
        "tls-cipher TLS-ECDHE-ECDSA-WITH-AES-256-GCM-SHA384\ntls-groups X25519:secp521r1".to_owned(),
        "setenv opt an-option-of-the-future\nignore-unknown-option an-option-of-the-future".to_owned(),
        "setenv opt block-outside-dns".to_owned(),
        "ignore-unknown-option block-outside-dns\nblock-outside-dns".to_owned(),
    ] {
        let client = start(&more);
        assert!(said(&client, "connected to"), "{more}: {}\n{}", client.log(), server.log());
    }
}

/// The old server may still run, or its file may be all that is left of it.
#[test]
fn the_status_of_the_old_server_is_left_alone() {
    let world = world!();
    world.init("");
    let old = "OpenVPN CLIENT LIST\nUpdated,2026-01-01 00:00:00\n";
    world.write("vpn/status.log", old);
    world.write("server.conf", &format!("{SERVER}topology subnet\nstatus vpn/status.log 10\n"));
    let imported = world.sealane(End::Server, &["tunnel", "import", "server.conf", "--out", "vpn/new.toml"], b"");
    assert_eq!(imported.code, Some(0), "{}", imported.all());
    world.write("vpn/tunnel.toml", &world.read("vpn/new.toml"));
    let server = world.serve_udp();
    let written = || std::fs::read_to_string(world.path("vpn/status.log.json")).unwrap_or_default();
    assert!(eventually(|| written().contains("\"interface\"")), "{}", server.log());
    assert_eq!(world.read("vpn/status.log"), old);
}

/// A user who can read the configuration can read the status. Only the gateway needs the private key.
#[test]
fn the_status_needs_no_key() {
    let world = world!();
    world.init("");
    let _server = world.serve();
    assert!(eventually(|| world.path("vpn/status.json").exists()));
    std::fs::remove_file(world.path("vpn/server.key")).expect("it is there");
    let said = world.sealane(End::Server, &["tunnel", "status", "-c", "vpn/tunnel.toml"], b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
    assert!(said.text().contains("0 clients"), "{}", said.all());
}

/// Files that the tunnel writes are no change; a file that was missing is.
#[test]
fn changes_of_files_are_noticed_beside_a_status() {
    let world = world!();
    world.init("log = \"events.json\"");
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &format!("reload_on_change = true\n{toml}"));
    let profile = world.profile("alice");
    let server = world.serve();
    let _client = world.connected(&profile, &[]);
    // The status is written every second meanwhile.
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &format!("{toml}users = \"users\"\n"));
    assert!(said(&server, "not reloaded"), "{}", server.log());
    // No user: alice's session has none, so she stays, and the next reload is noticed by the file of users alone.
    let hash = world.sealane(End::Server, &["tunnel", "passwd", "al"], b"right\n").text();
    world.write("vpn/users", &hash);
    let reloaded = || server.log().matches("reloaded").count() > server.log().matches("not reloaded").count();
    assert!(eventually(reloaded), "{}", server.log());
}

/// What `check` passes, `serve` takes.
#[test]
fn a_wrong_network_or_ping_is_found_by_check() {
    let world = world!();
    world.init("");
    let toml = world.read("vpn/tunnel.toml");
    let network = toml.lines().find(|l| l.starts_with("network =")).expect("init writes one").to_owned();
    for (with, why) in [
        ("network = \"fd00:88::/64\"".to_owned(), "network6 = "),
        (format!("{network}\nnetwork6 = \"10.9.0.0/24\""), "network = "),
        (format!("{network}\nping = \"500ms\""), "a whole number of seconds"),
        (
            format!("{network}\npush = [\"ruote 10.1.0.0 255.255.0.0\"]"),
            "\"ruote\" is not an option that clients accept",
        ),
        (format!("{network}\nping_restart = \"100000s\""), "a whole number of seconds"),
    ] {
        world.write("vpn/wrong.toml", &toml.replace(&network, &with));
        let said = world.sealane(End::Server, &["check", "-c", "vpn/wrong.toml"], b"");
        assert_eq!(said.code, Some(1), "{with}: {}", said.all());
        assert!(said.all().contains(why), "{with}: {}", said.all());
    }
}
