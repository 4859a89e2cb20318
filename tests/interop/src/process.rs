//! A program that the test started, and that ends with it.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read, Write};
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
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }
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
