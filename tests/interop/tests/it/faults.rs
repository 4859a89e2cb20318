//! What goes wrong at a backend, and what there is to know of it: the client gets a status, a counter moves, and the
//! reason stands on the standard error, with the server in the status, and in the access log. When the cause is gone,
//! the same gateway serves.
//!
//! A backend that answers before the request ends, and one that closes between two requests, are no faults to anybody:
//! `dying` has them.

use crate::operating::{Operated, order};
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use sealane_interop::backend::{self, Backend, Connection, ok};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, ports};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What there is to be seen of a fault.
struct Seen {
    status: u16,
    counter: &'static str,
    why: &'static str,
}

fn file(admin: &str, address: SocketAddr, log: &std::path::Path, server: &str, more: &str) -> String {
    let log = log.display();
    format!(
        "{admin}\n[log]\naccess = \"{log}\"\nformat = \"json\"\n[[listener]]\naddress = \"{address}\"\n[[host]]\n\
         names = [\"*\"]\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = [{server:?}]\n{more}\n"
    )
}

/// Asks while the server is ill, and after `mend`.
fn seen_and_over(site: &Site, server: &str, more: &str, seen: &Seen, mend: impl FnOnce(&Operated, &str)) {
    let (listen, log) = (ports::free(), site.path().join("access.log"));
    let gateway = Operated::start(site, 1, |admin| file(admin, listen, &log, server, more), listen);
    let why = seen.why;
    assert_eq!(gateway.gateway.plain_get("/ill", "").status(), seen.status, "{why}");
    assert_eq!(gateway.gateway.metric(seen.counter), Some(1.0), "{why}: {}", seen.counter);
    assert_eq!(gateway.gateway.metric("sealane_server_failures_total"), Some(1.0), "{why}");
    let said = || gateway.gateway.server.log();
    assert!(eventually(|| said().contains(&format!(" fails requests: {why}\n"))), "{why}: {}", said());
    assert_eq!(gateway.status()["upstreams"][0]["servers"][0]["failing"], why);
    let line = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().next().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok())
    };
    assert!(eventually(|| line().is_some()), "{why}");
    let line = line().unwrap_or_default();
    assert_eq!((&line["error"], &line["status"]), (&why.into(), &seen.status.into()), "{line}");
    assert_eq!(
        (&line["method"], &line["target"], &line["remote"]),
        (&"GET".into(), &"/ill".into(), &"127.0.0.1".into())
    );
    mend(&gateway, &gateway.admin_lines);
    assert!(eventually(|| gateway.gateway.plain_get("/", "").text() == "well"), "{why}: {}", said());
    assert!(eventually(|| gateway.status()["upstreams"][0]["servers"][0]["failing"] == ""), "{why}");
}

/// A backend that does `how` to its connections until it is well.
fn ill(seen: &Seen, more: &str, how: impl Fn(Connection) + Send + Sync + 'static) {
    let site = Site::new();
    let well = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&well);
    let backend = Backend::start(move |mut connection| {
        if !now.load(Ordering::SeqCst) {
            return how(connection);
        }
        while connection.request().is_some() {
            connection.send(ok(b"well"));
        }
    });
    seen_and_over(&site, &backend.url(), more, seen, |_, _| well.store(true, Ordering::SeqCst));
}

fn serve(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut wire = Wire::new(stream);
                while let Ok(Some(_)) = wire.request() {
                    let _ = wire.send(ok(b"well"));
                }
            });
        }
    });
}

#[test]
fn it_refuses() {
    let site = Site::new();
    let address = ports::free();
    let seen = Seen { status: 502, counter: "sealane_upstream_connect_failures_total", why: "it cannot be reached" };
    seen_and_over(&site, &format!("http://{address}"), "", &seen, |_, _| {
        serve(TcpListener::bind(address).expect("the port is still free"));
    });
}

/// A listener whose queue is full: the kernel answers no further SYN.
#[test]
fn it_does_not_even_refuse() {
    let site = Site::new();
    let address = ports::free();
    let made = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket can be made");
    bind(&made, &address).expect("the port is free");
    listen(&made, 0).expect("a bound socket can listen");
    let short = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let mut held: Vec<TcpStream> = Vec::new();
    while let Ok(stream) = short() {
        held.push(stream);
        assert!(held.len() < 20, "the queue has no end");
    }
    let seen = Seen {
        status: 504,
        counter: "sealane_upstream_connect_failures_total",
        why: "no connection within connect_timeout",
    };
    seen_and_over(&site, &format!("http://{address}"), "connect_timeout = \"300ms\"", &seen, |_, _| {
        drop(held);
        serve(TcpListener::from(made));
    });
}

#[test]
fn it_hangs() {
    let seen = Seen { status: 504, counter: "sealane_upstream_timeouts_total", why: "no response in time" };
    ill(&seen, "first_byte_timeout = \"300ms\"", |mut connection| {
        connection.request();
        // Until the gateway leaves.
        let _ = connection.wire.rest();
    });
}

#[test]
fn it_resets() {
    let why = "it closed the connection before its response was complete";
    let seen = Seen { status: 502, counter: "sealane_aborted_exchanges_total", why };
    ill(&seen, "", |mut connection| {
        connection.request();
        connection.reset();
    });
}

#[test]
fn it_answers_garbage() {
    let why = "its response breaks the rules of HTTP: the status line is malformed";
    let seen = Seen { status: 502, counter: "sealane_parse_errors_total", why };
    ill(&seen, "", |mut connection| {
        connection.request();
        connection.send("SSH-2.0-OpenSSH_9.2\r\n");
        let _ = connection.wire.rest();
    });
}

/// What is wrong with a certificate is said; a reload that names it as it is mends that.
#[test]
fn its_certificate_is_anothers() {
    let site = Site::new();
    let stranger = site.issue("stranger", &["stranger.example.test"]);
    let backend = Backend::start_tls(backend::tls(&stranger), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b"well"));
        }
    });
    let tls = |name: &str| format!("[upstream.tls]\nca = \"{}\"\nserver_name = \"{name}\"", site.ca.display());
    let why = "its certificate is not trusted for its name";
    let seen = Seen { status: 502, counter: "sealane_upstream_connect_failures_total", why };
    seen_and_over(&site, &backend.url(), &tls(HOST), &seen, |gateway, admin| {
        let (address, log) = (gateway.gateway.address, site.path().join("access.log"));
        gateway.write(&file(admin, address, &log, &backend.url(), &tls("stranger.example.test")));
        order(&gateway.socket, "reload").expect("the file is good");
    });
}

/// The same for a whole group: with nobody left to try, clients are told at once; the first server that comes back serves.
#[test]
fn all_of_them_refuse() {
    let site = Site::new();
    let addresses = [ports::free(), ports::free()];
    let servers = addresses.map(|a| format!("\"http://{a}\"")).join(", ");
    let gateway = sealane_interop::gateway::configured(
        &site,
        &format!(
            "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[[host]]\nnames = [\"*\"]\n\
             upstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = [{servers}]\neject_after = 2\neject_for = \"200ms\"\n"
        ),
    );
    for _ in 0..20 {
        assert_eq!(gateway.plain_get("/", "").status(), 502);
    }
    assert!(gateway.metric("sealane_upstream_connect_failures_total") >= Some(20.0));
    serve(TcpListener::bind(addresses[1]).expect("the port is still free"));
    assert!(eventually(|| gateway.plain_get("/", "").text() == "well"));
}
