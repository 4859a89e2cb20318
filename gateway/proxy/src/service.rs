//! The proxy as a lane's service: events, timers, mail, snapshots, and the end of the lane.
//!
//! New clients come through `accept`, whose `admission` bounds their share of a turn. Bytes of clients go to
//! `client::connection`, bytes of upstreams to `upstream::connection`. `flush` sends what they have staged.

use crate::accept::admission::{Admission, awaits_admission};
use crate::accept::syn::Signatures;
use crate::accept::{LISTENER, LISTENER_BITS};
use crate::access_log::{AccessLog, Entry, FLUSH_MS, LogSink};
use crate::clock::Clock;
use crate::conn::{ClientConnection, ClientPhase, Conn, UpstreamConnection, UpstreamPhase};
use crate::counters::Counters;
use crate::exchange::Exchange;
use crate::exchange::streams::{Later, client_of};
use crate::lane_state::LaneSnapshot;
use crate::limits::{ClientConnections, LaneLimits, Passed, ROUTING_TIMER};
use crate::quic::succession::QuicSuccessor;
use crate::quic::{Datagram, Quic, UDP};
use crate::scratch::Scratch;
use crate::snapshot::{Listener, Snapshot};
use crate::transport::TransportError;
use crate::upstream::syn::DESTINATIONS;
use sealane_lane::{After, Context, Deadline, Key, Load, Mail, Mailbox, Millis, Ready, Service, Slots, Subscription};
use sealane_tls::sessions::{self, SessionStore};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The access log's timer.
const LOG_TIMER: u64 = (1 << 63) | (1 << 62);
/// At most so many connections are taken from the kernel's queue when draining.
const MAX_QUEUED: usize = 1024;
/// Entries of the timer wheel, beside a few per connection, above which those that are stale are removed.
const STALE_TIMERS: usize = 1024;
/// How long a lingering connection is read.
const LINGER: Duration = Duration::from_secs(2);

/// The capacity of a lane's mailbox, by the kinds below: what clients can cause to be there.
pub const MAIL_CAPACITY: &[usize] = &[1 << 20, 256, 1 << 16];
/// Datagrams, in bytes.
pub(crate) const DATAGRAMS: usize = 0;
/// Connections that are handed over.
const CONNECTIONS: usize = 1;
/// Keys of rate limits.
const RATE_NEWS: usize = 2;

/// What can be mailed to a lane of the proxy.
#[derive(Debug)]
pub enum Message {
    /// Accept no more, let what is under way finish, and stop.
    Drain {
        /// Whatever is left is cut off after this.
        limit: Duration,
        /// Another process goes on accepting from the same sockets: what waits in their queues is left to it.
        successor: Option<QuicSuccessor>,
    },
    /// A connection whose session this lane owns, with the bytes read so far.
    Connection(HandedOver),
    /// What another lane has let pass of a rate limit.
    Passed(Arc<Passed>),
    /// The process holds more memory than it should: those who hold the most of it are to give it back.
    FreeMemory,
    /// A datagram of a QUIC connection that this lane owns, or whose session it owns.
    Datagram(Box<Datagram>),
}

impl Mail for Message {
    fn load(&self) -> Load {
        match self {
            Self::Drain { .. } | Self::FreeMemory => Load::Free,
            Self::Datagram(datagram) => Load::Counted { kind: DATAGRAMS, amount: datagram.load() },
            Self::Connection(_) => Load::Counted { kind: CONNECTIONS, amount: 1 },
            Self::Passed(passed) => Load::Counted { kind: RATE_NEWS, amount: passed.len() },
        }
    }
}

/// A connection on its way to another lane, before it has a session.
#[derive(Debug)]
pub struct HandedOver {
    pub(crate) fd: OwnedFd,
    pub(crate) bytes: Vec<u8>,
    pub(crate) listener: u32,
    pub(crate) peer: SocketAddr,
}

/// What a lane of the proxy starts with.
pub struct Setup {
    /// Which lane slot this is.
    pub slot: usize,
    /// Mailboxes of all lanes, by slot.
    pub mailboxes: Vec<Mailbox<Message>>,
    /// Where stateful TLS sessions are kept.
    pub sessions: SessionStore,
    /// Where snapshots come from.
    pub snapshots: Subscription<Snapshot>,
    /// The lane's counters, also held by whoever reads them.
    pub counters: Arc<Counters>,
    /// Set by control while the process holds more memory than it should: nobody new is accepted then.
    pub short_of_memory: Arc<AtomicBool>,
    /// How many connections each client has, in all lanes.
    pub clients: Arc<ClientConnections>,
    /// Where access log lines go; `None` writes none.
    pub log: Option<LogSink>,
}

/// The proxy of one lane.
pub struct Proxy {
    pub(crate) slot: usize,
    pub(crate) mailboxes: Vec<Mailbox<Message>>,
    pub(crate) snapshots: Subscription<Snapshot>,
    pub(crate) lane: Rc<LaneSnapshot>,
    pub(crate) conns: Slots<Conn>,
    pub(crate) exchanges: Slots<Box<Exchange>>,
    #[expect(clippy::vec_box, reason = "the boxes move between here and the slots")]
    pub(crate) spare: Vec<Box<Exchange>>,
    pub(crate) scratch: Scratch,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Clock,
    pub(crate) log: AccessLog,
    pub(crate) signatures: Signatures,
    /// What is known of the paths to upstreams, for hellos in SYNs.
    pub(crate) dialled: sealane_dial::Memory,
    /// New clients, whose turn comes after those already connected.
    pub(crate) admission: Admission,
    pub(crate) needs_flush: Vec<Key>,
    /// The same of connections that many exchanges share.
    pub(crate) batch: Vec<Key>,
    /// What to go on with, because what it waited for has come.
    pub(crate) later: Vec<Later>,
    /// Clients that are connected.
    pub(crate) client_count: usize,
    pub(crate) short_of_memory: Arc<AtomicBool>,
    pub(crate) clients: Arc<ClientConnections>,
    pub(crate) listening: bool,
    pub(crate) accept_timer: Deadline,
    pub(crate) draining: Option<Millis>,
    /// What holds over lanes, and queues.
    pub(crate) routing: LaneLimits,
    pub(crate) quic: Quic,
}

impl Proxy {
    /// Sets a lane up; called on its own thread.
    pub fn new(setup: Setup, cx: &mut Context) -> std::io::Result<Self> {
        sessions::bind_thread(setup.sessions);
        let lane =
            Rc::new(LaneSnapshot::new(setup.snapshots.current().clone(), None, setup.slot, setup.mailboxes.len()));
        let mut proxy = Self {
            slot: setup.slot,
            mailboxes: setup.mailboxes,
            snapshots: setup.snapshots,
            lane,
            conns: Slots::default(),
            exchanges: Slots::default(),
            spare: Vec::new(),
            scratch: Scratch::new(),
            counters: setup.counters,
            clock: Clock::default(),
            log: AccessLog::new(setup.log),
            signatures: Signatures::default(),
            dialled: sealane_dial::Memory::new(DESTINATIONS),
            admission: Admission::default(),
            needs_flush: Vec::new(),
            batch: Vec::new(),
            later: Vec::new(),
            client_count: 0,
            short_of_memory: setup.short_of_memory,
            clients: setup.clients,
            listening: false,
            accept_timer: Deadline::default(),
            draining: None,
            routing: LaneLimits::default(),
            quic: Quic::default(),
        };
        proxy.routing.refresh(&proxy.lane);
        proxy.clock.refresh(0);
        proxy.listen(cx)?;
        proxy.quic_listen(cx)?;
        Ok(proxy)
    }

    pub(crate) fn client_conn(&mut self, key: Key) -> Option<&mut ClientConnection> {
        match self.conns.get_mut(key) {
            Some(Conn::Client(client_conn)) => Some(client_conn),
            _ => None,
        }
    }

    pub(crate) fn upstream_conn(&mut self, key: Key) -> Option<&mut UpstreamConnection> {
        match self.conns.get_mut(key) {
            Some(Conn::Upstream(upstream_conn)) => Some(upstream_conn),
            _ => None,
        }
    }

    /// Lets a connection go on: it may have bytes that could not be taken before.
    pub(crate) fn go_on(&mut self, cx: &mut Context, key: Key) {
        match self.conns.get(key) {
            Some(Conn::Client(_)) => self.client_ready(cx, key),
            Some(Conn::Upstream(_)) => self.upstream_go_on(cx, key),
            Some(Conn::Quic(_)) => self.quic_drive(cx, key),
            None => {}
        }
    }

    pub(crate) fn after_closing(&mut self, cx: &mut Context, key: Key, linger: bool) {
        match self.client_conn(key) {
            Some(client_conn) if linger && !client_conn.transport.ended => {
                let _ = rustix::net::shutdown(&client_conn.transport.fd, rustix::net::Shutdown::Write);
                client_conn.phase = ClientPhase::Lingering;
                client_conn.transport.readable = true;
                client_conn.deadline.after(cx, key, LINGER);
                self.client_ready(cx, key);
            }
            _ => self.close(cx, key),
        }
    }

    /// A socket or session has failed.
    pub(crate) fn wire_failed(&mut self, cx: &mut Context, key: Key, error: TransportError) {
        match self.conns.get(key) {
            Some(Conn::Client(_)) => self.client_failed(cx, key, error),
            Some(Conn::Upstream(_)) => self.upstream_failed(cx, key, &error),
            Some(Conn::Quic(_)) | None => {}
        }
    }

    /// Lets go of a connection without a word.
    pub(crate) fn close(&mut self, cx: &mut Context, key: Key) {
        if matches!(self.conns.get(key), Some(Conn::Client(client_conn)) if client_conn.h2.is_some()) {
            self.h2_abort_all(cx, key);
        }
        match self.conns.remove(key) {
            Some(Conn::Client(client_conn)) => {
                self.count_out(client_conn.client.counted);
                self.client_count -= 1;
                self.counters.open.set(self.client_count as u64);
                client_conn.transport.dismantle(&mut self.scratch);
                if !self.listening {
                    self.resume_accepting(cx);
                }
            }
            Some(Conn::Upstream(upstream_conn)) => {
                if upstream_conn.phase == UpstreamPhase::Idle {
                    self.counters.pooled.dec();
                    if let Some(idle) = upstream_conn.upstream.idle.borrow_mut().get_mut(upstream_conn.server) {
                        idle.retain(|k| *k != key);
                    }
                }
                if upstream_conn.shared
                    && let Some(shared) = upstream_conn.upstream.shared.borrow_mut().get_mut(upstream_conn.server)
                {
                    shared.retain(|k| *k != key);
                }
                upstream_conn.transport.dismantle(&mut self.scratch);
            }
            Some(Conn::Quic(_)) | None => {}
        }
    }

    fn refresh_snapshot(&mut self, cx: &mut Context) {
        if !self.snapshots.changed() {
            return;
        }
        let was_listening = self.listening;
        // Clients in the queue of a listener that goes have been accepted already.
        if was_listening {
            let newest = self.snapshots.current().clone();
            self.empty_queues(cx, |l| !newest.listeners.iter().any(|n| n.id == l.id));
        }
        self.unlisten(cx);
        self.lane = Rc::new(LaneSnapshot::new(
            self.snapshots.current().clone(),
            Some(&self.lane),
            self.slot,
            self.mailboxes.len(),
        ));
        self.routing.refresh(&self.lane);
        if was_listening {
            let _ = self.listen(cx);
        }
        self.renew_clients(cx);
        self.carry_pools(cx);
        self.quic_refresh(cx);
        self.flush_marked(cx);
    }

    /// Accepts all that waits in the kernel's queues of some listeners.
    fn empty_queues(&mut self, cx: &mut Context, of: impl Fn(&Listener) -> bool) {
        let tokens: Vec<u64> = self.own_sockets().map(|(token, _)| token).collect();
        for token in tokens {
            let index = (token & ((1 << LISTENER_BITS) - 1)) as usize;
            if !self.lane.listeners.get(index).is_some_and(|l| of(&l.listener)) {
                continue;
            }
            self.accept(cx, token, MAX_QUEUED);
        }
    }

    fn drain(&mut self, cx: &mut Context, limit: Duration, successor: Option<QuicSuccessor>) {
        let is_alone = successor.is_none();
        if let Some(successor) = successor {
            self.quic_follow(cx, successor);
        }
        if is_alone && self.draining.is_none() {
            // Clients in the kernel's queue are accepted first, so that no connection is reset without an answer.
            self.empty_queues(cx, |_| true);
        }
        self.pause_accepting(cx);
        if is_alone {
            for (_, socket) in self.own_sockets() {
                // The socket is shared with control, so closing our end would not stop it from listening.
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
        }
        let deadline = cx.now() + limit.as_millis() as Millis;
        self.draining = Some(deadline);
        cx.timers.arm(LISTENER, deadline);
        // Connections without a request under way end now, the others with their response. With a successor there is
        // no hurry: a client whose request is on its way already gets its answer here, with the word that it is the
        // last; whoever says nothing is let go at the deadline.
        let keys: Vec<Key> = self.conns.keys().collect();
        for key in keys {
            match self.conns.get_mut(key) {
                Some(Conn::Client(f)) if f.h2.is_some() => {
                    if let Some(h2) = &mut f.h2 {
                        h2.shut_down(cx.now());
                    }
                    self.mark_for_flush(key);
                }
                Some(Conn::Client(f))
                    if is_alone && f.phase == ClientPhase::Open && f.exchange.is_none() && !f.in_head =>
                {
                    f.transport.finish();
                    f.phase = ClientPhase::Closing { linger: true };
                    self.mark_for_flush(key);
                }
                Some(Conn::Upstream(b)) if b.phase == UpstreamPhase::Idle => self.close(cx, key),
                _ => {}
            }
        }
        self.quic_drain(cx);
        self.flush_marked(cx);
    }

    /// Removes what deadlines that were moved forward have left in the timer wheel, once that is most of what is there.
    fn forget_stale_timers(&mut self, cx: &mut Context) {
        if cx.timers.len() <= STALE_TIMERS + 4 * self.conns.len() {
            return;
        }
        let conns = &self.conns;
        cx.timers.retain(|token, tick| {
            token & LISTENER != 0
                || conns.get(Key::from_u64(token)).is_some_and(|conn| conn.deadline().is_armed_for(tick))
        });
    }

    /// Writes the access log line of a finished exchange.
    pub(crate) fn log_exchange(&mut self, cx: &mut Context, x: &Exchange) {
        let Some(format) = self.lane.snapshot.access_log.filter(|_| self.log.is_on()) else { return };
        let Some(client) = client_of(&self.conns, x.client_stream) else { return };
        let tls = self.conns.get(x.client_stream.conn()).and_then(Conn::tls_version);
        let entry = Entry { x, client, tls, now: cx.now() };
        if self.log.line(format, &entry, &self.clock) && self.log.due <= cx.now() {
            self.log.due = cx.now() + FLUSH_MS;
            cx.timers.arm(LOG_TIMER, self.log.due);
        }
        self.log.hand_over(false);
    }
}

impl Service for Proxy {
    type Message = Message;

    fn ready(&mut self, cx: &mut Context, token: u64, ready: Ready) {
        if token & UDP == UDP {
            self.quic_ready(cx, (token & !UDP) as usize);
            return self.flush_marked(cx);
        }
        if token & LISTENER != 0 {
            return self.admission.listener_ready(token);
        }
        let key = Key::from_u64(token);
        match self.conns.get_mut(key) {
            Some(Conn::Client(client_conn)) => {
                client_conn.transport.note(ready);
                let unproven = client_conn.transport.allowance.is_some();
                if ready.write && !client_conn.transport.is_flushed() {
                    self.mark_for_flush(key);
                }
                if unproven {
                    self.maybe_proven(cx, key);
                }
                let Self { conns, admission, .. } = self;
                match conns.get_mut(key) {
                    Some(Conn::Client(client_conn)) if awaits_admission(client_conn) => {
                        admission.event(key, client_conn, ready)
                    }
                    _ => self.client_event(cx, key, ready),
                }
            }
            Some(Conn::Upstream(upstream_conn)) => {
                // Of two sockets that race, either may be meant.
                if !(upstream_conn.phase == UpstreamPhase::Connecting && upstream_conn.syn.is_some()) {
                    upstream_conn.transport.note(ready);
                    if ready.write && !upstream_conn.transport.is_flushed() {
                        self.mark_for_flush(key);
                    }
                }
                self.upstream_event(cx, key, ready);
            }
            Some(Conn::Quic(_)) | None => return,
        }
        self.flush_marked(cx);
    }

    fn timeout(&mut self, cx: &mut Context, token: u64) {
        if token == LOG_TIMER {
            self.log.hand_over(true);
            return;
        }
        if token == ROUTING_TIMER {
            return self.routing_timer(cx);
        }
        if token & LISTENER != 0 {
            return self.accept_timeout(cx);
        }
        let key = Key::from_u64(token);
        let due = match self.conns.get_mut(key) {
            Some(Conn::Client(f)) => f.deadline.fired(cx, key),
            Some(Conn::Upstream(b)) => b.deadline.fired(cx, key),
            Some(Conn::Quic(q)) => q.deadline.fired(cx, key),
            None => return,
        };
        if !due {
            return;
        }
        match self.conns.get(key) {
            Some(Conn::Client(_)) => self.client_timeout(cx, key),
            Some(Conn::Quic(_)) => self.quic_timeout(cx, key),
            _ => self.upstream_timeout(cx, key),
        }
        self.flush_marked(cx);
    }

    fn message(&mut self, cx: &mut Context, message: Message) {
        match message {
            Message::Drain { limit, successor } => self.drain(cx, limit, successor),
            Message::Passed(passed) => self.routing.heard(cx, &passed),
            Message::FreeMemory => self.free_memory(cx),
            Message::Datagram(datagram) => {
                self.counters.quic_dropped_mailbox.set(self.mailboxes[self.slot].refused(DATAGRAMS));
                self.quic_forwarded(cx, *datagram);
                self.flush_marked(cx);
            }
            Message::Connection(c) => {
                let found = self.lane.listeners.iter().find(|l| l.listener.id == c.listener).cloned();
                let Some(listener) = found else { return };
                // The same limits as at accepting. The other lane has looked (`Mailbox::is_closed`), but not in this moment.
                if self.is_full() || self.admission.is_full() {
                    self.pause_accepting(cx);
                    self.accept_again(cx);
                    return self.counters.handover_limit.inc();
                }
                let allowance = Self::examine_handed_over(&c.fd, &listener);
                let Some(key) = self.adopt(cx, c.fd, listener, c.peer, ClientPhase::Hello, allowance) else { return };
                if let Some(client_conn) = self.client_conn(key) {
                    client_conn.transport.unread = c.bytes;
                }
                // Its lane has counted it in, and out.
                if !self.count_in(key) {
                    return self.close(cx, key);
                }
                self.hello_arrived(cx, key, false);
                self.flush_marked(cx);
            }
        }
    }

    fn turn(&mut self, cx: &mut Context) -> After {
        self.clock.refresh(cx.now());
        self.forget_stale_timers(cx);
        // Before all that was deferred: new clients, and requests that wait for it.
        self.refresh_snapshot(cx);
        self.serve_admission(cx);
        self.serve_queues(cx);
        if !self.later.is_empty() {
            let later = std::mem::take(&mut self.later);
            for key in &later {
                self.resume(cx, *key);
                self.flush_marked(cx);
            }
        }
        self.settle_shared(cx);
        let more = self.quic_turn(cx);
        if let Some(deadline) = self.draining
            && (self.client_count == 0 && self.quic.waiting.is_empty() || cx.now() >= deadline)
        {
            self.log.hand_over(true);
            return After::Stop;
        }
        if self.admission.is_empty() && self.later.is_empty() && self.batch.is_empty() && !more {
            After::Sleep
        } else {
            After::Again
        }
    }
}
