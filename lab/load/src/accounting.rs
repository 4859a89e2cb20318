//! What the kernel says a process cost: CPU time to the nanosecond, memory, and the machine's CPU pressure.

use std::collections::BTreeMap;
use std::fs;

/// CPU time of a process with all its threads and descendants, at one moment.
#[derive(Clone, Debug, Default)]
pub struct CpuSample {
    processes: BTreeMap<u32, ProcessSample>,
}

#[derive(Clone, Debug, Default)]
struct ProcessSample {
    /// Nanoseconds on a CPU per thread, from `schedstat`.
    threads: BTreeMap<u32, u64>,
    /// User and system time of the process, dead threads included, in clock ticks.
    ticks: u64,
    /// The same of children that have ended and been waited for.
    dead_children: u64,
}

impl CpuSample {
    /// Looks at `pids` and everything below them.
    pub fn take(pids: &[u32]) -> Self {
        let mut sample = Self::default();
        let mut queue: Vec<u32> = pids.to_vec();
        while let Some(pid) = queue.pop() {
            if sample.processes.contains_key(&pid) {
                continue;
            }
            let Some((process, children)) = ProcessSample::take(pid) else { continue };
            sample.processes.insert(pid, process);
            queue.extend(children);
        }
        sample
    }

    /// Whether there was anything to look at.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// CPU nanoseconds between an earlier sample and this one.
    pub fn since(&self, earlier: &Self) -> u64 {
        let none = ProcessSample::default();
        let mut total = 0;
        let mut lost_child = earlier.processes.keys().any(|pid| !self.processes.contains_key(pid));
        for (pid, now) in &self.processes {
            let before = earlier.processes.get(pid).unwrap_or(&none);
            let lost_thread = before.threads.keys().any(|tid| !now.threads.contains_key(tid));
            let ticks = now.ticks.saturating_sub(before.ticks) * tick();
            let exact = now
                .threads
                .iter()
                .map(|(tid, ns)| ns.saturating_sub(before.threads.get(tid).copied().unwrap_or(0)))
                .sum::<u64>();
            // What dead threads used is only in the process's own sum, which counts in ticks; some may have
            // come and gone between the two samples.
            let short_lived = ticks > exact + 2 * tick();
            total += if lost_thread || short_lived { ticks } else { exact };
            if lost_child || now.dead_children != before.dead_children {
                total += now.dead_children.saturating_sub(before.dead_children) * tick();
                lost_child = false;
            }
        }
        total
    }
}

impl ProcessSample {
    fn take(pid: u32) -> Option<(Self, Vec<u32>)> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything, spaces and parentheses too.
        let fields: Vec<u64> =
            stat.rsplit_once(')')?.1.split_ascii_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        let field = |n: usize| fields.get(n - 3).copied().unwrap_or(0);
        let mut process =
            Self { threads: BTreeMap::new(), ticks: field(14) + field(15), dead_children: field(16) + field(17) };
        let mut children = Vec::new();
        for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            let Some(tid) = task.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
            let dir = task.path();
            if let Some(ns) = run_time(&dir.join("schedstat")) {
                process.threads.insert(tid, ns.0);
            }
            if let Ok(list) = fs::read_to_string(dir.join("children")) {
                children.extend(list.split_ascii_whitespace().filter_map(|c| c.parse::<u32>().ok()));
            }
        }
        Some((process, children))
    }
}

fn run_time(path: &std::path::Path) -> Option<(u64, u64)> {
    ran_and_waited(&fs::read_to_string(path).ok()?)
}

/// Nanoseconds on a CPU and waiting for one, from what a `schedstat` file says.
pub fn ran_and_waited(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split_ascii_whitespace().map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// These processes and all below them.
pub fn family(pids: &[u32]) -> Vec<u32> {
    CpuSample::take(pids).processes.into_keys().collect()
}

/// Nanoseconds that a thread of this process was on a CPU, and that it waited for one.
pub fn thread_times(tid: u64) -> Option<(u64, u64)> {
    run_time(std::path::Path::new(&format!("/proc/self/task/{tid}/schedstat")))
}

fn tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Memory of a set of processes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident, shared pages counted in every process.
    pub rss: u64,
    /// Resident, shared pages divided among those who share them; 0 where it may not be read.
    pub pss: u64,
}

/// The memory of `pids` and everything below them.
pub fn memory(pids: &[u32]) -> Memory {
    let sample = CpuSample::take(pids);
    let mut memory = Memory::default();
    for pid in sample.processes.keys() {
        let value = |file: &str, key: &str| -> u64 {
            let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let line = text.lines().find_map(|l| l.strip_prefix(key));
            line.and_then(|l| l.split_ascii_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0) * 1024
        };
        memory.rss += value("status", "VmRSS:");
        memory.pss += value("smaps_rollup", "Pss:");
    }
    memory
}

/// Whether a process exists.
pub fn exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}/stat")).is_ok()
}

/// Microseconds in which some task of the machine waited for a CPU, since boot (PSI). `None` where the
/// kernel does not say.
pub fn cpu_pressure() -> Option<u64> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let some = text.lines().find_map(|l| l.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|f| f.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_this_process_grows_with_its_work() {
        let me = [std::process::id()];
        let before = CpuSample::take(&me);
        assert!(!before.is_empty() && memory(&me).rss > 0);
        let own = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let start = own();
        let mut x = 0u64;
        // Work until the thread's own clock says that 50 ms were used: however long that takes.
        while (own() - start).tv_nsec < 50_000_000 && (own() - start).tv_sec == 0 {
            x = std::hint::black_box(x.wrapping_mul(31).wrapping_add(1));
        }
        let used = CpuSample::take(&me).since(&before);
        // Counted in ticks if a thread of another test ended meanwhile.
        assert!(used >= 30_000_000, "{used}");
        assert!(CpuSample::take(&[u32::MAX]).is_empty());
    }

    #[test]
    fn threads_that_end_are_counted_by_their_process() {
        let process = |threads: &[(u32, u64)], ticks| CpuSample {
            processes: BTreeMap::from([(
                1,
                ProcessSample { threads: threads.iter().copied().collect(), ticks, dead_children: 0 },
            )]),
        };
        let before = process(&[(1, 100), (2, 50)], 10);
        assert_eq!(process(&[(1, 130), (2, 50), (3, 5)], 10).since(&before), 35);
        assert_eq!(process(&[(1, 130)], 12).since(&before), 2 * tick());
    }
}
