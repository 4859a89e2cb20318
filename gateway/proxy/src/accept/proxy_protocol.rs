//! The PROXY protocol, versions 1 and 2 (haproxy.org's `proxy-protocol.txt`). Sans-IO.

use crate::unix_clients::UNIX_CLIENT;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// §2.1: the longest line of version 1.
const V1_MAX: usize = 107;
/// Most bytes of a version 2 header that we wait for, its extensions (which are skipped) included.
const V2_MAX: usize = 16 + 2048;

/// §2.2: the transport protocol of a connection, and of a datagram.
const STREAM: u8 = 1;
const DGRAM: u8 = 2;

/// The bytes are no PROXY header, or one that is malformed or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadHeader;

/// A header at the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProxyHeader {
    /// Bytes that it took.
    pub consumed: usize,
    /// The client, unless the sender spoke for itself (`LOCAL`, `UNKNOWN`).
    pub source: Option<SocketAddr>,
}

/// Reads a header; `Ok(None)` if it is not all there.
pub(crate) fn parse(input: &[u8]) -> Result<Option<ProxyHeader>, BadHeader> {
    let common = input.len().min(V2_SIGNATURE.len());
    if input[..common] == V2_SIGNATURE[..common] && common > 0 {
        return parse_v2(input);
    }
    let common = input.len().min(6);
    if input[..common] != b"PROXY "[..common] {
        return Err(BadHeader);
    }
    let line = &input[..input.len().min(V1_MAX)];
    match line.windows(2).position(|w| w == b"\r\n") {
        Some(end) => {
            let source = parse_v1(std::str::from_utf8(&line[6..end.max(6)]).map_err(|_| BadHeader)?)?;
            Ok(Some(ProxyHeader { consumed: end + 2, source }))
        }
        None if input.len() >= V1_MAX => Err(BadHeader),
        None => Ok(None),
    }
}

/// §2.1: `TCP4 src dst sport dport`, or `UNKNOWN` and anything.
fn parse_v1(line: &str) -> Result<Option<SocketAddr>, BadHeader> {
    let mut words = line.split(' ');
    let family = words.next();
    if family == Some("UNKNOWN") {
        return Ok(None);
    }
    let mut word = || words.next().ok_or(BadHeader);
    let (source, destination, port, to_port) = (word()?, word()?, word()?, word()?);
    if words.next().is_some() {
        return Err(BadHeader);
    }
    let number = |p: &str| {
        let plain = p.bytes().all(|b| b.is_ascii_digit()) && (p == "0" || !p.starts_with('0'));
        if plain { p.parse::<u16>().map_err(|_| BadHeader) } else { Err(BadHeader) }
    };
    number(to_port)?;
    let (source, destination): (IpAddr, IpAddr) = match family {
        Some("TCP4") => (v4(source)?.into(), v4(destination)?.into()),
        Some("TCP6") => (v6(source)?.into(), v6(destination)?.into()),
        _ => return Err(BadHeader),
    };
    let _ = destination;
    Ok(Some(SocketAddr::new(source, number(port)?)))
}

fn v4(s: &str) -> Result<Ipv4Addr, BadHeader> {
    s.parse().map_err(|_| BadHeader)
}

fn v6(s: &str) -> Result<Ipv6Addr, BadHeader> {
    s.parse().map_err(|_| BadHeader)
}

/// §2.2.
fn parse_v2(input: &[u8]) -> Result<Option<ProxyHeader>, BadHeader> {
    let Some(header) = input.get(..16) else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([header[14], header[15]]));
    if header[12] >> 4 != 2 || 16 + len > V2_MAX {
        return Err(BadHeader);
    }
    let Some(body) = input.get(16..16 + len) else { return Ok(None) };
    let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    let source = match (header[12] & 0xf, header[13]) {
        (0, _) => None, // LOCAL
        (1, 0x11) if len >= 12 => {
            check_extensions(&body[12..])?;
            Some(SocketAddr::new(Ipv4Addr::new(body[0], body[1], body[2], body[3]).into(), port(8)))
        }
        (1, 0x21) if len >= 36 => {
            check_extensions(&body[36..])?;
            let mut ip = [0; 16];
            ip.copy_from_slice(&body[..16]);
            Some(SocketAddr::new(Ipv6Addr::from(ip).into(), port(32)))
        }
        (1, 0x00) => None, // UNSPEC
        _ => return Err(BadHeader),
    };
    Ok(Some(ProxyHeader { consumed: 16 + len, source }))
}

/// §2.2: extensions (a type, two bytes of length, and a value) fill what follows the addresses.
fn check_extensions(mut rest: &[u8]) -> Result<(), BadHeader> {
    while !rest.is_empty() {
        let Some(([_, high, low], values)) = rest.split_first_chunk::<3>() else { return Err(BadHeader) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        rest = values.get(length..).ok_or(BadHeader)?;
    }
    Ok(())
}

/// Appends a header that says from where to where a connection goes. Of a client without an address it says that it is unknown.
pub(crate) fn encode(out: &mut Vec<u8>, version: u8, source: SocketAddr, destination: SocketAddr) {
    if source == UNIX_CLIENT {
        // PROXY, of the family UNSPEC: the connection is not the gateway's own.
        let v2 = [&V2_SIGNATURE[..], &[0x21, 0, 0, 0]].concat();
        return out.extend_from_slice(if version == 1 { b"PROXY UNKNOWN\r\n" } else { &v2 });
    }
    // One family for both ends.
    let (s, d) = match (source, destination) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => (source, destination),
        _ => (to_v6(source), to_v6(destination)),
    };
    if version == 1 {
        let family = if s.is_ipv4() { "TCP4" } else { "TCP6" };
        let line = format!("PROXY {family} {} {} {} {}\r\n", s.ip(), d.ip(), s.port(), d.port());
        out.extend_from_slice(line.as_bytes());
        return;
    }
    encode_v2(out, STREAM, s, d);
}

/// Appends a version 2 header that says from where to where a datagram goes.
pub(crate) fn encode_datagram(out: &mut Vec<u8>, source: SocketAddr, destination: SocketAddr) {
    encode_v2(out, DGRAM, source, destination);
}

fn encode_v2(out: &mut Vec<u8>, transport: u8, s: SocketAddr, d: SocketAddr) {
    out.extend_from_slice(V2_SIGNATURE);
    out.push(0x21);
    match (s.ip(), d.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            out.extend_from_slice(&[0x10 | transport, 0, 12]);
            out.extend_from_slice(&a.octets());
            out.extend_from_slice(&b.octets());
        }
        (a, b) => {
            out.extend_from_slice(&[0x20 | transport, 0, 36]);
            for ip in [a, b] {
                let IpAddr::V6(ip) = to_v6(SocketAddr::new(ip, 0)).ip() else { continue };
                out.extend_from_slice(&ip.octets());
            }
        }
    }
    out.extend_from_slice(&s.port().to_be_bytes());
    out.extend_from_slice(&d.port().to_be_bytes());
}

fn to_v6(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_in_any_pieces() {
        let ends = [("1.2.3.4:5", "6.7.8.9:443"), ("[2001:db8::1]:5", "[::1]:443"), ("1.2.3.4:5", "[::1]:443")];
        for (source, destination) in ends {
            let (s, d): (SocketAddr, SocketAddr) = (source.parse().unwrap(), destination.parse().unwrap());
            for version in [1, 2] {
                let mut bytes = Vec::new();
                encode(&mut bytes, version, s, d);
                let len = bytes.len();
                bytes.extend(b"GET /");
                let parsed = parse(&bytes).unwrap().unwrap();
                assert_eq!(parsed.consumed, len);
                assert_eq!(parsed.source.unwrap().port(), 5);
                assert_eq!(parsed.source.unwrap().ip().to_canonical(), s.ip());
                for cut in 0..len {
                    assert_eq!(parse(&bytes[..cut]), Ok(None), "version {version} cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn a_datagram_has_the_transport_of_datagrams() {
        let header = |source: &str, destination: &str| {
            let mut bytes = Vec::new();
            encode_datagram(&mut bytes, source.parse().unwrap(), destination.parse().unwrap());
            bytes
        };
        let v4 = [&V2_SIGNATURE[..], &[0x21, 0x12, 0, 12, 1, 2, 3, 4, 6, 7, 8, 9, 0, 5, 1, 187]].concat();
        assert_eq!(header("1.2.3.4:5", "6.7.8.9:443"), v4);
        let v6 = header("[2001:db8::1]:5", "[::1]:443");
        assert_eq!((&v6[12..16], v6.len()), (&[0x21, 0x22, 0, 36][..], 52));
        assert_eq!((&v6[16..20], &v6[48..]), (&[0x20, 1, 0x0d, 0xb8][..], &[0, 5, 1, 187][..]));
    }

    #[test]
    fn a_client_without_an_address_is_unknown() {
        for version in [1, 2] {
            let mut bytes = Vec::new();
            encode(&mut bytes, version, UNIX_CLIENT, "1.2.3.4:5".parse().unwrap());
            assert_eq!(parse(&bytes), Ok(Some(ProxyHeader { consumed: bytes.len(), source: None })));
        }
    }

    #[test]
    fn extensions_fill_the_header() {
        let with = |extensions: &[u8]| {
            let length = 12 + extensions.len() as u8;
            let bytes = [&V2_SIGNATURE[..], &[0x21, 0x11, 0, length], &[1; 12], extensions].concat();
            parse(&bytes).map(|header| header.is_some_and(|h| h.source.is_some() && h.consumed == bytes.len()))
        };
        for good in [&b""[..], b"\x04\0\0", b"\x04\0\x02ab\x01\0\x01c"] {
            assert_eq!(with(good), Ok(true), "{good:?}");
        }
        for bad in [&b"\x04"[..], b"\x04\0", b"\x04\0\x01", b"\x04\0\x02ab\x01\x01\0c"] {
            assert_eq!(with(bad), Err(BadHeader), "{bad:?}");
        }
    }

    #[test]
    fn malformed_headers_are_refused() {
        let long = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 120]].concat();
        let bad: [&[u8]; 9] = [
            b"GET / HTTP/1.1\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 70000\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            &long,
            b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x02ab",
        ];
        for b in bad {
            assert_eq!(parse(b), Err(BadHeader), "{:?}", String::from_utf8_lossy(b));
        }
        assert_eq!(parse(b"PROXY UNKNOWN\r\n"), Ok(Some(ProxyHeader { consumed: 15, source: None })));
    }
}
