//! Noticing that files have changed, by looking at them.
//!
//! Looking works everywhere that notification does not: over NFS, through Kubernetes' symbolic links, in containers.
//! A change counts once it has stood still from one look to the next, so that a file being written is not read.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::{JoinHandle, spawn_blocking};

/// How long a file system may take to say how files are.
const LIMIT: Duration = Duration::from_secs(10);

/// What is remembered of a file: device, inode, size, change time. `None`: it could not be looked at.
type Print = Option<(u64, u64, u64, i64, i64)>;

/// How files were at some moment.
#[derive(Debug, Default)]
pub struct Look(HashMap<PathBuf, Print>);

impl Look {
    /// Looks at files, on a thread of its own: a file system may not answer.
    pub fn start(files: Vec<PathBuf>) -> JoinHandle<Self> {
        spawn_blocking(|| Self::now(files))
    }

    /// Looks at files, for a limited time. Those that could not be looked at have changed by the next look that succeeds.
    pub async fn bounded(files: Vec<PathBuf>) -> Self {
        tokio::time::timeout(LIMIT, Self::start(files)).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    fn now(files: Vec<PathBuf>) -> Self {
        let print = |file: &PathBuf| {
            let m = std::fs::metadata(file).ok()?;
            Some((m.dev(), m.ino(), m.size(), m.ctime(), m.ctime_nsec()))
        };
        Self(files.into_iter().map(|file| (print(&file), file)).map(|(print, file)| (file, print)).collect())
    }

    fn of(&self, file: &PathBuf) -> Print {
        self.0.get(file).copied().flatten()
    }
}

/// Files that are looked at.
#[derive(Debug)]
pub struct Watched {
    files: Vec<PathBuf>,
    known: Vec<Print>,
    last: Vec<Print>,
}

impl Watched {
    /// Takes files as they were before they were read for known. Files that `before` does not have, since nobody knew of them,
    /// are known as they were afterwards.
    pub fn new(files: Vec<PathBuf>, before: &Look, after: &Look) -> Self {
        let last: Vec<Print> = files.iter().map(|file| after.of(file)).collect();
        let known = files.iter().zip(&last).map(|(file, last)| before.0.get(file).copied().unwrap_or(*last)).collect();
        Self { files, known, last }
    }

    /// The files.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Whether some file has changed and then stood still, from the last look to this one. Says it once for each change.
    pub fn changed(&mut self, look: &Look) -> bool {
        let now: Vec<Print> = self.files.iter().map(|file| look.of(file)).collect();
        let still = now == self.last;
        self.last = now;
        if !still || self.last == self.known {
            return false;
        }
        self.known.clone_from(&self.last);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(files: &[&PathBuf]) -> Look {
        Look::now(files.iter().map(|file| (*file).clone()).collect())
    }

    #[test]
    fn a_change_is_told_once_it_stands_still() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "1").unwrap();
        let files = [&a, &b];
        let mut watched = Watched::new(vec![a.clone(), b.clone()], &Look::default(), &look(&files));
        let mut changed = || watched.changed(&look(&files));
        assert!(!changed());
        std::fs::write(&a, "22").unwrap();
        assert!(!changed(), "it may be half written");
        std::fs::write(&a, "333").unwrap();
        assert!(!changed(), "it is being written");
        assert!(changed());
        assert!(!changed());
        // A file that comes, or goes, is a change too.
        std::fs::write(&b, "").unwrap();
        assert!(!changed());
        assert!(changed());
        std::fs::remove_file(&a).unwrap();
        assert!(!changed());
        assert!(changed());
    }

    #[test]
    fn what_changes_while_files_are_read_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        std::fs::write(&a, "1").unwrap();
        std::fs::write(&b, "1").unwrap();
        let before = look(&[&a]);
        // Here they are read; then one of them is written, before anybody looks again.
        std::fs::write(&a, "22").unwrap();
        let mut watched = Watched::new(vec![b.clone(), a.clone()], &before, &look(&[&b, &a]));
        assert!(watched.changed(&look(&[&b, &a])));
        assert!(!watched.changed(&look(&[&b, &a])));
        let now = look(&[&a, &b]);
        assert!(!Watched::new(vec![a.clone(), b.clone()], &now, &now).changed(&look(&[&a, &b])));
    }
}
