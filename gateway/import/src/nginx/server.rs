//! `server`: the hosts of Sealane that a server becomes, and the listeners of its addresses.

use super::access;
use super::actions;
use super::conditions::{Condition, condition};
use super::headers::{self, Changes};
use super::locations::{self, Site};
use super::names::{Name, covers};
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::sockets::Socket;
use super::tls::{self, Member};
use crate::Outcome;
use crate::output::{Action, Host, Listener, Path, Route, list, quoted};
use crate::report::Place;

/// What a server does before it looks at locations, for some of its names at some of its addresses.
#[derive(Clone, Debug)]
struct Group {
    names: Vec<String>,
    early: Option<(Action, Place)>,
    listeners: Vec<String>,
}

/// Writes the hosts of a server.
pub(super) fn hosts<'d>(
    import: &mut Import<'d>,
    http: &Scope<'d>,
    servers: &[&'d Directive],
    index: usize,
    sockets: &[Socket],
) {
    let server = servers[index];
    let scope = http.within(server.inner());
    let mut groups: Vec<Group> = Vec::new();
    let mut ports: Vec<u16> = Vec::new();
    for socket in sockets {
        let Some((at, seat)) = socket.seats.iter().enumerate().find(|(_, s)| s.server == index) else { continue };
        let mut names: Vec<String> = seat.names.iter().map(|n| n.pattern.clone()).collect();
        if at == 0 {
            names.push("*".to_owned());
        }
        ports.push(socket.port);
        add_compared(server, socket, &mut names);
        for name in names {
            let early = early(import, &scope, server, &name, socket.tls);
            let same = |g: &&mut Group| {
                let action = |e: &Option<(Action, Place)>| e.as_ref().map(|(a, _)| a.clone());
                g.listeners == [socket.address.clone()] && action(&g.early) == action(&early)
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.names.push(name),
                None => groups.push(Group { names: vec![name], early, listeners: vec![socket.address.clone()] }),
            }
        }
    }
    ports.sort_unstable();
    ports.dedup();
    let port = if let [only] = ports.as_slice() { Some(*only) } else { None };
    let mut merged: Vec<Group> = Vec::new();
    for group in groups {
        let action = |g: &Group| g.early.as_ref().map(|(a, _)| a.clone());
        match merged.iter_mut().find(|m| m.names == group.names && action(m) == action(&group)) {
            Some(there) => there.listeners.extend(group.listeners),
            None => merged.push(group),
        }
    }
    if merged.is_empty() {
        return import.whole(
            server,
            Outcome::Different,
            "no request reaches this server: it has no name and is not the default",
        );
    }
    let only_tls = sockets.iter().filter(|s| s.seats.iter().any(|s| s.server == index)).all(|s| s.tls);
    if let (Some((_, "on")), true) = (scope.value("ssl_reject_handshake"), only_tls) {
        return import.whole(server, Outcome::Same, "no request gets here: handshakes are refused");
    }
    import.same(server, "[[host]]");
    // `if`s on the scheme and the host are decided by now; what they do is in the groups.
    let mut conditions = Vec::new();
    let name = merged.iter().flat_map(|g| &g.names).find(|n| !n.contains('*')).cloned();
    for d in server.inner().iter().filter(|d| d.name() == "if") {
        match condition(d) {
            Condition::Tls(_) | Condition::Host(..) => match actions::simple(import, d, name.as_deref()) {
                Some(_) => import.same(d, "a host of its own"),
                None => actions::unknown_if(import, d),
            },
            found @ (Condition::Method(..) | Condition::Header(..)) => {
                match actions::simple(import, d, name.as_deref()).filter(|action| actions::is_route(&found, action)) {
                    Some(action) => conditions.push((found, action, d)),
                    None => actions::unknown_if(import, d),
                }
            }
            Condition::Unknown => actions::unknown_if(import, d),
        }
    }
    let always_early = merged.iter().all(|g| g.early.is_some());
    let site = (!always_early).then(|| {
        let locations = locations::locations(import, server.inner(), &scope);
        let site = Site { server, scope: scope.clone(), conditions, locations, name: name.clone(), port };
        let mut routes: Vec<Route> = Vec::new();
        // A server's own redirects of single paths come before its locations.
        for d in server.inner().iter().filter(|d| d.name() == "rewrite") {
            match actions::redirect(d, name.as_deref()) {
                Some((Path::Below(p), _)) if p == "/" => {}
                Some((path, action)) => {
                    import.same(d, "redirect");
                    routes.push(Route::new(path, action, &d.place));
                }
                None => import.missing(d, "paths are rewritten by a route's rewrite_prefix only; let the server do it"),
            }
        }
        for route in locations::routes(import, &site) {
            if !routes.iter().any(|r| r.conditions() == route.conditions()) {
                routes.push(route);
            }
        }
        routes
    });
    if always_early {
        access::moot(import, &scope, "the server answers before");
        let inner: Vec<&Directive> = server.inner().iter().filter(|d| d.name() == "location").collect();
        for d in inner {
            import.whole(d, Outcome::Same, "not reached: the server answers before");
        }
    }
    for group in merged {
        let routes = match &group.early {
            Some((action, place)) => {
                let mut route = Route::new(Path::Below("/".to_owned()), action.clone(), place);
                let mut changes = Changes::default();
                headers::response(import, &scope, &mut changes);
                (route.response, route.hsts) = (changes.response, changes.hsts);
                vec![route]
            }
            None => site.clone().unwrap_or_default(),
        };
        let mut routes = routes;
        let absolute_redirect = scope.value("absolute_redirect");
        if let Some((d, _)) = absolute_redirect {
            import.same(d, "redirect");
        }
        if absolute_redirect.is_none_or(|(_, v)| v == "on") {
            routes.iter_mut().for_each(|r| absolute(r, &ports));
        }
        import.out.hosts.push(Host {
            names: group.names,
            listeners: group.listeners,
            routes,
            origin: server.place.clone(),
        });
    }
}

/// NGINX sends whole URLs, with the port where it is not the scheme's.
fn absolute(route: &mut Route, ports: &[u16]) {
    let usual = ports.iter().all(|p| matches!(p, 80 | 443));
    let port = match ports {
        _ if usual => String::new(),
        [only] => format!(":{only}"),
        _ => return,
    };
    if let Action::Redirect { to, .. } = &mut route.action
        && (to.starts_with('/') || ["{uri}", "{path}"].iter().any(|p| to.starts_with(p)))
    {
        to.insert_str(0, &format!("{{scheme}}://{{host}}{port}"));
    }
}

/// Names that an `if` compares the host with are names of their own where a wildcard covers them.
fn add_compared(server: &Directive, socket: &Socket, names: &mut Vec<String>) {
    for d in server.inner().iter().filter(|d| d.name() == "if") {
        let Condition::Host(compared, _) = condition(d) else { continue };
        for name in compared {
            let taken = socket.seats.iter().any(|s| s.names.iter().any(|n: &Name| n.pattern == name));
            let good = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
            if good && !taken && !names.contains(&name) && names.iter().any(|n| covers(n, &name)) {
                names.push(name);
            }
        }
    }
}

/// What a server answers before it looks at locations.
fn early<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    server: &'d Directive,
    name: &str,
    tls: bool,
) -> Option<(Action, Place)> {
    let constant = (!name.contains('*')).then_some(name);
    for d in server.inner() {
        match d.name() {
            "return" => return Some((actions::answer(import, scope, d, constant), d.place.clone())),
            "rewrite" => {
                if let Some((Path::Below(p), action)) = actions::redirect(d, constant)
                    && p == "/"
                {
                    import.same(d, "redirect");
                    return Some((action, d.place.clone()));
                }
            }
            "if" => {
                let holds = match condition(d) {
                    Condition::Tls(wanted) => wanted == tls,
                    Condition::Host(names, wanted) => names.iter().any(|n| n == name) == wanted,
                    _ => false,
                };
                if holds && let Some(action) = actions::simple(import, d, constant) {
                    return Some((action, d.place.clone()));
                }
            }
            _ => {}
        }
    }
    None
}

/// Writes the listener of an address.
pub(super) fn listener<'d>(import: &mut Import<'d>, http: &Scope<'d>, servers: &[&'d Directive], socket: &Socket) {
    let mut l = Listener {
        addresses: vec![socket.address.clone()],
        origin: Some(socket.origin.clone()),
        ..Listener::default()
    };
    let scopes: Vec<Scope<'d>> = socket.seats.iter().map(|s| http.within(servers[s.server].inner())).collect();
    trusted(import, socket, &scopes, &mut l);
    if socket.tls {
        let members: Vec<Member<'_, 'd>> = socket
            .seats
            .iter()
            .zip(&scopes)
            .enumerate()
            .map(|(at, (seat, scope))| Member {
                scope,
                server: servers[seat.server],
                names: &seat.names,
                is_default: at == 0,
            })
            .collect();
        let mut tls = tls::listener(import, &members);
        if !socket.http2 {
            tls.settings.set("alpn", list(&["http/1.1"]), &socket.origin);
        }
        if socket.quic {
            l.settings.set("http3", "true", &socket.origin);
        }
        l.tls = Some(tls);
    } else if socket.http2 {
        l.settings.set("h2c", "true", &socket.origin);
    }
    import.out.listeners.push(l);
}

/// `set_real_ip_from`, `real_ip_header` and `proxy_protocol`.
fn trusted<'d>(import: &mut Import<'d>, socket: &Socket, scopes: &[Scope<'d>], l: &mut Listener) {
    let mut blocks: Vec<String> = Vec::new();
    let mut origin = None;
    for (at, scope) in scopes.iter().enumerate() {
        let from = scope.all(&["set_real_ip_from"]);
        let own: Vec<String> =
            from.iter().filter_map(|d| d.word(1)).filter(|b| *b != "unix:").map(str::to_owned).collect();
        if at > 0 && own != blocks {
            for d in &from {
                import.decide(
                    d,
                    "the servers of one address differ in set_real_ip_from; a listener has one list (trusted_proxies)",
                );
            }
        }
        for d in &from {
            match d.word(1) {
                Some("unix:") => import.same(d, "there are no Unix sockets"),
                Some(block) if is_block(block) => import.same(d, "trusted_proxies"),
                _ => import.decide(d, "is not a block of addresses"),
            }
        }
        if at == 0 {
            blocks = own;
            origin = from.first().map(|d| d.place.clone());
        }
        if from.is_empty() {
            continue;
        }
        match scope.value("real_ip_header") {
            Some((d, v)) if v.eq_ignore_ascii_case("x-forwarded-for") => import.same(d, "X-Forwarded-For"),
            Some((d, "proxy_protocol")) if socket.proxy_protocol => import.same(d, "proxy_protocol"),
            Some((d, "proxy_protocol")) => import.same(d, "not used: this address has no PROXY protocol"),
            Some((d, _)) => import
                .decide(d, "trusted proxies say who the client is in X-Forwarded-For, Forwarded or the PROXY protocol"),
            None => {
                for d in &from {
                    import.decide(
                        d,
                        "NGINX reads X-Real-IP here; Sealane reads X-Forwarded-For, Forwarded or the PROXY protocol",
                    );
                }
            }
        }
        if let Some((d, value)) = scope.value("real_ip_recursive") {
            match value {
                "on" => import.same(d, "always so"),
                _ => import.differs(d, "the last address that is not a trusted proxy counts, as with \"on\""),
            }
        }
    }
    let good: Vec<String> = blocks.into_iter().filter(|b| is_block(b)).map(|b| masked(&b)).collect();
    if let Some(place) = origin.filter(|_| !good.is_empty()) {
        l.settings.set("trusted_proxies", list(&good), &place);
        if socket.proxy_protocol {
            l.settings.set("proxy_protocol", "true", &socket.origin);
        }
    } else if socket.proxy_protocol {
        l.settings.set("proxy_protocol", "true", &socket.origin);
        let id =
            import.report.record(socket.origin.clone(), format!("listen {} proxy_protocol", quoted(&socket.address)));
        import
            .report
            .decide(id, "say in trusted_proxies which load balancers may send PROXY headers: without it everybody may");
    }
}

pub(crate) fn is_block(text: &str) -> bool {
    let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let Ok(address) = address.parse::<std::net::IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    len.is_none_or(|l| l.parse::<u8>().is_ok_and(|l| l <= most))
}

/// A block without bits beyond its prefix, as Sealane wants it.
pub(crate) fn masked(text: &str) -> String {
    let Some((address, len)) = text.split_once('/') else { return text.to_owned() };
    let (Ok(address), Ok(len)) = (address.parse::<std::net::IpAddr>(), len.parse::<u32>()) else {
        return text.to_owned();
    };
    match address {
        std::net::IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32u32.saturating_sub(len)).unwrap_or(0);
            format!("{}/{len}", std::net::Ipv4Addr::from_bits(a.to_bits() & mask))
        }
        std::net::IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(len)).unwrap_or(0);
            format!("{}/{len}", std::net::Ipv6Addr::from_bits(a.to_bits() & mask))
        }
    }
}
