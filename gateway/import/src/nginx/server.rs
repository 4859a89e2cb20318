//! `server`: the hosts of Sealane that a server becomes, and the listeners of its addresses.

use super::access;
use super::actions::{self, Asked};
use super::conditions::{Condition, condition};
use super::locations::{self, Site, Step, Then, When};
use super::maps;
use super::names;
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::sockets::Socket;
use super::tls::{self, Member};
use crate::Outcome;
use crate::addresses::{is_block, masked};
use crate::output::{Host, Listener, list, quoted};

/// Some names of a server at some of its addresses, for which it does the same before it looks at locations.
struct Group<'d> {
    names: Vec<String>,
    steps: Vec<Step<'d>>,
    listeners: Vec<String>,
}

impl Group<'_> {
    fn does_like(&self, steps: &[Step]) -> bool {
        self.steps.iter().map(Step::key).eq(steps.iter().map(Step::key))
    }
}

/// Most names of one server, each of which its conditions are asked for.
const MAX_NAMES: usize = 2000;

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
    // A PROXY header names the client, but nothing else of a request.
    import.trusts = scope.all(&["set_real_ip_from"]).iter().any(|d| d.word(1).is_some_and(is_block))
        && scope.value("real_ip_header").is_none_or(|(_, header)| header != "proxy_protocol");
    let mut groups: Vec<Group<'d>> = Vec::new();
    let mut ports: Vec<u16> = Vec::new();
    let own_name = names::words(server).next().and_then(|(_, w)| names::exact(w));
    for socket in sockets {
        let Some((at, seat)) = socket.seats.iter().enumerate().find(|(_, s)| s.server == index) else { continue };
        let mut names: Vec<String> = seat.names.iter().map(|n| n.pattern.clone()).collect();
        if at == 0 {
            names.push("*".to_owned());
        }
        ports.push(socket.port);
        add_compared(server, index, socket, &mut names);
        if names.len() > MAX_NAMES {
            import.decide(server, "it has too many names: write its hosts");
            return;
        }
        for name in names {
            let asked = Asked { name: &name, port: socket.port, tls: socket.tls };
            let steps = steps(import, &scope, server, own_name.as_deref(), &asked);
            match groups.iter_mut().find(|g| g.listeners == [socket.address.clone()] && g.does_like(&steps)) {
                Some(group) => group.names.push(name),
                None => groups.push(Group { names: vec![name], steps, listeners: vec![socket.address.clone()] }),
            }
        }
    }
    ports.sort_unstable();
    ports.dedup();
    let port = if let [only] = ports.as_slice() { Some(*only) } else { None };
    let mut merged: Vec<Group> = Vec::new();
    for group in groups {
        match merged.iter_mut().find(|m| m.names == group.names && m.does_like(&group.steps)) {
            Some(there) => there.listeners.extend(group.listeners),
            None => merged.push(group),
        }
    }
    if merged.is_empty() {
        import.differs_a_little(server, "no request reaches this server: it has no name and is not the default");
        let says = format!("see {}", actions::named(server));
        return server.inner().iter().for_each(|d| import.whole(d, Outcome::NotTranslated, &says));
    }
    let only_tls = sockets.iter().filter(|s| s.seats.iter().any(|s| s.server == index)).all(|s| s.tls);
    if let (Some((_, "on")), true) = (scope.value("ssl_reject_handshake"), only_tls) {
        return import.whole(server, Outcome::Same, "no request reaches this server: handshakes are refused");
    }
    import.same(server, "[[host]]");
    let answers = |s: &Step| s.when == When::Always && matches!(s.then, Then::Answer(_));
    let searches = |g: &Group| g.steps.iter().any(|s| matches!(s.then, Then::Search(_)));
    let always_early = merged.iter().all(|g| g.steps.iter().any(answers) && !searches(g));
    if always_early {
        access::moot(import, &scope, "an earlier directive of the server responds to all requests");
        let inner: Vec<&Directive> = server.inner().iter().filter(|d| d.name() == "location").collect();
        for d in inner {
            import.whole(d, Outcome::Same, "not reached: an earlier directive of the server responds to all requests");
        }
    }
    let locations = match always_early {
        true => Vec::new(),
        false => locations::locations(import, server.inner(), &scope, own_name.as_deref()),
    };
    for group in merged {
        let mut site = Site {
            server,
            scope: scope.clone(),
            steps: group.steps,
            locations: locations.clone(),
            searches: locations::Searches::default(),
            led: Vec::new(),
            name: own_name.clone(),
            port,
            ports: ports.clone(),
        };
        site.search(import);
        let routes = locations::routes(import, &site);
        import.out.hosts.push(Host {
            names: group.names,
            listeners: group.listeners,
            routes,
            origin: server.place.clone(),
        });
    }
    // For each name, they are read up to the first that always answers.
    for d in server.inner().iter().filter(|d| matches!(d.name(), "break" | "if" | "return" | "rewrite")) {
        if import.report.is_known(d.id) {
            continue;
        }
        import.whole(
            d,
            Outcome::Same,
            "not reached: an earlier directive responds to all requests for each name of the server",
        );
    }
}

/// Names that an `if` compares the host with are names of their own where they belong to this server.
fn add_compared(server: &Directive, index: usize, socket: &Socket, names: &mut Vec<String>) {
    for d in server.inner().iter().filter(|d| d.name() == "if") {
        let Condition::Host(compared, _) = condition(d) else { continue };
        for name in compared {
            if socket.owner(&name) == Some(index) && !names.contains(&name) {
                names.push(name);
            }
        }
    }
}

/// What a server does before it looks at locations, in order, up to what always answers.
fn steps<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    server: &'d Directive,
    name: Option<&str>,
    asked: &Asked,
) -> Vec<Step<'d>> {
    let mut out = Vec::new();
    for d in server.inner() {
        let step = match d.name() {
            "return" => {
                let action = actions::answer(import, scope, d, name, 0);
                actions::unreached(import, server.inner(), d);
                Some(Step { d, when: When::Always, then: Then::Answer(action) })
            }
            "break" => {
                import.same(d, "directives after it have no effect");
                actions::unreached(import, server.inner(), d);
                return out;
            }
            "rewrite" if actions::searches(server.inner(), d, true) => match actions::search(d) {
                Some((when, new)) => {
                    import.same(d, "rewrite, with the upstream of the location of the new path");
                    Some(Step { d, when, then: Then::Search(new) })
                }
                None => actions::undecided(import, d, false),
            },
            "rewrite" => match actions::redirect(d, name) {
                Some((when, action)) => {
                    import.same(d, "redirect");
                    Some(Step { d, when, then: Then::Answer(action) })
                }
                None => actions::undecided(import, d, false),
            },
            "if" => match maps::redirects(import, d, name) {
                Some(redirects) => {
                    out.extend(redirects);
                    None
                }
                None => actions::if_step(import, scope, d, name, Some(asked)),
            },
            _ => None,
        };
        let last = step.as_ref().is_some_and(|s| s.when == When::Always);
        out.extend(step);
        if last {
            break;
        }
    }
    out
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
            quic(import, &scopes, &mut l);
        }
        l.tls = Some(tls);
    } else if socket.http2 {
        l.settings.set("h2c", "true", &socket.origin);
    }
    import.out.listeners.push(l);
}

/// What the servers of an address say of QUIC.
fn quic(import: &mut Import, scopes: &[Scope], l: &mut Listener) {
    for scope in scopes {
        if let Some((d, value)) = scope.value("quic_retry") {
            match value {
                "on" => {
                    l.quic.set("retry_above", "0", &d.place);
                    import.same(d, "[listener.quic] retry_above");
                }
                _ => import.same(d, "Retry is sent when many handshakes are in progress (retry_above)"),
            }
        }
        if let Some((d, value)) = scope.value("http3_max_concurrent_streams") {
            match value.parse::<u32>() {
                Ok(n @ 1..=10_000) => {
                    l.quic.set("max_streams", n.to_string(), &d.place);
                    import.same(d, "[listener.quic] max_streams");
                }
                _ => import.missing(d, "max_streams is from 1 to 10,000"),
            }
        }
    }
}

/// What is said of `real_ip_header proxy_protocol` and its addresses where no address has the PROXY protocol.
const NO_PROXY_HEADER: &str = "not used: the address has no PROXY protocol";

/// `set_real_ip_from`, `real_ip_header` and `proxy_protocol`.
fn trusted<'d>(import: &mut Import<'d>, socket: &Socket, scopes: &[Scope<'d>], l: &mut Listener) {
    let mut blocks: Vec<String> = Vec::new();
    let mut origin = None;
    let first = scopes.first().and_then(|s| s.last("real_ip_header"));
    // NGINX then reads no header of requests, and nothing at all without the PROXY protocol.
    let only_protocol = first.filter(|d| d.word(1) == Some("proxy_protocol"));
    for (at, scope) in scopes.iter().enumerate() {
        let from = scope.all(&["set_real_ip_from"]);
        let own: Vec<String> =
            from.iter().filter_map(|d| d.word(1)).filter(|b| *b != "unix:").map(str::to_owned).collect();
        if at > 0 && own != blocks {
            let all = scopes[0].all(&["set_real_ip_from"]);
            for d in from.iter().chain(&all) {
                import.decide(
                    d,
                    "the servers of one address differ in set_real_ip_from, but a listener has one list: write in this \
                     [[listener]] the addresses that are trusted for all of them, for example trusted_proxies = \
                     [\"10.0.0.0/8\"]",
                );
            }
        }
        let header = scope.last("real_ip_header");
        let says = |d: Option<&Directive>| d.and_then(|d| d.word(1)).map(str::to_ascii_lowercase);
        if !from.is_empty() && says(header) != says(first) {
            for d in header.into_iter().chain(first) {
                import.decide(
                    d,
                    "the servers of one address differ in real_ip_header, but a listener trusts one header: write in \
                     this [[listener]] trusted_proxies = [\"10.0.0.0/8\"], and client_address_header = \
                     \"X-Forwarded-For\", or trust_forwarded = false if only the PROXY protocol names the client",
                );
            }
        }
        let is_unused = !socket.proxy_protocol && says(header).as_deref() == Some("proxy_protocol");
        for d in &from {
            match d.word(1) {
                Some("unix:") => import.same(
                    d,
                    "the import translates no listeners at Unix sockets: if you write one, add \"unix\" to its \
                     trusted_proxies",
                ),
                Some(block) if is_block(block) && is_unused => import.same(d, NO_PROXY_HEADER),
                Some(block) if is_block(block) && socket.proxy_protocol => {
                    import.differs(d, crate::report::PROXY_OTHERS);
                }
                // Another address may have no PROXY protocol.
                Some(block) if is_block(block) => import.report.same_because(d.id, "trusted_proxies"),
                _ => import
                    .decide(d, "is not an address or a block of addresses: write the addresses in trusted_proxies"),
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
            Some((d, v)) if v.eq_ignore_ascii_case("x-forwarded-for") && socket.proxy_protocol => import.decide(
                d,
                "NGINX takes the client from X-Forwarded-For of the load balancers. Sealane takes it from their PROXY \
                 headers, and reads X-Forwarded-For only if a PROXY header names an address in trusted_proxies: add the \
                 addresses of the proxies in front of the load balancers to trusted_proxies",
            ),
            Some((d, v)) if v.eq_ignore_ascii_case("x-forwarded-for") => import.same(d, "X-Forwarded-For"),
            Some((d, "proxy_protocol")) if socket.proxy_protocol => import
                .report
                .same_because(d.id, "proxy_protocol and trust_forwarded = false: no header of a request names the client"),
            Some((d, "proxy_protocol")) => import.same(d, NO_PROXY_HEADER),
            Some((d, _)) => import.decide(
                d,
                "Sealane does not read this header: let the trusted proxies name the client in X-Forwarded-For, \
                 Forwarded or the PROXY protocol",
            ),
            None => {
                for d in &from {
                    import.decide(
                        d,
                        "NGINX reads X-Real-IP here, but Sealane reads only X-Forwarded-For, Forwarded or the PROXY \
                         protocol: let the trusted proxies send one of these",
                    );
                }
            }
        }
        if let Some((d, value)) = scope.value("real_ip_recursive") {
            match value {
                "on" => import.same(d, "always in effect"),
                _ if says(header).as_deref() == Some("proxy_protocol") => {
                    import.same(d, "a PROXY header names one address");
                }
                _ => import.differs(d, "the last address that is not a trusted proxy counts, as with \"on\""),
            }
        }
    }
    if only_protocol.is_some() && !socket.proxy_protocol {
        return;
    }
    let good: Vec<String> = blocks.into_iter().filter(|b| is_block(b)).map(|b| masked(&b)).collect();
    if let Some(place) = origin.filter(|_| !good.is_empty()) {
        l.settings.set("trusted_proxies", list(&good), &place);
        if socket.proxy_protocol {
            l.settings.set("proxy_protocol", "true", &socket.origin);
        }
        if let Some(d) = only_protocol {
            l.settings.set("trust_forwarded", "false", &d.place);
        }
    } else if socket.proxy_protocol {
        l.settings.set("proxy_protocol", "true", &socket.origin);
        let id =
            import.report.record(socket.origin.clone(), format!("listen {} proxy_protocol", quoted(&socket.address)));
        import.report.decide(id, crate::report::PROXY_SENDERS);
    }
}
