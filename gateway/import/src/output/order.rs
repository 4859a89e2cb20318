//! The order of routes: entries of which the first that matches counts, as routes of which Sealane prefers some.

use super::Route;
use crate::values::denied;

/// Which methods an entry is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    Any,
    Of(Vec<String>),
    Not(Vec<String>),
}

/// A route of one path, with the methods for which it is meant; its own are not looked at.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub methods: Methods,
    pub route: Route,
}

/// Most routes of one path.
const MAX_ROUTES: usize = 64;

/// The routes for entries of one path of which the first that matches counts, the last one without conditions. `None`: no routes
/// say this.
///
/// Sealane prefers a route with an expression, then one with methods, and then the one with more conditions on headers. Where that is a later one, a route with
/// the conditions of both comes before, and does what the earlier one does. This is repeated until it adds nothing: then, of all
/// routes that match a request, the preferred one belongs to the first entry that matches.
///
/// If that saves routes, an entry before one with an expression gets an expression that every path matches: then it needs no route for
/// the paths that the later expression matches, too.
pub(crate) fn in_order(entries: Vec<Entry>) -> Option<Vec<Route>> {
    let raised = raised(&entries).and_then(ordered);
    match (ordered(entries), raised) {
        (Some(plain), Some(raised)) if raised.len() < plain.len() => Some(raised),
        (plain, raised) => plain.or(raised),
    }
}

/// Matches every path.
const EVERY: &str = "^";

/// The entries, where those before the last one with an expression have one, too.
fn raised(entries: &[Entry]) -> Option<Vec<Entry>> {
    let last = entries.iter().rposition(|e| e.route.pattern.is_some())?;
    let mut out = entries.to_vec();
    for entry in out.iter_mut().take(last) {
        entry.route.pattern.get_or_insert_with(|| EVERY.to_owned());
    }
    Some(out)
}

fn ordered(entries: Vec<Entry>) -> Option<Vec<Route>> {
    // Each with the position of its entry.
    let mut routes: Vec<(usize, Route)> = Vec::new();
    let mut put = |at: usize, route: Route| -> bool {
        let same = route.conditions();
        match routes.iter_mut().find(|(_, r)| r.conditions() == same) {
            Some((there, _)) if *there <= at => false,
            Some(there) => {
                *there = (at, route);
                true
            }
            None => {
                routes.push((at, route));
                true
            }
        }
    };
    // Of requests with other methods an entry behind `Not` has decided.
    let mut left: Option<Vec<String>> = None;
    let mut others = None;
    let last = entries.len();
    for (at, Entry { methods, mut route }) in entries.into_iter().enumerate() {
        let among = |list: &[String], is: bool, of: &[String]| -> Vec<String> {
            of.iter().filter(|m| list.contains(m) == is).cloned().collect()
        };
        let some = methods != Methods::Any || left.is_some();
        route.methods = match (methods, &left) {
            (Methods::Any, None) => Vec::new(),
            (Methods::Any, Some(left)) => left.clone(),
            (Methods::Of(list), None) => list,
            (Methods::Of(list), Some(left)) => among(&list, true, left),
            (Methods::Not(list), Some(left)) => among(&list, false, left),
            (Methods::Not(list), None) => {
                if !route.headers.is_empty() || route.pattern.is_some() {
                    return None;
                }
                route.methods.clear();
                others = Some(route);
                left = Some(list);
                continue;
            }
        };
        // One that is for no method is no route.
        if !(some && route.methods.is_empty()) {
            put(at, route);
        }
    }
    if let Some(route) = others {
        put(last, route);
    }
    loop {
        routes.sort_by_key(|(at, _)| *at);
        let mut more = Vec::new();
        for (i, (early, earlier)) in routes.iter().enumerate() {
            for (late, later) in &routes[i + 1..] {
                if late == early || !later.precedes(earlier) {
                    continue;
                }
                match earlier.and(later) {
                    Both::Never => {}
                    // A header that comes twice can have both values.
                    Both::Twice if earlier.does() != later.does() => return None,
                    Both::Twice => {}
                    Both::Route(both) => more.push((*early, *both)),
                }
            }
        }
        let mut changed = false;
        for (at, route) in more {
            let same = route.conditions();
            match routes.iter_mut().find(|(_, r)| r.conditions() == same) {
                Some((there, _)) if *there <= at => {}
                Some(there) => {
                    *there = (at, route);
                    changed = true;
                }
                None => {
                    routes.push((at, route));
                    changed = true;
                }
            }
        }
        if routes.len() > MAX_ROUTES {
            return None;
        }
        if !changed {
            return Some(routes.into_iter().map(|(_, r)| r).collect());
        }
    }
}

/// Routes of one path as entries of which the first that matches counts: the one that Sealane prefers comes first.
pub(crate) fn entries_of(mut routes: Vec<Route>) -> Vec<Entry> {
    routes.sort_by_key(|r| std::cmp::Reverse(r.rank()));
    let entry = |route: Route| {
        let methods = if route.methods.is_empty() { Methods::Any } else { Methods::Of(route.methods.clone()) };
        Entry { methods, route }
    };
    routes.into_iter().map(entry).collect()
}

/// The routes of one path in groups, each with an expression but the last. `None`: of a request that matches routes of two groups,
/// Sealane prefers the later one.
pub(crate) fn joined(groups: Vec<Vec<Route>>) -> Option<Vec<Route>> {
    let overtakes =
        |later: &Route, earlier: &Route| later.precedes(earlier) && !matches!(earlier.and(later), Both::Never);
    for (at, group) in groups.iter().enumerate() {
        let mut behind = groups[at + 1..].iter().flatten();
        if behind.any(|later| group.iter().any(|earlier| overtakes(later, earlier))) {
            return None;
        }
    }
    Some(groups.concat())
}

impl Route {
    /// This one, for the requests that match another one, too.
    fn and(&self, other: &Self) -> Both {
        let mut both = self.clone();
        both.methods = match (self.methods.is_empty(), other.methods.is_empty()) {
            (true, _) => other.methods.clone(),
            (_, true) => self.methods.clone(),
            _ => self.methods.iter().filter(|m| other.methods.contains(m)).cloned().collect(),
        };
        if both.methods.is_empty() && !(self.methods.is_empty() && other.methods.is_empty()) {
            return Both::Never;
        }
        // No expression is for what two match.
        let mut twice = false;
        both.pattern = match (&self.pattern, &other.pattern) {
            (Some(a), Some(b)) if a == EVERY => Some(b.clone()),
            (Some(a), Some(b)) => {
                twice = a != b && b != EVERY;
                Some(a.clone())
            }
            (a, b) => a.clone().or_else(|| b.clone()),
        };
        for (name, rule) in &other.headers {
            match both.headers.iter_mut().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
                None => both.headers.push((name.clone(), rule.clone())),
                Some((_, there)) => match both_hosts(name, there, rule).unwrap_or_else(|| both_rules(there, rule)) {
                    OneHeader::Never => return Both::Never,
                    OneHeader::Twice => twice = true,
                    OneHeader::Rule(rule) => *there = rule,
                },
            }
        }
        if twice { Both::Twice } else { Both::Route(Box::new(both)) }
    }
}

/// What two routes of one path have in common.
enum Both {
    Never,
    /// Only a request in which a header comes twice matches both, or one that two expressions match, or what no one condition says.
    Twice,
    Route(Box<Route>),
}

/// The condition of two on one header.
fn both_rules(a: &str, b: &str) -> OneHeader {
    let text = |rule: &str| rule.strip_prefix('"').and_then(|r| r.strip_suffix('"')).map(str::to_owned);
    match (a, b) {
        _ if a == b => OneHeader::Rule(a.to_owned()),
        _ if denied(a) == Some(b) || denied(b) == Some(a) => OneHeader::Never,
        // What is denied is denied where there is no header, too.
        ("false", other) | (other, "false") if denied(other).is_some() => OneHeader::Rule("false".to_owned()),
        ("false", _) | (_, "false") => OneHeader::Never,
        ("true", other) | (other, "true") if denied(other).is_some() => OneHeader::Twice,
        ("true", other) | (other, "true") => OneHeader::Rule(other.to_owned()),
        _ => {
            let (Some(x), Some(y)) = (text(a), text(b)) else { return OneHeader::Twice };
            match (x.strip_suffix('*'), y.strip_suffix('*')) {
                (Some(p), Some(q)) if q.starts_with(p) => OneHeader::Rule(b.to_owned()),
                (Some(p), Some(q)) if p.starts_with(q) => OneHeader::Rule(a.to_owned()),
                (Some(p), None) if y.starts_with(p) => OneHeader::Rule(b.to_owned()),
                (None, Some(q)) if x.starts_with(q) => OneHeader::Rule(a.to_owned()),
                _ => OneHeader::Twice,
            }
        }
    }
}

/// The condition of two on `Host`, which a request has once, if both compare its beginning or both compare its end.
fn both_hosts(name: &str, a: &str, b: &str) -> Option<OneHeader> {
    let text = |rule: &str| rule.strip_prefix("{ regex = '(?i)").and_then(|r| r.strip_suffix("' }")).map(str::to_owned);
    let (x, y) = (text(a)?, text(b)?);
    // Texts have no such characters but with a backslash.
    let plain = |t: &&str| !t.replace('\\', "").contains(['^', '$', '(', '|', '*', '[']);
    let begin = |t: &'_ str| t.strip_prefix('^').filter(plain).map(str::to_owned);
    let end = |t: &'_ str| t.strip_suffix('$').filter(plain).map(str::to_owned);
    let within = match (begin(&x), begin(&y), end(&x), end(&y)) {
        _ if !name.eq_ignore_ascii_case("host") => return None,
        (Some(x), Some(y), ..) => (x.starts_with(&y), y.starts_with(&x)),
        (.., Some(x), Some(y)) => (x.ends_with(&y), y.ends_with(&x)),
        _ => return None,
    };
    Some(match within {
        (true, _) => OneHeader::Rule(a.to_owned()),
        (_, true) => OneHeader::Rule(b.to_owned()),
        _ => OneHeader::Never,
    })
}

/// What two conditions on one header have in common.
enum OneHeader {
    Never,
    Twice,
    Rule(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Action, Path};
    use crate::report::Place;

    fn entry(methods: Methods, headers: &[(&str, &str)], status: u16) -> Entry {
        let mut route = Route::new(Path::Below("/".into()), Action::status(status), &Place::new("x", 1));
        route.headers = headers.iter().map(|(n, r)| ((*n).to_owned(), (*r).to_owned())).collect();
        Entry { methods, route }
    }

    /// What Sealane does with a request that has some headers, each with one value.
    fn decide(routes: &[Route], method: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let holds = |(name, rule): &(String, String)| {
            let value = headers.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            match rule.as_str() {
                "true" => value.is_some(),
                "false" => value.is_none(),
                rule => {
                    let rule = rule.trim_matches('"');
                    match rule.strip_suffix('*') {
                        Some(begin) => value.is_some_and(|v| v.starts_with(begin)),
                        None => value == Some(rule),
                    }
                }
            }
        };
        let mut found: Option<&Route> = None;
        for r in routes {
            let is = (r.methods.is_empty() || r.methods.iter().any(|m| m == method)) && r.headers.iter().all(holds);
            if is && found.is_none_or(|f| r.precedes(f)) {
                found = Some(r);
            }
        }
        found.map(|r| match r.action {
            Action::Respond { status, .. } => status,
            _ => 0,
        })
    }

    fn of(methods: &[&str]) -> Methods {
        Methods::Of(methods.iter().map(|m| (*m).to_owned()).collect())
    }

    fn not(methods: &[&str]) -> Methods {
        Methods::Not(methods.iter().map(|m| (*m).to_owned()).collect())
    }

    /// All lists of four entries of a few kinds: the first entry that matches decides.
    #[test]
    fn the_first_entry_that_matches_decides() {
        let kinds: Vec<(Methods, Vec<(&str, &str)>)> = vec![
            (of(&["POST"]), vec![]),
            (not(&["GET", "POST"]), vec![]),
            (of(&["GET", "PUT"]), vec![("a", "true")]),
            (Methods::Any, vec![("a", "true")]),
            (Methods::Any, vec![("a", "\"1\"")]),
            (Methods::Any, vec![("a", "\"1*\""), ("b", "false")]),
            (Methods::Any, vec![("b", "true")]),
            (of(&["PUT"]), vec![("b", "true"), ("a", "false")]),
        ];
        let mut said = 0;
        for n in 0..kinds.len().pow(4) {
            let picked: Vec<usize> = (0..4).map(|i| n / kinds.len().pow(i) % kinds.len()).collect();
            let mut entries: Vec<Entry> = picked
                .iter()
                .enumerate()
                .map(|(at, k)| entry(kinds[*k].0.clone(), &kinds[*k].1, 400 + at as u16))
                .collect();
            entries.push(entry(Methods::Any, &[], 200));
            let Some(routes) = in_order(entries.clone()) else { continue };
            said += 1;
            for method in ["GET", "POST", "PUT", "DELETE"] {
                for a in [None, Some("1"), Some("12"), Some("x")] {
                    for b in [None, Some("1")] {
                        let headers: Vec<(&str, &str)> =
                            [a.map(|v| ("a", v)), b.map(|v| ("b", v))].into_iter().flatten().collect();
                        let first = entries.iter().find(|e| {
                            let mut one = e.route.clone();
                            let is = match &e.methods {
                                Methods::Any => true,
                                Methods::Of(list) => list.iter().any(|m| m == method),
                                Methods::Not(list) => !list.iter().any(|m| m == method),
                            };
                            one.methods.clear();
                            is && decide(&[one], method, &headers).is_some()
                        });
                        let wanted = first.and_then(|e| match e.route.action {
                            Action::Respond { status, .. } => Some(status),
                            _ => None,
                        });
                        assert_eq!(decide(&routes, method, &headers), wanted, "{picked:?} {method} {headers:?}");
                    }
                }
            }
        }
        assert!(said > 1000, "{said}");
    }

    #[test]
    fn conditions_that_are_denied_hold_without_a_header() {
        let both = |a: &str, b: &str| match both_rules(a, b) {
            OneHeader::Never => "never".to_owned(),
            OneHeader::Twice => "twice".to_owned(),
            OneHeader::Rule(rule) => rule,
        };
        let (not, regex) = ("{ not = \"1\" }", "{ regex = 'a' }");
        for (a, b, wanted) in [
            (not, "\"1\"", "never"),
            (not, "false", "false"),
            (not, "true", "twice"),
            (not, "\"2\"", "twice"),
            (not, not, not),
            (regex, "true", regex),
            (regex, "false", "never"),
            (regex, "\"1\"", "twice"),
        ] {
            assert_eq!((both(a, b).as_str(), both(b, a).as_str()), (wanted, wanted), "{a} {b}");
        }
    }

    #[test]
    fn beginnings_and_ends_of_hosts_exclude_each_other() {
        let both = |a: &str, b: &str| match both_hosts("host", a, b) {
            Some(OneHeader::Never) => "never".to_owned(),
            Some(OneHeader::Twice) | None => "twice".to_owned(),
            Some(OneHeader::Rule(rule)) => rule,
        };
        let of = |text: &str| format!("{{ regex = '(?i){text}' }}");
        let (www, w, end) = (of("^www\\."), of("^w"), of("a\\.b$"));
        assert_eq!((both(&www, &w), both(&w, &www)), (www.clone(), www.clone()));
        assert_eq!((both(&www, &of("^api\\.")), both(&end, &of("c$"))), ("never".to_owned(), "never".to_owned()));
        assert_eq!((both(&end, &of("\\.b$")), both(&www, &end)), (end.clone(), "twice".to_owned()));
        assert_eq!((both(&www, &of("^(a|b)")), both(&www, "\"x\"")), ("twice".to_owned(), "twice".to_owned()));
        assert!(both_hosts("x-a", &www, &w).is_none());
    }

    #[test]
    fn an_expression_for_every_path_saves_routes() {
        let patterned = |headers: &[(&str, &str)], status: u16| {
            let mut out = entry(Methods::Any, headers, status);
            out.route.pattern = Some("x".to_owned());
            out
        };
        let shown = |entries: Vec<Entry>| -> Vec<(Option<String>, usize)> {
            let routes = in_order(entries).unwrap();
            routes.iter().map(|r| (r.pattern.clone(), r.headers.len())).collect()
        };
        let of = |all: &[(&str, usize)]| -> Vec<(Option<String>, usize)> {
            all.iter().map(|(p, n)| ((!p.is_empty()).then(|| (*p).to_owned()), *n)).collect()
        };
        let bot = || entry(Methods::Any, &[("a", "\"1\"")], 403);
        let rest = || entry(Methods::Any, &[], 200);
        assert_eq!(shown(vec![bot(), patterned(&[], 404), rest()]), of(&[("^", 1), ("x", 0), ("", 0)]));
        // One with more conditions is preferred all the same: a route for both.
        let more = patterned(&[("b", "true"), ("c", "true")], 404);
        assert_eq!(shown(vec![bot(), more, rest()]), of(&[("", 1), ("x", 3), ("x", 2), ("", 0)]));
        // Nothing is saved behind the last expression.
        assert_eq!(shown(vec![patterned(&[], 404), bot(), rest()]), of(&[("x", 0), ("", 1), ("", 0)]));
    }

    #[test]
    fn what_a_repeated_header_would_undo_is_no_route() {
        let deny = entry(Methods::Any, &[("a", "\"1\"")], 403);
        let pass = entry(of(&["POST"]), &[("a", "\"2\"")], 200);
        let rest = entry(Methods::Any, &[], 200);
        assert!(in_order(vec![deny, pass, rest]).is_none());
    }
}
