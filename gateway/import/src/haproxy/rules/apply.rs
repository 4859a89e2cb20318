//! Which rules apply to one kind of requests, and what they lead to.

use super::{
    Counted, Edit, Exception, Limit, Of, Outcome, Rule, Share, What, because, loses_body, names_host, names_path,
};
use crate::addresses::{AddressSet, Clients};
use crate::haproxy::acl::{Atom, Both, Counter, Left, Match, Test, Users};
use crate::haproxy::parser::Line;
use crate::nginx::FRAMING;
use crate::output::{Action, BasicAuth, Methods, Path};
use crate::paths;
use crate::report::{Id, Place, Report};
use std::collections::BTreeMap;

/// What of some rules applies to an atom, and how much of each condition is left: two atoms of which this is the same are treated
/// alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::haproxy) struct Trace {
    /// Rules by their lines. Whether one decides more than the backend or the path towards it.
    pub fired: Vec<(Id, Left, bool)>,
    /// How many of them are the section's own; those of backends follow.
    own: usize,
    backend: Option<String>,
    answered: bool,
    rewritten: bool,
}

impl Rule<'_> {
    /// The settings that do what a rule is probably meant for.
    fn advice(&self) -> Option<&'static str> {
        match &self.what {
            What::Header(Of::Responses | Of::AllResponses, edit) => super::advice(edit.name()),
            _ => None,
        }
    }

    fn is_of_requests(&self) -> bool {
        self.line.word(0) == "http-request"
    }
}

impl What {
    /// Whether it lets nobody through.
    pub(super) fn refuses(&self) -> bool {
        match self {
            Self::Answer(action) => action.is_refusal(),
            Self::Deny => true,
            _ => false,
        }
    }
}

impl Trace {
    /// The rules that may keep a request out, or change it.
    pub fn restrictions(&self) -> impl Iterator<Item = &(Id, Left, bool)> {
        self.fired.iter().filter(|(.., restricts)| *restricts)
    }

    /// Whether a request for which this is meant may get `other`: nobody is let in who was not. Rules apply in order, so what `other`
    /// has more must come behind what keeps requests out here; and rules of a backend keep out nobody who is sent to another one.
    pub fn may_become(&self, other: &Self) -> bool {
        let in_order = self.restrictions().eq(other.restrictions().take(self.restrictions().count()));
        let only_own = !self.fired[self.own..].iter().any(|(.., restricts)| *restricts);
        !self.answered && in_order && (only_own || other.fired.starts_with(&self.fired))
    }

    /// Whether a rule answers all of the requests.
    pub fn answers(&self) -> bool {
        self.answered
    }

    /// Whether what is done depends on regular expressions.
    pub fn has_expressions(&self) -> bool {
        let has = |left: &Left| match left {
            Left::Routes(all) => all.iter().any(|m| m.pattern.is_some()),
            Left::Mixed(all) => all.iter().any(|(m, _)| m.pattern.is_some()),
            Left::RateOf(only, ..) => only.pattern.is_some(),
            _ => false,
        };
        self.fired.iter().any(|(_, left, _)| has(left))
    }

    fn run(&mut self, rules: &[Rule], atom: &Atom) {
        let mut passing = Passing::default();
        // Backends that are chosen by method or header, with their own rules.
        for rule in rules {
            let response = matches!(rule.what, What::Header(Of::Responses | Of::AllResponses, _));
            if self.answered && !response || matches!(rule.what, What::Backend(_)) && self.backend.is_some() {
                continue;
            }
            if passing.stopped && rule.is_of_requests() {
                continue;
            }
            let atom = Atom { path: atom.path.filter(|_| !self.rewritten), ..*atom };
            let left = rule.condition.of(&atom);
            if left == Left::Never {
                continue;
            }
            let always = left == Left::Always;
            match &rule.what {
                What::Prefix { tests, .. } => {
                    if !atom.path.is_some_and(|p| paths::any(tests, p)) {
                        continue;
                    }
                    self.rewritten = true;
                }
                What::Path(_) if always => self.rewritten = true,
                What::Backend(name) if always => self.backend = Some(name.clone()),
                What::Answer(_) | What::Deny if always && passing.holds_for(rule) && rule.what.refuses() => {
                    passing.stopped = true;
                }
                What::Answer(_) | What::Deny | What::Unanswered if always => self.answered = true,
                What::Allow if always => passing.stopped = true,
                What::Allow => passing.add(&left),
                _ => {}
            }
            let restricts = !matches!(rule.what, What::Backend(_) | What::Prefix { .. } | What::Path(_));
            self.fired.push((rule.line.id, left, restricts));
        }
    }
}

/// Where requests go that no rule sends elsewhere, and the rules that follow there.
#[derive(Clone, Copy)]
pub(in crate::haproxy) struct Then<'r, 'l> {
    pub backends: &'r BTreeMap<String, Vec<Rule<'l>>>,
    pub default: Option<(&'r str, &'r Place)>,
    /// The section itself, whose rules have been applied.
    pub own: &'r str,
}

impl<'r, 'l> Then<'r, 'l> {
    fn rules(&self, backend: &str) -> Option<&'r Vec<Rule<'l>>> {
        self.backends.get(backend).filter(|_| backend != self.own)
    }

    /// What applies to an atom.
    pub fn trace(&self, rules: &[Rule<'l>], atom: &Atom) -> Trace {
        let mut out = Trace::default();
        out.run(rules, atom);
        out.own = out.fired.len();
        let default = self.default.map(|(name, _)| name.to_owned());
        let some: Vec<&String> = rules
            .iter()
            .filter(|r| out.fired.iter().any(|(id, left, _)| *id == r.line.id && matches!(left, Left::Routes(_))))
            .filter_map(|r| if let What::Backend(name) = &r.what { Some(name) } else { None })
            .collect();
        let mut others = Vec::new();
        for name in some {
            let mut other = Trace { rewritten: out.rewritten, ..Trace::default() };
            self.rules(name).into_iter().for_each(|rules| other.run(rules, atom));
            others.append(&mut other.fired);
        }
        if !out.answered {
            out.backend = out.backend.or(default);
            if let Some(rules) = out.backend.clone().and_then(|name| self.rules(&name)) {
                out.run(rules, atom);
            }
        }
        out.fired.append(&mut others);
        out
    }
}

/// Applies rules to an atom. `path`: the route's that is written.
pub(in crate::haproxy) fn apply<'l>(
    rules: &[Rule<'l>],
    then: &Then<'_, 'l>,
    atom: &Atom,
    path: &Path,
    report: &mut Report,
) -> Outcome {
    let mut out = Outcome::default();
    run(rules, Passing::default(), atom, path, report, &mut out);
    let default = then.default.map(|(name, place)| (name.to_owned(), place.clone()));
    if out.action.is_none() && out.backend.is_none() {
        out.backend.clone_from(&default);
    }
    // Exceptions have the frontend's changes, too, and then those of their own backend.
    let mut exceptions = Vec::new();
    for Exception { only, then: mut other, place } in std::mem::take(&mut out.exceptions) {
        other.change_as(&out);
        if other.action.is_none() && other.backend.is_none() {
            other.backend.clone_from(&default);
        }
        let backend = other.backend.as_ref().filter(|_| other.action.is_none());
        if let Some(rules) = backend.and_then(|(name, _)| then.rules(name)) {
            run(rules, Passing::default(), atom, path, report, &mut other);
            for mut inner in std::mem::take(&mut other.exceptions) {
                inner.then.change_as(&other);
                match only.and(&inner.only) {
                    Both::None => {}
                    Both::These(both) => exceptions.push(Exception { only: both, ..inner }),
                    Both::Unsayable => {
                        if let Some(rule) = rules.iter().find(|r| r.line.place == inner.place) {
                            report.decide(
                                rule.line.id,
                                "this rule applies only together with the condition of use_backend: write a route with \
                                 both conditions",
                            );
                        }
                    }
                }
            }
        }
        exceptions.push(Exception { only, then: other, place });
    }
    let of_frontend = exceptions.len();
    out.exceptions = exceptions;
    if let (None, Some((name, _))) = (&out.action, &out.backend)
        && let Some(rules) = then.rules(name)
    {
        run(rules, Passing::default(), atom, path, report, &mut out);
        let mut exceptions = std::mem::take(&mut out.exceptions);
        exceptions.iter_mut().skip(of_frontend).for_each(|of_backend| of_backend.then.change_as(&out));
        out.exceptions = exceptions;
    }
    out
}

impl Outcome {
    /// The line that has changed a header of the request.
    fn changed_by(&self, name: &str) -> Option<&Place> {
        match name.eq_ignore_ascii_case("host") {
            true => self.host.as_ref().map(|(_, place)| place),
            false => self.request.changed_by(name),
        }
    }

    /// Takes the changes of all requests and responses: they apply where a condition divides the requests, too.
    fn change_as(&mut self, all: &Self) {
        (self.request, self.response) = (all.request.clone(), all.response.clone());
        (self.hsts, self.host, self.rewrite) = (all.hsts.clone(), all.host.clone(), all.rewrite.clone());
        (self.template, self.location) = (all.template.clone(), all.location.clone());
        (self.after, self.after_hsts, self.rewritten) = (all.after.clone(), all.after_hsts.clone(), all.rewritten);
        self.rewritten_by.clone_from(&all.rewritten_by);
        if let (Some(own), Some(of_all)) = (&mut self.basic_auth, &all.basic_auth) {
            own.user_header.clone_from(&of_all.user_header);
        }
    }

    /// Remembers that a rule has changed the path.
    fn rewrite_by(&mut self, place: &Place) {
        self.rewritten = true;
        self.rewritten_by.get_or_insert_with(|| place.clone());
    }

    /// What earlier rules check.
    fn checks(&self) -> Self {
        Self {
            access: self.access.clone(),
            basic_auth: self.basic_auth.clone(),
            users: self.users.clone(),
            max_body: self.max_body.clone(),
            ..Self::default()
        }
    }

    /// Remembers a rule that is not translated, if it selects a server or answers.
    fn lose(&mut self, rule: &Rule) {
        if matches!(rule.what, What::Backend(_) | What::Answer(_) | What::Deny | What::Unanswered) {
            self.lost.push(rule.line.place.clone());
        }
    }
}

/// What `http-request allow` lets past the rules behind it, within the rules of one section.
#[derive(Clone, Default)]
struct Passing {
    /// No further `http-request` applies.
    stopped: bool,
    /// To these clients.
    clients: AddressSet,
    /// How many conditions on both the request and the client have divided the requests so far.
    divided: usize,
}

const NO_BODY: &str =
    "allow and deny: the body and the headers of this response are left out; write error_page for the status 403";

const UNSAYABLE: &str = "these lists of addresses cannot be joined with others: write \"allow\" and \"deny\"";

/// Most conditions on both the request and the client that apply to the same requests.
const MAX_DIVIDED: usize = 4;

impl Passing {
    /// Whether some clients do not meet a rule that others do.
    fn holds_for(&self, rule: &Rule) -> bool {
        rule.is_of_requests() && !self.clients.is_empty()
    }

    /// Lets clients pass; what is not understood is reported where the rules are applied.
    fn add(&mut self, left: &Left) {
        if let Left::Clients(clients) = left
            && let Some(set) = clients.set()
        {
            self.clients = self.clients.union(&set);
        }
    }
}

/// Refuses clients by their addresses or certificates; whether this was such a rule.
fn refuse(rule: &Rule, left: &Left, passing: &mut Passing, report: &mut Report, out: &mut Outcome) -> bool {
    let some = passing.holds_for(rule);
    if let (Left::NoCertificate(all), false) = (left, some)
        && rule.what.refuses()
    {
        let (id, place) = (rule.line.id, &rule.line.place);
        match all.iter().try_for_each(|one| out.access.require(one, place)) {
            Ok(()) => match &rule.what {
                What::Answer(action) if *action == Action::status(403) => report.same(id, "allow_certificate"),
                _ => report.differs(id, "allow_certificate: the status is 403"),
            },
            Err(_) => report.decide(
                id,
                "this rule and an earlier rule require two names of the same certificate, but one allow_certificate \
                 accepts a certificate with any one of its names. To require both names, write one name in \
                 allow_certificate of the host and the other name in allow_certificate of the route. If one name is \
                 enough, write both in one allow_certificate",
            ),
        }
        return true;
    }
    let clients = match left {
        Left::Clients(clients) if rule.what.refuses() => clients.clone(),
        Left::Always if rule.what.refuses() && some => Clients::In(AddressSet::all().into()),
        _ => return false,
    };
    let rest = match some {
        true => clients.and(&Clients::NotIn(passing.clients.clone().into())),
        false => Some(clients),
    };
    let (id, place) = (rule.line.id, &rule.line.place);
    match rest.map(|rest| out.access.refuse(&rest, place)) {
        Some(Ok(())) => match &rule.what {
            What::Answer(action) if *action == Action::status(403) => report.same(id, "allow and deny"),
            What::Answer(Action::Respond { status: 403, .. }) => report.differs(id, NO_BODY),
            _ => report.differs(id, "allow and deny: the status is 403"),
        },
        _ => report.decide(id, UNSAYABLE),
    }
    passing.stopped |= *left == Left::Always;
    true
}

/// Refuses requests by a header alone: no route has to stand before the others for that. Whether this was such a rule.
fn refuse_header(rule: &Rule, left: &Left, passing: &Passing, report: &mut Report, out: &mut Outcome) -> bool {
    let Left::Routes(routes) = left else { return false };
    let is_plain = matches!(&rule.what, What::Answer(action) if *action == Action::status(403));
    // A password is asked for before a rule behind it refuses.
    if !is_plain || passing.holds_for(rule) || out.users.is_some() || loses_body(&rule.what, &rule.line.words) {
        return false;
    }
    let mut access = out.access.clone();
    let mut deny = |only: &Match| match (&only.methods, only.headers.as_slice(), &only.pattern) {
        (Methods::Any, [(name, condition)], None) => access.deny_header(name, condition, &rule.line.place).is_ok(),
        _ => false,
    };
    if !routes.iter().all(&mut deny) {
        return false;
    }
    out.access = access;
    report.same(rule.line.id, "deny_header");
    true
}

/// Refuses longer bodies.
fn limit_body(most: u64, id: Id, place: &Place, report: &mut Report, out: &mut Outcome) {
    report.differs(id, "max_body_size: a longer body gets 413, also if the request does not say its length");
    if out.max_body.as_ref().is_none_or(|(there, _)| most < *there) {
        out.max_body = Some((most, place.clone()));
    }
}

/// Refuses clients without the password of some users, who are asked for it. Whether this was such a rule.
fn refuse_others(rule: &Rule, left: &Left, report: &mut Report, out: &mut Outcome) -> bool {
    let (Left::NoUser(users), true) = (left, rule.what.refuses()) else { return false };
    let (id, place) = (rule.line.id, &rule.line.place);
    if let Some(there) = out.users.as_ref()
        && !there.includes(users)
        && !users.includes(there)
    {
        report.decide(id, crate::report::ONE_LIST);
        return true;
    }
    let is_403 = matches!(&rule.what, What::Answer(action) if *action == Action::status(403));
    match out.users.is_some() && is_403 {
        // An earlier rule asks for the password, and this one refuses users.
        true => report.same(id, "basic_auth.allow_users"),
        false => report.differs(
            id,
            "basic_auth: clients without a right password get 401, and are asked for it; other users get 403",
        ),
    }
    ask(users, None, place, out);
    true
}

/// Asks for the password of a user, unless fewer users are asked for already.
fn ask(users: &Users, realm: Option<&str>, place: &Place, out: &mut Outcome) {
    if out.users.as_ref().is_some_and(|there| users.includes(there)) {
        return;
    }
    let realm = match (realm, &out.basic_auth) {
        (Some(realm), _) => realm.to_owned(),
        (None, Some(there)) => there.realm.clone(),
        (None, None) => users.list.clone(),
    };
    let user_header = out.basic_auth.as_mut().and_then(|there| there.user_header.take());
    // `frontend` puts in who has the groups.
    let (file, origin) = (users.file(), place.clone());
    out.basic_auth = Some(BasicAuth { users: file, allowed: None, realm, user_header, origin });
    out.users = Some(users.clone());
}

/// Refuses requests by a condition on both the request and the client: a route with the condition does what the rules behind this one
/// do, and has a list of addresses. Whether this was such a rule.
#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn divide(
    rule: &Rule,
    left: &Left,
    behind: &[Rule],
    passing: &Passing,
    atom: &Atom,
    path: &Path,
    report: &mut Report,
    out: &mut Outcome,
) -> bool {
    let exempt = passing.holds_for(rule).then(|| Clients::NotIn(passing.clients.clone().into()));
    let parts: Vec<(Match, Option<Clients>)> = match left {
        Left::Mixed(parts) => parts.clone(),
        Left::Routes(routes) if exempt.is_some() => routes.iter().map(|m| (m.clone(), None)).collect(),
        _ => return false,
    };
    let action = match &rule.what {
        What::Answer(action) if action.is_refusal() => action.clone(),
        What::Deny => Action::status(429),
        _ => return false,
    };
    let (id, place) = (rule.line.id, &rule.line.place);
    let says = "a route with a condition, and allow or deny";
    match &action {
        plain if *plain == Action::status(403) => report.same(id, says),
        Action::Respond { status: 403, .. } => report.differs(id, NO_BODY),
        _ => report.differs(id, format!("{says}: the status is 403")),
    }
    let mut all: Vec<(Match, Option<Clients>)> = Vec::new();
    for (only, clients) in parts {
        let clients = match (clients, &exempt) {
            (Some(clients), Some(exempt)) => match clients.and(exempt) {
                None => {
                    report.decide(id, UNSAYABLE);
                    continue;
                }
                both => both,
            },
            (Some(clients), None) => Some(clients),
            (None, exempt) => exempt.clone(),
        };
        all.push((only, clients));
    }
    // What applies to all requests comes first, and then what refuses all clients: a request can meet several of the conditions.
    all.sort_by_key(|(only, clients)| (!only.is_all(), clients.is_some()));
    for (only, clients) in &all {
        match clients {
            Some(clients) if only.is_all() => {
                if out.access.refuse(clients, place).is_err() {
                    report.decide(id, UNSAYABLE);
                }
            }
            Some(_) => {}
            None => {
                let then = Outcome { action: Some((action.clone(), place.clone())), ..out.checks() };
                out.exceptions.push(Exception { only: only.clone(), then: Box::new(then), place: place.clone() });
            }
        }
    }
    let some = |(only, clients): (Match, Option<Clients>)| {
        clients.filter(|_| !only.is_all()).map(|clients| (only, Change::Refuse(clients)))
    };
    let parts: Vec<(Match, Change)> = all.into_iter().filter_map(some).collect();
    change_some(&parts, rule, behind, passing, atom, path, report, out);
    true
}

/// Remembers whose requests a counter counts.
fn track(rule: &Rule, counter: u8, left: &Left, passing: &Passing, report: &mut Report, out: &mut Outcome) {
    let exempt = passing.holds_for(rule).then(|| Clients::NotIn(passing.clients.clone().into()));
    let these = match (left, exempt) {
        (Left::Never, _) => Counted::Nobody,
        (Left::Always, None) => Counted::Everybody,
        (Left::Always, Some(exempt)) => Counted::These(exempt),
        (Left::Clients(clients), None) => Counted::These(clients.clone()),
        (Left::Clients(clients), Some(exempt)) => clients.and(&exempt).map_or(Counted::Unknown, Counted::These),
        _ => Counted::Unknown,
    };
    match these {
        Counted::Nobody => {}
        Counted::Unknown => report.missing(
            rule.line.id,
            "the import translates only counters of all requests of a host or path, or of some addresses: write a [[rate_limit]]",
        ),
        _ => report.same(rule.line.id, "counted by [[rate_limit]]"),
    }
    // The first rule that applies to a request counts.
    let there = out.counted.entry(counter).or_insert(Counted::Nobody);
    *there = match (&*there, these) {
        (Counted::Nobody, these) => these,
        (Counted::Everybody, _) | (_, Counted::Nobody) => there.clone(),
        _ => Counted::Unknown,
    };
}

/// What is left of a limit: it refuses only clients that are counted and that no earlier rule lets pass. Anything else than a limit stays
/// as it is.
fn counted(left: Left, rule: &Rule, passing: &Passing, out: &Outcome) -> Left {
    let (counter, clients) = match &left {
        Left::Rate(counter, _, clients) | Left::RateOf(_, counter, _, clients) => (*counter, clients.clone()),
        _ => return left,
    };
    let tracked = match out.counted.get(&counter.0) {
        // No earlier rule of requests counts: one of connections does, or `frontend` reports it.
        None => None,
        Some(Counted::Nobody) => return Left::Never,
        Some(Counted::Everybody) => None,
        Some(Counted::These(clients)) => Some(clients.clone()),
        Some(Counted::Unknown) => return Left::Access,
    };
    let exempt = passing.holds_for(rule).then(|| Clients::NotIn(passing.clients.clone().into()));
    let mut all = clients.into_iter().chain(tracked).chain(exempt);
    let first = all.next();
    let both = all.try_fold(first, |there, more| match there {
        Some(there) => there.and(&more).map(Some),
        None => Some(Some(more)),
    });
    match (both, left) {
        (None, _) => Left::Access,
        (Some(both), Left::Rate(counter, n, _)) => Left::Rate(counter, n, both),
        (Some(both), Left::RateOf(only, counter, n, _)) => Left::RateOf(only, counter, n, both),
        (_, left) => left,
    }
}

/// What a rule does with the requests that meet its condition.
enum Change {
    /// It limits them.
    Limit(Limit),
    /// It refuses them to these clients.
    Refuse(Clients),
}

impl Change {
    /// The settings that do this.
    fn settings(&self) -> &'static str {
        match self {
            Self::Limit(_) => "rate_limit",
            Self::Refuse(_) => "\"allow\" and \"deny\"",
        }
    }
}

/// Limits or refuses requests that meet a condition: a route with the condition does what the rules behind this one do, and has the limit
/// or the list of addresses. Requests that meet several of the conditions are limited or refused by each of them.
#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn change_some(
    parts: &[(Match, Change)],
    rule: &Rule,
    behind: &[Rule],
    passing: &Passing,
    atom: &Atom,
    path: &Path,
    report: &mut Report,
    out: &mut Outcome,
) {
    let (id, place) = (rule.line.id, &rule.line.place);
    for (at, (only, change)) in parts.iter().enumerate() {
        let settings = change.settings();
        let mut other = Outcome { exceptions: Vec::new(), ..out.clone() };
        let said = match change {
            Change::Limit(limit) => {
                other.rates.push(limit.clone());
                true
            }
            Change::Refuse(clients) => other.access.refuse(clients, place).is_ok(),
        };
        if !said {
            report.decide(id, UNSAYABLE);
            continue;
        }
        if passing.divided >= MAX_DIVIDED || !out.shares.is_empty() {
            report.decide(id, format!("too many rules divide these requests: write routes with {settings}"));
            continue;
        }
        let passing = Passing { divided: passing.divided + 1, ..passing.clone() };
        change_some(&parts[at + 1..], rule, behind, &passing, atom, path, report, &mut other);
        run(behind, passing, atom, path, report, &mut other);
        if !other.shares.is_empty() {
            report.decide(
                id,
                format!(
                    "a later rule sends a random share of the requests to another backend: write routes with split and \
                     {settings}"
                ),
            );
        }
        for inner in std::mem::take(&mut other.exceptions) {
            match only.and(&inner.only) {
                Both::None => {}
                Both::These(both) => out.exceptions.push(Exception { only: both, ..inner }),
                Both::Unsayable => report.decide(
                    id,
                    format!("no route has both the condition of this rule and that of {}: write routes", inner.place),
                ),
            }
        }
        out.exceptions.push(Exception { only: only.clone(), then: Box::new(other), place: place.clone() });
    }
}

fn run(rules: &[Rule], mut passing: Passing, atom: &Atom, path: &Path, report: &mut Report, out: &mut Outcome) {
    for (at, rule) in rules.iter().enumerate() {
        let (id, place) = (rule.line.id, &rule.line.place);
        let response = matches!(rule.what, What::Header(Of::Responses | Of::AllResponses, _));
        if (out.action.is_some()) && !response {
            continue;
        }
        if passing.stopped && rule.is_of_requests() {
            report.same(id, "not reached: an earlier \"allow\" applies");
            continue;
        }
        let mut changed_by = None;
        let mut is_changed = |name: &str| {
            changed_by = changed_by.take().or_else(|| out.changed_by(name).map(|place| place.line));
            changed_by.is_some()
        };
        if rule.condition.compares(&mut is_changed) {
            let line = changed_by.unwrap_or_default();
            report.decide(
                id,
                format!(
                    "this rule compares a header that an earlier rule (line {line}) changes, but Sealane compares the header that the \
                     client sends: write a route with a condition on the client's header"
                ),
            );
            out.lose(rule);
            continue;
        }
        let atom = Atom { path: atom.path.filter(|_| !out.rewritten), ..*atom };
        // Only clients with the password of one of the users come so far.
        let left = match out.users.as_ref().filter(|_| !rule.what.refuses()) {
            Some(users) => rule.condition.of_users(users).of(&atom),
            None => rule.condition.of(&atom),
        };
        if let What::Track(counter) = rule.what {
            track(rule, counter, &left, &passing, report, out);
            continue;
        }
        if refuse(rule, &left, &mut passing, report, out) {
            continue;
        }
        if refuse_header(rule, &left, &passing, report, out) {
            continue;
        }
        let left = counted(left, rule, &passing, out);
        if divide(rule, &left, &rules[at + 1..], &passing, &atom, path, report, out) {
            continue;
        }
        let is_rate = left.is_rate() && rule.what.refuses();
        if left != Left::Never && passing.holds_for(rule) && !matches!(rule.what, What::Allow) && !is_rate {
            report.decide(
                id,
                "an earlier rule exempts some addresses from this rule: write routes, or let the server decide",
            );
            out.lose(rule);
            continue;
        }
        if refuse_others(rule, &left, report, out) {
            continue;
        }
        let action = match &rule.what {
            What::Answer(action) => Some(action.clone()),
            What::Deny => Some(Action::status(429)),
            What::Unanswered => Some(Action::untranslated()),
            _ => None,
        };
        let limit = |counter: Counter, requests: u32, clients: Option<Clients>| Limit {
            counter,
            clients,
            requests,
            partial: rule.condition.tests().any(|t| !matches!(t, Test::Rate(..) | Test::Always(_) | Test::Source(_))),
            id,
            section: rule.line.section,
            place: place.clone(),
        };
        match (&rule.what, left) {
            (_, Left::Never) => {}
            (What::Allow, Left::Always) => {
                report.same(id, "no later rule applies");
                passing.stopped = true;
            }
            (What::Allow, Left::Clients(clients)) if clients.set().is_some() => {
                report.same(id, "allow and deny");
                passing.add(&Left::Clients(clients));
            }
            (What::Allow, _) => {
                report.decide(
                    id,
                    "requests to which this rule applies skip the rules after it: write a host or route for these \
                     requests",
                );
            }
            (What::Backend(_), _) if out.backend.is_some() => {}
            (What::Backend(name), Left::Share(part, of)) => {
                report.same(id, "split");
                out.shares.push(Share { backend: name.clone(), part: (part, of), id, place: place.clone() });
            }
            (What::Backend(_), Left::Routes(_)) if !out.shares.is_empty() => {
                report.decide(id, "an earlier rule sends a random share of the requests to another backend, and this rule applies only to the rest: \
                               write a route with split");
            }
            (_, Left::Share(..)) => {
                report.decide(
                    id,
                    "Sealane can send a random share of the requests to another upstream (split), but cannot apply \
                     any other rule to a random share: let the server apply this rule",
                );
            }
            (What::Backend(name), Left::Always) => {
                report.same(id, "upstream");
                out.backend = Some((name.clone(), place.clone()));
            }
            (_, Left::Always) if action.is_some() => {
                report.same(id, "redirect or respond");
                out.action = action.map(|a| (a, place.clone()));
            }
            (What::Answer(_) | What::Backend(_) | What::Deny | What::Unanswered, Left::Routes(routes)) => {
                // What an earlier rule refuses does not come so far.
                let then = match &rule.what {
                    What::Backend(name) => Outcome { backend: Some((name.clone(), place.clone())), ..out.checks() },
                    _ => Outcome { action: action.map(|a| (a, place.clone())), ..out.checks() },
                };
                report.same(id, "a route with a condition");
                for only in routes {
                    out.exceptions.push(Exception { only, then: Box::new(then.clone()), place: place.clone() });
                }
            }
            (What::Deny, Left::Body(n)) => limit_body(n, id, place, report, out),
            (What::Answer(a), Left::Body(n)) if a.is_refusal() => limit_body(n, id, place, report, out),
            (What::Deny, Left::Rate(counter, n, clients)) => out.rates.push(limit(counter, n, clients)),
            (What::Answer(a), Left::Rate(counter, n, clients)) if a.is_refusal() => {
                report.differs(id, "rate_limit: the status is 429");
                out.rates.push(limit(counter, n, clients));
            }
            (what, Left::RateOf(only, counter, n, clients)) if what.refuses() => {
                if !matches!(what, What::Deny) {
                    report.differs(id, "rate_limit: the status is 429");
                }
                let parts = [(*only, Change::Limit(limit(counter, n, clients)))];
                change_some(&parts, rule, &rules[at + 1..], &passing, &atom, path, report, out);
            }
            (_, Left::Access | Left::Unknown) if rule.because.is_some() => {
                out.lose(rule);
                let advice = rule.advice().map_or_else(String::new, |advice| format!("; {advice}"));
                report.decide(id, format!("{}{advice}", because(rule.because.as_deref().unwrap_or_default())));
            }
            (
                _,
                Left::Access
                | Left::Rate(..)
                | Left::RateOf(..)
                | Left::Clients(_)
                | Left::Mixed(_)
                | Left::NoUser(_)
                | Left::NoCertificate(_),
            ) => {
                out.lose(rule);
                report.decide(
                    id,
                    "this condition depends on the client. By address and client certificate, Sealane can refuse a \
                     client (allow, deny, allow_certificate), but cannot select a server or change a header",
                );
            }
            (_, Left::Body(_)) => {
                report.decide(id, "Sealane compares the length of a body only to refuse the request: write max_body_size, or let the server decide");
            }
            (_, Left::Unknown) => {
                out.lose(rule);
                let advice = rule.advice().map_or_else(String::new, |advice| format!("; {advice}"));
                let rewritten = out.rewritten_by.as_ref().filter(|_| rule.condition.compares_path());
                let rewritten = rewritten.map_or_else(String::new, |place| format!(" (line {} does)", place.line));
                report.decide(
                    id,
                    format!(
                        "its condition cannot be translated. Sealane can compare hosts, paths, methods and headers, \
                         before it rewrites a path{rewritten}: let the server or a firewall decide{advice}"
                    ),
                );
            }
            (What::Path(path), Left::Always) => {
                report.same(id, "rewrite");
                out.rewrite_by(place);
                (out.rewrite, out.template) = (None, Some((path.clone(), place.clone())));
            }
            (
                What::Header(..) | What::User(_) | What::Prefix { .. } | What::Path(_) | What::Auth { .. },
                Left::Routes(_),
            ) => {
                report.decide(
                    id,
                    "Sealane can change headers and paths, and ask for passwords, only per host and path, not per method, header or \
                     expression: write a route with this rule's conditions",
                );
            }
            (What::Auth { realm, users: Some(users) }, Left::Always) => match &out.users {
                Some(there) if users.includes(there) => report.same(id, "an earlier rule asks for the same password"),
                Some(there) if !there.includes(users) => {
                    report.decide(id, crate::report::ONE_LIST);
                }
                _ => {
                    report.differs(id, "basic_auth: the challenge has charset=\"UTF-8\", too");
                    if !users.groups.is_empty() {
                        report.differs(
                            id,
                            "basic_auth.allow_users: a user of the list without this group gets 403 with the right password. HAProxy \
                             responds with 401",
                        );
                    }
                    ask(users, Some(realm.as_deref().unwrap_or_default()), place, out);
                }
            },
            (What::Header(of, edit), Left::Always) => apply_edit(*of, edit, rule.line, &atom, report, out),
            (What::User(name), Left::Always) => match &mut out.basic_auth {
                Some(auth) if auth.user_header.as_ref().is_none_or(|there| there.eq_ignore_ascii_case(name)) => {
                    // The gateway removes what clients send in it.
                    auth.user_header = Some(name.clone());
                    out.request.forget(name);
                    report.same(id, "basic_auth.user_header");
                }
                _ => {
                    let edit = Edit::Remove(name.clone());
                    apply_edit(Of::Requests, &edit, rule.line, &atom, report, out);
                }
            },
            (What::Prefix { tests, from, to }, Left::Always) => {
                let Some(sample) = atom.path else {
                    let line = out.rewritten_by.as_ref().map_or(0, |place| place.line);
                    report.decide(
                        id,
                        format!("an earlier rule (line {line}) rewrites the path: write a route with rewrite_prefix or rewrite"),
                    );
                    continue;
                };
                report.same(id, "rewrite_prefix");
                if !paths::any(tests, sample) {
                    continue;
                }
                out.rewrite_by(place);
                match path {
                    Path::Below(p) if p.trim_end_matches('/') == from => {
                        out.rewrite = Some((to.clone(), place.clone()))
                    }
                    // The route is for less than what is replaced.
                    Path::Below(p) if p.strip_prefix(from.as_str()).is_some_and(|rest| rest.starts_with('/')) => {
                        out.rewrite = Some((format!("{to}{}", &p[from.len() + 1..]), place.clone()));
                    }
                    // A single path gets another one.
                    Path::Exact(p) if from.is_empty() && !p.contains(['{', '}', '%']) => {
                        out.template = Some((format!("{to}{}", &p[1..]), place.clone()));
                    }
                    _ => report.decide(
                        id,
                        "the import cannot translate this rewrite for a single path: write a route \
                                            with exact and rewrite",
                    ),
                }
            }
            (What::Refuse(_) | What::Skip(_) | What::Nothing(_) | What::Different(_) | What::Track(_), _)
            | (What::Answer(_) | What::Deny | What::Unanswered | What::Auth { .. }, Left::Always) => {}
        }
    }
}

const HOST: &str = "Sealane sends the client's Host, or a constant, and the server may select its content by Host: if the server \
     needs another Host than the client's, write host_header in the [[upstream]]";

fn apply_edit(of: Of, edit: &Edit, line: &Line, atom: &Atom, report: &mut Report, out: &mut Outcome) {
    let (request, tls) = (of == Of::Requests, atom.tls);
    let (id, place) = (line.id, &line.place);
    if let (true, Edit::Set(name, value)) = (request, edit)
        && name.eq_ignore_ascii_case("x-forwarded-proto")
        && !atom.trusts
        && value == if tls { "https" } else { "http" }
    {
        return report.same(id, "always sent");
    }
    if let (true, Edit::Set(name, value)) = (request, edit)
        && name.eq_ignore_ascii_case("host")
    {
        if value == "{authority}" && out.host.is_none() {
            return report.same(id, "Host is the client's");
        }
        if value.contains('{') {
            return report.decide(id, HOST);
        }
        out.host = Some((value.clone(), place.clone()));
        return report.same(id, "host_header");
    }
    if let (false, Edit::Set(name, value) | Edit::Add(name, value)) = (request, edit)
        && name.eq_ignore_ascii_case("strict-transport-security")
        && value.contains("max-age=")
    {
        if of == Of::AllResponses {
            out.after_hsts = Some((value.clone(), place.clone()));
            return report.same(id, "hsts");
        }
        out.hsts = Some((value.clone(), place.clone()));
        return report.differs(id, "hsts: the gateway's own responses (a refusal, an error) have the header, too");
    }
    if request
        && let Some(auth) = &mut out.basic_auth
        && auth.user_header.as_ref().is_some_and(|there| there.eq_ignore_ascii_case(edit.name()))
    {
        // A later rule gives the header another value, or removes it.
        auth.user_header = None;
    }
    let edits = match of {
        Of::Requests => &mut out.request,
        Of::Responses => &mut out.response,
        Of::AllResponses => &mut out.after,
    };
    match edit {
        Edit::Set(_, value) | Edit::Add(_, value)
            if request && (out.rewritten && names_path(value) || out.host.is_some() && names_host(value)) =>
        {
            return report.decide(
                id,
                "an earlier rule changes the path or Host, but in Sealane {uri}, {path}, {authority} and {host} have \
                 the values of the client's request: write the header with a constant, or let the server compute its \
                 value",
            );
        }
        Edit::Set(name, value) => edits.set(name, value, place),
        Edit::Add(name, value) => {
            if !edits.add(name, value, place) {
                return report.decide(
                    id,
                    "another directive already adds a header with this name: write one header that contains both values",
                );
            }
        }
        Edit::Location(from, to) => {
            if out.location.is_some() {
                return report.missing(id, "an earlier rule already changes Location: write both in rewrite_location");
            }
            out.location = Some((from.clone(), to.clone(), place.clone()));
            return report.same(id, "rewrite_location");
        }
        Edit::Remove(name) => {
            if request && name.eq_ignore_ascii_case("upgrade") {
                edits.remove(name, place);
                return report.same(id, "upgrade = false");
            }
            if FRAMING.contains(&name.to_ascii_lowercase().as_str()) {
                return report.same(id, "the gateway manages this");
            }
            if name.eq_ignore_ascii_case("host") {
                return report.decide(id, HOST);
            }
            edits.remove(name, place);
            if line.word(1) != "del-header" {
                let says = "request_headers cannot contain this value; the header is removed from requests";
                return match line.words.iter().any(|w| w.contains(",map")) {
                    true => report.missing(
                        id,
                        format!(
                            "{says}. Let the server look the value up in the table: it gets the client's address in X-Forwarded-For"
                        ),
                    ),
                    false => report.missing(id, says),
                };
            }
        }
    }
    match edit {
        Edit::Set(_, value) | Edit::Add(_, value) if request && may_be_empty(value, tls) => report.differs(
            id,
            "request_headers: if the value is empty (without a client certificate, without TLS), Sealane sends no header, and \
             HAProxy sends an empty header",
        ),
        Edit::Set(name, value) | Edit::Add(name, value) if of == Of::Responses && is_for_caches(name, value) => {
            report.differs(id, CACHED_ERRORS);
        }
        _ => report.same(id, if request { "request_headers" } else { "response_headers" }),
    }
}

const CACHED_ERRORS: &str = "response_headers: the gateway's own errors (403, 502, 503, 504) have this header, too, so caches may keep an error. \
     HAProxy adds it only to responses of servers: let the server send it, and remove it from response_headers";

/// Whether a header of responses lets caches keep them.
fn is_for_caches(name: &str, value: &str) -> bool {
    let names = ["cache-control", "cdn-cache-control", "surrogate-control", "expires", "etag", "last-modified"];
    let value = value.to_ascii_lowercase();
    let never = ["no-store", "no-cache", "max-age=0"].iter().any(|word| value.contains(word));
    names.iter().any(|known| name.eq_ignore_ascii_case(known)) && !never
}

/// Whether the whole value of a header is a part of the request that a request can lack. `tls`: the requests come over TLS.
fn may_be_empty(value: &str, tls: bool) -> bool {
    value.starts_with("{client_certificate") && value.ends_with('}') && value.matches('{').count() == 1
        || !tls && value == "{tls_version}"
}
