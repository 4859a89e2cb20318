//! Traces: `traceparent` over every version of HTTP, and spans at a collector, over OTLP/HTTP and OTLP/gRPC. The collector is the one
//! of OpenTelemetry's own project, or a server of the test's own, which reads messages with that project's types.

use crate::operating::{Operated, order};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;
use sealane_interop::backend::{self, Backend, ok};
use sealane_interop::gateway::{Gateway, configured, run};
use sealane_interop::http::{Message, Wire};
use sealane_interop::peers::otel_collector;
use sealane_interop::process::Server;
use sealane_interop::prometheus::Prometheus;
use sealane_interop::site::{HOST, Site};
use sealane_interop::versions::{Asked, Everywhere, VERSIONS};
use sealane_interop::{client, eventually, h2, h3, need, ports, skip};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// What a client says of its trace.
const FIELDS: &[(&str, &str)] = &[("traceparent", PARENT), ("tracestate", "rojo=1"), ("baggage", "user=alice")];

/// A gateway with a TLS listener (HTTP/1.1, 2 and 3) and a plain one, which trust `trusted`.
fn gateway(site: &Site, traces: &str, trusted: &str, rest: &str) -> (Gateway, SocketAddr) {
    let plain = ports::free();
    let text = format!(
        r#"
lanes = 1
{traces}
[admin]
listen = "@ADMIN@"
[[listener]]
address = "@ADDRESS@"
http3 = true
trusted_proxies = ["{trusted}"]
[listener.tls]
certificates = {{ cert = {cert:?}, key = {key:?} }}
[[listener]]
address = "{plain}"
h2c = true
trusted_proxies = ["{trusted}"]
{rest}"#,
        cert = site.ecdsa.cert,
        key = site.ecdsa.key,
    );
    (configured(site, &text), plain)
}

fn to(backend: &Backend) -> String {
    format!("[[host]]\nnames = [\"*\"]\nto = {:?}\n", backend.url())
}

/// A collector of OTLP/HTTP.
fn collector() -> Backend {
    Backend::answering(|_| ok(b""))
}

fn traces(collector: &str, more: &str) -> String {
    format!("[traces]\nendpoint = \"{collector}\"\n{more}\n")
}

fn spans_of(message: &[u8]) -> Vec<Span> {
    let request = ExportTraceServiceRequest::decode(message).expect("the message is one of OTLP");
    let mut spans = Vec::new();
    for resource in request.resource_spans {
        let of = resource.resource.expect("spans say whose they are");
        let service = of.attributes.iter().find(|a| a.key == "service.name").expect("the service has a name");
        let name = service.value.as_ref().and_then(|v| v.value.clone());
        assert!(matches!(&name, Some(Value::StringValue(name)) if !name.is_empty()), "{name:?}");
        spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    spans
}

/// All spans that a collector has got.
fn spans(collector: &Backend) -> Vec<Span> {
    collector.requests().iter().flat_map(|request| spans_of(&request.body)).collect()
}

fn text(span: &Span, key: &str) -> Option<String> {
    let value = span.attributes.iter().find(|a| a.key == key)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Waits for so many server spans, and returns all spans.
fn wait_for(collector: &Backend, requests: usize) -> Vec<Span> {
    let servers = |spans: &[Span]| spans.iter().filter(|s| s.kind == SpanKind::Server as i32).count();
    let mut found = Vec::new();
    let done = eventually(|| {
        found = spans(collector);
        servers(&found) >= requests
    });
    assert!(done && servers(&found) == requests, "{} of {requests}: {found:?}", servers(&found));
    found
}

/// The trace and the span that a server was told.
fn told(request: &Message) -> (String, String) {
    let value = request.header("traceparent").expect("the server is told of a trace");
    let parts: Vec<&str> = value.split('-').collect();
    assert!(parts.len() == 4 && parts[0] == "00" && value.len() == 55, "{value}");
    (parts[1].to_owned(), parts[2].to_owned())
}

#[test]
fn a_trusted_trace_goes_on_over_every_version_to_servers_of_every_version() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    // Nothing is sampled here of its own accord: the client has decided.
    let traces = traces(&collector.url(), "sample = 0");
    let (second, plain) = gateway(&site, &traces, "127.0.0.1", &to(&origin));
    let tls = format!("https://{HOST}:{}", second.address.port());
    let upstream =
        |name: &str, url: &str, more: &str| format!("[[upstream]]\nname = \"{name}\"\nservers = [{url:?}]\n{more}\n");
    let ca = format!("[upstream.tls]\nca = {:?}", site.ca);
    let rest = [
        upstream("one", &format!("http://{plain}"), ""),
        upstream("two", &format!("http://{plain}"), "http = \"2\""),
        upstream("three", &tls, &format!("http = \"3\"\n{ca}")),
        "[[host]]\nnames = [\"*\"]\nupstream = \"one\"\n".to_owned(),
        "[[host.route]]\npath = \"/2\"\nupstream = \"two\"\n".to_owned(),
        "[[host.route]]\npath = \"/3\"\nupstream = \"three\"\n".to_owned(),
    ];
    let (first, front) = gateway(&site, &traces, "127.0.0.1", &rest.concat());
    let mut every = Everywhere::new(&first, front);
    for target in ["/1", "/2", "/3"] {
        let asked = Asked { target, fields: FIELDS, ..Asked::default() };
        assert_eq!(every.ask(asked).map(|(status, _)| status), [200; 3], "{target}: {}", first.server.log());
    }
    let asked = origin.requests();
    assert_eq!(asked.len(), 9);
    // Client, first gateway (server, client), second gateway (server, client), origin: each names the one before it.
    let spans = wait_for(&collector, 18);
    let by_id = |id: &str| spans.iter().find(|span| hex(&span.span_id) == id).unwrap_or_else(|| panic!("no span {id}"));
    for (request, version) in asked.iter().zip(VERSIONS.iter().cycle()) {
        let (trace, parent) = told(request);
        let what = format!("{} over {version}", request.target());
        assert_eq!(trace, TRACE, "{what}");
        assert_eq!((request.header("tracestate"), request.header("baggage")), (Some("rojo=1"), Some("user=alice")));
        let mut id = parent;
        for kind in [SpanKind::Client, SpanKind::Server, SpanKind::Client, SpanKind::Server] {
            let span = by_id(&id);
            assert_eq!((span.kind, hex(&span.trace_id)), (kind as i32, TRACE.to_owned()), "{what}");
            id = hex(&span.parent_span_id);
        }
        assert_eq!(id, "00f067aa0ba902b7", "{what}");
    }
    let versions = |version: &str| {
        let servers = spans.iter().filter(|span| span.kind == SpanKind::Server as i32);
        servers.filter(|span| text(span, "network.protocol.version").as_deref() == Some(version)).count()
    };
    assert_eq!(["1.1", "2", "3"].map(versions), [6; 3]);
}

#[test]
fn a_stranger_begins_a_new_trace() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    for (round, (trust, trusted)) in [("proxies", "192.0.2.1"), ("none", "127.0.0.1")].into_iter().enumerate() {
        let traces = traces(&collector.url(), &format!("sample = 1\ntrust = \"{trust}\""));
        let (gateway, plain) = gateway(&site, &traces, trusted, &to(&origin));
        Everywhere::new(&gateway, plain).ask(Asked { target: "/", fields: FIELDS, ..Asked::default() });
        let asked = origin.requests();
        for (request, version) in asked[asked.len() - 3..].iter().zip(VERSIONS) {
            assert_ne!(told(request).0, TRACE, "{version}, trust {trust}");
            assert_eq!((request.header("tracestate"), request.header("baggage")), (None, None), "{version}");
        }
        // The gateway ends with the round.
        wait_for(&collector, 3 * (round + 1));
    }
    let spans = spans(&collector);
    assert!(spans.iter().all(|span| hex(&span.trace_id) != TRACE), "{spans:?}");
    let roots = spans.iter().filter(|span| span.kind == SpanKind::Server as i32);
    assert!(roots.into_iter().all(|span| span.parent_span_id.is_empty()));

    // Believed, where it says so.
    let traces = self::traces(&collector.url(), "trust = \"all\"");
    let (gateway, plain) = self::gateway(&site, &traces, "192.0.2.1", &to(&origin));
    Everywhere::new(&gateway, plain).ask(Asked { target: "/", fields: FIELDS, ..Asked::default() });
    let asked = origin.requests();
    assert!(asked[asked.len() - 3..].iter().all(|request| told(request).0 == TRACE), "{asked:?}");
}

#[test]
fn without_traces_the_fields_are_passed_on_as_they_come() {
    let (site, origin) = (Site::new(), Backend::saying("hello"));
    let (gateway, plain) = gateway(&site, "", "192.0.2.1", &to(&origin));
    Everywhere::new(&gateway, plain).ask(Asked { target: "/", fields: FIELDS, ..Asked::default() });
    for request in origin.requests() {
        let got = FIELDS.iter().map(|(name, _)| (*name, request.header(name).unwrap_or_default()));
        assert_eq!(got.collect::<Vec<_>>(), FIELDS);
    }
    assert_eq!(gateway.metric("sealane_trace_spans_total"), None);
}

#[test]
fn a_span_has_the_id_of_its_request() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    let both = format!("{}[request_id]\n", traces(&collector.url(), "sample = 1"));
    let (gateway, _) = gateway(&site, &both, "192.0.2.1", &to(&origin));
    assert_eq!(gateway.get("/").text(), "hello");
    let spans = wait_for(&collector, 1);
    let id = origin.last().header("x-request-id").map(str::to_owned);
    assert!(id.is_some());
    assert_eq!(spans.iter().find_map(|span| text(span, "sealane.request_id")), id);
}

#[test]
fn spans_show_the_steps_of_a_request() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    let traces = traces(&collector.url(), "sample = 1\nservice = \"edge\"");
    let rest = format!(
        "[[upstream]]\nname = \"app\"\nservers = [{:?}]\n[[host]]\nnames = [\"{HOST}\"]\nupstream = \"app\"\n\
         [[host.route]]\nname = \"things\"\npath = \"/thing\"\nupstream = \"app\"\n",
        origin.url()
    );
    let (gateway, _) = gateway(&site, &traces, "192.0.2.1", &rest);
    let mut wire = gateway.connect();
    for target in ["/thing/1?secret=1", "/other"] {
        wire.send(format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\nX-Secret: hidden\r\n\r\n")).expect("it reads");
        assert_eq!(wire.response("GET").expect("an answer comes").text(), "hello");
    }
    let spans = wait_for(&collector, 2);
    let (first, second) = (told(&origin.requests()[0]).0, told(&origin.requests()[1]).0);
    let of = |trace: &str| -> Vec<&Span> { spans.iter().filter(|span| hex(&span.trace_id) == trace).collect() };
    let names = |trace: &str| -> Vec<String> { of(trace).iter().map(|span| span.name.clone()).collect() };
    assert_eq!(names(&first), ["GET things", "admission", "handshake", "routing", "GET", "connect"]);
    // The connections are there.
    assert_eq!(names(&second), ["GET", "routing", "GET"]);
    let server = of(&first)[0];
    for (key, value) in [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("http.route", "things"),
        ("url.path", "/thing/1"),
        ("url.scheme", "https"),
        ("server.address", HOST),
        ("http.response.body.size", "5"),
        ("sealane.request", "0-1-1"),
    ] {
        assert_eq!(text(server, key).as_deref(), Some(value), "{key}");
    }
    let client = of(&first)[4];
    assert_eq!(text(client, "sealane.upstream").as_deref(), Some("app"));
    let events: Vec<&str> = client.events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(events, ["request head sent", "response head"]);
    for span in &spans {
        assert!(span.start_time_unix_nano > 0 && span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
        assert!(span.status.is_none(), "{span:?}");
    }
    let inside = |span: &Span| {
        span.start_time_unix_nano >= server.start_time_unix_nano && span.end_time_unix_nano <= server.end_time_unix_nano
    };
    assert!(inside(client) && inside(of(&first)[3]) && inside(of(&first)[5]), "{spans:?}");
    // What is secret stays here.
    let all = format!("{spans:?}");
    assert!(!all.contains("secret") && !all.contains("hidden"), "{all}");
    let service = collector.requests()[0].body.windows(4).any(|bytes| bytes == b"edge");
    assert!(service, "the service has the name that it was given");

    // The path stays here, too, if it is to.
    let traces = self::traces(&collector.url(), "sample = 1\npaths = false");
    let (gateway, _) = self::gateway(&site, &traces, "192.0.2.1", &rest);
    assert_eq!(gateway.get("/thing/private").status(), 200);
    let spans = wait_for(&collector, 3);
    assert!(!format!("{spans:?}").contains("private"));
}

/// The span of the admission begins with the client's first packet.
#[test]
fn spans_show_the_steps_of_a_connection_over_quic() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    let (gateway, _) = gateway(&site, &traces(&collector.url(), "sample = 1"), "192.0.2.1", &to(&origin));
    let config = h3::over_quic(gateway.config(), false);
    assert_eq!(h3::Client::connect(gateway.address, &config).get("/").status, 200);
    let spans = wait_for(&collector, 1);
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["GET", "admission", "handshake", "routing", "GET", "connect"]);
    let [admission, handshake] = [&spans[1], &spans[2]];
    assert!(admission.start_time_unix_nano <= admission.end_time_unix_nano, "{admission:?}");
    assert_eq!(admission.end_time_unix_nano, handshake.start_time_unix_nano);
    assert!(handshake.start_time_unix_nano < handshake.end_time_unix_nano, "{handshake:?}");
}

#[test]
fn failed_requests_are_exported_though_they_are_not_sampled() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    for (errors, exported) in [(true, 1), (false, 1)] {
        let traces = traces(&collector.url(), &format!("sample = 0\nerrors = {errors}"));
        let rest = format!(
            "[[host]]\nnames = [\"*\"]\nto = {:?}\n[[host.route]]\npath = \"/dead\"\nto = \"http://{}\"\n",
            origin.url(),
            ports::free()
        );
        let (gateway, _) = gateway(&site, &traces, "192.0.2.1", &rest);
        assert_eq!((gateway.get("/").status(), gateway.get("/dead").status()), (200, 502));
        if errors {
            wait_for(&collector, 1);
        }
        let queued = || gateway.metric_with("sealane_traces_total", "result=\"queued\"");
        assert_eq!(queued(), Some(if errors { 1.0 } else { 0.0 }));
        let spans = wait_for(&collector, exported);
        let server = spans.iter().find(|span| span.kind == SpanKind::Server as i32).expect("there is one");
        let status = server.status.clone().expect("it has failed");
        assert_eq!(status.code, StatusCode::Error as i32);
        assert!(status.message.contains("cannot be reached"), "{status:?}");
        assert_eq!(text(server, "error.type").as_deref(), Some("502"));
        // The upstream of the request that was answered was told that nobody records the trace.
        assert!(origin.last().header("traceparent").is_some_and(|value| value.ends_with("-02")));
    }
}

/// A collector of OTLP/gRPC, which keeps what it is sent and answers with this status.
fn grpc(status: &'static str) -> (h2::Server, Arc<Mutex<Vec<Vec<u8>>>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let server = h2::Server::start(move |(request, mut respond): h2::Asked| {
        let keep = Arc::clone(&keep);
        async move {
            assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            assert_eq!(request.headers()["content-type"], "application/grpc");
            assert_eq!(request.headers()["te"], "trailers");
            let (body, _) = h2::read(&mut request.into_body()).await;
            let length = u32::from_be_bytes(body[1..5].try_into().expect("four bytes"));
            assert_eq!((body[0], body.len()), (0, 5 + length as usize));
            keep.lock().expect("nobody panics with it").push(body[5..].to_vec());
            let response =
                Response::builder().header("content-type", "application/grpc").body(()).expect("it is legal");
            let mut send = respond.send_response(response, false).expect("the gateway waits");
            if status == "0" {
                send.send_data(Bytes::from_static(&[0; 5]), false).expect("the gateway reads");
            }
            let trailers: HeaderMap =
                [("grpc-status".parse().expect("a name"), HeaderValue::from_static(status))].into_iter().collect();
            send.send_trailers(trailers).expect("the gateway reads");
        }
    });
    (server, kept)
}

#[test]
fn traces_go_over_grpc() {
    let (site, origin) = (Site::new(), Backend::saying("hello"));
    let (collector, kept) = grpc("0");
    let traces = traces(&collector.url(), "protocol = \"grpc\"\nsample = 1");
    let (gateway, _) = gateway(&site, &traces, "192.0.2.1", &to(&origin));
    assert_eq!(gateway.get("/").status(), 200);
    let exported = || gateway.metric_with("sealane_trace_spans_total", "result=\"exported\"").unwrap_or(0.0);
    assert!(eventually(|| exported() >= 6.0), "{}", gateway.metrics());
    assert_eq!(gateway.get("/").status(), 200);
    assert!(eventually(|| exported() >= 11.0), "{}", gateway.metrics());
    let messages = kept.lock().expect("nobody panics with it").clone();
    let spans: Vec<Span> = messages.iter().flat_map(|message| spans_of(message)).collect();
    assert_eq!(spans.iter().filter(|span| span.kind == SpanKind::Server as i32).count(), 2);
    assert_eq!(hex(&spans[0].trace_id), told(&origin.requests()[0]).0);
    assert_eq!(collector.connections(), 1, "the connection is kept");

    // PERMISSION_DENIED does not go away by trying again.
    let (collector, kept) = grpc("7");
    let traces = self::traces(&collector.url(), "protocol = \"grpc\"\nsample = 1");
    let (gateway, _) = self::gateway(&site, &traces, "192.0.2.1", &to(&origin));
    assert_eq!(gateway.get("/").status(), 200);
    let failed = || gateway.metric_with("sealane_trace_spans_total", "result=\"failed\"").unwrap_or(0.0);
    assert!(eventually(|| failed() >= 6.0), "{}", gateway.metrics());
    assert_eq!(kept.lock().expect("nobody panics with it").len(), 1);
    assert!(gateway.server.log().contains("gRPC status 7"), "{}", gateway.server.log());
}

#[test]
fn opentelemetrys_own_collector_takes_the_spans() {
    let program = match otel_collector() {
        Ok(program) => program,
        Err(why) => skip!("no OpenTelemetry collector: {why}"),
    };
    let (site, origin) = (Site::new(), Backend::saying("hello"));
    let (http, grpc) = (ports::free(), ports::free());
    let config = site.file(
        "otelcol.yaml",
        format!(
            "receivers: {{otlp: {{protocols: {{http: {{endpoint: '{http}'}}, grpc: {{endpoint: '{grpc}'}}}}}}}}\n\
             exporters: {{debug: {{verbosity: detailed}}}}\n\
             service:\n  telemetry: {{metrics: {{level: none}}}}\n\
             \x20 pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}\n"
        ),
    );
    let mut command = Command::new(program);
    command.arg(format!("--config=file:{}", config.display()));
    let mut collector = Server::start(command, site.path());
    collector.wait_until(|| [http, grpc].iter().all(|address| TcpStream::connect(address).is_ok()));
    for (protocol, address) in [("http", http), ("grpc", grpc)] {
        let traces = traces(&format!("http://{address}"), &format!("protocol = \"{protocol}\"\nsample = 1"));
        let (gateway, _) = gateway(&site, &traces, "192.0.2.1", &to(&origin));
        assert_eq!(gateway.get("/").status(), 200);
        let (trace, span) = told(&origin.last());
        let result = |result: &str| gateway.metric_with("sealane_trace_spans_total", &format!("result=\"{result}\""));
        assert!(eventually(|| result("exported") == Some(6.0)), "{}\n{}", gateway.server.log(), collector.log());
        assert_eq!((result("failed"), result("rejected")), (Some(0.0), Some(0.0)));
        // `    Trace ID       : …`, one for each span.
        let lines = |name: &str, value: &str| {
            let wanted =
                |line: &&str| line.trim().split_once(':').is_some_and(|(n, v)| (n.trim(), v.trim()) == (name, value));
            collector.log().lines().filter(wanted).count()
        };
        assert!(eventually(|| lines("Trace ID", &trace) == 6), "{protocol}: {}", collector.log());
        assert_eq!((lines("ID", &span), lines("Parent ID", &span)), (1, 1), "{}", collector.log());
    }
}

#[test]
fn the_collector_gets_the_header_and_must_be_who_it_is_meant_to_be() {
    let (site, origin) = (Site::new(), Backend::saying("hello"));
    let collector = Backend::start_tls(backend::tls(&site.ecdsa), |mut connection| {
        while connection.request().is_some() {
            connection.send(ok(b""));
        }
    });
    let header = site.file("header", "Authorization: Bearer open-sesame\n");
    let settings = format!("sample = 1\nheader_file = {header:?}\nca = {:?}", site.ca);
    let (gateway, _) = gateway(&site, &traces(&collector.url(), &settings), "192.0.2.1", &to(&origin));
    assert_eq!(gateway.get("/").status(), 200);
    wait_for(&collector, 1);
    let request = collector.last();
    assert_eq!((request.method(), request.target()), ("POST", "/v1/traces"));
    assert_eq!(request.header("authorization"), Some("Bearer open-sesame"));
    assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
    assert!(!gateway.server.log().contains("open-sesame"));

    let other = Site::new();
    let settings = format!("sample = 1\nheader_file = {header:?}\nca = {:?}", other.ca);
    let (gateway, _) = self::gateway(&site, &traces(&collector.url(), &settings), "192.0.2.1", &to(&origin));
    assert_eq!(gateway.get("/").status(), 200);
    assert!(eventually(|| gateway.metric("sealane_traces_failing") == Some(1.0)), "{}", gateway.metrics());
    assert_eq!(collector.requests().len(), 1, "nothing is sent to somebody else");
    assert!(gateway.server.log().contains("certificate"), "{}", gateway.server.log());
}

#[test]
fn a_collector_that_is_away_or_silent_costs_traces_alone() {
    let (site, origin) = (Site::new(), Backend::saying("hello"));
    // It takes connections and reads, and never answers.
    let silent = Backend::start(|mut connection| while connection.request().is_some() {});
    let away = format!("http://{}", ports::free());
    for collector in [silent.url(), away] {
        let traces = traces(&collector, "sample = 1");
        let (mut gateway, plain) = gateway(&site, &traces, "192.0.2.1", &to(&origin));
        let mut wire = Wire::new(client::tcp(plain));
        let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
        // More than the exporter has taken by then and the queue holds.
        let full = || gateway.metric_with("sealane_traces_total", "result=\"lost\"") > Some(0.0);
        let mut served = 0;
        while served < 2500 || served < 20_000 && !full() {
            for _ in 0..100 {
                wire.send(&request).expect("the gateway reads");
                assert_eq!(wire.response("GET").expect("an answer comes").text(), "hello");
                served += 1;
            }
        }
        assert!(full(), "{}", gateway.metrics());
        gateway.server.terminate();
        assert_eq!(gateway.server.wait().code(), Some(0), "{}", gateway.server.log());
    }
}

#[test]
fn the_trace_is_in_the_access_log_and_in_exemplars() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    for (format, line) in [("json", "\"trace_id\":\"ID\""), ("$uri $otel_trace_id", "/ ID")] {
        let log = site.path().join("access.log");
        let traces = traces(&collector.url(), &format!("sample = 1\n[log]\naccess = {log:?}\nformat = '{format}'"));
        let (gateway, _) = gateway(&site, &traces, "192.0.2.1", &to(&origin));
        assert_eq!(gateway.get("/").status(), 200);
        let (trace, _) = told(&origin.last());
        let wanted = line.replace("ID", &trace);
        let logged = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(eventually(|| logged().contains(&wanted)), "{wanted}: {}", logged());
        let page = |accept: &str| {
            let mut wire = Wire::new(client::tcp(gateway.admin));
            let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nAccept: {accept}\r\n\r\n", gateway.admin);
            wire.send(request).expect("the admin listener reads");
            wire.response("GET").expect("the admin listener answers").text()
        };
        let exemplar = format!("# {{trace_id=\"{trace}\"}} ");
        for name in ["sealane_request_duration_seconds_bucket{", "sealane_request_first_byte_seconds_bucket{"] {
            let has = |page: &str| page.lines().any(|line| line.starts_with(name) && line.contains(&exemplar));
            assert!(eventually(|| has(&page("application/openmetrics-text"))), "{name}");
            assert!(!has(&page("text/plain")), "{name}");
        }
    }
}

#[test]
fn prometheus_keeps_the_exemplars() {
    let program = need!("prometheus");
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    let traces = traces(&collector.url(), "sample = 1");
    let (gateway, _) = gateway(&site, &traces, "192.0.2.1", &to(&origin));
    assert_eq!(gateway.get("/").status(), 200);
    let (trace, _) = told(&origin.last());
    let prometheus = Prometheus::start(&site, &program, &[gateway.admin], "");
    // Of a classic histogram, buckets have exemplars; a native one is one series.
    let found = || prometheus.exemplars("{__name__=~\"sealane_request_duration_seconds(_bucket)?\"}");
    assert!(eventually(|| found().iter().any(|labels| labels["trace_id"] == trace.as_str())), "{:?}", found());
}

#[test]
fn what_waits_is_exported_at_the_end() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    let (mut gateway, _) = gateway(&site, &traces(&collector.url(), "sample = 1"), "192.0.2.1", &to(&origin));
    for _ in 0..3 {
        assert_eq!(gateway.get("/").status(), 200);
    }
    gateway.server.terminate();
    assert_eq!(gateway.server.wait().code(), Some(0), "{}", gateway.server.log());
    let servers = spans(&collector).iter().filter(|span| span.kind == SpanKind::Server as i32).count();
    assert_eq!(servers, 3);
}

#[test]
fn a_reload_begins_and_ends_tracing() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), collector());
    let address = ports::free();
    let text = |admin: &str, traces: &str| {
        format!(
            "{admin}\n{traces}\n[[listener]]\naddress = \"{address}\"\n[[host]]\nnames = [\"*\"]\nto = {:?}\n",
            origin.url()
        )
    };
    let running = Operated::start(&site, 1, |admin| text(admin, ""), address);
    let get = || running.gateway.plain_get("/", "").text();
    assert_eq!(get(), "hello");
    assert_eq!(origin.last().header("traceparent"), None);
    running.write(&text(&running.admin_lines, &traces(&collector.url(), "sample = 1")));
    order(&running.socket, "reload").expect("it may");
    assert_eq!(get(), "hello");
    told(&origin.last());
    wait_for(&collector, 1);
    running.write(&text(&running.admin_lines, ""));
    order(&running.socket, "reload").expect("it may");
    assert_eq!(get(), "hello");
    assert_eq!(origin.last().header("traceparent"), None);
    wait_for(&collector, 1);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let site = Site::new();
    site.file("two", "a: b\nc: d\n");
    let rest = "[[listener]]\naddress = \"127.0.0.1:1\"\n[[host]]\nnames = [\"*\"]\nrespond = { status = 204 }\n";
    for (traces, why) in [
        ("", "[traces] has no \"endpoint\""),
        ("endpoint = \"127.0.0.1:4318\"", "is not the URL of a collector"),
        ("endpoint = \"http://user:word@127.0.0.1:4318\"", "has no user and no password"),
        ("endpoint = \"http://127.0.0.1:4317/v1/traces\"\nprotocol = \"grpc\"", "has no path with protocol = \"grpc\""),
        ("endpoint = \"http://127.0.0.1:4318\"\nheader_file = \"two\"", "this is not a header field"),
        ("endpoint = \"http://127.0.0.1:4318\"\nheader_file = \"none\"", "cannot read the header field"),
        ("endpoint = \"http://127.0.0.1:4318\"\ntrust = \"client\"", "\"trust\""),
        ("endpoint = \"http://127.0.0.1:4318\"\nservice = \"\"", "\"service\" must be 1 to 128 bytes"),
    ] {
        let file = site.file("sealane.toml", format!("[traces]\n{traces}\n{rest}"));
        let done = run(["check", "-c", file.to_str().expect("a plain name")]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(why), "{traces}: {said}");
    }
    // Who can read along is said.
    let file = site.file("sealane.toml", format!("[traces]\nendpoint = \"http://192.0.2.1:4318\"\n{rest}"));
    let done = run(["check", "-c", file.to_str().expect("a plain name")]);
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("the connection to the collector is not encrypted"), "{said}");
}
