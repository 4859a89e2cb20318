//! What control reads from the lanes' counters once a second: for the costs of operations, the history, and what happened lately.
//!
//! Lanes notice nothing of it. It takes at most a hundredth of control's time: with very many hosts it is done less often. All that is
//! kept is below 8 MiB: the history's rings, eleven distributions for each of `MAX_PLACES` places, and what `window` has.

use crate::metrics::cost::CpuCosts;
use crate::metrics::history::{HEAT, History, Point, SERIES, VALUES, heat_of};
use crate::metrics::latency::{Labels, Latencies, Look, PlaceSums};
use crate::metrics::process::ThreadTimes;
use crate::metrics::window::{Moment, Waits, Window};
use crate::vpn::status::Status as TunnelStatus;
use sealane_lane::histogram::Distribution;
use sealane_proxy::counters::{Count, Counters};
use sealane_sys::segments::Segments;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How often it is looked, in seconds.
const EVERY: f64 = 1.0;
/// The part of the time that looking may take.
const SHARE: f64 = 0.01;
/// Places (host, route, upstream) whose latest minutes are known.
const MAX_PLACES: usize = 400;
/// The seconds between two looks at a place that are kept, and how many are kept: five minutes.
const PLACE_EVERY: f64 = 30.0;
const PLACE_LOOKS: usize = 10;
/// How long limits are looked back at.
const MINUTE: f64 = 60.0;

/// What refuses clients, in words, and the counters of how often it did.
type Limit = (&'static str, &'static [Count]);

const LIMITS: [Limit; 22] = [
    ("requests refused: rate_limit", &[Count::RateLimited]),
    ("connections refused: rate limit for connections", &[Count::ConnectionsLimited]),
    ("connections refused: the client has too many open connections", &[Count::ClientsLimited]),
    ("requests refused: the client has too many open requests", &[Count::RequestsLimited]),
    ("handshakes refused: rate limit for handshakes", &[Count::HandshakesLimited]),
    ("connections refused: allow or deny", &[Count::ConnectionsDenied]),
    ("requests refused: allow or deny", &[Count::RequestsDenied, Count::CertificatesDenied, Count::HeadersDenied]),
    ("relayed connections refused: allow or deny", &[Count::RelaysDenied]),
    ("requests refused by the server of forward_auth", &[Count::NotAdmitted]),
    ("requests refused: wrong password (basic_auth)", &[Count::PasswordsWrong]),
    ("requests refused: the user is not in allow_users (basic_auth)", &[Count::UsersForbidden]),
    ("requests refused: too many wrong passwords (basic_auth)", &[Count::PasswordsThrottled]),
    ("requests answered 503: all servers are full", &[Count::QueueFull, Count::QueueTimeouts]),
    ("requests answered 503: no server can be used", &[Count::NoServer]),
    ("accept paused: max_connections", &[Count::PausedConnections]),
    ("accept paused: max_memory", &[Count::PausedMemory]),
    ("accept paused: no file descriptors", &[Count::PausedDescriptors]),
    ("connections reset: the memory limit is reached", &[Count::MemoryResets]),
    ("bodies stopped: the client is too slow (min_body_rate)", &[Count::SlowClients]),
    ("connections closed: the client is too slow", &[Count::ClientTimeouts]),
    ("HTTP/2 connections closed: flood", &[Count::H2Floods]),
    ("QUIC connections refused: a limit is reached", &[Count::QuicRefused]),
];

/// What refuses clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitStatus {
    /// In words.
    pub what: String,
    /// How often in the last minute.
    pub last_minute: u64,
    /// How often since the start.
    pub total: u64,
}

/// What a kind of operation costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationStatus {
    /// As the label of the metric.
    pub operation: String,
    /// CPU time of one, in seconds; `None`: what was measured does not determine it.
    pub seconds: Option<f64>,
    /// The standard error, in seconds.
    pub error: Option<f64>,
}

/// How requests to a host or a route went in the last five minutes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlaceStatus {
    /// The host's first name as configured, `(none)`, or `(other)`.
    pub host: String,
    /// The route's name or pattern; empty for a host without routes.
    pub route: String,
    /// The upstream; empty where the gateway answers itself.
    pub upstream: String,
    /// Requests since the start.
    pub requests: u64,
    /// The seconds that the rest is about.
    pub seconds: f64,
    /// Requests per second.
    pub per_second: f64,
    /// The part of the requests that got 4xx, from 0 to 1.
    pub part_4xx: f64,
    /// The part of the requests that got 5xx.
    pub part_5xx: f64,
    /// The median of their durations, in seconds; `None` without requests.
    pub p50: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

/// All counts of the lanes that the history has.
#[derive(Clone, Debug, Default)]
struct Totals {
    at: f64,
    cpu: f64,
    requests: u64,
    errors_4xx: u64,
    errors_5xx: u64,
    full: u64,
    resumed: u64,
    open: u64,
    sent: u64,
    refused: u64,
    durations: Distribution,
}

impl Totals {
    fn read(at: f64, lanes: &[Arc<Counters>], times: &ThreadTimes, durations: Distribution) -> Self {
        let sum = |of: fn(&Counters) -> u64| lanes.iter().map(|lane| of(lane)).sum::<u64>();
        Self {
            at,
            cpu: times.lanes.values().sum(),
            requests: sum(|c| c.value(Count::Requests)),
            errors_4xx: sum(|c| c.value(Count::Status4xx)),
            errors_5xx: sum(|c| c.value(Count::Status5xx)),
            full: sum(|c| c.value(Count::FullTls13) + c.value(Count::FullTls12)),
            resumed: sum(|c| c.value(Count::ResumedTls13) + c.value(Count::ResumedTls12)),
            open: sum(|c| c.value(Count::Open)),
            sent: sum(|c| c.value(Count::ResponseBytes) + c.value(Count::RelayedDown)),
            refused: LIMITS.iter().map(|(_, counts)| total(lanes, counts)).sum(),
            durations,
        }
    }

    /// What has happened since an earlier look, without the costs of operations. `has_fallen`: durations that were counted then are not
    /// counted any more, so nothing can be said of those that have come.
    fn since(&self, earlier: &Self, has_fallen: bool) -> ([f32; SERIES.len()], [u32; HEAT]) {
        let seconds = (self.at - earlier.at).max(0.001);
        let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as f32;
        let cpu = (self.cpu - earlier.cpu).max(0.0);
        let requests = self.requests.saturating_sub(earlier.requests);
        let durations = match has_fallen {
            true => Distribution::default(),
            false => self.durations.since(&earlier.durations),
        };
        let quantile = |part| durations.quantile(part).map_or(f32::NAN, |micros| (micros as f64 / 1e6) as f32);
        let values = [
            rate(self.requests, earlier.requests),
            rate(self.errors_4xx, earlier.errors_4xx),
            rate(self.errors_5xx, earlier.errors_5xx),
            rate(self.full, earlier.full),
            rate(self.resumed, earlier.resumed),
            (cpu / seconds) as f32,
            if requests > 0 { (cpu * 1e6 / requests as f64) as f32 } else { f32::NAN },
            self.open as f32,
            rate(self.sent, earlier.sent),
            rate(self.refused, earlier.refused),
            quantile(0.5),
            quantile(0.99),
        ];
        (values, heat_of(&durations))
    }
}

/// The looks at a place of the last minutes, the oldest first.
#[derive(Debug, Default)]
struct Place {
    looks: VecDeque<(f64, PlaceSums)>,
    newest: (f64, PlaceSums),
}

impl Place {
    fn look(&mut self, at: f64, sums: PlaceSums) {
        if self.looks.back().is_none_or(|(last, _)| at - last >= PLACE_EVERY) {
            if self.looks.len() > PLACE_LOOKS {
                self.looks.pop_front();
            }
            self.looks.push_back((at, sums.clone()));
        }
        self.newest = (at, sums);
    }

    fn status(&self, labels: &Labels) -> PlaceStatus {
        let (at, newest) = &self.newest;
        let empty = PlaceSums::default();
        // Until there are two looks, all that is known is new.
        let oldest = self.looks.front().filter(|(then, _)| then < at);
        let (then, oldest) = oldest.map_or((*at - EVERY, &empty), |(then, sums)| (*then, sums));
        let durations = newest.durations.since(&oldest.durations);
        let class = |class: usize| newest.classes[class].saturating_sub(oldest.classes[class]);
        let all: u64 = (0..newest.classes.len()).map(class).sum();
        let part = |n: u64| if all > 0 { n as f64 / all as f64 } else { 0.0 };
        let quantile = |part| durations.quantile(part).map(|micros| micros as f64 / 1e6);
        let seconds = (at - then).max(EVERY);
        PlaceStatus {
            host: labels.host.clone(),
            route: labels.route.clone(),
            upstream: labels.upstream.clone(),
            requests: newest.classes.iter().sum(),
            seconds,
            per_second: all as f64 / seconds,
            part_4xx: part(class(3)),
            part_5xx: part(class(4)),
            p50: quantile(0.5),
            p99: quantile(0.99),
        }
    }
}

/// All that is remembered of what was read.
#[derive(Debug)]
pub struct Sampler {
    started: Instant,
    /// Not before this time.
    next: f64,
    last: Totals,
    /// What the operations of lanes and the tunnel cost.
    pub costs: CpuCosts,
    /// What was measured in the last day.
    pub history: History,
    limits: VecDeque<(f64, [u64; LIMITS.len()])>,
    places: BTreeMap<Labels, Place>,
    /// How many durations each place had at the last look.
    counts: BTreeMap<Labels, u64>,
    /// What lanes have done in the last seconds.
    pub window: Window,
    /// How long servers took lately.
    pub waits: Waits,
}

impl Sampler {
    /// For so many lanes.
    pub fn new(lanes: usize) -> Self {
        Self {
            started: Instant::now(),
            next: 0.0,
            // Counters begin with the process.
            last: Totals::default(),
            costs: CpuCosts::new(lanes),
            history: History::default(),
            limits: VecDeque::new(),
            places: BTreeMap::new(),
            counts: BTreeMap::new(),
            window: Window::default(),
            waits: Waits::default(),
        }
    }

    /// Reads what there is, if it is time to; returns whether it was.
    pub fn look(
        &mut self,
        lanes: &[Arc<Counters>],
        latencies: &Latencies,
        tunnel: impl FnOnce() -> Option<TunnelStatus>,
    ) -> bool {
        let at = self.started.elapsed().as_secs_f64();
        if at < self.next {
            return false;
        }
        let times = ThreadTimes::read();
        let mut look = latencies.look();
        self.window.add(Moment::read(at, lanes, &times, Segments::read()));
        self.waits.look(at, std::mem::take(&mut look.waits));
        // Of the data plane in this process, which has lanes.
        let packets = times.tunnel.and_then(|_| tunnel()).map(|status| packets_of(&status));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.take((at, now), lanes, look, packets, &times);
        let took = self.started.elapsed().as_secs_f64() - at;
        self.next = next_look(self.next, at, took);
        true
    }

    /// Takes what was read `at` so many seconds since the start, which is `now` in seconds since 1970.
    fn take(
        &mut self,
        (at, now): (f64, u64),
        lanes: &[Arc<Counters>],
        look: Look,
        packets: Option<u64>,
        times: &ThreadTimes,
    ) {
        let has_fallen = self.has_fallen(&look.places);
        if has_fallen {
            // Its requests are less than those that there were.
            self.costs.forget_last_requests();
        }
        self.costs.look(at, lanes, &look.requests, packets, times);
        self.look_at_places(at, look.places);
        self.look_at_limits(at, lanes);
        let totals = Totals::read(at, lanes, times, look.durations);
        let (measured, heat) = totals.since(&self.last, has_fallen);
        let mut values = [f32::NAN; VALUES];
        values[..SERIES.len()].copy_from_slice(&measured);
        for (value, estimate) in values[SERIES.len()..].iter_mut().zip(self.costs.estimates()) {
            *value = estimate.map_or(f32::NAN, |estimate| (estimate.cost * 1e6) as f32);
        }
        self.history.add(&Point { at: now, values, heat });
        self.last = totals;
    }

    /// Whether a place has gone since the last look, or has begun again, as it does when it leaves the configuration: then the sum
    /// over all places lacks what that place had. The sum itself may have risen nevertheless.
    fn has_fallen(&mut self, places: &[(Labels, PlaceSums)]) -> bool {
        let counts =
            places.iter().map(|(labels, sums)| (labels, sums.durations.count())).filter(|(_, count)| *count > 0);
        let counts: BTreeMap<Labels, u64> = counts.map(|(labels, count)| (labels.clone(), count)).collect();
        let is_less = |(labels, then): (&Labels, &u64)| counts.get(labels).is_none_or(|now| now < then);
        let has_fallen = self.counts.iter().any(is_less);
        self.counts = counts;
        has_fallen
    }

    fn look_at_places(&mut self, at: f64, places: Vec<(Labels, PlaceSums)>) {
        // Those that are not configured any more are forgotten.
        let known: BTreeMap<Labels, PlaceSums> = places.into_iter().collect();
        self.places.retain(|labels, _| known.contains_key(labels));
        for (labels, sums) in known {
            if let Some(place) = self.places.get_mut(&labels) {
                place.look(at, sums);
            } else if sums.durations.count() > 0 && self.places.len() < MAX_PLACES {
                // All that it has is new: a place begins with nothing.
                let place = self.places.entry(labels).or_default();
                place.looks.push_back((at - EVERY, PlaceSums::default()));
                place.look(at, sums);
            }
        }
    }

    fn look_at_limits(&mut self, at: f64, lanes: &[Arc<Counters>]) {
        let counts = LIMITS.map(|(_, counts)| total(lanes, counts));
        // The first that stays is a minute old, or the oldest that there is.
        while self.limits.get(1).is_some_and(|(then, _)| at - then >= MINUTE) {
            self.limits.pop_front();
        }
        self.limits.push_back((at, counts));
    }

    /// What has refused clients.
    pub fn limits(&self) -> Vec<LimitStatus> {
        let (Some((_, then)), Some((_, now))) = (self.limits.front(), self.limits.back()) else { return Vec::new() };
        let of = |(i, (what, _)): (usize, &Limit)| LimitStatus {
            what: (*what).to_owned(),
            last_minute: now[i].saturating_sub(then[i]),
            total: now[i],
        };
        LIMITS.iter().enumerate().map(of).filter(|limit| limit.total > 0).collect()
    }

    /// How requests to each place went.
    pub fn places(&self) -> Vec<PlaceStatus> {
        self.places.iter().map(|(labels, place)| place.status(labels)).collect()
    }
}

/// The sum of counters over all lanes.
fn total(lanes: &[Arc<Counters>], counts: &[Count]) -> u64 {
    lanes.iter().flat_map(|lane| counts.iter().map(|count| lane.value(*count))).sum()
}

/// When it is looked again, after a look that was `planned`, began `at` and `took` so long. Control looks a little late each time: this
/// is not added up, so that there is a point for each second.
fn next_look(planned: f64, at: f64, took: f64) -> f64 {
    let next = if planned + EVERY > at { planned + EVERY } else { at + EVERY };
    next.max(at + took / SHARE)
}

/// Data packets from clients of the tunnel and to them, or between it and its server.
fn packets_of(status: &TunnelStatus) -> u64 {
    let counted = |name: &str| status.data.iter().find(|(n, _)| n == name).map_or(0, |(_, count)| *count);
    (counted("link_received") + counted("link_sent")).saturating_sub(counted("control_in"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lane::histogram::Histogram;

    fn sums(micros: &[u64], classes: [u64; 5]) -> PlaceSums {
        let histogram = Histogram::default();
        micros.iter().for_each(|micros| histogram.record(*micros));
        let mut durations = Distribution::default();
        durations.add(&histogram);
        PlaceSums { durations, classes }
    }

    fn labels(host: &str) -> Labels {
        Labels { host: host.to_owned(), ..Labels::default() }
    }

    #[test]
    fn a_place_shows_its_last_minutes() {
        let mut sampler = Sampler::new(1);
        let slow = || vec![(labels("a.example"), sums(&[1_000_000; 10], [0, 10, 0, 0, 0]))];
        sampler.look_at_places(0.0, slow());
        let first = sampler.places().remove(0);
        assert_eq!((first.requests, first.p50, first.part_5xx), (10, Some(1.0), 0.0));
        // Ten minutes later, what was slow then is not shown any more.
        for round in 1..=20 {
            sampler.look_at_places(f64::from(round) * 30.0, slow());
        }
        let quick = [&[1_000_000; 10][..], &[100; 90]].concat();
        sampler.look_at_places(601.0, vec![(labels("a.example"), sums(&quick, [0, 70, 0, 20, 10]))]);
        let now = sampler.places().remove(0);
        assert_eq!((now.requests, now.p99), (100, Some(0.0001)));
        assert!((now.part_4xx - 20.0 / 90.0).abs() < 1e-9 && (now.part_5xx - 10.0 / 90.0).abs() < 1e-9, "{now:?}");
        assert!((now.per_second - 90.0 / now.seconds).abs() < 1e-9 && now.seconds <= 331.0, "{now:?}");
        sampler.look_at_places(602.0, Vec::new());
        assert!(sampler.places().is_empty(), "it is not configured any more");
    }

    /// A reload removes a host that had very many requests: they are not those of one second.
    #[test]
    fn a_place_that_goes_is_no_burst_of_all_the_others() {
        let (mut sampler, lanes) = (Sampler::new(1), vec![Arc::<Counters>::default()]);
        let times = |cpu: f64| ThreadTimes { lanes: [(0, cpu)].into_iter().collect(), tunnel: None };
        let look = |places: &[(&str, usize)]| {
            let mut look = Look { requests: vec![[0; 3]], ..Look::default() };
            for (host, count) in places {
                let sums = sums(&vec![1_000_000; *count], [0, *count as u64, 0, 0, 0]);
                look.requests[0][0] += *count as u64;
                look.durations.merge(&sums.durations);
                look.places.push((labels(host), sums));
            }
            look
        };
        let seconds: [&[(&str, usize)]; 6] = [
            &[("a", 5000), ("b", 1000)],
            &[("a", 5001), ("b", 1002)],
            // It goes.
            &[("b", 1005)],
            &[("b", 1009), ("c", 3)],
            // Another one goes, and more has come than has gone.
            &[("b", 1100)],
            &[("b", 1101)],
        ];
        let mut rows = Vec::new();
        for (second, places) in seconds.into_iter().enumerate() {
            let at = second as f64 + 1.0;
            sampler.take((at, 1000 + second as u64), &lanes, look(places), None, &times(at * 0.1));
            rows.push(sampler.costs.rows());
        }
        assert_eq!(rows, [0, 1, 1, 2, 2, 3], "rows that cannot be known are left out");
        // The last second is still open.
        let json = sampler.history.json("5m", 0).unwrap();
        let counts = json["heat"]["counts"].as_array().unwrap().iter();
        let counts: Vec<u64> =
            counts.map(|heat| heat.as_array().unwrap().iter().filter_map(|n| n.as_u64()).sum()).collect();
        assert_eq!(counts, [6000, 3, 0, 7, 0]);
        let p50 = json["series"].as_object().unwrap().iter().find(|(name, _)| name.contains("p50")).unwrap().1;
        assert!(p50[2].is_null() && p50[4].is_null() && !p50[3].is_null(), "{p50}");
    }

    #[test]
    fn there_is_a_look_for_each_second() {
        // Control looks each 300 ms, for a hundred seconds.
        let (mut next, mut looks) = (0.0, 0);
        for tick in 0..334 {
            let at = f64::from(tick) * 0.3;
            if at >= next {
                looks += 1;
                next = next_look(next, at, 0.001);
            }
        }
        assert_eq!(looks, 100);
        assert!(next_look(5.0, 5.1, 0.05) >= 10.0, "it takes a hundredth of the time at most");
        assert_eq!(next_look(5.0, 70.0, 0.0), 71.0, "what was missed is not made up for");
    }

    #[test]
    fn the_memory_for_places_is_bounded() {
        let mut sampler = Sampler::new(1);
        let many = |count: u64| -> Vec<(Labels, PlaceSums)> {
            (0..1000).map(|i| (labels(&format!("h{i}")), sums(&[10], [0, count, 0, 0, 0]))).collect()
        };
        for round in 0..100u32 {
            sampler.look_at_places(f64::from(round) * 30.0, many(u64::from(round)));
        }
        assert_eq!(sampler.places.len(), MAX_PLACES);
        assert!(sampler.places.values().all(|place| place.looks.len() <= PLACE_LOOKS + 1));
        let place = (PLACE_LOOKS + 2) * size_of::<(f64, PlaceSums)>() + size_of::<(Labels, Place)>() + 1024;
        assert!(MAX_PLACES * place < 6 << 20, "{place}");
    }

    #[test]
    fn limits_are_those_of_the_last_minute() {
        let mut sampler = Sampler::new(1);
        let lanes: Vec<Arc<Counters>> = vec![Arc::default()];
        sampler.look_at_limits(0.0, &lanes);
        assert!(sampler.limits().is_empty());
        lanes[0].add(Count::RateLimited, 5);
        for second in 1..=30 {
            sampler.look_at_limits(f64::from(second), &lanes);
        }
        let found = sampler.limits();
        assert_eq!((found.len(), found[0].last_minute, found[0].total), (1, 5, 5));
        for second in 31..=120 {
            sampler.look_at_limits(f64::from(second), &lanes);
        }
        let found = sampler.limits();
        assert_eq!((found[0].last_minute, found[0].total), (0, 5), "they refuse nobody now");
        assert!(sampler.limits.len() < 70);
    }
}
