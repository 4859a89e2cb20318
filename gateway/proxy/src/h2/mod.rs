//! HTTP/2 (RFC 9113) on the `h2` crate, which is driven by hand: no runtime, no tasks. One adapter towards clients
//! (`client::h2`, `client::h2_connection`, `client::h2_responses`), one towards upstreams (`upstream::h2`,
//! `upstream::h2_connection`); `exchange::streams` says what adapters are.
//!
//! `h2` owns framing, HPACK, the streams' states and flow control. Ours are: what a head may be (`sealane_http::list`),
//! what a client may cost ([`guard`]), how many small frames wait ([`backlog`]), who gets the transport
//! (`client::h2_responses`, [`priority`]), and all time.

pub(crate) mod backlog;
pub(crate) mod frames;
pub(crate) mod guard;
pub(crate) mod message;
pub(crate) mod pipe;
pub(crate) mod sink;
pub(crate) mod trailers;
pub(crate) mod wake;
pub(crate) mod window;

use crate::client::h2::h2_client_woken;
use crate::conn::Conn;
use crate::service::Proxy;
use crate::upstream::h2::h2_server_woken;
use sealane_lane::Context;

/// What `h2` may hold of a body that the peer's window does not let out.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;

/// Looks at the streams, of whichever connection, that `h2` has woken.
pub(crate) fn h2_woken(proxy: &mut Proxy, cx: &mut Context) {
    while let Some((key, stream)) = wake::next_woken() {
        match proxy.connections.get(key) {
            Some(Conn::Client(_)) => h2_client_woken(proxy, cx, key, stream),
            Some(Conn::Upstream(_)) => h2_server_woken(proxy, cx, key, stream),
            Some(Conn::Quic(_) | Conn::Mirror(_) | Conn::Udp(_)) | None => {}
        }
    }
}
