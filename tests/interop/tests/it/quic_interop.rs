//! The cases of the QUIC interoperability runner (github.com/quic-interop/quic-interop-runner), with aioquic and quic-go as clients of the
//! gateway and as servers behind it. Between both is a path of the test's own ([`QuicPath`]), which loses, damages, delays and marks
//! datagrams, and on which the test sees what passes.
//!
//! The runner's case `v2` is missing: the gateway speaks version 1 only.

use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::{Gateway, Setup, before};
use sealane_interop::http::Message;
use sealane_interop::peers::{Said, python, quic_go};
use sealane_interop::process::{Server, run};
use sealane_interop::quic_path::{CE, Dice, ECT0, Fate, Kind, Noted, Passing, QuicPath, Towards};
use sealane_interop::site::{HOST, Identity, Site};
use sealane_interop::{eventually, ports, sha256, skip};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The bodies of `/large` and of uploads, as both peers have them.
const LARGE: usize = 600_000;
const UPLOAD: usize = 400_000;
/// Datagrams at the end of a connection of which it is asked whether they have ECN marks: validation is over by then.
const LAST: usize = 100;

/// Bytes that tell their places: numbers of 32 bits, one after the other.
fn content(length: usize) -> Vec<u8> {
    (0..length as u32 / 4).flat_map(u32::to_be_bytes).collect()
}

/// What the other side is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Aioquic,
    QuicGo,
}

impl Peer {
    fn client(self) -> Result<Command, String> {
        self.command("client", "interop-client")
    }

    fn server(self) -> Result<Command, String> {
        self.command("server", "interop-server")
    }

    fn command(self, of_aioquic: &str, of_quic_go: &str) -> Result<Command, String> {
        Ok(match self {
            Self::Aioquic => {
                let mut command = Command::new(python()?);
                let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/aioquic/interop.py");
                command.arg(script).arg(of_aioquic);
                command
            }
            Self::QuicGo => {
                let mut command = Command::new(quic_go()?);
                command.arg(of_quic_go);
                command
            }
        })
    }
}

/// Ends the test where the peer is missing.
macro_rules! peer {
    ($command:expr) => {
        match $command {
            Ok(command) => command,
            Err(why) => skip!("no QUIC peer: {why}"),
        }
    };
}

/// A path that changes nothing.
fn pass(_: Passing) -> Fate {
    Fate::Pass
}

/// A path that does this to so many of a hundred datagrams, in both directions.
fn sometimes(share: u64, fate: Fate) -> impl FnMut(Passing) -> Fate + Send + 'static {
    let mut dice = Dice::new(20);
    move |_| if dice.percent(share) { fate } else { Fate::Pass }
}

/// A path that marks a tenth of what knows ECN, instead of losing it.
fn congested() -> impl FnMut(Passing) -> Fate + Send + 'static {
    let mut dice = Dice::new(21);
    move |passing| if passing.ecn == ECT0 && dice.percent(10) { Fate::Mark(CE) } else { Fate::Pass }
}

/// A path on which nothing passes for a while, once so many datagrams have come from the server.
fn black_hole(after: usize) -> impl FnMut(Passing) -> Fate + Send + 'static {
    let mut began = None;
    move |passing| {
        if passing.towards == Towards::Client && passing.number == after {
            began = Some(passing.since);
        }
        let is_dark = began.is_some_and(|began| passing.since < began + Duration::from_secs(2));
        if is_dark { Fate::Lose } else { Fate::Pass }
    }
}

/// A path on which the server hears nothing of the client, for a while, behind the client's first flight.
fn unheard() -> impl FnMut(Passing) -> Fate + Send + 'static {
    let mut answered = false;
    move |passing| {
        answered |= passing.towards == Towards::Client;
        let is_lost = passing.towards == Towards::Server && answered && passing.since < Duration::from_millis(1500);
        if is_lost { Fate::Lose } else { Fate::Pass }
    }
}

/// A path on which a client moves once.
fn moving(number: usize, fate: Fate) -> impl FnMut(Passing) -> Fate + Send + 'static {
    move |passing| {
        let is_moment = passing.towards == Towards::Server && passing.number == number;
        if is_moment { fate } else { Fate::Pass }
    }
}

/// RFC 9000 §8.1: until the server has got a Handshake packet, it sends at most three times what it got. Fails if it did otherwise, or
/// if it never came near that: then the test would show nothing.
#[track_caller]
fn is_amplified_thrice_at_most(path: &QuicPath) {
    // quinn-proto and quic-go send one more datagram as long as a byte is left (docs/reference/upstream-bugs.md).
    const BEYOND: usize = 1500;
    let (mut got, mut sent, mut was_near) = (0, 0, false);
    for noted in path.notes() {
        match noted.towards {
            Towards::Server if noted.fate == Fate::Lose => {}
            Towards::Server if noted.kinds.contains(&Kind::Handshake) => break,
            Towards::Server => got += noted.length,
            Towards::Client => sent += noted.length,
        }
        assert!(sent <= 3 * got + BEYOND, "{sent} bytes for {got}");
        was_near |= sent > 2 * got;
    }
    assert!(was_near, "only {sent} bytes for {got}");
}

/// A certificate with so many names that it does not fit into what a server may send at first.
fn large_identity(site: &Site) -> Identity {
    let names: Vec<String> = (0..220).map(|n| format!("a-name-that-makes-it-long-{n:03}.example.test")).collect();
    site.issue("large", &[HOST].into_iter().chain(names.iter().map(String::as_str)).collect::<Vec<_>>())
}

/// The ECN bits of the last datagrams that went this way.
fn last_marks(path: &QuicPath, towards: Towards) -> Vec<u8> {
    let marks: Vec<u8> = path.notes().iter().filter(|noted| noted.towards == towards).map(|noted| noted.ecn).collect();
    assert!(marks.len() > 2 * LAST, "only {} datagrams", marks.len());
    marks[marks.len() - LAST..].to_vec()
}

/// What quic-go has written about its connections.
fn log(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).expect("quic-go has written logs").flatten();
    files.map(|file| std::fs::read_to_string(file.path()).expect("it is JSON")).collect()
}

/// The states of ECN in quic-go's log, in their order.
fn ecn_states(folder: &Path) -> Vec<String> {
    let events = log(folder);
    let events = events.lines().filter(|line| line.contains("ecn_state_updated"));
    let state = |line: &str| Some(line.split_once("\"new\":\"")?.1.split_once('"')?.0.to_owned());
    events.filter_map(state).collect()
}

/// A client before the gateway.
struct Front {
    site: Site,
    gateway: Gateway,
    path: QuicPath,
    facts: HashMap<String, String>,
}

impl Front {
    /// Runs a client's job through this path.
    #[track_caller]
    fn run(mut client: Command, job: &str, rule: impl FnMut(Passing) -> Fate + Send + 'static) -> Self {
        Self::over(&mut client, job, Duration::ZERO, rule, |setup, _| setup)
    }

    #[track_caller]
    fn over(
        client: &mut Command,
        job: &str,
        delay: Duration,
        rule: impl FnMut(Passing) -> Fate + Send + 'static,
        change: impl for<'s> FnOnce(Setup<'s>, &Site) -> Setup<'s>,
    ) -> Self {
        let site = Site::new();
        let large = content(LARGE);
        let backend = Backend::answering(move |request| match request.target() {
            "/large" => ok(&large),
            "/upload" => ok(sha256(&request.body).as_bytes()),
            _ => ok(b"hello"),
        });
        let setup = before(&site, [backend.url()]).lanes(2).listener("http3 = true");
        let gateway = change(setup.limits("handshake_timeout = \"80s\""), &site).start();
        let path = QuicPath::to(gateway.address, delay, rule);
        let address = match client.get_program().to_string_lossy().ends_with("python") {
            true => path.address.port().to_string(),
            false => path.address.to_string(),
        };
        client.arg(job).arg(address).arg(gateway.ca()).env("QLOGDIR", site.path().join("qlog"));
        let said = Said::from(run(client, b""));
        let well = said.code == Some(0) && said.text().trim().ends_with("all is well");
        assert!(well, "{}\n{}\n{}", said.all(), gateway.server.log(), gateway.metrics());
        let fact = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let facts = said.text().lines().filter_map(fact).collect();
        assert_eq!(gateway.metric("sealane_http3_errors_total"), Some(0.0), "{}", gateway.metrics());
        Self { site, gateway, path, facts }
    }

    fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    fn qlog(&self) -> PathBuf {
        self.site.path().join("qlog")
    }

    /// All went over so many connections.
    #[track_caller]
    fn connections(&self, number: f64) {
        assert_eq!(self.gateway.metric("sealane_quic_connections_total"), Some(number), "{}", self.gateway.metrics());
    }

    fn lost(&self) -> usize {
        self.path.count(|noted| noted.fate == Fate::Lose)
    }
}

/// The cases in which the peer is the client.
mod client {
    use super::*;

    pub fn handshake(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "get", pass);
        front.connections(1.0);
        assert_eq!(front.fact("version"), "1");
        assert_eq!(front.path.packets(Towards::Client, Kind::Retry), 0);
    }

    pub fn transfer(peer: Peer) {
        Front::run(peer!(peer.client()), "transfer", pass).connections(1.0);
    }

    pub fn multiplexing(peer: Peer) {
        Front::run(peer!(peer.client()), "many", pass).connections(1.0);
    }

    pub fn long_rtt(peer: Peer) {
        let delay = Duration::from_millis(300);
        Front::over(&mut peer!(peer.client()), "get", delay, pass, |setup, _| setup).connections(1.0);
    }

    pub fn chacha20(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "chacha", pass);
        assert!(front.fact("cipher").ends_with("CHACHA20_POLY1305_SHA256"), "{:?}", front.facts);
    }

    pub fn retry(peer: Peer) {
        let front = Front::over(&mut peer!(peer.client()), "get", Duration::ZERO, pass, |setup, _| {
            setup.listener("[listener.quic]\nretry_above = 0")
        });
        front.connections(1.0);
        // A hello of two datagrams gets two. The client accepts one.
        assert!((1..=2).contains(&front.path.packets(Towards::Client, Kind::Retry)));
        assert!(front.gateway.metric("sealane_quic_retries_total") >= Some(1.0));
    }

    pub fn resumption(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "resume", pass);
        front.connections(2.0);
        assert_eq!((front.fact("resumed"), front.fact("early")), ("True", "False"));
        assert_eq!(front.path.packets(Towards::Server, Kind::ZeroRtt), 0);
        assert_eq!(front.gateway.metric_with("sealane_handshakes_total", "kind=\"resumed\""), Some(1.0));
    }

    pub fn zero_rtt(peer: Peer) {
        let front = Front::over(&mut peer!(peer.client()), "early", Duration::ZERO, pass, |setup, _| {
            setup.tls("early_data = \"16KiB\"")
        });
        front.connections(2.0);
        assert_eq!((front.fact("resumed"), front.fact("early")), ("True", "True"));
        assert!(front.path.packets(Towards::Server, Kind::ZeroRtt) > 0);
        let accepted = front.gateway.metric_with("sealane_early_data_connections_total", "accepted");
        assert_eq!(accepted, Some(1.0), "{}", front.gateway.metrics());
    }

    pub fn key_update(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "keys", pass);
        front.connections(1.0);
        match peer {
            // It has asked three times, and each time got data that are protected with the new keys.
            Peer::Aioquic => assert_eq!((front.fact("updates"), front.fact("in phase")), ("3", "True")),
            Peer::QuicGo => {
                let log = log(&front.qlog());
                let updates =
                    log.lines().filter(|line| line.contains("key_updated") && line.contains("\"key_phase\":1"));
                assert!(updates.count() >= 2, "both directions: {log}");
            }
        }
    }

    pub fn version_negotiation(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "negotiate", pass);
        let notes = front.path.notes();
        assert_eq!(notes[0].version, Some(0x6b33_43cf), "the client begins with version 2 (RFC 9369)");
        assert!(front.path.packets(Towards::Client, Kind::VersionNegotiation) > 0);
        assert_eq!(front.fact("version"), "1");
        front.connections(1.0);
        assert!(front.gateway.metric("sealane_quic_version_negotiations_total") >= Some(1.0));
    }

    pub fn loss(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "transfer", sometimes(4, Fate::Lose));
        front.connections(1.0);
        assert!(front.lost() > 10, "{}", front.lost());
    }

    pub fn corruption(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "transfer", sometimes(4, Fate::Damage));
        front.connections(1.0);
        assert!(front.path.count(|noted| noted.fate == Fate::Damage) > 10);
    }

    /// Ten connections, one after the other; none of them is given up.
    pub fn handshake_loss(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "connections", sometimes(30, Fate::Lose));
        assert!(front.lost() > 10, "{}", front.lost());
        assert!(front.gateway.metric("sealane_quic_connections_total") >= Some(10.0));
    }

    pub fn handshake_corruption(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "connections", sometimes(30, Fate::Damage));
        assert!(front.gateway.metric("sealane_quic_connections_total") >= Some(10.0));
    }

    pub fn black_hole(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "transfer", super::black_hole(100));
        front.connections(1.0);
        assert!(front.lost() > 1, "{}", front.lost());
    }

    pub fn amplification(peer: Peer) {
        let front = Front::over(&mut peer!(peer.client()), "get", Duration::ZERO, unheard(), |setup, site| {
            setup.identities(&[&large_identity(site)])
        });
        front.connections(1.0);
        is_amplified_thrice_at_most(&front.path);
    }

    pub fn rebinding_of_the_port(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "transfer", moving(200, Fate::NewPort));
        assert_eq!(front.path.count(|noted| noted.fate == Fate::NewPort), 1);
        front.connections(1.0);
    }

    pub fn rebinding_of_the_address(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "transfer", moving(200, Fate::NewAddress));
        assert_eq!(front.path.count(|noted| noted.fate == Fate::NewAddress), 1);
        front.connections(1.0);
    }

    pub fn migration(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "migrate", pass);
        assert_eq!(front.fact("moved"), "True");
        front.connections(1.0);
    }

    /// Marks that arrive are reported to the client, and the gateway marks what it sends.
    pub fn ecn(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "transfer", pass);
        let marks = last_marks(&front.path, Towards::Client);
        match peer {
            Peer::QuicGo => {
                assert!(marks.iter().all(|mark| *mark == ECT0), "{marks:?}");
                assert_eq!(ecn_states(&front.qlog()).last().map(String::as_str), Some("capable"));
            }
            // aioquic reports no marks. So the gateway does not know whether the path lets them pass, and marks nothing more.
            Peer::Aioquic => {
                assert!(front.path.count(|noted| noted.towards == Towards::Client && noted.ecn == ECT0) > 0);
                assert!(marks.iter().all(|mark| *mark == 0), "{marks:?}");
            }
        }
    }

    /// A path that is congested now and then says so by marks, and loses nothing.
    pub fn ecn_congestion(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "transfer", congested());
        front.connections(1.0);
        assert!(front.path.count(|noted| noted.fate == Fate::Mark(CE)) > 20);
        assert!(last_marks(&front.path, Towards::Client).iter().all(|mark| *mark == ECT0));
        assert_eq!(ecn_states(&front.qlog()).last().map(String::as_str), Some("capable"));
    }

    /// A path that clears the marks: both sides find out, and stop.
    pub fn ecn_bleaching(peer: Peer) {
        let front = Front::run(peer!(peer.client()), "transfer", |_| Fate::Mark(0));
        front.connections(1.0);
        assert!(front.path.count(|noted: &Noted| noted.towards == Towards::Client && noted.ecn == ECT0) > 0);
        assert!(last_marks(&front.path, Towards::Client).iter().all(|mark| *mark == 0));
        assert_eq!(ecn_states(&front.qlog()).last().map(String::as_str), Some("failed"));
    }
}

/// The gateway before a server that speaks HTTP/3.
struct Back {
    site: Site,
    server: Server,
    gateway: Gateway,
    path: QuicPath,
}

impl Back {
    #[track_caller]
    fn run(server: Command, mode: &str, rule: impl FnMut(Passing) -> Fate + Send + 'static) -> Self {
        Self::over(server, mode, Duration::ZERO, rule, "", |site| site.ecdsa.clone())
    }

    #[track_caller]
    fn over(
        mut command: Command,
        mode: &str,
        delay: Duration,
        rule: impl FnMut(Passing) -> Fate + Send + 'static,
        upstream: &str,
        identity: impl FnOnce(&Site) -> Identity,
    ) -> Self {
        let site = Site::new();
        let identity = identity(&site);
        let address = ports::free();
        let place = match command.get_program().to_string_lossy().ends_with("python") {
            true => address.port().to_string(),
            false => address.to_string(),
        };
        command.arg(mode).arg(place).arg(&identity.cert).arg(&identity.key).env("QLOGDIR", site.path().join("qlog"));
        let mut server = Server::start(command, site.path());
        let log = server.log_file();
        server.wait_until(|| std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")));
        let path = QuicPath::to(address, delay, rule);
        let gateway = Self::gateway(&site, path.address, upstream);
        Self { site, server, gateway, path }
    }

    fn gateway(site: &Site, address: SocketAddr, upstream: &str) -> Gateway {
        // Longer than the tests wait: what ends by it fails them.
        let setup = before(site, [format!("https://{HOST}:{}", address.port())]).upstream("http = \"3\"");
        let setup = setup.upstream("connect_timeout = \"10m\"").upstream(upstream);
        setup.upstream_tls(&format!("ca = {:?}", site.ca)).start()
    }

    #[track_caller]
    fn exchange(&self, request: impl AsRef<[u8]>) -> Message {
        let response = self.gateway.exchange(request);
        let response = response.unwrap_or_else(|broken| panic!("{broken:?}\n{}", self.server.log()));
        assert_eq!((response.status(), response.header("x-over")), (200, Some("h3")), "{response:?}");
        response
    }

    #[track_caller]
    fn get(&self) -> Message {
        let response = self.exchange(sealane_interop::client::get("/"));
        assert_eq!(response.text(), "hello");
        response
    }

    #[track_caller]
    fn transfer(&self) {
        let large = self.exchange(sealane_interop::client::get("/large"));
        assert!(large.body == content(LARGE), "{} bytes", large.body.len());
        let upload = content(UPLOAD);
        let head =
            format!("POST /upload HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {UPLOAD}\r\nConnection: close\r\n\r\n");
        assert_eq!(self.exchange([head.as_bytes(), &upload].concat()).text(), sha256(&upload));
    }

    /// All went over one connection.
    #[track_caller]
    fn one_connection(&self) {
        for (name, value) in [("connections", 1.0), ("fallbacks", 0.0)] {
            let name = format!("sealane_http3_upstream_{name}_total");
            assert_eq!(self.gateway.metric(&name), Some(value), "{name}: {}", self.gateway.metrics());
        }
    }

    fn lost(&self) -> usize {
        self.path.count(|noted| noted.fate == Fate::Lose)
    }

    fn qlog(&self) -> PathBuf {
        self.site.path().join("qlog")
    }
}

/// The cases in which the peer is the server.
mod server {
    use super::*;

    pub fn handshake(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", pass);
        back.get();
        back.one_connection();
        assert_eq!(back.path.packets(Towards::Client, Kind::Retry), 0);
    }

    pub fn transfer(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", pass);
        back.transfer();
        back.one_connection();
    }

    pub fn multiplexing(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", pass);
        let gateway = &back.gateway;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..40).map(|_| scope.spawn(|| gateway.get("/"))).collect();
            for thread in threads {
                let response = thread.join().expect("its request is answered");
                assert_eq!((response.text(), response.header("x-over")), ("hello".to_owned(), Some("h3")));
            }
        });
        assert_eq!(back.gateway.metric("sealane_http3_upstream_fallbacks_total"), Some(0.0));
    }

    pub fn long_rtt(peer: Peer) {
        let delay = Duration::from_millis(300);
        let back = Back::over(peer!(peer.server()), "plain", delay, pass, "", |site| site.ecdsa.clone());
        back.get();
        back.one_connection();
    }

    pub fn chacha20(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "chacha", pass);
        let response = back.get();
        let cipher = response.header("x-cipher").unwrap_or_default();
        assert!(cipher.ends_with("CHACHA20_POLY1305_SHA256"), "{cipher}");
    }

    pub fn retry(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "retry", pass);
        back.get();
        back.one_connection();
        // A hello of two datagrams gets two. The gateway accepts one.
        assert!((1..=2).contains(&back.path.packets(Towards::Client, Kind::Retry)));
    }

    pub fn key_update(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "keys", pass);
        for _ in 0..5 {
            back.get();
        }
        // quic-go changes its keys after a hundred packets.
        back.transfer();
        back.one_connection();
        if peer == Peer::QuicGo {
            let updated = || {
                log(&back.qlog()).lines().filter(|l| l.contains("key_updated") && l.contains("key_phase\":1")).count()
            };
            // The log is written when the connection ends.
            back.gateway.server.terminate();
            assert!(eventually(|| updated() >= 2), "{}", log(&back.qlog()));
        }
    }

    /// A server of version 2 only: the gateway does not wait until the time for connecting is over.
    pub fn version_negotiation(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "version2", pass);
        // Nobody listens over TCP.
        assert_eq!(back.gateway.get("/").status(), 502);
        assert!(back.path.packets(Towards::Client, Kind::VersionNegotiation) > 0);
        assert_eq!(back.gateway.metric("sealane_http3_upstream_fallbacks_total"), Some(1.0));
    }

    pub fn loss(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", sometimes(4, Fate::Lose));
        back.transfer();
        back.one_connection();
        assert!(back.lost() > 10, "{}", back.lost());
    }

    pub fn corruption(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", sometimes(4, Fate::Damage));
        back.transfer();
        back.one_connection();
        assert!(back.path.count(|noted| noted.fate == Fate::Damage) > 10);
    }

    pub fn handshake_loss(peer: Peer) {
        handshakes(peer!(peer.server()), Fate::Lose);
    }

    pub fn handshake_corruption(peer: Peer) {
        handshakes(peer!(peer.server()), Fate::Damage);
    }

    /// Connections one after the other, each of another gateway.
    fn handshakes(server: Command, fate: Fate) {
        let back = Back::run(server, "plain", sometimes(30, fate));
        back.get();
        for _ in 1..6 {
            let gateway = Back::gateway(&back.site, back.path.address, "");
            let response = gateway.get("/");
            assert_eq!((response.status(), response.header("x-over")), (200, Some("h3")), "{response:?}");
        }
        assert!(back.path.count(|noted| noted.fate == fate) > 10);
    }

    pub fn black_hole(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", super::black_hole(100));
        back.transfer();
        back.one_connection();
        assert!(back.lost() > 1, "{}", back.lost());
    }

    pub fn amplification(peer: Peer) {
        let back = Back::over(peer!(peer.server()), "plain", Duration::ZERO, unheard(), "", large_identity);
        back.get();
        back.one_connection();
        is_amplified_thrice_at_most(&back.path);
    }

    pub fn rebinding_of_the_port(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", moving(200, Fate::NewPort));
        back.transfer();
        back.one_connection();
        assert_eq!(back.path.count(|noted| noted.fate == Fate::NewPort), 1);
    }

    pub fn rebinding_of_the_address(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", moving(200, Fate::NewAddress));
        back.transfer();
        back.one_connection();
        assert_eq!(back.path.count(|noted| noted.fate == Fate::NewAddress), 1);
    }

    pub fn ecn(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", pass);
        back.transfer();
        let marks = last_marks(&back.path, Towards::Server);
        match peer {
            Peer::QuicGo => {
                assert!(marks.iter().all(|mark| *mark == ECT0), "{marks:?}");
                // It goes on marking only where the gateway reports its marks.
                let marks = last_marks(&back.path, Towards::Client);
                assert!(marks.iter().all(|mark| *mark == ECT0), "{marks:?}");
            }
            Peer::Aioquic => {
                assert!(back.path.count(|noted| noted.towards == Towards::Server && noted.ecn == ECT0) > 0);
                assert!(marks.iter().all(|mark| *mark == 0), "{marks:?}");
            }
        }
    }

    pub fn ecn_congestion(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", congested());
        back.transfer();
        back.one_connection();
        assert!(last_marks(&back.path, Towards::Server).iter().all(|mark| *mark == ECT0));
        assert!(last_marks(&back.path, Towards::Client).iter().all(|mark| *mark == ECT0));
    }

    pub fn ecn_bleaching(peer: Peer) {
        let back = Back::run(peer!(peer.server()), "plain", |_| Fate::Mark(0));
        back.transfer();
        back.one_connection();
        assert!(last_marks(&back.path, Towards::Server).iter().all(|mark| *mark == 0));
        assert!(last_marks(&back.path, Towards::Client).iter().all(|mark| *mark == 0));
    }
}

/// A test for each case with each peer.
macro_rules! cases {
    ($module:ident, $peer:expr, $role:ident, $($case:ident)*) => {
        mod $module {
            $(
                #[test]
                fn $case() {
                    super::$role::$case($peer);
                }
            )*
        }
    };
}

cases!(aioquic_as_client, super::Peer::Aioquic, client, handshake transfer multiplexing long_rtt chacha20 retry resumption zero_rtt
    key_update version_negotiation loss corruption handshake_loss handshake_corruption black_hole amplification
    rebinding_of_the_port rebinding_of_the_address migration ecn);
cases!(quic_go_as_client, super::Peer::QuicGo, client, handshake transfer multiplexing long_rtt chacha20 retry resumption zero_rtt
    key_update version_negotiation loss corruption handshake_loss handshake_corruption black_hole amplification
    rebinding_of_the_port rebinding_of_the_address migration ecn ecn_congestion ecn_bleaching);
cases!(aioquic_as_server, super::Peer::Aioquic, server, handshake transfer multiplexing long_rtt chacha20 retry
    key_update version_negotiation loss corruption handshake_loss handshake_corruption black_hole amplification
    rebinding_of_the_port rebinding_of_the_address ecn);
cases!(quic_go_as_server, super::Peer::QuicGo, server, handshake transfer multiplexing long_rtt chacha20 retry
    key_update version_negotiation loss corruption handshake_loss handshake_corruption black_hole amplification
    rebinding_of_the_port rebinding_of_the_address ecn ecn_congestion ecn_bleaching);
