//! What is done with requests: the actions of `[[host]]` and `[[host.route]]`, and what they change on the way.

use super::access::{self, AccessLists};
use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::host::Upstreams;
use super::settings::{
    actions as a, basic_auth as b, edits as e, forward_auth as f, host as h, messages as m, redirect as d, route as r,
};
use super::upstream::{self, Context};
use sealane_http::{Fields, Known};
use sealane_proxy::rules::{self, FieldEdits, Piece, Redirect, Route};
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
}

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
    rewrite: Option<At<String>>,
}

impl Extras {
    /// The header in which `basic_auth` tells the user.
    fn user_header(&self) -> Option<String> {
        self.basic_auth.as_ref()?.as_ref()?.user_header.clone()
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
    }
}

/// Reads the settings of a host or a route that change messages or limit requests.
pub(super) fn extras(section: &Section, routes: &mut Routes, upstreams: &mut Upstreams, rewrites: bool) -> Extras {
    Extras {
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
        rewrite: rewrites.then(|| section.optional_at(&r::rewrite_prefix)).flatten(),
    }
}

/// Reads what a host or route does: `to`, `upstream`, `respond`, `redirect`, or (for hosts) `passthrough`. `None` also
/// where it is wrong, which is then reported; that nothing is said is for the caller to judge (`given`).
pub(super) fn action(
    section: &Section,
    label: &str,
    passthrough: bool,
    upstreams: &mut Upstreams,
    context: &mut Context,
) -> (bool, Option<Action>) {
    let sink = section.sink;
    let keys: &[&str] = match passthrough {
        true => &["to", "upstream", "respond", "redirect", "passthrough"],
        false => &["to", "upstream", "respond", "redirect"],
    };
    let given: Vec<&str> = keys.iter().copied().filter(|k| section.key_span(k).is_some()).collect();
    if let [_, second, ..] = given[..] {
        let message = format!("{} exclude each other", decode::listed(given.iter().copied()));
        let span = section.key_span(second).unwrap_or_else(|| section.span.clone());
        sink.error(&span, message, Some("keep one of them".to_owned()));
    }
    let to = section.optional_at(&a::to);
    let upstream = section.optional_at(&a::upstream);
    let respond = section.table(&a::respond);
    let redirect = section.optional(&a::redirect);
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
    if let Some(respond) = respond {
        action = super::host::respond(respond);
    }
    if let Some(redirect) = redirect {
        action = Some(Action::Redirect(redirect));
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
    if sections.is_empty() && extras.is_empty() {
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
            "allow_certificate",
            "deny_certificate",
            "allow_header",
            "deny_header",
        ]
        .iter()
        .find_map(|k| host.key_span(k)),
    ) {
        let help = "remove this: the gateway does not read connections that it passes through".to_owned();
        host.sink.error(&span, "this setting is for requests, and excludes \"passthrough\"", Some(help));
        return None;
    }
    if let Some(Action::Passthrough { upstream, .. }) = own {
        return Some(Action::Passthrough { upstream, access: extras.access });
    }
    let mut table = RouteTable::default();
    let mut seen: Vec<(String, Range<usize>)> = Vec::new();
    for section in sections {
        route(section, &extras, label, routes, upstreams, context, &mut table, &mut seen);
    }
    if let Some(action) = own {
        let route = Route {
            label: String::new(),
            action,
            access: extras.access.into_iter().collect(),
            basic_auth: extras.basic_auth.flatten(),
            forward_auth: extras.forward_auth.flatten(),
            request: extras.request.into_iter().collect(),
            response: extras.response.into_iter().collect(),
            hsts: extras.hsts,
            rewrite: None,
            rate_limits: extras.rate_limits,
        };
        routes.all.push(route);
        let everything = Conditions { path: PathRule::Prefix("/".into()), methods: Vec::new(), fields: Vec::new() };
        // `/` is a path like any.
        let _ = table.insert(everything, routes.all.len() - 1);
    }
    Some(Action::Routes(table))
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
    let methods = section.optional(&r::methods);
    let fields = section.optional(&r::headers);
    if let (Some(_), Some(exact)) = (&path, &exact) {
        let help = "keep one of them: \"path\" matches everything below a path, \"exact\" one path".to_owned();
        sink.error(&exact.span, "\"path\" and \"exact\" exclude each other", Some(help));
    }
    let said = ["path", "exact", "methods", "headers"].iter().any(|k| section.key_span(k).is_some());
    if !said {
        let help = "add path = \"/api/\", exact = \"/health\", methods = [\"POST\"] or headers = { X-Beta = true }; \
                    settings for every request belong in [[host]] itself";
        section.missing("[[host.route]] does not say which requests it is for".to_owned(), help.to_owned());
    }
    let own = extras(&section, routes, upstreams, true);
    let name = section.optional(&r::name);
    let shown = name.unwrap_or_else(|| pattern(path.as_ref(), exact.as_ref(), methods.as_deref()));
    let label = path.as_ref().or(exact.as_ref()).map_or_else(|| label.to_owned(), |p| format!("{label} {}", p.value));
    let (given, action) = action(&section, &label, false, upstreams, context);
    if !given {
        section.missing(
            "[[host.route]] does not say what to do with requests".to_owned(),
            "add upstream = \"name\", to = [\"http://127.0.0.1:3000\"], respond = { status = 404 } or redirect = \"/\""
                .to_owned(),
        );
    }
    if let (Some(rewrite), Some(exact)) = (&own.rewrite, &exact) {
        let help = format!("write path = \"{}\"", exact.value);
        sink.error(&rewrite.span, "\"rewrite_prefix\" needs \"path\"", Some(help));
    }
    if let (Some(rewrite), Some(Action::Respond { .. } | Action::Redirect(_))) = (&own.rewrite, &action) {
        let help = "remove it: it changes the path that an upstream gets (in a redirect, use {rest})".to_owned();
        sink.error(&rewrite.span, "\"rewrite_prefix\" without an upstream", Some(help));
    }
    let span = section.span.clone();
    section.finish();
    let rule = match (&path, &exact) {
        (Some(p), _) => PathRule::Prefix(p.value.clone()),
        (None, Some(p)) => PathRule::Exact(p.value.clone()),
        (None, None) => PathRule::Prefix("/".to_owned()),
    };
    let conditions =
        Conditions { path: rule, methods: methods.unwrap_or_default(), fields: fields.unwrap_or_default() };
    // The same conditions twice: the second would never be used.
    let mut plain = conditions.clone();
    if let PathRule::Prefix(p) = &mut plain.path {
        p.truncate(p.trim_end_matches('/').len());
    }
    plain.methods.sort_unstable();
    let same = format!("{plain:?}");
    if let Some((_, first)) = seen.iter().find(|(s, _)| *s == same) {
        let message = format!("a second route for the same requests; the first is at {}", sink.place(first));
        sink.error(&span, message, None);
    }
    seen.push((same, span));
    let Some(action) = action else { return };
    let join =
        |a: &Option<FieldEdits>, b: Option<FieldEdits>| -> Vec<FieldEdits> { a.iter().cloned().chain(b).collect() };
    let mut rate_limits = host.rate_limits.clone();
    rate_limits.extend(own.rate_limits.iter().filter(|l| !host.rate_limits.contains(l)));
    let mut request: Vec<FieldEdits> = Vec::new();
    if let (Some(None), Some(Some(of_host))) = (&own.forward_auth, &host.forward_auth) {
        // What the server says on other routes is nobody's to say here.
        request.push(FieldEdits { remove: of_host.copy.clone(), ..FieldEdits::default() });
    }
    if let (Some(header), true) = (host.user_header(), own.basic_auth.is_some()) {
        // Nor is who the user is, on a route that asks for no password or tells it in another header.
        request.push(FieldEdits { remove: vec![header], ..FieldEdits::default() });
    }
    request.extend(join(&host.request, own.request));
    routes.all.push(Route {
        label: shown,
        action,
        access: host.access.into_iter().chain(own.access).collect(),
        basic_auth: own.basic_auth.unwrap_or_else(|| host.basic_auth.clone().flatten()),
        forward_auth: own.forward_auth.unwrap_or_else(|| host.forward_auth.clone().flatten()),
        request,
        response: join(&host.response, own.response),
        hsts: own.hsts.or_else(|| host.hsts.clone()),
        rewrite: own.rewrite.map(|r| r.value),
        rate_limits,
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
            "servers disagree about the meaning of \";\", \"\\\" and \"%2F\": write the path without them".to_owned();
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

/// What a route without a name is called: `GET,POST /api/`, `= /health`.
fn pattern(path: Option<&At<String>>, exact: Option<&At<String>>, methods: Option<&[String]>) -> String {
    let path = match (path, exact) {
        (_, Some(exact)) => format!("= {}", exact.value),
        (Some(path), None) => path.value.clone(),
        (None, None) => "/".to_owned(),
    };
    match methods {
        Some(methods) => format!("{} {path}", methods.join(",")),
        None => path,
    }
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
            None if s.starts_with(['^', '~']) => "there are no patterns: name the paths, one route each".to_owned(),
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
            sink.error(&at.span, format!("\"{}\" is not a header name", at.value), None);
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
            Some("it says where messages end: the gateway sets it")
        }
        k if k.is_hop_by_hop() => Some("it is for one connection only: the gateway sets it"),
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
            sink.error(&value.span(), message, None);
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
                sink.error(&node.span(), format!("\"{key}\" has control characters, or white space around it"), None);
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

const STATUSES: &[u64] = &[301, 302, 303, 307, 308];

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
    if let Some(status) = status.as_ref().filter(|s| !STATUSES.contains(&s.value)) {
        let help = "308 and 301 are permanent, 307 and 302 temporary; 308 and 307 keep the method; 303 makes it GET"
            .to_owned();
        sink.error(&status.span, format!("{} is not a redirect status", status.value), Some(help));
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
                         (path and query behind the route's path)";
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
            "write {host} for $host, {uri} for $request_uri, {scheme} for $scheme",
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
