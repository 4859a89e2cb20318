//! Links, addresses and routes of this network namespace, by rtnetlink.

use crate::netlink::{Attributes, CREATE, DUMP, EXCLUSIVE, Netlink, REPLACE, Request};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

/// Of `IFLA_LINKINFO`.
const INFO_KIND: u16 = 1;

/// What an interface is set to; `None` leaves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkSet {
    /// The largest packet.
    pub mtu: Option<u32>,
    /// Packets that may wait to be read.
    pub queue: Option<u32>,
    /// Switched on, or off.
    pub up: Option<bool>,
    /// No IPv6 address but those that it is given: without a link-local one it solicits no routers.
    pub only_given_addresses: bool,
}

impl Netlink {
    /// The index of an interface. `NotFound` when there is none of the name.
    pub fn link_index(&mut self, name: &str) -> io::Result<u32> {
        let request = Request::new(RTM_GETLINK, 0, &link_message(0, 0, 0)).with(libc::IFLA_IFNAME, &zero_ended(name));
        let answers = match self.ask(&request) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Err(io::ErrorKind::NotFound.into()),
            other => other?,
        };
        // `struct ifinfomsg`: family, type, then the index.
        let index = answers.first().and_then(|m| m.body.get(4..8)).and_then(|b| b.first_chunk().copied());
        index.map(u32::from_ne_bytes).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The kind of an interface; `None` for those of hardware, the loopback and their like.
    pub fn link_kind(&mut self, index: u32) -> io::Result<Option<String>> {
        let answers = self.ask(&Request::new(RTM_GETLINK, 0, &link_message(index, 0, 0)))?;
        let about = answers.first().and_then(|m| m.attributes(16).value(libc::IFLA_LINKINFO));
        let kind = about.and_then(|about| Attributes::new(about).value(INFO_KIND));
        Ok(kind.map(|kind| String::from_utf8_lossy(kind).trim_end_matches('\0').to_owned()))
    }

    /// The indices of the interfaces that have an address.
    pub fn links_with(&mut self, address: IpAddr) -> io::Result<Vec<u32>> {
        let answers = self.ask(&Request::new(RTM_GETADDR, DUMP, &[family(address), 0, 0, 0, 0, 0, 0, 0]))?;
        let wanted = octets(address);
        // `struct ifaddrmsg`: eight bytes, the index in the last four. Of two ends the local one is ours.
        let has = answers.iter().filter(|m| {
            let found = m.attributes(8);
            found.value(libc::IFA_LOCAL).or_else(|| found.value(libc::IFA_ADDRESS)) == Some(&wanted[..])
        });
        Ok(has.filter_map(|m| m.body.get(4..8)?.first_chunk().copied().map(u32::from_ne_bytes)).collect())
    }

    /// Makes an interface of a kind (`ovpn`), with what its kind wants to know.
    pub fn link_add(&mut self, name: &str, kind: &str, data: &[(u16, Vec<u8>)]) -> io::Result<()> {
        const INFO_DATA: u16 = 2;
        let request = Request::new(RTM_NEWLINK, CREATE | EXCLUSIVE, &link_message(0, 0, 0))
            .with(libc::IFLA_IFNAME, &zero_ended(name))
            .nested(libc::IFLA_LINKINFO, |r| {
                r.with(INFO_KIND, kind.as_bytes())
                    .nested(INFO_DATA, |r| data.iter().fold(r, |r, (kind, value)| r.with(*kind, value)))
            });
        self.ask(&request).map(drop)
    }

    /// Makes a pair of interfaces, as with a cable between them; the second one in another namespace.
    pub fn veth_add(&mut self, name: &str, peer: &str, namespace: impl AsFd) -> io::Result<()> {
        const VETH_INFO_PEER: u16 = 1;
        let fd = namespace.as_fd().as_raw_fd().to_ne_bytes();
        let other = Request::part(&link_message(0, 0, 0))
            .with(libc::IFLA_IFNAME, &zero_ended(peer))
            .with(libc::IFLA_NET_NS_FD, &fd);
        self.link_add(name, "veth", &[(VETH_INFO_PEER, other.into_bytes())])
    }

    /// Removes an interface.
    pub fn link_del(&mut self, index: u32) -> io::Result<()> {
        self.ask(&Request::new(RTM_DELLINK, 0, &link_message(index, 0, 0))).map(drop)
    }

    /// Sets an interface.
    pub fn link_set(&mut self, index: u32, set: &LinkSet) -> io::Result<()> {
        let up = libc::IFF_UP as u32;
        let (flags, change) = set.up.map_or((0, 0), |on| (if on { up } else { 0 }, up));
        let mut request = Request::new(RTM_NEWLINK, 0, &link_message(index, flags, change));
        if let Some(mtu) = set.mtu {
            request = request.with(libc::IFLA_MTU, &mtu.to_ne_bytes());
        }
        if let Some(queue) = set.queue {
            request = request.with(libc::IFLA_TXQLEN, &queue.to_ne_bytes());
        }
        if set.only_given_addresses {
            const ADDR_GEN_MODE: u16 = 8;
            const NONE: u8 = 1;
            request = request
                .nested(libc::IFLA_AF_SPEC, |r| r.nested(libc::AF_INET6 as u16, |r| r.with(ADDR_GEN_MODE, &[NONE])));
        }
        self.ask(&request).map(drop)
    }

    /// Gives an interface an address, with the route to its network. An address that it has already is no error.
    pub fn address_add(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.ask(&address_request(RTM_NEWADDR, CREATE | REPLACE, index, address, prefix)).map(drop)
    }

    /// Takes an address away.
    pub fn address_del(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.ask(&address_request(RTM_DELADDR, 0, index, address, prefix)).map(drop)
    }

    /// Sends a network's packets through an interface, replacing what was said of it.
    pub fn route_add(&mut self, index: u32, network: IpAddr, prefix: u8, via: Option<IpAddr>) -> io::Result<()> {
        self.ask(&route_request(RTM_NEWROUTE, CREATE | REPLACE, index, network, prefix, via)).map(drop)
    }

    /// Takes a route away.
    pub fn route_del(&mut self, index: u32, network: IpAddr, prefix: u8) -> io::Result<()> {
        self.ask(&route_request(RTM_DELROUTE, 0, index, network, prefix, None)).map(drop)
    }
}

fn zero_ended(name: &str) -> Vec<u8> {
    name.bytes().chain([0]).collect()
}

/// `struct ifinfomsg`: family, padding, type, index, flags, change.
fn link_message(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut m = [0; 16];
    m[4..8].copy_from_slice(&index.to_ne_bytes());
    m[8..12].copy_from_slice(&flags.to_ne_bytes());
    m[12..].copy_from_slice(&change.to_ne_bytes());
    m
}

fn address_request(kind: u16, flags: u16, index: u32, address: IpAddr, prefix: u8) -> Request {
    // `struct ifaddrmsg`: family, prefix length, flags, scope, index. A TUN has no neighbours to ask whether the
    // address is theirs.
    let no_detection = if address.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
    let mut m = [family(address), prefix, no_detection, 0, 0, 0, 0, 0];
    m[4..].copy_from_slice(&index.to_ne_bytes());
    let bytes = octets(address);
    Request::new(kind, flags, &m).with(libc::IFA_LOCAL, &bytes).with(libc::IFA_ADDRESS, &bytes)
}

fn route_request(kind: u16, flags: u16, index: u32, network: IpAddr, prefix: u8, via: Option<IpAddr>) -> Request {
    // `struct rtmsg`: family, prefix lengths, TOS, table, protocol, scope, type, flags.
    let scope = if via.is_some() || network.is_ipv6() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
    let mut m = [0; 12];
    m[..8].copy_from_slice(&[
        family(network),
        prefix,
        0,
        0,
        libc::RT_TABLE_MAIN,
        libc::RTPROT_STATIC,
        scope,
        libc::RTN_UNICAST,
    ]);
    let mut request =
        Request::new(kind, flags, &m).with(libc::RTA_OIF, &index.to_ne_bytes()).with(libc::RTA_DST, &octets(network));
    if let Some(via) = via {
        request = request.with(libc::RTA_GATEWAY, &octets(via));
    }
    request
}

fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => Ipv6Addr::octets(&a).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_a_stranger_is_not() {
        let mut netlink = Netlink::route().unwrap();
        assert_eq!(netlink.link_index("lo").unwrap(), 1);
        assert_eq!(netlink.link_kind(1).unwrap(), None);
        assert_eq!(netlink.links_with(IpAddr::from([127, 0, 0, 1])).unwrap(), [1]);
        assert!(netlink.links_with(IpAddr::from([192, 0, 2, 254])).unwrap().is_empty());
        assert_eq!(netlink.link_index("no-such-link").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
