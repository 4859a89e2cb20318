//! What a route says of its requests' way to upstreams, beyond one group that they go to: `split`, `mirror`, and limits of time.

use super::decode::{self, At, Node, Section};
use super::diagnostics::Sink;
use super::fields;
use super::host::{self, Hosts, Upstreams};
use super::route;
use super::settings::{messages, mirror as m, request_id as ids, split as s, split_group as g, top};
use super::upstream::{self, Context, Entry};
use sealane_http::Known;
use sealane_http::claims::{is_alike, is_claim};
use sealane_proxy::forwarding::{Destination, Forwarding, RouteLimits, Share, Split};
use sealane_proxy::mirrors;
use sealane_proxy::request_ids::RequestIdRules;
use sealane_proxy::rules::Route;
use sealane_proxy::snapshot::Action;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The most groups of a `split`.
const MAX_GROUPS: usize = 64;

/// Reads `split`.
pub(super) fn split(section: Section, label: &str, upstreams: &mut Upstreams, context: &mut Context) -> Option<Action> {
    let (sink, span) = (section.sink, section.span.clone());
    let sections = section.tables(&s::groups);
    let header = section.optional(&s::header);
    let cookie = section.optional_at(&s::cookie);
    let hash_by = section.optional(&s::hash_by);
    let wanted = sections.len();
    let mut groups: Vec<At<Share>> = Vec::new();
    for section in sections {
        groups.extend(group(section, label, upstreams, context));
    }
    section.finish();
    if !(2..=MAX_GROUPS).contains(&wanted) {
        let help =
            "write groups = [{ upstream = \"stable\", weight = 95 }, { upstream = \"canary\", weight = 5 }]".to_owned();
        sink.error(&span, format!("\"split\" needs 2 to {MAX_GROUPS} \"groups\""), Some(help));
        return None;
    }
    let mut good = groups.len() == wanted;
    for (at, group) in groups.iter().enumerate() {
        if groups[..at].iter().any(|other| other.value.name == group.value.name) {
            let help = "write another name = \"…\"".to_owned();
            sink.error(&group.span, format!("a second group \"{}\"", group.value.name), Some(help));
            good = false;
        }
    }
    if good && groups.iter().all(|group| group.value.weight == 0) {
        let help = "write a weight above 0 for at least one group".to_owned();
        sink.error(&span, "all groups have weight = 0", Some(help));
        good = false;
    }
    let groups = groups.into_iter().map(|group| group.value).collect();
    upstreams.split_cookies.extend(cookie.clone());
    let cookie = cookie.map(|cookie| cookie.value);
    let to = Destination::Split(Split { groups, header, cookie, hash_by });
    good.then(|| Action::Forward(Box::new(Forwarding { to, mirror: None, limits: RouteLimits::default() })))
}

fn group(section: Section, label: &str, upstreams: &mut Upstreams, context: &mut Context) -> Option<At<Share>> {
    let (sink, span) = (section.sink, section.span.clone());
    let name = section.optional(&g::name);
    let upstream = section.optional_at(&g::upstream);
    let to = section.optional_at(&g::to);
    let weight = section.required(&g::weight);
    let is_named = section.key_span("name").is_some();
    let (upstream, name) = match (upstream, to) {
        (Some(_), Some(to)) => {
            let help = "keep one of them".to_owned();
            sink.error(&to.span, "\"upstream\" and \"to\" exclude each other", Some(help));
            (None, name)
        }
        (Some(upstream), None) => {
            let name = name.or_else(|| is_name(&upstream.value).then(|| upstream.value.clone()));
            (host::reference(&section, upstream, upstreams), name)
        }
        (None, Some(list)) => {
            let shown = format!("{label} {}", name.as_deref().unwrap_or("group"));
            let shown = upstreams.unused_name(&shown);
            let group = upstream::anonymous(sink, &shown, &list, context);
            (group.map(|(upstream, plan)| upstreams.push(upstream, plan)), name)
        }
        (None, None) => {
            if ["upstream", "to"].iter().all(|key| section.key_span(key).is_none()) {
                let help = "add upstream = \"name\", or to = [\"http://127.0.0.1:3001\"]".to_owned();
                section.missing("a group of \"split\" does not say where requests go".to_owned(), help);
            }
            (None, name)
        }
    };
    if name.is_none() && !is_named && upstream.is_some() {
        // The name can be the value of a cookie.
        let help = "add name = \"canary\" (letters, digits, \"-\", \"_\" and \".\")".to_owned();
        section.missing("a group of \"split\" needs a name".to_owned(), help);
    }
    section.finish();
    let value = Share { name: name?, upstream: upstream?, weight: weight?.value as u32 };
    Some(At { value, span })
}

/// The longest name of a group, in bytes.
const MAX_NAME: usize = 64;

/// Whether this may be the value of a cookie.
fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME && fields::is_token(name)
}

/// The name of a group.
pub(super) fn name(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if !is_name(&s) {
        let help = format!("write 1 to {MAX_NAME} letters, digits, \"-\", \"_\" and \".\": {key} = \"canary\"");
        sink.error(&node.span(), format!("\"{s}\" is not a name for a group"), Some(help));
        return None;
    }
    Some(s)
}

/// The name of a header that is compared.
pub(super) fn header(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let s = decode::text(sink, key, node)?;
    if !fields::is_token(&s) {
        let help = format!("write {key} = \"X-Release\"");
        sink.error(&node.span(), format!("\"{s}\" is not a header name"), Some(help));
        return None;
    }
    Some(s)
}

/// What `mirror` says.
pub(super) enum Mirror {
    /// `false`: there are no copies.
    Off,
    /// Copies go there.
    On(Copies),
}

/// Where copies go, and what bounds them.
pub(super) struct Copies {
    upstream: Option<At<String>>,
    to: Option<At<Vec<Entry>>>,
    percent: u32,
    max_body: usize,
    max_requests: usize,
    timeout: Duration,
    remove: Vec<String>,
}

pub(super) fn mirror(sink: &Sink, key: &str, node: &Node) -> Option<Mirror> {
    let example = "{ upstream = \"shadow\", percent = 10 }";
    let Some(table) = decode::table_or_false(sink, key, node, example)? else { return Some(Mirror::Off) };
    let section = Section::new(sink, &m::TABLE, table, node.span());
    let copies = Copies {
        upstream: section.optional_at(&m::upstream),
        to: section.optional_at(&m::to),
        percent: section.or(&m::percent) as u32,
        max_body: section.or(&m::max_body) as usize,
        max_requests: section.or(&m::max_requests) as usize,
        timeout: section.or(&m::timeout),
        remove: section.optional(&m::remove_headers).unwrap_or_default(),
    };
    let names_upstream = ["upstream", "to"].iter().any(|key| section.key_span(key).is_some());
    section.finish();
    match (&copies.upstream, &copies.to) {
        // What is wrong with it is told already.
        (None, None) if names_upstream => return None,
        (None, None) => {
            let help =
                format!("write {key} = {{ upstream = \"shadow\" }}, or {key} = {{ to = [\"http://127.0.0.1:3001\"] }}");
            sink.error(&node.span(), format!("\"{key}\" does not say where copies go"), Some(help));
            return None;
        }
        (Some(_), Some(to)) => {
            let help = "keep one of them".to_owned();
            sink.error(&to.span, "\"upstream\" and \"to\" exclude each other", Some(help));
            return None;
        }
        _ => {}
    }
    Some(Mirror::On(copies))
}

/// The rule for copies, with the index of their upstream. `None` inside: there are no copies.
pub(super) fn rule(
    section: &Section,
    written: Mirror,
    label: &str,
    upstreams: &mut Upstreams,
    context: &mut Context,
) -> Option<Option<mirrors::Mirror>> {
    let sink = section.sink;
    let Mirror::On(copies) = written else { return Some(None) };
    let upstream = match (copies.upstream, copies.to) {
        (Some(name), _) => {
            let place = name.span.clone();
            let index = host::reference(section, name, upstreams)?;
            upstreams.mirrors.push(At { value: index, span: place.clone() });
            if upstreams.all[index].proxy_protocol.is_some() {
                let help = "write a second [[upstream]] with the same servers and without \"proxy_protocol\"";
                let message = "\"mirror\" cannot use an upstream with \"proxy_protocol\"";
                sink.error(&place, message, Some(help.to_owned()));
                return None;
            }
            index
        }
        (None, Some(list)) => {
            let name = upstreams.unused_name(&format!("{label} mirror"));
            let (upstream, plan) = upstream::anonymous(sink, &name, &list, context)?;
            upstreams.push(upstream, plan)
        }
        (None, None) => return None,
    };
    Some(Some(mirrors::Mirror {
        upstream,
        percent: copies.percent,
        max_body: copies.max_body,
        max_requests: copies.max_requests,
        timeout: copies.timeout,
        remove: copies.remove,
    }))
}

/// The upstreams that requests of a route go to, by index, the one that is asked whether they may pass among them.
fn requested(route: &Route) -> impl Iterator<Item = usize> {
    let destinations: Vec<usize> = match &route.action {
        Action::Forward(by) => by.destinations().collect(),
        action => action.upstreams(),
    };
    destinations.into_iter().chain(route.forward_auth.as_ref().map(|auth| auth.upstream))
}

/// Reports upstreams that get both requests and copies. They would share places, the queue and failures: copies could delay requests, and
/// have servers ejected.
pub(super) fn separate_mirrors(sink: &Sink, upstreams: &Upstreams, routes: &[Route], hosts: &Hosts) {
    let used: HashSet<usize> =
        routes.iter().flat_map(requested).chain(hosts.actions().flat_map(Action::upstreams)).collect();
    for mirror in upstreams.mirrors.iter().filter(|mirror| used.contains(&mirror.value)) {
        let name = &upstreams.all[mirror.value].name;
        let message = format!("\"mirror\" names \"{name}\", which also gets requests of clients, not only copies");
        let help = format!(
            "write mirror = {{ to = [\"http://127.0.0.1:3001\"] }}, or name an [[upstream]] that no route, host or \
             forward_auth uses. Otherwise copies would use up \"max_connections\" of \"{name}\", and failed copies could \
             eject its servers"
        );
        sink.error(&mirror.span, message, Some(help));
    }
}

/// Reports cookies by which a host keeps clients both with a group of a `split` and with a server of an upstream.
pub(super) fn separate_cookies(sink: &Sink, upstreams: &mut Upstreams, routes: &[Route]) {
    for cookie in std::mem::take(&mut upstreams.split_cookies) {
        let is_same = |upstream: &usize| {
            let sticky = upstreams.all.get(*upstream).and_then(|upstream| upstream.sticky.as_ref());
            sticky.is_some_and(|sticky| sticky.cookie == cookie.value)
        };
        let Some(upstream) = routes.iter().flat_map(requested).find(is_same) else { continue };
        let message =
            format!("the cookie \"{}\" is also in \"sticky\" of \"{}\"", cookie.value, upstreams.all[upstream].name);
        let help = "write another name: one cookie cannot store both a group and a server".to_owned();
        sink.error(&cookie.span, message, Some(help));
    }
}

/// Reads `[request_id]`. The names by which `routes` tell upstreams of users are not its to take.
pub(super) fn request_ids(top: &Section, routes: &[Route]) -> Option<Arc<RequestIdRules>> {
    let section = top.table(&top::request_id)?;
    let written = section.optional_at(&ids::header);
    let in_responses = section.or(&ids::response);
    section.finish();
    if let Some(written) = &written
        && let Some(name) = routes
            .iter()
            .flat_map(route::trusted_names)
            .find(|name| is_alike(name.as_bytes(), written.value.as_bytes()))
    {
        let message = format!("\"{}\" is already used by copy_headers or user_header", written.value);
        let help =
            format!("the header \"{name}\" tells servers about users; write another name: header = \"X-Request-Id\"");
        top.sink.error(&written.span, message, Some(help));
    }
    let header = written.map_or_else(|| ids::header.default(), |written| written.value);
    Some(Arc::new(RequestIdRules { header, in_responses }))
}

/// Headers that mean something to browsers, servers or other proxies, beside those that the gateway itself knows. `*`: all that begin
/// so. In each of them, a random value or one of a trusted proxy would be taken for what it is not.
const TAKEN: &[&str] = &[
    "Accept-*",
    "Access-Control-*",
    "Allow",
    "Authentication-*",
    "Baggage",
    "Clear-Site-Data",
    "Content-*",
    "Cross-Origin-*",
    "Depth",
    "Destination",
    "DNT",
    "Grpc-*",
    "If-*",
    "Last-Event-ID",
    "Link",
    "Location",
    "Permissions-Policy",
    "Prefer",
    "Priority",
    "Proxy-*",
    "Referrer-Policy",
    "Refresh",
    "Remote-*",
    "Sec-*",
    "Server-Timing",
    "SOAPAction",
    "Tracestate",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-HTTP-Method*",
    "X-Method-Override",
    "X-Requested-With",
    "X-XSS-Protection",
];

/// The name of a header for ids: one without a meaning.
pub(super) fn id_header(sink: &Sink, key: &str, node: &Node) -> Option<String> {
    let name = fields::user_header(sink, key, node)?;
    let begins = |with: &str| name.get(..with.len()).is_some_and(|start| is_alike(start.as_bytes(), with.as_bytes()));
    let is_taken = TAKEN.iter().any(|taken| match taken.strip_suffix('*') {
        Some(start) => begins(start),
        None => is_alike(taken.as_bytes(), name.as_bytes()),
    });
    if is_taken
        || is_claim(name.as_bytes())
        || !matches!(Known::lookup(name.as_bytes()), Known::Other | Known::XRequestId)
    {
        let help = format!("write another name: {key} = \"X-Request-Id\"");
        let message =
            format!("\"{name}\" cannot be the header for request IDs: clients and servers use it for something else");
        sink.error(&node.span(), message, Some(help));
        return None;
    }
    Some(name)
}

/// What a host or a route says beside its action.
#[derive(Clone, Default)]
pub(super) struct Also {
    /// `None` inside: there is none.
    mirror: Option<Option<mirrors::Mirror>>,
    /// Zero: any time.
    total: Option<Duration>,
    rate: Option<u64>,
    /// Where these stand that need an upstream.
    spans: Vec<(&'static str, Range<usize>)>,
}

impl Also {
    pub fn read(section: &Section, label: &str, upstreams: &mut Upstreams, context: &mut Context) -> Self {
        let mirror = section.optional(&messages::mirror);
        let mirror = mirror.and_then(|written| rule(section, written, label, upstreams, context));
        let is_off = matches!(mirror, Some(None));
        let keys = [(!is_off).then_some("mirror"), Some("total_timeout"), Some("min_body_rate")];
        let spans = keys.into_iter().flatten().filter_map(|key| Some((key, section.key_span(key)?)));
        Self {
            spans: spans.collect(),
            mirror,
            total: section.optional(&messages::total_timeout),
            rate: section.optional(&messages::min_body_rate),
        }
    }

    /// Whether it says nothing that a request could notice.
    pub fn is_empty(&self) -> bool {
        !matches!(self.mirror, Some(Some(_))) && self.total.is_none() && self.rate.is_none()
    }

    /// What a route says, and where it says nothing, its host.
    pub fn or(self, host: &Self) -> Self {
        Self {
            mirror: self.mirror.or_else(|| host.mirror.clone()),
            total: self.total.or(host.total),
            rate: self.rate.or(host.rate),
            spans: self.spans,
        }
    }

    /// Reports what stands beside an action that does not forward.
    pub fn need_upstream(&self, sink: &Sink, action: &Action) {
        if matches!(action, Action::Proxy { .. } | Action::Forward(_)) {
            return;
        }
        for (key, span) in &self.spans {
            let help = "remove it: it is for requests that go to an upstream".to_owned();
            sink.error(span, format!("\"{key}\" without an upstream"), Some(help));
        }
    }

    /// Puts it into an action that forwards.
    pub fn with(self, action: Action) -> Action {
        let mut by = match action {
            Action::Proxy { upstream } => {
                Forwarding { to: Destination::Group(upstream), mirror: None, limits: RouteLimits::default() }
            }
            Action::Forward(by) => *by,
            other => return other,
        };
        by.mirror = self.mirror.flatten();
        by.limits = RouteLimits { total: self.total.filter(|total| !total.is_zero()), rate: self.rate };
        match by.only_upstream() {
            Some(upstream) if by.mirror.is_none() && by.limits == RouteLimits::default() => Action::Proxy { upstream },
            _ => Action::Forward(Box::new(by)),
        }
    }
}
