//! A plane in a namespace of its own, a collector of its events, and peers played by the test.

use sealane_ovpn::data::{Cipher, Format, Header, KeyPair, KeySlot, Opener, PeerId, Sealer};
use sealane_sys::netlink::Netlink;
use sealane_sys::netlink_route::LinkSet;
use sealane_sys::netns::NetNs;
use sealane_tunnel::plane::{
    Command, ControlIn, Event, KeyNew, PeerNew, Plane, Refused, Sink, SocketId, Transport, lane_of,
};
use sealane_tunnel::user::{Config, Role, Sockets, UserPlane};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long something may take that must happen. Only failures take that long.
pub const WAIT_LIMIT: Duration = Duration::from_secs(90);
/// The server inside the VPN.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// Runs a test in a new namespace with loopback up; says why not where that is not allowed.
pub fn in_namespace(test: impl FnOnce() + Send) {
    let ns = match NetNs::new() {
        Ok(ns) => ns,
        Err(e) => return eprintln!("skipped: no network namespace: {e}"),
    };
    if !std::path::Path::new("/dev/net/tun").exists() {
        return eprintln!("skipped: no /dev/net/tun");
    }
    ns.run(|| {
        let up = LinkSet { up: Some(true), ..LinkSet::default() };
        Netlink::route().unwrap().link_set(1, &up).unwrap();
        test();
    })
    .unwrap();
}

/// Everything that a plane says.
#[derive(Default)]
pub struct Collector {
    said: Mutex<(Vec<Event>, Vec<ControlIn>)>,
    news: Condvar,
}

impl Sink for Collector {
    fn control_in(&self, packet: ControlIn) -> bool {
        let mut said = self.said.lock().unwrap();
        if said.1.len() >= 100 {
            return false;
        }
        said.1.push(packet);
        self.news.notify_all();
        true
    }
    fn event(&self, event: Event) {
        self.said.lock().unwrap().0.push(event);
        self.news.notify_all();
    }
}

impl Collector {
    /// Waits for an event that is wanted and takes it out.
    pub fn wait<T>(&self, what: &str, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let end = Instant::now() + WAIT_LIMIT;
        let mut said = self.said.lock().unwrap();
        loop {
            if let Some(at) = said.0.iter().position(|e| wanted(e).is_some()) {
                return wanted(&said.0.remove(at)).unwrap();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} was not said; there is {:?}", said.0);
            said = self.news.wait_timeout(said, left).unwrap().0;
        }
    }

    /// Waits for a control packet and takes it out.
    pub fn control(&self) -> ControlIn {
        let end = Instant::now() + WAIT_LIMIT;
        let mut said = self.said.lock().unwrap();
        while said.1.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no control packet came");
            said = self.news.wait_timeout(said, left).unwrap().0;
        }
        said.1.remove(0)
    }
}

/// A plane as a server, on loopback.
pub struct Rig {
    pub plane: UserPlane,
    pub sink: Arc<Collector>,
    pub udp: SocketAddr,
    pub tcp: SocketAddr,
}

impl Rig {
    pub fn new(lanes: u16, client_to_client: bool) -> Self {
        Self::with(&Config { lanes, role: Role::Server { client_to_client }, ..Config::default() })
    }

    pub fn with(config: &Config) -> Self {
        let loopback = "127.0.0.1:0".parse().unwrap();
        let sockets = Sockets::open(&[loopback], &[loopback], config.lanes).unwrap();
        let (udp, tcp) = (sockets.udp_addresses()[0], sockets.tcp_addresses()[0]);
        let sink = Arc::new(Collector::default());
        let mut addresses = vec![(IpAddr::V4(SERVER), 16)];
        // Where IPv6 is switched off, nothing here needs it.
        if std::path::Path::new("/proc/net/if_inet6").exists() {
            addresses.push(("fd78::1".parse().unwrap(), 64));
        }
        let config = Config {
            addresses,
            interface: config.interface.clone(),
            cores: config.cores.clone(),
            routes: config.routes.clone(),
            ..*config
        };
        let plane = UserPlane::start(&config, sockets, sink.clone()).unwrap();
        Self { plane, sink, udp, tcp }
    }

    pub fn do_it(&self, command: Command) -> Result<(), Refused> {
        self.plane.command(command)
    }

    /// Introduces a peer with a key in its primary slot.
    pub fn admit(&self, peer: &Peer) {
        self.do_it(Command::PeerNew(peer.about())).unwrap();
        self.install(peer, KeySlot::Primary, &peer.key);
    }

    /// Installs a key and waits for the acknowledgement.
    pub fn install(&self, peer: &Peer, slot: KeySlot, key: &Key) {
        let Key { key_id, cipher, format, seed } = *key;
        let keys = expansion(seed, true);
        let new = KeyNew { peer: peer.id, slot, key_id, cipher, format, keys };
        self.do_it(Command::KeyNew(Box::new(new))).unwrap();
        self.sink.wait("KeyInstalled", |e| match e {
            Event::KeyInstalled { peer: p, key_id: k, .. } if *p == peer.id && *k == key_id => Some(()),
            _ => None,
        });
    }

    pub fn total(&self, name: &str) -> u64 {
        let totals = self.plane.totals();
        totals.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("there is no counter {name}")).1
    }

    /// Waits until a counter has come to a number.
    pub fn wait_total(&self, name: &str, wanted: u64) {
        let end = Instant::now() + WAIT_LIMIT;
        while self.total(name) < wanted {
            assert!(
                Instant::now() < end,
                "{name} stays at {} of {wanted}: {:?}",
                self.total(name),
                self.plane.totals()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.total(name), wanted, "{name}");
    }
}

pub fn expansion(seed: u8, server: bool) -> KeyPair {
    KeyPair::from_expansion(&std::array::from_fn(|i| (i as u8).wrapping_mul(seed | 1) ^ seed), server)
}

/// A key as both sides are told of it.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub key_id: u8,
    pub cipher: Cipher,
    pub format: Format,
    pub seed: u8,
}

impl Key {
    pub fn new(key_id: u8, seed: u8) -> Self {
        Self { key_id, cipher: Cipher::Aes256Gcm, format: Format::Stock, seed }
    }
}

/// A UDP peer played by the test.
pub struct Peer {
    pub id: PeerId,
    pub lanes: u16,
    pub server: SocketAddr,
    pub socket: UdpSocket,
    pub key: Key,
    pub sealer: Sealer,
    pub opener: Opener,
    pub numbered: bool,
}

impl Peer {
    pub fn new(rig: &Rig, id: u32) -> Self {
        Self::with(rig, id, Key::new(id as u8 & 7, id as u8), true)
    }

    pub fn with(rig: &Rig, id: u32, key: Key, numbered: bool) -> Self {
        let socket = bind();
        let id = PeerId::new(id).unwrap();
        let (sealer, opener) = ends(id, &key, numbered);
        Self { id, lanes: rig.plane.lanes(), server: rig.udp, socket, key, sealer, opener, numbered }
    }

    /// Its address inside the VPN.
    pub fn ip(&self) -> Ipv4Addr {
        let [_, _, a, b] = (self.id.get() + 10).to_be_bytes();
        Ipv4Addr::new(10, 78, a, b)
    }

    pub fn about(&self) -> PeerNew {
        let socket = SocketId::new(lane_of(self.id, self.lanes), 0);
        let mut new = PeerNew::new(self.id, socket, Transport::Udp, self.socket.local_addr().unwrap());
        new.vpn_ip4 = Some(self.ip());
        new.sent_peer = self.numbered.then_some(self.id);
        new
    }

    pub fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let mut out = vec![0; inner.len() + 64];
        let n = self.sealer.seal_into(inner, &mut out).unwrap();
        out.truncate(n);
        out
    }

    pub fn send(&mut self, inner: &[u8]) {
        let packet = self.seal(inner);
        self.send_raw(&packet);
    }

    pub fn send_raw(&self, packet: &[u8]) {
        self.socket.send_to(packet, self.server).unwrap();
    }

    /// The next packet for it, opened.
    pub fn receive(&mut self) -> Vec<u8> {
        let packet = self.receive_raw();
        self.open(&packet)
    }

    pub fn open(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut out = vec![0; packet.len()];
        let n = self.opener.open_into(packet, &mut out).unwrap();
        out.truncate(n);
        out
    }

    pub fn receive_raw(&self) -> Vec<u8> {
        let mut packet = vec![0; 65_535];
        let (n, from) = self.socket.recv_from(&mut packet).expect("a packet from the plane");
        assert_eq!(from, self.server);
        packet.truncate(n);
        packet
    }

    /// Nothing is waiting.
    pub fn nothing(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let nothing = self.socket.recv_from(&mut [0; 10]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
        self.socket.set_nonblocking(false).unwrap();
        nothing
    }

    /// A datagram to the server's port 7 (or another's), as an IP packet.
    pub fn datagram(&self, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
        udp4(SocketAddr::new(self.ip().into(), 4000), SocketAddr::new(to.into(), 7), payload)
    }
}

pub fn ends(id: PeerId, key: &Key, numbered: bool) -> (Sealer, Opener) {
    let keys = expansion(key.seed, false);
    let header = Header { key_id: key.key_id, peer_id: numbered.then_some(id) };
    let sealer = Sealer::new(key.cipher, key.format, header, &keys.encrypt);
    (sealer, Opener::new(key.cipher, key.format, &keys.decrypt))
}

pub fn bind() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    socket
}

/// A socket of the server's system, inside the VPN.
pub fn service(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((SERVER, port)).unwrap();
    socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    socket
}

/// An IPv4 packet with a UDP datagram (without a checksum, which IPv4 allows).
pub fn udp4(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4 addresses") };
    let total = (28 + payload.len()) as u16;
    let mut p = vec![0x45, 0, (total >> 8) as u8, total as u8, 0, 1, 0x40, 0, 64, 17, 0, 0];
    p.extend(source.octets());
    p.extend(destination.octets());
    let mut sum: u32 = p.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    p[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    for word in [from.port(), to.port(), total - 20, 0] {
        p.extend(word.to_be_bytes());
    }
    p.extend(payload);
    p
}

/// The payload of a UDP packet over IPv4.
pub fn payload4(packet: &[u8]) -> &[u8] {
    assert_eq!((packet[0], packet[9]), (0x45, 17), "a UDP packet over IPv4");
    &packet[28..]
}
