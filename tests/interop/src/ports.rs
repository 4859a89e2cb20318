//! Ports for servers that cannot say which one they got.

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// An address on loopback where nobody listens, reserved for this process until it ends.
pub fn free() -> SocketAddr {
    let port = sealane_lab_ports::reserve().expect("a port can be reserved");
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// An address that refuses connections: its port is taken, as long as the descriptor is kept, by a socket that does not
/// listen. (A port that a server has left may be the next one's that asks for any.)
pub fn refusing() -> (OwnedFd, SocketAddr) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket can be made");
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a loopback port can be had");
    let address = getsockname(&socket).expect("a bound socket has an address");
    (socket, address.try_into().expect("it is one of IPv4"))
}
