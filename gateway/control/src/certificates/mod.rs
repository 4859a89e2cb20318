//! Certificates that the gateway makes, and the keys of session tickets.

pub mod devca;
pub mod ticket_keys;
