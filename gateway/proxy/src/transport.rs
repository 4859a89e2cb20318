//! A connection's socket with its TLS session: plaintext in, plaintext out.
//!
//! Reading: [`Transport::read`] takes what the socket has, once, and leaves plaintext in the lane's scratch buffers.
//! Writing: callers append to [`Transport::stage`]; [`Transport::flush`] encrypts it all and sends it in one call, straight from the
//! lane's records. Only what the socket does not take is kept, in `queue`.
//!
//! A source asks [`Transport::room`] before it reads. A socket with a lot of space takes 64 KiB at a time. One that is full, or
//! nearly so, takes 4 KiB at a time: a slow reader can make the proxy hold only this much. If many sockets of the lane are full,
//! a socket with space takes 8 KiB at a time.

use crate::scratch::{ReadBuffers, Scratch};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, send, sendmsg, shutdown};
use sealane_lane::{Ready, WriteQueue};
use sealane_sys::sockopt::send_space;
use sealane_tls::remote::{self, Back, Watched};
use sealane_tls::{Session, TlsError};
use std::cell::Cell;
use std::io::IoSlice;
use std::os::fd::OwnedFd;

/// The most bytes that are staged on a connection whose socket has space for them.
pub(crate) const HIGH_WATER: usize = 64 * 1024;
/// The most bytes that wait on a connection whose socket has no space.
pub(crate) const LOW_WATER: usize = 4 * 1024;
/// The most bytes that are staged on a connection while many others of the lane have bytes that their sockets do not take.
const CROWDED_WATER: usize = 8 * 1024;
/// That many.
const CROWD: usize = 32;
/// A sink with less room than this takes no part of a longer piece, so that pieces stay large.
pub(crate) const MIN_CREDIT: usize = 4 * 1024;
/// The bound of a connection's write queue. Sources stop long before it; what they do not decide fits as well: heads, a
/// configured response body, the answers of the TLS session.
const QUEUE_LIMIT: usize = 16 << 20;
/// Chunks of the queue that are sent in one call.
const SLICES: usize = 16;

thread_local! {
    /// Connections of this lane whose sockets have not taken all of what was sent.
    static BACKED_UP: Cell<usize> = const { Cell::new(0) };
}

/// Counts a connection in [`BACKED_UP`] for as long as it exists.
struct BackedUp;

impl BackedUp {
    fn new() -> Self {
        BACKED_UP.set(BACKED_UP.get() + 1);
        Self
    }
}

impl Drop for BackedUp {
    fn drop(&mut self) {
        BACKED_UP.set(BACKED_UP.get() - 1);
    }
}

#[derive(Debug)]
pub(crate) enum TransportError {
    /// The socket failed or was reset, or the peer takes nothing of far too much.
    Io,
    /// The TLS session failed; an alert may wait in the queue.
    Tls(TlsError),
}

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    /// Something was read; it may have led to no plaintext.
    Progress,
    /// Nothing now; an event will say when.
    Blocked,
    /// The peer will send no more. `clean` unless TLS ended without close_notify.
    End { clean: bool },
}

pub(crate) struct Transport {
    pub fd: OwnedFd,
    pub tls: Option<Box<Session>>,
    /// Received, but not yet a whole record (or, before there is a session, not yet a whole hello).
    pub unread: Vec<u8>,
    /// Plaintext to send.
    pub stage: Vec<u8>,
    /// Encrypted (under TLS) and not taken by the socket yet.
    queue: WriteQueue,
    /// There while the queue has something.
    backed_up: Option<BackedUp>,
    /// At least so many bytes would be taken by the socket: what it said when it was last asked, less what was sent.
    space: usize,
    pub readable: bool,
    pub writable: bool,
    rdhup: bool,
    /// The peer has said that it will send no more.
    pub ended: bool,
    /// In the lane's list of connections to flush.
    needs_flush: bool,
    sending: Sending,
    /// How many more bytes may be sent to a client that is not proven to be where it says (`crate::accept::syn`); `None`: any.
    allowance: Option<usize>,
}

/// Where the direction towards the peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Open,
    /// The end follows the staged bytes: close_notify (under TLS).
    Ending(Fin),
    /// The end is in the queue, or has been sent.
    Ended(Fin),
}

/// How the peer's system is told of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    /// When the connection is closed, or it has been told.
    WithConnection,
    /// Behind what is in the queue, while reading goes on (the end of one direction of a tunnel).
    BehindQueue,
}

impl Transport {
    pub fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            tls: None,
            unread: Vec::new(),
            stage: Vec::new(),
            queue: WriteQueue::new(QUEUE_LIMIT),
            backed_up: None,
            space: 0,
            readable: true,
            writable: true,
            rdhup: false,
            ended: false,
            needs_flush: false,
            sending: Sending::Open,
            allowance: None,
        }
    }

    /// It is to be flushed. True if it is not in the lane's list for that yet: the caller puts it there.
    #[inline]
    pub fn mark_for_flush(&mut self) -> bool {
        !std::mem::replace(&mut self.needs_flush, true)
    }

    /// It has left the lane's list, and is flushed now.
    #[inline]
    pub fn begin_flush(&mut self) {
        self.needs_flush = false;
    }

    /// It is another socket for the same connection, whose place in the lane's list it takes.
    pub fn take_place_of(&mut self, other: &Self) {
        self.needs_flush = other.needs_flush;
    }

    /// Takes over what the loop has seen.
    #[inline]
    pub fn note(&mut self, ready: Ready) {
        self.readable |= ready.read;
        self.writable |= ready.write;
        self.rdhup |= ready.peer_closed;
    }

    /// How many more bytes may be sent to a client that is not proven to be where it says; `None`: any.
    #[inline]
    pub fn allowance(&self) -> Option<usize> {
        self.allowance
    }

    /// So many more may be sent from now on.
    #[inline]
    pub fn allow(&mut self, bytes: Option<usize>) {
        self.allowance = bytes;
    }

    /// Bytes that wait to be sent.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.stage.len() + self.queue.len()
    }

    /// Bytes of memory that wait with the connection: to be sent, or to be read on.
    pub fn held(&self) -> usize {
        self.stage.capacity() + self.queue.held() + self.unread.capacity()
    }

    /// How many of `want` bytes may be staged; 0 when there is so little room that waiting is better. `given`: bytes that
    /// were accepted before and have not been staged yet.
    #[inline]
    pub fn room(&mut self, given: usize, want: usize) -> usize {
        let waiting = self.waiting() + given;
        let credit = self.limit(waiting + want).saturating_sub(waiting);
        if credit < want.min(MIN_CREDIT) { 0 } else { credit.min(want) }
    }

    /// How many bytes may wait here, as far as that matters to who wants `need` of them to.
    #[inline]
    fn limit(&mut self, need: usize) -> usize {
        if need <= LOW_WATER || !self.writable || !self.queue.is_empty() {
            return LOW_WATER;
        }
        if self.space < 2 * need.min(HIGH_WATER) {
            self.space = send_space(&self.fd).unwrap_or(HIGH_WATER);
        }
        // Half of it: what the kernel counts is more than the bytes. It may run short of memory all the same, when there are
        // thousands of slow readers: then what it does not take of a piece stays here, so pieces get small.
        let most = if BACKED_UP.get() < CROWD { HIGH_WATER } else { CROWDED_WATER };
        (self.space / 2).clamp(LOW_WATER, most)
    }

    /// How many bytes of frames may be staged of what was accepted before.
    #[inline]
    pub fn frame_room(&self) -> usize {
        let limit = if self.queue.is_empty() { HIGH_WATER } else { LOW_WATER };
        limit.saturating_sub(self.waiting())
    }

    /// So much waits that nothing new is begun whose answer would have to wait as well.
    #[inline]
    pub fn is_backed_up(&self) -> bool {
        self.waiting() >= if self.queue.is_empty() { HIGH_WATER } else { LOW_WATER }
    }

    /// What waited has left: sources may go on.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.waiting() <= MIN_CREDIT
    }

    /// The peer has sent, or is known to be sending, its end.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.ended || self.rdhup
    }

    /// Nothing waits to be sent.
    #[inline]
    pub fn is_flushed(&self) -> bool {
        self.stage.is_empty() && self.queue.is_empty() && !matches!(self.sending, Sending::Ending(_))
    }

    /// Whether the socket may have bytes that have not been read.
    #[inline]
    pub fn may_have_unread(&self) -> bool {
        self.readable && !self.ended
    }

    /// Reads raw bytes into `unread`, for what comes before TLS.
    pub fn read_raw(&mut self, s: &mut Scratch) -> Result<ReadResult, TransportError> {
        if !self.readable {
            return Ok(ReadResult::Blocked);
        }
        let ReadBuffers { input, .. } = s.read_buffers();
        let n = match recv(&self.fd, &mut input[..], RecvFlags::empty()) {
            Ok((0, _)) => {
                self.ended = true;
                return Ok(ReadResult::End { clean: true });
            }
            Ok((n, _)) => n,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(ReadResult::Blocked);
            }
            Err(Errno::INTR) => return Ok(ReadResult::Progress),
            Err(_) => return Err(TransportError::Io),
        };
        self.note_short_read(n, input.len());
        self.unread.extend_from_slice(&input[..n]);
        Ok(ReadResult::Progress)
    }

    /// A short read means that the socket is empty, so the read that would only say EAGAIN is spared. Not after RDHUP:
    /// data and the end came as one event, and there will be no other.
    #[inline]
    fn note_short_read(&mut self, n: usize, room: usize) {
        if n < room && !self.rdhup {
            self.readable = false;
        }
    }

    /// Reads once, at most `limit` bytes. Plaintext and 0-RTT data are left in `s`.
    pub fn read(&mut self, s: &mut Scratch, limit: usize) -> Result<ReadResult, TransportError> {
        let ReadBuffers { input, plain, early, records } = s.read_buffers();
        if self.ended {
            return Ok(ReadResult::End { clean: true });
        }
        if !self.readable {
            return Ok(ReadResult::Blocked);
        }
        let kept = self.unread.len();
        // A record is at most 16 KiB and some, so there is room behind half a one; a handshake message spread over
        // records may need more, and then it is longer than anything that a peer has to say.
        if kept >= input.len() {
            return Err(TransportError::Io);
        }
        input[..kept].copy_from_slice(&self.unread);
        let limit = input.len().min(kept.saturating_add(limit.max(1)));
        let n = match recv(&self.fd, &mut input[kept..limit], RecvFlags::empty()) {
            Ok((n, _)) => n,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(ReadResult::Blocked);
            }
            Err(Errno::INTR) => return Ok(ReadResult::Progress),
            Err(_) => return Err(TransportError::Io),
        };
        if n == 0 {
            self.ended = true;
            // RFC 8446 §6.1: an end without close_notify, behind which nothing is read, may be an attacker's.
            return Ok(ReadResult::End { clean: self.tls.is_none() });
        }
        self.note_short_read(n, limit - kept);
        let Some(tls) = &mut self.tls else {
            plain.extend_from_slice(&input[..n]);
            return Ok(ReadResult::Progress);
        };
        let end = kept + n;
        let result = tls.read(&mut input[..end], plain, early, records);
        self.enqueue(records.filled())?;
        let done = result.map_err(TransportError::Tls)?;
        // As large as what it keeps, and no larger: a peer that stops in the middle of a record holds it.
        self.unread = input[done.consumed..end].to_vec();
        if done.closed {
            self.ended = true;
            if plain.is_empty() {
                return Ok(ReadResult::End { clean: true });
            }
        }
        Ok(ReadResult::Progress)
    }

    /// Starts TLS as a server with the hello that was read raw.
    pub fn start_server(&mut self, session: Session, s: &mut Scratch) -> Result<(), TransportError> {
        let ReadBuffers { plain, early, records, .. } = s.read_buffers();
        let tls = self.tls.insert(Box::new(session));
        let mut hello = std::mem::take(&mut self.unread);
        let result = tls.read(&mut hello, plain, early, records);
        self.enqueue(records.filled())?;
        let done = result.map_err(TransportError::Tls);
        if let Ok(done) = &done {
            hello.drain(..done.consumed.min(hello.len()));
        }
        self.unread = if hello.is_empty() { Vec::new() } else { hello };
        done.map(|_| ())
    }

    /// [`Self::start_server`] where a token may hold the certificate's key. If the hello needs a signature of the token, nothing is
    /// sent and nothing of the hello is taken: the session is of no use, and another one takes the hello elsewhere.
    pub fn start_server_watched(&mut self, session: Session, s: &mut Scratch) -> Result<Watched, TransportError> {
        let hello = self.unread.clone();
        let ReadBuffers { plain, early, records, .. } = s.read_buffers();
        let mut session = Box::new(session);
        let (result, watched) = remote::watch(|| session.read(&mut self.unread, plain, early, records));
        if watched.refused {
            self.unread = hello;
            return Ok(watched);
        }
        self.tls = Some(session);
        self.enqueue(records.filled())?;
        let done = result.map_err(TransportError::Tls)?;
        self.unread.drain(..done.consumed.min(self.unread.len()));
        Ok(watched)
    }

    /// A session comes back that has taken a hello elsewhere.
    pub fn resume_server(&mut self, back: Back, s: &mut Scratch) -> Result<(), TransportError> {
        s.clear_plaintext();
        self.tls = Some(back.session);
        self.enqueue(back.records.filled())?;
        self.unread = back.rest;
        back.result.map_err(TransportError::Tls)
    }

    /// Starts TLS as a client; the hello waits to be sent.
    pub fn start_client(&mut self, session: Session, s: &Scratch) {
        self.tls = Some(Box::new(session));
        self.send_raw(s.records());
    }

    /// Bytes to send as they are: a PROXY header, an alert without a session.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        // They come first, so there is room.
        let _ = self.enqueue(bytes);
    }

    fn enqueue(&mut self, bytes: &[u8]) -> Result<(), TransportError> {
        self.queue.push(bytes).map_err(|_| TransportError::Io)?;
        if !bytes.is_empty() && self.backed_up.is_none() {
            self.backed_up = Some(BackedUp::new());
        }
        Ok(())
    }

    /// Whether the TLS handshake (if there is TLS) is not over yet.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|t| t.is_handshaking())
    }

    /// close_notify and FIN follow what is staged.
    pub fn finish(&mut self) {
        if self.sending == Sending::Open {
            self.sending = Sending::Ending(Fin::WithConnection);
        }
    }

    /// Sends close_notify before the socket closes (RFC 8446 §6.1), if nothing else waits to be sent. A server may forget the session of a
    /// connection that ends without it, so that no connection can resume it (OpenSSL does, where it keeps the sessions itself).
    pub fn say_goodbye(&mut self, s: &mut Scratch) {
        if self.tls.as_ref().is_some_and(|tls| !tls.is_handshaking()) && self.is_flushed() && !self.is_ending() {
            self.finish();
            // Whether it arrives or not, the socket closes now.
            let _ = self.flush(s);
        }
    }

    /// This direction ends behind what is staged; the other goes on.
    pub fn finish_sending(&mut self) {
        self.sending = match self.sending {
            Sending::Open | Sending::Ending(_) => Sending::Ending(Fin::BehindQueue),
            Sending::Ended(_) => Sending::Ended(Fin::BehindQueue),
        };
    }

    /// Encrypts what is staged and sends what the socket takes. `Ok(true)` if all has gone.
    pub fn flush(&mut self, s: &mut Scratch) -> Result<bool, TransportError> {
        let notify = matches!(self.sending, Sending::Ending(_));
        if let Some(tls) = &mut self.tls {
            if !self.stage.is_empty() || notify {
                let records = s.empty_records();
                // A session that cannot write (a handshake that is not over) has nothing to notify either.
                if !(self.stage.is_empty() && tls.is_handshaking()) {
                    tls.write(&self.stage, notify, records).map_err(TransportError::Tls)?;
                }
                self.stage.clear();
                self.note_ended();
                self.send(s.records())?;
            }
        } else {
            self.note_ended();
            if !self.stage.is_empty() {
                let mut stage = std::mem::take(&mut self.stage);
                let sent = self.send(&stage);
                stage.clear();
                self.stage = stage;
                sent?;
            }
        }
        s.return_buffer(&mut self.stage);
        if !self.queue.is_empty() {
            self.send_queue(&[])?;
        }
        if self.queue.is_empty() {
            self.half_close();
        }
        Ok(self.queue.is_empty())
    }

    /// Sends straight from where the bytes are, behind what waits already; only the rest is kept.
    fn send(&mut self, mut bytes: &[u8]) -> Result<(), TransportError> {
        if !self.queue.is_empty() {
            let sent = self.send_queue(bytes)?;
            bytes = &bytes[sent..];
        }
        while self.queue.is_empty() && self.writable && !bytes.is_empty() {
            let allowed = self.allowed(bytes);
            if allowed.is_empty() {
                break;
            }
            match send(&self.fd, allowed, SendFlags::NOSIGNAL) {
                Ok(n) => {
                    // A short send means that the socket is full; an event follows.
                    self.writable = n == allowed.len();
                    bytes = &bytes[n..];
                    self.spend(n);
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Err(TransportError::Io),
            }
        }
        self.enqueue(bytes)
    }

    /// As much of the bytes as may be sent to this client now.
    #[inline]
    fn allowed<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        match self.allowance {
            None => bytes,
            Some(left) => &bytes[..left.min(bytes.len())],
        }
    }

    #[inline]
    fn spend(&mut self, sent: usize) {
        self.space = self.space.saturating_sub(sent);
        if let Some(left) = &mut self.allowance {
            *left -= sent;
        }
    }

    /// The end is in the queue now, if one was to follow.
    #[inline]
    fn note_ended(&mut self) {
        if let Sending::Ending(fin) = self.sending {
            self.sending = Sending::Ended(fin);
        }
    }

    fn half_close(&mut self) {
        if self.sending == Sending::Ended(Fin::BehindQueue) {
            self.sending = Sending::Ended(Fin::WithConnection);
            // It fails only where the connection is gone, and then reading says so.
            let _ = shutdown(&self.fd, Shutdown::Write);
        }
    }

    /// Sends what waits, and bytes behind it as far as they go with the last of it; returns how many of these have gone.
    #[inline(never)]
    fn send_queue(&mut self, behind: &[u8]) -> Result<usize, TransportError> {
        while self.writable && !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES + 1];
            let mut count = self.queue.slices(&mut slices[..SLICES]);
            if self.allowance.is_some() {
                let allowed = self.allowed(self.queue.first());
                if allowed.is_empty() {
                    break;
                }
                (slices[0], count) = (IoSlice::new(allowed), 1);
            } else if count < SLICES && !behind.is_empty() {
                // All that waits is in them.
                (slices[count], count) = (IoSlice::new(behind), count + 1);
            }
            let slices = &slices[..count];
            let length: usize = slices.iter().map(|s| s.len()).sum();
            match sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
                Ok(n) => {
                    self.writable = n == length;
                    let waited = n.min(self.queue.len());
                    self.queue.consume(waited);
                    if self.queue.is_empty() {
                        self.backed_up = None;
                    }
                    self.spend(n);
                    if n > waited {
                        return Ok(n - waited);
                    }
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Err(TransportError::Io),
            }
        }
        Ok(0)
    }

    /// Gives the stage's buffer back; called when the connection is let go of.
    pub fn dismantle(mut self, s: &mut Scratch) {
        self.stage.clear();
        s.return_buffer(&mut self.stage);
    }
}
