//! What connections hold of the lane's memory: a budget for each, and who gives memory back when it is short.
//!
//! | servers speak | what waits for a client | bound for one connection of a client |
//! |---|---|---|
//! | HTTP/1.1 | bytes that were read | [`BUFFER_BUDGET`], then 1 KiB for each stream |
//! | HTTP/2, HTTP/3 | what servers may send ahead (their windows) | [`WINDOW_BUDGET`], then [`NARROW_WINDOW`] for each stream |
//!
//! What has been handed to the QUIC connection of a client is within another bound, which grows with what the client acknowledges
//! (`quic::connection`). What clients send is within the windows of HTTP/2 and HTTP/3. Both count when memory is short.
//!
//! An encoder of a compressed response (`compression`) is bounded by itself, and counts where connections are reset for what they hold.
//!
//! A window cannot be taken back, so it counts from the moment when the request is sent, whether it is used or not. `h2` and
//! quinn-proto have one size of windows for all streams of a connection: there are connections with wide and with narrow windows.

use crate::client::connection::client_gone;
use crate::client::h3_connection::h3_client_gone;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::streams::ClientStream;
use crate::flush::flush_marked;
use crate::mirrors::free_copies;
use crate::service::Proxy;
use sealane_http::h3::Code;
use sealane_lane::{Context, Key};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Bytes of responses that wait for room in one connection's streams, from which on little is read for any of them.
pub(crate) const BUFFER_BUDGET: usize = 128 * 1024;
/// And so much is read then.
const BEYOND_BUDGET: usize = 1024;
/// Bytes that servers may send ahead on all wide streams of one client's connection together.
pub(crate) const WINDOW_BUDGET: usize = 2 << 20;
/// Bytes that a server may send ahead on a stream beyond that budget.
pub(crate) const NARROW_WINDOW: u32 = 32 * 1024;
/// Connections that hold less are never reset for it.
const WORTH_IT: usize = 64 * 1024;
/// Bytes that are given back at a time. Control says so again while memory is short.
const AT_A_TIME: usize = 4 << 20;

/// How far a server may send ahead on the streams of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Window {
    /// As far as its version of HTTP has it.
    #[default]
    Wide,
    /// [`NARROW_WINDOW`].
    Narrow,
}

impl Window {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Wide, Self::Narrow];

    /// In bytes; `wide`: those of a wide one.
    pub fn bytes(self, wide: u32) -> u32 {
        match self {
            Self::Wide => wide,
            Self::Narrow => NARROW_WINDOW,
        }
    }
}

/// What a response holds of its client's budgets, or all responses of a client's connection together: bytes that were read, and
/// windows. In one word, so that it is one comparison for a response that holds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held(u64);

impl Held {
    const BYTES: u64 = u32::MAX as u64;

    /// Bytes that were read and wait with the upstream's connection: far less than 4 GiB.
    #[inline]
    pub const fn of_bytes(bytes: usize) -> Self {
        Self(bytes as u64)
    }

    /// Bytes that the server may send ahead.
    pub const fn of_window(bytes: u32) -> Self {
        Self((bytes as u64) << 32)
    }

    pub const fn bytes(self) -> usize {
        (self.0 & Self::BYTES) as usize
    }

    pub const fn windows(self) -> usize {
        (self.0 >> 32) as usize
    }

    /// One of the responses holds `now` what was `before`.
    pub fn change(&mut self, before: Self, now: Self) {
        let bytes = (self.bytes().saturating_sub(before.bytes()) + now.bytes()) as u64;
        let windows = (self.windows().saturating_sub(before.windows()) + now.windows()) as u64;
        *self = Self((windows << 32) | (bytes & Self::BYTES));
    }
}

/// How many bytes to read for a stream, where so many would be read within the connection's budget.
pub(crate) fn read_within_budget(connections: &mut Connections, side: ClientStream, size: usize) -> usize {
    let held = connections.get_mut(side.conn()).and_then(Conn::client).map_or(0, |c| c.held().bytes());
    if held < BUFFER_BUDGET { size } else { size.min(BEYOND_BUDGET) }
}

/// How far the server may send ahead for a request that goes over HTTP/2 or HTTP/3, where a wide window has so many bytes. A wide
/// window counts against the budget of the client's connection until the request is over or is sent again.
pub(crate) fn grant_window(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    exchange: Key,
    wide: u32,
) -> Window {
    exchanges.note_held(connections, exchange, Held::default());
    let Some(x) = exchanges.get(exchange) else { return Window::Narrow };
    let granted =
        connections.get_mut(x.client_stream().conn()).and_then(Conn::client).map_or(0, |c| c.held().windows());
    if granted + wide as usize > WINDOW_BUDGET {
        return Window::Narrow;
    }
    exchanges.note_held(connections, exchange, Held::of_window(wide));
    Window::Wide
}

/// Memory is short: copies for mirrors are given up, and if that is not enough, the connections that hold the most of it are reset.
pub(crate) fn free_memory(proxy: &mut Proxy, cx: &mut Context) {
    let mut freed = free_copies(proxy, cx, AT_A_TIME) + proxy.exchanges.compressors().free_idle();
    let keys: Vec<Key> = proxy.connections.keys();
    let streams = held_in_streams(&mut proxy.connections, &proxy.exchanges, &keys);
    let mut large: Vec<(usize, Key)> = keys
        .into_iter()
        .map(|key| (memory_held(&mut proxy.connections, key) + streams.get(&key).copied().unwrap_or(0), key))
        .filter(|(held, _)| *held >= WORTH_IT)
        .collect();
    large.sort_unstable_by_key(|(held, _)| Reverse(*held));
    for (held, key) in large {
        if freed >= AT_A_TIME {
            break;
        }
        freed += held;
        proxy.counters.count(Count::MemoryResets);
        match proxy.connections.get_mut(key) {
            Some(Conn::Client(_)) => client_gone(proxy, cx, key),
            Some(Conn::Quic(q)) if !q.is_closed() => {
                q.close(cx.instant(), Code::ExcessiveLoad, "memory is short");
                h3_client_gone(proxy, cx, key);
            }
            _ => {}
        }
    }
    flush_marked(proxy, cx);
}

/// Bytes of responses that wait in HTTP/2 and HTTP/3 connections to upstreams, by the connection of the client that has no room
/// for them; and what compression holds.
fn held_in_streams(connections: &mut Connections, exchanges: &Exchanges, keys: &[Key]) -> HashMap<Key, usize> {
    let mut held: HashMap<Key, usize> = HashMap::new();
    let mut note = |exchange, bytes| {
        if let Some(x) = exchanges.get(exchange) {
            *held.entry(x.client_stream().conn()).or_default() += bytes;
        }
    };
    for key in keys {
        match connections.get_mut(*key) {
            Some(Conn::Upstream(upstream_conn)) => {
                let h2 = upstream_conn.h2_mut().into_iter().flat_map(|h2| h2.held());
                h2.for_each(|(exchange, bytes)| note(exchange, bytes));
            }
            Some(Conn::Quic(q)) if !q.is_client() => {
                let waits = |exchange: Key| exchanges.get(exchange).is_some_and(|x| x.response_body().is_blocked());
                let h3 = q.may_hold().filter(|(exchange, _)| waits(*exchange));
                h3.for_each(|(exchange, bytes)| note(exchange, bytes));
            }
            Some(Conn::Client(_) | Conn::Quic(_) | Conn::Mirror(_) | Conn::Udp(_)) | None => {}
        }
    }
    for exchange in exchanges.keys() {
        if let Some(encoding) = exchanges.get(exchange).and_then(|x| x.response_body().encoding()) {
            note(exchange, encoding.memory());
        }
    }
    held
}

/// Bytes that a client's connection holds, with what was read for it at upstreams.
fn memory_held(connections: &mut Connections, key: Key) -> usize {
    match connections.get_mut(key) {
        Some(Conn::Client(f)) => f.holds(),
        Some(Conn::Quic(q)) => q.holds(),
        Some(Conn::Upstream(_) | Conn::Mirror(_) | Conn::Udp(_)) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_windows_count_apart() {
        let mut all = Held::default();
        all.change(Held::default(), Held::of_bytes(5000));
        all.change(Held::default(), Held::of_window(256 << 10));
        all.change(Held::default(), Held::of_window(512 << 10));
        assert_eq!((all.bytes(), all.windows()), (5000, 768 << 10));
        all.change(Held::of_bytes(5000), Held::of_bytes(16));
        all.change(Held::of_window(256 << 10), Held::of_bytes(4));
        assert_eq!((all.bytes(), all.windows()), (20, 512 << 10));
        // What was never counted takes nothing from the others.
        all.change(Held::of_bytes(100), Held::default());
        assert_eq!((all.bytes(), all.windows()), (0, 512 << 10));
        all.change(Held::of_window(512 << 10), Held::default());
        assert_eq!(all, Held::default());
    }
}
