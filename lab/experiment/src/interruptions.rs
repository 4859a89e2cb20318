//! Moments in which a CPU ran nothing of ours: what a hypervisor, or firmware, took.
//!
//! As cyclictest does: a thread of real-time priority sleeps for a millisecond at a time on each CPU. Where it wakes
//! much too late nobody could run there. Stolen time in `/proc/stat` tells the same, but in ticks of 10 ms, and many
//! takings are shorter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NAP: Duration = Duration::from_millis(1);
/// Beyond what interrupts and their work take on a busy machine.
const LATE: Duration = Duration::from_micros(500);

/// From when to when a CPU was away.
pub type Away = (Instant, Instant);

/// Notes interruptions of some CPUs until it is dropped.
#[derive(Debug)]
pub struct Interruptions {
    seen: Arc<Mutex<Vec<Away>>>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Interruptions {
    /// Of these CPUs; `None` without the right to real-time priority, since then a thread is late for other reasons.
    pub fn watch(cpus: &[usize]) -> Option<Self> {
        let (seen, end) = (Arc::default(), Arc::new(AtomicBool::new(false)));
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

    /// Those so far, in the order of their beginnings.
    pub fn seen(&self) -> Vec<Away> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        seen.sort_unstable();
        seen
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

fn nap(seen: &Mutex<Vec<Away>>, end: &AtomicBool) {
    while !end.load(Ordering::Relaxed) {
        let before = Instant::now();
        std::thread::sleep(NAP);
        let now = Instant::now();
        if now - before > NAP + LATE {
            // It may have begun anywhere in the nap.
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((before, now));
        }
    }
}

/// Whether none of these (in order) touches the time from `from` to `to`.
pub fn undisturbed(seen: &[Away], from: Instant, to: Instant) -> bool {
    // They may overlap, being of several CPUs, though hardly for longer than a second.
    let first = seen.partition_point(|(begin, _)| *begin + Duration::from_secs(1) < from);
    !seen[first..].iter().take_while(|(begin, _)| *begin <= to).any(|(_, end)| *end >= from)
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
    fn what_touches_an_interruption_is_disturbed() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let seen = [(at(10), at(2000)), (at(20), at(25)), (at(30), at(31))];
        assert!(undisturbed(&[], at(0), at(100)));
        assert!(undisturbed(&seen[1..], at(0), at(19)) && undisturbed(&seen[1..], at(26), at(29)));
        assert!(!undisturbed(&seen, at(24), at(26)) && !undisturbed(&seen, at(5), at(40)));
        assert!(!undisturbed(&seen, at(26), at(29)), "in the first");
    }

    #[test]
    fn watching_ends_with_the_watch() {
        let Some(watch) = Interruptions::watch(&[0]) else {
            eprintln!("skipped: no right to real-time priority, or CPU 0 is not ours");
            return;
        };
        std::thread::sleep(Duration::from_millis(20));
        let seen = watch.seen();
        assert!(seen.iter().all(|(from, to)| *to - *from > NAP), "{seen:?}");
        let shared = Arc::clone(&watch.seen);
        drop(watch);
        assert_eq!(Arc::strong_count(&shared), 1, "its threads are gone");
    }
}
