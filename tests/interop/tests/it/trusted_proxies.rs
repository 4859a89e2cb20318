//! Whose word about the client is taken, and who the client is by it: for upstreams, limits, balancing and the log.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, before, configured};
use sealane_interop::http::Wire;
use sealane_interop::ports;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, VERSIONS};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

fn gateway(site: &Site, listener: &str, rest: &str) -> (Gateway, SocketAddr) {
    let plain = ports::free();
    let text = format!(
        r#"
lanes = 1
[admin]
listen = "@ADMIN@"
[log]
access = {log:?}
[[listener]]
address = "@ADDRESS@"
http3 = true
{listener}
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
[[listener]]
address = "{plain}"
h2c = true
{listener}
{rest}"#,
        log = site.path().join("access.log"),
        cert = site.ecdsa.cert,
        key = site.ecdsa.key,
    );
    (configured(site, &text), plain)
}

fn to(backend: &Backend) -> String {
    format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", backend.url())
}

const CHAIN: &[(&str, &str)] = &[
    ("x-forwarded-for", "6.6.6.6, 203.0.113.9"),
    ("x-forwarded-for", "10.0.0.2"),
    ("forwarded", "for=7.7.7.7"),
    ("x-real-ip", "6.6.6.6"),
    ("x-forwarded-proto", "https"),
];

#[test]
fn the_client_is_the_last_who_is_no_trusted_proxy() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, "trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]", &to(&backend));
    let mut every = Everywhere::new(&gateway, plain);
    every.ask(Asked { target: "/", fields: CHAIN, ..Asked::default() });
    for (request, version) in backend.requests().iter().zip(VERSIONS) {
        assert_eq!(request.header("x-forwarded-for"), Some("203.0.113.9, 10.0.0.2, 127.0.0.1"), "{version}");
        assert_eq!(request.header("x-real-ip"), Some("203.0.113.9"), "{version}");
        assert_eq!(request.header("x-forwarded-proto"), Some("https"), "{version}");
        let forwarded = request.header("forwarded").unwrap_or_default();
        assert!(forwarded.starts_with("for=203.0.113.9, for=10.0.0.2, for=127.0.0.1;"), "{version}: {forwarded}");
    }
    let log = || std::fs::read_to_string(site.path().join("access.log")).unwrap_or_default();
    assert!(eventually(|| log().lines().filter(|line| line.starts_with("203.0.113.9 - - ")).count() == 3), "{}", log());
}

#[test]
fn an_untrusted_peer_is_the_client_whatever_it_says() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, "trusted_proxies = [\"10.0.0.0/8\"]", &to(&backend));
    let mut every = Everywhere::new(&gateway, plain);
    every.ask(Asked { target: "/", fields: CHAIN, ..Asked::default() });
    for (request, version) in backend.requests().iter().zip(VERSIONS) {
        assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"), "{version}");
        assert_eq!(request.header("x-real-ip"), None, "{version}");
        assert!(request.header("forwarded").is_some_and(|f| f.starts_with("for=127.0.0.1;")), "{version}");
    }
}

#[test]
fn what_cannot_be_read_ends_the_chain() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, "trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]", &to(&backend));
    let mut every = Everywhere::new(&gateway, plain);
    for (told, wanted) in [
        ("203.0.113.9, unknown", "127.0.0.1"),
        ("203.0.113.9, unknown, 10.0.0.2", "10.0.0.2, 127.0.0.1"),
        ("203.0.113.9:1234, [2001:db8::1]:80", "2001:db8::1, 127.0.0.1"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3, 10.0.0.2, 127.0.0.1"),
        (",", "127.0.0.1"),
    ] {
        every.ask(Asked { target: "/", fields: &[("x-forwarded-for", told)], ..Asked::default() });
        let seen = backend.requests();
        for (request, version) in seen[seen.len() - 3..].iter().zip(VERSIONS) {
            assert_eq!(request.header("x-forwarded-for"), Some(wanted), "{told} over {version}");
        }
    }
}

#[test]
fn forwarded_can_be_what_proxies_write() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listener = "trusted_proxies = [\"127.0.0.1\", \"2001:db8::/32\"]\nclient_address_header = \"Forwarded\"";
    let (gateway, plain) = gateway(&site, listener, &to(&backend));
    let mut every = Everywhere::new(&gateway, plain);
    let told = "for=6.6.6.6, for=203.0.113.9;proto=https, For=\"[2001:db8::1]:4711\";by=\"a,b\"";
    let fields = [("x-forwarded-for", "7.7.7.7"), ("forwarded", told)];
    every.ask(Asked { target: "/", fields: &fields, ..Asked::default() });
    for (request, version) in backend.requests().iter().zip(VERSIONS) {
        assert_eq!(request.header("x-forwarded-for"), Some("203.0.113.9, 2001:db8::1, 127.0.0.1"), "{version}");
        let forwarded = request.header("forwarded").unwrap_or_default();
        let wanted = "for=203.0.113.9;proto=https, For=\"[2001:db8::1]:4711\";by=\"a,b\", for=127.0.0.1;";
        assert!(forwarded.starts_with(wanted), "{version}: {forwarded}");
    }
}

/// A client hid behind the proxy's own address.
#[test]
fn a_client_cannot_change_what_the_proxy_appends_to_forwarded() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listener = "trusted_proxies = \"127.0.0.1\"\nclient_address_header = \"Forwarded\"";
    let (gateway, plain) = gateway(&site, listener, &to(&backend));
    let mut every = Everywhere::new(&gateway, plain);
    let appended = [
        ("for=5.5.5.5", "5.5.5.5"),
        (r#"for="[2001:db8::5]:80";host="a,b""#, "2001:db8::5"),
        (r#"for=5.5.5.5;ext="a\", for=6.6.6.6;x=\"b""#, "5.5.5.5"),
    ];
    for written in [r#"for="\"#, r"x=\", r#"for="a\"b""#, r#"for=""#, r#"for="6.6.6.6"#] {
        for (own, client) in appended {
            let told = format!("{written}, {own}");
            every.ask(Asked { target: "/", fields: &[("forwarded", &told)], ..Asked::default() });
            let seen = backend.requests();
            for (request, version) in seen[seen.len() - 3..].iter().zip(VERSIONS) {
                let wanted = format!("{client}, 127.0.0.1");
                assert_eq!(request.header("x-forwarded-for"), Some(&*wanted), "{told} over {version}");
                let forwarded = request.header("forwarded").unwrap_or_default();
                assert!(forwarded.starts_with(&format!("{own}, for=127.0.0.1;")), "{version}: {forwarded}");
            }
        }
    }
    let log = || std::fs::read_to_string(site.path().join("access.log")).unwrap_or_default();
    assert!(eventually(|| log().lines().filter(|line| line.starts_with("5.5.5.5 - - ")).count() == 30), "{}", log());
    // An element that the proxy itself writes wrong names nobody.
    for own in [r#"for=5.5.5.5;host="a"b""#, r#"for=5.5.5.5;host="a"#, r"for=5.5.5.5;host=a\b"] {
        every.ask(Asked { target: "/", fields: &[("forwarded", own)], ..Asked::default() });
        assert_eq!(backend.last().header("x-forwarded-for"), Some("127.0.0.1"), "{own}");
    }
}

#[test]
fn the_scheme_and_the_host_come_from_the_same_header_as_the_client() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listener = "trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]\nclient_address_header = \"Forwarded\"";
    let (gateway, plain) = gateway(&site, listener, &to(&backend));
    let mut every = Everywhere::new(&gateway, plain);
    let own = ["http", "http", "https"];
    for (told, proto, host) in [
        ("for=1.2.3.4;proto=https", Some("https"), None),
        (
            "for=6.6.6.6;proto=gopher;host=evil.test, for=1.2.3.4;proto=HTTP;host=\"a.example:8443\"",
            Some("http"),
            Some("a.example:8443"),
        ),
        // The first trusted proxy's word, and if it says nothing the next one's.
        ("for=1.2.3.4;proto=https, for=10.0.0.2;proto=http;host=b.example", Some("https"), Some("b.example")),
        ("for=_hidden;proto=https", Some("https"), None),
        ("proto=https;host=evil.test, for=1.2.3.4", None, None),
        ("for=1.2.3.4;proto=gopher;host=\"a/b\"", None, None),
        ("for=1.2.3.4;proto=https;host=\"a\"b\"", None, None),
    ] {
        let forged = [
            ("x-forwarded-proto", "gopher"),
            ("x-forwarded-host", "evil.test"),
            ("x-forwarded-port", "666"),
            ("x-forwarded", "for=6.6.6.6"),
            ("forwarded", told),
        ];
        every.ask(Asked { target: "/", fields: &forged, ..Asked::default() });
        let seen = backend.requests();
        for (at, request) in seen[seen.len() - 3..].iter().enumerate() {
            let version = VERSIONS[at];
            let all = |name: &str| request.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).count();
            assert_eq!(request.header("x-forwarded-proto"), Some(proto.unwrap_or(own[at])), "{told} over {version}");
            assert_eq!(request.header("x-forwarded-host"), Some(host.unwrap_or(HOST)), "{told} over {version}");
            assert_eq!((all("x-forwarded-proto"), all("x-forwarded-host")), (1, 1), "{told} over {version}");
            assert_eq!((all("x-forwarded-port"), all("x-forwarded")), (0, 0), "{told} over {version}");
        }
    }
}

#[test]
fn limits_and_balancing_go_by_the_client() {
    let site = Site::new();
    let backends = [Backend::saying("one"), Backend::saying("two")];
    let rest = format!(
        r#"
[[rate_limit]]
name = "client"
rate = "1/h"
burst = 3
[[upstream]]
name = "app"
servers = ["{}", "{}"]
balance = "hash"
[[host]]
names = ["*"]
upstream = "app"
[[host.route]]
path = "/limited"
upstream = "app"
rate_limit = "client"
"#,
        backends[0].url(),
        backends[1].url(),
    );
    let (gateway, plain) = gateway(&site, "trusted_proxies = \"127.0.0.1\"", &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let mut ask = |target: &str, told: &str| {
        let fields = [("x-forwarded-for", told)];
        every.ask(Asked { target, fields: &fields, ..Asked::default() })
    };
    // What a client puts before its own address, as the proxy saw it, gets it no other limit.
    for (forged, wanted) in [("198.51.100.1", 200), ("198.51.100.2", 429)] {
        let answers = ask("/limited", &format!("{forged}, 203.0.113.1"));
        assert_eq!(answers.map(|(status, _)| status), [wanted; 3], "{forged}");
    }
    assert_eq!(ask("/limited", "203.0.113.2").map(|(status, _)| status), [200; 3]);
    let mut chosen = std::collections::BTreeSet::new();
    for last in 1..40 {
        let [first, second, third] = ask("/", &format!("203.0.113.{last}")).map(|(_, body)| body);
        assert!(first == second && second == third, "one client, one server");
        chosen.insert(first);
    }
    assert_eq!(chosen.len(), 2, "clients behind one proxy go to different servers");
}

/// The upstream's idea of the client, for a connection that begins with `header`.
fn seen(gateway: &Gateway, backend: &Backend, header: &[u8], lines: &str) -> Result<String, String> {
    let mut socket = client::tcp(gateway.address);
    socket.write_all(header).map_err(|error| error.to_string())?;
    let mut wire = Wire::new(socket);
    let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{lines}\r\n");
    wire.send(request).map_err(|error| error.to_string())?;
    wire.response("GET").map_err(|broken| broken.error.to_string())?;
    Ok(backend.last().header("x-forwarded-for").unwrap_or_default().to_owned())
}

#[test]
fn a_proxy_header_is_taken_from_trusted_proxies_alone() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let header = b"PROXY TCP4 203.0.113.7 192.0.2.1 1234 443\r\n";
    let lines = "trusted_proxies = \"10.0.0.0/8\"\nproxy_protocol = true";
    let gateway = before(&site, [backend.url()]).plain().listener(lines).start();
    let before_us = gateway.metric("sealane_untrusted_proxies_total").unwrap_or_default();
    assert!(seen(&gateway, &backend, header, "").is_err());
    assert!(seen(&gateway, &backend, b"", "").is_err());
    assert_eq!(gateway.metric("sealane_untrusted_proxies_total"), Some(before_us + 2.0));
    assert!(backend.requests().is_empty());

    let lines = "trusted_proxies = [\"127.0.0.0/8\", \"203.0.113.8\"]\nproxy_protocol = true";
    let gateway = before(&site, [backend.url()]).plain().listener(lines).start();
    assert_eq!(seen(&gateway, &backend, header, ""), Ok("203.0.113.7".into()));
    // Whom the header names is not trusted because the one who sent it is.
    let told = "X-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n";
    assert_eq!(seen(&gateway, &backend, header, told), Ok("203.0.113.7".into()));
    assert_eq!(backend.last().header("x-real-ip"), None);
    // Unless it is a trusted proxy itself: a CDN behind a balancer.
    let header = b"PROXY TCP4 203.0.113.8 192.0.2.1 1234 443\r\n";
    assert_eq!(seen(&gateway, &backend, header, "X-Forwarded-For: 6.6.6.6\r\n"), Ok("6.6.6.6, 203.0.113.8".into()));
}

#[test]
fn a_list_without_trust_forwarded_is_for_the_proxy_protocol() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, "trusted_proxies = \"127.0.0.1\"\ntrust_forwarded = false", &to(&backend));
    let mut every = Everywhere::new(&gateway, plain);
    every.ask(Asked { target: "/", fields: CHAIN, ..Asked::default() });
    for (request, version) in backend.requests().iter().zip(VERSIONS) {
        assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"), "{version}");
    }
}

#[test]
fn an_upstreams_proxy_header_names_the_client() {
    let site = Site::new();
    let headers = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&headers);
    let backend = Backend::start(move |mut connection| {
        let Ok(line) = connection.wire.line() else { return };
        log.lock().expect("nobody panics with it").push(line);
        while connection.request().is_some() {
            connection.send(ok(b"hello"));
        }
    });
    let rest = format!(
        "[[upstream]]\nname = \"app\"\nservers = [{:?}]\nproxy_protocol = \"v1\"\n[[host]]\nnames = [\"*\"]\nupstream = \"app\"\n",
        backend.url()
    );
    let (gateway, plain) = gateway(&site, "trusted_proxies = \"127.0.0.1\"", &rest);
    let mut every = Everywhere::new(&gateway, plain);
    let asked = Asked { target: "/", fields: &[("x-forwarded-for", "203.0.113.9")], ..Asked::default() };
    assert_eq!(every.ask(asked).map(|(status, _)| status), [200; 3]);
    for line in headers.lock().expect("nobody panics with it").iter() {
        assert!(line.starts_with("PROXY TCP4 203.0.113.9 127.0.0.1 0 "), "{line}");
    }
}
