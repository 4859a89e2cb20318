//! The generic-netlink family `ovpn` (Linux ≥ 6.16): requests out, notifications in.
//!
//! Numbers are those of `linux/ovpn.h`; which attributes each command wants is said in the kernel's
//! `Documentation/netlink/specs/ovpn.yaml`.

use crate::plane::{DelReason, KeyNew, KeySlot, PeerCounters, PeerId, PeerNew, PeerSet};
use sealane_ovpn::data::Cipher;
use sealane_sys::netlink::{Attributes, DUMP, Message, Request};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The family's name.
pub(super) const NAME: &str = "ovpn";
/// The multicast group of its notifications.
pub(super) const GROUP: &str = "peers";
/// An interface's mode (`IFLA_OVPN_MODE`): one peer, or many.
pub(super) const MODE: u16 = 1;
const VERSION: u8 = 1;

mod cmd {
    pub const PEER_NEW: u8 = 1;
    pub const PEER_SET: u8 = 2;
    pub const PEER_GET: u8 = 3;
    pub const PEER_DEL: u8 = 4;
    pub const PEER_DEL_NTF: u8 = 5;
    pub const KEY_NEW: u8 = 6;
    pub const KEY_SWAP: u8 = 8;
    pub const KEY_SWAP_NTF: u8 = 9;
    pub const KEY_DEL: u8 = 10;
    pub const PEER_FLOAT_NTF: u8 = 11;
}

const IFINDEX: u16 = 1;
const PEER: u16 = 2;
const KEYCONF: u16 = 3;

mod peer {
    pub const ID: u16 = 1;
    pub const REMOTE_IPV4: u16 = 2;
    pub const REMOTE_IPV6: u16 = 3;
    pub const REMOTE_IPV6_SCOPE_ID: u16 = 4;
    pub const REMOTE_PORT: u16 = 5;
    pub const SOCKET: u16 = 6;
    pub const VPN_IPV4: u16 = 8;
    pub const VPN_IPV6: u16 = 9;
    pub const LOCAL_IPV4: u16 = 10;
    pub const LOCAL_IPV6: u16 = 11;
    pub const KEEPALIVE_INTERVAL: u16 = 13;
    pub const KEEPALIVE_TIMEOUT: u16 = 14;
    pub const DEL_REASON: u16 = 15;
    pub const VPN_RX_BYTES: u16 = 16;
    pub const VPN_TX_BYTES: u16 = 17;
    pub const VPN_RX_PACKETS: u16 = 18;
    pub const VPN_TX_PACKETS: u16 = 19;
    pub const LINK_RX_BYTES: u16 = 20;
    pub const LINK_TX_BYTES: u16 = 21;
}

mod keyconf {
    pub const PEER_ID: u16 = 1;
    pub const SLOT: u16 = 2;
    pub const KEY_ID: u16 = 3;
    pub const CIPHER_ALG: u16 = 4;
    pub const ENCRYPT_DIR: u16 = 5;
    pub const DECRYPT_DIR: u16 = 6;
}

const CIPHER_KEY: u16 = 1;
const NONCE_TAIL: u16 = 2;

/// Makes the requests of one interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    pub family: u16,
    pub interface: u32,
}

impl Requests {
    fn begin(self, command: u8, flags: u16) -> Request {
        Request::new(self.family, flags, &[command, VERSION, 0, 0]).with(IFINDEX, &self.interface.to_ne_bytes())
    }

    pub(super) fn peer_new(self, new: &PeerNew, socket: BorrowedFd<'_>) -> Request {
        self.begin(cmd::PEER_NEW, 0).nested(PEER, |r| {
            let r = with_id(r, new.peer).with(peer::SOCKET, &(socket.as_raw_fd() as u32).to_ne_bytes());
            let r = with_remote(r, new.remote);
            let r = with_local(r, new.local);
            let r = with_addresses(r, new.vpn_ip4, new.vpn_ip6);
            with_keepalive(r, new.keepalive.ping, new.keepalive.ping_restart)
        })
    }

    pub(super) fn peer_set(self, id: PeerId, set: &PeerSet) -> Request {
        self.begin(cmd::PEER_SET, 0).nested(PEER, |r| {
            let mut r = with_id(r, id);
            if let Some(remote) = set.remote {
                r = with_remote(r, remote);
            }
            r = with_local(r, set.local);
            r = with_addresses(r, set.vpn_ip4, set.vpn_ip6);
            match set.keepalive {
                Some(k) => with_keepalive(r, k.ping, k.ping_restart),
                None => r,
            }
        })
    }

    /// One peer's state.
    pub(super) fn peer_get(self, id: PeerId) -> Request {
        self.begin(cmd::PEER_GET, 0).nested(PEER, |r| with_id(r, id))
    }

    /// All peers' state.
    pub(super) fn peers_get(self) -> Request {
        self.begin(cmd::PEER_GET, DUMP)
    }

    pub(super) fn peer_del(self, id: PeerId) -> Request {
        self.begin(cmd::PEER_DEL, 0).nested(PEER, |r| with_id(r, id))
    }

    pub(super) fn key_new(self, new: &KeyNew) -> Request {
        let number = |n: u32| n.to_ne_bytes();
        let algorithm = match new.cipher {
            Cipher::Aes128Gcm | Cipher::Aes256Gcm => 1,
            Cipher::ChaCha20Poly1305 => 2,
        };
        let len = new.cipher.key_len();
        self.begin(cmd::KEY_NEW, 0).nested(KEYCONF, |r| {
            let mut r = r
                .with(keyconf::PEER_ID, &number(new.peer.get()))
                .with(keyconf::SLOT, &slot(new.slot))
                .with(keyconf::KEY_ID, &number(new.key_id.into()))
                .with(keyconf::CIPHER_ALG, &number(algorithm));
            for (kind, key) in [(keyconf::ENCRYPT_DIR, &new.keys.encrypt), (keyconf::DECRYPT_DIR, &new.keys.decrypt)] {
                r = r.nested(kind, |r| r.with(CIPHER_KEY, &key.key[..len]).with(NONCE_TAIL, &key.tail));
            }
            r
        })
    }

    pub(super) fn key_swap(self, id: PeerId) -> Request {
        self.begin(cmd::KEY_SWAP, 0).nested(KEYCONF, |r| r.with(keyconf::PEER_ID, &id.get().to_ne_bytes()))
    }

    pub(super) fn key_del(self, id: PeerId, which: KeySlot) -> Request {
        self.begin(cmd::KEY_DEL, 0)
            .nested(KEYCONF, |r| r.with(keyconf::PEER_ID, &id.get().to_ne_bytes()).with(keyconf::SLOT, &slot(which)))
    }
}

fn slot(slot: KeySlot) -> [u8; 4] {
    u32::from(slot == KeySlot::Secondary).to_ne_bytes()
}

fn with_id(r: Request, id: PeerId) -> Request {
    r.with(peer::ID, &id.get().to_ne_bytes())
}

fn with_remote(r: Request, remote: SocketAddr) -> Request {
    let r = match remote {
        SocketAddr::V4(a) => r.with(peer::REMOTE_IPV4, &a.ip().octets()),
        SocketAddr::V6(a) => {
            let r = r.with(peer::REMOTE_IPV6, &a.ip().octets());
            if a.scope_id() == 0 { r } else { r.with(peer::REMOTE_IPV6_SCOPE_ID, &a.scope_id().to_ne_bytes()) }
        }
    };
    r.with(peer::REMOTE_PORT, &remote.port().to_be_bytes())
}

fn with_local(r: Request, local: Option<IpAddr>) -> Request {
    match local {
        Some(IpAddr::V4(a)) => r.with(peer::LOCAL_IPV4, &a.octets()),
        Some(IpAddr::V6(a)) => r.with(peer::LOCAL_IPV6, &a.octets()),
        None => r,
    }
}

fn with_addresses(mut r: Request, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) -> Request {
    if let Some(a) = v4 {
        r = r.with(peer::VPN_IPV4, &a.octets());
    }
    if let Some(a) = v6 {
        r = r.with(peer::VPN_IPV6, &a.octets());
    }
    r
}

fn with_keepalive(r: Request, interval: u16, timeout: u16) -> Request {
    r.with(peer::KEEPALIVE_INTERVAL, &u32::from(interval).to_ne_bytes())
        .with(peer::KEEPALIVE_TIMEOUT, &u32::from(timeout).to_ne_bytes())
}

/// What the kernel has noticed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// A peer is gone.
    Deleted(PeerId, DelReason),
    /// A key's packet ids come to their end.
    KeyEnds(PeerId, u8),
    /// A peer has moved.
    Floated(PeerId, SocketAddr),
}

/// Reads a notification about this interface; `None` for others, and for those that are newer than this.
pub(super) fn notice(message: &Message, requests: Requests) -> Option<Notice> {
    if message.kind != requests.family {
        return None;
    }
    let attributes = message.attributes(4);
    if number(&attributes, IFINDEX)? != requests.interface {
        return None;
    }
    let command = *message.body.first()?;
    match command {
        cmd::PEER_DEL_NTF => {
            let peer = Attributes::new(attributes.value(PEER)?);
            let reason = match number(&peer, peer::DEL_REASON)? {
                0 => DelReason::Teardown,
                2 => DelReason::Expired,
                3 => DelReason::TransportError,
                4 => DelReason::TransportClosed,
                _ => DelReason::Deleted,
            };
            Some(Notice::Deleted(id(&peer, peer::ID)?, reason))
        }
        cmd::KEY_SWAP_NTF => {
            let key = Attributes::new(attributes.value(KEYCONF)?);
            Some(Notice::KeyEnds(id(&key, keyconf::PEER_ID)?, u8::try_from(number(&key, keyconf::KEY_ID)?).ok()?))
        }
        cmd::PEER_FLOAT_NTF => {
            let peer = Attributes::new(attributes.value(PEER)?);
            let port = u16::from_be_bytes(*peer.value(peer::REMOTE_PORT)?.first_chunk()?);
            let v4 = peer.value(peer::REMOTE_IPV4).and_then(|v| v.first_chunk::<4>()).map(|o| IpAddr::from(*o));
            let v6 = peer.value(peer::REMOTE_IPV6).and_then(|v| v.first_chunk::<16>()).map(|o| IpAddr::from(*o));
            Some(Notice::Floated(id(&peer, peer::ID)?, SocketAddr::new(v4.or(v6)?, port)))
        }
        _ => None,
    }
}

/// Reads a peer's counters from an answer.
pub(super) fn counters(message: &Message) -> Option<(PeerId, PeerCounters)> {
    let peer = Attributes::new(message.attributes(4).value(PEER)?);
    // The kernel writes 32 or 64 bits, as the number needs.
    let count = |kind| match peer.value(kind) {
        Some(v) if v.len() == 8 => v.first_chunk().map_or(0, |v| u64::from_ne_bytes(*v)),
        Some(v) => v.first_chunk().map_or(0, |v| u32::from_ne_bytes(*v).into()),
        None => 0,
    };
    let counters = PeerCounters {
        rx_packets: count(peer::VPN_RX_PACKETS),
        rx_bytes: count(peer::VPN_RX_BYTES),
        tx_packets: count(peer::VPN_TX_PACKETS),
        tx_bytes: count(peer::VPN_TX_BYTES),
        link_rx_bytes: count(peer::LINK_RX_BYTES),
        link_tx_bytes: count(peer::LINK_TX_BYTES),
        dropped: 0,
        idle_ms: None,
    };
    Some((id(&peer, peer::ID)?, counters))
}

fn number(attributes: &Attributes<'_>, kind: u16) -> Option<u32> {
    attributes.value(kind)?.first_chunk().map(|v| u32::from_ne_bytes(*v))
}

fn id(attributes: &Attributes<'_>, kind: u16) -> Option<PeerId> {
    PeerId::new(number(attributes, kind)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: Requests = Requests { family: 40, interface: 7 };

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut a = [((value.len() + 4) as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        a.extend(value);
        a.resize(a.len().next_multiple_of(4), 0);
        a
    }

    fn message(command: u8, inner_kind: u16, inner: &[Vec<u8>]) -> Message {
        let mut body = vec![command, 1, 0, 0];
        body.extend(attribute(IFINDEX, &7u32.to_ne_bytes()));
        body.extend(attribute(inner_kind, &inner.concat()));
        Message { kind: 40, body }
    }

    #[test]
    fn notifications_are_read() {
        let three = attribute(peer::ID, &3u32.to_ne_bytes());
        let reason = attribute(peer::DEL_REASON, &2u32.to_ne_bytes());
        let deleted = message(cmd::PEER_DEL_NTF, PEER, &[three.clone(), reason]);
        let id = PeerId::new(3).unwrap();
        assert_eq!(notice(&deleted, REQUESTS), Some(Notice::Deleted(id, DelReason::Expired)));
        let key = message(cmd::KEY_SWAP_NTF, KEYCONF, &[three.clone(), attribute(3, &5u32.to_ne_bytes())]);
        assert_eq!(notice(&key, REQUESTS), Some(Notice::KeyEnds(id, 5)));
        let address = [attribute(peer::REMOTE_IPV4, &[192, 0, 2, 9]), attribute(peer::REMOTE_PORT, &[4, 170])];
        let floated = message(cmd::PEER_FLOAT_NTF, PEER, &[vec![three], address.to_vec()].concat());
        assert_eq!(notice(&floated, REQUESTS), Some(Notice::Floated(id, "192.0.2.9:1194".parse().unwrap())));
        // Of another interface, of another family, of a newer kernel, and cut off anywhere.
        assert_eq!(notice(&floated, Requests { interface: 8, ..REQUESTS }), None);
        assert_eq!(notice(&floated, Requests { family: 41, ..REQUESTS }), None);
        assert_eq!(notice(&message(99, PEER, &[]), REQUESTS), None);
        for len in 0..floated.body.len() {
            let cut = Message { kind: 40, body: floated.body[..len].to_vec() };
            notice(&cut, REQUESTS);
            counters(&cut);
        }
    }

    #[test]
    fn counters_of_either_width_are_read() {
        let inner = [
            attribute(peer::ID, &3u32.to_ne_bytes()),
            attribute(peer::VPN_RX_BYTES, &(1u64 << 40).to_ne_bytes()),
            attribute(peer::VPN_TX_BYTES, &9u32.to_ne_bytes()),
        ];
        let (id, counters) = counters(&message(cmd::PEER_GET, PEER, &inner)).unwrap();
        assert_eq!((id.get(), counters.rx_bytes, counters.tx_bytes), (3, 1 << 40, 9));
    }
}
