//! A lane's buckets for one limit: a set-associative table of fixed size.
//!
//! A key has one set of [`WAYS`] places. Where the set is full, the key gives way that has the most left: one that is
//! limited is forgotten last, so that a client cannot get rid of its debt by coming from many addresses.

use super::{Rate, SHARE_KEYS};
use sealane_lane::Millis;

const WAYS: usize = 8;

/// What a lane has let pass of a key since it has last told the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// See `RateLimit::address_key`.
    pub key: u64,
    /// How often.
    pub count: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// 0: free.
    key: u64,
    /// What is left, in [`RateTable::cost`]s; below 0 is a debt.
    level: i64,
    /// The time for which `level` holds.
    at: Millis,
    /// Let pass, but not told yet.
    untold: u32,
}

/// The buckets of one limit.
#[derive(Debug)]
pub(crate) struct RateTable {
    entries: Vec<Entry>,
    sets: usize,
    full: i64,
    /// A millisecond fills in so many parts as the rate counts in its time, and one that passes costs as many parts as
    /// that time has milliseconds: nothing is lost to rounding.
    per_ms: i64,
    cost: i64,
    /// Keys with something untold, no more than there are entries; may hold keys that have given way since.
    untold: Vec<u64>,
    /// Some keys did not fit in there: the entries are looked through for them.
    more_untold: bool,
}

impl RateTable {
    pub fn new(rate: Rate, entries: usize) -> Self {
        let sets = entries.div_ceil(WAYS).max(1);
        let cost = rate.per.as_millis().clamp(1, 1 << 32) as i64;
        Self {
            entries: vec![Entry::default(); sets * WAYS],
            sets,
            full: i64::from(rate.burst.clamp(1, 1 << 24)) * cost,
            per_ms: i64::from(rate.count.max(1)),
            cost,
            untold: Vec::new(),
            more_untold: false,
        }
    }

    /// Lets one pass, or says after how long to come again.
    pub fn pass(&mut self, key: u64, now: Millis) -> Result<(), Millis> {
        let (per_ms, cost) = (self.per_ms, self.cost);
        let entry = self.entry(key, now);
        if entry.level < cost {
            return Err(((cost - entry.level) as u64).div_ceil(per_ms as u64).clamp(1, 1 << 40));
        }
        entry.level -= cost;
        entry.untold = entry.untold.saturating_add(1);
        if entry.untold == 1 {
            let key = entry.key;
            if self.untold.len() < self.entries.len() {
                self.untold.push(key);
            } else {
                self.more_untold = true;
            }
        }
        Ok(())
    }

    /// Takes off what another lane has let pass.
    pub fn debit(&mut self, used: Use, now: Millis) {
        let cost = self.cost;
        let entry = self.entry(used.key, now);
        entry.level = entry.level.saturating_sub(i64::from(used.count).saturating_mul(cost));
    }

    /// Takes off what all gateways together have let pass, as far as this lane does not know of it. `micros`: how long their bucket
    /// takes to be full again.
    pub fn lower(&mut self, key: u64, micros: u64, now: Millis) {
        let used = i128::from(micros) * i128::from(self.per_ms) / 1000;
        let left = i64::try_from(i128::from(self.full) - used).unwrap_or(i64::MIN);
        let entry = self.entry(key, now);
        entry.level = entry.level.min(left);
    }

    /// What has passed since the last call, a bounded number of keys at a time.
    pub fn tell(&mut self) -> Vec<Use> {
        if self.untold.is_empty() && std::mem::take(&mut self.more_untold) {
            self.untold.extend(self.entries.iter().filter(|e| e.untold > 0).map(|e| e.key));
        }
        let count = self.untold.len().min(SHARE_KEYS);
        let keys: Vec<u64> = self.untold.drain(..count).collect();
        let told = keys.into_iter().filter_map(|key| {
            let set = self.set(key);
            let entry = self.entries[set..set + WAYS].iter_mut().find(|e| e.key == key)?;
            let count = std::mem::take(&mut entry.untold);
            (count > 0).then_some(Use { key, count })
        });
        told.collect()
    }

    /// Whether there is something to tell.
    pub fn has_news(&self) -> bool {
        !self.untold.is_empty() || self.more_untold
    }

    /// Where the places of a key begin.
    fn set(&self, key: u64) -> usize {
        (key % self.sets as u64) as usize * WAYS
    }

    /// The bucket of a key, filled up to now.
    fn entry(&mut self, key: u64, now: Millis) -> &mut Entry {
        let key = key.max(1);
        let set = self.set(key);
        let (full, per_ms) = (self.full, self.per_ms);
        let level = |e: &Entry| {
            let grown = (now.saturating_sub(e.at) as i64).saturating_mul(per_ms);
            e.level.saturating_add(grown).min(full)
        };
        let ways = &mut self.entries[set..set + WAYS];
        let at = match ways.iter().position(|e| e.key == key) {
            Some(at) => at,
            None => {
                let free = ways.iter().position(|e| e.key == 0);
                let most = || (0..WAYS).max_by_key(|i| level(&ways[*i])).unwrap_or(0);
                let at = free.unwrap_or_else(most);
                ways[at] = Entry { key, level: full, at: now, untold: 0 };
                at
            }
        };
        let entry = &mut ways[at];
        (entry.level, entry.at) = (level(entry), now);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rate(count: u32, burst: u32) -> Rate {
        Rate { count, per: Duration::from_secs(1), burst }
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut t = RateTable::new(rate(10, 5), 64);
        assert_eq!((0..20).filter(|_| t.pass(7, 0).is_ok()).count(), 5);
        assert_eq!(t.pass(7, 0), Err(100));
        assert_eq!(t.pass(7, 40), Err(60));
        assert!(t.pass(7, 100).is_ok());
        // A hundred seconds in steps of a millisecond: ten each second.
        assert_eq!((101..100_101).filter(|ms| t.pass(7, *ms).is_ok()).count(), 1_000);
        // Another key has a bucket of its own.
        assert!(t.pass(8, 0).is_ok());
    }

    #[test]
    fn slow_rates_are_kept() {
        let mut t = RateTable::new(Rate { count: 1, per: Duration::from_secs(3600), burst: 1 }, 8);
        assert!(t.pass(1, 0).is_ok());
        let passed = (1..7_300).filter(|s| t.pass(1, s * 1_000).is_ok()).count();
        assert_eq!(passed, 2);
    }

    /// Lanes that tell each other every 100 ms, all of them flooded by one client.
    #[test]
    fn lanes_hold_a_rate_together() {
        const LANES: usize = 4;
        let (r, b) = (50, 20);
        let mut lanes: Vec<RateTable> = (0..LANES).map(|_| RateTable::new(rate(r, b), 64)).collect();
        let mut passed = 0;
        for ms in 0..60_000 {
            for lane in &mut lanes {
                passed += usize::from(lane.pass(9, ms).is_ok());
            }
            if ms % 100 == 99 {
                let told: Vec<Vec<Use>> = lanes.iter_mut().map(|l| l.tell()).collect();
                for (to, lane) in lanes.iter_mut().enumerate() {
                    let others = told.iter().enumerate().filter(|(from, _)| *from != to);
                    others.flat_map(|(_, u)| u).for_each(|u| lane.debit(*u, ms));
                }
            }
        }
        let one = 60 * r as usize + b as usize;
        let bound = one + (LANES - 1) * (b as usize + r as usize / 10);
        // And not much less than the rate either.
        assert!(passed <= bound && passed >= one - b as usize, "{passed} of {one} to {bound}");
    }

    /// Gateways that exchange levels every 350 ms through a bucket, all of them flooded by one client.
    #[test]
    fn gateways_hold_a_rate_together() {
        const GATEWAYS: usize = 5;
        const EVERY: u64 = 350;
        let (r, b) = (50, 20);
        let each = 1_000_000 / u64::from(r);
        let mut gateways: Vec<RateTable> = (0..GATEWAYS).map(|_| RateTable::new(rate(r, b), 64)).collect();
        let (mut bucket, mut passed) = (0u64, 0);
        for ms in 0..60_000 {
            bucket = bucket.saturating_sub(1000);
            for (at, gateway) in gateways.iter_mut().enumerate() {
                passed += usize::from(gateway.pass(9, ms).is_ok());
                // Not all at the same time.
                if ms % EVERY == at as u64 * 50 {
                    bucket += gateway.tell().iter().map(|u| u64::from(u.count) * each).sum::<u64>();
                    gateway.lower(9, bucket, ms);
                }
            }
        }
        let one = 60 * r as usize + b as usize;
        let bound = one + (GATEWAYS - 1) * (b as usize + (u64::from(r) * EVERY / 1000) as usize + 1);
        assert!(passed <= bound && passed + 2 * b as usize >= one, "{passed} of {one} to {bound}");
    }

    #[test]
    fn a_level_takes_off_only_what_a_lane_does_not_know() {
        let mut t = RateTable::new(rate(10, 5), 64);
        assert!((0..2).all(|_| t.pass(7, 0).is_ok()));
        // Two of ten in a second: 200 ms, which is what it has let pass itself.
        t.lower(7, 200_000, 0);
        t.lower(7, 0, 0);
        assert_eq!((0..20).filter(|_| t.pass(7, 0).is_ok()).count(), 3);
        // Two more than the burst, at other gateways: a debt, which is paid off like any other.
        t.lower(7, 700_000, 0);
        assert_eq!(t.pass(7, 0), Err(300));
        assert!(t.pass(7, 300).is_ok());
        // A key that this lane has not seen.
        t.lower(8, 500_000, 300);
        assert_eq!(t.pass(8, 300), Err(100));
        t.lower(8, u64::MAX, 300);
        assert_eq!(t.pass(8, 300), Err(1 << 40));
    }

    #[test]
    fn it_is_bounded_and_forgets_debtors_last() {
        let mut t = RateTable::new(rate(1, 4), 8);
        while t.pass(1, 0).is_ok() {}
        for key in 2..10_000 {
            assert!(t.pass(key, 0).is_ok());
        }
        assert_eq!(t.entries.len(), 8);
        assert!(t.pass(1, 0).is_err());
        assert!(t.untold.len() <= 8);
        let mut told = Vec::new();
        while t.has_news() {
            told.extend(t.tell());
        }
        assert!(told.iter().any(|u| u.key == 9_999) && told.len() <= 16, "{told:?}");
    }
}
