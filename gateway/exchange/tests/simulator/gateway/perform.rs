//! Begins exchanges, and does what the state machine says.

use super::*;

impl Gateway {
    /// Does what the state machine says.
    pub fn perform(&mut self, w: &mut World, x: usize, actions: Actions) {
        if actions.is_empty() {
            return;
        }
        let front = self.xs[x].front;
        if actions.has(Do::ResetUpstream) {
            self.leave_place(w, x);
            if let Some(back) = self.xs[x].back.take() {
                self.server_reset(w, back);
            }
        }
        if actions.has(Do::Respond) {
            self.send_own(w, x, actions.status());
        }
        if actions.has(Do::EndRequest)
            && let Some(back) = self.xs[x].back
        {
            self.server_end(w, x, back);
        }
        if actions.has(Do::EndResponse) {
            self.client_end(w, x);
        }
        if actions.has(Do::SelectServer) {
            self.dispatch(w, x);
        }
        if actions.has(Do::AwaitHandshake) {
            self.xs[x].down.progress.begin(w.now);
            if !self.port(front).handshaking {
                self.handshake_done(w, x);
            }
        }
        if actions.has(Do::StartDraining) {
            self.start_draining(w, x);
        }
        if actions.has(Do::Finish) {
            return self.finish(w, x, actions);
        }
        if actions.has(Do::ResumeRequest) {
            self.xs[x].up.begin(w.now);
            w.at(w.now, Wake::Arrived(front, Way::Up));
        }
        if let (true, Some(back)) = (actions.has(Do::ResumeResponse), self.xs[x].back) {
            self.xs[x].down.progress.begin(w.now);
            w.at(w.now, Wake::Arrived(back, Way::Down));
        }
    }

    pub fn handshake_done(&mut self, w: &mut World, x: usize) {
        let actions = self.event(w, x, Event::HandshakeDone);
        if !actions.is_empty() {
            self.xs[x].request.fields.remove(Known::EarlyData);
            self.touch(w, x);
            let granted = self.retries > 0;
            self.retries -= usize::from(granted);
            self.xs[x].early_again |= granted;
            let actions = self.event(w, x, if granted { Event::RetryGranted } else { Event::RetryDenied });
            self.perform(w, x, actions);
        }
    }

    pub fn start_draining(&mut self, w: &mut World, x: usize) {
        let run = &mut self.xs[x];
        run.up.begin(w.now);
        let front = run.front;
        if self.port(front).version == 1 && !self.xs[x].keep_alive {
            let actions = self.event(w, x, Event::DrainTimeout);
            return self.perform(w, x, actions);
        }
        self.xs[x].drains_since = Some(w.now);
        self.look_by(w, x, w.now + LINGER);
        w.at(w.now, Wake::Arrived(front, Way::Up));
    }

    /// An exchange is over: its links go on or close.
    pub fn finish(&mut self, w: &mut World, x: usize, actions: Actions) {
        self.touch(w, x);
        let run = &mut self.xs[x];
        run.finished += 1;
        assert_eq!(run.finished, 1, "request {:?} has ended twice", run.id);
        crate::checks::check_duration(w, &self.settings, &self.xs[x]);
        self.leave_place(w, x);
        if let Some(back) = self.xs[x].back.take() {
            assert!(actions.has(Do::ReleaseUpstream) || actions.has(Do::CloseUpstream), "a server is left behind");
            if actions.has(Do::CloseUpstream) && self.xs[x].machine.is_relay() {
                self.relay_done(w, back);
            } else {
                self.server_finish(w, back, actions.has(Do::ReleaseUpstream));
            }
        }
        let front = self.xs[x].front;
        if actions.has(Do::CutClient) {
            self.client_cut(w, front, self.xs[x].down.blocked);
        } else if actions.has(Do::DetachClient) {
            self.close_front(w, front, Code::Cancel);
        } else {
            self.client_finish(w, x, actions.has(Do::FinishClient));
        }
    }

    pub fn refuse(&mut self, w: &mut World, x: usize, status: u16) {
        let actions = self.event(w, x, Event::Refuse { status });
        self.perform(w, x, actions);
    }

    pub fn abort(&mut self, w: &mut World, x: usize) {
        let actions = self.event(w, x, Event::ClientGone);
        self.perform(w, x, actions);
    }

    /// A request's head has come.
    pub fn begin(&mut self, w: &mut World, x: usize) {
        let port = self.ports[self.xs[x].front].as_ref().expect("a port");
        let (early, h1) = (port.handshaking, port.version == 1);
        let run = &mut self.xs[x];
        let method = run.request.method();
        let id = run.request.fields.get_named(b"X-Id").and_then(|v| std::str::from_utf8(v).ok()?.parse().ok());
        run.id = id;
        run.call = run.request.fields.contains(Known::ContentType);
        let kind = match () {
            () if run.upgrade && h1 => Kind::WebSocket,
            () if run.upgrade => Kind::ExtendedConnect,
            () if method == sealane_http::Method::Connect => Kind::Connect,
            () => Kind::Message,
        };
        run.machine = Exchange::new(sealane_exchange::Request {
            kind,
            has_body: !run.body.is_empty(),
            is_safe: method.is_safe(),
            is_idempotent: method.is_idempotent(),
            is_early: early,
            is_marked_early: false,
            max_drained: self.settings.max_drained,
        });
        if early {
            run.request.fields.push(b"Early-Data", b"1").unwrap();
        }
        w.say(|| format!("request {id:?}: {kind:?}, early: {early}"));
        let shortest = self.limits(x).shortest();
        self.look_by(w, x, w.now + shortest);
        let Some(id) = id else { panic!("a request without an id") };
        let answer = w.record.asked[id].ask.answer;
        if matches!(self.xs[x].body, BodyLength::Known(n) if n > self.settings.max_body) {
            return self.refuse(w, x, 413);
        }
        let actions = self.event(w, x, Event::Accepted);
        if !actions.is_empty() {
            return self.perform(w, x, actions);
        }
        match answer {
            Some(status) => self.own_answer(w, x, status),
            None => {
                let actions = self.event(w, x, Event::Forward);
                self.perform(w, x, actions);
            }
        }
    }

    /// A connection that is relayed.
    pub fn accept_relay(&mut self, w: &mut World, link: usize, id: usize) {
        let x = self.xs.len();
        let mut run = X::new(link, w.now);
        run.id = Some(id);
        run.machine = Exchange::new(sealane_exchange::Request {
            kind: Kind::Relay,
            has_body: true,
            ..sealane_exchange::Request::default()
        });
        self.xs.push(run);
        let port = self.add_port(link, 1, true);
        (port.exchange, port.relay) = (Some(x), true);
        let shortest = self.limits(x).shortest();
        self.look_by(w, x, w.now + shortest);
        let actions = self.event(w, x, Event::Forward);
        self.perform(w, x, actions);
    }

    pub fn own_answer(&mut self, w: &mut World, x: usize, status: u16) {
        let actions = self.event(w, x, Event::Answer { status });
        self.perform(w, x, actions);
    }

    /// The client has ended its side in the middle of something.
    pub fn client_gone(&mut self, w: &mut World, link: usize) {
        match self.port(link).exchange {
            Some(x) => self.abort(w, x),
            None => self.close_front(w, link, Code::Cancel),
        }
    }

    pub fn client_finish(&mut self, w: &mut World, x: usize, complete: bool) {
        let run = &self.xs[x];
        let (front, keep) = (run.front, run.keep_alive && complete);
        let request_open = run.machine.request() != Phase::Complete || !complete;
        self.port(front).exchange = None;
        match self.port(front).version {
            1 if keep => self.await_request(w, front),
            1 => ends_connection(self, w, front),
            version => {
                self.port(front).phase = PortPhase::Closing;
                if request_open && version == 2 {
                    self.stage(w, front, Item::Reset(Code::NoError));
                } else if request_open {
                    w.stop(front, Way::Up);
                }
                self.flush(w, front);
            }
        }
    }
}
