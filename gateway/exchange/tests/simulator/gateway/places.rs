//! Places at servers, and the queue of requests that wait for one.

use super::*;

impl Gateway {
    /// Chooses a server that has a place, and takes it. `None`: the request waits.
    pub fn take_place(&mut self, w: &mut World, x: usize) -> Option<usize> {
        let run = &self.xs[x];
        assert_eq!(run.place, None, "request {:?} has a place at another server", run.id);
        // Nobody overtakes those who wait.
        let waits = run.waits_until.is_none() && self.queue.iter().any(|x| self.xs[*x].finished == 0);
        let free = self.free_servers(x);
        if waits || free.is_empty() {
            let until = *self.xs[x].waits_until.get_or_insert(w.now + self.settings.queue_timeout);
            w.say(|| format!("request {:?} waits for a place until {until}", self.xs[x].id));
            self.queue.push_back(x);
            w.at(until, Wake::Queue);
            return None;
        }
        let server = w.random.pick(&free);
        self.places[server] += 1;
        let run = &mut self.xs[x];
        (run.server, run.place) = (Some(server), Some(server));
        Some(server)
    }

    /// Servers with a place, among those that have not failed for this request; among all if all have.
    fn free_servers(&self, x: usize) -> Vec<usize> {
        let tried = self.xs[x].tried;
        let untried: Vec<_> = (0..self.settings.servers).filter(|s| tried & 1 << s == 0).collect();
        let candidates = if untried.is_empty() { (0..self.settings.servers).collect() } else { untried };
        candidates.into_iter().filter(|s| self.places[*s] < self.settings.places).collect()
    }

    /// The server has nothing more to do for a request.
    pub fn leave_place(&mut self, w: &mut World, x: usize) {
        if let Some(server) = self.xs[x].place.take() {
            self.places[server] -= 1;
            w.at(w.now, Wake::Queue);
        }
    }

    /// Requests that have got a place go on; those that have waited for long enough are refused.
    pub fn serve_queue(&mut self, w: &mut World) {
        for _ in 0..self.queue.len() {
            let Some(x) = self.queue.pop_front() else { return };
            if self.xs[x].finished > 0 {
                continue;
            }
            if !self.free_servers(x).is_empty() {
                self.dispatch(w, x);
            } else if self.xs[x].waits_until.is_some_and(|until| w.now >= until) {
                self.refuse(w, x, 503);
            } else {
                self.queue.push_back(x);
            }
        }
    }

    /// A request has a place as long as a server works for it, and no request waits while there is a place.
    pub fn check_places(&self) {
        let mut places = vec![0; self.settings.servers];
        for run in &self.xs {
            assert_eq!(run.place.is_some(), run.back.is_some(), "request {:?}: its place and its server", run.id);
            if let Some(server) = run.place {
                places[server] += 1;
            }
        }
        assert_eq!(places, self.places, "places are taken once and left once");
        assert!(places.iter().all(|n| *n <= self.settings.places), "more requests at a server than it has places");
    }
}
