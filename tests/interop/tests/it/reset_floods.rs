//! Requests that a client wastes, one after the other on one connection: reset by it, or by the gateway for what it
//! sends. One budget holds for HTTP/2 and HTTP/3, whichever side resets; clients that also let requests be served keep within it.

use sealane_http::BodyLength;
use sealane_http::h3::Code;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::frames::{END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, block, frame, kind};
use sealane_interop::gateway::{Gateway, before, launch};
use sealane_interop::h3::{self, Client, Failure, over_quic};
use sealane_interop::site::{HOST, Site};
use sealane_interop::{binary, eventually, ports};
use std::collections::HashSet;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// The value of a field that makes a request long.
const FILLER: &str = match std::str::from_utf8(&[b'x'; 400]) {
    Ok(text) => text,
    Err(_) => "",
};
/// Requests that are tried; more than twice the budget.
const TRIED: u32 = 5_000;
/// Connections to the backend that these may cost: the budget of 256, some per second, and slack for a busy machine.
const MOST_CONNECTIONS: usize = 1_000;

fn backend() -> Backend {
    // Slow enough that requests are under way when they are called off.
    Backend::answering(|request| {
        if request.target() == "/slow" {
            std::thread::sleep(Duration::from_millis(200));
        }
        ok(b"hello")
    })
}

fn floods(gateway: &Gateway) -> f64 {
    gateway.metric_with("sealane_http2_connection_errors_total", "kind=\"flood\"").unwrap_or(0.0)
}

/// "Made you reset" (CVE-2025-8671): the gateway resets the stream, since the client breaks a rule of HTTP/2.
#[test]
fn http2_streams_reset_for_what_the_client_sends() {
    let head = |more: &[(&str, &str)], end: u8, stream| {
        let mut list = vec![(":method", "POST"), (":scheme", "http"), (":authority", HOST), (":path", "/slow")];
        // So that the gateway reads few requests at once.
        list.push(("x-filler", FILLER));
        list.extend(more);
        frame(kind::HEADERS, END_HEADERS | end, stream, &block(&list))
    };
    type Breach = (&'static str, Box<dyn Fn(u32) -> Vec<u8>>);
    let breaches: Vec<Breach> = vec![
        (
            "WINDOW_UPDATE beyond the largest window",
            Box::new(move |s| {
                let most = 0x7fff_ffffu32.to_be_bytes();
                [head(&[], END_STREAM, s), frame(kind::WINDOW_UPDATE, 0, s, &most)].concat()
            }),
        ),
        (
            "DATA beyond content-length",
            Box::new(move |s| [head(&[("content-length", "1")], 0, s), frame(kind::DATA, 0, s, b"two")].concat()),
        ),
        (
            "trailers that no message may have",
            Box::new(move |s| {
                let trailers = block(&[("connection", "close")]);
                let trailers = frame(kind::HEADERS, END_HEADERS | END_STREAM, s, &trailers);
                [head(&[], 0, s), frame(kind::DATA, 0, s, b"x"), trailers].concat()
            }),
        ),
    ];
    for (name, breach) in breaches {
        sealane_interop::say(name);
        let site = Site::new();
        let backend = backend();
        let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
        let mut frames = Frames::plain(gateway.address, &[]);
        let mut reader = Frames { stream: frames.stream.try_clone().expect("a socket can be cloned") };
        let began = Instant::now();
        let fate = std::thread::spawn(move || {
            let mut ended = HashSet::new();
            let fate = reader.find(|f| {
                if matches!(f.kind, kind::RST_STREAM | kind::HEADERS) {
                    ended.insert(f.stream);
                }
                f.kind == kind::GOAWAY && f.code() != 0
            });
            (fate.map(|f| f.code()), ended.len())
        });
        for round in 0..TRIED {
            if frames.stream.write_all(&breach(2 * round + 1)).is_err() {
                break;
            }
        }
        assert!(eventually(|| floods(&gateway) == 1.0), "{name}: {}", gateway.metrics());
        let (fate, ended) = fate.join().expect("it does not panic");
        // A reset may overtake the GOAWAY where the client goes on sending.
        assert!(fate.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{name}: GOAWAY {fate:?}");
        // The budget, what time has added to it, and twice what the gateway reads at once.
        let most = 256 + 32 * (began.elapsed().as_secs() as usize + 1) + 2 * 65_536 / breach(1).len();
        assert!(ended <= most, "{name}: {ended} streams, more than {most}");
        assert!(backend.connections() <= most, "{name}: {} connections", backend.connections());
    }
}

/// The same over HTTP/3: messages that the gateway answers with 400 or resets.
#[test]
fn http3_streams_reset_for_what_the_client_sends() {
    let mut length = h3::headers("POST", "/slow", &[], BodyLength::Known(1));
    length.extend(h3::data(b"two"));
    for (name, bytes) in [("DATA beyond content-length", length), ("a stream without a request", Vec::new())] {
        sealane_interop::say(name);
        let site = Site::new();
        let backend = backend();
        let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
        let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
        let ends = client.until(|client| {
            for _ in 0..50 {
                let Some(id) = client.quic.streams().open(quinn_proto::Dir::Bi) else { break };
                let _ = client.quic.send_stream(id).write(&bytes);
                let _ = client.quic.send_stream(id).finish();
            }
            client.lost.is_some()
        });
        assert!(ends, "{name}: {}", gateway.metrics());
        let Failure::Closed(code) = client.failure() else { panic!("{name}: {:?}", client.failure()) };
        assert_eq!(code, u64::from(Code::ExcessiveLoad.value()), "{name}");
        assert!(backend.connections() < MOST_CONNECTIONS, "{name}: {} connections", backend.connections());
    }
}

/// Many requests called off, as many served: over either version the connection stays.
#[test]
fn a_client_that_lets_requests_be_served_may_call_off_others() {
    const ROUNDS: u32 = 1_000;
    let site = Site::new();
    let backend = Backend::saying("hello");
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
    let mut frames = Frames::plain(gateway.address, &[]);
    for round in 0..ROUNDS {
        let (served, left) = (4 * round + 1, 4 * round + 3);
        frames.request(served, "GET", "/", &[], true).expect("the gateway reads");
        assert!(frames.find(|f| f.stream == served && f.flags & END_STREAM != 0).is_some(), "round {round}");
        frames.request(left, "GET", "/", &[], true).expect("the gateway reads");
        frames.send(kind::RST_STREAM, 0, left, &8u32.to_be_bytes()).expect("the gateway reads");
    }
    assert_eq!(floods(&gateway), 0.0);

    let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
    let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let get = h3::headers("GET", "/", &[], BodyLength::None);
    for _ in 0..ROUNDS {
        assert_eq!(client.get("/").status, 200);
        let id = client.open_silently(&get);
        client.reset(id, Code::RequestCancelled.value());
        client.pump_once();
    }
    assert!(client.lost.is_none());
}

/// "Rapid reset" (CVE-2023-44487): each request with its reset right behind it, so that the gateway reads both at once,
/// while the upstream takes its time. Such requests are not forwarded; beyond the budget the connection ends.
#[test]
fn http2_requests_that_come_with_their_reset_are_not_begun() {
    const FEW: u32 = 10;
    let list = [(":method", "GET"), (":scheme", "http"), (":authority", HOST), (":path", "/")];
    let pair = |stream: u32| {
        let head = frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &block(&list));
        [head, frame(kind::RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
    };
    for (pairs, pause) in [(1, Duration::ZERO), (1, Duration::from_millis(5)), (50, Duration::from_millis(5))] {
        sealane_interop::say(&format!("{pairs} in a write, {pause:?} apart"));
        let site = Site::new();
        let backend = Backend::answering(|_| {
            std::thread::sleep(Duration::from_secs(3));
            ok(b"hello")
        });
        let (address, admin) = (ports::free(), ports::free());
        let log = site.path().join("access.log");
        let text = before(&site, [backend.url()]).plain().listener("h2c = true").file(address, admin);
        let text = format!("{text}\n[log]\naccess = \"{}\"\nformat = \"json\"\n", log.display());
        let mut command = Command::new(binary::sealane());
        command.arg("serve").arg("-c").arg(site.file("logged.toml", text));
        let gateway = launch(&site, command, address, admin);
        let mut frames = Frames::plain(gateway.address, &[]);
        let few: Vec<u8> = (0..FEW).flat_map(|n| pair(2 * n + 1)).collect();
        frames.stream.write_all(&few).expect("the gateway reads");
        let resets = || gateway.metric("sealane_http2_streams_reset_total");
        assert!(eventually(|| resets() == Some(f64::from(FEW))), "{}", gateway.metrics());
        assert_eq!(backend.connections(), 0);
        let lines = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(eventually(|| lines().lines().count() == FEW as usize), "{}", lines());
        for line in lines().lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("a line is an object");
            assert_eq!(line["status"], 499, "{line}");
        }

        let mut next = FEW;
        while next < TRIED {
            let bytes: Vec<u8> = (next..next + pairs).flat_map(|n| pair(2 * n + 1)).collect();
            next += pairs;
            if frames.stream.write_all(&bytes).is_err() {
                break;
            }
            std::thread::sleep(pause);
        }
        assert!(eventually(|| floods(&gateway) == 1.0), "{}", gateway.metrics());
        // A reset may overtake the GOAWAY where the client goes on sending.
        let fate = frames.find(|f| f.kind == kind::GOAWAY && f.code() != 0).map(|f| f.code());
        assert!(fate.is_none_or(|code| code == ENHANCE_YOUR_CALM), "GOAWAY {fate:?}");
        // A read of the gateway's may end between the two frames.
        assert!(backend.connections() < 64, "{} connections to the backend", backend.connections());
    }
}
