//! The sockets that are listened on. They stay open as long as their address is configured, whatever else changes, and
//! pass to a successor as they are.

use crate::certificates::ticket_keys::TicketRing;
use crate::compression;
use crate::config::{Config, ListenAddress, Mode, UnixSocket, snapshot_parts};
use crate::fleet::Fleet;
use crate::log;
use crate::metrics::latency::Latencies;
use crate::run::sockets::{self, Opened, OpenedUdp};
use crate::run::syn_tls;
use crate::upgrade::handover::{Inherited, InheritedState, InheritedUnix};
use anyhow::{Context, Result};
use sealane_proxy::QuicPredecessor;
use sealane_proxy::challenges::Challenges;
use sealane_proxy::limits::SharedRates;
use sealane_proxy::on_demand::OnDemand;
use sealane_proxy::shared_tickets::TicketStore;
use sealane_proxy::snapshot::{Listener, Snapshot};
use sealane_proxy::traces::TraceRules;
use sealane_proxy::tunnel_port::TunnelPort;
use sealane_proxy::unix_clients::UNIX_CLIENT;
use sealane_sys::fastopen::Sysctl;
use sealane_sys::unix_socket::{Rights, SocketFile};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Open sockets by the address as configured, each with an id that is stable while it is open.
#[derive(Debug, Default)]
pub struct Listeners {
    open: HashMap<SocketAddr, (u32, Opened)>,
    /// Unix sockets by their path.
    unix: HashMap<PathBuf, OpenUnix>,
    /// Those for QUIC, by the address as configured.
    udp: HashMap<SocketAddr, OpenedUdp>,
    /// Those of listeners that relay datagrams, by the address as configured.
    relays: HashMap<SocketAddr, OpenRelay>,
    /// UDP sockets of a predecessor, not yet asked for.
    inherited_udp: Vec<Inherited>,
    /// A predecessor reads its UDP sockets still: lanes get them later.
    udp_waits: bool,
    /// What our QUIC connection ids begin with.
    generation: u8,
    /// Processes before this one that have QUIC connections at the same sockets.
    predecessors: Arc<[QuicPredecessor]>,
    next_id: u32,
    /// Where durations are recorded.
    latencies: Arc<Latencies>,
    /// Answers to certificate authorities.
    challenges: Arc<Challenges>,
    /// Where lanes report names without a certificate.
    on_demand: Option<Arc<OnDemand>>,
    /// Where single-use tickets are that gateways share.
    shared_tickets: Option<Arc<TicketStore>>,
    /// Rates that gateways hold together.
    shared_rates: Option<Arc<SharedRates>>,
    /// How requests are traced.
    traces: Option<Arc<TraceRules>>,
    /// Where connections of OpenVPN clients go.
    tunnel: Option<Arc<TunnelPort>>,
    /// No longer configured; open until the last lane has let go. An address that comes back meanwhile finds its
    /// sockets here, since it could not be bound anew.
    leaving: HashMap<SocketAddr, (u32, SocketAddr, Vec<Weak<OwnedFd>>)>,
    /// Opened by a predecessor or by the service manager, and not yet asked for.
    inherited: Vec<Inherited>,
    inherited_unix: Vec<InheritedUnix>,
    /// The Unix sockets that a successor has been handed.
    passed_unix: HashSet<PathBuf>,
}

/// A Unix socket that is open.
#[derive(Debug)]
struct OpenUnix {
    /// The listener's.
    id: u32,
    socket: Arc<OwnedFd>,
    rights: Rights,
    /// Its file, to be removed at the end; `None`: the service manager has made it.
    file: Option<SocketFile>,
}

/// The sockets of a listener that relays datagrams.
#[derive(Debug)]
struct OpenRelay {
    /// The listener's.
    id: u32,
    bound: SocketAddr,
    sockets: Vec<Arc<OwnedFd>>,
}

impl Drop for OpenUnix {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

impl OpenUnix {
    /// Whether clients find it at its path.
    fn is_there(&self) -> bool {
        self.file.as_ref().is_none_or(SocketFile::is_there)
    }
}

/// The first generation after the last one that none of these has.
fn generation_after(predecessors: &[QuicPredecessor]) -> u8 {
    let taken = |g: &u8| predecessors.iter().any(|e| e.generation == *g);
    let last = predecessors.first().map_or(0, |e| e.generation);
    (1..=u8::MAX).map(|n| last.wrapping_add(n)).find(|g| !taken(g)).unwrap_or(last)
}

impl Listeners {
    /// None open, but these to be used where their address is configured.
    pub fn of(inherited_state: &mut InheritedState, latencies: Arc<Latencies>) -> Self {
        let predecessors: Arc<[QuicPredecessor]> = std::mem::take(&mut inherited_state.predecessors).into();
        Self {
            inherited: std::mem::take(&mut inherited_state.listeners),
            inherited_unix: std::mem::take(&mut inherited_state.unix),
            udp_waits: !inherited_state.udp.is_empty(),
            inherited_udp: std::mem::take(&mut inherited_state.udp),
            generation: generation_after(&predecessors),
            predecessors,
            latencies,
            ..Self::default()
        }
    }

    /// What the next snapshots answer to certificate authorities.
    pub fn set_challenges(&mut self, challenges: Arc<Challenges>) {
        self.challenges = challenges;
    }

    /// Where lanes of the next snapshots report names without a certificate.
    pub fn set_on_demand(&mut self, on_demand: Option<Arc<OnDemand>>) {
        self.on_demand = on_demand;
    }

    /// What the lanes of the next snapshots share with other gateways.
    pub fn set_shared(&mut self, fleet: &Fleet) {
        (self.shared_tickets, self.shared_rates) = (fleet.tickets(), fleet.rates());
    }

    /// How the lanes of the next snapshots trace requests.
    pub fn set_traces(&mut self, rules: Option<Arc<TraceRules>>) {
        self.traces = rules;
    }

    /// Where lanes of the next snapshots hand connections of OpenVPN clients to.
    pub fn set_tunnel(&mut self, port: Option<Arc<TunnelPort>>) {
        self.tunnel = port;
    }

    /// No predecessor reads UDP any more.
    pub fn read_udp(&mut self) {
        self.udp_waits = false;
    }

    /// The processes whose QUIC connections are at our sockets.
    pub fn predecessors(&self) -> Arc<[QuicPredecessor]> {
        self.predecessors.clone()
    }

    /// What our QUIC connection ids begin with.
    pub fn generation(&self) -> u8 {
        self.generation
    }

    /// Listeners' ids by their address as bound.
    pub fn ids(&self) -> HashMap<SocketAddr, u32> {
        self.open.values().map(|(id, opened)| (opened.address, *id)).collect()
    }

    /// What is published for a configuration; opens what is not open yet.
    ///
    /// Errors: an address that cannot be listened on.
    pub fn snapshot(&mut self, config: &Config, ring: &TicketRing, generation: u64) -> Result<Snapshot> {
        let parts = snapshot_parts(config);
        let mut listeners: Vec<Arc<Listener>> = Vec::new();
        let mut sockets = Vec::new();
        let syn_data = Sysctl::read().is_some_and(Sysctl::server);
        for listener in parts.listeners {
            let address = match &listener.address {
                ListenAddress::Ip(address) => *address,
                ListenAddress::Unix(wanted) => {
                    let wanted = wanted.clone();
                    let (id, socket) = self.unix_socket(&wanted)?;
                    sockets.push(vec![socket; config.lanes.max(1)]);
                    listeners.push(Arc::new(listener.bound(id, UNIX_CLIENT, Vec::new())));
                    continue;
                }
            };
            if listener.mode == Mode::Udp {
                let relay = self.relay(address, config.lanes).map_err(|e| config.locate_address(address, e))?;
                let udp = if self.udp_waits { Vec::new() } else { self.relays[&address].sockets.clone() };
                sockets.push(Vec::new());
                listeners.push(Arc::new(listener.bound(relay.0, relay.1, udp)));
                continue;
            }
            if !self.open.contains_key(&address) {
                let opened = self.open(address, config.lanes).map_err(|e| config.locate_address(address, e))?;
                self.open.insert(address, opened);
            }
            let (id, opened) = &self.open[&address];
            if let Err(e) = syn_tls::apply(&opened.sockets, listener.syn_tls, &ring.current()) {
                log::warn!("{address}: TLS handshakes cannot begin in the SYN: {e}");
            }
            let udp = match (&listener.http3, self.udp.entry(address)) {
                (None, _) => Vec::new(),
                (Some(_), Entry::Occupied(open)) => open.get().sockets.clone(),
                (Some(_), Entry::Vacant(place)) => {
                    let inherited = self.inherited_udp.iter().position(|l| l.bound == opened.address);
                    let udp = match inherited {
                        Some(i) => {
                            let Inherited { bound, sockets, .. } = self.inherited_udp.swap_remove(i);
                            sockets::complete_udp(bound, sockets, config.lanes)
                        }
                        None => sockets::open_udp(opened.address, config.lanes)
                            .map_err(|e| config.locate_address(address, anyhow::anyhow!("{e} (for HTTP/3)")))?,
                    };
                    place.insert(udp).sockets.clone()
                }
            };
            let udp = if self.udp_waits { Vec::new() } else { udp };
            sockets.push(opened.sockets.clone());
            let mut listener = listener.bound(*id, opened.address, udp);
            // To look for a hello in the SYN takes a system call per connection. That is spared where the kernel takes none;
            // what the safety of "open" depends on is looked for in any case, since the kernel may be told otherwise later.
            listener.syn_tls.data &= syn_data || listener.syn_tls.unproven;
            listeners.push(Arc::new(listener));
        }
        Ok(Snapshot {
            generation,
            listeners,
            sockets,
            upstreams: parts.upstreams,
            routing: parts.routing,
            access: parts.access,
            redirects: parts.redirects,
            ticket_keys: ring.current(),
            limits: parts.limits,
            access_log: parts.access_log,
            quic_generation: self.generation,
            quic_predecessors: self.predecessors.clone(),
            challenges: self.challenges.clone(),
            latency: self.latencies.places(config),
            on_demand: self.on_demand.clone(),
            shared_tickets: self.shared_tickets.clone(),
            shared_rates: self.shared_rates.clone(),
            traces: self.traces.clone(),
            request_ids: config.request_ids.clone(),
            codecs: config.compression_place.as_ref().and_then(|_| compression::codecs()),
            tunnel: self.tunnel.clone(),
        })
    }

    /// Opens the sockets of a listener that relays datagrams, unless they are open. Returns the listener's id and the address as
    /// bound.
    fn relay(&mut self, address: SocketAddr, slots: usize) -> Result<(u32, SocketAddr), sockets::SocketError> {
        if let Some(open) = self.relays.get(&address) {
            return Ok((open.id, open.bound));
        }
        let inherited = self.inherited_udp.iter().position(|l| l.bound == address);
        let (bound, sockets) = match inherited.map(|at| self.inherited_udp.swap_remove(at)) {
            Some(Inherited { bound, sockets, .. }) => (bound, sockets::complete_relay(bound, sockets, slots)),
            None => sockets::open_relay(address, slots)?,
        };
        let id = self.next_id;
        self.next_id += 1;
        self.relays.insert(address, OpenRelay { id, bound, sockets });
        Ok((id, bound))
    }

    /// The Unix socket of a listener, with the listener's id. One that is open stays as it is, as long as clients find it; its file
    /// gets the rights that are configured.
    fn unix_socket(&mut self, wanted: &UnixSocket) -> Result<(u32, Arc<OwnedFd>)> {
        // Somebody has removed or replaced the file: who comes then is not ours any more.
        self.unix.retain(|path, open| *path != wanted.path || open.is_there());
        if let Some(open) = self.unix.get_mut(&wanted.path) {
            if open.rights != wanted.rights && open.file.is_some() {
                wanted
                    .rights
                    .apply(&wanted.path)
                    .with_context(|| format!("cannot change the owner or permissions of {wanted}"))?;
                open.rights = wanted.rights;
            }
            return Ok((open.id, open.socket.clone()));
        }
        let inherited = self.inherited_unix.iter().position(|socket| socket.path == wanted.path);
        let (socket, file) = match inherited.map(|at| self.inherited_unix.swap_remove(at)) {
            Some(InheritedUnix { socket, file: None, .. }) => (socket, None),
            Some(InheritedUnix { socket, file: Some(file), .. }) if file.is_there() => {
                wanted
                    .rights
                    .apply(&wanted.path)
                    .with_context(|| format!("cannot change the owner or permissions of {wanted}"))?;
                (socket, Some(file))
            }
            // A predecessor's may have lost its file.
            Some(_) | None => sockets::open_unix(wanted).map(|(socket, file)| (socket, Some(file)))?,
        };
        let id = self.next_id;
        self.next_id += 1;
        let open = OpenUnix { id, socket: socket.clone(), rights: wanted.rights, file };
        self.unix.insert(wanted.path.clone(), open);
        Ok((id, socket))
    }

    /// A successor serves: the files of Unix sockets that it has are its own now, and the others go.
    pub fn leave_unix(&mut self) {
        for (path, open) in &mut self.unix {
            if self.passed_unix.contains(path) {
                open.file = None;
            }
        }
        self.unix.clear();
    }

    fn open(&mut self, address: SocketAddr, slots: usize) -> Result<(u32, Opened), sockets::SocketError> {
        if let Some((id, bound, sockets)) = self.leaving.remove(&address) {
            let sockets: Vec<Arc<OwnedFd>> = sockets.iter().filter_map(Weak::upgrade).collect();
            if !sockets.is_empty() {
                return Ok((id, sockets::complete(Opened { address: bound, sockets }, slots)));
            }
        }
        let fits = |l: &Inherited| l.configured.unwrap_or(l.bound) == address;
        let opened = match self.inherited.iter().position(fits) {
            Some(i) => {
                let Inherited { bound, sockets, .. } = self.inherited.swap_remove(i);
                sockets::complete(Opened { address: bound, sockets }, slots)
            }
            None => sockets::open(address, slots)?,
        };
        let id = self.next_id;
        self.next_id += 1;
        Ok((id, opened))
    }

    /// Closes what is no longer configured (once the lanes have let go of it, too).
    pub fn forget_unused(&mut self, config: &Config) {
        self.leaving.retain(|_, (_, _, sockets)| sockets.iter().any(|s| s.strong_count() > 0));
        self.udp.retain(|address, _| config.has_http3_at(*address));
        self.relays.retain(|address, _| config.relays_udp_at(*address));
        self.unix.retain(|path, _| config.listeners.iter().any(|l| l.address.unix().is_some_and(|u| u.path == *path)));
        let is_used = |address: &SocketAddr| {
            config.listeners.iter().any(|l| l.mode != Mode::Udp && l.address.ip() == Some(*address))
        };
        let gone: Vec<SocketAddr> = self.open.keys().filter(|address| !is_used(address)).copied().collect();
        for address in gone {
            if let Some((id, opened)) = self.open.remove(&address) {
                let sockets = opened.sockets.iter().map(Arc::downgrade).collect();
                self.leaving.insert(address, (id, opened.address, sockets));
            }
        }
    }

    /// Closes what was inherited and is not configured. Says which.
    pub fn forget_inherited(&mut self) -> Vec<String> {
        self.inherited_udp.clear();
        let unix = self.inherited_unix.drain(..).map(|socket| format!("unix:{}", socket.path.display()));
        self.inherited.drain(..).map(|l| l.bound.to_string()).chain(unix).collect()
    }

    /// The address as bound for one as configured.
    pub fn bound(&self, configured: SocketAddr) -> Option<SocketAddr> {
        self.open.get(&configured).map(|(_, opened)| opened.address)
    }

    /// The address as bound of a listener.
    pub fn bound_of(&self, listener: &crate::config::Listener) -> Option<SocketAddr> {
        let configured = listener.address.ip()?;
        match listener.mode {
            Mode::Udp => self.relays.get(&configured).map(|relay| relay.bound),
            Mode::Http | Mode::Tcp => self.bound(configured),
        }
    }

    /// Where a listener is reached, for people.
    pub fn shown(&self, listener: &crate::config::Listener) -> String {
        self.bound_of(listener).map_or_else(|| listener.address.to_string(), |bound| bound.to_string())
    }

    /// All that is open, to be handed over.
    pub fn to_hand_over(&self) -> Vec<Inherited> {
        let entry = |(configured, (_, opened)): (&SocketAddr, &(u32, Opened))| Inherited {
            configured: Some(*configured),
            bound: opened.address,
            sockets: opened.sockets.clone(),
        };
        self.open.iter().map(entry).collect()
    }

    /// The Unix sockets that are open and that a successor with this configuration has, to be handed over.
    pub fn unix_to_hand_over(&mut self, next: &Config) -> Vec<InheritedUnix> {
        let is_wanted =
            |path: &PathBuf| next.listeners.iter().any(|l| l.address.unix().is_some_and(|socket| socket.path == *path));
        let passed = self.unix.iter().filter(|(path, _)| is_wanted(path));
        let passed: Vec<InheritedUnix> = passed
            .map(|(path, open)| InheritedUnix {
                path: path.clone(),
                socket: open.socket.clone(),
                file: open.file.clone(),
            })
            .collect();
        self.passed_unix = passed.iter().map(|socket| socket.path.clone()).collect();
        passed
    }

    /// The UDP sockets that are open: those that a successor with this configuration reads, to be handed over, and the
    /// addresses, as bound, of those that it has no use for.
    pub fn udp_to_hand_over(&self, next: &Config) -> (Vec<Inherited>, Vec<SocketAddr>) {
        let (mut passed, mut kept) = (Vec::new(), Vec::new());
        for (configured, udp) in &self.udp {
            let Some(bound) = self.bound(*configured) else { continue };
            if next.has_http3_at(*configured) {
                passed.push(Inherited { configured: Some(*configured), bound, sockets: udp.sockets.clone() });
            } else {
                kept.push(bound);
            }
        }
        // Nobody reads those that the successor has no use for: their listener is gone.
        for (configured, relay) in self.relays.iter().filter(|(configured, _)| next.relays_udp_at(**configured)) {
            let OpenRelay { bound, sockets, .. } = relay;
            passed.push(Inherited { configured: Some(*configured), bound: *bound, sockets: sockets.clone() });
        }
        (passed, kept)
    }
}
