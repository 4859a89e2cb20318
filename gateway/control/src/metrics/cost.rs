//! The CPU time that operations cost, while the gateway runs.
//!
//! Lanes measure nothing for this: the kernel knows how long each thread was on a core, and lanes count their operations anyway. Once
//! a second, control notes for each lane how much of both there was. As the numbers of operations vary from second to second, and
//! from lane to lane, a regression finds what each kind costs ([`Regression`]). It says how sure it is, and nothing where it is not.
//!
//! What an operation costs is all that its lane does for it: a request has the work for its connection to the server and for its body,
//! a handshake the work for its connection.

use crate::metrics::process::ThreadTimes;
use crate::metrics::regression::{Estimate, Regression};
use sealane_lane::histogram::Distribution;
use sealane_proxy::counters::{Count, Counters};
use std::sync::Arc;

/// The kinds of operations: the label `operation`.
pub const OPERATIONS: [&str; 9] = [
    "handshake_full_ecdsa",
    "handshake_full_rsa",
    "handshake_full_ed25519",
    "handshake_full_ml_dsa",
    "handshake_resumed",
    "request_http1",
    "request_http2",
    "request_http3",
    "tunnel_packet",
];
/// Those that lanes of the proxy do; the last one is the tunnel's.
const OF_LANES: usize = OPERATIONS.len() - 1;
/// What costs time, too: connections without TLS, and each second in which nothing happens.
const COLUMNS: usize = OF_LANES + 2;
const PLAIN_CONNECTIONS: usize = OF_LANES;
const SECONDS: usize = OF_LANES + 1;

/// About what a lane's columns cost, in seconds: from this and the numbers of operations follows how far the time of a second may be from
/// what is expected. That all are twice as much somewhere changes nothing; that their ratios differ makes results less certain, but no
/// less right.
const ABOUT: [f64; COLUMNS] = [500e-6, 1200e-6, 500e-6, 800e-6, 150e-6, 40e-6, 40e-6, 60e-6, 30e-6, 0.001];
/// The same of packets of the tunnel, and of a second.
const ABOUT_TUNNEL: [f64; 2] = [5e-6, 0.001];

/// After so many seconds, a second has half its weight: a value follows a change within the hour.
const HALF_LIFE: f64 = 1200.0;
/// What happened in a longer time (the machine was asleep) is left out.
const LONGEST: f64 = 10.0;

/// What a lane has done so far, and the time that its thread has been on a core.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Done {
    cpu: f64,
    operations: [u64; OF_LANES],
    plain_connections: u64,
}

impl Done {
    /// `requests`: those of HTTP/1, HTTP/2 and HTTP/3.
    fn of(counters: &Counters, requests: [u64; 3], cpu: f64) -> Self {
        let c = counters;
        let resumed = c.value(Count::ResumedTls13) + c.value(Count::ResumedTls12);
        let [http1, http2, http3] = requests;
        let full = [Count::FullEcdsa, Count::FullRsa, Count::FullEd25519, Count::FullMlDsa].map(|key| c.value(key));
        let operations = [full[0], full[1], full[2], full[3], resumed, http1, http2, http3];
        let handshakes = c.value(Count::FullTls13) + c.value(Count::FullTls12) + resumed;
        Self { cpu, operations, plain_connections: c.value(Count::Accepted).saturating_sub(handshakes) }
    }

    /// What was done since; `None` where counters have begun again, as those of a host do that has left the configuration.
    fn since(&self, earlier: &Self, seconds: f64) -> Option<(f64, [f64; COLUMNS])> {
        let mut row = [0.0; COLUMNS];
        for (i, (now, then)) in self.operations.iter().zip(&earlier.operations).enumerate() {
            row[i] = now.checked_sub(*then)? as f64;
        }
        // A handshake that is not over looks like a connection without one, for a moment.
        row[PLAIN_CONNECTIONS] = self.plain_connections.saturating_sub(earlier.plain_connections) as f64;
        row[SECONDS] = seconds;
        Some((self.cpu - earlier.cpu, row))
    }
}

/// What the tunnel's data plane has done so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Packets {
    cpu: f64,
    packets: u64,
    /// When, in seconds.
    at: f64,
}

/// The regressions, and what was read last.
#[derive(Debug)]
pub struct CpuCosts {
    lanes: Regression<COLUMNS>,
    tunnel: Regression<2>,
    last: Vec<Option<Done>>,
    last_at: f64,
    last_packets: Option<Packets>,
}

impl CpuCosts {
    /// For so many lanes.
    pub fn new(lanes: usize) -> Self {
        Self {
            lanes: Regression::new(HALF_LIFE * lanes.max(1) as f64, ABOUT),
            tunnel: Regression::new(HALF_LIFE, ABOUT_TUNNEL),
            last: vec![None; lanes],
            last_at: 0.0,
            last_packets: None,
        }
    }

    /// Takes what the lanes have done until `at`, in seconds. `requests` are those of each lane by version, `packets` those of the
    /// tunnel's data plane in this process.
    pub fn look(
        &mut self,
        at: f64,
        lanes: &[Arc<Counters>],
        requests: &[[u64; 3]],
        packets: Option<u64>,
        times: &ThreadTimes,
    ) {
        let seconds = at - std::mem::replace(&mut self.last_at, at);
        let is_short = seconds > 0.0 && seconds <= LONGEST;
        for (slot, counters) in lanes.iter().enumerate() {
            let requests = requests.get(slot).copied().unwrap_or_default();
            let done = times.lanes.get(&slot).map(|cpu| Done::of(counters, requests, *cpu));
            let Some(last) = self.last.get_mut(slot) else { continue };
            if let (true, Some(done), Some(earlier)) = (is_short, &done, last.as_ref())
                && let Some((cpu, row)) = done.since(earlier, seconds)
            {
                self.lanes.add(cpu, row);
            }
            *last = done;
        }
        let (Some(packets), Some(cpu)) = (packets, times.tunnel) else { return };
        let now = Packets { cpu, packets, at };
        match self.last_packets {
            // The tunnel says now and then what it has done: time until then belongs to the packets that it tells next.
            Some(last) if last.packets == packets && at - last.at < LONGEST => {}
            last => {
                if let Some(last) = last
                    && let Some(n) = packets.checked_sub(last.packets)
                {
                    self.tunnel.add(cpu - last.cpu, [n as f64, at - last.at]);
                }
                self.last_packets = Some(now);
            }
        }
    }

    /// The requests of the next look are not to be compared with those of the last one: a host has left the configuration, whose requests
    /// are not among them any more.
    pub fn forget_last_requests(&mut self) {
        self.last.fill(None);
    }

    /// What the operations cost, in the order of [`OPERATIONS`].
    pub fn estimates(&self) -> [Option<Estimate>; OPERATIONS.len()] {
        let (lanes, tunnel) = (self.lanes.estimates(), self.tunnel.estimates());
        std::array::from_fn(|i| if i < OF_LANES { lanes[i] } else { tunnel[0] })
    }

    /// How many rows of lanes there were, as long as they are few.
    #[cfg(test)]
    pub fn rows(&self) -> u64 {
        self.lanes.rows().round() as u64
    }
}

/// The number of the version's column for a series' label `protocol`, which is its index in [`PROTOCOLS`].
///
/// [`PROTOCOLS`]: sealane_proxy::latency::PROTOCOLS
pub fn add_requests(requests: &mut [[u64; 3]], slot: usize, protocol: usize, durations: &Distribution) {
    if let Some(count) = requests.get_mut(slot).and_then(|lane| lane.get_mut(protocol)) {
        *count += durations.count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn times(lanes: &[f64], tunnel: Option<f64>) -> ThreadTimes {
        ThreadTimes { lanes: lanes.iter().copied().enumerate().collect::<BTreeMap<_, _>>(), tunnel }
    }

    /// Requests that cost 50 µs and handshakes of 400 µs, in numbers that vary.
    #[test]
    fn two_lanes_tell_what_operations_cost() {
        let lanes: Vec<Arc<Counters>> = vec![Arc::default(), Arc::default()];
        let mut costs = CpuCosts::new(2);
        let (mut cpu, mut requests) = ([0.0; 2], [[0u64; 3]; 2]);
        for second in 0..120u64 {
            for lane in 0..2u64 {
                let (handshakes, asked) = ((second * 37 + lane * 11) % 100, (second * 101 + lane * 59) % 1500);
                let counters = &lanes[lane as usize];
                counters.add(Count::FullEcdsa, handshakes);
                counters.add(Count::FullTls13, handshakes);
                counters.add(Count::Accepted, handshakes);
                requests[lane as usize][0] += asked;
                cpu[lane as usize] += handshakes as f64 * 400e-6 + asked as f64 * 50e-6 + 0.001;
            }
            assert!(second > 5 || costs.estimates().iter().all(Option::is_none), "nothing is known yet");
            costs.look(second as f64, &lanes, &requests, None, &times(&cpu, None));
        }
        let found = costs.estimates();
        let near = |i: usize, cost: f64| found[i].is_some_and(|e: Estimate| (e.cost - cost).abs() < 0.05 * cost);
        assert!(near(0, 400e-6) && near(5, 50e-6), "{found:?}");
        assert_eq!(found.iter().flatten().count(), 2, "{found:?}");
    }

    /// Each counter belongs to its own kind: no two kinds have the same cost.
    #[test]
    fn every_kind_of_operation_is_told_from_the_others() {
        const COSTS: [f64; OPERATIONS.len()] = [450e-6, 1300e-6, 350e-6, 700e-6, 120e-6, 30e-6, 50e-6, 80e-6, 4e-6];
        const MOST: [u64; OPERATIONS.len()] = [100, 50, 100, 60, 300, 3000, 2000, 1000, 50_000];
        let lanes: Vec<Arc<Counters>> = vec![Arc::default()];
        let mut costs = CpuCosts::new(1);
        let (mut cpu, mut tunnel, mut packets, mut requests, mut seed) = (0.0, 0.0, 0, [[0u64; 3]], 1u64);
        for second in 0..200u64 {
            let n = MOST.map(|most| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) % most
            });
            for (kind, key, version) in [
                (0, Count::FullEcdsa, Count::FullTls13),
                (1, Count::FullRsa, Count::FullTls12),
                (2, Count::FullEd25519, Count::FullTls13),
                (3, Count::FullMlDsa, Count::FullTls13),
            ] {
                lanes[0].add(key, n[kind]);
                lanes[0].add(version, n[kind]);
            }
            lanes[0].add(Count::ResumedTls13, n[4] / 2);
            lanes[0].add(Count::ResumedTls12, n[4] - n[4] / 2);
            lanes[0].add(Count::Accepted, n[..5].iter().sum());
            requests[0].iter_mut().zip(&n[5..8]).for_each(|(all, n)| *all += n);
            packets += n[8];
            cpu += 0.001 + n[..OF_LANES].iter().zip(COSTS).map(|(n, cost)| *n as f64 * cost).sum::<f64>();
            tunnel += 0.001 + n[8] as f64 * COSTS[8];
            costs.look(second as f64, &lanes, &requests, Some(packets), &times(&[cpu], Some(tunnel)));
        }
        for ((found, cost), operation) in costs.estimates().into_iter().zip(COSTS).zip(OPERATIONS) {
            let is_right = |e: Estimate| (e.cost - cost).abs() < 0.05 * cost && e.error < 0.05 * cost;
            assert!(found.is_some_and(is_right), "{operation}: {found:?}");
        }
    }

    #[test]
    fn what_begins_again_and_long_pauses_are_left_out() {
        let lanes: Vec<Arc<Counters>> = vec![Arc::default()];
        let mut costs = CpuCosts::new(1);
        let rows = |costs: &CpuCosts| format!("{:?}", costs.lanes);
        costs.look(1.0, &lanes, &[[100, 0, 0]], None, &times(&[0.5], None));
        let before = rows(&costs);
        costs.look(2.0, &lanes, &[[50, 0, 0]], None, &times(&[0.6], None));
        costs.look(100.0, &lanes, &[[5000, 0, 0]], None, &times(&[9.0], None));
        costs.look(101.0, &lanes, &[[5100, 0, 0]], None, &times(&[], None));
        assert_eq!(rows(&costs), before);
        costs.look(102.0, &lanes, &[[5200, 0, 0]], None, &times(&[9.1], None));
        costs.look(103.0, &lanes, &[[5300, 0, 0]], None, &times(&[9.2], None));
        assert_ne!(rows(&costs), before);
    }

    #[test]
    fn packets_of_the_tunnel_are_told_now_and_then() {
        let mut costs = CpuCosts::new(0);
        let (mut cpu, mut packets, mut told) = (0.0, 0, 0);
        for second in 0..400u64 {
            let now = (second * 7919) % 50_000;
            packets += now;
            cpu += now as f64 * 3e-6 + 0.002;
            if second % 5 == 0 {
                told = packets;
            }
            costs.look(second as f64, &[], &[], Some(told), &times(&[], Some(cpu)));
        }
        let found = costs.estimates()[8].expect("it is determined");
        assert!((found.cost - 3e-6).abs() < 0.05 * 3e-6, "{found:?}");
    }
}
