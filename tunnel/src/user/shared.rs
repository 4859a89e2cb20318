//! What all lanes of a plane know, and what is mailed to them.

use super::counters::{LaneCounters, PeerStats};
use super::routes::Routes;
use crate::plane::{DelReason, KeyNew, KeySlot, PeerId, PeerNew, PeerSet, Sink, SocketId, lane_of};
use sealane_lane::{Mailbox, Published};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a plane is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Many peers; packets are routed by address, and sources are checked.
    Server {
        /// Packets between peers stay here; else they go to the system, which may filter and route them.
        client_to_client: bool,
    },
    /// One peer, the server, which everything from the TUN goes to and whose packets may have any source.
    Client,
}

/// Packets that may wait in a lane's mailbox, forwarded by other lanes.
const FORWARDED: usize = 1024;

/// What all lanes of a plane know.
pub(super) struct Shared {
    pub role: Role,
    /// See [`super::Config::gather`].
    pub gather: Duration,
    pub sink: Arc<dyn Sink>,
    pub routes: Arc<Published<Routes>>,
    pub lanes: Vec<LaneDoor>,
    /// Times of all lanes are told from here.
    pub started: Instant,
}

/// How to reach a lane.
pub(super) struct LaneDoor {
    pub mailbox: Mailbox<Message>,
    pub counters: Arc<LaneCounters>,
    /// Forwarded packets in its mailbox. Written by several lanes, but only where steering has not helped.
    waiting: AtomicUsize,
}

impl LaneDoor {
    pub(super) fn new(mailbox: Mailbox<Message>) -> Self {
        Self { mailbox, counters: Arc::default(), waiting: AtomicUsize::new(0) }
    }

    /// A forwarded packet has been taken out.
    pub(super) fn taken(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    pub(super) fn lane_of(&self, peer: PeerId) -> u16 {
        match self.role {
            Role::Client => 0,
            Role::Server { .. } => lane_of(peer, self.lanes.len() as u16),
        }
    }

    /// Hands a packet to another lane. False when that one has too many already.
    pub(super) fn forward(&self, lane: u16, packet: impl FnOnce() -> Message) -> bool {
        let Some(door) = self.lanes.get(usize::from(lane)) else { return false };
        if door.waiting.fetch_add(1, Ordering::Relaxed) >= FORWARDED {
            door.waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        door.mailbox.send(packet()).is_ok()
    }
}

/// Mail for a lane.
pub(super) enum Message {
    PeerNew(Box<PeerNew>, Arc<PeerStats>),
    PeerSet(PeerId, Box<PeerSet>),
    PeerDel(PeerId, DelReason),
    KeyNew(Box<KeyNew>),
    KeySwap(PeerId),
    KeyDel(PeerId, KeySlot),
    ControlOut {
        socket: SocketId,
        remote: SocketAddr,
        local: Option<IpAddr>,
        bytes: Vec<u8>,
    },
    InbandOut(PeerId, Vec<u8>),
    SocketNew(SocketId, OwnedFd),
    SocketClose(SocketId),
    /// A data packet that came to another lane.
    Inbound {
        from: Origin,
        bytes: Vec<u8>,
    },
    /// A packet from the TUN, with its header, or from another peer, that came to another lane.
    Outbound(PeerId, Vec<u8>),
    Stop,
}

/// Where a packet was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub socket: SocketId,
    pub remote: SocketAddr,
    pub local: Option<IpAddr>,
}
