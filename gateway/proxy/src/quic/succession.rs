//! Two processes at the same UDP sockets, while one follows the other in an upgrade.
//!
//! ```text
//! clients ─► sockets ─► successor ─┬─ ids of its own, first packets ─► its lanes
//!                                  └─ ids of the predecessor's ─ Channel ──► the predecessor's lanes ─► sockets ─► clients
//!                       successor's lanes ◄─ Channel ─ first packets under an id that the predecessor made (Retry)
//! ```
//! The sockets are the same, so that nothing that waits in them is lost and no port is bound anew; the successor reads
//! them from the moment when the predecessor's last lane has stopped ([`QuicSuccessor::read_no_more`]); both send by them. Whose a
//! datagram is, is told by the first byte of its connection id, the generation, and by its MAC, so that nobody else makes
//! datagrams go this way. The way has the bounds of the kernel's socket buffer, and at its end those of the lanes'
//! mailboxes: what does not fit is lost, as on any network, and counted. What has come this way is never passed on again,
//! but for a first packet that carries the predecessor's own proof of its client's address: that goes back, once. A successor may have several predecessors, if
//! one upgrade follows another before the first process has drained. When a predecessor has ended, what still comes for it
//! gets the successor's stateless reset: the key is the same.
//!
//! Where the successor is to have no HTTP/3 ([`QuicSuccessor::not_read`]), the predecessor reads on, as after a reload that has taken
//! HTTP/3 out: for the connections it has. A lane that has some refuses new ones; a lane that has none has ended, and what
//! comes to its socket is not answered.

use super::Datagram;
use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes under way, wished for: what a lane may take a few milliseconds to get to.
const BUFFER: usize = 4 << 20;
/// The longest header: flags, slot, two addresses with port and scope, one without.
const MAX_HEADER: usize = 3 + 2 * 23 + 17;
/// The longest datagram.
const MAX_DATAGRAM: usize = 65_535;

const ECN: u8 = 3;
/// [`Datagram::counted`].
const COUNTED: u8 = 4;
/// [`Datagram::fresh`].
const FRESH: u8 = 8;

/// A process that was here before, and has connections still.
#[derive(Clone, Debug)]
pub struct QuicPredecessor {
    /// What its connection ids begin with.
    pub generation: u8,
    /// Its connection ids carry MACs, under the key that it has handed over. One that was built before ids had any
    /// cannot be protected from datagrams under made-up ids; the way to it is bounded all the same.
    pub ids_have_macs: bool,
    /// The way to it.
    pub channel: Arc<Channel>,
}

/// The process that serves from now on.
#[derive(Clone, Debug)]
pub struct QuicSuccessor {
    /// The way to it.
    pub channel: Arc<Channel>,
    /// Dropped by each lane when it reads the UDP sockets no more; when the last one has, the successor is told by the
    /// end of it, and reads them.
    pub read_no_more: Arc<OwnedFd>,
    /// Listeners, as bound, at which it has no HTTP/3: their sockets stay ours alone.
    pub not_read: Arc<[SocketAddr]>,
}

/// Datagrams between two processes: a socket pair that keeps their bounds.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// What has become of a datagram that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way.
    Yes,
    /// The other side does not keep up; lost, as on any network.
    Full,
    /// There is no other side any more.
    Gone,
}

impl Channel {
    /// Both ends of a new one.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for end in [&a, &b] {
            // Less is given where the system allows no more.
            let _ = sockopt::set_socket_send_buffer_size(end, BUFFER);
        }
        Ok((Self(a), Self(b)))
    }

    /// Sends a datagram that came to the listener at `listener`, without waiting.
    pub fn send(&self, listener: SocketAddr, d: &Datagram) -> Sent {
        match send(&self.0, &encode(listener, d), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Sent::Yes,
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Sent::Gone,
            Err(_) => Sent::Full,
        }
    }

    /// Waits for the next datagram; `listener` tells a listener's id by its address. `None` when the other side has
    /// ended.
    pub fn receive(&self, listener: impl Fn(SocketAddr) -> Option<u32>) -> Option<Datagram> {
        let mut buffer = vec![0; MAX_HEADER + MAX_DATAGRAM];
        loop {
            match recv(&self.0, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => return None,
                // What is not understood, and what has no place here any more, is dropped.
                Ok((_, n)) => {
                    if let Some(datagram) = parse(buffer.get(..n)?, &listener) {
                        return Some(datagram);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// A datagram with what is to be known of it, as [`parse`] reads it.
pub(crate) fn encode(listener: SocketAddr, d: &Datagram) -> Vec<u8> {
    let mut message = Vec::with_capacity(MAX_HEADER + d.data.len());
    let flag = |set, flag| if set { flag } else { 0 };
    message.push(d.ecn & ECN | flag(d.counted, COUNTED) | flag(d.fresh, FRESH));
    message.extend_from_slice(&(d.slot as u16).to_be_bytes());
    put_address(&mut message, listener);
    put_address(&mut message, d.remote);
    put_ip(&mut message, d.local);
    message.extend_from_slice(&d.data);
    message
}

fn put_ip(out: &mut Vec<u8>, ip: Option<IpAddr>) {
    match ip {
        None => out.push(0),
        Some(IpAddr::V4(ip)) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    put_ip(out, Some(address.ip()));
    out.extend_from_slice(&address.port().to_be_bytes());
    let scope = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
    out.extend_from_slice(&scope.to_be_bytes());
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*head)
}

fn take_ip(input: &mut &[u8]) -> Option<Option<IpAddr>> {
    Some(match take::<1>(input)? {
        [0] => None,
        [4] => Some(Ipv4Addr::from(take::<4>(input)?).into()),
        [6] => Some(Ipv6Addr::from(take::<16>(input)?).into()),
        _ => return None,
    })
}

fn take_address(input: &mut &[u8]) -> Option<SocketAddr> {
    let ip = take_ip(input)??;
    let port = u16::from_be_bytes(take(input)?);
    let scope = u32::from_be_bytes(take(input)?);
    Some(match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    })
}

pub(crate) fn parse(mut input: &[u8], listener: impl Fn(SocketAddr) -> Option<u32>) -> Option<Datagram> {
    let [flags] = take(&mut input)?;
    let slot = usize::from(u16::from_be_bytes(take(&mut input)?));
    let listener = listener(take_address(&mut input)?)?;
    let remote = take_address(&mut input)?;
    let local = take_ip(&mut input)?;
    let (counted, fresh) = (flags & COUNTED != 0, flags & FRESH != 0);
    Some(Datagram { listener, slot, remote, local, ecn: flags & ECN, counted, fresh, data: BytesMut::from(input) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(remote: &str, local: Option<&str>, data: &[u8]) -> Datagram {
        Datagram {
            listener: 0,
            slot: 513,
            remote: remote.parse().unwrap(),
            local: local.map(|ip| ip.parse().unwrap()),
            ecn: 2,
            counted: true,
            fresh: false,
            data: BytesMut::from(data),
        }
    }

    #[test]
    fn datagrams_arrive_as_they_were() {
        let (here, there) = Channel::pair().unwrap();
        let listener: SocketAddr = "[::1]:443".parse().unwrap();
        let ids = |address| (address == listener).then_some(7);
        for (remote, local) in
            [("192.0.2.1:5", None), ("[fe80::1%3]:9", Some("fe80::2")), ("1.2.3.4:1", Some("5.6.7.8"))]
        {
            let sent = datagram(remote, local, &[9; 1400]);
            assert_eq!(here.send("127.0.0.1:1".parse().unwrap(), &sent), Sent::Yes, "of a listener unknown there");
            assert_eq!(here.send(listener, &sent), Sent::Yes);
            let got = there.receive(ids).unwrap();
            assert_eq!((got.listener, got.slot, got.remote, got.local), (7, 513, sent.remote, sent.local));
            assert_eq!((got.ecn, got.counted, got.fresh, got.data), (2, true, false, sent.data));
        }
        // Cut anywhere, it is understood or refused, and never more than that.
        let mut message = vec![0, 0, 1];
        put_address(&mut message, listener);
        put_address(&mut message, listener);
        put_ip(&mut message, None);
        for cut in 0..message.len() {
            assert!(parse(&message[..cut], ids).is_none(), "{cut}");
        }
        assert!(parse(&message, ids).is_some());
    }

    #[test]
    fn an_end_and_a_full_channel_are_told_apart() {
        let (here, there) = Channel::pair().unwrap();
        let (listener, d) = ("127.0.0.1:1".parse().unwrap(), datagram("192.0.2.1:5", None, &[0; 60_000]));
        assert!((0..10_000).any(|_| here.send(listener, &d) == Sent::Full), "it has a bound");
        drop(there);
        assert_eq!(here.send(listener, &d), Sent::Gone);
        assert!(here.receive(|_| Some(1)).is_none());
    }
}
