//! Noticing that files have changed, by looking at them.
//!
//! Looking works everywhere that notification does not: over NFS, through Kubernetes' symbolic links, in containers.
//! A change counts once it has stood still from one look to the next, so that a file being written is not read.

use crate::config::Print;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long a file system may take to say how one file is.
const LIMIT: Duration = Duration::from_secs(10);
/// How many folders may hang at a time, each with a thread that waits for it. Beyond that number, files are not looked at until
/// one of these folders responds.
const MAX_HANGING: usize = 4;

/// How a file is.
pub(super) fn print_of(file: &Path) -> Print {
    let m = std::fs::metadata(file).ok()?;
    Some((m.dev(), m.ino(), m.size(), m.ctime(), m.ctime_nsec()))
}

/// How files were at some moment. A file whose file system did not respond is not in it.
#[derive(Debug, Default)]
pub struct Look(HashMap<PathBuf, Print>);

/// Folders whose file system has not responded, as long as it does not: their files are not looked at, so that each look does
/// not leave another thread behind.
static HANGING: Mutex<Vec<(PathBuf, Weak<()>)>> = Mutex::new(Vec::new());

/// The folders that hang now.
fn hanging() -> MutexGuard<'static, Vec<(PathBuf, Weak<()>)>> {
    let mut hanging = HANGING.lock().unwrap_or_else(PoisonError::into_inner);
    hanging.retain(|(_, thread)| thread.strong_count() > 0);
    hanging
}

impl Look {
    /// Looks at files. A folder whose file system does not respond costs [`LIMIT`] once, and its files are left out.
    pub async fn bounded(files: Vec<PathBuf>) -> Self {
        Self::by(files, LIMIT, print_of).await
    }

    /// How files were when they were read.
    pub fn of_read(prints: HashMap<PathBuf, Print>) -> Self {
        Self(prints)
    }

    /// The same, with what `newer` has in its place.
    pub fn with(mut self, newer: Self) -> Self {
        self.0.extend(newer.0);
        self
    }

    /// Whether a file did not exist. A file whose file system did not respond is not known to be missing.
    pub fn is_missing(&self, file: &Path) -> bool {
        self.of(file) == Some(None)
    }

    async fn by(mut files: Vec<PathBuf>, limit: Duration, print: fn(&Path) -> Print) -> Self {
        let mut found = HashMap::with_capacity(files.len());
        loop {
            let hanging_now: Vec<PathBuf> = hanging().iter().map(|(folder, _)| folder.clone()).collect();
            files.retain(|file| !hanging_now.iter().any(|folder| file.parent() == Some(folder.as_path())));
            if files.is_empty() || hanging_now.len() >= MAX_HANGING {
                return Self(found);
            }
            let (done, stuck) = look(std::mem::take(&mut files), limit, print).await;
            found.extend(done);
            match stuck {
                None => return Self(found),
                Some(rest) => files = rest,
            }
        }
    }

    /// How a file is; `None`: it could not be looked at.
    pub fn of(&self, file: &Path) -> Option<Print> {
        self.0.get(file).copied()
    }
}

/// Looks at files one after the other, on one thread. The second result: those that are left, where the file system of the first
/// of them did not respond within `limit`.
async fn look(
    files: Vec<PathBuf>,
    limit: Duration,
    print: fn(&Path) -> Print,
) -> (HashMap<PathBuf, Print>, Option<Vec<PathBuf>>) {
    let (files, prints) = (Arc::new(files), Arc::new(Mutex::new(Vec::<Print>::new())));
    let thread = Arc::new(());
    let mark = Arc::downgrade(&thread);
    let mut work = {
        let (files, prints) = (files.clone(), prints.clone());
        spawn_blocking(move || {
            for file in files.iter() {
                let print = print(file);
                let mut prints = prints.lock().unwrap_or_else(PoisonError::into_inner);
                // Nobody waits for the rest.
                if Arc::strong_count(&files) == 1 {
                    break;
                }
                prints.push(print);
            }
            drop(thread);
        })
    };
    let mut before = 0;
    loop {
        let ended = timeout(limit, &mut work).await.is_ok();
        let done = prints.lock().unwrap_or_else(PoisonError::into_inner);
        if !ended && done.len() > before {
            // It goes on, if slowly.
            before = done.len();
            continue;
        }
        let found = files.iter().cloned().zip(done.iter().copied()).collect();
        let left = files.get(done.len()).filter(|_| !ended);
        if let Some(folder) = left.and_then(|file| file.parent()) {
            hanging().push((folder.to_path_buf(), mark));
        }
        return (found, left.map(|_| files[done.len()..].to_vec()));
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
    /// Takes files as they were before they were read, or when they were read, for known. Files that `before` does not have, since
    /// nobody knew of them, are known as they were afterwards.
    pub fn new(files: Vec<PathBuf>, before: &Look, after: &Look) -> Self {
        let last: Vec<Print> = files.iter().map(|file| after.of(file).flatten()).collect();
        let known = files.iter().zip(&last).map(|(file, last)| before.of(file).unwrap_or(*last)).collect();
        Self { files, known, last }
    }

    /// The files.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// How a file was when it was read.
    pub fn known(&self, file: &Path) -> Option<Print> {
        self.files.iter().position(|known| known == file).map(|at| self.known[at])
    }

    /// Takes a file that this process has written for known.
    pub fn wrote(&mut self, file: &Path, print: Print) {
        if let Some(at) = self.files.iter().position(|known| known == file) {
            (self.known[at], self.last[at]) = (print, print);
        }
    }

    /// Whether some file has changed and then stood still, from the last look to this one. Says it once for each change. A file
    /// that the look does not have is as it was.
    pub fn changed(&mut self, look: &Look) -> bool {
        let now: Vec<Print> =
            self.files.iter().zip(&self.last).map(|(file, last)| look.of(file).unwrap_or(*last)).collect();
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
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    fn wait<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let done = runtime.block_on(work);
        runtime.shutdown_background();
        done
    }

    fn look(files: &[&PathBuf]) -> Look {
        wait(Look::bounded(files.iter().map(|file| (*file).clone()).collect()))
    }

    static RESPONDS: AtomicBool = AtomicBool::new(false);

    /// A file system that hangs, which no test can have, is work that does not end for a while.
    fn hangs(file: &Path) -> Print {
        while file.starts_with("/far") && !RESPONDS.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Some((0, 0, 0, 0, 0))
    }

    #[test]
    fn a_folder_that_hangs_costs_one_thread_and_hides_no_other_file() {
        let files = ["/near/1", "/far/1", "/far/2", "/near/2"].map(PathBuf::from);
        let seen = |seconds| {
            let look = wait(Look::by(files.to_vec(), Duration::from_secs(seconds), hangs));
            files.iter().map(|file| look.of(file).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(seen(2), [true, false, false, true]);
        let threads = || hanging().iter().filter(|(folder, _)| folder == Path::new("/far")).count();
        assert_eq!(threads(), 1);
        // The next look does not wait for it, and leaves no second thread.
        assert_eq!(seen(3600), [true, false, false, true]);
        assert_eq!(threads(), 1);
        RESPONDS.store(true, Relaxed);
        while threads() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(seen(3600), [true; 4], "it responds again");
    }

    /// As at the start: files change after they were read, and before anybody looks at them.
    #[test]
    fn what_changes_between_reading_and_the_first_look_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let [cert, key, file] = ["a.pem", "a.key", "sealane.toml"].map(|name| folder.path().join(name));
        let replace = || {
            let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
            for (path, text) in [(&cert, made.cert.pem()), (&key, made.signing_key.serialize_pem())] {
                std::fs::write(path.with_extension("new"), text).unwrap();
                std::fs::rename(path.with_extension("new"), path).unwrap();
            }
        };
        replace();
        let text = "[[listener]]\naddress = \"127.0.0.1:0\"\ntls.certificates = { cert = \"a.pem\", key = \"a.key\" }\n\
                    [[host]]\nnames = [\"*\"]\nrespond = {}\n";
        std::fs::write(&file, text).unwrap();
        let (config, _) = crate::resolve::load_and_wait(&file).unwrap();
        replace();
        let read = Look::of_read(config.prints);
        let look = || look(&[&cert, &key, &file]);
        assert!(Watched::new(vec![cert.clone(), key.clone()], &read, &look()).changed(&look()));
        assert!(!Watched::new(vec![file.clone()], &read, &look()).changed(&look()), "the others have not");
    }

    #[test]
    fn a_file_that_could_not_be_looked_at_has_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "1").unwrap();
        let first = look(&[&file]);
        let mut watched = Watched::new(vec![file.clone()], &first, &look(&[&file]));
        assert!(!watched.changed(&Look::default()) && !watched.changed(&Look::default()));
        std::fs::write(&file, "22").unwrap();
        assert!(!watched.changed(&look(&[&file])), "it may be half written");
        assert!(!watched.changed(&look(&[])) || !watched.changed(&look(&[&file])), "it is told once");
    }

    #[test]
    fn a_file_that_was_not_looked_at_is_not_missing() {
        let folder = tempfile::tempdir().unwrap();
        let (here, none) = (folder.path().join("here"), folder.path().join("none"));
        std::fs::write(&here, "1").unwrap();
        let found = look(&[&here, &none]);
        assert!(found.is_missing(&none) && !found.is_missing(&here));
        assert!(!look(&[&here]).is_missing(&none));
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
    fn what_this_process_has_written_has_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "1").unwrap();
        let now = look(&[&file]);
        let mut watched = Watched::new(vec![file.clone()], &now, &now);
        assert_eq!(watched.known(&file), now.of(&file));
        std::fs::write(&file, "22").unwrap();
        watched.wrote(&file, look(&[&file]).of(&file).flatten());
        assert!(!watched.changed(&look(&[&file])) && !watched.changed(&look(&[&file])));
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
