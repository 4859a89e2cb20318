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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_left_out_and_counted() {
        let (mut lines, start) = (Lines::new(), Instant::now());
        let written = (0..1000).filter(|_| lines.take(start).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(lines.take(start + PER_LINE), Some(900));
        assert_eq!(lines.take(start + PER_LINE), None);
    }
}
