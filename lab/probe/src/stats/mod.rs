//! The statistics of a probe: summaries of a few dozen latencies and honest comparisons of two such sets.
//!
//! Everything here is pure and seeded, so that the same samples give the same report to the last digit.
//! Samples are nanoseconds in `u64`; what is derived from them is `f64` nanoseconds.

mod compare;
mod special;

pub use compare::{
    ALPHA, Bootstrap, Direction, MannWhitney, MannWhitneyMethod, Permutation, bootstrap_difference_of_medians, holm,
    mann_whitney, permutation_of_means, relative_difference_of_means,
};
/// The generator of the whole lab.
pub use sealane_lab_report::resample::Rng;

use serde::Serialize;

/// A percentile is printed only with at least this many samples beyond it.
pub const BEYOND: f64 = 10.0;

/// What is said of one set of samples. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many samples there were.
    pub n: usize,
    /// The smallest sample.
    pub min: u64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The 90th percentile; only with ten samples beyond it (n ≥ 100).
    pub p90: Option<f64>,
    /// The 99th percentile; only with ten samples beyond it (n ≥ 1000).
    pub p99: Option<f64>,
    /// The largest sample.
    pub max: u64,
}

impl Summary {
    /// Summarises `samples`; `None` when there are none.
    pub fn of(samples: &[u64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        Some(Self {
            n: sorted.len(),
            min,
            mean: mean(&sorted),
            median: median_of_sorted(&sorted),
            p90: percentile_of_sorted(&sorted, 0.90),
            p99: percentile_of_sorted(&sorted, 0.99),
            max,
        })
    }
}

/// The arithmetic mean, in the samples' unit; 0 for none.
pub fn mean(samples: &[u64]) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    // A u128 sum is exact, so that the mean does not depend on the samples' order.
    samples.iter().map(|&x| u128::from(x)).sum::<u128>() as f64 / samples.len() as f64
}

/// The median, in the samples' unit; 0 for none.
pub fn median(samples: &[u64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[u64]) -> f64 {
    let n = sorted.len();
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => sorted[n / 2] as f64,
        _ => (sorted[n / 2 - 1] as f64 + sorted[n / 2] as f64) / 2.0,
    }
}

/// The nearest-rank percentile, or `None` when fewer than [`BEYOND`] samples lie beyond it.
fn percentile_of_sorted(sorted: &[u64], q: f64) -> Option<f64> {
    let n = sorted.len() as f64;
    // The tolerance is for n × 0.1, which is a hair below 10 in binary for n = 100.
    if n * (1.0 - q) < BEYOND - 1e-9 {
        return None;
    }
    let rank = (q * n - 1e-9).ceil().max(1.0) as usize;
    sorted.get(rank - 1).map(|&x| x as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[3, 1, 2]), 2.0);
        assert_eq!(median(&[4, 1, 3, 2]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn percentiles_need_ten_samples_beyond_them() {
        let samples: Vec<u64> = (1..=99).collect();
        assert_eq!(Summary::of(&samples).expect("samples").p90, None);
        let samples: Vec<u64> = (1..=100).collect();
        let summary = Summary::of(&samples).expect("samples");
        assert_eq!(summary.p90, Some(90.0));
        assert_eq!(summary.p99, None);
        let samples: Vec<u64> = (1..=1000).collect();
        assert_eq!(Summary::of(&samples).expect("samples").p99, Some(990.0));
    }

    #[test]
    fn a_summary_of_nothing_is_none() {
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_mean_does_not_overflow() {
        assert_eq!(mean(&[u64::MAX, u64::MAX]), u64::MAX as f64);
    }
}
