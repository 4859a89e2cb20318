//! Spans from the records of lanes, with the names of OpenTelemetry's conventions for HTTP.
//!
//! | span | kind | from | to |
//! |---|---|---|---|
//! | `METHOD ROUTE` | server | the head is whole | the response is sent |
//! | `admission` | internal | the connection is accepted | the lane has time for the handshake |
//! | `handshake` | internal | the lane has time for it | it is over |
//! | `routing` | internal | the head is whole | the server can be selected: the client is admitted |
//! | `METHOD` | client | the server can be selected | the response is sent |
//! | `connect` | internal | a connection to the server is begun | the head is sent over it |
//!
//! The first request of a connection has `admission` and `handshake`, which were over before it began.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use sealane_http::trace_context::SpanId;
use sealane_http::{Method, Version};
use sealane_proxy::traces::TraceRecord;
use sealane_tls::random;
use std::time::UNIX_EPOCH;

/// The low byte has the flags of `traceparent`. It is known whether the parent is remote, and it is (SpanFlags).
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// A request to the collector with these spans.
pub(crate) fn request(service: &str, spans: Vec<Span>) -> ExportTraceServiceRequest {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = vec![text("service.name", service), text("service.version", version)];
    let scope = InstrumentationScope { name: "sealane".to_owned(), version: version.to_owned(), ..Default::default() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..Default::default() }];
    let resource = Some(Resource { attributes, ..Default::default() });
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans, ..Default::default() }] }
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..Default::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

/// What all spans of a record are made from.
struct Maker<'r> {
    record: &'r TraceRecord,
    flags: u32,
}

impl Maker<'_> {
    fn nanos(&self, micros: u64) -> u64 {
        let since = self.record.time_of(micros).duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn span(&self, id: SpanId, parent: Option<SpanId>, name: &str, kind: SpanKind, times: (u64, u64)) -> Span {
        Span {
            trace_id: self.record.context.trace.bytes().to_vec(),
            span_id: id.bytes().to_vec(),
            parent_span_id: parent.map_or_else(Vec::new, |parent| parent.bytes().to_vec()),
            flags: self.flags | HAS_IS_REMOTE,
            name: name.to_owned(),
            kind: kind as i32,
            start_time_unix_nano: self.nanos(times.0),
            end_time_unix_nano: self.nanos(times.1.max(times.0)),
            ..Default::default()
        }
    }

    /// A step of another span.
    fn step(&self, parent: SpanId, name: &str, times: (u64, u64)) -> Span {
        let mut bytes = [0; 8];
        random::fill(&mut bytes);
        self.span(SpanId::from_random(bytes), Some(parent), name, SpanKind::Internal, times)
    }
}

/// Appends the spans of a request.
pub(crate) fn append(spans: &mut Vec<Span>, record: &TraceRecord) {
    let maker = Maker { record, flags: u32::from(record.context.is_sampled()) };
    let (own, times) = (record.context.span, &record.times);
    spans.push(server_span(&maker));
    let made = &times.made;
    if made.established > 0 {
        // A connection that another lane has handed over may not have waited here.
        let admitted = if made.admitted > 0 { made.admitted } else { made.began };
        if made.admitted > 0 {
            spans.push(maker.step(own, "admission", (made.began, admitted)));
        }
        spans.push(maker.step(own, "handshake", (admitted, made.established)));
    }
    if times.routed == 0 {
        return;
    }
    spans.push(maker.step(own, "routing", (times.started, times.routed)));
    spans.push(client_span(&maker));
    if times.connecting > 0 {
        // Where nothing was sent over it, the connection was not made.
        let is_made = times.sent >= times.connecting;
        let mut connect = maker.step(
            record.upstream_span,
            "connect",
            (times.connecting, if is_made { times.sent } else { times.ended }),
        );
        if !is_made {
            connect.status = failed(record);
        }
        spans.push(connect);
    }
}

fn method(method: Method) -> &'static str {
    match method {
        // What clients make up would be as many names as they like.
        Method::Other => "_OTHER",
        known => known.name(),
    }
}

fn failed(record: &TraceRecord) -> Option<Status> {
    let message = record.failure.map_or_else(String::new, |failure| failure.text().into_owned());
    Some(Status { message, code: StatusCode::Error as i32 })
}

fn server_span(maker: &Maker) -> Span {
    let record = maker.record;
    let method = method(record.method);
    let route = record.route.as_ref().and_then(|(routing, index)| routing.routes.get(*index));
    let route = route.map(|route| route.label.as_str()).filter(|label| !label.is_empty());
    let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let times = (record.times.started, record.times.ended);
    let mut span = maker.span(record.context.span, record.parent, &name, SpanKind::Server, times);
    if record.parent.is_some() {
        span.flags |= IS_REMOTE;
    }
    let version = match record.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
        Version::Http3 => "3",
    };
    span.attributes = vec![
        text("http.request.method", method),
        number("http.response.status_code", u64::from(record.status)),
        text("network.protocol.version", version),
        text("url.scheme", if record.is_secure { "https" } else { "http" }),
        number("http.request.body.size", record.bytes.0),
        number("http.response.body.size", record.bytes.1),
        text("sealane.request", &record.request.to_string()),
    ];
    let attributes = &mut span.attributes;
    if !record.host.is_empty() {
        attributes.push(text("server.address", &record.host.read()));
    }
    if !record.request_id.is_empty() {
        attributes.push(text("sealane.request_id", &record.request_id.read()));
    }
    if !record.path.is_empty() {
        attributes.push(text("url.path", &record.path.read()));
    }
    attributes.extend(route.map(|route| text("http.route", route)));
    if record.has_failed() {
        attributes.push(text("error.type", &record.status.to_string()));
        span.status = failed(record);
    }
    span
}

fn client_span(maker: &Maker) -> Span {
    let record = maker.record;
    let times = &record.times;
    let method = method(record.method);
    let during = (times.routed, times.ended);
    let mut span = maker.span(record.upstream_span, Some(record.context.span), method, SpanKind::Client, during);
    span.attributes = vec![text("http.request.method", method)];
    if let Some((upstream, server)) = &record.upstream {
        span.attributes.push(text("sealane.upstream", &upstream.name));
        if let Some(server) = upstream.servers.get(*server) {
            span.attributes.push(text("server.address", &server.name));
        }
    }
    if record.failed_attempts > 0 {
        span.attributes.push(number("http.request.resend_count", record.failed_attempts as u64));
    }
    if times.headed > 0 && times.sent > 0 {
        span.attributes.push(number("http.response.status_code", u64::from(record.status)));
    }
    let event = |time: u64, name: &str| Event {
        time_unix_nano: maker.nanos(time),
        name: name.to_owned(),
        ..Default::default()
    };
    span.events.extend((times.sent > 0).then(|| event(times.sent, "request head sent")));
    span.events.extend((times.headed > 0).then(|| event(times.headed, "response head")));
    if record.failure.is_some() {
        span.attributes.extend(record.failure.map(|failure| text("error.type", &failure.text())));
        span.status = failed(record);
    }
    span
}
