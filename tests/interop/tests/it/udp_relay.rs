//! Datagrams that are relayed without being read (`mode = "udp"`).

use crate::operating::{Operated, Other, order};
use sealane_interop::backend::Backend;
use sealane_interop::gateway::{self, Gateway, before, configured};
use sealane_interop::h3::{Client as H3Client, over_quic};
use sealane_interop::site::Site;
use sealane_interop::{WAIT_LIMIT, eventually, noise, ports, skip};
use sealane_sys::udp::{Options, Socket, Transmit};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the tests' own threads wait before they look whether the test is over.
const TICK: Duration = Duration::from_millis(20);

/// Who has sent which datagrams to a server.
type Seen = Arc<Mutex<Vec<(SocketAddr, Vec<u8>)>>>;

/// A server. It closes its socket when it is dropped.
struct Server {
    address: SocketAddr,
    seen: Seen,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// `reply` is what is sent back for a datagram.
    fn at(address: SocketAddr, reply: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let socket = UdpSocket::bind(address).expect("the address is free");
        let address = socket.local_addr().expect("a bound socket has an address");
        socket.set_read_timeout(Some(TICK)).expect("a timeout can be set");
        let (seen, ends) = (Seen::default(), Arc::new(AtomicBool::new(false)));
        let (noted, ended) = (seen.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while !ended.load(Ordering::SeqCst) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                noted.lock().expect("no panic").push((from, buffer[..length].to_vec()));
                for datagram in reply(&buffer[..length]) {
                    let _ = socket.send_to(&datagram, from);
                }
            }
        });
        Self { address, seen, ends, thread: Some(thread) }
    }

    /// A server that replies to each datagram with its name and the datagram.
    fn echo(name: &'static str) -> Self {
        Self::echo_at(ports::free(), name)
    }

    fn echo_at(address: SocketAddr, name: &'static str) -> Self {
        Self::at(address, move |datagram| vec![[name.as_bytes(), b":", datagram].concat()])
    }

    fn seen(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        self.seen.lock().expect("no panic").clone()
    }

    /// From how many sockets of the gateway datagrams have come that begin so.
    fn sources(&self, begin: &str) -> BTreeSet<SocketAddr> {
        self.seen()
            .iter()
            .filter(|(_, datagram)| datagram.starts_with(begin.as_bytes()))
            .map(|(from, _)| *from)
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A client with a port of its own.
struct Client(UdpSocket);

impl Client {
    fn new(gateway: SocketAddr) -> Self {
        let own = if gateway.is_ipv4() { "127.0.0.1" } else { "::1" };
        Self::from(own.parse().expect("an address"), gateway)
    }

    fn from(own: IpAddr, gateway: SocketAddr) -> Self {
        let socket = UdpSocket::bind((own, 0)).expect("a loopback port can be had");
        socket.connect(gateway).expect("a UDP socket can be connected");
        socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout can be set");
        Self(socket)
    }

    fn send(&self, datagram: impl AsRef<[u8]>) {
        self.0.send(datagram.as_ref()).expect("the kernel takes a datagram");
    }

    fn receive(&self) -> String {
        let mut buffer = [0; 65_536];
        let length = self.0.recv(&mut buffer).expect("a reply comes");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    fn ask(&self, datagram: impl AsRef<[u8]>) -> String {
        self.send(datagram);
        self.receive()
    }

    /// Asks again and again, as clients do that get no reply.
    fn ask_again(&self, datagram: &str) -> String {
        self.0.set_read_timeout(Some(TICK * 5)).expect("a timeout can be set");
        let mut buffer = [0; 65_536];
        let mut reply = None;
        assert!(eventually(|| {
            let _ = self.0.send(datagram.as_bytes());
            reply = self.0.recv(&mut buffer).ok().map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned());
            reply.is_some()
        }));
        // Replies to those before may still be on their way.
        self.0.set_read_timeout(Some(TICK)).expect("a timeout can be set");
        while self.0.recv(&mut buffer).is_ok() {}
        self.0.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout can be set");
        reply.unwrap_or_default()
    }
}

fn text(lanes: usize, head: &str, listener: &str, servers: &[SocketAddr], upstream: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("udp://{server}")).collect();
    format!(
        "lanes = {lanes}\n[admin]\nlisten = \"@ADMIN@\"\n[log]\naccess = \"stdout\"\n{head}\n\
         [[listener]]\naddress = \"@ADDRESS@\"\nmode = \"udp\"\n{listener}\n[[host]]\nnames = [\"*\"]\n\
         passthrough = \"u\"\n[[upstream]]\nname = \"u\"\nservers = {servers:?}\n{upstream}\n"
    )
}

fn relay(site: &Site, lanes: usize, server: &Server, upstream: &str) -> Gateway {
    configured(site, &text(lanes, "", "", &[server.address], upstream))
}

fn active(gateway: &Gateway) -> f64 {
    gateway.metric("sealane_udp_sessions_active").unwrap_or(-1.0)
}

#[test]
fn replies_go_back_to_the_right_client() {
    let site = Site::new();
    let server = Server::echo("s");
    let gateway = relay(&site, 4, &server, "");
    let clients: Vec<Client> = (0..200).map(|_| Client::new(gateway.address)).collect();
    for round in 0..3 {
        for (n, client) in clients.iter().enumerate() {
            client.send(format!("{n}-{round}"));
        }
        for (n, client) in clients.iter().enumerate() {
            assert_eq!(client.receive(), format!("s:{n}-{round}"));
        }
    }
    for n in 0..clients.len() {
        assert_eq!(server.sources(&format!("{n}-")).len(), 1, "a client has one session");
    }
    let all: BTreeSet<SocketAddr> = server.seen().iter().map(|(from, _)| *from).collect();
    assert_eq!(all.len(), 200, "no two clients share one");
    assert!(eventually(|| active(&gateway) == 200.0));
    assert_eq!(gateway.metric("sealane_udp_sessions_total"), Some(200.0));
    let count = |name: &str, to: &str| gateway.metric_with(name, &format!("to=\"{to}\""));
    assert_eq!(count("sealane_udp_datagrams_total", "upstream"), Some(600.0));
    assert!(eventually(|| count("sealane_udp_datagrams_total", "client") == Some(600.0)));
    let up: usize = server.seen().iter().map(|(_, datagram)| datagram.len()).sum();
    assert_eq!(count("sealane_udp_bytes_total", "upstream"), Some(up as f64));
    assert!(eventually(|| count("sealane_udp_bytes_total", "client") == Some((up + 2 * 600) as f64)));
    assert_eq!(gateway.status()["listeners"][0]["mode"], "udp");
}

#[test]
fn datagrams_of_any_length_pass_unchanged() {
    let site = Site::new();
    let server = Server::at(ports::free(), |datagram| vec![datagram.to_vec()]);
    let gateway = relay(&site, 1, &server, "");
    let client = Client::new(gateway.address);
    for length in [0, 1, 1200, 1472, 9000, 65_507] {
        let sent = noise(length, length as u64);
        client.send(&sent);
        let mut buffer = vec![0; 65_536];
        let got = client.0.recv(&mut buffer).expect("a reply comes");
        assert!(buffer[..got] == sent, "{length} bytes, {got} came back");
    }
}

#[test]
fn silent_sessions_end_and_the_next_datagram_begins_another() {
    let site = Site::new();
    let server = Server::echo("s");
    let gateway = relay(&site, 1, &server, "idle_timeout = \"500ms\"");
    let client = Client::new(gateway.address);
    assert_eq!(client.ask("first"), "s:first");
    assert!(eventually(|| active(&gateway) == 0.0));
    assert_eq!(gateway.metric_with("sealane_udp_sessions_ended_total", "reason=\"idle\""), Some(1.0));
    assert_eq!(client.ask("second"), "s:second");
    assert_eq!(gateway.metric("sealane_udp_sessions_total"), Some(2.0));
    let begin = "127.0.0.1 - - [";
    let lines = |log: &str| log.lines().filter(|l| l.starts_with(begin) && l.contains("\"UDP - -\" 200 7 ")).count();
    assert!(eventually(|| lines(&gateway.server.log()) == 1), "{}", gateway.server.log());
    assert!(gateway.server.log().contains(&format!(" 5 {} -", server.address)), "the server, and what it was sent");
}

#[test]
fn expected_responses_end_a_session() {
    let site = Site::new();
    let server = Server::at(ports::free(), |datagram| vec![datagram.to_vec(); 2]);
    let gateway = relay(&site, 1, &server, "udp = { responses = 2 }");
    let client = Client::new(gateway.address);
    for n in 1..4 {
        client.send("q");
        assert_eq!((client.receive(), client.receive()), ("q".to_owned(), "q".to_owned()));
        let complete = || gateway.metric_with("sealane_udp_sessions_ended_total", "reason=\"complete\"");
        assert!(eventually(|| complete() == Some(f64::from(n))));
        assert_eq!(active(&gateway), 0.0);
    }
    assert_eq!(server.sources("q").len(), 3);
}

/// The replies to the datagrams before are not lost with the session that they belong to.
#[test]
fn so_many_datagrams_are_a_session_and_their_replies_still_come() {
    let site = Site::new();
    let server = Server::at(ports::free(), |_| Vec::new());
    let gateway = relay(&site, 1, &server, "udp = { requests = 1, responses = 1 }");
    let client = Client::new(gateway.address);
    ["a", "b", "c"].iter().for_each(|query| client.send(query));
    assert!(eventually(|| server.seen().len() == 3));
    let seen = server.seen();
    assert_eq!(seen.iter().map(|(from, _)| *from).collect::<BTreeSet<_>>().len(), 3, "each has a session of its own");
    assert_eq!(active(&gateway), 3.0);
    drop(server);
    // The replies come late, and in another order.
    let reply = UdpSocket::bind(seen_address(&gateway)).expect("the server has left the port");
    for (from, datagram) in seen.iter().rev() {
        reply.send_to(datagram, from).expect("the kernel takes a datagram");
        assert_eq!(client.receive().as_bytes(), datagram);
    }
    assert!(eventually(|| active(&gateway) == 0.0));
}

/// The address of the only server.
fn seen_address(gateway: &Gateway) -> SocketAddr {
    let status = gateway.status();
    let name = status["upstreams"][0]["servers"][0]["name"].as_str().expect("it has a name");
    name.parse().expect("it is an address")
}

/// A server that replies to those who begin with "hello" alone.
fn polite() -> Server {
    Server::at(ports::free(), |datagram| match datagram.starts_with(b"hello") {
        true => vec![datagram.to_vec()],
        false => Vec::new(),
    })
}

#[test]
fn a_flood_of_strangers_leaves_an_established_session_alone() {
    let site = Site::new();
    let server = polite();
    let limits = "[limits]\nmax_connections = 20\n";
    let gateway = configured(&site, &text(1, limits, "", &[server.address], ""));
    let client = Client::new(gateway.address);
    assert_eq!((client.ask("hello 1"), client.ask("hello 2")), ("hello 1".to_owned(), "hello 2".to_owned()));
    // Sources that nobody listens at, as if they were forged.
    for n in 0..1000u32 {
        let own = Ipv4Addr::from(0x7f01_0000 + n);
        Client::from(own.into(), gateway.address).send("x");
        if n % 100 == 0 {
            assert_eq!(client.ask(format!("hello {n}")), format!("hello {n}"));
        }
    }
    assert!(eventually(|| gateway.metric("sealane_udp_sessions_total") >= Some(1001.0)));
    assert!(active(&gateway) <= 20.0);
    let evicted = gateway.metric_with("sealane_udp_sessions_ended_total", "reason=\"evicted\"");
    assert!(evicted >= Some(980.0), "{evicted:?}");
    assert_eq!(gateway.metric("sealane_udp_sessions_refused_total"), Some(0.0), "strangers give way to strangers");
    assert_eq!(client.ask("hello 3"), "hello 3");
    assert_eq!(server.sources("hello").len(), 1, "it was one session all the time");
    // Nor is anybody new kept out.
    assert_eq!(Client::new(gateway.address).ask("hello new"), "hello new");
}

#[test]
fn where_all_sessions_are_active_no_other_begins() {
    let site = Site::new();
    let server = polite();
    let limits = "[limits]\nmax_connections = 3\n";
    let gateway = configured(&site, &text(1, limits, "", &[server.address], ""));
    let clients: Vec<Client> = (0..3).map(|_| Client::new(gateway.address)).collect();
    for client in &clients {
        assert_eq!((client.ask("hello 1"), client.ask("hello 2")), ("hello 1".to_owned(), "hello 2".to_owned()));
    }
    // The lane has seen the last datagrams before these.
    let late = Client::new(gateway.address);
    late.send("hello late");
    let refused = || gateway.metric_with("sealane_udp_sessions_refused_total", "reason=\"max_connections\"");
    assert!(eventually(|| refused() == Some(1.0)));
    assert!(server.sources("hello late").is_empty());
    assert!(clients.iter().all(|client| client.ask("hello 3") == "hello 3"));
    // They have been silent for longer than ten seconds, at some time.
    assert_eq!(late.ask_again("hello late"), "hello late");
}

#[test]
fn a_client_has_no_more_sessions_than_it_may() {
    let site = Site::new();
    // All responses have come with those to "end".
    let server = Server::at(ports::free(), |datagram| match datagram {
        b"end" => vec![b"s:end".to_vec(); 3],
        _ => vec![[&b"s:"[..], datagram].concat()],
    });
    let limits = "[limits]\nmax_connections_per_client = 2\n";
    let gateway = configured(&site, &text(2, limits, "", &[server.address], "udp = { responses = 2 }"));
    let clients: Vec<Client> = (0..2).map(|_| Client::new(gateway.address)).collect();
    assert!(clients.iter().all(|client| client.ask("1") == "s:1"));
    let third = Client::new(gateway.address);
    third.send("third");
    let limited = || gateway.metric_with("sealane_rate_limited_total", "what=\"open_connection\"");
    assert!(eventually(|| limited() == Some(1.0)));
    assert!(server.sources("third").is_empty());
    let other = Client::from([127, 0, 0, 2].into(), gateway.address);
    assert_eq!(other.ask("other"), "s:other");
    // With the end of a session, its place is free.
    assert_eq!(clients[0].ask("end"), "s:end");
    assert_eq!(third.ask_again("third"), "s:third");
}

#[test]
fn the_rate_of_new_sessions_is_limited() {
    let site = Site::new();
    let server = Server::echo("s");
    let limits = "[limits]\nconnection_rate = \"1/h\"\nconnection_burst = 2\n";
    let gateway = configured(&site, &text(1, limits, "", &[server.address], ""));
    let clients: Vec<Client> = (0..3).map(|_| Client::new(gateway.address)).collect();
    assert!(clients[..2].iter().all(|client| client.ask("1") == "s:1"));
    clients[2].send("third");
    assert!(eventually(|| gateway.metric_with("sealane_rate_limited_total", "what=\"connection\"") == Some(1.0)));
    assert!(clients[..2].iter().all(|client| client.ask("2") == "s:2"), "what is open goes on");
    assert!(server.sources("third").is_empty());
}

#[test]
fn the_rules_of_the_listener_and_the_host_hold() {
    let site = Site::new();
    let server = Server::echo("s");
    let config = text(1, "", "deny = [\"127.0.0.2\"]", &[server.address], "");
    let gateway = configured(&site, &config.replace("passthrough", "deny = [\"127.0.0.3\"]\npassthrough"));
    for last in [2, 3] {
        Client::from([127, 0, 0, last].into(), gateway.address).send(format!("denied {last}"));
    }
    let denied = || gateway.metric_with("sealane_access_denied_total", "what=\"relay\"");
    assert!(eventually(|| denied() == Some(2.0)));
    assert_eq!(Client::new(gateway.address).ask("hello"), "s:hello");
    assert!(server.sources("denied").is_empty());
    assert_eq!(gateway.metric("sealane_udp_sessions_total"), Some(1.0));
}

#[test]
fn a_server_that_refuses_is_left_for_another() {
    let site = Site::new();
    let (first, second) = (Server::echo("a"), Server::echo("b"));
    let addresses = [first.address, second.address];
    let upstream = "eject_after = 3\neject_for = \"10m\"";
    let gateway = configured(&site, &text(1, "", "", &addresses, upstream));
    let clients: Vec<Client> = (0..4).map(|_| Client::new(gateway.address)).collect();
    let served: Vec<String> = clients.iter().map(|client| client.ask("1")).collect();
    assert_eq!(served.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(["a:1", "b:1"]));
    drop(first);
    // The host's word that nobody is there comes with the first datagram, which is lost.
    assert!(clients.iter().all(|client| client.ask_again("2") == "b:2"));
    assert_eq!(gateway.metric("sealane_udp_sessions_total"), Some(4.0), "the sessions have another server");
    let others: Vec<Client> = (0..8).map(|_| Client::new(gateway.address)).collect();
    assert!(others.iter().all(|client| client.ask_again("3") == "b:3"));
    let ejected = || gateway.metric_with("sealane_server_up", &format!("server=\"{}\"", addresses[0])) == Some(0.0);
    assert!(eventually(ejected), "{}", gateway.metrics());
    assert!((0..8).all(|_| Client::new(gateway.address).ask("4") == "b:4"), "nobody is sent there");
}

#[test]
fn a_check_by_datagrams_takes_a_server_out_and_back() {
    let site = Site::new();
    let well = Arc::new(AtomicBool::new(true));
    let state = well.clone();
    let checked = Server::at(ports::free(), move |datagram| match (datagram, state.load(Ordering::SeqCst)) {
        ([0, 0xff, b'?'], true) => vec![b"no".to_vec(), b"it is \x01 well".to_vec()],
        ([0, 0xff, b'?'], false) => vec![b"no".to_vec()],
        _ => vec![[&b"a:"[..], datagram].concat()],
    });
    let other = Server::at(ports::free(), |datagram| match datagram {
        [0, 0xff, b'?'] => vec![b"\x01".to_vec()],
        _ => vec![[&b"b:"[..], datagram].concat()],
    });
    let check = "[upstream.health]\nsend = \"hex:00ff3f\"\nexpect = \"hex:01\"\ninterval = \"50ms\"\n\
                 timeout = \"500ms\"\nrise = 1\nfall = 2";
    let gateway = configured(&site, &text(1, "", "", &[checked.address, other.address], check));
    let up = |address: SocketAddr| gateway.metric_with("sealane_server_up", &format!("server=\"{address}\""));
    assert!(eventually(|| up(checked.address) == Some(1.0) && up(other.address) == Some(1.0)));
    let client = Client::new(gateway.address);
    let first = client.ask("1");
    well.store(false, Ordering::SeqCst);
    assert!(eventually(|| up(checked.address) == Some(0.0)));
    assert!((0..6).all(|_| Client::new(gateway.address).ask("x") == "b:x"));
    assert_eq!(client.ask("2"), "b:2", "a session leaves a server that is down (it was {first})");
    well.store(true, Ordering::SeqCst);
    assert!(eventually(|| up(checked.address) == Some(1.0)));
    assert!(eventually(|| Client::new(gateway.address).ask("x") == "a:x"));
}

/// A service of the same machine says how the server is.
#[test]
fn a_check_may_ask_over_http_at_another_port() {
    let site = Site::new();
    let well = Arc::new(AtomicBool::new(false));
    let state = well.clone();
    let health = Backend::answering(move |_| match state.load(Ordering::SeqCst) {
        true => sealane_interop::backend::ok(b"well"),
        false => b"HTTP/1.1 503 Ill\r\nContent-Length: 0\r\n\r\n".to_vec(),
    });
    let server = Server::echo("s");
    let check = format!(
        "proxy_protocol = \"v2\"\n[upstream.health]\nport = {}\npath = \"/health\"\ninterval = \"50ms\"\nrise = 1\nfall = 1",
        health.address.port()
    );
    let gateway = relay(&site, 1, &server, &check);
    let up = || gateway.metric("sealane_server_up");
    assert!(eventually(|| up() == Some(0.0)));
    let client = Client::new(gateway.address);
    client.send("lost");
    let refused = || gateway.metric_with("sealane_udp_sessions_refused_total", "reason=\"no_server\"");
    assert!(eventually(|| refused() == Some(1.0)));
    well.store(true, Ordering::SeqCst);
    assert!(eventually(|| up() == Some(1.0)));
    client.ask_again("there");
    // Each datagram begins with a PROXY protocol header.
    assert!(server.seen().iter().all(|(_, datagram)| datagram.ends_with(b"there")));
}

#[test]
fn a_drained_server_keeps_its_sessions_and_gets_no_others() {
    let site = Site::new();
    let (first, second) = (Server::echo("a"), Server::echo("b"));
    let listen = ports::free();
    let running = operated(&site, 1, listen, &[first.address, second.address]);
    let clients: Vec<Client> = (0..4).map(|_| Client::new(listen)).collect();
    let before: Vec<String> = clients.iter().map(|client| client.ask("1")).collect();
    assert!(before.contains(&"a:1".to_owned()));
    let (name, socket) = (first.address.to_string(), running.socket.display().to_string());
    let said = gateway::run(["server", "u", &name, "--drain", "--socket", &socket]);
    assert!(said.status.success(), "{said:?}");
    assert!(eventually(|| (0..6).all(|_| Client::new(listen).ask("new") == "b:new")));
    let after: Vec<String> = clients.iter().map(|client| client.ask("1")).collect();
    assert_eq!(after, before);
    assert_eq!(first.sources("1").len(), before.iter().filter(|reply| *reply == "a:1").count());
}

/// A gateway with an admin socket.
fn operated(site: &Site, lanes: usize, listen: SocketAddr, servers: &[SocketAddr]) -> Operated {
    Operated::start(site, lanes, |admin| operated_text(admin, listen, servers), listen)
}

fn operated_text(admin: &str, listen: SocketAddr, servers: &[SocketAddr]) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("udp://{server}")).collect();
    format!(
        "{admin}[[listener]]\naddress = \"{listen}\"\nmode = \"udp\"\n[[host]]\nnames = [\"*\"]\n\
         passthrough = \"u\"\n[[upstream]]\nname = \"u\"\nservers = {servers:?}\n"
    )
}

#[test]
fn sessions_outlive_a_reload_as_long_as_their_listener_and_server_do() {
    let site = Site::new();
    let (first, second) = (Server::echo("a"), Server::echo("b"));
    let (listen, other) = (ports::free(), ports::free());
    let running = operated(&site, 2, listen, &[first.address]);
    let clients: Vec<Client> = (0..8).map(|_| Client::new(listen)).collect();
    assert!(clients.iter().all(|client| client.ask("1") == "a:1"));
    // Another server, and another listener.
    let both = operated_text(&running.admin_lines, listen, &[first.address, second.address]);
    let more = format!("address = [\"{listen}\", \"{other}\"]");
    running.write(&both.replace(&format!("address = \"{listen}\""), &more));
    order(&running.socket, "reload").expect("the file is good");
    assert!(clients.iter().all(|client| client.ask("1") == "a:1"));
    assert_eq!(first.sources("1").len(), 8, "their sockets are the same");
    assert!(eventually(|| Client::new(other).ask("new") == "b:new"), "the new server is used, too");
    // The server has gone: the next datagram of each client goes to the one that is left.
    running.write(&operated_text(&running.admin_lines, listen, &[second.address]));
    order(&running.socket, "reload").expect("the file is good");
    assert!(clients.iter().all(|client| eventually(|| client.ask_again("2") == "b:2")));
    let ended = || running.gateway.metric_with("sealane_udp_sessions_ended_total", "reason=\"reload\"");
    assert!(eventually(|| ended() >= Some(8.0)), "{:?}", ended());
    // The second listener has gone: its port is free.
    assert!(eventually(|| UdpSocket::bind(other).is_ok()));
}

#[test]
fn an_upgrade_hands_the_sockets_over() {
    let site = Site::new();
    let server = Server::echo("s");
    let listen = ports::free();
    let mut running = operated(&site, 2, listen, &[server.address]);
    let clients: Vec<Client> = (0..8).map(|_| Client::new(listen)).collect();
    assert!(clients.iter().all(|client| client.ask("1") == "s:1"));
    order(&running.socket, "upgrade").expect("the same program can be started again");
    let _other = Other::of(&running);
    // Sessions are new ones in the new process. No datagram is lost: they wait in the sockets.
    assert!(clients.iter().all(|client| client.ask("2") == "s:2"));
    assert_eq!(running.gateway.server.wait().code(), Some(0), "the first process ends by itself");
    assert!(clients.iter().all(|client| client.ask("3") == "s:3"));
}

/// What a server still has to say when the gateway is told to end reaches its client.
#[test]
fn replies_are_awaited_when_the_gateway_ends() {
    let site = Site::new();
    let (go_on, wait) = std::sync::mpsc::channel();
    let server = Server::at(ports::free(), move |datagram| {
        let _ = wait.recv();
        vec![datagram.to_vec()]
    });
    let listen = ports::free();
    let mut running = operated(&site, 1, listen, &[server.address]);
    let client = Client::new(listen);
    client.send("late");
    assert!(eventually(|| running.gateway.metric("sealane_udp_sessions_active") == Some(1.0)));
    order(&running.socket, "drain").expect("it may end");
    go_on.send(()).expect("the server waits");
    assert_eq!(client.receive(), "late");
    assert_eq!(running.gateway.server.wait().code(), Some(0));
}

#[test]
fn ipv6_clients_reach_servers_of_both_kinds() {
    let Ok(free) = UdpSocket::bind("[::1]:0") else { skip!("no IPv6 here") };
    let six = free.local_addr().expect("a bound socket has an address");
    drop(free);
    let site = Site::new();
    let (four, six) = (Server::echo("four"), Server::echo_at(six, "six"));
    for (server, reply) in [(&four, "four:x"), (&six, "six:x")] {
        let port = ports::free().port();
        let config = text(2, "", "", &[server.address], "").replace("@ADDRESS@", &format!("[::1]:{port}"));
        let _gateway = configured(&site, &config);
        let address = SocketAddr::new("::1".parse().expect("an address"), port);
        assert_eq!(Client::new(address).ask("x"), reply);
    }
}

/// At a wildcard, replies come from the address that the client has sent to.
#[test]
fn replies_leave_from_where_the_client_has_sent_to() {
    let site = Site::new();
    let server = Server::echo("s");
    let port = ports::free().port();
    let config = text(1, "", "", &[server.address], "").replace("@ADDRESS@", &format!("0.0.0.0:{port}"));
    let _gateway = configured(&site, &config);
    for last in 1..5u8 {
        // A connected socket takes nothing from another address.
        let client = Client::new(SocketAddr::from(([127, 0, 0, last], port)));
        assert_eq!(client.ask("x"), "s:x");
    }
}

/// One address and port of a client, and two addresses of the gateway.
#[test]
fn a_client_that_asks_two_addresses_gets_each_reply_from_the_one_that_it_asked() {
    let site = Site::new();
    let server = Server::echo("s");
    let port = ports::free().port();
    for listen in ["0.0.0.0", ""] {
        let config = text(1, "", "", &[server.address], "").replace("@ADDRESS@", &format!("{listen}:{port}"));
        let gateway = configured(&site, &config);
        let client = UdpSocket::bind("127.0.0.1:0").expect("a loopback port can be had");
        client.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout can be set");
        for round in 0..2 {
            for last in [1, 5, 9u8] {
                let asked = SocketAddr::from(([127, 0, 0, last], port));
                client.send_to(b"x", asked).expect("the kernel takes a datagram");
                let (_, from) = client.recv_from(&mut [0; 100]).expect("a reply comes");
                assert_eq!(from, asked, "{listen} {round}");
            }
        }
        assert_eq!(gateway.metric("sealane_udp_sessions_total"), Some(3.0));
    }
}

/// Sends a datagram with any source, as root may.
fn forged(from: SocketAddr, to: SocketAddr, data: &[u8]) -> std::io::Result<()> {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4 is tested") };
    let length = 8 + data.len() as u16;
    let mut packet = [&[0x45, 0][..], &(20 + length).to_be_bytes(), &[0, 1, 0, 0, 64, 17, 0, 0]].concat();
    packet.extend(source.octets());
    packet.extend(destination.octets());
    for number in [from.port(), to.port(), length, 0] {
        packet.extend(number.to_be_bytes());
    }
    packet.extend(data);
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW))?;
    sendto(&raw, &packet, SendFlags::empty(), &SocketAddr::new(to.ip(), 0))?;
    Ok(())
}

#[test]
fn datagrams_whose_replies_would_come_back_are_dropped() {
    if !rustix::process::geteuid().is_root() {
        skip!("only root can forge addresses");
    }
    let site = Site::new();
    for wildcard in [false, true] {
        let server = Server::echo("s");
        let port = ports::free().port();
        let listen = format!("{}:{port}", if wildcard { "0.0.0.0" } else { "127.0.0.1" });
        let gateway = configured(&site, &text(1, "", "", &[server.address], "").replace("@ADDRESS@", &listen));
        let own = SocketAddr::from(([127, 0, 0, 1], port));
        let sources =
            ["127.0.0.1:0", "255.255.255.255:5", "224.0.0.1:5"].map(|s| s.parse::<SocketAddr>().expect("an address"));
        let mut sent = 0;
        for source in sources.into_iter().chain([own]) {
            if let Err(e) = forged(source, own, b"forged") {
                skip!("no raw sockets here: {e}");
            }
            sent += 1;
        }
        // The kernel itself drops some of them; the last one comes.
        let client = Client::new(own);
        assert_eq!(client.ask("x"), "s:x");
        assert!(server.sources("forged").is_empty(), "{wildcard} {sent}");
        let dropped = gateway.metric_with("sealane_udp_datagrams_dropped_total", "reason=\"source\"");
        assert!(dropped >= Some(1.0), "{wildcard}: {dropped:?}");
        assert_eq!(gateway.metric("sealane_udp_sessions_total"), Some(1.0), "{wildcard}");
    }
}

/// Three replies at once where two are expected.
#[test]
fn no_more_replies_pass_than_are_expected() {
    let site = Site::new();
    let server = Server::at(ports::free(), |datagram| match datagram {
        b"q" => (0..5).map(|n| vec![b'0' + n]).collect(),
        _ => Vec::new(),
    });
    let gateway = relay(&site, 1, &server, "udp = { responses = 2 }");
    let client = Client::new(gateway.address);
    for n in 1..4 {
        assert_eq!((client.ask("q"), client.receive()), ("0".to_owned(), "1".to_owned()), "{n}");
        let complete = || gateway.metric_with("sealane_udp_sessions_ended_total", "reason=\"complete\"");
        assert!(eventually(|| complete() == Some(f64::from(n))));
    }
    let to_clients = gateway.metric_with("sealane_udp_datagrams_total", "to=\"client\"");
    assert_eq!(to_clients, Some(6.0));
}

/// Version 2 of the PROXY protocol: 12 bytes of signature, version and command, family and transport, lengths and addresses.
fn header(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4 is tested") };
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c".to_vec();
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    bytes
}

#[test]
fn each_datagram_tells_the_server_who_has_sent_it() {
    let site = Site::new();
    let server = Server::at(ports::free(), |_| vec![b"got it".to_vec()]);
    let gateway = relay(&site, 1, &server, "proxy_protocol = \"v2\"");
    let client = Client::new(gateway.address);
    let own = client.0.local_addr().expect("a bound socket has an address");
    for datagram in ["first", "", "third"] {
        assert_eq!(client.ask(datagram), "got it", "replies have no header");
    }
    let expected = header(own, gateway.address);
    let seen: Vec<Vec<u8>> = server.seen().into_iter().map(|(_, datagram)| datagram).collect();
    assert_eq!(seen, ["first", "", "third"].map(|datagram| [&expected[..], datagram.as_bytes()].concat()));
}

/// What a client hands to the kernel as one message, and the kernel gives to the gateway as one.
#[test]
fn trains_of_datagrams_arrive_as_the_datagrams_that_they_are() {
    let site = Site::new();
    let length = 1200;
    let sent = noise(length * 39 + 7, 5);
    for (upstream, has_header) in
        [("", false), ("proxy_protocol = \"v2\"", true), ("udp = { requests = 10, responses = 1 }", false)]
    {
        let server = Server::at(ports::free(), |_| vec![b"got it".to_vec()]);
        let gateway = relay(&site, 1, &server, upstream);
        let socket = Socket::connect(gateway.address, &Options::default()).expect("a socket can be had");
        let train = Transmit { remote: gateway.address, local: None, segment: length, ecn: 0, data: &sent };
        socket.send(&train).expect("the kernel takes a train");
        assert!(eventually(|| server.seen().len() == 40), "{upstream}: {}", server.seen().len());
        let header = if has_header { header(socket.address(), gateway.address) } else { Vec::new() };
        let mut got = BTreeMap::<usize, Vec<u8>>::new();
        for (n, (_, datagram)) in server.seen().into_iter().enumerate() {
            assert!(datagram.starts_with(&header), "datagram {n}");
            got.insert(n, datagram[header.len()..].to_vec());
        }
        assert!(got.values().flatten().copied().collect::<Vec<u8>>() == sent, "{upstream}");
        assert!(got.values().take(39).all(|datagram| datagram.len() == length));
        let sessions = if upstream.contains("requests") { 4.0 } else { 1.0 };
        assert_eq!(gateway.metric("sealane_udp_sessions_total"), Some(sessions));
        let replies = || gateway.metric_with("sealane_udp_datagrams_total", "to=\"client\"");
        assert!(eventually(|| replies() == Some(40.0)), "{:?}", replies());
    }
}

/// A handshake and requests over HTTP/3 with a server behind the relay, which the relay cannot read.
#[test]
fn quic_passes_through() {
    let site = Site::new();
    let body = noise(500_000, 3);
    let answer = sealane_interop::backend::ok(&body);
    let backend = Backend::answering(move |_| answer.clone());
    let behind = before(&site, [backend.url()]).lanes(2).listener("http3 = true").start();
    let gateway = configured(&site, &text(2, "", "", &[behind.address], ""));
    for _ in 0..4 {
        let mut client = H3Client::connect(gateway.address, &over_quic(behind.config(), false));
        let response = client.get("/");
        assert_eq!(response.status, 200);
        assert!(response.body == body);
        client.close();
    }
    assert_eq!(gateway.metric("sealane_udp_sessions_total"), Some(4.0));
    assert_eq!(gateway.metric("sealane_udp_datagrams_dropped_total"), Some(0.0));
    assert_eq!(behind.metric("sealane_quic_connections_total"), Some(4.0));
}

/// TCP and UDP at the same address, as for DNS.
#[test]
fn a_port_may_have_connections_and_datagrams() {
    let site = Site::new();
    let (server, backend) = (Server::echo("udp"), Backend::saying("tcp"));
    let config = text(1, "", "", &[server.address], "");
    let connections = format!(
        "[[listener]]\naddress = \"@ADDRESS@\"\nmode = \"tcp\"\n[[host]]\nnames = [\"*\"]\nlisteners = [\"@ADDRESS@\"]\n\
         passthrough = \"t\"\n[[upstream]]\nname = \"t\"\nservers = [\"tcp://{}\"]\n",
        backend.address
    );
    let gateway = configured(&site, &format!("{config}{connections}"));
    assert_eq!(Client::new(gateway.address).ask("x"), "udp:x");
    assert_eq!(gateway.plain_get("/", "").text(), "tcp");
}
