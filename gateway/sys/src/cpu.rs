//! Cores: which this process may use, and pinning a thread to one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The numbers of the cores that this thread may run on.
pub fn allowed() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|i| set.is_set(*i)).collect(),
        Err(_) => vec![0],
    }
}

/// How many lanes make sense: the cores that this process may use, by affinity and by cgroup quota.
pub fn usable() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Pins the calling thread to one core.
pub fn pin(core: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}
