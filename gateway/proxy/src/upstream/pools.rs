//! What a lane does for its groups of servers beside a single request: the groups for which requests wait, the grants that it
//! goes by, and what is known of the paths to servers. Each group ([`LaneUpstream`]) has its own connections.

use crate::lane_state::LaneSnapshot;
use crate::upstream::group::LaneUpstream;
use crate::upstream::syn::DESTINATIONS;
use sealane_dial::{Memory, Verdict};
use sealane_lane::{Context, Deadline, Millis};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Wakes the lane for its queues.
pub(crate) const QUEUES_TIMER: u64 = (1 << 63) | (1 << 60);

pub(crate) struct UpstreamPools {
    /// Groups for which requests wait.
    queued: Vec<Rc<LaneUpstream>>,
    /// Groups whose servers have limits, and the version of their state that has been acknowledged.
    limited: Vec<(Rc<LaneUpstream>, u64)>,
    /// When the first request has waited for long enough.
    timer: Deadline,
    /// What is known of the paths to upstreams, for hellos in SYNs.
    dialled: Memory,
}

impl Default for UpstreamPools {
    fn default() -> Self {
        Self { queued: Vec::new(), limited: Vec::new(), timer: Deadline::default(), dialled: Memory::new(DESTINATIONS) }
    }
}

impl UpstreamPools {
    /// Takes a new snapshot in.
    pub fn refresh(&mut self, lane: &LaneSnapshot) {
        let limited = lane.upstreams.iter().filter(|u| u.upstream.max_connections.is_some());
        self.limited = limited.map(|u| (u.clone(), u64::MAX)).collect();
    }

    /// Tells control that this lane goes by the newest grants.
    #[inline]
    pub fn acknowledge(&mut self) {
        for (upstream, seen) in &mut self.limited {
            let version = upstream.upstream.group.version();
            if version != *seen {
                *seen = version;
                upstream.balancer.servers().iter().for_each(|s| s.acknowledge());
            }
        }
    }

    /// Schedules a group's queue: it is served in each turn, and at this time at the latest.
    pub fn schedule_queue(&mut self, cx: &mut Context, upstream: &Rc<LaneUpstream>, until: Millis) {
        self.note_queue(upstream);
        self.timer.set_no_later(cx, QUEUES_TIMER, until);
    }

    /// Notes that requests still wait for a group.
    pub fn note_queue(&mut self, upstream: &Rc<LaneUpstream>) {
        if !self.queued.iter().any(|u| Rc::ptr_eq(u, upstream)) {
            self.queued.push(upstream.clone());
        }
    }

    /// Whether requests wait for any group.
    #[inline]
    pub fn has_queues(&self) -> bool {
        !self.queued.is_empty()
    }

    /// The groups for which requests wait; those for which some go on waiting are noted again.
    pub fn take_queues(&mut self) -> Vec<Rc<LaneUpstream>> {
        std::mem::take(&mut self.queued)
    }

    /// The timer of the queues has fired. They are looked at at the end of each turn, so all that is left is to set it for the
    /// next: `waits_until` tells until when the first request of a queue waits.
    pub fn timeout(&mut self, cx: &mut Context, waits_until: impl Fn(&LaneUpstream) -> Option<Millis>) {
        if !self.timer.fired(cx, QUEUES_TIMER) {
            return;
        }
        if let Some(at) = self.queued.iter().filter_map(|u| waits_until(u)).min() {
            // Those that are due are answered in this turn.
            let at = at.max(cx.now() + 1);
            self.timer.set_no_later(cx, QUEUES_TIMER, at);
        }
    }

    /// Whether a hello in a SYN may be tried towards an address now.
    pub fn is_paused(&mut self, address: IpAddr, now: Instant) -> bool {
        self.dialled.verdict(address, now) == Verdict::Paused
    }

    /// How long the embedded connection is given before the plain one is begun.
    pub fn hedge_delay(&mut self, address: IpAddr) -> Duration {
        self.dialled.hedge_delay(address)
    }

    /// Notes what a connection has shown of its path. `embedded`: data in SYNs pass, or do not.
    pub fn note_path(&mut self, address: IpAddr, embedded: Option<bool>, rtt: Option<Duration>, now: Instant) {
        match embedded {
            Some(true) => self.dialled.note_success(address, now),
            Some(false) => self.dialled.note_failure(address, now),
            None => {}
        }
        if let Some(rtt) = rtt {
            self.dialled.note_rtt(address, rtt, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{group, limits, settings, snapshot, upstream};

    #[test]
    fn a_group_is_minded_once() {
        let (settings, _published) = settings(snapshot(limits(), vec![upstream(1)]));
        let (mut pools, mut cx) = (UpstreamPools::default(), Context::new().unwrap());
        let group = group(settings.lane());
        assert!(!pools.has_queues());
        pools.schedule_queue(&mut cx, &group, 1000);
        pools.schedule_queue(&mut cx, &group, 2000);
        assert_eq!(cx.timers.len(), 1, "it wakes for the first");
        assert_eq!(pools.take_queues().len(), 1);
        assert!(!pools.has_queues());
        pools.note_queue(&group);
        assert!(pools.has_queues());
    }

    #[test]
    fn grants_are_acknowledged_when_they_change() {
        let mut config = upstream(1);
        config.max_connections = Some(4);
        let (settings, _published) = settings(snapshot(limits(), vec![config]));
        let mut pools = UpstreamPools::default();
        pools.refresh(settings.lane());
        let config = &settings.snapshot().upstreams[0];
        let state = &config.servers[0].state;
        state.set_grant(0, 3);
        assert_ne!(state.seen(0).0, 3);
        pools.acknowledge();
        assert_eq!(state.seen(0).0, 3);
        state.set_grant(0, 1);
        pools.acknowledge();
        assert_eq!(state.seen(0).0, 3, "nobody has said that something has changed");
        config.group.changed();
        pools.acknowledge();
        assert_eq!(state.seen(0).0, 1);
    }

    #[test]
    fn a_path_that_loses_hellos_is_left_alone() {
        let (mut pools, now) = (UpstreamPools::default(), Instant::now());
        let address = IpAddr::from([192, 0, 2, 1]);
        assert!(!pools.is_paused(address, now));
        (0..10).for_each(|_| pools.note_path(address, Some(false), None, now));
        assert!(pools.is_paused(address, now));
        pools.note_path(address, Some(true), None, now);
        assert!(!pools.is_paused(address, now));
    }
}
