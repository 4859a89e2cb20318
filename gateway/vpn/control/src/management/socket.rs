//! The management socket's file.

use anyhow::{Context as _, Result, bail};
use sealane_config::Management;
use sealane_sys::unix_socket::{self, Occupied, Rights, SocketFile};
use std::io;
use std::os::unix::net::UnixListener;

/// Programs that wait to be accepted.
const BACKLOG: i32 = 16;

/// A socket that listens at its path.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

impl Socket {
    /// Puts a socket at the path. `successor`: what listens there is this process' predecessor.
    ///
    /// Errors: another program listens there, or there is a file that is no socket, or the folder cannot be written.
    pub(crate) fn open(settings: &Management, successor: bool) -> Result<Self> {
        let path = &settings.path;
        let shown = path.display();
        match unix_socket::occupied(path) {
            Some(Occupied::ByFile) => {
                bail!("{shown} exists, but is not a socket: remove it, or choose another path for \"management\"")
            }
            Some(Occupied::ByProgram) if !successor => {
                bail!("another program listens on {shown}: stop it, or choose another path for \"management\"")
            }
            Some(Occupied::ByProgram) | None => {}
        }
        let rights = Rights { mode: settings.mode, owner: None, group: settings.group };
        let (listener, file) = unix_socket::replace(path, rights, BACKLOG)
            .with_context(|| format!("cannot create the management socket {shown}"))?;
        Ok(Self { listener: listener.into(), file })
    }

    /// Another one for the same file.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { listener: self.listener.try_clone()?, file: self.file.clone() })
    }

    /// To be awaited. Within a runtime.
    pub(crate) fn listener(self) -> io::Result<tokio::net::UnixListener> {
        self.listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(self.listener)
    }

    /// Its file, to be removed at the end.
    pub(crate) fn file(&self) -> SocketFile {
        self.file.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

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
