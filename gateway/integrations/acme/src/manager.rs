//! The task that keeps certificates: takes the folder's lock, knows when each name is due, runs orders, and remembers on disk
//! what an authority has refused, so that a restart asks no sooner.

use crate::certificate::{self, Info};
use crate::challenges::{Responder, Table};
use crate::folder::{Folder, Lock, certificate_file, is_file_name, pending_file, state_file};
use crate::on_demand::{Demand, DemandCounts, Gate, MAX_ASKING, Next, Verdict, ask};
use crate::order::{Failure, Issued, Suggested, Work, account_file};
use crate::schedule::now;
use crate::shared::{Counters, Fetched, Follower, Known, Shared, SharedCounts, SharedStore, WAITS_FILE};
use crate::storage::{self, Claim, Lease, Ours, Storage, StorageError};
use crate::{http, schedule};
use rustls::pki_types::CertificateDer;
use sealane_config::{AcmeSettings, AskUrl, ON_DEMAND_INDEX};
use sealane_log as log;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{self, JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

/// Orders that are open at a time.
const MAX_ORDERS: usize = 4;
/// Attempts by one authority before another one is asked: one for each way to prove a name that needs no setting.
const ATTEMPTS: usize = 2;
/// The longest sleep: a clock may be set, and the lock of another process may become free.
const LONGEST_SLEEP: u64 = 10;
/// How often an authority is asked when it would like a renewal: bounds of what it says itself.
const ASK_AGAIN: (u64, u64) = (60, 86_400);
/// Of these, orders for names that clients have asked for.
const MAX_ON_DEMAND: usize = 2;
/// The most commands that wait.
const COMMANDS: usize = 16;
/// The most demands of clients that wait.
const DEMANDS: usize = 256;
/// The most certificates of other gateways that wait.
const FETCHED: usize = 16;
/// When a gateway asks again for a lease that another one has, in seconds.
const LEASE_AGAIN: u64 = 5;

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

/// What is shared with other gateways.
struct SharedState {
    /// The store, for people.
    name: String,
    counters: Arc<Counters>,
    tell_known: watch::Sender<Known>,
}

enum Done {
    Claim(Result<Claim, StorageError>),
    Order(Result<Issued, Failure>),
    Window(Result<Option<Suggested>, Failure>),
}

/// What names need that clients ask for.
struct OnDemand {
    gate: Gate,
    service: Option<Service>,
    asking: JoinSet<(String, Verdict)>,
    /// Whom each question is about: one that panics cannot say it.
    asked: HashMap<task::Id, String>,
    tell: watch::Sender<Kept>,
}

/// The service that decides about names.
#[derive(Clone)]
struct Service {
    url: AskUrl,
    tls: Option<TlsConnector>,
    /// Questions that are open at a time.
    room: Arc<Semaphore>,
}

impl Service {
    async fn ask(&self, name: &str) -> Verdict {
        let Ok(_room) = self.room.acquire().await else {
            return Verdict::Unanswered("the gateway no longer asks it".into());
        };
        ask(&self.url, self.tls.as_ref(), name).await
    }
}

impl OnDemand {
    fn new(settings: &AcmeSettings, tell: watch::Sender<Kept>) -> Result<Option<Self>, String> {
        let Some(settings) = settings.on_demand.clone() else { return Ok(None) };
        let service = |url: AskUrl| -> Result<Service, String> {
            let tls = url.tls.then(|| http::tls(&settings.roots)).transpose()?.map(TlsConnector::from);
            Ok(Service { url, tls, room: Arc::new(Semaphore::new(MAX_ASKING)) })
        };
        let service = settings.ask.clone().map(service).transpose()?;
        let gate = Gate::new(settings, Instant::now());
        Ok(Some(Self { gate, service, asking: JoinSet::new(), asked: HashMap::new(), tell }))
    }

    /// The next answer of the service, for a name.
    async fn next(this: &mut Option<Self>) -> (String, Verdict) {
        let Some(Self { asking, asked, .. }) = this else { return std::future::pending().await };
        match asking.join_next_with_id().await {
            Some(Ok((id, answer))) => {
                asked.remove(&id);
                answer
            }
            Some(Err(e)) => match asked.remove(&e.id()) {
                Some(name) => (name, Verdict::Unanswered(format!("{e}; this is a bug"))),
                None => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

struct Task {
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
    fn new(
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

    async fn run(
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

    /// Becomes the one that renews, if no other process is; then reads what is there.
    async fn take_lock(&mut self) {
        let shown = self.works[0].settings.storage.display().to_string();
        let taken = self.folder().lock().await;
        self.follows = matches!(taken, Ok(None));
        let told = match taken {
            Ok(Some(lock)) => {
                self.lock = Some(lock);
                match self.read_folder().await {
                    Ok(()) => String::new(),
                    Err(e) => {
                        self.lock = None;
                        format!("certificates cannot be renewed: {e}")
                    }
                }
            }
            Ok(None) => format!(
                "another process has the lock of {shown} and renews the certificates in this folder; this process does not"
            ),
            Err(e) => format!("certificates cannot be renewed: {e}"),
        };
        if told != self.told {
            if !told.is_empty() {
                log::warn!("{told}");
            }
            self.told = told;
        }
    }

    async fn read_folder(&mut self) -> std::io::Result<()> {
        let saved = self.folder().read(WAITS_FILE).await?;
        self.waits.fill(0);
        self.take_waits(saved.as_deref());
        let names: Vec<String> = self.entries.keys().cloned().collect();
        for name in names {
            let entry = self.read_entry(&name).await?;
            if entry.certificate.is_none() {
                log::info!(
                    "{name} has no certificate yet: the gateway serves a self-signed certificate until {} issues it",
                    self.works[0].settings.directory
                );
            }
            self.entries.insert(name, entry);
        }
        self.remove_unwanted().await?;
        for (name, written) in self.read_index().await? {
            // One that the configuration lists by now is an ordinary name.
            if self.entries.contains_key(&name) || !is_file_name(&name) {
                continue;
            }
            let entry = self.read_entry(&name).await?;
            if entry.certificate.is_some() {
                self.entries.insert(name, Entry { on_demand: true, written, ..entry });
            }
        }
        self.tell_kept();
        self.tell_known();
        Ok(())
    }

    /// Waits at least as long as this file says.
    fn take_waits(&mut self, saved: Option<&[u8]>) {
        // What is damaged counts as not there.
        let saved: SavedAuthority = saved.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        for (work, wait) in self.works.iter().zip(&mut self.waits) {
            let of = |saved: &&SavedAuthority| saved.directory == work.settings.directory;
            let known = std::iter::once(&saved).chain(&saved.others).find(of).map_or(0, |saved| saved.not_before);
            *wait = (*wait).max(known);
        }
    }

    /// What the folder has of a name.
    async fn read_entry(&self, name: &str) -> std::io::Result<Entry> {
        let known = |directory: &str| self.works.iter().any(|work| work.settings.directory == directory);
        let (directory, folder) = (&self.works[0].settings.directory, self.folder());
        let now = now();
        let mut entry = Entry::default();
        let saved = folder.read(&state_file(name)).await?;
        entry.saved = saved.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        // Another authority has refused nothing yet, and issued nothing either.
        entry.foreign = !entry.saved.directory.is_empty() && !known(&entry.saved.directory);
        if !known(&entry.saved.directory) {
            entry.saved = Saved { directory: directory.clone(), ..Saved::default() };
        }
        let pem = folder.read(&certificate_file(name)).await?;
        entry.certificate = match pem.map(|pem| certificate::check(&pem, name)) {
            Some(Ok(info)) => Some(info),
            Some(Err(why)) => {
                let file = certificate_file(name);
                log::warn!("{}/{file} cannot be used: {why}", self.works[0].settings.storage.display());
                None
            }
            None => None,
        };
        if let Some(info) = &entry.certificate {
            let usual = schedule::renewal(info.not_before, info.not_after, share());
            if entry.foreign {
                entry.saved.renew_at = now;
            } else if entry.saved.renew_at == 0 || entry.saved.renew_at > info.not_after {
                entry.saved.renew_at = usual;
            }
            entry.ask_at = (!entry.foreign).then_some(now);
            if info.not_before > now + 3600 {
                log::warn!("the certificate of {name} is not valid yet: is this machine's clock right?");
            }
        }
        Ok(entry)
    }

    /// The names that have got certificates on demand.
    async fn read_index(&self) -> std::io::Result<BTreeMap<String, u64>> {
        let Some(on_demand) = &self.on_demand else { return Ok(BTreeMap::new()) };
        let text = self.folder().read(ON_DEMAND_INDEX).await?.unwrap_or_default();
        Ok(on_demand.gate.settings().read_index(&String::from_utf8_lossy(&text)))
    }

    /// Removes the files of names that got certificates on demand and that are no longer allowed.
    async fn remove_unwanted(&self) -> std::io::Result<()> {
        let (Some(on_demand), folder) = (&self.on_demand, self.folder()) else { return Ok(()) };
        let text = folder.read(ON_DEMAND_INDEX).await?.unwrap_or_default();
        for name in String::from_utf8_lossy(&text).lines().filter_map(|line| Some(line.split_once(' ')?.0)) {
            let wanted = on_demand.gate.settings().admits(name) || self.entries.contains_key(name);
            if !wanted && is_file_name(name) {
                folder.remove(&certificate_file(name)).await?;
                folder.remove(&state_file(name)).await?;
            }
        }
        Ok(())
    }

    /// Where another process renews, this one takes what that one has got on demand.
    async fn follow_index(&mut self) {
        if !self.follows {
            return;
        }
        // What cannot be read now is read the next time.
        let Ok(index) = self.read_index().await else { return };
        if let Some(on_demand) = &self.on_demand {
            let kept: Kept = Arc::new(index.into_iter().filter(|(name, _)| !self.entries.contains_key(name)).collect());
            on_demand.tell.send_if_modified(|known| std::mem::replace(known, kept.clone()) != kept);
        }
    }

    /// The names that have certificates on demand.
    fn kept(&self) -> BTreeMap<String, u64> {
        let kept = self.entries.iter().filter(|(_, entry)| entry.on_demand && entry.certificate.is_some());
        kept.map(|(name, entry)| (name.clone(), entry.written)).collect()
    }

    /// Tells the follower of the store which certificates there are.
    fn tell_known(&self) {
        if let Some(shared) = &self.shared {
            let known: BTreeMap<String, u64> =
                self.entries.iter().map(|(name, entry)| (name.clone(), entry.version())).collect();
            shared.tell_known.send_replace(Arc::new(known));
        }
    }

    fn tell_kept(&self) {
        if let Some(on_demand) = &self.on_demand {
            let kept = Arc::new(self.kept());
            on_demand.tell.send_if_modified(|known| std::mem::replace(known, kept.clone()) != kept);
        }
    }

    /// Keeps on disk which names have certificates on demand.
    async fn save_index(&self) -> std::io::Result<()> {
        let text: String = self.kept().iter().map(|(name, written)| format!("{name} {written}\n")).collect();
        self.folder().write(ON_DEMAND_INDEX, text.into_bytes()).await
    }

    /// Forgets certificates on demand that have expired: nobody has wanted to renew them. A client that asks begins anew.
    async fn forget_expired(&mut self) {
        if self.on_demand.is_none() {
            return;
        }
        let now = now();
        let is_over = |entry: &Entry| {
            let expired = entry.certificate.as_ref().is_some_and(|info| info.not_after <= now);
            entry.on_demand && !entry.running && expired
        };
        let over: Vec<String> =
            self.entries.iter().filter(|(_, entry)| is_over(entry)).map(|(name, _)| name.clone()).collect();
        for name in over {
            log::info!("the certificate of {name}, which was ordered on demand, has expired");
            self.forget(&name).await;
        }
    }

    /// Forgets a name that clients have asked for, with its files.
    async fn forget(&mut self, name: &str) {
        let Some(entry) = self.entries.remove(name) else { return };
        if entry.certificate.is_some() {
            if let Err(e) = self.save_index().await {
                log::warn!("{e}");
            }
            self.tell_kept();
        }
        self.tell_known();
        self.works[0].forget_pending(name).await;
        for file in [certificate_file(name), state_file(name)] {
            if let Err(e) = self.folder().remove(&file).await {
                log::warn!("{e}");
            }
        }
    }

    /// How many certificates on demand there are, or are being ordered.
    fn on_demand_entries(&self) -> usize {
        self.entries.values().filter(|entry| entry.on_demand).count()
    }

    /// A client has asked for a name that has no certificate.
    fn demand(&mut self, demand: &Demand) {
        let kept = self.on_demand_entries();
        let Some(on_demand) = &mut self.on_demand else { return };
        if self.lock.is_none() {
            on_demand.gate.counts.not_ours += 1;
            return;
        }
        // It has come meanwhile, or the configuration lists it.
        if self.entries.contains_key(&demand.name) {
            on_demand.gate.counts.remembered += 1;
            return;
        }
        match on_demand.gate.demand(demand, Instant::now(), kept, on_demand.asking.len()) {
            Next::Nothing => {}
            Next::Order => self.order_on_demand(&demand.name),
            Next::Ask => {
                let Some(service) = on_demand.service.clone() else { return };
                let name = demand.name.clone();
                let handle = on_demand.asking.spawn(async move {
                    let verdict = service.ask(&name).await;
                    (name, verdict)
                });
                on_demand.asked.insert(handle.id(), demand.name.clone());
            }
        }
    }

    /// The service has said something about a name that a client has asked for.
    fn answered(&mut self, name: &str, verdict: &Verdict) {
        let kept = self.on_demand_entries();
        let Some(on_demand) = &mut self.on_demand else { return };
        match verdict {
            Verdict::Allowed => {}
            Verdict::Refused(status) => {
                log::debug!("{name}: \"ask\" refuses a certificate on demand (status {status})")
            }
            Verdict::Unanswered(why) => {
                log::warn!("no certificate is ordered on demand: the service of \"ask\": {why}")
            }
        }
        if on_demand.gate.answered(name, verdict, Instant::now(), kept) == Next::Order {
            self.order_on_demand(name);
        }
    }

    /// A name that clients have asked for gets an order.
    fn order_on_demand(&mut self, name: &str) {
        if !is_file_name(name) {
            return;
        }
        log::info!("a client has asked for {name}: a certificate is ordered on demand");
        let directory = self.works[0].settings.directory.clone();
        let saved = Saved { directory, ..Saved::default() };
        self.entries.entry(name.to_owned()).or_insert(Entry { on_demand: true, saved, ..Entry::default() });
        self.tell_known();
    }

    fn execute_commands(&mut self) {
        while let Some((name, reply)) = self.commanded.pop_front() {
            // An operator may order what clients may demand, whatever the budgets and the service say.
            let settings = self.on_demand.as_ref().map(|on_demand| on_demand.gate.settings());
            let admitted = settings.is_some_and(|settings| settings.admits(&name));
            let full = settings.is_some_and(|settings| self.on_demand_entries() >= settings.max_certificates);
            let without_on_demand = settings.is_none();
            if !self.entries.contains_key(&name) && self.lock.is_some() && admitted && !full {
                self.order_on_demand(&name);
            }
            let refused = match self.entries.get_mut(&name) {
                None if admitted && self.lock.is_none() => Some(self.told.clone()),
                None if admitted && full => Some("\"max_certificates\" of [acme.on_demand] is reached".to_owned()),
                None => {
                    let also = if without_on_demand { "" } else { ", and [acme.on_demand] does not allow this name" };
                    Some(format!("no listener with certificates = \"auto\" orders a certificate for {name}{also}"))
                }
                Some(_) if self.lock.is_none() => Some(self.told.clone()),
                Some(entry) if !entry.running && self.running.len() >= MAX_ORDERS => {
                    Some("too many orders are open: try again".to_owned())
                }
                Some(entry) => {
                    let starts = !entry.running;
                    entry.waiting.push(reply);
                    if starts {
                        self.start_order(&name);
                    }
                    continue;
                }
            };
            // The command that asked may have ended.
            let _ = reply.send(Err(refused.unwrap_or_default()));
        }
    }

    /// The authority for the next order of a name: the first one for two attempts, then the next one, in turn. One that must not
    /// be asked now is passed over, if another may be.
    fn authority_for(&self, entry: &Entry, now: u64) -> usize {
        let wanted = entry.saved.failures as usize / ATTEMPTS;
        let turns = || (0..self.works.len()).map(|i| (wanted + i) % self.works.len());
        turns().find(|i| self.waits[*i] <= now).or_else(|| turns().min_by_key(|i| self.waits[*i])).unwrap_or(0)
    }

    /// When the next order of a name is to be made.
    fn due(&self, entry: &Entry) -> u64 {
        entry.due(self.waits[self.authority_for(entry, now())])
    }

    /// The authority that has issued a name's certificate: the only one that knows it.
    fn issuer_of(&self, entry: &Entry) -> Option<usize> {
        self.works.iter().position(|work| work.settings.directory == entry.saved.directory).filter(|_| !entry.foreign)
    }

    fn next_due(&self) -> u64 {
        let due = |e: &Entry| self.due(e).min(e.ask_at.unwrap_or(u64::MAX));
        self.entries.values().filter(|e| !e.running).map(due).min().unwrap_or(u64::MAX)
    }

    /// Forgets waits that were computed when the clock ran ahead: it may have been corrected since.
    fn follow_clock(&mut self) {
        let now = now();
        let genuine = |at| schedule::genuine(at, now, schedule::LONGEST_WAIT);
        self.waits.iter_mut().for_each(|wait| *wait = genuine(*wait));
        for entry in self.entries.values_mut() {
            entry.saved.not_before = genuine(entry.saved.not_before);
            entry.spaced = genuine(entry.spaced);
            entry.ask_at = entry.ask_at.map(genuine);
        }
    }

    fn start_due(&mut self) {
        self.follow_clock();
        let now = now();
        let mut due: Vec<(u64, String)> = Vec::new();
        let mut ask = Vec::new();
        for (name, entry) in self.entries.iter().filter(|(_, e)| !e.running) {
            match &entry.certificate {
                _ if self.due(entry) <= now => due.push((self.due(entry), name.clone())),
                Some(info)
                    if entry.ask_at.is_some_and(|at| at <= now)
                        && self.issuer_of(entry).is_some_and(|i| self.waits[i] <= now) =>
                {
                    ask.push((name.clone(), info.leaf.clone()));
                }
                _ => {}
            }
        }
        due.sort();
        let mut on_demand = self.entries.values().filter(|entry| entry.on_demand && entry.running).count();
        for (_, name) in due {
            if self.running.len() >= MAX_ORDERS {
                return;
            }
            // The names of the configuration do not wait for those that clients bring.
            if self.entries.get(&name).is_some_and(|entry| entry.on_demand) {
                if on_demand >= MAX_ON_DEMAND {
                    continue;
                }
                on_demand += 1;
            }
            self.start_order(&name);
        }
        for (name, leaf) in ask {
            if self.running.len() >= MAX_ORDERS {
                return;
            }
            self.start_asking(name, leaf);
        }
    }

    /// Begins an order for a name. Where other gateways order for the same names, it begins with the lease.
    fn start_order(&mut self, name: &str) {
        if !self.works[0].storage.is_shared() {
            return self.place_order(name, Lease::Local);
        }
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = true;
        let (storage, of) = (self.works[0].storage.clone(), name.to_owned());
        let handle = self.running.spawn(async move {
            let claim = storage.claim(&of).await;
            (of, Done::Claim(claim))
        });
        self.names.insert(handle.id(), name.to_owned());
    }

    fn place_order(&mut self, name: &str, lease: Lease) {
        let Some(entry) = self.entries.get(name) else { return };
        let authority = self.authority_for(entry, now());
        let issuer = self.issuer_of(entry);
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = true;
        entry.asks = authority;
        entry.lease = Some(lease.clone());
        let (mut work, of, attempt) = (self.works[authority].clone(), name.to_owned(), entry.saved.failures);
        work.lease = lease.clone();
        let mut service = None;
        if entry.on_demand {
            // No records in DNS for names that clients choose.
            let mut settings = (*work.settings).clone();
            settings.challenges.retain(|challenge| !challenge.is_by_dns());
            work.settings = Arc::new(settings);
            // The first time, the service was asked just now.
            let renews = entry.certificate.is_some();
            service = self.on_demand.as_ref().filter(|_| renews).and_then(|on_demand| on_demand.service.clone());
        }
        // Once refused, perhaps because of what it replaces.
        let known = attempt == 0 && issuer == Some(authority);
        let replaces = entry.certificate.as_ref().filter(|_| known).map(|info| info.leaf.clone());
        let handle = self.running.spawn(async move {
            let order = async {
                let verdict = match service {
                    Some(service) => service.ask(&of).await,
                    None => Verdict::Allowed,
                };
                match verdict {
                    Verdict::Allowed => work.obtain(&of, attempt, replaces).await,
                    Verdict::Refused(status) => {
                        Err(Failure::ours(format!("\"ask\" refuses the name (status {status})")))
                    }
                    Verdict::Unanswered(why) => Err(Failure::ours(format!("the service of \"ask\": {why}"))),
                }
            };
            let result = tokio::select! {
                result = order => result,
                () = lease.lost() => {
                    Err(StorageError::Lost("another gateway has taken over the order".to_owned()).into())
                }
            };
            (of, Done::Order(result))
        });
        self.names.insert(handle.id(), name.to_owned());
    }

    fn start_asking(&mut self, name: String, leaf: CertificateDer<'static>) {
        let Some(issuer) = self.entries.get(&name).and_then(|entry| self.issuer_of(entry)) else { return };
        let Some(entry) = self.entries.get_mut(&name) else { return };
        entry.running = true;
        let (work, of) = (self.works[issuer].clone(), name.clone());
        let handle = self.running.spawn(async move {
            let result = work.renewal_window(&leaf).await;
            (of, Done::Window(result))
        });
        self.names.insert(handle.id(), name);
    }

    async fn finished(&mut self, name: &str, done: Done) {
        let authority = self.entries.get(name).map_or(0, |entry| entry.asks);
        let result = match done {
            Done::Claim(claim) => return self.claimed(name, claim).await,
            Done::Window(window) => return self.take_window(name, window).await,
            Done::Order(Ok(issued)) => self.keep(name, issued).await,
            Done::Order(Err(failure)) => Err(failure),
        };
        if let Err(failure) = &result
            && failure.account_unknown
        {
            self.works[authority].forget_account().await;
        }
        if let Err(failure) = &result
            && failure.lost
        {
            if let Some(entry) = self.entries.get_mut(name) {
                (entry.running, entry.lease) = (false, None);
            }
            if let Some(shared) = &self.shared {
                shared.counters.lost.fetch_add(1, Relaxed);
            }
            log::warn!("{name}: the order was given up: {}", failure.why);
            return self.postpone(name, &failure.why);
        }
        let now = now();
        let several = self.works.len() > 1;
        let other_is_free = (0..self.works.len()).any(|i| i != authority && self.waits[i] <= now);
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = false;
        entry.spaced = now + schedule::spacing(entry.life());
        let lease = entry.lease.clone().unwrap_or(Lease::Local);
        let waiting = std::mem::take(&mut entry.waiting);
        let reply = match result {
            Ok(()) => {
                entry.saved.failures = 0;
                entry.saved.not_before = 0;
                entry.saved.last_error.clear();
                Ok(format!("{name}: a certificate was issued"))
            }
            Err(failure) => {
                entry.saved.failures = entry.saved.failures.saturating_add(1);
                let back_off = schedule::back_off(entry.saved.failures, entry.life(), failure.demanded, share());
                // Where several can be asked, one that is away or limits orders holds up nothing.
                let of_authority = failure.of_authority || several && failure.unreachable;
                let wait = if of_authority && other_is_free { 1 } else { back_off };
                entry.saved.not_before = now + wait;
                let why = match several {
                    true => format!("{}: {}", self.works[authority].settings.directory, failure.why),
                    false => failure.why,
                };
                entry.saved.last_error.clone_from(&why);
                let wait = entry.saved.not_before.max(entry.spaced) - now;
                // Each way to prove it was tried once.
                let gives_up =
                    entry.on_demand && entry.certificate.is_none() && entry.saved.failures as usize >= ATTEMPTS;
                if of_authority {
                    self.waits[authority] = now + back_off;
                    self.save_waits(&lease).await;
                }
                let next = match &self.on_demand {
                    Some(on_demand) if gives_up => {
                        let minutes = on_demand.gate.wait_after_failure(name).as_secs() / 60;
                        format!(
                            "the gateway orders no certificate on demand for this name for the next {minutes} minutes"
                        )
                    }
                    None if gives_up => "the gateway orders no further certificate for this name".to_owned(),
                    _ => format!("next attempt in {wait} s"),
                };
                Err(format!("{name}: the order failed: {why}; {next}"))
            }
        };
        let (on_demand, has_certificate, failures) = self
            .entries
            .get(name)
            .map_or((false, true, 0), |entry| (entry.on_demand, entry.certificate.is_some(), entry.saved.failures));
        if on_demand && !has_certificate {
            // Nothing is kept of a name that may be a stranger's.
            if failures as usize >= ATTEMPTS {
                self.forget(name).await;
                if let Some(on_demand) = &mut self.on_demand {
                    on_demand.gate.failed(name, Instant::now());
                }
            }
        } else {
            self.save(name).await;
        }
        // Other gateways may order from here on.
        if let Some(entry) = self.entries.get_mut(name) {
            entry.lease = None;
        }
        // The state and the report come first: who has seen the counter or the line in the log finds them.
        self.report();
        match &reply {
            Ok(line) => {
                self.reports().issued += 1;
                let _ = self.tell_written.try_send(());
                log::info!("{line} by {}", self.works[authority].settings.directory);
            }
            Err(line) => {
                self.reports().failed += 1;
                log::warn!("{line}");
            }
        }
        for asker in waiting {
            // The command that asked may have ended.
            let _ = asker.send(reply.clone());
        }
    }

    /// Puts what was issued in the place of what is there.
    async fn keep(&mut self, name: &str, issued: Issued) -> Result<(), Failure> {
        let info = certificate::check(&issued.pem, name).map_err(Failure::ours)?;
        let Some(entry) = self.entries.get(name) else { return Ok(()) };
        let mut work = self.works[entry.asks].clone();
        work.lease = entry.lease.clone().unwrap_or(Lease::Local);
        let directory = work.settings.directory.clone();
        let now = now();
        // Larger than that of every certificate before, whatever the clocks of the gateways say.
        let version = now.max(entry.version().max(entry.stored).saturating_add(1));
        let kept = storage::Kept { version, directory: directory.clone(), bytes: Zeroizing::new(issued.pem) };
        work.storage.write(&certificate_file(name), kept, &work.lease).await?;
        work.forget_pending(name).await;
        let dates = (info.not_before, info.not_after);
        let Some(entry) = self.entries.get_mut(name) else { return Ok(()) };
        entry.saved.renew_at = schedule::renewal(dates.0, dates.1, share());
        entry.saved.window = None;
        entry.ask_at = Some(now);
        entry.certificate = Some(info);
        entry.saved.directory = directory;
        entry.saved.version = version;
        entry.foreign = false;
        entry.written = now.max(entry.written + 1);
        let on_demand = entry.on_demand;
        self.tell_known();
        if on_demand {
            self.save_index().await?;
            self.tell_kept();
            if let Some(on_demand) = &mut self.on_demand {
                on_demand.gate.forget(name);
            }
        }
        if now < dates.0.saturating_sub(3600) || now >= dates.1 {
            // It is kept and served: clients have clocks of their own. But renewing it again would lead here again.
            let why = "the certificate that was issued is in use, but is not valid at this time: is this machine's clock right?";
            let _ = self.tell_written.try_send(());
            return Err(Failure::ours(why));
        }
        Ok(())
    }

    async fn take_window(&mut self, name: &str, suggested: Result<Option<Suggested>, Failure>) {
        let now = now();
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = false;
        let Some((from, to)) = entry.certificate.as_ref().map(|c| (c.not_before, c.not_after)) else { return };
        match suggested {
            Ok(None) => entry.ask_at = None,
            Err(failure) => {
                // Without it the usual time holds.
                log::debug!("{name}: no renewal information: {}", failure.why);
                entry.ask_at = Some(now + 6 * 3600);
            }
            Ok(Some(Suggested { window, again })) => {
                entry.ask_at = Some(now + again.clamp(ASK_AGAIN.0, ASK_AGAIN.1));
                if entry.saved.window != Some(window) {
                    entry.saved.window = Some(window);
                    entry.saved.renew_at = schedule::renewal_in(window, from, to, share());
                    self.save(name).await;
                }
            }
        }
        // Someone may have asked for a renewal meanwhile.
        if self.entries.get(name).is_some_and(|e| !e.waiting.is_empty()) {
            self.start_order(name);
        }
    }

    /// Keeps the state of a name; under a lease, also for the other gateways.
    async fn save(&self, name: &str) {
        let Some(entry) = self.entries.get(name) else { return };
        let kept = storage::Kept::plain(serde_json::to_vec(&entry.saved).unwrap_or_default());
        let lease = entry.lease.clone().unwrap_or(Lease::Local);
        if let Err(e) = self.works[0].storage.write(&state_file(name), kept, &lease).await {
            log::warn!("{e}");
        }
    }

    /// What came of the attempt to get the right to order for a name, where other gateways order, too.
    async fn claimed(&mut self, name: &str, claim: Result<Claim, StorageError>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = false;
        entry.holder.clear();
        let ours = match claim {
            Ok(Claim::Ours(ours)) => *ours,
            Ok(Claim::Others { holder }) => {
                let why = format!("{holder} orders the certificate of {name} now; this gateway gets it from the store");
                log::debug!("{why}");
                entry.holder = holder;
                return self.postpone(name, &why);
            }
            Err(e) => {
                let why = format!("no certificate is ordered without a lease from the store: {e}");
                if self.told_lease != why {
                    log::warn!("{name}: {why}");
                    self.told_lease.clone_from(&why);
                }
                if let Some(entry) = self.entries.get_mut(name) {
                    entry.obstacle.clone_from(&why);
                }
                return self.postpone(name, &why);
            }
        };
        self.told_lease.clear();
        entry.obstacle.clear();
        let Ours { lease, certificate, state, waits } = ours;
        entry.stored = certificate.as_ref().map_or(0, |kept| kept.version);
        self.take_waits(waits.as_deref());
        let taken = match certificate {
            Some(kept) => self.adopt(name, kept).await,
            None => false,
        };
        let known = state.and_then(|bytes| serde_json::from_slice::<Saved>(&bytes).ok());
        let Some(entry) = self.entries.get_mut(name) else { return };
        if let Some(known) = known.filter(|known| !taken && known.not_before > entry.saved.not_before) {
            // Another gateway has failed: authorities count the attempts of all.
            entry.saved.failures = known.failures;
            entry.saved.not_before = schedule::genuine(known.not_before, now(), schedule::LONGEST_WAIT);
            entry.saved.last_error = known.last_error;
        }
        let asked = !entry.waiting.is_empty();
        let Some(entry) = self.entries.get(name) else { return };
        if asked || self.due(entry) <= now() {
            self.place_order(name, lease);
        }
    }

    /// Asks again later for a lease.
    fn postpone(&mut self, name: &str, why: &str) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.spaced = entry.spaced.max(now() + LEASE_AGAIN);
        for asker in std::mem::take(&mut entry.waiting) {
            // The command that asked may have ended.
            let _ = asker.send(Err(format!("{name}: {why}")));
        }
    }

    /// Puts a certificate that another gateway has got in the place of an older one. Whether it is newer.
    async fn adopt(&mut self, name: &str, kept: storage::Kept) -> bool {
        if self.lock.is_none() || !is_file_name(name) {
            return false;
        }
        if !self.entries.contains_key(name) {
            let settings = self.on_demand.as_ref().map(|on_demand| on_demand.gate.settings());
            // Other gateways may have other names.
            if !settings
                .is_some_and(|settings| settings.admits(name) && self.on_demand_entries() < settings.max_certificates)
            {
                return false;
            }
        }
        let now = now();
        let ours = self.entries.get(name);
        if ours.is_some_and(|entry| entry.version() >= kept.version) {
            return false;
        }
        let info = match certificate::check(&kept.bytes, name) {
            Ok(info) => info,
            Err(why) => {
                log::warn!("{name}: the certificate in the store cannot be used: {why}");
                return false;
            }
        };
        let is_good = ours.and_then(|entry| entry.certificate.as_ref()).is_some_and(|info| info.not_after > now);
        // An expired one is of use where there is none, since the clock may be wrong; clients that ask for it get a new one.
        if info.not_after <= now && (is_good || ours.is_none_or(|entry| entry.on_demand)) {
            return false;
        }
        if let Err(e) = self.folder().write(&certificate_file(name), kept.bytes.to_vec()).await {
            log::warn!("{e}");
            return false;
        }
        // What was begun here before is out of date.
        if let Err(e) = self.folder().remove(&pending_file(name)).await {
            log::warn!("{e}");
        }
        let is_known = self.works.iter().any(|work| work.settings.directory == kept.directory);
        let directory = if is_known { kept.directory.clone() } else { self.works[0].settings.directory.clone() };
        let is_new = ours.is_none();
        let entry = self.entries.entry(name.to_owned()).or_default();
        entry.on_demand |= is_new;
        entry.saved = Saved {
            directory,
            renew_at: schedule::renewal(info.not_before, info.not_after, share()),
            version: kept.version,
            ..Saved::default()
        };
        entry.ask_at = is_known.then_some(now);
        entry.spaced = now + schedule::SPACING;
        entry.foreign = false;
        entry.written = now.max(entry.written + 1);
        entry.certificate = Some(info);
        entry.holder.clear();
        entry.obstacle.clear();
        let on_demand = entry.on_demand;
        let waiting = if entry.running { Vec::new() } else { std::mem::take(&mut entry.waiting) };
        self.save_local(name).await;
        if on_demand {
            if let Err(e) = self.save_index().await {
                log::warn!("{e}");
            }
            self.tell_kept();
        }
        self.tell_known();
        if let Some(shared) = &self.shared {
            shared.counters.taken.fetch_add(1, Relaxed);
        }
        self.report();
        let _ = self.tell_written.try_send(());
        log::info!("{name}: the certificate that another gateway has got was taken from the store");
        for asker in waiting {
            // The command that asked may have ended.
            let _ = asker.send(Ok(format!("{name}: another gateway has got a certificate")));
        }
        true
    }

    async fn save_local(&self, name: &str) {
        let Some(entry) = self.entries.get(name) else { return };
        let bytes = serde_json::to_vec(&entry.saved).unwrap_or_default();
        if let Err(e) = self.folder().write(&state_file(name), bytes).await {
            log::warn!("{e}");
        }
    }

    /// Keeps on disk when authorities may be asked again.
    async fn save_waits(&self, lease: &Lease) {
        let saved = |(work, wait): (&Work, &u64)| SavedAuthority {
            directory: work.settings.directory.clone(),
            not_before: *wait,
            others: Vec::new(),
        };
        let mut all = self.works.iter().zip(&self.waits).map(saved);
        let Some(mut first) = all.next() else { return };
        first.others = all.collect();
        let kept = storage::Kept::plain(serde_json::to_vec(&first).unwrap_or_default());
        if let Err(e) = self.works[0].storage.write(WAITS_FILE, kept, lease).await {
            log::warn!("{e}");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::Authority;
    use sealane_config::OnDemandSettings;
    use sealane_store::memory::MemoryStore;
    use sealane_store::seal::Secret;
    use sealane_store::{Link, Settings};
    use tempfile::TempDir;

    /// Waits until a name has a report like this.
    async fn reported(manager: &Manager, wanted: impl Fn(&Report) -> bool) -> Report {
        for _ in 0..600 {
            let report = manager.reports().lock().unwrap().names.get("a.example").cloned();
            if let Some(report) = report.filter(&wanted) {
                return report;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("there is no such report: {:?}", manager.reports());
    }

    /// An operator who orders a certificate on demand learns the reason if there is no order.
    #[test]
    fn a_refused_order_on_demand_says_why() {
        let work = async {
            let (authority, folder) = (Authority::start().await, tempfile::tempdir().unwrap());
            let start = |on_demand: Option<OnDemandSettings>| {
                Manager::start(AcmeSettings { on_demand, ..authority.settings(folder.path()) }, None)
            };
            let on_demand = OnDemandSettings {
                names: vec!["**.shop.example".parse().unwrap()],
                ask: None,
                roots: Vec::new(),
                max_certificates: 0,
                orders_per_hour: 20,
            };
            let full = start(Some(on_demand.clone()));
            let said = full.renewer().renew("one.shop.example").await.unwrap_err();
            assert_eq!(said, "\"max_certificates\" of [acme.on_demand] is reached");
            let said = full.renewer().renew("one.other.example").await.unwrap_err();
            assert!(said.ends_with("for one.other.example, and [acme.on_demand] does not allow this name"), "{said}");
            // The first manager has the lock of the folder.
            let second = start(Some(OnDemandSettings { max_certificates: 10, ..on_demand }));
            let said = second.renewer().renew("one.shop.example").await.unwrap_err();
            assert!(said.starts_with("another process has the lock"), "{said}");
            let without = start(None);
            let said = without.renewer().renew("one.shop.example").await.unwrap_err();
            assert!(said.ends_with("orders a certificate for one.shop.example"), "{said}");
        };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    /// Waits until both folders have the same certificate, which is another one than this.
    async fn same(folders: &[TempDir; 2], before: &[u8]) -> Vec<u8> {
        let kept = |folder: &TempDir| std::fs::read(folder.path().join(certificate_file("a.example"))).ok();
        for _ in 0..1200 {
            if let [Some(one), Some(other)] = folders.each_ref().map(kept)
                && one == other
                && one != before
            {
                return one;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the gateways have no certificate in common");
    }

    #[test]
    fn gateways_of_a_store_place_one_order_for_all() {
        let work = async {
            let (authority, store) = (Authority::start().await, MemoryStore::default());
            let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let start = |folder: &TempDir| {
                let limit = Duration::from_secs(5);
                let settings = Settings { connect: limit, answer: limit, meanwhile: "" };
                let link = Link::start(Box::new(store.clone()), settings);
                let store = SharedStore { link, secret: Secret::new([1; 32]), prefix: "t".to_owned() };
                Manager::start(authority.settings(folder.path()), Some(store))
            };
            let managers = folders.each_ref().map(start);
            let mut certificate = same(&folders, &[]).await;
            assert_eq!(authority.script().orders, 1);
            for (n, manager) in managers.iter().enumerate() {
                let said = manager.renewer().renew("a.example").await;
                assert!(said.as_ref().is_ok_and(|said| said.contains("a certificate was issued")), "{said:?}");
                certificate = same(&folders, &certificate).await;
                assert_eq!(authority.script().orders, n as u32 + 2);
            }
            for manager in &managers {
                // The certificate is in the folder before it is counted.
                reported(manager, |_| {
                    let shared = manager.reports().lock().unwrap().shared.clone();
                    shared.is_some_and(|(name, counts)| name == "memory" && counts.taken >= 1 && counts.leased >= 1)
                })
                .await;
                assert_eq!(manager.reports().lock().unwrap().failed, 0);
            }
            // One that starts later takes what is there, and its account, too.
            let late = tempfile::tempdir().unwrap();
            let manager = start(&late);
            reported(&manager, |report| report.next.is_some_and(|next| next > now() + 86_400)).await;
            assert_eq!(authority.script().orders, 3);
            assert_eq!(std::fs::read(late.path().join(certificate_file("a.example"))).unwrap(), certificate);
        };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    /// Authorities count what a gateway asks, whether it was restarted or not.
    #[test]
    fn a_rate_limit_holds_over_restarts() {
        let work = async {
            let (authority, folder) = (Authority::start().await, tempfile::tempdir().unwrap());
            authority.script().limited = Some(7200);
            let far =
                |report: &Report| report.next.is_some_and(|next| (7000..=7201).contains(&next.saturating_sub(now())));
            let manager = Manager::start(authority.settings(folder.path()), None);
            let report = reported(&manager, far).await;
            assert!(report.last_error.contains("rateLimited"), "{report:?}");
            assert_eq!(authority.script().requested, 1);
            drop(manager);
            // The limit is over at the authority, but not for the gateway.
            authority.script().limited = None;
            for _ in 0..2 {
                let manager = Manager::start(authority.settings(folder.path()), None);
                let report = reported(&manager, far).await;
                assert!(report.last_error.contains("rateLimited"), "{report:?}");
                tokio::time::sleep(Duration::from_millis(1500)).await;
                assert!(far(&reported(&manager, |_| true).await));
                drop(manager);
            }
            assert_eq!(authority.script().requested, 1);
            assert_eq!(authority.script().orders, 0);
            // An order on demand does not wait.
            let manager = Manager::start(authority.settings(folder.path()), None);
            reported(&manager, far).await;
            let said = manager.renewer().renew("a.example").await;
            assert!(said.is_ok_and(|said| said.contains("a certificate was issued")));
            assert_eq!(authority.script().orders, 1);
        };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }
}
