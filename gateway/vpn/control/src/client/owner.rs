//! What this process leaves in the system bears its number, and whether the process of a number still runs is known by an abstract
//! Unix socket: it disappears with the process, and belongs to the network namespace as routes do. Files may be seen by several
//! namespaces, in which the sockets of the others are not seen. So a part of the number comes from the namespace.

use crate::session::random;
use anyhow::{Context as _, Result};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The upper half of the numbers.
const FIRST: u32 = 0x5ea1_0000;
/// How many numbers are tried.
const TRIES: u32 = 64;

/// The number of this process, which is its own as long as this value lives.
#[derive(Debug)]
pub(super) struct Owner {
    pub mark: u32,
    _socket: UnixDatagram,
}

impl Owner {
    pub fn new() -> Result<Self> {
        for _ in 0..TRIES {
            let [byte] = random()?;
            let mark = first() | u32::from(byte);
            match bind(mark) {
                Ok(socket) => return Ok(Self { mark, _socket: socket }),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(e).context("cannot open an abstract Unix socket"),
            }
        }
        anyhow::bail!("too many clients run in this network namespace")
    }
}

/// Whether a number was left by a process of this network namespace that has ended.
pub(super) fn is_abandoned(mark: u32) -> bool {
    mark & 0xffff_ff00 == first() && bind(mark).is_ok()
}

/// The first number of this network namespace.
fn first() -> u32 {
    let inode = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |about| about.ino());
    FIRST | (inode as u32 & 0xff) << 8
}

fn bind(mark: u32) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(format!("sealane-client-{mark:08x}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_abandoned_once_its_owner_has_ended() {
        let owner = Owner::new().expect("a socket");
        let mark = owner.mark;
        assert!(!is_abandoned(mark));
        assert_ne!(Owner::new().expect("another").mark, mark);
        drop(owner);
        assert!(is_abandoned(mark));
        assert!(!is_abandoned(100), "a metric of somebody else");
    }
}
