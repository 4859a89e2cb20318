//! The routes of one path: what the rules lead to, with their conditions on methods and headers.

use super::Shared;
use super::connections::{rate_of, tracked};
use crate::addresses::{AddressList, Clients};
use crate::haproxy::acl::Match;
use crate::haproxy::parser::Proxy;
use crate::haproxy::rules::{Exception, Limit, Outcome as Applied, Share};
use crate::output::{
    Action, Edits, Entry, Methods, Output, Path, Rewrites, Route, Settings, Split, in_order, list, quoted,
};
use crate::report::{Place, Report};
use crate::units::shown_size;

/// Changes to responses, and `hsts`.
type Changes = (Edits, Option<(String, Place)>);

pub(super) fn len(path: &Path) -> usize {
    match path {
        Path::Below(p) | Path::Exact(p) => p.trim_end_matches('/').len(),
        Path::Within(within) => within.test.text.len(),
    }
}

/// Whether the requests of `inner` are among those of `outer`.
pub(super) fn is_around(outer: &Path, inner: &Path) -> bool {
    let (Path::Below(o), Path::Below(i) | Path::Exact(i)) = (outer, inner) else { return false };
    let (o, i) = (o.trim_end_matches('/'), i.trim_end_matches('/'));
    i.strip_prefix(o).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What makes routes the same but for their paths.
pub(super) fn shape(routes: &[Route]) -> String {
    let one = |r: &Route| {
        let rewrite = (r.rewrite.as_ref().map(|w| &w.0), r.template.as_ref().map(|w| &w.0));
        let limits = (r.limits(), r.body_limit(), r.compression());
        let hsts = r.hsts.as_ref().map(|h| &h.0);
        let (changes, checks, pattern) = (r.changes(), r.checks(), &r.pattern);
        let (rewrites, upgrade) = (r.rewrites(), r.passes_upgrade());
        format!(
            "{pattern:?} {:?} {:?} {:?} {rewrite:?} {limits:?} {hsts:?} {changes} {checks} {rewrites:?} {upgrade}",
            r.methods, r.headers, r.action
        )
    };
    routes.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// What rules change in `Location`.
fn location(change: Option<(String, String, Place)>) -> Vec<Rewrites> {
    let of = |(from, to, place): (String, String, Place)| {
        ("rewrite_location", format!("{{ {} = {} }}", quoted(&from), quoted(&to)), place)
    };
    change.into_iter().map(of).collect()
}

/// The routes of a path. `None`: no routes say this.
pub(super) fn routes_of(
    path: &Path,
    applied: Applied,
    tcp: bool,
    proxy: &Proxy,
    shared: &Shared,
    out: &mut Output,
    report: &mut Report,
) -> Option<Vec<Route>> {
    let host = applied.host.clone();
    let mut to = |backend: &str, place: &Place, host: Option<&(String, Place)>, report: &mut Report| {
        upstream(backend, place, tcp, host, shared, proxy, out, report)
    };
    let pages = |action: &Action, backend: Option<&(String, Place)>| match (action, backend) {
        (Action::Upstream(_) | Action::Split(_), Some((backend, _))) => shared.pages(proxy.section.id, backend),
        _ => Vec::new(),
    };
    let compression = |action: &Action, backend: Option<&(String, Place)>| match (action, backend) {
        (Action::Upstream(_) | Action::Split(_), Some((backend, _))) => shared.compression(proxy.section.id, backend),
        _ => None,
    };
    let (action, origin) = match (&applied.action, &applied.backend) {
        (Some((action, place)), _) => (action.clone(), place.clone()),
        (None, Some((backend, place))) if !applied.shares.is_empty() => {
            let main = to(backend, place, host.as_ref(), report);
            let mut of = |share: &Share, report: &mut Report| to(&share.backend, &share.place, host.as_ref(), report);
            let others: Vec<Action> = applied.shares.iter().map(|share| of(share, report)).collect();
            (split(backend, main, &applied.shares, others, tcp, shared, report), place.clone())
        }
        (None, Some((backend, place))) => (to(backend, place, host.as_ref(), report), place.clone()),
        (None, None) => (Action::status(503), proxy.section.place.clone()),
    };
    // A connection that is relayed nowhere is closed, which needs no host.
    if tcp && !matches!(action, Action::Passthrough(_)) {
        return Some(Vec::new());
    }
    let mut main = Route::new(path.clone(), action, &origin);
    main.pages = pages(&main.action, applied.backend.as_ref());
    main.compression = compression(&main.action, applied.backend.as_ref());
    main.basic_auth = shared.basic_auth(applied.basic_auth, applied.users.as_ref());
    main.access = applied.access;
    if main.action.passes() {
        main.request = applied.request;
        main.upgrade = main.request.take_removal("Upgrade").map(|place| (false, place));
        main.rewrites = location(applied.location);
        main.rewrite = applied.rewrite.filter(|_| matches!(path, Path::Below(_)));
        main.template = applied.template;
    }
    let passed = main.action.passes();
    (main.response, main.hsts) =
        responses(passed, (applied.response, applied.hsts), (applied.after, applied.after_hsts));
    let body = |limit: Option<(u64, Place)>| limit.map(|(n, place)| (shown_size(n), place));
    main.max_body = body(applied.max_body);
    let mut entries: Vec<Entry> = Vec::new();
    // Limits of single entries.
    let mut own: Vec<(usize, Limit)> = Vec::new();
    for Exception { only: Match { methods, headers, pattern }, then, place } in applied.exceptions {
        if tcp {
            // Bytes have neither.
            return None;
        }
        let action = match (then.action, &then.backend) {
            (Some((action, _)), _) => action,
            (None, Some((backend, place))) => to(backend, place, then.host.as_ref(), report),
            (None, None) => continue,
        };
        let mut other = Route::new(path.clone(), action, &place);
        other.pages = pages(&other.action, then.backend.as_ref());
        other.compression = compression(&other.action, then.backend.as_ref());
        (other.headers, other.pattern) = (headers, pattern);
        other.basic_auth = shared.basic_auth(then.basic_auth, then.users.as_ref());
        other.access = then.access;
        if other.action.passes() {
            other.request = then.request;
            other.upgrade = other.request.take_removal("Upgrade").map(|place| (false, place));
            other.rewrites = location(then.location);
            other.rewrite = then.rewrite.filter(|_| matches!(path, Path::Below(_)));
            other.template = then.template;
        }
        let passed = other.action.passes();
        (other.response, other.hsts) = responses(passed, (then.response, then.hsts), (then.after, then.after_hsts));
        other.max_body = body(then.max_body);
        let of_others = |limit: &Limit| !applied.rates.iter().any(|there| there.id == limit.id);
        for limit in then.rates.into_iter().filter(of_others) {
            match limit.section == proxy.section.id {
                true => own.push((entries.len(), limit)),
                false => report.decide(
                    limit.id,
                    "a limit of a backend is not translated where the backend is chosen by method or header; write a [[rate_limit]]",
                ),
            }
        }
        entries.push(Entry { methods, route: other });
    }
    for (at, limit) in own {
        let limit = limited(&limit, proxy, shared, out, report);
        if let Some(entry) = entries.get_mut(at) {
            entry.route.rate_limits.extend(limit);
        }
    }
    for limit in applied.rates {
        // A limit holds for all requests of the path.
        if let Some(limit) = limited(&limit, proxy, shared, out, report) {
            entries.iter_mut().for_each(|e| e.route.rate_limits.push(limit.clone()));
            main.rate_limits.push(limit);
        }
    }
    entries.push(Entry { methods: Methods::Any, route: main });
    Some(in_order(entries)?.into_iter().map(Route::settled).collect())
}

/// The upstreams between which chance decides: the first share is of all requests, the next one of those that are left.
fn split(
    default: &str,
    main: Action,
    shares: &[Share],
    others: Vec<Action>,
    tcp: bool,
    shared: &Shared,
    report: &mut Report,
) -> Action {
    let has_rules = |name: &str| shared.rules.get(name).is_some_and(|rules| !rules.is_empty());
    let by_rules = has_rules(default) || shares.iter().any(|s| has_rules(&s.backend));
    let mut groups: Vec<(String, u64)> = Vec::new();
    let mut add = |action: &Action, weight: u64| match action {
        Action::Upstream(name) => {
            match groups.iter_mut().find(|(there, _)| there == name) {
                Some((_, there)) => *there += weight,
                None => groups.push((name.clone(), weight)),
            }
            true
        }
        _ => false,
    };
    // In parts of the product of all ranges.
    let all = shares.iter().try_fold(1_u64, |all, s| all.checked_mul(s.part.1.into()));
    let mut left = all.unwrap_or(0);
    let mut passes = true;
    for (share, action) in shares.iter().zip(&others) {
        let weight = left / u64::from(share.part.1) * u64::from(share.part.0);
        passes &= add(action, weight);
        left -= weight;
    }
    passes &= add(&main, left);
    let common = groups.iter().fold(0, |a, (_, b)| divisor(a, *b)).max(1);
    let weights: Option<Vec<(String, u32)>> = groups
        .into_iter()
        .map(|(name, weight)| Some((name, u32::try_from(weight / common).ok().filter(|w| *w <= 1_000_000)?)))
        .collect();
    match weights.filter(|_| all.is_some() && passes && !by_rules && !tcp) {
        Some(groups) if groups.len() > 1 => Action::Split(Split { groups, hash_by: None }),
        Some(_) => main,
        None => {
            for share in shares {
                report.decide(
                    share.id,
                    "a split by \"rand\" is translated only in mode http, and only if all of its backends have no rules of \
                     their own: write a route with split",
                );
            }
            main
        }
    }
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Changes to responses: those of servers have both kinds, HAProxy's own the second.
fn responses(passed: bool, of_servers: Changes, of_all: Changes) -> Changes {
    if !passed {
        return of_all;
    }
    let (mut edits, hsts) = of_servers;
    edits.then(of_all.0);
    (edits, of_all.1.or(hsts))
}

/// The limit of a rule of the frontend: its name, and the rule's place.
fn limited(
    limit: &Limit,
    proxy: &Proxy,
    shared: &Shared,
    out: &mut Output,
    report: &mut Report,
) -> Option<(String, Place)> {
    let found = (limit.section == proxy.section.id).then(|| rate_limit(limit, proxy, shared, out, report)).flatten();
    let Some(name) = found else {
        let says = "the import does not understand what this counter counts";
        report.decide(limit.id, format!("{says}: {}", crate::report::RATE_LIMIT));
        return None;
    };
    report.differs(limit.id, "rate_limit: 429 with Retry-After, counted by client address");
    if limit.partial {
        report.differs(
            limit.id,
            "the stick table counts all requests of the frontend, and Sealane counts only the requests that this rule can \
             refuse: a client can send this many requests to them, and further requests to other sites and paths. To limit \
             all requests of a client together, write rate_limit in all hosts",
        );
    }
    Some((name, limit.place.clone()))
}

/// The `[[rate_limit]]` of a frontend's stick table.
fn rate_limit(limit: &Limit, proxy: &Proxy, shared: &Shared, out: &mut Output, report: &mut Report) -> Option<String> {
    let n = limit.requests;
    // The table is the proxy's own, or the one that the rule which counts names. It counts before the limit is looked at.
    let track = tracked(limit.counter.0, proxy, true)?;
    if track.word(0) == "http-request" && track.id >= limit.id {
        return None;
    }
    let table = track.after("table").unwrap_or(&proxy.section.name).to_owned();
    let line = *shared.tables.get(&table)?;
    let rate = rate_of(line, "http_req_rate", n)?;
    let exempt: AddressList = match &limit.clients {
        None => AddressList::default(),
        Some(Clients::NotIn(list)) => list.clone(),
        Some(clients) => clients.set()?.others().into(),
    };
    let addresses = exempt.set.blocks()?;
    report.differs(line.id, "[[rate_limit]]: a rate with a burst, not a count in a sliding period");
    for number in 1.. {
        let name = if number > 1 { format!("{table}-{n}-{number}") } else { format!("{table}-{n}") };
        let mut new = Settings::default();
        new.set("name", quoted(&name), &line.place);
        new.set("rate", quoted(&rate), &line.place);
        new.set("burst", n.clamp(1, 1_000_000).to_string(), &line.place);
        new.set("key", "\"address\"", &line.place);
        new.set("ipv6_prefix", "128", &line.place);
        if !addresses.is_empty() {
            new.set("exempt", list(&addresses), &limit.place);
        }
        if !exempt.files.is_empty() {
            new.set("exempt_file", list(&exempt.files), &limit.place);
        }
        match out.rate_limits.iter().find(|there| there.value("name") == new.value("name")) {
            // The same limit with other addresses.
            Some(there) if there.same() != new.same() => {}
            Some(_) => return Some(name),
            None => {
                out.rate_limits.push(new);
                return Some(name);
            }
        }
    }
    None
}

#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn upstream(
    backend: &str,
    place: &Place,
    tcp: bool,
    host: Option<&(String, Place)>,
    shared: &Shared,
    proxy: &Proxy,
    out: &mut Output,
    report: &mut Report,
) -> Action {
    let Some(group) = shared.groups.get(backend) else {
        report.missing(proxy.section.id, format!("there is no backend \"{backend}\" ({place}); requests get 503"));
        return Action::status(503);
    };
    let Some(group) = group else { return Action::status(503) };
    let mut group = group.clone();
    if let Some((name, place)) = host.filter(|_| !tcp) {
        match name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b)) {
            true => group.settings.set("host_header", quoted(name), place),
            false => report.missing(proxy.section.id, format!("\"{name}\" is not a value for Host")),
        }
    }
    let relayed = group.servers.iter().any(|(s, _)| s.contains("tcp://"));
    if relayed != tcp {
        report.missing(
            proxy.section.id,
            format!("the backend \"{backend}\" has another mode than the frontend; requests get 503"),
        );
        return Action::status(503);
    }
    let name = out.upstream(group);
    if tcp { Action::Passthrough(name) } else { Action::Upstream(name) }
}
