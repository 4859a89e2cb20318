//! Requests that two readers could take for different ones: refused with 400, the connection closed, and not a byte
//! sent to the upstream.

use sealane_interop::backend::{Backend, in_chunks, ok};
use sealane_interop::client::get;
use sealane_interop::gateway::before;
use sealane_interop::site::{HOST, Site};

/// The request that a smuggler would have somebody else's connection begin with.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// What comes between the request line and the body.
const HEADS: &[&str] = &[
    // Two lengths (RFC 9112 §6.1, §6.3).
    "Host: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    "Host: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
    "Host: localhost\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
    "Host: localhost\r\nContent-Length: 3, 3\r\n\r\n",
    "Host: localhost\r\nContent-Length: 3, 4\r\n\r\n",
    // Lengths that are no plain decimal number.
    "Host: localhost\r\nContent-Length: +3\r\n\r\n",
    "Host: localhost\r\nContent-Length: -3\r\n\r\n",
    "Host: localhost\r\nContent-Length: 0x3\r\n\r\n",
    "Host: localhost\r\nContent-Length: 3 4\r\n\r\n",
    "Host: localhost\r\nContent-Length: 3;a\r\n\r\n",
    "Host: localhost\r\nContent-Length: \r\n\r\n",
    "Host: localhost\r\nContent-Length: 18446744073709551619\r\n\r\n",
    "Host: localhost\r\nContent-Length: \u{663}\r\n\r\n",
    // Codings that hide `chunked` from one of two.
    "Host: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding: \u{b}chunked\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding: \"chunked\"\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding: chunked;q=1\r\n\r\n",
    "Host: localhost\r\nTransfer-Encoding:\r\n\r\n",
    "Host: localhost\r\nTransfer_Encoding: chunked\r\n\r\n",
    "Host: localhost\r\nContent_Length: 3\r\n\r\n",
    // White space and line ends where there may be none.
    "Host: localhost\r\nTransfer-Encoding : chunked\r\n\r\n",
    "Host: localhost\r\nContent-Length : 3\r\n\r\n",
    "Host: localhost\r\n Content-Length: 3\r\n\r\n",
    " Host: localhost\r\nContent-Length: 3\r\n\r\n",
    "Host: localhost\r\nX: a\r\n\tTransfer-Encoding: chunked\r\n\r\n",
    "Host: localhost\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n",
    "Host: localhost\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n",
    "Host: localhost\nContent-Length: 3\n\n",
    "Host: localhost\r\nX: a\0b\r\n\r\n",
    "Host: localhost\r\nX\0: a\r\n\r\n",
    "Host: localhost\r\n: a\r\n\r\n",
    "Host: localhost\r\nno colon\r\n\r\n",
    "Host: localhost\r\nX(Y): a\r\n\r\n",
    // Whose request is it?
    "X: no host\r\n\r\n",
    "Host: localhost\r\nHost: localhost\r\n\r\n",
    "Host: localhost\r\nHost: evil.test\r\n\r\n",
    "Host: localhost, evil.test\r\n\r\n",
    "Host: local host\r\n\r\n",
    "Host: user@localhost\r\n\r\n",
    "Host: localhost/path\r\n\r\n",
    "Host: localhost:port\r\n\r\n",
    // Taking fields away from the next reader.
    "Host: localhost\r\nConnection: Host\r\n\r\n",
    "Host: localhost\r\nConnection: Content-Length\r\nContent-Length: 3\r\n\r\n",
];

/// Request lines, with a good head after them.
const LINES: &[&str] = &[
    "GET  / HTTP/1.1\r\n",
    "GET\t/ HTTP/1.1\r\n",
    " GET / HTTP/1.1\r\n",
    "GET /a b HTTP/1.1\r\n",
    "GET / HTTP/1.1 \r\n",
    "GET / http/1.1\r\n",
    "GET / HTTP/1.1\n",
    "GET / HTTP/1.1\r\r\n",
    "GET /\r\n",
    "GET\r\n",
    "GET evil.test/ HTTP/1.1\r\n",
    "GET http://evil.test/ HTTP/1.1\r\n",
    "GET http://user@localhost/ HTTP/1.1\r\n",
    "GET /\0 HTTP/1.1\r\n",
    "GET /\u{7f} HTTP/1.1\r\n",
    "G(T / HTTP/1.1\r\n",
    "GET * HTTP/1.1\r\n",
];

/// Chunked bodies, after a good head.
const BODIES: &[&str] = &[
    "3\nabc\r\n0\r\n\r\n",
    "3\r\nabc\n0\r\n\r\n",
    "3\r\nabcd\r\n0\r\n\r\n",
    "3\r\nabc0\r\n\r\n",
    "0x3\r\nabc\r\n0\r\n\r\n",
    "+3\r\nabc\r\n0\r\n\r\n",
    "-3\r\nabc\r\n0\r\n\r\n",
    " 3\r\nabc\r\n0\r\n\r\n",
    "\r\n3\r\nabc\r\n0\r\n\r\n",
    "g\r\nabc\r\n0\r\n\r\n",
    "10000000000000003\r\nabc\r\n0\r\n\r\n",
    "3;\nabc\r\n0\r\n\r\n",
    "3;a\nb\r\nabc\r\n0\r\n\r\n",
    "3;a\rb\r\nabc\r\n0\r\n\r\n",
    "3;=x\r\nabc\r\n0\r\n\r\n",
    "3;a=\"b\r\nabc\r\n0\r\n\r\n",
    "3\r\nabc\r\n0\n\n",
    "3\r\nabc\r\n0\r\nX : y\r\n\r\n",
    "3\r\nabc\r\n0\r\nno colon\r\n\r\n",
    "3\r\nabc\r\n0\r\nX: a\rb\r\n\r\n",
    "3\r\nabc\r\n0\r\n X: folded\r\n\r\n",
];

fn refused(requests: impl IntoIterator<Item = String>, may_begin: bool) {
    let site = Site::new();
    let backend = Backend::answering(|_| ok(b"hello"));
    let gateway = before(&site, [backend.url()]).start();
    for request in requests {
        let mut wire = gateway.connect();
        // What follows would be answered by a gateway that lost its place.
        let _ = wire.send([request.as_bytes(), b"abc", SMUGGLED.as_bytes()].concat());
        match wire.response("POST") {
            Ok(response) => assert_eq!(response.status(), 400, "{request:?}: {response:?}"),
            // With a part of the body passed on, a cut is all that is left to say.
            Err(broken) => assert!(may_begin && broken.partial.start.is_empty(), "{request:?}: {broken:?}"),
        }
        let (rest, _) = wire.rest();
        assert!(rest.is_empty(), "{request:?} was answered twice: {}", String::from_utf8_lossy(&rest));
    }
    assert_eq!(gateway.get("/").text(), "hello");
    let reached: Vec<_> = backend.requests().into_iter().map(|request| request.start).collect();
    assert_eq!(reached, ["GET / HTTP/1.1"], "something reached the upstream whole");
    if !may_begin {
        assert_eq!(backend.connections(), 1, "something reached the upstream");
    }
}

#[test]
fn ambiguous_heads() {
    refused(HEADS.iter().map(|head| format!("POST / HTTP/1.1\r\n{head}")), false);
}

#[test]
fn ambiguous_request_lines() {
    refused(LINES.iter().map(|line| format!("{line}Host: {HOST}\r\n\r\n")), false);
}

#[test]
fn ambiguous_chunks() {
    let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
    refused(BODIES.iter().map(|body| format!("{head}{body}")), true);
}

/// HTTP/1.0 has no chunks (RFC 9112 §6.1).
#[test]
fn chunks_in_http_1_0() {
    refused([format!("POST / HTTP/1.0\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")], false);
}

/// The good twins of the above go through, so that it is not simply everything that is refused.
#[test]
fn unambiguous_requests_go_through() {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(&request.body));
    let gateway = before(&site, [backend.url()]).start();
    let chunked = "Transfer-Encoding: chunked\r\n";
    for (line, headers, body) in [
        ("POST / HTTP/1.1", "Content-Length: 3\r\n", "abc"),
        ("POST / HTTP/1.1", "content-length:3\r\n", "abc"),
        ("POST / HTTP/1.1", "Content-Length: \t3 \t\r\n", "abc"),
        ("POST / HTTP/1.1", "Content-Length: 003\r\n", "abc"),
        ("POST / HTTP/1.1", chunked, "3\r\nabc\r\n0\r\n\r\n"),
        ("POST / HTTP/1.1", "Transfer-Encoding: Chunked\r\n", "3;a=b;c=\"d;e\"\r\nabc\r\n0\r\n\r\n"),
        ("POST / HTTP/1.1", chunked, "0003\r\nabc\r\n000\r\nX: y\r\n\r\n"),
        ("POST http://localhost/ HTTP/1.1", "Content-Length: 3\r\n", "abc"),
        ("POST /?a=%00&b=%0d%0a HTTP/1.1", "Content-Length: 3\r\n", "abc"),
    ] {
        let request = format!("{line}\r\nHost: {HOST}\r\nConnection: close\r\n{headers}\r\n{body}");
        let response = gateway.exchange(&request).unwrap_or_else(|broken| panic!("{request:?}: {broken:?}"));
        assert_eq!((response.status(), response.text().as_str()), (200, "abc"), "{request:?}");
    }
}

/// What the upstream gets is written anew: nothing of a client's own framing is left in it.
#[test]
fn messages_are_written_anew() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        let Ok(Some(_)) = connection.wire.request_head() else { return };
        let mut raw = Vec::new();
        while let Ok(line) = connection.wire.line() {
            raw.push(line);
            if raw.len() >= 2 && raw[raw.len() - 2..] == ["0", ""] {
                break;
            }
        }
        connection.send(ok(raw.join("|").as_bytes()));
    });
    let gateway = before(&site, [backend.url()]).start();
    let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    let response = gateway.exchange(format!("{head}003;ext=\"secret\"\r\nabc\r\n0;more\r\n\r\n"));
    assert_eq!(response.expect("an answer comes").text(), "3|abc|0|");
}

/// A response split in two by a request that asked for it with a body in `in_chunks`' own words.
#[test]
fn a_body_that_looks_like_a_request_is_a_body() {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(&request.body));
    let gateway = before(&site, [backend.url()]).start();
    let mut wire = gateway.connect();
    for _ in 0..3 {
        let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
        wire.send([head.as_bytes(), &in_chunks(SMUGGLED.as_bytes(), 7)].concat()).expect("the gateway reads");
        assert_eq!(wire.response("POST").expect("an answer comes").text(), SMUGGLED);
    }
    wire.send(get("/last")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("an answer comes").status(), 200);
    assert!(backend.requests().iter().all(|request| request.target() != "/smuggled"));
}

/// A server that sends more than it was asked for, so that a read of the gateway ends just where the response does: what is
/// behind it belongs to nobody, and the next client must not get it.
#[test]
fn what_a_server_sends_beyond_its_response_is_nobodys() {
    let site = Site::new();
    let stolen = || ok(b"stolen");
    let backend = Backend::start(move |mut connection| {
        while let Some(request) = connection.request() {
            match request.target()[1..].parse::<usize>() {
                Ok(size) => {
                    // Head and body together have this size.
                    let body = (0..=size).rev().find(|body| ok(&vec![b'x'; *body]).len() == size).expect("it has room");
                    connection.send([ok(&vec![b'x'; body]), stolen()].concat());
                }
                Err(_) => connection.send(ok(b"own")),
            }
        }
    });
    let gateway = before(&site, [backend.url()]).plain().lanes(1).start();
    for size in [1, 2, 4, 8, 16, 32, 64].map(|kib| kib * 1024) {
        let first = gateway.plain_get(&format!("/{size}"), "");
        assert!(first.body.iter().all(|byte| *byte == b'x'), "{size}");
        assert_eq!(gateway.plain_get("/next", "").text(), "own", "{size}");
    }
}
