//! How often somebody may guess a password.

use sealane_ovpn::share::Network;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Wrong passwords that are allowed at once, of one network and of one user; one more after each `REGAIN`.
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
}
