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
mod overlay;
mod probe;
mod probe_h2;
mod tracked;

pub use groups::{Edited, KeptChange, MAX_WEIGHT, ServerStatus, Unchanged, UnresolvedName};

use crate::config::{Config, Plan};
use crate::metrics::latency::Latencies;
use groups::Groups;
use sealane_proxy::snapshot::Upstream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;
use tracked::Tracked;

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
        if weight.is_some_and(|w| w > MAX_WEIGHT) {
            return Err(format!("the weight must be from 0 to {MAX_WEIGHT}"));
        }
        self.set(upstream, server, |t, _| t.weight = weight)
    }

    /// Lets a server drain (it gets nothing new, save from clients that stick to it), or takes that back.
    pub fn set_drain(&self, upstream: &str, server: &str, drain: bool) -> Result<(), String> {
        self.set(upstream, server, |t, plan| t.draining = (t.configured_drain(plan) != drain).then_some(drain))
    }

    /// Adds a server to a group, until the process ends or the group is gone; returns its name. [`LiveUpstreams::current`] has it.
    pub fn add(&self, upstream: &str, server: &str, weight: u32, backup: bool) -> Result<String, Unchanged> {
        let name = self.0.groups().add(upstream, server, weight, backup, Instant::now())?;
        self.0.look.notify_one();
        Ok(name)
    }

    /// Removes a server from a group, in the same way.
    pub fn remove(&self, upstream: &str, server: &str) -> Result<(), Unchanged> {
        self.0.groups().remove(upstream, server, Instant::now())?;
        self.0.look.notify_one();
        Ok(())
    }

    /// What a change of a group's servers would make of the configuration.
    pub fn edited(&self, upstream: &str, change: &KeptChange) -> Result<Edited, Unchanged> {
        self.0.groups().edited(upstream, change)
    }

    /// Ends what operators have set beside the configuration, where the configuration now says it.
    pub fn settle(&self, upstream: &str, change: &KeptChange) {
        if let KeptChange::Set { server, weight, drain } = change {
            // A server without an address has nothing set.
            let _ = self.set(upstream, server, |t, _| {
                t.weight = t.weight.filter(|_| weight.is_none());
                t.draining = t.draining.filter(|_| drain.is_none());
            });
        }
    }

    /// Servers of the configuration that operators have removed, by group.
    pub fn removed(&self) -> Vec<(String, Vec<String>)> {
        self.0.groups().removed()
    }

    fn set(&self, upstream: &str, server: &str, change: impl Fn(&mut Tracked, &Plan)) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const HEAD: &str = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
    const APP: &str = "[[upstream]]\nname = \"app\"\nservers = [\"http://127.0.0.1:1\"]\n";
    const HOST: &str = "[[host]]\nnames = [\"*\"]\nupstream = \"app\"\n";

    fn config(folder: &Path, text: &str) -> Config {
        let file = folder.join("sealane.toml");
        std::fs::write(&file, text).unwrap();
        crate::resolve::load_and_wait(&file).unwrap_or_else(|e| panic!("{e}")).0
    }

    fn live(config: &Config) -> LiveUpstreams {
        LiveUpstreams::new(config, Arc::new(Latencies::new(config.lanes)))
    }

    fn names(live: &LiveUpstreams) -> Vec<String> {
        live.current()[0].servers.iter().map(|server| server.name.clone()).collect()
    }

    fn add(live: &LiveUpstreams, server: &str) -> Result<String, Unchanged> {
        live.add("app", server, 1, false)
    }

    #[test]
    fn servers_are_added_and_removed_and_outlast_reloads() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("{HEAD}{APP}{HOST}");
        let configured = config(folder.path(), &text);
        let live = live(&configured);
        assert_eq!(add(&live, "http://127.0.0.1:2").unwrap(), "127.0.0.1:2");
        assert_eq!(names(&live), ["127.0.0.1:1", "127.0.0.1:2"]);
        assert_eq!(live.list().iter().map(|s| s.added).collect::<Vec<_>>(), [false, true]);
        live.set_drain("app", "127.0.0.1:2", true).unwrap();
        live.apply(&config(folder.path(), &text));
        assert_eq!(names(&live), ["127.0.0.1:1", "127.0.0.1:2"]);
        assert!(live.list()[1].draining, "a server that stays keeps its state");
        live.remove("app", "127.0.0.1:1").unwrap();
        assert_eq!(
            (names(&live), live.removed()),
            (vec!["127.0.0.1:2".to_owned()], vec![("app".to_owned(), vec!["127.0.0.1:1".to_owned()])])
        );
        live.apply(&config(folder.path(), &text));
        assert_eq!(names(&live), ["127.0.0.1:2"]);
        // As the file has it, it is no change.
        add(&live, "http://127.0.0.1:1").unwrap();
        assert!(live.removed().is_empty());
        // A group that is gone takes its changes with it.
        let other = text.replace("\"app\"", "\"web\"");
        live.apply(&config(folder.path(), &other));
        live.apply(&config(folder.path(), &text));
        assert_eq!(names(&live), ["127.0.0.1:1"]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let live = live(&config(folder.path(), &format!("{HEAD}{APP}{HOST}")));
        assert!(matches!(live.add("web", "http://127.0.0.1:2", 1, false), Err(Unchanged::Unknown(_))));
        assert!(matches!(add(&live, "https://127.0.0.1:2"), Err(Unchanged::Invalid(_))));
        assert!(matches!(live.add("app", "http://127.0.0.1:2", 257, false), Err(Unchanged::Invalid(_))));
        assert!(matches!(add(&live, "http://127.0.0.1:1"), Err(Unchanged::Conflict(_))));
        assert!(matches!(live.remove("app", "127.0.0.1:2"), Err(Unchanged::Unknown(_))));
        assert!(matches!(live.remove("app", "127.0.0.1:1"), Err(Unchanged::Conflict(_))), "it is the last one");
        for port in 2..2 + overlay::MAX_PER_GROUP {
            add(&live, &format!("http://127.0.0.1:{port}")).unwrap();
        }
        assert!(matches!(add(&live, "http://127.0.0.1:9999"), Err(Unchanged::Conflict(_))));
        assert_eq!(names(&live).len(), 1 + overlay::MAX_PER_GROUP);
    }

    #[test]
    fn what_is_kept_fits_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let servers = |count: usize| {
            let servers: Vec<String> = (1..=count).map(|port| format!("\"http://127.0.0.1:{port}\"")).collect();
            let app = format!("[[upstream]]\nname = \"app\"\nservers = [{}]\n", servers.join(", "));
            live(&config(folder.path(), &format!("{HEAD}{app}{HOST}")))
        };
        let new =
            |port: u16, weight| KeptChange::Add { server: format!("http://127.0.0.1:{port}"), weight, backup: false };
        let set = |port: u16, weight| KeptChange::Set {
            server: format!("127.0.0.1:{port}"),
            weight: Some(weight),
            drain: None,
        };
        let remove = |port: u16| KeptChange::Remove { server: format!("127.0.0.1:{port}") };
        let two = servers(2);
        let added = two.edited("app", &new(3, 5)).unwrap();
        assert_eq!((added.name.as_str(), added.count, added.servers.len()), ("127.0.0.1:3", 2, 3));
        assert!(matches!(two.edited("app", &new(2, 1)), Err(Unchanged::Conflict(_))), "it is there");
        assert!(matches!(two.edited("app", &set(1, 257)), Err(Unchanged::Invalid(_))));
        assert!(matches!(two.edited("app", &set(3, 2)), Err(Unchanged::Unknown(_))));
        let set = two.edited("app", &set(2, 7)).unwrap();
        assert_eq!((set.edit.is_some(), set.servers[1].weight), (true, 7));
        // A removal for a while, of a server that the file has, ends without a change of the file.
        two.remove("app", "127.0.0.1:2").unwrap();
        assert!(two.edited("app", &new(2, 1)).unwrap().edit.is_none());
        assert!(two.edited("app", &remove(2)).unwrap().edit.is_some());
        // So does an addition for a while.
        add(&two, "http://127.0.0.1:4").unwrap();
        assert!(two.edited("app", &remove(4)).unwrap().edit.is_none());
        assert!(matches!(servers(1).edited("app", &remove(1)), Err(Unchanged::Conflict(_))), "it is the last one");
        assert!(matches!(servers(overlay::MAX_LISTED).edited("app", &new(2000, 1)), Err(Unchanged::Conflict(_))));
    }

    #[test]
    fn a_name_that_is_added_is_resolved_and_keeps_its_addresses_over_a_reload() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("{HEAD}{APP}{HOST}");
        let live = live(&config(folder.path(), &text));
        add(&live, "http://app.test:80").unwrap();
        assert_eq!(names(&live), ["127.0.0.1:1"], "it is down until it resolves");
        let now = Instant::now();
        let mut groups = live.0.groups();
        assert_eq!(groups.all[0].names(), [(1, "app.test".to_owned())]);
        assert!(groups.all[0].next_resolve <= now);
        groups.all[0].resolving = true;
        let found = crate::config::Found { endpoints: vec![std::net::IpAddr::from([10, 0, 0, 1]).into()], ttl: None };
        assert!(groups.resolved("app", vec![(1, "app.test".to_owned(), Ok(found))], now));
        drop(groups);
        assert_eq!(names(&live), ["127.0.0.1:1", "app.test:80"]);
        live.apply(&config(folder.path(), &text));
        assert_eq!(names(&live), ["127.0.0.1:1", "app.test:80"]);
    }

    /// A wider host that leads to the servers of a name with client certificates would be a way around them.
    #[test]
    fn no_upstream_gets_a_server_of_another_one_where_names_need_certificates() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        std::fs::write(folder.path().join("a.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("a.key"), made.signing_key.serialize_pem()).unwrap();
        let tls = "[listener.tls]\ncertificates = { cert = \"a.pem\", key = \"a.key\" }\n\
                   client_auth = { mode = \"require\", ca = \"a.pem\" }\n";
        let web = "[[upstream]]\nname = \"web\"\nservers = [\"http://127.0.0.1:2\"]\n\
                   [[host]]\nnames = [\"a.example\"]\nupstream = \"web\"\n";
        let guarded = live(&config(folder.path(), &format!("{HEAD}{tls}{APP}{web}{HOST}")));
        for same in ["http://127.0.0.1:2", "http://0.0.0.0:2", "http://localhost:2"] {
            assert!(matches!(add(&guarded, same), Err(Unchanged::Conflict(_))), "{same}");
        }
        assert!(add(&guarded, "http://127.0.0.1:3").is_ok());
        let open = live(&config(folder.path(), &format!("{HEAD}{APP}{web}{HOST}")));
        assert!(add(&open, "http://127.0.0.1:2").is_ok());
        // A reload that makes it a way ends it.
        open.apply(&config(folder.path(), &format!("{HEAD}{tls}{APP}{web}{HOST}")));
        assert_eq!(names(&open), ["127.0.0.1:1"]);
    }
}
