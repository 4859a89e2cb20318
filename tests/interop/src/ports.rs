//! Ports for servers that cannot say which one they got.

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range from which Linux takes ports for outgoing connections (32768 and up), so that none of the tests'
/// many connections can sit on it.
const FIRST: u32 = 16_384;
const COUNT: u32 = 16_000;

/// An address on loopback where nobody listens, never given out twice by this process.
pub fn free() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Another run of the tests on the same machine starts elsewhere.
    let start = std::process::id().wrapping_mul(2_654_435_761) % COUNT;
    for _ in 0..COUNT {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("the range lies within 16 bits");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port from {FIRST} on");
}

/// An address that refuses connections: its port is taken, as long as the descriptor is kept, by a socket that does not
/// listen. (A port that a server has left may be the next one's that asks for any.)
pub fn refusing() -> (OwnedFd, SocketAddr) {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket can be made");
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a loopback port can be had");
    let address = getsockname(&socket).expect("a bound socket has an address");
    (socket, address.try_into().expect("it is one of IPv4"))
}
