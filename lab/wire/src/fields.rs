//! Field sections of HTTP/2 (HPACK, RFC 7541) and HTTP/3 (QPACK, RFC 9204): requests are encoded once; of a response only
//! `:status` is read.
//!
//! Both are told that our dynamic table holds nothing (`SETTINGS_HEADER_TABLE_SIZE` = 0; QPACK's default),
//! so that a response's fields stand on their own and need no state to be read.

use crate::Request;

/// A field section that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable(pub &'static str);

/// Which of the two encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// HTTP/2.
    Hpack,
    /// HTTP/3.
    Qpack,
}

/// Appends an integer with an `n`-bit prefix, whose other bits are `first` (RFC 7541 §5.1).
fn put_integer(out: &mut Vec<u8>, first: u8, n: u8, value: usize) {
    let most = (1usize << n) - 1;
    if value < most {
        out.push(first | value as u8);
        return;
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 128 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Reads an integer with an `n`-bit prefix; advances `at`.
fn integer(bytes: &[u8], at: &mut usize, n: u8) -> Result<usize, Unreadable> {
    const CUT: Unreadable = Unreadable("a field section ends inside an integer");
    let most = (1usize << n) - 1;
    let mut value = usize::from(*bytes.get(*at).ok_or(CUT)?) & most;
    *at += 1;
    if value < most {
        return Ok(value);
    }
    for shift in (0..28).step_by(7) {
        let byte = *bytes.get(*at).ok_or(CUT)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Unreadable("an integer in a field section beyond 2^28"))
}

/// Reads a string whose Huffman flag is above an `n`-bit length.
fn string<'a>(bytes: &'a [u8], at: &mut usize, n: u8) -> Result<(bool, &'a [u8]), Unreadable> {
    const CUT: Unreadable = Unreadable("a field section ends inside a string");
    let huffman = bytes.get(*at).ok_or(CUT)? >> n & 1 == 1;
    let len = integer(bytes, at, n)?;
    let text = bytes.get(*at..).and_then(|rest| rest.get(..len)).ok_or(CUT)?;
    *at += len;
    Ok((huffman, text))
}

/// `:status`, plain or by the Huffman code (RFC 7541 Appendix B).
fn is_status((huffman, name): (bool, &[u8])) -> bool {
    if huffman { name == [0xb8, 0x84, 0x8d, 0x36, 0xa3] } else { name == b":status" }
}

/// Three digits, perhaps by the Huffman code: `0` to `2` have five bits there, `3` to `9` six; ones fill the last byte.
fn digits(huffman: bool, text: &[u8]) -> Result<u16, Unreadable> {
    const BAD: Unreadable = Unreadable(":status is not three digits");
    let mut status = 0;
    if !huffman {
        if text.len() != 3 {
            return Err(BAD);
        }
        for d in text {
            status = status * 10 + u16::from(d.checked_sub(b'0').filter(|d| *d < 10).ok_or(BAD)?);
        }
        return if status >= 100 { Ok(status) } else { Err(BAD) };
    }
    if text.len() > 3 {
        return Err(BAD);
    }
    let all = text.iter().fold(0u32, |all, b| all << 8 | u32::from(*b));
    let mut left = text.len() * 8;
    let bits = |left: usize, n: usize| left.checked_sub(n).map(|rest| (all >> rest) & ((1 << n) - 1)).ok_or(BAD);
    for _ in 0..3 {
        // RFC 7541 Appendix B.
        let five = bits(left, 5)?;
        if five <= 2 {
            status = status * 10 + five as u16;
            left -= 5;
        } else {
            let six = bits(left, 6)?;
            if !(25..=31).contains(&six) {
                return Err(BAD);
            }
            status = status * 10 + (six - 22) as u16;
            left -= 6;
        }
    }
    let filled = left < 8 && bits(left, left)? == (1 << left) - 1;
    if filled && status >= 100 { Ok(status) } else { Err(BAD) }
}

/// The `:status` of a response's field section; 0 for trailers, which have none.
pub fn status(coding: Coding, section: &[u8]) -> Result<u16, Unreadable> {
    match coding {
        Coding::Hpack => hpack_status(section),
        Coding::Qpack => qpack_status(section),
    }
}

fn hpack_status(section: &[u8]) -> Result<u16, Unreadable> {
    // RFC 7541 Appendix A, indices 8 to 14.
    const KNOWN: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    const DYNAMIC: Unreadable = Unreadable("a field refers to a dynamic table, which has no room");
    let mut status = 0;
    let mut at = 0;
    while let Some(first) = section.get(at) {
        match first {
            // RFC 7541 §6.1: indexed.
            0x80.. => match integer(section, &mut at, 7)? {
                0 => return Err(Unreadable("a field has index 0")),
                index @ 8..=14 => status = KNOWN[index - 8],
                1..=61 => {}
                _ => return Err(DYNAMIC),
            },
            // §6.3: the table's new size.
            0x20..0x40 => {
                if integer(section, &mut at, 5)? != 0 {
                    return Err(DYNAMIC);
                }
            }
            // §6.2: literals, with and without indexing.
            _ => {
                let name = integer(section, &mut at, if *first >= 0x40 { 6 } else { 4 })?;
                let named = match name {
                    0 => is_status(string(section, &mut at, 7)?),
                    8..=14 => true,
                    1..=61 => false,
                    _ => return Err(DYNAMIC),
                };
                let (huffman, text) = string(section, &mut at, 7)?;
                if named {
                    status = digits(huffman, text)?;
                }
            }
        }
    }
    Ok(status)
}

fn qpack_status(section: &[u8]) -> Result<u16, Unreadable> {
    const DYNAMIC: Unreadable = Unreadable("a field refers to a dynamic table, which has no room");
    // RFC 9204 Appendix A.
    let known = |index| match index {
        24..=28 => Some([103, 200, 304, 404, 503][index - 24]),
        63..=71 => Some([100, 204, 206, 302, 400, 403, 421, 425, 500][index - 63]),
        _ => None,
    };
    let mut at = 0;
    // RFC 9204 §4.5.1: the Required Insert Count is 0 when no dynamic table is used.
    if integer(section, &mut at, 8)? != 0 {
        return Err(DYNAMIC);
    }
    integer(section, &mut at, 7)?;
    let mut status = 0;
    while let Some(first) = section.get(at) {
        match first {
            // §4.5.2: indexed, static if the second bit is set.
            0x80.. => {
                if first & 0x40 == 0 {
                    return Err(DYNAMIC);
                }
                if let Some(known) = known(integer(section, &mut at, 6)?) {
                    status = known;
                }
            }
            // §4.5.4: literal with a name from a table.
            0x40..0x80 => {
                if first & 0x10 == 0 {
                    return Err(DYNAMIC);
                }
                let named = known(integer(section, &mut at, 4)?).is_some();
                let (huffman, text) = string(section, &mut at, 7)?;
                if named {
                    status = digits(huffman, text)?;
                }
            }
            // §4.5.6: literal with its name.
            0x20..0x40 => {
                let named = is_status(string(section, &mut at, 3)?);
                let (huffman, text) = string(section, &mut at, 7)?;
                if named {
                    status = digits(huffman, text)?;
                }
            }
            _ => return Err(DYNAMIC),
        }
    }
    Ok(status)
}

/// A request's field sections.
#[derive(Clone, Debug)]
pub struct Sections {
    /// Stands on its own.
    pub plain: Box<[u8]>,
    /// HTTP/2: puts what all of a connection's requests share into the server's dynamic table…
    pub first: Box<[u8]>,
    /// …and refers to it there. Requests for another target may come between.
    pub next: Box<[u8]>,
}

/// Encodes a request.
pub fn encode(coding: Coding, request: &Request<'_>) -> Sections {
    let mut shared: Vec<(String, String)> = vec![(":authority".to_owned(), request.authority.clone())];
    for (name, value) in request.headers {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "host" => value.clone_into(&mut shared[0].1),
            // RFC 9113 §8.2.2: these belong to HTTP/1.1's connections.
            "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade" => {}
            _ => shared.push((name, value.clone())),
        }
    }
    let mut own = vec![
        (":method".to_owned(), request.method.to_owned()),
        (":scheme".to_owned(), if request.tls { "https" } else { "http" }.to_owned()),
        (":path".to_owned(), request.path.to_owned()),
    ];
    // After the pseudo-fields (RFC 9113 §8.3).
    let mut tail = Vec::new();
    if !request.body.is_empty() && !shared.iter().any(|(name, _)| name == "content-length") {
        tail.push(("content-length".to_owned(), request.body.len().to_string()));
    }
    let mut plain = Vec::new();
    if coding == Coding::Qpack {
        plain.extend_from_slice(&[0, 0]);
        for (name, value) in own.iter().chain(&shared).chain(&tail) {
            qpack_field(&mut plain, name, value);
        }
        let plain = plain.into_boxed_slice();
        return Sections { first: plain.clone(), next: plain.clone(), plain };
    }
    let (mut first, mut next) = (Vec::new(), Vec::new());
    for (name, value) in own.drain(..) {
        for out in [&mut plain, &mut first, &mut next] {
            hpack_field(out, &name, &value, false);
        }
    }
    for (i, (name, value)) in shared.iter().enumerate() {
        hpack_field(&mut plain, name, value, false);
        hpack_field(&mut first, name, value, true);
        // RFC 7541 §2.3.3: the newest entry has index 62.
        put_integer(&mut next, 0x80, 7, 61 + shared.len() - i);
    }
    for (name, value) in &tail {
        for out in [&mut plain, &mut first, &mut next] {
            hpack_field(out, name, value, false);
        }
    }
    Sections { plain: plain.into(), first: first.into(), next: next.into() }
}

fn hpack_field(out: &mut Vec<u8>, name: &str, value: &str, index: bool) {
    let whole = match (name, value) {
        (":method", "GET") => 2,
        (":method", "POST") => 3,
        (":path", "/") => 4,
        (":scheme", "http") => 6,
        (":scheme", "https") => 7,
        _ => 0,
    };
    if whole != 0 {
        return put_integer(out, 0x80, 7, whole);
    }
    let known = match name {
        ":authority" => 1,
        ":method" => 2,
        ":path" => 4,
        _ => 0,
    };
    let (flag, prefix) = if index { (0x40, 6) } else { (0, 4) };
    put_integer(out, flag, prefix, known);
    if known == 0 {
        put_integer(out, 0, 7, name.len());
        out.extend_from_slice(name.as_bytes());
    }
    put_integer(out, 0, 7, value.len());
    out.extend_from_slice(value.as_bytes());
}

fn qpack_field(out: &mut Vec<u8>, name: &str, value: &str) {
    let whole = match (name, value) {
        (":path", "/") => Some(1),
        (":method", "GET") => Some(17),
        (":method", "HEAD") => Some(18),
        (":method", "POST") => Some(20),
        (":scheme", "http") => Some(22),
        (":scheme", "https") => Some(23),
        _ => None,
    };
    if let Some(index) = whole {
        return put_integer(out, 0xc0, 6, index);
    }
    let known = match name {
        ":authority" => Some(0),
        ":path" => Some(1),
        ":method" => Some(17),
        _ => None,
    };
    match known {
        Some(index) => put_integer(out, 0x50, 4, index),
        None => {
            put_integer(out, 0x20, 3, name.len());
            out.extend_from_slice(name.as_bytes());
        }
    }
    put_integer(out, 0, 7, value.len());
    out.extend_from_slice(value.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers() {
        // RFC 7541 §C.1.
        let mut out = Vec::new();
        put_integer(&mut out, 0, 5, 1337);
        assert_eq!(out, [31, 154, 10]);
        for value in [0, 1, 30, 31, 32, 127, 128, 1337, 65_535, 1 << 20] {
            for n in 3..=8 {
                let mut out = Vec::new();
                put_integer(&mut out, 0, n, value);
                let mut at = 0;
                assert_eq!(integer(&out, &mut at, n), Ok(value));
                assert_eq!(at, out.len());
            }
        }
        assert!(integer(&[0x1f, 0xff, 0xff, 0xff, 0xff, 0xff], &mut 0, 5).is_err());
        assert!(integer(&[0x1f], &mut 0, 5).is_err());
    }

    #[test]
    fn statuses_of_hpack() {
        assert_eq!(status(Coding::Hpack, &[0x88]), Ok(200));
        assert_eq!(status(Coding::Hpack, &[0x20, 0x8d, 0x0f, 0x01, 1, b'x']), Ok(404));
        // Literal, name by index: plain and Huffman (RFC 7541 §C.6.1 has "302" as 64 02).
        assert_eq!(status(Coding::Hpack, &[0x08, 3, b'4', b'2', b'5']), Ok(425));
        assert_eq!(status(Coding::Hpack, &[0x48, 0x82, 0x64, 0x02]), Ok(302));
        // §C.6.2 has "307" as 64 0e ff.
        assert_eq!(status(Coding::Hpack, &[0x48, 0x83, 0x64, 0x0e, 0xff]), Ok(307));
        assert_eq!(status(Coding::Hpack, &[]), Ok(0));
        assert_eq!(status(Coding::Hpack, b"\x00\x07:status\x03503"), Ok(503));
        assert_eq!(status(Coding::Hpack, b"\x00\x85\xb8\x84\x8d\x36\xa3\x03503"), Ok(503));
        for bad in [b"\x48\x03099".as_slice(), b"\x48\x84\x64\x02\xff\xff", b"\x48\x83\x64\x0e\x80", b"\x48\x80"] {
            assert!(status(Coding::Hpack, bad).is_err(), "{bad:x?}");
        }
        // No five bytes panic.
        for a in 0..=255 {
            for b in 0..=255 {
                let _ = status(Coding::Hpack, &[a, b, a ^ b, b, a]);
                let _ = status(Coding::Qpack, &[0, 0, a, b, a ^ b, b, a]);
            }
        }
        for bad in [&[0xbe][..], &[0x80], &[0x08, 2, b'2', b'0'], &[0x08, 9, b'2'], &[0x3f, 0x05], &[0x48, 0x81, 0xff]]
        {
            assert!(status(Coding::Hpack, bad).is_err(), "{bad:x?}");
        }
    }

    #[test]
    fn statuses_of_qpack() {
        assert_eq!(status(Coding::Qpack, &[0, 0, 0xd9]), Ok(200));
        assert_eq!(status(Coding::Qpack, &[0, 0, 0xff, 0x08]), Ok(500));
        assert_eq!(status(Coding::Qpack, &[0, 0, 0x5f, 0x09, 0x82, 0x64, 0x02]), Ok(302));
        assert_eq!(
            status(Coding::Qpack, &[0, 0, 0x27, 0, b':', b's', b't', b'a', b't', b'u', b's', 3, b'2', b'0', b'1']),
            Ok(201)
        );
        for bad in [&[1, 0, 0xd9][..], &[0, 0, 0x80], &[0, 0, 0x40], &[0, 0, 0x10], &[0]] {
            assert!(status(Coding::Qpack, bad).is_err(), "{bad:x?}");
        }
    }
}
