//! What bounds the work of authentication: how many checks run and wait at a time, and how often somebody may guess.

use sealane_ovpn::share::Network;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Checks by a program that run at a time.
const PROGRAMS: usize = 16;
/// Checks that wait for their turn, of all clients and of one network.
const WAITING: usize = 256;
const WAITING_SHARE: usize = 64;
/// How long a check may wait for its turn.
const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// A resource that only some checks may use at a time, and that others wait for, but not too many.
#[derive(Debug)]
pub struct Turns {
    running: Semaphore,
    waiting: Mutex<HashMap<Network, usize>>,
}

/// Waits for a turn as one of its network.
struct Place<'t>(&'t Turns, Network);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(count) = waiting.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.1);
            }
        }
    }
}

impl Turns {
    fn new(at_a_time: usize) -> Self {
        Self { running: Semaphore::new(at_a_time), waiting: Mutex::default() }
    }

    /// Password hashes: half of the cores, so that the tunnel's own work goes on.
    pub fn for_hashes() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new((cores / 2).clamp(1, 8))
    }

    /// Programs that decide about clients.
    pub fn for_programs() -> Self {
        Self::new(PROGRAMS)
    }

    /// Runs a check when it is its turn. `None`: too many wait already, or it waited for too long.
    pub async fn run<T>(&self, network: Network, check: impl Future<Output = T>) -> Option<T> {
        let place = self.place(network)?;
        let turn = tokio::time::timeout(WAIT_LIMIT, self.running.acquire()).await.ok()?.ok()?;
        drop(place);
        let result = check.await;
        drop(turn);
        Some(result)
    }

    fn place(&self, network: Network) -> Option<Place<'_>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if waiting.values().sum::<usize>() >= WAITING {
            return None;
        }
        let count = waiting.entry(network).or_insert(0);
        if *count >= WAITING_SHARE {
            return None;
        }
        *count += 1;
        Some(Place(self, network))
    }
}

/// Wrong passwords that are allowed in a row, of one network and of one user; one more after each `REGAIN`.
const NETWORK_GUESSES: u32 = 20;
const USER_GUESSES: u32 = 20;
const REGAIN: Duration = Duration::from_secs(6);
/// Networks, users, and users' known networks that are remembered.
const REMEMBERED: usize = 4096;

/// Wrong passwords of late, by whom.
#[derive(Debug)]
struct Counted<K> {
    /// When the last of its wrong passwords is forgotten.
    until: HashMap<K, Instant>,
    allowed: u32,
}

impl<K: Clone + Eq + Hash> Counted<K> {
    fn new(allowed: u32) -> Self {
        Self { until: HashMap::new(), allowed }
    }

    /// How long until another guess is allowed; zero: now.
    fn wait(&self, key: &K, now: Instant) -> Duration {
        let left = self.until.get(key).map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        left.saturating_sub(REGAIN * (self.allowed - 1))
    }

    fn add(&mut self, key: &K, now: Instant) {
        if self.until.len() >= REMEMBERED && !self.until.contains_key(key) {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() >= REMEMBERED && !self.until.contains_key(key) {
            // Evicts the entry that expires next.
            let Some(first) = self.until.iter().min_by_key(|(_, until)| **until).map(|(k, _)| k.clone()) else {
                return;
            };
            self.until.remove(&first);
        }
        let until = self.until.entry(key.clone()).or_insert(now);
        *until = (*until).max(now) + REGAIN;
    }
}

/// How often a password may be guessed: by a network, and for a user. Others' guesses for a user do not keep out a network
/// from which that user has come in before.
#[derive(Debug)]
pub struct Guesses {
    networks: Counted<Network>,
    users: Counted<String>,
    /// Networks from which users came in, with when.
    known: HashMap<(String, Network), Instant>,
}

impl Default for Guesses {
    fn default() -> Self {
        Self { networks: Counted::new(NETWORK_GUESSES), users: Counted::new(USER_GUESSES), known: HashMap::new() }
    }
}

impl Guesses {
    /// How long this client has to wait before its password is looked at; zero: it need not.
    pub fn wait(&self, user: &str, network: Network, now: Instant) -> Duration {
        let by_user = match self.known.contains_key(&(user.to_owned(), network)) {
            true => Duration::ZERO,
            false => self.users.wait(&user.to_owned(), now),
        };
        by_user.max(self.networks.wait(&network, now))
    }

    /// The password was wrong.
    pub fn wrong(&mut self, user: &str, network: Network, now: Instant) {
        self.users.add(&user.to_owned(), now);
        self.networks.add(&network, now);
    }

    /// The password was right.
    pub fn right(&mut self, user: &str, network: Network, now: Instant) {
        if self.known.len() >= REMEMBERED
            && let Some(oldest) = self.known.iter().min_by_key(|(_, at)| **at).map(|(k, _)| k.clone())
        {
            self.known.remove(&oldest);
        }
        self.known.insert((user.to_owned(), network), now);
    }
}

/// Lines that clients can cause: some at once, then a few each second; the others are counted.
#[derive(Debug)]
pub struct Lines {
    /// When all of the burst is allowed again.
    until: Option<Instant>,
    left_out: u64,
}

/// Lines at once, and how long until there may be another one.
const BURST: u32 = 100;
const PER_LINE: Duration = Duration::from_millis(100);

impl Lines {
    /// None was written yet.
    pub const fn new() -> Self {
        Self { until: None, left_out: 0 }
    }

    /// Whether another line may be written, and how many were left out before it.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let until = self.until.filter(|until| *until > now).unwrap_or(now);
        if until - now > PER_LINE * (BURST - 1) {
            self.left_out += 1;
            return None;
        }
        self.until = Some(until + PER_LINE);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(n: u8) -> Network {
        Network::of(([192, 0, 2, n]).into())
    }

    #[test]
    fn guesses_are_throttled_by_network_and_by_user() {
        let (mut guesses, start) = (Guesses::default(), Instant::now());
        for n in 0..NETWORK_GUESSES {
            assert!(guesses.wait("alice", network(1), start).is_zero(), "{n}");
            guesses.wrong("alice", network(1), start);
        }
        assert_eq!(guesses.wait("alice", network(1), start), REGAIN);
        assert_eq!(guesses.wait("bob", network(1), start), REGAIN, "another user, the same network");
        assert_eq!(guesses.wait("alice", network(2), start), REGAIN, "another network, the same user");
        assert!(guesses.wait("bob", network(2), start).is_zero());
        assert!(guesses.wait("alice", network(1), start + REGAIN).is_zero());
        guesses.right("alice", network(3), start);
        assert!(guesses.wait("alice", network(3), start).is_zero(), "she came from there before");
    }

    #[test]
    fn what_is_remembered_of_guesses_is_bounded() {
        let (mut counted, start) = (Counted::new(2), Instant::now());
        for n in 0..3 * REMEMBERED {
            counted.add(&n, start);
        }
        assert!(counted.until.len() <= REMEMBERED);
        let kept = *counted.until.keys().next().expect("somebody");
        counted.add(&kept, start);
        assert_eq!(counted.wait(&kept, start), REGAIN);
    }

    #[test]
    fn lines_are_left_out_and_counted() {
        let (mut lines, start) = (Lines::new(), Instant::now());
        let written = (0..1000).filter(|_| lines.take(start).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(lines.take(start + PER_LINE), Some(900));
        assert_eq!(lines.take(start + PER_LINE), None);
    }

    #[test]
    fn checks_run_one_after_the_other_and_few_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let turns = std::sync::Arc::new(Turns::new(1));
            let running = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let checks = (0..2 * WAITING_SHARE).map(|_| {
                let (turns, running) = (turns.clone(), running.clone());
                tokio::spawn(async move {
                    let check = async {
                        use std::sync::atomic::Ordering::SeqCst;
                        assert_eq!(running.fetch_add(1, SeqCst), 0, "two at a time");
                        tokio::task::yield_now().await;
                        running.fetch_sub(1, SeqCst);
                    };
                    turns.run(network(1), check).await.is_some()
                })
            });
            let mut done = 0;
            for check in checks.collect::<Vec<_>>() {
                done += usize::from(check.await.expect("it ends"));
            }
            assert!((WAITING_SHARE..=WAITING_SHARE + 1).contains(&done), "{done}");
            assert!(turns.waiting.lock().expect("not poisoned").is_empty());
        });
    }
}
