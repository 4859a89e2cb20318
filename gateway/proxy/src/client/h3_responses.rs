//! HTTP/3 towards clients: streams as sinks of responses.
//!
//! What is staged on a stream goes to the protocol once per turn (`send`), head and data in one piece. What the client's
//! windows do not let out stays with the stream, and is its back-pressure.

use crate::conn::Conn;
use crate::quic::conn::Stream;
use crate::service::Proxy;
use crate::transport::{HIGH_WATER, MIN_CREDIT};
use sealane_http::BodyLength;
use sealane_http::h3::{self, Code};
use sealane_lane::{Context, Key, Millis};

impl Proxy {
    fn h3_stream(&mut self, key: Key, index: u32) -> Option<&mut Stream> {
        match self.connections.get_mut(key)? {
            Conn::Quic(q) => q.streams.get_mut(index as usize),
            _ => None,
        }
    }

    /// Something is staged on a stream.
    fn h3_staged(&mut self, key: Key, index: u32) {
        if let Some(Conn::Quic(q)) = self.connections.get_mut(key) {
            q.stage(index);
        }
        self.connections.mark_for_flush(key);
    }

    pub(crate) fn h3_client_interim(&mut self, exchange: Key, key: Key, index: u32) {
        let Self { connections, exchanges, .. } = self;
        let (Some(x), Some(Conn::Quic(q))) = (exchanges.get(exchange), connections.get_mut(key)) else { return };
        let Some(stream) = q.streams.get_mut(index as usize) else { return };
        h3::encode_response(&mut stream.out, &x.response, BodyLength::None, false);
        self.h3_staged(key, index);
    }

    pub(crate) fn h3_client_head(&mut self, exchange: Key, key: Key, index: u32, body: BodyLength, upgrade: bool) {
        let Self { connections, exchanges, .. } = self;
        let (Some(x), Some(Conn::Quic(q))) = (exchanges.get_mut(exchange), connections.get_mut(key)) else { return };
        let Some(stream) = q.streams.get_mut(index as usize) else { return };
        x.keep_alive = false;
        x.response_body.framing = BodyLength::None;
        if let BodyLength::Known(n) = body {
            // Head and a short body leave in one piece: room for both.
            stream.out.reserve(256 + (n as usize).min(HIGH_WATER));
        }
        let body = if body == BodyLength::UntilClose { BodyLength::Chunked } else { body };
        h3::encode_response(&mut stream.out, &x.response, body, upgrade);
        if upgrade {
            // RFC 9114 §4.4: from here on there is only DATA.
            stream.reader.expect_tunnel();
        }
        self.h3_staged(key, index);
    }

    pub(crate) fn h3_client_credit(&mut self, key: Key, index: u32, want: usize) -> usize {
        let Some(Conn::Quic(q)) = self.connections.get(key) else { return 0 };
        let Some(stream) = q.streams.get(index as usize) else { return 0 };
        let room = q.stream_limit(stream).saturating_sub(stream.waiting());
        // Pieces stay large.
        if room < want.min(MIN_CREDIT) { 0 } else { want.min(room) }
    }

    pub(crate) fn h3_client_data(&mut self, key: Key, index: u32, data: &[u8], last: bool) {
        let Some(stream) = self.h3_stream(key, index) else { return };
        h3::put_data_header(&mut stream.out, data.len());
        stream.out.extend_from_slice(data);
        stream.finish |= last;
        self.h3_staged(key, index);
    }

    pub(crate) fn h3_client_end(&mut self, exchange: Key, key: Key, index: u32) {
        let Self { connections, exchanges, .. } = self;
        let (Some(x), Some(Conn::Quic(q))) = (exchanges.get(exchange), connections.get_mut(key)) else { return };
        let Some(stream) = q.streams.get_mut(index as usize) else { return };
        if !std::mem::replace(&mut stream.finish, true) {
            h3::encode_trailers(&mut stream.out, &x.response_body.trailers);
        }
        self.h3_staged(key, index);
    }

    /// The exchange is over; what was sent goes out.
    pub(crate) fn h3_client_finish(&mut self, cx: &mut Context, key: Key, index: u32) {
        let idle = self.settings.limits().idle_timeout.as_millis() as Millis;
        let Some(Conn::Quic(q)) = self.connections.get_mut(key) else { return };
        let Some(stream) = q.streams.get_mut(index as usize) else { return };
        stream.exchange = None;
        stream.finish = true;
        stream.rest.clear();
        stream.due = cx.now() + idle;
        if !std::mem::replace(&mut stream.read_done, true) {
            // RFC 9114 §4.1: the rest of a request whose response needs none of it.
            let _ = q.quic.recv_stream(stream.id).stop(crate::quic::conn::code(Code::NoError));
        }
        q.idle_since = cx.now();
        self.h3_staged(key, index);
    }

    /// The exchange is called off; whoever does so ends the stream, if there still is one.
    pub(crate) fn h3_client_detach(&mut self, key: Key, index: u32) {
        if let Some(stream) = self.h3_stream(key, index) {
            stream.exchange = None;
        }
    }

    /// The response is cut off: it must not look whole. `stuck`: the client takes nothing.
    pub(crate) fn h3_client_reset(&mut self, key: Key, index: u32, stuck: bool) {
        if let Some(Conn::Quic(q)) = self.connections.get_mut(key) {
            q.reset(index, if stuck { Code::RequestCancelled } else { Code::InternalError });
        }
        self.connections.mark_for_flush(key);
    }
}
