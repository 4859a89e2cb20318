//! The platform: what a lane needs of the operating system beyond what `rustix` gives safely.
//!
//! The only crate of the product that may contain `unsafe`.

pub mod cpu;
pub mod limits;
pub mod netlink;
pub mod netlink_route;
mod sockopt;
pub mod tun;
pub mod udp;
mod udp_cmsg;
