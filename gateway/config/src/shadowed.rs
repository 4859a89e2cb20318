//! Routes that no request reaches, as other routes of their host come first for all of theirs.
//!
//! The order in which routes are tried is that of `sealane_route`. Only routes for the same path can take all requests from each other:
//! of others, the narrower path comes first. Expressions are compared as text.

use super::diagnostics::Sink;
use super::redirects::RedirectTables;
use sealane_route::{Conditions, FieldRule, PathRule};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

/// For which requests a route is, and where it stands in the file.
pub(super) struct Entry {
    pub conditions: Conditions,
    /// The expression for its path.
    pub regex: Option<String>,
    pub span: Range<usize>,
}

/// The routes of one host, by their path, in the order of the file.
#[derive(Default)]
pub(super) struct ByPath {
    by_path: HashMap<PathKey, Vec<Entry>>,
    /// Routes for the paths of tables.
    listed: Vec<(usize, Entry)>,
}

#[derive(PartialEq, Eq, Hash)]
enum PathKey {
    Exact(String),
    /// Without the slash at its end.
    Prefix(String),
}

impl PathKey {
    fn prefix(path: &str) -> Self {
        Self::Prefix(path.strip_suffix('/').unwrap_or(path).to_owned())
    }
}

impl ByPath {
    /// Adds a route. One for exactly the same requests as another is a mistake.
    pub fn push(&mut self, sink: &Sink, route: Entry) {
        let key = match &route.conditions.path {
            PathRule::Listed(table) => return self.listed.push((*table, route)),
            PathRule::Exact(path) => PathKey::Exact(path.clone()),
            PathRule::Prefix(path) => PathKey::prefix(path),
        };
        let routes = self.by_path.entry(key).or_default();
        if let Some(first) = routes.iter().find(|first| first.takes(&route) && route.takes(first)) {
            let message = format!("a second route for the same requests; the first is at {}", sink.place(&first.span));
            sink.error(&route.span, message, Some("remove one of the two, or change its conditions".to_owned()));
            return;
        }
        routes.push(route);
    }

    /// Warns of routes that get no request.
    pub fn warn(&self, sink: &Sink, tables: &RedirectTables) {
        for routes in self.by_path.values() {
            for (at, route) in routes.iter().enumerate() {
                if let Some(by) = taken_by(routes, at) {
                    let places: Vec<String> = by.into_iter().map(|place| sink.place(place)).collect();
                    let message = match &places[..] {
                        [one] => format!(
                            "this route gets no requests: the route at {one} takes precedence and matches all of them"
                        ),
                        _ => format!(
                            "this route gets no requests: the routes at {} take precedence and together match all of them",
                            places.join(" and ")
                        ),
                    };
                    let help = "remove this route, or give it a condition that the other route does not have. Of several routes for \
                                one path, the gateway tries those with \"path_regex\" first, then those with \"methods\", then \
                                those with the most conditions in \"headers\" and \"cookies\", then the first in the file";
                    sink.warn(&route.span, message, Some(help.to_owned()));
                }
            }
        }
        for (at, (table, route)) in self.listed.iter().enumerate() {
            let Some(table) = tables.get(*table) else { continue };
            let exact = self.by_path.iter().filter_map(|(key, routes)| match key {
                PathKey::Exact(path) if table.contains(path) => Some((path, routes)),
                _ => None,
            });
            let mut taken: Vec<(&str, &Range<usize>)> = exact
                .filter_map(|(path, routes)| {
                    Some((path.as_str(), &routes.iter().find(|other| other.takes(route))?.span))
                })
                .collect();
            for (before, other) in &self.listed[..at] {
                if let Some(before) = tables.get(*before)
                    && other.takes(route)
                {
                    taken.extend(table.paths().filter(|path| before.contains(path)).map(|path| (path, &other.span)));
                }
            }
            taken.sort_unstable_by_key(|(path, span)| (*path, span.start));
            taken.dedup_by_key(|(path, _)| *path);
            if let [(path, by), rest @ ..] = &taken[..] {
                let place = sink.place(by);
                let message = match rest.len() {
                    0 => format!(
                        "the redirect for \"{path}\" in this table has no effect: the route at {place} takes precedence"
                    ),
                    n => format!(
                        "the redirects for {} paths in this table have no effect, because other routes take precedence: for \
                         \"{path}\", the route at {place}",
                        n + 1
                    ),
                };
                let help = "remove these paths from the table, or remove the other routes";
                sink.warn(&route.span, message, Some(help.to_owned()));
            }
        }
    }

    /// The route that gets the requests that no other route of the host is for.
    pub fn for_the_rest(&self) -> Option<&Range<usize>> {
        let routes = self.by_path.get(&PathKey::prefix("/"))?;
        let is_all = |route: &&Entry| {
            route.regex.is_none() && route.conditions.methods.is_empty() && route.conditions.fields.is_empty()
        };
        routes.iter().find(is_all).map(|route| &route.span)
    }
}

/// The routes for the same path that are tried before this one and together get all of its requests.
fn taken_by(routes: &[Entry], at: usize) -> Option<Vec<&Range<usize>>> {
    let route = &routes[at];
    let before = |other: &usize| (routes[*other].rank(), *other) < (route.rank(), at);
    let mut earlier: Vec<usize> = (0..routes.len()).filter(before).collect();
    earlier.sort_by_key(|other| (routes[*other].rank(), *other));
    let mut takers = Vec::new();
    // One that is for any method comes behind all that name methods, so that it is only taken by one like it.
    let methods = route.conditions.methods.iter().map(|method| Some(method.as_str()));
    let any = route.conditions.methods.is_empty().then_some(None);
    for method in methods.chain(any) {
        let taker = earlier.iter().find(|other| routes[**other].is_wider(route) && routes[**other].is_for(method))?;
        let span = &routes[*taker].span;
        if !takers.contains(&span) {
            takers.push(span);
        }
    }
    takers.sort_unstable_by_key(|span: &&Range<usize>| span.start);
    Some(takers)
}

impl Entry {
    /// Its place among routes for one path; the smaller comes first.
    fn rank(&self) -> (bool, bool, Reverse<usize>) {
        (self.regex.is_none(), self.conditions.methods.is_empty(), Reverse(self.conditions.fields.len()))
    }

    /// Whether it is for this method; `None`: for all that there are.
    fn is_for(&self, method: Option<&str>) -> bool {
        let methods = &self.conditions.methods;
        methods.is_empty() || method.is_some_and(|method| methods.iter().any(|own| own == method))
    }

    /// Whether it is for each path and all fields that the other one is for.
    fn is_wider(&self, other: &Self) -> bool {
        let has = |wanted: &(String, FieldRule)| {
            let same = other.conditions.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(&wanted.0));
            same.into_iter().any(|(_, rule)| implies(rule, &wanted.1))
        };
        (self.regex.is_none() || self.regex == other.regex) && self.conditions.fields.iter().all(has)
    }

    /// Whether it is for each request that the other one is for, if it is for their path.
    fn takes(&self, other: &Self) -> bool {
        self.is_wider(other)
            && match &other.conditions.methods[..] {
                [] => self.is_for(None),
                methods => methods.iter().all(|method| self.is_for(Some(method))),
            }
    }
}

/// Whether a field that is like `rule` is also like `wanted`.
fn implies(rule: &FieldRule, wanted: &FieldRule) -> bool {
    match (rule, wanted) {
        (FieldRule::Exact(_) | FieldRule::Prefix(_), FieldRule::Present) => true,
        (FieldRule::Exact(own) | FieldRule::Prefix(own), FieldRule::Prefix(start)) => own.starts_with(start),
        (rule, wanted) => rule == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_route::{RouteTable, Subject};

    const METHODS: [&str; 3] = ["GET", "POST", "PUT"];
    const VALUES: [Option<&str>; 5] = [None, Some(""), Some("a"), Some("ab"), Some("b")];
    /// Stand-ins for expressions.
    const PATTERNS: [&str; 2] = ["a", "x"];

    struct Request<'a> {
        method: &'a str,
        fields: [(&'a str, Option<&'a str>); 2],
    }

    impl Subject for Request<'_> {
        fn method(&self) -> &[u8] {
            self.method.as_bytes()
        }

        fn any_field(&self, name: &str, accepts: &mut dyn FnMut(&[u8]) -> bool) -> bool {
            let found = self.fields.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name));
            found.filter_map(|(_, value)| *value).any(|value| accepts(value.as_bytes()))
        }

        fn matches(&self, pattern: usize, path: &[u8]) -> bool {
            String::from_utf8_lossy(path).contains(PATTERNS[pattern])
        }
    }

    /// Numbers that are the same in each run (xorshift).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }

        fn conditions(&mut self) -> Conditions {
            let path = ["/", "/a", "/a/"][self.below(3)].to_owned();
            let is_exact = self.below(4) == 0;
            let pattern = [None, None, Some(0), Some(1)][self.below(4)].filter(|_| !is_exact);
            let methods = METHODS.iter().filter(|_| self.below(3) == 0).map(|method| (*method).to_owned()).collect();
            let mut fields = Vec::new();
            for name in ["x-one", "X-Two"] {
                let rule = match self.below(9) {
                    0 => FieldRule::Present,
                    1 => FieldRule::Absent,
                    2 => FieldRule::Exact(b"ab".to_vec()),
                    3 => FieldRule::Prefix(b"a".to_vec()),
                    4 => FieldRule::Prefix(b"ab".to_vec()),
                    _ => continue,
                };
                let name = if self.below(2) == 0 { name.to_owned() } else { name.to_ascii_uppercase() };
                fields.push((name, rule));
            }
            let path = if is_exact { PathRule::Exact(path) } else { PathRule::Prefix(path) };
            Conditions { path, pattern, methods, fields }
        }
    }

    fn entry(conditions: Conditions, at: usize) -> Entry {
        let regex = conditions.pattern.map(|pattern| PATTERNS[pattern].to_owned());
        Entry { conditions, regex, span: at..at + 1 }
    }

    /// The routes that some request gets.
    fn reached(table: &RouteTable<usize>) -> std::collections::HashSet<usize> {
        let mut out = std::collections::HashSet::new();
        for path in ["/", "/a", "/a/", "/a/x", "/b", "/x", "/a/b", "/ax"] {
            for method in METHODS.iter().chain(&["DELETE"]) {
                for one in VALUES {
                    for two in VALUES {
                        let request = Request { method, fields: [("x-one", one), ("x-two", two)] };
                        out.extend(table.find(path.as_bytes(), &request).unwrap().map(|found| *found.value));
                    }
                }
            }
        }
        out
    }

    #[test]
    fn what_is_warned_of_is_never_selected() {
        let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
        let (mut warned, mut missed) = (0, 0);
        for _ in 0..1000 {
            let mut by_path: HashMap<PathKey, Vec<Entry>> = HashMap::new();
            let mut table = RouteTable::default();
            for at in 0..6 + numbers.below(8) {
                let conditions = numbers.conditions();
                let key = match &conditions.path {
                    PathRule::Exact(path) => PathKey::Exact(path.clone()),
                    PathRule::Prefix(path) => PathKey::prefix(path),
                    PathRule::Listed(_) => continue,
                };
                table.insert(conditions.clone(), at).unwrap();
                by_path.entry(key).or_default().push(entry(conditions, at));
            }
            let reached = reached(&table);
            for routes in by_path.values() {
                for (at, route) in routes.iter().enumerate() {
                    match (taken_by(routes, at), reached.contains(&route.span.start)) {
                        (Some(by), true) => panic!("{:?} is reached, beside {by:?}", route.conditions),
                        (Some(_), false) => warned += 1,
                        (None, false) => missed += 1,
                        (None, true) => {}
                    }
                }
            }
        }
        assert!(warned > 50, "{warned} warned of, {missed} missed");
    }

    #[test]
    fn one_condition_may_imply_another() {
        let exact = |value: &str| FieldRule::Exact(value.as_bytes().to_vec());
        let prefix = |value: &str| FieldRule::Prefix(value.as_bytes().to_vec());
        for (rule, wanted, expected) in [
            (exact("ab"), exact("ab"), true),
            (exact("ab"), exact("a"), false),
            (exact("ab"), prefix("a"), true),
            (prefix("ab"), prefix("a"), true),
            (prefix("a"), prefix("ab"), false),
            (prefix("a"), exact("a"), false),
            (exact("ab"), FieldRule::Present, true),
            (FieldRule::Present, prefix(""), false),
            (FieldRule::Absent, FieldRule::Present, false),
            (FieldRule::Absent, FieldRule::Absent, true),
        ] {
            assert_eq!(implies(&rule, &wanted), expected, "{rule:?} {wanted:?}");
        }
    }
}
