//! The end of an event and of a turn: what is staged goes out, and who waited for room gets on.

use crate::conn::{BackPhase, Conn, FrontPhase};
use crate::service::Proxy;
use crate::sides::{ClientSide, Later, ServerSide};
use sealane_lane::{Context, Key};

/// How often shared connections are driven and sent per turn, while that gives them more to send.
const ROUNDS: usize = 4;
/// How often flows are resumed before other connections get their turn.
const RESUMES: usize = 16;

impl Proxy {
    /// Makes sure that what is staged on a connection is sent before the event is over.
    #[inline]
    pub(crate) fn touch(&mut self, key: Key) {
        if let Some(conn) = self.conns.get_mut(key) {
            let shared = conn.is_shared();
            let Some(wire) = conn.wire() else { return self.quic_touch(key) };
            if !wire.dirty {
                wire.dirty = true;
                // What many exchanges share is sent once per turn: their frames then leave in one record.
                if shared { self.batch.push(key) } else { self.dirty.push(key) }
            }
        }
    }

    /// Sends what is staged, and goes on with flows that waited for room.
    pub(crate) fn settle(&mut self, cx: &mut Context) {
        let mut resumes = 0;
        while let Some(key) = self.dirty.pop() {
            self.flush(cx, key, &mut resumes);
        }
    }

    pub(crate) fn flush(&mut self, cx: &mut Context, key: Key, resumes: &mut usize) {
        let Self { conns, scratch, counters, .. } = self;
        let Some(conn) = conns.get_mut(key) else { return };
        let Some(wire) = conn.wire() else { return };
        wire.dirty = false;
        let allowed = wire.allowance;
        if let Err(e) = wire.flush(scratch) {
            return self.wire_failed(cx, key, e);
        }
        if allowed > Some(0) && wire.allowance == Some(0) && !wire.is_flushed() {
            counters.syn_capped.inc();
        }
        let has_room = wire.has_room();
        let flushed = wire.is_flushed();
        if let Conn::Front(front) = conn
            && let FrontPhase::Closing { linger } = front.phase
        {
            if flushed {
                self.after_closing(cx, key, linger);
            }
            return;
        }
        if let Conn::Back(back) = conn
            && back.phase == BackPhase::Closing
        {
            if flushed {
                self.close(cx, key);
            }
            return;
        }
        if !has_room {
            return;
        }
        match self.conns.get(key) {
            Some(Conn::Front(front)) if front.h2.is_some() => self.h2_front_room(cx, key),
            Some(Conn::Back(back)) if back.h2.is_some() => self.h2_back_room(cx, key),
            _ => {
                if let Some(source) = self.blocked_source(cx, key) {
                    *resumes += 1;
                    if *resumes > RESUMES {
                        self.later.push(source);
                    } else {
                        self.resume(cx, source);
                    }
                }
            }
        }
    }

    /// Drives the connections that many exchanges share, and sends what they have.
    pub(crate) fn settle_shared(&mut self, cx: &mut Context) {
        for _ in 0..ROUNDS {
            let mut batch = std::mem::take(&mut self.batch);
            for key in batch.drain(..) {
                let Some(conn) = self.conns.get_mut(key) else { continue };
                if let Some(wire) = conn.wire() {
                    wire.dirty = false;
                }
                let stuck = !conn.is_drained();
                match conn {
                    Conn::Front(_) => self.h2_front_drive(cx, key),
                    Conn::Back(_) => self.h2_back_drive(cx, key),
                    Conn::Quic(_) => {}
                }
                self.flush(cx, key, &mut 0);
                if stuck && self.conns.get(key).is_some_and(Conn::is_drained) {
                    self.later.push(Later::Conn(key));
                }
                self.settle(cx);
            }
            if self.batch.is_empty() {
                // The memory is kept.
                self.batch = batch;
                return;
            }
        }
    }

    /// The source that waits for room on this connection.
    fn blocked_source(&mut self, cx: &Context, sink: Key) -> Option<Later> {
        let exchange = match self.conns.get(sink)? {
            // Requests that wait here because their predecessors' answers have.
            Conn::Front(f) if f.exchange.is_none() => {
                let more = f.wire.readable || !f.inbuf.is_empty() && !f.in_head;
                return (more && f.phase == FrontPhase::Open && f.established).then_some(Later::Conn(sink));
            }
            Conn::Front(f) => f.exchange?,
            Conn::Back(b) => b.exchange?,
            Conn::Quic(_) => return None,
        };
        let x = self.exchanges.get_mut(exchange)?;
        if x.front == ClientSide::H1(sink) {
            x.down.unblock(cx.now()).then_some(Later::Server(exchange))
        } else {
            let waits = x.back == Some(ServerSide::H1(sink)) && x.up.unblock(cx.now());
            waits.then_some(Later::Client(exchange))
        }
    }
}
