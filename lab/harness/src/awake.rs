//! CPUs kept from halting while latencies are measured.
//!
//! A virtual CPU that halts wakes only when the hypervisor gets round to it, which can take milliseconds; that is then in
//! the latency of the server that responded on it. Latency tests on real machines forbid deep sleep for the same reason.

use crate::precedence::last_of_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Threads that run where nobody else wants to, until this is dropped.
#[derive(Debug, Default)]
pub struct Awake {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Keeps these CPUs awake, where a thread may give everybody else precedence (`chrt --idle`).
    pub fn keep(cpus: &[usize]) -> Self {
        let mut awake = Self::default();
        for cpu in cpus.iter().copied() {
            let end = Arc::clone(&awake.end);
            let spin = move || {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                if rustix::thread::sched_setaffinity(None, &set).is_ok() && last_of_all() {
                    while !end.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            };
            awake.threads.extend(std::thread::Builder::new().name(format!("awake-{cpu}")).spawn(spin));
        }
        awake
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lab_load::accounting::thread_times;
    use std::time::Duration;

    #[test]
    fn a_cpu_is_kept_awake_until_it_ends() {
        let awake = Awake::keep(&[0]);
        std::thread::sleep(Duration::from_millis(300));
        let tasks = std::fs::read_dir("/proc/self/task").expect("/proc is there").flatten();
        let name = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let ours =
            tasks.filter(|task| name(task).trim() == "awake-0").find_map(|t| t.file_name().to_str()?.parse().ok());
        match ours.and_then(thread_times) {
            // How much it got depends on who else is here.
            Some((ran, _)) => assert!(ran > 0, "it never ran"),
            None => eprintln!("skipped: no `chrt`, or CPU 0 is not ours"),
        }
        let end = Arc::clone(&awake.end);
        drop(awake);
        assert_eq!(Arc::strong_count(&end), 1, "its threads are gone");
    }
}
