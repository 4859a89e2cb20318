//! Control: everything of the gateway that is not a connection's bytes. It reads the configuration, opens the sockets,
//! publishes snapshots to the lanes, serves metrics, writes the access log and handles signals.
//!
//! The binary calls [`run::serve`] and [`demo::run`]; everything else here is used by those.

pub mod access_log;
pub mod admin;
pub mod client;
mod commands;
pub mod demo;
pub mod devca;
pub mod dns;
mod handover;
pub mod health;
mod lanes;
mod listeners;
mod memory;
pub mod metrics;
pub mod origin;
pub mod prometheus;
pub mod resolve;
pub mod run;
mod shortage;
pub mod signals;
pub mod sockets;
pub mod status;
mod stored_tunnel;
pub mod syn_tls;
mod systemd;
pub mod ticket_keys;
mod user;
mod watch;

pub use sealane_config as config;
pub use sealane_log as log;
pub use sealane_vpn as vpn;
