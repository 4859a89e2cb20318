//! The server: all clients' sessions on one task, which no packet of theirs can make wait.
//!
//! ```text
//! plane ─ ControlIn ─▶ by address and session id ─▶ Session ─▶ events ─▶ decide, install, answer ─▶ ControlOut ─▶ plane
//!                      └ unknown ─▶ Gate: stateless answer, or a new session
//! ```

mod inbox;
mod post;

pub(super) use inbox::Word;
pub use inbox::{Inbox, Outlet, inbox};

use super::auth::Verdict as AuthVerdict;
use super::peer::{Peer, Renewal, Stage, server_words};
use super::pool::{Addresses, Pool};
use super::session::{self, Session};
use super::settings::Settings;
use super::status::{Board, Counts};
use anyhow::{Result, anyhow};
use sealane_ovpn::command::Command as Said;
use sealane_ovpn::data::{KeySlot as Slot, PeerId, magic};
use sealane_ovpn::gate::{Accepted, Gate, Verdict};
use sealane_ovpn::packet::SessionId;
use sealane_ovpn::push;
use sealane_tunnel::plane::{
    Command, ControlIn, Event, Feature, Keepalive, KeyNew, PeerNew, PeerSet, Plane, SocketId, Transport, lane_of,
};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// How often time is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often the status is put up.
const STATUS: Duration = Duration::from_secs(1);
/// How long a client that was refused may take to hear of it.
const FAREWELL: Duration = Duration::from_secs(5);
/// Sessions that are not through their handshake, at a time.
const MAX_HANDSHAKES: usize = 1024;
/// Events of a session that are handled before the next one's turn.
const MAX_TURN: usize = 64;

/// What others ask of the server.
#[derive(Debug)]
pub enum Order {
    /// New settings.
    Reload(Box<Settings>),
    /// Tell all clients to connect elsewhere or later, and end.
    Stop,
}

type Key = u64;

/// The server.
pub struct Server {
    plane: Arc<dyn Plane>,
    settings: Settings,
    gate: Gate,
    pool: Pool,
    peers: HashMap<Key, Peer>,
    next_key: Key,
    by_session: HashMap<(SocketAddr, SessionId), Key>,
    by_id: HashMap<PeerId, Key>,
    next_id: u32,
    /// Clients with something to do at once.
    restless: HashSet<Key>,
    decisions: mpsc::UnboundedSender<(Key, u8, AuthVerdict)>,
    counts: Counts,
    board: Board,
    /// Said once, not every second.
    status_failed: std::cell::Cell<bool>,
}

fn unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Serves until told to stop, or until the plane is gone.
pub async fn serve(
    plane: Arc<dyn Plane>,
    mut settings: Settings,
    mut outlet: Outlet,
    mut orders: mpsc::UnboundedReceiver<Order>,
    board: Board,
) -> Result<()> {
    let (decisions, mut decided) = mpsc::unbounded_channel();
    let gate = Gate::new(settings.wrap.clone(), settings.wrap_v2.clone(), &session::random()?);
    let reserved: Vec<_> = settings.clients.values().map(|c| (c.address4, c.address6)).collect();
    settings.epoch &= plane.supports(Feature::Epoch);
    let mut server = Server {
        pool: Pool::new(settings.network4, settings.network6, reserved.into_iter()),
        plane,
        gate,
        settings,
        peers: HashMap::new(),
        next_key: 0,
        by_session: HashMap::new(),
        by_id: HashMap::new(),
        next_id: 0,
        restless: HashSet::new(),
        decisions,
        counts: Counts::default(),
        board,
        status_failed: std::cell::Cell::new(false),
    };
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
            Some((key, key_id, verdict)) = decided.recv() => server.decided(key, key_id, verdict, Instant::now()),
            order = orders.recv() => match order {
                Some(Order::Reload(settings)) => server.reload(*settings),
                Some(Order::Stop) | None => {
                    server.stop();
                    return Ok(());
                }
            },
            _ = tick.tick() => {
                let now = Instant::now();
                server.tick(now);
                if now.duration_since(posted) >= STATUS {
                    posted = now;
                    server.post();
                }
            }
        }
        server.settle();
    }
}

impl Server {
    fn packet(&mut self, packet: ControlIn, now: Instant) {
        self.counts.packets += 1;
        let session = packet.bytes.get(1..9).and_then(|b| b.try_into().ok()).and_then(SessionId::new);
        let Some(session) = session else {
            self.counts.dropped += 1;
            return;
        };
        let key = self.by_session.get(&(packet.remote, session)).copied();
        // A TCP client's session stays with its connection.
        let same = |p: &&mut Peer| p.transport == Transport::Udp || p.socket == packet.socket;
        if let Some((key, peer)) = key.and_then(|key| Some((key, self.peers.get_mut(&key).filter(same)?))) {
            match peer.session.handle(&packet.bytes) {
                Ok(()) => (peer.socket, peer.local) = (packet.socket, packet.local),
                Err(_) => self.counts.dropped += 1,
            }
            self.restless.insert(key);
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
        let unfinished = self.peers.values().filter(|p| p.stage != Stage::Connected).count();
        if unfinished >= MAX_HANDSHAKES || self.peers.len() >= self.settings.max_clients + MAX_HANDSHAKES {
            self.counts.crowded += 1;
            return;
        }
        let words = server_words(&self.settings, packet.transport);
        let datagrams = packet.transport == Transport::Udp;
        let remote = accepted.remote;
        let session = match Session::server(accepted, self.settings.tls.clone(), words, datagrams) {
            Ok(session) => session,
            Err(e) => return eprintln!("sealane: tunnel: {}: {e:#}", packet.remote),
        };
        self.counts.sessions += 1;
        let key = self.next_key;
        self.next_key += 1;
        let peer =
            Peer::new(session, packet.socket, packet.transport, packet.remote, packet.local, now, &self.settings);
        self.peers.insert(key, peer);
        if let Some(before) = self.by_session.insert((packet.remote, remote), key) {
            self.forget(before, "it has begun anew");
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
        let mut bytes = Vec::new();
        while peer.session.poll_transmit(now, &mut bytes) {
            let command = Command::ControlOut {
                socket: peer.socket,
                remote: peer.remote,
                local: peer.local,
                bytes: std::mem::take(&mut bytes),
            };
            // A connection that has just closed: its end comes as an event.
            let _ = self.plane.command(command);
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
                let (auth, decisions) = (self.settings.auth.clone(), self.decisions.clone());
                tokio::spawn(async move {
                    let verdict = auth.decide(claim, unix()).await;
                    let _ = decisions.send((key, key_id, verdict));
                });
            }
            session::Event::Command(Said::PushRequest) => {
                peer.push_requested = true;
                // Asked again: the answer is on its way or was lost with the client's patience.
                self.push(key);
            }
            session::Event::Command(Said::Exit) => self.forget(key, "it has left"),
            session::Event::Command(_) => {}
            session::Event::Confirmed(key_id) => self.confirmed(key, key_id, now),
            session::Event::Failed(key_id, e) => {
                self.counts.failed += 1;
                eprintln!("sealane: tunnel: {}: the key exchange has failed: {e:#}", self.shown(key));
                match self.peers.get_mut(&key) {
                    Some(peer) if key_id != 0 && peer.stage == Stage::Connected => {
                        peer.session.abandon(key_id);
                        peer.renewal = None;
                        peer.key_since = now;
                    }
                    // It may still hear TLS' alert.
                    Some(peer) => peer.stage = Stage::Leaving(now + Duration::from_secs(1)),
                    None => {}
                }
            }
        }
    }

    /// Somebody has decided about a client.
    fn decided(&mut self, key: Key, key_id: u8, verdict: AuthVerdict, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let renewal = peer.renewal.is_some_and(|r| r.key_id == key_id);
        if !(renewal && peer.stage == Stage::Connected || key_id == 0 && peer.stage == Stage::Deciding) {
            return;
        }
        self.restless.insert(key);
        let user = match verdict {
            AuthVerdict::Accept(user) => user,
            AuthVerdict::Refuse(reason) => return self.refuse(key, key_id, false, reason, now),
            AuthVerdict::Later(reason) => return self.refuse(key, key_id, true, reason, now),
        };
        let result = if renewal { self.renew(key, key_id, user) } else { self.admit(key, user, now) };
        if let Err(reason) = result {
            self.refuse(key, key_id, false, &reason, now);
        }
    }

    /// Tells a client that it may not come in. It hears of it inside TLS only after our message.
    fn refuse(&mut self, key: Key, key_id: u8, temporary: bool, reason: &str, now: Instant) {
        self.counts.unauthorised += 1;
        eprintln!("sealane: tunnel: {} is refused: {reason}", self.shown(key));
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.stage = Stage::Leaving(now + FAREWELL);
        let has_temporary = peer.info.has(sealane_ovpn::peer_info::proto::AUTH_FAIL_TEMP);
        let text = match temporary && has_temporary {
            true => format!("AUTH_FAILED,TEMP:{reason}\0"),
            false => format!("AUTH_FAILED,{reason}\0"),
        };
        let said = peer.session.send_message(key_id).and_then(|()| peer.session.send_command(text.as_bytes()));
        if let Err(e) = said {
            eprintln!("sealane: tunnel: {}: {e:#}", peer.remote);
        }
        if let Some(id) = peer.id.take() {
            let addresses = std::mem::take(&mut peer.addresses);
            self.by_id.remove(&id);
            self.drop_from_plane(id);
            self.pool.give_back(addresses);
        }
        self.restless.insert(key);
    }

    fn drop_from_plane(&self, id: PeerId) {
        if let Err(e) = self.plane.command(Command::PeerDel(id)) {
            eprintln!("sealane: tunnel: peer {} stays in the data plane: {e}", id.get());
        }
    }

    /// A new client: name, addresses, cipher, key.
    fn admit(&mut self, key: Key, user: Option<String>, now: Instant) -> Result<(), String> {
        let connected = self.peers.values().filter(|p| p.id.is_some()).count();
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let claim = peer.claim(0).ok_or("the key exchange is not complete")?;
        let name = claim.common_name.clone().or_else(|| user.clone());
        let name = name.ok_or("neither a certificate with a common name nor a user name")?;
        peer.agree(&self.settings)?;
        let client = self.settings.clients.get(&name);
        if client.is_none() && self.settings.known_clients_only {
            return Err("not one of this server's clients".to_owned());
        }
        peer.settings = client.cloned().unwrap_or_default();
        if peer.settings.disabled {
            return Err("disabled".to_owned());
        }
        if connected >= self.settings.max_clients {
            return Err("the server is full".to_owned());
        }
        peer.token = user.as_ref().and_then(|u| self.settings.auth.make_token(u, unix()));
        (peer.name, peer.user) = (name.clone(), user);
        // The same name again: the newest stands, as the old one has mostly lost its network.
        if !self.settings.duplicate_names {
            let same: Vec<Key> = self
                .peers
                .iter()
                .filter(|(k, p)| **k != key && p.id.is_some() && p.name == name)
                .map(|(k, _)| *k)
                .collect();
            same.into_iter().for_each(|other| self.forget(other, "it has connected again"));
        }
        self.install_first(key, &name, now)
    }

    fn install_first(&mut self, key: Key, name: &str, now: Instant) -> Result<(), String> {
        let Some(peer) = self.peers.get(&key) else { return Ok(()) };
        let fixed = Addresses { four: peer.settings.address4, six: peer.settings.address6 };
        let addresses = self.pool.take(name, fixed).map_err(|_| "no address is left")?;
        let result = self.install_with(key, addresses, now);
        if result.is_err() {
            self.pool.give_back(addresses);
        }
        result
    }

    fn install_with(&mut self, key: Key, addresses: Addresses, now: Instant) -> Result<(), String> {
        let lanes = self.plane.lanes();
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let id = free_id(&self.by_id, &mut self.next_id, peer.socket.lane(), lanes).ok_or("no peer id is left")?;
        let mut new = PeerNew::new(id, peer.socket, peer.transport, peer.remote);
        if !peer.info.has(sealane_ovpn::peer_info::proto::DATA_V2) {
            if !self.plane.supports(Feature::Unnumbered) {
                return Err("Data channel negotiation failed (missing DATA_V2)".to_owned());
            }
            new.sent_peer = None;
        }
        new.local = peer.local;
        (new.vpn_ip4, new.vpn_ip6) = (addresses.four, addresses.six);
        new.routes = peer.settings.routes.clone();
        (new.mtu, new.max_segment) = (self.settings.mtu, peer.max_segment(self.settings.mssfix));
        let Keepalive { ping, ping_restart } = self.settings.keepalive;
        // The client gives up first, and connects again: as OpenVPN's `keepalive` does it.
        new.keepalive = Keepalive { ping, ping_restart: ping_restart.saturating_mul(2) };
        let keys = peer.session.keys(0, peer.flags.tls_ekm).map_err(|e| format!("{e:#}"))?;
        let first =
            KeyNew { peer: id, slot: Slot::Primary, key_id: 0, cipher: peer.cipher, format: peer.format(), keys };
        self.plane.command(Command::PeerNew(new)).map_err(|e| e.to_string())?;
        if let Err(e) = self.plane.command(Command::KeyNew(Box::new(first))) {
            self.drop_from_plane(id);
            return Err(e.to_string());
        }
        (peer.id, peer.addresses, peer.stage) = (Some(id), addresses, Stage::Installing);
        peer.deadline = now + self.settings.handshake;
        self.by_id.insert(id, key);
        Ok(())
    }

    /// A known client's next key.
    fn renew(&mut self, key: Key, key_id: u8, user: Option<String>) -> Result<(), String> {
        let Some(peer) = self.peers.get_mut(&key) else { return Ok(()) };
        let claim = peer.claim(key_id).ok_or("the key exchange is not complete")?;
        // Whoever renews is who connected.
        let name = claim.common_name.or_else(|| user.clone()).unwrap_or_default();
        if name != peer.name || user != peer.user {
            return Err("another certificate or user name than before".to_owned());
        }
        peer.token = user.as_ref().and_then(|u| self.settings.auth.make_token(u, unix()));
        let Some(id) = peer.id else { return Ok(()) };
        let keys = peer.session.keys(key_id, peer.flags.tls_ekm).map_err(|e| format!("{e:#}"))?;
        // The old lame duck makes room.
        peer.lame_duck = None;
        let new = KeyNew { peer: id, slot: Slot::Secondary, key_id, cipher: peer.cipher, format: peer.format(), keys };
        self.plane.command(Command::KeyNew(Box::new(new))).map_err(|e| e.to_string())
    }

    /// What the plane says.
    fn event(&mut self, event: Event, now: Instant) {
        match event {
            Event::KeyInstalled { peer: id, key_id, .. } => {
                let Some(&key) = self.by_id.get(&id) else { return };
                self.installed(key, key_id, now);
            }
            Event::KeyExhausted { peer: id, key_id } => {
                if let Some(key) = self.by_id.get(&id).copied()
                    && self.peers.get(&key).is_some_and(|p| p.key_id == key_id)
                {
                    self.renegotiate(key, now);
                }
            }
            Event::PeerExpired(id) => {
                if let Some(&key) = self.by_id.get(&id) {
                    self.counts.expired += 1;
                    self.forget(key, "nothing has come from it for too long");
                }
            }
            Event::PeerGone { peer: id, .. } => {
                if let Some(&key) = self.by_id.get(&id) {
                    if let Some(peer) = self.peers.get_mut(&key) {
                        peer.id = None;
                    }
                    self.by_id.remove(&id);
                    self.forget(key, "the data plane has dropped it");
                }
            }
            Event::FloatTo { peer: id, remote, local } => self.float(id, remote, local),
            Event::InbandIn(id, message) => {
                if magic::payload(&message) == magic::Payload::Exit
                    && let Some(&key) = self.by_id.get(&id)
                {
                    self.forget(key, "it has left");
                }
            }
            Event::SocketClosed(socket) => {
                let closed = |p: &Peer| p.transport == Transport::Tcp && p.socket == socket;
                let keys: Vec<Key> = self.peers.iter().filter(|(_, p)| closed(p)).map(|(k, _)| *k).collect();
                keys.into_iter().for_each(|key| self.forget(key, "its connection has ended"));
            }
            Event::Failed { peer: id, why } => {
                eprintln!("sealane: tunnel: the data plane could not serve peer {}: {why}", id.get());
                if let Some(&key) = self.by_id.get(&id) {
                    self.forget(key, "the data plane could not serve it");
                }
            }
            _ => {}
        }
    }

    /// A key can be used: now the client may know.
    fn installed(&mut self, key: Key, key_id: u8, now: Instant) {
        self.restless.insert(key);
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let first = key_id == 0 && peer.stage == Stage::Installing;
        let renewal = peer.renewal.as_mut().filter(|r| r.key_id == key_id && !r.installed);
        if !first && renewal.is_none() {
            return;
        }
        if let Some(renewal) = renewal {
            renewal.installed = true;
        }
        if let Err(e) = peer.session.send_message(key_id) {
            eprintln!("sealane: tunnel: {}: {e:#}", peer.remote);
        }
        if !first {
            let token = peer.token_options();
            if let (false, Ok(parts)) = (token.is_empty(), push::replies(&token)) {
                parts.iter().for_each(|p| drop(peer.session.send_command(p)));
            }
            return;
        }
        peer.stage = Stage::Connected;
        (peer.key_since, peer.connected_at, peer.keys) = (now, now, 1);
        if peer.flags.dyn_tls_crypt
            && let Err(e) = peer.session.use_dynamic_wrap(unix() as u32)
        {
            eprintln!("sealane: tunnel: {}: {e:#}", peer.remote);
        }
        self.counts.connected += 1;
        let peer = &self.peers[&key];
        let addresses: Vec<String> = inside(peer.addresses);
        eprintln!(
            "sealane: tunnel: {} is connected from {} as {} ({}, {}, {}{})",
            peer.name,
            peer.remote,
            addresses.join(" and "),
            peer.cipher.name(),
            peer.session.tls_described(0),
            if peer.info.version.is_empty() { "an old client" } else { &peer.info.version },
            if peer.flags.aead_epoch { ", epoch format" } else { "" },
        );
        if peer.push_requested {
            self.push(key);
        }
    }

    /// Gives a client its configuration.
    fn push(&mut self, key: Key) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        if peer.stage != Stage::Connected || peer.push_sent {
            return;
        }
        match push::replies(&peer.push_options(&self.settings)) {
            Ok(parts) => {
                for part in parts {
                    if let Err(e) = peer.session.send_command(&part) {
                        eprintln!("sealane: tunnel: {}: {e:#}", peer.remote);
                    }
                }
                peer.push_sent = true;
            }
            Err(option) => eprintln!("sealane: tunnel: {}: the option cannot be pushed: {option}", peer.name),
        }
        self.restless.insert(key);
    }

    /// The client has our message, and so the new key: it is used from now on.
    fn confirmed(&mut self, key: Key, key_id: u8, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let (Some(id), Some(renewal)) = (peer.id, peer.renewal) else { return };
        if renewal.key_id != key_id || !renewal.installed {
            return;
        }
        if let Err(e) = self.plane.command(Command::KeySwap(id)) {
            return eprintln!("sealane: tunnel: {}: the new key is not used: {e}", peer.name);
        }
        peer.session.retire_before(key_id);
        (peer.renewal, peer.key_id, peer.key_since) = (None, key_id, now);
        peer.keys += 1;
        peer.lame_duck = Some(now + self.settings.transition);
        self.counts.renewed += 1;
    }

    fn renegotiate(&mut self, key: Key, now: Instant) {
        let Some(peer) = self.peers.get_mut(&key).filter(|p| p.stage == Stage::Connected) else { return };
        if let Some(key_id) = peer.session.renegotiate() {
            let deadline = now + self.settings.handshake;
            peer.renewal = Some(Renewal { key_id, deadline, installed: false });
        }
        self.restless.insert(key);
    }

    fn float(&mut self, id: PeerId, remote: SocketAddr, local: Option<std::net::IpAddr>) {
        let Some(&key) = self.by_id.get(&id) else { return };
        let Some(peer) = self.peers.get_mut(&key) else { return };
        let Some(session) = peer.session.remote() else { return };
        self.by_session.remove(&(peer.remote, session));
        eprintln!("sealane: tunnel: {} has moved from {} to {remote}", peer.name, peer.remote);
        (peer.remote, peer.local) = (remote, local);
        self.by_session.insert((remote, session), key);
        self.counts.floated += 1;
    }

    fn tick(&mut self, now: Instant) {
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
                        Some(renewal) if renewal.deadline <= now => {
                            self.counts.failed += 1;
                            peer.session.abandon(renewal.key_id);
                            peer.renewal = None;
                            // The old key is good for a while yet: try again then.
                            peer.key_since = now;
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

    /// Drops a client. An empty reason is not logged: it was before.
    fn forget(&mut self, key: Key, why: &str) {
        let Some(peer) = self.peers.remove(&key) else { return };
        if !why.is_empty() && (peer.id.is_some() || peer.stage == Stage::Connected) {
            eprintln!("sealane: tunnel: {} ({}) is gone: {why}", peer.name, peer.remote);
        }
        if let Some(session) = peer.session.remote()
            && self.by_session.get(&(peer.remote, session)) == Some(&key)
        {
            self.by_session.remove(&(peer.remote, session));
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

    /// New settings: for new clients at once, for connected ones with what can change under them.
    fn reload(&mut self, mut settings: Settings) {
        settings.epoch &= self.plane.supports(Feature::Epoch);
        for peer in self.peers.values_mut() {
            peer.session.set_endpoint(settings.tls.clone());
        }
        let gone: Vec<Key> = self
            .peers
            .iter()
            .filter(|(_, p)| p.id.is_some())
            .filter(|(_, p)| match settings.clients.get(&p.name) {
                Some(client) => client.disabled,
                None => settings.known_clients_only,
            })
            .map(|(k, _)| *k)
            .collect();
        gone.into_iter().for_each(|key| self.forget(key, "it is no longer allowed"));
        for peer in self.peers.values_mut() {
            let Some(id) = peer.id else { continue };
            let routes = settings.clients.get(&peer.name).map(|c| c.routes.clone()).unwrap_or_default();
            if routes != peer.settings.routes {
                let set = PeerSet { routes: Some(routes.clone()), ..PeerSet::default() };
                match self.plane.command(Command::PeerSet(id, set)) {
                    Ok(()) => peer.settings.routes = routes,
                    Err(e) => eprintln!("sealane: tunnel: {}: its routes are not changed: {e}", peer.name),
                }
            }
        }
        self.settings = settings;
    }

    fn shown(&self, key: Key) -> String {
        match self.peers.get(&key) {
            Some(peer) if !peer.name.is_empty() => format!("{} ({})", peer.name, peer.remote),
            Some(peer) => peer.remote.to_string(),
            None => "a client".to_owned(),
        }
    }
}

fn inside(addresses: Addresses) -> Vec<String> {
    let four = addresses.four.map(|a| a.to_string());
    four.into_iter().chain(addresses.six.map(|a| a.to_string())).collect()
}

/// A number that nobody has, of the lane where the client was heard. They are given in turn, so that a late packet of
/// a client that has gone does not meet another.
fn free_id(taken: &HashMap<PeerId, Key>, next: &mut u32, lane: u16, lanes: u16) -> Option<PeerId> {
    let step = u32::from(lanes.max(1));
    let most = (PeerId::UNSET.get() - 1) / step;
    for _ in 0..=taken.len() {
        let id = PeerId::new((*next % most) * step + u32::from(lane) % step)?;
        *next = next.wrapping_add(1);
        debug_assert_eq!(lane_of(id, lanes), lane % lanes.max(1));
        if !taken.contains_key(&id) {
            return Some(id);
        }
    }
    None
}
