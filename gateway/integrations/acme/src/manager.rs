//! The task that keeps certificates: takes the folder's lock, knows when each name is due, runs orders, and remembers on disk
//! what an authority has refused, so that a restart asks no sooner.

use crate::certificate::{self, Info};
use crate::challenges::{Responder, Table};
use crate::folder::{Folder, Lock, certificate_file, is_file_name, state_file};
use crate::order::{Failure, Issued, Suggested, Work};
use crate::schedule::now;
use crate::{http, schedule};
use rustls::pki_types::CertificateDer;
use sealane_config::AcmeSettings;
use sealane_log as log;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{self, JoinHandle, JoinSet};

/// Orders that are open at a time.
const MAX_ORDERS: usize = 4;
/// Attempts by one authority before another one is asked: one for each way to prove a name that needs no setting.
const ATTEMPTS: usize = 2;
/// The longest sleep: a clock may be set, and the lock of another process may become free.
const LONGEST_SLEEP: u64 = 10;
/// How often an authority is asked when it would like a renewal: bounds of what it says itself.
const ASK_AGAIN: (u64, u64) = (60, 86_400);
/// The most commands that wait.
const COMMANDS: usize = 16;

/// What became of a command.
type Reply = Result<String, String>;

/// What control has to do.
#[derive(Debug)]
pub enum Event {
    /// Other challenges are to be answered. To be confirmed by [`Manager::published`].
    Challenges(Table),
    /// A certificate was written.
    Written,
}

/// A name and how its certificate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When it is renewed, or the next attempt is made, in seconds since 1970.
    pub next: Option<u64>,
    /// Why the last attempt failed; empty after one that did not.
    pub last_error: String,
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
}

/// The running task.
#[derive(Debug)]
pub struct Manager {
    settings: Arc<AcmeSettings>,
    commands: mpsc::Sender<(String, oneshot::Sender<Reply>)>,
    table: watch::Receiver<Table>,
    published: watch::Sender<u64>,
    written: mpsc::Receiver<()>,
    reports: Arc<Mutex<Reports>>,
    task: JoinHandle<()>,
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Manager {
    /// Starts it, in a runtime of tokio's.
    pub fn start(settings: AcmeSettings) -> Self {
        let settings = Arc::new(settings);
        let (commands, asked) = mpsc::channel(COMMANDS);
        let (table_sender, table) = watch::channel(Table::default());
        let (published, published_version) = watch::channel(0);
        let (tell_written, written) = mpsc::channel(1);
        let reports = Arc::new(Mutex::new(Reports::default()));
        let responder = Responder::new(table_sender, published_version);
        let task = {
            let (settings, reports) = (settings.clone(), reports.clone());
            tokio::spawn(async move {
                let folder = Folder::new(&settings.storage);
                let work = |settings: AcmeSettings| {
                    Ok(Work {
                        tls: http::tls(&settings.roots)?,
                        settings: Arc::new(settings),
                        folder: folder.clone(),
                        responder: responder.clone(),
                        registration: Arc::new(tokio::sync::Mutex::default()),
                    })
                };
                match settings.by_authority().into_iter().map(work).collect::<Result<Vec<Work>, String>>() {
                    Ok(works) => Task::new(works, tell_written, reports).run(asked).await,
                    Err(e) => log::error!("certificates are not renewed: {e}"),
                }
            })
        };
        Self { settings, commands, table, published, written, reports, task }
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
            // The task has ended: nothing more comes.
            else => std::future::pending().await,
        }
    }

    /// Lanes answer the challenges of this version from now on.
    pub fn published(&self, version: u64) {
        self.published.send_replace(version);
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
}

enum Done {
    Order(Result<Issued, Failure>),
    Window(Result<Option<Suggested>, Failure>),
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
}

impl Task {
    fn new(works: Vec<Work>, tell_written: mpsc::Sender<()>, reports: Arc<Mutex<Reports>>) -> Self {
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
        }
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        // Each change is one assignment.
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(mut self, mut asked: mpsc::Receiver<(String, oneshot::Sender<Reply>)>) {
        loop {
            if self.lock.is_none() {
                self.take_lock().await;
            }
            self.execute_commands();
            if self.lock.is_some() {
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
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Becomes the one that renews, if no other process is; then reads what is there.
    async fn take_lock(&mut self) {
        let shown = self.works[0].settings.storage.display().to_string();
        let taken = self.works[0].folder.lock().await;
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
            Ok(None) => format!("another process has the lock of {shown} and renews its certificates"),
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
        let (directory, folder) = (&self.works[0].settings.directory, &self.works[0].folder);
        let saved = folder.read("state.json").await?;
        // What is damaged counts as not there.
        let saved: SavedAuthority = saved.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        for (work, wait) in self.works.iter().zip(&mut self.waits) {
            let of = |saved: &&SavedAuthority| saved.directory == work.settings.directory;
            *wait = std::iter::once(&saved).chain(&saved.others).find(of).map_or(0, |saved| saved.not_before);
        }
        let known = |directory: &str| self.works.iter().any(|work| work.settings.directory == directory);
        let now = now();
        for (name, entry) in &mut self.entries {
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
                    log::warn!(
                        "{}/{} cannot be used: {why}",
                        self.works[0].settings.storage.display(),
                        certificate_file(name)
                    );
                    None
                }
                None => None,
            };
            match &entry.certificate {
                Some(info) => {
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
                None => log::info!(
                    "{name} has no certificate yet: the gateway serves a self-signed certificate until {directory} \
                     issues it"
                ),
            }
        }
        Ok(())
    }

    fn execute_commands(&mut self) {
        while let Some((name, reply)) = self.commanded.pop_front() {
            let refused = match self.entries.get_mut(&name) {
                None => Some(format!("no listener with certificates = \"auto\" serves the name {name}")),
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
        for (_, name) in due {
            if self.running.len() >= MAX_ORDERS {
                return;
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

    fn start_order(&mut self, name: &str) {
        let Some(entry) = self.entries.get(name) else { return };
        let authority = self.authority_for(entry, now());
        let issuer = self.issuer_of(entry);
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = true;
        entry.asks = authority;
        let (work, of, attempt) = (self.works[authority].clone(), name.to_owned(), entry.saved.failures);
        // Once refused, perhaps because of what it replaces.
        let known = attempt == 0 && issuer == Some(authority);
        let replaces = entry.certificate.as_ref().filter(|_| known).map(|info| info.leaf.clone());
        let handle = self.running.spawn(async move {
            let result = work.obtain(&of, attempt, replaces).await;
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
            Done::Window(window) => return self.take_window(name, window).await,
            Done::Order(Ok(issued)) => self.keep(name, issued).await,
            Done::Order(Err(failure)) => Err(failure),
        };
        if let Err(failure) = &result
            && failure.account_unknown
        {
            self.works[authority].forget_account().await;
        }
        let now = now();
        let several = self.works.len() > 1;
        let other_is_free = (0..self.works.len()).any(|i| i != authority && self.waits[i] <= now);
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.running = false;
        entry.spaced = now + schedule::spacing(entry.life());
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
                if of_authority {
                    self.waits[authority] = now + back_off;
                    self.save_waits().await;
                }
                Err(format!("{name}: no certificate was issued: {why}; next attempt in {wait} s"))
            }
        };
        self.save(name).await;
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
        let authority = self.entries.get(name).map_or(0, |entry| entry.asks);
        let work = &self.works[authority];
        work.folder.write(&certificate_file(name), issued.pem).await?;
        work.forget_pending(name).await;
        let directory = work.settings.directory.clone();
        let now = now();
        let dates = (info.not_before, info.not_after);
        let Some(entry) = self.entries.get_mut(name) else { return Ok(()) };
        entry.saved.renew_at = schedule::renewal(dates.0, dates.1, share());
        entry.saved.window = None;
        entry.ask_at = Some(now);
        entry.certificate = Some(info);
        entry.saved.directory = directory;
        entry.foreign = false;
        if now < dates.0.saturating_sub(3600) || now >= dates.1 {
            // It is kept and served: clients have clocks of their own. But renewing it again would lead here again.
            let why = "it was issued, but it is not valid at this time: is this machine's clock right?";
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

    async fn save(&self, name: &str) {
        let Some(entry) = self.entries.get(name) else { return };
        let bytes = serde_json::to_vec(&entry.saved).unwrap_or_default();
        if let Err(e) = self.works[0].folder.write(&state_file(name), bytes).await {
            log::warn!("{e}");
        }
    }

    /// Keeps on disk when authorities may be asked again.
    async fn save_waits(&self) {
        let saved = |(work, wait): (&Work, &u64)| SavedAuthority {
            directory: work.settings.directory.clone(),
            not_before: *wait,
            others: Vec::new(),
        };
        let mut all = self.works.iter().zip(&self.waits).map(saved);
        let Some(mut first) = all.next() else { return };
        first.others = all.collect();
        let bytes = serde_json::to_vec(&first).unwrap_or_default();
        if let Err(e) = self.works[0].folder.write("state.json", bytes).await {
            log::warn!("{e}");
        }
    }

    fn report(&self) {
        let renews = self.lock.is_some();
        let report = |entry: &Entry| Report {
            next: renews.then(|| self.due(entry).max(now())),
            last_error: match (renews, self.follows) {
                (true, _) => entry.saved.last_error.clone(),
                (false, true) => String::new(),
                (false, false) => self.told.clone(),
            },
        };
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

    /// Authorities count what a gateway asks, whether it was restarted or not.
    #[test]
    fn a_rate_limit_holds_over_restarts() {
        let work = async {
            let (authority, folder) = (Authority::start().await, tempfile::tempdir().unwrap());
            authority.script().limited = Some(7200);
            let far =
                |report: &Report| report.next.is_some_and(|next| (7000..=7201).contains(&next.saturating_sub(now())));
            let manager = Manager::start(authority.settings(folder.path()));
            let report = reported(&manager, far).await;
            assert!(report.last_error.contains("rateLimited"), "{report:?}");
            assert_eq!(authority.script().requested, 1);
            drop(manager);
            // The limit is over at the authority, but not for the gateway.
            authority.script().limited = None;
            for _ in 0..2 {
                let manager = Manager::start(authority.settings(folder.path()));
                let report = reported(&manager, far).await;
                assert!(report.last_error.contains("rateLimited"), "{report:?}");
                tokio::time::sleep(Duration::from_millis(1500)).await;
                assert!(far(&reported(&manager, |_| true).await));
                drop(manager);
            }
            assert_eq!(authority.script().requested, 1);
            assert_eq!(authority.script().orders, 0);
            // An order on demand does not wait.
            let manager = Manager::start(authority.settings(folder.path()));
            reported(&manager, far).await;
            let said = manager.renewer().renew("a.example").await;
            assert!(said.is_ok_and(|said| said.contains("a certificate was issued")));
            assert_eq!(authority.script().orders, 1);
        };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }
}
