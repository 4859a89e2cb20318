//! OpenVPN clients at a listener that also serves TLS: what their first bytes say, and where their connections go.
//!
//! ```text
//! accept ─▶ (PROXY header) ─▶ limits, rules ─▶ first bytes ─┬─▶ TLS
//!                                                           └─▶ TunnelClient ─▶ bounded queue ─▶ tunnel
//! ```
//!
//! The proxy does not know the tunnel, nor what its packets look like: the assembly gives both to the lanes with the snapshot.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// What the first bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// They may belong to the tunnel; more are needed to tell.
    Incomplete,
    /// They begin a session of the tunnel.
    Tunnel,
    /// They belong to TLS, or to nothing that is known here.
    Other,
}

/// A connection on its way to the tunnel.
#[derive(Debug)]
pub struct TunnelClient {
    /// The connection.
    pub fd: OwnedFd,
    /// What was read of it, after a PROXY protocol header.
    pub bytes: Vec<u8>,
    /// The client's address: that of the connection, or the one that a PROXY protocol header has named.
    pub remote: SocketAddr,
}

/// The way of connections to the tunnel.
pub struct TunnelPort {
    judge: fn(&[u8]) -> FirstBytes,
    /// False if there is no room for it. Never waits.
    take: Box<dyn Fn(TunnelClient) -> bool + Send + Sync>,
}

impl fmt::Debug for TunnelPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunnelPort").finish_non_exhaustive()
    }
}

impl TunnelPort {
    /// Connections whose first bytes `judge` finds to be the tunnel's go to `take`, which returns false if it has no room.
    pub fn new(judge: fn(&[u8]) -> FirstBytes, take: impl Fn(TunnelClient) -> bool + Send + Sync + 'static) -> Self {
        Self { judge, take: Box::new(take) }
    }

    /// What the first bytes of a connection say.
    pub(crate) fn judge(&self, start: &[u8]) -> FirstBytes {
        (self.judge)(start)
    }

    /// Hands a connection over. False if there is no room for it: it is closed then.
    pub(crate) fn take(&self, client: TunnelClient) -> bool {
        (self.take)(client)
    }
}
