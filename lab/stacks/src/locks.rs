//! Lock calls, as the preloaded counter (`on-demand/preload/locks.c`) wrote them down.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

use crate::builder::{Builder, Built};
use crate::elf::Images;
use crate::wire::{self, Case, Line};

// The sizes of `struct block` and `struct lock`.
const SCOPES: usize = 5;
const KINDS: usize = 4;
const FRAMES: usize = 10;
const LOCKS: usize = 8192;
const OBJECTS: usize = 64;
const PATH_BYTES: usize = 192;
const TABLE: usize = SCOPES * KINDS * 8;
const LOCK_BYTES: usize = 8 + 3 * SCOPES * 8 + KINDS * 8 + FRAMES * 16;
const OBJECTS_AT: usize = 40 + 3 * TABLE + 16;
const LOCKS_AT: usize = OBJECTS_AT + OBJECTS * PATH_BYTES;
const BLOCK_BYTES: usize = LOCKS_AT + LOCKS * LOCK_BYTES;

/// Whose lock calls: the scopes of a worker, or all of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The server's handshake and data.
    Server,
    /// The client's.
    Client,
    /// Everything.
    All,
}

impl Whose {
    fn scopes(self) -> &'static [usize] {
        match self {
            Whose::Server => &[2, 4],
            Whose::Client => &[1, 3],
            Whose::All => &[0, 1, 2, 3, 4],
        }
    }
}

/// Calls, those that were contended, and nanoseconds waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Calls {
    /// Acquisitions.
    pub calls: u64,
    /// Of a lock that was not free.
    pub contended: u64,
    /// Until it was.
    pub waited_ns: u64,
}

impl Calls {
    fn add(&mut self, other: Calls) {
        self.calls += other.calls;
        self.contended += other.contended;
        self.waited_ns += other.waited_ns;
    }
}

/// One lock of one process.
#[derive(Clone, Debug)]
struct Lock {
    scopes: [Calls; SCOPES],
    kinds: [u64; KINDS],
    threads: u64,
    frames: Vec<(PathBuf, u64)>,
}

/// Everything that a program's counters hold.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    totals: [[Calls; KINDS]; SCOPES],
    locks: HashMap<(u64, u64), Lock>,
    /// Threads that took a lock.
    pub threads: u64,
    /// Processes that did.
    pub processes: u64,
    /// Calls of locks that found no place in the table: in the totals, but not among the places.
    pub overflow: u64,
}

/// A place that takes locks: those whose first call came from there.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// The callers, innermost first.
    pub callers: Vec<String>,
    /// How many locks.
    pub locks: u64,
    /// The most threads that one of them was used by.
    pub threads: u64,
    /// `mutex`, `read`, `write` or `spin`: what they mostly are.
    pub kind: &'static str,
    /// All their calls.
    pub all: Calls,
    /// Calls of the one that had most.
    pub hottest: u64,
}

const KIND_NAMES: [&str; KINDS] = ["mutex", "read", "write", "spin"];

impl Counts {
    /// Reads the files of a folder.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let mut counts = Counts::default();
        let mut processes = std::collections::BTreeSet::new();
        let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        files.sort();
        for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "locks")) {
            let data = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
            // A thread that was ended before it wrote its first word.
            if data.len() < BLOCK_BYTES || data[..8].iter().all(|&b| b == 0) {
                continue;
            }
            processes.insert(counts.add(&data).ok_or_else(|| format!("{}: not a lock count", file.display()))?);
        }
        counts.processes = processes.len() as u64;
        Ok(counts)
    }

    /// Adds a thread's block; the process it belongs to.
    fn add(&mut self, data: &[u8]) -> Option<u64> {
        let word = |at: usize| Some(u64::from_ne_bytes(data.get(at..at + 8)?.try_into().ok()?));
        if data.get(..8)? != b"SEALOCK2" {
            return None;
        }
        let pid = word(8)?;
        for scope in 0..SCOPES {
            for kind in 0..KINDS {
                let at = 40 + (scope * KINDS + kind) * 8;
                self.totals[scope][kind].add(Calls {
                    calls: word(at)?,
                    contended: word(at + TABLE)?,
                    waited_ns: word(at + 2 * TABLE)?,
                });
            }
        }
        self.threads += 1;
        self.overflow += word(40 + 3 * TABLE)?;
        let object = |n: u64| {
            let at = OBJECTS_AT + usize::try_from(n).ok().filter(|n| *n < OBJECTS)? * PATH_BYTES;
            let text = &data[at..at + PATH_BYTES];
            let end = text.iter().position(|&b| b == 0)?;
            Some(PathBuf::from(String::from_utf8_lossy(&text[..end]).into_owned()))
        };
        for n in 0..LOCKS {
            let at = LOCKS_AT + n * LOCK_BYTES;
            let address = word(at)?;
            if address == 0 {
                continue;
            }
            let lock = self.locks.entry((pid, address)).or_insert_with(|| Lock {
                scopes: [Calls::default(); SCOPES],
                kinds: [0; KINDS],
                threads: 0,
                frames: Vec::new(),
            });
            lock.threads += 1;
            for (scope, calls) in lock.scopes.iter_mut().enumerate() {
                let at = at + 8 + scope * 8;
                let (contended, waited) = (at + SCOPES * 8, at + 2 * SCOPES * 8);
                calls.add(Calls { calls: word(at)?, contended: word(contended)?, waited_ns: word(waited)? });
            }
            let kinds = at + 8 + 3 * SCOPES * 8;
            for (kind, calls) in lock.kinds.iter_mut().enumerate() {
                *calls += word(kinds + kind * 8)?;
            }
            if lock.frames.is_empty() {
                let frames = kinds + KINDS * 8;
                for frame in 0..FRAMES {
                    let (offset, number) = (word(frames + frame * 16)?, word(frames + frame * 16 + 8)?);
                    if let Some(path) = object(number) {
                        lock.frames.push((path, offset));
                    }
                }
            }
        }
        Some(pid)
    }

    /// Calls of all kinds.
    pub fn total(&self, whose: Whose) -> Calls {
        let mut sum = Calls::default();
        self.each(whose, |_, calls| sum.add(calls));
        sum
    }

    /// Calls by kind: mutexes, read locks, write locks, spin locks.
    pub fn kinds(&self, whose: Whose) -> BTreeMap<&'static str, u64> {
        let mut kinds = BTreeMap::new();
        self.each(whose, |kind, calls| {
            if calls.calls > 0 {
                *kinds.entry(KIND_NAMES[kind]).or_default() += calls.calls;
            }
        });
        kinds
    }

    fn each(&self, whose: Whose, mut f: impl FnMut(usize, Calls)) {
        for &scope in whose.scopes() {
            for (kind, &calls) in self.totals[scope].iter().enumerate() {
                f(kind, calls);
            }
        }
    }

    /// The calls of the lock that had most, among those that more than one thread used if `shared`.
    pub fn hottest(&self, whose: Whose, shared: bool) -> Calls {
        self.locks
            .values()
            .filter(|lock| !shared || lock.threads > 1)
            .map(|lock| lock.of(whose))
            .max_by_key(|calls| calls.calls)
            .unwrap_or_default()
    }

    /// Where locks are taken, most calls first.
    pub fn places(&self, whose: Whose, images: &mut Images) -> Vec<Place> {
        let mut places: BTreeMap<Vec<String>, Place> = BTreeMap::new();
        for lock in self.locks.values() {
            let calls = lock.of(whose);
            if calls.calls == 0 {
                continue;
            }
            let callers: Vec<String> =
                lock.frames.iter().take(6).map(|(path, offset)| images.place(path, *offset)).collect();
            let most = (0..KINDS).max_by_key(|&k| lock.kinds[k]).unwrap_or(0);
            let place = places.entry(callers.clone()).or_insert_with(|| Place {
                callers,
                locks: 0,
                threads: 0,
                kind: KIND_NAMES[most],
                all: Calls::default(),
                hottest: 0,
            });
            place.locks += 1;
            place.threads = place.threads.max(lock.threads);
            place.all.add(calls);
            place.hottest = place.hottest.max(calls.calls);
        }
        let mut places: Vec<Place> = places.into_values().collect();
        places.sort_by(|a, b| b.all.calls.cmp(&a.all.calls).then_with(|| a.callers.cmp(&b.callers)));
        places
    }
}

impl Lock {
    fn of(&self, whose: Whose) -> Calls {
        let mut sum = Calls::default();
        for &scope in whose.scopes() {
            sum.add(self.scopes[scope]);
        }
        sum
    }
}

/// Gives a command the counter: its counts go to `folder`, from the first call on or, with `wait`, from where a worker
/// says so.
pub fn preload(command: &mut Command, counter: &Path, folder: &Path, wait: bool, light: bool) {
    // Whatever else the user preloads stays.
    let mut list = counter.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_PRELOAD").filter(|more| !more.is_empty()) {
        list.push(":");
        list.push(more);
    }
    command.env("LD_PRELOAD", list).env("SEALANE_LOCKS_DIR", folder);
    if wait {
        command.env("SEALANE_LOCKS_WAIT", "1");
    }
    if light {
        command.env("SEALANE_LOCKS_LIGHT", "1");
    }
}

/// A stack's lock calls per handshake.
#[derive(Clone, Debug, Serialize)]
pub struct PerHandshake {
    /// The case's name.
    pub case: String,
    /// `server` or `client`.
    pub side: &'static str,
    /// Threads that took part.
    pub threads: usize,
    /// Handshakes that were counted.
    pub handshakes: u64,
    /// Lock calls per handshake, its data included.
    pub calls: f64,
    /// Of these, the handshake's own.
    pub handshake_calls: f64,
    /// By kind.
    pub kinds: BTreeMap<&'static str, f64>,
    /// Calls of the hottest lock that threads share.
    pub hottest: f64,
    /// Contended calls.
    pub contended: f64,
    /// Microseconds waited.
    pub waited_us: f64,
    /// The hottest places.
    pub places: Vec<Place>,
}

/// Counts a stack's lock calls in `handshakes` handshakes per thread, on the side under test.
pub fn count(
    builder: &Builder,
    built: &Built,
    peer: &Path,
    certs: &Path,
    case: &Case,
    handshakes: u64,
    images: &mut Images,
) -> Result<PerHandshake, String> {
    let counter = builder.lock_counter().map_err(|e| e.to_string())?;
    let folder = Folder::new(builder.root())?;
    let mut arguments = case.arguments();
    arguments.extend(["--count".into(), handshakes.to_string(), "--unsplit".into()]);
    let mut command = wire::command(built, peer, certs, &arguments);
    preload(&mut command, &counter, &folder.0, true, false);
    let lines = wire::run(command)?;
    let done = lines.iter().find_map(|line| match line {
        Line::Handshakes(h) => Some(h.common.operations),
        _ => None,
    });
    let done = done.ok_or("the worker did no handshakes")?;
    let counts = Counts::read(&folder.0)?;
    let (whose, side, own) =
        if case.test == "client" { (Whose::Client, "client", 1) } else { (Whose::Server, "server", 2) };
    let per = |n: u64| n as f64 / done as f64;
    let total = counts.total(whose);
    let mut places = counts.places(whose, images);
    places.truncate(12);
    Ok(PerHandshake {
        case: case.name(),
        side,
        threads: case.threads,
        handshakes: done,
        calls: per(total.calls),
        handshake_calls: per(counts.totals[own].iter().map(|k| k.calls).sum()),
        kinds: counts.kinds(whose).into_iter().map(|(kind, n)| (kind, per(n))).collect(),
        hottest: per(counts.hottest(whose, case.threads > 1).calls),
        contended: per(total.contended),
        waited_us: per(total.waited_ns) / 1e3,
        places,
    })
}

/// A folder for counts that goes away again.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// A new one below `root`.
    pub fn new(root: &Path) -> Result<Self, String> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = root.join("tmp").join(format!("{}-{number}", std::process::id()));
        // A process of the same number may have left one behind.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small program with known locks, run under the counter as any program would be.
    const PROGRAM: &str = r#"
        #define _GNU_SOURCE
        #include <pthread.h>
        #include <time.h>
        static const struct timespec far = {(time_t)1 << 40, 0};
        static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
        static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
        static int by_mutex, by_writers; // Each has its own lock: they are not kept apart from one another.
        // Every other time as C++'s timed locks do.
        __attribute__((noinline)) void take_mutex(int i) {
            if (i % 2) pthread_mutex_lock(&m); else pthread_mutex_clocklock(&m, CLOCK_MONOTONIC, &far);
            by_mutex++;
            pthread_mutex_unlock(&m);
        }
        __attribute__((noinline)) void take_write(int i) {
            if (i % 2) pthread_rwlock_wrlock(&rw); else pthread_rwlock_clockwrlock(&rw, CLOCK_MONOTONIC, &far);
            by_writers++;
            pthread_rwlock_unlock(&rw);
        }
        __attribute__((noinline)) void take_read(int i) {
            if (i % 2) pthread_rwlock_rdlock(&rw); else pthread_rwlock_clockrdlock(&rw, CLOCK_MONOTONIC, &far);
            pthread_rwlock_unlock(&rw);
        }
        static void *work(void *x) { for (int i = 0; i < 1000; i++) { take_mutex(i); take_write(i); take_read(i); } return x; }
        int main(void) {
            pthread_t t[2];
            for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, work, 0);
            for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
            return by_mutex == 2000 && by_writers == 2000 ? 0 : 1;
        }
    "#;

    fn compile(folder: &Path, name: &str, flags: &[&str], source: &Path) -> Option<PathBuf> {
        let out = folder.join(name);
        let status =
            Command::new("cc").args(flags).arg("-o").arg(&out).arg(source).args(["-ldl", "-lpthread"]).status();
        match status {
            Ok(status) => {
                assert!(status.success(), "cc {source:?}");
                Some(out)
            }
            Err(_) => {
                println!("skipped: no C compiler");
                None
            }
        }
    }

    fn counted(light: bool) -> Option<Counts> {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("program.c");
        std::fs::write(&source, PROGRAM).expect("written");
        let counter = Path::new(env!("CARGO_MANIFEST_DIR")).join("on-demand/preload/locks.c");
        let counter = compile(folder.path(), "locks.so", &["-O2", "-shared", "-fPIC", "-Wall", "-Werror"], &counter)?;
        let program = compile(folder.path(), "program", &["-O1", "-g"], &source)?;
        let counts = folder.path().join("counts");
        std::fs::create_dir(&counts).expect("made");
        let mut command = Command::new(program);
        preload(&mut command, &counter, &counts, false, light);
        assert!(command.status().expect("it runs").success(), "the locks did not keep threads apart");
        let mut images = Images::default();
        let counts = Counts::read(&counts).expect("read");
        let places = counts.places(Whose::All, &mut images);
        let of = |name: &str| places.iter().find(|p| p.callers.first().is_some_and(|c| c == name));
        let mutex = of("take_mutex").unwrap_or_else(|| panic!("{places:?}"));
        assert_eq!((mutex.all.calls, mutex.locks, mutex.threads, mutex.kind), (2000, 1, 2, "mutex"));
        assert_eq!(of("take_write").expect("there").all.calls, 4000);
        Some(counts)
    }

    #[test]
    fn a_programs_locks_are_counted_exactly() {
        let Some(counts) = counted(false) else { return };
        assert_eq!(counts.total(Whose::All).calls, 6000);
        assert_eq!(counts.kinds(Whose::All), BTreeMap::from([("mutex", 2000), ("read", 2000), ("write", 2000)]));
        assert_eq!(counts.hottest(Whose::All, true).calls, 4000);
        assert_eq!((counts.threads, counts.processes, counts.overflow), (2, 1, 0));
        assert_eq!(counts.total(Whose::Server).calls, 0);
    }

    #[test]
    fn light_locks_keep_threads_apart_and_are_counted_alike() {
        let Some(counts) = counted(true) else { return };
        assert_eq!(counts.total(Whose::All).calls, 6000);
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("1-1-0.locks"), vec![7; BLOCK_BYTES]).expect("written");
        assert!(Counts::read(folder.path()).is_err());
        std::fs::write(folder.path().join("1-1-0.locks"), vec![0; BLOCK_BYTES]).expect("written");
        assert_eq!(Counts::read(folder.path()).expect("empty").threads, 0);
    }
}
