//! Socket options that `rustix` does not name.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

/// Sets an option whose value is a plain structure or an integer.
pub(crate) fn set<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), size_of::<T>() as u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
