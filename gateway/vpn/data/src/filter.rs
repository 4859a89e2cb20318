//! Access lists: what a peer may reach.
//!
//! A list looks at packets from its peer, by destination, protocol and port. It keeps no state, and packets to the peer pass. The
//! first rule that applies decides; where none applies, the list's own word does.
//!
//! A rule with a protocol or ports cannot tell everything of a fragment, or of a packet with IPv6 extension headers: then a rule that
//! denies applies, and one that allows does not.

use crate::plane::Prefix;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Rules of one list: a packet may be compared with all of them.
pub const MAX_RULES: usize = 256;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP6: u8 = 58;

/// Which packets of an address a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// All.
    Any,
    /// TCP to ports from the first to the last.
    Tcp(u16, u16),
    /// UDP to ports from the first to the last.
    Udp(u16, u16),
    /// ICMP, or ICMPv6 for an IPv6 network.
    Icmp,
}

/// A destination: `10.1.0.0/16`, `10.1.0.5 tcp 443`, `fd00::/8 udp 1000-2000`, `10.1.0.0/16 icmp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Addresses.
    pub network: Prefix,
    /// What of them.
    pub protocol: Protocol,
}

impl FromStr for Destination {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split_ascii_whitespace();
        let network = words.next().ok_or(())?.parse()?;
        let (protocol, ports) = (words.next(), words.next());
        if words.next().is_some() {
            return Err(());
        }
        let ports = match ports {
            None => (0, u16::MAX),
            Some(ports) => {
                let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
                let (first, last): (u16, u16) = (first.parse().map_err(drop)?, last.parse().map_err(drop)?);
                if first == 0 || first > last {
                    return Err(());
                }
                (first, last)
            }
        };
        let protocol = match protocol {
            None => Protocol::Any,
            Some("tcp") => Protocol::Tcp(ports.0, ports.1),
            Some("udp") => Protocol::Udp(ports.0, ports.1),
            Some("icmp") if ports == (0, u16::MAX) => Protocol::Icmp,
            Some(_) => return Err(()),
        };
        Ok(Self { network, protocol })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.network)?;
        match self.protocol {
            Protocol::Any => Ok(()),
            Protocol::Icmp => f.write_str(" icmp"),
            Protocol::Tcp(0, u16::MAX) => f.write_str(" tcp"),
            Protocol::Udp(0, u16::MAX) => f.write_str(" udp"),
            Protocol::Tcp(first, last) => write!(f, " tcp {first}-{last}"),
            Protocol::Udp(first, last) => write!(f, " udp {first}-{last}"),
        }
    }
}

/// Bits of an address that are compared, and what they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule<A> {
    network: A,
    mask: A,
    protocol: Protocol,
    allows: bool,
}

/// An access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    v4: Vec<Rule<u32>>,
    v6: Vec<Rule<u128>>,
    /// What is not named may pass.
    open: bool,
    /// As it was made, for its text.
    deny: Vec<Destination>,
    allow: Option<Vec<Destination>>,
}

/// What is known of a packet's transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Protocol, and the port where it has ports.
    All(u8, u16),
    /// The protocol, but no port.
    Protocol(u8),
    /// Nothing.
    Nothing,
}

impl Filter {
    /// `deny` is looked at first. With `allow`, nothing else passes. `None`: more than [`MAX_RULES`].
    pub fn new(deny: Vec<Destination>, allow: Option<Vec<Destination>>) -> Option<Self> {
        let mut filter = Self { v4: Vec::new(), v6: Vec::new(), open: allow.is_none(), deny: Vec::new(), allow: None };
        let rules = deny.iter().map(|d| (d, false)).chain(allow.iter().flatten().map(|d| (d, true)));
        for (Destination { network, protocol }, allows) in rules {
            let (len, protocol) = (u32::from(network.len()), *protocol);
            match network.address() {
                IpAddr::V4(a) => {
                    let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
                    filter.v4.push(Rule { network: a.to_bits(), mask, protocol, allows });
                }
                IpAddr::V6(a) => {
                    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
                    filter.v6.push(Rule { network: a.to_bits(), mask, protocol, allows });
                }
            }
        }
        (filter.deny, filter.allow) = (deny, allow);
        (filter.v4.len() + filter.v6.len() <= MAX_RULES).then_some(filter)
    }

    /// Whether an IP packet to this destination may pass. Without memory of its own, for every packet.
    #[inline]
    pub(crate) fn admits(&self, packet: &[u8], destination: IpAddr) -> bool {
        match destination {
            IpAddr::V4(a) => {
                let bits = a.to_bits();
                self.decide(self.v4.iter().filter(|rule| bits & rule.mask == rule.network), || seen4(packet), ICMP)
            }
            IpAddr::V6(a) => {
                let bits = a.to_bits();
                self.decide(self.v6.iter().filter(|rule| bits & rule.mask == rule.network), || seen6(packet), ICMP6)
            }
        }
    }

    fn decide<'r, A: 'r>(&self, rules: impl Iterator<Item = &'r Rule<A>>, look: impl Fn() -> Seen, icmp: u8) -> bool {
        for rule in rules {
            let (number, first, last) = match rule.protocol {
                Protocol::Any => return rule.allows,
                Protocol::Tcp(first, last) => (TCP, first, last),
                Protocol::Udp(first, last) => (UDP, first, last),
                Protocol::Icmp => (icmp, 0, u16::MAX),
            };
            let applies = match look() {
                Seen::All(protocol, port) => protocol == number && (first..=last).contains(&port),
                Seen::Protocol(protocol) if protocol != number => false,
                Seen::Protocol(_) if (first, last) == (0, u16::MAX) => true,
                // It may be what is denied, and may not be what is allowed.
                Seen::Protocol(_) | Seen::Nothing => !rule.allows,
            };
            if applies {
                return rule.allows;
            }
        }
        self.open
    }

    /// Reads what `Display` has written. `None`: it is not understood.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let (mut deny, mut allow) = (Vec::new(), None);
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("deny", rest)) => deny.push(rest.parse().ok()?),
                Some(("allow", rest)) => allow.get_or_insert_with(Vec::new).push(rest.parse().ok()?),
                None if line == "closed" => {
                    allow.get_or_insert_with(Vec::new);
                }
                _ => return None,
            }
        }
        Self::new(deny, allow)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.open {
            f.write_str("closed\n")?;
        }
        self.deny.iter().try_for_each(|d| writeln!(f, "deny {d}"))?;
        self.allow.iter().flatten().try_for_each(|d| writeln!(f, "allow {d}"))
    }
}

/// Protocol and port of an IPv4 packet.
fn seen4(packet: &[u8]) -> Seen {
    let (Some(first), Some(&protocol), Some(flags)) = (packet.first(), packet.get(9), packet.get(6..8)) else {
        return Seen::Nothing;
    };
    // Only the first fragment has ports (RFC 791 §3.1).
    if u16::from_be_bytes([flags[0], flags[1]]) & 0x1fff != 0 {
        return Seen::Protocol(protocol);
    }
    port(packet, protocol, usize::from(first & 15) * 4)
}

/// Protocol and port of an IPv6 packet without extension headers.
fn seen6(packet: &[u8]) -> Seen {
    match packet.get(6) {
        // RFC 8200 §4.1, and Authentication, ESP, Mobility, HIP, Shim6: what follows is not looked for.
        None | Some(0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140) => Seen::Nothing,
        Some(&protocol) => port(packet, protocol, 40),
    }
}

fn port(packet: &[u8], protocol: u8, at: usize) -> Seen {
    match (protocol, packet.get(at + 2..at + 4)) {
        (TCP | UDP, Some(port)) if at >= 20 => Seen::All(protocol, u16::from_be_bytes([port[0], port[1]])),
        (TCP | UDP, _) => Seen::Protocol(protocol),
        _ => Seen::All(protocol, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(deny: &[&str], allow: Option<&[&str]>) -> Filter {
        let read = |texts: &[&str]| texts.iter().map(|t| t.parse().expect("a destination")).collect::<Vec<_>>();
        Filter::new(read(deny), allow.map(read)).expect("few rules")
    }

    fn packet(destination: &str, protocol: u8, port: u16) -> (Vec<u8>, IpAddr) {
        let destination: IpAddr = destination.parse().expect("an address");
        let mut bytes = match destination {
            IpAddr::V4(a) => {
                let mut bytes = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 8, 0, 2];
                bytes.extend(a.octets());
                bytes
            }
            IpAddr::V6(a) => {
                let mut bytes = vec![0x60, 0, 0, 0, 0, 8, protocol, 64];
                bytes.extend([0xfd; 16]);
                bytes.extend(a.octets());
                bytes
            }
        };
        bytes.extend([0x99, 0x99]);
        bytes.extend(port.to_be_bytes());
        bytes.extend([0; 4]);
        (bytes, destination)
    }

    #[test]
    fn the_first_rule_that_applies_decides() {
        let filter =
            list(&["10.1.9.0/24", "10.2.0.1 tcp 22"], Some(&["10.1.0.0/16", "10.2.0.0/16 tcp", "fd01::/16 icmp"]));
        for (to, protocol, port, passes) in [
            ("10.1.0.1", UDP, 53, true),
            ("10.1.9.1", UDP, 53, false),
            ("10.2.0.1", TCP, 22, false),
            ("10.2.0.1", TCP, 23, true),
            ("10.2.0.1", UDP, 23, false),
            ("192.0.2.1", TCP, 443, false),
            ("fd01::1", ICMP6, 0, true),
            ("fd01::1", TCP, 443, false),
            ("fd02::1", ICMP6, 0, false),
        ] {
            let (bytes, destination) = packet(to, protocol, port);
            assert_eq!(filter.admits(&bytes, destination), passes, "{to} {protocol} {port}");
        }
        let open = list(&["0.0.0.0/0 udp 1000-2000"], None);
        for (port, passes) in [(999, true), (1000, false), (2000, false), (2001, true)] {
            let (bytes, destination) = packet("192.0.2.1", UDP, port);
            assert_eq!(open.admits(&bytes, destination), passes, "{port}");
        }
        let (bytes, destination) = packet("2001:db8::1", UDP, 1500);
        assert!(open.admits(&bytes, destination), "another family");
    }

    /// What cannot be told is denied, whichever way the list is written.
    #[test]
    fn fragments_and_extension_headers_pass_no_rule_about_ports() {
        let (allow, deny) =
            (list(&[], Some(&["0.0.0.0/0 tcp 443", "::/0 tcp 443"])), list(&["0.0.0.0/0 tcp 22", "::/0 tcp 22"], None));
        let (mut fragment, to) = packet("192.0.2.1", TCP, 443);
        assert!(allow.admits(&fragment, to) && deny.admits(&fragment, to));
        fragment[7] = 9;
        assert!(!allow.admits(&fragment, to) && !deny.admits(&fragment, to));
        assert!(list(&[], Some(&["0.0.0.0/0 tcp"])).admits(&fragment, to), "its protocol is known");
        fragment[9] = UDP;
        assert!(deny.admits(&fragment, to), "UDP is not TCP");
        let (extended, to) = packet("2001:db8::1", 44, 443);
        assert!(!allow.admits(&extended, to) && !deny.admits(&extended, to));
        for (whole, to) in [packet("192.0.2.1", TCP, 443), packet("2001:db8::1", TCP, 443)] {
            for len in 0..whole.len() {
                let _ = (allow.admits(&whole[..len], to), deny.admits(&whole[..len], to));
            }
        }
        // A header that claims to be shorter than any: no port is read from the header itself.
        let (mut short, to) = packet("192.0.2.1", TCP, 443);
        short[0] = 0x40;
        assert!(!allow.admits(&short, to));
    }

    #[test]
    fn a_list_outlives_its_text() {
        for filter in [
            list(&["10.0.0.0/8", "fd00::/8 udp 53"], Some(&["0.0.0.0/0 icmp", "10.0.0.1 tcp"])),
            list(&["::/0 tcp 1-2"], None),
            list(&[], Some(&[])),
        ] {
            assert_eq!(Filter::from_text(&filter.to_string()), Some(filter));
        }
        assert!(Filter::from_text("permit 10.0.0.0/8\n").is_none());
        for wrong in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/8 sctp",
            "10.0.0.0/8 tcp 0",
            "10.0.0.0/8 tcp 5-4",
            "10.0.0.0/8 icmp 8",
            "10.0.0.0/8 tcp 1 2",
        ] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong:?}");
        }
        let many = vec!["10.0.0.0/8".parse().expect("a destination"); MAX_RULES + 1];
        assert!(Filter::new(many, None).is_none());
    }
}
