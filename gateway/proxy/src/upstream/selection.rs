//! Selects the server for a request, queues the request while all servers are full, and decides about retries.
//!
//! `balance` has the algorithms; `server_state` and `limits` have what lanes share.

use crate::Failure;
use crate::access::{Verdict, is_address_in_doubt, judge, turn_away};
use crate::connections::Connections;
use crate::cors::{Cors, preflight_method};
use crate::counters::Counters;
use crate::exchange::Exchange;
use crate::exchange::authorize::authorize;
use crate::exchange::credentials::authenticate;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{perform, refuse, respond, respond_error, run_action, takes_place};
use crate::exchange::response::try_lost;
use crate::flush::flush_marked;
use crate::forwarding::{Chosen, new_cookie, watch_total};
use crate::lane_state::LaneListener;
use crate::latency::Place;
use crate::limits::Counted;
use crate::pages::page_for;
use crate::patterns::Groups;
use crate::request_ids::{name_response, time_response};
use crate::rules::{Redirect, Request, RouteRef};
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::snapshot::Action;
use crate::upstream::balance::{Lease, Pick, Preference, Tried, hash_of};
use crate::upstream::connection::dispatch_request;
use crate::upstream::group::LaneUpstream;
use crate::upstream::pools::UpstreamPools;
use rustix::io::Errno;
use sealane_exchange::{Action as Do, Loss};
use sealane_http::Known;
use sealane_lane::{Context, Key, Micros, Millis};
use sealane_route::RouteTable;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// Which server a client sticks to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sticky {
    /// Its group does not have clients stick to servers.
    #[default]
    No,
    /// None yet: it is told which one it has got.
    New,
    /// Its cookie names this one.
    To(usize),
}

impl Sticky {
    fn server(self) -> Option<usize> {
        match self {
            Self::To(server) => Some(server),
            Self::No | Self::New => None,
        }
    }
}

/// What an answer of the gateway's own says beside its status.
#[derive(Default)]
enum OwnAnswer {
    #[default]
    Plain,
    /// Seconds after which a client that was too fast may come again.
    RetryAfter(u64),
    /// Where the client is sent.
    Location(Vec<u8>),
    /// The client is to show a password.
    Challenge,
}

/// What of a response was not an upstream's own doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// `maintenance` has refused the request.
    Maintenance,
    /// An error page stands in the place of the gateway's text.
    ErrorPage,
    /// An error page stands in the place of the upstream's response.
    ReplacedPage,
    /// The gateway has answered a CORS preflight.
    Preflight,
}

impl Served {
    /// As the access log has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Maintenance => "maintenance",
            Self::ErrorPage => "error_page",
            Self::ReplacedPage => "error_page_for_upstream",
            Self::Preflight => "cors_preflight",
        }
    }
}

/// Who has refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeniedBy {
    /// `allow` and `deny`.
    Address,
    /// `allow_certificate` and `deny_certificate`.
    Certificate,
    /// `allow_header` and `deny_header`.
    Header,
    /// `basic_auth`.
    Password,
    /// `max_requests_per_client`.
    Limit,
    /// The server of `forward_auth`.
    Server,
    /// `cors`: a preflight for an origin that is not allowed.
    Origin,
}

impl DeniedBy {
    /// As the access log has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Certificate => "certificate",
            Self::Header => "header",
            Self::Password => "basic_auth",
            Self::Limit => "max_requests_per_client",
            Self::Server => "forward_auth",
            Self::Origin => "cors",
        }
    }
}

/// What an exchange knows of the way that was chosen for it.
#[derive(Default)]
pub(crate) struct Routed {
    /// The host that the request is for, at the listener that it came to.
    pub host: Option<(Rc<LaneListener>, usize)>,
    pub route: Option<RouteRef>,
    /// Counts as under way at the server in use.
    lease: Option<Lease>,
    tried: Tried,
    hash: Option<u64>,
    sticky: Sticky,
    /// It waits for room, or has waited, until then at most.
    waits_until: Option<Millis>,
    /// When the try under way has begun.
    began: Millis,
    own: OwnAnswer,
    /// When a kept connection was lost under it. It is sent again once for that, over a connection that was begun since.
    pub lost_at: Option<Millis>,
    /// More than the loss itself will tell about the server that is about to be lost.
    pub hint: Option<Failure>,
    /// Why the last try failed.
    pub failure: Option<Failure>,
    /// The gateway adds headers to this response.
    pub adds_headers: bool,
    /// Who has refused the request, if a rule about clients did.
    pub denied: Option<DeniedBy>,
    /// What has answered in the place of a server.
    pub served: Option<Served>,
    /// The page for an answer to maintenance: an index into the listener's pages.
    page: Option<usize>,
    cors: Cors,
    /// Who the client is, once it has shown the password.
    pub user: Option<Rc<str>>,
    /// The group that it goes to, where there are several.
    pub chosen: Option<Chosen>,
    /// It was ended by `total_timeout` of its route.
    pub took_too_long: bool,
    /// A copy of it has gone to the mirror of its route.
    pub is_mirrored: bool,
    /// It counts among the requests of its client.
    pub counted: Option<Counted>,
}

impl Routed {
    /// Notes why a server is lost, as exactly as it is known.
    pub fn lost(&mut self, why: Loss) -> Failure {
        let failure = self.hint.take().unwrap_or(Failure::of_loss(why));
        self.failure = Some(failure);
        failure
    }

    /// Notes what the request brings to the choice among an upstream's servers.
    #[inline]
    pub fn preference(x: &mut Exchange, upstream: &LaneUpstream, peer: IpAddr) {
        upstream.retries.note_request();
        if upstream.chooses_by_request {
            Self::look(x, upstream, peer);
        }
    }

    fn look(x: &mut Exchange, upstream: &LaneUpstream, peer: IpAddr) {
        let config = &upstream.upstream;
        let fields = &x.request.fields;
        x.routed.hash = hash_of(&config.hash_key, fields, peer);
        if let Some(sticky) = &config.sticky {
            let named = crate::upstream::balance::cookie(fields, &sticky.cookie);
            let server = named.and_then(|id| config.servers.iter().position(|s| s.sticky_id[..] == *id));
            x.routed.sticky = server.map_or(Sticky::New, Sticky::To);
            x.routed.adds_headers = true;
        }
    }

    /// Where the duration of the request is recorded; `None` for a request that came to no host.
    #[inline]
    pub fn place(&self) -> Option<&Place> {
        self.shared_place().map(|place| &**place)
    }

    /// The same, to be kept.
    #[inline]
    pub fn shared_place(&self) -> Option<&Arc<Place>> {
        match (&self.route, &self.host) {
            (Some(route), _) => route.place(),
            (None, Some((listener, host))) => listener.latency.hosts.get(*host),
            (None, None) => None,
        }
    }

    /// The server has nothing more to do for this request: its place is free for another one.
    pub fn release(&mut self) {
        self.lease = None;
    }

    /// The request goes to another group now: what the way to the one before has left is forgotten.
    pub fn begin_again(&mut self) {
        let Self { host, route, own, denied, adds_headers, cors, user, counted, .. } = std::mem::take(self);
        *self = Self { host, route, own, denied, adds_headers, cors, user, counted, ..Self::default() };
    }

    /// The page for an answer with this status, by its index among those of the listener. `of_upstream`: the answer is an
    /// upstream's.
    pub fn page(&self, status: u16, of_upstream: bool) -> Option<(Rc<LaneListener>, usize)> {
        let (listener, host) = self.host.as_ref()?;
        if let (Some(page), 503, false) = (self.page, status, of_upstream) {
            return Some((listener.clone(), page));
        }
        let pages = match self.route.as_ref().and_then(RouteRef::route) {
            Some(route) => &route.error_pages,
            None => listener.routing.pages_of(*host),
        };
        page_for(pages, status, of_upstream).map(|page| (listener.clone(), page))
    }

    /// A page takes the place of the upstream's response, which has said when to come again.
    pub fn replace(&mut self, retry_after: Option<u64>) {
        self.served = Some(Served::ReplacedPage);
        if let Some(seconds) = retry_after {
            self.own = OwnAnswer::RetryAfter(seconds);
        }
    }

    /// The gateway's response asks for a password.
    pub fn challenge(&mut self) {
        self.denied = Some(DeniedBy::Password);
        self.own = OwnAnswer::Challenge;
        self.adds_headers = true;
    }

    /// The gateway's response says that the client may come again after so many seconds.
    pub fn deny_for(&mut self, by: DeniedBy, seconds: u64) {
        self.denied = Some(by);
        self.own = OwnAnswer::RetryAfter(seconds);
        self.adds_headers = true;
    }

    /// What the request brings to the choice of a server.
    fn balancing(&self) -> Preference {
        Preference { tried: self.tried, hash: self.hash, sticky: self.sticky.server() }
    }

    /// The server has answered as servers do.
    pub fn succeeded(&self) {
        if let Some(lease) = &self.lease {
            lease.server().succeeded();
        }
    }

    /// When the try under way has begun.
    pub fn try_began(&self) -> Millis {
        self.began
    }

    /// The same try goes on over another connection: its time does not begin anew.
    pub fn go_on_with_try(&mut self, began: Millis) {
        self.began = began;
    }

    /// When the last try has begun, if there was one.
    pub fn tried_since(&self) -> Option<Millis> {
        (self.began > 0).then_some(self.began)
    }

    /// A try has begun then.
    #[cfg(test)]
    pub fn try_from(&mut self, began: Millis) {
        self.began = began;
    }

    /// When the try under way must have led to a response's head.
    pub fn try_until(&self, upstream: &LaneUpstream) -> Option<Millis> {
        Some(self.began + upstream.upstream.try_timeout?.as_millis() as Millis)
    }
}

/// Adds to a response what the way of its request says.
fn add_routed_headers(x: &mut Exchange, settings: &LaneSettings, now: Micros, secure: bool, ours: bool) {
    let mut tells_times = false;
    if let Some(route) = &x.routed.route {
        route.finish(&mut x.response.fields, secure);
        if let (Some(cors), true) = (route.cors(), x.routed.cors != Cors::Off) {
            cors.add_headers(&x.routed.cors, &mut x.response.fields);
        }
        tells_times = route.route().is_some_and(|route| route.server_timing);
    }
    if tells_times {
        time_response(x, now);
    }
    name_response(x, settings);
    // None of these can be refused: they are ours, and few.
    if ours {
        let _ = match &x.routed.own {
            OwnAnswer::Plain => Ok(()),
            OwnAnswer::RetryAfter(seconds) => {
                x.response.fields.push_known(Known::RetryAfter, seconds.to_string().as_bytes())
            }
            OwnAnswer::Location(location) => x.response.fields.push_known(Known::Location, location),
            OwnAnswer::Challenge => {
                let auth = x.routed.route.as_ref().and_then(|route| route.route()?.basic_auth.as_ref());
                let challenge = auth.map_or("Basic", |auth| &auth.challenge);
                x.response.fields.push_known(Known::WwwAuthenticate, challenge.as_bytes())
            }
        };
        return;
    }
    if x.routed.chosen.is_some()
        && let Some((name, value)) = new_cookie(x)
    {
        let text = set_cookie(name, value.as_bytes(), secure);
        let _ = x.response.fields.push_known(Known::SetCookie, &text);
    }
    if x.routed.sticky == Sticky::No || x.routed.sticky == Sticky::To(x.server) {
        return;
    }
    let Some(upstream) = &x.upstream else { return };
    let (Some(sticky), Some(server)) = (&upstream.upstream.sticky, upstream.upstream.servers.get(x.server)) else {
        return;
    };
    let text = set_cookie(&sticky.cookie, &server.sticky_id, secure);
    let _ = x.response.fields.push_known(Known::SetCookie, &text);
}

/// A cookie by which the gateway knows a client again.
fn set_cookie(name: &str, value: &[u8], secure: bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(96);
    text.extend_from_slice(name.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value);
    text.extend_from_slice(b"; Path=/; HttpOnly; SameSite=Lax");
    if secure {
        text.extend_from_slice(b"; Secure");
    }
    text
}

/// A host has rules: finds the one for a request, and does what it says.
pub(crate) fn route_request(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    listener: &Rc<LaneListener>,
    table: &RouteTable<usize>,
    expects: bool,
) {
    let Proxy { connections, exchanges, admission, settings, .. } = proxy;
    let Some(x) = exchanges.get_mut(exchange) else { return };
    let asked = if listener.routing.has_cors { preflight_method(&x.request) } else { None };
    let find = |method: &[u8]| table.find(x.request.path(), &Request { head: &x.request, method, listener });
    // A preflight asks about the route of the request that is to follow.
    let preflight = asked
        .and_then(|method| find(method).ok().flatten())
        .filter(|found| listener.routing.routes.get(*found.value).is_some_and(|route| route.cors.is_some()));
    let is_preflight = preflight.is_some();
    let found = match preflight.map_or_else(|| find(x.request.method_name()), |found| Ok(Some(found))) {
        Ok(Some(found)) => found,
        Ok(None) => return refuse(proxy, cx, exchange, 404),
        Err(_) => {
            proxy.counters.bad_paths.inc();
            return refuse(proxy, cx, exchange, 400);
        }
    };
    let Some(route) = listener.routing.routes.get(*found.value) else { return refuse(proxy, cx, exchange, 500) };
    x.routed.route = Some(RouteRef::new(listener.clone(), found));
    x.routed.adds_headers = true;
    if let Some(cors) = &route.cors {
        x.routed.cors = cors.judge(&x.request, is_preflight);
    }
    let Some(client) = connections.client_of(x.client_stream) else { return };
    if !route.access.is_empty() {
        let verdict = judge(connections, x, client, listener, &route.access);
        if verdict != Verdict::Admitted {
            return turn_away(proxy, cx, exchange, verdict, expects);
        }
    }
    if let Some(maintenance) = &route.maintenance {
        let verdict = match &maintenance.access {
            Some(rule) => judge(connections, x, client, listener, &[*rule]),
            None => Verdict::Denied(DeniedBy::Address),
        };
        match verdict {
            Verdict::Admitted => {}
            Verdict::TooEarly => return turn_away(proxy, cx, exchange, verdict, expects),
            Verdict::Denied(_) => {
                x.routed.served = Some(Served::Maintenance);
                x.routed.page = maintenance.page;
                if let Some(seconds) = maintenance.retry_after {
                    x.routed.own = OwnAnswer::RetryAfter(seconds);
                }
                proxy.counters.maintenance.inc();
                return refuse(proxy, cx, exchange, 503);
            }
        }
    }
    let verdict = takes_place(connections, x, client, listener, admission, settings);
    if verdict != Verdict::Admitted {
        return turn_away(proxy, cx, exchange, verdict, expects);
    }
    if route.rate_limits.iter().any(|limit| admission.counts_by_address(*limit)) && is_address_in_doubt(connections, x)
    {
        // Before any of them counts the request.
        return turn_away(proxy, cx, exchange, Verdict::TooEarly, expects);
    }
    let name = client.server_name.as_deref().unwrap_or(x.request.host_name()).as_bytes();
    let mut wait = None;
    for limit in &route.rate_limits {
        let field = |name: &str| x.request.fields.get_named(name.as_bytes());
        if let Err(ms) = admission.request(cx, *limit, x.client_ip(client), name, field) {
            wait = wait.max(Some(ms));
        }
    }
    if let Some(ms) = wait {
        proxy.counters.rate_limited.inc();
        x.routed.own = OwnAnswer::RetryAfter(ms.div_ceil(1000));
        return respond_error(proxy, cx, exchange, 429, expects);
    }
    if is_preflight {
        // Before any question of who it is: browsers send no credentials with it.
        return answer_preflight(proxy, cx, exchange, expects);
    }
    if let Some(auth) = &route.basic_auth {
        watch_total(proxy, cx, exchange);
        return authenticate(proxy, cx, exchange, listener, auth, expects);
    }
    if let Some(auth) = &route.forward_auth {
        watch_total(proxy, cx, exchange);
        return authorize(proxy, cx, exchange, listener, auth, expects);
    }
    run_route_action(proxy, cx, exchange, listener, &route.action, found.matched, expects);
}

/// Answers the question of a page of another origin what it may do.
fn answer_preflight(proxy: &mut Proxy, cx: &mut Context, exchange: Key, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if x.routed.cors == Cors::Refused {
        proxy.counters.preflights_refused.inc();
        x.routed.denied = Some(DeniedBy::Origin);
        return refuse(proxy, cx, exchange, 403);
    }
    proxy.counters.preflights.inc();
    x.routed.served = Some(Served::Preflight);
    respond(proxy, cx, exchange, 204, b"", b"", expects);
}

/// Does what the route of a request says, once its client has shown a password.
pub(crate) fn run_authenticated(proxy: &mut Proxy, cx: &mut Context, exchange: Key, expects: bool) {
    let Some(route) = proxy.exchanges.get(exchange).and_then(|x| x.routed.route.clone()) else { return };
    match route.route().and_then(|rule| rule.forward_auth.as_ref()) {
        Some(auth) => authorize(proxy, cx, exchange, route.listener(), auth, expects),
        None => run_route(proxy, cx, exchange, expects),
    }
}

/// Does what the route of a request says, once the request is admitted.
pub(crate) fn run_route(proxy: &mut Proxy, cx: &mut Context, exchange: Key, expects: bool) {
    let Some(route) = proxy.exchanges.get(exchange).and_then(|x| x.routed.route.clone()) else { return };
    match route.route() {
        Some(rule) => run_route_action(proxy, cx, exchange, route.listener(), &rule.action, route.matched, expects),
        None => refuse(proxy, cx, exchange, 500),
    }
}

/// Does what a route says.
#[inline]
fn run_route_action(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    listener: &Rc<LaneListener>,
    action: &Action,
    matched: usize,
    expects: bool,
) {
    match action {
        Action::Redirect(redirect) => {
            let Some(x) = proxy.exchanges.get(exchange) else { return };
            let secure = proxy.connections.client_of(x.client_stream).is_some_and(|client| client.is_secure());
            return send_redirect(proxy, cx, exchange, redirect, secure, matched, expects);
        }
        Action::RedirectTable { table, status, keep_query } => {
            return send_redirect_of_table(proxy, cx, exchange, (*table, *status, *keep_query), expects);
        }
        _ => {}
    }
    run_action(proxy, cx, exchange, listener, action, expects);
}

pub(crate) fn send_redirect(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    redirect: &Redirect,
    secure: bool,
    matched: usize,
    expects: bool,
) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if redirect.names_host() && x.request.host_name().is_empty() {
        // HTTP/1.0 without Host: there is nowhere to send the client to.
        return refuse(proxy, cx, exchange, 400);
    }
    let mut location = Vec::with_capacity(128);
    let groups = match &x.routed.route {
        Some(route) if redirect.names_groups() => route.groups(x.request.path(), proxy.scratch.text()),
        _ => Some(Groups::default()),
    };
    let Some(groups) = groups else {
        proxy.counters.bad_paths.inc();
        return refuse(proxy, cx, exchange, 400);
    };
    redirect.location(&x.request, secure, matched, &groups, &mut location);
    x.routed.own = OwnAnswer::Location(location);
    x.routed.adds_headers = true;
    respond(proxy, cx, exchange, redirect.status, b"text/plain", b"", expects);
}

/// Sends the client where a table says.
fn send_redirect_of_table(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    (table, status, keep_query): (usize, u16, bool),
    expects: bool,
) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let found = x.routed.route.as_ref().and_then(|route| {
        let entry = route.listener().redirects.get(table)?.entry(route.entry?)?;
        let mut location = Vec::with_capacity(128);
        entry.location(&x.request, keep_query, &mut location);
        Some((location, entry.status.unwrap_or(status)))
    });
    let Some((location, status)) = found else { return refuse(proxy, cx, exchange, 500) };
    x.routed.own = OwnAnswer::Location(location);
    proxy.counters.table_redirects.inc();
    respond(proxy, cx, exchange, status, b"text/plain", b"", expects);
}

/// Adds to a response what the way of its request says. Called once for each final response, before its head goes
/// to the client; `ours`: it was not an upstream that made it.
#[inline]
pub(crate) fn add_response_headers(
    connections: &Connections,
    exchanges: &mut Exchanges,
    settings: &LaneSettings,
    cx: &Context,
    exchange: Key,
    ours: bool,
) {
    let Some(x) = exchanges.get_mut(exchange) else { return };
    if x.routed.adds_headers {
        let secure = connections.client_of(x.client_stream).is_some_and(|c| c.is_secure());
        add_routed_headers(x, settings, cx.micros(), secure, ours);
    }
}

/// Chooses the server for a try. `None`: the request waits for room, or has been answered.
#[inline]
pub(crate) fn select_server(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    upstream: &Rc<LaneUpstream>,
) -> Option<usize> {
    let x = proxy.exchanges.get_mut(exchange)?;
    // What it had at the server before is over.
    (x.routed.lease, x.routed.failure, x.routed.hint) = (None, None, None);
    if x.routed.waits_until.is_none() && upstream.makes_wait() {
        // Nobody overtakes those who wait. The queue is served at the end of the turn.
        wait_for_room(proxy, cx, exchange, upstream);
        return None;
    }
    match upstream.balancer.pick(x.routed.balancing()) {
        Pick::Server(server) => {
            x.server = server;
            x.routed.began = cx.now();
            x.routed.lease = Some(upstream.balancer.servers()[server].lease());
            Some(server)
        }
        Pick::Full => {
            wait_for_room(proxy, cx, exchange, upstream);
            None
        }
        Pick::None => {
            proxy.counters.no_server.inc();
            refuse(proxy, cx, exchange, 503);
            None
        }
    }
}

/// A connection could not even be begun. True if a server is to be selected again; else the request has been answered.
pub(crate) fn connect_failed(proxy: &mut Proxy, cx: &mut Context, exchange: Key, error: Errno) -> bool {
    // Ours to blame: ports, descriptors or memory are used up.
    let ours = matches!(
        error,
        Errno::ADDRNOTAVAIL | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN
    );
    let why = if ours { Loss::Exhausted } else { Loss::Unreachable };
    let actions = try_lost(proxy, cx, exchange, why);
    if actions.has(Do::SelectServer) {
        return true;
    }
    perform(proxy, cx, exchange, actions);
    false
}

/// A try has ended: its server's place is free, and it counts, however its connection was found. `unanswered`: the client has
/// had nothing of a response.
pub(crate) fn account_for_loss(x: &mut Exchange, why: Loss, unanswered: bool) {
    let failure = x.routed.lost(why);
    let failed = !matches!(why, Loss::Stale | Loss::Unprocessed | Loss::Limited | Loss::Cancelled);
    if unanswered && failed {
        x.routed.tried.note(x.server);
        if why != Loss::Exhausted {
            if let Some(lease) = &x.routed.lease {
                lease.server().failed(failure);
            }
            nudge(x);
        }
    }
    x.routed.release();
    // Of a stale connection the server has seen nothing: one such try per request is beside the others.
    x.attempts += usize::from(why != Loss::Stale);
}

/// Whether a request that may be sent again is: there must be a try left, a server, and something in the budget.
pub(crate) fn retry_is_granted(x: &mut Exchange, counters: &Counters, cx: &Context, why: Loss) -> bool {
    let Some(upstream) = &x.upstream else { return false };
    let is_left = match why {
        // It is the connection that was old, not the server that failed: the same server may be tried, but only once
        // per request.
        Loss::Stale => x.routed.lost_at.is_none(),
        _ => x.attempts < upstream.upstream.tries && upstream.balancer.has_untried(x.routed.tried),
    };
    let granted = is_left && budget_allows(x, counters, cx);
    if granted && why == Loss::Stale {
        // Other kept connections may be as old.
        x.routed.lost_at = Some(cx.now());
    }
    granted
}

/// Takes a retry from the budget, if there is one.
pub(crate) fn budget_allows(x: &Exchange, counters: &Counters, cx: &Context) -> bool {
    let Some(upstream) = &x.upstream else { return false };
    let granted = upstream.retries.take(cx.now());
    if !granted {
        counters.retries_denied.inc();
    }
    granted
}

fn wait_for_room(proxy: &mut Proxy, cx: &mut Context, exchange: Key, upstream: &Rc<LaneUpstream>) {
    let now = cx.now();
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let first = x.routed.waits_until.is_none();
    let queue_timeout = upstream.upstream.queue_timeout.as_millis() as Millis;
    let until = *x.routed.waits_until.get_or_insert(now + queue_timeout);
    if upstream.queue(exchange, |key| proxy.exchanges.get(key).is_some()).is_err() {
        proxy.counters.queue_full.inc();
        return refuse(proxy, cx, exchange, 503);
    }
    proxy.pools.schedule_queue(cx, upstream, until);
    if first {
        proxy.counters.queued.inc();
        // Another lane may have room to give.
        upstream.upstream.group.nudge();
    }
}

/// The timer of the queues has fired; they are looked at at the end of the turn.
pub(crate) fn queues_timeout(exchanges: &Exchanges, pools: &mut UpstreamPools, cx: &mut Context) {
    pools.timeout(cx, |upstream| exchanges.get(upstream.first_queued()?)?.routed.waits_until);
}

/// The end of a turn, after all that may have freed a place: queued requests that have got room go on, and those that have
/// waited for long enough are refused. Whether there were any.
pub(crate) fn serve_queues(proxy: &mut Proxy, cx: &mut Context) -> bool {
    proxy.pools.acknowledge();
    if !proxy.pools.has_queues() {
        return false;
    }
    let now = cx.now();
    let mut served = false;
    for upstream in proxy.pools.take_queues() {
        let mut passed_over = 0;
        // One round, in which those that stay keep their order.
        for _ in 0..upstream.queue_len() {
            let Some(key) = upstream.unqueue_first() else { break };
            let Some(x) = proxy.exchanges.get(key) else { continue };
            let preference = x.routed.balancing();
            // Room first: who has waited for long enough and has got it is not refused.
            if upstream.balancer.may_have_room(preference) {
                dispatch_request(proxy, cx, key);
            } else if x.routed.waits_until.is_none_or(|until| now >= until) {
                proxy.counters.queue_timeouts.inc();
                refuse(proxy, cx, key, 503);
            } else if passed_over == 0 && preference.takes_any() {
                // There is no room for any of them.
                upstream.requeue_first(key);
                break;
            } else {
                upstream.requeue_last(key);
                passed_over += 1;
                continue;
            }
            served = true;
            flush_marked(proxy, cx);
        }
        let left = upstream.queue_len();
        upstream.tell_waiting(left);
        if left > 0 {
            proxy.pools.note_queue(&upstream);
        }
    }
    served
}

/// Asks control to look at a failure now rather than later.
fn nudge(x: &Exchange) {
    if let Some(upstream) = &x.upstream {
        upstream.upstream.group.nudge();
    }
}
