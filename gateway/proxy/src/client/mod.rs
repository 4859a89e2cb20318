//! Connections of clients: HTTP/1.1, HTTP/2 and HTTP/3 as sources of requests and sinks of responses.

pub(crate) mod connection;
pub(crate) mod h1;
pub(crate) mod h2;
pub(crate) mod h2_connection;
pub(crate) mod h2_responses;
pub(crate) mod h3;
pub(crate) mod h3_connection;
pub(crate) mod h3_responses;
pub(crate) mod identity;
pub(crate) mod signing;
pub(crate) mod state;
pub(crate) mod tunnel;
