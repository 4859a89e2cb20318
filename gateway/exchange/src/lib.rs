//! One request and its response, or one relayed connection, as a state machine without I/O.
//!
//! The executor (a lane of the proxy) reports what has happened with [`Exchange::on`] and does what the returned
//! [`Actions`] say, in the order in which [`Action::ALL`] lists them. The machine owns no memory on the heap, sees no
//! bytes, reads no clock and knows no HTTP version. Every rule about the course of an exchange is here, once:
//!
//! - which requests may be sent again after a failure, and that this happens once for the age of a connection ([`Loss`], RFC 9110
//!   §9.2.2);
//! - how often a request goes on to another connection because one did not take it ([`MAX_NOT_TAKEN`]);
//! - what early data may carry, and what goes to a server as early data ([`Exchange::may_go_early`]; RFC 8470 §4, §5.2);
//! - which connection suits an upgrade, a CONNECT or an extended CONNECT ([`Exchange::fit`]), and what the answer must be (RFC 6455
//!   §4.1, RFC 8441 §5, RFC 9220 §3);
//! - how many interim responses pass (RFC 9110 §15.2);
//! - how long a client is read that was answered before its request was complete;
//! - what may pass before a server has admitted a request, where one is asked ([`Event::Authorize`]), or before the client's
//!   password has been checked ([`Event::Verify`]): nothing;
//! - who is cut off, and who gets an error, when one side fails;
//! - how long each side may take, and whom to blame ([`deadlines`]).
//!
//! ```text
//! request:   Pending ──► Streaming ──► Complete
//!               │            │            ▲
//!               └────────────┴─► Draining ┘        read and thrown away: nobody wants the rest
//! response:  Awaiting ─┬───► Streaming ──► Complete
//!                      └───► Tunnel ─────► TunnelEnded  another protocol, or a relayed connection
//! upstream:  Unaccepted ─► None ─► Selecting ─► Open ─► None
//!                                      ▲          │     Selecting: a server is chosen, waited for, or connected to
//!                                      └─ Asking ◄┤     Asking: may the request be sent again?
//!                                           ▲     │
//!                                           └ Handshake 425 to early data, the client's or the gateway's own: once the client's
//!                                                       handshake is over
//! The end, from each of these: Over
//! ```
//!
//! A request that must be admitted by a server goes through `Selecting`, `Open` and `Asking` twice: first with a question without
//! a body, whose answer either admits it (2xx) or is the client's response, then with itself.
//!
//! ```text
//! None ── Authorize ─► Selecting ─► Open ── 2xx ─► None ── Forward ─► Selecting ─► …
//! ```
//!
//! A request whose client must show a password goes through `Verifying` before that, and no server is involved:
//!
//! ```text
//! None ── Verify ─► Verifying ── Verified ─► None ── Authorize or Forward ─► …
//! ```

mod actions;
pub mod deadlines;
mod loss;
mod switching;

pub use actions::{Action, Actions};
pub use loss::{Loss, Reset};
pub use switching::{Fit, Switching};

/// Interim responses that pass for one request. More are an upstream's failure.
pub const MAX_INTERIM: u8 = 16;

/// Connections that may turn out not to take a request that waited for them, in one try. With one more, the try has failed.
pub const MAX_NOT_TAKEN: u8 = 16;

/// What an exchange carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// An HTTP request and its response.
    #[default]
    Message,
    /// A CONNECT request: a successful response opens a tunnel (RFC 9110 §9.3.6).
    Connect,
    /// The client asks for WebSocket by HTTP/1.1's `Upgrade`.
    WebSocket,
    /// The client asks for another protocol by HTTP/1.1's `Upgrade`.
    Upgrade,
    /// The client asks for WebSocket by an extended CONNECT over HTTP/2 or HTTP/3: every 2xx opens the tunnel for it.
    ExtendedConnect,
    /// Bytes of a connection that is passed on as it is. There are no heads.
    Relay,
}

/// What the machine must know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the exchange carries.
    pub kind: Kind,
    /// A body follows the head.
    pub has_body: bool,
    /// The method changes nothing (RFC 9110 §9.2.1).
    pub is_safe: bool,
    /// The method may be applied twice (RFC 9110 §9.2.2).
    pub is_idempotent: bool,
    /// It came as TLS early data, so it may be a replay.
    pub is_early: bool,
    /// It says `Early-Data`: a proxy before the gateway has it as early data, and repeats it itself after a 425 (RFC 8470 §5.2).
    pub is_marked_early: bool,
    /// How many bytes of its body are read and thrown away after the response: [`deadlines::LINGER_BYTES`], whatever version of HTTP
    /// the client speaks.
    pub max_drained: u64,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            has_body: false,
            is_safe: false,
            is_idempotent: false,
            is_early: false,
            is_marked_early: false,
            max_drained: deadlines::LINGER_BYTES,
        }
    }
}

/// Which requests the gateway sends to a server as TLS early data. Each may reach the server twice, if an attacker repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyRequests {
    /// Those that came as early data themselves: their clients accept this.
    Client,
    /// All with a safe method and without a body.
    Safe,
}

/// One of the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the upstream server.
    Request,
    /// From the upstream server to the client.
    Response,
}

/// A final response's head, as far as the machine must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The status code, 200 to 599, or 101.
    pub status: u16,
    /// The server switches to another protocol: what follows is not HTTP.
    pub switches: bool,
    /// The server has answered the key of a WebSocket request (RFC 6455 §4.1), or no key was sent.
    pub confirms: bool,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The request's host and method are allowed: from now on it may be answered or forwarded, unless it came too early.
    Accepted,
    /// The rules cannot judge the request before the client's handshake is over: its address may be forged, or its certificate is not
    /// known yet.
    TooEarly,
    /// The rules ask a server whether the request may pass.
    Authorize,
    /// The rules have the client's password checked, which is not done here.
    Verify,
    /// The password is right.
    Verified,
    /// The rules send the request to an upstream group.
    Forward,
    /// The gateway answers itself, or refuses. The response is complete with this.
    Answer {
        /// The status code.
        status: u16,
    },
    /// A connection to the chosen server can take the request's head.
    Connected(Switching),
    /// The request has left as early data with the handshake of the connection that is being made for it
    /// ([`Exchange::may_go_early`]). [`Event::Connected`] follows when the handshake is over.
    SentEarly,
    /// The server has rejected the early data, and so has not seen the request: it is sent when the connection is ready.
    EarlyRejected,
    /// The connection that the request waited for does not take it, but another one may: others have filled it, or the server
    /// speaks another version of HTTP than was expected. Nothing was sent. [`Action::SelectServer`] follows, at most
    /// [`MAX_NOT_TAKEN`] times in a try; nothing after that, and the connection is reported as [`Loss::Unprocessed`].
    NotTaken,
    /// Bytes of the request have moved to the server, or were thrown away.
    Moved {
        /// How many.
        bytes: u64,
    },
    /// A direction has ended as its source wanted.
    Ended(Direction),
    /// An interim response (1xx other than 101) has arrived.
    Interim,
    /// The final response's head has arrived.
    Head(Head),
    /// The exchange cannot go on: the request breaks a rule, its client is too slow, or no server can take it.
    Refuse {
        /// What the client is told, if it can still be told.
        status: u16,
    },
    /// The client has gone, or has cancelled the request.
    ClientGone,
    /// The upstream server's part has ended early.
    Lost(Loss),
    /// The answer to [`Action::AskRetry`]: the retry budget and the servers allow it.
    RetryGranted,
    /// The answer to [`Action::AskRetry`]: no.
    RetryDenied,
    /// The client's TLS handshake is over: what it sends is no replay.
    HandshakeDone,
    /// A client that is read on after its response has had its time.
    DrainTimeout,
}

/// How far one direction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not begun: the source is not read, or its head is awaited.
    Awaiting,
    /// Bytes go from the source to the sink, as far as the sink has credit.
    Streaming,
    /// The source is read, and what it sends is thrown away.
    Draining,
    /// It has ended.
    Complete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// There is a body, and no server that takes it yet.
    Pending,
    /// The body flows.
    Streaming,
    /// The body has ended, or there was none.
    Complete,
    /// The rest of the body is read and thrown away.
    Draining { bytes: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseState {
    /// No final head has gone to the client.
    Awaiting { interim: u8 },
    /// The head has gone to the client.
    Streaming,
    /// All of it has.
    Complete,
    /// Both directions carry another protocol than HTTP, or bytes of a relayed connection.
    Tunnel,
    /// The server has ended its direction of that.
    TunnelEnded,
}

/// What goes to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The question whether the request may pass.
    Question,
    /// The request itself.
    Request,
}

/// The one retry that what goes to a server has for the age of a connection ([`Loss::Stale`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StaleRetry {
    Left,
    Used,
}

/// The one time that a request may go to a server as early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EarlyTry {
    Left,
    /// It is on its way, or at the server.
    Sent,
    Used,
}

/// What is brought to a server, in one try or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Task {
    purpose: Purpose,
    stale_retry: StaleRetry,
}

/// What a server has been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Whether the request may pass.
    Question,
    /// The request.
    Request,
    /// The request, and to switch protocols.
    Switch,
}

impl Asked {
    fn purpose(self) -> Purpose {
        match self {
            Self::Question => Purpose::Question,
            Self::Request | Self::Switch => Purpose::Request,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upstream {
    /// The request has not been accepted.
    Unaccepted,
    /// None is needed, yet or any more.
    None,
    /// The client's password is being checked.
    Verifying,
    /// A server is chosen, waited for, or connected to. `not_taken`: so many connections did not take the request in this try.
    Selecting { task: Task, not_taken: u8 },
    /// A server has the head.
    Open { asked: Asked, stale_retry: StaleRetry },
    /// Whether the same may be sent again is being asked; if not, the client gets this status.
    Asking { task: Task, status: u16 },
    /// The same is sent again when the client's handshake is over.
    Handshake(Task),
    /// [`Action::Finish`] has been answered. Nothing the machine is told after that has an effect.
    Over,
}

impl Upstream {
    /// What is brought to a server, now or when it is known that it may be sent again.
    #[inline]
    fn task(self) -> Option<Task> {
        match self {
            Self::Selecting { task, .. } | Self::Asking { task, .. } | Self::Handshake(task) => Some(task),
            Self::Open { asked, stale_retry } => Some(Task { purpose: asked.purpose(), stale_retry }),
            Self::Unaccepted | Self::None | Self::Verifying | Self::Over => None,
        }
    }
}

/// The state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    facts: Request,
    request: RequestState,
    response: ResponseState,
    upstream: Upstream,
    early_try: EarlyTry,
    /// Bytes of the request's body that have left for a server, and so cannot be sent again.
    released: u64,
}

impl Default for Exchange {
    fn default() -> Self {
        Self::new(Request::default())
    }
}

impl Exchange {
    /// A request whose head is complete.
    #[inline]
    pub fn new(facts: Request) -> Self {
        // Of a relayed connection nothing is read that could be accepted.
        let upstream = if facts.kind == Kind::Relay { Upstream::None } else { Upstream::Unaccepted };
        Self {
            facts,
            request: if facts.has_body { RequestState::Pending } else { RequestState::Complete },
            response: ResponseState::Awaiting { interim: 0 },
            upstream,
            early_try: EarlyTry::Left,
            released: 0,
        }
    }

    /// Whether the rest of a request is read to its end that is answered before, so that the connection can go on behind it.
    /// `announced`: how long it will be, if that is known. A rest that turns out to be longer is not.
    #[inline]
    pub fn reads_rest(&self, announced: Option<u64>) -> bool {
        announced.is_none_or(|rest| rest <= self.facts.max_drained)
    }

    /// Whether so much of a request has been thrown away that no more of it is read.
    pub fn has_drained_enough(&self) -> bool {
        matches!(self.request, RequestState::Draining { bytes } if bytes > self.facts.max_drained)
    }

    /// Whether the final response's head has gone to the client, so that no status can tell of a failure any more.
    #[inline]
    pub fn is_answered(&self) -> bool {
        !matches!(self.response, ResponseState::Awaiting { .. })
    }

    /// How far the request has come.
    #[inline]
    pub fn request(&self) -> Phase {
        match self.request {
            RequestState::Pending => Phase::Awaiting,
            RequestState::Streaming => Phase::Streaming,
            RequestState::Draining { .. } => Phase::Draining,
            RequestState::Complete => Phase::Complete,
        }
    }

    /// How far the response has come.
    #[inline]
    pub fn response(&self) -> Phase {
        match self.response {
            ResponseState::Awaiting { .. } => Phase::Awaiting,
            ResponseState::Streaming | ResponseState::Tunnel => Phase::Streaming,
            ResponseState::Complete | ResponseState::TunnelEnded => Phase::Complete,
        }
    }

    /// Whether a server has the request's head.
    #[inline]
    pub fn has_server(&self) -> bool {
        matches!(self.upstream, Upstream::Open { .. })
    }

    /// Whether the request is sent again once the client's handshake is over.
    #[inline]
    pub fn awaits_handshake(&self) -> bool {
        matches!(self.upstream, Upstream::Handshake(_))
    }

    /// Whether a server is asked whether the request may pass, and has not answered.
    #[inline]
    pub fn is_authorizing(&self) -> bool {
        self.upstream.task().is_some_and(|task| task.purpose == Purpose::Question)
    }

    /// Whether the client's password is being checked.
    #[inline]
    pub fn is_verifying(&self) -> bool {
        self.upstream == Upstream::Verifying
    }

    /// Whether upstreams must be told that the request may be a replay (RFC 8470 §5.1).
    #[inline]
    pub fn is_early(&self) -> bool {
        self.facts.is_early
    }

    /// Whether the request may go to the selected server as early data, where these requests do. It must be harmless to process twice, and
    /// whole with its head, so that it can be sent again. It may go so once: what was sent again for any reason was perhaps refused for
    /// being early (RFC 8470 §5.2), or lost for it. Nor does it go so if a proxy has marked it as early that has not sent it as such: that
    /// proxy would take a 425 for one to its own early data.
    pub fn may_go_early(&self, which: EarlyRequests) -> bool {
        let selecting = matches!(
            self.upstream,
            Upstream::Selecting { task: Task { purpose: Purpose::Request, stale_retry: StaleRetry::Left }, .. }
        );
        let is_harmless = self.is_message() && self.facts.is_safe && !self.facts.has_body;
        let is_wanted = self.facts.is_early || which == EarlyRequests::Safe && !self.facts.is_marked_early;
        selecting && self.early_try == EarlyTry::Left && is_harmless && is_wanted
    }

    /// Whether the server of this try has got, or gets, the request as early data from the gateway.
    pub fn was_sent_early(&self) -> bool {
        self.early_try == EarlyTry::Sent
    }

    /// Whether WebSocket is what a server is asked for: the client asks for it, and nobody else has to be asked first.
    #[inline]
    pub fn asks_websocket(&self) -> bool {
        !self.is_authorizing() && matches!(self.facts.kind, Kind::WebSocket | Kind::ExtendedConnect)
    }

    /// What a loss is to this exchange. A request is sent again once for the age of a connection; if it is lost in the same way
    /// again, the server has failed. To be asked before the loss is reported, by who accounts for it.
    #[inline]
    pub fn loss(&self, loss: Loss) -> Loss {
        match self.upstream.task() {
            Some(Task { stale_retry: StaleRetry::Used, .. }) if loss == Loss::Stale => Loss::Broken,
            _ => loss,
        }
    }

    /// Whether the server that has the request's head was asked to switch protocols.
    #[inline]
    pub fn asks_server_to_switch(&self) -> bool {
        matches!(self.upstream, Upstream::Open { asked: Asked::Switch, .. })
    }

    /// It is a request of HTTP alone: its client wants neither a tunnel nor another protocol.
    #[inline]
    pub fn is_message(&self) -> bool {
        self.facts.kind == Kind::Message
    }

    /// It is a connection that is relayed, not a request.
    #[inline]
    pub fn is_relay(&self) -> bool {
        self.facts.kind == Kind::Relay
    }

    /// Whether both directions carry another protocol than HTTP, or a relayed connection.
    #[inline]
    pub fn is_tunnel(&self) -> bool {
        matches!(self.response, ResponseState::Tunnel | ResponseState::TunnelEnded)
    }

    /// Takes an event; returns what is to be done about it.
    #[inline]
    pub fn on(&mut self, event: Event) -> Actions {
        match event {
            Event::Answer { .. }
            | Event::TooEarly
            | Event::Refuse { .. }
            | Event::Moved { .. }
            | Event::Ended(_)
            | Event::ClientGone
            | Event::DrainTimeout
                if matches!(self.upstream, Upstream::Over) =>
            {
                Actions::NONE
            }
            // What all others ask of `upstream` does not hold at the end.
            Event::Accepted => self.accepted(),
            Event::TooEarly => self.refuse_early(),
            Event::Authorize => self.select(Purpose::Question),
            Event::Verify => self.verify(),
            Event::Verified => self.verified(),
            Event::Forward => self.select(Purpose::Request),
            Event::Answer { status } => self.answer(status),
            Event::Connected(switching) => self.connected(switching),
            Event::SentEarly => {
                if self.may_go_early(EarlyRequests::Safe) {
                    self.early_try = EarlyTry::Sent;
                }
                Actions::NONE
            }
            Event::EarlyRejected => {
                self.end_early_try();
                Actions::NONE
            }
            Event::NotTaken => self.not_taken(),
            Event::Moved { bytes } => self.moved(bytes),
            Event::Ended(Direction::Request) => self.request_ended(),
            Event::Ended(Direction::Response) => self.response_ended(),
            Event::Interim => self.interim(),
            Event::Head(head) => self.head(head),
            Event::Refuse { status } => self.refuse(status),
            Event::ClientGone => self.end(Actions::NONE.with(Action::DetachClient)),
            Event::Lost(loss) => self.lost(loss),
            Event::RetryGranted => self.retry(),
            Event::RetryDenied => match self.upstream {
                Upstream::Asking { status, .. } => self.refuse(status),
                _ => Actions::NONE,
            },
            Event::HandshakeDone => self.handshake_done(),
            Event::DrainTimeout => match self.request {
                RequestState::Draining { .. } => self.end(Actions::NONE.with(Action::CloseClient)),
                _ => Actions::NONE,
            },
        }
    }

    #[inline]
    fn accepted(&mut self) -> Actions {
        if !matches!(self.upstream, Upstream::Unaccepted) {
            return Actions::NONE;
        }
        self.upstream = Upstream::None;
        // RFC 8470 §4: early data can be replayed, and what changes something must not be done twice. What follows a change of
        // protocols is no safe request, whatever the method was.
        if self.facts.is_early && !(self.facts.is_safe && self.is_message()) {
            return self.refuse_early();
        }
        Actions::NONE
    }

    /// The client has to send the request again when its handshake is over (RFC 8470 §5.2).
    fn refuse_early(&mut self) -> Actions {
        self.answer(425)
    }

    fn verify(&mut self) -> Actions {
        if self.upstream == Upstream::None && !self.is_answered() && self.facts.kind != Kind::Relay {
            self.upstream = Upstream::Verifying;
        }
        Actions::NONE
    }

    fn verified(&mut self) -> Actions {
        if self.upstream != Upstream::Verifying {
            return Actions::NONE;
        }
        self.upstream = Upstream::None;
        Actions::NONE.with(Action::Admit)
    }

    #[inline]
    fn select(&mut self, purpose: Purpose) -> Actions {
        if !matches!(self.upstream, Upstream::None) || self.is_answered() {
            return Actions::NONE;
        }
        self.begin_try(Task { purpose, stale_retry: StaleRetry::Left })
    }

    #[inline]
    fn begin_try(&mut self, task: Task) -> Actions {
        self.end_early_try();
        self.upstream = Upstream::Selecting { task, not_taken: 0 };
        Actions::NONE.with(Action::SelectServer)
    }

    /// The server does not have the request as early data, or has it no more.
    #[inline]
    fn end_early_try(&mut self) {
        if self.early_try == EarlyTry::Sent {
            self.early_try = EarlyTry::Used;
        }
    }

    /// The gateway's own response, which is complete with its head.
    fn answer(&mut self, status: u16) -> Actions {
        if matches!(self.request, RequestState::Draining { .. }) {
            // The response is whole, and nobody wants what is wrong with the rest of the request.
            return self.end(Actions::NONE.with(Action::CloseClient));
        }
        if self.is_answered() {
            return self.end(Actions::NONE.with(Action::CutClient));
        }
        let actions = self.leave_upstream(Actions::NONE).respond(status);
        self.response = ResponseState::Complete;
        self.response_complete(actions)
    }

    /// An error: a status where the client can still be told, a cut where it cannot.
    fn refuse(&mut self, status: u16) -> Actions {
        if self.facts.kind == Kind::Relay {
            return self.end(Actions::NONE.with(Action::CutClient));
        }
        self.answer(status)
    }

    #[inline]
    fn connected(&mut self, switching: Switching) -> Actions {
        let Upstream::Selecting { task: Task { purpose, stale_retry }, .. } = self.upstream else {
            return Actions::NONE;
        };
        if purpose == Purpose::Question {
            self.upstream = Upstream::Open { asked: Asked::Question, stale_retry };
            return Actions::NONE.with(Action::SendHead);
        }
        let asked = match self.facts.kind.fit(switching) {
            Fit::Whole if self.facts.kind.asks_upgrade() => Asked::Switch,
            Fit::Whole | Fit::WithoutUpgrade => Asked::Request,
            Fit::Unknown => return Actions::NONE.with(Action::AwaitSettings),
            Fit::No => return self.refuse(502),
        };
        self.upstream = Upstream::Open { asked, stale_retry };
        let actions = Actions::NONE.with(Action::SendHead);
        if self.facts.kind == Kind::Relay {
            self.open_tunnel();
            return actions.with(Action::ResumeRequest).with(Action::ResumeResponse);
        }
        if self.request == RequestState::Pending {
            self.request = RequestState::Streaming;
            return actions.with(Action::ResumeRequest);
        }
        // The body was empty and has ended before there was a server, or while another server had the request.
        if self.facts.has_body { actions.with(Action::EndRequest) } else { actions }
    }

    fn not_taken(&mut self) -> Actions {
        match &mut self.upstream {
            Upstream::Selecting { not_taken, .. } if *not_taken < MAX_NOT_TAKEN => {
                *not_taken += 1;
                self.end_early_try();
                Actions::NONE.with(Action::ResetUpstream).with(Action::SelectServer)
            }
            _ => Actions::NONE,
        }
    }

    fn open_tunnel(&mut self) {
        self.request = RequestState::Streaming;
        self.response = ResponseState::Tunnel;
    }

    #[inline]
    fn moved(&mut self, bytes: u64) -> Actions {
        match &mut self.request {
            RequestState::Draining { bytes: drained } => {
                *drained = drained.saturating_add(bytes);
                if *drained > self.facts.max_drained {
                    return self.end(Actions::NONE.with(Action::CloseClient));
                }
            }
            _ => self.released = self.released.saturating_add(bytes),
        }
        Actions::NONE
    }

    #[inline]
    fn request_ended(&mut self) -> Actions {
        let drained = matches!(self.request, RequestState::Draining { .. });
        let streamed = self.request == RequestState::Streaming && self.has_server();
        if self.request == RequestState::Complete {
            return Actions::NONE;
        }
        self.request = RequestState::Complete;
        if drained {
            return self.end(Actions::NONE.with(Action::FinishClient));
        }
        let actions = if streamed { Actions::NONE.with(Action::EndRequest) } else { Actions::NONE };
        if self.response() == Phase::Complete {
            return self.end(actions.with(Action::FinishClient));
        }
        actions
    }

    #[inline]
    fn response_ended(&mut self) -> Actions {
        let actions = Actions::NONE.with(Action::EndResponse);
        match self.response {
            ResponseState::Streaming => self.response = ResponseState::Complete,
            ResponseState::Tunnel => {
                self.response = ResponseState::TunnelEnded;
                if self.request != RequestState::Complete {
                    if self.facts.kind == Kind::Relay {
                        // One direction of a relayed connection has ended; the other goes on.
                        return actions;
                    }
                    // A server that ends an upgraded connection ends both directions.
                    return self.end(actions.with(Action::CloseUpstream).with(Action::CloseClient));
                }
            }
            ResponseState::Awaiting { .. } | ResponseState::Complete | ResponseState::TunnelEnded => {
                return Actions::NONE;
            }
        }
        self.response_complete(actions)
    }

    /// The response has gone to the client whole; the request may still be coming.
    #[inline]
    fn response_complete(&mut self, actions: Actions) -> Actions {
        if self.request == RequestState::Complete {
            return self.end(actions.with(Action::FinishClient));
        }
        // Many clients take a reset for the loss of the response before it, so they are read for a while.
        self.request = RequestState::Draining { bytes: 0 };
        self.leave_upstream(actions).with(Action::StartDraining)
    }

    fn interim(&mut self) -> Actions {
        let (ResponseState::Awaiting { interim }, Upstream::Open { asked, .. }) = (&mut self.response, self.upstream)
        else {
            return Actions::NONE;
        };
        if *interim >= MAX_INTERIM {
            return Actions::NONE.with(Action::RejectResponse);
        }
        *interim += 1;
        if asked == Asked::Question { Actions::NONE } else { Actions::NONE.with(Action::ForwardInterim) }
    }

    #[inline]
    fn head(&mut self, head: Head) -> Actions {
        let Upstream::Open { asked, stale_retry } = self.upstream else { return Actions::NONE };
        if self.is_answered() {
            return Actions::NONE;
        }
        if head.status == 425 && !self.facts.is_marked_early && (self.facts.is_early || self.was_sent_early()) {
            return self.too_early(Task { purpose: asked.purpose(), stale_retry });
        }
        if asked == Asked::Question {
            return self.authorized(head, stale_retry);
        }
        if !self.is_acceptable(head, asked) {
            return Actions::NONE.with(Action::RejectResponse);
        }
        let actions = Actions::NONE.with(Action::ForwardHead);
        if head.switches {
            self.open_tunnel();
            return actions.with(Action::ResumeRequest);
        }
        self.response = ResponseState::Streaming;
        actions
    }

    /// The answer to the question whether the request may pass: 2xx admits it, every other answer is the client's.
    fn authorized(&mut self, head: Head, stale_retry: StaleRetry) -> Actions {
        if head.switches || head.status < 200 {
            return Actions::NONE.with(Action::RejectResponse);
        }
        if !(200..300).contains(&head.status) {
            self.upstream = Upstream::Open { asked: Asked::Request, stale_retry };
            self.response = ResponseState::Streaming;
            return Actions::NONE.with(Action::ForwardHead);
        }
        self.upstream = Upstream::None;
        self.response = ResponseState::Awaiting { interim: 0 };
        Actions::NONE.with(Action::Admit)
    }

    /// Whether a head answers what was asked.
    #[inline]
    fn is_acceptable(&self, head: Head, asked: Asked) -> bool {
        match self.facts.kind {
            Kind::Connect => head.status != 101,
            // RFC 9110 §7.8: a server must not switch to what nobody asked for. To a key there is one right answer
            // (RFC 6455 §4.1).
            Kind::Message | Kind::WebSocket | Kind::Upgrade if !head.switches => true,
            Kind::Message | Kind::WebSocket | Kind::Upgrade => asked == Asked::Switch && head.confirms,
            // RFC 8441 §5, RFC 9220 §3: to the client every 2xx is the beginning of WebSocket. Only an answer to our key
            // says that the server speaks it (RFC 6455 §4.1).
            Kind::ExtendedConnect => {
                if head.switches {
                    head.confirms
                } else {
                    !(200..300).contains(&head.status)
                }
            }
            Kind::Relay => false,
        }
    }

    /// RFC 8470 §5.2: a request that was too early may be sent again once the client's handshake is over. If the gateway alone made it
    /// early, that is so already.
    fn too_early(&mut self, task: Task) -> Actions {
        if self.released > 0 {
            // What was released of its body is not kept.
            return self.refuse_early();
        }
        let actions = Actions::NONE.with(Action::ResetUpstream).with(Action::AwaitHandshake);
        self.upstream = Upstream::Handshake(task);
        self.rewind();
        actions
    }

    fn handshake_done(&mut self) -> Actions {
        // A request that a server has already got was marked as early: that server may still refuse it for that.
        let Upstream::Handshake(task) = self.upstream else { return Actions::NONE };
        // To a client that sent no early data, 425 would mean nothing.
        let status = if self.facts.is_early { 425 } else { Loss::Broken.status() };
        self.facts.is_early = false;
        self.early_try = EarlyTry::Used;
        self.upstream = Upstream::Asking { task, status };
        Actions::NONE.with(Action::AskRetry)
    }

    /// The request waits for another server.
    fn rewind(&mut self) {
        if self.request == RequestState::Streaming {
            self.request = RequestState::Pending;
        }
    }

    fn lost(&mut self, loss: Loss) -> Actions {
        let (Upstream::Selecting { .. } | Upstream::Open { .. }, Some(mut task)) =
            (self.upstream, self.upstream.task())
        else {
            return Actions::NONE;
        };
        let loss = self.loss(loss);
        let reset = Actions::NONE.with(Action::ResetUpstream);
        if self.is_answered() || loss == Loss::Cancelled {
            self.upstream = Upstream::None;
            return self.end(reset.with(Action::CutClient));
        }
        // A question changes nothing, whatever the request does.
        if self.released == 0 && loss.allows_retry(self.facts.is_idempotent || task.purpose == Purpose::Question) {
            if loss == Loss::Stale {
                task.stale_retry = StaleRetry::Used;
            }
            self.upstream = Upstream::Asking { task, status: loss.status() };
            self.rewind();
            return reset.with(Action::AskRetry);
        }
        self.upstream = Upstream::None;
        let refused = self.refuse(loss.status());
        refused.and(reset)
    }

    fn retry(&mut self) -> Actions {
        let Upstream::Asking { task, .. } = self.upstream else { return Actions::NONE };
        self.begin_try(task)
    }

    /// Whatever the server was doing for this exchange is not wanted any more.
    #[inline]
    fn leave_upstream(&mut self, actions: Actions) -> Actions {
        let open = matches!(self.upstream, Upstream::Selecting { .. } | Upstream::Open { .. });
        self.upstream = Upstream::None;
        if open { actions.with(Action::ResetUpstream) } else { actions }
    }

    /// The end, which comes once. An upstream connection that is idle now may be used again.
    #[inline]
    fn end(&mut self, actions: Actions) -> Actions {
        let whole = self.request == RequestState::Complete && self.response() == Phase::Complete;
        let actions = if actions.has(Action::CloseUpstream) {
            actions
        } else if self.has_server() && whole && actions.has(Action::FinishClient) {
            actions.with(if self.is_tunnel() { Action::CloseUpstream } else { Action::ReleaseUpstream })
        } else {
            self.leave_upstream(actions)
        };
        self.upstream = Upstream::Over;
        actions.with(Action::Finish)
    }
}
