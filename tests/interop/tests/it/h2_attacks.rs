//! What HTTP/2 lets a client do to a server, done to the gateway: it is bounded, counted, and another client is served.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::eventually;
use sealane_interop::frames::{END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, block, frame, integer, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: u16 = 4;
/// Flag of SETTINGS and PING.
const ACK: u8 = 1;
/// RFC 9113 §7.
const PROTOCOL_ERROR: u32 = 1;

struct Target<'s> {
    gateway: Gateway,
    backend: Backend,
    _site: &'s Site,
}

fn target<'s>(site: &'s Site, limits: &[&str]) -> Target<'s> {
    let large = vec![b'x'; 1 << 20];
    let backend = Backend::answering(move |r| if r.target() == "/large" { ok(&large) } else { ok(b"hello") });
    let setup = before(site, [backend.url()]).plain().listener("h2c = true");
    let gateway = limits.iter().fold(setup, |setup, line| setup.limits(line)).start();
    Target { gateway, backend, _site: site }
}

impl Target<'_> {
    fn frames(&self) -> Frames<TcpStream> {
        Frames::plain(self.gateway.address, &[])
    }

    /// Somebody else is served over HTTP/1.1 and HTTP/2.
    fn serves_others(&self) {
        let mut wire = Wire::new(sealane_interop::client::tcp(self.gateway.address));
        wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("the gateway answers").text(), "hello");
        let mut frames = self.frames();
        frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
        let data = frames.find(|f| f.kind == kind::DATA).expect("the gateway answers");
        assert_eq!(data.payload, b"hello");
    }

    fn floods(&self) -> f64 {
        self.gateway.metric_with("sealane_http2_connection_errors_total", "kind=\"flood\"").unwrap_or(0.0)
    }

    /// Sends these bytes, round by round, until the gateway ends the connection, while somebody reads what it says: the code of its
    /// GOAWAY, unless a reset has overtaken it.
    fn ended(&self, mut frames: Frames<TcpStream>, mut next: impl FnMut(u32) -> Vec<u8>) -> Option<u32> {
        let mut reader = Frames { stream: frames.stream.try_clone().expect("a socket can be cloned") };
        let fate = std::thread::spawn(move || reader.fate());
        let mut cut = false;
        for round in 0..20_000 {
            if frames.stream.write_all(&next(round)).is_err() {
                cut = true;
                break;
            }
        }
        let fate = fate.join().expect("it does not panic");
        assert!(cut || fate.is_some(), "20000 rounds were taken");
        fate
    }

    /// The same, and the gateway has had enough.
    fn flood(&self, frames: Frames<TcpStream>, next: impl FnMut(u32) -> Vec<u8>) {
        let fate = self.ended(frames, next);
        assert!(fate.is_none_or(|code| code == ENHANCE_YOUR_CALM), "GOAWAY {fate:?}");
        assert!(eventually(|| self.floods() == 1.0), "{}", self.gateway.metrics());
        self.serves_others();
    }

    /// The same, and the gateway has ended the connection for what is wrong with the first of these frames, or for their number where it
    /// has read many of them at once.
    fn breach(&self, frames: Frames<TcpStream>, next: impl FnMut(u32) -> Vec<u8>) {
        let fate = self.ended(frames, next);
        assert!(fate.is_none_or(|code| [PROTOCOL_ERROR, ENHANCE_YOUR_CALM].contains(&code)), "GOAWAY {fate:?}");
        let errors = || self.gateway.metric("sealane_http2_connection_errors_total");
        assert!(eventually(|| errors() == Some(1.0)), "{}", self.gateway.metrics());
        self.serves_others();
    }
}

#[test]
fn rapid_reset() {
    let site = Site::new();
    let target = target(&site, &[]);
    let head = block(&[(":method", "GET"), (":scheme", "http"), (":authority", HOST), (":path", "/")]);
    target.flood(target.frames(), |round| {
        let stream = 2 * round + 1;
        let mut bytes = frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &head);
        bytes.extend(frame(kind::RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        bytes
    });
    assert!(target.backend.connections() < 1_000, "{} connections to the backend", target.backend.connections());
}

#[test]
fn continuation_flood() {
    let site = Site::new();
    let target = target(&site, &[]);
    target.flood(target.frames(), |round| match round {
        0 => frame(kind::HEADERS, END_STREAM, 1, &block(&[(":method", "GET")])),
        _ => frame(kind::CONTINUATION, 0, 1, &block(&[("x", "y")])),
    });
}

/// The same with fragments of no bytes, which no limit of a block's length would notice.
#[test]
fn empty_continuation_flood() {
    let site = Site::new();
    let target = target(&site, &[]);
    target.flood(target.frames(), |round| match round {
        0 => frame(kind::HEADERS, END_STREAM, 1, &block(&[(":method", "GET")])),
        _ => frame(kind::CONTINUATION, 0, 1, &[]),
    });
}

#[test]
fn floods_of_frames_that_carry_nothing() {
    for (name, bytes) in [
        ("SETTINGS", frame(kind::SETTINGS, 0, 0, &[])),
        ("PING", frame(kind::PING, 0, 0, &[0; 8])),
        ("acknowledgements of no PING", frame(kind::PING, ACK, 0, b"unasked!")),
        ("WINDOW_UPDATE", frame(kind::WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes())),
        ("PRIORITY", frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 0])),
        ("PRIORITY_UPDATE", frame(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1")),
        ("an unknown one", frame(99, 0, 0, b"?")),
    ] {
        let site = Site::new();
        let target = target(&site, &[]);
        sealane_interop::say(&format!("flood of {name}"));
        target.flood(target.frames(), |_| bytes.clone());
    }
}

/// RFC 9113 §6.5: the gateway has sent SETTINGS once. What more is acknowledged is an error, and ends the connection before it is a
/// flood.
#[test]
fn acknowledgements_of_no_settings() {
    let site = Site::new();
    let target = target(&site, &[]);
    target.breach(target.frames(), |_| frame(kind::SETTINGS, ACK, 0, &[]));
}

/// Dependencies that change with each frame (RFC 7540 §5.3.3), exclusively: a server that has a tree of them would rebuild it.
#[test]
fn priority_shuffling() {
    let site = Site::new();
    let target = target(&site, &[]);
    target.flood(target.frames(), |round| {
        let (stream, parent) = (2 * (round % 50) + 1, 2 * (50 + round * 7 % 50) + 1);
        let payload = [&(parent | 1 << 31).to_be_bytes()[..], &[round as u8]].concat();
        frame(kind::PRIORITY, 0, stream, &payload)
    });
}

/// RST_STREAM without end (CVE-2019-9514) for a stream that is over.
#[test]
fn resets_of_a_closed_stream() {
    let site = Site::new();
    let target = target(&site, &[]);
    let mut frames = target.frames();
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    assert!(frames.find(|f| f.stream == 1 && f.flags & END_STREAM != 0).is_some(), "it is answered");
    target.flood(frames, |_| frame(kind::RST_STREAM, 0, 1, &8u32.to_be_bytes()));
}

/// RFC 9113 §6.4: no stream that was never opened can be reset.
#[test]
fn resets_of_idle_streams() {
    let site = Site::new();
    let target = target(&site, &[]);
    target.breach(target.frames(), |round| frame(kind::RST_STREAM, 0, 2 * round + 1, &8u32.to_be_bytes()));
}

/// Fields without a name (CVE-2019-9516), whose values a server may keep: no request with one is passed on, and nothing is kept.
#[test]
fn fields_without_a_name() {
    let site = Site::new();
    let target = target(&site, &[]);
    let before = target.gateway.server.resident();
    let value = "x".repeat(8_000);
    let list = [(":method", "GET"), (":scheme", "http"), (":authority", HOST), (":path", "/"), ("", &value)];
    let head = block(&list);
    for _ in 0..20 {
        let mut frames = target.frames();
        for stream in 0..100 {
            if frames.send(kind::HEADERS, END_HEADERS | END_STREAM, 2 * stream + 1, &head).is_err() {
                break;
            }
        }
        // Refused, each of them, or the connection with them; 0x88 would be a 200.
        let refused = frames.find(|f| matches!(f.kind, kind::HEADERS | kind::RST_STREAM | kind::GOAWAY));
        assert!(refused.is_none_or(|f| f.kind != kind::HEADERS || f.payload[0] != 0x88));
    }
    target.serves_others();
    assert_eq!(target.backend.requests().len(), 2, "those of the others");
    if let (Some(before), Some(after)) = (before, target.gateway.server.resident()) {
        assert!(after.saturating_sub(before) < 16 << 20, "{before} to {after} bytes");
    }
}

#[test]
fn empty_data_flood() {
    let site = Site::new();
    let target = target(&site, &[]);
    let mut frames = target.frames();
    frames.request(1, "POST", "/", &[], false).expect("the gateway reads");
    target.flood(frames, |_| frame(kind::DATA, 0, 1, &[]));
}

/// A field put into the dynamic table once, and named a thousand times with one byte each.
#[test]
fn hpack_bomb() {
    let site = Site::new();
    let target = target(&site, &[]);
    let before = target.gateway.server.resident();
    let mut frames = target.frames();
    let mut head = block(&[(":method", "GET"), (":scheme", "http"), (":authority", HOST), (":path", "/")]);
    // Literal with incremental indexing (RFC 7541 §6.2.1), then its index: 62, the first after the static table.
    head.push(0x40);
    integer(&mut head, 0, 7, 1);
    head.push(b'x');
    integer(&mut head, 0, 7, 3_900);
    head.extend(vec![b'y'; 3_900]);
    head.extend(vec![0x80 | 62; 10_000]);
    for stream in 0..50 {
        if frames.send(kind::HEADERS, END_HEADERS | END_STREAM, 2 * stream + 1, &head).is_err() {
            break;
        }
    }
    // Refused, each of them, or the connection with them; 0x88 would be a 200.
    let refused = frames.find(|f| matches!(f.kind, kind::HEADERS | kind::RST_STREAM | kind::GOAWAY));
    assert!(refused.is_none_or(|f| f.kind != kind::HEADERS || f.payload[0] != 0x88));
    target.serves_others();
    assert_eq!(target.backend.requests().len(), 2);
    if let (Some(before), Some(after)) = (before, target.gateway.server.resident()) {
        assert!(after.saturating_sub(before) < 16 << 20, "{} bytes for a bomb", after - before);
    }
}

#[test]
fn windows_that_stay_closed_are_timed_out_stream_by_stream() {
    let site = Site::new();
    let target = target(&site, &["idle_timeout = \"400ms\""]);
    let mut frames = Frames::plain(target.gateway.address, &[(INITIAL_WINDOW, 0)]);
    for stream in 0..50 {
        frames.request(2 * stream + 1, "GET", "/large", &[], true).expect("the gateway reads");
    }
    for _ in 0..50 {
        let end = frames.find(|f| matches!(f.kind, kind::RST_STREAM | kind::GOAWAY)).expect("each is ended");
        assert_eq!(end.kind, kind::RST_STREAM);
    }
    // The connection itself has done nothing wrong.
    frames.send(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]).expect("the gateway reads");
    frames.request(101, "GET", "/", &[], true).expect("the gateway reads");
    assert!(frames.find(|f| f.kind == kind::DATA && f.stream == 101).is_some());
    assert!(target.gateway.metric("sealane_client_timeouts_total") >= Some(50.0));
    target.serves_others();
}

#[test]
fn a_window_of_one_byte_gets_on_byte_by_byte() {
    let site = Site::new();
    let target = target(&site, &[]);
    let mut frames = Frames::plain(target.gateway.address, &[(INITIAL_WINDOW, 1)]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    let mut got = Vec::new();
    while got.len() < 5 {
        let data = frames.find(|f| f.kind == kind::DATA).expect("more comes");
        assert_eq!(data.payload.len(), 1);
        got.extend(data.payload);
        frames.send(kind::WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes()).expect("the gateway reads");
    }
    assert_eq!(got, b"hello");
}

#[test]
fn a_window_beyond_the_largest_ends_the_connection() {
    let site = Site::new();
    let target = target(&site, &[]);
    let mut frames = target.frames();
    frames.send(kind::WINDOW_UPDATE, 0, 0, &0x7fff_ffffu32.to_be_bytes()).expect("the gateway reads");
    // FLOW_CONTROL_ERROR.
    assert_eq!(frames.fate(), Some(3));
    let errors = || target.gateway.metric_with("sealane_http2_connection_errors_total", "kind=\"protocol\"");
    assert!(eventually(|| errors() == Some(1.0)), "{}", target.gateway.metrics());
    target.serves_others();
}

#[test]
fn a_header_block_that_never_ends_is_timed_out() {
    let site = Site::new();
    let target = target(&site, &["header_timeout = \"400ms\""]);
    let mut frames = target.frames();
    frames.send(kind::HEADERS, END_STREAM, 1, &block(&[(":method", "GET")])).expect("the gateway reads");
    assert!(frames.find(|f| f.stream == 1).is_none(), "the connection ends without a response");
    // Half a frame, and half a preface.
    let mut frames = target.frames();
    frames.stream.write_all(&frame(kind::HEADERS, END_HEADERS, 1, &[0; 40])[..20]).expect("the gateway reads");
    assert!(frames.find(|f| f.stream == 1).is_none());
    let mut socket = sealane_interop::client::tcp(target.gateway.address);
    socket.write_all(b"PRI * HTTP/2.0\r\n").expect("the gateway reads");
    assert!(Wire::new(socket).rest().0.is_empty());
    target.serves_others();
}

#[test]
fn an_upload_that_stops_is_a_408() {
    let site = Site::new();
    let target = target(&site, &["idle_timeout = \"400ms\""]);
    let mut frames = target.frames();
    frames.request(1, "POST", "/", &[], false).expect("the gateway reads");
    frames.send(kind::DATA, 0, 1, b"begun").expect("the gateway reads");
    let answer = frames.find(|f| f.stream == 1 && f.kind == kind::HEADERS).expect("it is answered");
    assert_ne!(answer.payload[0], 0x88);
    let body = frames.find(|f| f.stream == 1 && f.kind == kind::DATA).expect("the answer has a body");
    assert_eq!(body.payload, b"408 Request Timeout\n");
    target.serves_others();
}

#[test]
fn a_connection_without_requests_is_ended() {
    let site = Site::new();
    let target = target(&site, &["keepalive_timeout = \"400ms\""]);
    let mut frames = target.frames();
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    let farewell = frames.find(|f| f.kind == kind::GOAWAY).expect("it says farewell");
    assert_eq!(farewell.code(), 0);
    std::thread::sleep(Duration::from_millis(1));
    assert!(frames.find(|_| false).is_none());
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let site = Site::new();
    let target = target(&site, &["max_streams = 10"]);
    let mut frames = Frames::plain(target.gateway.address, &[(INITIAL_WINDOW, 0)]);
    // The limit binds once it is known: after the gateway's SETTINGS.
    frames.find(|f| f.kind == kind::SETTINGS).expect("SETTINGS come first");
    frames.send(kind::SETTINGS, 1, 0, &[]).expect("the gateway reads");
    for stream in 0..11 {
        frames.request(2 * stream + 1, "GET", "/large", &[], true).expect("the gateway reads");
    }
    let refused = frames.find(|f| f.kind == kind::RST_STREAM).expect("the eleventh is refused");
    // REFUSED_STREAM.
    assert_eq!((refused.stream, refused.code()), (21, 7));
    target.serves_others();
}
