//! Access rules by address: which clients `allow` and `deny` let in.
//!
//! A lookup is a binary search in sorted ranges: 100,000 blocks cost 17 comparisons, and no allocation.

use crate::proxies::Cidr;
use std::net::IpAddr;
use std::sync::Arc;

/// The first and the last address of a range.
type Range<N> = (N, N);

/// A set of addresses: sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    v4: Box<[Range<u32>]>,
    v6: Box<[Range<u128>]>,
}

impl FromIterator<Cidr> for AddressSet {
    fn from_iter<I: IntoIterator<Item = Cidr>>(blocks: I) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for block in blocks {
            match block.range() {
                (IpAddr::V4(first), IpAddr::V4(last)) => v4.push((u32::from(first), u32::from(last))),
                (IpAddr::V6(first), IpAddr::V6(last)) => v6.push((u128::from(first), u128::from(last))),
                _ => {}
            }
        }
        Self { v4: merged(v4, |last| last.checked_add(1)), v6: merged(v6, |last| last.checked_add(1)) }
    }
}

impl AddressSet {
    /// Whether an address is in the set. `::ffff:192.0.2.1` is `192.0.2.1`.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(ip) => is_within(&self.v4, u32::from(ip)),
            IpAddr::V6(ip) => is_within(&self.v6, u128::from(ip)),
        }
    }

    /// The number of ranges: at most the number of blocks that the set was made of.
    pub fn ranges(&self) -> usize {
        self.v4.len() + self.v6.len()
    }
}

/// Sorts ranges and joins those that overlap or touch. `next`: the number after another one.
fn merged<N: Copy + Ord>(mut ranges: Vec<Range<N>>, next: impl Fn(N) -> Option<N>) -> Box<[Range<N>]> {
    ranges.sort_unstable();
    let mut out: Vec<Range<N>> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match out.last_mut() {
            Some(before) if next(before.1).is_none_or(|next| first <= next) => before.1 = before.1.max(last),
            _ => out.push((first, last)),
        }
    }
    out.into()
}

fn is_within<N: Copy + Ord>(ranges: &[Range<N>], n: N) -> bool {
    let behind = ranges.partition_point(|(first, _)| *first <= n);
    behind > 0 && ranges[behind - 1].1 >= n
}

/// One access rule: the `allow` and `deny` of a listener, a host or a route.
#[derive(Clone, Debug, Default)]
pub struct AccessRule {
    /// Only addresses in one of these sets are let in; `None`: all are.
    pub allow: Option<Box<[Arc<AddressSet>]>>,
    /// Addresses in one of these sets are refused, even if `allow` names them, too.
    pub deny: Box<[Arc<AddressSet>]>,
}

impl AccessRule {
    /// Whether a client with this address is let in.
    pub fn permits(&self, ip: IpAddr) -> bool {
        let is_in = |sets: &[Arc<AddressSet>]| sets.iter().any(|set| set.contains(ip));
        !is_in(&self.deny) && self.allow.as_ref().is_none_or(|sets| is_in(sets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn set(blocks: &[&str]) -> AddressSet {
        blocks.iter().map(|b| b.parse::<Cidr>().unwrap()).collect()
    }

    #[test]
    fn ranges_are_joined() {
        let one = set(&["10.0.0.0/9", "10.128.0.0/9", "10.1.2.3", "0.0.0.0/8"]);
        assert_eq!(one.ranges(), 2);
        for (ip, is_in) in [
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("0.0.0.0", true),
            ("::ffff:10.1.1.1", true),
            ("::a01:101", false),
        ] {
            assert_eq!(one.contains(ip.parse().unwrap()), is_in, "{ip}");
        }
        let all = set(&["0.0.0.0/0", "255.255.255.255", "::/0", "ffff::/16"]);
        assert_eq!(all.ranges(), 2);
        for ip in ["0.0.0.0", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"] {
            assert!(all.contains(ip.parse().unwrap()), "{ip}");
        }
        assert!(!AddressSet::default().contains(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    }

    /// A block that is written as an IPv4-mapped IPv6 address is a block of IPv4 addresses: clients come with those.
    #[test]
    fn mapped_blocks_are_ipv4_blocks() {
        let mapped = set(&["::ffff:192.0.2.0/120"]);
        assert!(mapped.contains("192.0.2.9".parse().unwrap()));
        assert!(mapped.contains("::ffff:192.0.2.9".parse().unwrap()));
        assert!(!mapped.contains("192.0.3.9".parse().unwrap()));
    }

    /// The set says for every address what going through its blocks says.
    #[test]
    fn a_set_is_the_union_of_its_blocks() {
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..300 {
            // Few bits differ, so that blocks overlap, touch and contain each other.
            let blocks: Vec<Cidr> = (0..12)
                .map(|_| {
                    let (bits, length) = ((random() % 256) as u32, (random() % 9) as u32);
                    let bits = bits & !(0xff_u32.checked_shr(length).unwrap_or(0));
                    let text = match random() % 2 {
                        0 => format!("{}/{}", Ipv4Addr::from(bits), 24 + length),
                        _ => format!("{}/{}", Ipv6Addr::from(u128::from(bits)), 120 + length),
                    };
                    text.parse().unwrap_or_else(|e| panic!("{text}: {e:?}"))
                })
                .collect();
            let set: AddressSet = blocks.iter().copied().collect();
            for bits in 0..300u32 {
                for ip in [IpAddr::V4(Ipv4Addr::from(bits)), IpAddr::V6(Ipv6Addr::from(u128::from(bits)))] {
                    assert_eq!(set.contains(ip), blocks.iter().any(|b| b.contains(ip)), "{ip} {blocks:?}");
                }
            }
        }
    }

    /// What a list of 100,000 blocks costs a request: 17 comparisons, whatever the address.
    #[test]
    fn a_long_list_costs_a_request_little() {
        // Every second address, so that no two blocks are joined.
        let ranges: Vec<Range<Counting>> = (0..100_000).map(|n| (Counting(2 * n), Counting(2 * n))).collect();
        for (n, is_in) in [(0, true), (1, false), (77_776, true), (77_777, false), (199_998, true), (u32::MAX, false)] {
            COMPARISONS.set(0);
            assert_eq!(is_within(&ranges, Counting(n)), is_in, "{n}");
            assert!(COMPARISONS.get() <= 20, "{} for {n}", COMPARISONS.get());
        }
        // A set is such ranges and nothing else.
        let set: AddressSet =
            (0..100_000u32).map(|n| Ipv4Addr::from(2 * n).to_string().parse::<Cidr>().unwrap()).collect();
        assert_eq!(set.ranges(), 100_000);
    }

    thread_local! {
        static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    /// A number that counts how often it is compared.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Counting(u32);

    impl Ord for Counting {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counting {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }

    #[test]
    fn what_is_denied_is_denied_whatever_is_allowed() {
        let sets = |blocks: &[&str]| Box::new([Arc::new(set(blocks))]) as Box<[_]>;
        let permits = |rule: &AccessRule, ip: &str| rule.permits(ip.parse().unwrap());
        let both = AccessRule { allow: Some(sets(&["10.0.0.0/8"])), deny: sets(&["10.1.0.0/16", "192.0.2.0/24"]) };
        assert!(permits(&both, "10.0.0.1") && permits(&both, "::ffff:10.0.0.1"));
        assert!(!permits(&both, "10.1.0.1") && !permits(&both, "192.0.2.1") && !permits(&both, "198.51.100.1"));
        let deny = AccessRule { allow: None, deny: sets(&["10.0.0.0/8"]) };
        assert!(permits(&deny, "::1") && !permits(&deny, "10.0.0.1"));
        let nobody = AccessRule { allow: Some(Box::new([])), deny: Box::new([]) };
        assert!(!permits(&nobody, "10.0.0.1"));
    }
}
