//! One request and its response: two one-way flows between a client's side and an upstream's.
//!
//! The sides never see each other. A source decodes into a flow, the loop hands the pieces to the sink as long as it
//! has credit, and each flow ends exactly once.
//!
//! ```text
//! flow:  Waiting ─► Open ─► Done
//!            └────────┴───► Dropped   (nobody wants the rest; it is read and thrown away)
//! ```

use crate::choose::Routed;
use crate::conn::Client;
use crate::deadlines::{Party, Progress};
use crate::lane_state::LaneUpstream;
use crate::scratch::READ_SIZE;
use crate::sides::{ClientSide, ServerSide};
use sealane_http::h1::{BodyDecoder, Limits};
use sealane_http::{BodyLength, Fields, RequestHead, ResponseHead};
use sealane_lane::Millis;
use std::net::IpAddr;
use std::rc::Rc;

/// See [`Flow::read_size`].
const FIRST_READ: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowState {
    Waiting,
    Open,
    Done,
    Dropped,
}

pub(crate) struct Flow {
    pub state: FlowState,
    /// An HTTP/1.1 source's; other versions frame bodies themselves.
    pub decoder: BodyDecoder,
    /// How an HTTP/1.1 sink is told where the body ends.
    pub framing: BodyLength,
    /// Those that came with the end, if any did.
    pub trailers: Fields,
    /// The source has more than the sink had credit for.
    pub blocked: bool,
    /// Bytes to read at once for a sink that does not tell its room before: twice as many with each read, and few again
    /// once it had no room for all.
    pub read_size: usize,
    /// Whose bytes these are.
    source: Party,
    pub progress: Progress,
    pub bytes: u64,
    /// Bytes pass as they are (after an upgrade).
    pub raw: bool,
}

impl Flow {
    fn new(source: Party) -> Self {
        Self {
            source,
            progress: Progress::default(),
            state: FlowState::Waiting,
            decoder: BodyDecoder::new(BodyLength::None, &Limits::default()),
            framing: BodyLength::None,
            trailers: Fields::new(),
            blocked: false,
            read_size: FIRST_READ,
            bytes: 0,
            raw: false,
        }
    }

    /// The sink has no room: the source is resumed when it has.
    pub fn block(&mut self, now: Millis) {
        if !std::mem::replace(&mut self.blocked, true) {
            self.progress.turn(now, self.source);
        }
        self.read_size = FIRST_READ;
    }

    /// The sink has room again. Whether the source waits for that.
    pub fn unblock(&mut self, now: Millis) -> bool {
        let blocked = std::mem::take(&mut self.blocked);
        if blocked {
            self.progress.turn(now, self.source.other());
        }
        blocked
    }

    /// See `read_size`.
    pub fn next_read(&mut self) -> usize {
        let size = self.read_size;
        self.read_size = (size * 2).min(READ_SIZE);
        size
    }

    fn reset(&mut self) {
        self.progress = Progress::default();
        self.state = FlowState::Waiting;
        self.framing = BodyLength::None;
        self.trailers.clear();
        self.trailers.shrink_to(4096);
        self.blocked = false;
        self.read_size = FIRST_READ;
        self.bytes = 0;
        self.raw = false;
    }
}

pub(crate) struct Exchange {
    pub request: RequestHead,
    pub response: ResponseHead,
    pub front: ClientSide,
    pub back: Option<ServerSide>,
    pub upstream: Option<Rc<LaneUpstream>>,
    /// The way that was chosen for it.
    pub routed: Routed,
    pub up: Flow,
    pub down: Flow,
    /// The server has the request's head.
    pub sent: bool,
    /// What the request's body is like, as it came.
    pub body: BodyLength,
    /// The connection's peer is a proxy that may say who the client is.
    pub trusted: bool,
    /// The client, as trusted proxies tell.
    pub told: Option<IpAddr>,
    /// The client lets the connection stay open.
    pub keep_alive: bool,
    /// The client asks to switch protocols.
    pub upgrade: bool,
    /// The final response's head has been staged towards the client.
    pub answered: bool,
    /// Status sent to the client.
    pub status: u16,
    /// The request came as early data, and was marked so to the upstream.
    pub early: bool,
    /// The upstream said 425: the request goes again once the handshake is over.
    pub awaits_handshake: bool,
    /// Connections tried.
    pub attempts: usize,
    /// The server in use: an index into the upstream's.
    pub server: usize,
    pub interim: u8,
    pub started: Millis,
    /// The response has been sent. The rest of the request is read and thrown away, up to this time.
    pub lingers: Option<Millis>,
    /// Bytes thrown away so far.
    pub lingered: usize,
    /// Bytes of the response that were read and wait with the upstream's connection.
    pub held: usize,
}

impl Exchange {
    pub fn new(front: ClientSide) -> Self {
        Self {
            request: RequestHead::new(),
            response: ResponseHead::new(),
            front,
            back: None,
            upstream: None,
            routed: Routed::default(),
            up: Flow::new(Party::Client),
            down: Flow::new(Party::Upstream),
            sent: false,
            body: BodyLength::None,
            trusted: false,
            told: None,
            keep_alive: false,
            upgrade: false,
            answered: false,
            status: 0,
            early: false,
            awaits_handshake: false,
            attempts: 0,
            server: 0,
            interim: 0,
            started: 0,
            lingers: None,
            lingered: 0,
            held: 0,
        }
    }

    /// The address of the request's client: what trusted proxies tell, else the connection's. Limits, hashing, the access
    /// log and what upstreams are told go by it.
    #[inline]
    pub fn client_ip(&self, client: &Client) -> IpAddr {
        self.told.unwrap_or(client.peer.ip())
    }

    /// Makes it as new, keeping the memory of its heads within reason.
    pub fn recycle(&mut self) {
        self.request.clear();
        self.request.shrink_to(4096);
        self.response.clear();
        self.response.shrink_to(4096);
        self.back = None;
        self.upstream = None;
        self.routed = Routed::default();
        self.up.reset();
        self.down.reset();
        self.trusted = false;
        self.told = None;
        self.sent = false;
        self.answered = false;
        self.upgrade = false;
        self.status = 0;
        self.early = false;
        self.awaits_handshake = false;
        self.attempts = 0;
        self.interim = 0;
        self.lingers = None;
        self.lingered = 0;
        self.held = 0;
    }
}
