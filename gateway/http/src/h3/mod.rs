//! HTTP/3 (RFC 9114) and QPACK (RFC 9204) without I/O: framing of our own over whatever carries QUIC streams.
//!
//! ```text
//! request stream ─ MessageReader ─► section ─ read_request ─► RequestHead, ListInfo
//!                        └────────► data, trailers ─ read_trailers ─► Fields
//! peer's own streams ─ UniReader ─► settings, goaway, priorities
//! bytes ◄─ encode_request, encode_response, put_data_header, encode_trailers
//! ```
//! The readers take bytes as they come and keep no more than half a field section. What a head may be [`crate::list`]
//! judges, as for HTTP/2; a stream or connection that breaks the protocol ends with the code that the RFC gives
//! ([`H3Error`]).
//!
//! Why not the `h3` crate: its sends are `async fn`, it hands out `http::HeaderMap`s (an allocation per message and per
//! field of them), and it refuses `:protocol = websocket`. What remains of it without these is what is here.

mod error;
mod frame;
mod huffman;
mod message;
mod qpack;
mod settings;
mod static_table;
pub mod varint;

pub use error::{Code, H3Error};
pub use frame::{
    ControlEvent, MessageReader, Peer, Piece, Side, UniReader, put_control_opening, put_data_header, put_goaway,
};
pub use message::{encode_request, encode_response, encode_trailers, read_request, read_response, read_trailers};
pub use qpack::QpackScratch;
pub use settings::Settings;
