//! HTTP/2 on a seat's TCP connection: requests become frames, and what frames report becomes outcomes.

use super::Worker;
use super::pacer::Op;
use super::seat::Phase;
use super::tcp::{Problem, tls_failed};
use crate::clock::Nanos;
use crate::plan::Operation;
use crate::record::Failure;
use sealane_lab_wire::h2;

impl Worker<'_> {
    /// Starts a request on an HTTP/2 connection.
    pub(super) fn begin_stream(&mut self, i: usize, op: Op, now: Nanos) {
        let seat = &mut self.seats[i];
        let Some(h2) = &mut seat.h2 else { return };
        let section = &self.sections[seat.group as usize][seat.name as usize][op.target as usize];
        h2.start(section, &self.plan.origins[seat.group as usize].targets[op.target as usize].body, op);
        let room = h2.has_room();
        if !seat.dirty {
            seat.dirty = true;
            self.dirty.push(i as u32);
        }
        if room {
            self.offer(i, now);
        }
    }

    /// Sends the frames that gathered in this turn.
    pub(super) fn flush_dirty(&mut self) {
        while let Some(i) = self.dirty.pop() {
            let i = i as usize;
            if std::mem::take(&mut self.seats[i].dirty) {
                self.out.clear();
                let now = self.clock.now();
                if self.quic.is_some() {
                    self.settle_quic(i, now);
                } else {
                    self.flush_frames(i, now);
                }
            }
        }
    }

    /// Encrypts and sends what an HTTP/2 connection has to say, behind what is in the out buffer.
    pub(super) fn flush_frames(&mut self, i: usize, now: Nanos) {
        if let Err((failure, why)) = self.queue_frames(i) {
            return self.fail(i, failure, now, || why.into_owned());
        }
        if !self.out.is_empty() {
            self.flush(i, now);
        }
    }

    /// Puts them into the out buffer.
    pub(super) fn queue_frames(&mut self, i: usize) -> Result<(), Problem> {
        let seat = &mut self.seats[i];
        let Some(h2) = &mut seat.h2 else { return Ok(()) };
        match &mut seat.tls {
            None => self.out.extend(&h2.out),
            Some(session) => {
                // A record holds 2^14 bytes (RFC 8446 §5.1).
                for record in h2.out.chunks(1 << 14) {
                    session.encrypt(record, &mut self.out).map_err(tls_failed)?;
                }
            }
        }
        h2.out.clear();
        Ok(())
    }

    /// Acts on what an HTTP/2 connection reported.
    pub(super) fn handle_reported(&mut self, i: usize, now: Nanos) {
        let mut reported = std::mem::take(&mut self.reported);
        let keep_alive = self.plan.operation == Operation::KeepAlive;
        let generation = self.seats[i].generation;
        for event in reported.drain(..) {
            if self.seats[i].generation != generation {
                break;
            }
            match event {
                h2::Event::Settings if keep_alive => self.opened(i, now),
                h2::Event::Settings | h2::Event::Interim(_) => {}
                h2::Event::Answer(_) => {
                    if let Some(op) = &mut self.seats[i].op {
                        op.first_byte = now;
                    }
                }
                h2::Event::Done { status, .. } if !keep_alive => self.complete(i, status, now),
                h2::Event::Done { op, status, .. } => {
                    self.in_flight -= 1;
                    self.completed += 1;
                    self.note_completed(&op, status, now);
                }
                h2::Event::Failed(_, why) if !keep_alive => self.fail(i, Failure::Reset, now, || why),
                h2::Event::Failed(op, why) => {
                    self.in_flight -= 1;
                    self.note_failed(Some(&op), Failure::Reset, now, || why);
                }
            }
        }
        self.reported = reported;
        if !keep_alive || self.seats[i].generation != generation {
            return;
        }
        let Some(h2) = &self.seats[i].h2 else { return };
        if h2.leaving() {
            let idle = h2.active() == 0;
            self.withdraw(i);
            if idle {
                self.vacate(i);
                self.open(i, now);
            }
        } else if h2.has_room() && self.seats[i].phase == Phase::Open && self.seats[i].attempts == u32::MAX {
            self.offer(i, now);
        }
    }
}
