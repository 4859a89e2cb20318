//! `total_timeout` and `min_body_rate` of routes, over every version of HTTP: a request ends after its time, whatever it waits for.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::http::Wire;
use sealane_interop::ports;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, VERSIONS};
use sealane_interop::{eventually, h2, h3, websocket_accept};
use std::io::Read;
use std::net::SocketAddr;

fn gateway(site: &Site, app: &str, rest: &str) -> (Gateway, SocketAddr) {
    let plain = ports::free();
    let text = format!(
        r#"
lanes = 1
[admin]
listen = "@ADMIN@"
[log]
access = {log:?}
format = "json"
[limits]
idle_timeout = "1h"
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
upstream = "app"
{rest}
[[upstream]]
name = "app"
servers = {app:?}
idle_timeout = "1h"
first_byte_timeout = "1h"
tries = 3
"#,
        log = site.path().join("access.log"),
        cert = site.ecdsa.cert,
        key = site.ecdsa.key,
    );
    (configured(site, &text), plain)
}

fn logged(site: &Site, text: &str) -> usize {
    let log = std::fs::read_to_string(site.path().join("access.log")).unwrap_or_default();
    log.lines().filter(|line| line.contains(text)).count()
}

/// Never answers; says what has come.
fn silent() -> Backend {
    Backend::start(|mut connection| while connection.request().is_some() {})
}

#[test]
fn a_request_ends_after_its_time_whatever_it_waits_for() {
    let site = Site::new();
    let app = silent();
    let (gateway, plain) = gateway(&site, &app.url(), "total_timeout = \"1s\"");
    let mut every = Everywhere::new(&gateway, plain);
    // For the head of the response: no other try, and no blame for the server.
    assert_eq!(every.get("/").map(|(status, _)| status), [504; 3]);
    assert_eq!(app.requests().len(), 3);
    assert_eq!(gateway.metric("sealane_upstream_timeouts_total"), Some(0.0));
    assert_eq!(gateway.metric("sealane_total_timeouts_total"), Some(3.0));
    // For the body of the request.
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 10\r\n\r\nsome")).expect("it is read");
    assert_eq!(wire.response("POST").expect("it is answered").status(), 408);
    h2::run(async {
        let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
        let (response, mut send) =
            client.send_request(h2::request(&http::Method::POST, "/"), false).expect("it can be sent");
        let _ = send.send_data(bytes::Bytes::from_static(b"some"), false);
        assert_eq!(h2::answer(response).await.status, 408);
    });
    let mut third = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
    let mut bytes = h3::headers("POST", "/", &[], sealane_http::BodyLength::Chunked);
    bytes.extend(h3::data(b"some"));
    let id = third.open(&bytes, false);
    assert!(third.until(|c| c.so_far(id).is_ok_and(|r| r.status != 0)));
    assert_eq!(third.so_far(id).expect("a head").status, 408);
    assert_eq!(gateway.metric("sealane_total_timeouts_total"), Some(6.0));
    assert!(eventually(|| logged(&site, "\"end\":\"total_timeout\"") == 6), "{}", logged(&site, "end"));
}

/// A response that trickles is cut off, in a way that shows that it is not whole.
#[test]
fn a_response_that_is_under_way_is_cut_off() {
    let site = Site::new();
    let app = Backend::start(|mut connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
            // More comes, always in time, until the gateway closes the connection.
            while connection.wire.send("1\r\nx\r\n").is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    });
    let rest = "total_timeout = \"2s\"\n[[host.route]]\npath = \"/none\"\nupstream = \"app\"\ntotal_timeout = \"0s\"\n";
    let (gateway, plain) = gateway(&site, &app.url(), rest);
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert!(wire.response("GET").is_err(), "it is cut off");
    h2::run(async {
        let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
        let (response, _) = client.send_request(h2::request(&http::Method::GET, "/"), true).expect("it can be sent");
        let answer = h2::answer(response).await;
        assert_eq!(answer.status, 200);
        assert!(matches!(answer.end, h2::End::Reset(_)), "{:?}", answer.end);
    });
    let mut third = h3::Client::connect(gateway.address, &h3::over_quic(gateway.config(), false));
    let id = third.open(&h3::headers("GET", "/", &[], sealane_http::BodyLength::None), true);
    assert!(third.response(id).is_err(), "it is cut off");
    assert_eq!(gateway.metric("sealane_total_timeouts_total"), Some(3.0));
    // Where the route says so, it goes on.
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!("GET /none HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    let mut some = Vec::new();
    wire.exactly(6 * 150, &mut some).expect("it comes for longer than two seconds");
    assert_eq!(gateway.metric("sealane_total_timeouts_total"), Some(3.0));
}

#[test]
fn an_upgraded_connection_ends_after_its_time() {
    let site = Site::new();
    let app = Backend::start(|mut connection| {
        let Ok(Some(request)) = connection.wire.request_head() else { return };
        let accept = websocket_accept(request.header("sec-websocket-key").unwrap_or_default());
        connection.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        ));
        let mut buffer = vec![0; 50_000];
        while let Ok(n @ 1..) = connection.wire.stream.read(&mut buffer) {
            connection.send(&buffer[..n]);
        }
    });
    let (gateway, plain) = gateway(&site, &app.url(), "total_timeout = \"2s\"");
    let mut wire = Wire::new(client::tcp(plain));
    wire.send(format!(
        "GET /ws HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ))
    .expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("an answer").status(), 101);
    // However busy it is.
    let (mut rounds, mut echoed) = (0, Vec::new());
    while wire.send(b"ping").is_ok() && wire.exactly(4, &mut echoed).is_ok() {
        rounds += 1;
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(rounds < 20_000, "it never ends");
    }
    assert_eq!(gateway.metric("sealane_total_timeouts_total"), Some(1.0));
    assert!(eventually(|| logged(&site, "\"end\":\"total_timeout\"") == 1));
}

/// A request within its time is not touched, and the next on its connection has its own.
#[test]
fn each_request_has_its_own_time() {
    let site = Site::new();
    let app = Backend::answering(|_| ok(b"hello"));
    let (gateway, plain) = gateway(&site, &app.url(), "total_timeout = \"30s\"");
    let mut every = Everywhere::new(&gateway, plain);
    for _ in 0..3 {
        for (answer, version) in every.answers(Asked { target: "/", ..Asked::default() }).into_iter().zip(VERSIONS) {
            assert_eq!((answer.status, answer.body.as_str()), (200, "hello"), "{version}");
        }
    }
    assert_eq!(gateway.metric("sealane_total_timeouts_total"), Some(0.0));
}

/// The rate of a route stands in the place of those of the client and of the upstream.
#[test]
fn a_route_has_its_own_lowest_rate() {
    let site = Site::new();
    let app = Backend::start(|mut connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
            // Not silent, but slow: some ten bytes per second.
            while connection.wire.send("x").is_ok() {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    });
    let rest = "[[host.route]]\npath = \"/fast\"\nupstream = \"app\"\nmin_body_rate = \"1KiB\"\n";
    let (gateway, plain) = {
        let plain = ports::free();
        let text = format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\nidle_timeout = \"3s\"\nmin_body_rate = 0\n\
             [[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\ncertificates = {{ cert = {:?}, key = {:?} }}\n\
             [[listener]]\naddress = \"{plain}\"\nh2c = true\n[[host]]\nnames = [\"*\"]\nupstream = \"app\"\n{rest}\
             [[upstream]]\nname = \"app\"\nservers = {:?}\nidle_timeout = \"3s\"\n",
            site.ecdsa.cert,
            site.ecdsa.key,
            app.url()
        );
        (configured(&site, &text), plain)
    };
    let mut slow = Wire::new(client::tcp(plain));
    slow.send(format!("GET /slow HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    let mut fast = Wire::new(client::tcp(plain));
    fast.send(format!("GET /fast HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
    assert!(fast.response("GET").is_err(), "it is cut off");
    assert_eq!(gateway.metric_with("sealane_slow_bodies_total", "party=\"upstream\""), Some(1.0));
    // Elsewhere the rates of the others hold, which are none.
    let mut some = Vec::new();
    slow.exactly(100, &mut some).expect("it comes");
    assert_eq!(gateway.metric_with("sealane_slow_bodies_total", "party=\"upstream\""), Some(1.0));
}
