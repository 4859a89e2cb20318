//! `[traces]` and `[request_id]`.

use super::{Choice, Count, File, Flag, Own, Shape, Text, argument, table};
use crate::route;
use crate::traces as reading;
use sealane_proxy::traces::TraceTrust;

table! {
    /// Traces of requests, sent to an OpenTelemetry collector (OTLP). Without this table, the gateway passes `traceparent`,
    /// `tracestate` and `baggage` on unchanged. See [traces](page:traces).
    traces "[traces]", example_is_commented = true;

    /// The collector: `"http://HOST:PORT"` or `"https://HOST:PORT"`. With `protocol = "http"`, the URL may have a
    /// path; without a path, the gateway uses `/v1/traces`. If the name resolves to several addresses, the gateway
    /// tries the first four addresses.
    endpoint: Own<reading::TraceEndpoint> = Own(reading::endpoint, || Shape::Text(None)),
        required("http://127.0.0.1:4318");
    /// The protocol to the collector: `"http"` (OTLP over HTTP/1.1, protobuf) or `"grpc"` (OTLP over gRPC; the URL
    /// has no path).
    protocol: Choice<reading::TraceProtocol> = Choice(&[
        ("http", reading::TraceProtocol::Http),
        ("grpc", reading::TraceProtocol::Grpc),
    ]), default("http");
    /// With 100, the gateway samples one in 100 of the traces that start in this gateway. 0: none. If another program
    /// started the trace, that program decides whether the request is sampled (see `trust`).
    sample: Count = Count(0..=1_000_000), default(100);
    /// Export the spans of each request that got a status of 500 or more, or for which an attempt at a server failed,
    /// even if its trace is not sampled.
    errors: Flag = Flag, default(true);
    /// Whose `traceparent`, `tracestate` and `baggage` the gateway trusts and passes on. `"proxies"`: the fields of
    /// the listener's `trusted_proxies`. `"all"`: the fields of all peers. `"none"`: the fields of no peer. The
    /// gateway removes the fields of all other peers, and starts new traces for their requests.
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
    /// A header by which a request is known in every program that it goes through. The gateway keeps the value that a proxy of the
    /// listener's `trusted_proxies` has sent: 1 to 128 letters, digits and characters of `-_.~+/=:@`. It removes all others, and makes
    /// a random value of 32 hexadecimal digits. Upstreams, `forward_auth`, the access log and traces get the value. See
    /// [operating](page:operating#follow-a-request).
    request_id "[request_id]", example_is_commented = true;

    /// The name of the header.
    header: Own<String> = Own(route::user_header, || Shape::Text(None)), default("X-Request-Id");
    /// Responses have the header, too, in the place of a header of this name from the upstream.
    response: Flag = Flag, default(false);
}
