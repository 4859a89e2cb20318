//! What is written leaves, also where the peer sends nothing more: large heads of responses that the gateway itself makes, over every
//! version of HTTP, and large heads of requests to a server that reads late.

use sealane_http::BodyLength;
use sealane_interop::client;
use sealane_interop::eventually;
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, frame, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h3::{Client, headers, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::Listening;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Requests that are sent at once.
const REQUESTS: u32 = 120;
/// How long a response takes at most that has been made.
const SOON: Duration = Duration::from_secs(10);

/// A gateway whose responses have a body or none, and a large head.
fn with_large_heads(site: &Site) -> (Gateway, SocketAddr) {
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nrespond = {{ status = 204 }}\nresponse_headers = {{ set = {{ X-Big = {:?} }} }}\n\
         [[host.route]]\npath = \"/body\"\nrespond = {{ body = \"hello\" }}\n",
        "b".repeat(5000)
    );
    Listening { rest: &rest, ..Listening::default() }.start(site)
}

/// The target of a large request.
fn target(path: &str) -> String {
    format!("{path}?{}", "a".repeat(6000))
}

/// HEADERS of requests on the first streams of a connection, behind its preface.
fn requests(path: &str, count: u32) -> Vec<u8> {
    let list = [(":method", "GET"), (":scheme", "http"), (":authority", HOST), (":path", path)];
    let head = block(&list);
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(kind::SETTINGS, 0, 0, &[]));
    for n in 0..count {
        bytes.extend(frame(kind::HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &head));
    }
    bytes
}

/// How many streams end while the client sends nothing more.
fn ended<S: Read + Write>(frames: &mut Frames<S>) -> u32 {
    let mut ended = 0;
    while ended < REQUESTS
        && let Ok(frame) = frames.receive()
    {
        ended += u32::from(matches!(frame.kind, kind::HEADERS | kind::DATA) && frame.flags & END_STREAM != 0);
    }
    ended
}

#[test]
fn over_http2_they_leave_without_another_frame_of_the_client() {
    let site = Site::new();
    let (gateway, plain) = with_large_heads(&site);
    let mut config = client::config(gateway.ca());
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    for path in ["/", "/body"] {
        let bytes = requests(&target(path), REQUESTS);
        let mut stream = client::tcp(plain);
        stream.set_read_timeout(Some(SOON)).expect("a timeout above zero is allowed");
        stream.write_all(&bytes).expect("the gateway reads");
        assert_eq!(ended(&mut Frames { stream }), REQUESTS, "{path}");
        let mut stream = client::connect(gateway.address, &config).stream;
        stream.sock.set_read_timeout(Some(SOON)).expect("a timeout above zero is allowed");
        stream.write_all(&bytes).expect("the gateway reads");
        assert_eq!(ended(&mut Frames { stream }), REQUESTS, "{path} over TLS");
    }
}

#[test]
fn over_http1_they_leave_one_after_the_other() {
    let site = Site::new();
    let (_gateway, plain) = with_large_heads(&site);
    let stream = client::tcp(plain);
    stream.set_read_timeout(Some(SOON)).expect("a timeout above zero is allowed");
    let mut wire = Wire::new(stream);
    let request = |n: u32| format!("GET {} HTTP/1.1\r\nHost: {HOST}\r\n\r\n", target(["/", "/body"][n as usize % 2]));
    wire.send((0..REQUESTS).map(request).collect::<String>()).expect("the gateway reads");
    for n in 0..REQUESTS {
        let response = wire.response("GET").unwrap_or_else(|broken| panic!("response {n}: {broken:?}"));
        assert_eq!(response.status(), [204, 200][n as usize % 2]);
    }
}

#[test]
fn over_http3_they_leave_without_another_stream() {
    let site = Site::new();
    let (gateway, _) = with_large_heads(&site);
    let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let open = |n: usize| client.open(&headers("GET", &target(["/", "/body"][n % 2]), &[], BodyLength::None), true);
    let streams: Vec<_> = (0..80).map(open).collect();
    for id in streams {
        assert!(matches!(client.response(id).expect("a response").status, 200 | 204));
    }
}

/// A server that reads nothing for a while, so that large requests fill the way to it, and answers none before all have come.
#[test]
fn requests_to_an_http2_server_leave_before_it_answers_any() {
    const CLIENTS: usize = 4;
    let site = Site::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("a bound socket has an address");
    let (reads, come) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let server = (reads.clone(), come.clone());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (reads, come) = server.clone();
            thread::spawn(move || {
                let mut frames = Frames { stream };
                let mut preface = [0; PREFACE.len()];
                if frames.stream.read_exact(&mut preface).is_err() {
                    return;
                }
                // The SETTINGS of both sides; the gateway's requests wait for ours.
                let _ = frames.send(kind::SETTINGS, 0, 0, &[]);
                eventually(|| reads.load(Ordering::Relaxed));
                while let Ok(frame) = frames.receive() {
                    let ends = frame.kind == kind::HEADERS && frame.flags & END_STREAM != 0;
                    come.fetch_add(usize::from(ends), Ordering::Relaxed);
                }
            });
        }
    });
    let gateway =
        before(&site, [format!("http://{address}")]).plain().listener("h2c = true").upstream("http = \"2\"").start();
    // Of each client as many as it may have at once.
    let wanted = CLIENTS * REQUESTS as usize;
    let bytes = requests(&format!("/?{}", "~".repeat(8000)), REQUESTS);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut stream = client::tcp(gateway.address);
            stream.write_all(&bytes).expect("the gateway reads");
            stream
        })
        .collect();
    assert!(eventually(|| gateway.metric("sealane_requests_active") == Some(wanted as f64)), "{}", gateway.metrics());
    reads.store(true, Ordering::Relaxed);
    assert!(
        eventually(|| come.load(Ordering::Relaxed) == wanted),
        "{} of {wanted} requests",
        come.load(Ordering::Relaxed)
    );
    drop(clients);
}
