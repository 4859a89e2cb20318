//! Sends staged bytes at the end of an event or of a turn, and resumes flows that waited for room.

use crate::client::h2_connection::{H2Client, h2_client_drive};
use crate::client::h2_responses::h2_client_room;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::resume::resume_source;
use crate::exchange::streams::{ClientStream, Later, UpstreamStream};
use crate::lifecycle::{after_closing, close_connection, wire_failed};
use crate::scratch::Scratch;
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
    transport.begin_flush();
    let allowed = transport.allowance();
    if let Err(e) = transport.flush(scratch) {
        return wire_failed(proxy, cx, key, e);
    }
    if allowed > Some(0) && transport.allowance() == Some(0) && !transport.is_flushed() {
        counters.count(Count::SynCapped);
    }
    let (has_room, has_frame_room) = (transport.has_room(), transport.frame_room() > 0);
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
    if has_frame_room && conn.has_unwritten() {
        // No event of the socket would say so: it has taken all, or it takes more.
        proxy.connections.mark_for_flush(key);
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

/// A shared connection has been driven after something had come. Goes on with it at the end of the turn if something is to be sent, if not
/// all was taken, or if streams wait for what may have come. Else its buffer goes back.
pub(crate) fn flush_driven(connections: &mut Connections, scratch: &mut Scratch, key: Key) {
    let Some(conn) = connections.get_mut(key) else { return };
    let streams_wait = matches!(conn, Conn::Client(f) if f.h2().is_some_and(H2Client::has_waiting));
    let is_taken = conn.is_drained() && !streams_wait;
    match conn.transport() {
        Some(transport) if is_taken && transport.is_flushed() => scratch.return_buffer(&mut transport.stage),
        Some(_) => connections.mark_for_flush(key),
        None => {}
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
                transport.begin_flush();
            }
            let stuck = !conn.is_drained();
            match conn {
                Conn::Client(_) => h2_client_drive(proxy, cx, key),
                Conn::Upstream(_) => h2_upstream_drive(proxy, cx, key),
                Conn::Quic(_) | Conn::Mirror(_) | Conn::Udp(_) => {}
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
        Conn::Quic(_) | Conn::Mirror(_) | Conn::Udp(_) => return None,
    };
    let x = exchanges.get_mut(exchange)?;
    if x.client_stream() == ClientStream::H1(sink) {
        x.response_body_mut().unblock(cx.now()).then_some(Later::Server(exchange))
    } else {
        let waits = x.upstream_stream() == Some(UpstreamStream::H1(sink)) && x.request_body_mut().unblock(cx.now());
        waits.then_some(Later::Client(exchange))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::h2_connection::h2_client_begin;
    use crate::counters::Counters;
    use crate::fixtures;

    #[test]
    fn a_connection_that_was_driven_is_flushed_if_there_is_something_to_do() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let (mut connections, mut scratch) = (Connections::default(), Scratch::new());
        let (conn, _peer) = fixtures::connection(&settings.listeners()[0]);
        let key = connections.insert(conn);
        h2_client_begin(&mut connections, &settings, &Counters::default(), &mut Context::new().unwrap(), key);
        assert_eq!(connections.take_shared(), [key]);
        let transport = connections.client(key).unwrap().transport_mut();
        transport.begin_flush();
        transport.stage.reserve(1000);
        flush_driven(&mut connections, &mut scratch, key);
        assert!(!connections.has_shared());
        let transport = connections.client(key).unwrap().transport_mut();
        assert_eq!(transport.stage.capacity(), 0, "others may use its buffer");
        transport.stage.push(1);
        flush_driven(&mut connections, &mut scratch, key);
        assert!(connections.has_shared());
    }
}
