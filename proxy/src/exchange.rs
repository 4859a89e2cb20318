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
use crate::lane_state::LaneUpstream;
use crate::sides::{ClientSide, ServerSide};
use sealane_http::h1::{BodyDecoder, Limits};
use sealane_http::{BodyLength, Fields, RequestHead, ResponseHead};
use sealane_lane::Millis;
use std::rc::Rc;

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
    pub bytes: u64,
    /// Bytes pass as they are (after an upgrade).
    pub raw: bool,
}

impl Flow {
    fn new() -> Self {
        Self {
            state: FlowState::Waiting,
            decoder: BodyDecoder::new(BodyLength::None, &Limits::default()),
            framing: BodyLength::None,
            trailers: Fields::new(),
            blocked: false,
            bytes: 0,
            raw: false,
        }
    }

    fn reset(&mut self) {
        self.state = FlowState::Waiting;
        self.framing = BodyLength::None;
        self.trailers.clear();
        self.trailers.shrink_to(4096);
        self.blocked = false;
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
    /// What the request's body is like, as it came.
    pub body: BodyLength,
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
    /// When the response had been sent; from then on the rest of the request is read and thrown away.
    pub lingers: Option<Millis>,
    /// Bytes thrown away so far.
    pub lingered: usize,
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
            up: Flow::new(),
            down: Flow::new(),
            body: BodyLength::None,
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
        }
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
        self.answered = false;
        self.upgrade = false;
        self.status = 0;
        self.early = false;
        self.awaits_handshake = false;
        self.attempts = 0;
        self.interim = 0;
        self.lingers = None;
        self.lingered = 0;
    }
}
