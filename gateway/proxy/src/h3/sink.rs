//! Streams as sinks: of responses towards clients, of requests towards upstreams.
//!
//! What is staged on a stream goes to the transport once per turn (`quic_driver`), head and data in one piece. What the
//! peer's windows do not let out stays with the stream, and is its back-pressure.

use super::connection::H3Connection;
use super::stream::Sending;
use crate::connections::Connections;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::streams::Later;
use crate::transport::{HIGH_WATER, MIN_CREDIT};
use sealane_http::Fields;
use sealane_http::h3;
use sealane_lane::{Key, Millis};

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

impl H3Connection {
    /// Hands the transport what is staged on streams, the first in their order first. `resume`: the sources that have room again.
    pub fn flush_streams(&mut self, exchanges: &mut Exchanges, now: Millis, resume: &mut Vec<Later>) {
        // A response of which all that was here is out, and more is to be had.
        let mut hungry = None;
        let mut staged = self.take_staged().into_iter();
        while let Some(index) = staged.next() {
            if let Some(first) = hungry
                && self.waiting > 0
                && self.goes_before(first, index)
            {
                // Windows are short, and what it reads next goes before the rest.
                self.staged.push(index);
                self.staged.extend(staged);
                break;
            }
            if let Some(stream) = self.streams.get_mut(index as usize) {
                stream.staged = false;
            }
            let all = self.flush_stream(index);
            let Some(stream) = self.streams.get(index as usize) else { continue };
            let room = HIGH_WATER.saturating_sub(stream.waiting());
            if let (true, Some(exchange)) = (room >= HIGH_WATER / 2, stream.exchange())
                && let Some(x) = exchanges.get_mut(exchange)
            {
                // What a client's stream blocks is the response, what an upstream's blocks is the request.
                let (flow, source) = match self.is_client() {
                    true => (x.response_body_mut(), Later::Server(exchange)),
                    false => (x.request_body_mut(), Later::Client(exchange)),
                };
                if flow.unblock(now) {
                    resume.push(source);
                    hungry = hungry.or((all && self.is_client()).then_some(index));
                }
            }
            self.reap(index);
        }
    }

    /// Whether something is still staged.
    pub fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }
}
