//! Noticing that files have changed, by looking at them.
//!
//! Looking works everywhere that notification does not: over NFS, through Kubernetes' symbolic links, in containers.
//! A change counts once it has stood still from one look to the next, so that a file being written is not read.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// What is remembered of a file: device, inode, size, change time. `None`: it could not be looked at.
type Print = Option<(u64, u64, u64, i64, i64)>;

/// Files that are looked at.
#[derive(Debug)]
pub struct Watched {
    files: Vec<PathBuf>,
    known: Vec<Print>,
    last: Vec<Print>,
}

impl Watched {
    /// Takes the files as they are now for known.
    pub fn new(files: &[PathBuf]) -> Self {
        let known = prints(files);
        Self { files: files.to_vec(), last: known.clone(), known }
    }

    /// The same for other files: those that are known already stay known as they were, whatever has become of them since.
    pub fn carried_to(self, files: &[PathBuf]) -> Self {
        let mut next = Self::new(files);
        let before: HashMap<PathBuf, Print> = self.files.into_iter().zip(self.known).collect();
        for (file, known) in next.files.iter().zip(&mut next.known) {
            *known = before.get(file).copied().unwrap_or(*known);
        }
        next
    }

    /// Whether some file has changed and then stood still. Says it once for each change.
    pub fn changed(&mut self) -> bool {
        let now = prints(&self.files);
        let still = now == self.last;
        self.last = now;
        if !still || self.last == self.known {
            return false;
        }
        self.known.clone_from(&self.last);
        true
    }
}

fn prints(files: &[PathBuf]) -> Vec<Print> {
    let print = |file: &PathBuf| {
        let m = std::fs::metadata(file).ok()?;
        Some((m.dev(), m.ino(), m.size(), m.ctime(), m.ctime_nsec()))
    };
    files.iter().map(print).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_it_stands_still() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "1").unwrap();
        let mut watched = Watched::new(&[a.clone(), b.clone()]);
        assert!(!watched.changed());
        std::fs::write(&a, "22").unwrap();
        assert!(!watched.changed(), "it may be half written");
        std::fs::write(&a, "333").unwrap();
        assert!(!watched.changed(), "it is being written");
        assert!(watched.changed());
        assert!(!watched.changed());
        // A file that comes, or goes, is a change too.
        std::fs::write(&b, "").unwrap();
        assert!(!watched.changed());
        assert!(watched.changed());
        std::fs::remove_file(&a).unwrap();
        assert!(!watched.changed());
        assert!(watched.changed());
    }

    #[test]
    fn what_changes_while_files_are_read_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        std::fs::write(&a, "1").unwrap();
        std::fs::write(&b, "1").unwrap();
        let before = Watched::new(std::slice::from_ref(&a));
        // Here they are read; then one of them is written, before anybody looks again.
        std::fs::write(&a, "22").unwrap();
        let mut watched = before.carried_to(&[b.clone(), a.clone()]);
        assert!(watched.changed());
        assert!(!watched.changed());
        let mut same = Watched::new(&[a.clone(), b.clone()]).carried_to(&[a, b]);
        assert!(!same.changed());
    }
}
