//! What is remembered of destinations: their round-trip time, and paths that swallow SYNs with data.
//!
//! The kernel does not learn that a path drops data-bearing SYNs: each connection would wait a second for the SYN's
//! second sending, which goes without data. So we learn it. One swallowed SYN may be ordinary loss; two in a row are
//! taken for the path, and the destination is left alone for [`FIRST_PAUSE`], twice as long each time. Where such SYNs
//! have come through before, it takes five: at 5 % loss either way every tenth has no answer, and two in a row are nothing
//! unusual (*measured*: a destination that was left alone for that lost the whole gain). Where several destinations fail
//! and none succeeds, it is the network that we are in, and all are left alone.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a destination is left alone at first.
pub const FIRST_PAUSE: Duration = Duration::from_secs(600);
/// How long at most.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);
/// Failures in a row that are taken for the path,
const STRIKES: u32 = 2;
/// and where data in SYNs has come through before.
const PROVEN_STRIKES: u32 = 5;
/// Destinations that fail, with none succeeding between, that are taken for the network.
const NETWORK_STRIKES: u32 = 4;
/// The hedge is never sooner than this.
const MIN_HEDGE_DELAY: Duration = Duration::from_millis(250);
/// What is remembered without being used for this long is forgotten.
const LIFETIME: Duration = Duration::from_secs(48 * 3600);

/// Whether to put data into the SYN towards a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Try it.
    Embed,
    /// It has failed before; not until the pause is over.
    Paused,
}

#[derive(Clone, Copy, Debug)]
struct Destination {
    rtt: Option<Duration>,
    failures: u32,
    /// A SYN with data has been answered before.
    proven: bool,
    paused_until: Option<Instant>,
    pause: Duration,
    used: Instant,
}

/// Bounded; the destination that was not used for longest goes first.
#[derive(Debug)]
pub struct Memory {
    destinations: HashMap<IpAddr, Destination>,
    capacity: usize,
    network_failures: u32,
    network_paused_until: Option<Instant>,
}

impl Memory {
    /// Room for so many destinations.
    pub fn new(capacity: usize) -> Self {
        Self {
            destinations: HashMap::new(),
            capacity: capacity.max(1),
            network_failures: 0,
            network_paused_until: None,
        }
    }

    /// Whether to embed towards this destination now.
    pub fn verdict(&self, to: IpAddr, now: Instant) -> Verdict {
        let paused = |until: Option<Instant>| until.is_some_and(|t| now < t);
        let own = self.destinations.get(&to).is_some_and(|d| paused(d.paused_until));
        if own || paused(self.network_paused_until) { Verdict::Paused } else { Verdict::Embed }
    }

    /// How long to wait for an answer to a SYN with data before a plain connection is begun beside it: three times the
    /// smoothed round-trip time, and at least 250 ms.
    pub fn hedge_delay(&self, to: IpAddr) -> Duration {
        let rtt = self.destinations.get(&to).and_then(|d| d.rtt);
        rtt.map_or(MIN_HEDGE_DELAY, |rtt| (rtt * 3).max(MIN_HEDGE_DELAY))
    }

    /// A connection, of either kind, has measured the round-trip time.
    pub fn note_rtt(&mut self, to: IpAddr, rtt: Duration, now: Instant) {
        let d = self.entry(to, now);
        // RFC 6298 §2.3: alpha is 1/8.
        d.rtt = Some(d.rtt.map_or(rtt, |old| (old * 7 + rtt) / 8));
    }

    /// A SYN with data was answered.
    pub fn note_success(&mut self, to: IpAddr, now: Instant) {
        self.network_failures = 0;
        self.network_paused_until = None;
        let d = self.entry(to, now);
        (d.failures, d.proven, d.paused_until, d.pause) = (0, true, None, FIRST_PAUSE);
    }

    /// A SYN with data was swallowed, or refused where one without was not.
    pub fn note_failure(&mut self, to: IpAddr, now: Instant) {
        let d = self.entry(to, now);
        d.failures += 1;
        let strikes = if d.proven { PROVEN_STRIKES } else { STRIKES };
        if d.failures < strikes {
            return;
        }
        let first = d.failures == strikes;
        d.paused_until = Some(now + d.pause);
        d.pause = (d.pause * 2).min(LONGEST_PAUSE);
        if first {
            self.network_failures += 1;
            if self.network_failures >= NETWORK_STRIKES {
                self.network_paused_until = Some(now + FIRST_PAUSE);
            }
        }
    }

    fn entry(&mut self, to: IpAddr, now: Instant) -> &mut Destination {
        if !self.destinations.contains_key(&to) && self.destinations.len() >= self.capacity {
            self.destinations.retain(|_, d| now.saturating_duration_since(d.used) < LIFETIME);
            if self.destinations.len() >= self.capacity
                && let Some(oldest) = self.destinations.iter().min_by_key(|(_, d)| d.used).map(|(ip, _)| *ip)
            {
                self.destinations.remove(&oldest);
            }
        }
        let new =
            Destination { rtt: None, failures: 0, proven: false, paused_until: None, pause: FIRST_PAUSE, used: now };
        let d = self.destinations.entry(to).or_insert(new);
        d.used = now;
        d
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    #[test]
    fn one_failure_is_loss_two_are_the_path_and_the_pause_grows() {
        let start = Instant::now();
        let mut m = Memory::new(10);
        m.note_failure(ip(1), start);
        assert_eq!(m.verdict(ip(1), start), Verdict::Embed);
        m.note_failure(ip(1), start);
        assert_eq!(m.verdict(ip(1), start), Verdict::Paused);
        assert_eq!(m.verdict(ip(2), start), Verdict::Embed);
        let later = start + FIRST_PAUSE;
        assert_eq!(m.verdict(ip(1), later), Verdict::Embed, "it expires");
        m.note_failure(ip(1), later);
        assert_eq!(m.verdict(ip(1), later + FIRST_PAUSE), Verdict::Paused, "twice as long");
        assert_eq!(m.verdict(ip(1), later + FIRST_PAUSE * 2), Verdict::Embed);
        m.note_success(ip(1), later + FIRST_PAUSE * 2);
        m.note_failure(ip(1), later + FIRST_PAUSE * 2);
        assert_eq!(m.verdict(ip(1), later + FIRST_PAUSE * 2), Verdict::Embed, "a success wipes the slate");
    }

    #[test]
    fn where_it_has_worked_it_takes_more_to_be_the_path() {
        let now = Instant::now();
        let mut m = Memory::new(10);
        m.note_success(ip(1), now);
        for n in 1..=5 {
            assert_eq!(m.verdict(ip(1), now), Verdict::Embed, "failure {n}");
            m.note_failure(ip(1), now);
        }
        assert_eq!(m.verdict(ip(1), now), Verdict::Paused);
        m.note_failure(ip(1), now + FIRST_PAUSE);
        assert_eq!(m.verdict(ip(1), now + FIRST_PAUSE), Verdict::Paused, "the next one after the pause is enough");
    }

    #[test]
    fn the_pause_has_an_end() {
        let mut now = Instant::now();
        let mut m = Memory::new(10);
        for _ in 0..40 {
            m.note_failure(ip(1), now);
            now += LONGEST_PAUSE;
            assert_eq!(m.verdict(ip(1), now), Verdict::Embed);
        }
    }

    #[test]
    fn several_destinations_that_fail_are_the_network() {
        let now = Instant::now();
        let mut m = Memory::new(10);
        for n in 1..=4 {
            assert_eq!(m.verdict(ip(9), now), Verdict::Embed);
            m.note_failure(ip(n), now);
            m.note_failure(ip(n), now);
        }
        assert_eq!(m.verdict(ip(9), now), Verdict::Paused);
        m.note_success(ip(8), now);
        assert_eq!(m.verdict(ip(9), now), Verdict::Embed);
    }

    #[test]
    fn hedge_delay_follows_the_round_trip_time() {
        let now = Instant::now();
        let mut m = Memory::new(10);
        assert_eq!(m.hedge_delay(ip(1)), Duration::from_millis(250));
        m.note_rtt(ip(1), Duration::from_millis(10), now);
        assert_eq!(m.hedge_delay(ip(1)), Duration::from_millis(250));
        m.note_rtt(ip(2), Duration::from_millis(200), now);
        assert_eq!(m.hedge_delay(ip(2)), Duration::from_millis(600));
        m.note_rtt(ip(2), Duration::from_millis(280), now);
        assert_eq!(m.hedge_delay(ip(2)), Duration::from_millis(630));
    }

    #[test]
    fn memory_is_bounded() {
        let mut now = Instant::now();
        let mut m = Memory::new(3);
        for n in 0..50 {
            m.note_failure(ip(n), now);
            now += Duration::from_secs(1);
        }
        assert_eq!(m.destinations.len(), 3);
        assert!(m.destinations.contains_key(&ip(49)) && !m.destinations.contains_key(&ip(46)));
    }
}
