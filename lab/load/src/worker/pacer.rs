//! Who does what when: free seats meet due operations. Shared by TCP and QUIC workers.

use std::collections::VecDeque;

use crate::clock::{NEVER, Nanos, nanos};
use crate::plan::{Kind, Operation, Pace, Plan};
use crate::schedule::{Rng, Schedule, Weighted};

/// The moments of a run.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    /// Load begins.
    pub start: Nanos,
    /// Measuring begins.
    pub warm_end: Nanos,
    /// Load and measuring end; [`NEVER`] when a number of requests decides.
    pub end: Nanos,
}

impl Timeline {
    /// The timeline of a plan that starts at `start`.
    pub fn new(plan: &Plan, start: Nanos) -> Self {
        let warm_end = start + nanos(plan.warmup);
        let end = plan.duration.map_or(NEVER, |d| warm_end + nanos(d));
        Self { start, warm_end, end }
    }
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// When it was meant to start.
    pub intended: Nanos,
    /// When it did.
    pub started: Nanos,
    /// When the first byte of the answer came, 0 before.
    pub first_byte: Nanos,
    /// Which of the origin's targets it asks for.
    pub target: u16,
    /// The kind asked for, then the kind it turned out to be.
    pub kind: Kind,
    /// Whether it belongs to the measured phase.
    pub measured: bool,
    /// Made before the clock starts.
    pub priming: bool,
}

impl Op {
    /// An operation for its tickets alone.
    pub fn priming(now: Nanos) -> Self {
        Self { intended: now, started: now, first_byte: 0, target: 0, kind: Kind::Full, measured: false, priming: true }
    }
}

/// The free seats and the schedule of one origin.
#[derive(Debug)]
struct Group {
    /// Seats of this thread for this origin.
    seats: usize,
    idle: VecDeque<u32>,
    /// Since when there has been a free seat without a break.
    since: Nanos,
    schedule: Option<Schedule>,
    targets: Weighted,
    share: f64,
}

/// A thread's pacer.
#[derive(Debug)]
pub struct Pacer {
    groups: Vec<Group>,
    timeline: Option<Timeline>,
    /// Measured operations still to be started, when their number decides the end.
    budget: Option<u64>,
    mix: Vec<Kind>,
    mix_weights: Weighted,
}

impl Pacer {
    /// Splits the thread's seats over the origins by weight, at least one for each.
    pub fn new(plan: &Plan, thread: usize) -> Self {
        let total: u32 = plan.origins.iter().map(|o| o.weight).sum();
        let seats = plan.share(plan.connections, thread).max(plan.origins.len());
        let mut left = seats;
        let n = plan.origins.len();
        let groups = plan
            .origins
            .iter()
            .enumerate()
            .map(|(i, origin)| {
                let share = f64::from(origin.weight) / f64::from(total.max(1));
                let others = n - i - 1;
                let mine = if others == 0 { left } else { ((seats as f64 * share) as usize).clamp(1, left - others) };
                left -= mine;
                Group {
                    seats: mine,
                    idle: VecDeque::with_capacity(mine),
                    since: 0,
                    schedule: None,
                    targets: Weighted::new(origin.targets.iter().map(|t| t.weight)),
                    share,
                }
            })
            .collect();
        let (mix, weights) = match &plan.operation {
            Operation::KeepAlive => (vec![Kind::Request], vec![1]),
            Operation::Connection { mix, .. } => mix.iter().copied().unzip(),
        };
        let budget = plan.requests.map(|n| plan.share(n as usize, thread) as u64);
        Self { groups, timeline: None, budget, mix, mix_weights: Weighted::new(weights) }
    }

    /// The group of every seat, in the order of the seats.
    pub fn seats(&self) -> impl Iterator<Item = u16> {
        self.groups.iter().enumerate().flat_map(|(i, g)| std::iter::repeat_n(i as u16, g.seats))
    }

    /// The clock starts.
    pub fn start(&mut self, plan: &Plan, thread: usize, timeline: Timeline, now: Nanos) {
        self.timeline = Some(timeline);
        for (i, group) in self.groups.iter_mut().enumerate() {
            group.since = now;
            group.schedule = Some(match plan.pace {
                Pace::Closed => Schedule::closed(timeline.start, timeline.end),
                Pace::Open { rate, arrivals } => Schedule::open(
                    arrivals,
                    rate * group.share,
                    (thread, plan.threads),
                    (timeline.start, timeline.end),
                    plan.seed.wrapping_add(i as u64),
                ),
            });
        }
        if self.budget == Some(0) {
            self.stop();
        }
    }

    /// The moments of the run, once it has started.
    #[inline]
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    /// How many groups there are.
    #[inline]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// How many free seats a group has.
    #[inline]
    pub fn idle(&self, group: usize) -> usize {
        self.groups[group].idle.len()
    }

    /// A seat is free.
    #[inline]
    pub fn free(&mut self, group: u16, seat: u32, now: Nanos) {
        let group = &mut self.groups[group as usize];
        if group.idle.is_empty() {
            group.since = now;
        }
        group.idle.push_back(seat);
    }

    /// A seat can no longer be used: its connection went while it was idle.
    pub fn withdraw(&mut self, group: u16, seat: u32) {
        self.groups[group as usize].idle.retain(|s| *s != seat);
    }

    /// Any free seat, outside the schedule.
    pub fn take_seat(&mut self) -> Option<u32> {
        self.groups.iter_mut().find_map(|g| g.idle.pop_front())
    }

    /// A due operation and the free seat to do it, with the lag that is the generator's own.
    #[inline]
    pub fn take(&mut self, group: usize, now: Nanos, rng: &mut Rng) -> Option<(u32, Op, Option<Nanos>)> {
        let timeline = self.timeline?;
        let g = &mut self.groups[group];
        let schedule = g.schedule.as_mut()?;
        if g.idle.is_empty() {
            return None;
        }
        let intended = schedule.take(now)?;
        let seat = g.idle.pop_front()?;
        let lag = (!schedule.is_closed_loop()).then(|| now - intended.max(g.since).min(now));
        let measured = intended >= timeline.warm_end;
        let op = Op {
            intended,
            started: now,
            first_byte: 0,
            target: g.targets.draw(rng) as u16,
            kind: self.mix[self.mix_weights.draw(rng)],
            measured,
            priming: false,
        };
        if measured && let Some(budget) = &mut self.budget {
            *budget -= 1;
            if *budget == 0 {
                self.stop();
            }
        }
        Some((seat, op, lag))
    }

    /// The next moment at which something is due and somebody free.
    #[inline]
    pub fn next(&self, now: Nanos) -> Nanos {
        let mut next = NEVER;
        for g in &self.groups {
            if let (Some(schedule), false) = (&g.schedule, g.idle.is_empty()) {
                next = next.min(schedule.peek());
            }
        }
        match &self.timeline {
            // To notice the end in time.
            Some(t) if now < t.end => next.min(t.end),
            _ => next,
        }
    }

    /// Whether a number of operations decided the end, and all have been started.
    pub fn through(&self) -> bool {
        self.budget == Some(0)
    }

    /// Whether nothing new will become due.
    pub fn ended(&self, now: Nanos) -> bool {
        self.through() || self.timeline.is_some_and(|t| now >= t.end)
    }

    /// Whether operations of the past wait for a free seat.
    pub fn has_backlog(&self) -> bool {
        self.groups.iter().filter_map(|g| g.schedule.as_ref()).any(|s| !s.is_closed_loop() && s.peek() != NEVER)
    }

    /// The intended moments, up to `now`, of measured operations that were never started.
    pub fn leftover(&mut self, now: Nanos) -> Vec<Nanos> {
        let from = self.timeline.map_or(NEVER, |t| t.warm_end);
        let mut left = Vec::new();
        for schedule in self.groups.iter_mut().filter_map(|g| g.schedule.as_mut()) {
            while !schedule.is_closed_loop()
                && let Some(at) = schedule.take(now)
            {
                if at >= from {
                    left.push(at);
                }
            }
        }
        left
    }

    fn stop(&mut self) {
        for schedule in self.groups.iter_mut().filter_map(|g| g.schedule.as_mut()) {
            schedule.stop();
        }
    }
}
