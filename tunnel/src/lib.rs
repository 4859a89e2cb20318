//! The tunnel's data channel, off the slow path.
//!
//! Control (TLS, authentication, negotiation, rekeying) lives elsewhere; what it needs of a data plane is the narrow
//! interface of [`plane`]: peers, keys, counters, events.

mod fields;
pub mod kernel;
pub mod plane;
pub mod user;
