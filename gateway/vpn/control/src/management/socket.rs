//! The management socket's file.

use anyhow::{Context as _, Result, bail};
use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sealane_config::Management;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Programs that wait to be accepted.
const BACKLOG: i32 = 16;

/// A socket that listens at its path.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: another process may have put its own there.
    file: (u64, u64),
}

impl Socket {
    /// Puts a socket at the path. `successor`: what listens there is this process' predecessor.
    ///
    /// Errors: another program listens there, or there is a file that is no socket, or the folder cannot be written.
    pub(crate) fn open(settings: &Management, successor: bool) -> Result<Self> {
        let path = &settings.path;
        let shown = path.display();
        if let Ok(there) = std::fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                bail!("{shown} exists, but is not a socket: remove it, or choose another path for \"management\"");
            }
            if !successor && UnixStream::connect(path).is_ok() {
                bail!("another program listens on {shown}: stop it, or choose another path for \"management\"");
            }
        }
        let mut waiting = path.as_os_str().to_owned();
        waiting.push(format!(".{}", std::process::id()));
        let waiting = PathBuf::from(waiting);
        let opened = bind(&waiting, settings).and_then(|listener| {
            let there = std::fs::symlink_metadata(&waiting)?;
            std::fs::rename(&waiting, path)?;
            Ok((listener, (there.dev(), there.ino())))
        });
        let (listener, file) = opened
            .inspect_err(|_| drop(std::fs::remove_file(&waiting)))
            .with_context(|| format!("cannot create the management socket {shown}"))?;
        Ok(Self { listener, path: path.clone(), file })
    }

    /// Another one for the same file.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { listener: self.listener.try_clone()?, path: self.path.clone(), file: self.file })
    }

    /// To be awaited. Within a runtime.
    pub(crate) fn listener(self) -> io::Result<tokio::net::UnixListener> {
        self.listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(self.listener)
    }

    /// Its file, to be removed at the end.
    pub(crate) fn file(&self) -> SocketFile {
        SocketFile { path: self.path.clone(), file: self.file }
    }
}

/// The file of a socket.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    file: (u64, u64),
}

impl SocketFile {
    /// Removes it, unless it is another process' by now.
    pub fn remove(&self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.file) {
            // A stale one is replaced at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Binds a socket whose file has its owner, group and mode before anybody looks for it.
fn bind(waiting: &Path, settings: &Management) -> io::Result<UnixListener> {
    // Left behind by a process of this number that was killed.
    let _ = std::fs::remove_file(waiting);
    // Linux makes the file with the mode that the socket has: it is its owner's alone from the start.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(waiting)?)?;
    net::listen(&socket, BACKLOG)?;
    let listener = UnixListener::from(socket);
    if settings.group.is_some() {
        std::os::unix::fs::chown(waiting, None, settings.group)?;
    }
    std::fs::set_permissions(waiting, std::fs::Permissions::from_mode(settings.mode))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_respected_and_a_stale_one_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("management.sock");
        let settings = |mode| Management { path: path.clone(), mode, group: None, client_auth: false };
        let mode = || std::fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        let first = Socket::open(&settings(0o600), false).expect("opened");
        assert_eq!(mode(), 0o600);
        let refused = format!("{:#}", Socket::open(&settings(0o600), false).expect_err("one listens"));
        assert!(refused.contains("another program listens"), "{refused}");
        let second = Socket::open(&settings(0o660), true).expect("a successor");
        assert_eq!(mode(), 0o660);
        // The predecessor's file is not there any more: the successor's stays.
        first.file().remove();
        assert!(path.exists());
        drop((first, second));
        let third = Socket::open(&settings(0o600), false).expect("nobody listens");
        third.file().remove();
        assert!(!path.exists());
        std::fs::write(&path, "a file").expect("written");
        let refused = format!("{:#}", Socket::open(&settings(0o600), false).expect_err("a file"));
        assert!(refused.contains("not a socket"), "{refused}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "nothing is left");
    }
}
