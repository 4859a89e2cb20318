//! Network namespaces: a machine's network, several times over, for tests and for the lab.
//!
//! A namespace belongs to a thread, and processes that a thread starts inherit it. So nothing here changes the calling
//! thread for good, save [`NetNs::enter`], which says so: [`NetNs::run`] works on a thread of its own.

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A network namespace, kept alive by this handle even when nothing runs in it.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
}

impl NetNs {
    /// Makes an empty one: loopback alone, and that is down.
    ///
    /// Errors: `PermissionDenied` without CAP_SYS_ADMIN; see [`become_root_of_a_user_namespace`].
    pub fn new() -> io::Result<Self> {
        on_a_thread(|| {
            // SAFETY: only FILES could take descriptors away from other threads; NEWNET touches this thread alone.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Self::current()
        })?
    }

    /// The namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Ok(Self { fd: open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// Moves the calling thread here, for as long as it lives; what it opens and starts from now on is here.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Does something here, on a thread of its own, and waits for it. A panic in it goes on in the caller.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> io::Result<R> {
        on_a_thread(|| {
            self.enter()?;
            Ok(work())
        })?
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> io::Result<R> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".into()).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Makes a process without privileges root of a user namespace of its own, in which it may make network namespaces.
/// Nothing changes for a process that may do so anyway.
///
/// Call it before there is a second thread. Errors: `InvalidInput` with several threads; `PermissionDenied` where the
/// system does not allow it (`kernel.unprivileged_userns_clone`, AppArmor).
pub fn become_root_of_a_user_namespace() -> io::Result<()> {
    use rustix::thread::{CapabilitySet, capabilities};
    if capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN)) {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // SAFETY: descriptors stay shared; the kernel refuses NEWUSER when there are other threads.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
    // user_namespaces(7): setgroups must be given up before the groups are mapped.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}
