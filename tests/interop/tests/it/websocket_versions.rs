//! WebSocket frames of every kind through HTTP/1.1 (RFC 6455), HTTP/2 (RFC 8441) and HTTP/3 (RFC 9220): the gateway reads
//! none of them, so that each must arrive as it was sent.

use bytes::Bytes;
use http::Request;
use sealane_http::{BodyLength, Scheme};
use sealane_interop::backend::Backend;
use sealane_interop::eventually;
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h2::{self, End};
use sealane_interop::h3::{self, Client, over_quic};
use sealane_interop::noise;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::Listening;

pub(crate) const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// A frame as clients send them (RFC 6455 §5.2): masked.
pub(crate) fn frame(last: bool, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![if last { 0x80 | kind } else { kind }];
    match payload.len() {
        n @ ..126 => out.push(0x80 | n as u8),
        n @ ..0x1_0000 => out.extend([&[0x80 | 126][..], &(n as u16).to_be_bytes()].concat()),
        n => out.extend([&[0x80 | 127][..], &(n as u64).to_be_bytes()].concat()),
    }
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    out
}

/// Bytes that come back as they are, whatever they mean: also those that no peer would send. [`crate::websocket_autobahn`] has Autobahn's
/// cases with a peer that understands them.
fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let umlauts = "grüße".as_bytes();
    let fragments = |of: &[u8]| {
        let (first, rest) = of.split_at(3);
        let mut bytes = frame(false, TEXT, first);
        for byte in rest {
            bytes.extend(frame(true, PING, b"in between"));
            bytes.extend(frame(false, CONTINUATION, &[*byte]));
            bytes.extend(frame(true, PONG, b""));
        }
        bytes.extend(frame(true, CONTINUATION, b""));
        bytes
    };
    let mut cases = vec![
        ("text", frame(true, TEXT, umlauts)),
        ("empty frames", [frame(true, TEXT, b""), frame(true, BINARY, b""), frame(true, PING, b"")].concat()),
        ("fragments within a character, pings and pongs between", fragments(umlauts)),
        ("the longest ping", frame(true, PING, &[7; 125])),
        ("a ping that is too long", frame(true, PING, &[7; 126])),
        ("text that is no UTF-8", frame(true, TEXT, &[0xce, 0xba, 0xed, 0xa0, 0x80, 0xff, 0xfe])),
        ("fragments of text that is no UTF-8", fragments(&[0xf4, 0x90, 0x80, 0x80, 0xc0, 0xaf])),
        ("an opcode that is none, reserved bits", [frame(true, 3, b"x"), frame(true, 0x70 | BINARY, b"y")].concat()),
        ("a frame without a mask", vec![0x81, 5, b'h', b'e', b'l', b'l', b'o']),
    ];
    for length in [125, 126, 65_535, 65_536, 300_000] {
        cases.push(("around the lengths' forms", frame(true, BINARY, &noise(length, length as u64))));
    }
    for code in [1000u16, 1001, 1005, 1011, 2999, 3000, 4999] {
        cases.push(("close codes", frame(true, CLOSE, &[&code.to_be_bytes()[..], "grüße".as_bytes()].concat())));
    }
    cases.push((
        "a close without a code, and what must not follow",
        [frame(true, CLOSE, b""), umlauts.to_vec()].concat(),
    ));
    cases
}

fn gateway(site: &Site, backend: &Backend, plain: bool) -> Gateway {
    let setup = before(site, [backend.url()]);
    if plain { setup.plain().listener("h2c = true") } else { setup.listener("http3 = true") }.start()
}

#[test]
fn over_http1() {
    let (site, backend) = (Site::new(), Backend::websocket_echo());
    let gateway = gateway(&site, &backend, false);
    let mut wire = gateway.connect();
    wire.send(format!(
        "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ))
    .expect("the gateway reads");
    let answer = wire.response("GET").expect("it switches");
    assert_eq!((answer.status(), answer.header("sec-websocket-accept")), (101, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
    for (what, bytes) in cases() {
        let mut echoed = Vec::new();
        for part in bytes.chunks(30_001) {
            wire.send(part).expect("the gateway reads");
            wire.exactly(part.len(), &mut echoed).expect("it comes back");
        }
        assert!(echoed == bytes, "{what}");
    }
}

#[test]
fn over_http2() {
    let (site, backend) = (Site::new(), Backend::websocket_echo());
    let gateway = gateway(&site, &backend, true);
    h2::run(async {
        let mut client = h2::connect(gateway.address).await.ready().await.expect("the connection is open");
        while !client.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        let mut ask = Request::connect(format!("http://{HOST}/")).body(()).expect("it is well-formed");
        ask.headers_mut().insert("sec-websocket-version", "13".parse().expect("a value"));
        ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
        let (response, mut send) = client.send_request(ask, false).expect("it can be sent");
        let response = response.await.expect("it is answered");
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        for (what, bytes) in cases() {
            send.send_data(Bytes::from(bytes.clone()), false).expect("the tunnel is open");
            let mut echoed = Vec::new();
            while echoed.len() < bytes.len() {
                let piece = body.data().await.expect("more comes").expect("it is not reset");
                let _ = body.flow_control().release_capacity(piece.len());
                echoed.extend_from_slice(&piece);
            }
            assert!(echoed == bytes, "{what}");
        }
        let _ = send.send_data(Bytes::new(), true);
        let (rest, end) = h2::read(&mut body).await;
        assert_eq!((rest.len(), end), (0, End::Whole));
    });
}

#[test]
fn over_http3() {
    let (site, backend) = (Site::new(), Backend::websocket_echo());
    let gateway = gateway(&site, &backend, false);
    let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
    let mut request = h3::head("GET", "/", &[("sec-websocket-version", "13")]);
    request.fields.push(b"upgrade", b"websocket").expect("a legal field");
    let mut bytes = Vec::new();
    sealane_http::h3::encode_request(&mut bytes, &request, BodyLength::None, Scheme::Https, true);
    let id = client.open(&bytes, false);
    let mut sent = Vec::new();
    for (what, bytes) in cases() {
        client.write(id, &h3::data(&bytes));
        sent.extend_from_slice(&bytes);
        let all = client.until(|c| c.ended(id).is_some() || c.so_far(id).is_ok_and(|r| r.body.len() >= sent.len()));
        let response = client.so_far(id).expect("it makes sense so far");
        assert!(all && response.status == 200 && response.body == sent, "{what}: {} bytes", response.body.len());
    }
    client.finish(id);
    assert_eq!(client.response(id).expect("it ends well").body.len(), sent.len());
}

/// What an upstream may answer that does not mean WebSocket: it ignores the upgrade, or answers another key.
const NO_WEBSOCKET: [(&str, &str); 4] = [
    ("a plain 200", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
    ("a 204", "HTTP/1.1 204 No Content\r\n\r\n"),
    (
        "a switch without an answer to the key",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ),
    (
        "a switch that answers another key",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
    ),
];

fn answering(answer: &'static str) -> Backend {
    Backend::start(move |mut connection| {
        if let Ok(Some(_)) = connection.wire.request_head() {
            connection.send(answer);
        }
    })
}

#[test]
fn an_answer_that_is_none_is_not_taken_for_one() {
    for (what, answer) in NO_WEBSOCKET {
        let (site, backend) = (Site::new(), answering(answer));
        let gateway = gateway(&site, &backend, false);
        let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
        let mut request = h3::head("GET", "/", &[("sec-websocket-version", "13")]);
        request.fields.push(b"upgrade", b"websocket").expect("a legal field");
        let mut bytes = Vec::new();
        sealane_http::h3::encode_request(&mut bytes, &request, BodyLength::None, Scheme::Https, true);
        let id = client.open(&bytes, true);
        assert_eq!(client.response(id).expect("it ends well").status, 502, "HTTP/3: {what}");

        // HTTP/1.1's client sees what its request has come to, but a switch must be its own.
        let mut wire = gateway.connect();
        wire.send(format!(
            "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        ))
        .expect("the gateway reads");
        let status = wire.response("GET").expect("it is answered").status();
        let expected = if answer.contains(" 101 ") { 502 } else { answer[9..12].parse().expect("a status") };
        assert_eq!(status, expected, "HTTP/1.1: {what}");

        let gateway = self::gateway(&site, &backend, true);
        h2::run(async {
            let mut client = h2::connect(gateway.address).await.ready().await.expect("the connection is open");
            while !client.is_extended_connect_protocol_enabled() {
                tokio::task::yield_now().await;
            }
            let mut ask = Request::connect(format!("http://{HOST}/")).body(()).expect("it is well-formed");
            ask.headers_mut().insert("sec-websocket-version", "13".parse().expect("a value"));
            ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
            let (response, _send) = client.send_request(ask, false).expect("it can be sent");
            assert_eq!(response.await.expect("it is answered").status(), 502, "HTTP/2: {what}");
        });
    }
}

/// On a route with `upgrade = false`, HTTP/1.1 gets the answer to the request without `Upgrade`, and an extended CONNECT gets 501.
#[test]
fn a_route_without_upgrades_opens_no_websocket() {
    let site = Site::new();
    // This one switches whenever it gets a key.
    let (eager, polite) = (Backend::websocket_echo(), Backend::saying("hello"));
    let rest = format!(
        "[[host]]\nnames = [\"*\"]\nto = [{:?}]\nupgrade = false\n\
         [[host.route]]\npath = \"/polite\"\nto = [{:?}]\n\
         [[host.route]]\npath = \"/ws\"\nto = [{0:?}]\nupgrade = true\n",
        eager.url(),
        polite.url()
    );
    let (gateway, plain) = Listening { rest: &rest, ..Listening::default() }.start(&site);
    for (path, over_http1, extended) in [("/", 502, 501), ("/polite", 200, 501), ("/ws", 101, 200)] {
        let mut wire = gateway.connect();
        wire.send(format!(
            "GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ))
        .expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("an answer").status(), over_http1, "HTTP/1.1: {path}");

        h2::run(async {
            let mut client = h2::connect(plain).await.ready().await.expect("the connection is open");
            while !client.is_extended_connect_protocol_enabled() {
                tokio::task::yield_now().await;
            }
            let mut ask = Request::connect(format!("http://{HOST}{path}")).body(()).expect("it is well-formed");
            ask.headers_mut().insert("sec-websocket-version", "13".parse().expect("a value"));
            ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
            let (response, _send) = client.send_request(ask, false).expect("it can be sent");
            assert_eq!(response.await.expect("it is answered").status().as_u16(), extended, "HTTP/2: {path}");
        });

        let mut client = Client::connect(gateway.address, &over_quic(gateway.config(), false));
        let mut request = h3::head("GET", path, &[("sec-websocket-version", "13")]);
        request.fields.push(b"upgrade", b"websocket").expect("a legal field");
        let mut bytes = Vec::new();
        sealane_http::h3::encode_request(&mut bytes, &request, BodyLength::None, Scheme::Https, true);
        let id = client.open(&bytes, false);
        assert!(client.until(|c| c.so_far(id).is_ok_and(|r| r.status != 0)), "HTTP/3: {path}");
        assert_eq!(client.so_far(id).expect("a head").status, extended, "HTTP/3: {path}");
    }
    let asked = polite.last();
    assert_eq!((asked.header("upgrade"), asked.header("connection")), (None, None));
    assert_eq!(eager.requests().iter().filter(|request| request.header("upgrade").is_some()).count(), 3);
    assert_eq!(gateway.metric("sealane_upgrades_denied_total"), Some(6.0));
    assert!(eventually(|| site.logged("\"denied\":\"upgrade\"") == 4), "{}", site.log());
}
