//! Who may come, by address: `allow` and `deny` of listeners, hosts and routes.
//!
//! | what | whose rule | when | refused by |
//! |---|---|---|---|
//! | a connection | the listener's | accept, or once the PROXY header is there; QUIC: the client's first packet | closing it; QUIC: CONNECTION_REFUSED |
//! | a request | the listener's, then those of the host and the route | each request, under the newest lists | 403 |
//! | a relayed connection | the listener's and the host's | before a server is selected | closing it |
//!
//! A connection from a trusted proxy that names clients in header fields is judged by its requests alone.
//!
//! An address can be forged until the client has answered a packet. So a request in early data, or a relayed connection, whose
//! client has not done that, waits where a rule would look at its address: 425, or the third packet of TCP's handshake.

use crate::conn::{Client, Conn};
use crate::connections::Connections;
use crate::exchange::Exchange;
use crate::exchange::executor::{refuse, respond};
use crate::exchange::streams::ClientStream;
use crate::lane_state::LaneListener;
use crate::service::Proxy;
use crate::upstream::selection::DeniedBy;
use sealane_lane::{Context, Key};
use std::net::IpAddr;

impl LaneListener {
    /// Whether a rule lets an address in. A rule that is not there lets nobody in.
    fn permits(&self, rule: usize, ip: IpAddr) -> bool {
        self.access.get(rule).is_some_and(|rule| rule.permits(ip))
    }

    /// Whether all of these rules let an address in.
    pub fn permit(&self, rules: impl IntoIterator<Item = usize>, ip: IpAddr) -> bool {
        rules.into_iter().all(|rule| self.permits(rule, ip))
    }

    /// Whether a connection may begin, as far as its peer's address says.
    #[inline]
    pub fn admits(&self, peer: IpAddr) -> bool {
        let Some(rule) = self.listener.access else { return true };
        let names_clients = self.listener.trust_forwarded && self.listener.trusted_proxies.contains(peer);
        names_clients || self.permits(rule, peer)
    }
}

/// What access rules say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Admitted,
    /// The client's address is not let in.
    Denied,
    /// It would be let in, but the address may be forged.
    TooEarly,
}

/// Whether a request's client is let in by all of these rules.
pub(crate) fn judge(
    connections: &Connections,
    x: &Exchange,
    client: &Client,
    listener: &LaneListener,
    rules: &[usize],
) -> Verdict {
    // A QUIC client that has moved must be let in where it is now, too.
    let moved_to = if x.told().is_none() { quic_address(connections, x.client_stream) } else { None };
    let permitted = |ip| listener.permit(rules.iter().copied(), ip);
    match () {
        () if !permitted(x.client_ip(client)) || !moved_to.is_none_or(permitted) => Verdict::Denied,
        () if x.machine.is_early() && !is_address_proven(connections, x.client_stream) => Verdict::TooEarly,
        () => Verdict::Admitted,
    }
}

/// Answers a request that was not admitted.
pub(crate) fn turn_away(proxy: &mut Proxy, cx: &mut Context, exchange: Key, verdict: Verdict, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if verdict == Verdict::TooEarly {
        proxy.counters.too_early.inc();
        return respond(proxy, cx, exchange, 425, b"text/plain", b"425 Too Early\n", expects);
    }
    x.routed.denied = Some(DeniedBy::Address);
    proxy.counters.requests_denied.inc();
    refuse(proxy, cx, exchange, 403);
}

/// Where a QUIC client is now.
fn quic_address(connections: &Connections, client: ClientStream) -> Option<IpAddr> {
    match connections.get(client.conn())? {
        Conn::Quic(q) => Some(q.quic.remote_address().ip()),
        Conn::Client(_) | Conn::Upstream(_) => None,
    }
}

/// Whether a client that sends early data has shown that it is where it says. Over TCP it has, unless its hello came in a SYN
/// without a cookie; over QUIC the address is open until the handshake is over (RFC 9000 §8.1).
fn is_address_proven(connections: &Connections, client: ClientStream) -> bool {
    match connections.get(client.conn()) {
        Some(Conn::Client(client_conn)) => client_conn.transport.allowance.is_none(),
        _ => false,
    }
}
