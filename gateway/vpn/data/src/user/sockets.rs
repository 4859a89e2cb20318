//! The sockets of a plane: opened once, one of each per lane, and kept as long as the plane lives.

use crate::plane::PeerId;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use sealane_sys::udp::{Instruction, Options, Socket};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// Kernel buffers of a UDP socket: a lane that is busy for a few milliseconds loses nothing.
const BUFFER: usize = 8 << 20;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Sockets by lane; every lane has the same addresses in the same order.
#[derive(Debug, Default)]
pub struct Sockets {
    pub(crate) udp: Vec<Vec<Socket>>,
    pub(crate) listeners: Vec<Vec<OwnedFd>>,
    /// For the log: [`Event::Note`](crate::Event::Note).
    pub(crate) notes: Vec<String>,
}

impl Sockets {
    /// Opens UDP sockets and TCP listeners for so many lanes. Port 0 is chosen by the system, once per address.
    pub fn open(udp: &[SocketAddr], tcp: &[SocketAddr], lanes: u16) -> io::Result<Self> {
        let lanes = usize::from(lanes.max(1));
        let mut sockets = Self::default();
        sockets.udp.resize_with(lanes, Vec::new);
        sockets.listeners.resize_with(lanes, Vec::new);
        for address in udp {
            let mut address = *address;
            for lane in &mut sockets.udp {
                let options = Options {
                    reuse_port: lanes > 1,
                    dual_stack: true,
                    ecn: false,
                    receive_buffer: BUFFER,
                    send_buffer: BUFFER,
                };
                let socket = Socket::bind(address, &options)?;
                address = socket.address();
                lane.push(socket);
            }
            if lanes > 1 {
                // Where a kernel does not take the program, packets are forwarded between lanes.
                if let Some(Err(e)) = sockets.udp[0].last().map(|s| s.steer(&by_peer_id(lanes as u32))) {
                    sockets.notes.push(format!(
                        "{address}: no steering by peer ID ({e}); lanes forward packets to \
                                                each other"
                    ));
                }
            }
        }
        for address in tcp {
            let mut address = *address;
            for lane in &mut sockets.listeners {
                let listener = listen(address, lanes > 1)?;
                address = rustix::net::getsockname(&listener)?.try_into()?;
                lane.push(listener);
            }
        }
        Ok(sockets)
    }

    /// The addresses of the UDP sockets.
    pub fn udp_addresses(&self) -> Vec<SocketAddr> {
        self.udp.first().map_or_else(Vec::new, |lane| lane.iter().map(Socket::address).collect())
    }

    /// The addresses that are listened on.
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        let address = |fd: &OwnedFd| rustix::net::getsockname(fd).ok()?.try_into().ok();
        self.listeners.first().map_or_else(Vec::new, |lane| lane.iter().filter_map(address).collect())
    }

    /// Without segmentation and trains on the UDP sockets: for tests, and where a driver breaks them.
    pub fn without_offload(mut self) -> Self {
        for lane in &mut self.udp {
            *lane = std::mem::take(lane).into_iter().map(Socket::without_offload).collect();
        }
        self
    }
}

fn listen(address: SocketAddr, several: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, false)?;
    }
    if several {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    rustix::net::bind(&fd, &address)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Sends a DATA_V2 packet to the socket of its peer's lane, wherever it comes from; anything else by the kernel's hash
/// of addresses and ports. The number is that in the order of binding, which never changes: all of a plane's sockets
/// open and close together.
fn by_peer_id(lanes: u32) -> [Instruction; 8] {
    let opcode = u32::from(sealane_ovpn::data::layout::DATA_V2);
    [
        (0x30, 0, 0, 0),                   // A = byte 0
        (0x74, 0, 0, 3),                   // A >>= 3: the opcode
        (0x15, 0, 4, opcode),              // not DATA_V2: to the last line
        (0x20, 0, 0, 0),                   // A = word 0
        (0x54, 0, 0, PeerId::UNSET.get()), // A &= 24 bits: the peer id
        (0x94, 0, 0, lanes),               // A %= lanes
        (0x16, 0, 0, 0),                   // return A
        (0x06, 0, 0, u32::MAX),            // return what no socket has: the kernel chooses
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plane::lane_of;
    use sealane_ovpn::data::Header;
    use sealane_sys::udp::{Batch, Transmit};

    #[test]
    fn data_packets_come_to_their_lane_from_everywhere() {
        const LANES: u16 = 3;
        let sockets = Sockets::open(&["127.0.0.1:0".parse().unwrap()], &[], LANES).unwrap();
        let to = sockets.udp_addresses()[0];
        for n in 0..30 {
            let sender = Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
            let header = Header { key_id: 3, peer_id: PeerId::new(n * 1000 + n) };
            let data = header.bytes();
            sender.send(&Transmit { remote: to, local: None, segment: 0, ecn: 0, data: &data }).unwrap();
        }
        let mut batch = Batch::new(32, 100);
        let mut seen = 0;
        for (lane, sockets) in sockets.udp.iter().enumerate() {
            while sockets[0].receive(&mut batch).is_ok() {
                for (_, bytes) in batch.iter_mut() {
                    let peer = Header::parse(bytes).unwrap().peer_id.unwrap();
                    assert_eq!(usize::from(lane_of(peer, LANES)), lane);
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 30);
    }
}
