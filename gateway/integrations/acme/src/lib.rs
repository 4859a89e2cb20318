//! Certificates from an authority that speaks ACME (RFC 8555): obtained, kept in a folder, and renewed.
//!
//! ```text
//!               ┌────────────────────── manager: one task ──────────────────────┐
//!   settings ──▶│ schedule: when each name is due     folder: lock, files, state │──▶ certificates/NAME.pem
//!   renew NAME ▶│ order: one name, from the order to the certificate             │──▶ events: "written"
//!               └───────┬─────────────────────────────────────────────┬──────────┘
//!                       │ http: deadlines, limits                     │ table of challenges
//!                       ▼                                             ▼
//!                  the authority                          control ──▶ lanes, which answer the authority
//! ```
//!
//! Nothing here touches what is served: control notices the new file, checks it like every other certificate, and replaces the
//! old one. So two gateways may share a folder: the one that holds its lock renews, the others read. Gateways on several machines share
//! a store (`storage.rs`, `shared`): one of them orders, and all have copies in their folders.

mod certificate;
mod challenges;
mod dns_update;
mod folder;
#[doc(hidden)]
pub mod fuzzing;
mod hook;
mod http;
mod manager;
mod on_demand;
mod order;
mod schedule;
#[cfg(test)]
mod scripted;
mod shared;
mod storage;

pub use challenges::{Challenge, Proof, Table};
pub use manager::{Event, Manager, Renewer, Report, Reports};
pub use on_demand::{Demand, DemandCounts};
pub use shared::{SharedCounts, SharedStore};
