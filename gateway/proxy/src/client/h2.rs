//! HTTP/2 towards clients: streams as sources of requests. `h2_responses` is the other half, `h2_connection` has the
//! connection.
//!
//! ```text
//! h2 ─ poll_accept ─► request ─► exchange (begin)
//!   └── woken streams ─► data, trailers, resets ─► exchange (request_data, request_end)
//! ```

use crate::client::h2_connection::{H2Client, next_look};
use crate::client::state::Protocol;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::executor::{abort_exchange, begin_request, note_malformed, refuse_head};
use crate::exchange::priority::Priority;
use crate::exchange::request::{request_broken, request_data, request_end, request_room};
use crate::exchange::resume::resume_source;
use crate::exchange::streams::{ClientStream, Later};
use crate::exchange::waste::{calling_off_wastes, client_wasted};
use crate::h2::backlog::{Incoming, Next};
use crate::h2::message;
use crate::h2::wake::StreamWaker;
use crate::renewal::rules_hold;
use crate::service::Proxy;
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Request;
use sealane_exchange::Phase;
use sealane_http::ParseError;
use sealane_lane::{Context, Key};
use std::sync::Arc;
use std::task::{self, Poll, Waker};

/// One request and its response. It lives as long as its exchange.
pub(crate) struct Stream {
    pub(super) exchange: Key,
    pub(super) id: u32,
    pub(super) response: Response,
    /// There until the request has come whole.
    pub(super) body: Option<Incoming>,
    pub(super) slot: Arc<StreamWaker>,
    pub(super) waker: Waker,
    pub(super) priority: Priority,
    /// It waits for room on the wire, or in the window of all streams.
    pub(super) transport_blocked: bool,
    /// The client's window had less room than was wanted.
    pub(super) narrow: bool,
    /// When it last had its turn.
    pub(super) turn: u64,
}

/// How far the response of a stream has been sent.
pub(super) enum Response {
    /// Its head has not been sent; never, where the client has reset the stream.
    Awaited(SendResponse<Bytes>),
    /// Its head has been sent. `ended`: END_STREAM has been given.
    Begun { send: SendStream<Bytes>, ended: bool },
}

impl Response {
    /// Whether the client has reset the stream; if not, its waker says when.
    fn is_reset(&mut self, task: &mut task::Context<'_>) -> bool {
        match self {
            Self::Awaited(respond) => respond.poll_reset(task).is_ready(),
            Self::Begun { send, .. } => send.poll_reset(task).is_ready(),
        }
    }

    /// Resets the stream: nothing of what has been given for it and has not left is sent.
    pub(super) fn reset(&mut self, reason: Reason) {
        match self {
            Self::Awaited(respond) => respond.send_reset(reason),
            Self::Begun { send, .. } => send.send_reset(reason),
        }
    }
}

pub(crate) fn h2_stream(connections: &mut Connections, key: Key, index: u32) -> Option<&mut Stream> {
    match connections.get_mut(key)? {
        Conn::Client(client_conn) => client_conn.protocol.h2_mut()?.streams.get_mut(index as usize),
        _ => None,
    }
}

/// Begins an exchange with a request whose head has come.
pub(super) fn h2_request(
    proxy: &mut Proxy,
    cx: &mut Context,
    key: Key,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let limits = proxy.settings.limits().clone();
    let draining = proxy.settings.is_draining();
    let (parts, body) = request.into_parts();
    let mut x = proxy.exchanges.fresh(ClientStream::H2(key, 0));
    let info = message::read_request(&parts, body.is_end_stream(), &limits.http, x.request_mut());
    let rules_hold = rules_hold(&mut proxy.connections, &proxy.settings, key);
    let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return };
    let early = client_conn.comes_early();
    let Protocol::H2(h2) = &mut client_conn.protocol else { return };
    let number = client_conn.client.next_request();
    if client_conn.client.is_at_last_request(limits.max_requests) || draining {
        h2.shut_down(cx.now());
    }
    let ignores_goaway = h2.ignores_goaway(cx.now());
    if !rules_hold || ignores_goaway || proxy.settings.serves_only_upgraded() {
        h2.last_id = respond.stream_id().as_u32();
        // Nothing has been done for it: it may be sent again elsewhere (RFC 9113 §8.7).
        respond.send_reset(Reason::REFUSED_STREAM);
        proxy.exchanges.recycle(x);
        if ignores_goaway {
            client_wasted(proxy, cx, key, 1);
        }
        return;
    }
    let index = h2.streams.vacant_key() as u32;
    let slot = StreamWaker::new(key, index);
    let mut stream = Stream {
        // Put right below: an exchange names its stream, and a stream its exchange.
        exchange: key,
        id: respond.stream_id().as_u32(),
        response: Response::Awaited(respond),
        body: Some(Incoming::new(body)),
        waker: slot.waker(),
        slot,
        priority: parts.headers.get("priority").map_or(Priority::default(), |v| Priority::parse(v.as_bytes())),
        transport_blocked: false,
        narrow: false,
        turn: 0,
    };
    // From now on a reset wakes it. One that came with the request wakes nobody, and is known already.
    let is_reset = stream.response.is_reset(&mut task::Context::from_waker(&stream.waker));
    let fault = if is_reset { stream.body.as_mut().and_then(Incoming::fault) } else { None };
    x.arrive(ClientStream::H2(key, index), number, cx.micros());
    match info {
        Ok(info) => {
            x.begin(info.body, info.upgrade, early, &limits);
            if info.upgrade {
                crate::exchange::websocket::add_key(&mut x);
            }
        }
        Err(e) => x.begin_unread(sealane_http::Version::Http2, Some(e)),
    }
    proxy.counters.count(Count::Requests);
    proxy.counters.set(Count::Active, proxy.exchanges.len() as u64 + 1);
    stream.exchange = proxy.exchanges.insert(x);
    let exchange = stream.exchange;
    h2.last_id = stream.id;
    h2.streams.insert(stream);
    if h2.streams.len() == 1 {
        let at = cx.now() + next_look(&limits);
        client_conn.wait_until(cx, key, at);
    }
    if is_reset {
        return h2_client_gone(proxy, cx, exchange, fault.as_ref());
    }
    match info {
        Ok(info) => begin_request(proxy, cx, exchange, info.expect_continue),
        Err(e) => refuse_head(proxy, cx, exchange, e),
    }
}

/// `h2` says that something has come of a stream.
pub(crate) fn h2_client_woken(proxy: &mut Proxy, cx: &mut Context, key: Key, index: u32) {
    let Some(stream) = h2_stream(&mut proxy.connections, key, index) else { return };
    let exchange = stream.exchange;
    if stream.response.is_reset(&mut task::Context::from_waker(&stream.waker)) {
        let fault = stream.body.as_mut().and_then(Incoming::fault);
        return h2_client_gone(proxy, cx, exchange, fault.as_ref());
    }
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let reads = matches!(x.machine().request(), Phase::Streaming | Phase::Draining) && !x.request_body().is_blocked();
    if x.response_body_mut().unblock(cx.now()) {
        resume_source(proxy, cx, Later::Server(exchange));
    }
    if reads {
        h2_client_read(proxy, cx, exchange, key, index);
    }
}

/// The client has called its request off, or has broken its rules.
fn h2_client_gone(proxy: &mut Proxy, cx: &mut Context, exchange: Key, error: Option<&h2::Error>) {
    let drains = proxy.exchanges.get(exchange).is_some_and(|x| x.machine().request() == Phase::Draining);
    let is_malformed = |e: &h2::Error| e.is_library() && e.is_reset() && e.reason() == Some(Reason::PROTOCOL_ERROR);
    if error.is_some_and(is_malformed) && !drains {
        // All that `h2` finds wrong with data that it has accepted so far is its length.
        proxy.counters.parse_error(ParseError::LengthMismatch);
        note_malformed(proxy, exchange, ParseError::LengthMismatch);
        if let Some(x) = proxy.exchanges.get_mut(exchange)
            && !x.machine().is_answered()
        {
            // The client gets a reset; this is for the log and the counters.
            x.note_status(ParseError::LengthMismatch.status());
        }
    }
    proxy.counters.count(Count::H2Resets);
    // What `h2` finds wrong it has reset itself, and that is counted with what it writes.
    let found = error.is_some_and(h2::Error::is_library);
    let wasted = !found && calling_off_wastes(&proxy.exchanges, cx, exchange);
    let connection = proxy.exchanges.get(exchange).map(|x| x.client_stream().conn());
    abort_exchange(proxy, cx, exchange);
    if let (true, Some(connection)) = (wasted, connection) {
        client_wasted(proxy, cx, connection, 1);
    }
}

/// Passes on what has come of a request's body, as far as there is room.
pub(crate) fn h2_client_read(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key, index: u32) {
    loop {
        let Proxy { connections, exchanges, .. } = proxy;
        let Some(x) = exchanges.get_mut(exchange) else { return };
        if !matches!(x.machine().request(), Phase::Streaming | Phase::Draining) {
            return;
        }
        let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
        let Protocol::H2(h2) = &mut client_conn.protocol else { return };
        let H2Client { streams, guard, list_limit, .. } = &mut **h2;
        let Some(stream) = streams.get_mut(index as usize) else { return };
        let Some(body) = &mut stream.body else { return };
        let want = match body.poll(&mut task::Context::from_waker(&stream.waker)) {
            Poll::Pending => return,
            Poll::Ready(Err(e)) => return h2_client_gone(proxy, cx, exchange, Some(&e)),
            Poll::Ready(Ok(Next::Data(bytes))) => bytes,
            Poll::Ready(Ok(Next::End(trailers))) => {
                stream.body = None;
                let noted = guard.trailers().take(stream.id);
                if x.machine().request() == Phase::Draining {
                    // It has its response.
                    return request_end(proxy, cx, exchange);
                }
                let (limits, into) = (&proxy.settings.limits().http, x.request_body_mut().trailers_mut());
                return match message::read_trailers(trailers.as_ref(), noted, *list_limit, limits, into) {
                    Ok(()) => request_end(proxy, cx, exchange),
                    Err(e) => request_broken(proxy, cx, exchange, e),
                };
            }
        };
        let room = match request_room(&mut proxy.connections, &mut proxy.exchanges, cx, exchange, want) {
            None | Some(0) => return,
            Some(room) => room,
        };
        let Some(stream) = h2_stream(&mut proxy.connections, key, index) else { return };
        let Some(body) = &mut stream.body else { return };
        // What is taken is in the sink's bounded buffer.
        let piece = body.take(want.min(room));
        let last = body.is_over();
        if last {
            stream.body = None;
        }
        proxy.connections.mark_for_flush(key);
        if !request_data(proxy, cx, exchange, &piece, last) || last {
            return;
        }
    }
}
