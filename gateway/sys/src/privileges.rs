//! Giving up root: everything that needs it is open by then.

use rustix::io::Errno;
pub use rustix::thread::CapabilitySet;
use rustix::thread::{
    CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities, set_keep_capabilities,
    set_no_new_privs,
};
use std::ffi::CString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// A user as the system knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name in `/etc/passwd`.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// Its first group.
    pub gid: u32,
}

/// Looks a user up by name in `/etc/passwd`.
pub fn find_user(name: &str) -> io::Result<Option<User>> {
    let table = std::fs::read_to_string("/etc/passwd")?;
    Ok(table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()? == name;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        found.then(|| User { name: name.to_owned(), uid, gid })
    }))
}

/// The number of a group, by name in `/etc/group`.
pub fn find_group(name: &str) -> io::Result<Option<u32>> {
    let table = std::fs::read_to_string("/etc/group")?;
    Ok(table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next()? == name;
        let gid = fields.nth(1)?.parse().ok()?;
        found.then_some(gid)
    }))
}

/// Whether other users than its owner and root may put files into a folder, or replace those that are there.
pub fn others_may_change(folder: &Metadata) -> bool {
    let mode = folder.mode();
    mode & 0o002 != 0 || (mode & 0o020 != 0 && folder.gid() != 0)
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this process has CAP_NET_BIND_SERVICE.
pub fn may_bind_low_ports() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_BIND_SERVICE))
}

/// Whether this process has CAP_NET_ADMIN.
pub fn may_change_network() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// No program that this process starts has more rights than this process, whatever its file says (no_new_privs), and
/// the bounding set is emptied. To be called as root, before threads start: both are each thread's own, and inherited.
///
/// `keep` can still be passed to [`become_user`].
pub fn gain_nothing_more(keep: CapabilitySet) -> io::Result<()> {
    let mut sets = capabilities(None)?;
    // Only what is in the bounding set can become inheritable, and only what is inheritable can become ambient.
    sets.inheritable = keep & sets.permitted;
    set_capabilities(None, sets)?;
    // The kernel may know capabilities that we have no name for. The first unknown number ends them.
    for number in 0..64u32 {
        // SAFETY: PR_CAPBSET_DROP takes numbers only.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) } != 0 {
            match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::EINVAL) => break,
                // A root that may not do this (in containers): programs still gain nothing, by what follows.
                e if e.raw_os_error() == Some(libc::EPERM) => break,
                e => return Err(e),
            }
        }
    }
    set_no_new_privs(true)?;
    Ok(())
}

/// Becomes `user` for good, with the groups that the system lists for it and `gid` as the first. Of the capabilities
/// only those in `keep` stay, for this thread and for programs that it starts (a successor after an upgrade).
pub fn become_user(user: &User, gid: u32, keep: CapabilitySet) -> io::Result<()> {
    let name = CString::new(user.name.as_str())?;
    // Else the change of user takes all capabilities along.
    set_keep_capabilities(true)?;
    // SAFETY: `name` is a string that ends with NUL and outlives the calls; they take no other pointer. These are the C
    // library's, which change all threads of the process and not only this one.
    let failed = unsafe {
        libc::initgroups(name.as_ptr(), gid) != 0
            || libc::setresgid(gid, gid, gid) != 0
            || libc::setresuid(user.uid, user.uid, user.uid) != 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    let had = capabilities(None)?;
    let keep = had.permitted & keep;
    let inheritable = had.inheritable & keep;
    set_capabilities(None, CapabilitySets { effective: keep, permitted: keep, inheritable })?;
    for capability in inheritable.iter() {
        // Refused by hardened systems, and then a successor may not.
        match configure_capability_in_ambient_set(capability, true) {
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
    }
    set_keep_capabilities(false)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name() {
        let root = find_user("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(find_group("root").unwrap(), Some(0));
        assert_eq!(find_user("no such user").unwrap(), None);
        assert_eq!(find_group("no such group").unwrap(), None);
    }
}
