//! The upstream's side: choosing and making connections, requests out, responses in.

use crate::conn::{Back, BackPhase, Conn, Deadline};
use crate::exchange::FlowState;
use crate::front::{MIN_CREDIT, stage_data, stage_end};
use crate::proxy_protocol;
use crate::service::Proxy;
use crate::wire::{ReadResult, Wire, WireError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getsockname, ipproto, socket_with, sockopt};
use sealane_http::h1::{ConnectionOption, ResponseInfo, What, encode_request, encode_response, parse_response};
use sealane_http::{BodyLength, Version};
use sealane_lane::{Context, Key, Ready};
use sealane_tls::Session;
use std::net::SocketAddr;

/// Connections tried for one request.
const ATTEMPTS: usize = 3;
/// Interim responses passed on for one request.
const MAX_INTERIM: u8 = 16;
/// Reads per event before other connections get their turn.
const READS: usize = 4;

/// Why an upstream's connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// It failed, closed early, or sent what is no HTTP.
    Broken,
    /// It was silent for too long.
    Timeout,
}

impl Proxy {
    /// Finds a connection for an exchange: one that is kept open, or (always if `fresh`) a new one.
    pub(crate) fn dispatch(&mut self, cx: &mut Context, exchange: Key, fresh: bool) {
        loop {
            let Some(x) = self.exchanges.get_mut(exchange) else { return };
            let Some(upstream) = x.upstream.clone() else { return };
            x.server = upstream.next_server();
            let server = x.server;
            if !fresh {
                let kept = upstream.idle.borrow_mut().get_mut(server).and_then(Vec::pop);
                if let Some(key) = kept {
                    if let Some(back) = self.back(key) {
                        back.phase = BackPhase::Busy;
                        back.reused = true;
                        back.answered = false;
                        self.counters.pooled.dec();
                        self.counters.upstream_reused.inc();
                        return self.send_request(cx, exchange, key);
                    }
                    continue;
                }
            }
            x.attempts += 1;
            match self.connect(cx, exchange, &upstream, server) {
                Ok(()) => return,
                Err(_) => {
                    self.counters.upstream_connect_failures.inc();
                    let Some(x) = self.exchanges.get(exchange) else { return };
                    if x.attempts >= ATTEMPTS.min(upstream.upstream.servers.len()) {
                        return self.refuse(cx, exchange, 502);
                    }
                }
            }
        }
    }

    fn connect(
        &mut self,
        cx: &mut Context,
        exchange: Key,
        upstream: &std::rc::Rc<crate::lane_state::LaneUpstream>,
        server: usize,
    ) -> Result<(), Errno> {
        let address = upstream.upstream.servers.get(server).ok_or(Errno::ADDRNOTAVAIL)?.address;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        match connect(&fd, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e),
        }
        self.counters.upstream_connects.inc();
        let mut wire = Wire::new(fd);
        // Nothing can be read or written before the loop says so.
        wire.readable = false;
        wire.writable = false;
        let back = Back {
            wire,
            upstream: upstream.clone(),
            server,
            phase: BackPhase::Connecting,
            exchange: Some(exchange),
            inbuf: Vec::new(),
            deadline: Deadline::default(),
            reused: false,
            answered: false,
            keep_alive: false,
        };
        let key = self.conns.insert(Conn::Back(Box::new(back)));
        let Some(back) = self.back(key) else { return Err(Errno::NOMEM) };
        if cx.watch(&back.wire.fd, key.to_u64()).is_err() {
            back.exchange = None;
            self.close(cx, key);
            return Err(Errno::NOMEM);
        }
        back.deadline.after(cx, key, upstream.upstream.connect_timeout);
        if let Some(x) = self.exchanges.get_mut(exchange) {
            x.back = Some(key);
        }
        Ok(())
    }

    pub(crate) fn back_event(&mut self, cx: &mut Context, key: Key, ready: Ready) {
        let Some(back) = self.back(key) else { return };
        match back.phase {
            BackPhase::Connecting => {
                if ready.error || ready.write {
                    match sockopt::socket_error(&back.wire.fd) {
                        Ok(Ok(())) if !ready.error => self.connected(cx, key),
                        _ => self.back_lost(cx, key, Loss::Broken),
                    }
                }
            }
            BackPhase::Idle => {
                if ready.read {
                    self.idle_event(cx, key);
                }
            }
            BackPhase::Handshake | BackPhase::Busy => self.back_go_on(cx, key),
        }
    }

    /// A kept connection has something to read: its end, most often, or late session tickets.
    fn idle_event(&mut self, cx: &mut Context, key: Key) {
        let Self { conns, scratch, .. } = self;
        let Some(Conn::Back(back)) = conns.get_mut(key) else { return };
        let tickets = back.wire.tls.is_some();
        match back.wire.read(scratch) {
            Ok(ReadResult::Blocked) => {}
            Ok(ReadResult::Progress) if tickets && scratch.plain.is_empty() => {}
            _ => self.close(cx, key),
        }
    }

    fn connected(&mut self, cx: &mut Context, key: Key) {
        let Self { conns, exchanges, scratch, .. } = self;
        let Some(Conn::Back(back)) = conns.get_mut(key) else { return };
        let Some(exchange) = back.exchange else { return };
        let front = exchanges.get(exchange).map(|x| x.front);
        let upstream = back.upstream.clone();
        let Some(Conn::Front(front)) = front.and_then(|f| conns.get(f)) else { return self.close(cx, key) };
        let source = front.peer;
        // Where the client came to, as it will be told.
        let destination = getsockname(&front.wire.fd).ok().and_then(|a| SocketAddr::try_from(a).ok());
        let Some(Conn::Back(back)) = conns.get_mut(key) else { return };
        if let Some(version) = upstream.upstream.proxy_protocol {
            let mut header = Vec::new();
            let destination = destination.unwrap_or(upstream.upstream.servers[back.server].address);
            proxy_protocol::encode(&mut header, version, source, destination);
            back.wire.send_raw(&header, scratch);
        }
        match upstream.context() {
            Ok(None) => {
                back.phase = BackPhase::Busy;
                self.send_request(cx, exchange, key);
            }
            Ok(Some(context)) => {
                scratch.records.clear();
                match Session::client(&context, &mut scratch.records) {
                    Ok(session) => {
                        back.wire.start_client(session, scratch);
                        back.phase = BackPhase::Handshake;
                        self.touch(key);
                    }
                    Err(_) => self.back_lost(cx, key, Loss::Broken),
                }
            }
            Err(_) => self.back_lost(cx, key, Loss::Broken),
        }
    }

    /// Sends the request's head on a connection that is ready for it.
    fn send_request(&mut self, cx: &mut Context, exchange: Key, key: Key) {
        let Self { conns, exchanges, scratch, .. } = self;
        let (Some(Conn::Back(back)), Some(x)) = (conns.get_mut(key), exchanges.get_mut(exchange)) else { return };
        back.exchange = Some(exchange);
        x.back = Some(key);
        let config = &back.upstream.upstream;
        let connection = match () {
            () if x.upgrade => ConnectionOption::Upgrade,
            () if config.keepalive == 0 => ConnectionOption::Close,
            () => ConnectionOption::KeepAlive,
        };
        x.up.framing = x.body;
        scratch.pool.equip(&mut back.wire.stage);
        encode_request(&mut back.wire.stage, &x.request, x.body, connection);
        let body = !x.body.is_empty();
        back.deadline.after(cx, key, if body { config.idle_timeout } else { config.first_byte_timeout });
        if x.up.state == FlowState::Waiting {
            x.up.state = FlowState::Open;
            let front = x.front;
            self.later.push(front);
        }
        self.touch(key);
    }

    /// Takes what an upstream has sent.
    pub(crate) fn back_go_on(&mut self, cx: &mut Context, key: Key) {
        self.scratch.plain.clear();
        for turn in 0.. {
            let mut input = std::mem::take(&mut self.scratch.plain);
            let mut rest = match self.back(key) {
                Some(back) if !back.inbuf.is_empty() => {
                    back.inbuf.extend_from_slice(&input);
                    std::mem::take(&mut back.inbuf)
                }
                _ => Vec::new(),
            };
            let from_rest = !rest.is_empty();
            let used = self.consume_back(cx, key, if from_rest { &rest } else { &input });
            let Self { conns, scratch, .. } = self;
            if let Some(Conn::Back(back)) = conns.get_mut(key) {
                if from_rest {
                    rest.drain(..used);
                    back.inbuf = rest;
                } else if used < input.len() {
                    scratch.pool.equip(&mut back.inbuf);
                    back.inbuf.extend_from_slice(&input[used..]);
                }
                scratch.pool.reclaim(&mut back.inbuf);
            }
            input.clear();
            scratch.plain = input;
            if !self.back_wants(key) {
                return;
            }
            if turn >= READS {
                self.later.push(key);
                return;
            }
            let Self { conns, scratch, .. } = self;
            let Some(Conn::Back(back)) = conns.get_mut(key) else { return };
            match back.wire.read(scratch) {
                Ok(ReadResult::Progress) => {
                    if back.phase == BackPhase::Handshake {
                        self.upstream_handshake(cx, key);
                    }
                }
                Ok(ReadResult::Blocked) => return,
                Ok(ReadResult::End { clean }) => return self.back_ended(cx, key, clean),
                Err(e) => return self.back_failed(cx, key, &e),
            }
        }
    }

    fn upstream_handshake(&mut self, cx: &mut Context, key: Key) {
        let Some(back) = self.back(key) else { return };
        if back.wire.is_handshaking() {
            return self.touch(key);
        }
        back.phase = BackPhase::Busy;
        let resumed = back.wire.tls.as_ref().and_then(|t| t.summary()).is_some_and(|s| s.resumed);
        let exchange = back.exchange;
        if resumed {
            self.counters.upstream_resumed.inc()
        } else {
            self.counters.upstream_full.inc()
        }
        if let Some(exchange) = exchange {
            self.send_request(cx, exchange, key);
        }
    }

    /// Whether more of this upstream's bytes could be used now.
    fn back_wants(&mut self, key: Key) -> bool {
        let Self { conns, exchanges, .. } = self;
        match conns.get(key) {
            Some(Conn::Back(back)) => match (back.phase, back.exchange.and_then(|x| exchanges.get(x))) {
                (BackPhase::Handshake, _) => true,
                (BackPhase::Busy, Some(x)) => !x.down.blocked,
                _ => false,
            },
            _ => false,
        }
    }

    /// Takes as much as can be used of an upstream's plaintext; returns how much.
    fn consume_back(&mut self, cx: &mut Context, key: Key, input: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let Some(Conn::Back(back)) = self.conns.get_mut(key) else { return input.len() };
            let Some(exchange) = back.exchange else { return used };
            if back.phase != BackPhase::Busy {
                return used;
            }
            let Some(x) = self.exchanges.get_mut(exchange) else { return input.len() };
            let rest = &input[used..];
            if x.down.state == FlowState::Waiting {
                if rest.is_empty() {
                    return used;
                }
                back.answered = true;
                let limits = &self.lane.snapshot.limits.http;
                match parse_response(rest, limits, x.request.method(), &mut x.response) {
                    Ok(None) => return used,
                    Ok(Some(info)) => {
                        used += info.consumed;
                        if !self.response_arrived(cx, exchange, key, info) {
                            return input.len();
                        }
                    }
                    Err(e) => {
                        self.counters.parse_errors[e.index()].inc();
                        self.back_lost(cx, key, Loss::Broken);
                        return input.len();
                    }
                }
            } else {
                match self.consume_response(cx, exchange, key, rest) {
                    Some(n) => return used + n,
                    None => return input.len(),
                }
            }
        }
    }

    /// A response's head has come. False if the connection is not to be read on.
    fn response_arrived(&mut self, cx: &mut Context, exchange: Key, key: Key, info: ResponseInfo) -> bool {
        let draining = self.draining.is_some();
        let max_requests = self.lane.snapshot.limits.max_requests;
        let Self { conns, exchanges, scratch, counters, .. } = self;
        let Some(x) = exchanges.get_mut(exchange) else { return false };
        let status = x.response.status;
        let front_key = x.front;
        let Some(Conn::Front(front)) = conns.get_mut(front_key) else { return false };
        if (100..200).contains(&status) && !info.upgrade {
            x.interim += 1;
            if x.interim > MAX_INTERIM {
                self.back_lost(cx, key, Loss::Broken);
                return false;
            }
            counters.status(status);
            // RFC 9110 §15.2: not to HTTP/1.0 clients.
            if x.request.version >= Version::Http11 {
                scratch.pool.equip(&mut front.wire.stage);
                let stage = &mut front.wire.stage;
                encode_response(stage, &x.response, x.request.version, BodyLength::None, ConnectionOption::KeepAlive);
                self.touch(front_key);
            }
            return true;
        }
        if status == 425 && x.early {
            self.too_early(cx, exchange);
            return false;
        }
        if info.upgrade && status == 101 && !x.upgrade {
            // RFC 9110 §7.8: it switches to what nobody asked for.
            self.back_lost(cx, key, Loss::Broken);
            return false;
        }
        x.keep_alive &= !draining && front.requests < max_requests;
        let connection = match () {
            () if info.upgrade && status == 101 => ConnectionOption::Upgrade,
            // A request that is still coming cannot be told from the next one once it is answered.
            () if info.upgrade || x.keep_alive && x.up.state == FlowState::Done => ConnectionOption::KeepAlive,
            () if x.keep_alive && x.up.state == FlowState::Open && !x.body.is_empty() && status < 300 => {
                ConnectionOption::KeepAlive
            }
            () => ConnectionOption::Close,
        };
        scratch.pool.equip(&mut front.wire.stage);
        let framing = encode_response(&mut front.wire.stage, &x.response, x.request.version, info.body, connection);
        x.down.framing = framing;
        x.keep_alive &= framing != BodyLength::UntilClose && connection == ConnectionOption::KeepAlive;
        x.answered = true;
        x.status = status;
        x.down.state = FlowState::Open;
        let Some(Conn::Back(back)) = conns.get_mut(key) else { return false };
        back.keep_alive = info.keep_alive;
        back.deadline.after(cx, key, back.upstream.upstream.idle_timeout);
        if info.upgrade {
            self.counters.tunnels.inc();
            x.keep_alive = false;
            (x.up.raw, x.down.raw) = (true, true);
            (x.up.state, x.down.state) = (FlowState::Open, FlowState::Open);
            self.later.push(front_key);
        } else {
            x.down.decoder.reset(info.body);
        }
        self.touch(front_key);
        true
    }

    /// Passes a response's body on as far as the client has room. `None` if the connection is over or reused.
    fn consume_response(&mut self, cx: &mut Context, exchange: Key, key: Key, input: &[u8]) -> Option<usize> {
        let idle = self.lane.snapshot.limits.idle_timeout;
        let mut used = 0;
        loop {
            let Self { conns, exchanges, scratch, .. } = self;
            let x = exchanges.get_mut(exchange)?;
            let front_key = x.front;
            let Some(Conn::Front(front)) = conns.get_mut(front_key) else { return None };
            let credit = front.wire.credit();
            let mut rest = &input[used..];
            if !rest.is_empty() && credit < MIN_CREDIT {
                x.down.blocked = true;
                return Some(used);
            }
            rest = &rest[..rest.len().min(credit)];
            if rest.is_empty() && (x.down.raw || !x.down.decoder.is_done()) {
                return Some(used);
            }
            front.deadline.after(cx, front_key, idle);
            scratch.pool.equip(&mut front.wire.stage);
            let stage = &mut front.wire.stage;
            if x.down.raw {
                stage.extend_from_slice(rest);
                x.down.bytes += rest.len() as u64;
                used += rest.len();
                self.touch(front_key);
                self.back_alive(cx, key);
                continue;
            }
            match x.down.decoder.decode(rest) {
                Ok(piece) => {
                    used += piece.consumed;
                    match piece.what {
                        What::Data(data) => {
                            x.down.bytes += data.len() as u64;
                            stage_data(stage, x.down.framing, data);
                            self.touch(front_key);
                            self.back_alive(cx, key);
                        }
                        What::NeedMore => return Some(used),
                        What::Trailers | What::End => {
                            stage_end(stage, x.down.framing, piece.what, x.down.decoder.trailers());
                            let surplus = used < input.len();
                            if let (true, Some(back)) = (surplus, self.back(key)) {
                                // Bytes that nobody asked for: the next response must not begin with them.
                                back.keep_alive = false;
                            }
                            self.touch(front_key);
                            self.response_done(cx, exchange);
                            return None;
                        }
                    }
                }
                Err(e) => {
                    self.counters.parse_errors[e.index()].inc();
                    self.back_lost(cx, key, Loss::Broken);
                    return None;
                }
            }
        }
    }

    fn back_alive(&mut self, cx: &mut Context, key: Key) {
        if let Some(back) = self.back(key) {
            let wait = back.upstream.upstream.idle_timeout;
            back.deadline.after(cx, key, wait);
        }
    }

    /// An exchange is over: the connection goes to the pool, or closes.
    pub(crate) fn release(&mut self, cx: &mut Context, key: Key, reusable: bool) {
        let draining = self.draining.is_some();
        let Some(back) = self.back(key) else { return };
        let upstream = back.upstream.clone();
        let config = &upstream.upstream;
        let room = upstream.idle.borrow().get(back.server).is_some_and(|idle| idle.len() < config.keepalive);
        let clean = back.keep_alive && back.inbuf.is_empty() && back.wire.is_flushed() && !back.wire.is_ending();
        if !(reusable && room && clean) || draining {
            return self.close(cx, key);
        }
        back.phase = BackPhase::Idle;
        back.exchange = None;
        back.deadline.after(cx, key, config.keepalive_timeout);
        let server = back.server;
        if let Some(idle) = upstream.idle.borrow_mut().get_mut(server) {
            idle.push(key);
        }
        self.counters.pooled.inc();
    }

    /// The upstream will send nothing more.
    fn back_ended(&mut self, cx: &mut Context, key: Key, clean: bool) {
        let Some(back) = self.back(key) else { return };
        let Some(exchange) = back.exchange else { return self.close(cx, key) };
        let Some(x) = self.exchanges.get_mut(exchange) else { return self.close(cx, key) };
        if x.down.state == FlowState::Open && clean {
            if x.down.raw {
                x.down.state = FlowState::Done;
                return self.response_done(cx, exchange);
            }
            if x.down.decoder.eof().is_ok() {
                let front = x.front;
                if x.down.framing == BodyLength::Chunked
                    && let Some(Conn::Front(f)) = self.conns.get_mut(front)
                {
                    stage_end(&mut f.wire.stage, BodyLength::Chunked, What::End, &sealane_http::Fields::new());
                }
                self.touch(front);
                return self.response_done(cx, exchange);
            }
        }
        self.back_lost(cx, key, Loss::Broken);
    }

    pub(crate) fn back_failed(&mut self, cx: &mut Context, key: Key, _error: &WireError) {
        self.back_lost(cx, key, Loss::Broken);
    }

    pub(crate) fn back_timeout(&mut self, cx: &mut Context, key: Key) {
        let Some(back) = self.back(key) else { return };
        if back.phase == BackPhase::Idle {
            return self.close(cx, key);
        }
        // While the client is what is slow, the upstream is not to blame.
        let idle = back.upstream.upstream.idle_timeout;
        let exchange = back.exchange;
        if let Some(x) = exchange.and_then(|x| self.exchanges.get(x)) {
            let waits_for_client = x.down.blocked || x.up.state == FlowState::Open && !x.up.raw && !x.up.blocked;
            if waits_for_client {
                if let Some(back) = self.back(key) {
                    back.deadline.after(cx, key, idle);
                }
                return;
            }
        }
        self.counters.upstream_timeouts.inc();
        self.back_lost(cx, key, Loss::Timeout);
    }

    /// A connection to an upstream is given up: the request goes elsewhere, or is answered with an error.
    fn back_lost(&mut self, cx: &mut Context, key: Key, why: Loss) {
        let Some(back) = self.back(key) else { return };
        let (phase, reused, answered) = (back.phase, back.reused, back.answered);
        let servers = back.upstream.upstream.servers.len();
        let exchange = back.exchange.take();
        self.close(cx, key);
        let Some(exchange) = exchange else { return };
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        x.back = None;
        if x.answered {
            self.counters.upstream_aborts.inc();
            let front = x.front;
            self.abort(cx, exchange);
            // Without the end that its framing promises, and without close_notify: it must not look whole.
            return self.close(cx, front);
        }
        let status = if why == Loss::Timeout { 504 } else { 502 };
        if matches!(phase, BackPhase::Connecting | BackPhase::Handshake) {
            self.counters.upstream_connect_failures.inc();
            if x.attempts < ATTEMPTS.min(servers) {
                self.counters.retries.inc();
                return self.dispatch(cx, exchange, false);
            }
            return self.refuse(cx, exchange, status);
        }
        // RFC 9110 §9.2.2: a kept connection that closed before it answered has most likely not seen the request.
        let again = reused && !answered && x.up.bytes == 0 && x.request.method().is_idempotent();
        if again && why == Loss::Broken {
            if !x.body.is_empty() {
                x.up.state = FlowState::Waiting;
            }
            self.counters.retries.inc();
            return self.dispatch(cx, exchange, true);
        }
        self.counters.upstream_aborts.inc();
        self.refuse(cx, exchange, status);
    }
}
