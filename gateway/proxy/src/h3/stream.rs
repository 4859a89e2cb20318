//! One stream of a connection: a request and its response, whichever side of it is ours.
//!
//! [`Receiving`] and [`Sending`] are the states of its two directions, with the names of RFC 9000 §3 where the transport has
//! the same state. What is lost and resent is the transport's and not seen here. Fields are visible in this folder only.

use super::code;
use super::connection::H3Connection;
use crate::exchange::priority::Priority;
use crate::memory::BUFFER_BUDGET;
use crate::transport::HIGH_WATER;
use bytes::{Buf, Bytes};
use quinn_proto::{FinishError, ReadError, StreamId, VarInt, WriteError};
use sealane_http::ParseError;
use sealane_http::h3::{Code, MessageReader, Side};
use sealane_lane::{Key, Millis};

/// The most bytes that wait on a stream whose peer has no window for them.
const HELD_LIMIT: usize = 8 * 1024;

/// The peer's direction of a stream (RFC 9000 §3.2), as far as HTTP/3 has read it:
///
/// ```text
/// Awaited ─► Head ─► Body ─► DataRead
///    └────────┴───────┴────► ResetRead, StopSent
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// "Recv": nothing has come.
    Awaited,
    /// "Recv": some has come, and the message's (final) head is not complete.
    Head,
    /// "Recv": the body, or what a tunnel carries, is read.
    Body,
    /// All that the peer has sent was read, to its end.
    DataRead,
    /// The peer has reset it.
    ResetRead,
    /// We have asked the peer to send no more (STOP_SENDING), and read no more.
    StopSent,
}

impl Receiving {
    /// Nothing more is read.
    #[inline]
    pub fn is_over(self) -> bool {
        matches!(self, Self::DataRead | Self::ResetRead | Self::StopSent)
    }

    /// Something has come.
    fn begin(&mut self) {
        if *self == Self::Awaited {
            *self = Self::Head;
        }
    }

    /// The message's (final) head is complete.
    fn begin_body(&mut self) {
        if !self.is_over() {
            *self = Self::Body;
        }
    }
}

/// Our direction of a stream (RFC 9000 §3.1), as far as HTTP/3 has written it:
///
/// ```text
/// Send ─► SizeKnown ─► DataSent ─► DataRecvd
///   └─────────┴───────────┴──────► ResetSent
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// More may be staged.
    Send,
    /// The message is staged to its end, and the end follows what waits.
    SizeKnown,
    /// The transport has all of it, and the end.
    DataSent,
    /// The peer has acknowledged all of it.
    DataRecvd,
    /// The peer wants no more: the transport has been told to reset it. What is staged from now on is thrown away.
    ResetSent,
}

impl Sending {
    /// Nothing of it is ours to send any more.
    #[inline]
    pub fn is_over(self) -> bool {
        matches!(self, Self::DataSent | Self::DataRecvd | Self::ResetSent)
    }

    /// The transport may still hold some of it.
    fn is_under_way(self) -> bool {
        !matches!(self, Self::DataRecvd | Self::ResetSent)
    }

    /// The message is staged to its end. False if it was before, or nobody wants it.
    pub fn end(&mut self) -> bool {
        let ends = *self == Self::Send;
        if ends {
            *self = Self::SizeKnown;
        }
        ends
    }
}

/// What a stream serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// A request and its response.
    Exchange(Key),
    /// Nothing: the request's head has not come, or the exchange is over. A client's stream is cut off at this time, if the head, or the
    /// last of the response, is not through by then.
    Nothing { until: Millis },
}

/// One request and its response.
pub(crate) struct Stream {
    pub(super) id: StreamId,
    pub(super) serves: Serves,
    reader: MessageReader,
    /// Received and not taken yet.
    pub(super) rest: Bytes,
    /// Bytes that its connection had received when it began, and those that have been read of it since.
    pub(super) read: u64,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
    /// Bytes of body that `content-length` still promises.
    pub(super) promised: Option<u64>,
    /// To send.
    pub(super) out: Vec<u8>,
    /// Refused by the protocol so far: windows are closed.
    held: Bytes,
    /// What waited when it was last flushed, as its connection has counted it.
    left: usize,
    /// Bytes that the transport has been given.
    pub(super) handed: usize,
    /// Some of them since its deadline was last looked at.
    moved: bool,
    /// In its connection's list of streams that have something to send.
    pub(super) staged: bool,
    pub(super) priority: Priority,
    /// When it last had its turn.
    pub(super) turn: u64,
}

impl Stream {
    /// One whose request's head must have come at `until`.
    pub fn new(id: StreamId, reader: MessageReader, until: Millis) -> Self {
        Self {
            id,
            serves: Serves::Nothing { until },
            reader,
            rest: Bytes::new(),
            read: 0,
            receiving: Receiving::Awaited,
            sending: Sending::Send,
            promised: None,
            out: Vec::new(),
            held: Bytes::new(),
            left: 0,
            handed: 0,
            moved: false,
            staged: false,
            priority: Priority::default(),
            turn: 0,
        }
    }

    /// `None` before the request's head has come, and after the exchange has ended.
    #[inline]
    pub fn exchange(&self) -> Option<Key> {
        match self.serves {
            Serves::Exchange(exchange) => Some(exchange),
            Serves::Nothing { .. } => None,
        }
    }

    /// It serves this exchange from now on.
    #[inline]
    pub fn serve(&mut self, exchange: Key) {
        self.serves = Serves::Exchange(exchange);
    }

    /// It serves its exchange no longer, and is to be reset at once.
    pub fn leave_exchange(&mut self) -> Option<Key> {
        let exchange = self.exchange()?;
        self.serves = Serves::Nothing { until: 0 };
        Some(exchange)
    }

    /// Bytes that have been received and are not taken yet.
    #[inline]
    pub fn unread(&self) -> usize {
        self.rest.len()
    }

    /// The first of them; at most as many as there are.
    #[inline]
    pub fn ahead(&self, bytes: usize) -> Bytes {
        self.rest.slice(..bytes)
    }

    /// So many of them are taken.
    #[inline]
    pub fn take(&mut self, bytes: usize) {
        self.rest.advance(bytes);
    }

    /// The message's (final) head is complete. `promised`: the bytes of its body, if it says how many.
    #[inline]
    pub fn begin_body(&mut self, promised: Option<u64>) {
        self.receiving.begin_body();
        self.promised = promised;
    }

    /// Whether the body, or what a tunnel carries, is read.
    #[inline]
    pub fn is_in_body(&self) -> bool {
        self.receiving == Receiving::Body
    }

    /// Whether a response to it has been staged to its end, or nobody wants more of it.
    pub fn is_served(&self) -> bool {
        self.sending != Sending::Send
    }

    /// What is to be sent, for more to be appended. The caller stages the stream.
    #[inline]
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// What was staged is all that there is to send.
    pub fn end(&mut self) {
        self.sending.end();
    }

    /// After its head there is only DATA (RFC 9114 §4.4).
    pub fn begin_tunnel(&mut self) {
        self.reader.expect_tunnel();
    }

    /// Counts a piece of the body against `content-length` (RFC 9114 §4.1.2).
    pub fn count(&mut self, piece: &[u8]) -> Result<(), ParseError> {
        if let Some(promised) = &mut self.promised {
            *promised = promised.checked_sub(piece.len() as u64).ok_or(ParseError::LengthMismatch)?;
        }
        Ok(())
    }

    /// Whether less of the body has come than `content-length` promised.
    pub fn is_short(&self) -> bool {
        self.promised.is_some_and(|left| left > 0)
    }

    /// Throws away what waits to be sent.
    fn discard(&mut self) {
        self.out = Vec::new();
        self.held.clear();
    }

    /// Bytes that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.out.len() + self.held.len()
    }
}

/// What the transport has of a stream.
pub(crate) enum Read {
    /// Bytes, now the stream's `rest`.
    Data,
    /// Nothing now.
    Blocked,
    End,
    /// The peer has called it off, with this code.
    Reset(VarInt),
}

impl H3Connection {
    /// Takes a stream in.
    pub fn add(&mut self, mut stream: Stream) -> u32 {
        let id = stream.id;
        stream.read = self.quic.received_before();
        self.next_id = self.next_id.max(u64::from(id) + 4);
        let index = self.streams.insert(stream) as u32;
        self.by_id.insert(id, index);
        index
    }

    /// A stream by its id.
    pub fn index_of(&self, id: StreamId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Takes the next bytes of a stream from the transport, which lets the peer send as many more.
    pub fn fetch(&mut self, index: u32) -> Read {
        let Some(stream) = self.streams.get_mut(index as usize) else { return Read::Blocked };
        if stream.receiving.is_over() {
            return Read::Blocked;
        }
        let mut recv = self.quic.recv_stream(stream.id);
        let Ok(mut chunks) = recv.read(true) else { return Read::Blocked };
        let read = match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => {
                stream.read += chunk.bytes.len() as u64;
                stream.rest = chunk.bytes;
                stream.receiving.begin();
                Read::Data
            }
            Ok(None) => {
                stream.receiving = Receiving::DataRead;
                Read::End
            }
            Err(ReadError::Blocked) => Read::Blocked,
            Err(ReadError::Reset(code)) => {
                stream.receiving = Receiving::ResetRead;
                Read::Reset(code)
            }
        };
        // Whether there is something to send is looked at once per turn anyway.
        let _ = chunks.finalize();
        read
    }

    /// Lends a stream's reader: what it finds concerns all of the lane.
    pub fn take_reader(&mut self, index: u32) -> Option<(StreamId, MessageReader)> {
        let stream = self.streams.get_mut(index as usize)?;
        Some((stream.id, std::mem::replace(&mut stream.reader, MessageReader::new(Side::Server, 0))))
    }

    /// Gives a stream's reader back. False if there is no such stream any more.
    pub fn return_reader(&mut self, index: u32, id: StreamId, reader: MessageReader) -> bool {
        match self.streams.get_mut(index as usize).filter(|s| s.id == id) {
            Some(stream) => {
                stream.reader = reader;
                true
            }
            None => false,
        }
    }

    /// Asks the peer to send no more on a stream.
    pub(super) fn stop(&mut self, id: StreamId, why: Code) {
        // It fails only where that direction is at its end already.
        let _ = self.quic.recv_stream(id).stop(code(why));
    }

    /// Throws away what has come of a stream, and asks the peer to send no more on it.
    pub fn refuse_rest(&mut self, index: u32, why: Code) {
        let Some(stream) = self.streams.get_mut(index as usize) else { return };
        stream.rest.clear();
        if !stream.receiving.is_over() {
            stream.receiving = Receiving::StopSent;
            let id = stream.id;
            self.stop(id, why);
        }
    }

    /// Takes no request on a stream that the client has opened. It may be sent again elsewhere (RFC 9114 §5.2).
    pub fn reject(&mut self, id: StreamId) {
        self.stop(id, Code::RequestRejected);
        // It fails only where that direction is at its end already.
        let _ = self.quic.send_stream(id).reset(code(Code::RequestRejected));
    }

    /// Whether the peer has reset a stream, although not all that came before was read.
    pub fn is_called_off(&mut self, index: u32) -> bool {
        let Some(stream) = self.streams.get_mut(index as usize) else { return false };
        let is_reset = matches!(self.quic.recv_stream(stream.id).received_reset(), Ok(Some(_)));
        if is_reset {
            stream.receiving = Receiving::ResetRead;
        }
        is_reset
    }

    /// How many bytes may wait on a stream. Towards a client: fewer where its window is closed, or where those of all
    /// streams are many.
    pub(super) fn stream_limit(&self, stream: &Stream) -> usize {
        let open = stream.held.is_empty() && self.waiting < BUFFER_BUDGET;
        if open || !self.is_client() { HIGH_WATER } else { HELD_LIMIT }
    }

    /// Notes that a stream has something to send.
    pub fn stage(&mut self, index: u32) {
        if let Some(stream) = self.streams.get_mut(index as usize)
            && !std::mem::replace(&mut stream.staged, true)
        {
            self.staged.push(index);
        }
    }

    /// Hands the transport what waits on a stream. True if all has been taken.
    pub(super) fn flush_stream(&mut self, index: u32) -> bool {
        let Some(stream) = self.streams.get_mut(index as usize) else { return true };
        self.waiting = self.waiting.saturating_sub(std::mem::take(&mut stream.left));
        let mut send = self.quic.send_stream(stream.id);
        loop {
            if stream.held.is_empty() {
                if stream.out.is_empty() {
                    break;
                }
                stream.held = Bytes::from(std::mem::take(&mut stream.out));
            }
            match send.write_chunks(std::slice::from_mut(&mut stream.held)) {
                Ok(written) => {
                    stream.handed = stream.handed.saturating_add(written.bytes);
                    stream.moved = true;
                    // A stream that finds the window used up has had no turn.
                    self.turns += 1;
                    stream.turn = self.turns;
                }
                Err(WriteError::Blocked) => {
                    stream.left = stream.waiting();
                    self.waiting += stream.left;
                    return false;
                }
                // The event that says so decides what becomes of the request.
                Err(WriteError::Stopped(why)) => {
                    self.send_reset(index, why);
                    return true;
                }
                // The transport has reset it, or does not know it any more.
                Err(WriteError::ClosedStream) => {
                    stream.discard();
                    stream.sending = Sending::ResetSent;
                    return true;
                }
            }
        }
        if stream.sending == Sending::SizeKnown {
            match send.finish() {
                // As above.
                Err(FinishError::Stopped(why)) => self.send_reset(index, why),
                Ok(()) | Err(FinishError::ClosedStream) => stream.sending = Sending::DataSent,
            }
        }
        true
    }

    /// Forgets a stream once both its directions are done with. What a server has not acknowledged of a request to which it has
    /// responded is the protocol's to finish. What a client has not acknowledged of a response is still on its way.
    pub(super) fn reap(&mut self, index: u32) {
        let is_client = self.is_client();
        let sent = |s: Sending| if is_client { !s.is_under_way() } else { s.is_over() };
        let done = |s: &Stream| s.exchange().is_none() && s.receiving.is_over() && sent(s.sending) && s.waiting() == 0;
        if self.streams.get(index as usize).is_some_and(done) {
            self.remove(index);
        }
    }

    /// The peer has acknowledged all that was sent on a stream, to its end.
    pub fn note_delivered(&mut self, id: StreamId, now: Millis) {
        let Some(index) = self.index_of(id) else { return };
        if let Some(stream) = self.streams.get_mut(index as usize) {
            stream.sending = Sending::DataRecvd;
            stream.handed = 0;
        }
        self.idle_since = now;
        self.reap(index);
    }

    /// The last bytes of responses that are over may be on their way until this time, if some of them have moved since this was last
    /// looked at: into the transport, or to the client, which has acknowledged something.
    pub fn extend_last_bytes(&mut self, until: Millis) {
        let ends = |s: &Stream| s.exchange().is_none() && matches!(s.sending, Sending::SizeKnown | Sending::DataSent);
        if !self.streams.iter().any(|(_, s)| ends(s)) {
            return;
        }
        let acknowledged = self.quic.acknowledged();
        let progress = std::mem::replace(&mut self.acknowledged, acknowledged) != acknowledged;
        for (_, stream) in self.streams.iter_mut().filter(|(_, s)| ends(s)) {
            let moved = std::mem::take(&mut stream.moved) || progress && stream.sending == Sending::DataSent;
            if moved {
                stream.serves = Serves::Nothing { until };
            }
        }
    }

    /// Forgets a stream.
    pub(super) fn remove(&mut self, index: u32) {
        if let Some(stream) = self.streams.try_remove(index as usize) {
            self.by_id.remove(&stream.id);
            self.waiting = self.waiting.saturating_sub(stream.left);
        }
    }

    /// Ends our direction of a stream with a code, unless the transport has all of it already, and throws away what waits.
    pub fn send_reset(&mut self, index: u32, why: VarInt) {
        let Some(stream) = self.streams.get_mut(index as usize) else { return };
        if stream.sending.is_over() {
            return;
        }
        stream.sending = Sending::ResetSent;
        stream.discard();
        // It fails only where that direction is at its end already.
        let _ = self.quic.send_stream(stream.id).reset(why);
    }

    /// The client wants no more of a response: the transport lets go of what it has of it.
    pub fn give_up_response(&mut self, index: u32, why: VarInt) {
        let Some(stream) = self.streams.get_mut(index as usize) else { return };
        if stream.sending == Sending::DataSent {
            stream.sending = Sending::ResetSent;
            // It fails only where that direction is at its end already.
            let _ = self.quic.send_stream(stream.id).reset(why);
        }
    }

    /// Whether all that is left of a stream is what the client has not acknowledged of a whole response.
    pub fn is_delivering(&self, index: u32) -> bool {
        let stream = self.streams.get(index as usize);
        self.is_client() && stream.is_some_and(|s| s.sending == Sending::DataSent)
    }

    /// Ends both directions of a stream with a code, and forgets it, unless a whole response is still on its way.
    pub fn reset(&mut self, index: u32, why: Code) {
        self.send_reset(index, code(why));
        let is_delivering = self.is_delivering(index);
        let Some(stream) = self.streams.get_mut(index as usize) else { return };
        let (id, receiving) = (stream.id, stream.receiving);
        if is_delivering {
            stream.leave_exchange();
            stream.rest.clear();
            stream.moved = true;
            if !receiving.is_over() {
                stream.receiving = Receiving::StopSent;
            }
        } else {
            self.remove(index);
        }
        if !receiving.is_over() {
            self.stop(id, why);
        }
    }

    /// Forgets all streams: the connection is closed or lost.
    pub fn forget_streams(&mut self) {
        self.streams.clear();
        self.waiting = 0;
        self.by_id.clear();
        self.staged.clear();
    }
}

#[cfg(test)]
impl Stream {
    /// These bytes have come on it.
    pub fn receive(&mut self, bytes: Vec<u8>) {
        self.rest = bytes.into();
    }
}
