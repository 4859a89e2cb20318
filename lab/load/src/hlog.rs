//! Latencies as an HdrHistogram interval log (V2, compressed), which the usual viewers read.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use crate::report::Report;

/// Values are recorded in nanoseconds; the log's readable maximum is in milliseconds, as usual.
const NANOS_PER_MILLI: f64 = 1e6;

/// Writes the report's histograms: the latency per interval when there are intervals, else over the whole
/// run; and, tagged by kind, every distribution over the measured phase.
pub fn write(report: &Report, to: &mut impl Write) -> io::Result<()> {
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment(&format!("{} {}; values in nanoseconds", report.tool, report.version))
        .add_comment(&format!(
            "latency from the {} moment",
            if report.rate_offered.is_some() { "intended" } else { "actual" }
        ))
        .with_base_time(SystemTime::UNIX_EPOCH)
        .with_max_value_divisor(NANOS_PER_MILLI)
        .begin_log_with(to, &mut serializer)?;
    let whole = Duration::from_secs_f64(report.seconds.max(0.0));
    let failed = |e: &dyn std::fmt::Debug| io::Error::other(format!("{e:?}"));
    if report.intervals.is_empty() {
        log.write_histogram(&report.record.overall(), Duration::ZERO, whole, None).map_err(|e| failed(&e))?;
    }
    for (i, (start, histogram)) in report.intervals.iter().enumerate() {
        let end = report.intervals.get(i + 1).map_or(start + 1.0, |next| next.0);
        let (start, length) =
            (Duration::from_secs_f64(start.max(0.0)), Duration::from_secs_f64((end - start).max(0.0)));
        log.write_histogram(histogram, start, length, None).map_err(|e| failed(&e))?;
    }
    for (i, times) in report.record.times.iter().enumerate() {
        let Some(times) = times else { continue };
        let kind = crate::plan::Kind::ALL[i].name();
        for (what, histogram) in [
            ("intended", &times.corrected),
            ("actual", &times.uncorrected),
            ("connect", &times.connect),
            ("handshake", &times.handshake),
            ("first-byte", &times.first_byte),
        ] {
            let name = format!("{kind}-{what}");
            if !histogram.is_empty() {
                log.write_histogram(histogram, Duration::ZERO, whole, Tag::new(&name)).map_err(|e| failed(&e))?;
            }
        }
    }
    Ok(())
}
