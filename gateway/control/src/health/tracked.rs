//! What control knows of one server: its checks, its ejections, what the operator wants of it; and what follows.
//! Sans-IO: time comes in, a [`Standing`] comes out.

use super::grants::Grants;
use crate::config::{EJECT_DOUBLINGS, Plan, ServiceRecord};
use sealane_proxy::Failure;
use sealane_proxy::server_state::{ServerState, Standing, WEIGHT_UNIT};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server that starts slowly begins with this part of its weight.
const FIRST_SHARE: f64 = 0.1;
/// Steps in which it gets the rest.
const STEPS: f64 = 20.0;
/// A server that fails now and then is a line in the log no more often than this.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// One server, for as long as it is configured (and its name resolves to it).
#[derive(Debug)]
pub(super) struct Tracked {
    /// Which of the plan's servers it stands for.
    pub plan: usize,
    pub name: String,
    pub address: SocketAddr,
    pub state: Arc<ServerState>,
    pub grants: Grants,
    /// What the SRV record of its service says of it.
    pub record: Option<ServiceRecord>,
    /// What the operator has set in place of the configured weight.
    pub weight: Option<u32>,
    /// What the operator wants, where the configuration wants something else.
    pub draining: Option<bool>,
    pub next_check: Instant,
    pub checking: bool,
    pub checks: Checks,
    pub ejected_until: Option<Instant>,
    pub ejections: u64,
    /// Ejections without a good time between them.
    in_a_row: u32,
    /// Successes and failures per lane as last seen, and failures in a row since.
    lanes: Vec<(u64, u64, u64)>,
    /// Since when it may be used, if it starts slowly.
    started: Option<Instant>,
    was_usable: bool,
    /// When it was said that requests fail there.
    said_failing: Option<Instant>,
}

/// What active checks have found.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks {
    pub good: u64,
    pub bad: u64,
    /// Whether it is down by its checks.
    pub down: bool,
    /// Good or bad ones in a row.
    streak: u32,
    last: Option<bool>,
    /// Why the last bad one was bad.
    pub reason: String,
}

/// What is worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Up,
    Down(String),
    Ejected {
        failures: u64,
        rest: Duration,
    },
    Back,
    /// Requests fail there; said when they begin to, and not much more often.
    Failing,
}

impl Tracked {
    /// One that has just come; `fresh`: while others were there already, so that it starts slowly where that is asked
    /// for.
    pub fn new(
        plan: usize,
        name: String,
        address: SocketAddr,
        state: Arc<ServerState>,
        now: Instant,
        fresh: bool,
    ) -> Self {
        let lanes = vec![(0, 0, 0); state.lanes().len()];
        Self {
            plan,
            name,
            address,
            state,
            grants: Grants::default(),
            record: None,
            weight: None,
            draining: None,
            next_check: now,
            checking: false,
            checks: Checks::default(),
            ejected_until: None,
            ejections: 0,
            in_a_row: 0,
            lanes,
            started: fresh.then_some(now),
            was_usable: true,
            said_failing: None,
        }
    }

    /// Whether it may be used, whatever its weight.
    pub fn is_usable(&self) -> bool {
        !self.checks.down && self.ejected_until.is_none()
    }

    /// The result of a check: an error says why it was bad.
    pub fn checked(&mut self, result: Result<(), String>, plan: &Plan) -> Option<Event> {
        let Some(check) = &plan.health else { return None };
        let c = &mut self.checks;
        let good = result.is_ok();
        let first = c.last.is_none();
        c.streak = if c.last == Some(good) { c.streak.saturating_add(1) } else { 1 };
        c.last = Some(good);
        match result {
            Ok(()) => {
                c.good += 1;
                if c.down && c.streak >= check.rise {
                    c.down = false;
                    return Some(Event::Up);
                }
            }
            Err(reason) => {
                c.bad += 1;
                c.reason = reason;
                // It was taken to be up without having been asked: the first answer counts.
                if !c.down && (first || c.streak >= check.fall) {
                    c.down = true;
                    return Some(Event::Down(c.reason.clone()));
                }
            }
        }
        None
    }

    /// Looks at what lanes have counted since the last time. `alone`: no other server of the group may be used, so
    /// this one is not ejected: a bad server is better than none.
    pub fn look(&mut self, plan: &Plan, now: Instant, alone: bool) -> Option<Event> {
        if self.ejected_until.is_some_and(|until| until <= now) {
            self.ejected_until = None;
            self.read_lanes();
            self.lanes.iter_mut().for_each(|l| l.2 = 0);
            return Some(Event::Back);
        }
        let successes = self.read_lanes();
        if successes && self.ejected_until.is_none() {
            self.in_a_row = 0;
        }
        let failures: u64 = self.lanes.iter().map(|l| l.2).sum();
        let too_many = plan.eject_after > 0 && failures >= u64::from(plan.eject_after);
        if !self.is_usable() {
            return None;
        }
        if !too_many || alone {
            let said = self.said_failing.is_some_and(|at| now < at + SAY_AGAIN);
            if failures == 0 || said {
                return None;
            }
            self.said_failing = Some(now);
            return Some(Event::Failing);
        }
        let rest = plan.eject_for * 2u32.pow(self.in_a_row.min(EJECT_DOUBLINGS));
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.ejections += 1;
        self.ejected_until = Some(now + rest);
        Some(Event::Ejected { failures, rest })
    }

    /// True if something went well since the last time.
    fn read_lanes(&mut self) -> bool {
        let mut any = false;
        for (cell, (successes, failures, row)) in self.state.lanes().iter().zip(&mut self.lanes) {
            let (s, f) = (cell.successes.value(), cell.failures.value());
            if s != *successes {
                // In which order they came is not known; a server that answers is not dead.
                *row = 0;
                any = true;
            } else {
                *row += f.wrapping_sub(*failures);
            }
            (*successes, *failures) = (s, f);
        }
        any
    }

    /// Its weight as long as the operator sets no other.
    pub fn configured_weight(&self, plan: &Plan) -> u32 {
        let planned = || plan.servers.get(self.plan).map_or(1, |server| server.weight);
        self.record.map_or_else(planned, |record| record.weight)
    }

    /// Whether it drains.
    pub fn drains(&self, plan: &Plan) -> bool {
        self.draining.unwrap_or_else(|| self.configured_drain(plan))
    }

    /// Whether it drains as long as the operator wants nothing else.
    pub fn configured_drain(&self, plan: &Plan) -> bool {
        plan.servers.get(self.plan).is_some_and(|server| server.drain)
    }

    /// How it stands now.
    pub fn standing(&mut self, plan: &Plan, now: Instant) -> Standing {
        let usable = self.is_usable();
        if usable && !self.was_usable {
            self.started = Some(now);
        }
        self.was_usable = usable;
        let whole = self.weight.unwrap_or_else(|| self.configured_weight(plan)) * WEIGHT_UNIT;
        let weight = match self.started {
            Some(started) if !plan.slow_start.is_zero() && now < started + plan.slow_start => {
                let part = now.duration_since(started).as_secs_f64() / plan.slow_start.as_secs_f64();
                // In steps, so that lanes do not have to look all the time.
                let part = ((part * STEPS).floor() / STEPS).max(FIRST_SHARE);
                (f64::from(whole) * part).ceil() as u32
            }
            _ => {
                self.started = None;
                whole
            }
        };
        Standing { weight, usable, draining: self.drains(plan) }
    }

    /// Failures in a row, over all lanes.
    pub fn failures_in_a_row(&self) -> u64 {
        self.lanes.iter().map(|l| l.2).sum()
    }

    /// Why the last of them failed, as far as they are in a row.
    pub fn why_failing(&self) -> Option<Failure> {
        let failing = self.state.lanes().iter().zip(&self.lanes).filter(|(_, (_, _, row))| *row > 0);
        failing.filter_map(|(cell, _)| cell.last_failure()).next_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HealthCheck, ServerPlan};

    fn plan() -> Plan {
        let server = ServerPlan {
            host: "a".into(),
            port: 1,
            socket: None,
            name: "a:1".into(),
            weight: 2,
            backup: false,
            drain: false,
        };
        let health = HealthCheck {
            path: None,
            host: None,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            status: (200, 399),
            port: None,
            datagram: None,
        };
        Plan { servers: vec![server], health: Some(health), eject_after: 3, ..Plan::default() }
    }

    fn tracked(now: Instant, fresh: bool) -> Tracked {
        Tracked::new(0, "a:1".into(), ([127, 0, 0, 1], 1).into(), Arc::new(ServerState::new(2, 2)), now, fresh)
    }

    fn bad() -> Result<(), String> {
        Err("refused".into())
    }

    #[test]
    fn checks_rise_and_fall() {
        let plan = plan();
        let mut t = tracked(Instant::now(), false);
        assert_eq!(t.checked(Ok(()), &plan), None);
        assert_eq!(t.checked(bad(), &plan), None);
        assert_eq!(t.checked(bad(), &plan), None);
        assert_eq!(t.checked(Ok(()), &plan), None);
        for _ in 0..2 {
            assert_eq!(t.checked(bad(), &plan), None);
        }
        assert_eq!(t.checked(bad(), &plan), Some(Event::Down("refused".into())));
        assert!(!t.is_usable());
        assert_eq!(t.checked(Ok(()), &plan), None);
        assert_eq!(t.checked(Ok(()), &plan), Some(Event::Up));
        // The very first answer counts.
        assert_eq!(tracked(Instant::now(), false).checked(bad(), &plan), Some(Event::Down("refused".into())));
    }

    #[test]
    fn failures_in_a_row_eject_for_longer_each_time() {
        let plan = plan();
        let mut now = Instant::now();
        let mut t = tracked(now, false);
        let fail = |t: &Tracked, lane: usize, n: u64| t.state.lane(lane).unwrap().failures.add(n);
        fail(&t, 0, 2);
        assert_eq!(t.look(&plan, now, false), Some(Event::Failing));
        assert_eq!(t.look(&plan, now, false), None, "it has been said");
        // A success in one lane forgives that lane's.
        t.state.lane(0).unwrap().successes.inc();
        fail(&t, 1, 2);
        assert_eq!(t.look(&plan, now, false), None);
        fail(&t, 0, 1);
        assert_eq!(t.look(&plan, now, true), None, "never the last one");
        let mut rest = plan.eject_for;
        for _ in 0..3 {
            assert_eq!(t.look(&plan, now, false), Some(Event::Ejected { failures: 3, rest }));
            assert!(!t.standing(&plan, now).usable);
            now += rest;
            assert_eq!(t.look(&plan, now, false), Some(Event::Back));
            assert!(t.standing(&plan, now).usable);
            fail(&t, 0, 3);
            rest *= 2;
        }
        assert_eq!(t.ejections, 3);
        t.look(&plan, now, false);
        now += rest;
        t.look(&plan, now, false);
        t.state.lane(1).unwrap().successes.inc();
        t.look(&plan, now, false);
        fail(&t, 1, 3);
        assert_eq!(t.look(&plan, now, false), Some(Event::Ejected { failures: 3, rest: plan.eject_for }));
    }

    #[test]
    fn weights_grow() {
        let plan = Plan { slow_start: Duration::from_secs(20), ..plan() };
        let start = Instant::now();
        let mut t = tracked(start, true);
        let mut weight = |s: u64| t.standing(&plan, start + Duration::from_secs(s)).weight;
        assert_eq!(
            [weight(0), weight(2), weight(10), weight(19), weight(20), weight(99)],
            [20, 20, 100, 190, 200, 200]
        );
        assert!(t.started.is_none());
        t.weight = Some(5);
        t.draining = Some(true);
        assert_eq!(t.standing(&plan, start), Standing { weight: 500, usable: true, draining: true });
        // The whole group starts with the process: none of them slowly.
        assert_eq!(tracked(start, false).standing(&plan, start).weight, 200);
    }
}
