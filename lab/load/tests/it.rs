//! The generator against real servers on loopback: what it counts is what the server saw.

#[path = "it/http1.rs"]
mod http1;
#[path = "it/http23.rs"]
mod http23;
#[path = "it/nginx.rs"]
mod nginx;
#[path = "it/server.rs"]
mod server;
