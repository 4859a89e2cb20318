//! PROXY protocol, versions 1 and 2, from clients and to upstreams, with HAProxy as the other side of both.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client::{self, get};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::Wire;
use sealane_interop::peers::haproxy;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, need, ports};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A version 2 header: the command, the family, and what follows.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("a test's header is short").to_be_bytes();
    [V2, &[0x20 | command, family], &length, rest].concat()
}

/// The upstream's idea of the client, for a connection that begins with `header`; an error where it is not served.
fn seen(gateway: &Gateway, backend: &Backend, header: &[u8]) -> Result<String, String> {
    let mut socket = client::tcp(gateway.address);
    socket.write_all(header).map_err(|error| error.to_string())?;
    let stream = client::handshake(socket, gateway.config(), HOST).map_err(|error| error.to_string())?;
    let mut wire = Wire::new(stream);
    wire.send(get("/")).map_err(|error| error.to_string())?;
    wire.response("GET").map_err(|broken| broken.error.to_string())?;
    Ok(backend.last().header("x-forwarded-for").unwrap_or_default().to_owned())
}

#[test]
fn from_clients() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).listener("proxy_protocol = true").start();
    let ask = |header: &[u8]| seen(&gateway, &backend, header);
    assert_eq!(ask(b"PROXY TCP4 203.0.113.7 192.0.2.1 1234 443\r\n"), Ok("203.0.113.7".into()));
    assert_eq!(ask(b"PROXY TCP6 2001:db8::7 2001:db8::1 1234 443\r\n"), Ok("2001:db8::7".into()));
    assert_eq!(ask(b"PROXY UNKNOWN\r\n"), Ok("127.0.0.1".into()));
    let ipv4 = [203, 0, 113, 8, 192, 0, 2, 1, 4, 210, 1, 187];
    assert_eq!(ask(&v2(1, 0x11, &ipv4)), Ok("203.0.113.8".into()));
    // With an extension after the addresses, which is skipped.
    assert_eq!(ask(&v2(1, 0x11, &[&ipv4[..], &[0x04, 0, 2, 0, 0]].concat())), Ok("203.0.113.8".into()));
    let mut ipv6 = vec![0; 36];
    ipv6[..2].copy_from_slice(&[0x20, 0x01]);
    ipv6[15] = 9;
    assert_eq!(ask(&v2(1, 0x21, &ipv6)), Ok("2001::9".into()));
    // LOCAL: a health check of the sender's own.
    assert_eq!(ask(&v2(0, 0, &[])), Ok("127.0.0.1".into()));
}

#[test]
fn without_or_with_a_bad_header_nobody_is_served() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).listener("proxy_protocol = true").start();
    for header in [
        &b""[..],
        b"PROXY TCP4 203.0.113.7 192.0.2.1 1234\r\n",
        b"PROXY TCP4 303.0.113.7 192.0.2.1 1234 443\r\n",
        b"PROXY TCP5 203.0.113.7 192.0.2.1 1234 443\r\n",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 1234 443 and more, more than fits into the longest line of version one that there may be\r\n",
        &[V2, &[0x11, 0x11, 0, 12], &[0; 12]].concat(),
        &v2(1, 0x11, &[1, 2, 3]),
        // An extension that is longer than the header, and half of one.
        &v2(1, 0x11, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x04, 0, 3, 0, 0]),
        &v2(1, 0x11, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x04]),
    ] {
        assert!(seen(&gateway, &backend, header).is_err(), "{:?} was served", String::from_utf8_lossy(header));
    }
    assert!(backend.requests().is_empty());
}

#[test]
fn a_header_that_does_not_come_whole_is_counted() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()])
        .listener("proxy_protocol = true")
        .limits("handshake_timeout = \"500ms\"")
        .start();
    let count = || gateway.metric("sealane_proxy_protocol_errors_total");
    let mut late = client::tcp(gateway.address);
    late.write_all(b"PROXY TCP4 203.0.113.7 ").expect("the gateway reads");
    let mut silent = client::tcp(gateway.address);
    for socket in [&mut late, &mut silent] {
        // Until the gateway closes it.
        let end = socket.read(&mut [0]);
        assert!(matches!(end, Ok(0)) || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset));
    }
    assert_eq!(count(), Some(2.0));
    assert_eq!(gateway.failed_handshakes("timeout"), 0.0);
    let mut broken_off = client::tcp(gateway.address);
    broken_off.write_all(b"PROXY TCP4 203.0.113.7 ").expect("the gateway reads");
    drop(broken_off);
    assert!(eventually(|| count() == Some(3.0)), "{}", gateway.metrics());
    // A balancer that looks whether somebody listens has sent nothing wrong.
    drop(client::tcp(gateway.address));
    assert!(eventually(|| gateway.metric("sealane_connections_open") == Some(0.0)));
    assert_eq!(count(), Some(3.0));
}

#[test]
fn a_header_is_not_expected_unless_configured() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    assert!(seen(&gateway, &backend, b"PROXY TCP4 203.0.113.7 192.0.2.1 1234 443\r\n").is_err());
    assert_eq!(gateway.get("/").text(), "hello");
}

/// A backend that keeps the first bytes of each connection.
fn listening(length: usize) -> (Backend, Arc<Mutex<Vec<Vec<u8>>>>) {
    let headers = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&headers);
    let backend = Backend::start(move |mut connection| {
        let mut header = Vec::new();
        let read = match length {
            0 => connection.wire.line().map(|line| header = line.into_bytes()),
            _ => connection.wire.exactly(length, &mut header),
        };
        if read.is_ok() {
            log.lock().expect("nobody panics with it").push(header);
            while connection.request().is_some() {
                connection.send(ok(b"hello"));
            }
        }
    });
    (backend, headers)
}

#[test]
fn to_upstreams() {
    let site = Site::new();
    let (backend, headers) = listening(0);
    let gateway = before(&site, [backend.url()]).upstream("proxy_protocol = \"v1\"").start();
    for _ in 0..2 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    let lines: Vec<_> = headers.lock().expect("nobody panics with it").drain(..).collect();
    assert_eq!(lines.len(), 2, "each client has a connection of its own");
    for line in lines {
        let line = String::from_utf8(line).expect("version 1 is text");
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(&words[..4], ["PROXY", "TCP4", "127.0.0.1", "127.0.0.1"], "{line}");
        assert_eq!(words[5], gateway.address.port().to_string(), "the port that the client came to: {line}");
    }
    let (backend, headers) = listening(28);
    let gateway = before(&site, [backend.url()]).upstream("proxy_protocol = \"v2\"").start();
    assert_eq!(gateway.get("/").text(), "hello");
    let header = headers.lock().expect("nobody panics with it").remove(0);
    assert_eq!((&header[..12], header[12], header[13]), (V2, 0x21, 0x11), "{header:02x?}");
    assert_eq!((&header[16..20], &header[20..24]), (&[127, 0, 0, 1][..], &[127, 0, 0, 1][..]));
    assert_eq!(header[26..28], gateway.address.port().to_be_bytes());
}

#[test]
fn haproxy_on_both_sides() {
    let program = need!("haproxy");
    let site = Site::new();
    for (send, accept) in [("send-proxy", "v1"), ("send-proxy-v2", "v2")] {
        let origin = Backend::saying("hello");
        let (front, back) = (ports::free(), ports::free());
        // Behind the gateway, HAProxy reads the header; in front of it, another one writes it, in TCP mode.
        let behind = format!(
            "listen back\n  bind {back} accept-proxy\n  http-request set-header X-Seen %[src]\n  server origin {}",
            origin.address
        );
        // The port answers only to the header, which a probe does not send; it listens all the same.
        let _back = haproxy(&site, &program, back, &behind);
        let out = format!("proxy_protocol = \"{accept}\"");
        let gateway =
            before(&site, [format!("http://{back}")]).listener("proxy_protocol = true").upstream(&out).start();
        let before = format!("listen front\n  mode tcp\n  bind {front}\n  server gateway {} {send}", gateway.address);
        let _front = haproxy(&site, &program, front, &before);
        let response = client::exchange(front, gateway.config(), &get("/")).unwrap_or_else(|b| panic!("{send}: {b:?}"));
        assert_eq!(response.text(), "hello", "{send}");
        assert_eq!(origin.last().header("x-seen"), Some("127.0.0.1"), "{send}");
    }
}
