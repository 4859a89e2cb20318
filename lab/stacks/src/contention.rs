//! Many cores: a discrete-event model of threads that meet in one lock, and its validation.
//!
//! Each thread computes, and then needs the cache line of the library's most used lock. The line serves one thread at a time. A
//! service takes longer if more threads wait, because their attempts take the line away from its holder ([`Line::growth`]), and if a
//! thread must be woken that sleeps for an exclusive lock ([`Line::handover_ns`]).
//!
//! Counts and CPU times are measured per library; the [`Parameters`] of the machine are fitted to published rates. Nobody should
//! believe a fit, so [`validate`] predicts each library from a fit to all other libraries. Only if every prediction is within
//! [`TOLERANCE`], the model may say something about libraries and cores that nobody measured.

use serde::Serialize;

/// The largest relative error with which the model may make predictions.
pub const TOLERANCE: f64 = 0.2;
/// Services per thread before the simulation counts, and while it counts.
const WARM_UP: usize = 10;
const COUNTED: usize = 40;
/// Steps of a fit.
const STEPS: usize = 160;
/// The same numbers in each run.
const SEED: u64 = 0x5ea1_a9e5_ea1a_9e00;

/// The work of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// CPU time outside of the lock.
    pub compute_ns: f64,
    /// Calls of the lock.
    pub calls: f64,
    /// The share of these calls that exclude all others, 0 to 1.
    pub exclusive: f64,
}

/// The costs of the lock's cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// One call, if no other thread waits.
    pub transfer_ns: f64,
    /// How much longer a call takes for each thread that waits, as a share of `transfer_ns`.
    pub growth: f64,
    /// What an exclusive call costs more if threads wait.
    pub handover_ns: f64,
}

/// Operations per second of so many threads, each on a core of its own.
pub fn rate(threads: usize, work: &Work, line: &Line) -> f64 {
    let threads = threads.max(1);
    if work.calls <= 0.0 {
        return threads as f64 / work.compute_ns * 1e9;
    }
    let between = work.compute_ns / work.calls;
    let mut random = Random(SEED);
    // When each thread needs the line next; those that wait have the time at which they began to.
    let mut needs: Vec<f64> = (0..threads).map(|_| random.exponential(between)).collect();
    let (mut free, mut began, mut exclusive) = (0.0_f64, 0.0_f64, 0.0_f64);
    let (warm_up, counted) = (threads * WARM_UP, threads * COUNTED);
    for service in 0..warm_up + counted {
        let first = (1..threads).fold(0, |first, i| if needs[i] < needs[first] { i } else { first });
        let start = needs[first].max(free);
        let waiting = needs.iter().filter(|at| **at <= start).count().saturating_sub(1) as f64;
        free = start + line.transfer_ns * (1.0 + line.growth * waiting);
        // Every so many calls, evenly.
        exclusive += work.exclusive;
        if exclusive >= 1.0 {
            exclusive -= 1.0;
            if waiting > 0.0 {
                free += line.handover_ns;
            }
        }
        needs[first] = free + random.exponential(between);
        if service + 1 == warm_up {
            began = free;
        }
    }
    counted as f64 / (free - began) / work.calls * 1e9
}

/// A generator of numbers that are good enough for a simulation (splitmix64).
struct Random(u64);

impl Random {
    /// Between 0 and 1, without 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Roughly normal, with deviation 1: the sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// A published rate, and what was measured here of the library.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The library; all of its points are predicted together.
    pub library: String,
    /// Which of its rates.
    pub what: String,
    /// Which of the two overheads per operation its measurement has.
    pub overhead: usize,
    /// Whether light locks took the place of pthread's.
    pub light: bool,
    /// Threads of the published measurement.
    pub threads: usize,
    /// The published rate, operations per second.
    pub published: f64,
    /// Measured CPU time of one operation.
    pub cost_ns: f64,
    /// Measured calls of the most used lock per operation.
    pub calls: f64,
    /// The measured share of exclusive calls.
    pub exclusive: f64,
}

/// What the fit finds of the published machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Its CPU time for what takes one second here.
    pub speed: f64,
    /// CPU time per operation that is not the library's, for each kind of measurement.
    pub overhead_ns: [f64; 2],
    /// [`Line::transfer_ns`] of pthread's locks and of light locks.
    pub transfer_ns: [f64; 2],
    /// [`Line::growth`].
    pub growth: f64,
    /// [`Line::handover_ns`] of pthread's locks; light locks do not sleep.
    pub handover_ns: f64,
}

impl Parameters {
    /// Where a fit begins.
    const START: Self = Self {
        speed: 1.0,
        overhead_ns: [50_000.0, 50_000.0],
        transfer_ns: [60.0, 60.0],
        growth: 0.05,
        handover_ns: 1_000.0,
    };

    /// The model's rate for a point.
    pub fn predict(&self, point: &Point) -> f64 {
        let overhead = self.overhead_ns.get(point.overhead).copied().unwrap_or_default();
        let work =
            Work { compute_ns: self.speed * point.cost_ns + overhead, calls: point.calls, exclusive: point.exclusive };
        let line = Line {
            transfer_ns: self.transfer_ns[usize::from(point.light)],
            growth: self.growth,
            handover_ns: if point.light { 0.0 } else { self.handover_ns },
        };
        rate(point.threads, &work, &line)
    }

    /// The sum of the squared logarithms of the ratios: half as much is as wrong as twice as much.
    fn error(&self, points: &[Point]) -> f64 {
        points.iter().map(|p| (self.predict(p) / p.published).ln().powi(2)).sum()
    }

    fn changed(&self, random: &mut Random, width: f64) -> Self {
        let mut by = |value: f64| value * (width * random.normal()).exp();
        Self {
            speed: by(self.speed),
            overhead_ns: self.overhead_ns.map(&mut by),
            transfer_ns: self.transfer_ns.map(&mut by),
            growth: by(self.growth),
            handover_ns: by(self.handover_ns),
        }
    }
}

/// The parameters with which the model is closest to the points: a random search with smaller and smaller steps.
pub fn fit(points: &[Point]) -> Parameters {
    let mut random = Random(SEED);
    let mut best = (Parameters::START.error(points), Parameters::START);
    for step in 0..STEPS {
        let width = 0.4 * (1.0 - step as f64 / STEPS as f64) + 0.02;
        let next = best.1.changed(&mut random, width);
        let error = next.error(points);
        if error < best.0 {
            best = (error, next);
        }
    }
    best.1
}

/// A point that the fit did not know.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The library.
    pub library: String,
    /// Which of its rates.
    pub what: String,
    /// The published rate.
    pub published: f64,
    /// The model's, from a fit to all other libraries.
    pub predicted: f64,
}

impl Prediction {
    /// The relative error, with its sign.
    pub fn error(&self) -> f64 {
        self.predicted / self.published - 1.0
    }
}

/// Predicts each library from a fit to all others. Empty with fewer than three libraries: nothing would be left to fit.
pub fn validate(points: &[Point]) -> Vec<Prediction> {
    let mut libraries: Vec<&str> = points.iter().map(|p| p.library.as_str()).collect();
    libraries.sort_unstable();
    libraries.dedup();
    if libraries.len() < 3 {
        return Vec::new();
    }
    let mut all = Vec::new();
    for library in libraries {
        let (out, others): (Vec<Point>, Vec<Point>) = points.iter().cloned().partition(|p| p.library == library);
        let parameters = fit(&others);
        all.extend(out.into_iter().map(|point| Prediction {
            predicted: parameters.predict(&point),
            library: point.library,
            what: point.what,
            published: point.published,
        }));
    }
    all
}

/// The largest error of all, without its sign; `None` without predictions.
pub fn worst(predictions: &[Prediction]) -> Option<f64> {
    predictions.iter().map(|p| p.error().abs()).reduce(f64::max)
}

/// Whether the model may predict what nobody measured.
pub fn holds(predictions: &[Prediction]) -> bool {
    worst(predictions).is_some_and(|worst| worst <= TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Line = Line { transfer_ns: 100.0, growth: 0.0, handover_ns: 0.0 };

    fn near(value: f64, wanted: f64, share: f64) {
        assert!((value / wanted - 1.0).abs() < share, "{value} is not {wanted}");
    }

    #[test]
    fn without_a_lock_threads_add_up() {
        let work = Work { compute_ns: 100_000.0, calls: 0.0, exclusive: 0.0 };
        near(rate(1, &work, &LINE), 10_000.0, 1e-9);
        near(rate(64, &work, &LINE), 640_000.0, 1e-9);
    }

    #[test]
    fn one_thread_never_waits() {
        let work = Work { compute_ns: 100_000.0, calls: 10.0, exclusive: 1.0 };
        let line = Line { growth: 1.0, handover_ns: 1e6, ..LINE };
        // 100 µs and ten calls of 100 ns; the computing varies.
        near(rate(1, &work, &line), 1e9 / 101_000.0, 0.35);
    }

    #[test]
    fn a_busy_line_is_the_limit_whatever_the_number_of_threads() {
        let work = Work { compute_ns: 100_000.0, calls: 100.0, exclusive: 0.0 };
        // 100 calls of 100 ns: at most 100,000 operations per second.
        for threads in [32, 64, 128] {
            near(rate(threads, &work, &LINE), 100_000.0, 0.01);
        }
        assert!(rate(4, &work, &LINE) < 45_000.0);
    }

    #[test]
    fn waiting_threads_make_the_rate_fall() {
        let work = Work { compute_ns: 100_000.0, calls: 100.0, exclusive: 0.0 };
        let line = Line { growth: 0.1, ..LINE };
        let (few, many) = (rate(12, &work, &line), rate(64, &work, &line));
        assert!(many < 0.5 * few, "{few} with 12 threads, {many} with 64");
        let exclusive = Work { exclusive: 1.0, ..work };
        let sleeping = Line { handover_ns: 900.0, ..LINE };
        near(rate(64, &exclusive, &sleeping), 10_000.0, 0.01);
    }

    /// Points of a machine that is exactly as the model says.
    fn points() -> Vec<Point> {
        let truth = Parameters {
            speed: 1.3,
            overhead_ns: [40_000.0, 80_000.0],
            transfer_ns: [90.0, 50.0],
            growth: 0.02,
            handover_ns: 1_500.0,
        };
        let mut all = Vec::new();
        for (library, cost_ns, calls, exclusive) in [
            ("a", 200_000.0, 20.0, 1.0),
            ("b", 300_000.0, 300.0, 0.1),
            ("c", 250_000.0, 100.0, 0.0),
            ("d", 200_000.0, 3.0, 0.0),
        ] {
            for (overhead, light) in [(0, false), (1, false), (1, true)] {
                let what = format!("{overhead} {light}");
                let library = library.to_owned();
                let point =
                    Point { library, what, overhead, light, threads: 16, published: 1.0, cost_ns, calls, exclusive };
                all.push(Point { published: truth.predict(&point), ..point });
            }
        }
        all
    }

    #[test]
    fn a_fit_is_closer_than_its_beginning_and_always_the_same() {
        let points = points();
        let fitted = fit(&points);
        assert!(fitted.error(&points) < 0.3 * Parameters::START.error(&points), "{fitted:?}");
        assert_eq!(fitted, fit(&points));
    }

    #[test]
    fn a_library_is_predicted_without_its_own_rates() {
        let before = points();
        let mut after = before.clone();
        // What is published of a library does not change its own prediction.
        after.iter_mut().filter(|p| p.library == "b").for_each(|p| p.published *= 10.0);
        let of_b = |points: &[Point]| -> Vec<f64> {
            validate(points).into_iter().filter(|p| p.library == "b").map(|p| p.predicted).collect()
        };
        let (one, other) = (of_b(&before), of_b(&after));
        assert_eq!((one.len(), one), (3, other));
        assert!(validate(&before[..6]).is_empty(), "two libraries");
    }

    #[test]
    fn the_worst_prediction_decides() {
        let one = |predicted: f64| Prediction { library: "a".into(), what: "x".into(), published: 100.0, predicted };
        assert!(holds(&[one(119.0), one(81.0)]));
        assert!(!holds(&[one(119.0), one(79.0)]));
        assert!(!holds(&[]));
        assert_eq!(worst(&[one(50.0), one(120.0)]), Some(0.5));
    }
}
