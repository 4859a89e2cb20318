//! Frames (RFC 9114 §7): the readers of request streams and of the peer's own streams.

use super::error::{Code, H3Error};
use super::settings::Settings;
use super::varint::{self, Partial};
use crate::error::ParseError;

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
const CANCEL_PUSH: u64 = 0x03;
const SETTINGS: u64 = 0x04;
const PUSH_PROMISE: u64 = 0x05;
const GOAWAY: u64 = 0x07;
const MAX_PUSH_ID: u64 = 0x0d;
/// RFC 9218 §7.2: of a request stream; 0xf0701 is for pushes.
const PRIORITY_UPDATE: u64 = 0xf0700;

/// Stands for a frame whose payload nobody wants: more than a type can be.
const SKIPPED: u64 = u64::MAX;

/// Most bytes of a frame on the control stream that are kept.
const MAX_CONTROL: u64 = 4096;

/// Which side's streams are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// We are the server: streams come from a client.
    Server,
    /// We are the client.
    Client,
}

const fn fatal(code: Code, why: &'static str) -> H3Error {
    H3Error::Connection(code, why)
}

#[derive(Clone, Copy, Debug)]
enum At {
    Kind,
    Length(u64),
    /// A payload of which so many bytes are still to come.
    Payload(u64, u64),
}

/// Where a request stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// HEADERS must come first.
    Head,
    /// DATA, or HEADERS with trailers.
    Body,
    /// Nothing may follow.
    Trailed,
    /// After CONNECT: DATA alone (§4.4).
    Tunnel,
}

/// What a step through a request stream came upon.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// All of the input is used.
    NeedMore,
    /// A field section: the message's head.
    Head(&'a [u8]),
    /// Some of the body.
    Data(&'a [u8]),
    /// A field section: the trailers.
    Trailers(&'a [u8]),
    /// A field section that is larger than the limit, as head or as trailers. Its bytes are skipped from here on.
    TooLarge(ParseError),
}

/// Reads a request stream, in either direction: `HEADERS DATA* HEADERS?`, each after the other (§4.1).
#[derive(Debug)]
pub struct MessageReader {
    side: Side,
    phase: Phase,
    at: At,
    partial: Partial,
    /// A field section so far.
    kept: Vec<u8>,
    /// Most bytes of an encoded field section.
    max_section: usize,
}

impl MessageReader {
    /// A reader at the stream's start.
    pub fn new(side: Side, max_section: usize) -> Self {
        Self { side, phase: Phase::Head, at: At::Kind, partial: Partial::default(), kept: Vec::new(), max_section }
    }

    /// The head was an interim response: another one follows.
    pub fn expect_another_head(&mut self) {
        self.phase = Phase::Head;
    }

    /// The head has made a tunnel of the stream: nothing but DATA may follow (§4.4).
    pub fn expect_tunnel(&mut self) {
        self.phase = Phase::Tunnel;
    }

    /// Takes one step; says how many bytes of `input` it used. To be called until it needs more.
    pub fn read<'a>(&'a mut self, input: &'a [u8]) -> Result<(usize, Piece<'a>), H3Error> {
        let mut rest = input;
        loop {
            match self.at {
                At::Kind => match self.partial.feed(&mut rest) {
                    Some(kind) => self.at = At::Length(kind),
                    None => return Ok((input.len(), Piece::NeedMore)),
                },
                At::Length(kind) => match self.partial.feed(&mut rest) {
                    Some(length) => {
                        self.allow(kind)?;
                        if kind == HEADERS && length > self.max_section as u64 {
                            return Ok((input.len() - rest.len(), self.skip_section(length)));
                        }
                        self.at = if length == 0 && kind != HEADERS { At::Kind } else { At::Payload(kind, length) };
                    }
                    None => return Ok((input.len(), Piece::NeedMore)),
                },
                At::Payload(HEADERS, left) => {
                    let n = left.min(rest.len() as u64) as usize;
                    let whole = n as u64 == left;
                    // A section that lies here in one piece need not be copied.
                    if whole && self.kept.is_empty() {
                        let (section, _) = rest.split_at(n);
                        let used = input.len() - rest.len() + n;
                        return Ok((used, self.section(section)));
                    }
                    self.kept.extend_from_slice(&rest[..n]);
                    rest = &rest[n..];
                    self.at = At::Payload(HEADERS, left - n as u64);
                    if !whole {
                        return Ok((input.len(), Piece::NeedMore));
                    }
                    let used = input.len() - rest.len();
                    let trailers = self.note_section();
                    return Ok((used, if trailers { Piece::Trailers(&self.kept) } else { Piece::Head(&self.kept) }));
                }
                At::Payload(kind, left) => {
                    let n = left.min(rest.len() as u64) as usize;
                    let (data, behind) = rest.split_at(n);
                    self.at = if n as u64 == left { At::Kind } else { At::Payload(kind, left - n as u64) };
                    if kind == DATA && n > 0 {
                        return Ok((input.len() - behind.len(), Piece::Data(data)));
                    }
                    rest = behind;
                    if matches!(self.at, At::Payload(..)) {
                        return Ok((input.len(), Piece::NeedMore));
                    }
                }
            }
        }
    }

    fn section<'a>(&mut self, section: &'a [u8]) -> Piece<'a> {
        if self.note_section() { Piece::Trailers(section) } else { Piece::Head(section) }
    }

    /// A field section of so many bytes is too large to be read.
    fn skip_section(&mut self, length: u64) -> Piece<'static> {
        let trailers = self.note_section();
        self.at = At::Payload(SKIPPED, length);
        Piece::TooLarge(if trailers { ParseError::TrailersTooLarge } else { ParseError::HeadTooLarge })
    }

    /// A field section is whole; whether it is the trailers.
    fn note_section(&mut self) -> bool {
        self.at = At::Kind;
        let trailers = self.phase == Phase::Body;
        self.phase = if trailers { Phase::Trailed } else { Phase::Body };
        trailers
    }

    /// Whether a frame may be here.
    fn allow(&mut self, kind: u64) -> Result<(), H3Error> {
        let unexpected = |why| Err(fatal(Code::FrameUnexpected, why));
        match kind {
            HEADERS => {
                if matches!(self.phase, Phase::Trailed | Phase::Tunnel) {
                    return unexpected("HEADERS after the end of a message");
                }
                self.kept.clear();
                Ok(())
            }
            DATA => match self.phase {
                Phase::Head => unexpected("DATA before HEADERS"),
                Phase::Trailed => unexpected("DATA after the trailers"),
                Phase::Body | Phase::Tunnel => Ok(()),
            },
            // §7.2.5: as a client we have allowed no push, so every push id is too large.
            PUSH_PROMISE if self.side == Side::Client => Err(fatal(Code::IdError, "PUSH_PROMISE without MAX_PUSH_ID")),
            PUSH_PROMISE | CANCEL_PUSH | SETTINGS | GOAWAY | MAX_PUSH_ID | PRIORITY_UPDATE | 0xf0701 => {
                unexpected("a frame that does not belong on a request stream")
            }
            // §7.2.8: HTTP/2's.
            0x02 | 0x06 | 0x08 | 0x09 => unexpected("a frame of HTTP/2"),
            // §9: what is not known is ignored.
            _ => Ok(()),
        }
    }

    /// The stream has ended: whether it may end here. After this nothing can be read.
    pub fn finish(&self) -> Result<(), H3Error> {
        // §7.1: a frame that is cut off.
        if !matches!(self.at, At::Kind) || !self.partial.is_empty() {
            return Err(fatal(Code::FrameError, "a frame is cut off by the end of its stream"));
        }
        match self.phase {
            Phase::Head => Err(H3Error::Stream(Code::RequestIncomplete, "a stream without a whole message")),
            _ => Ok(()),
        }
    }
}

/// What a peer's own stream says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// Its settings, once, before all else.
    Settings(Settings),
    /// It is going away: requests (from a server) with this stream id or above will not be processed.
    Goaway(u64),
    /// RFC 9218: a stream's priority, and the field value that says it.
    Priority(u64, Vec<u8>),
}

/// What kind of stream a unidirectional one is (RFC 9114 §6.2, RFC 9204 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unknown,
    Control,
    Encoder,
    Decoder,
    /// Of a type that is none of ours; not read on.
    Ignored,
}

/// What all of a peer's unidirectional streams have in common.
#[derive(Debug)]
pub struct Peer {
    side: Side,
    control: bool,
    encoder: bool,
    decoder: bool,
    settings: bool,
    /// The last GOAWAY's id; it may only fall (§5.2).
    goaway: u64,
    max_push_id: u64,
}

impl Peer {
    /// `side` is ours.
    pub fn new(side: Side) -> Self {
        let goaway = u64::MAX;
        Self { side, control: false, encoder: false, decoder: false, settings: false, goaway, max_push_id: 0 }
    }
}

/// Reads one of the peer's unidirectional streams.
#[derive(Debug)]
pub struct UniReader {
    kind: Kind,
    at: At,
    partial: Partial,
    kept: Vec<u8>,
}

impl Default for UniReader {
    fn default() -> Self {
        Self { kind: Kind::Unknown, at: At::Kind, partial: Partial::default(), kept: Vec::new() }
    }
}

impl UniReader {
    /// Nobody wants to read on: the stream is of a type that is not known. To be answered with STOP_SENDING.
    pub fn is_ignored(&self) -> bool {
        self.kind == Kind::Ignored
    }

    /// Takes bytes in; `event` is called with what they say.
    pub fn feed(
        &mut self,
        peer: &mut Peer,
        mut input: &[u8],
        mut event: impl FnMut(ControlEvent) -> Result<(), H3Error>,
    ) -> Result<(), H3Error> {
        while !input.is_empty() {
            match self.kind {
                Kind::Unknown => {
                    let Some(kind) = self.partial.feed(&mut input) else { return Ok(()) };
                    self.kind = peer.note_stream(kind)?;
                }
                Kind::Ignored => return Ok(()),
                Kind::Encoder => return encoder_stream(input),
                Kind::Decoder => return self.decoder_stream(input),
                Kind::Control => {
                    if let Some(event_) = self.control_step(peer, &mut input)? {
                        event(event_)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn control_step(&mut self, peer: &mut Peer, input: &mut &[u8]) -> Result<Option<ControlEvent>, H3Error> {
        match self.at {
            At::Kind => {
                if let Some(kind) = self.partial.feed(input) {
                    self.at = At::Length(kind);
                }
                Ok(None)
            }
            At::Length(kind) => {
                let Some(length) = self.partial.feed(input) else { return Ok(None) };
                peer.allow(kind)?;
                let known = matches!(kind, SETTINGS | GOAWAY | CANCEL_PUSH | MAX_PUSH_ID | PRIORITY_UPDATE);
                if known && length > MAX_CONTROL {
                    return Err(fatal(Code::ExcessiveLoad, "a control frame is too long"));
                }
                self.kept.clear();
                self.at = At::Payload(if known { kind } else { SKIPPED }, length);
                // Empty SETTINGS are whole with their length.
                if length == 0 { self.control_frame(peer) } else { Ok(None) }
            }
            At::Payload(kind, left) => {
                let n = left.min(input.len() as u64) as usize;
                let (bytes, rest) = input.split_at(n);
                *input = rest;
                if kind != SKIPPED {
                    self.kept.extend_from_slice(bytes);
                }
                self.at = At::Payload(kind, left - n as u64);
                if left == n as u64 { self.control_frame(peer) } else { Ok(None) }
            }
        }
    }

    fn control_frame(&mut self, peer: &mut Peer) -> Result<Option<ControlEvent>, H3Error> {
        let At::Payload(kind, _) = std::mem::replace(&mut self.at, At::Kind) else { return Ok(None) };
        let payload = &self.kept[..];
        let single = || match varint::get(payload) {
            Some((value, len)) if len == payload.len() => Ok(value),
            _ => Err(fatal(Code::FrameError, "a control frame is malformed")),
        };
        match kind {
            SETTINGS => {
                peer.settings = true;
                Settings::decode(payload).map(|s| Some(ControlEvent::Settings(s)))
            }
            GOAWAY => {
                let id = single()?;
                // §7.2.6: from a server a client's bidirectional stream; from a client a push id.
                if id > peer.goaway || (peer.side == Side::Client && id % 4 != 0) {
                    return Err(fatal(
                        Code::IdError,
                        "GOAWAY with an ID that is larger than before, or not of a request",
                    ));
                }
                peer.goaway = id;
                Ok(Some(ControlEvent::Goaway(id)))
            }
            MAX_PUSH_ID => {
                let id = single()?;
                if id < peer.max_push_id {
                    return Err(fatal(Code::IdError, "MAX_PUSH_ID has become smaller"));
                }
                peer.max_push_id = id;
                Ok(None)
            }
            CANCEL_PUSH => {
                // We neither push nor allow pushes.
                single()?;
                Err(fatal(Code::IdError, "CANCEL_PUSH for a push that was never promised"))
            }
            PRIORITY_UPDATE => {
                let (id, len) = varint::get(payload).ok_or(fatal(Code::FrameError, "PRIORITY_UPDATE is cut off"))?;
                // RFC 9218 §7.2: the id of a request stream.
                if id % 4 != 0 {
                    return Err(fatal(Code::IdError, "PRIORITY_UPDATE for a stream that is not a request"));
                }
                Ok(Some(ControlEvent::Priority(id, payload[len..].to_vec())))
            }
            _ => Ok(None),
        }
    }

    /// RFC 9204 §4.4: we insert nothing and refer to nothing, so nothing can be acknowledged; a client may say of any
    /// stream that it gave it up.
    fn decoder_stream(&mut self, input: &[u8]) -> Result<(), H3Error> {
        for byte in input {
            let continued = matches!(self.at, At::Payload(..));
            match byte {
                _ if continued => {
                    if byte & 0x80 == 0 {
                        self.at = At::Kind;
                    }
                }
                0x40..0x80 => {
                    if byte & 0x3f == 0x3f {
                        self.at = At::Payload(0, 0);
                    }
                }
                _ => return Err(fatal(Code::QpackDecoderStreamError, "an acknowledgement of nothing")),
            }
        }
        Ok(())
    }

    /// The stream has ended or was reset: whether the connection can do without it (§6.2.1, RFC 9204 §4.2).
    pub fn finish(&self) -> Result<(), H3Error> {
        match self.kind {
            Kind::Control | Kind::Encoder | Kind::Decoder => {
                Err(fatal(Code::ClosedCriticalStream, "a critical stream (control or QPACK) has ended"))
            }
            Kind::Unknown | Kind::Ignored => Ok(()),
        }
    }
}

/// RFC 9204 §4.3: with no room nothing can be inserted; a capacity of 0 may be said any number of times.
fn encoder_stream(input: &[u8]) -> Result<(), H3Error> {
    match input.iter().all(|b| *b == 0x20) {
        true => Ok(()),
        false => Err(fatal(Code::QpackEncoderStreamError, "an insertion into a table without room")),
    }
}

impl Peer {
    fn note_stream(&mut self, kind: u64) -> Result<Kind, H3Error> {
        let (seen, kind) = match kind {
            0x00 => (&mut self.control, Kind::Control),
            0x02 => (&mut self.encoder, Kind::Encoder),
            0x03 => (&mut self.decoder, Kind::Decoder),
            // §6.2.2: only servers push, and only when they were allowed to.
            0x01 if self.side == Side::Server => {
                return Err(fatal(Code::StreamCreationError, "a push stream from a client"));
            }
            0x01 => return Err(fatal(Code::IdError, "a push that was not allowed")),
            _ => return Ok(Kind::Ignored),
        };
        if std::mem::replace(seen, true) {
            return Err(fatal(Code::StreamCreationError, "a second control or QPACK stream"));
        }
        Ok(kind)
    }

    /// Whether a frame may come on the control stream now.
    fn allow(&self, kind: u64) -> Result<(), H3Error> {
        if !self.settings && kind != SETTINGS {
            return Err(fatal(Code::MissingSettings, "the control stream does not begin with SETTINGS"));
        }
        match kind {
            SETTINGS if self.settings => Err(fatal(Code::FrameUnexpected, "a second SETTINGS")),
            DATA | HEADERS | PUSH_PROMISE => {
                Err(fatal(Code::FrameUnexpected, "a frame that does not belong on the control stream"))
            }
            0x02 | 0x06 | 0x08 | 0x09 => Err(fatal(Code::FrameUnexpected, "a frame of HTTP/2")),
            MAX_PUSH_ID | PRIORITY_UPDATE if self.side == Side::Client => {
                Err(fatal(Code::FrameUnexpected, "a frame that only clients send"))
            }
            _ => Ok(()),
        }
    }
}

/// Appends a frame's type and length.
#[inline]
fn put_header(out: &mut Vec<u8>, kind: u64, length: usize) {
    varint::put(out, kind);
    varint::put(out, length as u64);
}

/// Appends a DATA frame's header; so many bytes of body must follow.
#[inline]
pub fn put_data_header(out: &mut Vec<u8>, length: usize) {
    put_header(out, DATA, length);
}

/// Appends a HEADERS frame around the section that `write` appends.
#[inline]
pub(super) fn put_headers(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(HEADERS as u8);
    // Two bytes hold a length up to 16 KiB, which is nearly every one; a larger section is moved.
    let length_at = out.len();
    out.extend_from_slice(&[0, 0]);
    let start = out.len();
    write(out);
    let length = out.len() - start;
    if length < 0x4000 {
        out[length_at..start].copy_from_slice(&(length as u16 | 0x4000).to_be_bytes());
    } else {
        let wide = (length as u32 | 0x8000_0000).to_be_bytes();
        out.splice(length_at..start, wide);
    }
}

/// Appends what our control stream begins with: its type, and our settings.
pub fn put_control_opening(out: &mut Vec<u8>, settings: &Settings) {
    varint::put(out, 0x00);
    let mut payload = Vec::new();
    settings.encode(&mut payload);
    put_header(out, SETTINGS, payload.len());
    out.extend_from_slice(&payload);
}

/// Appends GOAWAY.
pub fn put_goaway(out: &mut Vec<u8>, id: u64) {
    let mut payload = Vec::new();
    varint::put(&mut payload, id);
    put_header(out, GOAWAY, payload.len());
    out.extend_from_slice(&payload);
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
