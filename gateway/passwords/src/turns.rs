//! How many checks run and wait at a time.

use sealane_ovpn::share::Network;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Checks that wait for their turn in [`Turns::run`], of all clients and of one network.
const WAITING: usize = 256;
const WAITING_SHARE: usize = 64;

/// A resource that only some checks may use at a time, and that others wait for.
#[derive(Debug)]
pub struct Turns {
    running: Arc<Semaphore>,
    /// What others use as well: their checks and these have turns by turns.
    shared: Option<Arc<Semaphore>>,
    waiting: Mutex<HashMap<Network, usize>>,
}

/// A check's turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _own: OwnedSemaphorePermit,
    _shared: Option<OwnedSemaphorePermit>,
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
    /// So many checks at a time.
    pub fn new(at_a_time: usize) -> Self {
        Self { running: Arc::new(Semaphore::new(at_a_time)), shared: None, waiting: Mutex::default() }
    }

    /// Turns of password hashes. The process computes so many at a time as half of its cores, at most 8, so that what is served goes on.
    /// Each that calls this (HTTP, a tunnel) has turns of its own, so that those who wait in one do not keep out the other.
    pub fn of_hashes() -> Self {
        static HASHES: OnceLock<(usize, Arc<Semaphore>)> = OnceLock::new();
        let (at_a_time, shared) = HASHES.get_or_init(|| {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let at_a_time = (cores / 2).clamp(1, 8);
            (at_a_time, Arc::new(Semaphore::new(at_a_time)))
        });
        Self { shared: Some(shared.clone()), ..Self::new(*at_a_time) }
    }

    /// Waits for a turn; those who came first have theirs first. `None`: it has taken longer than `limit`. The caller bounds how many wait.
    pub async fn turn(&self, limit: Duration) -> Option<Turn> {
        let turn = async {
            let own = self.running.clone().acquire_owned().await.ok()?;
            let shared = match &self.shared {
                Some(shared) => Some(shared.clone().acquire_owned().await.ok()?),
                None => None,
            };
            Some(Turn { _own: own, _shared: shared })
        };
        tokio::time::timeout(limit, turn).await.ok()?
    }

    /// Runs a check when it is its turn, within `limit`. `None`: too many wait already, or it waited for too long. The check itself
    /// is not interrupted: what it runs on another thread counts as running until it ends.
    pub async fn run<T>(&self, network: Network, limit: Duration, check: impl Future<Output = T>) -> Option<T> {
        let place = self.place(network)?;
        let turn = self.turn(limit).await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn network(n: u8) -> Network {
        Network::of(([192, 0, 2, n]).into())
    }

    fn on_a_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(test);
    }

    #[test]
    fn checks_run_one_after_the_other_and_few_wait() {
        on_a_runtime(async {
            let turns = Arc::new(Turns::new(1));
            let running = Arc::new(AtomicUsize::new(0));
            let checks = (0..2 * WAITING_SHARE).map(|_| {
                let (turns, running) = (turns.clone(), running.clone());
                tokio::spawn(async move {
                    let check = async {
                        assert_eq!(running.fetch_add(1, SeqCst), 0, "two at a time");
                        tokio::task::yield_now().await;
                        running.fetch_sub(1, SeqCst);
                    };
                    turns.run(network(1), Duration::from_secs(20), check).await.is_some()
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

    /// A thousand wait in one of them: a check of the other has its turn before most of these.
    #[test]
    fn those_who_wait_in_one_do_not_keep_out_the_other() {
        on_a_runtime(async {
            let (one, other) = (Arc::new(Turns::of_hashes()), Turns::of_hashes());
            let done = Arc::new(AtomicUsize::new(0));
            let waiting: Vec<_> = (0..1000)
                .map(|_| {
                    let (one, done) = (one.clone(), done.clone());
                    tokio::spawn(async move {
                        let turn = one.turn(Duration::from_secs(60)).await;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        done.fetch_add(1, SeqCst);
                        drop(turn);
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            assert!(other.turn(Duration::from_secs(60)).await.is_some());
            let before = done.load(SeqCst);
            assert!(before <= 32, "{before} had their turn before it");
            for check in waiting {
                check.await.expect("it ends");
            }
        });
    }

    #[test]
    fn who_waits_for_too_long_or_has_gone_has_no_turn() {
        on_a_runtime(async {
            let turns = Arc::new(Turns::new(1));
            let first = turns.turn(Duration::ZERO).await.expect("nobody else is there");
            assert!(turns.turn(Duration::from_millis(1)).await.is_none());
            let gone = tokio::spawn({
                let turns = turns.clone();
                async move { turns.turn(Duration::from_secs(60)).await }
            });
            tokio::task::yield_now().await;
            gone.abort();
            assert!(gone.await.is_err());
            drop(first);
            assert!(turns.turn(Duration::ZERO).await.is_some());
        });
    }
}
