//! Five hundred users who come at once, as after a restart of the server: each with a certificate and a password, in groups, over UDP
//! and TCP. The users are played by the test, with the protocol's own code and real sockets.

use crate::tunnel_world::{End, World, count};
use sealane_control::vpn::pki;
use sealane_control::vpn::profile::Profile;
use sealane_control::vpn::session::{Event, Session, Words};
use sealane_interop::process::Server;
use sealane_interop::{WAIT_LIMIT, eventually, skip};
use sealane_ovpn::command::Command;
use sealane_ovpn::data::{Cipher, Format, Header, Opener, Sealer};
use sealane_ovpn::packet::Opcode;
use sealane_ovpn::peer_info::{self, proto};
use sealane_ovpn::push::{Collector, Pushed, options_string};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

macro_rules! world {
    () => {
        match World::new() {
            Ok(world) => world,
            Err(why) => skip!("{why}"),
        }
    };
}

const USERS: usize = 500;
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 99, 0, 1), 1194);
const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
/// How long all of them may take together. The server gives each as long (`handshake_timeout`): only a hang takes that long.
const PATIENCE: Duration = Duration::from_secs(600);
/// What a connected client may cost the server.
const MEMORY: u64 = 128 << 10;
/// What else it may hold: the memory of the password hashes that it computes at a time (19 MiB each, `sealane_passwords`), which the
/// allocator need not give back, and what it allocates once.
fn rest() -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (16 << 20) + (cores / 2).clamp(1, 8) as u64 * (20 << 20)
}

const SETTINGS: &str = "\
users = \"../users\"
bind_users = true
network = \"10.88.0.0/16\"
handshake_timeout = \"10m\"
[[tunnel.group]]
name = \"sales\"
users = [\"sales-*\"]
addresses = \"10.88.64.0/20\"
routes = [\"10.123.0.0/24\"]
[[tunnel.group]]
name = \"lab\"
common_names = [\"lab-*\"]
addresses = \"10.88.80.0/20\"
";

fn unix() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as u32)
}

/// The way to the server.
enum Wire {
    Udp(UdpSocket),
    /// With what has come of the next packet.
    Tcp(TcpStream, Vec<u8>),
}

impl Wire {
    fn open(address: Ipv4Addr, is_tcp: bool) -> Option<Self> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let from = SocketAddrV4::new(address, 0);
        if !is_tcp {
            let socket = UdpSocket::bind(from).expect("a port is free");
            socket.connect(SERVER).expect("a socket option");
            socket.set_nonblocking(true).expect("a socket option");
            return Some(Self::Udp(socket));
        }
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a descriptor is free");
        bind(&socket, &from).expect("a port is free");
        // Nobody listens while the server is away.
        connect(&socket, &SERVER).ok()?;
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true).expect("a socket option");
        stream.set_nodelay(true).expect("a socket option");
        Some(Self::Tcp(stream, Vec::new()))
    }

    /// Whether the packet could be sent, or may have been lost.
    fn send(&mut self, packet: &[u8]) -> bool {
        match self {
            Self::Udp(socket) => {
                // Nobody listens while the server is away.
                let _ = socket.send(packet);
                true
            }
            // What a client says before it is in fits into the socket's buffer.
            Self::Tcp(stream, _) => {
                let length = (packet.len() as u16).to_be_bytes();
                stream.write_all(&[&length[..], packet].concat()).is_ok()
            }
        }
    }

    /// The next packet. `Err`: the connection has ended.
    fn receive(&mut self) -> Result<Option<Vec<u8>>, ()> {
        let mut buffer = [0; 4096];
        match self {
            Self::Udp(socket) => Ok(socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())),
            Self::Tcp(stream, come) => loop {
                if let Some((length, rest)) = come.split_first_chunk()
                    && let Some(packet) = rest.get(..usize::from(u16::from_be_bytes(*length)))
                {
                    let packet = packet.to_vec();
                    come.drain(..2 + packet.len());
                    return Ok(Some(packet));
                }
                match stream.read(&mut buffer) {
                    Ok(0) => return Err(()),
                    Ok(length) => come.extend_from_slice(&buffer[..length]),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                    Err(_) => return Err(()),
                }
            },
        }
    }
}

/// A user who wants to come in.
struct User {
    name: String,
    profile: Profile,
    address: Ipv4Addr,
    is_tcp: bool,
    /// `None`: the connection was lost, and there is another one then.
    open: Option<(Wire, Session)>,
    again_at: Instant,
    /// Connections that were lost once they were made.
    lost: usize,
    collector: Collector,
    /// What the server has given it, and its two directions of the tunnel.
    inside: Option<(Pushed, Sealer, Opener)>,
    refused: Option<String>,
    answered: bool,
}

impl User {
    fn new(name: String, profile: Profile, address: Ipv4Addr, is_tcp: bool) -> Self {
        let collector = Collector::default();
        let again_at = Instant::now();
        Self {
            name,
            profile,
            address,
            is_tcp,
            open: None,
            again_at,
            lost: 0,
            collector,
            inside: None,
            refused: None,
            answered: false,
        }
    }

    fn begin(&mut self, now: Instant) {
        let bits = proto::DATA_V2
            | proto::REQUEST_PUSH
            | proto::TLS_KEY_EXPORT
            | proto::CC_EXIT_NOTIFY
            | proto::AUTH_FAIL_TEMP
            | proto::DYN_TLS_CRYPT;
        let Profile { ciphers, mtu, endpoint, wrap, wrap_v2, .. } = &self.profile;
        let words = Words {
            options: options_string(false, self.is_tcp, *mtu, ciphers[0].name(), false),
            peer_info: peer_info::ours("test", ciphers, bits, *mtu),
            username: self.name.clone(),
            password: "right".to_owned(),
        };
        // As `connect-retry 1` of OpenVPN.
        self.again_at = now + Duration::from_secs(1);
        let Some(wire) = Wire::open(self.address, self.is_tcp) else { return };
        let session = Session::client(endpoint.clone(), words, wrap, wrap_v2.as_ref(), !self.is_tcp, unix());
        self.collector = Collector::default();
        self.open = Some((wire, session.expect("the profile is whole")));
    }

    /// Takes what has come, and sends what there is to send. Whether there was anything.
    fn turn(&mut self, now: Instant) -> bool {
        if self.open.is_none() && self.again_at <= now {
            self.begin(now);
        }
        let Some((wire, session)) = &mut self.open else { return false };
        let (mut busy, mut is_lost) = (false, false);
        loop {
            match wire.receive() {
                Ok(Some(packet)) => {
                    busy = true;
                    // What is repeated is dropped.
                    let _ = session.handle(&packet);
                }
                Ok(None) => break,
                Err(()) => {
                    is_lost = true;
                    break;
                }
            }
        }
        while let Some(event) = session.poll_event() {
            match event {
                Event::Command(Command::PushReply(part)) => {
                    let Some(options) = self.collector.take(&part).expect("it is no longer than others") else {
                        continue;
                    };
                    let pushed = Pushed::parse(&options);
                    let keys = session.keys(0, pushed.flags.tls_ekm).expect("the exchange is complete");
                    let header = Header { key_id: 0, peer_id: pushed.peer_id };
                    let cipher = pushed.cipher.unwrap_or(Cipher::Aes256Gcm);
                    let sealer = Sealer::new(cipher, Format::Stock, header, &keys.encrypt);
                    self.inside = Some((pushed, sealer, Opener::new(cipher, Format::Stock, &keys.decrypt)));
                }
                Event::Command(Command::AuthFailed(why)) => self.refused = Some(why),
                Event::Command(Command::AuthFailedTemporarily(_, why)) => {
                    self.refused = Some(format!("for now: {why}"))
                }
                Event::Failed(_, e) => self.refused = Some(format!("{e:#}")),
                _ => {}
            }
        }
        let mut bytes = Vec::new();
        while session.poll_transmit(now, &mut bytes) {
            busy = true;
            is_lost |= !wire.send(&std::mem::take(&mut bytes));
        }
        if is_lost {
            (self.open, self.lost) = (None, self.lost + 1);
        }
        busy
    }

    /// Asks the server's inner address for an echo, through the tunnel, until it comes.
    fn ping(&mut self) {
        let (Some((wire, _)), Some((pushed, sealer, opener))) = (&mut self.open, &mut self.inside) else { return };
        let own = pushed.ifconfig.expect("an address").0;
        let mut packet = [0; 256];
        let length = sealer.seal_into(&echo(own, INSIDE), &mut packet).expect("there is room");
        assert!(wire.send(&packet[..length]), "{}: its connection is lost", self.name);
        while let Ok(Some(packet)) = wire.receive() {
            let is_data = packet.first().is_some_and(|first| Opcode::of(*first) == Some(Opcode::DataV2));
            let mut text = vec![0; packet.len()];
            let Some(length) = is_data.then(|| opener.open_into(&packet, &mut text).ok()).flatten() else { continue };
            // ICMP, and an echo's reply.
            self.answered |= length > 20 && text[9] == 1 && text[20] == 0 && text[16..20] == own.octets();
        }
    }
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// An ICMP echo request.
fn echo(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut request = vec![8, 0, 0, 0, 0, 1, 0, 1];
    let sum = checksum(&request);
    request[2..4].copy_from_slice(&sum);
    let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 1, 0, 0];
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    packet.extend(request);
    packet
}

/// Which group a user is in, by its number.
fn group(n: usize) -> &'static str {
    ["sales", "lab", "user", "user", "user"][n % 5]
}

/// Five hundred users from these addresses in turn; every fourth comes over TCP.
fn users(world: &World, addresses: &[Ipv4Addr]) -> Vec<User> {
    let ca = pki::Ca::open(&world.path("vpn"), None).expect("it was made");
    let hash = world.sealane(End::Server, &["tunnel", "passwd", "x"], b"right\n").text();
    let (mut users, mut file, remotes) = (Vec::new(), String::new(), pki::Remotes::default());
    for n in 0..USERS {
        let name = format!("{}-{n}", group(n));
        file += &hash.replacen("x:", &format!("{name}:"), 1);
        let profile = ca.client_profile(&name, false, 10, &remotes, &mut || panic!("the key is not encrypted"));
        let profile = Profile::parse(&profile.expect("a new name"), Path::new("")).expect("our own profile");
        users.push(User::new(name, profile, addresses[n % addresses.len()], n % 4 == 3));
    }
    world.write("users", &file);
    users
}

/// All users come at once, to a server that has just ended and is started again meanwhile: each is in, and reaches the server through the
/// tunnel, without having been refused. The server, and how much memory it had before anybody came.
fn all_come_back(world: &World, users: &mut [User]) -> (Server, u64) {
    let server = world.serve();
    assert!(eventually(|| server.rests()), "{}", server.log());
    let before = server.resident().expect("it runs");
    world.kill();
    drop(server);
    let (begun, mut in_after) = (Instant::now(), Duration::ZERO);
    let server = std::thread::scope(|scope| {
        let users = &mut *users;
        let coming = scope.spawn(|| {
            world.within(End::Client, || {
                loop {
                    let mut busy = false;
                    for user in &mut *users {
                        busy |= user.turn(Instant::now());
                    }
                    let waiting = users.iter().filter(|user| user.inside.is_none() && user.refused.is_none()).count();
                    if waiting == 0 || begun.elapsed() > PATIENCE {
                        return begun.elapsed();
                    }
                    if !busy {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        });
        let server = world.serve();
        in_after = coming.join().expect("it has not panicked");
        server
    });
    let lost: usize = users.iter().map(|user| user.lost).sum();
    println!("all are in after {in_after:?}; {lost} connections were lost");
    let mut refused: Vec<_> = users.iter().filter_map(|user| user.refused.as_deref()).collect();
    let how_many = refused.len();
    refused.sort_unstable();
    refused.dedup();
    assert!(refused.is_empty(), "{how_many} are refused: {refused:?}\n{}", server.log());
    let out = users.iter().filter(|user| user.inside.is_none()).count();
    assert_eq!(out, 0, "so many are not in after {in_after:?}\n{}", world.read("vpn/status.json"));
    let begun = Instant::now();
    while users.iter().any(|user| !user.answered) && begun.elapsed() < WAIT_LIMIT {
        users.iter_mut().filter(|user| !user.answered).for_each(User::ping);
        std::thread::sleep(Duration::from_millis(100));
    }
    let silent: Vec<&str> = users.iter().filter(|user| !user.answered).map(|user| user.name.as_str()).collect();
    assert!(silent.is_empty(), "these reach nothing: {silent:?}");
    assert!(eventually(|| count(world, "connected") == USERS as u64), "{}", world.read("vpn/status.json"));
    for what in ["throttled", "unauthorised", "rate_limited", "failed"] {
        assert_eq!(count(world, what), 0, "{what}: {}", world.read("vpn/status.json"));
    }
    (server, before)
}

/// Each has what its group gives, and the server no more memory than for so many clients.
#[track_caller]
fn are_well(users: &[User], (server, before): &(Server, u64)) {
    let mut addresses: Vec<Ipv4Addr> = Vec::new();
    for (n, user) in users.iter().enumerate() {
        let (pushed, ..) = user.inside.as_ref().expect("it is in");
        let address = pushed.ifconfig.expect("an address").0;
        let third = match group(n) {
            "sales" => 64..80,
            "lab" => 80..96,
            _ => 0..64,
        };
        assert!(third.contains(&address.octets()[2]), "{}: {address}", user.name);
        let routes: &[(Ipv4Addr, u8)] = if group(n) == "sales" { &[(Ipv4Addr::new(10, 123, 0, 0), 24)] } else { &[] };
        assert_eq!(pushed.routes, routes, "{}", user.name);
        addresses.push(address);
    }
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), USERS, "an address each");
    let after = server.resident().expect("it runs");
    println!("{before} bytes before, {after} bytes with all of them");
    assert!(after < before + MEMORY * USERS as u64 + rest(), "{before} to {after} bytes");
}

/// Offices and homes: twenty users behind each of 25 addresses. No share of a network is too small for them, and nobody has to make room.
#[test]
fn five_hundred_users_from_many_networks_come_back_at_once() {
    let world = world!();
    world.init(SETTINGS);
    let addresses: Vec<Ipv4Addr> = (0..25).map(|n| Ipv4Addr::new(10, 99, 0, 100 + n)).collect();
    addresses.iter().for_each(|address| world.has_behind_client(&address.to_string()));
    let mut users = users(&world, &addresses);
    let server = all_come_back(&world, &mut users);
    are_well(&users, &server);
    for what in ["crowded", "evicted"] {
        assert_eq!(count(&world, what), 0, "{what}");
    }
    assert_eq!(users.iter().map(|user| user.lost).sum::<usize>(), 0);
}

/// All of them behind one address: they have the share of one network between them. So some wait until others are in, and nobody is
/// refused.
#[test]
fn five_hundred_users_behind_one_address_come_back_at_once() {
    let world = world!();
    world.init(SETTINGS);
    let mut users = users(&world, &[Ipv4Addr::new(10, 99, 0, 3)]);
    let server = all_come_back(&world, &mut users);
    are_well(&users, &server);
    println!("{} were crowded, {} evicted", count(&world, "crowded"), count(&world, "evicted"));
}
