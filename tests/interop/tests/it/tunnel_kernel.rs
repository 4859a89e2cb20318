//! The whole gateway with the kernel's data plane, and Debian's OpenVPN at the other end, unchanged. `cargo xtask ovpn-vm`
//! runs these in a virtual machine where this machine's kernel has no `ovpn`; there everything is slow, and renewals are
//! spaced accordingly.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::peers::find;
use sealane_interop::process::{self, Server};
use sealane_interop::{binary, eventually, say, skip};

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) if world.has_kernel_plane() => world,
            Ok(_) => skip!("this kernel has no `ovpn` (Linux 6.16 has); `cargo xtask ovpn-vm` runs this"),
            Err(why) => skip!("{why}"),
        }
    };
}

const EXIT: [&str; 2] = ["--explicit-exit-notify", "1"];

/// A gateway that is told to use the kernel, or not to start.
fn serve(world: &World, more: &str) -> Server {
    world.init(&format!("data_plane = \"kernel\"\n{more}"));
    world.serve_in_kernel()
}

/// Packets of all sizes and both ways; the client renews its key under them and then leaves.
#[test]
fn a_stock_client_is_served_and_renews_its_key() {
    let world = world!();
    let server = serve(&world, "network6 = \"fd00:88::/64\"");
    let client = world.connected(&world.profile("alice"), &[&EXIT[..], &["--reneg-sec", "8"][..]].concat());
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.1", 56), 5);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.1", 5000), 3);
    assert_eq!(world.pings(End::Client, "fd00:88::1", 3, "0.1", 56), 3);
    assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.1", 1400), 3);
    let status = world.sealane(End::Server, &["tunnel", "status", "-c", "vpn/tunnel.toml"], b"").text();
    assert!(status.contains("data plane: kernel"), "{status}");
    assert_eq!(world.pings(End::Client, INSIDE, 400, "0.05", 200), 400, "{}\n{}", client.log(), server.log());
    let keys = client.log().matches("Control Channel: TLSv1").count();
    assert!(keys >= 3, "{}\n{}", client.log(), server.log());
    client.terminate();
    assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
}

/// Ours at both ends: the server's packets in the kernel, the client's in user space.
#[test]
fn our_client_is_served() {
    let world = world!();
    let server = serve(&world, "network6 = \"fd00:88::/64\"");
    let mut command = world.command(End::Client, binary::sealane());
    command.args(["tunnel", "connect", "--dns", "off"]).arg(world.profile("alice"));
    let client = Server::start(command, &world.path(""));
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.1", 56), 5);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.1", 5000), 3);
    assert_eq!(world.pings(End::Client, "fd00:88::1", 3, "0.1", 56), 3);
    assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.1", 1400), 3);
    client.terminate();
    assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
}

/// OpenVPN 2.7 with its own packets in the kernel: as the server of our client, and at our server with either plane.
#[test]
fn an_offloaded_peer_is_met() {
    let world = world!();
    world.init("data_plane = \"user\"");
    let profile = world.profile("alice");
    let config = "dev tun\ntopology subnet\nserver 10.88.0.0 255.255.255.0\nca vpn/ca.crt\ncert vpn/server.crt\nkey \
                  vpn/server.key\ndh none\ntls-crypt-v2 vpn/tls-crypt-v2.key\nkeepalive 10 60\n";
    let config = world.write("server.conf", config);
    let Some(mut server) = world.openvpn_offloaded(End::Server, &config, &[]) else {
        return say(&format!("{}: an offloaded peer was not met: there is none here", module_path!()));
    };
    assert!(said(&server, "Initialization Sequence Completed"), "{}", server.log());
    assert!(world.has_offloaded_link(End::Server), "{}", server.log());
    let mut command = world.command(End::Client, binary::sealane());
    command.args(["tunnel", "connect", "--dns", "off"]).arg(&profile);
    let mut client = Server::start(command, &world.path(""));
    assert!(said(&client, "connected to"), "{}\n{}", client.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.1", 56), 5, "{}", server.log());
    assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.1", 1400), 3, "{}", server.log());
    client.terminate();
    client.wait();
    server.terminate();
    server.wait();
    for plane in ["user", "kernel"] {
        let toml = world.read("vpn/tunnel.toml");
        world.write("vpn/tunnel.toml", &toml.replace("\"user\"", &format!("\"{plane}\"")));
        let server = world.serve_in_kernel();
        let client = world.openvpn_offloaded(End::Client, &profile, &EXIT);
        let mut client = client.expect("there was one a moment ago");
        assert!(said(&client, "Initialization Sequence Completed"), "{}\n{}", client.log(), server.log());
        assert!(world.has_offloaded_link(End::Client), "{}", client.log());
        assert_eq!(world.pings(End::Client, INSIDE, 5, "0.1", 56), 5, "{plane}: {}", server.log());
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.1", 5000), 3, "{plane}: {}", server.log());
        assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.1", 1400), 3, "{plane}: {}", server.log());
        let status = world.sealane(End::Server, &["tunnel", "status", "-c", "vpn/tunnel.toml"], b"").text();
        assert!(status.contains(&format!("data plane: {plane}")), "{status}");
        client.terminate();
        assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
        client.wait();
    }
}

/// Packets between clients pass the system, which must forward them: the gateway starts only where it does.
#[test]
fn clients_reach_each_other_through_the_system() {
    let world = world!();
    world.init("data_plane = \"kernel\"\nclient_to_client = true");
    let toml = world.read("vpn/tunnel.toml").replace(", \"tcp://:1194\"", "");
    world.write("vpn/tunnel.toml", &toml);
    let forward = |end: End, value: &str| {
        let written = world.within(end, || std::fs::write("/proc/sys/net/ipv4/ip_forward", value));
        written.expect("this is root");
    };
    forward(End::Server, "0");
    let refused = world.sealane(End::Server, &["serve", "-c", "vpn/tunnel.toml"], b"");
    assert_ne!(refused.code, Some(0), "{}", refused.all());
    assert!(refused.all().contains("sysctl -w net.ipv4.ip_forward=1"), "{}", refused.all());
    forward(End::Server, "1");
    // The second client's end has a cable to the first one's, and comes through it.
    world.add_second();
    forward(End::Client, "1");
    for (end, route) in
        [(End::Second, "route add 10.99.0.0/24 via 10.98.0.2"), (End::Server, "route add 10.98.0.0/24 via 10.99.0.2")]
    {
        let mut command = world.command(end, &find("ip").expect("the world has looked for it"));
        let done = process::run(command.args(route.split(' ')), b"");
        assert!(done.status.success(), "{route}: {}", String::from_utf8_lossy(&done.stderr));
    }
    let server = world.serve_udp();
    let first = world.connected(&world.profile("alice"), &EXIT);
    assert!(said(&server, "alice is connected from"), "{}", server.log());
    let second = world.openvpn(End::Second, &world.profile("bob"), &EXIT);
    assert!(said(&second, "Initialization Sequence Completed"), "{}\n{}", second.log(), server.log());
    assert!(second.log().contains("ifconfig 10.88.0.3 "), "{}", second.log());
    assert_eq!(world.pings(End::Client, "10.88.0.3", 5, "0.1", 56), 5, "{}\n{}", first.log(), server.log());
    assert_eq!(world.pings(End::Second, "10.88.0.2", 3, "0.1", 1400), 3, "{}\n{}", second.log(), server.log());
}

/// The link, the peers and their keys stay in the kernel while the program is replaced.
#[test]
fn a_client_does_not_notice_an_upgrade() {
    let world = world!();
    let server = serve(&world, "");
    let client = world.connected(&world.profile("alice"), &[&EXIT[..], &["--reneg-sec", "15"][..]].concat());
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| world.pings(End::Client, INSIDE, 300, "0.05", 56));
        world.upgrade();
        let done = eventually(|| server.log().contains("taken over") && world.serving().len() == 1);
        assert!(done, "{}", server.log());
        assert_eq!(pings.join().expect("ping ends"), 300, "{}", server.log());
    });
    // A key is renewed inside a TLS session that was made by another process.
    let renewed = || client.log().matches("Control Channel: TLSv1").count() >= 2;
    assert!(eventually(renewed), "{}\n{}", client.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 20, "0.05", 56), 20);
    let log = client.log();
    assert_eq!(log.matches("Initialization Sequence Completed").count(), 1, "{log}");
    client.terminate();
    assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
}

/// The interface of a process that died outlives it, and is not in the way of the next one.
#[test]
fn a_gateway_that_died_leaves_nothing_in_the_way() {
    let world = world!();
    let first = serve(&world, "");
    let profile = world.profile("alice");
    let client = world.connected(&profile, &[]);
    world.kill();
    assert!(eventually(|| world.serving().is_empty()), "{}", first.log());
    drop(client);
    let _second = world.serve_in_kernel();
    let _client = world.connected(&profile, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.1", 56), 5);
}
