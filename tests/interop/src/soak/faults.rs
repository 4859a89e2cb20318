//! Which faults are under way: a client's failure beside one of them is excused.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long after its end a fault still excuses failures: servers are checked, and clients have waited.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// The faults so far.
#[derive(Debug, Default)]
pub struct Faults(Mutex<Vec<(Instant, Option<Instant>)>>);

/// A fault that is under way; over when dropped.
#[derive(Debug)]
pub struct UnderWay<'f>(&'f Faults, usize);

impl Faults {
    /// A fault begins.
    pub fn begin(&self) -> UnderWay<'_> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((Instant::now(), None));
        UnderWay(self, all.len() - 1)
    }

    /// Whether a fault was under way at any time since then.
    pub fn excuse(&self, since: Instant) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().rev().any(|(_, end)| end.is_none_or(|end| end + AFTERWARDS >= since))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut all = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        all[self.1].1 = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_overlaps_is_excused() {
        let faults = Faults::default();
        let start = Instant::now();
        assert!(!faults.excuse(start));
        let fault = faults.begin();
        assert!(faults.excuse(start) && faults.excuse(Instant::now()));
        drop(fault);
        assert!(faults.excuse(start) && faults.excuse(Instant::now()));
        assert!(!faults.excuse(Instant::now() + AFTERWARDS * 2));
    }
}
