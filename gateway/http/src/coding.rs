//! Content codings (RFC 9110 §8.4.1): which one a client wants, and what codes a response's body.
//!
//! The codings themselves are libraries, which the program is built with or without: see [`Codecs`].

use std::fmt;

/// A content coding that responses can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// RFC 8878, with a window of at most 8 MiB (RFC 9659).
    Zstd,
    /// RFC 7932.
    Brotli,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// As `Content-Encoding` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// As [`Coding::name`] has it, in any case; `x-gzip` is `gzip` (RFC 9110 §8.4.1.3).
    fn is_named(self, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(self.name().as_bytes()) || self == Self::Gzip && name.eq_ignore_ascii_case(b"x-gzip")
    }
}

/// What an encoder does behind the bytes that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It keeps what it can code better together with what follows.
    GoOn,
    /// All that it was given can be decoded from what it has put out.
    Flush,
    /// The coded body is whole.
    Finish,
}

/// An encoder has failed. What it has put out so far is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeError;

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the content coding failed")
    }
}

impl std::error::Error for EncodeError {}

/// Codes one body.
pub trait Encoder {
    /// Codes `data`, and appends what comes of it to `out`: at most about as many bytes as were given since the last flush.
    fn encode(&mut self, data: &[u8], then: Then, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Bytes of memory that it holds, or may hold.
    fn memory(&self) -> usize;

    /// Makes it as new, for another body. False if it cannot be used again.
    fn reset(&mut self) -> bool;
}

/// The codings that a program is built with.
pub trait Codecs: fmt::Debug + Send + Sync {
    /// An encoder of this coding, which works as hard as `level` says. `None`: there is no memory for it.
    fn encoder(&self, coding: Coding, level: u8) -> Option<Box<dyn Encoder>>;
}

/// The highest weight of `Accept-Encoding` (RFC 9110 §12.4.2), in thousandths.
const HIGHEST: u16 = 1000;

/// Which of the codings that are on offer a client wants, by the values of its `Accept-Encoding` (RFC 9110 §12.5.3): the one with
/// the highest weight, and the first of the offer where weights are the same. `None`: the body is to stay as it is. So it is for a
/// client that does not send the field, although it would have to take any coding: most such clients decode none.
pub fn negotiate<'v>(values: impl Iterator<Item = &'v [u8]>, offer: impl Iterator<Item = Coding>) -> Option<Coding> {
    let mut named: [Option<u16>; Coding::ALL.len()] = [None; Coding::ALL.len()];
    let (mut others, mut identity) = (None, None);
    for member in values.flat_map(|value| value.split(|b| *b == b',')) {
        let mut parts = member.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let Some(name) = parts.next().filter(|name| !name.is_empty()) else { continue };
        let Some(weight) = weight(parts) else { continue };
        if name == b"*" {
            others = Some(weight);
        } else if name.eq_ignore_ascii_case(b"identity") {
            identity = Some(weight);
        } else if let Some(at) = Coding::ALL.iter().position(|coding| coding.is_named(name)) {
            named[at] = Some(weight);
        }
    }
    let weight_of = |coding: Coding| named[coding as usize].or(others).unwrap_or(0);
    let mut best: Option<(Coding, u16)> = None;
    for coding in offer {
        let weight = weight_of(coding);
        if weight > best.map_or(0, |(_, weight)| weight) {
            best = Some((coding, weight));
        }
    }
    // What a client has written of `identity` itself counts; else any coding that it names is dearer to it.
    best.filter(|(_, weight)| identity.is_none_or(|identity| *weight >= identity)).map(|(coding, _)| coding)
}

/// The weight among a member's parameters: `q=0.5` (RFC 9110 §12.4.2). `None`: it is none, and nobody knows what was meant.
fn weight<'p>(parameters: impl Iterator<Item = &'p [u8]>) -> Option<u16> {
    let mut weight = HIGHEST;
    for parameter in parameters {
        if let [b'q' | b'Q', b'=', value @ ..] = parameter {
            weight = thousandths(value)?;
        }
    }
    Some(weight)
}

/// `0`, `0.5`, `1.000`: at most three digits behind the point.
fn thousandths(value: &[u8]) -> Option<u16> {
    let (whole, rest) = value.split_first()?;
    let digits = match rest {
        [] => rest,
        [b'.', digits @ ..] if digits.len() <= 3 => digits,
        _ => return None,
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let places = [100, 10, 1];
    let part: u16 = digits.iter().zip(places).map(|(digit, place)| u16::from(digit - b'0') * place).sum();
    match whole {
        b'0' => Some(part),
        b'1' if part == 0 => Some(HIGHEST),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_coding_that_it_wants_most() {
        use Coding::{Brotli, Gzip, Zstd};
        let all = &[Zstd, Brotli, Gzip][..];
        let table: &[(&str, &[Coding], Option<Coding>)] = &[
            ("gzip, deflate, br, zstd", all, Some(Zstd)),
            ("gzip, deflate, br", all, Some(Brotli)),
            ("gzip, deflate, br, zstd", &[Gzip, Zstd], Some(Gzip)),
            ("gzip", all, Some(Gzip)),
            ("x-gzip", all, Some(Gzip)),
            ("GZIP;Q=0.5", all, Some(Gzip)),
            ("gzip;q=1.0, br;q=0.9, zstd;q=0.1", all, Some(Gzip)),
            ("gzip ; q=0.8 , br ; q=0.8", all, Some(Brotli)),
            ("br;q=0.001", all, Some(Brotli)),
            ("deflate, compress", all, None),
            ("", all, None),
            (" , ,", all, None),
            ("identity", all, None),
            ("*", all, Some(Zstd)),
            ("*;q=0.3, gzip;q=0.5", all, Some(Gzip)),
            ("*, zstd;q=0", all, Some(Brotli)),
            ("*;q=0", all, None),
            ("gzip, *;q=0", all, Some(Gzip)),
            ("zstd;q=0, br;q=0, gzip;q=0", all, None),
            ("identity;q=0, gzip;q=0.1", all, Some(Gzip)),
            ("identity;q=0", all, None),
            ("identity;q=1, gzip;q=0.5", all, None),
            ("identity;q=0.5, gzip;q=0.5", all, Some(Gzip)),
            ("identity;q=0.4, gzip;q=0.5, br;q=0.3", all, Some(Gzip)),
            // Weights that are none.
            ("gzip;q=2", all, None),
            ("gzip;q=1.001", all, None),
            ("gzip;q=0.1234", all, None),
            ("gzip;q=-1, br", all, Some(Brotli)),
            ("gzip;q=, br;q=.5", all, None),
            ("gzip;q=0.", all, None),
            ("gzip;level=9;q=0.2, br;q=0.1", all, Some(Gzip)),
            ("gzip", &[Zstd], None),
            ("gzip", &[], None),
        ];
        for (accepts, offer, wanted) in table {
            let chosen = negotiate([accepts.as_bytes()].into_iter(), offer.iter().copied());
            assert_eq!(chosen, *wanted, "{accepts:?} of {offer:?}");
        }
    }

    #[test]
    fn several_fields_are_one_list() {
        let fields = [&b"gzip;q=0.5"[..], b"br;q=0.6"];
        assert_eq!(negotiate(fields.into_iter(), Coding::ALL.into_iter()), Some(Coding::Brotli));
        assert_eq!(negotiate([].into_iter(), Coding::ALL.into_iter()), None, "the field is not there");
        let twice = [&b"gzip"[..], b"gzip;q=0"];
        assert_eq!(negotiate(twice.into_iter(), Coding::ALL.into_iter()), None, "the last one counts");
    }

    #[test]
    fn codings_stand_in_the_order_of_their_list() {
        for (at, coding) in Coding::ALL.into_iter().enumerate() {
            assert_eq!(coding as usize, at);
        }
    }
}
