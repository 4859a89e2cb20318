//! The virtual clock, and links between the gateway and its peers: byte pipes for HTTP/1.1, frame pipes for HTTP/2 and
//! HTTP/3.

mod world;

use crate::record::Record;
use sealane_exchange::deadlines::Millis;
use sealane_http::{BodyLength, Fields, RequestHead, ResponseHead};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::OnceLock;

/// Steele, Lea and Flood's SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A direction of a link, named by the way of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the client to the gateway, or from the gateway to a server.
    Up,
    /// The way of responses.
    Down,
}

impl Way {
    pub fn other(self) -> Self {
        if self == Self::Up { Self::Down } else { Self::Up }
    }
}

/// What the queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    /// Something has arrived for the receiver of this direction.
    Arrived(usize, Way),
    /// The sender of this direction has room again.
    Room(usize, Way),
    /// The peer at the far end of a link goes on after a pause.
    Peer(usize),
    /// The client's next connection or stream begins.
    Start(usize),
    /// The gateway's connection attempt is over.
    Connect(usize, bool),
    /// The client's handshake is over.
    Handshake(usize),
    /// The gateway looks at an exchange's deadlines.
    Look(usize),
    /// The gateway's timer of a connection between exchanges.
    Idle(usize, u64),
    /// A place at a server is free, or a request has waited for one for long enough.
    Queue,
}

/// Why a stream or connection is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    NoError,
    Cancel,
    Internal,
    Refused,
    /// The connection is lost with all that is on it.
    Lost,
}

/// What a pipe carries. HTTP/1.1 has bytes, `End` (FIN) and `Reset` (RST); the others have all of it.
#[derive(Clone, Debug)]
pub enum Item {
    Bytes(Vec<u8>),
    Request(Box<RequestHead>, BodyLength, bool),
    Response(Box<ResponseHead>, BodyLength),
    Trailers(Box<Fields>),
    End,
    Reset(Code),
    /// STOP_SENDING: the sender of the other direction is to stop.
    Stop,
}

pub struct Pipe {
    flight: VecDeque<(Millis, Item)>,
    arrived: VecDeque<Item>,
    used: usize,
    capacity: usize,
    last: Millis,
    starved: bool,
    /// Since when the sender has had to wait for the connection's window alone.
    held_since: Option<Millis>,
    /// The sender has said that this is all.
    pub ended: bool,
    /// The sender has reset it.
    pub reset: bool,
    /// The receiver takes no more: what is sent vanishes.
    pub stopped: bool,
}

pub struct Link {
    pub version: u8,
    /// Between the client and the gateway; else between the gateway and a server.
    pub front: bool,
    /// Links of one HTTP/2 or HTTP/3 connection.
    pub group: usize,
    /// The connection's windows, for both directions. HTTP/1.1 has none.
    window: Option<usize>,
    pub pipes: [Pipe; 2],
    /// Nothing arrives any more.
    dead: bool,
    /// When its peer was slow by its script.
    pub slow: Vec<(Millis, Millis)>,
    /// Its peer has failed by its script.
    pub faulty: bool,
}

/// What all streams of a connection may send in one direction before the receiver takes it.
struct Window {
    used: usize,
    capacity: usize,
    /// Links whose senders wait.
    waiting: Vec<usize>,
}

/// A sender that waited for its connection's window for so long was held up by another stream.
const HELD: Millis = 100;

pub struct World {
    pub now: Millis,
    queue: BinaryHeap<Reverse<(Millis, u64, Wake)>>,
    count: u64,
    pub random: Random,
    pub links: Vec<Link>,
    windows: Vec<[Window; 2]>,
    pub log: Option<Vec<String>>,
    pub latency: Millis,
    pub record: Record,
}

/// No time: a pause that does not end.
pub const FOREVER: Millis = Millis::MAX / 4;

/// The bytes of a body: they differ from body to body, and from place to place.
pub fn pattern(key: usize, at: usize, length: usize) -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    let noise = NOISE.get_or_init(|| {
        let mut random = Random(0);
        (0..300_000).map(|_| random.next() as u8).collect()
    });
    &noise[key * 7919 % 65_521 + at..][..length]
}

/// Panics if these bytes are not what this body has there.
pub fn check_pattern(key: usize, at: usize, data: &[u8], whose: &str) {
    assert!(at + data.len() < 200_001, "{whose}: too many bytes of a body");
    assert!(pattern(key, at, data.len()) == data, "{whose}: the bytes from {at} on are not those of the body");
}
