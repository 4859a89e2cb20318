//! The gateway's program is replaced under connected clients, and none of them notices.

use crate::tunnel_world::{End, INSIDE, World, said};
use sealane_interop::process::Server;
use sealane_interop::{binary, eventually, skip};
use std::os::unix::fs::PermissionsExt;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Several upgrades one after the other.
fn upgrades(world: &World, server: &Server, times: usize) {
    for _ in 0..times {
        let before = server.log().matches("taken over").count();
        world.upgrade();
        let done = eventually(|| server.log().matches("taken over").count() > before && world.serving().len() == 1);
        assert!(done, "{}", server.log());
    }
}

/// Stock clients, over both transports and with both versions of TLS: pings while it happens, and then the client
/// leaves, which it says inside a TLS session that was made two processes ago.
#[test]
fn clients_do_not_notice_an_upgrade() {
    notices_no_upgrade(&world!());
}

pub fn notices_no_upgrade(world: &World) {
    world.init("");
    let profile = world.profile("alice");
    let server = world.serve();
    let exit = "--explicit-exit-notify";
    for (arguments, gone) in [
        (&[exit, "1"][..], "is disconnected: the client has disconnected"),
        (&[exit, "1", "--tls-version-max", "1.2"], "is disconnected: the client has disconnected"),
        (&["--proto", "tcp-client"], "is disconnected: the client's connection has ended"),
    ] {
        let before = server.log().matches(gone).count();
        let client = world.connected(&profile, arguments);
        std::thread::scope(|scope| {
            let pings = scope.spawn(|| world.pings(End::Client, INSIDE, 200, "0.01", 56));
            upgrades(world, &server, 2);
            assert_eq!(pings.join().expect("ping ends"), 200, "{}", server.log());
        });
        assert_eq!(world.pings(End::Server, "10.88.0.2", 3, "0.05", 1400), 3);
        let log = client.log();
        assert_eq!(log.matches("Initialization Sequence Completed").count(), 1, "{log}");
        assert!(!log.contains("bad packet ID"), "{log}");
        client.terminate();
        assert!(eventually(|| server.log().matches(gone).count() == before + 1), "{}", server.log());
    }
    assert_eq!(server.log().matches("is connected from").count(), 3, "{}", server.log());
}

/// Keys are renewed after it, with a token from before it in place of the password.
#[test]
fn keys_are_renewed_after_an_upgrade() {
    let world = world!();
    world.init("users = \"../users\"\ntoken_lifetime = \"1h\"");
    let hash = world.sealane(End::Server, &["tunnel", "passwd", "al"], b"right\n").text();
    world.write("users", &hash);
    world.write("good", "al\nright\n");
    let profile = world.profile("alice");
    let server = world.serve();
    let arguments = ["--auth-user-pass", "good", "--auth-nocache", "--reneg-sec", "4"];
    let client = world.connected(&profile, &arguments);
    let renewed = |client: &Server| client.log().matches("Control Channel: TLSv1").count();
    upgrades(&world, &server, 1);
    let before = renewed(&client);
    assert!(eventually(|| renewed(&client) > before), "{}\n{}", client.log(), server.log());
    upgrades(&world, &server, 1);
    assert_eq!(world.pings(End::Client, INSIDE, 450, "0.01", 56), 450, "{}\n{}", client.log(), server.log());
    assert!(renewed(&client) > before + 1, "{}\n{}", client.log(), server.log());
    let log = client.log();
    assert_eq!(log.matches("Initialization Sequence Completed").count(), 1, "{log}");
    assert!(!server.log().contains("is disconnected"), "{}", server.log());
}

/// A successor that has been given everything and dies: the process that gave it goes on.
#[test]
fn a_successor_that_dies_leaves_the_tunnel_where_it_was() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let program = world.path("sealane");
    std::fs::copy(binary::sealane(), &program).expect("the program can be copied");
    let server = world.serve_with(&program);
    let client = world.connected(&profile, &["--explicit-exit-notify", "1"]);
    // What the next start finds asks for the tunnel, and ends.
    let other = world.write("other", "#!/bin/sh\nprintf 'tunnel\\n' >&0\nsleep 0.3\n");
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o755)).expect("a file can be made a program");
    std::fs::rename(&other, &program).expect("a file can take another's place");
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| world.pings(End::Client, INSIDE, 250, "0.01", 56));
        world.upgrade();
        assert!(said(&server, "this process continues"), "{}", server.log());
        assert_eq!(pings.join().expect("ping ends"), 250, "{}", server.log());
    });
    assert!(said(&server, "not upgraded"), "{}", server.log());
    assert_eq!(client.log().matches("Initialization Sequence Completed").count(), 1, "{}", client.log());
    client.terminate();
    assert!(said(&server, "is disconnected: the client has disconnected"), "{}", server.log());
}

/// What a running tunnel keeps cannot be changed by an upgrade: it is refused, and nothing happens.
#[test]
fn another_network_takes_a_restart() {
    let world = world!();
    world.init("");
    let server = world.serve();
    let toml = world.read("vpn/tunnel.toml");
    world.write("vpn/tunnel.toml", &toml.replace("10.88.0.0/24", "10.89.0.0/24"));
    world.upgrade();
    assert!(said(&server, "\"network\" in [tunnel] differs"), "{}", server.log());
    assert_eq!(world.serving(), [server.id()]);
}
