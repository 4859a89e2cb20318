//! Who may connect, and how often: `allow`, `deny`, `auth_…`, `limit_req`, `limit_conn`.

use super::auth;
use super::geo;
use super::http::{everywhere, in_effect};
use super::locations::Site;
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::table::REFERERS;
use crate::addresses::{Access, AddressSet, Clients, Unsayable};
use crate::output::{BasicAuth, ForwardAuth, Settings, list, quoted};
use crate::report::Place;

/// Directives that check who a client is, and what to do about each.
pub(super) const GUARDS: &[(&str, &str)] = &[
    ("auth_basic", "write basic_auth, with a file of users whose hashes are bcrypt or Argon2"),
    ("auth_request", "write forward_auth, which asks a server for permission"),
    ("auth_jwt", "Sealane checks no tokens; let the server check them"),
    ("secure_link", "Sealane checks no signed links; let the server check them"),
    ("valid_referers", REFERERS),
    ("access_by_lua", "Lua is not run; let the server check"),
    ("access_by_lua_block", "Lua is not run; let the server check"),
    ("access_by_lua_file", "Lua is not run; let the server check"),
    ("js_access", "JavaScript is not run; let the server check"),
    ("auth_pam", "Sealane does not support PAM; write forward_auth, or basic_auth with a file of users"),
    ("auth_ldap", "Sealane does not support LDAP; write forward_auth, or basic_auth with a file of users"),
    ("perl_access", "Perl is not run; let the server check"),
];

const SATISFY: &str = "NGINX lets a client in that passes any one of these checks (satisfy any). The translation \
                       requires all of them, so it refuses more clients. Sealane can accept a client that passes any \
                       one of two checks: (1) the addresses (allow, deny), (2) basic_auth or forward_auth. Remove \
                       all other checks, and write satisfy = \"any\" in the routes of this location";

/// The same, where a directive before the checks refuses some clients.
pub(super) const SATISFY_STEP: &str = "in NGINX, an \"if\" refuses some clients, and every other client needs to \
                                       pass any one of several checks (satisfy any). The translation requires all of \
                                       these checks, so it refuses more clients. Write satisfy = \"any\" in the \
                                       routes of this location, and let the server refuse the clients that the \
                                       \"if\" refuses";

/// The guards of a scope that are on.
fn guards<'d>(scope: &Scope<'d>) -> Vec<(&'d Directive, &'static str)> {
    let on = |name: &str| scope.last(name).filter(|d| d.word(1) != Some("off"));
    GUARDS.iter().filter_map(|(name, why)| Some((on(name)?, *why))).collect()
}

/// The directives of a scope that keep requests out, but for `satisfy`.
pub(super) fn checks<'d>(scope: &Scope<'d>) -> Vec<&'d Directive> {
    let list = scope.all(&["allow", "deny"]);
    let open = list.first().is_none_or(|d| d.name() == "allow" && d.word(1) == Some("all"))
        || list.iter().all(|d| d.name() == "allow");
    let mut out = if open { Vec::new() } else { list };
    out.extend(guards(scope).iter().map(|(d, _)| *d));
    for name in ["limit_req", "limit_conn"] {
        out.extend(scope.all(&[name]));
    }
    out
}

/// All directives of a scope that keep requests out.
pub(super) fn restrictions(scope: &Scope) -> Vec<crate::report::Id> {
    let any = scope.value("satisfy").filter(|_| any_suffices(scope)).map(|(d, _)| d);
    checks(scope).into_iter().chain(any).map(|d| d.id).collect()
}

/// Whether a client of a scope must pass only one of several checks.
pub(super) fn any_suffices(scope: &Scope) -> bool {
    let checks = usize::from(!scope.all(&["allow", "deny"]).is_empty()) + guards(scope).len();
    checks > 1 && scope.value("satisfy").is_some_and(|(_, value)| value == "any")
}

/// What checks the clients of a location.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    pub access: Access,
    pub forward_auth: Option<ForwardAuth>,
    pub basic_auth: Option<BasicAuth>,
    /// One of these is enough: what says so.
    pub any: Option<Place>,
    /// Nobody may: what says so.
    pub closed: Option<Place>,
}

impl Checks {
    /// Adds those of another location that a request meets, too.
    pub fn and<'d>(&mut self, import: &mut Import<'d>, other: Self, d: &'d Directive) {
        // Where one check of each is enough, a route cannot say both.
        let checks = |c: &Self| !c.access.is_open() || c.forward_auth.is_some() || c.basic_auth.is_some();
        match (&self.any, &other.any) {
            (None, None) => {}
            (_, any @ Some(_)) if !checks(self) => self.any.clone_from(any),
            (Some(_), _) if !checks(&other) => {}
            _ => {
                self.any = None;
                import.decide(d, SATISFY);
            }
        }
        if self.access.and(&other.access).is_err() {
            import.decide(d, "the import cannot join two lists of addresses in files: write one file");
        }
        self.closed = self.closed.take().or(other.closed).or_else(|| self.access.closed().cloned());
        match (&self.forward_auth, other.forward_auth) {
            (Some(_), Some(_)) => import.decide(
                d,
                "Sealane asks only one server about a request: write forward_auth = { upstream = \"NAME\", path = \
                 \"/PATH\" } for the auth_request that stays",
            ),
            (None, there @ Some(_)) => self.forward_auth = there,
            (_, None) => {}
        }
        match (&self.basic_auth, other.basic_auth) {
            (Some(a), Some(b)) if a.users != b.users => {
                import.decide(d, crate::report::ONE_LIST);
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
            // The import translates no listeners at Unix sockets.
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
    // A condition refuses what these do not allow.
    guards.retain(|(d, _)| !import.referers.contains(&d.id));
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
                } else if site.is_some()
                    && guards.len() == 1
                    && matches!(guards[0].0.name(), "auth_basic" | "auth_request")
                {
                    import.same(d, "satisfy = \"any\"");
                    out.any = Some(d.place.clone());
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
        import.limited.entry(zone.to_owned()).or_default().insert(d.place.clone());
        let there = import.bursts.entry(zone.to_owned()).or_default();
        if !there.iter().any(|(b, _)| *b == burst) {
            there.push((burst, d));
        }
    }
    import.bursts.values_mut().for_each(|all| all.sort_by_key(|(burst, _)| std::cmp::Reverse(*burst)));
}

/// What is said of a zone that several `limit_req`s have: each limit of its own would count only a part of the requests.
fn shared(import: &Import, zone: &str) -> String {
    let Some(lines) = import.limited.get(zone).filter(|lines| lines.len() > 1) else { return String::new() };
    let bursts = import.bursts.get(zone).map(Vec::as_slice).unwrap_or_default();
    let several = match bursts {
        [(largest, _), _, ..] => format!(
            ". This limit has the largest burst ({}). A route of a line with a smaller burst also names a second limit, which has this \
             burst and the same rate and key: rate_limit = {}",
            largest.saturating_add(1),
            list(&[zone.to_owned(), format!("{zone}-2")])
        ),
        _ => String::new(),
    };
    format!(
        ". In NGINX, all limit_req of this zone ({}) share one count: let the routes of all these lines name the same limit, rate_limit = \
         {}{several}",
        crate::report::some_of(lines.iter()),
        list(&[zone.to_owned()])
    )
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
            let burst = own.map_or_else(String::new, |n| {
                format!(". Here, burst is {}: NGINX lets one request pass besides its burst", n.saturating_add(1))
            });
            let shared = shared(import, &zone.0);
            import.decide(
                d,
                format!(
                    "the key of this zone, or its rate, cannot be translated: {}{burst}. To count by a header, and by the address without \
                     this header, write two routes, one with headers = {{ X-Api-Key = {{ regex = '.' }} }}, and a limit for each. Write \
                     the addresses of clients that are not limited into exempt{shared}",
                    crate::report::RATE_LIMIT
                ),
            );
            continue;
        };
        match d.arguments().contains(&"nodelay") {
            true => import.differs_a_little(
                d,
                "rate_limit: above the rate, clients get 429 with Retry-After (NGINX: limit_req_status). A new \
                 client can use the whole burst once in each lane, before the lanes share their counts",
            ),
            false => import.differs(
                d,
                "rate_limit: requests above the rate are not delayed, but get 429 with Retry-After. A new client can \
                 use the whole burst once in each lane, before the lanes share their counts",
            ),
        }
        if let [common, .., own] = names.as_slice() {
            import.differs_a_little(
                d,
                format!(
                    "in NGINX, all limit_req of a zone share one count. In Sealane, each burst has its own [[rate_limit]], so these \
                     requests are counted more than once: in \"{common}\", which has the largest burst and counts all \
                     requests of the zone, and in \"{own}\", which has the burst of this directive and counts only requests of \
                     directives with this burst or a smaller one"
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
            _ => import.differs_a_little(d, "the status is 429"),
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
    let Counted { key, exempt } = counted_by(import, d.word(1)?)?;
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
    if let Some((blocks, place)) = &exempt {
        settings.set("exempt", list(blocks), place);
    }
    match key.as_str() {
        "sni" => counts_by_name(import, d, "rate_limit"),
        _ => import.same(d, "[[rate_limit]]"),
    }
    for n in 1.. {
        let name = if n == 1 { zone.to_owned() } else { format!("{zone}-{n}") };
        let mut named = Settings::default();
        named.set("name", quoted(&name), &d.place);
        let taken = import.out.rate_limits.iter().find(|l| l.value("name") == named.value("name"));
        let like = |l: &Settings| ["rate", "burst", "key", "exempt"].iter().all(|k| l.value(k) == settings.value(k));
        match taken {
            Some(l) if like(l) => return Some(name),
            Some(_) => {}
            None => {
                for k in ["rate", "burst", "key", "ipv6_prefix", "exempt"] {
                    if let Some(v) = settings.value(k) {
                        let place = match (k, &exempt) {
                            ("burst", _) => &used.place,
                            ("exempt", Some((_, place))) => place,
                            _ => &d.place,
                        };
                        named.set(k, v, place);
                    }
                }
                import.out.rate_limits.push(named);
                return Some(name);
            }
        }
    }
    None
}

/// Clients that are not counted, and the line that says so.
type Exempt = Option<(Vec<String>, Place)>;

/// What a zone counts.
struct Counted {
    /// The `key` of a limit.
    key: String,
    exempt: Exempt,
}

/// What a zone counts requests by.
fn counted_by(import: &mut Import, word: &str) -> Option<Counted> {
    let word = super::conditions::without_braces(word);
    let mut exempt = None;
    let key = match word.as_str() {
        "$binary_remote_addr" | "$remote_addr" => "address".to_owned(),
        "$server_name" | "$host" | "$http_host" | "$ssl_server_name" => "sni".to_owned(),
        other => match exempting(import, other.strip_prefix('$')?) {
            Some(found) => {
                exempt = found;
                "address".to_owned()
            }
            None => {
                // Only a header: with another variable behind it, the limit would count by a header that no request has.
                let name = super::conditions::header_of(other)?;
                // Requests without the header are not counted.
                (!crate::values::is_claim(&name)).then(|| format!("header:{name}"))?
            }
        },
    };
    Some(Counted { key, exempt })
}

/// Says of a zone that the result counts by the name in the handshake. NGINX counts by the server or the host that answers, and a client
/// can choose another name in the handshake for each connection.
fn counts_by_name(import: &mut Import, d: &Directive, table: &str) {
    let says = format!("{table}: counted by the name in the handshake (the host over plain HTTP)");
    match d.word(1).map(super::conditions::without_braces).as_deref() {
        Some("$ssl_server_name") => import.differs_a_little(d, says),
        _ => import.decide(
            d,
            format!(
                "{says}. A client that chooses another name for each connection evades this limit. If the limit is not \
                 against such clients, only remove this entry; otherwise, write key = \"address\", or max_connections in the \
                 [[upstream]], which limits the requests of all clients together"
            ),
        ),
    }
}

/// If a variable is a `map` to the client's address, or to nothing for those who are not limited: who these are. Where that is not known,
/// they are limited, too.
fn exempting(import: &mut Import, variable: &str) -> Option<Exempt> {
    let map = import.maps.get(variable).copied()?;
    let value = |e: &Directive| e.word(1).map(|w| w.replace(['{', '}'], "")).unwrap_or_default();
    let is_address = |v: &str| matches!(v, "$binary_remote_addr" | "$remote_addr");
    let entries = || map.inner().iter().filter(|e| e.words.len() == 2);
    let all = entries().all(|e| value(e).is_empty() || is_address(&value(e)));
    if !all || !entries().any(|e| is_address(&value(e))) || entries().count() != map.inner().len() {
        return None;
    }
    let source = map.word(1).map(super::conditions::without_braces).unwrap_or_default();
    let geo = import.geos.get(source.strip_prefix('$').unwrap_or_default()).copied();
    let known = import.exempt.get(&map.id).cloned();
    let found = known.unwrap_or_else(|| geo::without_value(import, map).and_then(|set| set.blocks()));
    import.exempt.insert(map.id, found.clone());
    if let Some(blocks) = found {
        import.same(map, "exempt");
        if let Some(geo) = geo {
            import.same(geo, "exempt");
        }
        return Some((!blocks.is_empty()).then(|| (blocks, map.place.clone())));
    }
    let says = "the limit applies to all clients, also to clients that are exempt in NGINX: write their addresses in exempt of the \
                [[rate_limit]] or [[concurrency_limit]]";
    import.differs(map, says);
    if let Some(geo) = geo {
        import.differs(geo, says);
    }
    Some(None)
}

/// Notes which numbers the `limit_conn`s of each zone have, the largest first.
pub(super) fn open_requests<'d>(import: &mut Import<'d>, block: &'d [Directive]) {
    let mut found = Vec::new();
    everywhere(block, &["limit_conn"], &mut found);
    for d in found {
        let (Some(zone), Some(n)) = (d.word(1), most(d)) else { continue };
        let there = import.open_requests.entry(zone.to_owned()).or_default();
        if !there.iter().any(|(m, _)| *m == n) {
            there.push((n, d));
        }
    }
    import.open_requests.values_mut().for_each(|all| all.sort_by_key(|(n, _)| std::cmp::Reverse(*n)));
}

/// How many requests may be open.
fn most(d: &Directive) -> Option<u32> {
    d.word(2)?.parse::<u32>().ok().filter(|n| (1..=1_000_000).contains(n))
}

/// `limit_conn`, as names of `[[concurrency_limit]]`s: NGINX counts open requests, too.
pub(super) fn concurrency_limits<'d>(import: &mut Import<'d>, scope: &Scope<'d>) -> Vec<(String, Place)> {
    let mut out: Vec<(String, Place)> = Vec::new();
    for d in scope.all(&["limit_conn"]) {
        let zone = d.word(1).and_then(|z| Some((z, *import.connection_zones.get(z)?)));
        let (Some((zone, of)), Some(own)) = (zone, most(d)) else {
            import.decide(d, "there is no limit_conn_zone of this name, or this is not a number from 1 to 1,000,000");
            continue;
        };
        // The requests of a zone count together: a lower limit counts some of them once more.
        let all = import.open_requests.get(zone).cloned().unwrap_or_default();
        let all = all.into_iter().filter(|(n, _)| *n >= own).enumerate();
        let names: Option<Vec<String>> =
            all.map(|(at, (n, used))| concurrency_limit(import, zone, of, at, n, used)).collect();
        let Some(names) = names.filter(|names| !names.is_empty()) else {
            import.decide(
                d,
                "what this zone counts cannot be translated: write [[concurrency_limit]] with name = \"open\" and \
                 max_requests = 20, and concurrency_limit = [\"open\"] in each host or route that it limits, or let the \
                 server limit",
            );
            continue;
        };
        import.differs_a_little(d, "concurrency_limit: further requests get 429 (NGINX: limit_conn_status)");
        if let [common, .., own] = names.as_slice() {
            import.differs_a_little(
                d,
                format!(
                    "in NGINX, all limit_conn of a zone share one count. In Sealane, each number has its own [[concurrency_limit]], so \
                     these requests are counted more than once: in \"{common}\", which has the largest number and \
                     counts all requests of the zone, and in \"{own}\", which has the number of this directive and counts only \
                     requests of directives with this number or a smaller one"
                ),
            );
        }
        for name in names {
            if !out.iter().any(|(n, _)| *n == name) {
                out.push((name, d.place.clone()));
            }
        }
    }
    out
}

/// Writes the `[[concurrency_limit]]` of a zone with a number; returns its name. `at`: how many larger numbers the zone has.
fn concurrency_limit<'d>(
    import: &mut Import<'d>,
    zone: &str,
    d: &'d Directive,
    at: usize,
    n: u32,
    used: &Directive,
) -> Option<String> {
    let Counted { key, exempt } = counted_by(import, d.word(1)?)?;
    match key.as_str() {
        "sni" => counts_by_name(import, d, "concurrency_limit"),
        _ => import.same(d, "[[concurrency_limit]]"),
    }
    let name = if at == 0 { zone.to_owned() } else { format!("{zone}-{}", at + 1) };
    let quoted_name = quoted(&name);
    if !import.out.concurrency_limits.iter().any(|l| l.value("name") == Some(&quoted_name)) {
        let mut settings = Settings::default();
        settings.set("name", quoted_name, &d.place);
        settings.set("max_requests", n.to_string(), &used.place);
        settings.set("key", quoted(&key), &d.place);
        if key == "address" {
            settings.set("ipv6_prefix", "128", &d.place);
        }
        if let Some((blocks, place)) = &exempt {
            settings.set("exempt", list(blocks), place);
        }
        import.out.concurrency_limits.push(settings);
    }
    Some(name)
}

/// What is left to say of limits when all hosts are written.
pub(super) fn other_limits<'d>(import: &mut Import<'d>, block: &'d [Directive]) {
    for name in ["limit_req", "limit_conn"] {
        let mut found = Vec::new();
        everywhere(block, &[name], &mut found);
        let used: Vec<_> = in_effect(block, name).iter().flatten().map(|d| d.id).collect();
        for d in found {
            if !import.report.is_known(d.id) && !used.contains(&d.id) {
                import.same(d, "no request that goes to a server has this limit");
            }
        }
    }
    let mut found = Vec::new();
    everywhere(block, &["limit_conn_status"], &mut found);
    for d in found {
        match d.word(1) {
            Some("429") => import.same(d, "429"),
            _ => import.differs_a_little(d, "the status is 429"),
        }
    }
}
