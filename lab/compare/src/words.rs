//! Addresses, names and sizes in the words of a configuration.

use crate::tree::{Node, walk};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What a configuration names.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Addresses that stand by themselves or with a port.
    pub addresses: BTreeSet<IpAddr>,
    /// Words that may be names of hosts, in lower case.
    pub hosts: BTreeSet<String>,
}

impl Named {
    /// Of all words of a configuration.
    pub fn of(tree: &[Node]) -> Self {
        let mut out = Self::default();
        walk(tree, &mut |node| node.words.iter().for_each(|word| out.add(word)));
        out
    }

    /// Adds what a word names.
    pub fn add(&mut self, word: &str) {
        // What is in brackets is an address of IPv6.
        let mut rest = word;
        while let Some((_, behind)) = rest.split_once('[') {
            let (inside, after) = behind.split_once(']').unwrap_or((behind, ""));
            if let Ok(address) = inside.parse::<IpAddr>() {
                self.addresses.insert(address);
            }
            rest = after;
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        for part in word.split(|c: char| !is_part(c)) {
            let part = part.trim_matches('.');
            match part.parse::<IpAddr>() {
                // A network, such as 10.0.0.0/8, is no address that somebody has.
                Ok(_) if word.contains(&format!("{part}/")) && !word.contains("://") => {}
                Ok(address) => {
                    self.addresses.insert(address);
                }
                Err(_) if part.is_empty() || part.len() > 253 || part.bytes().all(|b| b.is_ascii_digit()) => {}
                Err(_) => {
                    self.hosts.insert(part.to_ascii_lowercase());
                }
            }
        }
    }

    /// The names that a certificate can have.
    pub fn dns_names(&self) -> impl Iterator<Item = &String> {
        self.hosts.iter().filter(|h| h.contains('.') && is_dns_name(h))
    }
}

/// Whether a text is a name of a host, without `*`.
pub fn is_dns_name(text: &str) -> bool {
    let label = |l: &str| {
        !l.is_empty()
            && l.len() < 64
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    !text.is_empty() && text.len() < 254 && text.split('.').all(label)
}

/// An address in a network such as `10.0.0.0/8`, and one beside it.
pub fn in_and_out(network: &str) -> Option<(IpAddr, IpAddr)> {
    let (address, length) = network.split_once('/').unwrap_or((network, ""));
    // Sources of other families are not tried.
    let IpAddr::V4(address) = address.parse().ok()? else { return None };
    let length: u32 = if length.is_empty() { 32 } else { length.parse().ok()? };
    if length > 32 {
        return None;
    }
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    let bits = u32::from(address);
    // Neither the network's own number nor its last one; a host is itself.
    let inside = if length >= 31 { bits } else { (bits & mask) | (!mask & 0x00fe_fefe).max(1) };
    let outside = match length {
        0 => inside,
        // 127.0.0.0 and 10.0.0.255 may not be addresses of clients.
        32 if matches!((inside ^ 1) & 0xff, 0 | 0xff) => inside ^ 2,
        _ => inside ^ (1 << (32 - length)),
    };
    Some((IpAddr::V4(inside.into()), IpAddr::V4(outside.into())))
}

/// A size such as `20m`.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        (at, 'g' | 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_found_and_networks_are_not() {
        let mut named = Named::default();
        for word in ["http://10.0.0.1:3000/x", "[2001:db8::1]:80", "10.9.0.0/8", "sni", "str(admin.internal)", "8080"] {
            named.add(word);
        }
        let addresses: Vec<String> = named.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "2001:db8::1"]);
        assert!(named.hosts.contains("admin.internal") && !named.hosts.contains("8080"), "{named:?}");
    }

    #[test]
    fn a_network_has_an_inside_and_an_outside() {
        let text = |n: &str| in_and_out(n).map(|(i, o)| format!("{i} {o}"));
        assert_eq!(text("10.0.0.0/8").as_deref(), Some("10.254.254.254 11.254.254.254"));
        assert_eq!(text("192.0.2.7").as_deref(), Some("192.0.2.7 192.0.2.6"));
        assert_eq!(text("127.0.0.1").as_deref(), Some("127.0.0.1 127.0.0.3"));
        assert_eq!(text("0.0.0.0/40"), None);
        assert_eq!(text("fd00::/8"), None);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([size("20m"), size("1K"), size("7"), size("x")], [Some(20 << 20), Some(1024), Some(7), None]);
    }
}
