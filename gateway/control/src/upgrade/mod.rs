//! What outlives a process: what the running gateway gives its successor, and a tunnel that the service manager stores
//! between two processes.

pub(crate) mod handover;
pub(crate) mod remaining;
pub(crate) mod stored_tunnel;
