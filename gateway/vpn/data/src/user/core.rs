//! A lane's peers, and the two ways through it: from the link to the TUN and from the TUN to the link.

use super::coalesce::{Write, Written};
use super::counters::{LaneCounters, PeerStats};
use super::ip;
use super::lane::control_in;
use super::outbox::{Destination, Outbox, Refusal};
use super::peer::Peer;
use super::routes::{Fast, Routes};
use super::segment::prepare;
use super::shared::{Message, Origin, Role, Shared};
use super::stream::{BACKLOG, CONTROL_BACKLOG, Stage, Stream};
use crate::plane::{Event, PeerId, PeerNew, Refused, Transport};
use sealane_lane::{Context, Subscription};
use sealane_ovpn::data::magic::{PING, Payload, payload};
use sealane_ovpn::data::{Header, SealError};
use sealane_sys::tun::{HEADER, NEEDS_CHECKSUM, Queue, Vnet};
use sealane_sys::udp::Socket;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// OCC messages are some hundred bytes; longer ones are nobody's.
const INBAND: usize = 1024;

/// The coalescer's way into the TUN.
pub(super) struct TunWriter<'t>(pub &'t Queue);

impl Write for TunWriter<'_> {
    #[inline]
    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(pieces)
    }
    fn tcp(&self) -> bool {
        self.0.tcp_offload()
    }
    fn udp(&self) -> bool {
        self.0.udp_offload()
    }
}

/// What a lane owns, but for the buffers that packets are in while they are handled.
pub(super) struct Core {
    pub number: u16,
    pub shared: Arc<Shared>,
    pub counters: Arc<LaneCounters>,
    pub tun: Queue,
    pub udp: Vec<Socket>,
    pub streams: HashMap<u64, Stream, Fast>,
    pub peers: HashMap<PeerId, Peer, Fast>,
    /// The only peer, where there is but one: a client's server.
    pub sole: Option<PeerId>,
    pub routes: Subscription<Routes>,
    pub outbox: Outbox,
    /// Streams that something was written for.
    pub dirty: Vec<u64>,
    /// Whose connection is being read.
    pub stream_peer: Option<PeerId>,
    generation: u32,
    /// Milliseconds between the plane's start and this lane's.
    offset: u64,
}

impl Core {
    pub(super) fn new(
        number: u16,
        shared: Arc<Shared>,
        tun: Queue,
        udp: Vec<Socket>,
        routes: Subscription<Routes>,
        offset: u64,
    ) -> Self {
        Self {
            number,
            counters: shared.lanes[usize::from(number)].counters.clone(),
            shared,
            tun,
            udp,
            streams: HashMap::default(),
            peers: HashMap::default(),
            sole: None,
            routes,
            outbox: Outbox::new(),
            dirty: Vec::new(),
            stream_peer: None,
            generation: 0,
            offset,
        }
    }

    pub(super) fn count_written(&self, written: Written) {
        self.counters.tun_writes.add(written.writes);
        self.counters.tun_lost.add(written.lost);
    }

    /// A command for a peer that is not there (any more).
    pub(super) fn fail(&self, peer: PeerId) {
        self.shared.sink.event(Event::Failed { peer, why: Refused::NoPeer(peer) });
    }

    pub(super) fn peer_new(&mut self, cx: &mut Context, new: PeerNew, stats: Arc<PeerStats>) {
        let id = new.peer;
        if new.transport == Transport::Tcp {
            match self.streams.get_mut(&new.socket.number()) {
                Some(stream) => {
                    stream.peer = Some(id);
                    stream.stage = Stage::InUse;
                }
                None => {
                    let why = Refused::NoSocket(new.socket);
                    return self.shared.sink.event(Event::Failed { peer: id, why });
                }
            }
        }
        if self.shared.role == Role::Client {
            self.sole = Some(id);
        }
        self.generation = (self.generation + 1) & 0x7f_ffff;
        self.peers.insert(id, Peer::new(new, stats, cx.now(), self.generation));
        self.arm(cx, id);
    }

    /// A timer's token: the peer's id below, the generation above.
    pub(super) fn arm(&mut self, cx: &mut Context, id: PeerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(at) = peer.deadline() {
            // A new generation lets the timer before run out unheard.
            self.generation = (self.generation + 1) & 0x7f_ffff;
            peer.generation = self.generation;
            cx.timers.arm(u64::from(peer.generation) << 32 | u64::from(id.get()), at);
        }
    }

    pub(super) fn peer_timeout(&mut self, cx: &mut Context, token: u64) {
        let Some(id) = PeerId::new(token as u32) else { return };
        let now = cx.now();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if u64::from(peer.generation) != token >> 32 {
            return;
        }
        let keepalive = peer.about.keepalive;
        let seconds = |s: u16| u64::from(s) * 1000;
        if keepalive.ping_restart > 0 && !peer.expired && now >= peer.last_in + seconds(keepalive.ping_restart) {
            peer.expired = true;
            self.shared.sink.event(Event::PeerExpired(id));
        }
        if keepalive.ping > 0 && now >= peer.last_out + seconds(keepalive.ping) {
            let mut ping = PING;
            // Without a key there is nobody to be kept alive; look again later all the same.
            peer.last_out = now;
            self.send_to(cx, id, &Vnet::default(), &mut ping, false);
        }
        self.arm(cx, id);
    }

    /// A packet from a socket. Returns what is to be written to the TUN, where it lies.
    #[inline]
    pub(super) fn link_in<'b>(
        &mut self,
        cx: &Context,
        packet: &'b mut [u8],
        from: &Origin,
        transport: Transport,
    ) -> Option<&'b [u8]> {
        self.counters.link_received.inc();
        let Some(header) = Header::parse(packet) else {
            if packet.is_empty() {
                self.counters.drop_malformed.inc();
            } else if self.shared.sink.control_in(control_in(packet, from, transport)) {
                self.counters.control_in.inc();
            } else {
                self.counters.control_lost.inc();
            }
            return None;
        };
        let id = match (transport, self.shared.role, header.peer_id) {
            // A connection carries the packets of one peer, whatever they say.
            (Transport::Tcp, ..) => self.stream_peer,
            (_, Role::Client, _) => self.sole,
            (_, _, Some(id)) => Some(id),
            (_, _, None) => self.routes.current().unnumbered(from.remote),
        };
        let Some(id) = id else {
            self.counters.drop_unknown_peer.inc();
            return None;
        };
        let lane = self.shared.lane_of(id);
        if lane != self.number {
            // Once only: the owner's packets are never forwarded again.
            let message = || Message::Inbound { from: *from, bytes: packet.to_vec() };
            let counter =
                if self.shared.forward(lane, message) { &self.counters.forwarded } else { &self.counters.drop_forward };
            counter.inc();
            return None;
        }
        self.open(cx, id, header, packet, from, transport)
    }

    fn open<'b>(
        &mut self,
        cx: &Context,
        id: PeerId,
        header: Header,
        packet: &'b mut [u8],
        from: &Origin,
        transport: Transport,
    ) -> Option<&'b [u8]> {
        let counters = &self.counters;
        let Some(peer) = self.peers.get_mut(&id).filter(|p| p.about.transport == transport) else {
            counters.drop_unknown_peer.inc();
            return None;
        };
        let Some(key) = peer.keys.by_id(header.key_id) else {
            counters.drop_unknown_key.inc();
            peer.stats.dropped.inc();
            return None;
        };
        let newest = key.opener.window().newest();
        let length = packet.len();
        let text = match key.opener.open_in_place(packet) {
            Ok(text) => text,
            Err(error) => {
                counters.not_opened(error);
                peer.stats.dropped.inc();
                return None;
            }
        };
        // OpenVPN 2.7: the sender follows the receiver into a new epoch.
        if key.opener.epoch() > key.sealer.epoch() {
            key.sealer.follow(key.opener.epoch());
        }
        let latest = key.opener.window().newest() != newest;
        let now = cx.now();
        peer.last_in = now;
        peer.stats.heard.set(now + self.offset + 1);
        peer.stats.link_rx_bytes.add(length as u64);
        // Authentic, and the latest: a late packet from the address before does not move it back.
        if transport == Transport::Udp && latest && peer.about.remote != from.remote {
            (peer.about.remote, peer.about.local) = (from.remote, from.local);
            peer.about.socket = from.socket;
            counters.floats.inc();
            self.shared.sink.event(Event::FloatTo { peer: id, remote: from.remote, local: from.local });
        }
        let inner = &mut packet[text];
        match payload(inner) {
            Payload::Ipv4 | Payload::Ipv6 => {}
            Payload::Ping => return None,
            Payload::Exit | Payload::Occ if inner.len() <= INBAND => {
                self.shared.sink.event(Event::InbandIn(id, inner.to_vec()));
                return None;
            }
            _ => {
                counters.drop_inner.inc();
                return None;
            }
        }
        let Some((source, destination)) = ip::addresses(inner) else {
            counters.drop_inner.inc();
            return None;
        };
        let routes = self.routes.current();
        let checked = matches!(self.shared.role, Role::Server { .. });
        if checked && !peer.has_address(source) && routes.peer(source) != Some(id) {
            counters.drop_source.inc();
            return None;
        }
        if let Some(filter) = &peer.about.filter
            && !filter.admits(inner, destination)
        {
            counters.drop_access.inc();
            return None;
        }
        if let Some(buckets) = &mut peer.buckets
            && !buckets.upload(inner.len(), now)
        {
            counters.drop_upload_rate.inc();
            return None;
        }
        peer.stats.rx_packets.inc();
        peer.stats.rx_bytes.add(inner.len() as u64);
        if peer.about.max_segment > 0 {
            ip::clamp_mss(inner, peer.about.max_segment, false);
        }
        if self.shared.role == (Role::Server { client_to_client: true })
            && let Some(other) = routes.peer(destination)
        {
            self.hand_out(cx, other, &Vnet::default(), inner);
            return None;
        }
        Some(inner)
    }

    /// What was read from the TUN: a header and a packet or super-packet.
    #[inline]
    pub(super) fn tun_in(&mut self, cx: &Context, read: &mut [u8]) {
        let Some(vnet) = Vnet::decode(read) else { return self.counters.drop_inner.inc() };
        let packet = &mut read[HEADER..];
        let Some((_, destination)) = ip::addresses(packet) else { return self.counters.drop_inner.inc() };
        let id = match self.shared.role {
            Role::Client => self.sole,
            Role::Server { .. } => self.routes.current().peer(destination),
        };
        match id {
            Some(id) => self.hand_out(cx, id, &vnet, packet),
            None => self.counters.drop_no_route.inc(),
        }
    }

    /// Sends a packet to a peer of this lane or of another.
    fn hand_out(&mut self, cx: &Context, id: PeerId, vnet: &Vnet, packet: &mut [u8]) {
        let lane = self.shared.lane_of(id);
        if lane == self.number {
            return self.send_to(cx, id, vnet, packet, true);
        }
        let message = || Message::Outbound(id, [&vnet.encode()[..], packet].concat());
        if self.shared.forward(lane, message) {
            self.counters.forwarded.inc();
        } else {
            self.counters.drop_forward.inc();
        }
    }

    /// Seals a packet, or a super-packet's segments, for a peer of this lane. `counted`: an IP packet.
    pub(super) fn send_to(&mut self, cx: &Context, id: PeerId, vnet: &Vnet, packet: &mut [u8], counted: bool) {
        let Self { peers, outbox, udp, streams, dirty, counters, shared, .. } = self;
        let Some(peer) = peers.get_mut(&id) else { return counters.drop_no_route.inc() };
        let Some(key) = peer.keys.primary() else { return counters.drop_no_key.inc() };
        if counted && peer.about.max_segment > 0 {
            ip::clamp_mss(packet, peer.about.max_segment, vnet.flags & NEEDS_CHECKSUM != 0);
        }
        let Some(plan) = prepare(vnet, packet) else { return counters.drop_inner.inc() };
        let around = key.sealer.head() + key.sealer.tail();
        let about = &peer.about;
        let to = Destination { socket: about.socket.number() as usize, remote: about.remote, local: about.local };
        let most = udp.get(to.socket).map_or(1, Socket::segments);
        let mut stream = match about.transport {
            Transport::Udp => None,
            Transport::Tcp => match streams.get_mut(&about.socket.number()) {
                Some(stream) if stream.waiting() < BACKLOG => Some(stream),
                _ => return counters.link_lost.add(plan.count as u64),
            },
        };
        let (mut sent, mut inner_bytes, mut link_bytes) = (0, 0, 0);
        let now = cx.now();
        // Pings are not its traffic.
        let mut buckets = peer.buckets.as_mut().filter(|_| counted);
        for number in 0..plan.count {
            let length = plan.len(number);
            if let Some(buckets) = &mut buckets
                && !buckets.download(length, now)
            {
                counters.drop_download_rate.inc();
                continue;
            }
            let sealer = &mut key.sealer;
            let mut write = |out: &mut [u8]| {
                let segment = plan.place(packet, number);
                sealer.seal_into(&packet[segment], out).map(|_| ())
            };
            let result = match &mut stream {
                None => {
                    let mut result = outbox.push(to, &mut peer.filling, around + length, most, &mut write);
                    if matches!(result, Err(Refusal::Full)) {
                        outbox.flush(udp, counters);
                        result = outbox.push(to, &mut peer.filling, around + length, most, &mut write);
                    }
                    result
                }
                Some(stream) => match u16::try_from(around + length) {
                    Ok(len) => stream.push(len, &mut write),
                    Err(_) => Err(Refusal::TooLong),
                },
            };
            match result {
                Ok(()) => {
                    sent += 1;
                    inner_bytes += length as u64;
                    link_bytes += (around + length) as u64;
                }
                Err(Refusal::Other(SealError::Exhausted)) => counters.drop_no_key.inc(),
                Err(Refusal::Full) => counters.link_lost.inc(),
                Err(Refusal::TooLong | Refusal::Other(SealError::NoRoom)) => counters.drop_inner.inc(),
            }
        }
        if stream.is_some() {
            counters.link_sent.add(sent);
            let number = peer.about.socket.number();
            if dirty.last() != Some(&number) {
                dirty.push(number);
            }
        }
        if !key.told && key.sealer.wants_renewal() {
            key.told = true;
            let key_id = peer.keys.peek(crate::plane::KeySlot::Primary).map_or(0, |(id, _)| id);
            shared.sink.event(Event::KeyExhausted { peer: id, key_id });
        }
        // What was dropped keeps nobody alive.
        if sent > 0 {
            peer.last_out = now;
        }
        if counted {
            peer.stats.tx_packets.add(sent);
            peer.stats.tx_bytes.add(inner_bytes);
        }
        peer.stats.link_tx_bytes.add(link_bytes);
    }

    /// Appends a control packet to a stream; it leaves at the end of the turn. False when the connection takes no more:
    /// it is to be closed, since a control packet is not sent again on TCP. Data that waits takes no room from it.
    pub(super) fn stream_out(&mut self, number: u64, packet: &[u8]) -> bool {
        let Some(stream) = self.streams.get_mut(&number) else {
            self.counters.link_lost.inc();
            return true;
        };
        let most = CONTROL_BACKLOG + if stream.peer.is_some() { BACKLOG } else { 0 };
        let Ok(len) = u16::try_from(packet.len()) else { return false };
        if stream.waiting() >= most {
            self.counters.link_lost.inc();
            return false;
        }
        let copied: Result<(), Refusal<std::convert::Infallible>> = stream.push(len, |out| {
            out.copy_from_slice(packet);
            Ok(())
        });
        if copied.is_err() {
            self.counters.link_lost.inc();
            return false;
        }
        self.dirty.push(number);
        true
    }
}
