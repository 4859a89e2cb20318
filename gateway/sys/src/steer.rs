//! Steering QUIC's datagrams to the socket of the lane that their connection id names: an eBPF program over a
//! REUSEPORT_SOCKARRAY, loaded by control before privileges are dropped.
//!
//! The array's index is the lane slot, even if other sockets are bound or closed in between: the numbers of a SO_REUSEPORT group, which a
//! classic program would have to use, shift when a socket closes. Datagrams that name no slot (a client's first ones)
//! are left to the kernel's hash of addresses. Where the system does not allow it ([`attach`] fails), lanes pass
//! datagrams on to each other.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Length of the connection ids that are steered by: generation (1), slot (2, big-endian), random (8), MAC (5). Generation
/// and slot are where they have always been: a program that a predecessor attached steers short headers all the same.
pub const CID_LEN: usize = 16;

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_MAP_TYPE_REUSEPORT_SOCKARRAY: u32 = 20;
const BPF_PROG_TYPE_SK_REUSEPORT: u32 = 21;
const BPF_PSEUDO_MAP_FD: u8 = 1;
const SKB_LOAD_BYTES: i32 = 26;
const SK_SELECT_REUSEPORT: i32 = 82;
const SK_PASS: i32 = 1;
const UDP_HEADER: i32 = 8;

/// Keeps program and array alive; the sockets of the group hold on to the program by themselves.
#[derive(Debug)]
pub struct Steering {
    map: OwnedFd,
    program: OwnedFd,
}

/// One instruction (Documentation/bpf/instruction-set.rst).
#[derive(Clone, Copy)]
#[repr(C)]
struct Insn {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn insn(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Insn {
    Insn { code, registers: src << 4 | dst, offset, immediate }
}

/// Loads the datagram's beginning to the stack, finds the connection id, selects by slot.
fn program(map: RawFd) -> [Insn; 29] {
    const MOV_REG: u8 = 0xbf;
    const MOV: u8 = 0xb7;
    const ADD: u8 = 0x07;
    const AND: u8 = 0x57;
    const SHIFT_LEFT: u8 = 0x67;
    const OR_REG: u8 = 0x4f;
    const LOAD_BYTE: u8 = 0x71;
    const STORE_WORD: u8 = 0x63;
    const JUMP_EQ: u8 = 0x15;
    const JUMP_NE: u8 = 0x55;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const LOAD_IMM64: u8 = 0x18;
    /// A long header up to the id, and what is read of the id: generation and slot.
    const LENGTH: i32 = 6 + 3;
    /// Where on the stack.
    const AT: i16 = -24;
    [
        // if load(context, UDP_HEADER, r10 + AT, LENGTH) != 0: pass
        insn(MOV_REG, 6, 1, 0, 0),
        insn(MOV, 2, 0, 0, UDP_HEADER),
        insn(MOV_REG, 3, 10, 0, 0),
        insn(ADD, 3, 0, 0, AT as i32),
        insn(MOV, 4, 0, 0, LENGTH),
        insn(CALL, 0, 0, 0, SKB_LOAD_BYTES),
        insn(JUMP_NE, 0, 0, 20, 0),
        // r7 + 1 = where the id begins; in a long header 5 bytes on, if the id there has our length. Without CAP_PERFMON, r7 may not
        // leave the stack.
        insn(MOV_REG, 7, 10, 0, 0),
        insn(ADD, 7, 0, 0, AT as i32),
        insn(LOAD_BYTE, 5, 10, AT, 0),
        insn(AND, 5, 0, 0, 0x80),
        insn(JUMP_EQ, 5, 0, 3, 0),
        insn(LOAD_BYTE, 5, 10, AT + 5, 0),
        insn(JUMP_NE, 5, 0, 13, CID_LEN as i32),
        insn(ADD, 7, 0, 0, 5),
        // *(r10 - 4) = slot
        insn(LOAD_BYTE, 5, 7, 2, 0),
        insn(SHIFT_LEFT, 5, 0, 0, 8),
        insn(LOAD_BYTE, 4, 7, 3, 0),
        insn(OR_REG, 5, 4, 0, 0),
        insn(STORE_WORD, 10, 5, -4, 0),
        // select(context, map, r10 - 4, 0); where there is no such socket the kernel's hash decides
        insn(MOV_REG, 1, 6, 0, 0),
        insn(LOAD_IMM64, 2, BPF_PSEUDO_MAP_FD, 0, map),
        insn(0, 0, 0, 0, 0),
        insn(MOV_REG, 3, 10, 0, 0),
        insn(ADD, 3, 0, 0, -4),
        insn(MOV, 4, 0, 0, 0),
        insn(CALL, 0, 0, 0, SK_SELECT_REUSEPORT),
        // pass:
        insn(MOV, 0, 0, 0, SK_PASS),
        insn(EXIT, 0, 0, 0, 0),
    ]
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapUpdate {
    map_fd: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// The system call. `attr` is the beginning of the kernel's union: what is not given is zero to it.
fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attr`, whose pointers (as numbers) are to memory that the
    // callers keep alive and that the kernel only reads.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// Steers a SO_REUSEPORT group: `sockets` by lane slot, all of them bound to the same address. The ids' generation does
/// not matter: a process that follows another serves the same sockets, and tells whose a datagram is by itself.
///
/// Errors: without CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN) `PermissionDenied`; lanes then forward.
pub fn attach<F: AsFd>(sockets: &[F]) -> io::Result<Steering> {
    let max_entries = u32::try_from(sockets.len()).unwrap_or(u32::MAX).max(1);
    let map = MapCreate { map_type: BPF_MAP_TYPE_REUSEPORT_SOCKARRAY, key_size: 4, value_size: 8, max_entries };
    let map = owned(bpf(BPF_MAP_CREATE, &map)?);
    let insns = program(map.as_raw_fd());
    let load = ProgramLoad {
        prog_type: BPF_PROG_TYPE_SK_REUSEPORT,
        insn_cnt: insns.len() as u32,
        insns: insns.as_ptr() as u64,
        license: c"MIT".as_ptr() as u64,
        ..ProgramLoad::default()
    };
    let program = owned(bpf(BPF_PROG_LOAD, &load)?);
    for (slot, socket) in sockets.iter().enumerate() {
        let (key, value) = (slot as u32, socket.as_fd().as_raw_fd() as u64);
        let update = MapUpdate {
            map_fd: map.as_raw_fd() as u32,
            key: std::ptr::from_ref(&key) as u64,
            value: std::ptr::from_ref(&value) as u64,
            ..MapUpdate::default()
        };
        bpf(BPF_MAP_UPDATE_ELEM, &update)?;
    }
    if let Some(socket) = sockets.first() {
        let fd = program.as_raw_fd();
        // SAFETY: the pointer and the length describe `fd`, which the kernel only reads.
        let result = unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_EBPF,
                std::ptr::from_ref(&fd).cast(),
                size_of::<RawFd>() as u32,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(Steering { map, program })
}

impl Steering {
    /// The descriptors, for a successor that serves the same sockets.
    pub fn descriptors(&self) -> (&OwnedFd, &OwnedFd) {
        (&self.map, &self.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    fn group(n: usize) -> Vec<UdpSocket> {
        let open = |address: std::net::SocketAddr| {
            let options = crate::udp::Options { reuse_port: true, ..Default::default() };
            let socket = UdpSocket::from(OwnedFd::from(crate::udp::Socket::bind(address, &options).unwrap()));
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket
        };
        let first = open("127.0.0.1:0".parse().unwrap());
        let address = first.local_addr().unwrap();
        std::iter::once(first).chain((1..n).map(|_| open(address))).collect()
    }

    /// The kernel is stricter with programs of those who may not look at kernel memory (CAP_PERFMON).
    #[test]
    fn two_capabilities_are_enough() {
        use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
        let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
        if !capabilities(None).is_ok_and(|c| c.effective.contains(needed)) {
            return println!("skipped: no CAP_BPF and CAP_NET_ADMIN here (needs CAP_BPF)");
        }
        let sockets = group(2);
        // A thread has capabilities of its own.
        let attached = std::thread::spawn(move || {
            let only = CapabilitySets { effective: needed, permitted: needed, inheritable: CapabilitySet::empty() };
            set_capabilities(None, only).unwrap();
            attach(&sockets).map(drop)
        });
        attached.join().unwrap().unwrap();
    }

    #[test]
    fn every_datagram_reaches_the_lane_that_its_id_names() {
        let sockets = group(4);
        let steering = match attach(&sockets) {
            Ok(steering) => steering,
            Err(e) => return println!("skipped: {e} (needs CAP_BPF)"),
        };
        let address = sockets[0].local_addr().unwrap();
        let mut buffer = [0; 100];
        for round in 0..10 {
            for slot in 0..4u8 {
                // A new address each time, as after a migration.
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                let id = [7, 0, slot, round, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
                let short = [&[0x40][..], &id, &[9; 20]].concat();
                let long = [&[0xe0, 0, 0, 0, 1, CID_LEN as u8][..], &id, &[9; 20]].concat();
                for datagram in [short, long] {
                    client.send_to(&datagram, address).unwrap();
                    let (n, _) = sockets[usize::from(slot)].recv_from(&mut buffer).unwrap();
                    assert_eq!(&buffer[..n], datagram);
                }
            }
        }
        // What names no lane still reaches somebody: foreign ids, slots that are not, short ones.
        for datagram in [
            &[0x40, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &[0xe0, 0, 0, 0, 1, 8, 7, 0, 0, 0, 0, 0, 0, 0],
            &[0x40, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x40],
            &[],
        ] {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.send_to(datagram, address).unwrap();
            for socket in &sockets {
                socket.set_nonblocking(true).unwrap();
            }
            let mut got = None;
            for _ in 0..500 {
                got = sockets.iter().find_map(|s| s.recv_from(&mut buffer).ok());
                if got.is_some() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(got.map(|(n, _)| n), Some(datagram.len()));
        }
        drop(steering);
    }
}
