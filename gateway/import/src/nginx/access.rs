//! Who may connect, and how often: `allow`, `deny`, `auth_…`, `limit_req`, `limit_conn`.

use super::auth;
use super::http::{everywhere, in_effect};
use super::locations::Site;
use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::addresses::{Access, AddressSet, Clients, Unsayable};
use crate::output::{BasicAuth, ForwardAuth, Settings, quoted};
use crate::report::Place;

/// Directives that check who a client is, and what to do about each.
pub(super) const GUARDS: &[(&str, &str)] = &[
    ("auth_basic", "write basic_auth, with a file of users whose hashes are bcrypt or Argon2"),
    ("auth_request", "write forward_auth, which asks a server for permission"),
    ("auth_jwt", "Sealane checks no tokens; let the server check them"),
    ("secure_link", "Sealane checks no signed links; let the server check them"),
    ("valid_referers", "Sealane compares no referers; let the server do it"),
    ("access_by_lua", "Lua is not run; let the server check"),
    ("access_by_lua_block", "Lua is not run; let the server check"),
    ("access_by_lua_file", "Lua is not run; let the server check"),
    ("js_access", "JavaScript is not run; let the server check"),
    ("auth_pam", "Sealane does not support PAM; write forward_auth, or basic_auth with a file of users"),
    ("auth_ldap", "Sealane does not support LDAP; write forward_auth, or basic_auth with a file of users"),
    ("perl_access", "Perl is not run; let the server check"),
];

const SATISFY: &str = "Sealane requires every check, and the translation has all of them: a client that passes one check must pass the others, \
     too. Keep one check, and remove the others from the routes of this location: allow and deny, or basic_auth or forward_auth (a route \
     with basic_auth = false asks for no password)";

/// The guards of a scope that are on.
fn guards<'d>(scope: &Scope<'d>) -> Vec<(&'d Directive, &'static str)> {
    let on = |name: &str| scope.last(name).filter(|d| d.word(1) != Some("off"));
    GUARDS.iter().filter_map(|(name, why)| Some((on(name)?, *why))).collect()
}

/// The directives of a scope that keep requests out.
pub(super) fn restrictions(scope: &Scope) -> Vec<crate::report::Id> {
    let list = scope.all(&["allow", "deny"]);
    let open = list.first().is_none_or(|d| d.name() == "allow" && d.word(1) == Some("all"))
        || list.iter().all(|d| d.name() == "allow");
    let mut out: Vec<_> = if open { Vec::new() } else { list.iter().map(|d| d.id).collect() };
    out.extend(guards(scope).iter().map(|(d, _)| d.id));
    for name in ["limit_req", "limit_conn"] {
        out.extend(scope.all(&[name]).iter().map(|d| d.id));
    }
    out
}

/// What checks the clients of a location.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    pub access: Access,
    pub forward_auth: Option<ForwardAuth>,
    pub basic_auth: Option<BasicAuth>,
    /// Nobody may: what says so.
    pub closed: Option<Place>,
}

impl Checks {
    /// Adds those of another location that a request meets, too.
    pub fn and<'d>(&mut self, import: &mut Import<'d>, other: Self, d: &'d Directive) {
        if self.access.and(&other.access).is_err() {
            import.decide(d, "the import cannot join two lists of addresses in files: write one file");
        }
        self.closed = self.closed.take().or(other.closed).or_else(|| self.access.closed().cloned());
        match (&self.forward_auth, other.forward_auth) {
            (Some(_), Some(_)) => import.decide(d, "Sealane asks only one server about a request (forward_auth): decide which auth_request stays"),
            (None, there @ Some(_)) => self.forward_auth = there,
            (_, None) => {}
        }
        match (&self.basic_auth, other.basic_auth) {
            (Some(a), Some(b)) if a.users != b.users => {
                import.decide(d, "a request can be checked with only one file of users: write basic_auth");
            }
            (None, there @ Some(_)) => self.basic_auth = there,
            _ => {}
        }
    }
}

/// What `allow` and `deny` come to: the first that matches counts, and who is in none is let in. `None`: there is a word that is no
/// address, or the result has too many blocks.
fn addresses(list: &[&Directive]) -> Option<Access> {
    let place = &list.first()?.place;
    let mut access = Access::default();
    let (mut allowed, mut denied) = (AddressSet::default(), AddressSet::default());
    for same in list.chunk_by(|a, b| a.name() == b.name()) {
        let set = |d: &&Directive| match (d.word(1), d.words.len()) {
            (Some("all"), 2) => Some(AddressSet::all()),
            // There are no clients at Unix sockets.
            (Some("unix:"), 2) => Some(AddressSet::default()),
            (Some(word), 2) => AddressSet::of(word),
            _ => None,
        };
        let set: AddressSet = same.iter().map(set).collect::<Option<Vec<_>>>()?.into_iter().collect();
        let all = set.is_all();
        match (same[0].name(), all) {
            ("allow", _) => allowed = allowed.union(&set),
            (_, false) => denied = denied.union(&set.minus(&allowed)),
            (_, true) => access.refuse(&Clients::NotIn(allowed.clone().into()), place).ok()?,
        }
        if all {
            break;
        }
    }
    if !denied.is_empty() {
        access.refuse(&Clients::In(denied.into()), place).ok()?;
    }
    Some(access)
}

/// Looks at what checks who the clients of a location are. `site`: that of the location; a relayed connection has none.
pub(super) fn access<'d>(import: &mut Import<'d>, scope: &Scope<'d>, site: Option<&Site<'d>>) -> Checks {
    let mut out = Checks::default();
    let list = scope.all(&["allow", "deny"]);
    let mut guards = guards(scope);
    for (name, _) in GUARDS {
        if let Some(d) = scope.last(name).filter(|d| d.word(1) == Some("off")) {
            import.same(d, "off");
        }
    }
    let found = match list.first() {
        None => Some(Access::default()),
        Some(first) => match import.lists.get(&first.id) {
            Some(there) => there.clone(),
            None => {
                let found = addresses(&list);
                import.lists.insert(first.id, found.clone());
                found
            }
        },
    };
    let Some(mut found) = found else {
        let says = "is not an address or block, or this list needs too many blocks: write \"allow\" and \"deny\"";
        list.iter().for_each(|d| import.decide(d, says));
        guards.iter().for_each(|(d, why)| import.decide(d, *why));
        return out;
    };
    let mut says = match (found.closed(), found.is_open()) {
        (Some(_), _) => "respond with status 403",
        (None, true) => "everybody is allowed",
        (None, false) => "allow and deny",
    };
    if let Some((d, value)) = scope.value("satisfy") {
        match value {
            "any" if !list.is_empty() && !guards.is_empty() => {
                if found.is_open() {
                    import.same(d, "all clients are allowed");
                    guards.drain(..).for_each(|(d, _)| import.same(d, "the addresses allow all clients"));
                } else if found.closed().is_some() && guards.len() == 1 {
                    import.same(d, "the addresses allow no client, so the other check decides");
                    (found, says) = (Access::default(), "the other check decides");
                } else {
                    import.decide(d, SATISFY);
                }
            }
            "any" if guards.len() > 1 => {
                import.decide(d, SATISFY);
            }
            "any" => import.same(d, "there is only one check"),
            "all" => import.same(d, "the default"),
            _ => import.decide(d, "is not understood"),
        }
    }
    list.iter().for_each(|d| import.same(d, says));
    out.closed = found.closed().cloned();
    out.access = found;
    for (d, why) in guards {
        let asked = match (d.name(), site) {
            ("auth_request", Some(site)) => {
                auth::forward_auth(import, site, scope, d).map(|auth| out.forward_auth = Some(auth))
            }
            ("auth_basic", Some(_)) => auth::basic_auth(import, scope, d).map(|auth| out.basic_auth = Some(auth)),
            _ => Err(why.to_owned()),
        };
        if let Err(why) = asked {
            import.decide(d, why);
        }
    }
    out
}

/// Reports that checks cannot be joined.
pub(super) fn unsayable<'d>(import: &mut Import<'d>, d: &'d Directive, joined: Result<(), Unsayable>) {
    if joined.is_err() {
        import.decide(
            d,
            "this condition needs too many blocks of addresses, or this check cannot be joined with another one: write \"allow\", \"deny\" or \
             \"allow_header\"",
        );
    }
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

/// An option of a `limit_req`.
fn option<'d>(d: &'d Directive, name: &str) -> Option<&'d str> {
    d.arguments().into_iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='))
}

/// How many requests may come at once besides the first.
fn burst(d: &Directive) -> Option<u32> {
    option(d, "burst").map_or(Some(0), |b| b.parse().ok())
}

/// Notes which bursts the `limit_req`s of each zone have.
pub(super) fn bursts<'d>(import: &mut Import<'d>, block: &'d [Directive]) {
    let mut found = Vec::new();
    everywhere(block, &["limit_req"], &mut found);
    for d in found {
        let (Some(zone), Some(burst)) = (option(d, "zone"), burst(d)) else { continue };
        let there = import.bursts.entry(zone.to_owned()).or_default();
        if !there.iter().any(|(b, _)| *b == burst) {
            there.push((burst, d));
        }
    }
    import.bursts.values_mut().for_each(|all| all.sort_by_key(|(burst, _)| std::cmp::Reverse(*burst)));
}

/// `limit_req`, as names of `[[rate_limit]]`s.
pub(super) fn rate_limits<'d>(import: &mut Import<'d>, scope: &Scope<'d>) -> Vec<(String, Place)> {
    let mut out: Vec<(String, Place)> = Vec::new();
    for d in scope.all(&["limit_req"]) {
        let Some(zone) = option(d, "zone").and_then(|z| import.zones.get(z).map(|d| (z.to_owned(), *d))) else {
            import.decide(d, "there is no limit_req_zone of this name");
            continue;
        };
        // The requests of a zone count together: a limit with a smaller burst counts some of them once more.
        let own = burst(d);
        let all = import.bursts.get(&zone.0).cloned().unwrap_or_default();
        let all = all.into_iter().filter(|(b, _)| own.is_some_and(|own| *b >= own));
        let names: Option<Vec<String>> = all.map(|(b, used)| rate_limit(import, &zone.0, zone.1, b, used)).collect();
        let Some(names) = names.filter(|names| !names.is_empty()) else {
            import.decide(d, "this limit cannot be translated; write a [[rate_limit]]");
            continue;
        };
        match d.arguments().contains(&"nodelay") {
            true => import
                .differs(d, "rate_limit: above the rate, clients get 429 with Retry-After (NGINX: limit_req_status)"),
            false => {
                import.differs(d, "rate_limit: requests above the rate are not delayed, but get 429 with Retry-After")
            }
        }
        if let [common, .., own] = names.as_slice() {
            import.differs(
                d,
                format!(
                    "\"{common}\" counts all requests of the zone. \"{own}\" has the smaller burst of this directive, and counts only the requests \
                     of directives with this burst or a smaller one. NGINX has one count for all requests of the zone"
                ),
            );
        }
        for name in names {
            if !out.iter().any(|(n, _)| *n == name) {
                out.push((name, d.place.clone()));
            }
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
        other => match exempting(import, other.strip_prefix('$')?) {
            true => "address".to_owned(),
            false => {
                let name = super::conditions::header_name(other.strip_prefix("$http_")?);
                // Requests without the header are not counted.
                (!crate::values::is_claim(&name)).then(|| format!("header:{name}"))?
            }
        },
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

/// Whether a variable is a `map` to the client's address, or to nothing for those who are not limited. Here they are limited, too.
fn exempting(import: &mut Import, variable: &str) -> bool {
    let Some(map) = import.maps.get(variable).copied() else { return false };
    let value = |e: &Directive| e.word(1).map(|w| w.replace(['{', '}'], "")).unwrap_or_default();
    let is_address = |v: &str| matches!(v, "$binary_remote_addr" | "$remote_addr");
    let entries = || map.inner().iter().filter(|e| e.words.len() == 2);
    let all = entries().all(|e| value(e).is_empty() || is_address(&value(e)));
    if !all || !entries().any(|e| is_address(&value(e))) || entries().count() != map.inner().len() {
        return false;
    }
    let says = "the limit applies to all clients, also to the clients that are exempt here";
    import.differs(map, says);
    let source = map.word(1).and_then(|w| w.strip_prefix('$')).unwrap_or("");
    if let Some(geo) = import.geos.get(source).copied() {
        import.differs(geo, says);
    }
    true
}

/// `limit_conn`: NGINX counts the requests that a client has open. Sealane has one such limit for all hosts.
pub(super) fn connection_limits<'d>(import: &mut Import<'d>, block: &'d [Directive]) {
    let mut found = Vec::new();
    everywhere(block, &["limit_conn"], &mut found);
    let held = in_effect(block, "limit_conn");
    let text = |all: &[&Directive]| all.iter().map(|d| d.arguments().join(" ")).collect::<Vec<_>>();
    let is_for_all = held.iter().all(|all| text(all) == text(&held[0]));
    // Where a server answers before, that is said already.
    for d in found.into_iter().filter(|d| !import.report.is_known(d.id)).collect::<Vec<_>>() {
        let (Some(zone), Some(n)) = (d.word(1), d.word(2).and_then(|n| n.parse::<u32>().ok())) else {
            import.decide(d, "is not understood");
            continue;
        };
        let key = import.connection_zones.get(zone).copied();
        let by_address =
            key.and_then(|k| k.word(1)).is_some_and(|k| matches!(k, "$binary_remote_addr" | "$remote_addr"));
        if !by_address || !(1..=1_000_000).contains(&n) {
            import.decide(d, "open requests are limited by client only ([limits] max_requests_per_client)");
            continue;
        }
        if let Some(key) = key {
            import.same(key, "[limits] max_requests_per_client");
        }
        if !is_for_all {
            import.decide(
                d,
                "NGINX limits the open requests of a client here, and not, or otherwise, elsewhere; [limits] max_requests_per_client applies to \
                 all hosts together: write a number that is enough for all of them (further requests get 429), or let the server limit",
            );
            continue;
        }
        let there = import.out.limits.value("max_requests_per_client").and_then(|v| v.parse::<u32>().ok());
        if there.is_none_or(|there| n < there) {
            import.out.limits.set("max_requests_per_client", n.to_string(), &d.place);
        }
        import.differs(
            d,
            "[limits] max_requests_per_client: further requests of a client get 429 (NGINX: limit_conn_status), and the addresses of an IPv6 \
             /64 network are one client",
        );
    }
    let mut found = Vec::new();
    everywhere(block, &["limit_conn_status"], &mut found);
    for d in found {
        match d.word(1) {
            Some("429") => import.same(d, "429"),
            _ => import.differs(d, "the status is 429"),
        }
    }
}
