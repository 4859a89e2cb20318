//! Descriptors that come from outside: from a service manager at the start, or from another process by a message.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first descriptor that a service manager passes (sd_listen_fds(3)).
const LISTEN_FDS_START: i32 = 3;
/// So many descriptors go in one message; the kernel's limit is 253 (unix(7)).
pub const MAX_DESCRIPTORS: usize = 128;

/// Takes over the descriptors that a service manager has passed to this process (`LISTEN_PID`, `LISTEN_FDS` and
/// `LISTEN_FDNAMES`, see sd_listen_fds_with_names(3)), each with its name, which may be empty. Gives them once; a second
/// call gives none.
pub fn passed_at_start() -> Vec<(OwnedFd, String)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u32>().ok());
    let ours = number("LISTEN_PID") == Some(std::process::id());
    let count = number("LISTEN_FDS").filter(|n| *n <= 4096).unwrap_or(0);
    if !ours || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let numbers = LISTEN_FDS_START..LISTEN_FDS_START + count as i32;
    let open = numbers.filter(|fd| {
        // SAFETY: the descriptor is only looked at, and a closed one is an error and nothing more.
        let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
        let flags = rustix::io::fcntl_getfd(fd);
        flags.is_ok_and(|f| rustix::io::fcntl_setfd(fd, f | rustix::io::FdFlags::CLOEXEC).is_ok())
    });
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let name = |fd: i32| names.split(':').nth((fd - LISTEN_FDS_START) as usize).unwrap_or_default().to_owned();
    // SAFETY: by the protocol of sd_listen_fds(3) these descriptors belong to this process and to nobody within it, and
    // the flag above makes sure that they are taken once.
    open.map(|fd| (unsafe { OwnedFd::from_raw_fd(fd) }, name(fd))).collect()
}

/// Sends bytes and descriptors (at most [`MAX_DESCRIPTORS`]) as one message. `bytes` must not be empty.
pub fn send_descriptors(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives what [`send_descriptors`] has sent; 0 bytes at the end. The descriptors are closed on exec.
pub fn receive_descriptors(socket: impl AsFd, bytes: &mut [u8], into: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            into.extend(descriptors);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors were lost on the way (open files limit?)"));
    }
    Ok(got.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn descriptors_travel() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut left, right) = UnixStream::pair().unwrap();
        assert_eq!(send_descriptors(&here, b"x", &[right.as_fd()]).unwrap(), 1);
        drop(right);
        let (mut byte, mut got) = ([0; 8], Vec::new());
        assert_eq!(receive_descriptors(&there, &mut byte, &mut got).unwrap(), 1);
        let mut right = UnixStream::from(got.pop().unwrap());
        right.write_all(b"hello").unwrap();
        drop(right);
        let mut text = String::new();
        left.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        drop(here);
        assert_eq!(receive_descriptors(&there, &mut byte, &mut got).unwrap(), 0);
    }

    #[test]
    fn nothing_is_taken_that_was_not_passed() {
        assert!(passed_at_start().is_empty());
    }
}
