//! Finds the route of a request to a host with rules, and does what the route says: whom it admits, and where the request goes.

use crate::accept::admission::Admission;
use crate::access::{Verdict, is_address_in_doubt, judge, turn_away};
use crate::client::identity::Client;
use crate::connections::Connections;
use crate::cors::{Cors, preflight_method};
use crate::counters::Count;
use crate::exchange::Exchange;
use crate::exchange::authorize::authorize;
use crate::exchange::credentials::authenticate;
use crate::exchange::executor::{is_of_many, refuse, refuse_body, respond, respond_error, run_action, takes_place};
use crate::exchange::redirection::{send_redirect, send_redirect_of_table};
use crate::exchange::routed::{DeniedBy, OwnAnswer, Served};
use crate::forwarding::watch_total;
use crate::lane_state::LaneListener;
use crate::limits::{CountedBy, RateKey};
use crate::rules::{Request, Route, RouteRef};
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::snapshot::{Action, Routing};
use sealane_http::ParseError;
use sealane_lane::{Context, Key};
use sealane_route::RouteTable;
use std::rc::Rc;

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
        .filter(|found| listener.routing.routes.get(*found.value).is_some_and(|route| route.responses.cors.is_some()));
    let is_preflight = preflight.is_some();
    let found = match preflight.map_or_else(|| find(x.request.method_name()), |found| Ok(Some(found))) {
        Ok(Some(found)) => found,
        Ok(None) => return refuse(proxy, cx, exchange, 404),
        Err(_) => {
            proxy.counters.count(Count::BadPaths);
            x.routed.deny(DeniedBy::Path);
            return refuse(proxy, cx, exchange, 400);
        }
    };
    let Some(route) = listener.routing.routes.get(*found.value) else { return refuse(proxy, cx, exchange, 500) };
    x.routed.route = Some(RouteRef::new(listener.clone(), found));
    x.routed.adds_headers = true;
    if let Some(max_body) = route.max_body {
        x.limit_body(max_body);
    }
    if let Some(cors) = &route.responses.cors {
        x.routed.cors = cors.judge(&x.request, is_preflight);
    }
    if x.announces_too_much() {
        return refuse_body(proxy, cx, exchange);
    }
    let Some(client) = connections.client_of(x.client_stream) else { return };
    if let Some(rule) = &route.responses.compression {
        // Before anything of the request is changed.
        x.routed.wish = Some(rule.look(&x.request, client));
    }
    let mut suffices = false;
    if !route.access.is_empty() {
        match judge(connections, x, client, listener, &route.access) {
            Verdict::Admitted => suffices = route.satisfy_any,
            // The password, or the server of `forward_auth`, decides.
            Verdict::Denied(_) if route.satisfy_any && route.asks() => {}
            verdict => return turn_away(proxy, cx, exchange, verdict, expects),
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
                proxy.counters.count(Count::Maintenance);
                return refuse(proxy, cx, exchange, 503);
            }
        }
    }
    if let Some(by) = has_too_many_values(x, listener, route) {
        // Before any of them counts the request.
        proxy.counters.parse_error(ParseError::TooManyFields);
        x.routed.deny(by);
        return refuse(proxy, cx, exchange, ParseError::TooManyFields.status());
    }
    let verdict = takes_place(connections, x, client, listener, admission, settings);
    if verdict != Verdict::Admitted {
        return turn_away(proxy, cx, exchange, verdict, expects);
    }
    if !route.concurrency_limits.is_empty() {
        let verdict = count_under(connections, x, client, listener, route, admission, settings);
        if verdict != Verdict::Admitted {
            return turn_away(proxy, cx, exchange, verdict, expects);
        }
    }
    if route.rate_limits.iter().any(|limit| admission.counts_by_address(*limit)) && is_address_in_doubt(connections, x)
    {
        // Before any of them counts the request.
        return turn_away(proxy, cx, exchange, Verdict::TooEarly, expects);
    }
    let name = client.server_name().unwrap_or(x.request.host_name()).as_bytes();
    let mut wait = None;
    for limit in &route.rate_limits {
        let exempt = listener.routing.rate_limits.get(*limit).and_then(|limit| limit.exempt);
        if is_exempt(connections, x, client, listener, exempt) {
            continue;
        }
        if let Err(ms) = admission.request(cx, *limit, x.client_ip(client), name, &x.request.fields) {
            wait = wait.max(Some(ms));
        }
    }
    if let Some(ms) = wait {
        proxy.counters.count(Count::RateLimited);
        x.routed.deny_for(DeniedBy::Rate, ms.div_ceil(1000));
        return respond_error(proxy, cx, exchange, 429, expects);
    }
    if is_preflight {
        // Before any question of who it is: browsers send no credentials with it.
        return answer_preflight(proxy, cx, exchange, expects);
    }
    if suffices {
        route.clean_unasked(&mut x.request.fields);
        return run_route_action(proxy, cx, exchange, listener, &route.action, found.matched, expects);
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

/// The limit by which a request would count for more values of a header than one request may have.
fn has_too_many_values(x: &Exchange, listener: &LaneListener, route: &Route) -> Option<DeniedBy> {
    let Routing { concurrency_limits, rate_limits, .. } = &*listener.routing;
    let is_too_much = |key: &RateKey| key.has_too_many_values(&x.request.fields);
    let mut open = route.concurrency_limits.iter().filter_map(|at| concurrency_limits.get(*at));
    if open.any(|limit| is_too_much(&limit.key)) {
        return Some(DeniedBy::Concurrency);
    }
    let mut rates = route.rate_limits.iter().filter_map(|at| rate_limits.get(*at));
    rates.any(|limit| is_too_much(&limit.key)).then_some(DeniedBy::Rate)
}

/// Whether a limit does not count the requests of a client. One whose address is not proven is counted.
fn is_exempt(
    connections: &Connections,
    x: &Exchange,
    client: &Client,
    listener: &LaneListener,
    exempt: Option<usize>,
) -> bool {
    exempt.is_some_and(|rule| judge(connections, x, client, listener, &[rule]) == Verdict::Admitted)
}

/// Counts a request among those that the limits of its route count, unless too many of them are under way.
fn count_under(
    connections: &Connections,
    x: &mut Exchange,
    client: &Client,
    listener: &LaneListener,
    route: &Route,
    admission: &Admission,
    settings: &LaneSettings,
) -> Verdict {
    if !x.routed.counted_under.is_empty() {
        return Verdict::Admitted;
    }
    let limits = || route.concurrency_limits.iter().filter_map(|at| listener.routing.concurrency_limits.get(*at));
    if limits().any(|limit| limit.key == RateKey::Address) && is_address_in_doubt(connections, x) {
        return Verdict::TooEarly;
    }
    for limit in limits() {
        if is_exempt(connections, x, client, listener, limit.exempt) {
            continue;
        }
        let (peer, is_of_many) = (x.client_ip(client), is_of_many(x, client, listener));
        let Exchange { request, routed, .. } = x;
        let mut count = |key| {
            let counted = admission.count_request_under(limit, key, settings);
            routed.counted_under.extend(counted);
            counted.is_some()
        };
        let passes = match &limit.key {
            RateKey::Address => is_of_many || count(CountedBy::Address(peer)),
            RateKey::ServerName => {
                count(CountedBy::Text(client.server_name().unwrap_or(request.host_name()).as_bytes()))
            }
            RateKey::Field(name) => request.fields.alike(name.as_bytes()).all(|value| count(CountedBy::Text(value))),
        };
        if !passes {
            return Verdict::Denied(DeniedBy::Concurrency);
        }
    }
    Verdict::Admitted
}

/// Answers the question of a page of another origin what it may do.
fn answer_preflight(proxy: &mut Proxy, cx: &mut Context, exchange: Key, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if x.routed.cors == Cors::Refused {
        proxy.counters.count(Count::PreflightsRefused);
        x.routed.denied = Some(DeniedBy::Origin);
        return refuse(proxy, cx, exchange, 403);
    }
    proxy.counters.count(Count::Preflights);
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
