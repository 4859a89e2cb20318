//! The task of a [`Manager`](super::Manager): what it knows of each name, and its loop.

mod demands;
mod files;
mod orders;
mod sharing;

use super::{Reply, Report, Reports};
use crate::certificate::Info;
use crate::folder::{Folder, Lock, is_file_name};
use crate::on_demand::Demand;
use crate::order::{Failure, Issued, Suggested, Work};
use crate::schedule::now;
use crate::shared::Fetched;
use crate::storage::{Claim, Lease, StorageError};
pub(super) use demands::OnDemand;
use serde::{Deserialize, Serialize};
pub(super) use sharing::SharedState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{self, JoinSet};

/// The longest sleep: a clock may be set, and the lock of another process may become free.
const LONGEST_SLEEP: u64 = 10;

/// What is kept of a name on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Saved {
    /// The authority that has issued the certificate, or is asked for the first.
    directory: String,
    /// In a row.
    failures: u32,
    /// No attempt before this second.
    not_before: u64,
    /// Why the last attempt failed.
    last_error: String,
    /// When the certificate is renewed.
    renew_at: u64,
    /// What the authority would like, from which `renew_at` was chosen.
    window: Option<(u64, u64)>,
    /// The version of the certificate among all gateways; 0: none of them has given it one.
    version: u64,
}

/// What is kept of the authorities on disk.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedAuthority {
    directory: String,
    not_before: u64,
    /// The same of the other authorities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<SavedAuthority>,
}

#[derive(Default)]
struct Entry {
    saved: Saved,
    certificate: Option<Info>,
    /// An order is open.
    running: bool,
    /// Who waits for its end.
    waiting: Vec<oneshot::Sender<Reply>>,
    /// When the authority is asked for its window; `None`: it has none.
    ask_at: Option<u64>,
    /// No order before this second, whatever was issued.
    spaced: u64,
    /// The certificate is from another authority than the configured ones.
    foreign: bool,
    /// Which authority the open order is with.
    asks: usize,
    /// Clients have asked for the name; the configuration does not list it.
    on_demand: bool,
    /// When its certificate was written.
    written: u64,
    /// Of the open order, where certificates are shared.
    lease: Option<Lease>,
    /// Which gateway has the lease, for people; empty: none, as far as is known.
    holder: String,
    /// Why no order can begin, though one is due.
    obstacle: String,
    /// The version of the certificate that the store had when the lease was got.
    stored: u64,
}

impl Entry {
    /// When the next order is to be made.
    fn due(&self, authority: u64) -> u64 {
        let wanted = if self.certificate.is_some() { self.saved.renew_at } else { 0 };
        wanted.max(self.saved.not_before).max(self.spaced).max(authority)
    }

    fn life(&self) -> Option<u64> {
        self.certificate.as_ref().map(|c| c.not_after.saturating_sub(c.not_before))
    }

    /// The version of its certificate among all gateways; 0: it has none.
    fn version(&self) -> u64 {
        let of = |info: &Info| if self.saved.version == 0 { info.not_before.max(1) } else { self.saved.version };
        self.certificate.as_ref().map_or(0, of)
    }
}

enum Done {
    Claim(Result<Claim, StorageError>),
    Order(Result<Issued, Failure>),
    Window(Result<Option<Suggested>, Failure>),
}

pub(super) struct Task {
    /// Of each authority, the first one first; never empty.
    works: Vec<Work>,
    lock: Option<Lock>,
    /// Why there is no lock, so that it is said once.
    told: String,
    /// Another process has the lock, and renews.
    follows: bool,
    entries: BTreeMap<String, Entry>,
    /// When each authority may be asked for orders again, in the order of `works`.
    waits: Vec<u64>,
    running: JoinSet<(String, Done)>,
    /// Whom each of them is for: one that panics cannot say it.
    names: HashMap<task::Id, String>,
    commanded: VecDeque<(String, oneshot::Sender<Reply>)>,
    tell_written: mpsc::Sender<()>,
    reports: Arc<Mutex<Reports>>,
    on_demand: Option<OnDemand>,
    shared: Option<SharedState>,
    /// Why orders have no lease, so that it is said once.
    told_lease: String,
}

impl Task {
    pub(super) fn new(
        works: Vec<Work>,
        on_demand: Option<OnDemand>,
        shared: Option<SharedState>,
        tell_written: mpsc::Sender<()>,
        reports: Arc<Mutex<Reports>>,
    ) -> Self {
        let names = works[0].settings.names.iter().filter(|name| is_file_name(name));
        let entries = names.map(|name| (name.clone(), Entry::default())).collect();
        Self {
            waits: vec![0; works.len()],
            works,
            lock: None,
            told: String::new(),
            follows: false,
            entries,
            running: JoinSet::new(),
            names: HashMap::new(),
            commanded: VecDeque::new(),
            tell_written,
            reports,
            on_demand,
            shared,
            told_lease: String::new(),
        }
    }

    fn folder(&self) -> &Folder {
        self.works[0].storage.folder()
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        // Each change is one assignment.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn run(
        mut self,
        mut asked: mpsc::Receiver<(String, oneshot::Sender<Reply>)>,
        mut demanded: mpsc::Receiver<Demand>,
        mut fetched: mpsc::Receiver<Fetched>,
    ) {
        loop {
            if self.lock.is_none() {
                self.take_lock().await;
                self.follow_index().await;
            }
            self.execute_commands();
            if self.lock.is_some() {
                self.forget_expired().await;
                self.start_due();
            }
            self.report();
            let sleep = Duration::from_secs(self.next_due().saturating_sub(now()).clamp(1, LONGEST_SLEEP));
            tokio::select! {
                Some(done) = self.running.join_next_with_id() => match done {
                    Ok((id, (name, done))) => {
                        self.names.remove(&id);
                        self.finished(&name, done).await;
                    }
                    Err(e) => {
                        if let Some(name) = self.names.remove(&e.id()) {
                            let failure = Failure::ours(format!("{e}; this is a bug"));
                            self.finished(&name, Done::Order(Err(failure))).await;
                        }
                    }
                },
                command = asked.recv() => match command {
                    Some(command) => self.commanded.push_back(command),
                    None => return,
                },
                Some(demand) = demanded.recv() => self.demand(&demand),
                Some(Fetched { name, kept }) = fetched.recv() => {
                    self.adopt(&name, kept).await;
                }
                (name, verdict) = OnDemand::next(&mut self.on_demand) => self.answered(&name, &verdict),
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    fn report(&self) {
        let renews = self.lock.is_some();
        let report = |entry: &Entry| Report {
            on_demand: entry.on_demand,
            holder: match &entry.lease {
                Some(Lease::Shared(_)) => "this gateway".to_owned(),
                _ => entry.holder.clone(),
            },
            next: renews.then(|| self.due(entry).max(now())),
            last_error: match (renews, self.follows) {
                (true, _) if entry.saved.last_error.is_empty() => entry.obstacle.clone(),
                (true, _) => entry.saved.last_error.clone(),
                (false, true) => String::new(),
                (false, false) => self.told.clone(),
            },
        };
        let certificates = self.entries.values().filter(|e| e.on_demand && e.certificate.is_some()).count();
        let demands = self.on_demand.as_ref().map(|on_demand| (certificates, on_demand.gate.counts));
        self.reports().on_demand = demands;
        self.reports().shared = self.shared.as_ref().map(|shared| (shared.name.clone(), shared.counters.read()));
        self.reports().names = self.entries.iter().map(|(name, entry)| (name.clone(), report(entry))).collect();
    }
}

/// A random share of 1.
fn share() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness all renew at the same time, which is no error.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}
