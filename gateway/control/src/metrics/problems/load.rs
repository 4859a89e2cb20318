//! Problems of load: too many handshakes, a lane that is busier than the others, one client that asks for most, limits, memory, packets
//! that are lost.

use super::{Facts, Finding, duration, number, percent};
use crate::metrics::sampler::LimitStatus;
use crate::metrics::talkers::Talkers;
use crate::metrics::window::{LaneWork, Recent};
use std::net::IpAddr;

/// New clients wait too long if 1 of 100 waits so long for its handshake, in microseconds, with so many handshakes per second.
const LONG_WAIT: u64 = 50_000;
const MANY_HANDSHAKES: f64 = 5.0;
/// A lane is busy from such a part of a core on, and busier than the others if it does so many times as much.
const BUSY: f64 = 0.5;
const TIMES: f64 = 3.0;
/// All lanes are busy from such a part on.
const FULL: f64 = 0.9;
/// A client or connection stands out if such a part of all requests (or new connections) is its.
const MOST: f64 = 0.5;
/// Below so many per second, nobody makes much load.
const SOME: f64 = 5.0;
/// Refusals in a minute from which on a limit is a problem, unless clients wait for it.
const MANY_REFUSED: u64 = 10;
/// Packets are lost if it is such a part of so many, and so many at least.
const LOSSY: f64 = 0.01;
const ENOUGH_PACKETS: u64 = 200;
const ENOUGH_LOST: u64 = 10;

pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let recent = facts.recent.as_ref();
    let of_recent = |of: fn(&Facts<'_>, &Recent) -> Option<Finding>| recent.and_then(|recent| of(facts, recent));
    let all = [
        of_recent(handshakes),
        of_recent(busy_lane),
        of_recent(full_lanes),
        heavy_client(facts),
        of_recent(packet_loss),
    ];
    all.into_iter().flatten().chain(memory(facts)).chain(limits(facts)).collect()
}

pub(super) fn needs_talkers(facts: &Facts<'_>) -> bool {
    let Some(recent) = &facts.recent else { return false };
    busiest_lane(recent).is_some()
        || lost_part(recent).is_some()
        || waits_long(recent).is_some()
        || limits_refuse(facts)
}

/// How long 1 of 100 new clients waits, where that is long.
fn waits_long(recent: &Recent) -> Option<u64> {
    let handshakes = (recent.full + recent.resumed + recent.failed) as f64 / recent.seconds;
    let wait = recent.admission.quantile(0.99).filter(|wait| *wait >= LONG_WAIT)?;
    (handshakes >= MANY_HANDSHAKES || recent.waiting > 0).then_some(wait)
}

fn handshakes(facts: &Facts<'_>, recent: &Recent) -> Option<Finding> {
    let wait = waits_long(recent)?;
    let per_second = |count: u64| number(count as f64 / recent.seconds);
    let mut text = format!(
        "Handshake flood: 1 new client in 100 waits {} or longer until a lane has time for its TLS handshake. There are {} full handshakes \
         per second",
        duration(wait.min(1_000_000_000) as f64 / 1e6),
        per_second(recent.full)
    );
    if recent.resumed > 0 {
        text.push_str(&format!(" and {} resumed handshakes", per_second(recent.resumed)));
    }
    if recent.failed > recent.full / 10 {
        text.push_str(&format!("; {} per second fail", per_second(recent.failed)));
    }
    text.push('.');
    if recent.waiting > 0 {
        let clients = if recent.waiting == 1 { "client waits" } else { "clients wait" };
        text.push_str(&format!(" {} {clients} now.", number(recent.waiting as f64)));
    }
    if let Some(part) = part_of_handshakes(facts, recent) {
        text.push_str(&format!(" Full handshakes take {} of the lanes' CPU time.", percent(part)));
    }
    let source = facts.talkers.and_then(newest_source);
    match (source, facts.talkers) {
        (Some((_, part)), _) => {
            text.push_str(&format!(" {} of the new connections come from one client.", percent(part)))
        }
        (None, Some(talkers)) if talkers.accepted > SOME => {
            text.push_str(" No single client makes half of the new connections.");
        }
        _ => {}
    }
    let client = source.map(|(address, _)| address);
    Some(Finding { kind: "handshakes", critical: true, text, client, ..Finding::default() })
}

/// The part of the lanes' CPU time that full handshakes take, if the cost of one is known.
fn part_of_handshakes(facts: &Facts<'_>, recent: &Recent) -> Option<f64> {
    let cost = |kind: &str| facts.operations.iter().find(|o| o.operation == kind).and_then(|o| o.seconds);
    let full = ["handshake_full_ecdsa", "handshake_full_rsa", "handshake_full_ed25519", "handshake_full_ml_dsa"];
    let known: Vec<f64> = full.into_iter().filter_map(cost).collect();
    // Without knowing which of two kinds there are, nothing can be said.
    let [full] = known[..] else { return None };
    let spent: f64 = recent.lanes.iter().filter_map(|lane| lane.cpu).sum::<f64>() * recent.seconds;
    let on_handshakes = recent.full as f64 * full;
    (spent > 0.0).then_some((on_handshakes / spent).min(1.0)).filter(|part| *part >= 0.1)
}

/// The client with most of the new connections, and its part.
fn newest_source(talkers: &Talkers) -> Option<(IpAddr, f64)> {
    let most = talkers.clients.iter().max_by(|(_, a), (_, b)| a.accepted.total_cmp(&b.accepted))?;
    let part = most.1.accepted / talkers.accepted.max(1e-9);
    (talkers.accepted >= SOME && part >= MOST).then_some((most.0, part.min(1.0)))
}

/// A lane that does several times as much as the others together do on average, and what these do.
fn busiest_lane(recent: &Recent) -> Option<(usize, f64, f64)> {
    // If the CPU time of a lane is not known, nothing is known about "the others".
    let cpu: Vec<f64> = recent.lanes.iter().map(|lane| lane.cpu).collect::<Option<_>>()?;
    let (lane, most) = cpu.iter().copied().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let others = cpu.len().checked_sub(1).filter(|others| *others > 0)?;
    let mean = (cpu.iter().sum::<f64>() - most) / others as f64;
    (most >= BUSY && most >= TIMES * mean).then_some((lane, most, mean))
}

fn busy_lane(facts: &Facts<'_>, recent: &Recent) -> Option<Finding> {
    let (lane, most, mean) = busiest_lane(recent)?;
    let LaneWork { requests, handshakes, .. } = recent.lanes[lane];
    let others = if recent.lanes.len() == 2 { "the other lane about" } else { "the other lanes on average" };
    let mut text = format!("Lane {lane} uses {} of its core, {others} {}.", percent(most.min(1.0)), percent(mean));
    let of_lane = facts.talkers.and_then(|talkers| talkers.lanes.get(&lane));
    let hot = of_lane
        .and_then(|(all, one)| Some((*one.as_ref()?, *all)))
        .filter(|(one, all)| one.requests >= SOME && one.requests >= MOST * all);
    match hot {
        Some((one, all)) => text.push_str(&format!(
            " One hot connection ({}) keeps the lane busy: {} of the lane's requests, {} per second. A connection stays in its lane, so other \
             clients of this lane wait.",
            one.id,
            percent((one.requests / all).min(1.0)),
            number(one.requests)
        )),
        None => text.push_str(&format!(
            " The lane has {} requests and {} handshakes per second; a few busy connections are the usual cause. Other clients of this lane wait.",
            number(requests as f64 / recent.seconds),
            number(handshakes as f64 / recent.seconds)
        )),
    }
    let client = hot.map(|(one, _)| one.address);
    Some(Finding { kind: "busy_lane", subject: lane.to_string(), critical: true, text, client })
}

fn full_lanes(_: &Facts<'_>, recent: &Recent) -> Option<Finding> {
    let cpu: Vec<f64> = recent.lanes.iter().map(|lane| lane.cpu).collect::<Option<_>>()?;
    let least = cpu.into_iter().min_by(f64::total_cmp)?;
    if least < FULL || recent.lanes.len() < 2 {
        return None;
    }
    let sum = |of: fn(&LaneWork) -> u64| number(recent.lanes.iter().map(of).sum::<u64>() as f64 / recent.seconds);
    let text = format!(
        "All lanes use {} or more of their cores, for {} requests and {} handshakes per second: the gateway is at its limit.",
        percent(least.min(1.0)),
        sum(|lane| lane.requests),
        sum(|lane| lane.handshakes)
    );
    Some(Finding { kind: "full_lanes", critical: true, text, ..Finding::default() })
}

/// Whether a limit refuses clients at the moment because there is too much of something. That a rule refuses strangers is its task.
fn refuses(limit: &LimitStatus) -> bool {
    let is_rule = ["allow or deny", "forward_auth", "wrong password", "too slow", "memory"];
    let at_once = limit.what.starts_with("accept paused") || limit.what.contains("503");
    !is_rule.iter().any(|rule| limit.what.contains(rule)) && limit.last_minute >= if at_once { 1 } else { MANY_REFUSED }
}

fn limits_refuse(facts: &Facts<'_>) -> bool {
    facts.limits.iter().any(refuses)
}

/// One client with most of the requests is a problem only where others suffer from it: limits refuse, or lanes are busy.
fn heavy_client(facts: &Facts<'_>) -> Option<Finding> {
    let talkers = facts.talkers?;
    let is_busy =
        facts.recent.as_ref().is_some_and(|recent| recent.lanes.iter().any(|l| l.cpu.is_some_and(|cpu| cpu >= BUSY)));
    if !is_busy && !limits_refuse(facts) {
        return None;
    }
    let (address, load) = talkers.clients.first()?;
    let part = load.requests / talkers.requests.max(1e-9);
    if load.requests < SOME || part < MOST || talkers.clients.len() < 2 {
        return None;
    }
    let text = format!(
        "One heavy client makes {} of the sampled requests: {} per second, on {} open connection{}. The other clients in the sample \
         together make {} per second.",
        percent(part.min(1.0)),
        number(load.requests),
        number(load.connections as f64),
        if load.connections == 1 { "" } else { "s" },
        number((talkers.requests - load.requests).max(0.0))
    );
    Some(Finding { kind: "heavy_client", subject: address.to_string(), critical: false, text, client: Some(*address) })
}

/// The part of the segments that was lost, where it is much.
fn lost_part(recent: &Recent) -> Option<f64> {
    let segments = recent.segments?;
    let part = segments.retransmitted as f64 / (segments.sent.max(1)) as f64;
    (segments.sent >= ENOUGH_PACKETS && segments.retransmitted >= ENOUGH_LOST && part >= LOSSY).then_some(part.min(1.0))
}

fn packet_loss(facts: &Facts<'_>, recent: &Recent) -> Option<Finding> {
    let part = lost_part(recent)?;
    let losses = facts.talkers.map_or(&[][..], |talkers| &talkers.losses);
    let told = || losses.iter().filter(|loss| loss.sent >= 20);
    // Clients that are not accepted send again, too: then only the gateway's connections show that the network loses packets.
    let are_waiting = facts.memory.short || refused(facts, "accept paused") > 0;
    let has_loss = told().any(|loss| loss.lost > 0);
    if are_waiting && !has_loss {
        return None;
    }
    // Who does not answer a SYN has it sent again, too, and this is on no open connection.
    let what = if has_loss { "Packets are lost in the network" } else { "Packets are not acknowledged" };
    let mut text = format!(
        "{what}: {} of the TCP segments of this network namespace were sent again in the last {:.0} s.",
        percent(part),
        recent.seconds
    );
    for loss in told().take(3) {
        let whose = match &loss.server {
            None => "to clients".to_owned(),
            Some((upstream, server)) => format!("to server {server} of upstream \"{upstream}\""),
        };
        text.push_str(&format!(" Retransmitted {whose}: {}.", percent(loss.lost as f64 / loss.sent as f64)));
    }
    text.push_str(match (has_loss, told().next()) {
        (true, _) => " The packet loss makes requests slow.",
        (false, Some(_)) => {
            " Open connections show no loss: a server or client that does not answer connection attempts is the usual cause."
        }
        (false, None) => {
            " Either the network loses packets, or a server or client does not answer connection attempts."
        }
    });
    Some(Finding { kind: "packet_loss", critical: true, text, ..Finding::default() })
}

/// A limit of the last minute, by the beginning of its words.
fn refused(facts: &Facts<'_>, what: &str) -> u64 {
    facts.limits.iter().filter(|limit| limit.what.starts_with(what)).map(|limit| limit.last_minute).sum()
}

fn memory(facts: &Facts<'_>) -> Option<Finding> {
    let resets = refused(facts, "connections reset: the memory limit");
    let paused = refused(facts, "accept paused: max_memory");
    if !facts.memory.short && resets + paused == 0 {
        return None;
    }
    let mib = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), |bytes| number((bytes >> 20) as f64));
    let (held, limit) = (mib(facts.memory.held), mib(facts.memory.limit));
    let mut text = if facts.memory.short {
        format!(
            "The memory limit is reached: {held} MiB are in use, and max_memory is {limit} MiB. New connections wait until less memory is \
             in use."
        )
    } else {
        format!(
            "The memory limit was reached in the last minute (max_memory is {limit} MiB; {held} MiB are in use now)."
        )
    };
    if !facts.memory.short && paused > 0 {
        text.push_str(" New connections had to wait.");
    }
    if resets > 0 {
        text.push_str(&format!(
            " In the last minute, {} connections that held the most memory (usually of clients that read slowly) were reset.",
            number(resets as f64)
        ));
    }
    Some(Finding { kind: "memory", critical: true, text, ..Finding::default() })
}

/// What else refuses clients now.
fn limits(facts: &Facts<'_>) -> Vec<Finding> {
    let mut now: Vec<(&str, u64)> = facts
        .limits
        .iter()
        .filter(|limit| refuses(limit))
        .map(|limit| (limit.what.as_str(), limit.last_minute))
        .collect();
    if now.is_empty() {
        return Vec::new();
    }
    now.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let list: Vec<String> =
        now.iter().take(3).map(|(what, count)| format!("{what} ({})", number(*count as f64))).collect();
    let text = format!("Limits have refused clients in the last minute: {}.", list.join("; "));
    vec![Finding { kind: "limits", critical: false, text, ..Finding::default() }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::sampler::OperationStatus;
    use crate::metrics::talkers::{Busiest, Load};
    use crate::run::memory::MemoryUse;
    use sealane_lane::histogram::{Distribution, Histogram};
    use sealane_proxy::ConnectionId;
    use sealane_proxy::talkers::PacketLoss;
    use sealane_sys::segments::Segments;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn lanes(cpu: &[f64]) -> Recent {
        let lane = |cpu: &f64| LaneWork { cpu: Some(*cpu), requests: 1000, handshakes: 10 };
        Recent { seconds: 10.0, lanes: cpu.iter().map(lane).collect(), ..Recent::default() }
    }

    fn only(facts: &Facts<'_>) -> Finding {
        let found = find(facts);
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_iter().next().unwrap()
    }

    fn limit(what: &str, last_minute: u64) -> LimitStatus {
        LimitStatus { what: what.to_owned(), last_minute, total: last_minute }
    }

    #[test]
    fn a_flood_of_handshakes_is_told_with_what_it_costs() {
        let waits = Histogram::default();
        (0..100).for_each(|_| waits.record(250_000));
        let mut admission = Distribution::default();
        admission.add(&waits);
        let recent = Recent { full: 5000, waiting: 40, admission, ..lanes(&[0.9, 0.9]) };
        let operations =
            [OperationStatus { operation: "handshake_full_rsa".into(), seconds: Some(0.003), error: Some(1e-5) }];
        let load = |accepted| Load { accepted, ..Load::default() };
        let talkers = Talkers {
            accepted: 500.0,
            clients: vec![(address(1), load(450.0)), (address(2), load(50.0))],
            ..Talkers::default()
        };
        let facts =
            Facts { recent: Some(recent), operations: &operations, talkers: Some(&talkers), ..Facts::default() };
        let finding = find(&facts).into_iter().find(|finding| finding.kind == "handshakes").unwrap();
        for part in ["Handshake flood", "250 ms", "500 full", "40 clients wait", "83 %", "90 % of the new connections"]
        {
            assert!(finding.text.contains(part), "{part}: {finding:?}");
        }
        assert_eq!(finding.client, Some(address(1)));
        assert!(needs_talkers(&facts) && !needs_talkers(&Facts::default()));
        // That one waited is no flood.
        let recent = facts.recent.map(|recent| Recent { full: 3, waiting: 0, lanes: Vec::new(), ..recent });
        assert_eq!(find(&Facts { recent, ..Facts::default() }), []);
    }

    #[test]
    fn a_lane_that_one_connection_keeps_busy_is_told() {
        let one = Busiest { id: ConnectionId::default(), address: address(7), requests: 980.0 };
        let talkers = Talkers { lanes: [(1, (1000.0, Some(one)))].into(), ..Talkers::default() };
        let finding = only(&Facts { recent: Some(lanes(&[0.04, 0.97])), talkers: Some(&talkers), ..Facts::default() });
        for part in ["Lane 1 uses 97 %", "the other lane about 4.0 %", "One hot connection", "98 %", "980 per second"] {
            assert!(finding.text.contains(part), "{part}: {finding:?}");
        }
        assert_eq!((finding.kind, finding.client), ("busy_lane", Some(address(7))));
        let without = only(&Facts { recent: Some(lanes(&[0.04, 0.97])), ..Facts::default() });
        assert!(without.text.contains("a few busy connections") && without.client.is_none(), "{without:?}");
        for balanced in [&[0.6, 0.5][..], &[0.3, 0.01], &[0.97]] {
            assert_eq!(find(&Facts { recent: Some(lanes(balanced)), ..Facts::default() }), []);
        }
        assert_eq!(only(&Facts { recent: Some(lanes(&[0.95, 0.96])), ..Facts::default() }).kind, "full_lanes");
        // Of a lane whose CPU time is not known, nothing is said, and nothing of all lanes.
        for cpu in [&[0.95, 0.96, 0.0][..], &[0.04, 0.97, 0.0]] {
            let mut recent = lanes(cpu);
            recent.lanes[2].cpu = None;
            assert_eq!(find(&Facts { recent: Some(recent), ..Facts::default() }), []);
        }
    }

    #[test]
    fn a_client_with_most_requests_is_a_problem_where_others_suffer() {
        let load = |requests| Load { connections: 3, requests, accepted: 0.0 };
        let talkers = Talkers {
            requests: 1000.0,
            clients: vec![(address(9), load(930.0)), (address(2), load(70.0))],
            ..Talkers::default()
        };
        let facts = Facts { talkers: Some(&talkers), ..Facts::default() };
        assert_eq!(find(&facts), [], "a proxy may be the only client");
        let limits = [limit("requests refused: rate_limit", 400)];
        let found = find(&Facts { limits: &limits, ..facts });
        assert_eq!(found.iter().map(|f| f.kind).collect::<Vec<_>>(), ["heavy_client", "limits"]);
        assert!(found[0].text.contains("93 % of the sampled requests: 930 per second"), "{found:?}");
        assert!(found[0].text.contains("on 3 open connections."), "{found:?}");
        assert!(found[1].text.contains("rate_limit (400)"), "{found:?}");
        let one = Load { connections: 1, ..load(930.0) };
        let alone = Talkers { clients: vec![(address(9), one), (address(2), load(70.0))], ..talkers.clone() };
        let found = find(&Facts { limits: &limits, talkers: Some(&alone), ..Facts::default() });
        assert!(found[0].text.contains("on 1 open connection. The other"), "{found:?}");
        // What rules refuse is no problem, nor is one client that came too fast.
        let limits = [limit("requests refused: allow or deny", 400), limit("requests refused: rate_limit", 1)];
        assert_eq!(find(&Facts { limits: &limits, talkers: Some(&talkers), ..Facts::default() }), []);
        let limits = [limit("accept paused: no file descriptors", 1)];
        assert_eq!(find(&Facts { limits: &limits, ..Facts::default() })[0].kind, "limits");
    }

    #[test]
    fn lost_packets_are_told_with_the_side_that_loses_them() {
        let recent = Recent { segments: Some(Segments { sent: 1000, retransmitted: 50 }), ..lanes(&[0.1]) };
        let server = Some(("app".to_owned(), "10.0.0.3:80".to_owned()));
        let losses = vec![PacketLoss { server: None, sent: 900, lost: 50 }, PacketLoss { server, sent: 100, lost: 0 }];
        let talkers = Talkers { losses, ..Talkers::default() };
        let finding = only(&Facts { recent: Some(recent.clone()), talkers: Some(&talkers), ..Facts::default() });
        for part in [
            "Packets are lost in the network: 5.0 % of the TCP segments",
            "Retransmitted to clients: 5.6 %",
            "server 10.0.0.3:80 of upstream \"app\": 0.0 %. The packet loss makes requests slow.",
        ] {
            assert!(finding.text.contains(part), "{part}: {finding:?}");
        }
        // A server that answers no SYN: open connections lose nothing, or there is none.
        for (losses, end) in [
            (vec![PacketLoss { server: None, sent: 900, lost: 0 }], "is the usual cause."),
            (
                Vec::new(),
                "Either the network loses packets, or a server or client does not answer connection attempts.",
            ),
        ] {
            let talkers = Talkers { losses, ..Talkers::default() };
            let finding = only(&Facts { recent: Some(recent.clone()), talkers: Some(&talkers), ..Facts::default() });
            assert!(!finding.text.contains("are lost") && finding.text.ends_with(end), "{finding:?}");
        }
        // Clients that are not accepted send again, too: then the gateway's own connections decide.
        let limits = [limit("accept paused: max_memory", 1)];
        let kinds = |talkers| {
            let recent = Some(recent.clone());
            find(&Facts { recent, limits: &limits, talkers, ..Facts::default() })
                .iter()
                .map(|f| f.kind)
                .collect::<Vec<_>>()
        };
        assert_eq!((kinds(None), kinds(Some(&talkers))), (vec!["memory"], vec!["packet_loss", "memory"]));
        let few = Recent { segments: Some(Segments { sent: 100, retransmitted: 9 }), ..recent };
        assert_eq!(find(&Facts { recent: Some(few), ..Facts::default() }), []);
    }

    #[test]
    fn the_memory_limit_is_told_with_who_was_reset() {
        let memory = MemoryUse { short: true, held: Some(71 << 20), limit: Some(64 << 20) };
        let limits =
            [limit("connections reset: the memory limit is reached", 12), limit("accept paused: max_memory", 3)];
        let finding = only(&Facts { memory, limits: &limits, ..Facts::default() });
        for part in ["71 MiB are in use", "max_memory is 64 MiB", "New connections wait", "12 connections"] {
            assert!(finding.text.contains(part), "{part}: {finding:?}");
        }
        // The limit is no longer reached.
        let memory = MemoryUse { short: false, held: Some(41 << 20), ..memory };
        let finding = only(&Facts { memory, limits: &limits, ..Facts::default() });
        for part in ["was reached in the last minute", "41 MiB are in use now", "had to wait", "12 connections"] {
            assert!(finding.text.contains(part), "{part}: {finding:?}");
        }
        let finding = only(&Facts { memory, limits: &limits[..1], ..Facts::default() });
        assert!(!finding.text.contains("wait"), "{finding:?}");
    }
}
