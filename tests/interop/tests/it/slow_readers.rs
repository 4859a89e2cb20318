//! What readers that take little or nothing cost, in bytes of the gateway's memory, and that others are served beside them.

use quinn_proto::{ReadError, StreamId, TransportConfig, VarInt};
use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
use sealane_http::BodyLength;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client::{self, get};
use sealane_interop::frames::{END_STREAM, Frames, kind};
use sealane_interop::gateway::{Gateway, Setup, before, configured};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{WAIT_LIMIT, eventually, h2, h3, h3_server, say};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Clients that read slowly.
const READERS: usize = 200;
/// Of them, those before the first measurement.
const WARM: usize = 20;
/// What each may cost. A reader for which is read ahead costs 64 KiB more.
const EACH: u64 = 16 << 10;
/// How often each of them takes something, and how much: never all that there is for it.
const ROUNDS: usize = 8;
const TAKEN: usize = 64 << 10;
/// Longer than what the kernel's buffers take together.
const BODY: usize = 32 << 20;

/// What the backend has sent of large bodies.
#[derive(Default)]
struct Sent {
    pieces: AtomicUsize,
    /// How many bodies have come so far that the gateway has begun to hold them back.
    bodies: AtomicUsize,
}

/// Answers `/large` with a body that never ends for who does not read it.
fn backend(sent: &Arc<Sent>) -> Backend {
    let sent = sent.clone();
    Backend::start(move |mut connection| {
        while let Some(request) = connection.request() {
            if request.target() != "/large" {
                connection.send(ok(b"hello"));
                continue;
            }
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n"));
            let piece = [b'x'; 16 << 10];
            for n in 0..BODY / piece.len() {
                if connection.wire.send(piece).is_err() {
                    return;
                }
                sent.pieces.fetch_add(1, Ordering::Relaxed);
                if n == 16 {
                    sent.bodies.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    })
}

/// The gateway's memory at rest: it waits, with all its threads, and neither that nor what it has taken changes.
#[track_caller]
fn settled(gateway: &Gateway, sent: &Sent) -> u64 {
    let (mut last, mut same) = ((0, 0), 0);
    let settled = eventually(|| {
        let now = (gateway.server.resident().unwrap_or(0), sent.pieces.load(Ordering::Relaxed));
        same = if now == last && gateway.server.rests() { same + 1 } else { 0 };
        last = now;
        std::thread::sleep(Duration::from_millis(100));
        same == 5
    });
    assert!(settled, "the gateway does not come to rest: {}", gateway.metrics());
    last.0
}

/// A connection of which the system takes little for a reader that does not read. Else its share of all readers' memory
/// would decide when it takes no more.
pub(crate) fn narrow(address: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket can be made");
    sockopt::set_socket_recv_buffer_size(&socket, 64 << 10).expect("it may be smaller than usual");
    connect(&socket, &address).expect("the gateway listens");
    socket.into()
}

/// Opens the readers, and says what each of them costs: while they take nothing, and at most while they take a little now and then.
#[track_caller]
fn cost<R: Read>(gateway: &Gateway, sent: &Sent, mut open: impl FnMut() -> R) -> [u64; 2] {
    // What is allocated once is not counted.
    let mut readers: Vec<R> = (0..WARM).map(|_| open()).collect();
    assert!(eventually(|| sent.bodies.load(Ordering::Relaxed) >= readers.len()), "{}", gateway.metrics());
    let first = settled(gateway, sent);
    while readers.len() < READERS {
        readers.push(open());
    }
    assert!(eventually(|| sent.bodies.load(Ordering::Relaxed) >= readers.len()), "{}", gateway.metrics());
    let each = || settled(gateway, sent).saturating_sub(first) / (READERS - WARM) as u64;
    let (stalled, mut piece) = (each(), vec![0; TAKEN]);
    let slow = (0..ROUNDS).map(|_| {
        for reader in &mut readers {
            reader.read_exact(&mut piece).expect("there is more for it");
        }
        each()
    });
    let slow = slow.max().unwrap_or_default();
    say(&format!("a reader costs {stalled} bytes while it takes nothing, and {slow} while it takes a little"));
    [stalled, slow]
}

fn readers_that_take_little_cost_little(tls: bool) {
    let (site, sent) = (Site::new(), Arc::default());
    let backend = backend(&sent);
    // Nobody is ended for taking nothing while this goes on.
    let setup = before(&site, [backend.url()]).limits("idle_timeout = \"30m\"");
    let gateway = if tls { setup } else { setup.plain() }.start();
    let request = get("/large");
    let each = cost(&gateway, &sent, || {
        let mut socket = narrow(gateway.address);
        if tls {
            let tls = client::handshake(socket, gateway.config(), HOST).expect("the gateway shakes hands");
            let mut wire = Wire::new(tls);
            wire.send(&request).expect("the gateway reads");
            Box::new(wire.stream) as Box<dyn Read>
        } else {
            socket.write_all(&request).expect("the gateway reads");
            Box::new(socket) as Box<dyn Read>
        }
    });
    // Others are served beside them.
    let other = if tls { gateway.get("/") } else { gateway.plain_get("/", "") };
    assert_eq!(other.text(), "hello");
    assert!(each.iter().all(|bytes| *bytes < EACH), "{each:?} bytes each");
}

#[test]
fn over_tls() {
    readers_that_take_little_cost_little(true);
}

#[test]
fn without_tls() {
    readers_that_take_little_cost_little(false);
}

/// Readers that take a little now and then, and never all: what they have taken must be given back, though more always waits.
struct Slow {
    readers: usize,
    /// Of them, those before the first measurement.
    warm: usize,
    rounds: usize,
    /// What each may cost. Without what it has taken, which is several times as much.
    each: u64,
}

impl Slow {
    /// `take` takes a little, `rest` does what a reader must do before it rests.
    #[track_caller]
    fn cost_little<R>(
        &self,
        gateway: &Gateway,
        sent: &Sent,
        mut open: impl FnMut() -> R,
        mut take: impl FnMut(&mut R),
        mut rest: impl FnMut(&mut R),
    ) {
        let mut read = |readers: &mut [R]| {
            for _ in 0..self.rounds {
                readers.iter_mut().for_each(&mut take);
            }
            readers.iter_mut().for_each(&mut rest);
            settled(gateway, sent)
        };
        let mut readers: Vec<R> = (0..self.warm).map(|_| open()).collect();
        let first = read(&mut readers);
        readers.extend((self.warm..self.readers).map(|_| open()));
        let last = read(&mut readers[self.warm..]);
        let each = last.saturating_sub(first) / (self.readers - self.warm) as u64;
        say(&format!("a reader that takes a little now and then: {each} bytes"));
        assert!(each < self.each, "{each} bytes each");
    }
}

/// Over HTTP/1.1 the kernel holds some megabytes, and has room for more when a third of them is gone: 8 MiB are taken.
const SLOW_OVER_HTTP1: Slow = Slow { readers: 50, warm: 10, rounds: 128, each: 128 << 10 };
/// Windows open by what was taken: 2 MiB in all.
const SLOW_OVER_STREAMS: Slow = Slow { readers: 30, warm: 6, rounds: 128, each: 256 << 10 };
const BIT: u32 = 16 << 10;

fn readers_that_take_a_little_cost_little(tls: bool) {
    let (site, sent) = (Site::new(), Arc::default());
    let backend = backend(&sent);
    let setup = before(&site, [backend.url()]).limits("idle_timeout = \"30m\"");
    let gateway = if tls { setup } else { setup.plain() }.start();
    let request = get("/large");
    let open = || -> Box<dyn Read> {
        let mut socket = narrow(gateway.address);
        socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout above zero is allowed");
        if !tls {
            socket.write_all(&request).expect("the gateway reads");
            return Box::new(socket);
        }
        let mut tls = client::handshake(socket, gateway.config(), HOST).expect("the gateway shakes hands");
        tls.write_all(&request).expect("the gateway reads");
        Box::new(tls)
    };
    let mut bit = vec![0; 64 << 10];
    SLOW_OVER_HTTP1.cost_little(
        &gateway,
        &sent,
        open,
        |reader| reader.read_exact(&mut bit).expect("the response goes on"),
        |_| {},
    );
    let other = if tls { gateway.get("/") } else { gateway.plain_get("/", "") };
    assert_eq!(other.text(), "hello");
}

#[test]
fn readers_that_take_a_little_over_tls() {
    readers_that_take_a_little_cost_little(true);
}

#[test]
fn readers_that_take_a_little_without_tls() {
    readers_that_take_a_little_cost_little(false);
}

#[test]
fn readers_that_take_a_little_over_http2() {
    let (site, sent) = (Site::new(), Arc::default());
    let backend = backend(&sent);
    let setup = before(&site, [backend.url()]).limits("idle_timeout = \"30m\"");
    let gateway = setup.plain().listener("h2c = true").start();
    let open = || {
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let mut frames = Frames::plain(gateway.address, &[(4, BIT)]);
        frames.request(1, "GET", "/large", &[], true).expect("the gateway reads");
        frames
    };
    let take = |frames: &mut Frames<TcpStream>| {
        let mut taken = 0;
        while taken < BIT {
            let frame = frames.find(|f| matches!(f.kind, kind::DATA | kind::RST_STREAM | kind::GOAWAY));
            let frame = frame.filter(|f| f.kind == kind::DATA && f.flags & END_STREAM == 0);
            taken += frame.expect("the response goes on").payload.len() as u32;
        }
        for stream in [0, 1] {
            frames.send(kind::WINDOW_UPDATE, 0, stream, &BIT.to_be_bytes()).expect("the gateway reads");
        }
    };
    SLOW_OVER_STREAMS.cost_little(&gateway, &sent, open, take, |_| {});
    assert_eq!(gateway.plain_get("/", "").text(), "hello");
}

#[test]
fn readers_that_take_a_little_over_http3() {
    let (site, sent) = (Site::new(), Arc::default());
    let backend = backend(&sent);
    let setup = before(&site, [backend.url()]).limits("idle_timeout = \"30m\"");
    let gateway = setup.listener("http3 = true").start();
    let config = h3::over_quic(gateway.config(), false);
    let open = || {
        let mut transport = TransportConfig::default();
        transport.max_concurrent_uni_streams(VarInt::from_u32(8));
        transport.enable_segmentation_offload(false);
        transport.max_idle_timeout(None);
        transport.stream_receive_window(VarInt::from_u32(BIT));
        let mut client = h3::Client::begin_with(gateway.address, &config, transport);
        assert!(client.establish(), "{:?}", client.lost);
        client.open_control();
        let id = client.open_silently(&h3::headers("GET", "/large", &[], BodyLength::None));
        (client, id)
    };
    let take = |(client, id): &mut (h3::Client, StreamId)| {
        let mut taken = 0;
        let came = client.until(|client| {
            let mut stream = client.quic.recv_stream(*id);
            let mut chunks = stream.read(true).expect("the response goes on");
            while taken < BIT as usize {
                match chunks.next(BIT as usize - taken) {
                    Ok(Some(chunk)) => taken += chunk.bytes.len(),
                    Err(ReadError::Blocked) => break,
                    end => panic!("the response goes on: {end:?}"),
                }
            }
            let _ = chunks.finalize();
            taken == BIT as usize
        });
        assert!(came, "the response goes on: {:?}", client.lost);
        client.pump_once();
    };
    // What has come is acknowledged.
    let rest = |(client, _): &mut (h3::Client, StreamId)| (0..4).for_each(|_| client.pump());
    SLOW_OVER_STREAMS.cost_little(&gateway, &sent, open, take, rest);
    assert_eq!(gateway.get("/").text(), "hello");
}

/// Whose windows are open wide, and who acknowledges nothing.
#[test]
fn readers_that_acknowledge_nothing_over_http3() {
    let (site, sent) = (Site::new(), Arc::default());
    let backend = backend(&sent);
    let setup = before(&site, [backend.url()]).limits("idle_timeout = \"30m\"");
    let gateway = setup.listener("http3 = true").start();
    let config = h3::over_quic(gateway.config(), false);
    let open = || {
        let mut client = h3::Client::connect_wide(gateway.address, &config);
        client.open_silently(&h3::headers("GET", "/large", &[], BodyLength::None));
        client.pump_once();
        client
    };
    let read_ahead = |readers: usize| eventually(|| sent.bodies.load(Ordering::Relaxed) >= readers);
    let warm = [open(), open()];
    assert!(read_ahead(2), "{}", gateway.metrics());
    let first = settled(&gateway, &sent);
    let all: Vec<_> = (0..10).map(|_| open()).collect();
    assert!(read_ahead(12), "{}", gateway.metrics());
    let each = settled(&gateway, &sent).saturating_sub(first) / 10;
    say(&format!("a reader over HTTP/3 that acknowledges nothing: {each} bytes"));
    assert!(each < 512 << 10, "{each} bytes each");
    assert_eq!(gateway.get("/").text(), "hello");
    drop((warm, all));
}

/// The gateway has handed all of a response to the transport, and its client takes the last of it slowly.
#[test]
fn a_slow_reader_over_http3_gets_the_last_bytes() {
    const WHOLE: usize = 3 << 20;
    let site = Site::new();
    let backend = Backend::answering(|_| ok(&vec![b'x'; WHOLE]));
    let setup = before(&site, [backend.url()]).limits("keepalive_timeout = \"2s\"");
    let gateway = setup.listener("http3 = true").start();
    let mut client = h3::Client::connect_wide(gateway.address, &h3::over_quic(gateway.config(), false));
    let id = client.open(&h3::headers("GET", "/large", &[], BodyLength::None), true);
    // Less than the transport takes for any client is left.
    let begun = eventually(|| {
        client.pump_some(8);
        client.received(id).len() > WHOLE - (110 << 10) || client.lost.is_some()
    });
    assert!(begun && client.ended(id).is_none(), "{:?}", client.lost);
    let answered = || gateway.metric_with("sealane_responses_total", "class=\"2xx\"") == Some(1.0);
    assert!(eventually(answered), "the exchange is over: {}", gateway.metrics());
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(500));
        client.pump_some(3);
    }
    assert!(client.ended(id).is_none(), "it was not slow");
    let response = client.response(id).expect("the connection stays until the client has all of it");
    assert_eq!(response.body.len(), WHOLE);
}

/// A hundred streams whose windows stay closed, on each of ten connections.
#[test]
fn streams_with_closed_windows() {
    let site = Site::new();
    let backend = Backend::answering(|_| ok(&[b'x'; 256 << 10]));
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
    let open = || {
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let mut frames = Frames::plain(gateway.address, &[(4, 0)]);
        for stream in 0..100 {
            frames.request(2 * stream + 1, "GET", "/", &[], true).expect("the gateway reads");
        }
        for _ in 0..100 {
            frames.find(|f| f.kind == kind::HEADERS).expect("each gets its head");
        }
        frames
    };
    let first = open();
    let before = settled(&gateway, &Sent::default());
    let all: Vec<_> = (0..10).map(|_| open()).collect();
    let each = settled(&gateway, &Sent::default()).saturating_sub(before) / 10;
    say(&format!("a connection with 100 stalled streams: {each} bytes"));
    assert!(each < 1536 << 10, "{each} bytes for each connection");
    drop((first, all));
}

/// Streams whose windows are closed, over one upstream connection that others share.
fn stalled_responses_beside_another(setup: Setup<'_>, connections: impl Fn() -> usize) {
    let setup = setup.limits("idle_timeout = \"10m\"").upstream("idle_timeout = \"10m\"");
    let gateway = setup.plain().listener("h2c = true").start();
    let _stalled: Vec<_> = (0..CLIENTS).map(|_| stalled(&gateway, STALLED)).collect();
    // More than once, so that what the stalled ones may have has come.
    for _ in 0..10 {
        assert_eq!(gateway.plain_get("/small", "").body.len(), SMALL);
    }
    assert_eq!(connections(), 1, "it is no test where they do not share a connection");
}

/// Clients with stalled responses, and how many each has: no more than get windows as wide as those of the others.
const CLIENTS: usize = 8;
const STALLED: u32 = 4;
const LARGE: usize = 1 << 20;
const SMALL: usize = 100_000;

fn size(path: &[u8]) -> usize {
    if path == b"/large" { LARGE } else { SMALL }
}

/// A client that asks for large responses and whose windows stay closed; each has got its head.
fn stalled(gateway: &Gateway, streams: u32) -> Frames<TcpStream> {
    // SETTINGS_INITIAL_WINDOW_SIZE.
    let mut frames = Frames::plain(gateway.address, &[(4, 0)]);
    for stream in 0..streams {
        frames.request(2 * stream + 1, "GET", "/large", &[], true).expect("the gateway reads");
    }
    for _ in 0..streams {
        frames.find(|f| f.kind == kind::HEADERS).expect("each gets its head");
    }
    frames
}

fn http2_server() -> h2::Server {
    h2::Server::start(|(request, mut respond)| async move {
        h2::say(&mut respond, &vec![b'x'; size(request.uri().path().as_bytes())]);
    })
}

fn http3_server(site: &Site) -> h3_server::Server {
    h3_server::Server::start(&site.ecdsa, |mut asked| async move {
        let size = size(asked.head.target());
        asked.respond(200, &[], BodyLength::Known(size as u64)).await;
        asked.data(&vec![b'x'; size]).await;
        asked.finish().await;
    })
}

#[test]
fn stalled_responses_leave_an_http2_connection_to_others() {
    let site = Site::new();
    let server = http2_server();
    stalled_responses_beside_another(before(&site, [server.url()]).upstream("http = \"2\""), || server.connections());
}

#[test]
fn stalled_responses_leave_an_http3_connection_to_others() {
    let site = Site::new();
    let server = http3_server(&site);
    let setup = before(&site, [server.url()]).upstream("http = \"3\"");
    stalled_responses_beside_another(setup.upstream_tls(&format!("ca = {:?}", site.ca)), || server.connections());
}

/// A client with as many stalled responses as it may have streams makes the gateway hold no more than the windows that it grants
/// to the servers for this client: 2 MiB, and 32 KiB for each stream beyond. Others are served, and nothing is lost.
fn windows_are_within_the_budget_of_a_client(setup: Setup<'_>) {
    const STREAMS: u32 = 100;
    /// With what it takes to keep so many pieces. Windows of 256 KiB for each stream would be 25 MiB.
    const BOUND: u64 = 12 << 20;
    let setup = setup.limits("idle_timeout = \"30m\"").upstream("idle_timeout = \"30m\"");
    let gateway = setup.plain().listener("h2c = true").start();
    // What is allocated once is not counted.
    assert_eq!(gateway.plain_get("/small", "").body.len(), SMALL);
    let before = settled(&gateway, &Sent::default());
    let mut frames = stalled(&gateway, STREAMS);
    let grown = settled(&gateway, &Sent::default()).saturating_sub(before);
    say(&format!("a client with {STREAMS} stalled responses: {grown} bytes"));
    for _ in 0..10 {
        assert_eq!(gateway.plain_get("/small", "").body.len(), SMALL);
    }
    // SETTINGS_INITIAL_WINDOW_SIZE is for all streams, and WINDOW_UPDATE for the connection.
    frames.send(kind::SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]).expect("the gateway reads");
    frames.send(kind::WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes()).expect("the gateway reads");
    let (mut bodies, mut ended) = (vec![0; STREAMS as usize], 0);
    while ended < STREAMS {
        let frame = frames.find(|f| matches!(f.kind, kind::DATA | kind::RST_STREAM | kind::GOAWAY));
        let frame = frame.expect("the responses go on");
        assert_eq!(frame.kind, kind::DATA, "{frame:?}");
        bodies[(frame.stream / 2) as usize] += frame.payload.len();
        ended += u32::from(frame.flags & END_STREAM != 0);
    }
    assert_eq!(bodies, vec![LARGE; STREAMS as usize]);
    assert!(grown < BOUND, "{grown} bytes");
}

#[test]
fn windows_of_http2_servers_are_within_the_budget_of_a_client() {
    let (site, server) = (Site::new(), http2_server());
    windows_are_within_the_budget_of_a_client(before(&site, [server.url()]).upstream("http = \"2\""));
    assert_eq!(server.connections(), 2, "one with wide windows, and one with narrow ones");
}

#[test]
fn windows_of_http3_servers_are_within_the_budget_of_a_client() {
    let site = Site::new();
    let server = http3_server(&site);
    let setup = before(&site, [server.url()]).upstream("http = \"3\"");
    windows_are_within_the_budget_of_a_client(setup.upstream_tls(&format!("ca = {:?}", site.ca)));
    assert_eq!(server.connections(), 2, "one with wide windows, and one with narrow ones");
}

/// Answers that nobody reads are not made: a client that sends requests without end gets no further than its window.
#[test]
fn requests_behind_answers_that_are_not_read_wait() {
    let site = Site::new();
    let body = "x".repeat(64 << 10);
    let text = format!(
        "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[[host]]\nnames = [\"*\"]\n\
         respond = {{ body = \"{body}\" }}\n"
    );
    let gateway = configured(&site, &text);
    let before = settled(&gateway, &Sent::default());
    let mut wire = Wire::new(client::tcp(gateway.address));
    let count = 1000;
    wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n").repeat(count)).expect("the kernel takes it");
    let grown = settled(&gateway, &Sent::default()).saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes");
    // And once they are read, all of them come.
    for n in 0..count {
        let answer = wire.response("GET").unwrap_or_else(|broken| panic!("answer {n}: {broken:?}"));
        assert_eq!(answer.body.len(), body.len());
    }
}
