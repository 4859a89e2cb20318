//! Which server of a group gets a request. A lane decides for itself, from what control has published about the
//! servers and from what it has under way with each: nothing here is shared with other lanes.
//!
//! Servers are taken in tiers: those that may get new requests and have not been tried for this one; then backups, if
//! no other is left; then those that have been tried. Within a tier the policy decides among the servers with room; if
//! none has room, the request waits.

mod lease;
mod policy;
mod retry;

pub use policy::{Balance, HashKey, Sticky};

pub(crate) use lease::{LaneServer, Lease};
pub(crate) use policy::{cookie, hash_of, hash_of_address, mix};
pub(crate) use retry::RetryBudget;

use crate::snapshot::Server;
use crate::upstream::server_state::{GroupState, Standing};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Servers tried for one request, as far as they have a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tried(u64);

impl Tried {
    pub fn note(&mut self, server: usize) {
        if server < 64 {
            self.0 |= 1 << server;
        }
    }

    pub fn has(self, server: usize) -> bool {
        server < 64 && self.0 & 1 << server != 0
    }
}

/// What came of choosing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pick {
    /// This one.
    Server(usize),
    /// There are servers, but each has as many requests as it may have.
    Full,
    /// There is no server that could be used.
    None,
}

/// What a request brings to the choice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preference {
    pub tried: Tried,
    /// Of the address, field or cookie that the policy hashes; `None` if the request has none.
    pub hash: Option<u64>,
    /// The server that the client sticks to.
    pub sticky: Option<usize>,
}

impl Preference {
    /// Any server that takes new requests will do.
    pub fn takes_any(self) -> bool {
        self.tried == Tried::default() && self.sticky.is_none()
    }
}

/// The servers among which one is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// The one that the client sticks to.
    Own(usize),
    /// Backups or not, tried for this request or not.
    Of { backup: bool, tried: bool },
}

/// Chooses among the servers of one group, for one lane.
pub(crate) struct Balancer {
    policy: Balance,
    state: Arc<GroupState>,
    servers: Vec<Rc<LaneServer>>,
    backup: Vec<bool>,
    /// As of `seen`.
    standings: RefCell<Vec<Standing>>,
    seen: Cell<u64>,
    /// All may be used, weigh the same and have no limit: a counter is enough.
    plain: Cell<bool>,
    next: Cell<usize>,
    random: Cell<u64>,
    /// Smooth weighted round robin: how much each is owed.
    owed: RefCell<Vec<i64>>,
}

impl Balancer {
    pub fn new(
        policy: Balance,
        state: Arc<GroupState>,
        configured: &[Server],
        servers: Vec<Rc<LaneServer>>,
        slot: usize,
    ) -> Self {
        let balancer = Self {
            policy,
            state,
            backup: configured.iter().map(|s| s.backup).collect(),
            standings: RefCell::new(Vec::new()),
            seen: Cell::new(u64::MAX),
            plain: Cell::new(false),
            // Lanes start at different servers, so that few requests still reach all of them.
            next: Cell::new(slot),
            random: Cell::new(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(slot as u64 + 1)),
            owed: RefCell::new(vec![0; servers.len()]),
            servers,
        };
        balancer.look();
        balancer
    }

    pub fn servers(&self) -> &[Rc<LaneServer>] {
        &self.servers
    }

    /// Takes in what control has published since.
    #[inline]
    fn refresh(&self) {
        if self.state.version() != self.seen.get() {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        // The version first: what is published after it makes another one.
        self.seen.set(self.state.version());
        let mut standings = self.standings.borrow_mut();
        standings.clear();
        standings.extend(self.servers.iter().map(|s| s.state().standing()));
        let same = |s: &Standing| s.takes_new() && s.weight == standings[0].weight;
        let plain = self.policy == Balance::RoundRobin
            && standings.iter().all(same)
            && !self.backup.contains(&true)
            && !self.servers.iter().any(|s| s.is_limited());
        self.plain.set(plain && !standings.is_empty());
    }

    /// Whether a request that waits should look again: there is room for it, or nothing to wait for.
    pub fn may_have_room(&self, preference: Preference) -> bool {
        self.refresh();
        let standings = self.standings.borrow();
        let Some(tier) = self.tier(&standings, preference) else { return true };
        (0..self.servers.len()).any(|i| self.is_in(&standings, tier, preference, i) && self.servers[i].has_room())
    }

    /// Whether some server could be used that has not been tried.
    pub fn has_untried(&self, tried: Tried) -> bool {
        self.refresh();
        self.standings.borrow().iter().enumerate().any(|(i, s)| s.takes_new() && !tried.has(i))
    }

    /// Chooses a server.
    #[inline]
    pub fn pick(&self, preference: Preference) -> Pick {
        self.refresh();
        if self.plain.get() && preference.sticky.is_none() && preference.tried == Tried::default() {
            let turn = self.next.get();
            self.next.set(turn.wrapping_add(1));
            return Pick::Server(turn % self.servers.len());
        }
        self.pick_by_tiers(preference)
    }

    fn pick_by_tiers(&self, preference: Preference) -> Pick {
        let standings = self.standings.borrow();
        let Some(tier) = self.tier(&standings, preference) else { return Pick::None };
        let with_room = |i: &usize| self.is_in(&standings, tier, preference, *i) && self.servers[*i].has_room();
        let chosen = match tier {
            // It waits for its own server rather than lose what that remembers of it.
            Tier::Own(i) => Some(i).filter(with_room),
            Tier::Of { .. } => self.select_server(&standings, preference.hash, &with_room),
        };
        chosen.map_or(Pick::Full, Pick::Server)
    }

    /// The first tier that has servers, whether they have room or not: backups are for when servers are down, not for when
    /// they are busy.
    fn tier(&self, standings: &[Standing], preference: Preference) -> Option<Tier> {
        if let Some(i) = preference.sticky
            && standings.get(i).is_some_and(|s| s.usable)
            && !preference.tried.has(i)
        {
            return Some(Tier::Own(i));
        }
        [(false, false), (true, false), (false, true), (true, true)]
            .map(|(backup, tried)| Tier::Of { backup, tried })
            .into_iter()
            .find(|tier| (0..standings.len()).any(|i| self.is_in(standings, *tier, preference, i)))
    }

    fn is_in(&self, standings: &[Standing], tier: Tier, preference: Preference, i: usize) -> bool {
        match tier {
            Tier::Own(server) => i == server,
            Tier::Of { backup, tried } => {
                standings[i].takes_new() && self.backup[i] == backup && preference.tried.has(i) == tried
            }
        }
    }

    /// By the policy, among those that `may`.
    fn select_server(&self, standings: &[Standing], hash: Option<u64>, may: &dyn Fn(&usize) -> bool) -> Option<usize> {
        let candidates = || (0..standings.len()).filter(|i| may(i));
        match (self.policy, hash) {
            (Balance::Hash, Some(hash)) => {
                policy::rendezvous(hash, candidates().map(|i| (i, self.servers[i].identity(), standings[i].weight)))
            }
            (Balance::RoundRobin | Balance::Hash, _) => {
                policy::owed_most(&mut self.owed.borrow_mut(), candidates().map(|i| (i, standings[i].weight)))
            }
            (Balance::LeastConnections, _) => {
                // Ties go around.
                let start = self.next.get();
                self.next.set(start.wrapping_add(1));
                let n = standings.len();
                let order = (0..n).map(|i| (start.wrapping_add(i)) % n).filter(|i| may(i));
                policy::least_loaded(order.map(|i| (i, self.servers[i].active(), standings[i].weight)))
            }
            (Balance::RandomTwo, _) => {
                let mut random = self.random.get();
                let one = policy::random(&mut random, candidates().map(|i| (i, standings[i].weight)));
                let two = policy::random(&mut random, candidates().map(|i| (i, standings[i].weight)));
                self.random.set(random);
                let load = |i: usize| (i, self.servers[i].active(), standings[i].weight);
                policy::least_loaded(one.into_iter().chain(two).map(load))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::server_state::ServerState;

    struct Group {
        balancer: Balancer,
        states: Vec<Arc<ServerState>>,
        group: Arc<GroupState>,
    }

    /// `(weight, backup)` of each.
    fn group(policy: Balance, servers: &[(u32, bool)], limit: bool) -> Group {
        let group = Arc::new(GroupState::default());
        let states: Vec<Arc<ServerState>> = servers.iter().map(|(w, _)| Arc::new(ServerState::new(1, *w))).collect();
        let configured: Vec<Server> = servers
            .iter()
            .zip(&states)
            .enumerate()
            .map(|(i, ((_, backup), state))| Server {
                name: format!("s{i}"),
                address: ([127, 0, 0, 1], i as u16 + 1).into(),
                socket: None,
                backup: *backup,
                sticky_id: [0; 16],
                state: state.clone(),
            })
            .collect();
        let lanes = configured.iter().map(|s| Rc::new(LaneServer::new(s, 0, limit))).collect();
        Group { balancer: Balancer::new(policy, group.clone(), &configured, lanes, 0), states, group }
    }

    impl Group {
        fn stand(&self, server: usize, change: impl FnOnce(&mut Standing)) {
            let mut standing = self.states[server].standing();
            change(&mut standing);
            self.states[server].publish(standing);
            self.group.changed();
        }

        fn counts(&self, n: usize, mut preference: impl FnMut(usize) -> Preference) -> Vec<usize> {
            let mut counts = vec![0; self.states.len()];
            for i in 0..n {
                match self.balancer.pick(preference(i)) {
                    Pick::Server(s) => counts[s] += 1,
                    other => panic!("{other:?}"),
                }
            }
            counts
        }
    }

    #[test]
    fn turns_follow_weights() {
        assert_eq!(
            group(Balance::RoundRobin, &[(1, false); 3], false).counts(300, |_| Preference::default()),
            [100; 3]
        );
        let weighted = group(Balance::RoundRobin, &[(5, false), (1, false), (2, false)], false);
        assert_eq!(weighted.counts(80, |_| Preference::default()), [50, 10, 20]);
        // No more than two in a row for a weight of 5 out of 8.
        let picks: Vec<Pick> = (0..16).map(|_| weighted.balancer.pick(Preference::default())).collect();
        assert!(!picks.windows(4).any(|w| w.iter().all(|p| *p == w[0])), "{picks:?}");
    }

    #[test]
    fn servers_that_are_down_or_drain_get_nothing_new() {
        let g = group(Balance::RoundRobin, &[(1, false); 3], false);
        g.stand(1, |s| s.usable = false);
        assert_eq!(g.counts(10, |_| Preference::default()), [5, 0, 5]);
        g.stand(0, |s| s.draining = true);
        assert_eq!(g.counts(10, |_| Preference::default()), [0, 0, 10]);
        // What sticks to a draining server still goes there; to one that is down it does not.
        assert_eq!(g.counts(10, |i| Preference { sticky: Some(i % 2), ..Preference::default() }), [5, 0, 5]);
        g.stand(2, |s| s.weight = 0);
        assert_eq!(g.balancer.pick(Preference::default()), Pick::None);
        assert!(!g.balancer.has_untried(Tried::default()));
        g.stand(1, |s| s.usable = true);
        assert_eq!(g.counts(3, |_| Preference::default()), [0, 3, 0]);
    }

    #[test]
    fn backups_are_for_when_all_others_are_down() {
        let g = group(Balance::RoundRobin, &[(1, false), (1, false), (1, true)], false);
        assert_eq!(g.counts(10, |_| Preference::default()), [5, 5, 0]);
        g.stand(0, |s| s.usable = false);
        assert_eq!(g.counts(10, |_| Preference::default()), [0, 10, 0]);
        g.stand(1, |s| s.usable = false);
        assert_eq!(g.counts(10, |_| Preference::default()), [0, 0, 10]);
    }

    #[test]
    fn another_server_is_tried_first() {
        for policy in [Balance::RoundRobin, Balance::LeastConnections, Balance::RandomTwo, Balance::Hash] {
            let g = group(policy, &[(1, false), (1, false), (1, true)], false);
            let mut tried = Tried::default();
            tried.note(0);
            let preference = Preference { tried, hash: Some(7), sticky: None };
            assert_eq!(g.counts(20, |_| preference), [0, 20, 0], "{policy:?}");
            tried.note(1);
            assert_eq!(g.counts(20, |_| Preference { tried, ..preference }), [0, 0, 20], "{policy:?}");
            tried.note(2);
            assert_eq!(g.counts(20, |_| Preference { tried, ..preference })[2], 0, "{policy:?}: the first tier again");
        }
    }

    #[test]
    fn the_least_loaded_by_weight() {
        let g = group(Balance::LeastConnections, &[(1, false), (3, false)], false);
        let leases: Vec<Lease> = (0..40)
            .map(|_| match g.balancer.pick(Preference::default()) {
                Pick::Server(i) => g.balancer.servers()[i].lease(),
                other => panic!("{other:?}"),
            })
            .collect();
        let active: Vec<u32> = g.balancer.servers().iter().map(|s| s.active()).collect();
        assert_eq!(active, [10, 30]);
        drop(leases);
        assert_eq!(g.balancer.servers()[1].active(), 0);
    }

    #[test]
    fn random_of_two_avoids_the_busy_one() {
        let g = group(Balance::RandomTwo, &[(1, false); 4], false);
        let busy: Vec<Lease> = (0..50).map(|_| g.balancer.servers()[2].lease()).collect();
        let counts = g.counts(4_000, |_| Preference::default());
        // It is chosen only when both draws are it: one in sixteen.
        assert!(counts[2] < 400 && counts.iter().all(|c| *c > 100), "{counts:?}");
        drop(busy);
    }

    #[test]
    fn hashes_move_only_what_they_must() {
        let g = group(Balance::Hash, &[(1, false), (1, false), (2, false), (1, false)], false);
        let place =
            |key: u64| match g.balancer.pick(Preference { hash: Some(policy::mix(key)), ..Preference::default() }) {
                Pick::Server(i) => i,
                other => panic!("{other:?}"),
            };
        let before: Vec<usize> = (0..5_000).map(place).collect();
        let share = |i| before.iter().filter(|s| **s == i).count();
        assert!((800..1_200).contains(&share(0)) && (1_800..2_200).contains(&share(2)), "{} {}", share(0), share(2));
        g.stand(1, |s| s.usable = false);
        for (key, was) in before.iter().enumerate() {
            let now = place(key as u64);
            assert!(now == *was || *was == 1, "{key} moved from {was} to {now}");
        }
        g.stand(1, |s| s.usable = true);
        assert_eq!((0..5_000).map(place).collect::<Vec<_>>(), before);
    }

    #[test]
    fn full_servers_are_passed_over_and_waited_for() {
        let g = group(Balance::RoundRobin, &[(1, false), (1, false), (1, true)], true);
        g.states[0].set_grant(0, 1);
        g.states[1].set_grant(0, 2);
        let leases: Vec<Lease> = (0..3)
            .map(|_| match g.balancer.pick(Preference::default()) {
                Pick::Server(i) => g.balancer.servers()[i].lease(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(g.balancer.pick(Preference::default()), Pick::Full, "the backup is not for this");
        let sticks = Preference { sticky: Some(0), ..Preference::default() };
        assert_eq!(g.balancer.pick(sticks), Pick::Full);
        let waits = |preference| !g.balancer.may_have_room(preference);
        assert!(waits(Preference::default()) && waits(sticks), "the free backup is no room for them");
        let mut tried = Tried::default();
        tried.note(0);
        tried.note(1);
        let (again, own) = (Preference { tried, ..sticks }, g.balancer.servers()[2].clone());
        own.set_limited(false);
        assert!(!waits(again), "both were tried: the backup is next");
        assert_eq!(g.balancer.pick(again), Pick::Server(2));
        drop(leases);
        assert!(!waits(Preference::default()) && !waits(sticks));
        assert!(matches!(g.balancer.pick(Preference::default()), Pick::Server(_)));
    }
}
