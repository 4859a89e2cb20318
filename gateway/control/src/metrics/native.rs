//! Native histograms of Prometheus, made from the buckets of the lanes' histograms.
//!
//! A native histogram has buckets whose bounds are powers of two: with schema 2, four for each doubling, about 19 % wide. The lanes' buckets
//! are about 25 % wide, and their bounds are others. So what a lane's bucket has counted is divided among the two native buckets that have
//! most of it, as if it were spread evenly (on a scale of logarithms). Counts and sums are exact; a duration is in its own native bucket
//! or beside it. Each part grows only if the whole grows: a native bucket never falls.

use sealane_lane::histogram::{BOUNDS, Distribution};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Four buckets for each power of two.
const PER_OCTAVE: f64 = 4.0;
/// The number of the schema: 2^(2^-2) is the ratio of two bounds.
pub const SCHEMA: i32 = 2;
/// What is at most so long, in seconds, is in the bucket for zero: the first bucket of the lanes.
pub const ZERO_THRESHOLD: f64 = 0.000_01;

/// A native histogram's buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Native {
    /// How many are in the bucket for zero.
    pub zero_count: u64,
    /// Rows of buckets that stand side by side: how many empty buckets are before it (the first: the index of its first bucket), and its
    /// length.
    pub spans: Vec<(i32, u32)>,
    /// The difference of each bucket's count to the one before it.
    pub deltas: Vec<i64>,
}

/// Where the count of a lane's bucket goes: the index of the native bucket that has most of it, and the index and the part of another one.
#[derive(Clone, Copy, Debug)]
struct Share {
    main: i32,
    other: i32,
    part: f64,
}

/// The position of a duration among the bounds of native buckets: a whole number is the upper bound of that bucket.
fn position(micros: u64) -> f64 {
    (micros as f64 / 1e6).log2() * PER_OCTAVE
}

fn shares() -> &'static [Share] {
    static SHARES: OnceLock<Vec<Share>> = OnceLock::new();
    SHARES.get_or_init(|| {
        let within = BOUNDS.windows(2).map(|bounds| {
            let (from, to) = (position(bounds[0]), position(bounds[1]));
            let (first, last) = (from.floor() as i32 + 1, to.ceil() as i32);
            let part = |index: i32| {
                let (low, high) = (f64::from(index - 1).max(from), f64::from(index).min(to));
                (high - low).max(0.0) / (to - from)
            };
            let mut parts: Vec<(i32, f64)> = (first..=last).map(|index| (index, part(index))).collect();
            parts.sort_by(|a, b| b.1.total_cmp(&a.1));
            let (main, _) = parts.first().copied().unwrap_or((last, 1.0));
            let (other, part) = parts.get(1).copied().unwrap_or((main, 0.0));
            Share { main, other, part }
        });
        let above = BOUNDS.last().map_or(0, |bound| position(*bound).ceil() as i32 + 1);
        within.chain([Share { main: above, other: above, part: 0.0 }]).collect()
    })
}

impl Native {
    /// Of what lanes have recorded.
    pub fn of(times: &Distribution) -> Self {
        let counts = times.counts();
        let mut buckets: BTreeMap<i32, u64> = BTreeMap::new();
        for (share, count) in shares().iter().zip(&counts[1..]).filter(|(_, count)| **count > 0) {
            let other = (*count as f64 * share.part).floor() as u64;
            *buckets.entry(share.main).or_default() += count - other;
            if other > 0 {
                *buckets.entry(share.other).or_default() += other;
            }
        }
        let mut native = Self { zero_count: counts[0], ..Self::default() };
        let (mut next, mut before) = (0, 0);
        for (index, count) in buckets {
            match native.spans.last_mut() {
                Some((_, length)) if index == next => *length += 1,
                _ => native.spans.push((index - next, 1)),
            }
            next = index + 1;
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            native.deltas.push(count - before);
            before = count;
        }
        native
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lane::histogram::Histogram;

    fn native(micros: &[u64]) -> Native {
        let histogram = Histogram::default();
        micros.iter().for_each(|micros| histogram.record(*micros));
        let mut times = Distribution::default();
        times.add(&histogram);
        Native::of(&times)
    }

    /// The buckets by their index.
    fn buckets(native: &Native) -> BTreeMap<i32, i64> {
        let (mut found, mut index, mut count, mut deltas) = (BTreeMap::new(), 0, 0, native.deltas.iter());
        for (offset, length) in &native.spans {
            index += offset;
            for _ in 0..*length {
                count += deltas.next().expect("there is one for each bucket");
                found.insert(index, count);
                index += 1;
            }
        }
        assert!(deltas.next().is_none());
        found
    }

    #[test]
    fn every_duration_is_counted_once_near_its_own_bucket() {
        for micros in (0..9).flat_map(|power| [1, 2, 3, 5, 7, 9].map(|n| n * 10u64.pow(power))) {
            let native = native(&vec![micros; 1000]);
            let all: i64 = buckets(&native).values().sum();
            assert_eq!(all as u64 + native.zero_count, 1000, "{micros}");
            assert_eq!(native.zero_count > 0, micros <= 10, "{micros}");
            for index in buckets(&native).keys() {
                let distance = position(micros) - f64::from(*index);
                // Within the bucket of a lane, of 1.4 native buckets, and its neighbours.
                assert!((-2.4..=1.4).contains(&distance), "{micros}: {distance}");
            }
        }
        assert_eq!(native(&[]), Native::default());
        let longest = native(&[u64::MAX, 2_000_000_000]);
        assert_eq!(buckets(&longest).into_iter().collect::<Vec<_>>(), [(41, 2)]);
    }

    /// A bucket that falls looks to Prometheus like a restart.
    #[test]
    fn no_bucket_ever_falls() {
        let histogram = Histogram::default();
        let mut before = BTreeMap::new();
        let mut seed = 1u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            histogram.record((seed >> 33) % 3_000);
            let mut times = Distribution::default();
            times.add(&histogram);
            let now = buckets(&Native::of(&times));
            assert!(before.iter().all(|(index, count)| now.get(index).is_some_and(|n| n >= count)));
            before = now;
        }
    }
}
