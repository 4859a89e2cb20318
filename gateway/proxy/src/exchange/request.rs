//! The request's way up: what a client's side tells of it, and what that means for the server's.

use crate::exchange::forwarded;
use crate::exchange::streams::UpstreamStream;
use crate::scratch::READ_SIZE;
use crate::service::Proxy;
use sealane_exchange::{Action as Do, Direction, Event, Phase};
use sealane_http::ParseError;
use sealane_lane::{Context, Key};

impl Proxy {
    /// How many of `want` bytes of the request's body can be taken now. 0: none, and the source is resumed when that
    /// changes. `None` if there is no such exchange any more.
    #[inline]
    pub(crate) fn request_room(&mut self, cx: &Context, exchange: Key, want: usize) -> Option<usize> {
        let x = self.exchanges.get(exchange)?;
        let room = match (x.machine.request(), x.upstream_stream) {
            // Nobody wants it: it is read and thrown away.
            (Phase::Draining, _) => return Some(want),
            (Phase::Streaming, Some(upstream_stream)) => self.server_credit(upstream_stream, want),
            (Phase::Streaming | Phase::Awaiting | Phase::Complete, _) => return Some(0),
        };
        if room == 0 {
            self.exchanges.get_mut(exchange)?.request_body.block(cx.now());
        }
        Some(room)
    }

    /// How many bytes of the request's body to read at once. 0: none now, and the source is resumed when that changes.
    pub(crate) fn request_read_size(&mut self, cx: &Context, exchange: Key) -> usize {
        let Some(x) = self.exchanges.get_mut(exchange) else { return 0 };
        match (x.machine.request(), x.upstream_stream) {
            (Phase::Streaming, Some(UpstreamStream::H1(_))) => self.request_room(cx, exchange, READ_SIZE).unwrap_or(0),
            (Phase::Streaming, Some(_)) => x.request_body.next_read(),
            _ => READ_SIZE,
        }
    }

    /// A piece of the request's body, no larger than the room that there was. False if the exchange has been refused.
    pub(crate) fn request_data(&mut self, cx: &mut Context, exchange: Key, data: &[u8], last: bool) -> bool {
        let max_body = self.settings.limits().max_body;
        let Some(x) = self.exchanges.get_mut(exchange) else { return false };
        x.request_body.bytes += data.len() as u64;
        x.request_body.progress.note(cx.now());
        let drains = x.machine.request() == Phase::Draining;
        let actions = x.machine.on(Event::Moved { direction: Direction::Request, bytes: data.len() as u64 });
        if actions.has(Do::Finish) {
            self.perform(cx, exchange, actions);
            return false;
        }
        let (client_stream, upstream_stream, framing) = (x.client_stream, x.upstream_stream, x.request_body.framing);
        if x.request_body.bytes > max_body && !x.machine.is_tunnel() && !drains {
            self.refuse(cx, exchange, 413);
            self.client_wasted(cx, client_stream.conn(), 1);
            return false;
        }
        if let (Phase::Streaming, Some(upstream_stream)) = (x.machine.request(), upstream_stream) {
            self.server_data(cx, upstream_stream, framing, data, last);
        }
        if last {
            self.request_end(cx, exchange);
        }
        true
    }

    /// The request has come whole; its trailers, if any, are in the flow. Of a tunnel: the client will send no more.
    pub(crate) fn request_end(&mut self, cx: &mut Context, exchange: Key) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        if !x.request_body.trailers.is_empty() {
            forwarded::clean_trailers(&mut x.request_body.trailers, x.routed.route.as_ref());
        }
        let actions = x.machine.on(Event::Ended(Direction::Request));
        x.response_body.progress.note(cx.now());
        self.perform(cx, exchange, actions);
    }

    /// The request's body breaks the rules of its version.
    pub(crate) fn request_broken(&mut self, cx: &mut Context, exchange: Key, error: ParseError) {
        self.counters.parse_errors[error.index()].inc();
        let connection = self.exchanges.get(exchange).map(|x| x.client_stream.conn());
        self.refuse(cx, exchange, error.status());
        if let Some(connection) = connection {
            self.client_wasted(cx, connection, 1);
        }
    }

    /// A server has taken the request's head and now takes its body.
    pub(crate) fn request_sent(&mut self, cx: &mut Context, exchange: Key, side: UpstreamStream) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        x.upstream_stream = Some(side);
        x.response_body.progress.begin(cx.now());
        let actions = x.machine.on(Event::Connected);
        self.perform(cx, exchange, actions);
        self.look_soon(cx, exchange);
    }
}
