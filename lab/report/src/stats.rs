//! Few rounds, honestly summed up.

use serde::{Deserialize, Serialize};

/// The median of rounds, with an interval that assumes nothing about how they are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Centre {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// How sure it is that the true median lies within, 0 to 1.
    pub confidence: f64,
}

impl Centre {
    /// From six rounds on the narrowest symmetric interval of order statistics that holds the median with at least
    /// 95 %; with fewer, from the least to the greatest, and `confidence` says what that is worth. `None` without
    /// rounds.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let sorted = sorted(rounds)?;
        let n = sorted.len();
        // Outside [k, n-1-k] with probability 2·P(Binomial(n, ½) ≤ k).
        let mut outside = 0.5f64.powi(n as i32);
        let mut term = outside;
        let (mut k, mut sure) = (0, 1.0 - 2.0 * outside);
        for next in 1..n.div_ceil(2) {
            term *= (n - next + 1) as f64 / next as f64;
            outside += term;
            if 1.0 - 2.0 * outside < 0.95 {
                break;
            }
            (k, sure) = (next, 1.0 - 2.0 * outside);
        }
        Some(Self { median: middle(&sorted), low: sorted[k], high: sorted[n - 1 - k], confidence: sure.max(0.0) })
    }
}

/// The median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    sorted(values).map(|s| middle(&s))
}

/// The mean, and half of its 95 % interval (normal approximation: for many values); `None` with fewer than two values.
pub fn mean(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some((mean, 1.96 * (variance / n).sqrt()))
}

/// Ratios `a[i] / b[i]` of rounds that both have: `a` and `b` are (round, value).
pub fn paired_ratios(a: &[(usize, f64)], b: &[(usize, f64)]) -> Vec<f64> {
    let partner = |round: usize| b.iter().find(|(r, v)| *r == round && *v != 0.0).map(|(_, v)| *v);
    a.iter().filter_map(|(round, value)| partner(*round).map(|other| value / other)).collect()
}

fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then_some(sorted)
}

fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_an_interval_from_two_values_on() {
        let (middle, half) = mean(&[1.0, 3.0, 1.0, 3.0]).unwrap();
        assert!((middle - 2.0).abs() < 1e-12 && (half - 1.96 * (4.0_f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12, "{half}");
        assert_eq!(mean(&[1.0]), None);
    }

    #[test]
    fn few_rounds_give_their_whole_range_and_say_what_it_is_worth() {
        let c = Centre::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((c.median, c.low, c.high, c.confidence), (2.0, 1.0, 3.0, 0.75));
        let c = Centre::of(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!((c.median, c.low, c.high, c.confidence), (2.5, 1.0, 4.0, 0.875));
        assert_eq!(Centre::of(&[]), None);
        assert_eq!(Centre::of(&[5.0]).unwrap().confidence, 0.0);
    }

    #[test]
    fn more_rounds_give_a_narrower_interval_of_known_confidence() {
        // The table of every textbook: n = 9 → 2nd to 8th, 96.1 %; n = 20 → 6th to 15th, 95.9 %.
        let nine: Vec<f64> = (1..=9).map(f64::from).collect();
        let c = Centre::of(&nine).unwrap();
        assert_eq!((c.low, c.high), (2.0, 8.0));
        assert!((c.confidence - 0.9609).abs() < 1e-4, "{}", c.confidence);
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        let c = Centre::of(&twenty).unwrap();
        assert_eq!((c.low, c.high), (6.0, 15.0));
        assert!((c.confidence - 0.9586).abs() < 1e-4, "{}", c.confidence);
    }

    #[test]
    fn ratios_pair_rounds_that_both_have() {
        let a = [(0, 2.0), (1, 3.0), (3, 8.0)];
        let b = [(0, 1.0), (2, 9.0), (3, 4.0)];
        assert_eq!(paired_ratios(&a, &b), [2.0, 2.0]);
        assert_eq!(median(&[]), None);
    }
}
