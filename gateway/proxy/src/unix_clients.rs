//! Clients that connect to a Unix socket. They have no address of a network: [`UNIX_CLIENT`] stands for one, which no client on a
//! network can have. Behind a PROXY protocol header, or with the word of a trusted proxy (`trusted_proxies = ["unix"]`), the client
//! has an address as everywhere.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Stands for the address of a client at a Unix socket. The kernel takes no packet from the unspecified address.
pub const UNIX_CLIENT: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// What is written in its place.
pub(crate) const NAME: &str = "unix";

/// Whether this stands for a client at a Unix socket.
pub(crate) fn is_unix(ip: IpAddr) -> bool {
    ip == UNIX_CLIENT.ip()
}

/// A client's address and port, for people.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress(pub SocketAddr);

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == UNIX_CLIENT { f.write_str(NAME) } else { write!(f, "{}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_without_an_address_is_shown_as_unix() {
        for (address, shown) in [
            (UNIX_CLIENT, "unix"),
            ("[::]:1".parse().unwrap(), "[::]:1"),
            ("0.0.0.0:0".parse().unwrap(), "0.0.0.0:0"),
            ("[2001:db8::1]:5".parse().unwrap(), "[2001:db8::1]:5"),
        ] {
            assert_eq!(ClientAddress(address).to_string(), shown);
        }
        assert!(is_unix(UNIX_CLIENT.ip()) && !is_unix("::1".parse().unwrap()));
    }
}
