//! What connections hold of the lane's memory: a budget for each, and who gives memory back when it is short.

use crate::accept::admission::Admission;
use crate::client::connection::client_gone;
use crate::client::h3_connection::h3_client_gone;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Counters;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::streams::ClientStream;
use crate::flush::flush_marked;
use crate::h3::connection::Phase;
use crate::mirrors::free_copies;
use crate::service::Proxy;
use crate::settings::LaneSettings;
use sealane_http::h3::Code;
use sealane_lane::{Context, Key};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Bytes of responses that wait for room in one connection's streams, from which on little is read for any of them.
pub(crate) const BUFFER_BUDGET: usize = 128 * 1024;
/// And so much is read then.
const BEYOND_BUDGET: usize = 1024;
/// Connections that hold less are never reset for it.
const WORTH_IT: usize = 64 * 1024;
/// Bytes that are given back at a time. Control says so again while memory is short.
const AT_A_TIME: usize = 4 << 20;

/// Notes how much of an exchange's response waits with the upstream's connection.
#[inline]
pub(crate) fn note_held(connections: &mut Connections, exchanges: &mut Exchanges, exchange: Key, held: usize) {
    let Some(x) = exchanges.get_mut(exchange) else { return };
    if x.held == held {
        return;
    }
    let before = std::mem::replace(&mut x.held, held);
    if let Some(client) = connections.get_mut(x.client_stream.conn()).and_then(Conn::client) {
        client.held = client.held.saturating_sub(before) + held;
    }
}

/// How many bytes to read for a stream, where so many would be read within the connection's budget.
pub(crate) fn read_within_budget(connections: &mut Connections, side: ClientStream, size: usize) -> usize {
    let held = connections.get_mut(side.conn()).and_then(Conn::client).map_or(0, |c| c.held);
    if held < BUFFER_BUDGET { size } else { size.min(BEYOND_BUDGET) }
}

/// Memory is short: copies for mirrors are given up, and if that is not enough, the connections that hold the most of it are reset.
pub(crate) fn free_memory(proxy: &mut Proxy, cx: &mut Context) {
    let mut freed = free_copies(proxy, cx, AT_A_TIME);
    let keys: Vec<Key> = proxy.connections.keys();
    let streams = held_in_streams(&mut proxy.connections, &proxy.exchanges, &keys);
    let mut large: Vec<(usize, Key)> = keys
        .into_iter()
        .map(|key| (memory_held(&proxy.connections, key) + streams.get(&key).copied().unwrap_or(0), key))
        .filter(|(held, _)| *held >= WORTH_IT)
        .collect();
    large.sort_unstable_by_key(|(held, _)| Reverse(*held));
    for (held, key) in large {
        if freed >= AT_A_TIME {
            break;
        }
        freed += held;
        proxy.counters.memory_resets.inc();
        match proxy.connections.get_mut(key) {
            Some(Conn::Client(_)) => client_gone(proxy, cx, key),
            Some(Conn::Quic(q)) if q.phase != Phase::Closed => {
                q.close(cx.instant(), Code::ExcessiveLoad, "memory is short");
                h3_client_gone(proxy, cx, key);
            }
            _ => {}
        }
    }
    flush_marked(proxy, cx);
}

/// Bytes of responses that wait in HTTP/2 connections to upstreams, by the connection of the client that has no room for them.
fn held_in_streams(connections: &mut Connections, exchanges: &Exchanges, keys: &[Key]) -> HashMap<Key, usize> {
    let mut held = HashMap::new();
    for key in keys {
        let Some(h2) = connections.upstream(*key).and_then(|b| b.h2.as_mut()) else { continue };
        for (exchange, bytes) in h2.held() {
            if let Some(x) = exchanges.get(exchange) {
                *held.entry(x.client_stream.conn()).or_default() += bytes;
            }
        }
    }
    held
}

/// Bytes that a client's connection holds, with what was read for it at upstreams.
fn memory_held(connections: &Connections, key: Key) -> usize {
    match connections.get(key) {
        Some(Conn::Client(f)) => {
            let frames = f.protocol.h2().map_or(0, |h| h.holds());
            f.client.held + f.transport.held() + f.inbuf.capacity() + frames
        }
        Some(Conn::Quic(q)) => q.client_ref().map_or(0, |c| c.held + q.waiting),
        Some(Conn::Upstream(_) | Conn::Mirror(_)) | None => 0,
    }
}

/// Counts a connection among those of its client. False if it has too many.
pub(crate) fn count_in(
    connections: &mut Connections,
    admission: &Admission,
    settings: &LaneSettings,
    counters: &Counters,
    key: Key,
) -> bool {
    let Some(client) = connections.get_mut(key).and_then(Conn::client) else { return true };
    admission.count_in(client, settings, counters)
}
