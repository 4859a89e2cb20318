//! How long requests and their steps take, by what the configuration names.
//!
//! A *place* is where a request has gone: a host, its route, and the upstream of these. Control makes one [`Place`] for each
//! set of labels, which it keeps, and publishes the places with the snapshot. So labels come from the configuration alone. A
//! place has a series for each version of HTTP and class of status, each lane has histograms of its own in each series, and
//! control adds them up.
//!
//! ```text
//! Place ─┬─ series (HTTP/1.1, 2xx) ─┬─ lane 0: [time to first byte, total]
//!        │                          └─ lane 1: …
//!        └─ series (HTTP/2, 5xx) …        made when the lane needs them for the first time
//! ```
//!
//! A lane allocates its histograms of a series with the first request there; [`Budget`] bounds the number of series. What is
//! beyond the bound is recorded in the place `other`.

use sealane_http::Version;
use sealane_http::trace_context::TraceId;
use sealane_lane::Micros;
use sealane_lane::histogram::{Distribution, Histogram};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, fence};
use std::sync::{Arc, OnceLock};

/// The label `protocol`, by index.
pub const PROTOCOLS: [&str; 3] = ["HTTP/1", "HTTP/2", "HTTP/3"];
/// The label `class`, by index.
pub const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// The series of a place: each version with each class.
pub const PLACE_SERIES: usize = PROTOCOLS.len() * CLASSES.len();

/// The index of a place's series.
#[inline]
fn series_of(version: Version, status: u16) -> usize {
    let protocol = match version {
        Version::Http10 | Version::Http11 => 0,
        Version::Http2 => 1,
        Version::Http3 => 2,
    };
    // 0 and 600 are no statuses, but would be no reason to panic either.
    let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
    protocol * CLASSES.len() + class
}

/// How many series there may be. Shared by all places and upstreams of a process.
#[derive(Debug, Default)]
pub struct Budget {
    most: AtomicUsize,
    used: AtomicUsize,
}

impl Budget {
    /// At most so many.
    pub fn new(most: usize) -> Self {
        Self { most: AtomicUsize::new(most), used: AtomicUsize::new(0) }
    }

    /// At most so many from now on. Series that are there stay.
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// How many there may be.
    pub fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// How many there are.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    fn take(&self) -> bool {
        let most = self.most.load(Relaxed);
        self.used.fetch_update(Relaxed, Relaxed, |used| (used < most).then_some(used + 1)).is_ok()
    }

    fn give_back(&self, series: usize) {
        self.used.fetch_sub(series, Relaxed);
    }
}

/// Nobody has asked for it.
const UNKNOWN: u8 = 0;
/// It is within the budget.
const ADMITTED: u8 = 1;
/// It is beyond the budget: what would be recorded here is recorded elsewhere.
const REFUSED: u8 = 2;

/// `N` series of `H` histograms, for each lane.
#[derive(Debug)]
pub struct SeriesSet<const N: usize, const H: usize> {
    /// Whether a series is within the budget: decided once, by the lane that needs it first.
    states: [AtomicU8; N],
    lanes: Box<[OnceLock<Box<LaneSeries<N, H>>>]>,
    /// `None`: without a bound.
    budget: Option<Arc<Budget>>,
    /// Where series beyond the budget are recorded.
    other: Option<Arc<SeriesSet<N, H>>>,
}

/// The histograms of one lane, each made by the lane when it needs them. Other lanes do not write on its cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct LaneSeries<const N: usize, const H: usize>([OnceLock<Box<Recorded<H>>>; N]);

/// What a lane has recorded in a series.
#[derive(Debug)]
struct Recorded<const H: usize> {
    histograms: [Histogram; H],
    /// There with the first exemplar: only requests with exported traces have one.
    exemplars: OnceLock<Box<[ExemplarSlot; H]>>,
}

impl<const H: usize> Default for Recorded<H> {
    fn default() -> Self {
        Self { histograms: std::array::from_fn(|_| Histogram::default()), exemplars: OnceLock::new() }
    }
}

/// A request that shows what a duration was about: the newest whose trace was exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// Its trace.
    pub trace: TraceId,
    /// How long it took.
    pub micros: Micros,
    /// When it was over, in milliseconds since 1970.
    pub at: u64,
}

/// Where one lane writes an exemplar and anybody reads it, without waiting: a reader that meets a write has none.
#[derive(Debug, Default)]
struct ExemplarSlot {
    /// Odd while it is written; 0: never.
    version: AtomicU64,
    words: [AtomicU64; 4],
}

impl ExemplarSlot {
    /// Only the owning lane may call this.
    fn set(&self, exemplar: Exemplar) {
        let trace = u128::from_be_bytes(exemplar.trace.bytes());
        let words = [(trace >> 64) as u64, trace as u64, exemplar.micros, exemplar.at];
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // Who sees one of the words sees that they are being written.
        fence(Release);
        self.words.iter().zip(words).for_each(|(place, word)| place.store(word, Relaxed));
        self.version.store(version.wrapping_add(2), Release);
    }

    fn get(&self) -> Option<Exemplar> {
        let version = self.version.load(Acquire);
        if version == 0 || version % 2 == 1 {
            return None;
        }
        let [high, low, micros, at] = self.words.each_ref().map(|word| word.load(Relaxed));
        fence(Acquire);
        if self.version.load(Relaxed) != version {
            return None;
        }
        let trace = u128::from(high) << 64 | u128::from(low);
        Some(Exemplar { trace: TraceId::from_random(trace.to_be_bytes()), micros, at })
    }
}

impl<const N: usize, const H: usize> Default for LaneSeries<N, H> {
    fn default() -> Self {
        Self([const { OnceLock::new() }; N])
    }
}

impl<const N: usize, const H: usize> SeriesSet<N, H> {
    /// For so many lanes, without a bound: what is beyond the budget of others comes here.
    pub fn unbounded(lanes: usize) -> Self {
        Self::new(lanes, None, None)
    }

    /// For so many lanes, within a budget; beyond it `other` is recorded in.
    pub fn within(lanes: usize, budget: &Arc<Budget>, other: &Arc<Self>) -> Self {
        Self::new(lanes, Some(budget.clone()), Some(other.clone()))
    }

    fn new(lanes: usize, budget: Option<Arc<Budget>>, other: Option<Arc<Self>>) -> Self {
        let lanes = (0..lanes).map(|_| OnceLock::new()).collect();
        Self { states: [const { AtomicU8::new(UNKNOWN) }; N], lanes, budget, other }
    }

    /// A lane's histograms of a series. Only the lane in that slot may record in them.
    #[inline]
    pub fn histograms(&self, slot: usize, series: usize) -> Option<&[Histogram; H]> {
        let begun = self.lanes.get(slot)?.get().and_then(|lane| lane.0.get(series)?.get());
        match begun {
            Some(recorded) => Some(&recorded.histograms),
            None => self.begin(slot, series),
        }
    }

    /// A lane needs its histograms of a series for the first time, or of one that is beyond the budget.
    #[cold]
    fn begin(&self, slot: usize, series: usize) -> Option<&[Histogram; H]> {
        if !self.is_admitted(series) {
            return self.other.as_ref()?.histograms(slot, series);
        }
        let lane = self.lanes.get(slot)?.get_or_init(Box::default);
        Some(&lane.0.get(series)?.get_or_init(Box::default).histograms)
    }

    fn is_admitted(&self, series: usize) -> bool {
        let Some(budget) = &self.budget else { return true };
        let state = &self.states[series];
        let known = state.load(Relaxed);
        if known != UNKNOWN {
            return known == ADMITTED;
        }
        let admitted = budget.take();
        match state.compare_exchange(UNKNOWN, if admitted { ADMITTED } else { REFUSED }, Relaxed, Relaxed) {
            Ok(_) => admitted,
            Err(decided) => {
                // Another lane was first.
                if admitted {
                    budget.give_back(1);
                }
                decided == ADMITTED
            }
        }
    }

    /// Series that were beyond the budget may be within it now.
    pub fn reconsider(&self) {
        for state in &self.states {
            let _ = state.compare_exchange(REFUSED, UNKNOWN, Relaxed, Relaxed);
        }
    }

    /// Adds up what the lanes have recorded in a series; `None` if none has.
    pub fn sums(&self, series: usize) -> Option<[Distribution; H]> {
        let mut recorded = self.lanes.iter().filter_map(|lane| lane.get()?.0.get(series)?.get()).peekable();
        recorded.peek()?;
        let mut sums: [Distribution; H] = std::array::from_fn(|_| Distribution::default());
        for histograms in recorded {
            sums.iter_mut().zip(&histograms.histograms).for_each(|(sum, histogram)| sum.add(histogram));
        }
        Some(sums)
    }

    /// Looks at all that the lanes have recorded: a lane's slot, a series, and the lane's histograms of it.
    pub fn look(&self, mut at: impl FnMut(usize, usize, &[Histogram; H])) {
        for (slot, lane) in self.lanes.iter().enumerate() {
            let begun = lane.get().map(|lane| &lane.0).into_iter().flatten().enumerate();
            begun.filter_map(|(series, recorded)| Some((series, recorded.get()?))).for_each(|(series, recorded)| {
                at(slot, series, &recorded.histograms);
            });
        }
    }

    /// Notes a request for one of the series' histograms, in which it has been recorded. Only the lane in that slot may call this.
    fn note_exemplar(&self, slot: usize, series: usize, histogram: usize, exemplar: Exemplar) {
        let recorded = self.lanes.get(slot).and_then(|lane| lane.get()?.0.get(series)?.get());
        let Some(recorded) = recorded else {
            // Beyond the budget.
            if let Some(other) = &self.other {
                other.note_exemplar(slot, series, histogram, exemplar);
            }
            return;
        };
        let slots = recorded.exemplars.get_or_init(|| Box::new(std::array::from_fn(|_| ExemplarSlot::default())));
        if let Some(slot) = slots.get(histogram) {
            slot.set(exemplar);
        }
    }

    /// The newest exemplar of each of the series' histograms, of all lanes.
    pub fn exemplars(&self, series: usize) -> [Option<Exemplar>; H] {
        let mut newest = [None; H];
        let lanes = self.lanes.iter().filter_map(|lane| lane.get()?.0.get(series)?.get()?.exemplars.get());
        for slots in lanes {
            for (newest, slot) in newest.iter_mut().zip(slots.iter()) {
                let found: Option<Exemplar> = slot.get();
                if found.map(|found| found.at) > newest.map(|newest: Exemplar| newest.at) {
                    *newest = found;
                }
            }
        }
        newest
    }
}

impl<const N: usize, const H: usize> Drop for SeriesSet<N, H> {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.give_back(self.states.iter().filter(|state| state.load(Relaxed) == ADMITTED).count());
        }
    }
}

/// The times of requests that go to one place: to the first byte of the response, and in total. Both count from the end of
/// the request's head.
pub type Place = SeriesSet<PLACE_SERIES, 2>;

/// The times of an upstream: see [`UPSTREAM_STEPS`].
pub type UpstreamTimes = SeriesSet<1, 4>;

/// The steps that are timed for each upstream, in order: name and help of their metrics.
pub const UPSTREAM_STEPS: [(&str, &str); 4] = [
    (
        "sealane_upstream_connect_seconds",
        "Time to connect to a server over TCP, without the TLS handshake. Servers with syn_tls are not included, \
         because their TLS handshake begins in the SYN.",
    ),
    ("sealane_upstream_handshake_seconds", "Time of TLS handshakes with servers, and of whole QUIC handshakes."),
    (
        "sealane_upstream_wait_seconds",
        "Time from sending a request's head to a server until the head of the response arrived.",
    ),
    (
        "sealane_upstream_transfer_seconds",
        "Time from the head of a server's response until the end of the response was read. Upgraded connections and \
         incomplete responses are not included.",
    ),
];
/// See [`UPSTREAM_STEPS`].
pub(crate) const CONNECT: usize = 0;
pub(crate) const HANDSHAKE: usize = 1;
/// The index of the wait for the head of the response in [`UPSTREAM_STEPS`].
pub const WAIT: usize = 2;
pub(crate) const TRANSFER: usize = 3;

/// The protocol and the class of each of a place's series, in order.
pub fn place_series() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROTOCOLS.into_iter().flat_map(|protocol| CLASSES.into_iter().map(move |class| (protocol, class)))
}

/// The places of a snapshot.
#[derive(Clone, Debug)]
pub struct Latency {
    /// Of requests that came to no host: for unknown names, or that could not be read.
    pub no_host: Arc<Place>,
    /// By host, in the order of a listener's actions.
    pub hosts: Vec<Arc<Place>>,
    /// By route, in the order of [`Routing::routes`](crate::snapshot::Routing::routes).
    pub routes: Vec<Arc<Place>>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { no_host: Arc::new(Place::unbounded(0)), hosts: Vec::new(), routes: Vec::new() }
    }
}

impl Latency {
    /// Whether both have the same places.
    pub fn is_same(&self, other: &Self) -> bool {
        let same =
            |a: &[Arc<Place>], b: &[Arc<Place>]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b));
        Arc::ptr_eq(&self.no_host, &other.no_host)
            && same(&self.hosts, &other.hosts)
            && same(&self.routes, &other.routes)
    }
}

/// Records how long a request took that is over. `first_byte` is `None` if it was never answered, `total` if it became a
/// connection of another protocol.
#[inline]
pub(crate) fn record(
    place: &Place,
    slot: usize,
    version: Version,
    status: u16,
    first_byte: Option<Micros>,
    total: Option<Micros>,
) {
    let Some([to_first_byte, in_total]) = place.histograms(slot, series_of(version, status)) else { return };
    if let Some(micros) = first_byte {
        to_first_byte.record(micros);
    }
    if let Some(micros) = total {
        in_total.record(micros);
    }
}

/// Notes a request whose trace was exported, and which has been recorded.
pub(crate) fn note_exemplar(
    place: &Place,
    slot: usize,
    version: Version,
    status: u16,
    durations: [Option<Micros>; 2],
    (trace, at): (TraceId, u64),
) {
    let series = series_of(version, status);
    for (histogram, micros) in durations.into_iter().enumerate() {
        if let Some(micros) = micros {
            place.note_exemplar(slot, series, histogram, Exemplar { trace, micros, at });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_and_class_has_a_series_of_its_own() {
        let versions = [Version::Http11, Version::Http2, Version::Http3];
        let found: Vec<usize> =
            versions.iter().flat_map(|v| [100, 204, 304, 499, 599].map(|status| series_of(*v, status))).collect();
        assert_eq!(found, (0..PLACE_SERIES).collect::<Vec<_>>());
        assert_eq!(place_series().nth(series_of(Version::Http2, 404)), Some(("HTTP/2", "4xx")));
        assert_eq!(series_of(Version::Http10, 0), 0);
        assert_eq!(series_of(Version::Http3, u16::MAX), PLACE_SERIES - 1);
    }

    #[test]
    fn lanes_record_apart_and_are_added_up() {
        let place = Place::unbounded(2);
        assert!(place.sums(0).is_none());
        record(&place, 0, Version::Http11, 200, Some(90), Some(100));
        record(&place, 1, Version::Http11, 204, Some(1000), None);
        record(&place, 2, Version::Http11, 200, Some(1), Some(1));
        let [first_byte, total] = place.sums(series_of(Version::Http11, 200)).unwrap();
        assert_eq!((first_byte.count(), first_byte.sum, total.count(), total.sum), (2, 1090, 1, 100));
        assert!(place.sums(series_of(Version::Http2, 200)).is_none());
    }

    #[test]
    fn what_is_beyond_the_budget_is_recorded_elsewhere_until_there_is_room() {
        let budget = Arc::new(Budget::new(1));
        let other = Arc::new(Place::unbounded(1));
        let (one, two) = (Place::within(1, &budget, &other), Place::within(1, &budget, &other));
        let ok = series_of(Version::Http11, 200);
        for _ in 0..2 {
            record(&one, 0, Version::Http11, 200, None, Some(1));
            record(&two, 0, Version::Http11, 200, None, Some(1));
        }
        let count = |place: &Place| place.sums(ok).map_or(0, |[_, total]| total.count());
        assert_eq!((count(&one), count(&two), count(&other), budget.used()), (2, 0, 2, 1));
        drop(one);
        assert_eq!(budget.used(), 0);
        record(&two, 0, Version::Http11, 200, None, Some(1));
        assert_eq!((count(&two), count(&other)), (0, 3), "it is decided");
        two.reconsider();
        record(&two, 0, Version::Http11, 200, None, Some(1));
        assert_eq!((count(&two), count(&other), budget.used()), (1, 3, 1));
    }

    #[test]
    fn the_newest_exemplar_of_all_lanes_is_read() {
        let place = Place::unbounded(2);
        let trace = |n| TraceId::from_random([n; 16]);
        let ok = series_of(Version::Http11, 200);
        assert_eq!(place.exemplars(ok), [None; 2]);
        let note = |slot, n: u8, micros| {
            record(&place, slot, Version::Http11, 200, Some(1), Some(micros));
            note_exemplar(&place, slot, Version::Http11, 200, [None, Some(micros)], (trace(n), u64::from(n)));
        };
        note(0, 1, 100);
        note(1, 3, 300);
        note(0, 2, 200);
        assert_eq!(place.exemplars(ok), [None, Some(Exemplar { trace: trace(3), micros: 300, at: 3 })]);
        assert_eq!(place.exemplars(series_of(Version::Http2, 200)), [None; 2]);
        // What is beyond the budget is noted where it is recorded.
        let other = Arc::new(Place::unbounded(1));
        let beyond = Place::within(1, &Arc::new(Budget::new(0)), &other);
        record(&beyond, 0, Version::Http11, 200, Some(1), Some(1));
        note_exemplar(&beyond, 0, Version::Http11, 200, [Some(1), None], (trace(4), 4));
        assert_eq!((beyond.exemplars(ok)[0], other.exemplars(ok)[0].map(|e| e.at)), (None, Some(4)));
    }

    #[test]
    fn an_exemplar_that_is_being_written_is_not_read_in_parts() {
        let slot = ExemplarSlot::default();
        let whole = |e: Exemplar| e.trace == TraceId::from_random([e.at as u8; 16]) && e.micros == e.at;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..20_000u64 {
                    let at = n % 250 + 1;
                    slot.set(Exemplar { trace: TraceId::from_random([at as u8; 16]), micros: at, at });
                }
            });
            for _ in 0..20_000 {
                assert!(slot.get().is_none_or(whole));
            }
        });
        assert!(slot.get().is_some_and(whole));
    }

    #[test]
    fn lanes_that_begin_a_series_at_once_take_one_of_the_budget() {
        let budget = Arc::new(Budget::new(100));
        let other = Arc::new(Place::unbounded(8));
        let place = Place::within(8, &budget, &other);
        std::thread::scope(|scope| {
            for slot in 0..8 {
                let place = &place;
                scope.spawn(move || record(place, slot, Version::Http2, 200, Some(1), Some(1)));
            }
        });
        assert_eq!(budget.used(), 1);
        assert_eq!(place.sums(series_of(Version::Http2, 200)).unwrap()[0].count(), 8);
    }
}
