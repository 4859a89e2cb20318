//! Executes exchanges: begins them, answers for the gateway itself, and does what the state machine says
//! (`sealane-exchange`), whatever versions of HTTP the sides speak.
//!
//! `request` and `response` report what the streams say; [`perform`] does what follows.
//!
//! | what happens | before the response's head has left | after |
//! |---|---|---|
//! | client is gone or breaks its body | upstream's connection closed; 400, 413, 408 where there is somebody to read it | both closed |
//! | upstream cannot be reached | next server, then 502 or 504 | |
//! | upstream closes or breaks its message | once more, where that is safe; else 502 | client's connection cut, so that the message cannot look whole |
//! | upstream is silent | 504 | client's connection cut |
//! | response ends before the request's body | response sent, then both closed (the client's lingering) | |

use crate::Failure;
use crate::accept::admission::Admission;
use crate::access::{Verdict, is_address_in_doubt, judge, turn_away};
use crate::client::identity::Client;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::authorize::restore_request;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::expiry::look_soon;
use crate::exchange::forwarded;
use crate::exchange::redirection::send_redirect;
use crate::exchange::response_headers::add_response_headers;
use crate::exchange::retries::{answer_retry, budget_allows};
use crate::exchange::routed::{DeniedBy, Routed, Served};
use crate::exchange::routing::route_request;
use crate::exchange::streams::{
    ClientStream, Later, UpstreamStream, client_close_after, client_data, client_detach, client_end, client_finish,
    client_head, client_is_handshaking, client_reset, nothing_more_is_read, server_end, server_finish, server_reset,
};
use crate::exchange::{Ending, Exchange};
use crate::forwarding::{Forwarding, choose_upstream, watch_total};
use crate::lane_state::LaneListener;
use crate::latency;
use crate::memory::Held;
use crate::mirrors::{copy_request, mirror_finished};
use crate::records::CLIENT_LEFT;
use crate::relay::{half_close, relay_done};
use crate::renewal::rules_hold;
use crate::request_ids::mark_request;
use crate::rules::{RouteRef, Unprepared};
use crate::service::{Proxy, log_exchange};
use crate::settings::LaneSettings;
use crate::snapshot::Action;
use crate::templates::Origin;
use crate::traces;
use crate::upstream::connection::dispatch_request;
use sealane_exchange::deadlines::LINGER;
use sealane_exchange::{Action as Do, Actions, Event, Phase, Switching};
use sealane_http::{BodyLength, Known, Method, ParseError};
use sealane_lane::{Context, Key};
use sealane_route::Decision;
use sealane_sys::probes;
use std::rc::Rc;

/// A request's head is whole: decides what is done with it.
pub(crate) fn begin_request(proxy: &mut Proxy, cx: &mut Context, exchange: Key, expects: bool) {
    // A request that arrives after a reload waits until this lane uses the new snapshot.
    if proxy.settings.are_outdated() {
        return proxy.exchanges.go_on_later(Later::Begin(exchange, expects));
    }
    let Some(client_stream) = proxy.exchanges.get(exchange).map(|x| x.client_stream) else { return };
    if !proxy.connections.is_current(client_stream.conn())
        && !rules_hold(&mut proxy.connections, &proxy.settings, client_stream.conn())
    {
        proxy.counters.count(Count::Misdirected);
        return refuse(proxy, cx, exchange, 421);
    }
    let Proxy { connections, exchanges, scratch, .. } = proxy;
    let Some(x) = exchanges.get_mut(exchange) else { return };
    let Some(client) = connections.client_of(x.client_stream) else { return };
    probes::exchange_begin(|| Some((client.id().to_u64(), x.number.into())));
    let listener = client.listener().clone();
    // A stranger could send early data from the address of a proxy, whose word would be taken.
    if x.machine.is_early()
        && is_address_in_doubt(connections, x)
        && listener.listener.trusted_proxies.contains(client.peer().ip())
    {
        return turn_away(proxy, cx, exchange, Verdict::TooEarly, expects);
    }
    if forwarded::receive(x, client, scratch.text()).is_err() {
        return refuse(proxy, cx, exchange, 431);
    }
    if proxy.settings.lane().marks_requests
        && mark_request(x, client, &proxy.settings, proxy.log.request_ids(), &proxy.counters).is_err()
    {
        return refuse(proxy, cx, exchange, 431);
    }
    if let Some(rule) = listener.listener.access {
        let verdict = judge(connections, x, client, &listener, &[rule]);
        if verdict != Verdict::Admitted {
            return turn_away(proxy, cx, exchange, verdict, expects);
        }
    }
    // Before the host's rules: a redirect to HTTPS must not meet a check that comes here by definition.
    if listener.listener.tls.is_none()
        && x.request.method() == Method::Get
        && let Some(answer) = proxy.settings.snapshot().challenges.http(x.request.host_name(), x.request.path())
    {
        proxy.counters.count(Count::ChallengesHttp);
        let body = answer.key_authorization.clone().into_bytes();
        return respond(proxy, cx, exchange, 200, b"application/octet-stream", &body, expects);
    }
    let decision = listener.listener.sites.decide(client.policy(), x.request.host_name());
    if decision == Decision::Misdirected {
        // RFC 9110 §15.5.20: this name has other rules, and they have not been applied to this connection.
        proxy.counters.count(Count::Misdirected);
        return refuse(proxy, cx, exchange, 421);
    }
    let host = if let Decision::Host(host) = decision { Some(host) } else { None };
    x.routed.host = host.map(|host| (listener.clone(), host));
    let refused = match x.request.method() {
        Method::Connect if !listener.listener.allow_connect => Some(Count::ConnectsRefused),
        // RFC 9110 §9.3.8: a page that makes a browser send TRACE would see what the browser has added.
        Method::Trace if !listener.listener.allow_trace => Some(Count::TracesRefused),
        _ => None,
    };
    if let Some(count) = refused {
        proxy.counters.count(count);
        return refuse(proxy, cx, exchange, 405);
    }
    let action = host.and_then(|host| listener.listener.actions.get(host));
    // Where there are routes, the limit and the checks of the selected route apply: see `route_request`.
    let is_routed = matches!(action, Some(Action::Routes(_)));
    if !is_routed && x.announces_too_much() {
        return refuse_body(proxy, cx, exchange);
    }
    let actions = x.machine.on(Event::Accepted);
    if actions.has(Do::Respond) {
        return respond_too_early(proxy, cx, exchange, actions, expects);
    }
    if host.is_none() {
        return refuse(proxy, cx, exchange, 404);
    }
    let Some(action) = action else { return refuse(proxy, cx, exchange, 500) };
    // `allow`, `deny` and `maintenance` of a route come before the request is counted.
    if !is_routed {
        let verdict = takes_place(connections, x, client, &listener, &proxy.admission, &proxy.settings);
        if verdict != Verdict::Admitted {
            return turn_away(proxy, cx, exchange, verdict, expects);
        }
    }
    run_action(proxy, cx, exchange, &listener, action, expects);
}

/// Counts a request among those that its client has under way (`max_requests_per_client`), unless these are too many.
#[inline]
pub(crate) fn takes_place(
    connections: &Connections,
    x: &mut Exchange,
    client: &Client,
    listener: &LaneListener,
    admission: &Admission,
    settings: &LaneSettings,
) -> Verdict {
    if settings.limits().max_requests_per_client == 0 || x.routed.counted.is_some() {
        return Verdict::Admitted;
    }
    count_place(connections, x, client, listener, admission, settings)
}

#[inline(never)]
fn count_place(
    connections: &Connections,
    x: &mut Exchange,
    client: &Client,
    listener: &LaneListener,
    admission: &Admission,
    settings: &LaneSettings,
) -> Verdict {
    if is_address_in_doubt(connections, x) {
        return Verdict::TooEarly;
    }
    if is_of_many(x, client, listener) {
        return Verdict::Admitted;
    }
    x.routed.counted = admission.count_request(x.client_ip(client), settings);
    if x.routed.counted.is_some() { Verdict::Admitted } else { Verdict::Denied(DeniedBy::Limit) }
}

/// Whether a request comes from a trusted proxy that names nobody: it brings the requests of many clients.
pub(crate) fn is_of_many(x: &Exchange, client: &Client, listener: &LaneListener) -> bool {
    x.told().is_none() && (client.is_unnamed() || listener.listener.trusted_proxies.contains(client.peer().ip()))
}

/// Answers a request that is one too many of those under way.
pub(crate) fn refuse_over_limit(proxy: &mut Proxy, cx: &mut Context, exchange: Key, by: DeniedBy, expects: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.routed.deny_for(by, 1);
    proxy.counters.count(Count::RequestsLimited);
    respond_error(proxy, cx, exchange, 429, expects);
}

/// Does what is to be done with a request.
pub(crate) fn run_action(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    listener: &Rc<LaneListener>,
    action: &Action,
    expects: bool,
) {
    match action {
        Action::Respond { status, content_type, body } => {
            respond(proxy, cx, exchange, *status, content_type.as_bytes(), body, expects);
        }
        Action::Redirect(redirect) => {
            let Some(client_stream) = proxy.exchanges.get(exchange).map(|x| x.client_stream) else { return };
            let secure = proxy.connections.client_of(client_stream).is_some_and(Client::is_secure);
            send_redirect(proxy, cx, exchange, redirect, secure, 0, expects);
        }
        Action::Routes(table) => route_request(proxy, cx, exchange, listener, table, expects),
        // A table is an action of routes alone.
        Action::RedirectTable { .. } => refuse(proxy, cx, exchange, 500),
        // RFC 9110 §15.5.20: connections for this name are not for us to read; this one came for another.
        Action::Passthrough { .. } => refuse(proxy, cx, exchange, 421),
        Action::Proxy { upstream } => forward(proxy, cx, exchange, listener, *upstream, None),
        Action::Forward(by) => forward_by(proxy, cx, exchange, listener, by),
    }
}

/// Forwards a request by the rules of its route.
#[inline(never)]
fn forward_by(proxy: &mut Proxy, cx: &mut Context, exchange: Key, listener: &Rc<LaneListener>, by: &Forwarding) {
    let Some(upstream) = choose_upstream(proxy, exchange, by) else { return refuse(proxy, cx, exchange, 500) };
    watch_total(proxy, cx, exchange);
    forward(proxy, cx, exchange, listener, upstream, Some(by));
}

/// Prepares a request for an upstream group, and sends it there.
#[inline(always)]
fn forward(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    listener: &Rc<LaneListener>,
    upstream: usize,
    by: Option<&Forwarding>,
) {
    let Proxy { connections, exchanges, scratch, .. } = proxy;
    let Some(x) = exchanges.get_mut(exchange) else { return };
    let Some(client) = connections.client_of(x.client_stream) else { return };
    let Some(upstream) = listener.upstreams.get(upstream) else {
        return refuse(proxy, cx, exchange, 500);
    };
    if x.machine.asks_upgrade() && !may_pass_upgrade(x, &proxy.counters) {
        return refuse(proxy, cx, exchange, 501);
    }
    if forwarded::comes_round(&x.request.fields) {
        return refuse_loop(proxy, cx, exchange);
    }
    let is_copy = forwarded::is_copy(&x.request.fields);
    let early = x.machine.is_early();
    x.trace.note_routed(cx.micros());
    Routed::preference(x, upstream, x.client_ip(client));
    if forwarded::prepare(x, client, early, scratch.text()).is_err() {
        return refuse(proxy, cx, exchange, 431);
    }
    let stream = x.client_stream;
    if let Some(route) = &x.routed.route
        && let Err(why) = route.prepare(
            &mut x.request,
            &Origin { connections: &*connections, stream, client, claims: &x.claims },
            scratch.text(),
        )
    {
        return match why {
            Unprepared::Fields => refuse(proxy, cx, exchange, 500),
            Unprepared::Path => {
                proxy.counters.count(Count::BadPaths);
                x.routed.deny(DeniedBy::Path);
                refuse(proxy, cx, exchange, 400);
            }
        };
    }
    // A route may have removed `Via`. Without the mark, copies would be made of this copy when it comes back.
    if is_copy && !forwarded::is_copy(&x.request.fields) && forwarded::mark_copy(&mut x.request.fields).is_err() {
        return refuse(proxy, cx, exchange, 431);
    }
    let x = match by.and_then(|by| by.mirror.as_ref()) {
        None => x,
        Some(mirror) => {
            copy_request(proxy, cx, exchange, listener, mirror);
            let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
            x
        }
    };
    if let Some(host) = &upstream.settings().host_header
        && x.request.set_authority(host.as_bytes()).is_err()
    {
        return refuse(proxy, cx, exchange, 500);
    }
    x.upstream = Some(upstream.clone());
    let actions = x.machine.on(Event::Forward);
    perform(proxy, cx, exchange, actions);
}

/// Whether a request that asks for another protocol goes to an upstream. On a route with `upgrade = false`, a request with `Upgrade` goes
/// there without it, and an extended CONNECT does not.
#[inline(never)]
fn may_pass_upgrade(x: &mut Exchange, counters: &Counters) -> bool {
    if x.routed.route().and_then(RouteRef::route).is_none_or(|route| route.upgrade) {
        return true;
    }
    counters.count(Count::UpgradesDenied);
    let is_request = x.machine.ignore_upgrade();
    if !is_request {
        x.routed.deny(DeniedBy::Upgrade);
    }
    is_request
}

/// A connection can take the request's head. What the adapter is to do: send the head and pass the actions to
/// [`request_sent`], or wait for the server's SETTINGS. `None`: the request does not go over this connection.
pub(crate) fn connected(proxy: &mut Proxy, cx: &mut Context, exchange: Key, switching: Switching) -> Option<Actions> {
    let x = proxy.exchanges.get_mut(exchange)?;
    let actions = x.machine.on(Event::Connected(switching));
    if actions.has(Do::SendHead) || actions.has(Do::AwaitSettings) {
        return Some(actions);
    }
    if !actions.is_empty() {
        // Nothing was sent, so the connection stays as it is.
        x.upstream_stream = None;
        x.routed.failure = Some(Failure::NoExtendedConnect);
        proxy.counters.count(Count::UpstreamAborts);
    }
    perform(proxy, cx, exchange, actions);
    None
}

/// A server has taken the request's head and now takes its body: does the other actions that came with
/// [`Do::SendHead`].
pub(crate) fn request_sent(proxy: &mut Proxy, cx: &mut Context, exchange: Key, side: UpstreamStream, actions: Actions) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.upstream_stream = Some(side);
    x.times.sent = cx.micros();
    x.response_body.progress.begin(cx.now());
    perform(proxy, cx, exchange, actions.without(Do::SendHead));
    look_soon(&mut proxy.connections, &proxy.exchanges, &proxy.settings, cx, exchange);
}

/// Does what the state machine says.
#[inline(always)]
pub(crate) fn perform(proxy: &mut Proxy, cx: &mut Context, exchange: Key, actions: Actions) {
    if !actions.is_empty() {
        perform_some(proxy, cx, exchange, actions);
    }
}

#[inline(never)]
fn perform_some(proxy: &mut Proxy, cx: &mut Context, exchange: Key, actions: Actions) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let client_stream = x.client_stream;
    let others = [
        Do::SendHead,
        Do::AwaitSettings,
        Do::ForwardInterim,
        Do::ForwardHead,
        Do::RejectResponse,
        Do::Admit,
        Do::AskRetry,
    ];
    debug_assert!(
        !others.iter().any(|a| actions.has(*a)),
        "the caller that reported the event does these: {actions:?}"
    );
    if actions.has(Do::ResetUpstream) {
        x.routed.release();
        if let Some(upstream_stream) = x.upstream_stream.take() {
            server_reset(proxy, cx, upstream_stream);
        }
    }
    if actions.has(Do::Respond) {
        send_error(proxy, cx, exchange, actions.status());
    }
    if actions.has(Do::ResumeRequest)
        && let Some(x) = proxy.exchanges.get_mut(exchange)
    {
        x.request_body.begin(cx.now());
        proxy.exchanges.go_on_later(Later::Client(exchange));
    }
    if actions.has(Do::ResumeResponse) {
        proxy.exchanges.go_on_later(Later::Server(exchange));
    }
    if actions.has(Do::EndRequest)
        && let Some(upstream_stream) = proxy.exchanges.get(exchange).and_then(|x| x.upstream_stream)
    {
        server_end(&mut proxy.connections, &proxy.exchanges, exchange, upstream_stream);
    }
    if actions.has(Do::EndResponse) {
        if actions.has(Do::Finish) {
            client_end(&mut proxy.connections, &proxy.exchanges, exchange, client_stream);
        } else {
            half_close(&mut proxy.connections, &proxy.exchanges, exchange, client_stream);
        }
    }
    if actions.has(Do::SelectServer) {
        dispatch_request(proxy, cx, exchange);
    }
    if actions.has(Do::AwaitHandshake) {
        await_handshake(proxy, cx, exchange, client_stream);
    }
    if actions.has(Do::StartDraining) {
        start_draining(proxy, cx, exchange);
    }
    if actions.has(Do::Finish) {
        finish_exchange(proxy, cx, exchange, actions);
    }
}

/// A request that an upstream found too early goes again when the client's handshake is over.
fn await_handshake(proxy: &mut Proxy, cx: &mut Context, exchange: Key, client_stream: ClientStream) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.response_body.progress.begin(cx.now());
    if !client_is_handshaking(&proxy.connections, client_stream) {
        handshake_done(proxy, cx, exchange);
    }
}

/// The handshake is over: a request that was sent too early may go again.
pub(crate) fn handshake_done(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let actions = x.machine.on(Event::HandshakeDone);
    if actions.is_empty() {
        return;
    }
    x.request.fields.remove(Known::EarlyData);
    let granted = budget_allows(x, &proxy.counters, cx);
    let actions = answer_retry(x, &proxy.counters, granted);
    perform(proxy, cx, exchange, actions);
}

/// Answers with an error of ours and closes, or, if an answer is under way already, cuts the connection.
pub(crate) fn refuse(proxy: &mut Proxy, cx: &mut Context, exchange: Key, status: u16) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if x.machine.is_relay() && !x.machine.is_answered() {
        // It cannot be told to the client; this is for the log.
        x.status = status;
    }
    let actions = x.machine.on(Event::Refuse { status });
    perform(proxy, cx, exchange, actions);
}

/// Refuses a request whose body is larger than `max_body_size`.
pub(crate) fn refuse_body(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    // The response may have begun, and then says nothing of it.
    x.routed.deny(DeniedBy::BodySize);
    proxy.counters.count(Count::BodiesTooLarge);
    refuse(proxy, cx, exchange, 413);
}

/// Refuses a request that the gateway has forwarded to itself too often.
#[cold]
pub(crate) fn refuse_loop(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.routed.deny(DeniedBy::Loop);
    proxy.counters.count(Count::Loops);
    refuse(proxy, cx, exchange, 508);
}

/// Refuses a request for an error in its head. A head that was read whole names the host, which adds to the response.
pub(crate) fn refuse_head(proxy: &mut Proxy, cx: &mut Context, exchange: Key, error: ParseError) {
    proxy.counters.parse_error(error);
    note_malformed(proxy, exchange, error);
    if error.leaves_head() {
        find_host(proxy, exchange);
    }
    refuse(proxy, cx, exchange, error.status());
}

/// A request that breaks the rules of HTTP is refused.
pub(crate) fn note_malformed(proxy: &mut Proxy, exchange: Key, error: ParseError) {
    if let (400, Some(x)) = (error.status(), proxy.exchanges.get_mut(exchange)) {
        x.routed.deny(DeniedBy::Malformed);
    }
}

/// Notes the host of a request that will be refused, if the client may have a response of this host.
fn find_host(proxy: &mut Proxy, exchange: Key) {
    let Some(x) = proxy.exchanges.get(exchange) else { return };
    if !rules_hold(&mut proxy.connections, &proxy.settings, x.client_stream.conn()) {
        return;
    }
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let Some(client) = proxy.connections.client_of(x.client_stream) else { return };
    let listener = client.listener().clone();
    if let Some(rule) = listener.listener.access
        && judge(&proxy.connections, x, client, &listener, &[rule]) != Verdict::Admitted
    {
        return;
    }
    if let Decision::Host(host) = listener.listener.sites.decide(client.policy(), x.request.host_name()) {
        x.routed.host = Some((listener, host));
    }
}

/// Sends an error's response.
fn send_error(proxy: &mut Proxy, cx: &mut Context, exchange: Key, status: u16) {
    let Some(x) = proxy.exchanges.get(exchange) else { return };
    let replaced = x.routed.served == Some(Served::ReplacedPage);
    let close = !matches!(status, 403 | 404 | 405 | 421 | 425 | 502 | 503 | 504 | 508) && !replaced
        || x.machine.request() != Phase::Complete;
    send_error_text(proxy, cx, exchange, status, close);
}

/// Answers a request that came too early, if the state machine says so: what is wrong with it says nothing about its framing.
pub(crate) fn respond_too_early(proxy: &mut Proxy, cx: &mut Context, exchange: Key, actions: Actions, expects: bool) {
    if actions.has(Do::Respond) {
        proxy.counters.count(Count::TooEarly);
        send_error_text(proxy, cx, exchange, actions.status(), expects);
    }
    perform(proxy, cx, exchange, actions.without(Do::Respond));
}

/// Sends the text or the page of an error.
fn send_error_text(proxy: &mut Proxy, cx: &mut Context, exchange: Key, status: u16, close: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.routed.refuse(&x.request);
    if status == 425 {
        x.routed.deny(DeniedBy::EarlyData);
    }
    let of_upstream = x.routed.served == Some(Served::ReplacedPage);
    if let Some((listener, page, status)) = x.routed.page(status, of_upstream)
        && let Some(page) = listener.routing.pages.get(page)
    {
        if x.routed.served.is_none() {
            x.routed.served = Some(Served::ErrorPage);
            proxy.counters.count(Count::ErrorPages);
        }
        return send_response(proxy, cx, exchange, status, page.content_type.as_bytes(), &page.body, close);
    }
    let phrase = sealane_http::message::reason_phrase(status);
    let why = x.routed.failure.filter(|_| status == 502).and_then(Failure::told);
    let body = match why {
        Some(why) => format!("502 {phrase}: {why}\n"),
        None => format!("{status} {phrase}\n"),
    };
    send_response(proxy, cx, exchange, status, b"text/plain", body.as_bytes(), close);
}

/// Answers with an error that says nothing about the request's framing: `close` as the request wants it.
pub(crate) fn respond_error(proxy: &mut Proxy, cx: &mut Context, exchange: Key, status: u16, close: bool) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let actions = x.machine.on(Event::Answer { status });
    if actions.has(Do::Respond) {
        send_error_text(proxy, cx, exchange, status, close);
    }
    perform(proxy, cx, exchange, actions.without(Do::Respond));
}

/// Answers from here.
pub(crate) fn respond(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    status: u16,
    content_type: &[u8],
    body: &[u8],
    close: bool,
) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let actions = x.machine.on(Event::Answer { status });
    if actions.has(Do::Respond) {
        send_response(proxy, cx, exchange, status, content_type, body, close);
    }
    perform(proxy, cx, exchange, actions.without(Do::Respond));
}

/// Sends a response of the gateway's own.
fn send_response(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    status: u16,
    content_type: &[u8],
    body: &[u8],
    close: bool,
) {
    let Proxy { connections, exchanges, log, .. } = proxy;
    let Some(x) = exchanges.get_mut(exchange) else { return };
    let client_stream = x.client_stream;
    if x.is_question() && restore_request(x).is_some() {
        // Nobody has said that it may pass.
        x.routed.denied.get_or_insert(DeniedBy::Server);
        proxy.counters.count(Count::NotAuthorized);
    }
    if close {
        client_close_after(connections, client_stream);
    }
    x.response.clear();
    x.response.status = status;
    let head_only = x.request.method() == Method::Head;
    // None of these can be refused: they are ours, and few.
    let _ = x.response.fields.push_known(Known::Date, log.clock().http());
    let empty = matches!(status, 204 | 304);
    if !empty {
        let _ = x.response.fields.push_known(Known::ContentType, content_type);
    }
    if status == 405 {
        let _ = x.response.fields.push(b"Allow", b"GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH");
    }
    let length = match () {
        () if empty => BodyLength::None,
        () if head_only => {
            let _ = x.response.fields.push_known(Known::ContentLength, body.len().to_string().as_bytes());
            BodyLength::None
        }
        () => BodyLength::Known(body.len() as u64),
    };
    if x.routed.adds_headers {
        // What the gateway says itself is short, and stays as it is.
        let _ = add_response_headers(connections, x, &proxy.settings, cx.micros(), true);
    }
    client_head(proxy, exchange, client_stream, length, false);
    if !matches!(length, BodyLength::None | BodyLength::Known(0)) {
        client_data(&mut proxy.connections, &mut proxy.scratch, cx, client_stream, length, body, true);
    }
    client_end(&mut proxy.connections, &proxy.exchanges, exchange, client_stream);
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if !matches!(length, BodyLength::None) {
        x.response_body.bytes = body.len() as u64;
    }
    x.times.headed = cx.micros();
    x.status = status;
}

/// The client has its response and is still sending: it is read for a while, since many clients take the reset of a
/// stream for the loss of the response that came before it.
fn start_draining(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let now = cx.now();
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let client_stream = x.client_stream;
    x.request_body.begin(now);
    let is_over = match client_stream {
        // The connection lingers as a whole, unless it goes on behind the rest of this request.
        ClientStream::H1(key) => proxy.connections.client(key).is_none_or(|c| !c.is_kept_alive()),
        // Nobody waits for it.
        ClientStream::Mirror(_) => true,
        ClientStream::H2(..) => false,
        // All that is to be read of it may have been.
        ClientStream::H3(..) => nothing_more_is_read(&proxy.connections, client_stream),
    };
    if is_over {
        return drain_is_over(proxy, cx, exchange);
    }
    x.drains_since = Some(now);
    proxy.connections.look_by(cx, client_stream, now + LINGER);
    proxy.exchanges.go_on_later(Later::Client(exchange));
}

/// A client that has its response is read no more: it has been for long enough, or there is nothing to read.
pub(crate) fn drain_is_over(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let actions = x.machine.on(Event::DrainTimeout);
    perform(proxy, cx, exchange, actions);
}

/// The client has gone, or has called its request off, or the lane drains and its time is over. What becomes of the client's
/// connection or stream is the caller's to say. Nothing is aborted where the client has its whole response and the rest of its
/// request is thrown away.
pub(crate) fn abort_exchange(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if x.machine.request() != Phase::Draining {
        proxy.counters.count(if x.ending == Ending::Drain { Count::DrainAborts } else { Count::ClientAborts });
    }
    let actions = x.machine.on(Event::ClientGone);
    perform(proxy, cx, exchange, actions);
}

/// An exchange is over: it is counted and logged, and its connections go on or close.
fn finish_exchange(proxy: &mut Proxy, cx: &mut Context, exchange: Key, actions: Actions) {
    proxy.exchanges.note_held(&mut proxy.connections, exchange, Held::default());
    let Some(mut x) = proxy.exchanges.remove(exchange) else { return };
    for counted in x.routed.counted.take().into_iter().chain(std::mem::take(&mut x.routed.counted_under)) {
        proxy.admission.request_over(counted, &proxy.settings);
    }
    if x.is_question() {
        // Its client has left: it is logged as it came.
        let _ = restore_request(&mut x);
    }
    if let Some(upstream_stream) = x.upstream_stream.take() {
        if actions.has(Do::CloseUpstream) && x.machine.is_relay() {
            relay_done(proxy, cx, upstream_stream);
        } else {
            server_finish(proxy, cx, upstream_stream, actions.has(Do::ReleaseUpstream));
        }
    }
    if let ClientStream::Mirror(key) = x.client_stream {
        return mirror_finished(proxy, x, key);
    }
    let complete = actions.has(Do::FinishClient);
    if complete && x.drains_since().is_none() {
        proxy.connections.note_served(x.client_stream);
    }
    if x.status == 0 {
        x.status = CLIENT_LEFT;
    }
    count_exchange(&proxy.exchanges, &proxy.counters, &x);
    time_exchange(&proxy.settings, cx, &x);
    probes::exchange_end(|| {
        let connection = proxy.connections.client_of(x.client_stream)?.id().to_u64();
        let [first_byte, total] = x.durations(cx.micros());
        Some((connection, x.number.into(), x.status.into(), total.unwrap_or(0), first_byte.unwrap_or(0)))
    });
    log_exchange(&proxy.connections, &mut proxy.log, &proxy.counters, &proxy.settings, cx, &x);
    if x.trace.is_on() && !cfg!(feature = "uninstrumented") {
        traces::finish(&proxy.connections, &proxy.counters, &proxy.settings, cx, &x);
    }
    if actions.has(Do::CutClient) {
        client_reset(proxy, cx, x.client_stream, x.response_body.is_blocked());
    } else if actions.has(Do::DetachClient) {
        client_detach(&mut proxy.connections, &proxy.settings, cx, x.client_stream);
    } else {
        client_finish(&mut proxy.connections, &mut proxy.exchanges, &proxy.settings, cx, &x, complete);
    }
    let was_encoded = x.response_body.encoding.is_some();
    proxy.exchanges.recycle(x);
    if was_encoded {
        proxy.counters.set(Count::CompressorsActive, proxy.exchanges.compressors().active() as u64);
    }
}

/// Records how long a request took.
fn time_exchange(settings: &LaneSettings, cx: &Context, x: &Exchange) {
    if x.machine.is_relay() || cfg!(feature = "uninstrumented") {
        return;
    }
    let place = x.routed.place().unwrap_or(&settings.snapshot().latency.no_host);
    let [first_byte, total] = x.durations(cx.micros());
    latency::record(place, settings.slot(), x.request.version, x.status, first_byte, total);
}

fn count_exchange(exchanges: &Exchanges, counters: &Counters, x: &Exchange) {
    let c = counters;
    if x.machine.is_relay() {
        c.add(Count::RelayedUp, x.request_body.bytes);
        c.add(Count::RelayedDown, x.response_body.bytes);
    } else {
        c.status(x.status);
        c.add(Count::RequestBytes, x.request_body.bytes);
        c.add(Count::ResponseBytes, x.response_body.bytes());
        if let Some(encoding) = &x.response_body.encoding {
            c.add(Count::CompressionBytesIn, encoding.taken());
            c.add(Count::CompressionBytesOut, encoding.passed());
        }
    }
    if x.is_upgraded {
        c.fall(Count::UpgradedOpen);
    }
    c.set(Count::Active, exchanges.len() as u64);
}
