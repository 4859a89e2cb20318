//! Two sets of samples side by side: how far apart, how sure, and could it be chance?
//!
//! Three instruments, because each fails differently: the bootstrap says how large a difference is, the
//! Mann-Whitney test whether one set tends to lie above the other (one slow outlier moves it little), and
//! the permutation of means whether the averages differ (one slow outlier moves it much).

use sealane_lab_report::resample;
use serde::Serialize;

use super::special::normal_tail;
use super::{Rng, mean};

/// An interval for `median(b) − median(a)`, in nanoseconds, by the percentile bootstrap.
///
/// The percentile method, not BCa: BCa's acceleration comes from a jackknife, and the jackknife of a median
/// is inconsistent (leaving one out moves it by at most one step).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bootstrap {
    /// `median(b) − median(a)` of the samples themselves.
    pub difference: f64,
    /// The lower end of the 95 % interval.
    pub low: f64,
    /// The upper end of the 95 % interval.
    pub high: f64,
    /// How often both sets were resampled.
    pub resamples: usize,
    /// The seed that gives the same interval again.
    pub seed: u64,
}

/// Resamples both sets `resamples` times; `None` when either is empty or `resamples` is 0.
pub fn bootstrap_difference_of_medians(a: &[u64], b: &[u64], resamples: usize, seed: u64) -> Option<Bootstrap> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let mut scratch = Vec::with_capacity(a.len().max(b.len()));
    let mut draw = |from: &[u64], rng: &mut Rng| {
        scratch.clear();
        scratch.extend((0..from.len()).map(|_| from[rng.below(from.len())]));
        median_in_place(&mut scratch)
    };
    let (low, high) = resample::interval(resamples, 0.95, seed, |rng| {
        let first = draw(a, rng);
        draw(b, rng) - first
    })?;
    Some(Bootstrap {
        difference: median_in_place(&mut b.to_vec()) - median_in_place(&mut a.to_vec()),
        low,
        high,
        resamples,
        seed,
    })
}

/// The median of a non-empty slice, without sorting all of it.
fn median_in_place(samples: &mut [u64]) -> f64 {
    let n = samples.len();
    let (below, &mut middle, _) = samples.select_nth_unstable(n / 2);
    if n % 2 == 1 {
        return middle as f64;
    }
    let lower = below.iter().max().copied().unwrap_or(middle);
    (lower as f64 + middle as f64) / 2.0
}

/// How a Mann-Whitney p was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MannWhitneyMethod {
    /// By counting every arrangement of ranks: few samples, no ties.
    Exact,
    /// By the normal distribution, with the corrections for ties and for continuity.
    Normal,
}

/// The Mann-Whitney U test, two-sided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MannWhitney {
    /// Pairs in which the sample of `a` is the larger one (ties count half).
    pub u: f64,
    /// The chance of a U at least this far from the middle if both sets came from one source.
    pub p: f64,
    /// How `p` was computed.
    pub method: MannWhitneyMethod,
}

/// Above this many samples in both sets together the normal distribution is as good as counting.
const EXACT_UP_TO: usize = 100;

/// Tests whether one set tends to lie above the other; `None` when either is empty.
pub fn mann_whitney(a: &[u64], b: &[u64]) -> Option<MannWhitney> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let (n1, n2) = (a.len(), b.len());
    let mut all: Vec<(u64, bool)> = a.iter().map(|&x| (x, true)).chain(b.iter().map(|&x| (x, false))).collect();
    all.sort_unstable();

    // Twice the sum of a's ranks, so that the half ranks of ties stay whole numbers.
    let (mut twice_ranks, mut ties) = (0u128, 0.0f64);
    let mut tied = false;
    let mut start = 0;
    for run in all.chunk_by(|x, y| x.0 == y.0) {
        let t = run.len();
        let of_a = run.iter().filter(|x| x.1).count();
        // Ranks start+1 ..= start+t share their average, (2·start + t + 1) / 2.
        twice_ranks += (of_a * (2 * start + t + 1)) as u128;
        let t = t as f64;
        ties += t * t * t - t;
        tied |= run.len() > 1;
        start += run.len();
    }
    let u = twice_ranks as f64 / 2.0 - (n1 * (n1 + 1)) as f64 / 2.0;
    let product = (n1 * n2) as f64;

    if !tied && n1 + n2 <= EXACT_UP_TO {
        let smaller = u.min(product - u) as usize;
        let p = (2.0 * exact_lower_tail(n1, n2, smaller)).min(1.0);
        return Some(MannWhitney { u, p, method: MannWhitneyMethod::Exact });
    }
    let n = (n1 + n2) as f64;
    let variance = product / 12.0 * ((n + 1.0) - ties / (n * (n - 1.0)));
    let p = if variance <= 0.0 {
        // Every sample is the same: nothing tells the sets apart.
        1.0
    } else {
        let z = ((u - product / 2.0).abs() - 0.5) / variance.sqrt();
        (2.0 * normal_tail(z)).min(1.0)
    };
    Some(MannWhitney { u, p, method: MannWhitneyMethod::Normal })
}

/// P(U ≤ u) for sets of n1 and n2 samples without ties.
///
/// The number of arrangements with U = k is the coefficient of qᵏ in the Gaussian binomial [n1+n2 over n1]:
/// multiply by (1 − q^(n2+i)) and divide by (1 − qⁱ) for i = 1..n1. Whole numbers throughout: C(100, 50) is
/// about 10²⁹ and fits an `i128`.
fn exact_lower_tail(n1: usize, n2: usize, u: usize) -> f64 {
    let mut counts = vec![0i128; u + 1];
    counts[0] = 1;
    for i in 1..=n1 {
        for k in (n2 + i..=u).rev() {
            counts[k] -= counts[k - n2 - i];
        }
        for k in i..=u {
            counts[k] += counts[k - i];
        }
    }
    let arrangements = (1..=n1).fold(1.0f64, |c, i| c * (n2 + i) as f64 / i as f64);
    counts.iter().map(|&c| c as f64).sum::<f64>() / arrangements
}

/// The permutation test of the difference of means, two-sided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Permutation {
    /// The share of relabellings whose means lie at least as far apart as those measured.
    pub p: f64,
    /// Whether every relabelling was tried; otherwise a seeded sample of them.
    pub exact: bool,
    /// How many relabellings were tried.
    pub relabellings: u64,
}

/// Every relabelling is tried up to this many: C(20, 10) = 184 756, C(22, 11) = 705 432.
const ENUMERATE_UP_TO: u64 = 1_000_000;
const RELABELLINGS: u64 = 20_000;

/// Tests whether the means differ by relabelling the samples; `None` when either set is empty.
pub fn permutation_of_means(a: &[u64], b: &[u64], seed: u64) -> Option<Permutation> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let mut all: Vec<i128> = a.iter().chain(b).map(|&x| i128::from(x)).collect();
    let (n1, n) = (a.len(), all.len());
    let total: i128 = all.iter().sum();
    // mean(a) − mean(b) is n·sum(a) − n1·total up to a constant factor: whole numbers, so that ties are exact.
    let distance = |sum: i128| (sum * n as i128 - total * n1 as i128).abs();
    let observed = distance(all[..n1].iter().sum());

    if let Some(count) = binomial_up_to(n, n1, ENUMERATE_UP_TO) {
        let mut extreme = 0u64;
        let mut mask = (1u64 << n1) - 1;
        for _ in 0..count {
            let sum = (0..n).filter(|i| mask >> i & 1 == 1).map(|i| all[i]).sum();
            extreme += u64::from(distance(sum) >= observed);
            // Gosper's hack: the next larger number with as many bits set.
            let lowest = mask & mask.wrapping_neg();
            let ripple = mask + lowest;
            mask = ripple | (((mask ^ ripple) / lowest) >> 2);
        }
        return Some(Permutation { p: extreme as f64 / count as f64, exact: true, relabellings: count });
    }
    let mut rng = Rng::new(seed);
    let mut extreme = 0u64;
    for _ in 0..RELABELLINGS {
        for i in 0..n1 {
            let j = i + rng.below(n - i);
            all.swap(i, j);
        }
        extreme += u64::from(distance(all[..n1].iter().sum()) >= observed);
    }
    // The labelling that was measured counts as one, so that p is never 0.
    let p = (extreme + 1) as f64 / (RELABELLINGS + 1) as f64;
    Some(Permutation { p, exact: false, relabellings: RELABELLINGS })
}

/// C(n, k) when it is no more than `limit` (and n fits a 62-bit mask).
fn binomial_up_to(n: usize, k: usize, limit: u64) -> Option<u64> {
    if n > 62 {
        return None;
    }
    let k = k.min(n - k);
    let mut c = 1u64;
    for i in 0..k {
        c = c * (n - i) as u64 / (i + 1) as u64;
        if c > limit {
            return None;
        }
    }
    Some(c)
}

/// Holm's correction: p-values of a family of tests, adjusted so that the chance of *any* false alarm in the
/// family stays below the level that each is held against.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut adjusted = vec![1.0; p.len()];
    let mut floor = 0.0f64;
    for (rank, &i) in order.iter().enumerate() {
        floor = floor.max(((p.len() - rank) as f64 * p[i]).min(1.0));
        adjusted[i] = floor;
    }
    adjusted
}

/// What may be said about b against a.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// b takes less time than a.
    Shorter,
    /// b takes more time than a.
    Longer,
    /// The samples do not show a difference; there may still be one, smaller than they can show.
    NoDifferenceShown,
}

/// The level that p is held against.
pub const ALPHA: f64 = 0.05;

impl Direction {
    /// A difference is shown only when the (adjusted) p is below 0.05 *and* the interval leaves out zero.
    pub fn of(bootstrap: &Bootstrap, adjusted_p: f64) -> Self {
        match () {
            () if adjusted_p >= ALPHA || adjusted_p.is_nan() => Self::NoDifferenceShown,
            () if bootstrap.high < 0.0 => Self::Shorter,
            () if bootstrap.low > 0.0 => Self::Longer,
            () => Self::NoDifferenceShown,
        }
    }
}

/// The difference of means, `mean(b) − mean(a)`, as a share of `mean(a)`; `None` when that is 0.
pub fn relative_difference_of_means(a: &[u64], b: &[u64]) -> Option<f64> {
    let base = mean(a);
    (base > 0.0).then(|| (mean(b) - base) / base)
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
