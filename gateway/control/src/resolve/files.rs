//! Reading files that may be anything: missing, unreadable, endless, a pipe without a writer, on a file system that does not
//! answer, or replaced meanwhile. Each case is an error in plain words, in bounded time.

use crate::config::{Content, Kind, MAX_FILE, Print, Unreadable, plain};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;
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

/// Reads a whole file, until `deadline` or for [`FILE_LIMIT`].
pub(super) async fn read(path: &Path, deadline: Instant) -> Result<Content, Failure> {
    let asked = path.to_path_buf();
    let read = move || read_blocking(&asked).map_err(|e| (explained(&asked, &e), e.kind() == ErrorKind::NotFound));
    bounded(path, deadline, read).await.unwrap_or_else(|late| Err((late, false)))
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

/// Runs what may block, for at most [`FILE_LIMIT`].
async fn bounded<T: Send + 'static>(
    path: &Path,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unreadable> {
    let limit = deadline.min(Instant::now() + FILE_LIMIT);
    if limit <= Instant::now() {
        let why = "reading the other files of the configuration took all the time".to_owned();
        return Err(Unreadable { why, help: Some(NETWORK.to_owned()) });
    }
    sealane_blocking::call(path, limit, work).await.map_err(|failure| Unreadable {
        why: format!("its file system {failure}"),
        help: (!matches!(failure, sealane_blocking::Failure::Panicked(_))).then(|| NETWORK.to_owned()),
    })
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
                    "the file has mode {:04o} and owner {}:{}, but this program runs as user {me}: change the owner, \
                     or run the program as a user that can read the file",
                    meta.mode() & 0o777,
                    meta.uid(),
                    meta.gid()
                ),
                Err(_) => format!("user {me} has no permission to enter one of its parent folders"),
            })
        }
        ErrorKind::NotFound => {
            // The deepest folder that does exist tells where the path goes wrong.
            let parent = path.ancestors().skip(1).find(|p| p.exists() || p.as_os_str().is_empty())?;
            let direct = path.parent() == Some(parent);
            (!direct && !parent.as_os_str().is_empty())
                .then(|| format!("{} exists, but the rest of the path does not", parent.display()))
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

    /// A file system that hangs, which no test can have, is work that does not end.
    #[tokio::test]
    async fn work_that_hangs_is_an_error_in_words() {
        let path = Path::new("/far");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let soon = Instant::now() + Duration::from_millis(20);
        let first = bounded(path, soon, move || ended.recv().is_ok()).await;
        assert_eq!(first.unwrap_err().why, "its file system has not responded in time");
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
