//! gRPC streams of many small messages: grpc-go and grpcio at both ends, upstreams that speak only HTTP/2, and the frames
//! that they live on, one by one.

use sealane_interop::backend::Backend;
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frames, frame, kind};
use sealane_interop::gateway::{Gateway, Setup, before};
use sealane_interop::peers::{Said, grpc_go, python};
use sealane_interop::process::{Server, run};
use sealane_interop::site::{HOST, Site};
use sealane_interop::{eventually, h2, ports, skip};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;

/// Flag of SETTINGS.
const ACK: u8 = 1;

/// The service of `peers/grpc-go`, by grpcio.
const PYTHON_SERVER: &str = r#"
import grpc, sys, time
from concurrent import futures

filler = b"x" * (1 << 20)

def size(n):
    if n % 5000 == 4999: return 1 << 20
    if n % 100 == 99: return 16 << 10
    if n % 10 == 9: return 1024 + n % 777
    return 1 + n % 7

def unary(request, context):
    if request == b"fail":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as you wish")
    while request == b"wait" and context.is_active():
        time.sleep(0.01)
    context.set_trailing_metadata((("x-sum", "42"),))
    return request

def up(requests, context):
    count = total = 0
    for r in requests:
        count, total = count + 1, total + len(r)
    return b"%d %d" % (count, total)

def down(request, context):
    count, pause = map(int, request.split())
    for n in range(count):
        yield filler[:size(n)]
        if pause: time.sleep(pause / 1e6)

def both(requests, context):
    yield from requests

handler = grpc.method_handlers_generic_handler("t.T", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Up": grpc.stream_unary_rpc_method_handler(up),
    "Down": grpc.unary_stream_rpc_method_handler(down),
    "Both": grpc.stream_stream_rpc_method_handler(both),
})
server = grpc.server(futures.ThreadPoolExecutor(64))
server.add_generic_rpc_handlers((handler,))
assert server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
"#;

const PYTHON_CLIENT: &str = r#"
import grpc, sys, threading, time

filler = b"x" * (1 << 20)

def size(n):
    if n % 5000 == 4999: return 1 << 20
    if n % 100 == 99: return 16 << 10
    if n % 10 == 9: return 1024 + n % 777
    return 1 + n % 7

trust = grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
# A keep-alive ping twice per second, with calls and without.
channel = grpc.secure_channel(sys.argv[1], trust, [
    ("grpc.keepalive_time_ms", 500), ("grpc.keepalive_timeout_ms", 60000),
    ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 60000),
])
unary, up = channel.unary_unary("/t.T/Unary"), channel.stream_unary("/t.T/Up")
down, both = channel.unary_stream("/t.T/Down"), channel.stream_stream("/t.T/Both")

def messages(count):
    return (filler[:size(n)] for n in range(count))

for part in sys.argv[3:]:
    began = time.time()
    name, count = part.split("=")
    count = int(count)
    if name == "unary":
        for m in messages(count):
            assert unary(m, timeout=60) == m
    elif name == "up":
        total = sum(size(n) for n in range(count))
        assert up(messages(count), timeout=120) == b"%d %d" % (count, total)
    elif name in ("down", "paced"):
        pause = 0 if name == "down" else 1000000 // 150
        count = count if name == "down" else 150 * count
        got = [len(m) for m in down(b"%d %d" % (count, pause), timeout=120)]
        assert got == [size(n) for n in range(count)], (len(got), count)
    elif name == "both":
        got = [len(m) for m in both(messages(count), timeout=120)]
        assert got == [size(n) for n in range(count)], (len(got), count)
    elif name == "ended":
        for n in range(count):
            try:
                unary(b"wait", timeout=0.05)
                raise SystemExit("the deadline passed unnoticed")
            except grpc.RpcError as e:
                # The server has the same deadline. If its timer fires first, it resets the stream (CANCEL).
                reset = e.code() == grpc.StatusCode.CANCELLED and "RST_STREAM" in e.details()
                assert reset or e.code() == grpc.StatusCode.DEADLINE_EXCEEDED, e
            call = down(b"1000000 100", timeout=60)
            next(call); call.cancel()
            assert unary(b"x", timeout=60) == b"x"
    elif name == "idle":
        time.sleep(count)
        assert unary(b"x", timeout=60) == b"x"
    print(part, round(time.time() - began, 1))
print("all is well")
"#;

/// What a gRPC server is made of.
#[derive(Clone, Copy)]
enum Service {
    /// grpc-go, by prior knowledge.
    Go,
    /// grpc-go under TLS.
    GoTls,
    /// grpcio, by prior knowledge.
    Python,
}

struct Fixture {
    gateway: Gateway,
    server: Server,
    site: Site,
}

impl Service {
    fn start(self, go: &Path, python: &Path) -> Fixture {
        let site = Site::new();
        let address = ports::free();
        let mut command = match self {
            Self::Go | Self::GoTls => {
                let mut command = Command::new(go);
                command.arg("server").arg(address.to_string());
                command
            }
            Self::Python => {
                let mut command = Command::new(python);
                command.arg(site.file("server.py", PYTHON_SERVER)).arg(address.to_string());
                command
            }
        };
        let url = match self {
            Self::GoTls => {
                command.arg(&site.ecdsa.cert).arg(&site.ecdsa.key);
                format!("https://{HOST}:{}", address.port())
            }
            _ => format!("http://{address}"),
        };
        let mut server = Server::start(command, site.path());
        server.wait_until(|| TcpStream::connect(address).is_ok());
        let gateway = {
            let setup = before(&site, [url]).upstream("http = \"2\"");
            match self {
                Self::GoTls => trusting(setup, &site),
                _ => setup,
            }
            .start()
        };
        Fixture { gateway, server, site }
    }
}

fn trusting<'s>(setup: Setup<'s>, site: &Site) -> Setup<'s> {
    setup.upstream_tls(&format!("ca = \"{}\"", site.ca.display()))
}

impl Fixture {
    /// Runs a client for each of these parts; all its calls go through one connection, and none of them fails.
    #[track_caller]
    fn passes(&self, client: impl Fn() -> Command, parts: &[&str]) {
        for part in parts {
            passes(client(), &[part], &self.gateway, &self.server);
        }
        assert_eq!(self.floods(), 0.0);
        assert_eq!(self.gateway.metric("sealane_http2_upstream_limits_total"), Some(0.0));
    }

    fn go_client(&self, go: &Path) -> Command {
        go_client(go, &self.gateway)
    }

    fn python_client(&self, python: &Path) -> Command {
        let mut command = Command::new(python);
        command.arg(self.site.file("client.py", PYTHON_CLIENT)).arg(target(&self.gateway)).arg(self.gateway.ca());
        command
    }

    fn floods(&self) -> f64 {
        floods(&self.gateway)
    }
}

fn target(gateway: &Gateway) -> String {
    format!("{HOST}:{}", gateway.address.port())
}

/// grpc-go as a client, without parts.
pub fn go_client(go: &Path, gateway: &Gateway) -> Command {
    let mut command = Command::new(go);
    command.arg("client").arg(target(gateway)).arg(gateway.ca());
    command
}

/// Runs a client with these parts, all of which must be well; the server is that behind the gateway.
#[track_caller]
pub fn passes(mut client: Command, parts: &[&str], gateway: &Gateway, server: &Server) {
    // No proxy of the environment's.
    for name in ["https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY"] {
        client.env_remove(name);
    }
    client.env("no_proxy", "*");
    let said: Said = run(client.args(parts), b"").into();
    let well = said.code == Some(0) && said.text().trim().ends_with("all is well");
    assert!(well, "{parts:?}\n{}\n{}\n{}", said.all(), server.log(), gateway.metrics());
}

/// Connections that were ended as a flood of frames.
pub fn floods(gateway: &Gateway) -> f64 {
    gateway.metric_with("sealane_http2_connection_errors_total", "kind=\"flood\"").unwrap_or(0.0)
}

fn programs() -> Result<(PathBuf, PathBuf), String> {
    Ok((grpc_go()?, python()?))
}

/// Message after message, as fast as both ends can.
#[test]
fn grpc_go_before_grpc_go_streams_twenty_thousand_messages() {
    let (go, python) = match programs() {
        Ok(programs) => programs,
        Err(why) => skip!("no gRPC peers: {why}"),
    };
    let fixture = Service::Go.start(&go, &python);
    fixture.passes(|| fixture.go_client(&go), &["unary=500", "up=20000", "down=20000", "both=20000", "lockstep=3000"]);
}

/// grpc-go pings once per round trip while data arrives.
#[test]
fn grpc_go_before_grpc_go_over_tls_paced_with_deadlines_and_cancellation() {
    let (go, python) = match programs() {
        Ok(programs) => programs,
        Err(why) => skip!("no gRPC peers: {why}"),
    };
    let fixture = Service::GoTls.start(&go, &python);
    fixture.passes(|| fixture.go_client(&go), &["paced=8", "ended=300", "both=5000", "paced=1"]);
}

/// grpcio answers most small DATA frames with a WINDOW_UPDATE.
#[test]
fn grpcio_before_grpc_go_streams_twenty_thousand_messages() {
    let (go, python) = match programs() {
        Ok(programs) => programs,
        Err(why) => skip!("no gRPC peers: {why}"),
    };
    let fixture = Service::GoTls.start(&go, &python);
    let parts = ["unary=200", "up=20000", "down=20000", "both=20000", "paced=4", "ended=30", "idle=3"];
    fixture.passes(|| fixture.python_client(&python), &parts);
}

#[test]
fn grpc_go_before_grpcio_streams_twenty_thousand_messages() {
    let (go, python) = match programs() {
        Ok(programs) => programs,
        Err(why) => skip!("no gRPC peers: {why}"),
    };
    let fixture = Service::Python.start(&go, &python);
    fixture.passes(
        || fixture.go_client(&go),
        &["unary=200", "up=20000", "down=20000", "both=20000", "paced=3", "ended=100"],
    );
}

/// A response in pieces, each of which is sent when the test says so.
fn piecewise() -> (Backend, mpsc::Sender<()>) {
    let (send, wait) = mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    let backend = Backend::start(move |mut connection| {
        let Ok(Some(_)) = connection.wire.request_head() else { return };
        connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let wait = wait.lock().expect("nobody panics with it");
        while wait.recv().is_ok() {
            connection.send("6\r\nabcdef\r\n");
        }
        connection.send("0\r\n\r\n");
    });
    (backend, send)
}

/// What grpc-go does (a PING after DATA) and what grpcio does (WINDOW_UPDATEs for each DATA), both beyond any allowance
/// that time alone would give.
#[test]
fn control_frames_that_answer_data_are_no_flood() {
    const PIECES: usize = 3_000;
    let site = Site::new();
    let (backend, next) = piecewise();
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
    let mut frames = Frames::plain(gateway.address, &[]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    let six = 6u32.to_be_bytes();
    let mut answer = frame(kind::PING, 0, 0, &[7; 8]);
    for stream in [0, 1, 0, 1] {
        answer.extend(frame(kind::WINDOW_UPDATE, 0, stream, &six));
    }
    for piece in 0..PIECES {
        next.send(()).expect("the backend waits");
        let data = frames.find(|f| f.kind == kind::DATA).unwrap_or_else(|| panic!("ended at {piece}"));
        assert_eq!(data.payload, b"abcdef");
        frames.stream.write_all(&answer).expect("the gateway reads");
    }
    drop(next);
    assert!(frames.find(|f| f.kind == kind::DATA && f.flags & END_STREAM != 0).is_some());
    assert_eq!(floods(&gateway), 0.0);
}

/// A client that opens its window byte by byte makes the frames small itself: that is a flood in the end.
#[test]
fn window_updates_byte_by_byte_are_a_flood() {
    let site = Site::new();
    let large = vec![b'x'; 1 << 20];
    let backend = Backend::answering(move |_| sealane_interop::backend::ok(&large));
    let gateway = before(&site, [backend.url()]).plain().listener("h2c = true").start();
    // SETTINGS_INITIAL_WINDOW_SIZE.
    let mut frames = Frames::plain(gateway.address, &[(4, 1)]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    let one = 1u32.to_be_bytes();
    let update = [frame(kind::WINDOW_UPDATE, 0, 1, &one), frame(kind::WINDOW_UPDATE, 0, 0, &one)].concat();
    for _ in 0..50_000 {
        match frames.receive() {
            Ok(f) if f.kind == kind::GOAWAY => break,
            Ok(f) if f.kind == kind::DATA => {
                if frames.stream.write_all(&update).is_err() {
                    break;
                }
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    assert!(eventually(|| floods(&gateway) == 1.0), "{}", gateway.metrics());
}

/// Passes connections on to a server once the test says so.
fn gate(server: SocketAddr) -> (SocketAddr, mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let (open, wait) = mpsc::channel();
    std::thread::spawn(move || {
        // Until then the kernel accepts, and nobody answers.
        let _ = wait.recv();
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(server) else { return };
            for (mut from, mut to) in [(&client, &server), (&server, &client)].map(|(from, to)| {
                (from.try_clone().expect("a socket can be cloned"), to.try_clone().expect("a socket can be cloned"))
            }) {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    (address, open)
}

/// Uploads in frames of one byte, all there before the upstream's connection is.
#[test]
fn tiny_frames_wait_for_a_slow_upstream_within_the_window() {
    const FRAMES: usize = 60_000;
    const STREAMS: u32 = 3;
    let site = Site::new();
    let server = h2::Server::start_tls(&site.ecdsa, |(request, mut respond)| async move {
        let (body, _) = h2::read(&mut request.into_body()).await;
        h2::say(&mut respond, body.len().to_string().as_bytes());
    });
    let (address, open) = gate(server.address);
    let setup = before(&site, [format!("https://{HOST}:{}", address.port())]).upstream("http = \"2\"");
    let setup = trusting(setup, &site).upstream("connect_timeout = \"60s\"");
    let gateway = setup.plain().listener("h2c = true").start();
    let before_it = gateway.server.resident();
    let mut frames = Frames::plain(gateway.address, &[]);
    for stream in 0..STREAMS {
        frames.request(2 * stream + 1, "POST", "/", &[], false).expect("the gateway reads");
        let mut bytes = frame(kind::DATA, 0, 2 * stream + 1, b"x").repeat(FRAMES);
        bytes.extend(frame(kind::DATA, END_STREAM, 2 * stream + 1, b""));
        frames.stream.write_all(&bytes).expect("the gateway reads");
    }
    // All has been looked at when this is answered.
    frames.send(kind::PING, 0, 0, b"answered").expect("the gateway reads");
    let pong = frames.find(|f| f.kind == kind::PING && f.payload == b"answered");
    assert!(pong.is_some(), "{}", gateway.metrics());
    if let (Some(before), Some(after)) = (before_it, gateway.server.resident()) {
        // An entry of `h2` for each frame would come to more than 40 MiB.
        assert!(after.saturating_sub(before) < 24 << 20, "{} bytes for tiny frames", after - before);
    }
    open.send(()).expect("the gate waits");
    for _ in 0..STREAMS {
        let body = frames.find(|f| f.kind == kind::DATA && !f.payload.is_empty()).expect("it is answered");
        assert_eq!(body.payload, FRAMES.to_string().as_bytes());
    }
    assert_eq!(floods(&gateway), 0.0);
}

/// An upstream that speaks HTTP/2 by prior knowledge: `answer` is called with its connection once a request has come on
/// stream 1, and with the windows of the stream and of the connection.
fn upstream(answer: impl Fn(&mut Frames<TcpStream>, [i64; 2]) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let answer = std::sync::Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut preface = [0; 24];
                if stream.read_exact(&mut preface).is_err() {
                    return;
                }
                let mut frames = Frames { stream };
                let _ = frames.send(kind::SETTINGS, 0, 0, &[]);
                let mut windows = [65_535; 2];
                while let Ok(f) = frames.receive() {
                    match f.kind {
                        // SETTINGS_INITIAL_WINDOW_SIZE.
                        kind::SETTINGS if f.flags & ACK == 0 => {
                            f.payload.chunks_exact(6).filter(|s| s[..2] == [0, 4]).for_each(|s| {
                                windows[0] = i64::from(u32::from_be_bytes([s[2], s[3], s[4], s[5]]));
                            });
                            let _ = frames.send(kind::SETTINGS, ACK, 0, &[]);
                        }
                        kind::WINDOW_UPDATE if f.stream == 0 => windows[1] += i64::from(f.code()),
                        kind::HEADERS => {
                            // 200, by its index in HPACK's static table.
                            let _ = frames.send(kind::HEADERS, END_HEADERS, f.stream, &[0x88]);
                            answer(&mut frames, windows);
                            break;
                        }
                        _ => {}
                    }
                }
                let _ = std::io::copy(&mut frames.stream, &mut std::io::sink());
            });
        }
    });
    address
}

/// The same from an upstream, to a client that takes its time.
#[test]
fn tiny_frames_from_an_upstream_wait_for_a_slow_client() {
    const FRAMES: usize = 200_000;
    let site = Site::new();
    let address = upstream(|frames, [mut window, mut connection]| {
        let mut writer = frames.stream.try_clone().expect("a socket can be cloned");
        let mut left = FRAMES;
        while left > 0 {
            let n = (window.min(connection).max(0) as usize).min(left).min(8_000);
            if n == 0 {
                let Ok(update) = frames.receive() else { return };
                match (update.kind, update.stream) {
                    (kind::WINDOW_UPDATE, 0) => connection += i64::from(update.code()),
                    (kind::WINDOW_UPDATE, _) => window += i64::from(update.code()),
                    _ => {}
                }
                continue;
            }
            (window, connection, left) = (window - n as i64, connection - n as i64, left - n);
            if writer.write_all(&frame(kind::DATA, 0, 1, b"y").repeat(n)).is_err() {
                return;
            }
        }
        let _ = writer.write_all(&frame(kind::DATA, END_STREAM, 1, b""));
    });
    let gateway =
        before(&site, [format!("http://{address}")]).upstream("http = \"2\"").plain().listener("h2c = true").start();
    // SETTINGS_INITIAL_WINDOW_SIZE: the client takes nothing at first.
    let mut frames = Frames::plain(gateway.address, &[(4, 0)]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    frames.find(|f| f.kind == kind::HEADERS).expect("the head comes");
    let mut got = 0;
    while got < FRAMES {
        let step = 50_000u32;
        for stream in [0, 1] {
            frames.send(kind::WINDOW_UPDATE, 0, stream, &step.to_be_bytes()).expect("the gateway reads");
        }
        let aim = (got + step as usize).min(FRAMES);
        while got < aim {
            let data = frames.find(|f| f.kind == kind::DATA).unwrap_or_else(|| panic!("{}", gateway.metrics()));
            assert!(data.payload.iter().all(|b| *b == b'y'));
            got += data.payload.len();
        }
    }
    assert_eq!(got, FRAMES);
    assert_eq!(gateway.metric_with("sealane_aborted_exchanges_total", "by=\"upstream\""), Some(0.0));
}

/// What a server still sends on streams that were cancelled is ignored, however small and however much.
#[test]
fn late_frames_of_cancelled_streams_do_not_end_a_shared_connection() {
    const CANCELLED: u32 = 100;
    let site = Site::new();
    let address = upstream(|frames, _| {
        let _ = frames.send(kind::DATA, 0, 1, b"1");
        let mut last = 1;
        while let Ok(f) = frames.receive() {
            let answer = match f.kind {
                kind::HEADERS if last > 2 * CANCELLED => {
                    frame(kind::HEADERS, END_HEADERS | END_STREAM, f.stream, &[0x88])
                }
                kind::HEADERS => {
                    last = f.stream;
                    let head = frame(kind::HEADERS, END_HEADERS, f.stream, &[0x88]);
                    [head, frame(kind::DATA, 0, f.stream, b"1")].concat()
                }
                kind::RST_STREAM => frame(kind::DATA, 0, f.stream, b"2").repeat(100),
                _ => continue,
            };
            if frames.stream.write_all(&answer).is_err() {
                return;
            }
        }
    });
    let setup = before(&site, [format!("http://{address}")]).upstream("http = \"2\"");
    let gateway = setup.plain().listener("h2c = true").start();
    let mut frames = Frames::plain(gateway.address, &[]);
    for n in 0..=CANCELLED {
        let stream = 2 * n + 1;
        frames.request(stream, "GET", "/", &[], true).expect("the gateway reads");
        frames.find(|f| f.kind == kind::DATA && f.stream == stream).expect("the answer begins");
        frames.send(kind::RST_STREAM, 0, stream, &8u32.to_be_bytes()).expect("the gateway reads");
    }
    let last = 2 * CANCELLED + 3;
    frames.request(last, "GET", "/", &[], true).expect("the gateway reads");
    assert!(frames.find(|f| f.stream == last && f.flags & END_STREAM != 0).is_some(), "{}", gateway.metrics());
    assert_eq!(gateway.metric("sealane_upstream_connects_total"), Some(1.0));
}

/// `h2` allows a connection 100 empty DATA frames. What is cut off for that is the gateway's doing, and counted so.
#[test]
fn a_limit_of_the_gateways_own_is_not_the_upstreams_failure() {
    let site = Site::new();
    let address = upstream(|frames, _| {
        let _ = frames.stream.write_all(&frame(kind::DATA, 0, 1, b"").repeat(1000));
    });
    let gateway =
        before(&site, [format!("http://{address}")]).upstream("http = \"2\"").plain().listener("h2c = true").start();
    let mut frames = Frames::plain(gateway.address, &[]);
    frames.request(1, "GET", "/", &[], true).expect("the gateway reads");
    frames.find(|f| f.kind == kind::RST_STREAM && f.stream == 1).expect("the response is cut off");
    let aborted = |by: &str| gateway.metric_with("sealane_aborted_exchanges_total", &format!("by=\"{by}\""));
    assert!(eventually(|| aborted("gateway") == Some(1.0)), "{}", gateway.metrics());
    assert_eq!(aborted("upstream"), Some(0.0));
    assert_eq!(gateway.metric("sealane_http2_upstream_limits_total"), Some(1.0));
}
