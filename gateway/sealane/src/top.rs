//! The terminal view of `sealane top`: two statuses in, lines out.

use crate::running::{span, state};
use crate::tables::{Sort, TABLES, Table};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use sealane_control::metrics::status::{LaneStatus, ServerStatus, Status};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is shown, and how it is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub table: Table,
    pub sort: Sort,
}

impl Shown {
    /// What a key changes; `None`: the end.
    pub fn after(self, key: u8) -> Option<Self> {
        let of = |table: Table| Self { table, sort: table.usual() };
        let at = TABLES.iter().position(|table| *table == self.table).unwrap_or(0);
        Some(match key {
            // The terminal makes no signal of Ctrl-C meanwhile.
            b'q' | b'Q' | 0x03 | 0x04 => return None,
            b'\t' | b'n' => of(TABLES[(at + 1) % TABLES.len()]),
            b'p' => of(TABLES[(at + TABLES.len() - 1) % TABLES.len()]),
            b'0'..=b'9' => of(TABLES[usize::from(key - b'0') % TABLES.len()]),
            b's' => Self { sort: self.table.next_sort(self.sort), ..self },
            b'r' => Self { sort: Sort { falling: !self.sort.falling, ..self.sort }, ..self },
            _ => self,
        })
    }
}

/// The line that says what keys do: tables, sort, reverse, quit.
pub const KEYS: &str = "0 all 1 hosts 2 servers 3 errors 4 limits 5 cpu 6 certs 7 vpn 8 open 9 changes  s r q";

/// A terminal that gives each key as it is pressed, until this is dropped.
pub struct Keys {
    before: Termios,
}

impl Keys {
    /// `None` where nobody presses keys: the input or the output is no terminal.
    pub fn new() -> Option<Self> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return None;
        }
        let before = tcgetattr(io::stdin()).ok()?;
        let mut changed = before.clone();
        // Lines are not edited, keys not shown; Ctrl-C is a key, so that the terminal is as before when this ends.
        changed.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &changed).ok()?;
        Some(Self { before })
    }

    /// The next key, if one is pressed within this time.
    pub fn next(&self, within: Duration) -> Option<u8> {
        let stdin = io::stdin();
        let time = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
        let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
        if poll(&mut waits, Some(&time)).unwrap_or(0) == 0 {
            return None;
        }
        let mut byte = [0];
        match rustix::io::read(&stdin, &mut byte) {
            Ok(1) => Some(byte[0]),
            // The terminal is gone.
            Ok(_) => Some(b'q'),
            Err(_) => None,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

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
            out.write_all(frame(view, self.first).as_bytes())?;
        } else {
            writeln!(out, "{view}")?;
        }
        self.first = false;
        out.flush()
    }
}

/// A view for a terminal of any size: what is too wide is cut by the terminal (no wrapping meanwhile), what is too long
/// stays on the last row, and nothing scrolls.
fn frame(view: &str, first: bool) -> String {
    let mut t = String::from(if first { "\x1b[?7l\x1b[2J" } else { "\x1b[?7l" });
    let last = view.lines().count();
    for (i, line) in view.lines().enumerate() {
        let row = i + 1;
        // The row, or with the last one everything below as well.
        let clear = if row == last { "J" } else { "K" };
        // Writing to a string cannot fail.
        let _ = write!(t, "\x1b[{row};1H\x1b[{clear}{line}");
    }
    t + "\x1b[?7h"
}

/// What is counted between two looks, per second.
pub struct Rates<'s> {
    pub now: &'s Status,
    then: Option<&'s Status>,
    seconds: f64,
}

impl<'s> Rates<'s> {
    pub fn new(now: &'s Status, then: Option<&'s Status>) -> Self {
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
        "clients    {:>8} open {:>10.1}/s new   requests {:>10.1}/s {:>7} active",
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
        "handshakes {:>8.1}/s 1.3 full {:>8.1}/s 1.3 resumed {:>8.1}/s over QUIC\n\
         {:19.1}/s 1.2 full {:>8.1}/s 1.2 resumed {:>10} waiting",
        kind("1.3", "full"),
        kind("1.3", "resumed"),
        // Counted among those of 1.3 as well.
        r.rate("quic_connections"),
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
        "responses  {:>8.1}/s 2xx {:>8.1}/s 3xx {:>8.1}/s 4xx {:>8.1}/s 5xx\n{:>21} in {:>14} out",
        class("2xx"),
        class("3xx"),
        class("4xx"),
        class("5xx"),
        bytes(r.rate("request_body_bytes")),
        bytes(r.rate("response_body_bytes")),
    );
    let servers_of = now.upstreams.iter().flat_map(|u| u.servers.iter().map(move |s| (&u.name, s)));
    let failures: f64 = servers_of.map(|(group, server)| r.server(group, server).1).sum();
    let _ = writeln!(
        t,
        "upstreams  {:>8.1}/s connects {:>8.1}/s reused {:>8.1}/s retries\n{:>19.1}/s failures {:>10} idle",
        r.rate("upstream_connects"),
        r.rate("upstream_reused"),
        r.rate("upstream_retries"),
        failures,
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
    t += &crate::tables::operations(now);
    t += &servers(&r);
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

/// Servers that a screen has room for.
const SERVERS: usize = 16;

/// The servers: those in trouble first, then the busiest; a screen has no room for hundreds.
fn servers(r: &Rates) -> String {
    let mut all: Vec<(&str, &ServerStatus, f64, f64)> = Vec::new();
    for group in &r.now.upstreams {
        for server in &group.servers {
            let (requests, failures) = r.server(&group.name, server);
            all.push((&group.name, server, requests, failures));
        }
    }
    if all.is_empty() {
        return String::new();
    }
    let well = |s: &ServerStatus| (s.state == "up" || s.state == "backup") && s.failing.is_empty();
    // A stable sort: servers that are alike stay as they are in the file.
    all.sort_by(|a, b| well(a.1).cmp(&well(b.1)).then(b.2.total_cmp(&a.2)));
    let width = |of: fn(&(&str, &ServerStatus, f64, f64)) -> usize| all.iter().take(SERVERS).map(of).max().unwrap_or(0);
    let (group, name) = (width(|s| s.0.chars().count()).max(8), width(|s| s.1.name.chars().count()).max(6));
    let mut t = format!(
        "\n{:<group$} {:<name$} {:>7} {:>7} {:>11} {:>11}  state\n",
        "upstream", "server", "weight", "in use", "requests/s", "failures/s"
    );
    for (upstream, server, requests, failures) in all.iter().take(SERVERS) {
        let state = state(server);
        let ServerStatus { name: server, weight, in_use, .. } = server;
        // Writing to a string cannot fail.
        let _ = writeln!(
            t,
            "{upstream:<group$} {server:<name$} {weight:>7} {in_use:>7} {requests:>11.1} {failures:>11.1}  {state}"
        );
    }
    if all.len() > SERVERS {
        let _ = writeln!(t, "and {} more servers", all.len() - SERVERS);
    }
    t
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
    fn keys_choose_tables_and_their_order() {
        let first = Shown { table: Table::Overview, sort: Table::Overview.usual() };
        let keys = |keys: &[u8]| keys.iter().try_fold(first, |shown, key| shown.after(*key));
        assert_eq!(keys(b"1").map(|shown| shown.table), Some(Table::Hosts));
        assert_eq!(keys(b"\t\tp").map(|shown| shown.table), Some(Table::Hosts));
        assert_eq!(keys(b"p").map(|shown| shown.table), Some(Table::Changes));
        let sorted = keys(b"1sr").unwrap();
        assert_eq!((sorted.table, sorted.sort), (Table::Hosts, Sort { column: 4, falling: false }));
        assert_eq!(keys(b"1x\x1b[A"), keys(b"1"), "others do nothing");
        assert_eq!([keys(b"q"), keys(b"1\x03")], [None, None]);
    }

    #[test]
    fn rates_are_between_two_looks() {
        let text = view(&status(12.0, 1300, 0.5), Some(&status(10.0, 300, 0.4)));
        assert!(text.contains("requests      500.0/s"), "{text}");
        // 0.1 s for 1000 requests in 2 s.
        assert!(text.contains("    5 %") && text.contains("100.0\n"), "{text}");
        assert!(text.contains("10 × handshake: not_tls"), "{text}");
    }

    fn with_servers(uptime: f64, servers: &[(&str, &str, u64, u64)]) -> Status {
        let servers: Vec<_> = servers
            .iter()
            .map(|(name, state, requests, failures)| {
                serde_json::json!({ "name": name, "address": name, "state": state, "weight": 1, "requests": requests,
                    "failures": failures })
            })
            .collect();
        let upstreams = serde_json::json!([{ "name": "app", "servers": servers }]);
        serde_json::from_value(serde_json::json!({ "pid": 1, "uptime": uptime, "upstreams": upstreams })).unwrap()
    }

    #[test]
    fn servers_in_trouble_come_first_and_then_the_busiest() {
        let then = with_servers(10.0, &[("idle:1", "up", 5, 0), ("busy:1", "up", 100, 0), ("ill:1", "up", 7, 1)]);
        let now =
            with_servers(12.0, &[("idle:1", "up", 5, 0), ("busy:1", "up", 300, 0), ("ill:1", "down: reset", 9, 3)]);
        let text = view(&now, Some(&then));
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
        assert!(at("ill:1") < at("busy:1") && at("busy:1") < at("idle:1"), "{text}");
        let row = |what: &str| text[at(what)..].lines().next().unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row("ill:1"), ["ill:1", "1", "0", "1.0", "1.0", "down:", "reset"]);
        assert_eq!(row("busy:1"), ["busy:1", "1", "0", "100.0", "0.0", "up"]);
    }

    #[test]
    fn a_hundred_servers_do_not_fill_the_screen() {
        let names: Vec<String> = (0..100).map(|n| format!("s{n}:1")).collect();
        let servers: Vec<(&str, &str, u64, u64)> = names.iter().map(|n| (n.as_str(), "up", 1, 0)).collect();
        let text = view(&with_servers(1.0, &servers), None);
        assert!(text.contains("and 84 more servers") && text.lines().count() < 40, "{text}");
        assert!(!view(&with_servers(1.0, &[]), None).contains("server "));
    }

    #[test]
    fn the_first_look_is_since_the_start() {
        let text = view(&status(10.0, 300, 0.3), None);
        assert!(text.contains("since the start") && text.contains("30.0/s"), "{text}");
    }

    #[test]
    fn it_fits_a_terminal_of_80_columns_and_any_other_cuts_it() {
        let text = view(&status(12.0, 1300, 0.5), Some(&status(10.0, 300, 0.4)));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let drawn = frame("one\ntwo\nthree\n", false);
        assert_eq!(drawn, "\x1b[?7l\x1b[1;1H\x1b[Kone\x1b[2;1H\x1b[Ktwo\x1b[3;1H\x1b[Jthree\x1b[?7h");
        assert!(frame("one", true).starts_with("\x1b[?7l\x1b[2J\x1b[1;1H"));
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!([bytes(12.0), bytes(2048.0), bytes(3.5 * 1_048_576.0)], ["12.0 B/s", "2.0 KiB/s", "3.5 MiB/s"]);
    }
}
