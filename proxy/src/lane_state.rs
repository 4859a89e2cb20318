//! A lane's own form of a snapshot: its TLS contexts and its pools, reached by counts that no other lane touches.

use crate::snapshot::{Listener, Snapshot, Upstream, UpstreamHttp};
use sealane_lane::Key;
use sealane_tls::{BuildError, ClientContext, ServerContext};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct LaneListener {
    pub listener: Arc<Listener>,
    /// Those of the same snapshot: what the listener's actions name by index.
    pub upstreams: Rc<[Rc<LaneUpstream>]>,
    /// By policy; built when first used.
    contexts: RefCell<Vec<Option<ServerContext>>>,
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
    next: Cell<usize>,
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
}

impl LaneUpstream {
    /// The lane's TLS context towards the upstream. `only_h1`: for a request that HTTP/2 could not carry.
    pub fn context(&self, only_h1: bool) -> Result<Option<ClientContext>, BuildError> {
        let Some(policy) = &self.upstream.tls else { return Ok(None) };
        let mut contexts = self.contexts.borrow_mut();
        let context = &mut contexts[usize::from(only_h1)];
        if context.is_none() {
            let new = ClientContext::new(policy)?;
            *context = Some(if only_h1 { new.offering(&[b"http/1.1"]) } else { new });
        }
        Ok(context.clone())
    }

    /// Whether a connection to this server is expected to speak HTTP/2.
    pub fn expects_h2(&self, server: usize) -> bool {
        match self.upstream.http {
            UpstreamHttp::One => false,
            UpstreamHttp::Two => true,
            UpstreamHttp::Auto => self.speaks_h2.borrow().get(server).copied().unwrap_or_default(),
        }
    }

    /// Notes what a server has chosen.
    pub fn note_h2(&self, server: usize, speaks: bool) {
        if let Some(known) = self.speaks_h2.borrow_mut().get_mut(server) {
            *known = speaks;
        }
    }

    /// The server whose turn it is.
    pub fn next_server(&self) -> usize {
        let turn = self.next.get();
        self.next.set(turn.wrapping_add(1));
        turn % self.upstream.servers.len().max(1)
    }
}

impl LaneSnapshot {
    /// Takes a snapshot in. What has not changed since `old` is kept: contexts (save for new ticket keys) and pools.
    pub fn new(snapshot: Arc<Snapshot>, old: Option<&LaneSnapshot>, slot: usize) -> Self {
        let same_keys = old.is_some_and(|o| Arc::ptr_eq(&o.snapshot.ticket_keys, &snapshot.ticket_keys));
        let upstreams = snapshot.upstreams.iter().map(|upstream| {
            let kept = old.and_then(|o| o.upstreams.iter().find(|u| Arc::ptr_eq(&u.upstream, upstream)));
            kept.cloned().unwrap_or_else(|| {
                Rc::new(LaneUpstream {
                    upstream: upstream.clone(),
                    contexts: RefCell::default(),
                    idle: RefCell::new(vec![Vec::new(); upstream.servers.len()]),
                    shared: RefCell::new(vec![Vec::new(); upstream.servers.len()]),
                    speaks_h2: RefCell::new(vec![false; upstream.servers.len()]),
                    // Lanes start at different servers, so that few requests still reach all of them.
                    next: Cell::new(slot),
                })
            })
        });
        let upstreams: Rc<[Rc<LaneUpstream>]> = upstreams.collect();
        let same_upstreams = old.is_some_and(|o| {
            o.upstreams.len() == upstreams.len() && o.upstreams.iter().zip(&*upstreams).all(|(a, b)| Rc::ptr_eq(a, b))
        });
        let listeners = snapshot.listeners.iter().map(|listener| {
            let kept = old.and_then(|o| o.listeners.iter().find(|l| Arc::ptr_eq(&l.listener, listener)));
            match kept {
                Some(kept) if same_keys && same_upstreams => kept.clone(),
                _ => Rc::new(LaneListener {
                    listener: listener.clone(),
                    upstreams: upstreams.clone(),
                    contexts: RefCell::new(kept.map_or(Vec::new(), |k| {
                        let contexts = k.contexts.borrow();
                        let renew = |c: &ServerContext| c.with_ticket_keys(&snapshot.ticket_keys).ok();
                        contexts.iter().map(|c| c.as_ref().and_then(renew)).collect()
                    })),
                }),
            }
        });
        let listeners = listeners.collect();
        Self { snapshot, listeners, upstreams }
    }
}
