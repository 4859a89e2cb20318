//! Addresses for clients. One that comes back gets the address it had, as long as nobody else needs it.
//!
//! Groups may have ranges of their own, which other clients do not get. The range of the others may be a part of the network.

use sealane_config::TunnelGroup;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Names that are remembered with their addresses.
const REMEMBERED: usize = 65_536;

/// Addresses that follow one another, as numbers.
#[derive(Debug)]
struct Range {
    first: u128,
    last: u128,
    next: u128,
    /// Ranges of groups within it.
    excluded: Vec<(u128, u128)>,
}

impl Range {
    const fn new(first: u128, last: u128) -> Self {
        Self { first, last, next: first, excluded: Vec::new() }
    }

    fn contains(&self, address: u128) -> bool {
        let within = |(first, last): &(u128, u128)| (*first..=*last).contains(&address);
        within(&(self.first, self.last)) && !self.excluded.iter().any(within)
    }

    /// The next address that is free. Onwards from the last one given, so that an address rests before it is given to another;
    /// at most once around the `occupied` ones.
    fn find(&mut self, occupied: usize, is_free: impl Fn(u128) -> bool) -> Option<u128> {
        let (first, last) = (self.first, self.last);
        if first > last {
            return None;
        }
        let after = |at: u128| if at >= last { first } else { at + 1 };
        let mut at = self.next;
        for _ in 0..=occupied + 2 * self.excluded.len() {
            match self.excluded.iter().find(|(first, last)| (*first..=*last).contains(&at)) {
                Some((_, end)) => at = after((*end).min(last)),
                None if is_free(at) => {
                    self.next = after(at);
                    return Some(at);
                }
                None => at = after(at),
            }
        }
        None
    }
}

/// The addresses of one family.
#[derive(Debug)]
struct Family {
    common: Range,
    /// The first and the last address that a client can have.
    usable: (u128, u128),
    groups: HashMap<String, Range>,
    taken: HashSet<u128>,
    /// Set aside for clients of the configuration.
    reserved: HashSet<u128>,
    remembered: HashMap<String, u128>,
}

impl Family {
    fn new(first: u128, last: u128, low: u128, reserved: HashSet<u128>, groups: Vec<(&str, u128, u128)>) -> Self {
        let mut common = Range::new(first, last);
        let mut ranges = HashMap::new();
        for (name, first, end) in groups {
            let range = Range::new(first.max(low), end.min(last));
            common.excluded.push((range.first, range.last));
            ranges.insert(name.to_owned(), range);
        }
        let usable = (low, last);
        Self { common, usable, groups: ranges, taken: HashSet::new(), reserved, remembered: HashMap::new() }
    }

    /// Clients without a group's addresses get only these.
    fn limit(&mut self, first: u128, last: u128) {
        let (low, high) = self.usable;
        let excluded = std::mem::take(&mut self.common.excluded);
        self.common = Range { excluded, ..Range::new(first.max(low), last.min(high)) };
    }

    fn take(&mut self, name: &str, group: Option<&str>) -> Option<u128> {
        let Self { common, groups, taken, reserved, remembered, .. } = self;
        let range = group.and_then(|group| groups.get_mut(group)).unwrap_or(common);
        let is_free = |address: u128| !taken.contains(&address) && !reserved.contains(&address);
        let before = remembered.get(name).copied().filter(|a| range.contains(*a) && is_free(*a));
        let address = match before {
            Some(address) => address,
            None => range.find(taken.len() + reserved.len(), is_free)?,
        };
        self.taken.insert(address);
        self.remember(name, address);
        Some(address)
    }

    fn remember(&mut self, name: &str, address: u128) {
        if self.remembered.len() < REMEMBERED || self.remembered.contains_key(name) {
            self.remembered.insert(name.to_owned(), address);
        }
    }
}

/// Both families.
#[derive(Debug)]
pub struct Pool {
    four: Option<Family>,
    six: Option<Family>,
}

/// What a client was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4.
    pub four: Option<Ipv4Addr>,
    /// IPv6.
    pub six: Option<Ipv6Addr>,
}

/// No address is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

impl Pool {
    /// All addresses of the networks but the network's own, the broadcast's and ours.
    pub fn new(
        four: Option<(Ipv4Addr, u8)>,
        six: Option<(Ipv6Addr, u8)>,
        reserved: impl Iterator<Item = (Option<Ipv4Addr>, Option<Ipv6Addr>)> + Clone,
        groups: &[TunnelGroup],
    ) -> Self {
        let four = four.map(|(ours, len)| {
            let host = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
            let network = ours.to_bits() & !host;
            let mut set: HashSet<u128> =
                reserved.clone().filter_map(|(a, _)| a).map(|a| u128::from(a.to_bits())).collect();
            set.insert(u128::from(ours.to_bits()));
            let (first, last) = (u128::from(network) + 1, u128::from(network) + u128::from(host.saturating_sub(1)));
            let of_group = |group: &'_ TunnelGroup| {
                let (first, last) = group.addresses4?;
                Some((u128::from(first.to_bits()), u128::from(last.to_bits())))
            };
            let groups = groups.iter().filter_map(|g| of_group(g).map(|(first, last)| (g.name.as_str(), first, last)));
            Family::new(first, last, first, set, groups.collect())
        });
        let six = six.map(|(ours, len)| {
            let host = u128::MAX.checked_shr(u32::from(len)).unwrap_or(0);
            let network = ours.to_bits() & !host;
            let mut set: HashSet<u128> = reserved.filter_map(|(_, a)| a).map(|a| a.to_bits()).collect();
            set.insert(ours.to_bits());
            // As OpenVPN does, from 0x1000 on where there is room: the low numbers are for people.
            let first = if host > 0xffff { network + 0x1000 } else { network + 1 };
            let groups = groups.iter().filter_map(|group| {
                let (first, last) = group.addresses6?;
                Some((group.name.as_str(), first.to_bits(), last.to_bits()))
            });
            Family::new(first, network + host.saturating_sub(1), network + 1, set, groups.collect())
        });
        Self { four, six }
    }

    /// Clients without a fixed address and without a group's addresses get only these.
    pub fn limited(mut self, four: Option<(Ipv4Addr, Ipv4Addr)>, six: Option<(Ipv6Addr, Ipv6Addr)>) -> Self {
        if let (Some(family), Some((first, last))) = (&mut self.four, four) {
            family.limit(first.to_bits().into(), last.to_bits().into());
        }
        if let (Some(family), Some((first, last))) = (&mut self.six, six) {
            family.limit(first.to_bits(), last.to_bits());
        }
        self
    }

    /// Addresses for a client: the fixed ones where it has them, else its group's.
    pub fn take(&mut self, name: &str, fixed: Addresses, group: Option<&str>) -> Result<Addresses, Exhausted> {
        let four = match (fixed.four, &mut self.four) {
            (Some(four), _) => Some(four),
            (None, Some(family)) => Some(Ipv4Addr::from_bits(family.take(name, group).ok_or(Exhausted)? as u32)),
            (None, None) => None,
        };
        let six = match (fixed.six, &mut self.six) {
            (Some(six), _) => Some(six),
            (None, Some(family)) => match family.take(name, group) {
                Some(n) => Some(Ipv6Addr::from_bits(n)),
                None => {
                    self.give_back(Addresses { four, six: None });
                    return Err(Exhausted);
                }
            },
            (None, None) => None,
        };
        Ok(Addresses { four, six })
    }

    /// A client that has its addresses already.
    pub fn hold(&mut self, name: &str, addresses: Addresses) {
        for (family, address) in self.both(addresses) {
            family.taken.insert(address);
            family.remembered.insert(name.to_owned(), address);
        }
    }

    /// The client has left.
    pub fn give_back(&mut self, addresses: Addresses) {
        for (family, address) in self.both(addresses) {
            family.taken.remove(&address);
        }
    }

    /// A name is to get these addresses again, where they are free.
    pub fn remember(&mut self, name: &str, addresses: Addresses) {
        for (family, address) in self.both(addresses) {
            family.remember(name, address);
        }
    }

    /// Remembers what another pool does.
    pub fn remember_all(&mut self, other: Self) {
        for (family, other) in [(&mut self.four, other.four), (&mut self.six, other.six)] {
            if let (Some(family), Some(other)) = (family, other) {
                family.remembered = other.remembered;
            }
        }
    }

    /// Names with the addresses that they had last, in order.
    pub fn remembered(&self) -> BTreeMap<&str, Addresses> {
        let mut all = BTreeMap::<&str, Addresses>::new();
        for (name, address) in self.four.iter().flat_map(|family| &family.remembered) {
            all.entry(name).or_default().four = Some(Ipv4Addr::from_bits(*address as u32));
        }
        for (name, address) in self.six.iter().flat_map(|family| &family.remembered) {
            all.entry(name).or_default().six = Some(Ipv6Addr::from_bits(*address));
        }
        all
    }

    fn both(&mut self, addresses: Addresses) -> impl Iterator<Item = (&mut Family, u128)> {
        let four = self.four.as_mut().zip(addresses.four.map(|a| u128::from(a.to_bits())));
        four.into_iter().chain(self.six.as_mut().zip(addresses.six.map(|a| a.to_bits())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        let fixed = [(Some([10, 8, 0, 3].into()), None)];
        Pool::new(Some(([10, 8, 0, 1].into(), 29)), None, fixed.into_iter(), &[])
    }

    #[test]
    fn every_address_is_given_once() {
        let mut pool = pool();
        let got: Vec<u8> = std::iter::from_fn(|| pool.take("n", Addresses::default(), None).ok())
            .filter_map(|a| a.four.map(|a| a.octets()[3]))
            .collect();
        // 10.8.0.0/29: the network, ours, one set aside, and the broadcast are not given.
        assert_eq!(got, [2, 4, 5, 6]);
        pool.give_back(Addresses { four: Some([10, 8, 0, 5].into()), six: None });
        let again = pool.take("other", Addresses::default(), None).expect("one is free");
        assert_eq!(again.four, Some([10, 8, 0, 5].into()));
    }

    #[test]
    fn what_is_held_is_nobody_elses() {
        let mut pool = pool();
        let held = Addresses { four: Some([10, 8, 0, 2].into()), six: None };
        pool.hold("a", held);
        assert_eq!(pool.take("b", Addresses::default(), None).map(|a| a.four), Ok(Some([10, 8, 0, 4].into())));
        pool.give_back(held);
        assert_eq!(pool.take("a", Addresses::default(), None), Ok(held));
    }

    #[test]
    fn who_comes_back_gets_the_same() {
        let mut pool = pool();
        let a = pool.take("a", Addresses::default(), None).expect("free");
        let b = pool.take("b", Addresses::default(), None).expect("free");
        pool.give_back(a);
        pool.give_back(b);
        assert_eq!(pool.take("b", Addresses::default(), None), Ok(b));
        assert_eq!(pool.take("a", Addresses::default(), None), Ok(a));
        let fixed = Addresses { four: Some([10, 8, 0, 3].into()), six: None };
        assert_eq!(pool.take("c", fixed, None), Ok(fixed));
    }

    #[test]
    fn a_groups_addresses_are_its_own() {
        let range = |first: u8, last: u8| Some(([10, 8, 0, first].into(), [10, 8, 0, last].into()));
        let group = |name: &str, first, last| TunnelGroup {
            name: name.to_owned(),
            addresses4: range(first, last),
            ..TunnelGroup::default()
        };
        let groups = [group("staff", 4, 7), group("guests", 12, 15)];
        let fixed = [(Some([10, 8, 0, 6].into()), None)];
        let mut pool = Pool::new(Some(([10, 8, 0, 1].into(), 28)), None, fixed.into_iter(), &groups);
        let mut all = |name: &str, group: Option<&str>| -> Vec<u8> {
            let mut one = || pool.take(name, Addresses::default(), group).ok()?.four.map(|a| a.octets()[3]);
            std::iter::from_fn(&mut one).collect()
        };
        assert_eq!(all("a", Some("staff")), [4, 5, 7], "one is set aside");
        // The last is the broadcast's.
        assert_eq!(all("b", Some("guests")), [12, 13, 14]);
        assert_eq!(all("c", None), [2, 3, 8, 9, 10, 11]);
        assert!(all("d", Some("unknown")).is_empty(), "a group without addresses has the others'");
        // Who changes the group changes the address.
        pool.give_back(Addresses { four: Some([10, 8, 0, 7].into()), six: None });
        pool.give_back(Addresses { four: Some([10, 8, 0, 11].into()), six: None });
        let take = |pool: &mut Pool, group| pool.take("a", Addresses::default(), group).expect("free").four;
        assert_eq!(take(&mut pool, None), Some([10, 8, 0, 11].into()));
        assert_eq!(take(&mut pool, Some("staff")), Some([10, 8, 0, 7].into()));
    }

    #[test]
    fn the_pool_may_be_a_part_of_the_network() {
        let group = TunnelGroup {
            name: "staff".to_owned(),
            addresses4: Some(([10, 8, 0, 12].into(), [10, 8, 0, 13].into())),
            ..TunnelGroup::default()
        };
        let bits = |low: u128| Ipv6Addr::from_bits((0xfd_u128 << 120) + low);
        let network: (Option<(Ipv4Addr, u8)>, _) = (Some(([10, 8, 0, 1].into(), 28)), Some((bits(1), 64)));
        let four: Option<(Ipv4Addr, Ipv4Addr)> = Some(([10, 8, 0, 10].into(), [10, 8, 0, 15].into()));
        let mut pool =
            Pool::new(network.0, network.1, std::iter::empty(), &[group]).limited(four, Some((bits(1), bits(3))));
        let mut all = |group: Option<&str>| -> Vec<(u8, u128)> {
            let mut one = || {
                let got = pool.take("n", Addresses::default(), group).ok()?;
                Some((got.four?.octets()[3], got.six?.to_bits() & 0xffff))
            };
            std::iter::from_fn(&mut one).collect()
        };
        // The network's own IPv6 address is not given, so there are two; and low ones, where the pool says so.
        assert_eq!(all(None), [(10, 2), (11, 3)]);
        assert!(all(Some("staff")).is_empty(), "no IPv6 address is left");
        let fixed = Addresses { four: Some([10, 8, 0, 2].into()), six: Some(bits(0x99)) };
        assert_eq!(pool.take("fixed", fixed, None), Ok(fixed));
        let mut pool = Pool::new(network.0, None, std::iter::empty(), &[]).limited(four, None);
        // What the name had before the pool was made smaller is not given again.
        pool.remember("a", Addresses { four: Some([10, 8, 0, 5].into()), six: None });
        let all: Vec<u8> =
            std::iter::from_fn(|| Some(pool.take("a", Addresses::default(), None).ok()?.four?.octets()[3])).collect();
        // The last is the broadcast's.
        assert_eq!(all, [10, 11, 12, 13, 14]);
    }

    #[test]
    fn names_are_remembered_in_another_pool() {
        let mut before = pool();
        let a = before.take("a", Addresses::default(), None).expect("free");
        let b = before.take("b", Addresses::default(), None).expect("free");
        assert_eq!(before.remembered().into_iter().collect::<Vec<_>>(), [("a", a), ("b", b)]);
        let mut after = pool();
        after.remember_all(before);
        after.remember("c", a);
        assert_eq!(after.take("b", Addresses::default(), None), Ok(b));
        assert_eq!(after.take("c", Addresses::default(), None), Ok(a));
        assert_ne!(after.take("a", Addresses::default(), None), Ok(a), "somebody else has it");
    }
}
