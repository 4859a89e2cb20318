//! The terminal view of `sealane top`: two statuses in, lines out.

use crate::running::span;
use sealane_control::status::{LaneStatus, Status};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the view is drawn: over itself on a terminal, one after the other elsewhere.
pub struct Screen {
    terminal: bool,
    first: bool,
}

impl Screen {
    /// The standard output.
    pub fn new() -> Self {
        Self { terminal: io::stdout().is_terminal(), first: true }
    }

    /// Draws a view.
    pub fn draw(&mut self, view: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.terminal {
            // Home; clear each line's rest and what is below. The whole screen once.
            let clear = if self.first { "\x1b[2J\x1b[H" } else { "\x1b[H" };
            let lines: String = view.lines().map(|l| format!("{l}\x1b[K\n")).collect();
            write!(out, "{clear}{lines}\x1b[J")?;
        } else {
            writeln!(out, "{view}")?;
        }
        self.first = false;
        out.flush()
    }
}

/// What is counted between two looks, per second.
struct Rates<'s> {
    now: &'s Status,
    then: Option<&'s Status>,
    seconds: f64,
}

impl<'s> Rates<'s> {
    fn new(now: &'s Status, then: Option<&'s Status>) -> Self {
        // Another process, or the first look: since the start.
        let then = then.filter(|t| t.pid == now.pid);
        let seconds = (now.uptime - then.map_or(0.0, |t| t.uptime)).max(0.001);
        Self { now, then, seconds }
    }

    fn total(&self, wanted: impl Fn(&str) -> bool) -> f64 {
        let sum = |s: &Status| -> u64 { s.totals.iter().filter(|(n, _)| wanted(n)).map(|(_, v)| v).sum() };
        sum(self.now).saturating_sub(self.then.map_or(0, sum)) as f64
    }

    fn rate(&self, name: &str) -> f64 {
        self.total(|n| n == name || n.split('{').next() == Some(name)) / self.seconds
    }

    fn lane(&self, lane: &LaneStatus, name: &str) -> f64 {
        let count = |l: &LaneStatus| l.counters.get(name).copied().unwrap_or(0);
        count(lane).saturating_sub(self.before(lane).map_or(0, count)) as f64
    }

    fn lane_sum(&self, lane: &LaneStatus, name: &str) -> f64 {
        let starts = |n: &str| n.split('{').next() == Some(name);
        let sum = |l: &LaneStatus| -> u64 { l.counters.iter().filter(|(n, _)| starts(n)).map(|(_, v)| v).sum() };
        sum(lane).saturating_sub(self.before(lane).map_or(0, sum)) as f64
    }

    /// Seconds on a core.
    fn cpu(&self, lane: &LaneStatus) -> Option<f64> {
        Some((lane.cpu_seconds? - self.before(lane).map_or(Some(0.0), |l| l.cpu_seconds)?).max(0.0))
    }

    fn before(&self, lane: &LaneStatus) -> Option<&LaneStatus> {
        self.then?.lanes.iter().find(|l| l.lane == lane.lane)
    }
}

/// The whole view as text.
pub fn view(now: &Status, then: Option<&Status>) -> String {
    let r = Rates::new(now, then);
    let gauge = |name: &str| now.totals.get(name).copied().unwrap_or(0);
    let mut t = String::new();
    let since = if r.then.is_some() { "now" } else { "since the start" };
    // Writing to a string cannot fail.
    let _ = writeln!(
        t,
        "sealane {} {} (pid {}), up {}; {} listeners, generation {}; rates {since}",
        now.version,
        now.state,
        now.pid,
        span(now.uptime as u64),
        now.listeners.len(),
        now.generation
    );
    let _ = writeln!(t);
    let _ = writeln!(
        t,
        "clients    {:>8} open {:>10.1}/s new   requests {:>10.1}/s {:>8} active",
        gauge("connections_open"),
        r.rate("connections_accepted"),
        r.rate("requests"),
        gauge("requests_active"),
    );
    let kind = |version: &str, kind: &str| {
        let label = format!("version=\"{version}\",kind=\"{kind}\"");
        r.total(|n| n.starts_with("handshakes{") && n.contains(&label)) / r.seconds
    };
    let _ = writeln!(
        t,
        "handshakes {:>8.1}/s 1.3 full {:>8.1}/s 1.3 resumed {:>8.1}/s 1.2 full {:>8.1}/s 1.2 resumed {:>6} waiting",
        kind("1.3", "full"),
        kind("1.3", "resumed"),
        kind("1.2", "full"),
        kind("1.2", "resumed"),
        gauge("hellos_waiting"),
    );
    let class = |c: &str| {
        let label = format!("class=\"{c}\"");
        r.total(|n| n.starts_with("responses{") && n.contains(&label)) / r.seconds
    };
    let _ = writeln!(
        t,
        "responses  {:>8.1}/s 2xx {:>8.1}/s 3xx {:>8.1}/s 4xx {:>8.1}/s 5xx {:>12} in {:>12} out",
        class("2xx"),
        class("3xx"),
        class("4xx"),
        class("5xx"),
        bytes(r.rate("request_body_bytes")),
        bytes(r.rate("response_body_bytes")),
    );
    let _ = writeln!(
        t,
        "upstreams  {:>8.1}/s connects {:>8.1}/s reused {:>8.1}/s retries {:>8.1}/s failures {:>6} idle",
        r.rate("upstream_connects"),
        r.rate("upstream_reused"),
        r.rate("upstream_retries"),
        r.rate("upstream_connect_failures") + r.rate("upstream_timeouts"),
        gauge("upstream_idle_connections"),
    );
    let _ = writeln!(t);
    let _ = writeln!(
        t,
        "{:>5} {:>7} {:>10} {:>12} {:>12} {:>14}",
        "lane", "cpu", "open", "requests/s", "handshakes/s", "CPU µs/op"
    );
    for lane in &now.lanes {
        let (requests, handshakes) = (r.lane(lane, "requests"), r.lane_sum(lane, "handshakes"));
        let cpu = r.cpu(lane);
        let share = cpu.map_or_else(|| "?".to_owned(), |c| format!("{:.0} %", c / r.seconds * 100.0));
        // An operation is a request or a handshake, whichever there are more of: one connection per request is one.
        let operations = requests.max(handshakes);
        let each = match cpu {
            Some(cpu) if operations >= 1.0 => format!("{:.1}", cpu * 1e6 / operations),
            _ => "-".to_owned(),
        };
        let open = lane.counters.get("connections_open").copied().unwrap_or(0);
        let _ = writeln!(
            t,
            "{:>5} {share:>7} {open:>10} {:>12.1} {:>12.1} {each:>14}",
            lane.lane,
            requests / r.seconds,
            handshakes / r.seconds
        );
    }
    let refused: Vec<(&String, u64)> = now
        .refused
        .iter()
        .map(|(what, n)| (what, n - r.then.and_then(|t| t.refused.get(what)).copied().unwrap_or(0).min(*n)))
        .filter(|(_, n)| *n > 0)
        .collect();
    if !refused.is_empty() {
        let _ = writeln!(t, "\nrefused {since}");
        for (what, n) in refused {
            let _ = writeln!(t, "  {n:>8} × {what}");
        }
    }
    t
}

/// Bytes per second with a unit.
fn bytes(rate: f64) -> String {
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
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    match (seconds - now) / 86_400 {
        0 => "within a day".to_owned(),
        days @ 1.. => format!("in {days} days"),
        days => format!("{} days ago", -days),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uptime: f64, requests: u64, cpu: f64) -> Status {
        serde_json::from_value(serde_json::json!({
            "pid": 1, "version": "1", "state": "serving", "uptime": uptime,
            "totals": { "requests": requests, "responses{class=\"2xx\"}": requests },
            "lanes": [{ "lane": 0, "cpu_seconds": cpu, "counters": { "requests": requests } }],
            "refused": { "handshake: not_tls": requests / 100 },
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_between_two_looks() {
        let text = view(&status(12.0, 1300, 0.5), Some(&status(10.0, 300, 0.4)));
        assert!(text.contains("requests      500.0/s"), "{text}");
        // 0.1 s for 1000 requests in 2 s.
        assert!(text.contains("    5 %") && text.contains("100.0\n"), "{text}");
        assert!(text.contains("10 × handshake: not_tls"), "{text}");
    }

    #[test]
    fn the_first_look_is_since_the_start() {
        let text = view(&status(10.0, 300, 0.3), None);
        assert!(text.contains("since the start") && text.contains("30.0/s"), "{text}");
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!([bytes(12.0), bytes(2048.0), bytes(3.5 * 1_048_576.0)], ["12.0 B/s", "2.0 KiB/s", "3.5 MiB/s"]);
    }
}
