//! UDP in batches: many datagrams per system call, both ways.
//!
//! Sending: one call takes several messages (`sendmmsg`), and each message may be cut by the kernel into equal
//! datagrams (UDP GSO). Receiving: one call fills several buffers (`recvmmsg`), each of which may hold a train of equal
//! datagrams of one sender (UDP GRO). The tunnel's lanes and the gateway's QUIC use it.
//!
//! Offload is a promise that a driver, a hypervisor or a route can break at any time, so it is never trusted: a
//! segmented message that the kernel refuses is sent datagram by datagram, and when the refusals go on segmentation is
//! given up for the socket ([`Socket::segments`] says so, so that callers stop gathering).

use crate::sockopt::set;
use crate::udp_cmsg::{Control, take};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::cell::Cell;
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Most datagrams in one segmented message: what every kernel with UDP GSO takes.
pub const MAX_SEGMENTS: usize = 64;
/// Most bytes in one message: 65,535 less IPv6's and UDP's headers.
pub const MAX_MESSAGE: usize = 65_535 - 48;
/// Most messages per system call.
pub const MAX_BATCH: usize = 64;
/// Fewest buffers that the kernel is offered at first.
const OFFERED: usize = 4;
/// Calls in a row that leave most buffers empty until fewer are offered.
const SPARSE: u8 = 8;
/// A datagram that every route takes whole: IPv6's smallest MTU (RFC 8200 §5) less its and UDP's headers.
const EVERYWHERE: usize = 1280 - 48;
/// Refusals in a row after which segmentation is given up for the socket.
const WAIT_LIMIT: u8 = 8;

/// How a socket is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Several sockets share the address (`SO_REUSEPORT`): one per lane.
    pub reuse_port: bool,
    /// An IPv6 wildcard socket serves IPv4 too.
    pub dual_stack: bool,
    /// Report and take the ECN bits. QUIC wants them.
    pub ecn: bool,
    /// Wanted size of the kernel's receive buffer in bytes; 0 leaves the system's.
    pub receive_buffer: usize,
    /// Wanted size of the kernel's send buffer in bytes; 0 leaves the system's.
    pub send_buffer: usize,
}

/// A UDP socket that does not block. One lane owns it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    address: SocketAddr,
    /// It has one peer ([`Socket::connect`]).
    connected: bool,
    /// Most segments per message; 1 once segmentation is given up.
    segments: Cell<u8>,
    refused: Cell<u8>,
    gro: bool,
}

/// One message to send.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Where to; a connected socket sends to its peer, which this must be.
    pub remote: SocketAddr,
    /// The address to send from, where the socket is bound to a wildcard: that at which the peer was heard.
    pub local: Option<IpAddr>,
    /// Cut the bytes into datagrams of this length, the last may be shorter; 0 or the bytes' length: one datagram.
    pub segment: usize,
    /// ECN bits, 0 for none.
    pub ecn: u8,
    /// The datagram or datagrams, back to back.
    pub data: &'a [u8],
}

impl Transmit<'_> {
    fn segmented(&self) -> bool {
        self.segment != 0 && self.segment < self.data.len()
    }
}

impl Socket {
    /// Opens and binds a socket.
    pub fn bind(address: SocketAddr, options: &Options) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        if address.is_ipv6() {
            rustix::net::sockopt::set_ipv6_v6only(&fd, !options.dual_stack)?;
        }
        if options.reuse_port {
            rustix::net::sockopt::set_socket_reuseport(&fd, true)?;
        }
        rustix::net::bind(&fd, &address)?;
        Self::adopt(fd, options)
    }

    /// Opens a socket that sends to one peer and receives from that peer alone. If the peer's host reports that nobody
    /// listens there (ICMP), a later call fails with `ConnectionRefused`.
    pub fn connect(peer: SocketAddr, options: &Options) -> io::Result<Self> {
        let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        rustix::net::connect(&fd, &peer)?;
        Self::with_options(fd, options, true)
    }

    /// Takes over a bound socket, as handed over by another process or opened by control.
    pub fn adopt(fd: OwnedFd, options: &Options) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Self::with_options(fd, options, false)
    }

    fn with_options(fd: OwnedFd, options: &Options, connected: bool) -> io::Result<Self> {
        let address = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
        for (size, forced, plain) in [
            (options.receive_buffer, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (options.send_buffer, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            let size = libc::c_int::try_from(size).unwrap_or(libc::c_int::MAX);
            // Beyond the system's limit only with CAP_NET_ADMIN; a smaller buffer is no reason to fail.
            if size > 0 && set(&fd, libc::SOL_SOCKET, forced, &size).is_err() {
                let _ = set(&fd, libc::SOL_SOCKET, plain, &size);
            }
        }
        // Destination addresses and the ECN bits come as control messages. A dual-stack socket needs both families'. A connected
        // socket has one address of its own.
        if connected {
            // ECN is for QUIC's sockets, which are not connected.
        } else if address.is_ipv6() {
            set(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1)?;
            if options.ecn {
                set(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &1)?;
                let _ = set(&fd, libc::IPPROTO_IP, libc::IP_RECVTOS, &1);
            }
        } else {
            set(&fd, libc::IPPROTO_IP, libc::IP_PKTINFO, &1)?;
            if options.ecn {
                set(&fd, libc::IPPROTO_IP, libc::IP_RECVTOS, &1)?;
            }
        }
        let gro = set(&fd, libc::SOL_UDP, libc::UDP_GRO, &1).is_ok();
        // Kernels without GSO do not know the option; 0 means none by default.
        let gso = set(&fd, libc::SOL_UDP, libc::UDP_SEGMENT, &0).is_ok();
        let segments = Cell::new(if gso { MAX_SEGMENTS as u8 } else { 1 });
        Ok(Self { fd, address, connected, segments, refused: Cell::new(0), gro })
    }

    /// Where it is bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many datagrams to gather into one message at most; 1 when the kernel does not segment, or no longer.
    pub fn segments(&self) -> usize {
        usize::from(self.segments.get())
    }

    /// Whether one buffer may receive a train of datagrams.
    pub fn receives_trains(&self) -> bool {
        self.gro
    }

    /// Gives up offload in both directions, for tests and by configuration.
    pub fn without_offload(mut self) -> Self {
        let _ = set(&self.fd, libc::SOL_UDP, libc::UDP_GRO, &0);
        self.gro = false;
        self.segments.set(1);
        self
    }

    /// Datagrams are never fragmented, nor bounded by what is known of the path: for those who look for the largest
    /// that passes (QUIC).
    pub fn probe_path(&self) -> io::Result<()> {
        if self.address.is_ipv6() {
            set(&self.fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &libc::IPV6_PMTUDISC_PROBE)?;
        }
        let v4 = set(&self.fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_PROBE);
        if self.address.is_ipv4() { v4 } else { Ok(()) }
    }

    /// Chooses among the sockets that share the address by a classic BPF program over the datagram: its result is the
    /// socket's number in the order of binding; one beyond the last leaves it to the kernel's hash. Set on one of them.
    pub fn steer(&self, program: &[Instruction]) -> io::Result<()> {
        let mut code: Vec<libc::sock_filter> =
            program.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
        let len = u16::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let fprog = libc::sock_fprog { len, filter: code.as_mut_ptr() };
        set(&self.fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &fprog)
    }

    /// Sends one message.
    pub fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.send_batch(std::slice::from_ref(transmit)).map(|_| ())
    }

    /// Sends messages in order and says how many have left. Fewer than given: the next one would block or failed, and
    /// trying again says which. An error concerns the first one.
    pub fn send_batch(&self, transmits: &[Transmit<'_>]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < transmits.len() {
            let some = &transmits[sent..];
            match self.send_some(&some[..some.len().min(MAX_BATCH)]) {
                Ok(n) => {
                    if some[..n].iter().any(Transmit::segmented) {
                        self.refused.set(0);
                    }
                    sent += n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if some[0].segmented() && offload_refused(&e) => match self.send_singly(&some[0]) {
                    Ok(()) => {
                        // It went singly, so what the kernel refused was the segmentation: for good, or only of
                        // pieces that the route takes as fragments alone.
                        if some[0].segment <= EVERYWHERE {
                            self.refused.set(self.refused.get() + 1);
                        }
                        if self.refused.get() >= WAIT_LIMIT || e.raw_os_error() == Some(libc::EIO) {
                            self.segments.set(1);
                        }
                        sent += 1;
                    }
                    Err(e) => return if sent > 0 { Ok(sent) } else { Err(e) },
                },
                Err(e) => return if sent > 0 { Ok(sent) } else { Err(e) },
            }
        }
        Ok(sent)
    }

    /// Sends a segmented message's datagrams one by one. What would block is lost, as on a full link: half a message
    /// can't be taken back, and is not sent twice.
    fn send_singly(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut first = true;
        for piece in transmit.data.chunks(transmit.segment) {
            let single = Transmit { segment: 0, data: piece, ..*transmit };
            match self.send_some(&[single]) {
                Ok(_) => {}
                Err(e) if first => return Err(e),
                Err(_) => {}
            }
            first = false;
        }
        Ok(())
    }

    fn send_some(&self, transmits: &[Transmit<'_>]) -> io::Result<usize> {
        let gso = self.segments.get() > 1;
        if !gso && transmits[0].segmented() {
            return self.send_singly(&transmits[0]).map(|()| 1);
        }
        // Segmented ones that follow wait for their own turn when segmentation is off.
        let count = if gso {
            transmits.len()
        } else {
            transmits.iter().position(Transmit::segmented).unwrap_or(transmits.len())
        };
        let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; MAX_BATCH];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; MAX_BATCH];
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_BATCH];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BATCH];
        for (i, t) in transmits[..count].iter().enumerate() {
            let name_len = encode_address(&mut names[i], t.remote, self.address.is_ipv6());
            // The kernel only reads through these pointers.
            let iov = pieces[i].write(libc::iovec { iov_base: t.data.as_ptr() as *mut _, iov_len: t.data.len() });
            let control = controls[i].write(Control::new());
            if t.segmented() {
                control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &(t.segment as u16));
            }
            let v4 = t.remote.ip().to_canonical().is_ipv4();
            if t.ecn != 0 {
                let (level, kind) =
                    if v4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
                control.push(level, kind, &libc::c_int::from(t.ecn));
            }
            match t.local.map(|ip| ip.to_canonical()) {
                Some(IpAddr::V4(ip)) if v4 => {
                    let spec = libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
                    let any = libc::in_addr { s_addr: 0 };
                    let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: spec, ipi_addr: any };
                    control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                }
                Some(IpAddr::V6(ip)) if !v4 => {
                    let address = libc::in6_addr { s6_addr: ip.octets() };
                    let info = libc::in6_pktinfo { ipi6_addr: address, ipi6_ifindex: 0 };
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
                }
                _ => {}
            }
            // SAFETY: all zeroes is a valid msghdr: null pointers with zero lengths.
            let mut header: libc::msghdr = unsafe { zeroed() };
            if !self.connected {
                header.msg_name = names[i].as_mut_ptr().cast();
                header.msg_namelen = name_len;
            }
            header.msg_iov = iov;
            header.msg_iovlen = 1;
            if control.len() > 0 {
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = control.len();
            }
            messages[i].write(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
        }
        // SAFETY: the first `count` messages are initialised, and what they point to (names, pieces, controls, the
        // callers' bytes) outlives the call.
        let n = unsafe {
            libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), count as u32, libc::MSG_NOSIGNAL)
        };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }

    /// Receives what is there into the batch, replacing what it held. `WouldBlock` when there is nothing.
    ///
    /// The kernel is offered some of the buffers, and the rest when it has filled these: making all of them ready would
    /// cost a lone datagram more than its parsing. It is offered more next time once it has filled them, and fewer when
    /// it has left most of them empty again and again.
    pub fn receive(&self, batch: &mut Batch) -> io::Result<usize> {
        let all = batch.places.len();
        let offered = batch.offered.min(all);
        batch.filled = 0;
        let mut filled = self.receive_into(batch, 0..offered)?;
        if filled == offered {
            if offered < all {
                // An error now is that there is nothing more, or one that the caller would meet next.
                filled += self.receive_into(batch, offered..all).unwrap_or(0);
            }
            batch.offered = (2 * filled).min(all);
            batch.sparse = 0;
        } else if filled > offered / 4 {
            batch.sparse = 0;
        } else {
            batch.sparse += 1;
            if batch.sparse == SPARSE {
                batch.offered = (offered / 2).max(OFFERED);
                batch.sparse = 0;
            }
        }
        batch.filled = filled;
        Ok(filled)
    }

    /// Receives into some of the batch's buffers and says how many were filled.
    fn receive_into(&self, batch: &mut Batch, which: Range<usize>) -> io::Result<usize> {
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_BATCH];
        let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_BATCH];
        let Batch { bytes, each, stride, places, .. } = batch;
        let bytes = &mut bytes[which.start * *stride..which.end * *stride];
        let places = &mut places[which];
        let count = places.len();
        for (i, (buffer, place)) in bytes.chunks_mut(*stride).zip(places.iter_mut()).enumerate() {
            let iov = pieces[i].write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: *each });
            // SAFETY: all zeroes is a valid msghdr: null pointers with zero lengths.
            let mut header: libc::msghdr = unsafe { zeroed() };
            header.msg_name = (&raw mut place.name).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
            header.msg_iov = iov;
            header.msg_iovlen = 1;
            header.msg_control = place.control.as_mut_ptr().cast();
            header.msg_controllen = Control::room();
            messages[i].write(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
        }
        loop {
            // SAFETY: the first `count` messages are initialised. They point to `pieces`, and to buffers and places of the
            // batch, which is borrowed exclusively for as long as the kernel writes there; nothing of it moves meanwhile.
            let n = unsafe {
                let messages = messages.as_mut_ptr().cast();
                libc::recvmmsg(self.fd.as_raw_fd(), messages, count as u32, libc::MSG_DONTWAIT, std::ptr::null_mut())
            };
            if n >= 0 {
                let n = n as usize;
                for (message, place) in messages.iter().zip(places.iter_mut()).take(n) {
                    // SAFETY: initialised above, as all of the first `count` are.
                    let libc::mmsghdr { msg_hdr: header, msg_len } = unsafe { message.assume_init_ref() };
                    place.len = *msg_len as usize;
                    place.flags = header.msg_flags;
                    place.control_len = header.msg_controllen;
                }
                return Ok(n);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.fd
    }
}

/// One instruction of classic BPF: code, jump if true, jump if false, operand.
pub type Instruction = (u16, u8, u8, u32);

/// What came with a buffer's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// The sender; IPv4 as IPv4, also on a dual-stack socket.
    pub remote: SocketAddr,
    /// The address it was sent to.
    pub local: Option<IpAddr>,
    /// Length of each datagram in the buffer; the last may be shorter. Never 0.
    pub segment: usize,
    /// Bytes in the buffer.
    pub len: usize,
    /// ECN bits, where asked for.
    pub ecn: u8,
    /// The datagram was longer than the buffer: its end is missing.
    pub truncated: bool,
}

/// Buffers for one call's worth of datagrams, made once and used again. It holds no pointers: [`Socket::receive`] makes
/// those that the kernel needs for each call, so a batch may move between calls.
pub struct Batch {
    bytes: Box<[u8]>,
    each: usize,
    stride: usize,
    places: Box<[Place]>,
    filled: usize,
    /// How many buffers the kernel is offered at first.
    offered: usize,
    /// How often in a row it left most of them empty.
    sparse: u8,
}

/// What the kernel says of one buffer.
struct Place {
    name: libc::sockaddr_storage,
    control: Control,
    /// Bytes of control messages.
    control_len: usize,
    /// Bytes in the buffer.
    len: usize,
    flags: libc::c_int,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("messages", &self.places.len()).field("each", &self.each).finish()
    }
}

impl Batch {
    /// `messages` buffers, at most [`MAX_BATCH`], of `each` bytes: 65,535 to take trains.
    pub fn new(messages: usize, each: usize) -> Self {
        let messages = messages.clamp(1, MAX_BATCH);
        let each = each.max(1);
        let stride = stride(each);
        let place = || Place {
            // SAFETY: all zeroes is a valid sockaddr_storage of no family.
            name: unsafe { zeroed() },
            control: Control::new(),
            control_len: 0,
            len: 0,
            flags: 0,
        };
        let bytes = vec![0u8; messages * stride].into_boxed_slice();
        Self {
            bytes,
            each,
            stride,
            places: (0..messages).map(|_| place()).collect(),
            filled: 0,
            offered: OFFERED,
            sparse: 0,
        }
    }

    /// How many buffers were filled.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// None was.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The filled buffers, each with what came with it.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Meta, &mut [u8])> {
        let each = self.each;
        let places = self.places.iter().take(self.filled);
        self.bytes.chunks_mut(self.stride).zip(places).filter_map(move |(buffer, place)| {
            let meta = meta(place, each)?;
            Some((meta, &mut buffer[..meta.len]))
        })
    }
}

/// Bytes from one buffer's beginning to the next one's. Large buffers are mostly filled at their beginnings only; were
/// those a power of two apart, all of them would have to share a few sets of every cache.
const fn stride(each: usize) -> usize {
    const LINE: usize = 64;
    if each < 4096 { each } else { each.next_multiple_of(4096) + 33 * LINE }
}

fn meta(place: &Place, room: usize) -> Option<Meta> {
    let remote = decode_address(&place.name)?;
    let len = place.len.min(room);
    let truncated = place.flags & libc::MSG_TRUNC != 0;
    let mut meta = Meta { remote, local: None, segment: len.max(1), len, ecn: 0, truncated };
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    // The control messages are only read through this.
    message.msg_control = place.control.as_ptr().cast_mut().cast();
    message.msg_controllen = place.control_len.min(Control::room());
    // SAFETY: pointer and length describe initialised memory of the place, which is borrowed.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: not null, so CMSG_FIRSTHDR or CMSG_NXTHDR found a whole header inside the control bytes.
        let header = unsafe { *next };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                if let Some(n) = take::<libc::c_int>(next, &header) {
                    meta.segment = usize::try_from(n).ok().filter(|n| *n > 0).unwrap_or(meta.segment);
                }
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(info) = take::<libc::in_pktinfo>(next, &header) {
                    meta.local = Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()));
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(info) = take::<libc::in6_pktinfo>(next, &header) {
                    meta.local = Some(IpAddr::from(info.ipi6_addr.s6_addr).to_canonical());
                }
            }
            // One byte where the kernel speaks of IPv4, an integer where of IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS) => meta.ecn = take::<u8>(next, &header).unwrap_or(0) & 3,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                meta.ecn = (take::<libc::c_int>(next, &header).unwrap_or(0) & 3) as u8;
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR; `next` is a header inside this message's control bytes.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Some(meta)
}

/// Whether a segmented message was refused for its segmentation: no checksum offload (EIO), or a segment that the
/// route does not take whole (EINVAL, EMSGSIZE).
fn offload_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE))
}

/// Writes an address as the kernel wants it; IPv4 as mapped on an IPv6 socket. Returns its length.
fn encode_address(to: &mut MaybeUninit<libc::sockaddr_storage>, address: SocketAddr, v6: bool) -> u32 {
    let address = match address {
        SocketAddr::V4(a) if v6 => SocketAddr::V6(SocketAddrV6::new(a.ip().to_ipv6_mapped(), a.port(), 0, 0)),
        other => other,
    };
    match address {
        SocketAddr::V4(a) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room and alignment for every socket address.
            unsafe { to.as_mut_ptr().cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>() as u32
        }
        SocketAddr::V6(a) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.as_mut_ptr().cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>() as u32
        }
    }
}

fn decode_address(from: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(from.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is, and the storage is larger and no less aligned.
            let raw = unsafe { *std::ptr::from_ref(from).cast::<libc::sockaddr_in>() };
            let ip = raw.sin_addr.s_addr.to_ne_bytes().into();
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { *std::ptr::from_ref(from).cast::<libc::sockaddr_in6>() };
            let (ip, port) = (Ipv6Addr::from(raw.sin6_addr.s6_addr), u16::from_be(raw.sin6_port));
            Some(match ip.to_ipv4_mapped() {
                Some(ip) => SocketAddrV4::new(ip, port).into(),
                None => SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into(),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "udp_tests.rs"]
mod tests;
