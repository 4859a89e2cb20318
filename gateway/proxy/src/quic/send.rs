//! What goes out: datagrams from the protocol, then to the kernel, a turn's worth per call.

use super::QuicEndpoint;
use super::connection::Connection;
use crate::counters::{Count, Counters};
use quinn_proto::Transmit;
use sealane_lane::Context;
use sealane_sys::udp;
use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long a full socket is left alone.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_millis(1);
/// Bytes gathered before they are sent.
const GATHER: usize = 256 * 1024;
/// Bytes that wait for a full socket, from which on clients without a connection are not answered. What connections send does not grow
/// beyond what has been gathered once the socket is full.
const MOST_WAITING: usize = 4 * GATHER;
/// Messages per connection and turn: others want to send, too.
const BURSTS: usize = 16;
/// Datagrams per message: a burst of 16 KiB or so, as TLS records over TCP.
const SEGMENTS: usize = 32;
/// Messages from this length on keep the buffer that the protocol wrote them to.
const TRAIN: usize = 8 * 1024;
/// Such buffers kept for the next ones.
const SPARE: usize = 8;
/// The last datagram of a message, if it is shorter than this, had room left, so nothing waits behind it: those that are
/// full have 1,200 bytes or more (RFC 9000 §14), and what is not cut to fit (a token, an id) is shorter than the difference.
const FULL: usize = 1100;
/// The length of a message's last datagram.
fn last_datagram(transmit: &Transmit) -> usize {
    match transmit.segment_size {
        Some(segment @ 1..) => transmit.size.saturating_sub(1) % segment + 1,
        _ => transmit.size,
    }
}

struct Message {
    endpoint: usize,
    remote: SocketAddr,
    local: Option<IpAddr>,
    ecn: u8,
    segment: usize,
    data: Data,
}

/// Where a message's bytes are.
enum Data {
    /// In what all share: short ones.
    Shared(Range<usize>),
    /// As the protocol wrote them: a train of datagrams is not copied once more.
    Own(Vec<u8>),
}

/// Datagrams on their way to the kernel.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    messages: Vec<Message>,
    /// Bytes in messages that keep their own.
    own: usize,
    spare: Vec<Vec<u8>>,
    /// The first that has not been sent.
    sent: usize,
    /// Where the protocol writes one message.
    pub scratch: Vec<u8>,
    /// The socket was full at this time.
    blocked: Option<Instant>,
}

impl Outgoing {
    /// Takes an answer to a client without a connection: anybody can cause one, as often as he sends. Like the network, it is lost
    /// where too much waits.
    pub fn answer(&mut self, endpoint: usize, transmit: &Transmit, bytes: &[u8], counters: &Counters) {
        if self.len() >= MOST_WAITING {
            return counters.count(Count::QuicAnswersDropped);
        }
        self.push(endpoint, transmit, bytes);
    }

    /// Takes a message that the protocol has written.
    fn push(&mut self, endpoint: usize, transmit: &Transmit, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&bytes[..transmit.size.min(bytes.len())]);
        self.note(endpoint, transmit, Data::Shared(start..self.bytes.len()));
    }

    /// Takes the message that the protocol has written to `scratch`.
    fn push_scratch(&mut self, endpoint: usize, transmit: &Transmit) {
        let mut scratch = std::mem::take(&mut self.scratch);
        if transmit.size < TRAIN {
            self.push(endpoint, transmit, &scratch);
            self.scratch = scratch;
        } else {
            scratch.truncate(transmit.size);
            self.own += scratch.len();
            self.note(endpoint, transmit, Data::Own(scratch));
            self.scratch = self.spare.pop().unwrap_or_default();
        }
    }

    fn note(&mut self, endpoint: usize, transmit: &Transmit, data: Data) {
        self.messages.push(Message {
            endpoint,
            remote: transmit.destination,
            local: transmit.src_ip,
            ecn: transmit.ecn.map_or(0, |e| e as u8),
            segment: transmit.segment_size.unwrap_or(0),
            data,
        });
    }

    /// A socket is full and what is here waits for it.
    pub fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Bytes that wait.
    fn len(&self) -> usize {
        self.bytes.len() + self.own
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.own = 0;
        for message in self.messages.drain(..) {
            if let (Data::Own(buffer), true) = (message.data, self.spare.len() < SPARE) {
                self.spare.push(buffer);
            }
        }
        self.sent = 0;
        if self.bytes.capacity() > 4 * GATHER {
            self.bytes.shrink_to(GATHER);
        }
    }
}

/// What has become of a connection whose datagrams were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transmitted {
    /// All that it had to send now.
    All,
    /// There is more: others want to send, too.
    More,
    /// It has ended, and its endpoint knows it no more.
    Ended,
}

impl QuicEndpoint {
    /// A socket is full, and what was gathered waits for it.
    pub fn is_blocked(&self) -> bool {
        self.out.is_blocked()
    }

    /// Gives the kernel what was gathered, once that is much.
    pub fn send_if_much(&mut self, cx: &Context, counters: &Counters) {
        if self.out.len() >= GATHER {
            self.send(cx, counters);
        }
    }

    /// Takes a connection's datagrams from its protocol. `more`: its owner has more to send than the protocol takes
    /// now.
    pub fn transmit(
        &mut self,
        now: Instant,
        counters: &Counters,
        connection: &mut Connection,
        mut more: bool,
    ) -> Option<Transmitted> {
        let index = connection.endpoint;
        let endpoint = self.endpoints.get_mut(index)?.as_mut()?;
        let brief = connection.is_brief(now);
        let silent = connection.is_silent();
        let whole_flights = !connection.is_established() && connection.is_accepted();
        let handle = connection.handle;
        let protocol = &mut connection.protocol;
        let segments = endpoint.socket.segments().min(SEGMENTS);
        for burst in 0.. {
            // More ids for the client, and a place for the one it has changed to: neither is for those that are over soon.
            while (!brief || protocol.is_drained())
                && let Some(event) = protocol.poll_endpoint_events()
            {
                if let Some(event) = endpoint.endpoint.handle_event(handle, event) {
                    protocol.handle_event(event);
                }
            }
            if silent {
                break;
            }
            if burst == BURSTS {
                more = true;
                break;
            }
            let mut scratch = std::mem::take(&mut self.out.scratch);
            scratch.clear();
            let transmit = protocol.poll_transmit(now, segments, &mut scratch);
            self.out.scratch = scratch;
            let Some(transmit) = transmit else { break };
            let n = transmit.segment_size.map_or(1, |s| transmit.size.div_ceil(s.max(1)));
            counters.add(Count::QuicDatagramsOut, n as u64);
            self.out.push_scratch(index, &transmit);
            // A flight of a handshake that took one datagram, padded to its length, would have taken another.
            let whole = whole_flights && transmit.segment_size.is_none();
            if brief && segments > 1 && (whole || last_datagram(&transmit) < FULL) {
                // Asked once more, the protocol would look for a larger MTU.
                break;
            }
        }
        let over = if silent && !more { protocol.poll_timeout() } else { None };
        if let Some(at) = over {
            // Kilobytes for a tenth of a second each: in a storm of short connections, memory that is never warm.
            self.closing.push(Reverse((at, index, handle.0)));
        }
        if protocol.is_drained() || over.is_some() {
            if let Some(place) = endpoint.keys.get_mut(handle.0) {
                *place = None;
            }
            return Some(Transmitted::Ended);
        }
        Some(if more { Transmitted::More } else { Transmitted::All })
    }

    /// Gives the kernel what was gathered.
    pub fn send(&mut self, cx: &Context, counters: &Counters) {
        let out = &mut self.out;
        if let Some(at) = out.blocked {
            if cx.instant().saturating_duration_since(at) < WAIT_LIMIT {
                return;
            }
            out.blocked = None;
        }
        while out.sent < out.messages.len() {
            let endpoint = out.messages[out.sent].endpoint;
            let same = out.messages[out.sent..].iter().take_while(|m| m.endpoint == endpoint).count();
            let run = &out.messages[out.sent..out.sent + same.min(udp::MAX_BATCH)];
            let Some(Some(e)) = self.endpoints.get(endpoint) else {
                out.sent += run.len();
                continue;
            };
            let transmits: Vec<udp::Transmit<'_>> = run
                .iter()
                .map(|m| udp::Transmit {
                    remote: m.remote,
                    local: m.local,
                    segment: m.segment,
                    ecn: m.ecn,
                    data: match &m.data {
                        Data::Shared(range) => &out.bytes[range.clone()],
                        Data::Own(bytes) => bytes,
                    },
                })
                .collect();
            match e.socket.send_batch(&transmits) {
                Ok(n) => out.sent += n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    out.blocked = Some(cx.instant());
                    return;
                }
                // Unreachable, no route, a probe that is too large: as if the network had lost it.
                Err(_) => {
                    counters.count(Count::QuicSendErrors);
                    out.sent += 1;
                }
            }
        }
        out.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that stays full, and somebody who goes on sending first packets.
    #[test]
    fn answers_that_wait_for_a_full_socket_are_bounded() {
        let (mut out, counters) = (Outgoing::default(), Counters::default());
        let destination = SocketAddr::from(([127, 0, 0, 1], 9));
        let transmit = Transmit { destination, ecn: None, size: 1000, segment_size: None, src_ip: None };
        let fit = MOST_WAITING.div_ceil(1000);
        for _ in 0..fit + 10 {
            out.answer(0, &transmit, &[7; 1000], &counters);
        }
        assert_eq!((out.messages.len(), out.len()), (fit, fit * 1000));
        assert_eq!(counters.value(Count::QuicAnswersDropped), 10);
        out.clear();
        out.answer(0, &transmit, &[7; 1000], &counters);
        assert_eq!((out.messages.len(), counters.value(Count::QuicAnswersDropped)), (1, 10));
    }

    #[test]
    fn the_last_datagram_is_what_is_left_of_the_message() {
        let of = |size, segment_size| {
            let destination = SocketAddr::from(([127, 0, 0, 1], 9));
            last_datagram(&Transmit { destination, ecn: None, size, segment_size, src_ip: None })
        };
        assert_eq!((of(1200, None), of(35, None), of(0, None)), (1200, 35, 0));
        assert_eq!((of(1568, Some(1200)), of(2400, Some(1200)), of(2401, Some(1200))), (368, 1200, 1));
        assert_eq!((of(1200, Some(0)), of(0, Some(1200))), (1200, 1));
    }
}
