//! TCP connections of peers: packets with a 16-bit length before each (OpenVPN over TCP).

use super::outbox::Refusal;
use crate::plane::PeerId;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use sealane_lane::{Full, Millis, WriteQueue};
use sealane_ovpn::packet::MAX_PACKET;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// Bytes that may wait for a connection that takes no more. Data beyond is dropped, as on a full link.
pub(super) const BACKLOG: usize = 1 << 20;
/// Bytes that may wait for a connection before it has a peer: one flight of a TLS server and more. Control packets are not
/// sent again on TCP, so a connection that lets more wait is closed.
pub(super) const CONTROL_BACKLOG: usize = 16 << 10;
/// What the queue has room for: both of these, and the segments of a super-packet, which are let in together.
const QUEUE: usize = BACKLOG + CONTROL_BACKLOG + (128 << 10);
/// Chunks of the queue that leave with one system call.
const SLICES: usize = 16;
/// How long a client may take from connecting to the packet that begins its session.
pub(super) const SESSION_WITHIN: Millis = 10_000;
/// How long the last packets of a connection that is to be closed may take.
pub(super) const CLOSED_WITHIN: Millis = 5_000;
/// Room for two of the longest frames: what is left of one, and another one.
pub(super) const SCRATCH: usize = 2 * (2 + 65_535);

/// One connection.
pub(super) struct Stream {
    pub fd: OwnedFd,
    pub remote: SocketAddr,
    pub local: Option<IpAddr>,
    /// Whose data it may carry.
    pub peer: Option<PeerId>,
    /// The beginning of a frame whose end has not come yet.
    partial: Vec<u8>,
    queue: WriteQueue,
    pub stage: Stage,
    /// It is closed then, unless it is in use.
    pub deadline: Millis,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No session has begun on it.
    Unconfirmed,
    /// Control, or a peer, uses it.
    InUse,
    /// It is closed once what waits has left. What it still brings is ignored.
    Closing,
}

impl Stream {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        rustix::net::sockopt::set_tcp_nodelay(&fd, true)?;
        let remote = canonical(rustix::net::getpeername(&fd)?.ok_or(io::ErrorKind::NotConnected)?.try_into()?);
        let local: SocketAddr = rustix::net::getsockname(&fd)?.try_into()?;
        Ok(Self {
            fd,
            remote,
            local: Some(local.ip().to_canonical()),
            peer: None,
            partial: Vec::new(),
            queue: WriteQueue::new(QUEUE),
            stage: Stage::Unconfirmed,
            deadline: 0,
        })
    }

    /// Goes on with another process's connection: what it had read of a frame, and what it had not sent yet. `remote`: the
    /// client's address, where it may differ from that of the connection.
    pub(super) fn resume(fd: OwnedFd, partial: &[u8], out: &[u8], remote: Option<SocketAddr>) -> io::Result<Self> {
        let mut stream = Self::new(fd)?;
        stream.remote = remote.unwrap_or(stream.remote);
        if partial.len() > SCRATCH / 2 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.partial = partial.to_vec();
        stream.queue.push(out).map_err(|Full| io::ErrorKind::InvalidData)?;
        Ok(stream)
    }

    /// The connection, the beginning of a frame, and what has not left.
    pub(super) fn into_parts(mut self) -> (OwnedFd, Vec<u8>, Vec<u8>) {
        let mut waiting = Vec::with_capacity(self.queue.len());
        while !self.queue.is_empty() {
            let piece = self.queue.first();
            waiting.extend_from_slice(piece);
            self.queue.consume(piece.len());
        }
        (self.fd, self.partial, waiting)
    }

    /// Reads what is there into the scratch buffer, after what was left over. Returns how many bytes lie there;
    /// `None` at the connection's end.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> io::Result<Option<usize>> {
        let kept = self.partial.len();
        scratch[..kept].copy_from_slice(&self.partial);
        match rustix::net::recv(&self.fd, &mut scratch[kept..], RecvFlags::empty()) {
            Ok((0, _)) => Ok(None),
            Ok((n, _)) => {
                self.partial.clear();
                Ok(Some(kept + n))
            }
            Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
            Err(e) => Err(e.into()),
        }
    }

    /// The longest frame that it may bring: data only once it has a peer.
    pub(super) const fn longest_frame(&self) -> usize {
        if self.peer.is_some() { u16::MAX as usize } else { MAX_PACKET }
    }

    /// Keeps what is not a whole frame yet.
    pub(super) fn keep(&mut self, rest: &[u8]) {
        self.partial.extend_from_slice(rest);
        if self.partial.is_empty() {
            // An idle connection keeps no buffer.
            self.partial = Vec::new();
        }
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Appends a frame of `len` bytes, which `write` fills in. Nothing is appended when it fails.
    pub(super) fn push<E>(
        &mut self,
        len: u16,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), Refusal<E>> {
        let framed = |frame: &mut [u8]| {
            let (head, packet) = frame.split_at_mut(2);
            head.copy_from_slice(&len.to_be_bytes());
            write(packet)
        };
        let pushed = self.queue.push_with(2 + usize::from(len), framed).map_err(Refusal::Other)?;
        pushed.map_err(|Full| Refusal::Full)
    }

    /// Sends what the socket takes. True when nothing is left.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.queue.slices(&mut slices);
            let mut no_descriptors = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&self.fd, &slices[..count], &mut no_descriptors, SendFlags::NOSIGNAL) {
                Ok(n) => self.queue.consume(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }
}

/// IPv4 as IPv4, also on a dual-stack socket.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Bytes of the first frame, with its length before it, when it is whole. An empty frame, or one longer than `longest`,
/// breaks the framing.
pub(super) fn whole(bytes: &[u8], longest: usize) -> Result<Option<usize>, Broken> {
    let &[a, b, ..] = bytes else { return Ok(None) };
    match usize::from(u16::from_be_bytes([a, b])) {
        len if len == 0 || len > longest => Err(Broken),
        len => Ok(Some(2 + len).filter(|end| *end <= bytes.len())),
    }
}

/// The peer does not keep to the framing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_and_an_empty_one_is_refused() {
        assert_eq!(whole(&[0, 2, 7, 8, 0, 1, 9], 100), Ok(Some(4)));
        assert_eq!(whole(&[0, 1, 9], 100), Ok(Some(3)));
        assert_eq!(whole(&[0, 3, 1], 100), Ok(None));
        assert_eq!(whole(&[0], 100), Ok(None));
        assert_eq!(whole(&[0, 0, 1], 100), Err(Broken));
        assert_eq!(whole(&[0, 101, 1], 100), Err(Broken));
    }
}
