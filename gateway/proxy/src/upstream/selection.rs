//! Selects the server for a request. `balance` has the algorithms; `server_state` and `limits` have what lanes share.

use crate::counters::Count;
use crate::exchange::executor::refuse;
use crate::service::Proxy;
use crate::upstream::balance::Pick;
use crate::upstream::group::LaneUpstream;
use crate::upstream::queue::wait_for_room;
use sealane_lane::{Context, Key};
use std::rc::Rc;

/// Chooses the server for a try. `None`: the request waits for room, or has been answered.
#[inline]
pub(crate) fn select_server(
    proxy: &mut Proxy,
    cx: &mut Context,
    exchange: Key,
    upstream: &Rc<LaneUpstream>,
) -> Option<usize> {
    let x = proxy.exchanges.get_mut(exchange)?;
    // What it had at the server before is over.
    x.routed_mut().leave_server();
    if x.routed().waits_until().is_none() && upstream.makes_wait() {
        // Nobody overtakes those who wait. The queue is served at the end of the turn.
        wait_for_room(proxy, cx, exchange, upstream);
        return None;
    }
    match upstream.balancer.pick(x.routed().balancing()) {
        Pick::Server(server) => {
            x.begin_try(server, upstream.balancer.servers()[server].lease(), cx.now());
            Some(server)
        }
        Pick::Full => {
            wait_for_room(proxy, cx, exchange, upstream);
            None
        }
        Pick::None => {
            proxy.counters.count(Count::NoServer);
            refuse(proxy, cx, exchange, 503);
            None
        }
    }
}
