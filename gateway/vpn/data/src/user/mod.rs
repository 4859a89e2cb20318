//! The user-space plane: lanes, each with a queue of the TUN, its own sockets, and its own peers.
//!
//! It works wherever there is a TUN. What makes it fast is offload on both sides: super-packets of the TUN are cut,
//! sealed and sent as one segmented message, and what comes as a train is opened and put together again.

mod bucket;
mod checksum;
mod coalesce;
mod core;
mod counters;
pub(crate) mod fuzzing;
mod handover;
mod ip;
mod lane;
mod outbox;
mod pace;
mod peer;
mod routes;
mod segment;
mod shared;
mod sockets;
mod stream;

pub use shared::Role;
pub use sockets::Sockets;

use crate::HandOver;
use crate::plane::{
    Command, DelReason, Event, Feature, PeerCounters, PeerId, PeerNew, PeerSet, Plane, Prefix, Refused, Sink, SocketId,
    Transport,
};
use counters::PeerStats;
use handover::Legacy;
use lane::Lane;
use routes::Table;
use sealane_lane::{Context, Inbox, Published, mailbox};
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_sys::tun::Tun;
use shared::{LaneDoor, Message, Shared};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What [`Config::gather`] is where nobody says otherwise: some ten packets of a stock client's bulk transfer, and less
/// than what a scheduler's whim adds to any of them.
pub const GATHER: Duration = Duration::from_micros(250);

/// What a plane is started with.
#[derive(Debug)]
pub struct Config {
    /// Server or client.
    pub role: Role,
    /// The interface's name; `%d` is numbered by the kernel.
    pub interface: String,
    /// Lanes; a client has one.
    pub lanes: u16,
    /// The cores to pin them to, in turn; none: not pinned.
    pub cores: Vec<usize>,
    /// The interface's largest packet.
    pub mtu: u16,
    /// Packets that may wait to be read from each queue of the TUN.
    pub queue: u32,
    /// Our addresses inside the VPN, with the lengths of their networks.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Networks to be routed into the interface.
    pub routes: Vec<Prefix>,
    /// Super-packets from and to the TUN. Off: for tests, and where something breaks them.
    pub offload: bool,
    /// The longest time that a lane gathers packets which come fast and singly (more than 20,000 a second); zero: every
    /// packet is handled when it comes.
    pub gather: Duration,
    /// Peers may have access lists.
    pub access_lists: bool,
    /// Peers may have rates.
    pub rates: bool,
    /// [`Command::SocketTake`] brings connections.
    pub takes_connections: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            role: Role::Server { client_to_client: false },
            interface: "sealane%d".into(),
            lanes: 1,
            cores: Vec::new(),
            mtu: 1500,
            queue: 1000,
            addresses: Vec::new(),
            routes: Vec::new(),
            offload: true,
            gather: GATHER,
            access_lists: false,
            rates: false,
            takes_connections: false,
        }
    }
}

/// A plane that another process has left: read and found good, but not begun. Nothing is sent or received before
/// [`Prepared::start`], so that it can still be dropped, and the other process go on instead.
pub struct Prepared(Legacy);

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("interface", &self.0.interface).finish_non_exhaustive()
    }
}

impl Prepared {
    /// Reads it.
    pub fn read(from: HandOver) -> io::Result<Self> {
        handover::read(from).map(Self)
    }

    /// Goes on. Of the configuration only role, cores and `gather` count.
    pub fn start(self, config: &Config, sink: Arc<dyn Sink>) -> io::Result<UserPlane> {
        UserPlane::run(config, self.0, sink)
    }

    /// The interface.
    pub fn interface(&self) -> &str {
        &self.0.interface
    }

    /// The addresses of its sockets: UDP's, then TCP's.
    pub fn addresses(&self) -> Vec<(Transport, SocketAddr)> {
        let udp = self.0.sockets.udp_addresses().into_iter().map(|a| (Transport::Udp, a));
        udp.chain(self.0.sockets.tcp_addresses().into_iter().map(|a| (Transport::Tcp, a))).collect()
    }
}

/// A peer as the plane's door knows it.
struct Known {
    remote: SocketAddr,
    /// Our packets to it carry no peer id, so neither do its own.
    unnumbered: bool,
    addresses: Vec<IpAddr>,
    routes: Vec<Prefix>,
    stats: Arc<PeerStats>,
}

impl Known {
    fn new(about: &PeerNew, stats: Arc<PeerStats>) -> Self {
        Self {
            remote: about.remote,
            unnumbered: about.sent_peer.is_none() && about.transport == Transport::Udp,
            addresses: about.vpn_ip4.map(IpAddr::V4).into_iter().chain(about.vpn_ip6.map(IpAddr::V6)).collect(),
            routes: about.routes.clone(),
            stats,
        }
    }
}

#[derive(Default)]
struct Registry {
    peers: HashMap<PeerId, Known>,
    table: Table,
}

/// The plane's door: control's side of it. Lanes end when it is dropped.
pub struct UserPlane {
    shared: Arc<Shared>,
    // Only commands take it, never a packet.
    registry: Mutex<Registry>,
    /// How many connections were taken: lanes get them in turn.
    taken: AtomicUsize,
    interface: String,
    threads: Mutex<Vec<JoinHandle<Option<Lane>>>>,
}

impl std::fmt::Debug for UserPlane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserPlane").field("interface", &self.interface).field("lanes", &self.lanes()).finish()
    }
}

impl UserPlane {
    /// Makes the interface in the calling thread's network namespace, sets it up, and starts the lanes.
    pub fn start(config: &Config, sockets: Sockets, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let lanes = if config.role == Role::Client { 1 } else { config.lanes.max(1) };
        if sockets.udp.len() != usize::from(lanes) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "sockets are for another number of lanes"));
        }
        let Tun { name, queues } = Tun::open(&config.interface, usize::from(lanes), config.offload)?;
        set_up(&name, config)?;
        let legacy = Legacy { interface: name, queues, sockets, streams: Vec::new(), peers: Vec::new() };
        Self::run(config, legacy, sink)
    }

    /// Goes on where another process's plane has stopped, with its lanes, sockets, peers, keys and counters. Of the
    /// configuration only role, cores and `gather` count.
    pub fn resume(config: &Config, from: HandOver, sink: Arc<dyn Sink>) -> io::Result<Self> {
        Prepared::read(from)?.start(config, sink)
    }

    fn stop(&self) -> Vec<Option<Lane>> {
        for lane in &self.shared.lanes {
            let _ = lane.mailbox.send(Message::Stop);
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.drain(..).map(|thread| thread.join().ok().flatten()).collect()
    }

    fn run(config: &Config, legacy: Legacy, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let (mut doors, mut inboxes) = (Vec::new(), Vec::new());
        for _ in &legacy.queues {
            let (door, inbox) = mailbox(shared::CAPACITY)?;
            doors.push(LaneDoor::new(door));
            inboxes.push(inbox);
        }
        let mut registry = Registry::default();
        for peer in &legacy.peers {
            let known = Known::new(&peer.about, peer.stats.clone());
            registry.enter(peer.about.peer, &known);
            registry.peers.insert(peer.about.peer, known);
        }
        let routes = Published::new(registry.table.routes());
        let shared = Arc::new(Shared {
            role: config.role,
            gather: config.gather,
            sink,
            routes,
            lanes: doors,
            started: Instant::now(),
            stopped: Default::default(),
        });
        let mut plane = Self {
            shared: shared.clone(),
            registry: Mutex::new(registry),
            taken: AtomicUsize::new(0),
            interface: legacy.interface,
            threads: Mutex::default(),
        };
        let (mut streams, mut peers) = (legacy.streams, legacy.peers);
        let Sockets { udp, listeners, notes } = legacy.sockets;
        notes.into_iter().for_each(|note| shared.sink.event(Event::Note(note)));
        let parts = legacy.queues.into_iter().zip(udp).zip(listeners).zip(inboxes);
        for (number, (((queue, udp), listeners), inbox)) in parts.enumerate() {
            let core = (!config.cores.is_empty()).then(|| config.cores[number % config.cores.len()]);
            let number = number as u16;
            let mut cx = Context::new()?;
            let mut lane = Lane::new(number, shared.clone(), queue, udp, listeners, &cx)?;
            let own_streams = streams.extract_if(.., |(id, _)| id.lane() == number);
            let own_streams = own_streams.map(|(id, stream)| (id.number(), stream)).collect();
            let own_peers = peers.extract_if(.., |p| shared.lane_of(p.about.peer) == number).collect();
            lane.inherit(&mut cx, own_streams, own_peers);
            let thread = std::thread::Builder::new().name(format!("tunnel-{number}"));
            let sink = shared.sink.clone();
            let thread = thread.spawn(move || run_lane(core, cx, lane, &inbox, &*sink))?;
            plane.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(plane)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, registry: &Registry) {
        // Lanes look before each batch; they need not be woken for it.
        self.shared.routes.publish(registry.table.routes());
    }

    fn mail(&self, peer: PeerId, message: Message) -> Result<(), Refused> {
        let lane = usize::from(self.shared.lane_of(peer));
        self.shared.lanes[lane].mailbox.send(message).map_err(Refused::from)
    }

    /// Mail about a peer that must be there.
    fn mail_known(&self, peer: PeerId, message: Message) -> Result<(), Refused> {
        if !self.registry().peers.contains_key(&peer) {
            return Err(Refused::NoPeer(peer));
        }
        self.mail(peer, message)
    }

    fn mail_socket(&self, socket: SocketId, message: Message) -> Result<(), Refused> {
        let door = self.shared.lanes.get(usize::from(socket.lane())).ok_or(Refused::NoSocket(socket))?;
        door.mailbox.send(message).map_err(Refused::from)
    }

    fn peer_new(&self, new: PeerNew) -> Result<(), Refused> {
        let (id, lane) = (new.peer, self.shared.lane_of(new.peer));
        if usize::from(new.socket.lane()) >= self.shared.lanes.len()
            || (new.transport == Transport::Tcp && new.socket.lane() != lane)
        {
            return Err(Refused::NoSocket(new.socket));
        }
        if new.routes.len() > MAX_ROUTES {
            return Err(Refused::Invalid("more routes to a peer than 1,024"));
        }
        let mut registry = self.registry();
        if registry.peers.contains_key(&id) {
            return Err(Refused::PeerExists(id));
        }
        if self.shared.role == Role::Client && !registry.peers.is_empty() {
            return Err(Refused::Invalid("a client has one peer"));
        }
        let known = Known::new(&new, Arc::default());
        registry.free(id, &known.addresses, &new.routes)?;
        let stats = known.stats.clone();
        registry.enter(id, &known);
        registry.peers.insert(id, known);
        // The lane knows the peer before packets are routed to it.
        self.mail(id, Message::PeerNew(Box::new(new), stats))?;
        self.publish(&registry);
        Ok(())
    }

    fn peer_set(&self, id: PeerId, set: PeerSet) -> Result<(), Refused> {
        let mut registry = self.registry();
        let known = registry.peers.get(&id).ok_or(Refused::NoPeer(id))?;
        let mut addresses = known.addresses.clone();
        for new in set.vpn_ip4.map(IpAddr::V4).into_iter().chain(set.vpn_ip6.map(IpAddr::V6)) {
            addresses.retain(|old| old.is_ipv4() != new.is_ipv4());
            addresses.push(new);
        }
        let routes = set.routes.clone().unwrap_or_else(|| known.routes.clone());
        if routes.len() > MAX_ROUTES {
            return Err(Refused::Invalid("more routes to a peer than 1,024"));
        }
        registry.free(id, &addresses, &routes)?;
        let Some(mut known) = registry.peers.remove(&id) else { return Err(Refused::NoPeer(id)) };
        registry.leave(&known);
        (known.addresses, known.routes) = (addresses, routes);
        known.remote = set.remote.unwrap_or(known.remote);
        registry.enter(id, &known);
        registry.peers.insert(id, known);
        self.mail(id, Message::PeerSet(id, Box::new(set)))?;
        self.publish(&registry);
        Ok(())
    }

    fn peer_del(&self, id: PeerId) -> Result<(), Refused> {
        let mut registry = self.registry();
        let known = registry.peers.remove(&id).ok_or(Refused::NoPeer(id))?;
        registry.leave(&known);
        self.publish(&registry);
        self.mail(id, Message::PeerDel(id, DelReason::Deleted))
    }

    fn now(&self) -> u64 {
        self.shared.started.elapsed().as_millis() as u64
    }
}

/// Networks behind one peer.
const MAX_ROUTES: usize = 1024;

impl Registry {
    /// Whether addresses and prefixes are nobody else's.
    fn free(&self, id: PeerId, addresses: &[IpAddr], routes: &[Prefix]) -> Result<(), Refused> {
        for address in addresses {
            if let Some(other) = self.table.holder(*address).filter(|other| *other != id) {
                let len = if address.is_ipv4() { 32 } else { 128 };
                let prefix = Prefix::new(*address, len).ok_or(Refused::Invalid("an address"))?;
                return Err(Refused::AddressTaken(prefix, other));
            }
        }
        for route in routes {
            if let Some(other) = self.table.prefix_holder(route).filter(|other| *other != id) {
                return Err(Refused::AddressTaken(*route, other));
            }
        }
        Ok(())
    }

    fn enter(&mut self, id: PeerId, known: &Known) {
        known.addresses.iter().for_each(|a| self.table.set_address(*a, Some(id)));
        self.table.set_prefixes(&known.routes, Some(id));
        if known.unnumbered {
            self.table.set_unnumbered(known.remote, Some(id));
        }
    }

    fn leave(&mut self, known: &Known) {
        known.addresses.iter().for_each(|a| self.table.set_address(*a, None));
        self.table.set_prefixes(&known.routes, None);
        if known.unnumbered {
            self.table.set_unnumbered(known.remote, None);
        }
    }
}

impl Plane for UserPlane {
    fn kind(&self) -> &'static str {
        "user"
    }

    fn lanes(&self) -> u16 {
        self.shared.lanes.len() as u16
    }

    fn interface(&self) -> &str {
        &self.interface
    }

    fn supports(&self, feature: Feature) -> bool {
        match feature {
            Feature::Tcp
            | Feature::Epoch
            | Feature::Unnumbered
            | Feature::MaxSegment
            | Feature::Inband
            | Feature::HandOver
            | Feature::AccessLists
            | Feature::Rates
            | Feature::ClientToClient => true,
        }
    }

    fn command(&self, command: Command) -> Result<(), Refused> {
        match command {
            Command::PeerNew(new) => self.peer_new(new),
            Command::PeerSet(id, set) => self.peer_set(id, set),
            Command::PeerDel(id) => self.peer_del(id),
            Command::KeyNew(new) if new.key_id > 7 => Err(Refused::Invalid("key ids have three bits")),
            Command::KeyNew(new) => self.mail_known(new.peer, Message::KeyNew(new)),
            Command::KeySwap(id) => self.mail_known(id, Message::KeySwap(id)),
            Command::KeyDel(id, slot) => self.mail_known(id, Message::KeyDel(id, slot)),
            Command::InbandOut(id, bytes) => self.mail_known(id, Message::InbandOut(id, bytes)),
            Command::ControlOut { socket, remote, local, bytes } => {
                self.mail_socket(socket, Message::ControlOut { socket, remote, local, bytes })
            }
            Command::SocketNew { lane, socket, fd } => {
                let door = self.shared.lanes.get(usize::from(lane)).filter(|_| socket.lane() == lane);
                let door = door.ok_or(Refused::NoSocket(socket))?;
                door.mailbox.send(Message::SocketNew(socket, fd)).map_err(Refused::from)
            }
            Command::SocketTake(taken) => {
                let at = self.taken.fetch_add(1, Ordering::Relaxed) % self.shared.lanes.len();
                self.shared.lanes[at].mailbox.send(Message::SocketTake(taken)).map_err(Refused::from)
            }
            Command::SocketConfirm(socket) => self.mail_socket(socket, Message::SocketConfirm(socket)),
            Command::SocketClose(socket) => self.mail_socket(socket, Message::SocketClose(socket)),
            Command::CountersGet(which) => {
                let now = self.now();
                let registry = self.registry();
                let read = |id: PeerId| Some(registry.peers.get(&id)?.stats.read(now));
                let asked: Vec<PeerId> = match which {
                    Some(id) if registry.peers.contains_key(&id) => vec![id],
                    Some(id) => return Err(Refused::NoPeer(id)),
                    None => registry.peers.keys().copied().collect(),
                };
                for peer in asked {
                    if let Some(counters) = read(peer) {
                        self.shared.sink.event(Event::Counters { peer, counters });
                    }
                }
                Ok(())
            }
        }
    }

    fn counters(&self, peer: PeerId) -> Option<PeerCounters> {
        let now = self.now();
        self.registry().peers.get(&peer).map(|known| known.stats.read(now))
    }

    fn hand_over(&self) -> io::Result<HandOver> {
        let lanes: Option<Vec<Lane>> = self.stop().into_iter().collect();
        // A lane that has failed takes its peers along: their keys' state is not known any more.
        let lanes = lanes.filter(|l| !l.is_empty()).ok_or_else(|| io::Error::other("a lane has ended before"))?;
        Ok(handover::write(&self.interface, lanes))
    }

    fn totals(&self) -> Vec<(&'static str, u64)> {
        let mut totals: Vec<(&'static str, u64)> = Vec::new();
        for lane in &self.shared.lanes {
            let values = lane.counters.values();
            if totals.is_empty() {
                totals = values;
            } else {
                totals.iter_mut().zip(values).for_each(|(total, (_, n))| total.1 += n);
            }
        }
        totals
    }
}

impl Drop for UserPlane {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run_lane(core: Option<usize>, cx: Context, lane: Lane, inbox: &Inbox<Message>, sink: &dyn Sink) -> Option<Lane> {
    let note = |text| sink.event(Event::Note(text));
    if let Some(core) = core
        && let Err(e) = sealane_sys::cpu::pin(core)
    {
        note(format!("a lane is not pinned to core {core}: {e}"));
    }
    sealane_lane::run(cx, lane, inbox).inspect_err(|e| note(format!("a lane has ended: {e}"))).ok()
}

/// Addresses, MTU and routes of the interface.
fn set_up(name: &str, config: &Config) -> io::Result<()> {
    let mut netlink = Netlink::route()?;
    let index = netlink.link_index(name)?;
    let (mtu, queue) = (Some(u32::from(config.mtu)), Some(config.queue));
    // Where IPv6 is switched off, the kernel knows no such setting, and no such address either.
    let _ = netlink.link_set(index, &LinkSet { only_given_addresses: true, ..LinkSet::default() });
    netlink.link_set(index, &LinkSet { mtu, queue, up: Some(true), ..LinkSet::default() })?;
    for (address, len) in &config.addresses {
        netlink.address_add(index, *address, *len)?;
    }
    for route in &config.routes {
        netlink.route_add(index, route.address(), route.len(), None)?;
    }
    Ok(())
}
