//! Files that are written as a whole: the status, and the addresses of clients.

use rustix::fs::OFlags;
use sealane_sys::privileges::{is_root, others_may_change};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::Path;

/// Replaces a file in one step for its readers. In a folder where this process may not create files, it overwrites the file, as OpenVPN
/// does: then a reader can see a part of the old text and a part of the new one.
pub(crate) fn replace(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    match replace_at_once(path, text, mode) {
        Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            overwrite(path, text).map_err(|_| e)
        }
        result => result,
    }
}

fn replace_at_once(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let mut file = options.open(&temporary)?;
    file.write_all(text.as_bytes())?;
    keep_owner(path, &file);
    std::fs::rename(&temporary, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&temporary);
    })
}

/// Makes a new file belong to the owner of the one that it replaces. The gateway has given its files to the configured user before it
/// gives up root, and what it writes until then must not take them back.
fn keep_owner(path: &Path, new: &File) {
    if !is_root() {
        return;
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Ok(old), Ok(folder)) = (path.symlink_metadata(), folder.metadata()) else { return };
    // Elsewhere, somebody else could have made the file.
    if old.is_file() && !others_may_change(&folder) {
        // It fails where root has been given up meanwhile. Then the file cannot be replaced either, or belongs to the user.
        let _ = fchown(new, Some(old.uid()), Some(old.gid()));
    }
}

fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path)?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_or_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert!(overwrite(&path, "x").is_err(), "it creates nothing");
        let ways: [fn(&Path, &str) -> io::Result<()>; 2] = [|path, text| replace(path, text, 0o640), overwrite];
        for write in ways {
            for text in ["long text\n", "short\n", "", "longer text\n"] {
                write(&path, text).expect("it may be written");
                assert_eq!(std::fs::read_to_string(&path).expect("it is there"), text);
            }
        }
        // What root writes keeps its owner, where the folder is its own.
        if is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).expect("this is root");
            replace(&path, "longer text\n", 0o640).expect("it may be written");
            assert_eq!(path.metadata().expect("it is there").uid(), 65_534);
        }
        let names = std::fs::read_dir(folder.path()).expect("it is there").count();
        assert_eq!(names, 1, "nothing else is left");
        // Links that somebody has put there are not followed.
        let [link, temporary] = ["link", "link.new"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(overwrite(&link, "x").is_err());
        std::os::unix::fs::symlink(&path, &temporary).expect("a link");
        assert!(replace(&link, "x", 0o640).is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "longer text\n");
    }
}
