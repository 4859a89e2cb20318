//! Certificates, accounts and challenges that several gateways share through a store (`docs/decisions/034-shared-store.md`).
//!
//! ```text
//!                        ┌─ the store ────────────────────────────────────────────────────┐
//!   one gateway orders ─▶│ a lease for each name · files, with the number of the lease     │
//!                        │ the journal: which certificates have changed · open challenges  │
//!                        └──────────────────────────────┬─────────────────────────────────┘
//!                                                       ▼ every second
//!   all gateways: follower ──▶ copies in the folder, from which control serves; challenges, which lanes answer
//! ```
//!
//! The store may be away, or lose everything, at any time. What a gateway has in its folder, it serves; a store that has lost a
//! certificate gets it from a gateway that has it ([`follower`]). No order begins without a lease.

mod follower;
mod lease;
mod value;

pub(crate) use follower::{Fetched, Follower, Known};
pub(crate) use lease::SharedLease;
pub(crate) use value::fuzz_values;

use crate::certificate;
use crate::challenges::Challenge;
use crate::folder::{Folder, certificate_file, pending_file, state_file};
use crate::schedule::now;
use crate::storage::{Claim, Kept, Lease, Ours, Pending, Published, Storage, StorageError};
use sealane_log as log;
use sealane_store::seal::Secret;
use sealane_store::{Answer, Incarnation, Link, Operation, StoreError};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use value::{Journal, MAX_POSTED, MAX_VALUE, Posted, Value, read_json, write_json};
use zeroize::Zeroizing;

/// How long the store may take.
const LIMIT: Duration = Duration::from_secs(2);
/// How often a value is read again that another gateway has changed meanwhile.
const ATTEMPTS: usize = 8;
/// How long a challenge is in the store before the authority is asked to check it: every gateway reads it within a second.
const LEAD: Duration = Duration::from_secs(3);
/// How long other gateways answer a challenge of a gateway that is gone, in seconds.
const POSTED: u64 = 300;
/// How long after the store has lost its data no gateway orders: those that have certificates write them first. A gateway connects
/// to a store again within 5 s.
const SETTLE: Duration = Duration::from_secs(8);
/// How long accounts, and the numbers of leases, are kept.
const LASTING: Duration = Duration::from_secs(400 * 86_400);
/// How long the state of attempts is kept: no wait is longer than a day.
const PASSING: Duration = Duration::from_secs(2 * 86_400);
/// How long an attempt to get a lease waits for the store.
const READY: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(100);
const PURPOSE: &str = "acme";
/// The file with the waits of authorities.
pub(crate) const WAITS_FILE: &str = "state.json";

/// The store of a fleet.
#[derive(Clone, Debug)]
pub struct SharedStore {
    /// The way to it.
    pub link: Link,
    /// What its values are sealed with.
    pub secret: Secret,
    /// What the names of values begin with.
    pub prefix: String,
}

/// What has become of leases and certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedCounts {
    /// Leases that this gateway has got.
    pub leased: u64,
    /// Attempts to get a lease that another gateway had.
    pub held_by_others: u64,
    /// Attempts to get a lease that the store did not answer.
    pub without_store: u64,
    /// Leases that were lost before the order had ended.
    pub lost: u64,
    /// Certificates of other gateways that this one has taken.
    pub taken: u64,
    /// Certificates that this gateway has written to a store that did not have them.
    pub restored: u64,
    /// Files that could not be written to the store, and are only in the folder until then.
    pub unwritten: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    leased: AtomicU64,
    held_by_others: AtomicU64,
    without_store: AtomicU64,
    pub lost: AtomicU64,
    pub taken: AtomicU64,
    restored: AtomicU64,
    unwritten: AtomicU64,
}

impl Counters {
    pub fn read(&self) -> SharedCounts {
        SharedCounts {
            leased: self.leased.load(Relaxed),
            held_by_others: self.held_by_others.load(Relaxed),
            without_store: self.without_store.load(Relaxed),
            lost: self.lost.load(Relaxed),
            taken: self.taken.load(Relaxed),
            restored: self.restored.load(Relaxed),
            unwritten: self.unwritten.load(Relaxed),
        }
    }
}

/// The store, with a copy in a folder. Clones are the same.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Inner>);

struct Inner {
    link: Link,
    secret: Secret,
    prefix: String,
    folder: Folder,
    /// Who this gateway is, for leases.
    owner: String,
    leases: AtomicU64,
    /// Who it is, for people.
    holder: String,
    counters: Arc<Counters>,
    /// The folder may have what the store does not have.
    ahead: AtomicBool,
    /// Names whose new certificates are not in the journal yet.
    unannounced: Mutex<BTreeSet<String>>,
    /// The life of the store's data, and from when on orders may begin in it.
    settles: Mutex<Option<(Incarnation, Instant)>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("link", &self.0.link).finish_non_exhaustive()
    }
}

impl Shared {
    pub fn new(store: SharedStore, folder: Folder) -> Self {
        let mut random = [0; 16];
        // Without random numbers nothing can be sealed, either.
        let _ = aws_lc_rs::rand::fill(&mut random);
        let owner = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "a gateway" } else { host.trim() };
        let holder = format!("{host} (pid {})", std::process::id());
        Self(Arc::new(Inner {
            link: store.link,
            secret: store.secret,
            prefix: store.prefix,
            folder,
            owner,
            leases: AtomicU64::new(0),
            holder,
            counters: Arc::default(),
            ahead: AtomicBool::new(false),
            unannounced: Mutex::default(),
            settles: Mutex::default(),
        }))
    }

    /// What has happened.
    pub fn counters(&self) -> Arc<Counters> {
        self.0.counters.clone()
    }

    /// For people.
    pub fn name(&self) -> &str {
        self.0.link.name()
    }
}

/// The name in the files of a certificate.
fn is_of_name(file: &str) -> bool {
    file.starts_with("certificates/") || file.starts_with("state/")
}

fn is_account(file: &str) -> bool {
    file.starts_with("account-")
}

/// How long a file is kept in the store.
fn keep_for(file: &str, content: &[u8]) -> Duration {
    if file.starts_with("certificates/") {
        let end = certificate::end(content).unwrap_or(0);
        // One that has expired tells for a day that there was one.
        Duration::from_secs(end.saturating_sub(now())).min(LASTING) + Duration::from_secs(86_400)
    } else if is_account(file) {
        LASTING
    } else {
        PASSING
    }
}

impl Inner {
    /// The name of a value in the store, which does not tell what it is for.
    fn key(&self, kind: &str, subject: &str) -> String {
        format!("{}:{kind}:{}", self.prefix, self.secret.name(kind, subject.as_bytes()))
    }

    fn file_key(&self, file: &str) -> String {
        self.key("acme-file", file)
    }

    /// Another one for each lease, so that the end of one does not end the next.
    fn next_owner(&self) -> String {
        format!("{}-{}", self.owner, self.leases.fetch_add(1, Relaxed))
    }

    fn open(&self, key: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        self.secret.open(PURPOSE, key.as_bytes(), sealed)
    }

    async fn get(&self, key: &str) -> Result<(Option<Vec<u8>>, Incarnation), StoreError> {
        match self.link.execute(Operation::Get { key: key.to_owned() }, LIMIT).await? {
            (Answer::Value(value), incarnation) => Ok((value, incarnation)),
            _ => Err(StoreError::Refused("it answers another question".to_owned())),
        }
    }

    /// Seals a value and writes it, if the present one is still what it was.
    async fn replace(
        &self,
        key: &str,
        expected: Option<Vec<u8>>,
        plain: &[u8],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let sealed = self.secret.seal(PURPOSE, key.as_bytes(), plain);
        let value = sealed.ok_or_else(|| StoreError::Refused("there are no random numbers".to_owned()))?;
        let replace = Operation::Replace { key: key.to_owned(), expected, value, ttl };
        Ok(self.link.execute(replace, LIMIT).await?.0 == Answer::Done(true))
    }

    fn read_value(&self, key: &str, sealed: &[u8]) -> Option<Value> {
        Value::read(&self.open(key, sealed)?)
    }

    /// Changes a value that all gateways change.
    async fn change<T: serde::Serialize + serde::de::DeserializeOwned + Default>(
        &self,
        key: &str,
        ttl: Duration,
        change: impl Fn(&mut T) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        for _ in 0..ATTEMPTS {
            let (sealed, _) = self.get(key).await?;
            // What is damaged counts as not there.
            let plain = sealed.as_deref().and_then(|sealed| self.open(key, sealed));
            let mut what: T = plain.and_then(|plain| read_json(&plain)).unwrap_or_default();
            change(&mut what)?;
            if self.replace(key, sealed, &write_json(&what), ttl).await? {
                return Ok(());
            }
        }
        Err(StorageError::Store("other gateways change the same value all the time".to_owned()))
    }

    /// Tells other gateways of a new certificate.
    async fn announce(&self, name: &str) -> Result<(), StorageError> {
        let key = self.key("acme-journal", "");
        self.change(&key, LASTING, |journal: &mut Journal| {
            journal.add(name);
            Ok(())
        })
        .await
    }

    fn unannounced(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.unannounced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells them what could not be told before.
    async fn announce_all(&self) {
        let names: Vec<String> = self.unannounced().iter().cloned().collect();
        for name in names {
            if self.announce(&name).await.is_err() {
                return;
            }
            self.unannounced().remove(&name);
        }
    }

    /// Notes which life of the data this is. `empty`: no gateway has written a certificate in it.
    fn is_life(&self, incarnation: Incarnation, empty: bool) {
        let mut settles = self.settles.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = match &*settles {
            Some((known, _)) if *known == incarnation => return,
            None if !empty => Duration::ZERO,
            _ => SETTLE,
        };
        *settles = Some((incarnation, Instant::now() + wait));
    }

    /// Whether other gateways have had the time to write what they know.
    fn has_settled(&self) -> bool {
        let settles = self.settles.lock().unwrap_or_else(PoisonError::into_inner);
        settles.as_ref().is_some_and(|(_, from)| *from <= Instant::now())
    }

    async fn claim(self: &Arc<Self>, name: &str) -> Result<Claim, StorageError> {
        let ready = async {
            while !self.link.state().is_up() || !self.has_settled() {
                sleep(LOOK).await;
            }
        };
        if timeout(READY, ready).await.is_err() {
            let why = match self.link.state().is_up() {
                false => "it does not respond",
                true => "its data was lost again and again",
            };
            return Err(StorageError::Store(why.to_owned()));
        }
        let Some(taken) = self.take_lease(name).await? else {
            self.counters.held_by_others.fetch_add(1, Relaxed);
            return Ok(Claim::Others { holder: self.holder_of(name).await });
        };
        let files = [certificate_file(name), state_file(name), pending_file(name), WAITS_FILE.to_owned()];
        let keys = files.map(|file| self.file_key(&file));
        let questions = keys.iter().map(|key| Operation::Get { key: key.clone() }).collect();
        let mut values: Vec<Option<Value>> = Vec::with_capacity(keys.len());
        for (key, answer) in keys.iter().zip(self.link.execute_all(questions, LIMIT).await) {
            let sealed = match answer {
                Ok((Answer::Value(sealed), _)) => sealed,
                Ok(_) => None,
                Err(e) => {
                    taken.give_back(self);
                    return Err(e.into());
                }
            };
            values.push(sealed.and_then(|sealed| self.read_value(key, &sealed)));
        }
        // What belongs to the name, without the waits of authorities.
        let known = values.iter().take(3).flatten().map(|value| value.token).max().unwrap_or(0);
        let lease = self.number_lease(name, taken, known).await?;
        self.counters.leased.fetch_add(1, Relaxed);
        let mut values = values.into_iter().map(|value| value.map(|value| value.kept));
        let certificate = values.next().flatten();
        let state = values.next().flatten();
        let waits = values.nth(1).flatten();
        let content = |kept: Option<Kept>| kept.map(|kept| kept.bytes.to_vec());
        Ok(Claim::Ours(Box::new(Ours {
            lease: Lease::Shared(lease),
            certificate,
            state: content(state),
            waits: content(waits),
        })))
    }

    /// Writes a file to the store, unless a gateway with a later lease has written it.
    async fn write_value(&self, file: &str, kept: &Kept, lease: &SharedLease) -> Result<(), StorageError> {
        if kept.bytes.len() > MAX_VALUE {
            return Err(StorageError::Store(format!("{file} is larger than {} KiB", MAX_VALUE >> 10)));
        }
        let (key, ttl) = (self.file_key(file), keep_for(file, &kept.bytes));
        for _ in 0..ATTEMPTS {
            let (sealed, incarnation) = self.get(&key).await?;
            let token = lease.token(incarnation).await?;
            // What belongs to all names has no number.
            let token = if is_of_name(file) { token } else { 0 };
            let stored = sealed.as_deref().and_then(|sealed| self.read_value(&key, sealed));
            if is_account(file) && stored.is_some() {
                return Err(io::Error::new(ErrorKind::AlreadyExists, format!("the store has {file}")).into());
            }
            if stored.is_some_and(|stored| stored.token > token) {
                return Err(lease.is_lost());
            }
            let value = Value { token, kept: kept.clone() };
            if self.replace(&key, sealed, &value.write(), ttl).await? {
                return Ok(());
            }
        }
        Err(StorageError::Store("other gateways change the same value all the time".to_owned()))
    }

    /// Writes a certificate to a store that does not have it, or has an older one. Whether it was written.
    async fn restore(&self, name: &str, stored: Option<(Vec<u8>, u64)>, kept: Kept) -> Result<bool, StoreError> {
        let file = certificate_file(name);
        let (key, ttl) = (self.file_key(&file), keep_for(&file, &kept.bytes));
        let (expected, token) = stored.map_or((None, 0), |(sealed, token)| (Some(sealed), token));
        let written = self.replace(&key, expected, &Value { token, kept }.write(), ttl).await?;
        if written {
            self.counters.restored.fetch_add(1, Relaxed);
            self.unannounced().insert(name.to_owned());
        }
        Ok(written)
    }

    /// The directory of the authority that has issued the certificate in the folder, as far as it is known.
    async fn directory_of(&self, name: &str) -> String {
        let saved = self.folder.read(&state_file(name)).await.ok().flatten();
        let saved = saved.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
        saved.and_then(|saved| Some(saved.get("directory")?.as_str()?.to_owned())).unwrap_or_default()
    }

    async fn read(&self, file: &str) -> Result<Option<Vec<u8>>, StorageError> {
        let key = self.file_key(file);
        for _ in 0..ATTEMPTS {
            let sealed = match self.get(&key).await {
                Ok((sealed, _)) => sealed,
                Err(e) => {
                    let local = self.folder.read(file).await?;
                    // The store may have the fleet's account: without the store, no gateway registers another one.
                    return if is_account(file) && local.is_none() { Err(e.into()) } else { Ok(local) };
                }
            };
            let Some(sealed) = sealed else {
                let local = self.folder.read(file).await?.filter(|_| is_account(file));
                // The fleet's account, where the store has lost it.
                let Some(local) = local else { break };
                let value = Value { token: 0, kept: Kept::plain(local.clone()) };
                match self.replace(&key, None, &value.write(), LASTING).await {
                    Ok(false) => continue,
                    Ok(true) | Err(_) => return Ok(Some(local)),
                }
            };
            let Some(value) = self.read_value(&key, &sealed) else {
                log::error!("a value in the store {} is damaged; it is not used ({file})", self.link.name());
                break;
            };
            if is_account(file) && self.folder.read(file).await?.as_deref() != Some(&value.kept.bytes[..]) {
                self.folder.write(file, value.kept.bytes.to_vec()).await?;
            }
            return Ok(Some(value.kept.bytes.to_vec()));
        }
        Ok(self.folder.read(file).await?)
    }

    async fn remove(&self, file: &str, lease: &Lease) -> Result<(), StorageError> {
        let key = self.file_key(file);
        let stored = match lease {
            Lease::Local if !is_account(file) => None,
            // Without the store, it stays there until it is of no more use.
            _ => self.get(&key).await.ok().and_then(|(sealed, life)| Some((self.read_value(&key, &sealed?)?, life))),
        };
        if let Some((value, incarnation)) = stored {
            let may = match lease {
                // An account that the authority does not know, and that no other gateway has replaced.
                _ if is_account(file) => self.folder.read(file).await?.as_deref() == Some(&value.kept.bytes[..]),
                Lease::Shared(lease) => lease.token(incarnation).await? >= value.token,
                Lease::Local => false,
            };
            if may {
                // It expires in any case.
                let _ = self.link.execute(Operation::Take { key }, LIMIT).await;
            }
        }
        Ok(self.folder.remove(file).await?)
    }

    /// The name of the value with the open challenges of all gateways.
    fn challenges_key(&self) -> String {
        self.key("acme-challenges", "")
    }

    /// Enters a challenge for the other gateways.
    async fn post(&self, challenge: &Challenge) -> Result<(), StorageError> {
        let (key, now) = (self.challenges_key(), now());
        let posted = Posted::new(challenge, &self.owner, now + POSTED);
        self.change(&key, Duration::from_secs(POSTED), |all: &mut Vec<Posted>| {
            all.retain(|other| other.until > now && !(other.name == posted.name && other.owner == posted.owner));
            if all.len() >= MAX_POSTED {
                return Err(io::Error::other("too many challenges of all gateways are open").into());
            }
            all.push(posted.clone());
            Ok(())
        })
        .await
    }

    /// Removes a challenge of this gateway.
    async fn withdraw(&self, name: &str) {
        let key = self.challenges_key();
        let mine = |posted: &Posted| posted.name == name && posted.owner == self.owner;
        let removed = self.change(&key, Duration::from_secs(POSTED), |all: &mut Vec<Posted>| {
            all.retain(|posted| !mine(posted));
            Ok(())
        });
        // One that stays counts no more after a while.
        let _ = removed.await;
    }
}

impl Storage for Shared {
    fn folder(&self) -> &Folder {
        &self.0.folder
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn claim<'a>(&'a self, name: &'a str) -> Pending<'a, Claim> {
        Box::pin(async move {
            let claim = self.0.claim(name).await;
            if claim.is_err() {
                self.0.counters.without_store.fetch_add(1, Relaxed);
            }
            claim
        })
    }

    fn read<'a>(&'a self, file: &'a str) -> Pending<'a, Option<Vec<u8>>> {
        Box::pin(self.0.read(file))
    }

    fn write<'a>(&'a self, file: &'a str, kept: Kept, lease: &'a Lease) -> Pending<'a, ()> {
        Box::pin(async move {
            if let Lease::Shared(lease) = lease {
                match self.0.write_value(file, &kept, lease).await {
                    Ok(()) if file.starts_with("certificates/") => {
                        self.0.unannounced().insert(lease.name.clone());
                    }
                    Ok(()) => {}
                    Err(StorageError::Store(why)) => {
                        self.0.counters.unwritten.fetch_add(1, Relaxed);
                        self.0.ahead.store(true, Relaxed);
                        log::warn!("{file} is only in the folder until the store responds: {why}");
                    }
                    Err(e) => return Err(e),
                }
            }
            self.0.folder.write(file, kept.bytes.to_vec()).await?;
            self.0.announce_all().await;
            Ok(())
        })
    }

    fn remove<'a>(&'a self, file: &'a str, lease: &'a Lease) -> Pending<'a, ()> {
        Box::pin(self.0.remove(file, lease))
    }

    fn publish<'a>(&'a self, challenge: &'a Challenge) -> Pending<'a, Published> {
        Box::pin(async move {
            self.0.post(challenge).await?;
            let withdrawal = Withdrawal { inner: self.0.clone(), name: challenge.name.clone() };
            sleep(LEAD).await;
            Ok(Some(withdrawal))
        })
    }
}

/// A challenge that other gateways answer as long as this exists.
pub(crate) struct Withdrawal {
    inner: Arc<Inner>,
    name: String,
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        let (inner, name) = (self.inner.clone(), std::mem::take(&mut self.name));
        // Without a runtime, the gateway ends.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { inner.withdraw(&name).await });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
