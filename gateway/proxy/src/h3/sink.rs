//! Streams as sinks: of responses towards clients, of requests towards upstreams.
//!
//! What is staged on a stream goes to the transport once per turn (`quic_driver`), head and data in one piece. What the
//! peer's windows do not let out stays with the stream, and is its back-pressure.

use crate::connections::Connections;
use crate::h3::stream::Sending;
use crate::transport::MIN_CREDIT;
use sealane_http::Fields;
use sealane_http::h3;
use sealane_lane::Key;

/// How many of `want` bytes a stream has room for.
pub(crate) fn h3_credit(connections: &mut Connections, key: Key, index: u32, want: usize) -> usize {
    let Some(q) = connections.quic(key) else { return 0 };
    let Some(stream) = q.streams.get(index as usize) else { return 0 };
    if stream.sending == Sending::ResetSent {
        // It is thrown away.
        return want;
    }
    let room = q.stream_limit(stream).saturating_sub(stream.waiting());
    // Pieces stay large.
    if room < want.min(MIN_CREDIT) { 0 } else { want.min(room) }
}

/// Stages a piece of a body.
pub(crate) fn h3_data(connections: &mut Connections, key: Key, index: u32, data: &[u8], last: bool) {
    let Some(q) = connections.quic(key) else { return };
    let Some(stream) = q.streams.get_mut(index as usize) else { return };
    if stream.sending == Sending::ResetSent {
        return;
    }
    h3::put_data_header(&mut stream.out, data.len());
    stream.out.extend_from_slice(data);
    if last {
        stream.sending.end();
    }
    q.stage(index);
    connections.mark_for_flush(key);
}

/// Stages the end of a body, with its trailers if there are any.
pub(crate) fn h3_end(connections: &mut Connections, key: Key, index: u32, trailers: &Fields) {
    let Some(q) = connections.quic(key) else { return };
    let Some(stream) = q.streams.get_mut(index as usize) else { return };
    if stream.sending.end() {
        h3::encode_trailers(&mut stream.out, trailers);
    }
    q.stage(index);
    connections.mark_for_flush(key);
}
