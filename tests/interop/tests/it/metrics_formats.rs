//! `/metrics` in both formats, read by programs that we did not write: promtool, Prometheus, and the strict parser of
//! Prometheus' library for Python.

use sealane_interop::backend::Backend;
use sealane_interop::gateway::{Gateway, before};
use sealane_interop::http::{Message, Wire};
use sealane_interop::peers::{Said, python};
use sealane_interop::prometheus::{Prometheus, version};
use sealane_interop::site::Site;
use sealane_interop::{client, eventually, need, process, skip};
use std::collections::BTreeSet;
use std::process::Command;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

fn metrics(gateway: &Gateway, accept: &str) -> Message {
    let mut wire = Wire::new(client::tcp(gateway.admin));
    let head = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{accept}\r\n", gateway.admin);
    wire.send(head).expect("the admin listener reads");
    let response = wire.response("GET").expect("the admin listener answers");
    assert_eq!(response.status(), 200);
    response
}

/// Names and labels of all samples.
fn series(page: &str) -> BTreeSet<String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

/// A gateway that has served something, so that histograms have buckets.
fn served(site: &Site, backend: &Backend) -> Gateway {
    let gateway = before(site, [backend.url()]).start();
    assert_eq!(gateway.get("/").text(), "hello");
    let counted = || gateway.metric_with("sealane_request_duration_seconds_count", "class=\"2xx\"") == Some(1.0);
    assert!(eventually(counted), "{}", gateway.metrics());
    gateway
}

#[test]
fn the_format_is_negotiated_and_the_series_are_the_same() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = served(&site, &backend);
    let text = metrics(&gateway, "");
    let open = metrics(&gateway, "Accept: application/openmetrics-text; version=1.0.0, text/plain;q=0.5\r\n");
    let browser = metrics(&gateway, "Accept: text/html,*/*;q=0.8\r\n");
    let kind = |page: &Message| page.header("content-type").map(str::to_owned);
    assert_eq!([kind(&text), kind(&open), kind(&browser)].map(Option::unwrap), [TEXT, OPEN_METRICS, TEXT]);
    // A cache between must not give one client what another asked for.
    assert!([&text, &open].iter().all(|page| page.header("vary") == Some("accept")));
    assert_eq!(series(&text.text()), series(&open.text()));
    assert!(open.text().ends_with("\n# EOF\n") && !text.text().contains("# EOF"));
}

#[test]
fn the_parser_for_open_metrics_reads_every_family() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => skip!("{why}"),
    };
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = served(&site, &backend);
    let page = metrics(&gateway, "Accept: application/openmetrics-text\r\n").text();
    // It refuses families that do not stand together, samples that are there twice, wrong suffixes and units, buckets out of
    // order, and a missing end.
    let program = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
                   for f in parse(sys.stdin.read()): print(f.name, f.type, f.unit, len(f.samples))";
    let said = Said::from(process::run(Command::new(python).args(["-c", program]), page.as_bytes()));
    assert_eq!(said.code, Some(0), "{}\n{page}", said.err);
    let read = said.text();
    for family in [
        "sealane_requests counter  1",
        "sealane_request_duration_seconds histogram seconds 25",
        "sealane_build_info gauge  1",
    ] {
        assert!(read.lines().any(|line| line == family), "{family}: {read}");
    }
    let families = page.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(read.lines().count(), families);
}

#[test]
fn promtool_finds_nothing_wrong_with_the_text() {
    let promtool = need!("promtool");
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = served(&site, &backend);
    let page = metrics(&gateway, "").text();
    let said = Said::from(process::run(Command::new(promtool).args(["check", "metrics"]), page.as_bytes()));
    // Names are promised to stay (docs/stability.md): this one is from before promtool was asked.
    let old = "sealane_handshake_nanoseconds_total use base unit \"seconds\" instead of \"nanoseconds\"";
    let complaints = said.all();
    let new: Vec<&str> = complaints.lines().filter(|line| !line.is_empty() && *line != old).collect();
    assert!(new.is_empty(), "{new:#?}");
}

#[test]
fn prometheus_scrapes_open_metrics() {
    let program = need!("prometheus");
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = served(&site, &backend);
    // For native histograms, it would ask for protobuf.
    let prometheus = Prometheus::start_with(&site, &program, &[gateway.admin], "", false);
    assert!(eventually(|| prometheus.targets()[0]["health"] == "up"), "{}", prometheus.targets());
    // Counters are described without `_total` in OpenMetrics alone, and only OpenMetrics has units.
    let requests = prometheus.metadata("sealane_requests");
    assert_eq!(requests["type"], "counter", "{requests}");
    let durations = prometheus.metadata("sealane_request_duration_seconds");
    assert_eq!((durations["type"].as_str(), durations["unit"].as_str()), (Some("histogram"), Some("seconds")));
    // Bounds are labels, found by their text.
    let within =
        prometheus.query("sealane_request_duration_seconds_bucket{le=\"100.0\"}").expect("it is an expression");
    assert_eq!(within.iter().map(|sample| sample.value).collect::<Vec<_>>(), [1.0]);
}

/// The installed Prometheus, of whatever version from 2.40 on; how it is asked for native histograms depends on the version.
#[test]
fn prometheus_scrapes_native_histograms() {
    let program = need!("prometheus");
    let found = version(&program);
    if found < (2, 40) {
        skip!("prometheus {found:?} has no native histograms");
    }
    println!("prometheus {}.{}", found.0, found.1);
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = served(&site, &backend);
    let prometheus = Prometheus::start_with(&site, &program, &[gateway.admin], "", true);
    assert!(eventually(|| prometheus.targets()[0]["health"] == "up"), "{}", prometheus.targets());
    let values = |query: &str| -> Vec<f64> {
        prometheus.query(query).expect("it is an expression").iter().map(|sample| sample.value).collect()
    };
    // The whole histogram is one series, with its own functions.
    let count = "histogram_count(sealane_request_duration_seconds)";
    assert!(eventually(|| values(count) == [1.0]), "{:?}", prometheus.query(count));
    // It agrees with what the classic buckets, which others still get, say of the same request.
    let sum = gateway.metric("sealane_request_duration_seconds_sum").expect("it is there");
    let native_sum = values("histogram_sum(sealane_request_duration_seconds)");
    assert!(native_sum.len() == 1 && (native_sum[0] - sum).abs() < 1e-9, "{native_sum:?} is not {sum}");
    let quantile = values("histogram_quantile(1, sealane_request_duration_seconds)");
    // A bucket of a lane is 26 % wide, a native one 19 %; the shortest are in one bucket around zero.
    assert!(
        quantile.len() == 1 && quantile[0] >= 0.7 * sum && quantile[0] <= 1.6 * sum.max(0.00001),
        "{quantile:?}, {sum}"
    );
    // Histograms add up over labels, and grow while it is scraped.
    for _ in 0..5 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    assert!(eventually(|| values("histogram_count(sum(sealane_request_duration_seconds))") == [6.0]));
    // What is no histogram came in the same format.
    assert_eq!(values("sealane_requests_total"), [6.0]);
    assert_eq!(prometheus.metadata("sealane_request_duration_seconds")["type"], "histogram");
}

#[test]
fn protobuf_is_sent_only_to_those_who_ask_for_it() {
    let (site, backend) = (Site::new(), Backend::saying("hello"));
    let gateway = served(&site, &backend);
    const NAMED: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    let page = metrics(&gateway, &format!("Accept: {NAMED}, text/plain;q=0.5\r\n"));
    let kind = page.header("content-type").expect("it has one").replace(' ', "");
    assert_eq!((kind.as_str(), page.header("vary")), (NAMED, Some("accept")));
    // Each family is a message behind its length, which begins with its name.
    let name = b"sealane_request_duration_seconds";
    assert!(page.body.windows(name.len()).any(|bytes| bytes == name));
    let refused = metrics(&gateway, &format!("Accept: {NAMED};q=0.1, text/plain\r\n"));
    assert_eq!(refused.header("content-type"), Some(TEXT));
}
