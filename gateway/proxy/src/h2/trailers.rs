//! Counts the fields of header blocks, to find what `h2` drops of them without a word: pseudo-header fields in trailers, and
//! those of a request in a response, which are errors (RFC 9113 §8.1, §8.3); and what is above its limit in trailers.
//!
//! Of a client only the blocks of trailers are looked at, so requests without trailers cost nothing. The values of fields are
//! skipped, and those that refer to the dynamic table are `h2`'s to know: that fewer fields come out of `h2` than were in the
//! block is enough to refuse it.

use super::frames::{CONTINUATION, HAS_PRIORITY, Header, PADDED};
use http::HeaderMap;
use sealane_http::ParseError;
use std::collections::VecDeque;

/// Blocks that are remembered until their messages are read. Each stream has few, and there are not so many streams.
const MOST_NOTED: usize = 1024;
/// Of more blocks those are forgotten that belong to no stream.
const MANY_NOTED: usize = 512;
/// Most bytes of an entry of the dynamic table (RFC 7541 §4.1).
const MOST_ENTRY: usize = 4096;
/// What a field counts beside its bytes (RFC 9113 §6.5.2).
const OVERHEAD: usize = 32;
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
struct BlockScan {
    expect: Expect,
    /// Fields so far.
    fields: u32,
    /// There is a pseudo-header field among those that do not refer to the dynamic table.
    has_pseudo: bool,
}

impl BlockScan {
    fn new() -> Self {
        Self { expect: Expect::Field, fields: 0, has_pseudo: false }
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
                Expect::Field => {
                    let (prefix, of) = match byte {
                        0x80.. => (7, Integer::Indexed),
                        0x40..=0x7f => (6, Integer::NameIndex),
                        0x20..=0x3f => (5, Integer::TableSize),
                        0..=0x1f => (4, Integer::NameIndex),
                    };
                    self.fields = self.fields.saturating_add(u32::from(!matches!(of, Integer::TableSize)));
                    self.integer(byte, prefix, of);
                }
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

/// What a header block had in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    stream: u32,
    /// Bytes, encoded.
    bytes: u32,
    fields: u32,
    has_pseudo: bool,
}

impl Noted {
    /// Whether `h2` has handed out all fields of trailers; if not, why. `most` is its limit.
    pub fn check_trailers(&self, trailers: &HeaderMap, most: usize) -> Result<(), ParseError> {
        let dropped = (self.fields as usize).saturating_sub(trailers.len());
        if dropped == 0 {
            return Ok(());
        }
        let left: usize = trailers.iter().map(|(name, value)| name.as_str().len() + value.len() + OVERHEAD).sum();
        // No more than this can have been in them. Huffman codes have at least five bits.
        let all = left + 2 * self.bytes as usize + dropped * (MOST_ENTRY + OVERHEAD);
        Err(if self.has_pseudo || all < most { ParseError::PseudoField } else { ParseError::TrailersTooLarge })
    }

    /// Whether a response's head had one pseudo-header field, its status: `h2` drops those that only requests have.
    pub fn check_response(&self, head: &HeaderMap) -> Result<(), ParseError> {
        if self.fields as usize == head.len() + 1 { Ok(()) } else { Err(ParseError::PseudoField) }
    }
}

/// Watches header blocks as they come.
pub(crate) struct BlockWatch {
    /// The last stream that the client has opened: what comes on one up to it is trailers.
    last_stream: u32,
    block: Option<Block>,
    /// In the order in which they came.
    noted: VecDeque<Noted>,
}

impl BlockWatch {
    /// For a client's trailers.
    pub fn of_client() -> Self {
        Self { last_stream: 0, block: None, noted: VecDeque::new() }
    }

    /// For all blocks of a server: whether a block is one of trailers takes the statuses of those before it.
    pub fn of_server() -> Self {
        Self { last_stream: u32::MAX, ..Self::of_client() }
    }

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
        let Some(Block { scan, bytes, .. }) = self.block.take() else { return };
        if self.noted.len() == MOST_NOTED {
            self.noted.pop_front();
        }
        self.noted.push_back(Noted { stream: header.stream, bytes, fields: scan.fields, has_pseudo: scan.has_pseudo });
    }

    /// Takes what is known of a stream's next block.
    pub fn take(&mut self, stream: u32) -> Option<Noted> {
        let at = self.noted.iter().position(|noted| noted.stream == stream)?;
        self.noted.remove(at)
    }

    /// The stream is over.
    pub fn forget(&mut self, stream: u32) {
        self.noted.retain(|noted| noted.stream != stream);
    }

    /// Forgets blocks of streams that are not there any more, if there are many.
    pub fn tidy(&mut self, is_there: impl Fn(u32) -> bool) {
        if self.noted.len() > MANY_NOTED {
            self.noted.retain(|noted| is_there(noted.stream));
        }
    }
}

/// A header block, in frames.
struct Block {
    scan: BlockScan,
    /// Bytes of it so far.
    bytes: u32,
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
        Self { scan: BlockScan::new(), bytes: 0, padded: header.flags & PADDED != 0, skip, fragment: header.length }
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
        let bytes = &bytes[skipped..];
        self.bytes = self.bytes.saturating_add(bytes.len() as u32);
        self.scan.feed(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_pseudo(block: &[u8]) -> bool {
        let found = |piece: usize| {
            let mut scan = BlockScan::new();
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

    fn note(block: &[u8]) -> Noted {
        let mut watch = BlockWatch::of_server();
        let header = Header { length: block.len() as u32, kind: super::super::frames::HEADERS, flags: 0, stream: 1 };
        watch.begin(header);
        watch.piece(block);
        watch.end(header);
        assert_eq!(watch.take(3), None);
        watch.take(1).unwrap()
    }

    #[test]
    fn what_was_dropped_of_trailers_is_an_error_and_has_a_cause() {
        let block = [literal(0, b"a", b"1"), vec![0x3f, 0xe1, 0x1f], literal(0x40, b"b", b"2"), vec![0xbe]].concat();
        let noted = note(&block);
        assert_eq!((noted.fields, noted.bytes), (3, block.len() as u32));
        let mut trailers = HeaderMap::new();
        trailers.append("a", http::HeaderValue::from_static("1"));
        trailers.append("b", http::HeaderValue::from_static("2"));
        // One of the dynamic table that is no ordinary field.
        assert_eq!(noted.check_trailers(&trailers, 32 * 1024), Err(ParseError::PseudoField));
        trailers.append("b", http::HeaderValue::from_static("2"));
        assert_eq!(noted.check_trailers(&trailers, 32 * 1024), Ok(()));
        let large = [&[0x00, 1, b'a', 0x7f, 0x81, 0xf9, 0x01][..], &[b'v'; 32_000]].concat();
        assert_eq!(note(&large).fields, 1);
        assert_eq!(note(&large).check_trailers(&HeaderMap::new(), 32_000), Err(ParseError::TrailersTooLarge));
        let pseudo = [vec![0x84], large].concat();
        assert_eq!(note(&pseudo).check_trailers(&HeaderMap::new(), 32_000), Err(ParseError::PseudoField));
    }

    #[test]
    fn a_response_has_one_pseudo_field() {
        let mut head = HeaderMap::new();
        head.append("a", http::HeaderValue::from_static("1"));
        let plain = [vec![0x88], literal(0, b"a", b"1")].concat();
        assert_eq!(note(&plain).check_response(&head), Ok(()));
        assert_eq!(note(&[&[0x84][..], &plain].concat()).check_response(&head), Err(ParseError::PseudoField));
    }

    #[test]
    fn blocks_of_a_stream_come_in_their_order_and_are_bounded() {
        let mut watch = BlockWatch::of_server();
        let come = |watch: &mut BlockWatch, stream: u32, fields: usize| {
            let header = Header { length: fields as u32, kind: super::super::frames::HEADERS, flags: 0, stream };
            watch.begin(header);
            watch.piece(&vec![0x88; fields]);
            watch.end(header);
        };
        come(&mut watch, 1, 1);
        come(&mut watch, 3, 2);
        come(&mut watch, 1, 3);
        assert_eq!(watch.take(1).map(|n| n.fields), Some(1));
        assert_eq!(watch.take(1).map(|n| n.fields), Some(3));
        watch.forget(3);
        assert_eq!(watch.take(3), None);
        for stream in 0..2 * MOST_NOTED as u32 {
            come(&mut watch, stream, 1);
        }
        assert_eq!(watch.noted.len(), MOST_NOTED);
        watch.tidy(|stream| stream == 2000);
        assert_eq!(watch.noted.iter().map(|n| n.stream).collect::<Vec<_>>(), [2000]);
    }

    #[test]
    fn nonsense_ends_nowhere_bad() {
        let mut seed = 1u32;
        let mut scan = BlockScan::new();
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            scan.feed(&seed.to_be_bytes()[..2]);
        }
        scan.feed(&[0xff; 100]);
    }
}
