//! The timers of one lane: a hashed wheel of coarse deadlines.
//!
//! Deadlines are pushed back far more often than they fire, so the wheel is lazy: whoever is woken looks at its real
//! deadline and, if it is later, arms again. An entry costs 16 bytes; moving a deadline costs nothing.

/// Milliseconds since the lane started.
pub type Millis = u64;

const SLOTS: usize = 512;
/// Resolution of the wheel.
pub const TICK: Millis = 64;

/// Keys that want to be woken, by time.
#[derive(Debug)]
pub struct Timers {
    slots: Vec<Vec<(u64, Millis)>>,
    occupied: [u64; SLOTS / 64],
    /// The tick up to which everything has fired.
    fired: u64,
    len: usize,
}

impl Default for Timers {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| Vec::new()).collect(), occupied: [0; SLOTS / 64], fired: 0, len: 0 }
    }
}

impl Timers {
    /// Wakes `key` at `at` or up to a tick later.
    pub fn arm(&mut self, key: u64, at: Millis) {
        let tick = (at / TICK + 1).max(self.fired + 1);
        let slot = (tick % SLOTS as u64) as usize;
        self.slots[slot].push((key, tick));
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.len += 1;
    }

    /// Milliseconds until something may be due; `None` if nothing is armed.
    pub fn next(&self, now: Millis) -> Option<Millis> {
        if self.len == 0 {
            return None;
        }
        let mut tick = self.fired + 1;
        let end = tick + SLOTS as u64;
        while tick < end {
            let slot = (tick % SLOTS as u64) as usize;
            let rest = self.occupied[slot / 64] >> (slot % 64);
            if rest != 0 {
                tick += u64::from(rest.trailing_zeros());
                break;
            }
            tick += 64 - (slot % 64) as u64;
        }
        Some((tick * TICK).saturating_sub(now))
    }

    /// Moves what is due at `now` to `due`.
    pub fn expire(&mut self, now: Millis, due: &mut Vec<u64>) {
        let until = now / TICK;
        if until <= self.fired {
            return;
        }
        // After a long sleep every slot is visited once, not every tick.
        let from = (self.fired + 1).max(until.saturating_sub(SLOTS as u64 - 1));
        for tick in from..=until {
            let slot = (tick % SLOTS as u64) as usize;
            if self.occupied[slot / 64] & 1 << (slot % 64) == 0 {
                continue;
            }
            let entries = &mut self.slots[slot];
            entries.retain(|(key, at)| {
                if *at <= until {
                    due.push(*key);
                }
                *at > until
            });
            if entries.is_empty() {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
                // A storm's memory is given back.
                entries.shrink_to(64);
            }
        }
        self.fired = until;
        self.len = self.slots.iter().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_once_not_before_and_within_a_tick() {
        let mut t = Timers::default();
        for at in [0, 1, 63, 64, 1_000, 40_000, 1_000_000] {
            t.arm(at, at);
        }
        let mut fired = Vec::new();
        let mut now = 0;
        while let Some(wait) = t.next(now) {
            now += wait.max(1);
            let mut due = Vec::new();
            t.expire(now, &mut due);
            for key in due {
                assert!(now >= key && now <= key + 2 * TICK, "{key} fired at {now}");
                fired.push(key);
            }
        }
        assert_eq!(fired, [0, 1, 63, 64, 1_000, 40_000, 1_000_000]);
    }

    #[test]
    fn a_long_sleep_misses_nothing() {
        let mut t = Timers::default();
        (0..2_000).for_each(|i| t.arm(i, i * 50));
        let mut due = Vec::new();
        t.expire(10_000_000, &mut due);
        due.sort_unstable();
        assert_eq!(due, (0..2_000).collect::<Vec<_>>());
        assert_eq!(t.next(10_000_000), None);
    }
}
