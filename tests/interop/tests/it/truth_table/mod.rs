//! How each version's end, reset, abort and silence maps to each other's: the table of `docs/reference/http-versions.md`, walked
//! for every version in front with every version behind. [`front`] has the clients, [`behind`] the servers; the rows are
//! the same for all.

mod behind;
mod front;

use sealane_interop::eventually;
use sealane_interop::gateway::before;
use sealane_interop::site::Site;
use std::sync::atomic::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    H1,
    H2,
    H3,
}

/// What a client comes away with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    /// 0: no response.
    status: u16,
    body: String,
    /// The response came to its end, and not to another.
    whole: bool,
    /// The trailer `x-sum`.
    trailer: Option<String>,
}

fn whole(status: u16, body: &str) -> Outcome {
    Outcome { status, body: body.to_owned(), whole: true, trailer: None }
}

/// Two lengths that differ.
const NONSENSE: &str =
    "502 Bad Gateway: the upstream server's response breaks the rules of HTTP: more than one Content-Length\n";

/// A row: what the client asks, and what it must come away with, whatever the versions.
fn rows() -> Vec<(&'static str, &'static str, Outcome)> {
    let cut = |body: &str| Outcome { whole: false, ..whole(200, body) };
    vec![
        ("GET", "/length", whole(200, "hello")),
        ("GET", "/unknown-length", whole(200, "hello")),
        ("GET", "/empty", whole(200, "")),
        ("GET", "/no-content", whole(204, "")),
        ("HEAD", "/length", whole(200, "")),
        ("HEAD", "/unknown-length", whole(200, "")),
        ("HEAD", "/no-content", whole(204, "")),
        ("HEAD", "/nonsense", whole(502, "")),
        ("GET", "/interim", whole(200, "hello")),
        ("GET", "/trailers", Outcome { trailer: Some("42".to_owned()), ..whole(200, "hello") }),
        ("POST", "/echo", whole(200, "request")),
        // Before the response's head: an error of the gateway's own.
        ("POST", "/abort-before-head", whole(502, "502 Bad Gateway\n")),
        ("GET", "/nonsense", whole(502, NONSENSE)),
        ("GET", "/silence", whole(504, "504 Gateway Timeout\n")),
        // After it: nothing may look whole.
        ("GET", "/abort-in-length", cut("hel")),
        ("GET", "/abort-in-unknown-length", cut("hel")),
        ("GET", "/silence-in-body", cut("hel")),
        // An answer before the request has come whole.
        ("POST", "/early-answer", whole(200, "early")),
        // The server says that it has done nothing about it, and nothing of a body was sent: it is asked again.
        ("POST", "/rejected-once", whole(200, "")),
        // The client stops in its body, or announces more than is allowed.
        ("POST", "/silence-in-request", whole(408, "408 Request Timeout\n")),
        ("POST", "/too-large", whole(413, "413 Content Too Large\n")),
    ]
}

fn walk(front: Version, back: Version) {
    let site = Site::new();
    let behind = behind::start(back, &site);
    let setup = before(&site, [&behind.url]).limits("idle_timeout = \"1s\"").limits("max_body_size = 1000");
    let setup = match front {
        Version::H1 | Version::H2 => setup.plain().listener("h2c = true"),
        Version::H3 => setup.listener("http3 = true"),
    };
    let setup = setup.upstream("first_byte_timeout = \"1s\"").upstream("idle_timeout = \"1s\"");
    let gateway = match back {
        Version::H1 => setup,
        Version::H2 => setup.upstream("http = \"2\""),
        Version::H3 => setup.upstream("http = \"3\"").upstream_tls(&format!("ca = {:?}", site.ca)),
    }
    .start();
    for (method, path, expected) in rows() {
        // HTTP/1.1 has no word for it.
        if path == "/rejected-once" && back == Version::H1 {
            continue;
        }
        // Over HTTP/2 it is the library that finds it, and resets the stream.
        let unexplained = method == "GET" && path == "/nonsense" && back == Version::H2;
        let expected = if unexplained { whole(502, "502 Bad Gateway\n") } else { expected };
        let outcome = front::ask(front, &gateway, method, path);
        // What had not left when the response was cut off may be lost with it.
        let cut_shorter = !expected.whole && expected.body.starts_with(&outcome.body);
        let expected = if cut_shorter { Outcome { body: outcome.body.clone(), ..expected } } else { expected };
        // Over QUIC that may be all of it: a reset overtakes the head (RFC 9000 §3.2).
        let nothing = cut_shorter && front == Version::H3 && outcome.status == 0;
        let expected = if nothing { Outcome { status: 0, ..expected } } else { expected };
        assert_eq!(outcome, expected, "{method} {path} from {front:?} to {back:?}\n{}", gateway.server.log());
    }
    let before = behind.aborted.load(Ordering::SeqCst);
    front::leave(front, &gateway);
    let told = eventually(|| behind.aborted.load(Ordering::SeqCst) > before);
    assert!(told, "a client that leaves ({front:?}) is not told to the server ({back:?})");
    let over_h3 = gateway.metric("sealane_http3_upstream_connections_total").unwrap_or(0.0) > 0.0;
    assert_eq!(over_h3, back == Version::H3, "another version than was meant");
}

#[test]
fn h1_to_h1() {
    walk(Version::H1, Version::H1);
}

#[test]
fn h1_to_h2() {
    walk(Version::H1, Version::H2);
}

#[test]
fn h1_to_h3() {
    walk(Version::H1, Version::H3);
}

#[test]
fn h2_to_h1() {
    walk(Version::H2, Version::H1);
}

#[test]
fn h2_to_h2() {
    walk(Version::H2, Version::H2);
}

#[test]
fn h2_to_h3() {
    walk(Version::H2, Version::H3);
}

#[test]
fn h3_to_h1() {
    walk(Version::H3, Version::H1);
}

#[test]
fn h3_to_h2() {
    walk(Version::H3, Version::H2);
}

#[test]
fn h3_to_h3() {
    walk(Version::H3, Version::H3);
}
