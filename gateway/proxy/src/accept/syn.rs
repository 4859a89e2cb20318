//! Clients whose hello came in the SYN, and who may not be where they say (listeners with `syn_tls = "open"`).
//!
//! A SYN's sender is proven by the third packet, which only they can send who got the second. Until then such a client
//! is sent no more than three times what came from it, as in QUIC (RFC 9000 §8.1), so that nobody can use us to flood
//! somebody else; and it gets a signature only if that is cheap and the lane has not made too many of them for nothing.
//! Who must wait, waits for the third packet: the edge-triggered loop reports the change as writability.
//!
//! With cookies none of this is needed: the kernel has checked the cookie.

use crate::accept::admission::Admission;
use crate::client::state::ClientConnection;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::lane_state::LaneListener;
use sealane_lane::{Context, Key, Millis};
use sealane_sys::fastopen::{self, State};
use std::os::fd::AsFd;

/// RFC 9000 §8.1.
const AMPLIFICATION: usize = 3;
/// Signatures for unproven clients, per lane.
const SIGNATURES_PER_SECOND: u64 = 500;
/// How many of them may be made at once after a pause.
const SIGNATURES_AT_ONCE: u64 = 100;

/// A lane's signatures for clients that are not proven: a bucket that fills by time.
#[derive(Debug)]
pub(crate) struct Signatures {
    /// In thousandths.
    left: u64,
    filled: Millis,
}

impl Default for Signatures {
    fn default() -> Self {
        Self { left: SIGNATURES_AT_ONCE * 1000, filled: 0 }
    }
}

impl Signatures {
    /// Takes one, if there is one.
    pub fn take(&mut self, now: Millis) -> bool {
        let since = now.saturating_sub(self.filled);
        self.filled = now;
        self.left =
            self.left.saturating_add(since.saturating_mul(SIGNATURES_PER_SECOND)).min(SIGNATURES_AT_ONCE * 1000);
        let enough = self.left >= 1000;
        if enough {
            self.left -= 1000;
        }
        enough
    }
}

/// Whether the client's third packet has not come yet.
fn is_unproven(socket: impl AsFd) -> bool {
    // A socket that tells nothing is closing: the next read finds that out.
    fastopen::info(socket).is_ok_and(|i| i.state == State::SynReceived)
}

/// Whether a client has shown that it is where it says.
pub(crate) fn is_proven(client_conn: &mut ClientConnection) -> bool {
    if client_conn.is_unproven() && !is_unproven(client_conn.socket()) {
        client_conn.note_proven();
    }
    !client_conn.is_unproven()
}

/// A new connection to a listener with `syn_tls`: how much may be sent to its client, which is nothing yet where that is unproven. Counts hellos
/// in SYNs.
pub(crate) fn examine_syn(counters: &Counters, socket: impl AsFd, listener: &LaneListener) -> Option<usize> {
    let syn = listener.listener.syn_tls;
    let info = fastopen::info(socket).ok()?;
    if info.syn_data {
        counters.count(Count::SynHellos);
    }
    (syn.unproven && info.state == State::SynReceived).then_some(0)
}

/// The same for one that another lane has counted.
pub(crate) fn examine_handed_over(socket: impl AsFd, listener: &LaneListener) -> Option<usize> {
    (listener.listener.syn_tls.unproven && is_unproven(socket)).then_some(0)
}

/// A whole hello of a client that has been unproven so far: whether it is answered now.
pub(crate) fn may_answer(
    connections: &mut Connections,
    admission: &mut Admission,
    counters: &Counters,
    cx: &Context,
    key: Key,
    cheap: bool,
) -> bool {
    let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return false };
    if !is_unproven(client_conn.socket()) {
        client_conn.note_proven();
        return true;
    }
    if cheap && admission.may_sign_unproven(cx.now()) {
        client_conn.allow_answer(AMPLIFICATION);
        counters.count(Count::SynUnproven);
        return true;
    }
    client_conn.await_proof();
    counters.count(Count::SynDeferred);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_bounded_by_time() {
        let mut s = Signatures::default();
        let burst = (0..1000).filter(|_| s.take(0)).count() as u64;
        assert_eq!(burst, SIGNATURES_AT_ONCE);
        let next = (0..1000).filter(|_| s.take(100)).count() as u64;
        assert_eq!(next, SIGNATURES_PER_SECOND / 10);
        let late = (0..1000).filter(|_| s.take(1_000_000)).count() as u64;
        assert_eq!(late, SIGNATURES_AT_ONCE, "a pause saves up no more than that");
    }
}
