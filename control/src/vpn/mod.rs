//! The VPN's control half: OpenVPN servers and clients, whose data goes through a plane of `tunnel`.

pub mod auth;
mod peer;
pub mod pool;
pub mod server;
pub mod session;
pub mod settings;
pub mod status;
pub mod tls;
pub mod verify;
