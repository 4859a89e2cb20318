//! Lets sources go on that waited for room, for time, or for newer rules.

use crate::client::connection::client_ready;
use crate::client::h2::h2_client_read;
use crate::client::h3::h3_read;
use crate::conn::Conn;
use crate::exchange::encoding::{encoder_due, send_encoded};
use crate::exchange::executor::begin_request;
use crate::exchange::streams::{ClientStream, Later, UpstreamStream};
use crate::mirrors::mirror_go_on;
use crate::quic_driver::quic_drive;
use crate::service::Proxy;
use crate::upstream::h1::upstream_go_on;
use crate::upstream::h2::h2_server_read;
use crate::upstream::h3::h3_server_read;
use sealane_lane::{Context, Key};

/// Lets a source, or a whole connection, go on.
pub(crate) fn resume_source(proxy: &mut Proxy, cx: &mut Context, later: Later) {
    match later {
        Later::Conn(key) => continue_connection(proxy, cx, key),
        Later::Begin(exchange, expects) => begin_request(proxy, cx, exchange, expects),
        Later::Client(exchange) => match proxy.exchanges.get(exchange).map(|x| x.client_stream) {
            Some(ClientStream::H1(key)) => continue_connection(proxy, cx, key),
            Some(ClientStream::H2(key, stream)) => h2_client_read(proxy, cx, exchange, key, stream),
            Some(ClientStream::H3(key, stream)) => h3_read(proxy, cx, key, stream),
            Some(ClientStream::Mirror(key)) => mirror_go_on(proxy, cx, exchange, key),
            None => {}
        },
        Later::Server(exchange) => resume_response(proxy, cx, exchange),
        Later::Encoder(exchange) => encoder_due(proxy, cx, exchange),
    }
}

/// Lets the source of a response go on, once what the stage before the sink holds has gone to the sink.
pub(super) fn resume_response(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get(exchange) else { return };
    let upstream_stream = x.upstream_stream;
    if x.response_body.encoding.is_some() && !send_encoded(proxy, cx, exchange) {
        return;
    }
    match upstream_stream {
        Some(UpstreamStream::H1(key)) => continue_connection(proxy, cx, key),
        Some(UpstreamStream::H2(key, stream)) => h2_server_read(proxy, cx, exchange, key, stream),
        Some(UpstreamStream::H3(key, stream)) => h3_server_read(proxy, cx, key, stream),
        Some(UpstreamStream::Waiting(_)) | None => {}
    }
}

/// Lets a connection go on: it may have bytes that could not be taken before.
fn continue_connection(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    match proxy.connections.get(key) {
        Some(Conn::Client(_)) => client_ready(proxy, cx, key),
        Some(Conn::Upstream(_)) => upstream_go_on(proxy, cx, key),
        Some(Conn::Quic(_)) => quic_drive(proxy, cx, key),
        Some(Conn::Mirror(_) | Conn::Udp(_)) | None => {}
    }
}
