//! RFC 9218: who gets on first, where the client's connection is what holds responses back.
//!
//! What holds them back here is the connection's window. It is full before those ask whose order is looked at, nothing
//! more is let out before all of their responses lie with the gateway's system, and the client opens it bit by bit: the
//! next bit once the last one is used up. So it is always the gateway that decides whose bytes come next, however late
//! anybody's turn on the processor comes, and nobody may get on while somebody more urgent has bytes left.

use quinn_proto::{StreamId, TransportConfig, VarInt};
use sealane_http::BodyLength;
use sealane_http::h3::varint;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::frames::{END_STREAM, Frames, kind};
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::h3::{Client, headers, over_quic};
use sealane_interop::site::Site;
use sealane_interop::{WAIT_LIMIT, eventually, noise};
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Of each response: less than what a system takes for a connection that nobody reads from.
const BODY: usize = 48_000;
/// Of it comes ahead of the rest, so that the gateway has some of it when its turn comes, and gets the rest by reading on.
const FIRST: usize = 10_000;
/// By how much the connection's window is opened at a time.
const STEP: usize = 8_192;

/// A server whose responses come in two parts, but for `/whole`: [`FIRST`] bytes, and the rest when it is told to go on.
struct Origin {
    backend: Backend,
    counts: Arc<Counts>,
}

/// Responses of which the gateway's system has the first part, those that may go on, and those that it has whole.
#[derive(Default)]
struct Counts {
    begun: AtomicUsize,
    go_on: AtomicUsize,
    delivered: AtomicUsize,
}

impl Origin {
    fn new() -> Self {
        let (answer, counts) = (ok(&noise(BODY, 4)), Arc::<Counts>::default());
        let ours = Arc::clone(&counts);
        let backend = Backend::start(move |mut connection| {
            while let Some(request) = connection.request() {
                let (first, rest) = answer.split_at(if request.target() == "/whole" { answer.len() } else { FIRST });
                connection.send(first);
                if !connection.delivered() {
                    return;
                }
                let place = ours.begun.fetch_add(1, Ordering::SeqCst);
                if !eventually(|| ours.go_on.load(Ordering::SeqCst) > place) {
                    return;
                }
                connection.send(rest);
                ours.delivered.fetch_add(usize::from(connection.delivered()), Ordering::SeqCst);
            }
        });
        Self { backend, counts }
    }

    /// Whether the last of so many responses lies with the gateway's system, whole. The gateway has read the first part
    /// before the rest comes, so that it has to read on when there is room.
    fn has_answered(&self, gateway: &Gateway, asked: usize) -> bool {
        if self.counts.begun.load(Ordering::SeqCst) >= asked && gateway.server.rests() {
            self.counts.go_on.store(asked, Ordering::SeqCst);
        }
        self.delivered() >= asked
    }

    fn delivered(&self) -> usize {
        self.counts.delivered.load(Ordering::SeqCst)
    }
}

/// What has come of responses, and by whose turn.
#[derive(Default)]
struct Got {
    /// By stream.
    bytes: HashMap<u64, usize>,
    /// Streams in the order in which they ended.
    ended: Vec<u64>,
    /// Streams that come one after the other: nothing of one before all of the one before it.
    order: Vec<u64>,
    /// Those that have got on since the window was last opened.
    got_on: Vec<u64>,
}

impl Got {
    fn of(&self, stream: u64) -> usize {
        self.bytes.get(&stream).copied().unwrap_or(0)
    }

    /// Looks, once what was let out at a time has all come, at whether those who had it might have it. (Within that, the
    /// order is the transport's.)
    #[track_caller]
    fn check(&mut self) {
        for stream in std::mem::take(&mut self.got_on) {
            let place = self.order.iter().position(|s| *s == stream).unwrap_or(self.order.len());
            let waiting = self.order[..place].iter().find(|s| !self.ended.contains(s));
            assert_eq!(waiting, None, "{stream} got on before it: {:?}", self.bytes);
        }
    }

    /// How much less than the others the last of these has had.
    fn spread(&self, streams: [u64; 3]) -> usize {
        let bytes = streams.map(|s| self.of(s));
        bytes.iter().max().unwrap_or(&0) - bytes.iter().min().unwrap_or(&0)
    }
}

/// A client whose connection's window is full with responses that nobody wants soon.
struct Http2<'o> {
    frames: Frames<TcpStream>,
    got: Got,
    /// What is left of the window.
    window: usize,
    gateway: &'o Gateway,
    origin: &'o Origin,
}

impl<'o> Http2<'o> {
    /// Streams have room for all (SETTINGS_INITIAL_WINDOW_SIZE), the connection has 64 KiB as long as nothing is said.
    fn new(gateway: &'o Gateway, origin: &'o Origin) -> Self {
        let frames = Frames::plain(gateway.address, &[(4, 1 << 24)]);
        Self { frames, got: Got::default(), window: 65_535, gateway, origin }
    }

    /// Asks, and waits for the response's head, which no window holds back, and until the rest waits behind it.
    fn ask(&mut self, stream: u32, path: &str, priority: &str) -> u64 {
        let asked = self.origin.delivered() + 1;
        self.frames.request(stream, "GET", path, &[("priority", priority)], true).expect("the gateway reads");
        while self.receive() != (kind::HEADERS, stream) {}
        assert!(eventually(|| self.origin.has_answered(self.gateway, asked)));
        stream.into()
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
            if !frame.payload.is_empty() {
                self.got.got_on.push(stream);
            }
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
        self.got.check();
    }

    /// Takes bit by bit, until so many have ended; what is left of the window when the last of all ends stays.
    fn until_ended(&mut self, responses: usize) {
        while self.got.ended.len() < responses {
            if self.window == 0 {
                self.got.check();
                self.window = STEP;
                self.frames.send(kind::WINDOW_UPDATE, 0, 0, &(STEP as u32).to_be_bytes()).expect("the gateway reads");
            }
            self.receive();
        }
    }
}

#[test]
fn the_urgent_first_over_http2() {
    let (site, origin) = (Site::new(), Origin::new());
    let gateway = before(&site, [origin.backend.url()]).plain().listener("h2c = true").start();
    let mut client = Http2::new(&gateway, &origin);
    // By a frame that comes ahead of its request, and has the last word.
    client.reprioritise(11, "u=0");
    for stream in [1, 3] {
        client.ask(stream, "/", "u=5, i");
    }
    client.fill();
    let low = [5, 7].map(|stream| client.ask(stream, "/", "u=5, i"));
    let urgent = [client.ask(9, "/", "u=1"), client.ask(11, "/", "u=7")];
    // Of those that fill the window one may have ended.
    let ended = client.got.ended.len();
    client.got.order = vec![urgent[1], urgent[0]];
    client.until_ended(ended + 2);
    // Nobody is urgent for ever.
    client.fill();
    client.reprioritise(7, "u=4");
    client.got.order.push(low[1]);
    client.until_ended(ended + 3);
    assert_eq!(client.got.ended[ended..], [urgent[1], urgent[0], low[1]]);
    client.until_ended(6);
}

#[test]
fn one_after_the_other_or_in_turn_over_http2() {
    let (site, origin) = (Site::new(), Origin::new());
    let gateway = before(&site, [origin.backend.url()]).plain().listener("h2c = true").start();
    for (priority, in_turn) in [("u=3", false), ("u=3, i", true)] {
        let mut client = Http2::new(&gateway, &origin);
        // Whose first bytes come first is chance: the window is full before they ask.
        let first = [1, 3].map(|stream| client.ask(stream, "/", "u=2"));
        client.fill();
        let rest = [5, 7, 9].map(|stream| client.ask(stream, "/", priority));
        client.got.order = first.into_iter().chain(rest).take(if in_turn { 2 } else { 5 }).collect();
        client.until_ended(3);
        if in_turn {
            assert!(client.got.spread(rest) <= 2 * STEP, "{:?}", client.got.bytes);
        }
        client.until_ended(5);
        if !in_turn {
            assert_eq!(client.got.ended, [1, 3, 5, 7, 9]);
        }
    }
}

/// The same over HTTP/3.
struct Http3<'o> {
    client: Client,
    control: StreamId,
    asked: Vec<StreamId>,
    got: Got,
    /// How much may come in all, and how much has.
    granted: usize,
    taken: usize,
    gateway: &'o Gateway,
    origin: &'o Origin,
}

impl<'o> Http3<'o> {
    fn new(gateway: &'o Gateway, origin: &'o Origin) -> Self {
        let mut transport = TransportConfig::default();
        transport.receive_window(VarInt::from_u32(STEP as u32));
        transport.max_concurrent_uni_streams(VarInt::from_u32(8));
        transport.max_idle_timeout(None);
        transport.enable_segmentation_offload(false);
        let mut client = Client::begin_with(gateway.address, &over_quic(gateway.config(), false), transport);
        // From here on taking bytes opens no window: `open` does.
        client.quic.set_receive_window(VarInt::from_u32(0));
        assert!(client.until(|c| !c.quic.is_handshaking()));
        let control = client.open_control();
        Self { client, control, asked: Vec::new(), got: Got::default(), granted: STEP, taken: 0, gateway, origin }
    }

    /// Asks, and waits until the response lies with the gateway.
    fn ask(&mut self, path: &str, priority: &str) -> u64 {
        let asked = self.origin.delivered() + 1;
        let id = self.client.open_silently(&headers("GET", path, &[("priority", priority)], BodyLength::None));
        self.asked.push(id);
        assert!(self.client.until(|_| self.origin.has_answered(self.gateway, asked)));
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

    /// Takes what has come. Whether the window is used up.
    fn take(&mut self) -> bool {
        for id in &self.asked {
            let mut recv = self.client.quic.recv_stream(*id);
            let Ok(mut chunks) = recv.read(true) else { continue };
            loop {
                match chunks.next(usize::MAX) {
                    Ok(Some(chunk)) => {
                        *self.got.bytes.entry(id.index()).or_default() += chunk.bytes.len();
                        self.taken += chunk.bytes.len();
                        self.got.got_on.push(id.index());
                    }
                    Ok(None) => break self.got.ended.push(id.index()),
                    Err(_) => break,
                }
            }
            let _ = chunks.finalize();
        }
        // The gateway's own streams have their part.
        let own: usize = self.client.uni.values().map(Vec::len).sum();
        self.taken + own == self.granted
    }

    fn open(&mut self) {
        self.got.check();
        self.granted += STEP;
        self.client.quic.set_receive_window(VarInt::from_u32(STEP as u32));
        self.client.quic.set_receive_window(VarInt::from_u32(0));
    }

    /// Takes, and opens the window each time that it is used up if `opens`, until that is done.
    #[track_caller]
    fn go_on(&mut self, opens: bool, done: impl Fn(&Got, bool) -> bool) {
        let start = Instant::now();
        loop {
            let full = self.take();
            if done(&self.got, full) {
                return;
            }
            if full && opens {
                self.open();
            }
            self.client.pump();
            assert!(start.elapsed() < WAIT_LIMIT, "{:?}, {:?}", self.got.bytes, self.client.lost);
        }
    }

    fn fill(&mut self) {
        self.go_on(false, |_, full| full);
        self.got.check();
    }

    fn until_ended(&mut self, responses: usize) {
        self.go_on(true, |got, _| got.ended.len() >= responses);
    }
}

#[test]
fn the_urgent_first_over_http3() {
    let (site, origin) = (Site::new(), Origin::new());
    let gateway = before(&site, [origin.backend.url()]).listener("http3 = true").start();
    let mut client = Http3::new(&gateway, &origin);
    client.reprioritise(5, "u=0");
    // The last one lies whole with the gateway, which is done with its upstream then.
    let low = ["/", "/", "/", "/whole"].map(|path| client.ask(path, "u=5, i"));
    client.fill();
    let urgent = [client.ask("/", "u=1"), client.ask("/", "u=7")];
    client.got.order = vec![urgent[1], urgent[0]];
    client.until_ended(2);
    client.fill();
    client.reprioritise(low[3], "u=4");
    client.got.order.push(low[3]);
    client.until_ended(3);
    assert_eq!(client.got.ended, [urgent[1], urgent[0], low[3]]);
    client.until_ended(6);
}

#[test]
fn one_after_the_other_or_in_turn_over_http3() {
    let (site, origin) = (Site::new(), Origin::new());
    let gateway = before(&site, [origin.backend.url()]).listener("http3 = true").start();
    for (priority, in_turn) in [("u=3", false), ("u=3, i", true)] {
        let mut client = Http3::new(&gateway, &origin);
        let first = client.ask("/", "u=2");
        client.fill();
        // Those that take turns have more than they get at a time.
        let path = if in_turn { "/whole" } else { "/" };
        let rest = [(); 3].map(|()| client.ask(path, priority));
        client.got.order = [first].into_iter().chain(rest).take(if in_turn { 1 } else { 4 }).collect();
        client.until_ended(2);
        if in_turn {
            assert!(client.got.spread(rest) <= 2 * STEP, "{:?}", client.got.bytes);
        }
        client.until_ended(4);
        if !in_turn {
            assert_eq!(client.got.ended, [&[first][..], &rest].concat());
        }
    }
}
