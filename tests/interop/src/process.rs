//! A program that the test started, and that ends with it.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::{WAIT_LIMIT, eventually};

/// A server in the foreground. What it prints goes to a file, which [`Server::log`] reads; on drop it is killed by
/// its own process id.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts it, with its output in a file under `folder`.
    pub fn start(mut command: Command, folder: &Path) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let program = Path::new(command.get_program()).file_name().map(|n| n.to_string_lossy().into_owned());
        let name = program.unwrap_or_default();
        let log = folder.join(format!("{name}-{}.log", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&log).expect("a log file can be made");
        let twin = file.try_clone().expect("a descriptor can be duplicated");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(twin).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("{name}: {error}")), name, log }
    }

    /// Waits until `ready` or until it has ended, which fails the test with what it printed.
    #[track_caller]
    pub fn wait_until(&mut self, mut ready: impl FnMut() -> bool) {
        let mut ended = None;
        let done = eventually(|| {
            ended = self.child.try_wait().expect("a child can be waited for");
            ended.is_some() || ready()
        });
        if let Some(status) = ended {
            panic!("{} ended early, {status}:\n{}", self.name, self.log());
        }
        assert!(done, "{} is not ready:\n{}", self.name, self.log());
    }

    /// All it has printed so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Where that is, for [`Server::wait_until`].
    pub fn log_file(&self) -> PathBuf {
        self.log.clone()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// As Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Asks it to read its configuration again.
    pub fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our own child can be signalled");
    }

    /// Whether it still runs.
    pub fn running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(|| {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        status.unwrap_or_else(|| panic!("{} does not end:\n{}", self.name, self.log()))
    }

    /// Whether it has started a program that has not been waited for.
    pub fn has_child(&self) -> bool {
        let Ok(all) = std::fs::read_dir("/proc") else { return false };
        // The parent stands behind the state (proc_pid_stat(5)).
        let parent = |stat: String| stat.rsplit(") ").next()?.split(' ').nth(1)?.parse::<u32>().ok();
        let stats = all.flatten().filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        stats.filter_map(parent).any(|parent| parent == self.id())
    }

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.id())).map_or(0, Iterator::count)
    }

    /// Whether it waits for something, with all its threads: it has nothing to do, whether or not it would be its turn.
    pub fn rests(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.id())) else { return false };
        let sleeps = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'));
        threads.flatten().all(|thread| std::fs::read_to_string(thread.path().join("stat")).is_ok_and(sleeps))
    }

    /// Resident memory in bytes, where the system tells.
    pub fn resident(&self) -> Option<u64> {
        self.memory("status", "VmRSS:")
    }

    /// The same, but of the pages that several processes share, each has its part: the sum over processes is what they take together.
    pub fn proportional(&self) -> Option<u64> {
        self.memory("smaps_rollup", "Pss:")
    }

    fn memory(&self, file: &str, name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.id())).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }
}

/// Kills the gateways that run with one of these configurations, also those that this process has not started, such as a successor that
/// does not serve yet.
/// False if one is still there.
pub fn kill_gateways(files: &[PathBuf]) -> bool {
    eventually(|| {
        let left = gateways(files);
        for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        left.is_empty()
    })
}

fn gateways(files: &[PathBuf]) -> Vec<i32> {
    let is_file = |argument: &[u8]| files.iter().any(|file| argument == file.as_os_str().as_bytes());
    let runs_one = |pid: &i32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sealane"))
            && arguments.split(|byte| *byte == 0).any(is_file)
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(runs_one).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; both then do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(4_000);
            println!("--- {} said:\n{}", self.name, log.get(from..).unwrap_or(&log));
        }
    }
}

/// How often each of these byte strings is in the memory of a process, as far as the process can write to it. Pages that it has never
/// touched are not read. The process should rest: a byte string that moves meanwhile may be overlooked.
pub fn occurrences(process: u32, wanted: &[&[u8]]) -> io::Result<Vec<usize>> {
    let open = |what: &str| File::open(format!("/proc/{process}/{what}"));
    let (memory, pages) = (open("mem")?, open("pagemap")?);
    let page = rustix::param::page_size();
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    // pagemap(5): bit 63 says that the page is in memory, bit 62 that it is swapped out.
    let used = |entry: &[u8; 8]| entry[7] & 0xc0 != 0;
    let mut found = vec![0; wanted.len()];
    for line in std::fs::read_to_string(format!("/proc/{process}/maps"))?.lines() {
        let mut words = line.split(' ');
        let (range, rights) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let range = range.split_once('-').and_then(|(from, to)| Some((number(from)?, number(to)?)));
        let (Some((from, to)), true) = (range, rights.starts_with("rw")) else { continue };
        let mut entries = vec![0; (to - from) as usize / page * 8];
        pages.read_exact_at(&mut entries, from / page as u64 * 8)?;
        let mut at = from;
        for run in entries.as_chunks().0.chunk_by(|one, other| used(one) == used(other)) {
            let size = run.len() * page;
            if used(&run[0]) {
                let mut bytes = vec![0; size];
                memory.read_exact_at(&mut bytes, at)?;
                count(&bytes, wanted, &mut found);
            }
            at += size as u64;
        }
    }
    Ok(found)
}

fn count(bytes: &[u8], wanted: &[&[u8]], found: &mut [usize]) {
    let mut begins = [false; 256];
    for first in wanted.iter().filter_map(|wanted| wanted.first()) {
        begins[usize::from(*first)] = true;
    }
    for (at, byte) in bytes.iter().enumerate() {
        if begins[usize::from(*byte)] {
            let here = &bytes[at..];
            wanted.iter().zip(&mut *found).for_each(|(wanted, found)| *found += usize::from(here.starts_with(wanted)));
        }
    }
}

/// Runs a program to its end, feeding it `input`; killed (and the test failed) when it outstays [`WAIT_LIMIT`].
#[track_caller]
pub fn run(command: &mut Command, input: &[u8]) -> Output {
    run_within(command, input, WAIT_LIMIT * 2)
}

/// The same for what takes longer.
#[track_caller]
pub fn run_within(command: &mut Command, input: &[u8], limit: Duration) -> Output {
    let name = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    let stdin = child.stdin.take();
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program that ends without reading its input is its own affair.
            stdin.map(|mut pipe| pipe.write_all(input))
        });
        let stdout = scope.spawn(move || drained(&mut stdout));
        let stderr = scope.spawn(move || drained(&mut stderr));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                break Some(status);
            }
            if start.elapsed() > limit {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let stdout = stdout.join().expect("the reading thread does not panic");
        let stderr = stderr.join().expect("the reading thread does not panic");
        let Some(status) = status else {
            let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
            panic!("{name} does not end:\n{out}\n{err}");
        };
        Output { status, stdout, stderr }
    })
}

fn drained(pipe: &mut Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What could be read is what there is.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_found() {
        // It differs from run to run, so that it is nowhere but where the test puts it.
        let place = format!("{:016x}", std::ptr::from_ref(&WAIT_LIMIT) as usize).into_bytes();
        let held: Vec<Vec<u8>> = (0..3).map(|_| place.clone()).collect();
        let found = occurrences(std::process::id(), &[&place]).expect("a process can read its own memory");
        assert!(found[0] > held.len(), "{found:?}");
        let mut found = vec![0; 2];
        count(b"aabaabab", &[b"aab", b"bab"], &mut found);
        assert_eq!(found, [2, 1]);
    }
}
