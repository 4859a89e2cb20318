//! What the upstream is told about the client, and what it is not.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::before;
use sealane_interop::site::{HOST, Site};

const SPOOFED: &str = "X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: gopher\r\nX-Forwarded-Host: evil.test\r\n\
                       Forwarded: for=203.0.113.9;proto=gopher;host=evil.test\r\n";

fn ask(headers: &str) -> String {
    format!("GET /path?query HTTP/1.1\r\nHost: {HOST}\r\n{headers}Connection: close\r\n\r\n")
}

#[test]
fn the_client_is_named() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    assert_eq!(gateway.exchange(ask("")).expect("an answer comes").status(), 200);
    let seen = backend.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"), "{seen:?}");
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
    assert_eq!(seen.header("x-forwarded-host"), Some(HOST));
    let forwarded = seen.header("forwarded").unwrap_or_default().to_ascii_lowercase();
    assert!(forwarded.contains("for=127.0.0.1") && forwarded.contains("proto=https"), "{forwarded}");
    assert_eq!((seen.start.as_str(), seen.header("host")), ("GET /path?query HTTP/1.1", Some(HOST)));
}

#[test]
fn a_plain_listener_says_http() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).plain().start();
    let mut wire = sealane_interop::http::Wire::new(sealane_interop::client::tcp(gateway.address));
    wire.send(ask("")).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("an answer comes").text(), "hello");
    assert_eq!(backend.last().header("x-forwarded-proto"), Some("http"));
}

#[test]
fn spoofed_values_are_replaced() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).start();
    assert_eq!(gateway.exchange(ask(SPOOFED)).expect("an answer comes").status(), 200);
    let seen = backend.last();
    let text = format!("{:?}", seen.headers);
    for spoofed in ["203.0.113.9", "gopher", "evil.test"] {
        assert!(!text.contains(spoofed), "{text}");
    }
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
}

#[test]
fn values_are_believed_where_it_says_so() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).listener("trust_forwarded = true").start();
    assert_eq!(gateway.exchange(ask("X-Forwarded-For: 203.0.113.9\r\n")).expect("an answer comes").status(), 200);
    let chain = backend.last().all("x-forwarded-for").join(", ");
    assert_eq!(chain, "203.0.113.9, 127.0.0.1");
}

#[test]
fn hop_by_hop_headers_stay_here() {
    let site = Site::new();
    let answer = "HTTP/1.1 200 OK\r\nConnection: X-Back\r\nX-Back: 1\r\nKeep-Alive: timeout=5\r\nX-Kept: 1\r\n\
                  Proxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n";
    let backend = Backend::answering(move |_| answer.into());
    let gateway = before(&site, [backend.url()]).start();
    let headers = "Connection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: timeout=9\r\nProxy-Connection: keep-alive\r\nTE: gzip\r\n\
                   X-End: 1\r\n";
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{headers}\r\n");
    let response = gateway.exchange(request).expect("an answer comes");
    let seen = backend.last();
    for name in ["x-hop", "keep-alive", "proxy-connection"] {
        assert!(seen.all(name).is_empty(), "{name} went through: {seen:?}");
    }
    assert!(!seen.all("te").contains(&"gzip"), "{seen:?}");
    assert_eq!(seen.header("x-end"), Some("1"));
    for name in ["x-back", "keep-alive"] {
        assert!(response.all(name).is_empty(), "{name} came back: {response:?}");
    }
    assert_eq!(response.header("x-kept"), Some("1"));
}
