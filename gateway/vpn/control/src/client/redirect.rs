//! Which routes `redirect-gateway` needs: a function of the routes that there are.
//!
//! The former default route stays in the table, behind those of the tunnel. So when the tunnel's interface disappears, even because
//! this process was killed, the system is as before. Only the routes outside the tunnel, to the server, can be left. They have a
//! protocol number and a metric of their own, by which the next start finds them.

use sealane_ovpn::redirect::Redirect;
use sealane_sys::netlink_route::{KERNEL, Route};
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The protocol number of the routes that are made here.
pub(super) const PROTOCOL: u8 = 83;
/// The metric of IPv6 routes through the tunnel: before the kernel's default.
const METRIC6: u32 = 1;

/// A network, as address and length.
pub(super) type Network = (IpAddr, u8);

/// What the routes depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'r> {
    /// The routes of the main table.
    pub routes: &'r [Route],
    /// The index of the tunnel's interface.
    pub tunnel: u32,
    /// The metric of this process's routes outside the tunnel.
    pub mark: u32,
    /// The address of the server, or of the proxy.
    pub server: IpAddr,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A route is added, or replaces that to the same network with the same metric.
    Add(Route),
    Remove(Route),
}

/// Outside the tunnel, the main table has no route to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoute;

impl Situation<'_> {
    /// What changes the routes to those that are wanted. `through`: networks that other options route through the tunnel.
    pub fn changes(&self, redirect: &Redirect, through: &[Network]) -> Result<Vec<Change>, NoRoute> {
        let wanted = self.wanted(redirect, through)?;
        let is_inside = |route: &Route| route.link == self.tunnel;
        let own: Vec<&Route> = self.routes.iter().filter(|route| self.is_own(route)).collect();
        let missing = wanted.iter().filter(|route| !own.iter().any(|other| is_same(route, other)));
        let replaced = |other: &Route| {
            wanted.iter().any(|route| {
                (route.network, route.len, is_inside(route)) == (other.network, other.len, is_inside(other))
            })
        };
        let mut gone: Vec<&Route> = own.iter().copied().filter(|other| !replaced(other)).collect();
        // No packet for the server may find the tunnel.
        gone.sort_by_key(|route| !is_inside(route));
        let gone = gone.into_iter().map(|route| Change::Remove(*route));
        Ok(missing.map(|route| Change::Add(*route)).chain(gone).collect())
    }

    /// Whether a route was made here, by this process.
    fn is_own(&self, route: &Route) -> bool {
        route.protocol == PROTOCOL && (route.link == self.tunnel || route.metric == self.mark)
    }

    /// The routes of this machine without any tunnel of ours.
    fn others(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(move |route| route.protocol != PROTOCOL && route.link != self.tunnel)
    }

    /// The route that the system would use.
    fn best(&self, address: IpAddr) -> Option<&Route> {
        let fitting = self.others().filter(|route| covers((route.network, route.len), address));
        fitting.min_by_key(|route| (Reverse(route.len), route.metric))
    }

    /// The routes outside the tunnel, then those through it: the first ones must be there first.
    fn wanted(&self, redirect: &Redirect, through: &[Network]) -> Result<Vec<Route>, NoRoute> {
        let (mut outside, mut inside): (Vec<Route>, Vec<Network>) = (Vec::new(), Vec::new());
        if redirect.four {
            let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            match redirect.def1 {
                true => inside.extend(halves((any, 0))),
                false => inside.push((any, 0)),
            }
        }
        if redirect.six {
            // OpenVPN's: all global and all local addresses, but not those of a link, and no multicast.
            for (first, len) in [(0, 3), (0x2000, 4), (0x3000, 4), (0xfc00, 7)] {
                inside.push((Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0).into(), len));
            }
        }
        if redirect.block_local {
            for (is_wanted, any) in [
                (redirect.enabled, IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                (redirect.six, IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            ] {
                if is_wanted {
                    self.block_local(any, &mut outside, &mut inside);
                }
            }
        }
        let mut all = inside.iter().chain(through);
        let is_covered = all.any(|network| covers(*network, self.server));
        if !self.server.is_loopback() && (is_covered || redirect.enabled && self.server.is_ipv4()) {
            let best = self.best(self.server).ok_or(NoRoute)?;
            let is_near = redirect.local || redirect.autolocal && best.via.is_none();
            // A route to the server alone is more specific than any of the tunnel's, which are never to the server alone.
            if best.len < bits(self.server) && (redirect.block_local || !is_near) {
                outside.push(self.outside(self.server, best.via, best));
            }
        }
        // A half of a small local network can be the gateway or the server alone.
        inside.retain(|network| !outside.iter().any(|route| (route.network, route.len) == *network));
        let through_tunnel = |network| through_tunnel(self.tunnel, network, PROTOCOL);
        Ok(outside.into_iter().chain(inside.into_iter().map(through_tunnel)).collect())
    }

    /// Each network of the interface that leads to the server goes through the tunnel, in two halves, which are more specific. The
    /// gateway stays reachable.
    fn block_local(&self, any: IpAddr, outside: &mut Vec<Route>, inside: &mut Vec<Network>) {
        let is_same_family = self.server.is_ipv4() == any.is_ipv4();
        let Some(way) = self.best(if is_same_family { self.server } else { any }) else { return };
        let is_local = |route: &&Route| {
            route.link == way.link
                && route.via.is_none()
                && route.protocol == KERNEL
                && route.network.is_ipv4() == any.is_ipv4()
                && route.len < bits(any)
                && !is_of_a_link(route.network)
        };
        inside.extend(self.others().filter(is_local).flat_map(|route| halves((route.network, route.len))));
        if let Some(gateway) = way.via.filter(|via| via.is_ipv4() == any.is_ipv4() && !is_of_a_link(*via)) {
            outside.push(self.outside(gateway, None, way));
        }
    }

    /// A route to one address, the same way as another route.
    fn outside(&self, address: IpAddr, via: Option<IpAddr>, like: &Route) -> Route {
        Route {
            network: address,
            len: bits(address),
            via,
            link: like.link,
            metric: self.mark,
            protocol: PROTOCOL,
            source: like.source,
            is_on_link: like.is_on_link && via.is_some(),
        }
    }
}

/// The route of a network through the tunnel. It leaves other routes to the same network as they are, and comes before them.
pub(super) fn through_tunnel(tunnel: u32, (network, len): Network, protocol: u8) -> Route {
    let metric = if network.is_ipv6() { METRIC6 } else { 0 };
    Route { network, len, via: None, link: tunnel, metric, protocol, source: None, is_on_link: false }
}

/// Whether two routes send the same packets the same way.
fn is_same(one: &Route, other: &Route) -> bool {
    (one.network, one.len, one.via, one.link) == (other.network, other.len, other.via, other.link)
}

fn is_of_a_link(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(six) if six.is_unicast_link_local() || six.is_multicast())
}

pub(super) const fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Whether a network contains an address.
pub(super) fn covers((network, len): Network, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differs = network.to_bits() ^ address.to_bits();
            differs.checked_shr(32 - u32::from(len.min(32))).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differs = network.to_bits() ^ address.to_bits();
            differs.checked_shr(128 - u32::from(len.min(128))).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// The two halves of a network that is more than one address.
fn halves((network, len): Network) -> [Network; 2] {
    let second = match network {
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() | 1_u32 << (31 - len.min(31))).into(),
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() | 1_u128 << (127 - len.min(127))).into(),
    };
    [(network, len + 1), (second, len + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNNEL: u32 = 9;
    const MARK: u32 = 0x5ea1_0007;
    const ALL: Redirect = Redirect {
        enabled: true,
        four: true,
        six: false,
        def1: true,
        local: false,
        autolocal: false,
        block_local: false,
    };

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// `NETWORK/LENGTH [via GATEWAY] LINK METRIC PROTOCOL`.
    fn route(text: &str) -> Route {
        let words: Vec<&str> = text.split(' ').collect();
        let (network, len) = words[0].split_once('/').expect("a network");
        let (via, rest) = if words[1] == "via" { (Some(address(words[2])), &words[3..]) } else { (None, &words[1..]) };
        let number = |at: usize| rest[at].parse::<u32>().expect("a number");
        Route {
            network: address(network),
            len: len.parse().expect("a length"),
            via,
            link: number(0),
            metric: number(1),
            protocol: u8::try_from(number(2)).expect("a protocol"),
            source: None,
            is_on_link: false,
        }
    }

    fn shown(route: &Route) -> String {
        let via = route.via.map_or_else(String::new, |via| format!(" via {via}"));
        format!("{}/{}{via} {}", route.network, route.len, route.link)
    }

    fn changes(
        routes: &[Route],
        server: &str,
        redirect: Redirect,
        through: &[Network],
    ) -> Result<Vec<String>, NoRoute> {
        let situation = Situation { routes, tunnel: TUNNEL, mark: MARK, server: address(server) };
        let changes = situation.changes(&redirect, through)?;
        let text = |change| match change {
            Change::Add(route) => format!("+{}", shown(&route)),
            Change::Remove(route) => format!("-{}", shown(&route)),
        };
        Ok(changes.into_iter().map(text).collect())
    }

    /// A laptop with two interfaces.
    fn laptop() -> Vec<Route> {
        [
            "0.0.0.0/0 via 192.168.2.1 3 600 16",
            "0.0.0.0/0 via 192.168.1.1 2 100 16",
            "192.168.1.0/24 2 100 2",
            "192.168.2.0/24 3 600 2",
            "::/0 via fe80::1 2 1024 9",
            "2001:db8:1::/64 2 256 2",
            "fe80::/64 2 256 2",
        ]
        .map(route)
        .to_vec()
    }

    /// The table after these changes.
    fn after(mut routes: Vec<Route>, server: &str, redirect: Redirect) -> Vec<Route> {
        let situation = Situation { routes: &routes, tunnel: TUNNEL, mark: MARK, server: address(server) };
        for change in situation.changes(&redirect, &[]).expect("there is a route") {
            match change {
                Change::Add(new) => {
                    let is_replaced =
                        |old: &Route| (old.network, old.len, old.metric) == (new.network, new.len, new.metric);
                    routes.retain(|old| new.link == TUNNEL || !is_replaced(old));
                    routes.push(new);
                }
                Change::Remove(old) => routes.retain(|route| *route != old),
            }
        }
        routes
    }

    #[test]
    fn a_full_tunnel_has_its_server_outside() {
        let got = changes(&laptop(), "198.51.100.7", ALL, &[]);
        assert_eq!(
            got.expect("there is a route"),
            ["+198.51.100.7/32 via 192.168.1.1 2", "+0.0.0.0/1 9", "+128.0.0.0/1 9"]
        );
        let without = Redirect { def1: false, ..ALL };
        let got = changes(&laptop(), "198.51.100.7", without, &[]);
        assert_eq!(got.expect("there is a route"), ["+198.51.100.7/32 via 192.168.1.1 2", "+0.0.0.0/0 9"]);
        let six = Redirect { enabled: false, four: false, six: true, ..ALL };
        let got = changes(&laptop(), "198.51.100.7", six, &[]);
        assert_eq!(got.expect("there is a route"), ["+::/3 9", "+2000::/4 9", "+3000::/4 9", "+fc00::/7 9"]);
        let got = changes(&laptop(), "2001:db8:7::7", six, &[]).expect("there is a route");
        assert_eq!(got[0], "+2001:db8:7::7/128 via fe80::1 2");
        assert_eq!(changes(&[], "198.51.100.7", ALL, &[]), Err(NoRoute));
        assert_eq!(changes(&[], "127.0.0.1", ALL, &[]).map(|all| all.len()), Ok(2));
    }

    #[test]
    fn a_server_in_a_local_network_may_stay_without_a_route() {
        let first = |redirect| changes(&laptop(), "192.168.2.7", redirect, &[]).expect("there is a route")[0].clone();
        assert_eq!(first(ALL), "+192.168.2.7/32 3");
        assert_eq!(first(Redirect { local: true, ..ALL }), "+0.0.0.0/1 9");
        assert_eq!(first(Redirect { autolocal: true, ..ALL }), "+0.0.0.0/1 9");
        let far = changes(&laptop(), "198.51.100.7", Redirect { autolocal: true, ..ALL }, &[]);
        assert_eq!(far.expect("there is a route")[0], "+198.51.100.7/32 via 192.168.1.1 2");
        // Somebody else has made the route.
        let mut routes = laptop();
        routes.push(route("192.168.2.7/32 3 0 4"));
        assert_eq!(changes(&routes, "192.168.2.7", ALL, &[]).expect("there is a route")[0], "+0.0.0.0/1 9");
    }

    #[test]
    fn a_blocked_local_network_goes_through_the_tunnel() {
        let block = Redirect { block_local: true, ..ALL };
        let got = changes(&laptop(), "198.51.100.7", block, &[]).expect("there is a route");
        let expected = [
            "+192.168.1.1/32 2",
            "+198.51.100.7/32 via 192.168.1.1 2",
            "+0.0.0.0/1 9",
            "+128.0.0.0/1 9",
            "+192.168.1.0/25 9",
            "+192.168.1.128/25 9",
        ];
        assert_eq!(got, expected);
        let both = changes(&laptop(), "198.51.100.7", Redirect { six: true, ..block }, &[]).expect("there is a route");
        assert_eq!(both[both.len() - 2..], ["+2001:db8:1::/65 9", "+2001:db8:1:0:8000::/65 9"]);
        // A network of two addresses, of which one is the gateway's.
        let small = ["0.0.0.0/0 via 192.168.1.1 2 100 16", "192.168.1.0/31 2 100 2"].map(route);
        let got = changes(&small, "198.51.100.7", block, &[]).expect("there is a route");
        assert_eq!(got[0], "+192.168.1.1/32 2");
        assert!(got.contains(&"+192.168.1.0/32 9".to_owned()) && !got.contains(&"+192.168.1.1/32 9".to_owned()));
    }

    #[test]
    fn a_route_that_covers_the_server_does_not_catch_it() {
        let none = Redirect::default();
        let through = [(address("198.51.0.0"), 16)];
        let got = changes(&laptop(), "198.51.100.7", none, &through).expect("there is a route");
        assert_eq!(got, ["+198.51.100.7/32 via 192.168.1.1 2"]);
        assert_eq!(changes(&laptop(), "198.52.100.7", none, &through), Ok(vec![]));
        let private = Redirect { enabled: true, ..none };
        assert_eq!(changes(&laptop(), "198.52.100.7", private, &[]).map(|all| all.len()), Ok(1));
    }

    #[test]
    fn nothing_is_left_and_nothing_is_done_twice() {
        for redirect in [ALL, Redirect { def1: false, six: true, block_local: true, ..ALL }] {
            let redirected = after(laptop(), "198.51.100.7", redirect);
            assert_eq!(changes(&redirected, "198.51.100.7", redirect, &[]), Ok(vec![]));
            assert_eq!(after(redirected.clone(), "198.51.100.7", Redirect::default()), laptop());
            // Another server: its route is there before the old one goes.
            let other = changes(&redirected, "203.0.113.7", redirect, &[]).expect("there is a route");
            assert_eq!(other, ["+203.0.113.7/32 via 192.168.1.1 2", "-198.51.100.7/32 via 192.168.1.1 2"]);
        }
    }

    #[test]
    fn a_laptop_that_moves_keeps_its_server() {
        let redirected = after(laptop(), "198.51.100.7", ALL);
        // The cable is out.
        let moved: Vec<Route> = redirected.iter().copied().filter(|route| route.link != 2).collect();
        assert_eq!(
            changes(&moved, "198.51.100.7", ALL, &[]),
            Ok(vec!["+198.51.100.7/32 via 192.168.2.1 3".to_owned()])
        );
        // The gateway is another.
        let mut moved = redirected;
        moved.iter_mut().filter(|route| route.len == 0 && route.link == 2).for_each(|route| {
            route.via = Some(address("192.168.1.254"));
        });
        let moved: Vec<Route> = after(moved, "198.51.100.7", ALL);
        let own: Vec<String> = moved.iter().filter(|route| route.metric == MARK).map(shown).collect();
        assert_eq!(own, ["198.51.100.7/32 via 192.168.1.254 2"]);
        // Another client's routes are no way to the server.
        let mut routes = laptop();
        routes.push(Route { metric: MARK + 1, protocol: PROTOCOL, ..route("198.51.100.7/32 via 192.168.9.9 5 0 0") });
        let got = changes(&routes, "198.51.100.7", ALL, &[]).expect("there is a route");
        assert_eq!(got[0], "+198.51.100.7/32 via 192.168.1.1 2");
    }
}
