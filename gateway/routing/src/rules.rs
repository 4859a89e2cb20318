//! The rules of one host: by path, method and header fields.
//!
//! Which rule wins, of those that match:
//!
//! 1. one for exactly this path,
//! 2. one for a list that has this path,
//! 3. the one with the longest path prefix (by whole segments: `/api` is a prefix of `/api/x`, not of `/apix`),
//! 4. one with a pattern for the path,
//! 5. one that names methods,
//! 6. the one with the most conditions on fields,
//! 7. the first in the file.
//!
//! Looking up costs one hash per segment of the path, as far as the deepest rule goes, whatever the number of rules; and one
//! search for each pattern beside the prefixes of the path, for a path or a value.

use crate::path::{self, BadPath, Budget, Readings};
use std::collections::HashMap;

/// A rule's path has no more segments, so that a long path costs no more.
pub const MAX_DEPTH: usize = 32;

/// Bytes of paths and values that the patterns of one look-up may search, all patterns and readings together.
pub const MAX_SEARCHED: usize = 256 * 1024;

/// Which paths a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRule {
    /// This path alone.
    Exact(String),
    /// This path and everything below it. A slash at its end makes no difference; `/` is every path.
    Prefix(String),
    /// The paths of a list, by its number ([`Subject::entry`]).
    Listed(usize),
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
    /// One of its values matches the pattern with this number ([`Subject::matches`]).
    Matches(usize),
    /// This does not hold. Of several values, none may be what is denied.
    Not(Box<Self>),
    /// This holds for the cookies of this name. The field is `Cookie`.
    Cookie(String, Box<Self>),
}

/// Goes through values until one is accepted.
type AnyValue<'v> = dyn FnMut(&mut dyn FnMut(&[u8]) -> bool) -> bool + 'v;

impl FieldRule {
    /// Whether it holds for the values that `any` goes through. `matches` compares one with a pattern.
    fn holds(&self, any: &mut AnyValue, matches: &mut dyn FnMut(usize, &[u8]) -> bool) -> bool {
        match self {
            Self::Present => any(&mut |_| true),
            Self::Absent => !any(&mut |_| true),
            Self::Exact(wanted) => any(&mut |v| v == &wanted[..]),
            Self::Prefix(wanted) => any(&mut |v| v.starts_with(wanted)),
            Self::Matches(pattern) => any(&mut |v| matches(*pattern, v)),
            Self::Not(rule) => !rule.holds(any, matches),
            Self::Cookie(name, rule) => {
                let named = &mut |accepts: &mut dyn FnMut(&[u8]) -> bool| {
                    any(&mut |line| cookies(line).any(|(own, value)| own == name.as_bytes() && accepts(value)))
                };
                rule.holds(named, matches)
            }
        }
    }
}

/// Names and values of a `Cookie` field (RFC 6265 §5.4).
pub fn cookies(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    line.split(|b| *b == b';').filter_map(|pair| {
        let pair = pair.trim_ascii_start();
        let end = pair.iter().position(|b| *b == b'=')?;
        Some((&pair[..end], &pair[end + 1..]))
    })
}

/// When a rule applies: all of it must.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// The path.
    pub path: PathRule,
    /// A pattern that the path must match, too, by its number ([`Subject::matches`]).
    pub pattern: Option<usize>,
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

    /// Whether a field has such a value whose name is another spelling of this one, which a server may take for it.
    fn any_other_spelling(&self, _name: &str, _accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        false
    }

    /// Whether a reading of the path, or a field's value, matches the pattern with this number, in time that is linear in its length.
    fn matches(&self, _pattern: usize, _text: &[u8]) -> bool {
        false
    }

    /// The entry that the list with this number has for a reading of the path.
    fn entry(&self, _list: usize, _path: &[u8]) -> Option<usize> {
        None
    }
}

#[derive(Clone, Debug)]
struct Rule<T> {
    pattern: Option<usize>,
    methods: Box<[String]>,
    fields: Box<[(String, FieldRule)]>,
    value: T,
}

impl<T> Rule<T> {
    /// Whether all conditions hold but that on the path's prefix. `searched`: the bytes that patterns have searched so far.
    #[inline]
    fn applies(&self, path: &[u8], subject: &impl Subject, searched: &mut usize) -> Result<bool, BadPath> {
        match self.pattern {
            None => self.is_for(subject, searched),
            Some(pattern) => Ok(self.is_for(subject, searched)? && {
                *searched = searched.saturating_add(path.len());
                if *searched > MAX_SEARCHED {
                    return Err(BadPath::TooComplex);
                }
                subject.matches(pattern, path)
            }),
        }
    }

    /// Whether the conditions on the method and the fields hold.
    #[inline]
    fn is_for(&self, subject: &impl Subject, searched: &mut usize) -> Result<bool, BadPath> {
        let method = subject.method();
        if !self.methods.is_empty() && !self.methods.iter().any(|m| m.as_bytes() == method) {
            return Ok(false);
        }
        if self.fields.is_empty() { Ok(true) } else { self.fields_hold(subject, searched) }
    }

    /// Servers do not agree whether `X_Key` is `X-Key`. If a condition holds for one kind of server alone, the request has no rule.
    #[inline(never)]
    fn fields_hold(&self, subject: &impl Subject, searched: &mut usize) -> Result<bool, BadPath> {
        let mut in_doubt = false;
        for (name, rule) in self.fields.iter() {
            let mut matches = |pattern, value: &[u8]| {
                *searched = searched.saturating_add(value.len());
                *searched <= MAX_SEARCHED && subject.matches(pattern, value)
            };
            let holds = rule.holds(&mut |accepts| subject.any_field(name, accepts), &mut matches);
            let mut either = |accepts: &mut dyn FnMut(&[u8]) -> bool| {
                subject.any_field(name, &mut *accepts) || subject.any_other_spelling(name, accepts)
            };
            let doubtful =
                subject.any_other_spelling(name, &mut |_| true) && holds != rule.holds(&mut either, &mut matches);
            // What was not compared says nothing.
            if *searched > MAX_SEARCHED {
                return Err(BadPath::TooComplex);
            }
            if !holds && !doubtful {
                return Ok(false);
            }
            in_doubt |= doubtful;
        }
        if in_doubt { Err(BadPath::Spelling) } else { Ok(true) }
    }

    /// Smaller comes first.
    fn rank(&self) -> (bool, bool, usize) {
        (self.pattern.is_none(), self.methods.is_empty(), usize::MAX - self.fields.len())
    }
}

/// The rules of one host.
#[derive(Clone, Debug)]
pub struct RouteTable<T> {
    exact: HashMap<Box<[u8]>, Vec<Rule<T>>>,
    /// Without the slash at the end, so `/` is empty.
    prefix: HashMap<Box<[u8]>, Vec<Rule<T>>>,
    /// Rules for the paths of lists.
    listed: Vec<(usize, Rule<T>)>,
    /// Most segments of a prefix.
    deepest: usize,
    /// Bytes of a path that say which rule is for it: those of the longest path of a rule and one more; with patterns or lists
    /// all.
    decisive: usize,
}

impl<T> Default for RouteTable<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), prefix: HashMap::new(), listed: Vec::new(), deepest: 0, decisive: 1 }
    }
}

/// A rule that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'t, T> {
    /// What the rule is for.
    pub value: &'t T,
    /// How many bytes of the path's literal reading its path took.
    pub matched: usize,
    /// The entry of the list that has the path.
    pub entry: Option<usize>,
}

/// What a look-up for one reading leads to: the rule, how much of the reading its path took, and the entry of its list.
type LookedUp<'t, T> = Option<(&'t Rule<T>, usize, Option<usize>)>;

impl<T> RouteTable<T> {
    /// Adds a rule behind those that are there.
    pub fn insert(&mut self, conditions: Conditions, value: T) -> Result<(), RuleError> {
        let rule = Rule {
            pattern: conditions.pattern,
            methods: conditions.methods.into(),
            fields: conditions.fields.into(),
            value,
        };
        let (exact, written) = match &conditions.path {
            PathRule::Exact(p) => (true, p.as_bytes()),
            PathRule::Prefix(p) => (false, p.as_bytes()),
            PathRule::Listed(list) => {
                self.decisive = usize::MAX;
                self.listed.push((*list, rule));
                return Ok(());
            }
        };
        if !path::is_literal(written) {
            return Err(RuleError::Path);
        }
        // One byte more shows that a segment goes on.
        let decisive = if rule.pattern.is_some() { usize::MAX } else { written.len() + 1 };
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
        self.decisive = self.decisive.max(decisive);
        // Behind its equals: the order of the file.
        let at = list.partition_point(|r| r.rank() <= rule.rank());
        list.insert(at, rule);
        Ok(())
    }

    /// What all rules are for, in no order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        let listed = self.listed.iter().map(|(_, rule)| rule);
        self.exact.values().chain(self.prefix.values()).flatten().chain(listed).map(|rule| &rule.value)
    }

    /// Whether the path and the method of a request alone select its rule.
    pub fn goes_by_path_and_method(&self) -> bool {
        let rules = self.exact.values().chain(self.prefix.values()).flatten();
        self.listed.is_empty() && rules.into_iter().all(|rule| rule.pattern.is_none() && rule.fields.is_empty())
    }

    /// For the path of each rule, a path that a request may have. Not those of lists.
    pub fn paths(&self) -> impl Iterator<Item = Vec<u8>> {
        let below = self.prefix.keys().map(|path| [path, &b"/"[..]].concat());
        self.exact.keys().map(|path| path.to_vec()).chain(below)
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefix.is_empty() && self.listed.is_empty()
    }

    /// Finds the rule for a request, by its path without the query. All readings of the path must select the same one.
    pub fn find(&self, path: &[u8], subject: &impl Subject) -> Result<Option<Found<'_, T>>, BadPath> {
        let readings = Readings::of(path)?;
        let rule = if readings.is_plain() {
            self.look_up(path, subject, &mut 0)?
        } else {
            self.agreed(readings, path, subject)?
        };
        Ok(rule.map(|(rule, matched, entry)| Found { value: &rule.value, matched, entry }))
    }

    /// The rule that all readings select.
    fn agreed(&self, readings: Readings, path: &[u8], subject: &impl Subject) -> Result<LookedUp<'_, T>, BadPath> {
        let mut text = Vec::with_capacity(path.len().min(self.decisive) + 3);
        let (mut budget, mut searched) = (Budget::default(), 0);
        let mut agreed: Option<LookedUp<'_, T>> = None;
        let same = |found: LookedUp<'_, T>| found.map(|(rule, _, entry)| (std::ptr::from_ref(rule), entry));
        for reading in readings.all() {
            reading.write(path, self.decisive, &mut text, &mut budget)?;
            let found = self.look_up(&text, subject, &mut searched)?;
            match agreed {
                None => agreed = Some(found),
                Some(first) if same(first) == same(found) => {}
                Some(_) => return Err(BadPath::Ambiguous),
            }
        }
        Ok(agreed.flatten())
    }

    /// Finds the rule for one reading of a path.
    fn look_up(&self, path: &[u8], subject: &impl Subject, searched: &mut usize) -> Result<LookedUp<'_, T>, BadPath> {
        let pick = |rules: &[Rule<T>], searched: &mut usize| -> Result<Option<usize>, BadPath> {
            for (at, rule) in rules.iter().enumerate() {
                if rule.applies(path, subject, searched)? {
                    return Ok(Some(at));
                }
            }
            Ok(None)
        };
        if !self.exact.is_empty()
            && let Some(rules) = self.exact.get(path)
            && let Some(at) = pick(rules, searched)?
        {
            return Ok(Some((&rules[at], path.len(), None)));
        }
        for (list, rule) in &self.listed {
            if let Some(entry) = subject.entry(*list, path)
                && rule.is_for(subject, searched)?
            {
                return Ok(Some((rule, path.len(), Some(entry))));
            }
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
                && let Some(at) = pick(rules, searched)?
            {
                return Ok(Some((&rules[at], *end, None)));
            }
        }
        Ok(None)
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

    /// Stand-ins for patterns: what the path contains, by number.
    const PATTERNS: [&str; 3] = ["/v1/", "admin", "x"];
    /// The list with the number 0.
    const LIST: [&str; 3] = ["/old", "/old/x", "//old"];

    impl Subject for Request {
        fn method(&self) -> &[u8] {
            self.0.as_bytes()
        }

        fn matches(&self, pattern: usize, path: &[u8]) -> bool {
            String::from_utf8_lossy(path).contains(PATTERNS[pattern])
        }

        fn entry(&self, list: usize, path: &[u8]) -> Option<usize> {
            LIST.iter().position(|listed| list == 0 && listed.as_bytes() == path)
        }

        fn any_field(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
            self.1.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && accepts(v.as_bytes()))
        }

        fn any_other_spelling(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
            let other = |n: &str| !n.eq_ignore_ascii_case(name) && n.replace('_', "-").eq_ignore_ascii_case(name);
            self.1.iter().any(|(n, v)| other(n) && accepts(v.as_bytes()))
        }
    }

    fn conditions(path: PathRule, methods: &[&str], fields: Vec<(&str, FieldRule)>) -> Conditions {
        let fields = fields.into_iter().map(|(n, r)| (n.to_owned(), r)).collect();
        Conditions { path, pattern: None, methods: methods.iter().map(|m| (*m).to_owned()).collect(), fields }
    }

    fn pattern(path: &str, number: usize) -> Conditions {
        Conditions { pattern: Some(number), ..conditions(prefix(path), &[], vec![]) }
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
    fn patterns_win_among_rules_with_the_same_path_alone() {
        let t = table(vec![
            (conditions(prefix("/"), &["GET"], vec![]), "root"),
            (pattern("/", 0), "v1"),
            (pattern("/api", 1), "admin of the api"),
            (conditions(prefix("/closed"), &[], vec![]), "closed"),
            (conditions(PathRule::Exact("/exact/v1/".into()), &[], vec![]), "exactly"),
        ]);
        for (path, wanted) in [
            ("/", "root"),
            ("/a/v1/b", "v1"),
            ("/api/v1/x", "v1"),
            ("/api/v1/admin", "admin of the api"),
            ("/closed/v1/x", "closed"),
            ("/exact/v1/", "exactly"),
            ("/a/%761/b", "v1"),
            ("/a/v1/x%2Fy", "v1"),
            // A long path is read as a whole.
            (&format!("/{}/v1/", "a".repeat(1000)), "v1"),
        ] {
            assert_eq!(find(&t, path), Some(wanted), "{path}");
        }
        for path in ["/a/v1%2Fb", "/a/v1;x/b", "/a//v1%2f", "/a\\v1/", "/api/v1/x;admin"] {
            let found = t.find(path.as_bytes(), &Request("GET", vec![]));
            assert_eq!(found, Err(BadPath::Ambiguous), "{path}");
        }
    }

    #[test]
    fn values_match_patterns_and_cookies_have_names() {
        let admin = || FieldRule::Matches(1);
        let cookie = |name: &str, rule| vec![("Cookie", FieldRule::Cookie(name.to_owned(), Box::new(rule)))];
        let t = table(vec![
            (conditions(prefix("/"), &[], vec![]), "any"),
            (conditions(prefix("/agent"), &[], vec![("Agent", admin())]), "agent"),
            (conditions(prefix("/other"), &[], vec![("Agent", FieldRule::Not(Box::new(admin())))]), "other"),
            (conditions(prefix("/beta"), &[], cookie("beta", FieldRule::Exact(b"1".into()))), "beta"),
            (conditions(prefix("/new"), &[], cookie("id", FieldRule::Absent)), "new"),
            (conditions(prefix("/not"), &[], cookie("id", FieldRule::Not(Box::new(admin())))), "not"),
        ]);
        let find = |path: &str, fields: &[(&'static str, &'static str)]| {
            *t.find(path.as_bytes(), &Request("GET", fields.to_vec())).unwrap().unwrap().value
        };
        assert_eq!(find("/agent", &[("agent", "an admin")]), "agent");
        assert_eq!(find("/agent", &[("agent", "x"), ("agent", "admin")]), "agent");
        assert_eq!((find("/agent", &[("agent", "x")]), find("/agent", &[])), ("any", "any"));
        // Of two values, one is denied.
        assert_eq!(find("/other", &[("agent", "x"), ("agent", "admin")]), "any");
        assert_eq!((find("/other", &[("agent", "x")]), find("/other", &[])), ("other", "other"));
        assert_eq!(find("/beta", &[("cookie", "a=b; beta=1")]), "beta");
        assert_eq!(find("/beta", &[("cookie", "a=b"), ("cookie", "beta=0;beta=1")]), "beta");
        for others in ["beta=12", "abeta=1", "Beta=1", "a=beta=1", "beta", "beta =1", ""] {
            assert_eq!(find("/beta", &[("cookie", others)]), "any", "{others}");
        }
        assert_eq!((find("/new", &[]), find("/new", &[("cookie", "ids=1")])), ("new", "new"));
        assert_eq!(find("/new", &[("cookie", "id=")]), "any");
        assert_eq!((find("/not", &[("cookie", "id=x; a=admin")]), find("/not", &[])), ("not", "not"));
        assert_eq!(find("/not", &[("cookie", "id=x;id=admin")]), "any");
    }

    #[test]
    fn a_condition_that_depends_on_the_spelling_of_a_name_selects_nothing() {
        let key = |path: &str, is: FieldRule| conditions(prefix(path), &[], vec![("X-Key", is)]);
        let not = |is: FieldRule| FieldRule::Not(Box::new(is));
        let t = table(vec![
            (conditions(prefix("/"), &[], vec![]), "any"),
            (key("/present", FieldRule::Present), "present"),
            (key("/absent", FieldRule::Absent), "absent"),
            (key("/exact", FieldRule::Exact(b"right".to_vec())), "exact"),
            (key("/not", not(FieldRule::Exact(b"right".to_vec()))), "not"),
            (key("/regex", not(FieldRule::Matches(1))), "regex"),
            (conditions(prefix("/two"), &[], vec![("X-Key", FieldRule::Present), ("a", FieldRule::Present)]), "two"),
        ]);
        let find = |path: &str, fields: &[(&'static str, &'static str)]| {
            t.find(path.as_bytes(), &Request("GET", fields.to_vec())).map(|found| found.map(|f| *f.value))
        };
        let spelling = Err(BadPath::Spelling);
        for path in ["/present", "/absent"] {
            assert_eq!(find(path, &[("x_key", "")]), spelling, "{path}");
            let there = if path == "/present" { "present" } else { "any" };
            assert_eq!(find(path, &[("x-key", ""), ("X_KEY", "")]), Ok(Some(there)), "{path}");
        }
        for (path, right, wrong) in [("/exact", "exact", "any"), ("/not", "any", "not")] {
            assert_eq!(find(path, &[("x_key", "right")]), spelling, "{path}");
            assert_eq!(find(path, &[("x-key", "wrong"), ("x_key", "right")]), spelling, "{path}");
            assert_eq!(find(path, &[("x-key", "right"), ("x_key", "wrong")]), Ok(Some(right)), "{path}");
            assert_eq!(find(path, &[("x_key", "wrong")]), Ok(Some(wrong)), "{path}");
        }
        assert_eq!(find("/regex", &[("x_key", "admin")]), spelling);
        assert_eq!(find("/regex", &[("x_key", "other")]), Ok(Some("regex")));
        // A name that no condition is about, and a rule that another condition excludes.
        assert_eq!(find("/", &[("x_key", "")]), Ok(Some("any")));
        assert_eq!(find("/two", &[("x_key", "")]), Ok(Some("any")));
        assert_eq!(find("/two", &[("x_key", ""), ("a", "")]), spelling);
    }

    #[test]
    fn patterns_search_no_more_than_they_may() {
        let many = (0..100).map(|_| (pattern("/", 0), "v1")).collect();
        let t = table(many);
        let find = |length: usize| t.find(format!("/{}", "a".repeat(length)).as_bytes(), &Request("GET", vec![]));
        assert_eq!(find(1000), Ok(None));
        assert_eq!(find(MAX_SEARCHED / 100), Err(BadPath::TooComplex));
        // Values count, too, and what is not compared is not taken for another value.
        let not = || FieldRule::Not(Box::new(FieldRule::Matches(0)));
        let t = table((0..100).map(|_| (conditions(prefix("/"), &["PUT"], vec![("a", not())]), "not")).collect());
        let long: &'static str = "v1".repeat(MAX_SEARCHED / 2).leak();
        let find = |value| t.find(b"/", &Request("PUT", vec![("a", value), ("a", "/v1/")]));
        assert_eq!((find("x"), find(long)), (Ok(None), Err(BadPath::TooComplex)));
    }

    #[test]
    fn lists_come_behind_exact_paths_and_before_prefixes() {
        let mut t = table(vec![
            (conditions(prefix("/"), &[], vec![]), "root"),
            (conditions(prefix("/old/x"), &[], vec![]), "prefix"),
            (conditions(PathRule::Exact("/old/x".into()), &["POST"], vec![]), "exactly"),
        ]);
        t.insert(conditions(PathRule::Listed(0), &[], vec![]), "listed").unwrap();
        let entry = |path: &str, method| {
            t.find(path.as_bytes(), &Request(method, vec![])).map(|f| f.map(|f| (*f.value, f.entry)))
        };
        assert_eq!(entry("/old", "GET"), Ok(Some(("listed", Some(0)))));
        assert_eq!(entry("/%6fld", "GET"), Ok(Some(("listed", Some(0)))));
        assert_eq!(entry("/old/x", "GET"), Ok(Some(("listed", Some(1)))));
        assert_eq!(entry("/old/x", "POST"), Ok(Some(("exactly", None))));
        assert_eq!(entry("/old/x/y", "GET"), Ok(Some(("prefix", None))));
        assert_eq!(entry("/old/", "GET"), Ok(Some(("root", None))));
        // Two readings with two entries, and one reading that is not listed.
        assert_eq!(entry("//old", "GET"), Err(BadPath::Ambiguous));
        assert_eq!(entry("/old;x", "GET"), Err(BadPath::Ambiguous));
        assert!(t.values().any(|value| *value == "listed"));
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
