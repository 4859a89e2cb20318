//! What a lane reports about single connections and requests, for the log.
//!
//! A lane calls no logger: it pushes a fixed-size [`Record`] to a bounded queue of its own, and control makes a line of
//! it. Only requests that have failed are pushed, a bounded number in each second, unless the log wants more details; what does
//! not fit is dropped, and counted if it was for the log. A record holds nothing that a client has sent. A recording, which holds
//! what clients have sent, is asked for by an operator (`recording.rs`).

use crate::Failure;
use crate::client::identity::Client;
use crate::counters::{Count, Counters};
use crate::exchange::Exchange;
use crate::latency::Place;
use crate::recording::{Recording, Secrets, recorded};
use crate::snapshot::Upstream;
use sealane_http::trace_context::TraceId;
use sealane_lane::{Context, Millis};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;

/// The status of a request whose client left before it was answered, as in NGINX's logs.
pub(crate) const CLIENT_LEFT: u16 = 499;

/// Requests with this status, or a higher one, are reported whatever the level of the log is.
pub const ERRORS: u16 = 500;
/// Every request is of interest, for a recording; but nothing is for the log.
pub const ALL_REQUESTS: u16 = 1;
/// So many of them a lane reports in a second.
const ERRORS_PER_SECOND: u32 = 32;

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

impl ConnectionId {
    /// As a number, for tracers: the slot in the upper 16 bits, the number below.
    pub(crate) fn to_u64(self) -> u64 {
        self.0
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
    /// A request got 5xx. Not for the log, which has it as one of those above.
    Error(Box<RequestError>),
}

/// A request that got 5xx.
#[derive(Clone, Debug)]
pub struct RequestError {
    /// The request.
    pub request: RequestId,
    /// The status that the client got.
    pub status: u16,
    /// Where it has gone; `None`: it came to no host.
    pub place: Option<Arc<Place>>,
    /// The last server of its upstream.
    pub upstream: Option<(Arc<Upstream>, usize)>,
    /// Why the server was lost; `None`: the server has answered so, or the gateway without a server.
    pub failure: Option<Failure>,
    /// Its trace.
    pub trace: Option<TraceId>,
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
    /// Requests with this status or a higher one are reported; 0: all of them, and what happens to connections, for the log;
    /// [`ALL_REQUESTS`]: all of them, for a recording. Written by control.
    pub from: Arc<AtomicU16>,
    /// The queue.
    pub queue: SyncSender<Record>,
}

/// A lane's reports, and the ids of its clients' connections.
pub(crate) struct Records {
    sink: RecordSink,
    /// The id that was given last.
    last: ConnectionId,
    /// The second in which errors were reported last, and how many.
    errors: (Millis, u32),
    recording: Option<Recording>,
}

impl Records {
    pub fn new(slot: usize, sink: RecordSink) -> Self {
        let last = ConnectionId((slot as u64) << ConnectionId::NUMBER_BITS);
        Self { sink, last, errors: (0, 0), recording: None }
    }

    /// The id of a client's connection that begins.
    pub fn next_connection(&mut self) -> ConnectionId {
        self.last.0 += 1;
        self.last
    }

    /// Requests with this status or a higher one are reported.
    #[inline]
    pub fn from(&self) -> u16 {
        self.sink.from.load(Relaxed)
    }

    /// Whether the log wants all records.
    #[inline]
    fn are_wanted(&self) -> bool {
        self.from() == 0
    }

    /// Records exchanges from now on, in the place of an earlier recording.
    pub fn record(&mut self, recording: Recording, now: Millis, secrets: &Arc<Secrets>) {
        self.recording = Some(recording.begun(now, secrets));
    }

    fn push(&self, counters: &Counters, (client, connection): (SocketAddr, ConnectionId), what: Occurrence) {
        if self.sink.queue.try_send(Record { client, connection, what }).is_err() {
            counters.count(Count::RecordsLost);
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

    /// Reports what went wrong with a finished exchange, if anything did, and records it if it is to be.
    #[cold]
    pub fn exchange(
        &mut self,
        counters: &Counters,
        client: &Client,
        x: &Exchange,
        cx: &Context,
        secrets: &Arc<Secrets>,
    ) {
        if x.status() >= ERRORS && !x.machine().is_relay() {
            self.error(client, x, cx.now());
        }
        if self.recording.as_mut().is_some_and(|recording| recorded(recording, client, x, cx, secrets)) {
            self.recording = None;
        }
        if !self.are_wanted() {
            return;
        }
        let request = RequestId(client.id(), x.number());
        let what = match (x.upstream(), x.routed().failure()) {
            (Some(upstream), Some(failure)) => Occurrence::ServerFailed {
                request,
                upstream: upstream.settings().clone(),
                server: x.server(),
                failure,
                status: (!x.machine().is_relay()).then_some(x.status()),
            },
            _ if x.machine().is_relay() => return,
            _ if x.status() == CLIENT_LEFT => Occurrence::Abandoned(request),
            (None, _) if x.status() >= 400 => Occurrence::Refused(request, x.status()),
            _ => return,
        };
        self.push(counters, (client.peer(), client.id()), what);
    }

    fn error(&mut self, client: &Client, x: &Exchange, now: Millis) {
        let second = now / 1000;
        let (last, count) = self.errors;
        let count = if last == second { count } else { 0 };
        if count >= ERRORS_PER_SECOND {
            return;
        }
        self.errors = (second, count + 1);
        let error = RequestError {
            request: RequestId(client.id(), x.number()),
            status: x.status(),
            place: x.routed().shared_place().cloned(),
            upstream: x.upstream().map(|group| (group.settings().clone(), x.server())),
            failure: x.routed().failure(),
            trace: x.trace().id(),
        };
        let record =
            Record { client: client.peer(), connection: client.id(), what: Occurrence::Error(Box::new(error)) };
        // The counters have all of them.
        let _ = self.sink.queue.try_send(record);
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
        let from = sink.from.clone();
        let (mut records, counters) = (Records::new(0, sink), Counters::default());
        let client = ("192.0.2.1:5".parse().unwrap(), records.next_connection());
        records.handshake_failed(&counters, client, "timeout");
        assert!(queue.try_recv().is_err());
        from.store(0, Relaxed);
        for _ in 0..5 {
            records.handshake_failed(&counters, client, "timeout");
        }
        let queued = queue.try_iter().count();
        assert_eq!((queued, counters.value(Count::RecordsLost)), (2, 3));
    }

    /// What is queued for nobody would take the room of errors.
    #[test]
    fn a_recording_queues_no_records_for_the_log() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let client = fixtures::client(&settings.listeners()[0], "192.0.2.1:5");
        let (sink, queue) = fixtures::record_sink();
        sink.from.store(ALL_REQUESTS, Relaxed);
        let (mut records, counters) = (Records::new(0, sink), Counters::default());
        let (mut x, cx) = (Exchange::new(ClientStream::H1(Key::from_u64(1))), Context::new().unwrap());
        for _ in 0..100 {
            records.handshake_failed(&counters, (client.peer(), client.id()), "timeout");
            records.connection_denied(&counters, (client.peer(), client.id()));
            x.note_status(404);
            records.exchange(&counters, &client, &x, &cx, &Arc::default());
        }
        x.note_status(503);
        records.exchange(&counters, &client, &x, &cx, &Arc::default());
        let queued: Vec<Record> = queue.try_iter().collect();
        assert!(matches!(&queued[..], [Record { what: Occurrence::Error(_), .. }]), "{queued:?}");
        assert_eq!(counters.value(Count::RecordsLost), 0);
    }

    #[test]
    fn a_request_without_an_answer_is_not_said_to_be_refused() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let client = fixtures::client(&settings.listeners()[0], "192.0.2.1:5");
        let (sink, queue) = fixtures::record_sink();
        sink.from.store(0, Relaxed);
        let (mut records, counters) = (Records::new(0, sink), Counters::default());
        let cx = Context::new().unwrap();
        let mut x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
        let mut reported = |status| {
            x.note_status(status);
            records.exchange(&counters, &client, &x, &cx, &Arc::default());
            queue.try_recv().ok().map(|record| record.what)
        };
        assert!(reported(200).is_none());
        assert!(matches!(reported(431), Some(Occurrence::Refused(_, 431))));
        assert!(matches!(reported(CLIENT_LEFT), Some(Occurrence::Abandoned(_))));
    }

    #[test]
    fn errors_are_reported_without_the_log_and_a_flood_of_them_is_bounded() {
        let (settings, _published) = fixtures::settings(fixtures::snapshot(fixtures::limits(), Vec::new()));
        let client = fixtures::client(&settings.listeners()[0], "192.0.2.1:5");
        let (sink, queue) = fixtures::record_sink();
        let (mut records, counters) = (Records::new(0, sink), Counters::default());
        let (mut x, cx) = (Exchange::new(ClientStream::H1(Key::from_u64(1))), Context::new().unwrap());
        let mut reported = |status| {
            x.note_status(status);
            records.exchange(&counters, &client, &x, &cx, &Arc::default());
            queue.try_iter().count()
        };
        assert_eq!((reported(200), reported(404), reported(CLIENT_LEFT)), (0, 0, 0));
        let errors: usize = (0..1000).map(|_| reported(503)).sum();
        assert_eq!(errors, ERRORS_PER_SECOND as usize);
        assert_eq!(counters.value(Count::RecordsLost), 0, "the log has lost nothing");
    }
}
