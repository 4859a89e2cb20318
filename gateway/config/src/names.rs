//! Names of servers: who resolves them, and what they resolve to.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Who resolves names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResolverKind {
    /// [`ResolverKind::Dns`], or [`ResolverKind::System`] where `/etc/nsswitch.conf` names sources that DNS does not know.
    #[default]
    Automatic,
    /// The DNS servers, search domains and options of `/etc/resolv.conf`, and the names in `/etc/hosts`.
    Dns,
    /// The system's resolver with everything that it is configured for (getaddrinfo, NSS).
    System,
    /// This DNS server and nothing else.
    Server(SocketAddr),
}

/// The addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// At least one, each once; those without a route from this machine are left out.
    pub addresses: Vec<IpAddr>,
    /// How long the answer may be used; `None` where the resolver does not say.
    pub ttl: Option<Duration>,
}
