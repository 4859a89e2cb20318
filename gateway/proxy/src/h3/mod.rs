//! HTTP/3 (RFC 9114) on QUIC's streams: what both sides have in common. One adapter towards clients (`client::h3`,
//! `client::h3_connection`, `client::h3_responses`), one towards upstreams (`upstream::h3`); `exchange::streams` says what
//! adapters are.
//!
//! `sealane_http::h3` reads and writes frames and field sections; `quic` has the transport. Here is the state of a
//! connection: its [`stream`]s and what is staged on them ([`sink`]), the [`control`] streams of both sides, and the
//! [`order`] in which responses are sent.
//! `quic_driver` passes the transport's events to the adapters.

pub(crate) mod connection;
mod control;
mod order;
pub(crate) mod sink;
pub(crate) mod stream;

use crate::exchange::expiry::sweep;
use crate::snapshot::ClientLimits;
use quinn_proto::VarInt;
use sealane_http::h3::Code;
use sealane_lane::Millis;

/// Bytes read of a stream before others get their turn.
pub(crate) const READ_AHEAD: usize = 256 * 1024;

/// How long until a connection is looked at again, whichever side of it is ours.
pub(crate) fn next_look(limits: &ClientLimits) -> Millis {
    sweep([limits.idle_timeout, limits.header_timeout, limits.keepalive_timeout])
}

/// A code as the transport carries it.
pub(crate) fn code(code: Code) -> VarInt {
    VarInt::from_u32(code.value())
}
