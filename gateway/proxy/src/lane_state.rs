//! A lane's own form of a snapshot: its TLS contexts and its pools, reached by counts that no other lane touches.

use crate::snapshot::{Listener, Routing, Snapshot, Upstream, UpstreamHttp};
use crate::upstream::balance::{Balance, Balancer, LaneServer, RetryBudget};
use crate::upstream::syn::SynServer;
use sealane_lane::{Key, Millis};
use sealane_tls::{BuildError, ClientContext, ServerContext};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct LaneListener {
    pub listener: Arc<Listener>,
    /// Those of the same snapshot: what the listener's actions name by index.
    pub upstreams: Rc<[Rc<LaneUpstream>]>,
    /// What the listener's hosts name by index, of the same snapshot.
    pub routing: Arc<Routing>,
    /// By policy; built when first used.
    contexts: RefCell<Vec<Option<ServerContext>>>,
    quic: RefCell<Option<Arc<quinn_proto::ServerConfig>>>,
}

pub(crate) struct LaneUpstream {
    pub upstream: Arc<Upstream>,
    /// By whether HTTP/1.1 alone is offered.
    contexts: RefCell<[Option<ClientContext>; 2]>,
    /// Idle connections by server, the latest last.
    pub idle: RefCell<Vec<Vec<Key>>>,
    /// HTTP/2 connections by server, those that are being made too.
    pub shared: RefCell<Vec<Vec<Key>>>,
    /// Servers that chose HTTP/2 when last asked, by index.
    speaks_h2: RefCell<Vec<bool>>,
    pub balancer: Balancer,
    pub retries: RetryBudget,
    /// The choice depends on the request.
    pub chooses_by_request: bool,
    /// Requests that wait for room, the first first.
    pub waiting: RefCell<VecDeque<Key>>,
    /// How many may.
    pub queue_share: usize,
    /// By server: the connection over QUIC, and until when it is not tried again.
    h3: RefCell<Vec<(Option<Key>, Millis)>>,
    /// By server, for hellos in SYNs.
    pub syn: RefCell<Vec<SynServer>>,
}

pub(crate) struct LaneSnapshot {
    pub snapshot: Arc<Snapshot>,
    pub listeners: Vec<Rc<LaneListener>>,
    pub upstreams: Rc<[Rc<LaneUpstream>]>,
}

impl LaneListener {
    /// The lane's TLS context for one of the listener's policies.
    pub fn context(&self, policy: usize, snapshot: &Snapshot) -> Result<Option<ServerContext>, BuildError> {
        let Some(policies) = self.listener.tls.as_ref().map(|t| &t.policies) else { return Ok(None) };
        let mut contexts = self.contexts.borrow_mut();
        contexts.resize(policies.len(), None);
        if contexts[policy].is_none() {
            contexts[policy] = Some(ServerContext::new(&policies[policy], &snapshot.ticket_keys)?);
        }
        Ok(contexts[policy].clone())
    }

    /// The lane's configuration of QUIC; built when first used. `None` where there is no HTTP/3.
    pub fn quic_config(&self, snapshot: &Snapshot) -> Result<Option<Arc<quinn_proto::ServerConfig>>, BuildError> {
        let (Some(tls), Some(quic)) = (&self.listener.tls, &self.listener.quic) else { return Ok(None) };
        let mut config = self.quic.borrow_mut();
        if config.is_none() {
            *config = Some(crate::quic::config::server(tls, &quic.settings, snapshot)?);
        }
        Ok(config.clone())
    }

    /// Whether this listener's tickets are single-use, so that hellos may have to go to the lane that owns theirs.
    pub fn has_stateful_tickets(&self) -> bool {
        self.listener.tls.as_ref().is_some_and(|t| t.policies.iter().any(|p| p.early_data() > 0))
    }
}

/// Whether a connection under the one's settings is as good under the other's.
fn same_tls(a: &Upstream, b: &Upstream) -> bool {
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
    /// The lane's TLS context towards the upstream. `only_h1`: for a request that HTTP/2 could not carry.
    pub fn context(&self, only_h1: bool) -> Result<Option<ClientContext>, BuildError> {
        let Some(policy) = &self.upstream.tls else { return Ok(None) };
        let mut contexts = self.contexts.borrow_mut();
        let context = &mut contexts[usize::from(only_h1)];
        if context.is_none() {
            let new = match self.upstream.syn_tls {
                None => ClientContext::new(policy)?,
                Some(_) => ClientContext::for_syn(policy)?,
            };
            *context = Some(if only_h1 { new.offering(&[b"http/1.1"]) } else { new });
        }
        Ok(context.clone())
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

    /// The connection over QUIC to a server, also one that is being made.
    pub fn h3_connection(&self, server: usize) -> Option<Key> {
        self.h3.borrow().get(server)?.0
    }

    /// Notes the connection over QUIC to a server, or that there is none.
    pub fn h3_note(&self, server: usize, key: Option<Key>) {
        if let Some(place) = self.h3.borrow_mut().get_mut(server) {
            place.0 = key;
        }
    }

    /// Whether a server could not be reached over QUIC lately.
    pub fn h3_is_down(&self, server: usize, now: Millis) -> bool {
        self.h3.borrow().get(server).is_some_and(|place| now < place.1)
    }

    /// A server could not be reached over QUIC; it is tried again at `until`.
    pub fn h3_failed(&self, server: usize, until: Millis) {
        if let Some(place) = self.h3.borrow_mut().get_mut(server) {
            place.1 = until;
        }
    }

    fn new(upstream: &Arc<Upstream>, old: Option<&LaneSnapshot>, slot: usize, lanes: usize) -> Self {
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
            h3: RefCell::new(vec![(None, 0); upstream.servers.len()]),
            syn: RefCell::new(vec![SynServer::default(); upstream.servers.len()]),
            upstream: upstream.clone(),
        }
    }

    /// Tells control how many requests wait for one of the servers.
    pub fn tell_waiting(&self, n: usize) {
        if let Some(first) = self.balancer.servers().first() {
            first.set_waiting(n);
        }
    }
}

impl LaneSnapshot {
    /// Where a server of a group is now: the group itself, or the one that a reload has put in its place, if what is
    /// spoken with the server is still the same. `None`: its connections are of no use any more.
    pub fn successor(&self, group: &Rc<LaneUpstream>, server: usize) -> Option<(Rc<LaneUpstream>, usize)> {
        if self.upstreams.iter().any(|u| Rc::ptr_eq(u, group)) {
            return Some((group.clone(), server));
        }
        let old = &group.upstream;
        let was = old.servers.get(server)?;
        let alike = self.upstreams.iter().filter(|u| {
            let new = &u.upstream;
            new.name == old.name && new.proxy_protocol == old.proxy_protocol && same_tls(new, old)
        });
        alike.into_iter().find_map(|u| {
            // The same server keeps its state over reloads.
            let same = |s: &crate::snapshot::Server| Arc::ptr_eq(&s.state, &was.state) && s.address == was.address;
            Some((u.clone(), u.upstream.servers.iter().position(same)?))
        })
    }

    /// Takes a snapshot in. What has not changed since `old` is kept: contexts (save for new ticket keys) and pools.
    pub fn new(snapshot: Arc<Snapshot>, old: Option<&LaneSnapshot>, slot: usize, lanes: usize) -> Self {
        let same_keys = old.is_some_and(|o| Arc::ptr_eq(&o.snapshot.ticket_keys, &snapshot.ticket_keys));
        let upstreams = snapshot.upstreams.iter().map(|upstream| {
            let kept = old.and_then(|o| o.upstreams.iter().find(|u| Arc::ptr_eq(&u.upstream, upstream)));
            kept.cloned().unwrap_or_else(|| Rc::new(LaneUpstream::new(upstream, old, slot, lanes)))
        });
        let upstreams: Rc<[Rc<LaneUpstream>]> = upstreams.collect();
        let same_upstreams = old.is_some_and(|o| {
            o.upstreams.len() == upstreams.len() && o.upstreams.iter().zip(&*upstreams).all(|(a, b)| Rc::ptr_eq(a, b))
        });
        let listeners = snapshot.listeners.iter().map(|listener| {
            let kept = old.and_then(|o| o.listeners.iter().find(|l| Arc::ptr_eq(&l.listener, listener)));
            let same_routing = kept.is_some_and(|k| Arc::ptr_eq(&k.routing, &snapshot.routing));
            match kept {
                Some(kept) if same_keys && same_upstreams && same_routing => kept.clone(),
                _ => Rc::new(LaneListener {
                    listener: listener.clone(),
                    upstreams: upstreams.clone(),
                    routing: snapshot.routing.clone(),
                    contexts: RefCell::new(kept.map_or(Vec::new(), |k| {
                        let contexts = k.contexts.borrow();
                        let renew = |c: &ServerContext| c.with_ticket_keys(&snapshot.ticket_keys).ok();
                        contexts.iter().map(|c| c.as_ref().and_then(renew)).collect()
                    })),
                    quic: RefCell::default(),
                }),
            }
        });
        let listeners = listeners.collect();
        Self { snapshot, listeners, upstreams }
    }
}
