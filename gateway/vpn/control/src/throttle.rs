//! What bounds the lines that clients can cause. Checks of passwords are bounded in `gateway/passwords`.

use std::time::{Duration, Instant};

/// Lines that clients can cause: some at once, then a few each second; the others are counted.
#[derive(Debug)]
pub struct Lines {
    /// When all of the burst is allowed again.
    until: Option<Instant>,
    left_out: u64,
}

/// Lines at once, and how long until there may be another one.
const BURST: u32 = 100;
const PER_LINE: Duration = Duration::from_millis(100);

impl Lines {
    /// None was written yet.
    pub const fn new() -> Self {
        Self { until: None, left_out: 0 }
    }

    /// Whether another line may be written, and how many were left out before it.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let until = self.until.filter(|until| *until > now).unwrap_or(now);
        if until - now > PER_LINE * (BURST - 1) {
            self.left_out += 1;
            return None;
        }
        self.until = Some(until + PER_LINE);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// New sessions: so many in so long, all at once or one after the other.
#[derive(Debug, Default)]
pub struct Rate {
    /// When all of them are allowed again.
    until: Option<Instant>,
}

impl Rate {
    /// Whether another one may begin.
    pub fn take(&mut self, (count, per): (u32, Duration), now: Instant) -> bool {
        let each = per / count.max(1);
        let until = self.until.filter(|until| *until > now).unwrap_or(now);
        if until - now + each > per {
            return false;
        }
        self.until = Some(until + each);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_allows_as_many_as_it_says() {
        let (mut rate, start) = (Rate::default(), Instant::now());
        let ten = (10, Duration::from_secs(1));
        assert_eq!((0..100).filter(|_| rate.take(ten, start)).count(), 10);
        assert_eq!((0..100).filter(|_| rate.take(ten, start + Duration::from_millis(200))).count(), 2);
        assert_eq!((0..100).filter(|_| rate.take(ten, start + Duration::from_secs(60))).count(), 10);
        assert!(Rate::default().take((1, Duration::from_secs(3600)), start));
    }

    #[test]
    fn lines_are_left_out_and_counted() {
        let (mut lines, start) = (Lines::new(), Instant::now());
        let written = (0..1000).filter(|_| lines.take(start).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(lines.take(start + PER_LINE), Some(900));
        assert_eq!(lines.take(start + PER_LINE), None);
    }
}
