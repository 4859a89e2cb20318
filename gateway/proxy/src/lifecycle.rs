//! What fails or ends, whatever a connection speaks.

use crate::client::connection::{client_failed, client_ready};
use crate::client::h2_connection::h2_abort_all;
use crate::conn::Conn;
use crate::counters::Count;
use crate::service::Proxy;
use crate::transport::TransportError;
use crate::upstream::connection::upstream_failed;
use sealane_lane::{Context, Key};

pub(crate) fn after_closing(proxy: &mut Proxy, cx: &mut Context, key: Key, linger: bool) {
    match proxy.connections.client(key) {
        Some(client_conn) if linger && !client_conn.transport().ended => {
            client_conn.begin_lingering(cx, key, proxy.settings.limits());
            client_ready(proxy, cx, key);
        }
        _ => close_connection(proxy, cx, key),
    }
}

/// A socket or session has failed.
pub(crate) fn wire_failed(proxy: &mut Proxy, cx: &mut Context, key: Key, error: TransportError) {
    match proxy.connections.get(key) {
        Some(Conn::Client(_)) => client_failed(proxy, cx, key, error),
        Some(Conn::Upstream(_)) => upstream_failed(proxy, cx, key, &error),
        Some(Conn::Quic(_) | Conn::Mirror(_) | Conn::Udp(_)) | None => {}
    }
}

/// Lets go of a connection without a word.
pub(crate) fn close_connection(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    if matches!(proxy.connections.get(key), Some(Conn::Client(client_conn)) if client_conn.is_h2()) {
        h2_abort_all(proxy, cx, key);
    }
    match proxy.connections.remove(key) {
        Some(Conn::Client(client_conn)) => {
            // Its descriptor closes first: accepting may have paused for want of one.
            let counted = client_conn.dismantle(&mut proxy.scratch);
            proxy.admission.left(cx, counted, &proxy.settings, &proxy.counters);
        }
        Some(Conn::Upstream(upstream_conn)) => {
            if upstream_conn.dismantle(&mut proxy.scratch, key) {
                proxy.counters.fall(Count::Pooled);
            }
        }
        Some(Conn::Quic(_) | Conn::Mirror(_) | Conn::Udp(_)) | None => {}
    }
}
