//! The table of deadlines: how long each direction of an exchange may wait, for whom, and what follows.
//!
//! HTTP/1.1, HTTP/2, HTTP/3 and relayed connections all use this table, and nothing else decides who is slow. The table
//! does no I/O and reads no clock: states and times go in, a deadline and the party to blame come out.
//!
//! Rules:
//!
//! - Each direction that waits has one party to blame. If the sink has no room it is the sink, else the source. Of an
//!   upgraded or relayed connection both sides may be silent: nobody has failed when it is closed for that.
//! - The earliest of the direction's deadlines counts: idle (no byte moves), rate (too few bytes move), or total.
//! - The time that counts against a party is the time for which the proxy waited for that party. So a rate applies to a
//!   body only while the proxy is ready to read it, or has something to send.
//! - gRPC, event streams, upgraded and relayed connections may be silent in one direction for as long as the other
//!   moves: they have an idle limit for both directions together, and no rate.

use crate::{Exchange, Phase};

/// Milliseconds, from any beginning.
pub type Millis = u64;

/// How long a client is read that was answered before its request was complete, where its stream or connection ends with
/// that. Many clients take a reset for the loss of the response before it (RFC 9112 §9.6).
pub const LINGER: Millis = 2000;
/// The most bytes that are read and thrown away in that time.
pub const LINGER_BYTES: u64 = 512 * 1024;

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
    /// The head of a request, from its first byte. HTTP/1.1 and HTTP/2 know it of connections, HTTP/3 of streams.
    RequestHead,
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
    /// Room at a client for the last bytes of a connection that closes. No exchange uses the connection any more.
    LastBytes,
    /// The client's end of a connection on which the gateway has sent its own.
    ClientEnd,
}

/// One row of the table, for people.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is waited for.
    pub wait: Wait,
    /// Its name in the documentation.
    pub name: &'static str,
    /// Who is blamed; nobody where both sides may be silent.
    pub party: Option<Party>,
    /// The settings that limit it; `[limits]` for the client, `[[upstream]]` for the upstream.
    pub settings: &'static [&'static str],
    /// What becomes of the exchange while the response's head has not been sent.
    pub before: &'static str,
    /// And after that.
    pub after: &'static str,
}

/// The table.
pub const TABLE: &[Row] = &[
    Row {
        wait: Wait::RequestHead,
        name: "a request's head, from its first byte",
        party: Some(Party::Client),
        settings: &["header_timeout (total)"],
        before: "HTTP/1.1: 408; HTTP/2: the connection closes; HTTP/3: the stream is reset",
        after: "",
    },
    Row {
        wait: Wait::Handshake,
        name: "the end of the handshake, for a request that the server refused as too early (425)",
        party: Some(Party::Client),
        settings: &["handshake_timeout (total)"],
        before: "408",
        after: "",
    },
    Row {
        wait: Wait::RequestBody,
        name: "a request's body",
        party: Some(Party::Client),
        settings: &["idle_timeout", "min_body_rate"],
        before: "408",
        after: "both sides are reset",
    },
    Row {
        wait: Wait::RequestRoom,
        name: "a server that does not read more of a request's body",
        party: Some(Party::Upstream),
        settings: &["idle_timeout", "min_body_rate"],
        before: "504",
        after: "both sides are reset",
    },
    Row {
        wait: Wait::RequestRest,
        name: "the rest of a request that was answered before it was complete",
        party: Some(Party::Client),
        settings: &[
            "idle_timeout",
            "min_body_rate",
            "over HTTP/2 and HTTP/3 also 2 seconds or 512 KiB, whichever comes first (total); over HTTP/1.1 see the last row",
        ],
        before: "",
        after: "the connection (HTTP/1.1) or the stream ends",
    },
    Row {
        wait: Wait::Connection,
        name: "a connection to a server, or a stream on a connection",
        party: Some(Party::Upstream),
        settings: &[
            "connect_timeout per attempt",
            "the sum of connect_timeout and first_byte_timeout (total)",
            "try_timeout (total)",
        ],
        before: "another server, or 504",
        after: "",
    },
    Row {
        wait: Wait::Authorization,
        name: "the response of a `forward_auth` server, including the connection to it",
        party: Some(Party::Upstream),
        settings: &["timeout in forward_auth (total)", "try_timeout (total)"],
        before: "504; with try_timeout another server",
        after: "",
    },
    Row {
        wait: Wait::Password,
        name: "the check of a password (`basic_auth`)",
        party: None,
        settings: &["10 seconds (total)"],
        before: "503",
        after: "",
    },
    Row {
        wait: Wait::ResponseHead,
        name: "a response's head, once the request has been sent",
        party: Some(Party::Upstream),
        settings: &["first_byte_timeout (total)", "try_timeout (total)"],
        before: "504; with try_timeout another server",
        after: "",
    },
    Row {
        wait: Wait::ResponseBody,
        name: "a response's body",
        party: Some(Party::Upstream),
        settings: &["idle_timeout", "min_body_rate"],
        before: "",
        after: "the response is cut off",
    },
    Row {
        wait: Wait::ResponseRoom,
        name: "a client that does not read more of a response",
        party: Some(Party::Client),
        settings: &["idle_timeout", "min_body_rate"],
        before: "",
        after: "the response is cut off",
    },
    Row {
        wait: Wait::Tunnel,
        name: "any byte of an upgraded or relayed connection",
        party: None,
        settings: &["idle_timeout (both directions together)"],
        before: "",
        after: "both sides are closed",
    },
    Row {
        wait: Wait::Exchange,
        name: "the end of an exchange on a route with `total_timeout`, also of an upgraded connection",
        party: None,
        settings: &["total_timeout (total)"],
        before: "408 while the request's body is awaited, else 504",
        after: "both sides are reset",
    },
    Row {
        wait: Wait::LastBytes,
        name: "a client that does not read the last bytes before its connection closes (HTTP/1.1, HTTP/2)",
        party: Some(Party::Client),
        settings: &["idle_timeout (total)"],
        before: "",
        after: "the connection is closed immediately",
    },
    Row {
        wait: Wait::ClientEnd,
        name: "the client to close its direction of a connection, after the gateway has closed the other direction (for \
               example over HTTP/1.1, after a response to an incomplete request)",
        party: Some(Party::Client),
        settings: &["2 seconds or 512 KiB, whichever comes first (total)"],
        before: "",
        after: "the connection is closed immediately",
    },
];

impl Wait {
    /// Who is blamed; nobody where both sides may be silent.
    pub fn party(self) -> Option<Party> {
        match self {
            Self::RequestHead
            | Self::Handshake
            | Self::RequestBody
            | Self::RequestRest
            | Self::ResponseRoom
            | Self::LastBytes
            | Self::ClientEnd => Some(Party::Client),
            Self::RequestRoom | Self::Connection | Self::Authorization | Self::ResponseHead | Self::ResponseBody => {
                Some(Party::Upstream)
            }
            Self::Tunnel | Self::Exchange | Self::Password => None,
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
    /// Bytes pass. `blocked`: the sink has no room for more.
    Open {
        /// The sink has no room.
        blocked: bool,
    },
    /// Nobody wants the rest of it.
    Dropped,
    /// It has ended.
    Done,
}

/// How an exchange stands, as far as its deadlines go.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// The request's direction.
    pub request: Step,
    /// The response's direction.
    pub response: Step,
    /// A server has been chosen.
    pub chosen: bool,
    /// The server has the request's head.
    pub sent: bool,
    /// The bytes are no HTTP.
    pub raw: bool,
    /// The request waits for the end of the client's handshake.
    pub handshake: bool,
    /// A server is asked whether the request may pass.
    pub authorizing: bool,
    /// The client's password is being checked.
    pub verifying: bool,
}

impl State {
    /// How an exchange stands. `blocked`: the sinks of the request and of the response have no room.
    pub fn of(exchange: &Exchange, chosen: bool, blocked: [bool; 2]) -> Self {
        let step = |phase, blocked| match phase {
            Phase::Awaiting => Step::Waiting,
            Phase::Streaming => Step::Open { blocked },
            Phase::Draining => Step::Dropped,
            Phase::Complete => Step::Done,
        };
        Self {
            request: step(exchange.request(), blocked[0]),
            response: step(exchange.response(), blocked[1]),
            chosen,
            sent: exchange.has_server(),
            raw: exchange.is_tunnel(),
            handshake: exchange.awaits_handshake(),
            authorizing: exchange.is_authorizing(),
            verifying: exchange.is_verifying(),
        }
    }

    /// What the request's direction waits for.
    pub fn request_wait(&self) -> Option<Wait> {
        match self.request {
            Step::Open { blocked: true } => Some(Wait::RequestRoom),
            Step::Open { .. } if self.raw => Some(Wait::Tunnel),
            Step::Open { .. } => Some(Wait::RequestBody),
            Step::Dropped => Some(Wait::RequestRest),
            Step::Waiting | Step::Done => None,
        }
    }

    /// What the response's direction waits for.
    pub fn response_wait(&self) -> Option<Wait> {
        match self.response {
            _ if self.handshake => Some(Wait::Handshake),
            Step::Open { blocked: true } => Some(Wait::ResponseRoom),
            Step::Open { .. } if self.raw => Some(Wait::Tunnel),
            Step::Open { .. } => Some(Wait::ResponseBody),
            Step::Waiting if self.verifying => Some(Wait::Password),
            Step::Waiting if !self.chosen => None,
            Step::Waiting if self.authorizing => Some(Wait::Authorization),
            Step::Waiting if !self.sent => Some(Wait::Connection),
            // The request comes first, and its direction has a deadline.
            Step::Waiting if self.request != Step::Done => None,
            Step::Waiting => Some(Wait::ResponseHead),
            Step::Dropped | Step::Done => None,
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
    /// When the try under way must have led to a response.
    pub try_until: Option<Millis>,
    /// When the unwanted rest of a request must have come.
    pub rest_until: Option<Millis>,
    /// When the exchange must be over, no matter which side is waited for. Not for the rest of a request whose response is complete.
    pub total_until: Option<Millis>,
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
    for Direction { wait, progress, bytes } in [request, response] {
        let Some(wait) = wait else { continue };
        let since = progress.since;
        if wait == Wait::Password {
            limits.authorized_until.into_iter().for_each(|at| consider(at, wait, Reason::Total));
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
            // Of these no direction of an exchange waits; `Tunnel` and `Password` have nobody to blame.
            Wait::RequestHead | Wait::LastBytes | Wait::ClientEnd | Wait::Tunnel | Wait::Exchange | Wait::Password => {}
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

/// The deadline of a client's connection that closes, from `now` on: of [`Wait::LastBytes`] or [`Wait::ClientEnd`].
/// `idle`: the client's idle limit.
pub fn closing(now: Millis, wait: Wait, idle: Millis) -> Millis {
    now + if wait == Wait::ClientEnd { LINGER } else { idle }
}

/// The table as Markdown, for the documentation.
pub fn table() -> String {
    let mut text = String::from(
        "| what the gateway waits for | who causes the wait | limits | before the response's head has been sent | after that |\n\
         |---|---|---|---|---|\n",
    );
    for row in TABLE {
        let (party, section) = match row.party {
            _ if row.wait == Wait::Password => ("nobody", "the gateway's own"),
            _ if row.wait == Wait::Exchange => ("nobody", "`[[host]]`, `[[host.route]]`"),
            Some(Party::Client) => ("the client", "`[limits]`"),
            Some(Party::Upstream) => ("the upstream", "`[[upstream]]`"),
            None => ("nobody", "`[[upstream]]`"),
        };
        let settings: Vec<String> = row.settings.iter().map(|s| quoted(s)).collect();
        let line = [row.name, party, &format!("{section}: {}", settings.join(", ")), row.before, row.after].join(" | ");
        text.push_str(&format!("| {} |\n", line.replace("|  |", "| |")));
    }
    text
}

/// Names of settings stand in code.
fn quoted(setting: &str) -> String {
    let words = setting.split(' ').map(|w| if w.contains('_') { format!("`{w}`") } else { w.to_owned() });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "deadlines_tests.rs"]
mod tests;
