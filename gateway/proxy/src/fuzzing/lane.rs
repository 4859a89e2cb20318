//! A whole lane between a client and its servers, which send any bytes in pieces of any size, read or do not read, and end whenever
//! they want. There is no clock, so that no deadline passes.
//!
//! Whatever happens: nothing panics, the lane falls asleep again, each server gets well-formed requests of this client, the client gets
//! well-formed responses of these servers, no byte of a body is lost, added or changed, and nothing is left when all have gone.
//!
//! The input is a sequence of steps: a byte that says who does what, and for bytes that are sent a length and the bytes.

use super::fixtures::{lane, limits, listener, snapshot, upstream};
use super::frames;
use crate::accept::adopt_client;
use crate::client::state::ClientPhase;
use crate::conn::Conn;
use crate::counters::Count;
use crate::h2::frames::{HEADERS, SETTINGS};
use crate::h2::guard::PREFACE;
use crate::memory::Window;
use crate::service::Proxy;
use crate::snapshot::{Action, Listener, Snapshot, UpstreamHttp};
use crate::transport::Transport;
use crate::upstream::h2_connection::h2_upstream_begin;
use crate::upstream::phase::{Making, Purpose, Step, UpstreamConnection, UpstreamPhase};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair, sockopt,
};
use sealane_http::h1::{BodyDecoder, Limits, What, parse_request, parse_response};
use sealane_http::{BodyLength, Method, ParseError, RequestHead, ResponseHead};
use sealane_lane::{After, Context, Key, Published, Ready, Service};
use sealane_route::{NameMap, SiteMap};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Connections to servers that speak HTTP/1.1, all of them in the pool at first. No others can be made.
const SERVERS: usize = 3;
/// Steps of an input.
const STEPS: usize = 64;
/// Rounds in which a step may move bytes, and turns in which the lane must fall asleep.
const ROUNDS: usize = 1000;
/// How often a piece is sent in a step that sends many.
const MANY: usize = 100;
/// Small, so that a peer that does not read is noticed.
const SOCKET_BUFFER: usize = 4096;
/// What is written may be longer than what was read.
const ROOMY: Limits = Limits { head: 1 << 20, target: 1 << 16, fields: 1000, trailers: 1 << 20 };

/// The version of HTTP at one side of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Http {
    One,
    Two,
}

/// HTTP/1.1 on both sides.
pub fn lane_h1_h1(data: &[u8]) {
    run(data, Http::One, Http::One);
}

/// HTTP/1.1 with the client, HTTP/2 with the server.
pub fn lane_h1_h2(data: &[u8]) {
    run(data, Http::One, Http::Two);
}

/// HTTP/2 with the client, HTTP/1.1 with servers.
pub fn lane_h2_h1(data: &[u8]) {
    run(data, Http::Two, Http::One);
}

/// HTTP/2 on both sides.
pub fn lane_h2_h2(data: &[u8]) {
    run(data, Http::Two, Http::Two);
}

fn run(data: &[u8], client: Http, server: Http) {
    let mut stack = Stack::new(client, server);
    let mut rest = data;
    for _ in 0..STEPS {
        let Some((step, more)) = rest.split_first() else { break };
        rest = stack.step(*step, more);
        stack.settle();
    }
    stack.end();
    stack.check(client, server);
}

/// The other end of one of the lane's connections.
struct Peer {
    http: Http,
    /// The lane's connection.
    key: Key,
    /// `None` once the peer has closed it.
    socket: Option<OwnedFd>,
    reads: bool,
    sent: Vec<u8>,
    got: Vec<u8>,
}

impl Peer {
    fn new(http: Http, key: Key, socket: OwnedFd) -> Self {
        Self { http, key, socket: Some(socket), reads: true, sent: Vec::new(), got: Vec::new() }
    }

    /// Sends as much as the socket takes.
    fn send(&mut self, bytes: &[u8]) {
        let Some(socket) = &self.socket else { return };
        if let Ok(n) = send(socket, bytes, SendFlags::NOSIGNAL) {
            self.sent.extend_from_slice(&bytes[..n]);
        }
    }

    /// Takes what has come; says whether that was something.
    fn receive(&mut self, buffer: &mut [u8]) -> bool {
        let Some(socket) = self.socket.as_ref().filter(|_| self.reads) else { return false };
        let before = self.got.len();
        while let Ok((n @ 1.., _)) = recv(socket, &mut buffer[..], RecvFlags::empty()) {
            self.got.extend_from_slice(&buffer[..n]);
        }
        self.got.len() > before
    }

    /// The next piece that the input has for the peer, and what follows it. For HTTP/2 it is a frame, unless it is to be `raw`.
    fn piece<'d>(&self, input: &'d [u8], raw: bool) -> (Vec<u8>, &'d [u8]) {
        let Some((&length, rest)) = input.split_first() else { return (Vec::new(), input) };
        let take = |rest: &'d [u8]| rest.split_at(usize::from(length).min(rest.len()));
        match rest {
            [kind, flags, stream, rest @ ..] if self.http == Http::Two && !raw => {
                let (payload, next) = take(rest);
                let mut frame = vec![0, 0, payload.len() as u8, *kind, *flags, 0, 0, 0, *stream];
                frame.extend_from_slice(payload);
                (frame, next)
            }
            _ => {
                let (piece, next) = take(rest);
                (piece.to_vec(), next)
            }
        }
    }
}

struct Stack {
    proxy: Proxy,
    cx: Context,
    _published: Arc<Published<Snapshot>>,
    /// The client first, then the servers.
    peers: Vec<Peer>,
    buffer: Vec<u8>,
}

/// A listener that forwards all requests to the only upstream.
fn forwarding(h2c: bool) -> Listener {
    let mut hosts = NameMap::default();
    hosts.insert("*".parse().expect("a pattern"), 0).expect("the first one");
    let sites = Arc::new(SiteMap::new(&NameMap::default(), &hosts, [], |_, host| host));
    Listener { sites, actions: Arc::new([Action::Proxy { upstream: 0 }]), h2c, ..listener(1) }
}

/// The lane's end of a connection, and the other one.
fn socket_pair() -> (OwnedFd, OwnedFd) {
    let (ours, peer) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).expect("two descriptors");
    sockopt::set_socket_send_buffer_size(&ours, SOCKET_BUFFER).expect("a size that the kernel takes");
    (ours, peer)
}

impl Stack {
    fn new(client: Http, server: Http) -> Self {
        let mut group = upstream(1);
        group.http = if server == Http::Two { UpstreamHttp::Two } else { UpstreamHttp::One };
        group.keepalive = SERVERS;
        // Requests of HTTP/1.0 need not name a host.
        group.host_header = Some("server.example".into());
        // Nobody listens there.
        group.servers[0].socket = Some(Arc::from(Path::new("/nonexistent/socket")));
        let mut config = snapshot(limits(), vec![group]);
        config.listeners = vec![Arc::new(forwarding(client == Http::Two))];
        let published = Published::new(config);
        let mut cx = Context::new().expect("a descriptor");
        let (mut proxy, _) = lane(&published, &mut cx);

        let (ours, peer) = socket_pair();
        let listener = proxy.settings.listeners()[0].clone();
        let address = ([192, 0, 2, 1], 5).into();
        let key = adopt_client(&mut proxy, &mut cx, ours, listener, address, ClientPhase::Open, None);
        let mut peers = vec![Peer::new(client, key.expect("a client"), peer)];
        let upstream = proxy.settings.lane().upstreams[0].clone();
        for _ in 0..if server == Http::One { SERVERS } else { 1 } {
            let (ours, peer) = socket_pair();
            let phase = match server {
                Http::One => UpstreamPhase::Idle,
                Http::Two => {
                    let purpose = Purpose::ToShare { waiting: VecDeque::new(), window: Window::Wide };
                    let step = Step::Handshake;
                    let making = Making { step, began: 0, purpose, syn: None, early: false, refused: false };
                    UpstreamPhase::Making(Box::new(making))
                }
            };
            let conn = UpstreamConnection::new(Transport::new(ours), (upstream.clone(), 0), phase);
            let key = proxy.connections.insert(Conn::Upstream(Box::new(conn)));
            match server {
                Http::One => {
                    upstream.put_idle(0, key);
                    proxy.counters.count(Count::Pooled);
                }
                Http::Two => {
                    upstream.share(0, key);
                    h2_upstream_begin(&mut proxy, &mut cx, key);
                }
            }
            peers.push(Peer::new(server, key, peer));
        }
        Self { proxy, cx, _published: published, peers, buffer: vec![0; 1 << 16] }
    }

    /// One step; what is left of the input.
    fn step<'d>(&mut self, step: u8, input: &'d [u8]) -> &'d [u8] {
        let who = usize::from(step & 7) % self.peers.len();
        let peer = &mut self.peers[who];
        match step >> 3 & 7 {
            5 => {
                if let Some(socket) = &peer.socket {
                    // It fails where the lane has closed the connection.
                    let _ = shutdown(socket, Shutdown::Write);
                }
                input
            }
            6 => {
                peer.reads = !peer.reads;
                input
            }
            7 => {
                peer.socket = None;
                input
            }
            kind => {
                let (piece, rest) = peer.piece(input, kind == 4);
                if who == 0 && peer.http == Http::Two && peer.sent.is_empty() {
                    peer.send(PREFACE);
                }
                for _ in 0..if kind == 3 { MANY } else { 1 } {
                    peer.send(&piece);
                }
                rest
            }
        }
    }

    /// What the loop would see on a connection.
    fn readiness(&mut self, key: Key) -> Option<Ready> {
        let transport = self.proxy.connections.get_mut(key)?.transport()?;
        let mut polled = [PollFd::new(&transport.fd, PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
        let flags = polled[0].revents();
        let error = flags.intersects(PollFlags::ERR | PollFlags::HUP);
        Some(Ready {
            read: error || flags.intersects(PollFlags::IN | PollFlags::RDHUP),
            write: error || flags.contains(PollFlags::OUT),
            peer_closed: error || flags.contains(PollFlags::RDHUP),
            error,
        })
    }

    /// A turn of the loop with its events. Says whether a peer got something.
    fn round(&mut self) -> bool {
        for at in 0..self.peers.len() {
            let key = self.peers[at].key;
            if let Some(ready) = self.readiness(key) {
                self.proxy.ready(&mut self.cx, key.to_u64(), ready);
            }
        }
        let asleep = (0..ROUNDS).any(|_| self.proxy.turn(&mut self.cx) == After::Sleep);
        assert!(
            asleep,
            "a lane that never sleeps: later {}, work {}, shared {}, admission {}",
            self.proxy.exchanges.has_later(),
            self.proxy.exchanges.has_work(),
            self.proxy.connections.has_shared(),
            !self.proxy.admission.is_empty(),
        );
        let mut moved = false;
        for peer in &mut self.peers {
            moved |= peer.receive(&mut self.buffer);
        }
        moved
    }

    /// Goes on until nothing moves any more.
    fn settle(&mut self) {
        let ends = (0..ROUNDS).any(|_| !self.round());
        assert!(ends, "a lane that sends without end");
    }

    /// All peers go, the client first.
    fn end(&mut self) {
        for at in 0..self.peers.len() {
            self.peers[at].socket = None;
            self.settle();
        }
        for _ in 0..4 {
            self.round();
        }
        assert_eq!(self.proxy.exchanges.len(), 0, "a request is left, and nobody else");
    }

    fn check(&self, client: Http, server: Http) {
        let Some((from, servers)) = self.peers.split_first() else { return };
        let asked = match client {
            Http::One => Some(requests(&from.sent, &Limits::default(), false).0),
            Http::Two => None,
        };
        let bodies_sent = match client {
            Http::One => from.sent.len(),
            Http::Two => data_bytes(from.sent.get(PREFACE.len()..).unwrap_or_default()),
        };
        match server {
            Http::One => check_requests(servers, asked.as_deref(), bodies_sent),
            Http::Two => servers.iter().for_each(|peer| check_h2_server(&peer.got, bodies_sent)),
        }
        match (client, server) {
            (Http::One, Http::One) => {
                let all: Vec<Message> = servers.iter().flat_map(responses_of).collect();
                let is_from = |got: &Message| all.iter().any(|sent| got.comes_from(sent));
                check_responses(from, asked.as_deref().unwrap_or_default(), is_from);
            }
            (Http::One, Http::Two) => {
                let most: usize = servers.iter().map(|peer| data_bytes(&peer.sent)).sum();
                check_responses(from, asked.as_deref().unwrap_or_default(), |got| got.body.len() <= most);
            }
            (Http::Two, _) => check_h2_client(from, servers),
        }
    }
}

/// A message of HTTP/1.1, as far as it has come.
#[derive(Debug)]
struct Message {
    /// Method and target, or the status.
    start: String,
    method: Method,
    status: u16,
    body: Vec<u8>,
    is_whole: bool,
    /// Only the end of the connection says where the body ends: who gets it does not see whether it is whole.
    until_close: bool,
}

impl Message {
    /// Whether this can be what the gateway has made of `sent`.
    fn comes_from(&self, sent: &Message) -> bool {
        let same_body = match self.is_whole && !self.until_close {
            true => sent.is_whole && self.body == sent.body,
            false => sent.body.starts_with(&self.body),
        };
        self.start == sent.start && same_body
    }
}

/// A body at the start of `bytes`: how many bytes it has taken, its own, and whether it is whole.
fn body(bytes: &[u8], length: BodyLength, limits: &Limits) -> Result<(usize, Vec<u8>, bool), ParseError> {
    let mut decoder = BodyDecoder::new(length, limits);
    let (mut at, mut body) = (0, Vec::new());
    loop {
        let piece = decoder.decode(&bytes[at..])?;
        at += piece.consumed;
        match piece.what {
            What::Data(data) => body.extend_from_slice(data),
            // The connection's end may be the body's.
            What::NeedMore => return Ok((at, body, decoder.eof().is_ok())),
            What::Trailers | What::End => return Ok((at, body, true)),
        }
    }
}

/// The requests of a connection, and why there are no more if an error ends it. `until_switch`: what follows a request that switches
/// protocols is no request.
fn requests(bytes: &[u8], limits: &Limits, until_switch: bool) -> (Vec<Message>, Option<ParseError>) {
    let (mut all, mut rest, mut head) = (Vec::new(), bytes, RequestHead::new());
    loop {
        let info = match parse_request(rest, limits, &mut head) {
            Ok(Some(info)) => info,
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error)),
        };
        let start = [head.method_name(), head.target()].map(|part| part.escape_ascii().to_string()).join(" ");
        let method = head.method();
        rest = &rest[info.consumed..];
        let (used, body, is_whole) = match body(rest, info.body, limits) {
            Ok(read) => read,
            Err(error) => {
                // What came before the error may have been passed on.
                let body = decoded(rest, info.body, limits);
                all.push(Message { start, method, status: 0, body, is_whole: false, until_close: false });
                return (all, Some(error));
            }
        };
        rest = &rest[used..];
        all.push(Message { start, method, status: 0, body, is_whole, until_close: false });
        if !is_whole || !info.keep_alive || until_switch && info.upgrade {
            return (all, None);
        }
    }
}

/// The bytes of a body before the error that is in it.
fn decoded(bytes: &[u8], length: BodyLength, limits: &Limits) -> Vec<u8> {
    let mut decoder = BodyDecoder::new(length, limits);
    let (mut at, mut body) = (0, Vec::new());
    while let Ok(piece) = decoder.decode(&bytes[at..]) {
        at += piece.consumed;
        match piece.what {
            What::Data(data) => body.extend_from_slice(data),
            What::NeedMore | What::Trailers | What::End => break,
        }
    }
    body
}

/// The final responses of a connection to requests with these methods, and why there are no more if an error ends it. Also what follows
/// a response that is the last one.
fn responses<'d>(
    bytes: &'d [u8],
    methods: &[Method],
    limits: &Limits,
) -> (Vec<Message>, Option<ParseError>, Option<&'d [u8]>) {
    let (mut all, mut rest, mut head) = (Vec::new(), bytes, ResponseHead::new());
    loop {
        let method = methods.get(all.len()).copied().unwrap_or_default();
        let info = match parse_response(rest, limits, method, &mut head) {
            Ok(Some(info)) => info,
            Ok(None) => return (all, None, None),
            Err(error) => return (all, Some(error), None),
        };
        rest = &rest[info.consumed..];
        // What follows is another protocol's.
        if info.upgrade {
            return (all, None, None);
        }
        if head.status < 200 {
            continue;
        }
        let (start, status) = (head.status.to_string(), head.status);
        let until_close = info.body == BodyLength::UntilClose;
        let (used, body, is_whole) = match body(rest, info.body, limits) {
            Ok(read) => read,
            Err(error) => {
                let body = decoded(rest, info.body, limits);
                all.push(Message { start, method, status, body, is_whole: false, until_close });
                return (all, Some(error), None);
            }
        };
        rest = &rest[used..];
        all.push(Message { start, method, status, body, is_whole, until_close });
        if !is_whole {
            return (all, None, None);
        }
        if !info.keep_alive {
            return (all, None, Some(rest));
        }
    }
}

/// Servers got nothing but requests, of those that the client has sent if these are known.
fn check_requests(servers: &[Peer], asked: Option<&[Message]>, bodies_sent: usize) {
    let mut bodies = 0;
    for server in servers {
        let (got, error) = requests(&server.got, &ROOMY, true);
        assert_eq!(error, None, "a server got {}", server.got.escape_ascii());
        for request in &got {
            bodies += request.body.len();
            if let Some(asked) = asked {
                assert!(asked.iter().any(|sent| request.comes_from(sent)), "nobody has sent {request:?}: {asked:?}");
            }
        }
    }
    assert!(bodies <= bodies_sent * servers.len(), "{bodies} bytes of bodies of {bodies_sent}");
}

/// What a server has sent, as responses to what it has got.
fn responses_of(server: &Peer) -> Vec<Message> {
    // A request to switch protocols may be refused, and others follow.
    let methods: Vec<Method> = requests(&server.got, &ROOMY, false).0.iter().map(|request| request.method).collect();
    responses(&server.sent, &methods, &Limits::default()).0
}

/// The client got nothing but responses, and those without an error are a server's.
fn check_responses(client: &Peer, asked: &[Message], is_from_server: impl Fn(&Message) -> bool) {
    let methods: Vec<Method> = asked.iter().map(|request| request.method).collect();
    let (got, error, behind) = responses(&client.got, &methods, &ROOMY);
    assert_eq!(error, None, "the client got {}", client.got.escape_ascii());
    assert!(behind.is_none_or(<[u8]>::is_empty), "behind the last response: {}", client.got.escape_ascii());
    for response in got.iter().filter(|response| response.status < 400) {
        assert!(is_from_server(response), "no server has sent {response:?}");
    }
}

/// Bytes of bodies in frames of HTTP/2, those of a frame that is not whole included.
fn data_bytes(bytes: &[u8]) -> usize {
    frames(bytes).iter().filter(|frame| frame.kind == 0).map(|frame| frame.payload.len()).sum()
}

/// A server over HTTP/2 got the preface, SETTINGS first, and each stream once in their order.
fn check_h2_server(got: &[u8], bodies_sent: usize) {
    let (preface, rest) = got.split_at(got.len().min(PREFACE.len()));
    assert!(PREFACE.starts_with(preface), "{}", got.escape_ascii());
    let frames = frames(rest);
    assert!(frames.first().is_none_or(|frame| frame.kind == SETTINGS && frame.stream == 0));
    let mut last = 0;
    for frame in &frames {
        match frame.kind {
            HEADERS => {
                assert!(frame.stream % 2 == 1, "stream {} is a server's", frame.stream);
                last = last.max(frame.stream);
            }
            0 => assert!(frame.stream <= last, "DATA before the HEADERS of stream {}", frame.stream),
            _ => {}
        }
    }
    assert!(data_bytes(rest) <= bodies_sent, "{} bytes of bodies of {bodies_sent}", data_bytes(rest));
}

/// The client got SETTINGS first, frames of streams that it has opened, and no more bytes of bodies than the servers and the gateway's own
/// short responses have.
fn check_h2_client(client: &Peer, servers: &[Peer]) {
    let got = frames(&client.got);
    assert!(got.first().is_none_or(|frame| frame.kind == SETTINGS && frame.stream == 0));
    let sent = frames(client.sent.get(PREFACE.len()..).unwrap_or_default());
    let mut heads = 0;
    for frame in got.iter().filter(|frame| matches!(frame.kind, 0 | HEADERS)) {
        let is_open = sent.iter().any(|asked| asked.kind == HEADERS && asked.stream == frame.stream);
        assert!(is_open, "a response on stream {}", frame.stream);
        heads += usize::from(frame.kind == HEADERS);
    }
    let most: usize = servers.iter().map(|server| server.sent.len()).sum();
    assert!(data_bytes(&client.got) <= most + heads * 4096, "{} bytes of bodies of {most}", data_bytes(&client.got));
}
