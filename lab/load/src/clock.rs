//! One monotonic time for all threads of a run: nanoseconds since its epoch.

use std::time::{Duration, Instant};

/// Nanoseconds since the run's epoch.
pub type Nanos = u64;

/// A moment that never comes.
pub const NEVER: Nanos = u64::MAX;

/// The run's clock; copies share the epoch.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

impl Clock {
    /// A clock whose zero is now.
    pub fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// The time since the epoch.
    #[inline]
    pub fn now(&self) -> Nanos {
        nanos(self.epoch.elapsed())
    }

    /// A moment of this clock as the standard library has it.
    #[inline]
    pub fn instant(&self, at: Nanos) -> Instant {
        self.epoch + Duration::from_nanos(at)
    }

    /// And back; 0 for what was before the epoch.
    #[inline]
    pub fn nanos(&self, at: Instant) -> Nanos {
        nanos(at.saturating_duration_since(self.epoch))
    }
}

/// A duration in nanoseconds, capped at five centuries.
#[inline]
pub fn nanos(d: Duration) -> Nanos {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
