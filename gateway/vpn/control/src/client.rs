//! The client: connects to a server, sets the interface up as the server says, renews its keys, and connects again.
//!
//! ```text
//! Connecting ─ key exchange ─▶ Asking ─ PUSH_REPLY ─▶ Installing ─ KeyInstalled ─▶ Connected
//!     ▲                                                                                │ lost, restart
//!     └────────────────────────────── after a pause that grows ◀───────────────────────┘
//! ```

mod interface;
mod names;
mod owner;
mod reach;
mod redirect;

use self::interface::{Failure, Interface};
pub use self::names::NamesMode;
use self::reach::Reach;
use super::profile::{Profile, Rejected, Remote};
use super::prompt::{self, Asked};
use super::proxy::{Login, LoginError, Proxy};
use super::run::no_interface;
use super::server::{Outlet, Word};
use super::session::{Event as SessionEvent, Session, Words, random};
use super::verify::in_words;
use anyhow::{Context as _, Result, anyhow, bail};
use sealane_log as log;
use sealane_ovpn::challenge::{self, Challenge, Step};
use sealane_ovpn::command::Command as Said;
use sealane_ovpn::data::{Cipher, Format, Header, KeySlot, PeerId, magic};
use sealane_ovpn::peer_info::{self, proto};
use sealane_ovpn::push::{COMPRESSION, Collector, MAX_ROUTES, Pushed, options_string, unknown_framing};
use sealane_ovpn::update::{self, NotUpdatable};
use sealane_ovpn::wrap::WrapKey;
use sealane_sys::privileges::may_change_network;
use sealane_tunnel::plane::{Command, Event, Keepalive, KeyNew, PeerNew, Plane, SocketId, Transport};
use sealane_tunnel::user::{Config, Role, Sockets, UserPlane};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::{Signal, SignalKind, signal};

const TICK: Duration = Duration::from_millis(100);
/// A server that has not been asked well enough is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Pauses between attempts, which double.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a TCP connection may take to be made.
const TCP_CONNECT: Duration = Duration::from_secs(10);
/// How long a name may take to be resolved if its addresses are known from before.
const RESOLVE: Duration = Duration::from_secs(5);
/// How long a proxy may take to connect to the server.
const PROXY_CONNECT: Duration = Duration::from_secs(30);
/// How long the last word may take to leave.
const FAREWELL: Duration = Duration::from_millis(50);
/// How long a server may take to decide if keys are never renewed.
const LONGEST_DECISION: Duration = Duration::from_secs(1800);
/// Questions of a server in one attempt.
const MAX_QUESTIONS: u32 = 16;
/// The peer in the plane: the plane of a client has but one.
const SERVER: PeerId = PeerId::UNSET;

/// Why an attempt ended.
enum End {
    /// The user wants it.
    Stopped,
    /// Worth another try, perhaps after so many seconds.
    Lost(String, Option<u32>),
    /// Worth another try with the answer to this.
    Asks(Challenge),
    /// Worth another try with a login for this proxy.
    ProxyAsks(usize),
    /// Not worth one.
    Fatal(anyhow::Error),
}

fn unix() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as u32)
}

/// Connects, and stays connected until a signal says otherwise.
pub fn connect(mut profile: Profile, names: NamesMode) -> Result<()> {
    if !may_change_network() {
        bail!(
            "the client creates an interface and sets routes, which needs CAP_NET_ADMIN: start it with sudo, or with the systemd unit \
             sealane-client@NAME"
        );
    }
    let mut interface = Interface::new(names)?;
    prompt::complete(&mut profile)?;
    log::start(log::LogSettings::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(run(profile, &mut interface));
    // A name that is still being resolved does not delay the end.
    runtime.shutdown_background();
    log::finish();
    ended
}

async fn run(profile: Profile, interface: &mut Interface) -> Result<()> {
    for what in &profile.ignored {
        log::warn!("ignored: {what}");
    }
    let stop = Stop::new()?;
    let (sink, outlet) = super::server::inbox();
    let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))];
    let sockets = any.iter().find_map(|a| Sockets::open(&[*a], &[], 1).ok()).context("cannot open a UDP socket")?;
    let config =
        Config { role: Role::Client, interface: profile.device.clone(), mtu: profile.mtu, ..Config::default() };
    let plane = UserPlane::start(&config, sockets, sink).map_err(|e| {
        let what = no_interface(&profile.device, true, e.kind());
        anyhow::Error::new(e).context(what)
    })?;
    let plane: Arc<dyn Plane> = Arc::new(plane);
    interface.sweep().await;
    let ended = stay_connected(&plane, profile, interface, outlet, stop).await;
    interface.undo(plane.interface()).await;
    ended
}

/// Connects again and again, until the user or an error ends it.
async fn stay_connected(
    plane: &Arc<dyn Plane>,
    mut profile: Profile,
    interface: &mut Interface,
    mut outlet: Outlet,
    mut stop: Stop,
) -> Result<()> {
    let (mut pause, mut attempt) = (FIRST_PAUSE, 0_u64);
    let remotes = in_order(&profile)?;
    let round = remotes.len() as u64;
    let mut turn = Turn::default();
    if remotes.len() > 1 {
        turn.hosts.learn(places(&profile));
    }
    loop {
        let remote = remotes[(attempt % round) as usize].clone();
        attempt += 1;
        (turn.attempt, turn.connection) = (attempt, turn.connection + 1);
        let started = Instant::now();
        let ended = one(plane, &mut profile, &remote, &mut outlet, interface, &turn, &mut stop).await;
        // An answer is good once.
        turn.login = None;
        let (why, wait) = match ended {
            End::Stopped => {
                // The lane sends what there is to say before it hears of this.
                let _ = plane.command(Command::PeerDel(SERVER));
                tokio::time::sleep(FAREWELL).await;
                return Ok(());
            }
            End::Fatal(e) => return Err(e),
            End::Lost(why, wait) => (why, wait),
            End::Asks(challenge) => {
                let _ = plane.command(Command::PeerDel(SERVER));
                log::info!("{} asks: {}", remote.host, shown(&challenge.text));
                let question = format!("{} ", shown(&challenge.text));
                let Some(answer) = ask(question, challenge.echo, &mut stop).await? else { return Ok(()) };
                turn.login = Some((challenge.user.clone(), challenge.password(&answer)));
                // The same server again.
                attempt -= 1;
                continue;
            }
            End::ProxyAsks(number) => {
                let [name, password] = prompt::for_proxy(&profile.proxies[number].host);
                let Some(name) = ask(name, true, &mut stop).await? else { return Ok(()) };
                let Some(password) = ask(password, false, &mut stop).await? else { return Ok(()) };
                profile.proxies[number].login = Login::Known(name, password);
                attempt -= 1;
                continue;
            }
        };
        let _ = plane.command(Command::PeerDel(SERVER));
        // A tunnel that was up for a while did not fail at once: the pauses begin again with the shortest.
        if started.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        let wait = wait.map_or(pause, |s| Duration::from_secs(u64::from(s.min(3600))));
        // Another server is tried without a longer pause; a whole round without success doubles it.
        if attempt.is_multiple_of(round) {
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        log::warn!("{}: {why}; trying again in {} s", remote.host, wait.as_secs());
        // As in OpenVPN, traffic may pass outside the tunnel until the next connection, unless the profile says otherwise.
        if !profile.persist_tun {
            interface.withdraw(plane.interface()).await;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.asked() => return Ok(()),
        }
    }
}

/// Asks the user. `None`: the client is to end.
async fn ask(question: String, echo: bool, stop: &mut Stop) -> Result<Option<String>> {
    let mut asked = Asked::new(question, echo);
    tokio::select! {
        answer = asked.answer() => answer.map(Some),
        () = stop.asked() => Ok(None),
    }
}

/// What is different in each attempt.
#[derive(Default)]
struct Turn {
    /// Counts through the servers and their addresses.
    attempt: u64,
    /// Counts connections.
    connection: u64,
    /// The answer to a challenge, in place of the profile's name and password.
    login: Option<(String, String)>,
    /// The addresses of servers and proxies.
    hosts: Hosts,
}

/// A host and a port.
type Place = (String, u16);

/// Names with their last known addresses: while the tunnel is down, but its routes or DNS servers are in force, names may not be
/// resolved.
#[derive(Clone, Default)]
struct Hosts(Arc<Mutex<HashMap<Place, Vec<SocketAddr>>>>);

impl Hosts {
    /// Resolves these in the background.
    fn learn(&self, places: Vec<Place>) {
        let hosts = self.clone();
        tokio::spawn(async move {
            for (host, port) in places {
                // What fails here is tried again when it is needed.
                let _ = tokio::time::timeout(RESOLVE, hosts.resolve(&host, port)).await;
            }
        });
    }

    async fn resolve(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((host.to_owned(), port), found.clone());
        Ok(found)
    }

    /// The addresses of a host; the last known ones if they are not found in time.
    async fn resolve_or_remember(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(host.to_owned(), port)).cloned();
        let Some(known) = known else { return Ok(self.resolve(host, port).await?) };
        Ok(match tokio::time::timeout(RESOLVE, self.resolve(host, port)).await {
            Ok(Ok(found)) => found,
            _ => known,
        })
    }
}

/// Where the client connects to: servers and proxies.
fn places(profile: &Profile) -> Vec<Place> {
    let place = |remote: &Remote| {
        let proxy = proxy_of(profile, remote);
        proxy.map_or_else(|| (remote.host.clone(), remote.port), |proxy| (proxy.host.clone(), proxy.port))
    };
    let mut places: Vec<Place> = profile.remotes.iter().map(place).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// The servers to try: in the profile's order, or with `remote-random` in random order.
fn in_order(profile: &Profile) -> Result<Vec<Remote>> {
    let mut remotes = profile.remotes.clone();
    if profile.remote_random {
        for last in (1..remotes.len()).rev() {
            let at = u64::from_be_bytes(random()?) % (last as u64 + 1);
            remotes.swap(last, at as usize);
        }
    }
    Ok(remotes)
}

/// The signals by which a user ends it.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal has been closed. `None`: the signal is to be ignored, as after `nohup`.
    hangup: Option<Signal>,
}

impl Stop {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    async fn asked(&mut self) {
        let Self { interrupt, terminate, hangup } = self;
        let closed = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = closed => {}
        }
    }
}

/// Whether this process was started so that it ignores SIGHUP.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored & 1 != 0)
}

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

async fn one(
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

/// The proxy that is between.
fn proxy_of<'p>(profile: &'p Profile, remote: &Remote) -> Option<&'p Proxy> {
    remote.proxy.and_then(|number| profile.proxies.get(number))
}

/// Says at once that a server cannot be reached. As a stock client does, the attempt goes on until its time is over: the server may
/// only be restarting.
fn say_unreachable(address: SocketAddr, e: &std::io::Error) {
    log::warn!("{address} cannot be reached: {e}; still trying");
}

/// A session with its socket. Each TCP connection has a number of its own. Through a proxy, the address is the proxy's.
async fn open(
    plane: &Arc<dyn Plane>,
    profile: &Profile,
    remote: &Remote,
    turn: &Turn,
    interface: &mut Interface,
) -> Result<(Session, SocketId, SocketAddr)> {
    let proxy = proxy_of(profile, remote);
    let (host, port) = proxy.map_or((&remote.host, remote.port), |proxy| (&proxy.host, proxy.port));
    let mut found = turn.hosts.resolve_or_remember(host, port).await?;
    found.retain(|address| remote.family.takes(address));
    // Each round through the servers uses the host's next address.
    let round = (turn.attempt - 1) / profile.remotes.len() as u64;
    let address = found.get((round % found.len().max(1) as u64) as usize);
    let address = *address.with_context(|| format!("{host} does not resolve to an address"))?;
    interface.before_connecting(plane.interface(), address.ip().to_canonical());
    let tcp = remote.transport == Transport::Tcp;
    let cipher = profile.ciphers[0].name();
    let auth = matches!(profile.wrap, WrapKey::Auth { .. });
    let bits = match profile {
        Profile { before_2_4: true, .. } => proto::REQUEST_PUSH,
        Profile { before_2_6: true, .. } => proto::DATA_V2 | proto::REQUEST_PUSH,
        _ => {
            proto::DATA_V2
                | proto::REQUEST_PUSH
                | proto::TLS_KEY_EXPORT
                | proto::AUTH_PENDING_KW
                | proto::DNS_OPTION
                | proto::DNS_OPTION_V2
                | proto::CC_EXIT_NOTIFY
                | proto::AUTH_FAIL_TEMP
                | proto::DYN_TLS_CRYPT
                | proto::DATA_EPOCH
                | proto::PUSH_UPDATE
        }
    };
    let mut peer_info =
        peer_info::ours(concat!("sealane-", env!("CARGO_PKG_VERSION")), &profile.ciphers, bits, profile.mtu);
    if bits & proto::AUTH_PENDING_KW != 0 {
        peer_info.push_str(&format!("IV_SSO={}\n", challenge::METHODS));
    }
    let (username, password) = turn.login.clone().or_else(|| profile.credentials.clone()).unwrap_or_default();
    let words = Words { options: options_string(false, tcp, profile.mtu, cipher, auth), username, password, peer_info };
    let mut session =
        Session::client(profile.endpoint.clone(), words, &profile.wrap, profile.wrap_v2.as_ref(), !tcp, unix())?;
    // Renewals begin with the password again, unless the server gives a token: an answer is good once.
    if let (Some(_), Some((username, password))) = (&turn.login, &profile.credentials) {
        session.set_credentials(username.clone(), password.clone());
    }
    let socket = if tcp {
        let limit = profile.connect_timeout.min(TCP_CONNECT);
        let connecting = tokio::time::timeout(limit, tokio::net::TcpStream::connect(address));
        let mut stream = connecting.await.context("no answer")??;
        stream.set_nodelay(true)?;
        if let Some(proxy) = proxy {
            let limit = profile.connect_timeout.min(PROXY_CONNECT);
            let opened = tokio::time::timeout(limit, proxy.open(&mut stream, &remote.host, remote.port)).await;
            let opened = opened.unwrap_or_else(|_| Err(anyhow!("it does not answer")));
            opened.with_context(|| format!("the proxy {host}"))?;
        }
        let socket = SocketId::new(0, 1 << 47 | turn.connection);
        let fd = stream.into_std()?.into();
        plane.command(Command::SocketNew { lane: 0, socket, fd }).map_err(|e| anyhow!("{e}"))?;
        socket
    } else {
        SocketId::new(0, 0)
    };
    Ok((session, socket, address))
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

/// Returns the data channel's cipher: the pushed one if it is in `ours`. A server that does not negotiate has the cipher of its
/// options string; OpenVPN's clients use it, too.
fn agreed_cipher(pushed: Option<Cipher>, options: &str, ours: &[Cipher], fallback: Option<Cipher>) -> Result<Cipher> {
    if let Some(cipher) = pushed {
        if !ours.contains(&cipher) {
            bail!("the server requests the cipher {}, which the profile does not allow", cipher.name());
        }
        return Ok(cipher);
    }
    let said = options.split(',').find_map(|option| option.strip_prefix("cipher "));
    let known = said.and_then(Cipher::from_name).filter(|cipher| ours.contains(cipher));
    known.or(fallback).with_context(|| {
        let said = said.unwrap_or("none");
        format!("the server negotiates no cipher, and its own cipher ({said}) is not in the profile")
    })
}

/// The answer to a question, if one is asked.
async fn answered(asked: &mut Option<Asked>) -> Result<String> {
    match asked {
        Some(asked) => asked.answer().await,
        None => std::future::pending().await,
    }
}

/// How long a decision may take for which the server wants this time, as OpenVPN bounds it.
fn decision_limit(seconds: Option<u32>, handshake: Duration, renegotiate: Duration) -> Duration {
    let longest = if renegotiate.is_zero() { LONGEST_DECISION } else { renegotiate / 2 };
    seconds.map_or(handshake, |s| Duration::from_secs(s.into())).min(longest.max(handshake))
}

/// What of a failed key exchange is worth another try: not what will be the same again.
fn failed(e: anyhow::Error) -> End {
    match e.downcast_ref::<rustls::Error>() {
        Some(rustls::Error::InvalidCertificate(why)) => {
            End::Fatal(anyhow!("the server's certificate is not accepted: {}", sealane_tls::certificate_problem(why)))
        }
        _ => End::Lost(format!("the key exchange has failed: {}", in_words(&e)), None),
    }
}

/// Why the client does not connect if a server wants something for the system that is not valid, or that it cannot do: a user who
/// relies on that must not find out later. `nopull`: the profile wants no routes and DNS servers from the server.
fn refused(pushed: &Pushed, nopull: bool) -> Option<anyhow::Error> {
    if nopull {
        return None;
    }
    if let Some(option) = pushed.invalid.first() {
        let name = option.split(' ').next().unwrap_or_default();
        return Some(anyhow!(
            "the server's option `{}` is not valid; to connect without it, add a line such as `pull-filter ignore \"{name}\"` to \
             the profile",
            shown(option)
        ));
    }
    let routes = pushed.routes.len() + pushed.routes6.len();
    if routes > MAX_ROUTES {
        return Some(anyhow!(
            "the server pushes {routes} routes, and this client accepts at most {MAX_ROUTES}; to connect without them, add the line \
             `pull-filter ignore \"route\"` to the profile"
        ));
    }
    pushed.block_ipv6.then(|| {
        anyhow!(
            "the server requests `block-ipv6`, but this client cannot do it, and traffic would pass outside the tunnel; to connect \
             anyway, add the line `pull-filter ignore \"block-ipv6\"` to the profile, and block IPv6 with the firewall"
        )
    })
}

/// How an attempt ends whose interface cannot be set up.
fn failed_to_set_up(failure: Failure) -> End {
    match failure {
        Failure::Retry(e) => End::Lost(format!("{e:#}"), None),
        Failure::Final(e) => End::Fatal(e),
    }
}

/// How an attempt ends when the profile rejects an option of the server.
fn rejected(Rejected(option): &Rejected) -> End {
    End::Lost(format!("the server's option `{}` is rejected by pull-filter", shown(option)), None)
}

/// A server's words, for a terminal.
fn shown(reason: &str) -> String {
    let text: String = reason.chars().take(200).collect();
    if text.is_empty() { "without a reason".to_owned() } else { log::printable(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_has_its_time() {
        let limit = |seconds, renegotiate| {
            let limit = decision_limit(seconds, Duration::from_secs(60), Duration::from_secs(renegotiate));
            limit.as_secs()
        };
        assert_eq!([limit(None, 3600), limit(Some(300), 3600), limit(Some(u32::MAX), 3600)], [60, 300, 1800]);
        assert_eq!([limit(Some(u32::MAX), 0), limit(Some(u32::MAX), 10), limit(Some(5), 0)], [1800, 60, 5]);
    }

    #[test]
    fn what_a_server_wants_is_done_or_refused() {
        let why = |options: &[&str], nopull| {
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            refused(&Pushed::parse(&options), nopull).map(|e| e.to_string())
        };
        for (option, name) in [
            ("block-ipv6", "block-ipv6"),
            ("redirect-gateway def1 new-flag", "redirect-gateway"),
            ("dhcp-option DOMAIN $(reboot)", "dhcp-option"),
            ("dns server 1 transport DoT", "dns"),
        ] {
            let refused = why(&["route 10.1.0.0 255.255.0.0", option], false).expect("refused");
            assert!(refused.contains(&format!("pull-filter ignore \"{name}\"")), "{refused}");
            assert_eq!(why(&[option], true), None, "{option}");
        }
        for option in ["redirect-gateway def1", "block-outside-dns", "dhcp-option DNS 10.8.0.1"] {
            assert_eq!(why(&[option], false), None, "{option}");
        }
        let route = "route 10.1.0.0 255.255.0.0";
        assert_eq!(why(&[route; MAX_ROUTES], false), None);
        assert!(why(&[route; MAX_ROUTES + 1], false).is_some_and(|e| e.contains("at most 2048")));
    }

    #[test]
    fn a_cipher_is_the_servers_or_none() {
        use Cipher::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
        let agreed = |pushed, options, fallback| agreed_cipher(pushed, options, &[Aes256Gcm, Aes128Gcm], fallback).ok();
        assert_eq!(agreed(Some(Aes128Gcm), "V4,cipher AES-256-GCM", None), Some(Aes128Gcm));
        assert_eq!(agreed(Some(ChaCha20Poly1305), "V4", Some(Aes256Gcm)), None);
        assert_eq!(agreed(None, "V4,cipher AES-128-GCM,auth x", None), Some(Aes128Gcm), "not our first");
        assert_eq!(agreed(None, "V4,cipher BF-CBC", None), None);
        assert_eq!(agreed(None, "V4,cipher BF-CBC", Some(Aes256Gcm)), Some(Aes256Gcm));
    }
}
