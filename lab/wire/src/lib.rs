//! The client's side of HTTP/1.1, HTTP/2 and HTTP/3, and the certificate verifier, for all of the lab: the load generator, the
//! probe and the experiments.
//!
//! The protocols are sans-IO. A [`Request`] says what is asked for; [`h1::encode`], [`fields::encode`] and [`h3::encode`]
//! turn it into bytes once, and callers send these bytes as often as they like. [`h1::Reader`], [`h2::Client`] and
//! [`h3::Response`] take in what the server sends and find the status, the length of the content and the end. They keep no
//! content and allocate nothing for a response in the steady state: the load generator's rate is what they cost.
//!
//! [`url::Url`] is the lab's only reader of URLs. [`Verifier`] checks certificates, as strictly as [`Verify`] says, and records what the server showed if asked to.

pub mod fields;
pub mod h1;
pub mod h2;
pub mod h3;
mod request;
pub mod url;
mod verify;

pub use request::Request;
pub use verify::{Shown, Trust, TrustError, Verifier, Verify};
