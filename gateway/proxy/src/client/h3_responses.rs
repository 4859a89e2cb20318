//! HTTP/3 towards clients: heads and ends of responses. `h3::sink` stages their bodies.

use crate::conn::Conn;
use crate::connections::Connections;
use crate::exchange::exchanges::Exchanges;
use crate::h3::stream::Stream;
use crate::settings::LaneSettings;
use crate::transport::HIGH_WATER;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_http::BodyLength;
use sealane_http::h3::{self, Code};
use sealane_lane::{Context, Key};

fn h3_stream(connections: &mut Connections, key: Key, index: u32) -> Option<&mut Stream> {
    match connections.get_mut(key)? {
        Conn::Quic(q) => q.stream(index),
        _ => None,
    }
}

/// Something is staged on a stream.
fn h3_staged(connections: &mut Connections, key: Key, index: u32) {
    if let Some(Conn::Quic(q)) = connections.get_mut(key) {
        q.stage(index);
    }
    connections.mark_for_flush(key);
}

pub(crate) fn h3_client_interim(
    connections: &mut Connections,
    exchanges: &Exchanges,
    exchange: Key,
    key: Key,
    index: u32,
) {
    let (Some(x), Some(Conn::Quic(q))) = (exchanges.get(exchange), connections.get_mut(key)) else { return };
    let Some(stream) = q.stream(index) else { return };
    h3::encode_response(stream.out(), x.response(), BodyLength::None, false);
    h3_staged(connections, key, index);
}

pub(crate) fn h3_client_head(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    exchange: Key,
    key: Key,
    index: u32,
    body: BodyLength,
    upgrade: bool,
) {
    let (Some(x), Some(Conn::Quic(q))) = (exchanges.get_mut(exchange), connections.get_mut(key)) else { return };
    let Some(stream) = q.stream(index) else { return };
    x.response_body_mut().frame(BodyLength::None);
    if let BodyLength::Known(n) = body {
        // Head and a short body leave in one piece: room for both.
        stream.out().reserve(256 + (n as usize).min(HIGH_WATER));
    }
    let body = if body == BodyLength::UntilClose { BodyLength::Chunked } else { body };
    h3::encode_response(stream.out(), x.response(), body, upgrade);
    if upgrade {
        stream.begin_tunnel();
    }
    h3_staged(connections, key, index);
}

/// The exchange is over; what was sent goes out.
pub(crate) fn h3_client_finish(
    connections: &mut Connections,
    settings: &LaneSettings,
    cx: &mut Context,
    key: Key,
    index: u32,
) {
    if let Some(Conn::Quic(q)) = connections.get_mut(key) {
        q.finish_response(index, cx.now(), settings.limits().until(ConnectionWait::LastBytes, cx.now()));
    }
    connections.mark_for_flush(key);
}

/// The exchange is called off. The caller ends the stream, if there still is one.
pub(crate) fn h3_client_detach(connections: &mut Connections, key: Key, index: u32) {
    if let Some(stream) = h3_stream(connections, key, index) {
        stream.leave_exchange();
    }
}

/// The response is cut off: it must not look whole.
pub(crate) fn h3_client_reset(connections: &mut Connections, key: Key, index: u32) {
    if let Some(Conn::Quic(q)) = connections.get_mut(key) {
        q.reset(index, Code::RequestCancelled);
    }
    connections.mark_for_flush(key);
}
