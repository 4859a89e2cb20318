//! What readers that take nothing cost, in bytes of the gateway's memory, and that others are served beside them.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::client::{self, get};
use sealane_interop::frames::{Frames, kind};
use sealane_interop::gateway::{Gateway, before, configured};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, say};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Clients that read nothing. The kernel holds some megabytes for each.
const READERS: usize = 150;
/// What each may cost: the goal is 16 KiB, the rest is what the allocator does not give back at once.
const EACH: u64 = 20 << 10;
/// Longer than what the kernel's buffers take together.
const BODY: usize = 32 << 20;

/// Answers `/large` with a body that never ends for who does not read it, and says how much of it was taken.
fn backend(large: &Arc<AtomicUsize>) -> Backend {
    let large = large.clone();
    Backend::start(move |mut connection| {
        while let Some(request) = connection.request() {
            if request.target() != "/large" {
                connection.send(ok(b"hello"));
                continue;
            }
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n"));
            let piece = [b'x'; 16 << 10];
            for n in 0..BODY / piece.len() {
                if connection.wire.send(piece).is_err() {
                    return;
                }
                if n == 16 {
                    large.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    })
}

fn scene(site: &Site, large: &Arc<AtomicUsize>, tls: bool) -> (Backend, Gateway) {
    let backend = backend(large);
    let setup = before(site, [backend.url()]);
    let gateway = if tls { setup } else { setup.plain() }.start();
    (backend, gateway)
}

/// The gateway's memory once it does not change any more.
fn settled(gateway: &Gateway) -> u64 {
    let mut last = 0;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(200));
        let now = gateway.server.resident().unwrap_or(0);
        if now == last {
            break;
        }
        last = now;
    }
    last
}

/// Opens the readers, and says what each of them costs.
#[track_caller]
fn cost<W>(gateway: &Gateway, large: &AtomicUsize, mut open: impl FnMut() -> W) -> u64 {
    // What is allocated once is not counted.
    let mut readers: Vec<W> = (0..20).map(|_| open()).collect();
    assert!(eventually(|| large.load(Ordering::Relaxed) >= readers.len()), "{}", gateway.metrics());
    let first = settled(gateway);
    let warm = readers.len();
    while readers.len() < READERS {
        readers.push(open());
    }
    assert!(eventually(|| large.load(Ordering::Relaxed) >= readers.len()), "{}", gateway.metrics());
    let each = settled(gateway).saturating_sub(first) / (READERS - warm) as u64;
    say(&format!("a reader that takes nothing: {each} bytes"));
    each
}

/// What a reader costs in the best of three measurements: a kernel that runs short of memory takes less than it said.
#[track_caller]
fn best_of_three(tls: bool) {
    let site = Site::new();
    let mut costs = Vec::new();
    for _ in 0..3 {
        let large = Arc::default();
        let (_backend, gateway) = scene(&site, &large, tls);
        let request = get("/large");
        let each = if tls {
            cost(&gateway, &large, || {
                let mut wire = gateway.connect();
                wire.send(&request).expect("the gateway reads");
                Box::new(wire) as Box<dyn std::any::Any>
            })
        } else {
            cost(&gateway, &large, || {
                let mut wire = Wire::new(client::tcp(gateway.address));
                wire.send(&request).expect("the gateway reads");
                Box::new(wire) as Box<dyn std::any::Any>
            })
        };
        // Others are served beside them.
        let other = if tls { gateway.get("/") } else { gateway.plain_get("/", "") };
        assert_eq!(other.text(), "hello");
        if each < EACH {
            return;
        }
        costs.push(each);
    }
    panic!("{costs:?} bytes each");
}

#[test]
fn over_tls() {
    best_of_three(true);
}

#[test]
fn without_tls() {
    best_of_three(false);
}

/// A hundred streams whose windows stay closed, on each of ten connections.
#[test]
fn streams_with_closed_windows() {
    let site = Site::new();
    let backend = Backend::answering(|_| ok(&[b'x'; 256 << 10]));
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
    let open = || {
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let mut frames = Frames::plain(gateway.address, &[(4, 0)]);
        for stream in 0..100 {
            frames.request(2 * stream + 1, "GET", "/", &[], true).expect("the gateway reads");
        }
        for _ in 0..100 {
            frames.find(|f| f.kind == kind::HEADERS).expect("each gets its head");
        }
        frames
    };
    let first = open();
    let before = settled(&gateway);
    let all: Vec<_> = (0..10).map(|_| open()).collect();
    let each = settled(&gateway).saturating_sub(before) / 10;
    say(&format!("a connection with 100 stalled streams: {each} bytes"));
    assert!(each < 1536 << 10, "{each} bytes for each connection");
    drop((first, all));
}

/// Answers that nobody reads are not made: a client that sends requests without end gets no further than its window.
#[test]
fn requests_behind_answers_that_are_not_read_wait() {
    let site = Site::new();
    let body = "x".repeat(64 << 10);
    let text = format!(
        "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[[host]]\nnames = [\"*\"]\n\
         respond = {{ body = \"{body}\" }}\n"
    );
    let gateway = configured(&site, &text);
    let before = settled(&gateway);
    let mut wire = Wire::new(client::tcp(gateway.address));
    let count = 1000;
    wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n").repeat(count)).expect("the kernel takes it");
    let grown = settled(&gateway).saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes");
    // And once they are read, all of them come.
    for n in 0..count {
        let answer = wire.response("GET").unwrap_or_else(|broken| panic!("answer {n}: {broken:?}"));
        assert_eq!(answer.body.len(), body.len());
    }
}
