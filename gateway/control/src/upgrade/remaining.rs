//! What processes that have handed over still finish: each writes its own numbers, and the process that serves reads those of all.
//!
//! The numbers are in a file in memory, which passes from process to process with the sockets. A process that has ended without a
//! word is known by its number and the time of its start.

use crate::metrics::status::OldProcessStatus;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Processes that can be written down; what others still finish is not known.
const PLACES: usize = 32;
/// Bytes of a place: five numbers.
const SIZE: usize = 40;

/// The file with the numbers of all.
#[derive(Clone, Debug)]
pub struct RemainingFile(Arc<File>);

impl RemainingFile {
    /// An empty one. `None`: the kernel has no memory for it, and nothing is known.
    pub fn new() -> Option<Self> {
        memfd_create("remaining", MemfdFlags::CLOEXEC).ok().map(Self::from)
    }

    /// Writes down what this process still finishes; `None`: nothing, it ends.
    pub fn write(&self, what: Option<OldProcessStatus>) {
        let own = std::process::id();
        let start = start_of(own).unwrap_or(0);
        let places = self.places();
        let mine = places.iter().position(|place| place[..2] == [own.into(), start]);
        let free = || places.iter().position(|place| !lives(place));
        let Some(at) = mine.or_else(|| what.and_then(|_| free())) else { return };
        let numbers = what.map_or([0; 5], |what| [own.into(), start, what.requests, what.upgraded, what.until]);
        // If it cannot be written, less is known.
        let _ = self.0.write_all_at(&numbers.map(u64::to_le_bytes).concat(), (at * SIZE) as u64);
    }

    /// What other processes still finish, the process that ends last first.
    pub fn of_others(&self) -> Vec<OldProcessStatus> {
        let own = u64::from(std::process::id());
        let places = self.places().into_iter().filter(|place| place[0] != own && lives(place));
        let mut all: Vec<OldProcessStatus> = places
            .map(|[pid, _, requests, upgraded, until]| OldProcessStatus { pid: pid as u32, requests, upgraded, until })
            .collect();
        all.sort_unstable_by_key(|remaining| std::cmp::Reverse((remaining.until, remaining.pid)));
        all
    }

    fn places(&self) -> Vec<[u64; 5]> {
        let mut bytes = [0; PLACES * SIZE];
        // Where nothing has been written yet, there is nothing to read.
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let place = |place: &[u8]| std::array::from_fn(|at| number(&place[at * 8..][..8]));
        bytes[..read].chunks_exact(SIZE).map(place).chain(std::iter::once([0; 5])).take(PLACES).collect()
    }
}

impl From<OwnedFd> for RemainingFile {
    fn from(descriptor: OwnedFd) -> Self {
        Self(Arc::new(File::from(descriptor)))
    }
}

impl AsFd for RemainingFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the process that has written a place still runs.
fn lives(place: &[u64; 5]) -> bool {
    let [pid, start, ..] = *place;
    pid != 0 && u32::try_from(pid).is_ok_and(|pid| start_of(pid) == Some(start))
}

/// When a process was started, in ticks since the start of the system; `None`: it does not run (proc_pid_stat(5)).
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    // The fields from the third on; the start is the 22nd.
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_what_others_finish_as_long_as_they_run() {
        let file = RemainingFile::new().unwrap();
        assert_eq!(file.of_others(), []);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (pid, start) = (child.id(), start_of(child.id()).unwrap());
        // As the child would write it, and one whose number another process has by now.
        for (place, start) in [(0, start), (1, start + 1)] {
            let numbers = [pid.into(), start, 1, 2, 3].map(u64::to_le_bytes).concat();
            file.0.write_all_at(&numbers, (place * SIZE) as u64).unwrap();
        }
        let theirs = OldProcessStatus { pid, requests: 1, upgraded: 2, until: 3 };
        let given = RemainingFile::from(file.as_fd().try_clone_to_owned().unwrap());
        assert_eq!(given.of_others(), [theirs]);
        // One's own is for others.
        let own = |upgraded| OldProcessStatus { pid: std::process::id(), requests: 0, upgraded, until: 9 };
        for upgraded in [5, 6] {
            file.write(Some(own(upgraded)));
            let taken: Vec<[u64; 5]> = file.places().into_iter().filter(|place| place[0] != 0).collect();
            assert_eq!((taken.len(), taken[1][3], given.of_others()), (2, upgraded, vec![theirs]));
        }
        file.write(None);
        assert_eq!(file.places().iter().filter(|place| place[0] != 0).count(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(file.of_others(), []);
    }
}
