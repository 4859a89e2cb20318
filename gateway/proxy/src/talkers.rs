//! Which clients and connections make most of the lane's load, and whose packets are lost: told when control asks.
//!
//! Control asks once a second while somebody looks at the status, and while something is wrong whose cause this shows. Requests notice
//! nothing of it: a lane compares counts that it keeps anyway with those at the last question, and asks the kernel about a few sockets.
//! Both are bounded for each question. Where there are more connections, each question goes on where the last one has ended.

use crate::conn::Conn;
use crate::connections::Connections;
use crate::records::ConnectionId;
use crate::service::Proxy;
use crate::upstream::group::LaneUpstream;
use sealane_lane::{Context, Key, Micros};
use sealane_sys::sockopt::tcp_counts;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::mpsc::SyncSender;

/// Places for connections that a question looks at.
const PLACES: usize = 1024;
/// Sockets about which a question asks the kernel.
const SOCKETS: usize = 64;
/// Connections whose counts are remembered.
const REMEMBERED: usize = 16 * 1024;
/// Clients, connections and servers that an answer has.
const TOLD: usize = 8;
/// The newest clients, by whom new connections are counted.
const NEWEST: usize = 256;

/// A question to a lane.
#[derive(Debug)]
pub struct TalkersQuestion {
    /// Where the answer goes. A lane does not wait there.
    pub answer: SyncSender<LaneTalkers>,
}

/// What a lane answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneTalkers {
    /// The lane's slot.
    pub lane: usize,
    /// Seconds since the last question. What follows has happened since.
    pub seconds: f64,
    /// Requests on the connections that were looked at.
    pub requests: u64,
    /// The clients with the most of these requests, and those with the most connections.
    pub clients: Vec<ClientLoad>,
    /// The connections with the most of these requests.
    pub connections: Vec<ConnectionLoad>,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Packets to clients, and to each server.
    pub losses: Vec<PacketLoss>,
}

/// The part of a client in a lane's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLoad {
    /// The client's address.
    pub address: IpAddr,
    /// Its open connections among those that were looked at.
    pub connections: u64,
    /// Its requests.
    pub requests: u64,
    /// New connections of it.
    pub accepted: u64,
}

/// The part of a connection in a lane's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLoad {
    /// The connection.
    pub id: ConnectionId,
    /// Its client.
    pub address: IpAddr,
    /// Its requests.
    pub requests: u64,
}

/// Packets on some connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketLoss {
    /// The upstream and its server; `None`: clients.
    pub server: Option<(String, String)>,
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that were lost, and sent again.
    pub lost: u64,
}

/// What was counted of a connection at the last question that looked at it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    requests: u64,
    /// Packets that were sent, and lost, if the kernel was asked.
    packets: Option<(u64, u64)>,
}

/// What a lane remembers between two questions.
#[derive(Debug, Default)]
pub(crate) struct Talkers {
    seen: HashMap<Key, Seen>,
    /// Where the next question begins.
    next: usize,
    /// When the last question came; `None`: there was none.
    asked: Option<Micros>,
    /// Counts questions.
    round: usize,
    newest: Newest,
}

/// The addresses of the newest clients.
#[derive(Debug)]
struct Newest {
    addresses: Box<[Option<IpAddr>; NEWEST]>,
    /// How many there have been.
    count: u64,
    /// How many there had been at the last question.
    told: u64,
}

impl Default for Newest {
    fn default() -> Self {
        Self { addresses: Box::new([None; NEWEST]), count: 0, told: 0 }
    }
}

impl Newest {
    #[inline]
    fn add(&mut self, address: IpAddr) {
        self.addresses[self.count as usize % NEWEST] = Some(address);
        self.count += 1;
    }

    /// How many have come since the last question, and the addresses of the newest of them.
    fn take(&mut self) -> (u64, Vec<IpAddr>) {
        let new = self.count - std::mem::replace(&mut self.told, self.count);
        let known = (new as usize).min(NEWEST);
        let at = |back: usize| self.addresses[(self.count as usize - 1 - back) % NEWEST];
        (new, (0..known).filter_map(at).collect())
    }
}

impl Talkers {
    /// A client was accepted.
    #[inline]
    pub fn accepted(&mut self, address: IpAddr) {
        self.newest.add(address);
    }
}

/// A client's address as it is counted: IPv4 as such, of IPv6 the network of 64 bits, within which a client has any number.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

/// Answers a question.
pub(crate) fn tell(proxy: &mut Proxy, cx: &Context, question: &TalkersQuestion) {
    let Proxy { connections, admission, settings, .. } = proxy;
    let now = cx.micros();
    let mut answer = admission.talkers().look(connections, now);
    answer.lane = settings.slot();
    // If the answer cannot be taken, control is ending.
    let _ = question.answer.try_send(answer);
}

impl Talkers {
    fn look(&mut self, connections: &Connections, now: Micros) -> LaneTalkers {
        let last = self.asked.replace(now);
        let seconds = last.map_or(0.0, |last| now.saturating_sub(last) as f64 / 1e6);
        let mut answer = LaneTalkers { seconds, ..LaneTalkers::default() };
        self.round = self.round.wrapping_add(1);
        if self.seen.len() > REMEMBERED {
            self.seen.retain(|key, _| connections.get(*key).is_some());
        }
        let mut clients: HashMap<IpAddr, ClientLoad> = HashMap::new();
        let mut losses: HashMap<Option<(*const LaneUpstream, usize)>, PacketLoss> = HashMap::new();
        let keys = connections.keys_in(self.next..self.next + PLACES);
        self.next = if self.next + PLACES >= connections.places() { 0 } else { self.next + PLACES };
        // Of many sockets, each question asks about others.
        let one_in = keys.len().div_ceil(SOCKETS).max(1);
        for (i, key) in keys.into_iter().enumerate() {
            let Some(conn) = connections.get(key) else { continue };
            let known = self.seen.get(&key).copied();
            let mut seen = known.unwrap_or_default();
            if let Some(client) = connections.client_at(key) {
                // What no earlier question has seen has come since the last one, if the connection itself has, or its handshake has begun
                // since: over QUIC, a client waits for that where nobody looks.
                let is_new = last.is_some_and(|last| client.made().began.max(client.made().admitted) >= last);
                if known.is_none() && is_new {
                    // Many connections are open for less time than there is between two questions.
                    seen.packets = Some((0, 0));
                }
                let before = if known.is_some() || is_new { seen.requests } else { client.requests() };
                let requests = client.requests().saturating_sub(before);
                seen.requests = client.requests();
                answer.requests += requests;
                let load = clients.entry(network(client.peer().ip())).or_insert_with_key(|address| ClientLoad {
                    address: *address,
                    connections: 0,
                    requests: 0,
                    accepted: 0,
                });
                load.connections += 1;
                load.requests += requests;
                if requests > 0 {
                    answer.connections.push(ConnectionLoad { id: client.id(), address: load.address, requests });
                }
            }
            if (i + self.round).is_multiple_of(one_in)
                && let Some((sent, lost)) = packets(conn)
                && let Some((sent_before, lost_before)) = seen.packets.replace((sent, lost))
            {
                let (key, server) = peer_of(conn);
                let loss = losses.entry(key).or_insert_with(|| PacketLoss { server, sent: 0, lost: 0 });
                loss.sent += sent.saturating_sub(sent_before);
                loss.lost += lost.saturating_sub(lost_before);
            }
            if self.seen.len() < REMEMBERED || known.is_some() {
                self.seen.insert(key, seen);
            }
        }
        let (accepted, newest) = self.newest.take();
        answer.accepted = accepted;
        for address in newest {
            let load = clients.entry(network(address)).or_insert_with_key(|address| ClientLoad {
                address: *address,
                connections: 0,
                requests: 0,
                accepted: 0,
            });
            load.accepted += 1;
        }
        answer.clients =
            largest(clients.into_values().collect(), |load| (load.requests, load.accepted, load.connections));
        answer.connections = largest(std::mem::take(&mut answer.connections), |load| (load.requests, 0, 0));
        let lossy = losses.into_values().filter(|loss| loss.sent > 0).collect();
        answer.losses = largest(lossy, |loss| (loss.lost, loss.sent, 0));
        answer
    }
}

/// Those with the most, the first with most of all.
fn largest<T>(mut all: Vec<T>, by: impl Fn(&T) -> (u64, u64, u64)) -> Vec<T> {
    if all.len() > TOLD {
        all.select_nth_unstable_by_key(TOLD, |one| Reverse(by(one)));
        all.truncate(TOLD);
    }
    all.sort_by_key(|one| Reverse(by(one)));
    all
}

/// Packets that were sent on a connection, and those of them that were lost.
fn packets(conn: &Conn) -> Option<(u64, u64)> {
    let transport = match conn {
        Conn::Client(client_conn) => client_conn.transport(),
        Conn::Upstream(upstream_conn) => upstream_conn.connected_transport()?,
        Conn::Quic(q) => return Some(q.transport().losses()),
        Conn::Mirror(_) | Conn::Udp(_) => return None,
    };
    tcp_counts(&transport.fd).map(|counts| (counts.sent, counts.retransmitted))
}

/// Who is at the other end: something to compare it by, and the upstream and server.
type Peer = (Option<(*const LaneUpstream, usize)>, Option<(String, String)>);

fn peer_of(conn: &Conn) -> Peer {
    let (group, server) = match conn {
        Conn::Upstream(upstream_conn) => upstream_conn.server(),
        Conn::Quic(q) => match q.server() {
            Some(server) => server,
            None => return (None, None),
        },
        Conn::Client(_) | Conn::Mirror(_) | Conn::Udp(_) => return (None, None),
    };
    let name = group.settings().servers.get(server).map_or_else(String::new, |server| server.name.clone());
    (Some((std::rc::Rc::as_ptr(group), server)), Some((group.settings().name.clone(), name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::transport::Transport;
    use std::io::Write;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn the_busiest_clients_and_connections_are_told() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let (mut connections, mut talkers) = (Connections::default(), Talkers::default());
        let request = |connections: &mut Connections, key: Key, requests| {
            let client = connections.client(key).unwrap().client_mut();
            (0..requests).for_each(|_| _ = client.next_request());
        };
        let mut peers = Vec::new();
        let keys = ["192.0.2.1:5", "192.0.2.1:5", "192.0.2.9:5"].map(|address| {
            let (conn, peer) = fixtures::connection_of(fixtures::client(&settings.listeners()[0], address));
            peers.push(peer);
            let key = connections.insert(conn);
            request(&mut connections, key, 1000);
            key
        });
        // What they had before the first question is not new.
        let first = talkers.look(&connections, 1_000_000);
        assert_eq!((first.requests, first.connections.len(), first.seconds), (0, 0, 0.0), "{first:?}");
        for (key, requests) in keys.iter().zip([7, 90, 3]) {
            request(&mut connections, *key, requests);
        }
        let second = talkers.look(&connections, 3_000_000);
        assert_eq!((second.requests, second.seconds), (100, 2.0));
        let top = second.clients[0];
        assert_eq!((top.address, top.requests, top.connections), (address(1), 97, 2));
        assert_eq!(second.connections.iter().map(|c| c.requests).collect::<Vec<_>>(), [90, 7, 3]);
        let third = talkers.look(&connections, 4_000_000);
        assert_eq!((third.requests, third.connections.len(), third.clients.len()), (0, 0, 2));
    }

    /// Older connections, which an earlier question has not looked at because there were too many, have no burst.
    #[test]
    fn what_was_before_is_not_counted() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let (mut connections, mut talkers) = (Connections::default(), Talkers::default());
        talkers.look(&connections, 5_000_000);
        let (mut conn, _peer) = fixtures::connection(&settings.listeners()[0]);
        (0..50).for_each(|_| _ = conn.client().unwrap().next_request());
        connections.insert(conn);
        assert_eq!(talkers.look(&connections, 6_000_000).requests, 0);
    }

    #[test]
    fn packets_of_a_connection_that_has_just_come_are_told() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let (mut connections, mut talkers) = (Connections::default(), Talkers::default());
        talkers.look(&connections, 1_000_000);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut near, _) = listener.accept().unwrap();
        near.write_all(b"hello").unwrap();
        let client = fixtures::client_since(&settings.listeners()[0], "192.0.2.1:5", 1_500_000);
        let (mut conn, _peer) = fixtures::connection_of(client);
        *conn.transport().unwrap() = Transport::new(near.into());
        connections.insert(conn);
        let sent = |told: LaneTalkers| told.losses.iter().map(|loss| loss.sent).collect::<Vec<_>>();
        assert_eq!(sent(talkers.look(&connections, 2_000_000)), [1]);
        assert_eq!(sent(talkers.look(&connections, 3_000_000)), [], "each packet once");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let (mut connections, mut talkers) = (Connections::default(), Talkers::default());
        let (conn, _peer) = fixtures::connection(&settings.listeners()[0]);
        let key = connections.insert(conn);
        talkers.look(&connections, 1);
        assert_eq!((talkers.next, talkers.seen.len()), (0, 1));
        connections.remove(key);
        let gone = (0..REMEMBERED as u64 + 1).map(|n| (Key::from_u64(n << 32 | 7), Seen::default()));
        talkers.seen.extend(gone);
        talkers.look(&connections, 2);
        assert!(talkers.seen.is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn new_connections_are_counted_by_client() {
        let mut talkers = Talkers::default();
        (0..1000u32).for_each(|n| talkers.accepted(address(if n % 10 == 0 { 2 } else { 1 })));
        let told = talkers.look(&Connections::default(), 1);
        assert_eq!((told.accepted, told.clients[0].address), (1000, address(1)));
        let all: u64 = told.clients.iter().map(|client| client.accepted).sum();
        assert_eq!(all, NEWEST as u64, "the newest of them");
        talkers.accepted(address(3));
        let told = talkers.look(&Connections::default(), 2);
        assert_eq!((told.accepted, told.clients.len(), told.clients[0].address), (1, 1, address(3)));
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let six = |text: &str| network(text.parse().unwrap());
        assert_eq!(six("2001:db8:1:2:3::4"), six("2001:db8:1:2::9"));
        assert_ne!(six("2001:db8:1:2::"), six("2001:db8:1:3::"));
        assert_eq!(six("::ffff:192.0.2.1"), address(1));
    }
}
