//! Requests that a client wastes: called off before they were served, or broken off by what it sends. Each costs the
//! gateway and the upstream work (a connection over HTTP/1.1), and nothing limits how many a client makes one after the
//! other, since a stream that is reset no longer counts as open. One budget for HTTP/2 and HTTP/3 ends the connection of
//! a client that does nothing else ("rapid reset", CVE-2023-44487, and "made you reset", CVE-2025-8671).
//!
//! | what happens | cost |
//! |---|---|
//! | the client resets or stops a request | 1 |
//! | the same, [`WANTED_AFTER`] after the request began | 0: open streams are limited |
//! | the same, during a response from a shared connection to the upstream | 0: no connection is lost |
//! | what the client sends breaks a rule, so that the stream is reset or the request fails halfway | 1 |
//! | a request is served to its end | -1 |

use crate::exchange::Exchange;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::streams::{UpstreamStream, end_for_flood};
use crate::service::Proxy;
use sealane_lane::{Context, Key, Millis};

/// Most requests that may be wasted at once: somebody leaves a page full of images, and the next one too.
pub(crate) const BURST: u32 = 256;
/// Requests that may be wasted per second.
const PER_SECOND: u64 = 32;
/// A client that has waited this long for its response wants it: its reset wastes nothing.
const WANTED_AFTER: Millis = 1000;

/// The client sends too much of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flood;

/// What is left to one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WasteBudget {
    left: u32,
    filled: Millis,
}

impl Default for WasteBudget {
    fn default() -> Self {
        Self { left: BURST, filled: 0 }
    }
}

impl WasteBudget {
    /// A request has been served to its end.
    #[inline]
    pub fn served(&mut self) {
        self.left = (self.left + 1).min(BURST);
    }

    /// So many requests have been wasted.
    pub fn wasted(&mut self, requests: u32, now: Millis) -> Result<(), Flood> {
        let grown = now.saturating_sub(self.filled).saturating_mul(PER_SECOND) / 1000;
        // What is too little to count stays to be counted later.
        if grown > 0 {
            self.filled = now;
        }
        self.left = u64::from(self.left).saturating_add(grown).min(u64::from(BURST)) as u32;
        self.left = self.left.checked_sub(requests).ok_or(Flood)?;
        Ok(())
    }
}

/// Whether a request that its client calls off now is wasted.
fn is_wasted(x: &Exchange, now: Millis) -> bool {
    let shared = matches!(x.upstream_stream, Some(UpstreamStream::H2(..) | UpstreamStream::H3(..)));
    let waited = now.saturating_sub(x.times.started / 1000) >= WANTED_AFTER;
    !(waited || x.machine.is_answered() && shared || x.drains_since().is_some())
}

/// The client calls a request off. Returns whether that wastes it; the caller ends the exchange, and then reports
/// it to [`client_wasted`].
pub(crate) fn calling_off_wastes(exchanges: &Exchanges, cx: &Context, exchange: Key) -> bool {
    exchanges.get(exchange).is_some_and(|x| is_wasted(x, cx.now()))
}

/// A client has wasted requests; beyond its budget its connection ends.
pub(crate) fn client_wasted(proxy: &mut Proxy, cx: &mut Context, connection: Key, requests: u32) {
    let Some(client) = proxy.connections.get_mut(connection).and_then(|c| c.client()) else { return };
    if client.note_wasted(requests, cx.now()).is_err() {
        end_for_flood(proxy, cx, connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_some_per_second_and_one_for_each_that_was_served() {
        let mut budget = WasteBudget::default();
        let waste = |budget: &mut WasteBudget, now| (0..10_000).take_while(|_| budget.wasted(1, now).is_ok()).count();
        assert_eq!(waste(&mut budget, 0), 256);
        assert_eq!(waste(&mut budget, 10), 0);
        assert_eq!(waste(&mut budget, 1010), 32);
        for _ in 0..1000 {
            budget.served();
            budget.wasted(1, 1010).unwrap();
        }
        assert_eq!(budget.wasted(1, 1010), Err(Flood));
    }
}
