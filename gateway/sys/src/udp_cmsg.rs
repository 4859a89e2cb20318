//! Control messages of UDP sockets: a buffer of the right alignment, and reading and writing one value.

use std::mem::size_of;

/// Room for the control messages of one message, in either direction: segment size, packet info and ECN take at most
/// 24 + 40 + 24 bytes.
const ROOM: usize = 128;

/// Control messages being written, or room to receive them. Aligned as `cmsghdr` wants.
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; ROOM],
    len: usize,
}

impl Control {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; ROOM], len: 0 }
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where the bytes begin. The bytes come first, so the pointer is aligned as the buffer is.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    /// The same for reading.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// How many bytes the kernel may fill.
    pub(crate) const fn room() -> usize {
        ROOM
    }

    /// Appends one message. What does not fit is left out; by [`ROOM`] everything that is sent fits.
    pub(crate) fn push<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, value: &T) {
        // SAFETY: these only compute lengths.
        let (space, len) = unsafe {
            (libc::CMSG_SPACE(size_of::<T>() as u32) as usize, libc::CMSG_LEN(size_of::<T>() as u32) as usize)
        };
        if self.len + space > ROOM {
            debug_assert!(false, "control messages outgrow their room");
            return;
        }
        let header = libc::cmsghdr { cmsg_len: len, cmsg_level: level, cmsg_type: kind };
        // SAFETY: `space` bytes from `len` on lie inside the buffer; `len` is a sum of CMSG_SPACEs and the buffer is
        // aligned to 8, so the header is aligned; the value is written without assuming alignment.
        unsafe {
            let at = self.bytes.as_mut_ptr().add(self.len).cast::<libc::cmsghdr>();
            at.write(header);
            libc::CMSG_DATA(at).cast::<T>().write_unaligned(*value);
        }
        self.len += space;
    }
}

/// Reads the value of a message, if it is long enough for one. `T` is one of the kernel's plain structures or an
/// integer: every pattern of bytes is a value of it.
pub(crate) fn take<T: Copy>(at: *const libc::cmsghdr, header: &libc::cmsghdr) -> Option<T> {
    // SAFETY: only computes a length.
    let needed = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) } as usize;
    if header.cmsg_len < needed {
        return None;
    }
    // SAFETY: `at` is a header inside the control bytes (the caller got it from CMSG_FIRSTHDR or CMSG_NXTHDR) whose
    // length covers a `T`; it is read without assuming alignment.
    Some(unsafe { libc::CMSG_DATA(at).cast::<T>().read_unaligned() })
}
