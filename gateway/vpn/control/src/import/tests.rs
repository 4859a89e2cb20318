use super::options::OPTIONS;
use super::*;

const SERVER: &str = "port 443\nproto tcp\ndev tun\nserver 10.8.0.0 255.255.255.0\nserver-ipv6 fd00:8::/64\ntopology \
subnet\nca ca.crt\ncert server.crt\nkey server.key\ndh none\n<tls-crypt>\nkey\n</tls-crypt>\ndata-ciphers \
AES-256-GCM:AES-256-CBC\npush \"route 10.0.0.0 255.0.0.0\"\npush \"dhcp-option DNS 10.8.0.1\"\nkeepalive 10 60\n\
comp-lzo\nplugin /x.so\nshaper 1000\nroute 192.168.5.0 255.255.255.0\nclient-to-client\nsomething new\n";

#[test]
fn a_servers_configuration_is_taken_over() {
    let got = convert(SERVER, Path::new("/etc/openvpn")).expect("a server's");
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
    ] {
        assert!(got.toml.lines().any(|l| l == line), "{line}\n{}", got.toml);
    }
    assert_eq!(got.files, [("tls-crypt.pem".to_owned(), "key\n".to_owned())]);
    let notes = got.notes.join("\n");
    for word in ["comp-lzo", "shaper", "tc qdisc", "192.168.5.0/24", "AES-256-CBC", "dh none"] {
        assert!(notes.contains(word), "{word} is missing: {notes}");
    }
    assert_eq!(got.notes.len(), 5, "{notes}");
    let undecided = got.undecided.join("\n");
    assert!(undecided.contains("plugin /x.so") && undecided.contains("something new"), "{undecided}");
    assert_eq!(got.undecided.len(), 2, "{undecided}");
    assert!(got.toml.contains("undecided = ["), "{}", got.toml);
    assert!(got.toml.parse::<toml::Table>().is_ok(), "{}", got.toml);
    assert!(convert("client\nremote x 1\n", Path::new("")).is_err());
}

#[test]
fn the_last_of_repeated_options_counts_and_several_addresses_are_kept() {
    let text = "port 1\nport 2\nlocal 192.0.2.1\nlocal 2001:db8::1\nproto udp\ntls-version-min 1.2\nsetenv opt \
                tls-version-max 1.2\nserver 10.8.0.0 255.255.255.0\nuser nobody\nstatus s.log\n";
    let got = convert(text, Path::new("/x")).expect("a server's");
    for line in [
        "listen = [\"udp://192.0.2.1:2\", \"udp://[2001:db8::1]:2\"]",
        "tls_versions = [\"1.2\"]",
        "status = \"/x/s.log.json\"",
    ] {
        assert!(got.toml.lines().any(|l| l == line), "{line}\n{}", got.toml);
    }
    assert!(got.toml.contains("\nuser = \"nobody\"\n[tunnel]\n"), "{}", got.toml);
    assert!(got.notes.iter().any(|n| n == "line 1: port 1: line 2 counts"), "{:?}", got.notes);
    assert!(got.undecided.is_empty(), "{:?}", got.undecided);
}

#[test]
fn management_and_limits_are_taken_over() {
    let text = "server 10.8.0.0 255.255.255.0\nmanagement run/m.sock unix\nmanagement-client-auth\nconnect-freq 100 \
                10\ninactive 3600 1000\nifconfig-pool-persist ipp.txt\nusername-as-common-name\n";
    let got = convert(text, Path::new("/x")).expect("a server's");
    for line in [
        "management = \"/x/run/m.sock\"",
        "management_client_auth = true",
        "connect_rate = \"10/s\"",
        "inactive = \"3600s\"",
        "inactive_bytes = 1000",
        "addresses_file = \"/x/ipp.txt\"",
        "username_as_common_name = true",
    ] {
        assert!(got.toml.lines().any(|l| l == line), "{line}\n{}", got.toml);
    }
    assert!(got.undecided.is_empty(), "{:?}", got.undecided);
    let outcome = |line: &str| convert(&format!("server 10.8.0.0 255.255.255.0\n{line}\n"), Path::new("/x"));
    for (line, is_undecided) in [
        ("management 127.0.0.1 7505", false),
        ("management m.sock unix password.txt", true),
        ("management-client-group openvpn", true),
        ("ifconfig-pool-persist ipp.txt 0", false),
        ("connect-freq 0 1", true),
        ("connect-freq 1 0", true),
        ("inactive soon", true),
    ] {
        let got = outcome(line).expect("a server's");
        assert_eq!((got.undecided.len(), got.notes.len()), if is_undecided { (1, 0) } else { (0, 1) }, "{line}");
    }
}

#[test]
fn what_is_not_a_number_is_undecided() {
    let text = "server 10.8.0.0 255.255.255.0\nmax-clients [::1]mtu\nmssfix \"1 = 2\"\ntun-mtu +1400\n";
    let got = convert(text, Path::new("/x")).expect("a server's");
    assert!(got.toml.parse::<toml::Table>().is_ok(), "{}", got.toml);
    assert_eq!(got.undecided.len(), 2, "{:?}", got.undecided);
    assert!(got.toml.lines().any(|l| l == "mtu = 1400"), "{}", got.toml);
}

#[test]
fn each_option_is_listed_once() {
    let mut names: Vec<&str> = OPTIONS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}
