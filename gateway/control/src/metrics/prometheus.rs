//! The Prometheus text format, version 0.0.4.

use std::fmt::{self, Write};

/// Builds a page of metrics.
#[derive(Debug, Default)]
pub struct Writer {
    text: String,
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
    /// An empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// A counter. `name` ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, help, "counter")
    }

    /// A gauge.
    pub fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, help, "gauge")
    }

    /// A histogram.
    pub fn histogram(&mut self, name: &'static str, help: &str) -> HistogramFamily<'_> {
        HistogramFamily(self.family(name, help, "histogram"))
    }

    /// The page.
    pub fn finish(self) -> String {
        self.text
    }

    fn family(&mut self, name: &'static str, help: &str, kind: &str) -> Family<'_> {
        debug_assert!(is_metric_name(name), "{name}");
        let _ = write!(self.text, "# HELP {name} ");
        escape(&mut self.text, help, false);
        let _ = write!(self.text, "\n# TYPE {name} {kind}\n");
        Family { text: &mut self.text, name }
    }
}

/// All samples of one counter or gauge, which must stand together.
#[derive(Debug)]
pub struct Family<'w> {
    text: &'w mut String,
    name: &'static str,
}

impl Family<'_> {
    /// One sample. Each set of labels only once.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) -> &mut Self {
        line(self.text, self.name, "", labels, None, value.into());
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
        let Family { text, name } = &mut self.0;
        let mut total = 0;
        for (bound, count) in buckets.iter().copied().chain([(f64::INFINITY, above)]) {
            total += count;
            line(text, name, "_bucket", labels, Some(bound), Value::Count(total));
        }
        line(text, name, "_sum", labels, None, Value::Float(sum));
        line(text, name, "_count", labels, None, Value::Count(total));
        self
    }
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
        let _ = write!(text, "{separator}le=\"{}\"", Value::Float(bound));
        separator = ',';
    }
    if separator == ',' {
        text.push('}');
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, " {value}");
}

/// Backslash and line feed are escaped everywhere, quotes in label values.
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

    #[test]
    fn a_page_reads_as_the_format_says() {
        let mut w = Writer::new();
        w.counter("requests_total", "Requests\nserved \\ \"all\".")
            .sample(&[("lane", "0"), ("host", "a\"b\\c\nd")], u64::MAX)
            .sample(&[], 1);
        w.gauge("load", "Load.").sample(&[("x", "")], 0.5).sample(&[], f64::NAN);
        w.histogram("seconds", "Time.").sample(&[("lane", "1")], &[(0.001, 2), (0.01, 0), (1.0, 3)], 4, 12.25);
        assert_eq!(
            w.finish(),
            r#"# HELP requests_total Requests\nserved \\ "all".
# TYPE requests_total counter
requests_total{lane="0",host="a\"b\\c\nd"} 18446744073709551615
requests_total 1
# HELP load Load.
# TYPE load gauge
load{x=""} 0.5
load NaN
# HELP seconds Time.
# TYPE seconds histogram
seconds_bucket{lane="1",le="0.001"} 2
seconds_bucket{lane="1",le="0.01"} 2
seconds_bucket{lane="1",le="1"} 5
seconds_bucket{lane="1",le="+Inf"} 9
seconds_sum{lane="1"} 12.25
seconds_count{lane="1"} 9
"#
        );
    }

    #[test]
    fn names_are_checked() {
        assert!(is_metric_name("sealane_x_total"));
        for bad in ["", "1a", "a-b", "a b"] {
            assert!(!is_metric_name(bad), "{bad}");
        }
    }
}
