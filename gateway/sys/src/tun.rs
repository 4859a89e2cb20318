//! TUN devices with offload: packets of up to 64 KB in one read or write, on several queues.
//!
//! With `IFF_VNET_HDR` each read and write begins with a [`Vnet`] header that says how the kernel wants a large packet
//! cut, or has it put together, and where a checksum is still to be filled in. Who reads must do that work: a queue
//! opened with offload hands out TCP and UDP super-packets and packets without checksums.
//!
//! Each lane has a queue. The kernel remembers at which queue a flow's packets were written and hands the flow's
//! answers to the same queue, so answers to a peer's packets come to the peer's lane by themselves.

use rustix::fs::{Mode, OFlags, open};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes of the header before each packet.
pub const HEADER: usize = 10;

/// The checksum from `start` on is missing at `start + offset`; what is there is the pseudo-header's sum.
pub const NEEDS_CHECKSUM: u8 = 1;
/// The checksum has been looked at and is right.
pub const CHECKSUM_VALID: u8 = 2;

/// How a super-packet is cut.
pub mod gso {
    /// It is no super-packet.
    pub const NONE: u8 = 0;
    /// TCP over IPv4.
    pub const TCP4: u8 = 1;
    /// TCP over IPv6.
    pub const TCP6: u8 = 4;
    /// UDP datagrams (USO), over either.
    pub const UDP: u8 = 5;
    /// A flag: some segment carries CWR.
    pub const ECN: u8 = 0x80;
}

/// `struct virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vnet {
    /// [`NEEDS_CHECKSUM`], [`CHECKSUM_VALID`].
    pub flags: u8,
    /// One of [`gso`].
    pub gso: u8,
    /// Bytes of all headers; a hint.
    pub header_len: u16,
    /// Payload bytes per segment.
    pub segment: u16,
    /// Where checksumming begins: at the TCP or UDP header.
    pub checksum_start: u16,
    /// Where in that header the checksum is.
    pub checksum_offset: u16,
}

impl Vnet {
    /// Reads it from the front of what a queue gave. `None` when that is too short.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let &[flags, gso, a, b, c, d, e, f, g, h, ..] = bytes else { return None };
        let word = |x, y| u16::from_ne_bytes([x, y]);
        Some(Self {
            flags,
            gso,
            header_len: word(a, b),
            segment: word(c, d),
            checksum_start: word(e, f),
            checksum_offset: word(g, h),
        })
    }

    /// As a queue takes it.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER] {
        let [a, b] = self.header_len.to_ne_bytes();
        let [c, d] = self.segment.to_ne_bytes();
        let [e, f] = self.checksum_start.to_ne_bytes();
        let [g, h] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso, a, b, c, d, e, f, g, h]
    }
}

/// A TUN device; it goes when the last of its queues is closed.
#[derive(Debug)]
pub struct Tun {
    /// The interface's name, as the kernel has completed it.
    pub name: String,
    /// Its queues.
    pub queues: Vec<Queue>,
}

impl Tun {
    /// Makes a device with so many queues. `name` may hold `%d` for the kernel to number. Without `offload` every
    /// packet is at most one MTU long and complete.
    ///
    /// Errors: `PermissionDenied` without CAP_NET_ADMIN, `NotFound` where there is no `/dev/net/tun`, `ResourceBusy`
    /// when the name is taken.
    pub fn open(name: &str, queues: usize, offload: bool) -> io::Result<Self> {
        let mut name = name.to_owned();
        let mut opened = Vec::new();
        for _ in 0..queues.max(1) {
            let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
            name = attach(&fd, &name, queues > 1)?;
            opened.push(Queue::adopt(fd, offload)?);
        }
        Ok(Self { name, queues: opened })
    }
}

/// One queue of a device.
#[derive(Debug)]
pub struct Queue {
    fd: OwnedFd,
    tso: bool,
    uso: bool,
}

impl Queue {
    /// Takes over an attached queue, as handed over by another process.
    pub fn adopt(fd: OwnedFd, offload: bool) -> io::Result<Self> {
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let mut queue = Self { fd, tso: false, uso: false };
        // Kernels before 6.2 do not know USO.
        if offload && queue.set_offload(tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).is_ok() {
            (queue.tso, queue.uso) = (true, true);
        } else if offload && queue.set_offload(tcp).is_ok() {
            queue.tso = true;
        } else {
            queue.set_offload(0)?;
        }
        Ok(queue)
    }

    fn set_offload(&self, flags: libc::c_uint) -> io::Result<()> {
        // SAFETY: this request takes its flags by value, no pointer.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Whether TCP super-packets come, and may be written.
    pub fn tcp_offload(&self) -> bool {
        self.tso
    }

    /// Whether UDP super-packets come, and may be written.
    pub fn udp_offload(&self) -> bool {
        self.uso
    }

    /// Reads one packet with its header. `WouldBlock` when there is none. What is longer than the buffer is cut.
    #[inline]
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, buffer)?)
    }

    /// Writes one packet, header first, gathered from its pieces.
    #[inline]
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(rustix::io::writev(&self.fd, pieces)?)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Queue> for OwnedFd {
    fn from(queue: Queue) -> Self {
        queue.fd
    }
}

/// `struct ifreq`: a name and a union of 24 bytes.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

/// Makes the device or adds a queue to it; returns its name.
fn attach(fd: &OwnedFd, name: &str, several: bool) -> io::Result<String> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no interface name")));
    }
    let mut request = InterfaceRequest { name: [0; libc::IFNAMSIZ], value: [0; 24] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let mut flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if several {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    request.value[..2].copy_from_slice(&(flags as u16).to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, which `request` is.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let end = request.name.iter().position(|b| *b == 0).unwrap_or(request.name.len());
    Ok(String::from_utf8_lossy(&request.name[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_as_it_was_written() {
        let header =
            Vnet { flags: 1, gso: gso::TCP6, header_len: 72, segment: 1420, checksum_start: 40, checksum_offset: 16 };
        assert_eq!(Vnet::decode(&header.encode()), Some(header));
        assert_eq!(Vnet::decode(&[0; HEADER - 1]), None);
    }

    #[test]
    fn names_are_bounded() {
        for name in ["", "a-name-that-is-too-long"] {
            match Tun::open(name, 1, true) {
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
                Err(e) => eprintln!("skipped: /dev/net/tun: {e}"),
                Ok(_) => panic!("{name:?} was taken"),
            }
        }
    }
}
