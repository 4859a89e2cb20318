//! Moments in which a CPU ran nothing of ours: what a hypervisor, or firmware, took.
//!
//! As cyclictest does: a thread of real-time priority sleeps for a millisecond at a time on each CPU. Where it wakes
//! much too late nobody could run there. Stolen time in `/proc/stat` tells the same, but in ticks of 10 ms, and many
//! takings are shorter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(1);
/// Beyond what interrupts and their work take on a busy machine.
const LATE: Duration = Duration::from_micros(500);

/// Counts interruptions of some CPUs until it is dropped.
#[derive(Debug)]
pub struct Interruptions {
    seen: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Interruptions {
    /// Of these CPUs; `None` without the right to real-time priority, since then a thread is late for other reasons.
    pub fn watch(cpus: &[usize]) -> Option<Self> {
        let (seen, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut watch = Self { seen, end, threads: Vec::new() };
        for cpu in cpus.iter().copied() {
            let (seen, end) = (Arc::clone(&watch.seen), Arc::clone(&watch.end));
            let (tell, ready) = std::sync::mpsc::channel();
            let thread = std::thread::Builder::new().name(format!("watch-{cpu}")).spawn(move || {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                let fit = rustix::thread::sched_setaffinity(None, &set).is_ok() && real_time(20);
                if tell.send(fit).is_ok() && fit {
                    nap(&seen, &end);
                }
            });
            watch.threads.push(thread.ok()?);
            ready.recv().ok().filter(|fit| *fit)?;
        }
        Some(watch)
    }

    /// How many there were so far.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Drop for Interruptions {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn nap(seen: &AtomicU64, end: &AtomicBool) {
    while !end.load(Ordering::Relaxed) {
        let before = Instant::now();
        std::thread::sleep(NAP);
        if before.elapsed() > NAP + LATE {
            seen.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Gives the calling thread, and those that it starts, precedence over all ordinary ones and over real-time ones of a
/// lower priority; whether that was allowed. By util-linux' `chrt`, since it is a system call of its own.
pub fn real_time(priority: u8) -> bool {
    let me = rustix::thread::gettid().as_raw_nonzero().to_string();
    let done = std::process::Command::new("chrt").args(["-f", "-p", &priority.to_string(), &me]).output();
    done.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_ends_with_the_watch() {
        let Some(watch) = Interruptions::watch(&[0]) else {
            eprintln!("skipped: no right to real-time priority, or CPU 0 is not ours");
            return;
        };
        std::thread::sleep(Duration::from_millis(20));
        let seen = watch.seen();
        let counter = Arc::clone(&watch.seen);
        drop(watch);
        assert!(counter.load(Ordering::Relaxed) >= seen);
        assert_eq!(Arc::strong_count(&counter), 1, "its threads are gone");
    }
}
