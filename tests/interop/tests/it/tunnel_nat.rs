//! Clients and the networks behind the server: forwarding, source NAT, all traffic through the tunnel.

use crate::tunnel_world::{End, World, said};
use sealane_interop::peers::{self, Said};
use sealane_interop::{eventually, need, process, skip};
use std::path::Path;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Runs a program at the server's end.
#[track_caller]
fn at_server(world: &World, program: &str, arguments: &str) -> Said {
    let path = peers::find(program).expect("looked for before");
    process::run(world.command(End::Server, &path).args(arguments.split_whitespace()), b"").into()
}

/// What a client sends to another network leaves the server with the server's address. The rules are printed, applied by the gateway
/// at its start, and removed.
#[test]
fn clients_reach_other_networks_with_the_servers_address() {
    let _ = need!("nft");
    let world = world!();
    let _ = need!("sysctl");
    world.init("nat = true\nroutes = [\"203.0.113.0/24\"]");
    let printed = world.sealane(End::Server, &["tunnel", "nat", "-c", "vpn/tunnel.toml"], b"");
    assert_eq!(printed.code, Some(0), "{}", printed.all());
    assert!(printed.text().contains("ip saddr 10.88.0.0/24 ip daddr != 10.88.0.0/24 masquerade"), "{}", printed.all());
    // A network behind the server, whose packets are counted as they leave: behind the translation of addresses.
    at_server(&world, "sysctl", "-qw net.ipv4.ip_forward=1");
    for arguments in [
        "link add outside0 type veth peer name outside1",
        "addr add 203.0.113.1/24 dev outside0",
        "link set outside0 up",
        "link set outside1 up",
        "neigh add 203.0.113.9 lladdr 02:00:00:00:00:09 dev outside0",
    ] {
        let done = at_server(&world, "ip", arguments);
        assert_eq!(done.code, Some(0), "ip {arguments}: {}", done.all());
    }
    let counting = world.write(
        "counting.nft",
        "table ip counting { chain leaving { type filter hook postrouting priority 300; oifname outside0 ip saddr \
         203.0.113.1 counter comment \"translated\"; oifname outside0 ip saddr 10.88.0.0/24 counter comment \"plain\"; }; }",
    );
    let done = at_server(&world, "nft", &format!("-f {}", counting.display()));
    assert_eq!(done.code, Some(0), "{}", done.all());
    let profile = world.profile("alice");
    let server = world.serve();
    let _client = world.connected(&profile, &[]);
    let packets = |kind: &str| -> u64 {
        let listed = at_server(&world, "nft", "list table ip counting").text();
        let line = listed.lines().find(|line| line.contains(kind)).expect("the counter is there").to_owned();
        let rest = line.split_once("counter packets ").expect("it counts").1;
        rest.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
    };
    // Nobody is there to answer.
    let ping = || {
        let path = peers::find("ping").expect("looked for before");
        process::run(world.command(End::Client, &path).args(["-c", "1", "-W", "1", "203.0.113.9"]), b"");
        packets("translated") > 0
    };
    assert!(eventually(ping), "{}\n{}", server.log(), at_server(&world, "nft", "list ruleset").all());
    assert_eq!(packets("plain"), 0);
    let removed = world.sealane(End::Server, &["tunnel", "nat", "-c", "vpn/tunnel.toml", "--remove"], b"");
    assert_eq!(removed.code, Some(0), "{}", removed.all());
    assert_ne!(at_server(&world, "nft", "list table inet sealane_tunnel").code, Some(0));
    for _ in 0..2 {
        let applied = world.sealane(End::Server, &["tunnel", "nat", "-c", "vpn/tunnel.toml", "--apply"], b"");
        assert_eq!(applied.code, Some(0), "{}", applied.all());
        let table = at_server(&world, "nft", "list table inet sealane_tunnel").text();
        assert_eq!(table.matches("masquerade").count(), 1, "{table}");
    }
}

/// Clients get routes, and the kernel does not forward: the log and the status say so.
#[test]
fn missing_forwarding_is_said_at_the_start() {
    let _ = need!("sysctl");
    let world = world!();
    world.init("routes = [\"203.0.113.0/24\"]");
    at_server(&world, "sysctl", "-qw net.ipv4.ip_forward=0");
    let server = world.serve();
    let text = "this system does not forward IPv4";
    assert!(said(&server, text), "{}", server.log());
    let shown =
        || world.sealane(End::Server, &["tunnel", "status", "-c", "vpn/tunnel.toml"], b"").text().contains(text);
    assert!(eventually(shown), "{}", server.log());
    drop(server);
    at_server(&world, "sysctl", "-qw net.ipv4.ip_forward=1");
    let server = world.serve();
    assert!(!server.log().contains(text), "{}", server.log());
}

/// `init` with everything: a stock client sends both families through the tunnel, and is told the DNS server.
#[test]
fn a_full_tunnel_takes_both_families() {
    let _ = need!("nft");
    let world = world!();
    let all = "tunnel init 10.99.0.1:1194 --folder vpn --network 10.88.0.0/24 --network6 fd00:88::/64 --dns 10.88.0.1 --dns \
               fd00:88::1 --full-tunnel --nat";
    let arguments: Vec<&str> = all.split_whitespace().collect();
    let said_to = world.sealane(End::Server, &arguments, b"");
    assert_eq!(said_to.code, Some(0), "{}", said_to.all());
    assert!(Path::new(&world.path("vpn/tunnel.toml")).exists());
    let profile = world.profile("alice");
    let server = world.serve_udp();
    let client = world.connected(&profile, &[]);
    let log = client.log();
    for option in ["redirect-gateway def1 ipv6", "dhcp-option DNS 10.88.0.1", "dhcp-option DNS6 fd00:88::1"] {
        assert!(log.contains(option), "{option}: {log}\n{}", server.log());
    }
    // Half of the Internet each, in both families.
    assert!(eventually(|| !world.client_route("128.0.0.0/1").is_empty()), "{}", client.log());
    let six = world.command(End::Client, &peers::find("ip").expect("there")).args(["-6", "route"]).output();
    let six = String::from_utf8_lossy(&six.expect("it runs").stdout).into_owned();
    assert!(six.contains("8000::/1 dev tun") || six.contains("3000::/4") && six.contains("2000::/4"), "{six}");
    let table = at_server(&world, "nft", "list table inet sealane_tunnel").text();
    assert_eq!(table.matches("masquerade").count(), 2, "{table}");
}
