//! Requests that wait while all servers of their group are full. `group` has the queues themselves, `pools` which of them are in use.

use crate::counters::Count;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::expiry::has_waited_enough;
use crate::exchange::response::no_server;
use crate::flush::flush_marked;
use crate::service::Proxy;
use crate::upstream::connection::dispatch_request;
use crate::upstream::pools::UpstreamPools;
use sealane_lane::Context;

/// The timer of the queues has fired; they are looked at at the end of the turn.
pub(crate) fn queues_timeout(exchanges: &Exchanges, pools: &mut UpstreamPools, cx: &mut Context) {
    pools.timeout(cx, |upstream| exchanges.get(upstream.first_queued()?)?.routed().waits_until());
}

/// The end of a turn, after all that may have freed a place: queued requests that have got room go on, and those that have
/// waited for long enough are refused. Whether there were any.
pub(crate) fn serve_queues(proxy: &mut Proxy, cx: &mut Context) -> bool {
    let now = cx.now();
    let mut served = false;
    for upstream in proxy.pools.take_queues() {
        let mut passed_over = 0;
        // One round, in which those that stay keep their order.
        for _ in 0..upstream.queue_len() {
            let Some(key) = upstream.unqueue_first() else { break };
            let Proxy { connections, exchanges, settings, .. } = proxy;
            let Some(x) = exchanges.get_mut(key) else { continue };
            let preference = x.routed().balancing();
            // Room first: who has waited for long enough and has got it is not refused.
            if upstream.balancer.may_have_room(preference) {
                dispatch_request(proxy, cx, key);
            } else if has_waited_enough(connections, settings, now, x) {
                no_server(proxy, cx, key, Count::QueueTimeouts);
            } else if passed_over == 0 && preference.takes_any() {
                // There is no room for any of them.
                upstream.requeue_first(key);
                break;
            } else {
                upstream.requeue_last(key);
                passed_over += 1;
                continue;
            }
            served = true;
            flush_marked(proxy, cx);
        }
        let left = upstream.queue_len();
        upstream.tell_waiting(left);
        if left > 0 {
            proxy.pools.note_queue(&upstream);
        }
    }
    served
}
