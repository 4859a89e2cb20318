//! The place of one connection.

use std::os::fd::OwnedFd;

use super::pacer::Op;
use super::quic::Link;
use crate::clock::Nanos;
use crate::tls::Session;
use sealane_lab_wire::{h1, h2};

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    Vacant,
    /// TCP is being established.
    Connecting,
    /// TLS is.
    Handshaking,
    /// Requests may be sent.
    Open,
    /// The operation is done; the peer's close is awaited, for the tickets that come before it.
    Closing,
}

/// A seat.
pub struct Seat {
    /// The origin it belongs to.
    pub group: u16,
    /// Which of the names is asked for.
    pub name: u16,
    pub phase: Phase,
    pub fd: Option<OwnedFd>,
    pub tls: Option<Box<Session>>,
    pub reader: h1::Reader,
    /// The HTTP/2 connection, with its requests.
    pub h2: Option<Box<h2::Client<Op>>>,
    /// The QUIC connection, with its requests.
    pub quic: Option<Box<Link>>,
    /// It waits among the free seats.
    pub queued: bool,
    /// It has frames to send at the end of this turn.
    pub dirty: bool,
    /// The operation under way.
    pub op: Option<Op>,
    /// Its request is on its way (perhaps as early data).
    pub requested: bool,
    /// Received TLS bytes that are not a whole record yet.
    pub pending: Vec<u8>,
    /// Bytes the socket would not take yet.
    pub unsent: Vec<u8>,
    /// When the connection was begun.
    pub opened: Nanos,
    /// When TCP stood.
    pub connected: Nanos,
    /// Distinguishes this connection's events from its predecessors'.
    pub generation: u32,
    /// Failures in a row before the clock started.
    pub attempts: u32,
    /// Early data was asked for: the request leaves closing to us.
    pub lingers: bool,
    /// Whether a ticket was offered.
    pub offered: bool,
    /// Tickets that the connection has been given.
    pub tickets: u64,
}

impl Seat {
    pub fn new(group: u16) -> Self {
        Self {
            group,
            name: 0,
            phase: Phase::Vacant,
            fd: None,
            tls: None,
            reader: h1::Reader::new(false),
            h2: None,
            quic: None,
            queued: false,
            dirty: false,
            op: None,
            requested: false,
            pending: Vec::new(),
            unsent: Vec::new(),
            opened: 0,
            connected: 0,
            generation: 0,
            attempts: 0,
            lingers: false,
            offered: false,
            tickets: 0,
        }
    }

    /// Whether an operation is under way.
    pub fn busy(&self) -> bool {
        let streams = self.h2.as_ref().map_or(0, |h2| h2.active()) + self.quic.as_ref().map_or(0, |link| link.active());
        self.op.is_some() || streams > 0
    }

    /// Whether there is a TLS session in it.
    pub fn secure(&self) -> bool {
        self.tls.is_some() || self.quic.is_some()
    }

    /// Whether whatever it does has taken longer than `timeout`.
    pub fn overdue(&self, now: Nanos, timeout: Nanos) -> bool {
        let oldest = match (&self.h2, &self.quic) {
            (Some(h2), _) => h2.operations().map(|op| op.started).min(),
            (_, Some(link)) => link.oldest(),
            _ => None,
        };
        let since = match (&self.op, self.phase) {
            (_, Phase::Vacant) => return false,
            (None, Phase::Open) if oldest.is_some() => oldest.unwrap_or(now),
            (Some(op), _) => op.started,
            (None, Phase::Open) => return false,
            (None, _) => self.opened,
        };
        now.saturating_sub(since) > timeout
    }
}
