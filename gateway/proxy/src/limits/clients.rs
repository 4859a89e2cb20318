//! How many connections each client has open, or how many of its requests are under way, over all lanes and all versions of HTTP. The
//! same table counts what the limits of hosts and routes count ([`ConcurrencyLimit`]).
//!
//! Each lane has an array of counts that it alone writes and all lanes read, when a client comes: there is no lock, and no
//! two lanes write the same word. An address has two places in it (a count-min sketch): both count for it, and the
//! lower one is believed. So the memory is bounded, no client is let in beyond its limit, and another is refused for it
//! only where both its places are taken by such as are at their limit.

use super::{RateKey, cut};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Places per row.
const PLACES: usize = 8192;
const ROWS: usize = 2;

/// The counts of all lanes.
#[derive(Debug)]
pub struct ClientCounts {
    lanes: Vec<Box<[AtomicU32]>>,
    hasher: RandomState,
}

/// A connection or request that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted([u16; ROWS]);

/// How many requests with the same key may be open at the same time. The same for all lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// What is counted under this name is counted together, also over reloads.
    pub name: String,
    /// What is counted.
    pub key: RateKey,
    /// How many.
    pub most: u32,
    /// Bits of an IPv4 address that count.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that count.
    pub ipv6_prefix: u8,
    /// Clients that are not counted: the index of a rule that lets in these alone.
    pub exempt: Option<usize>,
}

/// The key of a request under a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CountedBy<'k> {
    Address(IpAddr),
    /// A name, or the value of a field.
    Text(&'k [u8]),
}

/// The network of an address, with the version of IP.
fn network(address: IpAddr, (ipv4_prefix, ipv6_prefix): (u8, u8)) -> (u8, u128) {
    match address.to_canonical() {
        IpAddr::V4(ip) => (4, cut(u128::from(u32::from(ip)), 32, ipv4_prefix)),
        IpAddr::V6(ip) => (6, cut(u128::from(ip), 128, ipv6_prefix)),
    }
}

impl ClientCounts {
    /// For so many lanes.
    pub fn new(lanes: usize) -> Self {
        let row = || (0..PLACES * ROWS).map(|_| AtomicU32::new(0)).collect();
        Self { lanes: (0..lanes).map(|_| row()).collect(), hasher: RandomState::new() }
    }

    /// Counts one more connection or request of a client, unless it has `most` already. Two lanes that ask at the same moment may both
    /// let one in.
    pub(crate) fn admit(&self, slot: usize, address: IpAddr, prefixes: (u8, u8), most: u32) -> Option<Counted> {
        self.admit_hash(slot, self.hasher.hash_one(network(address, prefixes)), most)
    }

    /// The same for one more request that a limit counts.
    pub(crate) fn admit_under(&self, slot: usize, limit: &ConcurrencyLimit, key: CountedBy) -> Option<Counted> {
        let name = limit.name.as_str();
        let hash = match key {
            CountedBy::Address(ip) => self.hasher.hash_one((name, network(ip, (limit.ipv4_prefix, limit.ipv6_prefix)))),
            CountedBy::Text(text) => self.hasher.hash_one((name, text)),
        };
        self.admit_hash(slot, hash, limit.most)
    }

    fn admit_hash(&self, slot: usize, hash: u64, most: u32) -> Option<Counted> {
        let places = [hash as usize % PLACES, PLACES + (hash >> 32) as usize % PLACES];
        let open = |place: usize| self.lanes.iter().map(|lane| lane[place].load(Relaxed)).sum::<u32>();
        if places.iter().map(|place| open(*place)).min().unwrap_or(0) >= most {
            return None;
        }
        let own = self.lanes.get(slot)?;
        for place in places {
            // This lane is the only one that writes here.
            own[place].store(own[place].load(Relaxed).saturating_add(1), Relaxed);
        }
        Some(Counted(places.map(|place| place as u16)))
    }

    /// A connection or request is over.
    pub(crate) fn leave(&self, slot: usize, counted: Counted) {
        let Some(own) = self.lanes.get(slot) else { return };
        for place in counted.0 {
            let place = &own[usize::from(place)];
            place.store(place.load(Relaxed).saturating_sub(1), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn connections_count_over_lanes_and_by_prefix() {
        let clients = ClientCounts::new(3);
        let prefixes = (32, 64);
        let counted: Vec<_> =
            (0..5).map(|n| (n % 3, clients.admit(n % 3, ip("192.0.2.1"), prefixes, 5).unwrap())).collect();
        for slot in 0..3 {
            assert_eq!(clients.admit(slot, ip("192.0.2.1"), prefixes, 5), None);
            assert_eq!(clients.admit(slot, ip("::ffff:192.0.2.1"), prefixes, 5), None);
        }
        let other = clients.admit(0, ip("192.0.2.2"), prefixes, 5).unwrap();
        clients.leave(0, other);
        let (slot, first) = counted[0];
        clients.leave(slot, first);
        assert!(clients.admit(2, ip("192.0.2.1"), prefixes, 5).is_some());
        assert!(clients.admit(0, ip("2001:db8::1"), prefixes, 1).is_some());
        assert_eq!(clients.admit(1, ip("2001:db8::2"), prefixes, 1), None);
        assert!(clients.admit(1, ip("2001:db8:0:1::2"), prefixes, 1).is_some());
    }

    #[test]
    fn limits_count_for_themselves() {
        let clients = ClientCounts::new(2);
        let limit = |name: &str, most| ConcurrencyLimit {
            name: name.to_owned(),
            key: RateKey::Address,
            most,
            ipv4_prefix: 24,
            ipv6_prefix: 64,
            exempt: None,
        };
        let (a, b) = (limit("a", 2), limit("b", 2));
        let from = |text| CountedBy::Address(ip(text));
        let first = clients.admit_under(0, &a, from("192.0.2.1")).unwrap();
        assert!(clients.admit_under(1, &a, from("192.0.2.2")).is_some());
        assert_eq!(clients.admit_under(0, &a, from("192.0.2.3")), None);
        // Another limit, another network, a text that looks like it, and the client's own share.
        assert!(clients.admit_under(0, &b, from("192.0.2.1")).is_some());
        assert!(clients.admit_under(0, &a, from("192.0.3.1")).is_some());
        assert!(clients.admit_under(0, &a, CountedBy::Text(b"192.0.2.1")).is_some());
        assert!(clients.admit(0, ip("192.0.2.1"), (24, 64), 1).is_some());
        clients.leave(0, first);
        // A limit that a reload has made lower counts what is open.
        assert_eq!(clients.admit_under(0, &limit("a", 1), from("192.0.2.1")), None);
        assert!(clients.admit_under(0, &a, from("192.0.2.1")).is_some());
    }

    #[test]
    fn many_clients_do_not_refuse_each_other() {
        let clients = ClientCounts::new(1);
        let refused =
            (0..4000u32).filter(|n| clients.admit(0, IpAddr::from(n.to_be_bytes()), (32, 64), 4).is_none()).count();
        assert!(refused < 20, "{refused}");
    }
}
