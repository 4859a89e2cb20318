//! The proxy as a lane's service: events, timers, mail, snapshots, and the end of the lane.
//!
//! New clients come through `accept`, whose `admission` bounds their share of a turn. Bytes of clients go to
//! `client::connection`, bytes of upstreams to `upstream::connection`. `flush` sends what they have staged.

use crate::accept::admission::{Admission, serve_admission};
use crate::accept::syn::examine_handed_over;
use crate::accept::{LISTENER, LISTENER_BITS, accept_clients, adopt_client, own_sockets};
use crate::access_log::{AccessLog, Entry, LOG_TIMER, LogSink};
use crate::client::connection::{client_event, client_timeout, hello_arrived, maybe_proven, ticket_arrived};
use crate::client::signing::signed;
use crate::client::state::ClientPhase;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::Exchange;
use crate::exchange::credentials::password_checked;
use crate::exchange::encoding::serve_encoders;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::resume::resume_source;
use crate::flush::{flush_marked, flush_shared};
use crate::inspection::{Inspection, inspect};
use crate::lifecycle::{close_connection, end_all, end_requests};
use crate::limits::{ClientCounts, Levels, Passed, RATES_TIMER};
use crate::logins::{Digest, Logins, PasswordSink, PasswordVerdict};
use crate::memory::free_memory;
use crate::mirrors::mirror_timeout;
use crate::quic::succession::QuicSuccessor;
use crate::quic::{Datagram, QuicEndpoint, UDP};
use crate::quic_driver::{quic_drain, quic_end, quic_forwarded, quic_ready, quic_refresh, quic_timeout, quic_turn};
use crate::recording::Recording;
use crate::records::{RecordSink, Records};
use crate::renewal::renew_clients;
use crate::request_ids::id_of;
use crate::scratch::Scratch;
use crate::settings::{DrainEnd, LaneSettings};
use crate::shared_tickets::TicketVerdict;
use crate::snapshot::{Listener, Snapshot};
use crate::talkers::{self, TalkersQuestion};
use crate::udp::relay::{session_ready, session_timeout, udp_drain, udp_end, udp_ready, udp_refresh};
use crate::udp::{RELAY, UdpRelay};
use crate::upstream::connection::{carry_pools, upstream_event, upstream_timeout};
use crate::upstream::pools::{QUEUES_TIMER, UpstreamPools};
use crate::upstream::queue::{queues_timeout, serve_queues};
use sealane_lane::{After, Context, Inbox, Key, Load, Mail, Mailbox, Millis, Ready, Service, Subscription};
use sealane_sys::probes;
use sealane_tls::remote::Back;
use sealane_tls::sessions::{self, SessionStore};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// At most so many connections are taken from the kernel's queue when draining.
const MAX_QUEUED: usize = 1024;
/// Entries of the timer wheel, beside a few per connection, above which those that are stale are removed.
const STALE_TIMERS: usize = 1024;

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
        /// Whatever is left is cut off after this, except upgraded and relayed connections.
        limit: Duration,
        /// These are cut off after this, and not before the rest.
        upgraded: Duration,
        /// Another process goes on accepting from the same sockets: what waits in their queues is left to it.
        successor: Option<QuicSuccessor>,
    },
    /// A connection whose session this lane owns, with the bytes read so far.
    Connection(HandedOver),
    /// What another lane has let pass of a rate limit.
    Passed(Arc<Passed>),
    /// What all gateways together have let pass of a rate limit. One that is lost is followed by another one.
    Levels(Arc<Levels>),
    /// The process holds more memory than it should: those who hold the most of it are to give it back.
    FreeMemory,
    /// A datagram of a QUIC connection that this lane owns, or whose session it owns.
    Datagram(Box<Datagram>),
    /// Control's verdict about credentials, by their [`PasswordCheck`](crate::logins::PasswordCheck).
    PasswordChecked(Digest, PasswordVerdict),
    /// What is under way is to be told. As many questions wait as the admin socket has connections.
    Inspect(Inspection),
    /// Who makes most of the load is to be told. Control asks once a second at most.
    Talkers(TalkersQuestion),
    /// Exchanges are to be recorded. There is one recording at a time.
    Record(Recording),
    /// Control's verdict about the ticket of a connection's hello ([`TicketQuery`](crate::shared_tickets::TicketQuery)).
    Ticket(Key, TicketVerdict),
    /// The session of a connection comes back from a signing thread.
    Signed(Key, Box<Back>),
}

impl Mail for Message {
    fn load(&self) -> Load {
        match self {
            // Verdicts are as many as checks and queries that control has taken, which are bounded, as is what signing threads have.
            Self::Drain { .. }
            | Self::FreeMemory
            | Self::PasswordChecked(..)
            | Self::Inspect(_)
            | Self::Talkers(_)
            | Self::Record(_)
            | Self::Ticket(..)
            | Self::Signed(..) => Load::Free,
            Self::Datagram(datagram) => Load::Counted { kind: DATAGRAMS, amount: datagram.load() },
            Self::Connection(_) => Load::Counted { kind: CONNECTIONS, amount: 1 },
            Self::Passed(passed) => Load::Counted { kind: RATE_NEWS, amount: passed.len() },
            Self::Levels(levels) => Load::Counted { kind: RATE_NEWS, amount: levels.levels.len() },
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
    /// The lane's counters, which control reads.
    pub counters: Arc<Counters>,
    /// Set by control while the process holds more memory than it should: nobody new is accepted then.
    pub short_of_memory: Arc<AtomicBool>,
    /// How many connections each client has, in all lanes.
    pub clients: Arc<ClientCounts>,
    /// How many requests of each client are under way, in all lanes.
    pub client_requests: Arc<ClientCounts>,
    /// Where passwords are checked.
    pub passwords: PasswordSink,
    /// Where access log lines go; `None` writes none.
    pub log: Option<LogSink>,
    /// Where reports about single connections and requests go.
    pub records: RecordSink,
}

/// The proxy of one lane: its parts, each of which owns its state. What concerns several of them borrows each.
pub struct Proxy {
    pub(crate) settings: LaneSettings,
    pub(crate) admission: Admission,
    pub(crate) connections: Connections,
    pub(crate) exchanges: Exchanges,
    pub(crate) pools: UpstreamPools,
    pub(crate) quic: QuicEndpoint,
    pub(crate) udp: UdpRelay,
    pub(crate) log: AccessLog,
    pub(crate) counters: Arc<Counters>,
    pub(crate) scratch: Scratch,
}

impl Proxy {
    /// Serves on this thread until the lane stops. The lane's loop is generic, and compiled where it is called: here, as all that lanes
    /// run.
    #[inline(never)]
    pub fn run(self, cx: Context, inbox: &Inbox<Message>) -> std::io::Result<()> {
        sealane_lane::run(cx, self, inbox).map(drop)
    }

    /// Sets a lane up; called on its own thread.
    pub fn new(setup: Setup, cx: &mut Context) -> std::io::Result<Self> {
        sessions::bind_thread(setup.sessions);
        let mut proxy = Self {
            settings: LaneSettings::new(setup.slot, setup.mailboxes, setup.snapshots),
            admission: Admission::new(
                setup.clients,
                setup.client_requests,
                Logins::new(setup.passwords)?,
                setup.short_of_memory,
            ),
            connections: Connections::default(),
            exchanges: Exchanges::default(),
            pools: UpstreamPools::default(),
            quic: QuicEndpoint::default(),
            udp: UdpRelay::default(),
            log: AccessLog::new(setup.log, Records::new(setup.slot, setup.records)),
            counters: setup.counters,
            scratch: Scratch::new(),
        };
        proxy.admission.refresh(&proxy.settings);
        proxy.pools.refresh(proxy.settings.lane());
        proxy.log.refresh_clock(0);
        proxy.admission.listen(cx, &proxy.settings)?;
        proxy.quic.listen(cx, &proxy.settings)?;
        proxy.udp.listen(cx, &proxy.settings)?;
        Ok(proxy)
    }
}

fn refresh_snapshot(proxy: &mut Proxy, cx: &mut Context, newest: Arc<Snapshot>) {
    let was_listening = proxy.admission.is_listening();
    // Clients in the queue of a listener that goes have been accepted already.
    if was_listening {
        empty_queues(proxy, cx, |l| !newest.listeners.iter().any(|n| n.id == l.id));
    }
    proxy.admission.unlisten(cx, &proxy.settings);
    proxy.settings.take_up(newest);
    proxy.admission.refresh(&proxy.settings);
    proxy.pools.refresh(proxy.settings.lane());
    if was_listening {
        if proxy.admission.listen(cx, &proxy.settings).is_err() {
            proxy.admission.accept_again(cx);
        }
    } else {
        // The limit that was reached may be a higher one now.
        proxy.admission.resume(cx, &proxy.settings);
    }
    renew_clients(&mut proxy.connections, &proxy.settings, cx);
    carry_pools(proxy, cx);
    quic_refresh(proxy, cx);
    udp_refresh(proxy, cx);
    flush_marked(proxy, cx);
}

/// Accepts all that waits in the kernel's queues of some listeners.
fn empty_queues(proxy: &mut Proxy, cx: &mut Context, of: impl Fn(&Listener) -> bool) {
    let tokens: Vec<u64> = own_sockets(&proxy.settings).map(|(token, _)| token).collect();
    for token in tokens {
        let index = (token & ((1 << LISTENER_BITS) - 1)) as usize;
        if !proxy.settings.listeners().get(index).is_some_and(|l| of(&l.listener)) {
            continue;
        }
        accept_clients(proxy, cx, token, MAX_QUEUED);
    }
}

fn drain_lane(proxy: &mut Proxy, cx: &mut Context, [limit, upgraded]: [Duration; 2], successor: Option<QuicSuccessor>) {
    let is_alone = successor.is_none();
    // Before the word that this lane reads no more goes out.
    udp_drain(proxy, cx, !is_alone);
    if let Some(successor) = successor {
        proxy.quic.follow(cx, successor);
    }
    if is_alone && !proxy.settings.is_draining() {
        // Clients in the kernel's queue are accepted first, so that no connection is reset without an answer.
        empty_queues(proxy, cx, |_| true);
    }
    proxy.admission.pause(cx, &proxy.settings);
    // An order that comes after one with a successor must not stop the sockets on which the successor listens.
    if !proxy.quic.has_successor() {
        for (_, socket) in own_sockets(&proxy.settings) {
            // The socket is shared with control, so closing our end would not stop it from listening.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
    let [requests, upgraded] = [limit, upgraded].map(|limit| cx.now() + limit.as_millis() as Millis);
    proxy.settings.drain(DrainEnd::new(requests, upgraded), is_alone);
    cx.timers.arm(LISTENER, requests);
    // Connections without a request under way end now, the others with their response. With a successor there is
    // no hurry: a client whose request is on its way already gets its answer here, with the word that it is the
    // last; a connection without a request is closed at the deadline.
    for key in proxy.connections.keys() {
        let has_more_to_send = match proxy.connections.get_mut(key) {
            Some(Conn::Client(f)) => f.shut_down(cx, key, is_alone, proxy.settings.limits()),
            Some(Conn::Upstream(b)) if b.is_idle() => {
                close_connection(proxy, cx, key);
                false
            }
            _ => false,
        };
        if has_more_to_send {
            proxy.connections.mark_for_flush(key);
        }
    }
    quic_drain(proxy, cx);
    flush_marked(proxy, cx);
}

/// Removes what deadlines that were moved forward have left in the timer wheel, once that is most of what is there.
fn forget_stale_timers(connections: &Connections, cx: &mut Context) {
    if cx.timers.len() <= STALE_TIMERS + 4 * connections.len() {
        return;
    }
    cx.timers.retain(|token, tick| token & LISTENER != 0 || connections.is_armed_for(Key::from_u64(token), tick));
}

/// Writes the access log line of a finished exchange, and reports what went wrong to the log.
pub(crate) fn log_exchange(
    connections: &Connections,
    log: &mut AccessLog,
    counters: &Counters,
    settings: &LaneSettings,
    cx: &mut Context,
    x: &Exchange,
) {
    if cfg!(feature = "uninstrumented") {
        return;
    }
    if x.status() >= log.records().from()
        && let Some(client) = connections.client_of(x.client_stream())
    {
        log.records_mut().exchange(counters, client, x, cx, &settings.snapshot().routing.secrets);
    }
    let Some(rules) = settings.snapshot().access_log.as_deref().filter(|_| log.is_on()) else { return };
    if !log.wants(rules, x) {
        return;
    }
    let Some(client) = connections.client_of(x.client_stream()) else { return };
    let tls = connections.get(x.client_stream().conn()).and_then(Conn::tls_version);
    let entry = Entry { x, client, tls, now: cx.micros(), request_id: id_of(x, settings) };
    log.write(cx, rules, &entry);
}

impl Service for Proxy {
    type Message = Message;

    fn ready(&mut self, cx: &mut Context, token: u64, ready: Ready) {
        if token & UDP == UDP {
            quic_ready(self, cx, (token & !UDP) as usize);
            return flush_marked(self, cx);
        }
        if token & RELAY == RELAY {
            return udp_ready(self, cx, (token & !RELAY) as usize);
        }
        if token & LISTENER != 0 {
            return self.admission.listener_ready(token);
        }
        let key = Key::from_u64(token);
        match self.connections.get_mut(key) {
            Some(Conn::Client(client_conn)) => {
                client_conn.transport_mut().note(ready);
                let unproven = client_conn.is_unproven();
                if ready.write && !client_conn.transport().is_flushed() {
                    self.connections.mark_for_flush(key);
                }
                if unproven {
                    maybe_proven(self, cx, key);
                }
                let Self { connections, admission, .. } = self;
                match connections.get_mut(key) {
                    Some(Conn::Client(client_conn)) if client_conn.awaits_admission() => {
                        admission.event(key, client_conn, ready)
                    }
                    _ => client_event(self, cx, key, ready),
                }
            }
            Some(Conn::Upstream(upstream_conn)) => {
                if upstream_conn.note(ready) {
                    self.connections.mark_for_flush(key);
                }
                upstream_event(self, cx, key, ready);
            }
            Some(Conn::Udp(_)) => return session_ready(self, cx, key),
            Some(Conn::Quic(_) | Conn::Mirror(_)) | None => return,
        }
        flush_marked(self, cx);
    }

    fn timeout(&mut self, cx: &mut Context, token: u64) {
        match token {
            LOG_TIMER => return self.log.flush(),
            RATES_TIMER => return self.admission.tell_others(cx, &self.settings, &self.counters),
            QUEUES_TIMER => return queues_timeout(&self.exchanges, &mut self.pools, cx),
            _ if token & LISTENER != 0 => return self.admission.timeout(cx, &self.settings),
            _ => {}
        }
        let key = Key::from_u64(token);
        if !self.connections.fired(cx, key) {
            return;
        }
        match self.connections.get(key) {
            Some(Conn::Client(_)) => client_timeout(self, cx, key),
            Some(Conn::Quic(_)) => quic_timeout(self, cx, key),
            Some(Conn::Mirror(_)) => mirror_timeout(self, cx, key),
            Some(Conn::Udp(_)) => session_timeout(self, cx, key),
            _ => upstream_timeout(self, cx, key),
        }
        flush_marked(self, cx);
    }

    fn message(&mut self, cx: &mut Context, message: Message) {
        match message {
            Message::Drain { limit, upgraded, successor } => drain_lane(self, cx, [limit, upgraded], successor),
            Message::Passed(passed) => self.admission.heard(cx, &passed),
            Message::Levels(levels) => self.admission.lower_rates(cx, &levels),
            Message::FreeMemory => free_memory(self, cx),
            Message::Inspect(inspection) => inspect(self, cx, &inspection),
            Message::Talkers(question) => talkers::tell(self, cx, &question),
            Message::Record(recording) => {
                self.log.records_mut().record(recording, cx.now(), &self.settings.snapshot().routing.secrets);
            }
            Message::PasswordChecked(digest, verdict) => password_checked(self, cx, digest, verdict),
            Message::Ticket(key, verdict) => {
                ticket_arrived(self, cx, key, verdict);
                flush_marked(self, cx);
            }
            Message::Signed(key, back) => {
                signed(self, cx, key, *back);
                flush_marked(self, cx);
            }
            Message::Datagram(datagram) => {
                self.counters.set(Count::QuicDroppedMailbox, self.settings.own_mailbox().refused(DATAGRAMS));
                quic_forwarded(self, cx, *datagram);
                flush_marked(self, cx);
            }
            Message::Connection(c) => {
                let found = self.settings.listeners().iter().find(|l| l.listener.id == c.listener).cloned();
                let Some(listener) = found else { return };
                // The same limits as at accepting. The other lane has looked (`Mailbox::is_closed`), but not in this moment.
                if self.admission.is_full(&self.settings) || self.admission.is_queue_full() {
                    self.admission.pause(cx, &self.settings);
                    self.admission.accept_again(cx);
                    return self.counters.count(Count::HandoverLimit);
                }
                let allowance = examine_handed_over(&c.fd, &listener);
                let Some(key) = adopt_client(self, cx, c.fd, listener, c.peer, ClientPhase::HELLO, allowance) else {
                    return;
                };
                if let Some(client_conn) = self.connections.client(key) {
                    client_conn.adopt(c.bytes);
                }
                // Its lane has counted it in, and out.
                if !self.admission.count_in_connection(&mut self.connections, key, &self.settings, &self.counters) {
                    return close_connection(self, cx, key);
                }
                hello_arrived(self, cx, key, false);
                flush_marked(self, cx);
            }
        }
    }

    fn turn_took(&mut self, micros: u64) {
        self.counters.turn_took(micros);
        self.exchanges.compressors().turn_took(micros);
        probes::lane_turn(|| Some((self.settings.slot() as u64, micros)));
    }

    fn turn(&mut self, cx: &mut Context) -> After {
        self.log.refresh_clock(cx.now());
        self.udp.begin_turn();
        forget_stale_timers(&self.connections, cx);
        // Before all that was deferred: new clients, and requests that wait for it.
        if let Some(newest) = self.settings.newest() {
            refresh_snapshot(self, cx, newest);
        }
        if self.settings.is_time_to_end_requests(cx.now()) {
            end_requests(self, cx);
        }
        serve_admission(self, cx);
        if self.exchanges.has_later() {
            for later in self.exchanges.take_later() {
                resume_source(self, cx, later);
                flush_marked(self, cx);
            }
        }
        if self.exchanges.compressors().waiting() > 0 {
            serve_encoders(self, cx);
        }
        flush_shared(self, cx);
        let more = !self.quic.is_empty() && quic_turn(self, cx);
        // After all that may have freed a place at a server.
        self.pools.acknowledge();
        let served = self.pools.has_queues() && serve_queues(self, cx);
        if let Some(until) = self.settings.drain_until()
            && (cx.now() >= until.last()
                || !self.admission.has_clients()
                    && !self.quic.has_waiting()
                    && !self.udp.has_sessions()
                    && !self.connections.has_closing_upstream())
        {
            end_all(self, cx);
            quic_end(self, cx);
            udp_end(self, cx);
            self.log.flush();
            return After::Stop;
        }
        let more = more || served || self.exchanges.has_work() || self.connections.has_shared();
        if self.admission.is_empty() && !more { After::Sleep } else { After::Again }
    }
}
