//! Trusted proxies: whose word about the client is taken, and who the client is by their word.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Proxies between a client and us that are looked at.
const MOST_HOPS: usize = 32;

/// A block of addresses: `192.0.2.0/24`, `2001:db8::/32`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

/// Why text is no [`Cidr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CidrError {
    /// Not `ADDRESS` or `ADDRESS/BITS`.
    Malformed,
    /// The address has bits that are not in the prefix; this one has not.
    HostBits(Cidr),
}

impl Cidr {
    /// Whether it is every address of its family.
    pub fn is_everything(self) -> bool {
        self.prefix == 0
    }

    /// The first and the last address. A block of IPv4-mapped IPv6 addresses is one of IPv4 addresses.
    pub(crate) fn range(self) -> (IpAddr, IpAddr) {
        match self.address {
            IpAddr::V4(ip) => {
                let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                (ip.into(), Ipv4Addr::from(u32::from(ip) | hosts).into())
            }
            IpAddr::V6(ip) => {
                let hosts = u128::MAX.checked_shr(u32::from(self.prefix)).unwrap_or(0);
                let last = Ipv6Addr::from(u128::from(ip) | hosts);
                match (ip.to_ipv4_mapped(), last.to_ipv4_mapped()) {
                    (Some(first), Some(last)) => (first.into(), last.into()),
                    _ => (ip.into(), last.into()),
                }
            }
        }
    }

    /// `ip`: as it is after `to_canonical`.
    pub(crate) fn contains(self, ip: IpAddr) -> bool {
        // Addresses of the other family are before or behind all of the range.
        let (first, last) = self.range();
        first <= ip && ip <= last
    }

    fn without_host_bits(self) -> Self {
        let address = match self.address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                Ipv4Addr::from(u32::from(ip) & mask).into()
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                Ipv6Addr::from(u128::from(ip) & mask).into()
            }
        };
        Self { address, ..self }
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl std::str::FromStr for Cidr {
    type Err = CidrError;

    fn from_str(s: &str) -> Result<Self, CidrError> {
        let (address, prefix) = match s.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (s, None),
        };
        let address: IpAddr = address.parse().map_err(|_| CidrError::Malformed)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => most,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok().filter(|n| *n <= most).ok_or(CidrError::Malformed)?
            }
            Some(_) => return Err(CidrError::Malformed),
        };
        let cidr = Self { address, prefix };
        match cidr.without_host_bits() {
            same if same == cidr => Ok(cidr),
            other => Err(CidrError::HostBits(other)),
        }
    }
}

/// The proxies whose word about their clients is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Box<[Cidr]>);

impl FromIterator<Cidr> for TrustedProxies {
    fn from_iter<I: IntoIterator<Item = Cidr>>(blocks: I) -> Self {
        Self(blocks.into_iter().collect())
    }
}

impl TrustedProxies {
    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this is one.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|block| block.contains(ip))
    }

    /// Who the client is: `peer`, or, as long as that is a trusted proxy, the one that it has got the request from.
    /// `told` are the entries of the field in which proxies say that, the last first. Also how many of them count: what
    /// stands before them was written by somebody who is not trusted.
    pub fn client<'a>(&self, peer: IpAddr, told: impl Iterator<Item = &'a [u8]>) -> (IpAddr, usize) {
        let mut client = peer.to_canonical();
        let mut hops = 0;
        for entry in told.take(MOST_HOPS) {
            if !self.contains(client) {
                break;
            }
            // `unknown`, an obfuscated name, or nonsense: nobody is known beyond the proxy that wrote it.
            let Some(ip) = node(entry) else { break };
            client = ip;
            hops += 1;
        }
        (client, hops)
    }
}

/// Reads an address with or without a port: an entry of `X-Forwarded-For`, or a node of RFC 7239 §6.
pub fn node(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::from);
    let ip = text.parse().ok().or_else(bare).or_else(|| text.parse::<SocketAddr>().ok().map(|a| a.ip()))?;
    Some(ip.to_canonical())
}

/// The elements of a list in which commas may be quoted, the last first. Each well-formed element at the end is found
/// exactly, whatever stands before it: a client that writes an unbalanced quote or a backslash cannot change how the
/// elements are read that proxies append to it.
pub fn elements_backwards(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let value = rest?;
        let element = match last_comma(value) {
            Some(at) => {
                rest = Some(&value[..at]);
                &value[at + 1..]
            }
            None => {
                rest = None;
                value
            }
        };
        Some(element.trim_ascii())
    })
    .filter(|element| !element.is_empty())
}

/// The last comma that is not quoted. Backwards, a quote that is not in a quoted string ends one, and in it a quote
/// behind an odd number of backslashes is one of its characters (RFC 9110 §5.6.4).
fn last_comma(value: &[u8]) -> Option<usize> {
    let mut quoted = false;
    value.iter().enumerate().rev().find_map(|(at, b)| match b {
        b'"' => {
            let escapes = || value[..at].iter().rev().take_while(|b| **b == b'\\').count();
            quoted = !quoted || escapes() % 2 == 1;
            None
        }
        b',' if !quoted => Some(at),
        _ => None,
    })
}

/// The value of a parameter of an element of `Forwarded` (RFC 7239 §4), without its quotes. `None`, too, if the element
/// is malformed or has the parameter twice.
pub fn parameter<'a>(element: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let mut found = None;
    let mut rest = Some(element);
    while let Some(text) = rest {
        let (name, value, next) = pair(text)?;
        if name.eq_ignore_ascii_case(wanted.as_bytes()) && found.replace(value).is_some() {
            return None;
        }
        rest = next;
    }
    found
}

/// A pair's name and value, and what follows its semicolon.
type Pair<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>);

/// The first pair of an element. `None` if it is malformed.
fn pair(text: &[u8]) -> Option<Pair<'_>> {
    let plain = |part: &[u8]| !part.iter().any(|b| matches!(b, b'"' | b'\\' | b','));
    let end = text.iter().position(|b| matches!(b, b'=' | b';')).unwrap_or(text.len());
    let name = Some(text[..end].trim_ascii()).filter(|name| plain(name))?;
    let value = match &text[end..] {
        [b'=', value @ ..] => value.trim_ascii_start(),
        // A name alone, or nothing.
        [_, next @ ..] => return Some((name, b"", Some(next))),
        [] => return Some((name, b"", None)),
    };
    let (value, after) = if let [b'"', inner @ ..] = value {
        let mut escaped = false;
        let end = inner.iter().position(|b| {
            let ends = *b == b'"' && !escaped;
            escaped = *b == b'\\' && !escaped;
            ends
        })?;
        (&inner[..end], inner[end + 1..].trim_ascii_start())
    } else {
        let (value, after) = value.split_at(value.iter().position(|b| *b == b';').unwrap_or(value.len()));
        (Some(value.trim_ascii_end()).filter(|value| plain(value))?, after)
    };
    match after {
        [] => Some((name, value, None)),
        [b';', next @ ..] => Some((name, value, Some(next))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusted(blocks: &[&str]) -> TrustedProxies {
        blocks.iter().map(|b| b.parse::<Cidr>().unwrap()).collect()
    }

    #[test]
    fn blocks() {
        let some = trusted(&["10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "::1", "::ffff:198.51.100.0/120"]);
        for ip in ["10.255.0.1", "192.0.2.1", "2001:db8:1::2", "::1", "::ffff:10.1.2.3", "198.51.100.7"] {
            assert!(some.contains(ip.parse().unwrap()), "{ip}");
        }
        for ip in ["11.0.0.1", "192.0.2.2", "2001:db9::1", "::2", "127.0.0.1"] {
            assert!(!some.contains(ip.parse().unwrap()), "{ip}");
        }
        let all = trusted(&["0.0.0.0/0"]);
        assert!(all.contains("8.8.8.8".parse().unwrap()) && !all.contains("::8".parse().unwrap()));
        for bad in ["", "a", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "::/129", "10.0.0.0/8/8", "10.0.0"] {
            assert_eq!(bad.parse::<Cidr>(), Err(CidrError::Malformed), "{bad}");
        }
        let Err(CidrError::HostBits(better)) = "10.1.2.3/8".parse::<Cidr>() else { panic!("host bits are refused") };
        assert_eq!(better.to_string(), "10.0.0.0/8");
    }

    #[test]
    fn clients_are_found_from_the_right() {
        let proxies = trusted(&["10.0.0.0/8", "192.0.2.1"]);
        let client = |peer: &str, told: &str| {
            let (ip, hops) = proxies.client(peer.parse().unwrap(), elements_backwards(told.as_bytes()));
            (ip.to_string(), hops)
        };
        let of = |ip: &str, hops| (ip.to_owned(), hops);
        assert_eq!(client("203.0.113.1", "1.1.1.1"), of("203.0.113.1", 0));
        assert_eq!(client("10.0.0.1", ""), of("10.0.0.1", 0));
        assert_eq!(client("10.0.0.1", "203.0.113.9"), of("203.0.113.9", 1));
        assert_eq!(client("10.0.0.1", "6.6.6.6, 203.0.113.9 ,192.0.2.1"), of("203.0.113.9", 2));
        assert_eq!(client("10.0.0.1", "10.0.0.3, 10.0.0.2"), of("10.0.0.3", 2));
        assert_eq!(client("10.0.0.1", "6.6.6.6, unknown"), of("10.0.0.1", 0));
        assert_eq!(client("10.0.0.1", "6.6.6.6, unknown, 10.0.0.2"), of("10.0.0.2", 1));
        assert_eq!(client("10.0.0.1", "203.0.113.9:4711"), of("203.0.113.9", 1));
        assert_eq!(client("10.0.0.1", "[2001:db8::9]:1, 10.0.0.2"), of("2001:db8::9", 2));
        assert_eq!(client("10.0.0.1", "::ffff:203.0.113.9"), of("203.0.113.9", 1));
        let long = vec!["10.0.0.2"; 1000].join(",");
        assert_eq!(client("10.0.0.1", &format!("6.6.6.6,{long}")), of("10.0.0.2", MOST_HOPS));
    }

    #[test]
    fn what_stands_before_an_element_does_not_change_it() {
        let proper: &[&str] = &[
            "for=5.5.5.5",
            r#"for="[2001:db8::1]:80""#,
            r#"for=5.5.5.5;host="a,b""#,
            r#"for=5.5.5.5;x="a\", for=6.6.6.6;y=\"b""#,
            r#"x="\\";for=5.5.5.5"#,
            r#"x="\\\"";for=5.5.5.5"#,
            r#"x="";for=5.5.5.5"#,
        ];
        for before in [r#"for="\"#, r"x=\", r#"for="a\"b""#, r#"for=""#, r#"""#, r#"\""#, r#"a="b", c="\"#, "", ","] {
            for own in proper {
                let value = format!("{before}, {own}");
                let last = elements_backwards(value.as_bytes()).next().unwrap();
                assert_eq!(last.escape_ascii().to_string(), own.as_bytes().escape_ascii().to_string(), "{value}");
                assert!(parameter(last, "for").and_then(node).is_some(), "{own}");
            }
        }
    }

    #[test]
    fn elements_of_forwarded() {
        let value = br#"for="[2001:db8::1]:80";host="a,b", for=unknown;proto=https,FOR = 192.0.2.60 "#;
        let all: Vec<Option<&[u8]>> = elements_backwards(value).map(|e| parameter(e, "for")).collect();
        assert_eq!(all, [Some(&b"192.0.2.60"[..]), Some(b"unknown"), Some(b"[2001:db8::1]:80")]);
        assert_eq!(parameter(b"proto=https", "for"), None);
        assert_eq!(parameter(br#"for="[::1]" ; Host = "a;for=b" ;;proto=https;"#, "host"), Some(&b"a;for=b"[..]));
        for malformed in [
            &b"for=1.1.1.1;for=2.2.2.2"[..],
            br#"for=1.1.1.1;host="a"#,
            br#"for=1.1.1.1;host="a\""#,
            br#"for=1.1.1.1;host="a"b"#,
            br#"for=1.1.1.1;host=a\b"#,
            br#"for=1.1.1.1;ho"st=a"#,
            br#"for=1.1.1.1;x=a,b"#,
        ] {
            assert_eq!(parameter(malformed, "for"), None, "{}", malformed.escape_ascii());
        }
        assert_eq!(node(b"_secret"), None);
        assert_eq!(node(b"[::1]"), "::1".parse().ok());
    }
}
