//! The proxy: what a lane does with the connections of HTTP clients.
//!
//! ```text
//! service ── accept ─► front ── request ─► exchange_loop ── route ─► back ── connection ─► upstream
//!                        ▲                                            │
//!                        └──────────────── response ◄─────────────────┘
//! ```
//! [`Proxy`] is a [`sealane_lane::Service`]; control gives it [`snapshot::Snapshot`]s.

mod access_log;
mod back;
mod clock;
mod conn;
pub mod counters;
mod exchange;
mod exchange_loop;
mod forwarded;
mod front;
mod lane_state;
mod proxy_protocol;
mod scratch;
mod service;
pub mod snapshot;
mod wire;

pub use access_log::LogSink;
pub use service::{HandedOver, Message, Proxy, Setup};
