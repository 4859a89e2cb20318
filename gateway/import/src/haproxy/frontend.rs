//! Frontends, backends and `listen` sections, as listeners, hosts and routes.

use super::acl::{Acls, Atom, Files, Left, Match, Remarks, Test};
use super::binds::{self, Bound, Context, Defaults, blocks};
use super::errors;
use super::parser::{Line, Proxy, Section};
use super::rules::{self, Exception, Limit, Outcome as Applied, Rule, Then, Trace, What};
use super::servers;
use crate::addresses::{Access, AddressSet, Clients};
use crate::output::{
    Action, Entry, ErrorPage, Host, Methods, Output, Path, Route, Settings, Upstream, in_order, quoted,
};
use crate::paths::{self, Budget, Elsewhere, PathTest};
use crate::reader::Reader;
use crate::report::{Id, Place, Report};
use crate::units::haproxy_time;
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
    let acls: Vec<Acls> = proxies.iter().map(|p| Acls::of(p, Files { reader, base })).collect();
    for (_, line, _) in acls.iter().flat_map(|a| a.named.values().flatten()) {
        report.same(line.id, "put into the rules that use it");
    }
    let mut shared = Shared {
        tables: BTreeMap::new(),
        groups: BTreeMap::new(),
        rules: BTreeMap::new(),
        pages: BTreeMap::new(),
        sections: BTreeMap::new(),
    };
    let files = errors::Files { sections, reader, base };
    for proxy in proxies.iter().filter(|p| !p.is_tcp()) {
        shared.pages.insert(proxy.section.id, errors::pages(proxy, &files, out, report));
    }
    for (proxy, acls) in proxies.iter().zip(&acls) {
        let name = proxy.section.name.clone();
        if let Some(l) = proxy.own().find(|l| l.word(0) == "stick-table") {
            shared.tables.insert(name.clone(), l);
        }
        if proxy.section.kind != "frontend" {
            shared.groups.insert(name.clone(), servers::upstream(proxy, proxy.is_tcp(), base, report));
            shared.sections.insert(name.clone(), proxy.section.id);
        }
        if proxy.section.kind != "frontend" {
            if proxy.section.kind == "backend" {
                connections(proxy, acls, &shared.tables, out, report);
            }
            let mut found = rules::rules(proxy, acls, report);
            // A `listen` that is a backend has its other rules, too.
            found.retain(|r| !matches!(r.what, What::Backend(_)));
            shared.rules.insert(name, found);
        }
    }
    let mut budget = Budget::default();
    for (proxy, acls) in proxies.iter().zip(&acls).filter(|(p, _)| p.section.kind != "backend") {
        frontend(proxy, acls, &shared, defaults, reader, base, &mut budget, out, report);
    }
}

/// Changes to responses, and `hsts`.
type Changes = (crate::output::Edits, Option<(String, Place)>);

/// What frontends refer to.
struct Shared<'l> {
    tables: BTreeMap<String, &'l Line>,
    groups: BTreeMap<String, Option<Upstream>>,
    /// The rules of backends.
    rules: BTreeMap<String, Vec<Rule<'l>>>,
    /// The pages of each proxy, by status.
    pages: BTreeMap<Id, BTreeMap<u16, ErrorPage>>,
    /// The sections of backends.
    sections: BTreeMap<String, Id>,
}

impl Shared<'_> {
    /// The pages of a backend, and those of the frontend for other statuses.
    fn pages(&self, frontend: Id, backend: &str) -> Vec<ErrorPage> {
        let of = |id: &Id| self.pages.get(id).cloned().unwrap_or_default();
        let mut all = of(&frontend);
        all.extend(self.sections.get(backend).map(of).unwrap_or_default());
        all.into_values().collect()
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
    out: &mut Output,
    report: &mut Report,
) {
    let tcp = proxy.is_tcp();
    if let Some(l) = proxy.last(&["disabled"]) {
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
    let all = reached(&found, &then);
    let names = hosts(&all);
    let tests: Vec<&PathTest> = if tcp { Vec::new() } else { path_tests(&all) };
    if names.len() * (tests.len() + 1) * bound.len() > MAX_ATOMS || all.len() > MAX_RULES {
        return report.decide(proxy.section.id, "its rules distinguish too many hosts and paths: split the frontend");
    }
    let cost = all.iter().map(|r| r.condition.cost() + 1).sum();
    let monitor = proxy.last(&["monitor-uri"]);
    let mut hosts: Vec<(String, Host)> = Vec::new();
    for b in &bound {
        for name in &names {
            let mut routes: Vec<Route> = Vec::new();
            let mut written: Vec<(Path, String)> = Vec::new();
            let tls = b.tls || tcp;
            let decide = |path: &str, one: Option<&str>| {
                let path = Some(path).filter(|_| !tcp);
                then.trace(&found, &Atom { tls, port: b.port, host: name, path, one })
            };
            let restricts = |t: &Trace| t.restrictions().next().is_some();
            let Some(plan) = paths::plan(&tests, cost, budget, decide, restricts) else {
                return report
                    .decide(proxy.section.id, "its rules distinguish too many hosts and paths: split the frontend");
            };
            plan.elsewhere.iter().for_each(|e| elsewhere(e, proxy, report));
            for (path, sample, _) in &plan.routes {
                let path_of = Some(sample.as_str()).filter(|_| !tcp);
                let one = path_of.filter(|_| matches!(path, Path::Exact(_)));
                let atom = Atom { tls, port: b.port, host: name, path: path_of, one };
                let applied = rules::apply(&found, &then, &atom, path, report);
                let Some(made) = routes_of(path, applied, tcp, proxy, shared, out, report) else {
                    report.decide(
                        proxy.section.id,
                        "routes cannot express the order of these conditions on methods and headers: write one route for each case",
                    );
                    continue;
                };
                // The same as what is around it: no route of its own.
                let shape = shape(&made);
                let around = written.iter().filter(|(p, _)| is_around(p, path)).max_by_key(|(p, _)| len(p));
                if around.is_some_and(|(_, s)| *s == shape) {
                    continue;
                }
                written.push((path.clone(), shape));
                routes.extend(made);
            }
            if let Some(l) = monitor {
                let ok = Action::Respond {
                    status: 200,
                    body: "<html><body><h1>200 OK</h1>\nService ready.\n</body></html>\n".to_owned(),
                    content_type: Some("text/html".to_owned()),
                };
                routes.retain(|r| r.path != Path::Exact(l.word(1).to_owned()));
                if l.word(1).starts_with('/') {
                    routes.push(Route::new(Path::Exact(l.word(1).to_owned()), ok, &l.place));
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
}

/// `tcp-request connection expect-proxy layer4 if { src … }`.
fn trusted(proxy: &Proxy, report: &mut Report) -> Vec<String> {
    let mut out = Vec::new();
    for l in proxy.all().filter(|l| l.is(&["tcp-request", "connection", "expect-proxy"])) {
        match l.from(3) {
            [layer, iff, open, src, values @ .., close]
                if layer == "layer4" && iff == "if" && open == "{" && src == "src" && close == "}" =>
            {
                match blocks(values) {
                    Some(found) => {
                        out.extend(found);
                        report.differs(
                            l.id,
                            "trusted_proxies: on a bind with accept-proxy, connections from other addresses are refused",
                        );
                    }
                    None => report.decide(l.id, "write the addresses of the load balancers in trusted_proxies"),
                }
            }
            _ => report.decide(l.id, "write the addresses of the load balancers in trusted_proxies"),
        }
    }
    out
}

/// Rules on connections: the clients whose connections are closed. Those of backends apply to some requests only.
fn connections<'l>(
    proxy: &Proxy<'l>,
    acls: &Acls<'l>,
    tables: &BTreeMap<String, &'l Line>,
    out: &mut Output,
    report: &mut Report,
) -> Access {
    let mut access = Access::default();
    let mut passed: BTreeMap<&str, AddressSet> = BTreeMap::new();
    let mut ended: BTreeSet<&str> = BTreeSet::new();
    let proxied = proxy.own().any(|l| l.word(0) == "bind" && l.words.iter().any(|w| w == "accept-proxy"));
    for l in proxy.all().filter(|l| l.word(0) == "tcp-request") {
        let (level, action) = (l.word(1), l.word(2));
        if ended.contains(level) {
            report.same(l.id, "not reached: the rule before it applies to all");
            continue;
        }
        match (level, action) {
            ("inspect-delay", _) => report.same(l.id, "[limits] handshake_timeout"),
            ("content" | "connection" | "session", action) if action.starts_with("track-sc") => {
                report.same(l.id, "counted by the limits");
            }
            ("content" | "connection" | "session", "accept" | "reject" | "silent-drop") => {
                let at = l.words.iter().position(|w| w == "if" || w == "unless").unwrap_or(l.words.len());
                let left = (at == 3).then(|| about_clients(l, acls)).flatten();
                // Before the PROXY protocol the address is that of the load balancer, and a backend's rules are not for all.
                let unseen = proxied && level == "connection" || proxy.section.kind == "backend";
                let accepts = action == "accept";
                let before = passed.get(level).cloned().unwrap_or_default();
                match left {
                    Some(Left::Never) => report.same(l.id, "it never applies"),
                    Some(Left::Always) if accepts => {
                        report.same(l.id, "the gateway always waits for the name in the ClientHello");
                        ended.insert(level);
                    }
                    Some(Left::Clients(clients)) if accepts && !unseen && clients.set().is_some() => {
                        report.same(l.id, "allow and deny of the listener");
                        passed.insert(level, before.union(&clients.set().unwrap_or_default()));
                    }
                    Some(Left::Always) if !unseen && !before.is_empty() => {
                        refuse(&mut access, Some(Clients::NotIn(before.into())), l, report);
                        ended.insert(level);
                    }
                    Some(Left::Clients(clients)) if !accepts && !unseen => {
                        let others = Clients::NotIn(before.clone().into());
                        let refused = if before.is_empty() { Some(clients) } else { clients.and(&others) };
                        refuse(&mut access, refused, l, report);
                    }
                    _ if accepts => report.decide(
                        l.id,
                        "this rule lets connections skip the rules after it: write hosts and listeners that express which clients reach which servers",
                    ),
                    _ => limited(l, proxy, tables, out, report),
                }
            }
            ("connection", "expect-proxy") => {}
            ("content" | "connection" | "session", action) if action.starts_with("set-var") => {
                report.missing(l.id, "there are no variables");
            }
            _ => report.decide(l.id, crate::report::UNREAD),
        }
    }
    access
}

/// What is left of the condition of a rule on connections, where it is about addresses alone.
fn about_clients(l: &Line, acls: &Acls) -> Option<Left> {
    let condition = acls.condition(l.section, l.from(3), &mut Remarks::default())?;
    let alone = condition.tests().all(|t| matches!(t, Test::Always(_) | Test::Source(_)));
    alone.then(|| condition.of(&Atom { tls: false, port: 0, host: "*", path: None, one: None }))
}

/// Closes the connections of clients.
fn refuse(access: &mut Access, clients: Option<Clients>, l: &Line, report: &mut Report) {
    match clients.map(|clients| access.refuse(&clients, &l.place)) {
        Some(Ok(())) => report.same(l.id, "allow and deny of the listener"),
        _ => report.decide(l.id, "these lists of addresses cannot be joined with others: write \"allow\" and \"deny\""),
    }
}

/// A rule that refuses connections by their number or their rate.
fn limited<'l>(
    l: &'l Line,
    proxy: &Proxy<'l>,
    tables: &BTreeMap<String, &'l Line>,
    out: &mut Output,
    report: &mut Report,
) {
    // { src_conn_cur gt 20 }, { sc_conn_rate(0) gt 20 }
    let [iff, open, fetch, than, n, close] = l.from(3) else { return refused(l, report) };
    let n: Option<u32> = n.parse().ok();
    let n = match than.as_str() {
        "gt" => n,
        "ge" => n.and_then(|n| n.checked_sub(1)),
        _ => None,
    };
    let Some(n) = n.filter(|_| iff == "if" && open == "{" && close == "}") else { return refused(l, report) };
    if is_conn_cur(fetch, proxy) && (1..=1_000_000).contains(&n) {
        let key = "max_connections_per_client";
        let there = out.limits.value(key).and_then(|v| v.parse::<u32>().ok());
        // The strictest of several holds for all.
        if there.is_none_or(|there| n < there) {
            out.limits.set(key, n.to_string(), &l.place);
        }
        return report.differs(
            l.id,
            "[limits] max_connections_per_client: connections of a client to all listeners together, the smallest number of all sections",
        );
    }
    let Some((table, rate)) = connection_rate(fetch, n, proxy, tables) else { return refused(l, report) };
    let per_hour = |rate: &str| rate_per_hour(rate.trim_matches('"'));
    if out
        .limits
        .value("connection_rate")
        .and_then(per_hour)
        .is_none_or(|there| per_hour(&rate).is_some_and(|r| r < there))
    {
        out.limits.set("connection_rate", quoted(&rate), &l.place);
        out.limits.set("connection_burst", n.clamp(1, 1_000_000).to_string(), &l.place);
    }
    report.differs(table.id, "[limits] connection_rate: a rate with a burst, not a count in a sliding period");
    report.differs(l.id, "[limits] connection_rate: connections of a client to all listeners together, the smallest rate of all sections");
}

fn refused(l: &Line, report: &mut Report) {
    report.decide(
        l.id,
        "connections are refused by address (allow, deny), by [limits] (max_connections_per_client, connection_rate, handshake_rate) and \
         by client certificates: write what takes its place",
    );
}

/// The rate of connections beyond which a fetch refuses more than `n` in the period of its table.
fn connection_rate<'l>(
    fetch: &str,
    n: u32,
    proxy: &Proxy<'l>,
    tables: &BTreeMap<String, &'l Line>,
) -> Option<(&'l Line, String)> {
    let (name, argument) = match fetch.split_once('(') {
        Some((name, rest)) => (name, rest.strip_suffix(')')?),
        None => (fetch, ""),
    };
    let own = proxy.section.name.as_str();
    let table = match (name, argument) {
        ("src_conn_rate", "") => own,
        ("src_conn_rate", table) => table,
        ("sc_conn_rate", number) => tracked(number.parse().ok()?, proxy)?.after("table").unwrap_or(own),
        ("sc0_conn_rate" | "sc1_conn_rate" | "sc2_conn_rate", "") => {
            tracked(name[2..3].parse().ok()?, proxy)?.after("table").unwrap_or(own)
        }
        _ => return None,
    };
    let line = *tables.get(table)?;
    Some((line, rate_of(line, "conn_rate", n)?))
}

/// A rate of Sealane, from the number of events in the period of a stick table.
fn rate_of(line: &Line, counter: &str, n: u32) -> Option<String> {
    if !matches!(line.after("type"), Some("ip" | "ipv6")) {
        return None;
    }
    // `store` may come several times, each with several counters.
    let stored = line.words.iter().flat_map(|w| w.split(','));
    let period = stored.filter_map(|w| w.strip_prefix(counter)).find_map(|w| w.strip_prefix('(')?.strip_suffix(')'))?;
    let text = haproxy_time(period)?;
    let amount: u64 = text.trim_end_matches(char::is_alphabetic).parse().ok()?;
    let seconds = match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        "s" => amount,
        "m" => amount.checked_mul(60)?,
        "h" => amount.checked_mul(3600)?,
        _ => return None,
    };
    let per_minute = (u64::from(n) * 60).checked_div(seconds)?.max(1);
    Some(match u64::from(n) * 60 % seconds {
        0 => format!("{per_minute}/m"),
        _ => format!("{}/h", (u64::from(n) * 3600 / seconds).max(1)),
    })
}

/// A rate of Sealane, to be compared.
fn rate_per_hour(rate: &str) -> Option<u64> {
    let (n, per) = rate.split_once('/')?;
    let n: u64 = n.parse().ok()?;
    match per {
        "s" => n.checked_mul(3600),
        "m" => n.checked_mul(60),
        _ => Some(n),
    }
}

/// Whether a fetch is the number of a client's connections.
fn is_conn_cur(fetch: &str, proxy: &Proxy) -> bool {
    if fetch == "src_conn_cur" {
        return true;
    }
    let counter = match fetch.strip_prefix("sc_conn_cur(").and_then(|f| f.strip_suffix(')')) {
        Some(n) => n,
        None => match fetch {
            "sc0_conn_cur" => "0",
            "sc1_conn_cur" => "1",
            "sc2_conn_cur" => "2",
            _ => return false,
        },
    };
    counter.parse().is_ok_and(|n| tracked(n, proxy).is_some())
}

/// The line that counts clients' addresses with a counter, where it is the only one of this number, and counts all of them.
fn tracked<'l>(counter: u8, proxy: &Proxy<'l>) -> Option<&'l Line> {
    let name = format!("track-sc{counter}");
    let mut found = proxy.all().filter(|l| {
        l.word(0) == "http-request" && l.word(1) == name || l.word(0) == "tcp-request" && l.word(2) == name
    });
    let line = found.next()?;
    let at = if line.word(0) == "http-request" { 2 } else { 3 };
    let plain = match line.from(at) {
        [src] => src == "src",
        [src, table, _] => src == "src" && table == "table",
        _ => false,
    };
    (found.next().is_none() && plain).then_some(line)
}

/// All rules that requests of a frontend meet.
fn reached<'r, 'l>(found: &'r [Rule<'l>], then: &Then<'r, 'l>) -> Vec<&'r Rule<'l>> {
    let chosen =
        found.iter().filter_map(|r| if let What::Backend(name) = &r.what { Some(name.as_str()) } else { None });
    let mut names: BTreeSet<&str> = chosen.collect();
    names.extend(then.default.map(|(name, _)| name));
    names.remove(then.own);
    let behind = names.into_iter().filter_map(|name| then.backends.get(name)).flatten();
    found.iter().chain(behind).collect()
}

/// Reports paths for which the routes do something else than HAProxy.
fn elsewhere(e: &Elsewhere<Trace>, proxy: &Proxy, report: &mut Report) {
    // The rule in which they differ.
    let of = |a: &Trace, b: &Trace| a.fired.iter().find(|f| !b.fired.contains(f)).map(|f| f.0);
    let id = of(&e.there, &e.here).or_else(|| of(&e.here, &e.there)).unwrap_or(proxy.section.id);
    let path = &e.path;
    match e.there.may_become(&e.here) {
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
            if let Test::Host(names) | Test::ServerName(names) = test {
                out.extend(names.iter().cloned());
            }
        }
    }
    let mut out: Vec<String> = out.into_iter().collect();
    out.push("*".to_owned());
    out
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

fn len(path: &Path) -> usize {
    match path {
        Path::Below(p) | Path::Exact(p) => p.trim_end_matches('/').len(),
    }
}

/// Whether the requests of `inner` are among those of `outer`.
fn is_around(outer: &Path, inner: &Path) -> bool {
    let (Path::Below(o), Path::Below(i) | Path::Exact(i)) = (outer, inner) else { return false };
    let (o, i) = (o.trim_end_matches('/'), i.trim_end_matches('/'));
    i.strip_prefix(o).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What makes routes the same but for their paths.
fn shape(routes: &[Route]) -> String {
    let one = |r: &Route| {
        let rewrite = r.rewrite.as_ref().map(|w| &w.0);
        let limits: Vec<_> = r.rate_limits.iter().map(|l| &l.0).collect();
        let hsts = r.hsts.as_ref().map(|h| &h.0);
        let (changes, checks, pattern) = (r.changes(), r.checks(), &r.pattern);
        format!(
            "{pattern:?} {:?} {:?} {:?} {rewrite:?} {limits:?} {hsts:?} {changes} {checks}",
            r.methods, r.headers, r.action
        )
    };
    routes.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// The routes of a path. `None`: no routes say this.
fn routes_of(
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
        (Action::Upstream(_), Some((backend, _))) => shared.pages(proxy.section.id, backend),
        _ => Vec::new(),
    };
    let (action, origin) = match (&applied.action, &applied.backend) {
        (Some((action, place)), _) => (action.clone(), place.clone()),
        (None, Some((backend, place))) => (to(backend, place, host.as_ref(), report), place.clone()),
        (None, None) => (Action::status(503), proxy.section.place.clone()),
    };
    // A connection that is relayed nowhere is closed, which needs no host.
    if tcp && !matches!(action, Action::Passthrough(_)) {
        return Some(Vec::new());
    }
    let mut main = Route::new(path.clone(), action, &origin);
    main.pages = pages(&main.action, applied.backend.as_ref());
    (main.access, main.basic_auth) = (applied.access, applied.basic_auth);
    if let Action::Upstream(_) = main.action {
        main.request = applied.request;
        main.rewrite = applied.rewrite.filter(|_| matches!(path, Path::Below(_)));
    }
    let passed = matches!(main.action, Action::Upstream(_));
    (main.response, main.hsts) =
        responses(passed, (applied.response, applied.hsts), (applied.after, applied.after_hsts));
    let mut entries = Vec::new();
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
        (other.headers, other.pattern) = (headers, pattern);
        (other.access, other.basic_auth) = (then.access, then.basic_auth);
        if let Action::Upstream(_) = other.action {
            other.request = then.request;
            other.rewrite = then.rewrite.filter(|_| matches!(path, Path::Below(_)));
        }
        let passed = matches!(other.action, Action::Upstream(_));
        (other.response, other.hsts) = responses(passed, (then.response, then.hsts), (then.after, then.after_hsts));
        for Limit { id, .. } in then.rates {
            report.decide(id, "a limit of a backend is not translated where the backend is chosen by method or header; write a [[rate_limit]]");
        }
        entries.push(Entry { methods, route: other });
    }
    for limit in applied.rates {
        // A limit holds for all requests of the path, and is the frontend's.
        let found =
            (limit.section == proxy.section.id).then(|| rate_limit(&limit, proxy, shared, out, report)).flatten();
        match found {
            Some(name) => {
                report.differs(limit.id, "rate_limit: 429 with Retry-After, counted by client address");
                entries.iter_mut().for_each(|e| e.route.rate_limits.push((name.clone(), limit.place.clone())));
                main.rate_limits.push((name, limit.place));
            }
            None => report.decide(limit.id, "what this counter counts is not understood; write a [[rate_limit]]"),
        }
    }
    entries.push(Entry { methods: Methods::Any, route: main });
    in_order(entries)
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

/// The `[[rate_limit]]` of a frontend's stick table.
fn rate_limit(limit: &Limit, proxy: &Proxy, shared: &Shared, out: &mut Output, report: &mut Report) -> Option<String> {
    let n = limit.requests;
    // The table is the proxy's own, or the one that the rule which counts names. It counts before the limit is looked at.
    let track = tracked(limit.counter.0, proxy)?;
    if track.word(0) == "http-request" && track.id >= limit.id {
        return None;
    }
    let table = track.after("table").unwrap_or(&proxy.section.name).to_owned();
    let line = *shared.tables.get(&table)?;
    let rate = rate_of(line, "http_req_rate", n)?;
    let name = format!("{table}-{n}");
    report.differs(line.id, "[[rate_limit]]: a rate with a burst, not a count in a sliding period");
    if !out.rate_limits.iter().any(|l| l.value("name") == Some(quoted(&name).as_str())) {
        let mut limit = Settings::default();
        limit.set("name", quoted(&name), &line.place);
        limit.set("rate", quoted(&rate), &line.place);
        limit.set("burst", n.clamp(1, 1_000_000).to_string(), &line.place);
        limit.set("key", "\"address\"", &line.place);
        limit.set("ipv6_prefix", "128", &line.place);
        out.rate_limits.push(limit);
    }
    Some(name)
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
        report.missing(proxy.section.id, format!("the backend \"{backend}\" has another mode; requests get 503"));
        return Action::status(503);
    }
    let name = out.upstream(group);
    if tcp { Action::Passthrough(name) } else { Action::Upstream(name) }
}
