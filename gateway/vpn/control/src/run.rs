//! The VPN as the gateway runs it: a data plane, and its control on a thread of its own, so that a handshake of the
//! VPN never waits for the gateway's housekeeping, nor the other way round.

use super::handover::{Fixed, Handed, HandoverState, SavedServer};
use super::management::Socket;
use super::nat::{self, Networks};
use super::server::{self, AdminCommand, Ended, Start, Steering};
use super::settings::Settings;
use super::shared_port::{Arrivals, SharedPort};
use super::status::StatusRegistry;
use anyhow::{Context as _, Result, anyhow};
use sealane_config::Tunnel;
use sealane_log as log;
use sealane_sys::netlink::Netlink;
use sealane_tunnel::plane::{Feature, Plane, Prefix, Transport};
use sealane_tunnel::user::{Config, Role, Sockets};
use sealane_tunnel::{Choice, Prepared as PreparedPlane, Started};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// A running VPN server. Stopped when dropped.
#[derive(Debug)]
pub struct Vpn {
    commands: mpsc::UnboundedSender<AdminCommand>,
    thread: Option<JoinHandle<()>>,
    registry: StatusRegistry,
    fixed: Fixed,
    /// Its data plane serves clients over TCP.
    serves_tcp: bool,
    /// Whether the settings name a file for the log.
    has_log: AtomicBool,
    /// Networks behind clients that the system routes into the interface.
    routed: Mutex<HashSet<Prefix>>,
    /// What is listened on, as bound.
    pub addresses: Vec<(Transport, SocketAddr)>,
    /// The interface.
    pub interface: String,
}

/// A tunnel that another process has left: understood, but not begun.
#[derive(Debug)]
pub struct Prepared {
    settings: Settings,
    saved: SavedServer,
    plane: PreparedPlane,
}

/// The way to a running VPN for another thread.
#[derive(Clone, Debug)]
pub struct VpnDoor(mpsc::UnboundedSender<AdminCommand>);

impl VpnDoor {
    /// Stops the tunnel and gets everything that is needed to go on with it. Blocks, for some seconds at most.
    pub fn hand_over(&self) -> Result<Handed> {
        let (asker, answer) = oneshot::channel();
        self.0.send(AdminCommand::HandOver(asker)).map_err(|_| anyhow!("the tunnel has ended"))?;
        answer.blocking_recv().context("the tunnel has ended")?
    }

    /// Does something to connected clients. Returns how many were meant.
    pub async fn steer(&self, steering: Steering) -> Result<usize, String> {
        let gone = || "the tunnel has ended".to_owned();
        let (asker, answer) = oneshot::channel();
        self.0.send(AdminCommand::Steer(Box::new(steering), asker)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

impl Vpn {
    /// Makes the interface and the sockets, and serves; also clients that listeners of the gateway hand over.
    pub fn start(settings: Settings, port: &SharedPort) -> Result<Self> {
        if settings.nat {
            nat::apply(&networks_of(&settings).rules()).context("cannot apply the rules of \"nat\" in [tunnel]")?;
        }
        let of = |transport| {
            let of: Vec<SocketAddr> =
                settings.listen.iter().filter(|(t, _)| *t == transport).map(|(_, a)| *a).collect();
            of
        };
        let management = settings.management.as_ref().map(|m| Socket::open(m, false)).transpose()?;
        let login = settings.oidc.as_ref().map(|oidc| Socket::open_login(oidc, false)).transpose()?;
        let sockets = Sockets::open(&of(Transport::Udp), &of(Transport::Tcp), settings.lanes)
            .context("cannot open the tunnel's sockets")?;
        let udp = sockets.udp_addresses().into_iter().map(|a| (Transport::Udp, a));
        let addresses = udp.chain(sockets.tcp_addresses().into_iter().map(|a| (Transport::Tcp, a))).collect();
        let (sink, outlet) = server::inbox();
        let started = sealane_tunnel::start(settings.data_plane, &config(&settings), sockets, sink);
        let Started { plane, not_kernel } = started.map_err(|e| {
            let what = match e.kind() {
                io::ErrorKind::Unsupported if settings.data_plane == Choice::Kernel => {
                    "the tunnel cannot start with data_plane = \"kernel\"".to_owned()
                }
                kind => no_interface(&settings.device, false, kind),
            };
            anyhow::Error::new(e).context(what)
        })?;
        let notes = notes(plane.as_ref(), not_kernel, &settings);
        let routed = behind_clients(&settings);
        let begin = Start {
            plane: Arc::from(plane),
            notes,
            settings,
            outlet,
            registry: StatusRegistry::default(),
            inherited: None,
            management,
            login,
        };
        let mut vpn = Self::run(begin, addresses, port.arrivals())?;
        // The plane has begun with these.
        vpn.routed = Mutex::new(routed);
        Ok(vpn)
    }

    /// Reads what another process has left. Nothing has happened yet when this fails.
    pub fn prepare(settings: Settings, state: HandoverState) -> Result<Prepared> {
        let saved = SavedServer::read(&state.control, &settings)?;
        let plane = PreparedPlane::read(state.plane)
            .context("the old process handed over a data plane in an unknown format")?;
        Ok(Prepared { settings, saved, plane })
    }

    fn run(begin: Start, addresses: Vec<(Transport, SocketAddr)>, arrivals: Arrivals) -> Result<Self> {
        let interface = begin.plane.interface().to_owned();
        for (transport, address) in &addresses {
            let name = if *transport == Transport::Udp { "udp" } else { "tcp" };
            log::info!("tunnel: {interface}, OpenVPN clients at {name}://{address}");
        }
        for note in &begin.notes {
            log::warn!("tunnel: {note}");
        }
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let (registry, fixed) = (begin.registry.clone(), Fixed::of(&begin.settings));
        let has_log = AtomicBool::new(begin.settings.log.is_some());
        let serves_tcp = begin.plane.supports(Feature::Tcp);
        let thread = std::thread::Builder::new().name("tunnel-control".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let served = runtime
                .map_err(anyhow::Error::from)
                .and_then(|r| r.block_on(serve_until_stopped(begin, command_receiver, arrivals)));
            if let Err(e) = served {
                log::warn!("tunnel: {e:#}");
            }
        })?;
        Ok(Self {
            commands,
            thread: Some(thread),
            registry,
            fixed,
            serves_tcp,
            has_log,
            routed: Mutex::default(),
            addresses,
            interface,
        })
    }

    /// New settings. What only a start can change stays as it is.
    pub fn reload(&self, settings: Settings) {
        // Here and not on the tunnel's thread, which has no rights any more once the process is another user's.
        self.route(behind_clients(&settings));
        self.has_log.store(settings.log.is_some(), Relaxed);
        // It has ended only when the process is ending.
        let _ = self.commands.send(AdminCommand::Reload(Box::new(settings)));
    }

    /// Revocation lists (DER) that were read again. Clients whose certificates they revoke are disconnected. The answer says why the lists
    /// are refused, such as ones of version 1 that no CA has signed; there is none when the process is ending.
    pub fn take_lists(&self, lists: Vec<Vec<u8>>) -> oneshot::Receiver<Result<(), String>> {
        let (asker, answer) = oneshot::channel();
        // It has ended only when the process is ending.
        let _ = self.commands.send(AdminCommand::Lists(lists, asker));
        answer
    }

    /// The system routes these networks into the interface, and those of before no more. What does not succeed is said.
    fn route(&self, networks: HashSet<Prefix>) {
        let mut routed = self.routed.lock().unwrap_or_else(PoisonError::into_inner);
        if *routed == networks {
            return;
        }
        let interface = &self.interface;
        let opened = Netlink::route().and_then(|mut n| Ok((n.link_index(interface)?, n)));
        let (index, mut netlink) = match opened {
            Ok(opened) => opened,
            Err(e) => return log::warn!("tunnel: cannot change the routes through {interface}: {e}"),
        };
        // A route that could not be added is tried again with the next reload.
        for prefix in networks.symmetric_difference(&routed.clone()) {
            let add = networks.contains(prefix);
            let result = match add {
                true => netlink.route_add(index, prefix.address(), prefix.len(), None),
                false => netlink.route_del(index, prefix.address(), prefix.len()),
            };
            match (&result, add) {
                (Ok(()), true) => drop(routed.insert(*prefix)),
                (Err(_), true) => {}
                (_, false) => drop(routed.remove(prefix)),
            }
            if let Err(e) = result {
                let needs = match e.kind() {
                    io::ErrorKind::PermissionDenied => " (this needs CAP_NET_ADMIN)",
                    _ => "",
                };
                log::warn!("tunnel: cannot change the route to {prefix} through {interface}: {e}{needs}");
            }
        }
    }

    /// Opens the log's file again. The tunnel's thread does this later, and logs an error. False: the tunnel has no log.
    pub fn reopen_log(&self) -> bool {
        let has_log = self.has_log.load(Relaxed);
        if has_log {
            // It has ended only when the process is ending.
            let _ = self.commands.send(AdminCommand::Reopen);
        }
        has_log
    }

    /// Why a successor with these settings could not go on with this tunnel.
    pub fn obstacle(&self, settings: &Tunnel) -> Option<String> {
        let differs = self.fixed.differs(&Fixed::of(settings));
        let lacks_tcp = (settings.shares_port && !self.serves_tcp).then(|| {
            "the running tunnel uses the kernel's data plane, which supports only UDP: \"tunnel\" of [[listener]] needs a restart"
                .to_owned()
        });
        differs.or(lacks_tcp)
    }

    /// Whether it is over: stopped by itself, or gone on in another process.
    pub fn has_ended(&self) -> bool {
        self.commands.is_closed()
    }

    /// For the thread that waits for a successor.
    pub fn door(&self) -> VpnDoor {
        VpnDoor(self.commands.clone())
    }

    /// What is going on.
    pub fn registry(&self) -> StatusRegistry {
        self.registry.clone()
    }
}

impl Drop for Vpn {
    fn drop(&mut self) {
        let _ = self.commands.send(AdminCommand::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Prepared {
    /// Goes on.
    pub fn start(self, port: &SharedPort) -> Result<Vpn> {
        let (addresses, networks) = (self.plane.addresses(), behind_clients(&self.settings));
        let rules = self.settings.nat.then(|| networks_of(&self.settings).rules());
        // The predecessor does not come back: without the socket, its programs can do nothing, but clients stay connected.
        let management = self.settings.management.as_ref().map(|m| Socket::open(m, true)).transpose();
        let management = management.unwrap_or_else(|e| {
            log::warn!("tunnel: {e:#}");
            None
        });
        let login = Socket::login_for(self.settings.oidc.as_ref(), true);
        let vpn = Vpn::run(self.begin(StatusRegistry::default(), management, login)?, addresses, port.arrivals())?;
        // Those that are there already are replaced.
        vpn.route(networks);
        // The predecessor's are mostly in force, and this process may have no right to change them.
        if let Some(Err(e)) = rules.as_deref().map(nat::apply) {
            log::warn!("tunnel: cannot apply the rules of \"nat\" again: {e:#}");
        }
        Ok(vpn)
    }

    fn begin(self, registry: StatusRegistry, management: Option<Socket>, login: Option<Socket>) -> Result<Start> {
        let (sink, outlet) = server::inbox();
        let plane = self.plane.start(&config(&self.settings), sink).context("the tunnel's lanes cannot start")?;
        let notes = self.saved.notes.clone();
        Ok(Start {
            plane: Arc::from(plane),
            notes,
            settings: self.settings,
            outlet,
            registry,
            inherited: Some(self.saved),
            management,
            login,
        })
    }
}

/// Serves to the end; or until another process goes on, and if that one fails after all, goes on itself.
async fn serve_until_stopped(
    mut begin: Start,
    mut commands: mpsc::UnboundedReceiver<AdminCommand>,
    mut arrivals: Arrivals,
) -> Result<()> {
    loop {
        let registry = begin.registry.clone();
        let socket = begin.management.as_ref().and_then(|socket| socket.try_clone().ok());
        let (state, mut settings, asker) = match server::serve(begin, &mut commands, &mut arrivals).await? {
            Ended::Stopped => return Ok(()),
            Ended::Left(state, settings, asker) => (state, settings, asker),
        };
        let own = state.as_ref().map_err(|e| anyhow!("{e:#}")).and_then(|e| Ok(e.try_clone()?));
        let (outcome, mut heard) = oneshot::channel();
        let mut waits = asker.send(state.map(|state| Handed { state, outcome })).is_ok();
        while waits {
            tokio::select! {
                outcome = &mut heard => match outcome {
                    Ok(true) => return Ok(()),
                    Ok(false) | Err(_) => waits = false,
                },
                command = commands.recv() => match command {
                    // The end: whatever the other process makes of it.
                    None | Some(AdminCommand::Stop) => return Ok(()),
                    // The other process reads the changed file itself. This one may have to continue.
                    Some(AdminCommand::Lists(lists, asker)) => {
                        let taken = settings.tunnel.with_lists(&lists).map(|tunnel| *settings = settings.with_tunnel(tunnel));
                        // It fails only if the caller has gone.
                        let _ = asker.send(taken.map_err(|e| format!("{e:#}")));
                    }
                    Some(_) => {}
                },
            }
        }
        log::warn!("tunnel: no process has taken over; this process continues");
        // A reload may have moved it, and the other process may have put its own in the place.
        let login = Socket::login_for(settings.oidc.as_ref(), true);
        begin = Vpn::prepare(*settings, own?)?.begin(registry, socket, login)?;
    }
}

/// Networks behind clients.
fn behind_clients(settings: &Settings) -> HashSet<Prefix> {
    settings.clients.values().flat_map(|c| c.routes.iter().copied()).collect()
}

fn config(settings: &Settings) -> Config {
    let four = settings.network4.map(|(a, len)| (IpAddr::V4(a), len));
    let six = settings.network6.map(|(a, len)| (IpAddr::V6(a), len));
    Config {
        role: Role::Server { client_to_client: settings.client_to_client },
        interface: settings.device.clone(),
        lanes: settings.lanes,
        mtu: settings.mtu,
        gather: settings.gather,
        access_lists: settings.has_access_lists(),
        rates: settings.has_rates(),
        takes_connections: settings.shares_port,
        addresses: four.into_iter().chain(six).collect(),
        routes: behind_clients(settings).into_iter().collect(),
        ..Config::default()
    }
}

/// Which plane serves and why, and what it does not do of what the settings ask.
fn notes(plane: &dyn Plane, not_kernel: Option<String>, settings: &Settings) -> Vec<String> {
    let not_kernel = not_kernel.map(|why| format!("data plane: user space, because {why}"));
    let mut notes: Vec<String> = not_kernel.into_iter().collect();
    if settings.epoch && !plane.supports(Feature::Epoch) {
        notes.push(
            "the kernel's data plane does not support \"epoch\": all clients get the classic packet format".to_owned(),
        );
    }
    if settings.mssfix > 0 && !plane.supports(Feature::MaxSegment) {
        notes.push(
            "the kernel's data plane does not change the TCP segment size: instead of \"mssfix\", use nft add rule … tcp flags syn \
             tcp option maxseg size set …"
                .to_owned(),
        );
    }
    if settings.has_access_lists() && !plane.supports(Feature::AccessLists) {
        notes.push("the kernel's data plane has no access lists: the gateway refuses clients that have one".to_owned());
    }
    if settings.has_rates() && !plane.supports(Feature::Rates) {
        notes.push("the kernel's data plane has no rates: the gateway refuses clients that have one".to_owned());
    }
    if settings.client_to_client && !plane.supports(Feature::ClientToClient) {
        notes.push(
            "client_to_client with the kernel's data plane: packets between clients pass the system's forwarding and firewall"
                .to_owned(),
        );
    }
    notes.extend(reached(settings).not_forwarded());
    notes
}

fn networks_of(settings: &Settings) -> Networks {
    Networks { four: settings.network4, six: settings.network6 }
}

/// The networks of clients from which other networks are to be reached, as far as the settings tell.
fn reached(settings: &Settings) -> Networks {
    let of_clients = settings.clients.values().flat_map(|client| &client.push);
    let of_clients = of_clients.chain(settings.groups.iter().flat_map(|group| &group.push));
    let mut reached = Networks::default();
    for option in settings.push.iter().chain(&settings.push_unlisted).chain(of_clients) {
        let mut words = option.split_ascii_whitespace();
        let (four, six) = match words.next() {
            Some("route") => (true, false),
            Some("route-ipv6") => (false, true),
            Some("redirect-gateway") => (true, words.any(|word| word == "ipv6")),
            _ => continue,
        };
        reached.four = reached.four.or(settings.network4.filter(|_| four));
        reached.six = reached.six.or(settings.network6.filter(|_| six));
    }
    reached
}

/// Why there is no interface, and what to do. `of_client`: for the client, not for the server.
pub(crate) fn no_interface(device: &str, of_client: bool, kind: io::ErrorKind) -> String {
    // The kernel replaces `%d` with the first number that is free.
    let device = device.replace("%d", "0");
    let (package, start, setting) = match of_client {
        false => (
            "under sealane.service, install the package sealane-openvpn; ",
            "otherwise start as root",
            "\"device\" in [tunnel]",
        ),
        true => {
            ("", "start the client with sudo, or with the systemd unit sealane-client@NAME", "`dev` in the profile")
        }
    };
    let remedy = match kind {
        io::ErrorKind::NotFound => format!(
            "there is no /dev/net/tun: {package}in a container, pass the device; otherwise run `sudo modprobe tun`"
        ),
        io::ErrorKind::PermissionDenied => format!("this needs CAP_NET_ADMIN and /dev/net/tun: {package}{start}"),
        // The kernel says `EEXIST`, `EBUSY` or `EINVAL`, depending on what has the name.
        io::ErrorKind::AlreadyExists | io::ErrorKind::ResourceBusy | io::ErrorKind::InvalidInput => {
            format!("is there an interface with this name? `ip link` lists them; {setting} sets another name")
        }
        _ => return format!("cannot create the tunnel's interface {device}"),
    };
    format!("cannot create the tunnel's interface {device} ({remedy})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_depends_on_why_there_is_no_interface() {
        let says = |of_client, kind| no_interface("tun%d", of_client, kind);
        let taken = says(false, io::ErrorKind::AlreadyExists);
        assert!(
            taken.contains("tun0 (is there an interface with this name?") && !taken.contains("CAP_NET_ADMIN"),
            "{taken}"
        );
        assert!(says(true, io::ErrorKind::ResourceBusy).contains("`dev` in the profile"));
        assert!(says(false, io::ErrorKind::PermissionDenied).contains("install the package sealane-openvpn"));
        assert!(!says(true, io::ErrorKind::NotFound).contains("sealane.service"));
        assert_eq!(says(true, io::ErrorKind::OutOfMemory), "cannot create the tunnel's interface tun0");
    }
}
