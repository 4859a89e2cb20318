//! Distributions of durations of one lane: written by that lane alone, read by anybody.
//!
//! A [`Histogram`] has a fixed size and ten buckets for each power of ten, about 25 % wide: the numbers of the series
//! R10 (ISO 3). So the bounds that people ask for (10, 25, 50, 100 … ms) are bounds of buckets, and what is counted up to
//! one of them is exact.

use crate::counter::Counter;

/// R10, in hundredths.
const R10: [u64; 10] = [100, 125, 160, 200, 250, 315, 400, 500, 630, 800];
/// From 10 µs to 1000 s.
const DECADES: usize = 8;

/// The upper bounds of the buckets in microseconds, inclusive. The last bucket has none.
pub const BOUNDS: [u64; DECADES * R10.len() + 1] = bounds();

/// How many buckets there are.
pub const BUCKETS: usize = BOUNDS.len() + 1;

/// By the number of bits of a value: the first bucket that such a value can be in.
const FIRST: [u8; 65] = first();

const fn bounds() -> [u64; DECADES * R10.len() + 1] {
    let mut out = [0; DECADES * R10.len() + 1];
    let mut scale = 1;
    let mut i = 0;
    while i < out.len() {
        // The first decade begins at 10 µs; fractions of a microsecond are not measured.
        out[i] = R10[i % R10.len()] * scale / 10;
        i += 1;
        if i.is_multiple_of(R10.len()) {
            scale *= 10;
        }
    }
    out
}

const fn first() -> [u8; 65] {
    let mut out = [0; 65];
    let mut bits = 1;
    while bits < out.len() {
        let smallest = 1 << (bits - 1);
        let mut bucket = 0;
        while bucket < BOUNDS.len() && BOUNDS[bucket] < smallest {
            bucket += 1;
        }
        out[bits] = bucket as u8;
        bits += 1;
    }
    out
}

/// The bucket of a duration in microseconds. At most four comparisons: a power of two spans three or four buckets.
#[inline]
fn bucket(micros: u64) -> usize {
    let mut bucket = usize::from(FIRST[(u64::BITS - micros.leading_zeros()) as usize]);
    while bucket < BOUNDS.len() && BOUNDS[bucket] < micros {
        bucket += 1;
    }
    bucket
}

/// How long something took, as one lane has seen it.
#[derive(Debug)]
pub struct Histogram {
    counts: [Counter; BUCKETS],
    sum: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| Counter::default()), sum: Counter::default() }
    }
}

impl Histogram {
    /// Counts a duration in microseconds. Only the owning lane may call this.
    #[inline]
    pub fn record(&self, micros: u64) {
        if cfg!(feature = "uninstrumented") {
            return;
        }
        self.counts[bucket(micros)].inc();
        self.sum.add(micros);
    }
}

/// A distribution as read: of one lane, or of several added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    counts: [u64; BUCKETS],
    /// The sum of all durations, in microseconds.
    pub sum: u64,
}

impl Default for Distribution {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl Distribution {
    /// Adds what a lane has counted.
    pub fn add(&mut self, histogram: &Histogram) {
        // The sum first: a duration that is counted meanwhile is then in a bucket, and not yet in the sum.
        self.sum = self.sum.wrapping_add(histogram.sum.value());
        for (count, counted) in self.counts.iter_mut().zip(&histogram.counts) {
            *count = count.wrapping_add(counted.value());
        }
    }

    /// Adds another distribution.
    pub fn merge(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, n)| *count = count.wrapping_add(*n));
    }

    /// What has come since an earlier look at the same; all, where it has begun again since.
    pub fn since(&self, earlier: &Self) -> Self {
        if self.counts.iter().zip(&earlier.counts).any(|(now, then)| now < then) {
            return self.clone();
        }
        let mut since = self.clone();
        since.counts.iter_mut().zip(&earlier.counts).for_each(|(count, n)| *count -= n);
        since.sum = since.sum.wrapping_sub(earlier.sum);
        since
    }

    /// How many durations are in each bucket; those of the last one are above all [`BOUNDS`].
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// How many durations there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many durations are at most so long. `micros` is one of [`BOUNDS`]; else it is rounded down to one.
    pub fn at_most(&self, micros: u64) -> u64 {
        BOUNDS.iter().zip(&self.counts).take_while(|(bound, _)| **bound <= micros).map(|(_, count)| count).sum()
    }

    /// The bound in microseconds that this part (0 to 1) of the durations does not exceed; `None` without durations.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let count = self.count();
        let rank = ((count as f64 * part).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        let reaches = |n: &u64| {
            below += n;
            below >= rank
        };
        let bucket = self.counts.iter().position(reaches)?;
        Some(BOUNDS.get(bucket).copied().unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_and_have_the_numbers_that_people_ask_for() {
        assert!(BOUNDS.is_sorted_by(|a, b| a < b));
        assert_eq!((BOUNDS[0], BOUNDS[BOUNDS.len() - 1]), (10, 1_000_000_000));
        for asked in [10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 250_000, 1_000_000, 100_000_000] {
            assert!(BOUNDS.contains(&asked), "{asked}");
        }
    }

    #[test]
    fn every_duration_is_in_the_bucket_whose_bounds_it_lies_between() {
        let around = BOUNDS.iter().flat_map(|b| [b - 1, *b, b + 1]);
        let powers = (0..64).flat_map(|n| [(1u64 << n) - 1, 1 << n, (1 << n) + 1]);
        for micros in around.chain(powers).chain([0, u64::MAX]) {
            let found = bucket(micros);
            assert!(found == BOUNDS.len() || micros <= BOUNDS[found], "{micros}");
            assert!(found == 0 || micros > BOUNDS[found - 1], "{micros}");
        }
    }

    #[test]
    fn distributions_are_added_and_taken_apart() {
        let (one, two) = (Histogram::default(), Histogram::default());
        [10, 20, 3000].iter().for_each(|micros| one.record(*micros));
        two.record(20);
        let [mut first, mut second] = [Distribution::default(), Distribution::default()];
        first.add(&one);
        second.add(&two);
        let mut both = first.clone();
        both.merge(&second);
        assert_eq!((both.count(), both.sum, both.at_most(20)), (4, 3050, 3));
        assert_eq!(both.since(&first), second);
        assert_eq!(second.since(&first), second, "it has begun again");
        assert_eq!(both.counts().iter().sum::<u64>(), 4);
    }

    #[test]
    fn lanes_add_up() {
        let (one, two) = (Histogram::default(), Histogram::default());
        for micros in [5, 900, 1000, 1001] {
            one.record(micros);
        }
        two.record(2_000_000_000);
        let mut all = Distribution::default();
        assert_eq!((all.count(), all.quantile(0.5)), (0, None));
        all.add(&one);
        all.add(&two);
        assert_eq!((all.count(), all.sum), (5, 2_000_002_906));
        assert_eq!((all.at_most(10), all.at_most(1000), all.at_most(1249), all.at_most(1250)), (1, 3, 3, 4));
        assert_eq!((all.quantile(0.0), all.quantile(0.6), all.quantile(1.0)), (Some(10), Some(1000), Some(u64::MAX)));
    }
}
