//! Datagrams that come to one lane or process and belong to another.
//!
//! A datagram is passed on once: what came from another lane or process ([`Datagram`]) is this lane's, or nobody's. It is
//! passed on only under an id that carries our MAC, or under the first id of a hello whose ticket did. Mailboxes have a
//! capacity, and a datagram that does not fit is lost, as on any network.

use super::connection::Connection;
use super::receive::Arrival;
use super::succession::Sent;
use super::{QuicEndpoint, config};
use crate::counters::{Count, Counters};
use crate::settings::LaneSettings;
use bytes::BytesMut;
use sealane_lane::{Context, Millis};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// First connection ids that are remembered as another lane's.
const MAX_MOVED: usize = 4096;
/// The longest connection id there is (RFC 9000 §17.2).
const LONGEST_ID: usize = 20;

/// A datagram that came to a lane that does not own its connection.
#[derive(Debug)]
pub struct Datagram {
    /// Whose socket it came to.
    pub(crate) listener: u32,
    /// The socket, and so the endpoint, that owns its connection.
    pub(crate) slot: usize,
    pub(crate) remote: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) ecn: u8,
    /// It belongs to a client whom that lane has counted.
    pub(crate) counted: bool,
    /// Whatever process its id names knows no such connection: it begins one here.
    pub(crate) fresh: bool,
    pub(crate) data: BytesMut,
}

impl Datagram {
    /// The socket that owns its connection.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// What it takes of the room in a mailbox, in bytes.
    pub(crate) fn load(&self) -> usize {
        size_of::<Self>() + self.data.len()
    }
}

/// The connection id that a datagram with a long header is for.
pub(crate) fn long_header_id(datagram: &[u8]) -> Option<&[u8]> {
    if datagram.first()? & 0x80 == 0 {
        return None;
    }
    let len = usize::from(*datagram.get(5)?);
    (len <= LONGEST_ID).then(|| datagram.get(6..6 + len))?
}

/// First connection ids, as clients chose them, of connections that went to another lane: what the client sends before
/// it knows our id goes there, too, as long as it comes from the same address and the handshake may still be going on.
/// Bounded; what is forgotten costs a retransmission at most.
#[derive(Default)]
pub(crate) struct Moved {
    places: HashMap<Vec<u8>, Place>,
    /// The oldest first.
    order: VecDeque<Vec<u8>>,
}

struct Place {
    remote: SocketAddr,
    slot: usize,
    until: Millis,
}

impl Moved {
    /// Who owns a datagram with a long header.
    pub fn owner(&mut self, now: Millis, remote: SocketAddr, datagram: &[u8]) -> Option<usize> {
        if self.order.is_empty() {
            return None;
        }
        self.expire(now);
        let place = self.places.get(long_header_id(datagram)?)?;
        (place.remote == remote).then_some(place.slot)
    }

    fn note(&mut self, now: Millis, remote: SocketAddr, datagram: &[u8], slot: usize, until: Millis) {
        self.expire(now);
        let Some(id) = long_header_id(datagram) else { return };
        // The connection that used this id first keeps it.
        if self.places.contains_key(id) {
            return;
        }
        if self.order.len() >= MAX_MOVED
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
        self.places.insert(id.to_vec(), Place { remote, slot, until });
        self.order.push_back(id.to_vec());
    }

    fn expire(&mut self, now: Millis) {
        while let Some(oldest) = self.order.front()
            && self.places.get(oldest).is_none_or(|place| place.until <= now)
        {
            self.places.remove(oldest);
            self.order.pop_front();
        }
    }
}

impl QuicEndpoint {
    /// Passes a datagram on to the process or the lane that its connection id names, unless that is this lane: then it is
    /// given back.
    pub(super) fn pass_on(
        &mut self,
        cx: &Context,
        settings: &LaneSettings,
        counters: &Counters,
        index: usize,
        arrival: &Arrival,
        data: BytesMut,
    ) -> Option<BytesMut> {
        let Arrival { remote, local, ecn, counted, forwarded } = *arrival;
        let endpoint = self.endpoints.get(index)?.as_ref()?;
        let Some(listener) = endpoint.listener.as_ref().filter(|_| !forwarded) else { return Some(data) };
        let (address, listener, slots) = (
            listener.listener.address,
            listener.listener.id,
            listener.listener.quic.as_ref().map_or(0, |q| q.sockets.len()),
        );
        let snapshot = &settings.snapshot();
        let key = self.ids.as_deref();
        let named = config::named(&data);
        if let Some(named) = named.filter(|n| n.generation == snapshot.quic_generation && n.slot < slots) {
            if named.slot == endpoint.slot {
                return Some(data);
            }
            if key.is_some_and(|key| named.is_made_with(key)) {
                let slot = named.slot;
                mail(settings, counters, listener, slot, arrival, &data);
                return None;
            }
            counters.count(Count::ForgedConnectionIds);
        } else if let Some(named) = named
            && let Some(predecessor) = snapshot.quic_predecessors.iter().find(|e| e.generation == named.generation)
        {
            let passes = match predecessor.ids_have_macs {
                true => key.is_some_and(|key| named.is_made_with(key)),
                false => named.may_be_without_mac(),
            };
            if passes {
                let message = Datagram { listener, slot: named.slot, remote, local, ecn, counted, fresh: false, data };
                return match predecessor.channel.send(address, &message) {
                    Sent::Yes => {
                        counters.count(Count::QuicForwarded);
                        None
                    }
                    Sent::Full => {
                        counters.count(Count::QuicDroppedProcess);
                        None
                    }
                    // Its connections have ended with it: a stateless reset tells the client.
                    Sent::Gone => Some(message.data),
                };
            }
            counters.count(Count::ForgedConnectionIds);
        }
        match self.moved.owner(cx.now(), remote, &data) {
            Some(slot) => {
                mail(settings, counters, listener, slot, arrival, &data);
                None
            }
            None => Some(data),
        }
    }

    /// Whether a connection's hello has turned out to be another lane's: its datagrams go there, and nothing is left of it
    /// here.
    pub fn gave_up_hello(
        &mut self,
        cx: &Context,
        settings: &LaneSettings,
        counters: &Counters,
        connection: &mut Connection,
    ) -> bool {
        // The first of the owner's sockets.
        let Some((raw, slot)) = connection.take_foreign_hello() else { return false };
        let (remote, local) = (connection.remote_address(), connection.local_ip());
        let Some(Some(endpoint)) = self.endpoints.get_mut(connection.endpoint) else { return true };
        let listener = endpoint.listener.as_ref().map_or(0, |l| l.listener.id);
        if let Some(first) = raw.first() {
            let (now, wait) = (cx.now(), settings.limits().handshake_timeout);
            self.moved.note(now, remote, first, slot, now + wait.as_millis() as Millis);
        }
        counters.count(Count::HandedOver);
        for data in raw {
            // A copy, as in `mail`.
            let data = BytesMut::from(&data[..]);
            // What does not fit is lost, and counted there; the client sends it again.
            let message = Datagram { listener, slot, remote, local, ecn: 0, counted: true, fresh: true, data };
            let _ = settings.mail_datagram(slot, message);
        }
        // Silently: the client will hear from the other lane.
        let _ = endpoint.endpoint.handle_event(connection.handle, quinn_proto::EndpointEvent::drained());
        if let Some(place) = endpoint.keys.get_mut(connection.handle.0) {
            *place = None;
        }
        true
    }
}

/// Mails a datagram to the lane of one of a listener's sockets. What does not fit is lost, and counted there.
fn mail(settings: &LaneSettings, counters: &Counters, listener: u32, slot: usize, arrival: &Arrival, data: &[u8]) {
    let Arrival { remote, local, ecn, counted, .. } = *arrival;
    // A copy: what comes in trains would keep the whole train.
    let data = BytesMut::from(data);
    let message = Datagram { listener, slot, remote, local, ecn, counted, fresh: false, data };
    if settings.mail_datagram(slot, message) {
        counters.count(Count::QuicForwarded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_connections_are_forgotten_in_time_and_known_from_their_address_only() {
        let mut moved = Moved::default();
        let first = |id: u32| [&[0xc0, 0, 0, 0, 1, 4][..], &id.to_be_bytes(), &[0; 30]].concat();
        let (here, there) = ("192.0.2.1:5".parse().unwrap(), "192.0.2.2:5".parse().unwrap());
        moved.note(0, here, &first(7), 1, 1000);
        moved.note(0, there, &first(7), 0, 1000);
        assert_eq!(moved.owner(1, here, &first(7)), Some(1), "the first datagram decides");
        assert_eq!(moved.owner(1, there, &first(7)), None);
        assert_eq!(moved.owner(1, here, &first(8)), None);
        for id in 0..10_000 {
            moved.note(500, here, &first(id), 1, 1500);
        }
        assert_eq!((moved.places.len(), moved.order.len()), (MAX_MOVED, MAX_MOVED));
        assert_eq!(moved.owner(1000, here, &first(7)), None);
        assert_eq!(moved.owner(1000, here, &first(8)), None, "there were too many since");
        assert_eq!(moved.owner(1000, here, &first(9_999)), Some(1));
        assert_eq!(moved.owner(1500, here, &first(9_999)), None);
        assert_eq!((moved.places.len(), moved.order.len()), (0, 0));
    }
}
