//! The proxy: what a lane does with the connections of HTTP clients.
//!
//! ```text
//! service ── accept ─► front ── bytes ─► h1_front ◄──► exchange_loop ◄──► h1_back ◄── bytes ── back ── upstream
//!                                                      request_flow
//!                                                      response_flow
//! ```
//! `sides` says how the adapters of each HTTP version and the exchange loop talk to each other.
//! [`Proxy`] is a [`sealane_lane::Service`]; control gives it [`snapshot::Snapshot`]s.

mod accepting;
mod access_log;
mod back;
mod back_syn;
pub mod balance;
mod choose;
mod clock;
mod conn;
pub mod counters;
mod exchange;
mod exchange_loop;
mod expiry;
mod failure;
mod forwarded;
mod front;
mod h1_back;
mod h1_front;
mod h2;
mod lane_state;
pub mod limits;
mod memory;
mod newcomers;
mod passthrough;
mod proxy_protocol;
mod quic;
mod renewal;
mod request_flow;
mod response_flow;
pub mod rules;
mod scratch;
pub mod server_state;
mod service;
mod settling;
mod sides;
pub mod snapshot;
mod syn;
mod waste;
mod wire;

pub use access_log::{LogFormat, LogSink};
pub use failure::Failure;
pub use quic::Datagram;
pub use quic::succession::{Channel, Elder, Follower};
pub use service::{HandedOver, MAIL_CAPACITY, Message, Proxy, Setup};
