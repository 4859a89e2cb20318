//! The admin socket's file.

use crate::config::RunAs;
use anyhow::{Context, Result, bail};
use rustix::fs::Mode;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Orders that wait to be accepted.
const BACKLOG: i32 = 128;

/// A bound socket whose file waits under another name until it is published.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// `None` once it is published.
    waiting: Option<PathBuf>,
}

impl SocketFile {
    /// Binds it beside `path`, for its owner only.
    ///
    /// Errors: another gateway listens there (unless this one is its `successor`), or there is a file that is no
    /// socket, or the folder cannot be written.
    pub fn open(path: &Path, successor: bool) -> Result<(Self, UnixListener)> {
        let shown = path.display();
        if let Ok(there) = std::fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                bail!("{shown} exists, but is not a socket: remove it, or choose another path for the admin socket");
            }
            if !successor && UnixStream::connect(path).is_ok() {
                bail!("another gateway listens on {shown}: stop it, or choose another path for the admin socket");
            }
        }
        let mut waiting = path.as_os_str().to_owned();
        waiting.push(format!(".{}", std::process::id()));
        let waiting = PathBuf::from(waiting);
        // Left behind by a process of this number that was killed.
        let _ = std::fs::remove_file(&waiting);
        let listener = bind(&waiting).with_context(|| format!("cannot create the admin socket {shown}"))?;
        Ok((Self { path: path.to_path_buf(), waiting: Some(waiting) }, listener))
    }

    /// Puts it where it is looked for, in place of whatever is left there; once.
    pub fn publish(&mut self) -> Result<()> {
        let Some(waiting) = self.waiting.take() else { return Ok(()) };
        std::fs::rename(&waiting, &self.path)
            .with_context(|| format!("cannot create the admin socket {}", self.path.display()))
    }

    /// Makes it this user's, and publishes it while we may. Commands that arrive before the gateway listens wait in the queue.
    pub fn give(&mut self, to: &RunAs) -> Result<()> {
        if let Some(waiting) = &self.waiting {
            crate::run::user::give(waiting, to)?;
        }
        self.publish()
    }

    /// Removes it.
    pub fn remove(self) {
        // It may be gone already, or not be ours to remove after giving up root; a stale one is replaced.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Binds a socket whose file is its owner's alone from the moment it is there: Linux makes the file with the mode that the
/// socket has.
fn bind(path: &Path) -> Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_live_socket_is_respected_and_a_stale_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let (mut first, listener) = SocketFile::open(&path, false).unwrap();
        assert!(!path.exists());
        first.publish().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(SocketFile::open(&path, false).unwrap_err().to_string().contains("another gateway"));
        let (mut second, _listener) = SocketFile::open(&path, true).unwrap();
        second.publish().unwrap();
        drop(listener);
        second.remove();
        // The mode is the file's from the start, whatever the umask of this process.
        let made = folder.path().join("made");
        let _listener = bind(&made).unwrap();
        assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "a file").unwrap();
        assert!(SocketFile::open(&path, false).unwrap_err().to_string().contains("not a socket"));
    }
}
