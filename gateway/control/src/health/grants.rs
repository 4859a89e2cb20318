//! How many requests each lane may have under way at a server that takes no more than so many.
//!
//! The limit holds exactly, over all lanes, at every moment: what is granted is never more than the limit less what a
//! lane may still be using under an older grant. A lane that has been granted less than before keeps what it has under
//! way until it has seen the new grant and has come down to it. What is paid for that: room that one lane gives up is
//! of no use to any until that lane's next turn (it is woken for it), and a few requests may wait that long beside
//! free room.

use sealane_proxy::server_state::ServerState;

/// One server's grants, as control knows them.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// What each lane has been granted last.
    granted: Vec<u32>,
    /// The most that each lane may still go by.
    outstanding: Vec<u32>,
}

/// What came of dealing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dealt {
    /// Lanes have to look.
    pub changed: bool,
    /// Some lane has not got what it is to have: deal again soon.
    pub unfinished: bool,
}

impl Grants {
    /// Deals a limit out by what lanes have under way and how many requests wait in each.
    #[expect(clippy::needless_range_loop, reason = "a lane is an index into several lists at once")]
    pub fn deal(&mut self, limit: u32, state: &ServerState, waiting: &[u64]) -> Dealt {
        let lanes = state.lanes().len();
        if lanes == 0 {
            return Dealt::default();
        }
        self.granted.resize(lanes, 0);
        self.outstanding.resize(lanes, 0);
        let mut used = vec![0; lanes];
        for lane in 0..lanes {
            let (seen, in_use) = state.seen(lane);
            used[lane] = u32::try_from(in_use).unwrap_or(u32::MAX);
            if seen == self.granted[lane] {
                self.outstanding[lane] = seen;
            }
        }
        // Some lane is at its limit, or nothing is dealt out yet, or the limit is another.
        let sum: u64 = self.granted.iter().map(|g| u64::from(*g)).sum();
        let starving = (0..lanes).any(|l| waiting.get(l).is_some_and(|w| *w > 0) || used[l] >= self.granted[l]);
        if sum == u64::from(limit) && !starving {
            return Dealt::default();
        }
        let demand: Vec<u64> = (0..lanes).map(|l| u64::from(used[l]) + waiting.get(l).copied().unwrap_or(0)).collect();
        let target = share(limit, &demand);
        let mut out = Dealt::default();
        for lane in 0..lanes {
            if target[lane] < self.granted[lane] {
                self.grant(state, lane, target[lane]);
                out.changed = true;
            }
        }
        let held = |g: &Self, l: usize| u64::from(g.outstanding[l].max(g.granted[l]).max(used[l]));
        let mut free = u64::from(limit).saturating_sub((0..lanes).map(|l| held(self, l)).sum());
        for lane in 0..lanes {
            if target[lane] > self.granted[lane] {
                // What it still holds under an older grant is its own already.
                let own = held(self, lane) as u32;
                let more = (u64::from(target[lane]) - u64::from(own.min(target[lane]))).min(free);
                let grant = own.min(target[lane]) + more as u32;
                free -= more;
                if grant > self.granted[lane] {
                    self.grant(state, lane, grant);
                    out.changed = true;
                }
                out.unfinished |= grant < target[lane];
            }
        }
        out
    }

    fn grant(&mut self, state: &ServerState, lane: usize, grant: u32) {
        self.granted[lane] = grant;
        self.outstanding[lane] = self.outstanding[lane].max(grant);
        state.set_grant(lane, grant);
    }
}

/// Shares a limit: each gets what it asks for as far as it is there for all alike (max-min fair), and what is left
/// over evenly.
fn share(limit: u32, demand: &[u64]) -> Vec<u32> {
    let mut out = vec![0u64; demand.len()];
    let mut left = u64::from(limit);
    let mut hungry: Vec<usize> = (0..demand.len()).filter(|l| demand[*l] > 0).collect();
    while left > 0 && !hungry.is_empty() {
        let each = (left / hungry.len() as u64).max(1);
        for lane in &hungry {
            let give = each.min(demand[*lane] - out[*lane]).min(left);
            out[*lane] += give;
            left -= give;
        }
        hungry.retain(|l| out[*l] < demand[*l]);
    }
    let n = demand.len() as u64;
    for (lane, o) in out.iter_mut().enumerate() {
        *o += left / n + u64::from((lane as u64) < left % n);
    }
    out.into_iter().map(|o| o as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_shared() {
        assert_eq!(share(10, &[0, 0, 0]), [4, 3, 3]);
        assert_eq!(share(10, &[1, 20, 2]), [1, 7, 2]);
        assert_eq!(share(10, &[20, 20, 20]).iter().sum::<u32>(), 10);
        assert_eq!(share(2, &[0, 0, 1, 9]), [0, 0, 1, 1]);
        assert_eq!(share(10, &[1, 1, 0]), [4, 4, 2]);
        assert_eq!(share(0, &[1]), [0]);
    }

    /// Lanes that begin and end requests at random, look when they like, and a control that deals: never more than the
    /// limit are under way, and nothing that waits waits for ever.
    #[test]
    fn the_limit_holds_over_lanes_that_look_late() {
        const LANES: usize = 4;
        let mut random = 0x2545_F491_4F6C_DD1Du64;
        let mut next = move |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        for limit in [1, 3, 4, 10] {
            let state = ServerState::new(LANES, 1);
            let mut grants = Grants::default();
            // What each lane has seen last, has under way, and has waiting.
            let mut lanes = [(0u32, 0u64, 0u64); LANES];
            let mut served = [0u64; LANES];
            for step in 0..200_000 {
                let lane = next(LANES as u64) as usize;
                let (seen, used, waiting) = &mut lanes[lane];
                match next(8) {
                    0 => *seen = state.grant(lane),
                    // The load moves from lane to lane.
                    1..=3 if (step / 20_000) % LANES == lane || next(50) == 0 => *waiting = (*waiting + 1).min(20),
                    4..=5 if *used > 0 => *used -= 1,
                    _ => {}
                }
                // As the balancer does: each look at the room is a look at the grant.
                if *waiting > 0 && next(2) == 0 {
                    *seen = state.grant(lane);
                    if *used < u64::from(*seen) {
                        *used += 1;
                        *waiting -= 1;
                        served[lane] += 1;
                    }
                }
                state.lane(lane).unwrap().in_use.set(lanes[lane].1);
                let sum: u64 = lanes.iter().map(|l| l.1).sum();
                assert!(sum <= u64::from(limit), "{sum} of {limit} at {step}: {lanes:?}");
                if next(10) == 0 {
                    let waiting: Vec<u64> = lanes.iter().map(|l| l.2).collect();
                    grants.deal(limit, &state, &waiting);
                }
            }
            assert!(served.iter().all(|s| *s > 1_000), "{limit}: {served:?}");
        }
    }
}
