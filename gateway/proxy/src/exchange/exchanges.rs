//! A lane's active exchanges, spare exchanges, and work postponed to a later turn.

use crate::compression::Compressors;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::exchange::Exchange;
use crate::exchange::streams::{ClientStream, Later, UpstreamStream};
use crate::forwarding::Draws;
use crate::memory::Held;
use crate::mirrors::{Copies, CopyPlace};
use sealane_lane::{Key, Slots};

/// Exchanges kept for reuse.
const SPARE: usize = 1024;

#[derive(Default)]
pub(crate) struct Exchanges {
    slots: Slots<Box<Exchange>>,
    #[expect(clippy::vec_box, reason = "the boxes move between here and the slots")]
    spare: Vec<Box<Exchange>>,
    later: Vec<Later>,
    /// Copies of requests that are under way.
    copies: Copies,
    /// For shares of requests.
    draws: Draws,
    /// Encoders of responses.
    compressors: Compressors,
}

impl Exchanges {
    /// An exchange as new, which is not under way yet.
    #[inline]
    pub fn fresh(&mut self, client_stream: ClientStream) -> Box<Exchange> {
        match self.spare.pop() {
            Some(mut x) => {
                x.client_stream = client_stream;
                x
            }
            None => Box::new(Exchange::new(client_stream)),
        }
    }

    /// Puts one back that has not begun, and is as new.
    #[inline]
    pub fn put_back(&mut self, x: Box<Exchange>) {
        self.spare.push(x);
    }

    /// Keeps one that is over for reuse.
    pub fn recycle(&mut self, mut x: Box<Exchange>) {
        if let Some(encoding) = x.response_body.encoding.take() {
            encoding.give_back(&mut self.compressors);
        }
        if self.spare.len() < SPARE {
            x.recycle();
            self.spare.push(x);
        }
    }

    /// An exchange is under way from now on.
    #[inline]
    pub fn insert(&mut self, x: Box<Exchange>) -> Key {
        self.slots.insert(x)
    }

    /// An exchange is over.
    #[inline]
    pub fn remove(&mut self, key: Key) -> Option<Box<Exchange>> {
        self.slots.remove(key)
    }

    /// All of them, for rare walks.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.slots.keys()
    }

    #[inline]
    pub fn get(&self, key: Key) -> Option<&Exchange> {
        self.slots.get(key).map(|x| &**x)
    }

    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Exchange> {
        self.slots.get_mut(key).map(|x| &mut **x)
    }

    /// Notes how much of an exchange's response waits with the upstream's connection, or may.
    #[inline]
    pub fn note_held(&mut self, connections: &mut Connections, exchange: Key, held: Held) {
        let Some(x) = self.get_mut(exchange) else { return };
        let Some(before) = x.hold(held) else { return };
        if let Some(client) = connections.get_mut(x.client_stream.conn()).and_then(Conn::client) {
            client.note_held(before, held);
        }
    }

    /// How many are under way.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether an exchange waits for a connection to an upstream that is being made.
    pub fn waits_for(&self, exchange: Key, connection: Key) -> bool {
        self.get(exchange).is_some_and(|x| x.upstream_stream == Some(UpstreamStream::Waiting(connection)))
    }

    /// Encoders of responses.
    pub fn compressors(&mut self) -> &mut Compressors {
        &mut self.compressors
    }

    /// An exchange, and the encoders.
    pub fn with_compressors(&mut self, key: Key) -> Option<(&mut Exchange, &mut Compressors)> {
        Some((&mut **self.slots.get_mut(key)?, &mut self.compressors))
    }

    /// A number by chance, for shares of requests.
    pub fn draw(&mut self) -> u64 {
        self.draws.draw()
    }

    /// A place for one more copy of a request, if there are fewer than `most`. It is free again when the copy is gone.
    pub fn copy_place(&self, most: usize) -> Option<CopyPlace> {
        self.copies.take(most)
    }

    /// Notes what to go on with in this turn or the next.
    #[inline]
    pub fn go_on_later(&mut self, later: Later) {
        self.later.push(later);
    }

    /// Whether there is something to go on with.
    #[inline]
    pub fn has_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// Whether something can be done without another event.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.has_later() || self.compressors.waiting() > 0
    }

    /// What to go on with. What is noted meanwhile is for the next turn.
    pub fn take_later(&mut self) -> Vec<Later> {
        std::mem::take(&mut self.later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_reused_as_new() {
        let mut exchanges = Exchanges::default();
        let stream = ClientStream::H1(Key::from_u64(1));
        let mut x = exchanges.fresh(stream);
        x.request.set_target(b"/secret").unwrap();
        x.status = 200;
        let key = exchanges.insert(x);
        assert_eq!(exchanges.len(), 1);
        let over = exchanges.remove(key).unwrap();
        let place: *const Exchange = &raw const *over;
        exchanges.recycle(over);
        assert!(exchanges.get(key).is_none() && exchanges.get_mut(key).is_none());
        let other = ClientStream::H2(Key::from_u64(2), 3);
        let again = exchanges.fresh(other);
        assert_eq!(&raw const *again, place);
        assert_eq!((again.request.target(), again.status, again.client_stream), (&b""[..], 0, other));
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        let mut exchanges = Exchanges::default();
        let stream = ClientStream::H1(Key::from_u64(1));
        let many: Vec<_> = (0..SPARE + 10).map(|_| exchanges.fresh(stream)).collect();
        many.into_iter().for_each(|x| exchanges.recycle(x));
        assert_eq!(exchanges.spare.len(), SPARE);
    }

    #[test]
    fn what_is_noted_while_going_on_is_for_the_next_turn() {
        let mut exchanges = Exchanges::default();
        let key = Key::from_u64(1);
        exchanges.go_on_later(Later::Client(key));
        let now = exchanges.take_later();
        exchanges.go_on_later(Later::Server(key));
        assert!(matches!(now[..], [Later::Client(_)]) && exchanges.has_later());
        assert!(matches!(exchanges.take_later()[..], [Later::Server(_)]));
    }

    #[test]
    fn copies_are_no_more_than_may_be() {
        let exchanges = Exchanges::default();
        let first = exchanges.copy_place(1);
        assert!(first.is_some() && exchanges.copy_place(1).is_none());
        drop(first);
        assert!(exchanges.copy_place(1).is_some());
    }

    #[test]
    fn only_those_that_wait_for_a_connection_wait_for_it() {
        let mut exchanges = Exchanges::default();
        let (here, there) = (Key::from_u64(1), Key::from_u64(2));
        let mut x = exchanges.fresh(ClientStream::H1(here));
        x.upstream_stream = Some(UpstreamStream::Waiting(there));
        let key = exchanges.insert(x);
        assert!(exchanges.waits_for(key, there) && !exchanges.waits_for(key, here));
        exchanges.get_mut(key).unwrap().upstream_stream = Some(UpstreamStream::H1(there));
        assert!(!exchanges.waits_for(key, there));
    }
}
