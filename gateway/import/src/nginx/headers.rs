//! Headers: `proxy_set_header`, `add_header`, `proxy_hide_header`.

use super::auth;
use super::cors;
use super::locations::Site;
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::variables::{Piece, expand, has_variables, of_request, pieces};
use crate::output::{Edits, quoted};
use crate::report::Place;

/// What a location changes in messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    pub request: Edits,
    pub response: Edits,
    pub hsts: Option<(String, Place)>,
    /// `cors` in TOML.
    pub cors: Option<(String, Place)>,
    /// `Host` for the servers.
    pub host: Option<HostHeader>,
    /// The header in which servers get the name of the user.
    pub user: Option<(String, Place)>,
    /// Response headers with the value of the `map` that chooses the server.
    pub by_map: Vec<ByMap>,
}

/// A response header that says which server a `map` has chosen: each of the routes of the map has its value.
#[derive(Clone, Debug)]
pub(super) struct ByMap {
    pub name: String,
    /// The value of the map's default.
    pub default: String,
    /// The header is on errors, too.
    pub always: bool,
    pub id: crate::report::Id,
    pub place: Place,
}

/// What `Host` says.
#[derive(Clone, Debug)]
pub(super) enum HostHeader {
    /// What the client sends.
    Client,
    Literal(String, Place),
}

/// Response headers that tell about the gateway or help to find errors: without them nothing is weaker. All others may protect.
const TELLING: &[&str] = &[
    "server-timing",
    "x-backend",
    "x-cache",
    "x-cache-status",
    "x-proxy-cache",
    "x-request-id",
    "x-request-time",
    "x-response-time",
    "x-served-by",
    "x-upstream",
    "x-upstream-addr",
    "x-upstream-response-time",
];

/// Headers that frame messages or belong to one connection.
pub(crate) const FRAMING: &[&str] = &[
    "connection",
    "upgrade",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "expect",
    "proxy-connection",
];

/// What is said of a response header whose value is no constant.
pub(super) const NO_CONSTANT: &str = "header values must be constants, and this header may protect the site's users: let the server send it, or \
     write a constant in response_headers of each route";

/// What is said of a response header without "always".
pub(super) const ALWAYS: &str = "added to every response, also to those with an error status, as with \"always\"";

/// What is said of `X-Forwarded-For`.
const SENT: &str = "always sent; the gateway removes entries of clients that are not in trusted_proxies";

/// The same, where proxies are trusted.
const CHAIN: &str = "always sent; the gateway removes entries of clients that are not in trusted_proxies. In a request from a trusted proxy, the \
     last entry is the address of this proxy; in NGINX, with set_real_ip_from, it is the client's address again. A server that takes \
     the last entry for the client must take the first one, or read a header with {client_address} (proxy_set_header X-Real-IP $remote_addr)";

/// Whether text can be the value of a header.
pub(crate) fn is_value(text: &str) -> bool {
    !text.chars().any(char::is_control) && text.trim() == text
}

pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// What a scope changes in requests. `set`: the directive, which differs between HTTP and gRPC.
pub(super) fn request<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    scope: &Scope<'d>,
    set: &str,
    changes: &mut Changes,
) {
    for d in scope.all(&[set]) {
        let (Some(name), Some(written)) = (d.word(1), d.word(2)) else {
            import.decide(d, "has no value");
            continue;
        };
        let value = expand(import, scope, written);
        let value = value.trim();
        let plain = value.replace(['{', '}'], "");
        match name.to_ascii_lowercase().as_str() {
            "host" => match host(import, site, d, value) {
                Some(said) => changes.host = said,
                None => {
                    import.decide(
                        d,
                        "Sealane sends the client's Host, or a constant, and the server may select its content by \
                         Host: if the server needs another Host than the client's, write host_header in the \
                         [[upstream]]",
                    );
                    changes.host = Some(HostHeader::Client);
                }
            },
            "connection" | "upgrade" => import.same(d, "the gateway manages connections and upgrades (WebSocket)"),
            n if FRAMING.contains(&n) => import.same(d, "the gateway frames messages itself"),
            "x-forwarded-for" | "forwarded" if plain.starts_with('$') => match import.trusts {
                true => import.differs(d, CHAIN),
                false => import.differs_a_little(d, SENT),
            },
            // A trusted proxy may have said something else.
            "x-forwarded-proto" if plain == "$scheme" && import.trusts => {
                of_parts(import, site, d, name, value, changes)
            }
            "x-forwarded-host" if matches!(plain.as_str(), "$host" | "$http_host") && import.trusts => {
                of_parts(import, site, d, name, value, changes);
            }
            // The gateway says the same.
            "x-forwarded-proto" if plain == "$scheme" || of_port(site) == Some(plain.as_str()) => {
                import.same(d, "always sent")
            }
            "x-forwarded-proto" if plain.starts_with('$') => {
                import
                    .differs(d, "always sent, with the scheme of this connection, or the scheme that a proxy in trusted_proxies sent");
            }
            "x-forwarded-host" if matches!(plain.as_str(), "$host" | "$http_host") => import.same(d, "always sent"),
            "early-data" if plain == "$ssl_early_data" => {
                import.same(d, "always sent, if a request comes in early data")
            }
            _ if !is_name(name) => import.decide(d, "is not the name of a header"),
            _ if value.is_empty() => {
                changes.request.remove(name, &d.place);
                import.same(d, "request_headers.remove");
            }
            n if plain == format!("$http_{}", n.replace('-', "_")) => import.same(d, "passed on without a setting"),
            _ if is_answered(scope, &plain) => import.same(d, "copy_headers of forward_auth"),
            // Where nobody is asked, the variable is empty, and the header is not sent.
            _ if plain.strip_prefix('$').is_some_and(|v| auth::answered(scope, v).is_some()) => {
                changes.request.remove(name, &d.place);
                import.same(d, "request_headers.remove");
            }
            _ if plain == "$remote_user" && asks_for_password(scope) && changes.user.is_none() => {
                changes.user = Some((name.to_owned(), d.place.clone()));
                import.same(d, "basic_auth.user_header");
            }
            _ if plain == "$request_id" => request_id(import, d, name),
            _ => of_parts(import, site, d, name, value, changes),
        }
    }
    if let Some((d, value)) = scope.value("proxy_pass_request_headers") {
        match value {
            "on" => import.same(d, ""),
            _ => import.decide(
                d,
                "Sealane forwards requests with their headers; name the headers to remove in request_headers",
            ),
        }
    }
}

/// Whether servers get `Upgrade` from clients, and the line that says so. In NGINX they get it only if the configuration sends both
/// headers.
pub(super) fn upgrade<'d>(import: &mut Import<'d>, scope: &Scope<'d>, pass: &'d Directive) -> (bool, Place) {
    if pass.name() != "proxy_pass" {
        return (false, pass.place.clone());
    }
    let all = scope.all(&["proxy_set_header"]);
    let mut value = |name: &str| {
        let d = all.iter().rev().find(|d| d.word(1).is_some_and(|n| n.eq_ignore_ascii_case(name)))?;
        Some((d.place.clone(), expand(import, scope, d.word(2)?)))
    };
    match (value("upgrade"), value("connection")) {
        (Some((place, asked)), Some((_, connection))) => {
            let is_said = connection.contains('$') || connection.to_ascii_lowercase().contains("upgrade");
            (is_said && !asked.trim().is_empty(), place)
        }
        (Some((place, _)), None) => (false, place),
        (None, _) => (false, pass.place.clone()),
    }
}

/// A header that is a constant or has parts of the request.
fn of_parts<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    d: &'d Directive,
    name: &str,
    value: &str,
    changes: &mut Changes,
) {
    match of_request(value, site.name.as_deref(), site.port) {
        Ok(value) if is_value(&value) => {
            match value.contains("{client_certificate_result}") {
                true => import.differs_a_little(
                    d,
                    "request_headers.set: for a request without TLS, $ssl_client_verify is NONE (in NGINX, it is empty)",
                ),
                false => import.same(d, "request_headers.set"),
            }
            changes.request.set(name, &value, &d.place);
        }
        Ok(_) => import.decide(d, "is not the value of a header"),
        Err(what) => {
            // The client must not be able to say it instead.
            changes.request.remove(name, &d.place);
            match what.starts_with("$ssl_client") {
                true => import.decide(
                    d,
                    format!(
                        "servers get the client's certificate in Client-Cert (RFC 9440), and request_headers has no {what}; this header \
                         is removed, so make the server read Client-Cert"
                    ),
                ),
                false => import.missing(d, format!("request_headers has no {what}; the header is removed from requests")),
            }
        }
    }
}

/// Whether a password is asked for, whose user is `$remote_user`.
fn asks_for_password(scope: &Scope) -> bool {
    scope.last("auth_basic").is_some_and(|d| d.word(1) != Some("off"))
}

/// The scheme of an address with a usual port, as a value of `X-Forwarded-Proto`.
fn of_port(site: &Site) -> Option<&'static str> {
    match site.port {
        Some(443) => Some("https"),
        Some(80) => Some("http"),
        _ => None,
    }
}

/// A header with the ID of the request: all requests have it.
fn request_id<'d>(import: &mut Import<'d>, d: &'d Directive, name: &str) {
    let wanted = quoted(name);
    match import.out.request_id.value("header").map(str::to_owned) {
        Some(there) if !there.eq_ignore_ascii_case(&wanted) => {
            import.missing(d, format!("[request_id] has the header {there}: let the server read this header"));
        }
        there => {
            if there.is_none() {
                import.out.request_id.set("header", wanted, &d.place);
            }
            import.differs(
                d,
                "[request_id]: requests of all hosts have this header, and an ID that a trusted proxy sends is kept",
            );
        }
    }
}

/// Whether a value is that of a header in the answer of the server that `auth_request` asks.
fn is_answered(scope: &Scope, value: &str) -> bool {
    auth::asks(scope) && value.strip_prefix('$').and_then(|v| auth::answered(scope, v)).is_some()
}

/// What `Host` says by a value. The outer `None`: there is nothing for it; the inner one: what it says without a setting.
pub(super) fn host<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    d: &'d Directive,
    value: &str,
) -> Option<Option<HostHeader>> {
    let plain = value.replace(['{', '}'], "");
    let found = match plain.as_str() {
        "$http_host" => {
            import.same(d, "the server gets the client's Host");
            Some(HostHeader::Client)
        }
        "$host" | "$host:$server_port" => {
            match site.port {
                None | Some(80 | 443) => import.same(d, "the server gets the client's Host"),
                _ => import.differs(d, "the server gets the client's Host, with the port that the client sends"),
            }
            Some(HostHeader::Client)
        }
        "$server_name" if site.name.is_some() => {
            import.same(d, "host_header");
            site.name.clone().map(|name| HostHeader::Literal(name, d.place.clone()))
        }
        "$proxy_host" => {
            import.same(d, "host_header");
            None
        }
        _ if !has_variables(value) && !value.is_empty() => {
            import.same(d, "host_header");
            Some(HostHeader::Literal(value.to_owned(), d.place.clone()))
        }
        _ => return None,
    };
    Some(found)
}

/// Whether servers cannot name a location by `X-Accel-Redirect`.
pub(super) fn ignores_accel(scope: &Scope) -> bool {
    let all = scope.all(&["proxy_ignore_headers"]);
    all.iter().any(|d| d.arguments().iter().any(|a| a.eq_ignore_ascii_case("X-Accel-Redirect")))
}

/// What a scope changes in responses.
pub(super) fn response<'d>(import: &mut Import<'d>, scope: &Scope<'d>, changes: &mut Changes) {
    for d in scope.all(&["proxy_hide_header", "grpc_hide_header"]) {
        match d.word(1).filter(|n| is_name(n) && !FRAMING.contains(&n.to_ascii_lowercase().as_str())) {
            Some(name) => {
                changes.response.remove(name, &d.place);
                import.same(d, "response_headers.remove");
            }
            None => import.decide(d, "is not the name of a header that can be removed"),
        }
    }
    changes.cors = cors::cors(import, scope);
    for d in scope.all(&["add_header"]) {
        if changes.cors.is_none() || !cors::is_of_cors(d) {
            add_header(import, scope, d, changes);
        }
    }
    if let Some((d, value)) = scope.value("expires")
        && d.words.len() == 2
        && (value == "epoch" || value.starts_with('-'))
    {
        changes.response.set("Cache-Control", "no-cache", &d.place);
        import.differs_a_little(
            d,
            "response_headers.set: Cache-Control is no-cache in every response, and there is no Expires",
        );
    }
    // Of the module headers-more.
    for d in scope.all(&["more_clear_headers"]) {
        for name in d.arguments() {
            match is_name(name) && !name.contains('*') && !FRAMING.contains(&name.to_ascii_lowercase().as_str()) {
                true => {
                    changes.response.remove(name, &d.place);
                    import.same(d, "response_headers.remove");
                }
                false => import.decide(d, "name the headers one by one in response_headers.remove"),
            }
        }
    }
    for d in scope.all(&["more_set_headers"]) {
        for argument in d.arguments() {
            match argument.split_once(':').map(|(n, v)| (n.trim(), v.trim())) {
                Some((n, v)) if is_name(n) && is_value(v) && !v.is_empty() && !has_variables(v) => {
                    changes.response.set(n, v, &d.place);
                    import.same(d, "response_headers.set");
                }
                _ => import.decide(d, "write it as response_headers"),
            }
        }
    }
}

fn add_header<'d>(import: &mut Import<'d>, scope: &Scope<'d>, d: &'d Directive, changes: &mut Changes) {
    let (Some(name), Some(written)) = (d.word(1), d.word(2)) else { return import.decide(d, "has no value") };
    let value = expand(import, scope, written);
    let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
    let lower = name.to_ascii_lowercase();
    if lower == "alt-svc" {
        return import.same(d, "Alt-Svc is always sent if the listener has HTTP/3");
    }
    if value.is_empty() {
        return import.same(d, "an empty value adds nothing");
    }
    if let Some(constant) = of_missing(import, &lower, &value) {
        changes.response.set(name, &constant, &d.place);
        return import
            .differs(d, "response_headers.set: the value is this constant also if the server sends another one");
    }
    if let Some(by_map) = chosen_with(import, scope, d, name, &value) {
        changes.by_map.push(by_map);
        return;
    }
    if has_variables(&value) && lower.starts_with("access-control-") {
        if let Some(map) = only_variable(&value).and_then(|v| import.maps.get(v).copied()) {
            import.same(map, "the report says more at the header that uses this map");
        }
        return import.decide(d, instead_of_origin(import, &value));
    }
    if has_variables(&value) || !is_name(name) || !is_value(&value) || FRAMING.contains(&lower.as_str()) {
        if value.replace(['{', '}'], "") == "$request_id" {
            return import.missing(
                d,
                format!(
                    "write response = true and header = {} in [request_id]: responses of all hosts then have this header",
                    quoted(name)
                ),
            );
        }
        return match TELLING.contains(&lower.as_str()) {
            true => import.missing(d, "values of response headers must be constants: let the server send this header"),
            false => import.decide(d, NO_CONSTANT),
        };
    }
    if lower == "strict-transport-security" && value.contains("max-age=") {
        changes.hsts = Some((value, d.place.clone()));
        return import.same(d, "hsts, which is sent over TLS only");
    }
    if !changes.response.add(name, &value, &d.place) {
        return import.decide(
            d,
            "another directive already adds a header with this name: write one header that contains both values",
        );
    }
    match d.word(3) {
        Some("always") => import.same(d, "response_headers.add"),
        _ => import.differs_a_little(d, ALWAYS),
    }
}

/// The name of a variable that is the whole value.
pub(super) fn only_variable(value: &str) -> Option<&str> {
    match pieces(value).as_slice() {
        [Piece::Variable(name)] => Some(name),
        _ => None,
    }
}

/// The value that a `map` gives a header if the server does not send it: `map $upstream_http_x $x { "" constant; }`.
fn of_missing(import: &mut Import, name: &str, value: &str) -> Option<String> {
    let map = import.maps.get(only_variable(value)?).copied()?;
    let [only] = map.inner() else { return None };
    let constant =
        only.word(1).filter(|v| only.name().is_empty() && !v.is_empty() && is_value(v) && !has_variables(v))?;
    let source = map.word(1)?.replace(['{', '}'], "");
    if source != format!("$upstream_http_{}", name.replace('-', "_")) || !is_name(name) || FRAMING.contains(&name) {
        return None;
    }
    import.same(map, "response_headers.set");
    Some(constant.to_owned())
}

/// A header whose value is the variable by which `proxy_pass` of the same block chooses the server.
fn chosen_with(import: &Import, scope: &Scope, d: &Directive, name: &str, value: &str) -> Option<ByMap> {
    let variable = only_variable(value)?;
    let block = scope.blocks().next()?;
    let to = block.iter().rfind(|d| d.name() == "proxy_pass")?.word(1)?.replace(['{', '}'], "");
    let map =
        import.maps.get(variable).filter(|_| to.split_once("://").is_some_and(|(_, v)| v == format!("${variable}")))?;
    let value =
        |e: &Directive| e.word(1).filter(|v| is_value(v) && !v.is_empty() && !has_variables(v)).map(str::to_owned);
    let default = map.inner().iter().find(|e| e.name() == "default").and_then(value)?;
    let good = is_name(name) && !FRAMING.contains(&name.to_ascii_lowercase().as_str());
    (good && map.inner().iter().all(|e| value(e).is_some())).then(|| ByMap {
        name: name.to_owned(),
        default,
        always: d.word(3) == Some("always"),
        id: d.id,
        place: d.place.clone(),
    })
}

/// Most origins that the report names.
const MAX_ORIGINS: usize = 8;

/// What to write in the place of a header that depends on the origin of the page that asks.
fn instead_of_origin(import: &Import, value: &str) -> String {
    let map = only_variable(value).and_then(|v| import.maps.get(v));
    let keys = map.filter(|m| m.word(1).is_some_and(|s| s.replace(['{', '}'], "") == "$http_origin"));
    let keys: Vec<&str> = keys.map(|m| m.inner().iter().map(Directive::name).collect()).unwrap_or_default();
    let found: Vec<String> = keys.iter().filter(|k| !matches!(**k, "default" | "")).flat_map(|k| origins(k)).collect();
    let list = match found.is_empty() || found.len() > MAX_ORIGINS {
        true => "…".to_owned(),
        false => found.iter().map(|o| quoted(o)).collect::<Vec<_>>().join(", "),
    };
    format!(
        "write cors = {{ origins = [{list}], … }} in the host or route, with methods, headers and credentials as in the other \
         Access-Control headers, and leave those headers out: the gateway then sends them, and answers preflights (OPTIONS) itself: those of other origins get 403"
    )
}

/// The origins that a key of a map of `$http_origin` stands for, as `cors` names them; none where that is not known.
pub(super) fn origins(key: &str) -> Vec<String> {
    let is_origin = |o: &String| {
        o.split_once("://").is_some_and(|(scheme, host)| {
            let host = host.strip_prefix("**.").or_else(|| host.strip_prefix("*.")).unwrap_or(host);
            matches!(scheme, "http" | "https")
                && !host.is_empty()
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:".contains(&b))
        })
    };
    let Some(pattern) = key.strip_prefix("~*").or_else(|| key.strip_prefix('~')) else {
        return Some(key.to_owned()).filter(is_origin).into_iter().collect();
    };
    let body = pattern.strip_prefix('^').and_then(|p| p.strip_suffix('$')).unwrap_or_default().replace("\\/", "/");
    let Some((scheme, host)) = body.split_once("://") else { return Vec::new() };
    let schemes = if scheme == "https?" { vec!["http", "https"] } else { vec![scheme] };
    // `(.+\.)?` and the like: any name below, and perhaps the name itself.
    let hosts = match host.strip_prefix('(').and_then(|h| h.split_once("\\.)")) {
        Some((group, rest)) => {
            let (bare, is_optional) = rest.strip_prefix('?').map_or((rest, false), |bare| (bare, true));
            let is_label = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            let below = match group.strip_prefix("?:").unwrap_or(group) {
                ".+" | ".*" => format!("**.{bare}"),
                set if is_any_label(set) => format!("*.{bare}"),
                label if !label.is_empty() && label.bytes().all(is_label) => format!("{label}.{bare}"),
                _ => return Vec::new(),
            };
            if is_optional { vec![bare.to_owned(), below] } else { vec![below] }
        }
        None => vec![host.to_owned()],
    };
    let all = schemes.iter().flat_map(|s| hosts.iter().map(move |h| format!("{s}://{}", h.replace("\\.", "."))));
    all.filter(is_origin).collect()
}

/// Whether a set such as `[a-z0-9-]+` has all characters of a label: a pattern for all labels is for no other origins.
fn is_any_label(set: &str) -> bool {
    let inner = set.strip_prefix('[').and_then(|s| s.strip_suffix("]+")).filter(|s| !s.contains(['[', ']']));
    let Some(inner) = inner else { return false };
    match inner.strip_prefix('^') {
        Some(none) => none.bytes().all(|b| b"\\./:".contains(&b)),
        None => {
            let has = |one: &str| inner.contains(one);
            let has_hyphen = inner.starts_with('-') || inner.ends_with('-') || has(r"\-");
            has_hyphen && (has(r"\w") || has("a-z") && (has("0-9") || has(r"\d")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_origins_says_what_cors_has_to_name() {
        assert_eq!(origins("http://localhost:3000"), ["http://localhost:3000"]);
        assert_eq!(origins(r"~^https://([a-z0-9-]+\.)?a\.example$"), ["https://a.example", "https://*.a.example"]);
        assert_eq!(origins(r"~*^https?:\/\/(.+\.)a\.example$"), ["http://**.a.example", "https://**.a.example"]);
        assert_eq!(origins(r"~^https://(?:www\.)?a\.example$"), ["https://a.example", "https://www.a.example"]);
        for set in ["[a-z0-9-]", r"[\w-]", r"[a-z\d\-]", "[^.]", r"[^\./]", "[a-zA-Z0-9.-]"] {
            assert_eq!(origins(&format!(r"~^https://({set}+\.)a\.example$")), ["https://*.a.example"], "{set}");
        }
        for unknown in ["~.*", "~^https://(a|b)$", r"~^https://(a|b\.)c\.example$", "~a\\.example$", "null"] {
            assert!(origins(unknown).is_empty(), "{unknown}");
        }
        // A pattern would be for more origins.
        for set in ["[0-9]+", "[a-z]+", "[a-z0-9]+", r"\w+", "[^a-z.]+", "[a-z]+[0-9-]+", "[^-]+"] {
            assert!(origins(&format!(r"~^https://({set}\.)a\.example$")).is_empty(), "{set}");
        }
    }
}
