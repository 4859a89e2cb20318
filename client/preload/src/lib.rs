//! `LD_PRELOAD=libsealane_preload.so curl https://…`: programs that know nothing of it send their `ClientHello` in the SYN.
//!
//! The small second way beside `sealane client`. `connect()` to one of the ports in `SEALANE_PRELOAD_PORTS` (443 if it is
//! not set) first sets `TCP_FASTOPEN_CONNECT`: where a cookie is known, the call then returns at once and the program's
//! first write leaves with the SYN; else it is an ordinary `connect()` that asks for a cookie.
//! `SEALANE_PRELOAD_NO_COOKIE=1` needs none, for servers with `syn_tls = "open"`.
//!
//! What speaks on these ports must be TLS: the client speaks first in it, and a SYN that comes twice does no harm. There is
//! no hedge and no memory of paths that drop such SYNs; `sealane client` has both. Programs that are linked statically, or
//! make system calls by themselves, are out of reach.

use libc::{c_int, c_void, sa_family_t, sockaddr, socklen_t};
use std::mem::{offset_of, size_of};
use std::sync::OnceLock;

/// Most ports that are read from the environment.
const MAX_PORTS: usize = 64;

struct Settings {
    ports: Vec<u16>,
    no_cookie: bool,
}

fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let ports = std::env::var("SEALANE_PRELOAD_PORTS").unwrap_or_else(|_| "443".to_owned());
        Settings {
            ports: ports.split(',').filter_map(|p| p.trim().parse().ok()).take(MAX_PORTS).collect(),
            no_cookie: std::env::var_os("SEALANE_PRELOAD_NO_COOKIE").is_some_and(|v| v == "1"),
        }
    })
}

/// The port of an IPv4 or IPv6 address.
///
/// # Safety
///
/// `length` bytes can be read at `address`, or it is null.
unsafe fn port(address: *const sockaddr, length: socklen_t) -> Option<u16> {
    let length = length as usize;
    if address.is_null() || length < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: there are as many bytes as `sockaddr_in` has, by the check above; no alignment is assumed.
    let family = unsafe { address.cast::<sa_family_t>().read_unaligned() };
    let at = match c_int::from(family) {
        libc::AF_INET => offset_of!(libc::sockaddr_in, sin_port),
        libc::AF_INET6 => offset_of!(libc::sockaddr_in6, sin6_port),
        _ => return None,
    };
    // SAFETY: both offsets lie within `sockaddr_in`'s bytes.
    Some(u16::from_be(unsafe { address.cast::<u8>().add(at).cast::<u16>().read_unaligned() }))
}

fn set(fd: c_int, name: c_int) {
    let on: c_int = 1;
    // SAFETY: the pointer and the length describe `on`, which the kernel only reads. Where the descriptor is no TCP socket,
    // or the kernel does not allow it, the call fails and the connection is an ordinary one.
    unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            name,
            std::ptr::from_ref(&on).cast::<c_void>(),
            size_of::<c_int>() as socklen_t,
        )
    };
}

/// In place of the C library's.
///
/// # Safety
///
/// As for `connect(2)`: `length` bytes can be read at `address`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller promises what `port` asks for.
    let port = unsafe { port(address, length) };
    let settings = settings();
    if port.is_some_and(|p| settings.ports.contains(&p)) {
        set(fd, libc::TCP_FASTOPEN_CONNECT);
        if settings.no_cookie {
            set(fd, libc::TCP_FASTOPEN_NO_COOKIE);
        }
    }
    // SAFETY: the caller's own arguments; the system call checks them. It sets `errno` as the function does.
    unsafe { libc::syscall(libc::SYS_connect, fd, address, length) as c_int }
}
