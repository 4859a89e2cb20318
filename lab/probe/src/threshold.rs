//! `--fail-if`: conditions under which a probe fails a build, such as `tls.median>20ms` or `days-left<14`.

use serde::Serialize;

use crate::error::ProbeError;
use crate::report::Report;
use crate::stats::Summary;
use crate::timing::Metric;

/// A condition that must not hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    subject: Subject,
    above: bool,
    limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Subject {
    /// Nanoseconds of one metric.
    Time(Metric, Statistic),
    /// Days that the server's certificate is still valid.
    DaysLeft,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Statistic {
    Min,
    Mean,
    Median,
    P90,
    P99,
    Max,
}

/// What became of a threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The condition as given.
    pub condition: String,
    /// Whether the condition was met, that is, the probe fails. `None`: there was nothing to hold it against.
    pub failed: Option<bool>,
    /// What was found, with its variant.
    pub found: Vec<String>,
}

impl Threshold {
    /// Parses `SUBJECT>VALUE` or `SUBJECT<VALUE`.
    pub fn parse(text: &str) -> Result<Self, ProbeError> {
        let bad = |problem: &str| {
            ProbeError::Usage(format!(
                "--fail-if '{text}': {problem}\n\
                 write PHASE.STATISTIC>TIME, such as tls.median>20ms or total.p90>0.1s, or days-left<14\n\
                 phases: dns tcp tls first-byte body total, or curl's time_appconnect and so on; statistics: min mean \
                 median p90 p99 max"
            ))
        };
        let at = text.find(['<', '>']).ok_or_else(|| bad("there is no < or >"))?;
        let (subject, above, value) = (text[..at].trim(), text.as_bytes()[at] == b'>', text[at + 1..].trim());
        let subject = if subject == "days-left" {
            Subject::DaysLeft
        } else {
            let (metric, statistic) = subject.split_once('.').unwrap_or((subject, "median"));
            let metric = Metric::from_name(metric).ok_or_else(|| bad("no such phase"))?;
            let statistic = match statistic {
                "min" => Statistic::Min,
                "mean" => Statistic::Mean,
                "median" | "p50" => Statistic::Median,
                "p90" => Statistic::P90,
                "p99" => Statistic::P99,
                "max" => Statistic::Max,
                _ => return Err(bad("no such statistic")),
            };
            Subject::Time(metric, statistic)
        };
        let limit = match subject {
            Subject::DaysLeft => value.parse().ok(),
            Subject::Time(..) => duration(value),
        };
        let limit =
            limit.filter(|l: &f64| l.is_finite() && *l >= 0.0).ok_or_else(|| bad("the value cannot be read"))?;
        Ok(Self { text: text.to_owned(), subject, above, limit })
    }

    /// Holds the threshold against a report: it fails when any variant meets its condition.
    pub fn judge(&self, report: &Report) -> Verdict {
        let mut found: Vec<(f64, String)> = Vec::new();
        let mut missing = false;
        match self.subject {
            Subject::DaysLeft => match report.inspection.as_ref().and_then(|i| i.certificates.first()) {
                Some(cert) => found.push((cert.days_left as f64, format!("{} days", cert.days_left))),
                None => missing = true,
            },
            Subject::Time(metric, statistic) => {
                let variants = report.variants.iter().map(|v| (&v.variant, &v.metrics));
                let groups = report.groups.iter().map(|g| (&g.name, &g.metrics));
                for (name, metrics) in variants.chain(groups) {
                    let summary = metrics.iter().find(|m| m.metric == metric).map(|m| &m.summary);
                    match summary.and_then(|s| statistic.of(s)) {
                        Some(value) => found.push((value, format!("{name}: {}", crate::text::time(value)))),
                        None => missing = true,
                    }
                }
                missing |= found.is_empty();
            }
        }
        let met = found.iter().any(|(value, _)| if self.above { *value > self.limit } else { *value < self.limit });
        Verdict {
            condition: self.text.clone(),
            failed: if met { Some(true) } else { (!missing).then_some(false) },
            found: found.into_iter().map(|(_, text)| text).collect(),
        }
    }
}

impl Statistic {
    fn of(self, summary: &Summary) -> Option<f64> {
        match self {
            Self::Min => Some(summary.min as f64),
            Self::Mean => Some(summary.mean),
            Self::Median => Some(summary.median),
            Self::P90 => summary.p90,
            Self::P99 => summary.p99,
            Self::Max => Some(summary.max as f64),
        }
    }
}

/// `20ms`, `1.5s`, `300us`, `1000ns` in nanoseconds.
fn duration(text: &str) -> Option<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic() || c == 'µ')?;
    let number: f64 = text[..at].trim().parse().ok()?;
    let unit = match &text[at..] {
        "s" => 1e9,
        "ms" => 1e6,
        "us" | "µs" => 1e3,
        "ns" => 1.0,
        _ => return None,
    };
    Some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::Series;
    use crate::timing::Timing;

    fn report() -> Report {
        let samples = (1..=20).map(|i| Timing { total: i * 1_000_000, ..Timing::default() }).collect();
        Report::of_rows("x", vec![Series { name: "a".into(), samples }], 1)
    }

    fn failed(text: &str) -> Option<bool> {
        Threshold::parse(text).expect(text).judge(&report()).failed
    }

    #[test]
    fn conditions_are_held_against_the_report() {
        assert_eq!(failed("total.median>10ms"), Some(true));
        assert_eq!(failed("total>0.0106s"), Some(false));
        assert_eq!(failed("total.max > 19999us"), Some(true));
        assert_eq!(failed("total.min<1ms"), Some(false));
        assert_eq!(failed("time_total.mean<1000000000ns"), Some(true));
        // Too few samples for a p90, and no certificate: neither failed nor passed.
        assert_eq!(failed("total.p90>1ms"), None);
        assert_eq!(failed("days-left<14"), None);
    }

    #[test]
    fn nonsense_is_wrong_usage() {
        for bad in [
            "",
            "total",
            "total>",
            "total>5",
            "total>xms",
            "nope>5ms",
            "total.p50.1>5ms",
            "days-left<soon",
            "tls>-1ms",
            "tls>1h",
            "tls>infms",
        ] {
            assert_eq!(Threshold::parse(bad).expect_err(bad).exit_code(), 2);
        }
    }
}
