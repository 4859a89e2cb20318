//! Traces: which requests are traced, what upstreams are told of it, and the records from which control makes spans.
//!
//! ```text
//! begin_request ─► begin: reads traceparent, decides ─► forwarded::prepare: traceparent for the upstream
//!                                                            │
//! finish_exchange ─► finish: TraceRecord ─► queue of the lane ─► control, which exports spans (OTLP)
//! ```
//!
//! A request has a trace only if `[traces]` is configured. What is known of it until it ends is in its exchange; a record is
//! made once, at the end, when it is known whether the request has failed. A record has a fixed size, and what does not fit the
//! queue is counted and dropped: a lane never waits.
//!
//! The queues come with the snapshot, so without `[traces]` there are none.

use crate::Failure;
use crate::client::identity::Client;
use crate::connections::Connections;
use crate::counters::{Count, Counters};
use crate::exchange::Exchange;
use crate::latency;
use crate::records::RequestId;
use crate::request_ids::{MAX_ID, id_of};
use crate::settings::LaneSettings;
use crate::snapshot::{Routing, Upstream};
use sealane_http::trace_context::{SpanId, TraceId, TraceParent, is_baggage, is_sampled, is_trace_state};
use sealane_http::{Fields, Known, Method, Version};
use sealane_lane::{Context, Micros};
use sealane_tls::random;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a host that a record holds; longer ones are cut.
const MAX_HOST: usize = 80;
/// The same of a path.
const MAX_PATH: usize = 160;

const TRACESTATE: &[u8] = b"tracestate";
const BAGGAGE: &[u8] = b"baggage";

/// Whose `traceparent`, `tracestate` and `baggage` are believed. Those of others are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceTrust {
    /// Those of the listener's trusted proxies.
    #[default]
    Proxies,
    /// Everybody's.
    Everybody,
    /// Nobody's.
    Nobody,
}

/// Which requests are traced, and where their traces go.
#[derive(Debug)]
pub struct TraceRules {
    /// Of the traces that begin here, one in so many is sampled; 0: none.
    pub one_in: u32,
    /// Requests that fail are recorded, even if they are not sampled.
    pub errors: bool,
    /// Whose word is taken.
    pub trust: TraceTrust,
    /// Records have the path of the request, without its query.
    pub paths: bool,
    /// The queues of the lanes, by slot.
    pub queues: Vec<SyncSender<TraceRecord>>,
}

/// When a client's connection was made: what the spans of its first request say of it. 0: that has not happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// It was accepted.
    pub began: Micros,
    /// Its hello has got the lane's time: from then on the handshake is computed.
    pub admitted: Micros,
    /// The handshake was over.
    pub established: Micros,
}

impl Made {
    /// Of a connection that begins.
    pub(crate) fn begun(now: Micros) -> Self {
        Self { began: now, ..Self::default() }
    }
}

/// Text that is cut at `N` bytes, at most 255.
#[derive(Clone, Copy, Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Text<N> {
    /// The beginning of these bytes.
    pub fn new(text: &[u8]) -> Self {
        const { assert!(N <= u8::MAX as usize) };
        let mut bytes = [0; N];
        let len = text.len().min(N);
        bytes[..len].copy_from_slice(&text[..len]);
        Self { bytes, len: len as u8 }
    }

    /// The text; what is not UTF-8 is replaced.
    pub fn read(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes[..usize::from(self.len)])
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// When the steps of a request began, in the lane's microseconds. 0: that has not happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceTimes {
    /// Of its connection, if it is the first request there.
    pub made: Made,
    /// Its head was whole.
    pub started: Micros,
    /// Its route was found, and the client admitted.
    pub routed: Micros,
    /// A connection was begun for the last attempt.
    pub connecting: Micros,
    /// Its head was sent to the server.
    pub sent: Micros,
    /// The head of the response was there.
    pub headed: Micros,
    /// It was over.
    pub ended: Micros,
}

/// A request that is over, for the exporter.
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// Its trace, and the span of the request.
    pub context: TraceParent,
    /// The span from which it came, of a trace that somebody else has begun.
    pub parent: Option<SpanId>,
    /// The span of the request to the upstream: what the upstream was told.
    pub upstream_span: SpanId,
    /// As in the access log.
    pub request: RequestId,
    /// With `[request_id]`: the id that the request has.
    pub request_id: Text<MAX_ID>,
    /// [`Method::Other`] stands for all that are not known.
    pub method: Method,
    /// As the client speaks it.
    pub version: Version,
    /// The client came over TLS.
    pub is_secure: bool,
    /// The status that the client got.
    pub status: u16,
    /// The host that was asked for, if the configuration has it.
    pub host: Text<MAX_HOST>,
    /// The path, if it is to be told.
    pub path: Text<MAX_PATH>,
    /// The index of its route.
    pub route: Option<(Arc<Routing>, usize)>,
    /// The group and the index of the last server in it.
    pub upstream: Option<(Arc<Upstream>, usize)>,
    /// Why the last attempt failed that did.
    pub failure: Option<Failure>,
    /// Attempts that failed.
    pub failed_attempts: usize,
    /// Bytes of the request's body, and of the response's.
    pub bytes: (u64, u64),
    /// When its steps began.
    pub times: TraceTimes,
    /// The lane's microseconds at the time `at`.
    pub now: Micros,
    /// The time of day at which this was made.
    pub at: SystemTime,
}

impl TraceRecord {
    /// The time of day of one of its times.
    pub fn time_of(&self, time: Micros) -> SystemTime {
        self.at - std::time::Duration::from_micros(self.now.saturating_sub(time))
    }

    /// Whether the request has failed, for the gateway or a server.
    pub fn has_failed(&self) -> bool {
        has_failed(self.status)
    }
}

/// Client errors are no errors of a server's span (OpenTelemetry's conventions for HTTP).
fn has_failed(status: u16) -> bool {
    status >= 500
}

/// What an exchange knows of its trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trace {
    ids: Option<Ids>,
    /// When its route was found.
    routed: Micros,
    /// When a connection was begun for the attempt under way; 0: it uses one that was there.
    connecting: Micros,
}

#[derive(Clone, Copy, Debug)]
struct Ids {
    /// The trace, and the span of the request.
    context: TraceParent,
    parent: Option<SpanId>,
    upstream: SpanId,
}

impl Trace {
    /// Whether the request has a trace, sampled or not.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.ids.is_some()
    }

    /// The id of its trace.
    #[inline]
    pub fn id(&self) -> Option<TraceId> {
        self.ids.as_ref().map(|ids| ids.context.trace)
    }

    /// What an upstream is told.
    #[inline]
    pub fn parent_for_upstream(&self) -> Option<TraceParent> {
        self.ids.as_ref().map(|ids| ids.context.with_span(ids.upstream))
    }

    /// A connection is made for the attempt under way since then; 0: there is one already.
    #[inline]
    pub fn note_connecting(&mut self, since: Micros) {
        self.connecting = since;
    }

    /// Its route was found.
    #[inline]
    pub fn note_routed(&mut self, now: Micros) {
        if self.ids.is_some() {
            self.routed = now;
        }
    }

    /// Makes it as new.
    #[inline]
    pub fn clear(&mut self) {
        self.ids = None;
        self.routed = 0;
        self.connecting = 0;
    }
}

/// A request has come: reads what it says of its trace, if its peer may say so, and removes what must not be passed on.
#[inline(never)]
pub(crate) fn begin(x: &mut Exchange, client: &Client, rules: &TraceRules) {
    let is_trusted = match rules.trust {
        TraceTrust::Proxies => client.listener().listener.trusted_proxies.contains(client.peer().ip()),
        TraceTrust::Everybody => true,
        TraceTrust::Nobody => false,
    };
    let fields = &mut x.request_mut().fields;
    let parent = if is_trusted { parent_of(fields) } else { None };
    // Without a parent, its state says nothing (Trace Context §4.2).
    if parent.is_none() || !is_trace_state(named(fields, TRACESTATE)) {
        fields.remove_named(TRACESTATE);
    }
    if !is_trusted || !is_baggage(named(fields, BAGGAGE)) {
        fields.remove_named(BAGGAGE);
    }
    if parent.is_none() {
        fields.remove(Known::Traceparent);
    }
    let mut bytes = [0; 32];
    random::fill(&mut bytes);
    let (own, rest) = bytes.split_at(8);
    let (upstream, new) = rest.split_at(8);
    let span = |bytes: &[u8]| SpanId::from_random(bytes.try_into().unwrap_or_default());
    let own = span(own);
    let context = match parent {
        Some(parent) => parent.with_span(own),
        None => {
            let trace = TraceId::from_random(new.try_into().unwrap_or_default());
            TraceParent::new(trace, own, is_sampled(trace, rules.one_in))
        }
    };
    x.join_trace(Trace {
        ids: Some(Ids { context, parent: parent.map(|parent| parent.span), upstream: span(upstream) }),
        ..Trace::default()
    });
}

/// The one `traceparent`. Two say nothing (Trace Context §4.3).
fn parent_of(fields: &Fields) -> Option<TraceParent> {
    if !fields.contains(Known::Traceparent) {
        return None;
    }
    let mut all = fields.all(Known::Traceparent);
    let first = all.next()?;
    if all.next().is_some() { None } else { TraceParent::parse(first) }
}

/// The values of all fields of a name, which is in lower case.
fn named<'f>(fields: &'f Fields, wanted: &'static [u8]) -> impl Iterator<Item = &'f [u8]> {
    let is_wanted = move |name: &[u8]| name.len() == wanted.len() && name.eq_ignore_ascii_case(wanted);
    let fields = fields.iter().filter(move |(known, name, _)| *known == Known::Other && is_wanted(name));
    fields.map(|(_, _, value)| value)
}

/// A request with a trace is over: hands it to the exporter, if it is sampled or has failed.
#[inline(never)]
pub(crate) fn finish(
    connections: &Connections,
    counters: &Counters,
    settings: &LaneSettings,
    cx: &Context,
    x: &Exchange,
) {
    let (Some(rules), Some(ids)) = (settings.snapshot().traces.as_deref(), x.trace().ids) else { return };
    let recorded =
        ids.context.is_sampled() || rules.errors && (has_failed(x.status()) || x.routed().failure().is_some());
    if !recorded {
        return;
    }
    let Some(client) = connections.client_of(x.client_stream()) else { return };
    let Some(queue) = rules.queues.get(settings.slot()) else { return };
    let record = record(x, client, ids, id_of(x, settings), rules.paths, cx.micros());
    let at = record.at;
    match queue.try_send(record) {
        Ok(()) => counters.count(Count::TracesQueued),
        Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return counters.count(Count::TracesLost),
    }
    let place = x.routed().place().unwrap_or(&settings.snapshot().latency.no_host);
    let at = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let (took, exemplar) = (x.durations(cx.micros()), (ids.context.trace, at));
    latency::note_exemplar(place, settings.slot(), x.request().version, x.status(), took, exemplar);
}

fn record(x: &Exchange, client: &Client, ids: Ids, id: Option<&[u8]>, paths: bool, now: Micros) -> TraceRecord {
    let routed = x.routed();
    let host = if routed.has_host() { x.request().host_name().as_bytes() } else { b"" };
    let since_started = |time: Micros| if time >= x.times().started { time } else { 0 };
    TraceRecord {
        context: ids.context,
        parent: ids.parent,
        upstream_span: ids.upstream,
        request: RequestId(client.id(), x.number()),
        request_id: Text::new(id.unwrap_or_default()),
        method: x.request().method(),
        version: x.request().version,
        is_secure: client.is_secure(),
        status: x.status(),
        host: Text::new(host),
        path: Text::new(if paths { x.request().client_path() } else { b"" }),
        route: routed.route().map(|route| route.shared()),
        upstream: x.upstream().map(|group| (group.settings().clone(), x.server())),
        failure: routed.failure(),
        failed_attempts: x.attempts(),
        bytes: (x.request_body().bytes(), x.response_body().bytes()),
        times: TraceTimes {
            made: if x.number() == 1 { client.made() } else { Made::default() },
            started: x.times().started,
            routed: x.trace().routed,
            connecting: x.trace().connecting,
            // These two are of an earlier request where this one has not come so far.
            sent: since_started(x.times().sent),
            headed: since_started(x.times().headed),
            ended: x.until(now),
        },
        now,
        at: SystemTime::now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::streams::ClientStream;
    use crate::fixtures;
    use sealane_lane::Key;
    use sealane_route::proxies::Cidr;
    use std::sync::mpsc::{Receiver, sync_channel};

    const PARENT: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const UNSAMPLED: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    /// Fields of a request.
    type Sent<'s> = &'s [(&'s str, &'s [u8])];

    fn rules(trust: TraceTrust, one_in: u32) -> (TraceRules, Receiver<TraceRecord>) {
        let (queue, records) = sync_channel(2);
        (TraceRules { one_in, errors: true, trust, paths: true, queues: vec![queue] }, records)
    }

    /// A lane's settings with a listener that trusts 192.0.2.1.
    fn settings(rules: Option<TraceRules>) -> LaneSettings {
        let mut snapshot = fixtures::snapshot(fixtures::limits(), Vec::new());
        let mut listener = fixtures::listener(1);
        listener.trusted_proxies = ["192.0.2.1/32".parse::<Cidr>().unwrap()].into_iter().collect();
        snapshot.listeners = vec![Arc::new(listener)];
        snapshot.traces = rules.map(Arc::new);
        fixtures::settings(snapshot).0
    }

    /// A request from this address with these fields, after [`begin`].
    fn begun(rules: &TraceRules, from: &str, fields: Sent) -> Exchange {
        let settings = settings(None);
        let client = fixtures::client(&settings.listeners()[0], from);
        let mut x = Exchange::new(ClientStream::H1(Key::from_u64(1)));
        for (name, value) in fields {
            x.request_mut().fields.push(name.as_bytes(), value).unwrap();
        }
        begin(&mut x, &client, rules);
        x
    }

    fn names(x: &Exchange) -> Vec<String> {
        x.request().fields.iter().map(|(_, name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }

    #[test]
    fn a_trace_of_a_trusted_proxy_goes_on_and_one_of_a_stranger_begins_anew() {
        let fields: Sent =
            &[("traceparent", PARENT), ("TraceState", b"a=1"), ("baggage", b"user=alice"), ("accept", b"*/*")];
        for (trust, from, goes_on) in [
            (TraceTrust::Proxies, "192.0.2.1:5", true),
            (TraceTrust::Proxies, "192.0.2.2:5", false),
            (TraceTrust::Everybody, "192.0.2.2:5", true),
            (TraceTrust::Nobody, "192.0.2.1:5", false),
        ] {
            let x = begun(&rules(trust, 0).0, from, fields);
            let told = x.trace().parent_for_upstream().unwrap();
            let parent = TraceParent::parse(PARENT).unwrap();
            assert_eq!((told.trace == parent.trace, told.is_sampled()), (goes_on, goes_on), "{trust:?} {from}");
            assert_ne!(told.span, parent.span);
            let left: &[&str] = if goes_on { &["traceparent", "TraceState", "baggage", "accept"] } else { &["accept"] };
            assert_eq!(names(&x), left, "{trust:?} {from}");
            assert_eq!(x.trace().ids.unwrap().parent, goes_on.then_some(parent.span));
        }
    }

    #[test]
    fn what_breaks_the_rules_is_not_passed_on() {
        let believing = rules(TraceTrust::Everybody, 1).0;
        let cases: [(Sent, &[&str]); 5] = [
            (&[("traceparent", PARENT), ("traceparent", PARENT), ("tracestate", b"a=1")], &[]),
            (&[("traceparent", &PARENT[1..]), ("tracestate", b"a=1"), ("baggage", b"a=1")], &["baggage"]),
            (&[("traceparent", PARENT), ("tracestate", b"a=1"), ("tracestate", b"a=2")], &["traceparent"]),
            (&[("traceparent", PARENT), ("baggage", b"a b")], &["traceparent"]),
            (&[("tracestate", b"a=1"), ("baggage", b"a=1")], &["baggage"]),
        ];
        for (fields, left) in cases {
            let x = begun(&believing, "192.0.2.9:5", fields);
            assert_eq!(names(&x), left, "{fields:?}");
            let is_new = x.trace().ids.unwrap().parent.is_none();
            assert_eq!(is_new, !left.contains(&"traceparent"), "{fields:?}");
        }
    }

    #[test]
    fn the_parent_decides_and_without_one_the_ratio() {
        let sampled = |one_in, fields: Sent| {
            let x = begun(&rules(TraceTrust::Everybody, one_in).0, "192.0.2.9:5", fields);
            x.trace().parent_for_upstream().unwrap().is_sampled()
        };
        assert!(sampled(0, &[("traceparent", PARENT)]));
        assert!(!sampled(1, &[("traceparent", UNSAMPLED)]));
        assert!(sampled(1, &[]) && !sampled(0, &[]));
    }

    #[test]
    fn sampled_and_failed_requests_are_queued_and_what_does_not_fit_is_counted() {
        let (rules, records) = rules(TraceTrust::Everybody, 0);
        let settings = settings(Some(rules));
        let rules = settings.snapshot().traces.clone().unwrap();
        let mut connections = Connections::default();
        let (conn, _peer) = fixtures::connection(&settings.listeners()[0]);
        let key = connections.insert(conn);
        let (counters, cx) = (Counters::default(), Context::new().unwrap());
        let finished = |status, parent: Option<&[u8]>| {
            let mut x = Exchange::new(ClientStream::H1(key));
            x.request_mut().set_target(b"/a?secret").unwrap();
            if let Some(parent) = parent {
                x.request_mut().fields.push(b"traceparent", parent).unwrap();
            }
            begin(&mut x, connections.client_at(key).unwrap(), &rules);
            x.note_status(status);
            finish(&connections, &counters, &settings, &cx, &x);
            records.try_recv().ok()
        };
        assert!(finished(200, None).is_none() && finished(404, None).is_none());
        assert!(finished(200, Some(UNSAMPLED)).is_none());
        let record = finished(502, Some(UNSAMPLED)).unwrap();
        assert_eq!((record.status, &*record.path.read()), (502, "/a"));
        assert!(!record.context.is_sampled() && record.has_failed());
        let record = finished(200, Some(PARENT)).unwrap();
        assert!(record.context.is_sampled() && !record.has_failed());
        assert_eq!((counters.value(Count::TracesQueued), counters.value(Count::TracesLost)), (2, 0));
        // Nobody takes them now.
        drop(records);
        let mut x = begun(&rules, "192.0.2.9:5", &[("traceparent", PARENT)]);
        x.comes_on(ClientStream::H1(key));
        finish(&connections, &counters, &settings, &cx, &x);
        assert_eq!((counters.value(Count::TracesQueued), counters.value(Count::TracesLost)), (2, 1));
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(Text::<4>::new(b"abcdef").read(), "abcd");
        assert_eq!(Text::<4>::new("ab\u{e9}\u{e9}".as_bytes()).read(), "ab\u{e9}");
        assert!(Text::<4>::new(b"").is_empty());
    }
}
