//! Sends staged bytes at the end of an event or of a turn, and resumes flows that waited for room.

use crate::conn::{ClientPhase, Conn, UpstreamPhase};
use crate::exchange::streams::{ClientStream, Later, UpstreamStream};
use crate::service::Proxy;
use sealane_lane::{Context, Key};

/// How often shared connections are driven and sent per turn, while that gives them more to send.
const ROUNDS: usize = 4;
/// How often flows are resumed before other connections get their turn.
const RESUMES: usize = 16;

impl Proxy {
    /// Sends what is staged, and goes on with flows that waited for room.
    pub(crate) fn flush_marked(&mut self, cx: &mut Context) {
        let mut resumes = 0;
        while let Some(key) = self.connections.next_marked() {
            self.flush(cx, key, &mut resumes);
        }
    }

    pub(crate) fn flush(&mut self, cx: &mut Context, key: Key, resumes: &mut usize) {
        let Self { connections, scratch, counters, .. } = self;
        let Some(conn) = connections.get_mut(key) else { return };
        let Some(transport) = conn.transport() else { return };
        transport.needs_flush = false;
        let allowed = transport.allowance;
        if let Err(e) = transport.flush(scratch) {
            return self.wire_failed(cx, key, e);
        }
        if allowed > Some(0) && transport.allowance == Some(0) && !transport.is_flushed() {
            counters.syn_capped.inc();
        }
        let has_room = transport.has_room();
        let flushed = transport.is_flushed();
        if let Conn::Client(client_conn) = conn
            && let ClientPhase::Closing { linger } = client_conn.phase
        {
            if flushed {
                self.after_closing(cx, key, linger);
            }
            return;
        }
        if let Conn::Upstream(upstream_conn) = conn
            && upstream_conn.phase == UpstreamPhase::Closing
        {
            if flushed {
                self.close(cx, key);
            }
            return;
        }
        if !has_room {
            return;
        }
        match self.connections.get(key) {
            Some(Conn::Client(client_conn)) if client_conn.h2.is_some() => self.h2_client_room(cx, key),
            Some(Conn::Upstream(upstream_conn)) if upstream_conn.h2.is_some() => self.h2_upstream_room(cx, key),
            _ => {
                if let Some(source) = self.blocked_source(cx, key) {
                    *resumes += 1;
                    if *resumes > RESUMES {
                        self.exchanges.go_on_later(source);
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
            let mut batch = self.connections.take_shared();
            for key in batch.drain(..) {
                let Some(conn) = self.connections.get_mut(key) else { continue };
                if let Some(transport) = conn.transport() {
                    transport.needs_flush = false;
                }
                let stuck = !conn.is_drained();
                match conn {
                    Conn::Client(_) => self.h2_client_drive(cx, key),
                    Conn::Upstream(_) => self.h2_upstream_drive(cx, key),
                    Conn::Quic(_) => {}
                }
                self.flush(cx, key, &mut 0);
                if stuck && self.connections.get(key).is_some_and(Conn::is_drained) {
                    self.exchanges.go_on_later(Later::Conn(key));
                }
                self.flush_marked(cx);
            }
            if !self.connections.has_shared() {
                return self.connections.reuse_shared(batch);
            }
        }
    }

    /// The source that waits for room on this connection.
    fn blocked_source(&mut self, cx: &Context, sink: Key) -> Option<Later> {
        let exchange = match self.connections.get(sink)? {
            // Requests that wait here because their predecessors' answers have.
            Conn::Client(f) if f.exchange.is_none() => {
                let more = f.transport.readable || !f.inbuf.is_empty() && !f.in_head;
                return (more && f.phase == ClientPhase::Open && f.established).then_some(Later::Conn(sink));
            }
            Conn::Client(f) => f.exchange?,
            Conn::Upstream(b) => b.exchange?,
            Conn::Quic(_) => return None,
        };
        let x = self.exchanges.get_mut(exchange)?;
        if x.client_stream == ClientStream::H1(sink) {
            x.response_body.unblock(cx.now()).then_some(Later::Server(exchange))
        } else {
            let waits = x.upstream_stream == Some(UpstreamStream::H1(sink)) && x.request_body.unblock(cx.now());
            waits.then_some(Later::Client(exchange))
        }
    }
}
