//! New clients, and how much of a turn they get. Events of those already connected are handled as they come; accepting
//! and all steps of handshakes are put off to the end of the turn and take what `handshake_budget` allows. Then the
//! lane looks for events again, so that a request on a kept connection waits for one signature at most, whatever storm
//! of new clients there is.

use crate::conn::{Conn, Front, FrontPhase};
use crate::service::Proxy;
use sealane_lane::{Context, Key, Ready};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Connections accepted before other newcomers get their turn.
const ACCEPTS: usize = 4;
/// Newcomers that may wait before accepting pauses.
const MAX_WAITING: usize = 512;

/// What a lane has to do for new clients.
#[derive(Default)]
pub(crate) struct Newcomers {
    /// What is cheap, oldest first.
    steps: VecDeque<Step>,
    /// Hellos that wait for crypto time, oldest first.
    hellos: VecDeque<Key>,
    /// How long the last hello took to be answered.
    last: Duration,
    /// The last turn had no time left for a hello: in the next one comes first.
    owed: bool,
    /// Accepting has paused because descriptors were used up.
    pub lacks_descriptors: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Connections wait at the socket with this token.
    Accept(u64),
    /// A connection before or in its handshake goes on with what is in its `put_off`.
    Event(Key),
}

impl Newcomers {
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.hellos.is_empty()
    }

    /// Enough are waiting: nobody else is accepted before they have got on.
    pub fn is_full(&self) -> bool {
        self.steps.len() + self.hellos.len() >= MAX_WAITING
    }

    pub fn hello(&mut self, key: Key) {
        self.hellos.push_back(key);
    }

    /// The socket with this token has connections to accept.
    pub fn knock(&mut self, token: u64) {
        // Sockets are few, and those that are ready stay so.
        let step = Step::Accept(token);
        if !self.steps.iter().any(|s| *s == step) {
            self.steps.push_back(step);
        }
    }

    /// Puts an event of a newcomer off; each is in the queue once.
    pub fn event(&mut self, key: Key, front: &mut Front, ready: Ready) {
        match &mut front.put_off {
            Some(earlier) => earlier.error |= ready.error,
            none => {
                *none = Some(ready);
                self.steps.push_back(Step::Event(key));
            }
        }
    }
}

/// Whether what comes on a connection waits for the newcomers' share of the turn.
pub(crate) fn is_newcomer(front: &Front) -> bool {
    match front.phase {
        _ if front.established => false,
        FrontPhase::ProxyHeader | FrontPhase::Hello => true,
        FrontPhase::Open => front.wire.is_handshaking(),
        FrontPhase::Admission | FrontPhase::Closing { .. } | FrontPhase::Lingering => false,
    }
}

impl Proxy {
    /// Goes on with newcomers until the turn's time for them is spent. At least one step or hello, so that a small
    /// budget still gets on; none beyond it that would, taking as long as the last, end after it.
    pub(crate) fn mind_newcomers(&mut self, cx: &mut Context) {
        if self.newcomers.is_empty() {
            return;
        }
        let budget = self.lane.snapshot.limits.handshake_budget;
        let start = cx.instant();
        let mut now = start;
        let mut begun = false;
        let mut answered = false;
        if std::mem::take(&mut self.newcomers.owed)
            && let Some(key) = self.newcomers.hellos.pop_front()
            && let Some(after) = self.answer_hello(cx, key, now)
        {
            now = after;
            (begun, answered) = (true, true);
        }
        while (!begun || now - start < budget)
            && let Some(step) = self.newcomers.steps.pop_front()
        {
            match step {
                Step::Accept(token) => {
                    if self.listening && self.accept(cx, token, ACCEPTS) {
                        self.newcomers.knock(token);
                    }
                }
                Step::Event(key) => self.put_off_event(cx, key),
            }
            self.settle(cx);
            now = cx.instant();
            begun = true;
        }
        while let Some(key) = self.newcomers.hellos.pop_front() {
            if begun && now - start + self.newcomers.last > budget {
                self.newcomers.hellos.push_front(key);
                self.newcomers.owed = !answered;
                break;
            }
            if let Some(after) = self.answer_hello(cx, key, now) {
                now = after;
                (begun, answered) = (true, true);
            }
        }
        self.counters.hellos_waiting.set(self.newcomers.hellos.len() as u64);
    }

    fn put_off_event(&mut self, cx: &mut Context, key: Key) {
        // It may have timed out meanwhile.
        let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return };
        if let Some(ready) = front.put_off.take() {
            self.front_event(cx, key, ready);
        }
    }

    /// `None`: the client is gone, and what it did not take says nothing of how long the next will.
    fn answer_hello(&mut self, cx: &mut Context, key: Key, before: Instant) -> Option<Instant> {
        let waits = |conn: &Conn| matches!(conn, Conn::Front(front) if front.phase == FrontPhase::Admission);
        if !self.conns.get(key).is_some_and(waits) {
            return None;
        }
        self.start_session(cx, key);
        self.settle(cx);
        let now = cx.instant();
        self.newcomers.last = now - before;
        self.counters.handshake_nanos.add(self.newcomers.last.as_nanos() as u64);
        Some(now)
    }
}
