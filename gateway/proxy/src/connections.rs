//! A lane's connections, and which of them have something to send.
//!
//! Every connection, over TCP and over QUIC, with clients and with upstreams, has one key here. Code that stages bytes on a
//! connection marks it. The marks are taken at the end of the event (one exchange at a time), of the turn (shared over TCP),
//! or with the datagrams of the turn (QUIC).

use crate::client::identity::Client;
use crate::client::state::ClientConnection;
use crate::conn::Conn;
use crate::exchange::streams::ClientStream;
use crate::h3::connection::H3Connection;
use crate::mirrors::MirrorClient;
use crate::upstream::phase::UpstreamConnection;
use sealane_lane::{Context, Key, Millis, Slots};
use std::ops::Range;

#[derive(Default)]
pub(crate) struct Connections {
    slots: Slots<Conn>,
    /// Connections over TCP that are flushed before the event is over.
    marked: Vec<Key>,
    /// Those that many exchanges share: they are flushed once per turn, so that their frames leave in one record.
    shared: Vec<Key>,
    /// Connections over QUIC that are flushed in this turn.
    quic: Vec<Key>,
}

impl Connections {
    /// Takes a connection in.
    pub fn insert(&mut self, conn: Conn) -> Key {
        self.slots.insert(conn)
    }

    /// Puts a connection in that is known elsewhere by its key.
    pub fn insert_with(&mut self, conn: impl FnOnce(Key) -> Conn) -> Key {
        self.slots.insert_with(conn)
    }

    /// Takes a connection out; its marks find nothing then.
    pub fn remove(&mut self, key: Key) -> Option<Conn> {
        self.slots.remove(key)
    }

    #[inline]
    pub fn get(&self, key: Key) -> Option<&Conn> {
        self.slots.get(key)
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Conn> {
        self.slots.get_mut(key)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether a relay that is over still has bytes for its server. Walks over everything.
    pub fn has_closing_upstream(&self) -> bool {
        let closes = |conn: &Conn| matches!(conn, Conn::Upstream(b) if b.closes());
        self.slots.keys().any(|key| self.slots.get(key).is_some_and(closes))
    }

    /// All keys, for rare walks over everything.
    pub fn keys(&self) -> Vec<Key> {
        self.slots.keys().collect()
    }

    /// How many places there are for connections, free ones included.
    pub fn places(&self) -> usize {
        self.slots.places()
    }

    /// The keys in some of the places, for walks that are bounded.
    pub fn keys_in(&self, places: Range<usize>) -> Vec<Key> {
        self.slots.keys_in(places).collect()
    }

    /// A connection with a client over TCP.
    #[inline]
    pub fn client(&mut self, key: Key) -> Option<&mut ClientConnection> {
        match self.slots.get_mut(key) {
            Some(Conn::Client(client_conn)) => Some(client_conn),
            _ => None,
        }
    }

    /// A connection to an upstream over TCP.
    #[inline]
    pub fn upstream(&mut self, key: Key) -> Option<&mut UpstreamConnection> {
        match self.slots.get_mut(key) {
            Some(Conn::Upstream(upstream_conn)) => Some(upstream_conn),
            _ => None,
        }
    }

    /// A connection over QUIC.
    #[inline]
    pub fn quic(&mut self, key: Key) -> Option<&mut H3Connection> {
        match self.slots.get_mut(key) {
            Some(Conn::Quic(q)) => Some(q),
            _ => None,
        }
    }

    /// The client of a mirrored request.
    pub fn mirror(&mut self, key: Key) -> Option<&mut MirrorClient> {
        match self.slots.get_mut(key) {
            Some(Conn::Mirror(mirror)) => Some(mirror),
            _ => None,
        }
    }

    /// Who the client of an exchange is.
    #[inline]
    pub fn client_of(&self, side: ClientStream) -> Option<&Client> {
        self.client_at(side.conn())
    }

    /// Who the client at the other end of a connection is.
    #[inline]
    pub fn client_at(&self, key: Key) -> Option<&Client> {
        match self.slots.get(key)? {
            Conn::Client(client_conn) => Some(client_conn.client()),
            Conn::Quic(q) => q.client_ref(),
            Conn::Udp(session) => Some(session.client()),
            Conn::Upstream(_) | Conn::Mirror(_) => None,
        }
    }

    /// Whether a client's connection goes by the newest snapshot.
    #[inline]
    pub fn is_current(&self, key: Key) -> bool {
        self.client_at(key).is_none_or(Client::is_current)
    }

    /// A request that came whole has been served. Where a connection has many at a time, that makes up for one that was wasted.
    #[inline]
    pub fn note_served(&mut self, side: ClientStream) {
        if let ClientStream::H2(key, _) | ClientStream::H3(key, _) = side
            && let Some(client) = self.slots.get_mut(key).and_then(Conn::client)
        {
            client.note_served();
        }
    }

    /// Makes sure that what is staged on a connection is sent.
    #[inline]
    pub fn mark_for_flush(&mut self, key: Key) {
        let (transport, list) = match self.slots.get_mut(key) {
            Some(Conn::Client(f)) if f.is_h2() => (f.transport_mut(), &mut self.shared),
            Some(Conn::Client(f)) => (f.transport_mut(), &mut self.marked),
            Some(Conn::Upstream(b)) if b.is_h2() => (b.transport_mut(), &mut self.shared),
            Some(Conn::Upstream(b)) => (b.transport_mut(), &mut self.marked),
            Some(Conn::Quic(q)) => {
                if q.mark_for_flush() {
                    self.quic.push(key);
                }
                return;
            }
            Some(Conn::Mirror(_) | Conn::Udp(_)) | None => return,
        };
        if transport.mark_for_flush() {
            list.push(key);
        }
    }

    /// The next connection to flush before the event is over.
    #[inline]
    pub fn next_marked(&mut self) -> Option<Key> {
        self.marked.pop()
    }

    /// The shared connections over TCP that are marked. [`Self::reuse_shared`] takes the list's memory back.
    pub fn take_shared(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.shared)
    }

    /// Whether shared connections over TCP are marked.
    #[inline]
    pub fn has_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// Takes back the memory of a list, now empty, while no other connection is marked.
    pub fn reuse_shared(&mut self, list: Vec<Key>) {
        if self.shared.is_empty() && list.is_empty() {
            self.shared = list;
        }
    }

    /// The connections over QUIC that are marked.
    pub fn take_quic(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.quic)
    }

    /// Whether connections over QUIC are marked.
    #[inline]
    pub fn has_quic(&self) -> bool {
        !self.quic.is_empty()
    }

    /// The deadlines of a client's exchanges are looked at at this time or before.
    #[inline]
    pub fn look_by(&mut self, cx: &mut Context, side: ClientStream, at: Millis) {
        let key = side.conn();
        match self.slots.get_mut(key) {
            Some(Conn::Client(client_conn)) => client_conn.look_by(cx, key, at),
            Some(Conn::Quic(q)) => q.look_by(cx, key, at),
            Some(Conn::Mirror(mirror)) => mirror.look_by(cx, key, at),
            Some(Conn::Upstream(_) | Conn::Udp(_)) | None => {}
        }
    }

    /// When a copy of a request must be over; `None` for every other request.
    #[inline]
    pub fn copy_until(&self, side: ClientStream) -> Option<Millis> {
        match (side, self.slots.get(side.conn())) {
            (ClientStream::Mirror(_), Some(Conn::Mirror(mirror))) => Some(mirror.until()),
            _ => None,
        }
    }

    /// A timer of a connection has fired: whether it is time.
    pub fn fired(&mut self, cx: &mut Context, key: Key) -> bool {
        match self.slots.get_mut(key) {
            Some(Conn::Client(f)) => f.fired(cx, key),
            Some(Conn::Upstream(b)) => b.fired(cx, key),
            Some(Conn::Quic(q)) => q.fired(cx, key),
            Some(Conn::Mirror(mirror)) => mirror.fired(cx, key),
            Some(Conn::Udp(session)) => session.fired(cx, key),
            None => false,
        }
    }

    /// Whether an entry of the timer wheel is one that a connection still counts on.
    pub fn is_armed_for(&self, key: Key, tick: u64) -> bool {
        self.slots.get(key).is_some_and(|conn| conn.is_armed_for(tick))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use sealane_lane::Context;

    #[test]
    fn a_connection_is_listed_once_until_it_is_flushed() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let mut connections = Connections::default();
        let (conn, _peer) = fixtures::connection(&settings.listeners()[0]);
        let key = connections.insert(conn);
        connections.mark_for_flush(key);
        connections.mark_for_flush(key);
        assert_eq!((connections.next_marked(), connections.next_marked()), (Some(key), None));
        connections.mark_for_flush(key);
        assert_eq!(connections.next_marked(), None, "it has not been flushed yet");
        connections.client(key).unwrap().transport_mut().begin_flush();
        connections.mark_for_flush(key);
        assert_eq!(connections.next_marked(), Some(key));
        assert!(!connections.has_shared() && !connections.has_quic());
    }

    #[test]
    fn a_key_finds_its_own_kind_until_the_connection_is_gone() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let mut connections = Connections::default();
        let (conn, _peer) = fixtures::connection(&settings.listeners()[0]);
        let key = connections.insert(conn);
        assert!(connections.client(key).is_some());
        assert!(connections.upstream(key).is_none() && connections.quic(key).is_none());
        assert_eq!(connections.client_of(ClientStream::H1(key)).unwrap().peer().port(), 5);
        assert_eq!((connections.len(), connections.keys()), (1, vec![key]));
        assert!(connections.remove(key).is_some());
        assert!(connections.client(key).is_none() && connections.client_of(ClientStream::H1(key)).is_none());
        connections.mark_for_flush(key);
        assert_eq!((connections.next_marked(), connections.len()), (None, 0));
    }

    #[test]
    fn deadlines_move_forward_only() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let (mut connections, mut cx) = (Connections::default(), Context::new().unwrap());
        let (conn, _peer) = fixtures::connection(&settings.listeners()[0]);
        let key = connections.insert(conn);
        connections.look_by(&mut cx, ClientStream::H1(key), 1000);
        connections.look_by(&mut cx, ClientStream::H1(key), 5000);
        assert_eq!(cx.timers.len(), 1, "it is looked at before that anyway");
        connections.look_by(&mut cx, ClientStream::H1(key), 500);
        assert_eq!(cx.timers.len(), 2);
        assert!(connections.is_armed_for(key, 500 / 64 + 1) && !connections.is_armed_for(key, 1000 / 64 + 1));
        assert!(!connections.fired(&mut cx, key), "it is not time");
    }
}
