//! One lane of the user-space plane: a service on the lane's loop.
//!
//! ```text
//! UDP sockets ─ receive ─┐            ┌─ coalesce ─ TUN queue
//! TCP streams ─ receive ─┴─ inbound ──┼─ control packets → control
//!                                     └─ packets between peers ─┐
//! TUN queue ─ read ───────────────────── outbound ──────────────┴─ outbox → UDP, streams → TCP
//! ```
//!
//! Everything is level-triggered and bounded per turn, so that neither direction starves the other. When a socket
//! takes no more, the TUN is not read until it does: the queue there is the system's, and drops as links do.

use super::coalesce::Coalescer;
use super::core::{Core, TunWriter};
use super::counters::{LaneCounters, PeerStats};
use super::handover::Inherited;
use super::pace::Pace;
use super::peer::Key;
use super::shared::{Message, Origin, STOP_STEPS, Shared};
use super::stream::{CLOSED_WITHIN, SCRATCH, SESSION_WITHIN, Stage, Stream, canonical, whole};
use crate::plane::{
    ControlIn, DelReason, Event, KeyNew, KeySlot, PeerId, PeerNew, Refused, SocketId, TakenSocket, Transport,
};
use rustix::io::Errno;
use sealane_lane::{After, Context, Millis, Ready, Service, Subscription};
use sealane_ovpn::share::{Network, Slots};
use sealane_sys::tun::{HEADER, Queue, Vnet};
use sealane_sys::udp::{Batch, MAX_BATCH, Socket, Transmit};
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Tokens of what is watched: a kind in the highest byte, a number below.
const UDP: u64 = 1 << 56;
const TUN: u64 = 2 << 56;
const LISTENER: u64 = 3 << 56;
const STREAM: u64 = 4 << 56;
const KIND: u64 = 0xff << 56;
/// Numbers of accepted connections begin where those of UDP sockets end for good.
const FIRST_STREAM: u64 = 1 << 16;

/// System calls per turn and socket, each of which may receive a megabyte.
const RECEIVES: usize = 4;
/// Reads from the TUN per turn.
const READS: usize = 128;
/// Connections accepted per turn.
const ACCEPTS: usize = 16;
/// How long no connections are accepted once descriptors or memory have run out.
const ACCEPT_AGAIN: Millis = 100;
/// Connections of one lane.
const STREAMS: usize = 16_384;
/// Connections of one lane on which no session has begun, and how many of them one network may have.
const UNCONFIRMED: usize = 512;
const UNCONFIRMED_SHARE: usize = 64;
/// Buffers per receive, each for a train of datagrams.
pub(super) const BUFFERS: usize = MAX_BATCH;

/// A lane of the plane.
pub(super) struct Lane {
    core: Core,
    batch: Batch,
    scratch: Box<[u8]>,
    listeners: Vec<OwnedFd>,
    next_stream: u64,
    /// Connections on which no session has begun.
    unconfirmed: Slots<u64>,
    /// The TUN is not read while a socket takes no more.
    paused: Option<usize>,
    stopping: Option<Stopping>,
    pace: Pace,
}

/// A lane that stops: in step with the others, but not for ever.
#[derive(Clone, Copy)]
struct Stopping {
    /// Steps that this lane has announced.
    announced: usize,
    /// Steps that all lanes have announced, and after which mail was taken.
    complete: usize,
    /// A lane that has failed announces nothing.
    deadline: Instant,
}

/// How long a lane waits for the others when it stops.
const STOP_WITHIN: Duration = Duration::from_secs(1);

impl Lane {
    pub(super) fn new(
        number: u16,
        shared: Arc<Shared>,
        tun: Queue,
        udp: Vec<Socket>,
        listeners: Vec<OwnedFd>,
        cx: &Context,
    ) -> io::Result<Self> {
        cx.watch_listener(&tun, TUN)?;
        for (i, socket) in udp.iter().enumerate() {
            cx.watch_listener(socket, UDP | i as u64)?;
        }
        for (i, listener) in listeners.iter().enumerate() {
            cx.watch_listener(listener, LISTENER | i as u64)?;
        }
        let trains = udp.iter().any(Socket::receives_trains);
        let routes: Subscription<_> = shared.routes.subscribe();
        let offset = cx.started().saturating_duration_since(shared.started).as_millis() as u64;
        let pace = Pace::new(shared.gather, cx.instant());
        Ok(Self {
            core: Core::new(number, shared, tun, udp, routes, offset),
            batch: if trains { Batch::new(BUFFERS, 65_535) } else { Batch::new(MAX_BATCH, 4096) },
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            listeners,
            next_stream: FIRST_STREAM,
            unconfirmed: Slots::new(UNCONFIRMED, UNCONFIRMED_SHARE),
            paused: None,
            stopping: None,
            pace,
        })
    }

    /// What a stopped lane leaves: its core and its listeners.
    pub(super) fn into_parts(self) -> (Core, Vec<OwnedFd>) {
        (self.core, self.listeners)
    }

    /// Goes on with another process's connections and peers, before the loop begins.
    pub(super) fn inherit(&mut self, cx: &mut Context, streams: Vec<(u64, Stream)>, peers: Vec<Inherited>) {
        let of_peers = peers.iter().map(|p| &p.about).filter(|p| p.transport == Transport::Tcp);
        let of_peers: HashSet<u64> = of_peers.map(|p| p.socket.number()).collect();
        for (number, mut stream) in streams {
            self.next_stream = self.next_stream.max(number.saturating_add(1));
            // What it had not sent yet leaves as soon as the socket takes it.
            let _ = cx.watch_listener(&stream.fd, STREAM | number);
            let _ = cx.rewatch(&stream.fd, STREAM | number, true, true);
            // Connected clients take no slots from those that are not: there may be any number of them.
            if of_peers.contains(&number) {
                stream.stage = Stage::InUse;
                self.core.streams.insert(number, stream);
            } else {
                self.keep_unconfirmed(cx, number, stream);
            }
        }
        for Inherited { about, stats, keys } in peers {
            let id = about.peer;
            self.peer_new(cx, about, stats);
            let Some(peer) = self.core.peers.get_mut(&id) else { continue };
            for key in keys {
                let (slot, key_id) = (key.new.slot, key.new.key_id);
                let key = key.ready(peer);
                peer.keys.install(slot, key_id, key);
            }
        }
    }

    /// Goes through the steps of stopping with the other lanes. Mail is taken between two turns; a step is over when none
    /// is left.
    fn stop_in_step(&mut self, mut step: Stopping, mail_left: bool, now: Instant) -> After {
        let shared = &self.core.shared;
        if mail_left && now < step.deadline {
            return After::Again;
        }
        if step.announced == step.complete && step.announced < STOP_STEPS {
            shared.stopped[step.announced].fetch_add(1, Ordering::AcqRel);
            step.announced += 1;
        }
        let all = |at: usize| shared.stopped[at].load(Ordering::Acquire) >= shared.lanes.len();
        let waits = step.complete < step.announced && !all(step.complete);
        if step.complete == STOP_STEPS || now >= step.deadline {
            return After::Stop;
        }
        if waits {
            std::thread::yield_now();
        } else {
            step.complete += 1;
        }
        self.stopping = Some(step);
        After::Again
    }

    fn counters(&self) -> &LaneCounters {
        &self.core.counters
    }

    fn udp_ready(&mut self, cx: &Context, index: usize) {
        let Self { core, batch, pace, .. } = self;
        for _ in 0..RECEIVES {
            let Some(socket) = core.udp.get(index) else { return };
            // An error is one of the past (an ICMP message): the next call goes on.
            let Ok(filled) = socket.receive(batch) else { return };
            core.routes.changed();
            pace.arrived(filled);
            let mut coalescer = Coalescer::new();
            for (meta, bytes) in batch.iter_mut() {
                let from =
                    Origin { socket: SocketId::new(core.number, index as u64), remote: meta.remote, local: meta.local };
                if meta.truncated {
                    core.counters.drop_malformed.inc();
                    continue;
                }
                for packet in bytes.chunks_mut(meta.segment) {
                    if let Some(inner) = core.link_in(cx, packet, &from, Transport::Udp) {
                        coalescer.push(inner, &mut TunWriter(&core.tun));
                    }
                }
            }
            let written = coalescer.finish(&mut TunWriter(&core.tun));
            core.count_written(written);
            if filled < BUFFERS {
                return;
            }
        }
    }

    fn tun_ready(&mut self, cx: &Context) {
        let Self { core, scratch, .. } = self;
        core.routes.changed();
        for _ in 0..READS {
            if core.outbox.blocked().is_some() {
                return;
            }
            let Ok(n) = core.tun.read(&mut scratch[..HEADER + 65_535]) else { return };
            core.counters.tun_reads.inc();
            core.tun_in(cx, &mut scratch[..n]);
        }
    }

    fn stream_ready(&mut self, cx: &Context, number: u64, ready: Ready) {
        let Some((id, mut stream)) = self.core.streams.remove_entry(&number) else { return };
        let alive = (!ready.read || self.read_stream(cx, id, &mut stream)) && stream.flush().is_ok();
        if !alive || (stream.stage == Stage::Closing && stream.waiting() == 0) {
            return self.close(cx, id, &stream);
        }
        let waits = stream.waiting() > 0;
        let _ = cx.rewatch(&stream.fd, STREAM | id, true, waits);
        self.core.streams.insert(id, stream);
    }

    /// False when the connection is over.
    fn read_stream(&mut self, cx: &Context, id: u64, stream: &mut Stream) -> bool {
        let Self { scratch, pace, .. } = self;
        let n = match stream.read(scratch) {
            Ok(Some(n)) => n,
            Ok(None) => return false,
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        };
        if stream.stage == Stage::Closing {
            return true;
        }
        pace.arrived(1);
        self.take_frames(cx, id, stream, n)
    }

    /// Takes the frames among the first `n` bytes of the scratch buffer. False when the connection is over.
    fn take_frames(&mut self, cx: &Context, id: u64, stream: &mut Stream, n: usize) -> bool {
        let Self { core, scratch, .. } = self;
        core.routes.changed();
        let from = Origin { socket: SocketId::new(core.number, id), remote: stream.remote, local: stream.local };
        core.stream_peer = stream.peer;
        let mut coalescer = Coalescer::new();
        let mut rest = &mut scratch[..n];
        let sound = loop {
            match whole(rest, stream.longest_frame()) {
                Ok(Some(end)) => {
                    let (frame, after) = std::mem::take(&mut rest).split_at_mut(end);
                    rest = after;
                    if let Some(inner) = core.link_in(cx, &mut frame[2..], &from, Transport::Tcp) {
                        coalescer.push(inner, &mut TunWriter(&core.tun));
                    }
                }
                Ok(None) => {
                    stream.keep(rest);
                    break true;
                }
                Err(_) => {
                    core.counters.drop_connection.inc();
                    break false;
                }
            }
        };
        let written = coalescer.finish(&mut TunWriter(&core.tun));
        core.count_written(written);
        sound
    }

    fn accept(&mut self, cx: &mut Context, index: usize) {
        use rustix::net::{SocketFlags, accept_with};
        for _ in 0..ACCEPTS {
            let Some(listener) = self.listeners.get(index) else { return };
            let fd = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => fd,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // Clients wait in the kernel's queue; the lane does not spin meanwhile.
                    let token = LISTENER | index as u64;
                    let _ = cx.rewatch(listener, token, false, false);
                    return cx.timers.arm(token, cx.now() + ACCEPT_AGAIN);
                }
                Err(_) => return,
            };
            self.begin(cx, fd, None);
        }
    }

    /// Begins with a client's connection. `remote`: the client's address, where it is not that of the connection. Returns the
    /// connection's number, unless there is no room for it or it is closed already.
    fn begin(&mut self, cx: &mut Context, fd: OwnedFd, remote: Option<SocketAddr>) -> Option<u64> {
        if self.core.streams.len() >= STREAMS {
            self.counters().drop_connection.inc();
            return None;
        }
        let number = self.next_stream;
        self.next_stream += 1;
        let socket = SocketId::new(self.core.number, number);
        let mut stream = self.open(cx, number, fd).ok()?;
        if let Some(remote) = remote {
            stream.remote = canonical(remote);
        }
        let remote = stream.remote;
        self.keep_unconfirmed(cx, number, stream);
        self.core.shared.sink.event(Event::SocketOpened { socket, remote });
        Some(number)
    }

    /// Goes on with a connection that was accepted elsewhere, and with the bytes that were read there.
    fn take(&mut self, cx: &mut Context, taken: TakenSocket) {
        let TakenSocket { fd, bytes, remote } = taken;
        // Room for the rest of a frame must be left.
        if bytes.len() > SCRATCH / 2 {
            return self.counters().drop_connection.inc();
        }
        let Some(number) = self.begin(cx, fd, Some(remote)) else { return };
        self.counters().connection_taken.inc();
        let Some(mut stream) = self.core.streams.remove(&number) else { return };
        self.scratch[..bytes.len()].copy_from_slice(&bytes);
        if self.take_frames(cx, number, &mut stream, bytes.len()) {
            self.core.streams.insert(number, stream);
        } else {
            self.close(cx, number, &stream);
        }
    }

    fn open(&mut self, cx: &Context, number: u64, fd: OwnedFd) -> io::Result<Stream> {
        let stream = Stream::new(fd)?;
        cx.watch_listener(&stream.fd, STREAM | number)?;
        Ok(stream)
    }

    /// A connection that anybody may have made: it has a deadline, and a slot among others of its network.
    fn keep_unconfirmed(&mut self, cx: &mut Context, number: u64, mut stream: Stream) {
        stream.deadline = cx.now() + SESSION_WITHIN;
        cx.timers.arm(STREAM | number, stream.deadline);
        // None is settled while it is here, so there is always one that can go.
        let evicted = self.unconfirmed.enter(number, Network::of(stream.remote.ip()));
        self.core.streams.insert(number, stream);
        if let Ok(Some(evicted)) = evicted
            && let Some(stream) = self.core.streams.remove(&evicted)
        {
            self.counters().connection_evicted.inc();
            self.close(cx, evicted, &stream);
        }
    }

    /// A session has begun on a connection.
    fn confirm(&mut self, socket: SocketId) {
        let number = socket.number();
        self.unconfirmed.leave(number);
        match self.core.streams.get_mut(&number) {
            Some(stream) if stream.stage == Stage::Unconfirmed => stream.stage = Stage::InUse,
            Some(_) => {}
            // It closed before it was known to be of use.
            None => self.core.shared.sink.event(Event::SocketClosed(socket)),
        }
    }

    fn peer_new(&mut self, cx: &mut Context, new: PeerNew, stats: Arc<PeerStats>) {
        if new.transport == Transport::Tcp {
            self.unconfirmed.leave(new.socket.number());
        }
        self.core.peer_new(cx, new, stats);
    }

    /// A connection's time is over: no session has begun on it, or its client does not take the last packets.
    fn stream_timeout(&mut self, cx: &Context, number: u64) {
        let Some(stream) = self.core.streams.get(&number) else { return };
        if stream.stage == Stage::InUse || cx.now() < stream.deadline {
            return;
        }
        if let Some(stream) = self.core.streams.remove(&number) {
            self.counters().connection_timeout.inc();
            self.close(cx, number, &stream);
        }
    }

    fn close(&mut self, cx: &Context, number: u64, stream: &Stream) {
        cx.unwatch(&stream.fd);
        if stream.stage == Stage::Unconfirmed {
            self.unconfirmed.leave(number);
        } else {
            self.core.shared.sink.event(Event::SocketClosed(SocketId::new(self.core.number, number)));
        }
    }

    fn key_new(&mut self, new: Box<KeyNew>) {
        let Some(peer) = self.core.peers.get_mut(&new.peer) else { return self.core.fail(new.peer) };
        let (slot, key_id) = (new.slot, new.key_id);
        let key = Key::new(new, peer);
        peer.keys.install(slot, key_id, key);
        let peer = peer.about.peer;
        self.core.shared.sink.event(Event::KeyInstalled { peer, slot, key_id });
    }

    fn key_swap(&mut self, id: PeerId) {
        let Some(peer) = self.core.peers.get_mut(&id) else { return self.core.fail(id) };
        if !peer.keys.swap() {
            let why = Refused::NoKey(id, KeySlot::Secondary);
            self.core.shared.sink.event(Event::Failed { peer: id, why });
        }
    }

    fn peer_del(&mut self, cx: &mut Context, id: PeerId, reason: DelReason) {
        let Some(peer) = self.core.peers.remove(&id) else { return self.core.fail(id) };
        if self.core.sole == Some(id) {
            self.core.sole = None;
        }
        if peer.about.transport == Transport::Tcp {
            self.close_when_sent(cx, peer.about.socket);
        }
        self.core.shared.sink.event(Event::PeerGone { peer: id, reason });
    }

    fn close_when_sent(&mut self, cx: &mut Context, socket: SocketId) {
        let number = socket.number();
        self.unconfirmed.leave(number);
        let Some(stream) = self.core.streams.get_mut(&number) else { return };
        stream.stage = Stage::Closing;
        stream.peer = None;
        stream.deadline = cx.now() + CLOSED_WITHIN;
        cx.timers.arm(STREAM | number, stream.deadline);
        if stream.flush().unwrap_or(true) {
            if let Some(stream) = self.core.streams.remove(&number) {
                self.close(cx, number, &stream);
            }
        } else {
            let _ = cx.rewatch(&stream.fd, STREAM | number, true, true);
        }
    }

    fn control_out(&mut self, cx: &Context, socket: SocketId, transmit: &Transmit<'_>) {
        let core = &mut self.core;
        core.counters.control_out.inc();
        // What was sealed before leaves before.
        core.outbox.flush(&core.udp, &core.counters);
        if let Some(udp) = core.udp.get(socket.number() as usize) {
            if udp.send(transmit).is_err() {
                core.counters.link_lost.inc();
            }
        } else if !core.stream_out(socket.number(), transmit.data)
            && let Some(stream) = core.streams.remove(&socket.number())
        {
            core.counters.drop_connection.inc();
            self.close(cx, socket.number(), &stream);
        }
    }
}

impl Service for Lane {
    type Message = Message;

    fn ready(&mut self, cx: &mut Context, token: u64, ready: Ready) {
        // Packets that arrive now wait in the kernel for the successor.
        if self.stopping.is_some() {
            return;
        }
        let number = token & !KIND;
        match token & KIND {
            UDP if ready.read => self.udp_ready(cx, number as usize),
            TUN => self.tun_ready(cx),
            LISTENER => self.accept(cx, number as usize),
            STREAM => self.stream_ready(cx, number, ready),
            // A socket that takes more again: the turn's end flushes.
            _ => {}
        }
    }

    fn timeout(&mut self, cx: &mut Context, token: u64) {
        match token & KIND {
            STREAM => self.stream_timeout(cx, token & !KIND),
            LISTENER => {
                if let Some(listener) = self.listeners.get((token & !KIND) as usize) {
                    let _ = cx.rewatch(listener, token, true, false);
                }
            }
            _ => self.core.peer_timeout(cx, token),
        }
    }

    fn message(&mut self, cx: &mut Context, message: Message) {
        match message {
            Message::PeerNew(new, stats) => self.peer_new(cx, *new, stats),
            Message::PeerSet(id, set) => match self.core.peers.get_mut(&id) {
                Some(peer) => {
                    peer.set(*set, cx.now());
                    self.core.arm(cx, id);
                }
                None => self.core.fail(id),
            },
            Message::PeerDel(id, reason) => self.peer_del(cx, id, reason),
            Message::KeyNew(new) => self.key_new(new),
            Message::KeySwap(id) => self.key_swap(id),
            Message::KeyDel(id, slot) => {
                if let Some(peer) = self.core.peers.get_mut(&id) {
                    peer.keys.remove(slot);
                }
            }
            Message::ControlOut { socket, remote, local, bytes } => {
                self.control_out(cx, socket, &Transmit { remote, local, segment: 0, ecn: 0, data: &bytes });
            }
            Message::InbandOut(id, bytes) => {
                self.core.routes.changed();
                let mut bytes = bytes;
                self.core.send_to(cx, id, &Vnet::default(), &mut bytes, false);
            }
            // Control has made this connection, so it has a use for it.
            Message::SocketNew(socket, fd) => match self.open(cx, socket.number(), fd) {
                Ok(mut stream) => {
                    stream.stage = Stage::InUse;
                    self.core.streams.insert(socket.number(), stream);
                }
                Err(_) => self.core.shared.sink.event(Event::SocketClosed(socket)),
            },
            Message::SocketTake(taken) => self.take(cx, taken),
            Message::SocketConfirm(socket) => self.confirm(socket),
            Message::SocketClose(socket) => self.close_when_sent(cx, socket),
            Message::Inbound { from, mut bytes } => {
                self.core.routes.changed();
                let mut coalescer = Coalescer::new();
                if let Some(inner) = self.core.link_in(cx, &mut bytes, &from, Transport::Udp) {
                    coalescer.push(inner, &mut TunWriter(&self.core.tun));
                }
                let written = coalescer.finish(&mut TunWriter(&self.core.tun));
                self.core.count_written(written);
            }
            Message::Outbound(id, mut bytes) => {
                if let (Some(vnet), Some(packet)) = (Vnet::decode(&bytes), bytes.get_mut(HEADER..)) {
                    self.core.send_to(cx, id, &vnet, packet, true);
                }
            }
            Message::Stop => {
                let deadline = cx.instant() + STOP_WITHIN;
                self.stopping = Some(Stopping { announced: 0, complete: 0, deadline });
            }
        }
    }

    fn turn(&mut self, cx: &mut Context) -> After {
        let core = &mut self.core;
        core.outbox.flush(&core.udp, &core.counters);
        for number in std::mem::take(&mut core.dirty) {
            let Some(stream) = core.streams.get_mut(&number) else { continue };
            // A failed connection is found by reading it.
            let waits = !stream.flush().unwrap_or(true);
            if waits {
                let _ = cx.rewatch(&stream.fd, STREAM | number, true, true);
            }
        }
        let blocked = core.outbox.blocked();
        if blocked != self.paused {
            for (i, socket) in core.udp.iter().enumerate() {
                let _ = cx.rewatch(socket, UDP | i as u64, true, blocked == Some(i));
            }
            let _ = cx.rewatch(&core.tun, TUN, blocked.is_none(), false);
            self.paused = blocked;
        }
        if let Some(stopping) = self.stopping {
            return self.stop_in_step(stopping, cx.mail_left, cx.instant());
        }
        let wait = self.pace.wait(|| cx.instant());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        After::Sleep
    }
}

/// A control packet as control gets it.
pub(super) fn control_in(packet: &[u8], from: &Origin, transport: Transport) -> ControlIn {
    ControlIn { socket: from.socket, transport, remote: from.remote, local: from.local, bytes: packet.to_vec() }
}
