//! Single-use tickets that gateways share, as a lane sees them.
//!
//! ```text
//! hello with a shared id ──▶ TicketQuery, bounded ──▶ control ──▶ the store, atomically
//!   │ AwaitsTicket                                                │
//!   ▼                                                             ▼
//! admission ◀── the ticket is adopted, or not ◀── Message::Ticket, in time in any case
//! ```
//!
//! The lane goes on with other things meanwhile. What comes too late is dropped: the store has forgotten it, so nobody gets it. The
//! handshake is a full one then, and its early data is refused.

use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::service::Proxy;
use sealane_exchange::deadlines::{ConnectionLimits, ConnectionWait};
use sealane_lane::{Context, Key, Millis};
use sealane_tls::sessions::{self, SharedTicket, SharedTickets};
use std::sync::Arc;

/// Length of a shared ticket's id.
const ID_LEN: usize = 32;

/// Where shared tickets are.
pub struct TicketStore {
    /// Where lanes put them.
    pub tickets: Arc<SharedTickets>,
    /// Takes a query to control. False if there is no room for it. Never waits.
    pub ask: Box<dyn Fn(TicketQuery) -> bool + Send + Sync>,
    /// How long a hello waits, if control does not answer: control has the same limit, and answers in any case.
    pub wait: Millis,
}

impl std::fmt::Debug for TicketStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TicketStore").field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// A ticket that control is to take from the store, for a client that waits.
#[derive(Debug)]
pub struct TicketQuery {
    /// The lane that asks.
    pub slot: usize,
    /// Its connection.
    pub connection: Key,
    /// The policy that the ticket must be for.
    pub policy: [u8; 16],
    /// What the client shows.
    pub id: [u8; ID_LEN],
}

/// What came of a query.
#[derive(Debug)]
pub enum TicketVerdict {
    /// The store had it, and has it no more.
    Taken(Box<SharedTicket>),
    /// The store does not have it: it was used, or has expired.
    Unknown,
    /// It was written before the store's data began another life: it may have been used since.
    OtherLife,
    /// The store has not answered, or not in time.
    Failed,
}

/// Begins to wait for a ticket. False if nobody can be asked: nothing has happened then, and the handshake goes on without it.
pub(crate) fn ask(proxy: &mut Proxy, cx: &mut Context, key: Key, policy: [u8; 16], id: [u8; 32], cheap: bool) -> bool {
    let Some(store) = proxy.settings.snapshot().shared_tickets.clone() else { return false };
    let query = TicketQuery { slot: proxy.settings.slot(), connection: key, policy, id };
    if !(store.ask)(query) {
        proxy.counters.count(Count::TicketsFailed);
        return false;
    }
    let Some(client_conn) = proxy.connections.client(key) else { return true };
    let limits = ConnectionLimits { ticket: store.wait, ..proxy.settings.limits().of_connection() };
    let at = ConnectionWait::Ticket.until(cx.now(), &limits);
    client_conn.await_ticket(cx, key, cheap, at);
    true
}

/// Control has answered. `None`: the client is gone, or has been served without its ticket. Else the hello goes on, with or without
/// the ticket, and what will be signed for it is cheap or not.
pub(crate) fn arrived(
    connections: &mut Connections,
    counters: &Counters,
    cx: &mut Context,
    key: Key,
    verdict: TicketVerdict,
) -> Option<bool> {
    let waiting = connections.client(key).and_then(|client_conn| Some((client_conn.awaits_ticket()?, client_conn)));
    let Some((cheap, client_conn)) = waiting else {
        counters.count(Count::TicketsLate);
        return None;
    };
    client_conn.leave_ticket(cx, key);
    match verdict {
        TicketVerdict::Taken(ticket) => {
            counters.count(Count::TicketsTaken);
            sessions::adopt(*ticket);
        }
        TicketVerdict::Unknown => counters.count(Count::TicketsUnknown),
        TicketVerdict::OtherLife => counters.count(Count::TicketsOtherLife),
        TicketVerdict::Failed => counters.count(Count::TicketsFailed),
    }
    Some(cheap)
}

/// Control has not answered in time. True if the hello goes on without its ticket; false if the handshake's own time is over.
pub(crate) fn timed_out(connections: &mut Connections, cx: &mut Context, key: Key) -> bool {
    let Some(client_conn) = connections.client(key).filter(|client_conn| !client_conn.is_late(cx.now())) else {
        return false;
    };
    client_conn.leave_ticket(cx, key);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::connection::{client_timeout, ticket_arrived as arrived};
    use crate::client::state::ClientPhase;
    use crate::conn::Conn;
    use crate::fixtures::{self, connection, limits, snapshot};
    use sealane_lane::Published;
    use sealane_tls::sessions::Owner;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::AtomicBool;
    use zeroize::Zeroizing;

    const POLICY: [u8; 16] = [1; 16];

    /// A lane whose control has room for queries, or none, and answers when a test says so.
    fn lane(has_room: bool) -> (Proxy, Context) {
        let tickets = Arc::new(SharedTickets::new(&[7; 16], Arc::new(AtomicBool::new(true)), |_| true));
        let mut config = snapshot(limits(), Vec::new());
        config.shared_tickets = Some(Arc::new(TicketStore { tickets, ask: Box::new(move |_| has_room), wait: 20 }));
        let published = Published::new(config);
        let mut cx = Context::new().unwrap();
        let (proxy, _) = fixtures::lane(&published, &mut cx);
        (proxy, cx)
    }

    /// A client whose hello is whole, and its other end.
    fn client(proxy: &mut Proxy, cx: &Context, handshake_until: Millis) -> (Key, OwnedFd) {
        let (conn, peer) = connection(&proxy.settings.listeners()[0]);
        let Conn::Client(client) = conn else { unreachable!() };
        let client = client.in_handshake(cx.now() + handshake_until);
        let key = proxy.connections.insert(Conn::Client(Box::new(client)));
        proxy.admission.arrived(&proxy.counters);
        (key, peer)
    }

    fn phase(proxy: &mut Proxy, key: Key) -> Option<ClientPhase> {
        proxy.connections.client(key).map(|client| client.phase())
    }

    /// A ticket as control has taken it from the store.
    fn taken(id: [u8; ID_LEN]) -> TicketVerdict {
        let state = Zeroizing::new(vec![0, 3, 4]);
        TicketVerdict::Taken(Box::new(SharedTicket { policy: POLICY, id, since: 0, state }))
    }

    fn adopted(id: &[u8; ID_LEN]) -> bool {
        // An id of the fleet, by its MAC: it is either here or in the store.
        sessions::place(&POLICY, id) == Owner::Here
    }

    /// An id that some gateway of the fleet has made: what a session of a shared policy would have.
    fn id() -> [u8; ID_LEN] {
        let mut id = [5; ID_LEN];
        sessions::sign_shared(&mut id);
        assert!(!adopted(&id), "it is in the store");
        id
    }

    #[test]
    fn a_hello_waits_for_its_ticket_and_goes_on_with_it() {
        let (mut proxy, mut cx) = lane(true);
        let (key, _peer) = client(&mut proxy, &cx, 10_000);
        let id = id();
        assert!(ask(&mut proxy, &mut cx, key, POLICY, id, true));
        assert_eq!(phase(&mut proxy, key), Some(ClientPhase::AwaitsTicket { cheap: true }));
        assert!(proxy.admission.is_empty());
        arrived(&mut proxy, &mut cx, key, taken(id));
        assert_eq!(phase(&mut proxy, key), Some(ClientPhase::Admission));
        assert!(adopted(&id) && !proxy.admission.is_empty());
        assert_eq!((proxy.counters.value(Count::TicketsTaken), proxy.counters.value(Count::TicketsLate)), (1, 0));
    }

    #[test]
    fn a_hello_goes_on_without_a_ticket_that_is_late_and_the_ticket_is_lost() {
        let (mut proxy, mut cx) = lane(true);
        let (key, _peer) = client(&mut proxy, &cx, 10_000);
        let id = id();
        assert!(ask(&mut proxy, &mut cx, key, POLICY, id, true));
        client_timeout(&mut proxy, &mut cx, key);
        assert_eq!(phase(&mut proxy, key), Some(ClientPhase::Admission));
        arrived(&mut proxy, &mut cx, key, taken(id));
        assert_eq!(phase(&mut proxy, key), Some(ClientPhase::Admission));
        assert!(!adopted(&id), "nobody uses what came too late");
        assert_eq!((proxy.counters.value(Count::TicketsTaken), proxy.counters.value(Count::TicketsLate)), (0, 1));
    }

    #[test]
    fn a_handshake_has_no_more_time_because_it_waits_for_a_ticket() {
        let (mut proxy, mut cx) = lane(true);
        let (key, _peer) = client(&mut proxy, &cx, 0);
        assert!(ask(&mut proxy, &mut cx, key, POLICY, id(), true));
        client_timeout(&mut proxy, &mut cx, key);
        assert_eq!(phase(&mut proxy, key), None);
        // What comes for a client that is gone is for nobody.
        let id = id();
        arrived(&mut proxy, &mut cx, key, taken(id));
        assert!(!adopted(&id));
    }

    #[test]
    fn nobody_waits_where_there_is_no_room_to_ask() {
        let (mut proxy, mut cx) = lane(false);
        let (key, _peer) = client(&mut proxy, &cx, 10_000);
        let before = phase(&mut proxy, key);
        assert!(!ask(&mut proxy, &mut cx, key, POLICY, id(), true));
        assert_eq!((phase(&mut proxy, key), proxy.counters.value(Count::TicketsFailed)), (before, 1));
    }

    #[test]
    fn every_other_verdict_lets_the_hello_go_on_without_a_ticket() {
        let (mut proxy, mut cx) = lane(true);
        let id = id();
        for verdict in [TicketVerdict::Unknown, TicketVerdict::OtherLife, TicketVerdict::Failed] {
            let (key, _peer) = client(&mut proxy, &cx, 10_000);
            assert!(ask(&mut proxy, &mut cx, key, POLICY, id, true));
            arrived(&mut proxy, &mut cx, key, verdict);
            assert_eq!(phase(&mut proxy, key), Some(ClientPhase::Admission));
        }
        let c = &proxy.counters;
        assert_eq!(
            (c.value(Count::TicketsUnknown), c.value(Count::TicketsOtherLife), c.value(Count::TicketsFailed)),
            (1, 1, 1)
        );
        assert!(!adopted(&id));
    }
}
