//! Slow readers and writers, and thousands of connections that say nothing.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client::get;
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, raise_open_files, say};
use std::io::Write;
use std::time::Duration;

#[test]
fn a_request_byte_by_byte() {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(&request.body));
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    let request = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nX-Slow: yes\r\nContent-Length: 5\r\n\r\nhello");
    // A record for each byte.
    for byte in request.as_bytes() {
        wire.send([*byte]).expect("the gateway reads");
    }
    assert_eq!(wire.response("POST").expect("an answer comes").text(), "hello");
}

#[test]
fn a_response_byte_by_byte() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        while connection.request().is_some() {
            for byte in ok(b"hello") {
                connection.send([byte]);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    assert_eq!(gateway.get("/").text(), "hello");
}

/// Requires that the gateway ends the connection, with a response or without, before this client's own timeout.
fn ended<S: std::io::Read>(wire: &mut Wire<S>) -> Option<u16> {
    let result = wire.response("GET");
    match result {
        Ok(response) => Some(response.status()),
        Err(broken) => {
            let kind = broken.error.kind();
            let ours = matches!(kind, std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            assert!(!ours, "the connection is still open: {broken:?}");
            None
        }
    }
}

#[test]
fn a_head_that_never_ends_is_a_408() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).limits("header_timeout = \"300ms\"").start();
    let mut wire = gateway.connect();
    wire.send("GET / HTTP/1.1\r\nHost: loc").expect("the gateway reads");
    assert_eq!(ended(&mut wire), Some(408));
    // Dripping does not buy more time: it is the whole head that has to be there.
    let mut wire = gateway.connect();
    wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n")).expect("the gateway reads");
    let mut sent = 0;
    while sent < 600 && wire.send("X: y\r\n").is_ok() {
        sent += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(sent < 600, "a head was dripped for 12 s past a limit of 0.3 s");
    assert_eq!(backend.connections(), 0);
}

#[test]
fn silence_between_requests_ends_a_connection() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).limits("keepalive_timeout = \"300ms\"").start();
    let mut wire = gateway.connect();
    wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("an answer comes").text(), "hello");
    let (rest, end) = wire.rest();
    assert!(rest.is_empty() && end.is_ok(), "{rest:?} {end:?}");
}

#[test]
fn silence_in_a_body_ends_the_exchange() {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(&request.body));
    let gateway = before(&site, [backend.url()]).limits("idle_timeout = \"300ms\"").start();
    let mut wire = gateway.connect();
    wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 100\r\n\r\nsome"))
        .expect("the gateway reads");
    let status = ended(&mut wire);
    assert!(matches!(status, None | Some(408)), "{status:?}");
    assert!(backend.requests().is_empty());
}

/// A reader that takes nothing for longer than it may is cut, so that it cannot hold an upstream for ever.
#[test]
fn a_reader_that_stops_is_ended() {
    let site = Site::new();
    let body = vec![b'x'; 30 << 20];
    let backend = Backend::answering(move |_| ok(&body));
    let gateway = before(&site, [backend.url()]).limits("idle_timeout = \"300ms\"").start();
    let mut wire = gateway.connect();
    wire.send(get("/")).expect("the gateway reads");
    assert!(
        eventually(|| gateway.metric("sealane_client_timeouts_total").unwrap_or(0.0) >= 1.0),
        "a client that reads nothing is served for ever:\n{}",
        gateway.metrics()
    );
    let broken = wire.response("GET").expect_err("it was cut");
    assert!(broken.partial.body.len() < 30 << 20);
    assert_eq!(
        gateway
            .exchange(format!("HEAD / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"))
            .map(|r| r.status())
            .ok(),
        Some(200)
    );
}

/// Bytes of the gateway's that an idle keep-alive connection under TLS 1.3 may take. The session itself takes 3.7 KiB.
const IDLE_BYTES: u64 = 8 << 10;

#[test]
fn five_thousand_idle_connections() {
    let files = raise_open_files();
    // As many as both sides' limits allow, with room for what else is open.
    let count = 5_000.min(files.saturating_sub(1_000) as usize);
    if count < 1_000 {
        sealane_interop::skip!("only {files} files may be open");
    }
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let serve = |wire: &mut Wire<_>| {
        wire.send(&request).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("an answer comes").text(), "hello");
    };
    // What is allocated once is not counted.
    let mut wires: Vec<_> = (0..200).map(|_| gateway.connect()).collect();
    wires.iter_mut().for_each(serve);
    let before = gateway.server.resident();
    while wires.len() < count {
        let mut wire = gateway.connect();
        serve(&mut wire);
        wires.push(wire);
    }
    let after = gateway.server.resident();
    if let (Some(before), Some(after)) = (before, after) {
        let each = after.saturating_sub(before) / (count as u64 - 200);
        say(&format!("{count} idle TLS 1.3 connections: {} KiB resident, {each} bytes each", after >> 10));
        assert!(each <= IDLE_BYTES, "{each} bytes for an idle connection, more than {IDLE_BYTES}");
    }
    assert_eq!(open(&gateway), count as f64);
    // Those that were there first, and all others, are still served, as is somebody new.
    wires.iter_mut().step_by(50).for_each(serve);
    assert_eq!(gateway.get("/").text(), "hello");
    drop(wires);
    assert!(eventually(|| open(&gateway) == 0.0), "connections stay behind: {}", open(&gateway));
}

fn open(gateway: &Gateway) -> f64 {
    gateway.metric("sealane_connections_open").expect("the gauge is there")
}

/// At the limit accepting pauses, and goes on when there is room again.
#[test]
fn connections_above_the_limit_wait() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).limits("max_connections = 20").start();
    let mut held: Vec<_> = (0..20).map(|_| gateway.connect()).collect();
    // The kernel takes it into its queue; the gateway does not.
    let mut waiting = sealane_interop::client::tcp(gateway.address);
    waiting.write_all(&sealane_interop::client::hello(gateway.config(), HOST)).expect("the kernel takes it");
    waiting.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout above zero");
    let mut first = [0; 1];
    let early = std::io::Read::read(&mut waiting, &mut first);
    assert!(early.is_err(), "served though the limit was reached: {early:?}");
    let said = || gateway.server.log().contains("max_connections is reached in a lane: new clients wait");
    assert!(eventually(said), "{}", gateway.server.log());
    held.truncate(10);
    waiting.set_read_timeout(Some(sealane_interop::WAIT_LIMIT)).expect("a timeout above zero");
    let read = std::io::Read::read(&mut waiting, &mut first);
    assert_eq!((read.ok(), first[0]), (Some(1), 22), "a handshake record is the answer");
}
