//! `server`, `balance`, health checks: a backend as `[[upstream]]`.

use super::binds::{Defaults, SIGNATURES};
use super::parser::{Line, Proxy};
use crate::ciphers::{self, Versions};
use crate::nginx::is_name;
use crate::output::{Settings, Upstream, quoted};
use crate::report::{Place, Report};
use crate::servers::{self, Scheme, Server};
use crate::units::{haproxy_time, microseconds};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Writes the upstream of a backend; `None` where there is no server that can be written.
pub(super) fn upstream(
    proxy: &Proxy,
    tcp: bool,
    base: &Path,
    global: &Defaults,
    report: &mut Report,
) -> Option<Upstream> {
    let mut up =
        Upstream { name: proxy.section.name.clone(), origin: Some(proxy.section.place.clone()), ..Upstream::default() };
    let defaults: Vec<&Line> = proxy.all().filter(|l| l.word(0) == "default-server").collect();
    defaults.iter().for_each(|l| report.same(l.id, "options of each server"));
    let mut health = Settings::default();
    let mut checked: Option<Place> = None;
    let mut first: Option<Upstream> = None;
    let mut backups = Vec::new();
    // What holds for all servers of an upstream must be the same for each.
    let mut one = |line: &Line, up: &mut Upstream, report: &mut Report| {
        let mut single = Upstream::default();
        server(line, &defaults, global, tcp, base, &mut single, &mut health, &mut checked, report);
        let Some((url, place)) = single.servers.pop() else { return };
        let of = |u: &Upstream, key: &str| u.settings.value(key).map(str::to_owned);
        match &first {
            None => {
                (up.settings, up.tls) = (single.settings.clone(), single.tls.clone());
                first = Some(single.clone());
            }
            Some(first) => {
                let alike = ["proxy_protocol", "http"].iter().all(|k| of(first, k) == of(&single, k));
                let secure = |url: &str| url.contains("https://");
                let both_secure = up.servers.iter().all(|(u, _)| secure(u)) && secure(&url);
                if !alike
                    || first.tls.same() != single.tls.same()
                        && (both_secure || !up.tls.is_empty() || !single.tls.is_empty())
                {
                    report.decide(
                        line.id,
                        "this server has other TLS or protocol settings than the first server of the backend. In Sealane, all servers of an \
                         upstream share them: write a separate upstream",
                    );
                }
                for key in ["max_connections", "queue", "slow_start"] {
                    match (of(first, key), of(&single, key)) {
                        (a, b) if a == b => {}
                        (_, Some(value)) => {
                            up.settings.set(key, value, &line.place);
                            report.differs(
                                line.id,
                                format!("{key} applies to all servers: the import writes the last value"),
                            );
                        }
                        _ => report.differs(
                            line.id,
                            format!(
                                "{key} applies to all servers, so this server also has the {key} of another server"
                            ),
                        ),
                    }
                }
            }
        }
        if url.contains("backup = true") {
            backups.push(line.id);
        }
        up.servers.push((url, place));
    };
    for line in proxy.own() {
        match line.word(0) {
            "server" => one(line, &mut up, report),
            "server-template" => {
                // `srv 1-5 name:80`: a name with several addresses is several servers.
                let mut named = line.clone();
                if named.words.len() > 3 {
                    named.words.remove(2);
                    one(&named, &mut up, report);
                    report.differs(line.id, "a name with several addresses counts as several servers");
                } else {
                    report.missing(line.id, "is not understood");
                }
            }
            _ => {}
        }
    }
    if !proxy.own().any(|l| matches!(l.word(0), "server" | "server-template")) {
        report.same(proxy.section.id, "has no server: requests get 503, unless its rules answer");
        return None;
    }
    if up.servers.is_empty() {
        report.missing(proxy.section.id, "has no server that Sealane can reach; requests get 503");
        return None;
    }
    if proxy.option("allbackups").is_none() {
        for id in backups.into_iter().skip(1) {
            report.differs(id, "Sealane uses all backup servers (HAProxy: only the first one that is up)");
        }
    }
    balance(proxy, tcp, &mut up, report);
    if let Some(l) = closing(proxy).filter(|_| !tcp) {
        match up.settings.has("http") {
            true => report.differs(l.id, "connections over HTTP/2 stay open"),
            false => {
                // With the PROXY protocol, it is always so.
                if !up.settings.has("proxy_protocol") {
                    up.settings.set("keepalive", "0", &l.place);
                }
                report.same(l.id, "keepalive = 0: connections of clients stay open all the same");
            }
        }
    }
    timeouts(proxy, tcp, &mut up, &mut health, report);
    checks(proxy, tcp, &mut health, report);
    if let Some(place) = checked {
        if health.is_empty() {
            // The section alone switches checks on.
            health.set("interval", "\"2s\"", &place);
        }
        up.health = Some(health);
    }
    if let Some(l) = proxy.all().filter(|l| l.word(0) == "retries").last() {
        match l.word(1).parse::<u32>() {
            Ok(n @ 0..=15) => {
                up.settings.set("tries", (n + 1).to_string(), &l.place);
                report.same(l.id, "tries");
            }
            _ => report.missing(l.id, "tries is at most 16"),
        }
    }
    // After some responses, too.
    let by_response = |w: &String| w.bytes().all(|b| b.is_ascii_digit()) || RESPONSES.contains(&w.as_str());
    for l in proxy.all().filter(|l| l.word(0) == "retry-on" && l.from(1).iter().any(by_response)) {
        report.differs(
            l.id,
            "Sealane does not send a request again because of the response: the client gets it, and with sticky, its next requests go \
             to this server. Let a health check find such a server: write status in [upstream.health]",
        );
    }
    Some(up)
}

/// Options that select when connections are closed; the last one counts.
const CLOSING: &[&str] = &["http-keep-alive", "http-server-close", "httpclose", "forceclose", "http-tunnel"];

/// The option because of which HAProxy closes connections to servers after each response.
pub(super) fn closing<'s>(proxy: &Proxy<'s>) -> Option<&'s Line> {
    let mut found: Option<&'s Line> = None;
    for l in proxy.all() {
        match (l.word(0), l.word(1), l.word(2)) {
            ("option", name, _) if CLOSING.contains(&name) => found = Some(l),
            ("no", "option", name) if found.is_some_and(|there| there.word(1) == name) => found = None,
            _ => {}
        }
    }
    found.filter(|l| !matches!(l.word(1), "http-keep-alive" | "http-tunnel"))
}

/// Gives an upstream the health checks of the servers that its own ones track (`track BACKEND/SERVER`), if each is at the same address,
/// perhaps with another port.
pub(super) fn track(proxy: &Proxy, groups: &mut BTreeMap<String, Option<Upstream>>, report: &mut Report) {
    let option = |words: &[String]| words.windows(2).find(|w| w[0] == "track").map(|w| w[1].clone());
    let default = proxy.all().filter(|l| l.word(0) == "default-server").filter_map(|l| option(l.from(1))).last();
    let of = |l: &Line| option(l.from(3)).or_else(|| default.clone());
    let servers = proxy.own().filter(|l| l.word(0) == "server");
    let lines: Vec<(&Line, String)> = servers.filter_map(|l| Some((l, of(l)?))).collect();
    let Some((first, named)) = lines.first() else { return };
    // Of the section itself without a name.
    let target = |named: &str| named.split_once('/').map(|(backend, _)| backend.to_owned());
    let Some(from) = target(named).filter(|from| *from != proxy.section.name) else {
        for (l, _) in &lines {
            report.differs(l.id, "track: if the upstream has health checks, each of its servers is checked");
        }
        return;
    };
    let found = groups.get(&from).and_then(Option::as_ref).and_then(|tracked| {
        let health = tracked.health.clone()?;
        let own = groups.get(&proxy.section.name)?.as_ref().filter(|own| own.health.is_none())?;
        let port = |up: &Upstream| -> Option<(BTreeSet<String>, u16)> {
            let all: Vec<(String, u16)> =
                up.servers.iter().map(|(server, _)| host_of(server)).collect::<Option<_>>()?;
            let port = all.first()?.1;
            all.iter().all(|(_, p)| *p == port).then(|| (all.into_iter().map(|(host, _)| host).collect(), port))
        };
        let ((there, checked), (here, used)) = (port(tracked)?, port(own)?);
        let is_alike = lines.iter().all(|(_, named)| target(named).as_ref() == Some(&from))
            && lines.len() == own.servers.len()
            && here.is_subset(&there)
            && own.tls.same() == tracked.tls.same()
            && own.settings.value("http") == tracked.settings.value("http");
        is_alike.then_some((health, checked, used))
    });
    let Some((mut health, checked, used)) = found else {
        for (l, named) in &lines {
            let from = target(named).unwrap_or_else(|| proxy.section.name.clone());
            report.differs(
                l.id,
                format!(
                    "track: this upstream has no health checks of its own: copy the [upstream.health] of the upstream {from} into \
                     it. Without checks, only failures of requests are observed (eject_after)"
                ),
            );
        }
        return;
    };
    if checked != used && !health.has("port") {
        health.set("port", checked.to_string(), &first.place);
    }
    if let Some(Some(own)) = groups.get_mut(&proxy.section.name) {
        own.health = Some(health);
    }
    for (l, _) in &lines {
        report.differs(
            l.id,
            format!("track: this upstream has the health checks of {from}, and checks its servers itself"),
        );
    }
}

/// Scheme and host of a server of an upstream, as written there, and its port.
fn host_of(server: &str) -> Option<(String, u16)> {
    let url = server.strip_prefix("{ url = ").unwrap_or(server).split('"').nth(1)?;
    let (host, port) = url.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// What `retry-on` calls a response after which a request is sent again.
const RESPONSES: &[&str] = &["all-retryable-errors", "junk-response", "response-timeout"];

/// An address of `server` as a URL.
fn url(address: &str, scheme: Scheme) -> Result<String, &'static str> {
    let address = address
        .strip_prefix("ipv4@")
        .or(address.strip_prefix("ipv6@"))
        .or(address.strip_prefix("tcp@"))
        .unwrap_or(address);
    if let Some(path) = address.strip_prefix("unix@").or(address.starts_with('/').then_some(address)) {
        return servers::url(scheme, &format!("unix:{path}"), 0);
    }
    match address.contains('@') {
        true => {
            Err("the import does not translate this kind of address: write the server in servers of the [[upstream]], \
                 with an IP address or with the path of a Unix socket (\"unix:PATH\")")
        }
        false => servers::url(scheme, address, scheme.port()),
    }
}

/// A path of `global`'s folder for such files (`ca-base`, `crt-base`), which is empty without one.
fn file(base: &Path, folder: &str, name: &str) -> String {
    base.join(folder).join(name).to_string_lossy().into_owned()
}

#[expect(clippy::too_many_arguments, reason = "what is read, and what is written into")]
fn server(
    line: &Line,
    defaults: &[&Line],
    global: &Defaults,
    tcp: bool,
    base: &Path,
    up: &mut Upstream,
    health: &mut Settings,
    checked: &mut Option<Place>,
    report: &mut Report,
) {
    let id = line.id;
    let mut options: Vec<(&str, &Line)> = Vec::new();
    for l in defaults {
        options.extend(l.from(1).iter().map(|w| (w.as_str(), *l)));
    }
    options.extend(line.from(3).iter().map(|w| (w.as_str(), line)));
    let tls = options.iter().rev().find_map(|(w, _)| match *w {
        "ssl" => Some(true),
        "no-ssl" => Some(false),
        _ => None,
    });
    let tls = tls.unwrap_or(false);
    if tls {
        global.server.iter().for_each(|(_, l)| report.same(l.id, "[upstream.tls] of each server with TLS"));
        options.splice(..0, global.server.iter().copied());
    }
    let scheme = match (tcp, tls) {
        (true, true) => {
            return report.missing(
                id,
                "the gateway adds no TLS to relayed connections: let the server accept connections without TLS",
            );
        }
        (true, false) => Scheme::Tcp,
        (false, true) => Scheme::Https,
        (false, false) => Scheme::Http,
    };
    let url = match url(line.word(2), scheme) {
        Ok(url) => url,
        Err(why) => return report.missing(id, why),
    };
    report.same(id, "servers");
    let mut found = Server { url, ..Server::default() };
    let mut verify = None;
    // Versions of TLS, and the line that says so.
    let mut offered: Option<(Versions, &Line)> = None;
    let mut i = 0;
    while i < options.len() {
        let (option, at) = options[i];
        let value = options.get(i + 1).map_or("", |(w, _)| *w);
        let place = &at.place;
        let mut used = 2;
        match option {
            "check" => {
                *checked = Some(place.clone());
                used = 1;
            }
            "no-check" => {
                *checked = None;
                used = 1;
            }
            "inter" | "fastinter" | "downinter" => match haproxy_time(value) {
                Some(t) if option == "inter" && t != "0s" => health.set("interval", quoted(&t), place),
                _ => report.differs(at.id, format!("{option}: there is one interval for all states of a server")),
            },
            "rise" | "fall" if value.parse::<u32>().is_ok_and(|n| (1..=1000).contains(&n)) => {
                health.set(option, value, place)
            }
            "weight" => match value.parse::<u32>() {
                Ok(n @ 0..=256) => found.weight = Some(n),
                _ => report.differs(at.id, "a weight is from 0 to 256"),
            },
            "backup" => {
                found.backup = true;
                used = 1;
            }
            "disabled" => return report.differs(id, "is disabled, and left out"),
            "ssl" | "no-ssl" | "enabled" | "check-ssl" | "no-backup" | "sni-auto"
            | "no-sslv3" | "no-tls-tickets" | "ssl-reuse" | "no-ssl-reuse" | "non-stick" | "stick" | "redispatch"
            | "no-send-proxy" => used = 1,
            "allow-0rtt" => {
                used = 1;
                report.differs(at.id, "the gateway sends no early data to servers: set early_data = \"client\" in [upstream.tls]");
            }
            "no-verifyhost" => {
                used = 1;
                report.differs(at.id, "the name in a server's certificate is always verified: set server_name if it is another name");
            }
            "verify" => verify = Some((value, at)),
            "ca-file" if value == "@system-ca" => {}
            "ca-file" => up.tls.set("ca", quoted(&file(base, &global.ca_base, value)), place),
            "crt" => up.tls.set("cert", quoted(&file(base, &global.crt_base, value)), place),
            "crl-file" => up.tls.set("crl", quoted(&file(base, &global.ca_base, value)), place),
            "sni" => match value.strip_prefix("str(").and_then(|v| v.strip_suffix(')')) {
                Some(name) => up.tls.set("server_name", quoted(name), place),
                None => report
                    .differs(at.id, "Sealane always sends the same name to the server (SNI): server_name of \
                                     [upstream.tls], or the host in the server's address"),
            },
            "verifyhost" => up.tls.set("server_name", quoted(value), place),
            "check-sni" => report.differs(at.id, "health checks send the same name as requests (SNI)"),
            "alpn" | "proto" => {
                used = 2;
                let first = value.split(',').next().unwrap_or("");
                match (first, value.contains(',')) {
                    ("h2", true) if tls => up.settings.set("http", "\"auto\"", place),
                    ("h2", _) => up.settings.set("http", "\"2\"", place),
                    _ => {}
                }
            }
            "check-alpn" | "check-proto" => {
                report.differs(at.id, "checks use HTTP/2 if requests use only HTTP/2, and HTTP/1.1 in all other cases")
            }
            "maxconn" => {
                if let Ok(n @ 1..=1_000_000) = value.parse::<u32>() {
                    servers::one_for_all(up, "max_connections", &n.to_string(), place, at.id, report);
                }
            }
            "maxqueue" => {
                if let Ok(n) = value.parse::<u32>().map(|n| n.min(1_000_000)) {
                    up.settings.set("queue", n.to_string(), place);
                }
            }
            "send-proxy" | "send-proxy-v2" | "send-proxy-v2-ssl" | "send-proxy-v2-ssl-cn" => {
                used = 1;
                if option.contains("ssl") {
                    report.missing(at.id, "the PROXY header has no information about TLS; the server gets Client-Cert");
                }
                up.settings.set("proxy_protocol", if option == "send-proxy" { "\"v1\"" } else { "\"v2\"" }, place);
            }
            "cookie" => {}
            "slowstart" => {
                if let Some(t) = haproxy_time(value) {
                    up.settings.set("slow_start", quoted(&t), place);
                }
            }
            "resolvers" | "resolve-prefer" | "resolve-net" | "resolve-opts" | "init-addr" | "id" | "pool-max-conn"
            | "pool-purge-delay" | "pool-low-conn" | "minconn" | "observe" | "error-limit" | "on-error"
            | "on-marked-down" | "on-marked-up" | "track" | "tcp-ut" | "hash-key" | "max-reuse" => {
                // For `track`, see there.
                if matches!(option, "observe" | "error-limit" | "on-error" | "minconn" | "on-marked-down") {
                    report.differs(at.id, format!("{option}: failures of requests are always observed (eject_after)"));
                }
            }
            "tfo" => used = 1,
            "namespace" => report.decide(
                at.id,
                "namespace: servers are reached from the network namespace of the gateway: start the gateway in this namespace",
            ),
            "tcp-md5sig" => report.decide(
                at.id,
                "tcp-md5sig: Sealane does not sign its TCP segments (RFC 2385): use TLS with a client certificate ([upstream.tls])",
            ),
            "port" | "addr" | "agent-check" | "agent-port" | "agent-inter" | "agent-addr" | "check-send-proxy"
            | "source" => {
                used = if matches!(option, "agent-check" | "check-send-proxy") { 1 } else { 2 };
                report.missing(at.id, format!("{option}: the import does not translate this option. Health checks go \
                                               to the address of the server; for another port, write port in \
                                               [upstream.health]"));
            }
            option if Versions::is_option(option) => {
                let versions = &mut offered.get_or_insert((Versions::DEFAULT, at)).0;
                used = versions.option(option, value);
            }
            "ciphers" => servers::suites(value, at.id, report),
            "curves" if ciphers::groups(value).0.is_empty() => {
                report.decide(at.id, "curves: Sealane has none of these");
            }
            "sigalgs" | "client-sigalgs" => report.differs(at.id, SIGNATURES),
            "ciphersuites" | "curves" => {
                report.differs(at.id, format!("{option}: Sealane offers all that it supports, in its own order"));
            }
            other => {
                used = 1;
                report.decide(at.id, crate::report::unknown_option(other));
            }
        }
        i += used;
    }
    if tls {
        match verify {
            Some(("none", at)) => {
                servers::skip_verification(up, &at.place, id, report);
            }
            Some(("required", _)) => {}
            Some((other, at)) => report.decide(at.id, format!("verify {other} is not understood")),
            None => report.same(id, "verified"),
        }
    }
    if let Some((versions, at)) = offered.filter(|_| tls) {
        servers::versions(up, versions, &at.place, at.id, report);
    }
    found.add(up, &line.place);
}

fn balance(proxy: &Proxy, tcp: bool, up: &mut Upstream, report: &mut Report) {
    if let Some(l) = proxy.last(&["balance"]) {
        let algorithm = l.word(1);
        match algorithm.split('(').next().unwrap_or("") {
            "roundrobin" | "static-rr" => report.same(l.id, "the default"),
            "leastconn" => {
                up.settings.set("balance", "\"least_connections\"", &l.place);
                report.differs(l.id, "requests are counted per lane");
            }
            "random" => {
                up.settings.set("balance", "\"random_two\"", &l.place);
                report.same(l.id, "balance = \"random_two\"");
            }
            "source" => {
                up.settings.set("hash_by", "\"address\"", &l.place);
                report.differs(l.id, "clients go to other servers than in HAProxy; the hash is always consistent");
            }
            "hdr" if !tcp => match algorithm
                .strip_prefix("hdr(")
                .and_then(|a| a.strip_suffix(')'))
                .filter(|n| is_name(n))
            {
                Some(name) => {
                    up.settings.set("hash_by", quoted(&format!("header:{name}")), &l.place);
                    if crate::values::is_claim(name) {
                        report.differs(l.id, crate::values::CLAIM);
                    }
                    report.differs(l.id, "requests go to other servers than in HAProxy; the hash is always consistent");
                }
                None => report.missing(l.id, "is not understood"),
            },
            _ => report.missing(
                l.id,
                "Sealane has no such algorithm, so servers take turns (round_robin): if this is not enough, write balance = \"least_connections\", \
                 \"random_two\" or \"hash\"",
            ),
        }
    }
    if let Some(l) = proxy.last(&["hash-type"]) {
        report.same(l.id, "always consistent");
    }
    if let Some(l) = proxy.own().filter(|l| l.word(0) == "cookie").last().or(proxy.last(&["cookie"])) {
        let has = |mode: &str| l.words.iter().any(|w| w == mode);
        match is_name(l.word(1)) && !tcp {
            true if has("insert") => {
                up.settings.set("sticky", quoted(l.word(1)), &l.place);
                cookie(l, report);
            }
            true if has("prefix") => {
                up.settings.set("sticky", quoted(&format!("{}-server", l.word(1))), &l.place);
                report.differs(
                    l.id,
                    format!(
                        "sticky: a cookie {0}-server of Sealane keeps a client with its server, and {0} of the server stays as it is. At the \
                         switch, clients still send {0} with HAProxy's prefix (\"SERVER~\"), which Sealane passes on: servers do not know \
                         these sessions, so users have to log in again. Switch when few users are logged in",
                        l.word(1)
                    ),
                );
            }
            _ => report.missing(
                l.id,
                "sticky always inserts a cookie of its own, as HAProxy does with \"insert\": write sticky with another name than that of the \
                 server's cookie",
            ),
        }
    }
}

/// Reports what the options of `cookie NAME insert` become.
fn cookie(l: &Line, report: &mut Report) {
    report.differs(
        l.id,
        "sticky: the cookie has another value, the attributes Path=/, HttpOnly, SameSite=Lax and over TLS Secure, and ends with the \
         browser's session",
    );
    let mut i = 2;
    while i < l.words.len() {
        let option = l.word(i);
        let takes_value = matches!(option, "domain" | "maxidle" | "maxlife" | "attr");
        match option {
            "insert" | "httponly" | "secure" | "dynamic" => {}
            "indirect" => report.differs(l.id, "indirect: Sealane passes the cookie on to the server"),
            "nocache" => report.differs(
                l.id,
                "nocache: Sealane does not add \"Cache-Control: private\" to a response with its cookie. If a cache is in front of Sealane, \
                 let the server send this header, or write response_headers.add.Cache-Control = \"private\"",
            ),
            "postonly" => report.differs(l.id, "postonly: Sealane also sets the cookie in responses to other methods than POST"),
            "preserve" => report.differs(l.id, "preserve: a cookie of this name that the server sends does not select a server"),
            "domain" | "maxidle" | "maxlife" | "attr" => {
                report.differs(l.id, format!("{option} {}: the cookie has no such limit or attribute", l.word(i + 1)));
            }
            _ => report.decide(l.id, crate::report::unknown_option(option)),
        }
        i += if takes_value { 2 } else { 1 };
    }
}

fn timeouts(proxy: &Proxy, tcp: bool, up: &mut Upstream, health: &mut Settings, report: &mut Report) {
    for (name, keys) in [("connect", &["connect_timeout"][..]), ("server", &["first_byte_timeout", "idle_timeout"])] {
        let Some(l) = proxy.last(&["timeout", name]) else { continue };
        match haproxy_time(l.word(2)).filter(|t| t != "0s") {
            Some(t) => {
                keys.iter().for_each(|k| up.settings.set(k, quoted(&t), &l.place));
                report.same(l.id, keys.join(" and "));
            }
            None => report.missing(l.id, "a timeout cannot be zero: the import leaves it out"),
        }
    }
    if let Some(l) = proxy.last(&["timeout", "tunnel"]) {
        tunnel_timeout(l, tcp, up, report);
    }
    if let Some(l) = proxy.last(&["timeout", "queue"]) {
        match (haproxy_time(l.word(2)).filter(|t| t != "0s"), up.settings.has("max_connections")) {
            (Some(t), true) => {
                up.settings.set("queue_timeout", quoted(&t), &l.place);
                report.same(l.id, "queue_timeout");
            }
            _ => report.same(l.id, "there is no queue without maxconn"),
        }
    }
    if let Some(l) = proxy.last(&["timeout", "check"]) {
        match haproxy_time(l.word(2)).filter(|t| t != "0s") {
            Some(t) => {
                health.set("timeout", quoted(&t), &l.place);
                report.same(l.id, "health.timeout");
            }
            None => report.missing(l.id, "a timeout cannot be zero: the import leaves it out"),
        }
    }
}

/// `timeout tunnel`: the longest silence of upgraded connections (WebSocket) and, in mode tcp, of all connections. In Sealane, this is
/// `idle_timeout`, which also applies to responses.
fn tunnel_timeout(l: &Line, tcp: bool, up: &mut Upstream, report: &mut Report) {
    let Some(tunnel) = haproxy_time(l.word(2)).filter(|t| t != "0s") else {
        return report.missing(l.id, "a timeout cannot be zero: the import leaves it out");
    };
    let there = up.settings.value("idle_timeout").map(|t| t.trim_matches('"').to_owned());
    let (of_server, of_tunnel) = (there.as_deref().and_then(microseconds), microseconds(&tunnel));
    if tcp || there.is_none() || of_server == of_tunnel {
        up.settings.set("idle_timeout", quoted(&tunnel), &l.place);
        return report.same(l.id, "idle_timeout");
    }
    if of_server < of_tunnel {
        up.settings.set("idle_timeout", quoted(&tunnel), &l.place);
        return report.differs(
            l.id,
            "idle_timeout applies to upgraded connections (WebSocket) and to responses: the import writes the value of \"timeout \
             tunnel\". A server may be silent for this long within a response; first_byte_timeout has the value of \"timeout server\"",
        );
    }
    report.differs(
        l.id,
        "idle_timeout applies to upgraded connections (WebSocket) and to responses: the import writes the value of \"timeout server\", \
         which is longer",
    );
}

/// The options that select what health checks are.
const CHECKS: &[&str] = &[
    "httpchk",
    "tcp-check",
    "ssl-hello-chk",
    "external-check",
    "ldap-check",
    "mysql-check",
    "pgsql-check",
    "redis-check",
    "smtpchk",
    "spop-check",
];

const CONNECT: &str = "a check is one request";

/// What the report says of a check that has nothing but `http-check expect`.
const SILENT: &str = "this section has no \"http-check send\" and no \"option httpchk\" of its own, so HAProxy 2.2 and later send no request \
     in this check, and its servers are down after the first checks (503). Sealane sends the inherited request";

fn checks(proxy: &Proxy, tcp: bool, health: &mut Settings, report: &mut Report) {
    // The last option selects the kind of all checks.
    let kind = proxy.all().filter(|l| l.word(0) == "option" && CHECKS.contains(&l.word(1))).last();
    let is_kind = |on: &&Line| kind.is_some_and(|l| l.id == on.id);
    let Some(on) = proxy.option("httpchk").filter(|_| !tcp).filter(is_kind) else { return };
    // A section with a check of its own inherits neither rules nor the request.
    let is_rule = |l: &Line| l.word(0) == "http-check" && matches!(l.word(1), "connect" | "send" | "expect");
    let is_send = |l: &Line| l.is(&["option", "httpchk"]) || l.is(&["http-check", "send"]);
    let has_own = proxy.own().any(|l| l.is(&["option", "httpchk"]) || is_rule(l));
    let is_silent = has_own && !proxy.own().any(is_send);
    let is_own = |l: &Line| proxy.own().any(|own| own.id == l.id);
    if is_silent && !proxy.own().any(|l| l.is(&["http-check", "expect"])) {
        // HAProxy only connects.
        for l in proxy.own().filter(|l| is_rule(l)) {
            match l.words.len() {
                2 => report.same(l.id, "a health check without a request"),
                _ => report.missing(l.id, CONNECT),
            }
        }
        return;
    }
    let mut path = "/".to_owned();
    let words: &[String] = if has_own && !is_silent && !is_own(on) { &[] } else { on.from(2) };
    match words {
        [] => {}
        [path_] => path = path_.clone(),
        [_, path_, ..] => path = path_.clone(),
    }
    let mut place = on.place.clone();
    report.differs(on.id, "health.path: the request is always GET, and statuses from 200 to 399 are good");
    let is_inherited = |l: &Line| is_silent && l.is(&["http-check", "send"]);
    let applies = |l: &&Line| l.word(0) == "http-check" && (!has_own || !is_rule(l) || is_own(l) || is_inherited(l));
    for l in proxy.all().filter(applies) {
        match l.word(1) {
            "send" => {
                if let Some(uri) = l.after("uri") {
                    path = uri.to_owned();
                    place = l.place.clone();
                }
                let host =
                    l.words.iter().position(|w| w == "hdr").filter(|i| l.word(i + 1).eq_ignore_ascii_case("host"));
                if let Some(at) = host {
                    health.set("host", quoted(l.word(at + 2)), &l.place);
                }
                report.differs(l.id, "health.path and host: the request is always GET");
            }
            "expect" => {
                match (l.word(2), l.word(3)) {
                    ("status", range) if is_range(range) => {
                        health.set("status", quoted(range), &l.place);
                        report.same(l.id, "health.status");
                    }
                    _ => report.missing(
                        l.id,
                        "health checks compare only the status of the response, with one status or with a range such \
                         as \"200-399\"",
                    ),
                }
                if is_silent {
                    report.differs(l.id, format!("{SILENT}, here {path}"));
                }
            }
            "disable-on-404" => report.missing(l.id, "`sealane server` drains a server"),
            _ => report.missing(l.id, CONNECT),
        }
    }
    match path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic()) {
        true => health.set("path", quoted(&path), &place),
        false => report.missing(on.id, "is not a path"),
    }
}

fn is_range(text: &str) -> bool {
    let status = |t: &str| t.parse::<u16>().is_ok_and(|n| (100..=599).contains(&n));
    text.split_once('-').map_or_else(|| status(text), |(a, b)| status(a) && status(b) && a <= b)
}
