//! Connections that are relayed without being read: plain TCP, and TLS for names whose keys the gateway does not have.
//!
//! A relayed connection is an exchange without heads. Servers are selected, tried, counted and timed as for requests. When one
//! direction ends, the other goes on (half-close). The access log gets one line, whose method is `TCP` and whose target is
//! the name in the client's hello.
//!
//! ```text
//! accept ── Everything ──────────────────────────────► relay ─► dispatch ─► connected ─► start_relay
//!    └───── Named: hello_arrived ── passthrough_for ──────┘
//! ```

use crate::accept::syn::is_proven;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{connected, perform, request_sent};
use crate::exchange::streams::{ClientStream, UpstreamStream, client_end, server_finish};
use crate::lifecycle::close_connection;
use crate::service::Proxy;
use crate::snapshot::{Action, Listener};
use sealane_exchange::{Event, Switching};
use sealane_lane::{Context, Key};
use sealane_tls::hello::ClientHello;

/// Where connections for a name are relayed to.
#[derive(Clone, Copy)]
pub(crate) struct Passthrough {
    upstream: usize,
    access: Option<usize>,
    /// The client's protocols have decided it (ALPN).
    by_protocol: bool,
}

impl Passthrough {
    /// The group's index.
    pub fn upstream(self) -> usize {
        self.upstream
    }

    /// Who may come.
    pub fn access(self) -> Option<usize> {
        self.access
    }
}

/// Where connections that ask for a name are relayed to, if they are not ours to read.
pub(crate) fn passthrough_for(listener: &Listener, name: Option<&str>) -> Option<Passthrough> {
    passthrough_to(listener, listener.sites.host_for(name)?)
}

/// The same by the name and the protocols in a hello.
pub(crate) fn passthrough_for_hello(
    listener: &Listener,
    name: Option<&str>,
    hello: &ClientHello<'_>,
) -> Option<Passthrough> {
    match listener.sites.host_for_protocols(name, |protocol| hello.offers(protocol)) {
        Some(host) => Some(Passthrough { by_protocol: true, ..passthrough_to(listener, host)? }),
        None => passthrough_for(listener, name),
    }
}

fn passthrough_to(listener: &Listener, host: usize) -> Option<Passthrough> {
    match listener.actions.get(host)? {
        Action::Passthrough { upstream, access } => {
            Some(Passthrough { upstream: *upstream, access: *access, by_protocol: false })
        }
        _ => None,
    }
}

/// Relays a client's connection, with what has been read of it so far. Without an upstream it is closed.
pub(crate) fn relay_client(
    proxy: &mut Proxy,
    cx: &mut Context,
    key: Key,
    passthrough: Option<Passthrough>,
    name: Option<&str>,
) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    let listener = client_conn.client().listener().clone();
    let rules = listener.listener.access.into_iter().chain(passthrough.and_then(|p| p.access));
    if rules.clone().next().is_some() {
        if !is_proven(client_conn) {
            // Its address may be forged: the third packet of TCP's handshake brings it here again.
            return client_conn.await_proof();
        }
        if !listener.permit(rules, client_conn.client().peer().ip()) {
            proxy.counters.count(Count::RelaysDenied);
            let client = (client_conn.client().peer(), client_conn.client().id());
            proxy.log.records().connection_denied(&proxy.counters, client);
            return close_connection(proxy, cx, key);
        }
    }
    let upstream = passthrough.and_then(|p| listener.upstreams.get(p.upstream).cloned());
    let Some(upstream) = upstream else {
        proxy.counters.count(Count::RelaysRefused);
        return close_connection(proxy, cx, key);
    };
    let side = ClientStream::H1(key);
    let mut x = proxy.exchanges.fresh(side);
    let Some(Conn::Client(client_conn)) = proxy.connections.get_mut(key) else { return };
    x.arrive(side, 0, cx.micros());
    x.begin_relay(name, &upstream, client_conn.client().peer().ip());
    let exchange = proxy.exchanges.insert(x);
    client_conn.relay(cx, key, exchange, proxy.settings.limits().idle_timeout);
    proxy.counters.count(Count::Relays);
    if passthrough.is_some_and(|p| p.by_protocol) {
        proxy.counters.count(Count::RelaysByProtocol);
    }
    proxy.counters.set(Count::Active, proxy.exchanges.len() as u64);
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let actions = x.report(Event::Forward);
    perform(proxy, cx, exchange, actions);
}

/// The connection with the server is there: from now on bytes pass as they are.
pub(crate) fn start_relay(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key) {
    let Some(actions) = connected(proxy, cx, exchange, Switching::Any) else { return };
    let Proxy { connections, exchanges, counters, .. } = proxy;
    let (Some(Conn::Upstream(upstream_conn)), Some(x)) = (connections.get_mut(key), exchanges.get_mut(exchange)) else {
        return;
    };
    upstream_conn.begin_relay(exchange);
    let side = UpstreamStream::H1(key);
    x.note_relayed();
    x.note_upgraded(counters);
    request_sent(proxy, cx, exchange, side, actions);
    proxy.connections.mark_for_flush(key);
}

/// The server of a relayed connection will say no more, but the client may.
pub(crate) fn half_close(connections: &mut Connections, exchanges: &Exchanges, exchange: Key, side: ClientStream) {
    let relayed = exchanges.get(exchange).is_some_and(|x| x.machine().is_relay());
    match connections.client(side.conn()) {
        Some(client_conn) if relayed => client_conn.transport_mut().finish_sending(),
        _ => return client_end(connections, exchanges, exchange, side),
    }
    connections.mark_for_flush(side.conn());
}

/// A relayed client is closed both ways, or has failed, but not all that it has sent has been read: reading will
/// come to its end, or to the failure.
pub(crate) fn relay_reads_on(connections: &Connections, exchanges: &Exchanges, key: Key) -> bool {
    let Some(Conn::Client(client_conn)) = connections.get(key) else { return false };
    let relayed = client_conn.exchange().and_then(|x| exchanges.get(x)).is_some_and(|x| x.machine().is_relay());
    relayed && !client_conn.transport().ended
}

/// Both directions have ended; what the server has not taken yet is still sent.
pub(crate) fn relay_done(proxy: &mut Proxy, cx: &mut Context, side: UpstreamStream) {
    let UpstreamStream::H1(key) = side else { return server_finish(proxy, cx, side, false) };
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    upstream_conn.close_after_relay(cx, key);
    proxy.connections.mark_for_flush(key);
}
