//! HTTP/2 towards upstreams: connections that many exchanges share, and their streams as sources of responses and
//! sinks of requests.
//!
//! ```text
//! dispatch ─► h2_send_request ─► h2 ─► pipe ─► stage
//! plaintext ─► pipe ─► h2 ── woken streams ─► response, data, trailers, resets ─► exchange (response_arrived, down_*)
//! ```

use crate::Failure;
use crate::client::h2::SEND_BUFFER;
use crate::conn::{Conn, UpstreamPhase};
use crate::connections::Connections;
use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::refuse;
use crate::exchange::request::request_sent;
use crate::exchange::response::{
    Loss, response_arrived, response_broken, response_data, response_end, response_room, server_lost,
};
use crate::exchange::streams::{ClientStream, Later, UpstreamStream, resume_source};
use crate::exchange::websocket;
use crate::h2::backlog::{self, BITE, Backlog, NO_BUDGET};
use crate::h2::frames::{ACK, CONTINUATION, Event, Frames, HEADERS, Header, SETTINGS};
use crate::h2::pipe::Pipe;
use crate::h2::wake::StreamWaker;
use crate::h2::{h2_woken, message};
use crate::lifecycle::close_connection;
use crate::service::Proxy;
use crate::upstream::connection::{dispatch_request, upstream_lost};
use bytes::Bytes;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use sealane_http::{Known, ParseError};
use sealane_lane::{Context, Key, Millis};
use slab::Slab;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::Duration;

/// Bytes of response bodies that a server may have under way, per stream and per connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Streams that were reset, and how long they are known: what is still on its way for them is ignored. Clients call off
/// many gRPC streams at once, and servers go on for a round trip.
const RESET_STREAMS: usize = 1024;
const RESET_KNOWN_FOR: Duration = Duration::from_secs(5);
/// Frames of a server that may come for streams that are not known any more.
const STRAY_FRAMES: usize = 65_536;
/// Most streams on one connection, whatever the server allows.
const MOST_STREAMS: usize = 128;
/// Most exchanges that wait for a connection that is being made.
const MOST_WAITING: usize = 128;
/// Most bytes of a response's head and of its trailers.
const HEAD_LIMIT: u32 = 64 * 1024;
/// How often a connection with streams is looked at, at least.
const SWEEP: Millis = 1000;

pub(crate) struct H2Upstream {
    requests: SendRequest<Bytes>,
    connection: client::Connection<Pipe, Bytes>,
    pipe: Pipe,
    frames: Frames,
    backlog: Backlog,
    streams: Slab<Stream>,
    /// Bytes given to `h2` since it last wrote.
    fed: usize,
    /// The server's SETTINGS have come.
    has_settings: bool,
    /// They are in force.
    greeted: bool,
    /// Bytes of the header block that came last, and its stream.
    block: (u32, u32),
    /// Requests sent so far.
    served: u64,
    /// The server takes no more requests here.
    leaving: bool,
    /// `h2` has ended. What is left are responses that have come whole, and that their clients have not taken yet.
    over: bool,
    /// Since when there is no stream.
    idle_since: Millis,
    /// When the server last took something.
    progress: Millis,
    /// Bytes that waited to be sent when that was last looked at.
    waited: usize,
    /// When it was made.
    began: Millis,
    /// `h2` has ended it because the server sends too much of something.
    limited: bool,
}

struct Stream {
    exchange: Key,
    /// There until the response's head has come.
    response: Option<ResponseFuture>,
    send: SendStream<Bytes>,
    /// There from the response's head to its end.
    body: Option<RecvStream>,
    rest: Bytes,
    /// The response has come whole, with these trailers, and `rest` is what is left of it; set where the connection ends
    /// before the client has taken all.
    whole: Option<Option<Box<http::HeaderMap>>>,
    slot: Arc<StreamWaker>,
    waker: Waker,
    /// END_STREAM has been given.
    ended: bool,
    /// The request asks for a tunnel.
    tunnel: bool,
    transport_blocked: bool,
}

impl H2Upstream {
    /// Writes the preface. `None` if `h2` wants more than that at once, which it does not.
    fn new(now: Millis, stage: &mut Vec<u8>) -> Option<Self> {
        let pipe = Pipe::default();
        let mut builder = client::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEAD_LIMIT)
            .max_send_buffer_size(SEND_BUFFER)
            .data_frame_budget(NO_BUDGET)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .reset_stream_duration(RESET_KNOWN_FOR)
            .max_local_error_reset_streams(Some(STRAY_FRAMES))
            .enable_push(false);
        pipe.attach(stage, usize::MAX);
        let polled = pin!(builder.handshake(pipe.clone())).poll(&mut task::Context::from_waker(Waker::noop()));
        pipe.detach(stage);
        let Poll::Ready(Ok((requests, connection))) = polled else { return None };
        Some(Self {
            requests,
            connection,
            pipe,
            frames: Frames::new(),
            backlog: Backlog::default(),
            streams: Slab::new(),
            fed: 0,
            has_settings: false,
            greeted: false,
            block: (0, 0),
            served: 0,
            leaving: false,
            over: false,
            idle_since: now,
            progress: now,
            waited: 0,
            began: now,
            limited: false,
        })
    }

    /// Lets `h2` read what there is and write what there is room for. True when the connection is over.
    fn poll(&mut self, stage: &mut Vec<u8>, room: usize) -> bool {
        self.pipe.attach(stage, room);
        let polled = Pin::new(&mut self.connection).poll(&mut task::Context::from_waker(Waker::noop()));
        self.pipe.detach(stage);
        self.fed = 0;
        if let Poll::Ready(Err(e)) = &polled {
            self.limited |= is_limit(e);
        }
        polled.is_ready()
    }

    /// Notes what `h2` does not tell of the input.
    fn observe(&mut self, input: &[u8]) {
        let Self { frames, backlog, has_settings, block, .. } = self;
        let Ok(()) = frames.read(input, |event| {
            match event {
                Event::Begins(header) => {
                    backlog.note(header);
                    match header.kind {
                        HEADERS => *block = (header.stream, header.length),
                        CONTINUATION => block.1 = block.1.saturating_add(header.length),
                        _ => {}
                    }
                }
                Event::Ends(Header { kind: SETTINGS, flags, .. }, _) => *has_settings |= flags & ACK == 0,
                _ => {}
            }
            Ok::<(), Infallible>(())
        });
    }

    /// Lets `h2` read the rest of the input, or a bite of it where small frames may be many.
    fn allow_input(&mut self) {
        self.pipe.allow(self.backlog.is_full().then_some(BITE));
    }

    /// Takes small frames that nobody has room for out of `h2`. Whether there is more input to read.
    fn relieve(&mut self) -> bool {
        if !self.backlog.is_full() {
            return false;
        }
        for (_, Stream { body, rest, waker, .. }) in &mut self.streams {
            if let Some(body) = body {
                backlog::drain(body, rest, waker);
            }
        }
        if self.pipe.is_drained() {
            self.backlog.clear();
        }
        self.pipe.is_bitten()
    }

    /// Whether another request can be sent here.
    fn has_room(&mut self) -> bool {
        let mut task = task::Context::from_waker(Waker::noop());
        match self.requests.poll_ready(&mut task) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => self.leaving = true,
            Poll::Pending => return false,
        }
        !self.leaving && self.streams.len() < self.requests.current_max_send_streams().min(MOST_STREAMS)
    }

    /// Nothing of what the server has sent waits to be looked at, and more may come.
    pub fn is_drained(&self) -> bool {
        !self.over && self.pipe.is_drained()
    }

    /// Lets `h2` read all input that is left, whatever it has to say to it.
    fn read_all(&mut self) {
        let mut discarded = Vec::new();
        self.pipe.allow(None);
        self.poll(&mut discarded, usize::MAX);
    }

    /// Takes what is left of responses that have come whole out of `h2`, which forgets where they end.
    fn keep_whole(&mut self) {
        for (_, Stream { body, rest, waker, whole, .. }) in &mut self.streams {
            let Some(body) = body else { continue };
            if backlog::drain(body, rest, waker)
                && let Poll::Ready(Ok(trailers)) = body.poll_trailers(&mut task::Context::from_waker(waker))
            {
                *whole = Some(trailers.map(Box::new));
            }
        }
    }
}

// Connections.

/// Finds a shared connection for an exchange, or one that is being made. False if there is none. After the loss of a
/// connection only those are joined that were begun since.
pub(crate) fn h2_join(proxy: &mut Proxy, cx: &mut Context, exchange: Key) -> bool {
    let Some(x) = proxy.exchanges.get(exchange) else { return true };
    let Some(upstream) = x.upstream.clone() else { return true };
    let (server, lost_at, websocket) = (x.server, x.routed.lost_at, websocket::is_asked(x));
    let mut at = 0;
    while let Some(key) = upstream.shared(server, at) {
        at += 1;
        let Some(Conn::Upstream(upstream_conn)) = proxy.connections.get_mut(key) else { continue };
        match &mut upstream_conn.h2 {
            Some(h2) => {
                if lost_at.is_some_and(|at| h2.began < at) || !h2.has_room() {
                    continue;
                }
                if websocket && !h2.greeted && upstream_conn.waiting.len() >= MOST_WAITING {
                    continue;
                }
                if h2.served > 0 {
                    proxy.counters.upstream_reused.inc();
                }
                h2_send_request(proxy, cx, exchange, key);
                return true;
            }
            None if upstream_conn.waiting.len() < MOST_WAITING => {
                upstream_conn.waiting.push(exchange);
                if let Some(x) = proxy.exchanges.get_mut(exchange) {
                    x.upstream_stream = Some(UpstreamStream::Waiting(key));
                }
                return true;
            }
            _ => {}
        }
    }
    false
}

/// A connection to an upstream turns out to speak HTTP/2: those who wait for it begin.
pub(crate) fn h2_upstream_begin(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let now = cx.now();
    let Proxy { connections, scratch, .. } = proxy;
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    scratch.pool.take_buffer(&mut upstream_conn.transport.stage);
    let Some(h2) = H2Upstream::new(now, &mut upstream_conn.transport.stage) else {
        return upstream_lost(proxy, cx, key, false);
    };
    upstream_conn.h2 = Some(Box::new(h2));
    upstream_conn.phase = UpstreamPhase::Busy;
    if !std::mem::replace(&mut upstream_conn.shared, true) {
        upstream_conn.upstream.share(upstream_conn.server, key);
    }
    let mut waiting = std::mem::take(&mut upstream_conn.waiting);
    waiting.extend(upstream_conn.exchange.take());
    upstream_conn.deadline.after(cx, key, upstream_conn.upstream.upstream.keepalive_timeout);
    proxy.counters.h2_upstream_connections.inc();
    for exchange in waiting {
        let Some(x) = proxy.exchanges.get(exchange) else { continue };
        // One that was called off and goes elsewhere does not wait here any more.
        if matches!(x.upstream_stream, Some(UpstreamStream::Waiting(k) | UpstreamStream::H1(k)) if k == key) {
            h2_send_request(proxy, cx, exchange, key);
        }
    }
    proxy.connections.mark_for_flush(key);
}

/// Takes plaintext; `input` is a buffer to use again.
pub(crate) fn h2_upstream_take(proxy: &mut Proxy, cx: &mut Context, key: Key, input: &mut Vec<u8>) {
    let Some(h2) = proxy.connections.upstream(key).and_then(|b| b.h2.as_mut()) else { return input.clear() };
    if !input.is_empty() {
        h2.observe(input);
        h2.pipe.give(input);
    }
    h2_upstream_drive(proxy, cx, key);
    proxy.connections.mark_for_flush(key);
    match proxy.connections.upstream(key).and_then(|b| b.h2.as_mut()) {
        Some(h2) => h2.pipe.take_back(input),
        None => input.clear(),
    }
}

/// Goes on with those who wanted to know the server's SETTINGS first, once `h2` has applied them.
fn h2_greeted(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let Some(h2) = &mut upstream_conn.h2 else { return };
    // `h2` applies them when it has written that it has got them.
    if !h2.has_settings || !h2.pipe.is_drained() || upstream_conn.transport.frame_room() == 0 {
        return;
    }
    h2.greeted = true;
    for exchange in std::mem::take(&mut upstream_conn.waiting) {
        if proxy.exchanges.waits_for(exchange, key) {
            h2_send_request(proxy, cx, exchange, key);
        }
    }
}

/// Lets the connection get on.
pub(crate) fn h2_upstream_drive(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    loop {
        let Proxy { connections, scratch, .. } = proxy;
        let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
        let Some(h2) = &mut upstream_conn.h2 else { return };
        if h2.over {
            return;
        }
        h2.allow_input();
        scratch.pool.take_buffer(&mut upstream_conn.transport.stage);
        let room = upstream_conn.transport.frame_room() + upstream_conn.transport.stage.len();
        let over = h2.poll(&mut upstream_conn.transport.stage, room);
        if over {
            if h2.limited {
                h2_note_limit(proxy, key);
            }
            return h2_upstream_lost(proxy, cx, key, false);
        }
        h2_woken(proxy, cx);
        let Some(h2) = proxy.connections.upstream(key).and_then(|b| b.h2.as_mut()) else { return };
        if !h2.relieve() {
            if !h2.greeted {
                h2_greeted(proxy, cx, key);
            }
            return;
        }
    }
}

/// A connection is over: each of its streams is told, but for those whose responses have come whole. Their clients get the
/// rest as they take it.
pub(crate) fn h2_upstream_lost(proxy: &mut Proxy, cx: &mut Context, key: Key, timeout: bool) {
    // What has come of responses before the end is theirs.
    h2_woken(proxy, cx);
    let Some(h2) = proxy.connections.upstream(key).and_then(|b| b.h2.as_mut()) else { return };
    if h2.over {
        return;
    }
    let was_limited = h2.limited;
    h2.read_all();
    if h2.limited && !was_limited {
        h2_note_limit(proxy, key);
    }
    h2_woken(proxy, cx);
    let Proxy { connections, exchanges, .. } = proxy;
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    let Some(h2) = &mut upstream_conn.h2 else { return };
    h2.keep_whole();
    h2.pipe.end();
    h2.leaving = true;
    h2.over = true;
    // Sets the streams' ends, of which those that the server has never looked at are told apart.
    h2.read_all();
    let mut task = task::Context::from_waker(Waker::noop());
    let limited = h2.limited;
    let kept = h2.served > h2.streams.len() as u64;
    let mut lost = Vec::new();
    for (_, stream) in &mut h2.streams {
        if stream.whole.is_some() {
            // What is still sent to the server goes nowhere.
            if exchanges.get_mut(stream.exchange).is_some_and(|x| x.request_body.unblock(cx.now())) {
                exchanges.go_on_later(Later::Client(stream.exchange));
            }
            continue;
        }
        let mut why = if timeout { Loss::Timeout } else { Loss::Broken };
        if let Some(response) = &mut stream.response {
            match Pin::new(response).poll(&mut task) {
                Poll::Ready(Err(e)) if unprocessed(&e) => why = Loss::Unprocessed,
                _ if kept && !timeout => why = Loss::Stale,
                _ => {}
            }
        }
        if limited {
            why = Loss::Limited;
        }
        lost.push((stream.exchange, why));
    }
    let is_empty = h2.streams.len() == lost.len();
    // Nothing has been sent for those who wait.
    let waiting = std::mem::take(&mut upstream_conn.waiting).into_iter();
    lost.extend(waiting.filter(|x| exchanges.waits_for(*x, key)).map(|x| (x, Loss::Unprocessed)));
    if is_empty {
        close_connection(proxy, cx, key);
    } else if std::mem::take(&mut upstream_conn.shared) {
        upstream_conn.upstream.unshare(upstream_conn.server, key);
    }
    for (exchange, why) in lost {
        server_lost(proxy, cx, exchange, why);
    }
}

/// Counts a connection that `h2` ends because the server sends too much of something, and tells its requests if that is a head.
fn h2_note_limit(proxy: &mut Proxy, key: Key) {
    let Proxy { connections, exchanges, counters, .. } = proxy;
    counters.h2_upstream_limits.inc();
    let Some(h2) = connections.upstream(key).and_then(|b| b.h2.as_ref()) else { return };
    if h2.block.1 <= HEAD_LIMIT {
        return;
    }
    counters.parse_errors[ParseError::HeadTooLarge.index()].inc();
    for (_, stream) in &h2.streams {
        if let Some(x) = exchanges.get_mut(stream.exchange) {
            x.routed.hint = Some(Failure::Nonsense(ParseError::HeadTooLarge));
        }
    }
}

/// Whether `h2` has reset an exchange's stream because its head is too large. It says no more than PROTOCOL_ERROR.
fn is_head_too_large(connections: &Connections, exchanges: &Exchanges, exchange: Key, e: &h2::Error) -> bool {
    if !(e.is_library() && e.is_reset() && e.reason() == Some(Reason::PROTOCOL_ERROR)) {
        return false;
    }
    let Some(UpstreamStream::H2(key, index)) = exchanges.get(exchange).and_then(|x| x.upstream_stream) else {
        return false;
    };
    let Some(Conn::Upstream(upstream_conn)) = connections.get(key) else { return false };
    upstream_conn.h2.as_ref().is_some_and(|h2| {
        let stream = h2.streams.get(index as usize).filter(|s| s.response.is_some());
        stream.is_some_and(|s| s.send.stream_id().as_u32() == h2.block.0) && h2.block.1 > HEAD_LIMIT
    })
}

/// Closes a connection without streams. Requests that wait for the server's SETTINGS go elsewhere.
fn h2_upstream_close(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let waiting = std::mem::take(&mut upstream_conn.waiting);
    close_connection(proxy, cx, key);
    for exchange in waiting {
        if proxy.exchanges.waits_for(exchange, key) {
            server_lost(proxy, cx, exchange, Loss::Unprocessed);
        }
    }
}

/// Looks at what has run out of time on a connection.
pub(crate) fn h2_upstream_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let now = cx.now();
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let config = upstream_conn.upstream.clone();
    let config = &config.upstream;
    let Some(h2) = &mut upstream_conn.h2 else { return };
    let stuck = !h2.over && !upstream_conn.transport.is_flushed();
    let over = |since: Millis, limit: std::time::Duration| now.saturating_sub(since) >= limit.as_millis() as Millis;
    let waits = upstream_conn.transport.waiting();
    if !stuck || waits < std::mem::replace(&mut h2.waited, waits) {
        h2.progress = now;
    }
    if stuck && over(h2.progress, config.idle_timeout) {
        proxy.counters.upstream_timeouts.inc();
        return h2_upstream_lost(proxy, cx, key, true);
    }
    if h2.streams.is_empty() {
        if h2.leaving || over(h2.idle_since, config.keepalive_timeout) {
            return h2_upstream_close(proxy, cx, key);
        }
        let at = h2.idle_since + config.keepalive_timeout.as_millis() as Millis;
        return upstream_conn.deadline.set(cx, key, at);
    }
    let next = now + sweep(config);
    upstream_conn.deadline.set(cx, key, next);
}

// Streams.

fn h2_upstream_stream(connections: &mut Connections, key: Key, index: u32) -> Option<&mut Stream> {
    match connections.get_mut(key)? {
        Conn::Upstream(upstream_conn) => upstream_conn.h2.as_mut()?.streams.get_mut(index as usize),
        _ => None,
    }
}

/// Opens a stream for an exchange.
fn h2_send_request(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key) {
    let Proxy { connections, exchanges, .. } = proxy;
    let (Some(Conn::Upstream(upstream_conn)), Some(x)) = (connections.get_mut(key), exchanges.get_mut(exchange)) else {
        return;
    };
    let secure = upstream_conn.transport.tls.is_some();
    let upstream = upstream_conn.upstream.clone();
    let Some(h2) = &mut upstream_conn.h2 else { return };
    if !h2.has_room() {
        // More have waited than the server takes at once.
        x.upstream_stream = None;
        return dispatch_request(proxy, cx, exchange, false);
    }
    let websocket = websocket::is_asked(x);
    if websocket && !h2.requests.is_extended_connect_protocol_enabled() {
        // RFC 8441 §3: only to those who say that they take it.
        if !h2.greeted {
            x.upstream_stream = Some(UpstreamStream::Waiting(key));
            return upstream_conn.waiting.push(exchange);
        }
        x.upstream_stream = None;
        x.routed.failure = Some(Failure::NoExtendedConnect);
        proxy.counters.upstream_aborts.inc();
        return refuse(proxy, cx, exchange, 502);
    }
    // Another protocol than WebSocket cannot be switched to here; a server may ignore the wish (RFC 9110 §7.8).
    x.upgrade = websocket;
    if !websocket {
        x.machine.ignore_upgrade();
    }
    let tunnel = websocket || x.request.method() == sealane_http::Method::Connect;
    let Ok(request) = message::write_request(x, secure, websocket) else {
        x.upstream_stream = None;
        return refuse(proxy, cx, exchange, 400);
    };
    let ended = x.body.is_empty() && !tunnel;
    let (response, send) = match h2.requests.send_request(request, ended) {
        Ok(sent) => sent,
        Err(_) => {
            h2.leaving = true;
            x.upstream_stream = None;
            return server_lost(proxy, cx, exchange, Loss::Unprocessed);
        }
    };
    let index = h2.streams.vacant_key() as u32;
    let slot = StreamWaker::new(key, index);
    h2.streams.insert(Stream {
        exchange,
        response: Some(response),
        send,
        body: None,
        rest: Bytes::new(),
        whole: None,
        waker: slot.waker(),
        slot,
        ended,
        tunnel,
        transport_blocked: false,
    });
    h2.served += 1;
    h2.progress = cx.now();
    if h2.streams.len() == 1 {
        upstream_conn.deadline.set(cx, key, cx.now() + sweep(&upstream.upstream));
    }
    let side = UpstreamStream::H2(key, index);
    request_sent(proxy, cx, exchange, side);
    // From now on its response wakes it.
    h2_server_read(proxy, cx, exchange, key, index);
    proxy.connections.mark_for_flush(key);
}

/// `h2` says that something has come of a stream.
pub(crate) fn h2_server_woken(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    let Some(stream) = h2_upstream_stream(&mut proxy.connections, key, index) else { return };
    let exchange = stream.exchange;
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if x.request_body.unblock(cx.now()) {
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
        if x.upstream_stream != Some(UpstreamStream::H2(key, index)) || x.response_body.blocked {
            return;
        }
        let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
        let Some(stream) = upstream_conn.h2.as_mut().and_then(|h| h.streams.get_mut(index as usize)) else {
            return;
        };
        let mut task = task::Context::from_waker(&stream.waker);
        if let Some(future) = &mut stream.response {
            let response = match future.poll_informational(&mut task) {
                Poll::Pending => return,
                Poll::Ready(Some(interim)) => interim,
                Poll::Ready(None) => match Pin::new(future).poll(&mut task) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(response)) => {
                        let (parts, body) = response.into_parts();
                        stream.response = None;
                        stream.body = Some(body);
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
            let ended = stream.body.as_ref().is_some_and(RecvStream::is_end_stream);
            let method = if stream.tunnel { sealane_http::Method::Connect } else { x.request.method() };
            let info = match message::read_response(&parts, ended, limits, method, &mut x.response) {
                Ok(info) => info,
                Err(e) => return response_broken(proxy, cx, exchange, e),
            };
            if info.upgrade && x.upgrade {
                websocket::switch(x);
            }
            let done = info.body.is_empty() && !info.upgrade && x.response.status >= 200;
            if !response_arrived(proxy, cx, exchange, info.body, info.upgrade) {
                return;
            }
            if done {
                return response_end(proxy, cx, exchange);
            }
            continue;
        }
        let Some(body) = &mut stream.body else { return };
        if stream.rest.is_empty() {
            if let Some(trailers) = stream.whole.take() {
                stream.body = None;
                let read = trailers.map(|t| message::read_trailers(&t, limits, &mut x.response_body.trailers));
                return match read {
                    Some(Err(e)) => response_broken(proxy, cx, exchange, e),
                    _ => response_end(proxy, cx, exchange),
                };
            }
            match backlog::poll_joined(body, &mut task) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(data))) => stream.rest = data,
                Poll::Ready(Some(Err(e))) => return h2_stream_lost(proxy, cx, exchange, &e),
                Poll::Ready(None) => {
                    let trailers = match body.poll_trailers(&mut task) {
                        Poll::Pending => return,
                        Poll::Ready(Ok(trailers)) => trailers,
                        Poll::Ready(Err(e)) => return h2_stream_lost(proxy, cx, exchange, &e),
                    };
                    stream.body = None;
                    let read = trailers.map(|t| message::read_trailers(&t, limits, &mut x.response_body.trailers));
                    return match read {
                        Some(Err(e)) => response_broken(proxy, cx, exchange, e),
                        _ => response_end(proxy, cx, exchange),
                    };
                }
            }
            if stream.rest.is_empty() {
                continue;
            }
        }
        let want = stream.rest.len();
        let room = match response_room(&mut proxy.connections, &mut proxy.exchanges, cx, exchange, want) {
            None | Some(0) => return,
            Some(room) => room,
        };
        let Some(stream) = h2_upstream_stream(&mut proxy.connections, key, index) else { return };
        let piece = stream.rest.split_to(want.min(room));
        let Some(body) = &mut stream.body else { return };
        // The server may send as much again. It fails only where more is released than has come.
        let _ = body.flow_control().release_capacity(piece.len());
        let last = stream.rest.is_empty() && (body.is_end_stream() || matches!(stream.whole, Some(None)));
        proxy.connections.mark_for_flush(key);
        if !response_data(proxy, cx, exchange, &piece, last) {
            return;
        }
    }
}

/// A stream has ended with an error.
fn h2_stream_lost(proxy: &mut Proxy, cx: &mut Context, exchange: Key, e: &h2::Error) {
    if is_head_too_large(&proxy.connections, &proxy.exchanges, exchange, e) {
        return response_broken(proxy, cx, exchange, ParseError::HeadTooLarge);
    }
    let cancelled = e.is_remote() && e.is_reset() && e.reason() == Some(Reason::CANCEL);
    let why = match () {
        () if unprocessed(e) => Loss::Unprocessed,
        () if is_limit(e) => Loss::Limited,
        () if cancelled && proxy.exchanges.get(exchange).is_some_and(is_grpc) => Loss::Cancelled,
        () => Loss::Broken,
    };
    server_lost(proxy, cx, exchange, why);
}

/// How much of `want` bytes can be taken.
pub(crate) fn h2_server_credit(connections: &mut Connections, key: Key, index: u32, want: usize) -> usize {
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return 0 };
    let Some(h2) = &mut upstream_conn.h2 else { return 0 };
    if h2.over {
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
    stream.send.reserve_capacity(want);
    let capacity = stream.send.capacity();
    if capacity > 0 {
        return capacity.min(want);
    }
    match stream.send.poll_capacity(&mut task::Context::from_waker(&stream.waker)) {
        Poll::Ready(Some(Ok(capacity))) => capacity.min(want),
        _ => 0,
    }
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
    let Some(h2) = &mut upstream_conn.h2 else { return };
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
    let Some(stream) = upstream_conn.h2.as_mut().and_then(|h| h.streams.get_mut(index as usize)) else { return };
    if std::mem::replace(&mut stream.ended, true) {
        return;
    }
    // As above.
    let _ = match x.request_body.trailers.is_empty() {
        true => stream.send.send_data(Bytes::new(), true),
        false => stream.send.send_trailers(message::write_trailers(&x.request_body.trailers)),
    };
    connections.mark_for_flush(key);
}

/// The exchange needs its stream no more; what has not ended is reset by `h2` (CANCEL).
pub(crate) fn h2_server_finish(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    let draining = proxy.settings.is_draining();
    let Some(Conn::Upstream(upstream_conn)) = proxy.connections.get_mut(key) else { return };
    let config = upstream_conn.upstream.clone();
    let Some(h2) = &mut upstream_conn.h2 else { return };
    let Some(Stream { slot, .. }) = h2.streams.try_remove(index as usize) else { return };
    StreamWaker::retire(slot);
    if h2.streams.is_empty() {
        h2.idle_since = cx.now();
        if h2.leaving || draining || config.upstream.keepalive == 0 {
            return h2_upstream_close(proxy, cx, key);
        }
        upstream_conn.deadline.after(cx, key, config.upstream.keepalive_timeout);
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
    let Some(h2) = proxy.connections.upstream(key).and_then(|b| b.h2.as_mut()) else { return };
    let mut blocked = Vec::new();
    for (_, stream) in h2.streams.iter_mut().filter(|(_, s)| s.transport_blocked) {
        stream.transport_blocked = false;
        blocked.push(stream.exchange);
    }
    for exchange in blocked {
        if let Some(x) = proxy.exchanges.get_mut(exchange)
            && x.request_body.unblock(cx.now())
        {
            resume_source(proxy, cx, Later::Client(exchange));
        }
    }
}

/// Whether the server promises that it has not looked at the request (RFC 9113 §8.7): a stream refused, or beyond the
/// last one of its GOAWAY, which is when `h2` gives a stream the GOAWAY as its error.
fn unprocessed(e: &h2::Error) -> bool {
    e.is_remote() && (e.is_go_away() || e.is_reset() && e.reason() == Some(Reason::REFUSED_STREAM))
}

/// Whether `h2` has ended the connection because the server sends too much of something.
fn is_limit(e: &h2::Error) -> bool {
    e.is_library() && e.reason() == Some(Reason::ENHANCE_YOUR_CALM)
}

/// Whether the request is a gRPC call from a client that sees resets.
fn is_grpc(x: &Exchange) -> bool {
    let kind = x.request.fields.get(Known::ContentType);
    !matches!(x.client_stream, ClientStream::H1(_)) && kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// How long until a connection with streams is looked at again.
fn sweep(config: &crate::snapshot::Upstream) -> Millis {
    (config.idle_timeout.as_millis() as Millis / 4).clamp(1, SWEEP)
}
