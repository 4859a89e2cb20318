//! What is done with requests: the actions of `[[host]]` and `[[host.route]]`, and what they change on the way.

use super::access::{self, AccessLists};
use super::audit;
use super::authentication::{self, BasicAuth, ForwardAuth};
use super::compression::Compression;
use super::conditions;
use super::cors::Cors;
use super::decode::{self, At, Section};
use super::diagnostics::Sink;
use super::fields::edits;
use super::forwarding::{self, Also};
use super::host::Upstreams;
use super::pages;
use super::paths::{compiled_once, groups_exist, pattern, with_methods};
use super::rate;
use super::redirects::{self, RedirectTables};
use super::response_rewrites;
use super::settings::{actions as a, host as h, messages as m, route as r};
use super::shadowed::{ByPath, Entry};
use super::snippets;
use super::templates;
use super::unlimited;
use super::upstream::{self, Context};
use sealane_proxy::compression::CompressionRule;
use sealane_proxy::cors::CorsRule;
use sealane_proxy::pages::{ErrorPage, Maintenance, Page};
use sealane_proxy::patterns::Pattern;
use sealane_proxy::rules::{self, FieldEdits, Piece, Responses, Rewrite, Route};
use sealane_proxy::snapshot::Action;
use sealane_route::path::Readings;
use sealane_route::{Conditions, MAX_DEPTH, PathRule, RouteTable, RuleError};
use std::ops::Range;

/// The routes of all hosts, in the order in which actions name them.
#[derive(Default)]
pub(super) struct Routes {
    pub all: Vec<Route>,
    /// Rate limits.
    pub limits: rate::Named,
    pub concurrency_limits: rate::Named,
    /// Access rules.
    pub access: AccessLists,
    /// Expressions for paths and values, in the order in which routes name them.
    pub patterns: Vec<Pattern>,
    /// Tables of redirects.
    pub redirects: RedirectTables,
    /// Bodies of error pages.
    pub pages: Vec<Page>,
    /// What the responses of each host have where no route is selected.
    pub host_responses: Vec<Responses>,
    /// Where responses are compressed, for the first time.
    pub compression: Option<Range<usize>>,
}

/// What may be said of a host and of a route alike.
pub(super) struct Extras {
    access: Option<usize>,
    request: Option<FieldEdits>,
    response: Option<FieldEdits>,
    hsts: Option<String>,
    rate_limits: Vec<usize>,
    concurrency_limits: Vec<usize>,
    /// `None` inside: no password is needed.
    basic_auth: Option<Option<rules::BasicAuth>>,
    /// `None` inside: no permission is needed.
    forward_auth: Option<Option<rules::ForwardAuth>>,
    /// Whether one check is enough.
    satisfy_any: Option<At<bool>>,
    rewrite: Option<At<Rewrite>>,
    error_pages: Vec<ErrorPage>,
    /// `None` inside: it is off.
    maintenance: Option<Option<Maintenance>>,
    /// The same.
    cors: Option<Option<CorsRule>>,
    /// What belongs to the way to upstreams.
    also: Also,
    server_timing: Option<bool>,
    upgrade: Option<bool>,
    /// `None` inside: it is off.
    compression: Option<Option<CompressionRule>>,
    /// [`u64::MAX`]: any size.
    max_body: Option<u64>,
    rewrites: response_rewrites::Written,
}

impl Extras {
    /// What responses have by these settings alone.
    pub fn responses(&self) -> Responses {
        Responses {
            edits: self.response.iter().cloned().collect(),
            host_edits: usize::from(self.response.is_some()),
            hsts: self.hsts.clone(),
            error_pages: self.error_pages.clone(),
            cors: self.cors.clone().flatten(),
            server_timing: self.server_timing.unwrap_or_default(),
            compression: self.compression.clone().flatten(),
            rewrites: self.rewrites.rule(),
        }
    }

    fn is_empty(&self) -> bool {
        self.access.is_none()
            && self.request.is_none()
            && self.response.is_none()
            && self.hsts.is_none()
            && self.rate_limits.is_empty()
            && self.concurrency_limits.is_empty()
            && self.basic_auth.is_none()
            && self.forward_auth.is_none()
            && self.rewrite.is_none()
            && self.error_pages.is_empty()
            && !matches!(self.maintenance, Some(Some(_)))
            && !matches!(self.cors, Some(Some(_)))
            && self.also.is_empty()
            && self.server_timing != Some(true)
            && self.upgrade != Some(false)
            && !matches!(self.compression, Some(Some(_)))
            && self.max_body.is_none()
            && self.rewrites.rule().is_none()
    }
}

/// Reads the settings of a host or a route that change messages or limit requests.
/// `label`: what the section's own upstreams are called.
pub(super) fn extras(
    section: &Section,
    label: &str,
    routes: &mut Routes,
    upstreams: &mut Upstreams,
    context: &mut Context,
    rewrites: bool,
) -> Extras {
    Extras {
        also: Also::read(section, label, upstreams, context),
        server_timing: section.optional(&m::server_timing),
        upgrade: section.optional(&m::upgrade),
        compression: section.optional(&m::compression).map(|written| match written {
            Compression::Off => None,
            Compression::On(rule, span) => {
                routes.compression.get_or_insert(span);
                Some(rule)
            }
        }),
        max_body: section.optional(&m::max_body_size).map(unlimited),
        rewrites: response_rewrites::Written::read(section),
        access: access::read_of_requests(section, routes),
        request: section.table(&m::request_headers).and_then(|table| {
            let span = table.span.clone();
            edits(table).map(|edits| templates::of_requests(section.sink, &span, edits))
        }),
        response: section.table(&m::response_headers).and_then(|table| {
            let span = table.span.clone();
            edits(table).inspect(|edits| templates::warn_of_responses(section.sink, &span, edits))
        }),
        hsts: section.optional(&m::hsts),
        rate_limits: section.optional(&m::rate_limit).map_or(Vec::new(), |names| {
            let help = "add [[rate_limit]] with this name and rate = \"100/s\"";
            routes.limits.find(section.sink, names, "rate limit", help)
        }),
        concurrency_limits: section.optional(&m::concurrency_limit).map_or(Vec::new(), |names| {
            let help = "add [[concurrency_limit]] with this name and max_requests = 10";
            routes.concurrency_limits.find(section.sink, names, "concurrency limit", help)
        }),
        basic_auth: section.optional(&m::basic_auth).map(|written| match written {
            BasicAuth::Off => None,
            BasicAuth::Users { users, allowed, challenge, user_header, keep_authorization } => {
                let file = users;
                let what = "passwords are checked with Argon2 and bcrypt, which are outside the FIPS module";
                let help = "let a server check them (forward_auth), or require client certificates";
                audit::outside_module(section.sink, &file.span, what, help);
                let users = routes.access.users_of(section.sink, &file);
                let allowed = allowed
                    .map(|names| authentication::allowed_of(section.sink, names, &file, routes.access.users_at(users)));
                Some(rules::BasicAuth { users, allowed, challenge, user_header, keep_authorization })
            }
        }),
        forward_auth: section.optional(&m::forward_auth).and_then(|written| match written {
            ForwardAuth::Off => Some(None),
            ForwardAuth::Ask { upstream, target, set, copy, timeout } => {
                let upstream = super::host::reference(section, upstream, upstreams)?;
                Some(Some(rules::ForwardAuth { upstream, target, set, copy, timeout }))
            }
        }),
        satisfy_any: section.optional_at(&m::satisfy),
        rewrite: if rewrites { rewrite_of(section) } else { None },
        error_pages: section
            .tables(&m::error_page)
            .into_iter()
            .filter_map(|section| pages::error_page(section, routes))
            .collect(),
        maintenance: section.table(&m::maintenance).map(|section| pages::maintenance(section, routes)),
        cors: section.optional(&m::cors).map(|written| match written {
            Cors::Off => None,
            Cors::On(rule) => Some(rule),
        }),
    }
}

fn rewrite_of(section: &Section) -> Option<At<Rewrite>> {
    let prefix = section.optional_at(&r::rewrite_prefix);
    let whole = section.optional_at(&r::rewrite);
    if let (Some(_), Some(whole)) = (&prefix, &whole) {
        let help = "keep one of them".to_owned();
        section.sink.error(&whole.span, "\"rewrite_prefix\" and \"rewrite\" exclude each other", Some(help));
    }
    let prefix = prefix.map(|At { value, span }| At { value: Rewrite::Prefix(value), span });
    prefix.or(whole.map(|At { value, span }| At { value: Rewrite::Path(value), span }))
}

/// Reads what a host or route does: `to`, `upstream`, `split`, `respond`, `redirect`, `redirects` (of a route) or `passthrough` (of a
/// host). `None` also where it is wrong, which is then reported; that nothing is said is for the caller to judge (`given`).
/// `pattern`: the expression that the path must match.
pub(super) fn action(
    section: &Section,
    label: &str,
    passthrough: bool,
    pattern: Option<&Pattern>,
    upstreams: &mut Upstreams,
    routes: &mut Routes,
    context: &mut Context,
) -> (bool, Option<Action>) {
    let sink = section.sink;
    let keys: &[&str] = match passthrough {
        true => &["to", "upstream", "split", "respond", "redirect", "passthrough"],
        false => &["to", "upstream", "split", "respond", "redirect", "redirects"],
    };
    let given: Vec<&str> = keys.iter().copied().filter(|k| section.key_span(k).is_some()).collect();
    if let [_, second, ..] = given[..] {
        let message = format!("{} exclude each other", decode::listed(given.iter().copied()));
        let span = section.key_span(second).unwrap_or_else(|| section.span.clone());
        sink.error(&span, message, Some("keep one of them".to_owned()));
    }
    let to = section.optional_at(&a::to);
    let upstream = section.optional_at(&a::upstream);
    let split = section.table(&a::split);
    let respond = section.table(&a::respond);
    let redirect = section.optional_at(&a::redirect);
    let table = if passthrough { None } else { section.table(&r::redirects) };
    // With routes, the second request may have another one.
    let ends_nowhere = passthrough && section.key_span(h::route.key).is_none();
    let passthrough = if passthrough { section.optional_at(&h::passthrough) } else { None };

    let mut action = None;
    if let Some(list) = &to {
        let name = upstreams.unused_name(label);
        action = upstream::anonymous(sink, &name, list, context)
            .filter(|(group, _)| {
                if group.udp.is_some() {
                    let help = "write an [[upstream]], and use \"passthrough\"".to_owned();
                    sink.error(&list.span, "servers with udp:// take no requests", Some(help));
                }
                group.udp.is_none()
            })
            .map(|group| Action::Proxy { upstream: upstreams.push(group.0, group.1) });
    }
    if let Some(name) = upstream {
        action = super::host::reference(section, name, upstreams).map(|upstream| Action::Proxy { upstream });
    }
    if let Some(split) = split {
        action = forwarding::split(split, label, upstreams, context);
    }
    if let Some(respond) = respond {
        action = super::host::respond(respond);
    }
    if let Some(At { span, .. }) = redirect.as_ref().filter(|r| ends_nowhere && leads_back(&r.value.to)) {
        let help =
            format!("write another path or host, as in {} = \"https://www.example.com{{uri}}\"", a::redirect.key);
        sink.error(span, "this redirect never ends: its target is the URL of the request", Some(help));
    }
    if let Some(redirect) = redirect
        && groups_exist(section, &redirect.span, &redirect.value.to, pattern)
    {
        action = Some(Action::Redirect(redirect.value));
    }
    if let Some(table) = table {
        action = redirects::read(table, &mut routes.redirects);
    }
    if let Some(name) = passthrough {
        let span = name.span.clone();
        action = super::host::named(section, name, upstreams).and_then(|upstream| {
            if upstreams.all[upstream].tls.is_some() {
                let help = "write the servers without https://: bytes are passed on unchanged".to_owned();
                sink.error(&span, "\"passthrough\" excludes servers with https://", Some(help));
                return None;
            }
            Some(Action::Passthrough { upstream, access: None })
        });
    }
    (!given.is_empty(), action)
}

/// Whether the target of a host's redirect is what the client has asked for: every request for it would be redirected again.
fn leads_back(to: &[Piece]) -> bool {
    match to {
        [Piece::Uri | Piece::Path | Piece::Rest] => true,
        [Piece::Path, Piece::Text(mark), Piece::Query] => mark == "?",
        _ => false,
    }
}

/// Reads every `[[host.route]]` of a host and puts the host's own action behind them.
pub(super) fn table(
    host: &Section,
    own: Option<Action>,
    extras: Extras,
    label: &str,
    routes: &mut Routes,
    upstreams: &mut Upstreams,
    context: &mut Context,
) -> Option<Action> {
    let sections = host.tables(&h::route);
    // A `split` needs a route: its requests remember by what they came.
    if sections.is_empty() && extras.is_empty() && !matches!(own, Some(Action::Forward(_))) {
        if let Some(At { span, .. }) = extras.satisfy_any.filter(|any| any.value) {
            warn_no_check(host.sink, &span);
        }
        return own;
    }
    if let (Some(Action::Passthrough { .. }), Some(span)) = (
        &own,
        [
            "route",
            "request_headers",
            "response_headers",
            "hsts",
            "rate_limit",
            "concurrency_limit",
            "basic_auth",
            "forward_auth",
            "satisfy",
            "mirror",
            "total_timeout",
            "min_body_rate",
            "server_timing",
            "upgrade",
            "rewrite_location",
            "rewrite_cookie_path",
            "rewrite_cookie_domain",
            "compression",
            "max_body_size",
            "allow_certificate",
            "deny_certificate",
            "allow_header",
            "deny_header",
            "cors",
            "maintenance",
            "error_page",
        ]
        .iter()
        .find_map(|k| host.key_span(k)),
    ) {
        let help = "remove this setting: the gateway does not read relayed connections".to_owned();
        host.sink.error(&span, "this setting is for requests; it cannot be used with \"passthrough\"", Some(help));
        return None;
    }
    if let Some(Action::Passthrough { upstream, .. }) = own {
        return Some(Action::Passthrough { upstream, access: extras.access });
    }
    let mut table = RouteTable::default();
    let mut by_path = ByPath::default();
    let first = routes.all.len();
    let mut trusted = names_of_users(
        extras.basic_auth.as_ref().and_then(Option::as_ref),
        extras.forward_auth.as_ref().and_then(Option::as_ref),
    );
    let has_routes = !sections.is_empty();
    let satisfy_of_host = extras.satisfy_any.clone().filter(|any| any.value);
    for section in sections {
        route(section, &extras, label, routes, upstreams, context, &mut table, &mut by_path);
    }
    by_path.warn(host.sink, &routes.redirects);
    let key =
        ["to", "upstream", "split", "respond", "redirect"].into_iter().find_map(|key| Some((key, host.key_span(key)?)));
    if let (Some(first), Some((key, span))) = (by_path.for_the_rest(), key) {
        let message = format!(
            "\"{key}\" gets no requests: the route at {} matches all requests that no other route matches",
            host.sink.place(first)
        );
        let help = format!(
            "remove \"{key}\", which is only for requests that no route matches, or give that route a condition"
        );
        host.sink.warn(&span, message, Some(help));
    }
    // Without an action of the host's own, maintenance is also for the requests that no route is for.
    let for_all = matches!(extras.maintenance, Some(Some(_)));
    let not_found =
        || Action::Respond { status: 404, content_type: "text/plain".to_owned(), body: b"404 Not Found\n".to_vec() };
    if let Some(action) = own.or_else(|| for_all.then(not_found)) {
        if !has_routes {
            // With routes, it may be there for them.
            extras.also.need_upstream(host.sink, &action);
        }
        let responses = extras.responses();
        let action = extras.also.with(action);
        let (basic_auth, forward_auth) = (extras.basic_auth.flatten(), extras.forward_auth.flatten());
        let route = Route {
            label: String::new(),
            action,
            pattern: None,
            access: extras.access.into_iter().collect(),
            satisfy_any: any_suffices(host.sink, extras.satisfy_any.as_ref(), &basic_auth, &forward_auth),
            basic_auth,
            forward_auth,
            request: extras.request.into_iter().collect(),
            responses,
            rewrite: None,
            upgrade: extras.upgrade.unwrap_or(true),
            rate_limits: extras.rate_limits,
            concurrency_limits: extras.concurrency_limits,
            maintenance: extras.maintenance.flatten(),
            max_body: extras.max_body,
        };
        routes.all.push(route);
        let everything =
            Conditions { path: PathRule::Prefix("/".into()), pattern: None, methods: Vec::new(), fields: Vec::new() };
        // `/` is a path like any.
        let _ = table.insert(everything, routes.all.len() - 1);
    }
    let Some(routes) = routes.all.get_mut(first..) else { return Some(Action::Routes(table)) };
    if let Some(At { span, .. }) = satisfy_of_host.filter(|_| routes.iter().all(lets_all_in)) {
        warn_no_check(host.sink, &span);
    }
    trusted.extend(routes.iter().flat_map(trusted_names));
    trusted.sort_unstable();
    trusted.dedup();
    for route in routes {
        // What one route's upstream is told of its client is nobody's to say on another route of the host.
        let own = trusted_names(route);
        let remove: Vec<_> = trusted.iter().filter(|name| !own.contains(name)).cloned().collect();
        if !remove.is_empty() {
            route.request.insert(0, FieldEdits { remove, ..FieldEdits::default() });
        }
    }
    Some(Action::Routes(table))
}

/// The headers in which the upstream of a route is told who the client is.
pub(super) fn trusted_names(route: &Route) -> Vec<String> {
    names_of_users(route.basic_auth.as_ref(), route.forward_auth.as_ref())
}

fn names_of_users(basic: Option<&rules::BasicAuth>, forward: Option<&rules::ForwardAuth>) -> Vec<String> {
    let user = basic.and_then(|auth| auth.user_header.clone());
    user.into_iter()
        .chain(forward.into_iter().flat_map(|auth| auth.copy.iter().map(|(name, _)| name.clone())))
        .collect()
}

#[expect(clippy::too_many_arguments, reason = "what is read into, each by its name")]
fn route(
    section: Section,
    host: &Extras,
    label: &str,
    routes: &mut Routes,
    upstreams: &mut Upstreams,
    context: &mut Context,
    table: &mut RouteTable<usize>,
    by_path: &mut ByPath,
) {
    let sink = section.sink;
    snippets::note(&section);
    let path = section.optional_at(&r::path);
    let exact = section.optional_at(&r::exact);
    let regex = section.optional_at(&r::path_regex);
    let methods = section.optional(&r::methods);
    let fields = conditions::of_route(&section, routes);
    if let (Some(_), Some(exact)) = (&path, &exact) {
        let help = "keep one of them: \"path\" matches everything below a path, \"exact\" one path".to_owned();
        sink.error(&exact.span, "\"path\" and \"exact\" exclude each other", Some(help));
    }
    if let (Some(regex), Some(_)) = (&regex, &exact) {
        let help = "remove it: \"exact\" is for one path".to_owned();
        sink.error(&regex.span, "\"path_regex\" and \"exact\" exclude each other", Some(help));
    }
    let listed = section.key_span("redirects");
    if let (Some(_), Some(span)) =
        (&listed, ["path", "exact", "path_regex"].iter().find_map(|key| section.key_span(key)))
    {
        let help = "remove it: the paths of the table are the paths of the route".to_owned();
        sink.error(&span, "\"redirects\" excludes other conditions on the path", Some(help));
    }
    let said = ["path", "exact", "path_regex", "methods", "headers", "cookies", "redirects"]
        .iter()
        .any(|k| section.key_span(k).is_some());
    if !said {
        let help = "add path = \"/api/\", exact = \"/health\", methods = [\"POST\"] or headers = { X-Beta = true }; \
                    settings for every request belong in [[host]] itself";
        section.missing("[[host.route]] does not say which requests it is for".to_owned(), help.to_owned());
    }
    let name = section.optional(&r::name);
    let by_conditions = || match listed {
        Some(_) => with_methods("redirects".to_owned(), methods.as_deref()),
        None => pattern(path.as_ref(), exact.as_ref(), regex.as_ref(), methods.as_deref()),
    };
    let shown = name.unwrap_or_else(by_conditions);
    let label = path.as_ref().or(exact.as_ref()).map_or_else(|| label.to_owned(), |p| format!("{label} {}", p.value));
    let own = extras(&section, &label, routes, upstreams, context, true);
    let compiled = regex.as_ref().map(|regex| &regex.value.pattern);
    let (given, action) = action(&section, &label, false, compiled, upstreams, routes, context);
    if !given {
        section.missing(
            "[[host.route]] does not say what to do with requests".to_owned(),
            "add upstream = \"name\", to = [\"http://127.0.0.1:3000\"], respond = { status = 404 } or redirect = \"/\""
                .to_owned(),
        );
    }
    if let Some(At { value: Rewrite::Path(pieces), span }) = &own.rewrite {
        groups_exist(&section, span, pieces, compiled);
    }
    if let (Some(At { value: Rewrite::Prefix(_), span }), Some(exact)) = (&own.rewrite, &exact) {
        let help = format!("write path = \"{}\"", exact.value);
        sink.error(span, "\"rewrite_prefix\" needs \"path\"", Some(help));
    }
    if let (Some(rewrite), Some(Action::Respond { .. } | Action::Redirect(_) | Action::RedirectTable { .. })) =
        (&own.rewrite, &action)
    {
        let what = match rewrite.value {
            Rewrite::Prefix(_) => "rewrite_prefix",
            Rewrite::Path(_) => "rewrite",
        };
        let help = "remove it: it changes the path that an upstream gets (in a redirect, use {rest})".to_owned();
        sink.error(&rewrite.span, format!("\"{what}\" without an upstream"), Some(help));
    }
    // Where one of these was refused, nobody knows which requests were meant.
    let unread = [
        ("path", path.is_none()),
        ("exact", exact.is_none()),
        ("path_regex", regex.is_none()),
        ("methods", methods.is_none()),
    ];
    let is_refused = unread.iter().any(|(key, is_unread)| *is_unread && section.key_span(key).is_some());
    let span = section.span.clone();
    section.finish();
    let rule = match (&path, &exact, &action) {
        (_, _, Some(Action::RedirectTable { table, .. })) => PathRule::Listed(*table),
        (Some(p), _, _) => PathRule::Prefix(p.value.clone()),
        (None, Some(p), _) => PathRule::Exact(p.value.clone()),
        (None, None, _) => PathRule::Prefix("/".to_owned()),
    };
    let conditions = Conditions { path: rule, pattern: None, methods: methods.unwrap_or_default(), fields };
    // A table that is wrong has no paths.
    if !is_refused && (listed.is_none() || action.is_some()) {
        let text = regex.as_ref().map(|regex| regex.value.text.clone());
        by_path.push(sink, Entry { conditions: conditions.clone(), regex: text, span });
    }
    let Some(action) = action else { return };
    own.also.need_upstream(sink, &action);
    let action = own.also.or(&host.also).with(action);
    let pattern = regex.map(|regex| compiled_once(sink, regex, routes));
    let conditions = Conditions { pattern, ..conditions };
    let join =
        |a: &Option<FieldEdits>, b: Option<FieldEdits>| -> Vec<FieldEdits> { a.iter().cloned().chain(b).collect() };
    let basic_auth = own.basic_auth.unwrap_or_else(|| host.basic_auth.clone().flatten());
    let forward_auth = own.forward_auth.unwrap_or_else(|| host.forward_auth.clone().flatten());
    let satisfy_any = own.satisfy_any.as_ref().or(host.satisfy_any.as_ref());
    let own_satisfy = own.satisfy_any.clone().filter(|any| any.value);
    routes.all.push(Route {
        label: shown,
        action,
        pattern,
        access: host.access.into_iter().chain(own.access).collect(),
        satisfy_any: any_suffices(sink, satisfy_any, &basic_auth, &forward_auth),
        basic_auth,
        forward_auth,
        request: join(&host.request, own.request),
        responses: Responses {
            edits: join(&host.response, own.response),
            host_edits: usize::from(host.response.is_some()),
            hsts: own.hsts.or_else(|| host.hsts.clone()),
            error_pages: own.error_pages.into_iter().chain(host.error_pages.iter().cloned()).collect(),
            cors: own.cors.unwrap_or_else(|| host.cors.clone().flatten()),
            server_timing: own.server_timing.or(host.server_timing).unwrap_or_default(),
            compression: own.compression.unwrap_or_else(|| host.compression.clone().flatten()),
            rewrites: own.rewrites.or(&host.rewrites).rule(),
        },
        rewrite: own.rewrite.map(|r| r.value),
        upgrade: own.upgrade.or(host.upgrade).unwrap_or(true),
        rate_limits: rate::joined(&host.rate_limits, own.rate_limits),
        concurrency_limits: rate::joined(&host.concurrency_limits, own.concurrency_limits),
        maintenance: own.maintenance.unwrap_or_else(|| host.maintenance.clone().flatten()),
        max_body: own.max_body.or(host.max_body),
    });
    if let Some(At { span, .. }) = own_satisfy.filter(|_| routes.all.last().is_some_and(lets_all_in)) {
        warn_no_check(sink, &span);
    }
    let at = path.as_ref().or(exact.as_ref());
    if let (Err(RuleError::Path), Some(at)) = (table.insert(conditions, routes.all.len() - 1), at) {
        let help = format!(
            "write the path without \"//\", \".\", \"..\" and characters encoded with %, and with at most {MAX_DEPTH} segments"
        );
        sink.error(&at.span, format!("no request has the path \"{}\"", at.value), Some(help));
    } else if let Some(at) = at.filter(|at| Readings::of(at.value.as_bytes()).is_ok_and(Readings::differ)) {
        let message = format!(
            "requests for \"{}\" get 400: the gateway refuses a path that a server can read as another path, for which another \
             rule applies",
            at.value
        );
        let help =
            "servers read these characters in different ways: \";\", \"\\\" and \"%2F\"; write the path without them"
                .to_owned();
        sink.warn(&at.span, message, Some(help));
    }
}

/// Whether a route has neither rules nor a check.
fn lets_all_in(route: &Route) -> bool {
    route.access.is_empty() && route.basic_auth.is_none() && route.forward_auth.is_none()
}

/// Warns of `satisfy = "any"` where there is nothing to satisfy.
fn warn_no_check(sink: &Sink, span: &Range<usize>) {
    let help = "add \"allow\" and \"basic_auth\" or \"forward_auth\", or remove \"satisfy\"".to_owned();
    let message = "satisfy = \"any\" has no effect: there are no rules and no check, so every client is let in";
    sink.warn(span, message, Some(help));
}

/// Whether one check of a route is enough (`satisfy = "any"`).
fn any_suffices(
    sink: &Sink,
    satisfy_any: Option<&At<bool>>,
    basic: &Option<rules::BasicAuth>,
    forward: &Option<rules::ForwardAuth>,
) -> bool {
    let Some(At { value: true, span }) = satisfy_any else { return false };
    if basic.is_some() && forward.is_some() {
        let help = "keep basic_auth or forward_auth: write false for the other in this host or route".to_owned();
        let message = "with satisfy = \"any\", a route can have only one of \"basic_auth\" and \"forward_auth\"";
        sink.error(span, message, Some(help));
    }
    true
}
