//! Compression of responses: which responses are compressed, and how many at a time.
//!
//! A rule of a host or route ([`CompressionRule`]) meets a request (`CompressionRule::look`, before anything of the request is
//! changed), then the head of its response (`judge`). `exchange::encoding` is the stage in the way of the body. `Compressors`
//! bounds what that stage costs the lane: encoders in use, time per turn, memory.

use crate::client::identity::Client;
use crate::counters::Count;
use crate::exchange::GRPC;
use crate::settings::LaneSettings;
use sealane_http::coding::{Coding, Encoder, negotiate};
use sealane_http::{BodyLength, Fields, Known, Method, RequestHead, ResponseHead, Version};
use sealane_lane::{Context, Key, Micros};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Encoders that wait for their next body. Brotli's cannot be used again.
const IDLE: usize = 4;
/// How long a lane compresses per turn. A piece that has begun is finished.
const TURN: Duration = Duration::from_millis(1);
/// Turns that take longer than this, on average over the last ones, make a lane late: it has better things to do than to compress.
const LATE: Micros = 100_000;

/// Which responses of a host or route are compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressionRule {
    /// The codings on offer, in order of preference, each with its level.
    pub codings: Vec<(Coding, u8)>,
    /// The types of responses.
    pub types: Vec<MediaTypes>,
    /// Responses that are known to be shorter are passed on as they are.
    pub min_length: u64,
    /// Also responses to requests with credentials, and those with `Set-Cookie`.
    pub with_credentials: bool,
}

/// Types of content: `text/html`, `text/*`, `application/*+json`, `*/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaTypes {
    /// `None`: any.
    kind: Option<String>,
    /// What stands before `*`, and behind it; without `*` the whole subtype.
    subtype: (String, Option<String>),
}

impl MediaTypes {
    /// Reads a pattern. `None`: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, subtype) = text.split_once('/')?;
        let is_part = |part: &str| {
            part.bytes().all(|b| {
                b.is_ascii_alphanumeric() || matches!(b, b'!' | b'#' | b'$' | b'&' | b'-' | b'^' | b'_' | b'.' | b'+')
            })
        };
        let lower = str::to_ascii_lowercase;
        let (before, behind) = match subtype.split_once('*') {
            Some((before, behind)) => (before, Some(lower(behind))),
            None => (subtype, None),
        };
        let is_any = kind == "*";
        let is_good = !subtype.is_empty()
            && (is_any && subtype == "*" || !kind.is_empty() && is_part(kind))
            && is_part(before)
            && behind.as_deref().is_none_or(is_part);
        is_good.then(|| Self { kind: (!is_any).then(|| lower(kind)), subtype: (lower(before), behind) })
    }

    /// Whether a value of `Content-Type` is of this type. Its parameters do not matter.
    fn matches(&self, value: &[u8]) -> bool {
        let essence = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        let Some(slash) = essence.iter().position(|b| *b == b'/') else { return false };
        let (kind, subtype) = (&essence[..slash], &essence[slash + 1..]);
        if self.kind.as_ref().is_some_and(|own| !kind.eq_ignore_ascii_case(own.as_bytes())) {
            return false;
        }
        match &self.subtype {
            (whole, None) => subtype.eq_ignore_ascii_case(whole.as_bytes()),
            (before, Some(behind)) => {
                subtype.len() >= before.len() + behind.len()
                    && subtype[..before.len()].eq_ignore_ascii_case(before.as_bytes())
                    && subtype[subtype.len() - behind.len()..].eq_ignore_ascii_case(behind.as_bytes())
            }
        }
    }

    /// Whether a type is never compressed, whatever the rule says: messages of gRPC have a compression of their own, and a stream of
    /// events would keep an encoder for as long as it is open.
    pub fn is_excluded(value: &[u8]) -> bool {
        let begins = |with: &[u8]| value.get(..with.len()).is_some_and(|v| v.eq_ignore_ascii_case(with));
        begins(EVENTS) || begins(GRPC)
    }
}

/// Events that a server sends as they happen.
const EVENTS: &[u8] = b"text/event-stream";

/// What a request says about the compression of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The coding that the client likes best.
    coding: Option<(Coding, u8)>,
    /// Its browser may have added credentials by itself.
    credentials: bool,
    /// It asks for a part, or for the content as it is.
    as_it_is: bool,
}

impl CompressionRule {
    /// Looks at a request as its client has sent it.
    pub(crate) fn look(&self, request: &RequestHead, client: &Client) -> Wish {
        self.look_at(request, client.cert().is_some())
    }

    fn look_at(&self, request: &RequestHead, has_certificate: bool) -> Wish {
        let fields = &request.fields;
        // To an HTTP/1.0 client the end of the connection is the end of the body: one that is cut off looks whole.
        let chosen = match request.version >= Version::Http11 && fields.contains(Known::AcceptEncoding) {
            true => negotiate(fields.all(Known::AcceptEncoding), self.codings.iter().map(|(coding, _)| *coding)),
            false => None,
        };
        Wish {
            coding: chosen.and_then(|chosen| self.codings.iter().find(|(coding, _)| *coding == chosen).copied()),
            credentials: has_certificate || fields.contains(Known::Cookie) || fields.contains(Known::Authorization),
            as_it_is: fields.contains(Known::Range) || has_directive(fields, b"no-transform"),
        }
    }
}

/// Whether `Cache-Control` has this directive.
fn has_directive(fields: &Fields, directive: &[u8]) -> bool {
    let mut all = fields.all(Known::CacheControl).flat_map(|value| value.split(|b| *b == b','));
    all.any(|member| member.trim_ascii().eq_ignore_ascii_case(directive))
}

/// Fields whose values are about the bytes of the body, or that sign them: they would not be true of a coded one.
const INTEGRITY: [&[u8]; 5] = [b"Content-Digest", b"Repr-Digest", b"Digest", b"Content-MD5", b"Signature-Input"];

/// Removes from a coded response's trailers what is said there about the bytes of the body as it was.
pub(crate) fn clean_trailers(trailers: &mut Fields) {
    for name in OF_THE_BODY {
        trailers.remove_named(name);
    }
    weaken_etag(trailers);
}

/// What [`clean_trailers`] removes.
const OF_THE_BODY: [&[u8]; 6] = [INTEGRITY[0], INTEGRITY[1], INTEGRITY[2], INTEGRITY[3], INTEGRITY[4], b"Signature"];

/// Removes from `Trailer` the names of trailers that do not come.
fn clean_announcement(fields: &mut Fields) {
    if !fields.contains(Known::Trailer) {
        return;
    }
    let goes = |name: &&[u8]| OF_THE_BODY.iter().any(|removed| removed.eq_ignore_ascii_case(name));
    let members = || fields.all(Known::Trailer).flat_map(|value| value.split(|b| *b == b',')).map(<[u8]>::trim_ascii);
    if !members().any(|name| goes(&name)) {
        return;
    }
    let rest = members().filter(|name| !name.is_empty() && !goes(name)).collect::<Vec<_>>().join(&b", "[..]);
    fields.remove(Known::Trailer);
    if !rest.is_empty() {
        // It is shorter than it was.
        let _ = fields.push_known(Known::Trailer, &rest);
    }
}

/// What is done with a response by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It can never be compressed, for this reason if it is one to count.
    Never(Option<Count>),
    /// Another request for the same would get a compressed response, so caches must know what it depends on.
    NotNow(Option<Count>),
    /// It is compressed, if there is an encoder for it.
    Now(Coding, u8),
}

/// Whether a response is compressed. `body`: the length of its body; `method`: that of its request.
pub(crate) fn judge(
    rule: &CompressionRule,
    wish: Wish,
    response: &ResponseHead,
    body: BodyLength,
    method: Method,
) -> Verdict {
    let fields = &response.fields;
    let is_short = |length: u64| length < rule.min_length.max(1);
    let mut kinds = fields.all(Known::ContentType);
    let (kind, is_ambiguous) = (kinds.next(), kinds.next().is_some());
    // Clients differ in which of several types they take.
    if is_ambiguous {
        return Verdict::Never(Some(Count::CompressionSkippedType));
    }
    let is_wanted = |kind: &[u8]| !MediaTypes::is_excluded(kind) && rule.types.iter().any(|types| types.matches(kind));
    match response.status {
        // There is no body that could be another one.
        100..200 | 204 | 205 => return Verdict::Never(None),
        // They are about a part, or about what the client has: the whole response could be compressed. 304 need not say its type.
        206 | 304 if kind.is_none_or(is_wanted) => return Verdict::NotNow(None),
        206 | 304 => return Verdict::Never(None),
        _ => {}
    }
    // RFC 9110 §9.3.2: HEAD is told what GET would be told, as far as that is known without the body.
    let length = match body {
        BodyLength::None if method == Method::Head => length_of(fields),
        BodyLength::None => return Verdict::Never(None),
        BodyLength::Known(length) => Some(length),
        BodyLength::Chunked | BodyLength::UntilClose => None,
    };
    match () {
        () if !kind.is_some_and(is_wanted) => return Verdict::Never(Some(Count::CompressionSkippedType)),
        () if fields.contains(Known::ContentEncoding) => return Verdict::Never(Some(Count::CompressionSkippedEncoded)),
        () if length.is_some_and(is_short) => return Verdict::Never(Some(Count::CompressionSkippedShort)),
        () if has_directive(fields, b"no-transform")
            || INTEGRITY.iter().any(|name| fields.get_named(name).is_some()) =>
        {
            return Verdict::Never(Some(Count::CompressionSkippedNoTransform));
        }
        () if fields.contains(Known::ContentRange) => return Verdict::Never(None),
        () => {}
    }
    let secret = wish.credentials || fields.contains(Known::SetCookie);
    match wish.coding {
        _ if wish.as_it_is => Verdict::NotNow(Some(Count::CompressionSkippedRange)),
        None => Verdict::NotNow(Some(Count::CompressionSkippedNotAccepted)),
        Some(_) if secret && !rule.with_credentials => Verdict::NotNow(Some(Count::CompressionSkippedCredentials)),
        Some((coding, level)) => Verdict::Now(coding, level),
    }
}

/// The length that a head announces, if it is one.
fn length_of(fields: &Fields) -> Option<u64> {
    std::str::from_utf8(fields.get(Known::ContentLength)?).ok()?.parse().ok()
}

/// Says to caches that a response depends on what codings the client takes (RFC 9110 §12.5.5).
pub(crate) fn add_vary(fields: &mut Fields) {
    let says = |member: &[u8]| member == b"*" || member.eq_ignore_ascii_case(b"accept-encoding");
    let is_said =
        fields.all(Known::Vary).flat_map(|value| value.split(|b| *b == b',')).any(|member| says(member.trim_ascii()));
    if !is_said {
        // It is valid, and short.
        let _ = fields.push_known(Known::Vary, b"Accept-Encoding");
    }
}

/// Changes the head of a response whose body is coded from now on: it is another representation (RFC 9110 §8.8.1), of unknown length,
/// of which parts cannot be had.
pub(crate) fn describe(coding: Coding, fields: &mut Fields) {
    fields.remove(Known::ContentLength);
    fields.remove_named(b"Accept-Ranges");
    weaken_etag(fields);
    clean_announcement(fields);
    let _ = fields.push_known(Known::ContentEncoding, coding.name().as_bytes());
}

/// Makes a strong validator weak: the bytes differ, what they say does not (RFC 9110 §8.8.3). One that is no validator is removed: a client
/// that accepts it would take it for a strong one.
fn weaken_etag(fields: &mut Fields) {
    let Some(tag) = fields.get(Known::Etag).filter(|tag| !tag.starts_with(b"W/\"")) else { return };
    let weak = tag.starts_with(b"\"").then(|| [b"W/", tag].concat());
    match weak {
        Some(weak) => drop(fields.set(Known::Etag, &weak)),
        None => drop(fields.remove(Known::Etag)),
    }
}

/// 304 for a client that has a compressed response: it knows the weak validator, and would not find the response that it is told of by the
/// strong one (RFC 9111 §4.3.4).
pub(crate) fn weaken_not_modified(request: &Fields, response: &mut Fields) {
    let Some(tag) = response.get(Known::Etag).filter(|tag| tag.starts_with(b"\"")) else { return };
    let has = |member: &[u8]| member.trim_ascii().strip_prefix(b"W/") == Some(tag);
    if request.all(Known::IfNoneMatch).flat_map(|value| value.split(|b| *b == b',')).any(has) {
        weaken_etag(response);
    }
}

/// The encoders of a lane.
#[derive(Default)]
pub(crate) struct Compressors {
    /// In use.
    active: usize,
    idle: Vec<(Coding, u8, Box<dyn Encoder>)>,
    /// The turn in which `spent` was spent.
    turn: u64,
    spent: Duration,
    /// Exchanges whose responses wait for a turn with time left, oldest first. Some may be over.
    waiting: VecDeque<Key>,
    /// How long turns take, on average over the last ones.
    turns_take: Micros,
}

impl Compressors {
    /// An encoder, if there may be one more.
    pub fn take(&mut self, settings: &LaneSettings, coding: Coding, level: u8) -> Option<Box<dyn Encoder>> {
        if self.active >= settings.limits().compressors {
            return None;
        }
        let fits = self.idle.iter().position(|(c, l, _)| (*c, *l) == (coding, level));
        let encoder = match fits {
            Some(at) => self.idle.swap_remove(at).2,
            None => settings.snapshot().codecs.as_ref()?.encoder(coding, level)?,
        };
        self.active += 1;
        Some(encoder)
    }

    /// An encoder is needed no more.
    pub fn give_back(&mut self, coding: Coding, level: u8, mut encoder: Box<dyn Encoder>) {
        self.active -= 1;
        if encoder.reset() {
            if self.idle.len() >= IDLE {
                // The one that has waited longest.
                self.idle.remove(0);
            }
            self.idle.push((coding, level, encoder));
        }
    }

    /// Encoders in use.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Memory is short: frees what is not in use. How many bytes that gives.
    pub fn free_idle(&mut self) -> usize {
        self.idle.drain(..).map(|(_, _, encoder)| encoder.memory()).sum()
    }

    /// A turn of the lane has taken so long.
    #[inline]
    pub fn turn_took(&mut self, micros: Micros) {
        // One that was very long for once says nothing about those that follow.
        self.turns_take = (self.turns_take * 7 + micros.min(4 * LATE)) / 8;
    }

    /// The lane has so much to do that it begins no more compression.
    pub fn is_late(&self) -> bool {
        self.turns_take > LATE
    }

    /// Whether there is time left in this turn. `granted`: the response has waited for this turn; else it goes behind those that wait.
    pub fn has_time(&mut self, cx: &Context, granted: bool) -> bool {
        if self.turn != cx.turns {
            (self.turn, self.spent) = (cx.turns, Duration::ZERO);
        }
        self.spent < TURN && (granted || self.waiting.is_empty())
    }

    /// A response waits for a turn with time left.
    pub fn wait(&mut self, exchange: Key) {
        self.waiting.push_back(exchange);
    }

    /// How many wait.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The one that has waited longest, if there is time left.
    pub fn next_waiting(&mut self, cx: &Context) -> Option<Key> {
        if self.has_time(cx, true) { self.waiting.pop_front() } else { None }
    }

    /// Compression has begun then, and is over.
    pub fn worked_since(&mut self, cx: &Context, began: Instant) {
        if self.turn != cx.turns {
            (self.turn, self.spent) = (cx.turns, Duration::ZERO);
        }
        self.spent += began.elapsed();
    }
}

#[cfg(test)]
mod tests;
