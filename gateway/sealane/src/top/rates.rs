//! What has happened between two statuses, and numbers as people read them.

use sealane_control::metrics::status::{LaneStatus, ServerStatus, Status};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is counted between two looks, per second.
pub struct Rates<'s> {
    pub now: &'s Status,
    pub then: Option<&'s Status>,
    pub seconds: f64,
}

impl<'s> Rates<'s> {
    pub fn new(now: &'s Status, then: Option<&'s Status>) -> Self {
        // Another process, or the first look: since the start.
        let then = then.filter(|t| t.pid == now.pid);
        let seconds = (now.uptime - then.map_or(0.0, |t| t.uptime)).max(0.001);
        Self { now, then, seconds }
    }

    pub fn total(&self, wanted: impl Fn(&str) -> bool) -> f64 {
        let sum = |s: &Status| -> u64 { s.totals.iter().filter(|(n, _)| wanted(n)).map(|(_, v)| v).sum() };
        sum(self.now).saturating_sub(self.then.map_or(0, sum)) as f64
    }

    pub fn rate(&self, name: &str) -> f64 {
        self.total(|n| n == name || n.split('{').next() == Some(name)) / self.seconds
    }

    pub fn lane(&self, lane: &LaneStatus, name: &str) -> f64 {
        let count = |l: &LaneStatus| l.counters.get(name).copied().unwrap_or(0);
        count(lane).saturating_sub(self.before(lane).map_or(0, count)) as f64
    }

    pub fn lane_sum(&self, lane: &LaneStatus, name: &str) -> f64 {
        let starts = |n: &str| n.split('{').next() == Some(name);
        let sum = |l: &LaneStatus| -> u64 { l.counters.iter().filter(|(n, _)| starts(n)).map(|(_, v)| v).sum() };
        sum(lane).saturating_sub(self.before(lane).map_or(0, sum)) as f64
    }

    /// Seconds on a core.
    pub fn cpu(&self, lane: &LaneStatus) -> Option<f64> {
        Some((lane.cpu_seconds? - self.before(lane).map_or(Some(0.0), |l| l.cpu_seconds)?).max(0.0))
    }

    /// Requests and failures of a server per second. One that is new, or whose counts began again, counts from nothing.
    pub fn server(&self, group: &str, server: &ServerStatus) -> (f64, f64) {
        let same = |s: &&ServerStatus| s.name == server.name && s.address == server.address;
        let groups = self.then.map(|t| t.upstreams.as_slice()).unwrap_or_default();
        let then = groups.iter().find(|u| u.name == group).and_then(|u| u.servers.iter().find(same));
        let per_second = |of: fn(&ServerStatus) -> u64| {
            let before = then.map(of).filter(|n| *n <= of(server)).unwrap_or(0);
            (of(server) - before) as f64 / self.seconds
        };
        (per_second(|s| s.requests), per_second(|s| s.failures))
    }

    fn before(&self, lane: &LaneStatus) -> Option<&LaneStatus> {
        self.then?.lanes.iter().find(|l| l.lane == lane.lane)
    }
}

/// Bytes per second with a unit.
pub fn bytes(rate: f64) -> String {
    let units = ["B/s", "KiB/s", "MiB/s", "GiB/s"];
    let (mut value, mut unit) = (rate, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", units[unit])
}

/// `in 12 days`, `3 days ago`.
pub fn days_from_now(seconds: i64) -> String {
    days_from(seconds, SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64))
}

fn days_from(seconds: i64, now: i64) -> String {
    match seconds.saturating_sub(now) / 86_400 {
        0 if seconds <= now => "less than a day ago".to_owned(),
        0 => "within a day".to_owned(),
        1 => "in 1 day".to_owned(),
        days @ 2.. => format!("in {days} days"),
        -1 => "1 day ago".to_owned(),
        days => format!("{} days ago", days.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!([bytes(12.0), bytes(2048.0), bytes(3.5 * 1_048_576.0)], ["12.0 B/s", "2.0 KiB/s", "3.5 MiB/s"]);
    }

    #[test]
    fn days_are_of_the_past_or_to_come() {
        const NOW: i64 = 1_800_000_000;
        for (seconds, text) in [
            (1, "within a day"),
            (86_399, "within a day"),
            (86_400, "in 1 day"),
            (12 * 86_400, "in 12 days"),
            (0, "less than a day ago"),
            (-3600, "less than a day ago"),
            (-86_400, "1 day ago"),
            (-3 * 86_400, "3 days ago"),
        ] {
            assert_eq!(days_from(NOW + seconds, NOW), text, "{seconds}");
        }
    }
}
