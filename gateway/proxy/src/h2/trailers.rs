//! Finds pseudo-header fields in a client's trailers, where they are an error (RFC 9113 §8.1): `h2` drops them without a
//! word.
//!
//! Only the blocks of trailers are looked at, so requests without trailers cost nothing. Fields that refer to the dynamic
//! table are skipped: what the table holds is `h2`'s to know, and none of them is passed on in any case. To know it here would
//! take reading every header block; to have no table (SETTINGS_HEADER_TABLE_SIZE 0) would cost the compression of all
//! requests, and holds only for what follows the client's acknowledgement. Trailers of upstreams are not looked at: whether
//! a block is one of trailers takes the statuses of those before it.

use super::frames::{CONTINUATION, HAS_PRIORITY, Header, PADDED};
use std::collections::VecDeque;

/// Streams with malformed trailers that are remembered until these are read.
const MOST_MALFORMED: usize = 256;
/// The static table's entries for pseudo-header fields (RFC 7541, Appendix A).
const PSEUDO: std::ops::RangeInclusive<u64> = 1..=14;

#[derive(Clone, Copy, Debug)]
enum Expect {
    /// A field, or a change of the table's size.
    Field,
    /// More of an integer (RFC 7541 §5.1).
    Integer { value: u64, shift: u32, of: Integer },
    /// A string's length.
    Length { name: bool },
    /// A name's first byte.
    Name { huffman: bool, length: u64 },
    /// The rest of a string.
    Skip { left: u64, name: bool },
}

#[derive(Clone, Copy, Debug)]
enum Integer {
    /// The whole field.
    Indexed,
    /// The field's name.
    NameIndex,
    TableSize,
    StringLength {
        name: bool,
        huffman: bool,
    },
}

/// Reads one header block (RFC 7541 §6) in pieces.
#[derive(Clone, Copy, Debug)]
struct TrailerScan {
    expect: Expect,
    /// There is one.
    has_pseudo: bool,
}

impl TrailerScan {
    fn new() -> Self {
        Self { expect: Expect::Field, has_pseudo: false }
    }

    /// Looks at bytes. What is no header block is `h2`'s to refuse.
    fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if let Expect::Skip { left, name } = self.expect {
                let n = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                bytes = &bytes[n..];
                self.skip(left - n as u64, name);
                continue;
            }
            bytes = rest;
            match self.expect {
                Expect::Field => match byte {
                    0x80.. => self.integer(byte, 7, Integer::Indexed),
                    0x40..=0x7f => self.integer(byte, 6, Integer::NameIndex),
                    0x20..=0x3f => self.integer(byte, 5, Integer::TableSize),
                    0..=0x1f => self.integer(byte, 4, Integer::NameIndex),
                },
                Expect::Integer { value, shift, of } => {
                    let value = value.saturating_add(u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(u64::MAX));
                    match byte & 0x80 {
                        0 => self.have(value, of),
                        _ => self.expect = Expect::Integer { value, shift: shift + 7, of },
                    }
                }
                Expect::Length { name } => {
                    self.integer(byte, 7, Integer::StringLength { name, huffman: byte & 0x80 != 0 });
                }
                Expect::Name { huffman, length } => {
                    // `:` as it is, and in the Huffman code of RFC 7541, Appendix B: the seven bits 1011100.
                    self.has_pseudo |= if huffman { byte >> 1 == 0b101_1100 } else { byte == b':' };
                    self.skip(length - 1, true);
                }
                Expect::Skip { .. } => {}
            }
        }
    }

    fn integer(&mut self, byte: u8, prefix: u32, of: Integer) {
        let most = (1u8 << prefix).wrapping_sub(1);
        match byte & most {
            value if value == most => self.expect = Expect::Integer { value: u64::from(value), shift: 0, of },
            value => self.have(u64::from(value), of),
        }
    }

    fn have(&mut self, value: u64, of: Integer) {
        self.expect = match of {
            Integer::Indexed => {
                self.has_pseudo |= PSEUDO.contains(&value);
                Expect::Field
            }
            Integer::NameIndex if value == 0 => Expect::Length { name: true },
            Integer::NameIndex => {
                self.has_pseudo |= PSEUDO.contains(&value);
                Expect::Length { name: false }
            }
            Integer::TableSize => Expect::Field,
            Integer::StringLength { name: true, huffman } if value > 0 => Expect::Name { huffman, length: value },
            Integer::StringLength { name, .. } => return self.skip(value, name),
        }
    }

    fn skip(&mut self, left: u64, name: bool) {
        self.expect = match (left, name) {
            (0, true) => Expect::Length { name: false },
            (0, false) => Expect::Field,
            _ => Expect::Skip { left, name },
        }
    }
}

/// Watches a client's header blocks for trailers.
#[derive(Default)]
pub(crate) struct TrailerWatch {
    /// The last stream that the client has opened: what comes on one up to it is trailers.
    last_stream: u32,
    block: Option<Block>,
    /// Streams whose trailers have pseudo-header fields, until these are read.
    malformed: VecDeque<u32>,
}

impl TrailerWatch {
    /// A frame of a header block begins.
    pub fn begin(&mut self, header: Header) {
        match &mut self.block {
            Some(block) if header.kind == CONTINUATION => block.fragment = header.length,
            _ if header.kind == CONTINUATION => {}
            _ if header.stream > self.last_stream => (self.last_stream, self.block) = (header.stream, None),
            _ => self.block = Some(Block::new(header)),
        }
    }

    /// A piece of its payload.
    pub fn piece(&mut self, bytes: &[u8]) {
        if let Some(block) = &mut self.block {
            block.feed(bytes);
        }
    }

    /// The block has ended with this frame.
    pub fn end(&mut self, header: Header) {
        if self.block.take().is_some_and(|block| block.scan.has_pseudo) {
            if self.malformed.len() == MOST_MALFORMED {
                self.malformed.pop_front();
            }
            self.malformed.push_back(header.stream);
        }
    }

    /// Whether a stream's trailers have pseudo-header fields; forgets the stream.
    pub fn are_malformed(&mut self, stream: u32) -> bool {
        let at = self.malformed.iter().position(|id| *id == stream);
        at.is_some_and(|at| self.malformed.remove(at).is_some())
    }
}

/// A header block of trailers, in frames.
struct Block {
    scan: TrailerScan,
    /// The next byte is the length of the padding.
    padded: bool,
    /// Bytes of priority to come.
    skip: u32,
    /// Bytes of the block to come in this frame, with the priority and without the padding.
    fragment: u32,
}

impl Block {
    fn new(header: Header) -> Self {
        let skip = if header.flags & HAS_PRIORITY != 0 { 5 } else { 0 };
        Self { scan: TrailerScan::new(), padded: header.flags & PADDED != 0, skip, fragment: header.length }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        if self.padded
            && let Some((padding, rest)) = bytes.split_first()
        {
            self.padded = false;
            self.fragment = self.fragment.saturating_sub(1 + u32::from(*padding));
            bytes = rest;
        }
        bytes = &bytes[..bytes.len().min(self.fragment as usize)];
        self.fragment -= bytes.len() as u32;
        let skipped = bytes.len().min(self.skip as usize);
        self.skip -= skipped as u32;
        self.scan.feed(&bytes[skipped..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_pseudo(block: &[u8]) -> bool {
        let found = |piece: usize| {
            let mut scan = TrailerScan::new();
            block.chunks(piece).for_each(|bytes| scan.feed(bytes));
            scan.has_pseudo
        };
        let whole = found(block.len().max(1));
        assert!((1..8).all(|piece| found(piece) == whole), "in any pieces");
        whole
    }

    fn literal(first: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
        [&[first, name.len() as u8], name, &[value.len() as u8], value].concat()
    }

    #[test]
    fn pseudo_fields_are_found_in_every_representation() {
        let plain = literal(0, b"x-checksum", b":path");
        assert!(!has_pseudo(&plain));
        for field in [
            vec![0x84],
            vec![0x44, 1, b'/'],
            vec![0x04, 1, b'/'],
            vec![0x14, 1, b'/'],
            literal(0, b":unknown", b"x"),
            literal(0x40, b":path", b"/"),
            // `:path` in Huffman code, as encoders write it.
            vec![0x00, 0x84, 0xb9, 0x58, 0xd3, 0x3f, 1, b'/'],
        ] {
            assert!(has_pseudo(&field), "{field:02x?}");
            assert!(has_pseudo(&[&plain[..], &field, &plain].concat()), "{field:02x?}");
        }
        for field in [
            // `accept-charset` and an entry of the dynamic table.
            vec![0x8f],
            vec![0xbe],
            vec![0xff, 0x80, 0x01],
            vec![0x3f, 0xe1, 0x1f],
            vec![0x7f, 0x00, 1, b'/'],
            literal(0, b"grpc-status", b"0"),
            // A long value full of what would be pseudo-header fields.
            [&[0x00, 1, b'a', 0x7f, 0x49][..], &[0x84; 200]].concat(),
        ] {
            assert!(!has_pseudo(&field), "{field:02x?}");
        }
    }

    #[test]
    fn nonsense_ends_nowhere_bad() {
        let mut seed = 1u32;
        let mut scan = TrailerScan::new();
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scan.feed(&seed.to_be_bytes()[..2]);
        }
        scan.feed(&[0xff; 100]);
    }
}
