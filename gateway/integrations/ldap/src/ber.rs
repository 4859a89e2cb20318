//! BER, as LDAP uses it (RFC 4511 §5.1): definite lengths, and tags of one byte.
//!
//! What is read is a slice of what came. Nothing here calls itself: how deep a server nests its values makes no difference.

/// Tags of ASN.1.
pub const BOOLEAN: u8 = 0x01;
pub const INTEGER: u8 = 0x02;
pub const OCTET_STRING: u8 = 0x04;
pub const ENUMERATED: u8 = 0x0a;
pub const SEQUENCE: u8 = 0x30;
pub const SET: u8 = 0x31;

/// The most bytes of a length: with those, a message is longer than any that is accepted.
const MAX_LENGTH_BYTES: usize = 4;

/// The tag and the length at the beginning of an element, and how many bytes they take. `Ok(None)`: some are missing.
pub fn head(bytes: &[u8]) -> Result<Option<(u8, usize, usize)>, Malformed> {
    let [tag, first, rest @ ..] = bytes else { return Ok(None) };
    if tag & 0x1f == 0x1f {
        return Err(Malformed);
    }
    match usize::from(*first) {
        length @ 0..0x80 => Ok(Some((*tag, length, 2))),
        more => {
            // 0x80: the indefinite form, which LDAP does not have.
            let count = more - 0x80;
            if count == 0 || count > MAX_LENGTH_BYTES {
                return Err(Malformed);
            }
            let Some(length) = rest.get(..count) else { return Ok(None) };
            Ok(Some((*tag, length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), 2 + count)))
        }
    }
}

/// Bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads elements one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next element: its tag and its content.
    pub fn any(&mut self) -> Result<(u8, &'a [u8]), Malformed> {
        let (tag, length, start) = head(self.0)?.ok_or(Malformed)?;
        let end = start.checked_add(length).filter(|end| *end <= self.0.len()).ok_or(Malformed)?;
        let content = &self.0[start..end];
        self.0 = &self.0[end..];
        Ok((tag, content))
    }

    /// The content of the next element, which has this tag.
    pub fn element(&mut self, tag: u8) -> Result<&'a [u8], Malformed> {
        let (found, content) = self.any()?;
        if found == tag { Ok(content) } else { Err(Malformed) }
    }

    /// An integer that is not negative, or a value of an enumeration.
    pub fn number(&mut self, tag: u8) -> Result<u32, Malformed> {
        let content = self.element(tag)?;
        match content {
            [] | [0x80..=0xff, ..] => Err(Malformed),
            _ if content.len() > 5 || content.len() == 5 && content[0] != 0 => Err(Malformed),
            _ => Ok(content.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))),
        }
    }

    /// A text, with what is no text replaced.
    pub fn text(&mut self) -> Result<String, Malformed> {
        Ok(String::from_utf8_lossy(self.element(OCTET_STRING)?).into_owned())
    }
}

/// Appends an element.
pub fn put(out: &mut Vec<u8>, tag: u8, content: &[u8]) {
    out.push(tag);
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let skipped = bytes.iter().take_while(|byte| **byte == 0).count();
        out.push(0x80 | (bytes.len() - skipped) as u8);
        out.extend_from_slice(&bytes[skipped..]);
    }
    out.extend_from_slice(content);
}

/// Appends an integer that is not negative, or a value of an enumeration.
pub fn put_number(out: &mut Vec<u8>, tag: u8, number: u32) {
    let bytes = u64::from(number).to_be_bytes();
    let skipped = bytes.iter().take_while(|byte| **byte == 0).count().min(7);
    // The first bit is the sign.
    let skipped = if bytes[skipped] >= 0x80 { skipped - 1 } else { skipped };
    put(out, tag, &bytes[skipped..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for number in [0, 1, 127, 128, 255, 256, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let mut out = Vec::new();
            put_number(&mut out, INTEGER, number);
            assert_eq!(Reader::new(&out).number(INTEGER), Ok(number), "{out:x?}");
        }
        for length in [0, 1, 127, 128, 255, 256, 70_000] {
            let (content, mut out) = (vec![7; length], Vec::new());
            put(&mut out, OCTET_STRING, &content);
            assert_eq!(Reader::new(&out).element(OCTET_STRING), Ok(&content[..]));
            assert_eq!(head(&out[..1]), Ok(None));
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bytes in [
            &[][..],
            &[0x30],
            &[0x30, 1],
            &[0x30, 0x80, 0, 0],
            &[0x30, 0x85, 0, 0, 0, 0, 0],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x1f, 0x81, 0x01, 0],
        ] {
            assert!(Reader::new(bytes).any().is_err(), "{bytes:x?}");
        }
        for number in [&[2, 0][..], &[2, 1, 0x80], &[2, 5, 1, 0, 0, 0, 0], &[2, 6, 0, 0, 0, 0, 0, 0], &[4, 1, 1]] {
            assert!(Reader::new(number).number(INTEGER).is_err(), "{number:x?}");
        }
    }
}
