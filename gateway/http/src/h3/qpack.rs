//! Field sections (RFC 9204) without a dynamic table.
//!
//! Neither side's dynamic table is used: we announce a capacity of 0, and insert nothing into the peer's. A section
//! then stands on its own, no stream ever waits for another, and there is no shared state to attack. Its price are a
//! few dozen bytes per message.

use super::error::{Code, H3Error};
use super::huffman;
use super::static_table::STATIC;
use crate::error::ParseError;
use crate::known::Known;

/// Counted for every field beside its name and value (RFC 9114 §4.2.2).
const OVERHEAD: usize = 32;
/// Pseudo-header fields of one message, at most.
const PSEUDO: usize = 5;

const fn broken(why: &'static str) -> H3Error {
    H3Error::Connection(Code::QpackDecompressionFailed, why)
}

const CUT: H3Error = broken("a field section is cut off");
const DYNAMIC: H3Error = broken("a field refers to a dynamic table, which has no room");

/// Reads an integer with an `n`-bit prefix (RFC 7541 §5.1); advances `input`.
#[inline]
fn integer(input: &mut &[u8], n: u32) -> Result<usize, H3Error> {
    let (first, mut rest) = input.split_first().ok_or(CUT)?;
    let most = (1usize << n) - 1;
    let mut value = usize::from(*first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (byte, more) = rest.split_first().ok_or(CUT)?;
            rest = more;
            // Nothing that is within the limits is larger.
            if shift > 28 {
                return Err(broken("an integer is too large"));
            }
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *input = rest;
    Ok(value)
}

/// Reads a string whose Huffman flag stands above an `n`-bit length; decoded strings go to `scratch`.
#[inline]
fn string<'a, 'i: 'a>(input: &mut &'i [u8], n: u32, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], H3Error> {
    let coded = input.first().ok_or(CUT)? >> n & 1 == 1;
    let len = integer(input, n)?;
    let (text, rest) = input.split_at_checked(len).ok_or(CUT)?;
    *input = rest;
    if !coded {
        return Ok(text);
    }
    scratch.clear();
    huffman::decode(text, scratch).ok_or(broken("a malformed Huffman code"))?;
    Ok(scratch)
}

/// A field section taken apart. Kept from one section to the next, so that decoding allocates nothing.
#[derive(Debug, Default)]
pub struct QpackScratch {
    bytes: Vec<u8>,
    /// Where each name begins, where it ends and its value begins, and where that ends.
    spans: Vec<[u32; 3]>,
    decoded: Vec<u8>,
}

impl QpackScratch {
    /// Takes a section apart: at most `size` bytes, counted as in RFC 9114 §4.2.2, and `fields` ordinary fields.
    pub(super) fn decode(&mut self, section: &[u8], size: usize, fields: usize) -> Result<(), H3Error> {
        let Self { bytes, spans, decoded } = self;
        bytes.clear();
        spans.clear();
        let input = &mut &section[..];
        // §4.5.1: Required Insert Count and Base; both say that nothing dynamic follows.
        if integer(input, 8)? != 0 {
            return Err(DYNAMIC);
        }
        integer(input, 7)?;
        let mut total = 0;
        while let Some(first) = input.first().copied() {
            let entry = |index: usize| STATIC.get(index).ok_or(broken("no such entry in the static table"));
            let start = bytes.len();
            match first {
                // §4.5.2: indexed. §4.5.4: a literal value with a name from a table.
                0x40.. => {
                    let indexed = first & 0x80 != 0;
                    if first & (if indexed { 0x40 } else { 0x10 }) == 0 {
                        return Err(DYNAMIC);
                    }
                    let (name, value) = entry(integer(input, if indexed { 6 } else { 4 })?)?;
                    bytes.extend_from_slice(name.as_bytes());
                    let name_end = bytes.len();
                    if indexed {
                        bytes.extend_from_slice(value.as_bytes());
                    } else {
                        let value = string(input, 7, decoded)?;
                        bytes.extend_from_slice(value);
                    }
                    spans.push([start as u32, name_end as u32, bytes.len() as u32]);
                }
                // §4.5.6: both literal.
                0x20..0x40 => {
                    let name = string(input, 3, decoded)?;
                    bytes.extend_from_slice(name);
                    let name_end = bytes.len();
                    let value = string(input, 7, decoded)?;
                    bytes.extend_from_slice(value);
                    spans.push([start as u32, name_end as u32, bytes.len() as u32]);
                }
                // §4.5.3, §4.5.5: post-base.
                _ => return Err(DYNAMIC),
            }
            total += bytes.len() - start + OVERHEAD;
            if total > size {
                return Err(ParseError::HeadTooLarge.into());
            }
            // Pseudo-header fields come on top of those that are counted for HTTP/1.1.
            if spans.len() > fields + PSEUDO {
                return Err(ParseError::TooManyFields.into());
            }
        }
        Ok(())
    }

    /// The fields of the section, in their order.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|&[start, name_end, end]| {
            let (start, name_end, end) = (start as usize, name_end as usize, end as usize);
            (&self.bytes[start..name_end], &self.bytes[name_end..end])
        })
    }
}

/// Appends an integer with an `n`-bit prefix whose other bits are `first`.
#[inline]
fn put_integer(out: &mut Vec<u8>, first: u8, n: u32, value: usize) {
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

/// Appends what every section begins with.
#[inline]
pub(super) fn put_prefix(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends an entry of the static table whole.
#[inline]
pub(super) fn put_indexed(out: &mut Vec<u8>, index: usize) {
    put_integer(out, 0xc0, 6, index);
}

/// Appends a value under the name of an entry of the static table. It is a plain literal: the Huffman code saves a
/// fifth of the bytes for several times the work.
#[inline]
pub(super) fn put_named(out: &mut Vec<u8>, index: usize, value: &[u8]) {
    put_integer(out, 0x50, 4, index);
    put_integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// Appends a field; its name in lower case (RFC 9114 §4.2), found in the static table if it is a known one.
#[inline]
pub(super) fn put_field(out: &mut Vec<u8>, known: Known, name: &[u8], value: &[u8]) {
    let found = usize::from(FIRST[known as usize]);
    if found < STATIC.len() {
        let same = |i: &usize| STATIC[*i].0 == STATIC[found].0;
        match (found..STATIC.len()).take_while(same).find(|i| STATIC[*i].1.as_bytes() == value) {
            Some(index) => put_indexed(out, index),
            None => put_named(out, found, value),
        }
        return;
    }
    put_integer(out, 0x20, 3, name.len());
    out.extend(name.iter().map(u8::to_ascii_lowercase));
    put_integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// The static entry of a status, if there is one.
#[inline]
pub(super) fn status_index(status: u16) -> Option<usize> {
    match status {
        103 => Some(24),
        200 => Some(25),
        304 => Some(26),
        404 => Some(27),
        503 => Some(28),
        100 => Some(63),
        204 => Some(64),
        206 => Some(65),
        302 => Some(66),
        400 => Some(67),
        403 => Some(68),
        421 => Some(69),
        425 => Some(70),
        500 => Some(71),
        _ => None,
    }
}

/// The first entry of the static table with a known name; beyond the table if there is none.
static FIRST: [u8; 64] = {
    let mut first = [u8::MAX; 64];
    let mut k = 1;
    while k < Known::ALL.len() {
        let name = Known::ALL[k].name().as_bytes();
        let mut i = STATIC.len();
        while i > 0 {
            i -= 1;
            let entry = STATIC[i].0.as_bytes();
            let mut same = entry.len() == name.len();
            let mut at = 0;
            while same && at < name.len() {
                same = entry[at] == name[at].to_ascii_lowercase();
                at += 1;
            }
            if same {
                first[k] = i as u8;
            }
        }
        k += 1;
    }
    first
};

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(section: &[u8]) -> Result<Vec<(String, String)>, H3Error> {
        let mut scratch = QpackScratch::default();
        scratch.decode(section, 4096, 11)?;
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        Ok(scratch.fields().map(|(n, v)| (text(n), text(v))).collect())
    }

    #[test]
    fn round_trip() {
        let mut out = Vec::new();
        put_prefix(&mut out);
        put_indexed(&mut out, status_index(500).unwrap());
        put_field(&mut out, Known::ContentType, b"Content-Type", b"text/plain");
        put_field(&mut out, Known::CacheControl, b"Cache-Control", b"no-store");
        put_field(&mut out, Known::Other, b"X-Long-Name-Of-Ours", "v".repeat(300).as_bytes());
        let fields = decoded(&out).unwrap();
        let long = "v".repeat(300);
        let want = [
            (":status", "500"),
            ("content-type", "text/plain"),
            ("cache-control", "no-store"),
            ("x-long-name-of-ours", &long),
        ];
        assert!(fields.iter().map(|(n, v)| (&n[..], &v[..])).eq(want), "{fields:?}");
    }

    #[test]
    fn every_known_name_and_status_is_encoded_as_itself() {
        for (i, known) in Known::ALL.iter().enumerate().skip(1) {
            let mut out = vec![0, 0];
            put_field(&mut out, *known, known.name().as_bytes(), b"some value");
            let name = known.name().to_ascii_lowercase();
            assert_eq!(decoded(&out).unwrap(), [(name, "some value".to_owned())], "{i}");
        }
        for status in 100..600 {
            if let Some(index) = status_index(status) {
                assert_eq!(STATIC[index], (":status", &status.to_string()[..]));
            }
        }
    }

    #[test]
    fn huffman_strings() {
        // RFC 7541 §C.4.1's coding of www.example.com under :authority.
        let coded = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        let section = [&[0, 0, 0x50, 0x80 | 12][..], &coded].concat();
        assert_eq!(decoded(&section).unwrap(), [(":authority".to_owned(), "www.example.com".to_owned())]);
    }

    #[test]
    fn what_is_refused() {
        for bad in [
            &b""[..],
            &[1, 0],                                           // a required insert count
            &[0, 0, 0x80],                                     // indexed, dynamic
            &[0, 0, 0xff, 0x40],                               // static 127
            &[0, 0, 0x40, 0],                                  // name from the dynamic table
            &[0, 0, 0x10],                                     // post-base
            &[0, 0, 0x00, 0],                                  // post-base name
            &[0, 0, 0x51],                                     // cut
            &[0, 0, 0x51, 5, b'a'],                            // cut
            &[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], // huge index
            &[0, 0, 0x51, 0x81, 0],                            // bad padding
        ] {
            assert_eq!(decoded(bad).unwrap_err().code(), Code::QpackDecompressionFailed, "{bad:?}");
        }
        let many = [&[0, 0][..], &[0xc0 | 25; 17]].concat();
        assert_eq!(decoded(&many), Err(H3Error::Message(ParseError::TooManyFields)));
        let mut large = vec![0, 0];
        put_field(&mut large, Known::Other, b"a", &[b'x'; 5000]);
        assert_eq!(decoded(&large), Err(H3Error::Message(ParseError::HeadTooLarge)));
    }
}
