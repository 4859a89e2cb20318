//! Frontends, backends and `listen` sections, as listeners, hosts and routes.
//!
//! `connections.rs` has the rules on connections and what stick tables count; `routes.rs` writes the routes of a path.

mod connections;
mod routes;

use super::acl::{Acls, Atom, Files, HostClass, HostTexts, Left, Test, Users, classes};
use super::binds::{self, Bound, Context, Defaults};
use super::compression;
use super::errors;
use super::parser::{Line, Proxy, Section};
use super::rules::{self, Rule, Then, Trace, What};
use super::servers;
use super::variables;
use crate::output::{
    Action, BasicAuth, ErrorPage, Host, Output, Path, Route, Upstream, entries_of, in_order, joined, quoted,
};
use crate::paths::{self, Budget, Differing, PathTest, Stands};
use crate::reader::Reader;
use crate::report::{Id, Place, Report};
use connections::{connections, trusted};
use routes::{is_around, len, routes_of, shape};
use std::collections::{BTreeMap, BTreeSet};

/// Most hosts and paths that the rules of one frontend tell apart.
const MAX_ATOMS: usize = 5000;
/// Most rules of a frontend and its backends together.
const MAX_RULES: usize = 5000;

/// Translates all proxies.
pub(super) fn all(
    sections: &[Section],
    defaults: &Defaults,
    reader: &dyn Reader,
    base: &std::path::Path,
    out: &mut Output,
    report: &mut Report,
) {
    let proxies: Vec<Proxy> = sections
        .iter()
        .filter(|s| matches!(s.kind.as_str(), "frontend" | "backend" | "listen"))
        .map(|s| Proxy::new(s, sections))
        .collect();
    let setters = variables::setters(sections);
    let trusts = sections.iter().flat_map(|s| &s.lines).any(|l| l.is(&["http-request", "set-src"]));
    let acls: Vec<Acls> = proxies.iter().map(|p| Acls::of(p, Files { reader, base }, &setters, trusts)).collect();
    let mut shared = Shared {
        tables: BTreeMap::new(),
        groups: BTreeMap::new(),
        rules: BTreeMap::new(),
        pages: BTreeMap::new(),
        compressions: BTreeMap::new(),
        sections: BTreeMap::new(),
        all: sections,
    };
    let files = errors::Files { sections, reader, base };
    for proxy in proxies.iter().filter(|p| !p.is_tcp()) {
        header_names(proxy, report);
        shared.pages.insert(proxy.section.id, errors::pages(proxy, &files, out, report));
        if let Some(rule) = compression::compression(proxy, report) {
            shared.compressions.insert(proxy.section.id, rule);
        }
    }
    for (proxy, acls) in proxies.iter().zip(&acls) {
        let name = proxy.section.name.clone();
        if let Some(l) = proxy.own().find(|l| l.word(0) == "stick-table") {
            shared.tables.insert(name.clone(), l);
        }
        if let (Some(l), true) = (proxy.disabled(), proxy.section.kind == "backend") {
            report.same(l.id, "requests for this backend get 503");
            report.same(proxy.section.id, "disabled, and left out");
            proxy.own().for_each(|l| report.say(l.id, crate::Outcome::Same, "its section is disabled"));
        }
        if proxy.section.kind != "frontend" && proxy.disabled().is_some() {
            shared.groups.insert(name, None);
        } else if proxy.section.kind != "frontend" {
            shared.groups.insert(name.clone(), servers::upstream(proxy, proxy.is_tcp(), base, defaults, report));
            shared.sections.insert(name.clone(), proxy.section.id);
            if proxy.section.kind == "backend" {
                connections(proxy, acls, &shared.tables, out, report);
            }
            let mut found = rules::rules(proxy, acls, report);
            // A `listen` that is a backend has its other rules, too.
            found.retain(|r| !matches!(r.what, What::Backend(_)));
            shared.rules.insert(name, found);
        }
    }
    for proxy in proxies.iter().filter(|p| p.section.kind != "frontend") {
        servers::track(proxy, &mut shared.groups, report);
    }
    let mut budget = Budget::default();
    let mut served = BTreeSet::new();
    for (proxy, acls) in proxies.iter().zip(&acls).filter(|(p, _)| p.section.kind != "backend") {
        frontend(proxy, acls, &shared, defaults, reader, base, &mut budget, &mut served, out, report);
    }
    unused(&proxies, &shared, out, report);
    unreached(&proxies, &served, report);
    for (proxy, acls) in proxies.iter().zip(&acls).filter(|(p, _)| p.disabled().is_none()) {
        of_acls(proxy, acls, report);
    }
}

/// The lines that lead to a backend, or may lead to it.
pub(super) fn ways<'s>(backend: &'s str, lines: impl Iterator<Item = &'s Line>) -> impl Iterator<Item = &'s Line> {
    let leads = move |l: &&Line| {
        matches!(l.word(0), "use_backend" | "default_backend") && (l.word(1) == backend || l.word(1).contains('%'))
    };
    lines.filter(leads)
}

/// Lines as a report names them: `line 3`, `lines 3 and 4`.
pub(super) fn shown_lines<'l>(lines: impl Iterator<Item = &'l Line>) -> String {
    let all: BTreeSet<u32> = lines.map(|l| l.place.line).collect();
    let all: Vec<String> = all.iter().map(u32::to_string).collect();
    match all.split_last() {
        Some((last, others)) if !others.is_empty() => format!("lines {} and {last}", others.join(", ")),
        _ => format!("line {}", all.concat()),
    }
}

/// Backends that no host of the result uses. One to which a rule leads that is not translated is written all the same: the replacement
/// needs it.
fn unused(proxies: &[Proxy], shared: &Shared, out: &mut Output, report: &mut Report) {
    for proxy in proxies.iter().filter(|p| p.section.kind == "backend") {
        let Some(Some(group)) = shared.groups.get(&proxy.section.name) else { continue };
        if out.upstreams.iter().any(|u| u.origin == group.origin) {
            continue;
        }
        let lines = proxies.iter().filter(|p| p.disabled().is_none()).flat_map(|p| p.own());
        let ways: Vec<&Line> = ways(&proxy.section.name, lines).collect();
        if ways.is_empty() {
            let says = "no rule leads to this backend, so it is not in the result";
            report.same_because(proxy.section.id, says);
            proxy.own().for_each(|l| report.same_because(l.id, says));
            continue;
        }
        // Rules of this backend may answer all of its requests.
        let lost: Vec<&Line> = ways.into_iter().filter(|l| is_lost(l, report)).collect();
        if lost.is_empty() {
            continue;
        }
        let lines = shown_lines(lost.into_iter());
        let (are, place) = match lines.starts_with("lines ") {
            true => ("are", "their place".to_owned()),
            false => ("is", format!("place of {lines}")),
        };
        out.upstream(group.clone());
        report.differs(
            proxy.section.id,
            format!(
                "[[upstream]]: no host or route of the result uses it yet, because {lines} {are} not translated. Name this upstream in \
                 the host or route that you write in {place}"
            ),
        );
    }
}

/// Rules of backends that no request gets to, although all rules that lead there are translated.
fn unreached(proxies: &[Proxy], served: &BTreeSet<String>, report: &mut Report) {
    let others = |p: &&Proxy| p.section.kind == "backend" && !served.contains(&p.section.name);
    for proxy in proxies.iter().filter(others) {
        let lines = proxies.iter().filter(|p| p.disabled().is_none()).flat_map(|p| p.own());
        let ways: Vec<&Line> = ways(&proxy.section.name, lines).collect();
        let is_translated = |l: &&Line| report.worst(l.id).is_some_and(|worst| worst < crate::Outcome::NotTranslated);
        if ways.is_empty() || !ways.iter().all(is_translated) {
            continue;
        }
        let says =
            format!("no request gets to this backend: the condition of {} never holds", shown_lines(ways.into_iter()));
        for rule in proxy.own().filter(|l| l.word(0).starts_with("http-re")) {
            if !report.is_known(rule.id) {
                report.missing(rule.id, says.clone());
            }
        }
    }
}

/// Whether a rule has an ACL in its condition.
fn uses_acl(line: &Line, name: &str) -> bool {
    let condition = line.words.iter().skip_while(|w| *w != "if" && *w != "unless").skip(1);
    line.word(0) != "acl" && condition.map(|w| w.trim_start_matches('!')).any(|w| w == name)
}

/// Whether the result has nothing for a line. A rule of which nothing is said so far applies to no request.
pub(super) fn is_lost(line: &Line, report: &Report) -> bool {
    match report.worst(line.id) {
        Some(outcome) => outcome >= crate::Outcome::NotTranslated,
        None => !matches!(super::table::kind(&line.words), Some(crate::Kind::NotNeeded(_))),
    }
}

/// Says of each ACL whether the result has its condition.
fn of_acls(proxy: &Proxy, acls: &Acls, report: &mut Report) {
    for ((section, name), tests) in &acls.named {
        let users: Vec<&Line> = proxy.all().filter(|l| l.section == *section && uses_acl(l, name)).collect();
        let lost = users.iter().filter(|l| is_lost(l, report)).count();
        for (_, line, _) in tests {
            match users.len() {
                0 => report.same(line.id, "no rule uses it"),
                n if n == lost => report.missing(
                    line.id,
                    format!(
                        "the result does not have this condition, because everything that uses it ({}) is not translated: decide that \
                         first",
                        shown_lines(users.iter().copied())
                    ),
                ),
                _ => report.same(line.id, "its condition is written into the rules that use it"),
            }
        }
    }
}

/// `unique-id-header`.
fn request_ids(proxy: &Proxy, out: &mut Output, report: &mut Report) {
    let Some(l) = proxy.last(&["unique-id-header"]) else { return };
    let wanted = quoted(l.word(1));
    match out.request_id.value("header").is_none_or(|there| there.eq_ignore_ascii_case(&wanted)) {
        true => {
            out.request_id.set("header", wanted, &l.place);
            report.differs(
                l.id,
                "[request_id]: requests of all hosts have this header, and an ID that a trusted proxy sends is kept",
            );
        }
        false => report.missing(l.id, "[request_id] has one header for all hosts"),
    }
    if let Some(l) = proxy.last(&["unique-id-format"]) {
        report.differs(l.id, "[request_id]: IDs are 32 random hexadecimal digits");
    }
}

/// `option http-restrict-req-hdr-names`.
fn header_names(proxy: &Proxy, report: &mut Report) {
    for l in proxy.all().filter(|l| l.is(&["option", "http-restrict-req-hdr-names"])) {
        match l.word(2) {
            "preserve" => report.same(l.id, "headers are passed on"),
            _ => report.differs(
                l.id,
                "headers with underscores are passed on, except other spellings of headers that the gateway removes or sets (a request with some of these spellings gets 400)",
            ),
        }
    }
}

/// What frontends refer to.
struct Shared<'l> {
    tables: BTreeMap<String, &'l Line>,
    groups: BTreeMap<String, Option<Upstream>>,
    /// The rules of backends.
    rules: BTreeMap<String, Vec<Rule<'l>>>,
    /// The pages of each proxy, by status.
    pages: BTreeMap<Id, BTreeMap<u16, ErrorPage>>,
    /// How the responses of each proxy are compressed.
    compressions: BTreeMap<Id, (String, Place)>,
    /// The sections of backends.
    sections: BTreeMap<String, Id>,
    /// All sections.
    all: &'l [Section],
}

impl Shared<'_> {
    /// The pages of a backend, and those of the frontend for other statuses.
    fn pages(&self, frontend: Id, backend: &str) -> Vec<ErrorPage> {
        let of = |id: &Id| self.pages.get(id).cloned().unwrap_or_default();
        let mut all = of(&frontend);
        all.extend(self.sections.get(backend).map(of).unwrap_or_default());
        errors::complete(&mut all);
        all.into_values().collect()
    }

    /// Who is let in, with the users that have the groups that rules ask for.
    fn basic_auth(&self, auth: Option<BasicAuth>, users: Option<&Users>) -> Option<BasicAuth> {
        let allowed = users.and_then(|users| super::names_of(self.all, users));
        auth.map(|auth| BasicAuth { allowed, ..auth })
    }

    /// How the responses of a backend are compressed: as it says itself, else as the frontend says.
    fn compression(&self, frontend: Id, backend: &str) -> Option<(String, Place)> {
        let own = self.sections.get(backend).and_then(|id| self.compressions.get(id));
        own.or_else(|| self.compressions.get(&frontend)).cloned()
    }
}

#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn frontend<'l>(
    proxy: &Proxy<'l>,
    acls: &Acls<'l>,
    shared: &Shared<'l>,
    defaults: &Defaults,
    reader: &dyn Reader,
    base: &std::path::Path,
    budget: &mut Budget,
    served: &mut BTreeSet<String>,
    out: &mut Output,
    report: &mut Report,
) {
    let tcp = proxy.is_tcp();
    if let Some(l) = proxy.disabled() {
        // Nobody gets in whom HAProxy would keep out.
        report.same(l.id, "it is left out");
        report.same(proxy.section.id, "disabled, and left out");
        proxy.own().for_each(|l| report.say(l.id, crate::Outcome::Same, "its section is disabled"));
        return;
    }
    let only_stats = proxy.own().any(|l| l.word(0) == "stats")
        && proxy.last(&["default_backend"]).is_none()
        && !proxy.own().any(|l| matches!(l.word(0), "server" | "server-template" | "use_backend"));
    if only_stats {
        let says = "statistics: [admin] listen has /metrics, /v1/status and a page, on an address of its own";
        report.missing(proxy.section.id, says);
        for l in proxy.own().filter(|l| l.word(0) == "bind" || l.word(0) == "http-request") {
            report.missing(l.id, says);
        }
        return;
    }
    if let Some(l) = proxy.last(&["mode"]) {
        report.same(l.id, "mode");
    }
    if let Some(l) = servers::closing(proxy).filter(|l| !tcp && !report.is_known(l.id)) {
        report.differs(
            l.id,
            "Sealane keeps idle connections to servers: write keepalive = 0 in the [[upstream]] tables of this frontend if the servers must not \
             have them",
        );
    }
    let trusted = trusted(proxy, report);
    let context = Context { defaults, reader, base, tcp, trusted: &trusted };
    let mut bound: Vec<Bound> = Vec::new();
    let mut listeners = Vec::new();
    let mut quic_addresses: Vec<String> = Vec::new();
    for line in proxy.own().filter(|l| l.word(0) == "bind") {
        let Some((l, bs, quic)) = binds::bind(line, &context, report) else { continue };
        if quic {
            quic_addresses.extend(l.addresses.clone());
        }
        match quic {
            // HTTP/3 at an address that has TLS over TCP, too.
            true => {
                let there = listeners
                    .iter_mut()
                    .find(|o: &&mut crate::output::Listener| o.addresses.iter().any(|a| l.addresses.contains(a)));
                match there {
                    Some(there) => {
                        let place = line.place.clone();
                        there.settings.set("http3", "true", &place);
                        continue;
                    }
                    None => report
                        .differs(line.id, "HTTP/3 is served beside HTTP/1.1 and HTTP/2 over TCP at the same address"),
                }
            }
            false => {
                if let Some(at) = listeners
                    .iter()
                    .position(|o: &crate::output::Listener| o.settings.has("http3") && o.addresses == l.addresses)
                {
                    let mut both = l.clone();
                    both.settings.set("http3", "true", &line.place);
                    listeners[at] = both;
                    continue;
                }
            }
        }
        listeners.push(l);
        bound.extend(bs);
    }
    if bound.is_empty() {
        return report.missing(proxy.section.id, "has no address to listen on");
    }
    report.same(proxy.section.id, "[[listener]] and [[host]]");
    for l in proxy.all().filter(|l| l.word(0) == "maxconn") {
        report.differs(l.id, "connections are limited per lane, for all listeners together ([limits] max_connections)");
    }
    let access = connections(proxy, acls, &shared.tables, out, report);
    listeners.iter_mut().for_each(|l| l.access = access.clone());
    out.listeners.extend(listeners);
    let found = rules::rules(proxy, acls, report);
    let own = (proxy.section.kind == "listen").then(|| (proxy.section.name.clone(), proxy.section.place.clone()));
    request_ids(proxy, out, report);
    let default = proxy.last(&["default_backend"]);
    if let Some(l) = default {
        report.same(l.id, "upstream");
    }
    let default = default.map(|l| (l.word(1).to_owned(), l.place.clone())).or(own);
    let then = Then {
        backends: &shared.rules,
        default: default.as_ref().map(|(n, p)| (n.as_str(), p)),
        own: &proxy.section.name,
    };
    let all = reached_rules(&found, &then);
    let names = hosts(&all);
    let whole = whole_names(&all);
    let texts: Vec<&HostTexts> = all.iter().flat_map(|r| r.condition.tests()).filter_map(Test::host_texts).collect();
    let tests: Vec<&PathTest> = if tcp { Vec::new() } else { path_tests(&all) };
    let classes: Option<Vec<Vec<HostClass>>> = names.iter().map(|name| classes(name, &texts)).collect();
    let classes = classes.filter(|all| {
        let atoms = all.iter().map(Vec::len).sum::<usize>() * (tests.len() + 1) * bound.len();
        atoms <= MAX_ATOMS
    });
    let Some(classes) = classes.filter(|_| all.len() <= MAX_RULES) else {
        return report.decide(proxy.section.id, "its rules distinguish too many hosts and paths: split the frontend");
    };
    let mut lost = Lost::new(proxy, &found);
    let cost: usize = all.iter().map(|r| r.condition.cost() + 1).sum();
    let monitor = proxy.last(&["monitor-uri"]);
    let mut hosts: Vec<(String, Host)> = Vec::new();
    let undivided = [HostClass::undivided()];
    for b in &bound {
        for (name, classes) in names.iter().zip(&classes) {
            let mut classes: &[HostClass] = classes;
            let mut routes: Vec<Route> = Vec::new();
            'attempt: loop {
                routes.clear();
                let mut written: Vec<(Path, String)> = Vec::new();
                let tls = b.tls || tcp;
                // What is done with the names of each class.
                let decide = |path: &str, one: Option<&str>| -> Vec<Trace> {
                    let path = Some(path).filter(|_| !tcp);
                    let (port, host, trusts) = (b.port, name, acls.trusts);
                    let of = |class| then.trace(&found, &Atom { tls, trusts, port, host, class, path, one });
                    classes.iter().map(of).collect()
                };
                let restricts = |all: &Vec<Trace>| all.iter().any(|t| t.restrictions().next().is_some());
                // Whatever has an expression comes behind, so what is meant must not depend on one.
                let amends = |d: &Differing<Vec<Trace>>| {
                    let lets_in = d.there.iter().zip(d.here).any(|(there, here)| !there.may_become(here));
                    let needed = d.is_within || d.is_part || lets_in;
                    (needed && !d.there.iter().any(Trace::has_expressions)).then_some(Stands::Before)
                };
                let cost = cost * classes.len();
                let Some(plan) = paths::plan(&tests, cost, budget, decide, restricts, amends) else {
                    return report.decide(
                        proxy.section.id,
                        "its rules distinguish too many hosts and paths: split the frontend",
                    );
                };
                for e in &plan.elsewhere {
                    let all = e.there.iter().zip(&e.here).filter(|(there, here)| there != here);
                    all.for_each(|(there, here)| elsewhere(there, here, &e.path, proxy, report));
                }
                for planned in &plan.routes {
                    let mut made = |path: &Path, sample: &str, decisions: &[Trace], report: &mut Report| {
                        let path_of = Some(sample).filter(|_| !tcp);
                        let one = path_of.filter(|_| matches!(path, Path::Exact(_)));
                        let (last, others) = classes.split_last()?;
                        // `refused`: where this is written, if the requests are refused.
                        let mut of = |class: &HostClass, refused: Option<Place>, report: &mut Report| {
                            let (port, trusts) = (b.port, acls.trusts);
                            let atom = Atom { tls, trusts, port, host: name, class, path: path_of, one };
                            let mut applied = rules::apply(&found, &then, &atom, path, report);
                            match refused {
                                None => lost.of_host(name, &applied),
                                Some(place) => {
                                    applied = rules::Outcome {
                                        action: Some((Action::status(403), place)),
                                        after: applied.after,
                                        after_hsts: applied.after_hsts,
                                        ..rules::Outcome::default()
                                    }
                                }
                            }
                            routes_of(path, applied, tcp, proxy, shared, out, report)
                        };
                        let mut entries = Vec::new();
                        for (class, refused) in kept(others, decisions, &whole, tcp, proxy, report) {
                            let routes = match refused {
                                None => of(class, None, report)?,
                                Some(id) => {
                                    let line = all.iter().find(|r| r.line.id == id).map(|r| &r.line.place);
                                    of(last, Some(line.unwrap_or(&proxy.section.place).clone()), report)?
                                }
                            };
                            entries.extend(class.limit(entries_of(routes))?);
                        }
                        let own = of(last, None, report)?;
                        if entries.is_empty() {
                            return Some(own);
                        }
                        entries.extend(entries_of(own));
                        in_order(entries)
                    };
                    let path = &planned.path;
                    let Some(own) = made(path, &planned.sample, &planned.decision, report) else {
                        if classes.len() > 1 {
                            classes = &undivided;
                            continue 'attempt;
                        }
                        lost.of_path(name, path);
                        routes.push(Route::new(path.clone(), Action::untranslated(), &proxy.section.place));
                        continue;
                    };
                    let mut groups = Vec::new();
                    for extra in &planned.within {
                        groups.extend(made(
                            &Path::Within(extra.within.clone()),
                            &extra.sample,
                            &extra.decision,
                            report,
                        ));
                    }
                    let all = groups.len() == planned.within.len();
                    groups.push(own.clone());
                    let routes_here = match joined(groups).filter(|_| all) {
                        Some(made) => made,
                        None => {
                            for extra in &planned.within {
                                let path = extra.sample.replace(paths::OTHER, "x");
                                let decisions = extra.decision.iter().zip(&planned.decision);
                                for (there, here) in decisions.filter(|(there, here)| there != here) {
                                    elsewhere(there, here, &path, proxy, report);
                                }
                            }
                            own
                        }
                    };
                    // The same as what is around it: no route of its own.
                    let shape = shape(&routes_here);
                    let around = written.iter().filter(|(p, _)| is_around(p, path)).max_by_key(|(p, _)| len(p));
                    if around.is_some_and(|(_, s)| *s == shape) {
                        continue;
                    }
                    // Those of a single path lack the expressions that it does not match. What is around it may be the same with them.
                    if let (Path::Exact(exact), Some((_, around))) = (path, around)
                        && let Some(all) = made(&Path::Below(exact.clone()), &planned.sample, &planned.decision, report)
                        && !all.iter().any(Route::rewrites_path)
                        && self::shape(&all) == *around
                    {
                        continue;
                    }
                    written.push((path.clone(), shape));
                    routes.extend(routes_here);
                }
                break;
            }
            lost.is_left(name, &routes);
            if let Some(l) = monitor {
                let body = "<html><body><h1>200 OK</h1>\nService ready.\n</body></html>\n".to_owned();
                let (content_type, headers) =
                    (Some("text/html".to_owned()), vec![("Cache-Control".into(), "no-cache".into())]);
                let ok = Action::Respond { status: 200, body, file: None, content_type, headers };
                routes.retain(|r| r.path != Path::Exact(l.word(1).to_owned()));
                if l.word(1).starts_with('/') {
                    routes.push(Route::new(Path::Exact(l.word(1).to_owned()), ok, &l.place).settled());
                    report.same(l.id, "respond with 200");
                }
            }
            let signature = format!(
                "{:?}",
                routes.iter().map(|r| (r.conditions(), shape(std::slice::from_ref(r)))).collect::<Vec<_>>()
            );
            let same = |(s, h): &&mut (String, Host)| *s == signature && h.listeners == b.addresses;
            match hosts.iter_mut().find(same) {
                Some((_, host)) => host.names.push(name.clone()),
                None => hosts.push((
                    signature,
                    Host {
                        names: vec![name.clone()],
                        listeners: b.addresses.clone(),
                        routes,
                        origin: proxy.section.place.clone(),
                    },
                )),
            }
        }
    }
    let mut merged: Vec<(String, Host)> = Vec::new();
    for (signature, host) in hosts {
        match merged.iter_mut().find(|(s, h)| *s == signature && h.names == host.names) {
            Some((_, there)) => there.listeners.extend(host.listeners),
            None => merged.push((signature, host)),
        }
    }
    out.hosts.extend(merged.into_iter().map(|(_, h)| h).filter(|h| !h.routes.is_empty()));
    served.append(&mut lost.backends);
    lost.report(proxy, report);
}

/// The classes that need routes of their own, and of those that are only refused the rule that is not applied to them. `decisions`: what
/// is done with the names of each class, and with all other names at the end. `whole`: what rules compare whole names with.
///
/// A class without routes gets those of the next class that includes it. That may be different if the class has only names that a whole
/// name is a part of, and if nobody is let in whom HAProxy would refuse: the report then names them. If somebody would be let in, and
/// if the class certainly has no names that are used, its requests are refused.
fn kept<'c>(
    classes: &'c [HostClass],
    decisions: &[Trace],
    whole: &BTreeSet<&str>,
    tcp: bool,
    proxy: &Proxy,
    report: &mut Report,
) -> Vec<(&'c HostClass, Option<Id>)> {
    let mut kept: Vec<(&HostClass, &Trace, Option<Id>)> = Vec::new();
    for (class, trace) in classes.iter().zip(decisions).rev() {
        let next = kept.iter().rev().find(|(wide, ..)| wide.includes(class)).map(|(_, trace, _)| *trace);
        let Some(next) = next.or(decisions.last()) else { continue };
        if next == trace {
            continue;
        }
        let rule = differing(trace, next).unwrap_or(proxy.section.id);
        // The rule that selects the server of all of them says most of what the names are for.
        let selects = trace.fired.iter().find(|f| !f.2 && f.1 == Left::Always && !next.fired.contains(f));
        let selects = selects.map_or(rule, |f| f.0);
        let mut refused = None;
        if class.is_odd() && trace.may_become(next) {
            report.differs(
                selects,
                format!(
                    "Sealane compares whole host names: this rule does not apply to names such as {}",
                    class.sample()
                ),
            );
            continue;
        } else if !tcp && class.is_unused(whole) && !trace.answers() {
            report.differs(
                selects,
                format!("Sealane compares whole host names: requests for names such as {} get 403", class.sample()),
            );
            refused = Some(selects);
        }
        kept.push((class, trace, refused));
    }
    kept.into_iter().rev().map(|(class, _, refused)| (class, refused)).collect()
}

/// Requests whose action is not translated.
struct Lost {
    /// Rules that select a server for any request, and that the import does not understand.
    everywhere: Vec<Place>,
    /// For each host, such rules that may apply to its requests.
    rules: BTreeMap<String, BTreeSet<Place>>,
    /// For each host, what its requests get.
    gets: BTreeMap<String, String>,
    /// For each host, paths for which no routes can be written.
    paths: BTreeMap<String, BTreeSet<String>>,
    /// The backends that requests get to.
    backends: BTreeSet<String>,
}

impl Lost {
    fn new(proxy: &Proxy, found: &[Rule]) -> Self {
        let is_read = |l: &Line| found.iter().any(|r| r.line.id == l.id);
        let everywhere = proxy.all().filter(|l| l.word(0) == "use_backend" && !is_read(l)).map(|l| l.place.clone());
        Self {
            everywhere: everywhere.collect(),
            rules: BTreeMap::new(),
            gets: BTreeMap::new(),
            paths: BTreeMap::new(),
            backends: BTreeSet::new(),
        }
    }

    fn of_host(&mut self, name: &str, applied: &rules::Outcome) {
        for some in [applied].into_iter().chain(applied.exceptions.iter().map(|e| &*e.then)) {
            self.backends.extend(some.backend.iter().map(|(name, _)| name.clone()));
            self.backends.extend(some.shares.iter().map(|share| share.backend.clone()));
        }
        let inner = applied.exceptions.iter().flat_map(|e| &e.then.lost);
        let all: Vec<&Place> = self.everywhere.iter().chain(&applied.lost).chain(inner).collect();
        if !all.is_empty() {
            self.rules.entry(name.to_owned()).or_default().extend(all.into_iter().cloned());
        }
    }

    fn of_path(&mut self, name: &str, path: &Path) {
        let shown = match path {
            Path::Below(path) | Path::Exact(path) => path.clone(),
            Path::Within(within) => within.test.text.clone(),
        };
        self.paths.entry(name.to_owned()).or_default().insert(shown);
    }

    fn is_left(&mut self, name: &str, routes: &[Route]) {
        let all = routes.iter().find(|r| r.is_everything());
        let gets = match all.map(|r| &r.action) {
            Some(Action::Upstream(to) | Action::Passthrough(to)) => format!("go to the upstream {to}"),
            Some(Action::Respond { status, .. }) => format!("get {status}"),
            Some(Action::Redirect { .. }) => "are redirected".to_owned(),
            Some(Action::Split(_)) => "are split".to_owned(),
            None => "get 404".to_owned(),
        };
        self.gets.insert(name.to_owned(), gets);
    }

    fn report(self, proxy: &Proxy, report: &mut Report) {
        let mut same: BTreeMap<(&BTreeSet<Place>, &str), Vec<&str>> = BTreeMap::new();
        for (name, rules) in &self.rules {
            let gets = self.gets.get(name).map_or("get 404", String::as_str);
            same.entry((rules, gets)).or_default().push(name);
        }
        for ((rules, gets), names) in same {
            let lines: Vec<String> = rules.iter().map(|place| place.line.to_string()).collect();
            let lines = if lines.len() == 1 {
                format!("a replacement for line {}", lines[0])
            } else {
                format!("replacements for lines {}", lines.join(", "))
            };
            report.missing(proxy.section.id, format!("without {lines}, requests for {} {gets}", named(&names)));
        }
        for (name, paths) in &self.paths {
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            report.decide(
                proxy.section.id,
                format!(
                    "requests for {} get 501 at {}: routes cannot express the order of these conditions on methods and headers: write \
                     one route for each case",
                    named(&[name.as_str()]),
                    paths.join(", ")
                ),
            );
        }
    }
}

/// Names of hosts, to be shown.
fn named(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().map(|n| if *n == "*" { "all other names" } else { *n }).collect();
    shown.join(", ")
}

/// All rules that requests of a frontend meet.
fn reached_rules<'r, 'l>(found: &'r [Rule<'l>], then: &Then<'r, 'l>) -> Vec<&'r Rule<'l>> {
    let chosen =
        found.iter().filter_map(|r| if let What::Backend(name) = &r.what { Some(name.as_str()) } else { None });
    let mut names: BTreeSet<&str> = chosen.collect();
    names.extend(then.default.map(|(name, _)| name));
    names.remove(then.own);
    let behind = names.into_iter().filter_map(|name| then.backends.get(name)).flatten();
    found.iter().chain(behind).collect()
}

/// The rule in which two decisions differ.
fn differing(one: &Trace, other: &Trace) -> Option<Id> {
    let of = |a: &Trace, b: &Trace| a.fired.iter().find(|f| !b.fired.contains(f)).map(|f| f.0);
    of(one, other).or_else(|| of(other, one))
}

/// Reports paths for which the routes do something else than HAProxy.
fn elsewhere(there: &Trace, here: &Trace, path: &str, proxy: &Proxy, report: &mut Report) {
    let id = differing(there, here).unwrap_or(proxy.section.id);
    match there.may_become(here) {
        true => report.differs(
            id,
            format!("Sealane matches whole segments and distinguishes upper and lower case: this route does not match {path}; another route handles it"),
        ),
        false => report.decide(
            id,
            format!(
                "Sealane matches whole segments and distinguishes upper and lower case: this route does not match {path}; HAProxy does \
                 something else. Add routes for such paths, or let the server refuse them"
            ),
        ),
    }
}

/// The hosts that rules tell apart.
fn hosts(all: &[&Rule]) -> Vec<String> {
    let mut out: BTreeSet<String> = BTreeSet::new();
    for rule in all {
        for test in rule.condition.tests() {
            if let Test::Host(names) | Test::ServerName(names) | Test::HostPorts { names, .. } = test {
                out.extend(names.iter().cloned());
            }
            if let Some(texts) = test.host_texts() {
                out.extend(texts.names());
            }
        }
    }
    let mut out: Vec<String> = out.into_iter().collect();
    out.push("*".to_owned());
    out
}

/// What rules compare whole names with.
fn whole_names<'r>(all: &[&'r Rule]) -> BTreeSet<&'r str> {
    let tests = all.iter().flat_map(|r| r.condition.tests());
    let names = tests.filter_map(|test| match test {
        Test::Host(names) | Test::ServerName(names) | Test::HostPorts { names, .. } => Some(names),
        _ => None,
    });
    names.flatten().map(String::as_str).collect()
}

/// What rules compare paths with.
fn path_tests<'r>(all: &[&'r Rule]) -> Vec<&'r PathTest> {
    let mut out: Vec<&PathTest> = Vec::new();
    for rule in all {
        for test in rule.condition.tests() {
            if let Test::Path(tests) = test {
                out.extend(tests);
            }
        }
        if let What::Prefix { tests, .. } = &rule.what {
            out.extend(tests);
        }
    }
    out.sort_by(|a, b| a.text.cmp(&b.text));
    out.dedup();
    out
}
