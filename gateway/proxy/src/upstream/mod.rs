//! Connections to upstream servers: selecting a server, connecting, pooling, and HTTP/1.1, HTTP/2 and HTTP/3 as sinks of requests
//! and sources of responses.

pub mod balance;
pub(crate) mod connection;
pub(crate) mod early;
pub(crate) mod group;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod h2_connection;
pub(crate) mod h3;
pub(crate) mod phase;
pub(crate) mod pools;
pub(crate) mod queue;
pub mod server_state;
pub(crate) mod syn;
