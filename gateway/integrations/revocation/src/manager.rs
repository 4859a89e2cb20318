//! The task that keeps responses: knows when each is due, asks a few responders at a time, verifies, keeps, and withdraws what has
//! expired.

use crate::fetch::{self, Failure};
use crate::folder;
use crate::schedule::{self, now, share};
use sealane_config::{CertificateDigest, Loaded, RevocationSettings, Staples};
use sealane_log as log;
use sealane_tls::ocsp::{MAX_RESPONSE, Refused, Response, Standing, Subject};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{self, JoinHandle, JoinSet};
use tokio::time::Instant;

/// Requests that are under way at a time, and those to one responder.
const MAX_REQUESTS: usize = 16;
const MAX_PER_RESPONDER: usize = 4;
/// The longest sleep: a clock may be set.
const LONGEST_SLEEP: u64 = 30;
/// The shortest time from one change of what is sent to the next, and so much more for each certificate: lanes make their
/// signing keys anew with each change.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_EACH: Duration = Duration::from_millis(10);

/// What a response is asked for and judged by.
pub(crate) trait Question: Send + Sync {
    fn request(&self) -> Vec<u8>;
    fn verify(&self, response: &[u8], now: u64) -> Result<Response, Refused>;
}

impl Question for Subject {
    fn request(&self) -> Vec<u8> {
        Subject::request(self)
    }

    fn verify(&self, response: &[u8], now: u64) -> Result<Response, Refused> {
        Subject::verify(self, response, now)
    }
}

/// A certificate that a response is to be fetched for.
#[derive(Clone)]
pub struct Wanted {
    digest: CertificateDigest,
    /// For messages: the file.
    name: String,
    url: String,
    /// `None`: the certificate's issuer is not known, so no response could be verified.
    question: Option<Arc<dyn Question>>,
    /// The response that the configuration has read.
    response: Option<Arc<[u8]>>,
}

impl std::fmt::Debug for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wanted").field("name", &self.name).field("url", &self.url).finish_non_exhaustive()
    }
}

impl Wanted {
    /// What is to be fetched for a certificate. `None`: it names no responder.
    pub fn of(loaded: &Loaded) -> Option<Self> {
        let identity = &loaded.identity;
        Some(Self {
            digest: loaded.digest,
            name: identity.source.display().to_string(),
            url: loaded.stated.responder.clone()?,
            question: Subject::new(&identity.chain).map(|subject| Arc::new(subject) as Arc<dyn Question>),
            response: identity.ocsp.as_deref().map(Arc::from),
        })
    }
}

/// How the response about a certificate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What the response in use says: "good" or "revoked"; empty where there is none.
    pub standing: &'static str,
    /// When the response in use expires, in seconds since 1970.
    pub next_update: Option<u64>,
    /// When the next request is made.
    pub next_request: Option<u64>,
    /// Why the last request failed; empty after one that did not.
    pub last_error: String,
}

/// How all stand.
#[derive(Debug, Default)]
pub struct Reports {
    /// By certificate.
    pub certificates: HashMap<CertificateDigest, Report>,
    /// Responses that say "good", since the start.
    pub good: u64,
    /// Responses that say "revoked".
    pub revoked: u64,
    /// Requests that failed, and responses that were refused.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Shared {
    staples: Mutex<Staples>,
    reports: Arc<Mutex<Reports>>,
    changed: Notify,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running task.
#[derive(Debug)]
pub struct Manager {
    settings: RevocationSettings,
    wanted: watch::Sender<Arc<[Wanted]>>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Manager {
    /// Starts it, in a runtime of tokio's.
    pub fn start(settings: RevocationSettings) -> Self {
        Self::asking(
            settings,
            Arc::new(|url, request| Box::pin(async move { fetch::ask(&url, request, MAX_RESPONSE).await })),
        )
    }

    fn asking(settings: RevocationSettings, ask: Ask) -> Self {
        let (wanted, wants) = watch::channel(Arc::default());
        let shared = Arc::new(Shared::default());
        let task = Task {
            settings: settings.clone(),
            ask,
            shared: shared.clone(),
            entries: HashMap::new(),
            due: BinaryHeap::new(),
            responders: HashMap::new(),
            running: JoinSet::new(),
            names: HashMap::new(),
            writes: JoinSet::new(),
            write_failed: false,
            told: None,
            waiting: VecDeque::new(),
            changed: false,
            cleaned: false,
        };
        Self { settings, wanted, shared, task: tokio::spawn(task.run(wants)) }
    }

    /// What it was started with.
    pub fn settings(&self) -> &RevocationSettings {
        &self.settings
    }

    /// Keeps responses for these certificates, and for no others. What is known of them stays known.
    pub fn want(&self, wanted: Vec<Wanted>) {
        let new = self.new_of(wanted.iter().map(|w| (w.digest, w.response.as_deref())));
        locked(&self.shared.staples).extend(new);
        self.wanted.send_replace(wanted.into());
    }

    /// The responses of certificates that come anew: what the configuration has just read and verified is there at once. Of those
    /// that were wanted before, this is the place that knows whether there is one: it may have expired since.
    fn new_of<'r>(&self, read: impl Iterator<Item = (CertificateDigest, Option<&'r [u8]>)>) -> Staples {
        let before: HashSet<CertificateDigest> = self.wanted.borrow().iter().map(|w| w.digest).collect();
        let new = read.filter(|(digest, _)| !before.contains(digest));
        new.filter_map(|(digest, response)| Some((digest, Arc::from(response?)))).collect()
    }

    /// Waits until other responses are to be sent than before. Cancel safe.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// The responses that are good now.
    pub fn staples(&self) -> Staples {
        locked(&self.shared.staples).clone()
    }

    /// The same, with those of certificates that a configuration has read and that were not wanted before.
    pub fn staples_with<'r>(&self, read: impl Iterator<Item = (CertificateDigest, Option<&'r [u8]>)>) -> Staples {
        let new = self.new_of(read);
        let mut staples = self.staples();
        staples.extend(new);
        staples
    }

    /// Whether there is a response about a certificate.
    pub fn has(&self, digest: &CertificateDigest) -> bool {
        locked(&self.shared.staples).contains_key(digest)
    }

    /// How all stand.
    pub fn reports(&self) -> Arc<Mutex<Reports>> {
        self.shared.reports.clone()
    }
}

type Asked = Pin<Box<dyn Future<Output = Result<Vec<u8>, Failure>> + Send>>;
type Ask = Arc<dyn Fn(String, Vec<u8>) -> Asked + Send + Sync>;

/// A response that was verified.
struct Held {
    bytes: Arc<[u8]>,
    response: Response,
}

struct Entry {
    wanted: Wanted,
    held: Option<Held>,
    /// In a row.
    failures: u32,
    last_error: String,
    /// When the next request is made.
    request_at: u64,
    /// When it is looked at next: entries of the heap with another time are out of date.
    look_at: u64,
    /// A request is under way, or waits for others to the same responder.
    busy: bool,
}

/// Requests to one responder.
#[derive(Default)]
struct Responder {
    running: usize,
    waiting: VecDeque<CertificateDigest>,
}

type Done = (CertificateDigest, Result<(Arc<[u8]>, Response), Failure>);

struct Task {
    settings: RevocationSettings,
    ask: Ask,
    shared: Arc<Shared>,
    entries: HashMap<CertificateDigest, Entry>,
    due: BinaryHeap<Reverse<(u64, CertificateDigest)>>,
    responders: HashMap<String, Responder>,
    /// Those whose request waits for others to end.
    waiting: VecDeque<CertificateDigest>,
    running: JoinSet<Done>,
    /// What each of them is about, and whom it asks: one that panics cannot say it.
    names: HashMap<task::Id, (CertificateDigest, String)>,
    writes: JoinSet<std::io::Result<()>>,
    /// A response could not be kept, which was said.
    write_failed: bool,
    /// When control was last told of a change.
    told: Option<Instant>,
    /// There is a change that control has not been told of.
    changed: bool,
    cleaned: bool,
}

impl Task {
    async fn run(mut self, mut wants: watch::Receiver<Arc<[Wanted]>>) {
        loop {
            self.look(now());
            let pause = PAUSE + PAUSE_EACH * u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
            let wait = self.told.map_or(Duration::ZERO, |told| pause.saturating_sub(told.elapsed()));
            if self.changed && wait.is_zero() {
                self.changed = false;
                self.told = Some(Instant::now());
                self.shared.changed.notify_one();
            }
            let due = self.due.peek().map_or(LONGEST_SLEEP, |Reverse((at, _))| at.saturating_sub(now()));
            let sleep = Duration::from_secs(due.clamp(1, LONGEST_SLEEP));
            let sleep = if self.changed { sleep.min(wait) } else { sleep };
            tokio::select! {
                Some(done) = self.running.join_next_with_id() => match done {
                    Ok((id, (digest, result))) => self.ended(id, digest, result),
                    Err(e) => {
                        if let Some((digest, _)) = self.names.get(&e.id()).cloned() {
                            self.ended(e.id(), digest, Err(format!("{e}; this is a bug").into()));
                        }
                    }
                },
                Some(written) = self.writes.join_next() => self.written(written),
                wanted = wants.changed() => match wanted {
                    Ok(()) => {
                        let wanted = wants.borrow_and_update().clone();
                        self.want(&wanted);
                    }
                    Err(_) => return,
                },
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    fn want(&mut self, wanted: &[Wanted]) {
        let now = now();
        let digests: HashSet<CertificateDigest> = wanted.iter().map(|w| w.digest).collect();
        self.entries.retain(|digest, _| digests.contains(digest));
        locked(&self.shared.staples).retain(|digest, _| digests.contains(digest));
        locked(&self.shared.reports).certificates.retain(|digest, _| digests.contains(digest));
        for wanted in wanted {
            if self.entries.contains_key(&wanted.digest) {
                continue;
            }
            let mut entry = Entry {
                wanted: wanted.clone(),
                held: None,
                failures: 0,
                last_error: String::new(),
                request_at: now,
                look_at: now,
                busy: false,
            };
            match &wanted.question {
                None => {
                    entry.last_error =
                        "the file has no certificate of the issuer, which the gateway needs to verify responses: append this certificate"
                            .to_owned();
                    log::warn!("{}: no OCSP response is fetched: {}", wanted.name, entry.last_error);
                    entry.request_at = u64::MAX;
                }
                Some(question) => {
                    let known = wanted.response.clone();
                    entry.held = known.and_then(|bytes| {
                        let response = question.verify(&bytes, now).ok()?;
                        Some(Held { bytes, response })
                    });
                    if entry.held.is_none() && locked(&self.shared.staples).remove(&wanted.digest).is_some() {
                        self.changed = true;
                    }
                    if let Some(held) = &entry.held {
                        let validity = (held.response.this_update, held.response.next_update);
                        entry.request_at = schedule::refresh(validity, now, share());
                    }
                }
            }
            self.entries.insert(wanted.digest, entry);
            self.schedule(wanted.digest);
            self.show(&wanted.digest);
        }
        if !self.cleaned && !wanted.is_empty() {
            self.cleaned = true;
            let files = digests.iter().map(|digest| self.settings.response_file(digest)).collect();
            self.writes.spawn(folder::clean(self.settings.storage.join("ocsp"), files));
        }
    }

    /// Puts the next look at a certificate on the list: for a request, or because its response expires.
    fn schedule(&mut self, digest: CertificateDigest) {
        let Some(entry) = self.entries.get_mut(&digest) else { return };
        let expiry = entry.held.as_ref().map_or(u64::MAX, |held| held.response.next_update);
        // While a request is under way its end is waited for.
        entry.look_at = if entry.busy { expiry } else { entry.request_at.min(expiry) };
        if entry.look_at < u64::MAX {
            self.due.push(Reverse((entry.look_at, digest)));
        }
    }

    /// Withdraws what has expired, and makes the requests that are due.
    fn look(&mut self, now: u64) {
        self.follow_clock(now);
        while let Some(Reverse((at, digest))) = self.due.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.due.pop();
            let Some(entry) = self.entries.get_mut(&digest).filter(|entry| entry.look_at == at) else { continue };
            let expired = entry.held.as_ref().is_some_and(|held| held.response.next_update <= now);
            if expired {
                entry.held = None;
                let why = match entry.last_error.as_str() {
                    "" => String::new(),
                    why => format!(": {why}"),
                };
                log::warn!("{}: the OCSP response has expired; the gateway sends none{why}", entry.wanted.name);
                locked(&self.shared.staples).remove(&digest);
                self.changed = true;
            }
            if !entry.busy && entry.request_at <= now {
                entry.busy = true;
                self.request(digest);
            }
            self.schedule(digest);
            if expired {
                self.show(&digest);
            }
        }
    }

    /// Makes requests now that are further away than any wait is: the clock has been set back since then.
    fn follow_clock(&mut self, now: u64) {
        let Some(Reverse((first, _))) = self.due.peek() else { return };
        if schedule::genuine(*first, now) == *first {
            return;
        }
        self.due.clear();
        let digests: Vec<CertificateDigest> = self.entries.keys().copied().collect();
        for digest in digests {
            if let Some(entry) = self.entries.get_mut(&digest).filter(|entry| entry.request_at < u64::MAX) {
                entry.request_at = schedule::genuine(entry.request_at, now);
            }
            self.schedule(digest);
        }
    }

    /// Makes a request, or has it wait for others to the same responder.
    fn request(&mut self, digest: CertificateDigest) {
        let Some(entry) = self.entries.get(&digest) else { return };
        let Some(question) = entry.wanted.question.clone() else { return };
        let origin = fetch::origin(&entry.wanted.url);
        if self.running.len() >= MAX_REQUESTS {
            self.waiting.push_back(digest);
            return;
        }
        let responder = self.responders.entry(origin.clone()).or_default();
        if responder.running >= MAX_PER_RESPONDER {
            responder.waiting.push_back(digest);
            return;
        }
        responder.running += 1;
        let asked = (self.ask)(entry.wanted.url.clone(), question.request());
        let started = self.running.spawn(async move {
            let answer = async {
                let bytes = asked.await?;
                let response = question.verify(&bytes, now()).map_err(|e| e.to_string())?;
                Ok((Arc::from(bytes), response))
            };
            (digest, answer.await)
        });
        self.names.insert(started.id(), (digest, origin));
    }

    /// A request has ended: the next one to the same responder may begin.
    fn ended(&mut self, id: task::Id, digest: CertificateDigest, result: Result<(Arc<[u8]>, Response), Failure>) {
        if let Some((_, origin)) = self.names.remove(&id)
            && let Some(responder) = self.responders.get_mut(&origin)
        {
            responder.running -= 1;
            // One that is not wanted any more would leave the place to nobody.
            let entries = &self.entries;
            match std::iter::from_fn(|| responder.waiting.pop_front()).find(|next| entries.contains_key(next)) {
                Some(next) => self.waiting.push_front(next),
                None if responder.running == 0 => drop(self.responders.remove(&origin)),
                None => {}
            }
        }
        // Those that wait for their responder leave this queue for the responder's.
        while self.running.len() < MAX_REQUESTS
            && let Some(next) = self.waiting.pop_front()
        {
            self.request(next);
        }
        self.take(digest, result, now());
        self.schedule(digest);
        self.show(&digest);
    }

    /// Judges what a request has brought.
    fn take(&mut self, digest: CertificateDigest, result: Result<(Arc<[u8]>, Response), Failure>, now: u64) {
        // It is not wanted any more.
        let Some(entry) = self.entries.get_mut(&digest) else { return };
        entry.busy = false;
        let name = &entry.wanted.name;
        let refused = |why: &str| Err(Failure::from(format!("{}: {why}", entry.wanted.url)));
        let result = match result {
            Ok((_, response)) if response.standing == Standing::Unknown => {
                refused("the responder does not know the certificate")
            }
            // An old response that somebody has kept.
            Ok((_, response))
                if entry.held.as_ref().is_some_and(|held| held.response.this_update > response.this_update) =>
            {
                refused("the response is older than the response in use")
            }
            Ok(good) => Ok(good),
            Err(failure) => Err(failure),
        };
        match result {
            Ok((bytes, response)) => {
                let revoked = response.standing == Standing::Revoked;
                let before = entry.held.as_ref().map(|held| held.response.standing);
                if revoked && before != Some(Standing::Revoked) {
                    log::error!(
                        "{name}: the authority has revoked this certificate: clients get this OCSP response and refuse the certificate"
                    );
                } else if entry.failures > 0 {
                    log::info!("{name}: the requests for OCSP responses succeed again");
                }
                {
                    let mut reports = locked(&self.shared.reports);
                    *(if revoked { &mut reports.revoked } else { &mut reports.good }) += 1;
                }
                entry.failures = 0;
                entry.last_error.clear();
                entry.request_at = schedule::refresh((response.this_update, response.next_update), now, share());
                if entry.held.as_ref().is_none_or(|held| held.bytes != bytes) {
                    locked(&self.shared.staples).insert(digest, bytes.clone());
                    self.changed = true;
                    self.writes.spawn(folder::write(self.settings.response_file(&digest), bytes.clone()));
                }
                entry.held = Some(Held { bytes, response });
            }
            Err(failure) => {
                locked(&self.shared.reports).failed += 1;
                entry.failures = entry.failures.saturating_add(1);
                let left = entry.held.as_ref().map(|held| held.response.next_update.saturating_sub(now));
                entry.request_at = now + schedule::back_off(entry.failures, left, failure.demanded, share());
                if entry.failures == 1 {
                    let held = match entry.held {
                        Some(_) => "; the previous response stays in use until it expires",
                        None => "",
                    };
                    log::warn!("{name}: a request for an OCSP response has failed: {}{held}", failure.why);
                }
                entry.last_error = failure.why;
            }
        }
    }

    fn written(&mut self, written: Result<std::io::Result<()>, task::JoinError>) {
        let why = match written {
            Ok(Ok(())) => return,
            Ok(Err(e)) => e.to_string(),
            Err(e) => format!("{e}; this is a bug"),
        };
        if !self.write_failed {
            self.write_failed = true;
            log::warn!("OCSP responses cannot be stored for the next start: {why}");
        }
    }

    fn show(&self, digest: &CertificateDigest) {
        let Some(entry) = self.entries.get(digest) else { return };
        let held = entry.held.as_ref();
        let report = Report {
            standing: held.map_or("", |held| held.response.standing.word()),
            next_update: held.map(|held| held.response.next_update),
            next_request: (entry.request_at < u64::MAX).then_some(entry.request_at),
            last_error: entry.last_error.clone(),
        };
        locked(&self.shared.reports).certificates.insert(*digest, report);
    }
}

#[cfg(test)]
mod tests;
