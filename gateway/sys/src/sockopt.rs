//! Socket options that `rustix` does not name.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Sets an option whose value is a plain structure or an integer.
pub(crate) fn set<T>(fd: impl AsFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), size_of::<T>() as u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option into `value`; returns how many bytes the kernel has written.
pub(crate) fn read_bytes(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which `value` has.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(len as usize) }
}

/// Bytes that a stream socket would take now, as far as its buffer goes (`SO_MEMINFO`). `None` where the kernel does not say.
pub fn send_space(fd: impl AsFd) -> Option<usize> {
    /// Places in the kernel's answer, of 32 bits each (`linux/sock_diag.h`).
    const SNDBUF: usize = 3;
    const WMEM_QUEUED: usize = 5;
    let mut memory = [0u8; 36];
    let n = read_bytes(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, &mut memory).ok()?;
    let (words, _) = memory.get(..n)?.as_chunks::<4>();
    let word = |i: usize| words.get(i).map(|w| u32::from_ne_bytes(*w) as usize);
    Some(word(SNDBUF)?.saturating_sub(word(WMEM_QUEUED)?))
}

/// What the kernel has counted of a TCP connection since it was made (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounts {
    /// Segments with data that were sent, those that were sent again included.
    pub sent: u64,
    /// Segments that were sent again.
    pub retransmitted: u64,
    /// The smoothed round-trip time in microseconds.
    pub round_trip: u32,
}

/// Asks the kernel what it has counted of a connection. `None` where it does not say: it is no TCP connection, or the kernel is older
/// than 4.6.
pub fn tcp_counts(fd: impl AsFd) -> Option<TcpCounts> {
    /// Places in `struct tcp_info` (`linux/tcp.h`), which only grows at its end.
    const RTT: usize = 68;
    const TOTAL_RETRANS: usize = 100;
    const DATA_SEGS_OUT: usize = 156;
    let mut info = [0u8; DATA_SEGS_OUT + 4];
    let n = read_bytes(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    let known = info.get(..n)?;
    let word = |at: usize| known.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes));
    Some(TcpCounts {
        sent: word(DATA_SEGS_OUT)?.into(),
        retransmitted: word(TOTAL_RETRANS)?.into(),
        round_trip: word(RTT)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn segments_of_a_connection_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let before = tcp_counts(&stream).unwrap();
        let mut byte = [0];
        for _ in 0..3 {
            stream.write_all(b"x").unwrap();
            peer.read_exact(&mut byte).unwrap();
        }
        let after = tcp_counts(&stream).unwrap();
        assert_eq!((before.sent, after.sent), (0, 3));
        assert_eq!(tcp_counts(UnixStream::pair().unwrap().0), None);
    }

    #[test]
    fn a_socket_that_is_full_has_no_space() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _peer = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        assert!(send_space(&stream).unwrap() > 4096);
        while stream.write(&[0; 65_536]).is_ok() {}
        assert!(send_space(&stream).unwrap() < 4096);
    }
}
