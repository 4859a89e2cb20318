//! The clock is set forward and back by hours under a running gateway: nothing that counts spans of time notices, and
//! what tells the time of day tells the new one.

use crate::operating::{Operated, order};
use sealane_interop::backend::{Backend, tls};
pub(crate) use sealane_interop::clock::Clock;
use sealane_interop::clock::clock_face;
use sealane_interop::crowd::Crowd;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{client, eventually, need, ports};
use std::sync::Arc;

const HOURS: i64 = 3600;

#[test]
fn steps_of_hours_end_nothing() {
    let compiler = need!("cc");
    let site = Site::new();
    let time = Clock::new(&site, &compiler);
    let backend = Backend::saying("hello");
    let listen = ports::free();
    let log = site.path().join("access.log");
    let file = |admin: &str| {
        let lines = format!(
            "ticket_lifetime = \"1h\"\n{admin}\n[log]\naccess = \"{}\"\n[limits]\nheader_timeout = \"60s\"\n\
             connection_rate = \"1000000/s\"\n",
            log.display()
        );
        let text = Operated::simple_file(&site, &lines, listen, &backend.url());
        // Answers of the gateway's own tell its time of day.
        format!("{text}\n[[host]]\nnames = [\"time.example\"]\nrespond = {{ status = 200 }}\n")
    };
    let mut gateway = Operated::start_by(&site, time.program(), 2, file, listen);
    let config = Arc::new(client::config(&site.ca));
    let mut kept = client::connect(listen, &config);
    let mut half = client::connect(listen, &config);
    half.send("GET /half HTTP/1.1\r\n").expect("the gateway reads");
    let crowd = Crowd::start(listen, &config, 2, |text| text == "hello");
    for step in [7 * HOURS, -7 * HOURS, 40 * 24 * HOURS, 0] {
        time.set(step);
        let served = crowd.requests();
        assert!(eventually(|| crowd.requests() > served + 20), "nobody is served on after a step of {step} s");
        // It looks at the clock at most every 100 ms.
        let mut date = String::new();
        let right = eventually(|| {
            let asked = gateway.gateway.exchange("GET / HTTP/1.1\r\nHost: time.example\r\nConnection: close\r\n\r\n");
            date = asked.expect("it answers").header("date").unwrap_or_default().to_owned();
            clock_face(step).iter().any(|face| date.contains(face))
        });
        assert!(right, "{date:?} after a step of {step} s");
        kept.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("a kept connection stays");
        assert_eq!(kept.response("GET").expect("it is answered").text(), "hello");
        assert_eq!(order(&gateway.socket, "reload").expect("the file is good"), "reloaded\n");
        let uptime = gateway.status()["uptime"].as_f64();
        assert!(uptime.is_some_and(|s| (0.0..3600.0).contains(&s)), "{uptime:?}");
    }
    half.send(format!("Host: {HOST}\r\n\r\n")).expect("half a request stays, too");
    assert_eq!(half.response("GET").expect("it is answered").text(), "hello");
    let tally = crowd.stop();
    assert_eq!(tally.failures, Vec::<String>::new());
    // Sessions of before are resumed after, whichever way the clock went.
    let totals = gateway.status()["totals"].clone();
    let resumed = totals["handshakes{version=\"1.3\",kind=\"resumed\"}"].as_u64();
    assert!(resumed > Some(10), "{totals}");
    for fault in ["client_timeouts", "upstream_timeouts", "rate_limited{what=\"connection\"}"] {
        assert_eq!(totals[fault], 0, "{fault}: {totals}");
    }
    gateway.gateway.server.terminate();
    drop((kept, half));
    assert_eq!(gateway.gateway.server.wait().code(), Some(0), "{}", gateway.gateway.server.log());
    // The log's lines are whole, and tell the time that the clock told.
    let text = std::fs::read_to_string(&log).expect("it was written");
    let hours: std::collections::BTreeSet<&str> = text.lines().filter_map(|l| l.split(':').nth(1)).collect();
    assert!(text.lines().all(|line| line.starts_with("127.0.0.1 - - [")) && hours.len() >= 3, "{hours:?}");
}

/// A certificate that the clock says has ended is refused for as long as it says so.
#[test]
fn a_certificate_that_ends_by_a_step_is_good_again_after() {
    let compiler = need!("cc");
    let site = Site::new();
    let time = Clock::new(&site, &compiler);
    // Ends in the year 4096, as rcgen makes them.
    let backend = Backend::start_tls(tls(&site.ecdsa), |mut connection| {
        while let Some(_request) = connection.request() {
            connection.send(sealane_interop::backend::ok(b"hello"));
        }
    });
    let listen = ports::free();
    let file = |admin: &str| {
        let text = Operated::simple_file(&site, admin, listen, "");
        let upstream = format!(
            "upstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = [{:?}]\nkeepalive = 0\neject_after = 0\n\
             [upstream.tls]\nca = \"{}\"\nresumption = false\n",
            backend.url(),
            site.ca.display()
        );
        text.replace("to = [\"\"]\n", &upstream)
    };
    let gateway = Operated::start_by(&site, time.program(), 1, file, listen);
    assert_eq!(gateway.get("/").text(), "hello");
    time.set(3000 * 365 * 24 * HOURS);
    assert!(eventually(|| gateway.get("/").status() == 502));
    assert!(gateway.gateway.metric("sealane_upstream_connect_failures_total") > Some(0.0));
    time.set(0);
    assert!(eventually(|| gateway.get("/").text() == "hello"));
}
