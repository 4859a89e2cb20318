//! One request and its response: two one-way flows between a client's side and an upstream's.
//!
//! The two ends never see each other. A source decodes into a flow, and the pieces go to the sink as long as it has credit.
//! How far both have come, and what follows from what happens, is the state machine's to say (`sealane-exchange`); the
//! submodules `request` and `response` report events to it, and `executor` does what it says.
//!
//! | about | module |
//! |---|---|
//! | the way of a request | `routing` finds the route and does what it says; `routed` is what the exchange knows of its way |
//! | who may pass | `credentials` (passwords), `authorize` (another server is asked) |
//! | what the gateway writes itself | `forwarded` (requests), `response_headers`, `redirection` |
//! | bodies | `flow` is one direction, `request` and `response` report what moves, `encoding` compresses |
//! | what waits, time and failure | `resume` (sources that waited for room), `expiry`, `failure`, `retries`, `waste` |

pub(crate) mod authorize;
pub(crate) mod credentials;
pub(crate) mod encoding;
pub(crate) mod exchanges;
pub(crate) mod executor;
pub(crate) mod expiry;
pub(crate) mod failure;
pub(crate) mod flow;
pub(crate) mod forwarded;
pub(crate) mod priority;
mod redirection;
pub(crate) mod request;
pub(crate) mod response;
mod response_headers;
pub(crate) mod resume;
mod retries;
pub(crate) mod routed;
mod routing;
pub(crate) mod streams;
pub(crate) mod waste;
pub(crate) mod websocket;

use crate::Failure;
use crate::client::identity::Client;
use crate::counters::{Count, Counters};
use crate::exchange::authorize::{Question, asked_about};
use crate::exchange::credentials::Verification;
use crate::exchange::flow::Flow;
use crate::exchange::routed::Routed;
use crate::exchange::streams::{ClientStream, UpstreamStream};
use crate::memory::Held;
use crate::mirrors::Copying;
use crate::snapshot::ClientLimits;
use crate::traces::Trace;
use crate::upstream::balance::Lease;
use crate::upstream::group::LaneUpstream;
use sealane_exchange as machine;
use sealane_exchange::deadlines::{LINGER, Party};
use sealane_exchange::{Actions, Event, Kind};
use sealane_http::{BodyLength, Fields, Known, Method, ParseError, RequestHead, ResponseHead, Version};
use sealane_lane::{Micros, Millis};
use std::net::IpAddr;
use std::rc::Rc;

/// How the types of gRPC's messages begin.
pub(crate) const GRPC: &[u8] = b"application/grpc";

/// Whether a message's `Content-Type` begins so. Types do not depend on case (RFC 9110 §8.3.1).
pub(crate) fn is_of_type(fields: &Fields, with: &[u8]) -> bool {
    let value = fields.get(Known::ContentType).and_then(|v| v.get(..with.len()));
    value.is_some_and(|v| v.eq_ignore_ascii_case(with))
}

/// Why an exchange ends otherwise than with its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    No,
    /// `total_timeout` of its route is over.
    TooLong,
    /// An upgraded or relayed connection on which neither side has sent anything for too long.
    Idle,
    /// The lane drains, and its time is over.
    Drain,
    /// The client sent or took nothing for too long.
    ClientIdle,
    /// The client sent or took less than `min_body_rate`.
    ClientSlow,
}

/// What is believed of what a request says of its client (`Forwarded` and the like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claims {
    /// Nothing: the connection's peer is no proxy that may say so, and the fields were removed.
    Removed,
    /// The fields are passed on, and name nobody in particular.
    Kept,
    /// The fields are passed on, and this is the client.
    Client(IpAddr),
}

/// A session of relayed datagrams that has ended.
pub(crate) struct EndedSession {
    /// Its connection.
    pub stream: ClientStream,
    /// When it began.
    pub began: Micros,
    pub group: Rc<LaneUpstream>,
    /// The last server: an index into the group's.
    pub server: usize,
    /// Those of the client, and those of the server.
    pub bytes: (u64, u64),
    /// Why the server failed.
    pub failure: Option<Failure>,
    /// Why it has ended.
    pub ending: Ending,
}

/// When an exchange got on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// When the request's head was whole.
    pub started: Micros,
    /// When the request's head was sent to the server in use.
    pub sent: Micros,
    /// When the head of the final response was there; 0: it is not.
    pub headed: Micros,
}

/// A request with its response, or a relayed connection. Its fields are visible in this folder only: adapters report what comes
/// and ask where an exchange stands, and logs ask for what they tell.
pub(crate) struct Exchange {
    /// How far it has come, and what follows from what happens.
    machine: machine::Exchange,
    request: RequestHead,
    response: ResponseHead,
    client_stream: ClientStream,
    /// Its number on its connection, for logs.
    number: u32,
    upstream_stream: Option<UpstreamStream>,
    upstream: Option<Rc<LaneUpstream>>,
    /// The way that was chosen for it.
    routed: Routed,
    request_body: Flow,
    response_body: Flow,
    /// The client's request, while `request` and `body` are those of a question about it.
    question: Option<Box<Question>>,
    /// The copy of the request for its mirror.
    copy: Copying,
    /// There while the client's password is being checked.
    verification: Option<Verification>,
    /// What the request's body is like, as it came.
    body: BodyLength,
    /// The most bytes that the request's body may have (else 413).
    max_body: u64,
    /// What is believed of what the request says of its client.
    claims: Claims,
    /// Status sent to the client.
    status: u16,
    /// Connections tried.
    attempts: usize,
    /// The server in use: an index into the upstream's.
    server: usize,
    times: Times,
    /// The trace that it is part of.
    trace: Trace,
    ending: Ending,
    /// It is counted as an open upgraded connection.
    is_upgraded: bool,
    /// When the response of a stream had been sent whose request is still read and thrown away.
    drains_since: Option<Millis>,
    /// What the response holds with the upstream's connection.
    held: Held,
}

impl Exchange {
    pub fn new(client_stream: ClientStream) -> Self {
        Self {
            machine: machine::Exchange::default(),
            request: RequestHead::new(),
            response: ResponseHead::new(),
            client_stream,
            number: 0,
            upstream_stream: None,
            upstream: None,
            routed: Routed::default(),
            request_body: Flow::new(Party::Client),
            response_body: Flow::new(Party::Upstream),
            question: None,
            copy: Copying::None,
            verification: None,
            body: BodyLength::None,
            max_body: u64::MAX,
            claims: Claims::Removed,
            status: 0,
            attempts: 0,
            server: 0,
            times: Times::default(),
            trace: Trace::default(),
            ending: Ending::No,
            is_upgraded: false,
            drains_since: None,
            held: Held::default(),
        }
    }

    /// The lane drains, and its time is over. One whose response has been sent whole has ended before.
    pub fn end_by_drain(&mut self) {
        if self.ending == Ending::No && self.drains_since.is_none() {
            self.ending = Ending::Drain;
        }
    }

    /// From now on both directions carry another protocol than HTTP, or a relayed connection: it is counted as open until its end.
    pub fn note_upgraded(&mut self, counters: &Counters) {
        self.is_upgraded = true;
        counters.count(Count::UpgradedOpen);
    }

    /// Where the request comes from, and the response goes to.
    #[inline]
    pub fn client_stream(&self) -> ClientStream {
        self.client_stream
    }

    /// A request has come on this stream, which is the one with this number on its connection.
    #[inline]
    pub fn arrive(&mut self, stream: ClientStream, number: u32, now: Micros) {
        (self.client_stream, self.number, self.times.started) = (stream, number, now);
    }

    /// The request is another stream's.
    #[cfg(test)]
    pub fn comes_on(&mut self, stream: ClientStream) {
        self.client_stream = stream;
    }

    /// How far it has come, and what follows from what happens.
    #[inline]
    pub fn machine(&self) -> &machine::Exchange {
        &self.machine
    }

    /// Reports an event to the state machine. The executor does what follows.
    #[inline]
    pub fn report(&mut self, event: Event) -> Actions {
        self.machine.on(event)
    }

    /// The request's head: as the client sent it, then as it goes to the server.
    #[inline]
    pub fn request(&self) -> &RequestHead {
        &self.request
    }

    #[inline]
    pub fn request_mut(&mut self) -> &mut RequestHead {
        &mut self.request
    }

    /// The response's head: as the server sent it, then as it goes to the client.
    #[inline]
    pub fn response(&self) -> &ResponseHead {
        &self.response
    }

    #[inline]
    pub fn response_mut(&mut self) -> &mut ResponseHead {
        &mut self.response
    }

    /// Both, to copy something from the request into the response.
    pub fn heads_mut(&mut self) -> (&RequestHead, &mut ResponseHead) {
        (&self.request, &mut self.response)
    }

    /// The client's request, also while a server is asked about it.
    pub fn client_request(&self) -> &RequestHead {
        self.question.as_deref().map_or(&self.request, asked_about)
    }

    /// Whether its request is a question to another server about the client's request.
    #[inline]
    fn is_question(&self) -> bool {
        self.question.is_some()
    }

    /// What the request's body is like, as it came.
    #[inline]
    pub fn body(&self) -> BodyLength {
        self.body
    }

    /// The way that was chosen for the request.
    #[inline]
    pub fn routed(&self) -> &Routed {
        &self.routed
    }

    #[inline]
    pub fn routed_mut(&mut self) -> &mut Routed {
        &mut self.routed
    }

    /// Its number on its connection, for logs.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The status that was sent to the client; 0: none so far.
    #[inline]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// This status is the answer, as far as logs and counters go.
    pub fn note_status(&mut self, status: u16) {
        self.status = status;
    }

    /// The group that the request goes to.
    #[inline]
    pub fn upstream(&self) -> Option<&Rc<LaneUpstream>> {
        self.upstream.as_ref()
    }

    /// The server in use: an index into those of its group.
    #[inline]
    pub fn server(&self) -> usize {
        self.server
    }

    /// A try begins at this server, which has lent a place for it.
    #[inline]
    pub fn begin_try(&mut self, server: usize, lease: Lease, now: Millis) {
        self.server = server;
        self.routed.begin_try(lease, now);
    }

    /// When it got on.
    #[inline]
    pub fn times(&self) -> &Times {
        &self.times
    }

    #[cfg(test)]
    pub fn times_mut(&mut self) -> &mut Times {
        &mut self.times
    }

    /// How long a request that is over took to its first byte and in total, as far as that is recorded.
    #[inline]
    pub fn durations(&self, now: Micros) -> [Option<Micros>; 2] {
        let Times { started, headed, .. } = self.times;
        let first_byte = (headed > 0).then(|| headed.saturating_sub(started));
        // How long a connection of another protocol is open says nothing about how fast the server is.
        let total = (!self.machine.is_tunnel()).then(|| self.until(now).saturating_sub(started));
        [first_byte, total]
    }

    /// The trace that it is part of.
    #[inline]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// It is part of this trace.
    pub fn join_trace(&mut self, trace: Trace) {
        self.trace = trace;
    }

    /// A connection is made for it since then; 0: there is one already.
    #[inline]
    pub fn note_connecting(&mut self, since: Micros) {
        self.trace.note_connecting(since);
    }

    /// The copy of the request for its mirror.
    #[inline]
    pub fn copying(&self) -> &Copying {
        &self.copy
    }

    pub fn copying_mut(&mut self) -> &mut Copying {
        &mut self.copy
    }

    /// Why it ends otherwise than with its response.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// The response holds so much with the upstream's connection. What it held before, if that was another amount.
    #[inline]
    fn hold(&mut self, held: Held) -> Option<Held> {
        if self.held == held {
            return None;
        }
        Some(std::mem::replace(&mut self.held, held))
    }

    /// Where the request goes, if that is known.
    #[inline]
    pub fn upstream_stream(&self) -> Option<UpstreamStream> {
        self.upstream_stream
    }

    /// The request waits for a connection, which may be for it alone.
    #[inline]
    pub fn await_connection(&mut self, stream: UpstreamStream) {
        self.upstream_stream = Some(stream);
    }

    /// The request does not wait for its connection any more, nor goes over it.
    pub fn leave_connection(&mut self) {
        self.upstream_stream = None;
    }

    /// The way of the request's body.
    #[inline]
    pub fn request_body(&self) -> &Flow {
        &self.request_body
    }

    #[inline]
    pub fn request_body_mut(&mut self) -> &mut Flow {
        &mut self.request_body
    }

    /// The way of the response's body.
    #[inline]
    pub fn response_body(&self) -> &Flow {
        &self.response_body
    }

    #[inline]
    pub fn response_body_mut(&mut self) -> &mut Flow {
        &mut self.response_body
    }

    /// A server is selected, and a connection to it, from now on.
    #[inline]
    pub fn begin_dispatch(&mut self, now: Millis) {
        self.response_body.progress.begin(now);
        self.trace.note_connecting(0);
    }

    /// How many tries have been lost.
    pub fn attempts(&self) -> usize {
        self.attempts
    }

    /// A try is lost, which counts if `uses_try`.
    pub fn count_try(&mut self, uses_try: bool) {
        self.attempts += usize::from(uses_try);
    }

    /// Begins with the request whose head is in place. `upgrade`: it asks to switch protocols. `is_early`: it came as early data.
    #[inline]
    pub fn begin(&mut self, body: BodyLength, upgrade: bool, is_early: bool, limits: &ClientLimits) {
        self.body = body;
        let method = self.request.method();
        let h1 = matches!(self.client_stream, ClientStream::H1(_));
        self.max_body = limits.max_body;
        let kind = match () {
            () if upgrade && h1 && websocket::is_named(&self.request) => Kind::WebSocket,
            () if upgrade && h1 => Kind::Upgrade,
            () if upgrade => Kind::ExtendedConnect,
            () if method == Method::Connect => Kind::Connect,
            () => Kind::Message,
        };
        self.machine = machine::Exchange::new(machine::Request {
            kind,
            has_body: !self.body.is_empty(),
            is_safe: method.is_safe(),
            is_idempotent: method.is_idempotent(),
            is_early,
            is_marked_early: self.request.fields.contains(Known::EarlyData),
            ..machine::Request::default()
        });
    }

    /// The limit of the request's route replaces that of `[limits]`.
    #[inline]
    pub fn limit_body(&mut self, max_body: u64) {
        self.max_body = max_body;
    }

    /// How much of the request's body is still to come, if that was announced.
    pub fn announced_rest(&self) -> Option<u64> {
        match self.body {
            BodyLength::Known(n) => Some(n.saturating_sub(self.request_body.bytes)),
            BodyLength::None | BodyLength::Chunked | BodyLength::UntilClose => None,
        }
    }

    /// Whether the request announces a longer body than it may have.
    #[inline]
    pub fn announces_too_much(&self) -> bool {
        matches!(self.body, BodyLength::Known(n) if n > self.max_body)
    }

    /// Begins with a request that could not be read, for an error or in time: all that can follow is a refusal.
    pub fn begin_unread(&mut self, version: Version, error: Option<ParseError>) {
        if !error.is_some_and(ParseError::leaves_head) {
            // What the log shows must not be what the attacker chose.
            self.request.clear();
            self.request.version = version;
            let _ = self.request.set_target(b"-");
        }
        self.machine = machine::Exchange::new(machine::Request { has_body: true, ..Default::default() });
    }

    /// Begins with a connection that is relayed to this group. `name`: what its hello asks for.
    pub fn begin_relay(&mut self, name: Option<&str>, upstream: &Rc<LaneUpstream>, peer: IpAddr) {
        self.request.clear();
        // What is put here is visible ASCII, or is left out.
        let _ = self.request.set_method(b"TCP");
        if name.is_none_or(|n| self.request.set_target(n.as_bytes()).is_err()) {
            let _ = self.request.set_target(b"-");
        }
        self.body = BodyLength::None;
        let facts = machine::Request { kind: Kind::Relay, has_body: true, ..Default::default() };
        self.machine = machine::Exchange::new(facts);
        self.upstream = Some(upstream.clone());
        Routed::preference(self, upstream, peer);
    }

    /// The server of a relayed connection has accepted: bytes pass as they are.
    pub fn note_relayed(&mut self) {
        self.routed.succeeded();
        self.status = 200;
        self.request_body.framing = BodyLength::UntilClose;
        self.response_body.framing = BodyLength::UntilClose;
    }

    /// A session of relayed datagrams that has ended, as the access log tells of it.
    pub fn of_session(ended: EndedSession) -> Self {
        let mut x = Self::new(ended.stream);
        x.arrive(ended.stream, 1, ended.began);
        // Both are visible ASCII, and short.
        let _ = x.request.set_method(b"UDP");
        let _ = x.request.set_target(b"-");
        let facts = machine::Request { kind: Kind::Relay, has_body: true, ..Default::default() };
        x.machine = machine::Exchange::new(facts);
        (x.upstream, x.server) = (Some(ended.group), ended.server);
        x.routed.go_on_with_try((ended.began / 1000).max(1));
        (x.request_body.bytes, x.response_body.bytes) = ended.bytes;
        x.status = if ended.failure.is_some() { 502 } else { 200 };
        x.routed.note_failure(ended.failure);
        x.ending = ended.ending;
        x
    }

    /// Begins with a copy of the request of a client at `peer`.
    pub fn begin_copy(
        &mut self,
        request: RequestHead,
        (body, trailers): (BodyLength, Fields),
        upstream: Rc<LaneUpstream>,
        peer: IpAddr,
        now: Micros,
    ) {
        let method = request.method();
        self.request = request;
        self.body = body;
        self.request_body.trailers = trailers;
        self.times.started = now;
        self.machine = machine::Exchange::new(machine::Request {
            has_body: !body.is_empty(),
            is_safe: method.is_safe(),
            is_idempotent: method.is_idempotent(),
            is_marked_early: self.request.fields.contains(Known::EarlyData),
            ..machine::Request::default()
        });
        Routed::preference(self, &upstream, peer);
        self.upstream = Some(upstream);
    }

    /// Begins as a test has it.
    #[cfg(test)]
    pub fn begin_as(&mut self, facts: machine::Request, body: BodyLength, upstream: Option<Rc<LaneUpstream>>) {
        (self.machine, self.body, self.upstream) = (machine::Exchange::new(facts), body, upstream);
    }

    /// The address of the request's client: what trusted proxies tell, else the connection's. Limits, hashing, the access
    /// log and what upstreams are told go by it.
    #[inline]
    pub fn client_ip(&self, client: &Client) -> IpAddr {
        self.told().unwrap_or(client.peer().ip())
    }

    /// The client, as trusted proxies tell.
    #[inline]
    pub fn told(&self) -> Option<IpAddr> {
        match self.claims {
            Claims::Client(ip) => Some(ip),
            Claims::Removed | Claims::Kept => None,
        }
    }

    /// Whether the request is a gRPC call, which HTTP/1.1 cannot carry: a client must not choose other time limits for its
    /// upload by a header alone.
    pub fn is_grpc_call(&self) -> bool {
        !matches!(self.client_stream, ClientStream::H1(_)) && is_of_type(&self.request.fields, GRPC)
    }

    /// When the response had been sent, of a stream whose request is still read and thrown away.
    #[inline]
    pub fn drains_since(&self) -> Option<Millis> {
        self.drains_since
    }

    /// Whether the rest of the request was read for as long, or as far, as that of any client.
    pub fn has_drained_enough(&self, now: Millis) -> bool {
        self.drains_since().is_some_and(|since| now >= since + LINGER || self.machine.has_drained_enough())
    }

    /// When the response had been sent, if it is over `now`.
    #[inline]
    pub fn until(&self, now: Micros) -> Micros {
        self.drains_since().map_or(now, |since| (since * 1000).max(self.times.started))
    }

    /// Makes it as new, keeping the memory of its heads within reason.
    pub fn recycle(&mut self) {
        self.request.clear();
        self.request.shrink_to(4096);
        self.response.clear();
        self.response.shrink_to(4096);
        self.question = None;
        self.copy = Copying::None;
        self.verification = None;
        self.upstream_stream = None;
        self.upstream = None;
        self.routed = Routed::default();
        self.request_body.reset();
        self.response_body.reset();
        self.max_body = u64::MAX;
        self.claims = Claims::Removed;
        self.number = 0;
        self.server = 0;
        self.status = 0;
        self.times = Times::default();
        self.trace.clear();
        self.attempts = 0;
        self.ending = Ending::No;
        self.is_upgraded = false;
        self.drains_since = None;
        self.held = Held::default();
    }
}
