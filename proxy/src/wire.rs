//! A connection's socket with its TLS session: plaintext in, plaintext out.
//!
//! Reading: [`Wire::read`] takes what the socket has, once, and leaves plaintext in the lane's scratch buffers.
//! Writing: callers append to [`Wire::stage`]; [`Wire::flush`] encrypts it all and sends it in one call. What the socket
//! does not take stays in `unsent`, which is how a slow peer's back-pressure is seen ([`Wire::credit`]).

use crate::scratch::Scratch;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use sealane_lane::Ready;
use sealane_tls::{Session, TlsError};
use std::os::fd::OwnedFd;

/// Most bytes that wait to be sent on a connection; sources push no more than what is left of it.
pub(crate) const HIGH_WATER: usize = 64 * 1024;
/// A sink with less room than this is full: pieces stay large, and a trailer section always fits.
pub(crate) const MIN_CREDIT: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) enum WireError {
    /// The socket failed or was reset.
    Io,
    /// The TLS session failed; an alert may wait in `unsent`.
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

pub(crate) struct Wire {
    pub fd: OwnedFd,
    pub tls: Option<Box<Session>>,
    /// Received, but not yet a whole record (or, before there is a session, not yet a whole hello).
    pub unread: Vec<u8>,
    /// Plaintext to send.
    pub stage: Vec<u8>,
    unsent: Vec<u8>,
    sent: usize,
    pub readable: bool,
    pub writable: bool,
    rdhup: bool,
    /// The peer has said that it will send no more.
    pub ended: bool,
    /// In the lane's list of connections to flush.
    pub dirty: bool,
    /// close_notify (under TLS) and then FIN follow the staged bytes.
    finish: bool,
    finished: bool,
    tls_closed: bool,
    /// How many more bytes may be sent to a client that is not proven to be where it says (`crate::syn`); `None`: any.
    pub allowance: Option<usize>,
    /// FIN follows the staged bytes, while reading goes on (the end of one direction of a tunnel).
    half_close: bool,
}

impl Wire {
    pub fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            tls: None,
            unread: Vec::new(),
            stage: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            readable: true,
            writable: true,
            rdhup: false,
            ended: false,
            dirty: false,
            finish: false,
            finished: false,
            tls_closed: false,
            allowance: None,
            half_close: false,
        }
    }

    /// Takes over what the loop has seen.
    #[inline]
    pub fn note(&mut self, ready: Ready) {
        self.readable |= ready.read;
        self.writable |= ready.write;
        self.rdhup |= ready.peer_closed;
    }

    /// How many more bytes may be staged.
    #[inline]
    pub fn credit(&self) -> usize {
        HIGH_WATER.saturating_sub(self.stage.len() + self.unsent.len() - self.sent)
    }

    /// How many of `want` bytes may be staged; 0 when there is so little room that waiting is better.
    #[inline]
    pub fn room(&self, want: usize) -> usize {
        let credit = self.credit();
        if credit < MIN_CREDIT { 0 } else { credit.min(want) }
    }

    /// The peer has sent, or is known to be sending, its end.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.ended || self.rdhup
    }

    /// Nothing waits to be sent.
    #[inline]
    pub fn is_flushed(&self) -> bool {
        self.stage.is_empty() && self.unsent.is_empty() && (!self.finish || self.finished)
    }

    /// Reads raw bytes into `unread`, for what comes before TLS.
    pub fn read_raw(&mut self, s: &mut Scratch) -> Result<ReadResult, WireError> {
        if !self.readable {
            return Ok(ReadResult::Blocked);
        }
        let n = match recv(&self.fd, &mut s.input[..], RecvFlags::empty()) {
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
            Err(_) => return Err(WireError::Io),
        };
        self.note_short_read(n, s.input.len());
        s.pool.equip(&mut self.unread);
        self.unread.extend_from_slice(&s.input[..n]);
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

    /// Reads once. Plaintext is left in `s.plain`, 0-RTT data in `s.early`.
    pub fn read(&mut self, s: &mut Scratch) -> Result<ReadResult, WireError> {
        s.plain.clear();
        s.early.clear();
        if self.ended {
            return Ok(ReadResult::End { clean: true });
        }
        if !self.readable {
            return Ok(ReadResult::Blocked);
        }
        let kept = self.unread.len();
        // A record is at most 16 KiB and some, so there is room behind half a one; a handshake message spread over
        // records may need more, and then it is longer than anything that a peer has to say.
        if kept >= s.input.len() {
            return Err(WireError::Io);
        }
        s.input[..kept].copy_from_slice(&self.unread);
        let n = match recv(&self.fd, &mut s.input[kept..], RecvFlags::empty()) {
            Ok((n, _)) => n,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(ReadResult::Blocked);
            }
            Err(Errno::INTR) => return Ok(ReadResult::Progress),
            Err(_) => return Err(WireError::Io),
        };
        if n == 0 {
            self.ended = true;
            // RFC 8446 §6.1: an end without close_notify may be an attacker's.
            return Ok(ReadResult::End { clean: self.tls.is_none() || self.tls_closed });
        }
        self.note_short_read(n, s.input.len() - kept);
        let Some(tls) = &mut self.tls else {
            s.plain.extend_from_slice(&s.input[..n]);
            return Ok(ReadResult::Progress);
        };
        let end = kept + n;
        s.records.clear();
        let result = tls.read(&mut s.input[..end], &mut s.plain, &mut s.early, &mut s.records);
        if !s.records.is_empty() {
            s.pool.equip(&mut self.unsent);
            self.unsent.extend_from_slice(s.records.filled());
        }
        let done = result.map_err(WireError::Tls)?;
        self.keep_unread(done.consumed, end, s);
        if done.closed {
            self.ended = true;
            self.tls_closed = true;
            if s.plain.is_empty() {
                return Ok(ReadResult::End { clean: true });
            }
        }
        Ok(ReadResult::Progress)
    }

    fn keep_unread(&mut self, consumed: usize, end: usize, s: &mut Scratch) {
        self.unread.clear();
        if consumed < end {
            s.pool.equip(&mut self.unread);
            self.unread.extend_from_slice(&s.input[consumed..end]);
        } else {
            s.pool.reclaim(&mut self.unread);
        }
    }

    /// Starts TLS as a server with the hello that was read raw.
    pub fn start_server(&mut self, session: Session, s: &mut Scratch) -> Result<(), WireError> {
        s.plain.clear();
        s.early.clear();
        let tls = self.tls.insert(Box::new(session));
        let mut hello = std::mem::take(&mut self.unread);
        s.records.clear();
        let result = tls.read(&mut hello, &mut s.plain, &mut s.early, &mut s.records);
        s.pool.equip(&mut self.unsent);
        self.unsent.extend_from_slice(s.records.filled());
        let done = result.map_err(WireError::Tls);
        if let Ok(done) = &done {
            hello.drain(..done.consumed.min(hello.len()));
        }
        self.unread = hello;
        s.pool.reclaim(&mut self.unread);
        done.map(|_| ())
    }

    /// Starts TLS as a client; the hello waits to be sent.
    pub fn start_client(&mut self, session: Session, s: &mut Scratch) {
        self.tls = Some(Box::new(session));
        s.pool.equip(&mut self.unsent);
        self.unsent.extend_from_slice(s.records.filled());
    }

    /// Bytes to send as they are: a PROXY header, an alert without a session.
    pub fn send_raw(&mut self, bytes: &[u8], s: &mut Scratch) {
        s.pool.equip(&mut self.unsent);
        self.unsent.extend_from_slice(bytes);
    }

    /// Whether the TLS handshake (if there is TLS) is not over yet.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|t| t.is_handshaking())
    }

    /// close_notify and FIN follow what is staged.
    pub fn finish(&mut self) {
        self.finish = true;
    }

    /// This direction ends behind what is staged; the other goes on.
    pub fn finish_sending(&mut self) {
        self.finish = true;
        self.half_close = true;
    }

    /// Encrypts what is staged and sends what the socket takes. `Ok(true)` if all has gone.
    pub fn flush(&mut self, s: &mut Scratch) -> Result<bool, WireError> {
        let notify = self.finish && !self.finished;
        if let Some(tls) = &mut self.tls {
            if !self.stage.is_empty() || notify {
                s.records.clear();
                let mut plain = &self.stage[..];
                // A session that cannot write (a handshake that is not over) has nothing to notify either.
                if !(plain.is_empty() && tls.is_handshaking()) {
                    tls.write(plain, notify, &mut s.records).map_err(WireError::Tls)?;
                    plain = &[];
                }
                debug_assert!(plain.is_empty());
                self.stage.clear();
                self.finished |= notify;
                if self.unsent.is_empty() {
                    return self.send_records(s);
                }
                self.unsent.extend_from_slice(s.records.filled());
            }
        } else {
            self.finished |= notify;
            if !self.stage.is_empty() {
                if self.unsent.is_empty() {
                    std::mem::swap(&mut self.unsent, &mut self.stage);
                } else {
                    self.unsent.extend_from_slice(&self.stage);
                    self.stage.clear();
                }
            }
        }
        self.send_unsent(s)
    }

    /// Sends straight from the lane's records; only the rest is kept.
    fn send_records(&mut self, s: &mut Scratch) -> Result<bool, WireError> {
        s.pool.reclaim(&mut self.stage);
        let mut at = 0;
        while self.writable && at < s.records.filled().len() {
            let bytes = self.allowed(&s.records.filled()[at..]);
            if bytes.is_empty() {
                break;
            }
            match send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => {
                    at += n;
                    self.writable = n == bytes.len();
                    self.spend(n);
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Err(WireError::Io),
            }
        }
        if at < s.records.filled().len() {
            s.pool.equip(&mut self.unsent);
            self.unsent.extend_from_slice(&s.records.filled()[at..]);
        }
        if self.unsent.is_empty() {
            self.half_close();
        }
        Ok(self.unsent.is_empty())
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
        if let Some(left) = &mut self.allowance {
            *left -= sent;
        }
    }

    fn half_close(&mut self) {
        if self.half_close {
            self.half_close = false;
            // It fails only where the connection is gone, and then reading says so.
            let _ = shutdown(&self.fd, Shutdown::Write);
        }
    }

    fn send_unsent(&mut self, s: &mut Scratch) -> Result<bool, WireError> {
        while self.writable && self.sent < self.unsent.len() {
            let bytes = self.allowed(&self.unsent[self.sent..]);
            if bytes.is_empty() {
                break;
            }
            match send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => {
                    // A short send means that the socket is full; an event follows.
                    self.writable = n == bytes.len();
                    self.sent += n;
                    self.spend(n);
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Err(WireError::Io),
            }
        }
        if self.sent == self.unsent.len() {
            self.sent = 0;
            self.unsent.clear();
            s.pool.reclaim(&mut self.unsent);
            s.pool.reclaim(&mut self.stage);
            self.half_close();
            return Ok(true);
        }
        Ok(false)
    }

    /// Gives the buffers back; called when the connection is let go of.
    pub fn dismantle(mut self, s: &mut Scratch) {
        for buffer in [&mut self.unread, &mut self.stage, &mut self.unsent] {
            buffer.clear();
            s.pool.reclaim(buffer);
        }
    }
}
