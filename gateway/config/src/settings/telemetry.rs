//! `[traces]` and `[otlp]`.

use super::{Choice, Count, File, Flag, Own, Shape, Text, Time, argument, table};
use crate::collector as reading;
use sealane_proxy::traces::TraceTrust;
use std::time::Duration;

table! {
    /// Traces of requests, sent to an OpenTelemetry collector (OTLP). Without this table, the gateway passes `traceparent`,
    /// `tracestate` and `baggage` on as they come. See [traces](page:traces).
    traces "[traces]", example_is_commented = true;

    /// The collector: `"http://HOST:PORT"` or `"https://HOST:PORT"`. With `protocol = "http"`, the URL may have a path;
    /// without one, the path is `/v1/traces`. If the name resolves to several addresses, the first four are tried.
    endpoint: Own<reading::CollectorEndpoint> = Own(reading::endpoint, || Shape::Text(None)),
        required("http://127.0.0.1:4318");
    /// How the collector is spoken to: `"http"` (OTLP over HTTP/1.1, protobuf) or `"grpc"` (OTLP over gRPC; the URL has no
    /// path).
    protocol: Choice<reading::CollectorProtocol> = Choice(&[
        ("http", reading::CollectorProtocol::Http),
        ("grpc", reading::CollectorProtocol::Grpc),
    ]), default("http");
    /// Of the traces that begin in this gateway, one in so many is sampled. 0: none. In traces that another program has
    /// begun, a request is sampled if that program has sampled it (see `trust`).
    sample: Count = Count(0..=1_000_000), default(100);
    /// Export the spans of each request that got a status of 500 or more, or for which an attempt at a server failed,
    /// even if its trace is not sampled.
    errors: Flag = Flag, default(true);
    /// Whose `traceparent`, `tracestate` and `baggage` the gateway believes and passes on. `"proxies"`: those of the
    /// listener's `trusted_proxies`. `"all"`: everybody's. `"none"`: nobody's. Fields of others are removed, and their
    /// requests start new traces.
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

const INTERVAL: Time = Time(Duration::from_secs(1)..=Duration::from_secs(3600));

table! {
    /// Metrics and the log, sent to an OpenTelemetry collector (OTLP). Traces have a table of their own, `[traces]`. See
    /// [metrics and logs over OTLP](page:otlp).
    otlp "[otlp]", example_is_commented = true;

    /// The collector: `"http://HOST:PORT"` or `"https://HOST:PORT"`. With `protocol = "http"`, the URL may have a path, to
    /// which `/v1/metrics` and `/v1/logs` are appended. If the name resolves to several addresses, the first four are
    /// tried.
    endpoint: Own<reading::CollectorEndpoint> = Own(reading::endpoint, || Shape::Text(None)),
        required("http://127.0.0.1:4318");
    /// How the collector is spoken to: `"http"` (OTLP over HTTP/1.1, protobuf) or `"grpc"` (OTLP over gRPC; the URL has no
    /// path).
    protocol: Choice<reading::CollectorProtocol> = Choice(&[
        ("http", reading::CollectorProtocol::Http),
        ("grpc", reading::CollectorProtocol::Grpc),
    ]), default("http");
    /// Whether metrics are sent: all that `/metrics` has, under the same names.
    metrics: Flag = Flag, default(true);
    /// How often metrics are sent.
    interval: Time = INTERVAL, default("60s");
    /// Whether the log of the gateway is sent, at its level. The access log is not sent.
    logs: Flag = Flag, default(true);
    /// The value of the resource attribute `service.name`.
    service: Text = Text, default("sealane");
    /// A file with a header field that is sent to the collector, as `NAME: VALUE` on one line: a token, for example.
    header_file: File = File, example("/etc/sealane/collector.header");
    /// PEM file of the CAs that may have signed the collector's certificate, for `"https://"`.
    ca: File = File, described("the system's CAs"), example("certs/collector-ca.pem");
}
