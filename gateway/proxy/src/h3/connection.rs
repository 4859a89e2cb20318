//! An HTTP/3 connection: the transport with what is spoken on it, whichever side of it is ours.

use super::code;
use super::stream::Stream;
use crate::conn::{Client, Conn};
use crate::connections::Connections;
use crate::exchange::priority::Priority;
use crate::exchange::waste::WasteBudget;
use crate::quic::ConnectionTable;
use crate::quic::connection::Connection;
use crate::upstream::group::LaneUpstream;
use quinn_proto::StreamId;
use sealane_http::h3::{Code, Peer, Side, UniReader};
use sealane_lane::{Deadline, Key, Micros, Millis};
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

/// Who is at the other end.
pub(crate) enum Role {
    /// A client; it opens the streams.
    Client(Client, Stay, ClientHandshake),
    /// An upstream's server; we open the streams.
    Server(Server),
}

/// Whether a client stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// As far as is known.
    Stays,
    /// It has been told that the end is near, and this is when it comes.
    Until(Millis),
    /// It is no longer among the lane's clients.
    CountedOut,
}

/// How far the handshake of a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientHandshake {
    /// It is not over, and no request has come.
    Silent,
    /// A request has come before it was over.
    CalledEarly,
    /// It is over and has been counted.
    Over,
}

/// An upstream's server.
pub(crate) struct Server {
    pub upstream: Rc<LaneUpstream>,
    /// Index into the upstream's servers.
    pub server: usize,
    pub requests: Requests,
}

/// What becomes of requests to a server.
pub(crate) enum Requests {
    /// They go over this connection. `waiting`: those that wait until it is made, or until the server allows more streams.
    /// `answered`: the server has answered one.
    Sent { waiting: VecDeque<Key>, answered: bool },
    /// The connection is lost, and they have gone elsewhere.
    GoneElsewhere,
}

impl Server {
    pub fn new(upstream: Rc<LaneUpstream>, server: usize) -> Self {
        Self { upstream, server, requests: Requests::Sent { waiting: VecDeque::new(), answered: false } }
    }

    /// It has answered a request.
    pub fn note_answer(&mut self) {
        if let Requests::Sent { answered, .. } = &mut self.requests {
            *answered = true;
        }
    }
}

/// ```text
/// Handshake ─► Open ─► Leaving ─► Closed ─► (drained) gone
///      └────────┴─────────────────▲
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The handshake is not over; early data may come.
    Handshake,
    Open,
    /// GOAWAY has gone out or come in: no new requests, the connection closes with the last of those there are. The
    /// handshake may still be under way ([`H3Connection::is_handshaking`]).
    Leaving,
    /// CONNECTION_CLOSE has gone out or come in. What is left is the protocol's: datagrams that still come.
    Closed,
}

pub(crate) struct H3Connection {
    pub quic: Connection,
    pub role: Role,
    pub phase: Phase,
    pub(super) peer: Peer,
    /// The peer's own streams.
    pub(super) uni: Vec<(StreamId, UniReader)>,
    pub(super) control: Option<StreamId>,
    /// What waits to go out on our control stream.
    pub(super) control_out: Vec<u8>,
    pub streams: Slab<Stream>,
    /// Bytes that were left on streams when they were last flushed.
    pub waiting: usize,
    pub(super) by_id: HashMap<StreamId, u32>,
    /// Priorities that came ahead of their requests.
    pub(super) early_priorities: VecDeque<(StreamId, Priority)>,
    /// Bounds how many priorities a client sends beyond one for each request.
    pub(super) priority_budget: WasteBudget,
    /// Counts turns of streams, for taking them in turn.
    pub(super) turns: u64,
    /// Streams that have something to send.
    pub staged: Vec<u32>,
    /// In the lane's list of connections to flush.
    pub needs_flush: bool,
    pub deadline: Deadline,
    /// When the handshake began: a client's with its first packet, as over TCP with the accept.
    pub began: Micros,
    pub idle_since: Millis,
    /// The stream id behind the last request that was looked at: what GOAWAY says.
    pub(super) next_id: u64,
    /// Bytes that a server may send ahead on each of its streams.
    pub stream_window: usize,
}

impl H3Connection {
    pub fn new(quic: Connection, role: Role, now: Millis, began: Micros) -> Self {
        let side = if matches!(role, Role::Client(..)) { Side::Server } else { Side::Client };
        Self {
            quic,
            role,
            phase: Phase::Handshake,
            peer: Peer::new(side),
            uni: Vec::new(),
            control: None,
            control_out: Vec::new(),
            streams: Slab::new(),
            waiting: 0,
            by_id: HashMap::new(),
            early_priorities: VecDeque::new(),
            priority_budget: WasteBudget::default(),
            turns: 0,
            staged: Vec::new(),
            needs_flush: false,
            deadline: Deadline::default(),
            began,
            idle_since: now,
            next_id: 0,
            stream_window: 0,
        }
    }

    /// The peer has opened a stream of its own.
    pub fn add_uni(&mut self, id: StreamId) {
        self.uni.push((id, UniReader::default()));
    }

    /// The client at the other end.
    pub fn client(&mut self) -> Option<&mut Client> {
        match &mut self.role {
            Role::Client(client, ..) => Some(client),
            Role::Server(_) => None,
        }
    }

    /// The same, to look at.
    pub fn client_ref(&self) -> Option<&Client> {
        match &self.role {
            Role::Client(client, ..) => Some(client),
            Role::Server(_) => None,
        }
    }

    pub fn is_client(&self) -> bool {
        matches!(self.role, Role::Client(..))
    }

    /// Whether the handshake is under way, so that a request that has come may be a replay; also if the connection is leaving.
    pub fn is_handshaking(&self) -> bool {
        !self.quic.is_established()
    }

    /// Whether a request that has come is early data, which is noted for the end of the handshake.
    pub fn comes_early(&mut self) -> bool {
        let is_early = self.is_handshaking();
        if let (true, Role::Client(_, _, opening)) = (is_early, &mut self.role) {
            *opening = ClientHandshake::CalledEarly;
        }
        is_early
    }

    /// The client's handshake is over. Whether requests have come before that.
    pub fn end_handshake(&mut self) -> bool {
        match &mut self.role {
            Role::Client(_, _, opening) => {
                std::mem::replace(opening, ClientHandshake::Over) == ClientHandshake::CalledEarly
            }
            Role::Server(_) => false,
        }
    }

    /// Whether nothing more is read of a stream.
    pub fn has_read_all(&self, stream: u32) -> bool {
        self.streams.get(stream as usize).is_some_and(|s| s.receiving.is_over() && s.rest.is_empty())
    }

    /// The requests that wait until it is made, or until the server allows more streams.
    pub fn waiting_requests(&mut self) -> Option<&mut VecDeque<Key>> {
        match &mut self.role {
            Role::Server(Server { requests: Requests::Sent { waiting, .. }, .. }) => Some(waiting),
            Role::Server(_) | Role::Client(..) => None,
        }
    }

    /// Whether a request has been sent over it, or has come.
    pub fn has_opened(&self) -> bool {
        self.next_id > 0
    }

    /// Bytes of responses that may wait on its streams, by exchange. The transport does not tell how many have come, so all count
    /// that the server may have sent.
    pub fn may_hold(&self) -> impl Iterator<Item = (Key, usize)> + '_ {
        self.streams.iter().filter_map(move |(_, stream)| {
            let promised = stream.promised.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
            Some((stream.exchange?, self.stream_window.min(promised).max(stream.rest.len())))
        })
    }

    /// Exchanges whose requests are on its streams.
    pub fn exchanges(&self) -> Vec<Key> {
        self.streams.iter().filter_map(|(_, s)| s.exchange).collect()
    }

    /// Whether it goes away and has nothing left to do.
    pub fn is_done(&mut self) -> bool {
        self.phase == Phase::Leaving
            && self.may_close()
            && self.waiting_requests().is_none_or(|waiting| waiting.is_empty())
    }

    /// Whether a client that leaves may be told so: it has all of its responses. What the protocol still holds of them, or
    /// may have to send again, would be lost with the connection.
    fn may_close(&mut self) -> bool {
        let ours = usize::from(self.control.is_some());
        self.streams.is_empty() && !(self.is_client() && self.quic.send_streams() > ours)
    }

    /// Closes the connection.
    pub fn close(&mut self, now: Instant, why: Code, reason: &'static str) {
        if self.phase != Phase::Closed {
            self.phase = Phase::Closed;
            self.quic.close(now, code(why), reason);
        }
    }
}

impl ConnectionTable for Connections {
    #[inline]
    fn transport(&self, key: Key) -> Option<&Connection> {
        match self.get(key) {
            Some(Conn::Quic(q)) => Some(&q.quic),
            _ => None,
        }
    }

    #[inline]
    fn transport_mut(&mut self, key: Key) -> Option<&mut Connection> {
        self.quic(key).map(|q| &mut q.quic)
    }

    fn count(&self) -> usize {
        self.len()
    }
}
