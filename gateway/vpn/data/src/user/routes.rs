//! Which peer an address inside the VPN belongs to: by address first, then by the longest prefix.
//!
//! Lanes look it up for every packet in an immutable [`Routes`]; control's side keeps the [`Table`] that makes them.
//! Addresses lie in 256 shards by their last byte, so that a peer more or less copies one shard and 256 pointers, not
//! everything.

use crate::plane::{PeerId, Prefix};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Multiplies: addresses inside the VPN are given out by us, not chosen by clients.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u128(&mut self, n: u128) {
        self.write_u64(n as u64);
        self.write_u64((n >> 64) as u64);
    }
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

pub(super) type Fast = BuildHasherDefault<Multiply>;

#[derive(Clone, Debug, Default)]
struct Shard {
    v4: HashMap<u32, PeerId, Fast>,
    v6: HashMap<u128, PeerId, Fast>,
}

const SHARDS: usize = 256;

/// Addresses and prefixes of all peers, as of one moment.
#[derive(Clone, Debug)]
pub(super) struct Routes {
    addresses: Arc<[Arc<Shard>; SHARDS]>,
    prefixes: Arc<Prefixes>,
    /// Peers that send no peer id (DATA_V1), by where they are.
    unnumbered: Arc<HashMap<SocketAddr, PeerId>>,
}

/// The longest first: the lengths in use, each with its networks.
#[derive(Clone, Debug, Default)]
struct Prefixes {
    v4: Vec<(u8, HashMap<u32, PeerId, Fast>)>,
    v6: Vec<(u8, HashMap<u128, PeerId, Fast>)>,
}

fn shard(address: IpAddr) -> usize {
    usize::from(match address {
        IpAddr::V4(a) => a.octets()[3],
        IpAddr::V6(a) => a.octets()[15],
    })
}

impl Routes {
    /// Nobody's.
    pub(super) fn empty() -> Self {
        let none = Arc::new(Shard::default());
        let addresses = Arc::new(std::array::from_fn(|_| none.clone()));
        Self { addresses, prefixes: Arc::default(), unnumbered: Arc::default() }
    }

    /// Whose an address is.
    #[inline]
    pub(super) fn peer(&self, address: IpAddr) -> Option<PeerId> {
        let shard = &self.addresses[shard(address)];
        match address {
            IpAddr::V4(a) => {
                let bits = a.to_bits();
                shard.v4.get(&bits).copied().or_else(|| {
                    let mask = |len: u8| u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                    self.prefixes.v4.iter().find_map(|(len, nets)| nets.get(&(bits & mask(*len))).copied())
                })
            }
            IpAddr::V6(a) => {
                let bits = a.to_bits();
                shard.v6.get(&bits).copied().or_else(|| {
                    let mask = |len: u8| u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                    self.prefixes.v6.iter().find_map(|(len, nets)| nets.get(&(bits & mask(*len))).copied())
                })
            }
        }
    }

    /// Who sends without a peer id from here.
    #[inline]
    pub(super) fn unnumbered(&self, remote: SocketAddr) -> Option<PeerId> {
        if self.unnumbered.is_empty() { None } else { self.unnumbered.get(&remote).copied() }
    }
}

/// What [`Routes`] are made from.
#[derive(Debug)]
pub(super) struct Table {
    prefixes: BTreeMap<Prefix, PeerId>,
    current: Routes,
}

impl Default for Table {
    fn default() -> Self {
        Self { prefixes: BTreeMap::new(), current: Routes::empty() }
    }
}

impl Table {
    /// As of now.
    pub(super) fn routes(&self) -> Routes {
        self.current.clone()
    }

    /// Whose an address itself is, without regard to prefixes.
    pub(super) fn holder(&self, address: IpAddr) -> Option<PeerId> {
        let shard = &self.current.addresses[shard(address)];
        match address {
            IpAddr::V4(a) => shard.v4.get(&a.to_bits()).copied(),
            IpAddr::V6(a) => shard.v6.get(&a.to_bits()).copied(),
        }
    }

    /// Whose exactly this prefix is.
    pub(super) fn prefix_holder(&self, prefix: &Prefix) -> Option<PeerId> {
        self.prefixes.get(prefix).copied()
    }

    /// Gives an address to a peer, or to nobody.
    pub(super) fn set_address(&mut self, address: IpAddr, peer: Option<PeerId>) {
        let shard = Arc::make_mut(&mut Arc::make_mut(&mut self.current.addresses)[shard(address)]);
        match (address, peer) {
            (IpAddr::V4(a), Some(peer)) => drop(shard.v4.insert(a.to_bits(), peer)),
            (IpAddr::V4(a), None) => drop(shard.v4.remove(&a.to_bits())),
            (IpAddr::V6(a), Some(peer)) => drop(shard.v6.insert(a.to_bits(), peer)),
            (IpAddr::V6(a), None) => drop(shard.v6.remove(&a.to_bits())),
        }
    }

    /// Gives prefixes to a peer, or to nobody.
    pub(super) fn set_prefixes<'p>(&mut self, prefixes: impl IntoIterator<Item = &'p Prefix>, peer: Option<PeerId>) {
        let mut changed = false;
        for prefix in prefixes {
            changed = true;
            match peer {
                Some(peer) => drop(self.prefixes.insert(*prefix, peer)),
                None => drop(self.prefixes.remove(prefix)),
            }
        }
        if !changed {
            return;
        }
        let mut made = Prefixes::default();
        for (prefix, peer) in &self.prefixes {
            match prefix.address() {
                IpAddr::V4(a) => of_length(&mut made.v4, prefix.len()).insert(a.to_bits(), *peer),
                IpAddr::V6(a) => of_length(&mut made.v6, prefix.len()).insert(a.to_bits(), *peer),
            };
        }
        made.v4.sort_by_key(|(len, _)| std::cmp::Reverse(*len));
        made.v6.sort_by_key(|(len, _)| std::cmp::Reverse(*len));
        self.current.prefixes = Arc::new(made);
    }

    /// Says who is at an address without a peer id.
    pub(super) fn set_unnumbered(&mut self, remote: SocketAddr, peer: Option<PeerId>) {
        let map = Arc::make_mut(&mut self.current.unnumbered);
        match peer {
            Some(peer) => drop(map.insert(remote, peer)),
            None => drop(map.remove(&remote)),
        }
    }
}

type Lengths<K> = Vec<(u8, HashMap<K, PeerId, Fast>)>;

fn of_length<K>(lengths: &mut Lengths<K>, len: u8) -> &mut HashMap<K, PeerId, Fast> {
    let at = lengths.iter().position(|(l, _)| *l == len).unwrap_or_else(|| {
        lengths.push((len, HashMap::default()));
        lengths.len() - 1
    });
    &mut lengths[at].1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> PeerId {
        PeerId::new(n).unwrap()
    }

    #[test]
    fn addresses_come_before_prefixes_and_longer_before_shorter() {
        let mut table = Table::default();
        let prefixes: Vec<Prefix> = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "fd00::/8", "fd01::/16"]
            .iter()
            .map(|p| p.parse().unwrap())
            .collect();
        for (i, prefix) in prefixes.iter().enumerate() {
            table.set_prefixes([prefix], Some(id(i as u32)));
        }
        table.set_address("10.1.2.3".parse().unwrap(), Some(id(100)));
        table.set_address("fd01::9".parse().unwrap(), Some(id(101)));
        let routes = table.routes();
        let peer = |a: &str| routes.peer(a.parse().unwrap()).map(PeerId::get);
        assert_eq!(peer("192.0.2.1"), Some(0));
        assert_eq!(peer("10.9.9.9"), Some(1));
        assert_eq!(peer("10.1.9.9"), Some(2));
        assert_eq!(peer("10.1.2.3"), Some(100));
        assert_eq!(peer("fd00::1"), Some(3));
        assert_eq!(peer("fd01::1"), Some(4));
        assert_eq!(peer("fd01::9"), Some(101));
        assert_eq!(peer("2001:db8::1"), None);
        table.set_address("10.1.2.3".parse().unwrap(), None);
        table.set_prefixes(&prefixes[..1], None);
        // What was handed out stays as it was.
        assert_eq!(routes.peer("10.1.2.3".parse().unwrap()), Some(id(100)));
        let routes = table.routes();
        assert_eq!(routes.peer("10.1.2.3".parse().unwrap()), Some(id(2)));
        assert_eq!(routes.peer("192.0.2.1".parse().unwrap()), None);
    }

    #[test]
    fn thousands_of_peers_are_found() {
        let mut table = Table::default();
        let address = |n: u32| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a08_0000 + n));
        (0..5_000).for_each(|n| table.set_address(address(n), Some(id(n))));
        let routes = table.routes();
        assert!((0..5_000).all(|n| routes.peer(address(n)) == Some(id(n))));
        assert_eq!(routes.peer(address(5_000)), None);
    }
}
