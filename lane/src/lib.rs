//! The lane: one pinned thread with its own readiness loop.
pub mod counter;
