//! The proxy as a lane's service: events, timeouts, mail, snapshots, the end.
//!
//! Where things go from here: new clients come by `accepting` when `newcomers` lets them, what is staged leaves by
//! `settling`; bytes of clients go to `front`, bytes of upstreams to `back`, what a request and its response have to do
//! with each other to `exchange_loop`.

use crate::accepting::{LISTENER, LISTENER_BITS};
use crate::access_log::{AccessLog, Entry, FLUSH_MS, LogSink};
use crate::back_syn::DESTINATIONS;
use crate::clock::Clock;
use crate::conn::{Back, BackPhase, Conn, Front, FrontPhase};
use crate::counters::Counters;
use crate::exchange::Exchange;
use crate::lane_state::LaneSnapshot;
use crate::limits::{ClientConnections, LaneLimits, Passed, ROUTING_TIMER};
use crate::newcomers::{Newcomers, is_newcomer};
use crate::quic::succession::Follower;
use crate::quic::{Datagram, Quic, UDP};
use crate::scratch::Scratch;
use crate::sides::{Later, client_of};
use crate::snapshot::{Listener, Snapshot};
use crate::syn::Signatures;
use crate::wire::WireError;
use sealane_lane::{After, Context, Deadline, Key, Load, Mail, Mailbox, Millis, Ready, Service, Slots, Subscription};
use sealane_tls::sessions::{self, Shelf};
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
        successor: Option<Follower>,
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
    pub sessions: Shelf,
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
    pub(crate) newcomers: Newcomers,
    pub(crate) dirty: Vec<Key>,
    /// The same of connections that many exchanges share.
    pub(crate) batch: Vec<Key>,
    /// What to go on with, because what it waited for has come.
    pub(crate) later: Vec<Later>,
    /// Clients that are connected.
    pub(crate) fronts: usize,
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
            newcomers: Newcomers::default(),
            dirty: Vec::new(),
            batch: Vec::new(),
            later: Vec::new(),
            fronts: 0,
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

    pub(crate) fn front(&mut self, key: Key) -> Option<&mut Front> {
        match self.conns.get_mut(key) {
            Some(Conn::Front(front)) => Some(front),
            _ => None,
        }
    }

    pub(crate) fn back(&mut self, key: Key) -> Option<&mut Back> {
        match self.conns.get_mut(key) {
            Some(Conn::Back(back)) => Some(back),
            _ => None,
        }
    }

    /// Lets a connection go on: it may have bytes that could not be taken before.
    pub(crate) fn go_on(&mut self, cx: &mut Context, key: Key) {
        match self.conns.get(key) {
            Some(Conn::Front(_)) => self.front_ready(cx, key),
            Some(Conn::Back(_)) => self.back_go_on(cx, key),
            Some(Conn::Quic(_)) => self.quic_drive(cx, key),
            None => {}
        }
    }

    pub(crate) fn after_closing(&mut self, cx: &mut Context, key: Key, linger: bool) {
        match self.front(key) {
            Some(front) if linger && !front.wire.ended => {
                let _ = rustix::net::shutdown(&front.wire.fd, rustix::net::Shutdown::Write);
                front.phase = FrontPhase::Lingering;
                front.wire.readable = true;
                front.deadline.after(cx, key, LINGER);
                self.front_ready(cx, key);
            }
            _ => self.close(cx, key),
        }
    }

    /// A socket or session has failed.
    pub(crate) fn wire_failed(&mut self, cx: &mut Context, key: Key, error: WireError) {
        match self.conns.get(key) {
            Some(Conn::Front(_)) => self.front_failed(cx, key, error),
            Some(Conn::Back(_)) => self.back_failed(cx, key, &error),
            Some(Conn::Quic(_)) | None => {}
        }
    }

    /// Lets go of a connection without a word.
    pub(crate) fn close(&mut self, cx: &mut Context, key: Key) {
        if matches!(self.conns.get(key), Some(Conn::Front(front)) if front.h2.is_some()) {
            self.h2_abort_all(cx, key);
        }
        match self.conns.remove(key) {
            Some(Conn::Front(front)) => {
                self.count_out(front.client.counted);
                self.fronts -= 1;
                self.counters.open.set(self.fronts as u64);
                front.wire.dismantle(&mut self.scratch);
                if !self.listening {
                    self.resume_accepting(cx);
                }
            }
            Some(Conn::Back(back)) => {
                if back.phase == BackPhase::Idle {
                    self.counters.pooled.dec();
                    if let Some(idle) = back.upstream.idle.borrow_mut().get_mut(back.server) {
                        idle.retain(|k| *k != key);
                    }
                }
                if back.shared
                    && let Some(shared) = back.upstream.shared.borrow_mut().get_mut(back.server)
                {
                    shared.retain(|k| *k != key);
                }
                back.wire.dismantle(&mut self.scratch);
            }
            Some(Conn::Quic(_)) | None => {}
        }
    }

    fn refresh_snapshot(&mut self, cx: &mut Context) {
        if !self.snapshots.changed() {
            return;
        }
        let was_listening = self.listening;
        // Whoever is in the queue of a listener that goes has been let in already.
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
        self.settle(cx);
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

    fn drain(&mut self, cx: &mut Context, limit: Duration, follower: Option<Follower>) {
        let successor = follower.is_some();
        if let Some(follower) = follower {
            self.quic_follow(cx, follower);
        }
        if !successor && self.draining.is_none() {
            // Whoever is in the kernel's queue has been let in; then nobody is, and no connection is reset unheard.
            self.empty_queues(cx, |_| true);
        }
        self.pause_accepting(cx);
        if !successor {
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
                Some(Conn::Front(f)) if f.h2.is_some() => {
                    if let Some(h2) = &mut f.h2 {
                        h2.shut_down(cx.now());
                    }
                    self.touch(key);
                }
                Some(Conn::Front(f))
                    if !successor && f.phase == FrontPhase::Open && f.exchange.is_none() && !f.in_head =>
                {
                    f.wire.finish();
                    f.phase = FrontPhase::Closing { linger: true };
                    self.touch(key);
                }
                Some(Conn::Back(b)) if b.phase == BackPhase::Idle => self.close(cx, key),
                _ => {}
            }
        }
        self.quic_drain(cx);
        self.settle(cx);
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
        let Some(client) = client_of(&self.conns, x.front) else { return };
        let tls = self.conns.get(x.front.conn()).and_then(Conn::tls_version);
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
            return self.settle(cx);
        }
        if token & LISTENER != 0 {
            return self.newcomers.knock(token);
        }
        let key = Key::from_u64(token);
        match self.conns.get_mut(key) {
            Some(Conn::Front(front)) => {
                front.wire.note(ready);
                let unproven = front.wire.allowance.is_some();
                if ready.write && !front.wire.is_flushed() {
                    self.touch(key);
                }
                if unproven {
                    self.maybe_proven(cx, key);
                }
                let Self { conns, newcomers, .. } = self;
                match conns.get_mut(key) {
                    Some(Conn::Front(front)) if is_newcomer(front) => newcomers.event(key, front, ready),
                    _ => self.front_event(cx, key, ready),
                }
            }
            Some(Conn::Back(back)) => {
                // Of two sockets that race, either may be meant.
                if !(back.phase == BackPhase::Connecting && back.syn.is_some()) {
                    back.wire.note(ready);
                    if ready.write && !back.wire.is_flushed() {
                        self.touch(key);
                    }
                }
                self.back_event(cx, key, ready);
            }
            Some(Conn::Quic(_)) | None => return,
        }
        self.settle(cx);
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
            Some(Conn::Front(f)) => f.deadline.fired(cx, key),
            Some(Conn::Back(b)) => b.deadline.fired(cx, key),
            Some(Conn::Quic(q)) => q.deadline.fired(cx, key),
            None => return,
        };
        if !due {
            return;
        }
        match self.conns.get(key) {
            Some(Conn::Front(_)) => self.front_timeout(cx, key),
            Some(Conn::Quic(_)) => self.quic_timeout(cx, key),
            _ => self.back_timeout(cx, key),
        }
        self.settle(cx);
    }

    fn message(&mut self, cx: &mut Context, message: Message) {
        match message {
            Message::Drain { limit, successor } => self.drain(cx, limit, successor),
            Message::Passed(passed) => self.routing.heard(cx, &passed),
            Message::FreeMemory => self.free_memory(cx),
            Message::Datagram(datagram) => {
                self.counters.quic_dropped_mailbox.set(self.mailboxes[self.slot].refused(DATAGRAMS));
                self.quic_forwarded(cx, *datagram);
                self.settle(cx);
            }
            Message::Connection(c) => {
                let found = self.lane.listeners.iter().find(|l| l.listener.id == c.listener).cloned();
                let Some(listener) = found else { return };
                // The same limits as at accepting. The other lane has looked (`Mailbox::is_closed`), but not in this moment.
                if self.is_full() || self.newcomers.is_full() {
                    self.pause_accepting(cx);
                    self.accept_again(cx);
                    return self.counters.handover_limit.inc();
                }
                let allowance = Self::examine_handed_over(&c.fd, &listener);
                let Some(key) = self.adopt(cx, c.fd, listener, c.peer, FrontPhase::Hello, allowance) else { return };
                if let Some(front) = self.front(key) {
                    front.wire.unread = c.bytes;
                }
                // Its lane has counted it in, and out.
                if !self.count_in(key) {
                    return self.close(cx, key);
                }
                self.hello_arrived(cx, key, false);
                self.settle(cx);
            }
        }
    }

    fn turn(&mut self, cx: &mut Context) -> After {
        self.clock.refresh(cx.now());
        self.forget_stale_timers(cx);
        // Before all that was put off: newcomers, and requests that wait for it.
        self.refresh_snapshot(cx);
        self.mind_newcomers(cx);
        self.mind_queues(cx);
        if !self.later.is_empty() {
            let later = std::mem::take(&mut self.later);
            for key in &later {
                self.resume(cx, *key);
                self.settle(cx);
            }
        }
        self.settle_shared(cx);
        let more = self.quic_turn(cx);
        if let Some(deadline) = self.draining
            && (self.fronts == 0 && self.quic.waiting.is_empty() || cx.now() >= deadline)
        {
            self.log.hand_over(true);
            return After::Stop;
        }
        if self.newcomers.is_empty() && self.later.is_empty() && self.batch.is_empty() && !more {
            After::Sleep
        } else {
            After::Again
        }
    }
}
