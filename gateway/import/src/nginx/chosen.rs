//! `proxy_pass http://$variable`: the upstream is chosen by a `map` of a header or a cookie, or by `split_clients`.

use super::actions::COOKIES_DIFFER;
use super::conditions::{header_name, of_variable};
use super::headers::Changes;
use super::maps;
use super::parser::Directive;
use super::scope::{Import, Scope};
use super::upstreams::{self, Target};
use super::variables::{Piece, has_variables, pieces};
use crate::output::{Action, Route, Split};
use crate::report::Place;
use crate::values::{self, COOKIE};

/// Most values by which an upstream is chosen.
const MAX_CHOSEN: usize = 32;

/// An upstream that a `map` chooses by a header or a cookie.
pub(super) struct Chosen {
    pub name: String,
    /// The condition in TOML.
    pub rule: String,
    pub upstream: String,
    /// What the `map` gives.
    pub value: String,
    pub place: Place,
}

/// `proxy_pass http://$variable`.
pub(super) fn variable<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    uri: Option<&str>,
    to: &Target,
    changes: &Changes,
    route: &mut Route,
) {
    let names: Vec<&str> = pieces(to.authority)
        .into_iter()
        .filter_map(|piece| if let Piece::Variable(name) = piece { Some(name) } else { None })
        .collect();
    if names.iter().any(|n| matches!(*n, "host" | "http_host" | "ssl_preread_server_name") || n.starts_with("arg_")) {
        return import.decide(
            d,
            "the variable lets clients choose the server, but Sealane connects only to servers that the configuration \
             names: name the servers",
        );
    }
    let found = match names.as_slice() {
        [name] => (import.splits.get(*name).copied(), import.maps.get(*name).copied()),
        _ => (None, None),
    };
    match found {
        (Some(split), _) if uri.is_none() => split_clients(import, scope, d, split, to, changes, route),
        (None, Some(map)) if uri.is_none() => by_map(import, scope, d, map, to, changes, route),
        _ => import.missing(
            d,
            "a variable selects the server: name the server, or select it by routes with \"headers\". Until then, \
             requests get 501",
        ),
    }
}

/// The authority with a value in the place of its variable.
fn with_value(authority: &str, value: &str) -> String {
    let one = |piece| match piece {
        Piece::Text(text) => text,
        Piece::Variable(_) => value,
    };
    pieces(authority).into_iter().map(one).collect()
}

/// The upstream for a value; `None`: there is none, which is reported.
fn upstream<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    to: &Target,
    value: &str,
    changes: &Changes,
) -> Option<String> {
    let authority = with_value(to.authority, value);
    let to = Target { protocol: to.protocol, tls: to.tls, authority: &authority };
    upstreams::upstream(import, scope, d, &to, changes.host.as_ref())
}

/// Shares of the requests. NGINX hashes a text, and Sealane an address, a header or a cookie, by another function: the groups
/// have the same shares, but not the same clients.
fn split_clients<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    split: &'d Directive,
    to: &Target,
    changes: &Changes,
    route: &mut Route,
) {
    let Some(shares) = shares(split) else {
        const SAYS: &str = "write split in the route, with the upstreams and their weights";
        import.missing(split, SAYS);
        return import.missing(d, format!("see split_clients: {SAYS}; until then, requests get 501"));
    };
    let mut groups: Vec<(String, u32)> = Vec::new();
    for (value, share) in shares {
        // What it names is missing, which is reported.
        let Some(name) = upstream(import, scope, d, to, &value, changes) else { return };
        match groups.iter_mut().find(|(there, _)| *there == name) {
            Some((_, there)) => *there += share,
            None => groups.push((name, share)),
        }
    }
    let common = groups.iter().fold(0, |a, (_, b)| divisor(a, *b)).max(1);
    groups.iter_mut().for_each(|(_, share)| *share /= common);
    let (hash_by, says) = hashed_by(split.word(1).unwrap_or(""));
    if hash_by.as_ref().and_then(|by| by.strip_prefix("header:")).is_some_and(values::is_claim) {
        import.differs(split, values::CLAIM);
    }
    import.differs(split, format!("split: the groups have the same shares, but not the same clients. {says}"));
    import.same(d, "split");
    route.action = match groups.as_slice() {
        [(only, _)] => Action::Upstream(only.clone()),
        _ => Action::Split(Split { groups, hash_by }),
    };
    route.origin = d.place.clone();
}

/// The values of `split_clients`, with their shares in hundredths of a percent, as NGINX counts; the rest is for `*`.
fn shares(split: &Directive) -> Option<Vec<(String, u32)>> {
    let mut rest: u32 = 10_000;
    let mut out = Vec::new();
    for entry in split.inner() {
        let share = match entry.name() {
            "*" => rest,
            percent => percent.strip_suffix('%').and_then(hundredths).filter(|n| *n <= rest)?,
        };
        let value = entry.word(1).filter(|v| !v.is_empty() && !has_variables(v))?;
        rest -= share;
        out.push((value.to_owned(), share));
    }
    // Without `*`, the value is empty for the rest.
    (rest == 0 && (1..=MAX_CHOSEN).contains(&out.len())).then_some(out)
}

/// `hash_by` for what NGINX hashes, and what that means.
fn hashed_by(text: &str) -> (Option<String>, &'static str) {
    let names = pieces(text).into_iter().filter_map(|p| if let Piece::Variable(name) = p { Some(name) } else { None });
    let names: Vec<&str> = names.collect();
    let address = names.iter().any(|n| matches!(*n, "remote_addr" | "binary_remote_addr" | "realip_remote_addr"));
    match names.as_slice() {
        [_] if address => (Some("address".to_owned()), "A client stays in its group."),
        _ if address => (
            Some("address".to_owned()),
            "All requests of a client's address go to the same group, whatever else NGINX hashes.",
        ),
        [name] => match (name.strip_prefix("cookie_"), name.strip_prefix("http_")) {
            (Some(cookie), _) => (Some(format!("cookie:{cookie}")), "Without the cookie, chance decides."),
            (_, Some(header)) => {
                (Some(format!("header:{}", header_name(header))), "Without the header, chance decides.")
            }
            _ => (None, "Chance decides for each request."),
        },
        _ => (None, "Chance decides for each request."),
    }
}

/// A percentage, in hundredths of a percent.
fn hundredths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 3 || part.len() > 2 || !digits(whole) || !digits(part) {
        return None;
    }
    format!("{whole}{part:0<2}").parse().ok()
}

/// The greatest common divisor.
fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// A `map` that chooses a group by a header or a cookie.
fn by_map<'d>(
    import: &mut Import<'d>,
    scope: &Scope<'d>,
    d: &'d Directive,
    map: &'d Directive,
    to: &Target,
    changes: &Changes,
    route: &mut Route,
) {
    let default = map.inner().iter().find(|e| e.name() == "default").and_then(|e| e.word(1));
    let Some(default) = default.filter(|v| !has_variables(v)) else {
        let of_split = default.and_then(|v| v.strip_prefix('$')).map(|v| v.trim_matches(['{', '}']));
        let is_split = of_split.is_some_and(|v| import.splits.contains_key(v));
        let name = map.word(1).and_then(|w| of_variable(w.replace(['{', '}'], "").strip_prefix('$')?));
        let advice = match name.filter(|_| is_split) {
            Some(name) => {
                let (key, name) = match name.strip_prefix(COOKIE) {
                    Some(cookie) => ("cookie", cookie),
                    None => ("header", name.as_str()),
                };
                format!(
                    "write split in the route: {key} = \"{name}\", and groups whose names are the values of the map, with their \
                     upstreams and weights. With cookie, the gateway also sets the cookie"
                )
            }
            None => "select it by routes with \"headers\"".to_owned(),
        };
        return import.missing(d, format!("a variable selects the server: {advice}. Until then, requests get 501"));
    };
    let Some(group) = upstream(import, scope, d, to, default, changes) else { return };
    import.same(d, format!("upstream \"{group}\", or the upstream from the map"));
    (route.action, route.origin) = (Action::Upstream(group), d.place.clone());
    let source = map.word(1).unwrap_or("").replace(['{', '}'], "");
    let Some(name) = source.strip_prefix('$').and_then(of_variable) else {
        return import.decide(
            map,
            format!(
                "Sealane cannot select by {source}: only the default of the map is translated; let a server select"
            ),
        );
    };
    match name.starts_with(COOKIE) {
        true => import.differs_a_little(map, COOKIES_DIFFER),
        false if values::is_claim(&name) => import.differs(map, values::CLAIM),
        false => import.same(map, "routes with \"headers\""),
    }
    // Texts come before expressions.
    let (expressions, texts): (Vec<_>, Vec<_>) =
        map.inner().iter().filter(|e| e.name() != "default").partition(|e| e.name().starts_with('~'));
    for entry in texts.into_iter().chain(expressions) {
        let (key, group) = (entry.name(), entry.word(1).unwrap_or(""));
        let (text, any_case) = maps::expression(key);
        let rules = match key {
            "" => Some(vec![values::NOTHING.to_owned()]),
            _ => values::matched(&[(text.as_str(), any_case)]),
        };
        let Some(rules) = rules.filter(|_| !group.is_empty() && !has_variables(group) && entry.words.len() == 2) else {
            import.decide(map, format!("{key} cannot be translated: write a route with \"headers\" or \"cookies\""));
            continue;
        };
        if import.chosen.len() + rules.len() > MAX_CHOSEN {
            return import.decide(map, "there are too many values: write routes with \"headers\"");
        }
        if let Some(upstream) = upstream(import, scope, d, to, group, changes) {
            let chosen = |rule| Chosen {
                name: name.clone(),
                rule,
                upstream: upstream.clone(),
                value: group.to_owned(),
                place: entry.place.clone(),
            };
            import.chosen.extend(rules.into_iter().map(chosen));
        }
    }
}
