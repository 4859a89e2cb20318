//! Writes a configuration that the API has applied into the configuration's file: beside the file first, so that what cannot be
//! written is found before anything changes, and then in its place.

use super::watch::Look;
use crate::admin::api::problem::Problem;
use crate::config::Print;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
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
}

/// Writes a text beside `file`. `known`: how the file was when it was loaded; another writer's change is not overwritten.
pub async fn stage(file: &Path, text: Vec<u8>, known: Print) -> Result<Staged, Problem> {
    let shown = file.display().to_string();
    let now = Look::bounded(vec![file.to_path_buf()]).await;
    match (known, now.of(file).flatten()) {
        (None, _) => {
            return Err(Problem::new(
                409,
                format!(
                    "{shown} is not a file that the gateway can replace: apply the configuration without keep=file"
                ),
            ));
        }
        (known, now) if known != now => {
            let detail =
                format!("{shown} has changed since the gateway loaded it: reload first, or apply without keep=file");
            return Err(Problem::new(412, detail));
        }
        _ => {}
    }
    let asked = file.to_path_buf();
    let staged = sealane_blocking::call(file, Instant::now() + LIMIT, move || write_beside(asked, &text)).await;
    match staged {
        Ok(Ok(staged)) => Ok(staged),
        Ok(Err(e)) => {
            let detail = format!(
                "cannot write into the folder of {shown}: {e}; the gateway's user must own the file and the folder"
            );
            Err(Problem::new(409, detail))
        }
        Err(e) => Err(Problem::new(409, format!("cannot write {shown}: its file system {e}"))),
    }
}

fn write_beside(file: PathBuf, text: &[u8]) -> io::Result<Staged> {
    let target = fs::canonicalize(&file)?;
    let before = fs::metadata(&target)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let new = target.with_file_name(format!(".{name}.{}.new", std::process::id()));
    // Left behind by a process of this number that was killed.
    let _ = fs::remove_file(&new);
    let written = || {
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        out.write_all(text)?;
        let made = out.metadata()?;
        if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
            chown(&new, Some(before.uid()), Some(before.gid()))?;
        }
        out.set_permissions(fs::Permissions::from_mode(before.mode() & 0o777))?;
        out.sync_all()
    };
    match written() {
        Ok(()) => Ok(Staged { file, target, new }),
        Err(e) => {
            let _ = fs::remove_file(&new);
            Err(e)
        }
    }
}

impl Staged {
    /// Puts the text in the place of the file's. Returns how the file is now.
    pub async fn put(self) -> Result<(PathBuf, Print), String> {
        let Self { file, target, new } = self;
        let shown = file.display().to_string();
        let rename = move || {
            fs::rename(&new, &target)?;
            // After a crash it is either text.
            target.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
        };
        match sealane_blocking::call(&file, Instant::now() + LIMIT, rename).await {
            Ok(Ok(())) => {
                let print = Look::bounded(vec![file.clone()]).await.of(&file).flatten();
                Ok((file, print))
            }
            Ok(Err(e)) => Err(format!("cannot replace {shown}: {e}")),
            Err(e) => Err(format!("cannot replace {shown}: its file system {e}")),
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

    async fn print_of(file: &Path) -> Print {
        Look::bounded(vec![file.to_path_buf()]).await.of(file).flatten()
    }

    #[test]
    fn a_text_takes_the_place_of_the_file_s_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("real.toml"), folder.path().join("sealane.toml"));
        fs::write(&target, "old").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real.toml", &link).unwrap();
        wait(async {
            let staged = stage(&link, b"new".to_vec(), print_of(&link).await).await.unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"old", "nothing has changed yet");
            let (file, print) = staged.put().await.unwrap();
            assert_eq!((&file, print), (&link, print_of(&link).await));
            // What is discarded leaves nothing.
            stage(&link, b"other".to_vec(), print).await.unwrap().discard().await;
        });
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn another_writer_s_change_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sealane.toml");
        fs::write(&file, "old").unwrap();
        wait(async {
            let known = print_of(&file).await;
            fs::write(&file, "edited").unwrap();
            assert_eq!(stage(&file, b"new".to_vec(), known).await.unwrap_err().status, 412);
            assert_eq!(stage(&file, b"new".to_vec(), None).await.unwrap_err().status, 409);
        });
        assert_eq!(fs::read(&file).unwrap(), b"edited");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
