//! The rules of one host: by path, method and header fields.
//!
//! Which rule wins, of those that match:
//!
//! 1. one for exactly this path,
//! 2. the one with the longest path prefix (by whole segments: `/api` is a prefix of `/api/x`, not of `/apix`),
//! 3. one that names methods,
//! 4. the one with the most conditions on fields,
//! 5. the first in the file.
//!
//! Looking up costs one hash per segment of the path, as far as the deepest rule goes, whatever the number of rules.

use crate::path::{self, BadPath, Budget, Readings};
use std::collections::HashMap;

/// A rule's path has no more segments, so that a long path costs no more.
pub const MAX_DEPTH: usize = 32;

/// Which paths a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRule {
    /// This path alone.
    Exact(String),
    /// This path and everything below it. A slash at its end makes no difference; `/` is every path.
    Prefix(String),
}

/// What a field must be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldRule {
    /// It is there.
    Present,
    /// It is not there.
    Absent,
    /// One of its values is exactly this.
    Exact(Vec<u8>),
    /// One of its values begins with this.
    Prefix(Vec<u8>),
}

/// When a rule applies: all of it must.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// The path.
    pub path: PathRule,
    /// One of these methods; empty: any.
    pub methods: Vec<String>,
    /// Fields, by name.
    pub fields: Vec<(String, FieldRule)>,
}

/// Why a rule was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// The path does not begin with `/`, is not its own literal reading ([`path`]), or goes deeper than [`MAX_DEPTH`].
    Path,
}

/// A request as rules see it.
pub trait Subject {
    /// The method's name.
    fn method(&self) -> &[u8];

    /// Whether a field of this name has a value for which `accepts` says yes.
    fn any_field(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

#[derive(Clone, Debug)]
struct Rule<T> {
    methods: Box<[String]>,
    fields: Box<[(String, FieldRule)]>,
    value: T,
}

impl<T> Rule<T> {
    fn applies(&self, subject: &impl Subject) -> bool {
        let method = subject.method();
        (self.methods.is_empty() || self.methods.iter().any(|m| m.as_bytes() == method))
            && self.fields.iter().all(|(name, rule)| match rule {
                FieldRule::Present => subject.any_field(name, &mut |_| true),
                FieldRule::Absent => !subject.any_field(name, &mut |_| true),
                FieldRule::Exact(wanted) => subject.any_field(name, &mut |v| v == &wanted[..]),
                FieldRule::Prefix(wanted) => subject.any_field(name, &mut |v| v.starts_with(wanted)),
            })
    }

    /// Smaller comes first.
    fn rank(&self) -> (bool, usize) {
        (self.methods.is_empty(), usize::MAX - self.fields.len())
    }
}

/// The rules of one host.
#[derive(Clone, Debug)]
pub struct RouteTable<T> {
    exact: HashMap<Box<[u8]>, Vec<Rule<T>>>,
    /// Without the slash at the end, so `/` is empty.
    prefix: HashMap<Box<[u8]>, Vec<Rule<T>>>,
    /// Most segments of a prefix.
    deepest: usize,
    /// Bytes of the longest path of a rule.
    longest: usize,
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), prefix: HashMap::new(), deepest: 0, longest: 0 }
    }
}

/// A rule that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'t, T> {
    /// What the rule is for.
    pub value: &'t T,
    /// How many bytes of the path's literal reading its path took.
    pub matched: usize,
}

impl<T> RouteTable<T> {
    /// Adds a rule behind those that are there.
    pub fn insert(&mut self, conditions: Conditions, value: T) -> Result<(), RuleError> {
        let (exact, written) = match &conditions.path {
            PathRule::Exact(p) => (true, p.as_bytes()),
            PathRule::Prefix(p) => (false, p.as_bytes()),
        };
        if !path::is_literal(written) {
            return Err(RuleError::Path);
        }
        self.longest = self.longest.max(written.len());
        let rule = Rule { methods: conditions.methods.into(), fields: conditions.fields.into(), value };
        let list = if exact {
            self.exact.entry(written.into()).or_default()
        } else {
            let key = written.strip_suffix(b"/").unwrap_or(written);
            let depth = key.iter().filter(|b| **b == b'/').count();
            if depth > MAX_DEPTH {
                return Err(RuleError::Path);
            }
            self.deepest = self.deepest.max(depth);
            self.prefix.entry(key.into()).or_default()
        };
        // Behind its equals: the order of the file.
        let at = list.partition_point(|r| r.rank() <= rule.rank());
        list.insert(at, rule);
        Ok(())
    }

    /// What all rules are for, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.prefix.values()).flatten().map(|rule| &rule.value)
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefix.is_empty()
    }

    /// Finds the rule for a request, by its path without the query. All readings of the path must select the same one.
    pub fn find(&self, path: &[u8], subject: &impl Subject) -> Result<Option<Found<'_, T>>, BadPath> {
        let readings = Readings::of(path)?;
        let rule =
            if readings.is_plain() { self.look_up(path, subject) } else { self.agreed(readings, path, subject)? };
        Ok(rule.map(|(rule, matched)| Found { value: &rule.value, matched }))
    }

    /// The rule that all readings select.
    fn agreed(
        &self,
        readings: Readings,
        path: &[u8],
        subject: &impl Subject,
    ) -> Result<Option<(&Rule<T>, usize)>, BadPath> {
        // No rule is longer, and one byte more shows that a segment goes on.
        let most = self.longest + 1;
        let mut text = Vec::with_capacity(path.len().min(most) + 3);
        let mut budget = Budget::default();
        let mut agreed: Option<Option<(&Rule<T>, usize)>> = None;
        for reading in readings.all() {
            reading.write(path, most, &mut text, &mut budget)?;
            let found = self.look_up(&text, subject);
            match agreed {
                None => agreed = Some(found),
                Some(first) if first.map(|(rule, _)| rule as *const _) == found.map(|(rule, _)| rule as *const _) => {}
                Some(_) => return Err(BadPath::Ambiguous),
            }
        }
        Ok(agreed.flatten())
    }

    /// Finds the rule for one reading of a path, and how much of that its path took.
    fn look_up(&self, path: &[u8], subject: &impl Subject) -> Option<(&Rule<T>, usize)> {
        let pick = |rules: &'_ Vec<Rule<T>>| rules.iter().position(|r| r.applies(subject));
        if !self.exact.is_empty()
            && let Some(rules) = self.exact.get(path)
            && let Some(at) = pick(rules)
        {
            return Some((&rules[at], path.len()));
        }
        // Where segments end: before each slash but the first, and at the end.
        let mut ends = [0; MAX_DEPTH + 1];
        let mut count = 1;
        for at in memchr_slashes(path) {
            if count > self.deepest {
                break;
            }
            ends[count] = at;
            count += 1;
        }
        if count <= self.deepest && path.len() > 1 && !path.ends_with(b"/") {
            ends[count] = path.len();
            count += 1;
        }
        for end in ends[..count].iter().rev() {
            if let Some(rules) = self.prefix.get(&path[..*end])
                && let Some(at) = pick(rules)
            {
                return Some((&rules[at], *end));
            }
        }
        None
    }
}

/// The places of slashes behind the first byte.
fn memchr_slashes(path: &[u8]) -> impl Iterator<Item = usize> + '_ {
    path.iter().enumerate().skip(1).filter(|(_, b)| **b == b'/').map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Request(&'static str, Vec<(&'static str, &'static str)>);

    impl Subject for Request {
        fn method(&self) -> &[u8] {
            self.0.as_bytes()
        }

        fn any_field(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
            self.1.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && accepts(v.as_bytes()))
        }
    }

    fn conditions(path: PathRule, methods: &[&str], fields: Vec<(&str, FieldRule)>) -> Conditions {
        let fields = fields.into_iter().map(|(n, r)| (n.to_owned(), r)).collect();
        Conditions { path, methods: methods.iter().map(|m| (*m).to_owned()).collect(), fields }
    }

    fn prefix(p: &str) -> PathRule {
        PathRule::Prefix(p.to_owned())
    }

    fn table(rules: Vec<(Conditions, &'static str)>) -> RouteTable<&'static str> {
        let mut t = RouteTable::default();
        for (c, v) in rules {
            t.insert(c, v).unwrap();
        }
        t
    }

    fn find(t: &RouteTable<&'static str>, path: &str) -> Option<&'static str> {
        t.find(path.as_bytes(), &Request("GET", vec![])).unwrap().map(|f| *f.value)
    }

    #[test]
    fn exact_before_the_longest_prefix() {
        let t = table(vec![
            (conditions(prefix("/"), &[], vec![]), "root"),
            (conditions(prefix("/api/"), &[], vec![]), "api"),
            (conditions(prefix("/api/v2"), &[], vec![]), "v2"),
            (conditions(PathRule::Exact("/api/v2".into()), &[], vec![]), "exactly"),
        ]);
        for (path, wanted) in [
            ("/", "root"),
            ("/x", "root"),
            ("/apix", "root"),
            ("/api", "api"),
            ("/api/", "api"),
            ("/api/v1/x", "api"),
            ("/api/v2", "exactly"),
            ("/api/v2/", "v2"),
            ("/api/v2/x/y/z", "v2"),
            ("/api/%76%32/x", "v2"),
            ("/api/v2//x;y/a%2Fb/c\\d", "v2"),
            ("/x//y;z", "root"),
        ] {
            assert_eq!(find(&t, path), Some(wanted), "{path}");
        }
        for path in ["/api/v2;x", "//api/v2", "/api/v2%2Fx", "/api\\v2", "/api%5cv2", "/api;x/v2", "/;x/api"] {
            let found = t.find(path.as_bytes(), &Request("GET", vec![]));
            assert_eq!(found, Err(BadPath::Ambiguous), "{path}");
        }
        assert_eq!(t.find(b"/api/../x", &Request("GET", vec![])), Err(BadPath::DotSegment));
        assert_eq!(t.find(b"/api/v2/x", &Request("GET", vec![])).unwrap().unwrap().matched, "/api/v2".len());
    }

    #[test]
    fn without_a_root_there_is_not_always_a_rule() {
        let t = table(vec![(conditions(prefix("/a/b"), &[], vec![]), "ab")]);
        for path in ["/", "/a", "/a/", "/b/a/b", "*", ""] {
            assert_eq!(find(&t, path), None, "{path}");
        }
        assert_eq!(find(&t, "/a/b"), Some("ab"));
    }

    #[test]
    fn methods_then_fields_then_the_file() {
        let beta = || vec![("X-Beta", FieldRule::Present)];
        let t = table(vec![
            (conditions(prefix("/"), &[], vec![]), "any"),
            (conditions(prefix("/"), &[], vec![]), "never"),
            (conditions(prefix("/"), &[], beta()), "beta"),
            (conditions(prefix("/"), &["POST", "PUT"], vec![]), "write"),
            (conditions(prefix("/"), &["POST"], beta()), "beta write"),
            (conditions(prefix("/"), &[], vec![("a", FieldRule::Exact(b"1".into()))]), "exact"),
            (conditions(prefix("/"), &["PUT"], vec![("a", FieldRule::Prefix(b"x".into()))]), "prefix"),
            (conditions(prefix("/"), &["DELETE"], vec![("a", FieldRule::Absent)]), "absent"),
        ]);
        let find = |method, fields| *t.find(b"/", &Request(method, fields)).unwrap().unwrap().value;
        assert_eq!(find("GET", vec![]), "any");
        assert_eq!(find("GET", vec![("x-beta", "")]), "beta");
        assert_eq!(find("POST", vec![]), "write");
        assert_eq!(find("POST", vec![("x-beta", "1")]), "beta write");
        assert_eq!(find("GET", vec![("A", "1")]), "exact");
        assert_eq!(find("GET", vec![("A", "2"), ("a", "1")]), "exact");
        assert_eq!(find("PUT", vec![("A", "xy")]), "prefix");
        assert_eq!(find("PUT", vec![("A", "yx")]), "write");
        assert_eq!(find("DELETE", vec![]), "absent");
        assert_eq!(find("DELETE", vec![("a", "")]), "any");
        // Methods are case-sensitive (RFC 9110 §9.1).
        assert_eq!(find("post", vec![]), "any");
    }

    #[test]
    fn deeper_rules_that_do_not_apply_let_the_shallower_have_it() {
        let t = table(vec![
            (conditions(prefix("/a"), &[], vec![]), "a"),
            (conditions(prefix("/a/b"), &["POST"], vec![]), "post"),
            (conditions(PathRule::Exact("/a/b/c".into()), &["PUT"], vec![]), "put"),
        ]);
        assert_eq!(find(&t, "/a/b/c"), Some("a"));
    }

    #[test]
    fn paths_that_never_match_are_not_taken() {
        let mut t = RouteTable::default();
        let deep = "/x".repeat(MAX_DEPTH + 1);
        for bad in ["", "api", "/a/../b", "/%61", "//a", "/a//", &deep] {
            assert_eq!(t.insert(conditions(prefix(bad), &[], vec![]), 0), Err(RuleError::Path), "{bad}");
        }
        assert!(t.is_empty());
    }
}
