//! HTTP/2 towards upstreams: streams as sources of responses and sinks of requests. `h2_connection` has the connection.
//!
//! ```text
//! h2 ── woken streams ─► response, data, trailers, resets ─► exchange (response_arrived, response_data, response_end)
//! ```

use crate::conn::Conn;
use crate::connections::Connections;
use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{connected, refuse, request_sent};
use crate::exchange::expiry::sweep;
use crate::exchange::response::{
    not_taken, response_arrived, response_broken, response_data, response_end, response_room, server_lost,
};
use crate::exchange::resume::resume_source;
use crate::exchange::streams::{Later, UpstreamStream};
use crate::exchange::websocket;
use crate::h2::backlog::{Incoming, Next};
use crate::h2::wake::StreamWaker;
use crate::h2::{message, sink};
use crate::service::Proxy;
use crate::transport::MIN_CREDIT;
use crate::upstream::h2_connection::{
    H2Upstream, HEAD_LIMIT, Life, h2_upstream_close, is_limit, lost_with_connection, server_reset,
};
use crate::upstream::phase::UpstreamPhase;
use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use http::HeaderMap;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_exchange::{Action as Do, Loss};
use sealane_http::ParseError;
use sealane_lane::{Context, Key};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

pub(super) struct Stream {
    pub(super) exchange: Key,
    pub(super) response: Response,
    pub(super) send: SendStream<Bytes>,
    pub(super) slot: Arc<StreamWaker>,
    pub(super) waker: Waker,
    /// END_STREAM has been given.
    pub(super) ended: bool,
    /// The request asks for a tunnel.
    pub(super) tunnel: bool,
    pub(super) transport_blocked: bool,
}

/// How far the response of a stream has come:
///
/// ```text
/// Awaited ─► Coming ─────────────────────────────────► Taken
///               └──(the connection ends)──► Whole ───────▲
/// ```
pub(super) enum Response {
    /// Its head has not come.
    Awaited(ResponseFuture),
    /// Its head has come, and its body comes.
    Coming(Incoming),
    /// It has come whole, and its connection has ended before the client has taken all: what is left of it.
    Whole { rest: Bytes, trailers: Option<Box<HeaderMap>> },
    /// All of it has been taken.
    Taken,
}

impl Response {
    /// What comes next, after the head: bytes to [`Self::take`], or the end.
    #[inline]
    fn poll(&mut self, task: &mut task::Context<'_>) -> Poll<Result<Next, h2::Error>> {
        match self {
            Self::Coming(body) => body.poll(task),
            Self::Whole { rest, .. } if !rest.is_empty() => Poll::Ready(Ok(Next::Data(rest.len()))),
            Self::Whole { trailers, .. } => Poll::Ready(Ok(Next::End(trailers.take().map(|trailers| *trailers)))),
            Self::Awaited(_) | Self::Taken => Poll::Pending,
        }
    }

    /// Takes at most so many of the bytes that are at hand. Whether nothing follows them, not even trailers.
    #[inline]
    fn take(&mut self, most: usize) -> Option<(Bytes, bool)> {
        match self {
            Self::Coming(body) => {
                let piece = body.take(most);
                Some((piece, body.is_over()))
            }
            Self::Whole { rest, trailers } => {
                let piece = rest.split_to(most.min(rest.len()));
                Some((piece, rest.is_empty() && trailers.is_none()))
            }
            Self::Awaited(_) | Self::Taken => None,
        }
    }
}

fn h2_upstream_stream(connections: &mut Connections, key: Key, index: u32) -> Option<&mut Stream> {
    match connections.get_mut(key)? {
        Conn::Upstream(upstream_conn) => upstream_conn.h2_mut()?.streams.get_mut(index as usize),
        _ => None,
    }
}

/// Opens a stream for an exchange.
pub(super) fn h2_send_request(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key) {
    let Some(Conn::Upstream(upstream_conn)) = proxy.connections.get_mut(key) else { return };
    let secure = upstream_conn.transport.tls.is_some();
    let upstream = upstream_conn.upstream.clone();
    let Some(h2) = upstream_conn.h2_mut() else { return };
    if !h2.has_room() {
        // More have waited than the server takes at once, or it takes none.
        let (useful, why) = (h2.served > 0 && !h2.takes_none(), h2.refusal());
        return not_taken(proxy, cx, exchange, useful, why);
    }
    let switching = h2.switching();
    let Some(actions) = connected(proxy, cx, exchange, switching) else { return };
    let Proxy { connections, exchanges, .. } = proxy;
    let (Some(Conn::Upstream(upstream_conn)), Some(x)) = (connections.get_mut(key), exchanges.get_mut(exchange)) else {
        return;
    };
    let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return };
    if actions.has(Do::AwaitSettings) {
        x.await_connection(UpstreamStream::Waiting(key));
        if let Some(waiting) = h2.waiting_mut() {
            waiting.push_back(exchange);
        }
        return;
    }
    let websocket = x.machine().asks_server_to_switch();
    let tunnel = websocket || x.request().method() == sealane_http::Method::Connect;
    let Ok(request) = message::write_request(x, secure, websocket) else {
        x.leave_connection();
        return refuse(proxy, cx, exchange, 400);
    };
    let ended = x.body().is_empty() && !tunnel;
    let (response, send) = match h2.requests.send_request(request, ended) {
        Ok(sent) => sent,
        Err(_) => {
            h2.leave();
            x.leave_connection();
            return server_lost(proxy, cx, exchange, Loss::Unprocessed);
        }
    };
    let index = h2.streams.vacant_key() as u32;
    let slot = StreamWaker::new(key, index);
    h2.streams.insert(Stream {
        exchange,
        response: Response::Awaited(response),
        send,
        waker: slot.waker(),
        slot,
        ended,
        tunnel,
        transport_blocked: false,
    });
    h2.served += 1;
    h2.progress = cx.now();
    if h2.streams.len() == 1 {
        upstream_conn.deadline.set(cx, key, cx.now() + sweep([upstream.upstream.idle_timeout]));
    }
    let side = UpstreamStream::H2(key, index);
    request_sent(proxy, cx, exchange, side, actions);
    // From now on its response wakes it.
    h2_server_read(proxy, cx, exchange, key, index);
    proxy.connections.mark_for_flush(key);
}

/// `h2` says that something has come of a stream.
pub(crate) fn h2_server_woken(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    let Some(stream) = h2_upstream_stream(&mut proxy.connections, key, index) else { return };
    let exchange = stream.exchange;
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if x.request_body_mut().unblock(cx.now()) {
        resume_source(proxy, cx, Later::Client(exchange));
    }
    h2_server_read(proxy, cx, exchange, key, index);
}

/// Takes what has come of a response, as far as there is room for it.
pub(crate) fn h2_server_read(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key, index: u32) {
    loop {
        let limits = &proxy.settings.limits().http;
        let Proxy { connections, exchanges, .. } = proxy;
        let Some(x) = exchanges.get_mut(exchange) else { return };
        if x.upstream_stream() != Some(UpstreamStream::H2(key, index)) || x.response_body().is_blocked() {
            return;
        }
        let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
        let Some(H2Upstream { streams, answered, blocks, .. }) = upstream_conn.h2_mut() else { return };
        let Some(stream) = streams.get_mut(index as usize) else { return };
        let mut task = task::Context::from_waker(&stream.waker);
        if let Response::Awaited(future) = &mut stream.response {
            let response = match future.poll_informational(&mut task) {
                Poll::Pending => return,
                Poll::Ready(Some(interim)) => interim,
                Poll::Ready(None) => match Pin::new(future).poll(&mut task) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(response)) => {
                        let (parts, body) = response.into_parts();
                        stream.response = Response::Coming(Incoming::new(body));
                        *answered = true;
                        Ok(http::Response::from_parts(parts, ()))
                    }
                    Poll::Ready(Err(e)) => Err(e),
                },
            };
            let parts = match response {
                Ok(response) => response.into_parts().0,
                Err(e) => {
                    return h2_stream_lost(proxy, cx, exchange, &e);
                }
            };
            let ended = matches!(&stream.response, Response::Coming(body) if body.is_over());
            let method = if stream.tunnel { sealane_http::Method::Connect } else { x.request().method() };
            let noted = blocks.take(stream.send.stream_id().as_u32());
            let info = match message::read_response(&parts, noted, ended, limits, method, x.response_mut()) {
                Ok(info) => info,
                Err(e) => return response_broken(proxy, cx, exchange, e),
            };
            if info.upgrade && x.machine().asks_server_to_switch() {
                websocket::switch(x);
            }
            let done = info.body.is_empty() && !info.upgrade && x.response().status >= 200;
            if !response_arrived(proxy, cx, exchange, info.body, info.upgrade) {
                return;
            }
            if done {
                return response_end(proxy, cx, exchange);
            }
            continue;
        }
        let want = match stream.response.poll(&mut task) {
            Poll::Pending => return,
            Poll::Ready(Err(e)) => return h2_stream_lost(proxy, cx, exchange, &e),
            Poll::Ready(Ok(Next::Data(bytes))) => bytes,
            Poll::Ready(Ok(Next::End(trailers))) => {
                stream.response = Response::Taken;
                let noted = blocks.take(stream.send.stream_id().as_u32());
                let into = x.response_body_mut().trailers_mut();
                return match message::read_trailers(trailers.as_ref(), noted, HEAD_LIMIT as usize, limits, into) {
                    Ok(()) => response_end(proxy, cx, exchange),
                    Err(e) => response_broken(proxy, cx, exchange, e),
                };
            }
        };
        let room = match response_room(&mut proxy.connections, &mut proxy.exchanges, cx, exchange, want) {
            None | Some(0) => return,
            Some(room) => room,
        };
        let Some(stream) = h2_upstream_stream(&mut proxy.connections, key, index) else { return };
        let Some((piece, last)) = stream.response.take(want.min(room)) else { return };
        proxy.connections.mark_for_flush(key);
        if !response_data(proxy, cx, exchange, &piece, last) {
            return;
        }
    }
}

/// Whether `h2` has reset an exchange's stream because its head is too large. It says no more than PROTOCOL_ERROR.
fn is_head_too_large(connections: &Connections, exchanges: &Exchanges, exchange: Key, e: &h2::Error) -> bool {
    if !(e.is_library() && e.is_reset() && e.reason() == Some(Reason::PROTOCOL_ERROR)) {
        return false;
    }
    let Some(UpstreamStream::H2(key, index)) = exchanges.get(exchange).and_then(|x| x.upstream_stream()) else {
        return false;
    };
    let Some(Conn::Upstream(upstream_conn)) = connections.get(key) else { return false };
    upstream_conn.h2().is_some_and(|h2| {
        let stream = h2.streams.get(index as usize).filter(|s| matches!(s.response, Response::Awaited(_)));
        stream.is_some_and(|s| s.send.stream_id().as_u32() == h2.block.0) && h2.block.1 > HEAD_LIMIT
    })
}

/// What [`lost_with_connection`] asks of an exchange's connection and stream.
fn h2_state_at_loss(connections: &Connections, exchanges: &Exchanges, exchange: Key) -> (bool, bool) {
    let Some(UpstreamStream::H2(key, index)) = exchanges.get(exchange).and_then(|x| x.upstream_stream()) else {
        return (false, false);
    };
    let Some(Conn::Upstream(upstream_conn)) = connections.get(key) else { return (false, false) };
    let Some(h2) = upstream_conn.h2() else { return (false, false) };
    let stream = h2.streams.get(index as usize);
    (h2.answered, stream.is_some_and(|s| h2.suspects.has(s.send.stream_id().as_u32())))
}

/// A stream has ended with an error.
fn h2_stream_lost(proxy: &mut Proxy, cx: &mut Context, exchange: Key, e: &h2::Error) {
    if is_head_too_large(&proxy.connections, &proxy.exchanges, exchange, e) {
        return response_broken(proxy, cx, exchange, ParseError::HeadTooLarge);
    }
    let why = match server_reset(e) {
        _ if is_limit(e) => Loss::Limited,
        Some(reset) => Loss::of_reset(reset, proxy.exchanges.get(exchange).is_some_and(Exchange::is_grpc_call)),
        // `h2` has reset it.
        None if e.is_reset() => Loss::Broken,
        None => {
            let (answered, suspect) = h2_state_at_loss(&proxy.connections, &proxy.exchanges, exchange);
            lost_with_connection(e, answered, suspect)
        }
    };
    server_lost(proxy, cx, exchange, why);
}

/// How much of `want` bytes can be taken.
pub(crate) fn h2_server_credit(connections: &mut Connections, key: Key, index: u32, want: usize) -> usize {
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return 0 };
    let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return 0 };
    if h2.life == Life::Over {
        return want;
    }
    let room = upstream_conn.transport.room(h2.fed, want);
    let Some(stream) = h2.streams.get_mut(index as usize) else { return 0 };
    if room == 0 {
        stream.transport_blocked = true;
        connections.mark_for_flush(key);
        return 0;
    }
    // As towards clients: no more is reserved than there is to send.
    let want = want.min(room);
    sink::reserve(&mut stream.send, &stream.waker, want)
}

pub(crate) fn h2_server_data(
    connections: &mut Connections,
    cx: &mut Context,
    key: Key,
    index: u32,
    data: &[u8],
    last: bool,
) {
    let now = cx.now();
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return };
    let Some(stream) = h2.streams.get_mut(index as usize) else { return };
    h2.fed += data.len() + 9;
    h2.progress = now;
    stream.ended |= last;
    // It fails where the stream has been reset, and then the response says so.
    let _ = stream.send.send_data(Bytes::copy_from_slice(data), last);
    connections.mark_for_flush(key);
}

pub(crate) fn h2_server_end(connections: &mut Connections, exchanges: &Exchanges, exchange: Key, key: Key, index: u32) {
    let (Some(x), Some(Conn::Upstream(upstream_conn))) = (exchanges.get(exchange), connections.get_mut(key)) else {
        return;
    };
    let Some(stream) = upstream_conn.h2_mut().and_then(|h| h.streams.get_mut(index as usize)) else { return };
    if std::mem::replace(&mut stream.ended, true) {
        return;
    }
    sink::end(&mut stream.send, x.request_body().trailers());
    connections.mark_for_flush(key);
}

/// The exchange needs its stream no more; what has not ended is reset by `h2` (CANCEL).
pub(crate) fn h2_server_finish(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    let draining = proxy.settings.is_draining();
    let Some(Conn::Upstream(upstream_conn)) = proxy.connections.get_mut(key) else { return };
    let config = upstream_conn.upstream.clone();
    let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return };
    let Some(Stream { slot, send, .. }) = h2.streams.try_remove(index as usize) else { return };
    h2.blocks.forget(send.stream_id().as_u32());
    drop(send);
    StreamWaker::retire(slot);
    if h2.streams.is_empty() {
        h2.idle_since = cx.now();
        if h2.life != Life::Open || draining || config.upstream.keepalive == 0 || h2.takes_none() {
            return h2_upstream_close(proxy, cx, key);
        }
        let at = config.upstream.until(ConnectionWait::Request, cx.now());
        upstream_conn.deadline.set(cx, key, at);
    }
    proxy.connections.mark_for_flush(key);
}

/// The request is called off.
pub(crate) fn h2_server_reset(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    if let Some(stream) = h2_upstream_stream(&mut proxy.connections, key, index) {
        stream.send.send_reset(Reason::CANCEL);
    }
    h2_server_finish(proxy, cx, key, index);
}

/// There is room on the wire again.
pub(crate) fn h2_upstream_room(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(Conn::Upstream(upstream_conn)) = proxy.connections.get_mut(key) else { return };
    let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return };
    if upstream_conn.transport.room(h2.fed, MIN_CREDIT) == 0 {
        // They would get none and mark the connection again: the lane would never sleep.
        return;
    }
    let mut blocked = Vec::new();
    for (_, stream) in h2.streams.iter_mut().filter(|(_, s)| s.transport_blocked) {
        stream.transport_blocked = false;
        blocked.push(stream.exchange);
    }
    for exchange in blocked {
        if let Some(x) = proxy.exchanges.get_mut(exchange)
            && x.request_body_mut().unblock(cx.now())
        {
            resume_source(proxy, cx, Later::Client(exchange));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of a response when its connection has ended: its bytes are not the last of the stream if trailers follow.
    #[test]
    fn the_rest_of_a_response_ends_with_its_trailers() {
        for trailers in [None, Some(HeaderMap::from_iter([(http::header::TE, http::HeaderValue::from_static("x"))]))] {
            let (has_trailers, mut task) = (trailers.is_some(), task::Context::from_waker(Waker::noop()));
            let mut response =
                Response::Whole { rest: Bytes::from_static(b"abc"), trailers: trailers.clone().map(Box::new) };
            assert!(matches!(response.poll(&mut task), Poll::Ready(Ok(Next::Data(3)))));
            assert_eq!(response.take(2), Some((Bytes::from_static(b"ab"), false)));
            assert_eq!(response.take(2), Some((Bytes::from_static(b"c"), !has_trailers)));
            assert!(matches!(response.poll(&mut task), Poll::Ready(Ok(Next::End(end))) if end == trailers));
        }
    }
}
