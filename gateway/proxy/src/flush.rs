//! Sends staged bytes at the end of an event or of a turn, and resumes flows that waited for room.

use crate::client::h2_connection::h2_client_drive;
use crate::client::h2_responses::h2_client_room;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::resume::resume_source;
use crate::exchange::streams::{ClientStream, Later, UpstreamStream};
use crate::lifecycle::{after_closing, close_connection, wire_failed};
use crate::service::Proxy;
use crate::upstream::h2::h2_upstream_room;
use crate::upstream::h2_connection::h2_upstream_drive;
use sealane_lane::{Context, Key};

/// How often shared connections are driven and sent per turn, while that gives them more to send.
const ROUNDS: usize = 4;
/// How often flows are resumed before other connections get their turn.
const RESUMES: usize = 16;

/// Sends what is staged, and goes on with flows that waited for room.
pub(crate) fn flush_marked(proxy: &mut Proxy, cx: &mut Context) {
    let mut resumes = 0;
    while let Some(key) = proxy.connections.next_marked() {
        flush_connection(proxy, cx, key, &mut resumes);
    }
}

pub(crate) fn flush_connection(proxy: &mut Proxy, cx: &mut Context, key: Key, resumes: &mut usize) {
    let Proxy { connections, scratch, counters, .. } = proxy;
    let Some(conn) = connections.get_mut(key) else { return };
    let Some(transport) = conn.transport() else { return };
    transport.needs_flush = false;
    let allowed = transport.allowance();
    if let Err(e) = transport.flush(scratch) {
        return wire_failed(proxy, cx, key, e);
    }
    if allowed > Some(0) && transport.allowance() == Some(0) && !transport.is_flushed() {
        counters.count(Count::SynCapped);
    }
    let has_room = transport.has_room();
    let flushed = transport.is_flushed();
    if let Conn::Client(client_conn) = conn
        && let Some(linger) = client_conn.closes()
    {
        if flushed {
            after_closing(proxy, cx, key, linger);
        }
        return;
    }
    if let Conn::Upstream(upstream_conn) = conn
        && upstream_conn.closes()
    {
        if flushed {
            close_connection(proxy, cx, key);
        }
        return;
    }
    if !has_room {
        return;
    }
    match proxy.connections.get(key) {
        Some(Conn::Client(client_conn)) if client_conn.is_h2() => h2_client_room(proxy, cx, key),
        Some(Conn::Upstream(upstream_conn)) if upstream_conn.is_h2() => h2_upstream_room(proxy, cx, key),
        _ => {
            if let Some(source) = blocked_source(&proxy.connections, &mut proxy.exchanges, cx, key) {
                *resumes += 1;
                if *resumes > RESUMES {
                    proxy.exchanges.go_on_later(source);
                } else {
                    resume_source(proxy, cx, source);
                }
            }
        }
    }
}

/// Drives the connections that many exchanges share, and sends what they have.
pub(crate) fn flush_shared(proxy: &mut Proxy, cx: &mut Context) {
    if !proxy.connections.has_shared() {
        return;
    }
    for _ in 0..ROUNDS {
        let mut batch = proxy.connections.take_shared();
        for key in batch.drain(..) {
            let Some(conn) = proxy.connections.get_mut(key) else { continue };
            if let Some(transport) = conn.transport() {
                transport.needs_flush = false;
            }
            let stuck = !conn.is_drained();
            match conn {
                Conn::Client(_) => h2_client_drive(proxy, cx, key),
                Conn::Upstream(_) => h2_upstream_drive(proxy, cx, key),
                Conn::Quic(_) | Conn::Mirror(_) => {}
            }
            flush_connection(proxy, cx, key, &mut 0);
            if stuck && proxy.connections.get(key).is_some_and(Conn::is_drained) {
                proxy.exchanges.go_on_later(Later::Conn(key));
            }
            flush_marked(proxy, cx);
        }
        if !proxy.connections.has_shared() {
            return proxy.connections.reuse_shared(batch);
        }
    }
}

/// The source that waits for room on this connection.
fn blocked_source(connections: &Connections, exchanges: &mut Exchanges, cx: &Context, sink: Key) -> Option<Later> {
    let exchange = match connections.get(sink)? {
        // Requests that wait here because their predecessors' answers have.
        Conn::Client(f) => match f.exchange() {
            Some(exchange) => exchange,
            None => return f.can_go_on().then_some(Later::Conn(sink)),
        },
        Conn::Upstream(b) => b.exchange()?,
        Conn::Quic(_) | Conn::Mirror(_) => return None,
    };
    let x = exchanges.get_mut(exchange)?;
    if x.client_stream() == ClientStream::H1(sink) {
        x.response_body_mut().unblock(cx.now()).then_some(Later::Server(exchange))
    } else {
        let waits = x.upstream_stream() == Some(UpstreamStream::H1(sink)) && x.request_body_mut().unblock(cx.now());
        waits.then_some(Later::Client(exchange))
    }
}
