//! Tagged fields: the form of what one version of the plane writes and another reads.
//!
//! A field is a tag (16 bits), a length (32 bits) and its bytes. Readers take the fields that they know by their tags
//! and ignore the others, so either side may be the newer one; what is missing is the reader's to judge.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// What was read is not in this form, or lacks something that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a part of the state from the old process is missing or invalid: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Fields being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn bytes(mut self, tag: u16, value: &[u8]) -> Self {
        self.bytes.extend(tag.to_be_bytes());
        self.bytes.extend((value.len() as u32).to_be_bytes());
        self.bytes.extend(value);
        self
    }

    pub(crate) fn number(self, tag: u16, value: u64) -> Self {
        self.bytes(tag, &value.to_be_bytes())
    }

    pub(crate) fn ip(self, tag: u16, value: IpAddr) -> Self {
        match value {
            IpAddr::V4(a) => self.bytes(tag, &a.octets()),
            IpAddr::V6(a) => self.bytes(tag, &a.octets()),
        }
    }

    pub(crate) fn socket(self, tag: u16, value: SocketAddr) -> Self {
        let scope = if let SocketAddr::V6(a) = value { a.scope_id() } else { 0 };
        let inner = Writer::default().ip(0, value.ip()).number(1, value.port().into()).number(2, scope.into());
        self.bytes(tag, &inner.bytes)
    }

    pub(crate) fn nested(self, tag: u16, fill: impl FnOnce(Writer) -> Writer) -> Self {
        let inner = fill(Writer::default());
        self.bytes(tag, &inner.bytes)
    }

    pub(crate) fn each<T>(
        self,
        tag: u16,
        items: impl IntoIterator<Item = T>,
        fill: impl Fn(Writer, T) -> Writer,
    ) -> Self {
        items.into_iter().fold(self, |w, item| w.nested(tag, |inner| fill(inner, item)))
    }

    pub(crate) fn optional<T>(self, value: Option<T>, write: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => write(self, value),
            None => self,
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Fields being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Checks that the fields are whole.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Self { rest: bytes };
        while fields.next().is_some() {}
        if fields.rest.is_empty() { Ok(Self { rest: bytes }) } else { Err(Malformed("a field is cut off")) }
    }

    fn find(mut self, tag: u16) -> Option<&'a [u8]> {
        Iterator::find(&mut self, |(t, _)| *t == tag).map(|(_, value)| value)
    }

    pub(crate) fn bytes(&self, tag: u16, what: &'static str) -> Result<&'a [u8], Malformed> {
        self.find(tag).ok_or(Malformed(what))
    }

    pub(crate) fn optional_number(&self, tag: u16) -> Result<Option<u64>, Malformed> {
        let Some(bytes) = self.find(tag) else { return Ok(None) };
        let bytes = bytes.try_into().map_err(|_| Malformed("a number has not eight bytes"))?;
        Ok(Some(u64::from_be_bytes(bytes)))
    }

    /// A number that fits its type.
    pub(crate) fn number<T: TryFrom<u64>>(&self, tag: u16, what: &'static str) -> Result<T, Malformed> {
        self.optional_number(tag)?.and_then(|n| T::try_from(n).ok()).ok_or(Malformed(what))
    }

    pub(crate) fn optional_ip(&self, tag: u16) -> Result<Option<IpAddr>, Malformed> {
        match self.find(tag) {
            None => Ok(None),
            Some(bytes) => match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
                (Ok(v4), _) => Ok(Some(v4.into())),
                (_, Ok(v6)) => Ok(Some(v6.into())),
                _ => Err(Malformed("an address has neither four nor sixteen bytes")),
            },
        }
    }

    pub(crate) fn socket(&self, tag: u16, what: &'static str) -> Result<SocketAddr, Malformed> {
        let inner = Reader::new(self.bytes(tag, what)?)?;
        let mut address = SocketAddr::new(inner.optional_ip(0)?.ok_or(Malformed(what))?, inner.number(1, what)?);
        if let SocketAddr::V6(a) = &mut address {
            a.set_scope_id(inner.number(2, what)?);
        }
        Ok(address)
    }

    /// All nested fields of a tag.
    pub(crate) fn each(self, tag: u16) -> impl Iterator<Item = Result<Reader<'a>, Malformed>> {
        self.filter(move |(t, _)| *t == tag).map(|(_, value)| Reader::new(value))
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.rest.split_at_checked(6)?;
        let len = u32::from_be_bytes([head[2], head[3], head[4], head[5]]) as usize;
        let (value, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        Some((u16::from_be_bytes([head[0], head[1]]), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_as_they_were_written_and_unknown_ones_are_ignored() {
        let socket: SocketAddr = "[fe80::1%7]:9".parse().unwrap();
        let bytes = Writer::default()
            .number(1, 77)
            .bytes(900, b"from the future")
            .socket(2, socket)
            .ip(3, [1, 2, 3, 4].into())
            .each(4, [5, 6], |w, n| w.number(1, n))
            .finish();
        let fields = Reader::new(&bytes).unwrap();
        assert_eq!(fields.number::<u8>(1, "").unwrap(), 77);
        assert_eq!(fields.socket(2, "").unwrap(), socket);
        assert_eq!(fields.optional_ip(3).unwrap(), Some([1, 2, 3, 4].into()));
        let items: Vec<u64> = fields.each(4).map(|r| r.unwrap().number(1, "").unwrap()).collect();
        assert_eq!(items, [5, 6]);
        assert_eq!(fields.number::<u8>(5, "gone"), Err(Malformed("gone")));
        assert_eq!(fields.optional_number(5), Ok(None));
        for len in 1..bytes.len() {
            if let Ok(fields) = Reader::new(&bytes[..len]) {
                // Whole fields, fewer of them.
                assert!(fields.count() < 6);
            }
        }
        assert!(Reader::new(&[0, 1, 0xff, 0xff, 0xff, 0xff]).is_err());
    }
}
