//! Counters of one lane: written by that lane alone, read by anybody.
//!
//! A plain load and store, no read-modify-write: the owner is the only writer, so nothing is lost and no LOCK prefix
//! is needed. The reader sums over the lanes.

use crate::sync::{AtomicU64, Ordering};

/// A number that one lane writes and anybody reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning lane may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds one. Only the owning lane may call this.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Subtracts one, for gauges. Only the owning lane may call this.
    #[inline]
    pub fn dec(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }

    /// Sets the value, for gauges. Only the owning lane may call this.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value as last written.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
