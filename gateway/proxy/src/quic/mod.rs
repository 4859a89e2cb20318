//! QUIC in a lane: its sockets, endpoints, connections and timers, with quinn-proto for the protocol. It knows no HTTP.
//!
//! ```text
//! socket ─ trains ─► datagram ─┬─► another lane's (by connection id): its mailbox
//!                              ├─► Connection ─ events ─► quic_driver ─► client::h3, upstream::h3
//!                              └─► Incoming ─ retry | refuse | queue ─ accept ─► Connection
//! socket ◄─ one batch per turn ◄─ transmit ◄─ connections marked for it
//! ```
//! An endpoint belongs to one socket of one listener, and lives as long as connections of it do, also when the listener
//! has gone from the configuration. Connection ids name the socket ([`config`]), so that every packet finds its lane
//! after a change of the client's address: by `sealane_sys::steer` in the kernel, else by the mailbox.
//!
//! The lane keeps a [`Connection`] together with what is spoken on it (`h3::connection`), under one key. The endpoint
//! reaches it by [`ConnectionTable`], and notes the keys of those to which something has happened.
//!
//! quinn-proto asks for time as `Instant` and wants timers finer than the lane's wheel: they are in a heap, and the
//! lane's loop wakes for the first of them.
//!
//! | module | what it does |
//! |---|---|
//! | `sockets` | opens sockets, begins connections to servers, follows the configuration |
//! | `receive` | reads datagrams and finds their connections |
//! | `forwarding` | passes datagrams on to the lane or the process that owns their connections |
//! | `admission` | new connections: Retry, refusal, the queue for crypto time |
//! | `send` | takes datagrams from connections, and sends those of a turn |
//! | `succession` | the way between two processes during an upgrade |
//! | `config` | what quinn-proto is told |
//! | `congestion` | how much may be under way, also at the end |

pub(crate) mod admission;
pub(crate) mod config;
mod congestion;
pub(crate) mod connection;
pub(crate) mod forwarding;
mod receive;
pub(crate) mod send;
mod sockets;
pub(crate) mod succession;

use crate::accept::admission::Admission;
use crate::counters::Counters;
use crate::lane_state::LaneListener;
use crate::settings::LaneSettings;
use admission::Waiting;
use connection::Connection;
use forwarding::Moved;
use quinn_proto::{ConnectionHandle, EndpointEvent};
use sealane_lane::Key;
use sealane_sys::udp::{Batch, Socket};
use sealane_tls::ids::IdKey;
use send::Outgoing;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use succession::Channel;

pub use forwarding::Datagram;

/// Tokens of UDP sockets: the lower bits are the endpoint's index.
pub(crate) const UDP: u64 = 1 << 63 | 1 << 61;
/// How much later than they may be the ids of ended connections are forgotten, where nothing else happens meanwhile.
const FORGETTING: Duration = Duration::from_millis(100);
/// Entries of the timers' heap, beside a few per connection, above which those that are stale are removed.
const STALE_TIMERS: usize = 256;

/// Where the lane keeps its connections.
pub(crate) trait ConnectionTable {
    /// The connection under a key, if it is one over QUIC.
    fn transport(&self, key: Key) -> Option<&Connection>;
    /// The same, to change it.
    fn transport_mut(&mut self, key: Key) -> Option<&mut Connection>;
    /// How many connections there are, of any kind.
    fn count(&self) -> usize;
}

/// The parts of the lane that concern a datagram.
pub(crate) struct Parts<'a, C> {
    pub connections: &'a mut C,
    pub admission: &'a mut Admission,
    pub settings: &'a LaneSettings,
    pub counters: &'a Counters,
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
    /// Addresses of clients that the listener's rules have refused, to be reported, some of each batch.
    denied: Vec<SocketAddr>,
    /// Handshakes with clients under way.
    handshakes: usize,
    /// Clients' first connection ids whose hello was another lane's.
    moved: Moved,
    /// Makes and checks the MACs of connection ids.
    ids: Option<Arc<IdKey>>,
    /// The process that reads our listeners' sockets now; it passes on what is ours.
    successor: Option<Arc<Channel>>,
}

impl QuicEndpoint {
    /// There is no socket.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Another process reads the listeners' sockets.
    pub fn has_successor(&self) -> bool {
        self.successor.is_some()
    }

    /// Notes under which key a connection is known.
    pub fn note(&mut self, connection: &Connection, key: Key) {
        self.note_handle(connection.endpoint, connection.handle, key);
    }

    fn note_handle(&mut self, endpoint: usize, handle: ConnectionHandle, key: Key) {
        if let Some(Some(endpoint)) = self.endpoints.get_mut(endpoint) {
            if endpoint.keys.len() <= handle.0 {
                endpoint.keys.resize(handle.0 + 1, None);
            }
            endpoint.keys[handle.0] = Some(key);
        }
    }

    /// The next connection to which something has happened.
    #[inline]
    pub fn next_touched(&mut self) -> Option<Key> {
        self.touched.pop()
    }

    /// A handshake with a client is over, or its client has left before that.
    pub fn handshake_over(&mut self) {
        self.handshakes = self.handshakes.saturating_sub(1);
    }

    /// Notes when a connection's protocol wants to be woken.
    pub fn arm(&mut self, connections: &mut impl ConnectionTable, key: Key) {
        let Some(connection) = connections.transport_mut(key) else { return };
        let Some(at) = connection.wakes_at() else { return };
        // A timer that has moved back is found out when the old entry comes up.
        if connection.armed.is_none_or(|armed| at < armed) {
            connection.armed = Some(at);
            self.timers.push(Reverse((at, key.to_u64())));
        }
        // What timers that have moved forward left behind goes once it is most of what is there.
        if self.timers.len() > STALE_TIMERS + 4 * connections.count() {
            let live = |at: Instant, token: u64| is_armed_for(connections, token, at);
            self.timers.retain(|Reverse((at, token))| live(*at, *token));
        }
    }

    /// The next connection whose timer has expired; its protocol has been told.
    pub fn next_expired(&mut self, now: Instant, connections: &mut impl ConnectionTable) -> Option<Key> {
        while let Some(Reverse((at, token))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            let key = Key::from_u64(token);
            if let Some(connection) = connections.transport_mut(key)
                && connection.armed == Some(at)
            {
                connection.armed = None;
                connection.protocol.handle_timeout(now);
                return Some(key);
            }
        }
        None
    }

    /// When the lane has to wake for a timer, or for a socket that was full.
    pub fn alarm(&mut self, now: Instant, connections: &impl ConnectionTable) -> Option<Instant> {
        let first = self.first_timer(connections);
        let forgetting = self.closing.peek().map(|Reverse((at, ..))| *at + FORGETTING);
        let full = self.is_blocked().then_some(now + send::WAIT_LIMIT);
        [first, forgetting, full].into_iter().flatten().min()
    }

    /// When the first connection wants to be woken. Nobody wakes for those that have ended, or want it at another time now:
    /// in a storm of short connections each would cost a turn or two.
    fn first_timer(&mut self, connections: &impl ConnectionTable) -> Option<Instant> {
        while let Some(Reverse((at, token))) = self.timers.peek().copied() {
            if is_armed_for(connections, token, at) {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    /// Ids of connections that have ended and whose last packets are over are forgotten.
    pub fn forget_ended(&mut self, now: Instant) {
        while let Some(Reverse((at, index, handle))) = self.closing.peek().copied()
            && at <= now
        {
            self.closing.pop();
            if let Some(Some(endpoint)) = self.endpoints.get_mut(index) {
                let _ = endpoint.endpoint.handle_event(ConnectionHandle(handle), EndpointEvent::drained());
            }
        }
    }
}

/// Whether an entry of the timers' heap is the one that its connection counts on.
fn is_armed_for(connections: &impl ConnectionTable, token: u64, at: Instant) -> bool {
    connections.transport(Key::from_u64(token)).is_some_and(|connection| connection.armed == Some(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{client_policy, limits, settings, snapshot};
    use sealane_lane::Context;
    use sealane_tls::ClientContext;
    use sealane_tls::quic::QuicClient;

    const BASE: Duration = Duration::from_secs(1);

    /// One connection, under one key, or none any more.
    struct Table(Option<Connection>);

    fn key() -> Key {
        Key::from_u64(0)
    }

    impl ConnectionTable for Table {
        fn transport(&self, at: Key) -> Option<&Connection> {
            self.0.as_ref().filter(|_| at == key())
        }

        fn transport_mut(&mut self, at: Key) -> Option<&mut Connection> {
            self.0.as_mut().filter(|_| at == key())
        }

        fn count(&self) -> usize {
            1
        }
    }

    /// A connection that wants to be woken, and the time when it does.
    fn connected() -> (QuicEndpoint, Table, Instant) {
        let (settings, _published) = settings(snapshot(limits(), Vec::new()));
        let (mut quic, cx) = (QuicEndpoint::default(), Context::new().unwrap());
        assert!(quic.is_empty());
        let client = QuicClient::new(&ClientContext::new(&client_policy()).unwrap()).unwrap();
        let config = quinn_proto::ClientConfig::new(Arc::new(client));
        let mut connection = quic.connect(&cx, &settings, config, ([127, 0, 0, 1], 9).into(), "a.example").unwrap();
        assert!(!quic.is_empty());
        quic.note(&connection, key());
        connection.accepted(cx.instant() + BASE, Vec::new(), None, None);
        let at = connection.wakes_at().unwrap();
        (quic, Table(Some(connection)), at)
    }

    #[test]
    fn a_connection_is_woken_once_and_not_before_its_time() {
        let (mut quic, mut table, at) = connected();
        let before = at - Duration::from_millis(1);
        assert_eq!(quic.alarm(before, &table), None, "nobody has asked");
        quic.arm(&mut table, key());
        quic.arm(&mut table, key());
        assert_eq!(quic.timers.len(), 1, "the same time is noted once");
        assert_eq!(quic.alarm(before, &table), Some(at));
        assert_eq!(quic.next_expired(before, &mut table), None);
        assert_eq!(quic.next_expired(at, &mut table), Some(key()));
        assert_eq!(quic.next_expired(at, &mut table), None);
        assert_eq!(quic.alarm(at, &table), None);
    }

    #[test]
    fn nobody_wakes_for_a_connection_that_is_gone() {
        let (mut quic, mut table, at) = connected();
        quic.arm(&mut table, key());
        table.0 = None;
        assert_eq!((quic.alarm(at, &table), quic.timers.len()), (None, 0));
        assert_eq!(quic.next_expired(at, &mut table), None);
    }

    #[test]
    fn timers_that_have_moved_do_not_pile_up() {
        let (mut quic, mut table, at) = connected();
        for n in 0..4 * STALE_TIMERS as u64 {
            // Each is earlier than the one before, which stays in the heap.
            let began = at - Duration::from_micros(n) - BASE;
            table.0.as_mut().unwrap().accepted(began, Vec::new(), None, None);
            quic.arm(&mut table, key());
            assert!(quic.timers.len() <= STALE_TIMERS + 4 + 1);
        }
        let first = table.0.as_mut().unwrap().wakes_at();
        assert_eq!(quic.alarm(at - BASE, &table), first);
    }

    #[test]
    fn an_ended_connection_is_forgotten_in_time() {
        let (mut quic, table, at) = connected();
        let connection = table.0.as_ref().unwrap();
        let (index, handle) = (connection.endpoint, connection.handle);
        let known = |quic: &QuicEndpoint| quic.endpoints[index].as_ref().unwrap().endpoint.open_connections();
        assert_eq!(quic.endpoints[index].as_ref().unwrap().keys[handle.0], Some(key()));
        quic.closing.push(Reverse((at, index, handle.0)));
        assert_eq!(quic.alarm(at, &table), Some(at + FORGETTING), "the lane wakes for it, if not for something else");
        quic.forget_ended(at - Duration::from_millis(1));
        assert_eq!(known(&quic), 1);
        quic.forget_ended(at);
        assert_eq!((known(&quic), quic.closing.len()), (0, 0));
    }

    #[test]
    fn a_handshake_is_over_once() {
        let mut quic = QuicEndpoint { handshakes: 1, ..QuicEndpoint::default() };
        quic.handshake_over();
        quic.handshake_over();
        assert_eq!(quic.handshakes, 0);
    }

    #[test]
    fn what_has_been_touched_is_looked_at_once() {
        let mut quic = QuicEndpoint { touched: vec![key()], ..QuicEndpoint::default() };
        assert_eq!((quic.next_touched(), quic.next_touched()), (Some(key()), None));
    }
}
