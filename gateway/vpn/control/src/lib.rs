//! The VPN's control plane: OpenVPN servers and clients, certificates and users, whose data goes through a plane of
//! `gateway/vpn/data`.

mod addresses_file;
pub mod auth;
pub mod client;
pub mod handover;
mod hooks;
mod log;
pub mod login;
mod management;
pub mod nat;
mod output_file;
mod peer;
pub mod pki;
pub mod pool;
pub mod profile;
mod program;
pub mod prompt;
pub mod proxy;
mod records;
mod run;
pub mod server;
pub mod session;
pub mod settings;
mod shared_port;
pub mod status;
mod throttle;
pub mod tls;
pub mod verify;

pub use run::{Prepared, Vpn, VpnDoor};
pub use server::{Steer, Steering, Whom};
pub use shared_port::{Arrivals, SharedPort};
