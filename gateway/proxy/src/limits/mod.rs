//! Rates that lanes hold together: requests, connections and handshakes per client, name or field.
//!
//! A lane decides alone, from a bounded table of its own (`table`). What it has let pass it tells the other lanes
//! every `share_ms` by their mailboxes, and they take that off their own buckets. So with `n` lanes, rate `r` and
//! burst `b`, what passes in any time `t` is at most `r·t + b` as one lane sees it, and `(n − 1)·(b + r·share_ms)` more
//! when a client that was unknown to all of them comes to all of them at once: each lane's bucket is full until the
//! others have spoken. What passed too much is a debt in every lane, so the rate over a longer time is exactly `r`.
//!
//! Gateways that share a store hold rates together in the same way (`shared`).

mod clients;
mod lane;
mod shared;
mod table;

pub use clients::{ClientCounts, ConcurrencyLimit};
pub(crate) use clients::{Counted, CountedBy};
pub use lane::Passed;
pub(crate) use lane::{LaneLimits, RATES_TIMER};
pub use shared::{Level, Levels, SharedRates};
pub use table::Use;

use sealane_http::Fields;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

/// A few lanes tell each other this often what they have let pass.
const SHARE_MS: u64 = 100;
/// How many lanes are few.
const FEW_LANES: usize = 16;

/// How often lanes tell each other what they have let pass. Each lane tells every other one: where there are more lanes, they do it
/// less often, so that a lane has the same work for it however many there are.
pub(crate) fn share_ms(lanes: usize) -> u64 {
    SHARE_MS * lanes.div_ceil(FEW_LANES).max(1) as u64
}

/// Most keys in one telling; the rest is told the next time.
pub(crate) const SHARE_KEYS: usize = 4096;

/// Most values of a field by which one request counts. A client sends one, and proxies on the way may add a few. Each value takes an entry
/// in the tables of all lanes, and in the store: a request with `max_header_fields` values would evict the entries of a hundred clients.
const MAX_VALUES: usize = 8;

/// A rate, and how much of it may come at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In which time.
    pub per: Duration,
    /// How many at once.
    pub burst: u32,
}

/// What requests are counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateKey {
    /// The client's address, cut to the prefix.
    Address,
    /// The name that the client asked for in its hello; plain connections are counted by the request's host.
    ServerName,
    /// The values of a field, in every spelling of its name: a request counts for each of them, and one without any is not counted. One
    /// with more than a few is refused.
    Field(String),
}

impl RateKey {
    /// Whether a request has more values to be counted by than a request may have.
    pub(crate) fn has_too_many_values(&self, fields: &Fields) -> bool {
        match self {
            Self::Address | Self::ServerName => false,
            Self::Field(name) => fields.alike(name.as_bytes()).nth(MAX_VALUES).is_some(),
        }
    }
}

/// One limit. The same for all lanes, so that what one says of a key is understood by the others.
#[derive(Clone, Debug)]
pub struct RateLimit {
    /// For logs and metrics, and by which lanes tell limits apart.
    pub name: String,
    /// What is counted.
    pub key: RateKey,
    /// How many of it.
    pub rate: Rate,
    /// Bits of an IPv4 address that count.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that count.
    pub ipv6_prefix: u8,
    /// Keys that each lane remembers.
    pub entries: usize,
    /// Clients that are not counted: the index of a rule that lets in these alone.
    pub exempt: Option<usize>,
    /// Seeded by control, the same in all lanes: a client cannot choose keys that collide.
    pub hasher: KeyHasher,
}

/// Hashes addresses, names and fields.
#[derive(Clone)]
pub enum KeyHasher {
    /// Of this process alone.
    Own(RandomState),
    /// The same in all gateways that have this key: SipHash-2-4.
    Fleet([u64; 2]),
}

impl fmt::Debug for KeyHasher {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::Fleet(_) => "Fleet",
        })
    }
}

impl KeyHasher {
    /// Whether both make the same keys. A process has one of its own.
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own(_), Self::Own(_)) => true,
            (Self::Fleet(a), Self::Fleet(b)) => a == b,
            _ => false,
        }
    }

    #[expect(deprecated, reason = "the standard library has no other SipHash whose key can be chosen")]
    fn hash(&self, kind: u8, bytes: &[u8]) -> u64 {
        match self {
            Self::Own(state) => state.hash_one((kind, bytes)),
            Self::Fleet([a, b]) => {
                let mut hasher = std::hash::SipHasher::new_with_keys(*a, *b);
                hasher.write(&[kind]);
                hasher.write(bytes);
                hasher.finish()
            }
        }
    }
}

impl RateLimit {
    /// The key of an address.
    pub(crate) fn address_key(&self, address: IpAddr) -> u64 {
        let (kind, kept) = match address.to_canonical() {
            IpAddr::V4(ip) => (4, cut(u128::from(u32::from(ip)), 32, self.ipv4_prefix)),
            IpAddr::V6(ip) => (6, cut(u128::from(ip), 128, self.ipv6_prefix)),
        };
        self.hasher.hash(kind, &kept.to_be_bytes())
    }

    /// The key of a name or a field's value.
    pub(crate) fn text_key(&self, text: &[u8]) -> u64 {
        self.hasher.hash(0, text)
    }
}

/// Keeps the first `prefix` of `bits` bits.
fn cut(address: u128, bits: u32, prefix: u8) -> u128 {
    match bits.saturating_sub(u32::from(prefix)) {
        0 => address,
        128 => 0,
        low => address >> low << low,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_count_by_prefix() {
        let limit = |v4, v6| RateLimit {
            name: String::new(),
            key: RateKey::Address,
            rate: Rate { count: 1, per: Duration::from_secs(1), burst: 1 },
            ipv4_prefix: v4,
            ipv6_prefix: v6,
            entries: 1,
            exempt: None,
            hasher: KeyHasher::Own(RandomState::new()),
        };
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let l = limit(24, 64);
        assert_eq!(l.address_key(ip("192.0.2.1")), l.address_key(ip("192.0.2.255")));
        assert_ne!(l.address_key(ip("192.0.2.1")), l.address_key(ip("192.0.3.1")));
        assert_eq!(l.address_key(ip("192.0.2.1")), l.address_key(ip("::ffff:192.0.2.1")));
        assert_eq!(l.address_key(ip("2001:db8::1")), l.address_key(ip("2001:db8::ffff:1")));
        assert_ne!(l.address_key(ip("2001:db8::1")), l.address_key(ip("2001:db8:0:1::1")));
        let all = limit(0, 0);
        assert_eq!(all.address_key(ip("1.2.3.4")), all.address_key(ip("255.2.3.4")));
        assert_eq!(all.address_key(ip("::1")), all.address_key(ip("ffff::1")));
        let one = limit(32, 128);
        assert_ne!(one.address_key(ip("1.2.3.4")), one.address_key(ip("1.2.3.5")));
    }

    #[test]
    fn a_request_counts_by_a_few_values() {
        let key = RateKey::Field("X-Key".to_owned());
        let mut fields = Fields::new();
        for n in 1..=2 * MAX_VALUES {
            let name: &[u8] = if n % 2 == 0 { b"x_key" } else { b"X-Key" };
            fields.push(name, n.to_string().as_bytes()).unwrap();
            fields.push(b"X-Other", b"1").unwrap();
            assert_eq!(key.has_too_many_values(&fields), n > MAX_VALUES, "{n}");
        }
        assert!(!RateKey::Address.has_too_many_values(&fields) && !RateKey::ServerName.has_too_many_values(&fields));
    }

    /// All lanes together tell each other in proportion to their number, not to its square.
    #[test]
    fn the_work_of_a_lane_does_not_grow_with_the_number_of_lanes() {
        assert_eq!((share_ms(1), share_ms(16), share_ms(17), share_ms(64)), (100, 100, 200, 400));
        for lanes in 1..=1024 {
            let messages_per_second = (lanes as u64 - 1) * 1000 / share_ms(lanes);
            assert!(messages_per_second <= 160, "{lanes} lanes: {messages_per_second}");
        }
    }

    /// Gateways of other versions and on other machines make the same keys.
    #[test]
    fn gateways_with_one_secret_make_the_same_keys() {
        let hasher = KeyHasher::Fleet([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        // The example of the paper on SipHash, appendix A: the bytes from 0 to 14.
        let bytes: Vec<u8> = (1..15).collect();
        assert_eq!(hasher.hash(0, &bytes), 0xa129_ca61_49be_45e5);
        assert!(hasher.same(&hasher.clone()) && !hasher.same(&KeyHasher::Fleet([0, 0])));
        assert_eq!(format!("{hasher:?}"), "Fleet", "never the key");
    }
}
