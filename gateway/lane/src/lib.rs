//! The lane: one pinned thread with its own readiness loop.
//!
//! A lane owns its connections, timers, buffers and counters. When it handles an established connection, it takes no
//! lock and writes no cache line that another lane uses (exceptions: `docs/decisions/001-lanes-share-nothing.md`). What must cross goes by [`Mailbox`]; what all lanes must know is
//! [`Published`] and picked up between two events. What a lane does is a [`Service`].

pub mod counter;
pub mod histogram;
mod mailbox;
mod published;
mod run;
mod slots;
pub mod sync;
mod timers;
mod wake;
mod write_queue;

pub use mailbox::{Inbox, Load, Mail, Mailbox, Undelivered, mailbox};
pub use published::{Published, Subscription};
pub use run::{After, Context, Ready, Service, run};
pub use slots::{Key, Slots};
pub use timers::{Deadline, Micros, Millis, TICK, Timers};
pub use wake::Wake;
pub use write_queue::{Full, WriteQueue};
