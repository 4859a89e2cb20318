//! The network of one program: two namespaces, so that it can have the addresses of its configuration.
//!
//! ```text
//!   outside: clients 198.18.0.0/16,          inside: the program, with the addresses on which it listens
//!   back-ends with their own addresses  ─veth─  (any address: 203.0.113.10 and 2001:db8::10)
//!   DNS                                         back-ends at 127.0.0.1
//! ```
//!
//! Back-ends are outside, since a program that listens on port 80 of any address would take the port from a back-end at
//! `10.0.0.5:80` in the same namespace. Nothing else is reachable from either.

use anyhow::{Context, bail};
use sealane_lab_harness::process::{Launch, Running, tail};
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_sys::netns::NetNs;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a program may take to listen, also on a busy machine.
const START: Duration = Duration::from_secs(90);

/// The address of a program that listens on any address.
pub const ANY4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// The same for IPv6.
pub const ANY6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);
/// The first address that may be the outside's own, by which the program reaches all others.
const GATEWAY4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 11);
/// The same for IPv6.
const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x20);
/// Clients without an address of their own choice, and hosts with names, are in this network.
const OUTSIDE4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const OUTSIDE4_LENGTH: u8 = 15;

/// The client's address for the request with this number.
pub fn client(number: usize) -> IpAddr {
    let number = number % (250 * 250);
    Ipv4Addr::new(198, 18, (1 + number / 250) as u8, (1 + number % 250) as u8).into()
}

/// The address that a name has.
pub fn host(name: &str) -> Ipv4Addr {
    // FNV-1a: the same name has the same address beside both programs.
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b.to_ascii_lowercase())).wrapping_mul(16_777_619));
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 19, 0, 0)) | (hash % 0xfff0) | 1)
}

/// Makes a process without privileges able to make networks, by a user namespace of its own. Call it before there is a second
/// thread.
pub fn become_able() -> anyhow::Result<()> {
    sealane_sys::netns::become_root_of_a_user_namespace().context(REFUSED)
}

const REFUSED: &str = "cannot make a network namespace: run as root, or allow user namespaces for ordinary users";

/// Both namespaces.
#[derive(Debug)]
pub struct Network {
    inside: Arc<NetNs>,
    outside: NetNs,
    /// Whether this kernel has IPv6.
    pub has_v6: bool,
}

/// Addresses that somebody has.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// The program's.
    pub inside: BTreeSet<IpAddr>,
    /// Those of back-ends, DNS servers and clients.
    pub outside: BTreeSet<IpAddr>,
}

impl Addresses {
    /// The outside's own addresses: none that the configuration names.
    fn gateways(&self) -> (Ipv4Addr, Ipv6Addr) {
        let is_free = |address: IpAddr| !self.inside.contains(&address) && !self.outside.contains(&address);
        let v4 = (GATEWAY4.to_bits()..).map(Ipv4Addr::from_bits).find(|a| is_free((*a).into()));
        let v6 = (GATEWAY6.to_bits()..).map(Ipv6Addr::from_bits).find(|a| is_free((*a).into()));
        (v4.unwrap_or(GATEWAY4), v6.unwrap_or(GATEWAY6))
    }
}

impl Network {
    /// Makes it. Errors: this process may not make network namespaces.
    pub fn new(addresses: &Addresses) -> anyhow::Result<Self> {
        let (inside, outside) = (NetNs::new().context(REFUSED)?, NetNs::new().context(REFUSED)?);
        let has_v6 = std::path::Path::new("/proc/sys/net/ipv6").exists();
        let (within, without) = (split(&addresses.inside, has_v6), split(&addresses.outside, has_v6));
        let (gateway4, gateway6) = addresses.gateways();
        let make = || -> io::Result<()> {
            let mut netlink = Netlink::route()?;
            up(&mut netlink, "lo")?;
            netlink.veth_add("compare0", "compare1", &outside)?;
            let device = up(&mut netlink, "compare0")?;
            netlink.address_add(device, ANY4.into(), 32)?;
            if has_v6 {
                netlink.address_add(device, ANY6.into(), 128)?;
            }
            for address in &within {
                netlink.address_add(device, *address, whole(*address))?;
            }
            // Everything else is at the other end, behind one neighbour: the kernel keeps a thousand for all namespaces together.
            netlink.route_add(device, gateway4.into(), 32, None)?;
            netlink.route_add(device, Ipv4Addr::UNSPECIFIED.into(), 0, Some(gateway4.into()))?;
            if has_v6 {
                netlink.route_add(device, gateway6.into(), 128, None)?;
                netlink.route_add(device, Ipv6Addr::UNSPECIFIED.into(), 0, Some(gateway6.into()))?;
            }
            Ok(())
        };
        inside.run(make).and_then(|r| r).context("the program's network")?;
        let make = || -> io::Result<()> {
            let mut netlink = Netlink::route()?;
            let loopback = up(&mut netlink, "lo")?;
            // On the loopback a network's addresses are all one's own.
            netlink.address_add(loopback, OUTSIDE4.into(), OUTSIDE4_LENGTH)?;
            let device = up(&mut netlink, "compare1")?;
            for address in without.iter().filter(|a| !within.contains(a)) {
                netlink.address_add(device, *address, whole(*address))?;
            }
            netlink.address_add(device, gateway4.into(), 32)?;
            if has_v6 {
                netlink.address_add(device, gateway6.into(), 128)?;
                netlink.route_add(device, ANY6.into(), 128, None)?;
            }
            netlink.route_add(device, ANY4.into(), 32, None)?;
            for address in &within {
                netlink.route_add(device, *address, whole(*address), None)?;
            }
            Ok(())
        };
        outside.run(make).and_then(|r| r).context("the back-ends' network")?;
        Ok(Self { inside: Arc::new(inside), outside, has_v6 })
    }

    /// The namespace in which an address is.
    pub fn of(&self, address: IpAddr) -> &NetNs {
        if address.is_loopback() { &self.inside } else { &self.outside }
    }

    /// The namespace of clients and back-ends.
    pub fn outside(&self) -> &NetNs {
        &self.outside
    }

    /// The program's namespace.
    pub fn inside(&self) -> &NetNs {
        &self.inside
    }

    /// The namespace of a client: one with an address of the loopback is where the program is.
    fn of_client(&self, to: IpAddr, from: Option<IpAddr>) -> &NetNs {
        if from.as_ref().is_some_and(IpAddr::is_loopback) { &self.inside } else { self.of(to) }
    }

    /// Connects a client.
    pub fn connect(&self, to: SocketAddr, from: Option<IpAddr>, limit: Duration) -> io::Result<TcpStream> {
        let from = from.filter(|f| f.is_ipv4() == to.is_ipv4() && !to.ip().is_loopback());
        self.of_client(to.ip(), from).run(|| match from {
            None => TcpStream::connect_timeout(&to, limit),
            Some(from) => connect_from(from, to, limit),
        })?
    }

    /// A socket for QUIC, from which a client reaches an address.
    pub fn udp(&self, to: IpAddr, from: IpAddr) -> io::Result<UdpSocket> {
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let from = if from.is_ipv4() == to.is_ipv4() && !to.is_loopback() { from } else { any };
        self.of_client(to, Some(from)).run(|| UdpSocket::bind((from, 0)))?
    }

    /// Starts the program, and waits until it listens.
    pub fn start(&self, launch: Launch, listeners: &[SocketAddr]) -> anyhow::Result<Program> {
        let inside = self.inside.clone();
        let (started, ready) = channel();
        let (stop, stopped): (Sender<()>, Receiver<()>) = channel();
        let output = launch.output.clone();
        let name = launch.name.clone();
        let ended: Arc<OnceLock<String>> = Arc::default();
        let end = ended.clone();
        // The kernel ends the program together with the thread that starts it, so this thread waits for the end.
        let thread = std::thread::Builder::new().name("compare".into()).spawn(move || {
            let begun = inside.enter().map_err(anyhow::Error::from).and_then(|()| Running::start(&launch));
            match begun {
                Err(error) => drop(started.send(Err(error))),
                Ok(mut running) => {
                    let _ = started.send(Ok(()));
                    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_millis(50)) {
                        if let Some(how) = running.ended() {
                            let _ = end.set(how);
                            break;
                        }
                    }
                    running.stop();
                }
            }
        })?;
        let program = Program { thread: Some(thread), stop: Some(stop), ended };
        ready.recv().context("the thread has ended")??;
        let limit = Instant::now() + START;
        for listener in listeners {
            while self.connect(*listener, None, Duration::from_millis(500)).is_err() {
                if let Some(how) = program.ended() {
                    bail!("{how}: {}", tail(&output));
                }
                if Instant::now() > limit {
                    bail!("{name} does not listen on {listener}: {}", tail(&output));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(program)
    }
}

/// A program that runs, and ends when this is dropped.
#[derive(Debug)]
pub struct Program {
    thread: Option<JoinHandle<()>>,
    stop: Option<Sender<()>>,
    ended: Arc<OnceLock<String>>,
}

impl Program {
    /// That it has ended by itself, and how.
    pub fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn up(netlink: &mut Netlink, name: &str) -> io::Result<u32> {
    let device = netlink.link_index(name)?;
    netlink.link_set(device, &LinkSet { up: Some(true), ..LinkSet::default() })?;
    Ok(device)
}

fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Addresses that can be given to a device.
fn split(addresses: &BTreeSet<IpAddr>, has_v6: bool) -> BTreeSet<IpAddr> {
    let usable = |a: &&IpAddr| {
        let odd = match a {
            IpAddr::V4(a) => a.is_broadcast() || a.octets()[0] == 0 || a.octets()[0] >= 224,
            IpAddr::V6(_) => !has_v6,
        };
        !(a.is_unspecified() || a.is_loopback() || a.is_multicast() || odd)
    };
    // The program has these in any case.
    let is_any = |a: &&IpAddr| **a == IpAddr::V4(ANY4) || **a == IpAddr::V6(ANY6);
    addresses.iter().filter(usable).filter(|a| !is_any(a)).copied().collect()
}

fn connect_from(from: IpAddr, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Also bounds how long connecting takes.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(limit))?;
    bind(&socket, &SocketAddr::new(from, 0))?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outside_has_no_address_of_the_configuration() {
        let of = |all: &[&str]| all.iter().map(|a| a.parse().unwrap()).collect::<BTreeSet<IpAddr>>();
        assert_eq!(Addresses::default().gateways(), (GATEWAY4, GATEWAY6));
        let addresses = Addresses {
            inside: of(&["203.0.113.10", "203.0.113.11", "2001:db8::20"]),
            outside: of(&["203.0.113.12", "10.0.0.1"]),
        };
        let (v4, v6) = addresses.gateways();
        assert_eq!((v4.to_string().as_str(), v6.to_string().as_str()), ("203.0.113.13", "2001:db8::21"));
        // What the program has anyhow is added once.
        assert_eq!(split(&addresses.inside, true), of(&["203.0.113.11", "2001:db8::20"]));
    }

    #[test]
    fn clients_and_hosts_have_addresses_of_the_outside() {
        assert_eq!(client(0).to_string(), "198.18.1.1");
        assert_eq!(client(251).to_string(), "198.18.2.2");
        assert_eq!(host("App.internal"), host("app.internal"));
        assert_eq!(host("app.internal").octets()[..2], [198, 19]);
        assert!(
            !split(&["224.0.0.1".parse().unwrap(), "127.0.0.1".parse().unwrap()].into(), true).iter().any(|_| true)
        );
    }
}
