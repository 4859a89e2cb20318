//! What fails or ends, whatever a connection speaks.

use crate::accept::LISTENER;
use crate::client::connection::{client_failed, client_gone, client_ready};
use crate::client::h2_connection::h2_abort_all;
use crate::client::h3_connection::h3_client_gone;
use crate::conn::Conn;
use crate::counters::Count;
use crate::exchange::executor::{abort_exchange, refuse};
use crate::exchange::streams::ClientStream;
use crate::flush::flush_marked;
use crate::service::Proxy;
use crate::transport::TransportError;
use crate::udp::relay::udp_end;
use crate::upstream::connection::upstream_failed;
use sealane_http::h3::Code;
use sealane_lane::{Context, Key};
use std::collections::HashSet;

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

/// The time of requests is over, and that of upgraded and relayed connections is not: everything else is cut off.
pub(crate) fn end_requests(proxy: &mut Proxy, cx: &mut Context) {
    proxy.settings.serve_only_upgraded();
    if let Some(until) = proxy.settings.drain_until() {
        cx.timers.arm(LISTENER, until.upgraded);
    }
    let (mut stay, mut over) = (HashSet::new(), Vec::new());
    let keys: Vec<Key> = proxy.exchanges.keys().collect();
    for key in keys {
        let Some(x) = proxy.exchanges.get_mut(key) else { continue };
        match (x.machine().is_tunnel(), x.client_stream()) {
            (true, stream) => drop(stay.insert(stream.conn())),
            // A copy has its own deadline, and the lane does not wait for it.
            (false, ClientStream::Mirror(_)) => {}
            (false, _) => {
                x.end_by_drain();
                over.push(key);
            }
        }
    }
    for key in proxy.connections.keys() {
        match proxy.connections.get_mut(key) {
            Some(Conn::Quic(q)) if q.is_client() && stay.contains(&key) => {
                q.leave();
                proxy.connections.mark_for_flush(key);
            }
            Some(Conn::Quic(q)) if q.is_client() && !q.is_closed() => {
                q.close(cx.instant(), Code::NoError, "");
                h3_client_gone(proxy, cx, key);
            }
            Some(Conn::Client(_)) if !stay.contains(&key) => client_gone(proxy, cx, key),
            _ => {}
        }
    }
    // Requests that share a connection with upgraded ones; the others have ended with their connections.
    for exchange in over {
        refuse(proxy, cx, exchange, 503);
    }
    udp_end(proxy, cx);
    flush_marked(proxy, cx);
}

/// The lane stops: what is still open is cut off with its connection. Each request and each relayed connection gets its line.
pub(crate) fn end_all(proxy: &mut Proxy, cx: &mut Context) {
    let keys: Vec<Key> = proxy.exchanges.keys().collect();
    for key in keys {
        let Some(x) = proxy.exchanges.get_mut(key) else { continue };
        // A copy has no line.
        if matches!(x.client_stream(), ClientStream::Mirror(_)) {
            continue;
        }
        x.end_by_drain();
        abort_exchange(proxy, cx, key);
    }
}
