//! `mirror`: a copy of a request goes to another upstream group, and the response to it is thrown away.
//!
//! ```text
//! forward ─► copy_request ─┬─ no body ──────────────────────────────────────────┐
//!                          └─ request_data ─► copy_body ─► request_end ─► copy_complete ─► start ─► (next turn) mirror_go_on
//! ```
//!
//! The copy is an exchange of its own, so that server selection, connections, retries and deadlines are those of every request. Its
//! client (`MirrorClient`) has no socket: it has the whole body, has room for every response, and keeps nothing of it. The client's
//! own exchange knows nothing of the copy once that has started, and so cannot wait for it or fail with it.
//!
//! Copies are bounded: by number in a lane, by the bytes of their bodies, and by time. Where memory is short, they are given up before
//! any client is. A request of which no copy can be made is counted and served as without a mirror.

use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::executor::perform;
use crate::exchange::expiry::check_deadlines;
use crate::exchange::forwarded::{is_copy, mark_copy};
use crate::exchange::request::{request_data, request_end, request_room};
use crate::exchange::streams::{ClientStream, Later};
use crate::lane_state::LaneListener;
use crate::rules::RouteRef;
use crate::service::Proxy;
use crate::snapshot::Action;
use crate::upstream::group::LaneUpstream;
use sealane_exchange::{Event, Phase};
use sealane_http::{BodyLength, Fields, RequestHead};
use sealane_lane::{Context, Deadline, Key, Millis};
use std::cell::Cell;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a response's body that are read and thrown away. A response that goes on behind them is called off.
const MAX_DISCARDED: usize = 1 << 20;

/// Where copies of a route's requests go, and what bounds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Index into the snapshot's upstreams.
    pub upstream: usize,
    /// Of how many of 100 requests copies are made.
    pub percent: u32,
    /// Requests with larger bodies are not mirrored.
    pub max_body: usize,
    /// Most copies under way in a lane, those included whose body is coming.
    pub max_requests: usize,
    /// How long a copy may take as a whole, once it has started.
    pub timeout: Duration,
    /// Headers that copies do not have.
    pub remove: Vec<String>,
}

/// How many copies of a lane are under way.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    under_way: Rc<Cell<usize>>,
}

impl Mirror {
    /// Whether the request with this number, which is by chance, is copied.
    fn wants(&self, number: u64) -> bool {
        number % 100 < u64::from(self.percent)
    }
}

impl Copies {
    /// A place for one more copy, if there are fewer than `most`.
    pub fn take(&self, most: usize) -> Option<CopyPlace> {
        let under_way = self.under_way.get();
        (under_way < most).then(|| {
            self.under_way.set(under_way + 1);
            CopyPlace(self.under_way.clone())
        })
    }
}

/// One copy among those under way, until it is dropped.
pub(crate) struct CopyPlace(Rc<Cell<usize>>);

impl Drop for CopyPlace {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// A request's copy before it starts: its head, and what has come of its body.
pub(crate) struct RequestCopy {
    request: RequestHead,
    /// How the body is framed, as it came.
    length: BodyLength,
    body: Vec<u8>,
    max_body: usize,
    timeout: Duration,
    upstream: Rc<LaneUpstream>,
    client: IpAddr,
    place: CopyPlace,
}

/// How far the copy of a request for its mirror has come.
#[derive(Default)]
pub(crate) enum Copying {
    /// None is made, or it was given up.
    #[default]
    None,
    /// The request's body is coming.
    Coming(Box<RequestCopy>),
    /// It has gone to the mirror.
    Sent,
}

impl Copying {
    /// Whether the request's body belongs into a copy.
    #[inline]
    pub fn is_coming(&self) -> bool {
        matches!(self, Self::Coming(_))
    }

    /// Whether a copy has gone to the mirror.
    pub fn is_sent(&self) -> bool {
        matches!(self, Self::Sent)
    }

    /// Takes a copy away whose body is coming.
    fn take(&mut self) -> Option<Box<RequestCopy>> {
        match std::mem::take(self) {
            Self::Coming(copy) => Some(copy),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// How far a copy has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyProgress {
    /// It is made.
    Made,
    /// It is on its way to a server.
    Begun,
    /// A server has answered.
    Answered,
}

/// The client of a copy.
pub(crate) struct MirrorClient {
    exchange: Option<Key>,
    deadline: Deadline,
    /// When the copy must be over.
    until: Millis,
    body: Vec<u8>,
    /// Bytes of the body that have been passed on.
    sent: usize,
    /// Bytes of the response's body that have been thrown away.
    discarded: usize,
    progress: CopyProgress,
    _place: CopyPlace,
}

impl MirrorClient {
    /// When the copy must be over.
    pub fn until(&self) -> Millis {
        self.until
    }

    /// It is looked at at this time or before.
    pub fn look_by(&mut self, cx: &mut Context, key: Key, at: Millis) {
        self.deadline.set_no_later(cx, key, at);
    }

    /// A timer has fired: whether it is time.
    pub fn fired(&mut self, cx: &mut Context, key: Key) -> bool {
        self.deadline.fired(cx, key)
    }

    /// Whether an entry of the timer wheel is the one at which it is looked at again.
    pub fn is_armed_for(&self, tick: u64) -> bool {
        self.deadline.is_armed_for(tick)
    }
}

/// Makes the copy of a request that has been prepared for its upstream and is about to be forwarded.
pub(crate) fn copy_request(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    listener: &LaneListener,
    mirror: &Mirror,
) {
    let Proxy { connections, exchanges, counters, admission, .. } = proxy;
    if !mirror.wants(exchanges.draw()) {
        return;
    }
    let Some(upstream) = listener.upstreams.get(mirror.upstream) else { return };
    let Some(x) = exchanges.get(exchange) else { return };
    let Some(client) = connections.client_of(x.client_stream()).map(|client| x.client_ip(client)) else { return };
    if !x.machine().is_message() {
        // Bytes of another protocol are no request.
        return counters.count(Count::MirrorsUpgrade);
    }
    if is_copy(&x.request().fields) {
        return counters.count(Count::MirrorsCopy);
    }
    if x.machine().is_early() {
        // It may be a replay, and the copy could not wait for the end of the handshake as the request can.
        return counters.count(Count::MirrorsEarly);
    }
    if matches!(x.body(), BodyLength::Known(length) if length > mirror.max_body as u64) {
        return counters.count(Count::MirrorsTooLarge);
    }
    if admission.is_short_of_memory() {
        return counters.count(Count::MirrorsMemory);
    }
    let Some(place) = exchanges.copy_place(mirror.max_requests) else {
        return counters.count(Count::MirrorsFull);
    };
    let mut request = x.request().clone();
    mirror.remove.iter().for_each(|name| request.fields.remove_alike(name.as_bytes()));
    if mark_copy(&mut request.fields).is_err() {
        // There is no room for the mark, and without it copies could be made of the copy.
        return counters.count(Count::MirrorsCopy);
    }
    if let Some(host) = &upstream.settings().host_header {
        // It was checked with the configuration.
        let _ = request.set_authority(host.as_bytes());
    }
    let copy = Box::new(RequestCopy {
        request,
        length: x.body(),
        body: Vec::new(),
        max_body: mirror.max_body,
        timeout: mirror.timeout,
        upstream: upstream.clone(),
        client,
        place,
    });
    if x.body().is_empty() {
        if let Some(x) = exchanges.get_mut(exchange) {
            *x.copying_mut() = Copying::Sent;
        }
        start(proxy, cx, copy, Fields::new());
    } else if let Some(x) = exchanges.get_mut(exchange) {
        *x.copying_mut() = Copying::Coming(copy);
    }
}

/// Notes a piece of the body of a request that is copied. `dropped`: nobody wants the body any more.
#[inline(never)]
pub(crate) fn copy_body(x: &mut Exchange, counters: &Counters, data: &[u8], dropped: bool) {
    let Copying::Coming(copy) = x.copying_mut() else { return };
    if dropped {
        // The gateway has refused the request, or its server has answered without it.
        *x.copying_mut() = Copying::None;
    } else if data.len() > copy.max_body - copy.body.len() {
        counters.count(Count::MirrorsTooLarge);
        *x.copying_mut() = Copying::None;
    } else {
        copy.body.extend_from_slice(data);
    }
}

/// The mirror of a route.
fn mirror_of(route: &RouteRef) -> Option<&Mirror> {
    match &route.route()?.action {
        Action::Forward(by) => by.mirror.as_ref(),
        _ => None,
    }
}

/// The body of a request that is copied has come whole; its trailers are in the flow.
#[inline(never)]
pub(crate) fn copy_complete(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let Some(copy) = x.copying_mut().take() else { return };
    if x.machine().request() == Phase::Draining {
        return;
    }
    *x.copying_mut() = Copying::Sent;
    let mut trailers = x.request_body().trailers().clone();
    if let (false, Some(mirror)) = (trailers.is_empty(), x.routed().route().and_then(mirror_of)) {
        mirror.remove.iter().for_each(|name| trailers.remove_alike(name.as_bytes()));
    }
    start(proxy, cx, copy, trailers);
}

/// Makes a copy an exchange, which begins in the next turn: the client's own goes first.
fn start(proxy: &mut Proxy, cx: &mut Context, copy: Box<RequestCopy>, trailers: Fields) {
    let RequestCopy { request, length, body, timeout, upstream, client, place, .. } = *copy;
    let until = cx.now() + timeout.as_millis() as Millis;
    let key = proxy.connections.insert(Conn::Mirror(Box::new(MirrorClient {
        exchange: None,
        deadline: Deadline::default(),
        until,
        body,
        sent: 0,
        discarded: 0,
        progress: CopyProgress::Made,
        _place: place,
    })));
    let mut x = proxy.exchanges.fresh(ClientStream::Mirror(key));
    x.begin_copy(request, (length, trailers), upstream, client, cx.micros());
    let exchange = proxy.exchanges.insert(x);
    if let Some(mirror) = proxy.connections.mirror(key) {
        mirror.exchange = Some(exchange);
        mirror.deadline.set(cx, key, until);
    }
    proxy.counters.count(Count::Mirrors);
    proxy.exchanges.go_on_later(Later::Client(exchange));
}

/// Begins a copy, or goes on with its body.
pub(crate) fn mirror_go_on(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key) {
    let Some(mirror) = proxy.connections.mirror(key) else { return };
    if mirror.progress == CopyProgress::Made {
        mirror.progress = CopyProgress::Begun;
        let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
        let _ = x.report(Event::Accepted);
        let actions = x.report(Event::Forward);
        return perform(proxy, cx, exchange, actions);
    }
    send_body(proxy, cx, exchange, key);
}

/// Passes the body of a copy on, as far as its server has room.
fn send_body(proxy: &mut Proxy, cx: &mut Context, exchange: Key, key: Key) {
    loop {
        let Some(x) = proxy.exchanges.get(exchange) else { return };
        let has_trailers = !x.request_body().trailers().is_empty();
        if x.machine().request() != Phase::Streaming {
            return;
        }
        let Some(mirror) = proxy.connections.mirror(key) else { return };
        let left = mirror.body.len() - mirror.sent;
        if left == 0 {
            return request_end(proxy, cx, exchange);
        }
        let Proxy { connections, exchanges, .. } = proxy;
        let room = request_room(connections, exchanges, cx, exchange, left).unwrap_or(0).min(left);
        let Some(mirror) = connections.mirror(key).filter(|_| room > 0) else { return };
        let from = mirror.sent;
        mirror.sent += room;
        let last = room == left && !has_trailers;
        let body = std::mem::take(&mut mirror.body);
        let goes_on = request_data(proxy, cx, exchange, &body[from..from + room], last);
        if let Some(mirror) = proxy.connections.mirror(key) {
            mirror.body = body;
        }
        if !goes_on || last {
            return;
        }
    }
}

/// The head of the response to a copy. The gateway makes one, too, where no server answers.
pub(crate) fn mirror_head(connections: &mut Connections, exchanges: &Exchanges, exchange: Key, key: Key) {
    let from_server = exchanges.get(exchange).is_some_and(|x| x.upstream_stream().is_some());
    if let Some(mirror) = connections.mirror(key).filter(|_| from_server) {
        mirror.progress = CopyProgress::Answered;
    }
}

/// How many of `want` bytes of the response to a copy may still be thrown away.
pub(crate) fn mirror_credit(connections: &mut Connections, key: Key, want: usize) -> usize {
    connections.mirror(key).map_or(0, |mirror| want.min(MAX_DISCARDED - mirror.discarded.min(MAX_DISCARDED)))
}

/// Throws a piece of the response to a copy away. After the last piece for which there is credit, the copy is over.
pub(crate) fn mirror_discard(connections: &mut Connections, cx: &mut Context, key: Key, bytes: usize) {
    let Some(mirror) = connections.mirror(key) else { return };
    mirror.discarded += bytes;
    if mirror.discarded >= MAX_DISCARDED {
        mirror.look_by(cx, key, cx.now());
    }
}

/// The timer of a copy has fired.
pub(crate) fn mirror_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(mirror) = proxy.connections.mirror(key) else { return };
    let is_over = mirror.discarded >= MAX_DISCARDED;
    let Some(exchange) = mirror.exchange else { return };
    if is_over {
        return give_up(proxy, cx, exchange);
    }
    if let Some(next) = check_deadlines(proxy, cx, exchange)
        && let Some(mirror) = proxy.connections.mirror(key)
    {
        mirror.deadline.set(cx, key, next);
    }
}

/// Calls a copy off.
pub(crate) fn give_up(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some(x) = proxy.exchanges.get_mut(exchange) else { return };
    let actions = x.report(Event::ClientGone);
    perform(proxy, cx, exchange, actions);
}

/// Memory is short: gives copies up, those with the largest bodies first, until at least `wanted` bytes are free. No client notices.
/// How many bytes are free now.
pub(crate) fn free_copies(proxy: &mut Proxy, cx: &mut Context, wanted: usize) -> usize {
    let held = |key: Key| {
        let x = proxy.exchanges.get(key)?;
        let bytes = match (x.copying(), proxy.connections.get(x.client_stream().conn())) {
            (Copying::Coming(copy), _) => copy.body.capacity(),
            (_, Some(Conn::Mirror(mirror))) => mirror.body.capacity(),
            _ => 0,
        };
        (bytes > 0).then_some((bytes, key))
    };
    let mut copies: Vec<(usize, Key)> = proxy.exchanges.keys().filter_map(held).collect();
    copies.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
    let mut freed = 0;
    for (bytes, exchange) in copies {
        if freed >= wanted {
            break;
        }
        freed += bytes;
        let Some(x) = proxy.exchanges.get_mut(exchange) else { continue };
        if x.copying_mut().take().is_some() {
            proxy.counters.count(Count::MirrorsMemory);
        } else {
            give_up(proxy, cx, exchange);
        }
    }
    freed
}

/// A copy is over.
pub(crate) fn mirror_finished(proxy: &mut Proxy, x: Box<Exchange>, key: Key) {
    if let Some(Conn::Mirror(mirror)) = proxy.connections.remove(key) {
        let result = match mirror.progress {
            CopyProgress::Answered => Count::MirrorsAnswered,
            CopyProgress::Made | CopyProgress::Begun => Count::MirrorsFailed,
        };
        proxy.counters.count(result);
    }
    proxy.counters.set(Count::Active, proxy.exchanges.len() as u64);
    proxy.exchanges.recycle(x);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forwarding::Draws;

    #[test]
    fn so_many_of_a_hundred_are_drawn() {
        let mut draws = Draws::default();
        for percent in [1, 10, 50, 99, 100] {
            let mirror = Mirror {
                upstream: 0,
                percent,
                max_body: 0,
                max_requests: 1,
                timeout: Duration::ZERO,
                remove: Vec::new(),
            };
            let copied = (0..100_000).filter(|_| mirror.wants(draws.draw())).count();
            let wanted = percent as usize * 1000;
            assert!(copied.abs_diff(wanted) < 1000 && (percent < 100 || copied == wanted), "{percent}: {copied}");
        }
    }

    #[test]
    fn a_place_is_free_again_when_its_copy_is_dropped() {
        let copies = Copies::default();
        let (first, second) = (copies.take(2), copies.take(2));
        assert!(first.is_some() && second.is_some() && copies.take(2).is_none());
        drop(first);
        assert!(copies.take(2).is_some(), "it was dropped at once");
        assert!(copies.take(1).is_none() && copies.take(2).is_some());
    }

    #[test]
    fn a_response_is_thrown_away_up_to_its_bound() {
        let (mut connections, mut cx) = (Connections::default(), Context::new().unwrap());
        let mirror = MirrorClient {
            exchange: None,
            deadline: Deadline::default(),
            until: Millis::MAX,
            body: Vec::new(),
            sent: 0,
            discarded: 0,
            progress: CopyProgress::Answered,
            _place: Copies::default().take(1).unwrap(),
        };
        let key = connections.insert(Conn::Mirror(Box::new(mirror)));
        assert_eq!(mirror_credit(&mut connections, key, 2 * MAX_DISCARDED), MAX_DISCARDED);
        mirror_discard(&mut connections, &mut cx, key, MAX_DISCARDED - 10);
        assert_eq!((mirror_credit(&mut connections, key, 100), cx.timers.len()), (10, 0));
        mirror_discard(&mut connections, &mut cx, key, 10);
        assert_eq!((mirror_credit(&mut connections, key, 100), cx.timers.len()), (0, 1), "it is called off");
        assert_eq!(mirror_credit(&mut connections, Key::from_u64(7), 100), 0);
    }

    #[test]
    fn a_body_is_copied_up_to_its_bound() {
        let (settings, _published) = crate::fixtures::settings(crate::fixtures::snapshot(
            crate::fixtures::limits(),
            vec![crate::fixtures::upstream(1)],
        ));
        let (copies, counters) = (Copies::default(), Counters::default());
        let copy = || {
            Copying::Coming(Box::new(RequestCopy {
                request: RequestHead::new(),
                length: BodyLength::Chunked,
                body: Vec::new(),
                max_body: 10,
                timeout: Duration::from_secs(1),
                upstream: crate::fixtures::group(settings.lane()),
                client: IpAddr::from([127, 0, 0, 1]),
                place: copies.take(1).expect("the one before is gone"),
            }))
        };
        let mut x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
        *x.copying_mut() = copy();
        copy_body(&mut x, &counters, b"01234", false);
        copy_body(&mut x, &counters, b"56789", false);
        assert!(matches!(x.copying(), Copying::Coming(copy) if copy.body == b"0123456789"));
        copy_body(&mut x, &counters, b"x", false);
        assert!(matches!(x.copying(), Copying::None) && counters.value(Count::MirrorsTooLarge) == 1);
        *x.copying_mut() = copy();
        copy_body(&mut x, &counters, b"x", true);
        assert!(matches!(x.copying(), Copying::None) && counters.value(Count::MirrorsTooLarge) == 1);
        *x.copying_mut() = copy();
        x.recycle();
        assert!(copies.take(1).is_some(), "an exchange that is over has no copy");
    }
}
