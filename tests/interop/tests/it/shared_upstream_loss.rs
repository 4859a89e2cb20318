//! A connection to an upstream that many requests share is lost: one takes its place, and each retry counts.

use sealane_interop::eventually;
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, frame, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::site::Site;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Requests that are under way when the connection is lost.
const SHARED: u32 = 80;

/// Speaks HTTP/2 by prior knowledge. The first connection answers one request, takes [`SHARED`] more, and closes; those
/// after it answer all.
fn upstream() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            std::thread::spawn(move || serve(stream, first));
        }
    });
    (address, connections)
}

fn serve(mut stream: TcpStream, first: bool) {
    let mut preface = [0; 24];
    if stream.read_exact(&mut preface).is_err() {
        return;
    }
    let mut frames = Frames { stream };
    let _ = frames.send(kind::SETTINGS, 0, 0, &[]);
    let mut requests = 0;
    while let Ok(f) = frames.receive() {
        if f.kind != kind::HEADERS {
            continue;
        }
        requests += 1;
        if !first || requests == 1 {
            // 200, by its index in HPACK's static table.
            let answer = frame(kind::HEADERS, END_HEADERS | END_STREAM, f.stream, &[0x88]);
            let _ = frames.stream.write_all(&answer);
        } else if requests > SHARED {
            return;
        }
    }
}

/// The statuses of as many requests at once, of which the first byte of the header block tells: 0x88 is 200.
fn ask(gateway: &Gateway) -> (usize, usize) {
    let mut frames = Frames::plain(gateway.address, &[]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    let head = frames.find(|f| f.kind == kind::HEADERS).expect("it is answered");
    assert_eq!((head.stream, head.payload[0]), (1, 0x88));
    for n in 1..=SHARED {
        frames.request(2 * n + 1, "GET", "/", &[], true).expect("the gateway reads");
    }
    let (mut served, mut refused) = (0, 0);
    for _ in 0..SHARED {
        let head = frames.find(|f| f.kind == kind::HEADERS).expect("each is answered");
        if head.payload[0] == 0x88 { served += 1 } else { refused += 1 }
    }
    (served, refused)
}

#[test]
fn one_connection_takes_the_place_of_the_one_that_was_lost() {
    let site = Site::new();
    let (address, connections) = upstream();
    let setup = before(&site, [format!("http://{address}")]).upstream("http = \"2\"");
    let setup = setup.upstream("retry_budget_min = 100").limits("max_streams = 128");
    let gateway = setup.plain().listener("h2c = true").start();
    assert_eq!(ask(&gateway), (SHARED as usize, 0), "{}", gateway.metrics());
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(f64::from(SHARED)));
}

#[test]
fn retries_after_the_loss_are_within_the_budget() {
    let site = Site::new();
    let (address, connections) = upstream();
    let setup = before(&site, [format!("http://{address}")]).upstream("http = \"2\"");
    let setup = setup.upstream("retry_budget = 0").upstream("retry_budget_min = 0").limits("max_streams = 128");
    let gateway = setup.plain().listener("h2c = true").start();
    assert_eq!(ask(&gateway), (0, SHARED as usize), "{}", gateway.metrics());
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    let denied = || gateway.metric("sealane_upstream_retries_denied_total");
    assert!(eventually(|| denied() == Some(f64::from(SHARED))), "{}", gateway.metrics());
}
