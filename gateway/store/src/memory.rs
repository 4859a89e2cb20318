//! A store in this process: for a gateway that is alone, and for tests.

use crate::{Answer, Answers, Connection, Incarnation, Operation, Pending, Store, StoreError};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most values; further ones are refused.
const MAX_VALUES: usize = 1 << 18;

/// Tells the stores of a process apart, and their lives.
static NEXT: AtomicU64 = AtomicU64::new(0);

struct Value {
    bytes: Vec<u8>,
    until: Instant,
}

struct Values {
    incarnation: Incarnation,
    all: HashMap<String, Value>,
    most: usize,
}

/// Values in memory. Clones have the same values.
#[derive(Clone)]
pub struct MemoryStore(Arc<Mutex<Values>>);

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_room_for(MAX_VALUES)
    }
}

fn incarnation() -> Incarnation {
    let number = NEXT.fetch_add(1, Relaxed).to_be_bytes();
    Incarnation::of(&[b"memory", &std::process::id().to_be_bytes(), &number])
}

impl MemoryStore {
    /// A store that is full with so many values.
    pub fn with_room_for(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Values { incarnation: incarnation(), all: HashMap::new(), most })))
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Values {
    fn find(&self, key: &str, now: Instant) -> Option<&[u8]> {
        self.all.get(key).filter(|value| value.until > now).map(|value| &value.bytes[..])
    }

    fn write(&mut self, key: &str, bytes: Vec<u8>, now: Instant, until: Instant) -> Result<(), StoreError> {
        if self.all.len() >= self.most && !self.all.contains_key(key) {
            self.all.retain(|_, value| value.until > now);
            if self.all.len() >= self.most {
                return Err(StoreError::Full("there is no room for more values".to_owned()));
            }
        }
        self.all.insert(key.to_owned(), Value { bytes, until });
        Ok(())
    }

    fn execute(&mut self, operation: &Operation, now: Instant) -> Result<Answer, StoreError> {
        match operation {
            Operation::Get { key } => Ok(Answer::Value(self.find(key, now).map(<[u8]>::to_vec))),
            Operation::Set { key, value, ttl } => {
                self.write(key, value.clone(), now, now + *ttl).map(|()| Answer::Done(true))
            }
            Operation::Take { key } => {
                let taken = self.all.remove(key).filter(|value| value.until > now);
                Ok(Answer::Value(taken.map(|value| value.bytes)))
            }
            Operation::Replace { key, expected, value, ttl } => {
                if self.find(key, now) != expected.as_deref() {
                    return Ok(Answer::Done(false));
                }
                self.write(key, value.clone(), now, now + *ttl).map(|()| Answer::Done(true))
            }
            Operation::Lease { key, owner, ttl } => {
                if self.find(key, now).is_some_and(|other| other != owner.as_bytes()) {
                    return Ok(Answer::Done(false));
                }
                self.write(key, owner.as_bytes().to_vec(), now, now + *ttl).map(|()| Answer::Done(true))
            }
            Operation::Release { key, owner } => {
                let owned = self.find(key, now) == Some(owner.as_bytes());
                if owned {
                    self.all.remove(key);
                }
                Ok(Answer::Done(owned))
            }
            Operation::Fill { key, amount, most } => {
                // A bucket is the time at which it is empty.
                let level =
                    self.all.get(key).map_or(Duration::ZERO, |value| value.until.saturating_duration_since(now));
                let level = level.min(Duration::from_micros(*most)) + Duration::from_micros(*amount);
                self.write(key, Vec::new(), now, now + level)?;
                Ok(Answer::Level(u64::try_from(level.as_micros()).unwrap_or(u64::MAX)))
            }
        }
    }
}

impl Store for MemoryStore {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn connect(&self) -> Pending<'_, Result<Box<dyn Connection>, StoreError>> {
        let connection: Box<dyn Connection> = Box::new(self.clone());
        Box::pin(std::future::ready(Ok(connection)))
    }
}

impl Connection for MemoryStore {
    fn execute<'a>(&'a mut self, batch: &'a [Operation]) -> Pending<'a, Result<Answers, StoreError>> {
        let mut values = self.lock();
        let now = Instant::now();
        let each = batch.iter().map(|operation| values.execute(operation, now)).collect();
        let answers = Answers { incarnation: values.incarnation, each };
        Box::pin(std::future::ready(Ok(answers)))
    }
}
