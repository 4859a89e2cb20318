//! Links, addresses and routes of this network namespace, by rtnetlink.

use crate::netlink::{Attributes, CREATE, DUMP, EXCLUSIVE, Message, Netlink, REPLACE, Request};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

/// Bytes of `struct rtmsg`.
const ROUTE_MESSAGE: usize = 12;
/// A gateway of the other family: `struct rtvia`.
const RTA_VIA: u16 = 18;
/// Flags of routes: it cannot be used, and the gateway counts as a neighbour whatever its address.
const DEAD: u32 = 1;
const ON_LINK: u32 = 4;
/// An entry of a cache, and no route.
const CLONED: u32 = 0x200;

/// The protocol of routes that the kernel makes itself, for the networks of addresses.
pub const KERNEL: u8 = libc::RTPROT_KERNEL;
/// The protocol of routes that an administrator sets.
pub const STATIC: u8 = libc::RTPROT_STATIC;
/// Groups of notifications about links, addresses and routes, for [`Netlink::join`].
pub const CHANGES: [u32; 5] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
];

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

/// A unicast route of the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network.
    pub network: IpAddr,
    /// The length of its prefix.
    pub len: u8,
    /// The gateway, unless the network is on the link.
    pub via: Option<IpAddr>,
    /// The index of the interface.
    pub link: u32,
    /// Of routes to the same network, the lowest metric counts. For 0 in IPv6, the kernel takes 1024.
    pub metric: u32,
    /// Who made it.
    pub protocol: u8,
    /// The address that packets get unless their sender has chosen one.
    pub source: Option<IpAddr>,
    /// The gateway is reached directly, although no network of the interface contains it.
    pub is_on_link: bool,
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
        self.route_set(&static_route(index, network, prefix, via))
    }

    /// The unicast routes of the main table: IPv4, then IPv6. Of a route with several gateways, the first is taken.
    pub fn routes(&mut self) -> io::Result<Vec<Route>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            let mut m = [0; ROUTE_MESSAGE];
            m[0] = family;
            let answers = match self.ask(&Request::new(RTM_GETROUTE, DUMP, &m)) {
                Err(_) if family == libc::AF_INET6 as u8 => break, // A kernel without IPv6.
                other => other?,
            };
            all.extend(answers.iter().filter_map(|message| read_route(message, family)));
        }
        Ok(all)
    }

    /// Adds a route. It replaces one to the same network with the same metric.
    pub fn route_set(&mut self, route: &Route) -> io::Result<()> {
        self.ask(&route_request(RTM_NEWROUTE, CREATE | REPLACE, route)).map(drop)
    }

    /// Adds a route. In IPv4, it comes before those to the same network with the same metric, which stay.
    pub fn route_prepend(&mut self, route: &Route) -> io::Result<()> {
        self.ask(&route_request(RTM_NEWROUTE, CREATE, route)).map(drop)
    }

    /// Takes exactly this route away.
    pub fn route_unset(&mut self, route: &Route) -> io::Result<()> {
        self.ask(&route_request(RTM_DELROUTE, 0, route)).map(drop)
    }

    /// Takes a route away.
    pub fn route_del(&mut self, index: u32, network: IpAddr, prefix: u8) -> io::Result<()> {
        self.route_unset(&static_route(index, network, prefix, None))
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

/// A route as an administrator sets it.
fn static_route(link: u32, network: IpAddr, len: u8, via: Option<IpAddr>) -> Route {
    Route { network, len, via, link, metric: 0, protocol: STATIC, source: None, is_on_link: false }
}

fn route_request(kind: u16, flags: u16, route: &Route) -> Request {
    let Route { network, len, via, link, metric, protocol, source, is_on_link } = *route;
    let scope = if via.is_some() || network.is_ipv6() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
    let mut m = [0; ROUTE_MESSAGE];
    m[..8].copy_from_slice(&[family(network), len, 0, 0, libc::RT_TABLE_MAIN, protocol, scope, libc::RTN_UNICAST]);
    m[8..].copy_from_slice(&(if is_on_link { ON_LINK } else { 0 }).to_ne_bytes());
    let mut request =
        Request::new(kind, flags, &m).with(libc::RTA_DST, &octets(network)).with(libc::RTA_OIF, &link.to_ne_bytes());
    request = match via {
        Some(via) if via.is_ipv4() == network.is_ipv4() => request.with(libc::RTA_GATEWAY, &octets(via)),
        Some(via) => {
            let number = u16::from(family(via)).to_ne_bytes();
            request.with(RTA_VIA, &[&number[..], &octets(via)].concat())
        }
        None => request,
    };
    if metric != 0 {
        request = request.with(libc::RTA_PRIORITY, &metric.to_ne_bytes());
    }
    match source {
        Some(source) => request.with(libc::RTA_PREFSRC, &octets(source)),
        None => request,
    }
}

/// Reads a route; `None` for those of other tables and families, and for all that are not plain unicast routes.
fn read_route(message: &Message, family: u8) -> Option<Route> {
    let head: &[u8; ROUTE_MESSAGE] = message.body.first_chunk()?;
    let [its_family, len, source_len, tos, table, protocol, _, kind, f, l, a, g] = *head;
    let flags = u32::from_ne_bytes([f, l, a, g]);
    let attributes = message.attributes(ROUTE_MESSAGE);
    let table = attributes.value(libc::RTA_TABLE).and_then(number).unwrap_or_else(|| u32::from(table));
    let is_plain = kind == libc::RTN_UNICAST && (source_len, tos) == (0, 0) && flags & (DEAD | CLONED) == 0;
    if message.kind != RTM_NEWROUTE || its_family != family || table != u32::from(libc::RT_TABLE_MAIN) || !is_plain {
        return None;
    }
    let any: IpAddr =
        if family == libc::AF_INET as u8 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // `struct rtnexthop`: length, flags and hops, then the index; attributes follow.
    let hop = attributes.value(libc::RTA_MULTIPATH).and_then(|hops| {
        let len = u16::from_ne_bytes(*hops.first_chunk()?);
        Some((number(hops.get(4..8)?)?, Attributes::new(hops.get(8..usize::from(len))?)))
    });
    let (link, gateways) = match (attributes.value(libc::RTA_OIF).and_then(number), hop) {
        (Some(link), _) => (link, attributes.clone()),
        (None, Some(hop)) => hop,
        (None, None) => return None,
    };
    let other = || gateways.value(RTA_VIA).and_then(|via| address(via.get(2..)?));
    Some(Route {
        network: attributes.value(libc::RTA_DST).map_or(Some(any), address)?,
        len,
        via: gateways.value(libc::RTA_GATEWAY).and_then(address).or_else(other),
        link,
        metric: attributes.value(libc::RTA_PRIORITY).and_then(number).unwrap_or(0),
        protocol,
        source: attributes.value(libc::RTA_PREFSRC).and_then(address),
        is_on_link: flags & ON_LINK != 0,
    })
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
        16 => bytes.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
        _ => None,
    }
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

    /// A message as the kernel sends it for this request.
    fn answer(request: Request) -> Message {
        Message { kind: RTM_NEWROUTE, body: request.into_bytes().split_off(16) }
    }

    #[test]
    fn a_route_reads_as_it_was_written() {
        let route = Route {
            network: IpAddr::from([10, 1, 0, 0]),
            len: 16,
            via: Some(IpAddr::from([192, 0, 2, 1])),
            link: 7,
            metric: 100,
            protocol: 83,
            source: Some(IpAddr::from([192, 0, 2, 9])),
            is_on_link: true,
        };
        let six = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]);
        let direct = Route { via: None, source: None, is_on_link: false, metric: 0, ..route };
        for route in
            [route, direct, Route { via: Some(six), ..route }, Route { network: six, len: 128, via: None, ..direct }]
        {
            let family = family(route.network);
            assert_eq!(read_route(&answer(route_request(RTM_NEWROUTE, 0, &route)), family), Some(route));
            assert_eq!(read_route(&answer(route_request(RTM_NEWROUTE, 0, &route)), family ^ 1), None);
        }
    }

    #[test]
    fn the_first_of_several_gateways_is_taken() {
        let mut m = [0; ROUTE_MESSAGE];
        m[..8].copy_from_slice(&[libc::AF_INET as u8, 0, 0, 0, libc::RT_TABLE_MAIN, 4, 0, libc::RTN_UNICAST]);
        let hop = |link: u8, last: u8| {
            let gateway = [8, 0, libc::RTA_GATEWAY as u8, 0, 192, 0, 2, last];
            [&u16::to_ne_bytes(16)[..], &[0, 0], &u32::from(link).to_ne_bytes(), &gateway].concat()
        };
        let hops = [hop(3, 1), hop(4, 2)].concat();
        let request = Request::new(RTM_NEWROUTE, 0, &m).with(libc::RTA_MULTIPATH, &hops);
        let route = read_route(&answer(request), libc::AF_INET as u8).unwrap();
        assert_eq!((route.link, route.via), (3, Some(IpAddr::from([192, 0, 2, 1]))));
        assert_eq!((route.network, route.len), (IpAddr::from([0, 0, 0, 0]), 0));
    }

    #[test]
    fn the_kernel_lists_its_routes() {
        // Which there are depends on the machine.
        let routes = Netlink::route().unwrap().routes().unwrap();
        assert!(routes.iter().all(|route| route.link != 0), "{routes:?}");
    }
}
