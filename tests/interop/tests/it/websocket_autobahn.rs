//! The cases of Autobahn's test suite for WebSocket servers (groups 1 to 7, 9 and 10), played through the gateway over HTTP/1.1, HTTP/2
//! and HTTP/3 against Python's `websockets`, which must see and say what it would without the gateway. Groups 6.22 and 6.23 are here in
//! part, groups 12 and 13 (compression, which the gateway passes on like any bytes) are not.

use crate::websocket_versions::{BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame};
use bytes::Bytes;
use http::Request;
use sealane_http::{BodyLength, Scheme};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h2;
use sealane_interop::h3::{self, Client, over_quic};
use sealane_interop::peers::python;
use sealane_interop::process::Server;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{noise, ports, skip};
use std::net::TcpStream;
use std::process::Command;

const SERVER: &str = r#"
import asyncio, logging, sys, websockets

# Most cases end with an error, as they should.
logging.getLogger("websockets").setLevel(logging.CRITICAL)

async def echo(socket):
    async for message in socket:
        await socket.send(message)

async def main():
    options = dict(max_size=None, compression=None, ping_interval=None)
    async with websockets.serve(echo, "127.0.0.1", int(sys.argv[1]), **options):
        await asyncio.Future()

asyncio.run(main())
"#;

/// What a server says when it ends the connection for a violation of the protocol, and for text that is no UTF-8.
const PROTOCOL_ERROR: Option<u16> = Some(1002);
const INVALID_DATA: Option<u16> = Some(1007);

/// A connection: what the client sends, and what must come back before it goes on; then the server's close frame, with this code.
struct Case {
    /// As Autobahn numbers them.
    id: String,
    steps: Vec<(Vec<u8>, Vec<u8>)>,
    code: Option<u16>,
}

/// A frame as servers send them: whole, and without a mask.
fn unmasked(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x80 | kind];
    match payload.len() {
        n @ ..126 => out.push(n as u8),
        n @ ..0x1_0000 => out.extend([&[126][..], &(n as u16).to_be_bytes()].concat()),
        n => out.extend([&[127][..], &(n as u64).to_be_bytes()].concat()),
    }
    out.extend_from_slice(payload);
    out
}

/// A message in fragments of this length.
fn fragments(kind: u8, payload: &[u8], length: usize) -> Vec<u8> {
    let (count, mut out) = (payload.len().div_ceil(length), Vec::new());
    for (number, piece) in payload.chunks(length).enumerate() {
        out.extend(frame(number + 1 == count, if number == 0 { kind } else { CONTINUATION }, piece));
    }
    out
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    /// A conversation that the client ends with the code 1000.
    fn good(&mut self, id: &str, mut steps: Vec<(Vec<u8>, Vec<u8>)>) {
        steps.push((frame(true, CLOSE, &1000u16.to_be_bytes()), Vec::new()));
        self.0.push(Case { id: id.to_owned(), steps, code: Some(1000) });
    }

    /// A message that comes back, however it is sent.
    fn echo(&mut self, id: &str, kind: u8, sent: Vec<u8>, message: &[u8]) {
        self.good(id, vec![(sent, unmasked(kind, message))]);
    }

    /// Bytes after which the server ends the connection.
    fn bad(&mut self, id: &str, sent: Vec<u8>, code: Option<u16>) {
        self.0.push(Case { id: id.to_owned(), steps: vec![(sent, Vec::new())], code });
    }

    /// A message that comes back, and then such bytes.
    fn bad_after(&mut self, id: &str, message: &[u8], sent: Vec<u8>, code: Option<u16>) {
        let steps = vec![(frame(true, TEXT, message), unmasked(TEXT, message)), (sent, Vec::new())];
        self.0.push(Case { id: id.to_owned(), steps, code });
    }
}

/// 1 Framing, 2 pings and pongs, 3 reserved bits, 4 opcodes.
fn frames(cases: &mut Cases) {
    for (group, kind, fill) in [("1.1", TEXT, b'*'), ("1.2", BINARY, 0xfe)] {
        for (number, length) in [0, 125, 126, 127, 128, 65_535, 65_536].into_iter().enumerate() {
            let message = vec![fill; length];
            cases.echo(&format!("{group}.{}", number + 1), kind, frame(true, kind, &message), &message);
        }
    }
    let ping = |payload: &[u8]| (frame(true, PING, payload), unmasked(PONG, payload));
    cases.good("2.1", vec![ping(b"")]);
    cases.good("2.2", vec![ping(b"Hello, world!")]);
    cases.good("2.3", vec![ping(&[0x00, 0xff, 0xfe, 0xfd, 0xfc, 0xfb, 0x00, 0xff])]);
    cases.good("2.4", vec![ping(&[0xfe; 125])]);
    cases.bad("2.5", frame(true, PING, &[0xfe; 126]), PROTOCOL_ERROR);
    cases.good("2.7", vec![(frame(true, PONG, b""), Vec::new())]);
    cases.good("2.8", vec![(frame(true, PONG, b"unsolicited"), Vec::new())]);
    cases.good("2.9", vec![(frame(true, PONG, b"unsolicited"), Vec::new()), ping(b"a ping")]);
    let pings: Vec<_> = (0..10).map(|n| ping(format!("payload {n}").as_bytes())).collect();
    let (sent, back): (Vec<_>, Vec<_>) = pings.iter().cloned().unzip();
    cases.good("2.10", vec![(sent.concat(), back.concat())]);
    cases.good("2.11", pings);

    cases.bad("3.1", frame(true, 0x40 | TEXT, b"rsv"), PROTOCOL_ERROR);
    for (id, bits, kind) in [("3.2", 0x20, TEXT), ("3.3", 0x30, TEXT), ("3.4", 0x40, TEXT), ("3.5", 0x50, BINARY)] {
        cases.bad_after(id, b"small", frame(true, bits | kind, b"rsv"), PROTOCOL_ERROR);
    }
    cases.bad("3.6", frame(true, 0x60 | PING, b""), PROTOCOL_ERROR);
    cases.bad("3.7", frame(true, 0x70 | CLOSE, b""), PROTOCOL_ERROR);

    for (group, opcodes) in [("4.1", 3..8), ("4.2", 11..16)] {
        for (number, opcode) in opcodes.enumerate() {
            let id = format!("{group}.{}", number + 1);
            let payload: &[u8] = if number % 2 == 0 { b"" } else { b"reserved opcode" };
            match number {
                0 | 1 => cases.bad(&id, frame(true, opcode, payload), PROTOCOL_ERROR),
                _ => cases.bad_after(&id, b"Hello, world!", frame(true, opcode, payload), PROTOCOL_ERROR),
            }
        }
    }
    // RFC 6455 §5.1: a client masks all frames.
    cases.bad("a frame without a mask", unmasked(TEXT, b"hello"), PROTOCOL_ERROR);
}

/// 5 Fragmentation.
fn fragmented(cases: &mut Cases) {
    let first = |kind, text: &[u8]| frame(false, kind, text);
    let next = |last, text: &[u8]| frame(last, CONTINUATION, text);
    cases.bad("5.1", [first(PING, b"ping1"), next(true, b"ping2")].concat(), PROTOCOL_ERROR);
    cases.bad("5.2", [first(PONG, b"pong1"), next(true, b"pong2")].concat(), PROTOCOL_ERROR);
    let whole = b"fragment1fragment2";
    cases.echo("5.3", TEXT, [first(TEXT, b"fragment1"), next(true, b"fragment2")].concat(), whole);
    let parts = |back: Vec<u8>| vec![(first(TEXT, b"fragment1"), Vec::new()), (next(true, b"fragment2"), back)];
    cases.good("5.4", parts(unmasked(TEXT, whole)));
    let bytes: Vec<u8> = [first(TEXT, b"fragment1"), next(true, b"fragment2")].concat();
    let mut steps: Vec<_> = bytes.iter().map(|byte| (vec![*byte], Vec::new())).collect();
    if let Some(last) = steps.last_mut() {
        last.1 = unmasked(TEXT, whole);
    }
    cases.good("5.5", steps);
    let ping = (frame(true, PING, b"in between"), unmasked(PONG, b"in between"));
    let mut between = parts(unmasked(TEXT, whole));
    between.insert(1, ping.clone());
    cases.good("5.6", between);
    let sent = [first(TEXT, b"fragment1"), ping.0.clone(), next(true, b"fragment2")].concat();
    cases.good("5.7", vec![(sent, [ping.1.clone(), unmasked(TEXT, whole)].concat())]);
    for (id, last) in [("5.9", true), ("5.12", false)] {
        let sent = [next(last, b"nothing to continue"), frame(true, TEXT, b"Hello, world!")].concat();
        cases.bad(id, sent, PROTOCOL_ERROR);
    }
    let sent = [first(TEXT, b"fragment1"), next(true, b"fragment2")].concat();
    let steps = vec![(sent, unmasked(TEXT, whole)), (next(false, b"fragment3"), Vec::new())];
    cases.0.push(Case { id: "5.15".to_owned(), steps, code: PROTOCOL_ERROR });
    for (id, last) in [("5.16", false), ("5.17", true)] {
        let sent = [next(last, b"fragment1"), first(TEXT, b"fragment2"), next(true, b"fragment3")].concat();
        cases.bad(id, sent, PROTOCOL_ERROR);
    }
    cases.bad("5.18", [first(TEXT, b"fragment1"), frame(true, TEXT, b"fragment2")].concat(), PROTOCOL_ERROR);
    let message = b"fragment1fragment2fragment3fragment4fragment5";
    let steps = vec![
        ([first(TEXT, b"fragment1"), next(false, b"fragment2"), ping.0.clone()].concat(), ping.1.clone()),
        ([next(false, b"fragment3"), next(false, b"fragment4"), ping.0].concat(), ping.1),
        (next(true, b"fragment5"), unmasked(TEXT, message)),
    ];
    cases.good("5.19", steps);
    cases.echo("empty fragments", TEXT, [first(TEXT, b""), next(false, b""), next(true, b"")].concat(), b"");
    cases.echo("6.1.3", TEXT, [first(TEXT, b""), next(false, b"middle"), next(true, b"")].concat(), b"middle");
}

/// Text that is UTF-8: Autobahn's cases 6.2, 6.5, 6.7, 6.9, 6.11, 6.22 and 6.23.
const TEXTS: &[(&str, &[u8])] = &[
    ("6.2", "Hello-µ@ßöäüàá-UTF-8!!".as_bytes()),
    ("6.5", "κόσμε".as_bytes()),
    ("6.7.1", b"\x00"),
    ("6.7.2", b"\xc2\x80"),
    ("6.7.3", b"\xe0\xa0\x80"),
    ("6.7.4", b"\xf0\x90\x80\x80"),
    ("6.9.1", b"\x7f"),
    ("6.9.2", b"\xdf\xbf"),
    ("6.9.3", b"\xef\xbf\xbf"),
    ("6.9.4", b"\xf4\x8f\xbf\xbf"),
    ("6.11.1", b"\xed\x9f\xbf"),
    ("6.11.2", b"\xee\x80\x80"),
    ("6.11.3", b"\xef\xbf\xbd"),
    ("6.22.1", b"\xef\xbf\xbe"),
    ("6.22.3", b"\xf0\x9f\xbf\xbe"),
    ("6.22.34", b"\xf4\x8f\xbf\xbe"),
    ("6.23.1", b"\xef\xbf\xb9\xef\xbf\xba\xef\xbf\xbb\xef\xbf\xbc\xef\xbf\xbd"),
];

/// Text that is not: Autobahn's cases 6.3, 6.6, 6.8, 6.10 and 6.11.5 to 6.21.
const NO_TEXTS: &[(&str, &[u8])] = &[
    ("6.3", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited"),
    ("6.6.1", b"\xce"),
    ("6.6.3", b"\xce\xba\xe1"),
    ("6.6.4", b"\xce\xba\xe1\xbd"),
    ("6.6.6", b"\xce\xba\xe1\xbd\xb9\xcf"),
    ("6.6.8", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce"),
    ("6.6.10", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce"),
    ("6.8.1", b"\xf8\x88\x80\x80\x80"),
    ("6.8.2", b"\xfc\x84\x80\x80\x80\x80"),
    ("6.10.1", b"\xf7\xbf\xbf\xbf"),
    ("6.10.2", b"\xfb\xbf\xbf\xbf\xbf"),
    ("6.10.3", b"\xfd\xbf\xbf\xbf\xbf\xbf"),
    ("6.11.5", b"\xf4\x90\x80\x80"),
    ("6.12.1", b"\x80"),
    ("6.12.2", b"\xbf"),
    ("6.12.3", b"\x80\xbf"),
    ("6.12.4", b"\x80\xbf\x80"),
    ("6.12.5", b"\x80\xbf\x80\xbf"),
    ("6.13.1", b"\xc0 \xc1 \xc2 \xdf "),
    ("6.13.2", b"\xe0 \xe1 \xee \xef "),
    ("6.13.3", b"\xf0 \xf4 \xf6 \xf7 "),
    ("6.13.4", b"\xf8 \xf9 \xfa \xfb "),
    ("6.13.5", b"\xfc \xfd "),
    ("6.14.1", b"\xc0"),
    ("6.14.2", b"\xe0\x80"),
    ("6.14.3", b"\xf0\x80\x80"),
    ("6.14.4", b"\xf8\x80\x80\x80"),
    ("6.14.5", b"\xfc\x80\x80\x80\x80"),
    ("6.14.6", b"\xdf"),
    ("6.14.7", b"\xef\xbf"),
    ("6.14.8", b"\xf7\xbf\xbf"),
    ("6.14.9", b"\xfb\xbf\xbf\xbf"),
    ("6.14.10", b"\xfd\xbf\xbf\xbf\xbf"),
    (
        "6.15",
        b"\xc0\xe0\x80\xf0\x80\x80\xf8\x80\x80\x80\xfc\x80\x80\x80\x80\xdf\xef\xbf\xf7\xbf\xbf\xfb\xbf\xbf\xbf\xfd",
    ),
    ("6.16.1", b"\xfe"),
    ("6.16.2", b"\xff"),
    ("6.16.3", b"\xfe\xfe\xff\xff"),
    ("6.17.1", b"\xc0\xaf"),
    ("6.17.2", b"\xe0\x80\xaf"),
    ("6.17.3", b"\xf0\x80\x80\xaf"),
    ("6.17.4", b"\xf8\x80\x80\x80\xaf"),
    ("6.17.5", b"\xfc\x80\x80\x80\x80\xaf"),
    ("6.18.1", b"\xc1\xbf"),
    ("6.18.2", b"\xe0\x9f\xbf"),
    ("6.18.3", b"\xf0\x8f\xbf\xbf"),
    ("6.18.4", b"\xf8\x87\xbf\xbf\xbf"),
    ("6.18.5", b"\xfc\x83\xbf\xbf\xbf\xbf"),
    ("6.19.1", b"\xc0\x80"),
    ("6.19.2", b"\xe0\x80\x80"),
    ("6.19.3", b"\xf0\x80\x80\x80"),
    ("6.20.1", b"\xed\xa0\x80"),
    ("6.20.2", b"\xed\xad\xbf"),
    ("6.20.3", b"\xed\xae\x80"),
    ("6.20.4", b"\xed\xaf\xbf"),
    ("6.20.5", b"\xed\xb0\x80"),
    ("6.20.6", b"\xed\xbe\x80"),
    ("6.20.7", b"\xed\xbf\xbf"),
    ("6.21.1", b"\xed\xa0\x80\xed\xb0\x80"),
    ("6.21.8", b"\xed\xaf\xbf\xed\xbf\xbf"),
];

/// 6 UTF-8.
fn texts(cases: &mut Cases) {
    for (id, text) in TEXTS {
        cases.echo(id, TEXT, frame(true, TEXT, text), text);
        cases.echo(&format!("{id}, a frame for each byte"), TEXT, fragments(TEXT, text, 1), text);
    }
    for (id, text) in NO_TEXTS {
        cases.bad(id, frame(true, TEXT, text), INVALID_DATA);
    }
    let (_, surrogates) = NO_TEXTS[0];
    cases.bad("6.3.2", fragments(TEXT, surrogates, 1), INVALID_DATA);
    cases.bad(
        "6.4.1",
        fragments(TEXT, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited", 11),
        INVALID_DATA,
    );
}

/// 7 Close frames.
fn closes(cases: &mut Cases) {
    let close = |payload: &[u8]| frame(true, CLOSE, payload);
    let coded = |code: u16, reason: &[u8]| [&code.to_be_bytes()[..], reason].concat();
    let hello = (frame(true, TEXT, b"Hello World!"), unmasked(TEXT, b"Hello World!"));
    cases.good("7.1.1", vec![hello.clone()]);
    // What follows a close frame is not looked at.
    let ended = |id: &str, steps: Vec<(Vec<u8>, Vec<u8>)>| Case { id: id.to_owned(), steps, code: Some(1000) };
    cases.0.push(ended("7.1.2", vec![([close(&coded(1000, b"")), close(b"")].concat(), Vec::new())]));
    cases.0.push(ended("7.1.3", vec![([close(&coded(1000, b"")), frame(true, PING, b"")].concat(), Vec::new())]));
    cases.0.push(ended("7.1.4", vec![([close(&coded(1000, b"")), hello.0].concat(), Vec::new())]));
    cases.bad("7.3.1", close(b""), None);
    cases.bad("7.3.2", close(b"\x03"), PROTOCOL_ERROR);
    cases.bad("7.3.3", close(&coded(1000, b"")), Some(1000));
    cases.bad("7.3.4", close(&coded(1000, b"Hello World!")), Some(1000));
    cases.bad("7.3.5", close(&coded(1000, &[b'*'; 123])), Some(1000));
    cases.bad("7.3.6", close(&coded(1000, &[b'*'; 124])), PROTOCOL_ERROR);
    cases.bad("7.5.1", close(&coded(1000, NO_TEXTS[0].1)), INVALID_DATA);
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        cases.bad(&format!("7.7: {code}"), close(&coded(code, b"")), Some(code));
    }
    for code in [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65_535] {
        cases.bad(&format!("7.9: {code}"), close(&coded(code, b"")), PROTOCOL_ERROR);
    }
}

/// 9 Sizes, 10 fragments of a long message.
fn sizes(cases: &mut Cases) {
    for (id, length) in [("9.2.1", 65_536), ("9.2.2", 262_144), ("9.2.3", 1 << 20)] {
        let message = noise(length, length as u64);
        cases.echo(id, BINARY, frame(true, BINARY, &message), &message);
    }
    let message = noise(1 << 20, 9);
    for length in [1024, 4096, 16_384, 65_536, 262_144] {
        cases.echo(&format!("9.4: {length}"), BINARY, fragments(BINARY, &message, length), &message);
    }
    let small: Vec<_> = (0..200u64).map(|n| noise(1 + n as usize, n + 1)).collect();
    let echoes = small.iter().map(|message| (frame(true, BINARY, message), unmasked(BINARY, message)));
    cases.good("9.8", echoes.collect());
    cases.echo("10.1.1", TEXT, fragments(TEXT, &[b'*'; 65_536], 1300), &[b'*'; 65_536]);
}

fn cases() -> Vec<Case> {
    let mut cases = Cases::default();
    frames(&mut cases);
    fragmented(&mut cases);
    texts(&mut cases);
    closes(&mut cases);
    sizes(&mut cases);
    cases.0
}

/// What came is what the case says, to the byte, and a close frame with its code.
fn check(case: &Case, got: &[u8]) {
    let replies: Vec<u8> = case.steps.iter().flat_map(|(_, reply)| reply.iter().copied()).collect();
    let shown = || got[..got.len().min(200)].escape_ascii().to_string();
    let Some(close) = got.strip_prefix(&replies[..]) else { panic!("{}: other replies came: {}", case.id, shown()) };
    let fits = match (case.code, close) {
        (None, [0x88, 0]) => true,
        (Some(code), [0x88, length, high, low, reason @ ..]) => {
            usize::from(*length) == 2 + reason.len() && code == u16::from_be_bytes([*high, *low])
        }
        _ => false,
    };
    assert!(fits, "{}: not closed with {:?}: {}", case.id, case.code, close.escape_ascii());
}

struct Peers {
    _site: Site,
    _server: Server,
    gateway: Gateway,
}

/// The server, and a gateway before it. The error says why there is no server.
fn peers(plain: bool) -> Result<Peers, String> {
    let python = python()?;
    let site = Site::new();
    let upstream = ports::free();
    let mut command = Command::new(&python);
    command.arg(site.file("server.py", SERVER)).arg(upstream.port().to_string());
    let mut server = Server::start(command, site.path());
    server.wait_until(|| TcpStream::connect(upstream).is_ok());
    let setup = before(&site, [format!("http://{upstream}")]);
    let gateway = if plain { setup.plain().listener("h2c = true") } else { setup.listener("http3 = true") }.start();
    Ok(Peers { _site: site, _server: server, gateway })
}

#[test]
fn over_http1() {
    let peers = match peers(false) {
        Ok(peers) => peers,
        Err(reason) => skip!("no Python with `websockets`: {reason}"),
    };
    for case in cases() {
        let mut wire = peers.gateway.connect();
        wire.send(format!(
            "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ))
        .expect("the gateway reads");
        assert_eq!(wire.response("GET").expect("it switches").status(), 101, "{}", case.id);
        let mut got = Vec::new();
        for (sent, reply) in &case.steps {
            // What fails is seen by what has come.
            let _ = wire.send(sent).and_then(|()| wire.exactly(reply.len(), &mut got));
        }
        got.extend(wire.rest().0);
        check(&case, &got);
    }
}

#[test]
fn over_http2() {
    let peers = match peers(true) {
        Ok(peers) => peers,
        Err(reason) => skip!("no Python with `websockets`: {reason}"),
    };
    h2::run(async {
        let mut client = h2::connect(peers.gateway.address).await.ready().await.expect("the connection is open");
        while !client.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
        for case in cases() {
            let mut ask = Request::connect(format!("http://{HOST}/")).body(()).expect("it is well-formed");
            ask.headers_mut().insert("sec-websocket-version", "13".parse().expect("a value"));
            ask.extensions_mut().insert(::h2::ext::Protocol::from_static("websocket"));
            client = client.ready().await.expect("the connection is open");
            let (response, mut send) = client.send_request(ask, false).expect("it can be sent");
            let response = response.await.expect("it is answered");
            assert_eq!(response.status(), 200, "{}", case.id);
            let (mut body, mut got, mut wanted) = (response.into_body(), Vec::new(), 0);
            for (sent, reply) in &case.steps {
                wanted += reply.len();
                let _ = send.send_data(Bytes::from(sent.clone()), false);
                while got.len() < wanted
                    && let Some(Ok(piece)) = body.data().await
                {
                    let _ = body.flow_control().release_capacity(piece.len());
                    got.extend_from_slice(&piece);
                }
            }
            got.extend(h2::read(&mut body).await.0);
            let _ = send.send_data(Bytes::new(), true);
            check(&case, &got);
        }
    });
}

#[test]
fn over_http3() {
    let peers = match peers(false) {
        Ok(peers) => peers,
        Err(reason) => skip!("no Python with `websockets`: {reason}"),
    };
    let connect = || Client::connect(peers.gateway.address, &over_quic(peers.gateway.config(), false));
    let mut client = connect();
    let mut request = h3::head("GET", "/", &[("sec-websocket-version", "13")]);
    request.fields.push(b"upgrade", b"websocket").expect("a legal field");
    let mut head = Vec::new();
    sealane_http::h3::encode_request(&mut head, &request, BodyLength::None, Scheme::Https, true);
    for (n, case) in cases().into_iter().enumerate() {
        // A connection has fewer streams than there are cases.
        if n % 50 == 49 {
            client = connect();
        }
        let id = client.open(&head, false);
        let mut wanted = 0;
        for (sent, reply) in &case.steps {
            wanted += reply.len();
            client.write(id, &h3::data(sent));
            client.until(|c| {
                c.ended(id).is_some() || c.so_far(id).is_ok_and(|r| r.status == 200 && r.body.len() >= wanted)
            });
        }
        client.until(|c| c.ended(id).is_some());
        let response = client.so_far(id).expect("it makes sense");
        assert_eq!(response.status, 200, "{}", case.id);
        client.finish(id);
        check(&case, &response.body);
    }
}
