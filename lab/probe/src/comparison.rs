//! Samples of several variants, each set against the first: the heart of `--compare` and of `--from-curl`.

use serde::Serialize;

use crate::stats::{self, Bootstrap, Direction, MannWhitney, Permutation, Summary};
use crate::timing::{Metric, Timing};

/// All samples of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The variant's name, as given.
    pub name: String,
    /// One entry per attempt, in order.
    pub samples: Vec<Timing>,
}

/// One metric of one variant.
#[derive(Clone, Debug, Serialize)]
pub struct MetricSummary {
    /// Which duration.
    pub metric: Metric,
    /// Its summary, in nanoseconds.
    #[serde(flatten)]
    pub summary: Summary,
}

/// One metric of two variants.
#[derive(Clone, Debug, Serialize)]
pub struct MetricDifference {
    /// Which duration.
    pub metric: Metric,
    /// Means of the first and the second variant, in nanoseconds.
    pub means: [f64; 2],
    /// `(second − first) / first` of the means; `None` when the first is 0.
    pub relative_difference_of_means: Option<f64>,
    /// Medians of the first and the second variant, in nanoseconds.
    pub medians: [f64; 2],
    /// The interval of the difference of medians.
    pub bootstrap: Bootstrap,
    /// The Mann-Whitney test.
    pub mann_whitney: MannWhitney,
    /// Its p after Holm's correction over the family (all phases of all pairs, or the totals of all pairs);
    /// `None` for cumulative columns, about which nothing is claimed.
    pub adjusted_p: Option<f64>,
    /// The permutation test of the means.
    pub permutation: Permutation,
    /// What may be said; `None` for cumulative columns.
    pub verdict: Option<Direction>,
}

/// One variant against the first.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// The variant that the other is held against.
    pub first: String,
    /// The other.
    pub second: String,
    /// Phases, total, then curl's cumulative columns.
    pub metrics: Vec<MetricDifference>,
}

impl Pair {
    /// The entry for `metric`.
    pub fn metric(&self, metric: Metric) -> Option<&MetricDifference> {
        self.metrics.iter().find(|m| m.metric == metric)
    }
}

/// Every metric of one variant, phases first.
pub fn summarise(samples: &[Timing]) -> Vec<MetricSummary> {
    Metric::PHASES
        .into_iter()
        .chain([Metric::Total])
        .chain(Metric::CUMULATIVE)
        .filter_map(|metric| Some(MetricSummary { metric, summary: Summary::of(&metric.of_all(samples))? }))
        .collect()
}

/// Sets every series against the first. Empty series give no pair.
pub fn compare(series: &[Series], seed: u64) -> Vec<Pair> {
    let Some((first, others)) = series.split_first() else { return Vec::new() };
    let mut pairs: Vec<Pair> = others
        .iter()
        .map(|other| Pair {
            first: first.name.clone(),
            second: other.name.clone(),
            metrics: Metric::PHASES
                .into_iter()
                .chain([Metric::Total])
                .chain(Metric::CUMULATIVE)
                .filter_map(|metric| difference(metric, &first.samples, &other.samples, seed))
                .collect(),
        })
        .filter(|pair| !pair.metrics.is_empty())
        .collect();
    judge(&mut pairs, |metric| metric == Metric::Total);
    judge(&mut pairs, |metric| Metric::PHASES.contains(&metric));
    pairs
}

fn difference(metric: Metric, first: &[Timing], second: &[Timing], seed: u64) -> Option<MetricDifference> {
    let (a, b) = (metric.of_all(first), metric.of_all(second));
    // Large sets need fewer resamples: the interval's own noise falls with the sets' size.
    let resamples = if a.len() + b.len() <= 1000 { 10_000 } else { 2_000 };
    Some(MetricDifference {
        metric,
        means: [stats::mean(&a), stats::mean(&b)],
        relative_difference_of_means: stats::relative_difference_of_means(&a, &b),
        medians: [stats::median(&a), stats::median(&b)],
        bootstrap: stats::bootstrap_difference_of_medians(&a, &b, resamples, seed)?,
        mann_whitney: stats::mann_whitney(&a, &b)?,
        adjusted_p: None,
        permutation: stats::permutation_of_means(&a, &b, seed)?,
        verdict: None,
    })
}

/// Holds one family of tests against the level together, so that five phases do not get five chances at luck.
fn judge(pairs: &mut [Pair], family: impl Fn(Metric) -> bool) {
    let mut members: Vec<&mut MetricDifference> =
        pairs.iter_mut().flat_map(|pair| &mut pair.metrics).filter(|m| family(m.metric)).collect();
    let p: Vec<f64> = members.iter().map(|m| m.mann_whitney.p).collect();
    for (member, adjusted) in members.iter_mut().zip(stats::holm(&p)) {
        member.adjusted_p = Some(adjusted);
        member.verdict = Some(Direction::of(&member.bootstrap, adjusted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, tls: u64) -> Series {
        let samples = (0..20)
            .map(|i| {
                let connect = 100 + i * 7 % 20;
                let appconnect = connect + tls + i * 13 % 20;
                Timing { namelookup: 0, connect, appconnect, starttransfer: appconnect + 50, total: appconnect + 60 }
            })
            .collect();
        Series { name: name.into(), samples }
    }

    #[test]
    fn the_same_source_shows_no_difference_and_a_shift_does() {
        let pairs = compare(&[series("a", 1000), series("b", 1000), series("c", 1500)], 1);
        assert_eq!(pairs.len(), 2);
        let verdict = |pair: usize, metric| pairs[pair].metric(metric).and_then(|m| m.verdict);
        assert_eq!(verdict(0, Metric::Total), Some(Direction::NoDifferenceShown));
        assert_eq!(verdict(0, Metric::Tls), Some(Direction::NoDifferenceShown));
        assert_eq!(verdict(1, Metric::Tls), Some(Direction::Longer));
        assert_eq!(verdict(1, Metric::Tcp), Some(Direction::NoDifferenceShown));
        assert_eq!(verdict(1, Metric::TimeAppconnect), None);
    }

    #[test]
    fn nothing_to_compare_gives_no_pairs() {
        assert!(compare(&[], 1).is_empty());
        let empty = Series { name: "e".into(), samples: vec![] };
        assert!(compare(&[empty, series("b", 1)], 1).is_empty());
    }
}
