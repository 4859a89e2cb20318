//! A share for each client network of what anybody may take before authentication: handshakes, TCP connections.
//!
//! The number of slots is fixed. A network has at most its share of them. When a slot is needed and none is free, the
//! oldest entry that has shown nothing yet makes room: of the same network where that network has its whole share, else
//! of the network that holds most. So a flood from one network evicts itself, and a flood from many evicts its own
//! oldest entries before it can keep anybody out who finishes in time. Where all entries have shown something, the oldest of
//! the network that holds most makes room for one that holds less: a few networks cannot take everything between them.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

/// Bits of an IPv6 address that tell networks apart: what providers give to one customer.
const V6_BITS: u32 = 56;

/// The network that a client's share belongs to: an IPv4 address, or a /56 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(IpAddr);

impl Network {
    /// The network of an address; an IPv4 address on a dual-stack socket is IPv4.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            v4 @ IpAddr::V4(_) => v4,
            IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & (u128::MAX << (128 - V6_BITS)))),
        })
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(a) => a.fmt(f),
            IpAddr::V6(a) => write!(f, "{a}/{V6_BITS}"),
        }
    }
}

#[derive(Debug)]
struct Entry<K> {
    key: K,
    network: Network,
    /// It has shown something that costs its owner work: others are evicted before it.
    settled: bool,
}

/// A fixed number of slots, shared between networks.
#[derive(Debug)]
pub struct Slots<K> {
    /// The oldest first.
    entries: Vec<Entry<K>>,
    total: usize,
    share: usize,
}

/// All of the network's share, or all slots, are held by entries that have shown something, and no network holds clearly
/// more slots than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<K: Copy + Eq + Hash> Slots<K> {
    /// `total` slots, of which one network has at most `share`.
    pub const fn new(total: usize, share: usize) -> Self {
        Self { entries: Vec::new(), total, share }
    }

    /// How many slots are taken.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no slot is taken.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes a slot. Returns the entry that had to go for it, if one had to.
    pub fn enter(&mut self, key: K, network: Network) -> Result<Option<K>, Full> {
        let own = self.entries.iter().filter(|e| e.network == network).count();
        let evicted = if own >= self.share {
            Some(self.oldest(network, false).ok_or(Full)?)
        } else if self.entries.len() < self.total {
            None
        } else if let Some((network, _)) = self.largest(false) {
            self.oldest(network, false)
        } else {
            // It holds fewer than the other even afterwards, or two networks would evict each other for ever.
            let (network, _) = self.largest(true).filter(|(_, held)| own + 1 < *held).ok_or(Full)?;
            self.oldest(network, true)
        };
        let evicted = evicted.map(|at| self.entries.remove(at).key);
        self.entries.push(Entry { key, network, settled: false });
        Ok(evicted)
    }

    /// An entry has shown that it is worth its slot.
    pub fn settle(&mut self, key: K) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.key == key) {
            entry.settled = true;
        }
    }

    /// Gives a slot back. An entry that has none stays without one.
    pub fn leave(&mut self, key: K) {
        if let Some(at) = self.entries.iter().position(|e| e.key == key) {
            self.entries.remove(at);
        }
    }

    /// Where a network's oldest entry is.
    fn oldest(&self, network: Network, settled: bool) -> Option<usize> {
        self.entries.iter().position(|e| e.network == network && e.settled == settled)
    }

    /// The network with the most entries that are settled, or not, and how many; of equal ones that with the oldest.
    fn largest(&self, settled: bool) -> Option<(Network, usize)> {
        let mut counts: HashMap<Network, (usize, usize)> = HashMap::new();
        for (at, entry) in self.entries.iter().enumerate().filter(|(_, e)| e.settled == settled) {
            counts.entry(entry.network).or_insert((0, self.entries.len() - at)).0 += 1;
        }
        counts.into_iter().max_by_key(|(_, rank)| *rank).map(|(network, (held, _))| (network, held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn network(text: &str) -> Network {
        Network::of(text.parse().expect("an address"))
    }

    #[test]
    fn a_network_is_what_one_customer_has() {
        assert_eq!(network("2001:db8:1:ff00::1"), network("2001:db8:1:ffff::2"));
        assert_ne!(network("2001:db8:1:ff00::1"), network("2001:db8:1:fe00::1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_eq!(network("2001:db8::1").to_string(), "2001:db8::/56");
    }

    #[test]
    fn a_flood_from_one_network_evicts_itself() {
        let (flood, good) = (network("192.0.2.1"), network("198.51.100.1"));
        let mut slots = Slots::new(100, 10);
        assert_eq!(slots.enter(0, good), Ok(None));
        for key in 1..=10 {
            assert_eq!(slots.enter(key, flood), Ok(None));
        }
        slots.settle(1);
        for key in 11..1000 {
            let evicted = slots.enter(key, flood).expect("its own oldest goes").expect("one has to go");
            assert!(evicted > 1 && evicted < key, "{evicted}");
        }
        assert_eq!(slots.len(), 11);
        slots.leave(1);
        assert_eq!(slots.enter(1000, flood), Ok(None));
        // All of its share has shown a ClientHello: it has to wait.
        (11..=1000).for_each(|key| slots.settle(key));
        assert_eq!(slots.enter(1001, flood), Err(Full));
        assert_eq!(slots.enter(1002, good), Ok(None));
    }

    #[test]
    fn a_flood_from_many_networks_evicts_its_oldest() {
        let many = |n: u32| Network::of(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n)));
        let mut slots = Slots::new(100, 10);
        let good = network("198.51.100.1");
        assert_eq!(slots.enter(u32::MAX, good), Ok(None));
        for n in 0..99 {
            assert_eq!(slots.enter(n, many(n / 5)), Ok(None));
        }
        // Those that hold most go first, and of those the oldest.
        assert_eq!(slots.enter(100, many(90)), Ok(Some(0)));
        assert_eq!(slots.enter(101, many(91)), Ok(Some(5)));
        slots.settle(u32::MAX);
        for n in 102..2000 {
            assert_ne!(slots.enter(n, many(n)).expect("somebody makes room"), Some(u32::MAX));
        }
        // All have shown a ClientHello, and none has more than one.
        (0..2000).for_each(|n| slots.settle(n));
        assert_eq!(slots.enter(2000, many(2000)), Err(Full));
    }

    #[test]
    fn networks_that_show_something_cannot_take_everything_between_them() {
        let mut slots = Slots::new(100, 10);
        for key in 0..100_u8 {
            assert_eq!(slots.enter(u32::from(key), network(&format!("192.0.2.{}", key % 10))), Ok(None));
        }
        (0..100).for_each(|key| slots.settle(key));
        for n in 0..9 {
            let good = network(&format!("198.51.100.{n}"));
            assert_eq!(slots.enter(1000 + n, good), Ok(Some(n)), "the oldest of one that holds most");
            slots.settle(1000 + n);
        }
        // Nor can they take it back.
        for n in 0..10 {
            assert_eq!(slots.enter(2000, network(&format!("192.0.2.{n}"))), Err(Full));
        }
        for n in 0..9 {
            assert_eq!(slots.len(), 100);
            assert!(slots.entries.iter().any(|e| e.key == 1000 + n));
        }
    }
}
