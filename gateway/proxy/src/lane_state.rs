//! A lane's own form of a snapshot: its TLS contexts and its pools, reached by counts that no other lane touches.

use crate::access::Access;
use crate::latency::Latency;
use crate::patterns::LanePattern;
use crate::redirects::RedirectTable;
use crate::snapshot::{Listener, Routing, Snapshot};
use crate::upstream::group::{LaneUpstream, same_tls};
use sealane_tls::{BuildError, ServerContext};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct LaneListener {
    pub listener: Arc<Listener>,
    /// Those of the same snapshot: what the listener's actions name by index.
    pub upstreams: Rc<[Rc<LaneUpstream>]>,
    /// What the listener's hosts name by index, of the same snapshot.
    pub routing: Arc<Routing>,
    /// The same for access rules.
    pub access: Arc<Access>,
    /// The lane's own expressions for paths, in the order of those of `routing`.
    pub patterns: Rc<[LanePattern]>,
    /// Of the same snapshot: tables of redirects.
    pub redirects: Arc<[Arc<RedirectTable>]>,
    /// Of the same snapshot.
    pub latency: Arc<Latency>,
    /// By policy; built when first used.
    contexts: RefCell<Vec<Option<ServerContext>>>,
    quic: RefCell<Option<Arc<quinn_proto::ServerConfig>>>,
}

pub(crate) struct LaneSnapshot {
    pub snapshot: Arc<Snapshot>,
    pub listeners: Vec<Rc<LaneListener>>,
    pub upstreams: Rc<[Rc<LaneUpstream>]>,
    /// Requests are traced, or have ids.
    pub marks_requests: bool,
    patterns: Rc<[LanePattern]>,
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

impl LaneSnapshot {
    /// Where a server of a group is now: the group itself, or the one that a reload has put in its place, if what is
    /// spoken with the server is still the same. `None`: its connections are of no use any more.
    pub fn successor(&self, group: &Rc<LaneUpstream>, server: usize) -> Option<(Rc<LaneUpstream>, usize)> {
        if self.upstreams.iter().any(|u| Rc::ptr_eq(u, group)) {
            return Some((group.clone(), server));
        }
        let old = group.settings();
        let was = old.servers.get(server)?;
        let alike = self.upstreams.iter().filter(|u| {
            let new = u.settings();
            new.name == old.name && new.proxy_protocol == old.proxy_protocol && same_tls(new, old)
        });
        alike.into_iter().find_map(|u| {
            // The same server keeps its state over reloads.
            let same = |s: &crate::snapshot::Server| Arc::ptr_eq(&s.state, &was.state) && s.address == was.address;
            Some((u.clone(), u.settings().servers.iter().position(same)?))
        })
    }

    /// Takes a snapshot in. What has not changed since `old` is kept: contexts (save for new ticket keys) and pools.
    pub fn new(snapshot: Arc<Snapshot>, old: Option<&LaneSnapshot>, slot: usize, lanes: usize) -> Self {
        let same_keys = old.is_some_and(|o| Arc::ptr_eq(&o.snapshot.ticket_keys, &snapshot.ticket_keys));
        let upstreams = snapshot.upstreams.iter().map(|upstream| {
            let kept = old.and_then(|o| o.upstreams.iter().find(|u| Arc::ptr_eq(u.settings(), upstream)));
            kept.cloned().unwrap_or_else(|| Rc::new(LaneUpstream::new(upstream, old, slot, lanes)))
        });
        let upstreams: Rc<[Rc<LaneUpstream>]> = upstreams.collect();
        let same_upstreams = old.is_some_and(|o| {
            o.upstreams.len() == upstreams.len() && o.upstreams.iter().zip(&*upstreams).all(|(a, b)| Rc::ptr_eq(a, b))
        });
        let same_routing = old.filter(|o| Arc::ptr_eq(&o.snapshot.routing, &snapshot.routing));
        let patterns: Rc<[LanePattern]> = match same_routing {
            Some(old) => old.patterns.clone(),
            None => snapshot.routing.patterns.iter().map(LanePattern::new).collect(),
        };
        let same_latency = old.is_some_and(|o| Arc::ptr_eq(&o.snapshot.latency, &snapshot.latency));
        let listeners = snapshot.listeners.iter().map(|listener| {
            let kept = old.and_then(|o| o.listeners.iter().find(|l| Arc::ptr_eq(&l.listener, listener)));
            let same_rules = kept.is_some_and(|k| {
                Arc::ptr_eq(&k.routing, &snapshot.routing)
                    && Arc::ptr_eq(&k.access, &snapshot.access)
                    && Arc::ptr_eq(&k.redirects, &snapshot.redirects)
            });
            match kept {
                Some(kept) if same_keys && same_upstreams && same_rules && same_latency => kept.clone(),
                _ => Rc::new(LaneListener {
                    listener: listener.clone(),
                    upstreams: upstreams.clone(),
                    routing: snapshot.routing.clone(),
                    access: snapshot.access.clone(),
                    patterns: patterns.clone(),
                    redirects: snapshot.redirects.clone(),
                    latency: snapshot.latency.clone(),
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
        let marks_requests = snapshot.traces.is_some() || snapshot.request_ids.is_some();
        Self { snapshot, listeners, upstreams, marks_requests, patterns }
    }
}
