//! Rates that gateways hold together, as a lane sees them.
//!
//! A lane decides alone. What it has let pass it also tells control (`SharedRates::tell`), which pours that into a bucket in the store,
//! one for each key, and tells all lanes the bucket's level (`Levels`). A lane whose own bucket is fuller than what all gateways
//! together have left empties it down to that. So what passed too much is a debt at all gateways.

use super::Passed;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Takes what has passed a limit.
pub type Tell = Box<dyn Fn(&Arc<Passed>) -> bool + Send + Sync>;

/// The way to the rates of all gateways.
pub struct SharedRates {
    /// The key with which all gateways hash clients, names and fields.
    pub hash: [u64; 2],
    /// Takes what has passed to control. False if there is no room for it. Never waits.
    pub tell: Tell,
    /// Whether the store answers, if nothing may pass a limit while it does not.
    pub needed: Option<Arc<AtomicBool>>,
}

impl SharedRates {
    /// Whether nothing may pass at the moment.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.needed.as_ref().is_some_and(|up| !up.load(Relaxed))
    }
}

impl fmt::Debug for SharedRates {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRates").field("needed", &self.needed).finish_non_exhaustive()
    }
}

/// What all gateways together have let pass of a limit.
#[derive(Clone, Debug)]
pub struct Levels {
    /// Which limit, as in [`Passed::limit`].
    pub limit: u64,
    /// Of which keys.
    pub levels: Vec<Level>,
}

/// What all gateways together have let pass of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// As in [`super::Use`].
    pub key: u64,
    /// How long the bucket takes to have its whole burst again, in microseconds.
    pub micros: u64,
}
