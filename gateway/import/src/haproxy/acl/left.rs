//! What is left of a condition for requests that the routes tell apart.

use super::{All, Condition, Counter, HostClass, Match, Test, Users};
use crate::addresses::{AddressList, Certificate, Clients};
use crate::output::Methods;
use crate::paths;
use crate::values::{self, COOKIE};

/// Requests that the routes tell apart: those at an address, for a host, at a path.
#[derive(Clone, Copy, Debug)]
pub(in crate::haproxy) struct Atom<'a> {
    pub tls: bool,
    /// As in `Acls`.
    pub trusts: bool,
    pub port: u16,
    /// As in `[[host]]`.
    pub host: &'a str,
    /// Which of the names of a wildcard.
    pub class: &'a HostClass,
    /// One of the paths that pass the same tests; none: a rule has changed it.
    pub path: Option<&'a str>,
    /// The path with which expressions are compared; none: many paths.
    pub one: Option<&'a str>,
}

/// What an ACL says of an atom.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Known(bool),
    /// It depends on the method.
    Method(Vec<String>),
    /// It depends on the path.
    Expression(String),
    Header(String, String),
    Rate(Counter, u32),
    Source(AddressList),
    Share(u32, u32),
    /// Whether the body is longer, or not longer, than this.
    Body(u64, bool),
    Certificate(Certificate),
    Users(Users),
    Access,
    Unknown,
}

/// Whether all names of a pattern are in another one.
pub(super) fn includes(wide: &str, narrow: &str) -> bool {
    if wide == "*" || wide == narrow {
        return true;
    }
    match (wide.strip_prefix("**."), narrow.strip_prefix("**.").or(narrow.strip_prefix("*."))) {
        (Some(w), Some(n)) => n == w || n.ends_with(&format!(".{w}")),
        (Some(w), None) => narrow.ends_with(&format!(".{w}")),
        (None, None) => wide
            .strip_prefix("*.")
            .and_then(|w| narrow.strip_suffix(w)?.strip_suffix('.'))
            .is_some_and(|label| !label.is_empty() && !label.contains('.')),
        _ => false,
    }
}

fn verdict(test: &Test, atom: &Atom) -> Verdict {
    let is_host = |names: &[String]| names.iter().any(|n| includes(n, atom.host));
    match test {
        Test::Always(is) => Verdict::Known(*is),
        Test::Tls => Verdict::Known(atom.tls),
        Test::Port(ports) => Verdict::Known(ports.contains(&atom.port)),
        Test::Host(names) => Verdict::Known(is_host(names)),
        Test::HostTexts(texts) => match texts.holds(atom.host, atom.class) {
            Some(holds) => Verdict::Known(holds),
            None => Verdict::Header("host".to_owned(), texts.rule.clone()),
        },
        Test::HostPorts { names, rule } => match names.iter().any(|n| n == atom.host) {
            true => Verdict::Header("host".to_owned(), rule.clone()),
            // Each of the names has a host of its own.
            false => Verdict::Known(false),
        },
        Test::ServerName(names) => Verdict::Known(atom.tls && is_host(names)),
        Test::Path(tests) => match atom.path {
            Some(path) => Verdict::Known(paths::any(tests, path)),
            None => Verdict::Unknown,
        },
        Test::Expression(e) => match (atom.path, atom.one) {
            (None, _) => Verdict::Unknown,
            (Some(_), Some(path)) => Verdict::Known(e.matches(path)),
            (Some(_), None) => Verdict::Expression(e.text().to_owned()),
        },
        Test::Share(0, _) => Verdict::Known(false),
        Test::Share(part, of) if part == of => Verdict::Known(true),
        Test::Share(part, of) => Verdict::Share(*part, *of),
        Test::Saved(inner) => verdict(inner, atom),
        Test::Users(users) => Verdict::Users(users.clone()),
        Test::Method(list) => Verdict::Method(list.clone()),
        Test::Header(name, rule) => Verdict::Header(name.clone(), rule.clone()),
        Test::Rate(counter, n) => Verdict::Rate(*counter, *n),
        Test::Source(list) => Verdict::Source(list.clone()),
        Test::Body { limit, longer } => Verdict::Body(*limit, *longer),
        Test::Certificate { is, .. } if atom.tls => Verdict::Certificate(is.clone()),
        Test::Certificate { .. } => Verdict::Known(false),
        Test::Access => Verdict::Access,
        Test::Unknown => Verdict::Unknown,
    }
}

impl Test {
    /// Whether it is about the request, as the rules before have left it.
    fn is_of_request(&self) -> bool {
        matches!(
            self,
            Self::Host(_)
                | Self::HostTexts(_)
                | Self::HostPorts { .. }
                | Self::Path(_)
                | Self::Expression(_)
                | Self::Method(_)
                | Self::Header(..)
                | Self::Body { .. }
        )
    }
}

/// What is left of a condition for an atom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::haproxy) enum Left {
    Never,
    Always,
    /// One of these: methods and headers.
    Routes(Vec<Match>),
    /// Requests above a rate, of these clients (`None`: of all).
    Rate(Counter, u32, Option<Clients>),
    /// The same, if they meet this condition.
    RateOf(Box<Match>, Counter, u32, Option<Clients>),
    /// Chance: this many of so many requests.
    Share(u32, u32),
    /// Requests with more bytes in their bodies.
    Body(u64),
    /// These clients.
    Clients(Clients),
    /// Requests that meet one of these conditions, and come from these clients (`None`: from all).
    Mixed(Vec<(Match, Option<Clients>)>),
    /// Clients without the password of one of these users.
    NoUser(Users),
    /// Clients that lack one of these certificates.
    NoCertificate(Vec<Certificate>),
    /// It checks who the client is.
    Access,
    Unknown,
}

impl Left {
    /// Whether it is about requests above a rate.
    pub fn is_rate(&self) -> bool {
        matches!(self, Self::Rate(..) | Self::RateOf(..))
    }
}

impl Condition {
    /// The tests in it.
    pub fn tests(&self) -> impl Iterator<Item = &Test> {
        self.written().map(|test| if let Test::Saved(inner) = test { inner } else { test })
    }

    /// The tests in it, with [`Test::Saved`].
    fn written(&self) -> impl Iterator<Item = &Test> {
        self.0.iter().flatten().flat_map(|(_, tests)| tests)
    }

    /// Whether it compares a header that has been changed.
    pub fn compares(&self, mut is_changed: impl FnMut(&str) -> bool) -> bool {
        self.written().any(|test| match test {
            Test::Header(name, _) if name.starts_with(COOKIE) => is_changed("cookie"),
            Test::Header(name, _) => is_changed(name),
            Test::Host(_) | Test::HostTexts(_) | Test::HostPorts { .. } => is_changed("host"),
            _ => false,
        })
    }

    /// Whether each of its conjunctions can hold for requests without the headers that the gateway takes from trusted proxies only.
    /// `None`: it compares none of them.
    pub fn without_claims(&self) -> Option<bool> {
        let holds = |test: &Test| match test {
            Test::Header(name, rule) if values::is_claim(name) => Some(values::holds_without(rule)),
            _ => None,
        };
        let one = |(negated, tests): &(bool, Vec<Test>)| {
            let found =
                tests.iter().filter_map(|t| if let Test::Saved(inner) = t { holds(inner.as_ref()) } else { holds(t) });
            found.reduce(|a, b| a || b).map(|holds| holds != *negated)
        };
        self.0.iter().flatten().filter_map(one).reduce(|a, b| a && b)
    }

    /// The same for requests with the password of one of these users.
    pub fn of_users(&self, users: &Users) -> Self {
        let granted = |test: &Test| match test {
            Test::Users(wide) if wide.includes(users) => Test::Always(true),
            test => test.clone(),
        };
        let one = |(negated, tests): &(bool, Vec<Test>)| (*negated, tests.iter().map(granted).collect());
        Self(self.0.iter().map(|all| all.iter().map(one).collect()).collect())
    }

    /// Whether it compares the path.
    pub fn compares_path(&self) -> bool {
        self.tests().any(|test| matches!(test, Test::Path(_) | Test::Expression(_)))
    }

    /// Whether it needs something of the request that HAProxy does not know any more when the response comes.
    pub fn needs_request(&self) -> bool {
        self.written().any(Test::is_of_request)
    }

    /// Whether it never holds when the response comes.
    pub fn fails_in_responses(&self) -> bool {
        self.0.iter().all(|all| all.iter().any(|(negated, tests)| !negated && tests.iter().all(Test::is_of_request)))
    }

    /// How many tests it has, for the work that it takes.
    pub fn cost(&self) -> usize {
        self.tests()
            .map(|t| match t {
                Test::Path(tests) => tests.len(),
                Test::Host(names) | Test::ServerName(names) | Test::HostPorts { names, .. } => names.len(),
                Test::HostTexts(texts) => texts.cost(),
                Test::Source(list) => list.set.ranges(),
                _ => 1,
            })
            .sum()
    }

    pub fn of(&self, atom: &Atom) -> Left {
        if self.0.is_empty() {
            return Left::Always;
        }
        let mut routes = Vec::new();
        // Conditions on both the request and the client.
        let mut some = Vec::new();
        let mut worst = None;
        let mut clients: Option<Clients> = None;
        let mut certificates = Vec::new();
        for all in &self.0 {
            match term(all, atom) {
                Left::Always => return Left::Always,
                Left::Never => {}
                Left::Routes(mut more) => routes.append(&mut more),
                Left::Mixed(mut more) => some.append(&mut more),
                Left::Clients(more) => match clients.as_ref().map_or(Some(more.clone()), |there| there.or(&more)) {
                    Some(both) => clients = Some(both),
                    None => worst = Some(Left::Access),
                },
                Left::NoCertificate(mut more) => certificates.append(&mut more),
                Left::Access => worst = Some(Left::Access),
                // Each is a limit of its own.
                rate if rate.is_rate() && worst.as_ref().is_some_and(|there| there.is_rate() && *there != rate) => {
                    worst = Some(Left::Access);
                }
                other => worst = worst.or(Some(other)),
            }
        }
        if !certificates.is_empty() {
            // It is not said together with anything else.
            let alone = worst.is_none() && clients.is_none() && routes.is_empty() && some.is_empty();
            return if alone { Left::NoCertificate(certificates) } else { Left::Access };
        }
        let of_client = clients.is_some() || !some.is_empty();
        match (worst, routes.is_empty()) {
            // A rate, or else something that can be said: not both in one limit. So it is with passwords.
            (Some(Left::Rate(..) | Left::RateOf(..)), false) => Left::Access,
            (Some(Left::Rate(..) | Left::RateOf(..)), _) if of_client => Left::Access,
            (Some(Left::NoUser(_)), _) if self.0.len() > 1 => Left::Access,
            (Some(Left::Share(..) | Left::Body(_)), _) if self.0.len() > 1 => Left::Unknown,
            (Some(worst), _) => worst,
            (None, true) if !of_client => Left::Never,
            (None, false) if !of_client => Left::Routes(routes),
            (None, true) if some.is_empty() => clients.map_or(Left::Never, Left::Clients),
            (None, _) => {
                // What is for all requests comes first.
                let all = Match { methods: Methods::Any, headers: Vec::new(), pattern: None };
                let plain = clients.map(|clients| (all, Some(clients)));
                Left::Mixed(plain.into_iter().chain(some).chain(routes.into_iter().map(|m| (m, None))).collect())
            }
        }
    }
}

fn term(all: &All, atom: &Atom) -> Left {
    let mut methods = Methods::Any;
    let mut headers: Vec<(String, String)> = Vec::new();
    let mut pattern: Option<String> = None;
    let mut rate = None;
    let mut clients: Option<Clients> = None;
    let mut certificate: Option<Certificate> = None;
    let mut users: Option<Users> = None;
    let mut share = None;
    let mut body = None;
    let mut worst = None;
    for (negated, tests) in all {
        let verdicts: Vec<Verdict> = tests.iter().map(|t| verdict(t, atom)).collect();
        if verdicts.contains(&Verdict::Known(true)) {
            if *negated {
                return Left::Never;
            }
            continue;
        }
        let open: Vec<&Verdict> = verdicts.iter().filter(|v| **v != Verdict::Known(false)).collect();
        match open.as_slice() {
            [] if *negated => {}
            [] => return Left::Never,
            [Verdict::Method(list)] => match and_methods(&methods, *negated, list) {
                Methods::Of(none) if none.is_empty() => return Left::Never,
                both => methods = both,
            },
            [Verdict::Expression(text)] if !negated && pattern.as_ref().is_none_or(|p| p == text) => {
                pattern = Some(text.clone());
            }
            [Verdict::Header(name, _), ..] => {
                let rules = open.iter().map(|v| match v {
                    Verdict::Header(other, rule) if other.eq_ignore_ascii_case(name) => Some(rule.as_str()),
                    _ => None,
                });
                let rules: Option<Vec<&str>> = rules.collect();
                let rule = rules.and_then(|rules| values::either(&rules));
                match rule.filter(|_| !headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name))) {
                    Some(rule) if *negated => headers.push((name.clone(), values::negated(&rule))),
                    Some(rule) => headers.push((name.clone(), rule)),
                    None if open.iter().any(|v| v.is_of_client()) => worst = Some(Left::Access),
                    None => worst = worst.or(Some(Left::Unknown)),
                }
            }
            some if some.iter().all(|v| matches!(v, Verdict::Source(_))) => {
                let lists = some.iter().filter_map(|v| if let Verdict::Source(list) = v { Some(list) } else { None });
                let list = lists.fold(AddressList::default(), |all, list| all.union(list));
                let these = if *negated { Clients::NotIn(list) } else { Clients::In(list) };
                match clients.as_ref().map_or(Some(these.clone()), |there| there.and(&these)) {
                    Some(both) => clients = Some(both),
                    None => worst = Some(Left::Access),
                }
            }
            [Verdict::Certificate(is)] if *negated && certificate.is_none() => certificate = Some(is.clone()),
            [Verdict::Users(one)] if *negated && users.is_none() => users = Some(one.clone()),
            [Verdict::Share(part, of)] if share.is_none() => {
                share = Some(if *negated { (of - part, *of) } else { (*part, *of) });
            }
            [Verdict::Body(limit, longer)] if longer != negated && body.is_none() => body = Some(*limit),
            [Verdict::Rate(counter, n)] if !negated && rate.is_none() => rate = Some((*counter, *n)),
            many if many.iter().any(|v| v.is_of_client()) => worst = Some(Left::Access),
            _ => worst = worst.or(Some(Left::Unknown)),
        }
    }
    let plain = methods == Methods::Any && headers.is_empty() && pattern.is_none();
    if let Some(users) = users {
        // It is not said together with anything else.
        let alone = worst.is_none() && rate.is_none() && clients.is_none() && certificate.is_none() && plain;
        return if alone && share.is_none() && body.is_none() { Left::NoUser(users) } else { Left::Access };
    }
    if let Some((part, of)) = share {
        // It is not said together with anything else.
        let alone = worst.is_none() && rate.is_none() && clients.is_none() && certificate.is_none() && plain;
        return if alone { Left::Share(part, of) } else { worst.unwrap_or(Left::Unknown) };
    }
    if let Some(limit) = body {
        let of_client = rate.is_some() || clients.is_some() || certificate.is_some();
        return match worst {
            _ if of_client => Left::Access,
            None if plain => Left::Body(limit),
            worst => worst.unwrap_or(Left::Unknown),
        };
    }
    match (worst, rate, clients, certificate) {
        (Some(worst), ..) => worst,
        (None, Some((counter, n)), clients, None) if plain => Left::Rate(counter, n, clients),
        (None, Some((counter, n)), clients, None) => {
            Left::RateOf(Box::new(Match { methods, headers, pattern }), counter, n, clients)
        }
        (None, None, Some(clients), None) if plain => Left::Clients(clients),
        (None, None, None, Some(certificate)) if plain => Left::NoCertificate(vec![certificate]),
        (None, None, None, None) if plain => Left::Always,
        (None, None, None, None) => Left::Routes(vec![Match { methods, headers, pattern }]),
        (None, None, Some(clients), None) => Left::Mixed(vec![(Match { methods, headers, pattern }, Some(clients))]),
        _ => Left::Access,
    }
}

impl Verdict {
    /// Whether it depends on who the client is.
    fn is_of_client(&self) -> bool {
        matches!(self, Self::Access | Self::Rate(..) | Self::Source(_) | Self::Certificate(_) | Self::Users(_))
    }
}

/// Methods that are among (`negated`: not among) a list, too.
pub(super) fn and_methods(methods: &Methods, negated: bool, list: &[String]) -> Methods {
    let kept = |of: &[String], is: bool| of.iter().filter(|m| list.contains(m) == is).cloned().collect();
    match (methods, negated) {
        (Methods::Any, false) => Methods::Of(list.to_vec()),
        (Methods::Any, true) => Methods::Not(list.to_vec()),
        (Methods::Of(there), _) => Methods::Of(kept(there, !negated)),
        (Methods::Not(there), false) => Methods::Of(list.iter().filter(|m| !there.contains(m)).cloned().collect()),
        (Methods::Not(there), true) => Methods::Not([there.as_slice(), list].concat()),
    }
}
