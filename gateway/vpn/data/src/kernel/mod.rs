//! The kernel's plane: Linux ≥ 6.16's `ovpn`, driven by generic netlink.
//!
//! Data packets never leave the kernel; one thread reads what it leaves on the sockets (control packets) and its
//! notifications. What this plane cannot do is refused by name: TCP, DATA_V1, the epoch format, access lists, rates, in-band
//! messages. Packets between peers always pass the system. Everything of it outlives a process (`handover.rs`). The kernel does
//! not change TCP's segment size either: `mssfix` is for the firewall (`nft … tcp option maxseg size set`).

mod family;
mod handover;
mod reader;

pub use handover::Prepared;

use crate::HandOver;
use crate::plane::{
    Command, Event, Feature, KeyNew, PeerCounters, PeerId, PeerNew, PeerSet, Plane, Refused, Sink, Transport,
};
use crate::user::{Config, Role, Sockets};
use family::{GROUP, MODE, NAME, Requests, counters};
use reader::{Counts, Message, Reader};
use sealane_lane::{Context, Mailbox, mailbox};
use sealane_ovpn::data::Format;
use sealane_sys::forwarding;
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_sys::udp::{Options, Socket};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

const NO_ACCESS_LISTS: &str =
    "the kernel's data plane has no access lists of peers; access lists need the user-space data plane";

const NO_RATES: &str =
    "the kernel's data plane has no rates of peers; upload_rate and download_rate need the user-space data plane";

/// The kernel's plane as control sees it. Peers, keys and the interface go when it is dropped, unless it was handed over.
pub struct KernelPlane {
    state: Arc<Mutex<State>>,
    /// Duplicates of the thread's sockets, for the kernel to take.
    sockets: Vec<OwnedFd>,
    requests: Requests,
    interface: String,
    sink: Arc<dyn Sink>,
    mailbox: Mailbox<Message>,
    counts: Arc<Counts>,
    thread: Mutex<Option<JoinHandle<Option<Reader>>>>,
    /// It goes on elsewhere: nothing more is done to it from here.
    handed: AtomicBool,
}

impl std::fmt::Debug for KernelPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelPlane").field("interface", &self.interface).finish_non_exhaustive()
    }
}

/// What a plane begins or goes on with: its link is there.
struct Parts {
    interface: String,
    requests: Requests,
    generic: Netlink,
    route: Netlink,
    notices: Netlink,
    udp: Vec<Socket>,
    peers: HashMap<PeerId, PeerNew>,
}

struct State {
    generic: Netlink,
    route: Netlink,
    peers: HashMap<PeerId, PeerNew>,
}

impl KernelPlane {
    /// Makes the interface in the calling thread's network namespace and begins to listen. The sockets are duplicated:
    /// where this fails, another plane can have them.
    ///
    /// Errors: `Unsupported` where the kernel has no `ovpn`, or the configuration asks for what it cannot do.
    pub fn start(config: &Config, sockets: &Sockets, sink: Arc<dyn Sink>) -> io::Result<Self> {
        if let Some(why) = cannot(config, sockets).map(str::to_owned).or_else(|| not_forwarded(config)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let (interface, requests, generic, mut route) = make_link(config)?;
        Self::run(config, interface, requests, generic, sockets, sink)
            .inspect_err(|_| drop(route.link_del(requests.interface)))
    }

    fn run(
        config: &Config,
        interface: String,
        requests: Requests,
        mut generic: Netlink,
        sockets: &Sockets,
        sink: Arc<dyn Sink>,
    ) -> io::Result<Self> {
        let mut route = Netlink::route()?;
        let link = requests.interface;
        route.link_set(link, &LinkSet { only_given_addresses: true, ..LinkSet::default() })?;
        route.link_set(link, &LinkSet { mtu: Some(config.mtu.into()), up: Some(true), ..LinkSet::default() })?;
        for (address, len) in &config.addresses {
            route.address_add(link, *address, *len)?;
        }
        for network in &config.routes {
            route.route_add(link, network.address(), network.len(), None)?;
        }
        let notices = Netlink::generic()?;
        let groups = generic.family(NAME)?.map(|f| f.groups).unwrap_or_default();
        if let Some((_, group)) = groups.iter().find(|(name, _)| name == GROUP) {
            notices.join(*group)?;
        }
        let mut udp = Vec::new();
        // The first lane's are enough; others would get packets of peers that the kernel expects at these.
        for socket in sockets.udp.first().into_iter().flatten() {
            // The kernel takes data packets out one by one; what is left comes one by one.
            let fd = socket.as_fd().try_clone_to_owned()?;
            udp.push(Socket::adopt(fd, &Options::default())?.without_offload());
        }
        Self::begin(Parts { interface, requests, generic, route, notices, udp, peers: HashMap::new() }, sink)
    }

    /// Begins to listen.
    fn begin(parts: Parts, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let Parts { interface, requests, generic, route, notices, udp, peers } = parts;
        let sockets = udp.iter().map(|s| s.as_fd().try_clone_to_owned()).collect::<io::Result<_>>()?;
        let (door, inbox) = mailbox(reader::CAPACITY)?;
        let counts = Arc::new(Counts::default());
        let state = Arc::new(Mutex::new(State { generic, route, peers }));
        let reader = Reader::new(udp, notices, requests, sink.clone(), state.clone(), counts.clone());
        let cx = Context::new()?;
        reader.watch(&cx)?;
        let notes = sink.clone();
        let run = move || {
            let ended = sealane_lane::run(cx, reader, &inbox);
            ended.inspect_err(|e| notes.event(Event::Note(format!("the kernel plane's reader has ended: {e}")))).ok()
        };
        let thread = Mutex::new(Some(std::thread::Builder::new().name("tunnel-kernel".into()).spawn(run)?));
        let handed = AtomicBool::new(false);
        Ok(Self { state, sockets, requests, interface, sink, mailbox: door, counts, thread, handed })
    }

    /// Ends the thread and takes what it had.
    fn stop(&self) -> Option<Reader> {
        let _ = self.mailbox.send(Message::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        thread.and_then(|thread| thread.join().ok().flatten())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peer_new(&self, new: PeerNew) -> Result<(), Refused> {
        if new.transport == Transport::Tcp {
            return Err(Refused::Unsupported(
                "the kernel's data plane supports only UDP; TCP peers need the user-space data plane",
            ));
        }
        if new.filter.is_some() {
            return Err(Refused::Unsupported(NO_ACCESS_LISTS));
        }
        if !new.rates.is_unlimited() {
            return Err(Refused::Unsupported(NO_RATES));
        }
        if new.sent_peer != Some(new.peer) {
            return Err(Refused::Unsupported("the kernel sends DATA_V2 with the peer's own id only"));
        }
        let socket = self.sockets.get(new.socket.number() as usize).ok_or(Refused::NoSocket(new.socket))?;
        let mut state = self.state();
        if state.peers.contains_key(&new.peer) {
            return Err(Refused::PeerExists(new.peer));
        }
        state.generic.ask(&self.requests.peer_new(&new, socket.as_fd()))?;
        let id = new.peer;
        let routes = state.route_in(self.requests.interface, &new);
        state.peers.insert(id, new);
        // A peer whose networks are not routed would look connected and be half deaf.
        routes.inspect_err(|_| drop(state.forget(self.requests, id))).map_err(Refused::Io)
    }

    fn peer_set(&self, id: PeerId, set: &PeerSet) -> Result<(), Refused> {
        if matches!(set.filter, Some(Some(_))) {
            return Err(Refused::Unsupported(NO_ACCESS_LISTS));
        }
        if set.rates.is_some_and(|rates| !rates.is_unlimited()) {
            return Err(Refused::Unsupported(NO_RATES));
        }
        let mut state = self.state();
        let mut about = state.peers.get(&id).ok_or(Refused::NoPeer(id))?.clone();
        state.generic.ask(&self.requests.peer_set(id, set))?;
        if let Some(routes) = &set.routes {
            for network in &about.routes {
                let _ = state.route.route_del(self.requests.interface, network.address(), network.len());
            }
            about.routes.clone_from(routes);
        }
        about.vpn_ip4 = set.vpn_ip4.or(about.vpn_ip4);
        about.vpn_ip6 = set.vpn_ip6.or(about.vpn_ip6);
        about.remote = set.remote.unwrap_or(about.remote);
        let routes = state.route_in(self.requests.interface, &about);
        state.peers.insert(id, about);
        Ok(routes?)
    }

    fn key_new(&self, new: &KeyNew) -> Result<(), Refused> {
        if new.format == Format::Epoch {
            return Err(Refused::Unsupported("the kernel knows packets with 32-bit ids only, not the epoch format"));
        }
        self.known(new.peer)?.generic.ask(&self.requests.key_new(new))?;
        let (peer, slot, key_id) = (new.peer, new.slot, new.key_id);
        self.sink.event(Event::KeyInstalled { peer, slot, key_id });
        Ok(())
    }

    /// The state, where the peer is known.
    fn known(&self, id: PeerId) -> Result<MutexGuard<'_, State>, Refused> {
        let state = self.state();
        if state.peers.contains_key(&id) { Ok(state) } else { Err(Refused::NoPeer(id)) }
    }
}

impl State {
    /// Routes the networks behind a peer to it: the kernel finds the peer by the route's gateway.
    fn route_in(&mut self, link: u32, peer: &PeerNew) -> io::Result<()> {
        for network in &peer.routes {
            let via =
                if network.address().is_ipv4() { peer.vpn_ip4.map(IpAddr::V4) } else { peer.vpn_ip6.map(IpAddr::V6) };
            self.route.route_add(link, network.address(), network.len(), via)?;
        }
        Ok(())
    }

    fn forget(&mut self, requests: Requests, id: PeerId) -> io::Result<()> {
        if let Some(peer) = self.peers.remove(&id) {
            for network in &peer.routes {
                let _ = self.route.route_del(requests.interface, network.address(), network.len());
            }
        }
        self.generic.ask(&requests.peer_del(id)).map(drop)
    }
}

impl Plane for KernelPlane {
    fn kind(&self) -> &'static str {
        "kernel"
    }

    fn lanes(&self) -> u16 {
        1
    }

    fn interface(&self) -> &str {
        &self.interface
    }

    fn supports(&self, feature: Feature) -> bool {
        feature == Feature::HandOver
    }

    fn command(&self, command: Command) -> Result<(), Refused> {
        if self.handed.load(Ordering::Acquire) {
            return Err(Refused::Gone);
        }
        match command {
            Command::PeerNew(new) => self.peer_new(new),
            Command::PeerSet(id, set) => self.peer_set(id, &set),
            Command::PeerDel(id) => Ok(self.known(id)?.forget(self.requests, id)?),
            Command::KeyNew(new) => self.key_new(&new),
            Command::KeySwap(id) => Ok(self.known(id)?.generic.ask(&self.requests.key_swap(id)).map(drop)?),
            Command::KeyDel(id, slot) => Ok(self.known(id)?.generic.ask(&self.requests.key_del(id, slot)).map(drop)?),
            Command::ControlOut { socket, remote, local, bytes } => {
                let number = socket.number() as usize;
                if number >= self.sockets.len() {
                    return Err(Refused::NoSocket(socket));
                }
                let message = Message::ControlOut { socket: number, remote, local, bytes };
                self.mailbox.send(message).map_err(Refused::from)
            }
            Command::InbandOut(..) => Err(Refused::Unsupported("the kernel sends no in-band messages")),
            Command::SocketNew { .. }
            | Command::SocketTake(_)
            | Command::SocketConfirm(_)
            | Command::SocketClose(_) => Err(Refused::Unsupported(
                "the kernel's data plane supports only UDP; TCP peers need the user-space data plane",
            )),
            Command::CountersGet(which) => {
                let request = match which {
                    Some(id) => self.requests.peer_get(id),
                    None => self.requests.peers_get(),
                };
                let answers = self.state().generic.ask(&request)?;
                for (peer, counters) in answers.iter().filter_map(counters) {
                    self.sink.event(Event::Counters { peer, counters });
                }
                Ok(())
            }
        }
    }

    fn counters(&self, peer: PeerId) -> Option<PeerCounters> {
        let answers = self.state().generic.ask(&self.requests.peer_get(peer)).ok()?;
        answers.iter().find_map(counters).map(|(_, counters)| counters)
    }

    fn hand_over(&self) -> io::Result<HandOver> {
        let reader = self.stop().ok_or_else(|| io::Error::other("the reader has ended before"))?;
        self.handed.store(true, Ordering::Release);
        let (notices, udp) = reader.into_parts();
        Ok(handover::write(&self.interface, notices, udp, self.state().peers.values()))
    }

    fn totals(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counts;
        let values = [
            ("control_in", &c.control_in),
            ("control_lost", &c.control_lost),
            ("control_out", &c.control_out),
            ("link_lost", &c.link_lost),
            ("drop_unknown_peer", &c.drop_unknown_peer),
            ("floats", &c.floats),
        ];
        values.map(|(name, value)| (name, value.load(Ordering::Relaxed))).to_vec()
    }
}

impl Drop for KernelPlane {
    fn drop(&mut self) {
        drop(self.stop());
        if !self.handed.load(Ordering::Acquire) {
            let interface = self.requests.interface;
            let _ = self.state().route.link_del(interface);
        }
    }
}

/// What the kernel cannot do for this configuration, if anything.
fn cannot(config: &Config, sockets: &Sockets) -> Option<&'static str> {
    if sockets.listeners.iter().any(|l| !l.is_empty()) {
        return Some("the kernel's data plane supports only UDP; TCP listeners need the user-space data plane");
    }
    if config.takes_connections {
        return Some(
            "the kernel's data plane supports only UDP; a listener with tunnel = true needs the user-space data plane",
        );
    }
    if config.access_lists {
        return Some(NO_ACCESS_LISTS);
    }
    config.rates.then_some(NO_RATES)
}

/// What the kernel does in another way than user space, so that it is done only where this plane is asked for.
pub(crate) fn differs(config: &Config) -> Option<&'static str> {
    (config.role == (Role::Server { client_to_client: true })).then_some(
        "client_to_client needs the user-space data plane, unless the system forwards packets between clients and its firewall lets \
         them pass: then write data_plane = \"kernel\"",
    )
}

/// Why packets would not pass between peers, who are to reach each other, if they would not.
fn not_forwarded(config: &Config) -> Option<String> {
    differs(config)?;
    let has = |v4: bool| config.addresses.iter().any(|(address, _)| address.is_ipv4() == v4);
    let (family, setting) = forwarding::missing(has(true), has(false)).into_iter().next()?;
    Some(format!(
        "client_to_client with the kernel's data plane needs a system that forwards {family}: sudo sysctl -w {setting}=1 (and a \
         file in /etc/sysctl.d to keep it)"
    ))
}

/// Removes what a process that died has left: its interface outlives it, and would keep the routes to our network. Of
/// this kind, with our address, and without peers, since those go with their sockets.
fn forget_orphans(config: &Config, route: &mut Netlink, generic: &mut Netlink) -> io::Result<()> {
    let Some(family) = generic.family(NAME)? else { return Ok(()) };
    for (address, _) in &config.addresses {
        for interface in route.links_with(*address)? {
            let peers = Requests { family: family.id, interface }.peers_get();
            if route.link_kind(interface)?.as_deref() == Some(NAME)
                && generic.ask(&peers).is_ok_and(|peers| peers.is_empty())
            {
                route.link_del(interface)?;
            }
        }
    }
    Ok(())
}

/// Makes the interface; the kernel loads the module when it has one.
fn make_link(config: &Config) -> io::Result<(String, Requests, Netlink, Netlink)> {
    let (mut route, mut generic) = (Netlink::route()?, Netlink::generic()?);
    forget_orphans(config, &mut route, &mut generic)?;
    let mode = u8::from(config.role != Role::Client);
    // Netlink completes no names, as TUN does.
    let name = match config.interface.split_once("%d") {
        None => config.interface.clone(),
        Some((before, after)) => (0..256)
            .map(|n| format!("{before}{n}{after}"))
            .find(|name| route.link_index(name).is_err())
            .ok_or(io::ErrorKind::AddrInUse)?,
    };
    route.link_add(&name, NAME, &[(MODE, vec![mode])]).map_err(|e| match e.raw_os_error() {
        // EOPNOTSUPP: there is no such kind of interface.
        Some(95) => io::Error::new(io::ErrorKind::Unsupported, "this kernel has no `ovpn` (Linux 6.16 has)"),
        _ => e,
    })?;
    let interface = route.link_index(&name)?;
    match generic.family(NAME) {
        Ok(Some(family)) => Ok((name, Requests { family: family.id, interface }, generic, route)),
        other => {
            let _ = route.link_del(interface);
            Err(other.err().unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reason names the setting, so that an operator knows what to change.
    #[test]
    fn what_the_kernel_cannot_do_is_named() {
        let none = Sockets::default();
        assert_eq!(cannot(&Config::default(), &none), None);
        let listener = OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let tcp = Sockets { listeners: vec![vec![listener]], ..Sockets::default() };
        for (config, sockets, part) in [
            (Config::default(), &tcp, "TCP listeners"),
            (Config { takes_connections: true, ..Config::default() }, &none, "tunnel = true"),
            (Config { access_lists: true, ..Config::default() }, &none, "access lists"),
            (Config { rates: true, ..Config::default() }, &none, "upload_rate"),
        ] {
            let why = cannot(&config, sockets).unwrap_or_default();
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn packets_between_peers_pass_the_system_only_where_that_is_asked_for() {
        let config = |client_to_client| Config { role: Role::Server { client_to_client }, ..Config::default() };
        assert_eq!(cannot(&config(true), &Sockets::default()), None);
        assert!(differs(&config(true)).is_some_and(|why| why.contains("client_to_client")));
        assert_eq!((differs(&config(false)), not_forwarded(&config(false))), (None, None));
        assert_eq!(differs(&Config { role: Role::Client, ..Config::default() }), None);
    }
}
