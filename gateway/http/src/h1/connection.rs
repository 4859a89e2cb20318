//! What Connection, Transfer-Encoding and Content-Length say: the part that requests and responses share.

use crate::error::ParseError;
use crate::fields::Fields;
use crate::known::Known;
use crate::message::Version;
use crate::scan;

/// Most members of all Connection fields together: each that names a field costs a pass over the fields.
const MOST_OPTIONS: usize = 16;

/// What is done when Connection names a field that it may not name ([`Known::is_pinned`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinned {
    /// An attempt to have somebody else's field dropped.
    Refuse,
    /// The field is kept.
    Ignore,
}

/// The connection options (RFC 9110 §7.6.1, RFC 9112 §9.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub close: bool,
    pub keep_alive: bool,
    pub upgrade: bool,
    pub te: bool,
}

impl Options {
    /// Reads them, and marks the fields that they name as hop-by-hop.
    pub fn read(fields: &mut Fields, pinned: Pinned) -> Result<Self, ParseError> {
        let mut options = Self::default();
        if !fields.contains(Known::Connection) {
            return Ok(options);
        }
        // What nearly all say names no field, so that no list is read.
        let mut values = fields.all(Known::Connection);
        if let (Some(only), None) = (values.next(), values.next()) {
            options.keep_alive = only.eq_ignore_ascii_case(b"keep-alive");
            options.close = only.eq_ignore_ascii_case(b"close");
            if options.keep_alive || options.close {
                return Ok(options);
            }
        }
        drop(values);
        let mut members = 0;
        fields.mark_nominated(|member| {
            members += 1;
            if members > MOST_OPTIONS || !scan::is_token(member) {
                return Err(ParseError::ConnectionOption);
            }
            if member.eq_ignore_ascii_case(b"keep-alive") {
                options.keep_alive = true;
            } else if member.eq_ignore_ascii_case(b"close") {
                options.close = true;
            } else if member.eq_ignore_ascii_case(b"upgrade") {
                options.upgrade = true;
            } else if member.eq_ignore_ascii_case(b"te") {
                options.te = true;
            } else {
                let known = Known::lookup(member);
                if known.is_pinned() && pinned == Pinned::Refuse {
                    return Err(ParseError::ConnectionOption);
                }
                return Ok(known == Known::Other);
            }
            Ok(false)
        })?;
        Ok(options)
    }

    /// Whether another message may follow on the connection (RFC 9112 §9.3).
    pub fn persistent(&self, version: Version) -> bool {
        !self.close && (version >= Version::Http11 || self.keep_alive)
    }
}

/// What the framing fields say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Nothing,
    Length(u64),
    Chunked,
}

impl Framing {
    /// Reads and checks them (RFC 9112 §6).
    #[inline]
    pub fn read(fields: &Fields, version: Version) -> Result<Self, ParseError> {
        let (coded, counted) = (fields.contains(Known::TransferEncoding), fields.contains(Known::ContentLength));
        if coded {
            if version < Version::Http11 {
                return Err(ParseError::TransferEncodingIn10);
            }
            if counted {
                return Err(ParseError::LengthAndCoding);
            }
            let mut values = fields.all(Known::TransferEncoding);
            let value = values.next().unwrap_or_default();
            if values.next().is_some() {
                return Err(ParseError::TransferEncoding);
            }
            return if value.eq_ignore_ascii_case(b"chunked") { Ok(Framing::Chunked) } else { Err(bad_coding(value)) };
        }
        if counted {
            let mut values = fields.all(Known::ContentLength);
            let value = values.next().unwrap_or_default();
            if values.next().is_some() {
                return Err(ParseError::ContentLengthDuplicate);
            }
            return decimal(value).map(Framing::Length).ok_or(ParseError::ContentLength);
        }
        Ok(Framing::Nothing)
    }
}

/// Says whether a Transfer-Encoding other than `chunked` is one that is merely not implemented: tokens, of which the
/// last and no other is `chunked` (RFC 9112 §6.1 gives 501 to those).
#[cold]
fn bad_coding(value: &[u8]) -> ParseError {
    let mut codings = value.split(|&b| b == b',').map(scan::trim);
    let last = codings.next_back().unwrap_or_default();
    let is_chunked = |c: &[u8]| c.eq_ignore_ascii_case(b"chunked");
    let known = |c: &[u8]| {
        [&b"gzip"[..], b"x-gzip", b"compress", b"x-compress", b"deflate"].iter().any(|k| c.eq_ignore_ascii_case(k))
    };
    if is_chunked(last) && codings.all(known) { ParseError::TransferCoding } else { ParseError::TransferEncoding }
}

/// One plain decimal number of at most 19 digits, below 2^63 so that no peer's signed arithmetic wraps.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut n = 0u64;
    for b in digits {
        if !b.is_ascii_digit() {
            return None;
        }
        n = n * 10 + u64::from(b - b'0');
    }
    (n <= i64::MAX as u64).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"007"), Some(7));
        assert_eq!(decimal(b"9223372036854775807"), Some(i64::MAX as u64));
        for bad in
            ["", "+1", "-1", "1 ", " 1", "1,1", "0x1", "1e3", "9223372036854775808", "18446744073709551621", "\u{661}"]
        {
            assert_eq!(decimal(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn codings() {
        assert_eq!(bad_coding(b"gzip, chunked"), ParseError::TransferCoding);
        for value in ["", "identity", "chunked, chunked", "chunked, gzip", "xchunked", "identity, chunked", "gzip"] {
            assert_eq!(bad_coding(value.as_bytes()), ParseError::TransferEncoding, "{value}");
        }
    }

    #[test]
    fn nominated_fields_become_hop_by_hop() {
        let mut fields = Fields::new();
        for (n, v) in [("Connection", "X-a, close"), ("x-A", "1"), ("X-B", "2"), ("connection", "X-C ,TE"), ("X-C", "")]
        {
            fields.push(n.as_bytes(), v.as_bytes()).unwrap();
        }
        let options = Options::read(&mut fields, Pinned::Refuse).unwrap();
        assert!(options.close && options.te && !options.keep_alive && !options.upgrade);
        assert_eq!(fields.end_to_end().map(|(_, n, _)| n).collect::<Vec<_>>(), [b"X-B"]);
        fields.push(b"Connection", b"authorization").unwrap();
        assert_eq!(Options::read(&mut fields, Pinned::Refuse).unwrap_err(), ParseError::ConnectionOption);
        assert!(Options::read(&mut fields, Pinned::Ignore).is_ok());
    }
}
