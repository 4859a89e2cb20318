//! What is about to leave by UDP: datagrams gathered into messages that the kernel segments.
//!
//! Each peer fills one message at a time, so packets of several peers that come mixed still leave in a few system
//! calls, each peer's in the order of their packet ids.

use super::counters::LaneCounters;
use arrayvec::ArrayVec;
use sealane_sys::udp::{MAX_MESSAGE, Socket, Transmit};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Messages gathered before they are sent: 1 MiB of buffers per lane.
const MESSAGES: usize = 16;

/// Where datagrams go, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// Which of the lane's UDP sockets.
    pub socket: usize,
    pub remote: SocketAddr,
    pub local: Option<IpAddr>,
}

/// Which message a peer is filling. Of an outbox that has been emptied since, it names none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filling {
    generation: u64,
    index: usize,
}

struct Message {
    to: Destination,
    bytes: Box<[u8]>,
    len: usize,
    /// Length of the first datagram; only the last may be shorter.
    segment: usize,
    count: usize,
    closed: bool,
}

/// Why a datagram was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal<E> {
    /// Flush, then try again.
    Full,
    /// Longer than any datagram.
    TooLong,
    /// The writer did not write it.
    Other(E),
}

/// Messages being gathered. Invariant: those from `sent` to `used` are still to leave.
pub(super) struct Outbox {
    messages: Vec<Message>,
    used: usize,
    sent: usize,
    generation: u64,
    blocked: Option<usize>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { messages: Vec::new(), used: 0, sent: 0, generation: 1, blocked: None }
    }

    /// The socket that takes no more, if there is one.
    pub(super) fn blocked(&self) -> Option<usize> {
        self.blocked
    }

    /// Takes a datagram of `len` bytes, which `write` fills in.
    #[inline]
    pub(super) fn push<E>(
        &mut self,
        to: Destination,
        filling: &mut Filling,
        len: usize,
        most: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), Refusal<E>> {
        if len > MAX_MESSAGE {
            return Err(Refusal::TooLong);
        }
        if filling.generation == self.generation && filling.index >= self.sent {
            let m = &mut self.messages[filling.index];
            if !m.closed && m.to == to && len <= m.segment && m.count < most && m.len + len <= MAX_MESSAGE {
                write(&mut m.bytes[m.len..m.len + len]).map_err(Refusal::Other)?;
                m.len += len;
                m.count += 1;
                m.closed = len < m.segment;
                return Ok(());
            }
        }
        if self.used == MESSAGES {
            return Err(Refusal::Full);
        }
        if self.used == self.messages.len() {
            // At most MESSAGES times in a lane's life.
            let bytes = vec![0; MAX_MESSAGE].into_boxed_slice();
            self.messages.push(Message { to, bytes, len: 0, segment: 0, count: 0, closed: false });
        }
        let m = &mut self.messages[self.used];
        write(&mut m.bytes[..len]).map_err(Refusal::Other)?;
        (m.to, m.len, m.segment, m.count, m.closed) = (to, len, len, 1, false);
        *filling = Filling { generation: self.generation, index: self.used };
        self.used += 1;
        Ok(())
    }

    /// Sends everything that the sockets take.
    pub(super) fn flush(&mut self, sockets: &[Socket], counters: &LaneCounters) {
        self.blocked = None;
        while self.sent < self.used {
            let rest = &self.messages[self.sent..self.used];
            let socket = rest[0].to.socket;
            let transmits: ArrayVec<Transmit<'_>, MESSAGES> = rest
                .iter()
                .take_while(|m| m.to.socket == socket)
                .map(|m| Transmit {
                    remote: m.to.remote,
                    local: m.to.local,
                    segment: if m.count > 1 { m.segment } else { 0 },
                    ecn: 0,
                    data: &m.bytes[..m.len],
                })
                .collect();
            let result = match sockets.get(socket) {
                Some(socket) => socket.send_batch(&transmits),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            match result {
                Ok(n) => {
                    counters.link_messages.add(n as u64);
                    counters.link_sent.add(rest[..n].iter().map(|m| m.count as u64).sum());
                    self.sent += n;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = Some(socket);
                    return;
                }
                // No route, a filter, an address that is gone: as if lost on the way.
                Err(_) => {
                    counters.link_lost.add(rest[0].count as u64);
                    self.sent += 1;
                }
            }
        }
        (self.used, self.sent) = (0, 0);
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_sys::udp::{Batch, Options};

    fn write(byte: u8) -> impl FnOnce(&mut [u8]) -> Result<(), ()> {
        move |b| {
            b.fill(byte);
            Ok(())
        }
    }

    #[test]
    fn mixed_peers_leave_in_order_each() {
        let bind = || Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
        let (from, a, b) = (bind(), bind(), bind());
        let to = |s: &Socket| Destination { socket: 0, remote: s.address(), local: None };
        let counters = LaneCounters::default();
        let mut outbox = Outbox::new();
        let (mut fa, mut fb) = (Filling::default(), Filling::default());
        let sizes = [100, 100, 60, 100, 200];
        for (i, len) in sizes.iter().enumerate() {
            outbox.push(to(&a), &mut fa, *len, 64, write(i as u8)).unwrap();
            outbox.push(to(&b), &mut fb, 50, 64, write(i as u8)).unwrap();
        }
        // A failed writer leaves nothing behind.
        assert_eq!(outbox.push(to(&a), &mut fa, 200, 64, |_| Err(7)), Err(Refusal::Other(7)));
        assert_eq!(outbox.push(to(&a), &mut fa, MAX_MESSAGE + 1, 64, write(0)), Err(Refusal::TooLong));
        outbox.flush(std::slice::from_ref(&from), &counters);
        assert_eq!((counters.link_sent.value(), counters.link_messages.value()), (10, 4));
        for (socket, sizes) in [(&a, sizes), (&b, [50; 5])] {
            let mut got = Vec::new();
            let mut batch = Batch::new(8, 65_535);
            while got.len() < 5 {
                socket.receive(&mut batch).unwrap();
                for (meta, bytes) in batch.iter_mut() {
                    got.extend(bytes.chunks(meta.segment).map(|d| (d[0], d.len())));
                }
            }
            let expected: Vec<(u8, usize)> = (0..5).map(|i| (i as u8, sizes[i])).collect();
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn full_until_flushed_and_lost_where_there_is_no_socket() {
        let counters = LaneCounters::default();
        let mut outbox = Outbox::new();
        let to = Destination { socket: 3, remote: "127.0.0.1:9".parse().unwrap(), local: None };
        for _ in 0..MESSAGES {
            outbox.push(to, &mut Filling::default(), 10, 64, write(0)).unwrap();
        }
        assert_eq!(outbox.push(to, &mut Filling::default(), 10, 64, write(0)), Err(Refusal::Full));
        outbox.flush(&[], &counters);
        assert_eq!(counters.link_lost.value(), MESSAGES as u64);
        outbox.push(to, &mut Filling::default(), 10, 64, write(0)).unwrap();
    }
}
