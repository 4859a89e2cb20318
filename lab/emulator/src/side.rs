//! One end of a link: a network of its own.

use crate::link::LinkError;
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_sys::netns::NetNs;
use sealane_sys::tun::{Queue, Tun};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The interface's name, on both ends.
pub(crate) const DEVICE: &str = "link0";
/// Packets that may wait for the emulator; it reads them at once.
const QUEUE: u32 = 5000;

/// One end of a link.
#[derive(Debug)]
pub struct Side {
    ns: NetNs,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl Side {
    /// A namespace with a loopback that is up.
    pub(crate) fn new(v4: Ipv4Addr, v6: Ipv6Addr) -> Result<Self, LinkError> {
        let ns = NetNs::new().map_err(LinkError::Privileges)?;
        let up = ns.run(|| -> io::Result<()> {
            let mut netlink = Netlink::route()?;
            let loopback = netlink.link_index("lo")?;
            netlink.link_set(loopback, &LinkSet { up: Some(true), ..LinkSet::default() })?;
            // What one connection has learnt of the path must not change the next one's figures.
            let _ = write_sysctl("net.ipv4.tcp_no_metrics_save", "1");
            Ok(())
        });
        up.and_then(|up| up).map_err(LinkError::Device)?;
        Ok(Self { ns, v4, v6 })
    }

    /// One end of the link, up.
    pub(crate) fn tun(&self, mtu: u16) -> Result<Queue, LinkError> {
        // Without offload: packets come one by one and complete, as a wire would have them.
        let tun = self.run(|| Tun::open(DEVICE, 1, false)).and_then(|tun| tun).map_err(LinkError::Device)?;
        self.dress(mtu)?;
        let queue = tun.queues.into_iter().next();
        queue.ok_or_else(|| LinkError::Device(io::Error::other("a device without a queue")))
    }

    /// Gives the link's end its addresses, and takes it up.
    pub(crate) fn dress(&self, mtu: u16) -> Result<(), LinkError> {
        let dressed = self.run(|| -> io::Result<()> {
            let mut netlink = Netlink::route()?;
            let device = netlink.link_index(DEVICE)?;
            let up = LinkSet { up: Some(true), mtu: Some(mtu.into()), queue: Some(QUEUE), ..LinkSet::default() };
            netlink.link_set(device, &up)?;
            netlink.address_add(device, self.v4.into(), 24)?;
            // A kernel without IPv6 still has the rest.
            let _ = netlink.address_add(device, self.v6.into(), 64);
            Ok(())
        });
        dressed.and_then(|d| d).map_err(LinkError::Device)
    }

    /// Its IPv4 address.
    pub fn address(&self) -> Ipv4Addr {
        self.v4
    }

    /// Its IPv6 address.
    pub fn address6(&self) -> Ipv6Addr {
        self.v6
    }

    /// Does something on this side, on a thread of its own, and waits for it. Sockets opened there stay on this side.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> io::Result<R> {
        self.ns.run(work)
    }

    /// Moves the calling thread to this side, for as long as it lives.
    pub fn enter(&self) -> io::Result<()> {
        self.ns.enter()
    }

    /// Starts a program on this side.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.run(|| command.spawn())?
    }

    /// Sets a kernel setting of this side's network, e.g. `net.ipv4.tcp_fastopen`.
    pub fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        self.run(|| write_sysctl(name, value))?
    }

    /// Waits until somebody listens on this side, asking from this side, so that no packet crosses the link.
    pub fn wait_for_port(&self, address: SocketAddr, timeout: Duration) -> io::Result<()> {
        let start = Instant::now();
        self.run(|| {
            loop {
                match TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
                    Ok(s) => {
                        let _ = s.shutdown(Shutdown::Both);
                        return Ok(());
                    }
                    Err(e) if start.elapsed() > timeout => return Err(e),
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        })?
    }
}

fn write_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    std::fs::write(&path, value).map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))
}
