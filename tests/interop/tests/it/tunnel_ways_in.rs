//! Coming from OpenVPN, and looking at what goes on.

use crate::tunnel_world::{End, INSIDE, World};
use sealane_interop::{eventually, need, peers, process, skip};

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// A server's configuration, blocks and settings of clients included, under Debian's OpenVPN, and then read by us: its
/// client gets the same from both.
#[test]
fn a_server_is_taken_over_with_its_clients() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let block = |name: &str, file: &str| format!("<{name}>\n{}</{name}>\n", world.read(file));
    std::fs::create_dir(world.path("clients")).expect("a folder can be made");
    world.write(
        "clients/alice",
        "ifconfig-push 10.88.0.50 255.255.255.0\niroute 10.123.0.0 255.255.255.0\npush \"setenv-safe colour blue\"\n",
    );
    let config = format!(
        "port 1194\nproto udp\ndev tun\ntopology subnet\nserver 10.88.0.0 255.255.255.0\nserver-ipv6 fd00:88::/64\nkeepalive \
         10 60\ndh none\ndata-ciphers AES-256-GCM:CHACHA20-POLY1305\nclient-config-dir clients\nroute 10.123.0.0 \
         255.255.255.0\npush \"route 10.77.0.0 255.255.0.0\"\nverb 3\n{}{}{}{}",
        block("ca", "vpn/ca.crt"),
        block("cert", "vpn/server.crt"),
        block("key", "vpn/server.key"),
        block("tls-crypt-v2", "vpn/tls-crypt-v2.key"),
    );
    let config = world.write("server.conf", &config);
    world.has_behind_client("10.123.0.5");
    let check = |who: &str| {
        let client = world.connected(&profile, &[]);
        let log = client.log();
        for word in [
            "ifconfig 10.88.0.50 255.255.255.0",
            "setenv-safe colour blue",
            "route 10.77.0.0 255.255.0.0",
            "AES-256-GCM",
        ] {
            assert!(log.contains(word), "{who}: {word}: {log}");
        }
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{who}");
        assert_eq!(world.pings(End::Client, "fd00:88::1", 3, "0.05", 56), 3, "{who}");
        assert_eq!(world.pings(End::Server, "10.123.0.5", 3, "0.05", 56), 3, "{who}");
    };
    {
        let _server = world.openvpn(End::Server, &config, &[]);
        check("OpenVPN");
    }
    std::fs::remove_file(world.path("vpn/tunnel.toml")).expect("it is there");
    let said = world.sealane(End::Server, &["tunnel", "import", "server.conf", "--out", "vpn/tunnel.toml"], b"");
    assert_eq!(said.code, Some(0), "{}", said.all());
    let _server = world.serve_udp();
    check("Sealane");
}

/// Who is there, with what, over which plane: to people and to Prometheus.
#[test]
fn what_goes_on_is_shown() {
    let curl = need!("curl");
    let world = world!();
    world.init("[admin]\nlisten = \"127.0.0.1:9101\"\nsocket = \"admin.sock\"");
    let profile = world.profile("alice");
    let server = world.serve();
    let _client = world.connected(&profile, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.05", 1000), 5);
    let mut metrics = String::new();
    let shown = eventually(|| {
        let mut command = world.command(End::Server, &curl);
        let said: peers::Said = process::run(command.args(["-s", "http://127.0.0.1:9101/metrics"]), b"").into();
        metrics = said.text();
        let bytes = |direction: &str| {
            let line = |l: &&str| {
                l.starts_with("sealane_tunnel_client_bytes_total{client=\"alice\"")
                    && l.contains(&format!("direction=\"{direction}\""))
            };
            metrics.lines().find(line).and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
        };
        // Five pings and their answers: 1,028 bytes each, and a header of IPv4.
        metrics.contains("sealane_tunnel_clients 1\n")
            && bytes("received") >= Some(5140.0)
            && bytes("sent") >= Some(5140.0)
    });
    assert!(shown, "{metrics}\n{}", server.log());
    for what in
        ["sealane_tunnel_control_total{what=\"connected\"} 1", "sealane_tunnel_data_total{what=\"link_received\"}"]
    {
        assert!(metrics.contains(what), "{what}: {metrics}");
    }
    let status = world.sealane(End::Server, &["tunnel", "status", "-c", "vpn/tunnel.toml"], b"").text();
    for what in ["data plane: user", "alice", "10.88.0.2", "AES-256-GCM"] {
        assert!(status.contains(what), "{what}: {status}");
    }
    let json = world.sealane(End::Server, &["tunnel", "status", "--json", "-c", "vpn/tunnel.toml"], b"").text();
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(json["clients"][0]["name"], "alice", "{json}");
    // The gateway's own status: in words, as data of the page, and as a table in a terminal.
    let run = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        world.sealane(End::Server, &arguments, b"").all()
    };
    let mut status = String::new();
    let shown = eventually(|| {
        status = run("status --socket vpn/admin.sock");
        status.contains("tunnel         1 connected, interface ") && status.contains("data plane user")
    });
    assert!(shown, "{status}");
    let mut table = String::new();
    let shown = eventually(|| {
        table = run("top --socket vpn/admin.sock --rounds 1 --table tunnel");
        table.lines().any(|l| ["alice", "udp", "AES-256-GCM"].iter().all(|cell| l.contains(cell)))
    });
    assert!(shown, "{table}");
    let page = |arguments: &[&str]| {
        let mut command = world.command(End::Server, &curl);
        let said: peers::Said = process::run(command.arg("-s").args(arguments), b"").into();
        serde_json::from_str::<serde_json::Value>(&said.text()).expect("it is JSON")
    };
    let own = page(&["--unix-socket", "vpn/admin.sock", "http://localhost/v1/status"]);
    assert_eq!(own["tunnel"]["clients"][0]["name"], "alice", "{own}");
    // Over TCP nobody has said who asks: a number, and no names.
    let strangers = page(&["http://127.0.0.1:9101/v1/status"]);
    assert_eq!(strangers["tunnel"]["connected"], 1, "{strangers}");
    assert_eq!(strangers["tunnel"]["clients"], serde_json::json!([]), "{strangers}");
}

/// The log and the status say why packets are not in the kernel.
#[test]
fn auto_says_why_it_is_not_the_kernel() {
    for (more, why) in [
        ("", "the kernel's data plane supports only UDP"),
        ("client_to_client = true", "client_to_client needs the user-space data plane"),
        ("[[tunnel.client]]\nname = \"alice\"\nallow = [\"10.88.0.1\"]", "access lists need the user-space data plane"),
    ] {
        let world = world!();
        world.init(more);
        // With TCP, that is the reason.
        let server = if more.is_empty() { world.serve() } else { world.serve_in_kernel() };
        let reason = format!("data plane: user space, because {why}");
        let in_words =
            |text: &str| text.lines().any(|l| l.contains("data plane: user space, because") && l.contains(why));
        assert!(eventually(|| in_words(&server.log())), "{reason}: {}", server.log());
        assert!(eventually(|| world.path("vpn/status.json").exists()), "{}", server.log());
        let status = world.sealane(End::Server, &["tunnel", "status", "-c", "vpn/tunnel.toml"], b"").text();
        assert!(in_words(&status), "{reason}: {status}");
    }
}
