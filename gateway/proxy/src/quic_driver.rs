//! Connects QUIC's transport with HTTP/3: passes what happens on connections to `client::h3` and `upstream::h3`, and what
//! these have to send to the transport.
//!
//! ```text
//! quic ── events ──► drive ──► client::h3, client::h3_connection, upstream::h3 ──► exchange
//! quic ◄─ streams ── flush ◄── connections marked for it
//! ```

use crate::client::connection::probe_failure;
use crate::client::h3::{h3_client_stopped, h3_read, h3_stream_opened};
use crate::client::h3_connection::{
    h3_client_accepted, h3_client_close_if_done, h3_client_error, h3_client_established, h3_client_left,
    h3_client_lost, h3_client_timeout, h3_hello_read,
};
use crate::counters::Count;
use crate::exchange::resume::resume_source;
use crate::exchange::streams::Later;
use crate::flush::flush_marked;
use crate::h3::connection::H3Connection;
use crate::lifecycle::close_connection;
use crate::quic::admission::Rejected;
use crate::quic::send::{Transmitted, WAIT_LIMIT};
use crate::quic::{Datagram, Parts};
use crate::service::Proxy;
use crate::upstream::h3::{
    h3_send_waiting, h3_server_close_if_done, h3_server_error, h3_server_established, h3_server_leaving,
    h3_server_lost, h3_server_read, h3_server_stopped, h3_server_timeout,
};
use quinn_proto::{Dir, Event, StreamEvent, StreamId};
use sealane_http::h3::Code;
use sealane_lane::{Context, Key, Micros};

/// Rounds of flushing per turn.
const ROUNDS: usize = 8;
/// Calls of [`quic_flush_all`] when the lane stops, which wait for room in the sockets: a tenth of a second.
const END_ROUNDS: usize = 100;

/// Reads a UDP socket.
pub(crate) fn quic_ready(proxy: &mut Proxy, cx: &mut Context, index: usize) {
    let Proxy { quic, connections, admission, settings, counters, .. } = proxy;
    quic.read_socket(cx, index, &mut Parts { connections, admission, settings, counters });
    quic_look(proxy, cx);
}

/// A datagram that another lane got, of a connection that is one of this lane's.
pub(crate) fn quic_forwarded(proxy: &mut Proxy, cx: &mut Context, datagram: Datagram) {
    let Proxy { quic, connections, admission, settings, counters, .. } = proxy;
    quic.forwarded(cx, datagram, &mut Parts { connections, admission, settings, counters });
    quic_look(proxy, cx);
}

/// Looks at the connections to which something has happened.
fn quic_look(proxy: &mut Proxy, cx: &mut Context) {
    for remote in proxy.quic.take_denied() {
        let connection = proxy.log.next_connection();
        proxy.log.records().connection_denied(&proxy.counters, (remote, connection));
    }
    while let Some(key) = proxy.quic.next_touched() {
        quic_drive(proxy, cx, key);
    }
}

/// Acts on what a connection has to say.
pub(crate) fn quic_drive(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Proxy { connections, quic, admission, settings, counters, .. } = proxy;
    let Some(q) = connections.quic(key) else { return };
    if q.transport().may_move() && quic.gave_up_hello(cx, settings, counters, q.transport_mut()) {
        h3_client_left(connections, quic, admission, settings, counters, cx, key);
        connections.remove(key);
        return;
    }
    q.transport_mut().widen();
    loop {
        let Some(q) = proxy.connections.quic(key) else { return };
        let Some(event) = q.transport_mut().poll() else { break };
        match event {
            Event::Connected if q.is_client() => h3_client_established(proxy, cx, key),
            Event::Connected => h3_server_established(proxy, cx, key),
            Event::ConnectionLost { reason } if q.is_client() => h3_client_lost(proxy, cx, key, &reason),
            Event::ConnectionLost { .. } => h3_server_lost(proxy, cx, key),
            Event::Stream(event) => quic_stream_event(proxy, cx, key, event),
            Event::HandshakeDataReady => h3_hello_read(&mut proxy.connections, key),
            Event::DatagramReceived | Event::DatagramsUnblocked => {}
        }
    }
    if let Some(q) = proxy.connections.quic(key) {
        q.transport_mut().note_looked_at();
    }
    proxy.connections.mark_for_flush(key);
}

fn quic_stream_event(proxy: &mut Proxy, cx: &mut Context, key: Key, event: StreamEvent) {
    match event {
        StreamEvent::Opened { dir: Dir::Uni } => {
            while let Some(q) = proxy.connections.quic(key)
                && let Some(id) = q.transport_mut().accept(Dir::Uni)
            {
                q.add_uni(id);
                quic_read_uni(proxy, cx, key, id);
            }
        }
        StreamEvent::Opened { dir: Dir::Bi } => {
            while let Some(q) = proxy.connections.quic(key)
                && let Some(id) = q.transport_mut().accept(Dir::Bi)
            {
                h3_stream_opened(proxy, cx, key, id);
            }
        }
        StreamEvent::Readable { id } if id.dir() == Dir::Uni => quic_read_uni(proxy, cx, key, id),
        StreamEvent::Readable { id } => {
            let Some(q) = proxy.connections.quic(key) else { return };
            match q.index_of(id) {
                Some(index) if q.is_client() => h3_read(proxy, cx, key, index),
                Some(index) => h3_server_read(proxy, cx, key, index),
                None => {}
            }
        }
        StreamEvent::Writable { id } => {
            if let Some(q) = proxy.connections.quic(key)
                && let Some(index) = q.index_of(id)
            {
                q.stage(index);
            }
        }
        StreamEvent::Stopped { id, error_code } => {
            let Some(q) = proxy.connections.quic(key) else { return };
            match q.index_of(id) {
                Some(index) if q.is_client() => h3_client_stopped(proxy, cx, key, index, error_code),
                Some(index) => h3_server_stopped(&mut proxy.connections, key, index, error_code),
                None => {}
            }
        }
        StreamEvent::Available { dir: Dir::Bi } => h3_send_waiting(proxy, cx, key),
        StreamEvent::Finished { id } => {
            if let Some(q) = proxy.connections.quic(key) {
                q.note_delivered(id, cx.now());
            }
        }
        StreamEvent::Available { dir: Dir::Uni } => {}
    }
}

/// Reads one of the peer's own streams.
fn quic_read_uni(proxy: &mut Proxy, cx: &mut Context, key: Key, id: StreamId) {
    let Some(q) = proxy.connections.quic(key) else { return };
    let (is_client, read) = (q.is_client(), q.read_uni(id, cx.now()));
    let why = "a stream of the peer's own breaks the rules";
    match read {
        Ok(None) => proxy.connections.mark_for_flush(key),
        Ok(Some(from)) => h3_server_leaving(proxy, cx, key, from),
        Err(code) if is_client => h3_client_error(proxy, cx, key, code, why),
        Err(code) => h3_server_error(proxy, cx, key, code, why),
    }
}

/// Looks at what has run out of time on a connection.
pub(crate) fn quic_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    match proxy.connections.quic(key).map(|q| q.is_client()) {
        Some(true) => h3_client_timeout(proxy, cx, key),
        Some(false) => h3_server_timeout(proxy, cx, key),
        None => {}
    }
}

/// The end of a turn: timers, admission, and everything that is to be sent. True if there is more to do at once.
pub(crate) fn quic_turn(proxy: &mut Proxy, cx: &mut Context) -> bool {
    let now = cx.instant();
    while let Some(key) = proxy.quic.next_expired(now, &mut proxy.connections) {
        quic_drive(proxy, cx, key);
    }
    proxy.quic.forget_ended(now);
    quic_admit(proxy, cx);
    let more = quic_flush_all(proxy, cx);
    cx.alarm = proxy.quic.alarm(now, &proxy.connections);
    more || proxy.quic.has_waiting()
}

/// Spends crypto time on those that wait, as `accept::admission::serve_admission` does.
fn quic_admit(proxy: &mut Proxy, cx: &mut Context) {
    if !proxy.quic.has_waiting() {
        return;
    }
    let budget = proxy.settings.limits().handshake_budget;
    let start = cx.instant();
    let mut before = start;
    while proxy.quic.has_waiting() {
        let micros = cx.micros() + (before - start).as_micros() as Micros;
        match proxy.quic.accept_next((before, micros), &proxy.admission, &proxy.settings, &proxy.counters) {
            Some(Ok(accepted)) => {
                let key = h3_client_accepted(proxy, cx, accepted);
                quic_drive(proxy, cx, key);
            }
            Some(Err(Rejected { remote, reason })) => {
                proxy.counters.tls_failure(reason);
                let connection = proxy.log.next_connection();
                probe_failure(|| Some(connection), reason);
                proxy.log.records().handshake_failed(&proxy.counters, (remote, connection), reason);
            }
            None => {}
        }
        let after = cx.instant();
        let took = after - before;
        before = after;
        if after - start + took > budget {
            break;
        }
    }
    proxy.counters.add(Count::HandshakeNanos, (before - start).as_nanos() as u64);
}

/// All connections with clients are told to open no more streams; those without any close. With a successor there is
/// no hurry: what is on its way when they hear of it is still served (RFC 9114 §5.2).
pub(crate) fn quic_drain(proxy: &mut Proxy, cx: &mut Context) {
    let keys: Vec<Key> = proxy.connections.keys();
    let kindly = proxy.quic.has_successor();
    for key in keys {
        let Some(q) = proxy.connections.quic(key).filter(|q| q.is_client()) else { continue };
        if kindly {
            q.leave_soon(cx.now());
            proxy.connections.mark_for_flush(key);
        } else {
            q.leave();
            h3_client_close_if_done(proxy, cx, key);
        }
    }
    quic_flush_all(proxy, cx);
}

/// The lane stops: all connections over QUIC that are left close, with clients and with servers. A connection over TCP closes
/// with its socket; over QUIC, the peer would not hear of the end without CONNECTION_CLOSE.
pub(crate) fn quic_end(proxy: &mut Proxy, cx: &mut Context) {
    for key in proxy.connections.keys() {
        let Some(q) = proxy.connections.quic(key) else { continue };
        q.close(cx.instant(), Code::NoError, "");
        proxy.connections.mark_for_flush(key);
    }
    for _ in 0..END_ROUNDS {
        if !quic_flush_all(proxy, cx) && !proxy.quic.is_blocked() {
            return;
        }
        if proxy.quic.is_blocked() {
            std::thread::sleep(WAIT_LIMIT);
        }
    }
}

/// What a new snapshot means: endpoints come and go, new connections get the new settings, and those whose rules
/// are gone leave.
pub(crate) fn quic_refresh(proxy: &mut Proxy, cx: &mut Context) {
    proxy.quic.refresh(cx, &proxy.settings);
    let keys: Vec<Key> = proxy.connections.keys();
    for key in keys {
        let Some(q) = proxy.connections.quic(key) else { continue };
        if q.client_ref().is_some_and(|client| !client.is_current()) {
            q.leave();
            h3_client_close_if_done(proxy, cx, key);
        }
    }
}

/// Flushes all connections that were touched, and sends. True if some are left for the next turn.
fn quic_flush_all(proxy: &mut Proxy, cx: &mut Context) -> bool {
    proxy.quic.send(cx, &proxy.counters);
    for _ in 0..ROUNDS {
        if !proxy.connections.has_quic() || proxy.quic.is_blocked() {
            break;
        }
        for key in proxy.connections.take_quic() {
            quic_flush(proxy, cx, key);
            proxy.quic.send_if_much(cx, &proxy.counters);
        }
        proxy.quic.send(cx, &proxy.counters);
        // What was resumed may have staged something on a connection over TCP.
        flush_marked(proxy, cx);
    }
    proxy.connections.has_quic() && !proxy.quic.is_blocked()
}

/// Hands a connection's streams to the protocol and takes its datagrams.
fn quic_flush(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Proxy { connections, exchanges, quic, counters, .. } = proxy;
    let Some(q) = connections.quic(key) else { return };
    q.begin_flush();
    if quic.is_blocked() {
        return connections.mark_for_flush(key);
    }
    let now = cx.instant();
    if q.transport_mut().is_held(now) {
        return quic.arm(connections, key);
    }
    q.flush_control();
    let mut resume: Vec<Later> = Vec::new();
    q.flush_streams(exchanges, cx.now(), &mut resume);
    let (more, is_client) = (q.has_staged(), q.is_client());
    let Some(transmitted) = quic.transmit(now, counters, q.transport_mut(), more) else { return };
    if transmitted == Transmitted::Ended {
        close_connection(proxy, cx, key);
    } else {
        quic.arm(connections, key);
        if transmitted == Transmitted::More {
            connections.mark_for_flush(key);
        }
        match connections.quic(key).is_some_and(H3Connection::is_done) {
            true if is_client => h3_client_close_if_done(proxy, cx, key),
            true => h3_server_close_if_done(connections, cx, key),
            false => {}
        }
    }
    for source in resume {
        resume_source(proxy, cx, source);
    }
}
