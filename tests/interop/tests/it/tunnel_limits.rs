//! Addresses that outlive the gateway, and limits: of time without traffic, of new sessions, of connections with one name.

use crate::tunnel_world::{End, INSIDE, World, count, said};
use sealane_interop::{eventually, skip};

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Whoever comes first after a restart gets the address that it had, and not the next one.
#[test]
fn names_keep_their_addresses_over_a_restart() {
    let world = world!();
    world.init("addresses_file = \"addresses.txt\"");
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let mut server = world.serve();
    let first = world.connected(&alice, &[]);
    let second = world.connected(&bob, &["--dev", "tun7"]);
    assert!(second.log().contains("ifconfig 10.88.0.3 "), "{}", second.log());
    drop((first, second));
    server.terminate();
    server.wait();
    assert_eq!(world.read("vpn/addresses.txt"), "alice,10.88.0.2,\nbob,10.88.0.3,\n");
    let server = world.serve();
    let client = world.connected(&bob, &[]);
    assert!(client.log().contains("ifconfig 10.88.0.3 "), "{}\n{}", client.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}

/// Fixed addresses are beside the pool, as administrators of OpenVPN have them. A client too many is refused for now.
#[test]
fn clients_get_addresses_of_the_pool() {
    let world = world!();
    let fixed = "[[tunnel.client]]\nname = \"bob\"\naddress = \"10.88.0.9\"";
    world.init(&format!("pool = \"10.88.0.100-10.88.0.100\"\n{fixed}"));
    let (alice, bob, carol) = (world.profile("alice"), world.profile("bob"), world.profile("carol"));
    let server = world.serve();
    let client = world.connected(&alice, &[]);
    assert!(client.log().contains("ifconfig 10.88.0.100 "), "{}", client.log());
    let second = world.openvpn(End::Client, &carol, &["--dev", "tun7"]);
    assert!(said(&second, "AUTH_FAILED,TEMP:no address is left"), "{}\n{}", second.log(), server.log());
    drop(second);
    let other = world.connected(&bob, &["--dev", "tun7"]);
    assert!(other.log().contains("ifconfig 10.88.0.9 "), "{}", other.log());
    drop(other);
    // The pool grows with a reload, and the connected client keeps its address.
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &toml.replace("10.88.0.100-10.88.0.100", "10.88.0.100-10.88.0.101"));
    server.hang_up();
    assert!(said(&server, "sealane: reloaded"), "{}", server.log());
    let second = world.connected(&carol, &["--dev", "tun7"]);
    assert!(second.log().contains("ifconfig 10.88.0.101 "), "{}", second.log());
    drop(second);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", client.log());
    world.write("vpn/wrong.toml", &toml.replace("10.88.0.100-10.88.0.100", "10.89.0.100-10.89.0.200"));
    let checked = world.sealane(End::Server, &["check", "-c", "vpn/wrong.toml"], b"");
    assert_eq!(checked.code, Some(1), "{}", checked.all());
    assert!(checked.all().contains("cannot be the pool"), "{}", checked.all());
}

/// Pings of the tunnel keep nobody connected.
#[test]
fn an_inactive_client_is_told_to_stop() {
    let world = world!();
    world.init("inactive = \"2s\"\ninactive_bytes = \"100KiB\"\nping = \"1s\"");
    let alice = world.profile("alice");
    let server = world.serve();
    let mut client = world.connected(&alice, &[]);
    assert!(said(&client, "Halt command was pushed by server ('inactive for too long')"), "{}", client.log());
    client.wait();
    assert!(said(&server, "is disconnected: inactive for too long"), "{}", server.log());
    assert!(eventually(|| count(&world, "inactive") == 1), "{}", server.log());
}

/// Traffic does not help: the client must connect again, and does.
#[test]
fn a_session_ends_after_its_time() {
    let world = world!();
    world.init("session_timeout = \"3s\"");
    let alice = world.profile("alice");
    let server = world.serve();
    let client = world.connected(&alice, &["--connect-retry", "1"]);
    let told = "Connection reset command was pushed by server ('session timeout')";
    assert!(said(&client, told), "{}\n{}", client.log(), server.log());
    assert!(said(&server, "is disconnected: the session has lasted for session_timeout"), "{}", server.log());
    let again = || server.log().matches("alice is connected from").count() >= 2;
    assert!(eventually(again), "{}\n{}", client.log(), server.log());
    assert!(eventually(|| count(&world, "session_timeout") >= 1), "{}", server.log());
    // A reload without the limit leaves the session alone.
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &toml.replace("session_timeout = \"3s\"", ""));
    server.hang_up();
    assert!(said(&server, "sealane: reloaded"), "{}", server.log());
    assert!(eventually(|| world.pings(End::Client, INSIDE, 3, "0.05", 56) == 3), "{}", client.log());
    let connections = server.log().matches("alice is connected from").count();
    assert_eq!(world.pings(End::Client, INSIDE, 50, "0.1", 56), 50, "{}", client.log());
    assert_eq!(server.log().matches("alice is connected from").count(), connections, "{}", server.log());
}

/// The one connection too many is refused for now; a place that becomes free is given.
#[test]
fn a_name_has_a_number_of_connections() {
    let world = world!();
    world.init("duplicate_names = true\nmax_sessions = 1");
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    let client = world.connected(&alice, &[]);
    let second = world.openvpn(End::Client, &alice, &["--dev", "tun7"]);
    let refusal = "AUTH_FAILED,TEMP:too many connections with this name";
    assert!(said(&second, refusal), "{}\n{}", second.log(), server.log());
    drop(second);
    let other = world.connected(&bob, &["--dev", "tun7"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    drop(other);
    client.terminate();
    assert!(said(&server, "alice (10.99.0.2:"), "{}", server.log());
    assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
    let _again = world.connected(&alice, &[]);
}

/// A group's limit for each name counts instead of the tunnel's.
#[test]
fn a_name_of_a_group_has_a_number_of_connections() {
    let world = world!();
    let group = "[[tunnel.group]]\nname = \"staff\"\ncommon_names = [\"staff-*\"]\nmax_sessions = 1";
    world.init(&format!("duplicate_names = true\nmax_sessions = 2\n{group}"));
    let (staff, guest) = (world.profile("staff-alice"), world.profile("guest"));
    let server = world.serve();
    let _client = world.connected(&staff, &[]);
    let refusal = "AUTH_FAILED,TEMP:too many connections with this name";
    let second = world.openvpn(End::Client, &staff, &["--dev", "tun7"]);
    assert!(said(&second, refusal), "{}\n{}", second.log(), server.log());
    drop(second);
    let _first = world.connected(&guest, &["--dev", "tun7"]);
    let _second = world.connected(&guest, &["--dev", "tun8"]);
    let third = world.openvpn(End::Client, &guest, &["--dev", "tun9"]);
    assert!(said(&third, refusal), "{}\n{}", third.log(), server.log());
}

/// New sessions beyond the rate get no answer, and sessions that are there stay.
#[test]
fn new_sessions_have_a_rate() {
    let world = world!();
    world.init("connect_rate = \"1/h\"");
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    let _client = world.connected(&alice, &[]);
    let second = world.openvpn(End::Client, &bob, &["--dev", "tun7"]);
    assert!(eventually(|| count(&world, "rate_limited") >= 1), "{}\n{}", second.log(), server.log());
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert!(!server.log().contains("bob"), "{}", server.log());
}
