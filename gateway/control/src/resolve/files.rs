//! Reading files that may be anything: missing, unreadable, endless, a pipe without a writer, on a file system that does not
//! answer, or replaced meanwhile. Each case is an error in plain words, in bounded time.

use crate::config::{Content, Kind, MAX_FILE, Print, Unreadable, plain};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

/// How long one file may take.
pub(super) const FILE_LIMIT: Duration = Duration::from_secs(10);
/// How long a pipe is waited for. The shell's `<(command)` gives a file as a pipe, so pipes are read.
const PIPE_LIMIT: Duration = Duration::from_secs(5);
/// How often a file that changes while it is read is read again.
const ATTEMPTS: usize = 3;
const NETWORK: &str = "is the file on a network file system whose server does not respond?";

/// Why a file could not be read, and whether nothing is there.
pub(super) type Failure = (Unreadable, bool);

/// A file, and its content.
pub(super) type Read = (PathBuf, Result<Content, Failure>);

/// Reads a whole file, until `deadline` or for [`FILE_LIMIT`].
pub(super) async fn read(path: &Path, deadline: Instant) -> Result<Content, Failure> {
    let asked = path.to_path_buf();
    let read = move || read_blocking(&asked).map_err(|e| (explained(&asked, &e), e.kind() == ErrorKind::NotFound));
    bounded(path, deadline, read).await.unwrap_or_else(|late| Err((late, false)))
}

/// Reads whole files, until `deadline`, with so many threads. Each thread reads its share one file after the other: to hand each file
/// to a thread would take longer than to read it, and there may be fifty thousand. One that takes longer than [`FILE_LIMIT`] is left
/// behind with its thread, and another thread goes on.
pub(super) async fn read_all(paths: Vec<PathBuf>, threads: usize, deadline: Instant) -> Vec<Read> {
    let share = paths.len().div_ceil(threads.max(1)).max(1);
    let mut parts = JoinSet::new();
    for part in paths.chunks(share) {
        parts.spawn(read_part(part.into(), deadline, FILE_LIMIT, read_blocking));
    }
    let mut all = Vec::with_capacity(paths.len());
    while let Some(part) = parts.join_next().await {
        // A part that panics, which is a bug, leaves its files without an answer.
        all.extend(part.unwrap_or_default());
    }
    all
}

async fn read_part(
    paths: Arc<[PathBuf]>,
    deadline: Instant,
    limit: Duration,
    read: fn(&Path) -> io::Result<Content>,
) -> Vec<Read> {
    let mut all: Vec<Read> = Vec::with_capacity(paths.len());
    while let Some(path) = paths.get(all.len()) {
        let failed = |failure| (path.clone(), Err((unreadable(&failure), false)));
        if Instant::now() >= deadline {
            all.push((path.clone(), Err((no_time(), false))));
            continue;
        }
        if sealane_blocking::hangs(path) {
            all.push(failed(sealane_blocking::Failure::StillHanging));
            continue;
        }
        let (done, stuck) = read_until_stuck(&paths, all.len(), deadline, limit, read).await;
        let found: Vec<Read> = paths[all.len()..].iter().cloned().zip(done).collect();
        all.extend(found);
        if let (Some(failure), Some(path)) = (stuck, paths.get(all.len())) {
            all.push((path.clone(), Err((unreadable(&failure), false))));
        }
    }
    all
}

/// Reads files from the one at `first` on. The second result says why the next one is not among them, if it was tried.
async fn read_until_stuck(
    paths: &Arc<[PathBuf]>,
    first: usize,
    deadline: Instant,
    limit: Duration,
    read: fn(&Path) -> io::Result<Content>,
) -> (Vec<Result<Content, Failure>>, Option<sealane_blocking::Failure>) {
    let results = Arc::new(Mutex::new(Vec::new()));
    let abandoned = Arc::new(AtomicBool::new(false));
    let thread = Arc::new(());
    let mark = Arc::downgrade(&thread);
    let mut work = {
        let (paths, results, abandoned) = (paths.clone(), results.clone(), abandoned.clone());
        spawn_blocking(move || {
            for path in &paths[first..] {
                // Left to its own turn.
                if sealane_blocking::hangs(path) {
                    break;
                }
                let content = read(path).map_err(|e| (explained(path, &e), e.kind() == ErrorKind::NotFound));
                // Nobody waits for it.
                if abandoned.load(Ordering::SeqCst) {
                    break;
                }
                locked(&results).push(content);
            }
            drop(thread);
        })
    };
    let mut before = 0;
    let ended = loop {
        let ended = timeout_at(deadline.min(Instant::now() + limit), &mut work).await;
        let count = locked(&results).len();
        match ended {
            Ok(ended) => break Some(ended),
            // It goes on, if slowly.
            Err(_) if count > before && Instant::now() < deadline => before = count,
            Err(_) => break None,
        }
    };
    abandoned.store(true, Ordering::SeqCst);
    let done = std::mem::take(&mut *locked(&results));
    let stuck = match (ended, paths.get(first + done.len())) {
        (Some(Ok(())), _) => None,
        (Some(Err(e)), _) => Some(sealane_blocking::Failure::Panicked(e.to_string())),
        (None, Some(path)) => {
            sealane_blocking::note_hanging(path, mark);
            Some(sealane_blocking::Failure::TimedOut)
        }
        (None, None) => None,
    };
    (done, stuck)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is at a path. Something that cannot be looked at in time is missing.
pub(super) async fn kind(path: &Path, deadline: Instant) -> Kind {
    let asked = path.to_path_buf();
    let look = move || match std::fs::metadata(asked) {
        Ok(meta) if meta.is_dir() => Kind::Folder,
        Ok(meta) if meta.is_file() => Kind::File,
        Ok(_) => Kind::Other,
        Err(_) => Kind::Missing,
    };
    bounded(path, deadline, look).await.unwrap_or(Kind::Missing)
}

/// The names in a folder that are meant; one more than `most` of them at most.
pub(super) async fn list(
    folder: &Path,
    most: usize,
    deadline: Instant,
    is_meant: impl Fn(&OsStr) -> bool + Send + 'static,
) -> Result<Vec<OsString>, Unreadable> {
    let asked = folder.to_path_buf();
    let look = move || -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&asked)? {
            let name = entry?.file_name();
            if is_meant(&name) {
                names.push(name);
            }
            if names.len() > most {
                break;
            }
        }
        Ok(names)
    };
    bounded(folder, deadline, look).await?.map_err(|e| explained(folder, &e))
}

/// Runs what may block, for at most [`FILE_LIMIT`].
async fn bounded<T: Send + 'static>(
    path: &Path,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unreadable> {
    let limit = deadline.min(Instant::now() + FILE_LIMIT);
    if limit <= Instant::now() {
        return Err(no_time());
    }
    sealane_blocking::call(path, limit, work).await.map_err(|failure| unreadable(&failure))
}

fn no_time() -> Unreadable {
    let why = "the time limit passed while the gateway read the other files of the configuration".to_owned();
    Unreadable { why, help: Some(NETWORK.to_owned()) }
}

fn unreadable(failure: &sealane_blocking::Failure) -> Unreadable {
    Unreadable {
        why: failure.to_string(),
        help: (!matches!(failure, sealane_blocking::Failure::Panicked(_))).then(|| NETWORK.to_owned()),
    }
}

fn read_blocking(path: &Path) -> io::Result<Content> {
    for _ in 0..ATTEMPTS {
        if let Some(content) = read_once(path)? {
            return Ok(content);
        }
    }
    Err(io::Error::other("the file changes continuously"))
}

/// `None`: the file has changed meanwhile.
fn read_once(path: &Path) -> io::Result<Option<Content>> {
    // Without O_NONBLOCK, opening a pipe waits for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    let before = fstat(&file)?;
    let bytes = match FileType::from_raw_mode(before.st_mode) {
        FileType::Directory => return Err(ErrorKind::IsADirectory.into()),
        FileType::RegularFile if before.st_size as u64 > MAX_FILE => return Err(ErrorKind::FileTooLarge.into()),
        FileType::RegularFile => {
            let mut bytes = Zeroizing::new(Vec::with_capacity(before.st_size as usize + 1));
            (&file).take(MAX_FILE + 1).read_to_end(&mut bytes)?;
            if written(&fstat(&file)?) != written(&before) {
                return Ok(None);
            }
            bytes
        }
        _ => read_pipe(&file)?,
    };
    if bytes.len() as u64 > MAX_FILE {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(Some(Content { bytes, mode: before.st_mode & 0o777, print: print(&before) }))
}

/// As [`crate::run::watch`] sees the file.
fn print(stat: &Stat) -> Print {
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    regular.then_some((stat.st_dev, stat.st_ino, stat.st_size as u64, stat.st_ctime, stat.st_ctime_nsec as i64))
}

/// What is different once a file has been written to.
fn written(stat: &Stat) -> (i64, i64, i64) {
    (stat.st_size, stat.st_mtime, stat.st_mtime_nsec as i64)
}

/// Reads a pipe, or a device, until its end.
fn read_pipe(file: &File) -> io::Result<Zeroizing<Vec<u8>>> {
    let start = std::time::Instant::now();
    let mut bytes = Zeroizing::new(Vec::new());
    let mut piece = Zeroizing::new([0; 4096]);
    loop {
        match (&mut &*file).read(&mut piece[..]) {
            // Without a writer a pipe is at its end: after its content, or before somebody has opened it.
            Ok(0) if !bytes.is_empty() => return Ok(bytes),
            Ok(0) => {}
            Ok(n) => {
                bytes.extend_from_slice(&piece[..n]);
                if bytes.len() as u64 > MAX_FILE {
                    return Err(ErrorKind::FileTooLarge.into());
                }
                continue;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        let left = PIPE_LIMIT.saturating_sub(start.elapsed());
        let mut ready = [PollFd::new(file, PollFlags::IN)];
        let limit = rustix::event::Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut ready, Some(&limit)) {
            Ok(0) => return Err(io::Error::new(ErrorKind::TimedOut, NOTHING_CAME)),
            // A writer has come and gone, without a word; or a device, as `/dev/null`, is empty.
            Ok(_) if !ready[0].revents().contains(PollFlags::IN) || is_device(file) => return Ok(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

const NOTHING_CAME: &str = "the file is a pipe, and its writer does not close it";

fn is_device(file: &File) -> bool {
    fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice)
}

/// An error in plain words, and how to repair it.
fn explained(path: &Path, e: &io::Error) -> Unreadable {
    Unreadable { why: plain(e), help: help(path, e) }
}

fn help(path: &Path, e: &io::Error) -> Option<String> {
    match e.kind() {
        ErrorKind::PermissionDenied => {
            let me = rustix::process::geteuid().as_raw();
            Some(match std::fs::metadata(path) {
                Ok(meta) => format!(
                    "the file has mode {:04o} and owner {}:{}, but this program runs as user {me}. If this is \
                     not the gateway's user, run the command as the gateway's user (sudo -u USER); otherwise `sudo chgrp \
                     GROUP {file}; sudo chmod g+r {file}` with the group of the gateway's user",
                    meta.mode() & 0o777,
                    meta.uid(),
                    meta.gid(),
                    file = sealane_config::shell_word(path.display())
                ),
                Err(_) => format!("user {me} has no permission to enter one of its parent folders"),
            })
        }
        ErrorKind::NotFound => {
            // The deepest folder that does exist tells where the path goes wrong.
            let parent = path.ancestors().skip(1).find(|p| p.exists() || p.as_os_str().is_empty())?;
            match path.parent() {
                Some(folder) if folder == parent => None,
                Some(folder) if parent.as_os_str().is_empty() => {
                    Some(format!("there is no folder {}", folder.display()))
                }
                _ => Some(format!("{} exists, but the rest of the path does not", parent.display())),
            }
        }
        ErrorKind::FileTooLarge => {
            Some(format!("the gateway reads at most {} MiB: is this the right file?", MAX_FILE >> 20))
        }
        ErrorKind::TimedOut => Some(format!(
            "write the path of a regular file; the gateway reads a pipe for at most {} s",
            PIPE_LIMIT.as_secs()
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[7; 10_000]).unwrap();
        drop(writer);
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let content = read_blocking(Path::new(&format!("/dev/fd/{fd}"))).unwrap();
        assert_eq!(content.bytes.len(), 10_000);
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let e = read_blocking(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FileTooLarge);
        assert!(read_blocking(Path::new("/dev/null")).unwrap().bytes.is_empty());
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        File::create(&path).unwrap().set_len(10 << 30).unwrap();
        assert_eq!(read_blocking(&path).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    static RESPONDS: AtomicBool = AtomicBool::new(false);

    /// A file system that hangs, which no test can have, is work that does not end for a while.
    fn hangs(path: &Path) -> io::Result<Content> {
        while path.starts_with("/far-away") && !RESPONDS.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        match path.ends_with("missing") {
            true => Err(ErrorKind::NotFound.into()),
            false => Ok(Content { bytes: Zeroizing::new(vec![7]), mode: 0o600, print: None }),
        }
    }

    #[tokio::test]
    async fn a_file_that_hangs_keeps_no_other_from_being_read() {
        let paths = ["/near/1", "/far-away/1", "/near/missing", "/near/2"].map(PathBuf::from);
        let read = |deadline| read_part(Arc::from(paths.clone()), deadline, Duration::from_millis(50), hangs);
        let later = || Instant::now() + Duration::from_secs(3600);
        let good = |all: &[Read]| all.iter().map(|(_, content)| content.is_ok()).collect::<Vec<_>>();
        let all = read(later()).await;
        assert!(all.iter().map(|(path, _)| path).eq(&paths), "in order, each once");
        assert_eq!(good(&all), [true, false, false, true]);
        assert_eq!(all[1].1.as_ref().unwrap_err().0.why, "the file system has not responded in time");
        assert!(all[2].1.as_ref().unwrap_err().1, "it is missing");
        // The next time, no thread is left behind for it.
        let all = read(later()).await;
        assert_eq!(good(&all), [true, false, false, true]);
        assert!(all[1].1.as_ref().unwrap_err().0.why.contains("an earlier attempt"));
        let late = read(Instant::now()).await;
        assert!(late.iter().all(|(_, content)| content.is_err()) && late.len() == 4);
        RESPONDS.store(true, Ordering::SeqCst);
        while sealane_blocking::hangs(&paths[1]) {
            std::thread::yield_now();
        }
        assert_eq!(good(&read(later()).await), [true, true, false, true]);
    }

    #[tokio::test]
    async fn every_file_is_read_once_whatever_the_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(number.to_string());
        (0..20).for_each(|number| std::fs::write(path(number), number.to_string()).unwrap());
        for (files, threads) in [(0, 8), (1, 8), (7, 8), (20, 8), (20, 1), (20, 0)] {
            let deadline = Instant::now() + Duration::from_secs(3600);
            let mut all = read_all((0..files).map(path).collect(), threads, deadline).await;
            all.sort_by(|a, b| a.0.cmp(&b.0));
            let mut wanted: Vec<PathBuf> = (0..files).map(path).collect();
            wanted.sort();
            assert!(all.iter().map(|(path, _)| path).eq(&wanted), "{files} {threads}");
            for (path, content) in all {
                let name = path.file_name().unwrap().as_encoded_bytes();
                assert_eq!(&content.unwrap().bytes[..], name);
            }
        }
    }

    /// A file system that hangs, which no test can have, is work that does not end.
    #[tokio::test]
    async fn work_that_hangs_is_an_error_in_words() {
        let path = Path::new("/far");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let soon = Instant::now() + Duration::from_millis(20);
        let first = bounded(path, soon, move || ended.recv().is_ok()).await;
        assert_eq!(first.unwrap_err().why, "the file system has not responded in time");
        let deadline = Instant::now() + Duration::from_secs(3600);
        let second = bounded(path, deadline, || true).await;
        assert!(second.unwrap_err().why.contains("an earlier attempt"));
        drop(end);
        while sealane_blocking::hangs(path) {
            std::thread::yield_now();
        }
        assert!(bounded(path, deadline, || true).await.is_ok());
        assert!(bounded(path, Instant::now(), || true).await.is_err(), "no time is left");
    }
}
