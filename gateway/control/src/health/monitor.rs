//! The thread that monitors the upstreams: it looks when somebody nudges it, when something is due, and four times a
//! second.

use super::probe::{Contexts, Place, ask};
use super::{Groups, Shared};
use crate::config::{ResolverKind, ServerPlan};
use crate::dns::Resolver;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it looks without being asked.
const TICK: Duration = Duration::from_millis(250);
/// It looks no more often than this, however often it is nudged.
const REST: Duration = Duration::from_millis(4);
/// With nobody left who could ask for anything, it ends.
const ALONE: usize = 1;

/// The resolver of the configuration, and what it is.
type Asked = (ResolverKind, Arc<Resolver>);

pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let weak = Arc::downgrade(shared);
    std::thread::Builder::new().name("upstreams".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, run(weak));
        // A name that is being resolved is not waited for.
        runtime.shutdown_background();
    })?;
    Ok(())
}

async fn run(weak: Weak<Shared>) {
    let contexts = Rc::new(Contexts::default());
    let mut resolver = None;
    loop {
        let Some(shared) = weak.upgrade() else { return };
        if Arc::strong_count(&shared) == ALONE {
            return;
        }
        let now = Instant::now();
        let (wake, soon) = {
            let mut groups = shared.groups();
            groups.look(now);
            let stands = groups.publish(now);
            let (dealt, soon) = groups.deal();
            start_checks(&shared, &mut groups, &contexts, now);
            start_resolving(&shared, &mut groups, &mut resolver, now);
            (stands || dealt, soon)
        };
        if wake {
            shared.wake_lanes();
        }
        let next = if soon { now + REST } else { shared.groups().next(now, TICK) };
        let look = shared.look.clone();
        drop(shared);
        tokio::select! {
            () = look.notified() => tokio::time::sleep(REST).await,
            () = tokio::time::sleep_until(next.into()) => {}
        }
    }
}

fn start_checks(shared: &Arc<Shared>, groups: &mut Groups, contexts: &Rc<Contexts>, now: Instant) {
    for group in &mut groups.all {
        let Some(check) = group.plan.health.clone() else { continue };
        let (upstream, plan) = (group.current.clone(), group.plan.clone());
        for t in group.servers.iter_mut().filter(|t| !t.checking && t.next_check <= now) {
            t.checking = true;
            t.next_check = now + check.interval;
            let (check, upstream, contexts) = (check.clone(), upstream.clone(), contexts.clone());
            let (name, address) = (t.name.clone(), t.address);
            let planned = plan.servers.get(t.plan);
            let host = planned.map_or_else(|| name.clone(), ServerPlan::authority);
            let place = match planned.and_then(|server| server.socket.clone()) {
                Some(socket) => Place::Socket(socket),
                None => Place::Address(address),
            };
            // Not a handle: a check that hangs must not keep what is given up alive.
            let weak = Arc::downgrade(shared);
            tokio::task::spawn_local(async move {
                let asked = ask(&check, &upstream, &host, &place, &contexts);
                let result = match tokio::time::timeout(check.timeout, asked).await {
                    Ok(result) => result,
                    Err(_) => Err("no response in time".to_owned()),
                };
                let Some(shared) = weak.upgrade() else { return };
                let stands = {
                    let mut groups = shared.groups();
                    groups.checked(&upstream.name, address, &name, result);
                    // At once, so that nobody is told of a server that it is down while lanes still use it.
                    groups.publish(Instant::now())
                };
                if stands {
                    shared.wake_lanes();
                }
                shared.look.notify_one();
            });
        }
    }
}

fn start_resolving(shared: &Arc<Shared>, groups: &mut Groups, resolver: &mut Option<Asked>, now: Instant) {
    for group in groups.all.iter_mut().filter(|g| !g.resolving && g.next_resolve <= now) {
        let names = group.names();
        if names.is_empty() {
            continue;
        }
        group.resolving = true;
        let kind = group.plan.resolver;
        let resolver = match resolver {
            Some((of, resolver)) if *of == kind => resolver.clone(),
            _ => resolver.insert((kind, Arc::new(Resolver::new(kind)))).1.clone(),
        };
        let group = group.name().to_owned();
        let weak = Arc::downgrade(shared);
        tokio::task::spawn_local(async move {
            let mut lookups = tokio::task::JoinSet::new();
            for (at, host) in names {
                let resolver = resolver.clone();
                lookups.spawn(async move {
                    let found = resolver.resolve(&host).await;
                    (at, host, found)
                });
            }
            let mut results = Vec::new();
            while let Some(done) = lookups.join_next().await {
                results.extend(done);
            }
            let Some(shared) = weak.upgrade() else { return };
            if shared.groups().resolved(&group, results, Instant::now()) {
                shared.changed.notify_one();
            }
            shared.look.notify_one();
        });
    }
}
