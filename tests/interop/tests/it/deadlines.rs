//! Nothing waits for ever: the party that stalls is found in every HTTP version, and no other is blamed.

use sealane_http::BodyLength;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::client;
use sealane_interop::frames::{END_HEADERS, END_STREAM, Frame, Frames, frame, kind};
use sealane_interop::gateway::{Gateway, configured, configured_by};
use sealane_interop::h3::{self, over_quic};
use sealane_interop::http::Wire;
use sealane_interop::site::{HOST, Site};
use sealane_interop::{binary, ports};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than any deadline here, many times.
const LONG: Duration = Duration::from_secs(40);

pub(crate) struct Fixture {
    pub gateway: Gateway,
    /// Where it speaks HTTP/3.
    pub quic: SocketAddr,
    _site: Site,
}

/// A gateway that answers `/respond` and `/redirect` by itself, and passes the rest on.
fn fixture(server: &str, limits: &str, upstream: &str) -> Fixture {
    fixture_by(Site::new(), Command::new(binary::sealane()), server, limits, upstream)
}

/// The same by a command that runs what its further arguments say with the gateway's program.
pub(crate) fn fixture_by(site: Site, command: Command, server: &str, limits: &str, upstream: &str) -> Fixture {
    let quic = ports::free();
    let (cert, key) = (site.ecdsa.cert.display(), site.ecdsa.key.display());
    let text = format!(
        "lanes = 1\n[admin]\nlisten = \"@ADMIN@\"\n[limits]\n{limits}\n\
         [[listener]]\naddress = \"@ADDRESS@\"\nh2c = true\n\
         [[listener]]\naddress = \"{quic}\"\nhttp3 = true\n[listener.tls]\n\
         certificates = [{{ cert = \"{cert}\", key = \"{key}\" }}]\n\
         [[host]]\nnames = [\"*\"]\n\
         [[host.route]]\npath = \"/respond\"\nrespond = {{ body = \"ours\" }}\n\
         [[host.route]]\npath = \"/redirect\"\nredirect = {{ to = \"/elsewhere\" }}\n\
         [[host.route]]\npath = \"/\"\nupstream = \"u\"\n\
         [[upstream]]\nname = \"u\"\nservers = \"{server}\"\n{upstream}\n"
    );
    Fixture { gateway: configured_by(&site, command, &text), quic, _site: site }
}

/// A client in the middle of a request.
pub(crate) enum Client {
    One(Wire<TcpStream>),
    Two(Frames<TcpStream>),
    Three(Box<h3::Client>, quinn_proto::StreamId),
}

pub(crate) const VERSIONS: [&str; 3] = ["HTTP/1.1", "HTTP/2", "HTTP/3"];

impl Fixture {
    /// Sends a GET. Over HTTP/1.1 its response's head has come when this returns.
    pub fn get(&self, version: &str, path: &str) -> Client {
        match version {
            "HTTP/1.1" => {
                let mut wire = Wire::new(client::tcp(self.gateway.address));
                wire.send(format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")).expect("the gateway reads");
                while !wire.line().expect("the gateway answers").is_empty() {}
                Client::One(wire)
            }
            "HTTP/2" => {
                let mut frames = Frames::plain(self.gateway.address, &[]);
                frames.request(1, "GET", path, &[], true).expect("the gateway reads");
                Client::Two(frames)
            }
            _ => {
                let mut client = h3::Client::connect(self.quic, &over_quic(self.gateway.config(), false));
                let id = client.open(&h3::headers("GET", path, &[], BodyLength::None), true);
                Client::Three(Box::new(client), id)
            }
        }
    }

    /// Sends a POST's head, of the type if there is one.
    pub fn post(&self, version: &str, path: &str, kind_of: Option<&str>) -> Client {
        let fields: Vec<(&str, &str)> = kind_of.map(|k| ("content-type", k)).into_iter().collect();
        match version {
            "HTTP/1.1" => {
                let mut wire = Wire::new(client::tcp(self.gateway.address));
                let kind_of = kind_of.map(|k| format!("Content-Type: {k}\r\n")).unwrap_or_default();
                let head =
                    format!("POST {path} HTTP/1.1\r\nHost: {HOST}\r\n{kind_of}Transfer-Encoding: chunked\r\n\r\n");
                wire.send(head).expect("the gateway reads");
                Client::One(wire)
            }
            "HTTP/2" => {
                let mut frames = Frames::plain(self.gateway.address, &[]);
                frames.request(1, "POST", path, &fields, false).expect("the gateway reads");
                Client::Two(frames)
            }
            _ => {
                let mut client = h3::Client::connect(self.quic, &over_quic(self.gateway.config(), false));
                let id = client.open(&h3::headers("POST", path, &fields, BodyLength::Chunked), false);
                Client::Three(Box::new(client), id)
            }
        }
    }

    fn active(&self) -> f64 {
        self.gateway.metric("sealane_requests_active").unwrap_or(0.0)
    }

    pub fn count(&self, metric: &str) -> f64 {
        self.gateway.metric(metric).unwrap_or(0.0)
    }

    /// Waits until the gateway has no request under way, and does something now and then.
    #[track_caller]
    fn ends(&self, what: &str, every: Duration, mut now_and_then: impl FnMut()) {
        let start = Instant::now();
        // It has begun, so that it can end.
        while self.count("sealane_requests_total") < 1.0 {
            now_and_then();
            assert!(start.elapsed() < LONG, "{what} does not begin");
        }
        while self.active() > 0.0 {
            now_and_then();
            assert!(start.elapsed() < LONG, "{what} never ends:\n{}", self.gateway.metrics());
            std::thread::sleep(every);
        }
    }
}

impl Client {
    /// Waits until more than `seen` bytes of the response's body have come, which comes in chunks, and says how many have. `None`: it
    /// has ended, or was cut off.
    pub fn more(&mut self, seen: usize) -> Option<usize> {
        match self {
            Self::One(wire) => {
                let size = usize::from_str_radix(&wire.line().ok()?, 16).expect("the gateway sends chunks");
                wire.exactly(size, &mut Vec::new()).ok()?;
                wire.line().ok()?;
                (size > 0).then_some(seen + size)
            }
            Self::Two(frames) => {
                let ends = |f: &Frame| match f.kind {
                    kind::RST_STREAM | kind::GOAWAY => true,
                    // Of SETTINGS, the same bit says that they are acknowledged.
                    kind::HEADERS | kind::DATA => f.flags & END_STREAM != 0,
                    _ => false,
                };
                let piece = frames.find(|f| f.kind == kind::DATA && !f.payload.is_empty() || ends(f))?;
                (piece.kind == kind::DATA && !piece.payload.is_empty()).then_some(seen + piece.payload.len())
            }
            Self::Three(client, id) => {
                let so_far = |c: &h3::Client| c.so_far(*id).map_or(0, |response| response.body.len());
                client.until(|c| c.lost.is_some() || c.ended(*id).is_some() || so_far(c) > seen);
                Some(so_far(client)).filter(|all| *all > seen)
            }
        }
    }

    /// Sends a piece of the body; what comes is read or not, and errors are what the tests wait for.
    pub fn send(&mut self, bytes: &[u8]) {
        match self {
            Self::One(wire) => drop(wire.send([format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())),
            Self::Two(frames) => drop(frames.send(kind::DATA, 0, 1, bytes)),
            Self::Three(client, id) => {
                // What was stopped takes nothing.
                let _ = client.quic.send_stream(*id).write(&h3::data(bytes));
                client.pump();
            }
        }
    }

    /// Lets the protocol have its way where the test's own client has to.
    pub fn idle(&mut self) {
        if let Self::Three(client, _) = self {
            client.pump();
        }
    }

    /// Ends the body and waits for the response's body.
    pub fn finish(mut self) -> String {
        match &mut self {
            Self::One(wire) => {
                wire.send("0\r\n\r\n").expect("the gateway reads");
                wire.response("POST").expect("it is answered").text()
            }
            Self::Two(frames) => {
                frames.send(kind::DATA, 1, 1, b"").expect("the gateway reads");
                let data = frames.find(|f| f.kind == kind::DATA && f.stream == 1).expect("it is answered");
                String::from_utf8_lossy(&data.payload).into_owned()
            }
            Self::Three(client, id) => {
                client.finish(*id);
                let body = client.response(*id).expect("it is answered").body;
                String::from_utf8_lossy(&body).into_owned()
            }
        }
    }

    /// What the client was told in the end, as far as it is text.
    pub fn told(mut self) -> String {
        let mut bytes = Vec::new();
        match &mut self {
            Self::One(wire) => bytes = wire.rest().0,
            Self::Two(frames) => drop(frames.find(|f| {
                bytes.extend(&f.payload);
                f.kind == kind::GOAWAY || f.kind == kind::RST_STREAM || f.kind == kind::DATA && f.flags & 1 != 0
            })),
            Self::Three(client, id) => {
                client.until(|c| c.lost.is_some() || c.ended(*id).is_some());
                bytes = client.received(*id).to_vec();
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[test]
fn an_upload_to_a_host_that_answers_by_itself_ends_when_it_stalls() {
    for version in VERSIONS {
        for path in ["/respond", "/redirect"] {
            let fixture = fixture("http://127.0.0.1:1", "idle_timeout = \"500ms\"", "");
            let mut client = fixture.post(version, path, None);
            client.send(b"some");
            fixture.ends(&format!("{version} {path}"), Duration::from_millis(50), || client.idle());
            // It has its answer all the same.
            let told = client.told();
            assert!(path == "/redirect" || told.contains("ours"), "{version}: {told}");
        }
    }
}

/// The head's deadline is over with the head: how long the body's first byte may take is `idle_timeout`'s to say.
#[test]
fn the_first_byte_of_a_body_may_take_longer_than_a_head() {
    let backend = Backend::answering(|request| ok(&request.body));
    for version in VERSIONS {
        let fixture = fixture(&backend.url(), "header_timeout = \"200ms\"\nidle_timeout = \"600s\"", "");
        let mut client = fixture.post(version, "/", None);
        // Many looks of its timer.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            client.idle();
            std::thread::sleep(Duration::from_millis(50));
        }
        client.send(b"late");
        assert!(client.finish().ends_with("late"), "{version}");
        assert_eq!(fixture.count("sealane_client_timeouts_total"), 0.0, "{version}");
    }
}

/// A body that does not begin.
#[test]
fn a_body_that_never_comes_ends_where_the_host_answers_by_itself() {
    for version in VERSIONS {
        for path in ["/respond", "/redirect"] {
            let fixture = fixture("http://127.0.0.1:1", "idle_timeout = \"500ms\"", "");
            let mut client = fixture.post(version, path, None);
            fixture.ends(&format!("{version} {path}"), Duration::from_millis(50), || client.idle());
            // It has its response: who then sends no more has not failed, over no version.
            assert_eq!(fixture.count("sealane_client_timeouts_total"), 0.0, "{version} {path}");
            let told = client.told();
            assert!(path == "/redirect" || told.contains("ours"), "{version}: {told}");
        }
    }
}

#[test]
fn an_upload_to_a_host_that_answers_by_itself_ends_when_it_drips() {
    for version in VERSIONS {
        let fixture = fixture("http://127.0.0.1:1", "idle_timeout = \"1s\"\nmin_body_rate = 1000", "");
        let mut client = fixture.post(version, "/respond", None);
        fixture.ends(version, Duration::from_millis(50), || client.send(b"x"));
    }
}

/// An answer that has begun and does not end, and a client that neither sends on nor can be waited for by the server.
#[test]
fn an_upstream_that_answers_early_excuses_nobody() {
    let backend = Backend::start(|mut connection| {
        while let Ok(Some(_)) = connection.wire.request_head() {
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
            // The rest waits for the request's.
            let _ = connection.wire.rest();
        }
    });
    for version in VERSIONS {
        let fixture = fixture(&backend.url(), "idle_timeout = \"500ms\"", "idle_timeout = \"600s\"");
        let mut client = fixture.post(version, "/", None);
        client.send(b"some");
        fixture.ends(version, Duration::from_millis(50), || client.idle());
        assert_eq!(fixture.count("sealane_client_timeouts_total"), 1.0, "{version}");
        assert_eq!(fixture.count("sealane_upstream_timeouts_total"), 0.0, "{version}");
    }
    // And the other way around: the client may take its time, the server may not.
    for version in VERSIONS {
        let fixture = fixture(&backend.url(), "idle_timeout = \"600s\"", "idle_timeout = \"500ms\"");
        let mut client = fixture.post(version, "/", None);
        client.send(b"some");
        fixture.ends(version, Duration::from_millis(50), || client.idle());
        assert_eq!(fixture.count("sealane_client_timeouts_total"), 0.0, "{version}");
        assert_eq!(fixture.count("sealane_upstream_timeouts_total"), 1.0, "{version}");
    }
}

#[test]
fn a_head_that_drips_ends_in_all_versions() {
    let backend = Backend::answering(|_| ok(b"hello"));
    let fixture = fixture(&backend.url(), "header_timeout = \"500ms\"", "");
    let timeouts = || fixture.count("sealane_client_timeouts_total");
    let drips = |what: &str, before: f64, send: &mut dyn FnMut()| {
        let start = Instant::now();
        while timeouts() <= before {
            assert!(start.elapsed() < LONG, "{what}: a head may drip for ever");
            send();
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let mut wire = Wire::new(client::tcp(fixture.gateway.address));
    let _ = wire.send(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n"));
    drips("HTTP/1.1", timeouts(), &mut || drop(wire.send("X: y\r\n")));
    let mut frames = Frames::plain(fixture.gateway.address, &[]);
    let head = frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &[0; 10_000]);
    let mut rest = head.iter();
    drips("HTTP/2", timeouts(), &mut || drop(frames.stream.write_all(&[*rest.next().expect("it is long enough")])));
    let mut quic = h3::Client::connect(fixture.quic, &over_quic(fixture.gateway.config(), false));
    let head = h3::headers("GET", "/", &[], BodyLength::None);
    let id = quic.open(&head[..1], false);
    let mut rest = head[1..head.len() - 1].iter();
    drips("HTTP/3", timeouts(), &mut || {
        if let Some(byte) = rest.next() {
            let _ = quic.quic.send_stream(id).write(&[*byte]);
        }
        quic.pump();
    });
}

#[test]
fn an_idle_websocket_is_nobodys_failure() {
    let backend = Backend::start(|mut connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
            let _ = connection.wire.rest();
        }
    });
    let site = Site::new();
    let log = site.path().join("access.log");
    let text = format!(
        "[admin]\nlisten = \"@ADMIN@\"\n[log]\naccess = {log:?}\nformat = \"json\"\n[[listener]]\naddress = \"@ADDRESS@\"\n\
         [[host]]\nnames = [\"*\"]\nupstream = \"u\"\n[[upstream]]\nname = \"u\"\nservers = {:?}\nidle_timeout = \"500ms\"\n",
        backend.url()
    );
    let gateway = configured(&site, &text);
    let mut wire = Wire::new(client::tcp(gateway.address));
    let request = format!("GET /chat HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
    wire.send(request).expect("the gateway reads");
    assert_eq!(wire.response("GET").expect("it is switched").status(), 101);
    // Until the gateway closes it.
    let _ = wire.rest();
    let count = |metric: &str| gateway.metric(metric).unwrap_or(0.0);
    assert!(sealane_interop::eventually(|| count("sealane_idle_tunnels_total") == 1.0), "{}", gateway.metrics());
    assert_eq!(count("sealane_upstream_timeouts_total"), 0.0);
    assert_eq!(gateway.metric_with("sealane_aborted_exchanges_total", "upstream"), Some(0.0));
    let line = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(sealane_interop::eventually(|| line().contains("\"end\":\"idle\"")), "{}", line());
    assert!(line().contains("\"status\":101") && !line().contains("\"error\""), "{}", line());
}

/// Nothing is read of a request whose head is refused, so nothing is waited for. The exchange ends before its answer leaves.
#[test]
fn a_request_that_is_refused_at_its_head_is_over_with_its_answer() {
    let fixture = fixture("http://127.0.0.1:9", "", "");
    let mut client = h3::Client::connect(fixture.quic, &over_quic(fixture.gateway.config(), false));
    let many: Vec<(&str, &str)> = vec![("x-many", "y"); 200];
    let path = format!("/{}", "a".repeat(20_000));
    let long = "v".repeat(40_000);
    for (path, fields, expected) in [("/", &many[..], 431), (&path, &[], 414), ("/", &[("x-large", &long)], 431)] {
        let head = h3::headers("GET", path, fields, BodyLength::None);
        assert_eq!(client.exchange(&head, b"").expect("an answer").status, expected);
        assert_eq!(fixture.active(), 0.0, "{expected}");
    }
}

/// A relayed connection whose ends say nothing, one of which has said that it will say no more.
#[test]
fn relayed_connections_end_when_both_sides_are_silent() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port can be had");
    let server = listener.local_addr().expect("a bound socket has an address");
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut byte = [0];
            let _ = stream.read(&mut byte);
            if byte == *b"e" {
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }
            held.push(stream);
        }
    });
    let site = Site::new();
    let text = format!(
        "[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\nmode = \"tcp\"\n[[host]]\nnames = [\"*\"]\n\
         passthrough = \"u\"\n[[upstream]]\nname = \"u\"\nservers = \"tcp://{server}\"\nidle_timeout = \"500ms\"\n"
    );
    let gateway = configured(&site, &text);
    for first in [b"s", b"e"] {
        let mut stream = client::tcp(gateway.address);
        stream.write_all(first).expect("the gateway reads");
        // While something moves, it is not silent.
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(20));
            let _ = stream.write_all(b"x");
        }
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        let kind = end.as_ref().err().map(std::io::Error::kind);
        let ours = matches!(kind, Some(std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut));
        assert!(!ours, "the connection is still open");
        let active = || gateway.metric("sealane_requests_active");
        assert!(sealane_interop::eventually(|| active() == Some(0.0)), "{}", gateway.metrics());
    }
}
