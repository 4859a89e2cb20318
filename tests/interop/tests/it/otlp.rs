//! Metrics and the log over OTLP, at collectors of the test's own, which read messages with OpenTelemetry's types, and at
//! OpenTelemetry's own collector.

use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use prost::Message as _;
use sealane_interop::backend::{Backend, ok};
use sealane_interop::gateway::{Gateway, configured};
use sealane_interop::peers::otel_collector;
use sealane_interop::process::Server;
use sealane_interop::site::Site;
use sealane_interop::{eventually, ports, skip};
use std::net::TcpStream;
use std::process::Command;

fn gateway(site: &Site, otlp: &str, origin: &Backend) -> Gateway {
    let (cert, key) = (&site.ecdsa.cert, &site.ecdsa.key);
    configured(
        site,
        &format!(
            "lanes = 1\n[otlp]\n{otlp}\n[admin]\nlisten = \"@ADMIN@\"\n[[listener]]\naddress = \"@ADDRESS@\"\n[listener.tls]\n\
             certificates = {{ cert = {cert:?}, key = {key:?} }}\n[[host]]\nnames = [\"*\"]\nto = {:?}\n",
            origin.url()
        ),
    )
}

/// The metrics of a name that a collector has got, the newest last.
fn metrics(collector: &Backend, name: &str) -> Vec<Metric> {
    let requests = collector.requests();
    let messages = requests.iter().filter(|request| request.target() == "/v1/metrics");
    let messages = messages.map(|request| {
        assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
        ExportMetricsServiceRequest::decode(request.body.as_slice()).expect("the message is one of OTLP")
    });
    let resources = messages.flat_map(|message| message.resource_metrics);
    let all = resources.flat_map(|resource| resource.scope_metrics).flat_map(|scope| scope.metrics);
    all.filter(|metric| metric.name == name).collect()
}

/// The lines of the log that a collector has got, with their severities.
fn lines(collector: &Backend) -> Vec<(String, String)> {
    let requests = collector.requests();
    let messages = requests.iter().filter(|request| request.target() == "/v1/logs");
    let messages = messages
        .map(|request| ExportLogsServiceRequest::decode(request.body.as_slice()).expect("the message is one of OTLP"));
    let scopes = messages.flat_map(|message| message.resource_logs).flat_map(|resource| resource.scope_logs);
    let records = scopes.flat_map(|scope| scope.log_records);
    let line = |body: Option<Value>| match body {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    };
    records.map(|record| (record.severity_text, line(record.body.and_then(|body| body.value)))).collect()
}

#[test]
fn metrics_and_the_log_reach_a_collector() {
    let (site, origin, collector) = (Site::new(), Backend::saying("hello"), Backend::answering(|_| ok(b"")));
    let gateway = gateway(&site, &format!("endpoint = \"{}\"\ninterval = \"1s\"", collector.url()), &origin);
    assert_eq!(gateway.get("/").text(), "hello");
    let requests = || {
        let newest = metrics(&collector, "sealane_requests_total").pop()?.data?;
        match newest {
            Data::Sum(sum) if sum.is_monotonic => sum.data_points.first()?.value,
            other => panic!("{other:?}"),
        }
    };
    assert!(eventually(|| requests() == Some(Number::AsInt(1))), "{:?}", requests());
    let durations = || {
        let newest = metrics(&collector, "sealane_request_duration_seconds").pop()?;
        assert_eq!(newest.unit, "s");
        match newest.data? {
            Data::Histogram(histogram) => histogram.data_points.first().cloned(),
            other => panic!("{other:?}"),
        }
    };
    assert!(eventually(|| durations().is_some()));
    let point = durations().expect("it was there");
    assert_eq!((point.count, point.bucket_counts.len()), (1, point.explicit_bounds.len() + 1));
    assert!(point.start_time_unix_nano > 0 && point.start_time_unix_nano < point.time_unix_nano);
    let host = point.attributes.iter().find(|attribute| attribute.key == "host");
    assert!(host.is_some(), "labels are attributes: {point:?}");
    // What is logged from now on.
    let written = || lines(&collector).iter().any(|(level, line)| level == "info" && line.contains("listening on"));
    assert!(eventually(written), "{:?}", lines(&collector));
    let exported = |signal: &str| {
        gateway.metric_with("sealane_otlp_items_total", &format!("signal=\"{signal}\",result=\"exported\""))
    };
    assert!(eventually(|| exported("metrics") > Some(100.0) && exported("logs") >= Some(1.0)), "{}", gateway.metrics());
    assert_eq!(gateway.metric("sealane_otlp_failing"), Some(0.0));
}

#[test]
fn a_dead_collector_costs_nothing_but_what_it_should_have_got() {
    let (site, origin) = (Site::new(), Backend::saying("hello"));
    let gateway = gateway(&site, &format!("endpoint = \"http://{}\"\ninterval = \"1s\"", ports::free()), &origin);
    for _ in 0..20 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    let failing = || gateway.metric("sealane_otlp_failing");
    assert!((0..3).any(|_| eventually(|| failing() == Some(2.0))), "{}", gateway.metrics());
    assert!(gateway.metric_with("sealane_otlp_items_total", "result=\"failed\"") > Some(0.0));
    assert_eq!(gateway.get("/").text(), "hello");
    assert!(gateway.server.log().contains("cannot export data points"), "{}", gateway.server.log());
}

/// The warning about what was rejected is a line of the log. If it was exported, the next batch would cause the next warning.
#[test]
fn a_collector_that_rejects_each_line_does_not_make_the_next_one() {
    let (site, origin) = (Site::new(), Backend::saying("hello"));
    let rejected = ExportLogsPartialSuccess { rejected_log_records: 1000, error_message: "no room".to_owned() };
    let rejected = ExportLogsServiceResponse { partial_success: Some(rejected) }.encode_to_vec();
    let collector =
        Backend::answering(move |request| ok(if request.target() == "/v1/logs" { &rejected[..] } else { b"" }));
    let gateway = gateway(&site, &format!("endpoint = \"{}\"\ninterval = \"1s\"", collector.url()), &origin);
    assert!(eventually(|| gateway.server.log().contains("has rejected")), "{}", gateway.server.log());
    let messages = || metrics(&collector, "sealane_requests_total").len();
    let before = messages();
    assert!(eventually(|| messages() > before + 3), "it goes on with metrics");
    let lines = lines(&collector);
    assert!(!lines.iter().any(|(_, line)| line.contains("has rejected")), "{lines:?}");
    assert_eq!(gateway.server.log().matches("has rejected").count(), 1, "{}", gateway.server.log());
}

#[test]
fn opentelemetrys_own_collector_takes_metrics_and_logs() {
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
             \x20 pipelines:\n    metrics: {{receivers: [otlp], exporters: [debug]}}\n    logs: {{receivers: [otlp], exporters: [debug]}}\n"
        ),
    );
    let mut command = Command::new(program);
    command.arg(format!("--config=file:{}", config.display()));
    let mut collector = Server::start(command, site.path());
    collector.wait_until(|| [http, grpc].iter().all(|address| TcpStream::connect(address).is_ok()));
    for (protocol, address) in [("http", http), ("grpc", grpc)] {
        let otlp = format!(
            "endpoint = \"http://{address}\"\nprotocol = \"{protocol}\"\ninterval = \"1s\"\nservice = \"by-{protocol}\""
        );
        let gateway = gateway(&site, &otlp, &origin);
        assert_eq!(gateway.get("/").status(), 200);
        let items = |signal: &str, result: &str| {
            gateway.metric_with("sealane_otlp_items_total", &format!("signal=\"{signal}\",result=\"{result}\""))
        };
        let exported = || items("metrics", "exported") > Some(100.0) && items("logs", "exported") >= Some(1.0);
        assert!(eventually(exported), "{protocol}: {}\n{}", gateway.server.log(), collector.log());
        for signal in ["metrics", "logs"] {
            assert_eq!(
                (items(signal, "failed"), items(signal, "rejected")),
                (Some(0.0), Some(0.0)),
                "{protocol} {signal}"
            );
        }
        let log = || collector.log();
        assert!(eventually(|| log().contains(&format!("by-{protocol}"))), "{}", log());
        assert!(
            eventually(|| log().contains("sealane_request_duration_seconds") && log().contains("listening on")),
            "{}",
            log()
        );
    }
}
