//! What the client changes in the system: addresses and routes of the interface, the routes of `redirect-gateway`, and name
//! resolution. Changed when the server says otherwise, and undone at the end.
//!
//! When a connection is lost, `redirect-gateway` and DNS end, so that the next attempt finds its server as the first one did. With
//! `persist-tun`, they stay, and nothing passes outside the tunnel until the next connection; the route to the next server is there
//! before the client connects to it. While the tunnel is connected, changes of this machine's routes are watched, so that the route to the
//! server follows a laptop into another network.

use super::names::{Names, NamesMode};
use super::owner::{Owner, is_abandoned};
use super::redirect::{Change, NoRoute, PROTOCOL, Situation, bits, covers, through_tunnel};
use crate::profile::Profile;
use anyhow::{Context as _, Result, anyhow};
use rustix::io::Errno;
use sealane_log as log;
use sealane_ovpn::push::Pushed;
use sealane_ovpn::redirect::Redirect;
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::{CHANGES, LinkSet, Route, STATIC};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Changes of routes come in groups: so long after the first one, the routes are looked at.
const SETTLE: Duration = Duration::from_millis(500);
/// Notifications that are read at once.
const MAX_READ: u32 = 64;

/// Why the interface is not set up.
#[derive(Debug)]
pub(super) enum Failure {
    /// Worth another try.
    Retry(anyhow::Error),
    /// Not worth one: traffic or names would not go where the user relies on them to go.
    Final(anyhow::Error),
}

/// What has been done to the system.
#[derive(Debug)]
pub(super) struct Interface {
    addresses: Vec<(IpAddr, u8)>,
    routes: Vec<(IpAddr, u8)>,
    owner: Owner,
    names: Names,
    redirect: Redirect,
    /// The server, while there are routes because of it.
    server: Option<IpAddr>,
    /// Notifications about changed routes.
    watch: Option<Netlink>,
    look_at: Option<Instant>,
}

impl Interface {
    pub fn new(mode: NamesMode) -> Result<Self> {
        let owner = Owner::new()?;
        let names = Names::new(mode, owner.mark)?;
        Ok(Self {
            addresses: Vec::new(),
            routes: Vec::new(),
            owner,
            names,
            redirect: Redirect::default(),
            server: None,
            watch: None,
            look_at: None,
        })
    }

    /// Removes what earlier processes have left that were killed.
    pub async fn sweep(&self) {
        if let Err(e) = sweep_routes(self.owner.mark) {
            log::warn!("cannot remove the routes of an earlier client that was killed: {e}");
        }
        self.names.sweep().await;
    }

    /// Sets the interface up as the server and the profile say. `server` is the address of the server or of the proxy.
    pub async fn set_up(
        &mut self,
        device: &str,
        profile: &Profile,
        pushed: &Pushed,
        server: IpAddr,
    ) -> Result<(), Failure> {
        let own = Pushed::parse(&profile.options);
        let pulled = (!profile.route_nopull).then_some(pushed);
        // `route-nopull` does not affect the other end of a point-to-point tunnel.
        let mut routes: Vec<(IpAddr, u8)> = pushed.other_end.map(|a| (IpAddr::V4(a), 32)).into_iter().collect();
        for from in pulled.into_iter().chain([&own]) {
            routes.extend(from.routes.iter().map(|(a, n)| (IpAddr::V4(*a), *n)));
            routes.extend(from.routes6.iter().map(|(a, n)| (IpAddr::V6(*a), *n)));
        }
        let alone = (server, bits(server));
        if routes.contains(&alone) {
            log::warn!("the route to the server itself is not set through the tunnel");
            routes.retain(|route| *route != alone);
        }
        let redirect = pulled.map_or(own.redirect, |pulled| pulled.redirect.or(own.redirect));
        let dns = pulled.map(|pulled| pulled.dns.clone()).unwrap_or_default().over(own.dns).settings();
        let index = self.set_addresses(device, profile, pushed).map_err(Failure::Retry)?;
        self.redirect(index, server, redirect, &routes).map_err(Failure::Final)?;
        self.set_routes(index, routes).map_err(Failure::Retry)?;
        self.names.apply(device, dns).await.map_err(Failure::Final)
    }

    /// Sets the addresses; returns the interface's index.
    fn set_addresses(&mut self, device: &str, profile: &Profile, pushed: &Pushed) -> Result<u32> {
        let mut netlink = Netlink::route()?;
        let index = netlink.link_index(device)?;
        let mtu = pushed.mtu.unwrap_or(profile.mtu).clamp(576, 9000);
        netlink.link_set(index, &LinkSet { mtu: Some(u32::from(mtu)), up: Some(true), ..LinkSet::default() })?;
        let four = pushed.ifconfig.map(|(a, n)| (IpAddr::V4(a), n));
        let six = pushed.ifconfig6.map(|(a, n)| (IpAddr::V6(a), n));
        let wanted: Vec<(IpAddr, u8)> = four.into_iter().chain(six).collect();
        for (address, len) in self.addresses.extract_if(.., |a| !wanted.contains(a)) {
            // One that somebody else has deleted is gone as well.
            let _ = netlink.address_del(index, address, len);
        }
        for (address, len) in wanted {
            if !self.addresses.contains(&(address, len)) {
                netlink.address_add(index, address, len).with_context(|| format!("cannot set {address}/{len}"))?;
                self.addresses.push((address, len));
            }
        }
        Ok(index)
    }

    fn set_routes(&mut self, index: u32, routes: Vec<(IpAddr, u8)>) -> Result<()> {
        let mut netlink = Netlink::route()?;
        for (address, len) in self.routes.extract_if(.., |route| !routes.contains(route)) {
            // One that somebody else has deleted is gone as well.
            let _ = netlink.route_unset(&through_tunnel(index, (address, len), STATIC));
        }
        for (address, len) in routes {
            if self.routes.contains(&(address, len)) {
                continue;
            }
            match netlink.route_prepend(&through_tunnel(index, (address, len), STATIC)) {
                Ok(()) => self.routes.push((address, len)),
                // In IPv6, `redirect-gateway` has the same route.
                Err(e) if is(&e, Errno::EXIST) => {}
                Err(e) => log::warn!("cannot set the route {address}/{len}: {e}"),
            }
        }
        Ok(())
    }

    /// Sets the routes of `redirect-gateway`, and the route to the server where networks of the tunnel contain it.
    fn redirect(&mut self, index: u32, server: IpAddr, redirect: Redirect, through: &[(IpAddr, u8)]) -> Result<()> {
        let is_needed = redirect != Redirect::default() || through.iter().any(|network| covers(*network, server));
        if !is_needed && self.server.is_none() {
            return Ok(());
        }
        // From the first look on, no change is missed.
        if self.watch.is_none() {
            self.watch = Some(watch().context("cannot watch the system's routes")?);
        }
        // From here on, there is something to undo.
        self.server = Some(server);
        self.change_routes(index, server, &redirect, through).map_err(|e| match e {
            Unchanged::NoRoute => anyhow!(
                "the main routing table has no route to {server} outside the tunnel, so traffic cannot be redirected into the \
                 tunnel"
            ),
            Unchanged::Failed(what, e) => anyhow!("cannot change the route {what}: {e}"),
        })?;
        let families = match (redirect.four, redirect.six) {
            (true, true) => "IPv4 and IPv6",
            (true, false) => "IPv4",
            (false, true) => "IPv6",
            (false, false) => "",
        };
        if redirect != self.redirect && !families.is_empty() {
            log::info!("{families} traffic goes through the tunnel, except to {server} (redirect-gateway)");
        }
        self.redirect = redirect;
        if !is_needed {
            (self.server, self.watch) = (None, None);
        }
        Ok(())
    }

    fn change_routes(
        &self,
        tunnel: u32,
        server: IpAddr,
        redirect: &Redirect,
        through: &[(IpAddr, u8)],
    ) -> Result<(), Unchanged> {
        let failed = |e| Unchanged::Failed("to the server".to_owned(), e);
        let mut netlink = Netlink::route().map_err(failed)?;
        let routes = netlink.routes().map_err(failed)?;
        let situation = Situation { routes: &routes, tunnel, mark: self.owner.mark, server };
        let changes = situation.changes(redirect, through).map_err(|NoRoute| Unchanged::NoRoute)?;
        for change in changes {
            let done = match change {
                Change::Add(route) if route.link == tunnel => match netlink.route_prepend(&route) {
                    // In IPv6, `route-ipv6` has the same route. When that one goes, a notification follows.
                    Err(e) if is(&e, Errno::EXIST) => Ok(()),
                    done => done,
                },
                Change::Add(route) => netlink.route_set(&route),
                // One that somebody else has deleted is gone as well.
                Change::Remove(route) => netlink.route_unset(&route).or(Ok(())),
            };
            let (Change::Add(route) | Change::Remove(route)) = change;
            done.map_err(|e| Unchanged::Failed(format!("{}/{}", route.network, route.len), e))?;
        }
        Ok(())
    }

    /// The route to a server is there before the client connects to it, by the way that leads there now.
    pub fn before_connecting(&mut self, device: &str, server: IpAddr) {
        // The server before may have pushed a route to this one alone.
        let alone = (server, bits(server));
        if self.routes.contains(&alone) {
            self.routes.retain(|route| *route != alone);
            let removed = Netlink::route().and_then(|mut netlink| {
                let index = netlink.link_index(device)?;
                netlink.route_unset(&through_tunnel(index, alone, STATIC))
            });
            if let Err(e) = removed {
                log::warn!("cannot remove the route to {server} through {device}: {e}");
            }
        }
        if self.server.is_some() || self.routes.iter().any(|network| covers(*network, server)) {
            self.look(device, server);
        }
    }

    /// The route to the server follows changes of this machine's routes.
    pub fn follow(&mut self, device: &str, now: Instant) {
        let Some(server) = self.server else { return };
        if self.look_at.is_none() && self.watch.as_ref().is_some_and(has_changed) {
            self.look_at = Some(now + SETTLE);
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            self.look(device, server);
        }
    }

    fn look(&mut self, device: &str, server: IpAddr) {
        // Also without a network: when there is one, its route is added.
        self.server = Some(server);
        let index = Netlink::route().and_then(|mut netlink| netlink.link_index(device));
        let changed = match index {
            Ok(index) => self.change_routes(index, server, &self.redirect, &self.routes),
            Err(e) => Err(Unchanged::Failed(format!("through {device}"), e)),
        };
        // Without a network, nothing is to be done until a notification says that there is one.
        if let Err(Unchanged::Failed(what, e)) = changed {
            log::warn!("cannot change the route {what}: {e}");
        }
    }

    /// Ends `redirect-gateway` and the server's name resolution. The interface stays with its other routes, and with the route to the
    /// server if they contain it.
    pub async fn withdraw(&mut self, device: &str) {
        self.names.undo().await;
        if self.redirect != Redirect::default()
            && let Some(server) = self.server
        {
            self.redirect = Redirect::default();
            if let Err(e) = remove_routes_through(device) {
                log::warn!("cannot remove the routes of the tunnel: {e}");
            }
            self.look(device, server);
        }
    }

    /// Undoes all that does not disappear with the interface.
    pub async fn undo(&mut self, device: &str) {
        // First the routes: programs for name resolution may take so long that this process is killed.
        if self.server.take().is_some() {
            self.redirect = Redirect::default();
            let mark = self.owner.mark;
            let inside = remove_routes_through(device);
            let outside = remove_routes(|route| route.metric == mark);
            if let Err(e) = inside.and(outside) {
                log::warn!("cannot remove the routes of the tunnel: {e}");
            }
        }
        self.names.undo().await;
    }
}

/// Why routes are as they were.
enum Unchanged {
    NoRoute,
    /// Which one, and why.
    Failed(String, io::Error),
}

/// Hears of changed links, addresses and routes.
fn watch() -> io::Result<Netlink> {
    let netlink = Netlink::route()?;
    for group in CHANGES {
        netlink.join(group)?;
    }
    Ok(netlink)
}

/// Whether something was heard.
fn has_changed(watch: &Netlink) -> bool {
    let mut has_changed = false;
    for _ in 0..MAX_READ {
        match watch.notifications() {
            Ok(_) => has_changed = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            // Some were lost.
            Err(_) => has_changed = true,
        }
    }
    has_changed
}

/// Removes the routes to servers that were left by clients that were killed. Their other routes have gone with their interfaces.
/// `own`: the number of this process, which has no routes yet.
fn sweep_routes(own: u32) -> io::Result<()> {
    let is_left = |route: &Route| route.metric == own || is_abandoned(route.metric);
    let removed = remove_routes(is_left)?;
    if removed > 0 {
        log::info!("an earlier client had been killed: {removed} of its routes are removed");
    }
    Ok(())
}

/// Removes the routes of `redirect-gateway` through the tunnel; returns how many.
fn remove_routes_through(device: &str) -> io::Result<usize> {
    let index = Netlink::route()?.link_index(device)?;
    remove_routes(|route| route.link == index)
}

/// Removes routes of clients; returns how many.
fn remove_routes(is_meant: impl Fn(&Route) -> bool) -> io::Result<usize> {
    let mut netlink = Netlink::route()?;
    let mut removed = 0;
    for route in netlink.routes()?.iter().filter(|route| route.protocol == PROTOCOL && is_meant(route)) {
        match netlink.route_unset(route) {
            Ok(()) => removed += 1,
            // Somebody else was faster.
            Err(e) if is(&e, Errno::SRCH) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(removed)
}

fn is(e: &io::Error, errno: Errno) -> bool {
    e.raw_os_error() == Some(errno.raw_os_error())
}
