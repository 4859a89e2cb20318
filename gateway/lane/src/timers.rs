//! The timers of one lane: a hashed wheel of coarse deadlines.
//!
//! Deadlines are pushed back far more often than they fire, so the wheel is lazy: a connection that is woken looks at its real
//! deadline and, if it is later, arms again. An entry costs 16 bytes; moving a deadline back costs nothing. Moving it
//! forward leaves an entry behind, which is stale: [`Deadline`] knows which of its entries counts and ignores the others
//! when they fire, so that they do not multiply, and [`Timers::retain`] removes them where too many have gathered.

use crate::run::Context;

/// Milliseconds since the lane started.
pub type Millis = u64;

/// Microseconds since the lane started.
pub type Micros = u64;

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
        self.put(key, self.tick(at));
    }

    /// The tick at which a deadline fires.
    fn tick(&self, at: Millis) -> u64 {
        (at / TICK + 1).max(self.fired + 1)
    }

    fn put(&mut self, key: u64, tick: u64) {
        let slot = (tick % SLOTS as u64) as usize;
        self.slots[slot].push((key, tick));
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.len += 1;
    }

    /// How many entries there are, stale ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes the entries that `keep` does not want: it is given the key and the tick at which the entry fires
    /// ([`Deadline::is_armed_for`]). Walks over everything; to be called when [`Self::len`] has outgrown what it should be.
    pub fn retain(&mut self, mut keep: impl FnMut(u64, u64) -> bool) {
        for (slot, entries) in self.slots.iter_mut().enumerate() {
            entries.retain(|(key, tick)| keep(*key, *tick));
            if entries.is_empty() {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
            }
            entries.shrink_to(64);
        }
        self.len = self.slots.iter().map(Vec::len).sum();
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

/// When somebody is to be woken, and which of its entries in the wheel counts: the earliest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadline {
    at: Millis,
    /// The tick of the entry that counts; 0 where there is none.
    armed: u64,
}

impl Deadline {
    /// Moves the deadline. Moving it back costs nothing: the entry is armed again when it fires.
    #[inline]
    pub fn set(&mut self, cx: &mut Context, key: impl Into<u64>, at: Millis) {
        let moves_back = at >= std::mem::replace(&mut self.at, at);
        if moves_back && self.armed != 0 {
            return;
        }
        let tick = cx.timers.tick(at);
        if self.armed == 0 || tick < self.armed {
            self.armed = tick;
            cx.timers.put(key.into(), tick);
        }
    }

    /// Sets the deadline some time from now.
    #[inline]
    pub fn after(&mut self, cx: &mut Context, key: impl Into<u64>, wait: std::time::Duration) {
        let at = cx.now() + wait.as_millis() as Millis;
        self.set(cx, key, at);
    }

    /// Moves the deadline forward to `at`, unless it is to come before that anyway.
    pub fn set_no_later(&mut self, cx: &mut Context, key: impl Into<u64>, at: Millis) {
        if self.armed == 0 || at < self.at {
            self.set(cx, key, at);
        }
    }

    /// When it is; it means nothing before it has been set.
    pub fn at(&self) -> Millis {
        self.at
    }

    /// An entry has fired: whether it is time. If it is not yet, it is armed again. A stale entry is ignored.
    pub fn fired(&mut self, cx: &mut Context, key: impl Into<u64>) -> bool {
        if self.armed == 0 || self.armed > cx.timers.fired {
            return false;
        }
        self.armed = 0;
        let due = self.at <= cx.now();
        if !due {
            self.set(cx, key, self.at);
        }
        due
    }

    /// Whether the entry that fires at this tick is the one that counts, for [`Timers::retain`].
    pub fn is_armed_for(&self, tick: u64) -> bool {
        self.armed == tick
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A day of a kept-alive connection with a request per second, or ten: the entries are those of the deadlines that
    /// have not come yet, and no more. (Each that fired used to be armed again: 84,000 after a day.)
    #[test]
    fn a_long_connection_has_few_entries() {
        for (pause, day) in [(1000, 86_400_000), (100, 3_600_000)] {
            let mut cx = Context::new().unwrap();
            let mut deadline = Deadline::default();
            let (mut due, mut most, mut woken) = (Vec::new(), 0, 0);
            for now in (0..day).step_by(pause / 2) {
                cx.set_now(now);
                // A request's head, its body, and the wait for the next one.
                let wait = [10_000, 30_000, 60_000][now as usize / (pause / 2) % 3];
                deadline.set(&mut cx, 7u64, now + wait);
                cx.timers.expire(now, &mut due);
                for key in due.drain(..) {
                    woken += 1;
                    assert!(!deadline.fired(&mut cx, key), "it never comes");
                }
                most = most.max(cx.timers.len());
            }
            assert!(most <= 8, "{most}");
            assert!(woken <= 86_400 / 5, "{woken}");
            assert!(!cx.timers.is_empty());
        }
    }

    #[test]
    fn a_deadline_fires_once_and_when_it_should() {
        let mut cx = Context::new().unwrap();
        let mut deadline = Deadline::default();
        let mut fired = Vec::new();
        for at in [9_000, 3_000, 2_999, 6_000] {
            deadline.set(&mut cx, 1u64, at);
        }
        let mut due = Vec::new();
        for now in (0..40_000).step_by(16) {
            cx.set_now(now);
            cx.timers.expire(now, &mut due);
            for key in due.drain(..) {
                if deadline.fired(&mut cx, key) {
                    fired.push(now);
                }
            }
        }
        assert!(matches!(fired[..], [at] if (6_000..=6_000 + 2 * TICK).contains(&at)), "{fired:?}");
        assert!(cx.timers.is_empty());
    }

    #[test]
    fn stale_entries_can_be_removed() {
        let mut cx = Context::new().unwrap();
        let mut deadlines = [Deadline::default(); 10];
        for at in (1..=100).rev() {
            for (key, deadline) in deadlines.iter_mut().enumerate() {
                deadline.set(&mut cx, key as u64, at * 1000);
            }
        }
        assert_eq!(cx.timers.len(), 1000);
        cx.timers.retain(|key, tick| deadlines[key as usize].is_armed_for(tick));
        assert_eq!(cx.timers.len(), 10);
        let mut due = Vec::new();
        cx.timers.expire(2_000, &mut due);
        assert_eq!(due.len(), 10);
    }

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
