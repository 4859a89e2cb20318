//! The request's way up: what a client's side tells of it, and what that means for the server's.

use crate::exchange::FlowState;
use crate::exchange_loop::LINGER_BYTES;
use crate::forwarded;
use crate::scratch::READ_SIZE;
use crate::service::Proxy;
use crate::sides::{Later, ServerSide};
use sealane_http::ParseError;
use sealane_lane::{Context, Key};

impl Proxy {
    /// How many of `want` bytes of the request's body can be taken now. 0: none, and the source is resumed when that
    /// changes. `None` if there is no such exchange any more.
    #[inline]
    pub(crate) fn up_room(&mut self, cx: &Context, exchange: Key, want: usize) -> Option<usize> {
        let x = self.exchanges.get(exchange)?;
        let room = match (x.up.state, x.back) {
            // Nobody wants it: it is read and thrown away.
            (FlowState::Dropped, _) => return Some(want),
            (FlowState::Open, Some(back)) => self.server_credit(back, want),
            (FlowState::Open | FlowState::Waiting | FlowState::Done, _) => return Some(0),
        };
        if room == 0 {
            self.exchanges.get_mut(exchange)?.up.block(cx.now());
        }
        Some(room)
    }

    /// How many bytes of the request's body to read at once. 0: none now, and the source is resumed when that changes.
    pub(crate) fn up_read_size(&mut self, cx: &Context, exchange: Key) -> usize {
        let Some(x) = self.exchanges.get_mut(exchange) else { return 0 };
        match (x.up.state, x.back) {
            (FlowState::Open, Some(ServerSide::H1(_))) => self.up_room(cx, exchange, READ_SIZE).unwrap_or(0),
            (FlowState::Open, Some(_)) => x.up.next_read(),
            _ => READ_SIZE,
        }
    }

    /// A piece of the request's body, no larger than the room that there was. False if the exchange has been refused.
    pub(crate) fn up_data(&mut self, cx: &mut Context, exchange: Key, data: &[u8], last: bool) -> bool {
        let max_body = self.lane.snapshot.limits.max_body;
        let Some(x) = self.exchanges.get_mut(exchange) else { return false };
        if x.lingers.is_some() {
            x.lingered += data.len();
            x.up.progress.note(cx.now());
            if last || x.lingered > LINGER_BYTES {
                if last {
                    x.up.state = FlowState::Done;
                }
                self.response_done(cx, exchange);
                return false;
            }
            return true;
        }
        x.up.bytes += data.len() as u64;
        x.up.progress.note(cx.now());
        let (front, back, framing, raw) = (x.front, x.back, x.up.framing, x.up.raw);
        if x.up.bytes > max_body && !raw {
            self.refuse(cx, exchange, 413);
            self.client_wasted(cx, front.conn(), 1);
            return false;
        }
        if x.up.state == FlowState::Open
            && let Some(back) = back
        {
            self.server_data(cx, back, framing, data, last);
        }
        if last {
            self.up_end(cx, exchange);
        }
        true
    }

    /// The request has come whole; its trailers, if any, are in the flow. Of a tunnel: the client will send no more.
    pub(crate) fn up_end(&mut self, cx: &mut Context, exchange: Key) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        let open = x.up.state == FlowState::Open;
        x.up.state = FlowState::Done;
        if !x.up.trailers.is_empty() {
            forwarded::clean_trailers(&mut x.up.trailers, x.routed.route.as_ref());
        }
        if let (true, Some(back)) = (open, x.back) {
            self.server_end(exchange, back);
        }
        self.request_done(cx, exchange);
    }

    /// The request's body breaks the rules of its version.
    pub(crate) fn up_broken(&mut self, cx: &mut Context, exchange: Key, error: ParseError) {
        self.counters.parse_errors[error.index()].inc();
        let connection = self.exchanges.get(exchange).map(|x| x.front.conn());
        self.refuse(cx, exchange, error.status());
        if let Some(connection) = connection {
            self.client_wasted(cx, connection, 1);
        }
    }

    /// A server has taken the request's head and now takes its body.
    pub(crate) fn request_sent(&mut self, cx: &mut Context, exchange: Key, side: ServerSide) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        x.back = Some(side);
        x.sent = true;
        x.down.progress.begin(cx.now());
        if x.up.state == FlowState::Waiting {
            x.up.state = FlowState::Open;
            x.up.progress.begin(cx.now());
            self.later.push(Later::Client(exchange));
        }
        self.look_soon(cx, exchange);
    }

    /// The request has been passed on whole.
    fn request_done(&mut self, cx: &mut Context, exchange: Key) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        if x.answered && x.down.state == FlowState::Done {
            return self.response_done(cx, exchange);
        }
        x.down.progress.note(cx.now());
    }
}
