//! Bodies: where the pieces lie in the bytes that came, and where the body ends (RFC 9112 §6, §7.1).
//!
//! Nothing is copied or buffered here. The chunked coding's state chart (`*` is where a body starts):
//!
//! ```text
//! * Size ─;─► Extension ─CR─► SizeLf ─size > 0─► Data ─► DataCr ─► DataLf ─┐
//!   ▲  └─────────CR───────────▲ └────size = 0─► Trailers ─► Done           │
//!   └──────────────────────────────────────────────────────────────────────┘
//! ```

use super::Limits;
use super::section::parse_section;
use crate::error::ParseError;
use crate::fields::Fields;
use crate::message::BodyLength;
use crate::scan;

/// Most hexadecimal digits of a chunk size: all that a u64 holds below 2^60, leading zeros included.
const MOST_SIZE_DIGITS: u8 = 15;
/// Most bytes of one chunk's extensions.
const MOST_EXTENSION: u32 = 256;
/// Most bytes of all extensions of a body, to which every 16 bytes of data add one: extensions carry nothing here,
/// and must not be a way to keep us busy.
const EXTENSION_ALLOWANCE: u64 = 4 * 1024;

/// A piece of a body, and how many bytes of the input it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyPiece<'a> {
    /// So many bytes of the input are done with, framing included; never more than there are.
    pub consumed: usize,
    /// What came.
    pub what: What<'a>,
}

/// What a [`BodyDecoder`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// Bytes of the body, at least one. Go on with the rest of the input.
    Data(&'a [u8]),
    /// Nothing more in this input: call again with what was not consumed and more.
    NeedMore,
    /// The body is complete; [`BodyDecoder::trailers`] has at least one field.
    Trailers,
    /// The body is complete, without trailers.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Counted(u64),
    UntilClose,
    Size { digits: u8 },
    Extension(Extension),
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
    Done,
}

/// Where in a chunk's extensions (RFC 9112 §7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extension {
    NameStart,
    Name,
    ValueStart,
    Value,
    Quoted,
    QuotedPair,
    AfterQuoted,
}

/// Finds the pieces of one body after the other.
#[derive(Debug)]
pub struct BodyDecoder {
    state: State,
    /// What is left of the chunk.
    left: u64,
    /// Bytes of extensions of this chunk.
    extension: u32,
    /// Bytes of extensions that the body may still have.
    allowance: u64,
    most_fields: usize,
    most_trailer_bytes: usize,
    trailers: Fields,
}

impl BodyDecoder {
    /// For a body of this length. Of the limits those of trailers and the number of fields count.
    pub fn new(length: BodyLength, limits: &Limits) -> Self {
        let mut decoder = Self {
            state: State::Done,
            left: 0,
            extension: 0,
            allowance: EXTENSION_ALLOWANCE,
            most_fields: limits.fields,
            most_trailer_bytes: limits.trailers.min(limits.head),
            trailers: Fields::new(),
        };
        decoder.reset(length);
        decoder
    }

    /// Starts with another body under the same limits, keeping the memory.
    #[inline]
    pub fn reset(&mut self, length: BodyLength) {
        self.state = match length {
            BodyLength::None | BodyLength::Known(0) => State::Done,
            BodyLength::Known(n) => State::Counted(n),
            BodyLength::Chunked => State::Size { digits: 0 },
            BodyLength::UntilClose => State::UntilClose,
        };
        self.left = 0;
        self.extension = 0;
        self.allowance = EXTENSION_ALLOWANCE;
        self.trailers.clear();
    }

    /// Limits the trailers of the body that begins. Only bodies with [`BodyLength::Chunked`] have trailers.
    pub fn limit_trailers(&mut self, limits: &Limits) {
        self.most_fields = limits.fields;
        self.most_trailer_bytes = limits.trailers.min(limits.head);
    }

    /// Whether the body is complete.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The trailer fields, without those that may not be there (RFC 9110 §6.5.1). Empty until the body is complete.
    #[inline]
    pub fn trailers(&self) -> &Fields {
        &self.trailers
    }

    /// The same, to be swapped away.
    #[inline]
    pub fn trailers_mut(&mut self) -> &mut Fields {
        &mut self.trailers
    }

    /// How many bytes of body are still to come at least, as far as is known: for deciding how much to read.
    #[inline]
    pub fn left(&self) -> u64 {
        match self.state {
            State::Counted(n) => n,
            State::Data => self.left,
            _ => 0,
        }
    }

    /// Finds the next piece at the start of `input`, which begins where the last call's consumption ended.
    ///
    /// A trailer section is taken as a whole: `NeedMore` may then leave up to [`Limits::trailers`] bytes unconsumed.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Result<BodyPiece<'a>, ParseError> {
        self.decode_at_most(input, usize::MAX)
    }

    /// The same, with at most `most` bytes of the body (at least 1) in one piece. What frames the body does not count: a
    /// piece of framing is taken in whole, however little of the body its receiver has room for.
    pub fn decode_at_most<'a>(&mut self, input: &'a [u8], most: usize) -> Result<BodyPiece<'a>, ParseError> {
        match self.state {
            State::Done => Ok(BodyPiece { consumed: 0, what: What::End }),
            _ if input.is_empty() => Ok(BodyPiece { consumed: 0, what: What::NeedMore }),
            State::UntilClose => {
                let take = input.len().min(most);
                Ok(BodyPiece { consumed: take, what: What::Data(&input[..take]) })
            }
            State::Counted(left) => {
                let take = at_most(input.len().min(most), left);
                let left = left - take as u64;
                self.state = if left == 0 { State::Done } else { State::Counted(left) };
                Ok(BodyPiece { consumed: take, what: What::Data(&input[..take]) })
            }
            _ => self.decode_chunked(input, most),
        }
    }

    /// Says whether the body is complete now that the connection has closed (RFC 9112 §8).
    pub fn eof(&mut self) -> Result<(), ParseError> {
        match self.state {
            State::Done => Ok(()),
            State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err(ParseError::Truncated),
        }
    }

    fn decode_chunked<'a>(&mut self, input: &'a [u8], most: usize) -> Result<BodyPiece<'a>, ParseError> {
        let mut at = 0;
        while let Some(&b) = input.get(at) {
            match self.state {
                State::Size { digits } => self.state = self.size_byte(b, digits)?,
                State::Extension(state) => {
                    self.extension += 1;
                    self.allowance = self.allowance.saturating_sub(1);
                    if self.extension > MOST_EXTENSION || self.allowance == 0 {
                        return Err(ParseError::ChunkExtensionLength);
                    }
                    self.state = extension_byte(b, state)?;
                }
                State::SizeLf => {
                    if b != b'\n' {
                        return Err(ParseError::BareCr);
                    }
                    self.extension = 0;
                    self.state = if self.left == 0 { State::Trailers } else { State::Data };
                }
                State::Data => {
                    let take = at_most((input.len() - at).min(most), self.left);
                    self.left -= take as u64;
                    self.allowance = (self.allowance + take as u64 / 16).min(EXTENSION_ALLOWANCE);
                    if self.left == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok(BodyPiece { consumed: at + take, what: What::Data(&input[at..at + take]) });
                }
                State::DataCr if b == b'\r' => self.state = State::DataLf,
                State::DataLf if b == b'\n' => self.state = State::Size { digits: 0 },
                State::DataCr | State::DataLf => return Err(ParseError::ChunkEnd),
                State::Trailers => return self.decode_trailers(input, at),
                // Not reached: `decode` keeps these to itself.
                State::Done | State::Counted(_) | State::UntilClose => break,
            }
            at += 1;
        }
        Ok(BodyPiece { consumed: at, what: What::NeedMore })
    }

    #[inline]
    fn size_byte(&mut self, b: u8, digits: u8) -> Result<State, ParseError> {
        let digit = match b {
            b'0'..=b'9' => b - b'0',
            b'a'..=b'f' => b - b'a' + 10,
            b'A'..=b'F' => b - b'A' + 10,
            b'\r' if digits > 0 => return Ok(State::SizeLf),
            b';' if digits > 0 => return Ok(State::Extension(Extension::NameStart)),
            _ => return Err(ParseError::ChunkSize),
        };
        if digits == MOST_SIZE_DIGITS {
            return Err(ParseError::ChunkSize);
        }
        // What was left of the chunk before is 0.
        self.left = self.left << 4 | u64::from(digit);
        Ok(State::Size { digits: digits + 1 })
    }

    #[inline]
    fn decode_trailers<'a>(&mut self, input: &'a [u8], at: usize) -> Result<BodyPiece<'a>, ParseError> {
        // The common case: none.
        if let Some(b"\r\n") = input.get(at..at + 2) {
            self.state = State::Done;
            return Ok(BodyPiece { consumed: at + 2, what: What::End });
        }
        let section = &input[at..];
        let seen = &section[..section.len().min(self.most_trailer_bytes)];
        let length = parse_section(seen, self.most_fields, false, &mut self.trailers).map_err(|e| match e {
            ParseError::TooManyFields | ParseError::HeadTooLarge => ParseError::TrailersTooLarge,
            e => e,
        })?;
        let Some(length) = length else {
            if section.len() >= self.most_trailer_bytes {
                return Err(ParseError::TrailersTooLarge);
            }
            return Ok(BodyPiece { consumed: at, what: What::NeedMore });
        };
        self.trailers.keep_trailers_only();
        self.state = State::Done;
        let what = if self.trailers.is_empty() { What::End } else { What::Trailers };
        Ok(BodyPiece { consumed: at + length, what })
    }
}

fn at_most(available: usize, left: u64) -> usize {
    usize::try_from(left).map_or(available, |left| left.min(available))
}

/// `*( ";" token [ "=" ( token / quoted-string ) ] )`, without the white space that RFC 9112 §7.1.1 calls bad: parsers
/// disagree about it, and nobody sends it.
fn extension_byte(b: u8, state: Extension) -> Result<State, ParseError> {
    use Extension::*;
    let token = scan::is_token(&[b]);
    let next = match (state, b) {
        (NameStart | Name, _) if token => Name,
        (Name, b'=') => ValueStart,
        (ValueStart, b'"') => Quoted,
        (ValueStart | Value, _) if token => Value,
        (Quoted, b'"') => AfterQuoted,
        (Quoted, b'\\') => QuotedPair,
        (Quoted | QuotedPair, b'\t' | b' '..=0x7e | 0x80..) => Quoted,
        (Name | Value | AfterQuoted, b';') => NameStart,
        (Name | Value | AfterQuoted, b'\r') => return Ok(State::SizeLf),
        _ => return Err(ParseError::ChunkExtension),
    };
    Ok(State::Extension(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes all of `input` in pieces of `step` bytes; gives the body and how much was consumed.
    fn decode(input: &[u8], length: BodyLength, step: usize) -> Result<(Vec<u8>, usize, bool, usize), ParseError> {
        let mut decoder = BodyDecoder::new(length, &Limits { trailers: 64, ..Limits::default() });
        let (mut body, mut start, mut end) = (Vec::new(), 0, 0);
        loop {
            let piece = decoder.decode(&input[start..end])?;
            assert!(piece.consumed <= end - start);
            start += piece.consumed;
            match piece.what {
                What::Data(d) => {
                    assert!(!d.is_empty());
                    body.extend_from_slice(d);
                }
                What::NeedMore if end == input.len() => return Ok((body, start, false, 0)),
                What::NeedMore => end = (end + step).min(input.len()),
                What::Trailers | What::End => return Ok((body, start, true, decoder.trailers().len())),
            }
        }
    }

    #[test]
    fn chunked_in_pieces_of_every_size() {
        let text = b"5\r\nhello\r\n00A;a;b=c;d=\"e\\\"\t;\xff\"\r\n0123456789\r\n1;x\r\n!\r\n0\r\nX: y\r\nHost: evil\r\n\r\nGET";
        for step in 1..=text.len() {
            let (body, consumed, done, trailers) = decode(text, BodyLength::Chunked, step).unwrap();
            assert_eq!((&body[..], consumed, done, trailers), (&b"hello0123456789!"[..], text.len() - 3, true, 1));
        }
    }

    /// A receiver with little room gets little of the body at a time, and framing does not stop for it.
    #[test]
    fn a_piece_is_no_larger_than_its_receivers_room() {
        let text = b"5;name=value\r\nhello\r\n0\r\nX: y\r\n\r\n";
        let mut decoder = BodyDecoder::new(BodyLength::Chunked, &Limits::default());
        let (mut body, mut at) = (Vec::new(), 0);
        loop {
            let piece = decoder.decode_at_most(&text[at..], 1).unwrap();
            at += piece.consumed;
            match piece.what {
                What::Data(data) => {
                    assert_eq!(data.len(), 1);
                    body.extend_from_slice(data);
                }
                What::NeedMore => panic!("everything has come"),
                What::Trailers | What::End => break,
            }
        }
        assert_eq!((&body[..], at), (&b"hello"[..], text.len()));
        for length in [BodyLength::Known(5), BodyLength::UntilClose] {
            let mut decoder = BodyDecoder::new(length, &Limits::default());
            assert_eq!(decoder.decode_at_most(b"hello", 2).unwrap().what, What::Data(b"he"));
        }
    }

    #[test]
    fn counted_and_until_close() {
        let until = |n| decode(b"hello", n, 2).unwrap();
        assert_eq!(until(BodyLength::Known(3)), (b"hel".to_vec(), 3, true, 0));
        assert_eq!(until(BodyLength::Known(6)), (b"hello".to_vec(), 5, false, 0));
        assert_eq!(until(BodyLength::None), (vec![], 0, true, 0));
        assert_eq!(until(BodyLength::UntilClose), (b"hello".to_vec(), 5, false, 0));
        let mut decoder = BodyDecoder::new(BodyLength::UntilClose, &Limits::default());
        assert_eq!((decoder.eof(), decoder.is_done()), (Ok(()), true));
        for length in [BodyLength::Known(1), BodyLength::Chunked] {
            assert_eq!(BodyDecoder::new(length, &Limits::default()).eof(), Err(ParseError::Truncated));
        }
        assert_eq!(BodyDecoder::new(BodyLength::None, &Limits::default()).eof(), Ok(()));
    }

    #[test]
    fn refusals() {
        for (input, error) in [
            (&b"\r\n"[..], ParseError::ChunkSize),
            (b";a\r\n", ParseError::ChunkSize),
            (b"0x5\r\n", ParseError::ChunkSize),
            (b"+5\r\n", ParseError::ChunkSize),
            (b"-1\r\n", ParseError::ChunkSize),
            (b" 5\r\n", ParseError::ChunkSize),
            (b"5 \r\n", ParseError::ChunkSize),
            (b"5 ;a\r\n", ParseError::ChunkSize),
            (b"5_0\r\n", ParseError::ChunkSize),
            (b"5\n", ParseError::ChunkSize),
            (b"5\rX", ParseError::BareCr),
            (b"0000000000000005\r\n", ParseError::ChunkSize),
            (b"FFFFFFFFFFFFFFFFF\r\n", ParseError::ChunkSize),
            (b"5;\r\n", ParseError::ChunkExtension),
            (b"5;a=\r\n", ParseError::ChunkExtension),
            (b"5; a\r\n", ParseError::ChunkExtension),
            (b"5;a\n", ParseError::ChunkExtension),
            (b"5;a\0", ParseError::ChunkExtension),
            (b"5;a=\"\r\n", ParseError::ChunkExtension),
            (b"5;a=\"\n", ParseError::ChunkExtension),
            (b"5;a=\"b\"c", ParseError::ChunkExtension),
            (b"5;a\rX", ParseError::BareCr),
            (b"5\r\nhelloX", ParseError::ChunkEnd),
            (b"5\r\nhello\n", ParseError::ChunkEnd),
            (b"5\r\nhello\rX", ParseError::ChunkEnd),
            (b"0\r\n\n", ParseError::BareLf),
            (b"0\r\nA: b\n", ParseError::BareLf),
            (b"0\r\n A: b\r\n", ParseError::LeadingSpace),
            (b"0\r\nGET / HTTP/1.1\r\n", ParseError::SpaceBeforeColon),
        ] {
            assert_eq!(decode(input, BodyLength::Chunked, input.len()), Err(error), "{}", input.escape_ascii());
            assert_eq!(decode(input, BodyLength::Chunked, 1), Err(error), "{}", input.escape_ascii());
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let one = format!("1;{}\r\n", "a".repeat(256));
        assert_eq!(decode(one.as_bytes(), BodyLength::Chunked, 99), Err(ParseError::ChunkExtensionLength));
        let many = "1;aaaaaaaaaaaaaaaaaaaa\r\nx\r\n".repeat(300);
        assert_eq!(decode(many.as_bytes(), BodyLength::Chunked, 999), Err(ParseError::ChunkExtensionLength));
        // With data enough between them, as a client that signs each chunk sends.
        let signed = format!("400;signature={}\r\n{}\r\n", "a".repeat(40), "x".repeat(1024)).repeat(300);
        assert_eq!(decode(signed.as_bytes(), BodyLength::Chunked, 999).unwrap().0.len(), 300 * 1024);
        let trailers = format!("0\r\nA: {}", "b".repeat(61));
        assert_eq!(decode(trailers.as_bytes(), BodyLength::Chunked, 99), Err(ParseError::TrailersTooLarge));
    }
}
