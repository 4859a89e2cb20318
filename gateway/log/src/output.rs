//! The standard error, written without waiting for its reader.
//!
//! A pipe that nobody reads and a terminal that is stopped take nothing more at some time. Control must go on: a line that cannot
//! be written within [`WAIT`] is dropped and counted. Only a disk that does not answer can hold control up, as the kernel has no
//! way to write to a file without waiting.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a line may wait for a reader.
const WAIT: Duration = Duration::from_millis(100);
/// No more than one line waits in this time.
const WAIT_AGAIN: Duration = Duration::from_secs(1);
/// A pipe that has room at all has room for this (pipe(7), `PIPE_BUF`).
const PIECE: usize = 4096;

/// What reads the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A terminal, a file or a pipe.
    Plain,
    /// systemd's journal.
    Journal,
}

impl Output {
    /// Finds out what the standard error is. `JOURNAL_STREAM` names the journal's device and inode, and is inherited
    /// by processes whose standard error is something else (systemd.exec(5)).
    pub fn detect() -> Self {
        let named = std::env::var("JOURNAL_STREAM");
        let is_journal = named.is_ok_and(|named| {
            fstat(std::io::stderr()).is_ok_and(|found| format!("{}:{}", found.st_dev, found.st_ino) == named)
        });
        if is_journal { Self::Journal } else { Self::Plain }
    }
}

/// How a descriptor is written without waiting.
#[derive(Debug)]
enum Target {
    /// One of our own for the same pipe or terminal: its mode does not concern other processes that write there.
    NonBlocking(OwnedFd),
    Socket(OwnedFd),
    /// Looked at before each piece. A file always has room.
    Blocking(OwnedFd),
}

impl Target {
    fn fd(&self) -> BorrowedFd<'_> {
        let (Self::NonBlocking(fd) | Self::Socket(fd) | Self::Blocking(fd)) = self;
        fd.as_fd()
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Self::NonBlocking(fd) => rustix::io::write(fd, bytes),
            Self::Socket(fd) => rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Self::Blocking(fd) if has_room(fd.as_fd(), Duration::ZERO) => {
                rustix::io::write(fd, &bytes[..bytes.len().min(PIECE)])
            }
            Self::Blocking(_) => Err(Errno::AGAIN),
        }
    }
}

fn has_room(fd: BorrowedFd<'_>, wait: Duration) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
    // An error is told by the write that follows.
    poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0)
}

/// Writes lines, and counts those that it could not write.
#[derive(Debug)]
pub struct LineWriter {
    target: Option<Target>,
    /// When a line has waited.
    waited: Option<Instant>,
    /// The last line was written in part.
    is_cut: bool,
    lost: u64,
}

impl LineWriter {
    /// A writer for a descriptor, which stays as it is.
    pub fn new(fd: impl AsFd) -> Self {
        Self { target: Self::target(fd.as_fd()).ok(), waited: None, is_cut: false, lost: 0 }
    }

    fn target(fd: BorrowedFd<'_>) -> std::io::Result<Target> {
        let kind = FileType::from_raw_mode(fstat(fd)?.st_mode);
        if matches!(kind, FileType::Fifo | FileType::CharacterDevice) {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            // Another user's pipe cannot be opened.
            if let Ok(own) = open(path, flags, Mode::empty()) {
                return Ok(Target::NonBlocking(own));
            }
        }
        let fd = fd.try_clone_to_owned()?;
        Ok(if kind == FileType::Socket { Target::Socket(fd) } else { Target::Blocking(fd) })
    }

    /// How many lines were lost since the last call of [`Self::lost_is_told`].
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// So many lost lines have been told.
    pub fn lost_is_told(&mut self, lines: u64) {
        self.lost -= self.lost.min(lines);
    }

    /// Writes a line, with its end. False: it is lost, and counted.
    pub fn write(&mut self, line: &[u8]) -> bool {
        if self.is_cut && !self.write_all(b"\n") {
            self.lost += 1;
            return false;
        }
        self.is_cut = false;
        let written = self.write_all(line);
        self.lost += u64::from(!written);
        written
    }

    fn write_all(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(target) = &self.target else { return false };
            match target.write(rest) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.wait() => {}
                Ok(0) | Err(_) => {
                    self.is_cut |= rest.len() < bytes.len();
                    return false;
                }
                Ok(written) => rest = &rest[written..],
            }
        }
        true
    }

    /// Waits for room. False: there is none, or a line has waited a moment ago.
    fn wait(&mut self) -> bool {
        let (now, Some(target)) = (Instant::now(), &self.target) else { return false };
        if self.waited.is_some_and(|at| now < at + WAIT_AGAIN) {
            return false;
        }
        self.waited = Some(now);
        has_room(target.fd(), WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::fs::File;
    use std::io::Read as _;

    const LINE: &[u8] = &[b'x'; 1000];

    /// Fills what nobody reads; the test ends, so no write has blocked.
    fn fill(writer: &mut LineWriter) {
        while writer.write(LINE) {}
        assert!((0..10).all(|_| !writer.write(LINE)));
        assert_eq!(writer.lost(), 11);
    }

    #[test]
    fn a_pipe_that_nobody_reads_costs_lines() {
        let (mut reader, other) = std::io::pipe().unwrap();
        let mut writer = LineWriter::new(&other);
        assert!(matches!(writer.target, Some(Target::NonBlocking(_))));
        assert!(!rustix::fs::fcntl_getfl(&other).unwrap().contains(OFlags::NONBLOCK), "others write there, too");
        fill(&mut writer);
        reader.read_exact(&mut [0; 8000]).unwrap();
        assert!(writer.write(LINE));
        drop(reader);
        assert!(!writer.write(LINE));
    }

    #[test]
    fn a_pipe_that_cannot_be_opened_again_costs_lines() {
        let (_reader, other) = std::io::pipe().unwrap();
        let mut writer = LineWriter::new(&other);
        writer.target = Some(Target::Blocking(other.into()));
        fill(&mut writer);
    }

    #[test]
    fn a_socket_that_nobody_reads_costs_lines_and_the_next_starts_anew() {
        let (reader, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        let mut writer = LineWriter::new(&other);
        assert!(matches!(writer.target, Some(Target::Socket(_))));
        fill(&mut writer);
        let mut reader = File::from(reader);
        let mut all = Vec::new();
        let _ = reader.read_to_end(&mut all);
        writer.is_cut = true;
        all.clear();
        assert!(writer.write(b"next\n"));
        let _ = reader.read_to_end(&mut all);
        assert_eq!(all, b"\nnext\n");
    }

    #[test]
    fn a_file_takes_all() {
        let mut file = tempfile::tempfile().unwrap();
        let mut writer = LineWriter::new(&file);
        assert!((0..100).all(|_| writer.write(&[b'y'; 3 * PIECE])));
        std::io::Seek::rewind(&mut file).unwrap();
        assert_eq!(file.read_to_end(&mut Vec::new()).unwrap(), 300 * PIECE);
    }
}
