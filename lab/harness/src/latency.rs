//! From histograms to the points of a spectrum.

use hdrhistogram::Histogram;
use sealane_lab_load::verdict::tells;
use sealane_lab_report::{Figure, Part};

/// Adds the spectrum of latencies in `histogram` (nanoseconds) to a part, in milliseconds: percentiles with ten or
/// more samples beyond them, nine to each decade of nines.
pub fn spectrum(part: &mut Part, subject: &str, measure: &str, histogram: &Histogram<u64>) {
    for p in percentiles(histogram.len()) {
        let value = histogram.value_at_quantile(p / 100.0).min(histogram.max());
        part.push(Figure::new(subject, measure, value as f64 / 1e6, "ms").at(p).samples(histogram.len()));
    }
}

/// The value at a percentile in milliseconds, if enough samples lie beyond it.
pub fn percentile(histogram: &Histogram<u64>, p: f64) -> Option<f64> {
    tells(histogram.len(), p).then(|| histogram.value_at_quantile(p / 100.0).min(histogram.max()) as f64 / 1e6)
}

/// The highest of the percentiles that people name which so many samples can tell.
pub fn highest(samples: u64) -> Option<f64> {
    [99.9999, 99.999, 99.99, 99.9, 99.0, 90.0, 50.0].into_iter().find(|p| tells(samples, *p))
}

fn percentiles(samples: u64) -> Vec<f64> {
    let mut list = vec![0.0, 25.0, 50.0, 75.0];
    for decade in 1..=6 {
        // 90, 91, …, 98; 99, 99.1, …, 99.8; the named ones among them exactly.
        let step = 10f64.powi(1 - decade);
        let start = 100.0 - 10f64.powi(2 - decade);
        list.extend((0..9).map(|i| round(start + f64::from(i) * step)));
    }
    list.push(99.9999);
    list.retain(|p| *p == 0.0 || tells(samples, *p));
    list.dedup();
    list
}

fn round(p: f64) -> f64 {
    (p * 1e7).round() / 1e7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_percentiles_that_can_be_told() {
        let list = percentiles(10_000);
        assert_eq!(list.last(), Some(&99.9));
        assert!(list.contains(&50.0) && list.contains(&95.0) && list.contains(&99.5));
        assert_eq!(percentiles(10_000_000).last(), Some(&99.9999));
        assert_eq!(percentiles(5), [0.0]);
        assert_eq!((highest(10_000_000), highest(1000), highest(1)), (Some(99.9999), Some(99.0), None));
    }

    #[test]
    fn figures_are_in_milliseconds() {
        let mut h = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap();
        (1..=1000u64).for_each(|i| h.record(i * 1_000_000).unwrap());
        let mut part = Part::new("p", "P", "");
        spectrum(&mut part, "x", "latency", &h);
        let p99 = part.figures.iter().find(|f| f.x == Some(99.0)).unwrap();
        assert!((p99.value - 990.0).abs() < 2.0 && p99.n == 1000, "{p99:?}");
        assert_eq!(percentile(&h, 99.9), None);
    }
}
