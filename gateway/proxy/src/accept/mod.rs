//! Accepts clients over TCP: the lane's listening sockets, and when accepting pauses.

pub(crate) mod admission;
pub(crate) mod proxy_protocol;
pub(crate) mod syn;

use crate::client::connection::first_phase;
use crate::conn::{Client, ClientConnection, ClientPhase, Conn};
use crate::exchange::waste::WasteBudget;
use crate::lane_state::LaneListener;
use crate::service::Proxy;
use crate::snapshot::Relays;
use crate::transport::Transport;
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use sealane_lane::{Context, Deadline, Key, Millis};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Tokens of listeners have the top bit set, which keys never have.
pub(crate) const LISTENER: u64 = 1 << 63;
/// Their lower bits are the listener's index, those above which of its sockets it is.
pub(crate) const LISTENER_BITS: u32 = 32;
/// Clients that a lane takes even while memory is short: it may be so for reasons that have nothing to do with them.
const ALWAYS: usize = 64;
/// How long accepting pauses when descriptors have run out.
const EXHAUSTED_MS: Millis = 100;
/// Descriptors that must be free before accepting goes on after such a pause.
const SPARE_DESCRIPTORS: usize = 8;

impl Proxy {
    /// Watches this slot's listening sockets.
    pub(crate) fn listen(&mut self, cx: &Context) -> std::io::Result<()> {
        for (token, socket) in self.own_sockets() {
            cx.watch_listener(socket, token)?;
        }
        self.listening = true;
        self.mailboxes[self.slot].set_closed(false);
        Ok(())
    }

    pub(crate) fn unlisten(&mut self, cx: &Context) {
        for (_, socket) in self.own_sockets() {
            cx.unwatch(socket);
        }
        self.listening = false;
    }

    /// This lane's listening sockets with their tokens. There may be more sockets than lanes (they were opened by a
    /// process that had more, and none may close while its address is listened on): a lane then serves several.
    pub(crate) fn own_sockets(&self) -> impl Iterator<Item = (u64, &Arc<OwnedFd>)> {
        let lanes = self.mailboxes.len();
        self.lane.snapshot.sockets.iter().enumerate().flat_map(move |(i, sockets)| {
            let own = sockets.iter().enumerate().skip(self.slot).step_by(lanes);
            own.map(move |(at, socket)| (LISTENER | (at as u64) << LISTENER_BITS | i as u64, socket))
        })
    }

    /// Accepts at most so many connections from the socket that a token of [`Self::own_sockets`] names. Whether more may
    /// be waiting that can be taken.
    pub(crate) fn accept(&mut self, cx: &mut Context, token: u64, most: usize) -> bool {
        let (index, at) = (token & ((1 << LISTENER_BITS) - 1), (token & !LISTENER) >> LISTENER_BITS);
        let Some(listener) = self.lane.listeners.get(index as usize).cloned() else { return false };
        let Some(socket) = self.lane.snapshot.sockets.get(index as usize).and_then(|s| s.get(at as usize)) else {
            return false;
        };
        let socket = socket.clone();
        for _ in 0..most {
            if self.admission.is_full() {
                return false; // Those that wait come first; the listener stays ready.
            }
            if self.is_full() {
                if self.client_count < self.lane.snapshot.limits.max_connections {
                    self.counters.paused_memory.inc();
                    // Memory can be enough again without one of ours being closed.
                    self.accept_again(cx);
                } else {
                    self.counters.paused_connections.inc();
                }
                self.pause_accepting(cx);
                return false;
            }
            match acceptfrom_with(&socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((fd, address)) => {
                    let Some(peer) = address.and_then(|a| SocketAddr::try_from(a).ok()) else { continue };
                    self.accepted(cx, fd, peer, &listener);
                }
                Err(Errno::AGAIN) => return false,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.counters.paused_descriptors.inc();
                    self.admission.lacks_descriptors = true;
                    self.accept_again(cx);
                    self.pause_accepting(cx);
                    return false;
                }
                // The connection was gone before it was accepted (accept(2)): the next one may be well.
                Err(_) => {}
            }
        }
        true
    }

    fn accepted(&mut self, cx: &mut Context, fd: OwnedFd, peer: SocketAddr, listener: &Rc<LaneListener>) {
        self.counters.accepted.inc();
        let phase = match () {
            () if listener.listener.proxy_protocol => ClientPhase::ProxyHeader,
            () => first_phase(&listener.listener),
        };
        let trusted = &listener.listener.trusted_proxies;
        if phase == ClientPhase::ProxyHeader && !trusted.is_empty() && !trusted.contains(peer.ip()) {
            return self.counters.untrusted_proxies.inc();
        }
        // Behind a PROXY header stands who it is.
        if phase != ClientPhase::ProxyHeader && !self.routing.connection(cx, peer.ip()) {
            return self.counters.connections_limited.inc();
        }
        let allowance = self.examine_syn(&fd, listener);
        if let Some(key) = self.adopt(cx, fd, listener.clone(), peer, phase, allowance) {
            if phase != ClientPhase::ProxyHeader && !self.count_in(key) {
                return self.close(cx, key);
            }
            if phase == ClientPhase::Open && listener.listener.relays == Relays::Everything {
                self.relay_all(cx, key);
            }
            self.client_ready(cx, key);
            self.flush_marked(cx);
        }
    }

    /// Looks again soon whether there is room.
    pub(crate) fn accept_again(&mut self, cx: &mut Context) {
        let at = cx.now() + EXHAUSTED_MS;
        self.accept_timer.set_no_later(cx, LISTENER, at);
    }

    pub(crate) fn pause_accepting(&mut self, cx: &Context) {
        if self.listening {
            self.unlisten(cx);
        }
        // Nor do other lanes hand connections over.
        self.mailboxes[self.slot].set_closed(true);
    }

    /// The timer of a pause has fired, or another one of the listeners'.
    pub(crate) fn accept_timeout(&mut self, cx: &mut Context) {
        if self.accept_timer.fired(cx, LISTENER) {
            self.resume_accepting(cx);
        }
    }

    pub(crate) fn resume_accepting(&mut self, cx: &mut Context) {
        if self.listening || self.draining.is_some() {
            return;
        }
        if self.admission.lacks_descriptors {
            if !self.has_spare_descriptors() {
                return self.accept_again(cx);
            }
            self.admission.lacks_descriptors = false;
        }
        if !self.is_full() {
            // It worked before; if it fails now the timer of the next pause tries again.
            let _ = self.listen(cx);
        } else if self.client_count < self.lane.snapshot.limits.max_connections {
            self.accept_again(cx);
        }
    }

    /// Whether there are descriptors for more than the next client: its request may need an upstream connection.
    fn has_spare_descriptors(&self) -> bool {
        let Some((_, socket)) = self.own_sockets().next() else { return true };
        let spare = (0..SPARE_DESCRIPTORS).map_while(|_| rustix::io::fcntl_dupfd_cloexec(socket, 0).ok());
        spare.collect::<Vec<_>>().len() == SPARE_DESCRIPTORS
    }

    /// Whether there is no room for another client.
    pub(crate) fn is_full(&self) -> bool {
        self.client_count >= self.lane.snapshot.limits.max_connections
            || self.client_count >= ALWAYS && self.short_of_memory.load(Ordering::Relaxed)
    }

    /// Takes a client's connection in. `allowance`: how much may be sent there (`crate::accept::syn`).
    pub(crate) fn adopt(
        &mut self,
        cx: &mut Context,
        fd: OwnedFd,
        listener: Rc<LaneListener>,
        peer: SocketAddr,
        phase: ClientPhase,
        allowance: Option<usize>,
    ) -> Option<Key> {
        // Answers leave when we say so.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        let limits = &self.lane.snapshot.limits;
        let wait = if phase == ClientPhase::Open { limits.header_timeout } else { limits.handshake_timeout };
        let mut transport = Transport::new(fd);
        transport.allowance = allowance;
        let policy = listener.listener.tls.is_none().then_some(0);
        let client_conn = ClientConnection {
            transport,
            client: Client {
                listener,
                policy,
                peer,
                peer_text: peer.ip().to_canonical().to_string().into(),
                cert: None,
                requests: 0,
                waste: WasteBudget::default(),
                server_name: None,
                counted: None,
                held: 0,
            },
            phase,
            exchange: None,
            inbuf: Vec::new(),
            deadline: Deadline::default(),
            in_head: false,
            established: false,
            deferred: None,
            large_hello: None,
            lingered: 0,
            awaits_proof: false,
            early_offered: false,
            early_seen: false,
            decided: false,
            h2: None,
        };
        let key = self.conns.insert(Conn::Client(Box::new(client_conn)));
        self.client_count += 1;
        self.counters.open.set(self.client_count as u64);
        let Some(Conn::Client(client_conn)) = self.conns.get_mut(key) else { return None };
        if cx.watch(&client_conn.transport.fd, key.to_u64()).is_err() {
            self.close(cx, key);
            return None;
        }
        client_conn.deadline.after(cx, key, wait);
        Some(key)
    }
}
