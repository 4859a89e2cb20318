//! The main context and `http`: what holds for all servers.

use super::actions::PASSES;
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::{access, log, redirects, server, sockets, upstreams};
use crate::output::quoted;
use crate::report::Id;
use crate::units::{nginx_time, shown_size, size};
use std::collections::{BTreeMap, BTreeSet};

/// Translates an `http` block.
pub(super) fn http<'d>(import: &mut Import<'d>, block: &'d [Directive]) {
    let scope = Scope::of(block);
    for d in block {
        match (d.name(), d.word(1)) {
            ("upstream", Some(name)) => {
                import.upstreams.insert(name, d);
            }
            ("map", Some(_)) => {
                if let Some(variable) = d.word(2).and_then(|v| v.strip_prefix('$')) {
                    import.maps.insert(variable, d);
                }
            }
            ("split_clients", Some(_)) => {
                if let Some(variable) = d.word(2).and_then(|v| v.strip_prefix('$')) {
                    import.splits.insert(variable, d);
                }
            }
            ("geo", Some(_)) => {
                if let Some(variable) = d.arguments().last().and_then(|v| v.strip_prefix('$')) {
                    import.geos.insert(variable, d);
                }
            }
            ("limit_req_zone" | "limit_conn_zone", Some(_)) => {
                let zone = d.arguments().into_iter().find_map(|a| a.strip_prefix("zone="));
                let Some(zone) = zone.and_then(|z| z.split(':').next()) else { continue };
                match d.name() {
                    "limit_req_zone" => import.zones.insert(zone.to_owned(), d),
                    _ => import.connection_zones.insert(zone.to_owned(), d),
                };
            }
            _ => {}
        }
    }
    websocket_maps(import);
    body_size(import, &scope);
    access::bursts(import, block);
    access::open_requests(import, block);
    let servers: Vec<&'d Directive> = block.iter().filter(|d| d.name() == "server").collect();
    let sockets = sockets::sockets(import, block, &servers);
    if let Some(inner) = &mut import.inner {
        inner.taken.extend(sockets.iter().map(|socket| socket.port));
    }
    for socket in &sockets {
        server::listener(import, &scope, &servers, socket);
    }
    for index in 0..servers.len() {
        server::hosts(import, &scope, &servers, index, &sockets);
    }
    limits(import, block);
    other_body_sizes(import, block);
    access::other_limits(import, block);
    redirects::others(import, block);
    log::log(import, block);
    let mut resolvers = Vec::new();
    everywhere(block, &["resolver"], &mut resolvers);
    for (at, d) in resolvers.into_iter().enumerate() {
        match at {
            0 => resolver(import, d),
            _ => import.differs(d, "there is one resolver for all upstreams: the resolver of the first directive"),
        }
    }
    upstreams::unused(import);
}

/// `map $http_upgrade $connection_upgrade`: WebSocket needs no setting here.
fn websocket_maps(import: &mut Import) {
    let maps: Vec<_> = import.maps.values().copied().filter(|d| d.word(1) == Some("$http_upgrade")).collect();
    for d in maps {
        import.same(d, "WebSocket needs no setting");
    }
}

fn resolver(import: &mut Import, d: &Directive) {
    let address = d.word(1).unwrap_or("");
    let good = address.parse::<std::net::SocketAddr>().is_ok()
        || address.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    if !good {
        return import
            .missing(d, "a resolver must be an IP address; without one, Sealane asks the servers of /etc/resolv.conf");
    }
    let bare = if address.parse::<std::net::SocketAddr>().is_ok() { address } else { address.trim_matches(['[', ']']) };
    import.out.top.set("resolver", quoted(bare), &d.place);
    let several = d.arguments().iter().skip(1).any(|a| !a.contains('='));
    match several {
        true => import.differs(d, "resolver: only the first server is asked"),
        false => import.same(d, "resolver"),
    }
}

/// Every directive of these names in a tree. The tree's depth is bounded by the parser.
pub(super) fn everywhere<'d>(block: &'d [Directive], names: &[&str], out: &mut Vec<&'d Directive>) {
    for d in block {
        if names.contains(&d.name()) {
            out.push(d);
        }
        everywhere(d.inner(), names, out);
    }
}

/// The same, but for those of `upstream`, which are about connections to servers.
fn of_clients<'d>(block: &'d [Directive], names: &[&str], out: &mut Vec<&'d Directive>) {
    for d in block.iter().filter(|d| d.name() != "upstream") {
        if names.contains(&d.name()) {
            out.push(d);
        }
        of_clients(d.inner(), names, out);
    }
}

/// For each block that passes requests on, the directives of a name that hold there.
pub(super) fn in_effect<'d>(block: &'d [Directive], name: &str) -> Vec<Vec<&'d Directive>> {
    fn visit<'d>(scope: &Scope<'d>, block: &'d [Directive], name: &str, out: &mut Vec<Vec<&'d Directive>>) {
        for d in block.iter().filter(|d| matches!(d.name(), "server" | "location" | "if" | "limit_except")) {
            let inner = scope.within(d.inner());
            if d.inner().iter().any(|d| PASSES.contains(&d.name()) || d.name() == "try_files") {
                out.push(inner.all(&[name]));
            }
            visit(&inner, d.inner(), name, out);
        }
    }
    let mut out = Vec::new();
    visit(&Scope::of(block), block, name, &mut out);
    out
}

/// How the values of a limit are read: as TOML, with a number by which they are compared.
type Read = fn(&str) -> Option<(u64, String)>;

fn time(text: &str) -> Option<(u64, String)> {
    // In NGINX the first word counts; a second one is for a header.
    let shown = nginx_time(text)?;
    let ms = shown.trim_end_matches(char::is_alphabetic).parse::<u64>().ok()?;
    let unit = match shown.trim_start_matches(|c: char| c.is_ascii_digit()) {
        "d" => 86_400_000,
        "h" => 3_600_000,
        "m" => 60_000,
        "s" => 1000,
        _ => 1,
    };
    (ms > 0).then(|| (ms * unit, quoted(&shown)))
}

fn number(text: &str) -> Option<(u64, String)> {
    text.parse::<u32>().ok().filter(|n| *n > 0).map(|n| (u64::from(n), n.to_string()))
}

/// The setting of `client_body_timeout` and `send_timeout`.
const IDLE: &str = "idle_timeout";
/// NGINX's default of both, in milliseconds.
const SILENCE: u64 = 60_000;

/// For each directive of a name the sites for which it holds; `None`: those for which none does.
fn sites(block: &[Directive], name: &str) -> BTreeMap<Option<Id>, BTreeSet<String>> {
    let scope = Scope::of(block);
    let mut out: BTreeMap<Option<Id>, BTreeSet<String>> = BTreeMap::new();
    for server in block.iter().filter(|d| d.name() == "server") {
        let mut own = Vec::new();
        everywhere(server.inner(), &[name], &mut own);
        let mut holding: BTreeSet<Option<Id>> = own.iter().map(|d| Some(d.id)).collect();
        holding.insert(scope.within(server.inner()).last(name).map(|d| d.id));
        let names = server.inner().iter().find(|d| d.name() == "server_name");
        let site = names.and_then(|d| d.word(1)).filter(|name| !name.is_empty());
        let site = site.map_or_else(|| server.place.to_string(), str::to_owned);
        for id in holding {
            out.entry(id).or_default().insert(site.clone());
        }
    }
    out
}

/// Says of a directive that clients of some sites may be silent for longer than in NGINX. `text`: how long, as TOML.
fn longer(import: &mut Import, d: &Directive, sites: &BTreeSet<String>, text: &str, original: &str) {
    import.differs(
        d,
        format!(
            "[limits] {IDLE} applies to all hosts, and the import writes the largest value, so slow or silent clients of {} can hold a \
             request for {} (NGINX: {original}). If the sites with the largest value do not need it, write a smaller one",
            crate::report::some_of(sites.iter()),
            text.trim_matches('"')
        ),
    );
}

/// Settings that Sealane has once for all hosts.
fn limits(import: &mut Import, block: &[Directive]) {
    let all: [(&[&str], &str, Read); 5] = [
        (&["client_header_timeout"], "header_timeout", time),
        (&["client_body_timeout", "send_timeout"], IDLE, time),
        (&["keepalive_timeout"], "keepalive_timeout", time),
        (&["keepalive_requests"], "max_requests", number),
        (&["http2_max_concurrent_streams"], "max_streams", number),
    ];
    for (names, key, read) in all {
        let mut found = Vec::new();
        of_clients(block, names, &mut found);
        let mut best: Option<(u64, String, &Directive)> = None;
        for d in &found {
            match d.word(1).and_then(read) {
                Some((n, text)) if best.as_ref().is_none_or(|(b, ..)| n > *b) => best = Some((n, text, d)),
                Some(_) => {}
                None => import.missing(d, format!("is not a value for [limits] {key}")),
            }
        }
        let Some((largest, text, d)) = best else { continue };
        let held: Vec<_> = names.iter().filter(|_| key == IDLE).map(|name| (*name, sites(block, name))).collect();
        import.out.limits.set(key, text.clone(), &d.place);
        // Where some have none of their own, NGINX's default holds for these.
        for d in &found {
            match d.word(1).and_then(read) {
                Some((n, _)) if n == largest => import.same(d, format!("[limits] {key}")),
                Some((_, own)) if key == IDLE => {
                    let there = held.iter().find(|(name, _)| *name == d.name());
                    match there.and_then(|(_, sites)| sites.get(&Some(d.id))) {
                        Some(sites) => longer(import, d, sites, &text, own.trim_matches('"')),
                        None => import.same(d, "no site has this value"),
                    }
                }
                Some(_) => import.differs_a_little(
                    d,
                    format!(
                        "[limits] {key} applies to all hosts: the import writes the largest value ({})",
                        text.trim_matches('"')
                    ),
                ),
                None => {}
            }
        }
        if key == IDLE && largest > SILENCE {
            for (name, sites) in &held {
                if let Some(silent) = sites.get(&None) {
                    longer(import, d, silent, &text, &format!("60s, the default of {name}"));
                }
            }
        }
    }
    let mut found = Vec::new();
    everywhere(block, &["large_client_header_buffers"], &mut found);
    for d in found {
        let (count, each) = (d.word(1).and_then(|n| n.parse::<u64>().ok()), d.word(2).and_then(size));
        match (count, each) {
            (Some(n), Some(each)) if n <= 1000 => {
                let total = n.saturating_mul(each).clamp(1 << 10, 1 << 20);
                import.out.limits.set("max_header_size", shown_size(total), &d.place);
                import.out.limits.set("max_uri_size", shown_size(each.clamp(256, total)), &d.place);
                import.same(d, "[limits] max_header_size, max_uri_size");
            }
            _ => import.missing(d, "is not a number and a size"),
        }
    }
}

/// NGINX's default of `client_max_body_size`.
const BODY: u64 = 1 << 20;

/// The largest body in a scope, and the directive that says so; [`u64::MAX`]: any.
pub(super) fn body_limit<'d>(scope: &Scope<'d>) -> (u64, Option<&'d Directive>) {
    let read = |d: &'d Directive| Some((size(d.word(1)?)?, d));
    match scope.last("client_max_body_size").and_then(read) {
        Some((0, d)) => (u64::MAX, Some(d)),
        Some((n, d)) => (n, Some(d)),
        None => (BODY, None),
    }
}

/// A size in TOML; [`u64::MAX`]: any.
pub(super) fn shown_limit(n: u64) -> String {
    if n == u64::MAX { "0".to_owned() } else { shown_size(n) }
}

/// The `client_max_body_size` of all servers. Those that differ are settings of hosts and routes.
fn body_size<'d>(import: &mut Import<'d>, scope: &Scope<'d>) {
    let (n, d) = body_limit(scope);
    let place = d.map_or_else(|| import.main.clone(), |d| d.place.clone());
    import.out.limits.set("max_body_size", shown_limit(n), &place);
    import.max_body = n;
    if let Some(d) = d {
        import.same(d, "[limits] max_body_size");
    }
}

/// What no host or route has used.
fn other_body_sizes(import: &mut Import, block: &[Directive]) {
    let mut found = Vec::new();
    of_clients(block, &["client_max_body_size"], &mut found);
    for d in found {
        match d.word(1).and_then(size) {
            Some(_) => import.same(d, "no request has this limit"),
            None => import.missing(d, "is not a value for max_body_size"),
        }
    }
}

/// The main context.
pub(super) fn main(import: &mut Import, block: &[Directive]) {
    for d in block {
        match (d.name(), d.arguments().as_slice()) {
            ("user", [user, rest @ ..]) => {
                import.out.top.set("user", quoted(user), &d.place);
                if let [group, ..] = rest {
                    import.out.top.set("group", quoted(group), &d.place);
                }
                import.differs(
                    d,
                    "user: the gateway reads certificates, keys and sealane.toml as this user when it reloads (NGINX: as root), so this user \
                     must be able to read them",
                );
            }
            ("worker_processes", ["auto", ..]) => import.same(d, "the default: one lane per core"),
            ("worker_processes", [n, ..]) => match n.parse::<u32>() {
                Ok(n @ 1..=1024) => {
                    import.out.top.set("lanes", n.to_string(), &d.place);
                    import.same(d, "lanes");
                }
                _ => import.missing(d, "is not a number from 1 to 1024"),
            },
            ("worker_shutdown_timeout", [t, ..]) => match nginx_time(t) {
                Some(t) => {
                    import.out.top.set("drain_timeout", quoted(&t), &d.place);
                    import.same(d, "drain_timeout");
                }
                None => import.missing(d, "is not a duration"),
            },
            ("events", _) => {
                import.same(d, "");
                for d in d.inner().iter().filter(|d| d.name() == "worker_connections") {
                    match d.word(1).and_then(|n| n.parse::<u32>().ok()) {
                        Some(n @ 1..=10_000_000) => {
                            import.out.limits.set("max_connections", n.to_string(), &d.place);
                            import.differs(d, "[limits] max_connections: connections of clients per lane; connections to servers are not counted");
                        }
                        _ => import.missing(d, "is not a number"),
                    }
                }
            }
            // Both read the configuration as root and then give up its rights, if told so.
            ("http", _) if !block.iter().any(|d| d.name() == "user") => import.differs(
                d,
                "\"user\" is not set: started by root, Sealane keeps the rights of root (NGINX's workers get the user of its build, usually \
                 nobody or www-data): write user = \"…\" at the top, or start the gateway as another user, as the package does",
            ),
            ("http" | "stream", _) => import.same(d, ""),
            _ => {}
        }
    }
}
