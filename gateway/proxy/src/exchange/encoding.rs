//! Codes the bodies of responses on their way to the client: a stage between the source and the sink, for all versions of HTTP.
//!
//! ```text
//! response_room ◄─ room        is all out that was coded? has the client room? has the turn time left?
//! response_data ─► encode ─►  pending ─► send_encoded ─► the sink, as far as it has room
//! response_end  ─► finish ─►  pending ─► the sink, all of it
//! ```
//! The source gives no more before what was coded has gone to the sink. So a response holds an encoder, and what comes of one piece and of
//! what the encoder has kept ([`FLUSH_AFTER`]). That much goes to the sink at the end whether or not there is room.
//!
//! **A body that comes slowly** must not wait in the encoder for what follows: once a turn has passed without another piece, the encoder is
//! flushed ([`encoder_due`]).

use crate::compression::{Compressors, Verdict, add_vary, clean_trailers, describe, judge, weaken_not_modified};
use crate::connections::Connections;
use crate::counters::Count;
use crate::exchange::exchanges::Exchanges;
use crate::exchange::response::server_lost;
use crate::exchange::resume::resume_response;
use crate::exchange::streams::{Later, client_credit, client_data};
use crate::flush::flush_marked;
use crate::scratch::Scratch;
use crate::service::Proxy;
use sealane_exchange::Loss;
use sealane_http::coding::{Coding, EncodeError, Encoder, Then};
use sealane_http::{BodyLength, Method};
use sealane_lane::{Context, Key};

/// The most bytes that are coded at a time, before other responses get their turn.
const PIECE: usize = 16 * 1024;
/// So many bytes may be kept by an encoder.
const FLUSH_AFTER: usize = 64 * 1024;
/// Room for coded bytes that a response keeps while it is empty.
const KEPT: usize = 32 * 1024;

/// The stage of one response.
pub(crate) struct Encoding {
    /// There until the body is whole.
    encoder: Option<Box<dyn Encoder>>,
    coding: Coding,
    level: u8,
    /// Coded, and not with the sink yet: all behind `sent`.
    pending: Vec<u8>,
    sent: usize,
    /// Bytes that have come.
    taken: u64,
    /// Coded bytes that have gone to the sink.
    passed: u64,
    /// Bytes that have come since the last flush.
    unflushed: usize,
    /// [`Later::Encoder`] is noted.
    is_noted: bool,
    /// How many bytes had come when it was last looked at.
    seen: u64,
    /// It waits for a turn with time left.
    waits: bool,
    /// The turn for which it has waited.
    granted: u64,
}

impl Encoding {
    fn new(encoder: Box<dyn Encoder>, coding: Coding, level: u8) -> Self {
        Self {
            encoder: Some(encoder),
            coding,
            level,
            pending: Vec::new(),
            sent: 0,
            taken: 0,
            passed: 0,
            unflushed: 0,
            is_noted: false,
            seen: 0,
            waits: false,
            granted: 0,
        }
    }

    /// What it codes the body in.
    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// Coded bytes that have gone to the sink.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Bytes of the body as they have come.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes of memory that it holds.
    pub fn memory(&self) -> usize {
        self.pending.capacity() + self.encoder.as_ref().map_or(0, |encoder| encoder.memory())
    }

    /// The response is over, or what it needs of an encoder is.
    pub fn give_back(mut self, compressors: &mut Compressors) {
        self.release(compressors);
    }

    fn release(&mut self, compressors: &mut Compressors) {
        if let Some(encoder) = self.encoder.take() {
            compressors.give_back(self.coding, self.level, encoder);
        }
    }

    fn rest(&self) -> &[u8] {
        &self.pending[self.sent..]
    }

    /// So much of the rest has gone to the sink.
    fn pass(&mut self, bytes: usize) {
        self.sent += bytes;
        self.passed += bytes as u64;
        if self.sent == self.pending.len() {
            self.pending.clear();
            self.pending.shrink_to(KEPT);
            self.sent = 0;
        }
    }

    fn encode(
        &mut self,
        compressors: &mut Compressors,
        cx: &Context,
        data: &[u8],
        then: Then,
    ) -> Result<(), EncodeError> {
        let encoder = self.encoder.as_mut().ok_or(EncodeError)?;
        let then = if then == Then::GoOn && self.unflushed + data.len() >= FLUSH_AFTER { Then::Flush } else { then };
        let began = cx.instant();
        encoder.encode(data, then, &mut self.pending)?;
        compressors.worked_since(cx, began);
        self.taken += data.len() as u64;
        self.unflushed = if then == Then::GoOn { self.unflushed + data.len() } else { 0 };
        if then == Then::Finish {
            self.release(compressors);
        }
        Ok(())
    }
}

/// The head of a response that is to go to the client meets the rule of its route: changes the head, and puts the stage into the way of the
/// body if it is compressed. The length of the body then.
pub(super) fn begin_encoding(proxy: &mut Proxy, exchange: Key, body: BodyLength, upgrade: bool) -> BodyLength {
    let Proxy { exchanges, counters, admission, settings, .. } = proxy;
    let Some((x, compressors)) = exchanges.with_compressors(exchange) else { return body };
    let Some(rule) = x.routed.responses().and_then(|responses| responses.compression.as_ref()) else { return body };
    let Some(wish) = x.routed.wish.filter(|_| !upgrade && !x.machine.is_tunnel()) else { return body };
    let method = x.request.method();
    let verdict = judge(rule, wish, &x.response, body, method);
    let is_not_modified = x.response.status == 304;
    let fields = &mut x.response.fields;
    let (coding, level) = match verdict {
        Verdict::Never(why) => {
            why.into_iter().for_each(|why| counters.count(why));
            return body;
        }
        Verdict::NotNow(why) => {
            why.into_iter().for_each(|why| counters.count(why));
            add_vary(fields);
            if is_not_modified {
                weaken_not_modified(&x.request.fields, fields);
            }
            return body;
        }
        Verdict::Now(coding, level) => (coding, level),
    };
    add_vary(fields);
    if method == Method::Head {
        describe(coding, fields);
        return body;
    }
    let refused = match () {
        () if admission.is_short_of_memory() => Count::CompressionSkippedMemory,
        () if compressors.is_late() => Count::CompressionSkippedLate,
        () => match compressors.take(settings, coding, level) {
            Some(encoder) => {
                describe(coding, fields);
                counters.count(match coding {
                    Coding::Zstd => Count::CompressedZstd,
                    Coding::Brotli => Count::CompressedBrotli,
                    Coding::Gzip => Count::CompressedGzip,
                });
                counters.set(Count::CompressorsActive, compressors.active() as u64);
                x.response_body.encoding = Some(Box::new(Encoding::new(encoder, coding, level)));
                return BodyLength::Chunked;
            }
            None => Count::CompressionSkippedBusy,
        },
    };
    counters.count(refused);
    body
}

/// How many of `want` bytes the stage takes now, as [`response_room`](super::response::response_room) has it.
pub(super) fn room(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    cx: &Context,
    exchange: Key,
    want: usize,
) -> Option<usize> {
    let (x, compressors) = exchanges.with_compressors(exchange)?;
    let client_stream = x.client_stream;
    let encoding = x.response_body.encoding.as_mut()?;
    if !encoding.rest().is_empty() || client_credit(connections, client_stream, 1) == 0 {
        x.response_body.block(cx.now());
        return Some(0);
    }
    if compressors.has_time(cx, encoding.granted == cx.turns) {
        return Some(want.min(PIECE));
    }
    if !std::mem::replace(&mut encoding.waits, true) {
        compressors.wait(exchange);
    }
    x.response_body.block(cx.now());
    Some(0)
}

/// A piece of the body. False if the exchange is over.
pub(super) fn encode(proxy: &mut Proxy, cx: &mut Context, exchange: Key, data: &[u8]) -> bool {
    let Some((x, compressors)) = proxy.exchanges.with_compressors(exchange) else { return false };
    let Some(encoding) = &mut x.response_body.encoding else { return false };
    if encoding.encode(compressors, cx, data, Then::GoOn).is_err() {
        failed(proxy, cx, exchange);
        return false;
    }
    send_encoded(proxy, cx, exchange);
    true
}

/// The encoder has failed, for lack of memory: nothing of the body can follow.
fn failed(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    server_lost(proxy, cx, exchange, Loss::Exhausted);
}

/// Passes on what was coded, as far as the client has room. Whether that is all; if not, the source waits.
pub(super) fn send_encoded(proxy: &mut Proxy, cx: &mut Context, exchange: Key) -> bool {
    let Proxy { connections, exchanges, scratch, .. } = proxy;
    let Some(x) = exchanges.get_mut(exchange) else { return false };
    let (client_stream, framing) = (x.client_stream, x.response_body.framing);
    let Some(encoding) = &mut x.response_body.encoding else { return true };
    while !encoding.rest().is_empty() {
        let room = client_credit(connections, client_stream, encoding.rest().len());
        if room == 0 {
            x.response_body.block(cx.now());
            return false;
        }
        client_data(connections, scratch, cx, client_stream, framing, &encoding.rest()[..room], false);
        encoding.pass(room);
        x.response_body.progress.note(cx.now());
    }
    if encoding.unflushed > 0 && !std::mem::replace(&mut encoding.is_noted, true) {
        encoding.seen = u64::MAX;
        exchanges.go_on_later(Later::Encoder(exchange));
    }
    true
}

/// Looks whether the encoder holds bytes that nothing has followed for a turn.
pub(super) fn encoder_due(proxy: &mut Proxy, cx: &mut Context, exchange: Key) {
    let Some((x, compressors)) = proxy.exchanges.with_compressors(exchange) else { return };
    let Some(encoding) = &mut x.response_body.encoding else { return };
    encoding.is_noted = false;
    // A source that waits for room, or for time, has more. This is noted again when it goes on.
    if encoding.unflushed == 0 || !encoding.rest().is_empty() || x.response_body.is_blocked() {
        return;
    }
    let Some(encoding) = &mut x.response_body.encoding else { return };
    if encoding.seen != encoding.taken {
        encoding.seen = encoding.taken;
        encoding.is_noted = true;
        return proxy.exchanges.go_on_later(Later::Encoder(exchange));
    }
    if !compressors.has_time(cx, true) {
        encoding.is_noted = true;
        return proxy.exchanges.go_on_later(Later::Encoder(exchange));
    }
    match encoding.encode(compressors, cx, &[], Then::Flush) {
        Ok(()) => drop(send_encoded(proxy, cx, exchange)),
        Err(EncodeError) => failed(proxy, cx, exchange),
    }
}

/// Lets responses go on that have waited for a turn with time left, those that have waited longest first.
pub(crate) fn serve_encoders(proxy: &mut Proxy, cx: &mut Context) {
    for _ in 0..proxy.exchanges.compressors().waiting() {
        let Some(exchange) = proxy.exchanges.compressors().next_waiting(cx) else { return };
        let Some(x) = proxy.exchanges.get_mut(exchange) else { continue };
        let Some(encoding) = &mut x.response_body.encoding else { continue };
        encoding.waits = false;
        encoding.granted = cx.turns;
        if x.response_body.unblock(cx.now()) {
            resume_response(proxy, cx, exchange);
            flush_marked(proxy, cx);
        }
    }
}

/// The body is whole: the rest of it goes to the client, and the encoder back. False if the exchange is over.
pub(super) fn finish(proxy: &mut Proxy, cx: &mut Context, exchange: Key) -> bool {
    let Some((x, compressors)) = proxy.exchanges.with_compressors(exchange) else { return false };
    let Some(encoding) = &mut x.response_body.encoding else { return true };
    if encoding.encode(compressors, cx, &[], Then::Finish).is_err() {
        failed(proxy, cx, exchange);
        return false;
    }
    clean_trailers(&mut x.response_body.trailers);
    let Proxy { connections, exchanges, scratch, counters, .. } = proxy;
    counters.set(Count::CompressorsActive, exchanges.compressors().active() as u64);
    send_rest(connections, exchanges, scratch, cx, exchange);
    true
}

fn send_rest(
    connections: &mut Connections,
    exchanges: &mut Exchanges,
    scratch: &mut Scratch,
    cx: &mut Context,
    exchange: Key,
) {
    let Some(x) = exchanges.get_mut(exchange) else { return };
    let (client_stream, framing) = (x.client_stream, x.response_body.framing);
    let last = x.response_body.trailers.is_empty();
    let Some(encoding) = &mut x.response_body.encoding else { return };
    let rest = std::mem::take(&mut encoding.pending);
    let rest = &rest[encoding.sent..];
    encoding.sent = 0;
    encoding.passed += rest.len() as u64;
    client_data(connections, scratch, cx, client_stream, framing, rest, last);
}
