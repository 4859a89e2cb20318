//! Accepts clients over TCP: the lane's listening sockets, and when accepting pauses.

pub(crate) mod admission;
pub(crate) mod proxy_protocol;
pub(crate) mod syn;

use crate::accept::syn::examine_syn;
use crate::client::connection::{client_ready, connection_denied, first_phase, relay_all};
use crate::client::identity::Client;
use crate::client::state::{ClientConnection, ClientPhase};
use crate::conn::Conn;
use crate::counters::Count;
use crate::flush::flush_marked;
use crate::lane_state::LaneListener;
use crate::lifecycle::close_connection;
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::snapshot::Relays;
use crate::traces::Made;
use crate::transport::Transport;
use crate::unix_clients::UNIX_CLIENT;
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use sealane_exchange::deadlines::ConnectionWait;
use sealane_lane::{Context, Key};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// Tokens of listeners have the top bit set, which keys never have.
pub(crate) const LISTENER: u64 = 1 << 63;
/// Their lower bits are the listener's index, those above which of its sockets it is.
pub(crate) const LISTENER_BITS: u32 = 32;
/// This lane's listening sockets with their tokens. There may be more sockets than lanes (they were opened by a process that
/// had more, and none may close while its address is listened on): a lane then serves several.
pub(crate) fn own_sockets(settings: &LaneSettings) -> impl Iterator<Item = (u64, &Arc<OwnedFd>)> {
    settings.snapshot().sockets.iter().enumerate().flat_map(move |(i, sockets)| {
        let own = sockets.iter().enumerate().skip(settings.slot()).step_by(settings.lanes());
        own.map(move |(at, socket)| (LISTENER | (at as u64) << LISTENER_BITS | i as u64, socket))
    })
}

/// Accepts at most so many connections from the socket that a token of [`own_sockets`] names. Whether more may
/// be waiting that can be taken.
pub(crate) fn accept_clients(proxy: &mut Proxy, cx: &mut Context, token: u64, most: usize) -> bool {
    let (index, at) = (token & ((1 << LISTENER_BITS) - 1), (token & !LISTENER) >> LISTENER_BITS);
    let Some(listener) = proxy.settings.listeners().get(index as usize).cloned() else { return false };
    let Some(socket) = proxy.settings.snapshot().sockets.get(index as usize).and_then(|s| s.get(at as usize)) else {
        return false;
    };
    let socket = socket.clone();
    for _ in 0..most {
        if proxy.admission.is_queue_full() {
            return false; // Those that wait come first; the listener stays ready.
        }
        if proxy.admission.is_full(&proxy.settings) {
            proxy.admission.pause_full(cx, &proxy.settings, &proxy.counters);
            return false;
        }
        match acceptfrom_with(&socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((fd, address)) => {
                let peer = match listener.listener.is_unix {
                    true => Some(UNIX_CLIENT),
                    false => address.and_then(|a| SocketAddr::try_from(a).ok()),
                };
                let Some(peer) = peer else { continue };
                client_accepted(proxy, cx, fd, peer, &listener);
            }
            Err(Errno::AGAIN) => return false,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                proxy.admission.pause_without_descriptors(cx, &proxy.settings, &proxy.counters);
                return false;
            }
            // The connection was gone before it was accepted (accept(2)): the next one may be well.
            Err(_) => {}
        }
    }
    true
}

fn client_accepted(proxy: &mut Proxy, cx: &mut Context, fd: OwnedFd, peer: SocketAddr, listener: &Rc<LaneListener>) {
    proxy.counters.count(Count::Accepted);
    let phase = match () {
        () if listener.listener.proxy_protocol => ClientPhase::ProxyHeader,
        () => first_phase(&listener.listener),
    };
    let trusted = &listener.listener.trusted_proxies;
    if phase == ClientPhase::ProxyHeader && !trusted.is_empty() && !trusted.contains(peer.ip()) {
        return proxy.counters.count(Count::UntrustedProxies);
    }
    if phase != ClientPhase::ProxyHeader && !listener.admits(peer.ip()) {
        let client = (peer, proxy.log.next_connection());
        return connection_denied(proxy, client);
    }
    // Behind a PROXY header stands who it is, and at a Unix socket are many.
    if phase != ClientPhase::ProxyHeader
        && !listener.listener.is_unix
        && !proxy.admission.allows_connection(cx, peer.ip(), &proxy.counters)
    {
        return;
    }
    if phase != ClientPhase::ProxyHeader {
        proxy.admission.talkers().accepted(peer.ip());
    }
    let may_be_in_syn = listener.listener.syn_tls.data && !listener.listener.is_unix;
    let allowance = if may_be_in_syn { examine_syn(&proxy.counters, &fd, listener) } else { None };
    if let Some(key) = adopt_client(proxy, cx, fd, listener.clone(), peer, phase, allowance) {
        if phase != ClientPhase::ProxyHeader
            && !proxy.admission.count_in_connection(&mut proxy.connections, key, &proxy.settings, &proxy.counters)
        {
            return close_connection(proxy, cx, key);
        }
        if phase == ClientPhase::Open && listener.listener.relays == Relays::Everything {
            relay_all(proxy, cx, key);
        }
        client_ready(proxy, cx, key);
        flush_marked(proxy, cx);
    }
}

/// Takes a client's connection in. `allowance`: how much may be sent there (`crate::accept::syn`).
pub(crate) fn adopt_client(
    proxy: &mut Proxy,
    cx: &mut Context,
    fd: OwnedFd,
    listener: Rc<LaneListener>,
    peer: SocketAddr,
    phase: ClientPhase,
    allowance: Option<usize>,
) -> Option<Key> {
    let limits = &proxy.settings.limits();
    let handshake_until = limits.until(ConnectionWait::Handshake, cx.now());
    let is_open = phase == ClientPhase::Open;
    let at = if is_open { limits.until(ConnectionWait::FirstRequest, cx.now()) } else { handshake_until };
    let mut transport = Transport::new(fd);
    transport.allow(allowance);
    let policy = listener.listener.tls.is_none().then_some(0);
    let client = Client::new(listener, policy, peer, proxy.log.next_connection(), Made::begun(cx.micros()));
    let client_conn = ClientConnection::new(transport, client, phase, handshake_until);
    let key = proxy.connections.insert(Conn::Client(Box::new(client_conn)));
    proxy.admission.arrived(&proxy.counters);
    let client_conn = proxy.connections.client(key)?;
    if cx.watch(client_conn.socket(), key.to_u64()).is_err() {
        close_connection(proxy, cx, key);
        return None;
    }
    client_conn.expire_at(cx, key, at);
    Some(key)
}
