//! A group of servers as one lane knows it: its connections by server, and the requests that wait for room.

use crate::lane_state::LaneSnapshot;
use crate::latency::UpstreamTimes;
use crate::memory::Window;
use crate::snapshot::{EarlyRequests, Upstream, UpstreamHttp};
use crate::upstream::balance::{
    Balance, Balancer, LaneServer, Lease, Pick, Preference, RetryBudget, Tried, hash_of_address,
};
use crate::upstream::syn::SynServer;
use sealane_exchange::Loss;
use sealane_lane::{Key, Micros, Millis};
use sealane_tls::{BuildError, ClientContext};
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

/// As many requests wait for a group as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// A server over QUIC.
#[derive(Clone, Copy, Default)]
struct H3Server {
    /// Its connections, by their windows.
    connections: [Option<Key>; Window::ALL.len()],
    /// Until when it is not tried again.
    down_until: Millis,
}

pub(crate) struct LaneUpstream {
    pub(super) upstream: Arc<Upstream>,
    /// By whether HTTP/1.1 alone is offered.
    contexts: RefCell<[Option<ClientContext>; 2]>,
    /// Idle connections by server, the latest last.
    idle: RefCell<Vec<Vec<Key>>>,
    /// HTTP/2 connections by server, those that are being made too.
    shared: RefCell<Vec<Vec<Key>>>,
    /// Servers that chose HTTP/2 when last asked, by index.
    speaks_h2: RefCell<Vec<bool>>,
    pub(super) balancer: Balancer,
    pub(super) retries: RetryBudget,
    /// The choice depends on the request.
    chooses_by_request: bool,
    /// Requests that wait for room, the first first.
    waiting: RefCell<VecDeque<Key>>,
    /// How many may.
    queue_share: usize,
    /// By server, over QUIC.
    h3: RefCell<Vec<H3Server>>,
    times: Arc<UpstreamTimes>,
    /// By server, for hellos in SYNs.
    syn: RefCell<Vec<SynServer>>,
    /// By server, until when it gets no early data.
    early_pauses: RefCell<Vec<Millis>>,
}

/// Whether a connection under the one's settings is as good under the other's.
pub(crate) fn same_tls(a: &Upstream, b: &Upstream) -> bool {
    match (&a.tls, &b.tls) {
        (None, None) => true,
        // The id covers what is verified, and who we are.
        (Some(a), Some(b)) => {
            (a.id, &a.alpn, &a.versions, &a.groups, &a.suites) == (b.id, &b.alpn, &b.versions, &b.groups, &b.suites)
        }
        _ => false,
    }
}

impl LaneUpstream {
    /// What the snapshot says of it.
    #[inline]
    pub fn settings(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Whether the choice of a server depends on the request.
    #[inline]
    pub fn chooses_by_request(&self) -> bool {
        self.chooses_by_request
    }

    /// Notes a request, for the budget of those that are sent again.
    #[inline]
    pub fn note_request(&self) {
        self.retries.note_request();
    }

    /// Takes a retry from the budget, if there is one.
    pub fn grants_retry(&self, now: Millis) -> bool {
        self.retries.take(now)
    }

    /// Whether a request that has failed so often, at these servers, has a try and a server left.
    pub fn has_try_left(&self, attempts: usize, tried: Tried) -> bool {
        attempts < self.upstream.tries && self.balancer.has_untried(tried)
    }

    /// Whether some server could be used that has not been tried.
    pub fn has_untried(&self, tried: Tried) -> bool {
        self.balancer.has_untried(tried)
    }

    /// Selects a server for a session of datagrams. The error says why there is none.
    pub fn begin_session(&self, tried: Tried, client: IpAddr) -> Result<(usize, Lease), Pick> {
        let hash = self.chooses_by_request.then(|| hash_of_address(client));
        match self.balancer.pick(Preference { tried, hash, sticky: None }) {
            Pick::Server(server) => Ok((server, self.balancer.servers()[server].lease())),
            none => Err(none),
        }
    }

    /// Asks control to look at the servers now rather than later.
    pub fn nudge(&self) {
        self.upstream.group.nudge();
    }

    /// How many requests are under way with a server.
    #[cfg(test)]
    pub fn under_way(&self, server: usize) -> u32 {
        self.balancer.servers()[server].active()
    }

    /// The lane's TLS context towards the upstream. `only_h1`: for a request that HTTP/2 could not carry.
    pub fn context(&self, only_h1: bool) -> Result<Option<ClientContext>, BuildError> {
        let Some(policy) = &self.upstream.tls else { return Ok(None) };
        let mut contexts = self.contexts.borrow_mut();
        let context = &mut contexts[usize::from(only_h1)];
        if context.is_none() {
            let new = match (self.upstream.syn_tls, self.upstream.early_data) {
                (Some(_), _) => ClientContext::for_syn(policy)?,
                (None, Some(_)) => ClientContext::for_early_data(policy)?,
                (None, None) => ClientContext::new(policy)?,
            };
            *context = Some(if only_h1 { new.offering(&[b"http/1.1"]) } else { new });
        }
        Ok(context.clone())
    }

    /// What it is to an exchange when a server that was reached is silent for too long.
    pub fn silence(&self) -> Loss {
        Loss::Timeout { short: self.upstream.try_timeout.is_some() }
    }

    /// Whether a connection to this server is expected to speak HTTP/2.
    pub fn expects_h2(&self, server: usize) -> bool {
        match self.upstream.http {
            UpstreamHttp::One => false,
            UpstreamHttp::Two => true,
            UpstreamHttp::Auto | UpstreamHttp::Three => {
                self.speaks_h2.borrow().get(server).copied().unwrap_or_default()
            }
        }
    }

    /// Notes what a server has chosen.
    pub fn note_h2(&self, server: usize, speaks: bool) {
        if let Some(known) = self.speaks_h2.borrow_mut().get_mut(server) {
            *known = speaks;
        }
    }

    /// The connection over QUIC to a server with such windows, also one that is being made.
    pub fn h3_connection(&self, server: usize, window: Window) -> Option<Key> {
        self.h3.borrow().get(server)?.connections[window as usize]
    }

    /// Notes the connection over QUIC to a server with such windows.
    pub fn h3_note(&self, server: usize, window: Window, key: Key) {
        if let Some(place) = self.h3.borrow_mut().get_mut(server) {
            place.connections[window as usize] = Some(key);
        }
    }

    /// No new request takes a connection over QUIC.
    pub fn h3_forget(&self, server: usize, key: Key) {
        if let Some(place) = self.h3.borrow_mut().get_mut(server) {
            place.connections.iter_mut().filter(|known| **known == Some(key)).for_each(|known| *known = None);
        }
    }

    /// Whether a server could not be reached over QUIC lately.
    pub fn h3_is_down(&self, server: usize, now: Millis) -> bool {
        self.h3.borrow().get(server).is_some_and(|place| now < place.down_until)
    }

    /// A server could not be reached over QUIC; it is tried again at `until`.
    pub fn h3_failed(&self, server: usize, until: Millis) {
        if let Some(place) = self.h3.borrow_mut().get_mut(server) {
            place.down_until = until;
        }
    }

    /// Which requests a server gets as early data now.
    pub fn early_data(&self, server: usize, now: Millis) -> Option<EarlyRequests> {
        let is_paused = |until: &Millis| now < *until;
        self.upstream.early_data.filter(|_| !self.early_pauses.borrow().get(server).is_some_and(is_paused))
    }

    /// A server gets no early data until then.
    pub fn pause_early_data(&self, server: usize, until: Millis) {
        if let Some(pause) = self.early_pauses.borrow_mut().get_mut(server) {
            *pause = until;
        }
    }

    pub fn new(upstream: &Arc<Upstream>, old: Option<&LaneSnapshot>, slot: usize, lanes: usize) -> Self {
        let limited = upstream.max_connections.is_some();
        // What is under way at a server that stays is counted on.
        let kept = |server: &crate::snapshot::Server| {
            let servers = old.into_iter().flat_map(|o| o.upstreams.iter()).flat_map(|u| u.balancer.servers());
            let kept = servers.into_iter().find(|s| Arc::ptr_eq(s.state(), &server.state)).cloned();
            kept.inspect(|s| s.set_limited(limited))
        };
        let servers: Vec<Rc<LaneServer>> = upstream
            .servers
            .iter()
            .map(|s| kept(s).unwrap_or_else(|| Rc::new(LaneServer::new(s, slot, limited))))
            .collect();
        Self {
            contexts: RefCell::default(),
            idle: RefCell::new(vec![Vec::new(); upstream.servers.len()]),
            shared: RefCell::new(vec![Vec::new(); upstream.servers.len()]),
            speaks_h2: RefCell::new(vec![false; upstream.servers.len()]),
            balancer: Balancer::new(upstream.balance, upstream.group.clone(), &upstream.servers, servers, slot),
            retries: RetryBudget::new(upstream.retry_percent, upstream.retry_per_second, lanes),
            chooses_by_request: upstream.balance == Balance::Hash || upstream.sticky.is_some(),
            waiting: RefCell::default(),
            queue_share: upstream.queue.div_ceil(lanes.max(1)),
            h3: RefCell::new(vec![H3Server::default(); upstream.servers.len()]),
            syn: RefCell::new(vec![SynServer::default(); upstream.servers.len()]),
            early_pauses: RefCell::new(vec![0; upstream.servers.len()]),
            times: upstream.group.times().clone(),
            upstream: upstream.clone(),
        }
    }

    /// Records how long one of the steps of [`UPSTREAM_STEPS`](crate::latency::UPSTREAM_STEPS) took.
    #[inline]
    pub fn record(&self, slot: usize, step: usize, micros: Micros) {
        if cfg!(feature = "uninstrumented") {
            return;
        }
        if let Some(steps) = self.times.histograms(slot, 0) {
            steps[step].record(micros);
        }
    }

    /// Takes the idle connection to a server that was used last out of the pool.
    #[inline]
    pub fn take_idle(&self, server: usize) -> Option<Key> {
        self.idle.borrow_mut().get_mut(server)?.pop()
    }

    /// Whether another idle connection to a server is kept.
    #[inline]
    pub fn keeps_another(&self, server: usize) -> bool {
        self.idle.borrow().get(server).is_some_and(|idle| idle.len() < self.upstream.keepalive)
    }

    /// Puts an idle connection to a server into the pool.
    #[inline]
    pub fn put_idle(&self, server: usize, key: Key) {
        if let Some(idle) = self.idle.borrow_mut().get_mut(server) {
            idle.push(key);
        }
    }

    /// An idle connection has gone.
    pub fn forget_idle(&self, server: usize, key: Key) {
        if let Some(idle) = self.idle.borrow_mut().get_mut(server) {
            idle.retain(|k| *k != key);
        }
    }

    /// The shared connections to a server over TCP, one after the other; also those that are being made.
    pub fn shared(&self, server: usize, at: usize) -> Option<Key> {
        self.shared.borrow().get(server)?.get(at).copied()
    }

    /// New requests may share a connection from now on.
    pub fn share(&self, server: usize, key: Key) {
        if self.upstream.keepalive > 0
            && let Some(keys) = self.shared.borrow_mut().get_mut(server)
        {
            keys.push(key);
        }
    }

    /// No new request takes a shared connection.
    pub fn unshare(&self, server: usize, key: Key) {
        if let Some(keys) = self.shared.borrow_mut().get_mut(server) {
            keys.retain(|k| *k != key);
        }
    }

    /// Queues a request that waits for room, unless there are too many; `is_alive`: it has not gone away meanwhile.
    pub fn queue(&self, exchange: Key, is_alive: impl Fn(Key) -> bool) -> Result<(), QueueFull> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= self.queue_share {
            waiting.retain(|key| is_alive(*key));
        }
        if waiting.len() >= self.queue_share {
            return Err(QueueFull);
        }
        waiting.push_back(exchange);
        self.tell_waiting(waiting.len());
        Ok(())
    }

    /// How many requests wait.
    pub fn queue_len(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Whether a request that comes now waits behind others. Where clients stick to servers, those of one full server must not
    /// keep the others from theirs: with a full queue each is looked at by itself.
    #[inline]
    pub fn makes_wait(&self) -> bool {
        let waiting = self.waiting.borrow().len();
        waiting > 0 && (waiting < self.queue_share || self.upstream.sticky.is_none())
    }

    /// The request that waits longest.
    pub fn first_queued(&self) -> Option<Key> {
        self.waiting.borrow().front().copied()
    }

    /// Takes it out of the queue.
    pub fn unqueue_first(&self) -> Option<Key> {
        self.waiting.borrow_mut().pop_front()
    }

    /// Puts a request back where it was taken out.
    pub fn requeue_first(&self, exchange: Key) {
        self.waiting.borrow_mut().push_front(exchange);
    }

    /// Puts a request back that was passed over, behind those that are still to be looked at.
    pub fn requeue_last(&self, exchange: Key) {
        self.waiting.borrow_mut().push_back(exchange);
    }

    /// What is known of a server for hellos in SYNs.
    pub fn syn_server(&self, server: usize) -> Option<RefMut<'_, SynServer>> {
        RefMut::filter_map(self.syn.borrow_mut(), |servers| servers.get_mut(server)).ok()
    }

    /// Tells control how many requests wait for one of the servers.
    pub fn tell_waiting(&self, n: usize) {
        if let Some(first) = self.balancer.servers().first() {
            first.set_waiting(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{group, limits, settings, snapshot, upstream};

    fn keys() -> [Key; 4] {
        [1, 2, 3, 4].map(Key::from_u64)
    }

    #[test]
    fn the_connection_used_last_is_taken_first() {
        let (settings, _published) = settings(snapshot(limits(), vec![upstream(2)]));
        let (group, [a, b, c, _]) = (group(settings.lane()), keys());
        group.put_idle(0, a);
        assert!(group.keeps_another(0));
        group.put_idle(0, b);
        group.put_idle(1, c);
        assert!(!group.keeps_another(0) && group.keeps_another(1), "two per server");
        group.forget_idle(1, c);
        assert_eq!([group.take_idle(0), group.take_idle(0), group.take_idle(0)], [Some(b), Some(a), None]);
        assert_eq!((group.take_idle(1), group.take_idle(9)), (None, None));
    }

    #[test]
    fn shared_connections_are_found_in_their_order() {
        let (settings, _published) = settings(snapshot(limits(), vec![upstream(1)]));
        let (group, [a, b, ..]) = (group(settings.lane()), keys());
        group.share(0, a);
        group.share(0, b);
        assert_eq!([group.shared(0, 0), group.shared(0, 1), group.shared(0, 2)], [Some(a), Some(b), None]);
        group.unshare(0, a);
        assert_eq!([group.shared(0, 0), group.shared(0, 1)], [Some(b), None]);
    }

    #[test]
    fn where_nothing_is_kept_nothing_is_shared() {
        let mut config = upstream(1);
        config.keepalive = 0;
        let (settings, _published) = settings(snapshot(limits(), vec![config]));
        let (group, [a, ..]) = (group(settings.lane()), keys());
        group.share(0, a);
        assert_eq!((group.shared(0, 0), group.keeps_another(0)), (None, false));
    }

    #[test]
    fn a_queue_is_bounded_and_forgets_those_who_left() {
        let mut config = upstream(1);
        config.queue = 4;
        let (settings, _published) = settings(snapshot(limits(), vec![config]));
        let (group, [a, b, c, d]) = (group(settings.lane()), keys());
        let all = |_| true;
        assert_eq!([group.queue(a, all), group.queue(b, all)], [Ok(()), Ok(())]);
        assert_eq!(group.queue(c, all), Err(QueueFull), "each of two lanes has half of the places");
        assert_eq!(group.queue(c, |key| key != a), Ok(()));
        assert_eq!((group.first_queued(), group.queue_len()), (Some(b), 2));
        assert_eq!(group.unqueue_first(), Some(b));
        assert_eq!((group.first_queued(), group.queue(d, all)), (Some(c), Ok(())));
    }

    #[test]
    fn a_server_that_was_sent_early_data_in_vain_gets_none_for_a_while() {
        let mut config = upstream(2);
        config.early_data = Some(EarlyRequests::Client);
        let (settings, _published) = settings(snapshot(limits(), vec![config]));
        let group = group(settings.lane());
        group.pause_early_data(0, 100);
        let which = |now| [0, 1].map(|server| group.early_data(server, now).is_some());
        assert_eq!([which(99), which(100)], [[false, true], [true, true]]);
    }

    #[test]
    fn what_servers_speak_is_remembered_by_server() {
        let mut config = upstream(2);
        config.http = UpstreamHttp::Auto;
        let (settings, _published) = settings(snapshot(limits(), vec![config]));
        let (group, [a, b, ..]) = (group(settings.lane()), keys());
        group.note_h2(1, true);
        assert!(!group.expects_h2(0) && group.expects_h2(1));
        group.h3_note(0, Window::Wide, a);
        group.h3_note(0, Window::Narrow, b);
        group.h3_failed(1, 100);
        let known = |server| Window::ALL.map(|window| group.h3_connection(server, window));
        assert_eq!([known(0), known(1)], [[Some(a), Some(b)], [None; 2]]);
        group.h3_forget(0, a);
        assert_eq!(known(0), [None, Some(b)]);
        assert!(group.h3_is_down(1, 99) && !group.h3_is_down(1, 100) && !group.h3_is_down(0, 0));
    }
}
