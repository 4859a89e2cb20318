//! `host[:port]`, as in Host and in absolute targets (RFC 3986 §3.2, RFC 9110 §7.2), read strictly.
//!
//! A host is a name of unreserved characters, without empty labels; an IPv4 address has that form too; or an IPv6
//! address in brackets. Percent-encoding and sub-delimiters are legal in URIs but in no name that resolves, and mean
//! different things to different back ends: refused.

use crate::error::ParseError;
use crate::scan;
use std::net::Ipv6Addr;

/// RFC 1035 §2.3.4 and a trailing dot, and room to spare.
const LONGEST_HOST: usize = 255;

/// A valid authority, without user information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Authority<'a> {
    /// Host and port, without the colon of an empty port.
    pub text: &'a [u8],
    /// The host as it was spelled, an IPv6 address with its brackets.
    pub host: &'a [u8],
    pub port: Option<u16>,
}

impl<'a> Authority<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let host_len = if bytes.first() == Some(&b'[') { literal_run(bytes)? } else { name_run(bytes)? };
        let (host, rest) = bytes.split_at(host_len);
        let port = match rest {
            [] => None,
            // RFC 9110 §4.2.1: an empty port is the default one.
            [b':'] => None,
            [b':', digits @ ..] => Some(parse_port(digits)?),
            _ if memchr::memchr(b'@', rest).is_some() => return Err(ParseError::Userinfo),
            _ => return Err(ParseError::Host),
        };
        let text = if rest == b":" { host } else { bytes };
        Ok(Self { text, host, port })
    }

    /// The host, where it is an IPv6 address.
    #[inline]
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        let [b'[', address @ .., b']'] = self.host else { return None };
        std::str::from_utf8(address).ok()?.parse().ok()
    }

    /// Whether both mean the same, given the scheme's default port.
    pub fn agrees(&self, other: &Authority<'_>, default_port: Option<u16>) -> bool {
        self.host.eq_ignore_ascii_case(other.host) && self.port.or(default_port) == other.port.or(default_port)
    }

    /// Whether a Host field may stand beside this target of CONNECT: RFC 9112 §3.2.3 shows it without the port.
    pub fn agrees_with_connect(&self, target: &Authority<'_>) -> bool {
        self.host.eq_ignore_ascii_case(target.host) && (self.port.is_none() || self.port == target.port)
    }
}

fn literal_run(bytes: &[u8]) -> Result<usize, ParseError> {
    let close = memchr::memchr(b']', bytes).ok_or(ParseError::Host)?;
    // Zones (`%25eth0`) and future literals (`v1.x`) fail here too.
    let address = std::str::from_utf8(&bytes[1..close]).map_err(|_| ParseError::Host)?;
    address.parse::<Ipv6Addr>().map_err(|_| ParseError::Host)?;
    Ok(close + 1)
}

fn name_run(bytes: &[u8]) -> Result<usize, ParseError> {
    let mut label = 0usize;
    let mut at = 0;
    for &b in bytes {
        if scan::is_host_byte(b) {
            label += 1;
        } else if b == b'.' && label > 0 {
            label = 0;
        } else {
            break;
        }
        at += 1;
    }
    // `user:password@host` stops at the colon, so look for the `@` before judging the rest.
    if at > LONGEST_HOST || (at == 0 && memchr::memchr(b'@', bytes).is_none()) {
        return Err(ParseError::Host);
    }
    match bytes.get(at) {
        None => Ok(at),
        Some(_) if memchr::memchr(b'@', bytes).is_some() => Err(ParseError::Userinfo),
        Some(b':') => Ok(at),
        Some(_) => Err(ParseError::Host),
    }
}

fn parse_port(digits: &[u8]) -> Result<u16, ParseError> {
    if digits.len() > 5 {
        return Err(ParseError::Host);
    }
    digits
        .iter()
        .try_fold(0u32, |n, b| b.is_ascii_digit().then(|| n * 10 + u32::from(b - b'0')))
        .and_then(|n| u16::try_from(n).ok())
        .ok_or(ParseError::Host)
}

/// Whether this is `host[:port]`, as in Host.
pub fn is_authority(bytes: &[u8]) -> bool {
    Authority::parse(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (text, host, port) in [
            ("a", "a", None),
            ("Example.COM", "Example.COM", None),
            ("example.com.", "example.com.", None),
            ("a-b_c.d~e", "a-b_c.d~e", None),
            ("a:80", "a", Some(80)),
            ("a:0080", "a", Some(80)),
            ("127.0.0.1:65535", "127.0.0.1", Some(65535)),
            ("[::1]", "[::1]", None),
            ("[2001:DB8::1]:8443", "[2001:DB8::1]", Some(8443)),
        ] {
            let want = Authority { text: text.as_bytes(), host: host.as_bytes(), port };
            assert_eq!(Authority::parse(text.as_bytes()), Ok(want), "{text}");
        }
        assert_eq!(Authority::parse(b"a:").unwrap().text, b"a");
    }

    #[test]
    fn not_hosts() {
        for text in [
            "",
            ".",
            ".a",
            "a..b",
            "a b",
            "a,b",
            "a/b",
            "a\\b",
            "a%41",
            "a:b",
            "a:65536",
            "a:000080",
            "a:+1",
            "a:-1",
            "a:80:80",
            ":80",
            "[",
            "[]",
            "[::1",
            "::1",
            "[::1]x",
            "[::1%25lo]",
            "[v1.a]",
            "[127.0.0.1]",
            "a\t",
            "\u{e9}",
            "a;b",
            "a?b",
            "a#b",
            "*",
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), Err(ParseError::Host), "{text}");
        }
        for text in ["u@a", "u:p@a", "@a", "a@", "a:80@b"] {
            assert_eq!(Authority::parse(text.as_bytes()), Err(ParseError::Userinfo), "{text}");
        }
        assert_eq!(Authority::parse(&[b'a'; 256]), Err(ParseError::Host));
    }

    #[test]
    fn agreement() {
        let parse = |t: &'static str| Authority::parse(t.as_bytes()).unwrap();
        assert!(parse("A.b").agrees(&parse("a.B:80"), Some(80)));
        assert!(!parse("a.b").agrees(&parse("a.b:80"), None));
        assert!(!parse("a.b").agrees(&parse("a.c"), Some(80)));
        assert!(parse("A.b").agrees_with_connect(&parse("a.B:80")));
        assert!(parse("a.b:80").agrees_with_connect(&parse("a.b:80")));
        assert!(!parse("a.b:81").agrees_with_connect(&parse("a.b:80")));
        assert!(!parse("a.c").agrees_with_connect(&parse("a.b:80")));
    }
}
