//! Which rules apply to one kind of requests, and what they lead to.

use super::{Edit, Exception, Limit, Of, Outcome, Rule, Share, What, names_host, names_path, users_file};
use crate::addresses::{AddressSet, Clients};
use crate::haproxy::acl::{Atom, Counter, Left};
use crate::haproxy::parser::Line;
use crate::nginx::FRAMING;
use crate::output::{Action, BasicAuth, Path};
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

    /// Whether what is done depends on regular expressions.
    pub fn has_expressions(&self) -> bool {
        let has = |left: &Left| matches!(left, Left::Routes(all) if all.iter().any(|m| m.pattern.is_some()));
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
    run(rules, atom, path, report, &mut out);
    if out.action.is_none() && out.backend.is_none() {
        out.backend = then.default.map(|(name, place)| (name.to_owned(), place.clone()));
    }
    // Exceptions have the frontend's changes, too, and then those of their own backend.
    let mut exceptions = std::mem::take(&mut out.exceptions);
    for Exception { then: other, .. } in &mut exceptions {
        (other.request, other.response) = (out.request.clone(), out.response.clone());
        (other.hsts, other.host, other.rewrite) = (out.hsts.clone(), out.host.clone(), out.rewrite.clone());
        other.template = out.template.clone();
        (other.after, other.after_hsts, other.rewritten) = (out.after.clone(), out.after_hsts.clone(), out.rewritten);
        let Some(rules) =
            other.backend.as_ref().filter(|_| other.action.is_none()).and_then(|(name, _)| then.rules(name))
        else {
            continue;
        };
        run(rules, atom, path, report, other);
        for inner in std::mem::take(&mut other.exceptions) {
            let id = rules.iter().find(|r| r.line.place == inner.place).map(|r| r.line.id);
            if let Some(id) = id {
                report.decide(
                    id,
                    "this rule applies only together with the condition of use_backend: write a route with both conditions",
                );
            }
        }
    }
    out.exceptions = exceptions;
    if let (None, Some((name, _))) = (&out.action, &out.backend)
        && let Some(rules) = then.rules(name)
    {
        run(rules, atom, path, report, &mut out);
    }
    out
}

impl Outcome {
    /// Whether a header of the request has been changed.
    fn changes(&self, name: &str) -> bool {
        match name.eq_ignore_ascii_case("host") {
            true => self.host.is_some(),
            false => self.request.changes(name),
        }
    }
}

/// What `http-request allow` lets past the rules behind it, within the rules of one section.
#[derive(Default)]
struct Passing {
    /// No further `http-request` applies.
    stopped: bool,
    /// To these clients.
    clients: AddressSet,
}

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
            _ => report.differs(id, "allow and deny: the status is 403"),
        },
        _ => report.decide(id, "these lists of addresses cannot be joined with others: write \"allow\" and \"deny\""),
    }
    passing.stopped |= *left == Left::Always;
    true
}

/// Refuses longer bodies.
fn limit_body(most: u64, id: Id, place: &Place, report: &mut Report, out: &mut Outcome) {
    report.differs(id, "max_body_size: a longer body gets 413, also if the request does not say its length");
    if out.max_body.as_ref().is_none_or(|(there, _)| most < *there) {
        out.max_body = Some((most, place.clone()));
    }
}

fn run(rules: &[Rule], atom: &Atom, path: &Path, report: &mut Report, out: &mut Outcome) {
    let mut passing = Passing::default();
    for rule in rules {
        let (id, place) = (rule.line.id, &rule.line.place);
        let response = matches!(rule.what, What::Header(Of::Responses | Of::AllResponses, _));
        if (out.action.is_some()) && !response {
            continue;
        }
        if passing.stopped && rule.is_of_requests() {
            report.same(id, "not reached: an earlier \"allow\" applies");
            continue;
        }
        if rule.condition.compares(|name| out.changes(name)) {
            report.decide(
                id,
                "this rule compares a header that an earlier rule changes, but Sealane compares the header that the \
                 client sends: write a route with a condition on the client's header",
            );
            continue;
        }
        let atom = Atom { path: atom.path.filter(|_| !out.rewritten), ..*atom };
        let left = rule.condition.of(&atom);
        if refuse(rule, &left, &mut passing, report, out) {
            continue;
        }
        if left != Left::Never && passing.holds_for(rule) && !matches!(rule.what, What::Allow) {
            report.decide(
                id,
                "an earlier rule exempts some addresses from this rule: write routes, or let the server decide",
            );
            continue;
        }
        let action = match &rule.what {
            What::Answer(action) => Some(action.clone()),
            What::Deny => Some(Action::status(429)),
            What::Unanswered => Some(Action::untranslated()),
            _ => None,
        };
        let limit = |counter: Counter, requests: u32| Limit {
            counter,
            requests,
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
                let then = match &rule.what {
                    What::Backend(name) => {
                        Outcome { backend: Some((name.clone(), place.clone())), ..Outcome::default() }
                    }
                    _ => Outcome { action: action.map(|a| (a, place.clone())), ..Outcome::default() },
                };
                // What an earlier rule refuses does not come so far.
                let (access, basic_auth) = (out.access.clone(), out.basic_auth.clone());
                let then = Outcome { access, basic_auth, max_body: out.max_body.clone(), ..then };
                report.same(id, "a route with a condition");
                for only in routes {
                    out.exceptions.push(Exception { only, then: Box::new(then.clone()), place: place.clone() });
                }
            }
            (What::Deny, Left::Body(n)) => limit_body(n, id, place, report, out),
            (What::Answer(a), Left::Body(n)) if a.is_refusal() => limit_body(n, id, place, report, out),
            (What::Deny, Left::Rate(counter, n)) => out.rates.push(limit(counter, n)),
            (What::Answer(a), Left::Rate(counter, n)) if a.is_refusal() => {
                report.differs(id, "rate_limit: the status is 429");
                out.rates.push(limit(counter, n));
            }
            (_, Left::Access | Left::Rate(..) | Left::Clients(_) | Left::NoCertificate(_)) => {
                report.decide(
                    id,
                    "this condition depends on the client. By address and client certificate, Sealane can refuse a \
                     client (allow, deny, allow_certificate), but cannot select a server or change a header",
                );
            }
            (_, Left::Body(_)) => {
                report.decide(id, "Sealane compares the length of a body only to refuse the request: write max_body_size, or let the server decide");
            }
            (_, Left::Unknown) => report.decide(
                id,
                "its condition cannot be translated. Sealane can compare hosts, paths, methods and headers, before \
                 it rewrites a path: let the server or a firewall decide",
            ),
            (What::Path(path), Left::Always) => {
                report.same(id, "rewrite");
                (out.rewritten, out.rewrite, out.template) = (true, None, Some((path.clone(), place.clone())));
            }
            (What::Header(..) | What::Prefix { .. } | What::Path(_) | What::Auth { .. }, Left::Routes(_)) => {
                report.decide(
                    id,
                    "Sealane can change headers and paths, and ask for passwords, only per host and path, not per method, header or \
                     expression: write a route with this rule's conditions",
                );
            }
            (What::Auth { realm, users }, Left::Always) => {
                let realm = realm.clone().unwrap_or_default();
                match &out.basic_auth {
                    Some(there) if there.users != users_file(users) => {
                        report.decide(id, "a request can be checked with only one list of users: write basic_auth");
                    }
                    Some(_) => report.same(id, "an earlier rule asks for the same password"),
                    None => {
                        report.differs(id, "basic_auth: the challenge has charset=\"UTF-8\", too");
                        out.basic_auth = Some(BasicAuth {
                            users: users_file(users),
                            realm,
                            user_header: None,
                            origin: place.clone(),
                        });
                    }
                }
            }
            (What::Header(of, edit), Left::Always) => apply_edit(*of, edit, rule.line, atom.tls, report, out),
            (What::Prefix { tests, from, to }, Left::Always) => {
                let Some(sample) = atom.path else {
                    report
                        .decide(id, "an earlier rule rewrites the path: write a route with rewrite_prefix or rewrite");
                    continue;
                };
                report.same(id, "rewrite_prefix");
                if !paths::any(tests, sample) {
                    continue;
                }
                out.rewritten = true;
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
            (What::Refuse(_) | What::Skip(_) | What::Nothing(_) | What::Different(_), _)
            | (What::Answer(_) | What::Deny | What::Unanswered, Left::Always) => {}
        }
    }
}

const HOST: &str = "Sealane sends the client's Host, or a constant, and the server may select its content by Host: if the server \
     needs another Host than the client's, write host_header in the [[upstream]]";

/// `tls`: the requests come over TLS.
fn apply_edit(of: Of, edit: &Edit, line: &Line, tls: bool, report: &mut Report, out: &mut Outcome) {
    let request = of == Of::Requests;
    let (id, place) = (line.id, &line.place);
    if let (true, Edit::Set(name, value)) = (request, edit)
        && name.eq_ignore_ascii_case("x-forwarded-proto")
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
        Edit::Remove(name) => {
            if FRAMING.contains(&name.to_ascii_lowercase().as_str()) {
                return report.same(id, "the gateway manages this");
            }
            if name.eq_ignore_ascii_case("host") {
                return report.decide(id, HOST);
            }
            edits.remove(name, place);
            if line.word(1) != "del-header" {
                return report
                    .missing(id, "request_headers cannot contain this value; the header is removed from requests");
            }
        }
    }
    report.same(id, if request { "request_headers" } else { "response_headers" });
}
