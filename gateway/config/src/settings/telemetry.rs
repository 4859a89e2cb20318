//! `[traces]`, `[otlp]` and `[request_id]`.

use super::{Choice, Count, File, Flag, Own, Shape, Text, Time, argument, table};
use crate::collector as reading;
use crate::forwarding;
use sealane_proxy::traces::TraceTrust;
use std::time::Duration;

table! {
    /// Traces of requests, sent to an OpenTelemetry collector (OTLP). Without this table, the gateway forwards
    /// `traceparent`, `tracestate` and `baggage` unchanged. See [traces](page:traces).
    traces "[traces]", example_is_commented = true;

    /// The collector: `"http://HOST:PORT"` or `"https://HOST:PORT"`. With `protocol = "http"`, the URL may have a
    /// path; without a path, the gateway uses `/v1/traces`. If the name resolves to several addresses, the gateway
    /// tries the first four addresses.
    endpoint: Own<reading::CollectorEndpoint> = Own(reading::endpoint, || Shape::Text(None)),
        required("http://127.0.0.1:4318");
    /// The protocol to the collector: `"http"` (OTLP over HTTP/1.1, protobuf) or `"grpc"` (OTLP over gRPC; the URL
    /// has no path).
    protocol: Choice<reading::CollectorProtocol> = Choice(&[
        ("http", reading::CollectorProtocol::Http),
        ("grpc", reading::CollectorProtocol::Grpc),
    ]), default("http");
    /// With 100, the gateway samples one in 100 of the traces that start in this gateway. 0: none. If another program
    /// started the trace, that program decides whether the request is sampled (see `trust`).
    sample: Count = Count(0..=1_000_000), default(100);
    /// Export the spans of each request that got a status of 500 or more, or for which an attempt at a server failed,
    /// even if its trace is not sampled.
    errors: Flag = Flag, default(true);
    /// Whose `traceparent`, `tracestate` and `baggage` the gateway trusts and forwards. `"proxies"`: the fields of the
    /// listener's `trusted_proxies`. `"all"`: the fields of all peers. `"none"`: the fields of no peer. The gateway
    /// removes the fields from requests of all other peers, and starts new traces for these requests.
    trust: Choice<TraceTrust> = Choice(&[
        ("proxies", TraceTrust::Proxies),
        ("all", TraceTrust::Everybody),
        ("none", TraceTrust::Nobody),
    ]), default("proxies");
    /// Whether spans have the path of the request. They never have the query, header fields or the client's address.
    paths: Flag = Flag, default(true);
    /// The value of the resource attribute `service.name`.
    service: Text = Text, default("sealane");
    /// A file with a header field that is sent to the collector, as `NAME: VALUE` on one line: a token, for example.
    header_file: File = File, example("/etc/sealane/collector.header");
    /// PEM file of the CAs that may have signed the collector's certificate, for `"https://"`.
    ca: File = File, described("the system's CAs"), example("certs/collector-ca.pem");
}

table! {
    /// A header with an ID of the request, so that all programs that handle the request use the same ID. If a proxy in
    /// the listener's `trusted_proxies` has sent a valid ID (1 to 128 letters, digits and characters of `-_.~+/=:@`),
    /// the gateway keeps it. In all other cases, the gateway replaces the header: the new ID has 32 random hexadecimal
    /// digits. Upstreams, `forward_auth`, the access log and traces get the ID. See
    /// [operating](page:operating#follow-a-request).
    request_id "[request_id]", example_is_commented = true;

    /// The name of the header. It must be a header that has no other meaning.
    header: Own<String> = Own(forwarding::id_header, || Shape::Text(None)), default("X-Request-Id");
    /// Whether responses have the header, too. It replaces a header of this name from the upstream.
    response: Flag = Flag, default(false);
}

const INTERVAL: Time = Time(Duration::from_secs(1)..=Duration::from_secs(3600));

table! {
    /// Metrics and the log, sent to an OpenTelemetry collector (OTLP). See [metrics and logs over OTLP](page:otlp);
    /// for traces, see `[traces]`.
    otlp "[otlp]", example_is_commented = true;

    /// The collector: `"http://HOST:PORT"` or `"https://HOST:PORT"`. With `protocol = "http"`, the URL may have a
    /// path, to which the gateway appends `/v1/metrics` or `/v1/logs`. If the name resolves to several addresses, the
    /// gateway tries the first four addresses.
    endpoint: Own<reading::CollectorEndpoint> = Own(reading::endpoint, || Shape::Text(None)),
        required("http://127.0.0.1:4318");
    /// The protocol to the collector: `"http"` (OTLP over HTTP/1.1, protobuf) or `"grpc"` (OTLP over gRPC; the URL
    /// has no path).
    protocol: Choice<reading::CollectorProtocol> = Choice(&[
        ("http", reading::CollectorProtocol::Http),
        ("grpc", reading::CollectorProtocol::Grpc),
    ]), default("http");
    /// Whether metrics are sent: all metrics of `/metrics`, under the same names.
    metrics: Flag = Flag, default(true);
    /// How often metrics are sent.
    interval: Time = INTERVAL, default("60s");
    /// Whether the gateway's log is sent, at the level of `[log]`. The access log is not sent.
    logs: Flag = Flag, default(true);
    /// The value of the resource attribute `service.name`.
    service: Text = Text, default("sealane");
    /// A file with a header field that is sent to the collector, as `NAME: VALUE` on one line: a token, for example.
    header_file: File = File, example("/etc/sealane/collector.header");
    /// PEM file of the CAs that may have signed the collector's certificate, for `"https://"`.
    ca: File = File, described("the system's CAs"), example("certs/collector-ca.pem");
}
