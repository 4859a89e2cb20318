//! OpenVPN over TCP and HTTPS on one port, with stock clients of both.

use crate::tunnel_world::{End, INSIDE, World, count, said};
use sealane_interop::process::Server;
use sealane_interop::{eventually, need, peers, process, skip};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Where both are served.
const SHARED: &str = "10.99.0.1:443";
/// A load balancer at the client's end.
const BALANCER: &str = "127.0.0.1:1443";
/// A packet that begins a session, as far as its first bytes go; with its length before it.
const RESET: [u8; 16] = [0, 14, 0x38, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0];

/// A tunnel and an HTTPS listener with these lines, and these limits.
fn init(world: &World, listener: &str, limits: &str) {
    world.init(&format!(
        "[admin]\nlisten = \"127.0.0.1:9101\"\nsocket = \"admin.sock\"\n[limits]\n{limits}\n[[listener]]\naddress = \"{SHARED}\"\n\
         tunnel = true\n{listener}\n[listener.tls]\ncertificates = [{{ cert = \"server.crt\", key = \"server.key\" }}]\n\
         [[host]]\nnames = [\"*\"]\nrespond = {{ status = 200, body = \"over TLS\" }}\n"
    ));
}

/// The gateway, once it serves both.
fn serve(world: &World) -> Server {
    let server = world.serve();
    assert!(said(&server, &format!("OpenVPN clients at tcp://{SHARED}, too")), "{}", server.log());
    server
}

/// A profile of a client that connects over TCP to this address.
fn profile(world: &World, name: &str, address: &str) -> PathBuf {
    let (host, port) = address.split_once(':').expect("an address");
    let text = std::fs::read_to_string(world.profile(name)).expect("it was written");
    let there = "proto udp\nremote 10.99.0.1 1194\n";
    assert!(text.contains(there), "{text}");
    let text = text.replace("explicit-exit-notify 1\n", "");
    let text = text.replace(there, &format!("remote {host} {port} tcp-client\n"));
    world.write(&format!("{name}.ovpn"), &text)
}

/// What curl gets at the client's end.
fn fetched(world: &World, curl: &Path, address: &str, more: &[&str]) -> String {
    let mut command = world.command(End::Client, curl);
    command.args(["-sk", "--max-time", "20"]).args(more).arg(format!("https://{address}/"));
    let said: peers::Said = process::run(&mut command, b"").into();
    said.text()
}

/// The sum of a metric's samples that have this label.
fn metric(world: &World, curl: &Path, name: &str, label: &str) -> f64 {
    let mut command = world.command(End::Server, curl);
    let said: peers::Said = process::run(command.args(["-s", "http://127.0.0.1:9101/metrics"]), b"").into();
    let text = said.text();
    let samples = text.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])) && line.contains(label)
    });
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// What the gateway sends to a client that sends these bytes, and then waits for the end.
fn answer(world: &World, bytes: &[u8]) -> Vec<u8> {
    world.within(End::Client, || {
        let mut socket = TcpStream::connect(SHARED).expect("it listens");
        socket.set_read_timeout(Some(sealane_interop::WAIT_LIMIT)).expect("a socket option");
        socket.write_all(bytes).expect("there is room");
        let mut got = Vec::new();
        match socket.read_to_end(&mut got) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
            Err(e) => panic!("the connection does not end: {e}"),
        }
        got
    })
}

/// A load balancer at the client's end, which sends this header to the gateway and then passes bytes on, the first of the client
/// slowly.
struct Balancer {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Balancer {
    #[track_caller]
    fn start(world: &World, header: &'static str) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let flag = ends.clone();
        // Its threads stay in the namespace in which they begin.
        let thread = world.within(End::Client, move || {
            let listener = TcpListener::bind(BALANCER).expect("nobody else listens here");
            listener.set_nonblocking(true).expect("a socket option");
            thread::spawn(move || {
                while !flag.load(Ordering::Relaxed) {
                    match listener.accept() {
                        // What goes wrong ends the connection.
                        Ok((client, _)) => drop(thread::spawn(move || drop(pass(client, header)))),
                        Err(_) => thread::sleep(Duration::from_millis(20)),
                    }
                }
            })
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of its own has failed the test already.
            let _ = thread.join();
        }
    }
}

fn pass(mut client: TcpStream, header: &str) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let mut server = TcpStream::connect(SHARED)?;
    server.set_nodelay(true)?;
    server.write_all(header.as_bytes())?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let up = thread::spawn(move || {
        for _ in 0..4 {
            let mut byte = [0];
            if from_client.read_exact(&mut byte).is_err() || to_server.write_all(&byte).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let _ = io::copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    let _ = up.join();
    Ok(())
}

/// Both at the same time; an upgrade keeps the tunnel's connection.
#[test]
fn openvpn_and_https_share_a_port() {
    let curl = need!("curl");
    let world = world!();
    init(&world, "", "");
    let alice = profile(&world, "alice", SHARED);
    let server = serve(&world);
    assert_eq!(fetched(&world, &curl, SHARED, &[]), "over TLS");
    let client = world.connected(&alice, &[]);
    assert!(server.log().contains("alice is connected from 10.99.0.2:"), "{}", server.log());
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| world.pings(End::Client, INSIDE, 100, "0.01", 1000));
        for http in ["--http1.1", "--http2", "--http1.1"] {
            assert_eq!(fetched(&world, &curl, SHARED, &[http]), "over TLS", "{http}");
        }
        assert_eq!(pings.join().expect("ping ends"), 100, "{}", server.log());
    });
    let status = || -> serde_json::Value { serde_json::from_str(&world.read("vpn/status.json")).expect("JSON") };
    // It is written once a second.
    let is_told = || world.path("vpn/status.json").exists() && status()["clients"][0]["transport"] == "tcp";
    assert!(eventually(is_told), "{}", server.log());
    assert_eq!(count(&world, "shared_port"), 1);
    let accepted = || metric(&world, &curl, "sealane_listener_tunnel_connections_total", "result=\"accepted\"");
    assert!(eventually(|| accepted() == 1.0), "{}", accepted());
    // The tunnel's connection is none of the listener's.
    assert!(eventually(|| metric(&world, &curl, "sealane_connections_open", "") == 0.0));
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| world.pings(End::Client, INSIDE, 200, "0.01", 56));
        world.upgrade();
        assert!(eventually(|| server.log().contains("1 clients taken over") && world.serving().len() == 1));
        assert_eq!(pings.join().expect("ping ends"), 200, "{}", server.log());
    });
    assert_eq!(client.log().matches("Initialization Sequence Completed").count(), 1, "{}", client.log());
    drop(client);
    // The successor tells them apart as well.
    let _client = world.connected(&alice, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert_eq!(fetched(&world, &curl, SHARED, &[]), "over TLS");
}

/// A load balancer names the client; its first bytes come one by one. The address that it names is the client's, also after an
/// upgrade.
#[test]
fn a_load_balancer_names_the_client_of_the_tunnel() {
    let curl = need!("curl");
    let world = world!();
    init(&world, "proxy_protocol = true\ntrusted_proxies = [\"10.99.0.2\"]", "");
    let alice = profile(&world, "alice", BALANCER);
    let server = serve(&world);
    let _balancer = Balancer::start(&world, "PROXY TCP4 203.0.113.7 10.99.0.1 4242 443\r\n");
    let client = world.connected(&alice, &[]);
    assert!(said(&server, "alice is connected from 203.0.113.7:4242"), "{}", server.log());
    assert_eq!(fetched(&world, &curl, BALANCER, &[]), "over TLS");
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 1000), 3);
    world.upgrade();
    assert!(eventually(|| server.log().contains("1 clients taken over") && world.serving().len() == 1));
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 1000), 3);
    drop(client);
    assert!(said(&server, "alice (203.0.113.7:4242) is disconnected"), "{}", server.log());
    // Without a header nobody is told apart.
    assert!(answer(&world, &RESET).is_empty());
    assert!(eventually(|| metric(&world, &curl, "sealane_proxy_protocol_errors_total", "") >= 1.0));
}

/// What is neither: closed at once, or when the time for a handshake is over. Nothing of it reaches the tunnel.
#[test]
fn what_is_neither_openvpn_nor_tls_is_refused() {
    let curl = need!("curl");
    let world = world!();
    init(&world, "", "handshake_timeout = \"500ms\"");
    let server = serve(&world);
    let failures =
        |reason: &str| metric(&world, &curl, "sealane_handshake_failures_total", &format!("reason=\"{reason}\""));
    let slow: [&[u8]; 4] = [&[], &[0], &[0, 14], &[0x16, 3]];
    for bytes in slow {
        answer(&world, bytes);
    }
    assert!(eventually(|| failures("timeout") == slow.len() as f64), "{}", server.log());
    let junk: [&[u8]; 6] = [
        &[9],
        &[0, 13, 0x38],
        // Another key's id, a server's reset, data.
        &[0, 14, 0x39, 1],
        &[0, 14, 0x40, 1],
        &[0, 14, 0x48, 1],
        &[0xff; 64],
    ];
    for bytes in junk {
        answer(&world, bytes);
    }
    assert!(eventually(|| failures("not_tls") == junk.len() as f64), "{}", failures("not_tls"));
    let plain = String::from_utf8_lossy(&answer(&world, b"GET / HTTP/1.1\r\n\r\n")).into_owned();
    assert!(plain.starts_with("HTTP/1.1 400 ") && plain.contains("This port speaks TLS"), "{plain}");
    let accepted = || metric(&world, &curl, "sealane_listener_tunnel_connections_total", "result=\"accepted\"");
    assert_eq!(accepted(), 0.0);
    // A packet that begins so and is nothing: the tunnel's own deadline holds, and its counters.
    world.within(End::Client, || {
        let mut socket = TcpStream::connect(SHARED).expect("it listens");
        socket.write_all(&RESET).expect("there is room");
        assert!(eventually(|| accepted() == 1.0));
        let late = || metric(&world, &curl, "sealane_tunnel_data_total", "what=\"connection_timeout\"");
        assert!(eventually(|| late() == 1.0));
    });
    assert!(!server.log().contains("is connected from"), "{}", server.log());
}

/// The listener's rules and limits hold for clients of the tunnel, also for one with the address of a proxy that may name clients in
/// headers.
#[test]
fn rules_of_the_listener_hold_for_openvpn() {
    let curl = need!("curl");
    for trust in ["", "trusted_proxies = [\"10.99.0.2\"]"] {
        let world = world!();
        check_rules(&world, &curl, &format!("deny = [\"10.99.0.2\"]\n{trust}"));
    }
}

#[track_caller]
fn check_rules(world: &World, curl: &Path, listener: &str) {
    init(world, listener, "");
    let alice = profile(world, "alice", SHARED);
    let server = serve(world);
    let client = world.openvpn(End::Client, &alice, &[]);
    let denied = || metric(world, curl, "sealane_access_denied_total", "what=\"connection\"");
    assert!(eventually(|| denied() >= 1.0), "{}\n{}", client.log(), server.log());
    drop(client);
    assert_eq!(fetched(world, curl, SHARED, &["--interface", "10.99.0.3"]), "over TLS");
    assert!(!server.log().contains("is connected from"), "{}", server.log());
    assert_eq!(metric(world, curl, "sealane_listener_tunnel_connections_total", ""), 0.0);
    // Another address, as the same client.
    let text = world.read("alice.ovpn").replace("nobind\n", "local 10.99.0.3\nlport 0\n");
    let other = world.write("other.ovpn", &text);
    let _client = world.connected(&other, &[]);
    assert!(server.log().contains("alice is connected from 10.99.0.3:"), "{}", server.log());
}

/// New sessions of a client are limited by `handshake_rate`, whatever it speaks.
#[test]
fn the_rate_of_handshakes_holds_for_openvpn() {
    let curl = need!("curl");
    let world = world!();
    init(&world, "", "handshake_rate = \"1/m\"\nhandshake_burst = 2");
    let _server = serve(&world);
    let limited = || metric(&world, &curl, "sealane_rate_limited_total", "what=\"handshake\"");
    let accepted = || metric(&world, &curl, "sealane_listener_tunnel_connections_total", "result=\"accepted\"");
    // Lanes tell each other what they let pass, a moment later.
    for n in 1..=50 {
        world.within(End::Client, || {
            let mut socket = TcpStream::connect(SHARED).expect("it listens");
            socket.write_all(&RESET).expect("there is room");
        });
        assert!(eventually(|| accepted() + limited() == f64::from(n)), "{} and {}", accepted(), limited());
        if limited() >= 1.0 {
            break;
        }
    }
    assert!(limited() >= 1.0 && accepted() >= 2.0, "{} and {}", limited(), accepted());
}

/// A reload adds and removes the setting. Connected clients stay.
#[test]
fn a_reload_removes_the_setting_and_adds_it_again() {
    let curl = need!("curl");
    let world = world!();
    init(&world, "", "");
    let alice = profile(&world, "alice", SHARED);
    let server = serve(&world);
    let client = world.connected(&alice, &[]);
    let reload = |toml: &str| {
        world.write("vpn/tunnel.toml", toml);
        let before = server.log().matches("sealane: reloaded").count();
        server.hang_up();
        assert!(eventually(|| server.log().matches("sealane: reloaded").count() > before), "{}", server.log());
    };
    let toml = world.read("vpn/tunnel.toml");
    reload(&toml.replace("tunnel = true\n", ""));
    assert!(answer(&world, &RESET).is_empty());
    let failed = || metric(&world, &curl, "sealane_handshake_failures_total", "reason=\"not_tls\"");
    assert!(eventually(|| failed() >= 1.0));
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert_eq!(fetched(&world, &curl, SHARED, &[]), "over TLS");
    assert_eq!(client.log().matches("Initialization Sequence Completed").count(), 1, "{}", client.log());
    drop(client);
    reload(&toml);
    let _client = world.connected(&alice, &[]);
    assert_eq!(world.pings(End::Client, INSIDE, 3, "0.05", 56), 3);
    assert_eq!(metric(&world, &curl, "sealane_listener_tunnel_connections_total", "result=\"accepted\""), 2.0);
}
