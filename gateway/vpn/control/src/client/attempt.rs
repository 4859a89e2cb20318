//! One attempt, and the connection that comes of it.

use super::hosts::proxy_of;
use super::interface::Interface;
use super::open::{open, say_unreachable};
use super::reach::Reach;
use super::stop::Stop;
use super::verdict::{agreed_cipher, decision_limit, failed, failed_to_set_up, refused, rejected, shown};
use super::{End, SERVER, Turn, unix};
use crate::profile::{Profile, Remote};
use crate::prompt::Asked;
use crate::proxy::LoginError;
use crate::server::{Outlet, Word};
use crate::session::{Event as SessionEvent, Session};
use anyhow::{Context as _, Result, anyhow, bail};
use sealane_log as log;
use sealane_ovpn::challenge::{self, Challenge, Step};
use sealane_ovpn::command::Command as Said;
use sealane_ovpn::data::{Format, Header, KeySlot, magic};
use sealane_ovpn::push::{COMPRESSION, Collector, Pushed, unknown_framing};
use sealane_ovpn::update::{self, NotUpdatable};
use sealane_tunnel::plane::{Command, Event, Keepalive, KeyNew, PeerNew, Plane, SocketId, Transport};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// A server that has not been asked well enough is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Questions of a server in one attempt.
const MAX_QUESTIONS: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Asking,
    Installing,
    Connected,
}

/// One attempt, and the connection that comes of it.
struct Attempt<'a> {
    plane: &'a Arc<dyn Plane>,
    profile: &'a mut Profile,
    interface: &'a mut Interface,
    session: Session,
    socket: SocketId,
    transport: Transport,
    remote: SocketAddr,
    /// The name that the server was told.
    user: String,
    /// Says that there is no server, until one answers.
    reach: Option<Reach>,
    stage: Stage,
    deadline: Instant,
    /// The deadline for the server's first answer.
    answer_by: Instant,
    ask_at: Instant,
    collector: Collector,
    /// Collects the parts of a PUSH_UPDATE.
    changes: Collector,
    /// The server's options that the profile accepts.
    options: Vec<String>,
    pushed: Pushed,
    key_since: Instant,
    /// When the exchange began that the server decides about.
    exchange_since: Instant,
    renewal: Option<(u8, Instant)>,
    lame_duck: Option<Instant>,
    /// The server has said that it decides later.
    is_deferred: bool,
    /// A question of the server that waits for its answer.
    asked: Option<Asked>,
    questions: u32,
}

/// Connects once, and returns why it has ended.
pub(super) async fn one(
    plane: &Arc<dyn Plane>,
    profile: &mut Profile,
    remote: &Remote,
    outlet: &mut Outlet,
    interface: &mut Interface,
    turn: &Turn,
    stop: &mut Stop,
) -> End {
    let opened = tokio::select! {
        opened = open(plane, profile, remote, turn, interface) => opened,
        () = stop.asked() => return End::Stopped,
    };
    let (session, socket, address) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            let login = e.downcast_ref::<LoginError>().copied();
            return match (login, remote.proxy) {
                (Some(LoginError::Needed), Some(number)) => End::ProxyAsks(number),
                (Some(LoginError::Refused), _) => End::Fatal(e),
                _ => End::Lost(format!("{e:#}"), None),
            };
        }
    };
    let how = if remote.transport == Transport::Tcp { "TCP" } else { "UDP" };
    match proxy_of(profile, remote) {
        Some(proxy) => {
            log::info!("connecting to {} over {how} through the proxy {} ({address})", remote.host, proxy.host);
        }
        None => log::info!("connecting to {} ({address}) over {how}", remote.host),
    }
    let reach = match remote.transport {
        Transport::Udp => Reach::try_out(address).await.inspect_err(|e| say_unreachable(address, e)).ok(),
        Transport::Tcp => None,
    };
    let now = Instant::now();
    let mut attempt = Attempt {
        plane,
        deadline: now + profile.handshake,
        answer_by: now + profile.connect_timeout,
        user: turn.login.as_ref().or(profile.credentials.as_ref()).map(|(user, _)| user.clone()).unwrap_or_default(),
        profile,
        interface,
        session,
        socket,
        transport: remote.transport,
        remote: address,
        reach,
        stage: Stage::Connecting,
        ask_at: now,
        collector: Collector::default(),
        changes: Collector::default(),
        options: Vec::new(),
        pushed: Pushed::default(),
        key_since: now,
        exchange_since: now,
        renewal: None,
        lame_duck: None,
        is_deferred: false,
        asked: None,
        questions: 0,
    };
    let ended = attempt.run(outlet, stop).await;
    if remote.transport == Transport::Tcp {
        let _ = plane.command(Command::SocketClose(socket));
    }
    match ended {
        Ok(end) => end,
        Err(e) => End::Lost(format!("{e:#}"), None),
    }
}

impl Attempt<'_> {
    async fn run(&mut self, outlet: &mut Outlet, stop: &mut Stop) -> Result<End> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let now = Instant::now();
            while let Some(event) = self.session.poll_event() {
                if let Some(end) = self.session_event(event, now).await? {
                    self.transmit(now);
                    return Ok(end);
                }
            }
            self.transmit(now);
            tokio::select! {
                word = outlet.next() => match word.context("the data plane has ended")? {
                    // What is forged, or of an attempt before, is dropped.
                    Word::Packet(packet) => drop(self.session.handle(&packet.bytes)),
                    Word::Event(event) => {
                        if let Some(end) = self.plane_event(event, Instant::now()).await? {
                            return Ok(end);
                        }
                    }
                },
                e = Reach::refused(self.reach.as_ref()) => {
                    if self.stage == Stage::Connecting {
                        say_unreachable(self.remote, &e);
                    }
                    self.reach = None;
                }
                _ = tick.tick() => self.tick(Instant::now())?,
                answer = answered(&mut self.asked) => {
                    self.asked = None;
                    match answer {
                        Ok(answer) => self.respond(&answer)?,
                        Err(e) => return Ok(End::Fatal(e)),
                    }
                }
                () = stop.asked() => {
                    self.leave();
                    return Ok(End::Stopped);
                }
            }
        }
    }

    /// Says goodbye: on the control channel to servers that listen for it there, else on the data channel.
    fn leave(&mut self) {
        if self.stage != Stage::Connected {
            return;
        }
        // Nobody is left to be told that it could not be said.
        if self.pushed.flags.cc_exit {
            let _ = self.session.send_command(b"EXIT\0");
            self.transmit(Instant::now());
        }
        // While a key is renewed, OpenVPN's server takes commands with the new key only, on which nothing is agreed yet.
        if !self.pushed.flags.cc_exit || self.renewal.is_some() {
            let _ = self.plane.command(Command::InbandOut(SERVER, magic::exit_message().to_vec()));
        }
    }

    fn transmit(&mut self, now: Instant) {
        let mut bytes = Vec::new();
        while self.session.poll_transmit(now, &mut bytes) {
            let (socket, remote) = (self.socket, self.remote);
            let bytes = std::mem::take(&mut bytes);
            let _ = self.plane.command(Command::ControlOut { socket, remote, local: None, bytes });
        }
    }

    fn tick(&mut self, now: Instant) -> Result<()> {
        self.interface.follow(self.plane.interface(), now);
        match self.stage {
            Stage::Connecting if now >= self.answer_by && self.session.remote().is_none() => bail!("no answer"),
            Stage::Connecting if now >= self.deadline => bail!(
                "the server does not respond, or the key exchange \
                                                                takes too long"
            ),
            Stage::Asking if now >= self.deadline && self.is_deferred => bail!("the login was not completed in time"),
            Stage::Asking | Stage::Installing if now >= self.deadline => bail!("the server sends no configuration"),
            Stage::Asking if now >= self.ask_at => {
                self.session.send_command(b"PUSH_REQUEST\0")?;
                self.ask_at = now + ASK_AGAIN;
            }
            Stage::Connected => {
                if self.lame_duck.is_some_and(|at| at <= now) {
                    self.lame_duck = None;
                    let _ = self.plane.command(Command::KeyDel(SERVER, KeySlot::Secondary));
                }
                if let Some((key_id, deadline)) = self.renewal.filter(|(_, deadline)| *deadline <= now) {
                    log::warn!("the exchange of key {key_id} was not complete within {:?}", deadline - self.key_since);
                    self.session.abandon(key_id);
                    self.renewal = None;
                    self.key_since = now;
                }
                let renegotiate = self.profile.renegotiate;
                if self.renewal.is_none() && !renegotiate.is_zero() && self.key_since + renegotiate <= now {
                    self.renegotiate(now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn renegotiate(&mut self, now: Instant) {
        if let Some(key_id) = self.session.renegotiate() {
            self.renewal = Some((key_id, now + self.profile.handshake));
            self.exchange_since = now;
        }
    }

    async fn session_event(&mut self, event: SessionEvent, now: Instant) -> Result<Option<End>> {
        match event {
            SessionEvent::Message(0) => {
                self.stage = Stage::Asking;
                self.exchange_since = now;
                // The server mostly gives it unasked.
                self.ask_at = now + Duration::from_secs(1);
                self.deadline = now + self.profile.handshake;
            }
            SessionEvent::Message(key_id) => {
                if self.renewal.is_none() {
                    // The server has begun it.
                    self.renewal = Some((key_id, now + self.profile.handshake));
                    self.exchange_since = now;
                }
                let format = self.format();
                self.install(KeySlot::Secondary, key_id, format)?;
                self.lame_duck = None;
            }
            SessionEvent::Failed(0, e) => return Ok(Some(failed(e))),
            SessionEvent::Failed(key_id, e) => {
                log::warn!("the key exchange has failed: {e:#}");
                self.session.abandon(key_id);
                self.renewal = None;
                self.key_since = now;
            }
            SessionEvent::Confirmed(_) => {}
            SessionEvent::Command(said) => return self.said(said).await,
        }
        Ok(None)
    }

    async fn said(&mut self, said: Said) -> Result<Option<End>> {
        match said {
            Said::PushReply(part) => {
                let Some(options) =
                    self.collector.take(&part).map_err(|_| anyhow!("the server's configuration is too long"))?
                else {
                    return Ok(None);
                };
                let options = match self.profile.pull_filter.apply(options) {
                    Ok(options) => options,
                    Err(rejected) => return Ok(Some(self::rejected(&rejected))),
                };
                let pushed = Pushed::parse(&options);
                if let Some(token) = pushed.auth_token.as_ref().filter(|_| !self.user.is_empty()) {
                    // From now on in place of the password.
                    self.session.set_credentials(self.user.clone(), token.clone());
                }
                if self.stage == Stage::Asking {
                    self.options = options;
                    return self.configured(pushed).map(|()| None).or_else(|e| Ok(Some(End::Fatal(e))));
                }
            }
            Said::PushUpdate(part) if self.stage == Stage::Connected => {
                let Some(changes) =
                    self.changes.take(&part).map_err(|_| anyhow!("the server's configuration is too long"))?
                else {
                    return Ok(None);
                };
                return self.change(&changes).await;
            }
            Said::AuthFailed(reason) => {
                let reason = match Challenge::parse(&reason) {
                    Some(challenge) if challenge.needs_answer => return Ok(Some(End::Asks(challenge))),
                    Some(challenge) => challenge.text,
                    None => reason,
                };
                return Ok(Some(match self.stage {
                    Stage::Connected => End::Lost(format!("refused: {}", shown(&reason)), None),
                    _ => End::Fatal(anyhow!("the server refuses this client: {}", shown(&reason))),
                }));
            }
            Said::AuthFailedTemporarily(wait, reason) => {
                return Ok(Some(End::Lost(
                    format!("the server refuses this client for now: {}", shown(&reason)),
                    wait,
                )));
            }
            Said::AuthPending(seconds) => self.defer(seconds),
            Said::Meanwhile(step) => self.meanwhile(step)?,
            Said::Halt(reason) => {
                return Ok(Some(End::Fatal(anyhow!("the server ends the connection: {}", shown(&reason)))));
            }
            Said::Restart(reason) => return Ok(Some(End::Lost(format!("restarted {}", shown(&reason)), None))),
            Said::Exit => return Ok(Some(End::Lost("the server has closed the connection".to_owned(), None))),
            Said::Info(text) => log::info!("the server says: {}", shown(&text)),
            Said::PushRequest | Said::PushUpdate(_) | Said::Response(_) | Said::Unknown(_) => {}
        }
        Ok(None)
    }

    /// The server decides later about this client, or about its next key.
    fn defer(&mut self, seconds: Option<u32>) {
        let limit = decision_limit(seconds, self.profile.handshake, self.profile.renegotiate);
        log::info!("the server decides within {} s", limit.as_secs());
        self.is_deferred = true;
        // Who says it again gets no more time.
        let until = self.exchange_since + limit;
        match &mut self.renewal {
            Some((_, deadline)) => *deadline = (*deadline).max(until),
            None => self.deadline = self.deadline.max(until),
        }
    }

    /// Tells the user what to do until the server has decided.
    fn meanwhile(&mut self, step: Result<Step, String>) -> Result<()> {
        match step {
            Ok(Step::Open(url)) => log::info!("open this page to log in: {url}"),
            Ok(Step::Answer { text, needs_answer: false, .. }) => log::info!("the server says: {}", shown(&text)),
            Ok(Step::Answer { text, echo, .. }) => {
                self.questions += 1;
                if self.questions > MAX_QUESTIONS {
                    bail!("the server asks too many questions");
                }
                log::info!("the server asks: {}", shown(&text));
                self.asked = Some(Asked::new(format!("{} ", shown(&text)), echo));
            }
            Err(other) => {
                log::warn!("the server expects something that this client cannot do: {}", shown(&other));
            }
        }
        Ok(())
    }

    /// Sends the user's answer.
    fn respond(&mut self, answer: &str) -> Result<()> {
        let command = challenge::response(answer).context("the answer is too long")?;
        self.session.send_command(&command)
    }

    /// Applies a PUSH_UPDATE.
    async fn change(&mut self, changes: &[String]) -> Result<Option<End>> {
        let changes = match self.profile.pull_filter.apply(changes.to_vec()) {
            Ok(changes) => changes,
            Err(rejected) => return Ok(Some(self::rejected(&rejected))),
        };
        let options = match update::updated(self.options.clone(), &changes) {
            Ok(options) => options,
            Err(NotUpdatable(change)) => {
                let why = format!("the server changes `{}`; this needs a new connection", shown(&change));
                return Ok(Some(End::Lost(why, None)));
            }
        };
        self.options = options;
        let changed = Pushed::parse(&self.options);
        if let Some(why) = refused(&changed, self.profile.route_nopull) {
            return Ok(Some(End::Fatal(why)));
        }
        let server = self.remote.ip().to_canonical();
        let set_up = self.interface.set_up(self.plane.interface(), self.profile, &changed, server).await;
        if let Err(failure) = set_up {
            return Ok(Some(failed_to_set_up(failure)));
        }
        log::info!("the server has changed routes or DNS servers");
        Ok(None)
    }

    fn format(&self) -> Format {
        if self.pushed.flags.aead_epoch { Format::Epoch } else { Format::Stock }
    }

    /// The server has given us our configuration.
    fn configured(&mut self, pushed: Pushed) -> Result<()> {
        if let Some(what) = pushed.impossible.first() {
            bail!("the server requests `{}`, which is not supported", shown(what));
        }
        if let Some(cipher) = &pushed.unknown_cipher {
            bail!("the server requests the cipher {}, which is not supported", shown(cipher));
        }
        if let Some(why) = refused(&pushed, self.profile.route_nopull) {
            return Err(why);
        }
        let options = self.session.message(0).map_or("", |m| &m.options);
        for what in unknown_framing(options).filter(|what| !(pushed.stub && *what == COMPRESSION)) {
            log::warn!(
                "the server uses {what}, which this client does not support: data packets may be unreadable in both \
                 directions; disable it on the server"
            );
        }
        let cipher = agreed_cipher(pushed.cipher, options, &self.profile.ciphers, self.profile.cipher_fallback)?;
        for what in &pushed.ignored {
            log::info!("ignored from the server: {}", shown(what));
        }
        self.pushed = pushed;
        self.pushed.cipher = Some(cipher);
        // The server has decided.
        self.asked = None;
        if self.pushed.flags.dyn_tls_crypt {
            self.session.use_dynamic_wrap(unix())?;
        }
        let mut peer = PeerNew::new(SERVER, self.socket, self.transport, self.remote);
        // Without a number from the server our packets carry none.
        peer.sent_peer = self.pushed.peer_id;
        peer.mtu = self.pushed.mtu.unwrap_or(self.profile.mtu).clamp(576, 9000);
        let header = Header { key_id: 0, peer_id: peer.sent_peer };
        let outer = if self.remote.ip().to_canonical().is_ipv4() { 28 } else { 48 };
        if self.transport == Transport::Udp {
            peer.max_segment = 1492 - outer - self.format().overhead(header) as u16 - 40;
        }
        peer.keepalive = Keepalive {
            ping: self.pushed.ping.or(self.profile.ping).unwrap_or(0),
            ping_restart: self.pushed.ping_restart.or(self.profile.ping_restart).unwrap_or(120),
        };
        self.plane.command(Command::PeerNew(peer)).map_err(|e| anyhow!("{e}"))?;
        let format = self.format();
        self.install(KeySlot::Primary, 0, format)?;
        self.stage = Stage::Installing;
        Ok(())
    }

    fn install(&mut self, slot: KeySlot, key_id: u8, format: Format) -> Result<()> {
        let cipher = self.pushed.cipher.context("there is no cipher yet")?;
        let keys = self.session.keys(key_id, self.pushed.flags.tls_ekm)?;
        let new = KeyNew { peer: SERVER, slot, key_id, cipher, format, keys };
        self.plane.command(Command::KeyNew(Box::new(new))).map_err(|e| anyhow!("{e}"))
    }

    async fn plane_event(&mut self, event: Event, now: Instant) -> Result<Option<End>> {
        match event {
            Event::KeyInstalled { key_id: 0, .. } if self.stage == Stage::Installing => {
                let (device, server) = (self.plane.interface(), self.remote.ip().to_canonical());
                let set_up = self.interface.set_up(device, self.profile, &self.pushed, server).await;
                if let Err(failure) = set_up {
                    return Ok(Some(failed_to_set_up(failure)));
                }
                self.stage = Stage::Connected;
                self.key_since = now;
                let address = |a: Option<String>| a.unwrap_or_default();
                log::info!(
                    "connected to {} as {} {} ({}, {}, {})",
                    self.remote,
                    address(self.pushed.ifconfig.map(|(a, _)| a.to_string())),
                    address(self.pushed.ifconfig6.map(|(a, _)| a.to_string())),
                    self.pushed.cipher.map_or("", |c| c.name()),
                    self.session.tls_described(0),
                    self.plane.interface(),
                );
            }
            Event::KeyInstalled { key_id, .. } if self.renewal.is_some_and(|(id, _)| id == key_id) => {
                // The server had its key before it answered: both may be used now.
                self.plane.command(Command::KeySwap(SERVER)).map_err(|e| anyhow!("{e}"))?;
                self.session.retire_before(key_id);
                self.renewal = None;
                // The server has decided.
                self.asked = None;
                self.key_since = now;
                self.lame_duck = Some(now + self.profile.transition);
            }
            Event::KeyExhausted { .. } => self.renegotiate(now),
            Event::PeerExpired(_) => {
                return Ok(Some(End::Lost("no packet has arrived from the server for too long".to_owned(), None)));
            }
            Event::InbandIn(_, message) if magic::payload(&message) == magic::Payload::Exit => {
                return Ok(Some(End::Lost("the server has closed the connection".to_owned(), None)));
            }
            Event::SocketClosed(socket) if socket == self.socket => {
                return Ok(Some(End::Lost("the connection has ended".to_owned(), None)));
            }
            Event::Failed { why, .. } => bail!("the data plane: {why}"),
            _ => {}
        }
        Ok(None)
    }
}

/// The answer to a question, if one is asked.
async fn answered(asked: &mut Option<Asked>) -> Result<String> {
    match asked {
        Some(asked) => asked.answer().await,
        None => std::future::pending().await,
    }
}
