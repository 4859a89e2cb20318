//! What a lane reports about single connections and requests, for the log.
//!
//! A lane calls no logger: it pushes a fixed-size [`Record`] to a bounded queue of its own, and control makes a line of
//! it. Nothing is pushed unless the log wants such details; what does not fit is counted and dropped. A record holds
//! nothing that a client has sent.

use crate::Failure;
use crate::conn::Client;
use crate::counters::Counters;
use crate::exchange::Exchange;
use crate::snapshot::Upstream;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;

/// The status of a request whose client left before it was answered, as in NGINX's logs.
pub(crate) const CLIENT_LEFT: u16 = 499;

/// A client's connection: the lane slot that serves it and its number there, from 1. Unique within a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionId(u64);

impl ConnectionId {
    const NUMBER_BITS: u32 = 48;

    pub(crate) fn slot(self) -> u64 {
        self.0 >> Self::NUMBER_BITS
    }

    pub(crate) fn number(self) -> u64 {
        self.0 & ((1 << Self::NUMBER_BITS) - 1)
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.slot(), self.number())
    }
}

/// A request: its connection, and its number there, from 1. Requests that could not be read have the number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(pub ConnectionId, pub u32);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Occurrence {
    /// TLS failed, for one of the reasons in [`TLS_FAILURES`](crate::counters::TLS_FAILURES).
    HandshakeFailed(&'static str),
    /// The connection ended because its client's address is not let in (`allow`, `deny`).
    Denied,
    /// The client got this status from the gateway, and no server was asked.
    Refused(RequestId, u16),
    /// The client left before it was answered.
    Abandoned(RequestId),
    /// A server failed a request.
    ServerFailed {
        /// The request.
        request: RequestId,
        /// The group.
        upstream: Arc<Upstream>,
        /// The index of the server in the group.
        server: usize,
        /// Why.
        failure: Failure,
        /// The status that the client got; `None` for a relayed connection.
        status: Option<u16>,
    },
}

/// What a lane reports.
#[derive(Clone, Debug)]
pub struct Record {
    /// The client's address.
    pub client: SocketAddr,
    /// The client's connection.
    pub connection: ConnectionId,
    /// What happened.
    pub what: Occurrence,
}

/// A lane's end of its queue.
#[derive(Debug)]
pub struct RecordSink {
    /// Whether the log wants records at all; written by control.
    pub wanted: Arc<AtomicBool>,
    /// The queue.
    pub queue: SyncSender<Record>,
}

/// A lane's reports, and the ids of its clients' connections.
pub(crate) struct Records {
    sink: RecordSink,
    /// The id that was given last.
    last: ConnectionId,
}

impl Records {
    pub fn new(slot: usize, sink: RecordSink) -> Self {
        Self { sink, last: ConnectionId((slot as u64) << ConnectionId::NUMBER_BITS) }
    }

    /// The id of a client's connection that begins.
    pub fn next_connection(&mut self) -> ConnectionId {
        self.last.0 += 1;
        self.last
    }

    /// Whether the log wants records.
    #[inline]
    pub fn are_wanted(&self) -> bool {
        self.sink.wanted.load(Relaxed)
    }

    fn push(&self, counters: &Counters, (client, connection): (SocketAddr, ConnectionId), what: Occurrence) {
        if self.sink.queue.try_send(Record { client, connection, what }).is_err() {
            counters.records_lost.inc();
        }
    }

    /// Reports that a client's handshake failed.
    pub fn handshake_failed(&self, counters: &Counters, client: (SocketAddr, ConnectionId), reason: &'static str) {
        if self.are_wanted() {
            self.push(counters, client, Occurrence::HandshakeFailed(reason));
        }
    }

    /// Reports that a connection ends because its client's address is not let in.
    pub fn connection_denied(&self, counters: &Counters, client: (SocketAddr, ConnectionId)) {
        if self.are_wanted() {
            self.push(counters, client, Occurrence::Denied);
        }
    }

    /// Reports what went wrong with a finished exchange, if anything did.
    #[cold]
    pub fn exchange(&self, counters: &Counters, client: &Client, x: &Exchange) {
        let request = RequestId(client.id, x.number);
        let what = match (&x.upstream, x.routed.failure) {
            (Some(upstream), Some(failure)) => Occurrence::ServerFailed {
                request,
                upstream: upstream.upstream.clone(),
                server: x.server,
                failure,
                status: (!x.machine.is_relay()).then_some(x.status),
            },
            _ if x.machine.is_relay() => return,
            _ if x.status == CLIENT_LEFT => Occurrence::Abandoned(request),
            (None, _) if x.status >= 400 => Occurrence::Refused(request, x.status),
            _ => return,
        };
        self.push(counters, (client.peer, client.id), what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::streams::ClientStream;
    use crate::fixtures;
    use sealane_lane::Key;

    #[test]
    fn ids_name_the_lane_and_count() {
        let mut records = Records::new(3, fixtures::record_sink().0);
        let ids = [records.next_connection(), records.next_connection()];
        assert_eq!(ids.map(|id| id.to_string()), ["3-1", "3-2"]);
        assert_eq!(RequestId(ids[1], 7).to_string(), "3-2-7");
    }

    #[test]
    fn nothing_is_queued_unless_it_is_wanted_and_what_does_not_fit_is_counted() {
        let (sink, queue) = fixtures::record_sink();
        let wanted = sink.wanted.clone();
        let (mut records, counters) = (Records::new(0, sink), Counters::default());
        let client = ("192.0.2.1:5".parse().unwrap(), records.next_connection());
        records.handshake_failed(&counters, client, "timeout");
        assert!(queue.try_recv().is_err());
        wanted.store(true, Relaxed);
        for _ in 0..5 {
            records.handshake_failed(&counters, client, "timeout");
        }
        let queued = queue.try_iter().count();
        assert_eq!((queued, counters.records_lost.value()), (2, 3));
    }

    #[test]
    fn a_request_without_an_answer_is_not_said_to_be_refused() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let client = fixtures::client(&settings.listeners()[0], "192.0.2.1:5");
        let (sink, queue) = fixtures::record_sink();
        let (records, counters) = (Records::new(0, sink), Counters::default());
        let mut x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
        let mut reported = |status| {
            x.status = status;
            records.exchange(&counters, &client, &x);
            queue.try_recv().ok().map(|record| record.what)
        };
        assert!(reported(200).is_none());
        assert!(matches!(reported(431), Some(Occurrence::Refused(_, 431))));
        assert!(matches!(reported(CLIENT_LEFT), Some(Occurrence::Abandoned(_))));
    }
}
