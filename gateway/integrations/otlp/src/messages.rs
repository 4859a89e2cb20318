//! Messages of OTLP for metrics and logs.

use crate::telemetry::{Family, Sample, SampleValue};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use sealane_log::{Exported, Level};
use std::time::{SystemTime, UNIX_EPOCH};

/// Points of a message: a few hundred KiB.
pub(crate) const MAX_POINTS: usize = 1000;

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn text(key: &str, value: String) -> KeyValue {
    let value = Some(AnyValue { value: Some(Value::StringValue(value)) });
    KeyValue { key: key.to_owned(), value, ..Default::default() }
}

fn resource(service: &str) -> Option<Resource> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let attributes = vec![text("service.name", service.to_owned()), text("service.version", version)];
    Some(Resource { attributes, ..Default::default() })
}

fn scope() -> Option<InstrumentationScope> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Some(InstrumentationScope { name: "sealane".to_owned(), version, ..Default::default() })
}

/// The unit of a metric's name, in the notation of UCUM.
fn unit(name: &str) -> &'static str {
    match name.strip_suffix("_total").unwrap_or(name).rsplit('_').next() {
        Some("seconds") => "s",
        Some("nanoseconds") => "ns",
        Some("bytes") => "By",
        _ => "",
    }
}

/// How many points there are.
pub(crate) fn points(families: &[Family]) -> u64 {
    families.iter().map(|family| family.samples.len() as u64).sum()
}

/// Families in parts of at most so many points. A family may be in two of them.
pub(crate) fn parts(families: Vec<Family>, most: usize) -> Vec<Vec<Family>> {
    let (mut parts, mut part, mut room) = (Vec::new(), Vec::new(), most);
    for mut family in families {
        while family.samples.len() > room {
            let rest = family.samples.split_off(room);
            let Family { name, help, is_counter, samples } = family;
            if !samples.is_empty() {
                part.push(Family { name: name.clone(), help: help.clone(), is_counter, samples });
            }
            parts.push(std::mem::take(&mut part));
            family = Family { name, help, is_counter, samples: rest };
            room = most;
        }
        room -= family.samples.len();
        if !family.samples.is_empty() {
            part.push(family);
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

/// A request to the collector with these metrics.
pub(crate) fn metrics(
    service: &str,
    families: Vec<Family>,
    started: SystemTime,
    now: SystemTime,
) -> ExportMetricsServiceRequest {
    let times = (nanos(started), nanos(now));
    let metrics = families.into_iter().map(|family| metric(family, times)).collect();
    let scope_metrics = vec![ScopeMetrics { scope: scope(), metrics, ..Default::default() }];
    let metrics = ResourceMetrics { resource: resource(service), scope_metrics, ..Default::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![metrics] }
}

fn metric(family: Family, (started, now): (u64, u64)) -> Metric {
    let Family { name, help, is_counter, samples } = family;
    let aggregation_temporality = AggregationTemporality::Cumulative as i32;
    let (mut numbers, mut histograms) = (Vec::new(), Vec::new());
    for Sample { labels, value } in samples {
        let attributes: Vec<KeyValue> = labels.into_iter().map(|(key, value)| text(&key, value)).collect();
        let value = match value {
            SampleValue::Count(n) => Number::AsInt(i64::try_from(n).unwrap_or(i64::MAX)),
            SampleValue::Float(n) => Number::AsDouble(n),
            SampleValue::Histogram { bounds, counts, sum } => {
                histograms.push(HistogramDataPoint {
                    attributes,
                    start_time_unix_nano: started,
                    time_unix_nano: now,
                    count: counts.iter().sum(),
                    sum: Some(sum),
                    bucket_counts: counts,
                    explicit_bounds: bounds,
                    ..Default::default()
                });
                continue;
            }
        };
        // A gauge has no beginning.
        let start_time_unix_nano = if is_counter { started } else { 0 };
        let value = Some(value);
        numbers.push(NumberDataPoint {
            attributes,
            start_time_unix_nano,
            time_unix_nano: now,
            value,
            ..Default::default()
        });
    }
    let data = match (is_counter, histograms.is_empty()) {
        (_, false) => Data::Histogram(Histogram { data_points: histograms, aggregation_temporality }),
        (true, true) => Data::Sum(Sum { data_points: numbers, aggregation_temporality, is_monotonic: true }),
        (false, true) => Data::Gauge(Gauge { data_points: numbers }),
    };
    Metric { unit: unit(&name).to_owned(), name, description: help, data: Some(data), ..Default::default() }
}

/// A request to the collector with these lines of the log.
pub(crate) fn logs(service: &str, lines: Vec<Exported>) -> ExportLogsServiceRequest {
    let log_records = lines.into_iter().map(record).collect();
    let scope_logs = vec![ScopeLogs { scope: scope(), log_records, ..Default::default() }];
    let logs = ResourceLogs { resource: resource(service), scope_logs, ..Default::default() };
    ExportLogsServiceRequest { resource_logs: vec![logs] }
}

fn record(line: Exported) -> LogRecord {
    let severity = match line.level {
        Level::Error => SeverityNumber::Error,
        Level::Warn => SeverityNumber::Warn,
        Level::Info => SeverityNumber::Info,
        Level::Debug => SeverityNumber::Debug,
        Level::Trace => SeverityNumber::Trace,
    };
    let at = nanos(line.at);
    LogRecord {
        time_unix_nano: at,
        observed_time_unix_nano: at,
        severity_number: severity as i32,
        severity_text: line.level.name().to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(line.message)) }),
        attributes: line.fields.into_iter().map(|(key, value)| text(key, value)).collect(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn family(name: &str, count: usize, is_counter: bool) -> Family {
        let sample = |i: usize| Sample { labels: vec![("i".to_owned(), i.to_string())], value: SampleValue::Count(7) };
        Family {
            name: name.to_owned(),
            help: "Help.".to_owned(),
            is_counter,
            samples: (0..count).map(sample).collect(),
        }
    }

    #[test]
    fn parts_are_bounded_and_have_everything_once() {
        let families = vec![family("a", 5, true), family("b", 0, true), family("c", 12, false), family("d", 1, true)];
        let parts = parts(families, 6);
        assert!(parts.iter().all(|part| points(part) <= 6 && !part.is_empty()));
        let names: Vec<(String, usize)> = parts.iter().flatten().map(|f| (f.name.clone(), f.samples.len())).collect();
        let named = |name: &str| names.iter().filter(|(n, _)| n == name).map(|(_, count)| count).sum::<usize>();
        assert_eq!(["a", "b", "c", "d"].map(named), [5, 0, 12, 1]);
        assert!(super::parts(Vec::new(), 6).is_empty());
    }

    #[test]
    fn metrics_keep_names_labels_and_kinds() {
        let histogram = Sample {
            labels: vec![("host".to_owned(), "a.example".to_owned())],
            value: SampleValue::Histogram { bounds: vec![0.1, 1.0], counts: vec![3, 2, 1], sum: 4.5 },
        };
        let durations = Family {
            name: "wait_seconds".to_owned(),
            help: String::new(),
            is_counter: false,
            samples: vec![histogram],
        };
        let families = vec![family("sealane_bytes_total", 1, true), family("sealane_open", 1, false), durations];
        let started = UNIX_EPOCH + Duration::from_secs(5);
        let message = metrics("edge", families, started, UNIX_EPOCH + Duration::from_secs(9));
        let found = &message.resource_metrics[0].scope_metrics[0].metrics;
        let units: Vec<&str> = found.iter().map(|metric| metric.unit.as_str()).collect();
        assert_eq!(units, ["By", "", "s"]);
        match (&found[0].data, &found[1].data, &found[2].data) {
            (Some(Data::Sum(sum)), Some(Data::Gauge(gauge)), Some(Data::Histogram(histogram))) => {
                assert!(sum.is_monotonic && sum.aggregation_temporality == AggregationTemporality::Cumulative as i32);
                assert_eq!(sum.data_points[0].value, Some(Number::AsInt(7)));
                assert_eq!(sum.data_points[0].start_time_unix_nano, 5_000_000_000);
                assert_eq!(gauge.data_points[0].start_time_unix_nano, 0);
                let point = &histogram.data_points[0];
                assert_eq!((point.count, point.sum, point.bucket_counts.len()), (6, Some(4.5), 3));
                assert_eq!(point.explicit_bounds, [0.1, 1.0]);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_keep_their_level_and_fields() {
        let line = Exported {
            at: UNIX_EPOCH + Duration::from_secs(3),
            level: Level::Warn,
            message: "slow\n\u{1b}".to_owned(),
            fields: vec![("server", "a:1".to_owned())],
        };
        let message = logs("edge", vec![line]);
        let record = &message.resource_logs[0].scope_logs[0].log_records[0];
        assert_eq!((record.severity_number, record.severity_text.as_str()), (SeverityNumber::Warn as i32, "warn"));
        assert_eq!((record.time_unix_nano, record.attributes[0].key.as_str()), (3_000_000_000, "server"));
    }
}
