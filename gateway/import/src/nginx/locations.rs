//! `location`: which one a request goes to, as routes.

use super::access::{self, Access};
use super::actions::{self, Step};
use super::conditions::Condition;
use super::headers::{self, Changes};
use super::parser::Directive;
use super::scope::{Import, Scope};
use crate::output::{Action, Path, Route};
use crate::patterns;

/// Which requests a location is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher {
    Exact(String),
    Prefix(String),
    /// Paths that a regular expression stands for; with `true` all that begin so.
    Pattern(Vec<String>, bool),
    /// A regular expression that is not translated.
    Unknown,
    Named(String),
}

/// A location with what it inherits.
pub(super) struct Location<'d> {
    d: &'d Directive,
    matcher: Matcher,
    scope: Scope<'d>,
}

/// What all locations of a server have in common.
pub(super) struct Site<'d> {
    pub server: &'d Directive,
    pub scope: Scope<'d>,
    /// Conditions of the server's own `if`s that depend on the request, each with what it leads to.
    pub conditions: Vec<(Condition, Action, &'d Directive)>,
    pub locations: Vec<Location<'d>>,
    /// The first name, for `$server_name`.
    pub name: Option<String>,
    /// The port, where there is one only.
    pub port: Option<u16>,
}

/// Deepest nesting of locations, which the parser bounds, too.
const MAX_DEPTH: usize = 16;
/// Most locations of a server.
const MAX_LOCATIONS: usize = 2000;

/// The locations of a server, those in locations behind them.
pub(super) fn locations<'d>(import: &mut Import<'d>, block: &'d [Directive], scope: &Scope<'d>) -> Vec<Location<'d>> {
    let mut out = Vec::new();
    flatten(import, block, scope, 0, &mut out);
    out
}

fn flatten<'d>(
    import: &mut Import<'d>,
    block: &'d [Directive],
    scope: &Scope<'d>,
    depth: usize,
    out: &mut Vec<Location<'d>>,
) {
    for d in block.iter().filter(|d| d.name() == "location") {
        if depth >= MAX_DEPTH || out.len() >= MAX_LOCATIONS {
            import.decide(d, "there are too many locations");
            continue;
        }
        let inner = scope.within(d.inner());
        let matcher = matcher(import, d);
        out.push(Location { d, matcher, scope: inner.clone() });
        flatten(import, d.inner(), &inner, depth + 1, out);
    }
}

fn matcher<'d>(import: &mut Import<'d>, d: &'d Directive) -> Matcher {
    let arguments = d.arguments();
    let (operator, text) = match arguments.as_slice() {
        [one] => match one.strip_prefix('@') {
            Some(_) => return Matcher::Named((*one).to_owned()),
            None => match ["=", "^~", "~*", "~"].into_iter().find_map(|o| Some((o, one.strip_prefix(o)?))) {
                Some((operator, rest)) => (operator, rest),
                None => ("", *one),
            },
        },
        [operator, text] => (*operator, *text),
        _ => {
            import.decide(d, "is not understood");
            return Matcher::Unknown;
        }
    };
    match operator {
        "=" => Matcher::Exact(text.to_owned()),
        "" | "^~" => Matcher::Prefix(text.to_owned()),
        "~" | "~*" => match patterns::paths(text) {
            Some((texts, prefix)) => {
                if operator == "~*" {
                    import.differs(d, "upper and lower case differ");
                }
                Matcher::Pattern(texts, prefix)
            }
            None => Matcher::Unknown,
        },
        _ => Matcher::Unknown,
    }
}

/// Whether a path can stand in a route.
fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && !path.contains(['*', '?', '#', '%', '\\', ';'])
        && path.bytes().all(|b| b.is_ascii_graphic())
}

impl Site<'_> {
    fn exact(&self, path: &str) -> bool {
        self.locations
            .iter()
            .any(|l| l.matcher == Matcher::Exact(path.to_owned()) || l.matcher == Matcher::Prefix(path.to_owned()))
    }

    /// The location of the longest prefix of a path, other than `not`.
    fn parent(&self, path: &str, not: &str) -> Option<usize> {
        let prefix = |l: &Location| match &l.matcher {
            Matcher::Prefix(p) if path.starts_with(p.as_str()) && p != not => Some(p.len()),
            _ => None,
        };
        let found = self.locations.iter().enumerate().filter_map(|(i, l)| Some((prefix(l)?, i)));
        found.max_by_key(|(len, _)| *len).map(|(_, i)| i)
    }
}

/// All routes of a server.
pub(super) fn routes<'d>(import: &mut Import<'d>, site: &Site<'d>) -> Vec<Route> {
    let mut out: Vec<Route> = Vec::new();
    for l in &site.locations {
        let found = of_location(import, site, l);
        import.same(l.d, "[[host.route]]");
        for route in found {
            push(&mut out, route);
        }
    }
    let everything = Path::Below("/".to_owned());
    if !out.iter().any(|r| r.path == everything && r.methods.is_empty() && r.headers.is_empty()) {
        // What no location is for: the server's own files.
        let mut route = Route::new(everything, Action::untranslated(), &site.server.place);
        let own = site.scope.last("root").filter(|_| site.locations.is_empty());
        import.missing(own.unwrap_or(site.server), "Sealane serves no files: requests that no location is for get 501");
        if let Access::Closed(place) = access::access(import, &site.scope) {
            route.action = Action::status(403);
            route.origin = place;
        }
        let mut changes = Changes::default();
        headers::response(import, &site.scope, &mut changes);
        (route.response, route.hsts) = (changes.response, changes.hsts);
        conditioned(import, &site.conditions, route).into_iter().for_each(|r| push(&mut out, r));
    }
    out
}

/// The first of two routes for the same requests counts.
fn push(out: &mut Vec<Route>, route: Route) {
    let same = route.conditions();
    if !out.iter().any(|r| r.conditions() == same) {
        out.push(route);
    }
}

fn of_location<'d>(import: &mut Import<'d>, site: &Site<'d>, l: &Location<'d>) -> Vec<Route> {
    match &l.matcher {
        // Used by `try_files`, if at all.
        Matcher::Named(_) => Vec::new(),
        Matcher::Unknown => {
            unknown(import, l);
            Vec::new()
        }
        Matcher::Exact(path) => {
            if !is_path(path) {
                import.decide(l.d, "this path cannot stand in a route");
                return Vec::new();
            }
            serve(import, site, l, Path::Exact(path.clone()), path)
        }
        Matcher::Prefix(path) if path == "/" => serve(import, site, l, Path::Below("/".to_owned()), "/"),
        Matcher::Prefix(path) => below(import, site, l, path),
        Matcher::Pattern(texts, prefix) => {
            let mut out = Vec::new();
            for text in texts {
                if !is_path(text) {
                    import.decide(l.d, "this path cannot stand in a route");
                } else if *prefix {
                    out.extend(below(import, site, l, text));
                } else {
                    out.extend(serve(import, site, l, Path::Exact(text.clone()), text));
                }
            }
            let any_case = l.d.word(1).is_some_and(|w| w.starts_with("~*"));
            if any_case && (out.iter().any(|r| r.action.is_refusal()) || access::is_guarded(l.d)) {
                import.decide(
                    l.d,
                    "upper and lower case differ here, so other spellings are not refused; let the server refuse them",
                );
            }
            if *prefix {
                let longer = |p: &str| texts.iter().any(|t| p.len() > t.len() && p.starts_with(t.as_str()));
                if site.locations.iter().any(|o| matches!(&o.matcher, Matcher::Prefix(p) if longer(p))) {
                    import.differs(
                        l.d,
                        "a longer path of another location wins here; in NGINX the regular expression does",
                    );
                }
            }
            out
        }
    }
}

/// A regular expression for which there is nothing.
fn unknown<'d>(import: &mut Import<'d>, l: &Location<'d>) {
    let step = actions::rewrite_phase(import, &l.scope, l.d.inner(), None, None);
    let refuses = matches!(&step, Step::Answer(a, _) if a.is_refusal())
        || l.scope.all(&["allow", "deny"]).iter().any(|d| d.name() == "deny")
        || l.d.inner().iter().any(|d| d.name() == "internal");
    let guarded = access::is_guarded(l.d);
    match refuses || guarded {
        true => {
            import.decide(l.d, "there are no regular expressions for paths: say by routes which paths these are, or let the server refuse them");
            access::moot(import, &l.scope, "see the location");
        }
        false => import.missing(
            l.d,
            "there are no regular expressions for paths: these requests go where the location with the longest prefix sends them",
        ),
    }
    for d in l.d.inner() {
        import.whole(d, crate::Outcome::NotTranslated, "its location is not translated");
    }
}

/// A prefix, compared by whole segments here.
fn below<'d>(import: &mut Import<'d>, site: &Site<'d>, l: &Location<'d>, path: &str) -> Vec<Route> {
    if !is_path(path) {
        import.decide(l.d, "this path cannot stand in a route");
        return Vec::new();
    }
    let mut out = serve(import, site, l, Path::Below(path.to_owned()), path);
    let Some(bare) = path.strip_suffix('/') else {
        // A page of statistics is not served at all.
        let statistics = has_statistics(l);
        let refuses = out.iter().any(|r| r.action.is_refusal()) && !statistics;
        let elsewhere = site.parent(path, path).map(|i| site.locations[i].d);
        match (refuses, elsewhere) {
            (true, _) => import.decide(
                l.d,
                format!("a route's path has whole segments: {path} and {path}/x are refused, {path}x is not; add routes for such paths, or let the server refuse them"),
            ),
            (false, _) if access::is_guarded(l.d) && !statistics => import.decide(
                l.d,
                format!("a route's path has whole segments: {path} and {path}/x are meant, {path}x is not"),
            ),
            _ => import.differs(l.d, format!("whole segments: {path} and {path}/x, not {path}x")),
        }
        return out;
    };
    if site.exact(bare) || bare.is_empty() {
        return out;
    }
    // NGINX: /api is not below /api/. Where requests are passed on, they are redirected there.
    let passed = l.d.inner().iter().any(|d| actions::PASSES.contains(&d.name()));
    let exact = Path::Exact(bare.to_owned());
    // A regular expression is compared as it is written.
    let is_prefix = matches!(l.matcher, Matcher::Prefix(_));
    if passed && is_prefix {
        let port = site.port.filter(|p| !matches!(p, 80 | 443)).map_or_else(String::new, |p| format!(":{p}"));
        let to = format!("{{scheme}}://{{host}}{port}{path}{{query}}");
        let mut redirect = Route::new(exact, Action::Redirect { to, status: 301 }, &l.d.place);
        if let Some(first) = out.last() {
            (redirect.response, redirect.hsts) = (first.response.clone(), first.hsts.clone());
        }
        out.push(redirect);
    } else if let Some(parent) = site.parent(bare, path) {
        let parent = &site.locations[parent];
        out.extend(serve(import, site, parent, exact, bare));
    } else {
        out.push(Route::new(exact, Action::untranslated(), &l.d.place));
    }
    out
}

fn has_statistics(l: &Location) -> bool {
    l.d.inner().iter().any(|d| d.name() == "stub_status")
}

/// What a location does with the requests of a path.
fn serve<'d>(import: &mut Import<'d>, site: &Site<'d>, l: &Location<'d>, path: Path, text: &str) -> Vec<Route> {
    let block = l.d.inner();
    let mut conditions = site.conditions.clone();
    conditions.extend(actions::conditions(import, block, site.name.as_deref()));
    let step = actions::rewrite_phase(import, &l.scope, block, site.name.as_deref(), Some(text));
    let mut changes = Changes::default();
    let mut route = Route::new(path.clone(), Action::untranslated(), &l.d.place);
    match step {
        Step::Answer(action, d) => {
            route.action = action;
            route.origin = d.place.clone();
            headers::response(import, &l.scope, &mut changes);
            access::moot(import, &l.scope, "\"return\" answers before");
        }
        Step::Continue(rewrite) => {
            headers::response(import, &l.scope, &mut changes);
            if has_statistics(l) {
                access::moot(import, &l.scope, "nobody gets statistics here");
                route.action = Action::status(404);
                (route.response, route.hsts) = (changes.response, changes.hsts);
                return vec![route];
            }
            let access = access::access(import, &l.scope);
            if let Access::Closed(place) = access {
                (route.action, route.origin) = (Action::status(403), place);
                for d in block {
                    import.whole(d, crate::Outcome::Same, "nobody is let in");
                }
            } else if let Some(d) = block.iter().find(|d| d.name() == "internal") {
                import.same(d, "clients get 404");
                (route.action, route.origin) = (Action::status(404), d.place.clone());
            } else {
                actions::content(import, site, l, &path, text, rewrite, &mut changes, &mut route);
                route.rate_limits = access::rate_limits(import, &l.scope);
            }
        }
    }
    (route.request, route.response, route.hsts) = (changes.request, changes.response, changes.hsts);
    let mut out = limit_except(import, l, &route);
    for chosen in std::mem::take(&mut import.chosen) {
        let mut other = route.clone();
        other.headers.push((chosen.header, chosen.rule));
        (other.action, other.origin) = (Action::Upstream(chosen.upstream), chosen.place);
        out.push(other);
    }
    out.extend(conditioned(import, &conditions, route));
    out
}

/// `limit_except GET { deny all; }`: other methods get 403.
fn limit_except<'d>(import: &mut Import<'d>, l: &Location<'d>, route: &Route) -> Vec<Route> {
    let mut out = Vec::new();
    for d in l.d.inner().iter().filter(|d| d.name() == "limit_except") {
        let only = matches!(d.inner(), [one] if one.name() == "deny" && one.word(1) == Some("all"));
        if !only || matches!(route.action, Action::Respond { .. }) {
            import
                .decide(d, "methods are refused by a route with \"methods\"; addresses and passwords are not compared");
            continue;
        }
        let mut allowed = route.clone();
        allowed.methods = d.arguments().into_iter().map(str::to_owned).collect();
        if allowed.methods.iter().any(|m| m == "GET") && !allowed.methods.iter().any(|m| m == "HEAD") {
            allowed.methods.push("HEAD".to_owned());
        }
        let mut refused = route.clone();
        (refused.action, refused.origin, refused.rewrite) = (Action::status(403), d.place.clone(), None);
        import.same(d, "a route with \"methods\", and status 403 for others");
        d.inner().iter().for_each(|d| import.same(d, "403"));
        out.extend([allowed, refused]);
    }
    out
}

/// A route with its exceptions by method or header.
fn conditioned<'d>(
    import: &mut Import<'d>,
    conditions: &[(Condition, Action, &'d Directive)],
    route: Route,
) -> Vec<Route> {
    let (mut out, mut others) = (Vec::new(), Vec::new());
    let mut main = route;
    for (condition, action, d) in conditions {
        let mut other = main.clone();
        (other.action, other.origin, other.rewrite) = (action.clone(), d.place.clone(), None);
        match condition {
            Condition::Method(methods, true) => other.methods = methods.clone(),
            Condition::Method(methods, false) if main.methods.is_empty() => {
                main.methods = methods.clone();
                // What is for no method of these is for the others.
                others.push(other);
                import.same(d, "a route with \"methods\"");
                continue;
            }
            Condition::Header(name, rule) => other.headers.push((name.clone(), rule.clone())),
            _ => continue,
        }
        import.same(d, "a route with a condition");
        out.push(other);
    }
    let mut out = crate::output::in_order(out);
    out.push(main);
    out.extend(others);
    out
}

impl<'d> Location<'d> {
    pub fn directive(&self) -> &'d Directive {
        self.d
    }

    pub fn scope(&self) -> &Scope<'d> {
        &self.scope
    }

    pub fn is_named(&self, name: &str) -> bool {
        matches!(&self.matcher, Matcher::Named(n) if n == name)
    }
}
