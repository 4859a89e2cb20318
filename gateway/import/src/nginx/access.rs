//! Who may connect, and how often: `allow`, `deny`, `auth_…`, `limit_req`, `limit_conn`.

use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::output::{Settings, quoted};
use crate::report::Place;

/// Directives that check who a client is, and what to do about each.
pub(super) const GUARDS: &[(&str, &str)] = &[
    ("auth_basic", "it is not translated: write basic_auth, with users whose hashes are bcrypt or Argon2"),
    ("auth_request", "it is not translated: write forward_auth, which asks a server for permission"),
    ("auth_jwt", "Sealane checks no tokens; let the server check them"),
    ("secure_link", "Sealane checks no signed links; let the server check them"),
    ("valid_referers", "Sealane compares no referers; let the server do it"),
    ("access_by_lua", "Lua is not run; let the server check"),
    ("access_by_lua_block", "Lua is not run; let the server check"),
    ("access_by_lua_file", "Lua is not run; let the server check"),
    ("js_access", "JavaScript is not run; let the server check"),
    ("auth_pam", "Sealane asks no PAM; write forward_auth, or basic_auth with a file of users"),
    ("auth_ldap", "Sealane asks no LDAP; write forward_auth, or basic_auth with a file of users"),
    ("perl_access", "Perl is not run; let the server check"),
];

const LISTS: &str = "lists of addresses are not translated: write \"allow\" and \"deny\" yourself";

/// The directives of a scope that keep requests out.
pub(super) fn restrictions(scope: &Scope) -> Vec<crate::report::Id> {
    let list = scope.all(&["allow", "deny"]);
    let open = list.first().is_none_or(|d| d.name() == "allow" && d.word(1) == Some("all"));
    let mut out: Vec<_> = if open { Vec::new() } else { list.iter().map(|d| d.id).collect() };
    for (name, _) in GUARDS {
        out.extend(scope.last(name).filter(|d| d.word(1) != Some("off")).map(|d| d.id));
    }
    for name in ["limit_req", "limit_conn"] {
        out.extend(scope.all(&[name]).iter().map(|d| d.id));
    }
    out
}

/// What `allow` and `deny` come to.
pub(super) enum Access {
    Open,
    /// Nobody may.
    Closed(Place),
    /// It cannot be translated, and has been reported.
    Undecided,
}

/// Looks at what checks who the clients of a location are.
pub(super) fn access<'d>(import: &mut Import<'d>, scope: &Scope<'d>) -> Access {
    let mut found = Access::Open;
    let list = scope.all(&["allow", "deny"]);
    if let Some((d, value)) = scope.value("satisfy") {
        match value {
            "all" => import.same(d, "the default"),
            // A password may let in whom `deny` keeps out.
            _ => import.decide(d, "Sealane has every check passed, not one of them"),
        }
    }
    match list.as_slice() {
        [] => {}
        [only] if only.name() == "deny" && only.word(1) == Some("all") => {
            import.same(only, "respond with status 403");
            return Access::Closed(only.place.clone());
        }
        [first, ..] if first.name() == "allow" && first.word(1) == Some("all") => {
            list.iter().for_each(|d| import.same(d, "everybody is allowed"));
        }
        list => {
            list.iter().for_each(|d| import.decide(d, LISTS));
            found = Access::Undecided;
        }
    }
    for (name, why) in GUARDS {
        let Some(d) = scope.last(name) else { continue };
        match d.word(1) {
            Some("off") => import.same(d, "off"),
            _ => {
                import.decide(d, *why);
                found = Access::Undecided;
            }
        }
    }
    found
}

/// What checks clients where nobody gets through: it need not be translated.
pub(super) fn moot<'d>(import: &mut Import<'d>, scope: &Scope<'d>, says: &str) {
    for d in scope.all(&["allow", "deny"]) {
        import.same(d, says);
    }
    for (name, _) in GUARDS {
        if let Some(d) = scope.last(name) {
            import.same(d, says);
        }
    }
}

/// `limit_req`, as names of `[[rate_limit]]`s.
pub(super) fn rate_limits<'d>(import: &mut Import<'d>, scope: &Scope<'d>) -> Vec<(String, Place)> {
    let mut out = Vec::new();
    for d in scope.all(&["limit_req"]) {
        let option = |name: &str| d.arguments().into_iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='));
        let Some(zone) = option("zone").and_then(|z| import.zones.get(z).map(|d| (z.to_owned(), *d))) else {
            import.decide(d, "there is no limit_req_zone of this name");
            continue;
        };
        let burst = option("burst").map_or(Some(0), |b| b.parse::<u32>().ok());
        let Some(settings) = burst.and_then(|b| rate_limit(import, &zone.0, zone.1, b, d)) else {
            import.decide(d, "this limit cannot be translated; write a [[rate_limit]]");
            continue;
        };
        match d.arguments().contains(&"nodelay") {
            true => {
                import.differs(d, "rate_limit: beyond it clients get 429 with Retry-After (NGINX: limit_req_status)")
            }
            false => import.differs(d, "rate_limit: requests beyond it are not delayed, but get 429 with Retry-After"),
        }
        if !out.iter().any(|(n, _)| *n == settings) {
            out.push((settings, d.place.clone()));
        }
    }
    if let Some((d, value)) = scope.value("limit_req_dry_run")
        && value == "on"
    {
        import.differs(d, "the limit is enforced");
    }
    if let Some((d, value)) = scope.value("limit_req_status") {
        match value {
            "429" => import.same(d, "429"),
            _ => import.differs(d, "the status is 429"),
        }
    }
    connection_limits(import, scope);
    out
}

/// Writes the `[[rate_limit]]` of a zone with a burst; returns its name.
fn rate_limit<'d>(
    import: &mut Import<'d>,
    zone: &str,
    d: &'d Directive,
    burst: u32,
    used: &Directive,
) -> Option<String> {
    let key = match d.word(1)?.replace(['{', '}'], "").as_str() {
        "$binary_remote_addr" | "$remote_addr" => "address".to_owned(),
        "$server_name" | "$host" | "$http_host" | "$ssl_server_name" => "sni".to_owned(),
        other => format!("header:{}", super::conditions::header_name(other.strip_prefix("$http_")?)),
    };
    let rate = d.arguments().into_iter().find_map(|a| a.strip_prefix("rate="))?;
    let (count, per) =
        rate.split_once("r/").filter(|(n, p)| n.parse::<u32>().is_ok_and(|n| n > 0) && matches!(*p, "s" | "m"))?;
    let mut settings = Settings::default();
    settings.set("rate", quoted(&format!("{count}/{per}")), &d.place);
    // NGINX lets one request and the burst come at once.
    settings.set("burst", burst.saturating_add(1).min(1_000_000).to_string(), &used.place);
    settings.set("key", quoted(&key), &d.place);
    if key == "address" {
        settings.set("ipv6_prefix", "128", &d.place);
    }
    match key.as_str() {
        "sni" => import.differs(d, "rate_limit: counted by the name in the handshake (the host over plain HTTP)"),
        _ => import.same(d, "[[rate_limit]]"),
    }
    for n in 1.. {
        let name = if n == 1 { zone.to_owned() } else { format!("{zone}-{n}") };
        let mut named = Settings::default();
        named.set("name", quoted(&name), &d.place);
        let taken = import.out.rate_limits.iter().find(|l| l.value("name") == named.value("name"));
        let like = |l: &Settings| ["rate", "burst", "key"].iter().all(|k| l.value(k) == settings.value(k));
        match taken {
            Some(l) if like(l) => return Some(name),
            Some(_) => {}
            None => {
                for k in ["rate", "burst", "key", "ipv6_prefix"] {
                    if let Some(v) = settings.value(k) {
                        named.set(k, v, if k == "burst" { &used.place } else { &d.place });
                    }
                }
                import.out.rate_limits.push(named);
                return Some(name);
            }
        }
    }
    None
}

/// `limit_conn`: Sealane has one limit per client, for all listeners.
fn connection_limits<'d>(import: &mut Import<'d>, scope: &Scope<'d>) {
    for d in scope.all(&["limit_conn"]) {
        let (Some(zone), Some(n)) = (d.word(1), d.word(2).and_then(|n| n.parse::<u32>().ok())) else {
            import.decide(d, "is not understood");
            continue;
        };
        let key = import.connection_zones.get(zone).copied();
        let by_address =
            key.and_then(|k| k.word(1)).is_some_and(|k| matches!(k, "$binary_remote_addr" | "$remote_addr"));
        if !by_address || !(1..=1_000_000).contains(&n) {
            import.decide(d, "connections are limited by client only ([limits] max_connections_per_client)");
            continue;
        }
        if let Some(key) = key {
            import.same(key, "[limits] max_connections_per_client");
        }
        let there = import.out.limits.value("max_connections_per_client").and_then(|v| v.parse::<u32>().ok());
        // The strictest of several holds for all.
        if there.is_none_or(|there| n < there) {
            import.out.limits.set("max_connections_per_client", n.to_string(), &d.place);
        }
        import.differs(d, "[limits] max_connections_per_client: connections of a client to all hosts together, the smallest number of all limit_conn");
    }
}
