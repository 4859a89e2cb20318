//! What becomes of clients' connections when a snapshot takes the place of the one that they were made under.
//!
//! | since then | requests from now on |
//! |---|---|
//! | the listener is there, and the connection's policy (client certificates, its names) is the same | under the new settings |
//! | the listener or the policy has gone, and no client is asked for a certificate, before or after | under the old settings: the next one, with `Connection: close` (HTTP/1.1), or those that its GOAWAY crosses |
//! | the same, and somebody is asked | none: the connection closes, or 421 (HTTP/1.1); REFUSED_STREAM; H3_REQUEST_REJECTED |
//!
//! [`begin_request`](crate::exchange::executor::begin_request) asks for each request, and only once the lane has taken up the newest snapshot.
//! So a request that comes after the answer to a reload is never served under client-certificate rules of before.

use crate::conn::Conn;
use crate::connections::Connections;
use crate::settings::LaneSettings;
use crate::snapshot::Listener;
use sealane_lane::{Context, Key};

/// Gives open connections the settings of the newest snapshot, or tells their clients to open new ones.
pub(crate) fn renew_clients(connections: &mut Connections, settings: &LaneSettings, cx: &mut Context) {
    for key in connections.keys() {
        let Some(conn) = connections.get_mut(key) else { continue };
        let over_quic = matches!(conn, Conn::Quic(_));
        let Some(client) = conn.client() else { continue };
        // A QUIC hello is judged by the settings that its connection began with, so those stay its rules.
        let awaits_hello = over_quic && client.policy().is_none();
        if !awaits_hello && renewed(connections, settings, key) {
            continue;
        }
        let Some(client) = connections.get_mut(key).and_then(Conn::client) else { continue };
        client.leave_behind();
        let rules_hold = awaits_hello || rules_hold(connections, settings, key);
        let Some(client_conn) = connections.client(key) else { continue };
        // A request that crosses this gets no answer, and may be sent again elsewhere (RFC 9112 §9.3.1).
        let ends_idle = !rules_hold && !client_conn.is_handshaking();
        if client_conn.shut_down(cx, key, ends_idle, settings.limits()) {
            connections.mark_for_flush(key);
        }
    }
}

/// Whether requests of a connection may be served: under the newest settings, or under those of before where nothing of
/// who may see what has changed with them.
pub(crate) fn rules_hold(connections: &mut Connections, settings: &LaneSettings, key: Key) -> bool {
    let Some(client) = connections.get_mut(key).and_then(Conn::client) else { return true };
    if client.is_current() {
        return true;
    }
    let asked = asks_for_certificates(&client.listener().listener);
    renewed(connections, settings, key)
        || !asked && !settings.listeners().iter().any(|l| asks_for_certificates(&l.listener))
}

/// Puts a connection under the newest settings of its listener. False if the listener or its policy has gone.
fn renewed(connections: &mut Connections, settings: &LaneSettings, key: Key) -> bool {
    let Some(client) = connections.get_mut(key).and_then(Conn::client) else { return true };
    let old = &client.listener().listener;
    let new = settings.listeners().iter().find(|l| l.listener.id == old.id);
    let Some((new, policy)) = new.and_then(|n| Some((n, same_policy(old, client.policy(), &n.listener)?))) else {
        return false;
    };
    client.renew(new.clone(), policy);
    true
}

fn asks_for_certificates(listener: &Listener) -> bool {
    listener.tls.iter().flat_map(|tls| &tls.policies).any(|policy| policy.client_auth.is_some())
}

/// The index that a policy has in the new snapshot, if it is still there. `None` inside: the hello has yet to choose.
fn same_policy(old: &Listener, policy: Option<usize>, new: &Listener) -> Option<Option<usize>> {
    match (&old.tls, &new.tls, policy) {
        (None, None, _) => Some(Some(0)),
        (Some(_), Some(_), None) => Some(None),
        (Some(old), Some(new), Some(policy)) => {
            let id = old.policies.get(policy)?.id;
            Some(Some(new.policies.iter().position(|p| p.id == id)?))
        }
        _ => None,
    }
}
