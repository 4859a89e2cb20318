//! HTTP/1.1 and TLS handshakes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use sealane_lab_load::plan::{Kind, Operation, Pace, Protocol};
use sealane_lab_load::schedule::Arrivals;
use sealane_lab_load::tls::{TlsVersions, Verify};
use sealane_lab_load::{LoadError, hlog, html};

use crate::server::{Manner, Pki, Seen, Server, hello, plan, plan_for, run};

#[test]
fn as_many_requests_as_asked_for_over_two_threads() {
    let server = Server::plain(hello);
    let mut plan = plan(&format!("http://{}/", server.address));
    (plan.threads, plan.duration, plan.requests) = (2, None, Some(1001));
    let report = run(&plan);
    assert_eq!((report.completed, report.failed, report.statuses["2xx"]), (1001, 0, 1001));
    assert_eq!(Seen::count(&server.seen.requests), 1001);
    // One of them looked whether anybody was there.
    assert_eq!(Seen::count(&server.seen.connections), 4 + 1);
    assert!(report.void.is_empty(), "{:?}", report.void);
    assert_eq!(report.r#loop, "closed");
    assert_eq!(report.latency.unwrap().samples, 1001);
}

#[test]
fn a_stalling_server_shows_in_corrected_and_hides_in_uncorrected_percentiles() {
    // A tenth of the time; as 500 ms every 5 s, scaled down.
    let stall = Some((Duration::from_millis(100), Duration::from_secs(1)));
    let server = Server::start(Manner { tls: Vec::new(), answer: hello, stall });
    let mut plan = plan(&format!("http://{}/", server.address));
    (plan.connections, plan.duration) = (1, Some(Duration::from_secs(4)));
    plan.pace = Pace::Open { rate: 300.0, arrivals: Arrivals::Uniform };
    let report = run(&plan);
    let times = &report.kinds["request"];
    let (corrected, actual) = (times.corrected.as_ref().unwrap(), times.uncorrected.as_ref().unwrap());
    assert_eq!(corrected.samples, 1200);
    // Half of those that fall into a stall wait for more than half of it: a twentieth of all.
    assert!(corrected.percentiles["p95"] > 40_000_000, "{corrected:?}");
    // On the wire only one request in each stall is slow, which is less than one in a hundred.
    assert!(actual.percentiles["p95"] * 2 < corrected.percentiles["p95"], "{actual:?}");
    assert!(actual.max >= 50_000_000 && corrected.max >= actual.max);
}

fn framed(path: &str) -> Vec<u8> {
    match path {
        "/chunked" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_vec(),
        "/until-close" => b"HTTP/1.1 200 OK\r\n\r\nhello".to_vec(),
        "/close" => b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno".to_vec(),
        "/nothing" => b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n".to_vec(),
        "/large" => [b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n".to_vec(), vec![b'x'; 3_000_000]].concat(),
        "/garbage" => b"Content-Length: 1\r\n\r\nx".to_vec(),
        "/cut" => b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nabc".to_vec(),
        _ => b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_vec(),
    }
}

#[test]
fn every_framing_ends_where_it_should() {
    let pki = Pki::new(&[]);
    let plain = Server::plain(framed);
    let manner = Manner { tls: vec![Arc::new(pki.config(0, 2, false))], answer: framed, stall: None };
    let tls = Server::start(manner);
    for base in [format!("http://{}", plain.address), format!("https://localhost:{}", tls.address.port())] {
        for (path, class) in [
            ("/chunked", "2xx"),
            ("/until-close", "2xx"),
            ("/close", "4xx"),
            ("/nothing", "2xx"),
            ("/large", "2xx"),
            ("/other", "5xx"),
        ] {
            let mut plan = plan(&format!("{base}{path}"));
            plan.tls.ca = Some(pki.ca());
            (plan.duration, plan.requests) = (None, Some(12));
            let report = run(&plan);
            assert_eq!((report.completed, report.failed), (12, 0), "{base}{path}: {:?}", report.failures);
            assert_eq!(report.statuses[class], 12, "{base}{path}");
        }
        for (path, failure) in [("/garbage", "malformed"), ("/cut", "closed")] {
            let mut plan = plan(&format!("{base}{path}"));
            plan.tls.ca = Some(pki.ca());
            plan.duration = Some(Duration::from_millis(300));
            let report = run(&plan);
            assert_eq!(report.completed, 0);
            assert!(report.failures[failure].count > 0, "{base}{path}: {:?}", report.failures);
            assert!(!report.void.is_empty());
        }
    }
}

#[test]
fn urls_get_their_weights_and_servers_theirs() {
    let (one, other) = (Server::plain(hello), Server::plain(hello));
    let urls = [
        (&*format!("http://{}/a", one.address), 6),
        (&*format!("http://{}/b", one.address), 2),
        (&*format!("http://{}/c", other.address), 2),
    ];
    let mut plan = plan_for(&urls);
    plan.duration = Some(Duration::from_secs(2));
    plan.pace = Pace::Open { rate: 500.0, arrivals: Arrivals::Poisson };
    let report = run(&plan);
    let paths = one.seen.paths.lock().unwrap();
    // 600, 200 and 200 are expected; the seed is fixed, the bounds are ten deviations.
    assert!((400..800).contains(&paths["/a"]) && (100..340).contains(&paths["/b"]), "{paths:?}");
    assert!((60..340).contains(&Seen::count(&other.seen.requests)));
    assert_eq!(report.completed as usize, Seen::count(&one.seen.requests) + Seen::count(&other.seen.requests));
}

fn connections(mix: &[(Kind, u32)]) -> Operation {
    Operation::Connection { request: true, mix: mix.to_vec() }
}

#[test]
fn full_is_full_and_resumed_is_resumed() {
    let pki = Pki::new(&[]);
    for versions in [TlsVersions::Tls12, TlsVersions::Tls13] {
        for (kind, request) in [(Kind::Full, true), (Kind::Resumed, true), (Kind::Resumed, false)] {
            let server = Server::tls(pki.config(0, 2, false));
            let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
            plan.tls.ca = Some(pki.ca());
            plan.tls.versions = versions;
            plan.operation = Operation::Connection { request, mix: vec![(kind, 1)] };
            (plan.duration, plan.requests) = (None, Some(60));
            let report = run(&plan);
            let h = report.handshakes.unwrap();
            let what = format!("{versions:?} {kind:?} {request}: {h:?} {:?}", report.failures);
            assert_eq!((report.completed, report.failed, h.not_resumed, h.no_ticket), (60, 0, 0, 0), "{what}");
            let expected = if kind == Kind::Full { (60, 0) } else { (0, 60) };
            assert_eq!((h.full, h.resumed), expected, "{what}");
            assert!(report.void.is_empty(), "{what} {:?}", report.void);
            // The client may be through before the server's thread has counted.
            while (Seen::count(&server.seen.resumed) as u64) < h.resumed {
                std::thread::yield_now();
            }
            assert_eq!(Seen::count(&server.seen.resumed) as u64, h.resumed, "{what}");
            assert!(h.tickets > 0 || versions == TlsVersions::Tls12, "{what}");
            assert_eq!(report.statuses.contains_key("2xx"), request);
        }
    }
}

#[test]
fn a_mix_has_a_histogram_for_each_kind() {
    let pki = Pki::new(&[]);
    let server = Server::tls(pki.config(0, 4, false));
    let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
    plan.tls.ca = Some(pki.ca());
    plan.operation = connections(&[(Kind::Full, 20), (Kind::Resumed, 80)]);
    (plan.duration, plan.requests) = (None, Some(300));
    let report = run(&plan);
    let samples = |kind: &str| report.kinds[kind].handshake.as_ref().unwrap().samples;
    assert_eq!(samples("full") + samples("resumed"), 300);
    // 60 expected, deviation 7.
    assert!((20..110).contains(&samples("full")), "{}", samples("full"));
    assert!(report.kinds["full"].connect.is_some() && report.kinds["full"].first_byte.is_some());
}

#[test]
fn early_data_is_counted_as_taken_refused_or_impossible() {
    let pki = Pki::new(&[]);
    let run_with = |tls: Vec<Arc<rustls::ServerConfig>>| {
        let server = Server::start(Manner { tls, answer: hello, stall: None });
        let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
        plan.tls.ca = Some(pki.ca());
        plan.connections = 1;
        plan.operation = connections(&[(Kind::EarlyData, 1)]);
        (plan.duration, plan.requests) = (None, Some(20));
        let report = run(&plan);
        let early = Seen::count(&server.seen.early) as u64;
        (report, early)
    };
    let (taken, saw) = run_with(vec![Arc::new(pki.config(16_384, 2, false))]);
    let h = taken.handshakes.unwrap();
    assert_eq!(
        (h.early_accepted, h.early_data, h.early_rejected, h.early_not_offered, saw),
        (20, 20, 0, 0, 20),
        "{h:?}"
    );
    assert!(taken.void.is_empty(), "{:?}", taken.void);

    // The look before the run and the ticket's connection: with early data. Then the server changes its mind.
    let generous = Arc::new(pki.config(16_384, 1, false));
    let mut strict = pki.config(0, 1, false);
    strict.session_storage = generous.session_storage.clone();
    let (refused, saw) = run_with(vec![generous.clone(), generous, Arc::new(strict)]);
    let h = refused.handshakes.unwrap();
    assert_eq!(
        (h.early_accepted, saw, refused.completed, refused.failed),
        (0, 0, 20, 0),
        "{h:?} {:?}",
        refused.failures
    );
    assert_eq!((h.early_rejected, h.early_not_offered), (1, 19), "{h:?}");
    assert!(refused.void.iter().any(|why| why.contains("early data")), "{:?}", refused.void);
}

#[test]
fn a_server_without_tickets_voids_a_run_that_wanted_them() {
    let pki = Pki::new(&[]);
    let server = Server::tls(pki.config(0, 0, false));
    let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
    plan.tls.ca = Some(pki.ca());
    plan.tls.versions = TlsVersions::Tls13;
    plan.operation = connections(&[(Kind::Resumed, 1)]);
    (plan.duration, plan.requests) = (None, Some(20));
    let report = run(&plan);
    assert_eq!((report.handshakes.unwrap().no_ticket, report.completed), (20, 20));
    assert!(report.void.iter().any(|why| why.contains("without a ticket")), "{:?}", report.void);
}

#[test]
fn names_get_their_weights() {
    let pki = Pki::new(&["a.test", "b.test"]);
    let server = Server::tls(pki.config(0, 1, false));
    let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
    plan.tls.ca = Some(pki.ca());
    plan.names = vec![("a.test".into(), 3), ("b.test".into(), 1)];
    plan.operation = connections(&[(Kind::Full, 1)]);
    (plan.duration, plan.requests) = (None, Some(200));
    let report = run(&plan);
    assert_eq!((report.completed, report.failed), (200, 0));
    let names = server.seen.names.lock().unwrap();
    assert!((110..190).contains(&names["a.test"]) && names["b.test"] >= 10, "{names:?}");
    assert!(!names.contains_key("localhost"));
}

#[test]
fn what_is_verified_is_what_was_asked_for() {
    let pki = Pki::new(&[]);
    let stranger = Pki::new(&[]);
    let server = Server::tls(pki.config(0, 2, false));
    let attempt = |host: &str, verify, ca| {
        let mut plan = plan(&format!("https://{host}:{}/", server.address.port()));
        plan.tls.verify = verify;
        plan.tls.ca = ca;
        (plan.duration, plan.requests) = (None, Some(8));
        sealane_lab_load::run(&plan, &AtomicBool::new(false), |_| {}).map(|r| r.completed)
    };
    assert_eq!(attempt("localhost", Verify::Full, Some(pki.ca())), Ok(8));
    assert_eq!(attempt("other.test", Verify::Chain, Some(pki.ca())), Ok(8));
    assert_eq!(attempt("other.test", Verify::Signature, None), Ok(8));
    assert_eq!(attempt("other.test", Verify::None, None), Ok(8));
    for (host, verify, ca) in [
        ("other.test", Verify::Full, pki.ca()),
        ("localhost", Verify::Chain, stranger.ca()),
        ("localhost", Verify::Full, stranger.ca()),
    ] {
        let said = attempt(host, verify, Some(ca));
        assert!(
            matches!(&said, Err(LoadError::Unreachable(why)) if why.contains("certificate") && why.contains("--verify")),
            "{said:?}"
        );
    }
}

#[test]
fn a_client_certificate_is_shown_where_it_is_wanted() {
    let pki = Pki::new(&[]);
    let server = Server::tls(pki.config(0, 2, true));
    let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
    plan.tls.ca = Some(pki.ca());
    plan.operation = connections(&[(Kind::Full, 1)]);
    (plan.duration, plan.requests) = (None, Some(10));
    plan.timeout = Duration::from_secs(2);
    let without = sealane_lab_load::run(&plan, &AtomicBool::new(false), |_| {});
    assert!(without.as_ref().map_or(true, |r| r.completed == 0), "{without:?}");
    plan.tls.identity = Some(pki.identity());
    assert_eq!(run(&plan).completed, 10);
}

#[test]
fn nobody_there_and_not_http2_are_said_clearly() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = sealane_lab_load::run(&plan(&format!("http://{gone}/")), &AtomicBool::new(false), |_| {});
    assert!(matches!(&said, Err(LoadError::Unreachable(why)) if why.contains("refused")), "{said:?}");

    let pki = Pki::new(&[]);
    let server = Server::tls(pki.config(0, 2, false));
    let mut plan = plan(&format!("https://localhost:{}/", server.address.port()));
    plan.tls.ca = Some(pki.ca());
    plan.protocol = Protocol::Http2;
    let said = sealane_lab_load::run(&plan, &AtomicBool::new(false), |_| {});
    assert!(matches!(&said, Err(LoadError::Unreachable(why)) if why.contains("HTTP/2")), "{said:?}");
}

#[test]
fn slow_answers_time_out_and_what_never_started_is_counted() {
    let stall = Some((Duration::from_secs(3600), Duration::from_secs(3600)));
    let server = Server::start(Manner { tls: Vec::new(), answer: hello, stall });
    let mut plan = plan(&format!("http://{}/", server.address));
    plan.connections = 2;
    plan.duration = Some(Duration::from_millis(500));
    plan.timeout = Duration::from_millis(300);
    plan.pace = Pace::Open { rate: 100.0, arrivals: Arrivals::Uniform };
    let report = run(&plan);
    assert_eq!(report.completed, 0);
    assert!(report.failures["timeout"].count >= 2, "{:?}", report.failures);
    // All fifty are accounted for, one way or the other.
    assert_eq!(report.failed + report.unstarted, 50);
}

#[test]
fn the_log_holds_every_sample_and_the_page_its_charts() {
    let server = Server::plain(hello);
    let mut plan = plan(&format!("http://{}/", server.address));
    plan.duration = Some(Duration::from_secs(1));
    plan.interval = Some(Duration::from_millis(200));
    plan.pace = Pace::Open { rate: 400.0, arrivals: Arrivals::Uniform };
    let mut glimpses = 0;
    let report = sealane_lab_load::run(&plan, &AtomicBool::new(false), |live| {
        assert!(live.seconds > 0.0 && live.total == Some(1.0));
        glimpses += 1;
    })
    .unwrap();
    assert!(glimpses >= 4);
    let mut log = Vec::new();
    hlog::write(&report, &mut log).unwrap();
    let mut tagged = 0;
    for entry in IntervalLogIterator::new(&log) {
        let LogEntry::Interval(interval) = entry.unwrap() else { continue };
        if interval.tag().is_some_and(|t| t.as_str() == "request-intended") {
            use hdrhistogram::serialization::Deserializer;
            let bytes = interval.encoded_histogram().as_bytes().to_vec();
            let raw = unbase64(&bytes);
            let h: hdrhistogram::Histogram<u64> = Deserializer::new().deserialize(&mut raw.as_slice()).unwrap();
            assert_eq!(h, report.record.overall());
            tagged += 1;
        }
    }
    assert_eq!(tagged, 1);
    let page = html::page(&report);
    assert!(page.contains("<svg") && page.contains("Over time") && !page.contains("<script"));
}

fn unbase64(text: &[u8]) -> Vec<u8> {
    let value = |b: u8| match b {
        b'A'..=b'Z' => b - b'A',
        b'a'..=b'z' => b - b'a' + 26,
        b'0'..=b'9' => b - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut out = Vec::new();
    for four in text.chunks(4) {
        let n = four.iter().filter(|b| **b != b'=').count();
        let bits = four.iter().fold(0u32, |all, b| all << 6 | u32::from(if *b == b'=' { 0 } else { value(*b) }));
        out.extend_from_slice(&bits.to_be_bytes()[1..n]);
    }
    out
}

#[test]
fn the_servers_cpu_time_and_memory_are_accounted() {
    let server = Server::plain(hello);
    let mut plan = plan(&format!("http://{}/", server.address));
    plan.duration = Some(Duration::from_millis(500));
    // The server is this very process, the generator's threads included: an upper bound of its cost.
    plan.servers = vec![std::process::id()];
    let report = run(&plan);
    let cost = report.server.unwrap();
    assert!(cost.cpu_ns > 0 && cost.rss > 1 << 20 && cost.operations > 0);
    assert!(cost.cpu_ns >= report.client.cpu_ns, "{cost:?} {:?}", report.client);
    plan.servers = vec![u32::MAX - 1];
    let said = sealane_lab_load::run(&plan, &AtomicBool::new(false), |_| {});
    assert!(matches!(said, Err(LoadError::Usage(_))));
}
