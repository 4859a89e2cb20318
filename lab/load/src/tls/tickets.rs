//! Session tickets of one thread.
//!
//! rustls asks for a store that is `Send + Sync`, and its own one locks. A generator's threads never
//! resume each other's sessions, so the store is the thread's: a zero-sized handle to `thread_local!`
//! state. Whether the next `ClientHello` may offer a ticket is set just before it is built.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// The most tickets kept for one name; the oldest goes first.
const KEPT: usize = 4096;

thread_local! {
    static OFFER: Cell<bool> = const { Cell::new(false) };
    static RECEIVED: Cell<u64> = const { Cell::new(0) };
    static STORE: RefCell<HashMap<ServerName<'static>, Sessions>> = RefCell::default();
}

#[derive(Default)]
struct Sessions {
    tls12: Option<Tls12ClientSessionValue>,
    tls13: VecDeque<Tls13ClientSessionValue>,
}

/// Handle to the calling thread's tickets.
#[derive(Debug)]
pub struct Tickets;

/// Whether hellos built by this thread from now on may offer a ticket.
pub fn offer_tickets(yes: bool) {
    OFFER.set(yes);
}

/// How many tickets this thread has received so far.
pub fn tickets_received() -> u64 {
    RECEIVED.get()
}

/// How many sessions of `name` could be resumed: TLS 1.3 tickets, or one for ever with TLS 1.2.
pub fn tickets_at_hand(name: &ServerName<'static>) -> usize {
    STORE.with_borrow(|store| store.get(name).map_or(0, |s| if s.tls12.is_some() { usize::MAX } else { s.tls13.len() }))
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    /// None: the first group of the list is always offered, so that every handshake costs the same.
    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        RECEIVED.set(RECEIVED.get() + 1);
        STORE.with_borrow_mut(|store| store.entry(name).or_default().tls12 = Some(value));
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        if !OFFER.get() {
            return None;
        }
        STORE.with_borrow(|store| store.get(&name.to_owned()).and_then(|s| s.tls12.clone()))
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        STORE.with_borrow_mut(|store| {
            if let Some(s) = store.get_mut(name) {
                s.tls12 = None;
            }
        });
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        RECEIVED.set(RECEIVED.get() + 1);
        STORE.with_borrow_mut(|store| {
            let tickets = &mut store.entry(name).or_default().tls13;
            if tickets.len() == KEPT {
                tickets.pop_front();
            }
            tickets.push_back(value);
        });
    }

    /// The newest first: it is the least likely to have expired or to have been forgotten.
    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        if !OFFER.get() {
            return None;
        }
        STORE.with_borrow_mut(|store| store.get_mut(name)?.tls13.pop_back())
    }
}
