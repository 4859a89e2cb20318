//! Moments in which a CPU did not serve what is measured, though it should have: a hypervisor, or firmware, had taken it,
//! or the scheduler gave it to somebody else.
//!
//! As cyclictest does: a thread of real-time priority sleeps for a moment at a time on each CPU. Where it wakes much too
//! late nobody could run there. Stolen time in `/proc/stat` tells the same, but in ticks of 10 ms, and many takings are
//! shorter. Whether others ran in place of a server's busiest thread is in that thread's `schedstat`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::precedence::real_time;
use sealane_lab_load::accounting;

/// What is over before a nap is, is not seen, so naps are short beside what matters.
const NAP: Duration = Duration::from_micros(250);
/// Beyond what interrupts and their work take on a busy machine.
const LATE: Duration = Duration::from_micros(250);

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
    /// Of these CPUs, on the first of which the processes of a server run, of whose threads one is busy already; `None`
    /// without the right to real-time priority, since then a thread is late for other reasons.
    pub fn watch(cpus: &[usize], server: &[u32]) -> Option<Self> {
        let (seen, end) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let mut watch = Self { seen, end, threads: Vec::new() };
        let mut waiting = Waiting::of(server);
        for cpu in cpus.iter().copied() {
            let (seen, end) = (Arc::clone(&watch.seen), Arc::clone(&watch.end));
            let (tell, ready) = std::sync::mpsc::channel();
            let mut waiting = waiting.take();
            let thread = std::thread::Builder::new().name(format!("watch-{cpu}")).spawn(move || {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                let fit = rustix::thread::sched_setaffinity(None, &set).is_ok() && real_time(20);
                if tell.send(fit).is_ok() && fit {
                    nap(&seen, &end, waiting.as_mut());
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

fn nap(seen: &Mutex<Vec<Away>>, end: &AtomicBool, mut waiting: Option<&mut Waiting>) {
    let note = |away| seen.lock().unwrap_or_else(PoisonError::into_inner).push(away);
    while !end.load(Ordering::Relaxed) {
        let before = Instant::now();
        std::thread::sleep(NAP);
        let now = Instant::now();
        if now - before > NAP + LATE {
            // It may have begun anywhere in the nap.
            note((before, now));
        }
        if let Some(waited) = waiting.as_mut().map(|w| w.for_others()).filter(|waited| *waited > LATE) {
            // The kernel counts it when it is over, which was in the nap.
            note((before.checked_sub(waited).unwrap_or(before), now));
        }
    }
}

/// How long a server's busiest thread could have run and did not, since others than the server's own threads ran.
#[derive(Debug)]
struct Waiting {
    busiest: File,
    waited: u64,
    /// The server's other threads, and how long each had run when it was looked at last.
    others: Vec<(File, u64)>,
    next: usize,
}

impl Waiting {
    fn of(pids: &[u32]) -> Option<Self> {
        let pids = accounting::family(pids);
        let threads = pids.iter().flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten());
        let files = threads.flatten().map(|thread| thread.path().join("schedstat"));
        let open = |path: PathBuf| File::open(path).ok().map(|file| (ran_and_waited(&file).0, file));
        let mut all: Vec<(u64, File)> = files.filter_map(open).collect();
        all.sort_by_key(|(ran, _)| *ran);
        let (_, busiest) = all.pop()?;
        let waited = ran_and_waited(&busiest).1;
        Some(Self { busiest, waited, others: all.into_iter().map(|(ran, file)| (file, ran)).collect(), next: 0 })
    }

    /// Since it was asked last.
    fn for_others(&mut self) -> Duration {
        let (_, waited) = ran_and_waited(&self.busiest);
        let for_all = Duration::from_nanos(waited.saturating_sub(std::mem::replace(&mut self.waited, waited)));
        if for_all <= LATE {
            // One at a time, so that watching many threads costs no more than watching few.
            self.next = (self.next + 1) % self.others.len().max(1);
            if let Some((file, ran)) = self.others.get_mut(self.next) {
                *ran = ran_and_waited(file).0;
            }
            return for_all;
        }
        let own = self.others.iter_mut().map(|(file, ran)| {
            let now = ran_and_waited(file).0;
            now.saturating_sub(std::mem::replace(ran, now))
        });
        for_all.saturating_sub(Duration::from_nanos(own.sum()))
    }
}

/// Nanoseconds that a thread has run, and has waited for a CPU; nothing of one that has ended.
fn ran_and_waited(file: &File) -> (u64, u64) {
    let mut buffer = [0; 96];
    let read = file.read_at(&mut buffer, 0).unwrap_or(0);
    accounting::ran_and_waited(&String::from_utf8_lossy(&buffer[..read])).unwrap_or_default()
}

/// Whether none of these (in order) touches the time from `from` to `to`.
pub fn undisturbed(seen: &[Away], from: Instant, to: Instant) -> bool {
    // They may overlap, being of several CPUs, though hardly for longer than a second.
    let first = seen.partition_point(|(begin, _)| *begin + Duration::from_secs(1) < from);
    !seen[first..].iter().take_while(|(begin, _)| *begin <= to).any(|(_, end)| *end >= from)
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
        let Some(watch) = Interruptions::watch(&[0], &[]) else {
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

    /// Of made-up numbers, in the form of `/proc/PID/task/TID/schedstat`: how CPUs are shared is the machine's affair.
    #[test]
    fn a_server_that_waits_for_others_is_interrupted_and_one_that_waits_for_itself_is_not() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let thread = |name: &str, ran_ms: u64, waited_ms: u64| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("{} {} 7\n", ran_ms * 1_000_000, waited_ms * 1_000_000)).expect("our own");
            File::open(path).expect("it was written")
        };
        let (busiest, other) = (thread("busiest", 900, 100), thread("other", 300, 0));
        let mut alone = Waiting { busiest, waited: 100_000_000, others: Vec::new(), next: 0 };
        let busiest = File::open(folder.path().join("busiest")).expect("it was written");
        let others = vec![(other, 300_000_000)];
        let mut together = Waiting { busiest, waited: 100_000_000, others, next: 0 };
        assert_eq!((alone.for_others(), together.for_others()), (Duration::ZERO, Duration::ZERO));
        // It waits for 50 ms, of which its sibling has 20.
        thread("busiest", 1000, 150);
        thread("other", 320, 0);
        assert_eq!((alone.for_others(), together.for_others()), (Duration::from_millis(50), Duration::from_millis(30)));
        // And for 40 ms, which are all its sibling's.
        thread("busiest", 1000, 190);
        thread("other", 360, 0);
        assert_eq!((alone.for_others(), together.for_others()), (Duration::from_millis(40), Duration::ZERO));
        assert_eq!((alone.for_others(), together.for_others()), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn the_busiest_thread_of_a_process_is_watched() {
        let waiting = Waiting::of(&[std::process::id()]).expect("this process has threads");
        let ran = ran_and_waited(&waiting.busiest).0;
        assert!(waiting.others.iter().all(|(_, before)| *before <= ran), "one had run longer than {ran} ns");
    }
}
