//! Ports on the loopback for servers that cannot report which port the kernel gave them: NGINX, HAProxy, and a gateway
//! whose address stands in a configuration file.
//!
//! Binding port 0, closing the socket and passing the number on is a race: until the server binds the port, the kernel may
//! give it to an outgoing connection or to another test. So these ports lie below the range from which Linux takes ports
//! for outgoing connections (32,768 and up), and each process reserves a block of them with a lock on a file. The kernel
//! releases the lock when the process ends, however it ends.

use std::fs::{File, OpenOptions, Permissions, create_dir_all, set_permissions};
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The first port; NGINX, HAProxy and the usual services of a machine listen below.
const FIRST: u16 = 16_384;
/// Ports per block.
const BLOCK: u16 = 64;
/// Blocks; the last port is 32,383.
const BLOCKS: u16 = 250;
/// The lock files' folder, the same for all users and whatever `TMPDIR` says.
const FOLDER: &str = "/tmp/sealane-ports";

static RESERVED: Mutex<Reserved> = Mutex::new(Reserved { locks: Vec::new(), next: 0, end: 0 });

/// What this process has reserved.
struct Reserved {
    /// Open files, whose locks are held until the process ends.
    locks: Vec<File>,
    /// The next port of the newest block that was not given out.
    next: u16,
    end: u16,
}

/// Returns a port on which nobody listens, over TCP or UDP. No port is returned twice, neither to this process nor to
/// another one that runs at the same time.
pub fn reserve() -> io::Result<u16> {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        while reserved.next < reserved.end {
            let port = reserved.next;
            reserved.next += 1;
            if unused(port) {
                return Ok(port);
            }
        }
        let (lock, block) = reserve_block(Path::new(FOLDER))?;
        reserved.locks.push(lock);
        reserved.next = FIRST + block * BLOCK;
        reserved.end = reserved.next + BLOCK;
    }
}

/// Locks a block that no process holds.
fn reserve_block(folder: &Path) -> io::Result<(File, u16)> {
    create_dir_all(folder)?;
    // For all users; fails where another user has made the folder, who has done the same.
    let _ = set_permissions(folder, Permissions::from_mode(0o777));
    // Processes that start together do not compete for the same block.
    let start = (std::process::id().wrapping_mul(2_654_435_761) >> 8) % u32::from(BLOCKS);
    let mut refused = None;
    for offset in 0..u32::from(BLOCKS) {
        let block = ((start + offset) % u32::from(BLOCKS)) as u16;
        let path = folder.join((FIRST + block * BLOCK).to_string());
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o666).open(path);
        match file.map(|file| file.try_lock().map(|()| file)) {
            Ok(Ok(file)) => return Ok((file, block)),
            // Held by another process, or by this one.
            Ok(Err(_)) => {}
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| io::Error::other(format!("all ports from {FIRST} on are reserved"))))
}

/// Whether no service that knows nothing of the locks occupies the port.
fn unused(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_port_is_given_out_twice() {
        let count = usize::from(BLOCK) + 10;
        let ports: BTreeSet<u16> = (0..count).map(|_| reserve().unwrap()).collect();
        assert_eq!(ports.len(), count);
        assert!(ports.iter().all(|port| (FIRST..32_768).contains(port)), "{ports:?}");
    }

    #[test]
    fn a_block_has_one_holder_until_that_ends() {
        let folder = std::env::temp_dir().join(format!("sealane-ports-test-{}", std::process::id()));
        let held: Vec<(File, u16)> = (0..BLOCKS).map(|_| reserve_block(&folder).unwrap()).collect();
        let blocks: BTreeSet<u16> = held.iter().map(|(_, block)| *block).collect();
        assert_eq!(blocks.len(), usize::from(BLOCKS));
        assert!(reserve_block(&folder).is_err());
        drop(held);
        assert!(reserve_block(&folder).is_ok());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_port_that_a_service_occupies_is_passed_over() {
        let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!unused(service.local_addr().unwrap().port()));
    }
}
