//! The overview of `sealane top`: two statuses in, text out.

use crate::running::{span, state};
use crate::tables;
use crate::top::problem_lines;
use crate::top::rates::{Rates, bytes};
use sealane_control::metrics::status::{ServerStatus, Status};
use std::fmt::Write as _;

/// The first line: which gateway it is.
pub fn head(r: &Rates) -> String {
    let now = r.now;
    format!(
        "sealane {} {} (pid {}), up {}; {} listener{}, generation {}; rates {}",
        now.version,
        now.state,
        now.pid,
        span(now.uptime as u64),
        now.listeners.len(),
        if now.listeners.len() == 1 { "" } else { "s" },
        now.generation,
        since(r)
    )
}

fn since(r: &Rates) -> &'static str {
    if r.then.is_some() { "now" } else { "since the start" }
}

/// The whole view as text.
pub fn view(now: &Status, then: Option<&Status>) -> String {
    let r = Rates::new(now, then);
    let mut t = head(&r) + "\n";
    for line in problem_lines(now) {
        // Writing to a string cannot fail.
        let _ = writeln!(t, "{line}");
    }
    t + "\n" + &body(&r)
}

/// What is below the first line and the problems.
pub fn body(r: &Rates) -> String {
    let now = r.now;
    let gauge = |name: &str| now.totals.get(name).copied().unwrap_or(0);
    let mut t = String::new();
    // Writing to a string cannot fail.
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
        "handshakes {:>8.1}/s TLS 1.3 full {:>8.1}/s resumed {:>8.1}/s of these QUIC\n\
         {:19.1}/s TLS 1.2 full {:>8.1}/s resumed {:>10} waiting",
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
    // From 0.0 on: the sum of nothing is -0.0.
    let failures = servers_of.fold(0.0, |sum, (group, server)| sum + r.server(group, server).1);
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
    t += &tables::operations(now);
    t += &servers(r);
    let refused: Vec<(&String, u64)> = now
        .refused
        .iter()
        .map(|(what, n)| (what, n - r.then.and_then(|t| t.refused.get(what)).copied().unwrap_or(0).min(*n)))
        .filter(|(_, n)| *n > 0)
        .collect();
    if !refused.is_empty() {
        let _ = writeln!(t, "\nrefused {}", since(r));
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
    fn it_fits_a_terminal_of_80_columns() {
        let text = view(&status(12.0, 1300, 0.5), Some(&status(10.0, 300, 0.4)));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn problems_come_first() {
        let mut now = status(12.0, 1300, 0.5);
        now.problems = serde_json::from_value(serde_json::json!([
            { "kind": "dns", "text": "The name a.example does not resolve\u{1b}[2J.", "since": 5, "critical": true },
            { "kind": "memory", "text": "It was short.", "since": 1, "until": 3 },
        ]))
        .unwrap();
        let text = view(&now, None);
        let line = text.lines().nth(1).unwrap();
        assert!(line.starts_with("PROBLEM  The name a.example does not resolve\\u{1b}[2J."), "{text}");
        assert!(!text.contains("It was short"), "it is over: {text}");
    }
}
