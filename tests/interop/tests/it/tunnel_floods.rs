//! What strangers and clients can take from the tunnel: connections, passwords' checks, tokens; and that others are served.

use crate::tunnel_world::{End, INSIDE, World, count, said};
use rustix::process::{Pid, Signal, kill_process};
use sealane_interop::process::{self, Server};
use sealane_interop::{WAIT_LIMIT, eventually, need, skip};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    // The client does not hear of its end: it has its token still.
    let process = i32::try_from(client.id()).ok().and_then(Pid::from_raw).expect("a pid");
    let signal = |signal| kill_process(process, signal).expect("our own child can be signalled");
    signal(Signal::STOP);
    world.write("users", &bo);
    server.hang_up();
    assert!(said(&server, "is disconnected: the client is no longer allowed"), "{}\n{}", client.log(), server.log());
    // It begins anew, with the token, and then with the password.
    signal(Signal::USR1);
    signal(Signal::CONT);
    for why in ["is refused: SESSION: token expired", "is refused: wrong user name or password"] {
        assert!(said(&server, why), "{why}: {}\n{}", client.log(), server.log());
    }
    assert_eq!(client.log().matches("Initialization Sequence Completed").count(), 1, "{}", client.log());
}

/// A profile that connects from an address of the test's own.
fn from(profile: &str, address: &str) -> String {
    let lines: String = profile.lines().filter(|line| *line != "nobind").map(|line| format!("{line}\n")).collect();
    format!("{lines}local {address}\nlport 0\n")
}

/// How often clients were told something.
fn told(clients: &[Server], text: &str) -> usize {
    clients.iter().map(|client| client.log().matches(text).count()).sum()
}

const WRONG: &str = "AUTH_FAILED,wrong user name or password";

/// Wrong passwords count for the address that they come from and for the user that they are for: neither other users nor other
/// addresses give a guesser more of them. Others come in meanwhile.
#[test]
fn guesses_count_by_address_and_by_user() {
    /// Guesses of an address or of a user that are looked at at once, and how many seconds it takes until there is one more.
    const AT_ONCE: usize = 20;
    const REGAIN: usize = 6;
    /// Clients that guess at a time in each of the three ways: so many checks may be under way when a guess is counted.
    const EACH: usize = 3;
    let world = world!();
    world.init("users = \"../users\"");
    let hash = |name| world.sealane(End::Server, &["tunnel", "passwd", name], b"right\n").text();
    world.write("users", &["al", "bo", "cy"].map(hash).concat());
    world.write("al", "al\nwrong\n");
    // Without tokens, a password that begins like one is a guess as any other.
    world.write("bo", "bo\nSESS_ID_AT_wrong\n");
    world.write("cy", "cy\nright\n");
    world.profile("alice");
    let profile = world.read("alice.ovpn");
    let [two, three] =
        ["10.99.0.2", "10.99.0.3"].map(|address| world.write(&format!("{address}.ovpn"), &from(&profile, address)));
    let server = world.serve();
    let begun = Instant::now();
    let guess = |profile: &Path, user: &str| -> Vec<Server> {
        let more = ["--auth-user-pass", user, "--auth-retry", "nointeract", "--connect-retry", "1", "1"];
        let more = [&more[..], &["--dev", "null"]].concat();
        (0..EACH).map(|_| world.openvpn(End::Client, profile, &more)).collect()
    };
    let all = [guess(&two, "al"), guess(&two, "bo"), guess(&three, "al")];
    let throttled = || all.iter().all(|clients| told(clients, "too many wrong passwords") >= 10);
    assert!(eventually(throttled), "{}\n{}", all[0][0].log(), server.log());
    // Somebody from the second address, who knows the password: its guesses were fewer than an address may make.
    let _client = world.connected(&three, &["--auth-user-pass", "cy"]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    let [al_two, bo_two, al_three] = all.each_ref().map(|clients| told(clients, WRONG));
    let most = AT_ONCE + 2 * EACH + begun.elapsed().as_secs() as usize / REGAIN;
    assert!(al_two + bo_two <= most, "one address: {al_two} and {bo_two} guesses, more than {most}");
    assert!(al_two + al_three <= most, "one user: {al_two} and {al_three} guesses, more than {most}");
    assert!(eventually(|| count(&world, "throttled") >= 30), "{}", count(&world, "throttled"));
}

/// Many clients with wrong passwords, each of which takes seconds to check: few threads work on them, and the others wait or are told to
/// come back.
#[test]
fn checks_of_passwords_take_few_threads() {
    /// More than half of the cores may be, at most 8, and what else a busy gateway starts.
    const THREADS: usize = 16;
    const CLIENTS: usize = 60;
    let world = world!();
    world.init("users = \"../users\"");
    // Ten times as costly as the command makes them. None of these passwords is right.
    let hash = world.sealane(End::Server, &["tunnel", "passwd", "al"], b"right\n").text();
    let costly = hash.replace(",t=2,", ",t=20,");
    assert_ne!(costly, hash);
    world.write("users", &costly);
    world.write("al", "al\nwrong\n");
    let profile = world.profile("alice");
    let server = world.serve();
    assert!(eventually(|| server.rests()), "{}", server.log());
    let (before, mut most) = (server.threads(), 0);
    let more = ["--auth-user-pass", "al", "--dev", "null", "--connect-retry", "30"];
    let clients: Vec<Server> = (0..CLIENTS).map(|_| world.openvpn(End::Client, &profile, &more)).collect();
    let answered = eventually(|| {
        most = most.max(server.threads());
        clients.iter().all(|client| client.log().contains("AUTH_FAILED"))
    });
    assert!(answered, "{} were told something: {}", told(&clients, "AUTH_FAILED"), server.log());
    assert!(told(&clients, WRONG) > 0, "{}", server.log());
    assert!(most <= before + THREADS, "{before} threads and then {most}");
}

/// A client whose packets come from another port each, as through a NAT that forgets at once, and that sends messages which are no
/// packets without end: the server keeps the newest of each, and neither its memory nor its log grows with them.
#[test]
fn a_client_that_moves_and_talks_without_end_fills_neither_memory_nor_the_log() {
    let python = need!("python3");
    let world = world!();
    world.init("log = \"events.json\"");
    world.profile("alice");
    let profile = world.read("alice.ovpn").replace("remote 10.99.0.1 1194", "remote 10.99.0.3 1195");
    let profile = world.write("alice.ovpn", &profile);
    let server = world.serve();
    // Between the two ends: from one port, until it is to move with each packet.
    let (front, behind) = world.within(End::Client, || {
        let bound = |port| UdpSocket::bind(("10.99.0.3", port)).expect("the port is free");
        let behind: Vec<UdpSocket> = (0..32).map(|_| bound(0)).collect();
        behind.iter().for_each(|socket| socket.connect("10.99.0.1:1194").expect("a socket option"));
        (bound(1195), behind)
    });
    let (peer, moves, ends) = (Mutex::new(None), AtomicBool::new(false), AtomicBool::new(false));
    let limit = Some(Duration::from_millis(100));
    behind.iter().chain([&front]).for_each(|socket| socket.set_read_timeout(limit).expect("a socket option"));
    std::thread::scope(|scope| {
        let _end = AtEnd(&ends);
        for socket in &behind {
            scope.spawn(|| {
                let mut packet = [0; 4096];
                while !ends.load(Ordering::Relaxed) {
                    let Ok(length) = socket.recv(&mut packet) else { continue };
                    if let Some(peer) = *peer.lock().expect("nobody panics with it") {
                        let _ = front.send_to(&packet[..length], peer);
                    }
                }
            });
        }
        scope.spawn(|| {
            let (mut packet, mut next) = ([0; 4096], 0);
            while !ends.load(Ordering::Relaxed) {
                let Ok((length, from)) = front.recv_from(&mut packet) else { continue };
                *peer.lock().expect("nobody panics with it") = Some(from);
                next += usize::from(moves.load(Ordering::Relaxed));
                let _ = behind[next % behind.len()].send(&packet[..length]);
            }
        });
        let client = world.connected(&profile, &["--dev", "tun0"]);
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
        let (memory, begun) = (server.resident(), Instant::now());
        moves.store(true, Ordering::Relaxed);
        // A second packet may overtake the first: only the latest one moves the client.
        assert!(eventually(|| {
            world.pings(End::Client, INSIDE, 1000, "0.002", 56);
            count(&world, "floated") >= 2000
        }));
        moves.store(false, Ordering::Relaxed);
        // OpenVPN's own messages, which it takes for the server's from its device: occ.c's magic, and OCC_REQUEST.
        let talk = [
            "import socket",
            "s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x88b5))",
            "s.bind(('tun0', 0x88b5))",
            "for _ in range(5000):",
            // The device's queue may be full.
            " try: s.send(bytes.fromhex('287f346bd4ef7a812d56b8d3afc5459c00'))",
            " except OSError: pass",
        ]
        .join("\n");
        let replaced = count(&world, "replaced");
        assert!(eventually(|| {
            let mut command = world.command(End::Client, &python);
            assert!(process::run(command.args(["-c", &talk]), b"").status.success());
            count(&world, "replaced") > replaced + 1000
        }));
        assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3, "{}", client.log());
        if let (Some(before), Some(after)) = (memory, server.resident()) {
            assert!(after < before + (8 << 20), "{before} to {after} bytes");
        }
        // A hundred at once, and ten each second.
        let most = 100 + 10 * (1 + begun.elapsed().as_secs() as usize);
        let moved = world.read("vpn/events.json").matches("\"event\":\"move\"").count();
        assert!(moved <= most, "{moved} lines, more than {most}");
        let lines = server.log().lines().count();
        assert!(lines <= 2 * most, "{lines} lines, more than {}", 2 * most);
    });
}

/// Ends what goes on beside a test, also when it fails.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
