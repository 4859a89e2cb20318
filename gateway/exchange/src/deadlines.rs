//! The tables of deadlines: how long each direction of an exchange may wait, for whom, and what follows; and how long a
//! connection may wait beside that ([`ConnectionState`]).
//!
//! HTTP/1.1, HTTP/2, HTTP/3 and relayed connections all use these tables, and nothing else decides who is slow. They do no I/O
//! and read no clock: states and times go in, a deadline and the party to blame come out. [`docs`] writes both tables for people.
//!
//! Rules of an exchange:
//!
//! - Each direction that waits has one party to blame. If the sink has no room it is the sink, else the source. Of an
//!   upgraded or relayed connection both sides may be silent: nobody has failed when it is closed for that.
//! - The earliest of the direction's deadlines counts: idle (no byte moves), rate (too few bytes move), or total.
//! - The time that counts against a party is the time for which the proxy waited for that party. So a rate applies to a
//!   body only while the proxy is ready to read it, or has something to send.
//! - gRPC, event streams, upgraded and relayed connections may be silent in one direction for as long as the other
//!   moves: they have an idle limit for both directions together, and no rate.

mod connection;
pub mod docs;

pub use connection::{ConnectionDeadline, ConnectionLimits, ConnectionState, ConnectionWait};

use crate::{Asked, Exchange, Phase, Upstream};

/// Milliseconds, from any beginning.
pub type Millis = u64;

/// How long a client is read that was answered before its request was complete, over all versions of HTTP. Many clients take a reset
/// for the loss of the response before it (RFC 9112 §9.6). If the request ends in that time, a connection over HTTP/1.1 may go on.
pub const LINGER: Millis = 2000;
/// The most bytes that are read and thrown away in that time.
pub const LINGER_BYTES: u64 = 512 * 1024;

/// How long a client may open streams that was told by GOAWAY to open no more: several round trips on any path.
pub const GRACE: Millis = 5000;

/// Who is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The client.
    Client,
    /// The upstream's server.
    Upstream,
}

impl Party {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Upstream,
            Self::Upstream => Self::Client,
        }
    }
}

/// Why a deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No byte has moved.
    Idle,
    /// Too few bytes have moved.
    Rate,
    /// It has taken too long as a whole.
    Total,
}

/// What a direction waits for: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The client's handshake, for a request that was sent too early.
    Handshake,
    /// The next bytes of a request's body.
    RequestBody,
    /// Room for a request's body at the server.
    RequestRoom,
    /// The rest of a request that is not wanted any more.
    RequestRest,
    /// A connection to the server, or a stream on one.
    Connection,
    /// The answer of the server that is asked whether the request may pass, its connection included.
    Authorization,
    /// The check of the client's password.
    Password,
    /// Room at the servers of a group.
    Queue,
    /// The head of the response; the request has been sent.
    ResponseHead,
    /// The next bytes of a response's body.
    ResponseBody,
    /// Room for a response at the client.
    ResponseRoom,
    /// Any byte of an upgraded or relayed connection.
    Tunnel,
    /// The end of an exchange whose time as a whole is limited, no matter which side is waited for.
    Exchange,
    /// The end of a copy of a request, in the same way.
    Copy,
}

impl Wait {
    /// Who is blamed; nobody where both sides may be silent.
    pub fn party(self) -> Option<Party> {
        match self {
            Self::Handshake | Self::RequestBody | Self::RequestRest | Self::ResponseRoom => Some(Party::Client),
            Self::RequestRoom | Self::Connection | Self::Authorization | Self::ResponseHead | Self::ResponseBody => {
                Some(Party::Upstream)
            }
            Self::Tunnel | Self::Exchange | Self::Copy | Self::Password | Self::Queue => None,
        }
    }
}

/// What kind of bodies an exchange has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// Messages that come as fast as they can.
    #[default]
    Message,
    /// gRPC and event streams: idle limits only, for both directions together.
    Stream,
}

/// How far one direction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has not begun.
    Waiting,
    /// Bytes of a message pass.
    Open {
        /// The sink has no room for more.
        blocked: bool,
    },
    /// Bytes of another protocol than HTTP pass.
    Tunnel {
        /// The sink has no room for more.
        blocked: bool,
    },
    /// Nobody wants the rest of it.
    Dropped,
    /// It has ended.
    Done,
}

/// How far an exchange has come on its way to the head of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No server has been chosen.
    Unchosen,
    /// The client's password is being checked.
    Password,
    /// The request waits for the end of the client's handshake.
    Handshake,
    /// A server has been chosen, and is asked whether the request may pass.
    Question,
    /// A server has been chosen, but does not have the request's head.
    Connecting,
    /// The server has the request's head.
    Sent,
}

impl Stage {
    fn of(exchange: &Exchange, chosen: bool) -> Self {
        match exchange.upstream {
            Upstream::Handshake(_) => Self::Handshake,
            Upstream::Verifying => Self::Password,
            _ if !chosen => Self::Unchosen,
            _ if exchange.is_authorizing() => Self::Question,
            Upstream::Open { asked: Asked::Request | Asked::Switch, .. } => Self::Sent,
            _ => Self::Connecting,
        }
    }
}

/// How an exchange stands, as far as its deadlines go.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// The request's direction.
    pub request: Step,
    /// The response's direction.
    pub response: Step,
    /// The way to the response's head.
    pub stage: Stage,
}

impl State {
    /// How an exchange stands. `chosen`: a server has been chosen. `blocked`: the sinks of the request and of the response have no
    /// room.
    pub fn of(exchange: &Exchange, chosen: bool, blocked: [bool; 2]) -> Self {
        let step = |phase, blocked| match phase {
            Phase::Awaiting => Step::Waiting,
            Phase::Streaming if exchange.is_tunnel() => Step::Tunnel { blocked },
            Phase::Streaming => Step::Open { blocked },
            Phase::Draining => Step::Dropped,
            Phase::Complete => Step::Done,
        };
        Self {
            request: step(exchange.request(), blocked[0]),
            response: step(exchange.response(), blocked[1]),
            stage: Stage::of(exchange, chosen),
        }
    }

    /// What the request's direction waits for.
    pub fn request_wait(&self) -> Option<Wait> {
        match self.request {
            Step::Open { blocked: true } | Step::Tunnel { blocked: true } => Some(Wait::RequestRoom),
            Step::Open { blocked: false } => Some(Wait::RequestBody),
            Step::Tunnel { blocked: false } => Some(Wait::Tunnel),
            Step::Dropped => Some(Wait::RequestRest),
            Step::Waiting | Step::Done => None,
        }
    }

    /// What the response's direction waits for.
    pub fn response_wait(&self) -> Option<Wait> {
        match (self.response, self.stage) {
            (_, Stage::Handshake) => Some(Wait::Handshake),
            (Step::Open { blocked: true } | Step::Tunnel { blocked: true }, _) => Some(Wait::ResponseRoom),
            (Step::Open { blocked: false }, _) => Some(Wait::ResponseBody),
            (Step::Tunnel { blocked: false }, _) => Some(Wait::Tunnel),
            (Step::Waiting, Stage::Password) => Some(Wait::Password),
            (Step::Waiting, Stage::Unchosen) => Some(Wait::Queue),
            (Step::Waiting, Stage::Question) => Some(Wait::Authorization),
            (Step::Waiting, Stage::Connecting) => Some(Wait::Connection),
            // The request comes first, and its direction has a deadline.
            (Step::Waiting, Stage::Sent) if self.request != Step::Done => None,
            (Step::Waiting, Stage::Sent) => Some(Wait::ResponseHead),
            (Step::Dropped | Step::Done, _) => None,
        }
    }
}

/// The limits of one party's body: what may be silent for how long, and how few bytes are too few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// Longest silence; also the time over which the rate is averaged.
    pub idle: Millis,
    /// The least bytes per second; 0: any.
    pub rate: u64,
}

/// The limits that an exchange has.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The client's.
    pub client: BodyLimits,
    /// The upstream's.
    pub upstream: BodyLimits,
    /// For the end of the client's handshake.
    pub handshake: Millis,
    /// For a connection to the server.
    pub connection: Millis,
    /// For the response's head.
    pub first_byte: Millis,
    /// When it must be known whether the request may pass: the answer of a server, or the check of a password.
    pub authorized_until: Option<Millis>,
    /// When there must be room at a server, for a request that waits for that.
    pub queued_until: Option<Millis>,
    /// When the try under way must have led to a response.
    pub try_until: Option<Millis>,
    /// When the unwanted rest of a request must have come.
    pub rest_until: Option<Millis>,
    /// When the exchange must be over, no matter which side is waited for. Not for the rest of a request whose response is complete.
    pub total_until: Option<Millis>,
    /// When a copy of a request must be over, whatever it waits for.
    pub copy_until: Option<Millis>,
}

impl Limits {
    /// No deadline that begins to run later can be over before this time has passed.
    pub fn shortest(&self) -> Millis {
        self.client.idle.min(self.upstream.idle).min(self.first_byte).min(self.connection).min(self.handshake)
    }
}

/// The time that a party has been waited for in one direction, and the bytes that moved in it.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// Milliseconds since the measurement began in which the party was waited for.
    waited: Millis,
    /// The direction's bytes when it began.
    from: u64,
}

/// What one direction of an exchange remembers for its deadlines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// When the wait began that is going on: with the last byte, or when another party became the one to wait for.
    since: Millis,
    /// Up to when `meters` have been brought.
    metered: Millis,
    meters: [Meter; 2],
    /// It has begun, and the client has been waited for this long since.
    client: Option<Millis>,
}

/// A deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When it passes.
    pub at: Millis,
    /// What is waited for then.
    pub wait: Wait,
    /// Which limit it is.
    pub reason: Reason,
}

impl Progress {
    /// A wait begins, or a byte has moved.
    #[inline]
    pub fn note(&mut self, now: Millis) {
        self.since = now;
    }

    /// The direction turns from one party to the other: the time up to now counts against `waited_for`.
    #[inline]
    pub fn turn(&mut self, now: Millis, waited_for: Party) {
        self.meter(now, waited_for);
        self.since = now;
    }

    /// The direction begins anew.
    #[inline]
    pub fn begin(&mut self, now: Millis) {
        *self = Self { since: now, metered: now, meters: [Meter::default(); 2], client: Some(0) };
    }

    /// When the last byte moved, or the wait began.
    pub fn since(&self) -> Millis {
        self.since
    }

    fn meter(&mut self, now: Millis, party: Party) {
        let waited = now.saturating_sub(self.metered);
        self.meters[party as usize].waited += waited;
        if let (Party::Client, Some(client)) = (party, &mut self.client) {
            *client += waited;
        }
        self.metered = now;
    }

    /// For how long the client was waited for in a request that ended at `end`. What came last was the client's.
    fn waited_for_client(&self, end: Millis) -> Millis {
        self.client.map_or(0, |client| client + end.saturating_sub(self.metered))
    }

    /// The deadline by rate, or `None` if enough has moved. Brings the measurement up to `now`.
    fn rate_deadline(&mut self, now: Millis, party: Party, bytes: u64, limits: BodyLimits) -> Option<Millis> {
        self.meter(now, party);
        let meter = &mut self.meters[party as usize];
        if limits.rate == 0 {
            return None;
        }
        if meter.waited >= limits.idle {
            let least = limits.rate.saturating_mul(meter.waited) / 1000;
            if bytes.saturating_sub(meter.from) < least {
                return Some(now);
            }
            *meter = Meter { waited: 0, from: bytes };
        }
        Some(now + (limits.idle - meter.waited))
    }
}

/// One direction, as [`deadline`] looks at it.
#[derive(Debug)]
pub struct Direction<'p> {
    /// What it waits for.
    pub wait: Option<Wait>,
    /// What it remembers.
    pub progress: &'p mut Progress,
    /// Bytes that have moved so far.
    pub bytes: u64,
}

/// The earliest deadline of an exchange. `None`: nothing is waited for that has one here.
pub fn deadline(
    now: Millis,
    class: Class,
    limits: &Limits,
    request: Direction,
    response: Direction,
) -> Option<Deadline> {
    let moved = request.progress.since.max(response.progress.since);
    let uploaded = request.progress.waited_for_client(response.progress.since);
    let mut earliest: Option<Deadline> = None;
    let mut consider = |at: Millis, wait: Wait, reason: Reason| {
        if earliest.is_none_or(|e| at < e.at) {
            earliest = Some(Deadline { at, wait, reason });
        }
    };
    if let Some(at) = limits.total_until {
        consider(at, Wait::Exchange, Reason::Total);
    }
    if let Some(at) = limits.copy_until {
        consider(at, Wait::Copy, Reason::Total);
    }
    for Direction { wait, progress, bytes } in [request, response] {
        let Some(wait) = wait else { continue };
        let since = progress.since;
        if matches!(wait, Wait::Password | Wait::Queue) {
            let until = if wait == Wait::Password { limits.authorized_until } else { limits.queued_until };
            until.into_iter().for_each(|at| consider(at, wait, Reason::Total));
            continue;
        }
        let Some(party) = wait.party() else {
            consider(moved + limits.upstream.idle, wait, Reason::Idle);
            continue;
        };
        let own = match party {
            Party::Client => limits.client,
            Party::Upstream => limits.upstream,
        };
        match wait {
            // These have nobody to blame; of `Exchange` and `Copy` no direction waits.
            Wait::Tunnel | Wait::Exchange | Wait::Copy | Wait::Password | Wait::Queue => {}
            Wait::Handshake => consider(since + limits.handshake, wait, Reason::Total),
            Wait::Authorization => {
                let all = [limits.authorized_until, limits.try_until];
                all.into_iter().flatten().for_each(|at| consider(at, wait, Reason::Total));
            }
            Wait::Connection | Wait::ResponseHead => {
                let own = if wait == Wait::Connection { limits.connection } else { limits.first_byte };
                consider(since + own, wait, Reason::Total);
                if let Some(at) = limits.try_until {
                    // The time that the client took to send its request is not the server's.
                    let uploaded = if wait == Wait::ResponseHead { uploaded } else { 0 };
                    consider(at + uploaded, wait, Reason::Total);
                }
            }
            Wait::RequestBody | Wait::ResponseBody if class == Class::Stream => {
                consider(moved + limits.upstream.idle, wait, Reason::Idle);
            }
            Wait::RequestRoom | Wait::ResponseRoom if class == Class::Stream => {
                consider(since + own.idle, wait, Reason::Idle);
            }
            Wait::RequestBody | Wait::RequestRoom | Wait::RequestRest | Wait::ResponseBody | Wait::ResponseRoom => {
                consider(since + own.idle, wait, Reason::Idle);
                if let Some(at) = progress.rate_deadline(now, party, bytes, own) {
                    consider(at, wait, Reason::Rate);
                }
                if let (Wait::RequestRest, Some(at)) = (wait, limits.rest_until) {
                    consider(at, wait, Reason::Total);
                }
            }
        }
    }
    earliest
}

/// Whether the server has used up the time of an exchange that has ended as a whole, as one does that hangs: the gateway was waiting for
/// it, and has waited for at least half of the time since `started`, of which the client has used less than a tenth. Clients that
/// send slowly cannot make a server look as if it hung.
pub fn is_used_up_by_server(now: Millis, started: Millis, request: &Direction, response: &Direction) -> bool {
    let upstream = |direction: &Direction| direction.wait.and_then(Wait::party) == Some(Party::Upstream);
    let waited = [request, response].into_iter().find(|direction| upstream(direction)).map(|d| d.progress.since);
    let whole = now.saturating_sub(started);
    let client = request.progress.waited_for_client(response.progress.since);
    waited.is_some_and(|since| 2 * now.saturating_sub(since) >= whole) && 10 * client < whole
}

#[cfg(test)]
#[path = "deadlines_tests.rs"]
mod tests;
