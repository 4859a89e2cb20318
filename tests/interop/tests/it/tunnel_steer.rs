//! An administrator and clients that are connected: who is disconnected, who is told something, and who else is told of it.

use crate::tunnel_world::{End, INSIDE, World, count, said};
use sealane_interop::process::Server;
use sealane_interop::{binary, eventually, skip};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

fn steer(world: &World, arguments: &[&str]) -> (Option<i32>, String) {
    let all: Vec<&str> = ["tunnel"].iter().chain(arguments).chain(&["-c", "vpn/tunnel.toml"]).copied().collect();
    let said = world.sealane(End::Server, &all, b"");
    (said.code, said.all())
}

/// A stock client is disconnected and connects again; told to stop, it stops.
#[test]
fn a_kicked_client_connects_again_unless_it_is_told_to_stop() {
    let world = world!();
    world.init("");
    let alice = world.profile("alice");
    let server = world.serve();
    let mut client = world.connected(&alice, &["--connect-retry", "1"]);
    let (code, text) = steer(&world, &["kick", "alice", "--reason", "maintenance"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("alice was disconnected (1 connection)"), "{text}");
    assert!(said(&client, "Connection reset command was pushed by server ('maintenance')"), "{}", client.log());
    let connected = || server.log().matches("alice is connected from").count() == 2;
    assert!(eventually(connected), "{}\n{}", server.log(), client.log());
    assert!(eventually(|| world.pings(End::Client, INSIDE, 3, "0.05", 56) == 3), "{}", server.log());
    let (code, text) = steer(&world, &["kick", "bob"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("bob is not connected"), "{text}");
    let (code, text) = steer(&world, &["kick", "alice", "--halt"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(said(&client, "Halt command was pushed by server"), "{}", client.log());
    client.wait();
    assert_eq!(
        server.log().matches("is disconnected: disconnected by an administrator").count(),
        2,
        "{}",
        server.log()
    );
}

/// A text reaches a stock client's log and ours; one that would be another command is refused.
#[test]
fn a_message_reaches_the_client() {
    let world = world!();
    world.init("");
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let _server = world.serve();
    let stock = world.connected(&alice, &["--verb", "4"]);
    let (code, text) = steer(&world, &["message", "alice", "back, at noon"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(said(&stock, "Info command was pushed by server ('back, at noon')"), "{}", stock.log());
    let (code, text) = steer(&world, &["message", "alice", "a\nPUSH_REPLY,route 0.0.0.0"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("control character"), "{text}");
    drop(stock);
    let mut command = world.command(End::Client, binary::sealane());
    command.args(["tunnel", "connect", "--dns", "off"]).arg(bob);
    let ours = Server::start(command, &world.path(""));
    assert!(said(&ours, "connected to"), "{}", ours.log());
    let (code, text) = steer(&world, &["message", "bob", "hello"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(said(&ours, "the server says: hello"), "{}", ours.log());
}

/// A program that hangs is killed after its time; the tunnel does not wait for it, and the next event follows.
#[test]
fn a_program_that_hangs_delays_only_events() {
    let world = world!();
    let (hung, commanded) = (world.path("hung"), world.path("commanded"));
    let script =
        format!("[ -e {0} ] || {{ touch {0}; exec sleep 600; }}; cat >> {1}", hung.display(), commanded.display());
    world.init(&format!("event_command = [\"sh\", \"-c\", \"{script}\"]"));
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    let _client = world.connected(&alice, &[]);
    assert!(eventually(|| hung.exists()), "{}", server.log());
    let second = world.connected(&bob, &["--dev", "tun7"]);
    drop(second);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert!(said(&server, "event_command failed: it took longer than 10 s"), "{}", server.log());
    let delivered = || std::fs::read_to_string(&commanded).unwrap_or_default();
    assert!(eventually(|| delivered().contains("\"bob\"")), "{}\n{}", delivered(), server.log());
    assert!(!delivered().contains("\"alice\""), "a failed event is not repeated: {}", delivered());
    assert!(eventually(|| count(&world, "events_lost") == 1), "{}", server.log());
    assert!(eventually(|| world.serving().len() == 1), "the program that hung is gone");
}

/// Every event reaches a command and a URL, in order, as the log has it.
#[test]
fn events_reach_a_command_and_a_url() {
    let world = world!();
    let listener =
        world.within(End::Server, || TcpListener::bind("127.0.0.1:9000").expect("a port of its own namespace"));
    let posted = world.path("posted");
    let thread = std::thread::spawn({
        let posted = posted.clone();
        move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let (mut got, mut piece) = (Vec::new(), [0; 4096]);
                while !got.ends_with(b"}\n") {
                    match stream.read(&mut piece) {
                        Ok(0) | Err(_) => break,
                        Ok(read) => got.extend_from_slice(&piece[..read]),
                    }
                }
                let text = String::from_utf8_lossy(&got).into_owned();
                let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
                if body == "end" {
                    return;
                }
                let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&posted).expect("a file");
                file.write_all(body.as_bytes()).expect("written");
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
            }
        }
    });
    world.init(&format!(
        "event_command = [\"sh\", \"-c\", \"cat >> {}\"]\nevent_webhook = \"http://127.0.0.1:9000/vpn\"\nrenegotiate = \
         \"2s\"\nknown_clients_only = true\n[[tunnel.client]]\nname = \"alice\"",
        world.path("commanded").display()
    ));
    let (alice, bob) = (world.profile("alice"), world.profile("bob"));
    let server = world.serve();
    let client = world.connected(&alice, &["--reneg-sec", "0"]);
    assert!(said(&server, "is connected from"), "{}", server.log());
    let events = |file: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(world.path(file)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let has = |event: &str| ["commanded", "posted"].iter().all(|file| events(file).iter().any(|e| e["event"] == event));
    assert!(eventually(|| has("connect") && has("renew")), "{:?}\n{}", events("commanded"), server.log());
    let refused = world.openvpn(End::Client, &bob, &["--dev", "tun7"]);
    assert!(eventually(|| has("refused")), "{}\n{}", refused.log(), server.log());
    drop(refused);
    let (code, text) = steer(&world, &["kick", "alice", "--halt"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(eventually(|| has("disconnect")), "{}\n{}", client.log(), server.log());
    // In the order of the log, and nothing else.
    let log: Vec<Value> = events("vpn/tunnel.log");
    let kinds = ["connect", "disconnect", "renew", "refused"];
    let log: Vec<&Value> = log.iter().filter(|e| kinds.iter().any(|kind| e["event"] == *kind)).collect();
    for file in ["commanded", "posted"] {
        let got = events(file);
        assert!(
            got.len() <= log.len() && got.iter().zip(&log).all(|(got, logged)| got == *logged),
            "{file}: {got:?}\n{log:?}"
        );
    }
    world.within(End::Server, || {
        let mut last = std::net::TcpStream::connect("127.0.0.1:9000").expect("it listens");
        let _ = last.write_all(b"POST / HTTP/1.1\r\n\r\nend");
    });
    thread.join().expect("the receiver has not panicked");
}
