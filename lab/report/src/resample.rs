//! The bootstrap: intervals that assume nothing about how values are distributed. Everything is seeded, so that the same
//! values give the same interval to the last digit.

/// A small seeded generator for resampling. Not for secrets. SplitMix64 (Steele, Lea and Flood, 2014): one addition and three mixes per
/// draw, full period, any seed is good.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator whose whole sequence is fixed by `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound` (0 when `bound` is 0). The bias is below bound / 2⁶⁴.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }
}

/// The percentile interval of a statistic: `statistic` draws one resample and returns its value. `confidence` is the probability
/// that the interval is to have, such as 0.95. `None` without resamples, or if a value is not finite.
pub fn interval(
    resamples: usize,
    confidence: f64,
    seed: u64,
    mut statistic: impl FnMut(&mut Rng) -> f64,
) -> Option<(f64, f64)> {
    let mut rng = Rng::new(seed);
    let mut drawn: Vec<f64> = (0..resamples).map(|_| statistic(&mut rng)).collect();
    if drawn.is_empty() || drawn.iter().any(|value| !value.is_finite()) {
        return None;
    }
    drawn.sort_unstable_by(f64::total_cmp);
    let last = drawn.len() - 1;
    let at = |q: f64| drawn[((q * last as f64).round() as usize).min(last)];
    let outside = (1.0 - confidence) / 2.0;
    Some((at(outside), at(1.0 - outside)))
}

/// How many neighbouring rounds stay together when rounds are resampled: the cube root of their number. What disturbs one
/// round (a neighbour on the host, a warm CPU) often disturbs the next one, too. Rounds that were drawn one by one would
/// hide this, and the interval would be too narrow.
pub fn block_length(rounds: usize) -> usize {
    ((rounds as f64).cbrt().round() as usize).max(1)
}

/// One resample of rounds in the order of time: blocks of neighbours from random places, until there are as many values as
/// `rounds` has. The end is followed by the beginning, so that every round is drawn equally often.
pub fn blocks(rounds: &[f64], rng: &mut Rng, into: &mut Vec<f64>) {
    into.clear();
    let (n, block) = (rounds.len(), block_length(rounds.len()));
    while into.len() < n {
        let start = rng.below(n);
        let take = block.min(n - into.len());
        into.extend((0..take).map(|i| rounds[(start + i) % n]));
    }
}

/// The block-bootstrap interval of median(b) ÷ median(a), for rounds in the order of time. `None` if one side has no rounds, or
/// if a ratio is not finite.
pub fn ratio_of_medians(a: &[f64], b: &[f64], resamples: usize, confidence: f64, seed: u64) -> Option<(f64, f64)> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let mut scratch = Vec::with_capacity(a.len().max(b.len()));
    interval(resamples, confidence, seed, |rng| {
        blocks(a, rng, &mut scratch);
        let base = median(&mut scratch);
        blocks(b, rng, &mut scratch);
        median(&mut scratch) / base
    })
}

/// From this many rounds on, the block bootstrap is better than order statistics, which assume that rounds are independent. With fewer
/// rounds, its intervals are too narrow.
pub const MANY: usize = 20;
/// How often rounds are drawn again.
pub const RESAMPLES: usize = 10_000;
/// The seed of all intervals of reports.
pub const SEED: u64 = 0x5ea1_a9e0;

/// The block-bootstrap interval of the median of rounds in the order of time, with 95 %. `None` without rounds.
pub fn median_interval(rounds: &[f64]) -> Option<(f64, f64)> {
    if rounds.is_empty() {
        return None;
    }
    let mut scratch = Vec::with_capacity(rounds.len());
    interval(RESAMPLES, 0.95, SEED, |rng| {
        blocks(rounds, rng, &mut scratch);
        median(&mut scratch)
    })
}

/// The median of a non-empty slice, without sorting all of it.
fn median(values: &mut [f64]) -> f64 {
    let n = values.len();
    let (below, &mut middle, _) = values.select_nth_unstable_by(n / 2, f64::total_cmp);
    if n % 2 == 1 {
        return middle;
    }
    let lower = below.iter().copied().max_by(f64::total_cmp).unwrap_or(middle);
    (lower + middle) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&mut [7.0]), 7.0);
    }

    #[test]
    fn blocks_are_neighbours_and_as_many_values_as_rounds() {
        assert_eq!([1, 6, 12, 27, 100, 1000].map(block_length), [1, 2, 2, 3, 5, 10]);
        let rounds: Vec<f64> = (0..27).map(f64::from).collect();
        let (mut rng, mut drawn) = (Rng::new(5), Vec::new());
        let mut counts = [0; 27];
        for _ in 0..3000 {
            blocks(&rounds, &mut rng, &mut drawn);
            assert_eq!(drawn.len(), 27);
            for block in drawn.chunks(3) {
                assert!((block[0] + 1.0) % 27.0 == block[1] && (block[1] + 1.0) % 27.0 == block[2], "{block:?}");
            }
            drawn.iter().for_each(|value| counts[*value as usize] += 1);
        }
        // Each is drawn 3,000 times, give or take a tenth.
        assert!(counts.iter().all(|n| (2700..3300).contains(n)), "{counts:?}");
        blocks(&[], &mut rng, &mut drawn);
        assert!(drawn.is_empty());
    }

    #[test]
    fn the_interval_is_seeded_and_contains_the_ratio() {
        let a: Vec<f64> = (0..30).map(|i| 100.0 + f64::from(i * 17 % 31) / 10.0).collect();
        let b: Vec<f64> = a.iter().map(|v| v * 1.1).collect();
        let first = ratio_of_medians(&a, &b, 2000, 0.95, 3).unwrap();
        assert_eq!(Some(first), ratio_of_medians(&a, &b, 2000, 0.95, 3));
        assert!(first.0 > 1.08 && first.0 <= 1.1 && first.1 >= 1.1 && first.1 < 1.12, "{first:?}");
        let wider = ratio_of_medians(&a, &b, 2000, 0.999, 3).unwrap();
        assert!(wider.0 <= first.0 && wider.1 >= first.1, "{wider:?}");
        assert_eq!(ratio_of_medians(&a, &[], 2000, 0.95, 3), None);
        assert_eq!(ratio_of_medians(&[0.0], &[1.0], 10, 0.95, 3), None);
        assert_eq!(interval(0, 0.95, 1, |_| 1.0), None);
    }

    #[test]
    fn the_interval_of_a_median_contains_it() {
        let rounds: Vec<f64> = (0..40).map(|i| 1.0 + f64::from(i * 17 % 41) / 1000.0).collect();
        let (low, high) = median_interval(&rounds).unwrap();
        let middle = median(&mut rounds.clone());
        assert!(low < middle && middle < high && low >= 1.0 && high <= 1.041, "{low} {middle} {high}");
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn blocks_keep_what_neighbours_share() {
        // Rounds that come in runs of ten equal values say less than as many independent rounds: the interval is wider.
        let level = |i: u32| 100.0 + f64::from(i * 7 % 10);
        let runs: Vec<f64> = (0..100).map(|i| level(i / 10)).collect();
        let mixed: Vec<f64> = (0..100).map(|i| level(i % 10)).collect();
        let width = |rounds: &[f64]| {
            let (low, high) = ratio_of_medians(&[1.0], rounds, 2000, 0.95, 1).unwrap();
            high - low
        };
        assert!(width(&runs) > width(&mixed), "{} {}", width(&runs), width(&mixed));
    }

    #[test]
    fn the_reference_sequence_for_seed_1234567() {
        // Values of the algorithm's published reference implementation for this seed.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
        assert_eq!(rng.next_u64(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn below_stays_below_and_reaches_every_value() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[rng.below(7)] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(rng.below(0), 0);
    }
}
