//! When operations are meant to happen.
//!
//! The schedule is also the queue: an operation whose moment has passed while every connection was
//! busy is simply one that has not been taken yet, so a backlog of any length costs no memory, and its
//! latency counts from the moment it was meant for (the correction for coordinated omission).

use crate::clock::{NEVER, Nanos};

/// How operations are spread over time in an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Evenly: one every 1/rate.
    Uniform,
    /// At random and independently of each other, as many users are: exponential gaps.
    Poisson,
}

/// A small seeded random source (xoshiro256++, seeded by splitmix64): the same run twice, not secrets.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// A source that yields the same sequence for the same seed.
    pub fn seeded(seed: u64) -> Self {
        let mut x = seed;
        Self(std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A number in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws an index by weight.
#[derive(Clone, Debug)]
pub struct Weighted {
    /// Running sums of the weights, the last being the total.
    sums: Vec<u64>,
}

impl Weighted {
    /// Over these weights; at least one must be above zero.
    pub fn new(weights: impl IntoIterator<Item = u32>) -> Self {
        let mut sum = 0u64;
        let sums = weights
            .into_iter()
            .map(|w| {
                sum += u64::from(w);
                sum
            })
            .collect();
        Self { sums }
    }

    /// An index, drawn with the probability of its weight.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> usize {
        match self.sums.len() {
            0 | 1 => 0,
            n => {
                let at = (rng.unit() * self.sums[n - 1] as f64) as u64;
                self.sums.partition_point(|sum| *sum <= at).min(n - 1)
            }
        }
    }
}

/// One thread's part of an origin's arrivals.
#[derive(Clone, Debug)]
pub struct Schedule {
    kind: Kind,
    next: Nanos,
    end: Nanos,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Closed loop: as soon as somebody is free.
    Always,
    Uniform {
        start: Nanos,
        gap: f64,
        k: u64,
        offset: f64,
    },
    Poisson {
        gap: f64,
        at: f64,
        rng: Rng,
    },
}

impl Schedule {
    /// A closed loop from `start` on: an operation is due whenever a connection is free.
    pub fn closed(start: Nanos, end: Nanos) -> Self {
        Self { kind: Kind::Always, next: start, end }
    }

    /// An open loop of `rate` operations per second over all `threads`, of which this is number `thread`.
    pub fn open(
        arrivals: Arrivals,
        rate: f64,
        (thread, threads): (usize, usize),
        (start, end): (Nanos, Nanos),
        seed: u64,
    ) -> Self {
        let gap = threads as f64 * 1e9 / rate;
        let kind = match arrivals {
            // Threads interleave: together they are one even stream.
            Arrivals::Uniform => Kind::Uniform { start, gap, k: 0, offset: thread as f64 / threads as f64 },
            // Independent Poisson streams add up to one of the summed rate.
            Arrivals::Poisson => Kind::Poisson {
                gap,
                at: start as f64,
                rng: Rng::seeded(seed ^ (thread as u64).wrapping_mul(0xa076_1d64_78bd_642f)),
            },
        };
        let mut schedule = Self { kind, next: start, end };
        schedule.step();
        schedule
    }

    /// The next operation's moment, [`NEVER`] after the last.
    #[inline]
    pub fn peek(&self) -> Nanos {
        self.next
    }

    /// Whether the loop is closed: there is no intended moment but "now".
    #[inline]
    pub fn is_closed_loop(&self) -> bool {
        matches!(self.kind, Kind::Always)
    }

    /// Takes the next operation if it is due; its intended moment.
    #[inline]
    pub fn take(&mut self, now: Nanos) -> Option<Nanos> {
        if self.next > now {
            return None;
        }
        if let Kind::Always = self.kind {
            if now >= self.end {
                self.next = NEVER;
                return None;
            }
            return Some(now);
        }
        let due = self.next;
        self.step();
        Some(due)
    }

    /// Ends the schedule: nothing more is due.
    pub fn stop(&mut self) {
        self.next = NEVER;
        self.end = 0;
    }

    /// How many operations are due at `now` and not yet taken (drains the schedule: for the end of a run).
    pub fn backlog(mut self, now: Nanos) -> u64 {
        if self.is_closed_loop() {
            return 0;
        }
        let mut n = 0;
        while self.take(now).is_some() {
            n += 1;
        }
        n
    }

    fn step(&mut self) {
        let next = match &mut self.kind {
            Kind::Always => return,
            // From the index, never by adding up: no drift.
            Kind::Uniform { start, gap, k, offset } => {
                let at = *start + ((*k as f64 + *offset) * *gap) as u64;
                *k += 1;
                at
            }
            Kind::Poisson { gap, at, rng } => {
                *at += -(1.0 - rng.unit()).ln() * *gap;
                *at as u64
            }
        };
        self.next = if next >= self.end { NEVER } else { next };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut s: Schedule) -> Vec<Nanos> {
        std::iter::from_fn(|| s.take(NEVER - 1)).collect()
    }

    #[test]
    fn uniform_threads_interleave_into_one_even_stream() {
        let mut moments: Vec<_> = (0..4)
            .flat_map(|t| all(Schedule::open(Arrivals::Uniform, 1000.0, (t, 4), (500, 1_000_000_500), 1)))
            .collect();
        moments.sort_unstable();
        assert_eq!(moments.len(), 1000);
        for (i, at) in moments.iter().enumerate() {
            assert_eq!(*at, 500 + i as u64 * 1_000_000);
        }
    }

    #[test]
    fn poisson_has_its_rate_and_its_spread() {
        let moments = all(Schedule::open(Arrivals::Poisson, 10_000.0, (0, 1), (0, 10_000_000_000), 7));
        // 100,000 expected, standard deviation 316: ten of them is never.
        assert!((96_800..103_200).contains(&moments.len()), "{}", moments.len());
        let gaps: Vec<f64> = moments.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let var = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((0.95..1.05).contains(&(var.sqrt() / mean)), "an exponential's deviation is its mean");
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let make = |seed| all(Schedule::open(Arrivals::Poisson, 1000.0, (1, 2), (0, 1_000_000_000), seed));
        assert_eq!(make(3), make(3));
        assert_ne!(make(3), make(4));
    }

    #[test]
    fn late_operations_wait_in_the_schedule() {
        let mut s = Schedule::open(Arrivals::Uniform, 1000.0, (0, 1), (0, 1_000_000_000), 1);
        assert_eq!(s.take(2_500_000), Some(0));
        assert_eq!(s.take(2_500_000), Some(1_000_000));
        assert_eq!(s.take(2_500_000), Some(2_000_000));
        assert_eq!(s.take(2_500_000), None);
        assert_eq!(s.clone().backlog(4_000_000), 2);
    }

    #[test]
    fn weights_are_kept() {
        let w = Weighted::new([20, 0, 80]);
        let mut rng = Rng::seeded(1);
        let mut n = [0u32; 3];
        for _ in 0..100_000 {
            n[w.draw(&mut rng)] += 1;
        }
        assert_eq!(n[1], 0);
        assert!((19_000..21_000).contains(&n[0]), "{n:?}");
    }
}
