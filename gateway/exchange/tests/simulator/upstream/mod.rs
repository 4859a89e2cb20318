//! Scripted upstream servers: they read requests as strictly as the real codec does, and do as their script says.

mod respond;

use crate::net::{Code, Item, Wake, Way, World, check_pattern};
use crate::script::{Serve, When, Wish, serve};
use crate::sender::{Framing, Sender, State};
use sealane_exchange::deadlines::Millis;
use sealane_http::h1::{BodyDecoder, ConnectionOption, Limits, What, encode_response, parse_request};
use sealane_http::{BodyLength, Fields, Known, RequestHead, ResponseHead, Version};
use std::collections::BTreeMap;

struct Conn {
    version: u8,
    inbuf: Vec<u8>,
    decoder: BodyDecoder,
    attempt: Option<usize>,
    serve: Serve,
    upgrade: bool,
    raw: bool,
    /// It is a connection that is relayed.
    relay: bool,
    begun: bool,
    ready_at: Millis,
    paused_until: Millis,
    closes_at: Millis,
    sender: Option<Sender>,
    over: bool,
}

#[derive(Default)]
pub struct Servers {
    conns: BTreeMap<usize, Conn>,
}

impl Servers {
    /// A connection, or a stream.
    pub fn accept(&mut self, w: &mut World, link: usize) {
        self.open(w, link);
    }

    /// A connection that is relayed for this request.
    pub fn accept_relay(&mut self, w: &mut World, link: usize, id: usize) {
        let conn = self.open(w, link);
        conn.serve = serve(&mut w.random, false, true, false);
        let a = w.record.attempt(id, false, conn.serve.clone());
        w.say(|| format!("link {link}: attempt {a} of relay {id}: {:?}", conn.serve));
        // There is no head: whatever the client gets is from here.
        w.record.asked[id].finals.push((0, Some(a)));
        w.record.attempts[a].accepted = true;
        (conn.attempt, conn.raw, conn.relay) = (Some(a), true, true);
    }

    fn open(&mut self, w: &mut World, link: usize) -> &mut Conn {
        let conn = Conn {
            version: w.links[link].version,
            inbuf: Vec::new(),
            decoder: BodyDecoder::new(BodyLength::None, &Limits::default()),
            attempt: None,
            serve: serve(&mut w.random, false, false, false),
            upgrade: false,
            raw: false,
            relay: false,
            begun: false,
            ready_at: 0,
            paused_until: 0,
            closes_at: 0,
            sender: None,
            over: false,
        };
        self.conns.entry(link).or_insert(conn)
    }

    pub fn step(&mut self, w: &mut World, link: usize) {
        let Some(conn) = self.conns.get_mut(&link) else { return };
        conn.read(w, link);
        conn.respond(w, link);
        // It may have waited for its response's end.
        conn.read(w, link);
        conn.respond(w, link);
    }
}

impl Conn {
    fn read(&mut self, w: &mut World, link: usize) {
        loop {
            if w.now < self.paused_until && !self.over {
                return;
            }
            if let Some(a) = self.attempt {
                let attempt = &w.record.attempts[a];
                if self.serve.read_pauses.first().is_some_and(|p| attempt.got >= p.0 && !attempt.whole) {
                    let time = self.serve.read_pauses.remove(0).1;
                    w.say(|| format!("link {link}: the server does not read for {time} ms"));
                    self.paused_until = w.now + time;
                    w.slow(link, w.now, self.paused_until);
                    w.at(self.paused_until, Wake::Peer(link));
                    return;
                }
                if attempt.whole && !self.raw && self.version == 1 && !w.has_reset(link, Way::Up) && !self.over {
                    return;
                }
            }
            let most = w.random.pick(&[50, 5_000, 30_000, 30_000]);
            let Some(item) = w.take(link, Way::Up, most) else { return };
            match item {
                Item::Reset(_) => {
                    self.over = true;
                    w.reset(link, Way::Down, Code::Cancel);
                }
                _ if self.over => {}
                Item::Bytes(bytes) if self.version == 1 => {
                    self.inbuf.extend_from_slice(&bytes);
                    self.parse(w, link);
                }
                Item::Bytes(bytes) => self.data(w, &bytes),
                Item::Request(head, length, websocket) => self.begin(w, link, &head, length, websocket),
                Item::Trailers(fields) => self.whole(w, &fields),
                Item::End if self.raw || self.version > 1 => self.whole(w, &Fields::new()),
                Item::End => {
                    // The gateway closes a kept connection, or ends a request short.
                    self.over = true;
                    w.reset(link, Way::Down, Code::Cancel);
                }
                Item::Stop => self.over = true,
                Item::Response(..) => panic!("a response for a server"),
            }
        }
    }

    fn parse(&mut self, w: &mut World, link: usize) {
        while !self.inbuf.is_empty() && !self.over {
            let input = std::mem::take(&mut self.inbuf);
            let Some(a) = self.attempt else {
                let mut head = RequestHead::new();
                let Some(info) = parse_request(&input, &Limits::default(), &mut head).expect("a request") else {
                    self.inbuf = input;
                    return;
                };
                self.inbuf = input[info.consumed..].to_vec();
                self.decoder.reset(info.body);
                self.begin(w, link, &head, info.body, info.upgrade);
                continue;
            };
            if self.raw {
                self.data(w, &input);
                continue;
            }
            if w.record.attempts[a].whole {
                // The next request waits.
                self.inbuf = input;
                return;
            }
            let piece = self.decoder.decode(&input).expect("a body");
            self.inbuf = input[piece.consumed..].to_vec();
            match piece.what {
                What::Data(data) => self.data(w, data),
                What::NeedMore => return,
                What::Trailers | What::End => {}
            }
            if self.decoder.is_done() {
                let fields = std::mem::take(self.decoder.trailers_mut());
                self.whole(w, &fields);
            }
        }
    }

    fn begin(&mut self, w: &mut World, link: usize, head: &RequestHead, length: BodyLength, upgrade: bool) {
        let id = head.fields.get_named(b"X-Id").expect("an id");
        let id: usize = std::str::from_utf8(id).unwrap().parse().unwrap();
        let early = head.fields.contains(Known::EarlyData);
        let tunnel = upgrade || head.method() == sealane_http::Method::Connect;
        let call = head.fields.contains(Known::ContentType);
        self.serve = serve(&mut w.random, early, tunnel, call);
        let a = w.record.attempt(id, early, self.serve.clone());
        w.say(|| {
            format!("link {link}: attempt {a} of request {id}{}: {:?}", if early { ", early" } else { "" }, self.serve)
        });
        (self.attempt, self.upgrade, self.raw, self.begun, self.sender) = (Some(a), upgrade, false, false, None);
        let declared = if let BodyLength::Known(n) = length { Some(n) } else { None };
        w.record.attempts[a].declared = declared;
        if self.version == 1 && length.is_empty() || tunnel && length == BodyLength::None {
            w.record.attempts[a].whole = true;
        }
        if tunnel && self.serve.when != When::Head {
            self.serve.when = When::Head;
        }
        if self.serve.refuses {
            self.over = true;
            w.links[link].faulty = true;
            w.record.attempts[a].processed = self.version == 1;
            if self.version == 1 && w.random.one_in(2) && !w.pipe(link, Way::Down).ended {
                w.send(link, Way::Down, Item::End);
            } else {
                let code = if self.version == 1 { Code::Internal } else { Code::Refused };
                w.reset(link, Way::Down, code);
            }
        } else if head.fields.contains(Known::Expect) && w.random.one_in(2) {
            self.send_head(w, link, 100, BodyLength::None, false);
        }
    }

    fn data(&mut self, w: &mut World, data: &[u8]) {
        let Some(a) = self.attempt else { panic!("a body without a request") };
        let attempt = &mut w.record.attempts[a];
        assert!(self.raw || !attempt.whole, "attempt {a}: bytes after the end of a request");
        check_pattern(2 * attempt.request, attempt.got, data, "the server");
        attempt.got += data.len();
    }

    fn whole(&mut self, w: &mut World, trailers: &Fields) {
        let Some(a) = self.attempt else { panic!("an end without a request") };
        w.say(|| format!("attempt {a}: the request is complete"));
        w.record.request_complete(a, trailers, self.raw);
    }
}
