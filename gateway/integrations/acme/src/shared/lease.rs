//! The right to order for a name: a lease in the store, which ends by itself, and a number that grows with each of them.
//!
//! The lease keeps two gateways from ordering at the same time. The number keeps one that has lost its lease without noticing from
//! writing: what is written has the number of the lease, and what has a larger one stays.

use super::value::{Fence, read_json, write_json};
use super::{ATTEMPTS, Inner, LASTING, LIMIT};
use crate::storage::StorageError;
use sealane_store::{Answer, Incarnation, Operation, StoreError};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// How long a gateway that is gone keeps others from ordering.
pub(crate) const LEASE: Duration = Duration::from_secs(15);
/// How often the lease is extended.
const EXTEND: Duration = Duration::from_secs(4);

/// What is known of a lease.
#[derive(Clone, Copy)]
struct Held {
    token: u64,
    /// The life of the store's data in which it was got.
    incarnation: Incarnation,
    until: Instant,
}

/// A lease, which is extended until this is dropped, and then given back.
pub(crate) struct SharedLease {
    inner: Arc<Inner>,
    pub name: String,
    key: String,
    owner: String,
    held: Mutex<Held>,
    lost: watch::Sender<bool>,
    extending: Mutex<Option<AbortHandle>>,
}

impl fmt::Debug for SharedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLease").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for SharedLease {
    fn drop(&mut self) {
        let extending = self.extending.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = extending {
            task.abort();
        }
        give_back(&self.inner, &self.key, &self.owner);
    }
}

/// One that the store does not hear of ends by itself.
fn give_back(inner: &Inner, key: &str, owner: &str) {
    let _ = inner.link.tell(Operation::Release { key: key.to_owned(), owner: owner.to_owned() }, LIMIT);
}

/// A lease of the store that has no number yet.
pub(super) struct Taken {
    key: String,
    owner: String,
    until: Instant,
}

impl Taken {
    /// Gives it back before it has a number.
    pub(super) fn give_back(self, inner: &Inner) {
        give_back(inner, &self.key, &self.owner);
    }
}

impl Inner {
    /// Takes the lease for a name. `None`: another gateway has it.
    pub(super) async fn take_lease(&self, name: &str) -> Result<Option<Taken>, StoreError> {
        let (key, owner) = (self.key("acme-lease", name), self.next_owner());
        // By our clock it ends sooner than by the store's.
        let until = Instant::now() + LEASE;
        let lease = Operation::Lease { key: key.clone(), owner: owner.clone(), ttl: LEASE };
        match self.link.execute(lease, LIMIT).await? {
            (Answer::Done(true), _) => Ok(Some(Taken { key, owner, until })),
            _ => Ok(None),
        }
    }

    /// Gives a lease a number that is larger than all before. `known`: the largest number of what the store has of the name.
    pub(super) async fn number_lease(
        self: &Arc<Self>,
        name: &str,
        taken: Taken,
        known: u64,
    ) -> Result<Arc<SharedLease>, StorageError> {
        let (token, incarnation) = match self.raise_fence(name, known).await {
            Ok(raised) => raised,
            Err(e) => {
                taken.give_back(self);
                return Err(e);
            }
        };
        let Taken { key, owner, until } = taken;
        let lease = Arc::new(SharedLease {
            inner: self.clone(),
            name: name.to_owned(),
            key,
            owner,
            held: Mutex::new(Held { token, incarnation, until }),
            lost: watch::Sender::new(false),
            extending: Mutex::default(),
        });
        let extended = Arc::downgrade(&lease);
        let task = tokio::spawn(async move {
            loop {
                sleep(EXTEND).await;
                match extended.upgrade() {
                    Some(lease) => lease.extend().await,
                    None => return,
                }
            }
        });
        *lease.extending.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        Ok(lease)
    }

    /// Enters this gateway as the one that orders for a name. Returns the number of its lease.
    async fn raise_fence(&self, name: &str, known: u64) -> Result<(u64, Incarnation), StorageError> {
        let key = self.key("acme-fence", name);
        for _ in 0..ATTEMPTS {
            let (sealed, incarnation) = self.get(&key).await?;
            let before = sealed.as_deref().and_then(|sealed| self.open(&key, sealed));
            let before: Fence = before.and_then(|plain| read_json(&plain)).unwrap_or_default();
            let token = before.token.max(known).saturating_add(1);
            let fence = Fence { token, holder: self.holder.clone() };
            if self.replace(&key, sealed, &write_json(&fence), LASTING).await? {
                return Ok((token, incarnation));
            }
        }
        Err(StorageError::Lost("another gateway has just taken the lease".to_owned()))
    }

    /// Which gateway orders for a name, for people.
    pub(super) async fn holder_of(&self, name: &str) -> String {
        let key = self.key("acme-fence", name);
        let sealed = self.get(&key).await.ok().and_then(|(sealed, _)| sealed);
        let fence = sealed.and_then(|sealed| read_json::<Fence>(&self.open(&key, &sealed)?));
        fence.map_or_else(|| "another gateway".to_owned(), |fence| crate::order::cut(fence.holder))
    }
}

impl SharedLease {
    fn held(&self) -> MutexGuard<'_, Held> {
        // Each change is one assignment.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another gateway has it. Cancel safe.
    pub async fn lost(&self) {
        let mut lost = self.lost.subscribe();
        // The sender is in `self`.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    /// The number that what is written has, where the store's data has had this life in the last moment.
    pub(super) async fn token(&self, incarnation: Incarnation) -> Result<u64, StorageError> {
        let held = *self.held();
        if held.incarnation != incarnation || held.until <= Instant::now() {
            self.extend().await;
        }
        let held = *self.held();
        let is_good = held.incarnation == incarnation && held.until > Instant::now() && !*self.lost.borrow();
        if is_good { Ok(held.token) } else { Err(self.is_lost()) }
    }

    pub(super) fn is_lost(&self) -> StorageError {
        StorageError::Lost(format!("this gateway no longer has the lease for {}", self.name))
    }

    /// Extends it, if nobody has had it in between. Without the store, it stays as it is.
    pub(super) async fn extend(&self) {
        let (inner, until) = (&self.inner, Instant::now() + LEASE);
        let fence = inner.key("acme-fence", &self.name);
        let lease = Operation::Lease { key: self.key.clone(), owner: self.owner.clone(), ttl: LEASE };
        let mut answers = inner.link.execute_all(vec![lease, Operation::Get { key: fence.clone() }], LIMIT).await;
        let (Some(Ok((Answer::Value(sealed), incarnation))), Some(Ok((Answer::Done(done), _)))) =
            (answers.pop(), answers.pop())
        else {
            return;
        };
        let before = *self.held();
        let known = sealed.and_then(|sealed| read_json::<Fence>(&inner.open(&fence, &sealed)?));
        let token = match known {
            _ if !done => None,
            Some(known) => (known.token == before.token).then_some(before.token),
            // The store has lost its data, and nobody has had the lease since.
            None => inner.raise_fence(&self.name, before.token).await.ok().map(|(token, _)| token),
        };
        match token {
            Some(token) => *self.held() = Held { token, incarnation, until },
            None => {
                self.lost.send_replace(true);
            }
        }
    }
}
