//! A QUIC connection with what HTTP/3 adds to it, whichever side of it is ours.

use crate::conn::Client;
use crate::exchange::priority::Priority;
use crate::memory::BUFFER_BUDGET;
use crate::transport::HIGH_WATER;
use crate::upstream::group::LaneUpstream;
use bytes::{Bytes, BytesMut};
use quinn_proto::{ConnectionHandle, Dir, StreamId, VarInt, WriteError};
use sealane_http::h3::{self, Code, MessageReader, Peer, Settings, UniReader};
use sealane_lane::{Deadline, Key, Millis};
use sealane_tls::quic::Handshake;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The most bytes that wait on a stream whose client has no window for them.
const HELD_LIMIT: usize = 8 * 1024;
/// How long a client may take to hear that its connection is about to end.
const GRACE: Millis = 1000;
/// How long a connection is taken for one that is over soon.
pub(crate) const BRIEF: Duration = Duration::from_millis(100);
/// Places for responses of one urgency.
const LEVEL: i32 = 1 << 28;
/// Priorities that are kept of requests that have not come yet.
const EARLY_PRIORITIES: usize = 64;
/// The last stream that a client can open (RFC 9000 §2.1).
const LAST_STREAM: u64 = (1 << 62) - 4;

/// Who is at the other end.
pub(crate) enum Role {
    /// A client; it opens the streams.
    Client(Client),
    /// An upstream's server (its index); we open the streams.
    Server(Rc<LaneUpstream>, usize),
}

/// ```text
/// Handshake ─► Open ─► Leaving ─► Closed ─► (drained) gone
///      └────────┴─────────────────▲
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The handshake is not over; early data may come.
    Handshake,
    Open,
    /// GOAWAY has gone out or come in: no new requests, the connection closes with the last of those there are.
    Leaving,
    /// CONNECTION_CLOSE has gone out or come in. What is left is the protocol's: datagrams that still come.
    Closed,
}

pub(crate) struct QuicConn {
    pub quic: quinn_proto::Connection,
    pub handle: ConnectionHandle,
    /// Index of its endpoint.
    pub endpoint: usize,
    pub role: Role,
    pub phase: Phase,
    pub peer: Peer,
    /// What the peer has said of itself.
    pub settings: Settings,
    /// The peer's own streams.
    pub uni: Vec<(StreamId, UniReader)>,
    pub control: Option<StreamId>,
    /// What waits to go out on our control stream.
    pub control_out: Vec<u8>,
    pub streams: Slab<Stream>,
    /// Bytes that were left on streams when they were last flushed.
    pub waiting: usize,
    pub by_id: HashMap<StreamId, u32>,
    /// Priorities that came ahead of their requests.
    pub early_priorities: VecDeque<(StreamId, Priority)>,
    /// Counts turns of streams, for taking them in turn.
    pub turns: u64,
    /// Streams that have something to send.
    pub staged: Vec<u32>,
    /// In the lane's list of connections to flush.
    pub needs_flush: bool,
    /// When the protocol's timer is known to fire.
    pub armed: Option<Instant>,
    pub deadline: Deadline,
    /// When the handshake began.
    pub began: Millis,
    pub idle_since: Millis,
    /// Requests that wait until it is made, or until the server allows more streams.
    pub requests_waiting: VecDeque<Key>,
    /// The stream id behind the last request that was looked at: what GOAWAY says.
    pub next_id: u64,
    /// A request has come before the handshake was over.
    pub called_early: bool,
    pub established: bool,
    /// The peer has closed it: nothing is sent any more, whatever comes, nor the one answer that there may be
    /// (RFC 9000 §10.2.2).
    pub silent: bool,
    /// The client has been told that the end is near, and this is when it comes.
    pub leave_at: Option<Millis>,
    /// It is no longer among the lane's clients.
    pub counted_out: bool,
    /// The datagrams so far, as long as the hello may turn out to be another lane's; then nothing has been sent yet.
    pub raw: Vec<BytesMut>,
    /// The lane slot that the hello has turned out to be for.
    pub foreign: Option<usize>,
    /// Until when nothing is sent, so that the hello may still go to another lane.
    pub hold: Option<Instant>,
    /// Until when it is taken for one that is over soon: what only a lasting connection needs waits until then. That is
    /// more ids for it, looking for larger datagrams (both `send`), and the keys of a key update.
    pub brief_until: Option<Instant>,
    /// How many requests the client may have under way, if it has not been told of all of them.
    pub all_streams: Option<u32>,
}

/// One request and its response.
pub(crate) struct Stream {
    pub id: StreamId,
    /// `None` before the request's head has come, and after the exchange has ended.
    pub exchange: Option<Key>,
    pub reader: MessageReader,
    /// Received and not taken yet.
    pub rest: Bytes,
    /// Nothing more is read: the peer's direction has ended, was reset, or was stopped by us.
    pub read_done: bool,
    /// A response: its final head has come.
    pub headed: bool,
    /// Something of a response has come.
    pub answered: bool,
    /// The server wants no more of the request.
    pub stopped: bool,
    /// Bytes of body that `content-length` still promises.
    pub promised: Option<u64>,
    /// To send.
    pub out: Vec<u8>,
    /// Refused by the protocol so far: windows are closed.
    pub held: Bytes,
    /// What waited when it was last flushed, as its connection has counted it.
    left: usize,
    pub staged: bool,
    pub priority: Priority,
    /// When it last had its turn.
    turn: u64,
    /// The end follows what is to be sent.
    pub finish: bool,
    pub finished: bool,
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
            read_done: false,
            headed: false,
            answered: false,
            stopped: false,
            promised: None,
            out: Vec::new(),
            held: Bytes::new(),
            left: 0,
            staged: false,
            priority: Priority::default(),
            turn: 0,
            finish: false,
            finished: false,
            due,
        }
    }

    /// Bytes that wait to be sent.
    pub fn waiting(&self) -> usize {
        self.out.len() + self.held.len()
    }
}

/// A response's place among others, for quinn-proto: the highest first, those alike in turn. So responses that are not
/// incremental have each a place of their own, in the order of the requests, before the incremental ones of their urgency.
fn rank(priority: Priority, id: StreamId) -> i32 {
    let level = i32::MIN + (7 - i32::from(priority.urgency.min(7))) * LEVEL;
    if priority.incremental { level } else { level + (LEVEL - 1 - i32::try_from(id.index()).unwrap_or(LEVEL)).max(1) }
}

/// A code as the protocol carries it.
pub(crate) fn code(code: Code) -> VarInt {
    VarInt::from_u32(code.value())
}

impl QuicConn {
    /// Whether it keeps silent, because its hello may still go to another lane.
    pub fn is_held(&mut self, now: Instant) -> bool {
        if self.hold.is_some_and(|until| until <= now) {
            self.stays();
        }
        self.hold.is_some()
    }

    /// Whether it is taken for one that is over soon.
    pub fn is_brief(&mut self, now: Instant) -> bool {
        if self.brief_until.is_some_and(|until| until <= now) {
            self.brief_until = None;
            self.prepare_key_update();
            self.allow_all_streams();
        }
        self.brief_until.is_some()
    }

    /// Nothing that comes later shall take the time in which keys are derived; see there.
    pub fn prepare_key_update(&self) {
        let handshake = self.quic.crypto_session().handshake_data();
        if let Some(handshake) = handshake.and_then(|d| d.downcast::<Handshake>().ok()) {
            handshake.prepare_key_update();
        }
    }

    /// The client makes more than one request, or stays: it may have as many under way as are allowed.
    pub fn allow_all_streams(&mut self) {
        if let Some(all) = self.all_streams.take() {
            self.quic.set_max_concurrent_streams(Dir::Bi, VarInt::from_u32(all));
        }
    }

    /// It does not go to another lane any more, whatever its hello says.
    pub fn stays(&mut self) {
        self.raw = Vec::new();
        self.hold = None;
    }

    /// How many bytes may wait on a stream: fewer where its window is closed, or where those of all streams are many.
    pub fn stream_limit(&self, stream: &Stream) -> usize {
        if stream.held.is_empty() && self.waiting < BUFFER_BUDGET { HIGH_WATER } else { HELD_LIMIT }
    }

    /// Notes that a stream has something to send.
    pub fn stage(&mut self, index: u32) {
        if let Some(stream) = self.streams.get_mut(index as usize)
            && !std::mem::replace(&mut stream.staged, true)
        {
            self.staged.push(index);
        }
    }

    /// The client at the other end.
    pub fn client(&mut self) -> Option<&mut Client> {
        match &mut self.role {
            Role::Client(client) => Some(client),
            Role::Server(..) => None,
        }
    }

    /// The same, to look at.
    pub fn client_ref(&self) -> Option<&Client> {
        match &self.role {
            Role::Client(client) => Some(client),
            Role::Server(..) => None,
        }
    }

    pub fn is_client(&self) -> bool {
        matches!(self.role, Role::Client(_))
    }

    /// A request has begun: its response gets its place, by its field or by what came ahead of it (RFC 9218 §7).
    pub fn place(&mut self, index: u32, field: Option<Priority>) {
        let Some(id) = self.streams.get(index as usize).map(|s| s.id) else { return };
        let early = self.early_priorities.iter().position(|(i, _)| *i == id);
        let early = early.and_then(|at| self.early_priorities.remove(at)).map(|(_, priority)| priority);
        self.prioritise(index, early.or(field).unwrap_or_default());
    }

    /// PRIORITY_UPDATE: the client's last word on a response.
    pub fn reprioritise(&mut self, id: StreamId, priority: Priority) {
        let index = self.by_id.get(&id).copied();
        // Its request has begun, or even its response has been read to its end, and waits here.
        let placed = |s: &Stream| s.exchange.is_some() || s.finish;
        match index.map(|index| (index, self.streams.get(index as usize).is_some_and(placed))) {
            Some((index, true)) => self.prioritise(index, priority),
            None if u64::from(id) < self.next_id => {}
            _ => {
                self.early_priorities.retain(|(i, _)| *i != id);
                if self.early_priorities.len() >= EARLY_PRIORITIES {
                    self.early_priorities.pop_front();
                }
                self.early_priorities.push_back((id, priority));
            }
        }
    }

    fn prioritise(&mut self, index: u32, priority: Priority) {
        let Some(stream) = self.streams.get_mut(index as usize) else { return };
        stream.priority = priority;
        // It fails only where that direction is at its end.
        let _ = self.quic.send_stream(stream.id).set_priority(rank(priority, stream.id));
    }

    /// Takes the streams that have something to send, in the order in which they may: where windows are short, the first
    /// have it all.
    pub fn take_staged(&mut self) -> Vec<u32> {
        let mut staged = std::mem::take(&mut self.staged);
        if staged.len() > 1 {
            let streams = &self.streams;
            staged.sort_by_cached_key(|index| {
                let Some(s) = streams.get(*index as usize) else { return (Reverse(0), 0) };
                (Reverse(rank(s.priority, s.id)), if s.priority.incremental { s.turn } else { 0 })
            });
        }
        staged
    }

    /// Whether a stream goes before another that is not of its rank.
    pub fn goes_before(&self, index: u32, other: u32) -> bool {
        let rank = |index: u32| self.streams.get(index as usize).map(|s| rank(s.priority, s.id));
        rank(index) > rank(other)
    }

    /// Opens our control stream as soon as the peer allows one.
    pub fn open_control(&mut self, settings: &Settings) {
        if self.control.is_none()
            && let Some(id) = self.quic.streams().open(Dir::Uni)
        {
            self.control = Some(id);
            let mut opening = Vec::new();
            h3::put_control_opening(&mut opening, settings);
            opening.append(&mut self.control_out);
            self.control_out = opening;
        }
    }

    /// Tells the peer that there is not much time left: what it sends until it has heard of it is still served
    /// (RFC 9114 §5.2).
    pub fn leave_soon(&mut self, now: Millis) {
        if matches!(self.phase, Phase::Handshake | Phase::Open) && self.leave_at.is_none() {
            self.leave_at = Some(now + GRACE);
            h3::put_goaway(&mut self.control_out, LAST_STREAM);
        }
    }

    /// Tells the peer to open no more streams.
    pub fn leave(&mut self) {
        if matches!(self.phase, Phase::Handshake | Phase::Open) {
            self.phase = Phase::Leaving;
            h3::put_goaway(&mut self.control_out, self.next_id);
        }
    }

    /// Hands the protocol what waits on our control stream.
    pub fn flush_control(&mut self) {
        let Some(id) = self.control else { return };
        if self.control_out.is_empty() {
            return;
        }
        // What the peer's window does not let out waits for it to say so.
        if let Ok(n) = self.quic.send_stream(id).write(&self.control_out) {
            self.control_out.drain(..n);
        }
    }

    /// Hands the protocol what waits on a stream. True if all has been taken.
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
                    // Whoever finds the window used up has had no turn.
                    self.turns += 1;
                    stream.turn = self.turns;
                }
                Err(WriteError::Blocked) => {
                    stream.left = stream.waiting();
                    self.waiting += stream.left;
                    return false;
                }
                // Nobody wants it any more; the event that says so decides what becomes of the request.
                Err(_) => {
                    stream.held.clear();
                    stream.out = Vec::new();
                    stream.finished = true;
                    return true;
                }
            }
        }
        if stream.finish && !stream.finished {
            stream.finished = true;
            // As above.
            let _ = send.finish();
        }
        true
    }

    /// Whether a client that leaves may be told so: it has all of its responses. What the protocol still holds of them, or
    /// may have to send again, would be lost with the connection.
    pub fn may_close(&mut self) -> bool {
        let ours = usize::from(self.control.is_some());
        self.streams.is_empty() && !(self.is_client() && self.quic.streams().send_streams() > ours)
    }

    /// Forgets a stream once both its directions are done with. The protocol finishes what it has been given.
    pub fn reap(&mut self, index: u32) {
        let done = |s: &Stream| s.exchange.is_none() && s.read_done && s.finished && s.waiting() == 0;
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

    /// Ends both directions of a stream with a code, and forgets it.
    pub fn reset(&mut self, index: u32, why: Code) {
        let Some(stream) = self.streams.get(index as usize) else { return };
        let (id, read_done, finished) = (stream.id, stream.read_done, stream.finished);
        // Each fails only where that direction is at its end already.
        if !finished {
            let _ = self.quic.send_stream(id).reset(code(why));
        }
        if !read_done {
            let _ = self.quic.recv_stream(id).stop(code(why));
        }
        self.remove(index);
    }

    /// Closes the connection.
    pub fn close(&mut self, now: Instant, why: Code, reason: &'static str) {
        if self.phase != Phase::Closed {
            self.phase = Phase::Closed;
            self.quic.close(now, code(why), Bytes::from_static(reason.as_bytes()));
        }
    }
}
