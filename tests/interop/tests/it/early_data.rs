//! 0-RTT: accepted when on, told to the upstream, for safe methods only, and never twice.

use rustls::ClientConfig;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client::{self, get};
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, frame, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::{Message, Wire};
use sealane_interop::peers::s_client;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::Listening;
use sealane_interop::{eventually, need};
use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ON: &str = "early_data = \"16KiB\"";

pub(crate) fn eager(gateway: &Gateway) -> Arc<ClientConfig> {
    let mut config = client::config_with(gateway.ca(), client::provider(), &[&rustls::version::TLS13]);
    config.enable_early_data = true;
    Arc::new(config)
}

/// Gets a ticket: it comes after the handshake, at the latest before the end of the connection.
pub(crate) fn prime(gateway: &Gateway, config: &Arc<ClientConfig>) {
    let mut wire = client::connect(gateway.address, config);
    wire.send(get("/prime")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("a first, full handshake is served").status(), 200);
    let _ = wire.rest();
}

/// Sends a request as early data: the response, and whether the gateway took it as such.
pub(crate) fn early(address: SocketAddr, config: &Arc<ClientConfig>, request: &[u8]) -> (Message, bool) {
    let mut session = client::session(config, HOST);
    let sent = session.early_data().expect("the ticket allows early data").write(request);
    assert_eq!(sent.expect("there is room for a small request"), request.len());
    let mut socket = client::tcp(address);
    while session.is_handshaking() {
        session.complete_io(&mut socket).expect("the handshake goes through");
    }
    let accepted = session.is_early_data_accepted();
    let mut wire = Wire::new(rustls::StreamOwned::new(session, socket));
    if !accepted {
        wire.send(request).expect("the gateway reads");
    }
    let method = String::from_utf8_lossy(request.split(|byte| *byte == b' ').next().unwrap_or_default()).into_owned();
    (wire.response(&method).unwrap_or_else(|broken| panic!("{broken:?}")), accepted)
}

/// Sends a request as early data: whether the gateway took it as such, and the client's first flight. What follows it is left
/// out of the recording: a second flight under other keys would end the handshake before the request is looked at.
pub(crate) fn recorded(address: SocketAddr, config: &Arc<ClientConfig>, request: &[u8]) -> (bool, Vec<u8>) {
    let mut session = client::session(config, HOST);
    let sent = session.early_data().expect("the ticket allows early data").write(request);
    assert_eq!(sent.expect("there is room for a small request"), request.len());
    let mut flight = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut flight).expect("memory takes everything");
    }
    let mut socket = client::tcp(address);
    socket.write_all(&flight).expect("the gateway reads");
    while session.is_handshaking() {
        session.complete_io(&mut socket).expect("the handshake goes through");
    }
    let accepted = session.is_early_data_accepted();
    if accepted {
        let mut wire = Wire::new(rustls::StreamOwned::new(session, socket));
        assert_eq!(wire.response("GET").expect("early data is answered").status(), 200);
    }
    (accepted, flight)
}

/// Sends a recording again and again to these gateways, by turns. Each copy has been judged when this returns.
pub(crate) fn replay(addresses: &[SocketAddr], recording: &[u8], times: usize) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let n = next.fetch_add(1, Ordering::Relaxed)
                    && n < times
                {
                    let mut copy = client::tcp(addresses[n % addresses.len()]);
                    // The gateway may have closed before it has all.
                    let _ = copy.write_all(recording);
                    let mut answer = Vec::new();
                    let _ = Wire::new(&copy).exactly(7, &mut answer);
                    assert_eq!(answer.len(), 7, "the copy was not even answered");
                    // What was accepted is served to its end: a client that has gone would have its request called off.
                    let _ = copy.shutdown(Shutdown::Write);
                    let _ = Wire::new(&copy).rest();
                }
            });
        }
    });
}

#[test]
fn accepted_by_openssl_and_told_to_the_upstream() {
    need!("openssl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).tls(ON).start();
    let session = site.path().join("session");
    let session = session.to_str().expect("temporary paths are UTF-8");
    let first = s_client(&gateway, ["-tls1_3", "-sess_out", session], &get("/first")).all();
    assert!(first.contains("\r\n\r\nhello"), "{first}");
    let file = site.file("request", get("/early"));
    let file = file.to_str().expect("temporary paths are UTF-8");
    let said = s_client(&gateway, ["-tls1_3", "-sess_in", session, "-early_data", file], b"").all();
    assert!(said.contains("Early data was accepted"), "{said}");
    assert!(said.contains("\r\n\r\nhello"), "{said}");
    let requests = backend.requests();
    assert_eq!((requests[0].target(), requests[0].header("early-data")), ("/first", None));
    assert_eq!((requests[1].target(), requests[1].header("early-data")), ("/early", Some("1")));
}

#[test]
fn off_unless_asked_for() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let config = eager(&gateway);
    prime(&gateway, &config);
    assert!(client::session(&config, HOST).early_data().is_none(), "the ticket offers early data");
}

#[test]
fn only_safe_methods() {
    let site = Site::new();
    let backend = Backend::answering(|_| ok(b"hello"));
    let gateway = before(&site, [backend.url()]).tls(ON).start();
    let config = eager(&gateway);
    for (method, status) in [("GET", 200), ("OPTIONS", 200), ("POST", 425), ("PUT", 425), ("DELETE", 425)] {
        prime(&gateway, &config);
        let before = backend.requests().len();
        let request = format!("{method} /m HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n\r\n");
        let (response, accepted) = early(gateway.address, &config, request.as_bytes());
        assert!(accepted, "{method}");
        assert_eq!(response.status(), status, "{method}");
        let after = backend.requests().len();
        assert_eq!(after - before, usize::from(status == 200), "{method} and the upstream");
    }
}

/// What asks for another protocol than HTTP is no safe request: the messages that follow are repeated with it (RFC 8470 §3).
#[test]
fn no_upgrades_and_no_tunnels() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", backend.url());
    let listening = Listening { tls: ON, both: "allow_connect = true", rest: &rest, ..Listening::default() };
    let (gateway, _) = listening.start(&site);
    let websocket = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let config = eager(&gateway);
    for (start, fields, status) in [
        ("GET /upgrade", websocket, 425),
        ("GET /upgrade", "Upgrade: foo\r\nConnection: Upgrade\r\n", 425),
        ("CONNECT localhost:443", "", 425),
        // A wish that is not passed on.
        (
            "GET /plain",
            "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
            200,
        ),
        ("GET /plain", "", 200),
    ] {
        prime(&gateway, &config);
        let request = format!("{start} HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n");
        let (response, accepted) = early(gateway.address, &config, request.as_bytes());
        assert_eq!((response.status(), accepted), (status, true), "{start} {fields}");
    }
    // RFC 8441, with a message behind it.
    let mut config = client::config_with(gateway.ca(), client::provider(), &[&rustls::version::TLS13]);
    (config.enable_early_data, config.alpn_protocols) = (true, vec![b"h2".to_vec()]);
    let config = Arc::new(config);
    let mut frames = Frames::begin(client::connect(gateway.address, &config).stream, &[]);
    frames.request(1, "GET", "/prime", &[], true).expect("the gateway reads");
    frames.find(|f| f.kind == kind::HEADERS).expect("a first, full handshake is served");
    let list = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", HOST),
        (":path", "/upgrade"),
        ("sec-websocket-version", "13"),
    ];
    let head = frame(kind::HEADERS, END_HEADERS, 1, &block(&list));
    let message = frame(kind::DATA, 0, 1, b"\x81\x85\0\0\0\0hello");
    let request =
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(kind::SETTINGS, 0, 0, &[])[..], &head, &message].concat();
    let mut session = client::session(&config, HOST);
    let sent = session.early_data().expect("the ticket allows early data").write(&request);
    assert_eq!(sent.expect("there is room for a small request"), request.len());
    let mut frames = Frames { stream: rustls::StreamOwned::new(session, client::tcp(gateway.address)) };
    assert!(frames.find(|f| f.kind == kind::HEADERS && f.stream == 1).is_some(), "a response");
    assert!(frames.stream.conn.is_early_data_accepted());
    let logged = || site.logged("\"denied\":\"early_data\",\"status\":425");
    assert!(eventually(|| logged() == 4), "{}", site.log());
    let reached = backend.requests();
    assert!(
        reached.iter().all(|r| matches!(r.target(), "/prime" | "/plain") && r.header("upgrade").is_none()),
        "{reached:?}"
    );
    // After the handshake, the same request is an ordinary one.
    let mut wire = client::connect(gateway.address, &eager(&gateway));
    wire.send(format!("GET /upgrade HTTP/1.1\r\nHost: {HOST}\r\n{websocket}\r\n")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("a response").status(), 200);
    assert_eq!(backend.last().header("upgrade"), Some("websocket"));
}

#[test]
fn a_client_cannot_claim_that_data_was_not_early() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).tls(ON).start();
    let config = eager(&gateway);
    prime(&gateway, &config);
    let request = format!("GET /early HTTP/1.1\r\nHost: {HOST}\r\nEarly-Data: 0\r\n\r\n");
    let (_, accepted) = early(gateway.address, &config, request.as_bytes());
    assert!(accepted);
    // RFC 8470 §5.1: it is set to 1 whatever came.
    assert_eq!(backend.last().header("early-data"), Some("1"));
}

/// The upstream may find it too early as well: then the gateway tries again once the handshake is through, or passes
/// the 425 on, and nobody is answered wrongly.
#[test]
fn an_upstreams_425_is_tried_again_after_the_handshake() {
    let site = Site::new();
    let backend = Backend::answering(|request| match request.header("early-data") {
        Some(_) => b"HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n".to_vec(),
        None => ok(b"late"),
    });
    let gateway = before(&site, [backend.url()]).tls(ON).start();
    let config = eager(&gateway);
    prime(&gateway, &config);
    let (response, accepted) = early(gateway.address, &config, b"GET /e HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(accepted);
    assert_eq!((response.status(), response.text().as_str()), (200, "late"), "{response:?}");
}

/// What a client sent is recorded and sent again, byte by byte: the request must not reach the upstream again,
/// whichever lane meets the copy.
fn replayed(lanes: usize) {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).lanes(lanes).tls(ON).start();
    let config = eager(&gateway);
    prime(&gateway, &config);
    let (accepted, flight) = recorded(gateway.address, &config, &get("/once"));
    assert!(accepted, "the first time it is good, on whichever lane");
    let reached = |path: &str| backend.requests().iter().filter(|request| request.target() == path).count();
    assert_eq!(reached("/once"), 1);
    // A new port each time, so that the kernel spreads the copies over all lanes.
    replay(&[gateway.address], &flight, 24);
    assert_eq!(gateway.get("/after").text(), "hello");
    assert_eq!(reached("/once"), 1, "replayed early data reached the upstream");
}

#[test]
fn a_replay_at_the_same_lane_does_not_reach_the_upstream() {
    replayed(1);
}

#[test]
fn a_replay_at_another_lane_does_not_reach_the_upstream() {
    replayed(2);
}

#[test]
fn a_ticket_is_good_on_every_lane() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).lanes(2).tls(ON).start();
    let config = eager(&gateway);
    let accepted = (0..12).filter(|_| {
        prime(&gateway, &config);
        early(gateway.address, &config, &get("/early")).1
    });
    assert_eq!(accepted.count(), 12);
    assert!(eventually(|| backend.requests().iter().filter(|r| r.header("early-data") == Some("1")).count() == 12));
}

/// A client whose request in early data is under way still has to end its handshake in time.
fn never_finishes(alpn: &[u8], prime: impl Fn(Wire<client::Tls>), request: &[u8]) {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            if request.target() == "/prime" {
                connection.send(ok(b"hello"));
            }
        }
    });
    let gateway = before(&site, [backend.url()]).tls(ON).limits("handshake_timeout = \"1s\"").start();
    let mut config = client::config_with(gateway.ca(), client::provider(), &[&rustls::version::TLS13]);
    config.enable_early_data = true;
    config.alpn_protocols = vec![alpn.to_vec()];
    let config = Arc::new(config);
    prime(client::connect(gateway.address, &config));
    let mut session = client::session(&config, HOST);
    let sent = session.early_data().expect("the ticket allows early data").write(request);
    assert_eq!(sent.expect("there is room for a small request"), request.len());
    let mut socket = client::tcp(gateway.address);
    while session.wants_write() {
        session.write_tls(&mut socket).expect("the gateway reads");
    }
    // What comes is not looked at, so that no Finished follows.
    let end = std::io::copy(&mut socket, &mut std::io::sink());
    assert!(end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
    assert_eq!(gateway.failed_handshakes("timeout"), 1.0, "{}", gateway.metrics());
    assert!(backend.requests().iter().any(|r| r.target() == "/early"));
}

#[test]
fn a_handshake_must_end_in_time_during_a_request() {
    let prime = |mut wire: Wire<client::Tls>| {
        wire.send(get("/prime")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("a first, full handshake is served").status(), 200);
        let _ = wire.rest();
    };
    never_finishes(b"http/1.1", prime, &get("/early"));
}

#[test]
fn a_handshake_must_end_in_time_during_http2_requests() {
    let prime = |wire: Wire<client::Tls>| {
        let mut frames = Frames::begin(wire.stream, &[]);
        frames.request(1, "GET", "/prime", &[], true).expect("the gateway reads");
        frames.find(|f| f.kind == kind::HEADERS).expect("a first, full handshake is served");
    };
    let list = [(":method", "GET"), (":scheme", "https"), (":authority", HOST), (":path", "/early")];
    let head = frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &block(&list));
    let request = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(kind::SETTINGS, 0, 0, &[])[..], &head].concat();
    never_finishes(b"h2", prime, &request);
}
