//! Fetches what authorities say about certificates: OCSP responses (RFC 6960), which the gateway sends to its clients, and
//! revocation lists (RFC 5280), by which it judges the certificates of clients and servers.
//!
//! ```text
//!                 ┌───────────────────── manager: one task ─────────────────────┐
//!  certificates ─▶│ schedule: when each is asked about        folder: files     │─▶ STORAGE/ocsp/DIGEST.der
//!                 │ fetch: HTTP with deadlines and limits     sealane_tls::ocsp │─▶ responses, for the snapshot
//!                 └─────────────────────────────────────────────────────────────┘
//!  URLs of lists ─▶ lists: one task each; sealane_tls::crl ─▶ STORAGE/lists/DIGEST.crl ─▶ control, which watches the file
//! ```
//!
//! A response that is not verified is neither kept nor sent. Responders may be slow, dead or lying: each request has a deadline, each
//! answer a limit, and a response that was good is used until it expires. At the start the configuration reads what an earlier
//! process has kept.

mod fetch;
mod folder;
mod lists;
mod manager;
mod schedule;

pub use lists::{ListReport, ListReports, Lists};
pub use manager::{Manager, Report, Reports, Wanted};
