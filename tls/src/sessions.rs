//! Stateful sessions of one lane: TLS 1.2 session ids, and the single-use tickets that 0-RTT needs.
//!
//! rustls calls the store from `Send + Sync` objects, so the state lives in thread-locals of the lane's thread. The
//! owner of a session is a function of its id ([`owner`]): a lane that issues a session owned by another posts it there
//! before the client learns of it, and the owner empties its post before it says that a session is unknown; a lane that
//! reads a hello with a foreign id hands the connection over before a session exists. So a record lives in exactly one
//! place, a client that comes back finds it however soon that is, and `take` makes it single-use without a lock.

use rustls::server::StoresServerSessions;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Most stateful sessions kept per lane; the oldest goes first.
pub const MAX_SESSIONS: usize = 65_536;

/// Most sessions that wait for their owner to look; clients of further ones make full handshakes.
const MAX_POST: usize = 4096;

type Key = ([u8; 16], Vec<u8>);

type Record = (Key, Vec<u8>);

/// One lane's place for sessions, with ways to all others'.
#[derive(Debug)]
pub struct Shelf {
    slot: usize,
    all: Vec<SyncSender<Record>>,
    post: Receiver<Record>,
}

/// Places for so many lanes, by slot.
pub fn shelves(slots: usize) -> Vec<Shelf> {
    let (all, posts): (Vec<_>, Vec<_>) = (0..slots).map(|_| sync_channel(MAX_POST)).unzip();
    posts.into_iter().enumerate().map(|(slot, post)| Shelf { slot, all: all.clone(), post }).collect()
}

#[derive(Default)]
struct LaneSessions {
    shelf: Option<Shelf>,
    records: HashMap<Key, Vec<u8>>,
    order: VecDeque<Key>,
}

thread_local! {
    static SESSIONS: RefCell<LaneSessions> = RefCell::default();
}

/// Which of `slots` lane slots owns the session with this id. Ids are random, so any even mapping will do.
pub fn owner(id: &[u8], slots: usize) -> usize {
    let mut prefix = [0; 8];
    for (to, from) in prefix.iter_mut().zip(id) {
        *to = *from;
    }
    (u64::from_le_bytes(prefix) % slots.max(1) as u64) as usize
}

/// Makes this thread the shelf's lane. Called once, when a lane starts.
pub fn bind_thread(shelf: Shelf) {
    SESSIONS.with_borrow_mut(|s| s.shelf = Some(shelf));
}

/// The lane slot that owns the session with this id, if it is not this thread's.
pub(crate) fn foreign_owner(id: &[u8]) -> Option<usize> {
    SESSIONS.with_borrow(|s| s.foreign_owner(id))
}

impl LaneSessions {
    fn foreign_owner(&self, id: &[u8]) -> Option<usize> {
        self.shelf.as_ref().and_then(|s| Some(owner(id, s.all.len())).filter(|o| *o != s.slot))
    }

    /// Takes in what others have posted.
    fn collect(&mut self) {
        while let Some((key, value)) = self.shelf.as_ref().and_then(|s| s.post.try_recv().ok()) {
            self.insert(key, value);
        }
    }

    fn insert(&mut self, key: Key, value: Vec<u8>) {
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
}

impl PolicySessions {
    pub(crate) fn new(policy: [u8; 16]) -> Self {
        Self { policy }
    }
}

impl StoresServerSessions for PolicySessions {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        SESSIONS.with_borrow_mut(|s| {
            s.collect();
            let to = s.foreign_owner(&id);
            let key = (self.policy, id);
            match (to, &s.shelf) {
                // A full post, or one of a lane that has ended, takes none: the client makes a full handshake.
                (Some(to), Some(shelf)) => shelf.all[to].try_send((key, value)).is_ok(),
                _ => {
                    s.insert(key, value);
                    true
                }
            }
        })
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        SESSIONS.with_borrow_mut(|s| {
            s.collect();
            s.records.get(&(self.policy, id.to_vec())).cloned()
        })
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        SESSIONS.with_borrow_mut(|s| {
            s.collect();
            s.records.remove(&(self.policy, id.to_vec()))
        })
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_taken_once_and_by_its_policy_only() {
        bind_thread(shelves(1).remove(0));
        let (a, b) = (PolicySessions::new([1; 16]), PolicySessions::new([2; 16]));
        a.put(vec![5; 32], vec![1]);
        assert_eq!(b.take(&[5; 32]), None);
        assert_eq!(a.get(&[5; 32]), Some(vec![1]));
        assert_eq!(a.take(&[5; 32]), Some(vec![1]));
        assert_eq!(a.take(&[5; 32]), None);
    }

    #[test]
    fn a_foreign_session_is_with_its_owner_at_once() {
        let mut shelves = shelves(2);
        let (one, zero) = (shelves.pop().unwrap(), shelves.pop().unwrap());
        bind_thread(zero);
        let id = vec![1; 32]; // odd: slot 1
        assert_eq!((owner(&id, 2), foreign_owner(&id)), (1, Some(1)));
        let store = PolicySessions::new([1; 16]);
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
    fn a_full_post_takes_no_more() {
        let mut shelves = shelves(2);
        bind_thread(shelves.remove(0));
        let store = PolicySessions::new([1; 16]);
        let put = |n: usize| store.put([vec![1], n.to_le_bytes().to_vec(), vec![0; 16]].concat(), vec![]);
        assert!((0..MAX_POST).all(put) && !put(MAX_POST));
    }

    #[test]
    fn the_store_is_bounded() {
        bind_thread(shelves(1).remove(0));
        let store = PolicySessions::new([1; 16]);
        for i in 0..(MAX_SESSIONS as u64 + 10) {
            store.put(i.to_le_bytes().to_vec(), vec![]);
        }
        SESSIONS.with_borrow(|s| assert_eq!((s.records.len(), s.order.len()), (MAX_SESSIONS, MAX_SESSIONS)));
        assert_eq!(store.get(&0u64.to_le_bytes()), None);
    }
}
