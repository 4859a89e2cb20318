//! The formats of `/metrics`: the Prometheus text format, version 0.0.4, OpenMetrics, version 1.0.0, and protobuf, which alone has native
//! histograms.
//!
//! The texts have the same samples under the same names and labels, so that a server that changes the format goes on with the same
//! series. They differ in the description of a family: OpenMetrics names a counter without `_total`, has units, and ends with
//! `# EOF`, by which a reader notices a page that was cut.

use crate::metrics::native::Native;
use crate::metrics::protobuf;
use sealane_lane::histogram::Distribution;
use std::fmt::{self, Write};

/// The format of a page of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Messages `io.prometheus.client.MetricFamily`, with native histograms beside the classic buckets.
    Protobuf,
}

impl Format {
    /// The value of `Content-Type`.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// The format that a client asks for with the fields `Accept` of its request (RFC 9110 §12.5.1). OpenMetrics and protobuf must
    /// be named: a browser and a program that accepts anything get text.
    pub fn accepted_by<'a>(fields: impl Iterator<Item = &'a str>) -> Self {
        // Of the most specific range that fits, and of the best of those that are equally specific.
        let (mut text, mut open, mut protobuf) = ((0, 0), 0, 0);
        for range in fields.flat_map(|field| field.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut version, mut quality, mut is_family, mut is_delimited) = (None, 1000, false, false);
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim().to_ascii_lowercase().as_str() {
                    "version" => version = Some(value.trim().trim_matches('"')),
                    "proto" => is_family = value.trim().trim_matches('"') == "io.prometheus.client.MetricFamily",
                    "encoding" => is_delimited = value.trim().trim_matches('"') == "delimited",
                    "q" => quality = thousandths(value.trim()),
                    _ => {}
                }
            }
            match name.as_str() {
                "application/openmetrics-text" if version.is_none_or(|v| v == "1.0.0") => open = open.max(quality),
                "application/vnd.google.protobuf" if is_family && is_delimited => protobuf = protobuf.max(quality),
                "text/plain" if version.is_none_or(|v| v == "0.0.4") => text = text.max((3, quality)),
                "text/*" => text = text.max((2, quality)),
                "*/*" => text = text.max((1, quality)),
                _ => {}
            }
        }
        match () {
            () if protobuf > 0 && protobuf >= open && protobuf >= text.1 => Self::Protobuf,
            () if open > 0 && open >= text.1 => Self::OpenMetrics,
            () => Self::Text,
        }
    }
}

/// A quality in thousandths; 0 for what is none.
fn thousandths(quality: &str) -> u32 {
    let quality = quality.parse::<f64>().ok().filter(|q| (0.0..=1.0).contains(q));
    quality.map_or(0, |q| (q * 1000.0).round() as u32)
}

/// The units that names of metrics end with, as OpenMetrics wants them declared.
const UNITS: [&str; 3] = ["seconds", "bytes", "nanoseconds"];

/// Builds a page of metrics.
#[derive(Debug, Default)]
pub struct Writer {
    text: String,
    format: Format,
    /// Without a text: all samples.
    families: Vec<FamilyData>,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises.
    Counter,
    /// It rises and falls.
    Gauge,
    /// A distribution.
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// All samples of a metric, for formats that are no text.
#[derive(Clone, Debug)]
pub struct FamilyData {
    /// The name; that of a counter ends in `_total`.
    pub name: &'static str,
    /// What it means.
    pub help: String,
    /// What it is.
    pub kind: Kind,
    /// Its samples.
    pub samples: Vec<SampleData>,
}

/// A sample.
#[derive(Clone, Debug)]
pub struct SampleData {
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: SampleValue,
}

/// The value of a sample.
#[derive(Clone, Debug)]
pub enum SampleValue {
    /// Of a counter or a gauge.
    Number(Value),
    /// Of a histogram.
    Histogram(Box<HistogramData>),
}

/// A distribution.
#[derive(Clone, Debug)]
pub struct HistogramData {
    /// Upper bounds with what fell into each bucket (not added up).
    pub buckets: Vec<(f64, u64)>,
    /// What was above all of them.
    pub above: u64,
    /// The sum of all values.
    pub sum: f64,
    /// A trace, its value, and when it was, in seconds since 1970.
    pub exemplar: Option<(String, f64, f64)>,
    /// The same distribution in finer buckets.
    pub native: Option<Native>,
}

impl HistogramData {
    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum::<u64>() + self.above
    }
}

/// A sample's value: counts stay exact beyond 2^53.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// Anything else.
    Float(f64),
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Count(n)
    }
}

impl From<f64> for Value {
    fn from(n: f64) -> Self {
        Self::Float(n)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => n.fmt(f),
            Self::Float(n) if n.is_nan() => f.write_str("NaN"),
            Self::Float(n) if n.is_infinite() => f.write_str(if *n > 0.0 { "+Inf" } else { "-Inf" }),
            Self::Float(n) => n.fmt(f),
        }
    }
}

impl Writer {
    /// An empty page of a format.
    pub fn new(format: Format) -> Self {
        Self { text: String::new(), format, families: Vec::new() }
    }

    /// A counter. `name` ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, help, Kind::Counter)
    }

    /// A gauge.
    pub fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, help, Kind::Gauge)
    }

    /// A histogram.
    pub fn histogram(&mut self, name: &'static str, help: &str) -> HistogramFamily<'_> {
        HistogramFamily(self.family(name, help, Kind::Histogram))
    }

    /// The body of the response.
    pub fn into_body(self) -> Vec<u8> {
        match self.format {
            Format::Protobuf => protobuf::encode(&self.families),
            Format::Text | Format::OpenMetrics => self.finish().into_bytes(),
        }
    }

    /// All samples, where the format is no text.
    pub fn into_families(self) -> Vec<FamilyData> {
        self.families
    }

    /// The page, where the format is a text.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn family(&mut self, name: &'static str, help: &str, kind: Kind) -> Family<'_> {
        debug_assert!(is_metric_name(name), "{name}");
        debug_assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        if self.format == Format::Protobuf {
            self.families.push(FamilyData { name, help: help.to_owned(), kind, samples: Vec::new() });
            return Family { text: &mut self.text, name, open: false, data: self.families.last_mut() };
        }
        let open = self.format == Format::OpenMetrics;
        let kind = kind.name();
        let family = if open { name.strip_suffix("_total").unwrap_or(name) } else { name };
        let unit = family.rsplit('_').next().filter(|unit| open && UNITS.contains(unit));
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# TYPE {family} {kind}");
        if let Some(unit) = unit {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        let _ = write!(self.text, "# HELP {family} ");
        escape(&mut self.text, help, open);
        self.text.push('\n');
        Family { text: &mut self.text, name, open, data: None }
    }
}

/// All samples of one counter or gauge, which must stand together.
#[derive(Debug)]
pub struct Family<'w> {
    text: &'w mut String,
    name: &'static str,
    /// OpenMetrics.
    open: bool,
    /// Where samples go in the place of the text.
    data: Option<&'w mut FamilyData>,
}

/// A request that shows what the value of a sample was about.
#[derive(Clone, Copy, Debug)]
pub struct Exemplar<'e> {
    /// The id of its trace, in hexadecimal.
    pub trace_id: &'e str,
    /// Its own value.
    pub value: f64,
    /// When it was, in seconds since 1970.
    pub at: f64,
}

impl Family<'_> {
    /// One sample. Each set of labels only once.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) -> &mut Self {
        match &mut self.data {
            Some(data) => {
                data.samples.push(SampleData { labels: owned(labels), value: SampleValue::Number(value.into()) })
            }
            None => line(self.text, self.name, "", labels, None, value.into()),
        }
        self
    }
}

/// All samples of one histogram.
#[derive(Debug)]
pub struct HistogramFamily<'w>(Family<'w>);

impl HistogramFamily<'_> {
    /// One distribution. `buckets` are upper bounds in rising order with what fell into each (not added up), `above`
    /// is what was larger than all of them.
    pub fn sample(&mut self, labels: &[(&str, &str)], buckets: &[(f64, u64)], above: u64, sum: f64) -> &mut Self {
        self.sample_with(labels, buckets, above, sum, None)
    }

    /// The same with an exemplar, which OpenMetrics has at the bucket that it is in.
    pub fn sample_with(
        &mut self,
        labels: &[(&str, &str)],
        buckets: &[(f64, u64)],
        above: u64,
        sum: f64,
        exemplar: Option<Exemplar>,
    ) -> &mut Self {
        let Family { text, name, open, data } = &mut self.0;
        if let Some(data) = data {
            let exemplar = exemplar.map(|e| (e.trace_id.to_owned(), e.value, e.at));
            let histogram = HistogramData { buckets: buckets.to_vec(), above, sum, exemplar, native: None };
            let value = SampleValue::Histogram(Box::new(histogram));
            data.samples.push(SampleData { labels: owned(labels), value });
            return self;
        }
        let (mut total, mut exemplar) = (0, exemplar.filter(|_| *open));
        for (bound, count) in buckets.iter().copied().chain([(f64::INFINITY, above)]) {
            total += count;
            line(text, name, "_bucket", labels, Some(bound), Value::Count(total));
            if let Some(Exemplar { trace_id, value, at }) = exemplar.take_if(|e| e.value <= bound) {
                // In the place of the line's end.
                text.pop();
                let _ = write!(text, " # {{trace_id=\"");
                escape(text, trace_id, true);
                let _ = writeln!(text, "\"}} {value} {at:.3}");
            }
        }
        line(text, name, "_sum", labels, None, Value::Float(sum));
        line(text, name, "_count", labels, None, Value::Count(total));
        self
    }

    /// The last distribution in finer buckets, for formats that have them.
    pub fn native(&mut self, times: &Distribution) {
        let last = self.0.data.as_mut().and_then(|data| data.samples.last_mut());
        if let Some(SampleData { value: SampleValue::Histogram(histogram), .. }) = last {
            histogram.native = Some(Native::of(times));
        }
    }
}

fn owned(labels: &[(&str, &str)]) -> Vec<(String, String)> {
    labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn line(text: &mut String, name: &str, suffix: &str, labels: &[(&str, &str)], bound: Option<f64>, value: Value) {
    text.push_str(name);
    text.push_str(suffix);
    let mut separator = '{';
    for (key, value) in labels {
        let _ = write!(text, "{separator}{key}=\"");
        escape(text, value, true);
        text.push('"');
        separator = ',';
    }
    if let Some(bound) = bound {
        let _ = write!(text, "{separator}le=\"{}\"", canonical(bound));
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, " {value}");
}

/// A bound as it is written in a label, where it is compared as text: `1.0`, `0.25`, `2.5e-05` (OpenMetrics 1.0, "Canonical
/// Numbers"). Prometheus writes bounds in this way, too, whatever the format of the page. Bounds are below 10^16.
fn canonical(bound: f64) -> String {
    if bound.is_infinite() {
        return "+Inf".to_owned();
    }
    let text = format!("{bound:?}");
    match text.split_once("e-") {
        Some((mantissa, exponent)) => format!("{mantissa}e-{exponent:0>2}"),
        None => text,
    }
}

/// Backslash and line feed are escaped everywhere, quotes in label values and in OpenMetrics' help.
fn escape(out: &mut String, s: &str, quotes: bool) {
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

fn is_metric_name(name: &str) -> bool {
    let good = |(i, b): (usize, u8)| b.is_ascii_alphabetic() || b == b'_' || b == b':' || (i > 0 && b.is_ascii_digit());
    !name.is_empty() && name.bytes().enumerate().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(format: Format) -> String {
        let mut w = Writer::new(format);
        w.counter("requests_total", "Requests\nserved \\ \"all\".")
            .sample(&[("lane", "0"), ("host", "a\"b\\c\nd")], u64::MAX)
            .sample(&[], 1);
        w.gauge("load", "Load.").sample(&[("x", "")], 0.5).sample(&[], f64::NAN);
        w.counter("body_bytes_total", "Bytes.").sample(&[], 7);
        w.histogram("wait_seconds", "Time.").sample(&[("lane", "1")], &[(0.00001, 2), (0.01, 0), (1.0, 3)], 4, 12.25);
        w.finish()
    }

    #[test]
    fn a_page_of_text_reads_as_the_format_says() {
        assert_eq!(
            page(Format::Text),
            r#"# TYPE requests_total counter
# HELP requests_total Requests\nserved \\ "all".
requests_total{lane="0",host="a\"b\\c\nd"} 18446744073709551615
requests_total 1
# TYPE load gauge
# HELP load Load.
load{x=""} 0.5
load NaN
# TYPE body_bytes_total counter
# HELP body_bytes_total Bytes.
body_bytes_total 7
# TYPE wait_seconds histogram
# HELP wait_seconds Time.
wait_seconds_bucket{lane="1",le="1e-05"} 2
wait_seconds_bucket{lane="1",le="0.01"} 2
wait_seconds_bucket{lane="1",le="1.0"} 5
wait_seconds_bucket{lane="1",le="+Inf"} 9
wait_seconds_sum{lane="1"} 12.25
wait_seconds_count{lane="1"} 9
"#
        );
    }

    #[test]
    fn open_metrics_differ_in_what_describes_a_family() {
        let open = page(Format::OpenMetrics);
        let described: Vec<&str> = open.lines().filter(|line| line.starts_with('#')).collect();
        assert_eq!(
            described,
            [
                "# TYPE requests counter",
                r#"# HELP requests Requests\nserved \\ \"all\"."#,
                "# TYPE load gauge",
                "# HELP load Load.",
                "# TYPE body_bytes counter",
                "# UNIT body_bytes bytes",
                "# HELP body_bytes Bytes.",
                "# TYPE wait_seconds histogram",
                "# UNIT wait_seconds seconds",
                "# HELP wait_seconds Time.",
                "# EOF",
            ]
        );
        let samples = |page: &str| page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        let (open, text): (Vec<String>, Vec<String>) = (samples(&open), samples(&page(Format::Text)));
        assert_eq!(open, text, "the series are the same");
    }

    #[test]
    fn an_exemplar_stands_at_the_bucket_that_it_is_in_and_only_in_open_metrics() {
        let page = |format, value| {
            let mut w = Writer::new(format);
            let exemplar = Exemplar { trace_id: "4bf9", value, at: 1520879607.789 };
            w.histogram("wait_seconds", "Time.").sample_with(&[], &[(0.01, 1), (1.0, 3)], 4, 12.0, Some(exemplar));
            w.finish().lines().filter(|line| line.contains("_bucket")).map(str::to_owned).collect::<Vec<_>>()
        };
        for (value, wanted) in [
            (0.01, ["} 1 # {trace_id=\"4bf9\"} 0.01 1520879607.789", "} 4", "} 8"]),
            (0.67, ["} 1", "} 4 # {trace_id=\"4bf9\"} 0.67 1520879607.789", "} 8"]),
            (2.0, ["} 1", "} 4", "} 8 # {trace_id=\"4bf9\"} 2 1520879607.789"]),
        ] {
            for (line, wanted) in page(Format::OpenMetrics, value).iter().zip(wanted) {
                assert!(line.ends_with(wanted), "{line}");
            }
            assert!(!page(Format::Text, value).concat().contains('#'));
        }
    }

    #[test]
    fn bounds_are_written_as_prometheus_writes_them() {
        // As Go's strconv.FormatFloat(x, 'g', -1, 64), with ".0" where there is neither a point nor an exponent.
        for (bound, text) in
            [(0.00001, "1e-05"), (0.000025, "2.5e-05"), (0.0001, "0.0001"), (2.5, "2.5"), (100.0, "100.0")]
        {
            assert_eq!(canonical(bound), text);
        }
    }

    #[test]
    fn the_format_is_what_the_client_prefers_of_what_it_names() {
        let prometheus2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                           text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                           application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
                           text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for accept in [
            &[prometheus2][..],
            &[prometheus3],
            &["application/openmetrics-text"],
            &["Application/OpenMetrics-Text; Version=\"1.0.0\" ; Q=0.001"],
            &["text/html", "application/openmetrics-text, text/plain"],
            &["application/openmetrics-text;q=0.5, text/plain;q=0.1, */*"],
        ] {
            assert_eq!(Format::accepted_by(accept.iter().copied()), Format::OpenMetrics, "{accept:?}");
        }
        for accept in [
            &[][..],
            &["*/*"],
            &["application/*"],
            &["text/html,application/xhtml+xml,*/*;q=0.8"],
            &["text/plain"],
            &["application/openmetrics-text;q=0"],
            &["application/openmetrics-text;q=2"],
            &["application/openmetrics-text;q="],
            &["application/openmetrics-text;version=0.0.1"],
            &["application/openmetrics-text;version=2.0.0, text/plain;q=0.1"],
            &["application/openmetrics-text;q=0.5, text/plain"],
            &["application/openmetrics-text;q=0.5, */*"],
            &[",;=,;q"],
            &["application/vnd.google.protobuf"],
            &["application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text"],
            &["application/vnd.google.protobuf;proto=other;encoding=delimited"],
        ] {
            assert_eq!(Format::accepted_by(accept.iter().copied()), Format::Text, "{accept:?}");
        }
    }

    #[test]
    fn protobuf_is_for_those_who_prefer_it() {
        let named = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let prometheus2 =
            format!("{named},application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1");
        let prometheus3 = format!("{named};q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1");
        let last = format!("{named};q=0.2,application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1");
        let of = |accept: &str| Format::accepted_by([accept].into_iter());
        assert_eq!([of(named), of(&prometheus2), of(&prometheus3)], [Format::Protobuf; 3]);
        assert_eq!(of(&last), Format::OpenMetrics);
        assert_eq!(of(&format!("{named};q=0")), Format::Text);
    }

    #[test]
    fn names_are_checked() {
        assert!(is_metric_name("sealane_x_total"));
        for bad in ["", "1a", "a-b", "a b"] {
            assert!(!is_metric_name(bad), "{bad}");
        }
    }
}
