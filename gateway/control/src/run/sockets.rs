//! Opens listening sockets, one per (address, lane slot).
//!
//! They share a port by SO_REUSEPORT, and the kernel spreads connections over them. Closing one resets what waits in
//! its queue, so control keeps them all for as long as the address is configured.

use crate::config::UnixSocket;
use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use sealane_sys::steer::{self, Steering};
use sealane_sys::udp;
use sealane_sys::unix_socket::{self, Occupied, SocketFile};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Connections that wait to be accepted, per socket (the kernel caps it by net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// The sockets of one address.
#[derive(Clone, Debug)]
pub struct Opened {
    /// As bound: the port is never 0.
    pub address: SocketAddr,
    /// One per lane slot.
    pub sockets: Vec<Arc<OwnedFd>>,
}

/// Why an address cannot be listened on. Displays in one line, with what to do.
#[derive(Debug)]
pub struct SocketError {
    /// What was asked for.
    pub address: SocketAddr,
    /// What the system said.
    pub errno: Errno,
    /// The program that has the port, when it could be found.
    pub holder: Option<String>,
    /// It was asked for over UDP.
    pub udp: bool,
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: ", self.address)?;
        match self.errno {
            Errno::ADDRINUSE => {
                let port = self.address.port();
                let (kind, flags) = if self.udp { ("UDP port", "-lunp") } else { ("port", "-ltnp") };
                match &self.holder {
                    Some(holder) => write!(f, "{kind} {port} is taken by {holder}; stop it or choose another port"),
                    None => write!(
                        f,
                        "{kind} {port} is taken by another program; `sudo ss {flags} 'sport = :{port}'` shows which"
                    ),
                }
            }
            Errno::ACCESS | Errno::PERM if self.address.port() >= 1024 => write!(
                f,
                "permission denied: a security policy of this machine (for example SELinux, the sandbox of the service, or \
                 net.ipv4.ip_unprivileged_port_start above this port) does not allow this port"
            ),
            Errno::ACCESS | Errno::PERM => {
                let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("sealane"));
                write!(
                    f,
                    "permission denied: ports below 1024 need root or CAP_NET_BIND_SERVICE: \
                     `sudo setcap cap_net_bind_service=+ep {}`",
                    sealane_config::shell_word(program.display())
                )
            }
            Errno::ADDRNOTAVAIL => {
                write!(f, "{} is not an address of this machine (`ip addr` lists them)", self.address.ip())
            }
            Errno::AFNOSUPPORT => write!(f, "this machine has no IPv6"),
            Errno::MFILE | Errno::NFILE => write!(
                f,
                "too many open files: raise LimitNOFILE= in the systemd unit, or the hard limit of the shell (`ulimit -Hn`; only root \
                 can raise it)"
            ),
            e => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for SocketError {}

/// Opens the sockets of an address. With port 0, all get the same free one.
///
/// Errors: see [`SocketError`]; nothing is left open then.
pub fn open(address: SocketAddr, slots: usize) -> Result<Opened, SocketError> {
    let fail = |errno| SocketError {
        address,
        errno,
        holder: (errno == Errno::ADDRINUSE).then(|| holder_of(address, false)).flatten(),
        udp: false,
    };
    // Another gateway of ours would share the port with us without an error, and its connections. So ask first for the
    // port alone.
    let alone = bound(address, false).and_then(|socket| local_address(&socket)).map_err(fail)?;
    let mut sockets = Vec::with_capacity(slots);
    for _ in 0..slots.max(1) {
        let socket = bound(alone, true).map_err(fail)?;
        net::listen(&socket, BACKLOG).map_err(fail)?;
        sockets.push(Arc::new(socket));
    }
    Ok(Opened { address: alone, sockets })
}

/// Puts a Unix socket at its path, and says what its file is. All slots share it: the kernel does not spread connections over
/// several.
///
/// Errors: another program listens there, there is a file that is no socket, or the folder cannot be written.
pub fn open_unix(wanted: &UnixSocket) -> anyhow::Result<(Arc<OwnedFd>, SocketFile)> {
    let shown = wanted.path.display();
    match unix_socket::occupied(&wanted.path) {
        Some(Occupied::ByProgram) => {
            bail!("cannot listen on {wanted}: another program listens there; stop it or choose another path")
        }
        Some(Occupied::ByFile) => {
            bail!("cannot listen on {wanted}: {shown} exists, but is not a socket; remove it or choose another path")
        }
        None => {}
    }
    let opened = unix_socket::replace(&wanted.path, wanted.rights, BACKLOG);
    let (socket, file) = opened.with_context(|| {
        format!("cannot listen on {wanted} (the gateway must be able to write the folder, and to give the file to socket_owner and socket_group)")
    })?;
    Ok((Arc::new(socket), file))
}

/// Adds sockets to some that were opened by somebody else, so that there is one for each slot. Where the system allows
/// no further ones on the port (they were opened by another user, or without SO_REUSEPORT), slots share those there are.
pub fn complete(opened: Opened, slots: usize) -> Opened {
    let Opened { address, mut sockets } = opened;
    let given = sockets.len();
    while sockets.len() < slots {
        let shared = sockets[sockets.len() % given].clone();
        let own = sockopt::socket_reuseport(&shared).is_ok_and(|shares| shares).then(|| {
            let socket = bound(address, true)?;
            net::listen(&socket, BACKLOG)?;
            Ok::<_, Errno>(Arc::new(socket))
        });
        sockets.push(own.and_then(Result::ok).unwrap_or(shared));
    }
    Opened { address, sockets }
}

/// The UDP sockets of an address, for QUIC.
#[derive(Debug)]
pub struct OpenedUdp {
    /// One per lane slot.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// Takes each datagram to the lane of its connection; `None` where the system does not allow it: lanes forward.
    pub steering: Option<Steering>,
}

/// Opens the UDP sockets of an address whose port is known.
///
/// Errors: see [`SocketError`]; nothing is left open then.
pub fn open_udp(address: SocketAddr, slots: usize) -> Result<OpenedUdp, SocketError> {
    let (_, sockets) = bind_all_udp(address, slots).map_err(|e| udp_error(address, &e))?;
    let steering = steer::attach(&sockets).ok();
    Ok(OpenedUdp { sockets, steering })
}

/// Opens the UDP sockets of a listener that relays datagrams. The kernel chooses among them by the addresses and ports of a
/// datagram, so that all datagrams of a client come to the same lane. With port 0, all get the same free one.
///
/// Errors: see [`SocketError`]; nothing is left open then.
pub fn open_relay(address: SocketAddr, slots: usize) -> Result<(SocketAddr, Vec<Arc<OwnedFd>>), SocketError> {
    bind_all_udp(address, slots).map_err(|e| udp_error(address, &e))
}

/// Adds sockets to a predecessor's, so that there is one for each slot. Where the system allows no further ones on the port,
/// slots share those there are.
pub fn complete_relay(address: SocketAddr, mut sockets: Vec<Arc<OwnedFd>>, slots: usize) -> Vec<Arc<OwnedFd>> {
    let given = sockets.len();
    while sockets.len() < slots {
        let shared = sockets[sockets.len() % given].clone();
        sockets.push(bound_udp(address).unwrap_or(shared));
    }
    sockets
}

/// Binds a UDP socket for each slot, and returns the address as bound.
fn bind_all_udp(address: SocketAddr, slots: usize) -> std::io::Result<(SocketAddr, Vec<Arc<OwnedFd>>)> {
    // Ask for the port alone first, as for TCP.
    let bound = udp::Socket::bind(address, &udp::Options::default())?.address();
    let sockets = (0..slots.max(1)).map(|_| bound_udp(bound));
    Ok((bound, sockets.collect::<std::io::Result<_>>()?))
}

fn udp_error(address: SocketAddr, e: &std::io::Error) -> SocketError {
    let errno = Errno::from_io_error(e).unwrap_or(Errno::INVAL);
    let holder = (errno == Errno::ADDRINUSE).then(|| holder_of(address, true)).flatten();
    SocketError { address, errno, holder, udp: true }
}

/// Adds sockets to a predecessor's, so that there is one for each slot. The predecessor's steering stays with its
/// sockets, and does for us, too; for more of them another is tried. Where the system allows no further sockets on the
/// port, slots share those there are, and lanes pass on what is another's.
pub fn complete_udp(address: SocketAddr, sockets: Vec<Arc<OwnedFd>>, slots: usize) -> OpenedUdp {
    let given = sockets.len();
    let sockets = complete_relay(address, sockets, slots);
    let steering = (sockets.len() > given).then(|| steer::attach(&sockets).ok()).flatten();
    OpenedUdp { sockets, steering }
}

fn bound_udp(address: SocketAddr) -> std::io::Result<Arc<OwnedFd>> {
    let options = udp::Options { reuse_port: true, ..udp::Options::default() };
    Ok(Arc::new(OwnedFd::from(udp::Socket::bind(address, &options)?)))
}

/// The first free port from the one given on, of the next hundred; the given one only if it is free.
pub fn next_free(address: SocketAddr) -> Result<SocketAddr, SocketError> {
    let mut last = Errno::ADDRINUSE;
    for port in address.port()..=address.port().saturating_add(100) {
        let candidate = SocketAddr::new(address.ip(), port);
        match bound(candidate, false) {
            Ok(_) => return Ok(candidate),
            Err(Errno::ADDRINUSE) => {}
            Err(e) => {
                last = e;
                break;
            }
        }
    }
    Err(SocketError { address, errno: last, holder: None, udp: false })
}

/// Whether this machine has an address at all, even if another process has the port.
pub fn has_address(address: SocketAddr) -> Result<(), SocketError> {
    match bound(SocketAddr::new(address.ip(), 0), false) {
        Err(errno @ (Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL)) => {
            Err(SocketError { address, errno, holder: None, udp: false })
        }
        _ => Ok(()),
    }
}

/// [`has_address`], and no other process has the port. Whether this user may have it, a start as root need not care.
pub fn can_listen(address: SocketAddr) -> Result<(), SocketError> {
    has_address(address)?;
    match bound(address, false) {
        Err(errno @ Errno::ADDRINUSE) => {
            Err(SocketError { address, errno, holder: holder_of(address, false), udp: false })
        }
        _ => Ok(()),
    }
}

/// Raises the soft limit of open files to the hard one, and returns it. A connection needs a descriptor, proxied two.
pub fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    // Refused, or there already: what counts is the limit afterwards.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn bound(address: SocketAddr, share: bool) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, Some(net::ipproto::TCP))?;
    // Connections of a process before us that wait out their end do not hold the port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, share)?;
    if address.is_ipv6() {
        // [::] and 0.0.0.0 are two listeners.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    Ok(socket)
}

fn local_address(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    SocketAddr::try_from(net::getsockname(socket)?)
}

/// The program that listens on a port: `nginx (pid 812)`. Other users' programs are found by root only.
fn holder_of(address: SocketAddr, udp: bool) -> Option<String> {
    // UDP sockets that are not connected are in a state of TCP's, too: closed.
    let (protocol, state) = if udp { ("udp", "07") } else { ("tcp", "0A") };
    let family = if address.is_ipv4() { "" } else { "6" };
    let table = std::fs::read_to_string(format!("/proc/net/{protocol}{family}")).ok()?;
    let inode = table.lines().skip(1).find_map(|line| listening_inode(line, address.port(), state))?;
    let wanted = format!("socket:[{inode}]");
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|s| s.parse::<u32>().ok()) else { continue };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten() {
            if std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str()) {
                let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some(format!("{} (pid {pid})", name.trim()));
            }
        }
    }
    None
}

/// A line of `/proc/net/tcp` or `udp`: slot, local address, remote address, state (0A: listening), …, inode as the tenth.
fn listening_inode(line: &str, port: u16, state: &str) -> Option<u64> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
    if *fields.get(3)? != state || u16::from_str_radix(local_port, 16).ok()? != port {
        return None;
    }
    fields.get(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn slots_share_one_port() {
        let opened = open(loopback(0), 3).unwrap();
        assert_ne!(opened.address.port(), 0);
        assert_eq!(opened.sockets.len(), 3);
        for socket in &opened.sockets {
            assert_eq!(local_address(socket).unwrap(), opened.address);
            assert!(sockopt::socket_reuseport(socket).unwrap());
        }
        std::net::TcpStream::connect(opened.address).unwrap();
    }

    #[test]
    fn sockets_of_others_are_completed_or_shared() {
        let two = open(loopback(0), 2).unwrap();
        let four = complete(two.clone(), 4);
        let mut all: Vec<*const OwnedFd> = four.sockets.iter().map(Arc::as_ptr).collect();
        all.sort();
        all.dedup();
        assert_eq!((four.address, all.len()), (two.address, 4));
        assert_eq!(complete(two, 1).sockets.len(), 2, "none may close");
        let alone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = alone.local_addr().unwrap();
        let shared = complete(Opened { address, sockets: vec![Arc::new(alone.into())] }, 3);
        assert!(shared.sockets.iter().all(|s| Arc::ptr_eq(s, &shared.sockets[0])));
    }

    #[test]
    fn only_low_ports_need_a_capability() {
        let text = |port: u16| {
            SocketError { address: loopback(port), errno: Errno::ACCESS, holder: None, udp: false }.to_string()
        };
        assert!(text(443).contains("ports below 1024 need root or CAP_NET_BIND_SERVICE"), "{}", text(443));
        assert!(
            text(8443).contains("a security policy of this machine") && !text(8443).contains("1024"),
            "{}",
            text(8443)
        );
    }

    #[test]
    fn a_second_gateway_is_told_who_has_the_port() {
        let first = open(loopback(0), 2).unwrap();
        let e = open(first.address, 2).unwrap_err();
        assert_eq!(e.errno, Errno::ADDRINUSE);
        let me = format!("(pid {})", std::process::id());
        assert!(e.holder.as_ref().is_some_and(|h| h.ends_with(&me)), "{e}");
        let text = e.to_string();
        assert!(text.contains(&format!("port {} is taken by", first.address.port())) && !text.contains('\n'), "{text}");
    }

    #[test]
    fn who_has_a_udp_port_is_told_as_well() {
        let first = open_udp("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let address = SocketAddr::try_from(net::getsockname(&*first.sockets[0]).unwrap()).unwrap();
        let text = open_udp(address, 1).unwrap_err().to_string();
        assert!(text.contains(&format!("UDP port {} is taken by", address.port())), "{text}");
        assert!(text.contains(&format!("(pid {})", std::process::id())), "{text}");
    }

    #[test]
    fn the_next_port_is_taken_instead() {
        let first = open(loopback(0), 1).unwrap();
        let free = next_free(first.address).unwrap();
        assert!(free.port() > first.address.port());
        assert!(open(free, 1).is_ok());
    }

    #[test]
    fn foreign_addresses_are_named() {
        // TEST-NET-1 (RFC 5737) is nobody's.
        let e = open("192.0.2.1:1234".parse().unwrap(), 1).unwrap_err();
        assert!(e.to_string().contains("192.0.2.1 is not an address of this machine"), "{e}");
    }

    #[test]
    fn low_ports_tell_of_the_capability() {
        let e = SocketError { address: loopback(443), errno: Errno::ACCESS, holder: None, udp: false };
        let text = e.to_string();
        assert!(text.contains("sudo setcap cap_net_bind_service=+ep /"), "{text}");
    }

    #[test]
    fn both_families_can_have_the_same_port() {
        let v4 = open("0.0.0.0:0".parse().unwrap(), 1).unwrap();
        let v6: SocketAddr = format!("[::]:{}", v4.address.port()).parse().unwrap();
        match open(v6, 1) {
            Ok(opened) => assert!(sockopt::ipv6_v6only(&opened.sockets[0]).unwrap()),
            Err(e) => assert!(matches!(e.errno, Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL), "{e}"),
        }
    }
}
