//! HTTP/2 towards clients: streams as sinks of responses, and the order in which they get the wire.
//!
//! A piece is taken while the wire has room and the stream's window too. What waits for the wire is resumed by
//! urgency (RFC 9218 §10): of one urgency, responses that are not incremental one after the other in the order of their
//! streams, incremental ones in turn. As long as somebody more urgent waits, the others get no room.

use crate::client::h2::{Response, Stream, h2_stream};
use crate::client::state::Protocol;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::resume::resume_source;
use crate::exchange::streams::{ClientStream, Later};
use crate::h2::wake::StreamWaker;
use crate::h2::{message, sink};
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::transport::MIN_CREDIT;
use bytes::Bytes;
use h2::Reason;
use http::StatusCode;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_http::BodyLength;
use sealane_lane::{Context, Key};

/// What a head may come to in `h2`'s buffers, for reckoning room.
const HEAD_COST: usize = 256;

pub(crate) fn h2_client_interim(
    connections: &mut Connections,
    exchanges: &Exchanges,
    exchange: Key,
    key: Key,
    index: u32,
) {
    let (Some(x), Some(Conn::Client(client_conn))) = (exchanges.get(exchange), connections.get_mut(key)) else {
        return;
    };
    let Some(stream) = client_conn.protocol.h2_mut().and_then(|h| h.streams.get_mut(index as usize)) else { return };
    if let Response::Awaited(respond) = &mut stream.response
        && let Ok(response) = message::write_response(x.response(), BodyLength::None)
    {
        // It fails where the stream has been reset, and then its waker says so.
        let _ = respond.send_informational(response);
    }
    connections.mark_for_flush(key);
}

pub(crate) fn h2_client_head(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    exchange: Key,
    key: Key,
    index: u32,
    body: BodyLength,
    upgrade: bool,
) {
    let (Some(x), Some(Conn::Client(client_conn))) = (exchanges.get_mut(exchange), connections.get_mut(key)) else {
        return;
    };
    x.response_body_mut().frame(BodyLength::None);
    let Protocol::H2(h2) = &mut client_conn.protocol else { return };
    let Some(stream) = h2.streams.get_mut(index as usize) else { return };
    let response = message::write_response(x.response(), body).unwrap_or_else(|_| {
        let mut response = http::Response::new(());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    });
    let ended = body.is_empty() && !upgrade;
    // It fails where the stream has been reset, and then its waker says so.
    if let Response::Awaited(respond) = &mut stream.response
        && let Ok(send) = respond.send_response(response, ended)
    {
        stream.response = Response::Begun { send, ended };
    }
    h2.fed += HEAD_COST;
    connections.mark_for_flush(key);
}

/// How much of `want` bytes can be taken. If none, it is noted what for the stream waits.
pub(crate) fn h2_client_credit(connections: &mut Connections, key: Key, index: u32, want: usize) -> usize {
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return 0 };
    let Protocol::H2(h2) = &mut client_conn.protocol else { return 0 };
    let room = client_conn.transport.room(h2.fed, want);
    let window = h2.window.left();
    let Some(stream) = h2.streams.get_mut(index as usize) else { return 0 };
    let urgency = usize::from(stream.priority.urgency);
    if room == 0 || window == 0 || h2.waiting[..urgency].iter().any(|n| *n > 0) {
        if !std::mem::replace(&mut stream.transport_blocked, true) {
            h2.waiting[urgency] += 1;
            if let Response::Begun { send, .. } = &mut stream.response {
                // What it may have asked `h2` for before goes to others.
                send.reserve_capacity(0);
            }
        }
        // Whatever is in the way moves when the connection is next driven.
        connections.mark_for_flush(key);
        return 0;
    }
    let Response::Begun { send, .. } = &mut stream.response else { return 0 };
    let want = want.min(room);
    // No more is reserved of the connection's window than there is, and is to send: other streams want it too.
    let asked = want.min(window);
    let taken = sink::reserve(send, &stream.waker, asked);
    stream.narrow = taken < want;
    taken
}

pub(crate) fn h2_client_data(
    connections: &mut Connections,
    cx: &mut Context,
    key: Key,
    index: u32,
    data: &[u8],
    last: bool,
) {
    let now = cx.now();
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
    let Protocol::H2(h2) = &mut client_conn.protocol else { return };
    let Some(stream) = h2.streams.get_mut(index as usize) else { return };
    h2.fed += data.len() + 9;
    h2.window.give(data.len());
    h2.guard.sent_data(data.len(), stream.narrow);
    h2.progress = now;
    if let Response::Begun { send, ended } = &mut stream.response {
        *ended |= last;
        // As above.
        let _ = send.send_data(Bytes::copy_from_slice(data), last);
    }
    connections.mark_for_flush(key);
}

pub(crate) fn h2_client_end(connections: &mut Connections, exchanges: &Exchanges, exchange: Key, key: Key, index: u32) {
    let (Some(x), Some(Conn::Client(client_conn))) = (exchanges.get(exchange), connections.get_mut(key)) else {
        return;
    };
    let Some(stream) = client_conn.protocol.h2_mut().and_then(|h| h.streams.get_mut(index as usize)) else { return };
    if let Response::Begun { send, ended } = &mut stream.response
        && !std::mem::replace(ended, true)
    {
        sink::end(send, x.response_body().trailers());
        connections.mark_for_flush(key);
    }
}

/// The exchange is over. What was sent goes out; if the request had not come whole, `h2` resets the stream with
/// NO_ERROR behind it (RFC 9113 §8.1).
pub(crate) fn h2_client_finish(
    connections: &mut Connections,
    settings: &LaneSettings,
    cx: &mut Context,
    key: Key,
    index: u32,
) {
    let limits = settings.limits();
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return };
    let Protocol::H2(h2) = &mut client_conn.protocol else { return };
    let Some(stream) = h2.streams.try_remove(index as usize) else { return };
    if stream.transport_blocked {
        h2.waiting[usize::from(stream.priority.urgency)] -= 1;
    }
    h2.guard.trailers().forget(stream.id);
    let Stream { slot, .. } = stream;
    StreamWaker::retire(slot);
    if h2.streams.is_empty() {
        h2.idle_since = cx.now();
        let at = match h2.guard.block_since() {
            // The next request has begun to come.
            Some(since) => limits.until(ConnectionWait::RequestHead, since),
            None => limits.until(ConnectionWait::Request, cx.now()),
        };
        client_conn.wait_until(cx, key, at);
    }
    connections.mark_for_flush(key);
}

/// The response is cut off: a stream that is let go of before its end is reset by `h2` (CANCEL) behind its head,
/// whose data that has not left it drops; all at once if nothing can leave.
pub(crate) fn h2_client_reset(
    connections: &mut Connections,
    settings: &LaneSettings,
    cx: &mut Context,
    key: Key,
    index: u32,
    stuck: bool,
) {
    if let (true, Some(stream)) = (stuck, h2_stream(connections, key, index)) {
        stream.response.reset(Reason::CANCEL);
    }
    h2_client_finish(connections, settings, cx, key, index);
}

/// There is room on the wire: those that wait for it or for the client's window get on, in their order.
pub(crate) fn h2_client_room(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(h2) = proxy.connections.client(key).and_then(|f| f.protocol.h2_mut()) else { return };
    if !h2.has_waiting() {
        return;
    }
    let order = |s: &Stream| {
        (s.priority.urgency, s.priority.incremental, if s.priority.incremental { s.turn } else { u64::from(s.id) })
    };
    let mut waiting: Vec<_> =
        h2.streams.iter().filter(|(_, s)| s.transport_blocked).map(|(i, s)| (order(s), i as u32)).collect();
    waiting.sort_unstable();
    for (_, index) in waiting {
        let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return };
        let Protocol::H2(h2) = &mut client_conn.protocol else { return };
        if client_conn.transport.room(h2.fed, MIN_CREDIT) == 0 || h2.window.left() == 0 {
            return;
        }
        let Some(stream) = h2.streams.get_mut(index as usize) else { continue };
        if !std::mem::take(&mut stream.transport_blocked) {
            continue;
        }
        h2.waiting[usize::from(stream.priority.urgency)] -= 1;
        h2.turns += 1;
        stream.turn = h2.turns;
        let exchange = stream.exchange;
        if let Some(x) = proxy.exchanges.get_mut(exchange)
            && x.client_stream() == ClientStream::H2(key, index)
            && x.response_body_mut().unblock(cx.now())
        {
            resume_source(proxy, cx, Later::Server(exchange));
        }
    }
}
