//! Connections to upstream servers over TCP: connecting, pooling, and what follows when one is lost.

use crate::Failure;
use crate::accept::proxy_protocol;
use crate::conn::{Conn, UpstreamConnection, UpstreamPhase};
use crate::exchange::response::Loss;
use crate::exchange::streams::UpstreamStream;
use crate::service::Proxy;
use crate::snapshot::UpstreamHttp;
use crate::transport::{Transport, TransportError};
use crate::upstream::group::LaneUpstream;
use rustix::io::Errno;
use rustix::net::{getsockname, sockopt};
use sealane_lane::{Context, Deadline, Key, Ready};
use sealane_sys::fastopen_open;
use sealane_tls::{Session, TlsError};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

impl Proxy {
    /// Finds a connection for an exchange: one that is kept open, or a new one. `fresh`: a kept connection was just lost
    /// under it, and only one that was begun since will do, shared or new.
    pub(crate) fn dispatch(&mut self, cx: &mut Context, exchange: Key, fresh: bool) {
        loop {
            let Some(x) = self.exchanges.get_mut(exchange) else { return };
            let Some(upstream) = x.upstream.clone() else { return };
            x.response_body.progress.begin(cx.now());
            // A relayed connection needs one of its own.
            let relayed = x.routed.relayed;
            // Auto with a request that HTTP/2 might not carry: an upgrade is HTTP/1.1's own.
            let upgrade = x.upgrade;
            let Some(server) = self.select_server(cx, exchange, &upstream) else { return };
            // A shared connection that was lost has left its upstream's list: what is found there is another.
            if !relayed && self.h3_dispatch(cx, exchange) {
                return;
            }
            let auto = matches!(upstream.upstream.http, UpstreamHttp::Auto | UpstreamHttp::Three);
            let shared = !relayed && upstream.expects_h2(server) && !(auto && upgrade);
            let fresh = fresh || relayed;
            if shared {
                if self.h2_join(cx, exchange) {
                    return;
                }
            } else if !fresh {
                if let Some(key) = upstream.take_idle(server) {
                    if let Some(upstream_conn) = self.connections.upstream(key) {
                        upstream_conn.phase = UpstreamPhase::Busy;
                        upstream_conn.reused = true;
                        upstream_conn.answered = false;
                        self.counters.pooled.dec();
                        self.counters.upstream_reused.inc();
                        return self.send_request(cx, exchange, key);
                    }
                    continue;
                }
            }
            let Some(x) = self.exchanges.get_mut(exchange) else { return };
            x.attempts += 1;
            match self.connect(cx, exchange, &upstream, server, shared) {
                Ok(()) => return,
                Err(error) => {
                    if !self.connect_failed(cx, exchange, error) {
                        return;
                    }
                }
            }
        }
    }

    fn connect(
        &mut self,
        cx: &mut Context,
        exchange: Key,
        upstream: &std::rc::Rc<LaneUpstream>,
        server: usize,
        shared: bool,
    ) -> Result<(), Errno> {
        let address = upstream.upstream.servers.get(server).ok_or(Errno::ADDRNOTAVAIL)?.address;
        let only_h1 =
            upstream.upstream.http == UpstreamHttp::Auto && self.exchanges.get(exchange).is_some_and(|x| x.upgrade);
        let begun = match upstream.upstream.syn_tls {
            None => None,
            Some(_) => {
                let header = self.upstream_header(upstream, server, (!shared).then_some(exchange)).unwrap_or_default();
                self.open_with_hello(cx, upstream, server, only_h1, &header)
            }
        };
        let (mut transport, syn) = match begun {
            Some((transport, syn)) => (transport, Some(syn)),
            None => (Transport::new(open_plainly(address)?), None),
        };
        self.counters.upstream_connects.inc();
        // Nothing can be read or written before the loop says so.
        transport.readable = false;
        transport.writable = false;
        let upstream_conn = UpstreamConnection {
            transport,
            upstream: upstream.clone(),
            server,
            phase: UpstreamPhase::Connecting,
            exchange: (!shared).then_some(exchange),
            inbuf: Vec::new(),
            deadline: Deadline::default(),
            reused: false,
            answered: false,
            keep_alive: false,
            shared,
            only_h1,
            waiting: if shared { vec![exchange] } else { Vec::new() },
            h2: None,
            syn,
        };
        let key = self.connections.insert(Conn::Upstream(Box::new(upstream_conn)));
        let Some(upstream_conn) = self.connections.upstream(key) else { return Err(Errno::NOMEM) };
        if cx.watch(&upstream_conn.transport.fd, key.to_u64()).is_err() {
            upstream_conn.exchange = None;
            upstream_conn.shared = false;
            self.close(cx, key);
            return Err(Errno::NOMEM);
        }
        let wait = upstream.upstream.connect_timeout;
        let wait = upstream.upstream.try_timeout.map_or(wait, |t| wait.min(t));
        match upstream_conn.syn {
            None => upstream_conn.deadline.after(cx, key, wait),
            Some(_) => self.syn_begun(cx, key, wait),
        }
        if let Some(x) = self.exchanges.get_mut(exchange) {
            x.upstream_stream = Some(if shared { UpstreamStream::Waiting(key) } else { UpstreamStream::H1(key) });
        }
        if shared {
            upstream.share(server, key);
        }
        Ok(())
    }

    /// What goes before all else, where the upstream wants a PROXY protocol header. `None` where its client is gone, and
    /// where none is wanted.
    fn upstream_header(&mut self, upstream: &LaneUpstream, server: usize, exchange: Option<Key>) -> Option<Vec<u8>> {
        let version = upstream.upstream.proxy_protocol?;
        let Self { connections, exchanges, .. } = self;
        let x = exchange.and_then(|x| exchanges.get(x))?;
        // Where the client came to, as it will be told.
        let (source, destination) = match connections.get(x.client_stream.conn()) {
            Some(Conn::Client(client_conn)) => {
                let own = getsockname(&client_conn.transport.fd).ok().and_then(|a| SocketAddr::try_from(a).ok());
                (client_conn.client.peer, own)
            }
            Some(Conn::Quic(q)) => {
                let client = q.client_ref()?;
                let port = client.listener.listener.address.port();
                (client.peer, q.quic.local_ip().map(|ip| SocketAddr::new(ip, port)))
            }
            _ => return None,
        };
        // Proxies tell of no port.
        let source = x.told.map_or(source, |ip| SocketAddr::new(ip, 0));
        let mut header = Vec::new();
        let destination = destination.unwrap_or(upstream.upstream.servers.get(server)?.address);
        proxy_protocol::encode(&mut header, version, source, destination);
        Some(header)
    }

    pub(crate) fn upstream_event(&mut self, cx: &mut Context, key: Key, ready: Ready) {
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        match upstream_conn.phase {
            UpstreamPhase::Connecting if upstream_conn.syn.is_some() => self.syn_event(cx, key),
            UpstreamPhase::Connecting => {
                if ready.error || ready.write {
                    match sockopt::socket_error(&upstream_conn.transport.fd) {
                        Ok(Ok(())) if !ready.error => self.connected(cx, key),
                        _ => self.upstream_lost(cx, key, false),
                    }
                }
            }
            UpstreamPhase::Idle => {
                if ready.read {
                    self.idle_event(cx, key);
                }
            }
            UpstreamPhase::Handshake | UpstreamPhase::Busy => self.upstream_go_on(cx, key),
            UpstreamPhase::Closing => {
                if ready.error {
                    self.close(cx, key);
                }
            }
        }
    }

    pub(crate) fn connected(&mut self, cx: &mut Context, key: Key) {
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        let (exchange, only_h1, server) = (upstream_conn.exchange, upstream_conn.only_h1, upstream_conn.server);
        let upstream = upstream_conn.upstream.clone();
        if upstream.upstream.proxy_protocol.is_some() {
            let Some(header) = self.upstream_header(&upstream, server, exchange) else { return self.close(cx, key) };
            let Some(upstream_conn) = self.connections.upstream(key) else { return };
            upstream_conn.transport.send_raw(&header);
        }
        let Self { connections, scratch, .. } = self;
        let context = upstream.context(only_h1);
        let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
        match context {
            Ok(None) if upstream.upstream.http == UpstreamHttp::Two => self.h2_upstream_begin(cx, key),
            Ok(None) => {
                upstream_conn.phase = UpstreamPhase::Busy;
                if let Some(exchange) = exchange {
                    self.send_request(cx, exchange, key);
                }
            }
            Ok(Some(context)) => {
                scratch.records.clear();
                match Session::client(&context, &mut scratch.records) {
                    Ok(session) => {
                        upstream_conn.transport.start_client(session, scratch);
                        upstream_conn.phase = UpstreamPhase::Handshake;
                        self.connections.mark_for_flush(key);
                    }
                    Err(_) => self.upstream_lost(cx, key, false),
                }
            }
            Err(_) => self.upstream_lost(cx, key, false),
        }
    }

    pub(crate) fn upstream_handshake(&mut self, cx: &mut Context, key: Key) {
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        if upstream_conn.transport.is_handshaking() {
            return self.connections.mark_for_flush(key);
        }
        if upstream_conn.syn.is_some() {
            self.syn_done(cx, key);
        }
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        let h2 = upstream_conn.transport.tls.as_ref().and_then(|t| t.alpn()) == Some(b"h2");
        let upstream = upstream_conn.upstream.clone();
        let (server, only_h1) = (upstream_conn.server, upstream_conn.only_h1);
        let resumed = upstream_conn.transport.tls.as_ref().and_then(|t| t.summary()).is_some_and(|s| s.resumed);
        let exchange = upstream_conn.exchange;
        if resumed {
            self.counters.upstream_resumed.inc()
        } else {
            self.counters.upstream_full.inc()
        }
        if !only_h1 {
            upstream.note_h2(server, h2);
        }
        if h2 {
            return self.h2_upstream_begin(cx, key);
        }
        if upstream.upstream.http == UpstreamHttp::Two {
            // Who insists on HTTP/2 does not want it otherwise.
            self.upstream_hint(key, Failure::NoHttp2);
            return self.upstream_lost(cx, key, false);
        }
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        upstream_conn.phase = UpstreamPhase::Busy;
        let waiting = std::mem::take(&mut upstream_conn.waiting);
        if let Some(exchange) = exchange {
            return self.send_request(cx, exchange, key);
        }
        // HTTP/2 was expected, and the server has changed its mind.
        self.close(cx, key);
        for exchange in waiting {
            if self.exchanges.waits_for(exchange, key) {
                self.dispatch(cx, exchange, false);
            }
        }
    }

    /// An exchange is over: the connection goes to the pool, or closes.
    pub(crate) fn release(&mut self, cx: &mut Context, key: Key, reusable: bool) {
        let draining = self.settings.is_draining();
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        let (upstream, server) = (upstream_conn.upstream.clone(), upstream_conn.server);
        // Its group may have been replaced while it was busy.
        let Some((upstream, server)) = self.settings.lane().successor(&upstream, server) else {
            return self.close(cx, key);
        };
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        let config = &upstream.upstream;
        let room = upstream.keeps_another(server);
        let clean = upstream_conn.keep_alive
            && upstream_conn.inbuf.is_empty()
            && upstream_conn.transport.is_flushed()
            && !upstream_conn.transport.is_ending();
        if !(reusable && room && clean) || draining {
            return self.close(cx, key);
        }
        upstream_conn.phase = UpstreamPhase::Idle;
        upstream_conn.exchange = None;
        upstream_conn.deadline.after(cx, key, config.keepalive_timeout);
        (upstream_conn.upstream, upstream_conn.server) = (upstream.clone(), server);
        upstream.put_idle(server, key);
        self.counters.pooled.inc();
    }

    /// Idle connections of groups that a reload has replaced go to those in their place, as far as these have room.
    pub(crate) fn carry_pools(&mut self, cx: &mut Context) {
        let idle =
            |key: &Key| matches!(self.connections.get(*key), Some(Conn::Upstream(b)) if b.phase == UpstreamPhase::Idle);
        let keys: Vec<Key> = self.connections.keys().into_iter().filter(idle).collect();
        for key in keys {
            let Some(upstream_conn) = self.connections.upstream(key) else { continue };
            let (old, server) = (upstream_conn.upstream.clone(), upstream_conn.server);
            let next = self.settings.lane().successor(&old, server);
            if next.as_ref().is_some_and(|(new, _)| std::rc::Rc::ptr_eq(new, &old)) {
                continue;
            }
            // It leaves its old pool, and enters the new one as after any exchange.
            old.forget_idle(server, key);
            self.counters.pooled.dec();
            if let Some(upstream_conn) = self.connections.upstream(key) {
                upstream_conn.phase = UpstreamPhase::Busy;
            }
            self.release(cx, key, true);
        }
    }

    pub(crate) fn upstream_failed(&mut self, cx: &mut Context, key: Key, error: &TransportError) {
        match error {
            // It needs what the shorter hello leaves out.
            TransportError::Tls(TlsError::PeerAlert(_)) if self.syn_again(cx, key, true) => return,
            TransportError::Tls(_) => self.syn_heard(cx, key),
            TransportError::Io => {}
        }
        if let (TransportError::Tls(e), Some(UpstreamPhase::Handshake)) =
            (error, self.connections.upstream(key).map(|b| b.phase))
        {
            self.upstream_hint(key, Failure::of_tls(e));
        }
        self.upstream_lost(cx, key, false);
    }

    /// Tells the requests of a connection that is about to be lost more than the loss will.
    fn upstream_hint(&mut self, key: Key, failure: Failure) {
        let Self { connections, exchanges, .. } = self;
        let Some(Conn::Upstream(upstream_conn)) = connections.get(key) else { return };
        for exchange in upstream_conn.exchange.iter().chain(&upstream_conn.waiting) {
            if let Some(x) = exchanges.get_mut(*exchange) {
                x.routed.hint = Some(failure);
            }
        }
    }

    pub(crate) fn upstream_timeout(&mut self, cx: &mut Context, key: Key) {
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        if matches!(upstream_conn.phase, UpstreamPhase::Idle | UpstreamPhase::Closing) {
            return self.close(cx, key);
        }
        if upstream_conn.h2.is_some() {
            return self.h2_upstream_timeout(cx, key);
        }
        if upstream_conn.syn.is_some() && self.syn_timeout(cx, key) {
            return;
        }
        // Of one that is busy the exchange has the deadlines.
        if self.connections.upstream(key).is_none_or(|b| b.phase == UpstreamPhase::Busy) {
            return;
        }
        self.counters.upstream_timeouts.inc();
        self.upstream_lost(cx, key, true);
    }

    /// A connection to an upstream is given up, and what it had to do told.
    pub(crate) fn upstream_lost(&mut self, cx: &mut Context, key: Key, timeout: bool) {
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        if upstream_conn.h2.is_some() {
            return self.h2_upstream_lost(cx, key, timeout);
        }
        if upstream_conn.syn.is_some() && !timeout && self.syn_again(cx, key, false) {
            return;
        }
        let Some(upstream_conn) = self.connections.upstream(key) else { return };
        let waiting = std::mem::take(&mut upstream_conn.waiting);
        let why = match upstream_conn.phase {
            UpstreamPhase::Connecting | UpstreamPhase::Handshake => Loss::Unreachable { timeout },
            _ if timeout => Loss::Timeout,
            _ if upstream_conn.reused && !upstream_conn.answered => Loss::Stale,
            _ => Loss::Broken,
        };
        match upstream_conn.exchange.take() {
            Some(exchange) => {
                self.close(cx, key);
                self.server_lost(cx, exchange, why);
            }
            None => self.close(cx, key),
        }
        for exchange in waiting {
            if self.exchanges.waits_for(exchange, key) {
                self.server_lost(cx, exchange, why);
            }
        }
    }
}

/// A plain connection that is being made.
fn open_plainly(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let opened = fastopen_open::socket(address).and_then(|fd| fastopen_open::open(fd, address));
    opened.map(|o| o.fd).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::INVAL))
}
