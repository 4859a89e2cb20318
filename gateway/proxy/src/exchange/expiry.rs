//! Acts on the deadlines of exchanges. `sealane_exchange::deadlines` has the tables that decide; this module asks them and does what
//! follows. The adapters ask for the deadlines of their connections here.
//!
//! A client's connection has one timer, which looks at all of the client's exchanges, whatever they wait for. A timer that
//! is set for the shortest of all limits when a wait may begin misses none of them; from the first look on the times are
//! exact. So a request on a kept connection costs no more than moving a deadline back.

use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::credentials::unchecked;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::{drain_is_over, refuse};
use crate::exchange::response::server_lost;
use crate::exchange::retries::account_for_loss;
use crate::exchange::{Ending, Exchange, GRPC, is_of_type};
use crate::forwarding::RouteLimits;
use crate::mirrors::give_up;
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::snapshot::{ClientLimits, Upstream};
use sealane_exchange::deadlines::{
    BodyLimits, Class, ConnectionLimits, ConnectionWait, Deadline, Direction, LINGER, Limits, Party, Reason, State,
    Wait, deadline, is_used_up_by_server,
};
use sealane_exchange::{Loss, Phase};
use sealane_lane::{Context, Key, Millis};
use std::time::Duration;

/// How often the streams of a shared connection are looked at for their time, at least.
const SWEEP: Millis = 1000;

/// How long until the streams of a shared connection are looked at again, where these time limits hold for them.
pub(crate) fn sweep<const N: usize>(limits: [Duration; N]) -> Millis {
    limits.into_iter().min().map_or(SWEEP, |shortest| (millis(shortest) / 4).clamp(1, SWEEP))
}

#[inline]
fn millis(time: Duration) -> Millis {
    time.as_millis() as Millis
}

impl ClientLimits {
    /// Those of a client's connection.
    #[inline(always)]
    pub fn of_connection(&self) -> ConnectionLimits {
        ConnectionLimits {
            handshake: millis(self.handshake_timeout),
            head: millis(self.header_timeout),
            keepalive: millis(self.keepalive_timeout),
            idle: millis(self.idle_timeout),
            ..ConnectionLimits::default()
        }
    }

    /// When a client's connection has waited for too long that has waited for this since then.
    #[inline(always)]
    pub fn until(&self, wait: ConnectionWait, since: Millis) -> Millis {
        wait.until(since, &self.of_connection())
    }
}

impl Upstream {
    /// The limits of a connection to one of its servers.
    #[inline(always)]
    pub fn of_connection(&self) -> ConnectionLimits {
        let (connect, per_try) = (millis(self.connect_timeout), self.try_timeout.map(millis));
        ConnectionLimits::of_server(connect, per_try, millis(self.keepalive_timeout), millis(self.idle_timeout))
    }

    /// When a request has waited for too long that has waited for room at its servers since then.
    pub fn queued_until(&self, since: Millis) -> Millis {
        since + millis(self.queue_timeout)
    }

    /// When a connection to a server has waited for too long that has waited for this since then.
    #[inline(always)]
    pub fn until(&self, wait: ConnectionWait, since: Millis) -> Millis {
        wait.until(since, &self.of_connection())
    }
}

fn limits(client: &ClientLimits, upstream: Option<&Upstream>) -> Limits {
    let own = BodyLimits { idle: millis(client.idle_timeout), rate: client.min_body_rate };
    let handshake = millis(client.handshake_timeout);
    let mut limits = Limits {
        client: own,
        upstream: own,
        handshake,
        connection: own.idle,
        first_byte: own.idle,
        authorized_until: None,
        queued_until: None,
        try_until: None,
        rest_until: None,
        total_until: None,
        copy_until: None,
    };
    if let Some(upstream) = upstream {
        limits.upstream = BodyLimits { idle: millis(upstream.idle_timeout), rate: upstream.min_body_rate };
        limits.connection = millis(upstream.connect_timeout) + millis(upstream.first_byte_timeout);
        limits.first_byte = millis(upstream.first_byte_timeout);
    }
    limits
}

/// gRPC calls, responses that are streams of events or of gRPC messages, and what is no HTTP.
fn class(x: &Exchange) -> Class {
    let stream = x.machine.is_tunnel()
        || x.is_grpc_call()
        || x.machine.is_answered()
            && (is_of_type(&x.response.fields, b"text/event-stream") || is_of_type(&x.response.fields, GRPC));
    if stream { Class::Stream } else { Class::Message }
}

/// How long until an exchange that begins is looked at.
pub(crate) fn first_look(client: &ClientLimits) -> Millis {
    limits(client, None).shortest()
}

/// [`Limits::shortest`] of an exchange with an upstream, from [`first_look`]: this is asked for each request, which is why it does not
/// put the limits together. A connection may take longer than the first byte.
#[inline]
fn shortest(first_look: Millis, upstream: &Upstream) -> Millis {
    first_look.min(millis(upstream.idle_timeout)).min(millis(upstream.first_byte_timeout))
}

/// A wait for a server may begin: makes sure that its deadline is not missed.
#[inline]
pub(crate) fn look_soon(
    connections: &mut Connections,
    exchanges: &Exchanges,
    settings: &LaneSettings,
    cx: &mut Context,
    exchange: Key,
) {
    let Some(x) = exchanges.get(exchange) else { return };
    let Some(upstream) = &x.upstream else { return };
    let at = cx.now() + shortest(settings.first_look(), upstream.settings());
    let at = x.routed.try_until(upstream).map_or(at, |t| at.min(t));
    let at = x.question.as_ref().map_or(at, |question| at.min(question.until));
    connections.look_by(cx, x.client_stream, at);
}

/// Both directions of an exchange: what they wait for, and how far they have come.
fn directions(x: &mut Exchange) -> [Direction<'_>; 2] {
    let blocked = [x.request_body.is_blocked(), x.response_body.is_blocked()];
    let state = State::of(&x.machine, x.upstream_stream.is_some(), blocked);
    let (request, response) = (&mut x.request_body, &mut x.response_body);
    [(state.request_wait(), request), (state.response_wait(), response)].map(|(wait, flow)| Direction {
        wait,
        bytes: flow.moved(),
        progress: &mut flow.progress,
    })
}

/// The earliest deadline of an exchange, and its limits.
fn next_deadline(
    connections: &Connections,
    settings: &LaneSettings,
    now: Millis,
    x: &mut Exchange,
) -> (Option<Deadline>, Limits) {
    let upstream = x.upstream.as_ref();
    let mut limits = limits(settings.limits(), upstream.map(|u| &**u.settings()));
    limits.queued_until = x.routed.waits_until();
    limits.copy_until = connections.copy_until(x.client_stream);
    limits.try_until = upstream.and_then(|u| x.routed.try_until(u));
    let verified_until = x.verification.map(|verification| verification.until);
    limits.authorized_until = x.question.as_ref().map(|question| question.until).or(verified_until);
    limits.rest_until = x.drains_since().map(|since| since + LINGER);
    if let Some(own) = RouteLimits::of(x) {
        limits.total_until = own.until(x);
        if let Some(rate) = own.rate {
            (limits.client.rate, limits.upstream.rate) = (rate, rate);
        }
    }
    let class = class(x);
    let [request, response] = directions(x);
    (deadline(now, class, &limits, request, response), limits)
}

/// Whether a request that waits for room at the servers of its group has waited for long enough.
pub(crate) fn has_waited_enough(
    connections: &Connections,
    settings: &LaneSettings,
    now: Millis,
    x: &mut Exchange,
) -> bool {
    let (next, _) = next_deadline(connections, settings, now, x);
    next.is_some_and(|next| next.wait == Wait::Queue && next.at <= now)
}

/// Looks at the deadlines of an exchange, and acts on one that has passed. When to look again; `None`: the exchange is
/// over.
pub(crate) fn check_deadlines(proxy: &mut Proxy, cx: &mut Context, exchange: Key) -> Option<Millis> {
    let now = cx.now();
    let Proxy { connections, exchanges, settings, .. } = proxy;
    let (next, limits) = next_deadline(connections, settings, now, exchanges.get_mut(exchange)?);
    let next = match next {
        Some(passed) if passed.at <= now => {
            deadline_passed(proxy, cx, exchange, passed);
            proxy.exchanges.get(exchange)?;
            now + 1
        }
        Some(next) => next.at,
        None => Millis::MAX,
    };
    Some(next.min(now + limits.shortest()))
}

fn deadline_passed(proxy: &mut Proxy, cx: &mut Context, exchange: Key, passed: Deadline) {
    let Some(x) = proxy.exchanges.get(exchange) else { return };
    if passed.wait == Wait::RequestRest {
        // It has its response: nothing has failed, whatever version it speaks.
        return drain_is_over(proxy, cx, exchange);
    }
    match passed.wait {
        Wait::Password => return unchecked(proxy, cx, exchange),
        Wait::Exchange => return took_too_long(proxy, cx, exchange),
        Wait::Copy => return give_up(proxy, cx, exchange),
        Wait::Queue => {
            // There may be room by now: the queue is served at the end of the turn.
            if let Some(upstream) = &x.upstream {
                proxy.pools.note_queue(upstream);
            }
            return;
        }
        _ => {}
    }
    match passed.wait.party() {
        Some(Party::Client) => {
            proxy.counters.count(Count::ClientTimeouts);
            if passed.reason == Reason::Rate {
                proxy.counters.count(Count::SlowClients);
            }
            if x.machine.is_answered() {
                proxy.counters.count(Count::ClientAborts);
            }
            if let Some(x) = proxy.exchanges.get_mut(exchange) {
                x.ending = match passed {
                    Deadline { reason: Reason::Rate, .. } => Ending::ClientSlow,
                    Deadline { wait: Wait::Handshake, .. } => Ending::No,
                    _ => Ending::ClientIdle,
                };
            }
            refuse(proxy, cx, exchange, 408);
        }
        Some(Party::Upstream) => {
            proxy.counters.count(Count::UpstreamTimeouts);
            if passed.reason == Reason::Rate {
                proxy.counters.count(Count::SlowUpstreams);
            }
            let silent = x.upstream.as_ref().map_or(Loss::Timeout { short: false }, |upstream| upstream.silence());
            // A server that was sent the request as early data may have processed it.
            let is_unsent = passed.wait == Wait::Connection && !x.machine.was_sent_early();
            let why = if is_unsent { Loss::ConnectTimeout } else { silent };
            server_lost(proxy, cx, exchange, why);
        }
        None => {
            proxy.counters.count(Count::IdleTunnels);
            if let Some(x) = proxy.exchanges.get_mut(exchange) {
                x.ending = Ending::Idle;
            }
            // There is nobody to tell: both sides are closed.
            refuse(proxy, cx, exchange, 408);
        }
    }
}

/// The time of an exchange as a whole is over. No server is tried again, and none has failed but one that has used up the time.
fn took_too_long(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let awaits_body = x.machine.request() == Phase::Streaming && !x.request_body.is_blocked();
    x.ending = Ending::TooLong;
    proxy.counters.count(Count::TotalTimeouts);
    let (started, unanswered) = (x.times.started / 1000, !x.machine.is_answered());
    let [request, response] = directions(x);
    if unanswered && is_used_up_by_server(cx.now(), started, &request, &response) {
        proxy.counters.count(Count::UpstreamTimeouts);
        account_for_loss(x, Loss::Timeout { short: false }, true);
    }
    refuse(proxy, cx, exchange, if awaits_body { 408 } else { 504 });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_first_looks_are_the_shortest_of_the_limits() {
        let times = [1, 2, 3, 4].map(Duration::from_millis);
        for n in 0..4_usize.pow(5) {
            let time = |at: u32| times[n / 4_usize.pow(at) % 4];
            let (mut client, mut upstream) = (fixtures::limits(), fixtures::upstream(1));
            (client.idle_timeout, client.handshake_timeout) = (time(0), time(1));
            (upstream.idle_timeout, upstream.first_byte_timeout, upstream.connect_timeout) =
                (time(2), time(3), time(4));
            assert_eq!(shortest(first_look(&client), &upstream), limits(&client, Some(&upstream)).shortest());
        }
    }

    #[test]
    fn connections_have_the_limits_of_their_side() {
        let (mut client, mut upstream) = (fixtures::limits(), fixtures::upstream(1));
        let time = Duration::from_millis;
        (client.handshake_timeout, client.header_timeout) = (time(1), time(2));
        (client.keepalive_timeout, client.idle_timeout) = (time(3), time(4));
        (upstream.keepalive_timeout, upstream.idle_timeout) = (time(5), time(6));
        (upstream.connect_timeout, upstream.try_timeout, upstream.queue_timeout) = (time(8), Some(time(7)), time(9));
        use ConnectionWait::{ClientEnd, Connect, FirstRequest, Handshake, LastBytes, Request, RequestHead, Room};
        let all = [Handshake, FirstRequest, RequestHead, Request, Room, LastBytes, ClientEnd];
        assert_eq!(all.map(|wait| client.until(wait, 100)), [101, 102, 102, 103, 104, 104, 100 + LINGER]);
        assert_eq!([Connect, Request, Room, LastBytes].map(|wait| upstream.until(wait, 100)), [107, 105, 106, 106]);
        assert_eq!(upstream.queued_until(100), 109);
    }

    #[test]
    fn streams_are_looked_at_often_enough_and_not_too_often() {
        let looks = |limits: [u64; 2]| sweep(limits.map(Duration::from_millis));
        assert_eq!(
            [looks([400, 800]), looks([800, 400]), looks([2, 800]), looks([90_000, 80_000])],
            [100, 100, 1, SWEEP]
        );
    }
}
