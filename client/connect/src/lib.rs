//! `connect_tls`: a TLS connection whose handshake happens inside TCP's own.
//!
//! The `ClientHello`, and a first request where a ticket allows it, are made *before* connecting and travel in the SYN
//! (TCP Fast Open, RFC 7413). The server's flight follows its SYN-ACK at once, and our Finished rides on the third
//! packet. One round trip is saved on every connection, against servers that accept it; against all others, and on paths
//! that dislike it, the connection is made as ever ([`Outcome`] says how).
//!
//! `examples/get.rs` shows its use.
//!
//! A [`Connector`] keeps session tickets, and what it has learnt of paths: keep it, and share it between threads.
//! Everything here blocks; nothing runs in the background.

mod attempt;
mod connector;
mod outcome;
mod race;
mod stream;

pub use connector::{Connector, Options};
pub use outcome::{ConnectError, Early, Outcome, Skipped};
pub use sealane_dial::How;
pub use sealane_sys::fastopen::Cookie;
pub use stream::TlsStream;
