//! Bounds how much of a turn new clients get.
//!
//! Events of established connections are handled at once. Accepting and all steps of handshakes are deferred to the end of
//! the turn, and take what `handshake_budget` allows. Then the lane polls again. So a request on a kept connection waits for
//! at most one signature, however many new clients there are.

use crate::conn::{ClientConnection, ClientPhase, Conn};
use crate::service::Proxy;
use sealane_lane::{Context, Key, Ready};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Connections accepted before other new clients get their turn.
const ACCEPTS: usize = 4;
/// Newcomers that may wait before accepting pauses.
const MAX_WAITING: usize = 512;

/// What a lane has to do for new clients.
#[derive(Default)]
pub(crate) struct Admission {
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
    /// A connection before or in its handshake goes on with what is in its `deferred`.
    Event(Key),
}

impl Admission {
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
    pub fn listener_ready(&mut self, token: u64) {
        // Sockets are few, and those that are ready stay so.
        let step = Step::Accept(token);
        if !self.steps.iter().any(|s| *s == step) {
            self.steps.push_back(step);
        }
    }

    /// Defers an event of a new client; each is in the queue once.
    pub fn event(&mut self, key: Key, client_conn: &mut ClientConnection, ready: Ready) {
        match &mut client_conn.deferred {
            Some(earlier) => earlier.error |= ready.error,
            none => {
                *none = Some(ready);
                self.steps.push_back(Step::Event(key));
            }
        }
    }
}

/// Whether what comes on a connection waits for the new clients' share of the turn.
pub(crate) fn awaits_admission(client_conn: &ClientConnection) -> bool {
    match client_conn.phase {
        _ if client_conn.established => false,
        ClientPhase::ProxyHeader | ClientPhase::Hello => true,
        ClientPhase::Open => client_conn.transport.is_handshaking(),
        ClientPhase::Admission | ClientPhase::Closing { .. } | ClientPhase::Lingering => false,
    }
}

impl Proxy {
    /// Goes on with new clients until the turn's time for them is spent. At least one step or hello, so that a small
    /// budget still gets on; none beyond it that would, taking as long as the last, end after it.
    pub(crate) fn serve_admission(&mut self, cx: &mut Context) {
        if self.admission.is_empty() {
            return;
        }
        let budget = self.lane.snapshot.limits.handshake_budget;
        let start = cx.instant();
        let mut now = start;
        let mut begun = false;
        let mut answered = false;
        if std::mem::take(&mut self.admission.owed)
            && let Some(key) = self.admission.hellos.pop_front()
            && let Some(after) = self.answer_hello(cx, key, now)
        {
            now = after;
            (begun, answered) = (true, true);
        }
        while (!begun || now - start < budget)
            && let Some(step) = self.admission.steps.pop_front()
        {
            match step {
                Step::Accept(token) => {
                    if self.listening && self.accept(cx, token, ACCEPTS) {
                        self.admission.listener_ready(token);
                    }
                }
                Step::Event(key) => self.put_off_event(cx, key),
            }
            self.flush_marked(cx);
            now = cx.instant();
            begun = true;
        }
        while let Some(key) = self.admission.hellos.pop_front() {
            if begun && now - start + self.admission.last > budget {
                self.admission.hellos.push_front(key);
                self.admission.owed = !answered;
                break;
            }
            if let Some(after) = self.answer_hello(cx, key, now) {
                now = after;
                (begun, answered) = (true, true);
            }
        }
        self.counters.hellos_waiting.set(self.admission.hellos.len() as u64);
    }

    fn put_off_event(&mut self, cx: &mut Context, key: Key) {
        // It may have timed out meanwhile.
        let Some(Conn::Client(client_conn)) = self.conns.get_mut(key) else { return };
        if let Some(ready) = client_conn.deferred.take() {
            self.client_event(cx, key, ready);
        }
    }

    /// `None`: the client is gone, and what it did not take says nothing of how long the next will.
    fn answer_hello(&mut self, cx: &mut Context, key: Key, before: Instant) -> Option<Instant> {
        let waits =
            |conn: &Conn| matches!(conn, Conn::Client(client_conn) if client_conn.phase == ClientPhase::Admission);
        if !self.conns.get(key).is_some_and(waits) {
            return None;
        }
        self.start_session(cx, key);
        self.flush_marked(cx);
        let now = cx.instant();
        self.admission.last = now - before;
        self.counters.handshake_nanos.add(self.admission.last.as_nanos() as u64);
        Some(now)
    }
}
