//! HTTP/2 (RFC 9113) on the `h2` crate, which is driven by hand: no runtime, no tasks. One adapter towards clients
//! ([`front`], [`front_sink`]), one towards upstreams ([`back`]); `sides` says what adapters are.
//!
//! `h2` owns framing, HPACK, the streams' states and flow control. Ours are: what a head may be (`sealane_http::list`),
//! what a client may cost ([`guard`]), how many small frames wait ([`backlog`]), who gets the wire ([`front_sink`], [`priority`]), and all time.

pub(crate) mod back;
mod backlog;
mod frames;
pub(crate) mod front;
mod front_sink;
pub(crate) mod guard;
mod message;
mod pipe;
pub(crate) mod priority;
mod trailers;
mod wake;
pub(crate) mod websocket;
mod window;

use crate::conn::Conn;
use crate::service::Proxy;
use sealane_lane::Context;

impl Proxy {
    /// Looks at the streams, of whichever connection, that `h2` has woken.
    pub(crate) fn h2_woken(&mut self, cx: &mut Context) {
        while let Some((key, stream)) = wake::next_woken() {
            match self.conns.get(key) {
                Some(Conn::Front(_)) => self.h2_client_woken(cx, key, stream),
                Some(Conn::Back(_)) => self.h2_server_woken(cx, key, stream),
                Some(Conn::Quic(_)) | None => {}
            }
        }
    }
}
