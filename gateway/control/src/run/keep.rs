//! Writes what the API has changed into files.
//!
//! A configuration is written beside its file first, so that what cannot be written is found before anything changes, and then in its
//! place. Certificates are written into a folder of their own, each as a whole.

use super::watch::{Look, print_of};
use crate::admin::api::problem::Problem;
use crate::config::Print;
use hyper::body::Bytes;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How long the file system may take for each step.
const LIMIT: Duration = Duration::from_secs(10);

/// A text that lies beside the file whose content it is to become.
#[derive(Debug)]
pub struct Staged {
    /// As the configuration calls it.
    file: PathBuf,
    /// Where it is, behind symbolic links.
    target: PathBuf,
    new: PathBuf,
    /// How the file was when the text was written beside it.
    known: Print,
}

/// Writes a text beside `file`. `known`: how the file was when it was loaded; another writer's change is not overwritten.
pub async fn stage(file: &Path, text: Vec<u8>, known: Print) -> Result<Staged, Problem> {
    let shown = file.display().to_string();
    let now = Look::bounded(vec![file.to_path_buf()]).await;
    match (known, now.of(file).flatten()) {
        (None, _) => {
            return Err(Problem::new(
                409,
                format!("{shown} is not a file that the gateway can replace: leave out keep=file (option --keep)"),
            ));
        }
        (known, now) if known != now => {
            let detail = format!(
                "{shown} has changed since the gateway loaded it: reload first, or leave out keep=file (option --keep)"
            );
            return Err(Problem::new(412, detail));
        }
        _ => {}
    }
    let asked = file.to_path_buf();
    let staged = sealane_blocking::call(file, Instant::now() + LIMIT, move || write_beside(asked, &text, known)).await;
    match staged {
        Ok(Ok(staged)) => Ok(staged),
        Ok(Err(e)) => {
            let detail = match e.get_ref().and_then(|e| e.downcast_ref::<Irreplaceable>()) {
                Some(why) => format!("not changed: {shown} {why}"),
                None if e.kind() == io::ErrorKind::ReadOnlyFilesystem => format!(
                    "cannot write into the folder of {shown}: {e}; under sealane.service, move the configuration to a folder \
                     below /var/lib/sealane, and set ExecStart and ExecStartPre with systemctl edit, or add ReadWritePaths=; \
                     or leave out keep=file (option --keep)"
                ),
                None if e.kind() == io::ErrorKind::PermissionDenied => format!(
                    "cannot write into the folder of {shown}: {e}; the gateway's user must own the file and the folder"
                ),
                None => format!("cannot write into the folder of {shown}: {e}"),
            };
            Err(Problem::new(409, detail))
        }
        Err(e) => Err(Problem::new(409, format!("cannot write {shown}: {e}"))),
    }
}

/// Why no other file can take a file's place, though its folder can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Irreplaceable {
    Mounted,
    Immutable,
}

impl fmt::Display for Irreplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mounted => {
                "is a mount point of its own (a bind-mounted file), so the gateway cannot replace it: mount its folder \
                 instead of the file, or leave out keep=file (option --keep); the change is then temporary"
            }
            Self::Immutable => {
                "is immutable or append-only (chattr), so the gateway cannot replace it: remove this attribute, or leave \
                 out keep=file (option --keep); the change is then temporary"
            }
        })
    }
}

impl std::error::Error for Irreplaceable {}

/// Whether another file can take this one's place. The kernel says so only when it is tried; this finds the known reasons before
/// anything changes.
fn check_replaceable(target: &Path) -> io::Result<()> {
    let attributes = match statx(CWD, target, AtFlags::empty(), StatxFlags::BASIC_STATS) {
        Ok(known) => known.stx_attributes,
        // Kernels and sandboxes without this call.
        Err(Errno::NOSYS | Errno::PERM) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let why = if attributes.contains(StatxAttributes::MOUNT_ROOT) {
        Irreplaceable::Mounted
    } else if attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) {
        Irreplaceable::Immutable
    } else {
        return Ok(());
    };
    Err(io::Error::other(why))
}

fn write_beside(file: PathBuf, text: &[u8], known: Print) -> io::Result<Staged> {
    let target = fs::canonicalize(&file)?;
    let before = fs::metadata(&target)?;
    check_replaceable(&target)?;
    let new = write_new(&target, text, |out, new| {
        let made = out.metadata()?;
        if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
            chown(new, Some(before.uid()), Some(before.gid()))?;
        }
        out.set_permissions(fs::Permissions::from_mode(before.mode() & 0o777))
    })?;
    Ok(Staged { file, target, new, known })
}

/// Writes a new file beside another one, for its owner alone until `permit` says otherwise. It is on the disk then.
fn write_new(
    target: &Path,
    content: &[u8],
    permit: impl FnOnce(&fs::File, &Path) -> io::Result<()>,
) -> io::Result<PathBuf> {
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let new = target.with_file_name(format!(".{name}.{}.new", std::process::id()));
    // Left behind by a process of this number that was killed.
    let _ = fs::remove_file(&new);
    let written = || {
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        out.write_all(content)?;
        permit(&out, &new)?;
        out.sync_all()
    };
    match written() {
        Ok(()) => Ok(new),
        Err(e) => {
            let _ = fs::remove_file(&new);
            Err(e)
        }
    }
}

/// Makes what was done to the names of a folder outlast a crash.
fn sync_folder_of(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

/// The file of a certificate that the API keeps.
fn certificate_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.pem"))
}

/// Writes a certificate with its key into the folder of those that the API keeps, or removes it (`None`).
pub async fn store_certificate(folder: PathBuf, name: String, pem: Option<Bytes>) -> Result<(), Problem> {
    let file = certificate_file(&folder, &name);
    let (shown, asked) = (file.display().to_string(), file.clone());
    let work = move || match pem {
        None => match fs::remove_file(&file) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => sync_folder_of(&file),
        },
        Some(pem) => {
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
            let new = write_new(&file, &pem, |_, _| Ok(()))?;
            fs::rename(&new, &file).inspect_err(|_| drop(fs::remove_file(&new)))?;
            sync_folder_of(&file)
        }
    };
    match sealane_blocking::call(&asked, Instant::now() + LIMIT, work).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(e)) => {
            let detail = match e.kind() {
                io::ErrorKind::ReadOnlyFilesystem => format!(
                    "cannot write {shown}: {e}; under sealane.service, set \"storage\" of [admin] to a folder below \
                     /var/lib/sealane"
                ),
                io::ErrorKind::PermissionDenied => {
                    format!("cannot write {shown}: {e}; the gateway's user must own \"storage\" of [admin]")
                }
                _ => format!("cannot write {shown}: {e}; its folder is \"storage\" of [admin]"),
            };
            Err(Problem::new(409, detail))
        }
        Err(e) => Err(Problem::new(409, format!("cannot write {shown}: {e}"))),
    }
}

impl Staged {
    /// The file, as the configuration calls it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Puts the text in the place of the file's. Returns how the file is now.
    pub async fn put(self) -> Result<(PathBuf, Print), String> {
        let Self { file, target, new, known } = self;
        let shown = file.display().to_string();
        let rename = move || {
            if print_of(&target) != known {
                let _ = fs::remove_file(&new);
                return Err(io::Error::other("another program has just changed the file"));
            }
            fs::rename(&new, &target).inspect_err(|_| drop(fs::remove_file(&new)))?;
            // After a crash it is either text.
            sync_folder_of(&target)
        };
        match sealane_blocking::call(&file, Instant::now() + LIMIT, rename).await {
            Ok(Ok(())) => {
                let print = Look::bounded(vec![file.clone()]).await.of(&file).flatten();
                Ok((file, print))
            }
            Ok(Err(e)) => Err(format!("cannot replace {shown}: {e}")),
            Err(e) => Err(format!("cannot replace {shown}: {e}")),
        }
    }

    /// Removes the text.
    pub async fn discard(self) {
        let Self { file, new, .. } = self;
        // What is left is replaced the next time.
        let _ = sealane_blocking::call(&file, Instant::now() + LIMIT, move || fs::remove_file(new)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn a_text_takes_the_place_of_the_file_s_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("real.toml"), folder.path().join("sealane.toml"));
        fs::write(&target, "old").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real.toml", &link).unwrap();
        wait(async {
            let staged = stage(&link, b"new".to_vec(), print_of(&link)).await.unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"old", "nothing has changed yet");
            let (file, print) = staged.put().await.unwrap();
            assert_eq!((&file, print), (&link, print_of(&link)));
            // What is discarded leaves nothing.
            stage(&link, b"other".to_vec(), print).await.unwrap().discard().await;
            // An edit in the last moment stays.
            let staged = stage(&link, b"other".to_vec(), print).await.unwrap();
            fs::write(&target, "by hand").unwrap();
            assert!(staged.put().await.is_err());
            assert_eq!(fs::read(&target).unwrap(), b"by hand");
            fs::write(&target, "new").unwrap();
        });
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// The kernel refuses the rename at the end in the same way as over a bind-mounted file.
    #[test]
    fn a_text_that_cannot_take_the_place_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sealane.toml");
        fs::write(&file, "old").unwrap();
        wait(async {
            let staged = stage(&file, b"new".to_vec(), print_of(&file)).await.unwrap();
            fs::remove_file(&file).unwrap();
            fs::create_dir(&file).unwrap();
            let staged = Staged { known: print_of(&file), ..staged };
            assert!(staged.put().await.unwrap_err().contains("cannot replace"));
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_mount_point_is_found_before_anything_changes() {
        let refused = check_replaceable(Path::new("/proc")).unwrap_err();
        assert_eq!(refused.get_ref().and_then(|e| e.downcast_ref()), Some(&Irreplaceable::Mounted));
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        check_replaceable(&folder.path().join("file")).unwrap();
    }

    #[test]
    fn a_certificate_is_stored_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let storage = folder.path().join("api");
        let store = |pem: Option<&'static str>| {
            wait(store_certificate(
                storage.clone(),
                "www".to_owned(),
                pem.map(|pem| Bytes::from_static(pem.as_bytes())),
            ))
        };
        store(Some("one")).unwrap();
        store(Some("two")).unwrap();
        let file = storage.join("www.pem");
        assert_eq!(fs::read(&file).unwrap(), b"two");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&storage)), (0o600, 0o700));
        assert_eq!(fs::read_dir(&storage).unwrap().count(), 1);
        store(None).unwrap();
        store(None).unwrap();
        assert!(!file.exists());
        // A file is in the folder's place.
        let taken = folder.path().join("file");
        fs::write(&taken, "").unwrap();
        let refused = wait(store_certificate(taken, "www".to_owned(), Some(Bytes::new()))).unwrap_err();
        assert!(refused.status == 409 && refused.detail.contains("storage"), "{refused:?}");
    }

    #[test]
    fn another_writer_s_change_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sealane.toml");
        fs::write(&file, "old").unwrap();
        wait(async {
            let known = print_of(&file);
            fs::write(&file, "edited").unwrap();
            assert_eq!(stage(&file, b"new".to_vec(), known).await.unwrap_err().status, 412);
            assert_eq!(stage(&file, b"new".to_vec(), None).await.unwrap_err().status, 409);
        });
        assert_eq!(fs::read(&file).unwrap(), b"edited");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
