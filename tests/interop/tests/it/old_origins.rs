//! Origins whose answers break the rules of HTTP/1.1: refused with a reason, and accepted where `tolerate` says so.

use sealane_interop::backend::Backend;
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::http::Message;
use sealane_interop::ports;
use sealane_interop::site::Site;
use sealane_interop::versions::{Everywhere, VERSIONS};
use std::net::SocketAddr;

fn gateway(site: &Site, backend: &Backend, upstream: &str) -> (Gateway, SocketAddr) {
    let plain = ports::free();
    let text = format!(
        r#"
[admin]
listen = "@ADMIN@"
[log]
access = {log:?}
format = "json"
[[listener]]
address = "@ADDRESS@"
http3 = true
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
[[listener]]
address = "{plain}"
h2c = true
[[host]]
names = ["*"]
upstream = "old"
[[upstream]]
name = "old"
servers = {url:?}
eject_after = 0
{upstream}
"#,
        log = site.path().join("access.log"),
        cert = site.ecdsa.cert,
        key = site.ecdsa.key,
        url = backend.url(),
    );
    (configured(site, &text), plain)
}

fn old() -> Backend {
    Backend::answering(|request: &Message| {
        match request.target() {
            "/twice" => "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nold",
            "/list" => "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nold",
            "/differ" => "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nold!",
            "/both" => {
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nold\r\n0\r\n\r\n"
            }
            "/lf" => "HTTP/1.1 200 OK\nContent-Type: text/plain\nContent-Length: 3\n\nold",
            "/mixed" => "HTTP/1.1 200 OK\r\nContent-Length: 3\n\r\nold",
            "/cr" => "HTTP/1.1 200 OK\rContent-Length: 3\r\n\r\nold",
            "/600" => "HTTP/1.1 600 Odd\r\nContent-Length: 3\r\n\r\nold",
            "/999" => "HTTP/1.1 999 Request denied\r\nContent-Length: 3\r\n\r\nold",
            "/099" => "HTTP/1.1 099 Odd\r\nContent-Length: 3\r\n\r\nold",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew",
        }
        .as_bytes()
        .to_vec()
    })
}

#[test]
fn what_breaks_the_rules_is_refused_with_the_reason() {
    let site = Site::new();
    let origin = old();
    let (gateway, plain) = gateway(&site, &origin, "");
    let mut every = Everywhere::new(&gateway, plain);
    for (path, why) in [
        ("/twice", "more than one Content-Length"),
        ("/list", "Content-Length is not one decimal number"),
        ("/lf", "an LF without a CR before it"),
        ("/999", "the status is none of 100 to 599"),
    ] {
        for ((status, body), version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(status, 502, "{path} over {version}");
            assert!(body.contains(why), "{path} over {version}: {body}");
        }
        let log = || std::fs::read_to_string(site.path().join("access.log")).unwrap_or_default();
        let logged = |line: &str| line.contains(path) && line.contains(why);
        assert!(eventually(|| log().lines().filter(|line| logged(line)).count() == 3), "{path}: {}", log());
    }
    // The hint for who can do something about it is in the log.
    let log = std::fs::read_to_string(site.path().join("access.log")).unwrap_or_default();
    assert!(log.contains("bare_lf") && log.contains("tolerate"), "{log}");
    assert!(eventually(|| gateway.server.log().contains("fails requests: its response breaks the rules of HTTP")));
    assert_eq!(every.get("/").map(|(status, _)| status), [200; 3]);
}

#[test]
fn what_is_tolerated_is_passed_on_as_it_should_have_been() {
    let site = Site::new();
    let origin = old();
    let upstream = "tolerate = [\"equal_content_lengths\", \"bare_lf\", \"any_status\"]";
    let (gateway, plain) = gateway(&site, &origin, upstream);
    let mut every = Everywhere::new(&gateway, plain);
    for path in ["/twice", "/list", "/lf", "/mixed"] {
        assert_eq!(every.get(path), [200; 3].map(|status| (status, "old".to_owned())), "{path}");
    }
    // The client of the third version is as strict as the gateway.
    for (path, wanted) in [("/600", 600), ("/999", 999)] {
        assert_eq!(every.first_two(path), [wanted; 2].map(|status| (status, "old".to_owned())), "{path}");
    }
    // What has no one meaning is refused all the same.
    for path in ["/differ", "/both", "/cr", "/099"] {
        assert_eq!(every.get(path).map(|(status, _)| status), [502; 3], "{path}");
    }
}

#[test]
fn each_is_tolerated_by_its_own_name() {
    let site = Site::new();
    let origin = old();
    for (name, wanted) in
        [("equal_content_lengths", [200, 502, 502]), ("bare_lf", [502, 200, 502]), ("any_status", [502, 502, 999])]
    {
        let (gateway, plain) = gateway(&site, &origin, &format!("tolerate = {name:?}"));
        let every = Everywhere::new(&gateway, plain);
        let got = ["/twice", "/lf", "/999"].map(|path| every.first_two(path)[0].0);
        assert_eq!(got, wanted, "{name}");
    }
}

/// What is no error of syntax has a reason, too.
#[test]
fn answers_that_nobody_asked_for_are_refused_with_the_reason() {
    let site = Site::new();
    let origin = Backend::answering(|request: &Message| match request.target() {
        "/interim" => "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(17).into_bytes(),
        _ => b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n".to_vec(),
    });
    let (gateway, plain) = gateway(&site, &origin, "");
    let mut every = Everywhere::new(&gateway, plain);
    for (path, why) in [
        ("/interim", "sent more than 16 interim responses (1xx) to one request"),
        ("/switch", "switched protocols (101), which the request had not asked for"),
    ] {
        for ((status, body), version) in every.get(path).into_iter().zip(VERSIONS) {
            assert_eq!(
                (status, body),
                (502, format!("502 Bad Gateway: the upstream server {why}\n")),
                "{path} over {version}"
            );
        }
        let log = || std::fs::read_to_string(site.path().join("access.log")).unwrap_or_default();
        let logged = |line: &str| line.contains(path) && line.contains(&format!("\"error\":\"it {why}\""));
        assert!(eventually(|| log().lines().filter(|line| logged(line)).count() == 3), "{path}: {}", log());
    }
}
