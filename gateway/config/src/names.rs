//! Names of servers and of services: who resolves them, and what they resolve to.

use std::fmt;
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

/// The servers of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// At least one, each once; those without a route from this machine are left out.
    pub endpoints: Vec<Endpoint>,
    /// How long the answer may be used; `None` where the resolver does not say.
    pub ttl: Option<Duration>,
}

/// A server that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Its address.
    pub ip: IpAddr,
    /// What the SRV record of a service says of it.
    pub record: Option<ServiceRecord>,
}

/// What an SRV record (RFC 2782) says of a server, beside its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceRecord {
    /// Its port.
    pub port: u16,
    /// Its share of the requests; at least 1.
    pub weight: u32,
    /// Other servers of the service have a higher priority.
    pub backup: bool,
}

impl From<IpAddr> for Endpoint {
    fn from(ip: IpAddr) -> Self {
        Self { ip, record: None }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.record {
            None => write!(f, "{}", self.ip),
            Some(ServiceRecord { port, weight, backup }) => {
                let backup = if backup { ", backup" } else { "" };
                write!(f, "{} (weight {weight}{backup})", SocketAddr::new(self.ip, port))
            }
        }
    }
}

/// The domain of a service's name: `app.example` of `_http._tcp.app.example` (RFC 2782). `None`: it is the name of a host.
pub fn service_domain(name: &str) -> Option<&str> {
    let (service, rest) = name.split_once('.')?;
    let (protocol, domain) = rest.split_once('.')?;
    let is_service = service.len() > 1 && service.starts_with('_') && protocol.len() > 1 && protocol.starts_with('_');
    (is_service && !domain.is_empty()).then_some(domain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_told_from_hosts() {
        for (name, domain) in [
            ("_http._tcp.app.example", Some("app.example")),
            ("_x._udp.a", Some("a")),
            ("app.example", None),
            ("_http.app.example", None),
            ("_http._tcp", None),
            ("_http._tcp.", None),
            ("_._tcp.a", None),
            ("my_host._tcp.a", None),
        ] {
            assert_eq!(service_domain(name), domain, "{name}");
        }
    }
}
