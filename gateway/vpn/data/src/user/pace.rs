//! How long a lane waits before it looks for packets again.
//!
//! A sender that makes one system call per packet, as OpenVPN does, wakes a lane for each: then everything that a turn
//! costs (waiting, receiving, writing into the TUN, acknowledging what TCP inside acknowledges) is paid per packet.
//! Where packets come fast and singly, the lane therefore sleeps for a moment before it looks again, and what has
//! gathered shares one turn, as network cards do with their interrupts. Where few come, it never does: below
//! [`SPACING`] a packet is handled when it comes.

use super::lane::BUFFERS;
use std::time::{Duration, Instant};

/// The longest mean time between two arrivals at which gathering pays: 20,000 a second.
const SPACING: Duration = Duration::from_micros(50);
/// How long arrivals are counted before their rate is judged.
const WINDOW: Duration = Duration::from_millis(4);
/// Arrivals that are enough for one turn.
const ENOUGH: u32 = 32;

/// The pace of one lane. What is counted are filled buffers: a train of datagrams in one buffer is gathered already.
#[derive(Debug)]
pub(super) struct Pace {
    /// The longest wait; zero: never any.
    longest: Duration,
    /// The wait as of the last judgement.
    wait: Duration,
    since: Instant,
    /// Arrivals since then, but for this turn's.
    came: u32,
    turn: u32,
}

impl Pace {
    pub(super) fn new(longest: Duration, now: Instant) -> Self {
        Self { longest, wait: Duration::ZERO, since: now, came: 0, turn: 0 }
    }

    /// So many buffers were filled.
    #[inline]
    pub(super) fn arrived(&mut self, buffers: usize) {
        self.turn = self.turn.saturating_add(buffers as u32);
    }

    /// At the end of a turn: how long to wait before the next one. The clock is read only where it matters.
    pub(super) fn wait(&mut self, clock: impl FnOnce() -> Instant) -> Duration {
        let turn = std::mem::take(&mut self.turn);
        if self.longest.is_zero() || (turn == 0 && self.wait.is_zero()) {
            return Duration::ZERO;
        }
        self.came = self.came.saturating_add(turn);
        let now = clock();
        let passed = now.saturating_duration_since(self.since);
        if passed >= WINDOW {
            let each = passed / self.came.max(1);
            self.wait = if each <= SPACING { (each * ENOUGH).min(self.longest) } else { Duration::ZERO };
            (self.came, self.since) = (0, now);
        }
        // Who filled all buffers may have left some: those have waited long enough.
        if turn as usize >= BUFFERS { Duration::ZERO } else { self.wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(250);

    /// Turns of `buffers` arrivals each, so far apart; returns the last wait, and when it was.
    fn turns(pace: &mut Pace, mut now: Instant, apart: Duration, buffers: usize, count: u32) -> (Duration, Instant) {
        let mut wait = Duration::ZERO;
        for _ in 0..count {
            now += apart;
            pace.arrived(buffers);
            wait = pace.wait(|| now);
        }
        (wait, now)
    }

    #[test]
    fn a_flood_of_single_packets_is_gathered_and_a_trickle_never_is() {
        let start = Instant::now();
        let mut pace = Pace::new(LONGEST, start);
        let (wait, now) = turns(&mut pace, start, Duration::from_micros(100), 1, 1000);
        assert_eq!(wait, Duration::ZERO);
        let (wait, now) = turns(&mut pace, now, Duration::from_micros(20), 1, 1000);
        assert_eq!(wait, LONGEST);
        // Gathering them makes fewer turns of the same number.
        let (wait, now) = turns(&mut pace, now, Duration::from_micros(300), 15, 100);
        assert_eq!(wait, LONGEST);
        // So many that a shorter wait is enough.
        let (wait, now) = turns(&mut pace, now, Duration::from_micros(100), 32, 100);
        assert!(wait > Duration::from_micros(80) && wait < Duration::from_micros(120), "{wait:?}");
        // The first packet after a pause is followed by none.
        let (wait, _) = turns(&mut pace, now, Duration::from_secs(1), 1, 1);
        assert_eq!(wait, Duration::ZERO);
    }

    #[test]
    fn what_is_left_over_does_not_wait_and_turns_without_packets_end_it() {
        let start = Instant::now();
        let mut pace = Pace::new(LONGEST, start);
        let (wait, now) = turns(&mut pace, start, Duration::from_micros(500), BUFFERS - 1, 100);
        assert_eq!(wait, LONGEST);
        let (wait, now) = turns(&mut pace, now, Duration::from_micros(500), BUFFERS, 1);
        assert_eq!(wait, Duration::ZERO);
        let (wait, _) = turns(&mut pace, now, Duration::from_millis(5), 0, 2);
        assert_eq!(wait, Duration::ZERO);
    }

    #[test]
    fn switched_off_it_asks_for_no_clock() {
        let mut pace = Pace::new(Duration::ZERO, Instant::now());
        pace.arrived(5);
        assert_eq!(pace.wait(|| unreachable!()), Duration::ZERO);
        let mut idle = Pace::new(LONGEST, Instant::now());
        assert_eq!(idle.wait(|| unreachable!()), Duration::ZERO);
    }
}
