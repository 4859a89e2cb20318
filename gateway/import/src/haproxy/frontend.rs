//! Frontends, backends and `listen` sections, as listeners, hosts and routes.

use super::acl::{Acls, Atom, Test};
use super::binds::{self, Bound, Context, Defaults, blocks};
use super::parser::{Line, Proxy, Section};
use super::rules::{self, Exception, Outcome as Applied, Rule, What};
use super::servers;
use crate::output::{Action, Host, Output, Path, Route, Settings, Upstream, quoted};
use crate::reader::Reader;
use crate::report::{Place, Report};
use crate::units::haproxy_time;
use std::collections::{BTreeMap, BTreeSet};

/// Most hosts and paths that the rules of one frontend tell apart.
const MAX_ATOMS: usize = 5000;

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
    let acls: Vec<Acls> = proxies.iter().map(Acls::of).collect();
    for (_, line, _) in acls.iter().flat_map(|a| a.named.values().flatten()) {
        report.same(line.id, "put into the rules that use it");
    }
    let mut shared = Shared { tables: BTreeMap::new(), groups: BTreeMap::new(), rules: BTreeMap::new() };
    for (proxy, acls) in proxies.iter().zip(&acls) {
        let name = proxy.section.name.clone();
        if let Some(l) = proxy.own().find(|l| l.word(0) == "stick-table") {
            shared.tables.insert(name.clone(), l);
        }
        if proxy.section.kind != "frontend" {
            shared.groups.insert(name.clone(), servers::upstream(proxy, proxy.is_tcp(), base, report));
        }
        if proxy.section.kind == "backend" {
            connections(proxy, acls, out, report);
            let found = rules::rules(proxy, acls, report);
            shared.rules.insert(name, found);
        }
    }
    for (proxy, acls) in proxies.iter().zip(&acls).filter(|(p, _)| p.section.kind != "backend") {
        frontend(proxy, acls, &shared, defaults, reader, base, out, report);
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
}

#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn frontend<'l>(
    proxy: &Proxy<'l>,
    acls: &Acls<'l>,
    shared: &Shared<'l>,
    defaults: &Defaults,
    reader: &dyn Reader,
    base: &std::path::Path,
    out: &mut Output,
    report: &mut Report,
) {
    let tcp = proxy.is_tcp();
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
        let Some((l, b, quic)) = binds::bind(line, &context, report) else { continue };
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
        bound.push(b);
    }
    if bound.is_empty() {
        return report.missing(proxy.section.id, "has no address to listen on");
    }
    report.same(proxy.section.id, "[[listener]] and [[host]]");
    for l in proxy.all().filter(|l| l.word(0) == "maxconn") {
        report.differs(l.id, "connections are limited per lane, for all listeners together ([limits] max_connections)");
    }
    out.listeners.extend(listeners);
    let found = rules::rules(proxy, acls, report);
    let own = (proxy.section.kind == "listen").then(|| (proxy.section.name.clone(), proxy.section.place.clone()));
    let default = proxy.last(&["default_backend"]);
    if let Some(l) = default {
        report.same(l.id, "upstream");
    }
    let default = default.map(|l| (l.word(1).to_owned(), l.place.clone())).or(own);
    connections(proxy, acls, out, report);
    let names = hosts(&found, shared);
    let paths = if tcp { vec![Path::Below("/".to_owned())] } else { paths(&found, shared) };
    if names.len() * paths.len() * bound.len() > MAX_ATOMS {
        return report.decide(proxy.section.id, "its rules tell too many hosts and paths apart: split the frontend");
    }
    let monitor = proxy.last(&["monitor-uri"]);
    let mut hosts: Vec<(String, Host)> = Vec::new();
    for b in &bound {
        for name in &names {
            let mut routes: Vec<Route> = Vec::new();
            let mut written: Vec<(Path, String)> = Vec::new();
            for path in &paths {
                let atom = Atom { tls: b.tls, port: b.port, host: name, path };
                let default = default.as_ref().map(|(n, p)| (n.as_str(), p));
                let applied = rules::apply(&found, &shared.rules, default, &atom, report);
                let made = routes_of(path, applied, tcp, proxy, shared, out, report);
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
                            "trusted_proxies: connections from elsewhere are refused where the bind has accept-proxy",
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

/// Rules on connections.
fn connections<'l>(proxy: &Proxy<'l>, acls: &Acls<'l>, out: &mut Output, report: &mut Report) {
    for l in proxy.all().filter(|l| l.word(0) == "tcp-request") {
        match (l.word(1), l.word(2)) {
            ("inspect-delay", _) => report.same(l.id, "[limits] handshake_timeout"),
            ("content" | "connection" | "session", action) if action.starts_with("track-sc") => {
                report.same(l.id, "counted by the limits");
            }
            ("content", "accept") => {
                let at = l.words.iter().position(|w| w == "if").unwrap_or(l.words.len());
                let condition = acls.condition(l.from(at), &mut super::acl::Remarks::default());
                let harmless = condition.is_some_and(|c| c.tests().all(|t| *t == Test::Always(true)));
                match harmless {
                    true => report.same(l.id, "the name in the ClientHello is always waited for"),
                    false => report.decide(
                        l.id,
                        "it lets connections past the rules behind it: say by hosts and listeners who gets where",
                    ),
                }
            }
            ("content" | "connection" | "session", "reject" | "silent-drop") => {
                // { src_conn_cur gt 20 }, { sc_conn_cur(0) gt 20 }
                let words = l.from(3);
                match words {
                    [iff, open, fetch, gt, n, close]
                        if iff == "if" && open == "{" && close == "}" && gt == "gt" && fetch.contains("conn_cur") =>
                    {
                        match n.parse::<u32>() {
                            Ok(n @ 1..=1_000_000) => {
                                out.limits.set("max_connections_per_client", n.to_string(), &l.place);
                                report.differs(l.id, "[limits] max_connections_per_client: connections of a client to all listeners together");
                            }
                            _ => report.decide(l.id, "write [limits] max_connections_per_client"),
                        }
                    }
                    _ => report.decide(
                        l.id,
                        "connections are refused by [limits] (max_connections_per_client, connection_rate, handshake_rate), by client \
                         certificates, or by a firewall: write what takes its place",
                    ),
                }
            }
            ("connection", "expect-proxy") => {}
            ("content", "set-var") => report.missing(l.id, "there are no variables"),
            _ => report.decide(l.id, "is not understood: say what it does with settings of Sealane, or leave it out"),
        }
    }
}

/// The hosts that rules tell apart.
fn hosts(found: &[Rule], shared: &Shared) -> Vec<String> {
    let mut out: BTreeSet<String> = BTreeSet::new();
    for rule in found.iter().chain(shared.rules.values().flatten()) {
        for test in rule.condition.tests() {
            if let Test::Host(names) = test {
                out.extend(names.iter().cloned());
            }
        }
    }
    let mut out: Vec<String> = out.into_iter().collect();
    out.push("*".to_owned());
    out
}

/// The paths that rules tell apart, those around others first.
fn paths(found: &[Rule], shared: &Shared) -> Vec<Path> {
    let mut out: Vec<Path> = vec![Path::Below("/".to_owned())];
    let mut add = |path: Path| {
        let text = match &path {
            Path::Below(p) | Path::Exact(p) => p,
        };
        let good = text.starts_with('/')
            && !text.contains(['*', '?', '#', '%', '\\', ';'])
            && text.bytes().all(|b| b.is_ascii_graphic());
        if good && !out.contains(&path) {
            out.push(path);
        }
    };
    for rule in found.iter().chain(shared.rules.values().flatten()) {
        for test in rule.condition.tests() {
            match test {
                Test::PathBegins(texts) => {
                    for text in texts {
                        let bare = text.trim_end_matches('/');
                        if !bare.is_empty() {
                            add(Path::Below(bare.to_owned()));
                            if bare.len() < text.len() {
                                add(Path::Exact(bare.to_owned()));
                            }
                        }
                    }
                }
                Test::Path(texts) => texts.iter().for_each(|t| add(Path::Exact(t.clone()))),
                _ => {}
            }
        }
        if let What::Prefix { from, .. } = &rule.what {
            add(Path::Below(from.clone()));
        }
    }
    out.sort_by_key(|p| (len(p), matches!(p, Path::Exact(_))));
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
        format!("{:?} {:?} {:?} {rewrite:?} {limits:?} {hsts:?} {}", r.methods, r.headers, r.action, r.changes())
    };
    routes.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// The routes of a path.
fn routes_of(
    path: &Path,
    applied: Applied,
    tcp: bool,
    proxy: &Proxy,
    shared: &Shared,
    out: &mut Output,
    report: &mut Report,
) -> Vec<Route> {
    let host = applied.host.clone();
    let mut to = |backend: &str, place: &Place, host: Option<&(String, Place)>, report: &mut Report| {
        upstream(backend, place, tcp, host, shared, proxy, out, report)
    };
    let (action, origin) = match (&applied.action, &applied.backend) {
        (Some((action, place)), _) => (action.clone(), place.clone()),
        (None, Some((backend, place))) => (to(backend, place, host.as_ref(), report), place.clone()),
        (None, None) => (Action::status(503), proxy.section.place.clone()),
    };
    // A connection that is relayed nowhere is closed, which needs no host.
    if tcp && !matches!(action, Action::Passthrough(_)) {
        return Vec::new();
    }
    let mut main = Route::new(path.clone(), action, &origin);
    if let Action::Upstream(_) = main.action {
        main.request = applied.request;
        main.rewrite = applied.rewrite.filter(|_| matches!(path, Path::Below(_)));
    }
    let passed = matches!(main.action, Action::Upstream(_));
    (main.response, main.hsts) =
        responses(passed, (applied.response, applied.hsts), (applied.after, applied.after_hsts));
    let mut routes = Vec::new();
    for Exception { methods, headers, then, place } in applied.exceptions {
        let action = match (then.action, then.backend) {
            (Some((action, _)), _) => action,
            (None, Some((backend, place))) => to(&backend, &place, then.host.as_ref(), report),
            (None, None) => continue,
        };
        let mut other = Route::new(path.clone(), action, &place);
        (other.methods, other.headers) = (methods, headers);
        if let Action::Upstream(_) = other.action {
            other.request = then.request;
            other.rewrite = then.rewrite.filter(|_| matches!(path, Path::Below(_)));
        }
        let passed = matches!(other.action, Action::Upstream(_));
        (other.response, other.hsts) = responses(passed, (then.response, then.hsts), (then.after, then.after_hsts));
        for (.., id, _) in then.rates {
            report.decide(id, "a limit of a backend is not translated where the backend is chosen by method or header; write a [[rate_limit]]");
        }
        if !routes.iter().any(|r: &Route| r.conditions() == other.conditions()) {
            routes.push(other);
        }
    }
    let mut routes = crate::output::in_order(routes);
    for (n, id, place) in applied.rates {
        match rate_limit(n, proxy, shared, out, report) {
            Some(name) => {
                report.differs(id, "rate_limit: 429 with Retry-After, counted by client address");
                routes.iter_mut().for_each(|r| r.rate_limits.push((name.clone(), place.clone())));
                main.rate_limits.push((name, place));
            }
            None => report.decide(id, "the table of this counter is not understood; write a [[rate_limit]]"),
        }
    }
    routes.push(main);
    routes
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
fn rate_limit(n: u32, proxy: &Proxy, shared: &Shared, out: &mut Output, report: &mut Report) -> Option<String> {
    // The table is the proxy's own, or the one that the rule which counts names.
    let track = proxy.all().find(|l| l.word(0) == "http-request" && l.word(1).starts_with("track-sc"));
    let table = match track {
        Some(l) => {
            if l.word(2) != "src" {
                return None;
            }
            l.after("table").unwrap_or(&proxy.section.name).to_owned()
        }
        None => proxy.section.name.clone(),
    };
    let line = *shared.tables.get(&table)?;
    if !matches!(line.after("type"), Some("ip" | "ipv6")) {
        return None;
    }
    let stored = line.after("store")?;
    let period = stored.split("http_req_rate(").nth(1)?.split(')').next()?;
    let text = haproxy_time(period)?;
    let amount: u64 = text.trim_end_matches(char::is_alphabetic).parse().ok()?;
    let seconds = match text.trim_start_matches(|c: char| c.is_ascii_digit()) {
        "s" => amount,
        "m" => amount.checked_mul(60)?,
        "h" => amount.checked_mul(3600)?,
        _ => return None,
    };
    let per_minute = (u64::from(n) * 60).checked_div(seconds)?.max(1);
    let rate = match u64::from(n) * 60 % seconds {
        0 => format!("{per_minute}/m"),
        _ => format!("{}/h", (u64::from(n) * 3600 / seconds).max(1)),
    };
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
