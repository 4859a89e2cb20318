//! The routes of a server.
//!
//! `paths::plan` asks [`Site::decision`] about every class of paths, and this module writes the routes of each decision, in which the
//! first step that applies decides. What no routes can say is undecided.

use super::selection::{Branch, Decision, End};
use super::{Location, Matcher, Site, Then, When};
use crate::addresses::{Access, Certificate};
use crate::nginx::access::{self, Checks};
use crate::nginx::actions;
use crate::nginx::compression;
use crate::nginx::headers::{self, Changes};
use crate::nginx::http;
use crate::nginx::inner;
use crate::nginx::scope::{Import, Scope};
use crate::nginx::{mirrors, pages, redirects};
use crate::output::{Action, Entry, Methods, Path, Route, in_order, joined};
use crate::paths::{self, Differing, PathTest, Planned, Stands};
use crate::patterns::Expression;
use crate::report::Place;

/// What is said of a server that has files neither here nor there.
const NO_ROOT: &str = "requests that match no location get 404: there is no \"root\" (NGINX looks for a file in the folder html of its \
     installation)";

/// What is said of an `internal` location to which no directive leads.
const ACCEL: &str = "clients get 404. In NGINX, a server can name this location in the header X-Accel-Redirect, and NGINX answers with its files. \
     Sealane passes this header on, and the client gets the response of the server as it is: if a server sends this header, let it send the \
     files itself, or keep an NGINX between Sealane and this server";

/// Most routes of a server that have an expression.
const MAX_EXPRESSIONS: usize = 1000;

/// All routes of a server.
pub(in crate::nginx) fn routes<'d>(import: &mut Import<'d>, site: &Site<'d>) -> Vec<Route> {
    let serves = site.locations.iter().any(|l| l.matcher != Matcher::Pattern(None) && l.serves());
    for l in &site.locations {
        match l.matcher {
            Matcher::Pattern(None) => unknown(import, l, serves),
            // Used by `try_files`, if at all.
            Matcher::Named(_) => {}
            Matcher::Expression(ref e) => {
                import.same(l.d, "path_regex");
                percent(import, l, e);
            }
            _ => import.same(l.d, "[[host.route]]"),
        }
    }
    let tests = site.tests();
    let tests: Vec<&PathTest> = tests.iter().collect();
    let mut budget = import.budget;
    let levels = site.locations.iter().map(|l| l.depth + 1).max().unwrap_or(1);
    let expressions = site.steps.iter().chain(site.locations.iter().flat_map(|l| &l.steps));
    let expressions = expressions.filter(|s| s.expression().is_some()).count()
        + site.locations.iter().filter(|l| matches!(l.matcher, Matcher::Expression(_))).count();
    let cost = tests.len() + site.locations.len() * levels + expressions * 20;
    let amends = |d: &Differing<Decision>| {
        let stands = match (d.there.by.is_empty(), d.there.by == d.around.by) {
            (true, _) => Stands::Before,
            (_, true) => Stands::Behind,
            _ => return None,
        };
        (d.is_within || d.is_part || !site.is_no_loss(d.there, d.here)).then_some(stands)
    };
    let plan =
        paths::plan(&tests, cost, &mut budget, |path, one| site.decision(path, one), |d| site.restricts(d), amends);
    import.budget = budget;
    let Some(plan) = plan else {
        import.decide(site.server, "this server distinguishes too many paths: write its routes yourself");
        return Vec::new();
    };
    for e in &plan.elsewhere {
        elsewhere(import, site, &e.there, &e.here, &e.path);
    }
    let expressions = |p: &Planned<Decision>| p.decision.by.len() + p.within.len();
    if plan.routes.iter().map(expressions).sum::<usize>() > MAX_EXPRESSIONS {
        import.decide(
            site.server,
            "the paths and expressions of this server need too many routes: write its routes yourself",
        );
        return Vec::new();
    }
    let mut out = Vec::new();
    for planned in &plan.routes {
        match of_path(import, site, planned) {
            Some(mut routes) => out.append(&mut routes),
            None => import.decide(
                site.blamed(&planned.decision.otherwise),
                "routes cannot express the order of these conditions: write one route for each case, or let the server decide",
            ),
        }
    }
    out
}

/// Reports a path for which the routes decide otherwise than NGINX.
fn elsewhere<'d>(import: &mut Import<'d>, site: &Site<'d>, there: &Decision, here: &Decision, path: &str) {
    let d = site.blamed(Site::differing(there, here).first().map_or(&there.otherwise, |(there, _)| *there));
    match site.is_no_loss(there, here) {
        true => import.differs(
            d,
            format!("Sealane matches whole segments and distinguishes upper and lower case: this route does not match {path}; another route handles it"),
        ),
        false => import.decide(
            d,
            format!(
                "Sealane matches whole segments and distinguishes upper and lower case: this route does not match {path}; in NGINX, the \
                 location does. Add routes for such paths, or let the server refuse them"
            ),
        ),
    }
}

/// A regular expression for which there is nothing. `serves`: a request for which it is may get an answer from another location.
fn unknown<'d>(import: &mut Import<'d>, l: &Location<'d>, serves: bool) {
    let harmless = !serves && !l.serves() && l.steps.is_empty() && access::restrictions(&l.scope).is_empty();
    match harmless && l.internal().is_none() {
        true => import.missing(
            l.d,
            "Sealane's path_regex cannot express this regular expression (for example because of look-around or a back-reference): \
             requests for the paths that it matches go to the location with the longest prefix",
        ),
        false => {
            let text = l.d.arguments().last().copied().unwrap_or_default();
            let says = "Sealane's path_regex cannot express this regular expression (for example because of look-around or a \
                        back-reference): write routes for the paths that it matches, or let the server refuse these paths";
            match except(text) {
                Some((before, name)) => import.decide(
                    l.d,
                    format!(
                        "Sealane's expressions have no look-ahead. Write two routes: one with path_regex = \
                         '{before}' and the settings of this location, and one with path = \"/{}/\" and the settings \
                         of the surrounding location. Other routes with a path take precedence over an expression: \
                         for each of them, add a route with its path, the same path_regex and the settings of this \
                         location",
                        name.trim_end_matches('/')
                    ),
                ),
                None => import.decide(l.d, says),
            }
            access::moot(import, &l.scope, "see the location");
        }
    }
    for d in l.d.inner() {
        import.whole(d, crate::Outcome::NotTranslated, "its location is not translated");
    }
}

/// For an expression such as `/\.(?!well-known)`, what it matches without its exception, and the name that it excepts.
fn except(text: &str) -> Option<(&str, String)> {
    let (before, behind) = text.trim_start_matches('^').split_once("(?!")?;
    let name = behind.split(')').next()?;
    let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_/".contains(&b));
    let dotted = before.ends_with("\\.") && matches!(before.trim_end_matches("\\."), "/" | "(^|/)" | "(?:^|/)");
    (dotted && plain(name)).then(|| (before, format!(".{name}")))
}

/// A client writes `%25` for the character `%`, and so routes see it.
fn percent<'d>(import: &mut Import<'d>, l: &Location<'d>, expression: &Expression) {
    if !expression.is_of_percent {
        return;
    }
    const SAYS: &str =
        "in Sealane, \".\" does not match an encoded \"%\", because routes see it as the three characters %25";
    match l.steps.is_empty() && l.internal().is_none() && access::restrictions(&l.scope).is_empty() {
        true => import.differs(l.d, SAYS),
        false => import.decide(l.d, format!("{SAYS}: write \"\\.\" for a dot, and .* or .+ for other characters")),
    }
}

/// The routes of a path. `None`: no routes say this.
fn of_path<'d>(import: &mut Import<'d>, site: &Site<'d>, planned: &Planned<Decision>) -> Option<Vec<Route>> {
    let Planned { path, sample, decision, within } = planned;
    let mut own: Vec<Vec<Route>> = Vec::new();
    for (by, branch) in &decision.by {
        let text = site.expression(*by)?.text();
        let routes = of_branch(import, site, path, sample, branch)?;
        own.push(routes.into_iter().map(|r| Route { pattern: Some(text.to_owned()), ..r }).collect());
    }
    own.push(of_branch(import, site, path, sample, &decision.otherwise)?);
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    let mut said = true;
    for extra in within {
        let path = Path::Within(extra.within.clone());
        let routes = of_branch(import, site, &path, &extra.sample, &extra.decision.otherwise);
        said &= routes.is_some();
        match extra.stands {
            Stands::Before => before.extend(routes),
            Stands::Behind => behind.extend(routes),
        }
    }
    if said {
        let last = own.len() - 1;
        let mut all = before;
        all.extend_from_slice(&own[..last]);
        all.append(&mut behind);
        all.push(own[last].clone());
        if let Some(routes) = joined(all) {
            return Some(routes);
        }
    }
    for extra in within {
        let path = extra.sample.replace(paths::OTHER, "x");
        elsewhere(import, site, &extra.decision, decision, &path);
    }
    joined(own)
}

/// The routes of a path for one branch. `None`: no routes say this.
fn of_branch<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    path: &Path,
    sample: &str,
    decision: &Branch,
) -> Option<Vec<Route>> {
    if decision.end == End::Never {
        return Some(Vec::new());
    }
    let place = site.blamed(decision).place.clone();
    let mut entries: Vec<Entry> = Vec::new();
    // Where entries begin that have exceptions, how many these are, and the exceptions.
    let mut excepted = Vec::new();
    let mut rewritten = None;
    let mut access = Access::default();
    // The locations that NGINX has selected, one after the other.
    let mut selected: Vec<usize> = Vec::new();
    for key in &decision.steps {
        let step = site.step(*key);
        selected.extend(key.0.filter(|i| !selected.contains(i)));
        let scope = key.0.map_or(&site.scope, |i| &site.locations[i].scope);
        let action = match &step.then {
            Then::Answer(action) => actions::at_path(action, path)?,
            Then::Rewrite => {
                rewritten = Some(actions::Rewritten { d: step.d, to: None });
                continue;
            }
            Then::Search(new) => {
                if let Some(i) = key.0 {
                    access::moot(
                        import,
                        &site.locations[i].scope,
                        "not used: \"rewrite\" sends these requests to another location first",
                    );
                }
                rewritten = Some(actions::Rewritten { d: step.d, to: Some(new.template.clone()) });
                continue;
            }
            Then::Stop => continue,
        };
        let refused = match &step.when {
            When::Clients(clients) => Some(access.refuse(clients, &step.d.place)),
            When::NoCertificate => Some(access.require(&Certificate::Any, &step.d.place)),
            When::OtherCertificate(names) => Some(access.require(&Certificate::Named(names.clone()), &step.d.place)),
            When::OtherValue(name, value) => Some(access.require_header(name, value, &step.d.place)),
            _ => None,
        };
        if let Some(refused) = refused {
            access::unsayable(import, step.d, refused);
            continue;
        }
        let mut route = Route::new(path.clone(), action, &step.d.place);
        route.access = access.clone();
        route.max_body = body_limit(import, site, &selected);
        let mut changes = Changes::default();
        // An `if` is a location of its own.
        let scope = if step.d.name() == "if" { scope.within(step.d.inner()) } else { scope.clone() };
        route.action = redirects::completed(import, site, &scope, step.d, route.action);
        route.action = pages::with_page(import, site, &scope, route.action);
        headers::response(import, &scope, &mut changes);
        // Here nothing is chosen.
        changes.by_map.iter().for_each(|by_map| import.report.decide(by_map.id, headers::NO_CONSTANT));
        (route.response, route.hsts, route.cors) = (changes.response, changes.hsts, changes.cors);
        let methods = match &step.when {
            When::Method(list, true) => Methods::Of(list.clone()),
            When::Method(list, false) => Methods::Not(list.clone()),
            When::Values(any) | When::Except(any, _) => {
                if let When::Except(_, except) = &step.when {
                    excepted.push((entries.len(), any.len(), except.as_slice()));
                }
                for one in any {
                    let route = Route { headers: vec![one.clone()], ..route.clone() };
                    entries.push(Entry { methods: Methods::Any, route });
                }
                continue;
            }
            When::Always
            | When::Paths(_)
            | When::Expression(_)
            | When::Clients(_)
            | When::NoCertificate
            | When::OtherCertificate(_)
            | When::OtherValue(..) => Methods::Any,
        };
        entries.push(Entry { methods, route });
    }
    let steps = entries.len();
    match decision.end {
        End::Never => {}
        End::Answer => {
            if let Some(&(Some(i), at)) = decision.steps.last() {
                let step = site.step((Some(i), at));
                // The other requests of a location with an undecided `rewrite` are checked.
                if step.d.name() != "rewrite" || step.then != Then::Answer(Action::untranslated()) {
                    access::moot(import, &site.locations[i].scope, "not used: \"return\" answers these requests first");
                }
            }
            // Nobody knows yet where it leads: no other route may take these requests meanwhile.
            if rewritten.is_some() {
                entries.push(answering(import, site, &site.scope, path, Action::untranslated(), &place));
            }
        }
        End::Internal(i) => {
            let l = &site.locations[i];
            if let Some(d) = l.internal() {
                import.same(d, "clients get 404");
            }
            for d in l.d.inner() {
                import.whole(d, crate::Outcome::Same, "clients get 404");
            }
            if !site.is_led_to(l) && !headers::ignores_accel(&site.scope) {
                import.missing(l.d, ACCEL);
            }
            entries.push(answering(import, site, &l.scope, path, Action::status(404), &place));
        }
        End::Server => {
            let root = site.scope.last("root");
            let own = root.filter(|_| site.locations.is_empty()).unwrap_or(site.server);
            let files = root.and_then(|root| inner::pass_rest(import, site, root));
            match (root, &files) {
                (Some(_), Some(_)) => {}
                (Some(_), None) => {
                    import.missing(own, "Sealane serves no files: requests that match no location get 501");
                }
                (None, _) => import.differs_a_little(own, NO_ROOT),
            }
            let checks = access::access(import, &site.scope, Some(site));
            let (action, place) = match (checks.closed, files, root) {
                (Some(place), ..) => (Action::status(403), place),
                (None, Some(action), _) => (action, place),
                (None, None, Some(_)) => (Action::untranslated(), place),
                (None, None, None) => (Action::status(404), place),
            };
            let mut entry = answering(import, site, &site.scope, path, action, &place);
            if entry.route.action.passes() {
                inner::name_client(&mut entry.route);
                entry.route.rate_limits = access::rate_limits(import, &site.scope);
                entry.route.concurrency_limits = access::concurrency_limits(import, &site.scope);
            }
            (entry.route.access, entry.route.forward_auth) = (checks.access, checks.forward_auth);
            (entry.route.basic_auth, entry.route.satisfy_any) = (checks.basic_auth, checks.any);
            entries.push(entry);
        }
        End::Slash(i) => {
            let l = &site.locations[i];
            let action = Action::Redirect { to: format!("{sample}/{{query}}"), status: 301 };
            let action = redirects::completed(import, site, &l.scope, l.d, action);
            entries.push(answering(import, site, &l.scope, path, action, &place));
        }
        End::Location(i) => {
            let fallback = site.fallback(i);
            content(import, site, i, fallback, path, rewritten, &mut entries);
        }
    }
    if let End::Location(i) | End::Internal(i) = decision.end {
        selected.push(i);
    }
    let max_body = if entries.len() > steps { body_limit(import, site, &selected) } else { None };
    // Whom a step has refused does not come so far.
    for entry in &mut entries[steps..] {
        entry.route.max_body.clone_from(&max_body);
        if !access.is_open() && entry.route.satisfy_any.take().is_some() {
            import.decide(site.blamed(decision), access::SATISFY_STEP);
        }
        let joined = entry.route.access.and(&access);
        access::unsayable(import, site.blamed(decision), joined);
    }
    for (at, len, except) in excepted.into_iter().rev() {
        with_exceptions(&mut entries, at, at + len, except)?;
    }
    Some(in_order(entries)?.into_iter().map(Route::settled).collect())
}

/// Puts copies of the entries from `behind` on before the entries at `at`, for the requests that these except. `None`: one of the copies
/// would compare a header twice.
fn with_exceptions(entries: &mut Vec<Entry>, at: usize, behind: usize, except: &[(String, String)]) -> Option<()> {
    let later = entries.get(behind..)?.to_vec();
    let mut copies = Vec::new();
    for (name, rule) in except {
        for entry in &later {
            if entry.route.headers.iter().any(|(there, _)| there == name) {
                return None;
            }
            let mut copy = entry.clone();
            copy.route.headers.push((name.clone(), rule.clone()));
            copies.push(copy);
        }
    }
    entries.splice(at..at, copies);
    Some(())
}

/// `max_body_size` for the requests that get to some locations, one after the other: NGINX compares a request with the limit of each of
/// them. `None`: as in `[limits]`.
fn body_limit<'d>(import: &mut Import<'d>, site: &Site<'d>, selected: &[usize]) -> Option<(String, Place)> {
    let scopes = selected.iter().map(|i| &site.locations[*i].scope);
    let limits: Vec<_> =
        if selected.is_empty() { vec![http::body_limit(&site.scope)] } else { scopes.map(http::body_limit).collect() };
    for d in limits.iter().filter_map(|(_, d)| *d) {
        import.same(d, "max_body_size");
    }
    let (smallest, d) = limits.into_iter().min_by_key(|(n, _)| *n)?;
    (smallest != import.max_body).then(|| Some((http::shown_limit(smallest), d?.place.clone())))?
}

fn answering<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    scope: &Scope<'d>,
    path: &Path,
    action: Action,
    place: &Place,
) -> Entry {
    let action = pages::with_page(import, site, scope, action);
    let mut route = Route::new(path.clone(), action, place);
    let mut changes = Changes::default();
    headers::response(import, scope, &mut changes);
    // Here nothing is chosen.
    changes.by_map.iter().for_each(|by_map| import.report.decide(by_map.id, headers::NO_CONSTANT));
    (route.response, route.hsts, route.cors) = (changes.response, changes.hsts, changes.cors);
    Entry { methods: Methods::Any, route }
}

/// What a location does with requests that none of its steps has answered.
fn content<'d>(
    import: &mut Import<'d>,
    site: &Site<'d>,
    i: usize,
    fallback: Option<usize>,
    path: &Path,
    rewritten: Option<actions::Rewritten<'d>>,
    entries: &mut Vec<Entry>,
) {
    let l = &site.locations[i];
    if l.has_statistics() {
        access::moot(import, &l.scope, "not used: clients get 404 here, not the statistics");
        entries.push(answering(import, site, &l.scope, path, Action::status(404), &l.d.place));
        return;
    }
    let from = fallback.map_or(l, |named| &site.locations[named]);
    let (limits, named) = (http::body_limit(&l.scope), http::body_limit(&from.scope));
    if let (true, Some(d)) = (limits.0 != named.0, named.1) {
        import.differs(
            d,
            format!(
                "for a request with Content-Length, NGINX applies the limit of the location that has try_files; for a \
                 request body without a length, NGINX applies this limit. Sealane applies one limit to all bodies: \
                 max_body_size is {}",
                http::shown_limit(limits.0).trim_matches('"')
            ),
        );
    }
    let mut changes = Changes::default();
    headers::response(import, &from.scope, &mut changes);
    let mut route = Route::new(path.clone(), Action::untranslated(), &l.d.place);
    // Each of the two locations checks clients for itself.
    let mut checks = Checks::default();
    for l in [Some(l), fallback.map(|named| &site.locations[named])].into_iter().flatten() {
        let more = access::access(import, &l.scope, Some(site));
        checks.and(import, more, l.d);
    }
    if let Some(place) = checks.closed {
        let action = pages::with_page(import, site, &l.scope, Action::status(403));
        (route.action, route.origin) = (action, place);
        for d in l.d.inner() {
            import.whole(d, crate::Outcome::Same, "not used: all clients are refused");
        }
    } else {
        (route.access, route.forward_auth) = (checks.access, checks.forward_auth);
        (route.basic_auth, route.satisfy_any) = (checks.basic_auth, checks.any);
        actions::content(
            import,
            site,
            l,
            fallback.map(|named| &site.locations[named]),
            path,
            rewritten,
            &mut changes,
            &mut route,
        );
        match (changes.user.take(), &mut route.basic_auth) {
            (Some((name, _)), Some(auth)) => auth.user_header = Some(name),
            // Nobody else may say it.
            (Some((name, place)), None) => changes.request.remove(&name, &place),
            (None, _) => {}
        }
        route.mirror = mirrors::mirror(import, site, &from.scope, &route);
        route.pages = pages::pages(import, site, &from.scope);
        if route.action.passes() {
            route.compression = compression::compression(import, &from.scope);
        }
        let add = |to: &mut Vec<(String, Place)>, more: Vec<(String, Place)>| {
            let new: Vec<_> = more.into_iter().filter(|(name, _)| !to.iter().any(|(n, _)| n == name)).collect();
            to.extend(new);
        };
        for scope in [Some(&l.scope), fallback.map(|_| &from.scope)].into_iter().flatten() {
            add(&mut route.rate_limits, access::rate_limits(import, scope));
            add(&mut route.concurrency_limits, access::concurrency_limits(import, scope));
        }
    }
    let chosen = std::mem::take(&mut import.chosen);
    for by_map in &changes.by_map {
        match !chosen.is_empty() && changes.response.add(&by_map.name, &by_map.default, &by_map.place) {
            true if by_map.always => import.report.same(by_map.id, "response_headers.add"),
            true => import.report.differs_a_little(by_map.id, headers::ALWAYS),
            false => import.report.decide(by_map.id, headers::NO_CONSTANT),
        }
    }
    (route.request, route.response, route.hsts) = (changes.request, changes.response, changes.hsts);
    route.cors = changes.cors;
    for chosen in chosen {
        let mut other = route.clone();
        for by_map in &changes.by_map {
            other.response.replace_added(&by_map.name, &chosen.value);
        }
        other.headers.push((chosen.name, chosen.rule));
        (other.action, other.origin) = (Action::Upstream(chosen.upstream), chosen.place);
        entries.push(Entry { methods: Methods::Any, route: other });
    }
    entries.push(Entry { methods: Methods::Any, route });
}
