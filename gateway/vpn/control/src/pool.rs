//! Addresses for clients. One that comes back gets the address it had, as long as nobody else needs it.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Names that are remembered with their addresses.
const REMEMBERED: usize = 65_536;

/// The addresses of one family, as numbers.
#[derive(Debug)]
struct Range {
    first: u128,
    last: u128,
    next: u128,
    taken: HashSet<u128>,
    /// Set aside for clients of the configuration.
    reserved: HashSet<u128>,
    remembered: HashMap<String, u128>,
}

impl Range {
    fn new(first: u128, last: u128, reserved: HashSet<u128>) -> Self {
        Self { first, last, next: first, taken: HashSet::new(), reserved, remembered: HashMap::new() }
    }

    fn is_free(&self, address: u128) -> bool {
        (self.first..=self.last).contains(&address)
            && !self.taken.contains(&address)
            && !self.reserved.contains(&address)
    }

    fn take(&mut self, name: &str) -> Option<u128> {
        let before = self.remembered.get(name).copied().filter(|a| self.is_free(*a));
        let address = match before {
            Some(address) => address,
            None => {
                // Onwards from the last one given, so that an address rests before it is given to another; at most
                // once around what is taken or set aside.
                let tries = (self.taken.len() + self.reserved.len()) as u128 + 1;
                let size = self.last.checked_sub(self.first)?.saturating_add(1);
                let mut candidates = (0..tries.min(size)).map(|n| {
                    let at = self.next - self.first;
                    self.first + (at + n) % size
                });
                let found = candidates.find(|a| self.is_free(*a))?;
                self.next = if found == self.last { self.first } else { found + 1 };
                found
            }
        };
        self.taken.insert(address);
        if self.remembered.len() < REMEMBERED || self.remembered.contains_key(name) {
            self.remembered.insert(name.to_owned(), address);
        }
        Some(address)
    }
}

/// Both families.
#[derive(Debug)]
pub struct Pool {
    four: Option<Range>,
    six: Option<Range>,
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
    ) -> Self {
        let four = four.map(|(ours, len)| {
            let host = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
            let network = ours.to_bits() & !host;
            let mut set: HashSet<u128> =
                reserved.clone().filter_map(|(a, _)| a).map(|a| u128::from(a.to_bits())).collect();
            set.insert(u128::from(ours.to_bits()));
            Range::new(u128::from(network) + 1, u128::from(network) + u128::from(host.saturating_sub(1)), set)
        });
        let six = six.map(|(ours, len)| {
            let host = u128::MAX.checked_shr(u32::from(len)).unwrap_or(0);
            let network = ours.to_bits() & !host;
            let mut set: HashSet<u128> = reserved.filter_map(|(_, a)| a).map(|a| a.to_bits()).collect();
            set.insert(ours.to_bits());
            // As OpenVPN does, from 0x1000 on where there is room: the low numbers are for people.
            let first = if host > 0xffff { network + 0x1000 } else { network + 1 };
            Range::new(first, network + host.saturating_sub(1), set)
        });
        Self { four, six }
    }

    /// Addresses for a client: the fixed ones where it has them.
    pub fn take(&mut self, name: &str, fixed: Addresses) -> Result<Addresses, Exhausted> {
        let four = match (fixed.four, &mut self.four) {
            (Some(four), _) => Some(four),
            (None, Some(range)) => Some(Ipv4Addr::from_bits(range.take(name).ok_or(Exhausted)? as u32)),
            (None, None) => None,
        };
        let six = match (fixed.six, &mut self.six) {
            (Some(six), _) => Some(six),
            (None, Some(range)) => match range.take(name) {
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
        let four = addresses.four.map(|a| u128::from(a.to_bits()));
        let six = addresses.six.map(|a| a.to_bits());
        for (range, address) in [(&mut self.four, four), (&mut self.six, six)] {
            if let (Some(range), Some(address)) = (range, address) {
                range.taken.insert(address);
                range.remembered.insert(name.to_owned(), address);
            }
        }
    }

    /// The client has left.
    pub fn give_back(&mut self, addresses: Addresses) {
        if let (Some(range), Some(four)) = (&mut self.four, addresses.four) {
            range.taken.remove(&u128::from(four.to_bits()));
        }
        if let (Some(range), Some(six)) = (&mut self.six, addresses.six) {
            range.taken.remove(&six.to_bits());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        let fixed = [(Some([10, 8, 0, 3].into()), None)];
        Pool::new(Some(([10, 8, 0, 1].into(), 29)), None, fixed.into_iter())
    }

    #[test]
    fn every_address_is_given_once() {
        let mut pool = pool();
        let got: Vec<u8> = std::iter::from_fn(|| pool.take("n", Addresses::default()).ok())
            .filter_map(|a| a.four.map(|a| a.octets()[3]))
            .collect();
        // 10.8.0.0/29: the network, ours, one set aside, and the broadcast are not given.
        assert_eq!(got, [2, 4, 5, 6]);
        pool.give_back(Addresses { four: Some([10, 8, 0, 5].into()), six: None });
        let again = pool.take("other", Addresses::default()).expect("one is free");
        assert_eq!(again.four, Some([10, 8, 0, 5].into()));
    }

    #[test]
    fn what_is_held_is_nobody_elses() {
        let mut pool = pool();
        let held = Addresses { four: Some([10, 8, 0, 2].into()), six: None };
        pool.hold("a", held);
        assert_eq!(pool.take("b", Addresses::default()).map(|a| a.four), Ok(Some([10, 8, 0, 4].into())));
        pool.give_back(held);
        assert_eq!(pool.take("a", Addresses::default()), Ok(held));
    }

    #[test]
    fn who_comes_back_gets_the_same() {
        let mut pool = pool();
        let a = pool.take("a", Addresses::default()).expect("free");
        let b = pool.take("b", Addresses::default()).expect("free");
        pool.give_back(a);
        pool.give_back(b);
        assert_eq!(pool.take("b", Addresses::default()), Ok(b));
        assert_eq!(pool.take("a", Addresses::default()), Ok(a));
        let fixed = Addresses { four: Some([10, 8, 0, 3].into()), six: None };
        assert_eq!(pool.take("c", fixed), Ok(fixed));
    }
}
