//! An HTTP/2 connection with a client: it begins, is driven, runs out of time, ends. `h2` and `h2_responses` have its streams.
//!
//! ```text
//! plaintext ─► guard ─► pipe ─► h2 ─ poll_accept ─► h2_request
//!                                └── woken streams ─► h2_client_woken
//! stage ◄────────────── pipe ◄─ h2 ◄─ responses (h2_responses)
//! ```
//! The connection is driven when bytes have come, and once per turn of the lane after something was given to it
//! (`Connections::take_shared`), so that many streams' frames leave in one record. Otherwise `h2` has nothing to do, and to ask it would
//! cost as much as a part of a request.

use crate::client::connection::{client_gone, handshake_failed};
use crate::client::h2::{Stream, h2_request};
use crate::client::state::Protocol;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::executor::abort_exchange;
use crate::exchange::expiry::{check_deadlines, sweep};
use crate::exchange::streams::ClientStream;
use crate::exchange::waste;
use crate::exchange::waste::client_wasted;
use crate::flush::flush_driven;
use crate::h2::backlog::{BITE, Incoming, NO_BUDGET};
use crate::h2::guard::{Fault, Guard};
use crate::h2::pipe::Pipe;
use crate::h2::window::Window;
use crate::h2::{SEND_BUFFER, h2_woken};
use crate::service::{Proxy, log_exchange};
use crate::settings::LaneSettings;
use crate::snapshot::ClientLimits;
use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use sealane_exchange::deadlines::{ConnectionLimits, ConnectionState, ConnectionWait};
use sealane_http::ParseError;
use sealane_lane::{Context, Key, Millis};
use slab::Slab;
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll, Waker};
use std::time::Duration;

/// Bytes of request bodies that a client may have under way: per stream, and on all streams of a connection together,
/// which is how much memory it can make us hold.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 512 * 1024;
/// Streams that were reset, and how long they are known: what is still on its way for them is ignored.
const RESET_STREAMS: usize = 256;
const RESET_KNOWN_FOR: Duration = Duration::from_secs(3);
/// Priorities that are kept of streams that are not open yet (RFC 9218 §7).
const EARLY_UPDATES: usize = 64;

enum State {
    /// The client's preface and first SETTINGS are awaited.
    Handshake(server::Handshake<Pipe, Bytes>),
    Open(server::Connection<Pipe, Bytes>),
}

pub(crate) struct H2Client {
    state: State,
    pub(super) pipe: Pipe,
    pub(super) guard: Guard,
    pub(super) streams: Slab<Stream>,
    /// Most bytes of a list of fields, by the rules that held when the connection began.
    pub(super) list_limit: usize,
    /// Bytes given to `h2` since it last wrote.
    pub(super) fed: usize,
    /// What the client lets us send on all streams together.
    pub(super) window: Window,
    /// The last stream that the client has opened.
    pub(super) last_id: u32,
    /// How many streams wait for room on the wire or in the client's window, by urgency.
    pub(super) waiting: [u16; 8],
    /// Counts turns of streams, for taking them in turn.
    pub(super) turns: u64,
    /// Since when there is no stream.
    pub(super) idle_since: Millis,
    /// When data was last given to `h2`.
    pub(super) progress: Millis,
    /// Bytes that waited to be sent when that was last looked at.
    waited: usize,
    /// When the client was told to open no more streams.
    leaving_since: Option<Millis>,
    /// The client does what it must not, and is told so.
    at_fault: bool,
    /// Streams that `h2` has reset for the client's faults.
    faults: u32,
    /// Streams that were refused.
    refused: u32,
    /// Requests that `h2` has answered with 431 itself: their heads were too large.
    too_large: u32,
}

#[expect(clippy::large_enum_variant, reason = "it lives on the stack, for one step")]
enum Polled {
    Request(Request<RecvStream>, SendResponse<Bytes>),
    Pending,
    Closed(Option<h2::Error>),
}

impl H2Client {
    fn new(limits: &ClientLimits, now: Millis) -> Self {
        let pipe = Pipe::default();
        let handshake = server::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(limits.max_streams)
            .max_header_list_size(u32::try_from(limits.http.head).unwrap_or(u32::MAX))
            .max_send_buffer_size(SEND_BUFFER)
            .data_frame_budget(NO_BUDGET)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .reset_stream_duration(RESET_KNOWN_FOR)
            // `waste` has the budget for both, which time and requests that are served refill.
            .max_pending_accept_reset_streams(waste::BURST as usize)
            .max_local_error_reset_streams(None)
            .enable_connect_protocol()
            .handshake(pipe.clone());
        Self {
            state: State::Handshake(handshake),
            pipe,
            guard: Guard::new(now),
            streams: Slab::new(),
            list_limit: limits.http.head,
            fed: 0,
            window: Window::new(),
            last_id: 0,
            waiting: [0; 8],
            turns: 0,
            idle_since: now,
            progress: now,
            waited: 0,
            leaving_since: None,
            at_fault: false,
            faults: 0,
            refused: 0,
            too_large: 0,
        }
    }

    /// Lets `h2` read what there is and write what there is room for.
    fn poll(&mut self, stage: &mut Vec<u8>, room: usize) -> Polled {
        let before = stage.len();
        self.pipe.attach(stage, room);
        let mut cx = task::Context::from_waker(Waker::noop());
        let polled = loop {
            match &mut self.state {
                State::Handshake(handshake) => match Pin::new(handshake).poll(&mut cx) {
                    Poll::Ready(Ok(mut connection)) => {
                        if self.leaving_since.is_some() {
                            connection.graceful_shutdown();
                        }
                        self.state = State::Open(connection);
                    }
                    Poll::Ready(Err(e)) => break Polled::Closed(Some(e)),
                    Poll::Pending => break Polled::Pending,
                },
                State::Open(connection) => {
                    break match connection.poll_accept(&mut cx) {
                        Poll::Ready(Some(Ok((request, respond)))) => Polled::Request(request, respond),
                        Poll::Ready(Some(Err(e))) => Polled::Closed(Some(e)),
                        Poll::Ready(None) => Polled::Closed(None),
                        Poll::Pending => Polled::Pending,
                    };
                }
            }
        };
        self.pipe.detach(stage);
        let wrote = stage.get(before..).unwrap_or_default();
        let all = matches!(polled, Polled::Pending) && stage.len() < room;
        let wrote = self.window.wrote(wrote, all, self.guard.is_settled(), self.last_id);
        self.faults += wrote.faults;
        self.refused += wrote.refused;
        self.too_large += wrote.unknown_heads;
        self.fed = 0;
        polled
    }

    /// Lets `h2` read the rest of the input, or a bite of it where small frames may be many.
    fn allow_input(&mut self) {
        self.pipe.allow(self.guard.backlog().is_full().then_some(BITE));
    }

    /// Takes small frames that nobody has room for out of `h2`. Whether there is more input to read.
    fn relieve(&mut self) -> bool {
        if !self.guard.backlog().is_full() {
            return false;
        }
        for (_, Stream { body, waker, .. }) in &mut self.streams {
            if let Some(body) = body {
                body.drain(waker);
            }
        }
        if self.pipe.is_drained() {
            self.guard.backlog().clear();
        }
        self.pipe.is_bitten()
    }

    /// The client is told to open no more streams, and the connection ends with the last of them.
    pub fn shut_down(&mut self, now: Millis) {
        if self.leaving_since.is_none() {
            self.leaving_since = Some(now);
            if let State::Open(connection) = &mut self.state {
                connection.graceful_shutdown();
            }
        }
    }

    /// The client goes on opening streams though it was told not to. `h2` lets it, until it answers a PING.
    pub(super) fn ignores_goaway(&self, now: Millis) -> bool {
        self.leaving_since.is_some_and(|since| now > ConnectionWait::Goaway.until(since, &ConnectionLimits::default()))
    }

    /// GOAWAY, and the end.
    fn go_away(&mut self, reason: Reason) {
        if let State::Open(connection) = &mut self.state {
            connection.abrupt_shutdown(reason);
        }
    }

    /// Bytes that wait here: what has come and was not read, and what was read and not passed on, here or in `h2`.
    pub fn holds(&mut self) -> usize {
        let unread = self.streams.iter_mut().map(|(_, stream)| stream.body.as_mut().map_or(0, Incoming::held));
        self.pipe.waiting() + self.fed + unread.sum::<usize>()
    }

    /// Nothing of what the client has sent waits to be looked at.
    pub fn is_drained(&self) -> bool {
        self.pipe.is_drained()
    }

    /// `h2` has frames that the transport had no room for.
    pub fn has_unwritten(&self) -> bool {
        self.pipe.is_refused()
    }

    /// Streams wait for room on the wire or in the client's window.
    pub fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|n| *n > 0)
    }

    fn apply_priority_updates(&mut self) {
        let last_id = self.last_id;
        let updates = self.guard.updates();
        updates.retain(|&(id, priority)| {
            if let Some((_, stream)) = self.streams.iter_mut().find(|(_, s)| s.id == id) {
                if stream.transport_blocked {
                    self.waiting[usize::from(stream.priority.urgency)] -= 1;
                    self.waiting[usize::from(priority.urgency)] += 1;
                }
                stream.priority = priority;
            }
            // It may overtake its request.
            id > last_id
        });
        let most = updates.len().saturating_sub(EARLY_UPDATES);
        updates.drain(..most);
    }
}

/// Begins HTTP/2 on a client's connection.
pub(crate) fn h2_client_begin(
    connections: &mut Connections,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
    key: Key,
) {
    let limits = settings.limits().clone();
    let Some(client_conn) = connections.client(key) else { return };
    client_conn.protocol = Protocol::H2(Box::new(H2Client::new(&limits, cx.now())));
    let at = limits.until(ConnectionWait::RequestHead, cx.now());
    client_conn.wait_until(cx, key, at);
    counters.count(Count::H2Connections);
    connections.mark_for_flush(key);
}

/// Takes plaintext; `input` is a buffer to use again.
pub(crate) fn h2_client_take(proxy: &mut Proxy, cx: &mut Context, key: Key, input: &mut Vec<u8>) {
    let now = cx.now();
    let Some(h2) = proxy.connections.client(key).and_then(|f| f.protocol.h2_mut()) else { return };
    if input.is_empty() && h2.is_drained() {
        return;
    }
    let mut fault = None;
    if !input.is_empty() {
        fault = h2.guard.observe(input, now).err();
        h2.window.open(h2.guard.take_opened());
        h2.pipe.give(input);
    }
    if let Some(fault) = fault {
        if matches!(h2.state, State::Handshake(_)) {
            // The preface may be there by now; without it nobody could read a GOAWAY.
            h2_client_drive(proxy, cx, key);
        }
        // If it is gone, `h2` has found it too, and that was counted.
        h2_at_fault(&mut proxy.connections, &proxy.counters, key, fault);
        let Some(h2) = proxy.connections.client(key).and_then(|f| f.protocol.h2_mut()) else { return input.clear() };
        if matches!(h2.state, State::Handshake(_)) {
            input.clear();
            return h2_client_closed(proxy, cx, key, None);
        }
    }
    h2_client_drive(proxy, cx, key);
    flush_driven(&mut proxy.connections, &mut proxy.scratch, key);
    if let Some(client_conn) = proxy.connections.client(key)
        && let Some(since) = client_conn.protocol.h2().and_then(|h| h.guard.block_since())
    {
        // Without streams nobody would look before the connection has been idle for too long.
        let at = proxy.settings.limits().until(ConnectionWait::RequestHead, since);
        client_conn.look_by(cx, key, at);
    }
    match proxy.connections.client(key).and_then(|f| f.protocol.h2_mut()) {
        Some(h2) => h2.pipe.take_back(input),
        None => input.clear(),
    }
}

/// The client does what it must not: it is told so (GOAWAY) when the connection is next driven, and the connection ends.
pub(crate) fn h2_at_fault(connections: &mut Connections, counters: &Counters, key: Key, fault: Fault) {
    let Some(h2) = connections.client(key).and_then(|f| f.protocol.h2_mut()) else { return };
    if !std::mem::replace(&mut h2.at_fault, true) {
        let (reason, count) = match fault {
            Fault::Flood => (Reason::ENHANCE_YOUR_CALM, Count::H2Floods),
            Fault::PriorityUpdate => (Reason::PROTOCOL_ERROR, Count::H2Errors),
        };
        h2.go_away(reason);
        counters.count(count);
        connections.mark_for_flush(key);
    }
}

/// Lets the connection get on: new requests, woken streams, frames to send.
pub(crate) fn h2_client_drive(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    loop {
        if !h2_client_step(proxy, cx, key) {
            return;
        }
        h2_woken(proxy, cx);
        let Some(h2) = proxy.connections.client(key).and_then(|f| f.protocol.h2_mut()) else { return };
        if !h2.relieve() {
            return;
        }
    }
}

/// Lets `h2` read and write. False if the connection is over.
fn h2_client_step(proxy: &mut Proxy, cx: &mut Context, key: Key) -> bool {
    if let Some(h2) = proxy.connections.client(key).and_then(|f| f.protocol.h2_mut()) {
        h2.allow_input();
    }
    loop {
        let Proxy { connections, scratch, .. } = proxy;
        let Some(Conn::Client(client_conn)) = connections.get_mut(key) else { return false };
        if !client_conn.is_open() {
            return false;
        }
        let Protocol::H2(h2) = &mut client_conn.protocol else { return false };
        scratch.take_buffer(&mut client_conn.transport.stage);
        let room = client_conn.transport.frame_room() + client_conn.transport.stage.len();
        let polled = h2.poll(&mut client_conn.transport.stage, room);
        let faults = std::mem::take(&mut h2.faults);
        proxy.counters.add(Count::H2Refused, u64::from(std::mem::take(&mut h2.refused)));
        let too_large = std::mem::take(&mut h2.too_large);
        let pending = matches!(polled, Polled::Pending);
        match polled {
            Polled::Request(request, respond) => h2_request(proxy, cx, key, request, respond),
            Polled::Pending => {
                h2.apply_priority_updates();
                let H2Client { guard, streams, last_id, .. } = &mut **h2;
                guard.trailers().tidy(|id| id > *last_id || streams.iter().any(|(_, s)| s.id == id));
            }
            Polled::Closed(error) => {
                h2_client_closed(proxy, cx, key, error.as_ref());
                return false;
            }
        }
        for _ in 0..too_large {
            note_large_head(proxy, cx, key);
        }
        if faults > 0 {
            client_wasted(proxy, cx, key, faults);
        }
        if pending {
            return true;
        }
    }
}

/// Counts and logs a request that `h2` has answered with 431: it does not hand out heads that are too large.
fn note_large_head(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let mut x = proxy.exchanges.fresh(ClientStream::H2(key, u32::MAX));
    let number = proxy.connections.client(key).map_or(0, |client_conn| client_conn.client.next_request());
    x.arrive(ClientStream::H2(key, u32::MAX), number, cx.micros());
    x.begin_unread(sealane_http::Version::Http2, None);
    x.note_status(ParseError::HeadTooLarge.status());
    proxy.counters.count(Count::Requests);
    proxy.counters.parse_error(ParseError::HeadTooLarge);
    proxy.counters.status(x.status());
    log_exchange(&proxy.connections, &mut proxy.log, &proxy.counters, &proxy.settings, cx, &x);
    proxy.exchanges.recycle(x);
}

/// The connection is at its end: what `h2` has still written (GOAWAY) is sent.
fn h2_client_closed(proxy: &mut Proxy, cx: &mut Context, key: Key, error: Option<&h2::Error>) {
    match error.and_then(h2::Error::reason) {
        // Ours has been counted where it was found.
        Some(Reason::ENHANCE_YOUR_CALM) if error.is_some_and(h2::Error::is_library) => {
            proxy.counters.count(Count::H2Floods)
        }
        Some(Reason::NO_ERROR) | None => {}
        Some(_) if error.is_some_and(h2::Error::is_library) => proxy.counters.count(Count::H2Errors),
        Some(_) => {}
    }
    h2_abort_all(proxy, cx, key);
    let Some(client_conn) = proxy.connections.client(key) else { return };
    client_conn.protocol = Protocol::Unknown;
    client_conn.transport.finish();
    client_conn.begin_closing(cx, key, true, proxy.settings.limits());
    proxy.connections.mark_for_flush(key);
}

/// Calls off all that the client has asked for on this connection.
pub(crate) fn h2_abort_all(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    for exchange in h2_exchanges(&mut proxy.connections, key) {
        abort_exchange(proxy, cx, exchange);
    }
}

/// The exchanges of a client's connection.
pub(crate) fn h2_exchanges(connections: &mut Connections, key: Key) -> Vec<Key> {
    match connections.client(key).and_then(|f| f.protocol.h2()) {
        Some(h2) => h2.streams.iter().map(|(_, s)| s.exchange).collect(),
        None => Vec::new(),
    }
}

/// How long until a connection with streams is looked at again.
pub(super) fn next_look(limits: &ClientLimits) -> Millis {
    sweep([limits.idle_timeout, limits.header_timeout])
}

/// Looks at what has run out of time on a connection.
pub(crate) fn h2_client_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let limits = proxy.settings.limits().clone();
    let now = cx.now();
    let Some(client_conn) = proxy.connections.client(key) else { return };
    // Streams do not put the handshake off that is still to end behind early data.
    let handshake_until = client_conn.handshake_until();
    let flushed = client_conn.transport.is_flushed();
    let waits = client_conn.transport.waiting();
    let Protocol::H2(h2) = &mut client_conn.protocol else { return };
    if flushed || waits < std::mem::replace(&mut h2.waited, waits) {
        h2.progress = now;
    }
    let state = ConnectionState {
        handshake_until,
        head_since: match h2.state {
            State::Handshake(_) => Some(h2.idle_since),
            State::Open(_) => h2.guard.block_since(),
        },
        stuck_since: (!flushed).then_some(h2.progress),
        idle_since: h2.streams.is_empty().then_some(h2.idle_since),
    };
    let look = now + next_look(&limits);
    let mut next = match state.deadline(&limits.of_connection()) {
        Some(passed) if passed.at <= now && passed.wait == ConnectionWait::Request => {
            h2.go_away(Reason::NO_ERROR);
            limits.until(ConnectionWait::LastBytes, now)
        }
        Some(passed) if passed.at <= now => {
            proxy.counters.count(Count::ClientTimeouts);
            if passed.wait == ConnectionWait::Handshake {
                handshake_failed(proxy, key, "timeout");
            }
            return client_gone(proxy, cx, key);
        }
        // Without streams nothing is to be looked at before.
        Some(next) if next.wait == ConnectionWait::Request => next.at,
        Some(next) => look.min(next.at),
        None => look,
    };
    for exchange in h2_exchanges(&mut proxy.connections, key) {
        if let Some(at) = check_deadlines(proxy, cx, exchange) {
            next = next.min(at);
        }
    }
    if let Some(client_conn) = proxy.connections.client(key) {
        client_conn.expire_at(cx, key, next);
    }
    // A GOAWAY may wait to be sent.
    proxy.connections.mark_for_flush(key);
}
