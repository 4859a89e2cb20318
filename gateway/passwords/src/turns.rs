//! How many checks run and wait at a time.

use sealane_ovpn::share::Network;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Checks that wait for their turn, of all clients and of one network.
const WAITING: usize = 256;
const WAITING_SHARE: usize = 64;

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
    /// So many checks at a time.
    pub fn new(at_a_time: usize) -> Self {
        Self { running: Semaphore::new(at_a_time), waiting: Mutex::default() }
    }

    /// Runs a check when it is its turn, within `limit`. `None`: too many wait already, or it waited for too long. The check itself
    /// is not interrupted: what it runs on another thread counts as running until it ends.
    pub async fn run<T>(&self, network: Network, limit: Duration, check: impl Future<Output = T>) -> Option<T> {
        let place = self.place(network)?;
        let turn = tokio::time::timeout(limit, self.running.acquire()).await.ok()?.ok()?;
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

/// The turns of password hashes, one set for the process: half of the cores, so that what is served goes on.
pub fn hashes() -> &'static Turns {
    static HASHES: OnceLock<Turns> = OnceLock::new();
    HASHES.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Turns::new((cores / 2).clamp(1, 8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(n: u8) -> Network {
        Network::of(([192, 0, 2, n]).into())
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
}
