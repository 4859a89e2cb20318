//! Stateful sessions of one lane: TLS 1.2 session ids, and the single-use tickets that 0-RTT needs.
//!
//! rustls calls the store from `Send + Sync` objects, so the state lives in thread-locals of the lane's thread. The
//! owner of a session is a function of its id ([`Owner`]): a lane that issues a session owned by another posts it there
//! before the client learns of it, and the owner empties its post before it says that a session is unknown; a lane that
//! reads a hello with a foreign id hands the connection over before a session exists. So a record lives in exactly one
//! place, a client that comes back finds it however soon that is, and `take` makes it single-use without a lock.
//!
//! Where several gateways share tickets ([`SharedTickets`]), those of policies with 0-RTT are in a store instead, as long as it
//! answers. Their ids carry a MAC under the fleet's key. A lane that reads one in a hello has control take the record from the
//! store, and [`adopt`]s it: from then on it is a record like any other, in this one place. What the store has is sealed, and is
//! control's business.
//!
//! Ids are made by rustls, from the random numbers that it asks us for (`SessionRandom`): the last bytes are a MAC over
//! the first, so that a client cannot make up ids by which its connections go from lane to lane.

use crate::authentication::Limits;
use crate::ids::{IdKey, MAC_LEN};
use crate::random::LaneRandom;
use rustls::crypto::{GetRandomFailed, SecureRandom};
use rustls::pki_types::UnixTime;
use rustls::server::StoresServerSessions;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use zeroize::Zeroizing;

/// Most stateful sessions kept per lane; the oldest goes first.
pub const MAX_SESSIONS: usize = 65_536;

/// Most sessions that wait for their owner to look; clients of further ones make full handshakes.
const MAX_POST: usize = 4096;

/// Length of the ids that rustls makes, of TLS 1.2's sessions and of single-use tickets.
const ID_LEN: usize = 32;
/// How much of an id its MAC covers; the owner is told by the first bytes of it.
const COVERED: usize = 16;

type Key = ([u8; 16], Vec<u8>);

/// rustls' state, and since when it is here, in seconds since 1970.
struct Stored {
    state: Zeroizing<Vec<u8>>,
    since: u64,
}

type Record = (Key, Stored);

/// One lane's session store, with ways to all others'.
#[derive(Debug)]
pub struct SessionStore {
    slot: usize,
    all: Vec<SyncSender<Record>>,
    post: Receiver<Record>,
    ids: Arc<IdKey>,
}

/// The session stores of so many lanes, by slot.
pub fn stores(slots: usize) -> Vec<SessionStore> {
    let (all, posts): (Vec<_>, Vec<_>) = (0..slots).map(|_| sync_channel(MAX_POST)).unzip();
    let ids = Arc::new(IdKey::random());
    posts
        .into_iter()
        .enumerate()
        .map(|(slot, post)| SessionStore { slot, all: all.clone(), post, ids: ids.clone() })
        .collect()
}

/// A single-use ticket on its way to or from the store that gateways share.
pub struct SharedTicket {
    /// The policy that it is good for.
    pub policy: [u8; 16],
    /// What the client shows.
    pub id: [u8; ID_LEN],
    /// When it was issued, in seconds since 1970.
    pub since: u64,
    /// rustls' state: it has the session's secret.
    pub state: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for SharedTicket {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedTicket").field("since", &self.since).finish_non_exhaustive()
    }
}

/// Where single-use tickets go that several gateways share. The same for all lanes; they only read it.
pub struct SharedTickets {
    /// The key of the ids' MACs, which all gateways have.
    ids: IdKey,
    /// The store answers: only then tickets go there.
    up: Arc<AtomicBool>,
    /// Takes a ticket to control. False if there is no room for it. Never waits.
    put: Box<dyn Fn(SharedTicket) -> bool + Send + Sync>,
}

impl std::fmt::Debug for SharedTickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedTickets")
    }
}

impl SharedTickets {
    /// `key`: what all gateways have, 16 bytes. `up`: whether the store answers.
    pub fn new(
        key: &[u8; 16],
        up: Arc<AtomicBool>,
        put: impl Fn(SharedTicket) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { ids: IdKey::shared(key), up, put: Box::new(put) }
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    fn has_made(&self, id: &[u8]) -> bool {
        id.len() == ID_LEN && self.ids.verify(&id[..COVERED], &id[ID_LEN - MAC_LEN..])
    }
}

#[derive(Default)]
struct LaneSessions {
    session_store: Option<SessionStore>,
    shared: Option<Arc<SharedTickets>>,
    records: HashMap<Key, Stored>,
    order: VecDeque<Key>,
    forged: u64,
    /// On a signing thread: the key of the lane whose session it has.
    lent: Option<Arc<IdKey>>,
}

/// What another thread needs to make the ids of a lane's sessions.
#[derive(Debug)]
pub(crate) struct IdKeys(Option<Arc<IdKey>>);

/// Those of this thread's lane.
pub(crate) fn id_keys() -> IdKeys {
    IdKeys(SESSIONS.with_borrow(|s| s.id_key().cloned()))
}

/// Makes ids as the lane does that lends its keys.
pub(crate) fn with_id_keys<T>(keys: IdKeys, make: impl FnOnce() -> T) -> T {
    SESSIONS.with_borrow_mut(|s| s.lent = keys.0);
    let made = make();
    SESSIONS.with_borrow_mut(|s| s.lent = None);
    made
}

thread_local! {
    static SESSIONS: RefCell<LaneSessions> = RefCell::default();
}

/// Who has the session with some id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This thread's lane, if anybody.
    Here,
    /// The lane of this slot.
    Lane(usize),
    /// The id names another lane, but this process has not made it.
    Forged,
    /// The store that gateways share, if anybody ([`place`]).
    Store,
}

impl Owner {
    /// The lane to which a client with this id is handed over.
    pub fn elsewhere(self) -> Option<usize> {
        match self {
            Self::Lane(slot) => Some(slot),
            Self::Here | Self::Forged | Self::Store => None,
        }
    }
}

/// Which of `slots` lane slots an id names. Ids are random, so any even mapping will do.
fn slot_of(id: &[u8], slots: usize) -> usize {
    let mut prefix = [0; 8];
    for (to, from) in prefix.iter_mut().zip(id) {
        *to = *from;
    }
    (u64::from_le_bytes(prefix) % slots.max(1) as u64) as usize
}

/// Random numbers for a server's sessions, among them their ids: whatever is as long as those are ends with a MAC. To
/// everybody without the key it is random still; what is no id (a hello's random, a ticket's nonce) loses nothing by it.
#[derive(Debug)]
pub(crate) struct SessionRandom;

impl SecureRandom for SessionRandom {
    fn fill(&self, buf: &mut [u8]) -> Result<(), GetRandomFailed> {
        LaneRandom.fill(buf)?;
        if let Ok(id) = <&mut [u8; ID_LEN]>::try_from(buf) {
            SESSIONS.with_borrow(|s| s.authenticate(id));
        }
        Ok(())
    }

    /// An id's MAC names its owner, and protects nothing else.
    fn fips(&self) -> bool {
        LaneRandom.fips()
    }
}

/// The same for policies whose tickets gateways share: as long as the store answers, ids end with the fleet's MAC.
#[derive(Debug)]
pub(crate) struct SharedRandom;

impl SecureRandom for SharedRandom {
    fn fill(&self, buf: &mut [u8]) -> Result<(), GetRandomFailed> {
        LaneRandom.fill(buf)?;
        if let Ok(id) = <&mut [u8; ID_LEN]>::try_from(buf)
            && !sign_shared(id)
        {
            SESSIONS.with_borrow(|s| s.authenticate(id));
        }
        Ok(())
    }

    /// An id's MAC names its owner, and protects nothing else.
    fn fips(&self) -> bool {
        LaneRandom.fips()
    }
}

/// Makes an id one of the fleet's. False if the store does not answer, or there is none: the id is as it was.
pub fn sign_shared(id: &mut [u8; ID_LEN]) -> bool {
    SESSIONS.with_borrow(|s| {
        let Some(shared) = s.shared.as_ref().filter(|shared| shared.is_up()) else { return false };
        let mac = shared.ids.mac(&id[..COVERED]);
        id[ID_LEN - MAC_LEN..].copy_from_slice(&mac);
        true
    })
}

/// Where this thread's lane shares single-use tickets from now on; `None`: it does not.
pub fn share(shared: Option<Arc<SharedTickets>>) {
    SESSIONS.with_borrow_mut(|s| s.shared = shared);
}

/// Where a single-use ticket of a policy is: as [`owner`], and for one that is shared [`Owner::Store`], unless it has been
/// taken from there already or cannot be taken now.
pub fn place(policy: &[u8; 16], id: &[u8]) -> Owner {
    let shared = SESSIONS.with_borrow(|s| {
        let shared = s.shared.as_ref().filter(|shared| shared.has_made(id))?;
        let elsewhere = shared.is_up() && !s.records.contains_key(&(*policy, id.to_vec()));
        Some(if elsewhere { Owner::Store } else { Owner::Here })
    });
    shared.unwrap_or_else(|| owner(id))
}

/// Takes in a ticket that was taken from the store. It is good once, at this lane.
pub fn adopt(ticket: SharedTicket) {
    let SharedTicket { policy, id, since, state } = ticket;
    SESSIONS.with_borrow_mut(|s| s.insert((policy, id.to_vec()), Stored { state, since }));
}

/// Makes this thread the lane of a session store. Called once, when a lane starts.
pub fn bind_thread(session_store: SessionStore) {
    SESSIONS.with_borrow_mut(|s| s.session_store = Some(session_store));
}

/// Who has the session with this id, as a hello gives it.
pub fn owner(id: &[u8]) -> Owner {
    SESSIONS.with_borrow_mut(|s| {
        let Some(slot) = s.foreign_slot(id) else { return Owner::Here };
        match s.is_ours(id) {
            true => Owner::Lane(slot),
            false => {
                s.forged += 1;
                Owner::Forged
            }
        }
    })
}

/// How many ids of other lanes were none of this process' ([`Owner::Forged`]), on this thread.
pub fn forged() -> u64 {
    SESSIONS.with_borrow(|s| s.forged)
}

impl LaneSessions {
    /// The slot that an id names, if it is not this thread's.
    fn foreign_slot(&self, id: &[u8]) -> Option<usize> {
        self.session_store.as_ref().and_then(|s| Some(slot_of(id, s.all.len())).filter(|o| *o != s.slot))
    }

    fn authenticate(&self, id: &mut [u8; ID_LEN]) {
        if let Some(key) = self.id_key() {
            let mac = key.mac(&id[..COVERED]);
            id[ID_LEN - MAC_LEN..].copy_from_slice(&mac);
        }
    }

    fn id_key(&self) -> Option<&Arc<IdKey>> {
        // A lane that is alone hands nothing over.
        let own = self.session_store.as_ref().filter(|s| s.all.len() > 1).map(|s| &s.ids);
        own.or(self.lent.as_ref())
    }

    /// Whether some lane of this process may have the session: a TLS 1.2 session can have a shared id, too.
    fn is_ours(&self, id: &[u8]) -> bool {
        let verify = |session_store: &SessionStore| session_store.ids.verify(&id[..COVERED], &id[ID_LEN - MAC_LEN..]);
        id.len() == ID_LEN
            && (self.session_store.as_ref().is_some_and(verify)
                || self.shared.as_ref().is_some_and(|shared| shared.has_made(id)))
    }

    /// Takes in what others have posted.
    fn collect(&mut self) {
        while let Some((key, value)) = self.session_store.as_ref().and_then(|s| s.post.try_recv().ok()) {
            self.insert(key, value);
        }
    }

    fn insert(&mut self, key: Key, value: Stored) {
        while self.order.len() >= MAX_SESSIONS {
            if let Some(oldest) = self.order.pop_front() {
                self.records.remove(&oldest);
            }
        }
        self.order.push_back(key.clone());
        self.records.insert(key, value);
    }
}

/// The store of one policy: a view on the lane's sessions that never sees another policy's.
#[derive(Debug)]
pub(crate) struct PolicySessions {
    policy: [u8; 16],
    /// How long a session is good for, in seconds.
    lifetime: u64,
    limits: Option<Limits>,
    /// Its single-use tickets may go to the store that gateways share.
    shared: bool,
}

/// Whether this is the state of a TLS 1.3 session: the version follows the server name, if there is one.
fn is_tls13(state: &[u8]) -> bool {
    let version = match state {
        [0, rest @ ..] => rest.get(..2),
        [1, len, rest @ ..] => rest.get(usize::from(*len)..usize::from(*len) + 2),
        _ => None,
    };
    version == Some(&[3, 4])
}

impl PolicySessions {
    /// `limits` where the policy asks for client certificates.
    pub(crate) fn new(policy: [u8; 16], lifetime: u32, limits: Option<Limits>) -> Self {
        Self { policy, lifetime: lifetime.into(), limits, shared: false }
    }

    /// The same; `shared`: single-use tickets with a shared id go to the store.
    pub(crate) fn shared(self, shared: bool) -> Self {
        Self { shared, ..self }
    }

    fn key(&self, id: &[u8]) -> Key {
        (self.policy, id.to_vec())
    }

    /// What rustls stored, unless it is too old.
    fn open(&self, stored: &Stored) -> Option<Vec<u8>> {
        if UnixTime::now().as_secs().saturating_sub(stored.since) >= self.lifetime {
            return None;
        }
        match self.limits {
            None => Some(stored.state.to_vec()),
            Some(limits) => limits.unwrap(&stored.state).map(<[u8]>::to_vec),
        }
    }
}

impl StoresServerSessions for PolicySessions {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        let value = Zeroizing::new(value);
        let state = self.limits.map_or(value.clone(), |limits| Zeroizing::new(limits.wrap(&value)));
        let stored = Stored { state, since: UnixTime::now().as_secs() };
        SESSIONS.with_borrow_mut(|s| {
            s.collect();
            if let Some(shared) = s.shared.as_ref().filter(|shared| self.shared && shared.has_made(&id))
                && let (true, Ok(id)) = (is_tls13(&value), <[u8; ID_LEN]>::try_from(&id[..]))
            {
                // One that does not fit is not issued: nothing else is a place for it.
                return (shared.put)(SharedTicket {
                    policy: self.policy,
                    id,
                    since: stored.since,
                    state: stored.state,
                });
            }
            let to = s.foreign_slot(&id);
            let key = (self.policy, id);
            match (to, &s.session_store) {
                // A full post, or one of a lane that has ended, takes none: the client makes a full handshake.
                (Some(to), Some(session_store)) => session_store.all[to].try_send((key, stored)).is_ok(),
                _ => {
                    s.insert(key, stored);
                    true
                }
            }
        })
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        SESSIONS.with_borrow_mut(|s| {
            s.collect();
            self.open(s.records.get(&self.key(id))?)
        })
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        SESSIONS.with_borrow_mut(|s| {
            s.collect();
            self.open(&s.records.remove(&self.key(id))?)
        })
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(policy: [u8; 16]) -> PolicySessions {
        PolicySessions::new(policy, 3600, None)
    }

    #[test]
    fn a_session_is_gone_after_its_lifetime() {
        bind_thread(stores(1).remove(0));
        let (store, ended) = (store([1; 16]), PolicySessions::new([1; 16], 0, None));
        store.put(vec![5; 32], vec![1]);
        assert_eq!(ended.get(&[5; 32]), None);
        assert_eq!(store.take(&[5; 32]), Some(vec![1]));
    }

    #[test]
    fn a_session_is_taken_once_and_by_its_policy_only() {
        bind_thread(stores(1).remove(0));
        let (a, b) = (store([1; 16]), store([2; 16]));
        a.put(vec![5; 32], vec![1]);
        assert_eq!(b.take(&[5; 32]), None);
        assert_eq!(a.get(&[5; 32]), Some(vec![1]));
        assert_eq!(a.take(&[5; 32]), Some(vec![1]));
        assert_eq!(a.take(&[5; 32]), None);
    }

    #[test]
    fn a_foreign_session_is_with_its_owner_at_once() {
        let mut stores = stores(2);
        let (one, zero) = (stores.pop().unwrap(), stores.pop().unwrap());
        bind_thread(zero);
        let id = vec![1; 32]; // odd: slot 1
        assert_eq!(slot_of(&id, 2), 1);
        let store = store([1; 16]);
        store.put(id.clone(), vec![9]);
        assert_eq!(store.get(&id), None);
        std::thread::spawn(move || {
            bind_thread(one);
            assert_eq!(store.take(&id), Some(vec![9]));
            assert_eq!(store.take(&id), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_id_that_was_made_up_names_no_other_lane() {
        let mut places = stores(2);
        bind_thread(places.remove(0));
        let (mut here, mut there) = (0, 0);
        for _ in 0..100 {
            let mut id = [0; ID_LEN];
            SessionRandom.fill(&mut id).unwrap();
            match owner(&id) {
                Owner::Here => here += 1,
                Owner::Lane(1) => {
                    there += 1;
                    for at in (0..COVERED).chain(ID_LEN - MAC_LEN..ID_LEN) {
                        let mut forged = id;
                        forged[at] ^= 2; // Another one, of the same lane.
                        assert_eq!(owner(&forged), Owner::Forged, "byte {at}");
                    }
                    assert_eq!((owner(&id[..31]), owner(&[])), (Owner::Forged, Owner::Here));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(here > 10 && there > 10 && forged() > 0);
        // Another process, or this one after a restart, has another key.
        let mut id = [1; ID_LEN];
        while owner(&id) == Owner::Forged {
            SessionRandom.fill(&mut id).unwrap();
        }
        bind_thread(stores(2).remove(0));
        assert_ne!(owner(&id), Owner::Lane(1));
    }

    /// A TLS 1.3 state as rustls writes it, as far as it is looked at.
    const STATE: [u8; 7] = [1, 2, b'a', b'b', 3, 4, 0x13];

    #[test]
    fn a_shared_ticket_is_in_the_store_until_it_is_adopted_and_is_good_once() {
        // The id names one of the two lanes: what is not shared is posted to it.
        let mut lanes = stores(2);
        bind_thread(lanes.remove(0));
        let (up, (post, posted)) = (Arc::new(AtomicBool::new(true)), sync_channel(1));
        let shared = || {
            let post = post.clone();
            Arc::new(SharedTickets::new(&[7; 16], up.clone(), move |ticket| post.try_send(ticket).is_ok()))
        };
        share(Some(shared()));
        let policy = [1; 16];
        let sessions = PolicySessions::new(policy, 3600, None).shared(true);
        let mut id = [0; ID_LEN];
        SharedRandom.fill(&mut id).unwrap();
        assert_eq!(place(&policy, &id), Owner::Store);
        assert!(sessions.put(id.to_vec(), STATE.to_vec()));
        assert!(!sessions.put(id.to_vec(), STATE.to_vec()), "there is no room for another one");
        assert_eq!(sessions.take(&id), None, "it is not here");
        let ticket = posted.recv().unwrap();
        assert_eq!((ticket.policy, ticket.id, &ticket.state[..]), (policy, id, &STATE[..]));
        // Another process of the fleet, or this one: it has no other key.
        share(Some(shared()));
        assert_eq!(place(&policy, &id), Owner::Store);
        adopt(ticket);
        assert_eq!(place(&policy, &id), Owner::Here);
        assert_eq!(place(&[2; 16], &id), Owner::Store, "another policy's");
        assert_eq!(sessions.take(&id), Some(STATE.to_vec()));
        assert_eq!(sessions.take(&id), None);
        assert_eq!(place(&policy, &id), Owner::Store);
        for at in (0..COVERED).chain(ID_LEN - MAC_LEN..ID_LEN) {
            let mut forged = id;
            forged[at] ^= 2;
            assert_ne!(place(&policy, &forged), Owner::Store, "byte {at}");
        }
        // A TLS 1.2 session is not shared, whatever its id is.
        assert!(sessions.put(id.to_vec(), vec![0, 3, 3, 0]) && posted.try_recv().is_err());
        // While the store is away, nothing is asked of it, and tickets are this gateway's own.
        up.store(false, Ordering::Relaxed);
        assert_eq!(place(&policy, &id), Owner::Here);
        SharedRandom.fill(&mut id).unwrap();
        up.store(true, Ordering::Relaxed);
        assert_ne!(place(&policy, &id), Owner::Store);
        assert!(sessions.put(id.to_vec(), STATE.to_vec()) && posted.try_recv().is_err());
        share(None);
    }

    #[test]
    fn rustls_tells_the_version_where_it_is_looked_for() {
        assert!(is_tls13(&STATE) && is_tls13(&[0, 3, 4]));
        for other in [&[][..], &[0], &[0, 3], &[0, 3, 3], &[1], &[1, 2, 3, 4], &[1, 255, 3, 4], &[2, 3, 4]] {
            assert!(!is_tls13(other), "{other:?}");
        }
    }

    #[test]
    fn a_full_post_takes_no_more() {
        let mut stores = stores(2);
        bind_thread(stores.remove(0));
        let store = store([1; 16]);
        let put = |n: usize| store.put([vec![1], n.to_le_bytes().to_vec(), vec![0; 16]].concat(), vec![]);
        assert!((0..MAX_POST).all(put) && !put(MAX_POST));
    }

    #[test]
    fn the_store_is_bounded() {
        bind_thread(stores(1).remove(0));
        let store = store([1; 16]);
        for i in 0..(MAX_SESSIONS as u64 + 10) {
            store.put(i.to_le_bytes().to_vec(), vec![]);
        }
        SESSIONS.with_borrow(|s| assert_eq!((s.records.len(), s.order.len()), (MAX_SESSIONS, MAX_SESSIONS)));
        assert_eq!(store.get(&0u64.to_le_bytes()), None);
    }
}
