//! Servers that fall ill and get well again, found by checks and by requests.

use sealane_interop::backend;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::h2;
use sealane_interop::site::{HOST, Site};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn start(site: &Site, lanes: usize, upstream: &str) -> Gateway {
    let text = format!(
        "lanes = {lanes}\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
         [[host]]\nnames = [\"*\"]\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\n{upstream}\n"
    );
    configured(site, &text)
}

/// A backend whose health can be set.
fn with_health(name: &'static str, well: &Arc<AtomicBool>) -> Backend {
    let well = Arc::clone(well);
    Backend::answering(move |request| match (request.target(), well.load(Ordering::SeqCst)) {
        ("/health", false) => b"HTTP/1.1 500 Ill\r\nContent-Length: 0\r\n\r\n".to_vec(),
        ("/health", true) => ok(b"well"),
        _ => ok(name.as_bytes()),
    })
}

#[test]
fn checks_take_servers_out_and_back() {
    let site = Site::new();
    let (one, two) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
    let (a, b) = (with_health("a", &one), with_health("b", &two));
    let check = "[upstream.health]\npath = \"/health\"\ninterval = \"50ms\"\ntimeout = \"20s\"\nrise = 2\nfall = 2";
    let gateway = start(&site, 2, &format!("servers = [\"{}\", \"{}\"]\n{check}", a.url(), b.url()));
    let up = |backend: &Backend| {
        gateway.metric_with("sealane_server_up", &format!("server=\"{}\"", backend.address)) == Some(1.0)
    };
    assert!(up(&a) && up(&b));
    one.store(false, Ordering::SeqCst);
    assert!(eventually(|| !up(&a)));
    assert!((0..10).all(|_| gateway.plain_get("/", "").text() == "b"));
    two.store(false, Ordering::SeqCst);
    assert!(eventually(|| !up(&b)));
    let response = gateway.plain_get("/", "");
    assert_eq!(response.status(), 503);
    assert_eq!(gateway.metric("sealane_upstream_unavailable_total"), Some(1.0));
    // Well again: served again, without a restart.
    one.store(true, Ordering::SeqCst);
    assert!(eventually(|| up(&a)));
    // Control publishes; each lane looks at its next turn.
    assert!(eventually(|| (0..10).all(|_| gateway.plain_get("/", "").text() == "a")));
    let log = gateway.server.log();
    let line = format!("upstream u: {} is down: status 500", a.address);
    assert!(log.contains(&line), "{log}");
    assert!(log.contains(&format!("upstream u: {} is up", a.address)), "{log}");
}

/// Control asks, once for all lanes; and a server that comes back starts slowly where that is set.
#[test]
fn lanes_do_not_check_and_a_server_that_comes_back_starts_slowly() {
    let site = Site::new();
    let (one, two) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
    let (a, b) = (with_health("a", &one), with_health("b", &two));
    let file = |interval: &str, slow: &str| {
        format!(
            "servers = [\"{}\", \"{}\"]\nslow_start = \"{slow}\"\n[upstream.health]\npath = \"/health\"\n\
             interval = \"{interval}\"\ntimeout = \"20s\"\nrise = 1\nfall = 1",
            a.url(),
            b.url()
        )
    };
    let checks = |backend: &Backend| backend.requests().iter().filter(|r| r.target() == "/health").count();
    let gateway = start(&site, 4, &file("1h", "0s"));
    let good = || gateway.metric_with("sealane_server_checks_total", "result=\"good\"");
    assert!(eventually(|| good() == Some(2.0)));
    assert!((0..40).all(|_| gateway.plain_get("/", "").status() == 200));
    assert_eq!((checks(&a), checks(&b), good()), (1, 1, Some(2.0)), "four lanes serve, and nobody has asked again");
    drop(gateway);

    let gateway = start(&site, 1, &file("50ms", "1h"));
    let weight =
        |backend: &Backend| gateway.metric_with("sealane_server_weight", &format!("server=\"{}\"", backend.address));
    let up = |backend: &Backend| gateway.metric_with("sealane_server_up", &format!("server=\"{}\"", backend.address));
    // Those who are there at the start have their whole weight.
    assert_eq!((weight(&a), weight(&b)), (Some(1.0), Some(1.0)));
    one.store(false, Ordering::SeqCst);
    assert!(eventually(|| up(&a) == Some(0.0)));
    one.store(true, Ordering::SeqCst);
    assert!(eventually(|| up(&a) == Some(1.0)));
    assert_eq!((weight(&a), weight(&b)), (Some(0.1), Some(1.0)));
    // The lane has heard of it when it gets its first.
    assert!(eventually(|| gateway.plain_get("/", "").text() == "a"));
    let few = (0..44).filter(|_| gateway.plain_get("/", "").text() == "a").count();
    assert!((3..=5).contains(&few), "{few} of 44 where one in eleven is meant");
}

/// A server for gRPC knows HTTP/2 alone, and answers a plain GET with a status of its own.
#[test]
fn servers_that_speak_http2_only_are_checked_in_http2() {
    let site = Site::new();
    let well = Arc::new(AtomicBool::new(true));
    let health = Arc::clone(&well);
    let server = h2::Server::start(move |(request, mut respond): h2::Asked| {
        let well = Arc::clone(&health);
        async move {
            match (request.uri().path(), well.load(Ordering::SeqCst)) {
                ("/health", false) => {
                    let answer = http::Response::builder().status(500).body(()).expect("a status and no fields");
                    let _ = respond.send_response(answer, true);
                }
                _ => h2::say(&mut respond, b"hello"),
            }
        }
    });
    let check = "[upstream.health]\npath = \"/health\"\ninterval = \"50ms\"\ntimeout = \"20s\"\nrise = 1\nfall = 2";
    let gateway = start(&site, 1, &format!("servers = [\"{}\"]\nhttp = \"2\"\n{check}", server.url()));
    let up = || gateway.metric("sealane_server_up");
    let good = || gateway.metric_with("sealane_server_checks_total", "result=\"good\"");
    assert!(eventually(|| good() >= Some(3.0)), "{}", gateway.metrics());
    assert_eq!(up(), Some(1.0));
    assert_eq!(gateway.plain_get("/", "").text(), "hello");
    well.store(false, Ordering::SeqCst);
    assert!(eventually(|| up() == Some(0.0)), "{}", gateway.server.log());
    assert_eq!(gateway.plain_get("/", "").status(), 503);
    well.store(true, Ordering::SeqCst);
    assert!(eventually(|| up() == Some(1.0)));
    assert!(eventually(|| gateway.plain_get("/", "").text() == "hello"));
    assert!(gateway.server.log().contains("is down: status 500"), "{}", gateway.server.log());
}

/// Over TLS it is offered by ALPN, and a server that does not take it is not fit for what is to be sent to it.
#[test]
fn servers_that_speak_http2_only_are_checked_by_alpn_over_tls() {
    let site = Site::new();
    let well = Arc::new(AtomicBool::new(true));
    let health = Arc::clone(&well);
    let server = h2::Server::start_tls(&site.ecdsa, move |(request, mut respond): h2::Asked| {
        let ill = request.uri().path() == "/health" && !health.load(Ordering::SeqCst);
        async move {
            if ill {
                let answer = http::Response::builder().status(500).body(()).expect("a status and no fields");
                let _ = respond.send_response(answer, true);
            } else {
                h2::say(&mut respond, request.uri().scheme_str().unwrap_or("").as_bytes());
            }
        }
    });
    // The same certificate, and no ALPN.
    let old = Backend::start_tls(backend::tls(&site.ecdsa), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"old"));
        }
    });
    let upstream = format!(
        "servers = [\"{}\", \"{}\"]\nhttp = \"2\"\ntls = {{ ca = \"{}\" }}\n[upstream.health]\npath = \"/health\"\n\
         interval = \"50ms\"\ntimeout = \"20s\"\nrise = 1\nfall = 2",
        server.url(),
        old.url(),
        site.ca.display()
    );
    let gateway = start(&site, 1, &upstream);
    let of = |name: &str, port: u16| gateway.metric_with(name, &format!("server=\"{HOST}:{port}\""));
    let up = |port: u16| of("sealane_server_up", port);
    let (new, old) = (server.address.port(), old.address.port());
    assert!(eventually(|| up(old) == Some(0.0)), "{}", gateway.server.log());
    let log = gateway.server.log();
    assert!(log.contains(&format!("{HOST}:{old} is down: it does not speak HTTP/2")), "{log}");
    assert_eq!(up(new), Some(1.0), "{log}");
    assert!(eventually(|| gateway.plain_get("/", "").text() == "https"), "{}", gateway.server.log());
    well.store(false, Ordering::SeqCst);
    assert!(eventually(|| up(new) == Some(0.0)), "{}", gateway.server.log());
    assert!(gateway.server.log().contains(&format!("{HOST}:{new} is down: status 500")), "{}", gateway.server.log());
    well.store(true, Ordering::SeqCst);
    assert!(eventually(|| up(new) == Some(1.0)));
    assert!(eventually(|| gateway.plain_get("/", "").text() == "https"), "{}", gateway.server.log());
}

#[test]
fn https_servers_are_checked_over_tls() {
    let site = Site::new();
    let good = Backend::start_tls(backend::tls(&site.ecdsa), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"good"));
        }
    });
    // Its certificate is for another name.
    let stranger = site.issue("stranger", &["stranger.example.test"]);
    let bad = Backend::start_tls(backend::tls(&stranger), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"bad"));
        }
    });
    let upstream = format!(
        "servers = [\"{}\", \"{}\"]\ntls = {{ ca = \"{}\" }}\nhealth = {{ path = \"/\", interval = \"50ms\", timeout = \"20s\" }}",
        good.url(),
        bad.url(),
        site.ca.display()
    );
    let gateway = start(&site, 1, &upstream);
    let up = |backend: &Backend| {
        gateway.metric_with("sealane_server_up", &format!("server=\"{HOST}:{}\"", backend.address.port()))
    };
    assert!(eventually(|| up(&bad) == Some(0.0)));
    assert_eq!(up(&good), Some(1.0));
    assert!((0..6).all(|_| gateway.plain_get("/", "").text() == "good"));
}

/// Without checks: the requests themselves find out, and none of them is lost.
#[test]
fn a_dead_server_is_left_alone() {
    let site = Site::new();
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let upstream = format!("servers = [\"{}\", \"{}\"]\neject_after = 3\neject_for = \"1h\"", a.url(), b.url());
    let gateway = start(&site, 1, &upstream);
    let dead = a.address;
    drop(a);
    assert!((0..200).all(|_| gateway.plain_get("/", "").text() == "b"));
    let of = |name: &str| gateway.metric_with(name, &format!("server=\"{dead}\""));
    assert_eq!(of("sealane_server_ejections_total"), Some(1.0));
    assert_eq!(of("sealane_server_up"), Some(0.0));
    // Control decides within a moment; until then a few more may find out.
    assert!(of("sealane_server_failures_total") < Some(60.0), "{:?}", of("sealane_server_failures_total"));
    assert!(gateway.server.log().contains("times in a row: ejected for 3600 s"));
}

#[test]
fn an_ejected_server_comes_back() {
    let site = Site::new();
    let spare = Backend::saying("spare");
    let address = sealane_interop::ports::free();
    let upstream =
        format!("servers = [\"http://{address}\", \"{}\"]\neject_after = 1\neject_for = \"200ms\"", spare.url());
    let gateway = start(&site, 1, &upstream);
    let of = |name: &str| gateway.metric_with(name, &format!("server=\"{address}\""));
    assert!(eventually(|| {
        gateway.plain_get("/", "");
        of("sealane_server_ejections_total") >= Some(1.0)
    }));
    let listener = std::net::TcpListener::bind(address).expect("the port is still free");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut wire = sealane_interop::http::Wire::new(stream);
                while let Ok(Some(_)) = wire.request() {
                    let _ = wire.send(ok(b"back"));
                }
            });
        }
    });
    assert!(eventually(|| gateway.plain_get("/", "").text() == "back"));
}

/// The last one is not left alone for its failures: a bad server is better than none, and it is tried by each request.
#[test]
fn all_down_and_back() {
    let site = Site::new();
    let address = sealane_interop::ports::free();
    let gateway = start(&site, 1, &format!("servers = \"http://{address}\"\neject_after = 2"));
    for _ in 0..20 {
        assert_eq!(gateway.plain_get("/", "").status(), 502);
    }
    let listener = std::net::TcpListener::bind(address).expect("the port is still free");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut wire = sealane_interop::http::Wire::new(stream);
            while let Ok(Some(_)) = wire.request() {
                let _ = wire.send(ok(b"back"));
            }
        }
    });
    assert_eq!(gateway.plain_get("/", "").text(), "back");
}
