//! The tests of stock clients that matter most, once more with OpenVPN 2.7 (`SEALANE_OPENVPN`, `cargo xtask openvpn`).

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
