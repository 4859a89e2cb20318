//! Host name patterns: the one type that compares host names, for certificates, client authentication and hosts.
//!
//! | pattern | matches |
//! |---|---|
//! | `example.com` | that name |
//! | `*.example.com` | names with exactly one more label, as in TLS certificates (RFC 9525 §6.3): `a.example.com` |
//! | `**.example.com` | names with one or more further labels: `a.example.com`, `b.a.example.com` |
//! | `*` | every name, also none |
//!
//! An IPv6 address in brackets is a name, in its canonical form (RFC 5952), whichever of its spellings was written.
//!
//! Of several patterns that match a name, the narrowest wins: the exact name, then the longest suffix, and of two with
//! the same suffix the one for one label.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The longest host name (RFC 1035 §2.3.4). Nothing longer matches a wildcard, so that a lookup has a bound.
const LONGEST_NAME: usize = 255;

/// Which host names are meant. Names are compared in lower case, without port and trailing dot; IPv6 addresses in
/// brackets and in their canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NamePattern {
    /// This name alone.
    Exact(Box<str>),
    /// Names with exactly one label before this suffix.
    OneLabel(Box<str>),
    /// Names with one or more labels before this suffix.
    AnyDepth(Box<str>),
    /// Every name.
    Any,
}

/// Why a pattern was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// The pattern is already there.
    Duplicate,
    /// A `*` in another place than the first label, an empty label, or a byte that no host name has.
    Malformed,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Duplicate => "the name is already taken",
            Self::Malformed => {
                "not a name that a host can have: write a host name, a host name after `*.` or `**.`, or `*`"
            }
        })
    }
}

impl std::error::Error for NameError {}

impl FromStr for NamePattern {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address: Ipv6Addr = inner.parse().map_err(|_| NameError::Malformed)?;
            return Ok(Self::Exact(format!("[{address}]").into()));
        }
        let name = text.to_ascii_lowercase();
        let (wrap, host): (fn(Box<str>) -> Self, &str) = match (name.strip_prefix("**."), name.strip_prefix("*.")) {
            (Some(suffix), _) => (Self::AnyDepth, suffix),
            (_, Some(suffix)) => (Self::OneLabel, suffix),
            _ => (Self::Exact, &name),
        };
        let label_ok =
            |l: &str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if host.len() > LONGEST_NAME || !host.split('.').all(label_ok) {
            return Err(NameError::Malformed);
        }
        Ok(wrap(host.into()))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::OneLabel(suffix) => write!(f, "*.{suffix}"),
            Self::AnyDepth(suffix) => write!(f, "**.{suffix}"),
            Self::Any => f.write_str("*"),
        }
    }
}

impl NamePattern {
    /// The pattern of a DNS name in a certificate: a name, or `*.` and a name. `None` for what no client accepts.
    pub fn of_certificate(name: &str) -> Option<Self> {
        name.parse().ok().filter(|p| matches!(p, Self::Exact(_) | Self::OneLabel(_)))
    }

    /// Whether a name (lower case, without port and trailing dot) is meant.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => name == &**exact,
            Self::OneLabel(suffix) => {
                name.len() <= LONGEST_NAME
                    && name.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == &**suffix)
            }
            Self::AnyDepth(suffix) => {
                let before = name.strip_suffix(&**suffix).and_then(|rest| rest.strip_suffix('.'));
                name.len() <= LONGEST_NAME
                    && before.is_some_and(|labels| !labels.is_empty() && !labels.starts_with('.'))
            }
            Self::Any => true,
        }
    }

    /// The suffix after the wildcard.
    pub fn suffix(&self) -> Option<&str> {
        match self {
            Self::OneLabel(suffix) | Self::AnyDepth(suffix) => Some(suffix),
            Self::Exact(_) | Self::Any => None,
        }
    }

    /// How narrow it is. Of two patterns that match a name, the one with the higher rank wins.
    pub fn rank(&self) -> Rank {
        match self {
            Self::Exact(_) => Rank(usize::MAX, 0),
            Self::OneLabel(suffix) => Rank(suffix.len(), 1),
            Self::AnyDepth(suffix) => Rank(suffix.len(), 0),
            Self::Any => Rank(0, 0),
        }
    }

    /// A name that the pattern matches. Its labels `?` occur in no host name, so that of the narrower patterns only one
    /// with a longer suffix can match it.
    pub fn sample(&self) -> String {
        match self {
            Self::Exact(name) => name.to_string(),
            Self::OneLabel(suffix) => format!("?.{suffix}"),
            Self::AnyDepth(suffix) => format!("?.?.{suffix}"),
            Self::Any => "?".to_owned(),
        }
    }
}

/// How narrow a pattern is, see [`NamePattern::rank`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(usize, u8);

/// The values for one suffix.
#[derive(Clone, Debug)]
struct Wildcards<T> {
    one_label: Option<T>,
    any_depth: Option<T>,
}

/// A table from patterns to `T`, looked up by name: one hash for an exact name, one per label at most for others.
#[derive(Clone, Debug)]
pub struct NameMap<T> {
    exact: HashMap<Box<str>, T>,
    wildcards: HashMap<Box<str>, Wildcards<T>>,
    any: Option<T>,
}

impl<T> Default for NameMap<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), wildcards: HashMap::new(), any: None }
    }
}

impl<T> NameMap<T> {
    /// Adds a pattern.
    pub fn insert(&mut self, pattern: NamePattern, value: T) -> Result<(), NameError> {
        if self.get(&pattern).is_some() {
            return Err(NameError::Duplicate);
        }
        match pattern {
            NamePattern::Exact(name) => drop(self.exact.insert(name, value)),
            NamePattern::OneLabel(suffix) => self.wildcards_of(suffix).one_label = Some(value),
            NamePattern::AnyDepth(suffix) => self.wildcards_of(suffix).any_depth = Some(value),
            NamePattern::Any => self.any = Some(value),
        }
        Ok(())
    }

    fn wildcards_of(&mut self, suffix: Box<str>) -> &mut Wildcards<T> {
        self.wildcards.entry(suffix).or_insert(Wildcards { one_label: None, any_depth: None })
    }

    /// The value of a pattern itself.
    pub fn get(&self, pattern: &NamePattern) -> Option<&T> {
        match pattern {
            NamePattern::Exact(name) => self.exact.get(name),
            NamePattern::OneLabel(suffix) => self.wildcards.get(suffix)?.one_label.as_ref(),
            NamePattern::AnyDepth(suffix) => self.wildcards.get(suffix)?.any_depth.as_ref(),
            NamePattern::Any => self.any.as_ref(),
        }
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, pattern: &NamePattern) -> Option<&mut T> {
        match pattern {
            NamePattern::Exact(name) => self.exact.get_mut(name),
            NamePattern::OneLabel(suffix) => self.wildcards.get_mut(suffix)?.one_label.as_mut(),
            NamePattern::AnyDepth(suffix) => self.wildcards.get_mut(suffix)?.any_depth.as_mut(),
            NamePattern::Any => self.any.as_mut(),
        }
    }

    /// The value of the narrowest pattern that matches a name (lower case, without port and trailing dot).
    #[inline]
    pub fn find(&self, name: &str) -> Option<&T> {
        if !self.exact.is_empty()
            && let Some(value) = self.exact.get(name)
        {
            return Some(value);
        }
        if !self.wildcards.is_empty()
            && let Some((_, value)) = self.find_wildcard(name)
        {
            return Some(value);
        }
        self.any.as_ref()
    }

    /// The same with the pattern.
    pub fn find_pattern(&self, name: &str) -> Option<(NamePattern, &T)> {
        if let Some(value) = self.exact.get(name) {
            return Some((NamePattern::Exact(name.into()), value));
        }
        if let Some(((suffix, one_label), value)) = self.find_wildcard(name) {
            let wrap = if one_label { NamePattern::OneLabel } else { NamePattern::AnyDepth };
            return Some((wrap(suffix.into()), value));
        }
        Some((NamePattern::Any, self.any.as_ref()?))
    }

    /// The narrowest wildcard: its suffix, whether it is for one label, and the value.
    fn find_wildcard<'n>(&self, name: &'n str) -> Option<((&'n str, bool), &T)> {
        let mut rest = name;
        let mut first = true;
        while let Some((label, parent)) = rest.split_once('.') {
            if name.len() > LONGEST_NAME || (first && label.is_empty()) {
                return None;
            }
            if let Some(found) = self.wildcards.get(parent) {
                if first && let Some(value) = &found.one_label {
                    return Some(((parent, true), value));
                }
                if let Some(value) = &found.any_depth {
                    return Some(((parent, false), value));
                }
            }
            (rest, first) = (parent, false);
        }
        None
    }

    /// Whether there are other patterns than the one for every name.
    pub fn has_names(&self) -> bool {
        !self.exact.is_empty() || !self.wildcards.is_empty()
    }

    /// All patterns with their values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (NamePattern, &T)> {
        let exact = self.exact.iter().map(|(name, value)| (NamePattern::Exact(name.clone()), value));
        let wildcards = self.wildcards.iter().flat_map(|(suffix, found)| {
            let one = found.one_label.iter().map(|value| (NamePattern::OneLabel(suffix.clone()), value));
            one.chain(found.any_depth.iter().map(|value| (NamePattern::AnyDepth(suffix.clone()), value)))
        });
        exact.chain(wildcards).chain(self.any.iter().map(|value| (NamePattern::Any, value)))
    }

    /// All values, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        let wildcards = self.wildcards.values().flat_map(|w| w.one_label.iter().chain(&w.any_depth));
        self.exact.values().chain(wildcards).chain(&self.any)
    }

    /// How many patterns there are.
    pub fn len(&self) -> usize {
        self.values().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        !self.has_names() && self.any.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    fn map(patterns: &[&'static str]) -> NameMap<&'static str> {
        let mut map = NameMap::default();
        for p in patterns {
            map.insert(pattern(p), *p).unwrap();
        }
        map
    }

    #[test]
    fn the_syntax_says_how_deep() {
        for (text, name, wanted) in [
            ("example.com", "example.com", true),
            ("Example.COM", "example.com", true),
            ("example.com", "a.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "b.a.example.com", false),
            ("*.example.com", ".example.com", false),
            ("**.example.com", "example.com", false),
            ("**.example.com", "a.example.com", true),
            ("**.example.com", "b.a.example.com", true),
            ("**.example.com", "c.b.a.example.com", true),
            ("**.example.com", ".example.com", false),
            ("**.example.com", "..example.com", false),
            ("**.example.com", ".a.example.com", false),
            ("**.example.com", "aexample.com", false),
            ("*", "", true),
            ("*", "a", true),
            ("[::1]", "[::1]", true),
        ] {
            let p = pattern(text);
            assert_eq!(p.matches(name), wanted, "{text} and {name}");
            let mut map = NameMap::default();
            map.insert(p.clone(), ()).unwrap();
            assert_eq!(map.find(name).is_some(), wanted, "a map of {text}, and {name}");
            assert_eq!(map.find_pattern(name).map(|f| f.0), wanted.then_some(p), "{text} and {name}");
        }
    }

    #[test]
    fn an_ipv6_address_has_one_spelling() {
        for text in ["[::1]", "[0:0:0:0:0:0:0:1]", "[0::1]", "[::0001]", "[::0.0.0.1]"] {
            assert_eq!(pattern(text), NamePattern::Exact("[::1]".into()), "{text}");
        }
        assert_eq!(pattern("[2001:DB8:0::A]"), NamePattern::Exact("[2001:db8::a]".into()));
        for bad in ["[]", "[::1", "::1]", "[127.0.0.1]", "[fe80::1%eth0]", "[v1.a]", "[a.example]"] {
            assert_eq!(bad.parse::<NamePattern>(), Err(NameError::Malformed), "{bad}");
        }
    }

    #[test]
    fn the_narrowest_wins() {
        let t = map(&["a.example.com", "*.example.com", "**.example.com", "*.b.example.com", "**.com", "*"]);
        for (name, wanted) in [
            ("a.example.com", "a.example.com"),
            ("x.example.com", "*.example.com"),
            ("b.example.com", "*.example.com"),
            ("x.b.example.com", "*.b.example.com"),
            ("y.x.b.example.com", "**.example.com"),
            ("y.x.example.com", "**.example.com"),
            ("example.com", "**.com"),
            ("com", "*"),
            ("", "*"),
        ] {
            assert_eq!(t.find(name), Some(&wanted), "{name}");
            let (found, value) = t.find_pattern(name).unwrap();
            assert_eq!((found.to_string().as_str(), value), (wanted, &wanted));
            let best = t.iter().filter(|(p, _)| p.matches(name)).max_by_key(|(p, _)| p.rank());
            assert_eq!(best.map(|(_, v)| *v), Some(wanted), "the ranks say otherwise for {name}");
        }
        assert_eq!(t.len(), 6);
        assert_eq!(map(&["a.b"]).find("c"), None);
    }

    #[test]
    fn a_sample_is_found_by_its_pattern() {
        let t = map(&["a.example.com", "*.example.com", "**.example.com", "*.b.example.com", "**.b.example.com", "*"]);
        for (p, value) in t.iter() {
            assert_eq!(t.find(&p.sample()), Some(value), "{p}");
        }
    }

    #[test]
    fn bad_names_are_refused() {
        let mut t = map(&["a.b", "*.a.b", "**.a.b", "*"]);
        for again in ["A.B", "*.A.b", "**.a.B", "*"] {
            assert_eq!(t.insert(pattern(again), ""), Err(NameError::Duplicate), "{again}");
        }
        let long = format!("{}.example", "a".repeat(300));
        for bad in ["", "a..b", "*.*.b", "**", "***.b", "*.", "**.", "a*b", "a b", "a/b", ".a", "a.", "*.[::1]", &long]
        {
            assert_eq!(bad.parse::<NamePattern>(), Err(NameError::Malformed), "{bad}");
        }
        for none in ["*", "**.a.example", "f*.example", ""] {
            assert_eq!(NamePattern::of_certificate(none), None, "{none}");
        }
    }

    #[test]
    fn a_long_name_matches_no_wildcard() {
        let t = map(&["**.example.com", "*"]);
        let name = format!("{}example.com", "a.".repeat(10_000));
        assert_eq!(t.find(&name), Some(&"*"));
        assert!(!pattern("**.example.com").matches(&name));
    }
}
