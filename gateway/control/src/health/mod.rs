//! The upstreams while they are served: names resolved again, servers checked, ejected, weighed, and their limits
//! dealt out to the lanes.
//!
//! One thread of control (`monitor`) does all of it, once for all lanes. What it finds it publishes in two ways: how a
//! server stands and what lanes may have under way there are words in its `ServerState`, which lanes read; which
//! servers there are is a new snapshot, for which [`LiveUpstreams::changed`] asks.

mod grants;
mod groups;
mod metrics;
mod monitor;
mod probe;
mod probe_h2;
mod tracked;

pub use groups::{ServerStatus, UnresolvedName};

use crate::config::Config;
use crate::metrics::latency::Latencies;
use groups::Groups;
use sealane_proxy::snapshot::Upstream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// The upstreams of a running gateway. Clones are handles to the same.
#[derive(Clone)]
pub struct LiveUpstreams(Arc<Shared>);

impl std::fmt::Debug for LiveUpstreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LiveUpstreams")
    }
}

/// Wakes the lanes.
type Waker = Box<dyn Fn() + Send + Sync>;

struct Shared {
    groups: Mutex<Groups>,
    /// The health monitor is to look at once.
    look: Arc<Notify>,
    /// There are other servers than before.
    changed: Notify,
    waker: Mutex<Option<Waker>>,
}

impl Shared {
    fn groups(&self) -> MutexGuard<'_, Groups> {
        // A thread that panicked with the lock did so between two whole states, or the process is ending.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_lanes(&self) {
        if let Some(wake) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }
}

impl LiveUpstreams {
    /// Those of a configuration, whose times are recorded in `latencies`. Nothing is monitored yet.
    pub fn new(config: &Config, latencies: Arc<Latencies>) -> Self {
        let look = Arc::new(Notify::new());
        let mut groups = Groups::new(config.lanes, look.clone(), latencies);
        groups.apply(config, Instant::now());
        Self(Arc::new(Shared { groups: Mutex::new(groups), look, changed: Notify::new(), waker: Mutex::new(None) }))
    }

    /// Starts to monitor them, on a thread of its own; `wake` wakes every lane.
    pub fn start(&self, wake: impl Fn() + Send + Sync + 'static) -> std::io::Result<()> {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wake));
        monitor::start(&self.0)
    }

    /// Takes another configuration in. Servers that stay keep their state.
    pub fn apply(&self, config: &Config) {
        self.0.groups().apply(config, Instant::now());
        self.0.look.notify_one();
    }

    /// Takes the TLS settings of a configuration in, of which nothing else has changed. Connections to servers stay that may.
    pub fn replace_tls(&self, config: &Config) {
        self.0.groups().replace_tls(config, Instant::now());
    }

    /// As they are to be published, in the order of the configuration. Those that have not changed are the same values.
    pub fn current(&self) -> Vec<Arc<Upstream>> {
        self.0.groups().current()
    }

    /// Waits until [`LiveUpstreams::current`] gives something else than before.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Every server and how it stands.
    pub fn list(&self) -> Vec<ServerStatus> {
        self.0.groups().list(Instant::now())
    }

    /// The names that do not resolve now.
    pub fn unresolved(&self) -> Vec<UnresolvedName> {
        self.0.groups().unresolved()
    }

    /// Gives a server another weight (0 to 256), or the configured one back. It stays until the process ends or the
    /// server is gone, over reloads too. The error is a sentence for the operator.
    pub fn set_weight(&self, upstream: &str, server: &str, weight: Option<u32>) -> Result<(), String> {
        if weight.is_some_and(|w| w > 256) {
            return Err("the weight must be from 0 to 256".to_owned());
        }
        self.set(upstream, server, |t| t.weight = weight)
    }

    /// Lets a server drain (it gets nothing new, save from clients that stick to it), or takes that back.
    pub fn set_drain(&self, upstream: &str, server: &str, drain: bool) -> Result<(), String> {
        self.set(upstream, server, |t| t.draining = drain)
    }

    fn set(&self, upstream: &str, server: &str, change: impl Fn(&mut tracked::Tracked)) -> Result<(), String> {
        let now = Instant::now();
        let mut groups = self.0.groups();
        groups.change(upstream, server, change)?;
        let lanes_look = groups.publish(now);
        drop(groups);
        if lanes_look {
            self.0.wake_lanes();
        }
        self.0.look.notify_one();
        Ok(())
    }
}
