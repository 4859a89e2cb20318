//! The task that keeps certificates: takes the folder's lock, knows when each name is due, runs orders, and remembers on disk
//! what an authority has refused, so that a restart asks no sooner.

mod task;
#[cfg(test)]
mod tests;

use crate::challenges::{Responder, Table};
use crate::folder::Folder;
use crate::http;
use crate::on_demand::{Demand, DemandCounts};
use crate::order::{Work, account_file};
use crate::shared::{Follower, Known, Shared, SharedCounts, SharedStore};
use crate::storage::{Lease, Storage};
use sealane_config::AcmeSettings;
use sealane_log as log;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use task::{OnDemand, SharedState, Task};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// The most commands that wait.
const COMMANDS: usize = 16;
/// The most demands of clients that wait.
const DEMANDS: usize = 256;
/// The most certificates of other gateways that wait.
const FETCHED: usize = 16;

/// The names that have got a certificate on demand, each with the time when its file was written.
pub type Kept = Arc<BTreeMap<String, u64>>;

/// What became of a command.
type Reply = Result<String, String>;

/// What control has to do.
#[derive(Debug)]
pub enum Event {
    /// Other challenges are to be answered. To be confirmed by [`Manager::published`].
    Challenges(Table),
    /// A certificate was written.
    Written,
    /// These names have certificates on demand, each since the time when its file was written.
    OnDemand(Kept),
}

/// A name and how its certificate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When it is renewed, or the next attempt is made, in seconds since 1970.
    pub next: Option<u64>,
    /// Why the last attempt failed; empty after one that did not.
    pub last_error: String,
    /// Clients have asked for it; the configuration does not list it.
    pub on_demand: bool,
    /// With a store: which gateway orders a certificate now; empty: none does, as far as is known.
    pub holder: String,
}

/// How all stand.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// By name.
    pub names: BTreeMap<String, Report>,
    /// Orders that have led to a certificate, since the start.
    pub issued: u64,
    /// Orders that have not.
    pub failed: u64,
    /// Names that clients have asked for: how many certificates there are, and what became of demands.
    pub on_demand: Option<(usize, DemandCounts)>,
    /// The store that certificates are shared through, and what has become of leases; `None`: there is the folder alone.
    pub shared: Option<(String, SharedCounts)>,
}

/// The running task.
#[derive(Debug)]
pub struct Manager {
    settings: Arc<AcmeSettings>,
    commands: mpsc::Sender<(String, oneshot::Sender<Reply>)>,
    table: watch::Receiver<Table>,
    published: watch::Sender<u64>,
    written: mpsc::Receiver<()>,
    kept: watch::Receiver<Kept>,
    demands: mpsc::Sender<Demand>,
    reports: Arc<Mutex<Reports>>,
    task: JoinHandle<()>,
    follower: Option<JoinHandle<()>>,
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(follower) = &self.follower {
            follower.abort();
        }
    }
}

impl Manager {
    /// Starts it, in a runtime of tokio's. With a store, it shares everything with the other gateways of the store.
    pub fn start(settings: AcmeSettings, store: Option<SharedStore>) -> Self {
        let settings = Arc::new(settings);
        let (commands, asked) = mpsc::channel(COMMANDS);
        let (table_sender, table) = watch::channel(Table::default());
        let (published, published_version) = watch::channel(0);
        let (tell_written, written) = mpsc::channel(1);
        let (tell_kept, kept) = watch::channel(Kept::default());
        let (demands, demanded) = mpsc::channel(DEMANDS);
        let reports = Arc::new(Mutex::new(Reports::default()));
        let responder = Responder::new(table_sender, published_version);
        let (tell_fetched, fetched) = mpsc::channel(FETCHED);
        let (tell_known, known) = watch::channel(Known::default());
        let folder = Folder::new(&settings.storage);
        let shared = store.map(|store| Shared::new(store, folder.clone()));
        let accounts = settings.by_authority().iter().map(|settings| account_file(&settings.directory)).collect();
        let follower = shared
            .as_ref()
            .map(|shared| tokio::spawn(Follower::new(shared, known, tell_fetched, responder.clone(), accounts).run()));
        let task = {
            let (settings, reports) = (settings.clone(), reports.clone());
            tokio::spawn(async move {
                let counters = shared.as_ref().map(|shared| (shared.name().to_owned(), shared.counters()));
                let storage: Arc<dyn Storage> = match shared {
                    Some(shared) => Arc::new(shared),
                    None => Arc::new(folder),
                };
                let work = |settings: AcmeSettings| {
                    Ok(Work {
                        tls: http::tls(&settings.roots)?,
                        settings: Arc::new(settings),
                        storage: storage.clone(),
                        lease: Lease::Local,
                        responder: responder.clone(),
                        registration: Arc::new(tokio::sync::Mutex::default()),
                    })
                };
                match settings.by_authority().into_iter().map(work).collect::<Result<Vec<Work>, String>>() {
                    Ok(works) => match OnDemand::new(&works[0].settings, tell_kept) {
                        Ok(on_demand) => {
                            let shared = counters.map(|(name, counters)| SharedState { name, counters, tell_known });
                            let task = Task::new(works, on_demand, shared, tell_written, reports);
                            task.run(asked, demanded, fetched).await
                        }
                        Err(e) => log::error!("certificates are not renewed: {e}"),
                    },
                    Err(e) => log::error!("certificates are not renewed: {e}"),
                }
            })
        };
        Self { settings, commands, table, published, written, kept, demands, reports, task, follower }
    }

    /// What it was started with.
    pub fn settings(&self) -> &AcmeSettings {
        &self.settings
    }

    /// The next thing to do. Cancel safe.
    pub async fn next(&mut self) -> Event {
        tokio::select! {
            Ok(()) = self.table.changed() => Event::Challenges(self.table.borrow_and_update().clone()),
            Some(()) = self.written.recv() => Event::Written,
            Ok(()) = self.kept.changed() => Event::OnDemand(self.kept.borrow_and_update().clone()),
            // The task has ended: nothing more comes.
            else => std::future::pending().await,
        }
    }

    /// Lanes answer the challenges of this version from now on.
    pub fn published(&self, version: u64) {
        self.published.send_replace(version);
    }

    /// Where names go that clients have asked for.
    pub fn demands(&self) -> mpsc::Sender<Demand> {
        self.demands.clone()
    }

    /// What renews certificates on demand.
    pub fn renewer(&self) -> Renewer {
        Renewer(self.commands.clone())
    }

    /// How all names stand.
    pub fn reports(&self) -> Arc<Mutex<Reports>> {
        self.reports.clone()
    }
}

/// Renews certificates on demand.
#[derive(Clone, Debug)]
pub struct Renewer(mpsc::Sender<(String, oneshot::Sender<Reply>)>);

impl Renewer {
    /// Renews a certificate now, whatever its schedule says, and returns what has become of it.
    pub async fn renew(&self, name: &str) -> Result<String, String> {
        let (reply, answer) = oneshot::channel();
        // A task that has ended drops the sender, which is an answer.
        let _ = self.0.send((name.to_owned(), reply)).await;
        answer.await.unwrap_or_else(|_| Err("certificates are not renewed; see the log".to_owned()))
    }
}
