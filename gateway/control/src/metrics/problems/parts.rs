//! Problems of servers, names, certificates, files and collectors: control knows their cause.

use super::{Facts, Finding, duration, few, number, percent};
use crate::health::ServerStatus;
use crate::run::access_log_writer::LogFailure;
use std::collections::BTreeMap;

/// Servers are slow if one answer of a hundred takes so long, in microseconds, and there were so many answers.
const SLOW: u64 = 1_000_000;
const ENOUGH: u64 = 5;
/// A host fails if such a part of its requests gets 5xx, and there are so many per second.
const MANY_ERRORS: f64 = 0.05;
const ENOUGH_PER_SECOND: f64 = 0.05;
/// The part of a certificate's lifetime that is left when it expires soon.
const SOON: i64 = 6;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    [
        few("upstreams", slow_servers(facts)),
        few("servers", servers(facts)),
        few("names", names(facts)),
        few("certificates", certificates(facts)),
        few("hosts and routes", errors(facts)),
        reloads(facts),
        access_log(facts),
        exports(facts),
    ]
    .concat()
}

/// The hosts whose requests an upstream gets, as a list.
fn hosts_of(facts: &Facts<'_>, upstream: &str) -> String {
    let mut hosts: Vec<&str> = Vec::new();
    for place in facts.places.iter().filter(|place| place.upstream == upstream) {
        if !hosts.contains(&place.host.as_str()) {
            hosts.push(&place.host);
        }
    }
    let more = hosts.len().saturating_sub(3);
    let mut text = hosts.iter().take(3).copied().collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn slow_servers(facts: &Facts<'_>) -> Vec<Finding> {
    let slow = |(upstream, waits): &(&str, sealane_lane::histogram::Distribution)| {
        let p99 = waits.quantile(0.99).filter(|p99| *p99 >= SLOW && waits.count() >= ENOUGH)?;
        let seconds = |micros: u64| duration(micros.min(1_000_000_000) as f64 / 1e6);
        let half = waits.quantile(0.5).unwrap_or(0);
        let mut text = format!("The servers of upstream \"{upstream}\" are slow: ");
        text.push_str(&match half >= SLOW / 2 {
            true => format!("half of their responses begin only after about {} or more", seconds(half)),
            false => {
                format!("1 response in 100 begins only after {} or more (half within {})", seconds(p99), seconds(half))
            }
        });
        text.push('.');
        let hosts = hosts_of(facts, upstream);
        if !hosts.is_empty() {
            text.push_str(&format!(" Slow for clients of: {hosts}."));
        }
        let turns = facts.recent.as_ref().and_then(|recent| recent.turns.quantile(0.99));
        if let Some(turn) = turns.filter(|turn| *turn < SLOW / 10) {
            text.push_str(&format!(
                " The gateway is not the cause: 99 % of the passes of its event loops take at most {}.",
                seconds(turn)
            ));
        }
        Some(Finding { kind: "slow_servers", subject: (*upstream).to_owned(), critical: true, text, client: None })
    };
    facts.waits.iter().filter_map(slow).collect()
}

fn servers(facts: &Facts<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<&str, Vec<&ServerStatus>> = BTreeMap::new();
    for server in facts.servers {
        groups.entry(&server.upstream).or_default().push(server);
    }
    let mut found = Vec::new();
    for (upstream, servers) in groups {
        let can_be_used = |server: &ServerStatus| server.up && !server.draining && server.weight > 0;
        let usable = servers.iter().filter(|server| can_be_used(server)).count();
        let good = servers.iter().filter(|server| can_be_used(server) && server.last_failure.is_none()).count();
        let all = servers.len();
        for server in &servers {
            let why = |text: Option<&str>| {
                text.filter(|text| !text.is_empty()).map_or(String::new(), |text| format!(" ({text})"))
            };
            let last = server.last_failure.as_deref();
            let state = match (&server.failing, server.ejected_for) {
                // Of a name that does not resolve, there is a finding of its own.
                _ if server.address.is_none() && facts.unresolved.iter().any(|name| name.upstream == upstream) => {
                    continue;
                }
                (Some(reason), _) => format!("its health check fails{}", why(Some(reason.as_str()))),
                (None, Some(seconds)) => {
                    format!("it was ejected for {seconds} s after too many failures{}", why(last))
                }
                (None, None) if last.is_some() => format!("requests to it fail{}", why(last)),
                (None, None) => continue,
            };
            let name = &server.server;
            let fails_only = server.failing.is_none() && server.ejected_for.is_none();
            let rest = match usable {
                // It is one of those that can be used.
                _ if fails_only => {
                    let still = if can_be_used(server) { "It still gets requests" } else { "It gets no new requests" };
                    format!("{still}. Other servers without a problem: {good}.")
                }
                0 => "No other server can be used: clients get 502 or 503.".to_owned(),
                usable if good < usable => {
                    let failing = usable - good;
                    format!(
                        "{usable} of {all} servers of the upstream can be used; requests to {failing} of them fail."
                    )
                }
                usable => format!("{usable} of {all} servers of the upstream can be used."),
            };
            found.push(Finding {
                kind: "server_down",
                subject: format!("{upstream} {name}"),
                critical: usable == 0,
                text: format!("Server {name} of upstream \"{upstream}\" has a problem: {state}. {rest}"),
                client: None,
            });
        }
    }
    found
}

fn names(facts: &Facts<'_>) -> Vec<Finding> {
    let finding = |name: &crate::health::UnresolvedName| {
        let why = if name.why.is_empty() { String::new() } else { format!(": {}", name.why) };
        let then = match name.has_addresses {
            true => "The previous addresses stay in use",
            false => "Its server is not used until the name resolves",
        };
        Finding {
            kind: "dns",
            subject: format!("{} {}", name.upstream, name.name),
            critical: !name.has_addresses,
            text: format!(
                "DNS: the name {} of a server of upstream \"{}\" does not resolve{why}. {then}. Check the DNS server.",
                name.name, name.upstream
            ),
            client: None,
        }
    };
    facts.unresolved.iter().map(finding).collect()
}

fn certificates(facts: &Facts<'_>) -> Vec<Finding> {
    let now = i64::try_from(facts.now).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    for c in facts.certificates {
        let subject = &c.subject;
        let renewal =
            c.automatic.as_ref().filter(|automatic| !automatic.on_demand).map_or("", |automatic| &automatic.last_error);
        let because = if renewal.is_empty() { String::new() } else { format!(" Its renewal fails: {renewal}.") };
        let days = |seconds: i64| match seconds / 86_400 {
            0 => "less than a day".to_owned(),
            1 => "1 day".to_owned(),
            days => format!("{days} days"),
        };
        let (critical, what) = match c.not_after - now {
            left if left <= 0 => (true, format!("expired {} ago: clients refuse to connect", days(-left))),
            left if left < (c.not_after - c.not_before) / SOON => (false, format!("expires in {}", days(left))),
            _ if !c.refused.is_empty() => (false, "stays in use, because its changed files are refused".to_owned()),
            _ if !renewal.is_empty() => (false, "cannot be renewed".to_owned()),
            _ => continue,
        };
        let refused = first_error(&c.refused).or_else(|| c.refused.lines().next());
        let refused = refused.map_or(String::new(), |why| format!(" {why}"));
        found.push(Finding {
            kind: "certificate",
            subject: c.file.clone(),
            critical,
            text: format!("The certificate for {subject} {what}. File: {}.{refused}{because}", c.file),
            client: None,
        });
    }
    // What clients notice comes first.
    found.sort_by_key(|finding| !finding.critical);
    found
}

fn errors(facts: &Facts<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for place in
        facts.places.iter().filter(|p| p.part_5xx >= MANY_ERRORS && p.per_second * p.part_5xx >= ENOUGH_PER_SECOND)
    {
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for error in facts.errors.iter().filter(|e| (&e.host, &e.route) == (&place.host, &place.route)) {
            *reasons.entry(&error.why).or_default() += 1 + error.left_out;
        }
        let most = reasons.into_iter().max_by_key(|(_, count)| *count);
        let because =
            most.map_or(String::new(), |(why, _)| format!(" The most frequent reason among the recent errors: {why}."));
        let route = if place.route.is_empty() { String::new() } else { format!(", route {}", place.route) };
        found.push(Finding {
            kind: "errors",
            subject: format!("{} {}", place.host, place.route),
            critical: true,
            text: format!("{} of the requests for {}{route} get 5xx.{because}", percent(place.part_5xx), place.host),
            client: None,
        });
    }
    found
}

/// The first error in the text of what was found in a configuration. There, warnings come before errors, and lines below each of them
/// show its place.
fn first_error(text: &str) -> Option<&str> {
    text.lines().find(|line| is_error(line))
}

/// Whether a line says an error: `FILE:14:1: error: MESSAGE`.
fn is_error(line: &str) -> bool {
    // ` | ` and help begin with a space; `14 | ` is a line of the file, in which anything may stand.
    let is_below = line.starts_with(' ') || line.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(" |");
    let at = |severity: &str| match line.starts_with(severity) {
        true => Some(0),
        false => line.find(&format!(": {severity}")),
    };
    !is_below && at("error: ").is_some_and(|error| at("warning: ").is_none_or(|warning| error < warning))
}

fn reloads(facts: &Facts<'_>) -> Vec<Finding> {
    let error = facts.reloads.map_or("", |reloads| &reloads.last_error);
    let mut lines = error.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(first) = lines.next() else { return Vec::new() };
    let (why, more) = match first_error(error) {
        Some(why) => (why, " sealane status shows all errors."),
        // The first line says what follows from the second one, which says why.
        None => (lines.next().unwrap_or(first), ""),
    };
    let why = why.trim_end_matches('.');
    let text = format!("The last reload failed: {why}. The previous configuration stays in use.{more}");
    vec![Finding { kind: "reload", critical: false, text, ..Finding::default() }]
}

fn access_log(facts: &Facts<'_>) -> Vec<Finding> {
    let finding = |(LogFailure { why, loses_lines }, errors): &(LogFailure, u64)| Finding {
        kind: "access_log",
        critical: false,
        text: if *loses_lines {
            format!(
                "Lines of the access log are lost{}: the gateway {why}. Errors of the access log since the start: {}. Requests are \
                 not affected.",
                // ENOSPC, as the standard library writes it.
                if why.contains("(os error 28)") { ", because the disk is full" } else { "" },
                number(*errors as f64)
            )
        } else {
            format!("The gateway {why}. Lines are still written, to the file that is open.")
        },
        ..Finding::default()
    };
    facts.log.iter().map(finding).collect()
}

fn exports(facts: &Facts<'_>) -> Vec<Finding> {
    let finding = |(what, why): &(&'static str, String)| Finding {
        kind: "export",
        subject: (*what).to_owned(),
        critical: false,
        text: format!("Sending {what} to the collector fails: {why}. Requests are not affected."),
        client: None,
    };
    facts.exports.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::UnresolvedName;
    use crate::metrics::errors::ErrorStatus;
    use crate::metrics::sampler::PlaceStatus;
    use crate::metrics::status::{CertificateStatus, Reloads};
    use sealane_lane::histogram::{Distribution, Histogram};

    fn durations(micros: &[u64]) -> Distribution {
        let histogram = Histogram::default();
        micros.iter().for_each(|micros| histogram.record(*micros));
        let mut all = Distribution::default();
        all.add(&histogram);
        all
    }

    fn only(facts: &Facts<'_>) -> Finding {
        let found = find(facts);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    #[test]
    fn nothing_is_wrong_where_nothing_is_known() {
        assert_eq!(find(&Facts::default()), []);
    }

    #[test]
    fn slow_servers_are_named_with_the_hosts_that_wait_for_them() {
        let places = [PlaceStatus { host: "a.example".into(), upstream: "app".into(), ..PlaceStatus::default() }];
        let waits = vec![("app", durations(&[1_500_000; 20])), ("quick", durations(&[900; 20]))];
        let finding = only(&Facts { waits, places: &places, ..Facts::default() });
        assert_eq!((finding.kind, finding.subject.as_str(), finding.critical), ("slow_servers", "app", true));
        assert!(finding.text.contains("half of their responses") && finding.text.contains("a.example"), "{finding:?}");
        // One slow answer after few is no problem.
        assert_eq!(find(&Facts { waits: vec![("app", durations(&[2_000_000; 2]))], ..Facts::default() }), []);
    }

    fn server(name: &str, up: bool) -> ServerStatus {
        ServerStatus {
            upstream: "app".into(),
            server: name.into(),
            address: Some(([10, 0, 0, 1], 80).into()),
            up,
            failing: None,
            ejected_for: None,
            backup: false,
            draining: false,
            added: false,
            weight: 1,
            weight_is_set: false,
            drain_is_set: false,
            effective_weight: 1.0,
            in_use: 0,
            limit: None,
            requests: 0,
            failures: 0,
            failures_in_a_row: 0,
            last_failure: None,
            checks_good: 0,
            checks_bad: 0,
            ejections: 0,
        }
    }

    #[test]
    fn one_bad_server_is_named_with_its_reason() {
        let mut servers: Vec<ServerStatus> = (0..5).map(|n| server(&format!("s{n}"), n != 3)).collect();
        (servers[3].ejected_for, servers[3].last_failure) = (Some(27), Some("it cannot be reached".into()));
        let finding = only(&Facts { servers: &servers, ..Facts::default() });
        assert_eq!((finding.kind, finding.critical), ("server_down", false));
        for part in ["Server s3 of upstream \"app\"", "it cannot be reached", "4 of 5 servers"] {
            assert!(finding.text.contains(part), "{finding:?}");
        }
        // A server with weight 0 gets no new requests, although it is up.
        servers[0].weight = 0;
        let finding = only(&Facts { servers: &servers, ..Facts::default() });
        assert!(finding.text.contains("3 of 5 servers of the upstream can be used"), "{finding:?}");
        servers.iter_mut().for_each(|server| (server.up, server.failing) = (false, Some("no route".into())));
        let found = find(&Facts { servers: &servers, ..Facts::default() });
        assert!(found.iter().all(|finding| finding.critical && finding.text.contains("No other server")), "{found:?}");
    }

    #[test]
    fn a_server_whose_requests_fail_is_not_counted_as_one_without_a_problem() {
        let failing = |name: &str| ServerStatus { last_failure: Some("no route".into()), ..server(name, true) };
        let alone = [failing("s0")];
        let finding = only(&Facts { servers: &alone, ..Facts::default() });
        let text = "Server s0 of upstream \"app\" has a problem: requests to it fail (no route). It still gets requests. Other \
                    servers without a problem: 0.";
        assert_eq!(finding.text, text);
        let finding = only(&Facts { servers: &[failing("s0"), server("s1", true)], ..Facts::default() });
        assert!(finding.text.ends_with("Other servers without a problem: 1."), "{finding:?}");
        let drained = ServerStatus { draining: true, ..failing("s0") };
        let finding = only(&Facts { servers: &[drained, server("s1", true)], ..Facts::default() });
        assert!(finding.text.contains("It gets no new requests."), "{finding:?}");
        let ejected = ServerStatus { ejected_for: Some(3), ..server("s1", false) };
        let found = find(&Facts { servers: &[failing("s0"), ejected], ..Facts::default() });
        let text = "1 of 2 servers of the upstream can be used; requests to 1 of them fail.";
        assert!(found.iter().any(|finding| finding.text.ends_with(text)), "{found:?}");
    }

    #[test]
    fn names_that_do_not_resolve_are_told() {
        let name = |has_addresses| UnresolvedName {
            upstream: "app".into(),
            name: "app.example".into(),
            why: "server failure".into(),
            has_addresses,
        };
        let finding = only(&Facts { unresolved: &[name(true)], ..Facts::default() });
        assert!(finding.kind == "dns" && !finding.critical, "{finding:?}");
        assert!(finding.text.contains("app.example") && finding.text.contains("server failure"), "{finding:?}");
        assert!(only(&Facts { unresolved: &[name(false)], ..Facts::default() }).critical);
    }

    #[test]
    fn certificates_that_expire_are_told_with_their_renewal() {
        const DAY: i64 = 86_400;
        let certificate = |name: &str, end: i64| CertificateStatus {
            subject: name.into(),
            file: format!("{name}.pem"),
            not_before: end - 90 * DAY,
            not_after: end,
            ..CertificateStatus::default()
        };
        let now = 1_800_000_000;
        let certificates = [
            certificate("good.example", now + 60 * DAY),
            certificate("soon.example", now + 10 * DAY + 5),
            certificate("late.example", now - DAY - 5),
        ];
        let facts = Facts { now: now as u64, certificates: &certificates, ..Facts::default() };
        let found = find(&facts);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].critical && found[0].text.contains("late.example expired 1 day ago"), "{found:?}");
        assert!(!found[1].critical && found[1].text.contains("soon.example expires in 10 days"), "{found:?}");
    }

    #[test]
    fn errors_of_a_host_have_their_most_frequent_reason() {
        let places =
            [PlaceStatus { host: "a.example".into(), per_second: 10.0, part_5xx: 0.25, ..PlaceStatus::default() }];
        let error = |why: &str, left_out| ErrorStatus {
            host: "a.example".into(),
            why: why.into(),
            left_out,
            ..ErrorStatus::default()
        };
        let errors =
            [error("no response in time", 0), error("it cannot be reached", 7), error("no response in time", 0)];
        let finding = only(&Facts { places: &places, errors: &errors, ..Facts::default() });
        assert!(finding.text.contains("25 % of the requests for a.example get 5xx"), "{finding:?}");
        assert!(finding.text.contains("it cannot be reached"), "{finding:?}");
    }

    /// As a configuration with a warning and an error is refused.
    const REFUSED: &str = "s.toml:3:1: warning: \"a: error: b\" is old\n  |\n3 | x = \"a: error: b\"\n  | ^\n  help: c: error: d\n\
                           s.toml:14:1: error: unknown setting \"lane\"\n   |\n14 | lane = 1\n   | ^^^^\n  help: did you mean \"lanes\"?";

    #[test]
    fn the_reason_is_the_first_error_and_no_warning() {
        let last_error = format!("not reloaded; the running configuration stays:\n{REFUSED}");
        let reloads = Reloads { last_error, ..Reloads::default() };
        let finding = only(&Facts { reloads: Some(&reloads), ..Facts::default() });
        let text = "The last reload failed: s.toml:14:1: error: unknown setting \"lane\". The previous configuration stays in use. \
                    sealane status shows all errors.";
        assert_eq!(finding.text, text);
        let certificate = CertificateStatus {
            subject: "a.example".into(),
            file: "a.pem".into(),
            not_after: 90,
            refused: REFUSED.into(),
            ..CertificateStatus::default()
        };
        let finding = only(&Facts { now: 1, certificates: &[certificate], ..Facts::default() });
        assert!(finding.text.ends_with("File: a.pem. s.toml:14:1: error: unknown setting \"lane\""), "{finding:?}");
        for (line, is) in
            [("error: no listener", true), ("f: error: x: warning: y", true), ("warning: a: error: b", false)]
        {
            assert_eq!(is_error(line), is, "{line}");
        }
    }

    #[test]
    fn files_and_collectors_have_their_error() {
        let reloads = Reloads {
            last_error: "not reloaded; the running configuration stays:\nx.toml:3: unknown setting".into(),
            ..Reloads::default()
        };
        let finding = only(&Facts { reloads: Some(&reloads), ..Facts::default() });
        assert!(finding.text.contains("x.toml:3: unknown setting"), "{finding:?}");
        assert!(!finding.text.contains("all errors"), "{finding:?}");
        let failure = |why: &str, loses_lines| LogFailure { why: why.to_owned(), loses_lines };
        let log = Some((failure("cannot write /log: No space left on device (os error 28)", true), 1234));
        let finding = only(&Facts { log, ..Facts::default() });
        for part in
            ["are lost, because the disk is full: the gateway cannot write /log", "No space left on device", "1,234"]
        {
            assert!(finding.text.contains(part), "{finding:?}");
        }
        let log = Some((failure("cannot write /log: Permission denied (os error 13)", true), 1));
        let finding = only(&Facts { log, ..Facts::default() });
        assert!(!finding.text.contains("full") && finding.text.contains("are lost: the gateway cannot"), "{finding:?}");
        let log = Some((failure("cannot rotate /log: Permission denied (os error 13)", false), 1));
        let finding = only(&Facts { log, ..Facts::default() });
        let text = "The gateway cannot rotate /log: Permission denied (os error 13). Lines are still written, to the file that \
                    is open.";
        assert_eq!(finding.text, text);
        let exports = [("traces", "connection refused".to_owned())];
        let finding = only(&Facts { exports: &exports, ..Facts::default() });
        assert!(finding.text.contains("Sending traces to the collector fails: connection refused"), "{finding:?}");
    }
}
