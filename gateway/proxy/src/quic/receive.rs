//! Datagrams that arrive: each goes to the lane that owns it, to its connection, or to `admission`.

use super::admission::FirstPacket;
use super::forwarding::Datagram;
use super::succession::Sent;
use super::{ConnectionTable, Endpoint, Parts, QuicEndpoint};
use crate::counters::Count;
use bytes::BytesMut;
use quinn_proto::{DatagramEvent, EcnCodepoint};
use sealane_lane::Context;
use sealane_sys::udp::Batch;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Messages per system call.
const MESSAGES: usize = 16;
/// System calls per event, before others get their turn.
const READS: usize = 4;
/// A train of datagrams.
const TRAIN: usize = 65_535;

/// Where the kernel writes what is read at once.
pub(super) fn new_batch() -> Batch {
    Batch::new(MESSAGES, TRAIN)
}

/// What is known of a datagram beside its bytes.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub remote: SocketAddr,
    pub local: Option<IpAddr>,
    pub ecn: u8,
    pub counted: bool,
    /// It came from another lane, or another process: it is not passed on again.
    pub forwarded: bool,
}

impl QuicEndpoint {
    /// Reads a UDP socket.
    pub fn read_socket(&mut self, cx: &mut Context, index: usize, parts: &mut Parts<'_, impl ConnectionTable>) {
        let ours = |e: &Endpoint| self.successor.is_none() || e.listener.is_none() || e.leaving;
        if !self.endpoints.get(index).is_some_and(|e| e.as_ref().is_some_and(|e| ours(e))) {
            return;
        }
        let Some(mut batch) = self.batch.take() else { return };
        let now = cx.instant();
        for _ in 0..READS {
            let Some(Some(endpoint)) = self.endpoints.get_mut(index) else { break };
            // Errors are those of earlier sends (ICMP); timers deal with peers that are gone.
            let Ok(filled) = endpoint.socket.receive(&mut batch) else { break };
            for (meta, bytes) in batch.iter_mut() {
                if meta.truncated {
                    parts.counters.count(Count::QuicDroppedOversize);
                    continue;
                }
                // A train is one allocation; its datagrams are parts of it.
                let mut train = BytesMut::from(&bytes[..]);
                while !train.is_empty() {
                    let data = match meta.segment < train.len() {
                        true => train.split_to(meta.segment),
                        false => std::mem::take(&mut train),
                    };
                    let arrival = Arrival {
                        remote: meta.remote,
                        local: meta.local,
                        ecn: meta.ecn,
                        counted: false,
                        forwarded: false,
                    };
                    self.datagram(cx, index, now, arrival, data, parts);
                }
            }
            if filled < MESSAGES {
                break;
            }
        }
        self.batch = Some(batch);
    }

    /// A datagram that another lane got, of a connection that is one of this lane's.
    pub fn forwarded(&mut self, cx: &mut Context, d: Datagram, parts: &mut Parts<'_, impl ConnectionTable>) {
        let own = |e: &Endpoint| e.slot == d.slot && e.listener.as_ref().is_some_and(|l| l.listener.id == d.listener);
        let found = self.endpoints.iter().position(|e| e.as_ref().is_some_and(|e| own(e)));
        let Some(index) = found else { return parts.counters.count(Count::QuicDroppedMisdirected) };
        let now = cx.instant();
        let Datagram { remote, local, ecn, counted, .. } = d;
        self.datagram(cx, index, now, Arrival { remote, local, ecn, counted, forwarded: true }, d.data, parts);
    }

    /// One datagram: to the lane that owns it, or to its connection, or to be admitted.
    fn datagram(
        &mut self,
        cx: &mut Context,
        index: usize,
        now: Instant,
        arrival: Arrival,
        data: BytesMut,
        parts: &mut Parts<'_, impl ConnectionTable>,
    ) {
        parts.counters.count(Count::QuicDatagramsIn);
        let Some(data) = self.pass_on(cx, parts.settings, parts.counters, index, &arrival, data) else { return };
        let Arrival { remote, local, ecn, counted, forwarded } = arrival;
        let lanes = parts.settings.lanes();
        let Some(Some(endpoint)) = self.endpoints.get_mut(index) else { return };
        // What another lane has passed on stays here, whosever ticket its hello has: that counts for nothing then.
        let keep = lanes > 1 && !forwarded && endpoint.listener.as_ref().is_some_and(|l| l.has_stateful_tickets());
        let raw = (keep || self.successor.is_some()).then(|| data.clone());
        let mut answer = std::mem::take(&mut self.out.scratch);
        answer.clear();
        let len = data.len();
        let event = endpoint.endpoint.handle(now, remote, local, EcnCodepoint::from_bits(ecn), data, &mut answer);
        match event {
            None => {
                if let (true, Some(data)) = (keep, raw) {
                    self.waits(index, data);
                }
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(Some(key)) = endpoint.keys.get(handle.0)
                    && let Some(connection) = parts.connections.transport_mut(*key)
                {
                    connection.handle(event, len, raw);
                    self.touched.push(*key);
                }
            }
            Some(DatagramEvent::NewConnection(incoming))
                if endpoint.listener.is_some() && !endpoint.leaving && self.successor.is_some() =>
            {
                // Under an id that we made for a Retry: the successor's. Its client has proven its address, so nobody else
                // makes datagrams go back.
                let proven = incoming.remote_address_validated();
                endpoint.endpoint.ignore(incoming);
                if let (Some(successor), Some(listener), Some(data), true) =
                    (&self.successor, &endpoint.listener, raw, proven)
                {
                    let (address, listener) = (listener.listener.address, listener.listener.id);
                    let slot = endpoint.slot;
                    let message = Datagram { listener, slot, remote, local, ecn, counted: false, fresh: true, data };
                    // One that is gone is a network that has lost it.
                    if successor.send(address, &message) == Sent::Full {
                        parts.counters.count(Count::QuicDroppedProcess);
                    }
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.out.scratch = answer;
                return self.first_packet(cx, index, FirstPacket { incoming, raw, counted }, parts);
            }
            Some(DatagramEvent::Response(transmit)) => {
                // RFC 9000 §17.2.1: a long header of version 0.
                if matches!(answer[..], [128..=255, 0, 0, 0, 0, ..]) {
                    parts.counters.count(Count::QuicVersionNegotiations);
                }
                self.out.answer(index, &transmit, &answer, parts.counters);
            }
        }
        self.out.scratch = answer;
    }
}
