//! Ticket keys that gateways share.
//!
//! They are one value in the store, sealed. Every gateway reads it every two seconds. The one that has the lease makes the next key
//! a while before it is used, so that all have it by then, and replaces the value only if it is still the one that it has read.
//! A store that has lost the value, or has an older one, gets it again from a gateway: clients go on resuming.

use crate::log;
use sealane_store::seal::Secret;
use sealane_store::{Answer, Link, Operation, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeroize::{Zeroize, Zeroizing};

/// How often the keys are read.
const EVERY: Duration = Duration::from_secs(2);
/// How long one gateway may make keys before another one can.
const LEASE: Duration = Duration::from_secs(10);
/// How long before it is used a key is in the store, in seconds.
const LEAD: u64 = 10;
const LIMIT: Duration = Duration::from_secs(1);
/// The shortest time from one look to the next.
const PAUSE: Duration = Duration::from_millis(100);
/// The most keys of a value: the next one, the one in use, those before it.
const MAX_KEYS: usize = 8;
const FORMAT: u8 = 1;
const PURPOSE: &str = "ticket keys";
const KEY: usize = 32;
const ENTRY: usize = KEY + 8;

/// A key, and from when on it is used, in seconds since 1970.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    bytes: [u8; KEY],
    from: u64,
}

/// All keys of a fleet, the newest first.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Ring {
    /// Counts changes.
    epoch: u64,
    keys: Vec<Key>,
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.keys.iter_mut().for_each(|key| key.bytes.zeroize());
    }
}

/// Keys that hold: the first seals, all open. Zeroed when dropped.
pub struct Given(Vec<[u8; KEY]>);

impl Given {
    /// In this order.
    pub fn keys(&self) -> &[[u8; KEY]] {
        &self.0
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Given {
    /// Never the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Given").field("keys", &self.0.len()).finish()
    }
}

fn fresh(from: u64) -> Option<Key> {
    let mut bytes = [0; KEY];
    aws_lc_rs::rand::fill(&mut bytes).ok()?;
    Some(Key { bytes, from })
}

impl Ring {
    /// The first one.
    fn new(now: u64) -> Option<Self> {
        Some(Self { epoch: 1, keys: vec![fresh(now)?] })
    }

    fn write(&self) -> Zeroizing<Vec<u8>> {
        // Made as long as it becomes, so that nothing is left behind by growing.
        let mut out = Zeroizing::new(Vec::with_capacity(9 + self.keys.len() * ENTRY));
        out.push(FORMAT);
        out.extend_from_slice(&self.epoch.to_be_bytes());
        for key in &self.keys {
            out.extend_from_slice(&key.bytes);
            out.extend_from_slice(&key.from.to_be_bytes());
        }
        out
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (FORMAT, rest) = bytes.split_first().map(|(format, rest)| (*format, rest))? else { return None };
        let (epoch, rest) = rest.split_first_chunk()?;
        if rest.is_empty() || rest.len() % ENTRY != 0 || rest.len() / ENTRY > MAX_KEYS {
            return None;
        }
        let key = |entry: &[u8]| {
            let (bytes, from) = entry.split_first_chunk()?;
            Some(Key { bytes: *bytes, from: u64::from_be_bytes(from.try_into().ok()?) })
        };
        let keys = rest.chunks_exact(ENTRY).map(key).collect::<Option<_>>()?;
        Some(Self { epoch: u64::from_be_bytes(*epoch), keys })
    }

    /// Whether it was made by a clock that is far ahead of ours: its newest key would not be used for a long time.
    fn is_ahead(&self, now: u64, lifetime: u64) -> bool {
        self.keys.first().is_some_and(|newest| newest.from > now.saturating_add(lifetime).saturating_add(LEAD))
    }

    /// What follows, if it is time for another key. Tickets of a key are good for `lifetime`, in seconds.
    fn next(&self, now: u64, lifetime: u64) -> Option<Self> {
        let newest = self.keys.first()?.from;
        let is_absurd = self.is_ahead(now, lifetime);
        let at = newest.saturating_add(lifetime);
        if !is_absurd && now.saturating_add(LEAD) < at {
            return None;
        }
        let from = if is_absurd { now } else { at.max(now.saturating_add(LEAD)) };
        let mut keys = vec![fresh(from)?];
        // A key is of use until the tickets of its time have expired, and its time ends when the next one's begins; not before
        // a lifetime has passed, since the next one may have been made by a clock that is behind.
        for (at, key) in self.keys.iter().enumerate() {
            let until = match at {
                0 => from,
                _ => self.keys[at - 1].from.max(key.from.saturating_add(lifetime)),
            };
            if until.saturating_add(lifetime) > now && keys.len() < MAX_KEYS {
                keys.push(key.clone());
            }
        }
        Some(Self { epoch: self.epoch.saturating_add(1), keys })
    }

    /// What holds now: the newest key whose time has come seals.
    fn given(&self, now: u64) -> Given {
        let sealing = self.keys.iter().position(|key| key.from <= now).unwrap_or(self.keys.len().saturating_sub(1));
        let mut out = Vec::with_capacity(self.keys.len());
        out.extend(self.keys.get(sealing).map(|key| key.bytes));
        out.extend(self.keys.iter().enumerate().filter(|(at, _)| *at != sealing).map(|(_, key)| key.bytes));
        Given(out)
    }
}

/// The task, until it is dropped.
#[derive(Debug)]
pub(super) struct KeyTask {
    task: JoinHandle<()>,
    lifetime: Duration,
    known: Arc<Mutex<Option<Ring>>>,
}

impl Drop for KeyTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for Ring {
    /// Never the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("epoch", &self.epoch).field("keys", &self.keys.len()).finish()
    }
}

impl KeyTask {
    /// `known`: what a task before this one knew.
    pub fn start(
        link: Link,
        secret: Secret,
        prefix: &str,
        lifetime: Duration,
        known: Option<Ring>,
        tell: mpsc::Sender<Given>,
    ) -> Self {
        let known = Arc::new(Mutex::new(known));
        let keeper = Keeper::new(link, secret, prefix, lifetime, known.clone());
        Self { task: tokio::spawn(run(keeper, tell)), lifetime, known }
    }

    /// For which lifetime of tickets.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// What it knows.
    pub fn known(&self) -> Option<Ring> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn run(mut keeper: Keeper, tell: mpsc::Sender<Given>) {
    let mut told: Option<Given> = None;
    let mut complained = false;
    loop {
        match keeper.look(unix_now()).await {
            Ok(()) => complained = false,
            // That the store is away is said by the link.
            Err(Trouble::Store) => {}
            Err(Trouble::Damaged) if !complained => {
                complained = true;
                log::error!("the ticket keys in the store {} are damaged; they are not used", keeper.link.name());
            }
            Err(Trouble::Damaged | Trouble::NoRandom) => {}
        }
        // Time alone makes another key the one that seals.
        if let Some(given) = keeper.known().map(|ring| ring.given(unix_now()))
            && told.as_ref().is_none_or(|told| told.keys() != given.keys())
        {
            let copy = Given(given.keys().to_vec());
            if tell.send(given).await.is_err() {
                return;
            }
            told = Some(copy);
        }
        let _ = timeout(EVERY, keeper.link.changed()).await;
        // A server that says with each answer that it is another one does not keep us busy.
        tokio::time::sleep(PAUSE).await;
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[derive(Debug)]
enum Trouble {
    Store,
    Damaged,
    NoRandom,
}

impl From<StoreError> for Trouble {
    fn from(_: StoreError) -> Self {
        Self::Store
    }
}

struct Keeper {
    link: Link,
    secret: Secret,
    /// The names of the value and of the lease. Gateways with another secret have others.
    key: String,
    lease: String,
    /// Who we are, for the lease.
    owner: String,
    lifetime: Duration,
    known: Arc<Mutex<Option<Ring>>>,
    /// When keys of a clock that is far ahead were replaced last; 0: never.
    corrected: AtomicU64,
}

impl Keeper {
    fn new(link: Link, secret: Secret, prefix: &str, lifetime: Duration, known: Arc<Mutex<Option<Ring>>>) -> Self {
        let mut random = [0; 16];
        // Without random numbers there are no keys, either.
        let _ = aws_lc_rs::rand::fill(&mut random);
        let owner = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = secret.name(PURPOSE, b"");
        let (key, lease) = (format!("{prefix}:ticket-keys:{name}"), format!("{prefix}:ticket-keys-lease:{name}"));
        Self { link, secret, key, lease, owner, lifetime, known, corrected: AtomicU64::new(0) }
    }

    fn known(&self) -> Option<Ring> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn know(&self, ring: Ring) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(ring);
    }

    /// Whether keys of a clock that is far ahead may be replaced: once in a lifetime.
    fn may_correct(&self, now: u64) -> bool {
        let last = self.corrected.load(Ordering::Relaxed);
        let may = last == 0 || now.abs_diff(last) >= self.lifetime.as_secs();
        if may {
            self.corrected.store(now.max(1), Ordering::Relaxed);
            log::warn!(
                "the newest ticket key in the store {} is from the future: the clocks of the gateways differ",
                self.link.name()
            );
        }
        may
    }

    /// Reads the keys, and makes the next one if it is time and nobody else does.
    async fn look(&self, now: u64) -> Result<(), Trouble> {
        let (Answer::Value(stored), _) = self.link.execute(Operation::Get { key: self.key.clone() }, LIMIT).await?
        else {
            return Err(Trouble::Damaged);
        };
        let read = match &stored {
            None => None,
            Some(value) => {
                let plain = self.secret.open(PURPOSE, b"", value);
                Some(plain.and_then(|plain| Ring::read(&plain)).ok_or(Trouble::Damaged)?)
            }
        };
        let known = self.known();
        let lifetime = self.lifetime.as_secs();
        // What is to be in the store. One that has forgotten it, or has an older one, gets ours.
        let wanted = match (read, known) {
            (Some(read), Some(known)) if read.epoch < known.epoch => Some(known.next(now, lifetime).unwrap_or(known)),
            (Some(read), _) => {
                // Two gateways whose clocks differ so much would replace each other's keys without end.
                let next = if read.is_ahead(now, lifetime) && !self.may_correct(now) {
                    None
                } else {
                    read.next(now, lifetime)
                };
                self.know(read);
                next
            }
            (None, Some(known)) => Some(known.next(now, lifetime).unwrap_or(known)),
            (None, None) => Some(Ring::new(now).ok_or(Trouble::NoRandom)?),
        };
        match wanted {
            Some(ring) => self.write(stored, ring).await,
            None => Ok(()),
        }
    }

    /// Replaces the value that was read, if we are the one to do so and nobody else has.
    async fn write(&self, expected: Option<Vec<u8>>, ring: Ring) -> Result<(), Trouble> {
        let (key, owner) = (self.lease.clone(), self.owner.clone());
        let (leased, _) = self.link.execute(Operation::Lease { key, owner, ttl: LEASE }, LIMIT).await?;
        if leased != Answer::Done(true) {
            return Ok(());
        }
        let value = self.secret.seal(PURPOSE, b"", &ring.write()).ok_or(Trouble::NoRandom)?;
        // Longer than a key is of use: what nobody reads for so long is of no use to anybody.
        let ttl = self.lifetime * 4;
        let replace = Operation::Replace { key: self.key.clone(), expected, value, ttl };
        if let (Answer::Done(true), _) = self.link.execute(replace, LIMIT).await? {
            self.know(ring);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_store::Settings;
    use sealane_store::memory::MemoryStore;

    const LIFETIME: u64 = 3600;

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    async fn gateway(store: &MemoryStore, secret: u8) -> Keeper {
        let quick = Duration::from_secs(5);
        let mut link = Link::start(Box::new(store.clone()), Settings { connect: quick, answer: quick, meanwhile: "" });
        link.changed().await;
        while !link.state().is_up() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let lifetime = Duration::from_secs(LIFETIME);
        Keeper::new(link, Secret::new([secret; 32]), "t", lifetime, Arc::default())
    }

    fn keys(gateway: &Keeper, now: u64) -> Vec<[u8; KEY]> {
        gateway.known().expect("it has keys").given(now).keys().to_vec()
    }

    #[test]
    fn all_gateways_have_the_same_keys_and_one_makes_them() {
        run(async {
            let store = MemoryStore::default();
            let (a, b) = (gateway(&store, 1).await, gateway(&store, 1).await);
            let (by_a, by_b) = tokio::join!(a.look(1000), b.look(1000));
            by_a.unwrap();
            by_b.unwrap();
            a.look(1001).await.unwrap();
            b.look(1001).await.unwrap();
            assert_eq!(keys(&a, 1001), keys(&b, 1001));
            assert_eq!(keys(&a, 1001).len(), 1);
            // Another fleet in the same store has its own.
            let stranger = gateway(&store, 2).await;
            stranger.look(1001).await.unwrap();
            assert_ne!(keys(&stranger, 1001), keys(&a, 1001));
        });
    }

    #[test]
    fn a_key_is_with_all_before_one_uses_it() {
        run(async {
            let store = MemoryStore::default();
            let (a, b) = (gateway(&store, 1).await, gateway(&store, 1).await);
            a.look(1000).await.unwrap();
            let first = keys(&a, 1000)[0];
            let due = 1000 + LIFETIME;
            a.look(due - LEAD - 1).await.unwrap();
            assert_eq!(keys(&a, due - LEAD - 1), [first]);
            a.look(due - LEAD).await.unwrap();
            b.look(due - LEAD).await.unwrap();
            let before = keys(&b, due - 1);
            assert_eq!((before.len(), before[0]), (2, first), "it opens, and does not seal yet");
            let after = keys(&b, due);
            assert_eq!(after, [before[1], before[0]]);
            assert_eq!(keys(&a, due), after);
            // The first one's tickets have expired.
            let later = due + LIFETIME - LEAD;
            a.look(later).await.unwrap();
            b.look(later).await.unwrap();
            assert!(keys(&b, later + LEAD).contains(&first), "its last tickets are good until the next second");
            let latest = due + 2 * LIFETIME - LEAD;
            a.look(latest).await.unwrap();
            b.look(latest).await.unwrap();
            assert!(!keys(&b, latest + LEAD).contains(&first) && keys(&b, latest + LEAD).contains(&after[0]));
        });
    }

    /// Gateways that start or are elected in any order, over many rotations.
    #[test]
    fn a_ticket_can_be_opened_for_its_lifetime_by_all() {
        run(async {
            let store = MemoryStore::default();
            let gateways = [gateway(&store, 1).await, gateway(&store, 1).await];
            let mut sealed: Vec<(u64, [u8; KEY])> = Vec::new();
            let mut now = 5000;
            for round in 0..400 {
                // Each reads at most 5 s after the other.
                for (n, gateway) in gateways.iter().enumerate() {
                    gateway.look(now + n as u64 * 5).await.unwrap();
                }
                let at = now + 5;
                for gateway in &gateways {
                    sealed.push((at, keys(gateway, at)[0]));
                }
                sealed.retain(|(since, _)| since + LIFETIME > at);
                for gateway in &gateways {
                    let all = keys(gateway, at);
                    assert!(all.len() <= 4, "{}", all.len());
                    assert!(sealed.iter().all(|(_, key)| all.contains(key)), "round {round}");
                }
                now += 97;
                // The lease of the one that has it may be over, or not.
                if round % 3 == 0 {
                    let (key, owner) = (gateways[0].lease.clone(), gateways[0].owner.clone());
                    let release = Operation::Release { key, owner };
                    gateways[0].link.execute(release, LIMIT).await.unwrap();
                }
            }
        });
    }

    #[test]
    fn a_store_that_has_forgotten_the_keys_gets_them_again() {
        run(async {
            let store = MemoryStore::default();
            let a = gateway(&store, 1).await;
            a.look(1000).await.unwrap();
            let older = a.known().unwrap();
            a.look(1000 + LIFETIME).await.unwrap();
            let held = keys(&a, 1000 + LIFETIME);
            assert_eq!(held.len(), 2);
            // Started again without data.
            let empty = MemoryStore::default();
            let again = gateway(&empty, 1).await;
            again.know(a.known().unwrap());
            again.look(1001 + LIFETIME).await.unwrap();
            let b = gateway(&empty, 1).await;
            b.look(1001 + LIFETIME).await.unwrap();
            assert_eq!(keys(&b, 1000 + LIFETIME), held);
            // Started again with older data.
            let old = MemoryStore::default();
            let writer = gateway(&old, 1).await;
            writer.write(None, older).await.unwrap();
            let again = Keeper { owner: writer.owner.clone(), ..gateway(&old, 1).await };
            again.know(a.known().unwrap());
            again.look(1001 + LIFETIME).await.unwrap();
            assert_eq!(keys(&again, 1000 + LIFETIME), held);
            let b = gateway(&old, 1).await;
            b.look(1001 + LIFETIME).await.unwrap();
            assert_eq!(keys(&b, 1000 + LIFETIME), held);
        });
    }

    #[test]
    fn damaged_keys_are_not_used_and_the_known_ones_stay() {
        run(async {
            let store = MemoryStore::default();
            let a = gateway(&store, 1).await;
            a.look(1000).await.unwrap();
            let held = keys(&a, 1000);
            let value = vec![7; 100];
            let set = Operation::Set { key: a.key.clone(), value, ttl: Duration::from_secs(60) };
            a.link.execute(set, LIMIT).await.unwrap();
            assert!(matches!(a.look(1001).await, Err(Trouble::Damaged)));
            assert_eq!(keys(&a, 1001), held);
        });
    }

    #[test]
    fn a_clock_that_was_ahead_stops_no_rotation() {
        let ahead = Ring::new(1_000_000).unwrap();
        let next = ahead.next(1000, LIFETIME).expect("it is time");
        assert_eq!((next.keys[0].from, next.epoch), (1000, 2));
        assert_eq!(next.given(1000).keys()[0], next.keys[0].bytes);
        // One that is ahead by less than a rotation is waited for.
        assert!(Ring::new(1000 + LIFETIME).unwrap().next(1000, LIFETIME).is_none());
    }

    #[test]
    fn a_clock_that_is_behind_drops_no_key_of_others() {
        let (now, ring) = (1_000_000, Ring::new(1_000_000).unwrap());
        let behind = ring.next(1000, LIFETIME).expect("the key is far ahead of that clock");
        let next = behind.next(now + 10, LIFETIME).expect("the newest key is very old");
        assert!(next.given(now + 10).keys().contains(&ring.keys[0].bytes), "tickets of the good key are good");
        // It is not done again and again.
        run(async {
            let store = MemoryStore::default();
            let (good, behind) = (gateway(&store, 1).await, gateway(&store, 1).await);
            good.look(now).await.unwrap();
            let held = keys(&good, now)[0];
            for turn in 0..20 {
                // The lease of the last writer has ended.
                behind
                    .link
                    .execute(
                        Operation::Lease { key: behind.lease.clone(), owner: behind.owner.clone(), ttl: LEASE },
                        LIMIT,
                    )
                    .await
                    .unwrap();
                behind.look(1000 + turn).await.unwrap();
                good.look(now + turn).await.unwrap();
            }
            assert!(keys(&good, now + 20).contains(&held));
        });
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let mut ring = Ring::new(1000).unwrap();
        for n in 1..20 {
            let written = ring.write();
            assert!(Ring::read(&written).unwrap() == ring);
            for len in 0..written.len() {
                let part = Ring::read(&written[..len]);
                assert!(part.is_none_or(|part| part.keys.len() < ring.keys.len()));
            }
            ring = ring.next(1000 + n * LIFETIME, LIFETIME).unwrap_or(ring);
        }
        assert!(Ring::read(&[2; 49]).is_none() && Ring::read(&[]).is_none());
        let text = format!("{ring:?} {:?}", ring.given(0));
        assert!(text.len() < 80, "{text}");
    }
}
