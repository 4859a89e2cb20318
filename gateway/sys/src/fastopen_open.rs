//! Connections with data in their SYN: opened, and what has become of them.
//!
//! For callers that never block (`connect`, `sealane client`, the gateway towards upstreams): a socket is opened, waited
//! for by whatever loop the caller has, and looked at by [`settled`].

use crate::fastopen::{ClientFailure, Cookie, State, connect_with_data, info, set_no_cookie};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, connect, ipproto, send, socket_with, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// A socket whose SYN has left.
#[derive(Debug)]
pub struct Opened {
    /// Non-blocking; not yet connected.
    pub fd: OwnedFd,
    /// Bytes of the data that the kernel has taken; the others are to be written once it is connected.
    pub sent: usize,
    /// The SYN has left without data, since there is no cookie yet; it asks for one.
    pub cookie_missing: bool,
}

/// What a connection with data in its SYN has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The data was acknowledged with the SYN.
    Taken,
    /// It was not.
    NotTaken,
    /// It was not sent: no cookie.
    NoCookie,
    /// The SYN had to be sent a second time, without data.
    SentAgain,
}

/// A socket that is not connected yet.
pub fn socket(to: SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    Ok(fd)
}

/// Connects a socket without data in its SYN.
pub fn open(fd: OwnedFd, to: SocketAddr) -> io::Result<Opened> {
    match connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(Opened { fd, sent: 0, cookie_missing: false }),
        Err(e) => Err(e.into()),
    }
}

/// Connects a socket with as much of `data` in its SYN as fits.
///
/// Errors: `EOPNOTSUPP` where `net.ipv4.tcp_fastopen` lacks the client's bit; else those of connecting.
pub fn open_with_data(fd: OwnedFd, to: SocketAddr, data: &[u8], cookie: Cookie) -> io::Result<Opened> {
    connect_with_data(&fd)?;
    match cookie {
        Cookie::None => set_no_cookie(&fd, true)?,
        // The third packet waits for something to carry, our Finished: one segment less. Not without a cookie: then the
        // third packet is what proves to the server that we are here.
        Cookie::Ask => sockopt::set_tcp_quickack(&fd, false)?,
    }
    match connect(&fd, &to) {
        // Only noted: the SYN leaves with the data.
        Ok(()) => {
            let sent = match send(&fd, data, SendFlags::NOSIGNAL) {
                Err(Errno::INPROGRESS) => 0,
                sent => sent?,
            };
            Ok(Opened { fd, sent, cookie_missing: false })
        }
        // The SYN has left, and asks for a cookie.
        Err(Errno::INPROGRESS) => Ok(Opened { fd, sent: 0, cookie_missing: true }),
        Err(e) => Err(e.into()),
    }
}

/// What has become of an opened socket; `None` while that is open. An error is the connection's.
///
/// Writability alone says nothing: a socket has room for what goes with its SYN.
pub fn settled(fd: impl AsFd, cookie_missing: bool) -> io::Result<Option<Settled>> {
    sockopt::socket_error(&fd)??;
    let info = info(&fd)?;
    if matches!(info.state, State::SynSent | State::SynReceived) {
        return Ok(None);
    }
    Ok(Some(match info.failure {
        _ if cookie_missing => Settled::NoCookie,
        _ if info.syn_data => Settled::Taken,
        ClientFailure::Retransmitted => Settled::SentAgain,
        _ => Settled::NotTaken,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn wait(opened: &Opened) -> Settled {
        loop {
            if let Some(settled) = settled(&opened.fd, opened.cookie_missing).expect("a connection") {
                return settled;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_listener_that_takes_no_data_is_told_apart_from_one_that_does() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        if !crate::fastopen::Sysctl::read().is_some_and(|s| s.client()) {
            println!("skipped: net.ipv4.tcp_fastopen lacks the client's bit");
            return;
        }
        let plain = open(socket(to).unwrap(), to).unwrap();
        assert_eq!((wait(&plain), plain.sent), (Settled::NotTaken, 0));
        let opened = open_with_data(socket(to).unwrap(), to, b"hello", Cookie::None).unwrap();
        assert_eq!((wait(&opened), opened.sent), (Settled::NotTaken, 5));
        crate::fastopen::accept_data(&listener, 16).unwrap();
        crate::fastopen::set_no_cookie(&listener, true).unwrap();
        let opened = open_with_data(socket(to).unwrap(), to, b"hello", Cookie::None).unwrap();
        let server = crate::fastopen::Sysctl::read().is_some_and(|s| s.server());
        assert_eq!(wait(&opened), if server { Settled::Taken } else { Settled::NotTaken });
    }

    #[test]
    fn a_refusal_is_an_error() {
        let to = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = open(socket(to).unwrap(), to).and_then(|o| {
            loop {
                match settled(&o.fd, false) {
                    Ok(None) => std::thread::yield_now(),
                    other => break other,
                }
            }
        });
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
