//! One stream of a connection: a request and its response, whichever side of it is ours.
//!
//! [`Receiving`] and [`Sending`] are the states of its two directions, with the names of RFC 9000 §3 where the transport has
//! the same state. What is lost, resent and acknowledged is the transport's and not seen here.

use super::code;
use super::connection::H3Connection;
use crate::exchange::priority::Priority;
use crate::memory::BUFFER_BUDGET;
use crate::transport::HIGH_WATER;
use bytes::Bytes;
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
pub(crate) enum Receiving {
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
    pub fn begin_body(&mut self) {
        if !self.is_over() {
            *self = Self::Body;
        }
    }
}

/// Our direction of a stream (RFC 9000 §3.1), as far as HTTP/3 has written it:
///
/// ```text
/// Send ─► SizeKnown ─► DataSent
///   └─────────┴──────► ResetSent
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// More may be staged.
    Send,
    /// The message is staged to its end, and the end follows what waits.
    SizeKnown,
    /// The transport has all of it, and the end.
    DataSent,
    /// The peer wants no more: the transport has been told to reset it. What is staged from now on is thrown away.
    ResetSent,
}

impl Sending {
    /// Nothing of it is ours to send any more.
    #[inline]
    pub fn is_over(self) -> bool {
        matches!(self, Self::DataSent | Self::ResetSent)
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

/// One request and its response.
pub(crate) struct Stream {
    pub id: StreamId,
    /// `None` before the request's head has come, and after the exchange has ended.
    pub exchange: Option<Key>,
    pub reader: MessageReader,
    /// Received and not taken yet.
    pub rest: Bytes,
    pub receiving: Receiving,
    pub sending: Sending,
    /// Bytes of body that `content-length` still promises.
    pub promised: Option<u64>,
    /// To send.
    pub out: Vec<u8>,
    /// Refused by the protocol so far: windows are closed.
    pub held: Bytes,
    /// What waited when it was last flushed, as its connection has counted it.
    pub(super) left: usize,
    pub staged: bool,
    pub priority: Priority,
    /// When it last had its turn.
    pub(super) turn: u64,
    /// Of a client's stream without an exchange: when its request's head must have come, or its response must be through.
    pub due: Millis,
}

impl Stream {
    pub fn new(id: StreamId, reader: MessageReader, due: Millis) -> Self {
        Self {
            id,
            exchange: None,
            reader,
            rest: Bytes::new(),
            receiving: Receiving::Awaited,
            sending: Sending::Send,
            promised: None,
            out: Vec::new(),
            held: Bytes::new(),
            left: 0,
            staged: false,
            priority: Priority::default(),
            turn: 0,
            due,
        }
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
    pub fn waiting(&self) -> usize {
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
    pub fn add(&mut self, stream: Stream) -> u32 {
        let id = stream.id;
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
    pub fn stop(&mut self, id: StreamId, why: Code) {
        // It fails only where that direction is at its end already.
        let _ = self.quic.recv_stream(id).stop(code(why));
    }

    /// How many bytes may wait on a stream. Towards a client: fewer where its window is closed, or where those of all
    /// streams are many.
    pub fn stream_limit(&self, stream: &Stream) -> usize {
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
    pub fn flush_stream(&mut self, index: u32) -> bool {
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
                Ok(_) => {
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

    /// Forgets a stream once both its directions are done with. The protocol finishes what it has been given.
    pub fn reap(&mut self, index: u32) {
        let done =
            |s: &Stream| s.exchange.is_none() && s.receiving.is_over() && s.sending.is_over() && s.waiting() == 0;
        if self.streams.get(index as usize).is_some_and(done) {
            self.remove(index);
        }
    }

    /// Forgets a stream.
    pub fn remove(&mut self, index: u32) {
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

    /// Ends both directions of a stream with a code, and forgets it.
    pub fn reset(&mut self, index: u32, why: Code) {
        let Some(stream) = self.streams.get(index as usize) else { return };
        let (id, receiving) = (stream.id, stream.receiving);
        self.send_reset(index, code(why));
        if !receiving.is_over() {
            self.stop(id, why);
        }
        self.remove(index);
    }

    /// Forgets all streams: the connection is closed or lost.
    pub fn forget_streams(&mut self) {
        self.streams.clear();
        self.waiting = 0;
        self.by_id.clear();
        self.staged.clear();
    }
}
