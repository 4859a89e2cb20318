//! The lowest rates of bodies. The test decides how much time passes between two pieces of a body: the gateway's clock goes on by
//! [`STEP`] once a piece has come, however long the machine has taken for it.

use crate::clock::Clock;
use crate::deadlines::{Client, Fixture, VERSIONS, fixture_by};
use crate::slow_readers::narrow;
use bytes::Bytes;
use quinn_proto::{TransportConfig, VarInt};
use sealane_http::{BodyLength, Scheme};
use sealane_interop::backend::{Backend, ok};
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, block, kind};
use sealane_interop::h3::{self, over_quic};
use sealane_interop::h3_server;
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{WAIT_LIMIT, client, eventually, h2, need};
use std::cell::Cell;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Seconds between two pieces. Six make a measurement, for `idle_timeout` is a minute in all tests here.
const STEP: i64 = 10;
/// Enough for several measurements.
const STEPS: usize = 30;
const LIMITS: &str = "idle_timeout = \"60s\"\nmin_body_rate = 1000";

/// A gateway whose clock the test sets.
struct Timed {
    fixture: Fixture,
    clock: Clock,
    passed: Cell<i64>,
}

impl Timed {
    fn new(site: Site, compiler: &Path, server: &str, limits: &str, upstream: &str) -> Self {
        let clock = Clock::new(&site, compiler);
        // A server that has failed gets the next request all the same.
        let upstream = format!("eject_after = 0\n{upstream}");
        let fixture = fixture_by(site, clock.program(), server, limits, &upstream);
        Self { fixture, clock, passed: Cell::new(0) }
    }

    fn step(&self) {
        self.passed.set(self.passed.get() + STEP);
        self.clock.pass(self.passed.get());
    }

    /// Has the lane look at its timers now: while nothing comes, it sleeps for as long as the machine's own clock says.
    fn wake(&self) {
        assert_eq!(self.fixture.gateway.plain_get("/respond", "").text(), "ours");
    }

    fn count(&self, metric: &str) -> f64 {
        self.fixture.count(metric)
    }

    fn slow(&self, party: &str) -> f64 {
        let label = format!("party=\"{party}\"");
        self.fixture.gateway.metric_with("sealane_slow_bodies_total", &label).unwrap_or(0.0)
    }

    /// Takes a response, a step after each piece. After how many pieces it was cut off; `None`: it goes on.
    fn cut_off_after(&self, version: &str, path: &str) -> Option<usize> {
        let mut client = self.fixture.get(version, path);
        let mut seen = 0;
        for pieces in 0..STEPS {
            match client.more(seen) {
                Some(all) => seen = all,
                None => return Some(pieces),
            }
            self.step();
        }
        None
    }

    /// Sends an upload, a step after each piece, and says what the client is told: at its end, or when the gateway waits no longer.
    fn upload(&self, taken: &AtomicUsize, version: &str, kind_of: Option<&str>, piece: usize) -> String {
        let (before, timeouts) = (taken.load(Ordering::SeqCst), self.count("sealane_client_timeouts_total"));
        let mut client = self.fixture.post(version, "/", kind_of);
        for pieces in 1..=STEPS {
            client.send(&vec![b'x'; piece]);
            let mut is_over = false;
            let came = eventually(|| {
                client.idle();
                is_over = self.count("sealane_client_timeouts_total") > timeouts;
                is_over || taken.load(Ordering::SeqCst) - before >= pieces * piece
            });
            assert!(came, "{version}: piece {pieces} does not arrive");
            if is_over {
                return client.told();
            }
            self.step();
        }
        client.finish()
    }
}

/// A server that counts the bytes of uploads as they come.
fn counting() -> (Backend, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let backend = Backend::start(move |mut connection| {
        while let Ok(Some(_)) = connection.wire.request_head() {
            loop {
                let Ok(line) = connection.wire.line() else { return };
                let size = usize::from_str_radix(&line, 16).expect("the gateway sends chunks");
                let whole = connection.wire.exactly(size, &mut Vec::new()).and_then(|()| connection.wire.line());
                if whole.is_err() {
                    return;
                }
                counted.fetch_add(size, Ordering::SeqCst);
                if size == 0 {
                    break;
                }
            }
            connection.send(ok(b"thank you"));
        }
    });
    (backend, taken)
}

#[test]
fn an_upload_that_drips_is_a_408() {
    let compiler = need!("cc");
    let (backend, taken) = counting();
    for version in VERSIONS {
        let timed = Timed::new(Site::new(), &compiler, &backend.url(), LIMITS, "");
        let told = timed.upload(&taken, version, None, 1);
        assert!(told.contains("408 Request Timeout"), "{version}: {told}");
        assert_eq!((timed.slow("client"), timed.slow("upstream")), (1.0, 0.0), "{version}");
    }
}

/// HTTP/1.1 cannot carry gRPC: a client must not end its minimum rate by a header that it writes.
#[test]
fn a_type_of_grpc_buys_no_time_over_http1() {
    let compiler = need!("cc");
    let (backend, taken) = counting();
    let timed = Timed::new(Site::new(), &compiler, &backend.url(), LIMITS, "");
    let told = timed.upload(&taken, "HTTP/1.1", Some("application/grpc"), 1);
    assert!(told.contains("408 Request Timeout"), "{told}");
    assert_eq!(timed.slow("client"), 1.0);
}

/// gRPC has no rate, and neither has an upload that is as fast as it should be, or one for which none is set.
#[test]
fn uploads_that_may_drip() {
    let compiler = need!("cc");
    let (backend, taken) = counting();
    for (limits, kind_of, piece) in [
        (LIMITS, Some("application/grpc+proto"), 1),
        // All of it is within the windows that a client has at first.
        ("idle_timeout = \"60s\"\nmin_body_rate = 100", None, 1500),
        ("idle_timeout = \"60s\"\nmin_body_rate = 0", None, 1),
    ] {
        let timed = Timed::new(Site::new(), &compiler, &backend.url(), limits, "");
        for version in VERSIONS {
            if version == "HTTP/1.1" && kind_of.is_some() {
                continue; // `a_type_of_grpc_buys_no_time_over_http1`
            }
            let told = timed.upload(&taken, version, kind_of, piece);
            assert!(told.ends_with("thank you"), "{version} {kind_of:?} {limits}: {told}");
        }
        assert_eq!(timed.count("sealane_slow_bodies_total"), 0.0, "{limits}");
    }
}

/// A client that sends as fast as it may is not slow, however slowly the server reads: the time counts against the client only while the
/// gateway lets it send.
#[test]
fn a_fast_upload_to_a_server_that_reads_slowly_is_not_slow() {
    /// Longer than what the kernel's buffers take together.
    const SIZE: usize = 32 << 20;
    /// What the server reads in a step: a 25th of the rate.
    const BIT: usize = 4 << 10;
    let compiler = need!("cc");
    let (allowed, taken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (may, count) = (Arc::clone(&allowed), Arc::clone(&taken));
    let backend = Backend::start(move |mut connection| {
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(connection.wire.stream.socket(), 64 << 10);
        let Ok(Some(request)) = connection.wire.request_head() else { return };
        assert_eq!(request.header("content-length"), Some(&*SIZE.to_string()));
        let mut all = 0;
        while all < SIZE {
            let bit = may.load(Ordering::SeqCst).saturating_sub(all).min(SIZE - all).min(64 << 10);
            if bit == 0 {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            if connection.wire.exactly(bit, &mut Vec::new()).is_err() {
                return;
            }
            all += bit;
            count.store(all, Ordering::SeqCst);
        }
        connection.send(ok(b"all of it"));
    });
    let body = vec![b'x'; SIZE];
    let length = SIZE.to_string();
    for version in VERSIONS {
        allowed.store(0, Ordering::SeqCst);
        taken.store(0, Ordering::SeqCst);
        let limits = "idle_timeout = \"60s\"\nmin_body_rate = 10000";
        let timed =
            Timed::new(Site::new(), &compiler, &backend.url(), limits, "idle_timeout = \"1h\"\nmin_body_rate = 0");
        let Fixture { gateway, quic, .. } = &timed.fixture;
        let (address, quic, config) = (gateway.address, *quic, Arc::clone(gateway.config()));
        let answer = std::thread::scope(|scope| {
            let client = scope.spawn(|| match version {
                "HTTP/1.1" => {
                    let mut wire = Wire::new(client::tcp(address));
                    let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n");
                    // One that was refused is not read to its end.
                    let _ = wire.send(head).and_then(|()| wire.send(&body));
                    wire.response("POST")
                        .map(|response| (response.status(), response.body))
                        .map_err(|e| format!("{e:?}"))
                }
                "HTTP/2" => h2::run(async {
                    let client = h2::connect(address).await;
                    let mut request = h2::request(&http::Method::POST, "/");
                    request.headers_mut().insert("content-length", SIZE.into());
                    let answer = h2::fetch(&client, request, Some(&body)).await;
                    Ok((answer.status, answer.body))
                }),
                _ => {
                    let mut client = h3::Client::connect(quic, &over_quic(&config, false));
                    let head = h3::headers("POST", "/", &[], BodyLength::Known(SIZE as u64));
                    let response = client.exchange(&head, &body);
                    response.map(|response| (response.status, response.body)).map_err(|e| format!("{e:?}"))
                }
            });
            // The client has sent what it may, and the gateway takes no more.
            let mut rests = 0;
            let is_blocked = eventually(|| {
                let begun = timed.count("sealane_requests_total") >= 1.0;
                std::thread::sleep(Duration::from_millis(50));
                rests = if begun && gateway.server.rests() { rests + 1 } else { 0 };
                rests == 10
            });
            assert!(is_blocked, "{version}: the gateway does not come to rest");
            for step in 1..=STEPS {
                allowed.store(step * BIT, Ordering::SeqCst);
                assert!(eventually(|| taken.load(Ordering::SeqCst) == step * BIT), "{version}: the server reads");
                timed.step();
                timed.wake();
            }
            let blocked = !client.is_finished();
            allowed.store(usize::MAX, Ordering::SeqCst);
            let answer = client.join().expect("the client does not panic");
            assert!(blocked, "{version}: {answer:?} before the server had read the request");
            answer
        });
        assert_eq!(answer, Ok((200, b"all of it".to_vec())), "{version}");
        assert_eq!((timed.slow("client"), timed.slow("upstream")), (0.0, 0.0), "{version}");
        assert_eq!(timed.count("sealane_client_timeouts_total"), 0.0, "{version}");
    }
}

/// What the dripping servers say about the type of what they send.
fn type_of(path: &str) -> &'static str {
    if path == "/events" { "text/event-stream; charset=utf-8" } else { "text/plain" }
}

const DRIP: Duration = Duration::from_millis(10);

/// Servers that send a byte now and then, one of each version: `serve` gets each with its gateway.
fn behind_dripping_servers(compiler: &Path, serve: impl Fn(&str, &Timed)) {
    let limits = |version: &str| format!("{LIMITS}\nhttp = \"{version}\"");
    let first = Backend::start(|mut connection| {
        while let Some(request) = connection.request() {
            let kind_of = type_of(request.target());
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind_of}\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut sent = connection.wire.send(head);
            while sent.is_ok() {
                sent = connection.wire.send("1\r\nx\r\n");
                std::thread::sleep(DRIP);
            }
        }
    });
    serve("HTTP/1.1", &Timed::new(Site::new(), compiler, &first.url(), LIMITS, &limits("1.1")));
    let second = h2::Server::start(|(request, mut respond)| async move {
        let head = http::Response::builder().header("content-type", type_of(request.uri().path())).body(());
        let Ok(mut send) = respond.send_response(head.expect("it is well-formed"), false) else { return };
        while send.send_data(Bytes::from_static(b"x"), false).is_ok() {
            tokio::time::sleep(DRIP).await;
        }
    });
    serve("HTTP/2", &Timed::new(Site::new(), compiler, &second.url(), LIMITS, &limits("2")));
    let site = Site::new();
    let third = h3_server::Server::start(&site.ecdsa, |mut asked| async move {
        let kind_of = type_of(&String::from_utf8_lossy(asked.head.target()));
        asked.respond(200, &[("content-type", kind_of)], BodyLength::Chunked).await;
        while asked.send.write_all(&h3::data(b"x")).await.is_ok() {
            tokio::time::sleep(DRIP).await;
        }
    });
    let upstream = format!("{}\n[upstream.tls]\nca = {:?}", limits("3"), site.ca);
    serve("HTTP/3", &Timed::new(site, compiler, &third.url(), LIMITS, &upstream));
}

/// A server that drips its response, where a rate is asked of it.
#[test]
fn a_response_that_drips_is_the_servers_fault() {
    let compiler = need!("cc");
    behind_dripping_servers(&compiler, |server, timed| {
        for (n, version) in VERSIONS.iter().enumerate() {
            let what = format!("{version} before a server with {server}");
            assert_ne!(timed.cut_off_after(version, "/text"), None, "{what}");
            let upstream = || timed.slow("upstream") == (n + 1) as f64;
            assert!(eventually(upstream), "{what}: {}", timed.fixture.gateway.metrics());
            assert_eq!(timed.slow("client"), 0.0, "{what}");
        }
    });
}

/// The same bytes at the same times are no fault where they are events.
#[test]
fn event_streams_have_no_lowest_rate() {
    let compiler = need!("cc");
    behind_dripping_servers(&compiler, |server, timed| {
        for version in VERSIONS {
            let pieces = timed.cut_off_after(version, "/events");
            assert_eq!(pieces, None, "{version} before a server with {server}");
        }
        assert_eq!(timed.count("sealane_slow_bodies_total"), 0.0, "{server}");
        assert_eq!(timed.count("sealane_upstream_timeouts_total"), 0.0, "{server}");
    });
}

/// A WebSocket over each version on which a byte goes each way now and then. An upload over the same listeners is a 408 by then:
/// `an_upload_that_drips_is_a_408`.
#[test]
fn websockets_have_no_lowest_rate() {
    let compiler = need!("cc");
    let backend = Backend::websocket_echo();
    let timed = Timed::new(Site::new(), &compiler, &backend.url(), LIMITS, LIMITS);
    let Fixture { gateway, quic, .. } = &timed.fixture;
    for version in VERSIONS {
        let mut echoed: Box<dyn FnMut(usize) -> bool> = match version {
            "HTTP/1.1" => {
                let mut wire = Wire::new(client::tcp(gateway.address));
                wire.send(format!(
                    "GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
                ))
                .expect("the gateway reads");
                assert_eq!(wire.response("GET").expect("it switches").status(), 101);
                Box::new(move |_| wire.send("x").is_ok() && wire.exactly(1, &mut Vec::new()).is_ok())
            }
            "HTTP/2" => {
                let mut frames = Frames::plain(gateway.address, &[]);
                // RFC 8441 §4.
                let list = [
                    (":method", "CONNECT"),
                    (":protocol", "websocket"),
                    (":scheme", "http"),
                    (":authority", HOST),
                    (":path", "/"),
                    ("sec-websocket-version", "13"),
                ];
                frames.send(kind::HEADERS, END_HEADERS, 1, &block(&list)).expect("the gateway reads");
                let mut client = Client::Two(frames);
                Box::new(move |seen| {
                    client.send(b"x");
                    client.more(seen).is_some()
                })
            }
            _ => {
                let mut client = h3::Client::connect(*quic, &over_quic(gateway.config(), false));
                let mut head = h3::head("GET", "/", &[("sec-websocket-version", "13")]);
                head.fields.push(b"upgrade", b"websocket").expect("a legal field");
                let mut bytes = Vec::new();
                sealane_http::h3::encode_request(&mut bytes, &head, BodyLength::None, Scheme::Https, true);
                let id = client.open(&bytes, false);
                let mut client = Client::Three(Box::new(client), id);
                Box::new(move |seen| {
                    client.send(b"x");
                    client.more(seen).is_some()
                })
            }
        };
        for seen in 0..STEPS {
            assert!(echoed(seen), "{version}: the WebSocket ends after {seen} bytes:\n{}", gateway.metrics());
            timed.step();
        }
    }
    for metric in ["slow_bodies", "client_timeouts", "upstream_timeouts", "idle_tunnels"] {
        assert_eq!(timed.count(&format!("sealane_{metric}_total")), 0.0, "{metric}");
    }
}

/// A client that takes a response too slowly, though without a pause: `take` takes some of it.
#[track_caller]
fn is_cut_off(version: &str, timed: &Timed, mut take: impl FnMut()) {
    let timeouts = || timed.count("sealane_client_timeouts_total");
    for step in 0.. {
        assert!(step < STEPS, "{version}: the response goes on:\n{}", timed.fixture.gateway.metrics());
        if timeouts() > 0.0 {
            break;
        }
        take();
        timed.step();
        timed.wake();
    }
    let counts = (timeouts(), timed.slow("client"), timed.count("sealane_upstream_timeouts_total"));
    assert_eq!(counts, (1.0, 1.0, 0.0), "{version}: timeouts and slow bodies of the client, timeouts of the server");
}

/// A response that is taken byte by byte: over HTTP/2 the window opens by one byte each time. Over HTTP/1.1 the kernel lets the gateway
/// send on only once it has room for much, so the client reads much, but too little for the rate; over HTTP/3 a client tells of room
/// once there is some.
#[test]
fn a_response_that_is_taken_byte_by_byte_is_cut_off() {
    let compiler = need!("cc");
    // Longer than what the kernel's buffers take together.
    let body = vec![b'x'; 32 << 20];
    let large = Backend::answering(move |_| ok(&body));
    let timed = |rate: &str| {
        let limits = format!("idle_timeout = \"60s\"\nmin_body_rate = {rate}");
        Timed::new(Site::new(), &compiler, &large.url(), &limits, "idle_timeout = \"1h\"\nmin_body_rate = 0")
    };

    let first = timed("\"1MiB\"");
    let mut socket = narrow(first.fixture.gateway.address);
    socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout above zero is allowed");
    write!(socket, "GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n").expect("the gateway reads");
    let mut piece = vec![0; 512 << 10];
    // It fails where the connection has been reset.
    is_cut_off("HTTP/1.1", &first, || drop(socket.read_exact(&mut piece)));

    let second = timed("1000");
    // SETTINGS_INITIAL_WINDOW_SIZE.
    let mut frames = Frames::plain(second.fixture.gateway.address, &[(4, 1)]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    is_cut_off("HTTP/2", &second, || {
        let came = frames.find(|f| matches!(f.kind, kind::DATA | kind::RST_STREAM));
        assert!(came.is_some_and(|f| f.payload.len() == 1 && f.flags & END_STREAM == 0), "a byte comes at a time");
        drop(frames.send(kind::WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes()));
    });
    assert!(frames.find(|f| f.kind == kind::RST_STREAM && f.stream == 1).is_some());

    const WINDOW: u32 = 16 << 10;
    let third = timed("10000");
    let mut transport = TransportConfig::default();
    transport.max_concurrent_uni_streams(VarInt::from_u32(8));
    transport.enable_segmentation_offload(false);
    transport.max_idle_timeout(None);
    transport.stream_receive_window(VarInt::from_u32(WINDOW));
    let Fixture { gateway, quic, .. } = &third.fixture;
    let mut client = h3::Client::begin_with(*quic, &over_quic(gateway.config(), false), transport);
    assert!(client.establish(), "{:?}", client.lost);
    client.open_control();
    let id = client.open_silently(&h3::headers("GET", "/", &[], BodyLength::None));
    let mut reset = false;
    is_cut_off("HTTP/3", &third, || {
        let mut taken = 0;
        client.until(|client| {
            let mut stream = client.quic.recv_stream(id);
            let Ok(mut chunks) = stream.read(true) else { return true };
            while taken < WINDOW && !reset {
                match chunks.next(1) {
                    Ok(Some(_)) => taken += 1,
                    Err(quinn_proto::ReadError::Blocked) => break,
                    Ok(None) | Err(quinn_proto::ReadError::Reset(_)) => reset = true,
                }
            }
            let _ = chunks.finalize();
            taken == WINDOW || reset || client.lost.is_some()
        });
        // The gateway hears of the room, and that all has come.
        (0..3).for_each(|_| client.pump());
    });
}
