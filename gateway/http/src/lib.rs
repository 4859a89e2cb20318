//! HTTP as messages: the head model that every version shares, and HTTP/1.1's strict codec. Sans-IO.
//!
//! Bytes come in, heads and pieces of bodies go out, and the other way round; sockets, buffers and time are the
//! caller's. Everything is checked here, once and strictly ([`h1`] says what), and messages are written anew rather
//! than relayed, so that the next recipient reads what was checked.
//!
//! - [`message`]: request and response heads, shared by HTTP/1.1, HTTP/2 and HTTP/3;
//! - [`fields`] and [`known`]: their fields, and the names that code asks for;
//! - [`claims`]: fields that only a trusted proxy may send;
//! - [`coding`]: content codings, and which one a client wants;
//! - [`h1`]: the HTTP/1.1 codec;
//! - [`h3`]: HTTP/3's framing, and QPACK without a dynamic table;
//! - [`list`]: heads as HTTP/2 and HTTP/3 carry them;
//! - [`trace_context`]: `traceparent`, `tracestate` and `baggage`;
//! - [`error`]: what can be wrong, with the status and the counter it maps to.

mod authority;
pub mod claims;
pub mod coding;
pub mod error;
pub mod fields;
pub mod h1;
pub mod h3;
pub mod known;
pub mod list;
pub mod message;
mod scan;
pub mod trace_context;

pub use authority::is_authority;
pub use error::ParseError;
pub use fields::{FieldError, Fields, LiteralValue};
pub use known::Known;
pub use message::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};
