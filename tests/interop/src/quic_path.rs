//! A network path between a QUIC client and a QUIC server, in user space: it loses, damages, marks and delays datagrams by a rule of the
//! test's own, which makes its random choices with a seed. It needs no privileges, and notes what passes.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sealane_http::h3::varint;
use sealane_sys::udp::{Batch, Options, Socket, Transmit};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The ECN bits of RFC 3168 §5: a sender that knows ECN.
pub const ECT0: u8 = 2;
/// The same: congestion experienced.
pub const CE: u8 = 3;

/// Buffers for datagrams: more than any path of this machine takes at a time.
const LARGEST: usize = 65_535;

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// From the client.
    Server,
    /// From the server.
    Client,
}

/// A datagram on its way.
#[derive(Clone, Copy, Debug)]
pub struct Passing<'d> {
    /// Which way it goes.
    pub towards: Towards,
    /// How many went this way before it.
    pub number: usize,
    /// The time since the first datagram of the path.
    pub since: Duration,
    /// The ECN bits with which it came.
    pub ecn: u8,
    /// Its bytes.
    pub bytes: &'d [u8],
}

/// What the path does to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It passes.
    Pass,
    /// It is lost.
    Lose,
    /// One of its bits is turned round.
    Damage,
    /// It passes with these ECN bits.
    Mark(u8),
    /// It passes, and from it on the server sees the client at another port: a NAT that has forgotten.
    NewPort,
    /// The same, at another address.
    NewAddress,
}

/// The kinds of packets in RFC 9000 §17.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No version: it lists versions.
    VersionNegotiation,
    /// Type 0.
    Initial,
    /// Type 1.
    ZeroRtt,
    /// Type 2.
    Handshake,
    /// Type 3.
    Retry,
    /// With a short header.
    OneRtt,
}

/// What the path has seen of a datagram.
#[derive(Clone, Debug)]
pub struct Noted {
    /// Which way it went.
    pub towards: Towards,
    /// Its length in bytes.
    pub length: usize,
    /// The ECN bits with which it came.
    pub ecn: u8,
    /// Its packets.
    pub kinds: Vec<Kind>,
    /// The version of QUIC that it names, where its first packet has a long header.
    pub version: Option<u32>,
    /// What became of it.
    pub fate: Fate,
}

/// A path; it ends with the value.
pub struct QuicPath {
    /// Where clients find the server.
    pub address: SocketAddr,
    notes: Arc<Mutex<Vec<Noted>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Seeded choices (xorshift64*).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The same seed, the same choices.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, share: u64) -> bool {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32 < (share << 32) / 100
    }
}

impl QuicPath {
    /// A path to this server. Each datagram takes `delay`, and `rule` decides what becomes of it.
    pub fn to(server: SocketAddr, delay: Duration, rule: impl FnMut(Passing) -> Fate + Send + 'static) -> Self {
        let front = open(Ipv4Addr::LOCALHOST);
        let address = front.address();
        let (notes, ends) = (Arc::<Mutex<Vec<Noted>>>::default(), Arc::<AtomicBool>::default());
        let relay = Relay {
            server,
            delay,
            rule: Box::new(rule),
            front,
            clients: Vec::new(),
            queue: VecDeque::new(),
            begun: None,
            numbers: [0; 2],
            notes: notes.clone(),
        };
        let end = ends.clone();
        let thread = std::thread::spawn(move || relay.run(&end));
        Self { address, notes, ends, thread: Some(thread) }
    }

    /// A path that changes nothing.
    pub fn plain(server: SocketAddr) -> Self {
        Self::to(server, Duration::ZERO, |_| Fate::Pass)
    }

    /// What has passed so far, in this order.
    pub fn notes(&self) -> Vec<Noted> {
        self.notes.lock().expect("the path's thread does not panic").clone()
    }

    /// How many datagrams there are of which this is true.
    pub fn count(&self, is: impl Fn(&Noted) -> bool) -> usize {
        self.notes().iter().filter(|noted| is(noted)).count()
    }

    /// How many datagrams with packets of this kind went this way.
    pub fn packets(&self, towards: Towards, kind: Kind) -> usize {
        self.count(|noted| noted.towards == towards && noted.kinds.contains(&kind))
    }
}

impl Drop for QuicPath {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking(), "the path's thread has panicked");
    }
}

fn open(ip: Ipv4Addr) -> Socket {
    let options = Options { ecn: true, receive_buffer: 4 << 20, send_buffer: 4 << 20, ..Options::default() };
    let socket = Socket::bind(SocketAddr::from((ip, 0)), &options).expect("a loopback port can be had");
    socket.without_offload()
}

/// A client, as the server sees it.
struct Client {
    address: SocketAddr,
    /// Where the server has seen it; the last is where it is now. What comes to the others is lost.
    sockets: Vec<Socket>,
}

impl Client {
    fn socket(&self) -> &Socket {
        self.sockets.last().expect("a client begins with one")
    }
}

/// A datagram that is on its way until `due`.
struct Due {
    due: Instant,
    towards: Towards,
    client: usize,
    /// Which of the client's sockets sends it.
    socket: usize,
    ecn: u8,
    bytes: Vec<u8>,
}

struct Relay {
    server: SocketAddr,
    delay: Duration,
    rule: Box<dyn FnMut(Passing) -> Fate + Send>,
    front: Socket,
    clients: Vec<Client>,
    /// In the order of their times, since all take the same.
    queue: VecDeque<Due>,
    begun: Option<Instant>,
    numbers: [usize; 2],
    notes: Arc<Mutex<Vec<Noted>>>,
}

impl Relay {
    fn run(mut self, ends: &AtomicBool) {
        let mut batch = Batch::new(16, LARGEST);
        while !ends.load(Ordering::Relaxed) {
            self.wait();
            // Those of the server first: they are answers.
            for client in 0..self.clients.len() {
                while self.clients[client].socket().receive(&mut batch).is_ok() {
                    for (meta, bytes) in batch.iter_mut() {
                        if meta.remote == self.server {
                            self.arrived(Towards::Client, client, meta.ecn, bytes);
                        }
                    }
                }
            }
            while self.front.receive(&mut batch).is_ok() {
                for (meta, bytes) in batch.iter_mut() {
                    let client = self.client(meta.remote);
                    self.arrived(Towards::Server, client, meta.ecn, bytes);
                }
            }
            self.forward();
        }
    }

    /// Waits for datagrams, or until one is due.
    fn wait(&self) {
        let most = Duration::from_millis(20);
        let until =
            self.queue.front().map_or(most, |next| next.due.saturating_duration_since(Instant::now()).min(most));
        let mut sockets: Vec<PollFd> = self
            .clients
            .iter()
            .map(Client::socket)
            .chain([&self.front])
            .map(|s| PollFd::new(s, PollFlags::IN))
            .collect();
        let until = Timespec::try_from(until).expect("a short time");
        // An interrupted call is as one that has waited.
        let _ = poll(&mut sockets, Some(&until));
    }

    /// The number of the client with this address.
    fn client(&mut self, address: SocketAddr) -> usize {
        let known = self.clients.iter().position(|client| client.address == address);
        known.unwrap_or_else(|| {
            self.clients.push(Client { address, sockets: vec![open(Ipv4Addr::LOCALHOST)] });
            self.clients.len() - 1
        })
    }

    fn arrived(&mut self, towards: Towards, client: usize, ecn: u8, bytes: &mut [u8]) {
        let now = Instant::now();
        let number = &mut self.numbers[usize::from(towards == Towards::Client)];
        let since = now - *self.begun.get_or_insert(now);
        let fate = (self.rule)(Passing { towards, number: *number, since, ecn, bytes });
        *number += 1;
        let (kinds, version) = packets(bytes);
        let noted = Noted { towards, length: bytes.len(), ecn, kinds, version, fate };
        self.notes.lock().expect("no test panics with it").push(noted);
        let mut marked = ecn;
        match fate {
            Fate::Pass => {}
            Fate::Lose => return,
            // In the middle, where the packet is protected.
            Fate::Damage => bytes[bytes.len() / 2] ^= 0x10,
            Fate::Mark(bits) => marked = bits,
            Fate::NewPort => self.clients[client].sockets.push(open(Ipv4Addr::LOCALHOST)),
            Fate::NewAddress => {
                let IpAddr::V4(old) = self.clients[client].socket().address().ip() else {
                    unreachable!("all are of IPv4")
                };
                self.clients[client].sockets.push(open(Ipv4Addr::from(u32::from(old) + 1)));
            }
        }
        let socket = self.clients[client].sockets.len() - 1;
        let due = now + self.delay;
        self.queue.push_back(Due { due, towards, client, socket, ecn: marked, bytes: bytes.to_vec() });
    }

    fn forward(&mut self) {
        let now = Instant::now();
        while self.queue.front().is_some_and(|next| next.due <= now) {
            let Some(next) = self.queue.pop_front() else { break };
            let client = &self.clients[next.client];
            let (socket, remote) = match next.towards {
                Towards::Server => (&client.sockets[next.socket], self.server),
                Towards::Client => (&self.front, client.address),
            };
            // What the kernel does not take is lost, as on any network.
            let _ = socket.send(&Transmit { remote, local: None, segment: 0, ecn: next.ecn, data: &next.bytes });
        }
    }
}

/// The packets of a datagram, as far as headers tell (RFC 9000 §17), and the version of the first.
fn packets(mut bytes: &[u8]) -> (Vec<Kind>, Option<u32>) {
    let (mut kinds, mut first) = (Vec::new(), None);
    while let Some(flags) = bytes.first() {
        if flags & 0x80 == 0 {
            // What follows a packet without the fixed bit is padding.
            if flags & 0x40 != 0 {
                kinds.push(Kind::OneRtt);
            }
            break;
        }
        let Some((kind, version, length)) = long_header(bytes) else { break };
        first = first.or(Some(version));
        kinds.push(kind);
        bytes = &bytes[length.min(bytes.len())..];
    }
    (kinds, first)
}

/// The packet's kind, version and length.
fn long_header(packet: &[u8]) -> Option<(Kind, u32, usize)> {
    let version = u32::from_be_bytes(*packet.get(1..)?.first_chunk()?);
    let mut rest = packet.get(5..)?;
    for _ in 0..2 {
        let (length, ids) = rest.split_first()?;
        rest = ids.get(usize::from(*length)..)?;
    }
    if version == 0 {
        return Some((Kind::VersionNegotiation, version, packet.len()));
    }
    let kind = [Kind::Initial, Kind::ZeroRtt, Kind::Handshake, Kind::Retry][usize::from(packet[0] >> 4 & 3)];
    if kind == Kind::Retry {
        return Some((kind, version, packet.len()));
    }
    if kind == Kind::Initial {
        let (token, used) = varint::get(rest)?;
        rest = rest.get(used..)?.get(usize::try_from(token).ok()?..)?;
    }
    let (length, used) = varint::get(rest)?;
    let header = packet.len() - rest.len() + used;
    Some((kind, version, header.checked_add(usize::try_from(length).ok()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_datagram_are_told_apart() {
        let ids = [2, 7, 7, 1, 8];
        let initial = [&[0xc0, 0, 0, 0, 1][..], &ids, &[3, 1, 1, 1, 4, 0, 0, 0, 0]].concat();
        let handshake = [&[0xe0, 0, 0, 0, 1][..], &ids, &[2, 0, 0]].concat();
        let early = [&[0xd0, 0, 0, 0, 1][..], &ids, &[0x40, 1, 0]].concat();
        let all = [&initial[..], &early, &handshake, &[0x41, 9, 9]].concat();
        let kinds = [Kind::Initial, Kind::ZeroRtt, Kind::Handshake, Kind::OneRtt];
        assert_eq!(packets(&all), (kinds.to_vec(), Some(1)));
        assert_eq!(packets(&[&initial[..], &[0; 20]].concat()), (vec![Kind::Initial], Some(1)));
        let list = [&[0x80, 0, 0, 0, 0][..], &ids, &[0, 0, 0, 1]].concat();
        assert_eq!(packets(&list), (vec![Kind::VersionNegotiation], Some(0)));
        let retry = [&[0xf0, 0, 0, 0, 1][..], &ids, &[5; 30]].concat();
        assert_eq!(packets(&retry), (vec![Kind::Retry], Some(1)));
        for cut in 1..all.len() {
            packets(&all[..cut]);
        }
    }

    #[test]
    fn a_rule_decides_what_becomes_of_datagrams() {
        let server = open(Ipv4Addr::LOCALHOST);
        let fates = [Fate::Pass, Fate::Lose, Fate::Mark(CE), Fate::Damage, Fate::NewPort, Fate::NewAddress];
        let path = QuicPath::to(server.address(), Duration::from_millis(1), move |passing| fates[passing.number]);
        let client = open(Ipv4Addr::LOCALHOST);
        let remote = path.address;
        for number in 0..fates.len() as u8 {
            client.send(&Transmit { remote, local: None, segment: 0, ecn: ECT0, data: &[0x40, number, 0] }).unwrap();
        }
        let (mut batch, mut got) = (Batch::new(4, 100), Vec::new());
        assert!(crate::eventually(|| {
            while server.receive(&mut batch).is_ok() {
                got.extend(batch.iter_mut().map(|(meta, bytes)| (bytes.to_vec(), meta.ecn, meta.remote)));
            }
            got.len() == fates.len() - 1
        }));
        let seen: Vec<(u8, u8)> = got.iter().map(|(bytes, ecn, _)| (bytes[1], *ecn)).collect();
        assert_eq!(seen, [(0, ECT0), (2, CE), (3 ^ 0x10, ECT0), (4, ECT0), (5, ECT0)]);
        let [first, _, _, port, address] = [0, 1, 2, 3, 4].map(|n| got[n].2);
        assert!(port.ip() == first.ip() && port != first && address.ip() == Ipv4Addr::new(127, 0, 0, 2), "{got:?}");
        // Answers find the client wherever it seems to be.
        server.send(&Transmit { remote: address, local: None, segment: 0, ecn: CE, data: b"answer" }).unwrap();
        assert!(crate::eventually(|| client.receive(&mut batch).is_ok()));
        let (meta, bytes) = batch.iter_mut().next().unwrap();
        assert_eq!((&*bytes, meta.ecn, meta.remote), (&b"answer"[..], CE, path.address));
        assert_eq!(path.count(|noted| noted.fate == Fate::Lose), 1);
    }

    #[test]
    fn dice_fall_as_often_as_they_should() {
        let mut dice = Dice::new(1);
        let fallen = (0..10_000).filter(|_| dice.percent(5)).count();
        assert!((400..600).contains(&fallen), "{fallen}");
        assert!(!dice.percent(0) && dice.percent(100));
    }
}
