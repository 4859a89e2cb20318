//! Rates that gateways hold together.
//!
//! ```text
//! lanes ── Passed, bounded ──▶ gathered ── every SYNC: Fill, one for each key ──▶ buckets in the store
//!   ▲                                                                               │
//!   └──────────────────────────── Message::Levels ◀─────────────────────────────────┘
//! ```
//!
//! With `n` lanes at all gateways together, rate `r` and burst `b`, a client that was unknown to all of them and comes to all of them at
//! once gets at most `(n − 1)·(b + r·(SYNC + SHARE))` more than from one lane, once. That is a debt at all gateways then. SHARE is the
//! 100 ms after which a lane tells control. While the store is away, nothing is gathered: what has passed meanwhile is no debt later.

use super::Mailboxes;
use crate::config::{SharedRateLimits, StoreSettings};
use sealane_proxy::Message;
use sealane_proxy::limits::{Level, Levels, Passed, Rate, SharedRates};
use sealane_store::seal::Secret;
use sealane_store::{Answer, Link, Operation};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// How often the levels are exchanged.
const SYNC: Duration = Duration::from_millis(250);
/// How long the store may take for that.
const LIMIT: Duration = Duration::from_millis(250);
/// What lanes have told and nobody has looked at.
const QUEUE: usize = 1024;
/// The most keys of one exchange: a quarter of what may wait for the store. The others follow with the next ones.
const KEYS: usize = 1024;
/// The most keys that wait.
const MAX_WAITING: usize = 1 << 14;
/// The longest debt: so many bursts, and so much time. A store whose clock was ahead limits no client for longer.
const MOST_BURSTS: u64 = 64;
const MOST_MORE: u64 = 10_000_000;

const PURPOSE: &str = "rates";

/// What has passed and was told to the store, and what was not.
#[derive(Debug, Default)]
pub(super) struct RateCounts {
    sent: AtomicU64,
    lost: AtomicU64,
}

impl RateCounts {
    pub fn values(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.lost.load(Relaxed))
    }
}

/// The task between lanes and the store, until it is dropped.
#[derive(Debug)]
pub(super) struct Rates {
    shared: Arc<SharedRates>,
    counts: Arc<RateCounts>,
    task: JoinHandle<()>,
}

impl Drop for Rates {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Rates {
    pub fn start(settings: &StoreSettings, limits: SharedRateLimits, link: &Link, mailboxes: Mailboxes) -> Self {
        let secret = Secret::new(*settings.secret);
        let (tell, told) = mpsc::channel(QUEUE);
        let counts = Arc::new(RateCounts::default());
        let key = secret.derive(PURPOSE, b"");
        let half = |at: usize| key[at..at + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let shared = SharedRates {
            hash: [half(0), half(8)],
            tell: Box::new(move |passed: &Arc<Passed>| tell.try_send(passed.clone()).is_ok()),
            needed: limits.fail_closed.then(|| link.state().up()),
        };
        let gathered = HashMap::new();
        let keeper =
            Keeper { secret, prefix: settings.prefix.clone(), link: link.clone(), counts: counts.clone(), gathered };
        Self { shared: Arc::new(shared), counts, task: tokio::spawn(run(keeper, told, mailboxes)) }
    }

    pub fn shared(&self) -> Arc<SharedRates> {
        self.shared.clone()
    }

    pub fn counts(&self) -> Arc<RateCounts> {
        self.counts.clone()
    }
}

async fn run(mut keeper: Keeper, mut told: mpsc::Receiver<Arc<Passed>>, mailboxes: Mailboxes) {
    let mut sync = interval(SYNC);
    sync.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            passed = told.recv() => match passed {
                None => return,
                Some(passed) => keeper.gather(&passed),
            },
            _ = sync.tick(), if !keeper.gathered.is_empty() => {
                for levels in keeper.exchange().await.into_iter().map(Arc::new) {
                    // A lane with a full mailbox hears of the next levels.
                    for mailbox in mailboxes.get().into_iter().flatten() {
                        let _ = mailbox.send(Message::Levels(levels.clone()));
                    }
                }
            }
        }
    }
}

/// What has passed of a key since the last exchange.
struct Uses {
    rate: Rate,
    count: u64,
}

struct Keeper {
    secret: Secret,
    prefix: String,
    link: Link,
    counts: Arc<RateCounts>,
    /// By limit and key.
    gathered: HashMap<(u64, u64), Uses>,
}

impl Keeper {
    fn gather(&mut self, passed: &Passed) {
        for used in passed.uses() {
            let room = self.gathered.len() < MAX_WAITING;
            match self.gathered.entry((passed.limit(), used.key)) {
                Entry::Occupied(mut uses) => {
                    let uses = uses.get_mut();
                    (uses.rate, uses.count) = (passed.rate(), uses.count.saturating_add(u64::from(used.count)));
                }
                Entry::Vacant(place) if room => {
                    place.insert(Uses { rate: passed.rate(), count: u64::from(used.count) });
                }
                Entry::Vacant(_) => {
                    self.counts.lost.fetch_add(u64::from(used.count), Relaxed);
                }
            }
        }
    }

    /// Tells the store what has passed. The levels of the same keys at all gateways together.
    async fn exchange(&mut self) -> Vec<Levels> {
        if !self.link.state().is_up() {
            let lost: u64 = self.gathered.drain().map(|(_, uses)| uses.count).sum();
            self.counts.lost.fetch_add(lost, Relaxed);
            return Vec::new();
        }
        let places: Vec<(u64, u64)> = self.gathered.keys().take(KEYS).copied().collect();
        let mut names = HashMap::new();
        let (mut asked, mut operations) = (Vec::with_capacity(places.len()), Vec::with_capacity(places.len()));
        for place in places {
            let Some(uses) = self.gathered.remove(&place) else { continue };
            let (limit, key) = place;
            let name = names.entry(limit).or_insert_with(|| name(&self.secret, &self.prefix, limit, uses.rate));
            let (amount, most) = amounts(&uses);
            operations.push(Operation::Fill { key: format!("{name}:{key:016x}"), amount, most });
            asked.push((place, uses.count));
        }
        let answers = self.link.execute_all(operations, LIMIT).await;
        let mut out: Vec<Levels> = Vec::new();
        for (((limit, key), count), answer) in asked.into_iter().zip(answers) {
            let Ok((Answer::Level(micros), _)) = answer else {
                self.counts.lost.fetch_add(count, Relaxed);
                continue;
            };
            self.counts.sent.fetch_add(count, Relaxed);
            let level = Level { key, micros };
            match out.iter_mut().find(|levels| levels.limit == limit) {
                Some(levels) => levels.levels.push(level),
                None => out.push(Levels { limit, levels: vec![level] }),
            }
        }
        out
    }
}

/// What the names of a limit's buckets begin with: gateways that count otherwise have others. The key that follows is a hash under a
/// key that gateways alone have.
fn name(secret: &Secret, prefix: &str, limit: u64, rate: Rate) -> String {
    let millis = u64::try_from(rate.per.as_millis()).unwrap_or(u64::MAX);
    let parts = [limit, u64::from(rate.count), millis, u64::from(rate.burst)];
    format!("{prefix}:rate:{}", secret.name(PURPOSE, &parts.map(u64::to_be_bytes).concat()))
}

/// How much is poured in, and the most that may be in the bucket before, in microseconds.
fn amounts(uses: &Uses) -> (u64, u64) {
    let micros = |count: u64| {
        let sum = u128::from(count) * uses.rate.per.as_micros() / u128::from(uses.rate.count.max(1));
        u64::try_from(sum).unwrap_or(u64::MAX)
    };
    (micros(uses.count), micros(u64::from(uses.rate.burst) * MOST_BURSTS).saturating_add(MOST_MORE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_proxy::limits::Use;
    use sealane_store::memory::MemoryStore;
    use sealane_store::{Settings, Store};

    fn run(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
    }

    async fn gateway(store: impl Store, secret: u8) -> Keeper {
        let quick = Duration::from_secs(5);
        let mut link = Link::start(Box::new(store), Settings { connect: quick, answer: quick, meanwhile: "" });
        link.changed().await;
        while !link.state().is_up() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (secret, prefix) = (Secret::new([secret; 32]), "t".to_owned());
        Keeper { secret, prefix, link, counts: Arc::default(), gathered: HashMap::new() }
    }

    /// One in an hour, so that nothing leaks during a test.
    fn rate(count: u32) -> Rate {
        Rate { count, per: Duration::from_secs(3600), burst: 10 }
    }

    fn passed(key: u64, count: u32) -> Passed {
        Passed::new(1, rate(1), vec![Use { key, count }])
    }

    const HOUR: u64 = 3_600_000_000;

    /// The level that a gateway is told, in hours.
    async fn level(gateway: &mut Keeper, passed: &Passed) -> u64 {
        gateway.gather(passed);
        let levels = gateway.exchange().await;
        assert_eq!((levels.len(), levels[0].limit, levels[0].levels.len()), (1, passed.limit(), 1));
        levels[0].levels[0].micros.div_ceil(HOUR)
    }

    #[test]
    fn gateways_pour_into_one_bucket_and_strangers_into_another() {
        run(async {
            let store = MemoryStore::default();
            let (mut a, mut b) = (gateway(store.clone(), 1).await, gateway(store.clone(), 1).await);
            assert_eq!(level(&mut a, &passed(7, 2)).await, 2);
            assert_eq!(level(&mut b, &passed(7, 3)).await, 5);
            assert_eq!(level(&mut b, &passed(8, 1)).await, 1, "another client");
            assert_eq!(level(&mut a, &passed(7, 1)).await, 6);
            // A gateway where the same limit has another rate, and one with another secret.
            assert_eq!(level(&mut b, &Passed::new(1, rate(2), vec![Use { key: 7, count: 2 }])).await, 1);
            assert_eq!(level(&mut gateway(store, 2).await, &passed(7, 1)).await, 1);
            assert_eq!((a.counts.values(), b.counts.values()), ((3, 0), (6, 0)));
        });
    }

    /// What is gathered is bounded, and so is each exchange; nothing is told twice.
    #[test]
    fn an_exchange_is_bounded_and_the_rest_follows() {
        run(async {
            let mut a = gateway(MemoryStore::default(), 1).await;
            for key in 0..MAX_WAITING as u64 + 5 {
                a.gather(&passed(key, 1));
            }
            a.gather(&passed(0, 1));
            assert_eq!((a.gathered.len(), a.counts.values()), (MAX_WAITING, (0, 5)));
            let mut told = 0;
            while !a.gathered.is_empty() {
                let levels = a.exchange().await;
                told += levels.iter().map(|levels| levels.levels.len()).sum::<usize>();
                assert!(levels[0].levels.len() <= KEYS);
            }
            assert_eq!((told, a.counts.values()), (MAX_WAITING, (MAX_WAITING as u64 + 1, 5)));
        });
    }

    /// A store that is away costs the counts of that time and nothing else: they are no debt when it is back.
    #[test]
    fn what_passes_while_the_store_is_away_is_forgotten() {
        run(async {
            let mut a = gateway(MemoryStore::default(), 1).await;
            a.gather(&passed(7, 3));
            a.link.state().up().store(false, Relaxed);
            assert!(a.exchange().await.is_empty() && a.gathered.is_empty());
            assert_eq!(a.counts.values(), (0, 3));
            a.link.state().up().store(true, Relaxed);
            assert_eq!(level(&mut a, &passed(7, 1)).await, 1);
        });
    }

    #[test]
    fn a_use_is_as_long_as_the_rate_takes_for_it() {
        let uses = |count, per, n, burst| Uses { rate: Rate { count, per, burst }, count: n };
        let second = Duration::from_secs(1);
        assert_eq!(amounts(&uses(100, second, 7, 10)), (70_000, 64 * 100_000 + MOST_MORE));
        assert_eq!(amounts(&uses(10_000_000, second, 15, 1)), (1, 6 + MOST_MORE));
        assert_eq!(amounts(&uses(1, Duration::from_secs(3600), u64::MAX, 1)).0, u64::MAX);
    }
}
