//! HTTP/1.1 towards upstreams: requests to bytes, bytes to responses.

use crate::client::h1::{stage_data, stage_end};
use crate::conn::{Conn, UpstreamPhase};
use crate::exchange::streams::{Later, UpstreamStream};
use crate::scratch::{HEAD_READ, READ_SIZE, keep_rest};
use crate::service::Proxy;
use crate::transport::ReadResult;
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
        let Self { connections, scratch, .. } = self;
        let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
        let tickets = upstream_conn.transport.tls.is_some();
        match upstream_conn.transport.read(scratch, HEAD_READ) {
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
        let Self { connections, exchanges, scratch, .. } = self;
        let (Some(Conn::Upstream(upstream_conn)), Some(x)) = (connections.get_mut(key), exchanges.get_mut(exchange))
        else {
            return;
        };
        upstream_conn.exchange = Some(exchange);
        let connection = match () {
            () if x.upgrade => ConnectionOption::Upgrade,
            () if upstream_conn.upstream.upstream.keepalive == 0 => ConnectionOption::Close,
            () => ConnectionOption::KeepAlive,
        };
        x.request_body.framing = x.body;
        scratch.pool.take_buffer(&mut upstream_conn.transport.stage);
        encode_request(&mut upstream_conn.transport.stage, &x.request, x.body, connection);
        self.request_sent(cx, exchange, UpstreamStream::H1(key));
        self.connections.mark_for_flush(key);
    }

    /// Takes what an upstream has sent.
    pub(crate) fn upstream_go_on(&mut self, cx: &mut Context, key: Key) {
        self.scratch.plain.clear();
        for turn in 0.. {
            let mut input = std::mem::take(&mut self.scratch.plain);
            match self.connections.upstream(key) {
                Some(upstream_conn) if upstream_conn.h2.is_some() => self.h2_upstream_take(cx, key, &mut input),
                _ => self.h1_upstream_take(cx, key, &mut input),
            }
            self.scratch.plain = input;
            if !self.upstream_wants(key) {
                return;
            }
            if turn >= READS {
                self.exchanges.go_on_later(Later::Conn(key));
                return;
            }
            let size = self.upstream_read_size(cx, key);
            if size == 0 {
                return;
            }
            let Self { connections, scratch, .. } = self;
            let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
            match upstream_conn.transport.read(scratch, size) {
                Ok(ReadResult::Progress) => {
                    if upstream_conn.phase == UpstreamPhase::Handshake {
                        self.syn_heard(cx, key);
                        self.upstream_handshake(cx, key);
                    }
                }
                Ok(ReadResult::Blocked) => return,
                Ok(ReadResult::End { clean }) => return self.upstream_ended(cx, key, clean),
                Err(e) => return self.upstream_failed(cx, key, &e),
            }
        }
    }

    /// Takes plaintext, the connection's own rest first; `input` is a buffer to use again.
    fn h1_upstream_take(&mut self, cx: &mut Context, key: Key, input: &mut Vec<u8>) {
        let mut rest = match self.connections.upstream(key) {
            Some(upstream_conn) if !upstream_conn.inbuf.is_empty() => {
                upstream_conn.inbuf.extend_from_slice(input);
                std::mem::take(&mut upstream_conn.inbuf)
            }
            _ => Vec::new(),
        };
        let from_rest = !rest.is_empty();
        let used = self.consume_upstream(cx, key, if from_rest { &rest } else { input });
        if let Some(upstream_conn) = self.connections.upstream(key) {
            if from_rest {
                keep_rest(&mut rest, used);
                upstream_conn.inbuf = rest;
            } else if used < input.len() {
                upstream_conn.inbuf.extend_from_slice(&input[used..]);
            }
            let (exchange, held) = (upstream_conn.exchange, upstream_conn.inbuf.capacity());
            if let Some(exchange) = exchange {
                self.note_held(exchange, held);
            }
        }
        input.clear();
    }

    /// How many bytes to read from an upstream at once; 0: none, and the source is resumed when there is room for them.
    fn upstream_read_size(&mut self, cx: &Context, key: Key) -> usize {
        let Some(Conn::Upstream(upstream_conn)) = self.connections.get(key) else { return 0 };
        match upstream_conn.exchange {
            Some(exchange) if upstream_conn.h2.is_none() && upstream_conn.phase == UpstreamPhase::Busy => {
                self.response_read_size(cx, exchange)
            }
            _ => READ_SIZE,
        }
    }

    /// Whether more of this upstream's bytes could be used now.
    fn upstream_wants(&mut self, key: Key) -> bool {
        let Self { connections, exchanges, .. } = self;
        match connections.get(key) {
            Some(Conn::Upstream(upstream_conn)) if upstream_conn.h2.is_some() => {
                upstream_conn.h2.as_ref().is_some_and(|h| h.is_drained())
            }
            Some(Conn::Upstream(upstream_conn)) => {
                match (upstream_conn.phase, upstream_conn.exchange.and_then(|x| exchanges.get(x))) {
                    (UpstreamPhase::Handshake, _) => true,
                    (UpstreamPhase::Busy, Some(x)) => !x.response_body.blocked,
                    _ => false,
                }
            }
            _ => false,
        }
    }

    /// Takes as much as can be used of an upstream's plaintext; returns how much.
    fn consume_upstream(&mut self, cx: &mut Context, key: Key, input: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let Some(Conn::Upstream(upstream_conn)) = self.connections.get_mut(key) else { return input.len() };
            let Some(exchange) = upstream_conn.exchange else { return used };
            if upstream_conn.phase != UpstreamPhase::Busy {
                return used;
            }
            let Some(x) = self.exchanges.get_mut(exchange) else { return input.len() };
            let rest = &input[used..];
            if !x.machine.is_answered() {
                if rest.is_empty() {
                    return used;
                }
                upstream_conn.answered = true;
                let limits = &self.settings.limits().http;
                let tolerance = upstream_conn.upstream.upstream.tolerance;
                match parse_response_tolerating(tolerance, rest, limits, x.request.method(), &mut x.response) {
                    Ok(None) => return used,
                    Ok(Some(info)) => {
                        used += info.consumed;
                        upstream_conn.keep_alive = info.keep_alive;
                        x.response_body.decoder.reset(info.body);
                        if !self.response_arrived(cx, exchange, info.body, info.upgrade) {
                            return input.len();
                        }
                    }
                    Err(e) => {
                        self.response_broken(cx, exchange, e);
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
            let (rest, mut room) = (&input[used..], 0);
            if !rest.is_empty() {
                room = self.response_room(cx, exchange, rest.len())?;
                if room == 0 {
                    return Some(used);
                }
            }
            let x = self.exchanges.get_mut(exchange)?;
            if rest.is_empty() && (x.machine.is_tunnel() || !x.response_body.decoder.is_done()) {
                return Some(used);
            }
            if x.machine.is_tunnel() {
                used += room;
                self.response_data(cx, exchange, &rest[..room], false);
                continue;
            }
            let piece = match x.response_body.decoder.decode_at_most(rest, room) {
                Ok(piece) => piece,
                Err(e) => {
                    self.response_broken(cx, exchange, e);
                    return None;
                }
            };
            used += piece.consumed;
            let done = x.response_body.decoder.is_done();
            if done
                && used < input.len()
                && let Some(Conn::Upstream(upstream_conn)) = self.connections.get_mut(key)
            {
                // Bytes that nobody asked for: the next response must not begin with them.
                upstream_conn.keep_alive = false;
            }
            match piece.what {
                What::Data(data) => {
                    if !self.response_data(cx, exchange, data, done) {
                        return None;
                    }
                }
                What::NeedMore => return Some(used),
                What::Trailers => {
                    std::mem::swap(&mut x.response_body.trailers, x.response_body.decoder.trailers_mut());
                    self.response_end(cx, exchange);
                    return None;
                }
                What::End => {
                    self.response_end(cx, exchange);
                    return None;
                }
            }
        }
    }

    /// The upstream will send nothing more.
    fn upstream_ended(&mut self, cx: &mut Context, key: Key, clean: bool) {
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        if upstream_conn.h2.is_some() {
            return self.h2_upstream_lost(cx, key, false);
        }
        if !upstream_conn.waiting.is_empty() {
            return self.upstream_lost(cx, key, false);
        }
        let Some(exchange) = upstream_conn.exchange else { return self.close(cx, key) };
        let Some(x) = self.exchanges.get_mut(exchange) else { return self.close(cx, key) };
        if x.routed.relayed && x.machine.response() == Phase::Complete {
            // It has been said already; what the client still says goes on.
            return;
        }
        if x.machine.response() == Phase::Streaming
            && clean
            && (x.machine.is_tunnel() || x.response_body.decoder.eof().is_ok())
        {
            return self.response_end(cx, exchange);
        }
        self.upstream_lost(cx, key, false);
    }
}

/// The sink of requests: the operations of `streams`.
impl Proxy {
    pub(crate) fn h1_server_data(&mut self, key: Key, framing: BodyLength, data: &[u8]) {
        let Self { connections, scratch, .. } = self;
        let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
        scratch.pool.take_buffer(&mut upstream_conn.transport.stage);
        stage_data(&mut upstream_conn.transport.stage, framing, data);
        self.connections.mark_for_flush(key);
    }

    pub(crate) fn h1_server_end(&mut self, exchange: Key, key: Key) {
        let Self { connections, exchanges, .. } = self;
        let (Some(Conn::Upstream(upstream_conn)), Some(x)) = (connections.get_mut(key), exchanges.get(exchange)) else {
            return;
        };
        if x.machine.is_tunnel() {
            upstream_conn.transport.finish_sending();
        } else {
            stage_end(&mut upstream_conn.transport.stage, x.request_body.framing, &x.request_body.trailers);
        }
        self.connections.mark_for_flush(key);
    }
}
