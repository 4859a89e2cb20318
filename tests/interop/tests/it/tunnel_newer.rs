//! The tests of stock clients and servers that matter most, once more with OpenVPN 2.7 (`SEALANE_OPENVPN`, `cargo xtask openvpn`).

use crate::tunnel_management::Tool;
use crate::tunnel_profiles::{alice, connected, stock_server};
use crate::tunnel_world::{End, INSIDE, Stock, World, said};
use crate::{tunnel, tunnel_profiles, tunnel_upgrade};
use sealane_interop::{eventually, skip};

macro_rules! world {
    () => {
        match World::with(Stock::Newer) {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Both transports, both versions of TLS, every cipher.
#[test]
fn it_connects_in_every_way_that_it_knows() {
    tunnel::connects_in_every_way(&world!());
}

/// tls-crypt-v2, tls-crypt, tls-auth, and none of them.
#[test]
fn it_connects_with_wraps_of_every_kind() {
    tunnel::connects_with_every_wrap(&world!());
}

#[test]
fn renewing_its_keys_loses_nothing() {
    tunnel::renews_without_a_loss(&world!());
}

/// PUSH_UPDATE: it stays connected.
#[test]
fn a_reload_changes_its_routes() {
    tunnel_profiles::has_changed_routes_after_a_reload(&world!());
}

#[test]
fn it_does_not_notice_an_upgrade() {
    tunnel_upgrade::notices_no_upgrade(&world!());
}

/// The epoch format in both directions, with keys that are renewed, over both transports; and the older format where the server
/// does not offer it.
#[test]
fn it_uses_the_epoch_format() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let server = world.serve();
    for (number, arguments) in [&["--reneg-sec", "2"][..], &["--proto", "tcp-client"]].into_iter().enumerate() {
        let client = world.connected(&profile, arguments);
        assert!(client.log().contains("aead-epoch"), "{}", client.log());
        let told = || server.log().matches(", epoch format").count() == number + 1;
        assert!(eventually(told), "{}", server.log());
        assert_eq!(world.pings(End::Client, INSIDE, 400, "0.01", 1300), 400, "{}\n{}", client.log(), server.log());
        assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.05", 5000), 3, "{}", server.log());
        client.terminate();
        let left = || server.log().matches(" is disconnected: ").count() == number + 1;
        assert!(eventually(left), "{}", server.log());
    }
    drop(server);
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &format!("{toml}epoch = false\n"));
    let server = world.serve();
    let client = world.connected(&profile, &[]);
    assert!(!client.log().contains("aead-epoch"), "{}", client.log());
    assert_eq!(world.pings(End::Client, INSIDE, 5, "0.05", 1300), 5, "{}", server.log());
    assert!(said(&server, "is connected from") && !server.log().contains("epoch format"), "{}", server.log());
}

/// Our client at its server: both transports, keys that are renewed, and data keys as before 2.6.
#[test]
fn our_client_connects_to_its_server() {
    tunnel::ours_connects_to_a_stock_server(&world!());
}

#[test]
fn our_client_understands_every_topology_of_its_server() {
    tunnel_profiles::understands_every_topology(&world!());
}

/// The epoch format with its server, in both directions, while keys are renewed.
#[test]
fn our_client_uses_the_epoch_format_with_its_server() {
    let world = world!();
    let profile = alice(&world);
    let server = stock_server(&world, "server-ipv6 fd00:88::/64\n");
    let client = connected(&world, &format!("{profile}reneg-sec 2\n"), &server);
    // The server names it only to clients that know it, and then uses no other.
    let log = server.log();
    assert!(log.lines().any(|line| line.contains("PUSH_REPLY") && line.contains("aead-epoch")), "{log}");
    assert_eq!(world.pings(End::Client, INSIDE, 500, "0.01", 1300), 500, "{}\n{}", client.log(), server.log());
    assert!(server.log().matches("Control Channel: TLSv1").count() >= 3, "{}", server.log());
    assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.05", 5000), 3, "{}", server.log());
    assert_eq!(world.pings(End::Client, "fd00:88::1", 3, "0.05", 56), 3, "{}", server.log());
}

/// PUSH_UPDATE of its server: a command on its management socket changes the routes of our client, which stays connected.
#[test]
fn its_server_changes_the_routes_of_our_client() {
    let world = world!();
    let profile = alice(&world);
    let more =
        "management manage.sock unix\npush \"route 10.66.0.0 255.255.0.0\"\npush \"dhcp-option DNS 10.88.0.53\"\n";
    let server = stock_server(&world, more);
    let client = connected(&world, &profile, &server);
    let has = |network: &str| world.client_route(network).contains("dev");
    assert!(has("10.66.0.0/16"), "{}", client.log());
    let mut tool = Tool::connect_to(&world.path("manage.sock"), 6);
    // As its help writes it, with a blank behind the comma. The first option of a kind replaces those of before. The server sends it when it
    // next looks after the client's control channel, which may take it a quarter of a minute.
    for (options, there, gone) in [
        (
            "route 10.67.0.0 255.255.0.0, route 10.68.0.0 255.255.0.0",
            &["10.67.0.0/16", "10.68.0.0/16"][..],
            &["10.66.0.0/16"][..],
        ),
        ("-route, -dhcp-option", &[], &["10.66.0.0/16", "10.67.0.0/16", "10.68.0.0/16"]),
    ] {
        let answer = tool.ask(&format!("push-update-broad \"{options}\""));
        assert!(answer.iter().all(|line| line.starts_with("SUCCESS:")), "{answer:?}");
        let changed = || there.iter().copied().all(&has) && !gone.iter().copied().any(&has);
        assert!(eventually(changed), "{options}: {}\n{}", client.log(), server.log());
    }
    assert!(said(&client, "the server has changed routes or DNS servers"), "{}", client.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", client.log());
    assert_eq!(client.log().matches("connected to").count(), 1, "it connects anew: {}", client.log());
}
