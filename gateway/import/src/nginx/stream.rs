//! `stream`: connections that are relayed, by SNI or address, and datagrams.

use super::access;
use super::names::{EXPRESSION, Meaning, meaning};
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::upstreams::{self, Protocol, Target};
use crate::Outcome;
use crate::addresses::{is_block, masked};
use crate::output::{Action, Host, Listener, Path, Route, list};
use crate::report::Place;
use std::collections::BTreeMap;

/// Translates a `stream` block.
pub(super) fn stream<'d>(import: &mut Import<'d>, block: &'d [Directive]) {
    // Groups and maps of `http` and `stream` have nothing to do with each other.
    import.upstreams = BTreeMap::new();
    import.maps = BTreeMap::new();
    import.geos = BTreeMap::new();
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
            _ => {}
        }
    }
    let scope = Scope::of(block);
    for d in block.iter().filter(|d| d.name() == "server") {
        server(import, &scope.within(d.inner()), d);
    }
    upstreams::unused(import);
}

fn server<'d>(import: &mut Import<'d>, scope: &Scope<'d>, server: &'d Directive) {
    let mut addresses: Vec<String> = Vec::new();
    let mut for_datagrams: Vec<String> = Vec::new();
    let mut proxy_protocol = None;
    for d in server.inner().iter().filter(|d| d.name() == "listen") {
        let arguments = d.arguments();
        if arguments.contains(&"ssl") {
            return import.whole(
                server,
                Outcome::NotTranslated,
                "Sealane decrypts TLS only for HTTP, so nothing listens here: let the server decrypt TLS, and relay \
                 the connections to it (mode = \"tcp\", passthrough)",
            );
        }
        let address = arguments.first().copied().unwrap_or("");
        let address = match address.parse::<u16>() {
            Ok(port) => format!("0.0.0.0:{port}"),
            Err(_) => address.replace("*:", "0.0.0.0:").replace("localhost:", "127.0.0.1:"),
        };
        if address.parse::<std::net::SocketAddr>().is_err() {
            import.missing(
                d,
                "the import translates only an IP address and a port: for a Unix socket, write a [[listener]] with \
                 address = \"unix:PATH\", and write this address in listeners of the hosts that it serves",
            );
            continue;
        }
        if arguments.contains(&"udp") {
            for_datagrams.push(address);
            import.same(d, "[[listener]] with mode = \"udp\"");
            continue;
        }
        if arguments.contains(&"proxy_protocol") {
            proxy_protocol = Some(d);
        }
        addresses.push(address);
        import.same(d, "[[listener]] with mode = \"tcp\"");
    }
    let Some(pass) = scope.last("proxy_pass") else {
        return import.whole(
            server,
            Outcome::NotTranslated,
            "Sealane can only relay connections of \"stream\" (proxy_pass): let a server answer them",
        );
    };
    if addresses.is_empty() && for_datagrams.is_empty() {
        return import.whole(server, Outcome::NotTranslated, "there is no address to listen on");
    }
    let checks = access::access(import, scope, None);
    if checks.closed.is_some() {
        return import.whole(server, Outcome::Same, "all clients are refused: nothing listens here");
    }
    for d in scope.all(&["limit_conn"]) {
        import.decide(
            d,
            "write max_connections_per_client in [limits], which limits the open connections of each client to all \
             listeners together",
        );
    }
    if let Some((d, "on")) = scope.value("proxy_ssl") {
        return import.whole(
            server,
            Outcome::NotTranslated,
            &format!(
                "{}: the gateway adds no TLS to relayed connections: let the server accept connections without TLS",
                d.place
            ),
        );
    }
    if !for_datagrams.is_empty() {
        datagrams(import, scope, server, pass, &for_datagrams, &checks);
    }
    if addresses.is_empty() {
        return;
    }
    let mut l = Listener { addresses: joined(&addresses), origin: Some(server.place.clone()), ..Listener::default() };
    l.settings.set("mode", "\"tcp\"", &server.place);
    if let Some(d) = proxy_protocol {
        l.settings.set("proxy_protocol", "true", &d.place);
        let from: Vec<String> = scope.all(&["set_real_ip_from"]).iter().filter_map(|d| d.word(1)).map(masked).collect();
        match from.is_empty() || !from.iter().all(|b| is_block(b)) {
            true => import.decide(d, crate::report::PROXY_SENDERS),
            false => {
                scope.all(&["set_real_ip_from"]).iter().for_each(|d| import.differs(d, crate::report::PROXY_OTHERS));
                l.settings.set("trusted_proxies", list(&from), &d.place);
            }
        }
    }
    let preread = scope.value("ssl_preread").filter(|(_, v)| *v == "on").map(|(d, _)| d);
    if let Some(d) = preread {
        import.same(d, "names in the ClientHello choose the host");
    }
    import.same(server, "[[listener]] and [[host]]");
    let listeners = l.addresses.clone();
    let to = pass.word(1).unwrap_or("");
    let map = to.strip_prefix('$').and_then(|v| import.maps.get(v.trim_matches(['{', '}'])).copied());
    import.out.listeners.push(l);
    let host = |import: &mut Import<'d>, names: Vec<String>, authority: &str, place: &Place, d: &'d Directive| {
        let target = Target { protocol: Protocol::Tcp, tls: false, authority };
        if let Some(up) = upstreams::upstream(import, scope, d, &target, None) {
            let mut route = Route::new(Path::Below("/".to_owned()), Action::Passthrough(up), place);
            route.access = checks.access.clone();
            import.out.hosts.push(Host {
                names,
                listeners: listeners.clone(),
                routes: vec![route],
                origin: place.clone(),
            });
        }
    };
    match map {
        None if to.contains('$') => import.decide(
            pass,
            "the variable lets clients choose the server: name the servers in a map of $ssl_preread_server_name",
        ),
        None => {
            host(import, vec!["*".to_owned()], to, &pass.place, pass);
            import.same(pass, "passthrough");
        }
        Some(map) if map.word(1).is_some_and(|s| s.trim_matches(['$', '{', '}']) == "ssl_preread_server_name") => {
            import.same(pass, "passthrough, chosen by the name");
            import.same(map, "hosts with passthrough");
            let hostnames = map.inner().iter().any(|e| e.name() == "hostnames");
            for entry in map.inner().iter().filter(|e| e.words.len() == 2) {
                let (name, value) = (entry.name(), entry.word(1).unwrap_or(""));
                let names = match name {
                    "default" => vec!["*".to_owned()],
                    n if !hostnames && n.starts_with(['*', '.']) => continue,
                    n if n.starts_with('~') => {
                        import.decide(map, format!("{n}: {EXPRESSION}"));
                        continue;
                    }
                    n => match meaning(n) {
                        Meaning::Names(names) => names.into_iter().map(|(_, name)| name).collect(),
                        Meaning::Nothing => continue,
                        Meaning::Unknown(why) => {
                            import.decide(map, format!("{n}: {why}"));
                            continue;
                        }
                    },
                };
                if value.contains('$') {
                    import.decide(map, format!("{name}: the variable lets clients choose the server: name the server"));
                } else {
                    host(import, names, value, &entry.place, pass);
                }
            }
        }
        Some(map) => {
            // Nothing is relayed: nobody gets in whom NGINX would keep out.
            import.missing(
                pass,
                "only the name in the ClientHello can select the upstream of a relayed connection; nothing is relayed here",
            );
            import.missing(map, "only the name in the ClientHello can select the upstream of a relayed connection");
        }
    }
}

/// The listener of a server for datagrams.
fn datagrams<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    server: &'d Directive,
    pass: &'d Directive,
    addresses: &[String],
    checks: &access::Checks,
) {
    let authority = pass.word(1).unwrap_or("");
    if authority.contains('$') {
        return import.missing(
            pass,
            "a variable selects the server, but a datagram names no host; no datagrams are relayed here: name the servers",
        );
    }
    let target = Target { protocol: Protocol::Udp, tls: false, authority };
    let Some(up) = upstreams::upstream(import, scope, pass, &target, None) else { return };
    let mut l = Listener { addresses: joined(addresses), origin: Some(server.place.clone()), ..Listener::default() };
    l.settings.set("mode", "\"udp\"", &server.place);
    let mut route = Route::new(Path::Below("/".to_owned()), Action::Passthrough(up), &pass.place);
    route.access = checks.access.clone();
    import.out.hosts.push(Host {
        names: vec!["*".to_owned()],
        listeners: l.addresses.clone(),
        routes: vec![route],
        origin: pass.place.clone(),
    });
    import.out.listeners.push(l);
    import.same(pass, "passthrough");
    import.same(server, "[[listener]] and [[host]]");
}

/// Both wildcards of a port are `":443"`.
fn joined(addresses: &[String]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for a in addresses {
        let port = a.rsplit_once(':').map_or("", |(_, p)| p);
        let both = [format!("0.0.0.0:{port}"), format!("[::]:{port}")];
        let written =
            if both.iter().all(|b| addresses.contains(b)) && both.contains(a) { format!(":{port}") } else { a.clone() };
        if !out.contains(&written) {
            out.push(written);
        }
    }
    out
}
