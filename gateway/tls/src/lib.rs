//! The TLS façade: bytes in; plaintext, early data and bytes out.
//!
//! The only crate that names rustls' unbuffered API (0.24 changes it). It knows nothing of sockets. A connection's way
//! through it: [`hello::parse`] on the first bytes → the proxy chooses a policy and admits the hello →
//! [`Session::server`] under the lane's own [`ServerContext`] → [`Session::read`] and [`Session::write`].

mod authentication;
mod client;
mod control_client;
pub mod crl;
pub mod der;
mod description;
mod early_skip;
pub mod fips;
#[doc(hidden)]
pub mod fuzzing;
pub mod hello;
mod hkdf_sha256;
pub mod ids;
mod key_schedule;
mod keylog;
mod no_records;
pub mod ocsp;
pub mod policy;
mod provider;
pub mod quic;
mod quic_keys;
mod quic_packets;
mod quic_padding;
mod quic_session;
pub mod random;
mod records;
pub mod remote;
mod rsa;
mod server;
mod session;
pub mod sessions;
mod signed;
pub mod syn;
#[cfg(test)]
mod testing;
mod ticket;
pub mod transparency;
mod verifier;
mod words;

pub use authentication::{CertificateNames, REAUTHENTICATE_AFTER};
pub use client::ClientContext;
pub use control_client::{control_client, root_store};
pub use description::{CertificateDescription, attribute_name, distinguished_name};
pub use records::Records;
pub use rustls::pki_types::CertificateDer;
pub use server::{BuildError, ServerContext};
pub use session::{EarlyData, Read, Session, Summary, SynSession, TlsError, fingerprint};
pub use words::{certificate_problem, connection_error_in_words, revocation_list_problem};
