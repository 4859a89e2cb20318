//! HTTP/1.1 (RFC 9112): parsers and encoders without I/O.
//!
//! ```text
//! bytes ─ parse_request ─► RequestHead, RequestInfo ─ BodyDecoder ─► pieces, trailers
//!                              │ (routing, fields changed)
//! bytes ◄─ encode_request ◄────┘        encode_chunk_header, encode_last_chunk
//! ```
//! and the same with `response`. A parser is given all bytes from the start of the message and says how many of them
//! the head took; what remains is body, or the next message (pipelining).
//!
//! # What is refused
//! Two parsers that disagree about where a message ends are how requests are smuggled, so wherever published research
//! found parsers to disagree, this one refuses: line ends other than CRLF, folded lines, white space before colons,
//! more than one (or any malformed) Content-Length, Content-Length beside Transfer-Encoding, any Transfer-Encoding but
//! one `chunked`, missing, repeated, malformed or contradicted Hosts, chunk sizes and extensions outside the grammar.
//! [`ParseError`](crate::ParseError) lists all of it. Beyond the RFCs' MUSTs:
//! - `Connection` may not name fields meant for all recipients: in a request 400, in a response the name is ignored
//!   (the field is kept);
//! - names like `Content_Length` that CGI-style back ends take for the real one: 400;
//! - content in CONNECT and TRACE requests: 400;
//! - white space around the `;` and `=` of chunk extensions (`BWS`, RFC 9112 §7.1.1): 400;
//! - hosts with percent-encoding or sub-delimiters: 400.

mod body;
pub(crate) mod connection;
mod encode;
mod request;
mod response;
mod section;

pub(crate) use connection::decimal;

pub use body::{BodyDecoder, BodyPiece, What};
pub use encode::{
    ConnectionOption, encode_body, encode_body_end, encode_chunk, encode_chunk_header, encode_decimal,
    encode_last_chunk, encode_request, encode_response,
};
pub use request::{RequestInfo, parse_request};
pub use response::{ResponseInfo, parse_response, parse_response_tolerating};

/// Bounds of a message's head, and of its trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a head, start line and final empty line included (else 431).
    pub head: usize,
    /// Most bytes of a request target (else 414).
    pub target: usize,
    /// Most header fields (else 431); of trailer fields as many again.
    pub fields: usize,
    /// Most bytes of a trailer section if that is less than `head` (else 431), counted as those of a head. It is passed on as a
    /// whole, so the caller's read buffer must be able to hold as many.
    pub trailers: usize,
}

/// What is accepted of a response that breaks the rules, from a server that cannot be mended. Each of these has one
/// meaning here, and is written anew as it should be; none is accepted of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tolerance {
    /// Content-Length more than once, if all say the same (RFC 9112 §6.3 item 5).
    pub equal_content_lengths: bool,
    /// Lines of the head that end with LF alone (RFC 9112 §2.2).
    pub bare_lf: bool,
    /// Statuses up to 999.
    pub any_status: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { head: 32 * 1024, target: 8 * 1024, fields: 128, trailers: 16 * 1024 }
    }
}
