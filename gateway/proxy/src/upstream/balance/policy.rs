//! The policies, as functions over weights and loads.

use sealane_http::{Fields, Known};
use sealane_route::cookies;
use std::net::IpAddr;

/// How a group's servers share the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// In turn, by weight.
    #[default]
    RoundRobin,
    /// The one with the fewest requests under way for its weight, as far as the lane knows.
    LeastConnections,
    /// Two are drawn, the less loaded gets it.
    RandomTwo,
    /// By the request's [`HashKey`]; requests without one go in turn.
    Hash,
}

/// What [`Balance::Hash`] goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// The client's address.
    Address,
    /// A field's first value.
    Field(String),
    /// A cookie.
    Cookie(String),
}

/// Clients stick to the server that they were given first, by a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// The cookie's name.
    pub cookie: String,
}

/// A finaliser with full avalanche (the one of SplitMix64).
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Weighted rendezvous hashing: each server draws a number from the key and its own identity, and the highest (for its
/// weight) wins. When a server comes or goes, only its own keys move.
pub(super) fn rendezvous(key: u64, servers: impl Iterator<Item = (usize, u64, u32)>) -> Option<usize> {
    let score = |identity: u64, weight: u32| {
        // In (0, 1): never the logarithm of 0.
        let draw = ((mix(key ^ identity) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -f64::from(weight) / draw.ln()
    };
    servers.map(|(i, id, w)| (i, score(id, w))).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
}

/// Smooth weighted round robin: each is owed its weight, the one that is owed most gets the turn and pays the sum.
pub(super) fn owed_most(owed: &mut [i64], servers: impl Iterator<Item = (usize, u32)>) -> Option<usize> {
    let (mut sum, mut best) = (0, None);
    for (i, weight) in servers {
        let weight = i64::from(weight);
        sum += weight;
        // A server that was not usable for a while does not return with a debt or a claim of more than one round.
        owed[i] = (owed[i] + weight).clamp(-(1 << 40), 1 << 40);
        if best.is_none_or(|b: usize| owed[i] > owed[b]) {
            best = Some(i);
        }
    }
    owed[best?] -= sum;
    best
}

/// The fewest under way for the weight; the first of equals.
pub(super) fn least_loaded(servers: impl Iterator<Item = (usize, u32, u32)>) -> Option<usize> {
    let mut best: Option<(usize, u64, u64)> = None;
    for (i, active, weight) in servers {
        let (load, weight) = (u64::from(active) + 1, u64::from(weight));
        // load / weight < best's, without fractions.
        if best.is_none_or(|(_, l, w)| load * w < l * weight) {
            best = Some((i, load, weight));
        }
    }
    best.map(|(i, ..)| i)
}

/// One drawn by weight.
pub(super) fn random(state: &mut u64, servers: impl Iterator<Item = (usize, u32)> + Clone) -> Option<usize> {
    let sum: u64 = servers.clone().map(|(_, w)| u64::from(w)).sum();
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut at = mix(*state).checked_rem(sum)?;
    let mut servers = servers;
    servers
        .find(|(_, weight)| {
            let hit = at < u64::from(*weight);
            at = at.saturating_sub(u64::from(*weight));
            hit
        })
        .map(|(i, _)| i)
}

/// A cookie's value among a request's fields (RFC 6265 §5.4).
pub(crate) fn cookie<'f>(fields: &'f Fields, name: &str) -> Option<&'f [u8]> {
    let mut all = fields.all(Known::Cookie).flat_map(cookies);
    all.find_map(|(own, value)| (own == name.as_bytes()).then_some(value))
}

/// The value that a [`HashKey`] names, where it is one of the request's fields.
fn fields_value<'f>(key: &HashKey, fields: &'f Fields) -> Option<&'f [u8]> {
    match key {
        HashKey::Address => None,
        HashKey::Field(name) => fields.alike(name.as_bytes()).next(),
        HashKey::Cookie(name) => cookie(fields, name),
    }
}

/// The hash of what a key names in a request.
pub(crate) fn hash_of(key: &HashKey, fields: &Fields, peer: IpAddr) -> Option<u64> {
    match key {
        HashKey::Address => Some(hash_of_address(peer)),
        key => fields_value(key, fields).map(hash_bytes),
    }
}

/// The hash of a client's address.
pub(crate) fn hash_of_address(client: IpAddr) -> u64 {
    match client.to_canonical() {
        IpAddr::V4(ip) => mix(u64::from(u32::from(ip))),
        IpAddr::V6(ip) => mix(u128::from(ip) as u64 ^ mix((u128::from(ip) >> 64) as u64)),
    }
}

/// FNV-1a, mixed: for choosing servers, not against those who would choose collisions.
fn hash_bytes(bytes: &[u8]) -> u64 {
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_found() {
        let mut fields = Fields::new();
        fields.push(b"Cookie", b"a=1; bb=two; c=\"x;").unwrap();
        fields.push(b"cookie", b"d=4").unwrap();
        let find = |name| cookie(&fields, name).map(|v| String::from_utf8_lossy(v).into_owned());
        assert_eq!(find("a").as_deref(), Some("1"));
        assert_eq!(find("bb").as_deref(), Some("two"));
        assert_eq!(find("d").as_deref(), Some("4"));
        assert_eq!((find("b"), find("e")), (None, None));
    }
}
