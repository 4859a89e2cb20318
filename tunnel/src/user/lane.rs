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
use super::counters::LaneCounters;
use super::handover::Inherited;
use super::pace::Pace;
use super::peer::Key;
use super::shared::{Message, Origin, Shared};
use super::stream::{SCRATCH, Stream, whole};
use crate::plane::{ControlIn, DelReason, Event, KeyNew, KeySlot, PeerId, Refused, SocketId, Transport};
use rustix::io::Errno;
use sealane_lane::{After, Context, Ready, Service, Subscription};
use sealane_sys::tun::{HEADER, Queue, Vnet};
use sealane_sys::udp::{Batch, MAX_BATCH, Socket, Transmit};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

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
/// Connections of one lane.
const STREAMS: usize = 16_384;
/// Buffers per receive, each for a train of datagrams.
pub(super) const BUFFERS: usize = MAX_BATCH;

/// A lane of the plane.
pub(super) struct Lane {
    core: Core,
    batch: Batch,
    scratch: Box<[u8]>,
    listeners: Vec<OwnedFd>,
    next_stream: u64,
    /// The TUN is not read while a socket takes no more.
    paused: Option<usize>,
    stopping: bool,
    pace: Pace,
}

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
            paused: None,
            stopping: false,
            pace,
        })
    }

    /// What a stopped lane leaves: its core and its listeners.
    pub(super) fn into_parts(self) -> (Core, Vec<OwnedFd>) {
        (self.core, self.listeners)
    }

    /// Goes on with another process's connections and peers, before the loop begins.
    pub(super) fn inherit(&mut self, cx: &mut Context, streams: Vec<(u64, Stream)>, peers: Vec<Inherited>) {
        for (number, stream) in streams {
            self.next_stream = self.next_stream.max(number.saturating_add(1));
            // What it had not sent yet leaves as soon as the socket takes it.
            let _ = cx.watch_listener(&stream.fd, STREAM | number);
            let _ = cx.rewatch(&stream.fd, STREAM | number, true, true);
            self.core.streams.insert(number, stream);
        }
        for Inherited { about, stats, keys } in peers {
            let id = about.peer;
            self.core.peer_new(cx, about, stats);
            let Some(peer) = self.core.peers.get_mut(&id) else { continue };
            for key in keys {
                let (slot, key_id) = (key.new.slot, key.new.key_id);
                let key = key.ready(peer);
                peer.keys.install(slot, key_id, key);
            }
        }
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
        if !alive || (stream.closing && stream.waiting() == 0) {
            return self.close(cx, id, &stream);
        }
        let waits = stream.waiting() > 0;
        let _ = cx.rewatch(&stream.fd, STREAM | id, true, waits);
        self.core.streams.insert(id, stream);
    }

    /// False when the connection is over.
    fn read_stream(&mut self, cx: &Context, id: u64, stream: &mut Stream) -> bool {
        let Self { core, scratch, pace, .. } = self;
        let n = match stream.read(scratch) {
            Ok(Some(n)) => n,
            Ok(None) => return false,
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        };
        core.routes.changed();
        pace.arrived(1);
        let from = Origin { socket: SocketId::new(core.number, id), remote: stream.remote, local: stream.local };
        core.stream_peer = stream.peer;
        let mut coalescer = Coalescer::new();
        let mut rest = &mut scratch[..n];
        let sound = loop {
            match whole(rest) {
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

    fn accept(&mut self, cx: &Context, index: usize) {
        use rustix::net::{SocketFlags, accept_with};
        for _ in 0..ACCEPTS {
            let Some(listener) = self.listeners.get(index) else { return };
            let fd = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => fd,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(_) => return,
            };
            if self.core.streams.len() >= STREAMS {
                self.counters().drop_connection.inc();
                continue;
            }
            let number = self.next_stream;
            self.next_stream += 1;
            let socket = SocketId::new(self.core.number, number);
            if let Ok(remote) = self.open(cx, number, fd) {
                self.core.shared.sink.event(Event::SocketOpened { socket, remote });
            }
        }
    }

    fn open(&mut self, cx: &Context, number: u64, fd: OwnedFd) -> io::Result<std::net::SocketAddr> {
        let stream = Stream::new(fd)?;
        let remote = stream.remote;
        cx.watch_listener(&stream.fd, STREAM | number)?;
        self.core.streams.insert(number, stream);
        Ok(remote)
    }

    fn close(&mut self, cx: &Context, number: u64, stream: &Stream) {
        cx.unwatch(&stream.fd);
        self.core.shared.sink.event(Event::SocketClosed(SocketId::new(self.core.number, number)));
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

    fn peer_del(&mut self, cx: &Context, id: PeerId, reason: DelReason) {
        let Some(peer) = self.core.peers.remove(&id) else { return self.core.fail(id) };
        if self.core.sole == Some(id) {
            self.core.sole = None;
        }
        if peer.about.transport == Transport::Tcp {
            self.close_when_sent(cx, peer.about.socket);
        }
        self.core.shared.sink.event(Event::PeerGone { peer: id, reason });
    }

    fn close_when_sent(&mut self, cx: &Context, socket: SocketId) {
        let number = socket.number();
        let Some(stream) = self.core.streams.get_mut(&number) else { return };
        stream.closing = true;
        stream.peer = None;
        if stream.flush().unwrap_or(true) {
            if let Some(stream) = self.core.streams.remove(&number) {
                self.close(cx, number, &stream);
            }
        } else {
            let _ = cx.rewatch(&stream.fd, STREAM | number, true, true);
        }
    }

    fn control_out(&mut self, socket: SocketId, transmit: &Transmit<'_>) {
        let core = &mut self.core;
        core.counters.control_out.inc();
        // What was sealed before leaves before.
        core.outbox.flush(&core.udp, &core.counters);
        if let Some(udp) = core.udp.get(socket.number() as usize) {
            if udp.send(transmit).is_err() {
                core.counters.link_lost.inc();
            }
        } else if let (Some(_), Ok(len)) = (core.streams.get(&socket.number()), u16::try_from(transmit.data.len())) {
            core.stream_out(socket.number(), len, |out| {
                out.copy_from_slice(transmit.data);
                Ok::<_, ()>(())
            });
        } else {
            core.counters.link_lost.inc();
        }
    }
}

impl Service for Lane {
    type Message = Message;

    fn ready(&mut self, cx: &mut Context, token: u64, ready: Ready) {
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
        self.core.peer_timeout(cx, token);
    }

    fn message(&mut self, cx: &mut Context, message: Message) {
        match message {
            Message::PeerNew(new, stats) => self.core.peer_new(cx, *new, stats),
            Message::PeerSet(id, set) => match self.core.peers.get_mut(&id) {
                Some(peer) => {
                    peer.set(*set);
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
                self.control_out(socket, &Transmit { remote, local, segment: 0, ecn: 0, data: &bytes });
            }
            Message::InbandOut(id, bytes) => {
                self.core.routes.changed();
                let mut bytes = bytes;
                self.core.send_to(cx, id, &Vnet::default(), &mut bytes, false);
            }
            Message::SocketNew(socket, fd) => {
                if self.open(cx, socket.number(), fd).is_err() {
                    self.core.shared.sink.event(Event::SocketClosed(socket));
                }
            }
            Message::SocketClose(socket) => self.close_when_sent(cx, socket),
            Message::Inbound { from, mut bytes } => {
                self.core.shared.lanes[usize::from(self.core.number)].taken();
                self.core.routes.changed();
                let mut coalescer = Coalescer::new();
                if let Some(inner) = self.core.link_in(cx, &mut bytes, &from, Transport::Udp) {
                    coalescer.push(inner, &mut TunWriter(&self.core.tun));
                }
                let written = coalescer.finish(&mut TunWriter(&self.core.tun));
                self.core.count_written(written);
            }
            Message::Outbound(id, mut bytes) => {
                self.core.shared.lanes[usize::from(self.core.number)].taken();
                if let (Some(vnet), Some(packet)) = (Vnet::decode(&bytes), bytes.get_mut(HEADER..)) {
                    self.core.send_to(cx, id, &vnet, packet, true);
                }
            }
            Message::Stop => self.stopping = true,
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
        if self.stopping {
            return After::Stop;
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
