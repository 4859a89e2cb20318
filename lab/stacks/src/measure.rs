//! Rounds over stacks and cases, interleaved, and what makes a run void.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::builder::Built;
use crate::energy::Energy;
use crate::wire::{self, Bulk, Case, Common, Handshakes, Line};

/// When a run does not count. Sleeping in the library's own lock is no reason: that is what is looked for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// The greatest part of the threads' time that they may wait for a CPU.
    pub queued: f64,
    /// The greatest part of the run in which somebody on this machine may wait for one (PSI).
    pub pressure: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { queued: 0.05, pressure: 0.20 }
    }
}

/// What one run gave.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Measured {
    /// Handshakes.
    Handshakes(Box<Handshakes>),
    /// Data.
    Bulk(Box<Bulk>),
}

impl Measured {
    /// Totals and circumstances.
    pub fn common(&self) -> &Common {
        match self {
            Measured::Handshakes(h) => &h.common,
            Measured::Bulk(b) => &b.common,
        }
    }

    /// Handshakes per second, or bytes.
    pub fn rate(&self) -> f64 {
        match self {
            Measured::Handshakes(h) => h.per_second(),
            Measured::Bulk(b) => (b.common.operations * b.record) as f64 * 1e9 / b.common.wall_ns.max(1) as f64,
        }
    }

    /// CPU microseconds of the side under test (the server where both are) per handshake, or per MiB.
    pub fn cost_us(&self) -> Option<f64> {
        let client = self.common().test == "client";
        match self {
            Measured::Handshakes(h) => h.side_us(!client),
            Measured::Bulk(b) => {
                let mib = (b.common.operations * b.record) as f64 / 1_048_576.0;
                let ns = if client { b.open_ns } else { b.seal_ns };
                (mib > 0.0).then(|| ns as f64 / mib / 1e3)
            }
        }
    }
}

/// One run of one stack in one case.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// In which round.
    pub round: usize,
    /// What it gave.
    pub measured: Option<Measured>,
    /// Part of the threads' time that they waited for a CPU.
    pub queued: Option<f64>,
    /// Part of the run in which somebody waited for a CPU.
    pub pressure: Option<f64>,
    /// Joules that the whole machine took for it, where that can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Why it does not count.
    pub void: Option<String>,
}

/// The runs of a stack in a case.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The stack's name.
    pub stack: String,
    /// The case.
    pub case: Case,
    /// Every run, void ones too.
    pub samples: Vec<Sample>,
    /// Why there are none: this stack cannot do it.
    pub refused: Option<String>,
}

/// A median and what it lies between: with five rounds, the least and the greatest enclose the true median in 94 of 100
/// cases, whatever the distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
    /// Of how many.
    pub rounds: usize,
}

impl Figure {
    /// Of some values; nothing of none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { median, least, most, rounds: values.len() })
    }
}

/// Fewer rounds than this are no figure.
pub const LEAST_ROUNDS: usize = 3;

impl Series {
    fn figure(&self, value: impl Fn(&Measured) -> Option<f64>) -> Option<Figure> {
        let valid = self.samples.iter().filter(|s| s.void.is_none()).filter_map(|s| s.measured.as_ref());
        Figure::of(valid.filter_map(value).collect()).filter(|f| f.rounds >= LEAST_ROUNDS)
    }

    /// Handshakes (or bytes) per second, of the runs that count; nothing where too few do.
    pub fn rate(&self) -> Option<Figure> {
        self.figure(|m| Some(m.rate()))
    }

    /// CPU microseconds of the side under test per handshake (or MiB).
    pub fn cost_us(&self) -> Option<Figure> {
        self.figure(Measured::cost_us)
    }

    /// Joules per million operations, both sides and the whole machine; nothing where they cannot be read.
    pub fn joules_per_million(&self) -> Option<Figure> {
        let valid = self.samples.iter().filter(|s| s.void.is_none());
        let each = valid.filter_map(|s| {
            let operations = s.measured.as_ref()?.common().operations.max(1);
            Some(s.joules? * 1e6 / operations as f64)
        });
        Figure::of(each.collect()).filter(|f| f.rounds >= LEAST_ROUNDS)
    }

    /// Why there is no figure.
    pub fn void(&self) -> Option<String> {
        if let Some(why) = &self.refused {
            return Some(why.clone());
        }
        let valid = self.samples.iter().filter(|s| s.void.is_none()).count();
        let first = self.samples.iter().find_map(|s| s.void.as_deref()).unwrap_or("too few rounds");
        (valid < LEAST_ROUNDS)
            .then(|| format!("void: {} of {} rounds; {first}", self.samples.len() - valid, self.samples.len()))
    }
}

/// How to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// What.
    pub cases: Vec<Case>,
    /// How often.
    pub rounds: usize,
    /// How long each time, in seconds.
    pub seconds: f64,
    /// When a run is void.
    pub limits: Limits,
}

/// Judges a run's circumstances.
pub fn void(limits: &Limits, queued: Option<f64>, pressure: Option<f64>) -> Option<String> {
    let over = |value: Option<f64>, limit: f64| value.filter(|v| *v > limit);
    if let Some(queued) = over(queued, limits.queued) {
        return Some(format!("its threads waited {:.0} % of the time for a CPU", queued * 100.0));
    }
    let pressure = over(pressure, limits.pressure)?;
    Some(format!("tasks on this machine waited for a CPU {:.0} % of the time", pressure * 100.0))
}

/// Runs the plan. Rounds go through all cases, and in each case through all stacks, every other time backwards: a drift
/// falls on all alike. After the last round, those with too few that count get up to as many again.
pub fn run(built: &[Built], peer: &Path, certs: &Path, plan: &Plan, say: &mut dyn FnMut(&str)) -> Vec<Series> {
    let mut all: Vec<Series> = plan
        .cases
        .iter()
        .flat_map(|case| {
            built.iter().map(|b| Series {
                stack: b.stack.name.clone(),
                case: case.clone(),
                samples: Vec::new(),
                refused: None,
            })
        })
        .collect();
    for round in 0..2 * plan.rounds {
        let repeat = round >= plan.rounds;
        for (n, case) in plan.cases.iter().enumerate() {
            let mut order: Vec<usize> = (0..built.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for stack in order {
                let series = &mut all[n * built.len() + stack];
                let valid = series.samples.iter().filter(|s| s.void.is_none()).count();
                if series.refused.is_some() || (repeat && valid >= plan.rounds.min(LEAST_ROUNDS)) {
                    continue;
                }
                let again = if repeat { " (again)" } else { "" };
                say(&format!("round {}{again}: {}, {}", round + 1, built[stack].stack.name, case.name()));
                match sample(&built[stack], peer, certs, plan, case, round) {
                    Ok(sample) => series.samples.push(sample),
                    Err(why) => series.refused = Some(why),
                }
            }
        }
    }
    all
}

fn sample(built: &Built, peer: &Path, certs: &Path, plan: &Plan, case: &Case, round: usize) -> Result<Sample, String> {
    let mut arguments = case.arguments();
    arguments.extend(["--seconds".into(), plan.seconds.to_string()]);
    let energy = Energy::now();
    let Run { measured, queued, pressure } = once(wire::command(built, peer, certs, &arguments))?;
    let joules = energy.and_then(|e| e.joules_since());
    let void = void(&plan.limits, queued, pressure);
    Ok(Sample { round, measured: Some(measured), queued, pressure, joules, void })
}

/// What a worker measured, and in which circumstances.
#[derive(Clone, Debug)]
pub struct Run {
    /// What it measured.
    pub measured: Measured,
    /// Part of its threads' time that they waited for a CPU.
    pub queued: Option<f64>,
    /// Part of the run in which somebody on this machine did.
    pub pressure: Option<f64>,
}

/// Runs a worker's command.
pub fn once(command: std::process::Command) -> Result<Run, String> {
    let before = Pressure::now();
    let lines = wire::run(command)?;
    let pressure = before.and_then(|b| b.since());
    let measured = lines.into_iter().find_map(|line| match line {
        Line::Handshakes(h) => Some(Measured::Handshakes(h)),
        Line::Bulk(b) => Some(Measured::Bulk(b)),
        _ => None,
    });
    let measured = measured.ok_or("the worker measured nothing")?;
    let common = measured.common();
    let of = common.wall_ns * common.threads;
    let queued = common.queued_ns.map(|queued| queued as f64 / of.max(1) as f64);
    Ok(Run { measured, queued, pressure })
}

/// The kernel's count of the time in which somebody waited for a CPU.
struct Pressure {
    waited: Duration,
    at: std::time::Instant,
}

impl Pressure {
    fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
        Some(Self { waited: parse_pressure(&text)?, at: std::time::Instant::now() })
    }

    fn since(&self) -> Option<f64> {
        let now = Self::now()?;
        let waited = now.waited.checked_sub(self.waited)?;
        Some(waited.as_secs_f64() / (now.at - self.at).as_secs_f64().max(1e-9))
    }
}

fn parse_pressure(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(operations: u64, void: Option<&str>) -> Sample {
        let line = format!(
            r#"{{"format":1,"kind":"handshakes","test":"server","tls":"1.3","key":"p256","group":"x25519","cipher":"aes128","context":"shared","threads":1,"operations":{operations},"wall_ns":1000000000,"cpu_ns":1,"handshake":"full","warmup":1,"timed":1,"client_ns":1,"server_ns":{},"client_data_ns":0,"server_data_ns":0,"tickets":2,"version":"x"}}"#,
            operations * 1000
        );
        let Some(Line::Handshakes(h)) = wire::read(&line).expect("right").pop() else { panic!("a line") };
        Sample {
            round: 0,
            measured: Some(Measured::Handshakes(h)),
            queued: None,
            pressure: None,
            joules: Some(operations as f64 * 2e-6),
            void: void.map(str::to_owned),
        }
    }

    fn series(samples: Vec<Sample>) -> Series {
        Series { stack: "s".into(), case: Case::BASE, samples, refused: None }
    }

    #[test]
    fn figures_are_of_the_runs_that_count() {
        let mut all = series(vec![of(10, None), of(30, None), of(999, Some("noise"))]);
        assert!(all.rate().is_none() && all.void().expect("two are too few").contains("noise"));
        all.samples.push(of(20, None));
        let rate = all.rate().expect("three count");
        assert_eq!((rate.median, rate.least, rate.most, rate.rounds), (20.0, 10.0, 30.0, 3));
        assert_eq!(all.cost_us().expect("too").median, 20.0);
        assert!((all.joules_per_million().expect("read").median - 2.0).abs() < 1e-9);
        assert_eq!(all.void(), None);
    }

    #[test]
    fn disturbance_from_outside_voids_and_nothing_else() {
        let limits = Limits::default();
        assert_eq!(void(&limits, Some(0.01), Some(0.1)), None);
        assert_eq!(void(&limits, None, None), None);
        assert!(void(&limits, Some(0.06), None).is_some_and(|why| why.contains("6 %")));
        assert!(void(&limits, Some(0.0), Some(0.5)).is_some_and(|why| why.contains("50 %")));
    }

    #[test]
    fn medians() {
        assert_eq!(Figure::of(vec![4.0, 1.0, 2.0, 3.0]).expect("four").median, 2.5);
        assert_eq!(Figure::of(Vec::new()), None);
    }

    #[test]
    fn pressure_is_read() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 total=9\n";
        assert_eq!(parse_pressure(text), Some(Duration::from_micros(1500)));
        assert_eq!(parse_pressure("full total=9"), None);
    }
}
