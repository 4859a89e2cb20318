//! Scripted clients: they send requests, and read responses as strictly as the real codec does.

mod conn;

use crate::net::{Code, FOREVER, Item, Wake, Way, World, check_pattern};
use crate::record::Outcome;
use crate::script::{Ask, Settings, Wish};
use crate::sender::{Framing, Sender, State};
use sealane_exchange::deadlines::Millis;
use sealane_http::h1::{BodyDecoder, ConnectionOption, Limits, What, encode_request, parse_response};
use sealane_http::{BodyLength, Fields, Known, Method, RequestHead, ResponseHead};
use std::collections::{BTreeMap, VecDeque};

/// How long a client waits for 100 before it sends a body.
const EXPECTS: Millis = 300;

struct Conn {
    version: u8,
    sender: Option<(usize, Sender)>,
    /// Requests whose responses are not complete.
    waiting: VecDeque<usize>,
    inbuf: Vec<u8>,
    decoder: BodyDecoder,
    answered: bool,
    until_close: bool,
    tunnel: bool,
    /// It is a connection that is relayed.
    relay: bool,
    /// When the client cancels the request, or resets the connection.
    cancels_at: Millis,
    keep: bool,
    paused_until: Millis,
    over: bool,
    closes_at: Millis,
    used: bool,
}

pub struct Client {
    settings: Settings,
    conns: BTreeMap<usize, Conn>,
    todo: VecDeque<usize>,
}

fn head(ask: &Ask, id: usize) -> RequestHead {
    let mut head = RequestHead::new();
    let (method, target): (&[u8], &[u8]) = match ask.wish {
        Wish::Get | Wish::WebSocket => (b"GET", b"/"),
        Wish::Head => (b"HEAD", b"/"),
        Wish::Post | Wish::Call => (b"POST", b"/"),
        Wish::Put => (b"PUT", b"/"),
        Wish::Connect => (b"CONNECT", b"a:443"),
        Wish::Relay => panic!("a relayed connection has no head"),
    };
    head.set_method(method).unwrap();
    head.set_target(target).unwrap();
    head.set_authority(if ask.wish == Wish::Connect { b"a:443" } else { b"a" }).unwrap();
    head.fields.push(b"X-Id", id.to_string().as_bytes()).unwrap();
    if ask.wish == Wish::Call {
        head.fields.push(b"Content-Type", b"application/grpc").unwrap();
    }
    if ask.wish == Wish::WebSocket {
        head.fields.push(b"Upgrade", b"websocket").unwrap();
    }
    if ask.expect && ask.has_body() {
        head.fields.push(b"Expect", b"100-continue").unwrap();
    }
    head
}

impl Client {
    /// These are the requests that are not relayed connections.
    pub fn new(settings: Settings, requests: VecDeque<usize>) -> Self {
        Self { settings, conns: BTreeMap::new(), todo: requests }
    }

    /// A new connection (HTTP/1.1), or a new stream.
    pub fn start(&mut self, w: &mut World) -> Option<usize> {
        if self.todo.is_empty() {
            return None;
        }
        let version = self.settings.versions.0;
        Some(self.open(w, version))
    }

    /// A new connection that is relayed.
    pub fn start_relay(&mut self, w: &mut World, id: usize) -> usize {
        let link = self.open(w, 1);
        let conn = self.conns.get_mut(&link).expect("a connection");
        conn.begin_relay(w, link, id);
        link
    }

    fn open(&mut self, w: &mut World, version: u8) -> usize {
        let link = w.open(version, true, 0);
        let decoder = BodyDecoder::new(BodyLength::None, &Limits::default());
        let conn = Conn {
            version,
            sender: None,
            waiting: VecDeque::new(),
            inbuf: Vec::new(),
            decoder,
            answered: false,
            until_close: false,
            tunnel: false,
            relay: false,
            cancels_at: FOREVER,
            keep: true,
            paused_until: 0,
            over: false,
            closes_at: 0,
            used: false,
        };
        self.conns.insert(link, conn);
        link
    }

    /// Goes on with a connection.
    pub fn step(&mut self, w: &mut World, link: usize) {
        let due = |conn: &&mut Conn| !conn.over && !conn.waiting.is_empty() && w.now >= conn.cancels_at;
        if let Some(conn) = self.conns.get_mut(&link).filter(due) {
            w.say(|| format!("link {link}: the client cancels {:?}", conn.waiting));
            w.reset(link, Way::Up, Code::Cancel);
            if conn.version == 3 {
                w.stop(link, Way::Down);
            }
            return self.gone(w, link);
        }
        self.send(w, link);
        self.read(w, link);
        self.send(w, link);
    }

    fn send(&mut self, w: &mut World, link: usize) {
        loop {
            let Some(conn) = self.conns.get_mut(&link) else { return };
            if conn.over {
                return;
            }
            if let Some((id, sender)) = &mut conn.sender {
                let id = *id;
                sender.pump(w);
                w.record.asked[id].sent = sender.at;
                let whole = sender.framing == Framing::Counted && sender.at == sender.total && sender.out.is_empty();
                let raw = sender.framing == Framing::Raw || conn.tunnel;
                w.record.asked[id].sent_whole |= sender.state == State::Sent || whole;
                if sender.state == State::Failed {
                    conn.keep = false;
                    // It can still read, or it has gone.
                    let deaf = w.pipe(link, Way::Down).stopped;
                    if deaf || sender.course.fault.is_some_and(|f| f.1 == crate::script::Fault::Kill) {
                        return self.gone(w, link);
                    }
                    if raw {
                        w.slow(link, w.now, FOREVER);
                    }
                }
                if sender.state == State::Sending {
                    return;
                }
                conn.sender = None;
                // Of a relayed connection both directions have ended.
                conn.over = conn.relay && conn.waiting.is_empty();
                continue;
            }
            let first = conn.waiting.is_empty();
            if conn.relay || !conn.keep || !first && (conn.version > 1 || !self.settings.pipelined) {
                return;
            }
            if !first && conn.waiting.iter().any(|id| w.record.asked[*id].ask.is_tunnel()) {
                return;
            }
            let Some(id) = self.todo.pop_front() else {
                if first && conn.version == 1 && conn.closes_at == 0 {
                    // It closes sooner or later, or leaves that to the gateway.
                    conn.closes_at = w.now + w.random.pick(&[1, 500, FOREVER]);
                    w.at(conn.closes_at, Wake::Peer(link));
                } else if first && conn.version == 1 && conn.closes_at <= w.now {
                    conn.over = true;
                    if w.random.one_in(2) {
                        w.send(link, Way::Up, Item::End)
                    } else {
                        w.reset(link, Way::Up, Code::Cancel)
                    }
                }
                return;
            };
            conn.begin(w, link, id);
            if conn.version > 1 {
                conn.keep = false;
            }
        }
    }

    /// The client goes away.
    fn gone(&mut self, w: &mut World, link: usize) {
        let Some(conn) = self.conns.get_mut(&link) else { return };
        conn.over = true;
        let relay = conn.relay;
        for id in std::mem::take(&mut conn.waiting) {
            w.record.end(id, Outcome::Left);
        }
        if !relay {
            self.next_connection(w);
        }
    }

    fn next_connection(&mut self, w: &mut World) {
        if let (1, Some(next)) = (self.settings.versions.0, self.todo.front()) {
            w.at(w.now + 10, Wake::Start(*next));
        }
    }

    /// No response comes any more.
    fn cut(&mut self, w: &mut World, link: usize) {
        let Some(conn) = self.conns.get_mut(&link) else { return };
        conn.over = true;
        w.say(|| format!("link {link}: the client sees its connection cut, and waits for {:?}", conn.waiting));
        let relay = conn.relay;
        for id in std::mem::take(&mut conn.waiting) {
            w.record.end(id, Outcome::Cut);
        }
        w.reset(link, Way::Up, Code::Cancel);
        if !relay {
            self.next_connection(w);
        }
    }

    fn read(&mut self, w: &mut World, link: usize) {
        loop {
            let Some(conn) = self.conns.get_mut(&link) else { return };
            if conn.over || w.now < conn.paused_until {
                return;
            }
            if let Some(&id) = conn.waiting.front() {
                let asked = &mut w.record.asked[id];
                let started = conn.answered && asked.outcome.is_none();
                if started && asked.ask.leaves.is_some_and(|at| asked.got >= at) {
                    w.say(|| format!("link {link}: the client leaves request {id}"));
                    w.reset(link, Way::Up, Code::Cancel);
                    if conn.version == 3 {
                        w.stop(link, Way::Down);
                    }
                    return self.gone(w, link);
                }
                if started && asked.ask.read_pauses.first().is_some_and(|p| asked.got >= p.0) {
                    let time = asked.ask.read_pauses.remove(0).1;
                    conn.paused_until = w.now + time;
                    w.say(|| format!("link {link}: the client does not read for {time} ms"));
                    w.slow(link, w.now, conn.paused_until);
                    w.at(conn.paused_until, Wake::Peer(link));
                    return;
                }
            }
            let most = w.random.pick(&[50, 5_000, 30_000, 30_000]);
            let Some(item) = w.take(link, Way::Down, most) else { return };
            let mut ended = false;
            match item {
                Item::Bytes(bytes) if conn.relay => conn.data(w, &bytes),
                Item::End if conn.relay && !conn.waiting.is_empty() => {
                    conn.complete(w, link, &Fields::new());
                    // What it still has to send goes on.
                    conn.over = conn.sender.is_none();
                }
                Item::Bytes(bytes) if conn.version == 1 => {
                    conn.inbuf.extend_from_slice(&bytes);
                    ended = conn.parse(w, link);
                }
                Item::Bytes(bytes) => conn.data(w, &bytes),
                Item::Response(head, _) => {
                    let opens = conn.tunnel_opens(w, &head, false);
                    conn.head(w, link, &head, opens);
                }
                Item::Trailers(fields) => ended = conn.complete(w, link, &fields),
                Item::End if conn.version > 1 => ended = conn.complete(w, link, &Fields::new()),
                Item::End if conn.answered && (conn.until_close || conn.tunnel) => {
                    conn.keep = false;
                    ended = conn.complete(w, link, &Fields::new());
                }
                Item::End | Item::Reset(_) => return self.cut(w, link),
                // The gateway wants no more of the request.
                Item::Stop => conn.sender = None,
                Item::Request(..) => panic!("a request for a client"),
            }
            let Some(conn) = self.conns.get_mut(&link) else { return };
            if ended && !conn.keep {
                conn.over = conn.version > 1 || conn.waiting.is_empty();
                if conn.over {
                    if conn.version == 1 && conn.sender.is_none() && w.random.one_in(2) && !w.pipe(link, Way::Up).ended
                    {
                        w.send(link, Way::Up, Item::End);
                    } else if conn.version == 1 || conn.sender.is_some() {
                        w.reset(link, Way::Up, Code::NoError);
                    }
                    self.next_connection(w);
                }
            }
        }
    }
}
