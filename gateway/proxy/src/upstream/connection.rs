//! Connections to upstream servers over TCP: selecting a server, connecting, pooling, and what follows when one is lost. `balance` has
//! the algorithms of the selection; `server_state` and `limits` have what lanes share.

use crate::Failure;
use crate::accept::proxy_protocol;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::expiry::look_soon;
use crate::exchange::response::{connect_failed, no_server, not_taken, server_lost};
use crate::exchange::streams::UpstreamStream;
use crate::latency::{CONNECT, HANDSHAKE};
use crate::lifecycle::close_connection;
use crate::memory::grant_window;
use crate::service::Proxy;
use crate::snapshot::{Server, UpstreamHttp};
use crate::transport::{Transport, TransportError};
use crate::upstream::balance::Pick;
use crate::upstream::early::{begin_session, early_lost, early_over, note_refusal};
use crate::upstream::group::LaneUpstream;
use crate::upstream::h1::{idle_event, is_silent, send_request, upstream_go_on};
use crate::upstream::h2_connection::{
    STREAM_WINDOW, h2_join, h2_upstream_begin, h2_upstream_lost, h2_upstream_timeout,
};
use crate::upstream::h3::h3_dispatch;
use crate::upstream::phase::{Answer, Purpose, Step, UpstreamConnection, UpstreamPhase};
use crate::upstream::syn::{open_with_hello, syn_again, syn_begun, syn_done, syn_event, syn_heard, syn_timeout};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, getsockname, socket_with, sockopt};
use sealane_exchange::deadlines::ConnectionWait;
use sealane_exchange::{Exchange as Machine, Fit, Loss, Switching};
use sealane_lane::{Context, Key, Ready};
use sealane_sys::fastopen_open;
use sealane_tls::TlsError;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

/// Most exchanges that wait for a connection that they would share: for its handshake, or for what the server allows.
const MOST_WAITING: usize = 128;

/// Whether one more exchange may wait for a connection. Those that have been called off, or have gone elsewhere, wait no more.
pub(super) fn may_wait(waiting: &mut VecDeque<Key>, exchanges: &Exchanges, connection: Key) -> bool {
    if waiting.len() >= MOST_WAITING {
        waiting.retain(|exchange| exchanges.waits_for(*exchange, connection));
    }
    waiting.len() < MOST_WAITING
}

/// Finds a connection for an exchange: one that is kept open, or a new one. After a kept connection was lost under it, others may be as
/// old: only one that was begun since will do ([`oldest_connection`](crate::exchange::routed::Routed::oldest_connection)), over every
/// version of HTTP. In the pool nobody looks for one.
pub(crate) fn dispatch_request(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    find_connection(proxy, cx, exchange);
    // The connection that it waits for, or a stream on one, has no timer for it.
    if proxy.exchanges.get(exchange).is_some_and(|x| x.upstream_stream().is_some() && !x.machine().has_server()) {
        look_soon(&mut proxy.connections, &proxy.exchanges, &proxy.settings, cx, exchange);
    }
}

fn find_connection(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    loop {
        let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
        let Some(upstream) = x.upstream().cloned() else { return };
        x.begin_dispatch(cx.now());
        // A relayed connection needs one of its own.
        let relayed = x.machine().is_relay();
        let fresh = relayed || x.routed().oldest_connection().is_some();
        let only_h1 = !relayed && needs_h1(upstream.upstream.http, x.machine());
        let Some(server) = select_server(proxy, cx, exchange, &upstream) else { return };
        if !relayed && upstream.upstream.http == UpstreamHttp::Three && h3_dispatch(proxy, cx, exchange) {
            return;
        }
        let mut shared = None;
        if !relayed && upstream.expects_h2(server) && !only_h1 {
            let window = grant_window(&mut proxy.connections, &mut proxy.exchanges, exchange, STREAM_WINDOW);
            if h2_join(proxy, cx, exchange, window) {
                return;
            }
            shared = Some(window);
        } else if !fresh && let Some(key) = upstream.take_idle(server) {
            if let Some(upstream_conn) = proxy.connections.upstream(key) {
                if upstream_conn.transport.is_ending() {
                    close_connection(proxy, cx, key);
                    continue;
                }
                upstream_conn.phase.go_on(UpstreamPhase::Busy(exchange, Answer::Awaited { kept: true }));
                proxy.counters.fall(Count::Pooled);
                proxy.counters.count(Count::UpstreamReused);
                return send_request(proxy, cx, exchange, key, false);
            }
            continue;
        }
        let purpose = match shared {
            Some(window) => Purpose::ToShare { waiting: [exchange].into(), window },
            None if only_h1 => Purpose::OverH1(exchange),
            None => Purpose::Exchange(exchange),
        };
        match connect_upstream(proxy, cx, exchange, &upstream, server, purpose) {
            Ok(()) => return,
            Err(error) => {
                if !connect_failed(proxy, cx, exchange, error) {
                    return;
                }
            }
        }
    }
}

/// Chooses the server for a try. `None`: the request waits for room, or has been answered.
#[inline]
fn select_server(proxy: &mut Proxy, cx: &mut Context, exchange: Key, upstream: &Rc<LaneUpstream>) -> Option<usize> {
    let x = proxy.exchanges.get_mut(exchange)?;
    // What it had at the server before is over.
    x.routed_mut().leave_server();
    if x.routed().waits_until().is_none() && upstream.makes_wait() {
        // Nobody overtakes those who wait. The queue is served at the end of the turn.
        wait_for_room(proxy, cx, exchange, upstream);
        return None;
    }
    match upstream.balancer.pick(x.routed().balancing()) {
        Pick::Server(server) => {
            x.begin_try(server, upstream.balancer.servers()[server].lease(), cx.now());
            Some(server)
        }
        Pick::Full => {
            wait_for_room(proxy, cx, exchange, upstream);
            None
        }
        Pick::None => {
            no_server(proxy, cx, exchange, Count::NoServer);
            None
        }
    }
}

/// A request waits for room at the servers of its group, or is refused where too many wait already.
fn wait_for_room(proxy: &mut Proxy, cx: &mut Context, exchange: Key, upstream: &Rc<LaneUpstream>) {
    let now = cx.now();
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let first = x.routed().waits_until().is_none();
    let until = x.routed_mut().wait_until(upstream.upstream.queued_until(now));
    if upstream.queue(exchange, |key| proxy.exchanges.get(key).is_some()).is_err() {
        return no_server(proxy, cx, exchange, Count::QueueFull);
    }
    proxy.pools.schedule_queue(cx, upstream, until);
    if first {
        proxy.counters.count(Count::Queued);
        // Another lane may have room to give.
        upstream.nudge();
    }
}

/// Whether a request must go over HTTP/1.1 where the server may choose: HTTP/1.1 carries whatever a client asks for, and HTTP/2, of
/// whose connection nothing is known yet, might not.
#[inline]
fn needs_h1(http: UpstreamHttp, machine: &Machine) -> bool {
    matches!(http, UpstreamHttp::Auto | UpstreamHttp::Three) && machine.fit(Switching::Unknown) != Fit::Whole
}

/// Begins to connect for an exchange.
fn connect_upstream(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    upstream: &Rc<LaneUpstream>,
    server: usize,
    purpose: Purpose,
) -> Result<(), Errno> {
    let is_shared = purpose.exchange().is_none();
    let place = upstream.upstream.servers.get(server).ok_or(Errno::ADDRNOTAVAIL)?;
    let begun = match upstream.upstream.syn_tls {
        None => None,
        Some(_) => {
            let header = upstream_header(&proxy.connections, &proxy.exchanges, upstream, server, purpose.exchange())
                .unwrap_or_default();
            open_with_hello(proxy, cx, upstream, server, purpose.is_over_h1(), &header)
        }
    };
    let (mut transport, syn) = match begun {
        Some((transport, syn)) => (transport, Some(syn)),
        None => (Transport::new(open_plainly(place)?), None),
    };
    proxy.counters.count(Count::UpstreamConnects);
    // Nothing can be read or written before the loop says so.
    transport.readable = false;
    transport.writable = false;
    let phase = UpstreamPhase::making(purpose, syn, cx.micros());
    let upstream_conn = UpstreamConnection::new(transport, (upstream.clone(), server), phase);
    let key = proxy.connections.insert(Conn::Upstream(Box::new(upstream_conn)));
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return Err(Errno::NOMEM) };
    if cx.watch(&upstream_conn.transport.fd, key.to_u64()).is_err() {
        close_connection(proxy, cx, key);
        return Err(Errno::NOMEM);
    }
    let at = upstream.upstream.until(ConnectionWait::Connect, cx.now());
    match upstream_conn.syn() {
        None => upstream_conn.deadline.set(cx, key, at),
        Some(_) => syn_begun(&mut proxy.connections, cx, key, at),
    }
    if let Some(x) = proxy.exchanges.get_mut(exchange) {
        x.await_connection(if is_shared { UpstreamStream::Waiting(key) } else { UpstreamStream::H1(key) });
        x.note_connecting(cx.micros());
    }
    if is_shared {
        upstream.share(server, key);
    }
    Ok(())
}

/// What goes before all else, where the upstream wants a PROXY protocol header. `None` where its client is gone, and
/// where none is wanted.
fn upstream_header(
    connections: &Connections,
    exchanges: &Exchanges,
    upstream: &LaneUpstream,
    server: usize,
    exchange: Option<Key>,
) -> Option<Vec<u8>> {
    let version = upstream.upstream.proxy_protocol?;
    let x = exchange.and_then(|x| exchanges.get(x))?;
    // Where the client came to, as it will be told.
    let (source, destination) = match connections.get(x.client_stream().conn()) {
        Some(Conn::Client(client_conn)) => {
            let own = getsockname(client_conn.socket()).ok().and_then(|a| SocketAddr::try_from(a).ok());
            (client_conn.client().peer(), own)
        }
        Some(Conn::Quic(q)) => {
            let client = q.client_ref()?;
            let port = client.listener().listener.address.port();
            (client.peer(), q.transport().local_ip().map(|ip| SocketAddr::new(ip, port)))
        }
        _ => return None,
    };
    // Proxies tell of no port.
    let source = x.told().map_or(source, |ip| SocketAddr::new(ip, 0));
    let mut header = Vec::new();
    let destination = destination.unwrap_or(upstream.upstream.servers.get(server)?.address);
    proxy_protocol::encode(&mut header, version, source, destination);
    Some(header)
}

pub(crate) fn upstream_event(proxy: &mut Proxy, cx: &mut Context, key: Key, ready: Ready) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    match &upstream_conn.phase {
        UpstreamPhase::Making(making) if making.step == Step::Handshake => upstream_go_on(proxy, cx, key),
        UpstreamPhase::Making(making) if making.syn.is_some() => syn_event(proxy, cx, key),
        UpstreamPhase::Making(_) => {
            if ready.error || ready.write {
                match sockopt::socket_error(&upstream_conn.transport.fd) {
                    Ok(Ok(())) if !ready.error => upstream_connected(proxy, cx, key),
                    _ => upstream_lost(proxy, cx, key, false),
                }
            }
        }
        UpstreamPhase::Idle => {
            if ready.read {
                idle_event(proxy, cx, key);
            }
        }
        UpstreamPhase::Busy(..) | UpstreamPhase::Shared(_) => upstream_go_on(proxy, cx, key),
        UpstreamPhase::Closing => {
            if ready.error {
                close_connection(proxy, cx, key);
            }
        }
    }
}

pub(crate) fn upstream_connected(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let UpstreamPhase::Making(making) = &mut upstream_conn.phase else { return };
    let (only_h1, exchange) = (making.purpose.is_over_h1(), making.purpose.exchange());
    let (upstream, server) = (upstream_conn.upstream.clone(), upstream_conn.server);
    upstream.record(proxy.settings.slot(), CONNECT, cx.micros() - making.began);
    making.began = cx.micros();
    if upstream.upstream.proxy_protocol.is_some() {
        let Some(header) = upstream_header(&proxy.connections, &proxy.exchanges, &upstream, server, exchange) else {
            return close_connection(proxy, cx, key);
        };
        let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
        upstream_conn.transport.send_raw(&header);
    }
    match upstream.context(only_h1) {
        Ok(None) if upstream.upstream.http == UpstreamHttp::Two => h2_upstream_begin(proxy, cx, key),
        Ok(None) => h1_upstream_begin(proxy, cx, key, false),
        Ok(Some(context)) => match begin_session(proxy, cx, key, &context) {
            Ok(()) => proxy.connections.mark_for_flush(key),
            Err(_) => upstream_lost(proxy, cx, key, false),
        },
        Err(_) => upstream_lost(proxy, cx, key, false),
    }
}

pub(crate) fn upstream_handshake(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    if upstream_conn.transport.is_handshaking() {
        return proxy.connections.mark_for_flush(key);
    }
    if upstream_conn.syn().is_some() {
        syn_done(&mut proxy.connections, &mut proxy.pools, &proxy.counters, cx, key);
    }
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let h2 = upstream_conn.transport.tls.as_ref().and_then(|t| t.alpn()) == Some(b"h2");
    let UpstreamPhase::Making(making) = &upstream_conn.phase else { return };
    let (upstream, server) = (upstream_conn.upstream.clone(), upstream_conn.server);
    upstream.record(proxy.settings.slot(), HANDSHAKE, cx.micros() - making.began);
    let (only_h1, is_early) = (making.purpose.is_over_h1(), making.early);
    let resumed = upstream_conn.transport.tls.as_ref().and_then(|t| t.summary()).is_some_and(|s| s.resumed);
    if resumed {
        proxy.counters.count(Count::UpstreamResumed)
    } else {
        proxy.counters.count(Count::UpstreamFull)
    }
    if !only_h1 {
        upstream.note_h2(server, h2);
    }
    let is_sent = is_early && early_over(proxy, key);
    if h2 {
        return h2_upstream_begin(proxy, cx, key);
    }
    if upstream.upstream.http == UpstreamHttp::Two {
        // Who insists on HTTP/2 does not want it otherwise.
        upstream_hint(&proxy.connections, &mut proxy.exchanges, key, Failure::NoHttp2);
        return upstream_lost(proxy, cx, key, false);
    }
    h1_upstream_begin(proxy, cx, key, is_sent);
}

/// A connection to an upstream turns out to speak HTTP/1.1: the exchange that it was made for begins. `is_sent`: the server has its
/// request as early data.
fn h1_upstream_begin(proxy: &mut Proxy, cx: &mut Context, key: Key, is_sent: bool) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let Some(exchange) = upstream_conn.exchange() else {
        let waiting = upstream_conn.take_waiting();
        // HTTP/2 was expected, and the server has changed its mind: each gets a connection of its own.
        close_connection(proxy, cx, key);
        for exchange in waiting {
            if proxy.exchanges.waits_for(exchange, key) {
                not_taken(proxy, cx, exchange, true, None);
            }
        }
        return;
    };
    upstream_conn.phase = UpstreamPhase::Busy(exchange, Answer::Awaited { kept: false });
    send_request(proxy, cx, exchange, key, is_sent);
}

/// An exchange is over: the connection goes to the pool, or closes.
pub(crate) fn release_upstream(proxy: &mut Proxy, cx: &mut Context, key: Key, reusable: bool) {
    let is_kept_alive =
        |phase: &UpstreamPhase| matches!(phase, UpstreamPhase::Busy(_, Answer::Headed { keep_alive: true }));
    pool_upstream(proxy, cx, key, |phase| reusable && is_kept_alive(phase));
}

/// Puts a connection into the pool of its group, or of the group that has taken that one's place, if it may serve another exchange:
/// in its phase, and because nothing is left of the last one. Else closes it.
#[inline(always)]
fn pool_upstream(proxy: &mut Proxy, cx: &mut Context, key: Key, is_reusable: impl Fn(&UpstreamPhase) -> bool) {
    let draining = proxy.settings.is_draining();
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let (upstream, server) = (upstream_conn.upstream.clone(), upstream_conn.server);
    // Its group may have been replaced while it was busy.
    let Some((upstream, server)) = proxy.settings.lane().successor(&upstream, server) else {
        return close_connection(proxy, cx, key);
    };
    let Proxy { connections, scratch, .. } = proxy;
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    let config = &upstream.upstream;
    let room = upstream.keeps_another(server);
    let clean = is_reusable(&upstream_conn.phase)
        && upstream_conn.inbuf.is_empty()
        && upstream_conn.transport.is_flushed()
        && !upstream_conn.transport.is_ending();
    // The last read may have ended just where the response does: what is in the socket behind it is nobody's response.
    let clean = clean && (!upstream_conn.transport.readable || is_silent(&mut upstream_conn.transport, scratch));
    if !(room && clean) || draining {
        return close_connection(proxy, cx, key);
    }
    upstream_conn.phase.go_on(UpstreamPhase::Idle);
    let at = config.until(ConnectionWait::Request, cx.now());
    upstream_conn.deadline.set(cx, key, at);
    (upstream_conn.upstream, upstream_conn.server) = (upstream.clone(), server);
    upstream.put_idle(server, key);
    proxy.counters.count(Count::Pooled);
}

/// Idle connections of groups that a reload has replaced go to those in their place, as far as these have room.
pub(crate) fn carry_pools(proxy: &mut Proxy, cx: &mut Context) {
    let idle = |key: &Key| matches!(proxy.connections.get(*key), Some(Conn::Upstream(b)) if b.phase.is_idle());
    let keys: Vec<Key> = proxy.connections.keys().into_iter().filter(idle).collect();
    for key in keys {
        let Some(upstream_conn) = proxy.connections.upstream(key) else { continue };
        let (old, server) = (upstream_conn.upstream.clone(), upstream_conn.server);
        let next = proxy.settings.lane().successor(&old, server);
        if next.as_ref().is_some_and(|(new, _)| Rc::ptr_eq(new, &old)) {
            continue;
        }
        pool_upstream(proxy, cx, key, UpstreamPhase::is_idle);
        // It is in the new pool, or has left the old one by closing.
        if proxy.connections.get(key).is_some() {
            old.forget_idle(server, key);
            proxy.counters.fall(Count::Pooled);
        }
    }
}

pub(crate) fn upstream_failed(proxy: &mut Proxy, cx: &mut Context, key: Key, error: &TransportError) {
    match error {
        // It needs what the shorter hello leaves out.
        TransportError::Tls(TlsError::PeerAlert(_)) if syn_again(proxy, cx, key, true) => return,
        TransportError::Tls(_) => syn_heard(&mut proxy.connections, cx, key),
        TransportError::Io => {}
    }
    if let TransportError::Tls(TlsError::PeerAlert(_)) = error {
        note_refusal(&mut proxy.connections, key);
    }
    if let TransportError::Tls(e) = error
        && proxy.connections.upstream(key).is_some_and(|b| b.phase.is_handshake())
    {
        let failure = Failure::of_tls(e);
        if failure == Failure::Unlogged {
            proxy.counters.count(Count::UpstreamNotTransparent);
        }
        upstream_hint(&proxy.connections, &mut proxy.exchanges, key, failure);
    }
    upstream_lost(proxy, cx, key, false);
}

/// Tells the requests of a connection that is about to be lost more than the loss will.
fn upstream_hint(connections: &Connections, exchanges: &mut Exchanges, key: Key, failure: Failure) {
    let Some(Conn::Upstream(upstream_conn)) = connections.get(key) else { return };
    for exchange in upstream_conn.exchange().into_iter().chain(upstream_conn.waiting().into_iter().flatten().copied()) {
        if let Some(x) = exchanges.get_mut(exchange) {
            x.routed_mut().note_hint(Some(failure));
        }
    }
}

pub(crate) fn upstream_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    match upstream_conn.phase {
        UpstreamPhase::Idle | UpstreamPhase::Closing => return close_connection(proxy, cx, key),
        UpstreamPhase::Shared(_) => return h2_upstream_timeout(proxy, cx, key),
        UpstreamPhase::Making(_) | UpstreamPhase::Busy(..) => {}
    }
    // Of one that is busy the exchange has the deadlines.
    if upstream_conn.phase.is_busy() || upstream_conn.syn().is_some() && syn_timeout(proxy, cx, key) {
        return;
    }
    proxy.counters.count(Count::UpstreamTimeouts);
    upstream_lost(proxy, cx, key, true);
}

/// A connection to an upstream is given up, and what it had to do told.
pub(crate) fn upstream_lost(proxy: &mut Proxy, cx: &mut Context, key: Key, timeout: bool) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    if upstream_conn.is_h2() {
        return h2_upstream_lost(proxy, cx, key, timeout);
    }
    if upstream_conn.syn().is_some() && !timeout && syn_again(proxy, cx, key, false) {
        return;
    }
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let (exchange, waiting) = (upstream_conn.exchange(), upstream_conn.take_waiting());
    let why = match &upstream_conn.phase {
        UpstreamPhase::Making(making) if making.early => {
            early_lost(upstream_conn, &proxy.counters, cx.now(), making.refused, timeout)
        }
        UpstreamPhase::Making(_) if timeout => Loss::ConnectTimeout,
        UpstreamPhase::Making(_) => Loss::Unreachable,
        _ if timeout => upstream_conn.upstream.silence(),
        UpstreamPhase::Busy(_, Answer::Awaited { kept }) => Loss::of_connection(*kept, true),
        _ => Loss::Broken,
    };
    close_connection(proxy, cx, key);
    if let Some(exchange) = exchange {
        server_lost(proxy, cx, exchange, why);
    }
    for exchange in waiting {
        if proxy.exchanges.waits_for(exchange, key) {
            server_lost(proxy, cx, exchange, why);
        }
    }
}

/// A plain connection that is being made.
fn open_plainly(server: &Server) -> Result<OwnedFd, Errno> {
    if let Some(path) = &server.socket {
        return open_socket(path);
    }
    let address = server.address;
    let opened = fastopen_open::socket(address).and_then(|fd| fastopen_open::open(fd, address));
    opened.map(|o| o.fd).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))
}

/// Connects to a Unix socket, which succeeds or fails at once.
fn open_socket(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&fd, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(fd),
        // The queue of the listening socket is full (connect(2)): it is the server that has no room, not this machine.
        Err(Errno::AGAIN) => Err(Errno::CONNREFUSED),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_exchange::Kind;

    /// The choice of a shared connection and the offer by ALPN must agree.
    #[test]
    fn upgrades_need_http1_where_the_server_chooses() {
        let all = [UpstreamHttp::One, UpstreamHttp::Two, UpstreamHttp::Auto, UpstreamHttp::Three];
        for kind in [Kind::Message, Kind::Connect, Kind::WebSocket, Kind::Upgrade, Kind::ExtendedConnect] {
            let machine = Machine::new(sealane_exchange::Request { kind, ..Default::default() });
            let asks = kind.asks_upgrade();
            assert_eq!(all.map(|http| needs_h1(http, &machine)), [false, false, asks, asks], "{kind:?}");
        }
    }
}
