//! The sessions of a lane by their clients, in the order in which they give way when there is no room. Sans-IO.
//!
//! A source address over UDP proves nothing, so a stranger can open as many sessions as there is room for. Sessions
//! therefore give way to new ones in this order:
//!
//! ```text
//! New ── a reply ──► Answered ── the client goes on after a reply ──► Established
//! the oldest first   then the oldest                                  then the longest silent, unless it is active
//! ```

use sealane_lane::{Key, Millis};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

/// An established session whose client has sent something within this time does not give way.
pub(crate) const ACTIVE: Millis = 10_000;
/// How exact the order of established sessions is: a session moves to the end at most once in this time.
const EXACT: Millis = 1_000;
/// No node.
const NONE: u32 = u32::MAX;

/// How much of a conversation a session has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// The server has sent nothing.
    New,
    /// The server has replied. A server replies to forged source addresses, too.
    Answered,
    /// The client has sent something after a reply.
    Established,
}

const RANKS: usize = 3;

/// Who has a session: a client at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The listener's id.
    pub listener: u32,
    pub client: SocketAddr,
    /// The address that the client has asked, where the listener has all addresses of the machine: a client that asks two of them has
    /// two sessions, and gets each reply from the address that it has asked.
    pub local: Option<IpAddr>,
}

impl Hash for Pair {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.listener.hash(state);
        self.client.hash(state);
        // Listeners with one address need not pay for those with all.
        if let Some(local) = &self.local {
            local.hash(state);
        }
    }
}

/// The place of a session in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

#[derive(Debug)]
struct Node {
    pair: Pair,
    key: Key,
    rank: Rank,
    /// When its client sent something last, as exactly as the order is kept.
    heard: Millis,
    previous: u32,
    next: u32,
}

/// A list of nodes, the first to give way first.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Debug)]
pub(crate) struct SessionTable {
    places: HashMap<Pair, u32>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    lists: [List; RANKS],
}

impl Default for SessionTable {
    fn default() -> Self {
        let lists = [List { first: NONE, last: NONE }; RANKS];
        Self { places: HashMap::new(), nodes: Vec::new(), free: Vec::new(), lists }
    }
}

impl SessionTable {
    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// The session of a client.
    pub fn find(&self, pair: &Pair) -> Option<Key> {
        Some(self.nodes[*self.places.get(pair)? as usize].key)
    }

    /// All sessions.
    pub fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::with_capacity(self.len());
        for list in &self.lists {
            let mut place = list.first;
            while place != NONE {
                let node = &self.nodes[place as usize];
                keys.push(node.key);
                place = node.next;
            }
        }
        keys
    }

    /// Puts a new session in. The client has none.
    pub fn insert(&mut self, pair: Pair, key: Key, now: Millis) -> Place {
        let node = Node { pair, key, rank: Rank::New, heard: now, previous: NONE, next: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.places.insert(pair, place);
        self.append(place);
        Place(place)
    }

    /// The client's next datagram begins another session; this one goes on until its replies have come.
    pub fn detach(&mut self, Place(place): Place) {
        let pair = &self.nodes[place as usize].pair;
        if self.places.get(pair) == Some(&place) {
            self.places.remove(pair);
        }
    }

    /// Takes a session out.
    pub fn remove(&mut self, Place(place): Place) {
        self.detach(Place(place));
        self.unlink(place);
        self.free.push(place);
        if self.len() == 0 {
            // A flood's memory is given back.
            *self = Self::default();
        }
    }

    /// The client has sent something.
    pub fn heard(&mut self, Place(place): Place, now: Millis) {
        let node = &mut self.nodes[place as usize];
        match node.rank {
            Rank::New => return,
            Rank::Answered => {}
            Rank::Established if now < node.heard + EXACT => return,
            Rank::Established => {}
        }
        node.heard = now;
        self.unlink(place);
        self.nodes[place as usize].rank = Rank::Established;
        self.append(place);
    }

    /// The server has replied.
    pub fn replied(&mut self, Place(place): Place) {
        if self.nodes[place as usize].rank == Rank::New {
            self.unlink(place);
            self.nodes[place as usize].rank = Rank::Answered;
            self.append(place);
        }
    }

    /// The session that gives way to a new one, if one does.
    pub fn gives_way(&self, now: Millis) -> Option<Key> {
        let first = self.lists.iter().map(|list| list.first).find(|place| *place != NONE)?;
        let node = &self.nodes[first as usize];
        let is_active = node.rank == Rank::Established && now < node.heard + ACTIVE;
        (!is_active).then_some(node.key)
    }

    fn append(&mut self, place: u32) {
        let list = &mut self.lists[self.nodes[place as usize].rank as usize];
        let before = std::mem::replace(&mut list.last, place);
        if before == NONE {
            list.first = place;
        } else {
            self.nodes[before as usize].next = place;
        }
        let node = &mut self.nodes[place as usize];
        (node.previous, node.next) = (before, NONE);
    }

    fn unlink(&mut self, place: u32) {
        let Node { previous, next, rank, .. } = self.nodes[place as usize];
        let list = &mut self.lists[rank as usize];
        if previous == NONE {
            list.first = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next == NONE {
            list.last = previous;
        } else {
            self.nodes[next as usize].previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(n: u64) -> Pair {
        at((n % 3) as u32, SocketAddr::from(([192, 0, 2, 1], n as u16)))
    }

    fn at(listener: u32, client: SocketAddr) -> Pair {
        Pair { listener, client, local: None }
    }

    fn key(n: u64) -> Key {
        Key::from_u64(n)
    }

    /// What the table should be: sessions in the order in which they were put in or moved.
    #[derive(Default)]
    struct Model(Vec<(u64, Place, Rank, Millis)>);

    impl Model {
        fn gives_way(&self, now: Millis) -> Option<Key> {
            let first = |rank| self.0.iter().find(|s| s.2 == rank);
            let idle = |s: &&(u64, Place, Rank, Millis)| now >= s.3 + ACTIVE;
            let found = first(Rank::New).or(first(Rank::Answered)).or(first(Rank::Established).filter(idle));
            found.map(|s| key(s.0))
        }
    }

    #[test]
    fn it_does_what_a_plain_list_does() {
        let mut seed = 0x5eed_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut table, mut model, mut now) = (SessionTable::default(), Model::default(), 0);
        for n in 0..20_000 {
            now += random(3_000);
            let some = |model: &Model, at: u64| (!model.0.is_empty()).then(|| at as usize % model.0.len());
            match (random(7), some(&model, random(1 << 20))) {
                (0 | 1, _) if table.find(&pair(n)).is_none() && table.len() < 40 => {
                    let place = table.insert(pair(n), key(n), now);
                    model.0.push((n, place, Rank::New, now));
                }
                (2 | 3, Some(at)) => {
                    let (_, place, rank, heard) = model.0[at];
                    table.heard(place, now);
                    if rank == Rank::Answered || rank == Rank::Established && now >= heard + EXACT {
                        let mut session = model.0.remove(at);
                        (session.2, session.3) = (Rank::Established, now);
                        model.0.push(session);
                    }
                }
                (4, Some(at)) => {
                    table.replied(model.0[at].1);
                    if model.0[at].2 == Rank::New {
                        let mut session = model.0.remove(at);
                        session.2 = Rank::Answered;
                        model.0.push(session);
                    }
                }
                (5, Some(at)) => {
                    let session = model.0.remove(at);
                    table.remove(session.1);
                    assert_eq!(table.find(&pair(session.0)), None);
                }
                _ => {}
            }
            assert_eq!((table.len(), table.gives_way(now)), (model.0.len(), model.gives_way(now)), "step {n}");
            for (n, ..) in &model.0 {
                assert_eq!(table.find(&pair(*n)), Some(key(*n)));
            }
            assert!(table.nodes.len() <= 40, "free places are used again");
        }
    }

    #[test]
    fn a_flood_leaves_those_alone_who_talk() {
        let mut table = SessionTable::default();
        let talks = table.insert(pair(1), key(1), 0);
        table.replied(talks);
        table.heard(talks, 10);
        let answered = table.insert(pair(2), key(2), 11);
        table.replied(answered);
        for n in 3..10_000 {
            let place = table.insert(pair(n), key(n), 12);
            assert_eq!(table.gives_way(12), Some(key(n)), "the one without a reply, not those before it");
            table.remove(place);
        }
        assert_eq!(table.gives_way(12), Some(key(2)), "a server replies to strangers, too");
        table.remove(answered);
        assert_eq!(table.gives_way(9 + ACTIVE), None, "who is active stays");
        table.heard(talks, ACTIVE);
        assert_eq!(table.gives_way(10 + ACTIVE), None);
        assert_eq!(table.gives_way(2 * ACTIVE), Some(key(1)), "the silent one gives way");
    }

    #[test]
    fn the_same_address_at_two_listeners_has_two_sessions() {
        let mut table = SessionTable::default();
        let client = SocketAddr::from(([192, 0, 2, 1], 5));
        let first = table.insert(at(1, client), key(1), 0);
        table.insert(at(2, client), key(2), 0);
        assert_eq!((table.find(&at(1, client)), table.find(&at(2, client))), (Some(key(1)), Some(key(2))));
        table.remove(first);
        assert_eq!((table.find(&at(1, client)), table.keys()), (None, vec![key(2)]));
    }

    #[test]
    fn a_client_that_asks_two_addresses_of_a_listener_has_two_sessions() {
        let mut table = SessionTable::default();
        let of = |n| Pair { local: Some(IpAddr::from([127, 0, 0, n])), ..pair(1) };
        let first = table.insert(of(1), key(1), 0);
        assert_eq!(table.find(&of(5)), None);
        table.insert(of(5), key(2), 0);
        assert_eq!((table.find(&of(1)), table.find(&of(5))), (Some(key(1)), Some(key(2))));
        table.remove(first);
        assert_eq!((table.find(&of(1)), table.find(&of(5))), (None, Some(key(2))));
    }

    #[test]
    fn a_client_may_begin_another_session_while_one_waits_for_replies() {
        let mut table = SessionTable::default();
        let first = table.insert(pair(1), key(1), 0);
        table.detach(first);
        assert_eq!((table.find(&pair(1)), table.len()), (None, 1));
        let second = table.insert(pair(1), key(2), 0);
        table.replied(first);
        assert_eq!((table.find(&pair(1)), table.gives_way(0)), (Some(key(2)), Some(key(2))));
        table.remove(first);
        assert_eq!((table.find(&pair(1)), table.len()), (Some(key(2)), 1), "its end is not the end of the other");
        table.remove(second);
        assert_eq!((table.find(&pair(1)), table.len()), (None, 0));
    }
}
