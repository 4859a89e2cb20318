//! A connection to an upstream that many requests share is lost: one takes its place, and each retry counts.

use sealane_http::BodyLength;
use sealane_interop::eventually;
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, frame, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h3_server::Server;
use sealane_interop::site::Site;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Requests that are under way when the connection is lost.
const SHARED: u32 = 80;
/// Those of one client: further ones would have narrow windows, and go over another connection.
const OF_A_CLIENT: u32 = 8;

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
    let clients = (0..SHARED / OF_A_CLIENT).map(|_| Frames::plain(gateway.address, &[]));
    let mut clients: Vec<Frames<TcpStream>> = clients.collect();
    clients[0].request(1, "GET", "/", &[], true).expect("the gateway reads");
    let head = clients[0].find(|f| f.kind == kind::HEADERS).expect("it is answered");
    assert_eq!((head.stream, head.payload[0]), (1, 0x88));
    for frames in &mut clients {
        for n in 1..=OF_A_CLIENT {
            frames.request(2 * n + 1, "GET", "/", &[], true).expect("the gateway reads");
        }
    }
    let (mut served, mut refused) = (0, 0);
    for frames in &mut clients {
        for _ in 0..OF_A_CLIENT {
            let head = frames.find(|f| f.kind == kind::HEADERS).expect("each is answered");
            if head.payload[0] == 0x88 { served += 1 } else { refused += 1 }
        }
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

/// Speaks HTTP/2 by prior knowledge; each connection is served by `serve`, which gets it after the preface and SETTINGS.
fn speaking(settings: &'static [u8], serve: impl Fn(Frames<TcpStream>) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || {
                let mut preface = [0; 24];
                if stream.read_exact(&mut preface).is_ok() {
                    let mut frames = Frames { stream };
                    let _ = frames.send(kind::SETTINGS, 0, 0, settings);
                    serve(frames);
                }
            });
        }
    });
    address
}

/// A head that the gateway does not accept ends the connection, and with it the requests beside it. Each of them has as many
/// tries as one that has the connection for itself.
#[test]
fn requests_that_share_a_connection_have_so_many_tries_each() {
    const TOGETHER: u32 = 4;
    let site = Site::new();
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = arrived.clone();
    let address = speaking(&[], move |mut frames| {
        let _ = frames.stream.set_read_timeout(Some(Duration::from_millis(500)));
        let mut first = None;
        for n in 0..TOGETHER {
            let Some(head) = frames.find(|f| f.kind == kind::HEADERS) else { break };
            counted.fetch_add(1, Ordering::SeqCst);
            first.get_or_insert(head.stream);
            if n + 1 == TOGETHER {
                break;
            }
        }
        let Some(stream) = first else { return };
        let long = "x".repeat(8000);
        let head = block(&[&[(":status", "200")][..], &[("x-long", &long[..]); 40]].concat());
        let mut bytes = Vec::new();
        for (i, piece) in head.chunks(16_000).enumerate() {
            let end = if (i + 1) * 16_000 >= head.len() { END_HEADERS } else { 0 };
            bytes.extend(frame(if i == 0 { kind::HEADERS } else { kind::CONTINUATION }, end, stream, piece));
        }
        let _ = frames.stream.write_all(&bytes);
        let _ = std::io::copy(&mut frames.stream, &mut std::io::sink());
    });
    let setup = before(&site, [format!("http://{address}")]).upstream("http = \"2\"\ntries = 3");
    let gateway = setup.upstream("retry_budget_min = 100").plain().listener("h2c = true").start();
    let mut frames = Frames::plain(gateway.address, &[]);
    for n in 0..TOGETHER {
        frames.request(2 * n + 1, "GET", "/", &[], true).expect("the gateway reads");
    }
    for _ in 0..TOGETHER {
        let head = frames.find(|f| f.kind == kind::HEADERS).expect("each is answered");
        assert_ne!(head.payload[0], 0x88, "{}", gateway.metrics());
    }
    let arrived = arrived.load(Ordering::SeqCst);
    assert!(arrived <= 3 * TOGETHER as usize, "{arrived} arrivals of {TOGETHER} requests with 3 tries");
    assert!(gateway.metric("sealane_upstream_retries_total") <= Some(f64::from(2 * TOGETHER)), "{}", gateway.metrics());
}

/// An upload for which one stream had no room goes on when the next one has.
#[test]
fn an_upload_that_waited_for_room_goes_on_with_the_next_try() {
    let site = Site::new();
    // SETTINGS_INITIAL_WINDOW_SIZE: 0.
    let address = speaking(&[0, 4, 0, 0, 0, 0], |mut frames| {
        let mut requests = 0;
        while let Some(f) = frames.find(|f| matches!(f.kind, kind::HEADERS | kind::DATA)) {
            requests += u32::from(f.kind == kind::HEADERS);
            match (requests, f.kind) {
                // It has the body by then, and no room for it.
                (2, _) => {
                    std::thread::sleep(Duration::from_millis(300));
                    let _ = frames.send(kind::RST_STREAM, 0, f.stream, &7u32.to_be_bytes());
                }
                (3, kind::HEADERS) => drop(frames.send(kind::WINDOW_UPDATE, 0, f.stream, &1000u32.to_be_bytes())),
                _ if f.flags & END_STREAM != 0 => {
                    let _ = frames.send(kind::HEADERS, END_HEADERS | END_STREAM, f.stream, &[0x88]);
                }
                _ => {}
            }
        }
    });
    let setup = before(&site, [format!("http://{address}")]).upstream("http = \"2\"");
    let gateway = setup.upstream("idle_timeout = \"3s\"").plain().start();
    assert_eq!(gateway.plain_get("/", "").status(), 200);
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let answer = gateway.plain(post).expect("a response");
    assert_eq!(answer.status(), 200, "{}", gateway.metrics());
    assert_eq!(gateway.metric("sealane_upstream_retries_total"), Some(1.0));
}

/// The statuses of requests that share a connection with one answered before, when the server sends `bytes(stream of the last)`
/// instead of their responses. Later connections answer all.
fn beside_bad_bytes(bytes: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Vec<bool> {
    const TOGETHER: u32 = 4;
    let site = Site::new();
    let connections = AtomicUsize::new(0);
    let address = speaking(&[], move |mut frames| {
        let first = connections.fetch_add(1, Ordering::SeqCst) == 0;
        let mut requests = 0;
        while let Some(head) = frames.find(|f| f.kind == kind::HEADERS) {
            requests += 1;
            if !first || requests == 1 {
                let _ = frames.send(kind::HEADERS, END_HEADERS | END_STREAM, head.stream, &[0x88]);
            } else if requests > TOGETHER {
                let _ = frames.stream.write_all(&bytes(head.stream));
                let _ = std::io::copy(&mut frames.stream, &mut std::io::sink());
                return;
            }
        }
    });
    let setup = before(&site, [format!("http://{address}")]).upstream("http = \"2\"\nretry_budget_min = 100");
    let gateway = setup.plain().listener("h2c = true").start();
    let mut frames = Frames::plain(gateway.address, &[]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    let head = frames.find(|f| f.kind == kind::HEADERS).expect("it is answered");
    assert_eq!((head.stream, head.payload[0]), (1, 0x88));
    for n in 1..=TOGETHER {
        frames.request(2 * n + 1, "GET", "/", &[], true).expect("the gateway reads");
    }
    let mut served = vec![false; TOGETHER as usize];
    for _ in 0..TOGETHER {
        let head = frames.find(|f| f.kind == kind::HEADERS).expect("each is answered");
        served[(head.stream / 2 - 1) as usize] = head.payload[0] == 0x88;
    }
    served
}

/// RFC 9113 §4.3: a head that does not decode ends the connection. The request that got it is not sent again.
#[test]
fn a_head_that_does_not_decode_fails_only_its_own_request() {
    // An index that no table has.
    let served = beside_bad_bytes(|stream| frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &[0xff, 0x80, 0x01]));
    assert_eq!(served, [true, true, true, false]);
}

#[test]
fn requests_beside_a_frame_that_is_not_allowed_are_sent_again() {
    // RFC 9113 §6.1: DATA on stream 0.
    let served = beside_bad_bytes(|_| frame(kind::DATA, 0, 0, &[0]));
    assert_eq!(served, [true; 4]);
}

/// RFC 9113 §8.1: DATA before HEADERS.
#[test]
fn a_body_without_a_head_fails_only_its_own_request() {
    let served = beside_bad_bytes(|stream| frame(kind::DATA, 0, stream, &[0]));
    assert_eq!(served, [true, true, true, false]);
}

/// What comes together with the wrong frame may be it. Neither is sent again, so that the next connection does not end in the
/// same way.
#[test]
fn responses_that_come_with_a_wrong_one_are_not_asked_for_again() {
    let served = beside_bad_bytes(|stream| {
        let bad = frame(kind::HEADERS, END_HEADERS | END_STREAM, stream - 2, &[0xff, 0x80, 0x01]);
        [bad, frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &[0x88])].concat()
    });
    assert_eq!(served, [true, true, false, false]);
}

/// A server that answers the first request of each connection and breaks the second: that is its failure, not the age of its
/// connections.
#[test]
fn a_second_loss_counts_as_a_failure_of_the_server() {
    let site = Site::new();
    let address = speaking(&[], |mut frames| {
        let mut requests = 0;
        while let Some(head) = frames.find(|f| f.kind == kind::HEADERS) {
            requests += 1;
            let broken = requests > 1;
            let bytes = match broken {
                true => frame(kind::DATA, 0, 0, &[0]),
                false => frame(kind::HEADERS, END_HEADERS | END_STREAM, head.stream, &[0x88]),
            };
            let _ = frames.stream.write_all(&bytes);
        }
    });
    let setup = before(&site, [format!("http://{address}")]).upstream("http = \"2\"\nretry_budget_min = 100");
    let gateway = setup.plain().listener("h2c = true").start();
    let mut frames = Frames::plain(gateway.address, &[]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    frames.find(|f| f.kind == kind::HEADERS).expect("it is answered");
    // Two at once: the second one of the next connection is lost again.
    frames.request(3, "GET", "/", &[], true).expect("the gateway reads");
    frames.request(5, "GET", "/", &[], true).expect("the gateway reads");
    let good =
        (0..2).filter(|_| frames.find(|f| f.kind == kind::HEADERS).expect("an answer").payload[0] == 0x88).count();
    assert_eq!(good, 1, "{}", gateway.metrics());
    let failures = || gateway.metric_with("sealane_server_failures_total", &format!("server=\"{address}\""));
    assert!(eventually(|| failures() == Some(1.0)), "{}", gateway.metrics());
}

#[test]
fn requests_beside_a_bad_response_over_http3_are_sent_again() {
    const TOGETHER: usize = 4;
    let site = Site::new();
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&arrived);
    let server = Server::start(&site.ecdsa, move |mut asked| {
        let nth = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match nth {
                1..TOGETHER => asked.called_off().await,
                // RFC 9114 §4.1: DATA before HEADERS.
                TOGETHER => asked.write(&[0, 1, 0xaa]).await,
                _ => {
                    asked.respond(200, &[], BodyLength::Known(0)).await;
                    asked.finish().await;
                }
            }
        }
    });
    let setup = before(&site, [server.url()]).plain().upstream("http = \"3\"\nretry_budget_min = 100");
    let gateway = setup.upstream_tls(&format!("ca = {:?}", site.ca)).start();
    assert_eq!(gateway.plain_get("/", "").status(), 200);
    let mut statuses = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..TOGETHER).map(|_| scope.spawn(|| gateway.plain_get("/", "").status())).collect();
        asking.into_iter().map(|a| a.join().expect("it does not panic")).collect::<Vec<_>>()
    });
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 502], "{}", gateway.metrics());
    assert_eq!(server.connections(), 2);
}
