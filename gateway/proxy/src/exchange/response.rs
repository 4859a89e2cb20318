//! The response's way down: what a server's side tells of it, and what that means for the client's.

use crate::Failure;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::authorize::{admit, restore_request};
use crate::exchange::encoding::{self, begin_encoding};
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{perform, refuse};
use crate::exchange::response_headers::{add_response_headers, clean_interim};
use crate::exchange::retries::{account_for_loss, answer_retry, retry_is_granted};
use crate::exchange::routed::DeniedBy;
use crate::exchange::streams::{
    ClientStream, client_close_after, client_credit, client_data, client_head, client_interim, server_reset,
};
use crate::exchange::websocket;
use crate::latency::{TRANSFER, WAIT};
use crate::memory::read_within_budget;
use crate::request_ids::clean_of_id;
use crate::scratch::{HEAD_READ, READ_SIZE};
use crate::service::Proxy;
use crate::upstream::early::early_refused;
use rustix::io::Errno;
use sealane_exchange::{Action as Do, Actions, Direction, Event, Head, Loss, Phase};
use sealane_http::{BodyLength, Known, ParseError};
use sealane_lane::{Context, Key};

/// A response's head has come into the exchange: an interim one (1xx) or the final one, whose body is of this
/// length. `upgrade`: what follows is no HTTP. False if the server's side is not to be read on.
pub(crate) fn response_arrived(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    body: BodyLength,
    upgrade: bool,
) -> bool {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return false };
    let (status, client_stream) = (x.response.status, x.client_stream);
    if (100..200).contains(&status) && !upgrade {
        let actions = x.machine.on(Event::Interim);
        if actions.has(Do::RejectResponse) {
            x.routed.hint = Some(Failure::TooManyInterim);
            server_lost(proxy, cx, exchange, Loss::Broken);
            return false;
        }
        if !actions.has(Do::ForwardInterim) || matches!(client_stream, ClientStream::Mirror(_)) {
            return true;
        }
        if x.routed.adds_headers {
            clean_interim(x, &proxy.settings);
        }
        proxy.counters.status(status);
        client_interim(&mut proxy.connections, &proxy.exchanges, &mut proxy.scratch, exchange, client_stream);
        return true;
    }
    if (500..600).contains(&status) && x.question.is_none() && x.routed.page(status, true).is_some() {
        replace_response(proxy, cx, exchange, status);
        return false;
    }
    let confirms = !upgrade || !websocket::is_confirmation_due(x) || websocket::is_answered(x);
    let actions = x.machine.on(Event::Head(Head { status, switches: upgrade, confirms }));
    if actions.has(Do::RejectResponse) {
        x.routed.hint = Some(if x.machine.asks_server_to_switch() { Failure::NoWebSocket } else { Failure::Unasked });
        server_lost(proxy, cx, exchange, Loss::Broken);
        return false;
    }
    if actions.has(Do::Admit) {
        if let Some(upstream) = &x.upstream {
            upstream.record(proxy.settings.slot(), WAIT, cx.micros().saturating_sub(x.times.sent));
        }
        admit(proxy, cx, exchange, body);
        return false;
    }
    if status == 425 && x.machine.was_sent_early() {
        early_refused(x, &proxy.counters, cx.now());
    }
    if !actions.has(Do::ForwardHead) {
        // RFC 8470 §5.2: it was too early, and goes again once the handshake is over.
        perform(proxy, cx, exchange, actions);
        return false;
    }
    x.routed.succeeded();
    if x.is_question() && restore_request(x).is_some() {
        x.routed.denied = Some(DeniedBy::Server);
        proxy.counters.count(Count::NotAdmitted);
    }
    x.times.headed = cx.micros();
    if let Some(upstream) = &x.upstream {
        upstream.record(proxy.settings.slot(), WAIT, x.times.headed.saturating_sub(x.times.sent));
    }
    let mut body = body;
    if x.routed.adds_headers && add_response_headers(&proxy.connections, x, &proxy.settings, cx.micros(), false) {
        body = begin_encoding(proxy, exchange, body, upgrade);
    }
    client_head(proxy, exchange, client_stream, body, upgrade);
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return false };
    x.status = status;
    x.response_body.progress.begin(cx.now());
    if x.machine.is_tunnel() {
        proxy.counters.count(Count::Tunnels);
        x.note_upgraded(&proxy.counters);
        client_close_after(&mut proxy.connections, client_stream);
    }
    perform(proxy, cx, exchange, actions.without(Do::ForwardHead));
    true
}

/// An error page takes the place of a server's response. What the server still sends is not read.
fn replace_response(proxy: &mut Proxy, cx: &mut Context, exchange: Key, status: u16) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    x.routed.succeeded();
    if let Some(upstream) = &x.upstream {
        upstream.record(proxy.settings.slot(), WAIT, cx.micros().saturating_sub(x.times.sent));
    }
    let retry_after = x.response.fields.get(Known::RetryAfter).and_then(|value| std::str::from_utf8(value).ok());
    x.routed.replace(retry_after.and_then(|seconds| seconds.parse().ok()));
    proxy.counters.count(Count::ErrorPagesForUpstreams);
    refuse(proxy, cx, exchange, status);
}

/// How many of `want` bytes of the response's body can be taken now. 0: none, and the source is resumed when that
/// changes. `None` if there is no such exchange any more.
#[inline]
pub(crate) fn response_room(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    cx: &Context,
    exchange: Key,
    want: usize,
) -> Option<usize> {
    let x = exchanges.get(exchange)?;
    let client_stream = x.client_stream;
    if x.response_body.encoding.is_some() {
        return encoding::room(connections, exchanges, cx, exchange, want);
    }
    let room = client_credit(connections, client_stream, want);
    if room == 0 {
        exchanges.get_mut(exchange)?.response_body.block(cx.now());
    }
    Some(room)
}

/// How many bytes of the response to read at once. 0: none now, and the source is resumed when that changes.
pub(crate) fn response_read_size(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    cx: &Context,
    exchange: Key,
) -> usize {
    let Some(x) = exchanges.get_mut(exchange) else { return 0 };
    match (x.machine.response(), x.client_stream) {
        (Phase::Streaming, ClientStream::H1(_)) => {
            response_room(connections, exchanges, cx, exchange, READ_SIZE).unwrap_or(0)
        }
        (_, ClientStream::H1(_)) => HEAD_READ,
        (Phase::Streaming, client_stream @ ClientStream::H3(..)) => {
            let room = response_room(connections, exchanges, cx, exchange, READ_SIZE).unwrap_or(0);
            read_within_budget(connections, client_stream, room)
        }
        (phase, client_stream) => {
            let size = if phase == Phase::Streaming { x.response_body.next_read() } else { HEAD_READ };
            read_within_budget(connections, client_stream, size)
        }
    }
}

/// A piece of the response's body, no larger than the room that there was. False if the exchange is over.
pub(crate) fn response_data(proxy: &mut Proxy, cx: &mut Context, exchange: Key, data: &[u8], last: bool) -> bool {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return false };
    x.response_body.bytes += data.len() as u64;
    x.response_body.progress.note(cx.now());
    let (client_stream, framing) = (x.client_stream, x.response_body.framing);
    if x.response_body.encoding.is_some() {
        if !encoding::encode(proxy, cx, exchange, data) {
            return false;
        }
    } else {
        client_data(&mut proxy.connections, &mut proxy.scratch, cx, client_stream, framing, data, last);
    }
    if last {
        response_end(proxy, cx, exchange);
        return false;
    }
    true
}

/// The response has come whole; its trailers, if any, are in the flow. Of a tunnel: the server has ended it.
pub(crate) fn response_end(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    // A relay has no head. How long a connection of another protocol is open says nothing about how fast the server is.
    if let Some(upstream) = x.upstream.as_ref().filter(|_| x.times.headed > 0 && !x.machine.is_tunnel()) {
        upstream.record(proxy.settings.slot(), TRANSFER, cx.micros().saturating_sub(x.times.headed));
    }
    if let (false, Some(route)) = (x.response_body.trailers.is_empty(), &x.routed.route) {
        if let Some(route) = route.route() {
            route.responses.clean_trailers(&mut x.response_body.trailers);
        }
        clean_of_id(&mut x.response_body.trailers, &proxy.settings);
    }
    if x.response_body.encoding.is_some() && !encoding::finish(proxy, cx, exchange) {
        return;
    }
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if x.machine.request() != Phase::Complete {
        // Over HTTP/1.1 what follows the response cannot be told from the rest of this request.
        client_close_after(&mut proxy.connections, x.client_stream);
    }
    let actions = x.machine.on(Event::Ended(Direction::Response));
    perform(proxy, cx, exchange, actions);
}

/// The response breaks the rules of its version.
pub(crate) fn response_broken(proxy: &mut Proxy, cx: &mut Context, exchange: Key, error: ParseError) {
    proxy.counters.parse_error(error);
    if let Some(x) = proxy.exchanges.get_mut(exchange) {
        x.routed.hint = Some(Failure::Nonsense(error));
    }
    server_lost(proxy, cx, exchange, Loss::Broken);
}

/// A server's side is given up: the request goes elsewhere, or is answered with an error, or what was sent of the
/// answer is cut off.
pub(crate) fn server_lost(proxy: &mut Proxy, cx: &mut Context, exchange: Key, why: Loss) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    if let Some(upstream_stream) = x.upstream_stream.take() {
        server_reset(proxy, cx, upstream_stream);
    }
    let actions = try_lost(proxy, cx, exchange, why);
    perform(proxy, cx, exchange, actions);
}

/// A try has ended without a whole answer: accounts for it, and asks for the retry if the state machine wants one. What is to
/// be done then; the server's side itself has been given up already.
fn try_lost(proxy: &mut Proxy, cx: &mut Context, exchange: Key, why: Loss) -> Actions {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return Actions::NONE };
    let why = x.machine.loss(why);
    let mut actions = x.machine.on(Event::Lost(why));
    if actions.is_empty() {
        return actions;
    }
    account_for_loss(x, why, !actions.has(Do::CutClient));
    match why {
        Loss::Unreachable | Loss::ConnectTimeout => proxy.counters.count(Count::UpstreamConnectFailures),
        Loss::Exhausted => proxy.counters.count(Count::UpstreamLocalErrors),
        _ => {}
    }
    if actions.has(Do::AskRetry) {
        let granted = retry_is_granted(x, &proxy.counters, cx, why);
        actions = answer_retry(x, &proxy.counters, granted);
        if granted {
            return actions;
        }
    }
    if actions.has(Do::CutClient) && x.status == 0 {
        // The client cannot be told; this is for the log and the counters.
        x.status = why.status();
    }
    match why {
        Loss::Unreachable | Loss::ConnectTimeout | Loss::Exhausted => {}
        Loss::Limited => proxy.counters.count(Count::GatewayAborts),
        _ => proxy.counters.count(Count::UpstreamAborts),
    }
    actions
}

/// No server takes the request, for this reason.
pub(crate) fn no_server(proxy: &mut Proxy, cx: &mut Context, exchange: Key, why: Count) {
    proxy.counters.count(why);
    let by = match why {
        Count::QueueFull => DeniedBy::Queue,
        Count::QueueTimeouts => DeniedBy::QueueTimeout,
        _ => DeniedBy::NoServer,
    };
    if let Some(x) = proxy.exchanges.get_mut(exchange) {
        x.routed.deny(by);
    }
    refuse(proxy, cx, exchange, 503);
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

/// A connection that a request waited for does not take it: the request goes on to another connection in the same try, as often as
/// the state machine allows. `useful`: the connection has taken another request, or it has told what the next one will be. One
/// that was made for nothing is a failed try, for this reason: else each would be followed by the next.
pub(crate) fn not_taken(proxy: &mut Proxy, cx: &mut Context, exchange: Key, useful: bool, why: Option<Failure>) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    // The connection stays as it is.
    x.leave_connection();
    let actions = if useful { x.machine.on(Event::NotTaken) } else { Actions::NONE };
    if !actions.has(Do::SelectServer) {
        x.routed.hint = why;
        return server_lost(proxy, cx, exchange, Loss::Unprocessed);
    }
    let (attempts, progress, began) = (x.attempts(), x.response_body.progress, x.routed.try_began());
    perform(proxy, cx, exchange, actions);
    // The time of the try runs on.
    if let Some(x) = proxy.exchanges.get_mut(exchange)
        && x.attempts() == attempts
    {
        x.routed.go_on_with_try(began);
        if !x.machine.has_server() {
            x.response_body.progress = progress;
        }
    }
}
