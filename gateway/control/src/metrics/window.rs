//! What lanes and the network have done in the last seconds: the symptoms from which `problems` concludes.
//!
//! A moment each second, of which ten are kept; and for each upstream the durations of the last half minute.

use crate::metrics::process::ThreadTimes;
use sealane_lane::histogram::Distribution;
use sealane_proxy::counters::{Count, Counters};
use sealane_sys::segments::Segments;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Moments that are kept, one a second.
const MOMENTS: usize = 11;
/// The durations of upstreams are those of so many seconds at least, and twice as many at most.
const HALF: f64 = 15.0;
/// Upstreams whose durations are known.
const MAX_UPSTREAMS: usize = 400;

/// What a lane has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaneWork {
    /// Seconds that its thread was on a core, where the system says.
    pub cpu: Option<f64>,
    /// Requests.
    pub requests: u64,
    /// Handshakes with clients.
    pub handshakes: u64,
}

/// All that was counted until a moment.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// Seconds since the process began to look.
    pub at: f64,
    /// The lanes, by slot.
    pub lanes: Vec<LaneWork>,
    /// Full handshakes with clients.
    pub full: u64,
    /// Resumed handshakes with clients.
    pub resumed: u64,
    /// Handshakes that failed.
    pub failed: u64,
    /// Hellos that wait at this moment.
    pub waiting: u64,
    /// How long hellos have waited.
    pub admission: Distribution,
    /// How long turns of the lanes took.
    pub turns: Distribution,
    /// Segments of the network namespace.
    pub segments: Option<Segments>,
}

impl Moment {
    /// Reads the counters of the lanes.
    pub fn read(at: f64, lanes: &[Arc<Counters>], times: &ThreadTimes, segments: Option<Segments>) -> Self {
        let mut moment = Self { at, segments, ..Self::default() };
        for (slot, c) in lanes.iter().enumerate() {
            let (full, resumed) = (
                c.value(Count::FullTls13) + c.value(Count::FullTls12),
                c.value(Count::ResumedTls13) + c.value(Count::ResumedTls12),
            );
            moment.lanes.push(LaneWork {
                cpu: times.lanes.get(&slot).copied(),
                requests: c.value(Count::Requests),
                handshakes: full + resumed,
            });
            moment.full += full;
            moment.resumed += resumed;
            moment.failed += c.failed_handshakes();
            moment.waiting += c.value(Count::HellosWaiting);
            moment.admission.add(c.admission());
            moment.turns.add(c.turns());
        }
        moment
    }
}

/// What has happened between two moments.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    /// Seconds between them.
    pub seconds: f64,
    /// By lane: the part of the time that it was on a core, requests and handshakes.
    pub lanes: Vec<LaneWork>,
    /// Full handshakes with clients.
    pub full: u64,
    /// Resumed handshakes with clients.
    pub resumed: u64,
    /// Handshakes that failed.
    pub failed: u64,
    /// Hellos that wait now.
    pub waiting: u64,
    /// How long hellos have waited.
    pub admission: Distribution,
    /// How long turns of the lanes took.
    pub turns: Distribution,
    /// Segments that were sent, and those that were sent again.
    pub segments: Option<Segments>,
}

/// The last moments, the oldest first.
#[derive(Debug, Default)]
pub struct Window(VecDeque<Moment>);

impl Window {
    /// Adds the newest moment.
    pub fn add(&mut self, moment: Moment) {
        if self.0.len() == MOMENTS {
            self.0.pop_front();
        }
        self.0.push_back(moment);
    }

    /// What has happened since the oldest moment; `None` until there are two.
    pub fn recent(&self) -> Option<Recent> {
        let (then, now) = (self.0.front()?, self.0.back()?);
        let seconds = now.at - then.at;
        if seconds <= 0.0 {
            return None;
        }
        let lane = |(now, then): (&LaneWork, &LaneWork)| LaneWork {
            cpu: now.cpu.zip(then.cpu).map(|(now, then)| ((now - then) / seconds).max(0.0)),
            requests: now.requests.saturating_sub(then.requests),
            handshakes: now.handshakes.saturating_sub(then.handshakes),
        };
        let segments = now.segments.zip(then.segments).map(|(now, then)| Segments {
            sent: now.sent.saturating_sub(then.sent),
            retransmitted: now.retransmitted.saturating_sub(then.retransmitted),
        });
        Some(Recent {
            seconds,
            lanes: now.lanes.iter().zip(&then.lanes).map(lane).collect(),
            full: now.full.saturating_sub(then.full),
            resumed: now.resumed.saturating_sub(then.resumed),
            failed: now.failed.saturating_sub(then.failed),
            waiting: now.waiting,
            admission: now.admission.since(&then.admission),
            turns: now.turns.since(&then.turns),
            segments,
        })
    }
}

/// The durations of an upstream: all so far, as they were at two earlier looks, and now.
#[derive(Debug, Default)]
struct Durations {
    then: Distribution,
    middle: (f64, Distribution),
    now: Distribution,
}

/// How long the servers of each upstream took lately.
#[derive(Debug, Default)]
pub struct Waits(BTreeMap<String, Durations>);

impl Waits {
    /// Takes all that was measured so far.
    pub fn look(&mut self, at: f64, waits: Vec<(String, Distribution)>) {
        let mut known = std::mem::take(&mut self.0);
        for (name, all) in waits {
            if self.0.len() == MAX_UPSTREAMS {
                break;
            }
            let mut durations = known.remove(&name).unwrap_or_default();
            if at - durations.middle.0 >= HALF {
                durations.then = std::mem::replace(&mut durations.middle, (at, durations.now)).1;
            }
            durations.now = all;
            self.0.insert(name, durations);
        }
    }

    /// The upstreams whose servers have answered lately, and how long they took.
    pub fn recent(&self) -> impl Iterator<Item = (&str, Distribution)> {
        let recent = self.0.iter().map(|(name, durations)| (name.as_str(), durations.now.since(&durations.then)));
        recent.filter(|(_, recent)| recent.count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lane::histogram::Histogram;

    fn moment(at: f64, cpu: f64, requests: u64) -> Moment {
        let lanes = vec![LaneWork { cpu: Some(cpu), requests, handshakes: 0 }];
        let segments = Some(Segments { sent: requests * 10, retransmitted: requests });
        Moment { at, lanes, segments, ..Moment::default() }
    }

    #[test]
    fn the_last_ten_seconds_are_known() {
        let mut window = Window::default();
        assert!(window.recent().is_none());
        for second in 0..30u32 {
            window.add(moment(f64::from(second), f64::from(second) * 0.5, u64::from(second) * 100));
        }
        let recent = window.recent().unwrap();
        assert_eq!((recent.seconds, recent.lanes[0].cpu, recent.lanes[0].requests), (10.0, Some(0.5), 1000));
        assert_eq!(recent.segments, Some(Segments { sent: 10_000, retransmitted: 1000 }));
    }

    #[test]
    fn slow_answers_are_forgotten_within_half_a_minute() {
        let (histogram, mut waits) = (Histogram::default(), Waits::default());
        let look = |waits: &mut Waits, at: f64| {
            let mut all = Distribution::default();
            all.add(&histogram);
            waits.look(at, vec![("app".to_owned(), all)]);
        };
        (0..10).for_each(|_| histogram.record(2_000_000));
        look(&mut waits, 1.0);
        let quantile = |waits: &Waits| waits.recent().next().and_then(|(_, recent)| recent.quantile(0.5));
        assert_eq!(quantile(&waits), Some(2_000_000));
        for second in 2..40 {
            histogram.record(1000);
            look(&mut waits, f64::from(second));
        }
        assert_eq!(quantile(&waits), Some(1000));
        // Nobody has asked since.
        (40..90).for_each(|second| look(&mut waits, f64::from(second)));
        assert_eq!(waits.recent().count(), 0);
        waits.look(91.0, Vec::new());
        assert!(waits.0.is_empty(), "it is not configured any more");
    }

    #[test]
    fn upstreams_are_bounded() {
        let mut waits = Waits::default();
        waits.look(1.0, (0..10_000).map(|n| (n.to_string(), Distribution::default())).collect());
        assert_eq!(waits.0.len(), MAX_UPSTREAMS);
        assert!(MAX_UPSTREAMS * size_of::<(String, Durations)>() < 1 << 20);
    }
}
