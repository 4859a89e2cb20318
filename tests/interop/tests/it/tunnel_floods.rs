//! What strangers and clients can take from the tunnel: connections, passwords' checks, tokens; and that others are served.

use crate::tunnel_world::{End, INSIDE, World, count, said};
use sealane_interop::{WAIT_LIMIT, eventually, skip};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Whether the other side has closed a connection.
fn is_closed(mut connection: &TcpStream) -> bool {
    let mut byte = [0];
    match connection.read(&mut byte) {
        Ok(n) => n == 0,
        Err(e) => e.kind() != ErrorKind::WouldBlock,
    }
}

/// TCP connections that say nothing, that announce a long packet, and that begin one and stop: they are closed, and a
/// client over TCP connects meanwhile.
#[test]
fn connections_without_a_session_end_and_keep_nobody_out() {
    let world = world!();
    world.init("");
    let profile = world.profile("alice");
    let server = world.serve();
    let idle = world.within(End::Client, || {
        let connect = |n: usize| {
            let mut connection = TcpStream::connect("10.99.0.1:1194").expect("the tunnel listens");
            let begun: &[u8] = if n.is_multiple_of(2) { &[] } else { &[4, 0, 7 << 3] };
            connection.write_all(begun).expect("it has only just been accepted");
            connection.set_nonblocking(true).expect("a socket option");
            connection
        };
        (0..1280).map(connect).collect::<Vec<_>>()
    });
    // Each lane keeps at most 64 of an address: a tenth of these.
    assert!(eventually(|| idle.iter().filter(|c| !is_closed(c)).count() <= 2 * 64), "{}", server.log());
    let _client = world.connected(&profile, &["--proto", "tcp-client"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert!(eventually(|| idle.iter().all(is_closed)), "{}", server.log());
    // Longer than any control packet: nobody who has no session sends that.
    let mut long = world.within(End::Client, || TcpStream::connect("10.99.0.1:1194").expect("the tunnel listens"));
    long.write_all(&[0xff; 1000]).expect("it has only just been accepted");
    long.set_nonblocking(true).expect("a socket option");
    assert!(eventually(|| is_closed(&long)));
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "the client stays");
}

/// A token stands for the password for as long as its lifetime and no longer, however often it is used.
#[test]
fn a_token_does_not_renew_itself() {
    let world = world!();
    world.init("users = \"../users\"\ntoken_lifetime = \"8s\"");
    let hash = world.sealane(End::Server, &["tunnel", "passwd", "al"], b"right\n").text();
    world.write("users", &hash);
    world.write("good", "al\nright\n");
    let profile = world.profile("alice");
    let server = world.serve();
    let client = world.connected(&profile, &["--auth-user-pass", "good", "--reneg-sec", "3"]);
    assert!(said(&server, "is refused: SESSION: token expired"), "{}\n{}", client.log(), server.log());
}

/// A user who is taken out of the file is out, whatever tokens there are.
#[test]
fn a_removed_user_is_out() {
    let world = world!();
    world.init("users = \"../users\"\ntoken_lifetime = \"1h\"");
    let hash = |name| world.sealane(End::Server, &["tunnel", "passwd", name], b"right\n").text();
    let (al, bo) = (hash("al"), hash("bo"));
    world.write("users", &format!("{al}{bo}"));
    world.write("good", "al\nright\n");
    let profile = world.profile("alice");
    let server = world.serve();
    let client = world.connected(&profile, &["--auth-user-pass", "good"]);
    world.write("users", &bo);
    server.hang_up();
    assert!(said(&server, "is gone: the client is no longer allowed"), "{}\n{}", client.log(), server.log());
}

/// A full server says "not now", which a stock client takes for a reason to try again.
#[test]
fn a_full_server_refuses_for_now() {
    let world = world!();
    world.init("max_clients = 1");
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let _server = world.serve();
    let _first = world.connected(&alice, &[]);
    let second = world.openvpn(End::Client, &bob, &[]);
    assert!(said(&second, "AUTH_FAILED,TEMP:the server is full"), "{}", second.log());
}

/// A profile without the client's own key for control packets.
fn without_key(profile: &str) -> String {
    let (before, rest) = profile.split_once("<tls-crypt-v2>").expect("it has a key of its own");
    let (_, after) = rest.split_once("</tls-crypt-v2>").expect("the block ends");
    format!("{before}{after}")
}

/// Over UDP, with keys for control packets: the client hears of no packet that it has seen before.
#[test]
fn a_first_answer_acknowledges_and_no_packet_id_is_sent_twice() {
    let world = world!();
    for option in ["tls-auth", "tls-crypt"] {
        let folder = world.path("vpn");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).expect("a folder can be removed");
        }
        world.init("");
        let key = world.command(End::Server, &sealane_interop::peers::find("openvpn").expect("looked for before"));
        let said = sealane_interop::process::run({ key }.args(["--genkey", "secret", "static.key"]), b"");
        assert!(said.status.success());
        let toml = world.read("vpn/tunnel.toml");
        let toml: String = toml
            .lines()
            .map(|line| match line.starts_with("tls_crypt_v2") {
                true => format!("{} = \"../static.key\"\n", option.replace('-', "_")),
                false => format!("{line}\n"),
            })
            .collect();
        world.write("vpn/tunnel.toml", &toml);
        world.profile("alice");
        let profile = without_key(&world.read("alice.ovpn"));
        let profile = world.write("alice.ovpn", &format!("{profile}\n{option} static.key\n"));
        let _server = world.serve();
        for _ in 0..3 {
            let client = world.connected(&profile, &["--verb", "6"]);
            let log = client.log();
            for wrong in ["bad packet ID", "packet authentication failed"] {
                assert!(!log.contains(wrong), "{option}: {log}");
            }
            // The reset is not repeated once there is an answer: the answer acknowledges it.
            let (before, after) = log.split_once("P_CONTROL_HARD_RESET_SERVER_V2").expect("an answer");
            assert!(before.contains("P_CONTROL_HARD_RESET_CLIENT_V2"), "{option}: {log}");
            assert!(!after.contains("P_CONTROL_HARD_RESET_CLIENT_V2"), "{option}: {log}");
        }
    }
}

/// Ten times as many sessions as one network may begin are begun, by clients that prove their addresses and say nothing more. They cost
/// what 128 of them cost, are counted, and keep nobody out.
#[test]
fn handshakes_that_are_not_continued_keep_nobody_out() {
    const SHARE: u64 = 128;
    const FLOOD: u64 = 10 * SHARE;
    let world = world!();
    world.init("");
    // Without keys for control packets, which a stranger would not have.
    let toml = world.read("vpn/tunnel.toml");
    let toml: String =
        toml.lines().filter(|line| !line.starts_with("tls_crypt_v2")).map(|l| format!("{l}\n")).collect();
    world.write("vpn/tunnel.toml", &toml);
    let [alice, bob] = ["alice", "bob"].map(|name| {
        world.profile(name);
        let file = format!("{name}.ovpn");
        world.write(&file, &without_key(&world.read(&file)))
    });
    let server = world.serve();
    let client = world.connected(&alice, &[]);
    let before = server.resident();
    let counted = || count(&world, "evicted") + count(&world, "crowded");
    let sockets = world.within(End::Client, || {
        (0..FLOOD).map(|_| UdpSocket::bind("10.99.0.3:0").expect("a port is free")).collect::<Vec<_>>()
    });
    for (n, socket) in sockets.iter().enumerate() {
        socket.connect("10.99.0.1:1194").expect("a socket option");
        socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket option");
        let session = (n as u64 + 1).to_be_bytes();
        // P_CONTROL_HARD_RESET_CLIENT_V2: session id, no acknowledgement, message 0.
        let reset = [&[7 << 3][..], &session, &[0, 0, 0, 0, 0]].concat();
        socket.send(&reset).expect("the kernel takes it");
        let mut answer = [0; 100];
        let length = socket.recv(&mut answer).expect("the reset is answered");
        assert!(length >= 9 && answer[0] == 8 << 3, "{:?}", &answer[..length]);
        // P_ACK_V1 of message 0, with the server's session id: the cookie.
        let ack = [&[5 << 3][..], &session, &[1, 0, 0, 0, 0], &answer[1..9]].concat();
        socket.send(&ack).expect("the kernel takes it");
        if n % 100 == 99 {
            assert_eq!(world.pings(End::Client, INSIDE, 1, "0.05", 56), 1);
        }
    }
    assert!(eventually(|| counted() >= FLOOD - SHARE), "{} of {FLOOD}: {}", counted(), server.log());
    if let (Some(before), Some(after)) = (before, server.resident()) {
        assert!(after < before + (32 << 20), "{before} to {after} bytes");
    }
    // A client that goes on with its handshake is let in beside them.
    let _second = world.connected(&bob, &["--dev", "tun7"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", client.log());
}
