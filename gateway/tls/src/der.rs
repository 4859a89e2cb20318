//! Reads DER (X.690) of which x509-parser has no types: OCSP responses, the parts of a certificate that are signed, bundles of
//! certificates with keys.

/// What is left of some DER.
#[derive(Debug)]
pub struct Der<'a>(pub &'a [u8]);

/// The tags of elements, with their classes.
#[allow(missing_docs, reason = "these are the standard's names, and say all there is")]
pub mod tag {
    pub const BOOLEAN: u8 = 0x01;
    pub const INTEGER: u8 = 0x02;
    pub const BIT_STRING: u8 = 0x03;
    pub const OCTET_STRING: u8 = 0x04;
    pub const OID: u8 = 0x06;
    pub const ENUMERATED: u8 = 0x0a;
    pub const GENERALIZED_TIME: u8 = 0x18;
    pub const SEQUENCE: u8 = 0x30;
    /// `[0]` and so on, explicit or of a constructed type.
    pub const CONTEXT: u8 = 0xa0;
    /// `[0]`, implicit and of a primitive type.
    pub const CONTEXT_PRIMITIVE: u8 = 0x80;
}

impl<'a> Der<'a> {
    /// The next element: its tag, its content, and all of it. Nothing is taken where there is none, or none in DER.
    pub fn element(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        // Tags above 30 take more bytes; nothing that is read here has any.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (length, content) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, content) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let length = bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
                // The shortest form only.
                if bytes[0] == 0 || length < 0x80 {
                    return None;
                }
                (length, content)
            }
            _ => return None,
        };
        let (content, rest) = content.split_at_checked(length)?;
        let whole = &self.0[..self.0.len() - rest.len()];
        self.0 = rest;
        Some((tag, content, whole))
    }

    /// The content of the next element, which has this tag. Nothing is taken where it has another.
    pub fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let before = self.0;
        match self.element() {
            Some((found, content, _)) if found == tag => Some(content),
            _ => {
                self.0 = before;
                None
            }
        }
    }

    /// The bits of the next element, which is a BIT STRING of whole bytes.
    pub fn bits(&mut self) -> Option<&'a [u8]> {
        self.expect(tag::BIT_STRING)?.strip_prefix(&[0])
    }

    /// Whether nothing is left.
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes an element.
pub fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let mut out = vec![tag];
    if content.len() < 0x80 {
        out.push(content.len() as u8);
    } else {
        let significant = length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1);
        out.push(0x80 | (length.len() - significant) as u8);
        out.extend_from_slice(&length[significant..]);
    }
    out.extend_from_slice(content);
    out
}

/// A GeneralizedTime of the form that certificates and OCSP responses have (RFC 5280 §4.1.2.5.2), in seconds since 1970.
pub fn time(text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"Z").filter(|digits| digits.len() == 14)?;
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let text = std::str::from_utf8(&digits[range]).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
        text.parse().ok()
    };
    let (year, month, day) = (number(0..4)?, number(4..6)?, number(6..8)?);
    let (hour, minute, second) = (number(8..10)?, number(10..12)?, number(12..14)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Days since 1970 of the proleptic Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    u64::try_from(days * 86_400 + hour * 3_600 + minute * 60 + second).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_as_they_are_written() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x1_0000] {
            let written = [element(tag::SEQUENCE, &vec![7; length]), vec![5, 0]].concat();
            let mut der = Der(&written);
            assert_eq!(der.expect(tag::INTEGER), None);
            assert_eq!(der.expect(tag::SEQUENCE), Some(&vec![7; length][..]), "{length}");
            assert_eq!(der.element(), Some((5, &[][..], &[5, 0][..])));
            assert!(der.is_at_end() && der.element().is_none());
        }
    }

    #[test]
    fn lengths_have_one_form() {
        let bad: [&[u8]; 8] = [
            &[],
            &[0x30],
            &[0x30, 1],
            &[0x30, 0x80],
            &[0x30, 0x81, 1, 0],
            &[0x30, 0x82, 0, 0x80],
            &[0x30, 0x85, 1, 1, 1, 1, 1],
            &[0x3f, 1, 0],
        ];
        for bad in bad {
            assert_eq!(Der(bad).element(), None, "{bad:?}");
        }
    }

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(time(b"19700101000000Z"), Some(0));
        assert_eq!(time(b"20000229235959Z"), Some(951_868_799));
        assert_eq!(time(b"20261123130211Z"), Some(1_795_438_931));
        assert_eq!(time(b"21000301000000Z"), Some(4_107_542_400));
        for bad in
            ["", "Z", "20261123130211", "20261123130211+", "2026112313021Z", "20261323130211Z", "20261123240000Z"]
        {
            assert_eq!(time(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(time(b"19691231235959Z"), None);
    }
}
