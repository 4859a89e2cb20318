//! QUIC in a lane: its sockets, endpoints, connections and timers, with quinn-proto for the protocol.
//!
//! ```text
//! socket ─ trains ─► datagram ─┬─► another lane's (by connection id): its mailbox
//!                              ├─► connection ─ events ─► client::h3, upstream::h3
//!                              └─► Incoming ─ retry | refuse | queue ─ admit ─► connection
//! socket ◄─ one batch per turn ◄─ flush ◄─ connections marked for it
//! ```
//! An endpoint belongs to one socket of one listener, and lives as long as connections of it do, also when the listener
//! has gone from the configuration. Connection ids name the socket ([`config`]), so that every packet finds its lane
//! after a change of the client's address: by `sealane_sys::steer` in the kernel, else by the mailbox.
//!
//! A datagram is passed on once: what came from another lane or process ([`Datagram`]) is this lane's, or nobody's. It is
//! passed on only under an id that carries our MAC, or under the first id of a hello whose ticket did. Mailboxes have a
//! capacity, and a datagram that does not fit is lost, as on any network.
//!
//! quinn-proto asks for time as `Instant` and wants timers finer than the lane's wheel: they are in a heap, and the
//! lane's loop wakes for the first of them.

pub(crate) mod admission;
pub(crate) mod config;
pub(crate) mod conn;
pub(crate) mod send;
pub(crate) mod succession;

use crate::Message;
use crate::accept::admission::Admission;
use crate::client::h3::{h3_read, h3_read_uni, h3_stopped, h3_stream_opened};
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Counters;
use crate::lane_state::LaneListener;
use crate::quic::admission::{
    quic_admit, quic_established, quic_gave_up_hello, quic_hello_read, quic_incoming, quic_left, quic_lost,
};
use crate::quic::send::quic_flush_all;
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::upstream::h3::{h3_send_waiting, h3_server_established, h3_server_lost, h3_server_read, h3_server_stopped};
use admission::Waiting;
use bytes::BytesMut;
use conn::Phase;
use quinn_proto::{ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, EndpointEvent, StreamEvent};
use sealane_lane::{Context, Key};
use sealane_sys::udp::{Batch, Options, Socket};
use sealane_tls::ids::IdKey;
use sealane_tls::quic as tls_quic;
use send::Outgoing;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use succession::{Channel, QuicSuccessor, Sent};

/// Tokens of UDP sockets: the lower bits are the endpoint's index.
pub(crate) const UDP: u64 = 1 << 63 | 1 << 61;
/// Messages per system call.
const MESSAGES: usize = 16;
/// System calls per event, before others get their turn.
const READS: usize = 4;
/// A train of datagrams.
const TRAIN: usize = 65_535;
/// How much later than they may be the ids of ended connections are forgotten, where nothing else happens meanwhile.
const FORGETTING: Duration = Duration::from_millis(100);
/// Entries of the timers' heap, beside a few per connection, above which those that are stale are removed.
const STALE_TIMERS: usize = 256;
/// The kernel's buffers, wished for: a lane that is busy for a millisecond at 10 Gbit/s.
const SOCKET_BUFFER: usize = 2 << 20;

/// A datagram that came to a lane that does not own its connection.
#[derive(Debug)]
pub struct Datagram {
    /// Whose socket it came to.
    pub(crate) listener: u32,
    /// The socket, and so the endpoint, that owns its connection.
    pub(crate) slot: usize,
    pub(crate) remote: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) ecn: u8,
    /// It belongs to a client whom that lane has counted.
    pub(crate) counted: bool,
    /// Whatever process its id names knows no such connection: it begins one here.
    pub(crate) fresh: bool,
    pub(crate) data: BytesMut,
}

impl Datagram {
    /// The socket that owns its connection.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// What it takes of the room in a mailbox, in bytes.
    pub(crate) fn load(&self) -> usize {
        size_of::<Self>() + self.data.len()
    }
}

/// What is known of a datagram beside its bytes.
#[derive(Clone, Copy)]
struct Arrival {
    remote: SocketAddr,
    local: Option<IpAddr>,
    ecn: u8,
    counted: bool,
    /// It came from another lane, or another process: it is not passed on again.
    forwarded: bool,
}

/// One socket with its endpoint.
struct Endpoint {
    socket: Socket,
    endpoint: quinn_proto::Endpoint,
    /// Whose clients come here; `None` for connections to upstreams.
    listener: Option<Rc<LaneListener>>,
    /// Which of the listener's sockets it is.
    slot: usize,
    /// Connections by their handle.
    keys: Vec<Option<Key>>,
    /// The listener is gone: no new connections.
    leaving: bool,
}

/// A lane's QUIC: its sockets and what is on its way through them.
#[derive(Default)]
pub(crate) struct QuicEndpoint {
    endpoints: Vec<Option<Box<Endpoint>>>,
    batch: Option<Batch>,
    out: Outgoing,
    /// When connections want to be woken; entries may be out of date.
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Endpoints and handles of connections that their peers have closed, by when the last of their packets are over. The
    /// endpoint knows their ids until then, so that it does not answer; the rest of them is gone.
    closing: BinaryHeap<Reverse<(Instant, usize, usize)>>,
    /// Connections with events to look at.
    touched: Vec<Key>,
    waiting: VecDeque<Waiting>,
    /// Handshakes with clients under way.
    handshakes: usize,
    /// Clients' first connection ids whose hello was another lane's.
    moved: admission::Moved,
    /// Makes and checks the MACs of connection ids.
    ids: Option<Arc<IdKey>>,
    /// The process that reads our listeners' sockets now; it passes on what is ours.
    successor: Option<Arc<Channel>>,
}

impl QuicEndpoint {
    /// Watches the UDP sockets of this lane's slots; keeps those that are open.
    pub fn listen(&mut self, cx: &Context, settings: &LaneSettings) -> std::io::Result<()> {
        let lane = settings.lane().clone();
        let lanes = settings.lanes();
        for place in &mut self.endpoints {
            let Some(endpoint) = place else { continue };
            let Some(old) = &endpoint.listener else { continue };
            let id = old.listener.id;
            let new = lane.listeners.iter().find(|l| l.listener.id == id && l.listener.quic.is_some());
            // What a successor does not read is ours until the end, whatever is published meanwhile.
            endpoint.leaving = new.is_none() || self.successor.is_some() && endpoint.leaving;
            if let Some(new) = new {
                endpoint.listener = Some(new.clone());
            } else if endpoint.endpoint.open_connections() == 0 {
                cx.unwatch(&endpoint.socket);
                *place = None;
            }
        }
        for listener in &lane.listeners {
            let Some(quic) = &listener.listener.quic else { continue };
            for (slot, socket) in quic.sockets.iter().enumerate().skip(settings.slot()).step_by(lanes) {
                let id = listener.listener.id;
                let same = |e: &Endpoint| e.slot == slot && e.listener.as_ref().is_some_and(|l| l.listener.id == id);
                if self.endpoints.iter().flatten().any(|e| same(e)) {
                    continue;
                }
                let options = Options {
                    ecn: true,
                    receive_buffer: SOCKET_BUFFER,
                    send_buffer: SOCKET_BUFFER,
                    ..Options::default()
                };
                let mut socket = Socket::adopt(rustix::io::fcntl_dupfd_cloexec(socket, 0)?, &options)?;
                let probes = socket.probe_path().is_ok();
                if !quic.settings.offload {
                    socket = socket.without_offload();
                }
                let config = self.endpoint_config(settings, slot);
                let server = listener.quic_config(&lane.snapshot).map_err(std::io::Error::other)?;
                let endpoint = Endpoint {
                    socket,
                    endpoint: quinn_proto::Endpoint::new(config, server, probes, None),
                    listener: Some(listener.clone()),
                    slot,
                    keys: Vec::new(),
                    leaving: false,
                };
                self.add_endpoint(cx, endpoint)?;
            }
        }
        Ok(())
    }

    /// What quinn-proto is told of the endpoint at one of a listener's sockets.
    fn endpoint_config(&mut self, settings: &LaneSettings, slot: usize) -> Arc<quinn_proto::EndpointConfig> {
        let snapshot = &settings.snapshot();
        // The key that it is derived from outlives rotations.
        let ids = self.ids.get_or_insert_with(|| Arc::new(IdKey::of_connections(&snapshot.ticket_keys)));
        config::endpoint(&snapshot.ticket_keys, ids, snapshot.quic_generation, slot)
    }

    /// Puts an endpoint in and watches its socket.
    fn add_endpoint(&mut self, cx: &Context, endpoint: Endpoint) -> std::io::Result<usize> {
        let endpoints = &mut self.endpoints;
        let index = endpoints.iter().position(Option::is_none).unwrap_or(endpoints.len());
        cx.watch_listener(&endpoint.socket, UDP | index as u64)?;
        match endpoints.get_mut(index) {
            Some(place) => *place = Some(Box::new(endpoint)),
            None => endpoints.push(Some(Box::new(endpoint))),
        }
        if self.batch.is_none() {
            self.batch = Some(Batch::new(MESSAGES, TRAIN));
        }
        Ok(index)
    }

    /// Another process reads the listeners' sockets from now on, but for those that it has no use for.
    pub fn follow(&mut self, cx: &Context, successor: QuicSuccessor) {
        for endpoint in self.endpoints.iter_mut().flatten().filter(|e| !e.leaving) {
            let Some(listener) = &endpoint.listener else { continue };
            endpoint.leaving = successor.not_read.contains(&listener.listener.address);
            if !endpoint.leaving {
                cx.unwatch(&endpoint.socket);
            }
        }
        // With this, the word that this lane reads no more has gone out, too.
        self.successor = Some(successor.channel);
    }

    /// Begins a connection to a server.
    pub fn connect(
        &mut self,
        cx: &Context,
        settings: &LaneSettings,
        config: quinn_proto::ClientConfig,
        address: SocketAddr,
        name: &str,
    ) -> Option<(usize, ConnectionHandle, quinn_proto::Connection)> {
        let index = self.client_endpoint(cx, settings, address.is_ipv6())?;
        let endpoint = self.endpoints.get_mut(index)?.as_mut()?;
        let (handle, quic) = endpoint.endpoint.connect(cx.instant(), config, address, name).ok()?;
        Some((index, handle, quic))
    }

    /// The lane's endpoint for connections of its own.
    fn client_endpoint(&mut self, cx: &Context, settings: &LaneSettings, v6: bool) -> Option<usize> {
        let own = |e: &Endpoint| e.listener.is_none() && e.socket.address().is_ipv6() == v6;
        if let Some(index) = self.endpoints.iter().position(|e| e.as_ref().is_some_and(|e| own(e))) {
            return Some(index);
        }
        let any = if v6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
        let options =
            Options { ecn: true, receive_buffer: SOCKET_BUFFER, send_buffer: SOCKET_BUFFER, ..Options::default() };
        let socket = Socket::bind(SocketAddr::new(any, 0), &options).ok()?;
        let probes = socket.probe_path().is_ok();
        let slot = settings.slot();
        let config = self.endpoint_config(settings, slot);
        let endpoint = quinn_proto::Endpoint::new(config, None, probes, None);
        let endpoint = Endpoint { socket, endpoint, listener: None, slot, keys: Vec::new(), leaving: false };
        self.add_endpoint(cx, endpoint).ok()
    }

    /// New connections get the new settings. What fails stays as it was; control has checked it all, and the next snapshot
    /// tries again.
    pub fn refresh(&mut self, cx: &Context, settings: &LaneSettings) {
        let _ = self.listen(cx, settings);
        for endpoint in self.endpoints.iter_mut().flatten().filter(|e| !e.leaving) {
            if let Some(listener) = &endpoint.listener
                && let Ok(config) = listener.quic_config(settings.snapshot())
            {
                endpoint.endpoint.set_server_config(config);
            }
        }
    }

    /// Notes under which key a connection of an endpoint is known.
    fn note(&mut self, endpoint: usize, handle: ConnectionHandle, key: Key) {
        if let Some(Some(endpoint)) = self.endpoints.get_mut(endpoint) {
            if endpoint.keys.len() <= handle.0 {
                endpoint.keys.resize(handle.0 + 1, None);
            }
            endpoint.keys[handle.0] = Some(key);
        }
    }

    /// Clients wait for crypto time.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Another process reads the listeners' sockets.
    pub fn has_successor(&self) -> bool {
        self.successor.is_some()
    }

    /// Ids of connections that have ended and whose last packets are over are forgotten.
    fn forget_ended(&mut self, now: Instant) {
        while let Some(Reverse((at, index, handle))) = self.closing.peek().copied()
            && at <= now
        {
            self.closing.pop();
            if let Some(Some(endpoint)) = self.endpoints.get_mut(index) {
                let _ = endpoint.endpoint.handle_event(ConnectionHandle(handle), EndpointEvent::drained());
            }
        }
    }

    /// Passes a datagram on to the process or the lane that its connection id names, unless that is this lane: then it is
    /// given back.
    fn pass_on(
        &mut self,
        cx: &Context,
        settings: &LaneSettings,
        counters: &Counters,
        index: usize,
        arrival: &Arrival,
        data: BytesMut,
    ) -> Option<BytesMut> {
        let Arrival { remote, local, ecn, counted, forwarded } = *arrival;
        let endpoint = self.endpoints.get(index)?.as_ref()?;
        let Some(listener) = endpoint.listener.as_ref().filter(|_| !forwarded) else { return Some(data) };
        let (address, listener, slots) = (
            listener.listener.address,
            listener.listener.id,
            listener.listener.quic.as_ref().map_or(0, |q| q.sockets.len()),
        );
        let snapshot = &settings.snapshot();
        let key = self.ids.as_deref();
        let named = config::named(&data);
        if let Some(named) = named.filter(|n| n.generation == snapshot.quic_generation && n.slot < slots) {
            if named.slot == endpoint.slot {
                return Some(data);
            }
            if key.is_some_and(|key| named.is_made_with(key)) {
                let slot = named.slot;
                mail(settings, counters, listener, slot, arrival, &data);
                return None;
            }
            counters.forged_connection_ids.inc();
        } else if let Some(named) = named
            && let Some(predecessor) = snapshot.quic_predecessors.iter().find(|e| e.generation == named.generation)
        {
            let passes = match predecessor.ids_have_macs {
                true => key.is_some_and(|key| named.is_made_with(key)),
                false => named.may_be_without_mac(),
            };
            if passes {
                let message = Datagram { listener, slot: named.slot, remote, local, ecn, counted, fresh: false, data };
                return match predecessor.channel.send(address, &message) {
                    Sent::Yes => {
                        counters.quic_forwarded.inc();
                        None
                    }
                    Sent::Full => {
                        counters.quic_dropped_process.inc();
                        None
                    }
                    // Its connections have ended with it: a stateless reset tells the client.
                    Sent::Gone => Some(message.data),
                };
            }
            counters.forged_connection_ids.inc();
        }
        match self.moved.owner(cx.now(), remote, &data) {
            Some(slot) => {
                mail(settings, counters, listener, slot, arrival, &data);
                None
            }
            None => Some(data),
        }
    }

    /// When the first connection wants to be woken. Nobody wakes for those that have ended, or want it at another time now:
    /// in a storm of short connections each would cost a turn or two.
    fn first_timer(&mut self, connections: &Connections) -> Option<Instant> {
        while let Some(Reverse((at, token))) = self.timers.peek().copied() {
            if matches!(connections.get(Key::from_u64(token)), Some(Conn::Quic(q)) if q.armed == Some(at)) {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    /// Notes when a connection's protocol wants to be woken.
    pub fn arm(&mut self, connections: &mut Connections, key: Key) {
        let Some(q) = connections.quic(key) else { return };
        let own = [q.hold, q.brief_until];
        let Some(at) = q.quic.poll_timeout().into_iter().chain(own.into_iter().flatten()).min() else { return };
        // A timer that has moved back is found out when the old entry comes up.
        if q.armed.is_none_or(|armed| at < armed) {
            q.armed = Some(at);
            self.timers.push(Reverse((at, key.to_u64())));
        }
        // What timers that have moved forward left behind goes once it is most of what is there.
        if self.timers.len() > STALE_TIMERS + 4 * connections.len() {
            let connections = &*connections;
            let live = |at: Instant, token: u64| matches!(connections.get(Key::from_u64(token)), Some(Conn::Quic(q)) if q.armed == Some(at));
            self.timers.retain(|Reverse((at, token))| live(*at, *token));
        }
    }
}

/// Mails a datagram to the lane of one of a listener's sockets. What does not fit is lost, and counted there.
fn mail(settings: &LaneSettings, counters: &Counters, listener: u32, slot: usize, arrival: &Arrival, data: &[u8]) {
    let Arrival { remote, local, ecn, counted, .. } = *arrival;
    // A copy: what comes in trains would keep the whole train.
    let data = BytesMut::from(data);
    let message = Datagram { listener, slot, remote, local, ecn, counted, fresh: false, data };
    if settings.mailbox_of_socket(slot).send(Message::Datagram(Box::new(message))).is_ok() {
        counters.quic_forwarded.inc();
    }
}

/// Reads a UDP socket.
pub(crate) fn quic_ready(proxy: &mut Proxy, cx: &mut Context, index: usize) {
    let ours = |e: &Endpoint| proxy.quic.successor.is_none() || e.listener.is_none() || e.leaving;
    if !proxy.quic.endpoints.get(index).is_some_and(|e| e.as_ref().is_some_and(|e| ours(e))) {
        return;
    }
    let Some(mut batch) = proxy.quic.batch.take() else { return };
    let now = cx.instant();
    for _ in 0..READS {
        let Some(Some(endpoint)) = proxy.quic.endpoints.get_mut(index) else { break };
        // Errors are those of earlier sends (ICMP); timers deal with peers that are gone.
        let Ok(filled) = endpoint.socket.receive(&mut batch) else { break };
        for (meta, bytes) in batch.iter_mut() {
            if meta.truncated {
                proxy.counters.quic_dropped_oversize.inc();
                continue;
            }
            // A train is one allocation; its datagrams are parts of it.
            let mut train = BytesMut::from(&bytes[..]);
            while !train.is_empty() {
                let data = match meta.segment < train.len() {
                    true => train.split_to(meta.segment),
                    false => std::mem::take(&mut train),
                };
                let arrival =
                    Arrival { remote: meta.remote, local: meta.local, ecn: meta.ecn, counted: false, forwarded: false };
                quic_datagram(proxy, cx, index, now, arrival, data);
            }
        }
        if filled < MESSAGES {
            break;
        }
    }
    proxy.quic.batch = Some(batch);
    quic_look(proxy, cx);
}

/// One datagram: to the lane that owns it, or to its connection, or to be admitted.
fn quic_datagram(proxy: &mut Proxy, cx: &mut Context, index: usize, now: Instant, arrival: Arrival, data: BytesMut) {
    proxy.counters.quic_datagrams_in.inc();
    let Proxy { quic, settings, counters, .. } = proxy;
    let Some(data) = quic.pass_on(cx, settings, counters, index, &arrival, data) else { return };
    let Arrival { remote, local, ecn, counted, forwarded } = arrival;
    let lanes = proxy.settings.lanes();
    let Some(Some(endpoint)) = proxy.quic.endpoints.get_mut(index) else { return };
    // What another lane has passed on stays here, whosever ticket its hello has: that counts for nothing then.
    let keep = lanes > 1 && !forwarded && endpoint.listener.as_ref().is_some_and(|l| l.has_stateful_tickets());
    let raw = (keep || proxy.quic.successor.is_some()).then(|| data.clone());
    let mut answer = std::mem::take(&mut proxy.quic.out.scratch);
    answer.clear();
    let event = endpoint.endpoint.handle(now, remote, local, EcnCodepoint::from_bits(ecn), data, &mut answer);
    match event {
        None => {
            if let (true, Some(data)) = (keep, raw) {
                proxy.quic.waits(index, data);
            }
        }
        Some(DatagramEvent::ConnectionEvent(handle, event)) => {
            if let Some(Some(key)) = endpoint.keys.get(handle.0)
                && let Some(Conn::Quic(q)) = proxy.connections.get_mut(*key)
            {
                let may_move = !q.raw.is_empty();
                if let (true, Some(raw)) = (may_move, raw) {
                    q.raw.push(raw);
                }
                let ((), foreign) = tls_quic::hear(may_move, || q.quic.handle_event(event));
                q.foreign = q.foreign.or(foreign);
                proxy.quic.touched.push(*key);
            }
        }
        Some(DatagramEvent::NewConnection(incoming))
            if endpoint.listener.is_some() && !endpoint.leaving && proxy.quic.successor.is_some() =>
        {
            // Under an id that we made for a Retry: the successor's. Its client has proven its address, so nobody else
            // makes datagrams go back.
            let proven = incoming.remote_address_validated();
            endpoint.endpoint.ignore(incoming);
            if let (Some(successor), Some(listener), Some(data), true) =
                (&proxy.quic.successor, &endpoint.listener, raw, proven)
            {
                let (address, listener) = (listener.listener.address, listener.listener.id);
                let slot = endpoint.slot;
                let message = Datagram { listener, slot, remote, local, ecn, counted: false, fresh: true, data };
                // One that is gone is a network that has lost it.
                if successor.send(address, &message) == Sent::Full {
                    proxy.counters.quic_dropped_process.inc();
                }
            }
        }
        Some(DatagramEvent::NewConnection(incoming)) => {
            proxy.quic.out.scratch = answer;
            return quic_incoming(proxy, cx, index, incoming, raw, counted);
        }
        Some(DatagramEvent::Response(transmit)) => {
            // RFC 9000 §17.2.1: a long header of version 0.
            if matches!(answer[..], [128..=255, 0, 0, 0, 0, ..]) {
                proxy.counters.quic_version_negotiations.inc();
            }
            proxy.quic.out.push(index, &transmit, &answer);
        }
    }
    proxy.quic.out.scratch = answer;
}

/// A datagram that another lane got, of a connection that is one of this lane's.
pub(crate) fn quic_forwarded(proxy: &mut Proxy, cx: &mut Context, d: Datagram) {
    let own = |e: &Endpoint| e.slot == d.slot && e.listener.as_ref().is_some_and(|l| l.listener.id == d.listener);
    let found = proxy.quic.endpoints.iter().position(|e| e.as_ref().is_some_and(|e| own(e)));
    if let Some(index) = found {
        let now = cx.instant();
        let Datagram { remote, local, ecn, counted, .. } = d;
        let arrival = Arrival { remote, local, ecn, counted, forwarded: true };
        quic_datagram(proxy, cx, index, now, arrival, d.data);
        quic_look(proxy, cx);
    } else {
        proxy.counters.quic_dropped_misdirected.inc();
    }
}

/// Looks at the connections to which something has happened.
pub(crate) fn quic_look(proxy: &mut Proxy, cx: &mut Context) {
    while let Some(key) = proxy.quic.touched.pop() {
        quic_drive(proxy, cx, key);
    }
}

/// Acts on what a connection has to say.
pub(crate) fn quic_drive(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    if quic_gave_up_hello(
        &mut proxy.connections,
        &mut proxy.quic,
        &mut proxy.admission,
        &proxy.settings,
        &proxy.counters,
        cx,
        key,
    ) {
        return;
    }
    loop {
        let Some(Conn::Quic(q)) = proxy.connections.get_mut(key) else { return };
        let Some(event) = q.quic.poll() else { break };
        match event {
            quinn_proto::Event::Connected if q.is_client() => quic_established(proxy, cx, key),
            quinn_proto::Event::Connected => h3_server_established(proxy, cx, key),
            quinn_proto::Event::ConnectionLost { reason } if q.is_client() => quic_lost(proxy, cx, key, &reason),
            quinn_proto::Event::ConnectionLost { reason } => h3_server_lost(proxy, cx, key, Some(&reason)),
            quinn_proto::Event::Stream(event) => quic_stream_event(proxy, cx, key, event),
            quinn_proto::Event::HandshakeDataReady => quic_hello_read(&mut proxy.connections, key),
            quinn_proto::Event::DatagramReceived | quinn_proto::Event::DatagramsUnblocked => {}
        }
    }
    proxy.connections.mark_for_flush(key);
}

fn quic_stream_event(proxy: &mut Proxy, cx: &mut Context, key: Key, event: StreamEvent) {
    match event {
        StreamEvent::Opened { dir: Dir::Uni } => {
            while let Some(Conn::Quic(q)) = proxy.connections.get_mut(key)
                && let Some(id) = q.quic.streams().accept(Dir::Uni)
            {
                q.uni.push((id, Default::default()));
                h3_read_uni(proxy, cx, key, id);
            }
        }
        StreamEvent::Opened { dir: Dir::Bi } => {
            while let Some(Conn::Quic(q)) = proxy.connections.get_mut(key)
                && let Some(id) = q.quic.streams().accept(Dir::Bi)
            {
                h3_stream_opened(proxy, cx, key, id);
            }
        }
        StreamEvent::Readable { id } if id.dir() == Dir::Uni => h3_read_uni(proxy, cx, key, id),
        StreamEvent::Readable { id } => {
            let Some(index) = quic_stream(&mut proxy.connections, key, id) else { return };
            match proxy.connections.quic(key).is_some_and(|q| q.is_client()) {
                true => h3_read(proxy, cx, key, index),
                false => h3_server_read(proxy, cx, key, index),
            }
        }
        StreamEvent::Writable { id } => {
            let Some(index) = quic_stream(&mut proxy.connections, key, id) else { return };
            if let Some(Conn::Quic(q)) = proxy.connections.get_mut(key) {
                q.stage(index);
            }
        }
        StreamEvent::Stopped { id, .. } => {
            let Some(index) = quic_stream(&mut proxy.connections, key, id) else { return };
            match proxy.connections.quic(key).is_some_and(|q| q.is_client()) {
                true => h3_stopped(proxy, cx, key, index),
                false => h3_server_stopped(&mut proxy.connections, key, index),
            }
        }
        StreamEvent::Available { dir: Dir::Bi } => h3_send_waiting(proxy, cx, key),
        StreamEvent::Available { dir: Dir::Uni } | StreamEvent::Finished { .. } => {}
    }
}

fn quic_stream(connections: &mut Connections, key: Key, id: quinn_proto::StreamId) -> Option<u32> {
    connections.quic(key)?.by_id.get(&id).copied()
}

/// The end of a turn: timers, admission, and everything that is to be sent. True if there is more to do at once.
pub(crate) fn quic_turn(proxy: &mut Proxy, cx: &mut Context) -> bool {
    if proxy.quic.endpoints.is_empty() {
        return false;
    }
    let now = cx.instant();
    while let Some(Reverse((at, token))) = proxy.quic.timers.peek().copied()
        && at <= now
    {
        proxy.quic.timers.pop();
        let key = Key::from_u64(token);
        let Some(Conn::Quic(q)) = proxy.connections.get_mut(key) else { continue };
        if q.armed != Some(at) {
            continue;
        }
        q.armed = None;
        q.quic.handle_timeout(now);
        quic_drive(proxy, cx, key);
    }
    proxy.quic.forget_ended(now);
    quic_admit(proxy, cx);
    let more = quic_flush_all(proxy, cx);
    let first = proxy.quic.first_timer(&proxy.connections);
    let alarms = [first, proxy.quic.closing.peek().map(|Reverse((at, ..))| *at + FORGETTING)];
    cx.alarm = alarms.into_iter().flatten().min();
    if proxy.quic.out.is_blocked() {
        let soon = now + send::WAIT_LIMIT;
        cx.alarm = Some(cx.alarm.map_or(soon, |at| at.min(soon)));
    }
    more || !proxy.quic.waiting.is_empty()
}

/// All connections with clients are told to open no more streams; those without any close. With a successor there is
/// no hurry: what is on its way when they hear of it is still served (RFC 9114 §5.2).
pub(crate) fn quic_drain(proxy: &mut Proxy, cx: &mut Context) {
    let keys: Vec<Key> = proxy.connections.keys();
    let kindly = proxy.quic.has_successor();
    for key in keys {
        let Some(q) = proxy.connections.quic(key).filter(|q| q.is_client()) else { continue };
        if kindly {
            q.leave_soon(cx.now());
            proxy.connections.mark_for_flush(key);
        } else {
            q.leave();
            quic_close_if_done(
                &mut proxy.connections,
                &mut proxy.quic,
                &mut proxy.admission,
                &proxy.settings,
                &proxy.counters,
                cx,
                key,
            );
        }
    }
    quic_flush_all(proxy, cx);
}

/// Closes a connection that is leaving and has no request under way.
pub(crate) fn quic_close_if_done(
    connections: &mut Connections,
    quic: &mut QuicEndpoint,
    admission: &mut Admission,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
    key: Key,
) {
    let Some(q) = connections.quic(key) else { return };
    if q.phase == Phase::Leaving && q.may_close() && q.requests_waiting.is_empty() {
        let now = cx.instant();
        q.close(now, sealane_http::h3::Code::NoError, "");
        quic_left(connections, quic, admission, settings, counters, key);
    }
    connections.mark_for_flush(key);
}

/// What a new snapshot means: endpoints come and go, new connections get the new settings, and those whose rules
/// are gone leave.
pub(crate) fn quic_refresh(
    connections: &mut Connections,
    quic: &mut QuicEndpoint,
    admission: &mut Admission,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
) {
    quic.refresh(cx, settings);
    let keys: Vec<Key> = connections.keys();
    for key in keys {
        let Some(q) = connections.quic(key) else { continue };
        if q.client().is_some_and(|c| c.requests == u64::MAX) {
            q.leave();
            quic_close_if_done(connections, quic, admission, settings, counters, cx, key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{limits, settings, snapshot};

    #[test]
    fn connections_to_servers_share_a_socket() {
        let (settings, _published) = settings(snapshot(limits(), Vec::new()));
        let (mut quic, cx) = (QuicEndpoint::default(), Context::new().unwrap());
        let first = quic.client_endpoint(&cx, &settings, false).unwrap();
        assert_eq!(quic.client_endpoint(&cx, &settings, false), Some(first));
        assert_eq!(quic.endpoints.len(), 1);
        assert!(!quic.has_waiting() && !quic.has_successor());
    }

    #[test]
    fn a_place_that_has_become_free_is_taken_again() {
        let (settings, _published) = settings(snapshot(limits(), Vec::new()));
        let (mut quic, cx) = (QuicEndpoint::default(), Context::new().unwrap());
        let first = quic.client_endpoint(&cx, &settings, false).unwrap();
        let key = Key::from_u64(3);
        quic.note(first, ConnectionHandle(2), key);
        assert_eq!(quic.endpoints[first].as_ref().unwrap().keys, [None, None, Some(key)]);
        quic.endpoints[first] = None;
        quic.note(first, ConnectionHandle(2), key);
        assert_eq!(quic.client_endpoint(&cx, &settings, false), Some(first));
        assert_eq!(quic.endpoints.len(), 1);
    }
}
