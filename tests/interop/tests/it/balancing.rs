//! How requests are shared among servers, over lanes too.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::frames::{Frames, kind};
use sealane_interop::gateway::{Gateway, before, configured};
use sealane_interop::h3::{self, Client, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::site::Site;
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn start(site: &Site, lanes: usize, upstream: &str) -> Gateway {
    let text = format!(
        "lanes = {lanes}\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
         [[host]]\nnames = [\"*\"]\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\n{upstream}\n"
    );
    configured(site, &text)
}

/// Who answers so many requests, each on a connection of its own.
fn counts(gateway: &Gateway, n: usize, names: &[&str], lines: impl Fn(usize) -> String) -> Vec<usize> {
    let mut counts = vec![0; names.len()];
    for i in 0..n {
        let text = gateway.plain_get("/", &lines(i)).text();
        counts[names.iter().position(|name| *name == text).unwrap_or_else(|| panic!("{text}"))] += 1;
    }
    counts
}

#[test]
fn weights_and_backups() {
    let site = Site::new();
    let (a, b, spare) = (Backend::saying("a"), Backend::saying("b"), Backend::saying("spare"));
    let gateway = start(
        &site,
        1,
        &format!(
            "keepalive = 0\nservers = [{{ url = \"{}\", weight = 3 }}, \"{}\", {{ url = \"{}\", backup = true }}]",
            a.url(),
            b.url(),
            spare.url()
        ),
    );
    let names = ["a", "b", "spare"];
    assert_eq!(counts(&gateway, 40, &names, |_| String::new()), [30, 10, 0]);
    drop((a, b));
    // Found out by requests, none of which fails: they go to the next server.
    let text = || gateway.plain_get("/", "").text();
    assert!((0..30).all(|_| text() == "spare"));
    assert_eq!(gateway.metric("sealane_server_in_use"), Some(0.0));
}

#[test]
fn clients_stick_to_their_server_in_every_lane() {
    let site = Site::new();
    let backends: Vec<Backend> = ["a", "b", "c"].into_iter().map(Backend::saying).collect();
    let urls: Vec<String> = backends.iter().map(Backend::url).collect();
    let gateway = start(&site, 3, &format!("servers = {urls:?}\nsticky = \"srv\""));
    let mut seen = std::collections::HashSet::new();
    for _ in 0..6 {
        let first = gateway.plain_get("/", "");
        let cookie = first.header("set-cookie").expect("a new client is given a cookie").to_owned();
        assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{cookie}");
        let pair = cookie.split(';').next().expect("a cookie begins with its value").to_owned();
        let name = first.text();
        for _ in 0..12 {
            let again = gateway.plain_get("/", &format!("Cookie: x=1; {pair}; y=2\r\n"));
            assert_eq!((again.text().as_str(), again.header("set-cookie")), (name.as_str(), None));
        }
        seen.insert(name);
    }
    assert!(seen.len() > 1, "{seen:?}");
}

#[test]
fn the_same_value_goes_to_the_same_server() {
    let site = Site::new();
    for by in ["header:X-User", "cookie:user", "address"] {
        let mut backends: Vec<(&str, Backend)> = ["a", "b", "c"].into_iter().map(|n| (n, Backend::saying(n))).collect();
        let urls: Vec<String> = backends.iter().map(|(_, b)| b.url()).collect();
        let upstream = format!("servers = {urls:?}\nkeepalive = 0\nbalance = \"hash\"\nhash_by = \"{by}\"");
        let gateway = start(&site, 2, &upstream);
        let whose = |user: usize| {
            let line = match by {
                "address" => String::new(),
                "cookie:user" => format!("Cookie: a=b; user=user-{user}; c=d\r\n"),
                _ => format!("X-User: user-{user}\r\n"),
            };
            // The port is another one each time.
            let from = Ipv4Addr::new(127, 0, 9, if by == "address" { user as u8 + 1 } else { 1 });
            let mut wire = Wire::new(client::tcp_from(from, gateway.address));
            wire.send(format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{line}\r\n")).expect("it reads");
            wire.response("GET").expect("a response").text()
        };
        let before: Vec<String> = (0..40).map(whose).collect();
        assert_eq!(before, (0..40).map(whose).collect::<Vec<_>>(), "{by}");
        let used: HashSet<&String> = before.iter().collect();
        assert_eq!(used.len(), 3, "{by}: {before:?}");
        let gone = backends.remove(1);
        drop(gone);
        for (user, was) in before.iter().enumerate() {
            let now = whose(user);
            assert!(now == *was || was == "b", "{by}: user {user} moved from {was} to {now}");
            assert_ne!(now, "b", "{by}");
        }
    }
}

#[test]
fn the_least_busy_server_gets_the_next_request() {
    let site = Site::new();
    let go_on = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&go_on);
    let slow = Backend::answering(move |request| {
        while request.target() == "/slow" && !held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        ok(b"slow")
    });
    let quick = Backend::saying("quick");
    let servers = format!("servers = [\"{}\", \"{}\"]\nbalance = \"least_connections\"", slow.url(), quick.url());
    let gateway = start(&site, 1, &servers);
    std::thread::scope(|scope| {
        // Until one is held there, and no other is under way.
        let mut found = true;
        while found && slow.requests().is_empty() {
            let asked = scope.spawn(|| gateway.plain_get("/slow", ""));
            found = eventually(|| asked.is_finished() || !slow.requests().is_empty());
        }
        let all: Vec<String> = (0..20).map(|_| gateway.plain_get("/", "").text()).collect();
        go_on.store(true, Ordering::SeqCst);
        assert!(found && all.iter().all(|text| text == "quick"), "{found} {all:?}");
    });
}

/// The less busy of two that are drawn: of four servers a busy one is rarely that, and all others are used.
#[test]
fn of_two_at_random_the_less_busy_one() {
    let site = Site::new();
    let go_on = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&go_on);
    let slow = Backend::answering(move |request| {
        while request.target() == "/slow" && !held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        ok(b"slow")
    });
    let others = ["b", "c", "d"].map(Backend::saying);
    let urls: Vec<String> = std::iter::once(&slow).chain(&others).map(Backend::url).collect();
    let gateway = start(&site, 1, &format!("servers = {urls:?}\nbalance = \"random_two\""));
    std::thread::scope(|scope| {
        // Until one of them is held there.
        while slow.requests().is_empty() {
            let before: usize = others.iter().map(|b| b.requests().len()).sum();
            scope.spawn(|| gateway.plain_get("/slow", ""));
            let after = || others.iter().map(|b| b.requests().len()).sum::<usize>();
            assert!(eventually(|| after() > before || !slow.requests().is_empty()));
        }
        let seen = counts(&gateway, 100, &["slow", "b", "c", "d"], |_| String::new());
        go_on.store(true, Ordering::SeqCst);
        // Drawn twice: one in sixteen.
        assert!(seen[0] < 25 && seen[1..].iter().all(|n| *n > 5), "{seen:?}");
    });
}

/// A backend that notes how many requests it has at once.
fn counting(now: &Arc<AtomicUsize>, most: &Arc<AtomicUsize>, time: Duration) -> Backend {
    let (now, most) = (Arc::clone(now), Arc::clone(most));
    Backend::answering(move |_| {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(time);
        now.fetch_sub(1, Ordering::SeqCst);
        ok(b"done")
    })
}

#[test]
fn a_limit_holds_over_lanes_and_the_rest_waits() {
    let site = Site::new();
    for limit in [1, 3] {
        let (now, most) = (Arc::default(), Arc::default());
        let backend = counting(&now, &most, Duration::from_millis(10));
        let upstream = format!("servers = \"{}\"\nmax_connections = {limit}\nqueue_timeout = \"60s\"", backend.url());
        let gateway = start(&site, 4, &upstream);
        std::thread::scope(|scope| {
            for _ in 0..24 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        assert_eq!(gateway.plain_get("/", "").text(), "done");
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= limit, "{} at once, {limit} are allowed", most.load(Ordering::SeqCst));
        assert_eq!(backend.requests().len(), 96);
        assert!(gateway.metric("sealane_upstream_queued_total") > Some(0.0));
        assert_eq!(gateway.metric("sealane_upstream_queue_refused_total"), Some(0.0));
    }
}

#[test]
fn a_full_queue_and_a_long_wait_are_503() {
    let site = Site::new();
    let backend = Backend::answering(|request| {
        if request.target() == "/slow" {
            std::thread::sleep(Duration::from_secs(3));
        }
        ok(b"done")
    });
    let upstream =
        format!("servers = \"{}\"\nmax_connections = 1\nqueue = 2\nqueue_timeout = \"300ms\"", backend.url());
    let gateway = start(&site, 1, &upstream);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| gateway.plain_get("/slow", "").status());
        assert!(eventually(|| backend.requests().len() == 1));
        let waiting: Vec<_> = (0..8).map(|_| scope.spawn(|| gateway.plain_get("/", "").status())).collect();
        assert!(waiting.into_iter().all(|w| w.join().expect("no panic") == 503));
        assert_eq!(slow.join().expect("no panic"), 200);
    });
    let refused = |why: &str| gateway.metric_with("sealane_upstream_queue_refused_total", why);
    let (full, late) = (refused("reason=\"full\""), refused("reason=\"timeout\""));
    assert_eq!(full.zip(late).map(|(a, b)| a + b), Some(8.0), "{full:?} {late:?}");
    assert!(full >= Some(1.0) && late >= Some(2.0), "{full:?} {late:?}");
    assert_eq!(gateway.plain_get("/", "").status(), 200);
}

/// A request that has its answer holds no place at a server, although the rest of it is still read.
#[test]
fn a_request_that_drains_holds_no_place() {
    let site = Site::new();
    let backend = Backend::answering(|_| ok(b"done"));
    let setup = before(&site, [backend.url()]).upstream("max_connections = 1\nqueue = 0");
    let gateway = setup.limits("idle_timeout = \"500ms\"").plain().listener("h2c = true").start();
    // The lane has its share of the limit soon after the start.
    assert!(eventually(|| gateway.plain_get("/", "").status() == 200));
    let mut frames = Frames::plain(gateway.address, &[]);
    frames.request(1, "POST", "/", &[("content-length", "100")], false).expect("the gateway reads");
    frames.send(kind::DATA, 0, 1, b"some").expect("the gateway reads");
    let refused = frames.find(|f| f.kind == kind::HEADERS && f.stream == 1).expect("a 408");
    assert_ne!(refused.payload[0], 0x88);
    frames.request(3, "GET", "/", &[], true).expect("the gateway reads");
    let answer = frames.find(|f| f.kind == kind::HEADERS && f.stream == 3).expect("an answer");
    assert_eq!(answer.payload[0], 0x88, "{}", gateway.metrics());
}

/// A place that is freed late in a turn is used in that turn, however quiet the lane is after it.
#[test]
fn a_place_that_an_http3_client_gives_up_is_used_at_once() {
    let site = Site::new();
    let backend = Backend::answering(|request| {
        if request.target() == "/slow" {
            std::thread::sleep(Duration::from_secs(60));
        }
        ok(b"done")
    });
    let setup = before(&site, [backend.url()]).upstream("max_connections = 1\nqueue_timeout = \"10s\"");
    let gateway = setup.listener("http3 = true").start();
    let mut holder = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let id = holder.open_silently(&h3::headers("GET", "/slow", &[], sealane_http::BodyLength::None));
    holder.pump_once();
    assert!(eventually(|| backend.requests().len() == 1));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| gateway.get("/").status());
        assert!(eventually(|| gateway.metric("sealane_upstream_queued_total") == Some(1.0)));
        holder.reset(id, sealane_http::h3::Code::RequestCancelled.value());
        holder.pump_once();
        assert_eq!(waits.join().expect("no panic"), 200, "{}", gateway.metrics());
    });
}
