//! TCP Fast Open (RFC 7413): data in a SYN, from both sides, and what the kernel says of a connection.

use crate::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Bytes of a cookie key.
pub const KEY: usize = 16;

/// Bits of `net.ipv4.tcp_fastopen`, which holds for IPv6 too.
const CLIENT_BIT: u32 = 1;
const SERVER_BIT: u32 = 2;

const SYSCTL: &str = "/proc/sys/net/ipv4/tcp_fastopen";

/// What the kernel lets this network namespace do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sysctl(u32);

impl Sysctl {
    /// Reads `net.ipv4.tcp_fastopen`. `None` where there is none.
    pub fn read() -> Option<Self> {
        std::fs::read_to_string(SYSCTL).ok()?.trim().parse().ok().map(Self)
    }

    /// These bits.
    pub const fn of(bits: u32) -> Self {
        Self(bits)
    }

    /// Data may be sent in a SYN.
    pub fn client(self) -> bool {
        self.0 & CLIENT_BIT != 0
    }

    /// Data in a SYN may be accepted.
    pub fn server(self) -> bool {
        self.0 & SERVER_BIT != 0
    }

    /// The command that also allows these sides.
    pub fn command(self, server: bool, client: bool) -> String {
        let bits = self.0 | if server { SERVER_BIT } else { 0 } | if client { CLIENT_BIT } else { 0 };
        format!("sudo sysctl -w net.ipv4.tcp_fastopen={bits}")
    }

    /// As the kernel has it.
    pub fn bits(self) -> u32 {
        self.0
    }
}

/// Whether data goes out in a SYN without the cookie of an earlier contact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cookie {
    /// RFC 7413: the first connection asks for a cookie, those after it embed.
    #[default]
    Ask,
    /// Embed from the first contact on. For servers that are known to accept it (`syn_tls = "open"`, nginx or HAProxy
    /// under `net.ipv4.tcp_fastopen` with 0x200); others do not take the data, which then follows as ever.
    None,
}

/// Accepts data in SYNs on a listening socket, from peers with a valid cookie. At most `queue` connections may wait for
/// the third step of their handshake; those beyond it are served in sequence. 0 switches it off.
pub fn accept_data(socket: impl AsFd, queue: u32) -> io::Result<()> {
    set(&socket, libc::TCP_FASTOPEN, &(queue.min(i32::MAX as u32) as libc::c_int))
}

/// Whether no cookie is asked for: on a listening socket, of first contacts; on a connecting one, data goes out without
/// one.
pub fn set_no_cookie(socket: impl AsFd, on: bool) -> io::Result<()> {
    set(&socket, libc::TCP_FASTOPEN_NO_COOKIE, &libc::c_int::from(on))
}

/// The first write on this socket goes out with the SYN: `connect` only notes the address where a cookie is known (or
/// none is needed), and asks for a cookie in an ordinary SYN otherwise.
pub fn connect_with_data(socket: impl AsFd) -> io::Result<()> {
    set(&socket, libc::TCP_FASTOPEN_CONNECT, &1)
}

/// Sets the keys from which a listening socket makes cookies; those of the older are still good.
pub fn set_keys(socket: impl AsFd, newest: &[u8; KEY], older: Option<&[u8; KEY]>) -> io::Result<()> {
    match older {
        None => set(&socket, libc::TCP_FASTOPEN_KEY, newest),
        Some(older) => set(&socket, libc::TCP_FASTOPEN_KEY, &[*newest, *older]),
    }
}

/// Marks what a socket sends, for the firewall's rules. Errors: `PermissionDenied` without CAP_NET_ADMIN.
pub fn set_mark(socket: impl AsFd, mark: u32) -> io::Result<()> {
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_MARK, &mark)
}

fn set<T>(socket: &impl AsFd, name: libc::c_int, value: &T) -> io::Result<()> {
    sockopt::set(socket.as_fd(), libc::IPPROTO_TCP, name, value)
}

/// States of a connection that matter here (include/net/tcp_states.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The handshake is over.
    Established,
    /// We have sent a SYN and wait.
    SynSent,
    /// We have answered a SYN; its sender is not proven to be where it says it is.
    SynReceived,
    /// All others: closing and closed.
    Other,
}

/// Why data did not go out with the SYN, or was not taken (`tcpi_fastopen_client_fail`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFailure {
    /// Nothing has failed.
    None,
    /// There was no cookie; one has been asked for.
    NoCookie,
    /// The SYN-ACK acknowledged the SYN alone: the server or the path took the data off.
    NotAcknowledged,
    /// The SYN had to be sent again, and that goes without data.
    Retransmitted,
}

/// What the kernel says of a connection (TCP_INFO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The connection's state.
    pub state: State,
    /// Data in the SYN was acknowledged by the SYN-ACK; or, on the accepting side, was taken.
    pub syn_data: bool,
    /// Why it was not.
    pub failure: ClientFailure,
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// Segments sent again.
    pub retransmitted: u32,
}

/// The first fields of `struct tcp_info`, which never change (linux/tcp.h).
const INFO: usize = 104;

/// Asks the kernel about a connection.
pub fn info(socket: impl AsFd) -> io::Result<Info> {
    let mut raw = [0; INFO];
    let n = sockopt::read_bytes(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut raw)?;
    if n < INFO {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(decode(&raw))
}

fn decode(raw: &[u8; INFO]) -> Info {
    // TCPI_OPT_SYN_DATA
    const SYN_DATA: u8 = 32;
    let word = |i: usize| u32::from_ne_bytes([raw[i], raw[i + 1], raw[i + 2], raw[i + 3]]);
    Info {
        state: match raw[0] {
            1 => State::Established,
            2 => State::SynSent,
            3 => State::SynReceived,
            _ => State::Other,
        },
        syn_data: raw[5] & SYN_DATA != 0,
        // A bit-field: delivery_rate_app_limited comes first.
        failure: match bit_field(raw[7]) {
            1 => ClientFailure::NoCookie,
            2 => ClientFailure::NotAcknowledged,
            3 => ClientFailure::Retransmitted,
            _ => ClientFailure::None,
        },
        rtt: Duration::from_micros(u64::from(word(68))),
        retransmitted: word(100),
    }
}

/// `tcpi_fastopen_client_fail`, two bits behind one; the compiler lays bit-fields out by byte order.
fn bit_field(byte: u8) -> u8 {
    if cfg!(target_endian = "little") { byte >> 1 & 3 } else { byte >> 5 & 3 }
}

/// The largest packet on the way to an address, as this machine knows it: the interface's MTU, or less where the path
/// has told so. Nothing is sent.
pub fn path_mtu(to: SocketAddr) -> io::Result<u32> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket: OwnedFd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &to)?;
    let (level, name) =
        if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mut raw = [0; 4];
    sockopt::read_bytes(socket.as_fd(), level, name, &mut raw)?;
    u32::try_from(i32::from_ne_bytes(raw)).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_described() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        for side in [&client, &server] {
            let i = info(side).unwrap();
            assert_eq!((i.state, i.syn_data, i.failure), (State::Established, false, ClientFailure::None));
            assert!(i.rtt < Duration::from_secs(1));
        }
    }

    #[test]
    fn the_options_are_known_to_this_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        accept_data(&listener, 16).unwrap();
        set_no_cookie(&listener, true).unwrap();
        set_keys(&listener, &[1; KEY], None).unwrap();
        set_keys(&listener, &[2; KEY], Some(&[1; KEY])).unwrap();
        accept_data(&listener, 0).unwrap();
    }

    #[test]
    fn loopback_has_its_large_packets() {
        assert!(path_mtu("127.0.0.1:443".parse().unwrap()).unwrap() > 1500);
    }

    #[test]
    fn the_sysctl_says_what_is_missing() {
        assert!(Sysctl(3).server() && Sysctl(3).client());
        assert!(!Sysctl(1).server());
        assert_eq!(Sysctl(1).command(true, false), "sudo sysctl -w net.ipv4.tcp_fastopen=3");
        assert_eq!(Sysctl(0).command(true, false), "sudo sysctl -w net.ipv4.tcp_fastopen=2");
    }

    #[test]
    fn failures_are_told_apart() {
        let mut raw = [0; INFO];
        raw[0] = 3;
        if cfg!(target_endian = "little") {
            raw[7] = 2 << 1 | 1;
            assert_eq!(
                (decode(&raw).state, decode(&raw).failure),
                (State::SynReceived, ClientFailure::NotAcknowledged)
            );
        }
    }
}
