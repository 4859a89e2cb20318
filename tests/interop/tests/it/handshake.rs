//! Below HTTP: groups, alerts, garbage, and handshakes that stop halfway.

use rustls::crypto::aws_lc_rs::kx_group;
use sealane_interop::backend::Backend;
use sealane_interop::client::{self, alert, get, hello, tcp};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, noise, raise_open_files};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

// Alert descriptions, RFC 8446 §6 and RFC 6066 §3.
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const UNRECOGNIZED_NAME: u8 = 112;

fn serves(gateway: &Gateway) {
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn post_quantum_key_exchange() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    for group in [kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1] {
        let mut provider = client::provider();
        provider.kx_groups = vec![group];
        let config = Arc::new(client::config_with(&site.ca, provider, &[&rustls::version::TLS13]));
        let mut wire = client::connect(gateway.address, &config);
        let negotiated = wire.stream.conn.negotiated_key_exchange_group().map(|group| group.name());
        assert_eq!(negotiated, Some(group.name()));
        wire.send(get("/")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
    }
}

#[test]
fn a_share_for_another_group_is_asked_for_again() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).tls("groups = [\"x25519\"]").start();
    // The client guesses wrong: its share is for the first, and the server knows only the second.
    let mut provider = client::provider();
    provider.kx_groups = vec![kx_group::SECP256R1, kx_group::X25519];
    let config = Arc::new(client::config_with(&site.ca, provider, &[&rustls::version::TLS13]));
    let wire = client::connect(gateway.address, &config);
    assert_eq!(wire.stream.conn.handshake_kind(), Some(rustls::HandshakeKind::FullWithHelloRetryRequest));
    serves(&gateway);
}

#[test]
fn an_unknown_name_is_refused_when_names_are_strict() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).tls("strict_sni = true").start();
    let mut stream = tcp(gateway.address);
    stream.write_all(&hello(gateway.config(), "unknown.test")).expect("the gateway reads");
    assert_eq!(alert(&mut stream), Ok(UNRECOGNIZED_NAME));
    assert_eq!(gateway.failed_handshakes("unknown_name"), 1.0);
    serves(&gateway);
}

#[test]
fn an_unknown_name_gets_the_default_certificate() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    // The certificate is not for this name, which only the client can judge.
    let error = client::handshake(tcp(gateway.address), gateway.config(), "unknown.test").err();
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("invalid peer certificate"), "{error}");
    serves(&gateway);
}

/// Sends bytes and then nothing more; the alert that comes.
fn refused(gateway: &Gateway, bytes: &[u8]) -> Result<u8, String> {
    let mut stream = tcp(gateway.address);
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let alert = alert(&mut stream);
    serves(gateway);
    alert
}

#[test]
fn plain_http_on_the_tls_port() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    // A person who forgot the `s` is told so in the words that they can read.
    let mut wire = Wire::new(tcp(gateway.address));
    wire.send("GET /plain HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the gateway reads");
    let response = wire.response("GET").unwrap_or_else(|broken| panic!("{broken:?}"));
    assert!(response.status() == 400 && response.text().contains("https"), "{response:?}");
    assert!(wire.rest().0.is_empty());
    assert_eq!(gateway.failed_handshakes("not_tls"), 1.0);
    serves(&gateway);
    assert!(backend.requests().iter().all(|request| request.target() == "/"));
}

#[test]
fn garbage_is_answered_with_an_alert_or_a_close() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    for seed in 1..=100 {
        let mut stream = tcp(gateway.address);
        let _ = stream.write_all(&noise(2_000, seed));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // Whatever it says, it ends, and never says more than an alert, or that this is no place for plain HTTP.
        let (answer, _) = Wire::new(&stream).rest();
        let plain = answer.starts_with(b"HTTP/1.1 400 ");
        assert!(answer.len() <= 7 || plain, "seed {seed}: {answer:02x?}");
    }
    serves(&gateway);
    assert_eq!(backend.requests().len(), 1);
}

#[test]
fn malformed_hellos() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let whole = hello(gateway.config(), HOST);
    // Every byte of a good one broken in turn, at a step that keeps the test short.
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x80;
        let mut stream = tcp(gateway.address);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // A change in a random value is none that a server could object to; it must only not hang or fall.
        let _ = Wire::new(&stream).rest();
    }
    serves(&gateway);
    // A record of the wrong type in place of a hello.
    let mut application_data = whole.clone();
    application_data[0] = 23;
    let before = gateway.failed_handshakes("malformed_hello");
    assert_eq!(refused(&gateway, &application_data), Ok(UNEXPECTED_MESSAGE));
    assert_eq!(gateway.failed_handshakes("malformed_hello"), before + 1.0);
}

#[test]
fn an_oversized_record_is_an_overflow() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    // RFC 8446 §5.1: more than 2^14 bytes of plaintext.
    let mut record = vec![22, 3, 1, 0x48, 0x01, 1, 0, 0x47, 0xfd];
    record.resize(0x4801 + 5, 0);
    assert_eq!(refused(&gateway, &record), Ok(RECORD_OVERFLOW));
    assert_eq!(gateway.failed_handshakes("oversize_hello"), 1.0);
}

#[test]
fn an_oversized_hello_is_cut_off() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    // A ClientHello of 16 MB, in records of a good size, as long as it is taken.
    let mut bytes = vec![22, 3, 1, 0x40, 0x00, 1, 0xff, 0xff, 0xff];
    bytes.resize(0x4000 + 5, 0);
    let mut stream = tcp(gateway.address);
    // What the start still touches is not the hello's.
    let mut before = None;
    assert!(eventually(|| {
        let now = gateway.server.resident();
        std::mem::replace(&mut before, now) == now
    }));
    let mut taken = 0;
    // What comes after the alert may be read and thrown away for a while, so that the alert is not lost to a reset.
    while taken < 1 << 30 && stream.write_all(&bytes).is_ok() {
        taken += bytes.len();
        bytes[5..9].fill(0);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(taken < 1 << 30, "{taken} bytes of one hello were taken");
    if let (Some(before), Some(after)) = (before, gateway.server.resident()) {
        let held = after.saturating_sub(before);
        assert!(held < 4 << 20, "a hello that was refused took {held} bytes");
    }
    drop(stream);
    // With less, so that the alert is not lost to a reset.
    bytes[5..9].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
    let alert = refused(&gateway, &bytes);
    let expected = [UNEXPECTED_MESSAGE, ILLEGAL_PARAMETER, DECODE_ERROR, RECORD_OVERFLOW, 40, 80];
    assert!(alert.as_ref().is_ok_and(|alert| expected.contains(alert)), "{alert:?}");
    assert_eq!(gateway.failed_handshakes("oversize_hello"), 2.0);
}

#[test]
fn a_record_that_does_not_decrypt() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = Arc::new(client::config_with(&site.ca, client::provider(), &[version]));
        // With the end of the handshake in one read, and by itself.
        for asked_first in [false, true] {
            let mut wire = client::connect(gateway.address, &config);
            if asked_first {
                wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
                assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
            }
            let mut record = vec![23, 3, 3, 0, 64];
            record.extend_from_slice(&noise(64, 9));
            wire.stream.sock.write_all(&record).expect("the gateway reads");
            let mut plain = Vec::new();
            let error =
                std::io::Read::read_to_end(&mut wire.stream, &mut plain).expect_err("the connection is of no use");
            let what = format!("{version:?}, asked first: {asked_first}");
            assert!(error.to_string().contains("BadRecordMac"), "{what}, expected alert {BAD_RECORD_MAC}: {error}");
        }
    }
    assert_eq!(backend.requests().len(), 2);
    assert_eq!(gateway.failed_handshakes("bad_record_mac"), 4.0);
    serves(&gateway);
}

/// 500 connections that stop at each stage and stay there; the service goes on for everybody else.
#[test]
fn a_flood_of_half_open_handshakes() {
    raise_open_files();
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let first = hello(gateway.config(), HOST);
    let mut held: Vec<TcpStream> = Vec::new();
    for number in 0..500 {
        let mut stream = tcp(gateway.address);
        let sent = match number % 5 {
            0 => 0,
            1 => 3,
            2 => 5,
            3 => first.len() / 2,
            _ => first.len(),
        };
        stream.write_all(&first[..sent]).expect("the gateway reads");
        held.push(stream);
        if number % 50 == 49 {
            serves(&gateway);
        }
    }
    // And those that got further: a handshake without a request, and half a request.
    let idle: Vec<_> = (0..50).map(|_| gateway.connect()).collect();
    let mut halves: Vec<_> = (0..50).map(|_| gateway.connect()).collect();
    for half in &mut halves {
        half.send("GET /half HTTP/1.1\r\nHost: loc").expect("the gateway reads");
    }
    for _ in 0..20 {
        serves(&gateway);
    }
    drop((held, idle, halves));
    serves(&gateway);
    assert!(backend.requests().iter().all(|request| request.target() == "/"));
}

#[test]
fn a_slow_handshake_is_ended() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).limits("handshake_timeout = \"300ms\"").start();
    for sent in [&b""[..], &hello(gateway.config(), HOST)[..20], &hello(gateway.config(), HOST)] {
        let mut stream = tcp(gateway.address);
        stream.write_all(sent).expect("the gateway reads");
        // The gateway ends it: this client's own timeout would be an error of another kind.
        let (_, end) = Wire::new(&stream).rest();
        let kind = end.err().map(|error| error.kind());
        assert!(!matches!(kind, Some(std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)), "still open");
    }
    assert_eq!(gateway.failed_handshakes("timeout"), 3.0);
    serves(&gateway);
}

#[test]
fn hellos_byte_by_byte() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    let mut session = client::session(gateway.config(), HOST);
    let mut stream = tcp(gateway.address);
    let mut first = Vec::new();
    session.write_tls(&mut first).expect("writing to memory works");
    for byte in first {
        stream.write_all(&[byte]).expect("the gateway reads");
    }
    while session.is_handshaking() {
        session.complete_io(&mut stream).expect("the handshake goes through");
    }
    let mut wire = Wire::new(rustls::StreamOwned::new(session, stream));
    wire.send(get("/")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("it answers").text(), "hello");
}
