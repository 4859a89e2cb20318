//! TLS as a load generator needs it: rustls driven through its unbuffered interface, with a
//! configuration, a ticket store and a verifier per thread, so that no reference count, lock or cache
//! line is shared between threads.

mod config;
mod session;
mod tickets;

pub use config::{Client, ClientIdentity, TlsError, TlsOptions, TlsVersions, group_names, suite_names};
pub use sealane_lab_wire::Verify;
pub use session::{OutBuf, Session, Step};
pub use tickets::{Tickets, offer_tickets, tickets_at_hand, tickets_received};
