//! What a lane keeps for a connection with a server over TCP, and the phases of its life.

use crate::memory::Window;
use crate::scratch::Scratch;
use crate::transport::Transport;
use crate::upstream::group::LaneUpstream;
use crate::upstream::h2_connection::H2Upstream;
use crate::upstream::syn::UpstreamSyn;
use sealane_exchange::deadlines::ConnectionWait;
use sealane_lane::{Context, Deadline, Key, Micros, Ready};
use std::collections::VecDeque;
use std::rc::Rc;

/// The life of a connection to a server over TCP:
///
/// ```text
/// Making ─┬─► Busy ◄─► Idle
///         │    └──(relay)──► Closing
///         └─► Shared
/// ```
pub(crate) enum UpstreamPhase {
    Making(Box<Making>),
    /// Serves this exchange over HTTP/1.1, or its bytes are relayed for it.
    Busy(Key, Answer),
    /// HTTP/2: serves as many exchanges as have streams.
    Shared(Box<H2Upstream>),
    /// In the pool.
    Idle,
    /// Of a relay that is over: what is left is sent, then it closes.
    Closing,
}

/// A connection that is being made.
pub(crate) struct Making {
    pub step: Step,
    /// When the step has begun.
    pub began: Micros,
    pub purpose: Purpose,
    /// The handshake has begun in the SYN.
    pub syn: Option<Box<UpstreamSyn>>,
    /// The handshake has begun with the exchange's request as early data.
    pub early: bool,
    /// The server has refused the handshake by an alert in the place of its first message.
    pub refused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Connecting,
    Handshake,
}

/// What a connection is made for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An exchange, whatever the server chooses to speak.
    Exchange(Key),
    /// An exchange that HTTP/2 could not carry.
    OverH1(Key),
    /// HTTP/2 is expected, with such windows: the exchanges in `waiting` wait for it, and others may join them. It is in the group's list.
    ToShare { waiting: VecDeque<Key>, window: Window },
}

impl Purpose {
    /// The exchange that the connection is for, if it is not made to be shared.
    pub fn exchange(&self) -> Option<Key> {
        match self {
            Self::Exchange(exchange) | Self::OverH1(exchange) => Some(*exchange),
            Self::ToShare { .. } => None,
        }
    }

    /// Whether the connection may speak nothing but HTTP/1.1.
    pub fn is_over_h1(&self) -> bool {
        matches!(self, Self::OverH1(_))
    }
}

// `UpstreamPhase::go_on` does not drop them.
const _: () = assert!(!std::mem::needs_drop::<(Key, Answer)>());

impl UpstreamPhase {
    /// The phase of a connection that begins to be made at `began`. `syn`: its handshake has begun in the SYN.
    pub fn making(purpose: Purpose, syn: Option<Box<UpstreamSyn>>, began: Micros) -> Self {
        Self::Making(Box::new(Making { step: Step::Connecting, began, purpose, syn, early: false, refused: false }))
    }

    /// The step that is under way and the handshake in the SYN, of a connection that is being made with one.
    pub fn syn(&mut self) -> Option<(&mut Step, &mut UpstreamSyn)> {
        match self {
            Self::Making(making) => Some((&mut making.step, making.syn.as_mut()?)),
            _ => None,
        }
    }

    /// Goes on to another phase. Those of HTTP/1.1 own nothing, so between them, which is twice for each request, there is nothing to drop.
    #[inline(always)]
    pub fn go_on(&mut self, next: Self) {
        match self {
            Self::Busy(..) | Self::Idle | Self::Closing => std::mem::forget(std::mem::replace(self, next)),
            Self::Making(_) | Self::Shared(_) => *self = next,
        }
    }

    fn step(&self) -> Option<Step> {
        match self {
            Self::Making(making) => Some(making.step),
            _ => None,
        }
    }

    #[inline]
    pub fn is_connecting(&self) -> bool {
        self.step() == Some(Step::Connecting)
    }

    #[inline]
    pub fn is_handshake(&self) -> bool {
        self.step() == Some(Step::Handshake)
    }

    #[inline]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(..))
    }

    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// It is in the group's list of connections that exchanges share, as far as it has not been lost.
    pub fn is_listed(&self) -> bool {
        match self {
            Self::Making(making) => matches!(making.purpose, Purpose::ToShare { .. }),
            Self::Shared(_) => true,
            Self::Busy(..) | Self::Idle | Self::Closing => false,
        }
    }
}

/// How far the server's answer to a connection's exchange has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing of it has come. `kept`: the connection has served an exchange before.
    Awaited { kept: bool },
    /// Something has come.
    Begun,
    /// A head has come, as the last one so far. `keep_alive`: it allows another request on this connection.
    Headed { keep_alive: bool },
}

pub(crate) struct UpstreamConnection {
    pub(super) transport: Transport,
    pub(super) upstream: Rc<LaneUpstream>,
    /// Index into the upstream's servers.
    pub(super) server: usize,
    pub(super) phase: UpstreamPhase,
    pub(super) inbuf: Vec<u8>,
    pub(super) deadline: Deadline,
}

impl UpstreamConnection {
    pub fn new(transport: Transport, (upstream, server): (Rc<LaneUpstream>, usize), phase: UpstreamPhase) -> Self {
        Self { transport, upstream, server, phase, inbuf: Vec::new(), deadline: Deadline::default() }
    }

    /// Its socket has something to tell. Whether what is staged can go on. Of two sockets that race (the handshake in the SYN),
    /// either may be meant, so they are asked later.
    #[inline]
    pub fn note(&mut self, ready: Ready) -> bool {
        if self.phase.is_connecting() && self.syn().is_some() {
            return false;
        }
        self.transport.note(ready);
        ready.write && !self.transport.is_flushed()
    }

    /// Its bytes are relayed from now on, for this exchange.
    pub fn begin_relay(&mut self, exchange: Key) {
        self.phase = UpstreamPhase::Busy(exchange, Answer::Begun);
    }

    /// Its relay is over: what the server has not taken yet is still sent, for a limited time, and then it closes. The caller
    /// marks it for flush.
    pub fn close_after_relay(&mut self, cx: &mut Context, key: Key) {
        let at = self.upstream.settings().until(ConnectionWait::LastBytes, cx.now());
        self.phase = UpstreamPhase::Closing;
        self.deadline.set(cx, key, at);
    }

    /// Whether it closes once what is staged has been sent.
    #[inline]
    pub fn closes(&self) -> bool {
        matches!(self.phase, UpstreamPhase::Closing)
    }

    /// Whether it waits in the pool for a request.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.phase.is_idle()
    }

    /// Whether an entry of the timer wheel is the one at which it is looked at again.
    #[inline]
    pub fn is_armed_for(&self, tick: u64) -> bool {
        self.deadline.is_armed_for(tick)
    }

    /// A timer of it has fired: whether it is time.
    #[inline]
    pub fn fired(&mut self, cx: &mut Context, key: Key) -> bool {
        self.deadline.fired(cx, key)
    }

    /// The exchange that it serves over HTTP/1.1, or whose bytes it relays, or that it is made for if it is not made to be shared.
    #[inline]
    pub fn exchange(&self) -> Option<Key> {
        match &self.phase {
            UpstreamPhase::Busy(exchange, _) => Some(*exchange),
            UpstreamPhase::Making(making) => making.purpose.exchange(),
            UpstreamPhase::Shared(_) | UpstreamPhase::Idle | UpstreamPhase::Closing => None,
        }
    }

    #[inline]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    #[inline]
    pub fn transport_mut(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// Its socket, once it has one for certain.
    pub fn connected_transport(&self) -> Option<&Transport> {
        (!self.phase.is_connecting()).then_some(&self.transport)
    }

    /// The group and the server that it leads to.
    pub fn server(&self) -> (&Rc<LaneUpstream>, usize) {
        (&self.upstream, self.server)
    }

    /// It is gone: its group forgets it, and its socket closes. Whether it was in the pool.
    pub fn dismantle(mut self: Box<Self>, scratch: &mut Scratch, key: Key) -> bool {
        let is_idle = self.phase.is_idle();
        if is_idle {
            self.upstream.forget_idle(self.server, key);
        }
        if self.phase.is_listed() {
            self.upstream.unshare(self.server, key);
        }
        self.transport.say_goodbye(scratch);
        self.transport.dismantle(scratch);
        is_idle
    }

    /// How many of `want` bytes the server has room for.
    #[inline]
    pub fn room(&mut self, want: usize) -> usize {
        self.transport.room(0, want)
    }

    #[inline]
    pub fn is_h2(&self) -> bool {
        matches!(self.phase, UpstreamPhase::Shared(_))
    }

    #[inline]
    pub fn h2(&self) -> Option<&H2Upstream> {
        match &self.phase {
            UpstreamPhase::Shared(h2) => Some(h2),
            _ => None,
        }
    }

    #[inline]
    pub fn h2_mut(&mut self) -> Option<&mut H2Upstream> {
        match &mut self.phase {
            UpstreamPhase::Shared(h2) => Some(h2),
            _ => None,
        }
    }

    /// The handshake in the SYN, of a connection that is being made with one.
    pub fn syn(&mut self) -> Option<&mut UpstreamSyn> {
        self.phase.syn().map(|(_, syn)| syn)
    }

    /// Exchanges that wait until it is made, or for the server's SETTINGS.
    pub fn waiting(&self) -> Option<&VecDeque<Key>> {
        match &self.phase {
            UpstreamPhase::Making(making) => match &making.purpose {
                Purpose::ToShare { waiting, .. } => Some(waiting),
                Purpose::Exchange(_) | Purpose::OverH1(_) => None,
            },
            UpstreamPhase::Shared(h2) => h2.waiting(),
            UpstreamPhase::Busy(..) | UpstreamPhase::Idle | UpstreamPhase::Closing => None,
        }
    }

    /// The same, to be told that they need not wait any more.
    pub fn take_waiting(&mut self) -> VecDeque<Key> {
        match &mut self.phase {
            UpstreamPhase::Making(making) => match &mut making.purpose {
                Purpose::ToShare { waiting, .. } => std::mem::take(waiting),
                Purpose::Exchange(_) | Purpose::OverH1(_) => VecDeque::new(),
            },
            UpstreamPhase::Shared(h2) => h2.waiting_mut().map(std::mem::take).unwrap_or_default(),
            UpstreamPhase::Busy(..) | UpstreamPhase::Idle | UpstreamPhase::Closing => VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{group, limits, settings, snapshot, upstream};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    const WRITE: Ready = Ready { read: false, write: true, peer_closed: false, error: false };

    /// A connection in this phase, its key, and its other end.
    fn connection(phase: UpstreamPhase) -> (Box<UpstreamConnection>, Key, impl Sized) {
        let (settings, _published) = settings(snapshot(limits(), vec![upstream(1)]));
        let (socket, peer) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        let server = (group(settings.lane()), 0);
        (Box::new(UpstreamConnection::new(Transport::new(socket), server, phase)), Key::from_u64(7), peer)
    }

    #[test]
    fn a_relay_that_is_over_sends_the_rest_for_a_limited_time() {
        let (mut upstream_conn, key, _peer) = connection(UpstreamPhase::Idle);
        let exchange = Key::from_u64(8);
        upstream_conn.begin_relay(exchange);
        assert!(!upstream_conn.closes() && !upstream_conn.is_idle());
        assert_eq!(upstream_conn.exchange(), Some(exchange));
        upstream_conn.close_after_relay(&mut Context::new().unwrap(), key);
        assert!(upstream_conn.closes());
        assert_eq!((upstream_conn.exchange(), upstream_conn.deadline.at()), (None, 1000));
        assert!(!upstream_conn.dismantle(&mut Scratch::new(), key), "it is not in the pool");
    }

    #[test]
    fn what_is_staged_goes_on_when_the_socket_has_room() {
        let (mut upstream_conn, _, _peer) = connection(UpstreamPhase::Idle);
        assert!(!upstream_conn.note(WRITE), "nothing is staged");
        upstream_conn.transport.stage.push(1);
        assert!(upstream_conn.note(WRITE));
        assert!(!upstream_conn.note(Ready { write: false, ..WRITE }));
        assert!(upstream_conn.connected_transport().is_some());
        let exchange = Key::from_u64(8);
        let (upstream_conn, ..) = connection(UpstreamPhase::making(Purpose::Exchange(exchange), None, 0));
        assert!(upstream_conn.connected_transport().is_none());
        assert_eq!(upstream_conn.exchange(), Some(exchange));
    }
}
