//! The thread of the kernel's plane: control packets that the kernel leaves on the sockets, and its notifications.

use super::State;
use super::family::{Notice, Requests, notice};
use crate::plane::{ControlIn, DelReason, Event, PeerId, Sink, SocketId, Transport};
use sealane_lane::{After, Context, Load, Mail, Ready, Service};
use sealane_ovpn::data::Header;
use sealane_sys::netlink::Netlink;
use sealane_sys::udp::{Batch, Socket, Transmit};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Default)]
pub(super) struct Counts {
    pub control_in: AtomicU64,
    pub control_lost: AtomicU64,
    pub control_out: AtomicU64,
    pub link_lost: AtomicU64,
    pub drop_unknown_peer: AtomicU64,
    pub floats: AtomicU64,
}

pub(super) enum Message {
    ControlOut { socket: usize, remote: SocketAddr, local: Option<IpAddr>, bytes: Vec<u8> },
    Stop,
}

/// The capacity of the thread's mailbox: control packets, in bytes.
pub(super) const CAPACITY: &[usize] = &[4 << 20];

impl Mail for Message {
    fn load(&self) -> Load {
        match self {
            // Strangers cause them: the gate answers every reset.
            Self::ControlOut { bytes, .. } => Load::Counted { kind: 0, amount: size_of::<Self>() + bytes.capacity() },
            Self::Stop => Load::Free,
        }
    }
}

const NOTICES: u64 = 1 << 62;

/// The thread that reads what the kernel leaves to user space.
pub(super) struct Reader {
    udp: Vec<Socket>,
    batch: Batch,
    notices: Netlink,
    requests: Requests,
    sink: Arc<dyn Sink>,
    state: Arc<Mutex<State>>,
    counts: Arc<Counts>,
    stopping: bool,
}

impl Reader {
    pub(super) fn new(
        udp: Vec<Socket>,
        notices: Netlink,
        requests: Requests,
        sink: Arc<dyn Sink>,
        state: Arc<Mutex<State>>,
        counts: Arc<Counts>,
    ) -> Self {
        Self { udp, batch: Batch::new(16, 65_535), notices, requests, sink, state, counts, stopping: false }
    }

    /// Its sockets for notifications and for control packets.
    pub(super) fn into_parts(self) -> (Netlink, Vec<Socket>) {
        (self.notices, self.udp)
    }

    pub(super) fn watch(&self, cx: &Context) -> io::Result<()> {
        for (i, socket) in self.udp.iter().enumerate() {
            cx.watch_listener(socket, i as u64)?;
        }
        cx.watch_listener(&self.notices, NOTICES)
    }

    fn receive(&mut self, index: usize) {
        let Self { udp, batch, sink, counts, .. } = self;
        let Some(socket) = udp.get(index) else { return };
        if socket.receive(batch).is_err() {
            return;
        }
        for (meta, bytes) in batch.iter_mut() {
            for packet in bytes.chunks(meta.segment) {
                // The kernel leaves data packets of peers that it does not know.
                if packet.is_empty() || meta.truncated || Header::parse(packet).is_some() {
                    counts.drop_unknown_peer.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let taken = sink.control_in(ControlIn {
                    socket: SocketId::new(0, index as u64),
                    transport: Transport::Udp,
                    remote: meta.remote,
                    local: meta.local,
                    bytes: packet.to_vec(),
                });
                let count = if taken { &counts.control_in } else { &counts.control_lost };
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn notices(&mut self) {
        let Ok(messages) = self.notices.notifications() else { return };
        for message in messages {
            match notice(&message, self.requests) {
                Some(Notice::Deleted(id, reason)) => self.deleted(id, reason),
                Some(Notice::KeyEnds(peer, key_id)) => self.sink.event(Event::KeyExhausted { peer, key_id }),
                Some(Notice::Floated(peer, remote)) => {
                    self.counts.floats.fetch_add(1, Ordering::Relaxed);
                    self.sink.event(Event::FloatTo { peer, remote, local: None });
                }
                None => {}
            }
        }
    }

    /// A peer that the kernel dropped by itself: its routes go, too.
    fn deleted(&self, id: PeerId, reason: DelReason) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = state.peers.remove(&id) {
            for network in &peer.routes {
                let _ = state.route.route_del(self.requests.interface, network.address(), network.len());
            }
        }
        drop(state);
        if reason == DelReason::Expired {
            self.sink.event(Event::PeerExpired(id));
        }
        self.sink.event(Event::PeerGone { peer: id, reason });
    }
}

impl Service for Reader {
    type Message = Message;

    fn ready(&mut self, _: &mut Context, token: u64, _: Ready) {
        if token == NOTICES { self.notices() } else { self.receive(token as usize) }
    }

    fn timeout(&mut self, _: &mut Context, _: u64) {}

    fn message(&mut self, _: &mut Context, message: Message) {
        match message {
            Message::Stop => self.stopping = true,
            Message::ControlOut { socket, remote, local, bytes } => {
                let transmit = Transmit { remote, local, segment: 0, ecn: 0, data: &bytes };
                let sent = self.udp.get(socket).is_some_and(|s| s.send(&transmit).is_ok());
                let count = if sent { &self.counts.control_out } else { &self.counts.link_lost };
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn turn(&mut self, _: &mut Context) -> After {
        if self.stopping { After::Stop } else { After::Sleep }
    }
}
