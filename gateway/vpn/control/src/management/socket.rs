//! The files of the management socket and of the socket of the login pages.

use anyhow::{Context as _, Result, bail};
use sealane_config::{Management, Oidc};
use sealane_log as log;
use sealane_sys::privileges::is_root;
use sealane_sys::unix_socket::{self, Occupied, Rights, SocketFile};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Programs that wait to be accepted.
const BACKLOG: i32 = 16;
/// Requests for login pages that wait to be accepted.
const LOGIN_BACKLOG: i32 = 128;

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
        let rights = Rights { mode: settings.mode, owner: None, group: settings.group };
        Self::open_at(&settings.path, rights, ("the management socket", "\"management\""), BACKLOG, successor)
    }

    /// The same for the socket of the login pages, to which only the user of this process may connect: its lanes do.
    pub(crate) fn open_login(oidc: &Oidc, successor: bool) -> Result<Self> {
        let (owner, group) = oidc.owner.filter(|_| is_root()).unzip();
        let rights = Rights { mode: 0o600, owner, group };
        let names = ("the socket of the login pages", "\"socket\" in [tunnel.oidc]");
        Self::open_at(&oidc.socket, rights, names, LOGIN_BACKLOG, successor)
    }

    /// The same for a tunnel that serves already: without the socket, no user can log in, but clients stay connected.
    pub(crate) fn login_for(oidc: Option<&Oidc>, successor: bool) -> Option<Self> {
        Self::open_login(oidc?, successor)
            .inspect_err(|e| {
                log::warn!("tunnel: no user can log in: {e:#}");
            })
            .ok()
    }

    /// `names`: what the socket is, and its setting.
    fn open_at(
        path: &Path,
        rights: Rights,
        (what, setting): (&str, &str),
        backlog: i32,
        successor: bool,
    ) -> Result<Self> {
        let shown = path.display();
        match unix_socket::occupied(path) {
            Some(Occupied::ByFile) => {
                bail!("{shown} exists, but is not a socket: remove it, or choose another path for {setting}")
            }
            Some(Occupied::ByProgram) if !successor => {
                bail!("another program listens on {shown}: stop it, or choose another path for {setting}")
            }
            Some(Occupied::ByProgram) | None => {}
        }
        let (listener, file) =
            unix_socket::replace(path, rights, backlog).with_context(|| format!("cannot create {what} {shown}"))?;
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
