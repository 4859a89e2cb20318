//! What one client is given and another is not, as Debian's OpenVPN sees it.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::{eventually, skip};
use std::os::unix::fs::PermissionsExt;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// A certificate and a password, which a program looks at: it says yes, no, or not now.
#[test]
fn a_program_decides_who_may_come_in() {
    let world = world!();
    let program = world.write(
        "decide",
        "#!/bin/sh\nread -r name; read -r password\ncase \"$common_name:$name:$password\" in\nalice:al:right) exit 0;;\n\
         alice:al:early) exit 75;;\nesac\nexit 1\n",
    );
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).expect("a file can be made a program");
    world.init(&format!("auth_command = [\"{}\"]", program.display()));
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    for word in ["right", "early", "wrong"] {
        world.write(word, &format!("al\n{word}\n"));
    }
    for (profile, password, answer) in [
        (&alice, "wrong", "AUTH_FAILED,wrong user name or password"),
        (&alice, "early", "AUTH_FAILED,TEMP:authentication is not possible at the moment"),
        (&bob, "right", "AUTH_FAILED,wrong user name or password"),
    ] {
        let client = world.openvpn(End::Client, profile, &["--auth-user-pass", password]);
        assert!(said(&client, answer), "{password}: {}\n{}", client.log(), server.log());
    }
    let _client = world.connected(&alice, &["--auth-user-pass", "right"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
}

/// A network behind a client is reached through it and may speak; one that is nobody's is not, and may not.
#[test]
fn a_network_behind_a_client_is_reached() {
    let world = world!();
    world.init("[[tunnel.client]]\nname = \"alice\"\nroutes = [\"10.123.0.0/24\"]");
    world.has_behind_client("10.123.0.5");
    world.has_behind_client("10.124.0.5");
    let profile = world.profile("alice");
    let _server = world.serve();
    let _client = world.connected(&profile, &[]);
    assert_eq!(world.pings(End::Server, "10.123.0.5", 3, "0.05", 1400), 3);
    assert_eq!(world.pings_as(End::Client, "10.123.0.5", INSIDE, 3), 3);
    // Whatever else the client's system says meanwhile under an address that is nobody's.
    let before = dropped(&world);
    assert_eq!(world.pings_as(End::Client, "10.124.0.5", INSIDE, 20), 0);
    assert!(eventually(|| dropped(&world) >= before + 20), "{before} and then {}", dropped(&world));
}

/// The same with a network that a reload adds, and then takes away: the system's route is there, and gone.
#[test]
fn a_reload_routes_a_network_behind_a_client() {
    let world = world!();
    world.init("");
    world.has_behind_client("10.125.0.5");
    let profile = world.profile("alice");
    let server = world.serve();
    let _client = world.connected(&profile, &[]);
    let toml = world.read("vpn/tunnel.toml");
    let behind = "[[tunnel.client]]\nname = \"alice\"\nroutes = [\"10.125.0.0/24\"]\n";
    world.write("vpn/tunnel.toml", &format!("{toml}{behind}"));
    server.hang_up();
    let routed = || world.has_route("10.125.0.0/24");
    assert!(eventually(routed), "{}", server.log());
    assert!(eventually(|| world.pings(End::Server, "10.125.0.5", 1, "0.05", 56) == 1), "{}", server.log());
    world.write("vpn/tunnel.toml", &toml);
    server.hang_up();
    assert!(eventually(|| !routed()), "{}", server.log());
}

/// The same where the gateway has given root up: it keeps the right to set routes, and no other but that to bind low ports.
#[test]
fn a_reload_routes_a_network_without_root() {
    let world = world!();
    world.init("");
    world.has_behind_client("10.126.0.5");
    let profile = world.profile("alice");
    let toml = format!("user = \"nobody\"\n{}", world.read("vpn/tunnel.toml"));
    let write = |text: &str| {
        let path = world.write("vpn/tunnel.toml", text);
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).expect("this is root");
    };
    write(&toml);
    for path in ["", "vpn", "vpn/ca.crt", "vpn/server.crt", "vpn/server.key", "vpn/tls-crypt-v2.key"] {
        std::os::unix::fs::chown(world.path(path), Some(65_534), Some(65_534)).expect("this is root");
    }
    let server = world.serve();
    let _client = world.connected(&profile, &[]);
    let pid = *world.serving().first().expect("it serves");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    };
    // CAP_NET_BIND_SERVICE and CAP_NET_ADMIN (capabilities(7)).
    assert_eq!((line("Uid").as_str(), line("CapEff").as_str()), ("65534", "0000000000001400"), "{status}");
    assert_eq!((line("CapBnd").as_str(), line("NoNewPrivs").as_str()), ("0000000000000000", "1"), "{status}");
    write(&format!("{toml}[[tunnel.client]]\nname = \"alice\"\nroutes = [\"10.126.0.0/24\"]\n"));
    server.hang_up();
    assert!(eventually(|| world.has_route("10.126.0.0/24")), "{}", server.log());
    assert!(eventually(|| world.pings(End::Server, "10.126.0.5", 1, "0.05", 56) == 1), "{}", server.log());
    write(&toml);
    server.hang_up();
    assert!(eventually(|| !world.has_route("10.126.0.0/24")), "{}", server.log());
}

/// Packets dropped for their source, as the status says.
fn dropped(world: &World) -> u64 {
    let status: String = world.read("vpn/status.json").split_whitespace().collect();
    let count = status.split("\"drop_source\",").nth(1).and_then(|rest| rest.split(']').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("no such count: {status}"))
}
