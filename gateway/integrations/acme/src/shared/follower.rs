//! Follows the store: takes the certificates that other gateways have got, lets lanes answer their challenges, and writes certificates
//! to a store that has lost them.

use super::value::{Journal, Posted, read_json};
use super::{Inner, LIMIT, Shared};
use crate::certificate;
use crate::challenges::{Challenge, Responder};
use crate::folder::certificate_file;
use crate::schedule::now;
use crate::storage::Kept;
use sealane_log as log;
use sealane_store::{Answer, Incarnation, Operation, StoreError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use zeroize::Zeroizing;

/// How often the journal and the challenges are read.
const EVERY: Duration = Duration::from_secs(1);
/// How often all certificates are compared with those of the store, whatever the journal says.
const COMPARE: Duration = Duration::from_secs(600);
/// How long after a comparison that failed the next one begins.
const COMPARE_AGAIN: Duration = Duration::from_secs(3);
/// The most certificates of one question.
const TOGETHER: usize = 32;
/// A challenge of another gateway whose end is later than this was entered by a clock that runs ahead.
const LATEST: u64 = 1200;

/// The names of this gateway, each with the version of its certificate; 0: it has none.
pub(crate) type Known = Arc<BTreeMap<String, u64>>;

/// A certificate of the store that is newer than that of this gateway.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub name: String,
    pub kept: Kept,
}

/// The task that follows the store.
pub(crate) struct Follower {
    inner: Arc<Inner>,
    known: watch::Receiver<Known>,
    tell: mpsc::Sender<Fetched>,
    responder: Responder,
    /// The files of accounts, of which every folder has a copy, too.
    accounts: Vec<String>,
    /// How far the journal was read, and in which life of the data; `None`: all certificates are to be compared.
    seen: Option<(u64, Incarnation)>,
    compared: Instant,
    /// The last comparison has failed: the next one begins no sooner than this.
    again: Option<Instant>,
    /// When the challenges were read.
    read_at: Instant,
    posted: Vec<Posted>,
    /// Said once: something in the store is damaged.
    complained: bool,
}

impl Follower {
    pub fn new(
        shared: &Shared,
        known: watch::Receiver<Known>,
        tell: mpsc::Sender<Fetched>,
        responder: Responder,
        accounts: Vec<String>,
    ) -> Self {
        Self {
            inner: shared.0.clone(),
            known,
            tell,
            responder,
            accounts,
            seen: None,
            compared: Instant::now(),
            again: None,
            read_at: Instant::now(),
            posted: Vec::new(),
            complained: false,
        }
    }

    /// Follows it without end.
    pub async fn run(mut self) {
        loop {
            if self.look().await.is_err() {
                // That the store is away is said by its link. What has changed meanwhile is found by a comparison.
                self.seen = None;
                let until_they_end = self.posted.clone();
                self.answer_posted(until_they_end);
            }
            sleep(EVERY).await;
        }
    }

    pub(super) async fn look(&mut self) -> Result<(), StoreError> {
        let keys = [self.inner.key("acme-journal", ""), self.inner.challenges_key()];
        let questions = keys.iter().map(|key| Operation::Get { key: key.clone() }).collect();
        let mut answers = self.inner.link.execute_all(questions, LIMIT).await.into_iter();
        let mut next = || answers.next().unwrap_or(Err(StoreError::Slow));
        let (journal, posted) = (next()?, next()?);
        let incarnation = posted.1;
        self.take_posted(&keys[1], posted.0);
        let journal: Option<Journal> = self.read(&keys[0], journal.0);
        self.inner.is_life(incarnation, journal.is_none());
        // A store that is full must not be asked for all certificates every second.
        if self.again.is_some_and(|again| Instant::now() < again) {
            return Ok(());
        }
        self.again = None;
        let count = journal.as_ref().map_or(0, |journal| journal.count);
        let known = self.known.borrow_and_update().clone();
        let ahead = self.inner.ahead.swap(false, Relaxed);
        let fresh = ahead || self.compared.elapsed() >= COMPARE;
        let changed = match (self.seen, &journal) {
            (Some((seen, life)), Some(journal)) if life == incarnation && !fresh => journal.since(seen),
            (Some((0, life)), None) if life == incarnation && !fresh => Some(Vec::new()),
            _ => None,
        };
        let all = changed.is_none();
        // Before the certificates: what changes while they are read is read again.
        let names = match changed {
            Some(names) => names,
            None => {
                self.compared = Instant::now();
                known.keys().cloned().collect()
            }
        };
        if let Err(e) = self.compare(&names, &known).await {
            self.inner.ahead.fetch_or(ahead, Relaxed);
            self.again = Some(Instant::now() + COMPARE_AGAIN);
            return Err(e);
        }
        if all && !known.is_empty() {
            for file in &self.accounts {
                // Copies an account to the folder, or to a store that has lost it. After an error, the next comparison does so.
                let _ = self.inner.read(file).await;
            }
        }
        // A gateway that does not know its names yet, or has others, compares anew.
        self.seen = (!known.is_empty()).then_some((count, incarnation));
        self.inner.announce_all().await;
        Ok(())
    }

    /// Reads a value that is not a file.
    fn read<T: serde::de::DeserializeOwned>(&mut self, key: &str, answer: Answer) -> Option<T> {
        let Answer::Value(Some(sealed)) = answer else { return None };
        let read = self.inner.open(key, &sealed).and_then(|plain| read_json(&plain));
        if read.is_none() {
            self.complain();
        }
        read
    }

    fn complain(&mut self) {
        if !self.complained {
            self.complained = true;
            log::error!("a value in the store {} is damaged; the gateway does not use it", self.inner.link.name());
        }
    }

    fn take_posted(&mut self, key: &str, answer: Answer) {
        self.read_at = Instant::now();
        let posted = self.read(key, answer).unwrap_or_default();
        self.answer_posted(posted);
    }

    /// Lets lanes answer the challenges of other gateways.
    fn answer_posted(&mut self, mut posted: Vec<Posted>) {
        let now = now();
        posted.retain(|p| p.owner != self.inner.owner && p.until > now && p.until <= now.saturating_add(LATEST));
        posted.truncate(super::MAX_POSTED);
        if posted == self.posted {
            return;
        }
        let challenges: Vec<Arc<Challenge>> = posted.iter().filter_map(Posted::challenge).map(Arc::new).collect();
        if challenges.len() < posted.len() {
            self.complain();
        }
        self.posted = posted;
        self.responder.answer_others(challenges);
    }

    /// Compares certificates with those of the store.
    async fn compare(&mut self, names: &[String], known: &BTreeMap<String, u64>) -> Result<(), StoreError> {
        for names in names.chunks(TOGETHER) {
            // Authorities do not wait until many certificates are compared.
            if self.read_at.elapsed() >= EVERY {
                let key = self.inner.challenges_key();
                let (answer, _) = self.inner.link.execute(Operation::Get { key: key.clone() }, LIMIT).await?;
                self.take_posted(&key, answer);
            }
            let keys: Vec<String> = names.iter().map(|name| self.inner.file_key(&certificate_file(name))).collect();
            let questions = keys.iter().map(|key| Operation::Get { key: key.clone() }).collect();
            let answers = self.inner.link.execute_all(questions, LIMIT).await;
            for ((name, key), answer) in names.iter().zip(&keys).zip(answers) {
                let (Answer::Value(sealed), _) = answer? else { continue };
                let ours = known.get(name).copied().unwrap_or(0);
                let Some(sealed) = sealed else {
                    self.restore(name, ours, None).await?;
                    continue;
                };
                let Some(value) = self.inner.read_value(key, &sealed) else {
                    self.complain();
                    continue;
                };
                if value.kept.version > ours {
                    let fetched = Fetched { name: name.clone(), kept: value.kept };
                    if self.tell.send(fetched).await.is_err() {
                        // The gateway ends.
                        std::future::pending::<()>().await;
                    }
                } else if value.kept.version < ours {
                    self.restore(name, ours, Some((sealed, value.token))).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes a certificate of the folder to the store, if it has not expired.
    async fn restore(&self, name: &str, version: u64, stored: Option<(Vec<u8>, u64)>) -> Result<(), StoreError> {
        if version == 0 {
            return Ok(());
        }
        // What cannot be read, or is not for this name, is not what others should have.
        let Ok(Some(pem)) = self.inner.folder.read(&certificate_file(name)).await else { return Ok(()) };
        let pem = Zeroizing::new(pem);
        if !certificate::check(&pem, name).is_ok_and(|info| info.not_after > now()) || pem.len() > super::MAX_VALUE {
            return Ok(());
        }
        let directory = self.inner.directory_of(name).await;
        let kept = Kept { version, directory, bytes: pem };
        if self.inner.restore(name, stored, kept).await? {
            log::info!("{name}: the store did not have this certificate; the gateway has written it to the store");
        }
        Ok(())
    }
}
