//! What control and a data plane say to each other.
//!
//! The shape is that of Linux' `ovpn` family: peer new, set, delete; key new, swap, delete; counters; notifications.
//! Control calls [`Plane::command`]; the plane calls control's [`Sink`]. Both planes (user space, kernel) are driven by
//! the same commands.
//!
//! Rules that control keeps:
//!
//! - **A peer belongs to one lane**: `peer id % lanes` ([`Plane::lanes`], [`lane_of`]). A TCP peer's id must name the
//!   lane of its connection ([`SocketId::lane`]).
//! - **Keys are acknowledged**: after `KeyNew`, wait for [`Event::KeyInstalled`] before sending anything that lets the
//!   peer use that key.
//! - **Routes**: a packet from the TUN goes to the peer whose VPN address it is for, else to the one with the longest
//!   matching prefix. A peer may send only from its VPN addresses and the prefixes routed to it.
//!
//! The interface is versioned and made to grow: structures are built from `new` and fields, enumerations are not
//! exhaustive, and a reader ignores a variant that is newer than itself.

pub use sealane_ovpn::data::{Cipher, Format, KeyPair, KeySlot, PeerId};

use crate::filter::Filter;
use sealane_lane::Undelivered;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The interface's version. What only adds to the interface leaves it: a reader ignores what it does not know. What another version
/// would misunderstand raises it, and a plane of another version is not taken over from another process.
pub const VERSION: u16 = 1;

/// The lane that a peer belongs to.
pub fn lane_of(peer: PeerId, lanes: u16) -> u16 {
    (peer.get() % u32::from(lanes.max(1))) as u16
}

/// Names one of the plane's sockets: a lane's UDP socket or one TCP connection. Never used again once it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(u64);

impl SocketId {
    /// From a lane and the lane's own number for it, which has 48 bits.
    pub const fn new(lane: u16, number: u64) -> Self {
        Self((lane as u64) << 48 | number & 0xffff_ffff_ffff)
    }

    /// As one number.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Back from one number.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The lane that owns it.
    pub const fn lane(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The lane's own number for it.
    pub const fn number(self) -> u64 {
        self.0 & 0xffff_ffff_ffff
    }
}

/// What packets travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// One packet per datagram.
    Udp,
    /// Packets with a 16-bit length before each.
    Tcp,
}

/// A network: an address and how many of its leading bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// Bits beyond the length are cleared. `None` when the length is longer than the address.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(a) if len <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
            }
            IpAddr::V6(a) if len <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
            _ => return None,
        };
        Some(Self { address, len })
    }

    /// The first address.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits count.
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// Everything: a default route.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it holds an address.
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::new(address, self.len).is_some_and(|p| p == *self)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl std::str::FromStr for Prefix {
    type Err = ();

    /// `192.0.2.0/24`, `2001:db8::/32`; an address alone means all its bits.
    fn from_str(s: &str) -> Result<Self, ()> {
        let (address, len) = s.split_once('/').map_or((s, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(drop)?;
        let len = match len {
            Some(len) => len.parse().map_err(drop)?,
            None if address.is_ipv4() => 32,
            None => 128,
        };
        Self::new(address, len).ok_or(())
    }
}

/// Keep-alive of one peer; zero seconds switch either off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalive {
    /// Send a ping when nothing has been sent for so many seconds.
    pub ping: u16,
    /// Say [`Event::PeerExpired`] when nothing authentic has come for so many seconds.
    pub ping_restart: u16,
}

/// How many bytes of IP packets a peer may send and receive per second; `None`: any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// From the peer.
    pub upload: Option<NonZeroU64>,
    /// To the peer.
    pub download: Option<NonZeroU64>,
}

impl Rates {
    /// Whether both are missing.
    pub const fn is_unlimited(self) -> bool {
        self.upload.is_none() && self.download.is_none()
    }

    /// These, and others where one of these is missing.
    pub fn or(self, others: Self) -> Self {
        Self { upload: self.upload.or(others.upload), download: self.download.or(others.download) }
    }
}

/// A peer to be served. Made with [`PeerNew::new`]; then set what differs.
#[derive(Clone, Debug)]
pub struct PeerNew {
    /// Its number here: in DATA_V2 packets that come in, and in every other command.
    pub peer: PeerId,
    /// The number that our packets to it carry: DATA_V2; `None`: DATA_V1, for clients without peer ids.
    pub sent_peer: Option<PeerId>,
    /// Which of the plane's sockets to use: that at which the peer was heard.
    pub socket: SocketId,
    /// What packets travel in.
    pub transport: Transport,
    /// Where it is.
    pub remote: SocketAddr,
    /// Our address that it talks to, where the socket is bound to a wildcard.
    pub local: Option<IpAddr>,
    /// Its address inside the VPN.
    pub vpn_ip4: Option<Ipv4Addr>,
    /// Its IPv6 address inside the VPN.
    pub vpn_ip6: Option<Ipv6Addr>,
    /// Networks behind it.
    pub routes: Vec<Prefix>,
    /// Largest IP packet inside the tunnel, both ways.
    pub mtu: u16,
    /// Largest TCP segment inside the tunnel over IPv4 (over IPv6 it is 20 less), written into SYNs; 0: leave them.
    pub max_segment: u16,
    /// Pings.
    pub keepalive: Keepalive,
    /// What it may reach; `None`: everything.
    pub filter: Option<Arc<Filter>>,
    /// How much it may send and receive.
    pub rates: Rates,
}

impl PeerNew {
    /// A peer with no addresses yet, MTU 1500 and no keep-alive.
    pub fn new(peer: PeerId, socket: SocketId, transport: Transport, remote: SocketAddr) -> Self {
        Self {
            peer,
            sent_peer: Some(peer),
            socket,
            transport,
            remote,
            local: None,
            vpn_ip4: None,
            vpn_ip6: None,
            routes: Vec::new(),
            mtu: 1500,
            max_segment: 0,
            keepalive: Keepalive::default(),
            filter: None,
            rates: Rates::default(),
        }
    }
}

/// Changes to a peer; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct PeerSet {
    /// New address of the peer.
    pub remote: Option<SocketAddr>,
    /// New address of ours.
    pub local: Option<IpAddr>,
    /// Its address inside the VPN.
    pub vpn_ip4: Option<Ipv4Addr>,
    /// Its IPv6 address inside the VPN.
    pub vpn_ip6: Option<Ipv6Addr>,
    /// All networks behind it, in place of the former.
    pub routes: Option<Vec<Prefix>>,
    /// Largest IP packet inside the tunnel.
    pub mtu: Option<u16>,
    /// Largest TCP segment.
    pub max_segment: Option<u16>,
    /// Pings.
    pub keepalive: Option<Keepalive>,
    /// What it may reach from now on; `Some(None)`: everything.
    pub filter: Option<Option<Arc<Filter>>>,
    /// How much it may send and receive from now on.
    pub rates: Option<Rates>,
}

/// Why a peer went, in the words of the kernel's family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DelReason {
    /// The tunnel ends.
    Teardown,
    /// Control deleted it.
    Deleted,
    /// Nothing came for `ping_restart` seconds.
    Expired,
    /// Its connection failed.
    TransportError,
    /// Its connection was closed.
    TransportClosed,
}

/// A key to install.
#[derive(Clone, Debug)]
pub struct KeyNew {
    /// Whose.
    pub peer: PeerId,
    /// Where; what was there is dropped.
    pub slot: KeySlot,
    /// Its number in packets, 0 to 7.
    pub key_id: u8,
    /// The AEAD.
    pub cipher: Cipher,
    /// Stock or epoch packets.
    pub format: Format,
    /// Both directions, as this side sees them.
    pub keys: KeyPair,
}

/// A TCP connection that was accepted elsewhere, and of which some bytes were read there.
#[derive(Debug)]
pub struct TakenSocket {
    /// The connection.
    pub fd: OwnedFd,
    /// What was read of it: frames, the last of which may be incomplete.
    pub bytes: Vec<u8>,
    /// The client's address. It may differ from that of the connection, if a load balancer has named the client.
    pub remote: SocketAddr,
}

/// What control asks of a plane.
#[derive(Debug)]
#[non_exhaustive]
pub enum Command {
    /// Serve a peer.
    PeerNew(PeerNew),
    /// Change a peer.
    PeerSet(PeerId, PeerSet),
    /// Forget a peer, its keys, addresses and routes. A TCP peer's connection is closed.
    PeerDel(PeerId),
    /// Install a key; answered by [`Event::KeyInstalled`].
    KeyNew(Box<KeyNew>),
    /// Primary becomes secondary and the other way round, between two packets.
    KeySwap(PeerId),
    /// Drop a key.
    KeyDel(PeerId, KeySlot),
    /// Send a control packet (without TCP's length) through a socket of the plane.
    ControlOut {
        /// Through which.
        socket: SocketId,
        /// Where to; TCP connections know.
        remote: SocketAddr,
        /// From which of our addresses.
        local: Option<IpAddr>,
        /// The packet.
        bytes: Vec<u8>,
    },
    /// Seal and send a message that is not an IP packet (OCC) on the data channel.
    InbandOut(PeerId, Vec<u8>),
    /// Take a connected TCP socket (a client's); control packets of it come as [`ControlIn`].
    SocketNew {
        /// Which lane shall have it.
        lane: u16,
        /// The number it gets: [`SocketId::new`] with that lane. Numbers from 2^47 on are control's to give.
        socket: SocketId,
        /// The connection.
        fd: OwnedFd,
    },
    /// Take a TCP connection that was accepted elsewhere, as if a lane had accepted it. The plane chooses the lane.
    SocketTake(TakenSocket),
    /// A session has begun on a TCP connection: it may stay for as long as control wants it.
    SocketConfirm(SocketId),
    /// Close a TCP connection, once what was given to it is sent.
    SocketClose(SocketId),
    /// Ask for the counters of one peer or of all; answered by one [`Event::Counters`] each.
    CountersGet(Option<PeerId>),
}

/// A control packet that came in.
#[derive(Debug)]
pub struct ControlIn {
    /// Through which socket; answer through the same.
    pub socket: SocketId,
    /// Its transport.
    pub transport: Transport,
    /// From where.
    pub remote: SocketAddr,
    /// At which of our addresses.
    pub local: Option<IpAddr>,
    /// The packet, without TCP's length.
    pub bytes: Vec<u8>,
}

/// Counters of one peer. Bytes are those of IP packets inside the tunnel, as OpenVPN counts them, and of whole outer
/// payloads (`link_…`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerCounters {
    /// IP packets from the peer.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// IP packets to the peer.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Bytes of data packets received.
    pub link_rx_bytes: u64,
    /// Bytes of data packets sent.
    pub link_tx_bytes: u64,
    /// Data packets dropped: forged, replayed, malformed, of an unknown key.
    pub dropped: u64,
    /// Milliseconds since something authentic came; `None` when nothing has.
    pub idle_ms: Option<u64>,
}

/// What a plane tells control.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The key can open and seal from now on.
    KeyInstalled {
        /// Whose.
        peer: PeerId,
        /// Where.
        slot: KeySlot,
        /// Its number in packets.
        key_id: u8,
    },
    /// A key nears its end: renegotiate. Said once per key, early; at the limit itself nothing more is sent.
    KeyExhausted {
        /// Whose.
        peer: PeerId,
        /// Its number in packets.
        key_id: u8,
    },
    /// Nothing authentic came for `ping_restart` seconds. The peer stays until control deletes it.
    PeerExpired(PeerId),
    /// The plane has dropped a peer by itself, or obeyed [`Command::PeerDel`].
    PeerGone {
        /// Which.
        peer: PeerId,
        /// Why.
        reason: DelReason,
    },
    /// An authentic packet came from another address; packets go there from now on.
    FloatTo {
        /// Which.
        peer: PeerId,
        /// Where it is now.
        remote: SocketAddr,
        /// At which of our addresses it was heard.
        local: Option<IpAddr>,
    },
    /// A message on the data channel that is neither an IP packet nor a ping (OCC).
    InbandIn(PeerId, Vec<u8>),
    /// A TCP client has connected. Its connection is closed soon, unless control confirms or uses it.
    SocketOpened {
        /// Its connection.
        socket: SocketId,
        /// From where.
        remote: SocketAddr,
    },
    /// A TCP connection that control has confirmed is gone.
    SocketClosed(SocketId),
    /// Something that an operator should know, for the log.
    Note(String),
    /// Counters, as asked for.
    Counters {
        /// Whose.
        peer: PeerId,
        /// As of now.
        counters: PeerCounters,
    },
    /// A command could not be obeyed after all.
    Failed {
        /// Which peer it was about.
        peer: PeerId,
        /// What went wrong.
        why: Refused,
    },
}

/// Where a plane's words go. Called on the lanes' threads: it must not block.
pub trait Sink: Send + Sync {
    /// Takes a control packet; false when too many wait already: then it is lost, as on a full link, and counted.
    fn control_in(&self, packet: ControlIn) -> bool;

    /// Takes an event. Most are answers to commands, or happen once in a peer's life, so none may be lost. Clients cause
    /// [`Event::FloatTo`], [`Event::InbandIn`] and [`Event::SocketOpened`] as often as they like: a sink that keeps events
    /// merges or drops these.
    fn event(&self, event: Event);
}

/// Why a plane did not obey.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// There is no such peer.
    NoPeer(PeerId),
    /// There is one already.
    PeerExists(PeerId),
    /// Another peer has this VPN address or route.
    AddressTaken(Prefix, PeerId),
    /// There is no such socket, or it is another lane's than the peer's.
    NoSocket(SocketId),
    /// There is no key in the slot.
    NoKey(PeerId, KeySlot),
    /// Something is out of its bounds.
    Invalid(&'static str),
    /// This plane cannot do it: an interface newer than the plane, or a limit of the kernel.
    Unsupported(&'static str),
    /// Too many control packets wait to be sent already.
    Full,
    /// The plane has ended.
    Gone,
    /// The system said no.
    Io(std::io::Error),
}

impl<M> From<Undelivered<M>> for Refused {
    fn from(undelivered: Undelivered<M>) -> Self {
        match undelivered {
            Undelivered::Full(_) => Self::Full,
            Undelivered::Ended(_) => Self::Gone,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeer(peer) => write!(f, "there is no peer {}", peer.get()),
            Self::PeerExists(peer) => write!(f, "there is a peer {} already", peer.get()),
            Self::AddressTaken(prefix, peer) => write!(f, "{prefix} belongs to peer {} already", peer.get()),
            Self::NoSocket(socket) => write!(f, "lane {} has no socket {}", socket.lane(), socket.number()),
            Self::NoKey(peer, slot) => write!(f, "peer {} has no {slot:?} key", peer.get()),
            Self::Invalid(what) | Self::Unsupported(what) => f.write_str(what),
            Self::Full => f.write_str("too many control packets wait to be sent"),
            Self::Gone => f.write_str("the data plane has ended"),
            Self::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<std::io::Error> for Refused {
    fn from(e: std::io::Error) -> Self {
        Self::Io(e)
    }
}

/// What not every plane can do. Control asks before it negotiates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Feature {
    /// Peers over TCP.
    Tcp,
    /// OpenVPN 2.7's epoch format.
    Epoch,
    /// Peers without peer ids (DATA_V1).
    Unnumbered,
    /// [`PeerNew::max_segment`].
    MaxSegment,
    /// [`Command::InbandOut`] and [`Event::InbandIn`].
    Inband,
    /// [`Plane::hand_over`].
    HandOver,
    /// [`PeerNew::filter`].
    AccessLists,
    /// [`PeerNew::rates`].
    Rates,
    /// Packets between peers that the system does not see.
    ClientToClient,
}

/// A data plane.
pub trait Plane: Send + Sync {
    /// `user` or `kernel`.
    fn kind(&self) -> &'static str;

    /// How many lanes share the peers by their ids.
    fn lanes(&self) -> u16;

    /// The network interface's name.
    fn interface(&self) -> &str;

    /// Whether it can do what not every plane can.
    fn supports(&self, feature: Feature) -> bool;

    /// Obeys, or says at once why not. What a lane finds out later comes as [`Event::Failed`].
    fn command(&self, command: Command) -> Result<(), Refused>;

    /// A peer's counters as of now.
    fn counters(&self, peer: PeerId) -> Option<PeerCounters>;

    /// Stops, and gives everything to another process (or to this one again). Packets that come from now on wait for
    /// the plane that goes on.
    fn hand_over(&self) -> std::io::Result<crate::HandOver> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "this data plane cannot be handed over"))
    }

    /// What the plane has counted in all, by name: for metrics.
    fn totals(&self) -> Vec<(&'static str, u64)>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_cleared_and_contain() {
        let p: Prefix = "192.0.2.77/24".parse().unwrap();
        assert_eq!(p.to_string(), "192.0.2.0/24");
        assert!(p.contains("192.0.2.255".parse().unwrap()));
        assert!(!p.contains("192.0.3.0".parse().unwrap()));
        assert!(!p.contains("2001:db8::".parse().unwrap()));
        let all: Prefix = "::/0".parse().unwrap();
        assert!(all.contains("2001:db8::1".parse().unwrap()));
        assert!(!all.contains("192.0.3.0".parse().unwrap()));
        assert!("10.0.0.0/33".parse::<Prefix>().is_err());
        assert_eq!("10.0.0.1".parse::<Prefix>().unwrap().len(), 32);
    }

    #[test]
    fn a_socket_id_keeps_its_parts() {
        let id = SocketId::new(513, 1 << 47 | 5);
        assert_eq!((id.lane(), id.number()), (513, 1 << 47 | 5));
    }
}
