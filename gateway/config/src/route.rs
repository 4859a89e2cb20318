//! What is done with requests: the actions of `[[host]]` and `[[host.route]]`, and what they change on the way.

use super::access::{self, AccessLists};
use super::cors::Cors;
use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::forwarding::{self, Also};
use super::host::Upstreams;
use super::pages;
use super::redirects::{self, RedirectTables};
use super::settings::{
    actions as a, basic_auth as b, edits as e, forward_auth as f, host as h, messages as m, redirect as d, route as r,
};
use super::upstream::{self, Context};
use sealane_http::{Fields, Known};
use sealane_proxy::cors::CorsRule;
use sealane_proxy::pages::{ErrorPage, Maintenance, Page};
use sealane_proxy::patterns::{Pattern, PatternError};
use sealane_proxy::rules::{self, FieldEdits, Piece, Redirect, Rewrite, Route};
use sealane_proxy::snapshot::Action;
use sealane_route::path::Readings;
use sealane_route::{Conditions, FieldRule, MAX_DEPTH, PathRule, RouteTable, RuleError};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;
use toml::de::DeValue;

/// The routes of all hosts, in the order in which actions name them.
#[derive(Default)]
pub(super) struct Routes {
    pub all: Vec<Route>,
    /// Rate limits by name, with their index unless they are bad.
    pub limits: HashMap<String, Option<usize>>,
    /// Names that some route uses.
    pub used: std::collections::HashSet<String>,
    /// Access rules.
    pub access: AccessLists,
    /// Expressions for paths, in the order in which routes name them.
    pub patterns: Vec<Pattern>,
    /// Tables of redirects.
    pub redirects: RedirectTables,
    /// Bodies of error pages.
    pub pages: Vec<Page>,
    /// The error pages of each host.
    pub host_pages: Vec<Vec<ErrorPage>>,
}

/// The most expressions for paths: each lane keeps a cache for each.
const MAX_PATTERNS: usize = 256;

/// What may be said of a host and of a route alike.
pub(super) struct Extras {
    access: Option<usize>,
    request: Option<FieldEdits>,
    response: Option<FieldEdits>,
    hsts: Option<String>,
    rate_limits: Vec<usize>,
    /// `None` inside: no password is needed.
    basic_auth: Option<Option<rules::BasicAuth>>,
    /// `None` inside: no permission is needed.
    forward_auth: Option<Option<rules::ForwardAuth>>,
    rewrite: Option<At<Rewrite>>,
    error_pages: Vec<ErrorPage>,
    /// `None` inside: it is off.
    maintenance: Option<Option<Maintenance>>,
    /// The same.
    cors: Option<Option<CorsRule>>,
    /// What belongs to the way to upstreams.
    also: Also,
    server_timing: Option<bool>,
}

impl Extras {
    pub fn error_pages(&self) -> &[ErrorPage] {
        &self.error_pages
    }

    fn is_empty(&self) -> bool {
        self.access.is_none()
            && self.request.is_none()
            && self.response.is_none()
            && self.hsts.is_none()
            && self.rate_limits.is_empty()
            && self.basic_auth.is_none()
            && self.forward_auth.is_none()
            && self.rewrite.is_none()
            && self.error_pages.is_empty()
            && !matches!(self.maintenance, Some(Some(_)))
            && !matches!(self.cors, Some(Some(_)))
            && self.also.is_empty()
            && self.server_timing != Some(true)
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
        access: access::read_of_requests(section, &mut routes.access),
        request: section.table(&m::request_headers).and_then(edits),
        response: section.table(&m::response_headers).and_then(edits),
        hsts: section.optional(&m::hsts),
        rate_limits: section.optional(&m::rate_limit).map_or(Vec::new(), |names| {
            names.into_iter().filter_map(|name| rate_limit(section.sink, name, routes)).collect()
        }),
        basic_auth: section.optional(&m::basic_auth).map(|written| match written {
            BasicAuth::Off => None,
            BasicAuth::Users { users, challenge, user_header, keep_authorization } => {
                let users = routes.access.users_of(section.sink, &users);
                Some(rules::BasicAuth { users, challenge, user_header, keep_authorization })
            }
        }),
        forward_auth: section.optional(&m::forward_auth).and_then(|written| match written {
            ForwardAuth::Off => Some(None),
            ForwardAuth::Ask { upstream, target, copy, timeout } => {
                let upstream = super::host::reference(section, upstream, upstreams)?;
                Some(Some(rules::ForwardAuth { upstream, target, copy, timeout }))
            }
        }),
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
    let passthrough = if passthrough { section.optional_at(&h::passthrough) } else { None };

    let mut action = None;
    if let Some(list) = &to {
        let name = upstreams.unused_name(label);
        action = upstream::anonymous(sink, &name, list, context)
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
        action = super::host::reference(section, name, upstreams).and_then(|upstream| {
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
            "basic_auth",
            "forward_auth",
            "mirror",
            "total_timeout",
            "min_body_rate",
            "server_timing",
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
    let mut seen: Vec<(String, Range<usize>)> = Vec::new();
    let (first, mut trusted) =
        (routes.all.len(), trusted_names(extras.basic_auth.as_ref(), extras.forward_auth.as_ref()));
    let has_routes = !sections.is_empty();
    for section in sections {
        route(section, &extras, label, routes, upstreams, context, &mut table, &mut seen);
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
        let action = extras.also.with(host.sink, action);
        let route = Route {
            label: String::new(),
            action,
            pattern: None,
            access: extras.access.into_iter().collect(),
            basic_auth: extras.basic_auth.flatten(),
            forward_auth: extras.forward_auth.flatten(),
            request: extras.request.into_iter().collect(),
            response: extras.response.into_iter().collect(),
            hsts: extras.hsts,
            rewrite: None,
            rate_limits: extras.rate_limits,
            error_pages: extras.error_pages,
            maintenance: extras.maintenance.flatten(),
            cors: extras.cors.flatten(),
            server_timing: extras.server_timing.unwrap_or_default(),
        };
        routes.all.push(route);
        let everything =
            Conditions { path: PathRule::Prefix("/".into()), pattern: None, methods: Vec::new(), fields: Vec::new() };
        // `/` is a path like any.
        let _ = table.insert(everything, routes.all.len() - 1);
    }
    let Some(routes) = routes.all.get_mut(first..) else { return Some(Action::Routes(table)) };
    let own = |route: &Route| trusted_names(Some(&route.basic_auth), Some(&route.forward_auth));
    trusted.extend(routes.iter().flat_map(own));
    trusted.sort_unstable();
    trusted.dedup();
    for route in routes {
        // What one route's upstream is told of its client is nobody's to say on another route of the host.
        let own = own(route);
        let remove: Vec<_> = trusted.iter().filter(|name| !own.contains(name)).cloned().collect();
        if !remove.is_empty() {
            route.request.insert(0, FieldEdits { remove, ..FieldEdits::default() });
        }
    }
    Some(Action::Routes(table))
}

/// The headers in which upstreams are told who the client is.
fn trusted_names(
    basic: Option<&Option<rules::BasicAuth>>,
    forward: Option<&Option<rules::ForwardAuth>>,
) -> Vec<String> {
    let user = basic.into_iter().flatten().filter_map(|auth| auth.user_header.clone());
    user.chain(forward.into_iter().flatten().flat_map(|auth| auth.copy.iter().cloned())).collect()
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
    seen: &mut Vec<(String, Range<usize>)>,
) {
    let sink = section.sink;
    let path = section.optional_at(&r::path);
    let exact = section.optional_at(&r::exact);
    let regex = section.optional_at(&r::path_regex);
    let methods = section.optional(&r::methods);
    let fields = section.optional(&r::headers);
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
    let said = ["path", "exact", "path_regex", "methods", "headers", "redirects"]
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
    let span = section.span.clone();
    section.finish();
    let rule = match (&path, &exact, &action) {
        (_, _, Some(Action::RedirectTable { table, .. })) => PathRule::Listed(*table),
        (Some(p), _, _) => PathRule::Prefix(p.value.clone()),
        (None, Some(p), _) => PathRule::Exact(p.value.clone()),
        (None, None, _) => PathRule::Prefix("/".to_owned()),
    };
    let conditions = Conditions {
        path: rule,
        pattern: None,
        methods: methods.unwrap_or_default(),
        fields: fields.unwrap_or_default(),
    };
    // The same conditions twice: the second would never be used.
    let mut plain = conditions.clone();
    if let PathRule::Prefix(p) = &mut plain.path {
        p.truncate(p.trim_end_matches('/').len());
    }
    plain.methods.sort_unstable();
    let same = format!("{plain:?} {:?}", regex.as_ref().map(|regex| &regex.value.text));
    if let Some((_, first)) = seen.iter().find(|(s, _)| *s == same) {
        let message = format!("a second route for the same requests; the first is at {}", sink.place(first));
        sink.error(&span, message, Some("remove one of the two, or change its conditions".to_owned()));
    }
    seen.push((same, span));
    let Some(action) = action else { return };
    own.also.need_upstream(sink, &action);
    let action = own.also.or(&host.also).with(sink, action);
    let pattern = regex.map(|regex| compiled_once(sink, regex, routes));
    let conditions = Conditions { pattern, ..conditions };
    let join =
        |a: &Option<FieldEdits>, b: Option<FieldEdits>| -> Vec<FieldEdits> { a.iter().cloned().chain(b).collect() };
    let mut rate_limits = host.rate_limits.clone();
    rate_limits.extend(own.rate_limits.iter().filter(|l| !host.rate_limits.contains(l)));
    routes.all.push(Route {
        label: shown,
        action,
        pattern,
        access: host.access.into_iter().chain(own.access).collect(),
        basic_auth: own.basic_auth.unwrap_or_else(|| host.basic_auth.clone().flatten()),
        forward_auth: own.forward_auth.unwrap_or_else(|| host.forward_auth.clone().flatten()),
        request: join(&host.request, own.request),
        response: join(&host.response, own.response),
        hsts: own.hsts.or_else(|| host.hsts.clone()),
        rewrite: own.rewrite.map(|r| r.value),
        rate_limits,
        error_pages: own.error_pages.into_iter().chain(host.error_pages.iter().cloned()).collect(),
        maintenance: own.maintenance.unwrap_or_else(|| host.maintenance.clone().flatten()),
        cors: own.cors.unwrap_or_else(|| host.cors.clone().flatten()),
        server_timing: own.server_timing.or(host.server_timing).unwrap_or_default(),
    });
    let at = path.as_ref().or(exact.as_ref());
    if let (Err(RuleError::Path), Some(at)) = (table.insert(conditions, routes.all.len() - 1), at) {
        let help = format!(
            "write the path without \"//\", \".\", \"..\" and characters encoded with %, and with at most {MAX_DEPTH} segments"
        );
        sink.error(&at.span, format!("no request has the path \"{}\"", at.value), Some(help));
    } else if let Some(at) = at.filter(|at| Readings::of(at.value.as_bytes()).is_ok_and(Readings::differ)) {
        let message = format!(
            "requests for \"{}\" get 400 if a server could read this path differently and another route matches that reading",
            at.value
        );
        let help =
            "servers read these characters in different ways: \";\", \"\\\" and \"%2F\"; write the path without them"
                .to_owned();
        sink.warn(&at.span, message, Some(help));
    }
}

/// What `basic_auth` says.
pub(super) enum BasicAuth {
    /// `false`: no password is needed.
    Off,
    /// One of these users' is.
    Users { users: At<PathBuf>, challenge: String, user_header: Option<String>, keep_authorization: bool },
}

pub(super) fn basic_auth(sink: &Sink, key: &str, node: &Node) -> Option<BasicAuth> {
    let table = match node.get_ref() {
        DeValue::Boolean(false) => return Some(BasicAuth::Off),
        DeValue::Table(table) => table,
        _ => {
            let help = format!("write {key} = {{ users = \"users.txt\" }}, or {key} = false in a route");
            sink.error(&node.span(), format!("\"{key}\" is neither a table nor false"), Some(help));
            return None;
        }
    };
    let section = Section::new(sink, &b::TABLE, table, node.span());
    let users = section.required(&b::users);
    let realm = section.or(&b::realm);
    let user_header = section.optional(&b::user_header);
    let keep_authorization = section.or(&b::keep_authorization);
    section.finish();
    // RFC 7617 §2.1: what is typed in is UTF-8.
    let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
    Some(BasicAuth::Users { users: users?, challenge, user_header, keep_authorization })
}

/// What stands between quotes in `WWW-Authenticate`.
pub(super) fn realm(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if s.bytes().any(|b| !(b' '..=b'~').contains(&b) || matches!(b, b'"' | b'\\')) {
        let help = Some("write visible ASCII without quotes and backslashes".to_owned());
        sink.error(&node.span(), format!("\"{key}\" has characters that cannot be shown"), help);
        return None;
    }
    Some(s)
}

/// The name of a header that tells the upstream something.
pub(super) fn user_header(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let name = decode::text(sink, key, node)?;
    let why = reserved(&name).or((!is_token(&name)).then_some("write a header's name"));
    if let Some(why) = why {
        sink.error(&node.span(), format!("\"{name}\" cannot be set"), Some(why.to_owned()));
        return None;
    }
    Some(name)
}

/// What `forward_auth` says.
pub(super) enum ForwardAuth {
    /// `false`: no permission is needed.
    Off,
    /// This upstream is asked.
    Ask { upstream: At<String>, target: String, copy: Vec<String>, timeout: Duration },
}

pub(super) fn forward_auth(sink: &Sink, key: &str, node: &Node) -> Option<ForwardAuth> {
    let table = match node.get_ref() {
        DeValue::Boolean(false) => return Some(ForwardAuth::Off),
        DeValue::Table(table) => table,
        _ => {
            let help =
                format!("write {key} = {{ upstream = \"auth\", path = \"/verify\" }}, or {key} = false in a route");
            sink.error(&node.span(), format!("\"{key}\" is neither a table nor false"), Some(help));
            return None;
        }
    };
    let section = Section::new(sink, &f::TABLE, table, node.span());
    let upstream = section.required(&f::upstream);
    let target = section.required(&f::path);
    let copy = section.optional(&f::copy_headers).unwrap_or_default();
    let timeout = section.or(&f::timeout);
    section.finish();
    Some(ForwardAuth::Ask { upstream: upstream?, target: target?.value, copy, timeout })
}

/// What a route without a name is called: `GET,POST /api/`, `= /health`, `~ ^/users/`.
fn pattern(
    path: Option<&At<String>>,
    exact: Option<&At<String>>,
    regex: Option<&At<Written>>,
    methods: Option<&[String]>,
) -> String {
    let path = match (path, exact) {
        (_, Some(exact)) => format!("= {}", exact.value),
        (Some(path), None) => path.value.clone(),
        (None, None) if regex.is_some() => String::new(),
        (None, None) => "/".to_owned(),
    };
    let path = match regex {
        Some(regex) => format!("{path} ~ {}", regex.value.text).trim_start().to_owned(),
        None => path,
    };
    with_methods(path, methods)
}

fn with_methods(path: String, methods: Option<&[String]>) -> String {
    match methods {
        Some(methods) => format!("{} {path}", methods.join(",")),
        None => path,
    }
}

/// An expression for paths, as it is written and compiled.
pub(super) struct Written {
    text: String,
    pattern: Pattern,
}

pub(super) fn path_regex(sink: &Sink, key: &str, node: &Node) -> Option<Written> {
    let text = decode::text(sink, key, node)?;
    match Pattern::new(&text) {
        Ok(pattern) => Some(Written { text, pattern }),
        Err(why) => {
            let help = match &why {
                PatternError::Long => "write several routes".to_owned(),
                PatternError::Large => "write smaller numbers in {…}, or several routes".to_owned(),
                PatternError::Syntax(_) => {
                    "write a regular expression as in \"^/users/([0-9]+)$\"; in TOML, '…' needs no \\\\".to_owned()
                }
            };
            sink.error(&node.span(), format!("\"{key}\" is refused: {why}"), Some(help));
            None
        }
    }
}

/// The index of a compiled expression among those of the configuration.
fn compiled_once(sink: &Sink, regex: At<Written>, routes: &mut Routes) -> usize {
    if let Some(there) = routes.patterns.iter().position(|p| p.text() == regex.value.text) {
        return there;
    }
    if routes.patterns.len() == MAX_PATTERNS {
        let help = "use \"path\" where a prefix is enough".to_owned();
        sink.error(&regex.span, format!("there are more than {MAX_PATTERNS} \"path_regex\""), Some(help));
        return 0;
    }
    routes.patterns.push(regex.value.pattern);
    routes.patterns.len() - 1
}

/// Whether the route's expression has the groups that are named, and none of them can name a host.
fn groups_exist(section: &Section, span: &Range<usize>, pieces: &[Piece], pattern: Option<&Pattern>) -> bool {
    let sink = section.sink;
    let Some(most) = pieces.iter().filter_map(|p| if let Piece::Group(n) = p { Some(*n) } else { None }).max() else {
        return true;
    };
    let Some(pattern) = pattern else {
        if section.key_span("path_regex").is_some() {
            // What is wrong with the expression is told already.
            return true;
        }
        let help = "add path_regex = \"^/users/([0-9]+)$\", whose first group is {1}".to_owned();
        sink.error(span, format!("{{{most}}} needs \"path_regex\""), Some(help));
        return false;
    };
    if most > pattern.groups() {
        let help = format!("\"path_regex\" has {} groups in parentheses", pattern.groups());
        sink.error(span, format!("there is no group {{{most}}}"), Some(help));
        return false;
    }
    // What stands before the first group, with stand-ins for what the request brings.
    let before: String = pieces
        .iter()
        .take_while(|piece| !matches!(piece, Piece::Group(_)))
        .map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Scheme => "https",
            Piece::Host => "host",
            Piece::Uri | Piece::Path | Piece::Rest => "/",
            Piece::Query | Piece::Group(_) => "",
        })
        .collect();
    let behind = before.split_once("//").map_or(before.as_str(), |(_, authority)| authority);
    if !behind.contains(['/', '?', '#']) {
        let help =
            "write a \"/\" before the group: without it, a client could choose the host of the redirect".to_owned();
        sink.error(span, "the host of the redirect contains a group of path_regex", Some(help));
        return false;
    }
    true
}

/// The longest name of a route, in bytes.
const MAX_NAME: usize = 100;

/// A name for people.
pub(super) fn name(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if s.trim().is_empty() || s.trim() != s || s.len() > MAX_NAME || s.chars().any(char::is_control) {
        let help = Some(format!("write 1 to {MAX_NAME} bytes, as in {key} = \"api\""));
        sink.error(&node.span(), format!("\"{key}\" is empty, too long, or has spaces around it"), help);
        return None;
    }
    Some(s)
}

/// A path to match everything below it.
pub(super) fn path(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = path_text(sink, key, node)?;
    if s.contains('*') {
        let bare = s.trim_end_matches('*');
        let help =
            format!("write {key} = \"{}\": it matches everything below", if bare.is_empty() { "/" } else { bare });
        sink.error(&node.span(), format!("\"{s}\" has a \"*\""), Some(help));
        return None;
    }
    Some(s)
}

pub(super) fn path_text(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if !s.starts_with('/') {
        let help = match s.strip_prefix("= ").or(s.strip_prefix('=')) {
            Some(exact) => format!("write exact = \"{exact}\""),
            None if s.starts_with(['^', '~']) => {
                format!("write path_regex = '{}'", s.trim_start_matches(['~', '*', ' ']))
            }
            None => format!("write {key} = \"/{s}\""),
        };
        sink.error(&node.span(), format!("\"{s}\" is not a path"), Some(help));
        return None;
    }
    if s.contains(['?', '#']) {
        let end = s.find(['?', '#']).unwrap_or(s.len());
        let help = format!("write {key} = \"{}\": routes do not compare the query", &s[..end]);
        sink.error(&node.span(), format!("\"{s}\" contains more than a path"), Some(help));
        return None;
    }
    Some(s)
}

pub(super) fn rewrite(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = path_text(sink, key, node)?;
    if let Some(bad) = s.chars().find(|c| !c.is_ascii_graphic()) {
        let help = "encode characters outside ASCII with %, as in \"/caf%C3%A9\"".to_owned();
        sink.error(&node.span(), format!("\"{key}\" has {bad:?}"), Some(help));
        return None;
    }
    Some(s.trim_end_matches('/').to_owned())
}

/// The most groups in a `rewrite`, so that the path does not grow without bound.
const MAX_USES: usize = 9;

/// A path with groups: `/show/{1}`.
pub(super) fn rewritten(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Piece>> {
    let s = path_text(sink, key, node)?;
    let pieces = target(sink, key, node)?;
    let fail = |message: String, help: &str| {
        sink.error(&node.span(), message, Some(help.to_owned()));
        None
    };
    const EXAMPLE: &str = "write a path with groups of \"path_regex\", as in \"/show/{1}\"";
    let mut uses = 0;
    for piece in &pieces {
        match piece {
            Piece::Text(text) if Readings::of(text.as_bytes()).is_err() => {
                return fail(
                    format!("\"{s}\" has \"%00\", a \"%\" that encodes nothing, or a segment \".\" or \"..\""),
                    EXAMPLE,
                );
            }
            Piece::Text(_) => {}
            Piece::Group(_) => uses += 1,
            _ => return fail(format!("\"{key}\" has groups only"), EXAMPLE),
        }
    }
    if s.starts_with("//") || uses > MAX_USES {
        return fail(format!("\"{s}\" begins with \"//\", or has more than {MAX_USES} groups"), EXAMPLE);
    }
    Some(pieces)
}

pub(super) fn methods(sink: &Sink, key: &str, node: &Node) -> Option<Vec<String>> {
    let list = decode::strings(sink, key, node)?;
    let mut good = Vec::new();
    for method in list {
        let name = method.value;
        if !is_token(&name) {
            sink.error(&method.span, format!("\"{name}\" is not a method"), Some("write \"GET\"".to_owned()));
        } else if name.bytes().any(|b| b.is_ascii_lowercase()) {
            let help = format!("methods are in capitals: \"{}\"", name.to_ascii_uppercase());
            sink.error(&method.span, format!("\"{name}\" is not a method"), Some(help));
        } else {
            good.push(name);
        }
    }
    Some(good)
}

pub(super) fn is_token(name: &str) -> bool {
    Fields::new().push(name.as_bytes(), b"").is_ok()
}

/// The keys and values of a table whose keys are field names.
pub(super) fn named<'n, 'd>(sink: &Sink, key: &str, node: &'n Node<'d>) -> Option<Vec<(At<String>, &'n Node<'d>)>> {
    let DeValue::Table(table) = node.get_ref() else {
        let help = format!("write {key} = {{ X-Name = \"value\" }}");
        sink.error(&node.span(), format!("\"{key}\" is not a table of header names"), Some(help));
        return None;
    };
    let mut out = Vec::new();
    for (name, value) in table.iter() {
        let at = At { value: name.get_ref().to_string(), span: name.span() };
        if !is_token(&at.value) {
            let help = "write a name of letters, digits and hyphens, as in \"X-Request-Id\"".to_owned();
            sink.error(&at.span, format!("\"{}\" is not a header name", at.value), Some(help));
        } else {
            out.push((at, value));
        }
    }
    Some(out)
}

pub(super) fn field_rules(sink: &Sink, key: &str, node: &Node) -> Option<Vec<(String, FieldRule)>> {
    let mut out = Vec::new();
    for (name, value) in named(sink, key, node)? {
        let rule = match value.get_ref() {
            DeValue::Boolean(true) => FieldRule::Present,
            DeValue::Boolean(false) => FieldRule::Absent,
            DeValue::String(s) => match s.strip_suffix('*') {
                Some(prefix) => FieldRule::Prefix(prefix.as_bytes().to_vec()),
                None => FieldRule::Exact(s.as_bytes().to_vec()),
            },
            _ => {
                let help =
                    "write true (present), false (absent), \"text\" (equal to it), or \"text*\" (starts with it)";
                sink.error(
                    &value.span(),
                    format!("this is not a condition on \"{}\"", name.value),
                    Some(help.to_owned()),
                );
                continue;
            }
        };
        out.push((name.value, rule));
    }
    Some(out)
}

/// Ours to say, or what frames messages.
fn reserved(name: &str) -> Option<&'static str> {
    let known = Known::lookup(name.as_bytes());
    match known {
        Known::Host => Some("set \"host_header\" in [[upstream]]"),
        Known::ContentLength | Known::TransferEncoding | Known::Trailer | Known::Expect => {
            Some("this header says where a message ends: the gateway sets it")
        }
        k if k.is_hop_by_hop() => Some("this header is for one connection only: the gateway sets it"),
        _ => None,
    }
}

fn edits(section: Section) -> Option<FieldEdits> {
    let edits = FieldEdits {
        remove: section.optional(&e::remove).unwrap_or_default(),
        set: section.optional(&e::set).unwrap_or_default(),
        add: section.optional(&e::add).unwrap_or_default(),
    };
    section.finish();
    Some(edits)
}

/// Names and values of headers.
pub(super) fn pairs(sink: &Sink, key: &str, node: &Node) -> Option<Vec<(String, String)>> {
    let mut out = Vec::new();
    for (name, value) in named(sink, key, node)? {
        let Some(text) = decode::text(sink, &name.value, value) else { continue };
        if let Some(why) = reserved(&name.value) {
            sink.error(&name.span, format!("\"{}\" cannot be changed", name.value), Some(why.to_owned()));
        } else if Fields::new().push(b"x", text.as_bytes()).is_err() {
            let message = format!("the value of \"{}\" has control characters, or white space around it", name.value);
            let help = "write the value without control characters and without white space around it".to_owned();
            sink.error(&value.span(), message, Some(help));
        } else {
            if text.starts_with('$') {
                let message = format!("\"{text}\" is sent unchanged");
                sink.warn(&value.span(), message, Some("variables are not supported here".to_owned()));
            }
            out.push((name.value, text));
        }
    }
    Some(out)
}

/// Names of headers that are removed.
pub(super) fn removed(sink: &Sink, key: &str, node: &Node) -> Option<Vec<String>> {
    field_names(sink, key, node, "removed")
}

/// Names of headers that are copied.
pub(super) fn copied(sink: &Sink, key: &str, node: &Node) -> Option<Vec<String>> {
    field_names(sink, key, node, "copied")
}

fn field_names(sink: &Sink, key: &str, node: &Node, done: &str) -> Option<Vec<String>> {
    let names = decode::strings(sink, key, node)?;
    let good = names.into_iter().filter(|name| {
        let why = reserved(&name.value).or((!is_token(&name.value)).then_some("write a header's name"));
        if let Some(why) = why {
            sink.error(&name.span, format!("\"{}\" cannot be {done}", name.value), Some(why.to_owned()));
        }
        why.is_none()
    });
    Some(good.map(|n| n.value).collect())
}

/// `true`, a time, or the field's whole value (RFC 6797 §6.1).
pub(super) fn hsts(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let year = 365 * 86_400;
    match node.get_ref() {
        DeValue::Boolean(true) => Some(format!("max-age={year}")),
        DeValue::String(s) if s.to_ascii_lowercase().contains("max-age=") => {
            if Fields::new().push(b"x", s.as_bytes()).is_err() {
                let message = format!("\"{key}\" has control characters, or white space around it");
                let help = "write the value without control characters and without white space around it".to_owned();
                sink.error(&node.span(), message, Some(help));
                return None;
            }
            Some(s.to_string())
        }
        DeValue::String(_) => {
            let age: Duration = decode::duration(sink, key, node)?;
            Some(format!("max-age={}", age.as_secs()))
        }
        _ => {
            let help = "write hsts = true (a year), \"180d\", or \"max-age=31536000; includeSubDomains; preload\"";
            sink.error(&node.span(), format!("this is not a value for \"{key}\""), Some(help.to_owned()));
            None
        }
    }
}

fn rate_limit(sink: &Sink, name: At<String>, routes: &mut Routes) -> Option<usize> {
    match routes.limits.get(&name.value) {
        Some(index) => {
            routes.used.insert(name.value);
            *index
        }
        None if sink.broken_syntax => None,
        None => {
            let mut known: Vec<&str> = routes.limits.keys().map(String::as_str).collect();
            known.sort_unstable();
            let help = match decode::nearest(&name.value, known.iter().copied()) {
                Some(best) => format!("did you mean \"{best}\"?"),
                None if known.is_empty() => "add [[rate_limit]] with this name and rate = \"100/s\"".to_owned(),
                None => format!("rate limits are {}", decode::listed(known.iter().copied())),
            };
            sink.error(&name.span, format!("there is no rate limit \"{}\"", name.value), Some(help));
            None
        }
    }
}

pub(super) fn is_redirect(status: u64) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// Reports a status that is none of a redirect.
pub(super) fn bad_redirect(sink: &Sink, status: &At<u64>) {
    let help =
        "308 and 301 are permanent; 307 and 302 are temporary; 308 and 307 keep the method; 303 changes it to GET"
            .to_owned();
    sink.error(&status.span, format!("{} is not a redirect status", status.value), Some(help));
}

/// `redirect = "https://{host}{uri}"`, or a table with `to` and `status`.
pub(super) fn redirect(sink: &Sink, key: &str, node: &Node) -> Option<Redirect> {
    if let DeValue::String(_) = node.get_ref() {
        let to = target(sink, key, node)?;
        return Some(Redirect { status: d::status.default() as u16, to });
    }
    let DeValue::Table(table) = node.get_ref() else {
        let help =
            "write redirect = \"https://{host}{uri}\", or redirect = { to = \"/new/\", status = 301 }".to_owned();
        sink.error(&node.span(), "\"redirect\" is neither a string nor a table", Some(help));
        return None;
    };
    let section = Section::new(sink, &d::TABLE, table, node.span());
    let to = section.required(&d::to);
    let status = section.optional_at(&d::status);
    section.finish();
    if let Some(status) = status.as_ref().filter(|s| !is_redirect(s.value)) {
        bad_redirect(sink, status);
        return None;
    }
    Some(Redirect { status: status.map_or_else(|| d::status.default(), |s| s.value) as u16, to: to?.value })
}

pub(super) fn target(sink: &Sink, key: &str, node: &Node) -> Option<Vec<Piece>> {
    let s = decode::text(sink, key, node)?;
    let mut pieces = Vec::new();
    let mut rest = s.as_str();
    let fail = |message: String, help: &str| {
        sink.error(&node.span(), message, Some(help.to_owned()));
        None
    };
    const NAMES: &str = "there are {scheme}, {host}, {uri} (path and query), {path}, {query} and {rest} \
                         (path and query after the route's path), and {1} to {9} for the groups of \"path_regex\"";
    while let Some(open) = rest.find('{') {
        if open > 0 {
            pieces.push(Piece::Text(rest[..open].to_owned()));
        }
        let Some(close) = rest[open..].find('}') else {
            return fail(format!("\"{s}\" has a \"{{\" without a \"}}\""), NAMES);
        };
        pieces.push(match &rest[open + 1..open + close] {
            "scheme" => Piece::Scheme,
            "host" => Piece::Host,
            "uri" => Piece::Uri,
            "path" => Piece::Path,
            "query" => Piece::Query,
            "rest" => Piece::Rest,
            digit if matches!(digit.as_bytes(), [b'1'..=b'9']) => Piece::Group(usize::from(digit.as_bytes()[0] - b'0')),
            other => return fail(format!("there is no {{{other}}}"), NAMES),
        });
        rest = &rest[open + close + 1..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    if s.contains('$') {
        return fail(
            format!("\"{s}\" has a \"$\""),
            "write {host} for $host, {uri} for $request_uri, {scheme} for $scheme, {1} for $1",
        );
    }
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_graphic()) {
        return fail(format!("\"{s}\" is not a valid redirect target"), "write \"https://{host}{uri}\" or \"/new/\"");
    }
    let absolute = s.starts_with('/') || s.starts_with("http://") || s.starts_with("https://");
    if !absolute && !matches!(pieces.first(), Some(Piece::Scheme | Piece::Uri | Piece::Path | Piece::Rest)) {
        let help = format!("write \"https://{s}\", or \"/{s}\" for a path of the same host");
        return fail(format!("\"{s}\" has neither a scheme nor a path"), &help);
    }
    Some(pieces)
}
