//! The TLS façade: bytes in; plaintext, early data and bytes out.
//!
//! The only crate that names rustls' unbuffered API. It knows nothing of sockets.

pub mod policy;
