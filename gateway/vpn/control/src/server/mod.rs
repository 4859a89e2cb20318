//! The server: all clients' sessions on one task, which no packet of theirs can make wait.
//!
//! ```text
//! plane ─ ControlIn ─▶ by address and session id ─▶ Session ─▶ events ─▶ decide, install, answer ─▶ ControlOut ─▶ plane
//!                      └ unknown ─▶ Gate: stateless answer, or a new session
//! ```
//!
//! What strangers can take is shared out by network ([`sealane_ovpn::share`]): handshakes, and guesses of passwords. A client has one
//! check of its password at a time, so that there are no more of these than handshakes and clients.

mod admit;
mod ask;
mod events;
mod inbox;
mod limits;
mod manage;
mod moved;
mod post;
mod steer;
mod web;

pub(super) use inbox::Word;
pub use inbox::{Inbox, Outlet, inbox};
pub use steer::{Steer, Steering, Whom};

use super::addresses_file::AddressesFile;
use super::auth::{self, Authenticator, Checks, Verdict as AuthVerdict};
use super::handover::{Handed, HandoverState, SavedServer};
use super::log::EventLog;
use super::login::{LoginOutcome, Remembered};
use super::management::{self, Hub};
use super::peer::{Check, Peer, Renewal, Stage, server_words};
use super::pool::{Addresses, Pool};
use super::session::{self, Session};
use super::settings::Settings;
use super::shared_port::Arrivals;
use super::status::{Counts, StatusRegistry};
use super::throttle::{Lines, Rate};
use super::verify;
use anyhow::{Result, anyhow};
use sealane_log as log;
use sealane_ovpn::command::Command as Said;
use sealane_ovpn::data::{KeySlot as Slot, PeerId};
use sealane_ovpn::gate::{Accepted, Gate, Verdict};
use sealane_ovpn::packet::SessionId;
use sealane_ovpn::share::{Full, Network, Slots};
use sealane_passwords::Guesses;
use sealane_tunnel::plane::{Command, ControlIn, Feature, Plane, Refused, SocketId, TakenSocket, Transport};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot};

/// How often time is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often the status is put up.
const STATUS: Duration = Duration::from_secs(1);
/// How long a client that was refused may take to hear of it.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a client whose key exchange failed may take to hear TLS' alert.
const ALERT: Duration = Duration::from_secs(1);
/// Sessions that are not through their handshake, at a time, and how many of them one network may have.
const MAX_HANDSHAKES: usize = 1024;
const HANDSHAKE_SHARE: usize = 128;
/// How long handshakes under way may take when the tunnel is to go on elsewhere.
const LEAVING: Duration = Duration::from_secs(5);
/// How long the last events for other programs may take.
const LAST_EVENTS: Duration = Duration::from_secs(2);
/// Events of a session that are handled before the next one's turn.
const MAX_TURN: usize = 64;

/// What others ask of the server.
#[derive(Debug)]
pub enum AdminCommand {
    /// New settings.
    Reload(Box<Settings>),
    /// Revocation lists (DER), in the place of those of `crl`; the answer says why they are refused.
    Lists(Vec<Vec<u8>>, oneshot::Sender<Result<(), String>>),
    /// Open the log's file anew.
    Reopen,
    /// Do something to connected clients; the answer says to how many, or why not.
    Steer(Box<Steering>, oneshot::Sender<Result<usize, String>>),
    /// Give everything to another process.
    HandOver(oneshot::Sender<Result<Handed>>),
    /// Tell all clients to connect elsewhere or later, and end.
    Stop,
}

/// What a server begins with.
pub struct Start {
    /// Its data plane.
    pub plane: Arc<dyn Plane>,
    /// About the plane, for the status.
    pub notes: Vec<String>,
    /// What it is to do.
    pub settings: Settings,
    /// What the plane says.
    pub outlet: Outlet,
    /// Where the status is put up.
    pub registry: StatusRegistry,
    /// What another process has left; its clients are in the plane.
    pub inherited: Option<SavedServer>,
    /// Where programs speak OpenVPN's management protocol.
    pub management: Option<management::Socket>,
    /// Where the gateway asks for login pages.
    pub login: Option<management::Socket>,
}

/// How a server has ended.
#[derive(Debug)]
pub enum Ended {
    /// As it was told.
    Stopped,
    /// The state is saved, for the caller that has asked to hand over.
    Left(Result<HandoverState>, Box<Settings>, oneshot::Sender<Result<Handed>>),
}

type Key = u64;

/// Lines that clients can cause as often as they like.
#[derive(Clone, Copy, Debug)]
enum About {
    Failed,
    Refused,
    Moved,
}

impl About {
    const fn name(self) -> &'static str {
        match self {
            Self::Failed => "key exchanges that failed",
            Self::Refused => "clients that were refused",
            Self::Moved => "clients that moved",
        }
    }
}

/// The server.
pub struct Server {
    plane: Arc<dyn Plane>,
    /// About the plane, for the status.
    notes: Vec<String>,
    settings: Settings,
    gate: Gate,
    /// The gate's secret.
    cookie: [u8; 32],
    /// No new handshakes: it goes on elsewhere when this time has come, or nothing is under way any more.
    leaving: Option<(Instant, oneshot::Sender<Result<Handed>>)>,
    pool: Pool,
    peers: HashMap<Key, Peer>,
    next_key: Key,
    by_session: HashMap<(SocketAddr, SessionId), Key>,
    by_id: HashMap<PeerId, Key>,
    /// The session of each TCP connection.
    by_socket: HashMap<SocketId, Key>,
    /// Sessions that are not through their handshake.
    handshakes: Slots<Key>,
    checks: Arc<Checks>,
    guesses: Guesses,
    lines: [Lines; 3],
    next_id: u32,
    /// Clients with something to do at once.
    restless: HashSet<Key>,
    decisions: mpsc::UnboundedSender<(Key, u8, AuthVerdict)>,
    counts: Counts,
    registry: StatusRegistry,
    log: EventLog,
    /// Said once, not every second.
    status_failed: Cell<bool>,
    /// Programs on the management socket.
    hub: Rc<Hub>,
    /// Bytes from and to clients that are gone.
    past_bytes: Cell<(u64, u64)>,
    /// What bounds new sessions.
    connects: Rate,
    addresses_file: AddressesFile,
    /// How logins in the browser have ended.
    outcomes: mpsc::UnboundedSender<(Key, u32, LoginOutcome)>,
    /// Users who have logged in.
    remembered: Remembered,
    login_socket: Option<management::Socket>,
    _pages: Option<web::Pages>,
}

fn unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Serves until told to stop or to leave, or until the plane is gone.
pub async fn serve(
    start: Start,
    commands: &mut mpsc::UnboundedReceiver<AdminCommand>,
    arrivals: &mut Arrivals,
) -> Result<Ended> {
    let Start { plane, notes, mut settings, mut outlet, registry, inherited, management, login } = start;
    let socket_file = management.as_ref().map(management::Socket::file);
    let (hub, mut managed) = management::start(management);
    let (decisions, mut decided) = mpsc::unbounded_channel();
    let (outcomes, mut logged_in) = mpsc::unbounded_channel();
    let pages = web::serve(&settings, login.as_ref());
    let cookie = inherited.as_ref().map_or_else(session::random, |l| Ok(l.cookie))?;
    let gate = Gate::new(settings.wrap.clone(), settings.wrap_v2.clone(), &cookie);
    settings.tunnel.epoch &= plane.supports(Feature::Epoch);
    let mut server = Server {
        log: EventLog::open(settings.log.as_deref()),
        pool: limits::first_pool(&settings),
        plane,
        notes,
        gate,
        cookie,
        leaving: None,
        settings,
        peers: HashMap::new(),
        next_key: 0,
        by_session: HashMap::new(),
        by_id: HashMap::new(),
        by_socket: HashMap::new(),
        handshakes: Slots::new(MAX_HANDSHAKES, HANDSHAKE_SHARE),
        checks: Arc::default(),
        guesses: Guesses::default(),
        lines: [const { Lines::new() }; 3],
        next_id: 0,
        restless: HashSet::new(),
        decisions,
        counts: Counts::default(),
        registry,
        status_failed: Cell::new(false),
        hub,
        past_bytes: Cell::default(),
        connects: Rate::default(),
        addresses_file: AddressesFile::default(),
        outcomes,
        remembered: Remembered::default(),
        login_socket: login,
        _pages: pages,
    };
    if server.hub.is_open() {
        server.log.tell(server.hub.clone());
    }
    server.say_state("CONNECTED", "SUCCESS");
    server.log.deliver_to(server.settings.targets());
    if let Some(inherited) = inherited {
        auth::adopt_process_secret(inherited.tokens);
        server.inherit(inherited, Instant::now());
        server.settle();
    }
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut posted = Instant::now();
    server.post();
    loop {
        tokio::select! {
            word = outlet.next() => match word {
                Some(Word::Packet(packet)) => server.packet(packet, Instant::now()),
                Some(Word::Event(event)) => server.event(event, Instant::now()),
                None => return Err(anyhow!("the data plane has ended")),
            },
            // Those that come while the tunnel leaves wait: it may not leave after all.
            client = arrivals.next(), if server.leaving.is_none() => server.arrived(client),
            Some(input) = managed.recv() => server.managed(input, Instant::now()),
            Some((key, key_id, verdict)) = decided.recv() => {
                server.counts.unchecked += u64::from(matches!(verdict, AuthVerdict::Later(_)));
                server.decided(key, key_id, verdict, Instant::now());
            }
            Some((key, question, outcome)) = logged_in.recv() => {
                server.logged_in(key, question, outcome, Instant::now());
            }
            command = commands.recv() => match command {
                Some(AdminCommand::Reload(settings)) => server.reload(*settings),
                Some(AdminCommand::Lists(lists, asker)) => {
                    // It fails only if the caller has gone.
                    let _ = asker.send(server.take_lists(&lists));
                }
                Some(AdminCommand::Reopen) => {
                    let path = server.settings.log.clone();
                    server.log.reopen(path.as_deref());
                }
                Some(AdminCommand::Steer(steering, asker)) => {
                    // It fails only if the caller has gone.
                    let _ = asker.send(server.steer(&steering, Instant::now()));
                }
                Some(AdminCommand::HandOver(asker)) if !server.plane.supports(Feature::HandOver) => {
                    let why = anyhow!("this data plane cannot be handed over; restart, and its clients connect again");
                    // It fails only if the caller has gone and needs no reply.
                    let _ = asker.send(Err(why));
                }
                Some(AdminCommand::HandOver(asker)) => server.leaving = Some((Instant::now() + LEAVING, asker)),
                Some(AdminCommand::Stop) | None => {
                    server.stop();
                    server.write_addresses(Instant::now(), true);
                    socket_file.iter().for_each(management::SocketFile::remove);
                    server.login_socket.iter().for_each(|socket| socket.file().remove());
                    server.finish_events().await;
                    return Ok(Ended::Stopped);
                }
            },
            _ = tick.tick() => {
                let now = Instant::now();
                server.tick(now);
                if now.duration_since(posted) >= STATUS {
                    posted = now;
                    server.counts.replaced = outlet.replaced();
                    server.counts.events_lost = server.log.lost();
                    server.counts.programs_dropped = server.hub.dropped();
                    server.counts.login_requests_refused =
                        server.settings.logins.as_ref().map_or(0, |logins| logins.refused_requests());
                    server.drop_inactive(now);
                    server.end_long_sessions(now);
                    server.write_addresses(now, false);
                    server.post();
                }
            }
        }
        server.settle();
        let (busy, now) = (server.is_busy(), Instant::now());
        if let Some((_, asker)) = server.leaving.take_if(|(limit, _)| !busy || *limit <= now) {
            let settings = Box::new(server.settings.clone());
            server.finish_events().await;
            return Ok(Ended::Left(server.leave(&mut outlet), settings, asker));
        }
    }
}

impl Server {
    /// A client has come to a listener of the gateway.
    fn arrived(&mut self, client: TakenSocket) {
        match self.plane.command(Command::SocketTake(client)) {
            Ok(()) => self.counts.shared_port += 1,
            Err(_) => self.counts.shared_port_refused += 1,
        }
    }

    fn packet(&mut self, packet: ControlIn, now: Instant) {
        self.counts.packets += 1;
        let session = packet.bytes.get(1..9).and_then(|b| b.try_into().ok()).and_then(SessionId::new);
        let Some(session) = session else {
            self.counts.dropped += 1;
            return;
        };
        let key = self.by_session.get(&(packet.remote, session)).copied();
        // A TCP client's session stays with its connection, and a UDP client's is not moved to one.
        let same = |p: &&mut Peer| match p.transport {
            Transport::Udp => packet.transport == Transport::Udp,
            Transport::Tcp => p.socket == packet.socket,
        };
        if let Some((key, peer)) = key.and_then(|key| Some((key, self.peers.get_mut(&key).filter(same)?))) {
            match peer.session.handle(&packet.bytes) {
                Ok(()) => (peer.socket, peer.local) = (packet.socket, packet.local),
                Err(_) => self.counts.dropped += 1,
            }
            if !peer.settled && peer.session.has_client_hello() {
                peer.settled = true;
                self.handshakes.settle(key);
            }
            self.restless.insert(key);
            return;
        }
        if self.leaving.is_some() {
            // The client repeats it, and the successor answers.
            return;
        }
        match self.gate.judge(&packet.bytes, packet.remote, unix() as u32) {
            Verdict::Reply(bytes) => {
                self.counts.answered += 1;
                self.send(packet.socket, packet.remote, packet.local, bytes);
            }
            Verdict::Accept(accepted) => self.begin(*accepted, &packet, now),
            Verdict::Drop(_) => self.counts.refused += 1,
        }
    }

    fn begin(&mut self, accepted: Accepted, packet: &ControlIn, now: Instant) {
        let tcp = packet.transport == Transport::Tcp;
        // A connection has one session: a client that begins anew connects anew.
        if tcp && self.by_socket.contains_key(&packet.socket) {
            self.counts.refused += 1;
            return;
        }
        if self.settings.connect_rate.is_some_and(|rate| !self.connects.take(rate, now)) {
            self.counts.rate_limited += 1;
            return;
        }
        let key = self.next_key;
        let crowded = self.peers.len() >= self.settings.max_clients + MAX_HANDSHAKES;
        let entered = if crowded { Err(Full) } else { self.handshakes.enter(key, Network::of(packet.remote.ip())) };
        match entered {
            Ok(None) => {}
            Ok(Some(evicted)) => {
                self.counts.evicted += 1;
                self.forget(evicted, "");
            }
            Err(Full) => {
                self.counts.crowded += 1;
                return;
            }
        }
        let words = server_words(&self.settings, packet.transport);
        let remote = accepted.remote;
        let session = match Session::server(accepted, self.settings.tls.clone(), words, !tcp) {
            Ok(session) => session,
            Err(e) => {
                self.handshakes.leave(key);
                return log::warn!(connection = connection(key); "tunnel: {}: {e:#}", packet.remote);
            }
        };
        self.counts.sessions += 1;
        self.next_key += 1;
        let mut peer =
            Peer::new(session, packet.socket, packet.transport, packet.remote, packet.local, now, &self.settings);
        peer.settled = peer.session.has_client_hello();
        if peer.settled {
            self.handshakes.settle(key);
        }
        self.peers.insert(key, peer);
        if tcp {
            self.by_socket.insert(packet.socket, key);
            // A connection that has just closed: its end comes as an event.
            let _ = self.plane.command(Command::SocketConfirm(packet.socket));
        }
        if let Some(before) = self.by_session.insert((packet.remote, remote), key) {
            self.forget(before, "the client has started a new session");
        }
        self.restless.insert(key);
    }

    /// Lets sessions that something has happened to say and do what follows.
    fn settle(&mut self) {
        let now = Instant::now();
        for _ in 0..MAX_TURN {
            if self.restless.is_empty() {
                return;
            }
            for key in std::mem::take(&mut self.restless) {
                while let Some(event) = self.peers.get_mut(&key).and_then(|p| p.session.poll_event()) {
                    self.session_event(key, event, now);
                }
                self.transmit(key, now);
            }
        }
    }

    fn transmit(&mut self, key: Key, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let (mut bytes, mut lost) = (Vec::new(), false);
        while peer.session.poll_transmit(now, &mut bytes) {
            let command = Command::ControlOut {
                socket: peer.socket,
                remote: peer.remote,
                local: peer.local,
                bytes: std::mem::take(&mut bytes),
            };
            // A connection that has just closed: its end comes as an event.
            lost |= matches!(self.plane.command(command), Err(Refused::Full));
        }
        if lost {
            self.counts.dropped += 1;
            // On UDP it is sent again.
            if peer.transport == Transport::Tcp {
                self.forget(key, "too many packets wait to be sent");
            }
        }
    }

    fn send(&self, socket: SocketId, remote: SocketAddr, local: Option<std::net::IpAddr>, bytes: Vec<u8>) {
        let _ = self.plane.command(Command::ControlOut { socket, remote, local, bytes });
    }

    fn session_event(&mut self, key: Key, event: session::Event, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        match event {
            session::Event::Message(key_id) => {
                let Some(claim) = peer.claim(key_id) else { return };
                if key_id == 0 {
                    peer.stage = Stage::Deciding;
                } else {
                    let deadline = now + self.settings.handshake;
                    peer.renewal.get_or_insert(Renewal { key_id, deadline, installed: false });
                }
                let auth = self.settings.auth.clone();
                let wait = match auth.wants_password() && !auth.is_token(&claim) {
                    true => {
                        let user = Authenticator::guessed(&claim.username);
                        self.guesses.wait(&user, Network::of(claim.remote.ip()), now)
                    }
                    false => Duration::ZERO,
                };
                if !wait.is_zero() {
                    self.counts.throttled += 1;
                    return self.decided(key, key_id, AuthVerdict::Later("too many wrong passwords; try later"), now);
                }
                let (decisions, checks) = (self.decisions.clone(), self.checks.clone());
                // The rest of the time is for the exchange itself.
                let limit = self.settings.handshake * 2 / 3;
                let check = tokio::spawn(async move {
                    let verdict = auth.decide(claim, unix(), limit, &checks).await;
                    let _ = decisions.send((key, key_id, verdict));
                });
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.check = Some(Check(check.abort_handle()));
                }
            }
            session::Event::Command(Said::PushRequest) => {
                peer.push_requested = true;
                self.push(key);
            }
            session::Event::Command(Said::Response(response)) => self.responded(key, &response),
            session::Event::Command(Said::Exit) => self.forget(key, "the client has disconnected"),
            session::Event::Command(_) => {}
            session::Event::Confirmed(key_id) => self.confirmed(key, key_id, now),
            session::Event::Failed(key_id, e) => {
                self.counts.failed += 1;
                if self.may_say(About::Failed, now) {
                    let why = verify::in_words(&e);
                    log::warn!(connection = connection(key); "tunnel: {}: the key exchange has failed: {why}", self.shown(key));
                    self.say("key_exchange_failed", key, &[("reason", why.into())]);
                }
                match self.peers.get_mut(&key) {
                    // Revoked meanwhile, or run out: the key of before must not outlive that.
                    Some(peer) if peer.stage == Stage::Connected && not_accepted(&e) => {
                        let peer = &self.peers[&key];
                        self.say_gone(key, peer, "the client's certificate is no longer accepted");
                        self.dismiss(key, now + ALERT, now);
                    }
                    Some(peer) if key_id != 0 && peer.stage == Stage::Connected => {
                        peer.session.abandon(key_id);
                        self.not_renewed(key, now);
                    }
                    Some(peer) => peer.stage = Stage::Leaving(now + ALERT),
                    None => {}
                }
            }
        }
    }

    fn tick(&mut self, now: Instant) {
        self.tell_bytes(now);
        let renegotiate = self.settings.renegotiate;
        let due: Vec<Key> = self
            .peers
            .iter()
            .filter(|(_, p)| p.next_deadline(renegotiate).is_some_and(|at| at <= now))
            .map(|(k, _)| *k)
            .collect();
        for key in due {
            self.restless.insert(key);
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            match peer.stage {
                Stage::Leaving(at) if at <= now => self.forget(key, ""),
                Stage::Deciding if peer.deadline <= now && peer.pending.is_some() => self.unanswered(key, now),
                Stage::Deciding if peer.deadline <= now && peer.login.is_some() => self.not_logged_in(key, now),
                Stage::Handshake | Stage::Deciding | Stage::Installing if peer.deadline <= now => {
                    self.counts.failed += 1;
                    self.forget(key, "the key exchange has taken too long");
                }
                Stage::Connected => {
                    if let Some(id) = peer.id.filter(|_| peer.lame_duck.is_some_and(|at| at <= now)) {
                        peer.lame_duck = None;
                        // The slot may have been taken by a new key already; then there is nothing to drop.
                        if peer.renewal.is_none_or(|r| !r.installed) {
                            let _ = self.plane.command(Command::KeyDel(id, Slot::Secondary));
                        }
                    }
                    match peer.renewal {
                        Some(renewal) if renewal.deadline <= now && peer.pending.is_some() => self.unanswered(key, now),
                        Some(renewal) if renewal.deadline <= now => {
                            self.counts.failed += 1;
                            peer.session.abandon(renewal.key_id);
                            self.not_renewed(key, now);
                        }
                        None if !renegotiate.is_zero() && peer.key_since + renegotiate <= now => {
                            self.renegotiate(key, now);
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }

    /// A key was not renewed: the old one is good for a while yet, and then there is another try; but not for ever.
    fn not_renewed(&mut self, key: Key, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        (peer.renewal, peer.key_since) = (None, now);
        if peer.is_overdue(&self.settings, now) {
            self.forget(key, "the client has not renewed its key for too long");
        }
    }

    /// Says that a client goes.
    fn say_gone(&self, key: Key, peer: &Peer, why: &str) {
        log::info!(connection = connection(key); "tunnel: {} ({}) is disconnected: {why}", peer.name, peer.remote);
        let counters = peer.id.and_then(|id| self.plane.counters(id)).unwrap_or_default();
        let seconds = peer.connected_at.elapsed().as_secs();
        let more = [
            ("remote", peer.remote.to_string().into()),
            ("addresses", inside(peer.addresses).into()),
            ("reason", why.into()),
            ("seconds", seconds.into()),
            ("received_bytes", counters.rx_bytes.into()),
            ("sent_bytes", counters.tx_bytes.into()),
        ];
        self.log.say("disconnect", &peer.name, &more);
    }

    /// Drops a client. An empty reason is not logged: it was before.
    fn forget(&mut self, key: Key, why: &str) {
        self.tell_gone(key);
        let Some(peer) = self.peers.remove(&key) else { return };
        if !why.is_empty() && (peer.id.is_some() || peer.stage == Stage::Connected) {
            self.say_gone(key, &peer, why);
        }
        if let Some(session) = peer.session.remote()
            && self.by_session.get(&(peer.remote, session)) == Some(&key)
        {
            self.by_session.remove(&(peer.remote, session));
        }
        self.handshakes.leave(key);
        if self.by_socket.get(&peer.socket) == Some(&key) {
            self.by_socket.remove(&peer.socket);
        }
        if let Some(id) = peer.id {
            self.by_id.remove(&id);
            self.drop_from_plane(id);
        }
        if peer.id.is_some() || peer.stage == Stage::Connected {
            self.pool.give_back(peer.addresses);
        }
        if peer.transport == Transport::Tcp && peer.id.is_none() {
            let _ = self.plane.command(Command::SocketClose(peer.socket));
        }
    }

    fn stop(&mut self) {
        self.say_state("EXITING", "SIGTERM");
        let now = Instant::now();
        let keys: Vec<Key> = self.peers.keys().copied().collect();
        for key in keys {
            if let Some(peer) = self.peers.get_mut(&key).filter(|p| p.stage == Stage::Connected) {
                // Clients that have another server try it.
                let _ = peer.session.send_command(b"RESTART,[P]\0");
            }
            self.transmit(key, now);
        }
    }

    /// Waits for a moment until the last events are delivered.
    async fn finish_events(&mut self) {
        if let Some(hooks) = self.log.take_hooks() {
            hooks.finish(LAST_EVENTS).await;
        }
    }

    /// Whether a line may be written that clients cause as often as they like. Says how many were left out before.
    fn may_say(&mut self, about: About, now: Instant) -> bool {
        let Some(left_out) = self.lines[about as usize].take(now) else {
            self.counts.lines_left_out += 1;
            return false;
        };
        if left_out > 0 {
            log::warn!("tunnel: {left_out} log lines about {} were left out (rate limit of the log)", about.name());
            self.log.say("left_out", "", &[("about", about.name().into()), ("lines", left_out.into())]);
        }
        true
    }

    /// An event of a client for the log, with where it is.
    fn say(&self, event: &str, key: Key, more: &[(&str, serde_json::Value)]) {
        let Some(peer) = self.peers.get(&key) else { return };
        let mut all = vec![("remote", peer.remote.to_string().into())];
        all.extend_from_slice(more);
        self.log.say(event, &peer.name, &all);
    }

    fn shown(&self, key: Key) -> String {
        match self.peers.get(&key) {
            Some(peer) if !peer.name.is_empty() => format!("{} ({})", peer.name, peer.remote),
            Some(peer) => peer.remote.to_string(),
            None => "a client".to_owned(),
        }
    }
}

/// Whether an exchange failed for the client's certificate.
fn not_accepted(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref::<rustls::Error>(), Some(rustls::Error::InvalidCertificate(_)))
}

/// The id of a client's connection in the log, unique within a process.
fn connection(key: Key) -> log::DisplayValue<String> {
    log::display(format!("vpn-{key}"))
}

fn inside(addresses: Addresses) -> Vec<String> {
    let four = addresses.four.map(|a| a.to_string());
    four.into_iter().chain(addresses.six.map(|a| a.to_string())).collect()
}
