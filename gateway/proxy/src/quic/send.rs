//! What goes out: streams to the protocol, the protocol's datagrams to the kernel, a turn's worth per call.

use super::QuicEndpoint;
use super::conn::Phase;
use crate::accept::admission::Admission;
use crate::conn::Conn;
use crate::connections::Connections;
use crate::counters::Counters;
use crate::exchange::streams::{Later, resume_source};
use crate::flush::flush_marked;
use crate::lifecycle::close_connection;
use crate::quic::quic_close_if_done;
use crate::service::Proxy;
use crate::settings::LaneSettings;
use crate::transport::HIGH_WATER;
use quinn_proto::Transmit;
use sealane_lane::{Context, Key};
use sealane_sys::udp;
use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long a full socket is left alone.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_millis(1);
/// Bytes gathered before they are sent.
const GATHER: usize = 256 * 1024;
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
/// Rounds of flushing per turn.
const ROUNDS: usize = 8;

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
pub(crate) struct Outgoing {
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
    /// Takes a message that the protocol has written.
    pub fn push(&mut self, endpoint: usize, transmit: &Transmit, bytes: &[u8]) {
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

/// Flushes all connections that were touched, and sends. True if some are left for the next turn.
pub(crate) fn quic_flush_all(proxy: &mut Proxy, cx: &mut Context) -> bool {
    proxy.quic.send(cx, &proxy.counters);
    for _ in 0..ROUNDS {
        if !proxy.connections.has_quic() || proxy.quic.out.is_blocked() {
            break;
        }
        for key in proxy.connections.take_quic() {
            quic_flush(proxy, cx, key);
            if proxy.quic.out.len() >= GATHER {
                proxy.quic.send(cx, &proxy.counters);
            }
        }
        proxy.quic.send(cx, &proxy.counters);
        // What was resumed may have staged something on a connection over TCP.
        flush_marked(proxy, cx);
    }
    proxy.connections.has_quic() && !proxy.quic.out.is_blocked()
}

/// Hands a connection's streams to the protocol and takes its datagrams.
fn quic_flush(proxy: &mut Proxy, cx: &mut Context, key: Key) {
    let Some(Conn::Quic(q)) = proxy.connections.get_mut(key) else { return };
    q.needs_flush = false;
    if proxy.quic.out.is_blocked() {
        return proxy.connections.mark_for_flush(key);
    }
    let now = cx.instant();
    if q.is_held(now) {
        return proxy.quic.arm(&mut proxy.connections, key);
    }
    let brief = q.is_brief(now);
    q.flush_control();
    let mut resume: Vec<Later> = Vec::new();
    // A response of which all that was here is out, and more is to be had.
    let mut hungry = None;
    let mut staged = q.take_staged().into_iter();
    while let Some(index) = staged.next() {
        if let Some(first) = hungry
            && q.waiting > 0
            && q.goes_before(first, index)
        {
            // Windows are short, and what it reads next goes before the rest.
            q.staged.push(index);
            q.staged.extend(staged);
            break;
        }
        if let Some(stream) = q.streams.get_mut(index as usize) {
            stream.staged = false;
        }
        let all = q.flush_stream(index);
        let Some(stream) = q.streams.get(index as usize) else { continue };
        let room = HIGH_WATER.saturating_sub(stream.waiting());
        if let (true, Some(exchange)) = (room >= HIGH_WATER / 2, stream.exchange)
            && let Some(x) = proxy.exchanges.get_mut(exchange)
        {
            // What a client's stream blocks is the response, what an upstream's blocks is the request.
            let (flow, source) = match q.is_client() {
                true => (&mut x.response_body, Later::Server(exchange)),
                false => (&mut x.request_body, Later::Client(exchange)),
            };
            if flow.unblock(cx.now()) {
                resume.push(source);
                hungry = hungry.or((all && q.is_client()).then_some(index));
            }
        }
        q.reap(index);
    }
    let endpoint_index = q.endpoint;
    let Some(Some(endpoint)) = proxy.quic.endpoints.get_mut(endpoint_index) else { return };
    let segments = endpoint.socket.segments().min(SEGMENTS);
    let mut more = false;
    for burst in 0.. {
        // More ids for the client, and a place for the one it has changed to: neither is for those that are over soon.
        while (!brief || q.quic.is_drained())
            && let Some(event) = q.quic.poll_endpoint_events()
        {
            if let Some(event) = endpoint.endpoint.handle_event(q.handle, event) {
                q.quic.handle_event(event);
            }
        }
        if q.silent {
            break;
        }
        if burst == BURSTS {
            more = true;
            break;
        }
        let mut scratch = std::mem::take(&mut proxy.quic.out.scratch);
        scratch.clear();
        let transmit = q.quic.poll_transmit(now, segments, &mut scratch);
        if let Some(transmit) = &transmit {
            let n = transmit.segment_size.map_or(1, |s| transmit.size.div_ceil(s.max(1)));
            proxy.counters.quic_datagrams_out.add(n as u64);
            proxy.quic.out.scratch = scratch;
            proxy.quic.out.push_scratch(endpoint_index, transmit);
        } else {
            proxy.quic.out.scratch = scratch;
        }
        let Some(transmit) = transmit else { break };
        // A flight of a handshake that took one datagram, padded to its length, would have taken another.
        let whole = !q.established && q.is_client() && transmit.segment_size.is_none();
        if brief && segments > 1 && (whole || last_datagram(&transmit) < FULL) {
            // Asked once more, the protocol would look for a larger MTU.
            break;
        }
    }
    more |= !q.staged.is_empty();
    let (drained, handle) = (q.quic.is_drained(), q.handle);
    let leaving = q.phase == Phase::Leaving;
    let over = if q.silent && !more { q.quic.poll_timeout() } else { None };
    if let Some(at) = over {
        // Kilobytes for a tenth of a second each: in a storm of short connections, memory that is never warm.
        proxy.quic.closing.push(Reverse((at, endpoint_index, handle.0)));
    }
    if drained || over.is_some() {
        if let Some(place) = endpoint.keys.get_mut(handle.0) {
            *place = None;
        }
        close_connection(proxy, cx, key);
    } else {
        proxy.quic.arm(&mut proxy.connections, key);
        if more {
            proxy.connections.mark_for_flush(key);
        }
        if leaving {
            quic_close_if_idle(
                &mut proxy.connections,
                &mut proxy.quic,
                &mut proxy.admission,
                &proxy.settings,
                &proxy.counters,
                cx,
                key,
            );
        }
    }
    for source in resume {
        resume_source(proxy, cx, source);
    }
}

fn quic_close_if_idle(
    connections: &mut Connections,
    quic: &mut QuicEndpoint,
    admission: &mut Admission,
    settings: &LaneSettings,
    counters: &Counters,
    cx: &mut Context,
    key: Key,
) {
    if connections.quic(key).is_some_and(|q| q.phase == Phase::Leaving && q.may_close()) {
        quic_close_if_done(connections, quic, admission, settings, counters, cx, key);
    }
}

impl QuicEndpoint {
    /// Gives the kernel what was gathered.
    fn send(&mut self, cx: &Context, counters: &Counters) {
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
                    counters.quic_send_errors.inc();
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
