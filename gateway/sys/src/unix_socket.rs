//! Unix sockets that listen at a path: whether the path is free, and a file that has its mode and its owner before anybody can
//! connect to it.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

/// Why no socket can be put at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupied {
    /// There is a file that is no socket.
    ByFile,
    /// A program listens there.
    ByProgram,
}

/// Who may connect to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The permissions of its file.
    pub mode: u32,
    /// The user that its file belongs to; `None`: the user of this process.
    pub owner: Option<u32>,
    /// The group of its file; `None`: the group of this process.
    pub group: Option<u32>,
}

impl Rights {
    /// Gives a socket's file its owner, group and mode, as far as they differ: who may not change a file may keep it. The mode comes
    /// last: nobody may connect in between who may not at the end.
    pub fn apply(self, path: &Path) -> io::Result<()> {
        let there = std::fs::symlink_metadata(path)?;
        let owner = self.owner.filter(|owner| *owner != there.uid());
        let group = self.group.filter(|group| *group != there.gid());
        if owner.is_some() || group.is_some() {
            chown(path, owner, group)?;
        }
        if there.mode() & 0o7777 == self.mode {
            return Ok(());
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(self.mode))
    }
}

/// Whether something at a path must not be replaced. A socket on which nobody listens may be.
pub fn occupied(path: &Path) -> Option<Occupied> {
    let there = std::fs::symlink_metadata(path).ok()?;
    if !there.file_type().is_socket() {
        return Some(Occupied::ByFile);
    }
    // A queue that is full is somebody's, too, and must not be waited for.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let answer = SocketAddrUnix::new(path).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    });
    match answer {
        Err(Errno::CONNREFUSED | Errno::NOENT) => None,
        Ok(()) | Err(_) => Some(Occupied::ByProgram),
    }
}

/// The path under which a socket waits until it is put in its place: a socket there has a name that nobody looks for.
pub fn waiting_path(path: &Path) -> PathBuf {
    let mut waiting = path.as_os_str().to_owned();
    waiting.push(format!(".{}", std::process::id()));
    PathBuf::from(waiting)
}

/// Bytes that [`waiting_path`] may add to a path.
pub const WAITING_BYTES: usize = ".4294967295".len();

/// Binds a socket whose file is its owner's alone from the moment it is there (Linux makes the file with the mode that the socket
/// has), and listens. The path must be free.
pub fn listen_at(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Puts a socket with these rights at a path, in the place of whatever is there.
pub fn replace(path: &Path, rights: Rights, backlog: i32) -> io::Result<(OwnedFd, SocketFile)> {
    let waiting = waiting_path(path);
    // Left behind by a process of this number that was killed.
    let _ = std::fs::remove_file(&waiting);
    let opened = listen_at(&waiting, backlog).and_then(|socket| {
        rights.apply(&waiting)?;
        let file = SocketFile { path: path.to_owned(), file: identity(&waiting)? };
        std::fs::rename(&waiting, path)?;
        Ok((socket, file))
    });
    opened.inspect_err(|_| drop(std::fs::remove_file(&waiting)))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

/// The file of a socket, by which it is known again: another process may have put its own at the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl SocketFile {
    /// One that another process has made, with its device and inode.
    pub fn known(path: PathBuf, file: (u64, u64)) -> Self {
        Self { path, file }
    }

    /// Its device and inode.
    pub fn identity(&self) -> (u64, u64) {
        self.file
    }

    /// Whether it is still at its path.
    pub fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|there| there == self.file)
    }

    /// Removes it, unless another one is at its path by now.
    pub fn remove(&self) {
        if self.is_there() {
            // A stale one is replaced at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    /// A folder of a test's own, which is gone with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sealane-sys-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_live_socket_is_respected_and_a_stale_one_replaced() {
        let folder = Folder::new("replaced");
        let path = folder.0.join("x.sock");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(occupied(&path), None);
        let rights = |mode| Rights { mode, owner: None, group: None };
        let (first, file) = replace(&path, rights(0o660), 4).unwrap();
        assert_eq!((mode(), occupied(&path), file.is_there()), (0o660, Some(Occupied::ByProgram), true));
        assert!(UnixStream::connect(&path).is_ok());
        let (second, other) = replace(&path, rights(0o600), 4).unwrap();
        assert!(!file.is_there() && other.is_there());
        file.remove();
        assert_eq!((mode(), other.is_there()), (0o600, true), "it is another one's");
        rights(0o666).apply(&path).unwrap();
        assert_eq!(mode(), 0o666);
        drop((first, second));
        assert_eq!(occupied(&path), None, "nobody listens");
        other.remove();
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(occupied(&path), Some(Occupied::ByFile));
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "nothing is left");
    }

    #[test]
    fn a_full_queue_is_not_waited_for() {
        let folder = Folder::new("full");
        let path = folder.0.join("x.sock");
        let socket = listen_at(&path, 1).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let clients: Vec<_> = (0..2).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert_eq!(occupied(&path), Some(Occupied::ByProgram));
        let listener = UnixListener::from(socket);
        assert!(listener.accept().is_ok());
        drop(clients);
    }

    #[test]
    fn what_is_written_about_a_path_fits() {
        assert!(waiting_path(Path::new("/run/x")).as_os_str().len() <= "/run/x".len() + WAITING_BYTES);
    }
}
