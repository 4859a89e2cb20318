//! TCP sockets as the generator uses them: non-blocking, from chosen addresses, closed as asked.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::plan::Close;

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Starts a connection; it is established, or has failed, once the socket is writable.
pub fn connect(to: &SocketAddr, from: Option<IpAddr>) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(family(to), SocketType::STREAM, flags, Some(ipproto::TCP))?;
    // A request is one send; it must not wait for the acknowledgement of the one before.
    sockopt::set_tcp_nodelay(&fd, true)?;
    if let Some(from) = from {
        // With the option the kernel gives the same local port to connections that differ elsewhere.
        sockopt::set_socket_reuseaddr(&fd, true)?;
        rustix::net::bind(&fd, &SocketAddr::new(from, 0))?;
    }
    match rustix::net::connect(&fd, to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(e) => Err(e),
    }
}

/// A UDP socket that talks to `to` alone.
pub fn datagram(to: &SocketAddr, from: Option<IpAddr>) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(family(to), SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    if let Some(from) = from {
        rustix::net::bind(&fd, &SocketAddr::new(from, 0))?;
    }
    // Bursts of many connections share the socket; the kernel caps what it cannot give.
    sockopt::set_socket_recv_buffer_size(&fd, 4 << 20)?;
    sockopt::set_socket_send_buffer_size(&fd, 4 << 20)?;
    rustix::net::connect(&fd, to)?;
    Ok(fd)
}

/// The error that a connection attempt ended with, if any.
pub fn error(fd: impl AsFd) -> Result<(), Errno> {
    sockopt::socket_error(fd)?
}

/// Sends without blocking and without SIGPIPE; how much went out, `None` when nothing could.
#[inline]
pub fn send(fd: impl AsFd, data: &[u8]) -> Result<Option<usize>, Errno> {
    loop {
        return match rustix::net::send(&fd, data, SendFlags::NOSIGNAL) {
            Ok(n) => Ok(Some(n)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e),
        };
    }
}

/// Receives without blocking: `None` when there is nothing yet, 0 at the end.
#[inline]
pub fn recv(fd: impl AsFd, room: &mut [u8]) -> Result<Option<usize>, Errno> {
    loop {
        return match rustix::io::read(&fd, &mut *room) {
            Ok(n) => Ok(Some(n)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e),
        };
    }
}

/// Closes the connection.
pub fn close(fd: OwnedFd, how: Close) {
    if how == Close::Reset {
        // Only makes the close below abrupt; if it fails, an ordinary close is what remains.
        let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
    }
    drop(fd);
}
