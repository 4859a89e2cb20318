//! State that several gateways share: small values in a store that all of them reach.
//!
//! ```text
//! ticket keys, early data, limits (control) ── Operation, bounded ──▶ Link ── batches, deadlines, back-off ──▶ Connection
//!                                                                                                       memory, or a server
//! ```
//!
//! A [`Store`] is where the values are: [`memory`] in this process, or a server (`gateway/integrations/redis`). A [`Link`] is the
//! only user of a store's connection. Nothing on the data path waits for it: a lane sends a message to control and goes on.
//!
//! The store's operator is trusted to keep what it is told and to forget what was taken. It is not trusted with secrets: values are
//! sealed under a key that only gateways have ([`seal`]), and names of values do not tell what they are for.

mod link;
pub mod memory;
pub mod seal;

pub use link::{Counts, Link, Settings, State};

use aws_lc_rs::digest::{Context, SHA256};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A future that a store returns.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Which life of a store's data this is. It changes when the server is started again or gets its data from another one, and a
/// former one never comes back: a value that was written in another life may be one that was taken in the meantime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation([u8; Self::LEN]);

impl Incarnation {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    /// The life that these identify.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut digest = Context::new(&SHA256);
        for part in parts {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let mut id = [0; Self::LEN];
        id.copy_from_slice(&digest.finish().as_ref()[..Self::LEN]);
        Self(id)
    }

    /// As it is written into values.
    pub fn bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// As it was written into a value.
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }
}

/// What a store can do. Each is atomic: of two gateways that take a value, one gets it.
#[derive(Clone, PartialEq, Eq)]
pub enum Operation {
    /// Reads a value.
    Get {
        /// Its name.
        key: String,
    },
    /// Writes a value that is forgotten after `ttl`.
    Set {
        /// Its name.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// How long it is kept.
        ttl: Duration,
    },
    /// Reads a value and removes it.
    Take {
        /// Its name.
        key: String,
    },
    /// Writes a value if the present one is `expected` (`None`: if there is none).
    Replace {
        /// Its name.
        key: String,
        /// The present value.
        expected: Option<Vec<u8>>,
        /// The new one.
        value: Vec<u8>,
        /// How long it is kept.
        ttl: Duration,
    },
    /// Gets or extends a lease. One owner has it at a time, until `ttl` is over or it is released.
    Lease {
        /// Its name.
        key: String,
        /// Who wants it.
        owner: String,
        /// How long it holds.
        ttl: Duration,
    },
    /// Gives a lease back, if `owner` has it.
    Release {
        /// Its name.
        key: String,
        /// Who had it.
        owner: String,
    },
    /// Pours into a leaky bucket, which leaks all the time by the store's clock. Its level is the time that it takes to be empty
    /// again; an empty one is forgotten.
    Fill {
        /// Its name.
        key: String,
        /// How much, in microseconds of leaking.
        amount: u64,
        /// The most that it may have held before, in microseconds: more of it was poured by a clock that was ahead.
        most: u64,
    },
}

impl fmt::Debug for Operation {
    /// Without values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, key) = match self {
            Self::Get { key } => ("Get", key),
            Self::Set { key, .. } => ("Set", key),
            Self::Take { key } => ("Take", key),
            Self::Replace { key, .. } => ("Replace", key),
            Self::Lease { key, .. } => ("Lease", key),
            Self::Release { key, .. } => ("Release", key),
            Self::Fill { key, .. } => ("Fill", key),
        };
        f.debug_struct(name).field("key", key).finish_non_exhaustive()
    }
}

/// What came of an [`Operation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of `Get` and `Take`.
    Value(Option<Vec<u8>>),
    /// Of `Set`, `Replace`, `Lease` and `Release`: whether it was done.
    Done(bool),
    /// Of `Fill`: the level after it, in microseconds.
    Level(u64),
}

/// Why a store did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It cannot be reached, or the connection is lost.
    Away(String),
    /// It has not answered in time.
    Slow,
    /// It refuses to write: its memory is full, or it does not write to its disk.
    Full(String),
    /// It answers with an error.
    Refused(String),
    /// More wait for it than may: it was not asked.
    Busy,
}

impl StoreError {
    /// In metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Away(_) => "away",
            Self::Slow => "slow",
            Self::Full(_) => "full",
            Self::Refused(_) => "refused",
            Self::Busy => "busy",
        }
    }

    /// Whether the connection is of no more use.
    fn ends_connection(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Slow)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(why) => write!(f, "it cannot be reached: {why}"),
            Self::Slow => f.write_str("it does not respond in time"),
            Self::Full(why) => write!(f, "it refuses to write: {why}"),
            Self::Refused(why) => write!(f, "it responds with an error: {why}"),
            Self::Busy => f.write_str("too many operations wait for it"),
        }
    }
}

impl std::error::Error for StoreError {}

/// The answers to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// The life of the data after the last operation of the batch.
    pub incarnation: Incarnation,
    /// One for each operation, in order.
    pub each: Vec<Result<Answer, StoreError>>,
}

/// Where values are kept.
pub trait Store: Send + Sync + 'static {
    /// For logs, without passwords.
    fn name(&self) -> String;

    /// Connects. The caller sets a deadline.
    fn connect(&self) -> Pending<'_, Result<Box<dyn Connection>, StoreError>>;
}

/// A connection to a store.
pub trait Connection: Send {
    /// Executes operations, in order. No operation at all asks whether the store is there. The caller sets a deadline; after an
    /// error, or where it does not wait, the connection is dropped.
    fn execute<'a>(&'a mut self, batch: &'a [Operation]) -> Pending<'a, Result<Answers, StoreError>>;
}
