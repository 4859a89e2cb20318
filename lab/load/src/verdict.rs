//! May the run be believed, and did it hold what was asked of it?

use std::fmt;

use hdrhistogram::Histogram;

use crate::plan::{Pace, Plan};
use crate::record::{Failure, Record};

/// Percentiles that are shown when there is enough behind them.
pub const PERCENTILES: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999, 99.9999];

/// How many samples must lie beyond a percentile for it to mean anything.
pub const BEYOND: f64 = 10.0;

/// Whether `samples` suffice for percentile `p`: ten of them must lie beyond it.
pub fn tells(samples: u64, p: f64) -> bool {
    // The tolerance is for 100 − 99.9999 in binary.
    samples as f64 * (100.0 - p) / 100.0 >= BEYOND - 1e-8
}

/// What the run's surroundings were.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// CPU pressure over the measured phase, in per cent; `None` where the kernel does not say.
    pub pressure: Option<f64>,
    /// The part of the measured phase in which the busiest thread had work, 0 to 1.
    pub busiest: f64,
    /// Threads that ended before their time.
    pub lost: usize,
    /// Seconds that were measured.
    pub seconds: f64,
}

/// Why a run is void; nothing when it holds.
pub fn void(plan: &Plan, record: &Record, conditions: &Conditions) -> Vec<String> {
    let mut why = Vec::new();
    let honesty = &plan.honesty;
    if conditions.lost > 0 {
        why.push(format!("{} generator thread(s) ended unexpectedly", conditions.lost));
    }
    let ports = record.failures.counts[Failure::Ports as usize];
    if ports > 0 {
        let said = record.failures.first[Failure::Ports as usize].as_deref().unwrap_or("no free port");
        why.push(format!(
            "local ports were used up: {ports} connections could not be opened ({said}); add --source \
                          addresses, or use --close rst"
        ));
    }
    if let Some(pressure) = conditions.pressure
        && pressure > honesty.pressure
    {
        why.push(format!(
            "CPU pressure was {pressure:.1} % (at most {:.1} %): other programs also needed the CPUs",
            honesty.pressure
        ));
    }
    if let Pace::Open { rate, .. } = plan.pace {
        let lag = record.lag.value_at_quantile(0.99);
        if !record.lag.is_empty() && u128::from(lag) > honesty.lag.as_nanos() {
            why.push(format!(
                "the generator lagged: at the 99th percentile it started operations {:.3} ms late (at most {:.3} ms)",
                lag as f64 / 1e6,
                honesty.lag.as_secs_f64() * 1e3
            ));
        }
        let reached = record.in_window as f64 / conditions.seconds.max(1e-9);
        if plan.requests.is_none() && reached < rate * honesty.offered && conditions.busiest > 0.95 {
            why.push(format!(
                "the client was the limit: {reached:.0}/s of {rate:.0}/s with a thread busy {:.0} % of the time; \
                 use more --threads",
                conditions.busiest * 100.0
            ));
        }
    }
    let h = &record.handshakes;
    let asked = record.completed.max(1) as f64;
    if (h.not_resumed + h.no_ticket) as f64 / asked > honesty.mismatch {
        why.push(format!(
            "some handshakes were full instead of resumed: {} refused by the server, {} without a ticket",
            h.not_resumed, h.no_ticket
        ));
    }
    if (h.early_rejected + h.early_not_offered) as f64 / asked > honesty.mismatch {
        why.push(format!(
            "early data was requested but not accepted: {} refused by the server, {} tickets did not allow it",
            h.early_rejected, h.early_not_offered
        ));
    }
    if record.completed == 0 {
        let first = record.failures.first.iter().flatten().next();
        why.push(format!("nothing completed{}", first.map(|f| format!(": {f}")).unwrap_or_default()));
    }
    why
}

/// What a threshold looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// A percentile of the latency, in nanoseconds.
    Percentile(f64),
    /// The greatest latency.
    Max,
    /// The mean latency.
    Mean,
    /// Failed operations as a part of all, statuses from 500 on included.
    Errors,
    /// Operations per second.
    Rate,
    /// The server's CPU time per operation, in nanoseconds.
    CpuPerOperation,
}

/// A condition under which a run has failed, such as `p99.9>20ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    measure: Measure,
    above: bool,
    bound: f64,
}

/// The figures that thresholds look at.
#[derive(Debug)]
pub struct Figures<'a> {
    /// Latencies.
    pub latency: &'a Histogram<u64>,
    /// Failed operations as a part of all.
    pub errors: f64,
    /// Operations per second.
    pub rate: f64,
    /// The server's CPU nanoseconds per operation, when it was accounted.
    pub cpu: Option<f64>,
}

impl Threshold {
    /// Parses `MEASURE>BOUND` or `MEASURE<BOUND`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let at = text.find(['<', '>']).ok_or_else(|| format!("{text:?} has neither < nor >"))?;
        let above = text.as_bytes()[at] == b'>';
        let (name, bound) = (text[..at].trim(), text[at + 1..].trim_start_matches('=').trim());
        let measure = match name {
            "max" => Measure::Max,
            "mean" => Measure::Mean,
            "errors" => Measure::Errors,
            "rate" | "rps" => Measure::Rate,
            "cpu" => Measure::CpuPerOperation,
            _ => {
                let p = name.strip_prefix('p').and_then(|p| p.parse::<f64>().ok()).filter(|p| (0.0..100.0).contains(p));
                Measure::Percentile(p.ok_or_else(|| {
                    format!("{name:?} in {text:?} is unknown: write p50 … p99.9999, max, mean, errors, rate or cpu")
                })?)
            }
        };
        let bound = match measure {
            Measure::Percentile(_) | Measure::Max | Measure::Mean | Measure::CpuPerOperation => time(bound),
            Measure::Errors => match bound.strip_suffix('%') {
                Some(percent) => percent.trim().parse::<f64>().ok().map(|p| p / 100.0),
                None => bound.parse().ok(),
            },
            Measure::Rate => bound.parse().ok(),
        };
        let bound = bound.filter(|b| b.is_finite() && *b >= 0.0);
        let bound = bound.ok_or_else(|| format!("the bound in {text:?} is not a {}", measure.unit()))?;
        Ok(Self { text: text.to_owned(), measure, above, bound })
    }

    /// The violation in words, if there is one.
    pub fn violated(&self, figures: &Figures<'_>) -> Option<String> {
        let latency = figures.latency;
        let (value, shown) = match self.measure {
            Measure::Percentile(p) => {
                if !tells(latency.len(), p) {
                    return Some(format!("{}: {} samples are too few to decide", self.text, latency.len()));
                }
                let v = latency.value_at_quantile(p / 100.0) as f64;
                (v, format!("{:.3} ms", v / 1e6))
            }
            Measure::Max => (latency.max() as f64, format!("{:.3} ms", latency.max() as f64 / 1e6)),
            Measure::Mean => (latency.mean(), format!("{:.3} ms", latency.mean() / 1e6)),
            Measure::Errors => (figures.errors, format!("{:.3} %", figures.errors * 100.0)),
            Measure::Rate => (figures.rate, format!("{:.1}/s", figures.rate)),
            Measure::CpuPerOperation => match figures.cpu {
                None => return Some(format!("{}: no --server-pid was given", self.text)),
                Some(v) => (v, format!("{:.2} µs", v / 1e3)),
            },
        };
        let broken = if self.above { value > self.bound } else { value < self.bound };
        broken.then(|| format!("{}: it was {shown}", self.text))
    }
}

impl Measure {
    fn unit(self) -> &'static str {
        match self {
            Self::Errors => "fraction or a percentage, such as 0.01 or 1%",
            Self::Rate => "number per second",
            _ => "time with its unit, such as 20ms",
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A time such as `20ms`, `1.5s`, `300us` or `80ns`, in nanoseconds.
pub fn time(text: &str) -> Option<f64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let unit = match text[split..].trim() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return None,
    };
    Some(text[..split].parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{histogram, note};

    #[test]
    fn only_percentiles_with_ten_samples_beyond() {
        assert!(tells(10_000_000, 99.9999) && !tells(9_999_999, 99.9999));
        assert!(tells(10_000, 99.9) && !tells(9_999, 99.9));
        assert!(tells(20, 50.0) && !tells(19, 50.0));
    }

    #[test]
    fn each_reason_makes_a_run_void_and_a_clean_one_holds() {
        let mut plan = Plan::new(Vec::new());
        plan.pace = Pace::Open { rate: 1000.0, arrivals: crate::schedule::Arrivals::Uniform };
        let good = Conditions { pressure: Some(5.0), busiest: 0.5, lost: 0, seconds: 1.0 };
        let mut clean = Record::new(&plan);
        (clean.completed, clean.in_window) = (1000, 1000);
        note(&mut clean.lag, 10_000);
        assert_eq!(void(&plan, &clean, &good), Vec::<String>::new());
        let one = |record: &Record, conditions: &Conditions, word: &str| {
            let why = void(&plan, record, conditions);
            assert!(why.len() == 1 && why[0].contains(word), "{word}: {why:?}");
        };
        one(&clean, &Conditions { pressure: Some(30.0), ..good }, "CPU pressure");
        one(&clean, &Conditions { lost: 1, ..good }, "ended unexpectedly");
        let mut late = clean.clone();
        note(&mut late.lag, 2_000_000);
        one(&late, &good, "lagged");
        let mut short = clean.clone();
        short.in_window = 900;
        one(&short, &Conditions { busiest: 0.99, ..good }, "the client was the limit");
        // The server's fault: no reason to distrust the figures.
        assert!(void(&plan, &short, &good).is_empty());
        let mut ports = clean.clone();
        ports.failures.note(Failure::of(rustix::io::Errno::ADDRNOTAVAIL, true), || "no port".into());
        one(&ports, &good, "ports were used up");
        let mut mismatched = clean.clone();
        mismatched.handshakes.not_resumed = 11;
        one(&mismatched, &good, "handshakes were full");
        let mut refused = clean.clone();
        refused.handshakes.early_rejected = 11;
        one(&refused, &good, "early data");
        let mut nothing = Record::new(&plan);
        nothing.in_window = 1000;
        one(&nothing, &good, "nothing completed");
    }

    #[test]
    fn thresholds() {
        let mut latency = histogram();
        for ms in 1..=1000u64 {
            note(&mut latency, ms * 1_000_000);
        }
        let figures = Figures { latency: &latency, errors: 0.02, rate: 500.0, cpu: Some(90_000.0) };
        for (text, broken) in [
            ("p99>900ms", true),
            ("p99 > 1s", false),
            ("max>=2s", false),
            ("errors>1%", true),
            ("errors>0.02", false),
            ("rate<600", true),
            ("rps<400", false),
            ("mean>1s", false),
            ("cpu>80us", true),
            ("p99.9>10s", true),
        ] {
            let said = Threshold::parse(text).unwrap().violated(&figures);
            assert_eq!(said.is_some(), broken, "{text}: {said:?}");
        }
        for text in ["p99", "p100>1s", "x>1", "p99>20", "p99>ms", "errors>", "p99>-1ms"] {
            assert!(Threshold::parse(text).is_err(), "{text}");
        }
    }
}
