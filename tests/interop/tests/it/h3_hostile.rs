//! HTTP/3 and QUIC from those who mean harm: each is counted and stopped, and others are served meanwhile.

use sealane_http::BodyLength;
use sealane_http::h3::{Code, varint};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h3::{Client, Failure, data, headers, over_quic};
use sealane_interop::site::Site;
use sealane_interop::{eventually, noise};
use std::net::{Ipv4Addr, UdpSocket};

struct Fixture {
    _site: Site,
    backend: Backend,
    gateway: Gateway,
}

fn fixture(listener: &str) -> Fixture {
    let site = Site::new();
    let backend = Backend::answering(|request| ok(&request.body));
    let setup = before(&site, [backend.url()]).listener("http3 = true").listener(listener);
    let gateway = setup.limits("header_timeout = \"2s\"").start();
    Fixture { _site: site, backend, gateway }
}

impl Fixture {
    fn connect(&self) -> Client {
        Client::connect(self.gateway.address, &over_quic(self.gateway.config(), false))
    }

    /// Somebody else is served.
    #[track_caller]
    fn serves(&self) {
        assert_eq!(self.connect().get("/other").status, 200);
    }
}

fn get() -> Vec<u8> {
    headers("GET", "/", &[], BodyLength::None)
}

/// A frame by its type.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    varint::put(&mut out, payload.len() as u64);
    out.extend_from_slice(payload);
    out
}

#[test]
fn breaches_that_end_the_connection() {
    let s = fixture("");
    // On a request stream.
    for (what, bytes, code) in [
        ("DATA before HEADERS", data(b"x"), Code::FrameUnexpected),
        ("SETTINGS on a request stream", frame(4, b""), Code::FrameUnexpected),
        ("PUSH_PROMISE from a client", frame(5, b"\0"), Code::FrameUnexpected),
        ("a frame of HTTP/2", frame(6, b"12345678"), Code::FrameUnexpected),
        ("HEADERS after trailers", [get(), frame(1, &[0, 0]), frame(1, &[0, 0])].concat(), Code::FrameUnexpected),
        ("DATA after trailers", [get(), frame(1, &[0, 0]), data(b"x")].concat(), Code::FrameUnexpected),
        ("CANCEL_PUSH on a request stream", frame(3, b"\0"), Code::FrameUnexpected),
        ("GOAWAY on a request stream", frame(7, b"\0"), Code::FrameUnexpected),
        ("MAX_PUSH_ID on a request stream", frame(13, b"\0"), Code::FrameUnexpected),
        ("a frame cut off", get()[..5].to_vec(), Code::FrameError),
        ("an entry that the static table lacks", frame(1, &[0, 0, 0xff, 0x24]), Code::QpackDecompressionFailed),
        ("a field of a dynamic table", frame(1, &[0, 0, 0x80]), Code::QpackDecompressionFailed),
        ("a required insert count", frame(1, &[2, 0, 0xd1]), Code::QpackDecompressionFailed),
        (
            "a Huffman code that is none",
            frame(1, &[0, 0, 0x51, 0x84, 0xff, 0xff, 0xff, 0xff]),
            Code::QpackDecompressionFailed,
        ),
    ] {
        let mut client = s.connect();
        let id = client.open(&bytes, true);
        client.until(|c| c.lost.is_some() || c.ended(id).is_some());
        assert!(client.until(|c| c.lost.is_some()), "{what}: {:?}", client.ended(id));
        assert_eq!(client.failure(), Failure::Closed(u64::from(code.value())), "{what}");
    }
    // On streams of its own.
    for (what, bytes, code) in [
        ("no SETTINGS first", &[0, 7, 1, 0][..], Code::MissingSettings),
        ("a setting twice", &[0, 4, 4, 6, 1, 6, 1], Code::SettingsError),
        ("a setting of HTTP/2", &[0, 4, 2, 2, 0], Code::SettingsError),
        ("SETTINGS twice", &[0, 4, 0, 4, 0], Code::FrameUnexpected),
        ("HEADERS on the control stream", &[0, 4, 0, 1, 0], Code::FrameUnexpected),
        ("DATA on the control stream", &[0, 4, 0, 0, 0], Code::FrameUnexpected),
        ("PUSH_PROMISE on the control stream", &[0, 4, 0, 5, 0], Code::FrameUnexpected),
        ("a frame of HTTP/2 on the control stream", &[0, 4, 0, 6, 0], Code::FrameUnexpected),
        ("CANCEL_PUSH for a push that nobody promised", &[0, 4, 0, 3, 1, 0], Code::IdError),
        ("a MAX_PUSH_ID that becomes smaller", &[0, 4, 0, 13, 1, 4, 13, 1, 3], Code::IdError),
        ("a GOAWAY that allows more than the one before", &[0, 4, 0, 7, 1, 4, 7, 1, 8], Code::IdError),
        ("a GOAWAY without an ID", &[0, 4, 0, 7, 0], Code::FrameError),
        ("a push stream", &[1], Code::StreamCreationError),
        ("an insertion without room", &[2, 0x3f, 0xe1, 0x1f], Code::QpackEncoderStreamError),
        ("an acknowledgement of nothing", &[3, 0x80], Code::QpackDecoderStreamError),
        ("an insert count increment of zero", &[3, 0], Code::QpackDecoderStreamError),
    ] {
        let config = over_quic(s.gateway.config(), false);
        let mut client = Client::begin(s.gateway.address, &config);
        assert!(client.until(|c| !c.quic.is_handshaking()));
        client.open_uni(bytes);
        assert!(client.until(|c| c.lost.is_some()), "{what}");
        assert_eq!(client.failure(), Failure::Closed(u64::from(code.value())), "{what}");
    }
    let mut client = s.connect();
    client.open_control();
    assert!(client.until(|c| c.lost.is_some()), "a second control stream");
    assert_eq!(client.failure(), Failure::Closed(u64::from(Code::StreamCreationError.value())));

    let config = over_quic(s.gateway.config(), false);
    let mut client = Client::begin(s.gateway.address, &config);
    assert!(client.until(|c| !c.quic.is_handshaking()));
    let control = client.open_control();
    client.finish(control);
    assert!(client.until(|c| c.lost.is_some()), "the control stream closed");
    assert_eq!(client.failure(), Failure::Closed(u64::from(Code::ClosedCriticalStream.value())));
    for (what, kind) in [("encoder", 2), ("decoder", 3)] {
        let mut client = s.connect();
        let stream = client.open_uni(&[kind]);
        client.finish(stream);
        assert!(client.until(|c| c.lost.is_some()), "the stream of the {what} of QPACK closed");
        assert_eq!(client.failure(), Failure::Closed(u64::from(Code::ClosedCriticalStream.value())), "{what}");
    }

    assert_eq!(s.gateway.metric_with("sealane_http3_errors_total", "connection"), Some(34.0));
    s.serves();
}

#[test]
fn malformed_messages_are_answered_and_never_reach_the_backend() {
    let s = fixture("");
    let mut client = s.connect();
    let literal = |name: &str, value: &str| {
        let mut out = vec![0x27, (name.len() - 7) as u8];
        out.extend_from_slice(name.as_bytes());
        out.push(value.len() as u8);
        out.extend_from_slice(value.as_bytes());
        out
    };
    // :method GET, :scheme https, :path /, :authority a
    let base = [0, 0, 0xd1, 0xd7, 0xc1, 0x50, 1, b'a'];
    for (what, more) in [
        ("a connection field", literal("connection", "close")),
        ("transfer-encoding", literal("transfer-encoding", "chunked")),
        ("upper case", literal("Uppercase", "x")),
        ("a pseudo field late", [literal("x-regular", "y"), vec![0xd1]].concat()),
        ("a pseudo field twice", vec![0xd1]),
        ("a pseudo field of responses", vec![0xd9]),
        ("a new line in a value", literal("x-value", "a\r\nb: c")),
        ("a lookalike", literal("content_length", "5")),
        ("a length that is none", literal("content-length", "+5")),
    ] {
        let response = client.exchange(&frame(1, &[&base[..], &more].concat()), b"").unwrap();
        assert_eq!(response.status, 400, "{what}");
    }
    // A length that the data do not keep to: the request is not passed on as if it were whole.
    let short = headers("POST", "/", &[], BodyLength::Known(10));
    let id = client.open(&[short.clone(), data(b"12345")].concat(), true);
    assert_eq!(client.response(id).unwrap().status, 400);
    let id = client.open(&[short, data(b"12345678901")].concat(), true);
    assert_eq!(client.response(id).unwrap().status, 400);
    assert!(s.backend.requests().is_empty(), "{:?}", s.backend.requests());
    let large = headers("GET", "/", &[("x-large", &"v".repeat(40_000))], BodyLength::None);
    assert_eq!(client.exchange(&large, b"").unwrap().status, 431);
    assert_eq!(client.get("/after").status, 200);
}

/// A field section whose names and values are all literals.
fn section(list: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in list {
        // RFC 9204 §4.5.6: the name's length has three bits, and what is above seven a byte more.
        match name.len().checked_sub(7) {
            None => out.push(0x20 | name.len() as u8),
            Some(more) => out.extend_from_slice(&[0x27, more as u8]),
        }
        out.extend_from_slice(name.as_bytes());
        out.push(value.len() as u8);
        out.extend_from_slice(value.as_bytes());
    }
    out
}

/// The rules of `h2::what_http1_could_not_carry_is_refused_and_the_connection_goes_on`, one by one.
#[test]
fn what_http1_could_not_carry_is_refused() {
    let s = fixture("");
    let mut client = s.connect();
    let good = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/")];
    let mut lists: Vec<Vec<(&str, &str)>> = Vec::new();
    for more in [
        &[("connection", "close")][..],
        &[("proxy-connection", "close")],
        &[("transfer-encoding", "chunked")],
        &[("upgrade", "websocket")],
        &[("keep-alive", "1")],
        &[("te", "gzip")],
        &[("x", " a")],
        &[("x", "a\0")],
        &[("x", "a\nb")],
        &[("X", "a")],
        &[("", "a")],
        &[("x y", "a")],
        &[("content-length", "5")],
        &[("content-length", "0"), ("content-length", "0")],
        &[("content_length", "1")],
        &[("host", "other.test")],
        &[(":path", "/again")],
        &[(":status", "200")],
        &[(":unknown", "x")],
        &[("x", "y"), (":late", "z")],
        &[("x", "y"), (":path", "/late")],
    ] {
        lists.push(good.iter().chain(more).copied().collect());
    }
    for (at, value) in
        [(0, "G ET"), (0, ""), (1, "ftp"), (2, "u@a"), (2, "a b"), (3, ""), (3, "x"), (3, "/a b"), (3, "/a#b")]
    {
        let mut list = good;
        list[at].1 = value;
        lists.push(list.to_vec());
        lists.push(good.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, field)| *field).collect());
    }
    for list in lists {
        let response = client.exchange(&frame(1, &section(&list)), b"");
        let refused = match &response {
            Ok(response) => (400..502).contains(&response.status),
            Err(failure) => *failure == Failure::Reset(u64::from(Code::MessageError.value())),
        };
        assert!(refused, "{list:?}: {response:?}");
    }
    assert!(s.backend.requests().is_empty(), "{:?}", s.backend.requests());
    assert_eq!(client.get("/after").status, 200);
}

#[test]
fn garbage_does_no_harm() {
    let s = fixture("");
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = s.connect();
    for seed in 0..2000u64 {
        let mut bytes = noise(1 + (seed as usize * 7) % 1400, seed + 1);
        match seed % 5 {
            // Long headers: an Initial of version 1, cut anywhere; another version; a short header.
            0 => bytes.splice(0..0, [0xc0, 0, 0, 0, 1, 8]).for_each(drop),
            1 => bytes.splice(0..0, [0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x9e]).for_each(drop),
            2 => bytes.splice(0..0, [0xc0, 0xba, 0xba, 0xba, 0xba, 8]).for_each(drop),
            3 => bytes.splice(0..0, [0x40]).for_each(drop),
            _ => {}
        }
        let _ = socket.send_to(&bytes, s.gateway.address);
        if seed % 200 == 0 {
            assert_eq!(client.get("/meanwhile").status, 200);
        }
    }
    assert_eq!(client.get("/after").status, 200);
    s.serves();
}

/// RFC 9000 §6: a version that is not spoken is answered with those that are, and only where that is no amplification.
#[test]
fn another_version_is_negotiated() {
    let s = fixture("");
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut hello = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 4, 9, 9, 9, 9];
    let short = hello.clone();
    hello.resize(1200, 0);
    // The short one gets nothing: what comes is the answer to the other, and there is no second.
    for datagram in [&short, &hello] {
        socket.send_to(datagram, s.gateway.address).unwrap();
    }
    socket.set_read_timeout(Some(sealane_interop::WAIT_LIMIT)).unwrap();
    let mut answer = [0; 1500];
    let n = socket.recv(&mut answer).unwrap();
    assert!(answer[0] & 0x80 != 0 && answer[1..5] == [0; 4], "{:?}", &answer[..n]);
    assert_eq!(answer[5..19], [4, 9, 9, 9, 9, 8, 1, 2, 3, 4, 5, 6, 7, 8], "the ids, the other way round");
    let (versions, rest) = answer[19..n].as_chunks::<4>();
    assert!(versions.contains(&[0, 0, 0, 1]) && !versions.contains(&[0x1a, 0x2a, 0x3a, 0x4a]), "{versions:?}");
    // RFC 9000 §6.3: one that nobody speaks keeps clients in practice.
    assert!(rest.is_empty() && versions.iter().any(|v| v.iter().all(|b| b & 0x0f == 0x0a)), "{versions:?}");
    s.serves();
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut answer).is_err(), "one answer");
    assert!(eventually(|| s.gateway.metric("sealane_quic_version_negotiations_total") == Some(1.0)));
    // Nothing was begun for it.
    assert_eq!(s.gateway.metric("sealane_quic_connections_total"), Some(1.0));
}

#[test]
fn a_flood_of_handshakes_meets_retry_and_clients_still_get_in() {
    let s = fixture("[listener.quic]\nretry_above = 8");
    let config = over_quic(s.gateway.config(), false);
    // They say hello and are never heard of again.
    let mut flood: Vec<Client> = (0..200).map(|_| Client::begin(s.gateway.address, &config)).collect();
    flood.iter_mut().for_each(Client::pump_once);
    assert!(eventually(|| s.gateway.metric("sealane_quic_retries_total").unwrap_or(0.0) > 50.0));
    for _ in 0..5 {
        s.serves();
    }
}

/// A client may say once per request how urgent it is, and now and then again.
#[test]
fn a_flood_of_priorities_ends_the_connection() {
    let s = fixture("");
    let update = |stream: u64| {
        let mut payload = Vec::new();
        varint::put(&mut payload, stream);
        payload.extend_from_slice(b"u=3");
        let mut bytes = Vec::new();
        varint::put(&mut bytes, 0xf0700); // PRIORITY_UPDATE of a request (RFC 9218 §7.2)
        varint::put(&mut bytes, payload.len() as u64);
        [bytes, payload].concat()
    };
    let begin = || {
        let mut client = Client::begin(s.gateway.address, &over_quic(s.gateway.config(), false));
        assert!(client.establish(), "{:?}", client.lost);
        let control = client.open_control();
        (client, control)
    };
    // One for each request, and some beside them.
    let (mut honest, control) = begin();
    for request in 0..300 {
        honest.write(control, &update(4 * request));
        assert_eq!(honest.get("/").status, 200);
    }
    let (mut flood, control) = begin();
    flood.write(control, &update(0).repeat(2000));
    assert!(flood.until(|c| c.lost.is_some()), "it goes on");
    assert_eq!(flood.failure(), Failure::Closed(u64::from(Code::ExcessiveLoad.value())));
    s.serves();
}

#[test]
fn rapid_resets_end_the_connection() {
    let s = fixture("");
    let mut client = s.connect();
    for _ in 0..2000 {
        if client.lost.is_some() {
            break;
        }
        let Some(id) = client.quic.streams().open(quinn_proto::Dir::Bi) else {
            client.pump();
            continue;
        };
        let _ = client.quic.send_stream(id).write(&get());
        client.reset(id, Code::RequestCancelled.value());
        client.pump_once();
    }
    assert!(client.until(|c| c.lost.is_some()));
    assert_eq!(client.failure(), Failure::Closed(u64::from(Code::ExcessiveLoad.value())));
    s.serves();
}

#[test]
fn a_head_that_does_not_come_to_its_end_is_given_up() {
    let s = fixture("");
    let mut client = s.connect();
    let id = client.open(&get()[..8], false);
    assert!(client.until(|c| c.ended(id).is_some()));
    assert_eq!(client.ended(id), Some(Err(u64::from(Code::RequestCancelled.value()))));
    assert_eq!(client.get("/after").status, 200);
}
