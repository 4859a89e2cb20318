//! The request's way up: what a client's side tells of it, and what that means for the server's.

use crate::exchange::FlowState;
use crate::exchange_loop::LINGER_BYTES;
use crate::service::Proxy;
use crate::sides::{Later, ServerSide, Wait};
use sealane_http::ParseError;
use sealane_lane::{Context, Key};

impl Proxy {
    /// How many of `want` bytes of the request's body can be taken now. 0: none, and the source is resumed when that
    /// changes. `None` if there is no such exchange any more.
    #[inline]
    pub(crate) fn up_room(&mut self, exchange: Key, want: usize) -> Option<usize> {
        let x = self.exchanges.get(exchange)?;
        let room = match (x.up.state, x.back) {
            // Nobody wants it: it is read and thrown away.
            (FlowState::Dropped, _) => return Some(want),
            (FlowState::Open, Some(back)) => self.server_credit(back, want),
            (FlowState::Open | FlowState::Waiting | FlowState::Done, _) => return Some(0),
        };
        if room == 0 {
            self.exchanges.get_mut(exchange)?.up.blocked = true;
        }
        Some(room)
    }

    /// A piece of the request's body, no larger than the room that there was. False if the exchange has been refused.
    pub(crate) fn up_data(&mut self, cx: &mut Context, exchange: Key, data: &[u8], last: bool) -> bool {
        let max_body = self.lane.snapshot.limits.max_body;
        let Some(x) = self.exchanges.get_mut(exchange) else { return false };
        if x.lingers.is_some() {
            x.lingered += data.len();
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
        let (front, back, framing, raw) = (x.front, x.back, x.up.framing, x.up.raw);
        if x.up.bytes > max_body && !raw {
            self.refuse(cx, exchange, 413);
            return false;
        }
        if x.up.state == FlowState::Open
            && let Some(back) = back
        {
            self.server_data(cx, back, framing, data, last);
        }
        if !raw {
            self.client_alive(cx, front);
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
        if let (true, Some(back)) = (open, x.back) {
            self.server_end(exchange, back);
        }
        self.request_done(cx, exchange);
    }

    /// The request's body breaks the rules of its version.
    pub(crate) fn up_broken(&mut self, cx: &mut Context, exchange: Key, error: ParseError) {
        self.counters.parse_errors[error.index()].inc();
        self.refuse(cx, exchange, error.status());
    }

    /// A server has taken the request's head and now takes its body.
    pub(crate) fn request_sent(&mut self, cx: &mut Context, exchange: Key, side: ServerSide) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        x.back = Some(side);
        let wait = if x.body.is_empty() { Wait::FirstByte } else { Wait::Idle };
        if x.up.state == FlowState::Waiting {
            x.up.state = FlowState::Open;
            self.later.push(Later::Client(exchange));
        }
        self.server_wait(cx, side, wait);
    }

    /// The request has been passed on whole.
    fn request_done(&mut self, cx: &mut Context, exchange: Key) {
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        if x.answered && x.down.state == FlowState::Done {
            return self.response_done(cx, exchange);
        }
        if let (false, Some(back)) = (x.up.raw, x.back) {
            self.server_wait(cx, back, Wait::FirstByte);
        }
    }
}
