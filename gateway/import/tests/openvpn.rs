//! Configurations of OpenVPN servers: nothing is passed over, and what restricts clients is translated or undecided.

use sealane_import::{Imported, Kind, Memory, Outcome, openvpn};
use std::path::Path;

const FILE: &str = "/etc/openvpn/server.conf";

fn imported_with(text: &str, files: &[(&str, &str)]) -> Imported {
    let mut reader = Memory::of(FILE, text.as_bytes());
    reader.files.extend(files.iter().map(|(name, content)| ((*name).into(), content.as_bytes().to_vec())));
    openvpn::import(&reader, Path::new(FILE)).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn imported(text: &str) -> Imported {
    imported_with(text, &[])
}

/// The lines of the result, without their origins.
fn lines(toml: &str) -> Vec<&str> {
    toml.lines().map(|l| l.split("  # ").next().unwrap_or("")).collect()
}

/// What a server needs besides the options that are looked at.
const REST: &str = "server 10.8.0.0 255.255.255.0\nca ca.crt\ncert server.crt\nkey server.key\ntls-crypt t.key\n";

#[test]
fn a_servers_configuration_is_translated() {
    let text = "port 443\nproto tcp\ndev tun\nserver 10.8.0.0 255.255.255.0\nserver-ipv6 fd00:8::/64\ntopology subnet\nca ca.crt\ncert \
                server.crt\nkey server.key\ndh none\n<tls-crypt>\nkey\n</tls-crypt>\ndata-ciphers AES-256-GCM:AES-256-CBC\npush \
                \"route 10.0.0.0 255.0.0.0\"\npush \"dhcp-option DNS 10.8.0.1\"\nkeepalive 10 60\ncomp-lzo\nplugin /x.so\nshaper \
                1000\nroute 192.168.5.0 255.255.255.0\nclient-to-client\nsomething new\n";
    let Imported { toml, report, files } = imported(text);
    let all = lines(&toml);
    for line in [
        "listen = [\"tcp://:443\"]",
        "network = \"10.8.0.0/24\"",
        "network6 = \"fd00:8::/64\"",
        "ca = \"/etc/openvpn/ca.crt\"",
        "tls_crypt = \"tls-crypt.pem\"",
        "ciphers = [\"AES-256-GCM\"]",
        "push = [\"route 10.0.0.0 255.0.0.0\", \"dhcp-option DNS 10.8.0.1\"]",
        "ping = \"10s\"",
        "ping_restart = \"60s\"",
        "client_to_client = true",
        "undecided = [",
    ] {
        assert!(all.contains(&line), "{line}\n{toml}");
    }
    assert!(toml.contains("network = \"10.8.0.0/24\"  # /etc/openvpn/server.conf:4\n"), "{toml}");
    assert_eq!(files, [("tls-crypt.pem".to_owned(), b"key\n".to_vec())]);
    let said = report.to_text(true);
    for line in [
        "server.conf:18: not translated: comp-lzo:",
        "server.conf:20: not translated: shaper 1000:",
        "server.conf:21: undecided: route 192.168.5.0 255.255.255.0: no client has this network",
        "server.conf:14: different: data-ciphers AES-256-GCM:AES-256-CBC: AES-256-CBC is not supported",
        "server.conf:10: the same: dh none:",
        "server.conf:19: undecided: plugin /x.so:",
        "server.conf:23: undecided: something new:",
    ] {
        assert!(said.contains(&format!("/etc/openvpn/{line}")), "{line}: {said}");
    }
    assert_eq!(report.count(Outcome::Undecided), 3, "{said}");
    assert_eq!(Outcome::ALL.map(|o| report.count(o)).iter().sum::<usize>(), report.directives(), "{said}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    assert_eq!(json["counts"]["undecided"], 3);
    assert!(toml.parse::<toml::Table>().is_ok(), "{toml}");
    for (wrong, place) in [("client\nremote x 1\n", ":1"), ("port 1\n<ca>\n", ":2"), ("proto quic\n", ":1")] {
        let failed = openvpn::import(&Memory::of(FILE, wrong.as_bytes()), Path::new(FILE)).unwrap_err();
        assert!(failed.to_string().starts_with(&format!("{FILE}{place}: ")), "{failed}");
    }
}

#[test]
fn a_translation_without_undecided_options_is_accepted() {
    let Imported { toml, report, .. } = imported(&format!("{REST}keepalive 10 60\nremote-cert-tls client\nverb 3\n"));
    assert_eq!(report.undecided(), Vec::<String>::new(), "{toml}");
    // What Sealane refuses is found at once.
    let Imported { report, .. } = imported("server 10.8.0.0 255.255.255.0\n");
    assert!(report.undecided().concat().contains("the whole file: Sealane refuses the translation"), "{report:?}");
}

/// A stock server sends them, and each client writes an error to its log and goes on without them.
#[test]
fn what_clients_refuse_from_a_server_is_not_pushed() {
    let Imported { toml, report, .. } = imported(&format!("{REST}push \"mssfix 1300\"\npush \"setenv A b\"\n"));
    assert!(!lines(&toml).iter().any(|line| line.starts_with("push")), "{toml}");
    let said = report.to_text(true);
    for line in ["server.conf:6: not translated: push mssfix 1300:", "server.conf:7: not translated: push setenv A b:"]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[test]
fn the_last_of_repeated_options_counts_and_several_addresses_are_kept() {
    let text = format!(
        "port 1\nport 2\nlocal 192.0.2.1\nlocal 2001:db8::1\nproto udp\ntls-version-min 1.2\nsetenv opt tls-version-max 1.2\nuser \
         nobody\nstatus s.log\n{REST}"
    );
    let Imported { toml, report, .. } = imported(&text);
    let all = lines(&toml);
    for line in [
        "listen = [\"udp://192.0.2.1:2\", \"udp://[2001:db8::1]:2\"]",
        "tls_versions = [\"1.2\"]",
        "status = \"/etc/openvpn/s.log.json\"",
        "user = \"nobody\"",
    ] {
        assert!(all.contains(&line), "{line}\n{toml}");
    }
    assert!(toml.find("user = ") < toml.find("[tunnel]"), "{toml}");
    assert!(
        report.to_text(true).contains("server.conf:1: the same: port 1: line 2 overrides this line"),
        "{}",
        report.to_text(true)
    );
    assert!(report.undecided().is_empty(), "{:?}", report.undecided());
}

#[test]
fn management_and_limits_are_translated() {
    let text = format!(
        "{REST}management run/m.sock unix\nmanagement-client-auth\nconnect-freq 100 10\ninactive 3600 1000\nifconfig-pool-persist \
         ipp.txt\nusername-as-common-name\nsession-timeout 86400\n"
    );
    let Imported { toml, report, .. } = imported(&text);
    let all = lines(&toml);
    for line in [
        "management = \"/etc/openvpn/run/m.sock\"",
        "management_client_auth = true",
        "connect_rate = \"10/s\"",
        "inactive = \"3600s\"",
        "inactive_bytes = 1000",
        "session_timeout = \"86400s\"",
        "addresses_file = \"/etc/openvpn/ipp.txt\"",
        "username_as_common_name = true",
    ] {
        assert!(all.contains(&line), "{line}\n{toml}");
    }
    assert!(report.undecided().is_empty(), "{:?}", report.undecided());
    for (line, outcome) in [
        ("management 127.0.0.1 7505", "not translated"),
        ("management m.sock unix password.txt", "undecided"),
        ("management-client-group openvpn", "undecided"),
        ("ifconfig-pool-persist ipp.txt 0", "not translated"),
        ("connect-freq 0 1", "undecided"),
        ("connect-freq 1 0", "undecided"),
        ("inactive soon", "undecided"),
        ("session-timeout soon", "undecided"),
        ("session-timeout 0", "the same"),
        ("max-clients [::1]mtu", "undecided"),
        ("mssfix \"1 = 2\"", "undecided"),
        ("tun-mtu +1400", "the same"),
    ] {
        let Imported { toml, report, .. } = imported(&format!("{REST}{line}\n"));
        let said = report.to_text(true);
        assert!(said.contains(&format!("server.conf:6: {outcome}: {}", line.replace('"', ""))), "{line}: {said}");
        assert!(toml.parse::<toml::Table>().is_ok(), "{toml}");
    }
}

#[test]
fn a_pool_is_translated() {
    // As people write it who want fixed addresses beside the pool.
    let rest =
        "mode server\ntls-server\ntopology subnet\nca ca.crt\ncert server.crt\nkey server.key\ntls-crypt t.key\n";
    let text = format!(
        "{rest}ifconfig 10.8.0.1 255.255.255.0\nifconfig-pool 10.8.0.100 10.8.0.199 255.255.255.0\nifconfig-ipv6 fd00:8::1/64 \
         fd00:8::2\nifconfig-ipv6-pool fd00:8::2000/64\n"
    );
    let Imported { toml, report, .. } = imported(&text);
    let all = lines(&toml);
    for line in [
        "network = \"10.8.0.1/24\"",
        "pool = \"10.8.0.100-10.8.0.199\"",
        "network6 = \"fd00:8::1/64\"",
        "pool6 = \"fd00:8::2000-fd00:8::1:1fff\"",
    ] {
        assert!(all.contains(&line), "{line}\n{toml}");
    }
    assert!(report.undecided().is_empty(), "{:?}", report.undecided());
    assert_eq!(report.count(Outcome::Different), 0, "{}", report.to_text(true));
    let rest = rest.replace("mode server\ntls-server\n", "");
    for (lines, said) in [
        (
            "server 10.8.0.0 255.255.255.0 nopool\nifconfig-pool 10.8.0.100 10.8.0.199",
            "different: server 10.8.0.0 255.255.255.0 nopool",
        ),
        (
            "server 10.8.0.0 255.255.255.0 nopool\nifconfig-pool 10.8.0.100 10.8.0.199 255.255.0.0",
            "different: ifconfig-pool 10.8.0.100 10.8.0.199 255.255.0.0: clients get the mask of the network",
        ),
        ("ifconfig 10.8.0.1 10.8.0.2", "undecided: ifconfig 10.8.0.1 10.8.0.2"),
        (
            "server 10.8.0.0 255.255.255.0 nopool\nifconfig-pool 10.8.0.100 somewhere",
            "undecided: ifconfig-pool 10.8.0.100 somewhere",
        ),
        // The network of the pool is another one: Sealane refuses it.
        (
            "server 10.8.0.0 255.255.255.0 nopool\nifconfig-pool 10.9.0.100 10.9.0.199",
            "\"10.9.0.100-10.9.0.199\" cannot be the pool",
        ),
    ] {
        let Imported { report, .. } = imported(&format!("{rest}{lines}\n"));
        assert!(report.to_text(true).contains(said), "{lines}: {}", report.to_text(true));
    }
}

#[test]
fn files_of_clients_become_tables() {
    let files = [
        (
            "/etc/openvpn/ccd/alice",
            "ifconfig-push 10.8.0.50 255.255.255.0\niroute 10.1.0.0 255.255.0.0\npush \"route 10.2.0.0 255.255.0.0\"\n",
        ),
        ("/etc/openvpn/ccd/alice~", "ifconfig-push 10.8.0.51 255.255.255.0\n"),
        ("/etc/openvpn/ccd/.bob.swp", "\u{1}\u{2}"),
        ("/etc/openvpn/ccd/carol", "disable\nshield on\n"),
        ("/etc/openvpn/ccd/DEFAULT", "disable\npush \"setenv-safe group guests\"\npush \"comp-lzo no\"\n"),
    ];
    let text = format!("{REST}client-config-dir ccd\nroute 10.1.0.0 255.255.0.0\nroute 10.3.0.0 255.255.0.0\n");
    let Imported { toml, report, .. } = imported_with(&text, &files);
    let all = lines(&toml);
    let clients: Vec<&str> = all.iter().copied().filter(|l| l.starts_with("name = ")).collect();
    assert_eq!(clients, ["name = \"alice\"", "name = \"carol\""], "{toml}");
    for line in [
        "address = \"10.8.0.50\"",
        "routes = [\"10.1.0.0/16\"]",
        "push = [\"route 10.2.0.0 255.255.0.0\"]",
        "disabled = true",
        "known_clients_only = true",
        "push_unlisted = [\"setenv-safe group guests\"]",
    ] {
        assert!(all.contains(&line), "{line}\n{toml}");
    }
    let said = report.to_text(true);
    for line in [
        "ccd/carol:2: undecided: shield on:",
        "ccd/alice~:1: the same: the whole file: skipped",
        "ccd/DEFAULT:3: not translated: push comp-lzo no:",
        "server.conf:7: the same: route 10.1.0.0 255.255.0.0:",
        "server.conf:8: undecided: route 10.3.0.0 255.255.0.0:",
    ] {
        assert!(said.contains(&format!("/etc/openvpn/{line}")), "{line}: {said}");
    }
    assert_eq!(report.count(Outcome::Undecided), 2, "{said}");
    // A folder that is not there may have restricted clients, and the networks may be behind them.
    assert_eq!(imported(&text).report.count(Outcome::Undecided), 3);
    let outside = format!("{REST}route 10.1.0.0 255.255.0.0 net_gateway\n");
    let said = imported(&outside).report.to_text(true);
    assert!(
        said.contains("undecided: route 10.1.0.0 255.255.0.0 net_gateway: is a route outside the tunnel"),
        "{said}"
    );
}

#[test]
fn each_option_is_listed_once_and_translated_as_listed() {
    let mut names: Vec<&str> = openvpn::DIRECTIVES.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
    for (name, kind) in openvpn::DIRECTIVES.iter().filter(|(name, _)| !matches!(*name, "client" | "proto" | "remote")) {
        let Imported { report, .. } = imported(&format!("{REST}{name} 1 2\n"));
        let said = report.to_text(true);
        let outcome = match kind {
            Kind::Translated(_) => continue,
            Kind::NotNeeded(_) => "the same",
            Kind::Missing(_) => "not translated",
            Kind::Undecided(_) => "undecided",
        };
        assert!(said.contains(&format!("server.conf:6: {outcome}: {name} 1 2")), "{name}: {said}");
    }
}
