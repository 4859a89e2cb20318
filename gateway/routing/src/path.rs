//! Paths as rules see them: every way in which a server behind the gateway may read the same path.
//!
//! A rule that keeps `/admin` closed must not be passed by `/%61dmin`, `/admin;x`, `/x/..;/admin` or `/%2fadmin`. What
//! such a path means depends on the server: some take `%2F` or `\` for a slash, some cut `;parameters` off, some merge
//! `//`. So a rule is looked up under every reading ([`Readings`]), and the path is forwarded, as it is spelled, only
//! where all of them select the same rule. `/api/v4/projects/a%2Fb` under a rule for `/` has one meaning for the rules,
//! whatever the server does with it.
//!
//! In every reading, percent-encoded characters are decoded, but for `%25` (nothing is decoded twice) and control
//! characters. Three things no reading may have ([`BadPath`]): a `.` or `..` segment (clients remove those before they
//! send, RFC 3986 §5.2.4), NUL, and a `%` that encodes nothing.
//!
//! A plain path, with none of `%`, `;`, `\`, `//` and `/.`, has one reading: itself. Finding that out is one pass.

use std::ops::Range;

/// Steps that all readings of one path may take together.
const BUDGET: usize = 64 * 1024;

/// Why no rule is looked up for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPath {
    /// A `%` that no two hexadecimal digits follow.
    Escape,
    /// `%00`.
    Nul,
    /// A reading has a segment `.` or `..`.
    DotSegment,
    /// Two readings select different rules.
    Ambiguous,
    /// A rule has a condition on a field that the request has under another spelling of its name: whether the condition holds depends
    /// on the server.
    Spelling,
    /// The readings, or the values of fields, take more work to tell apart than a request may cost.
    TooComplex,
}

impl std::fmt::Display for BadPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Escape => "the path has a \"%\" that encodes nothing",
            Self::Nul => "the path has \"%00\"",
            Self::DotSegment => "the path has a \".\" or \"..\" segment",
            Self::Ambiguous => "servers read this path in different ways, for which there are different rules",
            Self::Spelling => "a header's name is another spelling of one for which there are rules",
            Self::TooComplex => "the path can be read in too many ways, or too much is to be compared with expressions",
        })
    }
}

impl std::error::Error for BadPath {}

/// One character of a path, decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Means itself.
    Byte(u8),
    Slash,
    EncodedSlash,
    Backslash,
    EncodedBackslash,
    Semicolon,
    EncodedSemicolon,
    /// Stays encoded, in capitals.
    Kept(u8),
}

impl Unit {
    /// The unit at a place that is in the path, and its length there.
    #[inline]
    fn at(path: &[u8], at: usize) -> Result<(Self, usize), BadPath> {
        let unit = match path[at] {
            b'%' => {
                let digit = |at: usize| path.get(at).and_then(|b| (*b as char).to_digit(16));
                let (Some(high), Some(low)) = (digit(at + 1), digit(at + 2)) else { return Err(BadPath::Escape) };
                let unit = match (high * 16 + low) as u8 {
                    b'/' => Self::EncodedSlash,
                    b'\\' => Self::EncodedBackslash,
                    b';' => Self::EncodedSemicolon,
                    byte @ (b'%' | 0..=0x1f | 0x7f) => Self::Kept(byte),
                    byte => Self::Byte(byte),
                };
                return Ok((unit, 3));
            }
            b'/' => Self::Slash,
            b'\\' => Self::Backslash,
            b';' => Self::Semicolon,
            byte => Self::Byte(byte),
        };
        Ok((unit, 1))
    }

    /// How long it is in the literal reading.
    fn length(self) -> usize {
        match self {
            Self::EncodedSlash | Self::Kept(_) => 3,
            _ => 1,
        }
    }
}

/// What of a path servers read in different ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// Something is percent-encoded.
    escaped: bool,
    encoded_slash: bool,
    backslash: bool,
    encoded_backslash: bool,
    semicolon: bool,
    encoded_semicolon: bool,
    /// Some reading has an empty segment: `//`.
    empty_segment: bool,
}

impl Readings {
    /// Finds out how a path can be read.
    #[inline]
    pub fn of(path: &[u8]) -> Result<Self, BadPath> {
        let mut before = 0;
        for &byte in path {
            if matches!(byte, b'%' | b';' | b'\\') || before == b'/' && matches!(byte, b'/' | b'.') {
                return Self::examine(path);
            }
            before = byte;
        }
        Ok(Self::default())
    }

    /// Looks at the reading with the most separators and without parameters: a segment that is empty or made of dots in
    /// any reading is so in this one, since it has none of the characters that are read in different ways.
    fn examine(path: &[u8]) -> Result<Self, BadPath> {
        let mut found = Self::default();
        // Dots so far in a segment of nothing else.
        let mut dots = Some(0);
        let (mut first, mut parameters) = (true, false);
        let mut at = 0;
        while at < path.len() {
            let (unit, length) = Unit::at(path, at)?;
            at += length;
            found.escaped |= length > 1;
            match unit {
                Unit::Kept(0) => return Err(BadPath::Nul),
                Unit::Slash | Unit::EncodedSlash | Unit::Backslash | Unit::EncodedBackslash => {
                    found.encoded_slash |= unit == Unit::EncodedSlash;
                    found.backslash |= unit == Unit::Backslash;
                    found.encoded_backslash |= unit == Unit::EncodedBackslash;
                    if matches!(dots, Some(1 | 2)) {
                        return Err(BadPath::DotSegment);
                    }
                    found.empty_segment |= dots == Some(0) && !first;
                    (dots, first, parameters) = (Some(0), false, false);
                }
                Unit::Semicolon | Unit::EncodedSemicolon => {
                    found.semicolon |= unit == Unit::Semicolon;
                    found.encoded_semicolon |= unit == Unit::EncodedSemicolon;
                    parameters = true;
                }
                _ if parameters => {}
                Unit::Byte(b'.') => dots = dots.map(|n: u32| n + 1),
                Unit::Byte(_) | Unit::Kept(_) => dots = None,
            }
        }
        match dots {
            Some(1 | 2) => Err(BadPath::DotSegment),
            _ => Ok(found),
        }
    }

    /// Whether the path's only reading is the path as it stands.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        self == Self::default()
    }

    /// Whether there is more than one.
    pub fn differ(self) -> bool {
        Self { escaped: false, ..self } != Self::default()
    }

    /// All of them, the literal one first.
    pub(crate) fn all(self) -> impl Iterator<Item = Reading> {
        let separators = self.encoded_slash || self.backslash || self.encoded_backslash;
        let slash = [true, self.encoded_slash];
        let back = [
            (Back::Data, true),
            (Back::All, self.backslash || self.encoded_backslash),
            (Back::Raw, self.backslash && self.encoded_backslash),
        ];
        let parameters = [
            (Parameters::Kept, true),
            (Parameters::Cut, self.semicolon || self.encoded_semicolon),
            (Parameters::CutRaw, self.semicolon && self.encoded_semicolon),
            (Parameters::CutFirst, self.semicolon && (separators || self.encoded_semicolon)),
        ];
        let merge = [true, self.empty_segment];
        let on = |n: usize| n == 1;
        (0..48)
            .map(move |n| (n % 2, n / 2 % 2, n / 4 % 3, n / 12))
            .filter(move |&(m, s, b, p)| merge[m] && slash[s] && back[b].1 && parameters[p].1)
            .map(move |(m, s, b, p)| Reading {
                merge: on(m),
                slash: on(s),
                back: back[b].0,
                parameters: parameters[p].0,
            })
    }
}

/// What is a slash beside `/` and perhaps `%2F`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    /// Nothing is.
    Data,
    /// `\`, as browsers read it.
    Raw,
    /// `\` and `%5C`.
    All,
}

/// What becomes of `;parameters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameters {
    Kept,
    /// Cut off up to the next separator, after decoding.
    Cut,
    /// The same, but `%3B` is data.
    CutRaw,
    /// Cut off before anything is decoded: up to the next `/`.
    CutFirst,
}

/// One way to read a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    merge: bool,
    slash: bool,
    back: Back,
    parameters: Parameters,
}

/// The reading that takes nothing for what it could be.
const LITERAL: Reading = Reading { merge: false, slash: false, back: Back::Data, parameters: Parameters::Kept };

/// The work that is left for the readings of one path.
pub(crate) struct Budget(usize);

impl Default for Budget {
    fn default() -> Self {
        Self(BUDGET)
    }
}

impl Reading {
    /// Writes the path in this reading, as far as its first `most` bytes and a little more.
    pub fn write(self, path: &[u8], most: usize, out: &mut Vec<u8>, budget: &mut Budget) -> Result<(), BadPath> {
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        out.clear();
        let (mut at, mut cut) = (0, false);
        while at < path.len() && out.len() <= most {
            budget.0 = budget.0.checked_sub(1).ok_or(BadPath::TooComplex)?;
            let (unit, length) = Unit::at(path, at)?;
            at += length;
            if self.separates(unit) && !(cut && self.parameters == Parameters::CutFirst && unit != Unit::Slash) {
                cut = false;
                if !(self.merge && out.last() == Some(&b'/')) {
                    out.push(b'/');
                }
                continue;
            }
            cut |= self.cuts(unit);
            if cut {
                continue;
            }
            match unit {
                Unit::Byte(byte) => out.push(byte),
                Unit::Slash => out.push(b'/'),
                Unit::EncodedSlash => out.extend_from_slice(b"%2F"),
                Unit::Backslash | Unit::EncodedBackslash => out.push(b'\\'),
                Unit::Semicolon | Unit::EncodedSemicolon => out.push(b';'),
                Unit::Kept(b) => out.extend_from_slice(&[b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]),
            }
        }
        Ok(())
    }

    fn separates(self, unit: Unit) -> bool {
        match unit {
            Unit::Slash => true,
            Unit::EncodedSlash => self.slash,
            Unit::Backslash => self.back != Back::Data,
            Unit::EncodedBackslash => self.back == Back::All,
            _ => false,
        }
    }

    fn cuts(self, unit: Unit) -> bool {
        match unit {
            Unit::Semicolon => self.parameters != Parameters::Kept,
            Unit::EncodedSemicolon => self.parameters == Parameters::Cut,
            _ => false,
        }
    }
}

/// Whether a rule may have this path: one that is its own literal reading.
pub fn is_literal(path: &[u8]) -> bool {
    let Ok(readings) = Readings::of(path) else { return false };
    let mut text = Vec::new();
    // A file's path is of any length.
    let mut budget = Budget(usize::MAX);
    path.starts_with(b"/")
        && !readings.empty_segment
        && LITERAL.write(path, usize::MAX, &mut text, &mut budget).is_ok()
        && text == path
}

/// What of a path, as it was spelled, follows the first `length` bytes of its literal reading.
///
/// `length` is that of a prefix which has matched, so it ends between two units.
pub fn rest_behind(path: &[u8], length: usize) -> &[u8] {
    let (mut at, mut seen) = (0, 0);
    while seen < length && at < path.len() {
        // An error cannot be behind a match.
        let Ok((unit, spelled)) = Unit::at(path, at) else { return &[] };
        at += spelled;
        seen += unit.length();
    }
    &path[at..]
}

/// Writes the literal reading of a path: the one that patterns are matched against, and that [`spelled`] refers to.
pub fn write_literal(path: &[u8], out: &mut Vec<u8>) -> Result<(), BadPath> {
    LITERAL.write(path, usize::MAX, out, &mut Budget(path.len()))
}

/// A part of a path as it was spelled, by its place in the literal reading. `None` where the part begins or ends within a
/// character that is encoded in both, such as `%2F`.
pub fn spelled(path: &[u8], part: Range<usize>) -> Option<&[u8]> {
    let (mut at, mut seen) = (0, 0);
    let mut start = None;
    loop {
        if seen == part.start {
            start = Some(at);
        }
        if seen == part.end {
            return Some(&path[start?..at]);
        }
        if seen > part.end || at >= path.len() {
            return None;
        }
        let (unit, length) = Unit::at(path, at).ok()?;
        at += length;
        seen += unit.length();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn readings(path: &str) -> Vec<String> {
        let all: BTreeSet<String> = Readings::of(path.as_bytes())
            .unwrap()
            .all()
            .map(|reading| {
                let mut out = Vec::new();
                reading.write(path.as_bytes(), 1000, &mut out, &mut Budget::default()).unwrap();
                String::from_utf8(out).unwrap()
            })
            .collect();
        all.into_iter().collect()
    }

    #[test]
    fn every_reading_is_there_once() {
        let cases: &[(&str, &[&str])] = &[
            ("/admin", &["/admin"]),
            ("/%61dmin", &["/admin"]),
            ("/%41dmin/%7e", &["/Admin/~"]),
            ("//admin", &["//admin", "/admin"]),
            ("/a///b/", &["/a///b/", "/a/b/"]),
            ("/a%2fb", &["/a%2Fb", "/a/b"]),
            ("/%2Fb", &["/%2Fb", "//b", "/b"]),
            ("/a%252e", &["/a%252e"]),
            ("/a%0a", &["/a%0A"]),
            ("/.well-known/x", &["/.well-known/x"]),
            ("/a/...", &["/a/..."]),
            ("/a;x=1/b", &["/a/b", "/a;x=1/b"]),
            ("/a/;x", &["/a/", "/a/;x"]),
            ("/;x/a", &["/;x/a", "//a", "/a"]),
            ("/a%3Bx", &["/a", "/a;x"]),
            ("/a\\b", &["/a/b", "/a\\b"]),
            ("/a%5cb", &["/a/b", "/a\\b"]),
            ("/a\\b%5Cc", &["/a/b/c", "/a/b\\c", "/a\\b\\c"]),
            // Parameters that are cut off before anything is decoded, and after.
            ("/a;x%2Fy/b%2Fc", &["/a/b%2Fc", "/a/b/c", "/a/y/b/c", "/a;x%2Fy/b%2Fc", "/a;x/y/b/c"]),
            ("/a;b%3Bc", &["/a", "/a;b;c"]),
            ("/a%3Bb;c", &["/a", "/a;b", "/a;b;c"]),
        ];
        for (path, wanted) in cases {
            let wanted: BTreeSet<String> = wanted.iter().map(|s| (*s).to_owned()).collect();
            assert_eq!(readings(path), wanted.into_iter().collect::<Vec<_>>(), "{path}");
        }
    }

    #[test]
    fn what_no_reading_may_have() {
        let dots = [
            "/.",
            "/..",
            "/a/../b",
            "/a/./b",
            "/%2e%2E/b",
            "/.%2e",
            "/a//..",
            "/x/..;/b",
            "/x/..;a=b",
            "/x/..%2fb",
            "/x%2f..",
            "/x/..%5cb",
            "/x\\..\\b",
            "/x/.;x/b",
            "/x/..%3b/b",
            "/a;b%2f..%2fc",
        ];
        for bad in dots {
            assert_eq!(Readings::of(bad.as_bytes()), Err(BadPath::DotSegment), "{bad}");
        }
        for bad in ["/%", "/%4", "/%zz", "/a/%0g"] {
            assert_eq!(Readings::of(bad.as_bytes()), Err(BadPath::Escape), "{bad}");
        }
        assert_eq!(Readings::of(b"/a%00"), Err(BadPath::Nul));
        for good in ["/a..", "/..a", "/a;../b", "/...", "/a/.b", "/%252e%252e/", "*", "a:443", ""] {
            assert!(Readings::of(good.as_bytes()).is_ok(), "{good}");
        }
    }

    #[test]
    fn plain_paths_are_plain() {
        for plain in ["/", "/a/b.html", "/a-b_c~d/@scope", "*", "/a.b/c."] {
            let readings = Readings::of(plain.as_bytes()).unwrap();
            assert!(readings.is_plain() && !readings.differ(), "{plain}");
        }
        assert!(!Readings::of(b"/%61").unwrap().differ());
        assert!(Readings::of(b"/a;").unwrap().differ());
    }

    #[test]
    fn the_work_is_bounded() {
        let path = format!("/a;%3b\\%5c%2f//{}", ";x".repeat(100_000));
        let mut budget = Budget::default();
        let mut out = Vec::new();
        let failed = Readings::of(path.as_bytes())
            .unwrap()
            .all()
            .find_map(|reading| reading.write(path.as_bytes(), 1 << 20, &mut out, &mut budget).err());
        assert_eq!(failed, Some(BadPath::TooComplex));
    }

    #[test]
    fn a_rules_path_is_its_own_reading() {
        for good in ["/", "/a", "/a/", "/a%2Fb", "/a;b", "/.well-known/"] {
            assert!(is_literal(good.as_bytes()), "{good}");
        }
        for bad in ["", "a", "/a/../b", "/%61", "//a", "/a//", "/a%2fb", "/a%zz", "/a%00"] {
            assert!(!is_literal(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn the_rest_is_as_it_was_spelled() {
        for (spelled, prefix, rest) in [
            ("/api/x%20y", "/api", "/x%20y"),
            ("/%61pi/x", "/api", "/x"),
            ("/api//x", "/api", "//x"),
            ("/api", "/api", ""),
            ("/a%2fb/c", "/a%2Fb", "/c"),
            ("/api/a;b", "/api", "/a;b"),
        ] {
            assert_eq!(rest_behind(spelled.as_bytes(), prefix.len()), rest.as_bytes(), "{spelled}");
        }
    }
    #[test]
    fn parts_are_as_they_were_spelled() {
        let mut literal = Vec::new();
        for (path, part, wanted) in [
            ("/a/b", 1..2, Some("a")),
            ("/a/b", 0..4, Some("/a/b")),
            ("/a/b", 4..4, Some("")),
            ("/%61%20b/c", 1..3, Some("%61%20")),
            ("/a%2Fb/c", 1..6, Some("a%2Fb")),
            // Within `%2F`.
            ("/a%2Fb/c", 1..3, None),
            ("/a%2Fb/c", 3..6, None),
            ("/a%25b", 2..5, Some("%25")),
            ("/a%25b", 2..4, None),
            ("/a%3Bb", 2..3, Some("%3B")),
            ("/a", 1..9, None),
        ] {
            write_literal(path.as_bytes(), &mut literal).unwrap();
            assert_eq!(spelled(path.as_bytes(), part.clone()), wanted.map(str::as_bytes), "{path} {part:?}");
        }
        write_literal(b"/%41%2f%5C;x//y", &mut literal).unwrap();
        assert_eq!(literal, b"/A%2F\\;x//y");
    }
}
