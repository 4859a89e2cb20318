//! Handing the kernel's plane over to another process.
//!
//! Its link, its peers, their keys, packet ids and replay windows are in the kernel and stay there: data packets pass
//! while no process is there at all. What goes along is what a process has of it: the sockets, on which control packets
//! wait, and the netlink socket, on which notifications wait.

use super::family::{NAME, Requests};
use super::{KernelPlane, Parts};
use crate::fields::{Malformed, Reader};
use crate::handed::{HandOver, check_version, invalid, read_about, write_about, write_version};
use crate::plane::{PeerNew, Sink, Transport};
use sealane_sys::netlink::Netlink;
use sealane_sys::udp::{Options, Socket};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const INTERFACE: u16 = 1;
/// A field that the user-space plane does not write: the number of sockets.
const SOCKETS: u16 = 3;
const PEER: u16 = 4;

/// Writes down what a stopped plane leaves.
pub(super) fn write<'p>(
    interface: &str,
    notices: Netlink,
    udp: Vec<Socket>,
    peers: impl Iterator<Item = &'p PeerNew>,
) -> HandOver {
    let writer = write_version().bytes(INTERFACE, interface.as_bytes()).number(SOCKETS, udp.len() as u64).each(
        PEER,
        peers,
        write_about,
    );
    let descriptors = [OwnedFd::from(notices)].into_iter().chain(udp.into_iter().map(OwnedFd::from)).collect();
    HandOver { bytes: writer.finish(), descriptors }
}

/// The kernel's plane as another process has left it: read and found good, but not begun.
#[derive(Debug)]
pub struct Prepared {
    interface: String,
    notices: Netlink,
    udp: Vec<Socket>,
    peers: Vec<PeerNew>,
}

impl Prepared {
    /// Whether it is this plane that was left.
    pub(crate) fn is_in(from: &HandOver) -> bool {
        Reader::new(&from.bytes).is_ok_and(|fields| matches!(fields.optional_number(SOCKETS), Ok(Some(_))))
    }

    /// Reads it.
    pub fn read(from: HandOver) -> io::Result<Self> {
        let fields = Reader::new(&from.bytes).map_err(invalid)?;
        check_version(&fields)?;
        let name = fields.bytes(INTERFACE, "the interface's name").map_err(invalid)?;
        let count: usize = fields.number(SOCKETS, "the number of sockets").map_err(invalid)?;
        let peers = fields.each(PEER).map(|peer| peer.and_then(read_about)).collect::<Result<_, _>>();
        let mut descriptors = from.descriptors.into_iter();
        let notices = descriptors.next().ok_or_else(|| invalid(Malformed("a descriptor is missing")))?;
        let udp: Vec<Socket> = descriptors
            .map(|fd| Socket::adopt(fd, &Options::default()).map(Socket::without_offload))
            .collect::<io::Result<_>>()?;
        if udp.len() != count {
            return Err(invalid(Malformed("the number of sockets differs from the announced number")));
        }
        Ok(Self {
            interface: String::from_utf8_lossy(name).into_owned(),
            notices: Netlink::adopt(notices),
            udp,
            peers: peers.map_err(invalid)?,
        })
    }

    /// Goes on, in the network namespace of the link.
    pub fn start(self, sink: Arc<dyn Sink>) -> io::Result<KernelPlane> {
        let (mut route, mut generic) = (Netlink::route()?, Netlink::generic()?);
        let interface = route.link_index(&self.interface)?;
        let family = generic.family(NAME)?.ok_or(io::ErrorKind::Unsupported)?.id;
        let parts = Parts {
            interface: self.interface,
            requests: Requests { family, interface },
            generic,
            route,
            notices: self.notices,
            udp: self.udp,
            peers: self.peers.into_iter().map(|about| (about.peer, about)).collect(),
        };
        KernelPlane::begin(parts, sink)
    }

    /// The addresses of its sockets.
    pub fn addresses(&self) -> Vec<(Transport, SocketAddr)> {
        self.udp.iter().map(|s| (Transport::Udp, s.address())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::{PeerId, SocketId};

    #[test]
    fn what_is_written_is_read_and_what_is_cut_off_is_refused() {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
        let address = socket.address();
        let mut about =
            PeerNew::new(PeerId::new(5).unwrap(), SocketId::new(0, 0), Transport::Udp, "192.0.2.7:9".parse().unwrap());
        about.routes = vec!["10.9.0.0/16".parse().unwrap()];
        let whole = || {
            let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
            write("ovpn7", Netlink::generic().unwrap(), vec![socket], [&about].into_iter())
        };
        let left = write("ovpn7", Netlink::generic().unwrap(), vec![socket], [&about].into_iter());
        assert!(Prepared::is_in(&left));
        let read = Prepared::read(left).unwrap();
        assert_eq!((read.interface.as_str(), read.addresses()), ("ovpn7", vec![(Transport::Udp, address)]));
        assert_eq!((read.peers[0].peer, &read.peers[0].routes), (about.peer, &about.routes));
        for len in 0..whole().bytes.len() {
            let mut part = whole();
            part.bytes.truncate(len);
            // What ends between two fields lacks the later ones, which may be none of the needed.
            if let Ok(read) = Prepared::read(part) {
                assert!(read.peers.is_empty());
            }
        }
        let mut newer = whole();
        newer.bytes[6..14].copy_from_slice(&77_u64.to_be_bytes());
        let refused = Prepared::read(newer).unwrap_err().to_string();
        assert!(refused.contains("the old process has version 77 of the interface"), "{refused}");
        let mut bare = whole();
        bare.descriptors.pop();
        assert!(Prepared::read(bare).is_err());
        let mut bare = whole();
        bare.descriptors.clear();
        assert!(Prepared::read(bare).is_err());
        assert!(!Prepared::is_in(&HandOver { bytes: vec![1], descriptors: Vec::new() }));
    }
}
