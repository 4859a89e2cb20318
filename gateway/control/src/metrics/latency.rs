//! Which places' durations are recorded, and what the lanes have recorded so far.

use crate::config::Config;
use crate::metrics::cost::add_requests;
use crate::metrics::prometheus::{self, HistogramFamily, Writer};
use sealane_lane::histogram::{Distribution, Histogram};
use sealane_proxy::counters::{Counters, HANDSHAKES};
use sealane_proxy::latency::{
    Budget, CLASSES, Exemplar, Latency, PROTOCOLS, Place, UPSTREAM_STEPS, UpstreamTimes, WAIT, place_series,
};
use sealane_proxy::snapshot::Action;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What is recorded for all that is beyond `max_series`. No host and no upstream has such a name.
const OTHER: &str = "(other)";
/// Requests that came to no host. No host has such a name.
const NO_HOST: &str = "(none)";

/// The bounds that are shown, in microseconds: 1, 2.5 and 5 of each power of ten. Each is a bound of the histograms.
const SHOWN: [u64; 22] = [
    10,
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
];

/// What a place is called: the labels of its metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels {
    /// The host's first name as configured.
    pub host: String,
    /// The route's name or pattern; empty for a host without routes.
    pub route: String,
    /// The upstream; empty where the gateway answers itself.
    pub upstream: String,
}

/// What the lanes have recorded at a place so far.
#[derive(Clone, Debug, Default)]
pub struct PlaceSums {
    /// The durations of its requests.
    pub durations: Distribution,
    /// Its requests by the class of their status.
    pub classes: [u64; CLASSES.len()],
}

/// What the lanes have recorded so far, of all places.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Requests of each lane, by version of HTTP.
    pub requests: Vec<[u64; PROTOCOLS.len()]>,
    /// The durations of all requests.
    pub durations: Distribution,
    /// The places where something was recorded.
    pub places: Vec<(Labels, PlaceSums)>,
    /// How long each upstream's servers took until the heads of their responses came.
    pub waits: Vec<(String, Distribution)>,
}

/// All places and upstreams whose durations are recorded, over reloads: the same labels stay the same place as long as they
/// are configured.
#[derive(Debug)]
pub struct Latencies {
    lanes: usize,
    budget: Arc<Budget>,
    other_place: Arc<Place>,
    other_upstream: Arc<UpstreamTimes>,
    no_host: Arc<Place>,
    known: Mutex<Known>,
}

/// What may have something recorded, by name.
type Recorded = (Vec<(Labels, Arc<Place>)>, Vec<(String, Arc<UpstreamTimes>)>);

/// Those that some snapshot names.
#[derive(Debug, Default)]
struct Known {
    places: BTreeMap<Labels, Weak<Place>>,
    upstreams: BTreeMap<String, Weak<UpstreamTimes>>,
    /// The labels of `places` by their addresses. What a `Weak` refers to keeps its address, even when it is gone.
    by_address: HashMap<usize, Labels>,
    /// As published last.
    current: Arc<Latency>,
}

impl Known {
    fn index(&mut self) {
        self.by_address = self.places.iter().map(|(labels, place)| (place.as_ptr().addr(), labels.clone())).collect();
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Latencies {
    /// Of so many lanes.
    pub fn new(lanes: usize) -> Self {
        Self {
            lanes,
            budget: Arc::default(),
            other_place: Arc::new(Place::unbounded(lanes)),
            other_upstream: Arc::new(UpstreamTimes::unbounded(lanes)),
            no_host: Arc::new(Place::unbounded(lanes)),
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A thread that panicked with the lock did so between two whole states, or the process is ending.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many series there may be for what clients cause: `max_series` of the configuration in force.
    pub fn max_series(&self) -> usize {
        self.budget.most()
    }

    /// The places of a configuration, to be published. The same value as before if they are the same places.
    pub fn places(&self, config: &Config) -> Arc<Latency> {
        self.budget.set_most(config.max_series);
        let mut known = self.known();
        let name_of = |upstream: usize| config.upstreams.get(upstream).map_or_else(String::new, |u| u.name.clone());
        let upstream_of = |action: &Action| match action {
            Action::Proxy { upstream } => name_of(*upstream),
            Action::Forward(by) => by.only_upstream().map_or_else(String::new, &name_of),
            _ => String::new(),
        };
        let Known { places, .. } = &mut *known;
        let mut place = |labels: Labels| match places.get(&labels).and_then(Weak::upgrade) {
            Some(place) => {
                place.reconsider();
                place
            }
            None => {
                let place = Arc::new(Place::within(self.lanes, &self.budget, &self.other_place));
                places.insert(labels, Arc::downgrade(&place));
                place
            }
        };
        // The same for all listeners; none where there is only a tunnel.
        let actions = config.listeners.first().map_or(&[][..], |l| &l.actions[..]);
        let mut hosts = Vec::new();
        let mut routes: Vec<Option<Arc<Place>>> = vec![None; config.routing.routes.len()];
        for (action, host) in actions.iter().zip(&config.host_labels) {
            let labels = |route: &str, action: &Action| Labels {
                host: host.clone(),
                route: route.to_owned(),
                upstream: upstream_of(action),
            };
            hosts.push(place(labels("", action)));
            if let Action::Routes(table) = action {
                for index in table.values() {
                    if let (Some(route), Some(own)) = (config.routing.routes.get(*index), routes.get_mut(*index)) {
                        *own = Some(place(labels(&route.label, &route.action)));
                    }
                }
            }
        }
        let routes = routes.into_iter().map(|place| place.unwrap_or_else(|| self.no_host.clone())).collect();
        let latency = Latency { no_host: self.no_host.clone(), hosts, routes };
        if !latency.is_same(&known.current) {
            known.current = Arc::new(latency);
        }
        known.places.retain(|_, place| place.strong_count() > 0);
        known.index();
        known.upstreams.values().filter_map(Weak::upgrade).for_each(|times| times.reconsider());
        known.current.clone()
    }

    /// Where the durations of an upstream are recorded.
    pub fn upstream(&self, name: &str) -> Arc<UpstreamTimes> {
        if name == OTHER {
            // Its labels would be there twice.
            return self.other_upstream.clone();
        }
        let mut known = self.known();
        known.upstreams.retain(|_, times| times.strong_count() > 0);
        if let Some(times) = known.upstreams.get(name).and_then(Weak::upgrade) {
            times.reconsider();
            return times;
        }
        let times = Arc::new(UpstreamTimes::within(self.lanes, &self.budget, &self.other_upstream));
        known.upstreams.insert(name.to_owned(), Arc::downgrade(&times));
        times
    }

    /// Writes what has been recorded.
    pub fn render(&self, lanes: &[Arc<Counters>], out: &mut Writer) {
        let (places, upstreams) = self.all();
        for (step, (name, help)) in [
            (
                "sealane_request_first_byte_seconds",
                "Time from the end of a request's head to the head of its response.",
            ),
            (
                "sealane_request_duration_seconds",
                "Time from the end of a request's head to the end of its response. Upgraded connections are not \
                 included.",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let mut family = out.histogram(name, help);
            for (labels, place) in &places {
                for (series, (protocol, class)) in place_series().enumerate() {
                    let Some(times) = place.sums(series) else { continue };
                    let labels = [
                        ("host", labels.host.as_str()),
                        ("route", labels.route.as_str()),
                        ("upstream", labels.upstream.as_str()),
                        ("protocol", protocol),
                        ("class", class),
                    ];
                    sample_with(&mut family, &labels, &times[step], place.exemplars(series)[step]);
                }
            }
        }
        for (step, (name, help)) in UPSTREAM_STEPS.into_iter().enumerate() {
            let mut family = out.histogram(name, help);
            for (upstream, times) in &upstreams {
                if let Some(times) = times.sums(0) {
                    sample(&mut family, &[("upstream", upstream)], &times[step]);
                }
            }
        }
        let sum = |of: &dyn Fn(&Counters) -> &Histogram| {
            let mut sum = Distribution::default();
            lanes.iter().for_each(|lane| sum.add(of(lane)));
            sum
        };
        let mut family = out.histogram(
            "sealane_handshake_seconds",
            "Time from accepting a client's connection to the end of its TLS handshake.",
        );
        for (i, (transport, version, kind)) in HANDSHAKES.into_iter().enumerate() {
            let labels = [("transport", transport), ("version", version), ("kind", kind)];
            sample(&mut family, &labels, &sum(&|lane| &lane.handshakes()[i]));
        }
        let help = "Time that ClientHellos over TCP and QUIC waited for the lane to have time for their handshake.";
        sample(&mut out.histogram("sealane_admission_wait_seconds", help), &[], &sum(&|lane| lane.admission()));
        let mut family = out.histogram(
            "sealane_lane_turn_seconds",
            "Time that a turn of a lane's loop took, without waiting for events. Every seventh turn is measured.",
        );
        for (i, lane) in lanes.iter().enumerate() {
            let mut turns = Distribution::default();
            turns.add(lane.turns());
            sample(&mut family, &[("lane", &i.to_string())], &turns);
        }
        out.gauge("sealane_latency_series", "Series of latencies in use, at most max_series.")
            .sample(&[], self.budget.used() as u64);
    }

    /// Adds up what has been recorded.
    pub fn look(&self) -> Look {
        let mut look = Look { requests: vec![[0; PROTOCOLS.len()]; self.lanes], ..Look::default() };
        let (places, upstreams) = self.all();
        let waits = |(name, times): (String, Arc<UpstreamTimes>)| Some((name, times.sums(0)?[WAIT].clone()));
        look.waits = upstreams.into_iter().filter_map(waits).collect();
        for (labels, place) in places {
            let mut sums = PlaceSums::default();
            place.look(|slot, series, [first_byte, total]| {
                let [mut answered, mut over] = [Distribution::default(), Distribution::default()];
                answered.add(first_byte);
                over.add(total);
                // Upgraded connections are answered, and have no duration.
                add_requests(&mut look.requests, slot, series / CLASSES.len(), &answered);
                sums.classes[series % CLASSES.len()] += over.count();
                sums.durations.merge(&over);
            });
            look.durations.merge(&sums.durations);
            look.places.push((labels, sums));
        }
        look
    }

    /// The labels of a place that is configured.
    pub fn labels_of(&self, place: &Arc<Place>) -> Option<Labels> {
        // Errors come in numbers that clients choose: there is no search.
        self.known().by_address.get(&Arc::as_ptr(place).addr()).cloned()
    }

    /// All that may have something recorded, by name.
    fn all(&self) -> Recorded {
        let known = self.known();
        let named = |host: &str| Labels { host: host.to_owned(), ..Labels::default() };
        let places = known.places.iter().filter_map(|(labels, place)| Some((labels.clone(), place.upgrade()?)));
        let places = places.chain([(named(OTHER), self.other_place.clone()), (named(NO_HOST), self.no_host.clone())]);
        let upstreams = known.upstreams.iter().filter_map(|(name, times)| Some((name.clone(), times.upgrade()?)));
        let upstreams = upstreams.chain([(OTHER.to_owned(), self.other_upstream.clone())]);
        (places.collect(), upstreams.collect())
    }
}

fn sample(family: &mut HistogramFamily<'_>, labels: &[(&str, &str)], times: &Distribution) {
    sample_with(family, labels, times, None);
}

fn sample_with(
    family: &mut HistogramFamily<'_>,
    labels: &[(&str, &str)],
    times: &Distribution,
    exemplar: Option<Exemplar>,
) {
    let mut below = 0;
    let buckets = SHOWN.map(|bound| {
        let within = times.at_most(bound);
        let in_bucket = within - below;
        below = within;
        (bound as f64 / 1e6, in_bucket)
    });
    let trace = exemplar.map(|exemplar| exemplar.trace.text());
    let exemplar = exemplar.zip(trace.as_ref()).map(|(exemplar, trace)| prometheus::Exemplar {
        trace_id: std::str::from_utf8(trace).unwrap_or_default(),
        value: exemplar.micros as f64 / 1e6,
        at: exemplar.at as f64 / 1e3,
    });
    let above = times.count() - below;
    family.sample_with(labels, &buckets, above, times.sum as f64 / 1e6, exemplar).native(times);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_its_labels_as_long_as_it_is_known() {
        let latencies = Latencies::new(1);
        let places: Vec<Arc<Place>> = (0..3).map(|_| Arc::new(Place::unbounded(1))).collect();
        let labels = |host: usize| Labels { host: host.to_string(), ..Labels::default() };
        {
            let mut known = latencies.known();
            for (host, place) in places.iter().enumerate().take(2) {
                known.places.insert(labels(host), Arc::downgrade(place));
            }
            known.index();
        }
        let found: Vec<Option<Labels>> = places.iter().map(|place| latencies.labels_of(place)).collect();
        assert_eq!(found, [Some(labels(0)), Some(labels(1)), None]);
        latencies.known().places.remove(&labels(0));
        latencies.known().index();
        assert_eq!([latencies.labels_of(&places[0]), latencies.labels_of(&places[1])], [None, Some(labels(1))]);
    }
}
