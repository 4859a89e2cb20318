//! Connections to upstreams: choosing, making, pooling and giving them up. `h1_back` is what is spoken on them.

use crate::Failure;
use crate::conn::{Back, BackPhase, Conn};
use crate::lane_state::LaneUpstream;
use crate::proxy_protocol;
use crate::response_flow::Loss;
use crate::service::Proxy;
use crate::sides::ServerSide;
use crate::snapshot::UpstreamHttp;
use crate::wire::{Wire, WireError};
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
            x.down.progress.begin(cx.now());
            // A relayed connection needs one of its own.
            let relayed = x.routed.relayed;
            // Auto with a request that HTTP/2 might not carry: an upgrade is HTTP/1.1's own.
            let upgrade = x.upgrade;
            let Some(server) = self.choose(cx, exchange, &upstream) else { return };
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
                let kept = upstream.idle.borrow_mut().get_mut(server).and_then(Vec::pop);
                if let Some(key) = kept {
                    if let Some(back) = self.back(key) {
                        back.phase = BackPhase::Busy;
                        back.reused = true;
                        back.answered = false;
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
        let (mut wire, syn) = match begun {
            Some((wire, syn)) => (wire, Some(syn)),
            None => (Wire::new(open_plainly(address)?), None),
        };
        self.counters.upstream_connects.inc();
        // Nothing can be read or written before the loop says so.
        wire.readable = false;
        wire.writable = false;
        let back = Back {
            wire,
            upstream: upstream.clone(),
            server,
            phase: BackPhase::Connecting,
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
        let key = self.conns.insert(Conn::Back(Box::new(back)));
        let Some(back) = self.back(key) else { return Err(Errno::NOMEM) };
        if cx.watch(&back.wire.fd, key.to_u64()).is_err() {
            back.exchange = None;
            back.shared = false;
            self.close(cx, key);
            return Err(Errno::NOMEM);
        }
        let wait = upstream.upstream.connect_timeout;
        let wait = upstream.upstream.try_timeout.map_or(wait, |t| wait.min(t));
        match back.syn {
            None => back.deadline.after(cx, key, wait),
            Some(_) => self.syn_begun(cx, key, wait),
        }
        if let Some(x) = self.exchanges.get_mut(exchange) {
            x.back = Some(if shared { ServerSide::Waiting(key) } else { ServerSide::H1(key) });
        }
        if shared
            && upstream.upstream.keepalive > 0
            && let Some(keys) = upstream.shared.borrow_mut().get_mut(server)
        {
            keys.push(key);
        }
        Ok(())
    }

    /// What goes before all else, where the upstream wants a PROXY protocol header. `None` where its client is gone, and
    /// where none is wanted.
    fn upstream_header(&mut self, upstream: &LaneUpstream, server: usize, exchange: Option<Key>) -> Option<Vec<u8>> {
        let version = upstream.upstream.proxy_protocol?;
        let Self { conns, exchanges, .. } = self;
        let x = exchange.and_then(|x| exchanges.get(x))?;
        // Where the client came to, as it will be told.
        let (source, destination) = match conns.get(x.front.conn()) {
            Some(Conn::Front(front)) => {
                let own = getsockname(&front.wire.fd).ok().and_then(|a| SocketAddr::try_from(a).ok());
                (front.client.peer, own)
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

    pub(crate) fn back_event(&mut self, cx: &mut Context, key: Key, ready: Ready) {
        let Some(back) = self.back(key) else { return };
        match back.phase {
            BackPhase::Connecting if back.syn.is_some() => self.syn_event(cx, key),
            BackPhase::Connecting => {
                if ready.error || ready.write {
                    match sockopt::socket_error(&back.wire.fd) {
                        Ok(Ok(())) if !ready.error => self.connected(cx, key),
                        _ => self.back_lost(cx, key, false),
                    }
                }
            }
            BackPhase::Idle => {
                if ready.read {
                    self.idle_event(cx, key);
                }
            }
            BackPhase::Handshake | BackPhase::Busy => self.back_go_on(cx, key),
            BackPhase::Closing => {
                if ready.error {
                    self.close(cx, key);
                }
            }
        }
    }

    pub(crate) fn connected(&mut self, cx: &mut Context, key: Key) {
        let Some(back) = self.back(key) else { return };
        let (exchange, only_h1, server) = (back.exchange, back.only_h1, back.server);
        let upstream = back.upstream.clone();
        if upstream.upstream.proxy_protocol.is_some() {
            let Some(header) = self.upstream_header(&upstream, server, exchange) else { return self.close(cx, key) };
            let Some(back) = self.back(key) else { return };
            back.wire.send_raw(&header);
        }
        let Self { conns, scratch, .. } = self;
        let context = upstream.context(only_h1);
        let Some(Conn::Back(back)) = conns.get_mut(key) else { return };
        match context {
            Ok(None) if upstream.upstream.http == UpstreamHttp::Two => self.h2_back_begin(cx, key),
            Ok(None) => {
                back.phase = BackPhase::Busy;
                if let Some(exchange) = exchange {
                    self.send_request(cx, exchange, key);
                }
            }
            Ok(Some(context)) => {
                scratch.records.clear();
                match Session::client(&context, &mut scratch.records) {
                    Ok(session) => {
                        back.wire.start_client(session, scratch);
                        back.phase = BackPhase::Handshake;
                        self.touch(key);
                    }
                    Err(_) => self.back_lost(cx, key, false),
                }
            }
            Err(_) => self.back_lost(cx, key, false),
        }
    }

    pub(crate) fn upstream_handshake(&mut self, cx: &mut Context, key: Key) {
        let Some(back) = self.back(key) else { return };
        if back.wire.is_handshaking() {
            return self.touch(key);
        }
        if back.syn.is_some() {
            self.syn_done(cx, key);
        }
        let Some(back) = self.back(key) else { return };
        let h2 = back.wire.tls.as_ref().and_then(|t| t.alpn()) == Some(b"h2");
        let upstream = back.upstream.clone();
        let (server, only_h1) = (back.server, back.only_h1);
        let resumed = back.wire.tls.as_ref().and_then(|t| t.summary()).is_some_and(|s| s.resumed);
        let exchange = back.exchange;
        if resumed {
            self.counters.upstream_resumed.inc()
        } else {
            self.counters.upstream_full.inc()
        }
        if !only_h1 {
            upstream.note_h2(server, h2);
        }
        if h2 {
            return self.h2_back_begin(cx, key);
        }
        if upstream.upstream.http == UpstreamHttp::Two {
            // Who insists on HTTP/2 does not want it otherwise.
            self.back_hint(key, Failure::NoHttp2);
            return self.back_lost(cx, key, false);
        }
        let Some(back) = self.back(key) else { return };
        back.phase = BackPhase::Busy;
        let waiting = std::mem::take(&mut back.waiting);
        if let Some(exchange) = exchange {
            return self.send_request(cx, exchange, key);
        }
        // HTTP/2 was expected, and the server has changed its mind.
        self.close(cx, key);
        for exchange in waiting {
            if self.exchanges.get(exchange).is_some_and(|x| x.back == Some(ServerSide::Waiting(key))) {
                self.dispatch(cx, exchange, false);
            }
        }
    }

    /// An exchange is over: the connection goes to the pool, or closes.
    pub(crate) fn release(&mut self, cx: &mut Context, key: Key, reusable: bool) {
        let draining = self.draining.is_some();
        let Some(back) = self.back(key) else { return };
        let (upstream, server) = (back.upstream.clone(), back.server);
        // Its group may have been replaced while it was busy.
        let Some((upstream, server)) = self.lane.successor(&upstream, server) else { return self.close(cx, key) };
        let Some(back) = self.back(key) else { return };
        let config = &upstream.upstream;
        let room = upstream.idle.borrow().get(server).is_some_and(|idle| idle.len() < config.keepalive);
        let clean = back.keep_alive && back.inbuf.is_empty() && back.wire.is_flushed() && !back.wire.is_ending();
        if !(reusable && room && clean) || draining {
            return self.close(cx, key);
        }
        back.phase = BackPhase::Idle;
        back.exchange = None;
        back.deadline.after(cx, key, config.keepalive_timeout);
        (back.upstream, back.server) = (upstream.clone(), server);
        if let Some(idle) = upstream.idle.borrow_mut().get_mut(server) {
            idle.push(key);
        }
        self.counters.pooled.inc();
    }

    /// Idle connections of groups that a reload has replaced go to those in their place, as far as these have room.
    pub(crate) fn carry_pools(&mut self, cx: &mut Context) {
        let idle = |key: &Key| matches!(self.conns.get(*key), Some(Conn::Back(b)) if b.phase == BackPhase::Idle);
        let keys: Vec<Key> = self.conns.keys().filter(idle).collect();
        for key in keys {
            let Some(back) = self.back(key) else { continue };
            let (old, server) = (back.upstream.clone(), back.server);
            let next = self.lane.successor(&old, server);
            if next.as_ref().is_some_and(|(new, _)| std::rc::Rc::ptr_eq(new, &old)) {
                continue;
            }
            // It leaves its old pool, and enters the new one as after any exchange.
            if let Some(pool) = old.idle.borrow_mut().get_mut(server) {
                pool.retain(|k| *k != key);
            }
            self.counters.pooled.dec();
            if let Some(back) = self.back(key) {
                back.phase = BackPhase::Busy;
            }
            self.release(cx, key, true);
        }
    }

    pub(crate) fn back_failed(&mut self, cx: &mut Context, key: Key, error: &WireError) {
        match error {
            // It needs what the shorter hello leaves out.
            WireError::Tls(TlsError::PeerAlert(_)) if self.syn_again(cx, key, true) => return,
            WireError::Tls(_) => self.syn_heard(cx, key),
            WireError::Io => {}
        }
        if let (WireError::Tls(e), Some(BackPhase::Handshake)) = (error, self.back(key).map(|b| b.phase)) {
            self.back_hint(key, Failure::of_tls(e));
        }
        self.back_lost(cx, key, false);
    }

    /// Tells the requests of a connection that is about to be lost more than the loss will.
    fn back_hint(&mut self, key: Key, failure: Failure) {
        let Self { conns, exchanges, .. } = self;
        let Some(Conn::Back(back)) = conns.get(key) else { return };
        for exchange in back.exchange.iter().chain(&back.waiting) {
            if let Some(x) = exchanges.get_mut(*exchange) {
                x.routed.hint = Some(failure);
            }
        }
    }

    pub(crate) fn back_timeout(&mut self, cx: &mut Context, key: Key) {
        let Some(back) = self.back(key) else { return };
        if matches!(back.phase, BackPhase::Idle | BackPhase::Closing) {
            return self.close(cx, key);
        }
        if back.h2.is_some() {
            return self.h2_back_timeout(cx, key);
        }
        if back.syn.is_some() && self.syn_timeout(cx, key) {
            return;
        }
        // Of one that is busy the exchange has the deadlines.
        if self.back(key).is_none_or(|b| b.phase == BackPhase::Busy) {
            return;
        }
        self.counters.upstream_timeouts.inc();
        self.back_lost(cx, key, true);
    }

    /// A connection to an upstream is given up, and what it had to do told.
    pub(crate) fn back_lost(&mut self, cx: &mut Context, key: Key, timeout: bool) {
        let Some(back) = self.back(key) else { return };
        if back.h2.is_some() {
            return self.h2_back_lost(cx, key, timeout);
        }
        if back.syn.is_some() && !timeout && self.syn_again(cx, key, false) {
            return;
        }
        let Some(back) = self.back(key) else { return };
        let waiting = std::mem::take(&mut back.waiting);
        let why = match back.phase {
            BackPhase::Connecting | BackPhase::Handshake => Loss::Unreachable { timeout },
            _ if timeout => Loss::Timeout,
            _ if back.reused && !back.answered => Loss::Stale,
            _ => Loss::Broken,
        };
        match back.exchange.take() {
            Some(exchange) => {
                self.close(cx, key);
                self.server_lost(cx, exchange, why);
            }
            None => self.close(cx, key),
        }
        for exchange in waiting {
            if self.exchanges.get(exchange).is_some_and(|x| x.back == Some(ServerSide::Waiting(key))) {
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
