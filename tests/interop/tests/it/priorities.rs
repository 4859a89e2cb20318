//! RFC 9218: who gets on first, where the client's connection is what holds responses back.
//!
//! What holds them back here is the connection's window. A client opens it bit by bit, so that it is always the gateway
//! that decides whose bytes come next. Where the first has none at hand, others may go ahead: hence the bounds, which
//! lie far from what would come without an order.

use quinn_proto::{StreamId, TransportConfig, VarInt};
use sealane_http::BodyLength;
use sealane_http::h3::varint;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::frames::{END_STREAM, Frames, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h3::{Client, headers, over_quic};
use sealane_interop::noise;
use sealane_interop::site::Site;
use std::collections::HashMap;
use std::net::TcpStream;

/// Of each response.
const BODY: usize = 400_000;
/// What others may have had: without an order each of them would have as much as the first when that is whole.
const LITTLE: usize = BODY;
/// Of those that share: what the last may lack when the first is whole.
const MUCH: usize = BODY / 2;
/// By how much the connection's window is opened at a time.
const STEP: usize = 16_384;

fn backend() -> Backend {
    let answer = ok(&noise(BODY, 4));
    Backend::answering(move |_| answer.clone())
}

/// Bytes of bodies, by stream, and the order in which they ended.
#[derive(Default)]
struct Got {
    bytes: HashMap<u64, usize>,
    ended: Vec<u64>,
}

impl Got {
    fn of(&self, stream: u64) -> usize {
        self.bytes.get(&stream).copied().unwrap_or(0)
    }
}

/// A client whose connection's window is full with responses that nobody wants soon.
struct Http2 {
    frames: Frames<TcpStream>,
    got: Got,
    /// What is left of the window.
    window: usize,
}

impl Http2 {
    /// Streams have room for all (SETTINGS_INITIAL_WINDOW_SIZE), the connection has 64 KiB as long as nothing is said.
    fn new(gateway: &Gateway) -> Self {
        let frames = Frames::plain(gateway.address, &[(4, 1 << 24)]);
        Self { frames, got: Got::default(), window: 65_535 }
    }

    /// Asks, and waits for the response's head, which no window holds back.
    fn ask(&mut self, stream: u32, priority: &str) {
        self.frames.request(stream, "GET", "/", &[("priority", priority)], true).expect("the gateway reads");
        while self.receive() != (kind::HEADERS, stream) {}
    }

    fn reprioritise(&mut self, stream: u32, priority: &str) {
        let payload = [&stream.to_be_bytes()[..], priority.as_bytes()].concat();
        self.frames.send(kind::PRIORITY_UPDATE, 0, 0, &payload).expect("the gateway reads");
    }

    /// The next frame's kind and stream.
    fn receive(&mut self) -> (u8, u32) {
        let frame = self.frames.receive().expect("the connection stays");
        let stream = u64::from(frame.stream);
        if frame.kind == kind::DATA {
            self.window = self.window.checked_sub(frame.payload.len()).expect("no more comes than may");
            *self.got.bytes.entry(stream).or_default() += frame.payload.len();
            if frame.flags & END_STREAM != 0 {
                self.got.ended.push(stream);
            }
        }
        (frame.kind, frame.stream)
    }

    fn fill(&mut self) {
        while self.window > 0 {
            self.receive();
        }
    }

    /// Takes bit by bit, until so many have ended; what is left of the window when the last of all ends stays.
    fn until_ended(&mut self, responses: usize) {
        while self.got.ended.len() < responses {
            if self.window == 0 {
                self.window = STEP;
                self.frames.send(kind::WINDOW_UPDATE, 0, 0, &(STEP as u32).to_be_bytes()).expect("the gateway reads");
            }
            self.receive();
        }
    }
}

#[test]
fn the_urgent_first_over_http2() {
    let (site, backend) = (Site::new(), backend());
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
    let mut client = Http2::new(&gateway);
    // By a frame that comes ahead of its request, and has the last word.
    client.reprioritise(11, "u=0");
    for stream in [1, 3, 5, 7] {
        client.ask(stream, "u=5, i");
    }
    client.fill();
    client.ask(9, "u=1");
    client.ask(11, "u=7");
    client.until_ended(2);
    assert_eq!((client.got.of(9), client.got.of(11)), (BODY, BODY));
    assert_eq!(client.got.ended, [11, 9]);
    let others: usize = [1, 3, 5, 7].iter().map(|s| client.got.of(*s)).sum();
    assert!(others < 65_535 + LITTLE, "{others}");
    // Nobody is urgent for ever.
    client.reprioritise(7, "u=4");
    client.until_ended(3);
    assert_eq!(client.got.ended[2], 7);
    client.until_ended(6);
}

#[test]
fn one_after_the_other_or_in_turn_over_http2() {
    let (site, backend) = (Site::new(), backend());
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
    for (priority, in_turn) in [("u=3", false), ("u=3, i", true)] {
        let mut client = Http2::new(&gateway);
        // Whose first bytes come first is chance: the window is full before they ask.
        client.ask(1, "u=2");
        client.fill();
        for stream in [3, 5, 7] {
            client.ask(stream, priority);
        }
        client.until_ended(2);
        let (first, others) = (client.got.ended[1], client.got.of(5) + client.got.of(7));
        if in_turn {
            let least = [3, 5, 7].map(|s| client.got.of(s)).into_iter().min();
            assert!(least > Some(BODY - MUCH), "{:?}", client.got.bytes);
        } else {
            assert!(first == 3 && others < LITTLE, "{:?}", client.got.bytes);
        }
        client.until_ended(4);
        if !in_turn {
            assert_eq!(client.got.ended, [1, 3, 5, 7]);
        }
    }
}

/// The same over HTTP/3. Nothing of a stream is read before [`Http3::take`], so that the connection's window closes.
struct Http3 {
    client: Client,
    control: StreamId,
    asked: Vec<StreamId>,
    got: Got,
}

impl Http3 {
    fn new(gateway: &Gateway) -> Self {
        let mut transport = TransportConfig::default();
        transport.receive_window(VarInt::from_u32(65_536));
        transport.max_concurrent_uni_streams(VarInt::from_u32(8));
        transport.enable_segmentation_offload(false);
        let mut client = Client::begin_with(gateway.address, &over_quic(gateway.config(), false), transport);
        assert!(client.until(|c| !c.quic.is_handshaking()));
        let control = client.open_control();
        Self { client, control, asked: Vec::new(), got: Got::default() }
    }

    /// Asks, and waits until the backend has heard it as well as `heard` requests in all.
    fn ask(&mut self, priority: &str, backend: &Backend, heard: usize) -> u64 {
        let id = self.client.open_silently(&headers("GET", "/", &[("priority", priority)], BodyLength::None));
        self.asked.push(id);
        assert!(self.client.until(|_| backend.requests().len() == heard), "{:?}", backend.requests().len());
        id.index()
    }

    fn reprioritise(&mut self, stream: u64, priority: &str) {
        let mut value = Vec::new();
        varint::put(&mut value, stream * 4);
        value.extend_from_slice(priority.as_bytes());
        let mut frame = Vec::new();
        // PRIORITY_UPDATE of a request (RFC 9218 §7.2).
        varint::put(&mut frame, 0xf0700);
        varint::put(&mut frame, value.len() as u64);
        frame.extend(value);
        self.client.write(self.control, &frame);
    }

    fn until_ended(&mut self, responses: usize) {
        let (asked, got) = (&self.asked, &mut self.got);
        let done = self.client.until(|c| {
            for id in asked {
                let mut recv = c.quic.recv_stream(*id);
                let Ok(mut chunks) = recv.read(true) else { continue };
                loop {
                    match chunks.next(usize::MAX) {
                        Ok(Some(chunk)) => *got.bytes.entry(id.index()).or_default() += chunk.bytes.len(),
                        Ok(None) => break got.ended.push(id.index()),
                        Err(_) => break,
                    }
                }
                let _ = chunks.finalize();
            }
            got.ended.len() >= responses
        });
        assert!(done, "{:?}", got.bytes);
    }
}

#[test]
fn the_urgent_first_over_http3() {
    let (site, backend) = (Site::new(), backend());
    let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
    let mut client = Http3::new(&gateway);
    client.reprioritise(5, "u=0");
    let low = [1, 2, 3, 4].map(|heard| client.ask("u=5, i", &backend, heard));
    let urgent = [client.ask("u=1", &backend, 5), client.ask("u=7", &backend, 6)];
    client.until_ended(2);
    assert_eq!(client.got.ended, [urgent[1], urgent[0]]);
    let others: usize = low.iter().map(|s| client.got.of(*s)).sum();
    assert!(others < 65_536 + LITTLE, "{others}");
    client.reprioritise(low[3], "u=4");
    client.until_ended(3);
    assert_eq!(client.got.ended[2], low[3]);
    client.until_ended(6);
}

#[test]
fn one_after_the_other_or_in_turn_over_http3() {
    let (site, backend) = (Site::new(), backend());
    let gateway = before(&site, [backend.url()]).listener("http3 = true").start();
    for (priority, in_turn, before) in [("u=3", false, 0), ("u=3, i", true, 4)] {
        let mut client = Http3::new(&gateway);
        let first = client.ask("u=2", &backend, before + 1);
        let rest = [2, 3, 4].map(|heard| client.ask(priority, &backend, before + heard));
        client.until_ended(2);
        assert_eq!(client.got.ended[0], first);
        if in_turn {
            let least = rest.map(|s| client.got.of(s)).into_iter().min();
            assert!(least > Some(BODY - MUCH), "{:?}", client.got.bytes);
        } else {
            assert_eq!(client.got.ended[1], rest[0]);
            assert!(client.got.of(rest[1]) + client.got.of(rest[2]) < LITTLE, "{:?}", client.got.bytes);
        }
        client.until_ended(4);
    }
}
