//! An emulated link: two network namespaces, joined by two TUN devices and a thread that holds each packet for its
//! delay. Real kernel TCP on both ends sees a real round-trip time, on one machine, whatever its kernel can.
//!
//! For the lab's experiments and for tests. What a machine does to it is measured, not hoped for: [`Link::up`] sends
//! echoes, takes the emulator's own share off the delay and checks the result; [`Link::finish`] checks again and says
//! in [`Report::void`] when the link was not what it was meant to be.
//!
//! `examples/link.rs` shows its use.
//!
//! A namespace belongs to a thread: sockets that are opened within [`Side::run`] stay on their side of the link, and
//! programs started by [`Side::spawn`] run there. Root may do this, and users who may make user namespaces
//! ([`gain_privileges`]).

mod config;
mod engine;
mod link;
mod netem;
mod packet;
mod pcap;
mod ping;
mod queue;
mod side;

pub use config::{Backend, LinkConfig, SynData, parse_duration, parse_rate, parse_share};
pub use engine::{Lateness, Seen, Towards};
pub use link::{Link, LinkError, Report};
pub use packet::{Segment, flag};
pub use ping::Rtt;
pub use queue::{Counts, Fate};
pub use side::Side;

/// Makes a process without privileges able to use links, by a user namespace of its own. Call it first thing in
/// `main`, before there is a second thread; a process that may use links already is left as it is.
///
/// Errors: the system does not let ordinary users make user namespaces.
pub fn gain_privileges() -> Result<(), LinkError> {
    sealane_sys::netns::become_root_of_a_user_namespace().map_err(LinkError::Privileges)
}
