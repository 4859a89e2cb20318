//! HTTP/1.1 towards upstreams: requests to bytes, bytes to responses.

use crate::conn::Conn;
use crate::connections::Connections;
use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{connected, request_sent};
use crate::exchange::response::{
    response_arrived, response_broken, response_data, response_end, response_read_size, response_room,
};
use crate::exchange::streams::{Later, UpstreamStream};
use crate::lifecycle::close_connection;
use crate::memory::Held;
use crate::relay::start_relay;
use crate::scratch::{HEAD_READ, READ_SIZE, Scratch, keep_rest};
use crate::service::Proxy;
use crate::snapshot::Upstream;
use crate::transport::{ReadResult, Transport};
use crate::upstream::connection::{upstream_failed, upstream_handshake, upstream_lost};
use crate::upstream::h2_connection::{h2_upstream_lost, h2_upstream_take};
use crate::upstream::phase::{Answer, UpstreamPhase};
use crate::upstream::syn::syn_heard;
use sealane_exchange::{Phase, Switching};
use sealane_http::BodyLength;
use sealane_http::h1::{
    ConnectionOption, What, encode_body, encode_body_end, encode_request, parse_response_tolerating,
};
use sealane_lane::{Context, Key};

/// Reads per event before other connections get their turn.
const READS: usize = 4;

// The source of responses.

/// A kept connection has something to read: its end, most often, or late session tickets.
pub(crate) fn idle_event(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Proxy { connections, scratch, .. } = proxy;
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    if !is_silent(&mut upstream_conn.transport, scratch) {
        close_connection(proxy, cx, key);
    }
}

/// Whether a server has sent nothing beyond the responses that it was asked for. Reads to where the socket has nothing more:
/// what is left there no later event would tell of, and the next response would begin with it.
pub(crate) fn is_silent(transport: &mut Transport, scratch: &mut Scratch) -> bool {
    let tickets = transport.tls.is_some();
    for _ in 0..READS {
        match transport.read(scratch, HEAD_READ) {
            Ok(ReadResult::Blocked) => return true,
            Ok(ReadResult::Progress) if tickets && scratch.plaintext_len() == 0 => {}
            _ => break,
        }
    }
    scratch.clear_plaintext();
    false
}

/// Sends the request's head on a connection that is ready for it. `is_sent`: the server has it as early data.
pub(crate) fn send_request(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key, is_sent: bool) {
    if proxy.exchanges.get(exchange).is_some_and(|x| x.machine().is_relay()) {
        return start_relay(proxy, cx, exchange, key);
    }
    let Some(actions) = connected(proxy, cx, exchange, Switching::Any) else { return };
    let Proxy { connections, exchanges, scratch, .. } = proxy;
    let (Some(Conn::Upstream(upstream_conn)), Some(x)) = (connections.get_mut(key), exchanges.get_mut(exchange)) else {
        return;
    };
    let body = x.body();
    x.request_body_mut().frame(body);
    if !is_sent {
        let connection = connection_option(x, upstream_conn.upstream.settings());
        scratch.take_buffer(&mut upstream_conn.transport.stage);
        encode_request(&mut upstream_conn.transport.stage, x.request(), x.body(), connection);
    }
    request_sent(proxy, cx, exchange, UpstreamStream::H1(key), actions);
    proxy.connections.mark_for_flush(key);
}

/// What the request says about the connection to a server of this group.
#[inline]
pub(super) fn connection_option(x: &Exchange, upstream: &Upstream) -> ConnectionOption {
    match () {
        () if x.machine().asks_server_to_switch() => ConnectionOption::Upgrade,
        () if upstream.keepalive == 0 => ConnectionOption::Close,
        () => ConnectionOption::KeepAlive,
    }
}

/// Takes what an upstream has sent.
pub(crate) fn upstream_go_on(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    proxy.scratch.clear_plaintext();
    for turn in 0.. {
        let mut input = proxy.scratch.take_plaintext();
        match proxy.connections.upstream(key) {
            Some(upstream_conn) if upstream_conn.is_h2() => h2_upstream_take(proxy, cx, key, &mut input),
            _ => h1_upstream_take(proxy, cx, key, &mut input),
        }
        proxy.scratch.return_plaintext(input);
        if !upstream_wants(&proxy.connections, &proxy.exchanges, key) {
            return;
        }
        if turn >= READS {
            proxy.exchanges.go_on_later(Later::Conn(key));
            return;
        }
        let size = upstream_read_size(&mut proxy.connections, &mut proxy.exchanges, cx, key);
        if size == 0 {
            return;
        }
        let Proxy { connections, scratch, .. } = proxy;
        let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
        match upstream_conn.transport.read(scratch, size) {
            Ok(ReadResult::Progress) => {
                if upstream_conn.phase.is_handshake() {
                    if upstream_conn.syn().is_some() {
                        syn_heard(&mut proxy.connections, cx, key);
                    }
                    upstream_handshake(proxy, cx, key);
                }
            }
            Ok(ReadResult::Blocked) => return,
            Ok(ReadResult::End { clean }) => return upstream_ended(proxy, cx, key, clean),
            Err(e) => return upstream_failed(proxy, cx, key, &e),
        }
    }
}

/// Takes plaintext, the connection's own rest first; `input` is a buffer to use again.
fn h1_upstream_take(proxy: &mut Proxy, cx: &mut Context, key: Key, input: &mut Vec<u8>) {
    let Proxy { connections, settings, .. } = proxy;
    let mut rest = match connections.upstream(key) {
        Some(upstream_conn) if input.is_empty() && upstream_conn.inbuf.is_empty() => return,
        Some(upstream_conn) if !upstream_conn.inbuf.is_empty() => {
            upstream_conn.inbuf.extend_from_slice(input);
            let in_head = matches!(upstream_conn.phase, UpstreamPhase::Busy(_, Answer::Begun));
            // Half a head: only an LF can make it whole.
            if in_head
                && memchr::memchr(b'\n', input).is_none()
                && upstream_conn.inbuf.len() < settings.limits().http.head
            {
                let (exchange, held) = (upstream_conn.exchange(), Held::of_bytes(upstream_conn.inbuf.capacity()));
                if let Some(exchange) = exchange {
                    proxy.exchanges.note_held(&mut proxy.connections, exchange, held);
                }
                return input.clear();
            }
            std::mem::take(&mut upstream_conn.inbuf)
        }
        _ => Vec::new(),
    };
    let from_rest = !rest.is_empty();
    let used = consume_upstream(proxy, cx, key, if from_rest { &rest } else { input });
    if let Some(upstream_conn) = proxy.connections.upstream(key) {
        if from_rest {
            keep_rest(&mut rest, used);
            upstream_conn.inbuf = rest;
        } else if used < input.len() {
            upstream_conn.inbuf.extend_from_slice(&input[used..]);
        }
        let (exchange, held) = (upstream_conn.exchange(), Held::of_bytes(upstream_conn.inbuf.capacity()));
        if let Some(exchange) = exchange {
            proxy.exchanges.note_held(&mut proxy.connections, exchange, held);
        }
    }
    input.clear();
}

/// How many bytes to read from an upstream at once; 0: none, and the source is resumed when there is room for them.
fn upstream_read_size(connections: &mut Connections, exchanges: &mut Exchanges, cx: &Context, key: Key) -> usize {
    let Some(Conn::Upstream(upstream_conn)) = connections.get(key) else { return 0 };
    match upstream_conn.phase {
        UpstreamPhase::Busy(exchange, _) => response_read_size(connections, exchanges, cx, exchange),
        _ => READ_SIZE,
    }
}

/// Whether more of this upstream's bytes could be used now.
fn upstream_wants(connections: &Connections, exchanges: &Exchanges, key: Key) -> bool {
    let Some(Conn::Upstream(upstream_conn)) = connections.get(key) else { return false };
    match &upstream_conn.phase {
        UpstreamPhase::Busy(exchange, _) => exchanges.get(*exchange).is_some_and(|x| !x.response_body().is_blocked()),
        UpstreamPhase::Making(_) => upstream_conn.phase.is_handshake(),
        UpstreamPhase::Shared(h2) => h2.is_drained(),
        UpstreamPhase::Idle | UpstreamPhase::Closing => false,
    }
}

/// Takes as much as can be used of an upstream's plaintext; returns how much.
fn consume_upstream(proxy: &mut Proxy, cx: &mut Context, key: Key, input: &[u8]) -> usize {
    let mut used = 0;
    loop {
        let Some(Conn::Upstream(upstream_conn)) = proxy.connections.get_mut(key) else { return input.len() };
        let UpstreamPhase::Busy(exchange, answer) = &mut upstream_conn.phase else { return used };
        let exchange = *exchange;
        let Some(x) = proxy.exchanges.get_mut(exchange) else { return input.len() };
        let rest = &input[used..];
        if !x.machine().is_answered() {
            if rest.is_empty() {
                return used;
            }
            *answer = Answer::Begun;
            let limits = &proxy.settings.limits().http;
            let tolerance = upstream_conn.upstream.upstream.tolerance;
            match parse_response_tolerating(tolerance, rest, limits, x.request().method(), x.response_mut()) {
                Ok(None) => return used,
                Ok(Some(info)) => {
                    used += info.consumed;
                    // Bytes behind a response without a body are nobody's: the next response must not begin with them.
                    let trailing = info.body.is_empty() && used < input.len();
                    *answer = Answer::Headed { keep_alive: info.keep_alive && !trailing };
                    x.response_body_mut().begin_decoding(info.body, limits);
                    if !response_arrived(proxy, cx, exchange, info.body, info.upgrade) {
                        return input.len();
                    }
                }
                Err(e) => {
                    response_broken(proxy, cx, exchange, e);
                    return input.len();
                }
            }
        } else {
            match consume_response(proxy, cx, exchange, key, rest) {
                Some(n) => return used + n,
                None => return input.len(),
            }
        }
    }
}

/// Passes a response's body on as far as the client has room. `None` if the connection is over or reused.
fn consume_response(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key, input: &[u8]) -> Option<usize> {
    let mut used = 0;
    loop {
        let (rest, mut room) = (&input[used..], 0);
        if !rest.is_empty() {
            room = response_room(&mut proxy.connections, &mut proxy.exchanges, cx, exchange, rest.len())?;
            if room == 0 {
                return Some(used);
            }
        }
        let x = proxy.exchanges.get_mut(exchange)?;
        if rest.is_empty() && (x.machine().is_tunnel() || !x.response_body().is_decoded()) {
            return Some(used);
        }
        if x.machine().is_tunnel() {
            used += room;
            response_data(proxy, cx, exchange, &rest[..room], false);
            continue;
        }
        let piece = match x.response_body_mut().decode(rest, room) {
            Ok(piece) => piece,
            Err(e) => {
                response_broken(proxy, cx, exchange, e);
                return None;
            }
        };
        used += piece.consumed;
        let done = x.response_body().is_decoded();
        if done
            && used < input.len()
            && let Some(Conn::Upstream(upstream_conn)) = proxy.connections.get_mut(key)
        {
            // Bytes that nobody asked for: the next response must not begin with them.
            upstream_conn.phase = UpstreamPhase::Busy(exchange, Answer::Headed { keep_alive: false });
        }
        match piece.what {
            What::Data(data) => {
                if !response_data(proxy, cx, exchange, data, done) {
                    return None;
                }
            }
            What::NeedMore => return Some(used),
            What::Trailers => {
                x.response_body_mut().take_decoded_trailers();
                response_end(proxy, cx, exchange);
                return None;
            }
            What::End => {
                response_end(proxy, cx, exchange);
                return None;
            }
        }
    }
}

/// The upstream will send nothing more.
fn upstream_ended(proxy: &mut Proxy, cx: &mut Context, key: Key, clean: bool) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    if upstream_conn.is_h2() {
        return h2_upstream_lost(proxy, cx, key, false);
    }
    if upstream_conn.waiting().is_some_and(|waiting| !waiting.is_empty()) {
        return upstream_lost(proxy, cx, key, false);
    }
    let Some(exchange) = upstream_conn.exchange() else { return close_connection(proxy, cx, key) };
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return close_connection(proxy, cx, key) };
    if x.machine().is_relay() && x.machine().response() == Phase::Complete {
        // It has been said already; what the client still says goes on.
        return;
    }
    if x.machine().response() == Phase::Streaming
        && clean
        && (x.machine().is_tunnel() || x.response_body_mut().may_end_here())
    {
        return response_end(proxy, cx, exchange);
    }
    upstream_lost(proxy, cx, key, false);
}

// The sink of requests: the operations of `streams`.

pub(crate) fn h1_server_data(
    connections: &mut Connections,
    scratch: &mut Scratch,
    key: Key,
    framing: BodyLength,
    data: &[u8],
) {
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    scratch.take_buffer(&mut upstream_conn.transport.stage);
    encode_body(&mut upstream_conn.transport.stage, framing, data);
    connections.mark_for_flush(key);
}

pub(crate) fn h1_server_end(connections: &mut Connections, exchanges: &Exchanges, exchange: Key, key: Key) {
    let (Some(Conn::Upstream(upstream_conn)), Some(x)) = (connections.get_mut(key), exchanges.get(exchange)) else {
        return;
    };
    if x.machine().is_tunnel() {
        upstream_conn.transport.finish_sending();
    } else {
        encode_body_end(&mut upstream_conn.transport.stage, x.request_body().framing(), x.request_body().trailers());
    }
    connections.mark_for_flush(key);
}
