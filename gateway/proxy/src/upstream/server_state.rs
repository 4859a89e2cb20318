//! What control and the lanes tell each other about a server, without locks.
//!
//! Every word here has exactly one writer. Control writes a server's [`Standing`] and the lanes' grants, rarely; lanes
//! read them before they choose. Each lane writes its own [`LaneCell`], which only control reads. The state outlives
//! reloads: control keeps it by the upstream's name and the server's address.

use crate::Failure;
use crate::latency::UpstreamTimes;
use sealane_lane::counter::Counter;
use sealane_lane::sync::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Weights are published in hundredths, so that a server that starts slowly can have a part of its weight.
pub const WEIGHT_UNIT: u32 = 100;
const WEIGHT_MASK: u32 = (1 << 24) - 1;
const USABLE: u32 = 1 << 24;
const DRAINING: u32 = 1 << 25;

/// How a server stands, as lanes need to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// In units of 1/[`WEIGHT_UNIT`]; 0 gets no new clients.
    pub weight: u32,
    /// It passes its checks, is not ejected, and its name still resolves to it.
    pub usable: bool,
    /// It gets only what sticks to it.
    pub draining: bool,
}

impl Standing {
    /// Whether it may get a request that could go elsewhere.
    pub fn takes_new(self) -> bool {
        self.usable && !self.draining && self.weight > 0
    }

    fn to_word(self) -> u32 {
        let flag = |on: bool, bit: u32| if on { bit } else { 0 };
        self.weight.min(WEIGHT_MASK) | flag(self.usable, USABLE) | flag(self.draining, DRAINING)
    }

    fn from_word(word: u32) -> Self {
        Self { weight: word & WEIGHT_MASK, usable: word & USABLE != 0, draining: word & DRAINING != 0 }
    }
}

/// What one lane says of one server. Written by that lane alone; on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LaneCell {
    /// Requests (or relayed connections) that are under way.
    pub in_use: Counter,
    /// Requests that wait for this server's group to have room (told by the first server of the group alone).
    pub waiting: Counter,
    /// Requests started.
    pub requests: Counter,
    /// Those that ended well, as far as the server is concerned.
    pub successes: Counter,
    /// Connections that failed, broke or timed out.
    pub failures: Counter,
    /// Why the last one did.
    why: Counter,
    /// The grant that the lane has seen last, and goes by.
    seen: AtomicU32,
}

impl LaneCell {
    /// Notes a failure.
    pub(crate) fn failed(&self, why: Failure) {
        self.why.set(why.code());
        self.failures.inc();
    }

    /// Why the server failed the last time.
    pub fn last_failure(&self) -> Option<Failure> {
        Failure::from_code(self.why.value())
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Grant(AtomicU32);

/// The shared state of one server.
#[derive(Debug)]
pub struct ServerState {
    standing: AtomicU32,
    lanes: Box<[LaneCell]>,
    grants: Box<[Grant]>,
}

impl ServerState {
    /// For so many lanes; usable, with this weight (in whole units).
    pub fn new(lanes: usize, weight: u32) -> Self {
        let standing = Standing { weight: weight * WEIGHT_UNIT, usable: true, draining: false };
        Self {
            standing: AtomicU32::new(standing.to_word()),
            lanes: (0..lanes).map(|_| LaneCell::default()).collect(),
            grants: (0..lanes).map(|_| Grant::default()).collect(),
        }
    }

    /// How it stands.
    #[inline]
    pub fn standing(&self) -> Standing {
        Standing::from_word(self.standing.load(Ordering::Relaxed))
    }

    /// Says how it stands; only control may. True if that changed something. The group's [`GroupState::changed`] must
    /// be called after, for lanes to look.
    pub fn publish(&self, standing: Standing) -> bool {
        let word = standing.to_word();
        let changed = self.standing.load(Ordering::Relaxed) != word;
        if changed {
            self.standing.store(word, Ordering::Relaxed);
        }
        changed
    }

    /// A lane's own part.
    pub fn lane(&self, slot: usize) -> Option<&LaneCell> {
        self.lanes.get(slot)
    }

    /// All lanes' parts.
    pub fn lanes(&self) -> &[LaneCell] {
        &self.lanes
    }

    /// How many requests a lane may have under way, by the newest grant; it is noted as seen. Only that lane may call
    /// this: from here on it goes by no older one.
    #[inline]
    pub fn grant(&self, slot: usize) -> u32 {
        let (Some(grant), Some(cell)) = (self.grants.get(slot), self.lanes.get(slot)) else { return u32::MAX };
        let grant = grant.0.load(Ordering::Relaxed);
        // Release: a thread that sees this number also sees the count of requests under way as it was before.
        cell.seen.store(grant, Ordering::Release);
        grant
    }

    /// Grants a lane so many requests at a time; only control may.
    pub fn set_grant(&self, slot: usize, grant: u32) {
        if let Some(g) = self.grants.get(slot) {
            g.0.store(grant, Ordering::Relaxed);
        }
    }

    /// What a lane goes by: the grant that it has seen last, then what it has under way.
    pub fn seen(&self, slot: usize) -> (u32, u64) {
        let Some(cell) = self.lanes.get(slot) else { return (0, 0) };
        let seen = cell.seen.load(Ordering::Acquire);
        (seen, cell.in_use.value())
    }
}

/// Tells lanes that some server of a group stands differently. One per upstream.
pub struct GroupState {
    version: AtomicU64,
    /// How long connecting to its servers takes, and their answers.
    times: Arc<UpstreamTimes>,
    /// Wakes control.
    nudge: Option<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for GroupState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupState").field("version", &self.version()).finish()
    }
}

impl Default for GroupState {
    fn default() -> Self {
        Self { version: AtomicU64::new(0), times: Arc::new(UpstreamTimes::unbounded(0)), nudge: None }
    }
}

impl GroupState {
    /// One for which `nudge` makes control look at once, and whose times are recorded in `times`.
    pub fn new(times: Arc<UpstreamTimes>, nudge: impl Fn() + Send + Sync + 'static) -> Self {
        Self { version: AtomicU64::new(1), times, nudge: Some(Box::new(nudge)) }
    }

    /// How long connecting to its servers takes, and their answers.
    pub fn times(&self) -> &Arc<UpstreamTimes> {
        &self.times
    }

    /// Asks control to look now: a server has failed, or requests wait. For what is rare; it may take a lock.
    pub fn nudge(&self) {
        if let Some(nudge) = &self.nudge {
            nudge();
        }
    }

    /// Counts changes.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Something was published; only control may say so.
    pub fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_is_one_word() {
        let state = ServerState::new(2, 3);
        assert_eq!(state.standing(), Standing { weight: 300, usable: true, draining: false });
        for usable in [false, true] {
            for draining in [false, true] {
                for weight in [0, 1, 25_600] {
                    let standing = Standing { weight, usable, draining };
                    state.publish(standing);
                    assert_eq!(state.standing(), standing);
                    assert_eq!(standing.takes_new(), usable && !draining && weight > 0);
                    assert!(!state.publish(standing));
                }
            }
        }
    }

    #[test]
    fn what_a_lane_goes_by_is_seen() {
        let state = ServerState::new(2, 1);
        state.set_grant(1, 7);
        assert_eq!(state.seen(1), (0, 0));
        assert_eq!(state.grant(1), 7);
        assert_eq!(state.seen(1), (7, 0));
        assert_eq!(state.grant(2), u32::MAX);
    }
}
