//! The body of a request: what the client's stream reports, and what the server's stream gets.

use crate::connections::Connections;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{drain_is_over, note_malformed, perform, refuse, refuse_body};
use crate::exchange::forwarded;
use crate::exchange::streams::{UpstreamStream, server_credit, server_data};
use crate::exchange::waste::client_wasted;
use crate::mirrors::{copy_body, copy_complete};
use crate::request_ids::clean_of_id;
use crate::scratch::READ_SIZE;
use crate::service::Proxy;
use sealane_exchange::{Action as Do, Direction, Event, Phase};
use sealane_http::ParseError;
use sealane_lane::{Context, Key};

/// How many of `want` bytes of the request's body can be taken now. 0: none, and the source is resumed when that
/// changes. `None` if there is no such exchange any more.
#[inline]
pub(crate) fn request_room(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    cx: &Context,
    exchange: Key,
    want: usize,
) -> Option<usize> {
    let x = exchanges.get(exchange)?;
    let room = match (x.machine.request(), x.upstream_stream) {
        // Nobody wants it: it is read and thrown away.
        (Phase::Draining, _) => return Some(want),
        (Phase::Streaming, Some(upstream_stream)) => server_credit(connections, upstream_stream, want),
        (Phase::Streaming | Phase::Awaiting | Phase::Complete, _) => return Some(0),
    };
    if room == 0 {
        exchanges.get_mut(exchange)?.request_body.block(cx.now());
    }
    Some(room)
}

/// How many bytes of the request's body to read at once. 0: none now, and the source is resumed when that changes.
pub(crate) fn request_read_size(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    cx: &Context,
    exchange: Key,
) -> usize {
    let Some(x) = exchanges.get_mut(exchange) else { return 0 };
    match (x.machine.request(), x.upstream_stream) {
        (Phase::Streaming, Some(UpstreamStream::H1(_) | UpstreamStream::H3(..))) => {
            request_room(connections, exchanges, cx, exchange, READ_SIZE).unwrap_or(0)
        }
        (Phase::Streaming, Some(_)) => x.request_body.next_read(),
        _ => READ_SIZE,
    }
}

/// A piece of the request's body, no larger than the room that there was. False if the exchange has been refused.
pub(crate) fn request_data(proxy: &mut Proxy, cx: &mut Context, exchange: Key, data: &[u8], last: bool) -> bool {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return false };
    x.request_body.bytes += data.len() as u64;
    x.request_body.progress.note(cx.now());
    let drains = x.machine.request() == Phase::Draining;
    if x.copy.is_coming() {
        copy_body(x, &proxy.counters, data, drains);
    }
    let actions = x.machine.on(Event::Moved { bytes: data.len() as u64 });
    if actions.has(Do::Finish) {
        perform(proxy, cx, exchange, actions);
        return false;
    }
    let (client_stream, upstream_stream, framing) = (x.client_stream, x.upstream_stream, x.request_body.framing);
    if x.request_body.bytes > x.max_body && !x.machine.is_tunnel() && !drains {
        refuse_body(proxy, cx, exchange);
        client_wasted(proxy, cx, client_stream.conn(), 1);
        return false;
    }
    if let (Phase::Streaming, Some(upstream_stream)) = (x.machine.request(), upstream_stream) {
        server_data(&mut proxy.connections, &mut proxy.scratch, cx, upstream_stream, framing, data, last);
    }
    if last {
        request_end(proxy, cx, exchange);
    }
    true
}

/// The request has come whole; its trailers, if any, are in the flow. Of a tunnel: the client will send no more.
pub(crate) fn request_end(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if !x.request_body.trailers.is_empty() {
        forwarded::clean_trailers(&mut x.request_body.trailers, x.routed.route.as_ref());
        if let Some((listener, _)) = &x.routed.host {
            listener.clean_request_trailers(&mut x.request_body.trailers);
        }
        clean_of_id(&mut x.request_body.trailers, &proxy.settings);
    }
    let x = if x.copy.is_coming() {
        copy_complete(proxy, cx, exchange);
        let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
        x
    } else {
        x
    };
    let actions = x.machine.on(Event::Ended(Direction::Request));
    x.response_body.progress.note(cx.now());
    perform(proxy, cx, exchange, actions);
}

/// The request's body breaks the rules of its version. In the rest of one that has been answered that is no failure of anybody: all
/// that follows is that no more of it is read.
pub(crate) fn request_broken(proxy: &mut Proxy, cx: &mut Context, exchange: Key, error: ParseError) {
    if proxy.exchanges.get(exchange).is_some_and(|x| x.machine.request() == Phase::Draining) {
        return drain_is_over(proxy, cx, exchange);
    }
    proxy.counters.parse_error(error);
    note_malformed(proxy, exchange, error);
    let connection = proxy.exchanges.get(exchange).map(|x| x.client_stream.conn());
    refuse(proxy, cx, exchange, error.status());
    if let Some(connection) = connection {
        client_wasted(proxy, cx, connection, 1);
    }
}
