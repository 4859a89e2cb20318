//! Least squares with non-negative coefficients and forgetting: what one operation of each kind costs, where only the sum of all
//! costs is measured.
//!
//! Each row says how many operations of each kind there were in an interval, and how much time they took together. The sums of
//! products of all rows are kept, not the rows; each row makes the weight of those before it a little smaller. A cost is known only
//! where the rows determine it: two kinds of operations that always come together, or a kind that comes at a constant rate, have none.

/// A result that is further from the truth than this part of itself (one standard error) is none.
const MAX_RELATIVE_ERROR: f64 = 0.25;
/// So many operations make a result.
const MIN_OPERATIONS: f64 = 20.0;
/// So many rows more than there are kinds of operations.
const MIN_ROWS: f64 = 10.0;
/// The least part of a kind's numbers that must not follow from the numbers of the others. Without it, what is left are the numbers
/// of operations that began in one interval and ended in the next.
const MIN_TOLERANCE: f64 = 3e-5;
/// The time of a row without operations, in seconds: rows are weighted by the inverse of the time that is expected of them.
const FLOOR: f64 = 0.001;
/// Makes a matrix regular whose columns depend on each other.
const RIDGE: f64 = 1e-10;

/// What an operation costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// In seconds.
    pub cost: f64,
    /// The standard error, in seconds.
    pub error: f64,
}

/// Sums over all rows.
#[derive(Clone, Debug)]
pub struct Regression<const N: usize> {
    /// The part of its weight that a row keeps when another one comes.
    keep: f64,
    /// About what an operation of each kind costs: for weights alone.
    about: [f64; N],
    gram: [[f64; N]; N],
    moments: [f64; N],
    squares: f64,
    rows: f64,
    operations: [f64; N],
}

impl<const N: usize> Regression<N> {
    /// After so many rows, a row has half its weight. `about` says about what an operation of each kind costs, in seconds.
    pub fn new(half_life: f64, about: [f64; N]) -> Self {
        Self {
            keep: 0.5f64.powf(1.0 / half_life.max(1.0)),
            about,
            gram: [[0.0; N]; N],
            moments: [0.0; N],
            squares: 0.0,
            rows: 0.0,
            operations: [0.0; N],
        }
    }

    /// Adds a row. Numbers that are none are left out.
    pub fn add(&mut self, seconds: f64, operations: [f64; N]) {
        if !(seconds.is_finite() && seconds >= 0.0 && operations.iter().all(|n| n.is_finite() && *n >= 0.0)) {
            return;
        }
        // Time that many independent operations take varies by the root of their number. It is not the measured time that decides: rows that
        // took less by chance would count for more than those that took more, and costs would seem less than they are.
        let expected: f64 = operations.iter().zip(&self.about).map(|(n, about)| n * about).sum();
        let weight = 1.0 / (expected + FLOOR);
        for (i, row) in self.gram.iter_mut().enumerate() {
            for (j, sum) in row.iter_mut().enumerate() {
                *sum = *sum * self.keep + weight * operations[i] * operations[j];
            }
            self.moments[i] = self.moments[i] * self.keep + weight * operations[i] * seconds;
            self.operations[i] = self.operations[i] * self.keep + operations[i];
        }
        self.squares = self.squares * self.keep + weight * seconds * seconds;
        self.rows = self.rows * self.keep + 1.0;
    }

    /// The weights of all rows together, of which the newest has 1.
    #[cfg(test)]
    pub fn rows(&self) -> f64 {
        self.rows
    }

    /// What an operation of each kind costs, as far as the rows determine it.
    pub fn estimates(&self) -> [Option<Estimate>; N] {
        let mut estimates = [None; N];
        let used: Vec<usize> = (0..N).filter(|i| self.gram[*i][*i] > 0.0).collect();
        let freedom = self.rows - used.len() as f64;
        if used.is_empty() || freedom < MIN_ROWS {
            return estimates;
        }
        // Columns of length one: counts of very different size are in one matrix.
        let lengths: Vec<f64> = used.iter().map(|i| self.gram[*i][*i].sqrt()).collect();
        let scaled = |i: usize, j: usize| self.gram[used[i]][used[j]] / (lengths[i] * lengths[j]);
        let count = used.len();
        let matrix: Vec<Vec<f64>> =
            (0..count).map(|i| (0..count).map(|j| scaled(i, j) + if i == j { RIDGE } else { 0.0 }).collect()).collect();
        let target: Vec<f64> = used.iter().zip(&lengths).map(|(i, length)| self.moments[*i] / length).collect();
        let Some(inverse) = inverted(&matrix) else { return estimates };
        let found = non_negative(&matrix, &target);
        let explained: f64 = (0..count)
            .map(|i| found[i] * (2.0 * target[i] - (0..count).map(|j| matrix[i][j] * found[j]).sum::<f64>()))
            .sum();
        let variance = (self.squares - explained).max(0.0) / freedom;
        for (i, index) in used.into_iter().enumerate() {
            // The part of the column that the others do not explain. The error is that of all kinds together: a kind whose cost is
            // held at 0 may be the one that has cost the time.
            let tolerance = 1.0 / inverse[i][i];
            let (cost, error) = (found[i] / lengths[i], (variance * inverse[i][i]).sqrt() / lengths[i]);
            let is_known = cost > 0.0
                && cost.is_finite()
                && tolerance >= MIN_TOLERANCE
                && self.operations[index] >= MIN_OPERATIONS
                && error <= MAX_RELATIVE_ERROR * cost;
            estimates[index] = is_known.then_some(Estimate { cost, error });
        }
        estimates
    }
}

/// The solution of least squares without negative numbers (Lawson and Hanson, "Solving Least Squares Problems", chapter 23), from
/// the products of columns.
fn non_negative(matrix: &[Vec<f64>], target: &[f64]) -> Vec<f64> {
    const TOLERANCE: f64 = 1e-12;
    let count = target.len();
    let mut found = vec![0.0; count];
    let mut free = vec![false; count];
    // Each round lets a variable go or takes some back; the bound is for what rounding does.
    for _ in 0..3 * count {
        let gradient = |i: usize| target[i] - (0..count).map(|j| matrix[i][j] * found[j]).sum::<f64>();
        let next = (0..count).filter(|i| !free[*i]).max_by(|a, b| gradient(*a).total_cmp(&gradient(*b)));
        let Some(next) = next.filter(|i| gradient(*i) > TOLERANCE) else { break };
        free[next] = true;
        for _ in 0..=count {
            let set: Vec<usize> = (0..count).filter(|i| free[*i]).collect();
            let part: Vec<Vec<f64>> = set.iter().map(|i| set.iter().map(|j| matrix[*i][*j]).collect()).collect();
            let Some(inverse) = inverted(&part) else {
                free[next] = false;
                break;
            };
            let solved: Vec<f64> =
                inverse.iter().map(|row| row.iter().zip(&set).map(|(a, i)| a * target[*i]).sum()).collect();
            if solved.iter().all(|x| *x > TOLERANCE) {
                set.iter().zip(&solved).for_each(|(i, x)| found[*i] = *x);
                break;
            }
            // As far as the first one that becomes 0.
            let step = set
                .iter()
                .zip(&solved)
                .filter(|(_, x)| **x <= TOLERANCE)
                .map(|(i, x)| found[*i] / (found[*i] - x).max(f64::MIN_POSITIVE))
                .fold(1.0, f64::min);
            for (i, x) in set.iter().zip(&solved) {
                found[*i] += step * (x - found[*i]);
                if found[*i] <= TOLERANCE {
                    found[*i] = 0.0;
                    free[*i] = false;
                }
            }
        }
    }
    found
}

/// The inverse of a matrix (Gauss and Jordan, with pivots); `None` if there is none.
fn inverted(matrix: &[Vec<f64>]) -> Option<Vec<Vec<f64>>> {
    let count = matrix.len();
    let unit = |i: usize| (0..count).map(move |j| if i == j { 1.0 } else { 0.0 });
    let mut rows: Vec<Vec<f64>> =
        matrix.iter().enumerate().map(|(i, row)| row.iter().copied().chain(unit(i)).collect()).collect();
    for column in 0..count {
        let pivot = (column..count).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))?;
        rows.swap(column, pivot);
        let divisor = rows[column][column];
        if divisor.abs() < 1e-14 {
            return None;
        }
        rows[column].iter_mut().for_each(|x| *x /= divisor);
        let source = rows[column].clone();
        for (i, row) in rows.iter_mut().enumerate() {
            let factor = row[column];
            if i != column && factor != 0.0 {
                row.iter_mut().zip(&source).for_each(|(x, s)| *x -= factor * s);
            }
        }
    }
    Some(rows.into_iter().map(|row| row[count..].to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Nothing like what operations cost in these tests.
    const ABOUT_2: [f64; 2] = [1e-4, 1e-3];
    const ABOUT_3: [f64; 3] = [1e-4, 1e-4, 1e-3];
    const ABOUT_4: [f64; 4] = [1e-4, 1e-4, 1e-4, 1e-3];

    /// Numbers that look like chance, the same in each run.
    struct Chance(u64);

    impl Chance {
        /// From 0 to 1.
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }

        /// Around 1, by at most this part.
        fn around_one(&mut self, part: f64) -> f64 {
            1.0 + part * (2.0 * self.next() - 1.0)
        }
    }

    fn near(estimate: Option<Estimate>, cost: f64, part: f64) -> bool {
        estimate.is_some_and(|e| (e.cost - cost).abs() <= part * cost && e.error <= MAX_RELATIVE_ERROR * e.cost)
    }

    #[test]
    fn costs_are_found_in_sums() {
        let (mut chance, mut regression) = (Chance(1), Regression::<4>::new(1200.0, ABOUT_4));
        let costs = [80e-6, 700e-6, 30e-6, 0.002];
        for _ in 0..200 {
            let row = [chance.next() * 500.0, chance.next() * 100.0, chance.next() * 5000.0, 1.0];
            let seconds: f64 = row.iter().zip(costs).map(|(n, cost)| n * cost).sum();
            regression.add(seconds * chance.around_one(0.05), row.map(f64::round));
        }
        let found = regression.estimates();
        for (estimate, cost) in found.into_iter().zip(costs).take(3) {
            assert!(near(estimate, cost, 0.1), "{estimate:?} is not {cost}");
        }
    }

    /// The true value is within three standard errors of the result in nearly all runs: the error says something.
    #[test]
    fn the_error_is_that_of_the_result() {
        let mut outside = 0;
        for seed in 0..200 {
            let (mut chance, mut regression) = (Chance(seed), Regression::<3>::new(1200.0, ABOUT_3));
            for _ in 0..60 {
                let row = [(chance.next() * 300.0).round(), (chance.next() * 3000.0).round(), 1.0];
                let seconds = row[0] * 200e-6 + row[1] * 40e-6 + 0.001;
                regression.add(seconds * chance.around_one(0.2), row);
            }
            let found = regression.estimates()[1].expect("requests are many");
            assert!(found.error > 0.0, "{found:?}");
            outside += usize::from((found.cost - 40e-6).abs() > 3.0 * found.error);
        }
        assert!(outside <= 6, "{outside} of 200");
    }

    /// Bursts of a noisy machine make times longer and shorter, not operations cheaper.
    #[test]
    fn noise_is_no_bias() {
        for part in [0.5, 0.9] {
            let (mut sums, mut runs) = ([0.0; 2], 0.0);
            for seed in 0..40 {
                let (mut chance, mut regression) = (Chance(seed), Regression::<3>::new(2400.0, ABOUT_3));
                for _ in 0..2400 {
                    let row = [(chance.next() * 300.0).round(), (chance.next() * 3000.0).round(), 1.0];
                    let seconds = row[0] * 200e-6 + row[1] * 40e-6 + 0.001;
                    // A product of such factors is one, with more noise.
                    regression.add(seconds * chance.around_one(part) * chance.around_one(part), row);
                }
                let found = regression.estimates();
                let Some((first, second)) = found[0].zip(found[1]) else { continue };
                sums = [sums[0] + first.cost / 200e-6, sums[1] + second.cost / 40e-6];
                runs += 1.0;
            }
            let means = sums.map(|sum| sum / runs);
            assert!(
                runs > 30.0 && means.iter().all(|mean| (mean - 1.0).abs() < 0.04),
                "{part}: {means:?} of {runs} runs"
            );
        }
    }

    #[test]
    fn what_always_comes_together_has_no_cost_of_its_own() {
        let (mut chance, mut regression) = (Chance(2), Regression::<4>::new(1200.0, ABOUT_4));
        for _ in 0..500 {
            let connections = (chance.next() * 400.0).round();
            let others = (chance.next() * 400.0).round();
            // One handshake and one request on each connection.
            let seconds = connections * 500e-6 + others * 100e-6 + 0.001;
            regression.add(seconds * chance.around_one(0.02), [connections, connections, others, 1.0]);
        }
        let found = regression.estimates();
        assert_eq!([found[0], found[1]], [None, None]);
        assert!(near(found[2], 100e-6, 0.1), "what does not depend on them is known: {found:?}");
    }

    #[test]
    fn nearly_together_is_no_better() {
        let (mut chance, mut regression) = (Chance(3), Regression::<3>::new(1200.0, ABOUT_3));
        for _ in 0..500 {
            let connections = (1000.0 + chance.next() * 1000.0).round();
            // Some requests end in the interval after that of their handshake.
            let requests = connections + (chance.next() * 4.0).round();
            let seconds = connections * 500e-6 + requests * 100e-6 + 0.001;
            regression.add(seconds * chance.around_one(0.02), [connections, requests, 1.0]);
        }
        assert_eq!(regression.estimates()[..2], [None, None]);
    }

    #[test]
    fn a_constant_rate_says_nothing() {
        let mut regression = Regression::<2>::new(1200.0, ABOUT_2);
        for _ in 0..500 {
            regression.add(0.1, [1000.0, 1.0]);
        }
        assert_eq!(regression.estimates(), [None, None]);
    }

    #[test]
    fn few_rows_and_few_operations_say_nothing() {
        let (mut chance, mut regression) = (Chance(4), Regression::<2>::new(1200.0, ABOUT_2));
        assert_eq!(regression.estimates(), [None, None]);
        for row in 0..100 {
            let operations = f64::from(u8::from(row % 10 == 0));
            regression.add(operations * 0.01 + 0.001 * chance.around_one(0.01), [operations, 1.0]);
            if row < 10 {
                assert_eq!(regression.estimates()[0], None);
            }
        }
        assert_eq!(regression.estimates()[0], None, "ten operations");
        regression.add(f64::NAN, [1.0, 1.0]);
        regression.add(1.0, [f64::INFINITY, 1.0]);
        regression.add(-1.0, [1.0, 1.0]);
        assert!(regression.rows < 101.0, "numbers that are none are left out");
    }

    /// An unconstrained solution would give the cheap kind a negative cost here.
    #[test]
    fn no_cost_is_negative() {
        let (mut chance, mut regression) = (Chance(5), Regression::<3>::new(1200.0, ABOUT_3));
        for _ in 0..300 {
            let row = [(chance.next() * 1000.0).round(), (chance.next() * 1000.0).round(), 1.0];
            regression.add((row[0] * 100e-6 - row[1] * 5e-6).max(0.0), row);
        }
        let found = regression.estimates();
        assert!(near(found[0], 100e-6, 0.1) && found[1].is_none(), "{found:?}");
    }

    #[test]
    fn what_is_long_ago_is_forgotten() {
        let (mut chance, mut regression) = (Chance(6), Regression::<2>::new(50.0, ABOUT_2));
        for (rounds, cost) in [(500, 50e-6), (500, 100e-6)] {
            for _ in 0..rounds {
                let operations = (chance.next() * 2000.0).round();
                regression.add(operations * cost * chance.around_one(0.05) + 0.0005, [operations, 1.0]);
            }
            assert!(near(regression.estimates()[0], cost, 0.05), "{:?}", regression.estimates());
        }
        // Without operations the value goes, since nothing holds it any more.
        for _ in 0..5000 {
            regression.add(0.0005 * chance.around_one(0.5), [0.0, 1.0]);
        }
        assert_eq!(regression.estimates()[0], None);
    }
}
