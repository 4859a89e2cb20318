//! What all lanes of a plane know, and what is mailed to them.

use super::counters::{LaneCounters, PeerStats};
use super::routes::Routes;
use crate::plane::{DelReason, KeyNew, KeySlot, PeerId, PeerNew, PeerSet, Sink, SocketId, TakenSocket, lane_of};
use sealane_lane::{Load, Mail, Mailbox, Published};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
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

/// The capacity of a lane's mailbox: packets that other lanes have forwarded, control packets in bytes, and connections
/// that were accepted elsewhere.
pub(super) const CAPACITY: &[usize] = &[1024, 4 << 20, 256];
const FORWARDED: usize = 0;
const CONTROL: usize = 1;
const TAKEN: usize = 2;

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
    /// How many lanes have come to each step of stopping.
    pub stopped: [AtomicUsize; STOP_STEPS],
}

/// Steps of stopping: no lane reads any more; none has a packet that it would forward. After each all mail is taken once
/// more, so that what lanes have forwarded to each other is not lost.
pub(super) const STOP_STEPS: usize = 2;

/// How to reach a lane.
pub(super) struct LaneDoor {
    pub mailbox: Mailbox<Message>,
    pub counters: Arc<LaneCounters>,
}

impl LaneDoor {
    pub(super) fn new(mailbox: Mailbox<Message>) -> Self {
        Self { mailbox, counters: Arc::default() }
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
        self.lanes.get(usize::from(lane)).is_some_and(|door| door.mailbox.send(packet()).is_ok())
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
    SocketTake(TakenSocket),
    SocketConfirm(SocketId),
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

impl Mail for Message {
    fn load(&self) -> Load {
        match self {
            Self::Inbound { .. } | Self::Outbound(..) => Load::Counted { kind: FORWARDED, amount: 1 },
            Self::SocketTake(_) => Load::Counted { kind: TAKEN, amount: 1 },
            // Strangers cause them: the gate answers every reset.
            Self::ControlOut { bytes, .. } => {
                Load::Counted { kind: CONTROL, amount: size_of::<Self>() + bytes.capacity() }
            }
            _ => Load::Free,
        }
    }
}

/// Where a packet was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub socket: SocketId,
    pub remote: SocketAddr,
    pub local: Option<IpAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_lane::{Undelivered, mailbox};

    #[test]
    fn control_packets_that_wait_are_bounded_and_keep_no_command_out() {
        let (door, inbox) = mailbox(CAPACITY).expect("a mailbox");
        let answer = || Message::ControlOut {
            socket: SocketId::new(0, 0),
            remote: ([192, 0, 2, 1], 1).into(),
            local: None,
            bytes: vec![7; 54],
        };
        let waiting = (0..1_000_000).take_while(|_| door.send(answer()).is_ok()).count();
        assert!(waiting < CAPACITY[CONTROL] / 54, "{waiting}");
        assert!(matches!(door.send(answer()), Err(Undelivered::Full(_))));
        assert!(door.send(Message::SocketClose(SocketId::new(0, 1))).is_ok());
        assert!(door.send(Message::Outbound(PeerId::new(1).expect("an id"), Vec::new())).is_ok());
        assert!(inbox.receive().is_some());
        assert!(door.send(answer()).is_ok());
    }
}
