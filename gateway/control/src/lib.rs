//! Control: everything of the gateway that is not a connection's bytes. It reads the configuration, opens the sockets,
//! publishes snapshots to the lanes, serves metrics, writes the access log and handles signals.
//!
//! The binary calls [`run::serve`] and [`demo::run`]; everything else here is used by those.

pub mod admin;
pub mod certificates;
pub mod client;
mod compression;
pub mod demo;
mod directory;
pub mod dns;
pub mod fleet;
pub mod health;
pub mod metrics;
pub mod resolve;
pub mod run;
pub mod self_check;
pub mod telemetry;
pub mod traces;
mod upgrade;

pub use sealane_config as config;
pub use sealane_log as log;
pub use sealane_tls::fips;
pub use sealane_vpn as vpn;
