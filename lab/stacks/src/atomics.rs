//! The cost of an atomic addition on this machine: alone, and on a cache line that other cores want too.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// The cost of an atomic addition on this machine.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Atomics {
    /// Nanoseconds by one thread alone.
    pub alone_ns: f64,
    /// Nanoseconds between two additions when threads share the word: each must wait for the cache line.
    pub contended_ns: f64,
    /// How many threads shared it.
    pub threads: usize,
}

/// The note for machines on which no thread met another thread.
pub const NOBODY_MET: &str = "A shared atomic was as fast as a private atomic: the CPUs are threads of one core, or the test threads \
    did not run at the same time. On separate cores, a shared atomic costs at least ten times as much.";

impl Atomics {
    /// Whether threads met each other at all. Those of one core share its cache, and those of a busy machine run one
    /// after the other: the cost is then far too low for separate cores.
    pub fn met(&self) -> bool {
        self.contended_ns > 2.0 * self.alone_ns
    }
}

/// Measures it, the threads bound to CPUs of their own: the median of some tries. On a busy machine they may run one after
/// the other all the same and meet nobody; what that gives cannot be below the cost of one alone, and [`Atomics::met`]
/// tells.
pub fn calibrate(threads: usize) -> Atomics {
    let median = |threads| {
        let mut all: Vec<f64> = (0..5).map(|_| additions(threads, 2_000_000)).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let threads = threads.max(2);
    let alone_ns = median(1);
    Atomics { alone_ns, contended_ns: median(threads).max(alone_ns), threads }
}

/// Nanoseconds per addition, over all threads.
fn additions(threads: usize, each: u64) -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (word, barrier) = (Line(AtomicU64::new(0)), Barrier::new(threads));
    let (word, barrier, cpus) = (&word, &barrier, &cpus());
    let longest = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|n| {
                scope.spawn(move || {
                    // Left to itself so short a run stays where it began: all threads on one CPU.
                    if let Some(cpu) = cpus.get(n) {
                        let mut own = CpuSet::new();
                        own.set(*cpu);
                        let _ = sched_setaffinity(None, &own);
                    }
                    barrier.wait();
                    let start = Instant::now();
                    for _ in 0..each {
                        word.0.fetch_add(1, Ordering::AcqRel);
                    }
                    start.elapsed()
                })
            })
            .collect();
        all.into_iter().filter_map(|t| t.join().ok()).max().unwrap_or_default()
    });
    assert_eq!(word.0.load(Ordering::Relaxed), each * threads as u64);
    longest.as_nanos() as f64 / (each * threads as u64) as f64
}

/// The CPUs that this process may use.
fn cpus() -> Vec<usize> {
    let all = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_met_if_sharing_costs_more() {
        let atomics = Atomics { alone_ns: 5.0, contended_ns: 50.0, threads: 2 };
        assert!(atomics.met() && !Atomics { contended_ns: 6.0, ..atomics }.met());
    }

    #[test]
    fn atomics_cost_something() {
        let ns = additions(2, 1000);
        assert!(ns.is_finite() && ns > 0.0);
    }
}
