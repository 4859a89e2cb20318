//! Rules about requests that hold over every version of HTTP: who they are for, which methods there are, what trailers
//! may hold.

use sealane_interop::backend::Backend;
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, kind};
use sealane_interop::gateway::Gateway;
use sealane_interop::h3::{Client, Failure, data, headers, over_quic};
use sealane_interop::site::Site;
use sealane_interop::versions::{Asked, Everywhere, Listening};
use std::net::SocketAddr;

fn gateway(site: &Site, backend: &Backend, listener: &str) -> (Gateway, SocketAddr) {
    let rest = format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", backend.url());
    Listening { both: listener, rest: &rest, ..Listening::default() }.start(site)
}

#[test]
fn trace_is_refused_unless_it_is_allowed() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (refusing, plain) = gateway(&site, &backend, "");
    let mut every = Everywhere::new(&refusing, plain);
    let asked = Asked { method: "TRACE", target: "/", ..Asked::default() };
    assert_eq!(every.ask(asked).map(|(status, _)| status), [405; 3]);
    assert_eq!(refusing.metric_with("sealane_methods_refused_total", "TRACE"), Some(3.0));
    assert!(backend.requests().is_empty());
    let (allowing, plain) = gateway(&site, &backend, "allow_trace = true");
    let mut every = Everywhere::new(&allowing, plain);
    assert_eq!(every.ask(asked).map(|(status, _)| status), [200; 3]);
    assert_eq!(backend.last().method(), "TRACE");
}

/// The status of a response over HTTP/2, or the code that its stream is reset with.
fn answer(frames: &mut Frames<std::net::TcpStream>, stream: u32) -> Result<String, u32> {
    let frame = frames.find(|f| f.stream == stream && matches!(f.kind, kind::HEADERS | kind::RST_STREAM));
    let frame = frame.expect("the stream is answered");
    match frame.kind {
        kind::RST_STREAM => Err(frame.code()),
        _ => Ok(status(&frame.payload)),
    }
}

/// RFC 7541, Appendix A: 200 and 400 are in the static table.
fn status(block: &[u8]) -> String {
    match block {
        [0x88, ..] => "200".to_owned(),
        [0x8c, ..] => "400".to_owned(),
        other => format!("{other:02x?}"),
    }
}

#[test]
fn a_host_without_an_authority_is_enough() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, &backend, "");
    // RFC 9113 §8.3.1.
    let mut frames = Frames::plain(plain, &[]);
    let list = [(":method", "GET"), (":scheme", "http"), (":path", "/second"), ("host", "named.example")];
    frames.send(kind::HEADERS, END_HEADERS | END_STREAM, 1, &block(&list)).expect("it is read");
    assert_eq!(answer(&mut frames, 1), Ok("200".to_owned()));
    assert_eq!(backend.last().header("host"), Some("named.example"));
    // With neither, nobody knows whom it is for; and both must not differ.
    frames.send(kind::HEADERS, END_HEADERS | END_STREAM, 3, &block(&list[..3])).expect("it is read");
    assert_eq!(answer(&mut frames, 3), Ok("400".to_owned()));
    let differing = [list.as_slice(), &[]].concat();
    let differing = [&[(":authority", "other.example")], &differing[..]].concat();
    frames.send(kind::HEADERS, END_HEADERS | END_STREAM, 5, &block(&differing)).expect("it is read");
    assert_eq!(answer(&mut frames, 5), Ok("400".to_owned()));
    assert_eq!(backend.requests().len(), 1);
    // RFC 9114 §4.3.1.
    let mut third = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let section = |fields: &[(&str, &str)]| {
        let mut block = vec![0, 0];
        for (name, value) in fields {
            // RFC 9204 §4.5.6: a literal with a literal name.
            sealane_interop::frames::integer(&mut block, 0x20, 3, name.len());
            block.extend(name.bytes());
            sealane_interop::frames::integer(&mut block, 0, 7, value.len());
            block.extend(value.bytes());
        }
        let mut frame = vec![1];
        frame.extend(quic_integer(block.len()));
        frame.extend(block);
        frame
    };
    let list = [(":method", "GET"), (":scheme", "https"), (":path", "/third"), ("host", "named.example")];
    let response = third.exchange(&section(&list), b"").expect("a response");
    assert_eq!(response.status, 200);
    assert_eq!((backend.last().target(), backend.last().header("host")), ("/third", Some("named.example")));
    assert_eq!(third.exchange(&section(&list[..3]), b"").expect("a response").status, 400);
}

/// RFC 9000 §16, with two bytes.
fn quic_integer(n: usize) -> [u8; 2] {
    (0x4000 | u16::try_from(n).expect("a test's frame is short")).to_be_bytes()
}

#[test]
fn pseudo_fields_in_trailers_are_an_error() {
    let site = Site::new();
    let backend = Backend::saying("hello");
    let (gateway, plain) = gateway(&site, &backend, "");
    for trailer in [(":path", "/other"), (":status", "200"), (":unknown", "x")] {
        let mut frames = Frames::plain(plain, &[]);
        frames.request(1, "POST", "/", &[], false).expect("it is read");
        frames.send(kind::DATA, 0, 1, b"hello").expect("it is read");
        let trailers = block(&[trailer, ("x-checksum", "1")]);
        frames.send(kind::HEADERS, END_HEADERS | END_STREAM, 1, &trailers).expect("it is read");
        // RFC 9113 §8.1.1: PROTOCOL_ERROR, of the stream or of the connection; before it there may be a response.
        let fate = frames.find(|f| matches!(f.kind, kind::HEADERS | kind::RST_STREAM | kind::GOAWAY));
        let fate = fate.expect("the stream ends");
        match fate.kind {
            kind::HEADERS => assert_eq!(status(&fate.payload), "400", "{trailer:?}"),
            _ => assert_eq!(fate.code(), 1, "{trailer:?}"),
        }
    }
    let mut third = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let mut bytes = headers("POST", "/", &[], sealane_http::BodyLength::Chunked);
    bytes.extend(data(b"hello"));
    // A HEADERS frame: prefix, then `:path` by the static table's name with a value (RFC 9204 §4.5.4).
    bytes.extend([1, 5, 0, 0, 0x51, 1, b'/']);
    let id = third.open(&bytes, true);
    match third.response(id) {
        Ok(response) => assert_eq!(response.status, 400),
        // H3_MESSAGE_ERROR.
        Err(failure) => assert_eq!(failure, Failure::Reset(0x10e)),
    }
    for request in backend.requests() {
        assert!(request.trailers.is_empty(), "{request:?}");
    }
}
