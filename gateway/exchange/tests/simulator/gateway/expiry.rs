//! The deadlines of exchanges: the table decides, and this does what follows.

use super::*;
use crate::checks;
use sealane_exchange::deadlines::{BodyLimits, Class, Direction, Limits, State, Wait, deadline};

impl Gateway {
    pub fn limits(&self, x: usize) -> Limits {
        let s = &self.settings;
        let body = |i: usize| BodyLimits { idle: s.idle[i], rate: s.rate[i] };
        let run = &self.xs[x];
        Limits {
            client: body(0),
            upstream: body(1),
            handshake: s.handshake,
            connection: s.connect + s.first_byte,
            first_byte: s.first_byte,
            authorized_until: None,
            total_until: None,
            copy_until: None,
            queued_until: run.waits_until,
            try_until: s.try_timeout.map(|t| run.try_began + t),
            rest_until: run.drains_since.map(|since| since + LINGER),
        }
    }

    pub fn look_by(&mut self, w: &mut World, x: usize, at: Millis) {
        let run = &mut self.xs[x];
        if at < run.look_at {
            run.look_at = at;
            w.at(at, Wake::Look(x));
        }
    }

    /// Looks at an exchange's deadlines.
    pub fn look(&mut self, w: &mut World, x: usize) {
        let now = w.now;
        let run = &mut self.xs[x];
        if run.finished > 0 || run.look_at > now {
            return;
        }
        run.look_at = Millis::MAX;
        let limits = self.limits(x);
        let run = &mut self.xs[x];
        let state = State::of(&run.machine, run.back.is_some(), [run.up.blocked, run.down.blocked]);
        let class = if run.machine.is_tunnel() || run.call { Class::Stream } else { Class::Message };
        let request = Direction { wait: state.request_wait(), bytes: run.up.bytes, progress: &mut run.up.progress };
        let response =
            Direction { wait: state.response_wait(), bytes: run.down.bytes, progress: &mut run.down.progress };
        let next = match deadline(now, class, &limits, request, response) {
            Some(passed) if passed.at <= now => {
                w.say(|| format!("request {:?}: {passed:?}", run.id));
                let quiet = w.now - self.xs[x].moved;
                self.touch(w, x);
                let idle = passed.wait != Wait::Tunnel || quiet >= self.settings.idle[1];
                assert!(idle, "request {:?}: a tunnel is ended in which something moves", self.xs[x].id);
                checks::check_blame(w, &self.settings, &self.xs[x], &passed);
                match (passed.wait.party(), passed.wait) {
                    (Some(Party::Client), Wait::RequestRest) => {
                        let actions = self.event(w, x, Event::DrainTimeout);
                        self.perform(w, x, actions);
                    }
                    // Those that have got room by now go on; the others are refused.
                    (None, Wait::Queue) => w.at(w.now, Wake::Queue),
                    (Some(Party::Client), _) | (None, _) => self.refuse(w, x, 408),
                    (Some(Party::Upstream), Wait::Connection) => self.lost(w, x, Loss::ConnectTimeout),
                    (Some(Party::Upstream), _) => {
                        let short = self.settings.try_timeout.is_some();
                        self.lost(w, x, Loss::Timeout { short });
                    }
                }
                now + 1
            }
            Some(next) => next.at,
            None => Millis::MAX,
        };
        if self.xs[x].finished == 0 {
            let next = next.min(now + limits.shortest());
            self.look_by(w, x, next);
        }
    }
}
