//! Files that are written as a whole: the status, and the addresses of clients.

use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
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
    options.open(&temporary)?.write_all(text.as_bytes())?;
    std::fs::rename(&temporary, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&temporary);
    })
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
