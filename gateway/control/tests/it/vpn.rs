//! The VPN server's control with a data plane in memory: many clients, lost packets, refusals, no interface needed.

use sealane_control::config::{Oidc, Place, Tunnel};
use sealane_control::vpn::login::{Begun, Busy, LoginClient, LoginOutcome, LoginRefusal, Report, WebLogin};
use sealane_control::vpn::profile::Profile;
use sealane_control::vpn::server::{self, AdminCommand, Inbox, Start};
use sealane_control::vpn::session::{Event as SessionEvent, Session, Words};
use sealane_control::vpn::settings::Settings;
use sealane_control::vpn::status::StatusRegistry;
use sealane_control::vpn::{SharedPort, auth, pki};
use sealane_ovpn::challenge::Step;
use sealane_ovpn::command::Command as Said;
use sealane_ovpn::data::{KeyPair, PeerId};
use sealane_ovpn::link::LinkError;
use sealane_ovpn::packet::{Body, Opcode, PacketError, SessionId};
use sealane_ovpn::peer_info::{self, proto};
use sealane_ovpn::push::Pushed;
use sealane_ovpn::wrap::{Digest, StaticKey, Wrap, WrapKey};
use sealane_tunnel::plane::{
    Command, ControlIn, Event, Feature, PeerCounters, Plane, Refused, Sink as _, SocketId, Transport,
};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long anything may take. Only a hang takes that long, also on a machine that has much else to do.
const WAIT_LIMIT: Duration = Duration::from_secs(300);

/// Installs keys at once, and hands control packets to the test client with their address.
struct Memory {
    inbox: Arc<Inbox>,
    /// What control has sent, by where to.
    out: Mutex<HashMap<SocketAddr, Vec<Vec<u8>>>>,
    keys: Mutex<HashMap<PeerId, Vec<(u8, KeyPair)>>>,
    /// So many control packets more find no room.
    full: AtomicUsize,
}

impl Plane for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn lanes(&self) -> u16 {
        2
    }

    fn interface(&self) -> &str {
        "none"
    }

    fn command(&self, command: Command) -> Result<(), Refused> {
        match command {
            Command::ControlOut { .. }
                if self.full.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() =>
            {
                return Err(Refused::Full);
            }
            Command::ControlOut { remote, bytes, .. } => {
                self.out.lock().unwrap().entry(remote).or_default().push(bytes);
            }
            Command::KeyNew(new) => {
                let (peer, slot, key_id) = (new.peer, new.slot, new.key_id);
                self.keys.lock().unwrap().entry(peer).or_default().push((key_id, new.keys));
                self.inbox.event(Event::KeyInstalled { peer, slot, key_id });
            }
            Command::PeerDel(peer) => drop(self.keys.lock().unwrap().remove(&peer)),
            _ => {}
        }
        Ok(())
    }

    fn supports(&self, _: Feature) -> bool {
        true
    }

    fn counters(&self, _: PeerId) -> Option<PeerCounters> {
        None
    }

    fn totals(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A client without a tunnel.
struct Client {
    session: Session,
    address: SocketAddr,
    pushed: Option<Pushed>,
    refused: Option<String>,
    keys: Option<KeyPair>,
    /// Packets whose ids it had seen before.
    replayed: usize,
    /// The page that it is told to open.
    opens: Option<String>,
    token: Option<String>,
}

impl Client {
    fn new(profile: &Profile, number: u16) -> Self {
        let address = SocketAddr::from(([192, 0, (number >> 8) as u8, number as u8], 1194));
        Self::with(profile, address, "", "")
    }

    fn with(profile: &Profile, address: SocketAddr, username: &str, password: &str) -> Self {
        Self::made(profile, address, (username, password), "")
    }

    /// One that can open pages.
    fn opening(profile: &Profile, number: u16) -> Self {
        Self::made(profile, ([192, 0, 2, 77], number).into(), ("anybody", "anything"), "IV_SSO=webauth\n")
    }

    fn made(profile: &Profile, address: SocketAddr, (username, password): (&str, &str), more_info: &str) -> Self {
        let bits = proto::DATA_V2 | proto::REQUEST_PUSH | proto::TLS_KEY_EXPORT | proto::DYN_TLS_CRYPT;
        let (username, password) = (username.to_owned(), password.to_owned());
        let peer_info = peer_info::ours("test", &profile.ciphers, bits, 1500) + more_info;
        let words = Words { peer_info, username, password, ..Words::default() };
        let v2 = profile.wrap_v2.as_ref();
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as u32;
        let session = Session::client(profile.endpoint.clone(), words, &profile.wrap, v2, true, unix).unwrap();
        Self { session, address, pushed: None, refused: None, keys: None, replayed: 0, opens: None, token: None }
    }

    /// Takes what came, and sends what there is; every `lose`th packet of either direction is lost.
    fn turn(&mut self, world: &World, lose: usize) {
        let came = world.plane.out.lock().unwrap().remove(&self.address).unwrap_or_default();
        for packet in came.iter().filter(|_| world.survives(lose)) {
            let handled = self.session.handle(packet);
            self.replayed += usize::from(handled == Err(LinkError::Packet(PacketError::Replayed)));
        }
        while let Some(event) = self.session.poll_event() {
            match event {
                SessionEvent::Command(Said::PushReply(options)) => {
                    let options: Vec<String> = options.split(',').map(str::to_owned).collect();
                    let token = options.iter().find_map(|option| option.strip_prefix("auth-token ")).map(str::to_owned);
                    self.token = token.or(self.token.take());
                    let pushed = Pushed::parse(&options);
                    self.keys = self.session.keys(0, pushed.flags.tls_ekm).ok();
                    self.pushed = Some(pushed);
                }
                SessionEvent::Command(Said::AuthFailed(why)) => self.refused = Some(why),
                SessionEvent::Command(Said::Meanwhile(Ok(Step::Open(url)))) => self.opens = Some(url),
                SessionEvent::Failed(_, e) => self.refused = Some(format!("{e:#}")),
                _ => {}
            }
        }
        let mut bytes = Vec::new();
        while self.session.poll_transmit(Instant::now(), &mut bytes) {
            if world.survives(lose) {
                world.send(self.address, bytes.clone());
            }
        }
    }
}

struct World {
    plane: Arc<Memory>,
    commands: mpsc::UnboundedSender<AdminCommand>,
    registry: StatusRegistry,
    thread: Option<std::thread::JoinHandle<()>>,
    folder: tempfile::TempDir,
    packets: std::cell::Cell<usize>,
}

impl World {
    fn new(more: &str) -> Self {
        Self::made(more, |line| !line.is_empty())
    }

    /// Control packets are not wrapped, so that a test can make its own.
    fn without_wrap(more: &str) -> Self {
        Self::made(more, |line| !line.starts_with("tls_crypt_v2"))
    }

    fn made(more: &str, keep: impl Fn(&str) -> bool) -> Self {
        Self::serving(more, keep, |tunnel| Settings::new(tunnel, None))
    }

    fn serving(more: &str, keep: impl Fn(&str) -> bool, settings: impl FnOnce(Tunnel) -> Settings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("vpn");
        let what = pki::Init { endpoint: "192.0.2.1:1194", network: "10.0.0.0/16", ..pki::Init::default() };
        pki::init(&made, &what).unwrap();
        let hash = |name| format!("{name}:{}\n", auth::hash_password("right").unwrap());
        std::fs::write(made.join("users"), hash("al") + &hash("bo")).unwrap();
        std::fs::write(made.join("static.key"), static_key().to_text()).unwrap();
        let toml = std::fs::read_to_string(made.join("tunnel.toml")).unwrap();
        let toml: String = toml.lines().filter(|line| keep(line)).map(|line| format!("{line}\n")).collect();
        // What a test sets itself is not set twice.
        let first_table = more.lines().take_while(|line| !line.starts_with('['));
        let own: Vec<&str> = first_table.filter_map(|line| line.split_once(" = ").map(|(key, _)| key)).collect();
        let is_own = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| own.contains(&key));
        let toml: String = toml.lines().filter(|line| !is_own(line)).map(|line| format!("{line}\n")).collect();
        let toml = toml + more;
        std::fs::write(made.join("tunnel.toml"), toml).unwrap();
        let (config, _) =
            sealane_control::resolve::load_and_wait(&made.join("tunnel.toml")).unwrap_or_else(|e| panic!("{e}"));
        let (inbox, outlet) = server::inbox();
        let plane =
            Arc::new(Memory { inbox, out: Mutex::default(), keys: Mutex::default(), full: AtomicUsize::default() });
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let registry = StatusRegistry::default();
        let (theirs, settings, posted) = (plane.clone(), settings(*config.tunnel.unwrap()), registry.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let start = Start {
                plane: theirs,
                notes: Vec::new(),
                settings,
                outlet,
                registry: posted,
                inherited: None,
                management: None,
                login: None,
            };
            let mut commands = command_receiver;
            runtime.block_on(server::serve(start, &mut commands, &mut SharedPort::default().arrivals())).unwrap();
        });
        let packets = std::cell::Cell::new(0);
        Self { plane, commands, registry, thread: Some(thread), folder, packets }
    }

    fn profile(&self, name: &str) -> Profile {
        let ca = pki::Ca::open(&self.folder.path().join("vpn"), None).unwrap();
        let known = ca.list().unwrap().iter().any(|issued| issued.name == name);
        let text = ca
            .client_profile(name, known, 10, &pki::Remotes::default(), &mut || panic!("the key is not encrypted"))
            .unwrap();
        Profile::parse(&text, std::path::Path::new("")).unwrap()
    }

    fn send(&self, remote: SocketAddr, bytes: Vec<u8>) {
        let socket = SocketId::new(remote.port() % 2, 0);
        let _ =
            self.plane.inbox.control_in(ControlIn { socket, transport: Transport::Udp, remote, local: None, bytes });
    }

    fn survives(&self, lose: usize) -> bool {
        self.packets.set(self.packets.get() + 1);
        lose == 0 || !self.packets.get().is_multiple_of(lose)
    }

    /// Turns of all clients until each has what it waits for.
    fn run(&self, clients: &mut [Client], lose: usize) {
        let start = Instant::now();
        while !clients.iter().all(|c| c.pushed.is_some() || c.refused.is_some()) {
            clients.iter_mut().for_each(|c| c.turn(self, lose));
            std::thread::sleep(Duration::from_millis(2));
            assert!(start.elapsed() < WAIT_LIMIT, "clients wait for ever");
        }
    }
}

/// The key of `tls_auth` and `tls_crypt` in tests that set one.
fn static_key() -> StaticKey {
    StaticKey::new(std::array::from_fn(|i| i as u8))
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.commands.send(AdminCommand::Stop);
        let thread = self.thread.take().expect("dropped once");
        assert!(thread.join().is_ok() || std::thread::panicking(), "the server has panicked");
    }
}

/// Waits for something that comes sooner or later.
fn wait(mut holds: impl FnMut() -> bool, what: &str) {
    let start = Instant::now();
    while !holds() {
        std::thread::sleep(Duration::from_millis(20));
        assert!(start.elapsed() < WAIT_LIMIT, "not before long: {what}");
    }
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0) * 4096
}

/// The name may be the same: `duplicate_names`. Two waves, so that the second's client ends live in the memory that the
/// first's have left, and what grows is the server's.
#[test]
fn two_thousand_clients_connect_and_stay() {
    const WAVE: u16 = 1_000;
    let world = World::new("duplicate_names = true\nmax_clients = 5000\n");
    let profile = world.profile("crowd");
    let mut addresses = Vec::new();
    let mut wave = |first: u16| {
        let mut clients: Vec<Client> = (first..first + WAVE).map(|n| Client::new(&profile, n)).collect();
        world.run(&mut clients, 0);
        addresses.extend(clients.iter().filter_map(|c| c.pushed.as_ref()?.ifconfig));
        for client in &clients {
            let id = client.pushed.as_ref().and_then(|p| p.peer_id).expect("a number each");
            let keys = world.plane.keys.lock().unwrap();
            let ours = &keys[&id][0].1;
            let theirs = client.keys.as_ref().expect("keys each");
            assert!(ours.encrypt == theirs.decrypt && ours.decrypt == theirs.encrypt);
        }
    };
    wave(0);
    let before = resident();
    wave(WAVE);
    let each = resident().saturating_sub(before) / usize::from(WAVE);
    println!("{each} bytes of memory per client");
    assert!(each <= 32 * 1024, "{each} bytes of memory per client");
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 2 * usize::from(WAVE), "an address each");
    let all = || world.registry.read().clients.len() == 2 * usize::from(WAVE);
    wait(all, "all are shown");
    // Nobody is dropped by what the server does meanwhile.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(all());
}

#[test]
fn lost_packets_are_made_up_for() {
    let world = World::new("");
    let profile = world.profile("alice");
    for lose in [3, 4, 7] {
        let mut clients = [Client::new(&profile, lose as u16)];
        world.run(&mut clients, lose);
        assert!(clients[0].pushed.is_some(), "{:?}", clients[0].refused);
    }
}

/// Every opcode, every length, forged, cut, repeated and from strangers: nobody who is connected notices.
#[test]
fn rubbish_is_dropped_and_survived() {
    let world = World::new("");
    let profile = world.profile("alice");
    let mut clients = [Client::new(&profile, 1)];
    world.run(&mut clients, 0);
    let mut seed = 1_u64;
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let stranger: SocketAddr = ([203, 0, 113, 1], 5).into();
    for n in 0..30_000_u32 {
        let mut packet: Vec<u8> = (0..next() % 400).map(|_| next() as u8).collect();
        if let Some(first) = packet.first_mut() {
            *first = n as u8;
        }
        let remote = if n % 2 == 0 { clients[0].address } else { stranger };
        world.send(remote, packet);
        if n % 2_000 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    std::thread::sleep(Duration::from_millis(1500));
    assert!(world.plane.out.lock().unwrap().get(&stranger).is_none_or(Vec::is_empty), "strangers get no answer");
    assert_eq!(world.registry.read().clients.len(), 1);
    let mut more = [Client::new(&profile, 2)];
    world.run(&mut more, 0);
    assert!(more[0].pushed.is_some());
    let counts: HashMap<_, _> = world.registry.read().control.into_iter().collect();
    assert!(counts["refused"] > 1_000, "{counts:?}");
}

#[test]
fn a_client_that_is_no_longer_allowed_is_dropped_by_a_reload() {
    let world = World::new("");
    let profile = world.profile("alice");
    let mut clients = [Client::new(&profile, 1)];
    world.run(&mut clients, 0);
    let made = world.folder.path().join("vpn/tunnel.toml");
    let toml = std::fs::read_to_string(&made).unwrap() + "[[tunnel.client]]\nname = \"alice\"\ndisabled = true\n";
    std::fs::write(&made, toml).unwrap();
    let (config, _) = sealane_control::resolve::load_and_wait(&made).unwrap_or_else(|e| panic!("{e}"));
    world.commands.send(AdminCommand::Reload(Box::new(Settings::new(*config.tunnel.unwrap(), None)))).unwrap();
    let mut again = [Client::new(&profile, 2)];
    world.run(&mut again, 0);
    assert_eq!(again[0].refused.as_deref(), Some("disabled"));
    assert!(world.plane.keys.lock().unwrap().is_empty(), "its keys are gone");
}

/// An old key is not good for ever: as long as until it should have been another, and for the transition.
#[test]
fn a_client_that_does_not_renew_its_key_is_dropped() {
    let world = World::new("renegotiate = \"500ms\"\ntransition = \"500ms\"\nhandshake_timeout = \"3s\"\n");
    let mut clients = [Client::new(&world.profile("alice"), 1)];
    world.run(&mut clients, 0);
    assert_eq!(world.plane.keys.lock().unwrap().len(), 1);
    // From now on it says nothing, and hears nothing.
    wait(|| world.plane.keys.lock().unwrap().is_empty(), "its keys go");
    wait(|| world.registry.read().clients.is_empty(), "it is gone");
}

/// First packets of clients whose control packets are not wrapped: a reset each, and then only an acknowledgement.
fn half_open(world: &World, addresses: &[SocketAddr]) {
    let session = |at: SocketAddr| [&at.port().to_be_bytes()[..], &[7; 6]].concat();
    for address in addresses {
        world.send(*address, [&[7 << 3], &session(*address)[..], &[0; 5]].concat());
    }
    wait(|| world.plane.out.lock().unwrap().len() == addresses.len(), "an answer to each reset");
    for address in addresses {
        let answers = world.plane.out.lock().unwrap().remove(address).expect("an answer");
        world.send(*address, [&[5 << 3], &session(*address)[..], &[1, 0, 0, 0, 0], &answers[0][1..9]].concat());
    }
}

fn counts(world: &World) -> HashMap<std::borrow::Cow<'static, str>, u64> {
    world.registry.read().control.into_iter().collect()
}

/// More handshakes than there are slots, from one address, none of which goes on: others connect meanwhile, from that
/// address, too.
#[test]
fn handshakes_from_one_address_keep_nobody_out() {
    let world = World::without_wrap("");
    let mut profile = world.profile("alice");
    profile.wrap_v2 = None;
    let addresses: Vec<SocketAddr> = (0..1500).map(|n| ([203, 0, 113, 1], 10_000 + n).into()).collect();
    half_open(&world, &addresses);
    let mut clients = [Client::new(&profile, 1)];
    world.run(&mut clients, 0);
    assert!(clients[0].pushed.is_some(), "{:?}", clients[0].refused);
    let mut clients = [Client::with(&profile, ([203, 0, 113, 1], 5).into(), "", "")];
    world.run(&mut clients, 0);
    assert!(clients[0].pushed.is_some(), "{:?}", clients[0].refused);
    wait(|| counts(&world)["evicted"] >= 1500 - 128, "its own oldest make room");
    assert_eq!(counts(&world)["crowded"], 0);
}

/// A client that moves with every packet, and says things that nobody has asked for: neither memory nor the log grows with it.
#[test]
fn a_restless_client_fills_neither_memory_nor_the_log() {
    let world = World::new("log = \"events.json\"\n");
    let mut clients = [Client::new(&world.profile("alice"), 1)];
    world.run(&mut clients, 0);
    let peer = clients[0].pushed.as_ref().and_then(|p| p.peer_id).expect("a number");
    const MOVES: u32 = 20_000;
    let start = Instant::now();
    for n in 0..MOVES {
        let remote = ([198, 51, (n >> 8) as u8, n as u8], 1194).into();
        world.plane.inbox.event(Event::FloatTo { peer, remote, local: None });
        world.plane.inbox.event(Event::InbandIn(peer, vec![0; 100]));
        if n % 100 == 0 {
            // Control keeps up now and then.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // The last move is not lost.
    let last = format!("198.51.{}.{}:1194", ((MOVES - 1) >> 8) as u8, (MOVES - 1) as u8);
    wait(|| world.registry.read().clients.first().is_some_and(|c| c.remote == last), "where it is at last");
    let log = std::fs::read_to_string(world.folder.path().join("vpn/events.json")).unwrap();
    let lines = log.lines().filter(|l| l.contains("\"move\"")).count();
    // A hundred at once, and ten each second.
    assert!(lines as u64 <= 100 + 10 * (1 + start.elapsed().as_secs()), "{lines} lines");
    let counts = counts(&world);
    assert!(counts["replaced"] + counts["lines_left_out"] > 0, "{counts:?}");
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Few threads check passwords at a time; a client that guesses has to wait, and no other client.
#[test]
fn guesses_are_few_and_their_work_is_bounded() {
    let world = World::new("users = \"users\"\nduplicate_names = true\n");
    let profile = world.profile("alice");
    // Many at once, from one address.
    let guess = |n: u16| Client::with(&profile, ([203, 0, 113, 1], 10_000 + n).into(), "al", "wrong");
    let mut clients: Vec<Client> = (0..120).map(guess).collect();
    let (before, mut most) = (threads(), 0);
    let start = Instant::now();
    while !clients.iter().all(|c| c.refused.is_some()) {
        clients.iter_mut().for_each(|c| c.turn(&world, 0));
        most = most.max(threads());
        std::thread::sleep(Duration::from_millis(2));
        assert!(start.elapsed() < WAIT_LIMIT, "clients wait for ever");
    }
    assert!(clients.iter().all(|c| c.pushed.is_none()));
    // Other tests have threads, too, but not so many.
    assert!(most < before + 60, "{most} threads, {before} before");
    // On a slow machine some of these were not even looked at, for they waited for too long. Those that are count, and
    // after twenty there is one more each six seconds.
    for n in (200..).step_by(10) {
        let mut clients: Vec<Client> = (n..n + 10).map(guess).collect();
        world.run(&mut clients, 0);
        if clients.iter().all(|c| c.refused.as_ref().is_some_and(|why| why.contains("too many wrong passwords"))) {
            break;
        }
        let allowed = 20 + start.elapsed().as_secs() / 6;
        assert!(u64::from(n) < 200 + 10 + allowed, "{n} guesses are looked at: {:?}", counts(&world));
    }
    wait(|| counts(&world)["throttled"] >= 10, "guesses are counted");
    // Another user, from another address.
    let mut clients = [Client::with(&profile, ([192, 0, 2, 9], 1).into(), "bo", "right")];
    world.run(&mut clients, 0);
    assert!(clients[0].pushed.is_some(), "{:?}", clients[0].refused);
}

/// A first packet under a key.
fn reset(key: &WrapKey, number: u8) -> Vec<u8> {
    let (mut body, mut packet) = (Vec::new(), Vec::new());
    Body { acks: vec![], acked_session: None, message: Some((0, b"")) }.write(&mut body);
    let session = SessionId::new([number; 8]).expect("not zero");
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as u32;
    Wrap::new(key, false, unix).wrap(Opcode::HardResetClientV2, 0, session, &body, &mut packet);
    packet
}

/// Who has the key of tls-auth or tls-crypt, and repeats a first packet without end: each gets an answer, nothing is kept,
/// and another client that connects meanwhile hears of no packet id twice. Who has no such key hears nothing.
#[test]
fn resets_that_are_repeated_without_end_harm_nobody() {
    let auth = |key| WrapKey::Auth { key, direction: None, digest: Digest::Sha1 };
    for (setting, key, other) in [
        ("tls_auth", auth(static_key()), auth(StaticKey::new([9; 256]))),
        ("tls_crypt", WrapKey::Crypt(static_key()), WrapKey::Crypt(StaticKey::new([9; 256]))),
    ] {
        let world = World::made(&format!("{setting} = \"static.key\"\n"), |line| !line.starts_with("tls_crypt_v2"));
        let mut profile = world.profile("alice");
        (profile.wrap, profile.wrap_v2) = (key.clone(), None);
        let flood: SocketAddr = ([203, 0, 113, 1], 5).into();
        let stranger: SocketAddr = ([203, 0, 113, 2], 5).into();
        let (repeated, forged) = (reset(&key, 1), reset(&other, 2));
        let mut answers = 0;
        for number in 1..=5 {
            let mut client = Client::new(&profile, number);
            let start = Instant::now();
            while client.pushed.is_none() {
                for _ in 0..20 {
                    world.send(flood, repeated.clone());
                    world.send(stranger, forged.clone());
                }
                client.turn(&world, 0);
                std::thread::sleep(Duration::from_millis(2));
                answers += world.plane.out.lock().unwrap().remove(&flood).map_or(0, |a| a.len());
                assert!(client.refused.is_none() && start.elapsed() < WAIT_LIMIT, "{:?}", client.refused);
            }
            assert_eq!(client.replayed, 0, "{setting}");
        }
        assert!(answers > 0, "a repeated packet is answered: the answer may have been lost");
        assert!(!world.plane.out.lock().unwrap().contains_key(&stranger), "{setting}: strangers hear nothing");
        wait(|| counts(&world)["sessions"] == 5, "the repeated reset has made no session");
    }
}

/// The queue to the lane has no room for the first packets: the client repeats its own, and connects.
#[test]
fn a_full_queue_delays_and_loses_nothing() {
    let world = World::made("tls_auth = \"static.key\"\n", |line| !line.starts_with("tls_crypt_v2"));
    let mut profile = world.profile("alice");
    let key = WrapKey::Auth { key: static_key(), direction: None, digest: Digest::Sha1 };
    (profile.wrap, profile.wrap_v2) = (key, None);
    world.plane.full.store(4, Ordering::Relaxed);
    let mut clients = [Client::new(&profile, 1)];
    world.run(&mut clients, 0);
    assert!(clients[0].pushed.is_some(), "{:?}", clients[0].refused);
    assert_eq!(clients[0].replayed, 0);
    assert_eq!(world.plane.full.load(Ordering::Relaxed), 0);
}

/// Login pages whose outcomes the test says.
#[derive(Default)]
struct Pages(Mutex<Vec<Option<Report>>>);

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pages")
    }
}

impl WebLogin for Pages {
    fn begin(&self, client: LoginClient, _: Duration, report: Report) -> Result<Begun, Busy> {
        assert_eq!(client.certificate.as_deref(), Some("alice"));
        let mut all = self.0.lock().unwrap();
        // The fourth finds no room.
        if all.len() == 3 {
            return Err(Busy);
        }
        all.push(Some(report));
        Ok(Begun { id: all.len() as u64 - 1, url: format!("https://vpn.example/login?login={}", all.len()) })
    }

    fn end(&self, id: u64) {
        self.0.lock().unwrap()[id as usize] = None;
    }

    fn refused_requests(&self) -> u64 {
        7
    }

    fn serve(self: Arc<Self>, _: tokio::net::UnixListener) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}

fn provider() -> Oidc {
    Oidc {
        issuer: "https://id.example".to_owned(),
        roots: Vec::new(),
        client_id: "vpn".to_owned(),
        client_secret: None,
        redirect_uri: "https://vpn.example/login".to_owned(),
        redirect_path: "/login".to_owned(),
        socket: "/nonexistent/login.sock".into(),
        owner: None,
        scopes: Vec::new(),
        username_claim: "sub".to_owned(),
        groups_claim: None,
        allowed_groups: Vec::new(),
        allowed_email_domains: Vec::new(),
        timeout: Duration::from_secs(120),
        place: Place::default(),
    }
}

/// A client waits for its user, who logs in with a browser. Later, a token stands for the login, and nothing else does.
#[test]
fn a_login_in_the_browser_is_waited_for() {
    let pages = Arc::new(Pages::default());
    let logins: Arc<dyn WebLogin> = pages.clone();
    let world = World::serving(
        "token_lifetime = \"1h\"\nduplicate_names = true\n",
        |line| !line.is_empty(),
        |mut tunnel| {
            tunnel.oidc = Some(provider());
            Settings::new(tunnel, None).with_logins(Some(logins))
        },
    );
    let profile = world.profile("alice");
    let mut old = [Client::new(&profile, 1)];
    world.run(&mut old, 0);
    assert!(old[0].refused.as_ref().is_some_and(|why| why.contains("login in the browser")), "{:?}", old[0].refused);
    let waits = |number| {
        let mut client = Client::opening(&profile, number);
        wait(
            || {
                client.turn(&world, 0);
                client.opens.is_some() || client.refused.is_some()
            },
            "a page to open",
        );
        client
    };
    let report = |number: usize, outcome| {
        let report = pages.0.lock().unwrap()[number].take().expect("it is under way");
        report(outcome);
    };
    let first = waits(2);
    assert_eq!(first.opens.as_deref(), Some("https://vpn.example/login?login=1"));
    assert!(first.pushed.is_none() && world.plane.keys.lock().unwrap().is_empty(), "nobody is let in before");
    report(0, LoginOutcome::Granted { user: "al".to_owned(), groups: Vec::new() });
    let mut clients = [first];
    world.run(&mut clients, 0);
    assert!(clients[0].pushed.is_some(), "{:?}", clients[0].refused);
    let token = clients[0].token.clone().expect("a token");
    let mut denied = [waits(3)];
    report(1, LoginOutcome::Refused(LoginRefusal::Denied));
    world.run(&mut denied, 0);
    assert_eq!(denied[0].refused.as_deref(), Some("the login was refused"));
    // One login more waits for ever, and the next finds no room.
    let waiting = waits(4);
    assert_eq!((waits(5).refused.as_deref(), waiting.refused), (Some("too many users are logging in just now"), None));
    // The token is its user's alone.
    let with_token = |number: u16, user: &str| Client::with(&profile, ([192, 0, 2, 78], number).into(), user, &token);
    let mut later = [with_token(1, "al"), with_token(2, "bo")];
    world.run(&mut later, 0);
    assert!(later[0].pushed.is_some(), "{:?}", later[0].refused);
    assert_eq!(later[1].refused.as_deref(), Some("SESSION: token expired"));
    assert_eq!(pages.0.lock().unwrap().len(), 3, "no page for a token");
    for (name, wanted) in [
        ("logins", 3),
        ("login_granted", 1),
        ("login_denied", 1),
        ("login_busy", 1),
        ("login_unsupported", 1),
        ("login_requests_refused", 7),
    ] {
        wait(|| counts(&world)[name] == wanted, name);
    }
}
