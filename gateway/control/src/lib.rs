//! Control: everything of the gateway that is not a connection's bytes. It reads the configuration, opens the sockets,
//! publishes snapshots to the lanes, serves metrics, writes the access log and minds signals.
//!
//! The binary calls [`run::serve`] and [`demo::run`]; everything else here is used by those.

pub mod access_log;
pub mod admin;
pub mod client;
pub mod demo;
pub mod devca;
pub mod dns;
mod handover;
pub mod health;
mod kept;
mod lanes;
mod listeners;
mod memory;
pub mod metrics;
mod orders;
pub mod origin;
pub mod prometheus;
pub mod resolve;
pub mod run;
mod shortage;
pub mod signals;
pub mod sockets;
pub mod status;
pub mod syn_tls;
mod systemd;
pub mod ticket_keys;
mod user;
mod watch;

pub use sealane_config as config;
pub use sealane_log as log;
pub use sealane_vpn as vpn;
