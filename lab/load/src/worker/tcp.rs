//! A seat's connection over TCP: what happens at each event, with and without TLS.

use std::borrow::Cow;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustls::HandshakeKind;

use super::pacer::Op;
use super::seat::Phase;
use super::{Worker, quic};
use crate::clock::Nanos;
use crate::plan::{Kind, Operation, Protocol};
use crate::record::{Failure, note};
use crate::socket;
use crate::tls::{self, Session};
use sealane_lab_wire::{h1, h2};

/// The part of a generation that fits into an event's data beside the seat and the mark of UDP sockets.
const GENERATION: u32 = 0x7fff_ffff;

/// Why an operation cannot go on.
pub(super) type Problem = (Failure, Cow<'static, str>);

/// What reading came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// Nothing more for now.
    Drained,
    /// There may be more.
    Again,
    /// The seat's connection is another one by now, or none.
    Gone,
}

impl Worker<'_> {
    /// Starts an operation on a seat.
    pub(super) fn begin(&mut self, i: usize, op: Op, now: Nanos) {
        if !op.priming {
            self.in_flight += 1;
        }
        let seat = &mut self.seats[i];
        seat.queued = false;
        if self.plan.operation == Operation::KeepAlive && self.quic.is_some() {
            return self.begin_quic(i, op, now);
        }
        if self.plan.operation == Operation::KeepAlive && self.plan.protocol == Protocol::Http2 {
            return self.begin_stream(i, op, now);
        }
        seat.op = Some(op);
        match self.plan.operation {
            Operation::KeepAlive => {
                self.out.clear();
                if let Err((failure, why)) = self.queue_request(i) {
                    return self.fail(i, failure, now, || why.into_owned());
                }
                self.flush(i, now);
            }
            Operation::Connection { .. } => self.open(i, now),
        }
    }

    /// Opens a seat's connection, and sends what can be sent at once.
    pub(super) fn open(&mut self, i: usize, now: Nanos) {
        if self.quic.is_some() {
            return self.open_quic(i, now);
        }
        let from = match self.plan.sources.as_slice() {
            [] => None,
            sources => {
                self.next_source = (self.next_source + 1) % sources.len();
                Some(sources[self.next_source])
            }
        };
        let group = self.seats[i].group as usize;
        let name = if self.plan.names.is_empty() { group } else { self.name_weights.draw(&mut self.rng) };
        let origin = &self.plan.origins[group];
        let opened = socket::connect(&origin.address, from);
        let seat = &mut self.seats[i];
        seat.generation = seat.generation.wrapping_add(1);
        seat.phase = Phase::Connecting;
        seat.name = name as u16;
        (seat.opened, seat.connected) = (now, 0);
        (seat.requested, seat.offered, seat.tickets) = (false, false, 0);
        seat.pending.clear();
        seat.unsent.clear();
        seat.h2 = (self.plan.protocol == Protocol::Http2).then(|| {
            let mut h2 = Box::new(h2::Client::new(self.plan.streams));
            // In connection mode the request is known: it goes out with the preface.
            if let Some(op) = seat.op {
                let section = &self.sections[group][name][op.target as usize];
                if matches!(self.plan.operation, Operation::Connection { request: true, .. }) {
                    h2.start(section, &origin.targets[op.target as usize].body, op);
                }
            }
            h2
        });
        let fd = match opened {
            Ok(fd) => fd,
            Err(e) => return self.fail(i, Failure::of(e, true), now, || format!("{}: {e}", origin.address)),
        };
        let data = EventData::new_u64(u64::from(seat.generation & GENERATION) << 32 | i as u64);
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = epoll::add(&self.epoll, &fd, data, interest);
        seat.fd = Some(fd);
        if let Err(e) = added {
            return self.fail(i, Failure::Connect, now, || format!("epoll: {e}"));
        }
        if self.measuring(now) {
            self.record.connections += 1;
        }
        self.out.clear();
        let first = if self.plan.origins[group].tls { self.hello(i) } else { self.first_request(i) };
        if let Err((failure, why)) = first {
            return self.fail(i, failure, now, || why.into_owned());
        }
        if !self.out.is_empty() {
            // On loopback the connection stands by now; elsewhere this waits for the socket to be writable.
            self.flush(i, now);
        }
    }

    /// Without TLS the request of a connection of its own goes out first of all.
    fn first_request(&mut self, i: usize) -> Result<(), Problem> {
        let Operation::Connection { request, .. } = self.plan.operation else { return Ok(()) };
        if let Some(op) = &mut self.seats[i].op {
            op.kind = Kind::Plain;
        }
        if request { self.queue_request(i) } else { Ok(()) }
    }

    /// The bytes of the operation's request as they go out early.
    fn early_bytes(&self, i: usize) -> Option<&[u8]> {
        let seat = &self.seats[i];
        match (&seat.h2, &seat.op) {
            (Some(h2), Some(_)) => Some(&h2.out),
            (None, Some(op)) => Some({
                let table = if seat.lingers { &self.lingering } else { &self.requests };
                &table[seat.group as usize][seat.name as usize][op.target as usize]
            }),
            _ => None,
        }
    }

    /// Builds the session and its `ClientHello`, with early data where that is asked for.
    fn hello(&mut self, i: usize) -> Result<(), Problem> {
        let Some(client) = &self.client else { return Err((Failure::Tls, "no TLS".into())) };
        let seat = &mut self.seats[i];
        let name = &self.names[seat.name as usize];
        let mut kind = seat.op.as_ref().map_or(Kind::Full, |op| op.kind);
        if kind >= Kind::Resumed {
            seat.offered = tls::tickets_at_hand(name) > 0;
            if !seat.offered {
                kind = Kind::Full;
                if seat.op.as_ref().is_some_and(|op| op.measured) {
                    self.record.handshakes.no_ticket += 1;
                }
            }
        }
        seat.lingers = kind == Kind::EarlyData && seat.h2.is_none();
        let mut session = Box::new(Session::new(client, name, kind).map_err(tls_failed)?);
        let early = kind == Kind::EarlyData;
        let mut out = std::mem::take(&mut self.out);
        let begun = session.process(&mut [], &mut out, if early { self.early_bytes(i) } else { None }, |_| {});
        self.out = out;
        begun.map_err(tls_failed)?;
        self.seats[i].tls = Some(session);
        if early {
            let head = self.is_head(i);
            self.seats[i].reader.restart(head);
        }
        Ok(())
    }

    fn is_head(&self, i: usize) -> bool {
        let seat = &self.seats[i];
        let targets = &self.plan.origins[seat.group as usize].targets;
        seat.op.as_ref().is_some_and(|op| targets[op.target as usize].method == "HEAD")
    }

    /// Puts the operation's request into the out buffer.
    fn queue_request(&mut self, i: usize) -> Result<(), Problem> {
        if self.seats[i].h2.is_some() {
            self.seats[i].requested = true;
            return self.queue_frames(i);
        }
        let head = self.is_head(i);
        let seat = &mut self.seats[i];
        let Some(op) = &seat.op else { return Ok(()) };
        let table = if seat.lingers { &self.lingering } else { &self.requests };
        let request = &table[seat.group as usize][seat.name as usize][op.target as usize];
        seat.reader.restart(head);
        seat.requested = true;
        match &mut seat.tls {
            None => self.out.extend(request),
            Some(session) => session.encrypt(request, &mut self.out).map_err(tls_failed)?,
        }
        Ok(())
    }

    /// Sends what is in the out buffer, behind what could not be sent before.
    pub(super) fn flush(&mut self, i: usize, now: Nanos) {
        let Self { seats, out, .. } = self;
        let seat = &mut seats[i];
        let Some(fd) = &seat.fd else { return };
        let sent = if seat.unsent.is_empty() {
            let sent = socket::send(fd, out.filled());
            if let Ok(n) = sent {
                seat.unsent.extend_from_slice(&out.filled()[n.unwrap_or(0)..]);
            }
            sent
        } else {
            seat.unsent.extend_from_slice(out.filled());
            let sent = socket::send(fd, &seat.unsent);
            if let Ok(Some(n)) = sent {
                seat.unsent.drain(..n);
            }
            sent
        };
        out.clear();
        match sent {
            Ok(None) => {}
            Ok(Some(n)) => {
                self.record.bytes_out += n as u64;
                if seat.phase == Phase::Connecting {
                    self.stands(i);
                }
            }
            Err(e) => {
                let connecting = seat.phase == Phase::Connecting;
                // A refusal of the request may be waiting to be read; the error is what ends it either way.
                self.fail(i, Failure::of(e, connecting), now, || format!("sending: {e}"));
            }
        }
    }

    /// TCP is established.
    fn stands(&mut self, i: usize) {
        let at = self.clock.now();
        let seat = &mut self.seats[i];
        seat.connected = at;
        if seat.tls.is_some() {
            seat.phase = Phase::Handshaking;
            return;
        }
        seat.phase = Phase::Open;
        match self.plan.operation {
            // HTTP/2 waits for the server's settings.
            Operation::KeepAlive if seat.h2.is_some() => self.flush_frames(i, at),
            Operation::KeepAlive => self.opened(i, at),
            Operation::Connection { request: false, .. } => self.complete(i, 0, at),
            Operation::Connection { request: true, .. } => {}
        }
    }

    /// A connection that is to be kept is ready for its first request.
    pub(super) fn opened(&mut self, i: usize, now: Nanos) {
        let seat = &mut self.seats[i];
        seat.phase = Phase::Open;
        if seat.attempts != u32::MAX {
            // Counted once: a connection that breaks before the start is opened again without this.
            seat.attempts = u32::MAX;
            self.preparing -= 1;
        }
        self.offer(i, now);
    }

    /// Handles one event.
    pub(super) fn handle_event(&mut self, data: u64, flags: EventFlags) {
        if data & quic::UDP != 0 {
            return self.readable_quic((data & !quic::UDP) as usize);
        }
        let i = (data & 0xffff_ffff) as usize;
        let Some(seat) = self.seats.get(i) else { return };
        if seat.generation & GENERATION != (data >> 32) as u32 || seat.fd.is_none() {
            return;
        }
        if seat.phase == Phase::Connecting {
            let error = seat.fd.as_ref().map_or(Ok(()), socket::error);
            if let Err(e) = error {
                let now = self.clock.now();
                let address = self.plan.origins[seat.group as usize].address;
                return self.fail(i, Failure::of(e, true), now, || format!("{address}: {e}"));
            }
            if flags.contains(EventFlags::OUT) && seat.unsent.is_empty() {
                self.stands(i);
            }
        }
        let generation = self.seats[i].generation;
        if flags.contains(EventFlags::OUT) && !self.seats[i].unsent.is_empty() {
            self.out.clear();
            let now = self.clock.now();
            self.flush(i, now);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            // Data and the end may come as one event, and a second never comes: then read to the end.
            let to_the_end = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            while self.seats[i].generation == generation {
                match self.read(i, to_the_end) {
                    Read::Again => {}
                    Read::Drained | Read::Gone => break,
                }
            }
        }
    }

    fn read(&mut self, i: usize, to_the_end: bool) -> Read {
        let Self { seats, scratch, out, clock, reported, .. } = self;
        let seat = &mut seats[i];
        let Some(fd) = &seat.fd else { return Read::Gone };
        let generation = seat.generation;
        let kept = seat.pending.len();
        if scratch.len() < kept + 64 * 1024 {
            scratch.resize(kept + 128 * 1024, 0);
        }
        scratch[..kept].copy_from_slice(&seat.pending);
        let room = scratch.len() - kept;
        let n = match socket::recv(fd, &mut scratch[kept..]) {
            Ok(None) => return Read::Drained,
            Ok(Some(0)) => {
                let now = self.clock.now();
                self.ended(i, false, now);
                return Read::Gone;
            }
            Ok(Some(n)) => n,
            Err(e) => {
                let now = self.clock.now();
                self.broke(i, e, now);
                return Read::Gone;
            }
        };
        self.record.bytes_in += n as u64;
        let more = if n == room || to_the_end { Read::Again } else { Read::Drained };

        let expecting = seat.requested && seat.op.is_some();
        let wants_first = self.plan.operation != Operation::KeepAlive;
        let mut first = 0;
        let mut malformed = None;
        let reader = &mut seat.reader;
        let h2 = &mut seat.h2;
        let mut violated = None;
        // Before a request plaintext is nobody's, unless the request went out early.
        let welcome = expecting || seat.tls.as_ref().is_some_and(|session| session.early_data().0);
        let mut take = |plain: &[u8]| {
            if let Some(h2) = h2 {
                if violated.is_none() {
                    violated = h2.receive(plain, reported).err();
                }
                return;
            }
            if !welcome {
                malformed = Some(h1::Malformed("data without a request"));
                return;
            }
            if wants_first && first == 0 {
                first = clock.now();
            }
            match reader.feed(plain) {
                Ok(used) if used < plain.len() => malformed = Some(h1::Malformed("bytes after its end")),
                Ok(_) => {}
                Err(e) => malformed = Some(e),
            }
        };
        let mut closed = false;
        let mut established = false;
        if let Some(session) = &mut seat.tls {
            let was_ready = session.ready();
            out.clear();
            let filled = kept + n;
            let tickets = tls::tickets_received();
            let step = session.process(&mut scratch[..filled], out, None, take);
            seat.tickets += tls::tickets_received() - tickets;
            match step {
                Ok(step) => {
                    seat.pending.clear();
                    seat.pending.extend_from_slice(&scratch[step.used..filled]);
                    closed = step.closed;
                    established = !was_ready && session.ready();
                }
                Err(e) => {
                    let now = self.clock.now();
                    self.fail(i, Failure::Tls, now, || tls_failed(e).1.into_owned());
                    return Read::Gone;
                }
            }
        } else {
            take(&scratch[..n]);
        }
        if first != 0
            && let Some(op) = &mut seat.op
        {
            op.first_byte = first;
        }
        if established {
            self.established(i);
        }
        if self.seats[i].generation != generation {
            return Read::Gone;
        }
        let now = self.clock.now();
        if self.seats[i].h2.is_some() {
            self.handle_reported(i, now);
            if self.seats[i].generation != generation {
                return Read::Gone;
            }
            if let Some(h2::Broken(why)) = violated {
                self.fail(i, Failure::Malformed, now, || why);
                return Read::Gone;
            }
            let ready = self.seats[i].tls.as_ref().is_none_or(|session| session.ready());
            if ready && let Err((failure, why)) = self.queue_frames(i) {
                self.fail(i, failure, now, || why.into_owned());
                return Read::Gone;
            }
        }
        if !self.out.is_empty() {
            self.flush(i, now);
        }
        let seat = &self.seats[i];
        if seat.generation != generation || seat.fd.is_none() {
            return Read::Gone;
        }
        if let Some(e) = malformed {
            self.fail(i, Failure::Malformed, now, || e.to_string());
            return Read::Gone;
        }
        if seat.h2.is_none() && seat.reader.done() && seat.requested && seat.op.is_some() {
            let status = seat.reader.status();
            self.complete(i, status, now);
        }
        if self.seats[i].phase == Phase::Closing && self.seats[i].generation == generation && self.has_ticket(i) {
            self.ticket_came(i, now);
            return Read::Gone;
        }
        if closed && self.seats[i].generation == generation && self.seats[i].fd.is_some() {
            self.ended(i, true, now);
            return Read::Gone;
        }
        if self.seats[i].generation == generation && self.seats[i].fd.is_some() { more } else { Read::Gone }
    }

    /// The handshake is complete: note what it was, and go on.
    fn established(&mut self, i: usize) {
        let now = self.clock.now();
        let seat = &mut self.seats[i];
        let Some(session) = &seat.tls else { return };
        let resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
        let retried = session.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
        let (early_sent, early_accepted) = session.early_data();
        if let Some(op) = &mut seat.op {
            let early = (early_sent, early_accepted);
            op.kind = self.record.handshakes.note(op, seat.offered, (resumed, retried), early);
            if op.measured {
                let times = self.record.times(op.kind);
                note(&mut times.handshake, now - seat.connected);
                note(&mut times.connect, seat.connected - seat.opened);
            }
        }
        seat.phase = Phase::Open;
        match self.plan.operation {
            // The preface goes out with the flight; the server's settings make the connection ready.
            Operation::KeepAlive if seat.h2.is_some() => {}
            Operation::KeepAlive => self.opened(i, now),
            // It has been asked already.
            Operation::Connection { request: true, .. } if early_accepted => {
                seat.requested = true;
                if let Some(h2) = &mut seat.h2 {
                    h2.out.clear();
                }
            }
            Operation::Connection { request: true, .. } => {
                if let Err((failure, why)) = self.queue_request(i) {
                    self.fail(i, failure, now, || why.into_owned());
                }
            }
            Operation::Connection { request: false, .. } => {
                if let Some(session) = &mut self.seats[i].tls {
                    session.close(&mut self.out);
                }
                self.complete(i, 0, now);
            }
        }
    }

    /// The peer closed the connection; `cleanly` when TLS said so.
    fn ended(&mut self, i: usize, cleanly: bool, now: Nanos) {
        let seat = &mut self.seats[i];
        let unauthenticated = seat.tls.is_some() && !cleanly;
        match (seat.phase, &seat.op) {
            (Phase::Handshaking, _) => {
                self.fail(i, Failure::Tls, now, || "the server closed the connection during the handshake".to_owned())
            }
            (Phase::Closing, _) => self.ticket_came(i, now),
            (_, Some(_)) => {
                // RFC 9112 §9.8: without close_notify the end may be an attacker's.
                if !unauthenticated && seat.requested && seat.h2.is_none() && seat.reader.end() {
                    let status = seat.reader.status();
                    self.complete(i, status, now);
                } else {
                    self.fail(i, Failure::Closed, now, || "closed before the response was complete".to_owned());
                }
            }
            (_, None) if seat.busy() => {
                self.fail(i, Failure::Closed, now, || "closed before the responses were complete".to_owned());
            }
            (_, None) => {
                // An idle connection that the server no longer wanted.
                self.withdraw(i);
                self.vacate(i);
                self.rest(i, now);
            }
        }
    }

    /// The socket reported an error while it was read.
    fn broke(&mut self, i: usize, e: rustix::io::Errno, now: Nanos) {
        let seat = &self.seats[i];
        if !seat.busy() && matches!(seat.phase, Phase::Open | Phase::Closing) {
            return self.ended(i, false, now);
        }
        let connecting = seat.phase == Phase::Connecting;
        let phase = match seat.phase {
            Phase::Connecting => "connecting",
            Phase::Handshaking => "in the TLS handshake",
            _ => "waiting for the response",
        };
        self.fail(i, Failure::of(e, connecting), now, || format!("{phase}: {e}"));
    }

    /// Closes the seat's connection.
    pub(super) fn vacate(&mut self, i: usize) {
        self.vacate_quic(i);
        let seat = &mut self.seats[i];
        seat.phase = Phase::Vacant;
        seat.generation = seat.generation.wrapping_add(1);
        seat.tls = None;
        seat.h2 = None;
        seat.dirty = false;
        seat.pending.clear();
        seat.unsent.clear();
        if let Some(fd) = seat.fd.take() {
            // Closing takes it out of the epoll set as well: nobody else holds it.
            socket::close(fd, self.plan.close);
        }
    }
}

/// What TLS went wrong with.
pub(super) fn tls_failed(e: rustls::Error) -> Problem {
    (Failure::Tls, e.to_string().into())
}
