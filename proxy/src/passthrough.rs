//! Connections that are relayed as they are: plain TCP, and TLS for names whose keys are not ours.
//!
//! A relayed connection is an exchange without messages: both of its flows are raw from the start, as those of a
//! tunnel after CONNECT. So servers are chosen, tried, counted and timed as for requests, an end of one direction is
//! passed on while the other goes on (half-close), and the access log gets a line, whose method is `TCP` and whose
//! target is the name in the client's hello.
//!
//! ```text
//! accept ── Everything ──────────────────────────────► relay ─► dispatch ─► connected ─► start_relay
//!    └───── Named: hello_arrived ── passthrough_for ──────┘
//! ```

use crate::choose::Routed;
use crate::conn::{BackPhase, Conn, FrontPhase};
use crate::service::Proxy;
use crate::sides::{ClientSide, ServerSide};
use crate::snapshot::{Action, Listener};
use sealane_exchange::Event;
use sealane_http::BodyLength;
use sealane_lane::{Context, Key};

/// The upstream group for connections that ask for a name, if they are not ours to read.
pub(crate) fn passthrough_for(listener: &Listener, name: Option<&str>) -> Option<usize> {
    match listener.actions.get(listener.sites.host_for(name)?)? {
        Action::Passthrough { upstream } => Some(*upstream),
        _ => None,
    }
}

impl Proxy {
    /// Relays a client's connection, with what has been read of it so far. Without an upstream it is closed.
    pub(crate) fn relay(&mut self, cx: &mut Context, key: Key, upstream: Option<usize>, name: Option<&str>) {
        let Some(front) = self.front(key) else { return };
        front.large_hello = None;
        let upstream = upstream.and_then(|u| front.client.listener.upstreams.get(u).cloned());
        let Some(upstream) = upstream else {
            self.counters.relays_refused.inc();
            return self.close(cx, key);
        };
        let side = ClientSide::H1(key);
        let mut x = self.spare_exchange(side);
        x.front = side;
        x.request.clear();
        // What is put here is visible ASCII, or is left out.
        let _ = x.request.set_method(b"TCP");
        if name.is_none_or(|n| x.request.set_target(n.as_bytes()).is_err()) {
            let _ = x.request.set_target(b"-");
        }
        x.started = cx.now();
        x.body = BodyLength::None;
        x.keep_alive = false;
        x.upgrade = false;
        x.begin_relay();
        x.upstream = Some(upstream.clone());
        x.routed.relayed = true;
        let Some(Conn::Front(front)) = self.conns.get_mut(key) else { return };
        Routed::wish(&mut x, &upstream, front.client.peer.ip());
        front.phase = FrontPhase::Open;
        front.established = true;
        front.inbuf = std::mem::take(&mut front.wire.unread);
        let limits = &self.lane.snapshot.limits;
        front.deadline.after(cx, key, limits.idle_timeout);
        let exchange = self.exchanges.insert(x);
        front.exchange = Some(exchange);
        self.counters.relays.inc();
        self.counters.active.set(self.exchanges.len() as u64);
        let Some(x) = self.exchanges.get_mut(exchange) else { return };
        let actions = x.machine.on(Event::Forward);
        self.perform(cx, exchange, actions);
    }

    /// The connection with the server is there: from now on bytes pass as they are.
    pub(crate) fn start_relay(&mut self, cx: &mut Context, exchange: Key, key: Key) {
        let Self { conns, exchanges, .. } = self;
        let (Some(Conn::Back(back)), Some(x)) = (conns.get_mut(key), exchanges.get_mut(exchange)) else { return };
        back.exchange = Some(exchange);
        back.answered = true;
        let side = ServerSide::H1(key);
        x.routed.succeeded();
        x.status = 200;
        x.up.framing = BodyLength::UntilClose;
        x.down.framing = BodyLength::UntilClose;
        self.request_sent(cx, exchange, side);
        self.touch(key);
    }

    /// The server of a relayed connection will say no more, but the client may.
    pub(crate) fn half_close(&mut self, exchange: Key, side: ClientSide) {
        let relayed = self.exchanges.get(exchange).is_some_and(|x| x.routed.relayed);
        match self.front(side.conn()) {
            Some(front) if relayed => front.wire.finish_sending(),
            _ => return self.client_end(exchange, side),
        }
        self.touch(side.conn());
    }

    /// A relayed client is closed both ways, or has failed, but not all that it has sent has been read: reading will
    /// come to its end, or to the failure.
    pub(crate) fn relay_reads_on(&mut self, key: Key) -> bool {
        let Self { conns, exchanges, .. } = self;
        let Some(Conn::Front(front)) = conns.get(key) else { return false };
        let relayed = front.exchange.and_then(|x| exchanges.get(x)).is_some_and(|x| x.routed.relayed);
        relayed && !front.wire.ended
    }

    /// Both directions have ended; what the server has not taken yet is still sent.
    pub(crate) fn relay_done(&mut self, cx: &mut Context, side: ServerSide) {
        let ServerSide::H1(key) = side else { return self.server_finish(cx, side, false) };
        let Some(back) = self.back(key) else { return };
        let wait = back.upstream.upstream.idle_timeout;
        back.exchange = None;
        back.phase = BackPhase::Closing;
        back.deadline.after(cx, key, wait);
        self.touch(key);
    }
}
