//! `upstream`, and what locations say about the way to its servers.

use super::headers::HostHeader;
use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::output::{Upstream, quoted};
use crate::report::Place;
use crate::servers::{self, Scheme, Server};
use crate::units::nginx_time;

/// Which protocol the servers speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc,
    /// Bytes, relayed as they are.
    Tcp,
    /// Datagrams, relayed as they are.
    Udp,
}

impl Protocol {
    /// What passes is not read.
    fn is_relayed(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp)
    }
}

/// A place to send requests to.
pub(super) struct Target<'t> {
    pub protocol: Protocol,
    pub tls: bool,
    /// A group's name, or `HOST[:PORT]`.
    pub authority: &'t str,
}

/// Writes the upstream for a target; `None` where there is no server that can be written.
pub(super) fn upstream<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    target: &Target,
    host: Option<&HostHeader>,
) -> Option<String> {
    let mut up = Upstream { name: target.authority.to_owned(), origin: Some(d.place.clone()), ..Upstream::default() };
    match import.upstreams.get(target.authority).copied() {
        Some(group) => {
            up.origin = Some(group.place.clone());
            import.same(group, "[[upstream]]");
            servers_of(import, group, target, &mut up);
            if up.servers.is_empty() {
                import.missing(group, "has no server that Sealane can reach; requests get 501");
                return None;
            }
        }
        None => {
            let url = match servers::url(target.scheme(), target.authority, target.scheme().port()) {
                Ok(url) => url,
                Err(why) => {
                    import.missing(d, format!("{why}; requests get 501"));
                    return None;
                }
            };
            Server { url, ..Server::default() }.add(&mut up, &d.place);
        }
    }
    if target.protocol.is_relayed() {
        match target.protocol {
            Protocol::Udp => udp_settings(import, scope, &mut up, &d.place),
            _ => stream_settings(import, scope, &mut up),
        }
        return Some(import.out.upstream(up));
    }
    if target.protocol == Protocol::Grpc {
        up.settings.set("http", "\"2\"", &d.place);
    }
    match host {
        Some(HostHeader::Client) => {}
        Some(HostHeader::Literal(name, place)) => host_header(import, d, &mut up, name, place),
        // Without a word about it NGINX sends the name in proxy_pass.
        None if target.authority.starts_with("unix:") => host_header(import, d, &mut up, "localhost", &d.place),
        None => {
            let port = format!(":{}", target.scheme().port());
            let name = target.authority.strip_suffix(&port).unwrap_or(target.authority);
            host_header(import, d, &mut up, name, &d.place);
        }
    }
    http_settings(import, scope, target.protocol, &mut up);
    if target.tls {
        tls(import, scope, d, target, &mut up);
    }
    Some(import.out.upstream(up))
}

fn host_header(import: &mut Import, d: &Directive, up: &mut Upstream, name: &str, place: &Place) {
    match name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b)) && !name.is_empty() {
        true => up.settings.set("host_header", quoted(name), place),
        false => import.missing(d, format!("\"{name}\" is not a value for Host; the client's is sent")),
    }
}

impl Target<'_> {
    fn scheme(&self) -> Scheme {
        match (self.protocol, self.tls) {
            (Protocol::Tcp, _) => Scheme::Tcp,
            (Protocol::Udp, _) => Scheme::Udp,
            (_, true) => Scheme::Https,
            (_, false) => Scheme::Http,
        }
    }
}

fn servers_of<'d>(import: &mut Import<'d>, group: &'d Directive, target: &Target, up: &mut Upstream) {
    let several = group.inner().iter().filter(|d| d.name() == "server").count() > 1;
    let mut fails: Option<(String, Place)> = None;
    for d in group.inner() {
        match d.name() {
            "server" => server(import, d, target, several, &mut fails, up),
            "least_conn" => {
                up.settings.set("balance", "\"least_connections\"", &d.place);
                import.differs(d, "connections are counted per lane");
            }
            "ip_hash" => {
                up.settings.set("hash_by", "\"address\"", &d.place);
                import.differs_a_little(d, "the whole IPv4 address is hashed, not its first three bytes");
            }
            "random" => {
                up.settings.set("balance", "\"random_two\"", &d.place);
                match d.word(1) {
                    Some("two") => import.same(d, "balance = \"random_two\""),
                    _ => {
                        import.differs_a_little(d, "two random servers, of which the one with fewer requests is chosen")
                    }
                }
            }
            "hash" => {
                let by = super::conditions::without_braces(d.word(1).unwrap_or(""));
                let by = match by.as_str() {
                    "$remote_addr" | "$binary_remote_addr" => Some("address".to_owned()),
                    other => match (other.strip_prefix("$http_"), other.strip_prefix("$cookie_")) {
                        (Some(_), _) => super::conditions::header_of(other).map(|name| format!("header:{name}")),
                        (_, Some(name)) if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
                            Some(format!("cookie:{name}"))
                        }
                        _ => None,
                    },
                };
                match by {
                    Some(by) if !target.protocol.is_relayed() || by == "address" => {
                        up.settings.set("hash_by", quoted(&by), &d.place);
                        if by.strip_prefix("header:").is_some_and(crate::values::is_claim) {
                            import.differs(d, crate::values::CLAIM);
                        }
                        import.differs_a_little(
                            d,
                            "keys are assigned to other servers than in NGINX; the hash is always consistent",
                        );
                    }
                    _ => import
                        .missing(d, "Sealane can hash only the client's address, a header or a cookie: write hash_by"),
                }
            }
            "keepalive" => match d.word(1).and_then(|n| n.parse::<u32>().ok()).filter(|n| *n <= 65536) {
                Some(n) if !target.protocol.is_relayed() => {
                    up.settings.set("keepalive", n.to_string(), &d.place);
                    import.differs(d, "keepalive counts per server and lane (NGINX: per worker process and group)");
                }
                _ => import.same(d, "not needed"),
            },
            "keepalive_timeout" => match d.word(1).and_then(nginx_time).filter(|t| t != "0s") {
                Some(t) => {
                    up.settings.set("keepalive_timeout", quoted(&t), &d.place);
                    import.same(d, "keepalive_timeout");
                }
                None => import.missing(d, "is not a duration"),
            },
            "keepalive_requests" => import.same(d, "not needed"),
            "sticky" => match (d.word(1), d.word(2)) {
                (Some("cookie"), Some(name)) if super::headers::is_name(name) => {
                    up.settings.set("sticky", quoted(name), &d.place);
                    import
                        .differs_a_little(d, "the cookie has another value, and no domain, path or expiry of its own");
                }
                _ => import.missing(d, "clients stay with their server by a cookie (sticky)"),
            },
            _ => {}
        }
    }
    if let Some((n, place)) = fails {
        up.settings.set("eject_after", n, &place);
    }
}

fn server<'d>(
    import: &mut Import<'d>,
    d: &'d Directive,
    target: &Target,
    several: bool,
    fails: &mut Option<(String, Place)>,
    up: &mut Upstream,
) {
    let url = match d.word(1).map(|a| servers::url(target.scheme(), a, 80)) {
        Some(Ok(url)) => url,
        Some(Err(why)) => return import.missing(d, why),
        None => return import.missing(d, "names no server"),
    };
    let mut found = Server { url, ..Server::default() };
    import.same(d, "a server of the group");
    for option in d.arguments().into_iter().skip(1) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "weight" => match value.parse::<u32>() {
                Ok(n @ 1..=256) => found.weight = Some(n),
                _ => import.differs(d, "a weight is at most 256; divide all weights of the group"),
            },
            "backup" => found.backup = true,
            "down" => return import.differs_a_little(d, "the server is down, so it is left out"),
            "max_conns" => match value.parse::<u32>() {
                Ok(0) | Err(_) => {}
                Ok(n) => {
                    let value = n.to_string();
                    servers::one_for_all(up, "max_connections", &value, &d.place, d.id, &mut import.report);
                    import.differs_a_little(
                        d,
                        "max_connections applies to all lanes together; requests above this limit wait (queue)",
                    );
                }
            },
            "max_fails" if several && value.parse::<u32>().is_ok() => {
                if fails.as_ref().is_some_and(|(v, _)| v != value) {
                    import
                        .differs(d, "eject_after applies to all servers of a group: the import writes the last value");
                } else {
                    import.differs_a_little(d, "Sealane counts failures in a row, NGINX failures within fail_timeout");
                }
                *fails = Some((value.to_owned(), d.place.clone()));
            }
            "fail_timeout" if several => {
                if let Some(t) = nginx_time(value).filter(|t| t != "0s") {
                    up.settings.set("eject_for", quoted(&t), &d.place);
                    import.differs_a_little(d, "eject_for: the time doubles with each further ejection in a row");
                }
            }
            "max_fails" | "fail_timeout" => import.same(d, "a single server is never ejected"),
            "slow_start" => {
                if let Some(t) = nginx_time(value) {
                    up.settings.set("slow_start", quoted(&t), &d.place);
                }
            }
            "resolve" => import.same(d, "names are always resolved again"),
            _ => import.missing(d, format!("\"{option}\" has no counterpart")),
        }
    }
    found.add(up, &d.place);
}

fn duration(import: &mut Import, d: &Directive, value: &str, key: &str, up: &mut Upstream) {
    match nginx_time(value).filter(|t| t != "0s") {
        Some(t) => {
            up.settings.set(key, quoted(&t), &d.place);
            import.same(d, key);
        }
        None => import.missing(d, "is not a duration"),
    }
}

fn http_settings<'d>(import: &mut Import<'d>, scope: &Scope<'d>, protocol: Protocol, up: &mut Upstream) {
    let prefix = if protocol == Protocol::Grpc { "grpc" } else { "proxy" };
    if let Some((d, value)) = scope.value(&format!("{prefix}_connect_timeout")) {
        duration(import, d, value, "connect_timeout", up);
    }
    if let Some((d, value)) = scope.value(&format!("{prefix}_read_timeout")) {
        duration(import, d, value, "first_byte_timeout", up);
        duration(import, d, value, "idle_timeout", up);
        import.same(d, "first_byte_timeout and idle_timeout");
    }
    if let Some((d, value)) = scope.value(&format!("{prefix}_send_timeout")) {
        match (nginx_time(value), up.settings.has("idle_timeout")) {
            (Some(t), false) if t != "0s" => {
                up.settings.set("idle_timeout", quoted(&t), &d.place);
                import.same(d, "idle_timeout");
            }
            _ => import.differs(
                d,
                "Sealane has one idle_timeout for both directions: the value of the other directive is used",
            ),
        }
    }
    if let Some((d, value)) = scope.value("proxy_http_version").filter(|_| protocol == Protocol::Http) {
        match value {
            "2" | "2.0" => {
                up.settings.set("http", "\"2\"", &d.place);
                import.same(d, "http = \"2\"");
            }
            "1.0" => import.differs_a_little(d, "Sealane uses HTTP/1.1 to servers"),
            _ => import.same(d, "the default"),
        }
    }
    let next = scope.last(&format!("{prefix}_next_upstream"));
    let is_off = next.is_some_and(|d| d.arguments().contains(&"off"));
    if let Some(d) = next {
        match d.arguments().as_slice() {
            _ if is_off => {
                up.settings.set("tries", "1", &d.place);
                import.same(d, "tries = 1");
            }
            arguments if arguments.contains(&"non_idempotent") => import
                .differs(d, "a request that is not idempotent is sent again only if the server has not processed it"),
            ["error"] | ["timeout"] | ["error", "timeout"] | ["timeout", "error"] => import.same(d, "the default"),
            _ => import.differs(d, "requests are not sent again because of a response's status"),
        }
    }
    if let Some((d, value)) = scope.value(&format!("{prefix}_next_upstream_tries")) {
        match value.parse::<u32>() {
            // One try, whatever the number says.
            _ if is_off => import.same(d, format!("not used with {prefix}_next_upstream off")),
            Ok(0) => import.differs(d, "a request is tried three times at most (tries)"),
            Ok(n @ 1..=16) => {
                up.settings.set("tries", n.to_string(), &d.place);
                import.same(d, "tries");
            }
            _ => import.missing(d, "tries is at most 16"),
        }
    }
}

fn tls<'d>(import: &mut Import<'d>, scope: &Scope<'d>, pass: &'d Directive, target: &Target, up: &mut Upstream) {
    let prefix = if target.protocol == Protocol::Grpc { "grpc_ssl" } else { "proxy_ssl" };
    let name = |what: &str| format!("{prefix}_{what}");
    let bare = target.authority.rsplit_once(':').map_or(target.authority, |(h, _)| h).trim_matches(['[', ']']);
    match scope.value(&name("verify")) {
        Some((d, "on")) => import.same(d, "always verified"),
        Some((d, _)) => {
            servers::skip_verification(up, &d.place, d.id, &mut import.report);
        }
        None => import.differs(
            pass,
            "NGINX does not verify the server's certificate; Sealane does: set ca in [upstream.tls] where it is not from a public CA",
        ),
    }
    match scope.value(&name("name")) {
        Some((d, value)) if !value.contains('$') => {
            up.tls.set("server_name", quoted(value), &d.place);
            import.same(d, "server_name");
        }
        Some((d, _)) => import.missing(d, "server_name is a constant"),
        // The group's name is the one that NGINX verifies.
        None if import.upstreams.contains_key(target.authority) => up.tls.set("server_name", quoted(bare), &pass.place),
        None => {}
    }
    if let Some((d, value)) = scope.value(&name("server_name")) {
        match value {
            "on" => import.same(d, "always sent"),
            _ => import.differs(d, "the server's name is always sent (SNI)"),
        }
    }
    for (what, key) in
        [("trusted_certificate", "ca"), ("crl", "crl"), ("certificate", "cert"), ("certificate_key", "key")]
    {
        let Some((d, value)) = scope.value(&name(what)) else { continue };
        if value.contains('$') || value.starts_with("data:") || value.starts_with("engine:") {
            import.decide(d, "name a file");
            continue;
        }
        let path = import.path(value);
        up.tls.set(key, quoted(&path), &d.place);
        import.same(d, key);
    }
    if up.tls.has("key") && !up.tls.has("cert") {
        import.decide(pass, "there is a key without a certificate");
    }
    if let Some(d) = scope.last(&name("protocols")) {
        let versions = super::tls::versions(&d.arguments());
        servers::versions(up, versions, &d.place, d.id, &mut import.report);
    }
    if let Some((d, value)) = scope.value(&name("ciphers")) {
        servers::suites(value, d.id, &mut import.report);
    }
    if let Some((d, _)) = scope.value(&name("session_reuse")) {
        import.same(d, "resumption is on by default");
    }
    if let Some((d, _)) = scope.value(&name("verify_depth")) {
        import.same(d, "chains of any depth that end at a CA of \"ca\" are accepted");
    }
}

fn stream_settings<'d>(import: &mut Import<'d>, scope: &Scope<'d>, up: &mut Upstream) {
    if let Some((d, value)) = scope.value("proxy_connect_timeout") {
        duration(import, d, value, "connect_timeout", up);
    }
    if let Some((d, value)) = scope.value("proxy_timeout") {
        duration(import, d, value, "idle_timeout", up);
    }
    if let Some((d, value)) = scope.value("proxy_protocol") {
        if value == "on" {
            up.settings.set("proxy_protocol", "\"v1\"", &d.place);
        }
        import.same(d, "proxy_protocol");
    }
}

/// What NGINX has where nothing else is said.
const PROXY_TIMEOUT: &str = "10m";

fn udp_settings<'d>(import: &mut Import<'d>, scope: &Scope<'d>, up: &mut Upstream, place: &Place) {
    match scope.value("proxy_timeout") {
        Some((d, value)) => duration(import, d, value, "idle_timeout", up),
        None => up.settings.set("idle_timeout", quoted(PROXY_TIMEOUT), place),
    }
    let mut ends = Vec::new();
    for (name, key, least) in [("proxy_responses", "responses", 0), ("proxy_requests", "requests", 1)] {
        let Some((d, value)) = scope.value(name) else { continue };
        match value.parse::<u32>() {
            Ok(n) if (least..=1_000_000).contains(&n) => {
                ends.push((format!("{key} = {n}"), &d.place));
                import.same(d, format!("[upstream.udp] {key}"));
            }
            Ok(0) => import.same(d, "the default"),
            _ => import.missing(d, "is at most 1,000,000"),
        }
    }
    if let Some((_, place)) = ends.first() {
        let written: Vec<&str> = ends.iter().map(|(written, _)| written.as_str()).collect();
        up.settings.set("udp", format!("{{ {} }}", written.join(", ")), place);
    }
    if let Some((d, "on")) = scope.value("proxy_protocol") {
        import.missing(
            d,
            "version 1 of the PROXY protocol has no datagrams; set proxy_protocol = \"v2\" if the servers understand it",
        );
    }
    if let Some((d, _)) = scope.value("proxy_connect_timeout") {
        import.same(d, "not needed for UDP");
    }
}

/// Reports the settings of a group that no location uses.
pub(super) fn unused(import: &mut Import) {
    let groups: Vec<_> = import.upstreams.values().copied().collect();
    for group in groups {
        if !import.report.is_known(group.id) {
            import.whole(group, crate::Outcome::Different, "nothing sends requests there; it is left out");
        }
    }
}
