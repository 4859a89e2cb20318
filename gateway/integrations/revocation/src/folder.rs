//! The folder that is kept over restarts.
//!
//! ```text
//! STORAGE/ocsp/DIGEST.der     the response about the certificate with this SHA-256 digest
//! STORAGE/lists/DIGEST.crl    the revocation lists from the URL with this SHA-256 digest
//! ```
//!
//! Folders have mode 0700, files 0600. A file is written beside its place and renamed, so that several gateways may share the folder.
//! What is in it is verified again when it is read: it saves requests, and nobody relies on it.

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How long the file system may take.
const LIMIT: Duration = Duration::from_secs(20);
/// Files of certificates that are gone are removed after this time.
const FORGET_AFTER: Duration = Duration::from_secs(30 * 86_400);
/// The most files that are looked at for that.
const MAX_LOOKED_AT: usize = 100_000;

/// Puts a file in the place of the one that is there, as a whole or not at all, and makes its folders.
pub(crate) async fn write(place: PathBuf, bytes: std::sync::Arc<[u8]>) -> io::Result<()> {
    let folder = place.parent().unwrap_or(Path::new("/")).to_path_buf();
    bounded(&folder.clone(), move || {
        make(&folder)?;
        let file = place.file_name().unwrap_or_default().to_string_lossy();
        // Of each process its own: the old and the new one of an upgrade may write at the same time.
        let beside = folder.join(format!(".{file}.{}", std::process::id()));
        let written = write_new(&beside, &bytes).and_then(|()| std::fs::rename(&beside, &place));
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written.map_err(|e| named(&e, &place))
    })
    .await
}

/// The content of a file; `None` if it is not there, or longer than `max`.
pub(crate) async fn read(place: PathBuf, max: usize) -> io::Result<Option<Vec<u8>>> {
    let folder = place.parent().unwrap_or(Path::new("/")).to_path_buf();
    bounded(&folder, move || {
        // Without O_NONBLOCK, opening a pipe waits for a writer.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match open(&place, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            file => File::from(file.map_err(|e| named(&io::Error::from(e), &place))?),
        };
        let mut bytes = Vec::new();
        if file.metadata()?.is_file() {
            file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(|e| named(&e, &place))?;
        }
        Ok((!bytes.is_empty() && bytes.len() <= max).then_some(bytes))
    })
    .await
}

/// Removes the files of a folder that are old and not among `wanted`.
pub(crate) async fn clean(folder: PathBuf, wanted: std::collections::HashSet<PathBuf>) -> io::Result<()> {
    bounded(&folder.clone(), move || {
        let entries = match std::fs::read_dir(&folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|e| named(&e, &folder))?,
        };
        for entry in entries.take(MAX_LOOKED_AT).flatten() {
            let path = entry.path();
            let ours = path.extension().is_some_and(|e| e == "der") || entry.file_name().as_encoded_bytes()[0] == b'.';
            let Ok(metadata) = entry.metadata() else { continue };
            let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if ours && metadata.is_file() && !wanted.contains(&path) && age.is_some_and(|age| age > FORGET_AFTER) {
                let _ = std::fs::remove_file(&path);
            }
        }
        Ok(())
    })
    .await
}

/// Makes a folder and the one that it is in, unless they are there. Others must not be able to write to them.
fn make(folder: &Path) -> io::Result<()> {
    for folder in [folder.parent().unwrap_or(folder), folder] {
        match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(named(&e, folder)),
            _ => {}
        }
        let metadata = std::fs::metadata(folder).map_err(|e| named(&e, folder))?;
        let (owner, user, mode) = (metadata.uid(), geteuid().as_raw(), metadata.permissions().mode());
        let (shown, word) = (folder.display(), sealane_config::shell_word(folder.display()));
        if owner != user && owner != 0 {
            return Err(io::Error::other(format!(
                "{shown} belongs to another user (uid {owner}), but the gateway runs as uid {user}: sudo chown -R {user} {word}"
            )));
        }
        if mode & 0o022 != 0 {
            let mode = mode & 0o7777;
            return Err(io::Error::other(format!(
                "{shown} can be written by other users (mode {mode:04o}): sudo chmod 700 {word}"
            )));
        }
    }
    Ok(())
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(bytes)?;
    file.sync_all()
}

fn named(e: &io::Error, path: &Path) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

/// Runs what may block.
async fn bounded<T: Send + 'static>(
    folder: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match sealane_blocking::call(folder, Instant::now() + LIMIT, work).await {
        Ok(done) => done,
        Err(failure) => {
            let why = format!("{}: {failure}", folder.display());
            Err(io::Error::new(ErrorKind::TimedOut, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn files_are_private_and_replaced_as_a_whole() {
        let temporary = tempfile::tempdir().unwrap();
        let place = temporary.path().join("revocation/ocsp/a.der");
        for content in ["one", "two"] {
            run(write(place.clone(), content.as_bytes().into())).unwrap();
            assert_eq!(std::fs::read_to_string(&place).unwrap(), content);
        }
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(place.parent().unwrap()), mode(&place)), (0o700, 0o600));
        assert_eq!(std::fs::read_dir(place.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("ocsp");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        let e = run(write(folder.join("a.der"), b"one".as_slice().into())).unwrap_err().to_string();
        assert!(e.contains("can be written by other users (mode 0777)"), "{e}");
    }

    #[test]
    fn old_files_that_nobody_wants_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let place = |name: &str| temporary.path().join(name);
        let old = SystemTime::now() - FORGET_AFTER * 2;
        for name in ["wanted.der", "gone.der", ".gone.der.77", "README", "new.der"] {
            let file = File::create(place(name)).unwrap();
            if name != "new.der" {
                file.set_modified(old).unwrap();
            }
        }
        run(clean(temporary.path().to_path_buf(), HashSet::from([place("wanted.der")]))).unwrap();
        let left = ["wanted.der", "gone.der", ".gone.der.77", "README", "new.der"].map(|name| place(name).exists());
        assert_eq!(left, [true, false, false, true, true]);
        run(clean(place("none"), HashSet::new())).unwrap();
    }
}
