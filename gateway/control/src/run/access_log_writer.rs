//! The access log's writer, off the lanes.
//!
//! A lane gathers finished lines in a buffer of its own and hands the whole buffer over without ever waiting; a thread
//! writes it to the standard output or a file and gives the emptied buffer back. When the disk cannot keep up the
//! channel is full: the lines are dropped and counted, and requests go on. The same holds for a syslog server.
//!
//! ```text
//! lane ── LaneLog::hand_over ──▶ bounded channel (all lanes) ──▶ writer thread ──▶ file
//!   ▲                                                                  │
//!   └───────────────── bounded channel of empty buffers (per lane) ◀───┘
//! ```

use crate::config::{AccessLogTarget, Rotation, RunAs};
use crate::log;
use crate::run::syslog;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Buffers in flight per lane; with 64 KiB each a lane can be a few thousand lines ahead of the disk.
const BUFFERS_PER_LANE: usize = 8;

/// Buffers that grew beyond this are not kept.
const MAX_KEPT: usize = 256 * 1024;

/// How often an idle writer looks for a request to reopen or to stop.
const IDLE: Duration = Duration::from_millis(200);

/// How often write errors are told.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// A buffer of whole lines, and the lane it goes back to.
struct Filled {
    lane: usize,
    lines: Vec<u8>,
}

/// What the lanes' side and control read.
#[derive(Debug, Default)]
struct Shared {
    reopen: AtomicBool,
    stop: AtomicBool,
    write_errors: AtomicU64,
    /// Lines that a syslog server did not take.
    lost: AtomicU64,
    bytes: AtomicU64,
    /// The last write has failed.
    is_failing: AtomicBool,
    /// Why.
    failure: Mutex<LogFailure>,
}

/// Why something that the writer did last has failed.
#[derive(Clone, Debug, Default)]
pub struct LogFailure {
    /// What cannot be done, and the error.
    pub why: String,
    /// Lines are lost. Where a file cannot be rotated or reopened, none is: they go to the file that is open.
    pub loses_lines: bool,
}

/// The running writer, as control holds it.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
    dropped: Vec<Arc<AtomicU64>>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
    /// Only a file can be opened again.
    is_file: bool,
}

/// The writer's counters.
#[derive(Clone, Debug)]
pub struct LogStats {
    shared: Arc<Shared>,
    dropped: Vec<Arc<AtomicU64>>,
}

impl LogStats {
    /// Lines that were dropped because the writer was behind, or that a syslog server did not take.
    pub fn dropped(&self) -> u64 {
        self.dropped.iter().map(|d| d.load(Relaxed)).sum::<u64>() + self.shared.lost.load(Relaxed)
    }

    /// Failed writes, and failed attempts to rotate or reopen the file.
    pub fn write_errors(&self) -> u64 {
        self.shared.write_errors.load(Relaxed)
    }

    /// Why the last write has failed; `None` if it has not.
    pub fn failure(&self) -> Option<LogFailure> {
        if !self.shared.is_failing.load(Relaxed) {
            return None;
        }
        Some(self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Relaxed)
    }
}

/// A lane's end.
pub struct LaneLog {
    lane: usize,
    full: SyncSender<Filled>,
    empty: Receiver<Vec<u8>>,
    /// Written by this lane only.
    dropped: Arc<AtomicU64>,
}

impl LaneLog {
    /// Hands over finished lines and returns an empty buffer to go on with, perhaps one used before. Never waits: when
    /// the writer is behind, the lines are dropped and counted.
    pub fn hand_over(&mut self, lines: Vec<u8>) -> Vec<u8> {
        if lines.is_empty() {
            return lines;
        }
        match self.full.try_send(Filled { lane: self.lane, lines }) {
            Ok(()) => self.empty.try_recv().unwrap_or_default(),
            Err(e) => {
                let (std::sync::mpsc::TrySendError::Full(refused)
                | std::sync::mpsc::TrySendError::Disconnected(refused)) = e;
                let mut lines = refused.lines;
                let count = lines.iter().filter(|b| **b == b'\n').count() as u64;
                self.dropped.fetch_add(count, Relaxed);
                lines.clear();
                lines
            }
        }
    }
}

impl AccessLog {
    /// Starts the writer. `None` when the log is off. `owner`: to whom a new file is given.
    ///
    /// Errors: the file cannot be opened.
    pub fn start(
        target: &AccessLogTarget,
        rotation: Option<Rotation>,
        lanes: usize,
        owner: Option<&RunAs>,
    ) -> io::Result<Option<(AccessLog, Vec<LaneLog>)>> {
        let output = match target {
            AccessLogTarget::Off => return Ok(None),
            AccessLogTarget::Stdout => Output::Stdout,
            AccessLogTarget::File(path) => Output::File(LogFile::new(open(path, owner)?, path.clone(), rotation)),
            AccessLogTarget::Syslog(server) => Output::Syslog(syslog::Sender::new(server.clone())),
        };
        Self::start_on(output, lanes, lanes * BUFFERS_PER_LANE).map(Some)
    }

    fn start_on(output: Output, lanes: usize, capacity: usize) -> io::Result<(AccessLog, Vec<LaneLog>)> {
        let shared = Arc::new(Shared::default());
        let (full, filled) = sync_channel(capacity.max(1));
        let (done_sender, done) = sync_channel(1);
        let mut empties = Vec::new();
        let mut ends = Vec::new();
        let mut dropped = Vec::new();
        for lane in 0..lanes {
            let (give, empty) = sync_channel(BUFFERS_PER_LANE);
            let count = Arc::new(AtomicU64::new(0));
            empties.push(give);
            dropped.push(Arc::clone(&count));
            ends.push(LaneLog { lane, full: full.clone(), empty, dropped: count });
        }
        let is_file = matches!(output, Output::File(_));
        let mut writer = Writer { output, filled, empties, shared: Arc::clone(&shared), complained: None, since: 0 };
        let thread = std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            writer.run();
            // Nobody may be waiting any more.
            let _ = done_sender.send(());
        })?;
        Ok((AccessLog { shared, dropped, done, thread, is_file }, ends))
    }

    /// Opens the file again, for a log that was moved away (SIGUSR1). The writer does this later, and logs an error. False: the log is
    /// not a file.
    pub fn reopen(&self) -> bool {
        self.shared.reopen.store(self.is_file, Relaxed);
        self.is_file
    }

    /// The writer's counters, to be read for as long as anybody likes.
    pub fn stats(&self) -> LogStats {
        LogStats { shared: Arc::clone(&self.shared), dropped: self.dropped.clone() }
    }

    /// Writes what was handed over and ends; gives up after `timeout` (a pipe that nobody reads). True: all is
    /// written.
    pub fn finish(self, timeout: Duration) -> bool {
        self.shared.stop.store(true, Relaxed);
        let in_time = self.done.recv_timeout(timeout).is_ok();
        // A thread that does not end is left to the end of the process.
        in_time && self.thread.join().is_ok()
    }
}

enum Output {
    Stdout,
    File(LogFile),
    Syslog(syslog::Sender),
    #[cfg(test)]
    Test(Box<dyn Write + Send>),
}

/// Opens the file; a new one is for its owner (`owner`, if that is not this process's user), and for its group to read:
/// it names clients and what they asked for.
fn open(path: &Path, owner: Option<&RunAs>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o640);
    match options.create_new(true).open(path) {
        Ok(file) => {
            if let Some(owner) = owner {
                fchown(&file, Some(owner.user.uid), Some(owner.gid))?;
            }
            Ok(file)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => options.create_new(false).create(true).open(path),
        Err(e) => Err(e),
    }
}

/// What went wrong with some lines.
struct Failed {
    /// What could not be done, for a message.
    what: &'static str,
    error: io::Error,
    /// Lines that are known to be lost.
    lost: u64,
}

impl Failed {
    fn to(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self { what, error, lost: 0 }
    }
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        let to_write = Failed::to("write");
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush()).map_err(to_write)
            }
            Self::File(file) => file.write(bytes),
            Self::Syslog(server) => {
                let sent = server.send(bytes);
                sent.error.map_or(Ok(()), |error| Err(Failed { what: "send", error, lost: sent.lost }))
            }
            #[cfg(test)]
            Self::Test(out) => out.write_all(bytes).map_err(to_write),
        }
    }

    /// What it is called in messages.
    fn name(&self) -> String {
        match self {
            Self::Stdout => "to standard output".to_owned(),
            Self::File(file) => file.path.display().to_string(),
            Self::Syslog(_) => "to the syslog server".to_owned(),
            #[cfg(test)]
            Self::Test(_) => "a test".to_owned(),
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.reopen(),
            _ => Ok(()),
        }
    }
}

/// The file that lines are appended to.
struct LogFile {
    file: File,
    path: PathBuf,
    rotation: Option<Rotation>,
    /// Bytes in it, as far as this process knows.
    size: u64,
    /// After a rotation that failed, the next is not tried before.
    retry_at: Option<Instant>,
}

/// How long the file is left as it is after it could not be renamed.
const ROTATE_AGAIN: Duration = Duration::from_secs(60);

impl LogFile {
    fn new(file: File, path: PathBuf, rotation: Option<Rotation>) -> Self {
        let size = file.metadata().map_or(0, |meta| meta.len());
        Self { file, path, rotation, size, retry_at: None }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        // Lines are worth more than a rotation: they are written in any case.
        let rotated = match self.rotation {
            Some(rotation) if self.size > 0 && self.size + bytes.len() as u64 > rotation.size => {
                self.rotate(rotation.keep)
            }
            _ => Ok(()),
        };
        self.file.write_all(bytes).map_err(Failed::to("write"))?;
        self.size += bytes.len() as u64;
        rotated.map_err(Failed::to("rotate"))
    }

    fn reopen(&mut self) -> io::Result<()> {
        *self = Self::new(open(&self.path, None)?, self.path.clone(), self.rotation);
        Ok(())
    }

    /// `FILE.1` becomes `FILE.2` and so on, the file `FILE.1`, and a new file begins.
    fn rotate(&mut self, keep: u32) -> io::Result<()> {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        let result = self.try_rotate(keep);
        self.retry_at = result.is_err().then(|| Instant::now() + ROTATE_AGAIN);
        result
    }

    fn try_rotate(&mut self, keep: u32) -> io::Result<()> {
        let own = self.file.metadata()?;
        match std::fs::symlink_metadata(&self.path) {
            // A device or a link is not ours to rename.
            Ok(meta) if !meta.is_file() => return Ok(()),
            Ok(meta) if (meta.dev(), meta.ino()) == (own.dev(), own.ino()) => {}
            // Somebody else has renamed the file: logrotate, or another process of this gateway during an upgrade.
            _ => return self.reopen(),
        }
        let numbered = |n: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        for n in (1..keep).rev() {
            match std::fs::rename(numbered(n), numbered(n + 1)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        std::fs::rename(&self.path, numbered(1))?;
        self.reopen()
    }
}

struct Writer {
    output: Output,
    filled: Receiver<Filled>,
    empties: Vec<SyncSender<Vec<u8>>>,
    shared: Arc<Shared>,
    complained: Option<Instant>,
    /// Errors since the last complaint.
    since: u64,
}

impl Writer {
    fn run(&mut self) {
        loop {
            match self.filled.recv_timeout(IDLE) {
                Ok(filled) => self.write(filled),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.reopen_if_asked();
            if self.shared.stop.load(Relaxed) {
                loop {
                    match self.filled.try_recv() {
                        Ok(filled) => self.write(filled),
                        Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
                    }
                }
            }
        }
    }

    fn write(&mut self, filled: Filled) {
        // Asked before these lines were handed over: they belong into the new file.
        self.reopen_if_asked();
        let Filled { lane, mut lines } = filled;
        match self.output.write(&lines) {
            Ok(()) => {
                self.shared.bytes.fetch_add(lines.len() as u64, Relaxed);
                self.shared.is_failing.store(false, Relaxed);
            }
            Err(failed) => {
                self.failed(failed.what, &failed.error);
                // After the line in the log, as the number of errors: who waits for the counter finds both.
                self.shared.lost.fetch_add(failed.lost, Relaxed);
            }
        }
        if lines.capacity() <= MAX_KEPT {
            lines.clear();
            // A lane that has enough lets this one go.
            let _ = self.empties[lane].try_send(lines);
        }
    }

    fn reopen_if_asked(&mut self) {
        if self.shared.reopen.swap(false, Relaxed)
            && let Err(e) = self.output.reopen()
        {
            self.failed("reopen", &e);
        }
    }

    fn failed(&mut self, what: &str, e: &io::Error) {
        self.since += 1;
        *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = LogFailure {
            why: format!("cannot {what} {}: {e}", self.output.name()),
            loses_lines: !matches!(what, "rotate" | "reopen"),
        };
        self.shared.is_failing.store(true, Relaxed);
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            log::error!("cannot {what} the access log: {e} ({} errors since the last such message)", self.since);
            self.complained = Some(Instant::now());
            self.since = 0;
        }
        // After the line: who waits for the counter finds the line in the log.
        self.shared.write_errors.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive_and_buffers_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let (log, mut lanes) = AccessLog::start(&AccessLogTarget::File(path.clone()), None, 2, None).unwrap().unwrap();
        lanes[0].hand_over(b"one\n".to_vec());
        lanes[1].hand_over(b"two\nthree\n".to_vec());
        assert!(log.finish(Duration::from_secs(60)));
        let mut lines: Vec<String> = std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["one", "three", "two"]);
        // The writer has ended: its empty buffers are there, and further lines are dropped and counted.
        assert!(lanes[0].empty.try_recv().unwrap().capacity() > 0);
        let again = lanes[0].hand_over(b"late\nlater\n".to_vec());
        assert!(again.is_empty() && again.capacity() > 0);
        assert_eq!(lanes[0].dropped.load(Relaxed), 2);
    }

    #[test]
    fn a_blocked_writer_costs_lines_and_no_time() {
        /// Blocks until its sender is gone.
        struct Blocked(Receiver<()>, SyncSender<()>);
        impl Write for Blocked {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let _ = self.1.try_send(());
                let _ = self.0.recv();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (release, blocked) = sync_channel(1);
        let (entered, at_write) = sync_channel(1);
        let (log, mut lanes) = AccessLog::start_on(Output::Test(Box::new(Blocked(blocked, entered))), 1, 2).unwrap();
        lanes[0].hand_over(b"a\n".to_vec());
        at_write.recv().unwrap();
        // The writer holds "a"; two more fit into the channel, and the next does not.
        for _ in 0..3 {
            lanes[0].hand_over(b"b\nc\n".to_vec());
        }
        assert_eq!(log.stats().dropped(), 2);
        assert!(!log.reopen(), "it is no file");
        drop(release);
        assert!(log.finish(Duration::from_secs(60)));
    }

    #[test]
    fn reopening_goes_on_in_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
        let (log, mut lanes) = AccessLog::start(&AccessLogTarget::File(path.clone()), None, 1, None).unwrap().unwrap();
        lanes[0].hand_over(b"old\n".to_vec());
        while log.stats().bytes() < 4 {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).unwrap();
        assert!(log.reopen());
        lanes[0].hand_over(b"new\n".to_vec());
        assert!(log.finish(Duration::from_secs(60)));
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "old\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
    }

    #[test]
    fn a_file_that_is_full_makes_room_for_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let open_file =
            |keep| LogFile::new(open(&path, None).unwrap(), path.clone(), Some(Rotation { size: 10, keep }));
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
        let mut file = open_file(2);
        for lines in ["12345\n", "678\n", "a\n", "longer than the limit\n", "b\n"] {
            assert!(file.write(lines.as_bytes()).is_ok());
        }
        let names = ["access.log", "access.log.1", "access.log.2", "access.log.3"];
        assert_eq!(
            names.map(|name| read(name).unwrap_or_default()),
            ["b\n", "longer than the limit\n", "a\n", ""],
            "the oldest is gone"
        );
        // A start finds what is there.
        let mut file = open_file(2);
        assert_eq!(file.size, 2);
        // Somebody else renames it: this process begins a new one, and leaves theirs.
        std::fs::rename(&path, folder.path().join("theirs")).unwrap();
        assert!(file.write(b"123456789\n").is_ok());
        assert_eq!((read("theirs"), read("access.log")), (Some("b\n".into()), Some("123456789\n".into())));
        // What cannot be renamed stays, and lines are written.
        std::fs::remove_file(folder.path().join("access.log.2")).unwrap();
        std::fs::create_dir_all(folder.path().join("access.log.2/full")).unwrap();
        std::fs::write(folder.path().join("access.log.1"), "kept\n").unwrap();
        assert!(file.write(b"more\n").is_err_and(|failed| failed.what == "rotate"));
        assert_eq!(
            (read("access.log.1"), read("access.log")),
            (Some("kept\n".into()), Some("123456789\nmore\n".into()))
        );
        assert!(file.write(b"again\n").is_ok());
        assert_eq!(read("access.log").unwrap(), "123456789\nmore\nagain\n");
    }

    #[test]
    fn write_errors_are_counted() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (log, mut lanes) = AccessLog::start_on(Output::Test(Box::new(Full)), 1, 8).unwrap();
        for _ in 0..3 {
            lanes[0].hand_over(b"x\n".to_vec());
        }
        let stats = log.stats();
        assert!(log.finish(Duration::from_secs(60)));
        assert_eq!((stats.write_errors(), stats.bytes()), (3, 0));
        assert!(stats.failure().is_some_and(|failure| failure.loses_lines));
    }

    #[test]
    fn a_rotation_that_fails_loses_no_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        // What is in the way cannot be replaced by a file.
        std::fs::create_dir_all(folder.path().join("access.log.1/full")).unwrap();
        std::fs::write(&path, "old\n").unwrap();
        let rotation = Some(Rotation { size: 5, keep: 1 });
        let target = AccessLogTarget::File(path.clone());
        let (log, mut lanes) = AccessLog::start(&target, rotation, 1, None).unwrap().unwrap();
        lanes[0].hand_over(b"new\n".to_vec());
        let stats = log.stats();
        assert!(log.finish(Duration::from_secs(60)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\nnew\n");
        let failure = stats.failure().unwrap();
        assert!(failure.why.starts_with("cannot rotate ") && !failure.loses_lines, "{failure:?}");
        assert_eq!(stats.write_errors(), 1);
    }
}
