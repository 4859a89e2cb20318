//! The files that hold what lanes share with each other and with control, compiled with loom's primitives.
//!
//! This crate stands for `sealane-lane` and `sealane-proxy`: the modules have the names that the files import.

extern crate self as sealane_lane;
extern crate self as sealane_proxy;

#[path = "../../../gateway/lane/src/counter.rs"]
pub mod counter;
#[path = "../../../gateway/control/src/health/grants.rs"]
#[allow(dead_code, reason = "the models use a part of this file")]
mod grants;
#[path = "../../../gateway/lane/src/mailbox.rs"]
pub mod mailbox;
#[path = "../../../gateway/lane/src/published.rs"]
pub mod published;
#[path = "../../../gateway/proxy/src/upstream/server_state.rs"]
pub mod server_state;

/// As `gateway/lane/src/sync.rs`, of loom.
pub mod sync {
    pub use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub use loom::sync::mpsc::{Receiver, Sender, channel};
    // Loom's cannot be the type of a method's `self`; what it shares is loom's all the same.
    pub use std::sync::{Arc, PoisonError};
}

/// As `gateway/lane/src/wake.rs`: a flag, and a lane that sleeps until it is set.
pub mod wake {
    use loom::sync::{Condvar, Mutex};

    /// An eventfd.
    #[derive(Debug)]
    pub struct Wake(Mutex<bool>, Condvar);

    impl Wake {
        /// Not readable.
        pub fn new() -> std::io::Result<Self> {
            Ok(Self(Mutex::new(false), Condvar::new()))
        }

        /// Makes it readable.
        pub fn set(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_all();
        }

        /// Makes it unreadable.
        pub fn reset(&self) {
            *self.0.lock().unwrap() = false;
        }

        /// Sleeps until it is readable, as epoll does.
        pub fn wait(&self) {
            let mut readable = self.0.lock().unwrap();
            while !*readable {
                readable = self.1.wait(readable).unwrap();
            }
        }
    }
}

/// As in `gateway/proxy`: why a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure;

impl Failure {
    /// Never asked for here.
    pub fn code(self) -> u64 {
        1
    }

    /// Never asked for here.
    pub fn from_code(code: u64) -> Option<Self> {
        (code == 1).then_some(Self)
    }
}

/// As in `gateway/proxy`: durations, which no model looks at.
pub mod latency {
    /// Nothing.
    #[derive(Debug)]
    pub struct UpstreamTimes;

    impl UpstreamTimes {
        /// Nothing.
        pub fn unbounded(_: usize) -> Self {
            Self
        }
    }
}

/// Control, which deals out how many requests each lane may have under way at a server.
#[derive(Debug, Default)]
pub struct Dealer(grants::Grants);

impl Dealer {
    /// Deals a limit out to lanes with so many requests waiting.
    pub fn deal(&mut self, limit: u32, state: &server_state::ServerState, waiting: &[u64]) {
        self.0.deal(limit, state, waiting);
    }
}
