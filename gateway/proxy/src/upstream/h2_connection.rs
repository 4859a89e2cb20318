//! An HTTP/2 connection to an upstream, which many exchanges share: it begins, is driven, runs out of time, is lost. `h2` has
//! its streams.
//!
//! ```text
//! dispatch ─► h2_join ─► h2_send_request ─► h2 ─► pipe ─► stage
//! plaintext ─► pipe ─► h2 ── woken streams ─► h2_server_woken
//! ```

use crate::Failure;
use crate::conn::Conn;
use crate::counters::Count;
use crate::exchange::expiry::sweep;
use crate::exchange::response::server_lost;
use crate::exchange::streams::{Later, UpstreamStream};
use crate::flush::flush_driven;
use crate::h2::backlog::{BITE, Backlog, NO_BUDGET};
use crate::h2::frames::{ACK, CONTINUATION, END_HEADERS, Event, Frames, HEADERS, Header, SETTINGS};
use crate::h2::pipe::Pipe;
use crate::h2::trailers::BlockWatch;
use crate::h2::{SEND_BUFFER, h2_woken};
use crate::lifecycle::close_connection;
use crate::memory::{Window, grant_window};
use crate::service::Proxy;
use crate::upstream::connection::{may_wait, upstream_lost};
use crate::upstream::h2::{Response, Stream, h2_send_request};
use crate::upstream::phase::{Purpose, UpstreamConnection, UpstreamPhase};
use bytes::Bytes;
use h2::Reason;
use h2::client::{self, SendRequest};
use sealane_exchange::deadlines::{ConnectionState, ConnectionWait};
use sealane_exchange::{Fit, Loss, Reset, Switching};
use sealane_http::ParseError;
use sealane_lane::{Context, Key, Millis};
use slab::Slab;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{self, Poll, Waker};
use std::time::Duration;

/// Bytes of response bodies that a server may have under way on a stream, on a connection with wide windows. The windows of all
/// streams fit into the connection's: a stream whose client takes nothing keeps its window, and if a few of them had the
/// connection's together, no other response would get on.
pub(super) const STREAM_WINDOW: u32 = 256 * 1024;
/// Streams that were reset, and how long they are known: what is still on its way for them is ignored. Clients call off
/// many gRPC streams at once, and servers go on for a round trip.
const RESET_STREAMS: usize = 1024;
const RESET_KNOWN_FOR: Duration = Duration::from_secs(5);
/// Frames of a server that may come for streams that are not known any more.
const STRAY_FRAMES: usize = 65_536;
/// Most streams on one connection, whatever the server allows.
const MOST_STREAMS: usize = 128;
/// Most bytes of a response's head and of its trailers.
pub(super) const HEAD_LIMIT: u32 = 64 * 1024;

/// Whether `h2` has applied the server's SETTINGS.
enum ServerSettings {
    Pending(Pending),
    Applied,
}

/// What is kept until `h2` has applied the server's SETTINGS.
struct Pending {
    /// They have come.
    have_come: bool,
    /// Exchanges that wait for them.
    waiting: VecDeque<Key>,
    /// What `h2` writes.
    written: Frames,
    /// The last stream that it has opened.
    opened: u32,
}

impl Pending {
    fn new() -> Self {
        Self { have_come: false, waiting: VecDeque::new(), written: Frames::new(), opened: 0 }
    }

    /// Notes which streams `h2` has opened.
    fn note_written(&mut self, written: &[u8]) {
        let opened = &mut self.opened;
        let Ok(()) = self.written.read(written, |event| {
            if let Event::Begins(Header { kind: HEADERS, stream, .. }) = event {
                *opened = stream.max(*opened);
            }
            Ok::<(), Infallible>(())
        });
    }
}

/// Whether a connection takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// The server takes no more requests here.
    Leaving,
    /// `h2` has ended. What is left are responses that have come whole, and that their clients have not taken yet.
    Over,
}

pub(crate) struct H2Upstream {
    pub(super) requests: SendRequest<Bytes>,
    pub(super) connection: client::Connection<Pipe, Bytes>,
    pub(super) pipe: Pipe,
    pub(super) frames: Frames,
    pub(super) backlog: Backlog,
    pub(super) streams: Slab<Stream>,
    /// Streams of which something came with the input that `h2` read last.
    pub(super) suspects: Suspects,
    /// Bytes given to `h2` since it last wrote.
    pub(super) fed: usize,
    settings: ServerSettings,
    /// The stream of the header block that came last, and its bytes.
    pub(super) block: (u32, u32),
    /// What was in header blocks that are not read yet.
    pub(super) blocks: BlockWatch,
    /// Requests sent so far.
    pub(super) served: u64,
    /// The head of a response has come: the server works, and this connection with it.
    pub(super) answered: bool,
    pub(super) life: Life,
    /// Since when there is no stream.
    pub(super) idle_since: Millis,
    /// When the server last took something.
    pub(super) progress: Millis,
    /// Bytes that waited to be sent when that was last looked at.
    waited: usize,
    /// When it was made.
    pub(super) began: Millis,
    /// How far its server may send ahead on a stream.
    window: Window,
}

/// How `h2` has ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Because the server sends too much of something.
    Limited,
    Otherwise,
}

/// Streams that may have made `h2` end the connection: it does not say which it was.
#[derive(Default)]
pub(super) struct Suspects {
    streams: [u32; 16],
    count: usize,
    last: u32,
}

impl Suspects {
    /// What came before has been read without an error, but for the last frame, of which a part may be still to come.
    fn keep_last(&mut self) {
        (self.streams[0], self.count) = (self.last, self.count.min(1));
    }

    fn note(&mut self, stream: u32) {
        if self.count > 0 && self.last == stream {
            return;
        }
        self.last = stream;
        if let Some(place) = self.streams.get_mut(self.count) {
            *place = stream;
        }
        self.count += 1;
    }

    /// Where there were more than are kept, everybody is one.
    pub(super) fn has(&self, stream: u32) -> bool {
        self.streams.get(..self.count).is_none_or(|streams| streams.contains(&stream))
    }
}

impl H2Upstream {
    /// Writes the preface. `None` if `h2` wants more than that at once, which it does not.
    fn new(now: Millis, window: Window, stage: &mut Vec<u8>) -> Option<Self> {
        let bytes = window.bytes(STREAM_WINDOW);
        let pipe = Pipe::default();
        let mut builder = client::Builder::new();
        builder
            .initial_window_size(bytes)
            .initial_connection_window_size(MOST_STREAMS as u32 * bytes)
            .max_header_list_size(HEAD_LIMIT)
            .max_send_buffer_size(SEND_BUFFER)
            .data_frame_budget(NO_BUDGET)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .reset_stream_duration(RESET_KNOWN_FOR)
            .max_local_error_reset_streams(Some(STRAY_FRAMES))
            .enable_push(false);
        pipe.attach(stage, usize::MAX);
        let polled = pin!(builder.handshake(pipe.clone())).poll(&mut task::Context::from_waker(Waker::noop()));
        pipe.detach(stage);
        let Poll::Ready(Ok((requests, connection))) = polled else { return None };
        Some(Self {
            requests,
            connection,
            pipe,
            frames: Frames::new(),
            backlog: Backlog::default(),
            streams: Slab::new(),
            suspects: Suspects::default(),
            fed: 0,
            settings: ServerSettings::Pending(Pending::new()),
            block: (0, 0),
            blocks: BlockWatch::of_server(),
            served: 0,
            answered: false,
            life: Life::Open,
            idle_since: now,
            progress: now,
            waited: 0,
            began: now,
            window,
        })
    }

    /// Lets `h2` read what there is and write what there is room for. `Some` when the connection is over.
    fn poll(&mut self, stage: &mut Vec<u8>, room: usize) -> Option<End> {
        let before = stage.len();
        self.pipe.attach(stage, room);
        let polled = Pin::new(&mut self.connection).poll(&mut task::Context::from_waker(Waker::noop()));
        self.pipe.detach(stage);
        self.fed = 0;
        if let ServerSettings::Pending(pending) = &mut self.settings {
            pending.note_written(stage.get(before..).unwrap_or_default());
        }
        match polled {
            Poll::Ready(Err(e)) if is_limit(&e) => Some(End::Limited),
            Poll::Ready(_) => Some(End::Otherwise),
            Poll::Pending => None,
        }
    }

    /// `h2` has frames that the transport had no room for.
    pub fn has_unwritten(&self) -> bool {
        self.life != Life::Over && self.pipe.is_refused()
    }

    /// Requests that `h2` has not sent, because SETTINGS that came before allow none. `opened`: the last stream that it has opened.
    fn unsent(&self, opened: u32) -> Vec<Key> {
        if !self.takes_none() {
            return Vec::new();
        }
        let streams = self.streams.iter().filter(|(_, s)| s.send.stream_id().as_u32() > opened);
        streams.map(|(_, s)| s.exchange).collect()
    }

    /// Whether the server's SETTINGS have come, and `h2` has not applied them as far as is known.
    fn has_new_settings(&self) -> bool {
        matches!(&self.settings, ServerSettings::Pending(pending) if pending.have_come)
    }

    /// `h2` has applied the server's SETTINGS. What was kept until then, once.
    fn end_pending(&mut self) -> Option<Pending> {
        match std::mem::replace(&mut self.settings, ServerSettings::Applied) {
            ServerSettings::Pending(pending) => Some(pending),
            ServerSettings::Applied => None,
        }
    }

    /// Exchanges that wait for the server's SETTINGS, while these are not applied.
    pub(super) fn waiting(&self) -> Option<&VecDeque<Key>> {
        match &self.settings {
            ServerSettings::Pending(pending) => Some(&pending.waiting),
            ServerSettings::Applied => None,
        }
    }

    /// The same, for more to wait or to be told that they need not wait any more.
    pub(super) fn waiting_mut(&mut self) -> Option<&mut VecDeque<Key>> {
        match &mut self.settings {
            ServerSettings::Pending(pending) => Some(&mut pending.waiting),
            ServerSettings::Applied => None,
        }
    }

    /// Notes what `h2` does not tell of the input.
    fn observe(&mut self, input: &[u8]) {
        let Self { frames, backlog, settings, block, blocks, suspects, streams, .. } = self;
        if self.pipe.is_drained() {
            suspects.keep_last();
        }
        let Ok(()) = frames.read(input, |event| {
            match event {
                Event::Begins(header) => {
                    backlog.note(header);
                    suspects.note(header.stream);
                    match header.kind {
                        HEADERS => *block = (header.stream, header.length),
                        CONTINUATION => block.1 = block.1.saturating_add(header.length),
                        _ => return Ok(()),
                    }
                    blocks.begin(header);
                }
                Event::Block(piece) => blocks.piece(piece),
                Event::Ends(header, _)
                    if matches!(header.kind, HEADERS | CONTINUATION) && header.flags & END_HEADERS != 0 =>
                {
                    blocks.end(header);
                }
                Event::Ends(Header { kind: SETTINGS, flags, .. }, _) if flags & ACK == 0 => {
                    if let ServerSettings::Pending(pending) = settings {
                        pending.have_come = true;
                    }
                }
                _ => {}
            }
            Ok::<(), Infallible>(())
        });
        // Servers go on for a while with streams that were called off.
        blocks.tidy(|id| streams.iter().any(|(_, s)| s.send.stream_id().as_u32() == id));
    }

    /// Lets `h2` read the rest of the input, or a bite of it where small frames may be many.
    fn allow_input(&mut self) {
        self.pipe.allow(self.backlog.is_full().then_some(BITE));
    }

    /// Takes small frames that nobody has room for out of `h2`. Whether there is more input to read.
    fn relieve(&mut self) -> bool {
        if !self.backlog.is_full() {
            return false;
        }
        for (_, Stream { response, waker, .. }) in &mut self.streams {
            if let Response::Coming(body) = response {
                body.drain(waker);
            }
        }
        if self.pipe.is_drained() {
            self.backlog.clear();
        }
        self.pipe.is_bitten()
    }

    /// Whether another request can be sent here.
    pub(super) fn has_room(&mut self) -> bool {
        let mut task = task::Context::from_waker(Waker::noop());
        match self.requests.poll_ready(&mut task) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => self.leave(),
            Poll::Pending => return false,
        }
        self.life == Life::Open && self.streams.len() < self.requests.current_max_send_streams().min(MOST_STREAMS)
    }

    /// The server's SETTINGS allow no request at all. RFC 9113 §5.1.2: for short durations only, but a connection that waits for
    /// better ones is of no use to anybody.
    pub(super) fn takes_none(&self) -> bool {
        self.requests.current_max_send_streams() == 0
    }

    /// Why a connection that has no room has none, where its server has said so.
    pub(super) fn refusal(&self) -> Option<Failure> {
        self.takes_none().then_some(Failure::NoStreams)
    }

    /// The server takes no more requests here.
    pub(super) fn leave(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Leaving;
        }
    }

    /// Which protocols the server can switch to on a stream. RFC 8441 §3: WebSocket, if its SETTINGS say so.
    pub(super) fn switching(&self) -> Switching {
        match () {
            () if self.requests.is_extended_connect_protocol_enabled() => Switching::WebSocket,
            () if matches!(self.settings, ServerSettings::Applied) => Switching::None,
            () => Switching::Unknown,
        }
    }

    /// Bytes of responses that have come and that clients have no room for, by exchange.
    pub fn held(&mut self) -> impl Iterator<Item = (Key, usize)> {
        self.streams.iter_mut().filter_map(|(_, stream)| match &mut stream.response {
            Response::Coming(body) => Some((stream.exchange, body.held())),
            Response::Whole { rest, .. } => Some((stream.exchange, rest.len())),
            Response::Awaited(_) | Response::Taken => None,
        })
    }

    /// Nothing of what the server has sent waits to be looked at, and more may come.
    pub fn is_drained(&self) -> bool {
        self.life != Life::Over && self.pipe.is_drained()
    }

    /// Lets `h2` read all input that is left, whatever it has to say to it. `Some` when the connection is over.
    fn read_all(&mut self) -> Option<End> {
        let mut discarded = Vec::new();
        self.pipe.allow(None);
        self.poll(&mut discarded, usize::MAX)
    }

    /// Takes what is left of responses that have come whole out of `h2`, which forgets where they end.
    fn keep_whole(&mut self) {
        for (_, Stream { response, waker, .. }) in &mut self.streams {
            if let Response::Coming(body) = response
                && let Some((rest, trailers)) = body.take_whole(waker)
            {
                *response = Response::Whole { rest, trailers: trailers.map(Box::new) };
            }
        }
    }
}

/// Finds a shared connection with such windows for an exchange, or one that is being made. False if there is none.
pub(crate) fn h2_join(proxy: &mut Proxy, cx: &mut Context, exchange: Key, window: Window) -> bool {
    let Some(x) = proxy.exchanges.get(exchange) else { return true };
    let Some(upstream) = x.upstream().cloned() else { return true };
    let (server, oldest, machine) = (x.server(), x.routed().oldest_connection(), *x.machine());
    let mut at = 0;
    while let Some(key) = upstream.shared(server, at) {
        at += 1;
        let Some(Conn::Upstream(upstream_conn)) = proxy.connections.get_mut(key) else { continue };
        match &mut upstream_conn.phase {
            UpstreamPhase::Shared(h2) if h2.window == window => {
                if oldest.is_some_and(|oldest| h2.began < oldest) || !h2.has_room() {
                    continue;
                }
                let waits = machine.fit(h2.switching()) == Fit::Unknown;
                if waits && !h2.waiting_mut().is_some_and(|waiting| may_wait(waiting, &proxy.exchanges, key)) {
                    continue;
                }
                if h2.served > 0 {
                    proxy.counters.count(Count::UpstreamReused);
                }
                h2_send_request(proxy, cx, exchange, key);
                return true;
            }
            UpstreamPhase::Making(making) => {
                let Purpose::ToShare { waiting, window: its } = &mut making.purpose else { continue };
                if *its != window || !may_wait(waiting, &proxy.exchanges, key) {
                    continue;
                }
                waiting.push_back(exchange);
                if let Some(x) = proxy.exchanges.get_mut(exchange) {
                    x.await_connection(UpstreamStream::Waiting(key));
                }
                return true;
            }
            UpstreamPhase::Shared(_) | UpstreamPhase::Busy(..) | UpstreamPhase::Idle | UpstreamPhase::Closing => {}
        }
    }
    false
}

/// A connection to an upstream turns out to speak HTTP/2: those who wait for it begin.
pub(crate) fn h2_upstream_begin(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let now = cx.now();
    let Proxy { connections, exchanges, scratch, .. } = proxy;
    let Some(UpstreamPhase::Making(making)) = connections.upstream(key).map(|b| &mut b.phase) else { return };
    let window = match making.purpose {
        Purpose::ToShare { window, .. } => window,
        // Nobody knew that it would be HTTP/2.
        Purpose::Exchange(exchange) | Purpose::OverH1(exchange) => {
            grant_window(connections, exchanges, exchange, STREAM_WINDOW)
        }
    };
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    scratch.take_buffer(&mut upstream_conn.transport.stage);
    let Some(h2) = H2Upstream::new(now, window, &mut upstream_conn.transport.stage) else {
        return upstream_lost(proxy, cx, key, false);
    };
    if !upstream_conn.phase.is_listed() {
        upstream_conn.upstream.share(upstream_conn.server, key);
    }
    let (exchange, mut waiting) = (upstream_conn.exchange(), upstream_conn.take_waiting());
    upstream_conn.phase = UpstreamPhase::Shared(Box::new(h2));
    waiting.extend(exchange);
    let at = upstream_conn.upstream.upstream.until(ConnectionWait::Request, cx.now());
    upstream_conn.deadline.set(cx, key, at);
    proxy.counters.count(Count::H2UpstreamConnections);
    for exchange in waiting {
        let Some(x) = proxy.exchanges.get(exchange) else { continue };
        // One that was called off and goes elsewhere does not wait here any more.
        if matches!(x.upstream_stream(), Some(UpstreamStream::Waiting(k) | UpstreamStream::H1(k)) if k == key) {
            h2_send_request(proxy, cx, exchange, key);
        }
    }
    proxy.connections.mark_for_flush(key);
}

/// Takes plaintext; `input` is a buffer to use again.
pub(crate) fn h2_upstream_take(proxy: &mut Proxy, cx: &mut Context, key: Key, input: &mut Vec<u8>) {
    let Some(h2) = proxy.connections.upstream(key).and_then(UpstreamConnection::h2_mut) else { return input.clear() };
    // As with clients: `h2` has nothing to do if nothing has come.
    if input.is_empty() && h2.is_drained() {
        return;
    }
    if !input.is_empty() {
        h2.observe(input);
        h2.pipe.give(input);
    }
    h2_upstream_drive(proxy, cx, key);
    flush_driven(&mut proxy.connections, &mut proxy.scratch, key);
    match proxy.connections.upstream(key).and_then(UpstreamConnection::h2_mut) {
        Some(h2) => h2.pipe.take_back(input),
        None => input.clear(),
    }
}

/// Goes on with the requests that wait for the server's SETTINGS, once `h2` has applied them.
fn h2_settings_applied(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return };
    // `h2` applies them when it has written that it has got them.
    if !h2.has_new_settings() || !h2.pipe.is_drained() || upstream_conn.transport.frame_room() == 0 {
        return;
    }
    let Some(Pending { waiting, opened, .. }) = h2.end_pending() else { return };
    let (unsent, why) = (h2.unsent(opened), h2.refusal());
    for exchange in waiting {
        if proxy.exchanges.waits_for(exchange, key) {
            h2_send_request(proxy, cx, exchange, key);
        }
    }
    // With the last of them the connection closes.
    for exchange in unsent {
        if let Some(x) = proxy.exchanges.get_mut(exchange) {
            x.routed_mut().note_hint(why);
        }
        server_lost(proxy, cx, exchange, Loss::Unprocessed);
    }
    let h2 = proxy.connections.upstream(key).and_then(|b| b.h2());
    if h2.is_some_and(|h2| h2.takes_none() && h2.streams.is_empty()) {
        h2_upstream_close(proxy, cx, key);
    }
}

/// Lets the connection get on.
pub(crate) fn h2_upstream_drive(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    loop {
        let Proxy { connections, scratch, .. } = proxy;
        let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
        let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return };
        if h2.life == Life::Over {
            return;
        }
        h2.allow_input();
        scratch.take_buffer(&mut upstream_conn.transport.stage);
        let room = upstream_conn.transport.frame_room() + upstream_conn.transport.stage.len();
        if let Some(end) = h2.poll(&mut upstream_conn.transport.stage, room) {
            return h2_ended(proxy, cx, key, end, false);
        }
        h2_woken(proxy, cx);
        let Some(h2) = proxy.connections.upstream(key).and_then(UpstreamConnection::h2_mut) else { return };
        if !h2.relieve() {
            if h2.has_new_settings() {
                h2_settings_applied(proxy, cx, key);
            }
            return;
        }
    }
}

/// A connection is over, and `h2` may not know yet.
pub(crate) fn h2_upstream_lost(proxy: &mut Proxy, cx: &mut Context, key: Key, timeout: bool) {
    h2_ended(proxy, cx, key, End::Otherwise, timeout);
}

/// A connection is over: each of its streams is told, but for those whose responses have come whole. Their clients get the
/// rest as they take it.
fn h2_ended(proxy: &mut Proxy, cx: &mut Context, key: Key, mut end: End, timeout: bool) {
    if end == End::Limited {
        h2_note_limit(proxy, key);
    }
    // What has come of responses before the end is theirs.
    h2_woken(proxy, cx);
    let Some(h2) = proxy.connections.upstream(key).and_then(UpstreamConnection::h2_mut) else { return };
    if h2.life == Life::Over {
        return;
    }
    if h2.read_all() == Some(End::Limited) && end != End::Limited {
        end = End::Limited;
        h2_note_limit(proxy, key);
    }
    h2_woken(proxy, cx);
    let Proxy { connections, exchanges, .. } = proxy;
    let Some(Conn::Upstream(upstream_conn)) = connections.get_mut(key) else { return };
    let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return };
    h2.keep_whole();
    h2.pipe.end();
    h2.life = Life::Over;
    // Sets the streams' ends, of which those that the server has never looked at are told apart.
    if h2.read_all() == Some(End::Limited) {
        end = End::Limited;
    }
    let mut task = task::Context::from_waker(Waker::noop());
    let answered = h2.answered;
    let mut lost = Vec::new();
    for (_, stream) in &mut h2.streams {
        if matches!(stream.response, Response::Whole { .. }) {
            // What is still sent to the server goes nowhere.
            if exchanges.get_mut(stream.exchange).is_some_and(|x| x.request_body_mut().unblock(cx.now())) {
                exchanges.go_on_later(Later::Client(stream.exchange));
            }
            continue;
        }
        let response = match &mut stream.response {
            Response::Awaited(response) => Some(Pin::new(response).poll(&mut task)),
            Response::Coming(_) | Response::Whole { .. } | Response::Taken => None,
        };
        let why = match &response {
            _ if end == End::Limited => Loss::Limited,
            Some(Poll::Ready(Err(e))) if !timeout || unprocessed(e) => {
                lost_with_connection(e, answered, h2.suspects.has(stream.send.stream_id().as_u32()))
            }
            _ if timeout => upstream_conn.upstream.silence(),
            awaited => Loss::of_connection(answered, awaited.is_some()),
        };
        lost.push((stream.exchange, why));
    }
    let is_empty = h2.streams.len() == lost.len();
    // Nothing has been sent for those who wait.
    let waiting = h2.waiting_mut().map(std::mem::take).unwrap_or_default().into_iter();
    lost.extend(waiting.filter(|x| exchanges.waits_for(*x, key)).map(|x| (x, Loss::Unprocessed)));
    if is_empty {
        close_connection(proxy, cx, key);
    } else {
        upstream_conn.upstream.unshare(upstream_conn.server, key);
    }
    for (exchange, why) in lost {
        server_lost(proxy, cx, exchange, why);
    }
}

/// Counts a connection that `h2` ends because the server sends too much of something. If that is the head of a response, the
/// request of this response fails for that, and the others because of their connection.
fn h2_note_limit(proxy: &mut Proxy, key: Key) {
    let Proxy { connections, exchanges, counters, .. } = proxy;
    counters.count(Count::H2UpstreamLimits);
    let Some(h2) = connections.upstream(key).and_then(|b| b.h2()) else { return };
    let (large, bytes) = h2.block;
    if bytes <= HEAD_LIMIT {
        return;
    }
    counters.parse_error(ParseError::HeadTooLarge);
    for (_, stream) in &h2.streams {
        if let Some(x) = exchanges.get_mut(stream.exchange) {
            let is_its = stream.send.stream_id().as_u32() == large;
            let its = Failure::Nonsense(ParseError::HeadTooLarge);
            x.routed_mut().note_hint(Some(if is_its { its } else { Failure::OtherHeadTooLarge }));
        }
    }
}

/// Closes a connection without streams. Requests that wait for the server's SETTINGS go elsewhere.
pub(super) fn h2_upstream_close(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let waiting = upstream_conn.take_waiting();
    close_connection(proxy, cx, key);
    for exchange in waiting {
        if proxy.exchanges.waits_for(exchange, key) {
            server_lost(proxy, cx, exchange, Loss::Unprocessed);
        }
    }
}

/// Looks at what has run out of time on a connection.
pub(crate) fn h2_upstream_timeout(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let now = cx.now();
    let Some(upstream_conn) = proxy.connections.upstream(key) else { return };
    let config = upstream_conn.upstream.clone();
    let config = &config.upstream;
    let UpstreamPhase::Shared(h2) = &mut upstream_conn.phase else { return };
    let stuck = h2.life != Life::Over && !upstream_conn.transport.is_flushed();
    let waits = upstream_conn.transport.waiting();
    if !stuck || waits < std::mem::replace(&mut h2.waited, waits) {
        h2.progress = now;
    }
    let is_empty = h2.streams.is_empty();
    let state = ConnectionState {
        stuck_since: stuck.then_some(h2.progress),
        idle_since: is_empty.then_some(h2.idle_since),
        ..ConnectionState::default()
    };
    let own = state.deadline(&config.of_connection());
    let passed = own.filter(|own| own.at <= now).map(|own| own.wait);
    if passed == Some(ConnectionWait::Room) {
        proxy.counters.count(Count::UpstreamTimeouts);
        return h2_upstream_lost(proxy, cx, key, true);
    }
    if passed == Some(ConnectionWait::Request) || is_empty && h2.life != Life::Open {
        return h2_upstream_close(proxy, cx, key);
    }
    let look = now + sweep([config.idle_timeout]);
    let next = match own {
        // Without streams nothing is to be looked at before.
        Some(own) if own.wait == ConnectionWait::Request => own.at,
        Some(own) => look.min(own.at),
        None => look,
    };
    upstream_conn.deadline.set(cx, key, next);
}

/// Whether the server promises that it has not looked at the request (RFC 9113 §8.7): a stream refused, or beyond the
/// last one of its GOAWAY, which is when `h2` gives a stream the GOAWAY as its error.
fn unprocessed(e: &h2::Error) -> bool {
    e.is_remote() && e.is_go_away() || server_reset(e) == Some(Reset::Refused)
}

/// How the server has reset a stream, if it has.
pub(super) fn server_reset(e: &h2::Error) -> Option<Reset> {
    (e.is_remote() && e.is_reset()).then(|| match e.reason() {
        Some(Reason::REFUSED_STREAM) => Reset::Refused,
        Some(Reason::CANCEL) => Reset::Cancelled,
        _ => Reset::Other,
    })
}

/// Why a request that waits for its response is lost with its connection. `answered`: the server has answered another one over
/// it. `suspect`: if `h2` ends the connection, this may be the response whose frames are wrong.
pub(super) fn lost_with_connection(e: &h2::Error, answered: bool, suspect: bool) -> Loss {
    if unprocessed(e) { Loss::Unprocessed } else { Loss::of_connection(answered, !(suspect && e.is_library())) }
}

/// Whether `h2` has ended the connection because the server sends too much of something.
pub(super) fn is_limit(e: &h2::Error) -> bool {
    e.is_library() && e.reason() == Some(Reason::ENHANCE_YOUR_CALM)
}
