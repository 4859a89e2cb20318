//! The two ends of an exchange, and the operations that each kind of end has.
//!
//! An exchange talks to a client and to an upstream server. Each is named by a small reference ([`ClientStream`],
//! [`UpstreamStream`]): the version of HTTP, the key of the connection and, where connections are shared, the stream. Each is
//! the *source* of one direction and the *sink* of the other:
//!
//! ```text
//!              events of the source                 operations on the sink
//! client ──► request_arrived                ─┐   ┌─► dispatch, send_request ──────────────► server
//!        ──► request_room, request_data,     │ x │   server_credit, server_data, server_end
//!            request_end                    ─┼   ┼─►
//!        ──► abort                          ─┘   └─► server_reset
//!
//! client ◄── client_interim, client_head    ◄┐   ┌── response_arrived ◄──────────────────── server
//!        ◄── client_credit, client_data,     │ x │   response_room, response_data, response_end
//!            client_end, client_finish      ◄┼   ┼──
//!        ◄── client_reset                   ◄┘   └── server_lost
//! ```
//! The adapters (`client::h1`, `client::h2`, `client::h3`, and the same in `upstream`) turn bytes into these events and these
//! operations into bytes. They know nothing of each other: `exchange::request` and `exchange::response` report the events to
//! the state machine, and `exchange::executor` does what it says. A new version of HTTP needs a variant of each reference, an
//! arm in each function below, and sources that report the events.
//!
//! **The way of a piece.** A source asks how much room there is for what it has (`request_room`, `response_room`). It passes
//! at most that much, as a slice of its own read buffer, and the sink copies the slice into what it has staged. A room of 0
//! means "not now": the source keeps the rest, stops reading, and goes on when
//! [`resume_source`](crate::exchange::resume::resume_source) says so.
//!
//! **`last`.** A source that knows that a piece is the last one says so with the piece, so that a sink can mark the end on
//! the data. `*_end` is called in any case, and carries the trailers, which lie in the flow.

use crate::client::h1::{h1_client_data, h1_client_end, h1_client_finish, h1_client_head, h1_client_interim};
use crate::client::h2_connection::h2_at_fault;
use crate::client::h2_responses::{
    h2_client_credit, h2_client_data, h2_client_end, h2_client_finish, h2_client_head, h2_client_interim,
    h2_client_reset,
};
use crate::client::h3_connection::h3_client_error;
use crate::client::h3_responses::{
    h3_client_detach, h3_client_finish, h3_client_head, h3_client_interim, h3_client_reset,
};
use crate::conn::Conn;
use crate::connections::Connections;
use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::h2::guard::Fault;
use crate::h3::sink::{h3_credit, h3_data, h3_end};
use crate::lifecycle::close_connection;
use crate::mirrors::{mirror_credit, mirror_discard, mirror_head};
use crate::scratch::Scratch;
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::upstream::connection::release_upstream;
use crate::upstream::h1::{h1_server_data, h1_server_end};
use crate::upstream::h2::{h2_server_credit, h2_server_data, h2_server_end, h2_server_finish, h2_server_reset};
use crate::upstream::h3::{h3_server_finish, h3_server_reset};
use sealane_http::h3::Code;
use sealane_http::{BodyLength, Known};
use sealane_lane::{Context, Key};

/// Where a request comes from and its response goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientStream {
    /// A connection that has one exchange at a time.
    H1(Key),
    /// A stream of an HTTP/2 connection.
    H2(Key, u32),
    /// A stream of an HTTP/3 connection.
    H3(Key, u32),
    /// The client of a mirrored request, which has no socket: nobody waits for its response.
    Mirror(Key),
}

/// Where a request goes to and its response comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamStream {
    /// A connection that has one exchange at a time.
    H1(Key),
    /// An HTTP/2 connection that is being made.
    Waiting(Key),
    /// A stream of an HTTP/2 connection.
    H2(Key, u32),
    /// A stream of an HTTP/3 connection.
    H3(Key, u32),
}

/// What is gone on with when there is time, or room.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Later {
    /// A connection: it may have bytes that could not be taken before.
    Conn(Key),
    /// The source of an exchange's request.
    Client(Key),
    /// The source of an exchange's response.
    Server(Key),
    /// The stage that codes the body, which may hold bytes that nothing follows.
    Encoder(Key),
    /// An exchange that waits for the lane to take up newer rules; whether its client waits for 100 (Continue).
    Begin(Key, bool),
}

impl ClientStream {
    /// The connection.
    #[inline]
    pub fn conn(self) -> Key {
        match self {
            Self::H1(key) | Self::H2(key, _) | Self::H3(key, _) | Self::Mirror(key) => key,
        }
    }
}

// The client as a sink.

/// Passes an interim response on (the exchange's `response`), where its version has such a thing.
#[inline]
pub(crate) fn client_interim(
    connections: &mut Connections,
    exchanges: &Exchanges,
    scratch: &mut Scratch,
    exchange: Key,
    side: ClientStream,
) {
    match side {
        ClientStream::H1(key) => h1_client_interim(connections, exchanges, scratch, exchange, key),
        ClientStream::H2(key, stream) => h2_client_interim(connections, exchanges, exchange, key, stream),
        ClientStream::H3(key, stream) => h3_client_interim(connections, exchanges, exchange, key, stream),
        ClientStream::Mirror(_) => {}
    }
}

/// Sends the exchange's `response`, whose body is of this length. `upgrade`: what follows is no HTTP.
#[inline]
pub(crate) fn client_head(proxy: &mut Proxy, exchange: Key, side: ClientStream, body: BodyLength, upgrade: bool) {
    announce_http3(&proxy.connections, &mut proxy.exchanges, exchange, side);
    match side {
        ClientStream::H1(key) => h1_client_head(proxy, exchange, key, body, upgrade),
        ClientStream::H2(key, stream) => {
            h2_client_head(&mut proxy.connections, &mut proxy.exchanges, exchange, key, stream, body, upgrade)
        }
        ClientStream::H3(key, stream) => {
            h3_client_head(&mut proxy.connections, &mut proxy.exchanges, exchange, key, stream, body, upgrade)
        }
        ClientStream::Mirror(key) => mirror_head(&mut proxy.connections, &proxy.exchanges, exchange, key),
    }
}

/// Says in a response that HTTP/3 is to be had here (RFC 7838). What a server says of itself in Alt-Svc is not true
/// of this gateway, and goes in any case.
#[inline]
fn announce_http3(connections: &Connections, exchanges: &mut Exchanges, exchange: Key, side: ClientStream) {
    let Some(x) = exchanges.get_mut(exchange) else { return };
    x.response.fields.remove(Known::AltSvc);
    if let Some(client) = connections.client_of(side)
        && let Some(quic) = &client.listener().listener.quic
        && let Some(value) = &quic.settings.alt_svc
        && !matches!(side, ClientStream::H3(..))
    {
        // It is of our own making, and legal.
        let _ = x.response.fields.push_known(Known::AltSvc, value.as_bytes());
    }
}

/// How many of `want` bytes the client has room for. 0: the sink will resume the source.
#[inline]
pub(crate) fn client_credit(connections: &mut Connections, side: ClientStream, want: usize) -> usize {
    match side {
        ClientStream::H1(key) => match connections.get_mut(key) {
            Some(Conn::Client(client_conn)) => client_conn.room(want),
            _ => 0,
        },
        ClientStream::H2(key, stream) => h2_client_credit(connections, key, stream, want),
        ClientStream::H3(key, stream) => h3_credit(connections, key, stream, want),
        ClientStream::Mirror(key) => mirror_credit(connections, key, want),
    }
}

/// Sends a piece of the response's body.
#[inline]
pub(crate) fn client_data(
    connections: &mut Connections,
    scratch: &mut Scratch,
    cx: &mut Context,
    side: ClientStream,
    framing: BodyLength,
    data: &[u8],
    last: bool,
) {
    match side {
        ClientStream::H1(key) => h1_client_data(connections, scratch, key, framing, data),
        ClientStream::H2(key, stream) => h2_client_data(connections, cx, key, stream, data, last),
        ClientStream::H3(key, stream) => h3_data(connections, key, stream, data, last),
        ClientStream::Mirror(key) => mirror_discard(connections, cx, key, data.len()),
    }
}

/// Ends the response's body, with the trailers in the flow if it has any. A tunnel's end is seen when the
/// exchange ends.
#[inline]
pub(crate) fn client_end(connections: &mut Connections, exchanges: &Exchanges, exchange: Key, side: ClientStream) {
    match side {
        ClientStream::H1(key) => h1_client_end(connections, exchanges, exchange, key),
        ClientStream::H2(key, stream) => h2_client_end(connections, exchanges, exchange, key, stream),
        ClientStream::H3(key, stream) => {
            if let Some(x) = exchanges.get(exchange) {
                h3_end(connections, key, stream, &x.response_body.trailers);
            }
        }
        ClientStream::Mirror(_) => {}
    }
}

/// The exchange is over and the response has gone out whole. `complete`: so has the request come in.
#[inline]
pub(crate) fn client_finish(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    settings: &LaneSettings,
    cx: &mut Context,
    x: &Exchange,
    complete: bool,
) {
    match x.client_stream {
        ClientStream::H1(key) => {
            let drained = x.has_drained_enough(cx.now());
            h1_client_finish(connections, exchanges, settings, cx, key, complete, drained);
        }
        ClientStream::H2(key, stream) => h2_client_finish(connections, settings, cx, key, stream),
        ClientStream::H3(key, stream) => h3_client_finish(connections, settings, cx, key, stream),
        // It has been let go of before (`finish_exchange`).
        ClientStream::Mirror(_) => {}
    }
}

/// The client's connection closes after this exchange, if it is one over HTTP/1.1. Those of other versions serve several
/// exchanges at a time.
pub(crate) fn client_close_after(connections: &mut Connections, side: ClientStream) {
    if let ClientStream::H1(key) = side
        && let Some(client_conn) = connections.client(key)
    {
        client_conn.close_after_exchange();
    }
}

/// The exchange is called off; what becomes of the client's side is the caller's to say.
#[inline]
pub(crate) fn client_detach(
    connections: &mut Connections,
    settings: &LaneSettings,
    cx: &mut Context,
    side: ClientStream,
) {
    match side {
        ClientStream::H1(key) => {
            if let Some(client_conn) = connections.client(key) {
                client_conn.leave_exchange();
            }
        }
        ClientStream::H2(key, stream) => h2_client_finish(connections, settings, cx, key, stream),
        ClientStream::H3(key, stream) => h3_client_detach(connections, key, stream),
        ClientStream::Mirror(_) => {}
    }
}

/// Cuts a response off behind what was passed on of it, so that it cannot look whole. `stuck`: the client takes
/// nothing, and nothing is waited for.
///
/// Whatever the reason, the code is that of a response that is abandoned in the middle: CANCEL over HTTP/2, H3_REQUEST_CANCELLED over
/// HTTP/3 (RFC 9114 §4.1.1). INTERNAL_ERROR would say that the gateway itself has failed (RFC 9113 §7).
#[inline]
pub(crate) fn client_reset(proxy: &mut Proxy, cx: &mut Context, side: ClientStream, stuck: bool) {
    match side {
        ClientStream::H1(key) => {
            let Proxy { connections, scratch, .. } = proxy;
            if let (false, Some(transport)) = (stuck, connections.get_mut(key).and_then(Conn::transport)) {
                // What the socket does not take at once is lost with the connection.
                let _ = transport.flush(scratch);
            }
            // Without the end that its framing promises, and without close_notify.
            close_connection(proxy, cx, key);
        }
        ClientStream::H2(key, stream) => {
            h2_client_reset(&mut proxy.connections, &proxy.settings, cx, key, stream, stuck)
        }
        ClientStream::H3(key, stream) => h3_client_reset(&mut proxy.connections, key, stream),
        ClientStream::Mirror(_) => {}
    }
}

/// A client does more than it may: its connection ends with the code that says so.
pub(crate) fn end_for_flood(proxy: &mut Proxy, cx: &mut Context, connection: Key) {
    match proxy.connections.get(connection) {
        Some(Conn::Quic(_)) => {
            h3_client_error(proxy, cx, connection, Code::ExcessiveLoad, "too many requests are wasted");
        }
        _ => h2_at_fault(&mut proxy.connections, &proxy.counters, connection, Fault::Flood),
    }
}

/// Whether the client's handshake is still going on, so that what it has sent may be a replay.
pub(crate) fn client_is_handshaking(connections: &Connections, side: ClientStream) -> bool {
    match connections.get(side.conn()) {
        Some(Conn::Client(client_conn)) => client_conn.is_handshaking(),
        Some(Conn::Quic(q)) => q.is_handshaking(),
        _ => false,
    }
}

/// Whether nothing more is read of a request, although it is not known to be complete: its head was refused.
pub(crate) fn nothing_more_is_read(connections: &Connections, side: ClientStream) -> bool {
    match (side, connections.get(side.conn())) {
        (ClientStream::H3(_, stream), Some(Conn::Quic(q))) => q.has_read_all(stream),
        _ => false,
    }
}

// The upstream's server as a sink.

/// How many of `want` bytes the server has room for. 0: the sink will resume the source.
#[inline]
pub(crate) fn server_credit(connections: &mut Connections, side: UpstreamStream, want: usize) -> usize {
    match side {
        UpstreamStream::H1(key) => match connections.get_mut(key) {
            Some(Conn::Upstream(upstream_conn)) => upstream_conn.room(want),
            _ => 0,
        },
        UpstreamStream::Waiting(_) => 0,
        UpstreamStream::H2(key, stream) => h2_server_credit(connections, key, stream, want),
        UpstreamStream::H3(key, stream) => h3_credit(connections, key, stream, want),
    }
}

/// Sends a piece of the request's body.
#[inline]
pub(crate) fn server_data(
    connections: &mut Connections,
    scratch: &mut Scratch,
    cx: &mut Context,
    side: UpstreamStream,
    framing: BodyLength,
    data: &[u8],
    last: bool,
) {
    match side {
        UpstreamStream::H1(key) => h1_server_data(connections, scratch, key, framing, data),
        UpstreamStream::Waiting(_) => {}
        UpstreamStream::H2(key, stream) => h2_server_data(connections, cx, key, stream, data, last),
        UpstreamStream::H3(key, stream) => h3_data(connections, key, stream, data, last),
    }
}

/// Ends the request's body, with the trailers in the flow if it has any; or this direction of a tunnel.
#[inline]
pub(crate) fn server_end(connections: &mut Connections, exchanges: &Exchanges, exchange: Key, side: UpstreamStream) {
    match side {
        UpstreamStream::H1(key) => h1_server_end(connections, exchanges, exchange, key),
        UpstreamStream::Waiting(_) => {}
        UpstreamStream::H2(key, stream) => h2_server_end(connections, exchanges, exchange, key, stream),
        UpstreamStream::H3(key, stream) => {
            if let Some(x) = exchanges.get(exchange) {
                h3_end(connections, key, stream, &x.request_body.trailers);
            }
        }
    }
}

/// The exchange is over; the server's side may be used again if `reusable`.
#[inline]
pub(crate) fn server_finish(proxy: &mut Proxy, cx: &mut Context, side: UpstreamStream, reusable: bool) {
    match side {
        UpstreamStream::H1(key) => release_upstream(proxy, cx, key, reusable),
        UpstreamStream::Waiting(_) => {}
        UpstreamStream::H2(key, stream) => h2_server_finish(proxy, cx, key, stream),
        UpstreamStream::H3(key, stream) => h3_server_finish(&mut proxy.connections, cx, key, stream, reusable),
    }
}

/// Calls the request off.
#[inline]
pub(crate) fn server_reset(proxy: &mut Proxy, cx: &mut Context, side: UpstreamStream) {
    match side {
        UpstreamStream::H1(key) => close_connection(proxy, cx, key),
        // The connection skips this exchange when its handshake ends.
        UpstreamStream::Waiting(_) => {}
        UpstreamStream::H2(key, stream) => h2_server_reset(proxy, cx, key, stream),
        UpstreamStream::H3(key, stream) => h3_server_reset(&mut proxy.connections, key, stream),
    }
}
