//! HTTP/2 connections to upstreams that begin slowly or end early: no whole response is cut off, and no WebSocket is refused
//! or forgotten.

use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, kind};
use sealane_interop::gateway::{Gateway, Setup, before, launch};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{binary, client, eventually, noise, ports};
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Speaks HTTP/2 by prior knowledge: `serve` gets each connection after the client's preface, with its number from 0.
fn upstream(serve: impl Fn(Frames<TcpStream>, usize) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    std::thread::spawn(move || {
        for (number, mut stream) in listener.incoming().flatten().enumerate() {
            let serve = serve.clone();
            std::thread::spawn(move || {
                let mut preface = [0; 24];
                if stream.read_exact(&mut preface).is_ok() {
                    serve(Frames { stream }, number);
                }
            });
        }
    });
    address
}

fn setup<'s>(site: &'s Site, address: SocketAddr) -> Setup<'s> {
    before(site, [format!("http://{address}")]).plain().upstream("http = \"2\"")
}

/// The whole body is on its way when the connection ends, and more than the gateway passes on at once.
fn whole_response(ends: impl Fn(&mut Frames<TcpStream>) + Clone + Send + 'static) {
    let site = Site::new();
    let body = noise(200_000, 3);
    let served = body.clone();
    let address = upstream(move |mut frames, _| {
        let _ = frames.send(kind::SETTINGS, 0, 0, &[]);
        let Some(request) = frames.find(|f| f.kind == kind::HEADERS) else { return };
        // Before that the gateway's larger window does not hold.
        let _ = frames.send(kind::SETTINGS, ACK, 0, &[]);
        let _ = frames.send(kind::HEADERS, END_HEADERS, request.stream, &[0x88]);
        for piece in served.chunks(16_000) {
            let flags = if piece.as_ptr_range().end == served.as_ptr_range().end { END_STREAM } else { 0 };
            let _ = frames.send(kind::DATA, flags, request.stream, piece);
        }
        ends(&mut frames);
        let _ = frames.find(|_| false);
    });
    let gateway = setup(&site, address).start();
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let response = gateway.plain(request).unwrap_or_else(|broken| panic!("{:?}", broken.error));
    assert_eq!((response.status(), response.body.len()), (200, body.len()));
    assert!(response.body == body);
    assert_eq!(gateway.metric_with("sealane_aborted_exchanges_total", "by=\"upstream\""), Some(0.0));
}

#[test]
fn a_whole_response_before_a_goaway_is_not_cut() {
    whole_response(|frames| {
        let _ = frames.send(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    });
}

#[test]
fn a_whole_response_before_the_end_of_the_connection_is_not_cut() {
    whole_response(|frames| {
        let _ = frames.stream.shutdown(Shutdown::Write);
    });
}

/// Flag of SETTINGS.
const ACK: u8 = 1;
/// SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441 §3).
const WEBSOCKET: &[u8] = &[0, 8, 0, 0, 0, 1];

/// Asks for a WebSocket on a connection of its own.
fn ask_to_switch(gateway: &Gateway) -> Wire<TcpStream> {
    let mut wire = Wire::new(client::tcp(gateway.address));
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    wire.send(request).expect("the gateway reads");
    wire
}

fn switch(gateway: &Gateway) -> u16 {
    ask_to_switch(gateway).response("GET").unwrap_or_else(|broken| panic!("{broken:?}")).status()
}

#[test]
fn the_first_websocket_waits_for_the_servers_settings() {
    let site = Site::new();
    let address = upstream(|mut frames, _| {
        // After the gateway has long had its turn.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let _ = frames.send(kind::SETTINGS, 0, 0, WEBSOCKET);
        let Some(request) = frames.find(|f| f.kind == kind::HEADERS) else { return };
        let _ = frames.send(kind::HEADERS, END_HEADERS, request.stream, &[0x88]);
        let _ = frames.find(|_| false);
    });
    let gateway = setup(&site, address).start();
    assert_eq!(switch(&gateway), 101);
}

#[test]
fn a_waiting_websocket_goes_elsewhere_when_the_connection_closes() {
    let site = Site::new();
    let address = upstream(|mut frames, number| {
        if number > 0 {
            let _ = frames.send(kind::SETTINGS, 0, 0, WEBSOCKET);
        }
        let Some(request) = frames.find(|f| f.kind == kind::HEADERS) else { return };
        let _ = frames.send(kind::HEADERS, END_HEADERS, request.stream, &[0x88]);
        let _ = frames.find(|_| false);
    });
    // The connection is closed for idleness long before anything else ends the wait.
    let gateway = setup(&site, address).upstream("keepalive_timeout = \"1s\"").start();
    assert_eq!(switch(&gateway), 101);
}

#[test]
fn a_head_that_is_too_large_is_called_that() {
    let site = Site::new();
    let address = upstream(|mut frames, _| {
        let _ = frames.send(kind::SETTINGS, 0, 0, &[]);
        let Some(request) = frames.find(|f| f.kind == kind::HEADERS) else { return };
        let value = "x".repeat(1000);
        let mut head = vec![0x88];
        (0..300).for_each(|_| head.extend(block(&[("x-long", &value)])));
        let _ = frames.send(kind::HEADERS, 0, request.stream, &[]);
        for piece in head.chunks(16_000) {
            let _ = frames.send(kind::CONTINUATION, 0, request.stream, piece);
        }
        let _ = frames.find(|_| false);
    });
    let gateway = setup(&site, address).upstream("tries = 1").start();
    assert_eq!(gateway.plain_get("/", "").status(), 502);
    let metric = |name, label| gateway.metric_with(name, label);
    assert_eq!(metric("sealane_parse_errors_total", "reason=\"head_length\""), Some(1.0), "{}", gateway.metrics());
    assert_eq!(gateway.metric("sealane_http2_upstream_limits_total"), Some(1.0));
}

/// Two requests share the connection that ends because of one response: the access log blames each for its own part.
#[test]
fn a_head_that_is_too_large_is_the_fault_of_one_response() {
    let site = Site::new();
    let server = upstream(|mut frames, _| {
        let _ = frames.send(kind::SETTINGS, 0, 0, &[]);
        let Some(first) = frames.find(|f| f.kind == kind::HEADERS) else { return };
        let Some(_) = frames.find(|f| f.kind == kind::HEADERS) else { return };
        let head = block(&[("x-long", &"x".repeat(1000))]).repeat(300);
        let _ = frames.send(kind::HEADERS, 0, first.stream, &[0x88]);
        for piece in head.chunks(16_000) {
            let _ = frames.send(kind::CONTINUATION, 0, first.stream, piece);
        }
        let _ = frames.find(|_| false);
    });
    let (address, admin) = (ports::free(), ports::free());
    let log = site.path().join("access.json");
    let text = setup(&site, server).upstream("tries = 1").file(address, admin);
    let text = format!("{text}\n[log]\naccess = \"{}\"\nformat = \"json\"\n", log.display());
    let mut command = Command::new(binary::sealane());
    command.arg("serve").arg("-c").arg(site.file("logged.toml", text));
    let gateway = launch(&site, command, address, admin);
    std::thread::scope(|scope| {
        for path in ["/one", "/two"] {
            let gateway = &gateway;
            scope.spawn(move || assert_eq!(gateway.plain_get(path, "").status(), 502, "{path}"));
        }
    });
    let written = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(eventually(|| written().lines().count() == 2), "{}", written());
    let error = |line| serde_json::from_str::<serde_json::Value>(line).expect("a line is an object")["error"].clone();
    let mut errors: Vec<String> = written().lines().map(|l| error(l).as_str().unwrap_or_default().to_owned()).collect();
    errors.sort();
    assert!(errors[0].starts_with("its response breaks the rules of HTTP: the message head is longer"), "{errors:?}");
    assert_eq!(errors[1], "the gateway closed the connection: the head of another response on it is too large");
    let large = gateway.metric_with("sealane_parse_errors_total", "reason=\"head_length\"");
    assert_eq!(large, Some(1.0), "{}", gateway.metrics());
}

/// RFC 8441 §3: a server that does not say that it takes an extended CONNECT gets none. Another protocol than WebSocket
/// cannot be asked for over HTTP/2, and need not be (RFC 9110 §7.8).
#[test]
fn a_server_without_extended_connect_is_asked_for_no_websocket() {
    let site = Site::new();
    let server = upstream(|mut frames, _| {
        let _ = frames.send(kind::SETTINGS, 0, 0, &[]);
        while let Some(request) = frames.find(|f| f.kind == kind::HEADERS) {
            let _ = frames.send(kind::HEADERS, END_HEADERS | END_STREAM, request.stream, &[0x88]);
        }
    });
    let gateway = setup(&site, server).start();
    assert_eq!(switch(&gateway), 502);
    assert_eq!(gateway.metric_with("sealane_aborted_exchanges_total", "by=\"upstream\""), Some(1.0));
    let other = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n");
    assert_eq!(gateway.plain(other).expect("an answer comes").status(), 200);
    // The connection that could not carry it still serves.
    assert_eq!(gateway.plain_get("/", "").status(), 200);
    assert_eq!(gateway.metric_with("sealane_http2_connections_total", "side=\"upstream\""), Some(1.0));
}

/// SETTINGS_MAX_CONCURRENT_STREAMS = 0 beside SETTINGS_ENABLE_CONNECT_PROTOCOL.
const NO_STREAMS: &[u8] = &[0, 3, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1];
/// REFUSED_STREAM.
const REFUSED: &[u8] = &[0, 0, 0, 7];

/// A connection that takes no request is a failed try, and the next connection is within `tries` and the retry budget.
#[test]
fn a_server_that_allows_no_streams_is_tried_as_often_as_a_request_may_be() {
    let site = Site::new();
    let (connections, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = (connections.clone(), ended.clone());
    let server = upstream(move |mut frames, _| {
        counted.0.fetch_add(1, Ordering::SeqCst);
        let _ = frames.send(kind::SETTINGS, 0, 0, NO_STREAMS);
        while let Some(request) = frames.find(|f| f.kind == kind::HEADERS) {
            let _ = frames.send(kind::RST_STREAM, 0, request.stream, REFUSED);
        }
        counted.1.fetch_add(1, Ordering::SeqCst);
    });
    let gateway = setup(&site, server).upstream("tries = 3").start();
    // It waits for the SETTINGS, which say whether it may be asked for a WebSocket.
    assert_eq!(switch(&gateway), 502);
    assert_eq!(connections.load(Ordering::SeqCst), 3, "one for each try");
    // What does not wait is refused.
    assert_eq!(gateway.plain_get("/", "").status(), 502);
    assert_eq!(connections.load(Ordering::SeqCst), 6, "one for each try");
    assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(4.0), "{}", gateway.metrics());
    // None of the connections is kept: no request could use it.
    assert!(eventually(|| ended.load(Ordering::SeqCst) == 6), "{}", gateway.metrics());
}

/// The budget for retries counts before `tries`.
#[test]
fn connections_without_streams_are_within_the_retry_budget() {
    let site = Site::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let server = upstream(move |mut frames, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let _ = frames.send(kind::SETTINGS, 0, 0, NO_STREAMS);
        let _ = frames.find(|_| false);
    });
    let budget = "tries = 16\nretry_budget = 0\nretry_budget_min = 0";
    let gateway = setup(&site, server).upstream(budget).start();
    for n in 1..=3 {
        assert_eq!(switch(&gateway), 502);
        assert_eq!(connections.load(Ordering::SeqCst), n);
    }
}

/// A server that takes fewer WebSockets on a connection than have waited for it: the others get connections of their own, and
/// none of that counts as a try.
#[test]
fn requests_for_which_a_new_connection_has_no_room_get_another_one() {
    const AT_ONCE: usize = 6;
    let site = Site::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let server = upstream(move |mut frames, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        // After all of them have come.
        std::thread::sleep(std::time::Duration::from_millis(300));
        let _ = frames.send(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 2, 0, 8, 0, 0, 0, 1]);
        while let Some(request) = frames.find(|f| f.kind == kind::HEADERS) {
            let _ = frames.send(kind::HEADERS, END_HEADERS, request.stream, &[0x88]);
        }
    });
    let gateway = setup(&site, server).upstream("tries = 1").start();
    let wires: Vec<_> = (0..AT_ONCE).map(|_| ask_to_switch(&gateway)).collect();
    // They stay open, so that none gives its place to another.
    let open: Vec<_> = wires
        .into_iter()
        .map(|mut wire| {
            assert_eq!(wire.response("GET").unwrap_or_else(|broken| panic!("{broken:?}")).status(), 101);
            wire
        })
        .collect();
    assert_eq!(open.len(), AT_ONCE);
    assert_eq!(connections.load(Ordering::SeqCst), AT_ONCE / 2);
    assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(0.0), "{}", gateway.metrics());
}
