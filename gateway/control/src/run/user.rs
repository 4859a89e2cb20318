//! Becoming the configured user, once everything that only root may open is open.
//!
//! What that user will need later is given to it while we still can (the admin socket, an access log that this start has made,
//! the files of the tunnel); what it will not be able to do is said at the start rather than found out by the first reload or
//! upgrade.

use crate::config::{AccessLogTarget, Config, RunAs};
use crate::log;
use anyhow::{Context as _, Result};
use rustix::fs::{Access, Mode, OFlags, access, openat};
use sealane_sys::privileges::{CapabilitySet, others_may_change};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Who this process is going to be, if it is to be somebody else and can.
pub(crate) fn to_become(config: &Config) -> Option<&RunAs> {
    config.user.as_ref().filter(|_| sealane_sys::privileges::is_root())
}

/// The capabilities that are kept without root: reloads and successors bind low ports, and with `[tunnel]` set up the
/// VPN's interface and its routes.
pub(crate) fn kept_capabilities(config: &Config) -> CapabilitySet {
    match config.tunnel.is_some() {
        true => CapabilitySet::NET_BIND_SERVICE | CapabilitySet::NET_ADMIN,
        false => CapabilitySet::NET_BIND_SERVICE,
    }
}

/// Lets that user have a file that this process has made. Links are not followed: the folder may be the user's.
pub(crate) fn give(path: &Path, to: &RunAs) -> Result<()> {
    std::os::unix::fs::lchown(path, Some(to.user.uid), Some(to.gid))
        .with_context(|| format!("cannot change the owner of {} to {}", path.display(), to.user.name))
}

/// Lets that user write the files of the tunnel where it could not make them: OpenVPN opens such files before it gives up root. Reloads
/// and successors open them again, so they become the user's.
pub(crate) fn give_tunnel_files(config: &Config, to: &RunAs) {
    for path in config.tunnel.iter().flat_map(|tunnel| tunnel.written_files()) {
        if let Err(e) = give_file(path, (to.user.uid, to.gid), 0) {
            log::warn!("tunnel: cannot change the owner of {} to {}: {e}", path.display(), to.user.name);
        }
    }
}

/// Makes a file this user's (its number and its group's), and creates it if there is none. Returns whether it did: the folder must be one
/// that nobody but `root` can change, and the file one of root's. In another folder, somebody could have put a link or another file of
/// root in the file's place.
fn give_file(path: &Path, (uid, gid): (u32, u32), root: u32) -> io::Result<bool> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(folder_of(path))?;
    let about = folder.metadata()?;
    if about.uid() != root || others_may_change(&about) {
        return Ok(false);
    }
    // In the folder that was checked. If the file is a pipe, the start does not wait for its other end.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(&folder, name, flags, Mode::from_raw_mode(0o640))?);
    let about = file.metadata()?;
    if !about.is_file() || about.nlink() != 1 || about.uid() != root {
        return Ok(false);
    }
    fchown(&file, Some(uid), Some(gid))?;
    Ok(true)
}

/// Becomes the configured user, if this is root; what only root could open is open by now.
pub(crate) fn become_user(config: &Config, keep: CapabilitySet) -> Result<()> {
    let Some(run_as) = to_become(config) else { return Ok(()) };
    let name = &run_as.user.name;
    sealane_sys::privileges::become_user(&run_as.user, run_as.gid, keep)
        .with_context(|| format!("cannot change to the user {name}"))?;
    for warning in unreadable(config, run_as) {
        log::warn!("{warning}");
    }
    if let AccessLogTarget::File(path) = &config.access_log {
        if OpenOptions::new().append(true).open(path).is_err() {
            log::warn!(
                "{name} cannot write {}, so reopen-logs and an upgrade will fail: `sudo chown {name} {}`",
                path.display(),
                sealane_config::shell_word(path.display())
            );
        } else if !may_create_beside(path) {
            let folder = folder_of(path).display().to_string();
            match config.rotation {
                Some(_) => log::warn!(
                    "{name} cannot create files in {folder}, so the gateway cannot rotate the access log: put it into a \
                     folder that belongs to {name}"
                ),
                None => log::warn!(
                    "{name} cannot create files in {folder}: the program that rotates the access log must create the new \
                     file (logrotate: `create 640 {name}`)"
                ),
            }
        }
    }
    if let Some(path) = config.admin_socket.as_deref().filter(|path| !may_create_beside(path)) {
        let folder = folder_of(path).display().to_string();
        log::warn!(
            "{name} cannot create files in {folder}, so an upgrade will fail: put the admin socket into a folder \
             that belongs to {name}"
        );
    }
    Ok(())
}

/// What a reload could not read after a start by root. This process becomes the configured user for good.
pub(crate) fn unreadable_at_reload(config: &Config) -> Vec<String> {
    let Some(run_as) = to_become(config) else { return Vec::new() };
    match sealane_sys::privileges::become_user(&run_as.user, run_as.gid, CapabilitySet::empty()) {
        Ok(()) => unreadable(config, run_as),
        // A root that may not do this (in containers) cannot find out.
        Err(_) => Vec::new(),
    }
}

/// For each file that a reload reads and this process cannot read, what to do.
fn unreadable(config: &Config, run_as: &RunAs) -> Vec<String> {
    let (name, gid) = (&run_as.user.name, run_as.gid);
    let one = |file: &PathBuf| {
        // Metadata needs no permission for the file itself, only for its parents.
        let is_closed = file.metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
        let word = sealane_config::shell_word(file.display());
        let file = file.display();
        match is_closed {
            true => format!(
                "{name} has no permission to enter one of the parent folders of {file}, so a reload will fail: let {name} enter \
                 them, as in `sudo setfacl -m u:{name}:rX FOLDER`, and let {name} read the file"
            ),
            false => {
                format!(
                    "{name} cannot read {file}, so a reload will fail: `sudo chgrp {gid} {word}; sudo chmod g+r {word}`"
                )
            }
        }
    };
    config.files.iter().filter(|f| access(f.as_path(), Access::READ_OK).is_err()).map(one).collect()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether this process may write a file, or make it.
pub(crate) fn may_write(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok() || (!path.exists() && may_create_beside(path))
}

fn may_create_beside(path: &Path) -> bool {
    access(folder_of(path), Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn only_own_files_in_folders_of_root_alone_are_given() {
        let folder = tempfile::tempdir().unwrap();
        // Who runs this test is root here, and gives the files to itself.
        let about = folder.path().metadata().unwrap();
        let (own, ids) = (about.uid(), (about.uid(), about.gid()));
        let path = |name: &str| folder.path().join(name);
        let given = |name: &str| give_file(&path(name), ids, own).ok();
        assert_eq!(given("new"), Some(true));
        assert_eq!(path("new").metadata().unwrap().mode() & 0o137, 0, "it is not for everybody");
        std::fs::write(path("old"), "text").unwrap();
        assert_eq!((given("old"), std::fs::read(path("old")).unwrap()), (Some(true), b"text".to_vec()));
        std::os::unix::fs::symlink("old", path("link")).unwrap();
        std::fs::hard_link(path("old"), path("second")).unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        assert_eq!(["link", "second", "folder", "missing/file"].map(given), [None, Some(false), None, None]);
        // Of another user.
        assert!(!give_file(&path("new"), ids, own + 1).unwrap());
        set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        assert_eq!((given("new"), given("newer"), path("newer").exists()), (Some(false), Some(false), false));
    }
}
