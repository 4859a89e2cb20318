//! What the two sides tell, and what that means for the other one.

use super::*;

impl Gateway {
    /// Chooses a server, and a connection to it.
    pub fn dispatch(&mut self, w: &mut World, x: usize) {
        let Some(server) = self.take_place(w, x) else { return };
        let run = &mut self.xs[x];
        assert!(!run.forwarded, "request {:?}: a try after a response's head", run.id);
        run.dispatched += 1;
        let most = self.settings.tries + usize::from(run.stale) + usize::from(run.early_again);
        assert!(run.dispatched <= most, "request {:?}: {} tries", run.id, run.dispatched);
        let relay = run.machine.is_relay();
        let version = if relay { 1 } else { self.settings.versions.1 };
        self.touch(w, x);
        self.xs[x].down.progress.begin(w.now);
        self.xs[x].try_began = w.now;
        let idle =
            |p: &Option<Port>| p.as_ref().is_some_and(|p| !p.front && p.phase == PortPhase::Idle && p.server == server);
        let new = self.xs[x].stale || relay;
        if let Some(link) = self.ports.iter().position(idle).filter(|_| !new) {
            self.xs[x].back = Some(link);
            w.record.uses(self.xs[x].id, link);
            w.say(|| format!("request {:?}: link {link} to server {server} is used again", self.xs[x].id));
            return self.send_request(w, x, link);
        }
        let shared = self.groups[server].filter(|_| version > 1);
        self.group += 1;
        let group = shared.unwrap_or(self.group);
        let link = w.open(version, false, group);
        let port = self.add_port(link, version, false);
        (port.phase, port.server, port.relay) = (PortPhase::Connecting, server, relay);
        self.xs[x].back = Some(link);
        self.port(link).exchange = Some(x);
        w.record.uses(self.xs[x].id, link);
        let how = if shared.is_some() { Dial::Accept(0) } else { dial(&mut w.random) };
        w.say(|| format!("request {:?}: link {link} to server {server}: {how:?}", self.xs[x].id));
        let until = match how {
            Dial::Accept(after) => {
                w.at(w.now + after, Wake::Connect(link, true));
                w.now + after
            }
            Dial::Refuse(after) => {
                w.links[link].faulty = true;
                w.at(w.now + after, Wake::Connect(link, false));
                w.now + after
            }
            Dial::Never => FOREVER,
        };
        w.slow(link, w.now, until);
        let shortest = self.limits(x).shortest();
        self.look_by(w, x, w.now + shortest);
    }

    /// A connection attempt is over.
    pub fn connected(&mut self, w: &mut World, link: usize, success: bool) {
        if self.port(link).phase != PortPhase::Connecting {
            return;
        }
        let Some(x) = self.port(link).exchange else { return };
        self.touch(w, x);
        if !success {
            self.port(link).phase = PortPhase::Closed;
            return self.lost(w, x, Loss::Unreachable);
        }
        let server = self.port(link).server;
        self.port(link).phase = PortPhase::Idle;
        if !self.port(link).relay {
            self.groups[server] = Some(w.links[link].group);
        }
        match self.xs[x].id.filter(|_| self.xs[x].machine.is_relay()) {
            Some(id) => self.servers.accept_relay(w, link, id),
            None => self.servers.accept(w, link),
        }
        self.send_request(w, x, link);
    }

    pub fn group_lost(&mut self, link: usize) {
        let server = self.port(link).server;
        self.groups[server] = None;
    }

    /// A server's side is given up.
    pub fn lost(&mut self, w: &mut World, x: usize, why: Loss) {
        if let Some(back) = self.xs[x].back.take() {
            self.server_reset(w, back);
        }
        self.touch(w, x);
        self.leave_place(w, x);
        let why = self.xs[x].machine.loss(why);
        let mut actions = self.event(w, x, Event::Lost(why));
        let run = &mut self.xs[x];
        run.attempts += usize::from(why.uses_try());
        if let (Some(server), true) = (run.server, why.avoids_server()) {
            run.tried |= 1 << server;
        }
        if actions.has(Do::AskRetry) {
            assert!(!(run.stale && why == Loss::Stale), "request {:?}: a second stale connection", run.id);
            let left = !why.uses_try()
                || run.attempts < self.settings.tries && run.tried.count_ones() < self.settings.servers as u32;
            let granted = left && self.retries > 0;
            self.retries -= usize::from(granted);
            self.xs[x].stale |= granted && why == Loss::Stale;
            actions = self.event(w, x, if granted { Event::RetryGranted } else { Event::RetryDenied });
        }
        self.perform(w, x, actions);
    }

    /// A response's head has come. False if the server's side is not to be read on.
    pub fn response_arrived(&mut self, w: &mut World, x: usize, body: BodyLength, upgrade: bool) -> bool {
        self.touch(w, x);
        let run = &self.xs[x];
        let status = run.response.status;
        if (100..200).contains(&status) && !upgrade {
            if self.event(w, x, Event::Interim).has(Do::RejectResponse) {
                self.lost(w, x, Loss::Broken);
                return false;
            }
            self.client_interim(w, x);
            return true;
        }
        let websocket = run.upgrade && status == 101;
        let confirms = !websocket || run.response.fields.get_named(b"X-Accept").is_none_or(|v| v == b"right");
        let actions = self.event(w, x, Event::Head(Head { status, switches: upgrade, confirms }));
        if actions.has(Do::RejectResponse) {
            self.lost(w, x, Loss::Broken);
            return false;
        }
        if !actions.has(Do::ForwardHead) {
            self.perform(w, x, actions);
            return false;
        }
        self.client_head(w, x, body, upgrade);
        let run = &mut self.xs[x];
        run.down.progress.begin(w.now);
        if run.machine.is_tunnel() {
            run.keep_alive = false;
        }
        self.perform(w, x, actions.without(Do::ForwardHead));
        true
    }

    pub fn up_room(&mut self, w: &World, x: usize) -> usize {
        let run = &self.xs[x];
        if run.up.blocked {
            // The sink has no room: it will say when it has.
            return 0;
        }
        let room = match (run.machine.request(), run.back) {
            (Phase::Draining, _) => return READ,
            (Phase::Streaming, Some(back)) => STAGE.saturating_sub(self.port(back).staged_bytes),
            _ => return 0,
        };
        if room == 0 {
            self.xs[x].up.block(w.now);
        }
        room
    }

    pub fn down_room(&mut self, w: &World, x: usize) -> usize {
        let front = self.xs[x].front;
        let room = STAGE.saturating_sub(self.port(front).staged_bytes);
        if room == 0 {
            self.xs[x].down.block(w.now);
        }
        room
    }

    /// A piece of the request's body. False if the exchange is over.
    pub fn up_data(&mut self, w: &mut World, x: usize, data: &[u8], last: bool) -> bool {
        self.touch(w, x);
        let run = &mut self.xs[x];
        run.moved = w.now;
        run.up.bytes += data.len() as u64;
        run.up.progress.note(w.now);
        let drains = run.machine.request() == Phase::Draining;
        if drains {
            run.drained += data.len() as u64;
            let most = self.settings.max_drained + READ as u64;
            assert!(run.drained <= most, "request {:?}: a drain without a bound", run.id);
        }
        let actions = self.event(w, x, Event::Moved { bytes: data.len() as u64 });
        if actions.has(Do::Finish) {
            self.perform(w, x, actions);
            return false;
        }
        let run = &self.xs[x];
        if run.up.bytes > self.settings.max_body && !run.machine.is_tunnel() && !drains {
            self.refuse(w, x, 413);
            return false;
        }
        if let (Phase::Streaming, Some(back)) = (run.machine.request(), run.back) {
            self.server_data(w, x, back, data);
        }
        if last {
            self.up_end(w, x);
        }
        true
    }

    pub fn up_end(&mut self, w: &mut World, x: usize) {
        self.touch(w, x);
        let actions = self.event(w, x, Event::Ended(Direction::Request));
        self.xs[x].down.progress.note(w.now);
        self.perform(w, x, actions);
    }

    /// A piece of the response's body. False if the exchange is over.
    pub fn down_data(&mut self, w: &mut World, x: usize, data: &[u8], last: bool) -> bool {
        self.touch(w, x);
        let run = &mut self.xs[x];
        run.moved = w.now;
        run.down.bytes += data.len() as u64;
        run.down.progress.note(w.now);
        self.client_data(w, x, data);
        if last {
            self.down_end(w, x);
        }
        !last
    }

    pub fn down_end(&mut self, w: &mut World, x: usize) {
        self.touch(w, x);
        if self.xs[x].machine.request() != Phase::Complete {
            self.xs[x].keep_alive = false;
        }
        let actions = self.event(w, x, Event::Ended(Direction::Response));
        self.perform(w, x, actions);
    }
}
