//! The proxy: what a lane does with the connections of HTTP clients.
//!
//! A request goes from left to right, its response comes back the same way:
//!
//! ```text
//! accept ──► client/{connection, h1, h2, h3} ──► exchange ──► upstream/{selection, connection, h1, h2, h3} ──► server
//! quic   ──►
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `service` | events, timers, mail and snapshots of the lane |
//! | `accept` | accepts connections, and bounds what handshakes cost |
//! | `client` | sources of requests and sinks of responses, one per version of HTTP |
//! | `exchange` | executes the state machine of `sealane-exchange` |
//! | `upstream` | selects servers, pools connections; sinks of requests and sources of responses |
//! | `relay` | connections that are passed on without being read |
//! | `tunnel_port` | connections of OpenVPN clients at a listener with TLS, which go to the tunnel |
//! | `udp` | datagrams that are passed on without being read |
//! | `h2`, `h3` | what both sides of HTTP/2 and of HTTP/3 have in common |
//! | `quic`, `quic_driver` | the transport of HTTP/3; passes its events to the adapters |
//! | `transport`, `flush` | a socket with its TLS session; when staged bytes leave |
//!
//! `exchange::streams` is the seam between the versions of HTTP and the exchange.
//! [`Proxy`] is a [`sealane_lane::Service`]; control gives it [`snapshot::Snapshot`]s.

mod accept;
pub mod access;
mod access_log;
pub mod challenges;
mod client;
mod clock;
pub mod compression;
mod conn;
mod connections;
pub mod cors;
pub mod counters;
mod exchange;
#[cfg(test)]
mod fixtures;
mod flush;
pub mod forwarding;
#[doc(hidden)]
pub mod fuzzing;
mod h2;
mod h3;
pub mod inspection;
mod lane_state;
#[cfg(test)]
mod lane_tests;
pub mod latency;
mod lifecycle;
pub mod limits;
pub mod logins;
mod memory;
pub mod mirrors;
pub mod on_demand;
pub mod pages;
pub mod patterns;
mod quic;
mod quic_driver;
pub mod recording;
mod records;
pub mod redirects;
mod relay;
mod renewal;
pub mod request_ids;
pub mod response_rewrites;
pub mod rules;
mod scratch;
mod service;
mod settings;
pub mod shared_tickets;
pub mod snapshot;
pub mod talkers;
pub mod templates;
pub mod traces;
mod transport;
pub mod tunnel_port;
mod udp;
pub mod unix_clients;
mod upstream;

pub use access_log::{AccessLogRules, FIELDS as LOG_FIELDS, LogFields, LogFormat, LogSink, Template, TemplateError};
pub use exchange::failure::Failure;
pub use quic::Datagram;
pub use quic::succession::{Channel, QuicPredecessor, QuicSuccessor};
pub use records::{ALL_REQUESTS, ConnectionId, ERRORS, Occurrence, Record, RecordSink, RequestError, RequestId};
pub use service::{HandedOver, MAIL_CAPACITY, Message, Proxy, Setup};
pub use upstream::{balance, server_state};

/// For tests that count.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: sealane_sys::allocations::CountingAllocator = sealane_sys::allocations::CountingAllocator;
