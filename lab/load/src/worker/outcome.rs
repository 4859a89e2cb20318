//! How operations end, over TCP and QUIC alike: what is written down, and what becomes of the seat.

use super::pacer::Op;
use super::seat::Phase;
use super::{ATTEMPTS, REST, TICKET_TIMEOUT, Worker};
use crate::clock::Nanos;
use crate::plan::Operation;
use crate::record::{Failure, note};
use crate::tls;

impl Worker<'_> {
    /// An operation succeeded.
    pub(super) fn complete(&mut self, i: usize, status: u16, now: Nanos) {
        let seat = &mut self.seats[i];
        let Some(op) = seat.op.take() else { return };
        let keep = seat.reader.keep_alive();
        seat.requested = false;
        seat.attempts = if self.plan.operation == Operation::KeepAlive { seat.attempts } else { 0 };
        if op.priming {
            self.primed(i, now);
            return;
        }
        self.in_flight -= 1;
        self.completed += 1;
        self.note_completed(&op, status, now);
        match self.plan.operation {
            Operation::KeepAlive if keep => self.offer(i, now),
            Operation::KeepAlive => {
                self.vacate(i);
                self.open(i, now);
            }
            // Tickets come after the handshake, and may come after an answer to early data.
            Operation::Connection { .. } if self.short_of_tickets(i) => self.seats[i].phase = Phase::Closing,
            Operation::Connection { .. } => {
                if !self.out.is_empty() {
                    self.flush(i, now);
                }
                self.vacate(i);
                self.offer(i, now);
            }
        }
    }

    /// A connection made for its tickets is through.
    pub(super) fn primed(&mut self, i: usize, now: Nanos) {
        if self.seats[i].phase != Phase::Closing && self.short_of_tickets(i) {
            self.seats[i].phase = Phase::Closing;
            return;
        }
        self.vacate(i);
        self.offer(i, now);
        self.priming -= 1;
        let at_hand = self.names.iter().map(tls::tickets_at_hand).min().unwrap_or(0);
        if at_hand >= self.seats.len() {
            self.unprimed = 0;
            // Those under way still count down.
            self.priming = self.priming.min(self.seats.iter().filter(|s| s.phase != Phase::Vacant).count());
        } else if self.unprimed > 0 {
            self.unprimed -= 1;
            self.prime(now);
        }
    }

    /// Writes a completed operation down.
    pub(super) fn note_completed(&mut self, op: &Op, status: u16, now: Nanos) {
        let open_loop = self.plan.rate().is_some();
        if let Some(interval) = &mut self.interval {
            note(interval, now - if open_loop { op.intended } else { op.started });
        }
        if self.measuring(now) {
            self.record.in_window += 1;
        }
        if !self.counts(op, now) {
            return;
        }
        let record = &mut self.record;
        record.completed += 1;
        record.last = now;
        record.statuses[(status / 100).min(5) as usize] += 1;
        let times = record.times(op.kind);
        note(&mut times.uncorrected, now - op.started);
        if open_loop {
            note(&mut times.corrected, now - op.intended);
        }
        if op.first_byte != 0 {
            note(&mut times.first_byte, op.first_byte - op.started);
        }
        if self.plan.trace {
            let begin = if open_loop { op.intended } else { op.started };
            self.record.trace.push((self.clock.instant(begin), self.clock.instant(now)));
        }
    }

    /// An operation, or the connection for later ones, failed.
    pub(super) fn fail(&mut self, i: usize, failure: Failure, now: Nanos, why: impl FnOnce() -> String) {
        let seat = &mut self.seats[i];
        let op = seat.op.take();
        seat.requested = false;
        if self.pacer.timeline().is_none() {
            seat.attempts = seat.attempts.saturating_add(1);
            let attempts = seat.attempts;
            let why = why();
            if attempts >= ATTEMPTS {
                self.hopeless = Some((failure, why.clone()));
            }
            self.outside.note(failure, || why);
        } else {
            let streams = match (&mut seat.h2, &mut seat.quic) {
                (Some(h2), _) if op.is_none() => h2.abandon(),
                (_, Some(link)) if op.is_none() => link.abandon(),
                _ => Vec::new(),
            };
            if streams.is_empty() {
                self.note_failed(op.as_ref(), failure, now, why);
            } else {
                let why = why();
                for op in &streams {
                    self.in_flight -= 1;
                    self.note_failed(Some(op), failure, now, || why.clone());
                }
            }
        }
        if op.is_some_and(|op| !op.priming) {
            self.in_flight -= 1;
        }
        self.withdraw(i);
        self.vacate(i);
        self.rest(i, now);
    }

    /// Counts a failure, as part of the measured phase or outside it.
    pub(super) fn note_failed(&mut self, op: Option<&Op>, failure: Failure, now: Nanos, why: impl FnOnce() -> String) {
        let counts = match op {
            Some(op) => self.counts(op, now),
            None => self.measuring(now),
        };
        let failures = if counts { &mut self.record.failures } else { &mut self.outside };
        failures.note(failure, why);
        self.failed += 1;
    }

    /// The seat is used again in a moment.
    pub(super) fn rest(&mut self, i: usize, now: Nanos) {
        self.resting.push_back((now + REST, i as u32));
    }

    /// Whether this seat's connection should stay for a ticket, because none has come and they are few.
    pub(super) fn short_of_tickets(&self, i: usize) -> bool {
        let seat = &self.seats[i];
        self.plan.wants_tickets()
            && seat.secure()
            && !self.has_ticket(i)
            && tls::tickets_at_hand(&self.names[seat.name as usize]) < self.seats.len()
    }

    /// Whether the seat's connection has brought a ticket, or needs none: a TLS 1.2 session serves for ever.
    pub(super) fn has_ticket(&self, i: usize) -> bool {
        let seat = &self.seats[i];
        seat.tickets > 0 || tls::tickets_at_hand(&self.names[seat.name as usize]) == usize::MAX
    }

    /// A seat that stayed for its ticket may go: it has come, or never will.
    pub(super) fn ticket_came(&mut self, i: usize, now: Nanos) {
        if self.priming > 0 {
            return self.primed(i, now);
        }
        self.vacate(i);
        self.offer(i, now);
    }

    /// Whether a seat has waited for a ticket in vain.
    pub(super) fn waited_enough(&self, i: usize, now: Nanos) -> bool {
        let seat = &self.seats[i];
        seat.phase == Phase::Closing && now.saturating_sub(seat.connected) > TICKET_TIMEOUT
    }

    /// The seat may take an operation.
    pub(super) fn offer(&mut self, i: usize, now: Nanos) {
        let seat = &mut self.seats[i];
        if !seat.queued {
            seat.queued = true;
            self.pacer.free(seat.group, i as u32, now);
        }
    }

    /// It may not: its connection is gone or going.
    pub(super) fn withdraw(&mut self, i: usize) {
        let seat = &mut self.seats[i];
        if seat.queued {
            seat.queued = false;
            self.pacer.withdraw(seat.group, i as u32);
        }
    }
}
