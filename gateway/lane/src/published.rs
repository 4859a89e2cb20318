//! A value that control replaces and lanes pick up between two events.

use crate::sync::{Arc, AtomicU64, Mutex, Ordering, PoisonError};

/// The newest version of an immutable value.
///
/// A lane asks [`Subscription::changed`] once per turn, and [`Subscription::is_outdated`] once per request: one load of a cache line that is written only when something
/// is published. The mutex is taken only then.
#[derive(Debug)]
pub struct Published<T> {
    version: AtomicU64,
    newest: Mutex<Arc<T>>,
}

impl<T> Published<T> {
    /// Starts with a first value.
    pub fn new(value: T) -> Arc<Self> {
        Arc::new(Self { version: AtomicU64::new(1), newest: Mutex::new(Arc::new(value)) })
    }

    /// Replaces the value. Lanes see it at their next turn; wake them by their mailboxes if they may be asleep.
    pub fn publish(&self, value: T) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The newest value.
    pub fn newest(&self) -> Arc<T> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A lane's view, which starts with the newest value.
    pub fn subscribe(self: &Arc<Self>) -> Subscription<T> {
        let seen = self.version.load(Ordering::Acquire);
        Subscription { current: self.newest(), seen, source: self.clone() }
    }
}

/// One lane's view on a [`Published`] value.
#[derive(Debug)]
pub struct Subscription<T> {
    source: Arc<Published<T>>,
    current: Arc<T>,
    seen: u64,
}

impl<T> Subscription<T> {
    /// The value as last picked up.
    #[inline]
    pub fn current(&self) -> &Arc<T> {
        &self.current
    }

    /// Whether there is a newer value than the one picked up last. What has happened after a value was published finds it
    /// newer.
    #[inline]
    pub fn is_outdated(&self) -> bool {
        self.source.version.load(Ordering::Acquire) != self.seen
    }

    /// Picks up the newest value; says whether there was a newer one.
    #[inline]
    pub fn changed(&mut self) -> bool {
        let version = self.source.version.load(Ordering::Acquire);
        if version == self.seen {
            return false;
        }
        self.seen = version;
        self.current = self.source.newest();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_sees_the_newest_once() {
        let p = Published::new(1);
        let mut s = p.subscribe();
        assert!(!s.is_outdated() && !s.changed());
        p.publish(2);
        p.publish(3);
        assert!(s.is_outdated() && s.changed() && !s.is_outdated());
        assert_eq!(**s.current(), 3);
        assert!(!s.changed());
    }
}
