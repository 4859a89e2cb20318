//! How often requests may be tried again: a share of all requests and a few per second, so that a group in trouble is
//! not brought down by its clients' second tries.
//!
//! Each lane has a budget of its own: the share of its own requests, and its part of the few per second. The sum over
//! the lanes is therefore never above the share of all requests plus the few per second (each saved for ten seconds).

use sealane_lane::Millis;
use std::cell::Cell;

/// Thousandths of a try.
const UNIT: u64 = 1_000;
/// What is not used is kept for so long.
const SAVED_SECONDS: u64 = 10;

pub(crate) struct RetryBudget {
    /// Thousandths of a try per request.
    share: u64,
    /// Thousandths of a try per second.
    floor: u64,
    saved: Cell<u64>,
    most: u64,
    filled: Cell<Millis>,
}

impl RetryBudget {
    /// `percent` of the requests and `per_second` over all lanes.
    pub fn new(percent: u32, per_second: u32, lanes: usize) -> Self {
        let floor = u64::from(per_second) * UNIT / lanes.max(1) as u64;
        let share = u64::from(percent) * UNIT / 100;
        // A first try can be had at once, where any may be had at all.
        let most = (floor * SAVED_SECONDS).max(share * 100).max(if floor + share > 0 { UNIT } else { 0 });
        Self { share, floor, saved: Cell::new((floor * SAVED_SECONDS).min(most)), most, filled: Cell::new(0) }
    }

    /// A request has begun.
    #[inline]
    pub fn note_request(&self) {
        self.saved.set((self.saved.get() + self.share).min(self.most));
    }

    /// Takes one try, if there is one.
    pub fn take(&self, now: Millis) -> bool {
        let grown = now.saturating_sub(self.filled.get()).saturating_mul(self.floor) / 1_000;
        // What is too little to count stays to be counted later.
        if grown > 0 {
            self.filled.set(now);
        }
        let saved = self.saved.get().saturating_add(grown).min(self.most);
        let granted = saved >= UNIT;
        self.saved.set(if granted { saved - UNIT } else { saved });
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_requests_and_some_per_second() {
        let b = RetryBudget::new(20, 0, 4);
        let mut tries = 0;
        for _ in 0..10_000 {
            b.note_request();
            tries += u32::from(b.take(0));
        }
        assert_eq!(tries, 2_000);

        let b = RetryBudget::new(0, 10, 5);
        let tries = (0..1_000).filter(|_| b.take(0)).count();
        assert_eq!(tries, 20, "ten seconds' worth of this lane's fifth");
        assert_eq!((1..=1_000).filter(|i| b.take(i * 10)).count(), 20);

        let none = RetryBudget::new(0, 0, 1);
        none.note_request();
        assert!(!none.take(1_000_000));
    }
}
