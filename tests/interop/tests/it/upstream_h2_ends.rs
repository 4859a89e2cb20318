//! HTTP/2 connections to upstreams that begin slowly or end early: no whole response is cut off, and no WebSocket is refused
//! or forgotten.

use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, kind};
use sealane_interop::gateway::{Gateway, Setup, before};
use sealane_interop::noise;
use sealane_interop::site::{HOST, Site};
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

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

fn switch(gateway: &Gateway) -> u16 {
    let answer = gateway.plain(format!(
        "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ));
    answer.unwrap_or_else(|broken| panic!("{broken:?}")).status()
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
