//! The histograms of durations: who is counted where, over reloads and beyond the bound, and that they tell slow from fast.

use crate::operating::{Operated, order};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::gateway::{Gateway, before, configured};
use sealane_interop::http::Message;
use sealane_interop::peers::curl;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, h3, need, ports};
use std::time::Duration;

/// The value of the one sample whose series has this name and these labels.
fn value(metrics: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let is_it = |line: &&str| line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|l| line.contains(l));
    let mut found = metrics.lines().filter(is_it);
    let value = found.next()?.rsplit(' ').next()?.parse().ok();
    assert!(found.next().is_none(), "{name} {labels:?} is not one series:\n{metrics}");
    value
}

/// Waits until the lane has finished as many requests as the series is to have.
#[track_caller]
fn counted(gateway: &Gateway, name: &str, labels: &[&str], wanted: f64) {
    let read = || value(&gateway.metrics(), &format!("{name}_count"), labels);
    assert!(eventually(|| read() == Some(wanted)), "{name} {labels:?}: {:?}, not {wanted}", read());
}

fn get(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

const DURATION: &str = "sealane_request_duration_seconds";
const FIRST_BYTE: &str = "sealane_request_first_byte_seconds";

#[test]
fn durations_are_told_apart_by_what_the_configuration_names() {
    need!("curl");
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let gateway = configured(
        &site,
        &format!(
            r#"
lanes = 2
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
[[upstream]]
name = "app"
servers = ["{url}"]
[[host]]
names = ["localhost", "127.0.0.1"]
upstream = "app"
[[host.route]]
name = "the api"
path = "/api/"
upstream = "app"
[[host.route]]
exact = "/gone"
methods = ["GET"]
respond = {{ status = 410 }}
[[host]]
names = ["A.Example"]
respond = {{ status = 204 }}
"#,
            url = backend.url(),
        ),
    );
    for (host, path, status) in [
        ("localhost", "/", 200),
        ("127.0.0.1", "/other", 200),
        ("localhost", "/api/one", 200),
        ("localhost", "/gone", 410),
        ("a.example", "/", 204),
        ("nobody.example", "/", 404),
    ] {
        assert_eq!(gateway.exchange(get(host, path)).expect("an answer comes").status(), status);
    }
    assert_eq!(gateway.exchange("GET / HTTP/1.1\r\nHost: a b\r\n\r\n").expect("an answer comes").status(), 400);
    let said = curl(&gateway, "/api/two", ["--http2", "--write-out", " over %{http_version}"]);
    assert_eq!(said.out, b"hello over 2", "{}", said.err);
    for name in [DURATION, FIRST_BYTE] {
        let h1 = "protocol=\"HTTP/1\"";
        let localhost = "host=\"localhost\"";
        counted(&gateway, name, &[localhost, "route=\"\"", "upstream=\"app\"", h1, "class=\"2xx\""], 2.0);
        let api = "route=\"the api\"";
        counted(&gateway, name, &[localhost, api, "upstream=\"app\"", h1, "class=\"2xx\""], 1.0);
        counted(&gateway, name, &[localhost, api, "upstream=\"app\"", "protocol=\"HTTP/2\"", "class=\"2xx\""], 1.0);
        counted(&gateway, name, &[localhost, "route=\"GET = /gone\"", "upstream=\"\"", h1, "class=\"4xx\""], 1.0);
        counted(&gateway, name, &["host=\"a.example\"", "route=\"\"", "upstream=\"\"", h1, "class=\"2xx\""], 1.0);
        counted(&gateway, name, &["host=\"(none)\"", "route=\"\"", "upstream=\"\"", h1, "class=\"4xx\""], 2.0);
    }
    counted(&gateway, "sealane_upstream_wait_seconds", &["upstream=\"app\""], 4.0);
    counted(&gateway, "sealane_upstream_transfer_seconds", &["upstream=\"app\""], 4.0);
    counted(&gateway, "sealane_handshake_seconds", &["transport=\"tcp\"", "version=\"1.2\"", "kind=\"full\""], 0.0);
    let metrics = gateway.metrics();
    let handshakes = ["full", "resumed"].map(|kind| {
        let labels = ["transport=\"tcp\"", "version=\"1.3\"", &format!("kind=\"{kind}\"")];
        value(&metrics, "sealane_handshake_seconds_count", &labels).expect("it is always there")
    });
    assert_eq!(handshakes.iter().sum::<f64>(), 8.0, "{metrics}");
    let connects = value(&metrics, "sealane_upstream_connect_seconds_count", &["upstream=\"app\""]);
    assert!(
        connects.is_some_and(|n| n >= 1.0) && !metrics.contains("upstream_handshake_seconds_count{upstream=\"app\"} 1")
    );
    assert_eq!(value(&metrics, "sealane_admission_wait_seconds_count", &[]), Some(8.0));
    // Every seventh turn: the metrics alone take some, which come to the lanes as nothing; the requests took many.
    assert!(gateway.metric("sealane_lane_turn_seconds_count").is_some_and(|n| n >= 1.0), "{metrics}");
}

#[test]
fn a_slow_server_is_seen() {
    let site = Site::new();
    let backend = Backend::answering(|request: &Message| {
        if request.target() == "/slow" {
            std::thread::sleep(Duration::from_millis(300));
        }
        ok(b"hello")
    });
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let gateway = configured(
        &site,
        &format!(
            "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = {cert:?}, key = {key:?} }}\n[[host]]\nnames = [\"*\"]\nto = \"{}\"\n\
             [[host.route]]\nexact = \"/slow\"\nto = \"{}\"\n",
            backend.url(),
            backend.url()
        ),
    );
    for path in ["/", "/slow"] {
        assert_eq!(gateway.get(path).text(), "hello");
    }
    for (name, label) in [
        (DURATION, "route=\"= /slow\""),
        (FIRST_BYTE, "route=\"= /slow\""),
        ("sealane_upstream_wait_seconds", "upstream=\"host * /slow\""),
    ] {
        counted(&gateway, name, &[label], 1.0);
        let metrics = gateway.metrics();
        let within = |le: &str| value(&metrics, &format!("{name}_bucket"), &[label, &format!("le=\"{le}\"")]);
        assert_eq!((within("0.25"), within("+Inf")), (Some(0.0), Some(1.0)), "{metrics}");
        assert!(value(&metrics, &format!("{name}_sum"), &[label]).is_some_and(|sum| sum >= 0.3), "{metrics}");
    }
    counted(&gateway, DURATION, &["route=\"\"", "host=\"*\"", "class=\"2xx\""], 1.0);
    // The steps of a request lie within it.
    let metrics = gateway.metrics();
    let sum = |name: &str, label: &str| value(&metrics, &format!("{name}_sum"), &[label]).expect("it was counted");
    let (first_byte, total) = (sum(FIRST_BYTE, "route=\"= /slow\""), sum(DURATION, "route=\"= /slow\""));
    let wait = sum("sealane_upstream_wait_seconds", "upstream=\"host * /slow\"");
    assert!(wait <= first_byte && first_byte <= total, "{metrics}");
}

#[test]
fn handshakes_over_quic_are_measured_for_themselves() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
    let config = h3::over_quic(gateway.config(), false);
    assert_eq!(h3::Client::connect(gateway.address, &config).get("/").status, 200);
    let quic = |kind: &str| {
        let labels = ["transport=\"quic\"", "version=\"1.3\"", &format!("kind=\"{kind}\"")];
        value(&gateway.metrics(), "sealane_handshake_seconds_count", &labels)
    };
    assert_eq!((quic("full"), quic("resumed")), (Some(1.0), Some(0.0)));
    // It has waited for the lane's time, however shortly.
    counted(&gateway, "sealane_admission_wait_seconds", &[], 1.0);
    counted(&gateway, DURATION, &["protocol=\"HTTP/3\"", "class=\"2xx\""], 1.0);
    assert_eq!(h3::Client::connect(gateway.address, &config).get("/").status, 200);
    assert_eq!(quic("full").zip(quic("resumed")).map(|(full, resumed)| full + resumed), Some(2.0));
    counted(&gateway, "sealane_admission_wait_seconds", &[], 2.0);
}

/// The head of a response comes at once, the rest of its body later.
#[test]
fn the_transfer_of_a_response_is_not_the_wait_for_it() {
    let site = Site::new();
    let backend = Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            let length = if request.target() == "/broken" { 10 } else { 5 };
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nhe"));
            std::thread::sleep(Duration::from_millis(300));
            connection.send("llo");
            if length == 10 {
                return;
            }
        }
    });
    let gateway = before(&site, [backend.url()]).start();
    assert_eq!(gateway.get("/").text(), "hello");
    // What breaks off was not transferred.
    let broken = gateway.exchange(get(HOST, "/broken"));
    assert!(broken.is_err(), "{broken:?}");
    counted(&gateway, "sealane_upstream_wait_seconds", &[], 2.0);
    counted(&gateway, "sealane_upstream_transfer_seconds", &[], 1.0);
    let metrics = gateway.metrics();
    let transfer = value(&metrics, "sealane_upstream_transfer_seconds_sum", &[]).expect("it was counted");
    let total = value(&metrics, &format!("{DURATION}_sum"), &["class=\"2xx\""]).expect("it was counted");
    assert!((0.25..=total).contains(&transfer), "{transfer} {total}: {metrics}");
}

#[test]
fn series_of_hosts_that_stay_go_on_over_a_reload() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let (cert, key) = (site.ecdsa.cert.clone(), site.ecdsa.key.clone());
    let file = |admin: &str, hosts: &str| {
        format!(
            "{admin}\n[[listener]]\naddress = \"{listen}\"\n[listener.tls]\n\
             certificates = [{{ cert = {cert:?}, key = {key:?} }}]\n{hosts}"
        )
    };
    let host = |name: &str| format!("[[host]]\nnames = [\"{name}\"]\nto = \"{}\"\n", backend.url());
    let running = Operated::start(&site, 2, |admin| file(admin, &(host("a.example") + &host("b.example"))), listen);
    let ask = |name: &str| {
        let answer = client::exchange(listen, running.gateway.config(), get(name, "/").as_bytes());
        assert_eq!(answer.expect("an answer comes").status(), 200);
    };
    for _ in 0..3 {
        ask("a.example");
        ask("b.example");
    }
    let label = |name: &str| format!("host=\"{name}\"");
    for name in ["a.example", "b.example"] {
        counted(&running.gateway, DURATION, &[&label(name)], 3.0);
    }
    // Another host takes the first place, so that an index that stays would be another's.
    running.write(&file(&running.admin_lines, &(host("c.example") + &host("a.example"))));
    order(&running.socket, "reload").expect("it may");
    counted(&running.gateway, DURATION, &[&label("a.example")], 3.0);
    ask("c.example");
    ask("a.example");
    counted(&running.gateway, DURATION, &[&label("a.example")], 4.0);
    counted(&running.gateway, DURATION, &[&label("c.example")], 1.0);
    counted(&running.gateway, "sealane_upstream_wait_seconds", &["upstream=\"host a.example\""], 4.0);
    assert!(eventually(|| !running.gateway.metrics().contains("host=\"b.example\"")), "{}", running.gateway.metrics());
}

#[test]
fn the_number_of_series_is_bounded() {
    let site = Site::new();
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    let hosts =
        |n: u32| (0..n).map(|i| format!("[[host]]\nnames = [\"h{i}.example\"]\nrespond = {{ status = 200 }}\n"));
    let gateway = configured(
        &site,
        &format!(
            "lanes = 2\n[admin]\nlisten = \"@ADMIN@\"\n[metrics]\nmax_series = 3\n[[listener]]\naddress = \"@ADDRESS@\"\n\
             [listener.tls]\ncertificates = {{ cert = {cert:?}, key = {key:?} }}\n{}",
            hosts(10).collect::<String>()
        ),
    );
    for _ in 0..2 {
        for i in 0..10 {
            let answer = gateway.exchange(get(&format!("h{i}.example"), "/")).expect("an answer comes");
            assert_eq!(answer.status(), 200);
        }
    }
    counted(&gateway, DURATION, &["host=\"(other)\"", "class=\"2xx\""], 14.0);
    let metrics = gateway.metrics();
    assert_eq!(metrics.lines().filter(|line| line.starts_with(&format!("{DURATION}_count"))).count(), 4, "{metrics}");
    assert_eq!(value(&metrics, "sealane_latency_series", &[]), Some(3.0));
}
