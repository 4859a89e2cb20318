//! Routing: which action a request gets. Sans-IO.
//!
//! First by host ([`HostTable`]): exact names, then wildcards (the longest suffix first), then the default. A host may
//! have rules of its own by path, method and fields ([`RouteTable`], with the order in which they win).

pub mod path;
mod rules;

pub use rules::{Conditions, FieldRule, Found, MAX_DEPTH, PathRule, RouteTable, RuleError, Subject};

use std::collections::HashMap;

/// A table from host names to `T`.
#[derive(Clone, Debug)]
pub struct HostTable<T> {
    exact: HashMap<Box<str>, T>,
    wildcard: HashMap<Box<str>, T>,
    default: Option<T>,
}

impl<T> Default for HostTable<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), wildcard: HashMap::new(), default: None }
    }
}

/// Why a name was not taken into a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// The name is already there.
    Duplicate,
    /// A `*` other than as the whole first label, an empty label, or a byte that no host name has.
    Malformed,
}

impl std::fmt::Display for NameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Duplicate => "the name is already taken",
            Self::Malformed => "not a host name, `*.` and a host name, or `*`",
        })
    }
}

impl std::error::Error for NameError {}

impl<T> HostTable<T> {
    /// Adds a name: `example.com`, `*.example.com`, or `*` for everything else.
    pub fn insert(&mut self, name: &str, value: T) -> Result<(), NameError> {
        let name = name.to_ascii_lowercase();
        if name == "*" {
            if self.default.is_some() {
                return Err(NameError::Duplicate);
            }
            self.default = Some(value);
            return Ok(());
        }
        let (table, key) = match name.strip_prefix("*.") {
            Some(rest) => (&mut self.wildcard, rest),
            None => (&mut self.exact, name.as_str()),
        };
        let ip_literal = key.starts_with('[') && key.ends_with(']');
        let label_ok =
            |l: &str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !ip_literal && !key.split('.').all(label_ok) {
            return Err(NameError::Malformed);
        }
        if table.contains_key(key) {
            return Err(NameError::Duplicate);
        }
        table.insert(key.into(), value);
        Ok(())
    }

    /// Whether there are others than the default.
    pub fn has_names(&self) -> bool {
        !self.exact.is_empty() || !self.wildcard.is_empty()
    }

    /// Everything that names lead to.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.wildcard.values()).chain(&self.default)
    }

    /// Finds what a host (lower case, without port or trailing dot) gets.
    pub fn find(&self, host: &str) -> Option<&T> {
        if !self.exact.is_empty()
            && let Some(v) = self.exact.get(host)
        {
            return Some(v);
        }
        if !self.wildcard.is_empty() {
            let mut rest = host;
            while let Some((_, parent)) = rest.split_once('.') {
                if let Some(v) = self.wildcard.get(parent) {
                    return Some(v);
                }
                rest = parent;
            }
        }
        self.default.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_then_longest_wildcard_then_default() {
        let mut t = HostTable::default();
        for (i, n) in ["a.example.com", "*.example.com", "*.b.example.com", "*"].iter().enumerate() {
            t.insert(n, i).unwrap();
        }
        assert_eq!(t.find("a.example.com"), Some(&0));
        assert_eq!(t.find("x.example.com"), Some(&1));
        assert_eq!(t.find("x.b.example.com"), Some(&2));
        assert_eq!(t.find("example.com"), Some(&3));
        assert_eq!(t.find(""), Some(&3));
    }

    #[test]
    fn bad_names_are_refused() {
        let mut t = HostTable::default();
        t.insert("a.b", 0).unwrap();
        assert_eq!(t.insert("A.B", 1), Err(NameError::Duplicate));
        for bad in ["", "a..b", "*.*.b", "a*b", "a b", "a/b"] {
            assert_eq!(t.insert(bad, 1), Err(NameError::Malformed), "{bad}");
        }
        assert_eq!(t.find("c"), None);
    }
}
