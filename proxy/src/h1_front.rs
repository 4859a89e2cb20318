//! HTTP/1.1 towards clients: bytes to requests, responses to bytes.

use crate::conn::{Conn, FrontPhase};
use crate::exchange::Exchange;
use crate::scratch::{HEAD_READ, READ_SIZE, keep_rest};
use crate::service::Proxy;
use crate::sides::{ClientSide, Later};
use sealane_exchange::Phase;
use sealane_http::h1::{
    ConnectionOption, RequestInfo, What, encode_chunk_header, encode_last_chunk, encode_response, parse_request,
};
use sealane_http::{BodyLength, Fields, ParseError, Version};
use sealane_lane::{Context, Key};

/// The source of requests.
impl Proxy {
    /// Consumes plaintext, the connection's own rest first. True if the connection is over.
    pub(crate) fn take_plain(&mut self, cx: &mut Context, key: Key, input: &[u8]) -> bool {
        let Some(front) = self.front(key) else { return true };
        if front.inbuf.is_empty() {
            if input.is_empty() {
                return false;
            }
            let used = self.consume_front(cx, key, input);
            let Some(front) = self.front(key) else { return true };
            if used < input.len() {
                front.inbuf.extend_from_slice(&input[used..]);
            }
            return false;
        }
        // Half a head: only an LF can make it whole.
        let waiting = front.in_head && front.exchange.is_none();
        front.inbuf.extend_from_slice(input);
        let head_limit = self.lane.snapshot.limits.http.head;
        let Some(front) = self.front(key) else { return true };
        if waiting && memchr::memchr(b'\n', input).is_none() && front.inbuf.len() < head_limit {
            return false;
        }
        let mut inbuf = std::mem::take(&mut front.inbuf);
        let used = self.consume_front(cx, key, &inbuf);
        keep_rest(&mut inbuf, used);
        let Some(front) = self.front(key) else { return true };
        front.inbuf = inbuf;
        false
    }

    /// Whether more bytes of this client could be used now.
    pub(crate) fn front_wants(&mut self, key: Key) -> bool {
        let Self { conns, exchanges, .. } = self;
        let Some(Conn::Front(front)) = conns.get(key) else { return false };
        if front.phase != FrontPhase::Open {
            return false;
        }
        if let Some(h2) = &front.h2 {
            return h2.is_drained();
        }
        let Some(exchange) = front.exchange else { return !front.wire.is_backed_up() };
        if front.wire.is_handshaking() {
            return front.inbuf.len() < crate::wire::HIGH_WATER;
        }
        exchanges.get(exchange).is_some_and(|x| match x.machine.request() {
            Phase::Streaming => !x.up.blocked,
            Phase::Draining => true,
            Phase::Awaiting | Phase::Complete => false,
        })
    }

    /// How many bytes to read from a client at once; 0: none, and the connection goes on when there is room for them.
    pub(crate) fn front_read_size(&mut self, cx: &Context, key: Key) -> usize {
        let Some(Conn::Front(front)) = self.conns.get(key) else { return 0 };
        match front.exchange {
            _ if front.h2.is_some() || front.wire.is_handshaking() => READ_SIZE,
            None => HEAD_READ,
            Some(exchange) => self.up_read_size(cx, exchange),
        }
    }

    /// Takes as much as can be used of a client's plaintext; returns how much.
    fn consume_front(&mut self, cx: &mut Context, key: Key, input: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return input.len() };
            if front.phase != FrontPhase::Open {
                return input.len();
            }
            let rest = &input[used..];
            match front.exchange {
                None => {
                    // A client that does not read its responses gets no more of them.
                    if rest.is_empty() || front.wire.is_backed_up() {
                        return used;
                    }
                    let mut x = self.spare.pop().unwrap_or_else(|| Box::new(Exchange::new(ClientSide::H1(key))));
                    match parse_request(rest, &self.lane.snapshot.limits.http, &mut x.request) {
                        Ok(Some(info)) => {
                            used += info.consumed;
                            front.in_head = false;
                            self.request_arrived(cx, key, x, info);
                        }
                        Ok(None) => {
                            if !front.in_head {
                                front.in_head = true;
                                front.deadline.after(cx, key, self.lane.snapshot.limits.header_timeout);
                            }
                            self.spare.push(x);
                            return used;
                        }
                        Err(e) => {
                            self.bad_request(cx, key, x, e);
                            return input.len();
                        }
                    }
                }
                Some(exchange) => match self.consume_body(cx, exchange, rest) {
                    Some(n) => {
                        used += n;
                        // The exchange may be over, and the next request may be here.
                        let same = self.front(key).is_some_and(|f| f.exchange == Some(exchange));
                        if same {
                            return used;
                        }
                    }
                    None => return input.len(),
                },
            }
        }
    }

    fn request_arrived(&mut self, cx: &mut Context, key: Key, mut x: Box<Exchange>, info: RequestInfo) {
        let early = {
            let Some(front) = self.front(key) else { return };
            front.client.requests = front.client.requests.saturating_add(1);
            front.early_seen && front.wire.is_handshaking()
        };
        x.front = ClientSide::H1(key);
        x.started = cx.now();
        x.body = info.body;
        x.keep_alive = info.keep_alive;
        x.upgrade = info.upgrade;
        x.up.decoder.reset(info.body);
        x.begin(early, &self.lane.snapshot.limits);
        self.counters.requests.inc();
        self.counters.active.set(self.exchanges.len() as u64 + 1);
        let exchange = self.exchanges.insert(x);
        let wait = self.first_look();
        if let Some(front) = self.front(key) {
            front.exchange = Some(exchange);
            // What was awaited before is here.
            front.deadline.set(cx, key, cx.now() + wait);
        }
        self.begin(cx, exchange, info.expect_continue);
    }

    /// Passes a request's body on as far as the upstream has room. `None` if the connection is over.
    fn consume_body(&mut self, cx: &mut Context, exchange: Key, input: &[u8]) -> Option<usize> {
        let mut used = 0;
        loop {
            if used == input.len() {
                return Some(used);
            }
            let room = self.up_room(cx, exchange, input.len() - used)?;
            if room == 0 {
                return Some(used);
            }
            let rest = &input[used..used + room];
            let x = self.exchanges.get_mut(exchange)?;
            if x.machine.is_tunnel() {
                used += rest.len();
                self.up_data(cx, exchange, rest, false);
                continue;
            }
            match x.up.decoder.decode(rest) {
                Ok(piece) => {
                    used += piece.consumed;
                    match piece.what {
                        What::Data(data) => {
                            let last = x.up.decoder.is_done();
                            if !self.up_data(cx, exchange, data, last) {
                                return None;
                            }
                            if last {
                                return Some(used);
                            }
                        }
                        What::NeedMore => return Some(used),
                        What::Trailers => {
                            std::mem::swap(&mut x.up.trailers, x.up.decoder.trailers_mut());
                            self.up_end(cx, exchange);
                            return Some(used);
                        }
                        What::End => {
                            self.up_end(cx, exchange);
                            return Some(used);
                        }
                    }
                }
                Err(e) => {
                    self.up_broken(cx, exchange, e);
                    return None;
                }
            }
        }
    }

    /// A request that cannot be read is answered, and the connection closed: its bytes have no known position.
    fn bad_request(&mut self, cx: &mut Context, key: Key, x: Box<Exchange>, error: ParseError) {
        self.counters.parse_errors[error.index()].inc();
        self.refuse_unread(cx, key, x, error.status());
    }

    /// Answers a request that was never read whole.
    fn refuse_unread(&mut self, cx: &mut Context, key: Key, mut x: Box<Exchange>, status: u16) {
        self.counters.requests.inc();
        x.front = ClientSide::H1(key);
        x.started = cx.now();
        x.keep_alive = false;
        x.begin_unread(Version::Http11);
        let exchange = self.exchanges.insert(x);
        if let Some(front) = self.front(key) {
            front.exchange = Some(exchange);
        }
        self.refuse(cx, exchange, status);
    }

    /// The client will send nothing more.
    pub(crate) fn front_ended(&mut self, cx: &mut Context, key: Key, clean: bool) {
        let Some(front) = self.front(key) else { return };
        if front.wire.is_handshaking() {
            self.counters.tls_failure("closed");
            return self.front_gone(cx, key);
        }
        if front.h2.is_some() {
            // RFC 9113 §5.4.1: half a connection is of no use to HTTP/2. What was asked for is called off.
            return self.front_gone(cx, key);
        }
        let Some(exchange) = front.exchange else { return self.close(cx, key) };
        let Some(x) = self.exchanges.get_mut(exchange) else { return self.close(cx, key) };
        match x.machine.request() {
            // Half-closed: it has said all it wants to say, and waits for the answer.
            Phase::Complete => {}
            Phase::Streaming if x.machine.is_tunnel() && clean => self.up_end(cx, exchange),
            Phase::Streaming if x.machine.is_tunnel() => self.front_gone(cx, key),
            _ => {
                self.counters.parse_errors[ParseError::Truncated.index()].inc();
                self.front_gone(cx, key);
            }
        }
    }

    pub(crate) fn open_timeout(&mut self, cx: &mut Context, key: Key) {
        let idle = self.lane.snapshot.limits.idle_timeout;
        let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return };
        if front.wire.is_handshaking() && front.exchange.is_none() {
            self.counters.client_timeouts.inc();
            self.counters.tls_failure("timeout");
            return self.close(cx, key);
        }
        let Some(exchange) = front.exchange else {
            if !front.in_head {
                // Idle between requests: nobody is kept waiting.
                front.wire.finish();
                front.phase = FrontPhase::Closing { linger: false };
                front.deadline.after(cx, key, idle);
                self.touch(key);
                return;
            }
            // RFC 9110 §15.5.9.
            self.counters.client_timeouts.inc();
            let x = self.spare_exchange(ClientSide::H1(key));
            return self.refuse_unread(cx, key, x, 408);
        };
        if let Some(next) = self.check_deadlines(cx, exchange)
            && let Some(front) = self.front(key).filter(|f| f.exchange == Some(exchange))
        {
            front.deadline.set(cx, key, next);
        }
    }
}

/// The sink of responses: the operations of `sides`.
impl Proxy {
    pub(crate) fn h1_client_interim(&mut self, exchange: Key, key: Key) {
        let Self { conns, exchanges, scratch, .. } = self;
        let (Some(Conn::Front(front)), Some(x)) = (conns.get_mut(key), exchanges.get(exchange)) else { return };
        // RFC 9110 §15.2: not to HTTP/1.0 clients.
        if x.request.version < Version::Http11 {
            return;
        }
        scratch.pool.equip(&mut front.wire.stage);
        let stage = &mut front.wire.stage;
        encode_response(stage, &x.response, x.request.version, BodyLength::None, ConnectionOption::KeepAlive);
        self.touch(key);
    }

    pub(crate) fn h1_client_head(&mut self, exchange: Key, key: Key, body: BodyLength, upgrade: bool) {
        let draining = self.draining.is_some();
        let max_requests = self.lane.snapshot.limits.max_requests;
        let Self { conns, exchanges, scratch, .. } = self;
        let (Some(Conn::Front(front)), Some(x)) = (conns.get_mut(key), exchanges.get_mut(exchange)) else { return };
        let status = x.response.status;
        x.keep_alive &= !draining && front.client.requests < max_requests;
        let connection = match x.machine.request() {
            _ if upgrade && status == 101 => ConnectionOption::Upgrade,
            _ if upgrade => ConnectionOption::KeepAlive,
            Phase::Complete | Phase::Draining if x.keep_alive => ConnectionOption::KeepAlive,
            // A request that is still coming cannot be told from the next one once it is answered.
            Phase::Streaming if x.keep_alive && !x.body.is_empty() && status < 300 => ConnectionOption::KeepAlive,
            _ => ConnectionOption::Close,
        };
        scratch.pool.equip(&mut front.wire.stage);
        let framing = encode_response(&mut front.wire.stage, &x.response, x.request.version, body, connection);
        x.down.framing = framing;
        x.keep_alive &= framing != BodyLength::UntilClose && connection == ConnectionOption::KeepAlive;
        self.touch(key);
    }

    pub(crate) fn h1_client_data(&mut self, key: Key, framing: BodyLength, data: &[u8]) {
        let Self { conns, scratch, .. } = self;
        let Some(Conn::Front(front)) = conns.get_mut(key) else { return };
        scratch.pool.equip(&mut front.wire.stage);
        stage_data(&mut front.wire.stage, framing, data);
        self.touch(key);
    }

    pub(crate) fn h1_client_end(&mut self, exchange: Key, key: Key) {
        let Self { conns, exchanges, .. } = self;
        let (Some(Conn::Front(front)), Some(x)) = (conns.get_mut(key), exchanges.get(exchange)) else { return };
        stage_end(&mut front.wire.stage, x.down.framing, &x.down.trailers);
        self.touch(key);
    }

    /// The response is staged whole: the connection goes on to its next request (`keep`), or closes.
    pub(crate) fn h1_client_finish(&mut self, cx: &mut Context, key: Key, keep: bool, complete: bool) {
        let keep = keep && self.draining.is_none();
        let keepalive = self.lane.snapshot.limits.keepalive_timeout;
        let idle = self.lane.snapshot.limits.idle_timeout;
        let Some(front) = self.front(key) else { return };
        front.exchange = None;
        if keep {
            front.deadline.after(cx, key, keepalive);
            if !front.inbuf.is_empty() || front.wire.readable {
                self.later.push(Later::Conn(key));
            }
        } else {
            front.wire.finish();
            front.phase = FrontPhase::Closing { linger: !complete || !front.inbuf.is_empty() };
            front.deadline.after(cx, key, idle);
        }
        self.touch(key);
    }
}

/// Appends a piece of a body under the sink's framing.
pub(crate) fn stage_data(stage: &mut Vec<u8>, framing: BodyLength, data: &[u8]) {
    if framing == BodyLength::Chunked {
        encode_chunk_header(stage, data.len());
        stage.extend_from_slice(data);
        stage.extend_from_slice(b"\r\n");
    } else {
        stage.extend_from_slice(data);
    }
}

/// Appends the end of a body under the sink's framing, with trailers if there are any.
pub(crate) fn stage_end(stage: &mut Vec<u8>, framing: BodyLength, trailers: &Fields) {
    if framing == BodyLength::Chunked {
        encode_last_chunk(stage, (!trailers.is_empty()).then_some(trailers));
    }
}
