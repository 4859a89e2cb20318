//! `[[host]]`, with what all of its routes have in common.

use super::snippets::{Part, Snippets};
use super::{Edits, Path, Route, comment, key, line, list, literal, quoted};
use crate::addresses::Access;
use crate::report::Place;
use crate::values::COOKIE;

/// A `[[host]]`.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub names: Vec<String>,
    pub listeners: Vec<String>,
    pub routes: Vec<Route>,
    pub origin: Place,
}

/// A host as it is written. What all routes have in common is the host's. What some of them lack is each route's own, since a route
/// has the host's, too.
pub(super) struct Written<'h> {
    host: &'h Host,
    common: Option<Route>,
    /// The route for all requests, if the host says it itself.
    own: Option<Route>,
    routes: Vec<Route>,
}

impl Host {
    pub(super) fn written(&self) -> Written<'_> {
        let mut routes = self.routes.clone();
        let common = common(&mut routes);
        let own = routes
            .iter()
            .position(|r| r.is_everything() && !r.rewrites_path() && !r.has_extras() && r.pages.is_empty())
            .map(|i| routes.remove(i));
        Written { host: self, common, own, routes }
    }
}

impl Written<'_> {
    /// What other tables may have, too.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        self.common.iter().chain(&self.routes).flat_map(Route::parts)
    }

    pub fn write(&self, out: &mut String, snippets: &Snippets) {
        comment(out, &self.host.origin, "Requests");
        out.push_str("[[host]]\n");
        line(out, &format!("names = {}", list(&self.host.names)), None);
        line(out, &format!("listeners = {}", list(&self.host.listeners)), None);
        if let Some(own) = &self.own {
            own.action.write(out, &own.origin);
        }
        if let Some(common) = &self.common {
            common.write_extras(out, "host", snippets);
        }
        for route in &self.routes {
            out.push_str("\n[[host.route]]\n");
            match &route.path {
                Path::Below(p) if p == "/" && route.pattern.is_some() => {}
                Path::Below(p) => line(out, &format!("path = {}", quoted(p)), Some(&route.origin)),
                Path::Exact(p) => line(out, &format!("exact = {}", quoted(p)), Some(&route.origin)),
                // `settled` has made another path of it.
                Path::Within(_) => {}
            }
            if let Some(pattern) = &route.pattern {
                line(out, &format!("path_regex = {}", literal(pattern)), Some(&route.origin));
            }
            if !route.methods.is_empty() {
                line(out, &format!("methods = {}", list(&route.methods)), None);
            }
            for (name, condition) in &route.headers {
                let (table, name) = match name.strip_prefix(COOKIE) {
                    Some(cookie) => ("cookies", cookie),
                    None => ("headers", name.as_str()),
                };
                line(out, &format!("{table}.{} = {condition}", key(name)), None);
            }
            route.action.write(out, &route.origin);
            if let Some((to, place)) = &route.rewrite {
                line(out, &format!("rewrite_prefix = {}", quoted(to)), Some(place));
            }
            if let Some((to, place)) = &route.template {
                line(out, &format!("rewrite = {}", quoted(to)), Some(place));
            }
            route.write_extras(out, "host.route", snippets);
        }
    }
}

/// Headers that only servers send.
const OF_SERVERS: [&str; 4] = ["server", "x-powered-by", "x-aspnet-version", "x-aspnetmvc-version"];

/// Takes out of routes the changes to responses that all of them have in common.
fn common_responses(routes: &mut [Route]) -> Edits {
    let first = routes.first().map(|r| r.response.clone()).unwrap_or_default();
    let mut out = Edits::default();
    // Otherwise the host has responses of its own: to requests for which there is no route.
    if routes.iter().any(Route::is_everything) || routes.iter().all(|r| r.response.same() == first.same()) {
        let mut all: Vec<&mut Edits> = routes.iter_mut().map(|r| &mut r.response).collect();
        out = Edits::take_common(&mut all);
    }
    // Responses of the gateway itself do not have these, so it makes no difference for them.
    let passing = || routes.iter().filter(|r| r.action.passes());
    let is_common = |(name, _): &&(String, Place)| {
        let removes = |r: &Route| r.response.remove.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        OF_SERVERS.iter().any(|n| name.eq_ignore_ascii_case(n)) && passing().all(removes)
    };
    let removed = passing().next().map(|r| r.response.remove.as_slice()).unwrap_or_default();
    let common: Vec<(String, Place)> = removed.iter().filter(is_common).cloned().collect();
    for route in routes.iter_mut() {
        let is_there = |name: &str| common.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        route.response.remove.retain(|(name, _)| !is_there(name));
    }
    out.remove.extend(common);
    out
}

/// Takes out of routes what all of them have in common. Requests are changed for servers only, so routes that answer by themselves have
/// no say in that.
fn common(routes: &mut [Route]) -> Option<Route> {
    let mut out = routes.first()?.clone();
    out.request = Edits::default();
    out.mirror = None;
    let passes = |r: &Route| r.action.passes();
    let mut requests: Vec<&mut Edits> = routes.iter_mut().filter(|r| passes(r)).map(|r| &mut r.request).collect();
    out.request = Edits::take_common(&mut requests);
    out.upgrade = routes.iter().find(|r| passes(r) && !r.passes_upgrade()).and_then(|r| r.upgrade.clone());
    // Where one route refuses upgrades, the host does, too, and the other routes allow them: a route that is added later refuses them.
    for route in routes.iter_mut() {
        let is_open = route.action.passes() && route.passes_upgrade();
        let place = route.upgrade.take().map_or_else(|| route.origin.clone(), |(_, place)| place);
        if out.upgrade.is_some() && is_open {
            route.upgrade = Some((true, place));
        }
    }
    out.response = common_responses(routes);
    let value = |r: &Route| r.hsts.as_ref().map(|h| h.0.clone());
    match routes.iter().all(|r| value(r) == value(&out)) {
        true => routes.iter_mut().for_each(|r| r.hsts = None),
        false => out.hsts = None,
    }
    match routes.iter().all(|r| r.body_limit() == out.body_limit()) {
        true => routes.iter_mut().for_each(|r| r.max_body = None),
        false => out.max_body = None,
    }
    // Only responses of servers are changed, and compressed.
    out.rewrites = routes.iter().find(|r| passes(r)).map(|r| r.rewrites.clone()).unwrap_or_default();
    match routes.iter().filter(|r| passes(r)).all(|r| r.rewrites() == out.rewrites()) {
        true => routes.iter_mut().for_each(|r| r.rewrites.clear()),
        false => out.rewrites.clear(),
    }
    out.compression = routes.iter().find(|r| passes(r)).and_then(|r| r.compression.clone());
    match routes.iter().filter(|r| passes(r)).all(|r| r.compression() == out.compression()) {
        true => routes.iter_mut().for_each(|r| r.compression = None),
        false => out.compression = None,
    }
    match routes.iter().all(|r| r.cors() == out.cors()) {
        true => routes.iter_mut().for_each(|r| r.cors = None),
        false => out.cors = None,
    }
    match routes.iter().all(|r| r.limits() == out.limits()) {
        true => routes.iter_mut().for_each(|r| (r.rate_limits, r.concurrency_limits) = (Vec::new(), Vec::new())),
        false => (out.rate_limits, out.concurrency_limits) = (Vec::new(), Vec::new()),
    }
    match routes.iter().all(|r| r.checks() == out.checks()) {
        true => routes.iter_mut().for_each(|r| {
            (r.access, r.forward_auth, r.basic_auth, r.satisfy_any) = (Access::default(), None, None, None);
        }),
        false => {
            (out.access, out.forward_auth, out.basic_auth, out.satisfy_any) = (Access::default(), None, None, None);
            if routes.iter().all(|r| r.satisfy_any.is_none()) {
                let mut all: Vec<&mut Access> = routes.iter_mut().map(|r| &mut r.access).collect();
                out.access = Access::take_common_headers(&mut all);
            }
        }
    }
    out.pages = routes.iter().find(|r| passes(r)).map(|r| r.pages.clone()).unwrap_or_default();
    match routes.iter().filter(|r| passes(r)).all(|r| r.pages() == out.pages()) {
        true => routes.iter_mut().for_each(|r| r.pages.clear()),
        false => out.pages.clear(),
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Action;

    #[test]
    fn what_routes_have_in_common_is_the_hosts() {
        let place = Place::new("x", 1);
        let route = |path: &str, action: Action, set: &[(&str, &str)], removes: bool| {
            let mut out = Route::new(Path::Below(path.into()), action, &place);
            set.iter().for_each(|(name, value)| out.response.set(name, value, &place));
            if removes {
                out.response.remove("Server", &place);
                out.response.remove("X-Cache", &place);
            }
            out.request.set("X-Env", "a", &place);
            out.request.set("X-Path", path, &place);
            out
        };
        let to = || Action::Upstream("b".into());
        let all = |whole: &str| {
            [
                route(whole, to(), &[("X-A", "1")], true),
                route("/c", to(), &[("x-a", "1"), ("X-B", "2")], true),
                route("/d", to(), &[("X-A", "1"), ("X-B", "3")], true),
                route("/ping", Action::status(200), &[("X-A", "1")], false),
            ]
        };
        let names = |edits: &Edits| -> Vec<String> {
            let set = edits.set.iter().map(|(name, ..)| name.clone());
            edits.remove.iter().map(|(name, _)| format!("-{name}")).chain(set).collect()
        };
        let mut routes = all("/");
        let host = common(&mut routes).unwrap();
        assert_eq!(names(&host.response), ["-Server", "X-A"], "the gateway itself sends no Server");
        let own: Vec<Vec<String>> = routes.iter().map(|r| names(&r.response)).collect();
        assert_eq!(own, [&["-X-Cache"][..], &["-X-Cache", "X-B"], &["-X-Cache", "X-B"], &[]]);
        assert_eq!(names(&host.request), ["X-Env"]);
        assert!(routes[..3].iter().all(|r| names(&r.request) == ["X-Path"]));
        // Requests for which there is no route get a response of the host.
        let mut routes = all("/e");
        assert_eq!(names(&common(&mut routes).unwrap().response), ["-Server"]);
        assert_eq!(names(&routes[3].response), ["X-A"]);
    }
}
