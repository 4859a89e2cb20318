//! Regular expressions for paths.
//!
//! They are compiled when a configuration is read. A search takes time that is linear in the path (crate `regex`), and the memory
//! of a compiled expression is bounded. Each lane has copies of its own, with their caches: a cache that is shared is behind a lock.

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};
use sealane_route::path;
use std::cell::RefCell;
use std::fmt;

/// The longest expression, in bytes.
pub const MAX_TEXT: usize = 1000;
/// The groups that a rewrite or a redirect can name: `{1}` to `{9}`.
pub const MAX_GROUPS: usize = 9;
/// Bytes of a compiled expression.
const MAX_COMPILED: usize = 64 << 10;
/// Bytes of a lane's cache for one expression, for each of the two directions in which it can be searched.
const MAX_CACHE: usize = 128 << 10;

/// What the groups of an expression have matched, as the client has spelled it. A group that has matched nothing is empty.
pub(crate) type Groups<'p> = [&'p [u8]; MAX_GROUPS + 1];

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

/// Why an expression is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// It is longer than [`MAX_TEXT`].
    Long,
    /// Compiled, it takes too much memory.
    Large,
    /// It is no expression, for this reason.
    Syntax(String),
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Long => write!(f, "it has more than {MAX_TEXT} bytes"),
            Self::Large => write!(f, "compiled, it takes more than {} KiB", MAX_COMPILED >> 10),
            Self::Syntax(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for PatternError {}

impl Pattern {
    /// Compiles an expression. It is for bytes: classes such as `\d` and `\w` are those of ASCII.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        if text.len() > MAX_TEXT {
            return Err(PatternError::Long);
        }
        let mut builder = RegexBuilder::new(text);
        builder.unicode(false).size_limit(MAX_COMPILED).dfa_size_limit(MAX_CACHE).nest_limit(50);
        builder.build().map(Self).map_err(|e| match e {
            regex::Error::CompiledTooBig(_) => PatternError::Large,
            // The last line says what is wrong; those before draw the place.
            other => {
                let told = other.to_string();
                let last = told.lines().last().unwrap_or_default();
                PatternError::Syntax(last.strip_prefix("error: ").unwrap_or(last).to_owned())
            }
        })
    }

    /// The expression, as it was written.
    pub fn text(&self) -> &str {
        self.0.as_str()
    }

    /// Whether it matches a text. Lanes have copies of their own for this.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.0.is_match(text)
    }

    /// How many groups it has.
    pub fn groups(&self) -> usize {
        self.0.captures_len() - 1
    }
}

/// A lane's own copy of an expression.
#[derive(Debug)]
pub(crate) struct LanePattern {
    regex: Regex,
    locations: RefCell<CaptureLocations>,
}

impl LanePattern {
    pub fn new(pattern: &Pattern) -> Self {
        // The copy has caches of its own.
        let regex = pattern.0.clone();
        let locations = RefCell::new(regex.capture_locations());
        Self { regex, locations }
    }

    /// Whether a reading of a path matches.
    pub fn matches(&self, reading: &[u8]) -> bool {
        self.regex.is_match(reading)
    }

    /// What the groups have matched of a path. `None` where one begins or ends within an encoded character, such as `%2F`.
    /// `literal` is overwritten.
    pub fn groups<'p>(&self, path: &'p [u8], literal: &mut Vec<u8>) -> Option<Groups<'p>> {
        path::write_literal(path, literal).ok()?;
        let mut locations = self.locations.borrow_mut();
        self.regex.captures_read(&mut locations, literal)?;
        let mut groups = Groups::default();
        for (number, group) in groups.iter_mut().enumerate() {
            if let Some((start, end)) = locations.get(number) {
                *group = path::spelled(path, start..end)?;
            }
        }
        Some(groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_bounded() {
        assert_eq!(Pattern::new("^/([a-z]+)/([0-9]{1,9})$").unwrap().groups(), 2);
        assert_eq!(Pattern::new(&"a".repeat(MAX_TEXT + 1)).unwrap_err(), PatternError::Long);
        assert_eq!(Pattern::new("(a{1,100}){1,100}").unwrap_err(), PatternError::Large);
        let Err(PatternError::Syntax(why)) = Pattern::new("^/(a") else { panic!("it is taken") };
        assert_eq!(why, "unclosed group");
        // References back and look-around need time that is not linear.
        assert!(matches!(Pattern::new(r"(a)\1"), Err(PatternError::Syntax(_))));
        assert!(matches!(Pattern::new("(?=a)"), Err(PatternError::Syntax(_))));
        assert!(matches!(Pattern::new(&"(".repeat(500)), Err(PatternError::Syntax(_))));
    }

    #[test]
    fn groups_are_as_they_were_spelled() {
        let lane = |text: &str| LanePattern::new(&Pattern::new(text).unwrap());
        let groups = |text: &str, path: &'static str| {
            let mut literal = Vec::new();
            let groups = lane(text).groups(path.as_bytes(), &mut literal)?;
            Some(groups[1..4].iter().map(|g| String::from_utf8_lossy(g).into_owned()).collect::<Vec<_>>())
        };
        let is = |parts: [&str; 3]| Some(parts.map(str::to_owned).to_vec());
        assert_eq!(groups("^/u/([^/]+)/(.*)$", "/u/7/x/y"), is(["7", "x/y", ""]));
        assert_eq!(groups("^/u/([^/]+)/(.*)$", "/u/%41%20b/%2F"), is(["%41%20b", "%2F", ""]));
        assert_eq!(groups("^/(a)?(b)?(c)", "/c"), is(["", "", "c"]));
        assert_eq!(groups("^/a(%)", "/a%2Fb"), None, "within an encoded character");
        assert_eq!(groups("^/b", "/a"), None);
    }
}
