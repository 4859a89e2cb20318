//! Stateful sessions of one lane: TLS 1.2 session ids, and the single-use tickets that 0-RTT needs.
//!
//! rustls calls the store from `Send + Sync` objects, so the state lives in thread-locals of the lane's thread. The
//! owner of a session is a function of its id ([`owner`]): a lane that issues a session owned by another leaves it in
//! the outbox, and the proxy mails it there; a lane that reads a hello with a foreign id hands the connection over
//! before a session exists. So a record lives in exactly one place, and `take` makes it single-use without a lock.

use rustls::server::StoresServerSessions;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

/// Most stateful sessions kept per lane; the oldest goes first.
pub const MAX_SESSIONS: usize = 65_536;

/// A session on its way to the lane that owns it.
#[derive(Debug)]
pub struct SessionRecord {
    /// The lane slot that owns it.
    pub owner: usize,
    key: Key,
    value: Vec<u8>,
}

type Key = ([u8; 16], Vec<u8>);

#[derive(Default)]
struct LaneSessions {
    slot: usize,
    slots: usize,
    records: HashMap<Key, Vec<u8>>,
    order: VecDeque<Key>,
    outbox: Vec<SessionRecord>,
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

/// Says which lane slot this thread is, of how many. Called once, when a lane starts.
pub fn bind_thread(slot: usize, slots: usize) {
    SESSIONS.with_borrow_mut(|s| (s.slot, s.slots) = (slot, slots));
}

/// The lane slot that owns the session with this id, if it is not this thread's.
pub(crate) fn foreign_owner(id: &[u8]) -> Option<usize> {
    SESSIONS.with_borrow(|s| Some(owner(id, s.slots)).filter(|o| *o != s.slot))
}

/// Sessions that this lane has issued and others own, to be mailed.
pub fn drain_outbox() -> Vec<SessionRecord> {
    SESSIONS.with_borrow_mut(|s| std::mem::take(&mut s.outbox))
}

/// A session that another lane has issued and this one owns.
pub fn accept(record: SessionRecord) {
    SESSIONS.with_borrow_mut(|s| s.insert(record.key, record.value));
}

impl LaneSessions {
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
            let to = owner(&id, s.slots);
            let key = (self.policy, id);
            if to == s.slot {
                s.insert(key, value);
            } else {
                s.outbox.push(SessionRecord { owner: to, key, value });
            }
        });
        true
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        SESSIONS.with_borrow(|s| s.records.get(&(self.policy, id.to_vec())).cloned())
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        SESSIONS.with_borrow_mut(|s| s.records.remove(&(self.policy, id.to_vec())))
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
        bind_thread(0, 1);
        let (a, b) = (PolicySessions::new([1; 16]), PolicySessions::new([2; 16]));
        a.put(vec![5; 32], vec![1]);
        assert_eq!(b.take(&[5; 32]), None);
        assert_eq!(a.get(&[5; 32]), Some(vec![1]));
        assert_eq!(a.take(&[5; 32]), Some(vec![1]));
        assert_eq!(a.take(&[5; 32]), None);
    }

    #[test]
    fn a_foreign_session_goes_to_the_outbox_and_then_to_its_owner() {
        bind_thread(0, 2);
        let store = PolicySessions::new([1; 16]);
        let id = vec![1; 32]; // odd: slot 1
        assert_eq!(owner(&id, 2), 1);
        store.put(id.clone(), vec![9]);
        assert_eq!(store.get(&id), None);
        let mut mail = drain_outbox();
        assert_eq!(mail.len(), 1);
        bind_thread(1, 2);
        accept(mail.remove(0));
        assert_eq!(store.take(&id), Some(vec![9]));
    }

    #[test]
    fn the_store_is_bounded() {
        bind_thread(0, 1);
        let store = PolicySessions::new([1; 16]);
        for i in 0..(MAX_SESSIONS as u64 + 10) {
            store.put(i.to_le_bytes().to_vec(), vec![]);
        }
        SESSIONS.with_borrow(|s| assert_eq!((s.records.len(), s.order.len()), (MAX_SESSIONS, MAX_SESSIONS)));
        assert_eq!(store.get(&0u64.to_le_bytes()), None);
    }
}
