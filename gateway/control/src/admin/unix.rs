//! The admin socket's file.

use crate::config::RunAs;
use anyhow::{Context, Result, bail};
use sealane_sys::unix_socket::{self, Occupied, listen_at, waiting_path};
use std::os::unix::net::UnixListener;
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
        match unix_socket::occupied(path) {
            Some(Occupied::ByFile) => {
                bail!("{shown} exists, but is not a socket: remove it, or choose another path for the admin socket")
            }
            Some(Occupied::ByProgram) if !successor => {
                bail!("another gateway listens on {shown}: stop it, or choose another path for the admin socket")
            }
            Some(Occupied::ByProgram) | None => {}
        }
        let waiting = waiting_path(path);
        // Left behind by a process of this number that was killed.
        let _ = std::fs::remove_file(&waiting);
        let listener = listen_at(&waiting, BACKLOG).map(UnixListener::from);
        let listener = listener.with_context(|| format!("cannot create the admin socket {shown}"))?;
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
        let _listener = listen_at(&made, BACKLOG).unwrap();
        assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, "a file").unwrap();
        assert!(SocketFile::open(&path, false).unwrap_err().to_string().contains("not a socket"));
    }
}
