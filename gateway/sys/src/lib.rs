//! The platform: what a lane or control needs of the operating system beyond what `rustix` gives safely.
//!
//! The only crate of the product that may contain `unsafe`; each use says why it is sound.

pub mod allocations;
pub mod cpu;
pub mod epoll;
pub mod fastopen;
pub mod fastopen_counts;
pub mod fastopen_open;
pub mod forwarding;
pub mod inherit;
pub mod limits;
pub mod netlink;
pub mod netlink_route;
pub mod netns;
pub mod privileges;
pub mod probes;
pub mod realtime;
pub mod segments;
pub mod sockopt;
pub mod steer;
pub mod tun;
pub mod udp;
mod udp_cmsg;
pub mod unix_socket;
