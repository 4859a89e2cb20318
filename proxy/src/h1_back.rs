//! HTTP/1.1 towards upstreams: requests to bytes, bytes to responses.

use crate::conn::{BackPhase, Conn};
use crate::h1_front::{stage_data, stage_end};
use crate::scratch::{HEAD_READ, READ_SIZE, keep_rest};
use crate::service::Proxy;
use crate::sides::{Later, ServerSide};
use crate::wire::ReadResult;
use sealane_exchange::Phase;
use sealane_http::BodyLength;
use sealane_http::h1::{ConnectionOption, What, encode_request, parse_response_tolerating};
use sealane_lane::{Context, Key};

/// Reads per event before other connections get their turn.
const READS: usize = 4;

/// The source of responses.
impl Proxy {
    /// A kept connection has something to read: its end, most often, or late session tickets.
    pub(crate) fn idle_event(&mut self, cx: &mut Context, key: Key) {
        let Self { conns, scratch, .. } = self;
        let Some(Conn::Back(back)) = conns.get_mut(key) else { return };
        let tickets = back.wire.tls.is_some();
        match back.wire.read(scratch, HEAD_READ) {
            Ok(ReadResult::Blocked) => {}
            Ok(ReadResult::Progress) if tickets && scratch.plain.is_empty() => {}
            _ => self.close(cx, key),
        }
    }

    /// Sends the request's head on a connection that is ready for it.
    pub(crate) fn send_request(&mut self, cx: &mut Context, exchange: Key, key: Key) {
        if self.exchanges.get(exchange).is_some_and(|x| x.routed.relayed) {
            return self.start_relay(cx, exchange, key);
        }
        let Self { conns, exchanges, scratch, .. } = self;
        let (Some(Conn::Back(back)), Some(x)) = (conns.get_mut(key), exchanges.get_mut(exchange)) else { return };
        back.exchange = Some(exchange);
        let connection = match () {
            () if x.upgrade => ConnectionOption::Upgrade,
            () if back.upstream.upstream.keepalive == 0 => ConnectionOption::Close,
            () => ConnectionOption::KeepAlive,
        };
        x.up.framing = x.body;
        scratch.pool.equip(&mut back.wire.stage);
        encode_request(&mut back.wire.stage, &x.request, x.body, connection);
        self.request_sent(cx, exchange, ServerSide::H1(key));
        self.touch(key);
    }

    /// Takes what an upstream has sent.
    pub(crate) fn back_go_on(&mut self, cx: &mut Context, key: Key) {
        self.scratch.plain.clear();
        for turn in 0.. {
            let mut input = std::mem::take(&mut self.scratch.plain);
            match self.back(key) {
                Some(back) if back.h2.is_some() => self.h2_back_take(cx, key, &mut input),
                _ => self.h1_back_take(cx, key, &mut input),
            }
            self.scratch.plain = input;
            if !self.back_wants(key) {
                return;
            }
            if turn >= READS {
                self.later.push(Later::Conn(key));
                return;
            }
            let size = self.back_read_size(cx, key);
            if size == 0 {
                return;
            }
            let Self { conns, scratch, .. } = self;
            let Some(Conn::Back(back)) = conns.get_mut(key) else { return };
            match back.wire.read(scratch, size) {
                Ok(ReadResult::Progress) => {
                    if back.phase == BackPhase::Handshake {
                        self.syn_heard(cx, key);
                        self.upstream_handshake(cx, key);
                    }
                }
                Ok(ReadResult::Blocked) => return,
                Ok(ReadResult::End { clean }) => return self.back_ended(cx, key, clean),
                Err(e) => return self.back_failed(cx, key, &e),
            }
        }
    }

    /// Takes plaintext, the connection's own rest first; `input` is a buffer to use again.
    fn h1_back_take(&mut self, cx: &mut Context, key: Key, input: &mut Vec<u8>) {
        let mut rest = match self.back(key) {
            Some(back) if !back.inbuf.is_empty() => {
                back.inbuf.extend_from_slice(input);
                std::mem::take(&mut back.inbuf)
            }
            _ => Vec::new(),
        };
        let from_rest = !rest.is_empty();
        let used = self.consume_back(cx, key, if from_rest { &rest } else { input });
        if let Some(back) = self.back(key) {
            if from_rest {
                keep_rest(&mut rest, used);
                back.inbuf = rest;
            } else if used < input.len() {
                back.inbuf.extend_from_slice(&input[used..]);
            }
            let (exchange, held) = (back.exchange, back.inbuf.capacity());
            if let Some(exchange) = exchange {
                self.note_held(exchange, held);
            }
        }
        input.clear();
    }

    /// How many bytes to read from an upstream at once; 0: none, and the source is resumed when there is room for them.
    fn back_read_size(&mut self, cx: &Context, key: Key) -> usize {
        let Some(Conn::Back(back)) = self.conns.get(key) else { return 0 };
        match back.exchange {
            Some(exchange) if back.h2.is_none() && back.phase == BackPhase::Busy => self.down_read_size(cx, exchange),
            _ => READ_SIZE,
        }
    }

    /// Whether more of this upstream's bytes could be used now.
    fn back_wants(&mut self, key: Key) -> bool {
        let Self { conns, exchanges, .. } = self;
        match conns.get(key) {
            Some(Conn::Back(back)) if back.h2.is_some() => back.h2.as_ref().is_some_and(|h| h.is_drained()),
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
            if !x.machine.is_answered() {
                if rest.is_empty() {
                    return used;
                }
                back.answered = true;
                let limits = &self.lane.snapshot.limits.http;
                let tolerance = back.upstream.upstream.tolerance;
                match parse_response_tolerating(tolerance, rest, limits, x.request.method(), &mut x.response) {
                    Ok(None) => return used,
                    Ok(Some(info)) => {
                        used += info.consumed;
                        back.keep_alive = info.keep_alive;
                        x.down.decoder.reset(info.body);
                        if !self.response_arrived(cx, exchange, info.body, info.upgrade) {
                            return input.len();
                        }
                    }
                    Err(e) => {
                        self.down_broken(cx, exchange, e);
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

    /// Passes a response's body on as far as the client has room. `None` if the connection is over or reused.
    fn consume_response(&mut self, cx: &mut Context, exchange: Key, key: Key, input: &[u8]) -> Option<usize> {
        let mut used = 0;
        loop {
            let mut rest = &input[used..];
            if !rest.is_empty() {
                let room = self.down_room(cx, exchange, rest.len())?;
                if room == 0 {
                    return Some(used);
                }
                rest = &rest[..room];
            }
            let x = self.exchanges.get_mut(exchange)?;
            if rest.is_empty() && (x.machine.is_tunnel() || !x.down.decoder.is_done()) {
                return Some(used);
            }
            if x.machine.is_tunnel() {
                used += rest.len();
                self.down_data(cx, exchange, rest, false);
                continue;
            }
            let piece = match x.down.decoder.decode(rest) {
                Ok(piece) => piece,
                Err(e) => {
                    self.down_broken(cx, exchange, e);
                    return None;
                }
            };
            used += piece.consumed;
            let done = x.down.decoder.is_done();
            if done
                && used < input.len()
                && let Some(Conn::Back(back)) = self.conns.get_mut(key)
            {
                // Bytes that nobody asked for: the next response must not begin with them.
                back.keep_alive = false;
            }
            match piece.what {
                What::Data(data) => {
                    if !self.down_data(cx, exchange, data, done) {
                        return None;
                    }
                }
                What::NeedMore => return Some(used),
                What::Trailers => {
                    std::mem::swap(&mut x.down.trailers, x.down.decoder.trailers_mut());
                    self.down_end(cx, exchange);
                    return None;
                }
                What::End => {
                    self.down_end(cx, exchange);
                    return None;
                }
            }
        }
    }

    /// The upstream will send nothing more.
    fn back_ended(&mut self, cx: &mut Context, key: Key, clean: bool) {
        let Some(back) = self.back(key) else { return };
        if back.h2.is_some() {
            return self.h2_back_lost(cx, key, false);
        }
        if !back.waiting.is_empty() {
            return self.back_lost(cx, key, false);
        }
        let Some(exchange) = back.exchange else { return self.close(cx, key) };
        let Some(x) = self.exchanges.get_mut(exchange) else { return self.close(cx, key) };
        if x.routed.relayed && x.machine.response() == Phase::Complete {
            // It has been said already; what the client still says goes on.
            return;
        }
        if x.machine.response() == Phase::Streaming && clean && (x.machine.is_tunnel() || x.down.decoder.eof().is_ok())
        {
            return self.down_end(cx, exchange);
        }
        self.back_lost(cx, key, false);
    }
}

/// The sink of requests: the operations of `sides`.
impl Proxy {
    pub(crate) fn h1_server_data(&mut self, key: Key, framing: BodyLength, data: &[u8]) {
        let Self { conns, scratch, .. } = self;
        let Some(Conn::Back(back)) = conns.get_mut(key) else { return };
        scratch.pool.equip(&mut back.wire.stage);
        stage_data(&mut back.wire.stage, framing, data);
        self.touch(key);
    }

    pub(crate) fn h1_server_end(&mut self, exchange: Key, key: Key) {
        let Self { conns, exchanges, .. } = self;
        let (Some(Conn::Back(back)), Some(x)) = (conns.get_mut(key), exchanges.get(exchange)) else { return };
        if x.machine.is_tunnel() {
            back.wire.finish_sending();
        } else {
            stage_end(&mut back.wire.stage, x.up.framing, &x.up.trailers);
        }
        self.touch(key);
    }
}
