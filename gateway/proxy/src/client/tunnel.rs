//! Connections that turn out to be those of the tunnel's clients (`crate::tunnel_port`).

use crate::accept::syn::is_proven;
use crate::client::connection::connection_denied;
use crate::counters::Count;
use crate::lifecycle::close_connection;
use crate::service::Proxy;
use crate::tunnel_port::TunnelClient;
use sealane_lane::{Context, Key};

/// Hands a connection to the tunnel, with what was read of it, if the listener's rule admits its client. Its handshake counts in the
/// rate for handshakes, like that of a TLS client. From then on the tunnel's limits hold for it, and it is none of the listener's
/// connections any more.
pub(crate) fn hand_to_tunnel(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(client_conn) = proxy.connections.client(key) else { return };
    let waited = client_conn.awaits_proof();
    if !is_proven(client_conn) {
        // The tunnel answers only clients that have shown that they are where they say.
        client_conn.await_proof();
        if !waited {
            proxy.counters.count(Count::SynDeferred);
        }
        return;
    }
    let (remote, id) = (client_conn.client.peer(), client_conn.client.id());
    let listener = client_conn.client.listener().clone();
    // A trusted proxy may connect because it names the client of each request. Here nobody is named.
    if !listener.permit(listener.listener.access, remote.ip()) {
        connection_denied(proxy, (remote, id));
        return close_connection(proxy, cx, key);
    }
    if !proxy.admission.allows_handshake(cx, remote.ip(), &proxy.counters) {
        return close_connection(proxy, cx, key);
    }
    let Some(client_conn) = proxy.connections.client(key) else { return };
    // A duplicate of the descriptor travels. Ours is closed, and the watch would outlive it.
    let fd = rustix::io::fcntl_dupfd_cloexec(&client_conn.transport.fd, 0);
    cx.unwatch(&client_conn.transport.fd);
    let bytes = std::mem::take(&mut client_conn.transport.unread);
    let is_taken = match (&proxy.settings.snapshot().tunnel, fd) {
        (Some(port), Ok(fd)) => port.take(TunnelClient { fd, bytes, remote }),
        _ => false,
    };
    proxy.counters.count(if is_taken { Count::TunnelClients } else { Count::TunnelClientsRefused });
    close_connection(proxy, cx, key);
}
