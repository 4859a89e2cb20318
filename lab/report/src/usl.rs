//! The Universal Scalability Law, fitted within its bounds.
//!
//! Throughput over `n` threads is `X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))` (Gunther): λ is what one thread does, σ
//! in 0…1 is the part that is done one at a time (contention), κ ≥ 0 is what threads cost each other in agreeing
//! (coherence). Free fits of few points give negative coefficients that mean nothing; this one stays within the
//! bounds, refuses fewer than four thread counts, and marks what lies beyond the measured ones.

use serde::{Deserialize, Serialize};

use crate::model::{Figure, Source};

/// Fewer different thread counts than this are refused: with three parameters, three points fit anything.
pub const LEAST_POINTS: usize = 4;

/// A fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// Throughput of one thread.
    pub lambda: f64,
    /// Contention, 0 to 1.
    pub sigma: f64,
    /// Coherence, from 0.
    pub kappa: f64,
    /// The part of the variance that the fit explains, 1 at best.
    pub r_squared: f64,
    /// The least and the greatest thread count that were measured.
    pub range: (f64, f64),
}

/// Why there is no fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Fit {
    /// Fits `(threads, throughput)` by least squares of relative errors.
    pub fn of(points: &[(f64, f64)]) -> Result<Self, Refused> {
        let mut counts: Vec<f64> = points.iter().map(|p| p.0).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        if counts.len() < LEAST_POINTS {
            return Err(Refused(format!(
                "no fit: {} thread count(s) were measured, and the law has three parameters; at least {LEAST_POINTS} are needed",
                counts.len()
            )));
        }
        if points.iter().any(|(n, x)| !(n.is_finite() && x.is_finite() && *n >= 1.0 && *x > 0.0)) {
            return Err(Refused("no fit: a thread count or throughput is not positive".to_owned()));
        }
        let (sigma, kappa) = search(points);
        let lambda = best_lambda(points, sigma, kappa);
        let mut fit = Self { lambda, sigma, kappa, r_squared: 0.0, range: (counts[0], counts[counts.len() - 1]) };
        let mean = points.iter().map(|p| p.1).sum::<f64>() / points.len() as f64;
        let spread: f64 = points.iter().map(|p| (p.1 - mean).powi(2)).sum();
        let left: f64 = points.iter().map(|p| (p.1 - fit.at(p.0)).powi(2)).sum();
        fit.r_squared = if spread > 0.0 { 1.0 - left / spread } else { 0.0 };
        Ok(fit)
    }

    /// Throughput at `n` threads.
    pub fn at(&self, n: f64) -> f64 {
        self.lambda * shape(n, self.sigma, self.kappa)
    }

    /// The thread count beyond which more threads do less; `None` when throughput never falls.
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0).then(|| ((1.0 - self.sigma) / self.kappa).sqrt().max(1.0))
    }

    /// Whether `n` lies beyond what was measured.
    pub fn extrapolates(&self, n: f64) -> bool {
        n < self.range.0 || n > self.range.1
    }

    /// The curve as figures from one thread to `to`, those beyond the measured range marked as extrapolated.
    pub fn figures(&self, subject: &str, measure: &str, unit: &str, to: f64) -> Vec<Figure> {
        const STEPS: u32 = 24;
        let to = to.max(self.range.1);
        let mut at: Vec<f64> = (0..=STEPS).map(|i| to.powf(f64::from(i) / f64::from(STEPS))).collect();
        // So that the two lines meet where the measured range ends.
        at.extend([self.range.0, self.range.1]);
        at.sort_by(f64::total_cmp);
        at.dedup();
        let figure = |n: f64, source| Figure::new(subject, measure, self.at(n), unit).at(n).from(source);
        at.iter()
            .map(|&n| figure(n, if self.extrapolates(n) { Source::Extrapolated } else { Source::Fitted }))
            .collect()
    }

    /// What lies between the least and the greatest of something that this fit says and that `others`, those of single
    /// rounds, say: its interval.
    pub fn between(&self, others: &[Fit], of: impl Fn(&Fit) -> f64) -> (f64, f64) {
        let own = of(self);
        others.iter().map(of).fold((own, own), |(low, high), value| (low.min(value), high.max(value)))
    }

    /// The fit in words.
    pub fn text(&self, subject: &str) -> String {
        let mut s = format!(
            "{subject}: contention σ = {:.4}, coherence κ = {:.6}, R² = {:.4}, from {} to {} threads",
            self.sigma, self.kappa, self.r_squared, self.range.0, self.range.1
        );
        if let Some(peak) = self.peak() {
            let where_ = if self.extrapolates(peak) { " (extrapolated)" } else { "" };
            s.push_str(&format!("; highest throughput at {peak:.0} threads{where_}"));
        }
        s
    }
}

fn shape(n: f64, sigma: f64, kappa: f64) -> f64 {
    n / (1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0))
}

/// For given σ and κ the best λ is in closed form, since X is linear in it.
fn best_lambda(points: &[(f64, f64)], sigma: f64, kappa: f64) -> f64 {
    let (mut up, mut down) = (0.0, 0.0);
    for &(n, x) in points {
        let s = shape(n, sigma, kappa) / x;
        up += s;
        down += s * s;
    }
    up / down
}

fn error(points: &[(f64, f64)], sigma: f64, kappa: f64) -> f64 {
    let lambda = best_lambda(points, sigma, kappa);
    points.iter().map(|&(n, x)| (lambda * shape(n, sigma, kappa) / x - 1.0).powi(2)).sum()
}

/// Two bounded parameters: a grid over both, then a smaller one around the best, until it is narrow. Deterministic,
/// and cannot leave the bounds or stick at a saddle. κ moves as its square root, because it is small.
fn search(points: &[(f64, f64)]) -> (f64, f64) {
    const GRID: i32 = 20;
    let (mut best, mut width) = ((0.5, 0.5), 0.5);
    let mut least = f64::INFINITY;
    while width > 1e-9 {
        let centre = best;
        for i in -GRID..=GRID {
            for j in -GRID..=GRID {
                let sigma = (centre.0 + width * f64::from(i) / f64::from(GRID)).clamp(0.0, 1.0);
                let root = (centre.1 + width * f64::from(j) / f64::from(GRID)).clamp(0.0, 1.0);
                let e = error(points, sigma, root * root);
                if e < least {
                    (least, best) = (e, (sigma, root));
                }
            }
        }
        width *= 0.4;
    }
    (best.0, best.1 * best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(lambda: f64, sigma: f64, kappa: f64) -> Vec<(f64, f64)> {
        [1.0, 2.0, 4.0, 8.0, 16.0, 32.0].map(|n| (n, lambda * shape(n, sigma, kappa))).to_vec()
    }

    #[test]
    fn finds_what_made_the_points() {
        for (lambda, sigma, kappa) in [(1000.0, 0.05, 0.0004), (42.0, 0.0, 0.0), (7e4, 0.9, 0.0), (500.0, 0.2, 0.01)] {
            let fit = Fit::of(&points(lambda, sigma, kappa)).unwrap();
            assert!((fit.lambda / lambda - 1.0).abs() < 1e-3, "{fit:?}");
            assert!((fit.sigma - sigma).abs() < 1e-3 && (fit.kappa - kappa).abs() < 1e-4, "{fit:?}");
            assert!(fit.r_squared > 0.999, "{fit:?}");
        }
    }

    #[test]
    fn stays_within_its_bounds() {
        // Better than linear: a free fit would answer with negative coefficients.
        let fit = Fit::of(&[(1.0, 10.0), (2.0, 22.0), (4.0, 46.0), (8.0, 100.0)]).unwrap();
        assert!(fit.sigma >= 0.0 && fit.kappa >= 0.0 && fit.peak().is_none(), "{fit:?}");
        // Collapse beyond 12 threads, as a lock can cause.
        let fit = Fit::of(&[(1.0, 10.0), (4.0, 38.0), (12.0, 60.0), (16.0, 8.0)]).unwrap();
        assert!((0.0..=1.0).contains(&fit.sigma) && fit.peak().unwrap() < 16.0, "{fit:?}");
    }

    #[test]
    fn few_points_are_refused() {
        let three = [(1.0, 1.0), (2.0, 2.0), (4.0, 3.0), (4.0, 3.1)];
        assert!(Fit::of(&three).unwrap_err().0.contains("at least 4"));
        assert!(Fit::of(&[(1.0, 1.0), (2.0, 0.0), (3.0, 1.0), (4.0, 1.0)]).is_err());
        assert!(Fit::of(&[(1.0, 1.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 1.0)]).is_err());
    }

    #[test]
    fn rounds_give_an_interval() {
        let of = |lambda: f64, sigma: f64| Fit::of(&points(lambda, sigma, 0.001)).unwrap();
        let fit = of(100.0, 0.1);
        assert_eq!(fit.between(&[], |f| f.lambda), (fit.lambda, fit.lambda));
        let (low, high) = fit.between(&[of(99.0, 0.12), of(103.0, 0.08)], |f| f.at(64.0));
        assert!(low < fit.at(64.0) && fit.at(64.0) < high && low > 0.0, "{low} {high}");
    }

    #[test]
    fn what_lies_beyond_is_marked() {
        let fit = Fit::of(&points(100.0, 0.1, 0.001)).unwrap();
        let figures = fit.figures("x", "m", "/s", 128.0);
        for f in &figures {
            let beyond = f.x.unwrap() > 32.0;
            assert_eq!(f.source == Source::Extrapolated, beyond, "{f:?}");
        }
        assert!(figures.iter().any(|f| f.x == Some(128.0)));
        assert!(fit.text("x").contains("highest throughput at 30 threads"), "{}", fit.text("x"));
    }
}
