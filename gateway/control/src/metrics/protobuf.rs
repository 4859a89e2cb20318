//! The protobuf format of `/metrics`: messages `io.prometheus.client.MetricFamily`, each behind its length. Prometheus reads native
//! histograms in this format alone. Only what the gateway has is written: counters, gauges, histograms.
//!
//! Field numbers are those of `metrics.proto` of prometheus/client_model; a message is a list of fields, each with a key (its number
//! and how it is encoded) before it.

use crate::metrics::native::{Native, SCHEMA, ZERO_THRESHOLD};
use crate::metrics::prometheus::{FamilyData, HistogramData, Kind, SampleValue, Value};

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;

/// All families, as the body of a response.
pub fn encode(families: &[FamilyData]) -> Vec<u8> {
    let mut body = Vec::new();
    for family in families {
        let message = metric_family(family);
        varint(&mut body, message.len() as u64);
        body.extend_from_slice(&message);
    }
    body
}

fn metric_family(family: &FamilyData) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 1, family.name.as_bytes());
    bytes(&mut out, 2, family.help.as_bytes());
    number(
        &mut out,
        3,
        match family.kind {
            Kind::Counter => 0,
            Kind::Gauge => 1,
            Kind::Histogram => 4,
        },
    );
    for sample in &family.samples {
        let mut metric = Vec::new();
        labels(&mut metric, sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        match &sample.value {
            SampleValue::Number(value) => {
                let mut message = Vec::new();
                double(&mut message, 1, float(*value));
                bytes(&mut metric, if family.kind == Kind::Counter { 3 } else { 2 }, &message);
            }
            SampleValue::Histogram(histogram) => bytes(&mut metric, 7, &histogram_message(histogram)),
        }
        bytes(&mut out, 4, &metric);
    }
    out
}

/// Counts are exact up to 2^53, as in Prometheus itself.
fn float(value: Value) -> f64 {
    match value {
        Value::Count(n) => n as f64,
        Value::Float(n) => n,
    }
}

fn histogram_message(histogram: &HistogramData) -> Vec<u8> {
    let mut out = Vec::new();
    let total = histogram.count();
    number(&mut out, 1, total);
    double(&mut out, 2, histogram.sum);
    let (mut below, mut exemplar) = (0, histogram.exemplar.as_ref());
    for (bound, count) in histogram.buckets.iter().copied().chain([(f64::INFINITY, histogram.above)]) {
        below += count;
        let mut bucket = Vec::new();
        number(&mut bucket, 1, below);
        double(&mut bucket, 2, bound);
        if let Some((trace, value, at)) = exemplar.take_if(|(_, value, _)| *value <= bound) {
            bytes(&mut bucket, 3, &exemplar_message(trace, *value, *at));
        }
        bytes(&mut out, 3, &bucket);
    }
    if let Some(Native { zero_count, spans, deltas }) = &histogram.native {
        number(&mut out, 5, zigzag(SCHEMA.into()));
        double(&mut out, 6, ZERO_THRESHOLD);
        number(&mut out, 7, *zero_count);
        for (offset, length) in spans {
            let mut span = Vec::new();
            number(&mut span, 1, zigzag((*offset).into()));
            number(&mut span, 2, (*length).into());
            bytes(&mut out, 12, &span);
        }
        let mut packed = Vec::new();
        deltas.iter().for_each(|delta| varint(&mut packed, zigzag(*delta)));
        bytes(&mut out, 13, &packed);
        if let Some((trace, value, at)) = &histogram.exemplar {
            bytes(&mut out, 16, &exemplar_message(trace, *value, *at));
        }
    }
    out
}

fn exemplar_message(trace: &str, value: f64, at: f64) -> Vec<u8> {
    let mut out = Vec::new();
    labels(&mut out, [("trace_id", trace)].into_iter());
    double(&mut out, 2, value);
    let mut timestamp = Vec::new();
    number(&mut timestamp, 1, at.max(0.0) as u64);
    number(&mut timestamp, 2, (at.max(0.0).fract() * 1e9) as u64);
    bytes(&mut out, 3, &timestamp);
    out
}

fn labels<'l>(out: &mut Vec<u8>, labels: impl Iterator<Item = (&'l str, &'l str)>) {
    for (name, value) in labels {
        let mut pair = Vec::new();
        bytes(&mut pair, 1, name.as_bytes());
        bytes(&mut pair, 2, value.as_bytes());
        bytes(out, 1, &pair);
    }
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Numbers near zero are short, whatever their sign (`sint32`, `sint64`).
fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3 | VARINT);
    varint(out, value);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    varint(out, field << 3 | FIXED64);
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::prometheus::{Exemplar, Format, Writer};
    use sealane_lane::histogram::{Distribution, Histogram};

    /// A message's fields: their numbers, and what they hold.
    fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn take(message: &mut &[u8]) -> u64 {
            let (mut n, mut shift) = (0, 0);
            loop {
                let byte = message[0];
                *message = &message[1..];
                n |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return n;
                }
            }
        }
        let mut found = Vec::new();
        while !message.is_empty() {
            let key = take(&mut message);
            let value = match key & 7 {
                VARINT => take(&mut message).to_le_bytes().to_vec(),
                FIXED64 => message.split_off(..8).expect("eight bytes").to_vec(),
                BYTES => {
                    let length = take(&mut message) as usize;
                    message.split_off(..length).expect("so many bytes").to_vec()
                }
                other => panic!("{other}"),
            };
            found.push((key >> 3, value));
        }
        found
    }

    fn of(fields: &[(u64, Vec<u8>)], number: u64) -> Vec<Vec<u8>> {
        fields.iter().filter(|(n, _)| *n == number).map(|(_, value)| value.clone()).collect()
    }

    #[test]
    fn families_are_messages_behind_their_lengths() {
        let mut w = Writer::new(Format::Protobuf);
        w.counter("requests_total", "Requests.").sample(&[("host", "a\"b\nc")], 300);
        w.gauge("load", "Load.").sample(&[], -0.5);
        let exemplar = Exemplar { trace_id: "4bf9", value: 0.5, at: 10.25 };
        w.histogram("wait_seconds", "Time.").sample_with(&[], &[(0.01, 2), (1.0, 3)], 4, 12.25, Some(exemplar));
        let body = w.into_body();
        let mut families = Vec::new();
        let mut rest = &body[..];
        while let Some((length, after)) = rest.split_first() {
            let length = usize::from(*length);
            assert!(length < 0x80 || after[0] < 0x80);
            let (length, after) =
                if length < 0x80 { (length, after) } else { (length & 0x7f | usize::from(after[0]) << 7, &after[1..]) };
            families.push(fields(&after[..length]));
            rest = &after[length..];
        }
        assert_eq!(families.len(), 3);
        let names: Vec<Vec<u8>> = families.iter().flat_map(|family| of(family, 1)).collect();
        assert_eq!(names, [&b"requests_total"[..], b"load", b"wait_seconds"]);
        let kinds: Vec<u8> = families.iter().map(|family| of(family, 3)[0][0]).collect();
        assert_eq!(kinds, [0, 1, 4]);
        let metric = fields(&of(&families[0], 4)[0]);
        assert_eq!(of(&fields(&of(&metric, 1)[0]), 2), [b"a\"b\nc"]);
        assert_eq!(of(&fields(&of(&metric, 3)[0]), 1), [300f64.to_le_bytes()]);
        assert_eq!(of(&fields(&of(&fields(&of(&families[1], 4)[0]), 2)[0]), 1), [(-0.5f64).to_le_bytes()]);
        let histogram = fields(&of(&fields(&of(&families[2], 4)[0]), 7)[0]);
        assert_eq!((of(&histogram, 1)[0][0], of(&histogram, 2)[0].as_slice()), (9, &12.25f64.to_le_bytes()[..]));
        let buckets: Vec<Vec<(u64, Vec<u8>)>> = of(&histogram, 3).iter().map(|bucket| fields(bucket)).collect();
        let counts: Vec<u8> = buckets.iter().map(|bucket| of(bucket, 1)[0][0]).collect();
        assert_eq!(counts, [2, 5, 9]);
        let exemplars: Vec<usize> = buckets.iter().map(|bucket| of(bucket, 3).len()).collect();
        assert_eq!(exemplars, [0, 1, 0]);
        assert!(of(&histogram, 5).is_empty(), "it has no native buckets");
    }

    /// Prometheus drops the classic buckets with their exemplars when it stores the native histogram, which has its own.
    #[test]
    fn a_native_histogram_has_the_exemplar_too() {
        let mut times = Distribution::default();
        let recorded = Histogram::default();
        recorded.record(500_000);
        times.add(&recorded);
        let mut w = Writer::new(Format::Protobuf);
        let exemplar = Exemplar { trace_id: "4bf9", value: 0.5, at: 10.25 };
        w.histogram("wait_seconds", "Time.").sample_with(&[], &[(1.0, 1)], 0, 0.5, Some(exemplar)).native(&times);
        let body = w.into_body();
        let family = fields(&body[1 + usize::from(body[0] >= 0x80)..]);
        let histogram = fields(&of(&fields(&of(&family, 4)[0]), 7)[0]);
        assert_eq!((of(&histogram, 5).len(), of(&histogram, 12).len()), (1, 1), "it has native buckets");
        let exemplars = of(&histogram, 16);
        assert_eq!(exemplars.len(), 1);
        let exemplar = fields(&exemplars[0]);
        assert_eq!(of(&exemplar, 2), [0.5f64.to_le_bytes()]);
        let label = fields(&of(&exemplar, 1)[0]);
        assert_eq!([of(&label, 1), of(&label, 2)], [[b"trace_id".to_vec()], [b"4bf9".to_vec()]]);
    }

    #[test]
    fn numbers_are_encoded_as_the_specification_says() {
        let encoded = |n| {
            let mut out = Vec::new();
            varint(&mut out, n);
            out
        };
        assert_eq!((encoded(1), encoded(150), encoded(u64::MAX).len()), (vec![1], vec![0x96, 1], 10));
        assert_eq!([0, -1, 1, -2, i64::MAX, i64::MIN].map(zigzag), [0, 1, 2, 3, u64::MAX - 1, u64::MAX]);
    }
}
